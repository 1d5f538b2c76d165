"""One function body, from syntax to nodes: statements, expressions, calls, state.

Inside index notation a scalar expression is worth an `Aligned` node over the frame's axes; the
same code lowers it, since every elementwise operation goes through `elementwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from linnet.check.analysis import (
    Access,
    ArrayElement,
    AxisAt,
    AxisGather,
    AxisSlice,
    AxisWhole,
    FnCall,
    IndexVar,
    ItemName,
    Local,
    MemberName,
    PreludeCall,
    StructCall,
    Subscript,
    Variant,
)
from linnet.core import indexed
from linnet.core.build import Builder
from linnet.core.ir import (
    ArrayType,
    BinaryOp,
    CompareOp,
    Function,
    Literal,
    Node,
    OpId,
    Param,
    UnaryOp,
    ValueType,
)
from linnet.core.values import (
    ABSENT,
    Absent,
    Aligned,
    ArrayRef,
    Axis,
    BlockRef,
    Bound,
    DimValue,
    EnumConst,
    Fields,
    Present,
    Value,
    below,
    flatten,
    rebuild,
    structure,
)
from linnet.diagnostics import InternalError, PlanError
from linnet.dims import Dim, Facts, Relation
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    BOOL,
    F64,
    I32,
    I64,
    BlockArray,
    BlockType,
    DType,
    EnumType,
    FloatConst,
    GenericValue,
    IntConst,
    OptionalType,
    StructType,
    TensorType,
    TupleType,
    Type,
    dim_bindings,
    scalar,
    substitute,
    substitute_generic,
)

if TYPE_CHECKING:
    from linnet.core.lower import Lowering

# A member seen from a body: the base it hangs on, and its path with `*` for positions.
Place = tuple[str, str]

BINARY: dict[str, BinaryOp] = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "%": "rem",
    "&": "and",
    "|": "or",
    "^": "xor",
    "&&": "and",
    "||": "or",
}
COMPARE: dict[str, CompareOp] = {
    "==": "eq",
    "!=": "ne",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
}
UNARY: frozenset[str] = frozenset({"abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh"})
PRELUDE_BINARY: dict[str, BinaryOp] = {"min": "min", "max": "max", "shl": "shl", "shr": "shr"}


class Body:
    """The nodes of one Function while it is lowered; `parent` for the body of a control node."""

    def __init__(
        self,
        lowering: Lowering,
        bindings: Mapping[str, GenericValue],
        owner: Bound | None,
        presence: frozenset[str],
        facts: tuple[Relation, ...] = (),
        parent: Body | None = None,
        variable: str | None = None,
    ) -> None:
        self.lowering = lowering
        self.analysis = lowering.analysis
        self.bindings = bindings
        self.owner = owner
        self.presence = presence
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
                        for (field, v), t in zip(fields, self.field_types(struct), strict=True)
                    ),
                )
            case EnumType(), _:
                return self._value_param(name, scalar(I32))
            case TensorType(), _:
                return self._value_param(name, type)
            case _:
                raise InternalError("lower", f"parameter {name} of type {type}")

    def _value_param(self, name: str, type: TensorType) -> Param:
        param = self.build.param(self._fresh(name), type)
        self.values.append(param)
        return param

    def _fresh(self, name: str) -> str:
        taken = {p.name for p in self.values}
        count, fresh = 2, name
        while fresh in taken:
            fresh = f"{name}_{count}"
            count += 1
        return fresh

    def field_types(self, struct: StructType) -> list[Type]:
        assert isinstance(struct.decl, tree.Struct)
        info = self.analysis.structs[struct.decl]
        names = [g.name.text for g in struct.decl.generics]
        bindings = dict(zip(names, struct.args, strict=True))
        return [substitute(t, bindings) for t in info.fields.values()]

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
        dims: tuple[str, ...],
        value: Value,
        facts: tuple[Relation, ...],
        returns: Type | None,
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
            dims=dims,
            params=params,
            results=(*self.results(value), *(self.states[p] for p in writes)),
            writes=tuple(path for _, path in writes),
            facts=facts,
            returns=returns,
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

    def block(self, body: Sequence[tree.Stmt]) -> Value:
        """Runs the statements; the value of the `return` that ends them."""
        for stmt in body:
            if isinstance(stmt, tree.Return):
                return self.expr(stmt.value) if stmt.value is not None else ()
            self.statement(stmt)
        return ()

    def statement(self, stmt: tree.Stmt) -> None:
        match stmt:
            case tree.Let(pattern=pattern, value=value):
                self.destructure(pattern, self.expr(value))
            case tree.IndexLet(name=name):
                self.bind(name, hinted(indexed.index_let(self, stmt), name.text))
            case tree.Var(name=name, value=value):
                self.bind(name, hinted(self.expr(value), name.text))
            case tree.Assign(name=name, value=value):
                self.assign(name, self.expr(value))
            case tree.StaticFor():
                self.static_for(stmt)
            case tree.While():
                self.while_loop(stmt)
            case tree.Return():
                raise InternalError("lower", "a return inside a loop")

    def assign(self, name: tree.Ident, value: Value) -> None:
        match self.analysis.symbols[name]:
            case Local() as local:
                self.env[local] = hinted(value, name.text)
            case MemberName(member):
                assert isinstance(value, Node)
                self.write("self", (member.name.text,), hinted_node(value, name.text))
            case other:
                raise InternalError("lower", f"assignment to {other}")

    def destructure(self, pattern: tree.Pattern, value: Value) -> None:
        match pattern:
            case tree.NamePattern(name=name):
                self.bind(name, hinted(value, name.text))
            case tree.WildcardPattern():
                return
            case tree.TuplePattern(items=items):
                assert isinstance(value, tuple)
                for item, part in zip(items, value, strict=True):
                    self.destructure(item, part)
            case tree.SomePattern(item=item):
                assert isinstance(value, Present)
                self.destructure(item, value.value)
            case tree.NonePattern() | tree.VariantPattern():
                return

    # ------------------------------------------------------------ loops

    def child(self, variable: str | None = None) -> Body:
        return Body(
            self.lowering,
            self.bindings,
            self.owner,
            self.presence,
            parent=self,
            variable=variable,
        )

    def static_for(self, stmt: tree.StaticFor) -> None:
        bounds = self.analysis.ranges.get(stmt)
        if bounds is not None:
            self._loop(stmt, self.dim(bounds[0]), self.dim(bounds[1]), None)
            return
        array = self.expr(stmt.start)
        assert isinstance(array, ArrayRef)
        self._loop(stmt, Dim.of(0), Dim.of(array.length), array)

    def _loop(self, stmt: tree.StaticFor, start: Dim, stop: Dim, array: ArrayRef | None) -> None:
        variable = self._variable(stmt.name.text) if array else stmt.name.text
        body = self.child(variable if array else None)
        counter = body._value_param("i" if array else variable, scalar(I64))
        carried = self.assigned(stmt.body)
        before = {local: self.carry(local) for local in carried}
        for local in carried:
            body.env[local] = body.parameter(local.name, local_type(self, local), before[local])
        if array is not None:
            body.bind(stmt.name, BlockRef(array.bound, variable, (), array.presence))
        else:
            body.bind(stmt.name, counter)
        body.block(stmt.body)
        body.check_same(before, stmt.span)
        scanned = [p for p in body.members if p[0] == variable and array is not None]
        scanned_states = [p for p in body.state_params if p[0] == variable and array is not None]
        outer_states = [p for p in body.written if p not in scanned_states]
        fixed_members = [p for p in body.members if p not in scanned]
        fixed_states = [
            p for p in body.state_params if p not in scanned_states and p not in outer_states
        ]
        values = list(body.values)
        assert values[0] is counter
        params: tuple[Param, ...] = (
            *values,
            *(body.state_params[p] for p in outer_states),
            *(body.members[p] for p in scanned),
            *(body.state_params[p] for p in scanned_states),
            *(p for _, p in body.captures),
            *(body.members[p] for p in fixed_members),
            *(body.state_params[p] for p in fixed_states),
        )
        results: tuple[Node, ...] = (
            *(n for local in carried for n in body.results(body.env[local])),
            *(body.states[p] for p in outer_states),
            *(body.states[p] for p in scanned_states),
        )
        function = self.closed("for", params, results, (*outer_states, *scanned_states), stmt.span)
        node = self.build.for_(
            function,
            variable,
            start,
            stop,
            (
                *(n for local in carried for n in flatten(before[local])),
                *(self.whole(*p) for p in outer_states),
            ),
            (
                *(self.scanned(array, path) for _, path in scanned),
                *(self.scanned(array, path) for _, path in scanned_states),
            ),
            (
                *(outer for outer, _ in body.captures),
                *(self.whole(*p) for p in fixed_members),
                *(self.whole(*p) for p in fixed_states),
            ),
            span=stmt.span,
        )
        outs = iter(self.build.results(node))
        self.take(carried, before, outs)
        for place in outer_states:
            self.put(place, next(outs))
        for _, path in scanned_states:
            assert array is not None
            self.put((array.base, joined((*array.parts, "*", path))), next(outs))

    def _variable(self, name: str) -> str:
        """A base no enclosing loop uses."""
        taken: set[str] = set()
        body: Body | None = self
        while body is not None:
            if body.variable is not None:
                taken.add(body.variable)
            body = body.parent
        count, fresh = 2, name
        while fresh in taken or fresh == "self":
            fresh = f"{name}_{count}"
            count += 1
        return fresh

    def scanned(self, array: ArrayRef | None, path: str) -> Node:
        assert array is not None
        return self.read(array.base, (*array.parts, "*", *path.split(".")))

    def while_loop(self, stmt: tree.While) -> None:
        carried = self.assigned(stmt.body)
        before = {local: self.carry(local) for local in carried}
        body, test = self.child(), self.child()
        for inner in (body, test):
            for local in carried:
                inner.env[local] = inner.parameter(
                    local.name, local_type(self, local), before[local]
                )
        body.block(stmt.body)
        body.check_same(before, stmt.span)
        condition = test.expr(stmt.condition)
        assert isinstance(condition, Node)
        written = list(body.written)
        places = self.union(body, test)
        inputs, body_params, test_params = self.join(body, test, written, places)
        body_function = self.closed(
            "while",
            body_params,
            (
                *(n for local in carried for n in body.results(body.env[local])),
                *(body.states[p] for p in written),
            ),
            tuple(written),
            stmt.span,
        )
        test_function = self.closed("test", test_params, (condition,), (), stmt.condition.span)
        values = [n for local in carried for n in flatten(before[local])]
        node = self.build.while_(
            test_function,
            body_function,
            (*values, *inputs),
            len(values) + len(written),
            span=stmt.span,
        )
        outs = iter(self.build.results(node))
        self.take(carried, before, outs)
        for place in written:
            self.put(place, next(outs))

    def assigned(self, body: Iterable[tree.Stmt]) -> list[Local]:
        """The locals from outside that the statements assign, in order."""
        found: dict[Local, None] = {}
        own: set[Local] = set()
        stack = list(body)[::-1]
        while stack:
            stmt = stack.pop()
            match stmt:
                case tree.Assign(name=name):
                    symbol = self.analysis.symbols[name]
                    if isinstance(symbol, Local) and symbol not in own:
                        found[symbol] = None
                case tree.Var(name=name):
                    symbol = self.analysis.symbols[name]
                    assert isinstance(symbol, Local)
                    own.add(symbol)
                case tree.StaticFor(body=inner) | tree.While(body=inner):
                    stack.extend(inner[::-1])
                case _:
                    pass
        return list(found)

    def carry(self, local: Local) -> Value:
        value = self.reified(self.lookup(local))
        self.env[local] = value
        return value

    def check_same(self, before: Mapping[Local, Value], span: Span) -> None:
        for local, value in before.items():
            if structure(self.reified(self.env[local])) != structure(value):
                raise limit(
                    span, f"whether `{local.name}` is `none` changes in a loop, at run time"
                )

    def take(
        self, carried: Sequence[Local], before: Mapping[Local, Value], outs: Iterator[Node]
    ) -> None:
        for local in carried:
            self.env[local] = hinted(rebuild(before[local], outs), local.name)

    def closed(
        self,
        name: str,
        params: Sequence[Param],
        results: Sequence[Node],
        writes: Sequence[Place],
        span: Span,
    ) -> Function:
        return Function(
            name=name,
            kind="body",
            op=None,
            block=self.owner.name if self.owner else None,
            dims=(),
            params=tuple(params),
            results=tuple(results),
            writes=tuple(path for _, path in writes),
            facts=(),
            returns=None,
            span=span,
        )

    def union(self, *bodies: Body) -> dict[Place, Param]:
        """Every member and state that one of the bodies uses."""
        out: dict[Place, Param] = {}
        for body in bodies:
            out.update(body.members)
            out.update(body.state_params)
        return out

    def join(
        self, first: Body, second: Body, written: Sequence[Place], places: Mapping[Place, Param]
    ) -> tuple[list[Node], tuple[Param, ...], tuple[Param, ...]]:
        """One input list for two closed bodies: written states, captures, other members."""
        order = [*written, *(p for p in places if p not in written)]
        captures: dict[Node, Param] = {}
        for body in (first, second):
            for outer, param in body.captures:
                captures.setdefault(outer, param)
        inputs = [
            *(self.whole(*p) for p in written),
            *captures,
            *(self.whole(*p) for p in order[len(written) :]),
        ]

        def params(body: Body) -> tuple[Param, ...]:
            own = dict(body.captures)
            return (
                *body.values,
                *(body.same(places[p]) for p in written),
                *(own.get(o) or body.fresh_capture(p) for o, p in captures.items()),
                *(body.same(places[p]) for p in order[len(written) :]),
            )

        return inputs, params(first), params(second)

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

    def node(self, e: tree.Expr) -> Node:
        value = self.reified(self.expr(e))
        assert isinstance(value, Node), (type(value), e.span.text)
        return value

    def expr(self, e: tree.Expr) -> Value:
        """The value of an expression."""
        if isinstance(e, tree.Paren):
            return self.expr(e.value)
        if e in self.analysis.dims:
            dim = self.dim(self.analysis.dims[e])
            type = self.type_of(e)
            if isinstance(type, TensorType):
                return self.build.size(dim, self.dtype_of(e), e.span)
            return DimValue(dim)
        match e:
            case tree.IntLit(value=value):
                return self.build.literal(value, self.dtype_of(e), e.span)
            case tree.FloatLit(value=value):
                return self.build.literal(value, self._float(e), e.span)
            case tree.BoolLit(value=value):
                return self.build.literal(value, BOOL, e.span)
            case tree.NoneLit():
                return ABSENT
            case tree.Some(value=inner):
                return Present(self.expr(inner))
            case tree.Tuple(items=items):
                return tuple(self.expr(i) for i in items)
            case tree.Name() | tree.Field():
                return self.name(e)
            case tree.Unary():
                return self.unary(e)
            case tree.Binary():
                return self.binary(e)
            case tree.Call():
                return self.call(e)
            case tree.Index():
                return self.index(e)
            case tree.Reduction():
                return indexed.reduction(self, e)
            case tree.If():
                return self.if_else(e)
            case tree.Match():
                return self.match(e)
            case _:
                raise InternalError("lower", f"{type(e).__name__} as a value: {e.span.text}")

    def _float(self, e: tree.Syntax) -> DType:
        """A float literal's dtype; one that no context typed is f64."""
        if isinstance(self.analysis.types[e], FloatConst):
            return F64
        return self.dtype_of(e)

    def name(self, e: tree.Name | tree.Field) -> Value:
        symbol = self.analysis.symbols.get(e)
        if symbol is None and isinstance(e, tree.Field):
            symbol = self.analysis.symbols.get(e.name)
        match symbol:
            case Local() as local:
                return self.lookup(local)
            case Variant(index=index):
                return EnumConst(index)
            case ItemName(item=tree.Const() as const):
                return self.constant(const, e)
            case MemberName(member) if isinstance(e, tree.Name):
                assert self.owner is not None
                return self.member(
                    BlockRef(self.owner, "self", (), self.presence), member.name.text
                )
            case _:
                pass
        assert isinstance(e, tree.Field), (e.span.text, symbol)
        base = self.expr(e.base)
        match base:
            case BlockRef():
                return self.member(base, e.name.text)
            case Fields(_, items):
                return dict(items)[e.name.text]
            case _:
                raise InternalError("lower", f"field of {type(base).__name__}: {e.span.text}")

    def constant(self, const: tree.Const, e: tree.Expr) -> Value:
        value = self.analysis.consts[const].value
        if isinstance(value, Variant):
            return EnumConst(value.index)
        type = self.type_of(e)
        if isinstance(value, Dim):
            if isinstance(type, IntConst):
                return DimValue(value)
            return self.build.size(value, self.dtype_of(e), e.span)
        dtype = self._float(e) if isinstance(type, FloatConst) else self.dtype_of(e)
        return self.build.literal(value, dtype, e.span)

    def member(self, ref: BlockRef, name: str) -> Value:
        info = ref.bound.info.members[name]
        if info.optional and name not in ref.presence:
            return ABSENT
        type = substitute(info.type, ref.bound.bindings)
        parts = (*ref.parts, name)
        value: Value
        match type:
            case BlockType():
                value = BlockRef(
                    self.lowering.bound(type, {}), ref.base, parts, below(ref.presence, name)
                )
            case BlockArray(of, length):
                assert length.constant is not None
                value = ArrayRef(
                    self.lowering.bound(of, {}),
                    length.constant,
                    ref.base,
                    parts,
                    below(ref.presence, f"{name}.*"),
                )
            case _:
                value = self.read(ref.base, parts)
        return Present(value) if info.optional else value

    def unary(self, e: tree.Unary) -> Value:
        value = self.expr(e.value)
        if e.op == "+":
            return value
        op: UnaryOp = "neg" if e.op == "-" else "not"
        if isinstance(value, Literal) and op == "neg":
            return self.build.literal(-value.value, value.dtype, e.span)
        return self.elementwise((value,), lambda x: self.build.unary(op, x, e.span))

    def binary(self, e: tree.Binary) -> Value:
        a, b = self.expr(e.left), self.expr(e.right)
        if isinstance(a, EnumConst) and isinstance(b, EnumConst):
            return self.build.literal((a.index == b.index) == (e.op == "=="), BOOL, e.span)
        if e.op in COMPARE:
            compare = COMPARE[e.op]
            return self.elementwise((a, b), lambda x, y: self.build.compare(compare, x, y, e.span))
        op = BINARY[e.op]
        return self.elementwise((a, b), lambda x, y: self.build.binary(op, x, y, e.span))

    def if_else(self, e: tree.If) -> Value:
        condition = self.expr(e.condition)
        if isinstance(condition, Literal):
            return self.expr(e.then if condition.value else e.other)
        if self.frame:
            return self.chosen(condition, self.expr(e.then), self.expr(e.other), e.span)
        assert isinstance(condition, Node)
        return self.branch(
            condition, lambda body: body.expr(e.then), lambda body: body.expr(e.other), e.span
        )

    def chosen(self, condition: Value, then: Value, other: Value, span: Span) -> Value:
        """Inside a frame both sides are evaluated and one is selected, element by element."""
        then, other = self.reified(then), self.reified(other)
        if isinstance(then, tuple) and isinstance(other, tuple):
            return tuple(
                self.chosen(condition, a, b, span) for a, b in zip(then, other, strict=True)
            )
        return self.elementwise(
            (condition, then, other), lambda c, a, b: self.build.select(c, a, b, span)
        )

    def branch(
        self,
        condition: Node,
        then: Callable[[Body], Value],
        other: Callable[[Body], Value],
        span: Span,
    ) -> Value:
        first, second = self.child(), self.child()
        a, b = first.reified(then(first)), second.reified(other(second))
        if structure(a) != structure(b):
            raise limit(span, "whether the value is `none` would be known only at run time")
        written = [*first.written, *(p for p in second.written if p not in first.written)]
        places = self.union(first, second)
        inputs, first_params, second_params = self.join(first, second, written, places)
        results = [
            (*flatten(value), *(body.states.get(p) or body.same(places[p]) for p in written))
            for body, value in ((first, a), (second, b))
        ]
        node = self.build.if_(
            condition,
            self.closed("then", first_params, results[0], written, span),
            self.closed("else", second_params, results[1], written, span),
            inputs,
            span=span,
        )
        outs = iter(self.build.results(node))
        value = rebuild(a, outs)
        for place in written:
            self.put(place, next(outs))
        return value

    def match(self, e: tree.Match) -> Value:
        subject = self.expr(e.subject)
        if isinstance(subject, (Present, Absent, EnumConst)):
            for arm in e.arms:
                if self.matches(arm.pattern, subject):
                    if not isinstance(subject, EnumConst):
                        self.destructure(arm.pattern, subject)
                    return self.expr(arm.value)
            raise InternalError("lower", f"no arm matches: {e.span.text}")
        assert isinstance(subject, (Node, Aligned))
        return self.match_enum(subject, list(e.arms), e.span)

    def matches(self, pattern: tree.Pattern, value: Value) -> bool:
        match pattern, value:
            case tree.WildcardPattern(), _:
                return True
            case tree.SomePattern(), _:
                return isinstance(value, Present)
            case tree.NonePattern(), _:
                return isinstance(value, Absent)
            case tree.NamePattern() | tree.VariantPattern(), EnumConst(index):
                variant = self.variant(pattern)
                return variant is None or variant == index
            case _:
                return True

    def variant(self, pattern: tree.Pattern) -> int | None:
        """The position of the variant a pattern names; None if it matches every one."""
        if isinstance(pattern, (tree.NamePattern, tree.VariantPattern)):
            for site in (pattern, pattern.name):
                symbol = self.analysis.symbols.get(site)
                if isinstance(symbol, Variant):
                    return symbol.index
        return None

    def match_enum(self, subject: Value, arms: list[tree.Arm], span: Span) -> Value:
        """A runtime enum: one comparison per arm but the last."""
        arm, rest = arms[0], arms[1:]
        index = self.variant(arm.pattern)
        if index is None or not rest:
            return self.expr(arm.value)
        position = self.build.literal(index, I32)
        condition = self.elementwise(
            (subject, position), lambda x, y: self.build.compare("eq", x, y, span)
        )
        if self.frame:
            return self.chosen(
                condition, self.expr(arm.value), self.match_enum(subject, rest, span), span
            )
        assert isinstance(condition, Node) and isinstance(subject, Node)
        outer = subject
        return self.branch(
            condition,
            lambda body: body.expr(arm.value),
            lambda body: body.match_enum(body.capture(outer, "variant"), rest, span),
            span,
        )

    # ------------------------------------------------------------ subscripts

    def index(self, e: tree.Index) -> Value:
        match self.analysis.subscripts[e]:
            case ArrayElement(index):
                array = self.expr(e.base)
                position = self.dim(index).constant
                assert isinstance(array, ArrayRef) and position is not None
                return BlockRef(array.bound, array.base, (*array.parts, position), array.presence)
            case Access() as access:
                return indexed.access(self, e, access)
            case Subscript(axes=axes):
                return self.subscript(e, axes)

    def subscript(
        self,
        e: tree.Index,
        axes: tuple[AxisWhole | AxisSlice | AxisAt | AxisGather, ...],
    ) -> Value:
        x = self.node(e.base)
        spread = list(self.spread(e.base, axes))
        shape = self.shape(x.type)  # type: ignore[arg-type]
        ranges: list[tuple[Dim, Dim, int] | None] = []
        dropped: list[int] = []
        for i, axis in enumerate(spread):
            match axis:
                case AxisSlice(start, stop, step):
                    ranges.append((self.dim(start), self.dim(stop), step))
                case AxisAt(index):
                    at = self.dim(index)
                    ranges.append((at, at + 1, 1))
                    dropped.append(i)
                case _:
                    ranges.append(None)
        x = self.build.slice(x, ranges, e.span)
        gathers = [
            self.node(axis.index) if isinstance(axis, AxisGather) else None for axis in spread
        ]
        if dropped:
            shape = self.shape(x.type)  # type: ignore[arg-type]
            x = self.build.reshape(x, [d for i, d in enumerate(shape) if i not in dropped], e.span)
            gathers = [g for i, g in enumerate(gathers) if i not in dropped]
        return self.build.gather(x, gathers, span=e.span)

    def spread(self, base: tree.Expr, axes: Sequence[_T]) -> Iterator[_T]:
        """One entry per real axis: what stands for a pack is repeated for each of its axes."""
        declared = self.analysis.types[base]
        assert isinstance(declared, TensorType)
        for axis, entry in zip(declared.shape, axes, strict=True):
            if isinstance(axis, Dim):
                yield entry
            else:
                value = self.bindings[axis.name]
                assert isinstance(value, tuple)
                yield from (entry for _ in value)

    # ------------------------------------------------------------ calls

    def call(self, e: tree.Call) -> Value:
        match self.analysis.calls[e]:
            case PreludeCall() as meaning:
                return self.prelude(e, meaning)
            case FnCall() as meaning:
                return self.fn_call(e, meaning)
            case StructCall(struct, args):
                type = substitute(struct, self.bindings)
                assert isinstance(type, StructType) and isinstance(type.decl, tree.Struct)
                names = self.analysis.structs[type.decl].fields
                return Fields(
                    type, tuple((n, self.expr(a)) for n, a in zip(names, args, strict=True))
                )

    def prelude(self, e: tree.Call, call: PreludeCall) -> Value:
        name, span = call.name, e.span
        args = [self.expr(a) for a in call.args if not isinstance(a, tree.ShapeLit)]
        result = substitute(call.result, self.bindings)
        if name in UNARY:
            op = cast(UnaryOp, name)
            return self.elementwise(args, lambda x: self.build.unary(op, x, span))
        if name in PRELUDE_BINARY:
            binary = PRELUDE_BINARY[name]
            return self.elementwise(args, lambda a, b: self.build.binary(binary, a, b, span))
        if name == "select":
            return self.elementwise(args, lambda c, a, b: self.build.select(c, a, b, span))
        if name == "cast":
            assert isinstance(result, TensorType) and isinstance(result.dtype, DType)
            dtype = result.dtype
            return self.elementwise(args[:1], lambda x: self.build.cast(x, dtype, span))
        shape = self.shape(result)
        nodes = [v for v in (self.reified(a) for a in args) if isinstance(v, Node)]
        match name:
            case "reshape":
                return self.build.reshape(nodes[0], shape, span)
            case "permute":
                return self.build.permute(nodes[0], call.order, span)
            case "broadcast_to":
                return self.build.broadcast(nodes[0], shape, span)
            case "concat":
                return self.build.concat(nodes, call.axis, span)
            case "iota":
                assert isinstance(result, TensorType) and isinstance(result.dtype, DType)
                return self.build.iota(shape[0], result.dtype, span)
            case "fill":
                return self.build.fill(nodes[-1], shape, span)
            case _:
                raise InternalError("lower", f"prelude function {name}")

    def fn_call(self, e: tree.Call, call: FnCall) -> Value:
        ref = self.receiver(call)
        own = {
            g.name.text: substitute_generic(call.bindings[g.name.text], self.bindings)
            for g in call.fn.generics
        }
        args = self.arguments(call, ref, own)
        if self.frame and any(_over_frame(a) for a in args):
            return self.inlined(call, ref, own, args)
        params = self.analysis.signatures[call.fn].params
        args = tuple(
            _settled(self, a, substitute(t, own)) for a, (_, t) in zip(args, params, strict=True)
        )
        lowered = self.lowering.function(
            call.fn,
            call.module,
            ref.bound if ref else None,
            ref.presence if ref else frozenset(),
            own,
            args,
        )
        function = lowered.function
        inputs = [n for a in args for n in flatten(a)]
        for param in function.params:
            if param.kind != "value":
                assert ref is not None
                inputs.append(self.read(ref.base, (*ref.parts, *param.name.split("."))))
        dims = [d for g in call.fn.generics for d in _dims(own[g.name.text])]
        node = self.build.call(function, inputs, dims, e.span)
        outs = iter(self.build.results(node))
        value = rebuild(lowered.template, outs)
        for path in function.writes:
            assert ref is not None
            self.write(ref.base, (*ref.parts, *path.split(".")), next(outs))
        return value

    def receiver(self, call: FnCall) -> BlockRef | None:
        if call.owner is None:
            return None
        if call.receiver is None:
            assert self.owner is not None
            return BlockRef(self.owner, "self", (), self.presence)
        ref = self.expr(call.receiver)
        assert isinstance(ref, BlockRef)
        return ref

    def arguments(
        self, call: FnCall, ref: BlockRef | None, own: Mapping[str, GenericValue]
    ) -> tuple[Value, ...]:
        """In the callee's order; a default is an expression of the callee's generics."""
        out: list[Value] = []
        for param, arg in zip(call.fn.params, call.args, strict=True):
            if arg is not None:
                out.append(self.expr(arg))
                continue
            assert param.default is not None
            with self.scoped({**(ref.bound.bindings if ref else {}), **own}):
                out.append(self.expr(param.default))
        return tuple(out)

    @contextmanager
    def scoped(self, bindings: Mapping[str, GenericValue]) -> Iterator[None]:
        """Expressions of another function, whose generics these bindings give."""
        saved, self.bindings = self.bindings, bindings
        try:
            yield
        finally:
            self.bindings = saved

    def inlined(
        self,
        call: FnCall,
        ref: BlockRef | None,
        own: Mapping[str, GenericValue],
        args: tuple[Value, ...],
    ) -> Value:
        """A call on elements: the body, once, over the frame."""
        if ref is not None and self.analysis.effects[call.fn].writes:
            raise limit(call.fn.name.span, "a method that writes state, called for every element")
        if ref is not None and (ref.base != "self" or ref.parts):
            raise limit(call.fn.name.span, "a sub's method called for every element")
        with self.scoped({**(ref.bound.bindings if ref else {}), **own}):
            for param, value in zip(call.fn.params, args, strict=True):
                self.bind(param.name, value)
            return self.block(call.fn.body)


def _over_frame(value: Value) -> bool:
    match value:
        case Aligned():
            return True
        case tuple():
            return any(_over_frame(v) for v in value)
        case Present(inner):
            return _over_frame(inner)
        case Fields(_, items):
            return any(_over_frame(v) for _, v in items)
        case _:
            return False


def _settled(body: Body, value: Value, type: Type) -> Value:
    """A compile-time integer passed as an argument takes the parameter's dtype."""
    if isinstance(value, DimValue):
        dtype = type.dtype if isinstance(type, TensorType) else I64
        assert isinstance(dtype, DType)
        return body.build.size(value.dim, dtype)
    return value


def _dims(value: GenericValue) -> tuple[Dim, ...]:
    if isinstance(value, Dim):
        return (value,)
    if isinstance(value, tuple):
        return tuple(a for a in value if isinstance(a, Dim))
    return ()


def joined(parts: Sequence[str | int]) -> str:
    return ".".join("*" if isinstance(p, int) else p for p in parts)


def local_type(body: Body, local: Local) -> Type:
    type = substitute(local.type, body.bindings)
    return scalar(I64) if isinstance(type, IntConst) else type


def hinted(value: Value, name: str) -> Value:
    """The value, its nodes named after the variable that holds them if they have no name yet."""
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
