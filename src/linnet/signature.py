"""A Function as a Python function: its docstring, the sizes that shapes give, what may be a number.

What any backend that prints array code shares; `express` has what stands inside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from linnet.backends import Kernel
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    Binary,
    Call,
    Compare,
    Dot,
    Expand,
    Function,
    Gather,
    Node,
    Reduce,
    Reshape,
    Result,
    Select,
    operands,
)
from linnet.dims import Dim
from linnet.emit import INDENT, Ex, ordered
from linnet.types import DType


def docstring(function: Function) -> list[str]:
    """The first sentence of the source's comment, where it fits one line."""
    first = " ".join(function.docs.split()).split(". ")[0].rstrip(".")
    quoted = f'{INDENT}"""{first}."""'
    fits = first and len(quoted) <= 100 and '"' not in first and "\\" not in first
    return [quoted] if fits else []


def read_sizes(
    function: Function, sizes: Mapping[str, str], used: set[str], env: Mapping[Node, Ex]
) -> list[str]:
    """Lines for the used sizes that the values' shapes give, which are then no longer `used`.

    `sizes` are Python's names by Linnet's.
    """
    lines: list[str] = []
    for param in function.values:
        found: dict[int, str] = {}
        for axis, dim in enumerate(shape_of(param)):
            for name in used:
                if dim == Dim.of(name) and name not in found.values():
                    found[axis] = name
        if not found:
            continue
        used -= set(found.values())
        shape = env[param].attribute("shape")
        if len(found) == 1:
            ((axis, name),) = found.items()
            lines.append(f"{INDENT}{sizes[name]} = {shape}[{axis}]")
        else:
            listed = [sizes[found[i]] if i in found else "_" for i in range(len(shape_of(param)))]
            lines.append(f"{INDENT}{', '.join(listed)} = {shape}")
    return lines


# ---------------------------------------------------------------- numbers


class _Signature(Protocol):
    @property
    def numbers(self) -> frozenset[int]: ...


class _Module(Protocol):
    """The module that is being written."""

    def kernel(self, node: Call) -> Kernel | None: ...
    def write(self, function: Function) -> _Signature: ...


def accepting(module: _Module, function: Function, never: Collection[DType] = ()) -> frozenset[int]:
    """The scalar value params that a Python number may stand for: each use meets an array."""
    nodes = ordered(function.results)
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for x in dict.fromkeys(operands(node)):
            users.setdefault(x, []).append(node)
    found: set[int] = set()
    for i, param in enumerate(function.params):
        if param.kind != "value" or shape_of(param) or param in function.results:
            continue
        if dtype_of(param) in never:
            continue
        seen: list[tuple[Node, Node]] = [(param, u) for u in users.get(param, ())]
        views = [u for _, u in seen if isinstance(u, Expand)]
        seen = [(x, u) for x, u in seen if not isinstance(u, Expand)]
        seen += [(v, u) for v in views for u in users.get(v, ())]
        if all(v not in function.results for v in views):
            if all(_takes_number(module, x, u) for x, u in seen):
                found.add(i)
    return frozenset(found)


def _takes_number(module: _Module, x: Node, user: Node) -> bool:
    match user:
        case Binary("add" | "sub" | "mul" | "min" | "max", a, b) | Compare(_, a, b):
            return _is_array(b if a is x else a)
        case Binary("div", a, b):
            return b is x and dtype_of(user).is_float and _is_array(a)
        case Select(_, a, b):
            return (a is x or b is x) and _is_array(b if a is x else a)
        case Call(function, inputs):
            kernel = module.kernel(user)
            places = [i for i, y in enumerate(inputs) if y is x]
            if kernel is not None:
                return all(function.params[i].name in kernel.numbers for i in places)
            return all(i in module.write(function).numbers for i in places)
        case _:
            return False


def _is_array(node: Node) -> bool:
    """Whether the node's text is certainly an array's."""
    base = node.x if isinstance(node, Expand) else node
    if shape_of(base):
        return True
    stack, inputs = [base], False
    while stack:
        x = stack.pop()
        inputs = inputs or isinstance(x, (Gather, Reduce, Dot, Result, Reshape))
        stack.extend(operands(x) if not inputs else ())
    return inputs
