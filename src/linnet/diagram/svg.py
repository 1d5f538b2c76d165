"""A Graph as SVG text: system fonts, no outside resources, the same bytes each time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from linnet.diagram.colours import Theme, theme_named
from linnet.diagram.graph import Graph
from linnet.diagram.layout import (
    LABEL,
    NOTE,
    SUB,
    Box,
    Frame,
    Route,
    arranged,
    is_symbol,
    lines_of,
    text_width,
)

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
WIDEST, MARGIN, TITLE = 900.0, 24.0, 16.0


def to_svg(graph: Graph, theme: str = "light") -> str:
    """The drawing as SVG, at most 900 pixels wide."""
    colours, picture = theme_named(theme), arranged(graph)
    sizes = list(_wrapped(graph.sizes, max(picture.width, 360.0)))
    head = TITLE + 14 + 16 * len(sizes)
    heading = [text_width(graph.title, TITLE), *(text_width(s, SUB, True) for s in sizes)]
    width = max(picture.width, *heading) + 2 * MARGIN
    height = picture.height + head + 2 * MARGIN
    dx = (width - picture.width) / 2
    shown = min(1.0, WIDEST / width)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width * shown)}" '
        f'height="{_n(height * shown)}" viewBox="0 0 {_n(width)} {_n(height)}" role="img">',
        f"<title>{escape(graph.title)}</title>",
        f"<style>text{{font-family:{SANS};fill:{colours.text}}}"
        f".m{{font-family:{MONO};fill:{colours.muted}}}</style>",
        "<defs>"
        '<marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse">'
        f'<path d="M0 0L8 4L0 8z" fill="{colours.line}"/></marker></defs>',
        f'<rect width="{_n(width)}" height="{_n(height)}" rx="8" fill="{colours.page}"/>',
        f'<text x="{_n(MARGIN)}" y="{_n(MARGIN + TITLE - 2)}" font-size="{TITLE:g}" '
        f'font-weight="600">{escape(graph.title)}</text>',
    ]
    for i, text in enumerate(sizes):
        y = MARGIN + TITLE + 16 * (i + 1)
        lines.append(
            f'<text class="m" x="{_n(MARGIN)}" y="{_n(y)}" font-size="{SUB:g}">'
            f"{escape(text)}</text>"
        )
    lines.append(f'<g transform="translate({_n(dx)} {_n(MARGIN + head)})">')
    for frame in picture.frames:
        lines += _frame(frame, colours)
    lines += [_route(route, colours) for route in picture.routes]
    for box in picture.boxes:
        lines += _box(box, colours)
    for note in picture.notes:
        lines.append(
            f'<text class="m" x="{_n(note.x)}" y="{_n(note.y)}" font-size="{NOTE:g}">'
            f"{escape(note.text)}</text>"
        )
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _wrapped(text: str, width: float) -> Iterator[str]:
    """The sizes on as many lines as the width asks for."""
    line = ""
    for part in text.split(" · ") if text else ():
        longer = f"{line} · {part}" if line else part
        if line and text_width(longer, SUB, True) > width:
            yield line
            longer = part
        line = longer
    if line:
        yield line


def _frame(frame: Frame, colours: Theme) -> Iterator[str]:
    yield (
        f'<rect x="{_n(frame.x)}" y="{_n(frame.y)}" width="{_n(frame.width)}" '
        f'height="{_n(frame.height)}" rx="10" fill="{colours.frame}" stroke="{colours.line}" '
        'stroke-dasharray="5 4"/>'
    )
    yield (
        f'<text x="{_n(frame.x + 12)}" y="{_n(frame.y + 18)}" font-size="{LABEL - 1:g}" '
        f'font-weight="600">{escape(frame.group.label)}</text>'
    )


def _route(route: Route, colours: Theme) -> str:
    path = "".join(f"{op}{' '.join(map(_n, values))}" for op, values in route.commands)
    heads = ' marker-start="url(#h)"' * route.start + ' marker-end="url(#h)"' * route.end
    return f'<path d="{path}" fill="none" stroke="{colours.line}" stroke-width="1.3"{heads}/>'


def _box(box: Box, colours: Theme) -> Iterator[str]:
    node = box.node
    fill, border = colours.kinds[node.kind]
    x, y = box.x - box.width / 2, box.y - box.height / 2
    if is_symbol(node):
        yield (
            f'<circle cx="{_n(box.x)}" cy="{_n(box.y)}" r="{_n(box.width / 2)}" '
            f'fill="{fill}" stroke="{border}"/>'
        )
    else:
        round_ = box.height / 2 if node.kind in ("input", "output") else 6
        round_ = 13 if node.kind == "op" else round_
        yield (
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(box.width)}" height="{_n(box.height)}" '
            f'rx="{_n(round_)}" fill="{fill}" stroke="{border}"/>'
        )
    lines = lines_of(node)
    weight = ' font-weight="600"' if node.kind in ("call", "input", "output") else ""
    base = box.y - 15 * len(lines) / 2 + 4.5
    yield (
        f'<text x="{_n(box.x)}" y="{_n(base)}" font-size="{LABEL:g}" text-anchor="middle"{weight}>'
        f"{escape(node.label)}</text>"
    )
    for i, text in enumerate(lines):
        yield (
            f'<text class="m" x="{_n(box.x)}" y="{_n(base + 15 * (i + 1))}" font-size="{SUB:g}" '
            f'text-anchor="middle">{escape(text)}</text>'
        )


def _n(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{round(value, 1):g}"
