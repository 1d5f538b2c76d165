"""From a program to a compiled step in JAX: ours, ours without functions, KerasHub, Flax.

    python -m bench.jax_compile [MODEL] [--entries decode,prefill] [--prompt 128] [--rounds 3]

Each measurement is a process of its own, without a cache of compiled programs; the methods take
turns. Printed are medians of seconds: `source` is ours alone, the source checked and lowered;
`trace` is all until there is StableHLO, with our text in it; `xla` is what XLA then takes; and how
large that StableHLO is. Reading weights and importing frameworks is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import peers
from bench.job import Job
from bench.runners.jax_common import set_up

ROOT = Path(__file__).resolve().parent.parent
NEW = 128


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one measurement, and bytes of StableHLO."""

    source: float
    trace: float
    xla: float
    size: int


@dataclass(frozen=True, slots=True)
class Way:
    """How a step is made: `measure` runs in the environment of `peer`, or in the project's."""

    measure: Callable[[Job, str], Taken]
    peer: str | None = None


def _ours(generated: bool, whole: bool) -> Callable[[Job, str], Taken]:
    """Ours; `whole` is without functions."""

    def measure(job: Job, entry: str) -> Taken:
        import jax
        import numpy as np

        from linnet.jax.entry import Entry, Source, shape_dtype
        from linnet.loading import load_source
        from linnet.nest.card import find_card

        card = find_card(job.options["card"])
        sizes = {"T": job.dtype, "MaxSeq": job.positions, "Batch": job.batch}
        started = time.perf_counter()
        loaded = load_source(
            card.source_path,
            root=card.root,
            entries=[entry],
            generics={**card.generics, **sizes},
            constants=card.constants,
        )
        program = without_functions(loaded.program) if whole else loaded.program
        lowered = time.perf_counter()
        source = Source(program, "fast") if generated else None
        made = Entry(program, entry, "fast", source, donates=True)
        values = made.values([np.array(_ids(job, entry), np.int32), 0])
        run = made.compiled(made.sizes(values, None))
        types = (*made.parameters.values(), *made.states.values())
        held = [jax.ShapeDtypeStruct(*shape_dtype(type)) for type in types]
        return _compiled(run, [*values, *held], lowered - started, lowered)

    return measure


def without_functions(program: Any) -> Any:
    """The program with every call replaced by its body, save those of ops with a kernel."""
    from linnet.core import inline
    from linnet.core.rewrite import map_functions
    from linnet.stablehlo.cpu import CPU_KERNELS
    from linnet.stablehlo.kernels import KERNELS

    every: dict[Any, bool] = {}

    def change(function: Any, renewed: Any) -> Any:
        changed = inline._inlined(function, renewed, every)
        every[changed] = str(changed.op) not in {**KERNELS, **CPU_KERNELS}
        return changed

    return map_functions(program, change)


def _peer(runner: str) -> Callable[[Job, str], Taken]:
    """A peer's jitted step; the weights are there already."""

    def measure(job: Job, entry: str) -> Taken:
        from importlib import import_module

        import numpy as np

        module = import_module(runner)
        module.prepare(job)
        stack = module.load(job)
        step, before, caches = stack.step()
        ids = np.array(_ids(job, entry), np.int32)
        return _compiled(step, [before, ids, caches, 0], 0.0, time.perf_counter())

    return measure


WAYS: dict[str, Way] = {
    "linnet-jax": Way(_ours(generated=False, whole=False)),
    "linnet-jax, no functions": Way(_ours(generated=False, whole=True)),
    "linnet-jax-source": Way(_ours(generated=True, whole=False)),
    "flax": Way(_peer("bench.runners.flax_stack"), "flax"),
    "kerashub": Way(_peer("bench.runners.keras_hub_stack"), "kerashub"),
}


def _ids(job: Job, entry: str) -> list[list[int]]:
    return job.prompts if entry == "prefill" else [ids[:1] for ids in job.prompts]


def _compiled(run: Any, given: list[Any], source: float, started: float) -> Taken:
    lowered = run.lower(*given)
    traced = time.perf_counter()
    lowered.compile()
    ended = time.perf_counter()
    return Taken(source, traced - started, ended - traced, len(lowered.as_text()))


def one(way: str, entry: str, job: Job) -> Taken:
    """The measurement, in this process; the backend is up before it begins."""
    set_up(job)
    import jax

    jax.jit(lambda x: x + 1)(1).block_until_ready()
    return WAYS[way].measure(job, entry)


def apart(way: str, entry: str, job: Job) -> Taken:
    """`one` in a fresh process of the way's environment."""
    peer = WAYS[way].peer
    python = sys.executable if peer is None else str(peers.python(peer))
    paths = [str(ROOT)] if peer else [str(ROOT), str(ROOT / "src")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "KERAS_BACKEND": "jax",
    }
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            [python, "-m", "bench.jax_compile", "--one", way, "--entries", entry],
            input=job.text(),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        if done.returncode:
            said.seek(0)
            raise SystemExit(f"{way}: {said.read()[-2000:]}")
    return Taken(**json.loads(done.stdout.splitlines()[-1]))


def job_of(model: str, dtype: str, prompt: int, threads: int) -> Job:
    """The workload: a prompt of a card with its weights."""
    from bench.prepare import prepare
    from linnet.nest.resolve import resolve

    card = resolve(model)
    prepared = prepare(card, peers.cache() / "models", None, 0)
    return Job(
        key="compile",
        runner="",
        dtype=dtype,
        place=str(prepared.checkpoint()),
        prompts=[[1] * prompt],
        new=NEW,
        threads=threads,
        device="cpu",
        logits="",
        options={"card": str(card.directory)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.jax_compile", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--entries", default="decode,prefill")
    parser.add_argument("--ways", default=";".join(WAYS), help="some of them, with semicolons")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(asdict(one(args.one, args.entries, Job(**json.load(sys.stdin))))))
        return
    job = job_of(args.model, args.dtype, args.prompt, args.threads)
    for entry in args.entries.split(","):
        found: dict[str, list[Taken]] = {way: [] for way in args.ways.split(";")}
        for _ in range(args.rounds):
            for way, taken in found.items():
                taken.append(apart(way, entry, job))
        print(f"{entry:26}  source   trace     xla     all   StableHLO")
        for way, taken in found.items():
            times = [
                statistics.median(getattr(each, part) for each in taken)
                for part in ("source", "trace", "xla")
            ]
            whole = statistics.median(each.source + each.trace + each.xla for each in taken)
            cells = "".join(f"{seconds:7.2f} " for seconds in (*times, whole))
            print(f"{way:26} {cells} {taken[-1].size / 1e3:8.0f} kB", flush=True)


if __name__ == "__main__":
    main()
