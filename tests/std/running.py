"""Running one function of `std` in the reference or in PyTorch, from a case."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linnet
from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.ir import Program
from linnet.core.lower import lower_function
from linnet.core.passes import optimize
from linnet.policy import Policy
from linnet.reference import evaluate
from linnet.syntax import parse_text, tree
from linnet.torch import LinnetModule
from linnet.torch.runtime import _tensor_of
from linnet.weights.arrays import as_array, dtype_name
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


@cache
def parsed(module: str) -> tree.File:
    """The syntax of a module, named as it is declared."""
    path = STD.joinpath(*module.split(".")[1:]).with_suffix(".linnet")
    return parse_text(path.read_text(encoding="utf-8"), str(path))[0]


def function(op: str) -> tree.Fn:
    """The declaration of `std.m.name`."""
    module, _, name = op.rpartition(".")
    fn = analysed(module).modules[module].items[name]
    assert isinstance(fn, tree.Fn)
    return fn


def run(case: Case) -> Any:
    """What the reference gives for a case, out of range reads refused unless it is about them."""
    key, given, sizes = prepared(case)
    program = lowered(*key)
    checked = "outside is clamped" not in case.label
    return evaluate(program, program.main, given, generics=sizes, checked=checked)


def run_torch(case: Case, policy: Policy) -> np.ndarray:
    """What PyTorch gives for a case."""
    key, given, sizes = prepared(case)
    module = compiled(key, policy)
    return as_array(module.run_entry(module.program.main, [_tensor_of(x) for x in given], sizes))


# A function, its dtypes, the number of axes of its packs, and the parameters that are not passed.
Key = tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, int], ...], tuple[str, ...]]


def prepared(case: Case) -> tuple[Key, list[np.ndarray], dict[str, int]]:
    """What a case's function is lowered for, its inputs in order, and the sizes that it names."""
    fn = function(case.op)
    inputs = {p.name.text: case.inputs.get(p.name.text, default(p)) for p in fn.params}
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    dtypes, ranks = bound(fn, given)
    sizes = {name: value for name, value in case.generics.items() if isinstance(value, int)}
    dtypes |= {n: dtype_name(v) for n, v in case.generics.items() if isinstance(v, np.dtype)}
    absent = tuple(name for name in inputs if name not in given)
    key = (case.op, tuple(dtypes.items()), tuple(ranks.items()), absent)
    return key, list(given.values()), sizes


@cache
def compiled(key: Key, policy: Policy) -> LinnetModule:
    return LinnetModule(optimize(lowered(*key), policy), policy, torch.device("cpu"))


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


def run_jax(case: Case, policy: Policy, way: str) -> np.ndarray:
    """What JAX gives for a case: its StableHLO, or its generated source."""
    from linnet.jax.entry import Entry, Source

    key, given, sizes = prepared(case)
    program = optimize(lowered(*key), policy)
    source = Source(program, policy) if way == "source" else None
    entry = Entry(program, program.main, policy, source)
    return np.asarray(entry.run(given, sizes, {}, {})[0])


def run_onnx(case: Case, policy: Policy) -> np.ndarray:
    """What ONNX Runtime gives for a case."""
    from linnet.onnx.entry import Entry

    key, given, sizes = prepared(case)
    program = optimize(lowered(*key), policy)
    entry = Entry(program, program.main, policy, ["CPUExecutionProvider"])
    return np.asarray(entry.run(given, sizes, {}, {})[0])
