"""How the time of `linnet check` grows with its input, and what it is over std and the zoo.

    python bench/check_curve.py [--profile] [--only NAME ...] [--base 16]

First seconds per 1,000 lines over the standard library and every package of the zoo (with
--profile, the ten costliest functions), then one line per curve: the time at one, two, four and
eight times a size, and what the last doubling multiplied it by. 2 is linear, 4 quadratic.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from linnet.check import check, check_text
from linnet.workspace import Workspace

SOURCES = Path(__file__).resolve().parent.parent / "src" / "linnet"
STEPS = (1, 2, 4, 8)
LIMIT = 2.8  # of the last doubling; above it, something is worse than n log n


# ---------------------------------------------------------------- std and the zoo


def packages() -> list[Path]:
    found = [m.parent for m in sorted((SOURCES / "zoo").rglob("linnet.toml"))]
    return [SOURCES / "std", *found]


def per_thousand_lines(profile: bool) -> None:
    """Seconds per 1,000 lines over everything that comes with Linnet, read from disk each time."""
    places = packages()
    lines = sum(len(f.read_text().splitlines()) for p in places for f in p.rglob("*.linnet"))
    profiler = cProfile.Profile()
    started = time.process_time()
    if profile:
        profiler.enable()
    workspace = Workspace()
    for place in places:
        target = workspace.std if place == SOURCES / "std" else place
        analysis = check(workspace, target)
        assert not analysis.findings.items, place
    profiler.disable()
    seconds = time.process_time() - started
    print(
        f"std and the zoo: {lines} lines, {seconds:.2f} s, {1000 * seconds / lines:.3f} s per 1,000"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(10)


# ---------------------------------------------------------------- curves

HEAD = "module m\n\n"


def repeated(n: int) -> str:
    """One function, n times: the length of a file."""
    one = (
        "pub fn go{i}<B: Dim, H: Dim>(x: Tensor[B, 2 * H; f32], w: Tensor[H; f32])"
        " -> Tensor[B, H; f32]\nwhere H > 0 {{\n    let a = x[:, :H] * w\n"
        "    let b[i] = sum[h] a[i, h] * w[h]\n    let c[i, h] = a[i, h] / b[i]\n"
        "    return c + reshape(x, [B, 2, H])[:, 1]\n}}\n"
    )
    return HEAD + "".join(one.format(i=i) for i in range(4 * n))


def calls(n: int) -> str:
    """Functions that each call the two before them."""
    text = HEAD + "fn go0<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {\n    return x\n}\n"
    text += text.removeprefix(HEAD).replace("go0", "go1")
    for i in range(2, 12 * n):
        text += (
            f"fn go{i}<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {{\n"
            f"    return go{i - 1}(x) + go{i - 2}(x)\n}}\n"
        )
    return text


def statements(n: int) -> str:
    """One long body of lets, each of the one before."""
    lets = "".join(f"    let y{i + 1} = y{i} + x\n" for i in range(40 * n))
    return (
        f"{HEAD}fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {{\n    let y0 = x\n{lets}"
        f"    return y{40 * n}\n}}\n"
    )


def reassigned(n: int) -> str:
    """One long body of assignments to a var."""
    return (
        f"{HEAD}fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {{\n    var y = x\n"
        + "    y = y * x\n" * (40 * n)
        + "    return y\n}\n"
    )


def clauses(n: int) -> str:
    """A function with n generics in a chain of where clauses, and uses of each."""
    names = [f"A{i}" for i in range(2 * n)]
    where = ",\n    ".join(f"{b} % {a} == 0,\n    {a} > 0" for a, b in pairwise(names))
    params = "".join(f"    x{i}: Tensor[{b}; f32],\n" for i, b in enumerate(names[1:]))
    lets = "".join(
        f"    let _y{i} = reshape(x{i}, [{b} / {a}, {a}])\n"
        for i, (a, b) in enumerate(pairwise(names))
    )
    generics = ", ".join(f"{name}: Dim" for name in names)
    head = f"{HEAD}fn f<{generics}>(\n{params}) -> f32\nwhere\n    {where}\n"
    return f"{head}{{\n{lets}    return 1.0\n}}\n"


def separate_clauses(n: int) -> str:
    """A function with n where clauses that have nothing to do with each other."""
    where = ",\n    ".join(f"A{i} % {i % 5 + 2} == 0" for i in range(4 * n))
    generics = ", ".join(f"A{i}: Dim" for i in range(4 * n))
    params = "".join(f"    x{i}: Tensor[A{i}; f32],\n" for i in range(4 * n))
    lets = "".join(
        f"    let _y{i} = reshape(x{i}, [A{i} / {i % 5 + 2}, {i % 5 + 2}])\n" for i in range(4 * n)
    )
    head = f"{HEAD}fn f<{generics}>(\n{params}) -> f32\nwhere\n    {where}\n"
    return f"{head}{{\n{lets}    return 1.0\n}}\n"


def called_with_clauses(n: int) -> str:
    """One function with a few clauses, called n times by one whose clauses prove them."""
    text = (
        "fn g<A: Dim, B: Dim>(x: Tensor[A; f32]) -> Tensor[A / B, B; f32]\n"
        "where A % B == 0, B > 0 {\n    return reshape(x, [A / B, B])\n}\n"
    )
    body = "".join(f"    let _y{i} = g<A, B>(x)\n" for i in range(10 * n))
    return (
        f"{HEAD}{text}fn f<A: Dim, B: Dim>(x: Tensor[A; f32]) -> f32\n"
        f"where A % B == 0, B > 0 {{\n{body}    return 1.0\n}}\n"
    )


def members(n: int) -> str:
    """One block with many members, all used by one entry."""
    listed = "".join(f"    param w{i}: Tensor[H; f32]\n" for i in range(20 * n))
    lets = "".join(f"        y = y * w{i}\n" for i in range(20 * n))
    return (
        f"{HEAD}pub block B<H: Dim> {{\n{listed}\n    entry f(x: Tensor[H; f32]) -> "
        f"Tensor[H; f32] {{\n        var y = x\n{lets}        return y\n    }}\n}}\n"
    )


def blocks(n: int) -> str:
    """Blocks that each hold the one before, and call it."""
    text = HEAD + (
        "pub block B0<H: Dim> {\n    param w: Tensor[H; f32]\n\n"
        "    pub fn f(x: Tensor[H; f32]) -> Tensor[H; f32] {\n        return x * w\n    }\n}\n"
    )
    for i in range(1, 6 * n):
        text += (
            f"pub block B{i}<H: Dim> {{\n    sub one: B{i - 1}<H>\n    param w: Tensor[H; f32]\n\n"
            "    pub fn f(x: Tensor[H; f32]) -> Tensor[H; f32] {\n"
            "        return one.f(x) * w\n    }\n}\n"
        )
    return text


def states(n: int) -> str:
    """A block whose methods write state and call each other."""
    listed = "".join(f"    state s{i}: f32\n" for i in range(4 * n))
    methods = "".join(
        f"    fn go{i}(x: f32) -> f32 {{\n        s{i} = x\n"
        f"        return s{i}{f' + go{i - 1}(x)' if i else ''}\n    }}\n"
        for i in range(4 * n)
    )
    entry = f"    entry run(x: f32) -> f32 {{\n        return go{4 * n - 1}(x)\n    }}\n"
    return f"{HEAD}block B {{\n{listed}\n{methods}{entry}}}\n"


def wide(n: int) -> str:
    """One long expression: a call with many arguments in a deep, balanced sum."""

    def total(count: int) -> str:
        return "x" if count == 1 else f"({total(count // 2)} + {total(count - count // 2)})"

    head = f"{HEAD}fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {{\n"
    return f"{head}    return {total(60 * n)}\n}}\n"


def chained(n: int) -> str:
    """Sums as long as they may be."""
    line = "    let _y{i} = " + " + ".join(["x"] * 100) + "\n"
    body = "".join(line.format(i=i) for i in range(n))
    return f"{HEAD}fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {{\n{body}    return x\n}}\n"


def index_let(n: int) -> str:
    """One long indexed let, with sums inside."""

    def total(count: int, at: int) -> str:
        if count == 1:
            return "x[i, j]" if at % 3 else "sum[k] x[i, k] * x[k, j]"
        return f"({total(count // 2, at)} + {total(count - count // 2, at + 1)})"

    return (
        f"{HEAD}fn f<N: Dim>(x: Tensor[N, N; f32]) -> Tensor[N, N; f32] {{\n"
        f"    let y[i, j] = {total(30 * n, 0)}\n    return y\n}}\n"
    )


def long_dims(n: int) -> str:
    """Dimensions that are long sums: `A0 + A1 + ...`, cut apart again by slices."""
    names = [f"A{i}" for i in range(3 * n)]
    generics = ", ".join(f"{name}: Dim" for name in names)
    total = " + ".join(names)
    parts = "".join(
        f"    let _y{i} = x[{' + '.join(names[:i]) or '0'}:{' + '.join(names[: i + 1])}]\n"
        for i in range(0, len(names), max(1, len(names) // 8))
    )
    return f"{HEAD}fn f<{generics}>(x: Tensor[{total}; f32]) -> f32 {{\n{parts}    return 1.0\n}}\n"


def mistakes(n: int) -> str:
    """A mistake in each of many functions."""
    return HEAD + "".join(
        f"fn go{i}<N: Dim>(x: Tensor[N; f32], y: Tensor[N + 1; f32]) -> Tensor[N; f32] {{\n"
        f"    return x + y + absent{i}\n}}\n"
        for i in range(6 * n)
    )


def unknown_names(n: int) -> str:
    """Unknown names, each near to many others."""
    lets = "".join(f"    let value{i} = x\n    let _z{i} = valve{i}\n" for i in range(8 * n))
    return f"{HEAD}fn f(x: f32) -> f32 {{\n{lets}    return x\n}}\n"


def comments(n: int) -> str:
    """Comments, documentation and strange text between functions."""
    return HEAD + "".join(
        f"// a comment\n/* one /* in */ another */\n/// What go{i} is.\n/// More of it.\n"
        f"fn go{i}() -> f32 {{\n    return {i}.0 // π\n}}\n"
        for i in range(25 * n)
    )


def structs(n: int) -> str:
    """A struct with many fields, made and read."""
    fields = "".join(f"    a{i}: f32\n" for i in range(20 * n))
    args = ", ".join(f"a{i} = x" for i in range(20 * n))
    reads = "".join(f"    let _y{i} = s.a{i}\n" for i in range(20 * n))
    return (
        f"{HEAD}struct S {{\n{fields}}}\nfn f(x: f32) -> f32 {{\n    let s = S({args})\n{reads}"
        "    return x\n}\n"
    )


def matches(n: int) -> str:
    """An enum with many variants, matched."""
    names = [f"V{i}" for i in range(12 * n)]
    arms = "".join(f"        {name} => {i}.0\n" for i, name in enumerate(names))
    return (
        f"{HEAD}enum E {{ {', '.join(names)} }}\nfn f(e: E) -> f32 {{\n"
        f"    return match e {{\n{arms}    }}\n}}\n"
    )


def consts(n: int) -> str:
    """Constants, each of the one before."""
    listed = "".join(f"const C{i + 1} = C{i} + 1\n" for i in range(20 * n))
    use = f"fn f(x: Tensor[C{20 * n}; f32]) -> f32 {{\n    return x[0]\n}}\n"
    return f"{HEAD}const C0 = 1\n{listed}{use}"


CURVES: dict[str, Callable[[int], str]] = {
    f.__name__: f
    for f in (
        repeated,
        calls,
        statements,
        reassigned,
        clauses,
        separate_clauses,
        called_with_clauses,
        members,
        blocks,
        states,
        wide,
        chained,
        index_let,
        long_dims,
        mistakes,
        unknown_names,
        comments,
        structs,
        matches,
        consts,
    )
}


def modules(n: int, folder: Path, chain: bool) -> Path:
    """A package of many modules, each importing the one before (or all imported by one)."""
    (folder / "src").mkdir(parents=True)
    (folder / "linnet.toml").write_text(
        '[package]\nname = "m"\nversion = "1"\nlanguage = "0.1"\n', encoding="utf-8"
    )
    uses, total = "", "x"
    for i in range(4 * n):
        before = f"use crate.m{i - 1}::{{go{i - 1}}}\n" if chain and i else ""
        value = f"go{i - 1}(x)" if before else "x"
        text = (
            f"module m.m{i}\n{before}pub fn go{i}(x: f32) -> f32 {{\n    return {value} + 1.0\n}}\n"
        )
        (folder / f"src/m{i}.linnet").write_text(text, encoding="utf-8")
        uses += f"use crate.m{i}::{{go{i} as _go{i}}}\n"
    (folder / "src/lib.linnet").write_text(
        f"module m\n{uses}pub fn f(x: f32) -> f32 {{\n    return {total}\n}}\n", encoding="utf-8"
    )
    return folder


# ---------------------------------------------------------------- measuring


def seconds(run: Callable[[], object]) -> float:
    """Processor time of the best of three runs, each of which starts with nothing remembered."""
    best = float("inf")
    for _ in range(3):
        forget()
        gc.collect()
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
        if best > 2:
            break
    return best


def forget() -> None:
    """Empty every cache of Linnet's functions; the larger texts would find them full."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "linnet":
            for value in vars(module).values():
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()


def curve(name: str, base: int) -> tuple[list[float], int]:
    """Seconds at each step, and the bytes of the longest input."""
    times: list[float] = []
    size = 0
    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            if name in ("module_chain", "module_star"):
                place = modules(step * base, Path(folder) / str(step), name == "module_chain")
                size = sum(f.stat().st_size for f in place.rglob("*.linnet"))
                times.append(seconds(lambda place=place: check(Workspace(), place)))  # type: ignore[misc]
            else:
                text = CURVES[name](step * base)
                size = len(text)
                times.append(seconds(lambda text=text: check_text(text)))  # type: ignore[misc]
    return times, size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="the ten costliest functions")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these curves alone")
    parser.add_argument("--base", type=int, default=16, help="the size of one step")
    args = parser.parse_args()
    if not args.only:
        per_thousand_lines(args.profile)
    steep: list[str] = []
    print(f"{'curve':22}{''.join(f'{s:>8}x' for s in STEPS)}   ratio     KB   s per KB")
    for name in args.only or [*CURVES, "module_chain", "module_star"]:
        times, size = curve(name, args.base)
        ratio = times[-1] / max(times[-2], 1e-4)
        if ratio > LIMIT and times[-1] > 0.1:
            steep.append(name)
        shown = "".join(f"{t:9.3f}" for t in times)
        mark = "  steep" if name in steep else ""
        print(
            f"{name:22}{shown}{ratio:8.2f}{size / 1000:7.0f}{times[-1] / size * 1000:11.4f}{mark}"
        )
    return 1 if steep else 0


if __name__ == "__main__":
    raise SystemExit(main())
