"""A Graph as a TikZ picture for LaTeX, placed like the SVG."""

from __future__ import annotations

from collections.abc import Iterator

from linnet.diagram.colours import theme_named
from linnet.diagram.graph import Graph
from linnet.diagram.layout import (
    LABEL,
    NOTE,
    SUB,
    Box,
    Command,
    arranged,
    is_symbol,
    lines_of,
)

SCALE = 0.75  # points for each pixel
MARGIN = 12
SPECIAL = {
    **{c: f"\\{c}" for c in "{}$&#_%"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"×": r"$\times$", "÷": r"$\div$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$"},
    **{"≠": r"$\ne$", "·": r"$\cdot$", "…": r"\dots{}", "√": r"$\surd$"},
}


def to_tikz(graph: Graph, theme: str = "light") -> str:
    """The drawing as a `tikzpicture`, which needs `\\usepackage{tikz}` and nothing else."""
    colours, picture = theme_named(theme), arranged(graph)
    named = {
        "page": colours.page,
        "text": colours.text,
        "muted": colours.muted,
        "line": colours.line,
        "frame": colours.frame,
        **{f"{kind}-fill": fill for kind, (fill, _) in colours.kinds.items()},
        **{f"{kind}-border": border for kind, (_, border) in colours.kinds.items()},
    }
    far = f"({_n(picture.width + MARGIN)}, {_n(picture.height + MARGIN)})"
    lines = [
        f"% {graph.title} {graph.sizes}".rstrip(),
        *(f"\\definecolor{{linnet-{n}}}{{HTML}}{{{c[1:].upper()}}}" for n, c in named.items()),
        f"\\begin{{tikzpicture}}[x={SCALE}pt, y=-{SCALE}pt, >=latex, inner sep=0pt]",
        f"\\fill[linnet-page] ({-MARGIN}, {-MARGIN}) rectangle {far};",
    ]
    for frame in picture.frames:
        lines.append(
            f"\\filldraw[dashed, rounded corners=6pt, fill=linnet-frame, draw=linnet-line] "
            f"({_n(frame.x)}, {_n(frame.y)}) rectangle "
            f"({_n(frame.x + frame.width)}, {_n(frame.y + frame.height)});"
        )
        lines.append(
            _words(frame.group.label, frame.x + 12, frame.y + 18, LABEL - 1, "bf", "base west")
        )
    for route in picture.routes:
        heads = ("<" if route.start else "") + "-" + (">" if route.end else "")
        lines.append(f"\\draw[{heads}, draw=linnet-line] {_path(route.commands)};")
    for box in picture.boxes:
        lines += _box(box)
    for note in picture.notes:
        lines.append(_words(note.text, note.x, note.y, NOTE, "tt", "base west"))
    return "\n".join([*lines, "\\end{tikzpicture}", ""])


def _box(box: Box) -> Iterator[str]:
    node = box.node
    kind = f"fill=linnet-{node.kind}-fill, draw=linnet-{node.kind}-border"
    left, top = box.x - box.width / 2, box.y - box.height / 2
    if is_symbol(node):
        radius = _n(box.width * SCALE / 2)
        yield f"\\filldraw[{kind}] {_at(box.x, box.y)} circle[radius={radius}pt];"
    else:
        corner = 9 if node.kind in ("op", "input", "output") else 4
        yield (
            f"\\filldraw[{kind}, rounded corners={corner}pt] ({_n(left)}, {_n(top)}) "
            f"rectangle ({_n(left + box.width)}, {_n(top + box.height)});"
        )
    lines = lines_of(node)
    base = box.y - 15 * len(lines) / 2 + 4.5
    weight = "bf" if node.kind in ("call", "input", "output") else "sf"
    yield _words(node.label, box.x, base, LABEL, weight, "base")
    for i, text in enumerate(lines):
        yield _words(text, box.x, base + 15 * (i + 1), SUB, "tt", "base")


def _words(text: str, x: float, y: float, size: float, face: str, anchor: str) -> str:
    family = {"bf": "\\sffamily\\bfseries", "sf": "\\sffamily", "tt": "\\ttfamily"}[face]
    colour = "linnet-muted" if face == "tt" else "linnet-text"
    points = _n(size * SCALE)
    return (
        f"\\node[anchor={anchor}, text={colour}, font=\\fontsize{{{points}}}{{{points}}}"
        f"\\selectfont{family}] at ({_n(x)}, {_n(y)}) {{{_escaped(text)}}};"
    )


def _path(commands: tuple[Command, ...]) -> str:
    parts: list[str] = []
    for op, v in commands:
        match op:
            case "M":
                parts.append(_at(v[0], v[1]))
            case "L":
                parts.append(f"-- {_at(v[0], v[1])}")
            case _:
                parts.append(
                    f".. controls {_at(v[0], v[1])} and {_at(v[2], v[3])} .. {_at(v[4], v[5])}"
                )
    return " ".join(parts)


def _at(x: float, y: float) -> str:
    return f"({_n(x)}, {_n(y)})"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in text)


def _n(value: float) -> str:
    return f"{round(value, 1):g}"
