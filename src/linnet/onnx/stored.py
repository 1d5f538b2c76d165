"""The tensors of a model of ONNX as members: what each is called, and which are only numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from linnet.diagnostics import OnnxImportError
from linnet.dims import Dim
from linnet.onnx.known import Known
from linnet.porting.graph import Graph, Node, Shape
from linnet.porting.members import Member
from linnet.porting.operations import UnknownDtype
from linnet.weights.arrays import dtype_name

# What an exporter calls a tensor that has no name of its own in the program.
_GENERATED = re.compile(
    r"^(onnx::.*|_?val_\d+|/.*|\d+|_?const\w*|scalar_tensor.*|lifted_tensor.*|[A-Za-z]+_\d+"
    r"|.*_output_\d+|.*[Cc]onstant(_\d+)?|new_shape.*|axes.*)$"
)
_OWN = {  # what an operator calls its inputs
    "Conv": ("x", "weight", "bias"),
    "ConvTranspose": ("x", "weight", "bias"),
    "Gemm": ("x", "weight", "bias"),
    "MatMul": ("weight", "weight"),
    "Gather": ("weight", "ids"),
    "BatchNormalization": ("x", "weight", "bias", "running_mean", "running_var"),
    "LayerNormalization": ("x", "weight", "bias"),
    "InstanceNormalization": ("x", "weight", "bias"),
    "PRelu": ("x", "weight"),
    "Add": ("bias", "bias"),
    "Sub": ("bias", "bias"),
    "Mul": ("scale", "scale"),
    "Div": ("scale", "scale"),
}


def dtype_of(elem: int) -> str:
    """The language's name of an ONNX dtype. Unsupported where there is none."""
    name = onnx.TensorProto.DataType.Name(elem) if elem in _ELEMENTS else str(elem)
    try:
        found = dtype_name(onnx.helper.tensor_dtype_to_np_dtype(elem))
    except (KeyError, TypeError, ValueError):
        found = None
    if found is None or found.startswith("f8"):
        raise UnknownDtype(f"the dtype {name} has no counterpart in the language")
    return found


_ELEMENTS = frozenset(onnx.TensorProto.DataType.values())


def read_tensor(tensor: onnx.TensorProto, folder: Path | None) -> Any:
    """The tensor's array. OnnxImportError where its external file is not there or too short."""
    if uses_external_data(tensor):
        told = {entry.key: entry.value for entry in tensor.external_data}
        path = (folder or Path()) / told.get("location", "")
        if folder is None or not path.is_file():
            raise OnnxImportError(
                f"the data of `{tensor.name}` should be in {path}, and there is no such file"
            )
        start, length = int(told.get("offset", 0)), int(told.get("length", 0))
        size = path.stat().st_size
        if start + length > size:
            raise OnnxImportError(
                f"{path}: `{tensor.name}` should be bytes {start} to {start + length}, and the "
                f"file ends after {size}: it was cut, get it again"
            )
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        try:
            load_external_data_for_tensor(copy, str(folder))
        except Exception as error:  # ONNX's own checks of a path raise several kinds
            raise OnnxImportError(f"{path}: `{tensor.name}` cannot be read: {error}") from error
        tensor = copy
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise OnnxImportError(f"the tensor `{tensor.name}` cannot be read: {error}") from error


class Stored:
    """The initializers of a graph; each becomes a member when something reads it as a tensor."""

    def __init__(
        self,
        graph: Graph,
        model: onnx.ModelProto,
        folder: Path | None,
        named: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.folder = folder
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.users = _users(model.graph)
        self.read = {*self.users, *_given(model.graph)}
        self.members: list[Member] = []
        self.nodes: dict[Member, Node] = {}
        self.taken: set[tuple[str, ...]] = set()
        self.above: set[tuple[str, ...]] = set()  # the modules of those that are taken
        self.states: dict[str, Member] = {}  # by the paths that the model tells
        self.known: dict[Any, Node] = {}
        given = {tensor.name for tensor in model.graph.initializer}
        wished = {name: tuple(_words(name)) for name in given if not _GENERATED.match(name)}
        wished |= {n: tuple(path.split(".")) for n, path in named.items() if n in given}
        deepest = sorted(wished, key=lambda name: (-len(wished[name]), name))
        self.paths = {name: self.fresh(wished[name]) for name in deepest}

    def value(self, name: str) -> Known | Node:
        """The initializer: a parameter, or numbers that are worked with while reading."""
        tensor = self.tensors[name]
        dtype = dtype_of(tensor.data_type)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        if dtype[0] in "iu" or dtype == "bool" or count == 0:
            return Known(read_tensor(tensor, self.folder), dtype, name)
        if not tensor.dims or (count == 1 and name not in self.paths):
            return Known(read_tensor(tensor, self.folder), dtype, name)
        array = read_tensor(tensor, self.folder)
        path = self.paths.get(name)
        turned = False
        if path is None:
            path, turned = self.named(name, array.ndim)
        if turned:
            array = np.ascontiguousarray(array.T)
        node = self.member(path, array, dtype)
        return self.graph.permute(node, (1, 0)) if turned else node

    def named(self, name: str, rank: int) -> tuple[tuple[str, ...], bool]:
        """The path of a tensor that the exporter named; whether it is stored turned around.

        The node that reads it stands in the scope of its module, `/encoder/layer.0/query/MatMul`.
        """
        user, at = self.users.get(name, (None, 0))
        if user is None:
            return self.fresh(tuple(_words(name))), False
        scope = scope_of(user)
        roles = _OWN.get(user.op_type, ())
        role = roles[at] if at < len(roles) else "value"
        turned = user.op_type == "MatMul" and at == 1 and rank == 2 and bool(scope)
        if not scope:
            scope = _words(user.name or user.op_type)
        return self.fresh((*scope, role)), turned

    def fresh(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The path, or one with a number in it; none is the beginning of another."""
        wish, number = path, 1
        while (at := self._in_the_way(path)) is not None:
            number += 1
            path = (*wish[:at], f"{wish[at]}_{number}", *wish[at + 1 :])
        self.taken.add(path)
        self.above.update(path[:at] for at in range(1, len(path)))
        return path

    def _in_the_way(self, path: tuple[str, ...]) -> int | None:
        """Which step of the path is that of another tensor, or of a module."""
        for at in range(1, len(path)):
            if path[:at] in self.taken:
                return at - 1
        return len(path) - 1 if path in self.taken or path in self.above else None

    def member(self, path: tuple[str, ...], array: Any, dtype: str, kind: str = "param") -> Node:
        shape = tuple(map(Dim.of, array.shape))
        keys = tuple(int(key) if key.isdigit() else key for key in path)
        member = Member(keys, ".".join(path), shape, dtype, array, kind)
        node = self.graph.node("param", (), [("", member.tensor)], shape=shape, dtype=dtype)
        self.members.append(member)
        self.nodes[member] = node
        return node

    def state(self, path: tuple[str, ...], shape: Shape, dtype: str, told: str) -> Node:
        """What is kept between calls."""
        member = Member(path, told, shape, dtype, None, "state")
        node = self.graph.node("param", (), [("", member.tensor)], shape=shape, dtype=dtype)
        self.members.append(member)
        self.nodes[member] = node
        self.states[told] = member
        return node

    def node(self, known: Known, scope: Sequence[str] = ()) -> Node:
        """What is known, as a tensor of the program; arrays are held by the module at `scope`."""
        graph = self.graph
        if known.symbolic:
            sizes = [graph.node("size", (), [x], dtype=known.dtype) for x in known.sizes()]
            if known.array.ndim == 0:
                return sizes[0]
            parts = [graph.reshape(x, (Dim.of(1),)) for x in sizes]
            return graph.reshape(graph.concat(parts, 0), known.shape)
        array = np.asarray(known.array)
        flat = array.reshape(-1)
        if array.size and (flat == flat[0]).all():
            return graph.literal(flat[0].item(), known.dtype, known.shape)
        counted = _counted(array)
        if counted is not None:
            return graph.iota(known.shape, counted, known.dtype)
        key = (array.shape, str(array.dtype), array.tobytes())
        if key not in self.known:
            name = known.name
            path = self.paths.get(name)
            if path is None or path in {tuple(map(str, m.keys)) for m in self.members}:
                path = self.fresh((*scope, "constant"))
            self.known[key] = self.member(path, array, known.dtype, "buffer")
        return self.known[key]


def _counted(array: Any) -> int | None:
    """The axis along which integers are 0, 1, 2 ..., the same along all others."""
    if array.dtype.kind not in "iu" or not array.size:
        return None
    for axis, size in enumerate(array.shape):
        if size > 1 and (np.moveaxis(array, axis, -1) == np.arange(size)).all():
            return axis
    return None


def _users(graph: onnx.GraphProto) -> dict[str, tuple[onnx.NodeProto, int]]:
    """The node that first reads each value, and as which of its inputs."""
    found: dict[str, tuple[onnx.NodeProto, int]] = {}
    for node in _nodes(graph):
        for at, name in enumerate(node.input):
            if name not in found or found[name][0].op_type in ("Identity", "Cast"):
                found[name] = node, at
    return found


def _given(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of what the graph, and each graph in it, gives."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _given(attribute.g)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _words(name: str) -> list[str]:
    """The steps of a tensor's name: `a/b.0/kernel:0` is a, b, 0, kernel.

    What tf2onnx folds a normalisation into is a weight or a bias of what stood before it.
    """
    if fused := re.fullmatch(r"(.*?)(/BiasAdd|/Conv2D)?_(weight|bia)s_fused_bn", name):
        return [*_words(fused[1]), {"weight": "weight", "bia": "bias"}[fused[3]]]
    return [word for word in re.split(r"[./]+", re.sub(r":\d+$", "", name)) if word] or ["value"]


def scope_of(node: onnx.NodeProto) -> list[str]:
    """The module that a node belongs to, as PyTorch's exporters say it; [] where they do not."""
    for prop in node.metadata_props:
        if prop.key == "pkg.torch.onnx.name_scopes":
            try:
                scopes = [str(each) for each in ast.literal_eval(prop.value)]
            except (ValueError, SyntaxError):
                return []
            modules = scopes[:-1]  # the last is the operation
            return _words(modules[-1]) if modules and modules[-1] else []
    if node.name.startswith("/"):
        return _words(node.name)[:-1]
    return []
