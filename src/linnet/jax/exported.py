"""A StableHLO module of ours as a function that JAX can call, trace and put into its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

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
    may be called from whatever JAX traces. Sizes that are dynamic in the module become those of
    `given` when it is compiled, which refuses those that the module's assertions do not allow.
    """

    def shaped(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(one.shape, one.dtype) for one in made)

    safe = [export.DisabledSafetyCheck.platform()]
    frame = export.export(jax.jit(shaped, keep_unused=True), disabled_checks=safe)(*given)
    version = stablehlo.get_minimum_version()
    text, dynamic = _at_sizes(text, given)
    exported = replace(
        frame,
        fun_name=name,
        mlir_module_serialized=stablehlo.serialize_portable_artifact_str(text, version),
        uses_global_constants=dynamic,
        module_kept_var_idx=tuple(range(len(given))),
        _get_vjp=None,
    )
    function: Function = exported.call
    return function


def _at_sizes(text: str, given: Sequence[Any]) -> tuple[str, bool]:
    """The module with a `main` of these sizes, and whether its own has dynamic ones.

    That `main` calls it; what JAX does with such a module before it is compiled finds every size.
    """
    with ir.Context() as context, ir.Location.unknown(context):
        stablehlo.register_dialect(context)
        module = ir.Module.parse(text)
        symbols = ir.SymbolTable(module.operation)
        main: Any = symbols["main"]
        taken, made = list(main.type.inputs), list(main.type.results)
        if not any(
            isinstance(type, ir.RankedTensorType) and not type.has_static_shape for type in taken
        ):
            return text, False
        own = [
            ir.RankedTensorType.get(x.shape, of.element_type)
            for x, of in zip(given, taken, strict=True)
        ]
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        symbols.set_symbol_name(main, "dynamic")
        called = ir.FlatSymbolRefAttr.get(ir.StringAttr(main.attributes["sym_name"]).value)
        first = ir.InsertionPoint.at_block_begin(module.body)
        outer = func.FuncOp("main", ir.FunctionType.get(own, made), ip=first)
        with ir.InsertionPoint(outer.add_entry_block()):
            fitted = [
                x if x.type == of else stablehlo.convert(of, x)
                for x, of in zip(outer.arguments, taken, strict=True)
            ]
            func.ReturnOp(list(func.CallOp(made, called, fitted).results))
        return str(module), True
