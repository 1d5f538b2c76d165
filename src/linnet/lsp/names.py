"""Every name in a file and what it means: where it is declared, and where else it stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from linnet.check.analysis import (
    Analysis,
    FnCall,
    GenericName,
    IndexVar,
    ItemName,
    Local,
    MemberName,
    MethodName,
    Module,
    ModuleName,
    PreludeName,
    StructCall,
    Symbol,
    Variant,
)
from linnet.check.scope import prelude_names
from linnet.lsp.project import Unit
from linnet.source import Span
from linnet.syntax import tree
from linnet.syntax.tree import children, walk
from linnet.types import EnumType, StructType, UnknownType

Key = tuple[str, int]  # a file's name and where in it the name is declared; -1 is the file itself


@dataclass(frozen=True, eq=False, slots=True)
class FieldName:
    """A field of a struct."""

    field: tree.StructField
    struct: tree.Struct


Meaning = Symbol | FieldName


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A name at a place; `node` is the name or the expression that it is."""

    span: Span
    meaning: Meaning
    node: tree.Syntax
    declares: bool

    @property
    def key(self) -> Key:
        return key_of(self.meaning)


# ---------------------------------------------------------------- declarations


def declared(meaning: Meaning) -> Span | None:
    """Where a name is declared: the name itself there; None for the prelude's."""
    match meaning:
        case Local(decl=decl) | IndexVar(decl=decl) | GenericName(decl=decl):
            return _name_span(decl)
        case MemberName(member):
            return member.name.span
        case MethodName(fn):
            return fn.name.span
        case ItemName(item, _):
            return item.name.span
        case FieldName(field, _):
            return field.name.span
        case Variant(enum=enum, index=index):
            assert isinstance(enum.decl, tree.Enum)
            return enum.decl.variants[index].span
        case ModuleName(module):
            path = module.tree.module
            return path.span if path is not None else Span(module.file.source, 0, 0)
        case PreludeName():
            return None


def _name_span(decl: tree.Syntax) -> Span:
    name = getattr(decl, "name", None)
    return name.span if isinstance(name, tree.Ident) else decl.span


def key_of(meaning: Meaning) -> Key:
    """The same for every occurrence of one declaration, in whichever check it was seen."""
    if isinstance(meaning, PreludeName):
        return f"prelude {meaning.name}", 0
    if isinstance(meaning, ModuleName):
        return meaning.module.file.source.name, -1
    span = declared(meaning)
    assert span is not None
    return span.source.name, span.start


def name_of(meaning: Meaning) -> str:
    """The name as it is declared."""
    match meaning:
        case Local() | IndexVar() | PreludeName():
            return meaning.name
        case ModuleName(module):
            return module.name.rpartition(".")[2]
        case _:
            span = declared(meaning)
            assert span is not None
            return span.text


# ---------------------------------------------------------------- trees


def enclosing(root: tree.Syntax, offset: int) -> list[tree.Syntax]:
    """The nodes around a place, the innermost last; a node's end counts as inside."""
    path = [root]
    while True:
        inside = [c for c in children(path[-1]) if c.span.start <= offset <= c.span.end]
        if not inside:
            return path
        # Between two that touch, the one that begins here.
        path.append(max(inside, key=lambda c: (c.span.start, -c.span.end)))


# ---------------------------------------------------------------- occurrences


def occurrences(unit: Unit, module: Module) -> list[Occurrence]:
    """Every name of a file whose meaning is known, in source order, each once."""
    if module not in unit.names:
        found: dict[tuple[int, int], Occurrence] = {}
        for occurrence in _all(unit, module):
            span = occurrence.span
            if span.end > span.start:  # not one that the parser made up
                found.setdefault((span.start, span.end), occurrence)
        unit.names[module] = [found[place] for place in sorted(found)]
    return unit.names[module]


def at(unit: Unit, module: Module, offset: int) -> Occurrence | None:
    """The name at a place; at its end too, unless another begins there."""
    found = occurrences(unit, module)
    i = bisect_right(found, offset, key=lambda o: o.span.start) - 1
    return found[i] if i >= 0 and offset <= found[i].span.end else None


def _all(unit: Unit, module: Module) -> Iterator[Occurrence]:
    analysis = unit.analysis
    for node in walk(module.tree):
        yield from _special(unit, module, node)
        if isinstance(node, (tree.Name, tree.Ident)):
            meaning = analysis.symbols.get(node)
            if meaning is not None and not _unresolved(meaning):
                yield Occurrence(node.span, meaning, node, declared(meaning) == node.span)


def _unresolved(symbol: Symbol) -> bool:
    """An import whose target is missing stands as a local of unknown type."""
    return (
        isinstance(symbol, Local)
        and isinstance(symbol.decl, tree.Ident)
        and isinstance(symbol.type, UnknownType)
    )


def _special(unit: Unit, module: Module, node: tree.Syntax) -> Iterator[Occurrence]:
    """Names that the checker's table of symbols does not hold."""
    analysis = unit.analysis
    match node:
        case tree.Use(path=path):
            target = unit.imported(module, (part.text for part in path.parts))
            if target is not None:
                last = path.parts[-1]
                yield Occurrence(last.span, ModuleName(target), last, False)
        case tree.Field(base=base, name=name):
            struct = analysis.types.get(base)
            if isinstance(struct, StructType) and isinstance(struct.decl, tree.Struct):
                yield from _field(name, struct.decl)
        case tree.Struct(fields=own):
            for field in own:
                yield Occurrence(field.name.span, FieldName(field, node), field.name, True)
        case tree.Enum(variants=variants):
            for i, variant in enumerate(variants):
                meaning = Variant(EnumType(node, node.name.text), i)
                yield Occurrence(variant.span, meaning, variant, True)
        case tree.Call():
            yield from _named_arguments(analysis, node)
        case tree.GenericParam(kind=kind):
            yield Occurrence(kind.span, PreludeName(kind.text), kind, False)
        case tree.TensorTypeExpr(span=span):
            word = Span(span.source, span.start, span.start + len("Tensor"))
            if word.text == "Tensor":
                yield Occurrence(word, PreludeName("Tensor"), node, False)


def _field(name: tree.Ident, struct: tree.Struct) -> Iterator[Occurrence]:
    for field in struct.fields:
        if field.name.text == name.text:
            yield Occurrence(name.span, FieldName(field, struct), name, False)
            return


def _named_arguments(analysis: Analysis, call: tree.Call) -> Iterator[Occurrence]:
    meaning = callee(analysis, call)
    for arg in call.args:
        if arg.name is None:
            continue
        match meaning:
            case tree.Fn(params=params):
                for param in params:
                    symbol = analysis.symbols.get(param)
                    if param.name.text == arg.name.text and symbol is not None:
                        yield Occurrence(arg.name.span, symbol, arg.name, False)
            case tree.Struct():
                yield from _field(arg.name, meaning)
            case _:
                pass


def callee(analysis: Analysis, call: tree.Call) -> tree.Fn | tree.Struct | str | None:
    """What is called: a function, a struct that is built, or the name of a prelude function."""
    match analysis.calls.get(call):
        case FnCall(fn=fn):
            return fn
        case StructCall(struct=StructType(decl=tree.Struct() as struct)):
            return struct
        case _:
            pass
    named = call.callee
    while isinstance(named, tree.Paren):
        named = named.value
    match analysis.symbols.get(named):
        case ItemName(tree.Fn() | tree.Struct() as item, _):
            return item
        case MethodName(fn):
            return fn
        case PreludeName(name):
            return name
        case _:
            return None


def is_prelude(name: str) -> bool:
    return name in prelude_names()
