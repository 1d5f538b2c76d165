"""ONNX's operators that move, cut, join and read elements, as nodes."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.dims import Dim
from linnet.onnx.known import Known, bounds, quotient, sizes_of
from linnet.onnx.parts import Part, joined
from linnet.onnx.reader import Call, Rule, Value
from linnet.porting.graph import (
    ONE,
    ZERO,
    Graph,
    Node,
    broadcast_shape,
    constant,
    known_size,
    product,
)
from linnet.porting.operations import Unsupported

_END = 1 << 31  # a slice that ends here or later ends with its axis


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"there is no axis {axis} among {rank}")
    return axis % rank if rank else 0


def _reshape(call: Call) -> Node:
    x = call.node()
    wanted = call.sizes(1, "shape", "shape")
    if wanted is None:
        raise Unsupported("it has no shape")
    plain = not call.attribute("allowzero", 0)
    shape = [x.shape[at] if size == ZERO and plain else size for at, size in enumerate(wanted)]
    open_ = [at for at, size in enumerate(shape) if size == Dim.of(-1)]
    if open_:
        rest = [size for at, size in enumerate(shape) if at not in open_]
        shape[open_[0]] = quotient(x.shape, rest)
    return _around(call, x, shape) or call.graph.reshape(x, shape)


def _around(call: Call, x: Node, shape: Sequence[Dim]) -> Node | None:
    """Heads and batch as one axis while matrices are turned, then apart again: only turned."""
    if x.op != "permute" or x.data != ((0, 2, 1),) or x.inputs[0].op != "reshape":
        return None
    [apart] = x.inputs[0].inputs
    turned = [*range(apart.rank - 2), apart.rank - 1, apart.rank - 2]
    if apart.rank < 3 or [apart.shape[at] for at in turned] != list(shape):
        return None
    if x.inputs[0].shape[1:] != apart.shape[-2:]:
        return None
    return call.graph.permute(apart, turned)


def _flatten(call: Call) -> Node:
    x = call.node()
    axis = call.attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return call.graph.reshape(x, [quotient(x.shape[:axis], []), quotient(x.shape[axis:], [])])


def _squeeze(call: Call) -> Node:
    x = call.node()
    told = call.numbers(1, "axes", "axes")
    if told is None:
        axes = [at for at, size in enumerate(x.shape) if size == ONE]
    else:
        axes = [axis_of(axis, x.rank) for axis in told]
    if any(x.shape[axis] != ONE for axis in axes):
        raise Unsupported(f"an axis of {', '.join(map(str, x.shape))} that goes is not of size 1")
    return call.graph.reshape(x, [size for at, size in enumerate(x.shape) if at not in axes])


def _unsqueeze(call: Call) -> Node:
    x = call.node()
    told = call.numbers(1, "axes", "axes") or []
    rank = x.rank + len(told)
    axes = {axis_of(axis, rank) for axis in told}
    own = iter(x.shape)
    return call.graph.reshape(x, [ONE if at in axes else next(own) for at in range(rank)])


def _transpose(call: Call) -> Node:
    x = call.node()
    return call.graph.permute(x, call.attribute("perm", list(range(x.rank))[::-1]))


def _expand(call: Call) -> Node:
    x = call.node()
    wanted = call.sizes(1, "shape")
    shape = broadcast_shape([x.shape, tuple(wanted or ())])
    return call.graph.expand(x, shape)


def _concat(call: Call) -> Node:
    if any(isinstance(value, Part) for value in call.given):
        parts = [value for value in call.given if isinstance(value, Part | Node)]
        return joined(call.graph, parts, call.attribute("axis", 1))
    nodes = call.nodes
    return call.graph.concat(nodes, axis_of(call.attribute("axis", 1), nodes[0].rank))


def _split(call: Call) -> Value | list[Value]:
    x = call.node()
    axis = axis_of(call.attribute("axis", 0), x.rank)
    told = call.sizes(1, "split", "split")
    if told is None:
        count = call.attribute("num_outputs", len(call.proto.output))
        each = (x.shape[axis] + (count - 1)) // count
        told = [each] * (count - 1)
        told.append(x.shape[axis] - each * (count - 1))
    out: list[Value] = []
    start = ZERO
    for size in told:
        out.append(call.graph.part(x, axis, start, start + size))
        start = start + size
    return out


def _running_slice(call: Call) -> Part | None:
    """A slice of one axis between positions that are computed from what the model is given."""
    given = call.given[1:3]
    if len(given) < 2 or not any(isinstance(x, Node) and known_size(x) is None for x in given):
        return None
    axes, steps = call.numbers(3, "axes"), call.numbers(4, "steps") or [1]
    if axes is None or len(axes) != 1 or steps != [1]:
        return None
    x = call.node()
    return Part(x, axis_of(axes[0], x.rank), call.node(1), call.node(2))


def _slice(call: Call) -> Node | Part:
    if (part := _running_slice(call)) is not None:
        return part
    x = call.node()
    starts = call.sizes(1, "starts", "starts") or []
    ends = call.sizes(2, "ends", "ends") or []
    axes = call.numbers(3, "axes", "axes") or list(range(len(starts)))
    steps = call.numbers(4, "steps") or [1] * len(starts)
    for start, end, place, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(place, x.rank)
        size = x.shape[axis]
        if step == -1 and start in (Dim.of(-1), size - 1) and (end.constant or 0) < -(1 << 30):
            x = call.ops.reverse(x, [axis])
            continue
        if step < 1:
            raise Unsupported(f"a step of {step} is not translated")
        ranges = [(ZERO, each, 1) for each in x.shape]
        ranges[axis] = _within(call, start, size), _within(call, end, size), step
        x = _counted(call, x, axis, ranges[axis]) or call.graph.slice(x, ranges)
    return x


def _counted(call: Call, x: Node, axis: int, part: tuple[Dim, Dim, int]) -> Node | None:
    """The beginning of positions along an axis is positions too."""
    start, stop, step = part
    counts = x.op == "iota" or (x.op == "reshape" and x.inputs[0].op == "iota")
    if not counts or start != ZERO or step != 1 or product(x.shape) != x.shape[axis]:
        return None
    shape = [stop if at == axis else size for at, size in enumerate(x.shape)]
    return call.graph.reshape(call.graph.iota((stop,), 0, x.dtype), shape)


def _within(call: Call, at: Dim, size: Dim) -> Dim:
    """A position as ONNX counts: from the end where it is below zero, cut off at both ends."""
    number, whole = at.constant, size.constant
    if number is None:
        least, _ = bounds(size - at)
        if least is None or least < 0:
            call.reader.facts[f"{at} <= {size}"] = None
        return at
    if number < 0:
        if whole is None and number > -_END:
            return size + number
        return Dim.of(max(0, number + (whole or 0)))
    if whole is not None:
        return Dim.of(min(number, whole))
    return size if number >= _END - 1 else at


def _positions(call: Call, index: Node, size: Dim) -> Node:
    """Positions, those below zero counted from the end."""
    graph = call.graph
    number = constant(index)
    if number is None and not_below_zero(index):
        return index
    if number is not None:
        return (
            index
            if number >= 0
            else graph.elementwise("add", [index, whole_of(graph, size, index)])
        )
    whole = whole_of(graph, size, index)
    below = graph.elementwise("lt", [index, graph.literal(0, index.dtype)], "bool")
    return graph.elementwise("select", [below, graph.elementwise("add", [index, whole]), index])


def whole_of(graph: Graph, size: Dim, index: Node) -> Node:
    """A size as a number of the index's dtype."""
    return graph.node("size", (), [size], dtype=index.dtype)


def not_below_zero(x: Node) -> bool:
    """No element is below zero, as far as is plain to see."""
    if x.dtype[0] == "u" or x.op in ("iota", "size"):
        return True
    if (number := constant(x)) is not None:
        return number >= 0
    if x.op in ("reshape", "expand", "permute", "slice", "concat", "cast"):
        return all(not_below_zero(each) for each in x.inputs)
    return x.op in ("add", "mul") and all(not_below_zero(each) for each in x.inputs)


def counted_axis(x: Node) -> int | None:
    """The axis along which the elements are 0, 1, 2 ..., the same along all others."""
    if x.op == "iota":
        return 0
    if x.op == "cast":
        return counted_axis(x.inputs[0])
    if x.op == "expand":
        own = counted_axis(x.inputs[0])
        return None if own is None else own + x.rank - x.inputs[0].rank
    if x.op == "reshape" and (own := counted_axis(x.inputs[0])) is not None:
        size = x.inputs[0].shape[own]
        wide = [at for at, each in enumerate(x.shape) if each != ONE]
        if wide and all(each == ONE or at == own for at, each in enumerate(x.inputs[0].shape)):
            return wide[0] if len(wide) == 1 and x.shape[wide[0]] == size else None
    return None


def _gather(call: Call) -> Node:
    graph, x = call.graph, call.node()
    axis = axis_of(call.attribute("axis", 0), x.rank)
    index = call.given[1]
    if isinstance(index, Known) and index.array.size == 1:
        [at] = index.sizes()
        at = at + x.shape[axis] if (at.constant or 0) < 0 else at
        part = graph.part(x, axis, at, at + 1)
        return graph.reshape(part, [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])
    ids = call.node(1)
    shape = [*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]]
    if (number := constant(x)) is not None:
        return graph.literal(number, x.dtype, shape)
    if axis == 0 and x.op == "param" and x.rank == 2 and x.dtype in ("f16", "bf16", "f32", "f64"):
        call.ops.notes.append(
            "rows of tables are read by `embedding`: positions below zero, which ONNX counts from "
            "the end, are the first row there"
        )
        given = [graph.cast(_unclamped(ids, x.shape[0]), "i32"), x]
        return graph.call("std.nn.embedding::embedding", given, shape=shape, dtype=x.dtype)
    ids = _positions(call, ids, x.shape[axis])
    own = ", ".join(f"${axis + at}" for at in range(ids.rank))
    places = [f"${at}" for at in range(axis)]
    places.append(f"@1[{own}]" if own else "@1")
    places += [f"${at}" for at in range(axis + ids.rank, len(shape))]
    template = f"@0[{', '.join(places)}]"
    return graph.define(template, [x, ids], shape, dtype=x.dtype, name="found")


def _unclamped(ids: Node, size: Dim) -> Node:
    """Positions before they were moved into their axis, where reading by them does that too."""
    if ids.op == "min" and known_size(ids.inputs[1]) == size - 1 and ids.inputs[0].op == "max":
        inner, low = ids.inputs[0].inputs
        if constant(low) == 0:
            ids = inner
    if ids.op == "cast" and ids.inputs[0].dtype == "i32":
        ids = ids.inputs[0]
    return ids


def _gather_elements(call: Call) -> Node:
    x, ids = call.node(), call.node(1)
    axis = axis_of(call.attribute("axis", 0), x.rank)
    if (number := constant(x)) is not None:
        return call.graph.literal(number, x.dtype, ids.shape)
    ids = _positions(call, ids, x.shape[axis])
    return call.ops.along(x, ids, axis)


def _counted_back(call: Call, ids: Node, sizes: Sequence[Dim]) -> Node:
    """Positions in several axes, those below zero counted from the ends."""
    axis = ids.rank - 1
    parts = [call.graph.part(ids, axis, at, at + 1) for at in range(len(sizes))]
    if all(map(not_below_zero, parts)):
        return ids
    back = [_positions(call, part, size) for part, size in zip(parts, sizes, strict=True)]
    return call.graph.concat(back, axis)


def _gather_nd(call: Call) -> Node:
    graph, x, ids = call.graph, call.node(), call.node(1)
    batch, count = call.attribute("batch_dims", 0), ids.shape[-1].constant
    if count is None:
        raise Unsupported("how many axes it reads by is not known")
    outer = ids.rank - 1
    shape = [*ids.shape[:-1], *x.shape[batch + count :]]
    parts = [graph.part(ids, outer, at, at + 1) for at in range(count)]
    told = [counted_axis(part) for part in parts]
    axes = [*range(batch), *told, *range(outer, len(shape))]
    plain = all(
        place is not None and shape[place] == size
        for place, size in zip(axes, x.shape, strict=True)
    )
    if plain and len(set(axes)) == len(axes):  # each element where it stands
        return graph.broadcast(x, shape, [place for place in axes if place is not None])
    own = "".join(f"${at}, " for at in range(outer))
    places = [f"${at}" for at in range(batch)]
    places += [f"@1[{own}{at}]" for at in range(count)]
    places += [f"${at}" for at in range(outer, len(shape))]
    ids = _counted_back(call, ids, x.shape[batch : batch + count])
    return graph.define(f"@0[{', '.join(places)}]", [x, ids], shape, dtype=x.dtype, name="found")


def _scatter_elements(call: Call) -> Node:
    """x with updates at positions of one axis; of several at one place the last counts."""
    graph, x, updates = call.graph, call.node(), call.node(2)
    axis = axis_of(call.attribute("axis", 0), x.rank)
    ids = _positions(call, call.node(1), x.shape[axis])
    if call.attribute("reduction", b"none") != b"none":
        raise Unsupported("it joins updates, which is not translated")
    if any(a != b for at, (a, b) in enumerate(zip(x.shape, ids.shape)) if at != axis):
        raise Unsupported("it writes into a part of other axes")
    own = ", ".join(f"${i}" for i in range(x.rank))
    here = f"iota<i64>(#{axis})[${axis}]"
    one = ids.shape[axis] == ONE
    last = "0" if one else "@3[" + own + "]"
    places = ", ".join(last if i == axis else f"${i}" for i in range(x.rank))
    ids = graph.cast(ids, "i64")
    if one:
        text = f"if @1[{places}] == {here} {{ @2[{places}] }} else {{ @0[{own}] }}"
        return graph.define(text, [x, ids, updates], x.shape, dtype=x.dtype, name="written")
    each = ", ".join(f"${x.rank if i == axis else i}" for i in range(x.rank))
    turn = graph.define(
        f"max[${x.rank}] if @0[{each}] == {here} "
        f"{{ iota<i64>(#{x.rank})[${x.rank}] }} else {{ -1 }}",
        [ids],
        x.shape,
        [ids.shape[axis]],
        dtype="i64",
        name="last",
    )
    text = f"if @3[{own}] >= 0 {{ @2[{places}] }} else {{ @0[{own}] }}"
    return graph.define(text, [x, ids, updates, turn], x.shape, dtype=x.dtype, name="written")


def _scatter_nd(call: Call) -> Node:
    x, ids, updates = call.nodes
    count = ids.shape[-1].constant
    if count is None:
        raise Unsupported("how many axes it writes by is not known")
    outer = ids.rank - 1
    ids = _counted_back(call, ids, x.shape[:count])
    kind = {"none": "put", "add": "sum", "mul": "prod"}
    told = call.attribute("reduction", b"none").decode()
    return call.ops.scatter(
        kind.get(told, told),
        x,
        ids,
        updates,
        windows=list(range(outer, updates.rank)),
        inserted=list(range(count)),
        batching=(),
        index_batching=(),
        mapped=list(range(count)),
        vector=outer,
    )


def _tile(call: Call) -> Node:
    graph, x = call.graph, call.node()
    times = call.sizes(1, "repeats") or []
    apart = [size for each in x.shape for size in (ONE, each)]
    wide = [size for count, each in zip(times, x.shape, strict=True) for size in (count, each)]
    whole = [count * each for count, each in zip(times, x.shape, strict=True)]
    return graph.reshape(graph.expand(graph.reshape(x, apart), wide), whole)


def _pad(call: Call) -> Node:
    x = call.node()
    told = call.numbers(1, "pads", "pads") or call.attribute("paddings", [0] * 2 * x.rank)
    axes = call.numbers(3, "axes") or list(range(x.rank))
    mode = call.attribute("mode", b"constant").decode()
    value = call.node(2) if call.has(2) else None
    if value is None:
        value = call.graph.literal(call.attribute("value", 0.0), x.dtype)
    edges = [(0, 0, 0)] * x.rank
    for at, axis in enumerate(axes):
        edges[axis_of(axis, x.rank)] = told[at], told[at + len(axes)], 0
    if mode == "constant":
        return call.graph.pad(x, call.graph.reshape(value, ()), edges)
    for axis, (low, high, _) in enumerate(edges):
        x = _mirrored(call, x, axis, low, high, mode)
    return x


def _mirrored(call: Call, x: Node, axis: int, low: int, high: int, mode: str) -> Node:
    """x with its edge repeated, mirrored or taken from the other side."""
    graph, size = call.graph, x.shape[axis]
    parts: list[Node] = [x]
    for count, start in ((low, True), (high, False)):
        if count <= 0:
            continue
        if mode == "edge":
            at = ZERO if start else size - 1
            one = graph.part(x, axis, at, at + 1)
            shape = [Dim.of(count) if i == axis else s for i, s in enumerate(x.shape)]
            part = graph.expand(one, shape)
        elif mode == "reflect":
            first = ONE if start else size - 1 - count
            part = call.ops.reverse(graph.part(x, axis, first, first + count), [axis])
        elif mode == "wrap":
            first = size - count if start else ZERO
            part = graph.part(x, axis, first, first + count)
        else:
            raise Unsupported(f"the mode {mode!r} is not translated")
        parts = [part, *parts] if start else [*parts, part]
    made = graph.concat(parts, axis)
    return graph.part(made, axis, max(-low, 0), made.shape[axis] - max(-high, 0))


def _range(call: Call) -> Node:
    start, limit, step = (call.known(at, what) for at, what in enumerate(("start", "end", "step")))
    assert start is not None and limit is not None and step is not None
    [a], [b], [s] = start.sizes(), limit.sizes(), step.sizes()
    if s.constant is None or s.constant < 1:
        raise Unsupported("a range that does not rise is not translated")
    count = (b - a + (s.constant - 1)) // s.constant if s != ONE else b - a
    graph = call.graph
    made = graph.iota((count,), 0, start.dtype)
    if s != ONE:
        made = graph.elementwise("mul", [made, graph.literal(s.constant, start.dtype)])
    if a != ZERO:
        first = call.reader.node(Known(sizes_of([a]).array.reshape(()), start.dtype))
        made = graph.elementwise("add", [made, first])
    return made


def _constant_of_shape(call: Call) -> Node:
    from linnet.onnx.stored import dtype_of, read_tensor

    value = call.attributes.get("value")
    number, dtype = 0.0, "f32"
    if value is not None:
        number = read_tensor(value, None).reshape(-1)[0].item()
        dtype = dtype_of(value.data_type)
    return call.graph.literal(number, dtype, call.sizes(0, "shape") or ())


def _trilu(call: Call) -> Node:
    graph, x = call.graph, call.node()
    offset = int(call.scalar(1, "diagonal") or 0)
    rows, columns = (graph.iota(x.shape[-2:], axis, "i64") for axis in (0, 1))
    moved = graph.elementwise("add", [rows, graph.literal(offset, "i64")])
    kind = "ge" if call.attribute("upper", 1) else "le"
    test = graph.elementwise(kind, [columns, moved], "bool")
    return graph.elementwise("select", [test, x, graph.literal(0, x.dtype)])


def _depth_to_space(call: Call) -> Node:
    graph, x, block = call.graph, call.node(), Dim.of(call.attribute("blocksize", 1))
    batch, channels, height, width = x.shape
    deep = quotient([channels], [block, block])
    if call.attribute("mode", b"DCR") == b"DCR":
        apart, order = [batch, block, block, deep, height, width], (0, 3, 4, 1, 5, 2)
    else:
        apart, order = [batch, deep, block, block, height, width], (0, 1, 4, 2, 5, 3)
    turned = graph.permute(graph.reshape(x, apart), order)
    return graph.reshape(turned, [batch, deep, height * block, width * block])


def _space_to_depth(call: Call) -> Node:
    graph, x, block = call.graph, call.node(), Dim.of(call.attribute("blocksize", 1))
    batch, channels, height, width = x.shape
    high, wide = quotient([height], [block]), quotient([width], [block])
    apart = graph.reshape(x, [batch, channels, high, block, wide, block])
    turned = graph.permute(apart, (0, 3, 5, 1, 2, 4))
    return graph.reshape(turned, [batch, channels * block * block, high, wide])


def first(parts: Sequence[Value | None]) -> Value:
    """The only thing that an operator that changes nothing is about."""
    value = parts[0]
    assert value is not None
    return value


MOVED: dict[str, Rule] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Tile": _tile,
    "Pad": _pad,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Trilu": _trilu,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Identity": lambda call: first(call.given),
}
