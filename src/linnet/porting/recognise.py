"""Operations that belong together, as the one function of the standard library that they are.

What is recognised means the same number for number, up to rounding: only f32 is looked at where the
library's function has f32 inside, and the constants must be those of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from linnet.porting.graph import ONE, Body, Graph, Node, constant, topological

_Rule = Callable[[Graph, Node, list[str]], Node | None]
_ACTIVATIONS = "std.nn.activations::"


def recognised(graph: Graph, results: Sequence[Node], notes: list[str]) -> list[Node]:
    """The results, with every pattern below in its place; bodies of loops are looked into."""
    new: dict[Node, Node] = {}
    for node in topological(results):
        made = _remade(graph, node, [new[each] for each in node.inputs], notes)
        for rule in _RULES:
            found = rule(graph, made, notes)
            if found is not None:
                made = graph.named(found, made.name)
                break
        new[node] = made
    return [new[node] for node in results]


def _remade(graph: Graph, node: Node, inputs: Sequence[Node], notes: list[str]) -> Node:
    """The node on new inputs, its bodies recognised too."""
    if not any(isinstance(item, Body) for item in node.data):
        return graph.rebuilt(node, inputs)
    data = [
        Body(tuple(recognised(graph, item.results, notes))) if isinstance(item, Body) else item
        for item in node.data
    ]
    return graph.node(node.op, inputs, data, shape=node.shape, dtype=node.dtype, name=node.name)


# ---------------------------------------------------------------- parts of patterns


def _is(node: Node, value: float) -> bool:
    """The node is this number everywhere, as f32 has it."""
    found = constant(node)
    return found is not None and abs(float(found) - value) <= 1e-6 * abs(value)


def _bare(node: Node) -> Node:
    """The node before it was repeated or given axes of size 1."""
    while node.op == "expand" or (node.op == "reshape" and _same_but_ones(node)):
        node = node.inputs[0]
    return node


def _same_but_ones(node: Node) -> bool:
    ones = [axis for axis in node.shape if axis != ONE]
    return ones == [axis for axis in node.inputs[0].shape if axis != ONE]


def _both(node: Node, op: str) -> Iterator[tuple[Node, Node]]:
    """The operands of a commutative operation, in either order."""
    if node.op == op:
        a, b = node.inputs
        yield a, b
        yield b, a


def _factors(node: Node) -> list[Node]:
    """What a product is made of."""
    if node.op == "mul":
        return [factor for each in node.inputs for factor in _factors(each)]
    return [node]


def _over_last(node: Node, kind: str, x: Node) -> bool:
    """The node is a reduction of x over its last axis, kept as an axis of size 1."""
    bare = _bare(node)
    if bare.op != "reduce" or not _keeps_last(node, x):
        return False
    return bare.inputs[0] is x and bare.data == (kind, (x.rank - 1,))


def _mean_of(node: Node) -> Node | None:
    """What the node is the mean of over the last axis: `sum / H`, or `sum * (1 / H)`."""
    bare = _bare(node)
    if bare.op not in ("div", "mul"):
        return None
    total, count = bare.inputs
    total = _bare(total)
    if total.op != "reduce" or total.data[0] != "sum":
        return None
    x = total.inputs[0]
    if total.data[1] != (x.rank - 1,):
        return None
    size = x.shape[-1].constant
    if size is None or not _is(count, size if bare.op == "div" else 1 / size):
        return None
    return x


def _divided(node: Node) -> tuple[list[Node], list[tuple[Node, Node, Node]]]:
    """What a product is made of; and each `1 / sqrt(variance + eps)`: variance, eps, itself."""
    if node.op == "mul":
        a, b = (_divided(each) for each in node.inputs)
        return [*a[0], *b[0]], [*a[1], *b[1]]
    bare = _bare(node)
    if bare.op == "rsqrt" and (under := _offset(bare.inputs[0])) is not None:
        return [], [(*under, node)]
    if node.op == "div" and _bare(node.inputs[1]).op == "sqrt":
        x, root = node.inputs
        if (under := _offset(_bare(root).inputs[0])) is not None:
            rest, more = ([], []) if _is(x, 1) else _divided(x)
            return rest, [*more, (*under, root)]
    return [node], []


def _offset(node: Node) -> tuple[Node, Node] | None:
    """A variance and the number that is added to it."""
    for variance, eps in _both(_bare(node), "add"):
        if constant(eps) is not None:
            return variance, eps
    return None


# ---------------------------------------------------------------- patterns


def _relu(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    for x, zero in _both(node, "max"):
        if node.dtype.startswith(("f", "bf")) and constant(zero) == 0 and x.shape == node.shape:
            if constant(x) is None:
                return _activation(graph, "relu", x)
    return None


def _sigmoid(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    if node.op != "div" or not _is(node.inputs[0], 1):
        return None
    for one, raised in _both(_bare(node.inputs[1]), "add"):
        if _is(one, 1) and raised.op == "exp" and raised.inputs[0].op == "neg":
            return _activation(graph, "sigmoid", raised.inputs[0].inputs[0])
    return None


def _silu(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    for x, gate in _both(node, "mul"):
        if gate.op == "call" and gate.data[0] == f"{_ACTIVATIONS}sigmoid" and gate.inputs[0] is x:
            return _activation(graph, "silu", x)
    return None


def _gelu(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """`0.5 x (1 + tanh(0.7978846 (x + 0.044715 x^3)))`, or with `erf` of x over the root of 2."""
    if node.op != "mul" or node.dtype != "f32":
        return None
    factors = _factors(node)
    rest = [f for f in factors if not _is(f, 0.5)]
    if len(factors) != 3 or len(rest) != 2:
        return None
    for x, other in (rest, rest[::-1]):
        if other.op == "helper" and other.data == ("erfc",) and _is_scaled(other.inputs[0], x, -1):
            return _activation(graph, "gelu_erf", x)
        for one, inner in _both(other, "add"):
            if not _is(one, 1):
                continue
            if inner.op == "tanh" and _is_cubic(inner.inputs[0], x):
                return _activation(graph, "gelu", x)
            if (
                inner.op == "helper"
                and inner.data == ("erf",)
                and _is_scaled(inner.inputs[0], x, 1)
            ):
                return _activation(graph, "gelu_erf", x)
    return None


def _is_scaled(node: Node, x: Node, sign: int) -> bool:
    """The node is x, or -x, over the root of 2."""
    root = 2**0.5
    if node.op == "neg" and sign < 0:
        return _is_scaled(node.inputs[0], x, 1)
    if node.op == "div" and node.inputs[0] is x:
        return _is(node.inputs[1], sign * root)
    for a, b in _both(node, "mul"):
        if _is(b, sign / root) and a is x:
            return True
        if sign < 0 and _is(b, 1 / root) and a.op == "neg" and a.inputs[0] is x:
            return True
    return False


def _is_cubic(node: Node, x: Node) -> bool:
    for scale, total in _both(node, "mul"):
        for own, cube in _both(total, "add"):
            if not _is(scale, 0.7978845608028654) or own is not x:
                continue
            factors = _factors(cube)
            powers = [f for f in factors if f is x]
            rest = [f for f in factors if f is not x]
            if len(powers) == 3 and len(rest) == 1 and _is(rest[0], 0.044715):
                return True
    return False


def _softmax(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    if node.op != "div" or node.dtype != "f32" or node.inputs[0].op != "exp":
        return None
    raised, total = node.inputs
    centred = raised.inputs[0]
    if centred.op != "sub" or not _over_last(total, "sum", raised):
        return None
    x, peak = centred.inputs
    if x.rank == 0 or not _over_last(peak, "max", x):
        return None
    return graph.call("std.nn.softmax::softmax", [x], shape=x.shape, dtype=x.dtype)


def _guarded_softmax(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """Weights, with 0 where they are no number: they are numbers where no score is infinite."""
    if node.op != "select" or constant(node.inputs[1]) != 0:
        return None
    test, _, weights = node.inputs
    if weights.op != "call" or weights.data[0] != "std.nn.softmax::softmax":
        return None
    if test.op != "ne" or test.inputs != (weights, weights):
        return None
    if _scores(graph, weights.inputs[0]) is None:
        return None
    notes.append(
        "attention weights that are no numbers are 0 in the model; that is left out, since none "
        "of its masks is infinite"
    )
    return weights


def _log_softmax(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    if node.op != "sub" or node.inputs[0].op != "sub":
        return None
    centred, logarithm = node.inputs
    x, peak = centred.inputs
    inner = _bare(logarithm)
    if inner.op != "log" or x.rank == 0 or not _over_last(peak, "max", x):
        return None
    total = _bare(inner.inputs[0])
    if total.op != "reduce" or total.data != ("sum", (x.rank - 1,)) or total.inputs[0].op != "exp":
        return None
    if total.inputs[0].inputs[0] is not centred or not _keeps_last(logarithm, x):
        return None
    return graph.call("::log_softmax", [x], shape=x.shape, dtype=x.dtype)


def _rms_norm(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """`x / sqrt(mean(x^2) + eps) * weight`, multiplied in any order."""
    found = _normed(node)
    if found is None:
        return None
    rest, variance, eps, root = found
    square = _mean_of(variance)
    for x, weight in (rest, rest[::-1]):
        if square is not None and square.op == "mul" and square.inputs == (x, x):
            if _bare(weight).shape == (x.shape[-1],) and _keeps_last(root, x):
                return _norm(graph, "rms_norm", [x, _bare(weight), eps], ("{}", "{}", "{}"))
    return None


def _normed(node: Node) -> tuple[list[Node], Node, Node, Node] | None:
    """Two factors over a root: them, the variance, eps, and where the root stands."""
    if node.dtype != "f32" or node.op not in ("mul", "div"):
        return None
    rest, roots = _divided(node)
    if len(rest) != 2 or len(roots) != 1:
        return None
    return rest, *roots[0]


def _keeps_last(node: Node, x: Node) -> bool:
    """The node has one number for each row of x."""
    return node.shape == (*x.shape[:-1], ONE) or (x.rank == 1 and not node.shape)


def _layer_norm(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """`(x - mean) / sqrt(variance + eps) * weight`, in any order; with a bias added."""
    for product, shift in _both(node, "add"):
        if product.op == "call" and product.data[0] == "std.nn.norm::layer_norm":
            if len(product.inputs) == 3 and _bare(shift).shape == (product.shape[-1],):
                x, weight, eps = product.inputs
                given = [x, weight, _bare(shift), eps]
                return _norm(graph, "layer_norm", given, ("{}", "{}", "some({})", "{}"))
    found = _normed(node)
    if found is None:
        return None
    rest, variance, eps, root = found
    for centred, weight in (rest, rest[::-1]):
        if centred.op != "sub":
            continue
        x, mean = centred.inputs
        if _mean_of(mean) is x and _keeps_last(mean, x) and _keeps_last(root, x):
            if _bare(weight).shape == (x.shape[-1],) and _is_variance(variance, x, centred, notes):
                given = [x, _bare(weight), eps]
                return _norm(graph, "layer_norm", given, ("{}", "{}", "eps = {}"))
    return None


def _is_variance(node: Node, x: Node, centred: Node, notes: list[str]) -> bool:
    """The mean of the squares of what is centred, or that of the squares less the mean's square."""
    square = _mean_of(node)
    if square is not None and square.op == "mul":
        return square.inputs == (centred, centred)
    bare = _bare(node)
    if bare.op == "call" and bare.data[0] == f"{_ACTIVATIONS}relu":
        bare = _bare(bare.inputs[0])
    if bare.op != "sub":
        return False
    of_squares, of_mean = (_bare(each) for each in bare.inputs)
    square = _mean_of(of_squares)
    if square is None or square.op != "mul" or square.inputs != (x, x) or of_mean.op != "mul":
        return False
    a, b = of_mean.inputs
    if a is not b or _mean_of(a) is not x:
        return False
    notes.append(
        "variances that are a mean of squares less a squared mean are `layer_norm`'s, which "
        "squares what is centred: the same number, with less rounding"
    )
    return True


def _norm(graph: Graph, name: str, given: Sequence[Node], form: tuple[str, ...]) -> Node:
    x = given[0]
    return graph.call(
        f"std.nn.norm::{name}", given, shape=x.shape, dtype=x.dtype, form=form, name="normed"
    )


def _activation(graph: Graph, name: str, x: Node) -> Node:
    return graph.call(f"{_ACTIVATIONS}{name}", [x], shape=x.shape, dtype=x.dtype)


def _embedding(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """Rows of a table, read at the nearest position."""
    if node.op != "define" or len(node.inputs) != 2:
        return None
    table, index = node.inputs
    last = node.rank - 1
    own = ", ".join(f"${i}" for i in range(last))
    if table.rank != 2 or index.dtype != "i32" or index.shape != (*node.shape[:-1], ONE):
        return None
    if node.data[0] != f"@0[@1[{f'{own}, ' if own else ''}0], ${last}]":
        return None
    ids = graph.reshape(index, node.shape[:-1])
    return graph.call(
        "std.nn.embedding::embedding", [ids, table], shape=node.shape, dtype=node.dtype
    )


def _attention(graph: Graph, node: Node, notes: list[str]) -> Node | None:
    """Values of `[B, H, K, D]`, in any order of axes, weighted by the softmax of masked scores."""
    if node.op != "dot" or node.dtype != "f32":
        return None
    operands = list(zip(node.inputs, node.data[:2], strict=True))
    for (weights, told), (value, of_value) in (operands, operands[::-1]):
        if weights.op != "call" or weights.data[0] != "std.nn.softmax::softmax":
            continue
        result = node.data[2]
        if weights.rank != 4 or value.rank != 4 or told[3] in result:
            continue
        rows, heads, query, key = told
        own = [letter for letter in of_value if letter not in told]
        if len(own) != 1 or not set(f"{rows}{heads}{key}") < set(of_value) or len(result) != 4:
            continue
        found = _scores(graph, weights.inputs[0])
        if found is None:
            continue
        queries, keys, scale, mask = found
        values = _turned(graph, value, of_value, (rows, heads, key, own[0]))
        given = [queries, keys, values, graph.literal(scale, "f32")]
        size = (weights.shape[2], weights.shape[3])
        if queries.shape[3] != values.shape[3] or queries.shape[:2] != values.shape[:2]:
            continue
        name, form = "attention", ["{}", "{}", "{}", "{}"]
        if mask is not None:
            batch, each = (ONE, ONE, *mask.shape)[-4:-2]
            if each != ONE:
                continue
            if batch == ONE:
                given.append(graph.expand(graph.reshape(mask, mask.shape[-2:]), size))
                form.append("some({})")
            else:
                own_mask = graph.reshape(mask, [batch, *mask.shape[-2:]])
                given.append(graph.expand(own_mask, (batch, *size)))
                name, form = "attention_rows", ["{}"] * 5
        made = graph.call(
            f"std.nn.attention::{name}",
            given,
            shape=(*queries.shape[:3], values.shape[3]),
            dtype="f32",
            form=form,
            name="attended",
        )
        return graph.permute(made, [(rows, heads, query, own[0]).index(c) for c in result])
    return None


def _scores(graph: Graph, node: Node) -> tuple[Node, Node, float, Node | None] | None:
    """Queries and keys as `[B, H, S, D]`, what scales their products, and which are kept."""
    mask: Node | None = None
    if node.op == "select":
        mask, node, fill = node.inputs
        number = constant(fill)
        # Far below any score: what is not kept has no weight, and a row of nothing else the mean.
        if number is None or not -3.5e38 < number <= -1e9 or mask.rank < 2:
            return None
    for scores, added in _both(node, "add"):
        if mask is None and added.op == "select":
            mask, kept, fill = added.inputs
            if (number := constant(kept)) is not None and number < 0:
                mask, kept, fill = graph.elementwise("not", [mask]), fill, kept
            number = constant(fill)
            if number is None or not -3.5e38 < number <= -1e30 or not _is_zero(kept, added):
                return None
            node = scores
            break
    scale = 1.0
    if node.op == "div" and (by := constant(node.inputs[1])):
        node, scale = node.inputs[0], 1 / float(by)
    elif node.op == "mul":
        for a, b in _both(node, "mul"):
            if (by := constant(b)) is not None:
                node, scale = a, float(by)
                break
    if node.op != "dot" or node.rank != 4:
        return None
    of_a, of_b, (rows, heads, query, key) = node.data
    summed = [letter for letter in of_a if letter not in node.data[2]]
    if len(summed) != 1 or len(of_a) != 4 or len(of_b) != 4:
        return None
    pairs = [(node.inputs[0], of_a), (node.inputs[1], of_b)]
    if query in of_b:
        pairs.reverse()
    (queries, of_query), (keys, of_key) = pairs
    (queries, by_query), (keys, by_key) = _unscaled(queries), _unscaled(keys)
    scale *= by_query * by_key
    if {*of_query} != {rows, heads, query, *summed} or {*of_key} != {rows, heads, key, *summed}:
        return None
    return (
        _turned(graph, queries, of_query, (rows, heads, query, *summed)),
        _turned(graph, keys, of_key, (rows, heads, key, *summed)),
        scale,
        mask,
    )


def _is_zero(kept: Node, chosen: Node) -> bool:
    """What is chosen where a score is kept is 0: it says so, or all else has been replaced."""
    test = chosen.inputs[0]
    return constant(kept) == 0 or (
        test.op == "ne" and test.inputs[0] is kept and constant(test.inputs[1]) == 0
    )


def _unscaled(x: Node) -> tuple[Node, float]:
    """Queries or keys that are each scaled by themselves, before that, and by what."""
    for plain, by in _both(x, "mul"):
        if (number := constant(by)) is not None and plain.shape == x.shape:
            return plain, float(number)
    return x, 1.0


def _turned(graph: Graph, x: Node, letters: str, order: Sequence[str]) -> Node:
    """x with its axes in this order of their letters."""
    return graph.permute(x, [letters.index(letter) for letter in order])


_RULES: tuple[_Rule, ...] = (
    _softmax,
    _guarded_softmax,
    _attention,
    _log_softmax,
    _gelu,
    _sigmoid,
    _silu,
    _layer_norm,
    _rms_norm,
    _relu,
    _embedding,
)
