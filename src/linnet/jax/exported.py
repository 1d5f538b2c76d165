"""A StableHLO module of ours as a function that JAX can call, trace and put into its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from linnet.diagnostics import PlanError
from linnet.stablehlo.text import is_dynamic
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
    `given`; PlanError is what the module says of sizes that it does not allow.
    """
    if not is_dynamic(text):
        return _without_derivative(name, _exported(name, text, given, made))
    with make_ir_context() as context, ir.Location.unknown(context):
        checks, whole = ir.Module.parse(text), ir.Module.parse(text)
        if _only_checks(checks):
            _at_sizes(checks, given)
            _check(_exported(name, str(checks), given, [aval((), "bool")], dynamic=True), given)
        _at_sizes(whole, given)
        return _without_derivative(name, _exported(name, str(whole), given, made, dynamic=True))


def _exported(
    name: str, text: str, given: Sequence[Any], made: Sequence[Any], dynamic: bool = False
) -> export.Exported:
    def shaped(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(one.shape, one.dtype) for one in made)

    safe = [export.DisabledSafetyCheck.platform()]
    frame = export.export(jax.jit(shaped, keep_unused=True), disabled_checks=safe)(*given)
    version = stablehlo.get_minimum_version()
    return replace(
        frame,
        fun_name=name,
        mlir_module_serialized=stablehlo.serialize_portable_artifact_str(text, version),
        uses_global_constants=dynamic,  # JAX finds every size before it compiles the module
        module_kept_var_idx=tuple(range(len(given))),
        _get_vjp=None,
    )


def _without_derivative(name: str, exported: export.Exported) -> Function:
    """The exported function, which says what to load where a derivative of it is asked for."""
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


def _at_sizes(module: ir.Module, given: Sequence[Any]) -> None:
    """Gives the module a `main` of these sizes, which calls its own, whose sizes are dynamic."""
    symbols = ir.SymbolTable(module.operation)
    main: Any = symbols["main"]
    taken, made = list(main.type.inputs), list(main.type.results)
    main.attributes["sym_visibility"] = ir.StringAttr.get("private")
    symbols.set_symbol_name(main, "dynamic.main")
    own = [
        ir.RankedTensorType.get(x.shape, of.element_type)
        for x, of in zip(given, taken, strict=True)
    ]
    first = ir.InsertionPoint.at_block_begin(module.body)
    outer: Any = func.FuncOp("main", ir.FunctionType.get(own, made), ip=first)
    with ir.InsertionPoint(outer.add_entry_block()):
        fitted = [
            x if x.type == of else stablehlo.convert(of, x)
            for x, of in zip(outer.arguments, taken, strict=True)
        ]
        called = func.CallOp(made, ir.FlatSymbolRefAttr.get("dynamic.main"), fitted)
        func.ReturnOp(list(called.results))


def _only_checks(module: ir.Module) -> bool:
    """Leaves of the module what it asserts of its sizes; False where that is nothing.

    Operations of sizes that are not allowed may be refused first, in words that no user knows.
    """
    main: Any = ir.SymbolTable(module.operation)["main"]
    for function in list(module.body.operations):
        if function != main:
            function.operation.erase()
    operations = list(main.entry_block.operations)
    calls = [i for i, op in enumerate(operations) if _asserts(op)]
    if not calls:
        return False
    for op in reversed(operations[calls[-1] + 1 :]):
        op.operation.erase()
    ok = operations[calls[-1]].operands[0]
    with ir.InsertionPoint(main.entry_block):
        func.ReturnOp([ok])
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(list(main.type.inputs), [ok.type])
    )
    main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({})])
    return True


def _asserts(op: Any) -> bool:
    return isinstance(op, stablehlo.CustomCallOp) and op.call_target_name.value == "shape_assertion"


def _check(exported: export.Exported, given: Sequence[Any]) -> None:
    """PlanError where an assertion of the module does not hold at these sizes."""
    try:
        jax.jit(exported.call).lower(*given).compile()
    except ValueError as error:
        told = str(error.__cause__)
        found = re.search(r"error: (.+?)\n[^\n]*:\d+:\d+: note: ", told, re.DOTALL)
        if found is None:
            raise
        raise PlanError(found[1]) from None
