"""What can be asked about a place in a file: each a function from a unit and a place to records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
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
from linnet.diagnostics import Diagnostic, Edit, Findings
from linnet.lsp.names import FieldName, Key, Occurrence, at, declared, occurrences
from linnet.lsp.positions import Lines
from linnet.lsp.project import State, Unit
from linnet.source import Source, Span
from linnet.syntax import lex, tree
from linnet.syntax.format import format_text
from linnet.syntax.tokens import FLOAT, INT, KEYWORDS, RESERVED, STRING
from linnet.syntax.tree import children, walk
from linnet.types import BlockArray, BlockType, UnknownType

# ---------------------------------------------------------------- where a name stands


def definition(unit: Unit, module: Module, offset: int) -> Span | None:
    """Where the name at a place is declared."""
    found = at(unit, module, offset)
    return declared(found.meaning) if found is not None else None


def references(state: State, key: Key) -> Iterator[Occurrence]:
    """Every place of a name, in all that is open and all that it imports."""
    seen: set[tuple[str, int]] = set()
    keys = _one_name(state, key)
    for unit in state.units:
        for module in unit.analysis.modules.values():
            for occurrence in occurrences(unit, module):
                place = occurrence.span.source.name, occurrence.span.start
                if occurrence.key in keys and place not in seen:
                    seen.add(place)
                    yield occurrence


def _one_name(state: State, key: Key) -> set[Key]:
    """The declarations that have one name: a method that a trait requires, the blocks' methods of
    that name, and the parameters of these."""
    pairs: set[tuple[Key, Key]] = set()
    for unit in state.units:
        for info in unit.analysis.blocks.values():
            for each in info.impls:
                assert isinstance(each.trait.decl, tree.Trait)
                for required in each.trait.decl.methods:
                    own = info.methods.get(required.name.text)
                    if own is not None and own is not required:
                        params = zip(required.params, own.params)
                        pairs.add((_key(required.name), _key(own.name)))
                        pairs |= {(_key(a.name), _key(b.name)) for a, b in params}
    found: set[Key] = set()
    more = {key}
    while more:
        found |= more
        more = {b for a, b in pairs if a in found} | {a for a, b in pairs if b in found}
        more -= found
    return found


def _key(name: tree.Ident) -> Key:
    return name.span.source.name, name.span.start


def highlights(unit: Unit, module: Module, offset: int) -> list[tuple[Span, bool]]:
    """The places in one file that mean the same, and whether each is written to."""
    found = at(unit, module, offset)
    if found is None:
        return []
    written = {node.name.span for node in walk(module.tree) if isinstance(node, tree.Assign)}
    return [
        (o.span, o.declares or o.span in written)
        for o in occurrences(unit, module)
        if o.key == found.key
    ]


# ---------------------------------------------------------------- outlines

SymbolKind = Literal[
    "function",
    "method",
    "block",
    "trait",
    "struct",
    "enum",
    "variant",
    "const",
    "alias",
    "member",
    "field",
]


@dataclass(frozen=True, slots=True)
class Outline:
    """A declaration, what to say about it, and what stands in it."""

    name: tree.Ident
    kind: SymbolKind
    span: Span
    detail: str = ""
    inside: tuple[Outline, ...] = ()


def outline(file: tree.File) -> list[Outline]:
    """The declarations of a file."""
    return [_outline(item) for item in file.items if item.name.text]


def _outline(item: tree.Item) -> Outline:
    match item:
        case tree.Fn():
            return Outline(item.name, "function", item.span, item.kind)
        case tree.Const():
            return Outline(item.name, "const", item.span, _short(item.value.span))
        case tree.Alias():
            return Outline(item.name, "alias", item.span, _short(item.of.span))
        case tree.Struct():
            fields = (Outline(f.name, "field", f.span, _short(f.type.span)) for f in item.fields)
            return Outline(item.name, "struct", item.span, "struct", _named(fields))
        case tree.Enum():
            variants = (Outline(v, "variant", v.span) for v in item.variants)
            return Outline(item.name, "enum", item.span, "enum", _named(variants))
        case tree.Block():
            inside = [
                *(
                    Outline(m.name, "member", m.span, f"{m.kind} {_short(m.type.span)}")
                    for m in item.members
                ),
                *(Outline(f.name, "method", f.span, f.kind) for f in item.methods),
            ]
            inside.sort(key=lambda o: o.span.start)
            word: SymbolKind = "trait" if isinstance(item, tree.Trait) else "block"
            return Outline(item.name, word, item.span, word, _named(inside))


def _named(outlines: Iterator[Outline] | list[Outline]) -> tuple[Outline, ...]:
    return tuple(o for o in outlines if o.name.text)


def _short(span: Span) -> str:
    text = " ".join(span.text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def search(query: str, files: Iterator[tree.File]) -> list[tuple[Outline, str]]:
    """The declarations whose name holds the letters of the query in order, best first."""
    found: list[tuple[tuple[int, int, str], Outline, str]] = []
    for file in files:
        for item in outline(file):
            for each, holder in [(item, ""), *((inner, item.name.text) for inner in item.inside)]:
                name, low = each.name.text.lower(), query.lower()
                if _holds(name, low):
                    rank = 0 if name.startswith(low) else 1 if low in name else 2
                    found.append(((rank, len(name), name), each, holder))
    found.sort(key=lambda entry: entry[0])
    return [(each, holder) for _, each, holder in found]


def _holds(name: str, letters: str) -> bool:
    rest = iter(name)
    return all(letter in rest for letter in letters)


# ---------------------------------------------------------------- folding


def folds(file: tree.File) -> list[tuple[int, int, Literal["code", "comment", "imports"]]]:
    """First and last line, from 0, of what can be folded."""
    lines = Lines(file.source.text)
    found: set[tuple[int, int, Literal["code", "comment", "imports"]]] = set()

    def line_of(offset: int) -> int:
        return lines.position(offset)[0]

    def add(start: int, end: int, kind: Literal["code", "comment", "imports"]) -> None:
        first, last = line_of(start), line_of(end)
        if last > first:
            found.add((first, last, kind))

    if file.uses:
        add(file.uses[0].span.start, file.uses[-1].span.end, "imports")
    for group in _comment_groups(file):
        add(group[0].span.start, group[-1].span.end, "comment")
    for node in walk(file):
        if isinstance(node, _BRACED) and not (isinstance(node, tree.Fn) and node.required):
            # The line of the closing brace stays in sight.
            last = line_of(max(node.span.start, node.span.end - 1))
            first = line_of(_head_end(node))
            if last - 1 > first:
                found.add((first, last - 1, "code"))
    return sorted(found)


_BRACED = (tree.Block, tree.Struct, tree.Enum, tree.Fn, tree.Match, tree.For, tree.While)


def _head_end(node: tree.Syntax) -> int:
    """Where the brace that opens a body stands, or the node's start."""
    text = node.span.text
    last = node.span.start
    parts = [*children(node)]
    body = {
        id(part)
        for name in ("body", "impls", "members", "methods", "fields", "variants", "arms")
        for part in getattr(node, name, ())
    }
    for part in parts:
        if id(part) not in body and not isinstance(part, tree.Ident):
            last = max(last, part.span.end)
    brace = text.find("{", last - node.span.start)
    return node.span.start + brace if brace >= 0 else node.span.start


def _comment_groups(file: tree.File) -> Iterator[list[tree.Comment]]:
    """Comments that follow each other with nothing but one line end between them."""
    group: list[tree.Comment] = []
    for comment in file.comments:
        if group:
            between = file.source.text[group[-1].span.end : comment.span.start]
            if between.strip() or between.count("\n") > 1:
                yield group
                group = []
        group.append(comment)
    if group:
        yield group


# ---------------------------------------------------------------- colours

TOKEN_TYPES = (
    "keyword",
    "number",
    "string",
    "comment",
    "namespace",
    "type",
    "class",
    "struct",
    "enum",
    "enumMember",
    "typeParameter",
    "parameter",
    "variable",
    "property",
    "function",
    "method",
    "interface",
)
TOKEN_MODIFIERS = ("declaration", "readonly", "defaultLibrary", "modification")

Colour = tuple[Span, str, tuple[str, ...]]


def colours(unit: Unit, module: Module) -> list[Colour]:
    """What each word of a file is, in order; every span is on one line."""
    source = module.file.source
    names = {(o.span.start, o.span.end): o for o in occurrences(unit, module)}
    written = {n.name.span.start for n in walk(module.tree) if isinstance(n, tree.Assign)}
    tokens, comments = lex(source, Findings())
    found: list[Colour] = []
    for token in tokens:
        span = Span(source, token.start, token.end)
        known = names.get((token.start, token.end))
        if known is not None:
            kind, modifiers = _colour(known)
            if token.start in written:
                modifiers = (*modifiers, "modification")
            found.append((span, kind, modifiers))
        elif token.kind in (INT, FLOAT):
            found.append((span, "number", ()))
        elif token.kind == STRING:
            found.append((span, "string", ()))
        elif token.kind in KEYWORDS or token.kind == RESERVED or token.text in _WORDS:
            found.append((span, "keyword", ()))
    found += [(part, "comment", ()) for c in comments for part in _lines_of(c.span)]
    return sorted(found, key=lambda colour: colour[0].start)


_WORDS = frozenset(("sum", "prod", "any", "all"))  # a reduction; elsewhere they are names in scope


def _lines_of(span: Span) -> Iterator[Span]:
    start = span.start
    for line in span.text.splitlines(keepends=True):
        text = line.rstrip("\r\n")
        if text:
            yield Span(span.source, start, start + len(text))
        start += len(line)


def _colour(o: Occurrence) -> tuple[str, tuple[str, ...]]:
    own = ("declaration",) if o.declares else ()
    match o.meaning:
        case Local(kind="param"):
            return "parameter", own
        case Local(kind=kind):
            return "variable", own if kind == "var" else (*own, "readonly")
        case IndexVar():
            return "variable", (*own, "readonly")
        case GenericName():
            return "typeParameter", own
        case MemberName():
            return "property", own
        case FieldName():
            return "property", own
        case MethodName():
            return "method", own
        case ModuleName():
            return "namespace", own
        case Variant():
            return "enumMember", own
        case PreludeName(name):
            is_type = name[:1].isupper() or name[-1:].isdigit() or name == "bool"
            return "type" if is_type else "function", ("defaultLibrary",)
        case ItemName(item, _):
            match item:
                case tree.Fn():
                    return "function", own
                case tree.Const():
                    return "variable", (*own, "readonly")
                case tree.Alias():
                    return "type", own
                case tree.Struct():
                    return "struct", own
                case tree.Enum():
                    return "enum", own
                case tree.Trait():
                    return "interface", own
                case tree.Block():
                    return "class", own


# ---------------------------------------------------------------- hints


def hints(unit: Unit, module: Module, start: int, end: int) -> list[tuple[int, str]]:
    """The types of `let`s and `var`s without one, and where to show them."""
    found: list[tuple[int, str]] = []
    for node in walk(module.tree):
        if node.span.end < start or node.span.start > end:
            continue
        match node:
            case tree.Let(pattern=pattern, type=None):
                for part in walk(pattern):
                    if isinstance(part, tree.NamePattern):
                        found += _hint(unit, part.name, part.span.end)
            case tree.Var(name=name, type=None):
                found += _hint(unit, name, name.span.end)
            case tree.IndexLet(name=name, outputs=outputs, value=value):
                last = outputs[-1].span.end if outputs else name.span.end
                bracket = node.span.source.text.find("]", last, value.span.start)
                found += _hint(unit, name, bracket + 1 if bracket >= 0 else last)
            case _:
                pass
    return found


def _hint(unit: Unit, name: tree.Ident, after: int) -> list[tuple[int, str]]:
    symbol = unit.analysis.symbols.get(name)
    if not isinstance(symbol, Local) or isinstance(
        symbol.type, (UnknownType, BlockType, BlockArray)
    ):
        return []
    return [(after, f": {type_text(symbol.type)}")]


def type_text(type: object) -> str:
    """A type as one would write it; a compile-time integer as its value."""
    text = str(type)
    for words in ("the integer ", "the number "):
        text = text.removeprefix(words)
    return text


# ---------------------------------------------------------------- text


def formatted(text: str) -> list[tuple[int, int, str]] | None:
    """The lines that change when a text is formatted: from, to, the new text.

    None if it has syntax errors.
    """
    new, _ = format_text(text)
    return None if new is None else changes(text, new)


def changes(text: str, new: str) -> list[tuple[int, int, str]]:
    """The lines that differ between two texts: from, to, the new text."""
    old_lines, new_lines = text.splitlines(keepends=True), new.splitlines(keepends=True)
    starts = [0]
    for line in old_lines:
        starts.append(starts[-1] + len(line))
    matcher = SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    return [
        (starts[a], starts[b], "".join(new_lines[c:d]))
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix of one finding."""

    title: str
    finding: Diagnostic
    edits: tuple[Edit, ...]
    safe: bool


def fixes(unit: Unit, source: Source, start: int, end: int) -> list[Fix]:
    """The fixes of the findings that touch a part of a file."""
    found: list[Fix] = []
    for d in unit.findings:
        span = d.primary.span
        if d.help is None or not d.help.edits or span.source is not source:
            continue
        places = [span, *(e.span for e in d.help.edits if e.span.source is source)]
        if any(place.start <= end and start <= place.end for place in places):
            title = d.help.text[:1].upper() + d.help.text[1:]
            found.append(Fix(title, d, d.help.edits, d.help.safe))
    return found
