"""Operations that index, window or sort, in XLA's terms, as nodes: what every reader shares."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from linnet.core.scalars import integer_range
from linnet.dims import Dim
from linnet.porting.graph import FLOATS, ONE, ZERO, Graph, Node, Shape, constant, known_size
from linnet.types import DTYPES

Pairs = Sequence[tuple[int, int]]
_SPATIAL = {1: "conv1d", 2: "conv2d_rect"}


class Unsupported(Exception):
    """An operation that has no translation, and why."""


class UnknownDtype(Unsupported):
    """A dtype that the language has not."""


@dataclass(slots=True)
class Operations:
    """Makes nodes of a graph; what was chosen or costs more than it did is said in `notes`."""

    graph: Graph
    notes: list[str] = field(default_factory=list)

    # ------------------------------------------------ products

    def dot_general(
        self,
        a: Node,
        b: Node,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]],
        dtype: str,
    ) -> Node:
        """Sums of products: the batch axes first, then a's own, then b's."""
        letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        of_a, of_b = [""] * a.rank, [""] * b.rank
        for i, j in [*zip(*batch, strict=True), *zip(*contract, strict=True)]:
            of_a[i] = of_b[j] = next(letters)
        of_a = [letter or next(letters) for letter in of_a]
        of_b = [letter or next(letters) for letter in of_b]
        own_a = [of_a[i] for i in range(a.rank) if i not in (*batch[0], *contract[0])]
        own_b = [of_b[i] for i in range(b.rank) if i not in (*batch[1], *contract[1])]
        result = "".join([*(of_a[i] for i in batch[0]), *own_a, *own_b])
        kept = dtype if a.dtype in FLOATS or dtype not in FLOATS else a.dtype
        a, b = self.graph.cast(a, kept), self.graph.cast(b, kept)
        return self.graph.cast(self.graph.dot(a, b, "".join(of_a), "".join(of_b), result), dtype)

    def convolution(
        self,
        x: Node,
        weight: Node,
        *,
        layouts: tuple[Sequence[int], Sequence[int], Sequence[int]],
        strides: Sequence[int],
        padding: Pairs,
        spread: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        batch_groups: int,
        flipped: Sequence[bool] = (),
    ) -> Node:
        """Windows of x times kernels: layouts say where batch, channels and pixels stand.

        Those of the kernel are its outputs, its inputs, its pixels.
        """
        graph = self.graph
        if batch_groups != 1:
            raise Unsupported("convolutions with groups of the batch are not translated")
        if any(flipped):
            raise Unsupported("convolutions with a reversed window are not translated")
        x, weight = graph.permute(x, layouts[0]), graph.permute(weight, layouts[1])
        zero = graph.literal(0, x.dtype)
        spatial = x.rank - 2
        x = graph.pad(x, zero, [(0, 0, 0)] * 2 + [(0, 0, n - 1) for n in spread])
        weight = graph.pad(weight, zero, [(0, 0, 0)] * 2 + [(0, 0, n - 1) for n in dilation])
        inner = [int(str(size)) for size in weight.shape[2:]]
        even = all(low == high >= 0 for low, high in padding)
        if not even or groups != 1 or spatial not in _SPATIAL:
            x = graph.pad(x, zero, [(0, 0, 0)] * 2 + [(low, high, 0) for low, high in padding])
            padding = [(0, 0)] * spatial
        batch, channels, outputs = x.shape[0], x.shape[1], weight.shape[0]
        pixels = [
            (size + (2 * low - width)) // step + 1
            for size, (low, _), width, step in zip(
                x.shape[2:], padding, inner, strides, strict=True
            )
        ]
        shape = (batch, outputs, *pixels)
        if groups == 1 and spatial in _SPATIAL:
            lows = [low for low, _ in padding]
            sizes = [*x.shape[2:], *inner, *strides, *lows]
            generics = [str(n) for n in (batch, channels, outputs, *sizes)]
            square = all(len(set(each)) == 1 for each in (inner, strides, lows))
            name = _SPATIAL[spatial]
            if spatial == 2 and square:
                name = "conv2d"
                generics = [*generics[:5], str(inner[0]), str(strides[0]), str(lows[0])]
            made = graph.call(
                f"std.nn.conv::{name}",
                [x, weight],
                shape=shape,
                dtype=x.dtype,
                generics=[*generics, x.dtype],
            )
        else:
            made = self._grouped(x, weight, groups, strides, inner, pixels)
        back = [0] * made.rank
        for at, place in enumerate(layouts[2]):
            back[place] = at
        return graph.permute(made, back)

    def _grouped(
        self,
        x: Node,
        weight: Node,
        groups: int,
        strides: Sequence[int],
        inner: Sequence[int],
        pixels: Sequence[Dim],
    ) -> Node:
        """The convolution of each group of channels with its own kernels."""
        graph, count = self.graph, Dim.of(groups)
        batch, channels, outputs = x.shape[0], x.shape[1], weight.shape[0]
        parts = graph.reshape(x, [batch, count, channels // groups, *x.shape[2:]])
        kernels = graph.reshape(weight, [count, outputs // groups, *weight.shape[1:]])
        n = len(pixels)
        # Indices: batch, group, output, pixels; then channels within the group, the window.
        places = [
            f"iota<i64>(#{3 + i})[${3 + i}] * {strides[i]} + iota<i64>(#{4 + n + i})[${4 + n + i}]"
            for i in range(n)
        ]
        window = "".join(f", ${4 + n + i}" for i in range(n))
        template = (
            f"sum[${3 + n}{window}] @0[$0, $1, ${3 + n}, {', '.join(places)}]"
            f" * @1[$1, $2, ${3 + n}{window}]"
        )
        made = graph.define(
            template,
            [parts, kernels],
            [batch, count, outputs // groups, *pixels],
            [channels // groups, *map(Dim.of, inner)],
            dtype=x.dtype,
            name="filtered",
        )
        return graph.reshape(made, [batch, outputs, *pixels])

    def window(
        self,
        kind: str,
        x: Node,
        start: Node,
        sizes: Sequence[int],
        strides: Sequence[int],
        padding: Pairs,
        spread: Sequence[int],
        dilation: Sequence[int],
    ) -> Node:
        """`sum`, `prod`, `max` or `min` over a window that moves along the axes."""
        graph = self.graph
        edges = [(low, high, n - 1) for (low, high), n in zip(padding, spread, strict=True)]
        x = graph.pad(x, start, edges)
        moving = [i for i, n in enumerate(sizes) if n > 1]
        reach = [(n - 1) * d + 1 for n, d in zip(sizes, dilation, strict=True)]
        shape = [
            (size - r) // s + 1 if r > 1 or s > 1 else size
            for size, r, s in zip(x.shape, reach, strides, strict=True)
        ]
        places: list[str] = []
        for i in range(x.rank):
            step, own = strides[i], x.rank + moving.index(i) if i in moving else -1
            text = f"${i}"
            if own >= 0 or step > 1:
                text = f"iota<i64>(#{i})[${i}]" + (f" * {step}" if step > 1 else "")
            if own >= 0:
                gap = f" * {dilation[i]}" if dilation[i] > 1 else ""
                text += f" + iota<i64>(#{own})[${own}]{gap}"
            places.append(text)
        over = ", ".join(f"${x.rank + at}" for at in range(len(moving)))
        reads = f"@0[{', '.join(places)}]"
        return graph.define(
            f"{kind}[{over}] {reads}" if moving else reads,
            [x],
            shape,
            [Dim.of(sizes[i]) for i in moving],
            dtype=x.dtype,
            name="pooled",
        )

    # ------------------------------------------------ reading and writing by position

    def gather(
        self,
        x: Node,
        indices: Node,
        *,
        offset: Sequence[int],
        collapsed: Sequence[int],
        batching: Sequence[int],
        index_batching: Sequence[int],
        mapped: Sequence[int],
        vector: int,
        sizes: Shape,
        fill: float | int | bool | None,
    ) -> Node:
        """Slices of x at positions; outside of x they are the nearest ones, or `fill`."""
        graph = self.graph
        if len(mapped) == 1 and not batching and set(indices.shape) <= {ONE}:
            [axis] = mapped
            begin = _start(indices, x.shape[axis], sizes[axis], within=fill is not None)
            if begin is not None:
                return self._one_slice(x, begin, axis, offset, collapsed, sizes, indices.rank - 1)
        wide = [i for i in range(x.rank) if i not in collapsed and i not in batching]
        own = [i for i in range(indices.rank) if i != vector]  # the axes of the positions
        rank = len(own) + len(wide)
        placed = [i for i in range(rank) if i not in offset]  # where those stand in the result
        letter = {axis: f"${place}" for axis, place in zip(own, placed, strict=True)}
        shape: list[Dim] = [ZERO] * rank
        for axis, place in zip(own, placed, strict=True):
            shape[place] = indices.shape[axis]
        for axis, place in zip(wide, offset, strict=True):
            shape[place] = sizes[axis]
        places: list[str] = []
        tests: list[str] = []
        for axis in range(x.rank):
            inner = ""
            if axis in wide:
                place = offset[wide.index(axis)]
                inner = f"${place}"
            if axis in batching:
                places.append(letter[index_batching[list(batching).index(axis)]])
                continue
            if axis not in mapped:
                if inner and sizes[axis] == ONE:
                    places.append("0")
                else:
                    places.append(inner or "0")
                continue
            component = list(mapped).index(axis)
            at = [letter.get(i, str(component)) for i in range(indices.rank)]
            start = f"@1[{', '.join(at)}]" if indices.rank else "@1"
            whole, size = x.shape[axis], sizes[axis]
            if fill is not None:
                if indices.dtype[0] == "i":
                    tests.append(f"{start} >= 0")
                room = whole - size + 1
                tests.append(f"{start} < {_held(room)}")
            if size == whole and fill is None:
                places.append(inner or "0")
            elif size == ONE:
                places.append(start)
            else:
                kind = indices.dtype
                bound = f"max(0, min({start}, {_held(whole - size)}))"
                moved = start if fill is not None else bound
                places.append(f"{moved} + iota<{kind}>(#{inner[1:]})[{inner}]")
        reads = f"@0[{', '.join(places)}]"
        if fill is None:
            return graph.define(reads, [x, indices], shape, dtype=x.dtype, name="found")
        return graph.define(
            f"if {' && '.join(tests)} {{ {reads} }} else {{ @2 }}",
            [x, indices, graph.literal(fill, x.dtype)],
            shape,
            dtype=x.dtype,
            name="found",
        )

    def _one_slice(
        self,
        x: Node,
        start: Dim,
        axis: int,
        offset: Sequence[int],
        collapsed: Sequence[int],
        sizes: Shape,
        ones: int,
    ) -> Node:
        """A gather of one slice, at a place that is known, with so many axes of 1 around it."""
        ranges = [(ZERO, size, 1) for size in sizes]
        ranges[axis] = start, start + sizes[axis], 1
        kept = iter([size for i, size in enumerate(sizes) if i not in collapsed])
        rank = ones + x.rank - len(collapsed)
        shape = [next(kept) if i in offset else ONE for i in range(rank)]
        return self.graph.reshape(self.graph.slice(x, ranges), shape)

    def dynamic_slice(self, x: Node, starts: Sequence[Node], sizes: Shape) -> Node:
        """A part of x from positions that are moved so that it lies in x."""
        known = [_start(*each) for each in zip(starts, x.shape, sizes, strict=True)]
        if None not in known:
            ranges = [(a, a + n, 1) for a, n in zip(known, sizes, strict=True) if a is not None]
            return self.graph.slice(x, ranges)
        places: list[str] = []
        for axis, (node, whole, size) in enumerate(zip(starts, x.shape, sizes, strict=True)):
            if size == whole:
                places.append(f"${axis}")
            elif size == ONE:
                places.append(f"@{1 + axis}")
            else:
                bound = f"max(0, min(@{1 + axis}, {_held(whole - size)}))"
                places.append(f"{bound} + iota<{node.dtype}>(#{axis})[${axis}]")
        return self.graph.define(
            f"@0[{', '.join(places)}]", [x, *starts], sizes, dtype=x.dtype, name="part"
        )

    def dynamic_update_slice(self, x: Node, part: Node, starts: Sequence[Node]) -> Node:
        """x with a part in the place of its own, moved so that it lies in x."""
        tests: list[str] = []
        places: list[str] = []
        for axis, (node, whole, size) in enumerate(zip(starts, x.shape, part.shape, strict=True)):
            if size == whole:
                places.append(f"${axis}")
                continue
            first = f"max(0, min(@{2 + axis}, {_held(whole - size)}))"
            at = f"iota<{node.dtype}>(#{axis})[${axis}]"
            if size == ONE:
                tests.append(f"{at} == {first}")
                places.append("0")
            else:
                tests += [f"{at} >= {first}", f"{at} < {first} + {_held(size)}"]
                places.append(f"{at} - {first}")
        if not tests:
            return part
        own = ", ".join(f"${axis}" for axis in range(x.rank))
        return self.graph.define(
            f"if {' && '.join(tests)} {{ @1[{', '.join(places)}] }} else {{ @0[{own}] }}",
            [x, part, *starts],
            x.shape,
            dtype=x.dtype,
            name="written",
        )

    def scatter(
        self,
        kind: str,
        x: Node,
        indices: Node,
        updates: Node,
        *,
        windows: Sequence[int],
        inserted: Sequence[int],
        batching: Sequence[int],
        index_batching: Sequence[int],
        mapped: Sequence[int],
        vector: int,
    ) -> Node:
        """x with updates at positions: put there, or joined by `sum`, `prod`, `max`, `min`.

        What lies outside of x is left out. Of several that are put at one place the last counts.
        """
        if batching:
            raise Unsupported("scatters with batch axes are not translated")
        graph = self.graph
        # Result indices are those of x; then one for each axis of the positions.
        own = [i for i in range(indices.rank) if i != vector]
        outer = [i for i in range(updates.rank) if i not in windows]
        letter = {axis: f"${x.rank + at}" for at, axis in enumerate(own)}
        wide = [i for i in range(x.rank) if i not in inserted]
        reads = [""] * updates.rank
        for at, place in enumerate(outer):
            reads[place] = f"${x.rank + at}"
        tests: list[str] = []
        kept: list[str] = []
        for axis in range(x.rank):
            here = f"iota<{indices.dtype}>(#{axis})[${axis}]"
            start = ""
            if axis in mapped:
                own_at = [letter.get(i, str(list(mapped).index(axis))) for i in range(indices.rank)]
                start = f"@1[{', '.join(own_at)}]" if own_at else "@1"
            if axis in inserted:
                tests.append(f"{start} == {here}" if start else f"{here} == 0")
                continue
            place = windows[wide.index(axis)]
            size = updates.shape[place]
            if not start:
                reads[place] = f"${axis}"
                if size != x.shape[axis]:
                    tests.append(f"{here} < {_held(size)}")
            else:
                reads[place] = f"{here} - {start}" if size != ONE else "0"
                if size == ONE:
                    tests.append(f"{here} == {start}")
                else:
                    tests += [f"{here} >= {start}", f"{here} < {start} + {_held(size)}"]
                # A window that does not fit is left out as a whole.
                if size != ONE:
                    kept += [f"{start} >= 0", f"{start} <= {_held(x.shape[axis] - size)}"]
        extents = [updates.shape[i] for i in outer]
        over = ", ".join(f"${x.rank + i}" for i in range(len(outer)))
        test = " && ".join([*kept, *tests]) or "true"
        value = f"@2[{', '.join(reads)}]" if reads else "@2"
        here = ", ".join(f"${i}" for i in range(x.rank))
        old = f"@0[{here}]" if here else "@0"
        if kind == "put":
            return self._put(x, indices, updates, extents, test, reads, old)
        none = {"sum": 0, "prod": 1}.get(kind)
        identity = graph.literal(lowest(kind, x.dtype) if none is None else none, x.dtype)
        joined = graph.define(
            f"{kind}[{over}] if {test} {{ {value} }} else {{ @3 }}"
            if over
            else f"if {test} {{ {value} }} else {{ @3 }}",
            [x, indices, updates, identity],
            x.shape,
            extents,
            dtype=x.dtype,
            name="updates",
        )
        self.notes.append(
            "scatters are sums over all updates for each element: slower than a kernel for it"
        )
        op = {"sum": "add", "prod": "mul"}.get(kind, kind)
        return graph.elementwise(op, [x, joined])

    def _put(
        self,
        x: Node,
        indices: Node,
        updates: Node,
        extents: Sequence[Dim],
        test: str,
        reads: Sequence[str],
        old: str,
    ) -> Node:
        graph, rank = self.graph, x.rank
        if not extents:
            value = f"@2[{', '.join(reads)}]" if reads else "@2"
            return graph.define(
                f"if {test} {{ {value} }} else {{ {old} }}",
                [x, indices, updates],
                x.shape,
                dtype=x.dtype,
                name="written",
            )
        # Which update, all numbered in order, is the last to be put at each place; -1 for none.
        turn = ""
        for at in range(len(extents)):
            one = f"iota<i64>(#{rank + at})[${rank + at}]"
            turn = one if not turn else f"({turn}) * #{rank + at} + {one}"
        over = ", ".join(f"${rank + at}" for at in range(len(extents)))
        # Only along the axes that have a say in it.
        told = [axis for axis in range(rank) if f"[${axis}]" in test]
        number = {axis: at for at, axis in enumerate(told)}
        number |= {rank + at: len(told) + at for at in range(len(extents))}
        last = graph.define(
            re.sub(
                r"([$#])(\d+)",
                lambda mark: f"{mark[1]}{number[int(mark[2])]}",
                f"max[{over}] if {test} {{ {turn} }} else {{ -1 }}".replace("@1", "@0"),
            ),
            [indices],
            [x.shape[axis] for axis in told],
            extents,
            dtype="i64",
            name="last",
        )
        here = ", ".join(f"${i}" for i in told)
        each = f"@3[{here}]" if told else "@3"
        places = list(reads)
        rest = each
        for at in reversed(range(len(extents))):
            mark = f"${rank + at}"
            size = _held(extents[at])
            own = rest if at == 0 else f"({rest}) % {size}"
            rest = f"({rest}) / {size}"
            places = [own if place == mark else place for place in places]
        if any(re_mark in place for place in places for re_mark in _marks(rank, len(extents))):
            raise Unsupported("scatters of windows at many positions are not translated")
        return graph.define(
            f"if {each} >= 0 {{ @2[{', '.join(places)}] }} else {{ {old} }}",
            [x, indices, updates, last],
            x.shape,
            dtype=x.dtype,
            name="written",
        )

    # ------------------------------------------------ along an axis

    def reverse(self, x: Node, axes: Sequence[int]) -> Node:
        """x with its positions along the axes in reverse."""
        if not axes:
            return x
        at = [
            f"{_held(size)} - 1 - iota<i64>(#{i})[${i}]" if i in axes else f"${i}"
            for i, size in enumerate(x.shape)
        ]
        return self.graph.define(
            f"@0[{', '.join(at)}]", [x], x.shape, dtype=x.dtype, name="reversed"
        )

    def cumulative(self, kind: str, x: Node, axis: int, reverse: bool) -> Node:
        """`sum`, `prod`, `max` or `min` of what stands up to each position."""
        graph = self.graph
        none = {"sum": 0, "prod": 1}.get(kind)
        identity = graph.literal(lowest(kind, x.dtype) if none is None else none, x.dtype)
        other = x.rank
        at = [f"${other if i == axis else i}" for i in range(x.rank)]
        sign = ">=" if reverse else "<="
        test = f"iota<i64>(#{other})[${other}] {sign} iota<i64>(#{axis})[${axis}]"
        self.notes.append(
            f"cumulative {kind}s read, for each position, all of their axis: slower "
            "than a kernel for it"
        )
        return graph.define(
            f"{kind}[${other}] if {test} {{ @0[{', '.join(at)}] }} else {{ @1 }}",
            [x, identity],
            x.shape,
            [x.shape[axis]],
            dtype=x.dtype,
            name="running",
        )

    def arg_extreme(self, kind: str, x: Node, axis: int, dtype: str) -> Node:
        """The first position of the largest or smallest number along an axis, or of a NaN."""
        graph = self.graph
        best = graph.reduce(kind, x, [axis])
        kept = [i for i in range(x.rank) if i != axis]
        last = len(kept)
        at = [f"${kept.index(i)}" if i != axis else f"${last}" for i in range(x.rank)]
        own = ", ".join(f"${i}" for i in range(last))
        here = f"@0[{', '.join(at)}]"
        test = f"{here} == @1{f'[{own}]' if own else ''}"
        if x.dtype in FLOATS:
            test += f" || {here} != {here}"
        return graph.define(
            f"min[${last}] if {test} {{ iota<{dtype}>(#{last})[${last}] }} else {{ @2 }}",
            [x, best, graph.literal(lowest("min", dtype), dtype)],
            [x.shape[i] for i in kept],
            [x.shape[axis]],
            dtype=dtype,
            name="best",
        )

    def order(self, x: Node, axis: int, *, falling: bool = False) -> Node:
        """For each place along the axis, the position of what is sorted there (i64); stable."""
        graph, rank, other = self.graph, x.rank, x.rank
        here = ", ".join(f"${i}" for i in range(rank))
        there = ", ".join(f"${other if i == axis else i}" for i in range(rank))
        mine, its = f"@0[{here}]", f"@0[{there}]"
        before = f"{its} > {mine}" if falling else f"{its} < {mine}"
        same = f"{its} == {mine}"
        if x.dtype in FLOATS:  # NaN is above every number
            apart = f"{mine} != {mine}", f"{its} != {its}"
            above = (
                f"{apart[1]} && {mine} == {mine}" if falling else f"{apart[0]} && {its} == {its}"
            )
            before = f"{before} || {above}"
            same = f"{same} || {apart[0]} && {apart[1]}"
        elif x.dtype == "bool":
            before = f"{its} && {mine} == false" if falling else f"{its} == false && {mine}"
        earlier = f"iota<i64>(#{other})[${other}] < iota<i64>(#{axis})[${axis}]"
        rank_of = graph.define(
            f"sum[${other}] if {before} || ({same}) && {earlier} {{ cast<i64>(1) }} else {{ 0 }}",
            [x],
            x.shape,
            [x.shape[axis]],
            dtype="i64",
            name="rank",
        )
        self.notes.append("sorting compares all pairs along the axis: slower than a kernel for it")
        return graph.define(
            f"sum[${other}] if @0[{there}] == iota<i64>(#{axis})[${axis}] "
            f"{{ iota<i64>(#{other})[${other}] }} else {{ 0 }}",
            [rank_of],
            x.shape,
            [x.shape[axis]],
            dtype="i64",
            name="order",
        )

    def along(self, x: Node, order: Node, axis: int) -> Node:
        """x with its positions along the axis as `order` has them."""
        here = ", ".join(f"${i}" for i in range(x.rank))
        at = ", ".join(f"@1[{here}]" if i == axis else f"${i}" for i in range(x.rank))
        return self.graph.define(f"@0[{at}]", [x, order], order.shape, dtype=x.dtype, name="sorted")

    # ------------------------------------------------ powers and bounds

    def integer_power(self, x: Node, y: int) -> Node:
        """x multiplied by itself."""
        graph = self.graph
        if y == 0:
            return graph.literal(1, x.dtype, x.shape)
        result: Node | None = None
        square, n = x, abs(y)
        while n:
            if n & 1:
                result = square if result is None else graph.elementwise("mul", [result, square])
            n >>= 1
            if n:
                square = graph.square(square)
        assert result is not None
        if y < 0:
            result = graph.elementwise("div", [graph.literal(1, x.dtype), result])
        return result

    def power(self, x: Node, y: Node) -> Node:
        """x to the power of y, floats; of a number, by its logarithm in f64."""
        graph, base = self.graph, constant(x)
        if base is None or base <= 0:
            return graph.helper("power", x, graph.cast(y, x.dtype))
        scale = graph.literal(math.log(base), "f64")
        raised = graph.elementwise("exp", [graph.elementwise("mul", [graph.cast(y, "f64"), scale])])
        return graph.cast(raised, x.dtype)

    def hyperbolic(self, name: str, x: Node) -> Node:
        """`sinh` or `cosh`, exact near 0."""
        graph = self.graph
        both = [x, graph.elementwise("neg", [x])]
        if name == "sinh":
            joined = graph.elementwise("sub", [graph.helper("expm1", each) for each in both])
        else:
            joined = graph.elementwise("add", [graph.elementwise("exp", [each]) for each in both])
        return graph.elementwise("mul", [graph.literal(0.5, x.dtype), joined])

    def reduce_precision(self, x: Node, exponent: int, mantissa: int) -> Node:
        """x rounded to a dtype of fewer bits."""
        own = {"f64": (11, 52), "f32": (8, 23), "bf16": (8, 7), "f16": (5, 10)}
        wide = own.get(x.dtype)
        if wide is not None and exponent >= wide[0] and mantissa >= wide[1]:
            return x
        for dtype, bits in own.items():
            if bits == (exponent, mantissa):
                return self.graph.cast(self.graph.cast(x, dtype), x.dtype)
        raise Unsupported(f"no dtype has {exponent} bits of exponent and {mantissa} of mantissa")

    def shift_right(self, x: Node, count: Node, *, logical: bool) -> Node:
        """x shifted towards its lowest bit, by zeros where it is `logical`, else by its sign."""
        graph, own = self.graph, x.dtype
        other = f"{'u' if logical else 'i'}{own[1:]}"
        given = [graph.cast(x, other), graph.cast(count, other)]
        return graph.cast(graph.elementwise("shr", given), own)

    def clamp(self, low: Node, x: Node, high: Node) -> Node:
        raised = self.graph.elementwise("max", [x, low])
        return self.graph.elementwise("min", [raised, high])


def _start(node: Node, whole: Dim, size: Dim, *, within: bool = False) -> Dim | None:
    """Where a slice begins that XLA moves into its axis, where that is known for all sizes.

    With `within`, only where it need not be moved.
    """
    at, room = known_size(node), whole - size
    if room == ZERO and not within:
        return ZERO
    if at is None or at in (ZERO, room):
        return at
    if at.constant is None or room.constant is None:
        return None
    moved = max(0, min(at.constant, room.constant))
    return None if within and moved != at.constant else Dim.of(moved)


def _held(size: Dim) -> str:
    """A size as an operand."""
    return str(size) if size.constant is not None or len(size.terms) == 1 else f"({size})"


def _marks(rank: int, count: int) -> list[str]:
    return [f"${rank + at}" for at in range(count)]


def lowest(kind: str, dtype: str) -> float | int:
    """What a `max` or `min` over nothing is."""
    if dtype in FLOATS:
        return -math.inf if kind == "max" else math.inf
    if dtype == "bool":
        return kind == "min"
    least, most = integer_range(DTYPES[dtype])
    return least if kind == "max" else most
