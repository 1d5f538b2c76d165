"""The Core IR: a closed sum of small immutable nodes, functions of them, programs.

Nodes are compared by identity; `core.build` interns them, so equal nodes of one Function are one
node. Every node's `type` is computed by `core.rules`. Shapes hold `Dim`s in the names of the
function's `dims`; packs and dtype generics are bound before a program gets here.

Numerics: a node is evaluated element by element in its own dtype, rounded once. What accumulates
wider says so with casts around it (`Reduce("sum", Cast(x, f32))`), except `Dot`, whose `dtype` is
what the products and the sum are kept in; its result has that dtype too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from typing import Literal as Lit

from linnet.dims import Dim, Relation
from linnet.source import Span
from linnet.types import DType, TensorType, Type


@dataclass(frozen=True, slots=True)
class ArrayType:
    """One tensor for each element of a sub array: a member seen along `layers.*`."""

    element: TensorType | ArrayType
    length: int

    def __str__(self) -> str:
        return f"[{self.element}; {self.length}]"


@dataclass(frozen=True, slots=True)
class ResultsType:
    """What a node with several results has; `Result` picks one."""

    items: tuple[TensorType | ArrayType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


ValueType = TensorType | ArrayType
NodeType = ValueType | ResultsType

UnaryOp = Lit["neg", "not", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh"]
# div and rem of integers truncate toward zero, x / 0 = 0 and x % 0 = x; shl and shr by a count
# outside 0 .. bits-1 give 0 (signed shr: the sign); min and max pass NaN on; integers wrap.
BinaryOp = Lit["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
CompareOp = Lit["eq", "ne", "lt", "le", "gt", "ge"]
ReduceOp = Lit["sum", "prod", "max", "min", "any", "all"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Node:
    """Base of all nodes; `hint` is the name that the source gave the value, for generated code."""

    type: NodeType
    span: Span | None = None
    hint: str = ""

    def __repr__(self) -> str:
        # A graph written out as a tree would not end.
        return f"<{type(self).__name__}: {self.type}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Param(Node):
    """A parameter of a Function.

    `kind` is "value" (declared by the user), "param" or "buffer" (a weight) or "state". A member's
    `name` is its path from the block whose method this is (`attention.q_proj.weight`; `layers.*.w`
    along a sub array, with an ArrayType). In the body of a For over a sub array, an element's
    members have that loop's variable as `base` and the path from the element as `name`.
    """

    name: str
    of: ValueType
    kind: Lit["value", "param", "buffer", "state"] = "value"
    base: str = "self"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(Node):
    """A rank-0 constant; floats are rounded to `dtype`."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Size(Node):
    """A dimension as a rank-0 value."""

    dim: Dim
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Iota(Node):
    """`0 .. extent-1`, one axis."""

    extent: Dim
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Node):
    """`not` is logical on bool and bitwise on integers."""

    op: UnaryOp
    x: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Node):
    """Operands of one shape and dtype; broadcasting is an explicit Expand."""

    op: BinaryOp
    a: Node
    b: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compare(Node):
    op: CompareOp
    a: Node
    b: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Node):
    """`c ? a : b` elementwise, all of one shape; both sides are evaluated."""

    c: Node
    a: Node
    b: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Node):
    """Float to int truncates toward zero, saturates, NaN gives 0; int to bool is `!= 0`."""

    x: Node
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reshape(Node):
    x: Node
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Permute(Node):
    """Axis `i` of the result is axis `order[i]` of x."""

    x: Node
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expand(Node):
    """Axis `i` of x stands at `axes[i]` of the result (ascending); it has that extent or 1.

    The result's other axes are new; x repeats along them and along its axes of 1.
    """

    x: Node
    shape: tuple[Dim, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Slice(Node):
    """One `(start, stop, step)` per axis, in range; the step is positive."""

    x: Node
    ranges: tuple[tuple[Dim, Dim, int], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concat(Node):
    parts: tuple[Node, ...]
    axis: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gather(Node):
    """`result[*i, *k] = x[...]`: one entry per axis of x, an integer tensor or None.

    The given indices have one common shape, which leads the result; axes with None follow in
    order. An index outside its axis is clamped to it. `proved` says no clamp is needed.
    """

    x: Node
    indices: tuple[Node | None, ...]
    proved: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(Node):
    """Drops `axes` (ascending). Over no elements: sum 0, prod 1, any false, all true,
    max the dtype's lowest and min its highest value (-inf and inf for floats)."""

    op: ReduceOp
    x: Node
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dot(Node):
    """Sum of products over `contract`, kept in `dtype`.

    `batch` and `contract` are pairs (axis of a, axis of b). The result's axes: batch in order,
    then a's free axes, then b's free axes.
    """

    a: Node
    b: Node
    batch: tuple[tuple[int, int], ...]
    contract: tuple[tuple[int, int], ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Node):
    """Inputs match `function.params`, `dims` its `dims` (in the caller's names)."""

    function: Function
    inputs: tuple[Node, ...]
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class If(Node):
    """`then` and `other` are closed Functions of `inputs`, with results of the same types."""

    c: Node
    then: Function
    other: Function
    inputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class While(Node):
    """Repeats `body` while `test` holds.

    `inputs` are the carried values, then the fixed ones; `test` and `body` take all of them, body
    returns the carried ones, `count` of them, which are the node's results.
    """

    test: Function
    body: Function
    inputs: tuple[Node, ...]
    count: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class For(Node):
    """A counted loop, over a range or (`static for`) over the elements of sub arrays.

    body takes `(i: i64, *carried, *elements of scanned, *fixed)` and returns `(*carried, *elements
    of collected, *what a turn yields)`. Results: the final carried values, then one ArrayType per
    collected element type, then the `stacked` last ones, each of which has every turn's value on
    a new leading axis. `scanned` have ArrayTypes of length stop - start, with start 0; a state
    among them is collected too. `variable` is the loop's name in the source. The last turn runs
    `last` instead, if there is one: it takes what body takes, and its carried results, which are
    the node's, may have other types. Such a loop has a turn, and stacks nothing.
    """

    body: Function
    variable: str
    start: Dim
    stop: Dim
    carried: tuple[Node, ...]
    scanned: tuple[Node, ...]
    fixed: tuple[Node, ...]
    stacked: int = 0
    last: Function | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(Node):
    of: Node
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Element(Node):
    """One element of an ArrayType value."""

    x: Node
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Update(Node):
    """An ArrayType value with one element replaced."""

    x: Node
    index: int
    value: Node


AnyNode = (
    Param
    | Literal
    | Size
    | Iota
    | Unary
    | Binary
    | Compare
    | Select
    | Cast
    | Reshape
    | Permute
    | Expand
    | Slice
    | Concat
    | Gather
    | Reduce
    | Dot
    | Call
    | If
    | While
    | For
    | Result
    | Element
    | Update
)


def _none(node: Any) -> tuple[Node, ...]:
    return ()


def _x(node: Any) -> tuple[Node, ...]:
    return (node.x,)


def _pair(node: Any) -> tuple[Node, ...]:
    return (node.a, node.b)


def _inputs(node: Any) -> tuple[Node, ...]:
    inputs: tuple[Node, ...] = node.inputs
    return inputs


# By class, for walks ask this of every node.
_OPERANDS: dict[type[Node], Callable[[Any], tuple[Node, ...]]] = {
    **dict.fromkeys((Param, Literal, Size, Iota), _none),
    **dict.fromkeys((Unary, Cast, Reshape, Permute, Expand, Slice, Reduce, Element), _x),
    **dict.fromkeys((Binary, Compare, Dot), _pair),
    **dict.fromkeys((Call, While), _inputs),
    Select: lambda n: (n.c, n.a, n.b),
    Concat: lambda n: n.parts,
    Gather: lambda n: (n.x, *(index for index in n.indices if index is not None)),
    If: lambda n: (n.c, *n.inputs),
    For: lambda n: (*n.carried, *n.scanned, *n.fixed),
    Result: lambda n: (n.of,),
    Update: lambda n: (n.x, n.value),
}
_FUNCTIONS: dict[type[Node], Callable[[Any], tuple[Function, ...]]] = {
    Call: lambda n: (n.function,),
    If: lambda n: (n.then, n.other),
    While: lambda n: (n.test, n.body),
    For: lambda n: (n.body,) if n.last is None else (n.body, n.last),
}


def operands(node: Node) -> tuple[Node, ...]:
    """The nodes that a node takes, in the order of its fields."""
    return _OPERANDS[type(node)](node)


def functions_of(node: Node) -> tuple[Function, ...]:
    """The functions that a node runs: a call's callee, the bodies of If, While and For."""
    found = _FUNCTIONS.get(type(node))
    return found(node) if found is not None else ()


@dataclass(frozen=True, slots=True)
class OpId:
    """The stable identity of an `op`: package, module, name."""

    package: str
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}::{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of nodes; closed: it refers to nothing but its params and `dims`.

    params: the declared values, flattened, then members used (params and buffers), then states
    read or written. results: the declared results, flattened, then the new value of each state in
    `writes` (names of state params). Bodies of If, While and For are Functions of kind "body" that
    share the dims of the function they stand in.
    `returns` is the declared result type, whose flattening (tuples and structs left to right) the
    value results are; None for bodies. `takes` are the declared parameters, whose flattening the
    value params are. In both, structs have their fields written out, and an optional is what it
    holds or `none`.
    """

    name: str
    kind: Lit["entry", "method", "fn", "op", "body"]
    op: OpId | None
    block: str | None  # the block instance whose method this is, as `Name<args>`
    dims: tuple[str, ...]
    params: tuple[Param, ...]
    results: tuple[Node, ...]
    writes: tuple[str, ...]
    facts: tuple[Relation, ...]
    returns: Type | None
    takes: tuple[tuple[str, Type], ...] = ()
    span: Span | None = field(default=None, repr=False)
    docs: str = field(default="", repr=False)

    @property
    def values(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.kind == "value")

    @property
    def value_results(self) -> tuple[Node, ...]:
        return self.results[: len(self.results) - len(self.writes)]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A param, buffer or state of the root block.

    `path` has a `*` for each array position, `repeat` the array lengths; `type` is one element's.
    """

    path: str
    repeat: tuple[int, ...]
    kind: Lit["param", "buffer", "state"]
    type: TensorType
    optional: bool

    def expanded(self) -> tuple[str, ...]:
        """Every concrete path, positions written out, in order."""
        paths = [self.path]
        for length in self.repeat:
            paths = [p.replace("*", str(i), 1) for p in paths for i in range(length)]
        return tuple(paths)


def stands_for(path: str, given: str) -> bool:
    """Whether `given` is, or lies below, the member of a path with `*` for positions."""
    pattern = re.escape(path).replace(r"\*", "[0-9]+")
    return re.match(rf"{pattern}(\.|$)", given) is not None


@dataclass(frozen=True, slots=True)
class Manifest:
    root: str
    entries: tuple[ManifestEntry, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All entries of a root block (or the free entries of a module), lowered.

    `functions` holds every function reachable from the entries, callees first.
    """

    name: str
    functions: dict[str, Function]
    entries: dict[str, Function]
    manifest: Manifest
    generics: dict[str, int | str]
    main: str  # the entry that a direct call runs
    absent: tuple[str, ...] = ()  # optional members, as in the manifest, that are not there
    # Entries that the bound generics rule out, each with the clause that fails.
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
