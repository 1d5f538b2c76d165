"""Index notation -> aligned axes, gathers and reductions.

A frame is an ordered list of axes. A scalar expression in it becomes a tensor over those frame
axes that it depends on; operands meet at the union of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from linnet.check.analysis import Access, IndexVar
from linnet.core import expressions
from linnet.core.body import Body
from linnet.core.build import Builder
from linnet.core.ir import Node, ReduceOp
from linnet.core.values import Aligned, Axis, Value
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import BF16, F16, F32, I64, DType, TensorType, substitute_shape


def index_let(body: Body, stmt: tree.IndexLet) -> Value:
    """The tensor defined by its elements, axes in the order of its outputs.

    In a function inlined over a frame the outputs are empty packs, and the value stays aligned.
    """
    inside = bool(body.frame)
    with framed(body, stmt) as axes:
        value = expressions.expr(body, stmt.value)
        return value if inside and not axes else body.over(value, axes)


def reduction(body: Body, e: tree.Reduction) -> Value:
    """`sum[k] ...` over the indices it lists, inside whatever frame it stands in."""
    dtype = body.dtype_of(e)
    inside = bool(body.frame)
    with framed(body, e) as reduced:
        value = _terms(body, e, dtype)
        used = {a for v in value for a in (v.axes if isinstance(v, Aligned) else ())}
        axes = tuple(a for a in body.frame if a in used or a in reduced)
        nodes = [body.over(v, axes) for v in value]
    node = nodes[0]
    if len(nodes) == 2:
        node = body.build.binary("mul", nodes[0], nodes[1], e.body.span)
    op: ReduceOp = e.kind
    node = body.build.reduce(op, node, [i for i, a in enumerate(axes) if a in reduced], e.span)
    node = body.build.cast(node, dtype, e.span)
    if not inside:
        return node
    return Aligned(node, tuple(a for a in axes if a not in reduced))


def _terms(body: Body, e: tree.Reduction, dtype: DType) -> list[Value]:
    """What is accumulated: one value, or the two factors of a product that is not rounded first.

    Sums and products of f16 and bf16 are kept in f32 unless the reduction names a dtype.
    """
    inner = e.body
    while isinstance(inner, tree.Paren):
        inner = inner.value
    if e.dtype is not None or e.kind not in ("sum", "prod") or dtype not in (F16, BF16):
        return [expressions.expr(body, inner)]
    if e.kind == "sum" and isinstance(inner, tree.Binary) and inner.op == "*":
        return [_raised(body, inner.left), _raised(body, inner.right)]
    return [_raised(body, inner)]


def _raised(body: Body, e: tree.Expr) -> Value:
    return body.elementwise((expressions.expr(body, e),), lambda x: body.build.cast(x, F32, e.span))


@contextmanager
def framed(body: Body, e: tree.IndexLet | tree.Reduction) -> Iterator[tuple[Axis, ...]]:
    """Adds the indices of a definition or reduction to the frame; their axes, packs spread."""
    frame = body.analysis.frames[e]
    axes: list[Axis] = []
    saved = list(body.frame)
    for index, extent in zip(frame.indices, frame.extents, strict=True):
        for i, dim in enumerate(extents_of(body, extent)):
            axes.append((index, i))
            body.extents[index, i] = dim
    body.frame = [*saved, *axes]
    try:
        yield tuple(axes)
    finally:
        body.frame = saved


def extents_of(body: Body, extent: object) -> tuple[Dim, ...]:
    shape = extent if isinstance(extent, tuple) else (extent,)
    return tuple(d for d in substitute_shape(shape, body.bindings) if isinstance(d, Dim))


def access(body: Body, e: tree.Index, meaning: Access) -> Value:
    """`x[i, 0, table[j]]`: permuted axes where indices are plain, a gather where they are not."""
    base = _base(body, e.base)
    if isinstance(base, Aligned):
        # A scalar parameter of a function that is inlined over a frame, read as `x[*s]`
        # with an empty pack.
        return base
    x, entries = _drop_constants(body.build, base, _axis_entries(body, e.base, meaning), e)
    indices = [expressions.expr(body, i) if not isinstance(i, tuple) else None for i in entries]
    plain = [i if isinstance(i, tuple) else None for i in entries]
    proved = [i is None for i in indices]
    seen: set[Axis] = set()
    for at, axis in enumerate(plain):
        if axis is None:
            continue
        if axis in seen:  # the checker proved the extents equal
            indices[at], proved[at], plain[at] = _positions(body, axis), True, None
        seen.add(axis)
    if all(i is None for i in indices):
        return _permuted(body, x, [a for a in plain if a is not None])
    return _gathered(body, x, indices, proved, plain, e)


def _base(body: Body, base: tree.Expr) -> Node | Aligned:
    """The accessed tensor: an expression without indices, so outside the frame."""
    saved, body.frame = body.frame, []
    try:
        value = expressions.expr(body, base)
    finally:
        body.frame = saved
    if isinstance(value, Aligned):
        return value
    value = body.reified(value)
    assert isinstance(value, Node), base.span.text
    return value


# What stands on one axis: a frame axis, a constant position, or an expression.
Entry = Axis | Dim | tree.Expr


def _axis_entries(body: Body, base: tree.Expr, meaning: Access) -> list[Entry]:
    declared = body.analysis.types[base]
    assert isinstance(declared, TensorType)
    out: list[Entry] = []
    for axis, entry in zip(declared.shape, meaning.axes, strict=True):
        if isinstance(axis, Dim):
            if isinstance(entry, IndexVar):
                out.append((entry, 0))
            else:
                out.append(body.dim(entry) if isinstance(entry, Dim) else entry)
        else:
            assert isinstance(entry, IndexVar)
            value = body.bindings[axis.name]
            assert isinstance(value, tuple)
            out.extend((entry, i) for i in range(len(value)))
    return out


def _drop_constants(
    build: Builder, x: Node, entries: list[Entry], e: tree.Index
) -> tuple[Node, list[Axis | tree.Expr]]:
    constants = {i: d for i, d in enumerate(entries) if isinstance(d, Dim)}
    kept = [d for d in entries if not isinstance(d, Dim)]
    if not constants:
        return x, kept
    ranges = [
        (constants[i], constants[i] + 1, 1) if i in constants else None for i in range(len(entries))
    ]
    x = build.slice(x, ranges, e.span)
    assert isinstance(x.type, TensorType)
    shape = [d for i, d in enumerate(x.type.shape) if i not in constants and isinstance(d, Dim)]
    return build.reshape(x, shape, e.span), kept


def _positions(body: Body, axis: Axis) -> Value:
    """The values of an index, for an axis that another one already stands on."""
    return Aligned(body.build.iota(body.extents[axis], I64), (axis,))


def _permuted(body: Body, x: Node, axes: Sequence[Axis]) -> Aligned:
    ordered = [a for a in body.frame if a in axes]
    return Aligned(body.build.permute(x, [axes.index(a) for a in ordered]), tuple(ordered))


def _gathered(
    body: Body,
    x: Node,
    indices: list[Value | None],
    proved: list[bool],
    plain: list[Axis | None],
    e: tree.Index,
) -> Aligned:
    """Index tensors over the frame axes they use; a plain index among those is one of them."""
    used = {a for i in indices if isinstance(i, Aligned) for a in i.axes}
    for at, axis in enumerate(plain):
        if axis is not None and axis in used:
            indices[at], proved[at], plain[at] = _positions(body, axis), True, None
    common = tuple(a for a in body.frame if a in used)
    nodes = [None if i is None else body.over(i, common) for i in indices]
    node = body.build.gather(x, nodes, proved, e.span)
    kept = [a for a in plain if a is not None]
    return _permuted(body, node, [*common, *kept])
