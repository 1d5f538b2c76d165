"""One Function while it is lowered: its parameters, locals, members and state, and its frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from linnet.check.analysis import (
    Analysis,
    IndexVar,
    Local,
)
from linnet.check.evidence import clauses_of
from linnet.core.build import Builder
from linnet.core.ir import (
    ArrayType,
    Function,
    Literal,
    Node,
    OpId,
    Param,
    ValueType,
)
from linnet.core.values import (
    Absent,
    Aligned,
    Axis,
    BlockRef,
    Bound,
    DimValue,
    EnumConst,
    Fields,
    Present,
    Value,
    flatten,
    rebuild,
)
from linnet.diagnostics import InternalError, PlanError
from linnet.dims import Dim, Facts, Relation
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    I32,
    I64,
    BlockArray,
    BlockType,
    DType,
    EnumType,
    GenericValue,
    NoneType,
    OptionalType,
    StructType,
    TensorType,
    TupleType,
    Type,
    dim_bindings,
    scalar,
    substitute,
)

if TYPE_CHECKING:
    from linnet.core.lower import Lowering

# A member seen from a body: the base it hangs on, and its path with `*` for positions.
Place = tuple[str, str]


class Body:
    """The nodes of one Function while it is lowered; `parent` for the body of a control node."""

    def __init__(
        self,
        lowering: Lowering,
        bindings: Mapping[str, GenericValue],
        owner: Bound | None,
        presence: frozenset[str],
        dims: tuple[str, ...] = (),
        facts: tuple[Relation, ...] = (),
        parent: Body | None = None,
        variable: str | None = None,
    ) -> None:
        self.lowering = lowering
        self.analysis = lowering.analysis
        self.bindings = bindings
        self.owner = owner
        self.presence = presence
        self.dims = dims
        self.parent = parent
        self.variable = variable  # of a loop over a sub array
        self.build: Builder = Builder(parent.build.facts if parent else Facts.of(facts))
        self.env: dict[Local, Value] = {}
        self.values: list[Param] = []
        self.members: dict[Place, Param] = {}
        self.states: dict[Place, Node] = {}
        self.state_params: dict[Place, Param] = {}
        self.written: list[Place] = []
        self.captured: dict[Local, Value] = {}
        self.captures: list[tuple[Node, Param]] = []
        self.frame: list[Axis] = []
        self.extents: dict[Axis, Dim] = {}

    # ------------------------------------------------------------ parameters and the end

    def parameter(self, name: str, type: Type, arg: Value) -> Value:
        """The parameter's value in the argument's structure; its nodes become params."""
        match type, arg:
            case _, EnumConst() | Absent():
                return arg
            case OptionalType(of), Present(inner):
                return Present(self.parameter(name, of, inner))
            case TupleType(items), tuple():
                return tuple(
                    self.parameter(f"{name}_{i}", t, v)
                    for i, (t, v) in enumerate(zip(items, arg, strict=True))
                )
            case StructType() as struct, Fields(_, fields):
                return Fields(
                    struct,
                    tuple(
                        (field, self.parameter(f"{name}_{field}", t, v))
                        for (field, v), t in zip(
                            fields, field_types(self.analysis, struct).values(), strict=True
                        )
                    ),
                )
            case EnumType(), _:
                return self.value_param(name, scalar(I32))
            case TensorType(), _:
                return self.value_param(name, type)
            case _:
                raise InternalError("lower", f"parameter {name} of type {type}")

    def value_param(self, name: str, type: TensorType) -> Param:
        param = self.build.param(self.fresh_name(name), type)
        self.values.append(param)
        return param

    def fresh_name(self, name: str) -> str:
        taken = {p.name for p in self.values}
        count, fresh = 2, name
        while fresh in taken:
            fresh = f"{name}_{count}"
            count += 1
        return fresh

    def bind(self, ident: tree.Ident, value: Value) -> None:
        symbol = self.analysis.symbols[ident]
        assert isinstance(symbol, Local)
        self.env[symbol] = value

    def finish(
        self,
        *,
        name: str,
        kind: str,
        op: OpId | None,
        block: str | None,
        value: Value,
        facts: tuple[Relation, ...],
        returns: Type | None,
        takes: tuple[tuple[str, Type], ...],
        span: Span | None,
        docs: str,
    ) -> Function:
        """The Function of what was lowered; its result is `value`, then the written states."""
        params = (*self.values, *self.members.values(), *self.state_params.values())
        writes = tuple(p for p in self.state_params if p in self.written)
        return Function(
            name=name,
            kind=cast("_Kind", kind),
            op=op,
            block=block,
            dims=self.dims,
            params=params,
            results=(*self.results(value), *(self.states[p] for p in writes)),
            writes=tuple(path for _, path in writes),
            facts=facts,
            returns=returns,
            takes=takes,
            span=span,
            docs=docs,
        )

    def results(self, value: Value) -> tuple[Node, ...]:
        """A result's nodes; a constant enum becomes its position."""
        return flatten(self.reified(value))

    def reified(self, value: Value) -> Value:
        match value:
            case EnumConst(index):
                return self.build.literal(index, I32)
            case tuple():
                return tuple(self.reified(v) for v in value)
            case Present(inner):
                return Present(self.reified(inner))
            case Fields(type, items):
                return Fields(type, tuple((n, self.reified(v)) for n, v in items))
            case DimValue(dim):
                return self.build.size(dim, I64)
            case _:
                return value

    # ------------------------------------------------------------ types

    def type_of(self, e: tree.Syntax) -> Type:
        return substitute(self.analysis.types[e], self.bindings)

    def dim(self, dim: Dim) -> Dim:
        """A dimension of the source in this function's names."""
        return dim.substitute(dim_bindings(self.bindings))

    def dtype_of(self, e: tree.Syntax) -> DType:
        type = self.type_of(e)
        assert isinstance(type, TensorType) and isinstance(type.dtype, DType), type
        return type.dtype

    def shape(self, type: Type) -> tuple[Dim, ...]:
        assert isinstance(type, TensorType), type
        return tuple(a for a in type.shape if isinstance(a, Dim))

    # ------------------------------------------------------------ statements

    # ------------------------------------------------------------ loops

    def child(self, variable: str | None = None) -> Body:
        return Body(
            self.lowering,
            self.bindings,
            self.owner,
            self.presence,
            self.dims,
            parent=self,
            variable=variable,
        )

    def same(self, param: Param) -> Param:
        return self.build.param(param.name, param.of, param.kind, param.base)

    def fresh_capture(self, param: Param) -> Param:
        taken = {p.name for p in self.values} | {p.name for _, p in self.captures}
        name, count = param.name, 2
        while name in taken:
            name = f"{param.name}_{count}"
            count += 1
        return self.build.param(name, param.of)

    # ------------------------------------------------------------ names and captures

    def lookup(self, local: Local) -> Value:
        if local in self.env:
            return self.env[local]
        if local in self.captured:
            return self.captured[local]
        if self.parent is None:
            raise InternalError("lower", f"{local.name} is not bound")
        outer = self.parent.lookup(local)
        value = rebuild(outer, iter([self.capture(n, local.name) for n in flatten(outer)]))
        self.captured[local] = value
        return value

    def capture(self, outer: Node, name: str) -> Node:
        """The outer node inside this closed body: a constant again, else an input."""
        if isinstance(outer, Literal):
            return self.build.literal(outer.value, outer.dtype, outer.span)
        for known, param in self.captures:
            if known is outer:
                return param
        taken = {p.name for p in self.values} | {p.name for _, p in self.captures}
        fresh, count = name, 2
        while fresh in taken:
            fresh = f"{name}_{count}"
            count += 1
        assert isinstance(outer.type, (TensorType, ArrayType))
        param = self.build.param(fresh, outer.type)
        if self.parent is not None and outer in self.parent.build.ranges:
            self.build.ranges[param] = self.parent.build.ranges[outer]
        self.captures.append((outer, param))
        return param

    # ------------------------------------------------------------ members and state

    def read(self, base: str, parts: Sequence[str | int]) -> Node:
        """A member's current value; parts that are `*` keep whole arrays."""
        node = self.whole(base, joined(parts))
        for part in parts:
            if isinstance(part, int):
                node = self.build.element(node, part)
        return node

    def whole(self, base: str, path: str) -> Node:
        place = (base, path)
        if place in self.states:
            return self.states[place]
        if place in self.members:
            return self.members[place]
        kind, of = self.declared(base, path)
        param = self.build.param(path, of, kind, base)
        if kind == "state":
            self.state_params[place] = param
            self.states[place] = param
        else:
            self.members[place] = param
        return param

    def declared(self, base: str, path: str) -> tuple[_MemberKind, ValueType]:
        """What the member at a path is, and its type with an array level for each `*`."""
        bound = self.base_bound(base)
        lengths: list[int] = []
        parts = path.split(".")
        at = 0
        while True:
            member = bound.info.members[parts[at]]
            at += 1
            type = substitute(member.type, bound.bindings)
            if isinstance(type, BlockArray):
                assert parts[at] == "*" and type.length.constant is not None
                lengths.append(type.length.constant)
                type = type.of
                at += 1
            if isinstance(type, BlockType):
                bound = self.lowering.bound(type, {})
                continue
            assert isinstance(type, TensorType)
            of: ValueType = type
            for length in reversed(lengths):
                of = ArrayType(of, length)
            assert member.member.kind != "sub"
            return member.member.kind, of

    def base_bound(self, base: str) -> Bound:
        if base == "self":
            assert self.owner is not None
            return self.owner
        body: Body | None = self
        while body is not None:
            for value in body.env.values():
                if isinstance(value, BlockRef) and value.base == base and not value.parts:
                    return value.bound
            body = body.parent
        raise InternalError("lower", f"no loop variable {base}")

    def write(self, base: str, parts: Sequence[str | int], value: Node) -> None:
        self.put(
            (base, joined(parts)), self._updated(self.whole(base, joined(parts)), parts, value)
        )

    def _updated(self, whole: Node, parts: Sequence[str | int], value: Node) -> Node:
        positions = [p for p in parts if isinstance(p, int)]
        if not positions:
            return value
        inner = list(parts[parts.index(positions[0]) + 1 :])
        element = self.build.element(whole, positions[0])
        return self.build.update(whole, positions[0], self._updated(element, inner, value))

    def put(self, place: Place, value: Node) -> None:
        self.whole(*place)
        self.states[place] = value
        if place not in self.written:
            self.written.append(place)

    # ------------------------------------------------------------ alignment

    def aligned(self, values: Sequence[Value]) -> tuple[tuple[Node, ...], tuple[Axis, ...] | None]:
        """Operands brought to one shape; the frame axes it has, or None outside a frame."""
        if not any(isinstance(v, Aligned) for v in values):
            nodes = tuple(v if isinstance(v, Node) else flatten(self.reified(v))[0] for v in values)
            return self.build.broadcast_all(nodes), None
        used = {axis for v in values if isinstance(v, Aligned) for axis in v.axes}
        axes = tuple(a for a in self.frame if a in used)
        return tuple(self.over(v, axes) for v in values), axes

    def over(self, value: Value, axes: Sequence[Axis]) -> Node:
        """A scalar of index notation expanded over the given frame axes."""
        if isinstance(value, Aligned):
            node, own = value.node, value.axes
        else:
            (node,) = flatten(self.reified(value))
            own = ()
        return self.build.expand(
            node, tuple(self.extents[a] for a in axes), tuple(axes.index(a) for a in own)
        )

    def wrapped(self, node: Node, axes: tuple[Axis, ...] | None) -> Value:
        return node if axes is None else Aligned(node, axes)

    def elementwise(self, values: Sequence[Value], make: Callable[..., Node]) -> Value:
        nodes, axes = self.aligned(values)
        return self.wrapped(make(*nodes), axes)

    # ------------------------------------------------------------ expressions

    # ------------------------------------------------------------ subscripts

    # ------------------------------------------------------------ calls


def field_types(analysis: Analysis, struct: StructType) -> dict[str, Type]:
    """The fields of a struct, for these generics."""
    assert isinstance(struct.decl, tree.Struct)
    names = [g.name.text for g in struct.decl.generics]
    bindings = dict(zip(names, struct.args, strict=True))
    fields = analysis.structs[struct.decl].fields
    return {name: substitute(type, bindings) for name, type in fields.items()}


def proved_by(analysis: Analysis, type: Type, value: Value) -> Iterator[Relation]:
    """The clauses of all structs in a value, those in its optionals that are there included."""
    match type, value:
        case OptionalType(of), Present(inner):
            yield from proved_by(analysis, of, inner)
        case TupleType(items), tuple():
            for item, part in zip(items, value, strict=True):
                yield from proved_by(analysis, item, part)
        case StructType(), Fields(_, fields):
            yield from clauses_of(analysis, type)
            types = field_types(analysis, type).values()
            for item, (_, part) in zip(types, fields, strict=True):
                yield from proved_by(analysis, item, part)
        case _:
            pass


def seen_outside(analysis: Analysis, type: Type, value: Value) -> Type:
    """A declared type as the callers of a lowered function see it: structs with their fields, an
    optional as what it holds or `none`."""
    match type, value:
        case OptionalType(of), Present(inner):
            return seen_outside(analysis, of, inner)
        case OptionalType(), _:
            return NoneType()
        case TupleType(items), tuple():
            pairs = zip(items, value, strict=True)
            return TupleType(tuple(seen_outside(analysis, t, v) for t, v in pairs))
        case StructType(), Fields(_, fields):
            types = zip(field_types(analysis, type).values(), fields, strict=True)
            return replace(
                type, fields=tuple((n, seen_outside(analysis, t, v)) for t, (n, v) in types)
            )
        case _:
            return type


def joined(parts: Sequence[str | int]) -> str:
    return ".".join("*" if isinstance(p, int) else p for p in parts)


def hinted(value: Value, name: str) -> Value:
    """The value, its nodes named after the variable that holds them if they have no name yet."""
    match value:
        case Fields(_, items):
            for field, part in items:
                hinted(part, f"{name}_{field}")
        case _:
            nodes = flatten(value) if not isinstance(value, Aligned) else (value.node,)
            for i, node in enumerate(nodes):
                hinted_node(node, name if len(nodes) == 1 else f"{name}_{i}")
    return value


def hinted_node(node: Node, name: str) -> Node:
    if not node.hint and not isinstance(node, (Param, Literal)):
        # A hint is for the reader of generated code; it is no part of what the node means.
        object.__setattr__(node, "hint", name)
    return node


def limit(span: Span, what: str) -> PlanError:
    """What the language allows and this version cannot lower."""
    at = span.source.position(span.start)
    return PlanError(
        f"{span.source.name}:{at.line}:{at.column}: not supported yet: {what}: `{span.text}`"
    )


if TYPE_CHECKING:
    from typing import Literal as _Lit
    from typing import TypeVar

    _Kind = _Lit["entry", "method", "fn", "op", "body"]
    _MemberKind = _Lit["param", "buffer", "state"]
    _T = TypeVar("_T")

__all__ = ["Body", "IndexVar", "hinted", "limit"]
