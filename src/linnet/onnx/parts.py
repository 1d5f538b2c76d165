"""Parts between positions known at run time only: what writes into a cache is made of them.

The extent of such a part is no size. Joined again as what is before, a part of something new, and
what is after, it is x with some positions written: `write_span` of `std`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linnet.dims import Dim
from linnet.porting.graph import ONE, ZERO, Graph, Node, Shape, constant, known_size
from linnet.porting.operations import Unsupported


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """x from a position to another along an axis, integers of one element each."""

    x: Node
    axis: int
    start: Node
    stop: Node

    @property
    def shape(self) -> Shape:
        raise Unsupported("its shape depends on what the model is given")

    @property
    def dtype(self) -> str:
        return self.x.dtype


def joined(graph: Graph, parts: Sequence[Part | Node], axis: int) -> Node:
    """`x[:start]`, a part of a value, `x[stop:]`, where that is the value written at a position.

    Its ends are then that position and the one after it, moved into x, and those of the part are
    the same less the position, moved into the value.
    """
    match parts:
        case [Part() as before, Part() as new, Part() as after] if before.x is after.x:
            x, value = before.x, new.x
            if x.rank == 4 and {before.axis, new.axis, after.axis} == {axis} == {2}:
                at = _position(before, new, after, x.shape[2], value.shape[2])
                if at is not None:
                    name = "write_at" if value.shape[2] == ONE else "write_span"
                    given = [x, value, graph.cast(graph.reshape(at, ()), "i32")]
                    return graph.call(
                        f"std.nn.cache::{name}", given, shape=x.shape, dtype=x.dtype, name="written"
                    )
    raise Unsupported("it joins parts whose sizes depend on what the model is given")


def _position(before: Part, new: Part, after: Part, extent: Dim, count: Dim) -> Node | None:
    """Where the value begins in x."""
    first, last = _inside(before.stop, extent), _inside(after.start, extent)
    begin, end = _inside(new.start, count), _inside(new.stop, count)
    if first is None or last is None or begin is None or end is None:
        return None
    whole = known_size(before.start) == ZERO and known_size(after.stop) == extent
    told = last.op == "add" and last.inputs[0] is first and known_size(last.inputs[1]) == count
    less = all(
        each.op == "sub" and _bare(each.inputs[0]) is _bare(edge) and each.inputs[1] is first
        for each, edge in ((begin, before.stop), (end, after.start))
    )
    if not (whole and told and less):
        return None
    wide = _bare(first)
    return wide.inputs[0] if wide.op == "cast" and wide.inputs[0].dtype == "i32" else wide


def _inside(x: Node, most: Dim) -> Node | None:
    """What was moved to between 0 and a size."""
    x = _bare(x)
    if x.op != "min" or known_size(x.inputs[1]) != most:
        return None
    raised = _bare(x.inputs[0])
    return raised.inputs[0] if raised.op == "max" and constant(raised.inputs[1]) == 0 else None


def _bare(x: Node) -> Node:
    while x.op in ("reshape", "expand"):
        [x] = x.inputs
    return x
