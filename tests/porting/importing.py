"""Importing a function of JAX in a test: the package is checked and gives JAX's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from linnet import reference
from linnet.check import check
from linnet.core.lower import lower
from linnet.jax import ExportResult, export_linnet, import_stablehlo, load
from linnet.syntax.format import format as formatted
from linnet.weights import read_arrays, read_bindings
from linnet.workspace import Workspace

shaped: Any = jax.ShapeDtypeStruct


def text_of(result: ExportResult) -> str:
    return (result.source / "src/lib.linnet").read_text()


def checked(result: ExportResult) -> str:
    """The text, which has no findings and is in the language's style."""
    text = text_of(result)
    assert not check(Workspace(), result.source).findings.items
    assert formatted(text) == text
    return text


def members(result: ExportResult) -> dict[str, Any]:
    """The arrays of the package by path."""
    if result.weights is None:
        return {}
    arrays = read_arrays(result.weights)
    return {path: arrays[name] for path, name in read_bindings(result.bindings).items()}


def evaluated(result: ExportResult, inputs: Sequence[Any]) -> list[Any]:
    """What the reference gives."""
    program = lower(check(Workspace(), result.source))
    found = reference.evaluate(program, result.entry, list(inputs), members(result))
    return list(found) if isinstance(found, tuple) else [found]


def compiled(result: ExportResult, inputs: Sequence[Any]) -> list[Any]:
    """What XLA gives of the package."""
    weights = {} if result.weights is None else {"weights": result.weights}
    f = load(
        result.source,
        bindings=result.bindings if weights else None,
        numerics="equivalent",
        **weights,
    )
    found = f(*inputs) if weights else f.apply({}, *inputs)
    return list(found) if isinstance(found, tuple) else [found]


def assert_same(found: Sequence[Any], wanted: Sequence[Any], limit: float = 1e-5) -> None:
    """Equal dtypes and shapes; floats within `limit` of the largest, NaN where NaN is wanted."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            a, b = a.astype(np.float64), b.astype(np.float64)
            scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-30)
            np.testing.assert_allclose(a, b, rtol=0, atol=limit * scale, equal_nan=True)


def wanted_of(function: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> list[Any]:
    """JAX's own results, in order."""
    own, given = jax.tree.map(jax.numpy.asarray, (params, list(inputs)))
    leaves: list[Any] = jax.tree_util.tree_leaves(function(own, *given))
    return leaves


def agrees(
    folder: Path,
    function: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    examples: Sequence[Any] | None = None,
    *,
    limit: float = 1e-5,
    runs: Sequence[Callable[..., list[Any]]] = (evaluated,),
) -> str:
    """The text of the function's package, whose numbers are JAX's own."""
    result = export_linnet(function, params, tuple(examples or inputs), output=folder / "traced")
    wanted = wanted_of(function, params, inputs)
    for run in runs:
        assert_same(run(result, jax.tree_util.tree_leaves(list(inputs))), wanted, limit)
    return checked(result)


def lowered_agrees(
    folder: Path,
    function: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    *,
    limit: float = 1e-5,
) -> str:
    """The text of the package of the function's StableHLO."""
    module = jax.jit(function, keep_unused=True).lower(params, *inputs).as_text()
    result = import_stablehlo(module, params, output=folder / "lowered")
    wanted = wanted_of(function, params, inputs)
    assert_same(evaluated(result, jax.tree_util.tree_leaves(list(inputs))), wanted, limit)
    return checked(result)
