"""Statements and expressions, lowered into a Body.

Inside index notation a scalar expression is worth an `Aligned` node over the frame's axes; the
same code lowers it, since every elementwise operation goes through `Body.elementwise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar, cast

from linnet.check.analysis import (
    Access,
    ArrayElement,
    AxisAt,
    AxisGather,
    AxisSlice,
    AxisWhole,
    FnCall,
    ItemName,
    Local,
    MemberName,
    PreludeCall,
    StructCall,
    Subscript,
    Variant,
)
from linnet.core import control, indexed
from linnet.core.body import Body, hinted, hinted_node
from linnet.core.ir import (
    BinaryOp,
    CompareOp,
    Literal,
    Node,
    UnaryOp,
)
from linnet.core.simplify import simpler
from linnet.core.values import (
    ABSENT,
    Absent,
    Aligned,
    ArrayRef,
    BlockRef,
    DimValue,
    EnumConst,
    Fields,
    Present,
    Value,
    below,
    flatten,
    rebuild,
)
from linnet.diagnostics import InternalError
from linnet.dims import Dim
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
    FloatConst,
    GenericValue,
    IntConst,
    StructType,
    TensorType,
    Type,
    substitute,
    substitute_generic,
)

T = TypeVar("T")

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


def run(body: Body, stmts: Sequence[tree.Stmt]) -> Value:
    """Runs the statements; the value of the `return` or `yield` that ends them."""
    for stmt in stmts:
        if isinstance(stmt, (tree.Return, tree.Yield)):
            return expr(body, stmt.value) if stmt.value is not None else ()
        statement(body, stmt)
    return ()


def statement(body: Body, stmt: tree.Stmt) -> None:
    match stmt:
        case tree.Let(pattern=pattern, value=value):
            destructure(body, pattern, expr(body, value))
        case tree.IndexLet(name=name):
            body.bind(name, hinted(indexed.index_let(body, stmt), name.text))
        case tree.Var(name=name, value=value):
            body.bind(name, hinted(expr(body, value), name.text))
        case tree.Assign(name=name, value=value):
            assign(body, name, expr(body, value))
        case tree.For():
            control.for_loop(body, stmt)
        case tree.While():
            control.while_loop(body, stmt)
        case tree.Return() | tree.Yield():
            raise InternalError("lower", "a return inside a loop, or a yield outside")


def assign(body: Body, name: tree.Ident, value: Value) -> None:
    match body.analysis.symbols[name]:
        case Local() as local:
            body.env[local] = hinted(value, name.text)
        case MemberName(member):
            assert isinstance(value, Node)
            body.write("self", (member.name.text,), hinted_node(value, name.text))
        case other:
            raise InternalError("lower", f"assignment to {other}")


def destructure(body: Body, pattern: tree.Pattern, value: Value) -> None:
    match pattern:
        case tree.NamePattern(name=name):
            if variant(body, pattern) is None:
                body.bind(name, hinted(value, name.text))
        case tree.WildcardPattern():
            return
        case tree.TuplePattern(items=items):
            assert isinstance(value, tuple)
            for item, part in zip(items, value, strict=True):
                destructure(body, item, part)
        case tree.SomePattern(item=item):
            assert isinstance(value, Present)
            destructure(body, item, value.value)
        case tree.NonePattern() | tree.VariantPattern():
            return


def node_of(body: Body, e: tree.Expr) -> Node:
    value = body.reified(expr(body, e))
    assert isinstance(value, Node), (type(value), e.span.text)
    return value


def expr(body: Body, e: tree.Expr) -> Value:
    """The value of an expression."""
    if isinstance(e, tree.Paren):
        return expr(body, e.value)
    if e in body.analysis.dims:
        dim = body.dim(body.analysis.dims[e])
        settled = body.type_of(e)
        if isinstance(settled, TensorType):
            return body.build.size(dim, body.dtype_of(e), e.span)
        return DimValue(dim)
    match e:
        case tree.IntLit(value=value):
            return body.build.literal(value, body.dtype_of(e), e.span)
        case tree.FloatLit(value=value):
            return body.build.literal(value, float_dtype(body, e), e.span)
        case tree.BoolLit(value=value):
            return body.build.literal(value, BOOL, e.span)
        case tree.NoneLit():
            return ABSENT
        case tree.Some(value=inner):
            return Present(expr(body, inner))
        case tree.Tuple(items=items):
            return tuple(expr(body, i) for i in items)
        case tree.Name() | tree.Field():
            return name_value(body, e)
        case tree.Unary():
            return unary(body, e)
        case tree.Binary():
            return binary(body, e)
        case tree.Call():
            return call(body, e)
        case tree.Index():
            return index(body, e)
        case tree.Reduction():
            return indexed.reduction(body, e)
        case tree.If():
            return if_else(body, e)
        case tree.For():
            return control.for_loop(body, e)
        case tree.Match():
            return match_(body, e)
        case _:
            raise InternalError("lower", f"{e.__class__.__name__} as a value: {e.span.text}")


def float_dtype(body: Body, e: tree.Syntax) -> DType:
    """A float literal's dtype; one that no context typed is f64."""
    if isinstance(body.analysis.types[e], FloatConst):
        return F64
    return body.dtype_of(e)


def name_value(body: Body, e: tree.Name | tree.Field) -> Value:
    symbol = body.analysis.symbols.get(e)
    if symbol is None and isinstance(e, tree.Field):
        symbol = body.analysis.symbols.get(e.name)
    match symbol:
        case Local() as local:
            return body.lookup(local)
        case Variant(index=index):
            return EnumConst(index)
        case ItemName(item=tree.Const() as const):
            return constant(body, const, e)
        case MemberName(member) if isinstance(e, tree.Name):
            assert body.owner is not None
            return member_value(
                body, BlockRef(body.owner, "self", (), body.presence), member.name.text
            )
        case _:
            pass
    assert isinstance(e, tree.Field), (e.span.text, symbol)
    base = expr(body, e.base)
    match base:
        case BlockRef():
            return member_value(body, base, e.name.text)
        case Fields(_, items):
            return dict(items)[e.name.text]
        case _:
            raise InternalError("lower", f"field of {type(base).__name__}: {e.span.text}")


def constant(body: Body, const: tree.Const, e: tree.Expr) -> Value:
    value = body.analysis.consts[const].value
    if isinstance(value, Variant):
        return EnumConst(value.index)
    type = body.type_of(e)
    if isinstance(value, Dim):
        if isinstance(type, IntConst):
            return DimValue(value)
        return body.build.size(value, body.dtype_of(e), e.span)
    dtype = float_dtype(body, e) if isinstance(type, FloatConst) else body.dtype_of(e)
    return body.build.literal(value, dtype, e.span)


def member_value(body: Body, ref: BlockRef, name: str) -> Value:
    info = ref.bound.info.members[name]
    if info.optional and name not in ref.presence:
        return ABSENT
    type = substitute(info.type, ref.bound.bindings)
    parts = (*ref.parts, name)
    value: Value
    match type:
        case BlockType():
            value = BlockRef(
                body.lowering.bound(type, {}), ref.base, parts, below(ref.presence, name)
            )
        case BlockArray(of, length):
            assert length.constant is not None
            value = ArrayRef(
                body.lowering.bound(of, {}),
                length.constant,
                ref.base,
                parts,
                below(ref.presence, f"{name}.*"),
            )
        case _:
            value = body.read(ref.base, parts)
    return Present(value) if info.optional else value


def unary(body: Body, e: tree.Unary) -> Value:
    value = expr(body, e.value)
    if e.op == "+":
        return value
    op: UnaryOp = "neg" if e.op == "-" else "not"
    if isinstance(value, Literal) and op == "neg":
        return body.build.literal(-value.value, value.dtype, e.span)
    return body.elementwise((value,), lambda x: body.build.unary(op, x, e.span))


def binary(body: Body, e: tree.Binary) -> Value:
    a, b = expr(body, e.left), expr(body, e.right)
    if isinstance(a, EnumConst) and isinstance(b, EnumConst):
        return body.build.literal((a.index == b.index) == (e.op == "=="), BOOL, e.span)
    if e.op in COMPARE:
        compare = COMPARE[e.op]
        return body.elementwise((a, b), lambda x, y: body.build.compare(compare, x, y, e.span))
    op = BINARY[e.op]
    return body.elementwise((a, b), lambda x, y: body.build.binary(op, x, y, e.span))


def if_else(body: Body, e: tree.If) -> Value:
    condition = expr(body, e.condition)
    if isinstance(condition, Node):
        # A constant that a card gave: only the branch that it chooses is lowered.
        condition = simpler(condition, body.build) or condition
    if isinstance(condition, Literal):
        return expr(body, e.then if condition.value else e.other)
    if body.frame:
        return chosen(body, condition, expr(body, e.then), expr(body, e.other), e.span)
    assert isinstance(condition, Node)
    return control.branch(
        body,
        condition,
        lambda inner: expr(inner, e.then),
        lambda inner: expr(inner, e.other),
        e.span,
    )


def chosen(body: Body, condition: Value, then: Value, other: Value, span: Span) -> Value:
    """Inside a frame both sides are evaluated and one is selected, element by element."""
    then, other = body.reified(then), body.reified(other)
    if isinstance(then, tuple) and isinstance(other, tuple):
        return tuple(chosen(body, condition, a, b, span) for a, b in zip(then, other, strict=True))
    return body.elementwise(
        (condition, then, other), lambda c, a, b: body.build.select(c, a, b, span)
    )


def match_(body: Body, e: tree.Match) -> Value:
    """The first arm whose pattern fits; what is only known at run time is compared, arm by arm."""
    return match_arms(body, expr(body, e.subject), list(e.arms), e.span)


def match_arms(body: Body, subject: Value, arms: Sequence[tree.Arm], span: Span) -> Value:
    arm, rest = arms[0], arms[1:]
    # The checker proved that the arms leave nothing out, so the last one fits.
    fits = condition(body, arm.pattern, subject) if rest else True
    if fits is False:
        return match_arms(body, subject, rest, span)
    if fits is True:
        return taken(body, subject, arm)
    if body.frame:
        other = match_arms(body, subject, rest, span)
        return chosen(body, fits, taken(body, subject, arm), other, span)
    assert isinstance(fits, Node)

    def inside(inner: Body) -> Value:
        nodes = [inner.capture(node, "matched") for node in flatten(subject)]
        return rebuild(subject, iter(nodes))

    return control.branch(
        body,
        fits,
        lambda inner: taken(inner, inside(inner), arm),
        lambda inner: match_arms(inner, inside(inner), rest, span),
        span,
    )


def taken(body: Body, subject: Value, arm: tree.Arm) -> Value:
    destructure(body, arm.pattern, subject)
    return expr(body, arm.value)


def condition(body: Body, pattern: tree.Pattern, value: Value) -> bool | Value:
    """Whether a pattern fits a value: known now, or a bool at run time."""
    match pattern, value:
        case tree.SomePattern(item=item), Present(inner):
            return condition(body, item, inner)
        case tree.SomePattern(), _:
            return False
        case tree.NonePattern(), _:
            return isinstance(value, Absent)
        case tree.TuplePattern(items=items), tuple():
            return every(
                body, [condition(body, i, v) for i, v in zip(items, value, strict=True)], pattern
            )
        case tree.NamePattern() | tree.VariantPattern(), _:
            index = variant(body, pattern)
            if index is None:
                return True
            if isinstance(value, EnumConst):
                return value.index == index
            position = body.build.literal(index, I32)
            return body.elementwise(
                (value, position), lambda x, y: body.build.compare("eq", x, y, pattern.span)
            )
        case _:
            return True


def every(body: Body, parts: Sequence[bool | Value], pattern: tree.Pattern) -> bool | Value:
    """All of the conditions."""
    if any(part is False for part in parts):
        return False
    open_ = [part for part in parts if not isinstance(part, bool)]
    if not open_:
        return True
    whole = open_[0]
    for part in open_[1:]:
        whole = body.elementwise(
            (whole, part), lambda x, y: body.build.binary("and", x, y, pattern.span)
        )
    return whole


def variant(body: Body, pattern: tree.NamePattern | tree.VariantPattern) -> int | None:
    """The position of the variant a pattern names; None if it matches every one."""
    for site in (pattern, pattern.name):
        symbol = body.analysis.symbols.get(site)
        if isinstance(symbol, Variant):
            return symbol.index
    return None


def index(body: Body, e: tree.Index) -> Value:
    match body.analysis.subscripts[e]:
        case ArrayElement(index):
            array = expr(body, e.base)
            position = body.dim(index).constant
            assert isinstance(array, ArrayRef) and position is not None
            return BlockRef(array.bound, array.base, (*array.parts, position), array.presence)
        case Access() as access:
            return indexed.access(body, e, access)
        case Subscript(axes=axes):
            return subscript(body, e, axes)


def subscript(
    body: Body,
    e: tree.Index,
    axes: tuple[AxisWhole | AxisSlice | AxisAt | AxisGather, ...],
) -> Value:
    x = node_of(body, e.base)
    entries = list(spread(body, e.base, axes))
    shape = body.shape(x.type)  # type: ignore[arg-type]
    ranges: list[tuple[Dim, Dim, int] | None] = []
    dropped: list[int] = []
    for i, axis in enumerate(entries):
        match axis:
            case AxisSlice(start, stop, step):
                ranges.append((body.dim(start), body.dim(stop), step))
            case AxisAt(index):
                at = body.dim(index)
                ranges.append((at, at + 1, 1))
                dropped.append(i)
            case _:
                ranges.append(None)
    x = body.build.slice(x, ranges, e.span)
    gathers = [
        node_of(body, axis.index) if isinstance(axis, AxisGather) else None for axis in entries
    ]
    if dropped:
        shape = body.shape(x.type)  # type: ignore[arg-type]
        x = body.build.reshape(x, [d for i, d in enumerate(shape) if i not in dropped], e.span)
        gathers = [g for i, g in enumerate(gathers) if i not in dropped]
    return body.build.gather(x, gathers, span=e.span)


def spread(body: Body, base: tree.Expr, axes: Sequence[T]) -> Iterator[T]:
    """One entry per real axis: what stands for a pack is repeated for each of its axes."""
    declared = body.analysis.types[base]
    assert isinstance(declared, TensorType)
    for axis, entry in zip(declared.shape, axes, strict=True):
        if isinstance(axis, Dim):
            yield entry
        else:
            value = body.bindings[axis.name]
            assert isinstance(value, tuple)
            yield from (entry for _ in value)


def call(body: Body, e: tree.Call) -> Value:
    match body.analysis.calls[e]:
        case PreludeCall() as meaning:
            return prelude(body, e, meaning)
        case FnCall() as meaning:
            return fn_call(body, e, meaning)
        case StructCall(struct, args):
            type = substitute(struct, body.bindings)
            assert isinstance(type, StructType) and isinstance(type.decl, tree.Struct)
            names = body.analysis.structs[type.decl].fields
            # Fields are in declared order, and run in the order in which they are written.
            run_order = sorted((a for a in args if a is not None), key=lambda a: a.span.start)
            values: dict[tree.Expr | None, Value] = {None: ABSENT}
            values.update((a, expr(body, a)) for a in run_order)
            return Fields(type, tuple((n, values[a]) for n, a in zip(names, args, strict=True)))


def prelude(body: Body, e: tree.Call, call: PreludeCall) -> Value:
    name, span = call.name, e.span
    args = [expr(body, a) for a in call.args if not isinstance(a, tree.ShapeLit)]
    result = substitute(call.result, body.bindings)
    if name in UNARY:
        op = cast(UnaryOp, name)
        return body.elementwise(args, lambda x: body.build.unary(op, x, span))
    if name in PRELUDE_BINARY:
        binary = PRELUDE_BINARY[name]
        return body.elementwise(args, lambda a, b: body.build.binary(binary, a, b, span))
    if name == "select":
        return body.elementwise(args, lambda c, a, b: body.build.select(c, a, b, span))
    if name == "cast":
        assert isinstance(result, TensorType) and isinstance(result.dtype, DType)
        dtype = result.dtype
        return body.elementwise(args[:1], lambda x: body.build.cast(x, dtype, span))
    shape = body.shape(result)
    nodes = [v for v in (body.reified(a) for a in args) if isinstance(v, Node)]
    match name:
        case "reshape":
            return body.build.reshape(nodes[0], shape, span)
        case "permute":
            return body.build.permute(nodes[0], call.order, span)
        case "broadcast_to":
            return body.build.broadcast(nodes[0], shape, span)
        case "concat":
            return body.build.concat(nodes, call.axis, span)
        case "iota":
            assert isinstance(result, TensorType) and isinstance(result.dtype, DType)
            return body.build.iota(shape[0], result.dtype, span)
        case "fill":
            return body.build.fill(nodes[-1], shape, span)
        case _:
            raise InternalError("lower", f"prelude function {name}")


def fn_call(body: Body, e: tree.Call, call: FnCall) -> Value:
    ref = receiver(body, call)
    own = {
        g.name.text: substitute_generic(call.bindings[g.name.text], body.bindings)
        for g in call.fn.generics
    }
    args = arguments(body, call, ref, own)
    if call.fn.required:
        assert ref is not None
        call = _implemented(body, call, ref)
        own = dict(zip((g.name.text for g in call.fn.generics), own.values(), strict=True))
    if body.frame and any(_over_frame(a) for a in args):
        if elementwise(body, call, ref, own):
            return inlined(body, call, ref, own, args)
        return control.for_elements(body, call, ref, own, args, e.span)
    return called(body, call, ref, own, args, e.span)


def _implemented(body: Body, call: FnCall, ref: BlockRef) -> FnCall:
    """The call of the block's own method instead of the one that a trait requires."""
    fn = ref.bound.info.methods[call.fn.name.text]
    return replace(call, fn=fn, module=body.analysis.signatures[fn].module)


def _generics(body: Body, fn: tree.Fn, ref: BlockRef | None) -> Mapping[str, GenericValue]:
    """The generics around a function, as this block has them."""
    return ref.bound.generics(body.analysis.signatures[fn].block) if ref else {}


def called(
    body: Body,
    call: FnCall,
    ref: BlockRef | None,
    own: Mapping[str, GenericValue],
    args: Sequence[Value],
    span: Span,
) -> Value:
    """A call on whole values; the state that it writes is the caller's from here on."""
    params = body.analysis.signatures[call.fn].params
    bindings = {**_generics(body, call.fn, ref), **own}
    args = tuple(
        _settled(body, a, substitute(t, bindings)) for a, (_, t) in zip(args, params, strict=True)
    )
    lowered = body.lowering.function(
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
            inputs.append(body.read(ref.base, (*ref.parts, *param.name.split("."))))
    dims = [d for g in call.fn.generics for d in _dims(own[g.name.text])]
    node = body.build.call(function, inputs, dims, span)
    outs = iter(body.build.results(node))
    value = rebuild(lowered.template, outs)
    for path in function.writes:
        assert ref is not None
        body.write(ref.base, (*ref.parts, *path.split(".")), next(outs))
    return value


def receiver(body: Body, call: FnCall) -> BlockRef | None:
    if call.owner is None:
        return None
    if call.receiver is None:
        assert body.owner is not None
        return BlockRef(body.owner, "self", (), body.presence)
    ref = expr(body, call.receiver)
    assert isinstance(ref, BlockRef)
    return ref


def arguments(
    body: Body, call: FnCall, ref: BlockRef | None, own: Mapping[str, GenericValue]
) -> tuple[Value, ...]:
    """In the callee's order, run in the order in which they are written; a default is an
    expression of the callee's generics."""
    written = sorted((a for a in call.args if a is not None), key=lambda a: a.span.start)
    values = {a: expr(body, a) for a in written}
    out: list[Value] = []
    for param, arg in zip(call.fn.params, call.args, strict=True):
        if arg is not None:
            out.append(values[arg])
            continue
        assert param.default is not None
        with scoped(body, {**_generics(body, call.fn, ref), **own}):
            out.append(expr(body, param.default))
    return tuple(out)


@contextmanager
def scoped(body: Body, bindings: Mapping[str, GenericValue]) -> Iterator[None]:
    """Expressions of another function, whose generics these bindings give."""
    saved, body.bindings = body.bindings, bindings
    try:
        yield
    finally:
        body.bindings = saved


def inlined(
    body: Body,
    call: FnCall,
    ref: BlockRef | None,
    own: Mapping[str, GenericValue],
    args: tuple[Value, ...],
) -> Value:
    """A call on elements: the body, once, over the frame."""
    with scoped(body, {**_generics(body, call.fn, ref), **own}):
        for param, value in zip(call.fn.params, args, strict=True):
            body.bind(param.name, value)
        return run(body, call.fn.body)


def elementwise(
    body: Body, call: FnCall, ref: BlockRef | None, own: Mapping[str, GenericValue]
) -> bool:
    """Whether a body can run over a frame as it stands: without loops, and on scalars alone."""
    if ref is not None and (ref.base != "self" or ref.parts):
        return False
    bindings = {**_generics(body, call.fn, ref), **own}
    for stmt in call.fn.body:
        for node in tree.walk(stmt):
            type: Type | None = None
            match node:
                case tree.For() | tree.While():
                    return False
                case tree.IndexLet(name=name):
                    symbol = body.analysis.symbols[name]
                    type = symbol.type if isinstance(symbol, Local) else None
                case tree.Name() | tree.Field() | tree.Paren():
                    pass
                case _:
                    type = body.analysis.types.get(node)
            if isinstance(type, TensorType) and type.shape:
                made = substitute(type, bindings)
                if isinstance(made, TensorType) and made.shape:
                    return False
    return True


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
