"""A function of JAX, or a StableHLO module, as a package of checked Linnet source and weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from linnet.diagnostics import ExportError
from linnet.jax.parameters import Captured, aval_of, input_node, key_of, members_of, node_of
from linnet.jax.traced import Reader, dtype_of, fact, shape_of
from linnet.porting.graph import Graph, Node
from linnet.porting.names import Names, value_name
from linnet.porting.operations import Operations, Unsupported
from linnet.porting.package import ExportResult, Imported, export


def export_linnet(
    function: Any,
    params: Any,
    example_inputs: Sequence[Any],
    *,
    output: str | Path,
    module_name: str | None = None,
    root_name: str = "Model",
    weights: str | Path | None = None,
    std_root: str | Path | None = None,
) -> ExportResult:
    """`function(params, *inputs)` as a package in the folder `output`, which must be new or empty.

    params: a pytree of arrays, or of `jax.ShapeDtypeStruct`s, for which no weights are written.
    example_inputs: arrays or `jax.ShapeDtypeStruct`s, of any rank and of the language's dtypes.
    Symbols of `jax.export.symbolic_shape` in their shapes become dimensions of the entry, the
    constraints of their scope its where clauses. `weights` is the file that the arrays are written
    to, `model.safetensors` in the package otherwise.

    Raises ExportError with every primitive that has no translation, where it stands and why; for a
    dtype without counterpart; and where the folder or a name cannot be used: nothing is written.
    """
    inputs, titles = _inputs(function, example_inputs)
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    unflatten: Any = jax.tree_util.tree_unflatten
    problems: dict[str, None] = {}
    members = members_of(leaves, problems)
    graph, notes = Graph(), list[str]()
    given = _input_nodes(graph, inputs, titles, problems)
    if problems:
        raise _refusal(problems)
    avals = [aval_of(value) for _, value in leaves]
    flat, structure = jax.tree_util.tree_flatten(tuple(example_inputs))

    def flattened(own: list[Any], others: list[Any]) -> Any:
        return function(unflatten(tree, own), *unflatten(structure, others))

    try:
        closed = jax.make_jaxpr(flattened)(avals, [aval_of(value) for value in flat])
    except jax.errors.JAXTypeError as error:
        raise ExportError(f"JAX cannot trace the function: {error}") from error
    nodes = {member: node_of(graph, member) for member in members}
    captured = Captured(members, nodes)
    reader = Reader(graph, Operations(graph, notes), captured.node)
    own = [nodes[member] for member in members[: len(leaves)]]
    constants = [reader.constant(value) for value in closed.consts]
    try:
        facts = _facts(flat)
        results = reader.run(closed.jaxpr, constants, [*own, *given])
    except Unsupported as reason:
        raise ExportError(str(reason)) from reason
    if reader.problems:
        raise _refusal(reader.problems)
    if not results:
        raise ExportError("the function returns nothing: there is no entry to make of it")
    program = Imported(graph, given, members, nodes, results, facts, notes)
    return export(
        program,
        output,
        module_name=module_name,
        root_name=root_name,
        weights=weights,
        std_root=std_root,
    )


def import_stablehlo(
    text: str | bytes,
    params: Any,
    *,
    output: str | Path,
    module_name: str | None = None,
    root_name: str = "Model",
    weights: str | Path | None = None,
    std_root: str | Path | None = None,
) -> ExportResult:
    """A StableHLO module's public function as a package in the folder `output`.

    text: a module as text, or as the bytes of a portable artifact.
    params: a pytree whose leaves are the first arguments of the function; for a module that
    `linnet stablehlo` wrote, a mapping from path to array, for what its arguments are said to be.
    The rest is as in `export_linnet`.
    """
    from linnet.jax.modules import read_module

    graph, notes = Graph(), list[str]()
    program, problems = read_module(text, params, graph, notes)
    if problems:
        raise _refusal(problems)
    return export(
        program,
        output,
        module_name=module_name,
        root_name=root_name,
        weights=weights,
        std_root=std_root,
    )


def _refusal(problems: dict[str, None]) -> ExportError:
    listed = list(problems)
    if len(listed) == 1:
        return ExportError(listed[0])
    return ExportError(
        f"{len(listed)} operations have no translation:\n" + "\n".join(f"  {p}" for p in listed)
    )


# ---------------------------------------------------------------- what is given


def _inputs(function: Any, example_inputs: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """The leaves of the inputs, and what the function calls them."""
    if not isinstance(example_inputs, (list, tuple)):
        raise ExportError(
            f"example_inputs are a {type(example_inputs).__name__}, expected a tuple of arrays: "
            "`(x,)` for one"
        )
    called = _parameters(function)[1:]
    owner = getattr(function, "__self__", None)
    if not called and callable(owner):  # `model.apply` takes what the model is called with
        called = _parameters(owner)
    names, out, titles = Names(), list[Any](), list[str]()
    for at, value in enumerate(example_inputs):
        name = called[at] if at < len(called) else "x"
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            out.append(leaf)
            keys = [name, *(str(key_of(key)) for key in path)]
            titles.append(names.fresh(value_name("_".join(keys))))
    return out, titles


def _parameters(function: Any) -> list[str]:
    try:
        told = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in told if parameter.kind in kinds]


def _input_nodes(
    graph: Graph, inputs: Sequence[Any], titles: Sequence[str], problems: dict[str, None]
) -> list[Node]:
    out: list[Node] = []
    for value, title in zip(inputs, titles, strict=True):
        try:
            aval = aval_of(value)
            shape, dtype = shape_of(aval), dtype_of(aval)
        except (Unsupported, TypeError) as reason:
            problems[f"the input `{title}`: {reason}"] = None
            continue
        out.append(input_node(graph, title, shape, dtype))
    return out


def _facts(values: Sequence[Any]) -> tuple[str, ...]:
    """The constraints of the symbols' scopes."""
    found: dict[str, None] = {}
    for value in values:
        for size in getattr(value, "shape", ()):
            scope = getattr(size, "scope", None)
            for constraint in getattr(scope, "_explicit_constraints", ()):
                found[fact(constraint.debug_str)] = None
    return tuple(found)
