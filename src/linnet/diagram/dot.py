"""A Graph in Graphviz's language."""

from __future__ import annotations

from collections.abc import Iterator

from linnet.diagram.colours import Theme, theme_named
from linnet.diagram.graph import Graph, Node
from linnet.diagram.layout import is_symbol


def to_dot(graph: Graph, theme: str = "light") -> str:
    """The drawing as a `digraph`, frames as clusters; `dot` places it."""
    colours = theme_named(theme)
    title = f"{graph.title}\n{graph.sizes}" if graph.sizes else graph.title
    lines = [
        "digraph {",
        f"  graph [label={_text(title)}, labelloc=t, labeljust=l, bgcolor={_text(colours.page)},"
        f' fontname="sans-serif", fontcolor={_text(colours.text)}]',
        f'  node [fontname="sans-serif", fontcolor={_text(colours.text)}, shape=box]',
        f'  edge [fontname="monospace", fontsize=10, color={_text(colours.line)},'
        f" fontcolor={_text(colours.muted)}]",
        *_inside(graph, None, colours, "  "),
    ]
    for edge in graph.edges:
        label = f"label={_text(edge.label)}" if edge.label else ""
        both = "dir=both" if edge.both else ""
        said = ", ".join(filter(None, (label, both)))
        lines.append(f"  {edge.src} -> {edge.dst}" + (f" [{said}]" if said else ""))
    return "\n".join([*lines, "}", ""])


def _inside(graph: Graph, group: str | None, colours: Theme, indent: str) -> Iterator[str]:
    for node in graph.nodes:
        if node.group == group:
            yield indent + _node(node, colours)
    for inner in graph.groups:
        if inner.parent == group:
            yield f"{indent}subgraph cluster_{inner.id} {{"
            yield (
                f"{indent}  label={_text(inner.label)}; style=dashed; "
                f"color={_text(colours.line)}; fontcolor={_text(colours.text)}"
            )
            yield from _inside(graph, inner.id, colours, indent + "  ")
            yield f"{indent}}}"


def _node(node: Node, colours: Theme) -> str:
    fill, border = colours.kinds[node.kind]
    label = f"{node.label}\n{node.sublabel}" if node.sublabel else node.label
    shape = ', shape=circle, margin="0"' if is_symbol(node) else ""
    style = "filled" if is_symbol(node) else "rounded,filled"
    return (
        f"{node.id} [label={_text(label)}{shape}, style={_text(style)}, "
        f"fillcolor={_text(fill)}, color={_text(border)}]"
    )


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
