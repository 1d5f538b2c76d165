"""Ops written so that XLA runs them fast on a CPU, where it would run what their bodies say slowly.

Attention over a cache is a loop over blocks of keys. XLA copies a cache that is given back and is
met by a product too, and lays the keys of all positions out anew for it; a loop reads a cache where
it lies, and stops after the last key that is seen. Its softmax keeps the largest score so far and
the sums scaled to it (Milakov and Gimelshein, arXiv:1805.02867).

A value that is written to a cache replaces one block of it. XLA compiles a scatter anew for each
layer, and converts all of a cache of 16 bits for it.

In a product of one row with weights of 16 bits, these are turned first. That XLA makes a loop which
converts each weight as it meets it; of the weights as they lie it would convert all on each call,
into memory of their own. For many rows that is what pays: its products are faster in f32. Between
them XLA's own way for 16 bits is the fastest (`bench/jax_rows.py` has where).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.core.derive import dtype_of
from linnet.core.ir import Call, Node
from linnet.policy import allows
from linnet.stablehlo.kernels import Kernel, write_span
from linnet.stablehlo.text import listed, tensor_type
from linnet.types import BF16, BOOL, F16, F32, I32, I64, U16, DType

if TYPE_CHECKING:
    from linnet.stablehlo.emit import Body

BLOCK = 128
"""Keys of a turn: few enough that their scores stay in a core's cache."""
MANY = 160
"""Rows from which on a product of 16-bit numbers is faster in f32, conversions included."""
QUERIES = 256
"""Queries of a loop: those of a long prompt have loops of their own, which end where they do."""

_NARROW = (BF16, F16)
_UNSEEN = -1e30  # as std.nn.attention has it


def _has_sizes(w: Body, call: Call) -> bool:
    """All of the call's sizes are numbers."""
    return all(isinstance(size, int) for x in call.inputs for size in w.shape_of(x))


def _sizes(w: Body, node: Node) -> list[int]:
    return [size for size in w.shape_of(node) if isinstance(size, int)]


# ---------------------------------------------------------------- products of one row


def _is_of_one_row_or_many(w: Body, call: Call) -> bool:
    """16-bit weights, and as many rows as XLA's own way is slow for."""
    x = call.inputs[0]
    if dtype_of(x) not in _NARROW or not _has_sizes(w, call):
        return False
    rows = math.prod(_sizes(w, x)[:-1])
    return rows == 1 or rows >= MANY


def _write_linear(w: Body, call: Call) -> str:
    x, weight, *bias = call.inputs
    dtype, out = dtype_of(x), _sizes(w, weight)[0]
    rows = math.prod(_sizes(w, x)[:-1])
    if rows == 1:
        total = _one_row(w, x, weight)
    else:
        wide = [_widened(w, w.name(node), _sizes(w, node), dtype) for node in (x, weight)]
        given = [tensor_type(_sizes(w, node), F32) for node in (x, weight)]
        last = len(_sizes(w, x)) - 1
        text = f"stablehlo.dot_general {', '.join(wide)}, contracting_dims = [{last}] x [1]"
        text += f", precision = [{w.precision}, {w.precision}]"
        to = tensor_type([*_sizes(w, x)[:-1], out], F32)
        total = w.op(text, f"({', '.join(given)}) -> {to}")
        flat = tensor_type((rows, out), F32)
        total = w.op(f"stablehlo.reshape {total}", f"({to}) -> {flat}")
    wide_type, type = tensor_type((rows, out), F32), tensor_type((rows, out), dtype)
    total = w.op(f"stablehlo.convert {total}", f"({wide_type}) -> {type}")
    for shift in bias:
        text = f"stablehlo.broadcast_in_dim {w.name(shift)}, dims = [1]"
        spread = w.op(text, f"({w.types(shift)[0]}) -> {type}")
        total = w.op(f"stablehlo.add {total}, {spread}", type)
    return w.op(f"stablehlo.reshape {total}", f"({type}) -> {w.types(call)[0]}", "linear")


def _one_row(w: Body, x: Node, weight: Node) -> str:
    """The product `[1, Out]`, f32, of the weight's columns."""
    dtype, (out, width) = dtype_of(x), _sizes(w, weight)
    row, turned = tensor_type((width,), dtype), tensor_type((width, out), dtype)
    own = w.op(f"stablehlo.reshape {w.name(x)}", f"({w.types(x)[0]}) -> {row}")
    text = f"stablehlo.transpose {w.name(weight)}, dims = [1, 0]"
    columns = w.op(text, f"({w.types(weight)[0]}) -> {turned}")
    text = f"stablehlo.dot_general {own}, {columns}, contracting_dims = [0] x [0]"
    text += f", precision = [{w.precision}, {w.precision}]"
    flat = tensor_type((out,), F32)
    total = w.op(text, f"({row}, {turned}) -> {flat}")
    return w.op(f"stablehlo.reshape {total}", f"({flat}) -> {tensor_type((1, out), F32)}")


def _widened(w: Body, x: str, shape: Sequence[int], dtype: DType) -> str:
    types = f"({tensor_type(shape, dtype)}) -> {tensor_type(shape, F32)}"
    return x if dtype == F32 else w.op(f"stablehlo.convert {x}", types)


def _reduced(
    w: Body, op: str, first: float, x: str, shape: Sequence[int], axis: int, dtype: DType
) -> str:
    start = w.constant(first, (), dtype)
    text = (
        f"stablehlo.reduce({x} init: {start}) applies stablehlo.{op} across dimensions = [{axis}]"
    )
    kept = [extent for k, extent in enumerate(shape) if k != axis]
    types = f"{tensor_type(shape, dtype)}, {tensor_type((), dtype)}"
    return w.op(text, f"({types}) -> {tensor_type(kept, dtype)}")


# ---------------------------------------------------------------- caches


def _write_span(w: Body, call: Call) -> str:
    """`write_at` and `write_span`: a block of the cache, with the value where that is inside."""
    cache, value, at = call.inputs
    if not _has_sizes(w, call) or _sizes(w, value)[2] > _sizes(w, cache)[2]:
        return write_span(w, call)
    shape, extents, dtype = _sizes(w, value), _sizes(w, cache), dtype_of(cache)
    count, size, held, moved = shape[2], extents[2], w.name(cache), w.name(value)
    if dtype in _NARROW:  # as bits: XLA would convert the whole cache for the sake of the block
        held, moved = _as_bits(w, held, extents, dtype), _as_bits(w, moved, shape, dtype)
    bits = U16 if dtype in _NARROW else dtype
    part, whole = tensor_type(shape, bits), tensor_type(extents, bits)
    zero, scalars = w.constant(0, (), I32), ", tensor<i32>" * 4
    start = _clamped_scalar(w, w.name(at), 0, size - count)
    place, told = f"{zero}, {zero}, {start}, {zero}", f"sizes = {listed(shape)}"
    # The block's first position, as one of the value's.
    first = _clamped_scalar(w, w.name(at), -count, size)
    first = w.op(f"stablehlo.subtract {start}, {first}", "tensor<i32>")
    if count > 1:
        wide, sides = tensor_type([*shape[:2], 3 * count, shape[3]], bits), f"[0, 0, {count}, 0]"
        text = f"stablehlo.pad {moved}, {w.constant(0, (), bits)}, low = {sides}, high = {sides}"
        types = f"({part}, {tensor_type((), bits)}) -> {wide}"
        padded = w.op(f"{text}, interior = [0, 0, 0, 0]", types)
        shift = w.op(f"stablehlo.add {first}, {w.constant(count, (), I32)}", "tensor<i32>")
        text = f"stablehlo.dynamic_slice {padded}, {zero}, {zero}, {shift}, {zero}, {told}"
        moved = w.op(text, f"({wide}{scalars}) -> {part}")
    text = f"stablehlo.dynamic_slice {held}, {place}, {told}"
    old = w.op(text, f"({whole}{scalars}) -> {part}")
    flags = tensor_type(shape, BOOL)
    text = f"stablehlo.broadcast_in_dim {_inside(w, first, count)}, dims = [2]"
    inside = w.op(text, f"({tensor_type((count,), BOOL)}) -> {flags}")
    new = w.op(f"stablehlo.select {inside}, {moved}, {old}", f"{flags}, {part}")
    text = f"stablehlo.dynamic_update_slice {held}, {new}, {place}"
    written = w.op(text, f"({whole}, {part}{scalars}) -> {whole}", "written")
    if dtype not in _NARROW:
        return written
    return w.op(f"stablehlo.bitcast_convert {written}", f"({whole}) -> {w.types(cache)[0]}")


def _as_bits(w: Body, x: str, shape: Sequence[int], dtype: DType) -> str:
    types = f"({tensor_type(shape, dtype)}) -> {tensor_type(shape, U16)}"
    return w.op(f"stablehlo.bitcast_convert {x}", types)


def _inside(w: Body, first: str, count: int) -> str:
    """Which of `count` positions from `first` on are from 0 to `count`."""
    line, flags = tensor_type((count,), I32), tensor_type((count,), BOOL)
    own = w.op(f"stablehlo.broadcast_in_dim {first}, dims = []", f"(tensor<i32>) -> {line}")
    own = w.op(f"stablehlo.add {w.op('stablehlo.iota dim = 0', line)}, {own}", line)
    low = w.compare("ge", own, w.constant(0, (count,), I32), line, I32)
    high = w.compare("lt", own, w.constant(count, (count,), I32), line, I32)
    return w.op(f"stablehlo.and {low}, {high}", flags)


def _clamped_scalar(w: Body, x: str, least: int, most: int) -> str:
    bounds = [w.constant(number, (), I32) for number in (least, most)]
    return w.op(f"stablehlo.clamp {bounds[0]}, {x}, {bounds[1]}", "tensor<i32>")


# ---------------------------------------------------------------- attention


def _is_of_floats(w: Body, call: Call) -> bool:
    """Floats that f32 holds, and something to see, which is counted in 32 bits."""
    if not _has_sizes(w, call):
        return False
    query, key, *_ = call.inputs
    floats = all(dtype_of(x) in (F32, *_NARROW) for x in (query, key))
    sizes = [*_sizes(w, query), *_sizes(w, key)]
    return floats and all(0 < size <= 2**30 for size in sizes)


def _write_span_attention(w: Body, call: Call) -> str:
    given = _named(call)
    count = _sizes(w, given["query"])[2]
    type = tensor_type((count,), I64)
    at = w.op(f"stablehlo.convert {w.name(given['at'])}", "(tensor<i32>) -> tensor<i64>")
    at = w.op(f"stablehlo.broadcast_in_dim {at}, dims = []", f"(tensor<i64>) -> {type}")
    own = w.op(f"stablehlo.add {w.op('stablehlo.iota dim = 0', type)}, {at}", type)
    query, shape, dtype = (
        w.name(given["query"]),
        _sizes(w, given["query"]),
        dtype_of(call.inputs[0]),
    )
    if count <= QUERIES:
        return _Attention(w, given, query, shape, count, axis=3).write(own)
    parts: list[str] = []
    types: list[str] = []
    for first in range(0, count, QUERIES):
        last = min(first + QUERIES, count)
        part = [*shape[:2], last - first, shape[3]]
        types.append(tensor_type(part, dtype))
        text = f"stablehlo.slice {query} [0:{shape[0]}, 0:{shape[1]}, {first}:{last}, 0:{shape[3]}]"
        some = w.op(text, f"({tensor_type(shape, dtype)}) -> {types[-1]}")
        text = f"stablehlo.slice {own} [{first}:{last}]"
        at = w.op(text, f"({type}) -> {tensor_type((last - first,), I64)}")
        parts.append(_Attention(w, given, some, part, last - first, axis=3).write(at))
    text = f"stablehlo.concatenate {', '.join(parts)}, dim = 2"
    return w.op(text, f"({', '.join(types)}) -> {tensor_type(shape, dtype)}", "attention")


def _write_rows_attention(w: Body, call: Call) -> str:
    given = _named(call)
    shape = _sizes(w, given["query"])
    rows = shape[0]
    types = f"({tensor_type((rows,), I32)}) -> {tensor_type((rows,), I64)}"
    own = w.op(f"stablehlo.convert {w.name(given['positions'])}", types)
    return _Attention(w, given, w.name(given["query"]), shape, rows, axis=0).write(own)


def _named(call: Call) -> dict[str, Node]:
    return {p.name: x for p, x in zip(call.function.params, call.inputs, strict=True)}


@dataclass(slots=True)
class _Attention:
    """One call: `count` positions, which lie along `axis` of the scores' five.

    Those are rows of the cache, its heads, query heads of each, queries, and keys or width.
    """

    w: Body
    given: dict[str, Node]
    query: str
    shape: list[int]  # of the queries
    count: int
    axis: int

    @property
    def lead(self) -> list[int]:
        rows, heads, queries, _ = self.shape
        groups = _sizes(self.w, self.given["key"])[1]
        return [rows, groups, heads // groups, queries]

    @property
    def keys(self) -> int:
        return _sizes(self.w, self.given["key"])[2]

    @property
    def width(self) -> int:
        return self.shape[3]

    @property
    def block(self) -> int:
        return min(BLOCK if self.shape[2] <= BLOCK else 2 * BLOCK, self.keys)

    def write(self, own: str) -> str:
        """Attention of queries at positions `own`, i64."""
        w, lead, width = self.w, self.lead, self.width
        first, last = self._seen(own)
        begin, end = self._turns(first, last)
        scale, dtype = w.name(self.given["scale"]), dtype_of(self.given["query"])
        given, whole = tensor_type(self.shape, dtype), tensor_type([*lead, width], dtype)
        split = w.op(f"stablehlo.reshape {self.query}", f"({given}) -> {whole}")
        scores = tensor_type([*lead, self.block], F32)
        scale = w.op(f"stablehlo.broadcast_in_dim {scale}, dims = []", f"(tensor<f32>) -> {scores}")
        sums, mixes = tensor_type(lead, F32), tensor_type([*lead, width], F32)
        start = [*self._start(), w.constant(0, [*lead, width], F32)]

        def test(names: Sequence[str]) -> list[str]:
            types = "(tensor<i32>, tensor<i32>) -> tensor<i1>"
            return [w.op(f"stablehlo.compare LT, {names[0]}, {end}, SIGNED", types)]

        def body(names: Sequence[str]) -> list[str]:
            turn, top, total, mixed = names
            kept, place = self._scores(split, scale, turn, first, last)
            found = _reduced(w, "maximum", -math.inf, kept, [*lead, self.block], 4, F32)
            raised = w.op(f"stablehlo.maximum {top}, {found}", sums)
            scaled = w.op(f"stablehlo.subtract {top}, {raised}", sums)
            scaled = w.op(f"stablehlo.exponential {scaled}", sums)
            parts = w.op(f"stablehlo.subtract {kept}, {self._over(raised, self.block)}", scores)
            parts = w.op(f"stablehlo.exponential {parts}", scores)
            own = _reduced(w, "add", 0, parts, [*lead, self.block], 4, F32)
            total = w.op(f"stablehlo.multiply {total}, {scaled}", sums)
            mixed = w.op(f"stablehlo.multiply {mixed}, {self._over(scaled, width)}", mixes)
            one = w.constant(1, (), I32)
            return [
                w.op(f"stablehlo.add {turn}, {one}", "tensor<i32>"),
                raised,
                w.op(f"stablehlo.add {total}, {own}", sums),
                w.op(f"stablehlo.add {mixed}, {self._mixed(parts, place)}", mixes),
            ]

        *_, total, mixed = w.loop([begin, *start], ["tensor<i32>", sums, sums, mixes], test, body)
        result = w.op(f"stablehlo.divide {mixed}, {self._over(total, width)}", mixes)
        if dtype != F32:
            result = w.op(f"stablehlo.convert {result}", f"({mixes}) -> {whole}")
        return w.op(f"stablehlo.reshape {result}", f"({whole}) -> {given}", "attention")

    def _seen(self, own: str) -> tuple[str, str]:
        """The first and the last key that each position sees, i32: the keys' own, or just past."""
        w, wide = self.w, tensor_type((self.count,), I64)
        last = self._clamped(own, -1)
        if "window" not in self.given:
            return w.constant(0, (self.count,), I32), last
        window = w.name(self.given["window"])
        size = w.op(f"stablehlo.convert {window}", "(tensor<i32>) -> tensor<i64>")
        size = w.op(f"stablehlo.broadcast_in_dim {size}, dims = []", f"(tensor<i64>) -> {wide}")
        before = w.op(f"stablehlo.subtract {own}, {size}", wide)
        one = w.constant(1, (self.count,), I64)
        return self._clamped(w.op(f"stablehlo.add {before}, {one}", wide), 0), last

    def _clamped(self, positions: str, least: int) -> str:
        w, wide = self.w, tensor_type((self.count,), I64)
        bounds = [w.constant(number, (), I64) for number in (least, self.keys)]
        text = f"stablehlo.clamp {bounds[0]}, {positions}, {bounds[1]}"
        inside = w.op(text, f"(tensor<i64>, {wide}, tensor<i64>) -> {wide}")
        return w.op(f"stablehlo.convert {inside}", f"({wide}) -> {tensor_type((self.count,), I32)}")

    def _turns(self, first: str, last: str) -> tuple[str, str]:
        """The blocks with keys that are seen: all where a query sees none, and weighs all alike."""
        w, type, shape = self.w, tensor_type((self.count,), I32), (self.count,)
        ended = w.op(f"stablehlo.minimum {last}, {w.constant(self.keys - 1, shape, I32)}", type)
        flags = tensor_type(shape, BOOL)
        blind = w.op(
            f"stablehlo.compare GT, {first}, {ended}, SIGNED", f"({type}, {type}) -> {flags}"
        )
        blind = _reduced(w, "or", False, blind, shape, 0, BOOL)
        size, one = w.constant(self.block, (), I32), w.constant(1, (), I32)
        begin = _reduced(w, "minimum", self.keys, first, shape, 0, I32)
        end = _reduced(w, "maximum", -1, ended, shape, 0, I32)
        limits: list[str] = []
        for bound, all_ in ((begin, 0), (end, self.keys - 1)):
            every = w.constant(all_, (), I32)
            key = w.op(f"stablehlo.select {blind}, {every}, {bound}", "tensor<i1>, tensor<i32>")
            limits.append(w.op(f"stablehlo.divide {key}, {size}", "tensor<i32>"))
        return limits[0], w.op(f"stablehlo.add {limits[1]}, {one}", "tensor<i32>")

    def _start(self) -> tuple[str, str]:
        """The largest score before the first turn, and the sum of what is raised to it."""
        w, lead = self.w, self.lead
        if "sinks" not in self.given:
            return w.constant(-math.inf, lead, F32), w.constant(0, lead, F32)
        sinks, dtype = self.given["sinks"], dtype_of(self.given["sinks"])
        own, wide = tensor_type(lead[1:3], dtype), tensor_type(lead[1:3], F32)
        split = w.op(f"stablehlo.reshape {w.name(sinks)}", f"({w.types(sinks)[0]}) -> {own}")
        if dtype != F32:
            split = w.op(f"stablehlo.convert {split}", f"({own}) -> {wide}")
        text = f"stablehlo.broadcast_in_dim {split}, dims = [1, 2]"
        return w.op(text, f"({wide}) -> {tensor_type(lead, F32)}"), w.constant(1, lead, F32)

    def _scores(self, query: str, scale: str, turn: str, first: str, last: str) -> tuple[str, str]:
        """The scores of a block, those of keys that are not seen as `std` has them; its place."""
        w, lead, block = self.w, self.lead, self.block
        size = w.constant(block, (), I32)
        begin = w.op(f"stablehlo.multiply {turn}, {size}", "tensor<i32>")
        place = begin
        if self.keys % block:  # the last block begins earlier, to end where the keys do
            latest = w.constant(self.keys - block, (), I32)
            place = w.op(f"stablehlo.minimum {begin}, {latest}", "tensor<i32>")
        scores = tensor_type([*lead, block], F32)
        key, dtype = self._block("key", place), dtype_of(self.given["key"])
        types = [dtype_of(self.given["query"]), dtype]
        sides = [(query, [*lead, self.width]), (key, [*lead[:2], block, self.width])]
        if types[0] != types[1]:
            names = [_widened(self.w, *side, own) for side, own in zip(sides, types, strict=True)]
            sides, types = [(n, s) for n, (_, s) in zip(names, sides, strict=True)], [F32, F32]
        found = self._product(sides, types, "[4] x [3]", scores)
        found = w.op(f"stablehlo.multiply {found}, {scale}", scores)
        line = tensor_type((block,), I32)
        keys = w.op(f"stablehlo.broadcast_in_dim {place}, dims = []", f"(tensor<i32>) -> {line}")
        keys = w.op(f"stablehlo.add {w.op('stablehlo.iota dim = 0', line)}, {keys}", line)
        seen = self._compared("LE", keys, last)
        if "window" in self.given:
            near = self._compared("GE", keys, first)
            seen = w.op(f"stablehlo.and {seen}, {near}", tensor_type((self.count, block), BOOL))
        found = self._selected(seen, (self.count, block), [self.axis, 4], found, _UNSEEN)
        if self.keys % block:
            flags = tensor_type((block,), BOOL)
            text = f"stablehlo.broadcast_in_dim {begin}, dims = []"
            bound = w.op(text, f"(tensor<i32>) -> {line}")
            new = w.op(
                f"stablehlo.compare GE, {keys}, {bound}, SIGNED", f"({line}, {line}) -> {flags}"
            )
            found = self._selected(new, (block,), [4], found, -math.inf)
        return found, place

    def _mixed(self, parts: str, place: str) -> str:
        """The values of a block, weighed."""
        w, lead = self.w, self.lead
        dtype, value = dtype_of(self.given["value"]), self._block("value", place)
        shapes = [*lead, self.block], [*lead[:2], self.block, self.width]
        own = dtype if allows(w.policy, "fast") else F32
        if own == F32:
            value = _widened(w, value, shapes[1], dtype)
        else:
            types = f"({tensor_type(shapes[0], F32)}) -> {tensor_type(shapes[0], own)}"
            parts = w.op(f"stablehlo.convert {parts}", types)
        to = tensor_type([*lead, self.width], F32)
        sides = [(parts, shapes[0]), (value, shapes[1])]
        return self._product(sides, [own, own], "[4] x [2]", to)

    def _block(self, name: str, place: str) -> str:
        w, node = self.w, self.given[name]
        rows, heads, _, width = _sizes(w, node)
        zero, shape = w.constant(0, (), I32), (rows, heads, self.block, width)
        whole = w.name(node)
        if dtype_of(node) in _NARROW:
            # XLA has no slices of such floats: it would convert all of them, before the loop.
            text = f"stablehlo.optimization_barrier {whole}, {place}"
            whole, place = w.several(f"{text} : {w.types(node)[0]}, tensor<i32>", 2, name)
        text = (
            f"stablehlo.dynamic_slice {whole}, {zero}, {zero}, {place}, {zero}, "
            f"sizes = [{', '.join(map(str, shape))}]"
        )
        types = ", ".join([w.types(node)[0], *["tensor<i32>"] * 4])
        return w.op(text, f"({types}) -> {tensor_type(shape, dtype_of(node))}", name)

    def _product(
        self, sides: Sequence[tuple[str, Sequence[int]]], types: list[DType], over: str, to: str
    ) -> str:
        names = ", ".join(name for name, _ in sides)
        p = self.w.precision
        given = [tensor_type(shape, own) for (_, shape), own in zip(sides, types, strict=True)]
        text = (
            f"stablehlo.dot_general {names}, batching_dims = [0, 1] x [0, 1], "
            f"contracting_dims = {over}, precision = [{p}, {p}]"
        )
        return self.w.op(text, f"({', '.join(given)}) -> {to}")

    def _compared(self, op: str, keys: str, bounds: str) -> str:
        """Each key with each position's bound."""
        w, shape = self.w, (self.count, self.block)
        type, flags = tensor_type(shape, I32), tensor_type(shape, BOOL)
        sides = [
            w.op(
                f"stablehlo.broadcast_in_dim {name}, dims = [{axis}]",
                f"({tensor_type((extent,), I32)}) -> {type}",
            )
            for name, axis, extent in ((keys, 1, self.block), (bounds, 0, self.count))
        ]
        text = f"stablehlo.compare {op}, {', '.join(sides)}, SIGNED"
        return w.op(text, f"({type}, {type}) -> {flags}")

    def _selected(
        self, flags: str, shape: Sequence[int], axes: Sequence[int], scores: str, other: float
    ) -> str:
        """The scores where the flags are set, which lie along these axes."""
        w, full = self.w, [*self.lead, self.block]
        to, type = tensor_type(full, BOOL), tensor_type(full, F32)
        text = f"stablehlo.broadcast_in_dim {flags}, dims = [{', '.join(map(str, axes))}]"
        spread = w.op(text, f"({tensor_type(shape, BOOL)}) -> {to}")
        instead = w.constant(other, full, F32)
        return w.op(f"stablehlo.select {spread}, {scores}, {instead}", f"{to}, {type}")

    def _over(self, x: str, extent: int) -> str:
        """A number of each query along a last axis."""
        types = f"({tensor_type(self.lead, F32)}) -> {tensor_type([*self.lead, extent], F32)}"
        return self.w.op(f"stablehlo.broadcast_in_dim {x}, dims = [0, 1, 2, 3]", types)


CPU_KERNELS: dict[str, Kernel] = {
    "std.nn.cache::write_at": Kernel("exact", _write_span),
    "std.nn.cache::write_span": Kernel("exact", _write_span),
    "std.nn.linear::linear": Kernel("equivalent", _write_linear, _is_of_one_row_or_many),
    "std.nn.attention::span_attention": Kernel("equivalent", _write_span_attention, _is_of_floats),
    "std.nn.attention::rows_attention": Kernel("equivalent", _write_rows_attention, _is_of_floats),
}
"""Beside `kernels.KERNELS`, for a module that a CPU runs."""
