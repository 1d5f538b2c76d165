"""ONNX's operators on elements, their sums and products, as nodes."""

from __future__ import annotations

import math
from collections.abc import Callable

from linnet.dims import Dim
from linnet.onnx.known import Known
from linnet.onnx.moved import axis_of, not_below_zero
from linnet.onnx.reader import Call, Rule, Value
from linnet.onnx.stored import dtype_of
from linnet.porting.graph import FLOATS, ONE, Node, broadcast_shape, constant, product
from linnet.porting.operations import Unsupported

_UNARY = {
    "Neg": "neg",
    "Not": "not",
    "BitwiseNot": "not",
    "Abs": "abs",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Sin": "sin",
    "Cos": "cos",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
}
_COMPARE = {
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
}
_HELPERS = {"Erf": "erf", "Floor": "floor", "Ceil": "ceil", "Round": "round_half_even"}
_SUMS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"
_ACTIVATIONS = "std.nn.activations::"


def _unary(call: Call) -> Node:
    return call.graph.elementwise(_UNARY[call.proto.op_type], [call.node()])


def _binary(call: Call) -> Node:
    a, b = call.node(), call.node(1)
    if call.proto.op_type == "Add" and a.op == "param" and b.op != "param":
        a, b = b, a  # a bias is written last
    return call.graph.elementwise(_BINARY[call.proto.op_type], [a, b])


def _shift(call: Call) -> Node:
    x, count = call.node(), call.node(1)
    if call.attributes["direction"] == b"LEFT":
        return call.graph.elementwise("shl", [x, count])
    return call.ops.shift_right(x, count, logical=True)


def _compare(call: Call) -> Node:
    given = [call.node(), call.node(1)]
    if call.proto.op_type == "GreaterOrEqual" and constant(given[1]) == 0:
        if not_below_zero(given[0]):  # positions, which exporters ask all the same
            shape = broadcast_shape([x.shape for x in given])
            return call.graph.literal(True, "bool", shape)
    return call.graph.elementwise(_COMPARE[call.proto.op_type], given, "bool")


def _helper(call: Call) -> Node:
    x = call.node()
    return call.graph.helper(_HELPERS[call.proto.op_type], x)


def _sign(call: Call) -> Node:
    return call.graph.helper("sign", call.node())


def _many(op: str) -> Rule:
    def rule(call: Call) -> Node:
        first, *rest = call.nodes
        for other in rest:
            first = call.graph.elementwise(op, [first, other])
        return first

    return rule


def _mean_of(call: Call) -> Node:
    total = _many("add")(call)
    count = call.graph.literal(len(call.given), total.dtype)
    return call.graph.elementwise("div", [total, count])


def _activation(name: str) -> Rule:
    def rule(call: Call) -> Node:
        x = call.node()
        return call.graph.call(_ACTIVATIONS + name, [x], shape=x.shape, dtype=x.dtype)

    return rule


def _gelu(call: Call) -> Node:
    plain = call.attribute("approximate", b"none") == b"none"
    return _activation("gelu_erf" if plain else "gelu")(call)  # type: ignore[no-any-return]


def _swish(call: Call) -> Node:
    x, scale = call.node(), call.attribute("alpha", 1.0)
    if scale == 1.0:
        return _activation("silu")(call)  # type: ignore[no-any-return]
    graph = call.graph
    scaled = graph.elementwise("mul", [x, graph.literal(scale, x.dtype)])
    gate = graph.call(f"{_ACTIVATIONS}sigmoid", [scaled], shape=x.shape, dtype=x.dtype)
    return graph.elementwise("mul", [x, gate])


def _pow(call: Call) -> Node:
    x = call.node()
    graph, power = call.graph, None
    if isinstance(call.given[1], Known) and call.given[1].array.size == 1:
        power = call.scalar(1, "power")
    if power is not None and power.is_integer() and abs(power) <= 8:
        return call.ops.integer_power(x, int(power))
    if power == 0.5:
        return graph.elementwise("sqrt", [x])
    if power == -0.5:
        return graph.elementwise("rsqrt", [x])
    if x.dtype not in FLOATS:
        raise Unsupported("powers of integers are translated for a known whole power only")
    return call.ops.power(x, call.node(1))


def _clip(call: Call) -> Node:
    x, graph = call.node(), call.graph
    low = call.node(1) if call.has(1) else None
    high = call.node(2) if call.has(2) else None
    if low is None and "min" in call.attributes:
        low = graph.literal(call.attributes["min"], x.dtype)
    if high is None and "max" in call.attributes:
        high = graph.literal(call.attributes["max"], x.dtype)
    if low is not None:
        x = graph.elementwise("max", [x, graph.reshape(low, ())])
    if high is not None:
        x = graph.elementwise("min", [x, graph.reshape(high, ())])
    return x


def _mod(call: Call) -> Node:
    graph, a, b = call.graph, call.node(), call.node(1)
    rest = graph.elementwise("rem", [a, b])
    if call.attribute("fmod", 0) or a.dtype[0] == "u":
        return rest
    zero = graph.literal(0, a.dtype)
    off = graph.elementwise("ne", [rest, zero], "bool")
    signs = [graph.elementwise("lt", [each, zero], "bool") for each in (rest, b)]
    apart = graph.elementwise("xor", signs)
    moved = graph.elementwise("add", [rest, b])
    return graph.elementwise("select", [graph.elementwise("and", [off, apart]), moved, rest])


def _where(call: Call) -> Node:
    return call.graph.elementwise("select", call.nodes)


def _cast(call: Call) -> Node:
    x, graph = call.node(), call.graph
    dtype = dtype_of(call.attributes["to"]) if call.proto.op_type == "Cast" else call.node(1).dtype
    if dtype == "bool" and x.dtype != "bool":
        return graph.elementwise("ne", [x, graph.literal(0, x.dtype)], "bool")
    return graph.cast(x, dtype)


def _selu_like(call: Call) -> Node:
    """Elu, Selu, Celu, LeakyRelu and PRelu: what is above zero stays, up to a factor."""
    graph, x, kind = call.graph, call.node(), call.proto.op_type
    above = graph.elementwise("gt", [x, graph.literal(0, x.dtype)], "bool")

    def number(value: float) -> Node:
        return graph.literal(value, x.dtype)

    if kind == "PRelu":
        below, yes = graph.elementwise("mul", [x, call.node(1)]), x
    elif kind == "LeakyRelu":
        below, yes = graph.elementwise("mul", [x, number(call.attribute("alpha", 0.01))]), x
    else:
        alpha = call.attribute("alpha", 1.67326319217681884765625 if kind == "Selu" else 1.0)
        inner = graph.elementwise("div", [x, number(alpha)]) if kind == "Celu" else x
        below = graph.elementwise("mul", [graph.helper("expm1", inner), number(alpha)])
        gamma = call.attribute("gamma", 1.05070102214813232421875) if kind == "Selu" else 1.0
        below = graph.elementwise("mul", [below, number(gamma)])
        yes = graph.elementwise("mul", [x, number(gamma)])
    return graph.elementwise("select", [above, yes, below])


def _hard_sigmoid(call: Call) -> Node:
    graph, x = call.graph, call.node()
    swish = call.proto.op_type == "HardSwish"
    alpha = 1 / 6 if swish else call.attribute("alpha", 0.2)
    scaled = graph.elementwise("mul", [x, graph.literal(alpha, x.dtype)])
    moved = graph.elementwise("add", [scaled, graph.literal(call.attribute("beta", 0.5), x.dtype)])
    gate = call.ops.clamp(graph.literal(0, x.dtype), moved, graph.literal(1, x.dtype))
    return graph.elementwise("mul", [x, gate]) if swish else gate


def _softplus(call: Call) -> Node:
    """`log(1 + exp(x))`, without its overflow."""
    graph, x = call.graph, call.node()
    size = graph.elementwise("neg", [graph.elementwise("abs", [x])])
    rest = graph.helper("log1p", graph.elementwise("exp", [size]))
    made = graph.elementwise(
        "add", [graph.elementwise("max", [x, graph.literal(0, x.dtype)]), rest]
    )
    if call.proto.op_type == "Mish":
        return graph.elementwise("mul", [x, graph.elementwise("tanh", [made])])
    return made


def _simple(make: Callable[[Call, Node], Node]) -> Rule:
    return lambda call: make(call, call.node())


def _tested(call: Call, x: Node) -> Node:
    graph = call.graph
    if call.proto.op_type == "IsNaN":
        return graph.elementwise("ne", [x, x], "bool")
    size = graph.elementwise("abs", [x])
    return graph.elementwise("eq", [size, graph.literal(math.inf, x.dtype)], "bool")


# ---------------------------------------------------------------- sums and products


def _reduce(call: Call) -> Node:
    graph, x, kind = call.graph, call.node(), call.proto.op_type.removeprefix("Reduce")
    told = call.numbers(1, "axes", "axes")
    if not told:
        if call.attribute("noop_with_empty_axes", 0):
            return x
        told = list(range(x.rank))
    axes = sorted({axis_of(axis, x.rank) for axis in told})
    kept = [ONE if at in axes else size for at, size in enumerate(x.shape)]
    if kind in ("L2", "SumSquare"):
        x = graph.square(x)
    elif kind == "L1":
        x = graph.elementwise("abs", [x])
    elif kind in ("LogSumExp",):
        peak = graph.reshape(graph.reduce("max", x, axes), kept)
        x = graph.elementwise("exp", [graph.elementwise("sub", [x, peak])])
    names = {"Max": "max", "Min": "min", "Prod": "prod"}
    made = graph.reduce(names.get(kind, "sum"), x, axes)
    if kind == "Mean":
        count = graph.node("size", (), [product(x.shape[axis] for axis in axes)], dtype=x.dtype)
        number = count.data[0].constant
        made = graph.elementwise(
            "div", [made, count if number is None else graph.literal(number, x.dtype)]
        )
    elif kind == "L2":
        made = graph.elementwise("sqrt", [made])
    elif kind in ("LogSum", "LogSumExp"):
        made = graph.elementwise("log", [made])
    if kind == "LogSumExp":
        made = graph.elementwise("add", [graph.reshape(made, kept), peak])
    keep = call.attribute("keepdims", 1)
    left = [size for at, size in enumerate(x.shape) if at not in axes]
    return graph.reshape(made, kept if keep else left)


def _arg_extreme(call: Call) -> Node:
    x, kind = call.node(), call.proto.op_type.removeprefix("Arg").lower()
    axis = axis_of(call.attribute("axis", 0), x.rank)
    if call.attribute("select_last_index", 0):
        raise Unsupported("`select_last_index` is not translated")
    made = call.ops.arg_extreme(kind, x, axis, "i64")
    if not call.attribute("keepdims", 1):
        return made
    return call.graph.reshape(made, [ONE if at == axis else n for at, n in enumerate(x.shape)])


def _top_k(call: Call) -> list[Value]:
    graph, x = call.graph, call.node()
    axis = axis_of(call.attribute("axis", -1), x.rank)
    [count] = call.sizes(1, "k", "") or [Dim.of(call.attribute("k", 1))]
    order = call.ops.order(x, axis, falling=bool(call.attribute("largest", 1)))
    order = graph.part(order, axis, 0, count)
    return [call.ops.along(x, order, axis), order]


def _cumsum(call: Call) -> Node:
    x = call.node()
    axis = axis_of(int(call.scalar(1, "axis") or 0), x.rank)
    made = call.ops.cumulative("sum", x, axis, bool(call.attribute("reverse", 0)))
    return call.graph.elementwise("sub", [made, x]) if call.attribute("exclusive", 0) else made


def _matmul(call: Call) -> Node:
    return matmul(call, call.node(), call.node(1))


def matmul(call: Call, a: Node, b: Node) -> Node:
    """The product over a's last axis and b's last but one; axes before those are broadcast."""
    letters = "bcdefghijklm"
    rows, columns = ("" if a.rank == 1 else "x"), ("" if b.rank == 1 else "z")
    outer = max(a.rank, b.rank, 2) - 2
    batch = letters[:outer]
    shape = broadcast_shape([a.shape[: max(a.rank - 2, 0)], b.shape[: max(b.rank - 2, 0)]])
    sides: list[Node] = []
    told: list[str] = []
    for side, own in ((a, f"{rows}y"), (b, f"y{columns}")):
        lead = side.rank - len(own)
        names = batch[outer - lead :]
        kept = [at for at in range(lead) if side.shape[at] == shape[outer - lead + at]]
        plain = [side.shape[at] for at in kept] + list(side.shape[lead:])
        sides.append(call.graph.reshape(side, plain))
        told.append("".join(names[at] for at in kept) + own)
    return dot(call, sides[0], sides[1], told[0], told[1], f"{batch}{rows}{columns}")


def dot(call: Call, a: Node, b: Node, of_a: str, of_b: str, result: str) -> Node:
    """The product, which reads parameters as they lie where they are turned around for it."""
    sizes = dict(zip(of_a, a.shape, strict=True))
    if any(sizes.get(letter, size) != size for letter, size in zip(of_b, b.shape, strict=True)):
        shapes = (f"[{', '.join(map(str, x.shape))}]" for x in (a, b))
        raise Unsupported(f"what it multiplies does not fit together: {' and '.join(shapes)}")
    (a, of_a), (b, of_b) = _as_it_lies(a, of_a), _as_it_lies(b, of_b)
    return call.graph.dot(a, b, of_a, of_b, result)


def _as_it_lies(x: Node, letters: str) -> tuple[Node, str]:
    if x.op != "permute" or x.inputs[0].op != "param":
        return x, letters
    order = x.data[0]
    return x.inputs[0], "".join(letters[order.index(at)] for at in range(x.rank))


def _gemm(call: Call) -> Node:
    graph, a, b = call.graph, call.node(), call.node(1)
    of_a = "yx" if call.attribute("transA", 0) else "xy"
    of_b = "zy" if call.attribute("transB", 0) else "yz"
    made = dot(call, a, b, of_a, of_b, "xz")
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    made = graph.elementwise("mul", [made, graph.literal(alpha, made.dtype)])
    if call.has(2):
        bias = graph.elementwise("mul", [call.node(2), graph.literal(beta, made.dtype)])
        made = graph.elementwise("add", [made, bias])
    return made


def _einsum(call: Call) -> Node:
    told = call.attributes["equation"].decode().replace(" ", "")
    given, arrow, result = told.partition("->")
    parts = given.split(",")
    if len(parts) != 2 or "." in told or not arrow or any(len(set(p)) < len(p) for p in parts):
        raise Unsupported(f"the equation `{told}` is not translated: two operands, and a result")
    return dot(call, call.node(), call.node(1), parts[0], parts[1], result)


def _softmax(call: Call) -> Node:
    graph, x = call.graph, call.node()
    old = call.opset < 13
    axis = axis_of(call.attribute("axis", 1 if old else -1), x.rank)
    name = "std.nn.softmax::softmax" if call.proto.op_type == "Softmax" else "::log_softmax"
    if old and axis != x.rank - 1:  # all axes from this one on, as one
        flat = graph.reshape(x, [*x.shape[:axis], product(x.shape[axis:])])
        made = graph.call(name, [flat], shape=flat.shape, dtype=x.dtype)
        return graph.reshape(made, x.shape)
    order = [at for at in range(x.rank) if at != axis] + [axis]
    turned = graph.permute(x, order)
    made = graph.call(name, [turned], shape=turned.shape, dtype=x.dtype)
    return graph.permute(made, [order.index(at) for at in range(x.rank)])


def _dropout(call: Call) -> list[Value]:
    x = call.node()
    if call.has(2) and call.scalar(2, "training mode"):
        raise Unsupported("it drops values, as in training; export the model for inference")
    return [x, call.graph.literal(True, "bool", x.shape)]


COMPUTED: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_HELPERS, _helper),
    **dict.fromkeys(("Elu", "Selu", "Celu", "LeakyRelu", "PRelu"), _selu_like),
    **dict.fromkeys(("HardSigmoid", "HardSwish"), _hard_sigmoid),
    **dict.fromkeys(("Softplus", "Mish"), _softplus),
    **dict.fromkeys(("IsNaN", "IsInf"), _simple(_tested)),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys([f"Reduce{kind}" for kind in _SUMS.split()], _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    "BitShift": _shift,
    "Sign": _sign,
    "Max": _many("max"),
    "Min": _many("min"),
    "Sum": _many("add"),
    "Mean": _mean_of,
    "Relu": _activation("relu"),
    "Sigmoid": _activation("sigmoid"),
    "Gelu": _gelu,
    "Swish": _swish,
    "Pow": _pow,
    "Clip": _clip,
    "Mod": _mod,
    "Where": _where,
    "Reciprocal": _simple(
        lambda call, x: call.graph.elementwise("div", [call.graph.literal(1, x.dtype), x])
    ),
    "Tan": _simple(
        lambda call, x: call.graph.elementwise(
            "div", [call.graph.elementwise(name, [x]) for name in ("sin", "cos")]
        )
    ),
    "TopK": _top_k,
    "CumSum": _cumsum,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Dropout": _dropout,
}
