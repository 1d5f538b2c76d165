"""What can be written at a place, in a text that need not be finished.

A name is put where the cursor is, so that there is something to parse and to check; what is
around it says what may stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Literal

from linnet.check.analysis import (
    GenericName,
    IndexVar,
    ItemName,
    Local,
    MemberName,
    MethodName,
    Module,
    ModuleName,
    PreludeName,
    Variant,
)
from linnet.check.prelude import KINDS, PRELUDE
from linnet.diagnostics import Findings
from linnet.lsp.features import type_text
from linnet.lsp.hover import Signature, docs_of, heading, prelude_signature, signature
from linnet.lsp.names import Meaning, callee, enclosing
from linnet.lsp.project import Project, State, Unit
from linnet.source import Source
from linnet.syntax import lex, tree
from linnet.syntax.tokens import FUNCTION_WORDS, MEMBER_WORDS, NAME, STRING, TOP_WORDS, Token
from linnet.syntax.tree import walk
from linnet.types import DTYPES, BlockType, EnumType, StructType
from linnet.workspace import Workspace

HOLE = "linnet_hole_"
# What must follow the name for the text to be read: nothing, or the rest of what is begun.
ENDINGS = ("", " = 0", ")", "]", ")]", "])", "))", "] = 0", " }", ") }")

Kind = Literal[
    "keyword",
    "variable",
    "parameter",
    "index",
    "generic",
    "member",
    "method",
    "function",
    "block",
    "trait",
    "struct",
    "enum",
    "variant",
    "const",
    "alias",
    "module",
    "field",
    "argument",
    "type",
    "prelude",
]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something that may stand at the place; those of lower `rank` come first."""

    label: str
    kind: Kind
    detail: str = ""
    docs: str = ""
    insert: str = ""  # the label, if empty
    rank: int = 5


def word_at(text: str, offset: int) -> tuple[int, int]:
    """The part of a name around a place."""
    start = end = offset
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return start, end


def with_hole(text: str, offset: int) -> Iterator[tuple[str, int]]:
    """The text with a name at the place, ended in one way after another; where the name is."""
    start, end = word_at(text, offset)
    for ending in ENDINGS:
        yield text[:start] + HOLE + ending + text[end:], start


def with_argument(text: str, offset: int) -> Iterator[tuple[str, int]]:
    """The text as it is, and with an argument and an end for the call at the place."""
    begun = text[:offset].rstrip()[-1:] not in ("(", ",", "=", "+", "-", "*", "/")
    if begun:
        yield text, offset
    for ending in ("", ")", "))", ")))", ")]", ") }"):
        yield text[:offset] + " " + HOLE + ending + text[offset:], offset + 1
    if not begun:
        yield text, offset


def hole(file: tree.File) -> tree.Syntax | None:
    """The node that is the name at the place."""
    return next(
        (n for n in walk(file) if isinstance(n, (tree.Name, tree.Ident)) and n.text == HOLE), None
    )


@dataclass(frozen=True, slots=True)
class Before:
    """The tokens before a place, and whether the place is inside a comment or a string."""

    tokens: tuple[Token, ...]
    silent: bool

    @staticmethod
    def of(text: str, offset: int) -> Before:
        start, _ = word_at(text, offset)
        tokens, comments = lex(Source("", text), Findings())
        inside = any(
            c.span.start < offset < c.span.end or (offset == c.span.end and c.text.startswith("//"))
            for c in comments
        ) or any(t.kind == STRING and t.start < offset < t.end for t in tokens)
        line = text[text.rfind("\n", 0, offset) + 1 : offset]
        before = tuple(takewhile(lambda t: t.end <= start and t.kind != "end", tokens))
        number = re.search(r"(?:^|[^\w])[0-9][\w.]*$", line) is not None
        return Before(before, inside or number)

    @property
    def last(self) -> str:
        return self.tokens[-1].kind if self.tokens else ""

    def use_line(self) -> tuple[str, ...] | None:
        """The tokens of the `use` line that the place is on."""
        for i in range(len(self.tokens) - 1, -1, -1):
            kind = self.tokens[i].kind
            if kind == "use":
                return tuple(t.text for t in self.tokens[i + 1 :])
            if kind not in (NAME, ".", "::", "{", ",", "as", "crate", "}") or kind == "}":
                return None
        return None

    def names_something_new(self) -> bool:
        """Whether a name is being declared here, which nobody can guess."""
        words = {"let", "var", "const", "module", "as"}
        return self.last in words | TOP_WORDS | FUNCTION_WORDS | (MEMBER_WORDS - {"impl"})

    def in_generics(self) -> bool:
        """Whether the kind of a generic is asked for, as after `fn f<T:`."""
        if self.last != ":":
            return False
        kinds = [t.kind for t in self.tokens]
        opening = max((i for i, kind in enumerate(kinds) if kind == "<"), default=-1)
        closing = max((i for i, k in enumerate(kinds) if k in (">", "(", "{")), default=-1)
        words = {"block", "trait", "struct", "type"} | FUNCTION_WORDS
        return opening > closing and opening > 1 and kinds[opening - 2] in words

    def opened(self) -> list[str]:
        """What opens each brace around the place: `block`, `trait`, `fn` or another word."""
        out: list[str] = []
        word = ""
        for token in self.tokens:
            if token.kind in (
                "block",
                "trait",
                "fn",
                "op",
                "entry",
                "struct",
                "enum",
                "match",
                "while",
                "for",
                "if",
                "else",
            ):
                word = token.kind
            elif token.kind == "{":
                out.append(word)
            elif token.kind == "}" and out:
                out.pop()
        return out


# ---------------------------------------------------------------- the two questions


def complete(project: Project, state: State, path: Path, offset: int) -> list[Proposal]:
    """What may be written at a place in an open file."""
    home = state.place(path)
    if home is None:
        return []
    unit, module = home
    text = module.file.source.text
    before = Before.of(text, offset)
    if before.silent or before.names_something_new():
        return []
    words = before.use_line()
    if words is not None:
        return in_use_line(words, unit, module, state.workspace)
    if before.in_generics():
        return [Proposal(kind, "type", docs=docs_of(PreludeName(kind))) for kind in KINDS]
    if not before.opened() and before.last in ("", "}"):
        return keywords(before)
    for filled, at in with_hole(text, offset):
        found = project.look(state, path, filled, at)
        if found is not None and hole(found[1].tree) is not None:
            return proposals(*found, at, before)
    return keywords(before)


def signature_at(project: Project, state: State, path: Path, offset: int) -> Signature | None:
    """The signature of the call that is being written at a place in an open file."""
    home = state.place(path)
    if home is None:
        return None
    for filled, at in with_argument(home[1].file.source.text, offset):
        found = project.look(state, path, filled, at)
        shown = signature(*found, at) if found is not None else None
        if shown is not None:
            return shown
    return None


# ---------------------------------------------------------------- by tokens alone


def in_use_line(
    words: tuple[str, ...], unit: Unit, module: Module, workspace: Workspace
) -> list[Proposal]:
    """Modules after a path, names after `::`."""
    if "::" in words:
        at = words.index("::")
        target = _target(unit, module, tuple(w for w in words[:at] if w != "."), workspace)
        taken = set(words[at + 1 :])
        if target is None:
            return []
        return [p for p in _items(target, public=True) if p.label not in taken]
    path = tuple(w for w in words if w != ".")
    package = module.file.package
    if words and words[-1] != ".":
        return []
    if not path:
        heads = ["std", *(["crate"] if package.root is not None else []), *package.dependencies]
        return [Proposal(head, "module") for head in heads]
    files = workspace.files_of(
        workspace.std if path[0] == "std" else package.dependencies.get(path[0], package)
    )
    if path[0] not in ("std", "crate", *package.dependencies):
        return []
    own = ("std",) if path[0] == "std" else ("crate",)
    inside = (*own, *path[1:])
    found: dict[str, Proposal] = {}
    for file in files:
        if file.name[: len(inside)] == inside and len(file.name) > len(inside):
            label = file.name[len(inside)]
            found[label] = Proposal(label, "module", ".".join((*path, label)))
    return list(found.values())


def _target(
    unit: Unit, module: Module, parts: tuple[str, ...], workspace: Workspace
) -> tree.File | None:
    known = unit.imported(module, parts)
    if known is not None:
        return known.tree
    file = workspace.resolve(module.file.package, parts)
    if file is None:
        return None
    from linnet.syntax.parser import parse

    return parse(file.source, Findings())


def _items(file: tree.File, *, public: bool) -> Iterator[Proposal]:
    for item in file.items:
        if item.name.text and (item.public or not public):
            yield _item(item)


def _item(item: tree.Item, label: str = "", rank: int = 5) -> Proposal:
    label = label or item.name.text
    match item:
        case tree.Fn():
            return Proposal(label, "function", _line(heading(item)), item.docs, rank=rank)
        case tree.Trait():
            return Proposal(label, "trait", _line(heading(item)), item.docs, rank=rank)
        case tree.Block():
            return Proposal(label, "block", _line(heading(item)), item.docs, rank=rank)
        case tree.Const():
            detail = f"const {item.name.text} = {_line(item.value.span.text)}"
            return Proposal(label, "const", detail, item.docs, rank=rank)
        case tree.Alias():
            return Proposal(label, "alias", _line(item.span.text), item.docs, rank=rank)
        case tree.Struct():
            return Proposal(label, "struct", f"struct {item.name.text}", item.docs, rank=rank)
        case tree.Enum():
            return Proposal(label, "enum", f"enum {item.name.text}", item.docs, rank=rank)


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def keywords(before: Before) -> list[Proposal]:
    """The words that may begin something here."""
    opened = before.opened()
    if not opened:
        words = "use pub const type struct enum fn op entry block trait module"
    elif opened[-1] == "block":
        words = "param buffer state sub impl pub fn entry where"
    elif opened[-1] == "trait":
        words = "pub fn entry where"
    elif opened[-1] in ("struct", "enum"):
        return []
    else:
        words = "let var return yield static for while if else match true false none some in"
    return [Proposal(word, "keyword", rank=8) for word in words.split()]


# ---------------------------------------------------------------- by what is around


def proposals(unit: Unit, module: Module, at: int, before: Before) -> list[Proposal]:
    """What may stand at the hole of a text that was checked."""
    analysis = unit.analysis
    path = enclosing(module.tree, at + 1)
    node = path[-1] if path else None
    holder = path[-2] if len(path) > 1 else None
    match holder:
        case tree.Field(base=base, name=name) if name is node:
            return list(_after_dot(unit, module, base))
        case tree.Arg(name=name) if name is node:
            return list(_arguments(unit, path))
        case tree.Path(parts=parts) if parts and parts[0] is not node:
            symbol = analysis.symbols.get(parts[0])
            return list(_of_module(symbol.module)) if isinstance(symbol, ModuleName) else []
        case tree.Path() if not any(isinstance(n, (tree.Use, tree.VariantPattern)) for n in path):
            return list(_types(path, module, unit))
        case tree.NamePattern() | tree.VariantPattern():
            return list(_patterns(unit, path))
        case _:
            pass
    found = [*_arguments(unit, path), *_in_scope(unit, module, path, at)]
    if isinstance(holder, tree.Assign):
        found = [p for p in found if p.kind in ("variable", "member")]
    expected = _expected_enum(unit, path)
    if expected is not None:
        found += [
            Proposal(f"{expected.name.text}.{v.text}", "variant", rank=1) for v in expected.variants
        ]
    return [*found, *keywords(before)]


def _after_dot(unit: Unit, module: Module, base: tree.Expr) -> Iterator[Proposal]:
    analysis = unit.analysis
    while isinstance(base, tree.Paren):
        base = base.value
    match analysis.symbols.get(base):
        case ModuleName(target):
            yield from _of_module(target)
            return
        case ItemName(tree.Enum() as enum, _):
            yield from _variants(enum)
            return
        case _:
            pass
    match analysis.types.get(base):
        case BlockType(decl=tree.Block() as block):
            info = analysis.blocks.get(block)
            for member in block.members:
                detail = f"{member.kind} {member.name.text}: {_line(member.type.span.text)}"
                yield Proposal(member.name.text, "member", detail, member.docs, rank=2)
            for fn in _methods(unit, block):
                if fn.public or (info is not None and info.module is module):
                    yield Proposal(fn.name.text, "method", _line(heading(fn)), fn.docs, rank=1)
        case StructType(decl=tree.Struct() as struct):
            for field in struct.fields:
                yield Proposal(field.name.text, "field", _line(field.span.text), rank=1)
        case _:
            pass


def _methods(unit: Unit, block: tree.Block) -> Iterable[tree.Fn]:
    """A block's own methods, and those that its traits provide."""
    info = unit.analysis.blocks.get(block)
    return block.methods if info is None else info.methods.values()


def _of_module(module: Module) -> Iterator[Proposal]:
    yield from _items(module.tree, public=True)


def _variants(enum: tree.Enum) -> Iterator[Proposal]:
    for variant in enum.variants:
        yield Proposal(variant.text, "variant", enum.name.text, rank=1)


def _arguments(unit: Unit, path: list[tree.Syntax]) -> Iterator[Proposal]:
    """The parameters that the call around the place has not been given."""
    for i in range(len(path) - 1, -1, -1):
        node = path[i]
        if isinstance(node, tree.Arg) and i > 0 and isinstance(path[i - 1], tree.Call):
            inner = path[i + 1 : i + 2]
            if len(path) - 1 > i + 1 or not inner:
                return  # within a larger expression
            call = path[i - 1]
            assert isinstance(call, tree.Call)
            given = {a.name.text for a in call.args if a.name is not None}
            position = sum(a.name is None for a in call.args if a.span.end < node.span.start)
            match callee(unit.analysis, call):
                case tree.Fn(params=params):
                    names = [(p.name.text, p.span.text) for p in params]
                case tree.Struct(fields=own):
                    names = [(f.name.text, f.span.text) for f in own]
                case "concat":
                    names = [("", "")] * position + [("axis", "axis = k")]
                case str(name) if name in PRELUDE:
                    names = [(p, p) for p in PRELUDE[name].params]
                case _:
                    return
            for name, text in names[position:]:
                if name not in given:
                    yield Proposal(f"{name} = ", "argument", _line(text), rank=0)
            return


def _expected_enum(unit: Unit, path: list[tree.Syntax]) -> tree.Enum | None:
    """The enum that the argument at the place should be of."""
    for i in range(len(path) - 1, 0, -1):
        node, holder = path[i], path[i - 1]
        if isinstance(node, tree.Arg) and isinstance(holder, tree.Call):
            target = callee(unit.analysis, holder)
            if not isinstance(target, tree.Fn) or target not in unit.analysis.signatures:
                return None
            params = unit.analysis.signatures[target].params
            at = next((k for k, a in enumerate(holder.args) if a is node), 0)
            if node.name is not None:
                at = next(
                    (k for k, (n, _) in enumerate(params) if n == node.name.text), len(params)
                )
            type = params[at][1] if at < len(params) else None
            found = isinstance(type, EnumType) and isinstance(type.decl, tree.Enum)
            return type.decl if found else None  # type: ignore[union-attr,return-value]
    return None


def _patterns(unit: Unit, path: list[tree.Syntax]) -> Iterator[Proposal]:
    """The variants of the enum that a `match` takes apart, or `some` and `none`."""
    for node in reversed(path):
        if isinstance(node, tree.Match):
            subject = unit.analysis.types.get(node.subject)
            if isinstance(subject, EnumType) and isinstance(subject.decl, tree.Enum):
                yield from _variants(subject.decl)
            else:
                yield Proposal("some", "keyword")
                yield Proposal("none", "keyword")
            return


def _types(path: list[tree.Syntax], module: Module, unit: Unit) -> Iterator[Proposal]:
    if any(isinstance(n, tree.Impl) and n.trait is t for n, t in pairwise(path)):
        yield from _traits(module)
        return
    dtype_only = any(
        isinstance(n, tree.TensorTypeExpr) and isinstance(p, tree.Path) for n, p in pairwise(path)
    )
    for name in DTYPES:
        yield Proposal(name, "type", rank=3)
    for generic in _generics(path):
        is_dtype = generic.kind.text not in ("Dim", "Shape")
        if is_dtype:
            yield Proposal(generic.name.text, "generic", generic.span.text, rank=1)
    if not dtype_only:
        yield Proposal("Tensor", "type", insert="Tensor", rank=2)
    for name, symbol in _module_names(module):
        match symbol:
            case ItemName(tree.Fn() | tree.Const() | tree.Trait(), _):
                pass
            case ItemName(item, _):
                if not dtype_only or isinstance(item, tree.Alias):
                    yield _item(item, name, 4)
            case ModuleName():
                yield Proposal(name, "module", rank=6)


def _traits(module: Module) -> Iterator[Proposal]:
    for name, symbol in _module_names(module):
        match symbol:
            case ItemName(tree.Trait() as trait, _):
                yield _item(trait, name, 1)
            case ModuleName():
                yield Proposal(name, "module", rank=6)
            case _:
                pass


def _module_names(module: Module) -> Iterator[tuple[str, ItemName | ModuleName]]:
    for name, item in module.items.items():
        yield name, ItemName(item, module)
    for name, symbol in module.imports.items():
        if isinstance(symbol, (ItemName, ModuleName)):
            yield name, symbol


def _generics(path: Iterable[tree.Syntax]) -> Iterator[tree.GenericParam]:
    for node in path:
        if isinstance(node, (tree.Fn, tree.Block, tree.Alias, tree.Struct)):
            yield from node.generics


def _in_scope(unit: Unit, module: Module, path: list[tree.Syntax], at: int) -> Iterator[Proposal]:
    """Names that mean something in an expression here; an inner one hides an outer one."""
    seen: set[str] = {HOLE}
    for proposal in _all_in_scope(unit, module, path, at):
        if proposal.label and proposal.label not in seen:
            seen.add(proposal.label)
            yield proposal


def _all_in_scope(
    unit: Unit, module: Module, path: list[tree.Syntax], at: int
) -> Iterator[Proposal]:
    for node in reversed(path):
        for name in _declared_in(node, at):
            yield from _local(unit, name)
    for generic in reversed(list(_generics(path))):
        yield Proposal(generic.name.text, "generic", generic.span.text, rank=3)
    for node in path:
        if isinstance(node, tree.Block):
            for member in node.members:
                yield _of_symbol(MemberName(member), member.name.text, 2)
            for fn in _methods(unit, node):
                yield _of_symbol(MethodName(fn), fn.name.text, 2)
    for known, symbol in _module_names(module):
        yield _of_symbol(symbol, known, 4)
    if any(isinstance(n, (tree.Fn, tree.Const)) for n in path):
        for function in PRELUDE:
            yield _of_symbol(PreludeName(function), function, 6)
    for dtype in DTYPES:
        yield Proposal(dtype, "type", rank=7)


def _declared_in(node: tree.Syntax, at: int) -> Iterator[tree.Ident]:
    """The names that a node declares for what stands at a place inside it, the last first."""
    match node:
        case tree.Fn(params=params, body=body):
            yield from _before(body, at)
            yield from (p.name for p in params)
        case tree.Arm(pattern=pattern):
            yield from _bound_by(pattern)
        case tree.IndexLet(outputs=indices) | tree.Reduction(indices=indices):
            for index in indices:
                yield index.name if isinstance(index, tree.PackRef) else index
        case tree.For(name=name, body=inner):
            yield from _before(inner, at)
            yield name
        case tree.While(body=inner):
            yield from _before(inner, at)
        case _:
            pass


def _before(body: tuple[tree.Stmt, ...], at: int) -> Iterator[tree.Ident]:
    for s in reversed(body):
        if s.span.end < at:
            match s:
                case tree.Let(pattern=pattern):
                    yield from _bound_by(pattern)
                case tree.IndexLet(name=name) | tree.Var(name=name):
                    yield name
                case _:
                    pass


def _bound_by(pattern: tree.Pattern) -> Iterator[tree.Ident]:
    for part in walk(pattern):
        if isinstance(part, tree.NamePattern):
            yield part.name


def _local(unit: Unit, name: tree.Ident) -> Iterator[Proposal]:
    symbol = unit.analysis.symbols.get(name)
    if symbol is None or isinstance(symbol, (Local, IndexVar)):
        yield _of_symbol(symbol, name.text, 1)


def _of_symbol(symbol: Meaning | None, label: str, rank: int) -> Proposal:
    match symbol:
        case Local(type=type, kind=kind):
            what: Kind = "parameter" if kind == "param" else "variable"
            return Proposal(label, what, type_text(type), rank=rank)
        case IndexVar():
            return Proposal(label, "index", "index", rank=rank)
        case MemberName(member):
            detail = f"{member.kind} {label}: {_line(member.type.span.text)}"
            return Proposal(label, "member", detail, member.docs, rank=rank)
        case MethodName(fn):
            return Proposal(label, "method", _line(heading(fn)), fn.docs, rank=rank)
        case ItemName(item, _):
            return _item(item, label, rank)
        case ModuleName(module):
            return Proposal(label, "module", module.name, rank=rank)
        case PreludeName(name):
            detail = prelude_signature(name)
            return Proposal(label, "prelude", detail, docs_of(symbol), rank=rank)
        case GenericName() | Variant():
            return Proposal(label, "generic", rank=rank)
        case _:
            return Proposal(label, "variable", rank=rank)
