"""Operations as lines of text, each with names for its results."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.stablehlo.text import Ids, Lines, dense, element_type, tensor_type
from linnet.types import DType


class Writer:
    """Writes into one function; types are given as text."""

    def __init__(self, names: Ids, lines: Lines) -> None:
        self.names = names
        self.lines = lines

    def op(self, text: str, type: str, wish: str = "") -> str:
        """The operation's one result, by a name of its own."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name} = {text} : {type}")
        return name

    def raw(self, head: str, lines: Sequence[str], tail: str, wish: str = "") -> str:
        """An operation with a region of its own."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name} = {head}")
        for line in lines:
            self.lines.add(f"  {line}")
        self.lines.add(tail)
        return name

    def several(self, text: str, count: int, wish: str) -> list[str]:
        """The names of what the operation gives."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name}{f':{count}' if count != 1 else ''} = {text}")
        return [name] if count == 1 else [f"{name}#{i}" for i in range(count)]

    def number(self, value: bool | int | float, dtype: DType) -> str:
        """A scalar."""
        text = f"stablehlo.constant dense<{dense(value, dtype)}>"
        return self.op(text, tensor_type((), dtype), "c")

    def compare(self, op: str, a: str, b: str, type: str, dtype: DType, wish: str = "") -> str:
        """Elementwise, of two tensors of this type."""
        kind = "FLOAT" if dtype.is_float else "SIGNED" if dtype.kind == "int" else "UNSIGNED"
        to = type[: type.rindex(element_type(dtype))] + "i1>"
        return self.op(
            f"stablehlo.compare {op.upper()}, {a}, {b}, {kind}", f"({type}, {type}) -> {to}", wish
        )

    def convert(self, x: str, type: str, to: str, wish: str = "") -> str:
        """The tensor in another dtype, or with the same sizes said in another way."""
        return x if type == to else self.op(f"stablehlo.convert {x}", f"({type}) -> {to}", wish)
