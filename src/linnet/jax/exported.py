"""A StableHLO module of ours as a function that JAX can call, trace and put into its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxlib.mlir.dialects import stablehlo

from linnet.diagnostics import PlanError
from linnet.types import TensorType
from linnet.weights.arrays import DTYPES as ARRAYS

Function = Callable[..., tuple[Any, ...]]


def aval(shape: Sequence[int], dtype: str) -> Any:
    """What JAX calls a tensor of the language's dtype."""
    made: Any = jax.ShapeDtypeStruct
    return made(tuple(shape), ARRAYS[dtype])


def is_wide(type: TensorType) -> bool:
    """JAX has no such arrays unless it is asked for them."""
    return str(type.dtype) in ("i64", "u64", "f64")


@contextmanager
def wide(wanted: bool) -> Iterator[None]:
    """64-bit numbers are what they are, in here and in this thread only."""
    if not wanted:
        yield
        return
    with jax.enable_x64(True):
        yield


def callable_of(name: str, text: str, given: Sequence[Any], made: Sequence[Any]) -> Function:
    """The module's `main`, from arrays of `given` to a tuple of arrays of `made`.

    It is what `jax.export` makes of a function of these types, with the module in its place, so it
    may be called from whatever JAX traces.
    """

    def shaped(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(one.shape, one.dtype) for one in made)

    safe = [export.DisabledSafetyCheck.platform()]
    frame = export.export(jax.jit(shaped, keep_unused=True), disabled_checks=safe)(*given)
    version = stablehlo.get_minimum_version()
    exported = replace(
        frame,
        fun_name=name,
        mlir_module_serialized=stablehlo.serialize_portable_artifact_str(text, version),
        module_kept_var_idx=tuple(range(len(given))),
        _get_vjp=None,
    )
    call: Any = exported.call
    function: Any = jax.custom_vjp(lambda *given: call(*given))

    def no_derivative(*_: Any) -> Any:
        raise PlanError(
            f"{name} is a compiled module, which has no derivative: "
            "linnet.jax.load_source gives a function that has"
        )

    function.defvjp(lambda *given: (call(*given), None), no_derivative)
    result: Function = function
    return result
