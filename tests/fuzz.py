"""Fuzzing of the lexer, the parser, the checker and the formatter: no exception, bounded time.

    .venv/bin/python tests/fuzz.py --minutes 10 [--seed N] [--save DIR]

Every text is drawn from real ones (std, the zoo, the specs, and the seed where it is) by changes
to bytes, tokens and lines, by growing a piece of it to as much as 64 KB, and by hypothesis from
the grammar's words. `probe` says what must hold for each. A text that breaks it is made small and
written to DIR; the exit status is 1. A slow test runs 30 seconds of this.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import linnet
from format.programs import program
from linnet.check import check
from linnet.diagnostics import Diagnostic
from linnet.render import render_json, render_text
from linnet.syntax import parse_text
from linnet.syntax.format import format_text
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS, SIGNS
from linnet.workspace import Workspace
from linnet_md import programs
from syntax.dump import check_tree

HERE = Path(__file__).resolve().parent
KILOBYTE = 1024
LARGEST = 64 * KILOBYTE
# A text of LARGEST gets ten seconds of processor time, and a small one two.
SECONDS, SECONDS_PER_BYTE = 2.0, 10.0 / LARGEST

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.DOTALL)
WORDS = [
    *sorted(KEYWORDS | RESERVED_WORDS | SIGNS),
    "Tensor",
    "Dim",
    "Shape",
    "Float",
    "f32",
    "i64",
]
WORDS += ["sum", "max", "min", "reshape", "permute", "concat", "cast", "fill", "iota", "some(x)"]
WORDS += [
    "0",
    "1",
    "2",
    "-1",
    "9223372036854775807",
    "1e-5",
    "1e999",
    '"s"',
    "0xff",
    "x",
    "*S",
    "_",
]
BYTES = [b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\r", b"\xef\xbb\xbf"]
BYTES += [b"\xe2\x80\xae", b"\x0c", b'"', b"/*", b"*/", b"//", b"'", b"`", b"\\u{110000}"]
OPENERS = [
    "(",
    "[",
    "{ ",
    "f(",
    "f<",
    "-",
    "!",
    "if x { ",
    "some(",
    "sum[i] ",
    "x[",
    "match x { _ => ",
]
OPENERS += [
    "match x { _ => ",
    "while x { ",
    "x + ",
    "x / ",
    "x.y",
    "static for i in 0..2 { ",
    "min(",
    "(x, ",
]


def corpus(seed: Path | None) -> list[str]:
    """Texts to change: std, the zoo, the specs' programs and, where it is, the seed's package."""
    home = Path(linnet.__file__).parent
    files = [*sorted(home.rglob("*.linnet")), HERE / "syntax/whole.linnet"]
    files += sorted(seed.rglob("*.linnet")) if seed is not None else []
    specs = [p for f in sorted((HERE / "spec").glob("*.md")) for p in programs(f)]
    return [
        *(file.read_text(encoding="utf-8") for file in files),
        *(text for p in specs for name, text in p.files.items() if not name.endswith("toml")),
    ]


# ---------------------------------------------------------------- what must hold


class Broken(Exception):
    """Something that must hold for every text does not."""


def probe(data: bytes) -> int:
    """Check and format the bytes as a file is; how many findings there are."""
    start = time.process_time()
    findings = _findings(data)
    for d in findings:
        _sound(d)
    json.dumps(render_json(findings))
    for d in findings[:5]:
        render_text(d, color=False)
    _parsed_and_formatted(data.decode("utf-8", errors="replace"))
    spent = time.process_time() - start
    if spent > SECONDS + SECONDS_PER_BYTE * len(data):
        raise Broken(f"{spent:.1f} s for {len(data)} bytes")
    return len(findings)


def _findings(data: bytes) -> tuple[Diagnostic, ...]:
    """Those of a file of these bytes, which need not be UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.linnet")
        path.write_bytes(data)
        workspace = Workspace()
        analysis = check(workspace, path)
    return analysis.findings.sorted()


def _sound(d: Diagnostic) -> None:
    text = d.primary.span.source.text
    spans = [d.primary.span, *(r.span for r in d.related)]
    for span in spans:
        if not 0 <= span.start <= span.end <= len(span.source.text):
            raise Broken(f"{d.code}: a span outside its text")
    for edit in d.help.edits if d.help is not None else ():
        if edit.span.source is d.primary.span.source and edit.span.end > len(text):
            raise Broken(f"{d.code}: an edit outside its text")
    if not d.message.strip():
        raise Broken(f"{d.code}: no message")


def _parsed_and_formatted(text: str) -> None:
    file, findings = parse_text(text)
    check_tree(file)
    after, problems = format_text(text)
    if (after is None) != bool(problems.items) or bool(problems.items) != bool(findings.items):
        raise Broken("the formatter and the parser disagree about what a syntax error is")
    if after is not None and format_text(after)[0] != after:
        raise Broken("formatted text is not stable")


# ---------------------------------------------------------------- changes

Change = Callable[[Random, bytes, Sequence[bytes]], bytes]


def _bytes(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A few bytes replaced, left out, put in or turned by one bit."""
    out = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(out) + 1)
        match random.randrange(4):
            case 0:
                out[at:at] = random.choice(BYTES)
            case 1:
                del out[at : at + random.randint(1, 9)]
            case 2 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case _:
                out[at : at + 1] = bytes([random.randrange(256)])
    return bytes(out)


def _tokens(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A few tokens replaced, left out, doubled, exchanged or put in."""
    tokens = TOKEN.findall(data.decode("utf-8", errors="replace"))
    for _ in range(random.randint(1, 8)):
        at, other = random.randrange(len(tokens) + 1), random.randrange(len(tokens) + 1)
        match random.randrange(5):
            case 0:
                tokens[at : at + 1] = [random.choice(tokens) if tokens else "x"]
            case 1:
                del tokens[at : at + random.randint(1, 4)]
            case 2:
                tokens[at:at] = tokens[at : at + random.randint(1, 12)]
            case 3 if max(at, other) < len(tokens):
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case _:
                tokens[at:at] = [" ", random.choice(WORDS), " "]
    return "".join(tokens).encode()


def _lines(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Lines left out, exchanged, or taken from another text."""
    lines = data.splitlines(keepends=True) or [b""]
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(lines) + 1)
        match random.randrange(3):
            case 0:
                del lines[at : at + random.randint(1, 3)]
            case 1:
                lines[at:at] = [random.choice(lines)] if lines else []
            case _:
                foreign = random.choice(others).splitlines(keepends=True) or [b""]
                start = random.randrange(len(foreign))
                lines[at:at] = foreign[start : start + random.randint(1, 12)]
    return b"".join(lines)


def _joined(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The start of one text and the end of another."""
    other = random.choice(others)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _grown(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A piece of the text, or an opener, over and over."""
    size = random.choice([4, 16, 64]) * KILOBYTE
    at = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        piece = data[at : at + random.choice([1, 3, 10, 40, 200])] or b"("
    else:
        piece = "".join(random.choices(OPENERS, k=random.randint(1, 2))).encode()
    room = max(size - len(data), 1)
    return data[:at] + piece * (room // len(piece)) + data[at:]


def _sized(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Other numbers and other letters for sizes: programs that parse, with other proofs."""

    def other(found: re.Match[bytes]) -> bytes:
        if random.random() > 0.15:
            return found[0]
        if found[0][:1].isdigit():
            return str(random.choice([0, 1, 2, 3, 7, 64, 2**31, 2**63 - 1])).encode()
        return random.choice([b"B", b"H", b"S", b"N", b"T", b"Heads", b"K", b"D"])

    return re.sub(rb"\b(?:[A-Z][A-Za-z]{0,6}|\d+)\b", other, data)


def _drawn(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A program of random expressions in every kind of place; it parses."""
    return program(random).encode()


CHANGES: tuple[tuple[Change, float], ...] = (
    (_bytes, 3.0),
    (_tokens, 5.0),
    (_lines, 2.0),
    (_joined, 1.0),
    (_grown, 0.3),
    (_sized, 4.0),
    (_drawn, 1.0),
)


# ---------------------------------------------------------------- a campaign


@dataclass
class Result:
    texts: int = 0
    size: int = 0
    findings: int = 0
    slowest: tuple[float, int] = (0.0, 0)  # seconds of processor time, bytes
    changes: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[bytes, str]] = field(default_factory=list)


def campaign(seconds: float, seed: int, texts: Sequence[str], stop_at: int = 5) -> Result:
    """Draw and probe texts for so long; whatever broke is made small."""
    random = Random(seed)
    sources = [text.encode() for text in texts]
    names, weights = zip(*CHANGES)
    result, end = Result(), time.monotonic() + seconds
    while time.monotonic() < end and len(result.broken) < stop_at:
        data = random.choice(sources)
        for change in random.choices(names, weights, k=random.choice([1, 1, 1, 2])):
            data = change(random, data, sources)[:LARGEST]
            result.changes[change.__name__.strip("_")] += 1
        start = time.process_time()
        problem, found = _problem(data)
        spent = time.process_time() - start
        result.texts, result.size = result.texts + 1, result.size + len(data)
        result.findings += found
        result.slowest = max(result.slowest, (spent, len(data)))
        if problem is not None:
            result.broken.append((smaller(data, problem), problem))
    return result


def _problem(data: bytes) -> tuple[str | None, int]:
    try:
        return None, probe(data)
    except Broken as error:
        return str(error), 0
    except Exception as error:  # any other is what this is looking for
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}", 0


def smaller(data: bytes, problem: str, seconds: float = 20.0) -> bytes:
    """A part of the text with the same problem: pieces are left out as long as it stays."""
    end, kind = time.monotonic() + seconds, problem.split(" ")[0]
    piece = len(data) // 2
    while piece and time.monotonic() < end:
        for at in range(0, len(data), piece):
            less = data[:at] + data[at + piece :]
            again, _ = _problem(less)
            if again is not None and (again == problem or again.split(" ")[0] == kind):
                data = less
                break
            if time.monotonic() > end:
                break
        else:
            piece //= 2
    return data


# ---------------------------------------------------------------- the command


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--save", type=Path, default=Path("fuzz-found"), metavar="DIR")
    parser.add_argument("--seed-dir", type=Path, default=HERE.parent.parent / "shared/seed")
    args = parser.parse_args(words)
    print(f"seed {args.seed}, {args.minutes:g} minutes", flush=True)
    place = args.seed_dir if args.seed_dir.is_dir() else None
    result = campaign(args.minutes * 60, args.seed, corpus(place))
    print("\n".join(report(result)))
    for number, (data, problem) in enumerate(result.broken):
        args.save.mkdir(parents=True, exist_ok=True)
        file = args.save / f"{args.seed}-{number}.linnet"
        file.write_bytes(data)
        print(f"BROKEN {problem}: {file}")
    return 1 if result.broken else 0


def report(result: Result) -> Iterator[str]:
    spent, size = result.slowest
    yield f"{result.texts} texts, {result.size / KILOBYTE:.0f} KB, {result.findings} findings"
    yield f"slowest: {spent:.2f} s of processor time for {size / KILOBYTE:.1f} KB"
    yield "changes: " + ", ".join(f"{name} {n}" for name, n in sorted(result.changes.items()))


if __name__ == "__main__":
    sys.exit(main())
