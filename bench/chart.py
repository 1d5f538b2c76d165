"""bench.json as bars: one chart for each metric, in SVG that shows on a light and a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    title: str
    low: bool
    digits: int


METRICS = (
    Metric("ttft_ms", "Time to first token, ms (lower is better)", True, 0),
    Metric("decode_tok_s", "Decoding, tokens/s (higher is better)", False, 1),
    Metric("serve_tok_s", "Serving, tokens/s (higher is better)", False, 1),
    Metric("serve_ttft_ms", "Serving, time to first token, ms (lower is better)", True, 0),
    Metric("serve_itl_ms", "Serving, time between tokens, ms (lower is better)", True, 1),
    Metric("load_s", "Load, s (lower is better)", True, 2),
    Metric("peak_memory_mib", "Peak memory, MiB (lower is better)", True, 0),
    Metric("peak_vram_mib", "Peak device memory, MiB (lower is better)", True, 0),
)
_WIDTH, _LABEL, _VALUE = 860, 260, 80
_BAR, _STEP, _HEAD, _GAP = 16, 22, 30, 26
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600}
.reference{fill:#b8b8b8}.linnet{fill:#4a4a4a}.best{fill:#2f7d5b}
@media (prefers-color-scheme:dark){text{fill:#ddd}.reference{fill:#666}.linnet{fill:#bbb}
.best{fill:#5fb88f}}"""


def chart(found: Mapping[str, Any]) -> str:
    """One SVG drawing with a chart for each metric that a row has; the best bar stands out."""
    parts: list[str] = []
    top = 8
    for metric in METRICS:
        rows = [one for one in found["methods"] if metric.name in one["metrics"]]
        if rows:
            parts += _bars(metric, rows, top)
            top += _HEAD + _STEP * len(rows) + _GAP
    size = f'width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _bars(metric: Metric, rows: Sequence[Mapping[str, Any]], top: int) -> list[str]:
    values = [one["metrics"][metric.name] for one in rows]
    best = (min if metric.low else max)(values)
    largest = max(values) or 1
    room = _WIDTH - _LABEL - _VALUE
    parts = [f'<text class="title" x="8" y="{top + 16}">{escape(metric.title)}</text>']
    for k, (one, value) in enumerate(zip(rows, values, strict=True)):
        at = top + _HEAD + _STEP * k
        kind = "best" if value == best else "linnet" if one["kind"] == "linnet" else "reference"
        width = max(1.0, room * value / largest)
        note = f"{one['method']}: {value:g}; {one['notes']}"
        parts += [
            f'<text x="{_LABEL - 8}" y="{at + 13}" text-anchor="end">{escape(one["key"])}</text>',
            f'<rect class="{kind}" x="{_LABEL}" y="{at}" width="{width:.1f}" height="{_BAR}">'
            f"<title>{escape(note)}</title></rect>",
            f'<text x="{_LABEL + width + 6:.1f}" y="{at + 13}">{value:,.{metric.digits}f}</text>',
        ]
    return parts
