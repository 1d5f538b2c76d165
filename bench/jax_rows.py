"""One product of 16-bit numbers on a CPU by JAX, in the ways that `stablehlo/cpu.py` chooses from.

    python bench/jax_rows.py [--dtype bfloat16] [--shape 1536 576]

Each row count: as it is, with both sides widened to f32, and with the weight turned; microseconds a
product, the best of several turns, thirty weights of their own so that none stays in a cache.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F32 = jnp.float32


def as_it_is(x: Any, w: Any) -> Any:
    found = lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=F32)
    return found.astype(x.dtype)


def widened(x: Any, w: Any) -> Any:
    found = lax.dot_general(x.astype(F32), w.astype(F32), (((1,), (1,)), ((), ())))
    return found.astype(x.dtype)


def turned(x: Any, w: Any) -> Any:
    flat = x.reshape(-1) if x.shape[0] == 1 else x
    over = (((flat.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(flat, w.T, over, preferred_element_type=F32).astype(x.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shape", type=int, nargs=2, default=(1536, 576), metavar=("OUT", "IN"))
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    weights = [jnp.asarray(draw.standard_normal(args.shape), args.dtype) for _ in range(30)]
    for rows in (1, 2, 8, 32, 64, 128, 192, 256, 512):
        x = jnp.asarray(draw.standard_normal((rows, args.shape[1])), args.dtype)
        runs = {
            f.__name__: jax.jit(lambda x, w, f=f: [f(x, one) for one in w])
            for f in (as_it_is, widened, turned)
        }
        best = dict.fromkeys(runs, float("inf"))
        for turn in range(8):
            for name, run in runs.items():
                started = time.perf_counter()
                jax.block_until_ready(run(x, weights))
                if turn:
                    best[name] = min(best[name], time.perf_counter() - started)
        print(f"{rows:4} rows", {name: round(t / 30 * 1e6) for name, t in best.items()})


if __name__ == "__main__":
    main()
