"""ONNX's convolutions, pools, normalisations and resizing, as nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linnet.dims import Dim
from linnet.onnx.known import Known, quotient
from linnet.onnx.moved import axis_of
from linnet.onnx.reader import Call, Rule, Value
from linnet.porting.graph import ONE, Node, product
from linnet.porting.operations import Unsupported, lowest


def _edges(call: Call, sizes: Sequence[Dim], reach: Sequence[int]) -> list[tuple[int, int]]:
    """What is put before and after each axis of pixels, for windows that reach so far."""
    mode = call.attribute("auto_pad", b"NOTSET").decode()
    rank = len(sizes)
    strides = call.attribute("strides", [1] * rank)
    if mode in ("NOTSET", ""):
        told = call.attribute("pads", [0] * 2 * rank)
        return list(zip(told[:rank], told[rank:], strict=True))
    if mode == "VALID":
        return [(0, 0)] * rank
    out: list[tuple[int, int]] = []
    for size, width, step in zip(sizes, reach, strides, strict=True):
        if size.constant is not None:
            total = max((math.ceil(size.constant / step) - 1) * step + width - size.constant, 0)
        elif step == 1:
            total = width - 1
        else:
            raise Unsupported(f"auto_pad {mode} with a stride needs sizes that are numbers")
        less = total // 2
        out.append((less, total - less) if mode == "SAME_UPPER" else (total - less, less))
    return out


def _widths(weight: Node) -> list[int]:
    return [int(str(size)) for size in weight.shape[2:]]


def _with_bias(call: Call, made: Node) -> Node:
    if not call.has(2):
        return made
    graph, bias = call.graph, call.node(2)
    wide = graph.reshape(bias, [*bias.shape, *[ONE] * (made.rank - 2)])
    return graph.elementwise("add", [made, wide])


def _conv(call: Call) -> Node:
    x, weight = call.node(), call.node(1)
    rank, widths = x.rank - 2, _widths(weight)
    dilation = call.attribute("dilations", [1] * rank)
    reach = [(n - 1) * d + 1 for n, d in zip(widths, dilation, strict=True)]
    plain = list(range(x.rank))
    made = call.ops.convolution(
        x,
        weight,
        layouts=(plain, plain, plain),
        strides=call.attribute("strides", [1] * rank),
        padding=_edges(call, x.shape[2:], reach),
        spread=[1] * rank,
        dilation=dilation,
        groups=call.attribute("group", 1),
        batch_groups=1,
    )
    return _with_bias(call, made)


def _conv_transpose(call: Call) -> Node:
    """The convolution of pixels that are spread out, with the kernels turned around."""
    x, weight, graph = call.node(), call.node(1), call.graph
    rank, widths = x.rank - 2, _widths(weight)
    strides = call.attribute("strides", [1] * rank)
    dilation = call.attribute("dilations", [1] * rank)
    more = call.attribute("output_padding", [0] * rank)
    groups = call.attribute("group", 1)
    reach = [(n - 1) * d for n, d in zip(widths, dilation, strict=True)]
    if "output_shape" in call.attributes or call.attribute("auto_pad", b"NOTSET") != b"NOTSET":
        raise Unsupported("output_shape and auto_pad are not translated; give pads")
    told = call.attribute("pads", [0] * 2 * rank)
    padding = [(reach[at] - told[at], reach[at] - told[rank + at] + more[at]) for at in range(rank)]
    inner, outer = weight.shape[:2]
    turned = call.ops.reverse(weight, list(range(2, weight.rank)))
    parts = graph.reshape(turned, [Dim.of(groups), inner // groups, outer, *weight.shape[2:]])
    swapped = graph.permute(parts, [0, 2, 1, *range(3, parts.rank)])
    kernels = graph.reshape(swapped, [outer * groups, inner // groups, *weight.shape[2:]])
    plain = list(range(x.rank))
    made = call.ops.convolution(
        x,
        kernels,
        layouts=(plain, plain, plain),
        strides=[1] * rank,
        padding=padding,
        spread=strides,
        dilation=dilation,
        groups=groups,
        batch_groups=1,
    )
    return _with_bias(call, made)


def _pool(call: Call) -> Node:
    x, graph, kind = call.node(), call.graph, call.proto.op_type
    if len([name for name in call.proto.output if name]) > 1:
        raise Unsupported("the positions that are its second output are not translated")
    widths = list(call.attributes["kernel_shape"])
    rank = len(widths)
    strides = call.attribute("strides", [1] * rank)
    dilation = call.attribute("dilations", [1] * rank)
    reach = [(n - 1) * d + 1 for n, d in zip(widths, dilation, strict=True)]
    edges = _edges(call, x.shape[2:], reach)
    over = _overhang(call, x.shape[2:], reach, strides, edges)
    whole = [(low, high + extra) for (low, high), extra in zip(edges, over, strict=True)]
    plain = all(s.constant == n for s, n in zip(x.shape[2:], widths, strict=True))
    if kind == "AveragePool" and plain and {n for edge in whole for n in edge} == {0}:
        return _global_pool(call)
    if kind == "MaxPool":
        return _max_pool(call, x, widths, strides, whole, dilation)
    total = _window(call, "sum", x, graph.literal(0, x.dtype), widths, strides, whole, dilation)
    ones = graph.literal(1, x.dtype, (ONE, ONE, *x.shape[2:]))
    if call.attribute("count_include_pad", 0):
        ones = graph.pad(
            ones, graph.literal(1, x.dtype), [(0, 0, 0)] * 2 + [(a, b, 0) for a, b in edges]
        )
        whole = [(0, extra) for extra in over]
    if all(edge == (0, 0) for edge in whole):
        count = graph.literal(math.prod(widths), x.dtype)
    else:
        zero = graph.literal(0, x.dtype)
        count = _window(call, "sum", ones, zero, widths, strides, whole, dilation)
    return graph.elementwise("div", [total, count])


def _overhang(
    call: Call,
    sizes: Sequence[Dim],
    reach: Sequence[int],
    strides: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> list[int]:
    """How far the last window stands out, where one that does not fit counts."""
    if not call.attribute("ceil_mode", 0):
        return [0] * len(sizes)
    out: list[int] = []
    for size, width, step, (low, high) in zip(sizes, reach, strides, edges, strict=True):
        if step == 1:
            out.append(0)
            continue
        if size.constant is None:
            raise Unsupported("ceil_mode needs sizes that are numbers")
        room = size.constant + low + high - width
        count = -(-room // step) + 1
        if (count - 1) * step >= size.constant + low:  # no window starts in the padding
            count -= 1
        out.append(max((count - 1) * step - room, 0))
    return out


def _window(
    call: Call,
    kind: str,
    x: Node,
    start: Node,
    widths: Sequence[int],
    strides: Sequence[int],
    edges: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Node:
    return call.ops.window(
        kind,
        x,
        start,
        [1, 1, *widths],
        [1, 1, *strides],
        [(0, 0), (0, 0), *edges],
        [1] * x.rank,
        [1, 1, *dilation],
    )


def _max_pool(
    call: Call,
    x: Node,
    widths: Sequence[int],
    strides: Sequence[int],
    edges: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Node:
    same = [set(widths), set(strides), {n for edge in edges for n in edge}, set(dilation)]
    if x.rank == 4 and all(len(each) == 1 for each in same) and dilation[0] == 1:
        width, step, edge = widths[0], strides[0], edges[0][0]
        pixels = [(size + 2 * edge - width) // step + 1 for size in x.shape[2:]]
        sizes = [*map(str, x.shape), str(width), str(step), str(edge), x.dtype]
        return call.graph.call(
            "std.nn.pool::max_pool2d",
            [x],
            shape=(*x.shape[:2], *pixels),
            dtype=x.dtype,
            generics=sizes,
            name="pooled",
        )
    start = call.graph.literal(lowest("max", x.dtype), x.dtype)
    return _window(call, "max", x, start, widths, strides, edges, dilation)


def _global_pool(call: Call) -> Node:
    x, graph = call.node(), call.graph
    axes = list(range(2, x.rank))
    kept = [*x.shape[:2], *[ONE] * (x.rank - 2)]
    if call.proto.op_type == "GlobalMaxPool":
        return graph.reshape(graph.reduce("max", x, axes), kept)
    if x.rank == 4:
        made = graph.call(
            "std.nn.pool::global_average_pool2d", [x], shape=x.shape[:2], dtype=x.dtype
        )
        return graph.reshape(made, kept)
    count = product(x.shape[2:])
    number = graph.node("size", (), [count], dtype=x.dtype)
    return graph.reshape(graph.elementwise("div", [graph.reduce("sum", x, axes), number]), kept)


# ---------------------------------------------------------------- normalisations


def _batch_norm(call: Call) -> Node:
    if call.attribute("training_mode", 0):
        raise Unsupported("it is in training mode; export the model for inference")
    graph = call.graph
    x, weight, bias, mean, variance = call.nodes
    eps = graph.literal(call.attribute("epsilon", 1e-5), "f32")
    if x.rank == 4 and len({n.dtype for n in call.nodes}) == 1:
        return graph.call(
            "std.nn.norm::batch_norm",
            [x, mean, variance, weight, bias, eps],
            shape=x.shape,
            dtype=x.dtype,
            form=["{}"] * 6,
            name="normed",
        )
    wide = [*weight.shape, *[ONE] * (x.rank - 2)]
    weight, bias, mean, variance = (graph.reshape(n, wide) for n in (weight, bias, mean, variance))
    small = graph.literal(call.attribute("epsilon", 1e-5), x.dtype)
    root = graph.elementwise("rsqrt", [graph.elementwise("add", [variance, small])])
    centred = graph.elementwise("sub", [x, mean])
    scaled = graph.elementwise("mul", [centred, graph.elementwise("mul", [root, weight])])
    return graph.elementwise("add", [scaled, bias])


def _layer_norm(call: Call) -> Node | list[Value]:
    graph, x = call.graph, call.node()
    axis = axis_of(call.attribute("axis", -1), x.rank)
    if axis != x.rank - 1 or len([name for name in call.proto.output if name]) > 1:
        raise Unsupported("it is translated over the last axis, and for its first output alone")
    wide = [graph.reshape(n, (x.shape[-1],)) for n in call.nodes[1:]]
    eps = graph.literal(call.attribute("epsilon", 1e-5), "f32")
    name = "layer_norm" if call.proto.op_type == "LayerNormalization" else "rms_norm"
    form = ["{}", "{}", *["some({})"] * (len(wide) - 1)]
    form.append("eps = {}" if len(wide) == 1 else "{}")
    return graph.call(
        f"std.nn.norm::{name}",
        [x, *wide, eps],
        shape=x.shape,
        dtype=x.dtype,
        form=form,
        name="normed",
    )


def _group_norm(call: Call) -> Node:
    """The mean and variance of each group of channels; an instance is a channel by itself."""
    graph, x, weight, bias = call.graph, call.node(), call.node(1), call.node(2)
    own = call.proto.op_type == "InstanceNormalization"
    groups = x.shape[1] if own else Dim.of(call.attributes["num_groups"])
    if not own and call.opset < 21:
        raise Unsupported("GroupNormalization is translated from opset 21 on")
    flat = graph.reshape(x, [x.shape[0], groups, quotient(x.shape[1:], [groups])])
    kept = [*flat.shape[:2], ONE]
    size = flat.shape[2]
    count = (
        graph.node("size", (), [size], dtype=x.dtype)
        if size.constant is None
        else graph.literal(size.constant, x.dtype)
    )

    def mean(value: Node) -> Node:
        total = graph.reshape(graph.reduce("sum", value, [2]), kept)
        return graph.elementwise("div", [total, count])

    centred = graph.elementwise("sub", [flat, mean(flat)])
    small = graph.literal(call.attribute("epsilon", 1e-5), x.dtype)
    root = graph.elementwise("add", [mean(graph.square(centred)), small])
    normed = graph.elementwise("mul", [centred, graph.elementwise("rsqrt", [root])])
    wide = [*weight.shape, *[ONE] * (x.rank - 2)]
    scaled = graph.elementwise("mul", [graph.reshape(normed, x.shape), graph.reshape(weight, wide)])
    return graph.elementwise("add", [scaled, graph.reshape(bias, wide)])


# ---------------------------------------------------------------- resizing


# Coordinates and roundings by which the nearest pixel, at a whole scale, is each one repeated.
_REPEATS = frozenset({("asymmetric", "floor"), ("half_pixel", "round")})


def _resize(call: Call) -> Node:
    """Each axis by itself: pixels repeated, or a matrix of the share that each pixel has."""
    x, graph = call.node(), call.graph
    old = call.proto.op_type == "Upsample" or call.opset < 11
    at_scales, at_sizes = (1, 9) if old else (2, 3)
    mode = call.attribute("mode", b"nearest").decode()
    axes = [axis_of(a, x.rank) for a in call.attribute("axes", range(x.rank))]
    sizes = call.sizes(at_sizes, "sizes") if call.has(at_sizes) else None
    told = call.known(at_scales, "scales") if call.has(at_scales) else None
    if told is None and "scales" in call.attributes:
        told = Known(np.array(call.attributes["scales"], np.float32), "f32")
    if sizes is not None and call.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise Unsupported("keep_aspect_ratio_policy is not translated")
    place = "asymmetric" if old else "half_pixel"
    rounding = call.attribute("nearest_mode", b"round_prefer_floor").decode()
    if old:
        rounding = "floor"
    place = call.attribute("coordinate_transformation_mode", place.encode()).decode()
    for at, axis in enumerate(axes):
        size = x.shape[axis]
        scale: float | None = None
        if sizes is not None and sizes:
            out = sizes[at]
        elif told is not None and not told.symbolic and told.array.size:
            scale = float(told.array.reshape(-1)[at])
            if scale == int(scale):
                out = size * int(scale)
            elif size.constant is not None:
                out = Dim.of(math.floor(size.constant * scale))
            else:
                raise Unsupported(f"a scale of {scale} needs sizes that are numbers")
        else:
            raise Unsupported("its sizes are computed from what the model is given")
        if out == size and scale in (None, 1.0):
            continue
        times = int(scale) if scale is not None and scale == int(scale) else None
        if times is None and size.constant:
            times = quotient([out], [size]).constant
        if (
            mode == "nearest"
            and (place, rounding[:5]) in _REPEATS
            and times is not None
            and times > 0
            and size * times == out
        ):
            apart = [*x.shape[: axis + 1], ONE, *x.shape[axis + 1 :]]
            wide = [*x.shape[: axis + 1], Dim.of(times), *x.shape[axis + 1 :]]
            whole = [*x.shape[:axis], out, *x.shape[axis + 1 :]]
            x = graph.reshape(graph.expand(graph.reshape(x, apart), wide), whole)
            continue
        if size.constant is None or out.constant is None:
            raise Unsupported(f"the mode {mode} needs sizes that are numbers")
        ratio = scale if scale is not None else out.constant / size.constant
        shares = _shares(call, mode, place, rounding, size.constant, out.constant, ratio)
        matrix = graph_constant(call, shares.astype(np.float32), x.dtype)
        letters = "abcdefg"[: x.rank]
        result = letters.replace(letters[axis], "z")
        x = graph.dot(x, matrix, letters, f"z{letters[axis]}", result)
    return x


def graph_constant(call: Call, array: Any, dtype: str) -> Node:
    """An array that the program holds."""
    return call.graph.cast(call.held(Known(array, "f32")), dtype)


def _shares(
    call: Call, mode: str, place: str, rounding: str, size: int, out: int, scale: float
) -> np.ndarray[Any, Any]:
    """What each pixel of the axis adds to each of the new one."""
    if call.attribute("antialias", 0) and scale < 1:
        raise Unsupported("antialias is not translated")
    at = np.arange(out, dtype=np.float64)
    match place:
        case "half_pixel":
            at = (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            at = (at + 0.5) / scale - 0.5 if out > 1 else at * 0
        case "asymmetric":
            at = at / scale
        case "align_corners":
            at = at * (size - 1) / (out - 1) if out > 1 else at * 0
        case "half_pixel_symmetric":
            moved = size / 2 * (1 - out / (scale * size))
            at = moved + (at + 0.5) / scale - 0.5
        case _:
            raise Unsupported(f"the coordinates {place} are not translated")
    shares = np.zeros((out, size))
    rows = np.arange(out)
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(at - 0.5),
            "round_prefer_ceil": np.floor(at + 0.5),
            "floor": np.floor(at),
            "ceil": np.ceil(at),
        }[rounding]
        shares[rows, np.clip(rounded, 0, size - 1).astype(int)] = 1
        return shares
    low = np.floor(at)
    rest = at - low
    if mode == "linear":
        weights = {0: 1 - rest, 1: rest}
    elif mode == "cubic":
        a = call.attribute("cubic_coeff_a", -0.75)
        weights = {step: _cubic(np.abs(rest - step), a) for step in (-1, 0, 1, 2)}
    else:
        raise Unsupported(f"the mode {mode!r} is not translated")
    for step, weight in weights.items():
        column = (low + step).astype(int)
        if call.attribute("exclude_outside", 0):
            weight = np.where((column >= 0) & (column < size), weight, 0)
        np.add.at(shares, (rows, np.clip(column, 0, size - 1)), weight)
    if call.attribute("exclude_outside", 0):
        shares /= shares.sum(1, keepdims=True)
    return shares


def _cubic(x: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """The convolution kernel of Keys."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


SPATIAL: dict[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _group_norm),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
}
