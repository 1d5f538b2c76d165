"""What is shown for a place: the declaration with its inferred type, its value, what is said of it;
and the signature of the call that is being written."""

from __future__ import annotations

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
    Variant,
)
from linnet.check.prelude import PRELUDE
from linnet.dims import Dim
from linnet.lsp.features import type_text
from linnet.lsp.names import FieldName, Meaning, Occurrence, at, callee, enclosing
from linnet.lsp.project import Unit
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import DTYPES, UnknownType, generic_text, shape_text

# What section 9 of the language says of each, in a sentence.
PRELUDE_DOCS = {
    "cast": "The same values in the dtype written in `<>`; a float becomes an integer by dropping "
    "its fraction, a number becomes a bool by `!= 0`.",
    "exp": "e to the power of each element.",
    "log": "The natural logarithm of each element.",
    "sqrt": "The square root of each element.",
    "rsqrt": "One over the square root of each element.",
    "sin": "The sine of each element.",
    "cos": "The cosine of each element.",
    "tanh": "The hyperbolic tangent of each element.",
    "abs": "Each element without its sign.",
    "min": "The smaller of two values, element by element; of two compile-time integers, a "
    "dimension. Before `[` it starts a reduction.",
    "max": "The larger of two values, element by element; of two compile-time integers, a "
    "dimension. Before `[` it starts a reduction.",
    "shl": "Each element shifted to the left; by a count outside the bits, 0.",
    "shr": "Each element shifted to the right; a signed one keeps its sign.",
    "select": "Where `c` holds the element of `a`, elsewhere that of `b`.",
    "reshape": "The same elements in another shape, which has as many.",
    "permute": "The same elements with the axes in another order.",
    "broadcast_to": "The value repeated along axes of 1 and new leading axes, up to this shape.",
    "concat": "The values one after another along an axis; all their other axes are equal.",
    "iota": "The integers from 0 up to `n`, without it.",
    "fill": "A tensor that holds one value everywhere.",
}
KIND_DOCS = {
    "Tensor": "A tensor: `Tensor[dims; dtype]`.",
    "Dim": "The kind of a generic that is a dimension: an integer that is not negative, known "
    "before the program runs.",
    "Shape": "The kind of a generic `*S` that stands for any number of axes.",
    "DType": "The kind of a generic that is any dtype.",
    "Numeric": "The kind of a generic dtype of integers or floats.",
    "Integer": "The kind of a generic dtype of integers.",
    "Float": "The kind of a generic dtype of floats.",
}


@dataclass(frozen=True, slots=True)
class Hover:
    """Linnet code, and lines of Markdown about it."""

    span: Span
    code: str
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        parts = [f"```linnet\n{self.code}\n```", *self.notes]
        return "\n\n".join(part for part in parts if part)


def hover(unit: Unit, module: Module, offset: int) -> Hover | None:
    """What is known of the name at a place, or else of the expression there."""
    found = at(unit, module, offset)
    path = enclosing(module.tree, offset)
    if found is not None:
        code = _declaration(unit.analysis, found)
        return Hover(found.span, code, tuple(_notes(unit.analysis, found, path)))
    for node in reversed(path):
        known = unit.analysis.types.get(node)
        if known is not None and not isinstance(known, UnknownType):
            dim = unit.analysis.dims.get(node)
            notes = (f"value: `{dim}`",) if dim is not None and str(dim) != node.span.text else ()
            return Hover(node.span, f"{_short(node.span)}: {type_text(known)}", notes)
        if isinstance(node, (tree.IntLit, tree.FloatLit)):
            break
    return None


def _short(span: Span) -> str:
    text = " ".join(span.text.split())
    return text if len(text) <= 70 else text[:67] + "..."


def _declaration(analysis: Analysis, o: Occurrence) -> str:
    match o.meaning:
        case Local(name=name, type=type, kind=kind):
            word = {"param": "", "let": "let ", "var": "var ", "loop": "", "element": ""}[kind]
            return f"{word}{name}: {type_text(type)}"
        case IndexVar(name=name, pack=pack) as index:
            star = "*" if pack else ""
            return f"{star}{name}: index{_extent(analysis, index)}"
        case GenericName(decl):
            return decl.span.text
        case MemberName(member):
            return _member(analysis, member, o.node)
        case MethodName(fn) | ItemName(tree.Fn() as fn, _):
            return heading(fn)
        case ItemName(item, _):
            return _item(analysis, item)
        case FieldName(field, struct):
            known = analysis.structs.get(struct)
            of = known.fields.get(field.name.text) if known is not None else None
            return f"{field.name.text}: {of if of is not None else field.type.span.text}"
        case ModuleName(module):
            return f"module {module.name}"
        case Variant(enum=enum, index=index):
            assert isinstance(enum.decl, tree.Enum)
            return f"{enum.name}.{enum.decl.variants[index].text}"
        case PreludeName(name):
            return prelude_signature(name)


def _extent(analysis: Analysis, index: IndexVar) -> str:
    for frame in analysis.frames.values():
        for each, extent in zip(frame.indices, frame.extents):
            if each is index:
                shown = shape_text(extent) if isinstance(extent, tuple) else str(extent)  # type: ignore[arg-type]
                return f" over {shown}"
    return ""


def _member(analysis: Analysis, member: tree.Member, node: tree.Syntax) -> str:
    """The member as it is declared; read from another block, with the sizes it has there."""
    here = analysis.types.get(node)
    type = type_text(here) if here is not None and not isinstance(here, UnknownType) else None
    if type is None or isinstance(node, tree.Ident):
        type = " ".join(member.type.span.text.split())
    return f"{member.kind} {member.name.text}: {type}"


def _item(analysis: Analysis, item: tree.Item) -> str:
    public = "pub " if item.public else ""
    match item:
        case tree.Const():
            info = analysis.consts.get(item)
            value = " ".join(item.value.span.text.split())
            if info is None:
                return f"{public}const {item.name.text} = {value}"
            kind = f": {info.type}" if item.type is not None else ""
            return f"{public}const {item.name.text}{kind} = {value}"
        case tree.Alias() | tree.Struct() | tree.Enum():
            return item.span.text
        case tree.Block():
            return heading(item)
        case tree.Fn():
            return heading(item)


def heading(item: tree.Fn | tree.Block) -> str:
    """A function or a block as it is written, up to its body."""
    text = item.span.source.text
    parts: list[tree.Syntax] = [item.name, *item.generics, *item.where]
    if isinstance(item, tree.Fn):
        parts += [*item.params, *([item.result] if item.result is not None else [])]
    end = max(part.span.end for part in parts)
    brace = text.find("{", end, item.span.end)
    return text[item.span.start : brace if brace >= 0 else item.span.end].rstrip()


def prelude_signature(name: str) -> str:
    row = PRELUDE.get(name)
    if row is None:
        return name
    dtype = "<T>" if row.dtype else ""
    shown = "a, b, ..., axis = k" if name == "concat" else ", ".join(row.params)
    return f"{name}{dtype}({shown})"


def docs_of(meaning: Meaning) -> str:
    """What the documentation comment of a declaration says."""
    match meaning:
        case MemberName(member):
            return member.docs
        case MethodName(fn):
            return fn.docs
        case ItemName(item, _):
            return item.docs
        case PreludeName(name):
            if name in DTYPES:
                return f"A dtype of {DTYPES[name].bits} bits."
            return PRELUDE_DOCS.get(name) or KIND_DOCS.get(name, "")
        case _:
            return ""


def _notes(analysis: Analysis, o: Occurrence, path: list[tree.Syntax]) -> Iterator[str]:
    match o.meaning:
        case ItemName(tree.Const() as const, _):
            info = analysis.consts.get(const)
            if info is not None:
                shown = info.value
                if isinstance(shown, Variant):
                    assert isinstance(shown.enum.decl, tree.Enum)
                    yield f"value: `{shown.enum.decl.variants[shown.index].text}`"
                elif str(shown) != const.value.span.text:
                    yield f"value: `{str(shown).lower() if isinstance(shown, bool) else shown}`"
        case Local():
            dim = analysis.dims.get(o.node)
            if isinstance(dim, Dim) and str(dim) != o.meaning.name:
                yield f"value: `{dim}`"
        case _:
            pass
    call = _call_of(path, o)
    if call is not None:
        yield from _bound(analysis, call)
    yield docs_of(o.meaning)
    match o.meaning:
        case ItemName(_, module):
            yield f"in module `{module.name}`"
        case _:
            pass


def _call_of(path: list[tree.Syntax], o: Occurrence) -> tree.Call | None:
    """The call whose callee the name is."""
    for node in reversed(path):
        if isinstance(node, tree.Call):
            return node if node.callee.span.end == o.span.end else None
    return None


def _bound(analysis: Analysis, call: tree.Call) -> Iterator[str]:
    """What a call's generics are here, and what it gives."""
    match analysis.calls.get(call):
        case FnCall(fn=fn, bindings=bindings, result=result):
            known = analysis.signatures.get(fn)
            names = [g.name.text for g in known.generics] if known is not None else []
            bound = [(name, bindings[name]) for name in names if name in bindings]
            if bound:
                shown = (f"`{name} = {generic_text(value)}`" for name, value in bound)
                yield "here " + ", ".join(shown)
            yield f"gives `{result}`"
        case StructCall(struct=struct):
            yield f"gives `{struct}`"
        case None:
            pass
        case other:
            yield f"gives `{other.result}`"


# ---------------------------------------------------------------- signatures


@dataclass(frozen=True, slots=True)
class Signature:
    """A call's signature, the part of it that stands for each parameter, and which is at hand."""

    label: str
    parameters: tuple[tuple[int, int], ...]
    active: int | None
    docs: str = ""


def signature(unit: Unit, module: Module, offset: int) -> Signature | None:
    """The signature of the innermost call whose arguments are around a place."""
    for node in reversed(enclosing(module.tree, offset)):
        if isinstance(node, tree.Call) and _within(node, offset):
            found = _signature(unit.analysis, node, offset)
            if found is not None:
                return found
    return None


def _within(call: tree.Call, offset: int) -> bool:
    """Whether a place is between the parentheses of a call."""
    text = call.span.source.text
    after = max([call.callee.span.end, *(g.span.end for g in call.generics or ())])
    opening = text.find("(", after, call.span.end)
    inside = opening >= 0 and offset > opening
    return inside and (offset < call.span.end or text[call.span.end - 1] != ")")


def _signature(analysis: Analysis, call: tree.Call, offset: int) -> Signature | None:
    target = callee(analysis, call)
    match target:
        case tree.Fn(params=params, docs=docs):
            names = [p.name.text for p in params]
            parts = [" ".join(p.span.text.split()) for p in params]
            text = heading(target)
            start = text.find(
                "(",
                max([target.name.span.end, *(g.span.end for g in target.generics)])
                - target.span.start,
            )
            before = " ".join(text[:start].split()) + "("
            after = ")"
            if target.result is not None:
                after += " -> " + " ".join(target.result.span.text.split())
        case tree.Struct(fields=own, docs=docs):
            names = [f.name.text for f in own]
            parts = [" ".join(f.span.text.split()) for f in own]
            before, after = f"{target.name.text}(", ")"
        case str() if target in PRELUDE:
            names = list(PRELUDE[target].params)
            label = prelude_signature(target)
            before, after = label[: label.index("(") + 1], ")"
            parts = ["a", "b", "...", "axis = k"] if target == "concat" else names
            docs = PRELUDE_DOCS[target]
        case _:
            return None
    label, places = before, []
    for i, part in enumerate(parts):
        label += ", " if i else ""
        places.append((len(label), len(label) + len(part)))
        label += part
    return Signature(label + after, tuple(places), _active(call, offset, names), docs)


def _active(call: tree.Call, offset: int, names: list[str]) -> int | None:
    """Which parameter the place belongs to."""
    position = 0
    for arg in call.args:
        if arg.span.start <= offset <= arg.span.end:
            if arg.name is not None:
                return names.index(arg.name.text) if arg.name.text in names else None
            break
        if arg.span.end < offset:
            position += 1
    return position if position < max(len(names), 1) else None
