"""A graph of ONNX, node by node, as nodes of the graph that source is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.onnx.known import Known, evaluated, folded, plain, sizes_of
from linnet.onnx.parts import Part
from linnet.onnx.stored import Stored, dtype_of, read_tensor, scope_of
from linnet.porting.graph import Graph, Node, known_size
from linnet.porting.operations import Operations, UnknownDtype, Unsupported

Value = Known | Node | Part
# Inputs that are numbers to work with and no parameters, though they are arrays of floats.
_NUMBERS = frozenset({("Resize", 1), ("Resize", 2), ("Upsample", 1)})
_FOLDED_ALWAYS = frozenset({"Shape", "Size", "Constant"})
# What gives other numbers each time.
_DRAWN = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_DRAWN |= frozenset({"Bernoulli", "Multinomial"})


@dataclass(slots=True)
class Call:
    """A node while it is translated: what it is given, None where an input is left out."""

    reader: Reader
    proto: onnx.NodeProto
    given: list[Value | None]
    attributes: dict[str, Any]

    @property
    def graph(self) -> Graph:
        return self.reader.graph

    @property
    def ops(self) -> Operations:
        return self.reader.ops

    @property
    def opset(self) -> int:
        return self.reader.opset

    def has(self, at: int) -> bool:
        return at < len(self.given) and self.given[at] is not None

    def node(self, at: int = 0) -> Node:
        """An input as a tensor."""
        value = self.given[at] if at < len(self.given) else None
        if value is None:
            raise Unsupported(f"its input {at} is left out")
        return self.held(value)

    def held(self, value: Value) -> Node:
        """The value as a tensor; numbers that are an array are of this node's module."""
        return self.reader.node(value, scope_of(self.proto))

    @property
    def nodes(self) -> list[Node]:
        return [self.held(value) for value in self.given if value is not None]

    def known(self, at: int, what: str) -> Known | None:
        """An input that must be known while reading; None where it is left out."""
        if not self.has(at):
            return None
        value = self.given[at]
        if isinstance(value, Known):
            return value
        assert isinstance(value, Node)
        size = known_size(value)
        if size is None or value.rank:
            raise Unsupported(f"its {what} is computed from what the model is given")
        return Known(sizes_of([size]).array.reshape(()), value.dtype)

    def sizes(self, at: int, what: str, attribute: str = "") -> list[Dim] | None:
        """Sizes from an input, or from the attribute of an older form."""
        found = self.known(at, what)
        if found is not None:
            return found.sizes()
        told = self.attributes.get(attribute)
        return None if told is None else [Dim.of(n) for n in told]

    def numbers(self, at: int, what: str, attribute: str = "") -> list[int] | None:
        found = self.known(at, what)
        if found is not None:
            return found.numbers()
        told = self.attributes.get(attribute)
        return None if told is None else list(told)

    def scalar(self, at: int, what: str) -> float | None:
        """One number that must be known; None where it is left out."""
        found = self.known(at, what)
        if found is None:
            return None
        if found.symbolic or found.array.size != 1:
            raise Unsupported(f"its {what} must be one number")
        return float(found.array.reshape(()))

    def attribute(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


Rule = Callable[[Call], Any]


@dataclass(slots=True)
class Reader:
    graph: Graph
    ops: Operations
    stored: Stored
    opset: int
    rules: Mapping[str, Rule]
    facts: dict[str, None] = field(default_factory=dict)  # what the model needs of its sizes
    problems: dict[str, list[str]] = field(default_factory=dict)  # a reason -> nodes' names

    def node(self, value: Value, scope: Sequence[str] = ()) -> Node:
        if isinstance(value, Part):
            raise Unsupported("it reads a part whose size depends on what the model is given")
        return self.stored.node(value, scope) if isinstance(value, Known) else value

    def run(self, graph: onnx.GraphProto, env: dict[str, Value | None]) -> list[Value]:
        """The graph's outputs, from its inputs in `env`; `env` grows."""
        for tensor in graph.initializer:
            if tensor.name not in self.stored.tensors:  # of a subgraph
                env[tensor.name] = self.initializer(tensor)
        if graph.sparse_initializer:
            self.problems.setdefault("sparse initializers are not translated", [])
        for proto in graph.node:
            given = [
                self.read(env, name, proto, at) if name else None
                for at, name in enumerate(proto.input)
            ]
            made = self.outcome(proto, given, env)
            env.update(zip(proto.output, made, strict=False))
        out: list[Value] = []
        for value in graph.output:
            found = env.get(value.name)
            if found is None and value.name in self.stored.tensors:
                found = self.initializer(self.stored.tensors[value.name])
            if found is None:
                self.problems.setdefault(f"nothing makes the output `{value.name}`", [])
                found = self.unknown()
            out.append(found)
        return out

    def read(
        self, env: dict[str, Value | None], name: str, proto: onnx.NodeProto, at: int
    ) -> Value:
        found = env.get(name)
        if found is None and name in self.stored.tensors:
            tensor = self.stored.tensors[name]
            if (proto.op_type, at) in _NUMBERS:
                return Known(read_tensor(tensor, self.stored.folder), "f32", name)
            found = env[name] = self.initializer(tensor)
        if found is None:
            self.problem(f"it reads `{name}`, which nothing makes", proto)
            return self.unknown()
        return found

    def initializer(self, tensor: onnx.TensorProto) -> Value:
        try:
            if tensor.name in self.stored.tensors:
                return self.stored.value(tensor.name)
            return Known(
                read_tensor(tensor, self.stored.folder), dtype_of(tensor.data_type), tensor.name
            )
        except Unsupported as reason:
            self.problems.setdefault(f"the tensor `{tensor.name}`: {reason}", [])
            return self.unknown()

    def unknown(self) -> Node:
        """Stands for what could not be translated, so that the rest is looked at too."""
        return self.graph.node("input", (), ["?"], dtype="")

    def problem(self, reason: str, proto: onnx.NodeProto) -> None:
        kind = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        told = self.problems.setdefault(f"{kind}: {reason}", [])
        told.append(f"`{proto.name}`" if proto.name else f"the one that gives `{proto.output[0]}`")

    def outcome(
        self, proto: onnx.NodeProto, given: list[Value | None], env: dict[str, Value | None]
    ) -> list[Value]:
        lost = any(isinstance(x, Node) and not x.dtype for x in given)
        try:
            if lost:
                # One mistake is one error; but that there is no translation at all is said.
                if not self.translates(proto):
                    raise Unsupported("there is no translation")
                raise UnknownDtype("")
            made = self.value(proto, given, env)
        except UnknownDtype as reason:
            if not lost:
                self.problem(str(reason), proto)
        except Unsupported as reason:
            self.problem(str(reason), proto)
        except InternalError as error:
            self.problem(error.args[0].partition(": ")[2], proto)
        except (KeyError, IndexError, ValueError, TypeError, AssertionError):
            shapes = ", ".join(_shown(value) for value in given)
            self.problem(f"it does not take what it is given, {shapes or 'nothing'}", proto)
        else:
            values = made if isinstance(made, list) else [made]
            for value in values:
                if isinstance(value, Node):
                    self.graph.named(value, "")
            return values
        return [self.unknown() for _ in proto.output]

    def translates(self, proto: onnx.NodeProto) -> bool:
        plain = proto.domain in ("", "ai.onnx")
        return (plain and proto.op_type in (*self.rules, *_FOLDED_ALWAYS, *CONTROL)) or (
            f"{proto.domain}::{proto.op_type}" in self.rules
        )

    def value(
        self, proto: onnx.NodeProto, given: list[Value | None], env: dict[str, Value | None]
    ) -> Value | list[Value]:
        kind = proto.op_type
        if not self.translates(proto):
            if proto.domain in ("", "ai.onnx") and all(isinstance(x, Known) for x in given):
                if given and (found := self.fold(proto, given, {})) is not None:
                    return found
            raise Unsupported("there is no translation")
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in proto.attribute}
        if proto.domain in ("", "ai.onnx"):
            if kind == "Constant":
                return self.constant(proto, attributes)
            if kind in ("Shape", "Size"):
                return self.shape(kind, given[0], attributes)
            if kind in CONTROL:
                return CONTROL[kind](self, proto, given, attributes, env)
            if (found := self.fold(proto, given, attributes)) is not None:
                return found
        rule = self.rules[kind if proto.domain in ("", "ai.onnx") else f"{proto.domain}::{kind}"]
        return rule(Call(self, proto, given, attributes))  # type: ignore[no-any-return]

    def fold(
        self,
        proto: onnx.NodeProto,
        given: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> Value | list[Value] | None:
        """What is known before the program runs: from numbers and sizes alone."""
        kind = proto.op_type
        present = [value for value in given if value is not None]
        known = [value for value in present if isinstance(value, Known)]
        if not present or len(known) < len(present) or kind in _DRAWN:
            return None
        if any(value.symbolic for value in known):
            dtype = dtype_of(attributes["to"]) if kind == "Cast" else ""
            try:
                made = folded(kind, known, attributes, dtype)
            except Unsupported:  # it depends on the sizes: the program finds out
                return None
            return made or self.sliced(kind, known, attributes)
        arrays = evaluated(proto, [v if isinstance(v, Known) else None for v in given], self.opset)
        if arrays is None:
            return None
        out: list[Value] = []
        for array in arrays:
            elem = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            out.append(Known(array, dtype_of(elem), known[0].name))
        return out

    def sliced(
        self, kind: str, known: Sequence[Known], attributes: Mapping[str, Any]
    ) -> Known | None:
        """`Slice`, `Squeeze` and `Unsqueeze` of sizes, by positions in them."""
        x = known[0]
        if any(each.symbolic for each in known[1:]) or not x.symbolic:
            return None
        match kind:
            case "Unsqueeze" | "Squeeze":
                axes = known[1].numbers() if len(known) > 1 else attributes.get("axes")
                if kind == "Squeeze":
                    gone = None if axes is None else tuple(axes)
                    return plain(np.squeeze(x.array, gone), x.dtype)
                return plain(np.expand_dims(x.array, tuple(axes or ())), x.dtype)
            case "Slice":
                names = ("starts", "ends", "axes", "steps")
                told = {n: list(attributes[n]) for n in names if n in attributes}
                told |= dict(zip(names, (each.numbers() for each in known[1:]), strict=False))
                starts = told["starts"]
                parts: list[slice] = [slice(None)] * x.array.ndim
                for at, place in enumerate(told.get("axes", range(len(starts)))):
                    step = told["steps"][at] if "steps" in told else 1
                    parts[place] = slice(starts[at], told["ends"][at], step)
                return plain(x.array[tuple(parts)], x.dtype)
        return None

    def constant(self, proto: onnx.NodeProto, attributes: Mapping[str, Any]) -> Known:
        name = proto.output[0]
        for key, value in attributes.items():
            match key:
                case "value":
                    dtype = dtype_of(value.data_type)
                    return Known(read_tensor(value, self.stored.folder), dtype, name)
                case "value_float" | "value_floats":
                    return Known(np.array(value, np.float32), "f32", name)
                case "value_int" | "value_ints":
                    return Known(np.array(value, np.int64), "i64", name)
        raise Unsupported("constants of text and sparse ones are not translated")

    def shape(self, kind: str, value: Value | None, attributes: Mapping[str, Any]) -> Known:
        assert value is not None
        sizes = list(value.shape)
        if kind == "Size":
            whole = Dim.of(1)
            for size in sizes:
                whole = whole * size
            return Known(sizes_of([whole]).array.reshape(()), "i64")
        return sizes_of(sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))])

    def body(
        self, graph: onnx.GraphProto, given: Sequence[Value], env: Mapping[str, Value | None]
    ) -> list[Value]:
        """What a subgraph gives on these inputs, which sees what is around it."""
        inner = dict(env)
        inner.update(zip((value.name for value in graph.input), given, strict=False))
        for tensor in graph.initializer:
            inner.pop(tensor.name, None)
        return self.run(graph, inner)


def _shown(value: Value | None) -> str:
    """A type, as the language writes it."""
    if value is None:
        return "none"
    if isinstance(value, Part):
        return "a part of no known size"
    return f"Tensor[{', '.join(map(str, value.shape))}; {value.dtype}]"


Control = Callable[
    [Reader, onnx.NodeProto, Sequence[Value | None], Mapping[str, Any], dict[str, Value | None]],
    "Value | list[Value]",
]
CONTROL: dict[str, Control] = {}  # what `control` adds: operators that have graphs
