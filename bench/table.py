"""bench.json as a table of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

HEAD = (
    "method",
    "ttft ms",
    "share",
    "tokens/s",
    "share",
    "load s",
    "first s",
    "peak MiB",
    "held",
    "max diff",
)
SERVING_HEAD = (
    "method",
    "tokens/s",
    "share",
    "all s",
    "ttft p50 ms",
    "p99",
    "between p50 ms",
    "p99",
    "load s",
    "peak MiB",
    "same",
)
BETTER = (("ttft_ms", True, "prompt"), ("decode_tok_s", False, "decode"))
SERVING_BETTER = (("serve_tok_s", False, "serving"),)


def table(found: Mapping[str, Any]) -> str:
    """One line a method, then the errors; columns as wide as they must be."""
    lines = _table(found, HEAD, _cells)
    if found["reference"] is not None:
        lines.append(f"max diff: of the first token's logits, from those of {found['reference']}")
    return "\n".join([*lines, *best_of(found)])


def serving_table(found: Mapping[str, Any]) -> str:
    """The same of what serves."""
    return "\n".join([*_table(found, SERVING_HEAD, _served), *best_of(found, SERVING_BETTER)])


def _table(
    found: Mapping[str, Any],
    head: tuple[str, ...],
    cells: Callable[[Mapping[str, Any]], tuple[str, ...]],
) -> list[str]:
    rows = [head, *(cells(one) for one in found["methods"] if one["error"] is None)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    failed = [one for one in found["methods"] if one["error"] is not None]
    return [*lines, *(f"{one['key']}: {one['error']}" for one in failed)]


def best_of(
    found: Mapping[str, Any], better: Sequence[tuple[str, bool, str]] = BETTER
) -> list[str]:
    """Our best beside the best peer, for each storage that both have."""
    lines: list[str] = []
    rows = [one for one in found["methods"] if one["error"] is None]
    for storage in dict.fromkeys(one["method"].rpartition(", ")[2] for one in rows):
        own = [one for one in rows if one["method"].endswith(f", {storage}")]
        for metric, low, what in better:
            us = _best([one for one in own if one["kind"] == "linnet"], metric, low)
            them = _best([one for one in own if one["kind"] == "reference"], metric, low)
            if us is None or them is None:
                continue
            a, b = us["metrics"][metric], them["metrics"][metric]
            times = b / a if low else a / b
            lines.append(f"{storage} {what}: {us['key']} is {times:.2f} times {them['key']}")
    return lines


def _best(rows: Sequence[Mapping[str, Any]], metric: str, low: bool) -> Mapping[str, Any] | None:
    having = [one for one in rows if metric in one["metrics"]]
    if not having:
        return None
    return (min if low else max)(having, key=lambda one: one["metrics"][metric])


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    found = one["metrics"]
    peak = found.get("peak_memory_mib", found.get("peak_vram_mib"))
    held = found.get("weights_caches_mib")
    return (
        one["key"],
        _number(found.get("ttft_ms"), 0),
        _percent(found.get("ttft_share")),
        _number(found.get("decode_tok_s"), 1),
        _percent(found.get("decode_share")),
        _number(found.get("load_s"), 1),
        _number(found.get("start_to_first_token_s"), 1),
        _number(peak, 0),
        f"x {peak / held:.2f}" if peak and held else "-",
        "-" if one["max_abs_diff"] is None else f"{one['max_abs_diff']:.1e}",
    )


def _served(one: Mapping[str, Any]) -> tuple[str, ...]:
    found = one["metrics"]
    return (
        one["key"],
        _number(found.get("serve_tok_s"), 1),
        _percent(found.get("serve_share")),
        _number(found.get("serve_s"), 1),
        _number(found.get("serve_ttft_ms"), 0),
        _number(found.get("serve_ttft_p99_ms"), 0),
        _number(found.get("serve_itl_ms"), 0),
        _number(found.get("serve_itl_p99_ms"), 0),
        _number(found.get("load_s"), 1),
        _number(found.get("peak_memory_mib", found.get("peak_vram_mib")), 0),
        _percent(found.get("serve_same")),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
    return "  ".join(cells).rstrip()
