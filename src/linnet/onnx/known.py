"""Values that are known while a model of ONNX is read: numbers, and sizes that follow from names.

Shape arithmetic of a model (`Shape`, `Gather`, `Concat`, `Range` ...) is worked out here, on NumPy
arrays of numbers or of `Dim`s. What has no name in it is computed by ONNX's own evaluator.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from linnet.dims import Dim
from linnet.porting.graph import ONE, Shape, product
from linnet.porting.operations import Unsupported

# More elements than this are worked out by the program and not before it.
_LARGEST = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """An array of numbers, or of sizes (`Dim`, in an array of objects); `name` is its tensor's."""

    array: Any
    dtype: str
    name: str = ""

    @property
    def symbolic(self) -> bool:
        return bool(self.array.dtype == object)

    @property
    def shape(self) -> Shape:
        return tuple(map(Dim.of, self.array.shape))

    def sizes(self) -> list[Dim]:
        """The elements as sizes."""
        return [x if isinstance(x, Dim) else Dim.of(int(x)) for x in self.array.reshape(-1)]

    def numbers(self) -> list[int]:
        """The elements as integers. Unsupported where one depends on a size."""
        if self.symbolic:
            raise Unsupported(f"{', '.join(map(str, self.sizes()))} must be numbers here")
        return [int(x) for x in self.array.reshape(-1)]


def sizes_of(shape: Sequence[Dim], dtype: str = "i64") -> Known:
    """Sizes as an array: numbers where they all are."""
    return plain(np.array(list(shape), dtype=object).reshape(len(shape)), dtype)


def plain(array: Any, dtype: str, name: str = "") -> Known:
    """The array, its `Dim`s as numbers where none depends on a name."""
    array = np.asarray(array)
    if array.dtype != object:
        return Known(array, dtype, name)
    flat = [x.constant if isinstance(x, Dim) else x for x in array.reshape(-1)]
    if None in flat:
        return Known(array, dtype, name)
    kind = {"bool": np.bool_, "f32": np.float32, "f64": np.float64}.get(dtype, np.int64)
    return Known(np.array(flat, kind).reshape(array.shape), dtype, name)


def evaluated(node: onnx.NodeProto, given: Sequence[Known | None], opset: int) -> list[Any] | None:
    """What ONNX's evaluator gives of numbers; None where it has no answer, or too large a one."""
    names = [f"x{at}" if known is not None else "" for at, known in enumerate(given)]
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.input[:], plain.output[:]
    plain.input.extend(names)
    plain.output.extend(f"y{at}" for at in range(len(node.output)))
    feeds = {f"x{at}": k.array for at, k in enumerate(given) if k is not None}
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in plain.output]
    graph = onnx.helper.make_graph([plain], "one", inputs, outputs)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(made).run(None, feeds)
    except Exception:  # whatever NumPy raises: the node is then translated, or refused by name
        return None
    if any(not isinstance(x, np.ndarray | np.generic) or x.size > _LARGEST for x in results):
        return None
    return [np.asarray(x) for x in results]


# ---------------------------------------------------------------- sizes that follow from names


def _less(a: Any, b: Any) -> bool:
    """Whether a < b for all sizes, which are at least 0; Unsupported where it depends on them."""
    rest = Dim.of(b) - Dim.of(a)
    if rest.constant is not None:
        return rest.constant > 0
    low, high = bounds(rest)
    if low is not None and low > 0:
        return True
    if high is not None and high <= 0:
        return False
    raise Unsupported(f"whether {a} < {b} depends on the sizes that it is given")


def bounds(size: Dim) -> tuple[int | None, int | None]:
    """What a size is at least and at most, its names standing for sizes of at least 0."""
    low: int | None = 0
    high: int | None = 0
    for factors, count in size.coefficients():
        if not factors:
            low = None if low is None else low + count
            high = None if high is None else high + count
        elif count > 0:
            low, high = None if low is None else low + count, None
        else:
            low, high = None, None if high is None else high + count
    return low, high


def _equal(a: Any, b: Any) -> bool:
    rest = Dim.of(a) - Dim.of(b)
    if rest.constant is not None:
        return rest.constant == 0
    low, high = bounds(rest)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    if 1 in (a, b) and rest.names():
        return False  # an axis that has a name is not one that is repeated
    raise Unsupported(f"whether {a} == {b} depends on the sizes that it is given")


def _divided(a: Any, b: Any) -> Any:
    return Dim.of(a) // Dim.of(b)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _divided,
    "Mod": lambda a, b: Dim.of(a) % Dim.of(b),
    "Neg": operator.neg,
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: not _less(b, a),
    "GreaterOrEqual": lambda a, b: not _less(a, b),
    "Where": lambda test, a, b: a if test else b,
    "Max": lambda a, *rest: _extreme(a, rest, most=True),
    "Min": lambda a, *rest: _extreme(a, rest, most=False),
}


def _extreme(first: Any, rest: Sequence[Any], *, most: bool) -> Any:
    for other in rest:
        if _less(first, other) == most:
            first = other
    return first


def folded(
    kind: str, given: Sequence[Known], attributes: Mapping[str, Any], dtype: str
) -> Known | None:
    """What an operation on sizes gives; None where it has none here."""
    x = given[0]
    if kind in _ELEMENTWISE:
        arrays = [np.asarray(each.array, dtype=object) for each in given]
        made = np.frompyfunc(_ELEMENTWISE[kind], len(arrays), 1)(*arrays)
        told = "bool" if kind[:5] in ("Equal", "Less", "Great", "LessO") else given[-1].dtype
        return plain(np.asarray(made, dtype=object), told)
    match kind:
        case "Cast" if dtype[0] in "iu":
            return Known(x.array, dtype)
        case "Cast" if dtype[0] == "f" and dtype != "f8":
            return Known(x.array, dtype)
        case "Identity":
            return x
        case "Floor" | "Ceil" if x.symbolic:
            return x  # whole already: a size
        case "Concat":
            parts = [np.asarray(each.array, dtype=object) for each in given]
            return plain(np.concatenate(parts, attributes.get("axis", 0)), x.dtype)
        case "Gather" if not given[1].symbolic:
            at = given[1].array
            return plain(np.take(x.array, at, attributes.get("axis", 0)), x.dtype)
        case "Reshape":
            return plain(x.array.reshape(given[1].numbers()), x.dtype)
        case "ReduceProd" | "ReduceSum":
            found = product(x.sizes()) if kind == "ReduceProd" else sum(x.sizes(), Dim.of(0))
            keep = attributes.get("keepdims", 1)
            array = np.array(found, dtype=object)
            return plain(array.reshape([1] * (x.array.ndim if keep else 0)), x.dtype)
    return None


def quotient(whole: Sequence[Dim], parts: Sequence[Dim]) -> Dim:
    """The product of some sizes over that of others, common ones left out first."""
    left, below = list(whole), list(parts)
    for size in list(below):
        if size in left:
            left.remove(size)
            below.remove(size)
    over, under = product(left), product(below)
    if under == ONE:
        return over
    a, b = _content(over), _content(under)
    if a and b and under.constant is not None:
        shared = math.gcd(a, b)
        if shared == b:
            return over // b
    return over // under


def _content(size: Dim) -> int:
    """The greatest number that divides a size whatever its names are."""
    return math.gcd(*(count for _, count in size.coefficients()))
