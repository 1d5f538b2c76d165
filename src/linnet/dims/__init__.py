"""Dimensions and the solver: sizes as symbols, and what is true of them at all sizes."""

from __future__ import annotations

from linnet.dims.dim import (
    Atom,
    Dim,
    Monomial,
    Relation,
    RelationOp,
    TooLarge,
    dim_max,
    dim_min,
    equal,
)
from linnet.dims.facts import Facts, Proved, Refuted, Unproved, Verdict
from linnet.dims.linear import Effort
from linnet.dims.prove import contradictory, prove, proves, suggest

__all__ = [
    "Atom",
    "Dim",
    "Effort",
    "Facts",
    "Monomial",
    "Proved",
    "Refuted",
    "Relation",
    "RelationOp",
    "TooLarge",
    "Unproved",
    "Verdict",
    "contradictory",
    "dim_max",
    "dim_min",
    "equal",
    "prove",
    "proves",
    "suggest",
]
