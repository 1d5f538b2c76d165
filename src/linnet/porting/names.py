"""Names that a program may have: those of another framework, made fit for the language."""

from __future__ import annotations

import re
from collections.abc import Iterable

from linnet.check.prelude import PRELUDE
from linnet.syntax.tokens import GENERIC_KINDS, KEYWORDS, REDUCTIONS, RESERVED_WORDS
from linnet.types import DTYPES

TAKEN = frozenset(
    {*KEYWORDS, *RESERVED_WORDS, *PRELUDE, *REDUCTIONS, *GENERIC_KINDS, *DTYPES, "Tensor"}
    | {"pad", "gather", "scatter", "std", "self", "crate"}
)
# What a reserved word says, in a word that is not.
_SAID = {
    "kernel": "weight",
    "var": "variance",
    "cos": "cosines",
    "sin": "sines",
    "max": "largest",
    "min": "least",
    "sum": "total",
}


def value_name(text: str) -> str:
    """A name of a value or a member, in snake case."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", str(text))
    name = re.sub(r"_+", "_", words).strip("_").lower()
    if not name or name[0].isdigit():
        name = f"x{name}" if not name else f"n{name}"
    if name in TAKEN:
        name = _SAID.get(name, f"{name}_")
    return name


def type_name(text: str) -> str:
    """A name of a block, in capitals."""
    name = "".join(part[:1].upper() + part[1:] for part in value_name(text).split("_"))
    return f"{name}Block" if name in TAKEN else name


def singular(name: str) -> str:
    """A name of one of several."""
    return name[:-1] if name.endswith("s") and len(name) > 2 else name


def dim_name(text: str) -> str:
    """A name of a dimension: it starts with a capital."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "N"
    name = name[0].upper() + name[1:] if not name[0].isdigit() else f"N{name}"
    return f"{name}_" if name in TAKEN else name


class Names:
    """Names that are used up, each given once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def fresh(self, wish: str, between: str = "_") -> str:
        """The wish, or with a number where it is taken."""
        name, number = wish, 1
        while name in self.taken or name in TAKEN:
            number += 1
            name = f"{wish}{between}{number}"
        self.taken.add(name)
        return name
