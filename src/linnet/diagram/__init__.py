"""Architecture drawings: a function of a checked program as blocks and what flows between them.

`build` makes a Graph, `to_svg`, `to_dot` and `to_tikz` write it, `render` does both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from linnet.core.lower import Generics, bind_given, main_module, root_block
from linnet.diagnostics import LinnetError, PlanError
from linnet.diagram.dot import to_dot
from linnet.diagram.graph import Edge, Graph, Group, Node
from linnet.diagram.svg import to_svg
from linnet.diagram.tikz import to_tikz
from linnet.diagram.trace import Instance, Scope, Tracer
from linnet.dims import Dim
from linnet.ir import Function, Program
from linnet.syntax import tree
from linnet.syntax.depth import deep_stack
from linnet.types import BlockType, DType, DTypeVar, GenericValue, Pack

__all__ = [
    "Edge",
    "Graph",
    "Group",
    "Node",
    "build",
    "render",
    "save",
    "to_dot",
    "to_svg",
    "to_tikz",
]

FORMATS: dict[str, Callable[[Graph, str], str]] = {"svg": to_svg, "dot": to_dot, "tikz": to_tikz}


def render(
    program: Program,
    entry: str | None = None,
    format: str = "svg",
    expand: int = 0,
    theme: str = "light",
    **options: Any,
) -> str:
    """The text of a drawing in a format: svg, dot or tikz; `options` are those of `build`."""
    if format not in FORMATS:
        raise PlanError(f"no format {format!r}: choose {', '.join(FORMATS)}")
    return FORMATS[format](build(program, entry, expand=expand, **options), theme)


def build(
    program: Program,
    function: str | None = None,
    *,
    expand: int = 0,
    params: bool = False,
    arithmetic: bool = True,
    generics: Generics | None = None,
) -> Graph:
    """The drawing of an entry (the main one where none is named) or of a free function.

    Blocks are boxes, `expand` levels of them opened. `params` shows weights and counts them,
    `arithmetic=False` leaves out what works element by element. Shapes are in the source's names;
    `generics` gives sizes, which long ones are then worked out with.
    """
    if expand < 0:
        raise PlanError(f"expand is {expand}: 0 or more levels of blocks can be opened")
    chosen, analysis = _chosen(program, function), program.analysis
    owner, sizes, listed = None, dict[str, int](), ""
    bindings: dict[str, GenericValue] = {}
    if chosen.block is None:
        fn = analysis.modules[chosen.module].items[chosen.name]
    else:
        block = root_block(analysis, main_module(analysis), chosen.block)
        assert block is not None
        fn = analysis.blocks[block].methods[chosen.name]
        bound = bind_given(analysis, block, generics or {})
        sizes = {n: d.constant for n, d in bound.items() if isinstance(d, Dim) and d.constant}
        own = {g.name.text: _symbolic(program, g, bound) for g in block.generics}
        owner = Instance(BlockType(block, block.name.text, tuple(own.values())), "")
        named = [n for n, d in own.items() if isinstance(d, Dim) and d.names() and n in sizes]
        listed = " · ".join(f"{n} {sizes[n]}" for n in named) if generics else ""
        bindings = analysis.blocks[block].bindings(own, analysis.signatures[fn].block)
    assert isinstance(fn, tree.Fn)
    bindings |= {g.name.text: _symbolic(program, g, {}) for g in fn.generics}
    title = f"{program.name}: {chosen.block}.{chosen.name}" if chosen.block else chosen.name
    with deep_stack():
        tracer = Tracer(analysis, sizes, expand, params, arithmetic)
        return tracer.trace(fn, Scope(bindings, owner, 0, {}), title, listed)


def save(text: str, path: str | Path) -> None:
    """The text of a drawing in a file."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LinnetError(f"{path}: cannot be written: {error.strerror or error}") from error


def _chosen(program: Program, name: str | None) -> Function:
    entries = program.entries()
    if name is None:
        found = [f for f in entries if f.name == "forward"] or list(entries)
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f.name for f in entries)
        raise PlanError(
            f"{program.name} has several entries and none is `forward`: name one of {listed}"
            if entries
            else f"{program.name} has no entry: name a function to draw"
        )
    if any(f.name == name for f in entries):
        return program.entry(name)
    if any(f.name == name for f in program.functions):
        return program.function(name)
    return program.entry(name)


def _symbolic(
    program: Program, g: tree.GenericParam, bound: dict[str, GenericValue]
) -> GenericValue:
    """A generic as itself; a size whose default is a number as that, or what is given for it."""
    name = g.name.text
    if g.pack:
        return (Pack(name),)
    if g.kind.text != "Dim":
        found = bound.get(name)
        return found if isinstance(found, DType) else DTypeVar(name, g.kind.text)
    default = None if g.default is None else program.analysis.dims[g.default].constant
    value = bound.get(name)
    return value if default is not None and isinstance(value, Dim) else Dim.of(name)
