"""What StableHLO's text is made of: types, constants, names, lines."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from linnet.dims import Dim
from linnet.emit import identifier
from linnet.types import BF16, BOOL, F16, F32, DType

Extent = int | Dim
"""The size of an axis: a number, or what it is in the dynamic dimensions."""


def element_type(dtype: DType) -> str:
    """As MLIR writes it: `i1` for bool, `ui8` for u8."""
    if dtype is BOOL:
        return "i1"
    return f"u{dtype}".replace("uu", "ui") if dtype.kind == "uint" else str(dtype)


def tensor_type(shape: Sequence[Extent], dtype: DType) -> str:
    """`tensor<2x3xf32>`; `?` stands for a dynamic size."""
    axes = "".join(f"{extent if isinstance(extent, int) else '?'}x" for extent in shape)
    return f"tensor<{axes}{element_type(dtype)}>"


def is_dynamic(types: str) -> bool:
    """Whether a size in these types is known only when the module is run."""
    return "?" in types


def listed(items: Iterable[object]) -> str:
    """`[a, b]`."""
    return f"[{', '.join(map(str, items))}]"


def quoted(text: str) -> str:
    """A string as MLIR reads it back."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'


def dense(value: bool | int | float, dtype: DType) -> str:
    """A number as MLIR reads it back exactly."""
    if dtype is BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if not math.isfinite(number):
        return _bits(number, dtype)
    text = repr(number)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{'e' + exponent if exponent else ''}"


def _bits(number: float, dtype: DType) -> str:
    """Infinities and NaN are written as their bits."""
    match dtype:
        case _ if dtype == F32:
            return f"0x{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"
        case _ if dtype == BF16:
            return f"0x{struct.unpack('<I', struct.pack('<f', number))[0] >> 16:04X}"
        case _ if dtype == F16:
            return f"0x{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
        case _:
            return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


@dataclass(slots=True)
class Ids:
    """The names of one function's values: as wished, or numbers."""

    taken: set[str] = field(default_factory=set[str])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def fresh(self, wish: str = "") -> str:
        """`%wish`, numbered where it is taken; `%0`, `%1`, ... without one."""
        base = identifier(wish) if wish else ""
        name = base
        while not name or name in self.taken:
            count = self.counts.get(base, 1 if base else 0)
            self.counts[base] = count + 1
            name = f"{base}_{count}" if base else str(count)
        self.taken.add(name)
        return f"%{name}"


@dataclass(slots=True)
class Lines:
    """Lines at their depths."""

    items: list[str] = field(default_factory=list[str])
    depth: int = 0

    def add(self, text: str) -> None:
        self.items.append("  " * self.depth + text)

    def block(self, lines: Lines) -> None:
        """All lines of another text, one step further in."""
        self.items += ["  " + line for line in lines.items]

    def __str__(self) -> str:
        return "\n".join(self.items) + "\n"
