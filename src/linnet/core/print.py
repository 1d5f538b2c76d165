"""The textual form of the IR: stable names, types on every line, one function a block of text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from linnet.core.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Dot,
    Element,
    Expand,
    For,
    Function,
    Gather,
    If,
    Iota,
    Literal,
    Node,
    Param,
    Permute,
    Program,
    Reduce,
    Reshape,
    Result,
    Select,
    Size,
    Slice,
    Unary,
    Update,
    While,
)
from linnet.core.rewrite import reachable, topological
from linnet.core.scalars import round_float
from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.types import DType

Names = dict[Node, str]


def program_text(program: Program, *, spans: bool = False) -> str:
    """The whole program: generics, members, then every function, callees first."""
    generics = ", ".join(f"{name} = {value}" for name, value in program.generics.items())
    lines = [f"program {program.name}" + (f" with {generics}" if generics else "")]
    for m in program.manifest.entries:
        repeat = "".join(f" x {length}" for length in m.repeat)
        optional = " (optional)" if m.optional else ""
        lines.append(f"  {m.kind} {m.path}: {m.type}{repeat}{optional}")
    texts = ["\n".join(lines) + "\n"]
    texts += [function_text(function, spans=spans) for function in reachable(program)]
    return "\n".join(texts)


def function_text(function: Function, *, spans: bool = False) -> str:
    """One function, ended by a line end."""
    return "\n".join(_function(function, spans)) + "\n"


def names_of(function: Function) -> Names:
    """What the text calls every node of the function: its own name, its value, or a number."""
    names: Names = {}
    count = 0
    for node in topological((*function.params, *function.results)):
        match node:
            case Param(name, _, _, base):
                names[node] = name if base == "self" else f"{base}.{name}"
            case Literal(value, dtype):
                names[node] = literal_text(value, dtype)
            case Size(dim, dtype):
                names[node] = f"({dim}):{dtype}"
            case Result(of, index):
                names[node] = f"{names[of]}.{index}"
            case _:
                names[node] = f"%{count}"
                count += 1
    return names


def literal_text(value: bool | int | float, dtype: DType) -> str:
    """A constant with its dtype, in the fewest digits that give it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}:{dtype}"
    if not math.isfinite(value):
        return f"{value}:{dtype}"
    texts = (repr(float(f"{value:.{digits}g}")) for digits in range(1, 17))
    short = next((t for t in texts if round_float(float(t), dtype) == value), repr(value))
    return f"{short}:{dtype}"


def _function(function: Function, spans: bool) -> Iterator[str]:
    dims = f"<{', '.join(function.dims)}>" if function.dims else ""
    block = f" of {function.block}" if function.block else ""
    op = f" [{function.op}]" if function.op else ""
    yield f"{function.kind} {function.name}{dims}{block}{op}"
    if function.facts:
        yield f"  where {', '.join(map(str, function.facts))}"
    for param in function.params:
        kind = "" if param.kind == "value" else f"{param.kind} "
        yield f"  {kind}{_param(param)}"
    for line in _nodes(function, spans):
        yield f"  {line}"
    names = names_of(function)
    yield f"  return {_listed(function.value_results, names)}".rstrip()
    written = function.results[len(function.value_results) :]
    for name, node in zip(function.writes, written, strict=True):
        yield f"  write {name} = {names[node]}"


def _param(param: Param) -> str:
    name = param.name if param.base == "self" else f"{param.base}.{param.name}"
    return f"{name}: {param.of}"


def _nodes(function: Function, spans: bool) -> Iterator[str]:
    names = names_of(function)
    for node in topological(function.results):
        if isinstance(node, (Param, Literal, Size, Result)):
            continue
        at = ""
        if spans and node.span is not None:
            start = node.span.source.position(node.span.start)
            at = f"  // {node.span.source.name}:{start.line}:{start.column}"
        yield f"{names[node]} = {node_text(node, names)} : {node.type}{at}"
        for label, body in _bodies(node):
            yield f"  {label}({', '.join(map(_param, body.params))})"
            for line in _nodes(body, spans):
                yield f"    {line}"
            yield f"    yield {_listed(body.results, names_of(body))}".rstrip()


def _bodies(node: Node) -> tuple[tuple[str, Function], ...]:
    match node:
        case If(_, then, other):
            return (("then", then), ("else", other))
        case While(test, body):
            return (("test", test), ("do", body))
        case For(body, last=last):
            return (("do", body),) if last is None else (("do", body), ("last", last))
        case _:
            return ()


def _listed(nodes: tuple[Node, ...], names: Names) -> str:
    return ", ".join(names[node] for node in nodes)


def node_text(node: Node, names: Names) -> str:
    """A node's operation and operands, without its name and type."""
    match node:
        case Param() | Literal() | Size() | Result():
            return names[node]
        case Iota(extent):
            return f"iota {extent}"
        case Unary(op, x):
            return f"{op} {names[x]}"
        case Binary(op, a, b) | Compare(op, a, b):
            return f"{op} {names[a]}, {names[b]}"
        case Select(c, a, b):
            return f"select {names[c]}, {names[a]}, {names[b]}"
        case Cast(x):
            return f"cast {names[x]}"
        case Reshape(x):
            return f"reshape {names[x]}"
        case Permute(x, order):
            return f"permute {names[x]} {list(order)}"
        case Expand(x, _, axes):
            return f"expand {names[x]} {list(axes)}"
        case Slice(x, ranges):
            return f"slice {names[x]} [{', '.join(_range(*part) for part in ranges)}]"
        case Concat(parts, axis):
            return f"concat {_listed(parts, names)} axis {axis}"
        case Gather(x, indices, proved):
            places = [_index(i, known, names) for i, known in zip(indices, proved, strict=True)]
            return f"gather {names[x]} [{', '.join(places)}]"
        case Reduce(op, x, axes):
            return f"{op} {names[x]} {list(axes)}"
        case Dot(a, b, batch, contract):
            shared = f" batch {_pairs(batch)}" if batch else ""
            return f"dot {names[a]}, {names[b]}{shared} contract {_pairs(contract)}"
        case Call(function, inputs, dims):
            sizes = f"<{', '.join(map(str, dims))}>" if dims else ""
            return f"call {function.name}{sizes}({_listed(inputs, names)})"
        case If(c, _, _, inputs):
            return f"if {names[c]} ({_listed(inputs, names)})"
        case While(_, _, inputs, count):
            carried, fixed = inputs[:count], inputs[count:]
            return f"while carry ({_listed(carried, names)}) with ({_listed(fixed, names)})"
        case For(_, variable, start, stop, carried, scanned, fixed, stacked):
            lists = (("carry", carried), ("scan", scanned), ("with", fixed))
            given = [f"{word} ({_listed(nodes, names)})" for word, nodes in lists if nodes]
            given += [f"stack {stacked}"] if stacked else []
            return " ".join([f"for {variable} in {start} .. {stop}", *given])
        case Element(x, index):
            return f"element {names[x]} [{index}]"
        case Update(x, index, value):
            return f"update {names[x]} [{index}] = {names[value]}"
        case _:
            raise InternalError("print", f"unknown node {type(node).__name__}")


def _range(start: Dim, stop: Dim, step: int) -> str:
    return f"{start}:{stop}" + (f":{step}" if step != 1 else "")


def _index(index: Node | None, proved: bool, names: Names) -> str:
    if index is None:
        return ":"
    return names[index] + ("!" if proved else "")


def _pairs(pairs: tuple[tuple[int, int], ...]) -> str:
    return "[" + ", ".join(f"{i}:{j}" for i, j in pairs) + "]"
