"""Running one function of `std` in the reference, from a case."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import linnet
from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.ir import Program
from linnet.core.lower import lower_function
from linnet.reference import evaluate
from linnet.syntax import tree
from linnet.weights.arrays import dtype_name
from linnet.workspace import Workspace
from std.cases import Case

STD = Path(linnet.__file__).parent / "std"


def modules() -> list[Path]:
    """Every file of `std`."""
    return sorted(STD.rglob("*.linnet"))


def module_name(path: Path) -> str:
    return ".".join(["std", *path.relative_to(STD).with_suffix("").parts])


@cache
def analysed(module: str) -> Analysis:
    path = STD.joinpath(*module.split(".")[1:]).with_suffix(".linnet")
    return check(Workspace(), path)


def parsed(module: str) -> tree.File:
    """The syntax of a module, named as it is declared."""
    return analysed(module).modules[module].tree


def function(op: str) -> tree.Fn:
    """The declaration of `std.m.name`."""
    module, _, name = op.rpartition(".")
    fn = analysed(module).modules[module].items[name]
    assert isinstance(fn, tree.Fn)
    return fn


def run(case: Case) -> Any:
    """What the reference gives for a case, out of range reads refused unless it is about them."""
    fn = function(case.op)
    inputs = {p.name.text: case.inputs.get(p.name.text, default(p)) for p in fn.params}
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    dtypes, ranks = bound(fn, given)
    sizes = {name: value for name, value in case.generics.items() if isinstance(value, int)}
    dtypes |= {n: dtype_name(v) for n, v in case.generics.items() if isinstance(v, np.dtype)}
    absent = tuple(name for name in inputs if name not in given)
    program = lowered(case.op, tuple(dtypes.items()), tuple(ranks.items()), absent)
    name = fn.name.text
    checked = "outside is clamped" not in case.label
    return evaluate(program, name, list(given.values()), generics=sizes, checked=checked)


@cache
def lowered(
    op: str,
    dtypes: tuple[tuple[str, str], ...],
    ranks: tuple[tuple[str, int], ...],
    absent: tuple[str, ...],
) -> Program:
    module, _, name = op.rpartition(".")
    return lower_function(
        analysed(module), module, name, dtypes=dict(dtypes), ranks=dict(ranks), absent=absent
    )


def default(param: tree.Param) -> Any:
    """A parameter's default value: None for `none`, else its literal in f32."""
    match param.default:
        case tree.FloatLit(value=value):
            return np.float32(value)
        case _:
            return None


def bound(fn: tree.Fn, given: dict[str, np.ndarray]) -> tuple[dict[str, str], dict[str, int]]:
    """The dtype generics and the number of axes of the packs, as the inputs fix them."""
    dtypes: dict[str, str] = {}
    ranks: dict[str, int] = {}
    names = {g.name.text for g in fn.generics}
    for param in fn.params:
        type = param.type.of if isinstance(param.type, tree.OptionalTypeExpr) else param.type
        if param.name.text not in given or not isinstance(type, tree.TensorTypeExpr):
            continue
        value = given[param.name.text]
        if type.dtype.text in names:
            dtypes[type.dtype.text] = dtype_name(value.dtype)
        for axis in type.shape:
            if isinstance(axis, tree.PackRef):
                ranks[axis.name.text] = value.ndim - (len(type.shape) - 1)
    return dtypes, ranks
