"""A StableHLO module as nodes of a graph: its public function, with all that it calls put in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir as contexts
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from linnet.diagnostics import ExportError
from linnet.dims import Dim
from linnet.jax.parameters import Captured, input_node, members_of, node_of
from linnet.jax.traced import is_untyped, untyped
from linnet.porting.graph import FLOATS, Body, Graph, Node, Shape, constant
from linnet.porting.members import Member
from linnet.porting.names import Names, value_name
from linnet.porting.operations import Operations, UnknownDtype, Unsupported, lowest
from linnet.porting.package import Imported
from linnet.weights.arrays import dtype_name

_UNARY = {
    "negate": "neg",
    "not": "not",
    "abs": "abs",
    "exponential": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sine": "sin",
    "cosine": "cos",
    "tanh": "tanh",
}
_BINARY = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "remainder": "rem",
    "maximum": "max",
    "minimum": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shift_left": "shl",
}
_HELPERS = {
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "is_finite": "is_finite",
    "round_nearest_even": "round_half_even",
    "round_nearest_afz": "round_half_away",
    "erf": "erf",
    "erfc": "erfc",
}
_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_SAME = frozenset({"optimization_barrier", "reduce_precision"})


def read_module(
    text: str | bytes, params: Any, graph: Graph, notes: list[str]
) -> tuple[Imported, dict[str, None]]:
    """The module's public function, and what of it has no translation.

    ExportError where the text is no module, or the parameters are not its arguments.
    """
    with contexts.make_ir_context():
        try:
            module = (
                ir.Module.parse(text)
                if isinstance(text, str)
                else ir.Module.parse(stablehlo.deserialize_portable_artifact_str(text))
            )
        except Exception as error:  # MLIR raises classes of its own, that change
            raise ExportError(f"this is no StableHLO module: {error}") from error
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        main = functions.get("main")
        if main is None:
            raise ExportError("the module has no function `main`")
        reader = _Reader(graph, Operations(graph, notes), functions)
        return reader.program(main, params, notes), reader.problems


@dataclass(slots=True)
class _Reader:
    graph: Graph
    ops: Operations
    functions: Mapping[str, Any]
    problems: dict[str, None] = field(default_factory=dict)
    captured: Captured | None = None

    def program(self, main: Any, params: Any, notes: list[str]) -> Imported:
        """The public function, its first arguments or those that are so marked its members."""
        [block] = main.regions[0].blocks
        types = [argument.type for argument in block.arguments]
        told = _told(main, "arg_attrs", len(types))
        members: list[Member] = []
        inputs: list[Node] = []
        given: list[Node] = []
        problems: dict[str, None] = {}
        nodes: dict[Member, Node] = {}
        marked = bool(types) and all("linnet.kind" in each for each in told)
        if marked:
            own = _by_path(params, told)
        else:
            own = members_of(jax.tree_util.tree_flatten_with_path(params)[0], problems)
        if problems:
            raise ExportError("; ".join(problems))
        names = Names()
        place = iter(own)
        for at, (type, mark) in enumerate(zip(types, told, strict=True)):
            try:
                shape, dtype = _typed(type)
            except Unsupported as reason:
                raise ExportError(f"argument {at} of `main`: {reason}") from reason
            is_member = mark["linnet.kind"] in ("param", "buffer") if marked else at < len(own)
            if is_member:
                member = next(place)
                if member.shape != shape or member.dtype != dtype:
                    wanted = _shown(shape, dtype)
                    raise ExportError(
                        f"argument {at} of `main` is {wanted}, and the parameter `{member.tensor}` "
                        f"is {_shown(member.shape, member.dtype)}"
                    )
                members.append(member)
                nodes[member] = node_of(self.graph, member)
                given.append(nodes[member])
            else:
                wish = mark.get("linnet.path", "x")
                if mark.get("linnet.kind") == "state":
                    notes.append(f"the state `{wish}` is an input, and its new value a result")
                made = input_node(self.graph, names.fresh(value_name(wish)), shape, dtype)
                inputs.append(made)
                given.append(made)
        if not marked and len(own) > len(types):
            raise ExportError(
                f"`main` has {len(types)} arguments, and there are {len(own)} parameters"
            )
        self.captured = Captured(members, nodes)
        results = self.block(block, given, {})
        return Imported(self.graph, inputs, members, nodes, results, (), notes)

    def block(self, block: Any, given: Sequence[Node], outer: Mapping[Any, Node]) -> list[Node]:
        """What a block returns on these arguments."""
        env: dict[Any, Node] = dict(outer)
        env.update(zip(block.arguments, given, strict=True))
        for operation in _alive(block):
            inputs = [env[value] for value in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return inputs
            made = self.outcome(operation, inputs, env)
            env.update(zip(operation.results, made, strict=True))
        return []

    def outcome(self, op: Any, given: list[Node], env: Mapping[Any, Node]) -> list[Node]:
        try:
            if any(is_untyped(x) for x in given):
                raise UnknownDtype("what it is given is of no dtype of the language")
            own = op.name == "func.call"  # what is wrong in it is said there
            types = [] if own else [_typed(result.type) for result in op.results]
            made = self.value(op, op.name.partition(".")[2], given, types, env)
        except Unsupported as reason:
            if not any(is_untyped(x) for x in given):  # one mistake is one error
                self.problems[f"`{op.name}` at {_place(op)}: {reason}"] = None
            return [self.unknown(result.type) for result in op.results]
        return made if isinstance(made, list) else [made]

    def unknown(self, type: Any) -> Node:
        """Stands for what could not be translated, so that the rest is looked at too."""
        try:
            shape, dtype = _typed(type)
        except Unsupported:
            return untyped(self.graph)
        return self.graph.node("input", (), ["?"], shape=shape, dtype=dtype)

    # ------------------------------------------------ operations

    def value(
        self,
        op: Any,
        name: str,
        given: list[Node],
        types: Sequence[tuple[Shape, str]],
        env: Mapping[Any, Node],
    ) -> Node | list[Node]:
        """What an operation gives."""
        graph, ops, attributes = self.graph, self.ops, op.attributes
        shape, dtype = types[0] if types else ((), "")
        if name in _UNARY:
            return graph.elementwise(_UNARY[name], given)
        if name in _BINARY:
            return graph.elementwise(_BINARY[name], given)
        if name in _HELPERS:
            return graph.helper(_HELPERS[name], *given, dtype=dtype)
        match name:
            case "call":
                callee = ir.FlatSymbolRefAttr(attributes["callee"]).value
                [block] = self.functions[callee].regions[0].blocks
                return self.block(block, given, {})
            case "constant":
                return self.constant(attributes["value"], shape, dtype)
            case "convert":
                return graph.cast(given[0], dtype)
            case "compare":
                direction = str(
                    stablehlo.ComparisonDirectionAttr(attributes["comparison_direction"]).value
                )
                return graph.elementwise(direction.lower(), given, "bool")
            case "select":
                return graph.elementwise("select", given)
            case "optimization_barrier":
                return given
            case "reduce_precision":
                bits = (_number(attributes[f"{k}_bits"]) for k in ("exponent", "mantissa"))
                return ops.reduce_precision(given[0], *bits)
            case "clamp":
                return ops.clamp(*given)
            case "power":
                return ops.power(*given) if dtype in FLOATS else self.integer_power(given)
            case "square":
                return graph.square(given[0])
            case "logistic":
                return graph.call("std.nn.activations::sigmoid", given, shape=shape, dtype=dtype)
            case "sinh" | "cosh":
                return ops.hyperbolic(name, given[0])
            case "tan":
                parts = [graph.elementwise("sin", given), graph.elementwise("cos", given)]
                return graph.elementwise("div", parts)
            case "shift_right_arithmetic" | "shift_right_logical":
                return ops.shift_right(*given, logical=name == "shift_right_logical")
            case "broadcast_in_dim":
                return graph.broadcast(
                    given[0], shape, _numbers(attributes["broadcast_dimensions"])
                )
            case "reshape":
                return graph.reshape(given[0], shape)
            case "transpose":
                return graph.permute(given[0], _numbers(attributes["permutation"]))
            case "slice":
                told = ("start_indices", "limit_indices", "strides")
                starts, stops, steps = (_numbers(attributes[each]) for each in told)
                ranges = [
                    (Dim.of(a), Dim.of(b), step)
                    for a, b, step in zip(starts, stops, steps, strict=True)
                ]
                return graph.slice(given[0], ranges)
            case "concatenate":
                return graph.concat(given, _number(attributes["dimension"]))
            case "pad":
                told = ("edge_padding_low", "edge_padding_high", "interior_padding")
                lows, highs, gaps = (_numbers(attributes[each]) for each in told)
                return graph.pad(given[0], given[1], list(zip(lows, highs, gaps, strict=True)))
            case "reverse":
                return ops.reverse(given[0], _numbers(attributes["dimensions"]))
            case "iota":
                return graph.iota(shape, _number(attributes["iota_dimension"]), dtype)
            case "dot_general":
                axes = stablehlo.DotDimensionNumbers(attributes["dot_dimension_numbers"])
                contract = axes.lhs_contracting_dimensions, axes.rhs_contracting_dimensions
                batch = axes.lhs_batching_dimensions, axes.rhs_batching_dimensions
                return ops.dot_general(given[0], given[1], contract, batch, dtype)
            case "convolution":
                return self.convolution(given, attributes)
            case "gather":
                return self.gather(given, attributes)
            case "scatter":
                return self.scatter(op, given, attributes)
            case "dynamic_slice":
                return ops.dynamic_slice(given[0], given[1:], shape)
            case "dynamic_update_slice":
                return ops.dynamic_update_slice(given[0], given[1], given[2:])
            case "reduce":
                return self.reduce(op, given)
            case "reduce_window":
                return self.window(op, given, attributes)
            case "sort":
                return self.sort(op, given, attributes)
            case "top_k":
                axis, count = given[0].rank - 1, _number(attributes["k"])
                order = graph.part(ops.order(given[0], axis, falling=True), axis, 0, count)
                return [ops.along(given[0], order, axis), graph.cast(order, types[1][1])]
            case "while":
                return self.repeat(op, given, env)
            case "case" | "if":
                return self.branch(op, name, given, env)
        raise Unsupported("there is no translation")

    def constant(self, attribute: Any, shape: Shape, dtype: str) -> Node:
        """A number, the same number everywhere, or an array that becomes a buffer."""
        dense = ir.DenseElementsAttr(attribute)
        if dense.is_splat:
            value = dense.get_splat_value()
            number = getattr(value, "value", None)
            if number is not None:
                return self.graph.literal(number, dtype, shape)
        assert self.captured is not None
        array = np.array(dense)
        if dtype == "bf16" and array.dtype != np.dtype(jax.numpy.bfloat16):
            array = array.view(jax.numpy.bfloat16)
        if dtype == "bool":
            array = array.astype(np.bool_)
        return self.captured.node(array.reshape([int(str(n)) for n in shape]), self.graph)

    def integer_power(self, given: Sequence[Node]) -> Node:
        power = constant(given[1])
        if power is None or power < 0:
            raise Unsupported("powers of integers are translated for a known power only")
        return self.ops.integer_power(given[0], int(power))

    def convolution(self, given: Sequence[Node], attributes: Any) -> Node:
        told = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
        rank = given[0].rank - 2
        return self.ops.convolution(
            *given,
            layouts=(
                [
                    told.input_batch_dimension,
                    told.input_feature_dimension,
                    *told.input_spatial_dimensions,
                ],
                [
                    told.kernel_output_feature_dimension,
                    told.kernel_input_feature_dimension,
                    *told.kernel_spatial_dimensions,
                ],
                [
                    told.output_batch_dimension,
                    told.output_feature_dimension,
                    *told.output_spatial_dimensions,
                ],
            ),
            strides=_listed(attributes, "window_strides", [1] * rank),
            padding=_edges(attributes, rank),
            spread=_listed(attributes, "lhs_dilation", [1] * rank),
            dilation=_listed(attributes, "rhs_dilation", [1] * rank),
            groups=_number(attributes["feature_group_count"]),
            batch_groups=_number(attributes["batch_group_count"]),
            flipped=[bool(n) for n in _listed(attributes, "window_reversal", [0] * rank)],
        )

    def gather(self, given: Sequence[Node], attributes: Any) -> Node:
        told = stablehlo.GatherDimensionNumbers(attributes["dimension_numbers"])
        x, indices = given
        vector = told.index_vector_dim
        if vector == indices.rank:
            indices = self.graph.reshape(indices, [*indices.shape, Dim.of(1)])
        return self.ops.gather(
            x,
            indices,
            offset=told.offset_dims,
            collapsed=told.collapsed_slice_dims,
            batching=told.operand_batching_dims,
            index_batching=told.start_indices_batching_dims,
            mapped=told.start_index_map,
            vector=vector,
            sizes=tuple(map(Dim.of, _numbers(attributes["slice_sizes"]))),
            fill=None,
        )

    def scatter(self, op: Any, given: Sequence[Node], attributes: Any) -> Node:
        if len(given) != 3:
            raise Unsupported("scatters into several arrays at once are not translated")
        told = stablehlo.ScatterDimensionNumbers(attributes["scatter_dimension_numbers"])
        x, indices, updates = given
        vector = told.index_vector_dim
        if vector == indices.rank:
            indices = self.graph.reshape(indices, [*indices.shape, Dim.of(1)])
        return self.ops.scatter(
            self.joining(op, x.dtype),
            x,
            indices,
            updates,
            windows=told.update_window_dims,
            inserted=told.inserted_window_dims,
            batching=told.input_batching_dims,
            index_batching=told.scatter_indices_batching_dims,
            mapped=told.scattered_dims_to_operand_dims,
            vector=vector,
        )

    def joining(self, op: Any, dtype: str) -> str:
        """What a region of two numbers does: `sum`, `prod`, `max`, `min`, `any`, `all`, `put`."""
        graph = self.graph
        a, b = (graph.node("arg", (), [at], dtype=dtype) for at in range(2))
        [result] = self.block(op.regions[0].blocks[0], [a, b], {})
        if result is b:
            return "put"
        for name, kind in _KINDS.items():
            if result in (graph.elementwise(name, [a, b]), graph.elementwise(name, [b, a])):
                return kind
        if dtype == "bool":
            for name, kind in (("or", "any"), ("and", "all")):
                if result in (graph.elementwise(name, [a, b]), graph.elementwise(name, [b, a])):
                    return kind
        raise Unsupported("its region is no sum, product, `max`, `min`, `and` or `or`")

    def reduce(self, op: Any, given: Sequence[Node]) -> Node | list[Node]:
        axes = _numbers(op.attributes["dimensions"])
        if len(given) == 4 and len(axes) == 1:
            return self.arg_extreme(op, given, axes[0])
        if len(given) != 2:
            raise Unsupported("reductions of several arrays at once are not translated")
        x, start = given
        kind = self.joining(op, x.dtype)
        made = self.graph.reduce(kind, x, axes)
        first = constant(start)
        if first is not None and first == _identity(kind, x.dtype):
            return made
        names = {"any": "or", "all": "and", **{k: name for name, k in _KINDS.items()}}
        return self.graph.elementwise(names[kind], [made, start])

    def arg_extreme(self, op: Any, given: Sequence[Node], axis: int) -> list[Node]:
        """The reduction to a largest or smallest number and its position, as JAX writes it."""
        graph = self.graph
        x, positions = given[:2]
        a, i, b, j = (
            graph.node("arg", (), [at], dtype=(x, positions)[at % 2].dtype) for at in range(4)
        )
        found = self.block(op.regions[0].blocks[0], [a, i, b, j], {})
        wanted = graph.iota(x.shape, axis, positions.dtype)
        for kind, name in (("max", "gt"), ("min", "lt")):
            better = graph.elementwise(name, [a, b], "bool")
            # JAX asks for NaN of integers too.
            better = graph.elementwise("or", [better, graph.elementwise("ne", [a, a], "bool")])
            same = graph.elementwise("eq", [a, b], "bool")
            earlier = graph.elementwise("lt", [i, j], "bool")
            tie = graph.elementwise("and", [same, earlier])
            chosen = graph.elementwise("or", [better, tie])
            made = [
                graph.elementwise("select", [better, a, b]),
                graph.elementwise("select", [chosen, i, j]),
            ]
            if found == made and positions is wanted:
                best = self.ops.arg_extreme(kind, x, axis, positions.dtype)
                return [graph.reduce(kind, x, [axis]), best]
        raise Unsupported("reductions of several arrays at once are not translated")

    def window(self, op: Any, given: Sequence[Node], attributes: Any) -> Node:
        if len(given) != 2:
            raise Unsupported("windows over several arrays at once are not translated")
        x, start = given
        kind, rank = self.joining(op, x.dtype), x.rank
        if kind not in ("sum", "prod", "max", "min") or constant(start) != _identity(kind, x.dtype):
            raise Unsupported("a window must start with what leaves its operation unchanged")
        return self.ops.window(
            kind,
            x,
            start,
            _numbers(attributes["window_dimensions"]),
            _listed(attributes, "window_strides", [1] * rank),
            _edges(attributes, rank),
            _listed(attributes, "base_dilations", [1] * rank),
            _listed(attributes, "window_dilations", [1] * rank),
        )

    def sort(self, op: Any, given: Sequence[Node], attributes: Any) -> list[Node]:
        graph, axis, key = self.graph, _number(attributes["dimension"]), given[0]
        args = [
            graph.node("arg", (), [at], dtype=given[at // 2].dtype) for at in range(2 * len(given))
        ]
        [found] = self.block(op.regions[0].blocks[0], args, {})
        a, b = (self._canonical(arg) for arg in args[:2])
        for name, falling in (("lt", False), ("gt", True)):
            for x, y in ((a, b), (args[0], args[1])):
                if found is graph.elementwise(name, [x, y], "bool"):
                    order = self.ops.order(key, axis % key.rank, falling=falling)
                    return [self.ops.along(each, order, axis % key.rank) for each in given]
        raise Unsupported("sorting is translated by the first array alone")

    def _canonical(self, x: Node) -> Node:
        """x as JAX compares floats while sorting: one zero and one NaN."""
        if x.dtype not in FLOATS:
            return x
        graph = self.graph
        zero, none = graph.literal(0.0, x.dtype), graph.literal(float("nan"), x.dtype)
        plain = graph.elementwise("select", [graph.elementwise("eq", [x, zero], "bool"), zero, x])
        return graph.elementwise("select", [graph.elementwise("ne", [x, x], "bool"), none, plain])

    # ------------------------------------------------ control

    def repeat(self, op: Any, given: Sequence[Node], env: Mapping[Any, Node]) -> list[Node]:
        graph = self.graph
        outside = _outside(op, env)
        fixed = list(outside.values())
        args = [graph.arg(at, x, x.name) for at, x in enumerate([*fixed, *given])]
        known = dict(zip(outside, args[: len(fixed)], strict=True))
        held = args[len(fixed) :]
        test, body = (
            Body(tuple(self.block(region.blocks[0], held, known))) for region in op.regions
        )
        return graph.repeat(fixed, given, test, body)

    def branch(
        self, op: Any, name: str, given: Sequence[Node], env: Mapping[Any, Node]
    ) -> list[Node]:
        graph = self.graph
        [chosen] = given
        outside = _outside(op, env)
        fixed = list(outside.values())
        args = [graph.arg(at, x, x.name) for at, x in enumerate(fixed)]
        known = dict(zip(outside, args, strict=True))
        bodies = [Body(tuple(self.block(region.blocks[0], [], known))) for region in op.regions]
        if name == "if":  # the first region is for true
            bodies.reverse()
        elif chosen.op == "cast" and chosen.inputs[0].dtype == "bool" and len(bodies) == 2:
            chosen = chosen.inputs[0]
        else:  # what is out of range chooses the last
            last = graph.literal(len(bodies) - 1, chosen.dtype)
            below = graph.elementwise("lt", [chosen, graph.literal(0, chosen.dtype)], "bool")
            chosen = graph.elementwise("select", [below, last, chosen])
        return graph.branch(chosen, fixed, bodies)


def _alive(block: Any) -> list[Any]:
    """The operations that what a block returns needs, in order."""
    operations = [op.operation for op in block.operations]
    wanted: set[Any] = set()
    found: list[Any] = []
    for op in reversed(operations):
        if not len(op.results) or any(result in wanted for result in op.results):
            found.append(op)
            wanted.update(_read(op))
    return found[::-1]


def _read(op: Any) -> Iterator[Any]:
    """Every value that an operation, or what stands in its regions, reads."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _read(inner.operation)


def _outside(op: Any, env: Mapping[Any, Node]) -> dict[Any, Node]:
    """What the regions of an operation read from around them."""
    return {value: env[value] for value in _read(op) if value in env}


def _identity(kind: str, dtype: str) -> float | int | bool:
    """What leaves a reduction unchanged."""
    match kind:
        case "sum" | "any":
            return 0
        case "prod" | "all":
            return 1
    return lowest(kind, dtype)


def _typed(type: Any) -> tuple[Shape, str]:
    """The shape and dtype of a ranked tensor."""
    try:
        ranked = ir.RankedTensorType(type)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"a value of type {type} is no tensor") from error
    text = str(ranked.element_type)
    name = {"i1": "bool"}.get(text, text.replace("ui", "u") if text.startswith("ui") else text)
    if dtype_name(name) is None or name.startswith("f8"):
        raise UnknownDtype(f"the dtype {text} has no counterpart in the language")
    if not ranked.has_static_shape:
        raise Unsupported(
            f"{type} has no fixed shape; export the function with `export_linnet` and symbolic "
            "shapes, or lower it for fixed ones"
        )
    return tuple(map(Dim.of, ranked.shape)), name


def _told(main: Any, kind: str, count: int) -> list[dict[str, str]]:
    """What is said of each argument: names of attributes and their strings."""
    if kind not in main.attributes:
        return [{} for _ in range(count)]
    return [
        {
            each.name: ir.StringAttr(each.attr).value
            for each in _items(attributes)
            if isinstance(each.attr, ir.StringAttr)
        }
        for attributes in ir.ArrayAttr(main.attributes[kind])
    ]


def _items(attributes: Any) -> Any:
    return ir.DictAttr(attributes)


def _by_path(params: Any, told: Sequence[Mapping[str, str]]) -> list[Member]:
    """The members of a module of our own, in the order of its arguments."""
    if not isinstance(params, Mapping):
        raise ExportError(
            "the module's arguments are named by path: params must be a mapping from path to array"
        )
    wanted = [mark["linnet.path"] for mark in told if mark["linnet.kind"] in ("param", "buffer")]
    missing = [path for path in wanted if path not in params]
    if missing:
        raise ExportError(f"params has no {', '.join(f'`{path}`' for path in missing)}")
    problems: dict[str, None] = {}
    out: list[Member] = []
    for path in wanted:
        keys = [int(k) if k.isdigit() else k for k in path.split(".")]
        out += members_of([(tuple(keys), params[path])], problems)
    if problems:
        raise ExportError("; ".join(problems))
    return out


def _shown(shape: Shape, dtype: str) -> str:
    return f"Tensor[{', '.join(map(str, shape))}; {dtype}]"


def _place(op: Any) -> str:
    return str(op.location).removeprefix("loc(").removesuffix(")").replace('"-":', "line ")


def _number(attribute: Any) -> int:
    return int(ir.IntegerAttr(attribute).value)


def _numbers(attribute: Any) -> list[int]:
    """A list of integers, whichever way it is written."""
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return [int(n) for n in attribute]
    if isinstance(attribute, ir.DenseBoolArrayAttr):
        return [int(n) for n in attribute]
    return [int(n) for n in np.array(ir.DenseIntElementsAttr(attribute)).reshape(-1)]


def _listed(attributes: Any, name: str, default: list[int]) -> list[int]:
    return _numbers(attributes[name]) if name in attributes else default


def _edges(attributes: Any, rank: int) -> list[tuple[int, int]]:
    if "padding" not in attributes:
        return [(0, 0)] * rank
    rows = np.array(ir.DenseIntElementsAttr(attributes["padding"])).reshape(rank, 2)
    return [(int(low), int(high)) for low, high in rows]
