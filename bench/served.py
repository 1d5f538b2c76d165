"""What a serving run found, as rows of bench.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from bench.job import Served
from bench.methods import Method
from bench.record import Measured, Probe, environment
from bench.traffic import Sizes


@dataclass(frozen=True, slots=True)
class Load:
    """What every method is asked to do."""

    device: str
    requests: int
    concurrency: int
    prompt_min: int
    prompt_max: int
    new: int
    iters: int
    seed: int
    threads: int
    dtype: str
    random: bool
    prompts: list[int]
    """How long each is."""

    def record(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "seed": self.seed,
            "threads": self.threads,
            "dtype": self.dtype,
            "random": self.random,
            "serve_requests": self.requests,
            "serve_concurrency": self.concurrency,
            "serve_prompt_min": self.prompt_min,
            "serve_prompt_max": self.prompt_max,
            "serve_prompt_tokens": sum(self.prompts),
            "serve_new": self.new,
            "serve_iters": self.iters,
        }


def document(
    measured: Sequence[Measured], load: Load, sizes: Sizes, probe: Probe, loads: Sequence[float]
) -> dict[str, Any]:
    """The whole of bench.json."""
    answers = answers_of(measured)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(probe, loads),
        "workload": load.record(),
        "methods": [row(one, load, sizes, probe, answers) for one in measured],
        "reference": None,
    }


def row(
    one: Measured, load: Load, sizes: Sizes, probe: Probe, answers: list[list[int]] | None
) -> dict[str, Any]:
    """One method's row; of a failed one only the error."""
    notes = [one.version] * bool(one.version) + one.notes
    best = limit(one.method, load, sizes, probe)
    if one.error is None and best is not None:
        notes.append(f"at most {best:.0f} tokens/s by products")
    return {
        "method": one.method.label,
        "kind": one.method.family.kind,
        "metrics": {} if one.error is not None else metrics(one, load, best, answers),
        "max_abs_diff": None,
        "notes": "; ".join(notes),
        "error": one.error,
        "key": one.method.key,
    }


def metrics(
    one: Measured, load: Load, best: float | None, answers: list[list[int]] | None
) -> dict[str, float | int]:
    """Medians of the rounds; times of requests and tokens are those of all rounds together."""
    seconds = statistics.median(each.seconds for each in one.served)
    rate = load.requests * load.new / seconds
    first = sorted(time for each in one.served for time in waits(each))
    between = sorted(time for each in one.served for time in gaps(each))
    found: dict[str, float | int | None] = {
        "serve_tok_s": round(rate, 2),
        "serve_s": round(seconds, 3),
        "serve_share": None if best is None else round(rate / best, 3),
        "serve_ttft_ms": round(1e3 * part(first, 0.5), 2),
        "serve_ttft_p99_ms": round(1e3 * part(first, 0.99), 2),
        "serve_itl_ms": round(1e3 * part(between, 0.5), 2) if between else None,
        "serve_itl_p99_ms": round(1e3 * part(between, 0.99), 2) if between else None,
        "serve_same": same(one.served[-1].answers, answers),
        "load_s": None if one.load_s is None else round(one.load_s, 3),
    }
    if load.device == "cpu":
        found["peak_memory_mib"] = round(one.peak_kib / 1024, 1)
    else:
        found["peak_vram_mib"] = one.device_mib
    return {name: value for name, value in found.items() if value is not None}


def waits(served: Served) -> list[float]:
    """Of each request, the seconds from its submission to its first token."""
    return [
        times[0][0] - at for at, times in zip(served.submitted, served.times, strict=True) if times
    ]


def gaps(served: Served) -> list[float]:
    """Of each token but a request's first, the seconds since the one before.

    Of tokens that came together the first waited, the others did not.
    """
    found: list[float] = []
    for times in served.times:
        for (before, _), (now, number) in pairwise(times):
            found += [now - before] + [0.0] * (number - 1)
    return found


def part(ordered: Sequence[float], share: float) -> float:
    """The least value that such a share of all is no greater than."""
    return ordered[max(0, -(-round(share * 1e6) * len(ordered) // 10**6) - 1)]


def answers_of(measured: Sequence[Measured]) -> list[list[int]] | None:
    """The answers that the others are compared with: of the first method that told its tokens."""
    told = (one.served[-1].answers for one in measured if one.error is None and one.served)
    return next((each for each in told if all(each)), None)


def same(answers: list[list[int]], reference: list[list[int]] | None) -> float | None:
    """The share of requests with the reference's answer, token by token."""
    if reference is None or not all(answers):
        return None
    equal = [one == other for one, other in zip(answers, reference, strict=True)]
    return round(sum(equal) / len(equal), 3)


def limit(method: Method, load: Load, sizes: Sizes, probe: Probe) -> float | None:
    """Tokens a second if products were all there is to do, at the rate that was measured."""
    rates = probe.get("product") or {}
    # Numbers of 16 bits can be multiplied as f32, where that is faster.
    rate = max(filter(None, (rates.get(method.dtype), rates.get("f32"))), default=None)
    if rate is None:
        return None
    # The last token of an answer goes through no layer: nothing comes after it.
    flops = sum(sizes.flops(length + load.new - 1, load.new) for length in load.prompts)
    return load.requests * load.new * rate / flops
