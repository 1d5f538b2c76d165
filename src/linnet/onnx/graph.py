"""What an ONNX function or graph is made of while it is written: nodes, constants, names.

Constants and sizes are written before everything else, so that the graphs of branches and loops see
them as the outer names that they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from linnet.types import DType
from linnet.weights.arrays import DTYPES

OPSET = 23
IR_VERSION = 11
DOMAIN = "linnet"  # of the functions that a model brings along

ELEMENT: dict[str, int] = {
    "bool": TensorProto.BOOL,
    "i8": TensorProto.INT8,
    "i16": TensorProto.INT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "u8": TensorProto.UINT8,
    "u16": TensorProto.UINT16,
    "u32": TensorProto.UINT32,
    "u64": TensorProto.UINT64,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
}
NAMES = {DTYPES[name]: name for name in ELEMENT}


def tensor_proto(array: np.ndarray[Any, Any], name: str = "") -> TensorProto:
    """The array as a tensor of ONNX, by its bytes."""
    data = np.asarray(array, order="C")
    made = TensorProto(name=name, data_type=ELEMENT[NAMES[data.dtype]], dims=array.shape)
    made.raw_data = data.tobytes()
    return made


def value_info(
    name: str, dtype: DType, shape: Sequence[int | str | None] | None = None
) -> ValueInfoProto:
    """The type of a value; an axis is a number, a name, or None where nothing is said of it."""
    return helper.make_tensor_value_info(name, ELEMENT[dtype.name], shape)


@dataclass(slots=True)
class Names:
    """The names of one function or graph, those in its branches and loops among them."""

    counts: dict[str, int] = field(default_factory=dict[str, int])

    def fresh(self, wish: str) -> str:
        """The wish, numbered where it is taken."""
        name = wish
        while name in self.counts:
            self.counts[wish] += 1
            name = f"{wish}_{self.counts[wish]}"
        self.counts[name] = 1
        return name


@dataclass(slots=True)
class Writer:
    """The nodes of one function or graph, in order."""

    names: Names = field(default_factory=Names)
    first: list[NodeProto] = field(default_factory=list[NodeProto])  # constants and sizes
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])  # of the innermost graph
    constants: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])
    outputs: dict[str, str] = field(default_factory=dict[str, str])  # as they were called before

    def op(
        self, kind: str, *inputs: str, wish: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """The one result of an operator."""
        return self.ops(kind, inputs, [wish], domain=domain, **attributes)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        wishes: Sequence[str],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """The results of an operator, one for each wish."""
        made = [self.names.fresh(wish or kind.lower()) for wish in wishes]
        self.nodes.append(helper.make_node(kind, inputs, made, domain=domain, **attributes))
        return made

    def early(self, kind: str, *inputs: str, wish: str, **attributes: Any) -> str:
        """The one result of an operator on sizes, where every graph sees it."""
        name = self.names.fresh(wish)
        self.first.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, array: np.ndarray[Any, Any], wish: str = "c") -> str:
        """A constant, written once."""
        key = array.dtype, array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = self.early("Constant", wish=wish, value=tensor_proto(array))
        return self.constants[key]

    def number(self, value: bool | int | float, dtype: DType) -> str:
        """A constant without axes."""
        return self.constant(np.asarray(value, DTYPES[dtype.name]), _wish(value))

    def integers(self, values: Sequence[int]) -> str:
        """Axes, extents or positions: i64, one axis."""
        return self.constant(np.asarray(values, np.int64), "_".join(["dims", *map(_plain, values)]))

    def to(self, x: str, own: DType, dtype: DType, wish: str = "") -> str:
        """The operator Cast, where there is anything to do."""
        return x if own == dtype else self.op("Cast", x, to=ELEMENT[dtype.name], wish=wish)

    @contextmanager
    def inside(self) -> Iterator[list[NodeProto]]:
        """Nodes go to the list that this gives: those of a branch or of a loop's body."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def graph(
        self,
        name: str,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> GraphProto:
        return helper.make_graph(nodes, name, inputs, outputs)

    def output(self, value: str, wish: str) -> str:
        """The value under a name of its own; what an outermost node makes is renamed."""
        name = self.names.fresh(wish)
        if value not in self.outputs and any(value in node.output for node in self.nodes):
            self.outputs[value] = name
            _rename(self.nodes, value, name)
        else:
            self.nodes.append(
                helper.make_node("Identity", [self.outputs.get(value, value)], [name])
            )
        return name

    def named(self, values: Sequence[str], wish: str) -> list[str]:
        """Names that only this graph gives, one for each value, as its outputs must be."""
        made = {name for node in self.nodes for name in node.output}
        told: list[str] = []
        for value in values:
            own = value in made and value not in told
            told.append(value if own else self.op("Identity", value, wish=wish))
        return told


def _rename(nodes: Iterable[NodeProto], old: str, new: str) -> None:
    """One name for the other, in branches and loops too."""
    for node in nodes:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g.node, old, new)
                for info in attribute.g.output:
                    if info.name == old:
                        info.name = new


def _wish(value: bool | int | float) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return re.sub(r"\W", "_", f"c{text}".replace("-", "m"))


def _plain(value: int) -> str:
    return str(value).replace("-", "m")


def words(text: str) -> str:
    """The text as a name that needs no quotes."""
    return re.sub(r"\W+", "_", text).strip("_")
