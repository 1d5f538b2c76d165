"""bench.json: the rows of a run, their shares of what the machine allows, and reading them back."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bench.job import Round, Served
from bench.methods import STORAGES, Method
from bench.traffic import Limits, Sizes, limits

FILE = "bench.json"
PACKAGES = ("torch", "jax", "transformers", "diffusers", "onnxruntime", "numpy")


@dataclass(slots=True)
class Measured:
    """What a method's worker told, as far as it came."""

    method: Method
    load_s: float | None = None
    start_to_first_token_s: float | None = None
    version: str = ""
    notes: list[str] = field(default_factory=list[str])
    held: int | None = None
    rounds: list[Round] = field(default_factory=list[Round])
    served: list[Served] = field(default_factory=list[Served])
    peak_kib: int = 0
    device_mib: int | None = None
    logits: Path | None = None
    error: str | None = None

    def add(self, found: Round | Served) -> None:
        """One more round that counts."""
        match found:
            case Round():
                self.rounds.append(found)
            case Served():
                self.served.append(found)


@dataclass(frozen=True, slots=True)
class Workload:
    """What every method is asked to do."""

    device: str
    prompt: int
    new: int
    batch: int
    warmup: int
    iters: int
    seed: int
    threads: int
    dtype: str
    random: bool

    def record(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "prompt_tokens": self.prompt,
            "new_tokens": self.new,
            "batch": self.batch,
            "warmup": self.warmup,
            "iters": self.iters,
            "seed": self.seed,
            "threads": self.threads,
            "dtype": self.dtype,
            "random": self.random,
        }


Probe = Mapping[str, Any]


def document(
    measured: Sequence[Measured],
    workload: Workload,
    sizes: Sizes,
    probe: Probe,
    load: Sequence[float],
    imports: Mapping[str, float] | None,
) -> dict[str, Any]:
    """The whole of bench.json."""
    reference = reference_of(measured)
    base = logits_of(reference) if reference is not None else None
    out: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(probe, load),
        "workload": workload.record(),
        "methods": [row(one, workload, sizes, probe, reference, base) for one in measured],
        "reference": reference.method.key if reference is not None else None,
    }
    if imports is not None:
        out["imports"] = dict(imports)
    return out


def row(
    one: Measured,
    workload: Workload,
    sizes: Sizes,
    probe: Probe,
    reference: Measured | None,
    base: np.ndarray[Any, Any] | None,
) -> dict[str, Any]:
    """One method's row; of a failed one only the error."""
    failed = one.error is not None
    return {
        "method": one.method.label,
        "kind": one.method.family.kind,
        "metrics": {} if failed else metrics(one, workload, sizes, probe),
        "max_abs_diff": None if failed else difference(one, reference, base),
        "notes": "; ".join(notes(one, workload, sizes, probe)),
        "error": one.error,
        "key": one.method.key,
    }


def metrics(
    one: Measured, workload: Workload, sizes: Sizes, probe: Probe
) -> dict[str, float | int]:
    """The figures that were measured, medians of the rounds."""
    ttft = statistics.median(each.first for each in one.rounds)
    found: dict[str, float | int | None] = {"ttft_ms": round(1e3 * ttft, 2)}
    found["decode_tok_s"] = decode_rate(one.rounds, workload.batch)
    found["load_s"] = _rounded(one.load_s, 3)
    found["start_to_first_token_s"] = _rounded(one.start_to_first_token_s, 3)
    if workload.device == "cpu":
        found["peak_memory_mib"] = round(one.peak_kib / 1024, 1)
    else:
        found["peak_vram_mib"] = one.device_mib
    found["weights_caches_mib"] = round(held(one, workload, sizes) / 2**20, 2)
    best = limits_of(one.method, workload, sizes, probe)
    if best.decode_tok_s and found["decode_tok_s"]:
        found["decode_share"] = round(float(found["decode_tok_s"]) / best.decode_tok_s, 3)
    if best.ttft_ms:
        found["ttft_share"] = round(best.ttft_ms / (1e3 * ttft), 3)
    found["first_token"] = one.rounds[-1].tokens[0]
    return {name: value for name, value in found.items() if value is not None}


def decode_rate(rounds: Sequence[Round], batch: int) -> float | None:
    """Tokens a second after the first; None where no token follows it."""
    rates = [
        batch * (len(one.tokens) - 1) / one.rest
        for one in rounds
        if len(one.tokens) > 1 and one.rest > 0
    ]
    return round(statistics.median(rates), 2) if rates else None


def held(one: Measured, workload: Workload, sizes: Sizes) -> float:
    """Bytes of weights and caches: the method's own figure, else by the model's sizes."""
    if one.held is not None:
        return one.held
    positions = workload.prompt + workload.new
    caches = sizes.caches(one.method.cache, positions, workload.batch)
    return sizes.weights(one.method.storage) + caches


def limits_of(method: Method, workload: Workload, sizes: Sizes, probe: Probe) -> Limits:
    """What the machine allows this method."""
    rates = probe.get("product") or {}
    return limits(
        sizes,
        method.storage,
        method.cache,
        workload.prompt,
        workload.new,
        workload.batch,
        probe.get("bandwidth"),
        # Numbers of 16 bits can be multiplied as f32, where that is faster.
        max(filter(None, (rates.get(method.dtype), rates.get("f32"))), default=None),
    )


def notes(one: Measured, workload: Workload, sizes: Sizes, probe: Probe) -> list[str]:
    """One line of conditions in clauses."""
    found = [one.version] if one.version else []
    found += one.notes
    if one.error is None and one.rounds:
        best = limits_of(one.method, workload, sizes, probe)
        if best.decode_tok_s:
            found.append(f"at most {best.decode_tok_s:.0f} tokens/s by bandwidth")
        if best.ttft_ms:
            found.append(f"at least {best.ttft_ms:.0f} ms by products")
    return found


# ---------------------------------------------------------------- the reference


def reference_of(measured: Sequence[Measured]) -> Measured | None:
    """transformers eager where it gave logits, else any row that did; in the widest weights."""
    with_logits = [one for one in measured if one.error is None and one.logits is not None]
    widest = sorted(with_logits, key=lambda one: STORAGES.index(one.method.storage))
    eager = [one for one in widest if one.method.key.startswith("transformers-eager")]
    return next(iter([*eager, *widest]), None)


def logits_of(one: Measured) -> np.ndarray[Any, Any] | None:
    return None if one.logits is None else np.load(one.logits)


def difference(
    one: Measured, reference: Measured | None, base: np.ndarray[Any, Any] | None
) -> float | None:
    """The largest difference of the first token's logits; 0.0 of the reference itself."""
    if one is reference:
        return 0.0
    own = logits_of(one)
    if own is None or base is None or own.shape != base.shape:
        return None
    return float(f"{np.abs(own.astype(np.float64) - base.astype(np.float64)).max():.3g}")


# ---------------------------------------------------------------- surroundings


def environment(probe: Probe, load: Sequence[float]) -> dict[str, str]:
    """What ran where; all texts."""
    import linnet

    found = {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {_processor()}",
        "linnet": linnet.__version__,
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found |= _gpu()
    if probe.get("bandwidth"):
        found["bandwidth"] = f"{probe['bandwidth'] / 1e9:.1f} GB/s"
    for dtype, rate in (probe.get("product") or {}).items():
        found[f"products {dtype}"] = f"{rate / 1e9:.1f} GFLOP/s" if rate else "too slow to measure"
    if load:
        found["load average"] = f"{min(load):.1f} to {max(load):.1f}"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def _gpu() -> dict[str, str]:
    import torch

    if not torch.cuda.is_available():
        return {}
    count = torch.cuda.device_count()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": str(count),
        "cuda": str(torch.version.cuda),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


# ---------------------------------------------------------------- the file


def write(place: Path, found: dict[str, Any], merge: bool) -> dict[str, Any]:
    """bench.json holds these rows; with `merge`, those of other methods that it had stay."""
    file = place / FILE
    if merge and file.is_file():
        found = merged(json.loads(file.read_text()), found)
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return found


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """New rows in the place of those with their keys, others after them."""
    new = {one["key"]: one for one in found["methods"]}
    old = [new.pop(one["key"], one) for one in before["methods"]]
    reference = found["reference"] or before.get("reference")
    workload = {**before["workload"], **found["workload"]}
    methods = [*old, *new.values()]
    return {**before, **found, "workload": workload, "methods": methods, "reference": reference}
