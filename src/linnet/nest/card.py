"""A model card: what `nest.toml` states of a model, read whole and checked."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import linnet
from linnet.diagnostics import NestError
from linnet.types import DTYPES

if TYPE_CHECKING:
    from linnet.ir import Program

MANIFEST = "nest.toml"
ZOO = Path(linnet.__file__).parent / "zoo"

Scalar = int | float | bool
Binding = int | str


@dataclass(frozen=True, slots=True)
class Links:
    """Pages about the model; absent ones are None."""

    huggingface: str | None = None
    github: str | None = None
    arxiv: str | None = None
    homepage: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a registry package, of the mirror's version, that is a part of its file."""

    package: str
    file: str


@dataclass(frozen=True, slots=True)
class Mirror:
    """Another place that holds the same weights: `file` of a registry package, by its digest.

    `tokenizer` has the digests of the files of that package which the text side is read from.
    Where packages hold it in pieces, `parts` lists them in order. `terms` is the page of terms
    that a user accepts first (`LINNET_ACCEPT_TERMS` holds the names of such cards).
    """

    kind: str
    package: str
    version: str
    file: str
    sha256: str
    format: str
    bindings: str | None = None
    tokenizer: dict[str, str] = field(default_factory=dict[str, str])
    parts: tuple[Part, ...] = ()
    terms: str | None = None

    @property
    def label(self) -> str:
        return f"{self.package} {self.version} ({self.kind})"

    @property
    def pieces(self) -> tuple[Part, ...]:
        """What is fetched, in order: the parts, or the one file."""
        return self.parts or (Part(self.package, self.file),)


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the weights are published; an empty `repo` means beside the card.

    `tokenizer` is None where the usual files are taken as far as they exist. `directory` holds the
    files where they do not lie beside the card. `cast_dtype`: some are stored in other float dtypes
    than the model's. `copies` maps a redundant tensor to the one that it must equal.
    `unread` has patterns (`cls.*`) of tensors that the program knowingly does without.
    """

    repo: str = ""
    revision: str | None = None
    files: tuple[str, ...] = ()
    bindings: str | None = None
    tokenizer: tuple[str, ...] | None = None
    mirrors: tuple[Mirror, ...] = ()
    directory: str | None = None
    cast_dtype: bool = False
    copies: dict[str, str] = field(default_factory=dict[str, str])
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextContract:
    """What a card states of its model's text; what it leaves out is as the checkpoint has it.

    `chat` says whether there are conversations, `template` a file beside the card that renders
    them, `system` whether they may begin with a system message. `begin` stands before plain text
    (False: nothing does); one of `end` ends an answer. `unused` tokens have no row in the model.
    Tokens are named by their text or their id.
    """

    chat: bool | None = None
    template: str | None = None
    system: bool = True
    begin: str | int | None = None
    end: tuple[str | int, ...] = ()
    unused: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A model of the zoo: its family's source, what is bound in it, and where its weights are."""

    directory: Path
    name: str
    title: str | None = None
    summary: str | None = None
    license: str | None = None
    family: str | None = None
    tags: tuple[str, ...] = ()
    parameters: int | None = None
    links: Links = field(default_factory=Links)
    package: str | None = None
    path: str = "src/lib.linnet"
    root: str | None = None
    entry: str | None = None
    generics: dict[str, Binding] = field(default_factory=dict[str, Binding])
    constants: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    check: dict[str, Binding] = field(default_factory=dict[str, Binding])
    weights: Weights = field(default_factory=Weights)
    text: TextContract = field(default_factory=TextContract)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @staticmethod
    def read(directory: str | Path) -> Card:
        """The card in the directory, or one NestError that lists everything wrong with it."""
        return _read(Path(directory))

    @property
    def package_dir(self) -> Path:
        """The folder of the Linnet package: a family of the zoo, else the card's own."""
        return self.directory if self.package is None else ZOO / "families" / self.package

    @property
    def source_path(self) -> Path:
        """The package's main file."""
        return self.package_dir / self.path

    def program(self, std_root: str | Path | None = None) -> Program:
        """The card's program, its constants set, checked; PlanError with every finding if not."""
        from linnet.ir import load_program  # the checker, which reading a card does not need

        return load_program(
            self.source_path, root=self.root, std_root=std_root, constants=self.constants
        )

    @property
    def weights_dir(self) -> Path:
        """Where the weights lie if this machine has them without fetching: beside the card."""
        return self.directory / (self.weights.directory or "")

    @property
    def bindings_path(self) -> Path | None:
        """The file of bindings beside the card; None where paths are the tensor names."""
        return self.directory / self.weights.bindings if self.weights.bindings else None


def find_card(name_or_dir: str | Path) -> Card:
    """The card of a directory given as such, else of a name: LINNET_NEST first, then the zoo's."""
    # os.path: a long text in place of a name is that of no file, and no error of its own.
    given = Path(os.path.expanduser(name_or_dir))
    if os.path.isfile(given / MANIFEST):
        return Card.read(given)
    known = card_directories()
    name = str(name_or_dir)
    if name not in known:  # `all-minilm-l6-v2` is all-MiniLM-L6-v2
        name = next((one for one in known if one.casefold() == name.casefold()), name)
    if name in known:
        return Card.read(known[name])
    cards = f"cards: {', '.join(known) or 'none'}"
    if os.path.isdir(given):
        convert = f"\n  `linnet nest convert {given} -o DIR` makes a card of a checkpoint"
        hint = convert if (given / "config.json").is_file() else ""
        raise NestError(
            f"{given}: a directory without a card: it has no {MANIFEST}{hint}\n  {cards}"
        )
    if len(given.parts) != 1 or isinstance(name_or_dir, Path):
        raise NestError(f"{given}: no such directory, and no card has a name like it\n  {cards}")
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    suggestion = f"; did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else ""
    raise NestError(
        f"no card `{name}`{suggestion}\n  {cards}\n"
        f"  (a directory with a {MANIFEST} may stand in place of a name, "
        "and LINNET_NEST adds directories to search)"
    )


def card_directories() -> dict[str, Path]:
    """Every card that a name can reach, by name: LINNET_NEST's directories in order, then ours."""
    found: dict[str, Path] = {}
    for place in [*_search_path(), ZOO / "models"]:
        if (place / MANIFEST).is_file():
            found.setdefault(place.resolve().name, place)
        elif place.is_dir():
            for directory in sorted(place.iterdir()):
                if (directory / MANIFEST).is_file():
                    found.setdefault(directory.name, directory)
    return found


def _search_path() -> list[Path]:
    return [
        Path(part).expanduser()
        for part in os.environ.get("LINNET_NEST", "").split(os.pathsep)
        if part
    ]


_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Check = Callable[[Any], str | None]
"""Says what a value should have been, or None where it is that."""


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "a string"


def _texts(value: Any) -> str | None:
    whole = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if whole else "a list of strings"


def _count(value: Any) -> str | None:
    return None if type(value) is int and value >= 0 else "a count"


def _url(value: Any) -> str | None:
    right = isinstance(value, str) and value.startswith(("https://", "http://"))
    return None if right else "a URL that starts with https://"


def _matching(pattern: re.Pattern[str], what: str, *, empty: bool = False) -> Check:
    def check(value: Any) -> str | None:
        right = isinstance(value, str) and (pattern.fullmatch(value) or (empty and not value))
        return None if right else what

    return check


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in choices else " or ".join(f'"{choice}"' for choice in choices)

    return check


def _inside(value: Any) -> str | None:
    """A relative path that stays below the folder it starts from."""
    if isinstance(value, str) and value and not Path(value).is_absolute():
        if ".." not in Path(value).parts and "\\" not in value:
            return None
    return "a relative path without `..`"


def _all_inside(value: Any) -> str | None:
    whole = isinstance(value, list) and not any(map(_inside, value))
    return None if whole else "a list of relative paths without `..`"


def _binding(value: Any) -> str | None:
    right = value in DTYPES if isinstance(value, str) else type(value) is int and value >= 0
    return None if right else f"a size or a dtype ({', '.join(DTYPES)})"


def _scalar(value: Any) -> str | None:
    return None if isinstance(value, bool | int | float) else "a number or a boolean"


def _names(value: Any) -> str | None:
    whole = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    return None if whole else "a table from tensor name to tensor name, [weights.copies]"


def _tables(heading: str) -> Check:
    def check(value: Any) -> str | None:
        whole = isinstance(value, list) and all(isinstance(one, dict) for one in value)
        return None if whole else f"a list of tables, [[{heading}]]"

    return check


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _token(value: Any) -> str | None:
    right = bool(value) if isinstance(value, str) else type(value) is int and 0 <= value < 1 << 32
    return None if right else "a token's text or its id"


def _begin(value: Any) -> str | None:
    return None if value is False else _token(value) and "a token's text or its id, or false"


def _tokens(value: Any) -> str | None:
    whole = isinstance(value, list) and not any(map(_token, value))
    return None if whole else "a list of tokens, each its text or its id"


def _digests(value: Any) -> str | None:
    right = isinstance(value, dict) and not any(
        _inside(path) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest)
        for path, digest in cast("dict[str, Any]", value).items()
    )
    return None if right else 'a table of paths and their SHA-256, {"a/tokenizer.json" = "..."}'


_KNOWN: dict[str, dict[str, Check]] = {
    "model": {
        "name": _text,
        "title": _text,
        "summary": _text,
        "license": _text,
        "family": _text,
        "tags": _texts,
        "parameters": _count,
    },
    "links": {"huggingface": _url, "github": _url, "arxiv": _url, "homepage": _url},
    "source": {
        "package": _matching(_PACKAGE, "the name of a folder under zoo/families"),
        "path": _inside,
        "root": _text,
        "entry": _text,
    },
    "weights": {
        "repo": _matching(_REPO, 'a repository "org/name", or ""', empty=True),
        "revision": _matching(_REVISION, "a commit, tag or branch"),
        "files": _all_inside,
        "bindings": _inside,
        "tokenizer": _all_inside,
        "mirrors": _tables("weights.mirrors"),
        "directory": _text,
        "cast_dtype": _flag,
        "copies": _names,
        "unread": _texts,
    },
    "text": {
        "chat": _flag,
        "template": _inside,
        "system": _flag,
        "begin": _begin,
        "end": _tokens,
        "unused": _tokens,
    },
}
_MIRROR: dict[str, Check] = {
    "kind": _one_of("pip"),
    "package": _matching(_PACKAGE, "the name of a registry package"),
    "version": _matching(_VERSION, "an exact version"),
    "file": _inside,
    "sha256": _matching(_DIGEST, "64 lower-case hexadecimal digits"),
    "format": _one_of("gguf", "safetensors"),
    "bindings": _inside,
    "tokenizer": _digests,
    "parts": _tables("weights.mirrors.parts"),
    "terms": _url,
}
_PART: dict[str, Check] = {key: _MIRROR[key] for key in ("package", "file")}
_OPTIONAL = ("bindings", "tokenizer", "parts", "terms")
_FREE: dict[str, Check] = {"generics": _binding, "constants": _scalar, "check": _binding}


def _read(directory: Path) -> Card:
    path = directory / MANIFEST
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NestError(f"{directory}: a directory without a card: it has no {MANIFEST}") from None
    except OSError as error:
        raise NestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, ...
        raise NestError(f"{path}: is not valid TOML: {error}") from error
    problems: list[str] = []
    tables: dict[str, dict[str, Any]] = {}
    for name in (*_KNOWN, *_FREE):
        table: Any = document.pop(name, {})
        if not isinstance(table, dict):
            problems.append(f"`{name}` is {table!r}, not a table [{name}]")
            table = {}
        tables[name] = cast("dict[str, Any]", table)
    for name, keys in _KNOWN.items():
        _check_table(f"[{name}]", tables[name], keys, problems)
    for name, rule in _FREE.items():
        for key, value in tables[name].items():
            _check_value(f"[{name}]", key, value, rule, problems)
    for mirror in _check_tables("weights.mirrors", tables["weights"], _MIRROR, problems):
        _check_tables("weights.mirrors.parts", mirror, _PART, problems)
    if problems:
        raise NestError("\n".join(f"{path}: {problem}" for problem in problems))
    return _card(directory, tables, document)


def _check_table(
    where: str, table: Mapping[str, Any], keys: Mapping[str, Check], problems: list[str]
) -> None:
    for key, value in table.items():
        if key in keys:
            _check_value(where, key, value, keys[key], problems)
            continue
        near = difflib.get_close_matches(key, keys, n=1)
        meant = f"; did you mean `{near[0]}`?" if near else f"; it may hold {', '.join(keys)}"
        problems.append(f"{where}: unknown key `{key}`{meant}")


def _check_tables(
    heading: str, table: Mapping[str, Any], keys: Mapping[str, Check], problems: list[str]
) -> list[dict[str, Any]]:
    """The tables under a heading; what they lack, and what they must not hold, is a problem."""
    rows: Any = table.get(heading.rpartition(".")[2], [])
    if _tables(heading)(rows) is not None:
        return []
    for k, row in enumerate(rows):
        where = f"[[{heading}]] number {k + 1}"
        _check_table(where, row, keys, problems)
        lacking = [key for key in keys if key not in _OPTIONAL and key not in row]
        if lacking:
            problems.append(f"{where}: lacks {', '.join(f'`{key}`' for key in lacking)}")
    return cast("list[dict[str, Any]]", rows)


def _check_value(where: str, key: str, value: Any, rule: Check, problems: list[str]) -> None:
    expected = rule(value)
    if expected is not None:
        problems.append(f"{where}: `{key}` is {value!r}, not {expected}")


def _card(directory: Path, tables: dict[str, dict[str, Any]], extra: dict[str, Any]) -> Card:
    """The card of tables that have been checked."""
    model, source, weights = tables["model"], tables["source"], tables["weights"]
    tokenizer: list[str] | None = weights.get("tokenizer")
    text = tables["text"]
    return Card(
        directory=directory,
        name=model.get("name", directory.resolve().name),
        title=model.get("title"),
        summary=model.get("summary"),
        license=model.get("license"),
        family=model.get("family"),
        tags=tuple(model.get("tags", ())),
        parameters=model.get("parameters"),
        links=Links(**tables["links"]),
        package=source.get("package"),
        path=source.get("path", "src/lib.linnet"),
        root=source.get("root"),
        entry=source.get("entry"),
        generics=tables["generics"],
        constants=tables["constants"],
        check=tables["check"],
        weights=Weights(
            repo=weights.get("repo", ""),
            revision=weights.get("revision"),
            files=tuple(weights.get("files", ())),
            bindings=weights.get("bindings"),
            tokenizer=None if tokenizer is None else tuple(tokenizer),
            mirrors=tuple(_mirror(mirror) for mirror in weights.get("mirrors", ())),
            directory=weights.get("directory"),
            cast_dtype=weights.get("cast_dtype", False),
            copies=weights.get("copies", {}),
            unread=tuple(weights.get("unread", ())),
        ),
        text=TextContract(
            chat=text.get("chat"),
            template=text.get("template"),
            system=text.get("system", True),
            begin=text.get("begin"),
            end=tuple(text.get("end", ())),
            unused=tuple(text.get("unused", ())),
        ),
        extra=extra,
    )


def _mirror(table: dict[str, Any]) -> Mirror:
    parts = tuple(Part(**part) for part in table.get("parts", ()))
    return Mirror(**{**table, "parts": parts})
