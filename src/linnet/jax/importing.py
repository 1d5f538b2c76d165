"""A function of JAX, or a StableHLO module, as a package of checked Linnet source and weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from linnet.diagnostics import ExportError
from linnet.jax.operations import Operations, Unsupported
from linnet.jax.traced import Reader, dim, dtype_of, fact, shape_of
from linnet.porting.graph import Graph, Node
from linnet.porting.members import Member
from linnet.porting.names import Names, value_name
from linnet.porting.package import ExportResult, Imported, export
from linnet.weights.arrays import dtype_name

# Collections of Flax, which share the names of the modules below them.
_COLLECTIONS = frozenset({"params", "batch_stats", "buffers", "constants"})


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
    dtype without counterpart; and where the folder or a name cannot be used. Nothing is written then.
    """
    inputs, titles = _inputs(function, example_inputs)
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    problems: dict[str, None] = {}
    members = _members(leaves, problems)
    graph, notes = Graph(), list[str]()
    given = _input_nodes(graph, inputs, titles, problems)
    if problems:
        raise _refusal(problems)
    avals = [_aval(value) for _, value in leaves]
    flat, structure = jax.tree_util.tree_flatten(tuple(example_inputs))

    def flattened(own: list[Any], others: list[Any]) -> Any:
        return function(tree.unflatten(own), *structure.unflatten(others))

    try:
        closed = jax.make_jaxpr(flattened)(avals, [_aval(value) for value in flat])
    except jax.errors.JAXTypeError as error:
        raise ExportError(f"JAX cannot trace the function: {error}") from error
    nodes = {member: _node(graph, member) for member in members}
    captured = _Captured(members, nodes)
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


def _aval(value: Any) -> Any:
    """The shape and dtype of a value, as JAX takes it."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    shaped: Any = jax.ShapeDtypeStruct
    return shaped(np.shape(value), jax.dtypes.canonicalize_dtype(jax.numpy.result_type(value)))


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
            keys = [name, *(str(_key(key)) for key in path)]
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
            aval = _aval(value)
            shape, dtype = shape_of(aval), dtype_of(aval)
        except (Unsupported, TypeError) as reason:
            problems[f"the input `{title}`: {reason}"] = None
            continue
        out.append(graph.node("input", (), [title], shape=shape, dtype=dtype, name=title))
    return out


def _key(key: Any) -> str | int:
    """One step into a pytree."""
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            found = getattr(key, field)
            return found if isinstance(found, (int, str)) else str(found)
    return str(key)


def _members(leaves: Sequence[tuple[Any, Any]], problems: dict[str, None]) -> list[Member]:
    """The parameters, with the keys of their modules."""
    paths = [[_key(key) for key in path] for path, _ in leaves]
    while all(len(path) > 1 and path[-1] in ("value", "raw_value") for path in paths) and paths:
        paths = [path[:-1] for path in paths]
    tensors = [".".join(map(str, path)) or "params" for path in paths]
    roots = {path[0] for path in paths if path}
    if roots and roots <= _COLLECTIONS and all(len(path) > 1 for path in paths):
        short = [tuple(path[1:]) for path in paths]
        if len(set(short)) == len(short):
            paths = [list(path) for path in short]
    out: list[Member] = []
    for path, tensor, (_, value) in zip(paths, tensors, leaves, strict=True):
        try:
            aval = _aval(value)
            shape, dtype = tuple(map(dim, aval.shape)), dtype_of(aval)
        except (Unsupported, TypeError) as reason:
            problems[f"the parameter `{tensor}`: {reason}"] = None
            continue
        array = None if isinstance(value, jax.ShapeDtypeStruct) else np.asarray(value, aval.dtype)
        out.append(Member(tuple(path) or ("params",), tensor, shape, dtype, array))
    return out


def _node(graph: Graph, member: Member) -> Node:
    """The member before its path is known: by its tensor."""
    return graph.node("param", (), [("", member.tensor)], shape=member.shape, dtype=member.dtype)


class _Captured:
    """Arrays that a function holds itself: buffers of the root block."""

    def __init__(self, members: list[Member], nodes: dict[Member, Node]) -> None:
        self.members = members
        self.nodes = nodes
        self.names = Names(str(member.keys[0]) for member in members)
        self.known: dict[tuple[Any, ...], Node] = {}

    def node(self, array: Any, graph: Graph) -> Node:
        key = (array.shape, str(array.dtype), array.tobytes())
        if key not in self.known:
            name = dtype_name(array.dtype)
            if name is None or name.startswith("f8"):
                raise Unsupported(f"a constant of dtype {array.dtype} has no counterpart")
            flat = array.reshape(-1)
            shape = tuple(map(dim, array.shape))
            if array.size and (flat == flat[0]).all():
                self.known[key] = graph.literal(flat[0].item(), name, shape)
            else:
                tensor = self.names.fresh("constant")
                member = Member((tensor,), tensor, shape, name, array, "buffer")
                self.members.append(member)
                self.nodes[member] = self.known[key] = _node(graph, member)
        return self.known[key]


def _facts(values: Sequence[Any]) -> tuple[str, ...]:
    """The constraints of the symbols' scopes."""
    found: dict[str, None] = {}
    for value in values:
        for size in getattr(value, "shape", ()):
            scope = getattr(size, "scope", None)
            for constraint in getattr(scope, "_explicit_constraints", ()):
                found[fact(constraint.debug_str)] = None
    return tuple(found)
