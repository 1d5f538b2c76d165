"""A traced function of JAX, its jaxpr, as nodes of a graph."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from jax import lax
from jax._src import source_info_util

from linnet.dims import Dim, dim_max, dim_min
from linnet.porting.graph import COMPARE, FLOATS, ZERO, Body, Graph, Node, Shape, constant
from linnet.porting.names import dim_name, value_name
from linnet.porting.operations import Operations, UnknownDtype, Unsupported
from linnet.weights.arrays import dtype_name

_LARGEST_CONSTANT = 8  # elements of a captured array that is written into the text
_FRAMEWORKS = ("site-packages", "dist-packages")

_UNARY = dict.fromkeys(["neg", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "abs", "not"])
_BINARY = {
    "add": "add",
    "add_any": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "rem": "rem",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shift_left": "shl",
}
_HELPERS = {
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "expm1": "expm1",
    "log1p": "log1p",
} | {
    "erf": "erf",
    "erfc": "erfc",
    "is_finite": "is_finite",
}
_REDUCE = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "any",
    "reduce_and": "all",
}
_WINDOW = {"reduce_window_sum": "sum", "reduce_window_max": "max", "reduce_window_min": "min"}
_CUMULATIVE = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
_SCATTER = {
    "scatter": "put",
    "scatter-add": "sum",
    "scatter-mul": "prod",
    "scatter-max": "max",
    "scatter-min": "min",
}
_SAME = frozenset(
    [
        "stop_gradient",
        "copy",
        "copy_p",
        "optimization_barrier",
        "sharding_constraint",
        "layout_constraint",
        "pvary",
        "mesh_cast",
    ]
)
# Primitives that are other functions, with the parameter that holds them.
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr",
}


def dim(size: Any) -> Dim:
    """A size of JAX, a number or an expression of symbols."""
    if isinstance(size, (int, np.integer)):
        return Dim.of(int(size))
    return _dim(ast.parse(str(size).replace("^", "**"), mode="eval").body)


def _dim(tree: ast.expr) -> Dim:
    match tree:
        case ast.Constant(value=int(value)):
            return Dim.of(value)
        case ast.Name(id=name):
            return Dim.of(dim_name(name))
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_dim(x)
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            return _dim(a) + _dim(b)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            return _dim(a) - _dim(b)
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            return _dim(a) * _dim(b)
        case ast.BinOp(left=a, op=ast.Pow(), right=ast.Constant(value=int(n))):
            found = Dim.of(1)
            for _ in range(n):
                found = found * _dim(a)
            return found
        case ast.Call(func=ast.Name(id=name), args=[a, b]):
            left, right = _dim(a), _dim(b)
            match name:
                case "floordiv":
                    return left // right
                case "mod":
                    return left % right
                case "max" | "non_negative":
                    return dim_max(left, right)
                case "min":
                    return dim_min(left, right)
    raise Unsupported(f"the size {ast.unparse(tree)} has no counterpart")


def fact(text: str) -> str:
    """A constraint of a symbolic scope as a where clause."""
    tree = ast.parse(text.replace("^", "**"), mode="eval").body
    match tree:
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            signs = {ast.Eq: "==", ast.GtE: ">=", ast.LtE: "<=", ast.Gt: ">", ast.Lt: "<"}
            return f"{_dim(a)} {signs[type(op)]} {_dim(b)}"
    raise Unsupported(f"the constraint {text} has no counterpart")


def shape_of(aval: Any) -> Shape:
    return tuple(dim(size) for size in aval.shape)


def dtype_of(aval: Any) -> str:
    """The language's name of a dtype; Unsupported where it has none."""
    name = dtype_name(aval.dtype)
    if name is None or name.startswith("f8"):
        raise UnknownDtype(f"the dtype {aval.dtype} has no counterpart in the language")
    return name


def untyped(graph: Graph) -> Node:
    """Stands for a value of a dtype that the language has not."""
    return graph.node("input", (), ["?", "untyped"], dtype="f32")


def is_untyped(node: Node) -> bool:
    return node.op == "input" and node.data == ("?", "untyped")


@dataclass(slots=True)
class Reader:
    """Jaxprs as nodes; every primitive without a translation is collected in `problems`."""

    graph: Graph
    ops: Operations
    capture: Callable[[Any, Graph], Node]
    problems: dict[str, None] = field(default_factory=dict)
    around: str = ""  # where the function that is being read was called

    def run(self, jaxpr: Any, constants: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
        """The results on these inputs."""
        env: dict[Any, Node] = dict(zip(jaxpr.constvars, constants, strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))
        titles = _titles(jaxpr.eqns)
        needed = _needed(jaxpr)
        for at, eqn in enumerate(jaxpr.eqns):
            if at not in needed:
                continue
            given = [self.atom(x, env) for x in eqn.invars]
            made = self.outcome(eqn, given)
            for var, node in zip(eqn.outvars, made, strict=True):
                if len(made) == 1 and at in titles:
                    node = self.graph.named(node, titles[at])
                env[var] = node
        return [self.atom(x, env) for x in jaxpr.outvars]

    def atom(self, x: Any, env: Mapping[Any, Node]) -> Node:
        if hasattr(x, "val"):
            return self.literal(x.val, x.aval)
        return env[x]

    def literal(self, value: Any, aval: Any) -> Node:
        array = np.asarray(value)
        if array.ndim:
            return self.capture(array, self.graph)
        return self.graph.literal(array.item(), dtype_of(aval))

    def closed(self, closed: Any) -> tuple[Any, list[Node]]:
        """A jaxpr, and the nodes of what it has captured."""
        if hasattr(closed, "jaxpr"):
            return closed.jaxpr, [self.constant(value) for value in closed.consts]
        return closed, []

    def constant(self, value: Any) -> Node:
        """An array that the function has captured."""
        array = np.asarray(value)
        return (
            self.graph.literal(array.item(), dtype_of(array))
            if not array.ndim
            else (self.capture(array, self.graph))
        )

    def outcome(self, eqn: Any, given: list[Node]) -> list[Node]:
        """The results of one equation; where it has no translation, nodes of their types."""
        try:
            if any(is_untyped(x) for x in given):
                raise UnknownDtype("what it is given is of no dtype of the language")
            if eqn.effects:
                raise Unsupported("it has effects, and the language has none")
            made = self.value(eqn, given)
        except Unsupported as reason:
            if not any(is_untyped(x) for x in given):  # one mistake is one error
                place = _place(eqn) or self.around
                self.problems[f"`{eqn.primitive.name}`{place}: {reason}"] = None
            return [self.unknown(var.aval) for var in eqn.outvars]
        return made if isinstance(made, list) else [made]

    def unknown(self, aval: Any) -> Node:
        """Stands for what could not be translated, so that the rest is looked at too."""
        try:
            return self.graph.node("input", (), ["?"], shape=shape_of(aval), dtype=dtype_of(aval))
        except (Unsupported, AttributeError):
            return untyped(self.graph)

    # ------------------------------------------------ primitives

    def value(self, eqn: Any, given: list[Node]) -> Node | list[Node]:
        """What a primitive gives."""
        graph, ops, params = self.graph, self.ops, eqn.params
        name = eqn.primitive.name
        if name in _INLINED:
            jaxpr, constants = self.closed(params[_INLINED[name]])
            outer, self.around = self.around, _place(eqn) or self.around
            made = self.run(jaxpr, constants, given)
            self.around = outer
            return made
        if name.startswith(("random_", "threefry")):
            raise Unsupported(
                "there are no random numbers; draw them outside, give them as an input"
            )
        for aval in [*(v.aval for v in eqn.outvars), *(v.aval for v in eqn.invars)]:
            dtype_of(aval)
        shape = shape_of(eqn.outvars[0].aval) if eqn.outvars else ()
        dtype = dtype_of(eqn.outvars[0].aval) if eqn.outvars else ""
        if name in _UNARY:
            return graph.elementwise(name, given)
        if name in _BINARY:
            return graph.elementwise(_BINARY[name], given)
        if name in COMPARE:
            return graph.elementwise(name, given, "bool")
        if name in _HELPERS:
            return graph.helper(_HELPERS[name], *given, dtype=dtype)
        if name in _REDUCE:
            if _REDUCE[name] in ("any", "all") and dtype != "bool":
                raise Unsupported(f"it works on the bits of {dtype}")
            return graph.reduce(_REDUCE[name], given[0], params["axes"])
        if name in _CUMULATIVE:
            return ops.cumulative(_CUMULATIVE[name], given[0], params["axis"], params["reverse"])
        if name in _SAME:
            return given if len(given) > 1 else given[0]
        match name:
            case "convert_element_type":
                return graph.cast(given[0], dtype)
            case "pow":
                return ops.power(*given)
            case "square":
                return graph.square(given[0])
            case "integer_pow":
                return ops.integer_power(given[0], params["y"])
            case "logistic":
                return self.standard("std.nn.activations::sigmoid", given[0])
            case "tan":
                [x] = given
                parts = [graph.elementwise("sin", [x]), graph.elementwise("cos", [x])]
                return graph.elementwise("div", parts)
            case "sinh" | "cosh":
                return ops.hyperbolic(name, given[0])
            case "exp2":
                scale = graph.literal(0.6931471805599453, dtype)
                return graph.elementwise("exp", [graph.elementwise("mul", [given[0], scale])])
            case "round":
                away = params["rounding_method"] == lax.RoundingMethod.AWAY_FROM_ZERO
                return graph.helper("round_half_away" if away else "round_half_even", given[0])
            case "shift_right_arithmetic" | "shift_right_logical":
                return ops.shift_right(*given, logical=name == "shift_right_logical")
            case "reduce_precision":
                return ops.reduce_precision(
                    given[0], params["exponent_bits"], params["mantissa_bits"]
                )
            case "clamp":
                return ops.clamp(*given)
            case "select_n":
                return self.select(given)
            case "broadcast_in_dim":
                return graph.broadcast(given[0], shape, params["broadcast_dimensions"])
            case "reshape" | "squeeze" | "expand_dims":
                if params.get("dimensions") is not None and name == "reshape":
                    given[0] = graph.permute(given[0], params["dimensions"])
                return graph.reshape(given[0], shape)
            case "transpose":
                return graph.permute(given[0], params["permutation"])
            case "slice":
                steps = params["strides"] or [1] * len(shape)
                starts, stops = params["start_indices"], params["limit_indices"]
                ranges = [
                    (dim(a), dim(b), int(s)) for a, b, s in zip(starts, stops, steps, strict=True)
                ]
                return graph.slice(given[0], ranges)
            case "concatenate":
                return graph.concat(given, params["dimension"])
            case "stack":
                axis = params.get("axis", params.get("dimension", 0)) % len(shape)
                one = [*shape[:axis], Dim.of(1), *shape[axis + 1 :]]
                return graph.concat([graph.reshape(x, one) for x in given], axis)
            case "tile":
                return self.tile(given[0], [dim(n) for n in params["reps"]])
            case "split":
                return self.split(given[0], params["axis"], params["sizes"])
            case "pad":
                config = params["padding_config"]
                edges = [(_whole(a), _whole(b), _whole(c)) for a, b, c in config]
                return graph.pad(given[0], given[1], edges)
            case "rev":
                return ops.reverse(given[0], params["dimensions"])
            case "iota":
                return graph.iota(shape, params["dimension"], dtype)
            case "dim_as_value":
                return graph.node("size", (), [dim(params["dim"])], dtype=dtype)
            case "dot_general":
                contract, batch = params["dimension_numbers"]
                return ops.dot_general(given[0], given[1], contract, batch, dtype)
            case "conv_general_dilated":
                return self.convolution(given, params)
            case "gather":
                return self.gather(given, params, shape)
            case _ if name in _SCATTER:
                return self.scatter(_SCATTER[name], given, params)
            case "dynamic_slice":
                return ops.dynamic_slice(given[0], given[1:], shape)
            case "dynamic_update_slice":
                return ops.dynamic_update_slice(given[0], given[1], given[2:])
            case "argmax" | "argmin":
                [axis] = params["axes"]
                return ops.arg_extreme(name[3:], given[0], axis, dtype)
            case "sort":
                return self.sort(given, params)
            case "top_k":
                axis = params.get("axis", given[0].rank - 1)
                return self.top_k(given[0], dim(params["k"]), axis % given[0].rank)
            case _ if name in _WINDOW:
                return self.window(_WINDOW[name], given[0], params)
            case "scan":
                return self.scan(given, params)
            case "while":
                return self.repeat(given, params)
            case "cond":
                return self.branch(given, params)
        raise Unsupported("there is no translation")

    def standard(self, function: str, x: Node) -> Node:
        return self.graph.call(function, [x], shape=x.shape, dtype=x.dtype)

    def select(self, given: Sequence[Node]) -> Node:
        which, *cases = given
        if which.dtype == "bool":
            return self.graph.elementwise("select", [which, cases[1], cases[0]])
        result = cases[-1]
        for at, case in reversed(list(enumerate(cases[:-1]))):
            number = self.graph.literal(at, which.dtype)
            test = self.graph.elementwise("eq", [which, number], "bool")
            result = self.graph.elementwise("select", [test, case, result])
        return result

    def split(self, x: Node, axis: int, sizes: Sequence[Any]) -> list[Node]:
        out: list[Node] = []
        start = ZERO
        for size in map(dim, sizes):
            out.append(self.graph.part(x, axis, start, start + size))
            start = start + size
        return out

    def tile(self, x: Node, counts: Sequence[Dim]) -> Node:
        """x again and again along its axes."""
        pairs = list(zip(counts, x.shape, strict=True))
        apart = [size for _, own in pairs for size in (Dim.of(1), own)]
        wide = [size for pair in pairs for size in pair]
        spread = self.graph.expand(self.graph.reshape(x, apart), wide)
        return self.graph.reshape(spread, [count * own for count, own in pairs])

    def convolution(self, given: Sequence[Node], params: Mapping[str, Any]) -> Node:
        numbers = params["dimension_numbers"]
        return self.ops.convolution(
            *given,
            layouts=(numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec),
            strides=params["window_strides"],
            padding=[(_whole(a), _whole(b)) for a, b in params["padding"]],
            spread=params["lhs_dilation"],
            dilation=params["rhs_dilation"],
            groups=params["feature_group_count"],
            batch_groups=params["batch_group_count"],
        )

    def gather(self, given: Sequence[Node], params: Mapping[str, Any], shape: Shape) -> Node:
        numbers, x = params["dimension_numbers"], given[0]
        fill: float | int | bool | None = None
        if params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
            fill = params["fill_value"]
            if fill is None:
                kind = x.dtype[0]
                low = -(2 ** (int(x.dtype[1:]) - 1)) if kind == "i" else 0
                fill = float("nan") if x.dtype in FLOATS else True if x.dtype == "bool" else low
                if kind == "u":
                    fill = 2 ** int(x.dtype[1:]) - 1
        return self.ops.gather(
            x,
            given[1],
            offset=numbers.offset_dims,
            collapsed=numbers.collapsed_slice_dims,
            batching=numbers.operand_batching_dims,
            index_batching=numbers.start_indices_batching_dims,
            mapped=numbers.start_index_map,
            vector=given[1].rank - 1,
            sizes=tuple(map(dim, params["slice_sizes"])),
            fill=fill,
        )

    def scatter(self, kind: str, given: Sequence[Node], params: Mapping[str, Any]) -> Node:
        numbers = params["dimension_numbers"]
        if params["mode"] == lax.GatherScatterMode.CLIP:
            raise Unsupported("a scatter that moves what lies outside is not translated")
        return self.ops.scatter(
            kind,
            *given,
            windows=numbers.update_window_dims,
            inserted=numbers.inserted_window_dims,
            batching=numbers.operand_batching_dims,
            index_batching=numbers.scatter_indices_batching_dims,
            mapped=numbers.scatter_dims_to_operand_dims,
            vector=given[1].rank - 1,
        )

    def sort(self, given: Sequence[Node], params: Mapping[str, Any]) -> list[Node]:
        if params["num_keys"] != 1:
            raise Unsupported("sorting by several keys is not translated")
        order = self.ops.order(given[0], params["dimension"])
        return [self.ops.along(x, order, params["dimension"]) for x in given]

    def top_k(self, x: Node, count: Dim, axis: int) -> list[Node]:
        order = self.graph.part(self.ops.order(x, axis, falling=True), axis, 0, count)
        return [self.ops.along(x, order, axis), self.graph.cast(order, "i32")]

    def window(self, kind: str, x: Node, params: Mapping[str, Any]) -> Node:
        none = {"sum": 0.0, "max": -np.inf, "min": np.inf}[kind]
        if x.dtype not in FLOATS:
            raise Unsupported(f"windows over {x.dtype} are not translated")
        return self.ops.window(
            kind,
            x,
            self.graph.literal(none, x.dtype),
            [_whole(n) for n in params["window_dimensions"]],
            params["window_strides"],
            [(_whole(a), _whole(b)) for a, b in params["padding"]],
            params["base_dilation"],
            params["window_dilation"],
        )

    # ------------------------------------------------ control

    def scan(self, given: Sequence[Node], params: Mapping[str, Any]) -> list[Node]:
        """A counted loop: slices of what is scanned are read by the turn's number."""
        graph = self.graph
        consts, carry = params["num_consts"], params["num_carry"]
        fixed, first, scanned = (
            given[:consts],
            given[consts : consts + carry],
            given[consts + carry :],
        )
        length, backwards = dim(params["length"]), params["reverse"]
        jaxpr, captured = self.closed(params["jaxpr"])

        def body(known: list[Node], turn: Node, held: list[Node]) -> tuple[list[Node], list[Node]]:
            at = turn
            if backwards:
                last = graph.node("size", (), [length - 1], dtype="i64")
                if length.constant is not None:
                    last = graph.literal(length.constant - 1, "i64")
                at = graph.elementwise("sub", [last, turn])
            rows = [graph.row(x, at) for x in known[consts + len(captured) :]]
            own = known[consts : consts + len(captured)]
            made = self.run(jaxpr, own, [*known[:consts], *held, *rows])
            return made[:carry], made[carry:]

        counters = _counters(jaxpr, consts, carry, first)
        if counters and not backwards:
            return self.counted(given, params, counters)
        new, stacked = graph.loop([*fixed, *captured, *scanned], first, length, body)
        if backwards:
            stacked = [self.ops.reverse(node, [0]) for node in stacked]
        return [*new, *stacked]

    def counted(
        self, given: Sequence[Node], params: Mapping[str, Any], counters: Mapping[int, int]
    ) -> list[Node]:
        """A loop whose counters, as `fori_loop` has them, are the turn's number and a start."""
        graph = self.graph
        consts, carry = params["num_consts"], params["num_carry"]
        fixed, first, scanned = (
            given[:consts],
            given[consts : consts + carry],
            given[consts + carry :],
        )
        length = dim(params["length"])
        jaxpr, captured = self.closed(params["jaxpr"])
        kept = [at for at in range(carry) if at not in counters]

        def body(known: list[Node], turn: Node, held: list[Node]) -> tuple[list[Node], list[Node]]:
            values: list[Node] = []
            own = iter(held)
            for at in range(carry):
                if at in counters:
                    count = graph.cast(turn, first[at].dtype)
                    start = graph.literal(counters[at], first[at].dtype)
                    values.append(graph.elementwise("add", [count, start]))
                else:
                    values.append(next(own))
            rows = [graph.row(x, turn) for x in known[consts + len(captured) :]]
            inner = known[consts : consts + len(captured)]
            made = self.run(jaxpr, inner, [*known[:consts], *values, *rows])
            return [made[at] for at in kept], made[carry:]

        new, stacked = graph.loop(
            [*fixed, *captured, *scanned], [first[at] for at in kept], length, body
        )
        told = iter(new)
        out: list[Node] = []
        for at in range(carry):
            if at in counters:
                size = length + counters[at]
                number = size.constant
                out.append(
                    graph.literal(number, first[at].dtype)
                    if number is not None
                    else graph.node("size", (), [size], dtype=first[at].dtype)
                )
            else:
                out.append(next(told))
        return [*out, *stacked]

    def repeat(self, given: Sequence[Node], params: Mapping[str, Any]) -> list[Node]:
        graph = self.graph
        of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
        first = given[of_test + of_body :]
        test, test_captured = self.closed(params["cond_jaxpr"])
        body, body_captured = self.closed(params["body_jaxpr"])
        fixed = [*given[: of_test + of_body], *test_captured, *body_captured]
        args = [graph.arg(at, x, x.name) for at, x in enumerate([*fixed, *first])]
        held = args[len(fixed) :]
        own_test = args[of_test + of_body :][: len(test_captured)]
        own_body = args[of_test + of_body + len(test_captured) :][: len(body_captured)]
        goes_on = self.run(test, own_test, [*args[:of_test], *held])
        new = self.run(body, own_body, [*args[of_test : of_test + of_body], *held])
        return graph.repeat(fixed, first, Body(tuple(goes_on)), Body(tuple(new)))

    def branch(self, given: Sequence[Node], params: Mapping[str, Any]) -> list[Node]:
        graph = self.graph
        chosen, *rest = given
        number = constant(chosen)
        closed = [self.closed(each) for each in params["branches"]]
        if number is not None:
            jaxpr, captured = closed[max(0, min(int(number), len(closed) - 1))]
            return self.run(jaxpr, captured, rest)
        fixed = [node for _, captured in closed for node in captured]
        args = [graph.arg(at, x, x.name) for at, x in enumerate([*rest, *fixed])]
        bodies: list[Body] = []
        at = len(rest)
        for jaxpr, captured in closed:
            own = args[at : at + len(captured)]
            at += len(captured)
            bodies.append(Body(tuple(self.run(jaxpr, own, args[: len(rest)]))))
        if len(bodies) == 2 and chosen.op == "cast" and chosen.inputs[0].dtype == "bool":
            chosen = chosen.inputs[0]
        return graph.branch(chosen, [*rest, *fixed], bodies)


def _counters(jaxpr: Any, consts: int, carry: int, first: Sequence[Node]) -> dict[int, int]:
    """The carried numbers that go up by 1 each turn, from a known start."""
    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    found: dict[int, int] = {}
    for at in range(carry):
        out, own = jaxpr.outvars[at], jaxpr.invars[consts + at]
        eqn = makers.get(out) if not hasattr(out, "val") else None
        start = constant(first[at])
        if eqn is None or eqn.primitive.name != "add" or start is None or first[at].rank:
            continue
        a, b = eqn.invars
        if a is own and hasattr(b, "val") and b.val == 1 and first[at].dtype[0] in "iu":
            found[at] = int(start)
    return found


def _needed(jaxpr: Any) -> set[int]:
    """The equations that a result or an effect needs, by number."""
    wanted = {id(var) for var in jaxpr.outvars}
    found: set[int] = set()
    for at in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[at]
        if eqn.effects or any(id(var) in wanted for var in eqn.outvars):
            found.add(at)
            wanted.update(id(var) for var in eqn.invars)
    return found


def _whole(number: Any) -> int:
    """A number of positions, which must be known."""
    size = dim(number).constant
    if size is None:
        raise Unsupported(f"the size {number} must be a number here")
    return size


# ---------------------------------------------------------------- names and places


def _frame(eqn: Any) -> Any:
    """Where the user's own code, and no framework's, asks for an equation; None if nowhere."""
    frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    own = [f for f in frames if not any(part in f.file_name for part in _FRAMEWORKS)]
    return next(iter([*own, *frames]), None)


def _place(eqn: Any) -> str:
    frame = _frame(eqn)
    return f" at {frame.file_name}:{frame.start_line}" if frame is not None else ""


def _titles(eqns: Sequence[Any]) -> dict[int, str]:
    """The name that the user's own line gives to what it makes last, by the equation's number."""
    found: dict[int, str] = {}
    lines: list[tuple[str, int, int] | None] = []
    for eqn in eqns:
        frame = _frame(eqn)
        if frame is None:
            lines.append(None)
        else:
            lines.append((frame.file_name, frame.start_line, _part(frame)))
    for at, line in enumerate(lines):
        if line is not None and line != (lines[at + 1] if at + 1 < len(lines) else None):
            target = _targets(line[0]).get(line[1:])
            if target is not None:
                found[at] = target
    return found


def _part(frame: Any) -> int:
    """Which element of a tuple that is assigned the frame stands in; 0 where there is none."""
    for (line, number), (start, stop) in _columns(frame.file_name).items():
        if line == frame.start_line and start <= frame.start_column < stop:
            return number
    return 0


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=64)
def _targets(file: str) -> Mapping[tuple[int, int], str]:
    """The name that an assignment gives, by its line and the element of a tuple."""
    found: dict[tuple[int, int], str] = {}
    for node in ast.walk(_tree(file)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            targets = [node.targets[0]]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                targets = node.targets[0].elts
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for number, target in enumerate(targets):
            if isinstance(target, ast.Name) and isinstance(node, ast.stmt):
                name = value_name(target.id)
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[line, number] = name
    return found


@lru_cache(maxsize=64)
def _columns(file: str) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Where each element of a tuple that is assigned to a tuple stands in its line."""
    return {
        (element.lineno, number): (element.col_offset, element.end_col_offset or 0)
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
        for number, element in enumerate(node.value.elts)
    }
