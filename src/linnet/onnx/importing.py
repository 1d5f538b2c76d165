"""A model of ONNX as a package of checked Linnet source and weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

import linnet.onnx.control  # noqa: F401 (adds its operators to the reader's)
from linnet.diagnostics import ExportError, OnnxImportError
from linnet.dims import Dim
from linnet.onnx.computed import COMPUTED
from linnet.onnx.known import sizes_of
from linnet.onnx.moved import MOVED
from linnet.onnx.reader import Reader, Value
from linnet.onnx.spatial import SPATIAL
from linnet.onnx.stored import Stored, dtype_of
from linnet.porting.graph import Graph, Node
from linnet.porting.members import METHOD, Member
from linnet.porting.names import Names, dim_name, value_name
from linnet.porting.operations import Operations, Unsupported
from linnet.porting.package import ExportResult, Imported, export

_OLDEST = 7
_RULES = {**COMPUTED, **MOVED, **SPATIAL}


def import_onnx(
    model: Any,
    *,
    output: str | Path,
    module_name: str | None = None,
    root_name: str = "Model",
    weights: str | Path | None = None,
    std_root: str | Path | None = None,
) -> ExportResult:
    """A model of ONNX as a package in the folder `output`, which must be new or empty.

    model: a path, beside which external data is looked for, or a `ModelProto` that holds all of
    its data. Opsets from 7 on are read. Named sizes of its inputs become dimensions of the entry
    `forward`, which is given the model's inputs in their order and returns its outputs, a tuple
    where there are several; initializers become parameters, each named after its tensor, or after
    the module that reads it where an exporter gave the tensor a number.
    `weights` is the file that the arrays are written to, `model.safetensors` in the package
    otherwise; `module_name` is the name of the folder otherwise.

    Raises OnnxImportError with every operator that has no translation and the names of its nodes;
    for a file that is no model, or whose data is missing or cut; and where the folder or a name
    cannot be used: nothing is written.
    """
    proto, folder = _read(model)
    opset = _opset(proto)
    graph, notes = Graph(), list[str]()
    try:
        told = {prop.key: prop.value for prop in proto.metadata_props}
        stored = Stored(graph, proto, folder, _under(told, "linnet.path."))
        reader = Reader(graph, Operations(graph, notes), stored, opset, _RULES)
        sizes = _under(told, "linnet.size.")
        env = _inputs(graph, proto, reader, sizes, _under(told, "linnet.state."))
        given = [node for node in env.values() if isinstance(node, Node) and node.op == "input"]
        results = [reader.node(value) for value in reader.run(proto.graph, env)]
        if reader.problems:
            raise _refusal(reader.problems)
        if not results:
            raise OnnxImportError("the model gives nothing: there is no entry to make of it")
        _named(graph, proto, results)
        results, written = _written(proto, stored, results, _under(told, "linnet.next_state."))
        facts = (*_clauses(told, given), *reader.facts)
        program = Imported(
            graph,
            given,
            stored.members,
            stored.nodes,
            results,
            facts,
            notes,
            written,
        )
        return export(
            program,
            output,
            module_name=module_name,
            root_name=root_name,
            weights=weights,
            std_root=std_root,
            entry=METHOD,
        )
    except OnnxImportError:
        raise
    except (Unsupported, ExportError) as error:
        found = error.diagnostics if isinstance(error, ExportError) else ()
        raise OnnxImportError(str(error), found) from error


def _read(model: Any) -> tuple[onnx.ModelProto, Path | None]:
    """The model, its functions put in; and the folder of its data."""
    folder = None
    if isinstance(model, onnx.ModelProto):
        proto = model
    elif isinstance(model, str | Path):
        path = Path(model)
        folder = path.parent
        try:
            proto = onnx.load_model(path, load_external_data=False)
        except OSError as error:
            raise OnnxImportError(f"{path}: {error.strerror or error}") from error
        except Exception as error:  # protobuf's own class comes without types, and others
            raise OnnxImportError(f"{path}: this is no model of ONNX, or a part of one") from error
        if not proto.graph.node and not proto.graph.output:
            raise OnnxImportError(f"{path}: this is no model of ONNX: it has no graph")
    else:
        raise OnnxImportError(
            f"model is a {type(model).__name__}, expected a path or an onnx.ModelProto"
        )
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception as error:  # ONNX's C++ raises classes that it does not document
            raise OnnxImportError(f"the model's functions cannot be read: {error}") from error
    return proto, folder


def _opset(proto: onnx.ModelProto) -> int:
    told = {each.domain: each.version for each in proto.opset_import}
    opset = told.get("", told.get("ai.onnx"))
    newest = onnx.defs.onnx_opset_version()
    if opset is None:
        raise OnnxImportError("the model does not say which opset of ONNX it is in")
    if not _OLDEST <= opset <= newest:
        raise OnnxImportError(
            f"the model is in opset {opset} of ONNX; those from {_OLDEST} to {newest} are read "
            f"(with onnx {onnx.__version__})"
        )
    return int(opset)


def _refusal(problems: dict[str, list[str]]) -> OnnxImportError:
    lines: list[str] = []
    for reason, nodes in problems.items():
        shown = ", ".join(nodes[:5])
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        lines.append(f"{reason}: in {shown}{more}" if nodes else reason)
    if len(lines) == 1:
        return OnnxImportError(f"the model cannot be translated: {lines[0]}")
    listed = "\n".join(f"  {line}" for line in lines)
    return OnnxImportError(f"{len(lines)} things of the model have no translation:\n{listed}")


# ---------------------------------------------------------------- what is given


def _inputs(
    graph: Graph,
    proto: onnx.ModelProto,
    reader: Reader,
    given: Mapping[str, str],
    states: Mapping[str, str],
) -> dict[str, Value | None]:
    """What the entry is given, by the names of the model; those that are sizes as these."""
    names = Names({METHOD})
    sizes: dict[str, Dim] = {}
    taken = Names()
    out: dict[str, Value | None] = {}
    for value in proto.graph.input:
        if value.name in reader.stored.tensors:
            continue  # older models list their initializers as inputs too
        if not value.type.HasField("tensor_type"):
            reader.problems[f"the input `{value.name}` is no tensor"] = []
            continue
        if value.name in given:
            size = _size(given[value.name], sizes, taken)
            out[value.name] = sizes_of([size])
            continue
        title = names.fresh(value_name(value.name))
        told = value.type.tensor_type
        if not told.HasField("shape"):
            reader.problems[f"the input `{value.name}` has no shape, not even its rank"] = []
            continue
        shape: list[Dim] = []
        for at, axis in enumerate(told.shape.dim):
            if axis.HasField("dim_value"):
                shape.append(Dim.of(axis.dim_value))
            elif axis.dim_param and not axis.dim_param.startswith("unk__"):
                shape.append(_size(axis.dim_param, sizes, taken))
            else:
                shape.append(Dim.of(taken.fresh(dim_name(f"{title}_{at}") if at else "Batch")))
        try:
            dtype = dtype_of(told.elem_type)
        except Unsupported as reason:
            reader.problems[f"the input `{value.name}`: {reason}"] = []
            continue
        if value.name in states and all(size.constant is not None for size in shape):
            path = reader.stored.fresh((value_name(states[value.name]),))
            out[value.name] = reader.stored.state(path, tuple(shape), dtype, states[value.name])
            continue
        made = graph.node("input", (), [title], shape=shape, dtype=dtype, name=title)
        out[value.name] = made
    return out


def _under(told: Mapping[str, str], start: str) -> dict[str, str]:
    """What Linnet's own exports say under such keys."""
    return {k.removeprefix(start): value for k, value in told.items() if k.startswith(start)}


def _written(
    proto: onnx.ModelProto, stored: Stored, results: Sequence[Node], told: Mapping[str, str]
) -> tuple[list[Node], list[Member]]:
    """The results, then what states become; and these states."""
    plain: list[Node] = []
    last: list[Node] = []
    states: list[Member] = []
    for value, node in zip(proto.graph.output, results, strict=True):
        member = stored.states.get(told.get(value.name, ""))
        if member is None:
            plain.append(node)
        else:
            last.append(node)
            states.append(member)
    return [*plain, *last], states


def _clauses(told: Mapping[str, str], inputs: Sequence[Node]) -> list[str]:
    """The where clauses that Linnet's own exports tell, those about sizes of the inputs."""
    known = {name for node in inputs for size in node.shape for name in size.names()}
    clauses = _under(told, "linnet.where.").values()
    return [c for c in clauses if (named := set(re.findall(r"[A-Za-z_]\w*", c))) and named <= known]


def _size(text: str, sizes: dict[str, Dim], taken: Names) -> Dim:
    """A named size: a name, or sums and products of names, as exporters write them."""
    if text not in sizes:
        try:
            sizes[text] = _expression(ast.parse(text, mode="eval").body, sizes, taken)
        except (SyntaxError, ValueError):
            sizes[text] = Dim.of(taken.fresh(dim_name(text)))
    return sizes[text]


def _expression(tree: ast.expr, sizes: dict[str, Dim], taken: Names) -> Dim:
    match tree:
        case ast.Name(id=name):
            if name not in sizes:
                sizes[name] = Dim.of(taken.fresh(dim_name(_title(name))))
            return sizes[name]
        case ast.Constant(value=int(number)):
            return Dim.of(number)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _expression(left, sizes, taken), _expression(right, sizes, taken)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
    raise ValueError("no size")


def _title(name: str) -> str:
    """A size's name as the language writes names of sizes: `batch_size` is BatchSize."""
    if re.fullmatch(r"[A-Z]\w*", name):
        return name
    return "".join(word[:1].upper() + word[1:] for word in name.split("_") if word) or "N"


def _named(graph: Graph, proto: onnx.ModelProto, results: Sequence[Node]) -> None:
    for value, node in zip(proto.graph.output, results, strict=True):
        if not re.search(r"\d$", value.name):
            graph.named(node, value_name(value.name))
