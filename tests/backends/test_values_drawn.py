"""Drawn programs of structs, loops and state: the reference and PyTorch are what Python is.

Each statement is drawn twice, in Linnet and in Python over NumPy, whose values nothing overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace as Record
from typing import Any

import numpy as np
import pytest

from backends.common import agree, assert_close, flat, lowered
from linnet import reference

N = 2
HEAD = """
module m
struct P<N: Dim> {
    l: Tensor[N; f32]
    r: (f32, i64)
    o: f32?
}
struct Q<N: Dim> {
    p: P<N>
    t: (P<N>, bool)
}
fn turned<N: Dim>(p: P<N>, by: f32 = 0.5) -> (P<N>, f32) {
    let (f, i) = p.r
    let f_1 = match p.o {
        some(y) => y * 0.5 + f * 0.25
        none => by
    }
    return (P(o = some(f), r = (f_1, i + 1), l = p.l * by), f_1)
}
fn wrapped<N: Dim>(p: P<N>, b: bool) -> Q<N> {
    let (other, _) = turned(p)
    return Q(t = (other, b), p = p)
}
block Cell<N: Dim>
where N > 1 {
    state s: Tensor[N; f32]
    state k: i64
    pub fn up(x: f32) -> P<N> {
        let before = s
        s = s * 0.5 + fill<f32>([N], x)
        k = k + 1
        return P(l = before, o = some(x), r = (s[0], k))
    }
    pub fn trade(t: Tensor[N; f32]) -> Tensor[N; f32] {
        let before = s
        s = t
        return before
    }
    pub fn rows(x: f32) -> Tensor[2, N; f32] {
        return for i in 0..2 {
            s = s * 0.5 + x
            yield s
        }
    }
}
pub block Root<N: Dim>
where N > 1 {
    sub c: Cell<N>
    sub cs: [Cell<N>; 2]
    state a: Tensor[N; f32]
    state b: Tensor[N; f32]
    state n: i64
    pub entry main<K: Dim, L: Dim>(
        x: f32,
        v: Tensor[K, N; f32],
        l: Tensor[L; bool],
        q: Q<N>,
    ) -> (
"""
Pair = tuple[str, str]


def f32(x: Any) -> Any:
    return np.float32(x)


def stack(rows: list[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    return np.stack(rows).astype(dtype) if rows else np.zeros((0, *shape), dtype)


def turned(p: Record, by: float = 0.5) -> tuple[Record, Any]:
    f, i = p.r
    f_1 = f * f32(0.25) + p.o * f32(0.5) if p.o is not None else f32(by)
    return Record(l=p.l * f32(by), r=(f_1, i + 1), o=f), f_1


def wrapped(p: Record, b: bool) -> Record:
    return Record(p=p, t=(turned(p)[0], b))


class Cell:
    def __init__(self) -> None:
        self.s, self.k = np.zeros(N, np.float32), np.int64(0)

    def up(self, x: Any) -> Record:
        before = self.s
        self.s, self.k = self.s * f32(0.5) + x, self.k + 1
        return Record(l=before, o=x, r=(self.s[0], self.k))

    def trade(self, t: Any) -> Any:
        before, self.s = self.s, t
        return before

    def rows(self, x: Any) -> Any:
        rows = []
        for _ in range(2):
            self.s = self.s * f32(0.5) + x
            rows.append(self.s)
        return np.stack(rows)


class State:
    def __init__(self) -> None:
        self.c, self.cs = Cell(), [Cell(), Cell()]
        self.a = self.b = np.zeros(N, np.float32)
        self.n = np.int64(0)


# What a loop stacks: the element's type in Linnet, its shape, its dtype, and how it is folded to
# an element of the same kind again.
YIELDS: dict[str, tuple[str, str, str]] = {
    "V": ("f32", "(N,)", "np.float32"),
    "F": ("f32", "()", "np.float32"),
    "I": ("i64", "()", "np.int64"),
    "B": ("bool", "()", "np.bool_"),
    "H": ("f16", "()", "np.float16"),
    "J": ("i8", "()", "np.int8"),
}
TYPES = {"V": "Tensor[N; f32]", "F": "f32", "I": "i64", "B": "bool", "P": "P<N>", "Q": "Q<N>"}
RANGES = [("0", "K"), ("0", "L"), ("0", "N"), ("1", "3"), ("2", "2"), ("0", "1"), ("K", "K + 1")]


class Drawn:
    """One entry, in both languages; `known` are the values in scope, by kind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0
        self.known: dict[str, list[Pair]] = {
            "V": [(t, f"S.{t}") for t in ("a", "b", "c.s", "cs[0].s", "cs[1].s")]
            + [("kept", "kept"), ("other", "other"), ("q.p.l", "q.p.l")],
            "F": [("x", "x"), ("total", "total")],
            "I": [("n", "S.n"), ("c.k", "S.c.k"), ("turns", "turns")],
            "B": [("flag", "flag")],
            "P": [("q.p", "q.p"), ("pair", "pair")],
            "Q": [("q", "q")],
        }
        self.stacks: list[tuple[str, str, str]] = []  # name, kind, size
        self.rows: list[str] = []  # counters of `0..K`
        self.lines: list[tuple[int, str, str]] = []
        self.depth = 0

    # ------------------------------------------------ text

    def add(self, linnet: str, python: str) -> None:
        self.lines.append((self.depth, linnet, python))

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind.lower()}_{self.count}"

    def texts(self) -> Pair:
        self.add("var total = x", "total = x")
        self.add("var kept = fill<f32>([N], x)", "kept = np.full(N, x, np.float32)")
        self.add("var other = q.p.l", "other = q.p.l")
        self.add("var turns = 0", "turns = np.int64(0)")
        self.add("var flag = x > 0.0", "flag = x > 0")
        self.add("var pair = q.p", "pair = q.p")
        for _ in range(self.random.randint(4, 9)):
            self.statement(2)
        kinds = [k for k in TYPES for _ in (0, 1)]
        given = [(TYPES[k], *self.expr(k, 1)) for k in kinds]
        for name, kind, size in self.stacks[-6:]:
            dtype = YIELDS[kind][0]
            shape = f"{size}, N" if kind == "V" else size
            given.append((f"Tensor[{shape}; {dtype}]", name, name))
        head = HEAD + ",\n".join(f"        {t}" for t, _, _ in given) + ") {\n"
        pad = "    "
        linnet = "".join(f"{pad * (2 + d)}{a}\n" for d, a, _ in self.lines if a)
        python = "".join(f"{pad * (1 + d)}{p}\n" for d, _, p in self.lines if p)
        linnet += f"{pad * 2}return ({', '.join(a for _, a, _ in given)})\n    }}\n}}\n"
        python += f"{pad}return ({', '.join(p for _, _, p in given)})\n"
        return head + linnet, "def main(S, x, v, q, K, L):\n" + python

    # ------------------------------------------------ expressions

    def expr(self, kind: str, depth: int) -> Pair:
        r = self.random
        if depth == 0 or r.random() < 0.4:
            return r.choice(self.known[kind])
        form = r.randrange(5)
        if form == 0 and kind != "B":
            (c, d), (a, b), (e, f) = (self.expr(k, depth - 1) for k in ("B", kind, kind))
            return f"(if {c} {{ {a} }} else {{ {e} }})", f"({b} if {d} else {f})"
        if form == 1 and kind in "VFI":
            p, o = self.random.choice(self.known["P"])
            (a, b), (e, f), name = self.expr(kind, 0), self.expr("F", 0), self.fresh("y")
            match kind:
                case "V":
                    some, there = f"{a} * {name} * 0.25", f"{b} * o * f32(0.25)"
                case "F":
                    some, there = f"{name} * 0.5 + {e} * 0.25", f"o * f32(0.5) + {f} * f32(0.25)"
                case _:
                    some, there = f"{a} + 1", f"{b} + 1"
            there = f"(lambda o: {there})({o}.o) if {o}.o is not None else {b}"
            return f"(match {p}.o {{ some({name}) => {some} none => {a} }})", f"({there})"
        return getattr(self, f"expr_{kind}")(depth - 1)

    def expr_V(self, depth: int) -> Pair:
        r = self.random
        match r.randrange(5):
            case 0:
                (a, b) = self.expr("F", depth)
                return f"fill<f32>([N], {a})", f"np.full(N, {b}, np.float32)"
            case 1 if self.rows:
                return f"v[{(i := r.choice(self.rows))}, ...]", f"v[{i}]"
            case 2:
                (a, b) = self.expr("P", depth)
                return (f"{a}.l", f"{b}.l") if "(" not in a else self.expr("V", 0)
            case _:
                (a, b), (c, d) = self.expr("V", depth), self.expr("V", depth)
                return f"({a} * 0.5 + {c} * 0.25)", f"({b} * f32(0.5) + {d} * f32(0.25))"

    def expr_F(self, depth: int) -> Pair:
        r = self.random
        if r.random() < 0.5:
            (a, b), (c, d) = self.expr("F", depth), self.expr("F", depth)
            return f"({a} * 0.5 + {c} * 0.25)", f"({b} * f32(0.5) + {d} * f32(0.25))"
        (a, b) = r.choice(self.known["V"])
        if r.random() < 0.5:
            return f"{a}[1]", f"{b}[1]"
        (c, d) = self.expr("I", depth)
        return f"{a}[{c}]", f"{b}[np.clip({d}, 0, N - 1)]"

    def expr_I(self, depth: int) -> Pair:
        (a, b), (c, d) = self.expr("I", depth), self.expr("I", depth)
        if self.random.random() < 0.3:
            return str(k := self.random.randrange(2)), f"np.int64({k})"
        return f"({a} + {c}) % 7", f"({b} + {d}) % 7"

    def expr_B(self, depth: int) -> Pair:
        match self.random.randrange(3):
            case 0:
                (a, b), (c, d) = self.expr("F", depth), self.expr("F", depth)
                return f"({a} > {c})", f"({b} > {d})"
            case 1:
                (a, b) = self.expr("I", depth)
                return f"(({a}) % 2 == 0)", f"(({b}) % 2 == 0)"
            case _:
                (a, b), (c, d) = self.expr("B", depth), self.expr("B", depth)
                word = self.random.choice([("||", "or"), ("&&", "and")])
                return f"({a} {word[0]} !{c})", f"({b} {word[1]} not {d})"

    def expr_P(self, depth: int) -> Pair:
        (a, b), (c, d), (e, f) = (self.expr(k, depth) for k in "VFI")
        # Whether a field is there is known before a program runs: branches and turns agree.
        g, h = self.expr("F", depth)
        some, there = f"some({g})", h
        fields = [f"l = {a}", f"r = ({c}, {e})", f"o = {some}"]
        self.random.shuffle(fields)
        return f"P<N>({', '.join(fields)})", f"Record(l={b}, r=({d}, {f}), o={there})"

    def expr_Q(self, depth: int) -> Pair:
        (a, b), (c, d) = self.expr("P", depth), self.expr("B", depth)
        return f"wrapped({a}, {c})", f"wrapped({b}, {d})"

    # ------------------------------------------------ statements

    def statement(self, depth: int) -> None:
        forms: list[Callable[[int], None]] = [self.keep, self.assign, self.assign, self.store]
        forms += [self.method, self.method, self.call, self.fold, self.swap, self.chosen]
        forms += [self.elements]
        if depth:
            forms += [self.loop, self.stacked, self.stacked, self.turn, self.over, self.filled]
        self.random.choice(forms)(depth)

    def keep(self, depth: int) -> None:
        kind = self.random.choice("VVFIBPPQ")
        (a, b), name = self.expr(kind, 2), self.fresh(kind)
        self.add(f"let {name} = {a}", f"{name} = {b}")
        self.known[kind].append((name, name))
        if kind == "Q":
            p, t = self.fresh("p"), self.fresh("b")
            self.add(f"let ({p}, {t}) = {name}.t", f"{p}, {t} = {name}.t")
            self.known["P"] += [(p, p), (f"{name}.p", f"{name}.p")]
            self.known["B"].append((t, t))
        if kind == "P":
            f, i = self.fresh("f"), self.fresh("i")
            self.add(f"let ({f}, {i}) = {name}.r", f"{f}, {i} = {name}.r")
            self.known["F"].append((f, f))
            self.known["I"].append((i, i))
            self.known["V"].append((f"{name}.l", f"{name}.l"))

    def assign(self, depth: int) -> None:
        variables = {"V": "kept", "F": "total", "I": "turns", "B": "flag", "P": "pair"}
        kind = self.random.choice("VVFIBP")
        a, b = self.expr(kind, 2)
        name = "other" if kind == "V" and self.random.random() < 0.5 else variables[kind]
        self.add(f"{name} = {a}", f"{name} = {b}")

    def store(self, depth: int) -> None:
        if self.random.random() < 0.25:
            a, b = self.expr("I", 1)
            self.add(f"n = {a}", f"S.n = np.int64({b})")
            return
        (a, b), name = self.expr("V", 1), self.random.choice("ab")
        self.add(f"{name} = {a}", f"S.{name} = {b}")

    def swap(self, depth: int) -> None:
        one, two = self.random.choice([("kept", "other"), ("a", "b"), ("a", "kept")])
        t = self.fresh("t")
        p, q = (f"S.{x}" if len(x) == 1 else x for x in (one, two))
        self.add(f"let {t} = {one}", f"{t} = {p}")
        self.add(f"{one} = {two}", f"{p} = {q}")
        self.add(f"{two} = {t}", f"{q} = {t}")

    def cell(self) -> Pair:
        cells = [("c", "S.c"), ("cs[0]", "S.cs[0]"), ("cs[1]", "S.cs[1]")]
        inner = [t for t, _ in self.known["V"] if t.startswith("cell")]
        return self.random.choice(cells + [(t[:-2], t[:-2]) for t in inner])

    def method(self, depth: int) -> None:
        cell, own = self.cell()
        match self.random.randrange(3):
            case 0:
                (a, b), name = self.expr("F", 1), self.fresh("p")
                self.add(f"let {name} = {cell}.up({a})", f"{name} = {own}.up({b})")
                self.known["P"].append((name, name))
                self.known["V"].append((f"{name}.l", f"{name}.l"))
            case 1:
                (a, b), name = self.expr("V", 1), self.fresh("v")
                self.add(f"let {name} = {cell}.trade({a})", f"{name} = {own}.trade({b})")
                self.known["V"].append((name, name))
            case _:
                (a, b), name = self.expr("F", 1), self.fresh("m")
                self.add(f"let {name} = {cell}.rows({a})", f"{name} = {own}.rows({b})")
                self.stacks.append((name, "V", "2"))

    def chosen(self, depth: int) -> None:
        """A branch that writes state, which the other does not."""
        cell, own = self.cell()
        (c, d), (a, b), (e, f) = self.expr("B", 1), self.expr("V", 1), self.expr("V", 1)
        name = self.fresh("v")
        text = f"let {name} = if {c} {{ {cell}.trade({a}) }} else {{ {e} }}"
        self.add(text, f"{name} = {own}.trade({b}) if {d} else {f}")
        self.known["V"].append((name, name))

    def call(self, depth: int) -> None:
        (a, b), p, f = self.expr("P", 1), self.fresh("p"), self.fresh("f")
        if self.random.random() < 0.3:
            (c, d), (e, g) = self.expr("V", 1), self.expr("F", 1)
            a = f"P(r = ({e}, turns), o = none, l = {c})"
            b = f"Record(l={d}, r=({g}, turns), o=None)"
        by = self.random.choice(["", ", by = 0.25"])
        self.add(f"let ({p}, {f}) = turned({a}{by})", f"{p}, {f} = turned({b}{by})")
        self.known["P"].append((p, p))
        self.known["F"].append((f, f))

    def elements(self, depth: int) -> None:
        a, b = self.expr("F", 1)
        (c, d), (e, f) = (self.random.choice(self.known["V"]) for _ in "ab")
        j, name = self.fresh("j"), self.fresh("v")
        self.add(
            f"let {name}[{j}] = {c}[{j}] * {a} * 0.25 + {e}[{j}] * 0.5",
            f"{name} = {d} * {b} * f32(0.25) + {f} * f32(0.5)",
        )
        self.known["V"].append((name, name))

    def fold(self, depth: int) -> None:
        """A stack is read: summed, or at a place that it has."""
        if not self.stacks:
            return
        name, kind, size = self.random.choice(self.stacks)
        to = {"H": "F", "J": "I"}.get(kind, kind)
        out, i, j = self.fresh(to), self.fresh("i"), self.fresh("j")
        at = self.random.random() < 0.5 and size in ("2", "1", "N")
        match kind:
            case "V" if at:
                text = f"let {out} = {name}[0, ...]", f"{out} = {name}[0]"
            case "V":
                text = (
                    f"let {out}[{j}] = (sum[{i}] {name}[{i}, {j}]) * 0.125",
                    f"{out} = {name}.sum(0, dtype=np.float32) * f32(0.125)",
                )
            case "F" if at:
                text = f"let {out} = {name}[0]", f"{out} = {name}[0]"
            case "F":
                text = (
                    f"let {out} = (sum[{i}] {name}[{i}]) * 0.125",
                    f"{out} = {name}.sum(dtype=np.float32) * f32(0.125)",
                )
            case "H":
                text = (
                    f"let {out} = (sum[{i}] cast<f32>({name}[{i}])) * 0.125",
                    f"{out} = {name}.astype(np.float32).sum(dtype=np.float32) * f32(0.125)",
                )
            case "I" | "J":
                text = (
                    f"let {out} = (sum[{i}] cast<i64>({name}[{i}])) % 5",
                    f"{out} = np.fmod({name}.astype(np.int64).sum(), 5)",
                )
            case _:
                text = f"let {out} = any[{i}] {name}[{i}]", f"{out} = bool({name}.any())"
        self.add(*text)
        self.known[to].append((out, out))

    # ------------------------------------------------ loops

    def body(self, count: int, depth: int, last: Callable[[], None]) -> None:
        """What is named inside ends with it."""
        outer = {k: list(v) for k, v in self.known.items()}, list(self.stacks), list(self.rows)
        self.depth += 1
        for _ in range(count):
            self.statement(depth)
        last()
        self.depth -= 1
        self.known, self.stacks, self.rows = outer

    def inside(self, pair: Pair, kind: str, depth: int, last: Callable[[], None]) -> None:
        self.known[kind].append(pair)
        self.body(self.random.randint(0, 3), depth, last)
        self.known[kind].remove(pair)

    def loop(self, depth: int) -> None:
        word = self.random.choice(["for", "for", "static for"])
        self.counted(word, *self.random.choice(RANGES), depth)

    def counted(
        self,
        head: str,
        start: str,
        stop: str,
        depth: int,
        last: Callable[[], None] | None = None,
    ) -> None:
        """A counted loop; without `last` it counts its turns at the end."""
        i = self.fresh("i")
        rows = f"for {i} in map(np.int64, range({start}, {stop})):"
        self.add(f"{head} {i} in {start}..{stop} {{", rows)
        if (start, stop) == ("0", "K"):
            self.rows.append(i)
        step = f"turns = turns + {i}"
        self.inside((i, i), "I", depth - 1, last or (lambda: self.add(step, step)))
        self.rows = [r for r in self.rows if r != i]
        self.add("}", "")

    def stacked(self, depth: int) -> None:
        start, stop = self.random.choice(RANGES)
        size = {"3": "2", "2": "0", "K + 1": "1", "1": "1"}.get(stop, stop)
        kinds = [self.random.choice("VVFIBHJ") for _ in range(self.random.choice([1, 1, 2, 3]))]
        names = [self.fresh("m") for _ in kinds]
        left = names[0] if len(names) == 1 else f"({', '.join(names)})"
        word = "var" if len(names) == 1 and self.random.random() < 0.2 else "let"
        for name in names:
            self.add("", f"{name}_ = []")

        def last() -> None:
            values = [self.yielded(k) for k in kinds]
            text = ", ".join(a for a, _ in values)
            python = "; ".join(f"{n}_.append({b})" for n, (_, b) in zip(names, values, strict=True))
            self.add(f"yield {text}" if len(names) == 1 else f"yield ({text})", python)

        self.counted(f"{word} {left} = for", start, stop, depth, last)
        for name, kind in zip(names, kinds, strict=True):
            _, shape, dtype = YIELDS[kind]
            self.add("", f"{name} = stack({name}_, {shape}, {dtype})")
            self.stacks.append((name, kind, size))

    def yielded(self, kind: str) -> Pair:
        match kind:
            case "H":
                a, b = self.expr("F", 1)
                return f"cast<f16>({a})", f"np.float16({b})"
            case "J":
                a, b = self.expr("I", 1)
                return f"cast<i8>({a})", f"np.int8({b})"
            case _:
                return self.expr(kind, 1)

    def filled(self, depth: int) -> None:
        """A variable or a state takes what a loop stacks."""
        name, rows = self.random.choice(["a", "b", "kept", "other"]), self.fresh("m")
        self.add("", f"{rows} = []")

        def last() -> None:
            a, b = self.expr("F", 1)
            self.add(f"yield {a}", f"{rows}.append({b})")

        self.counted(f"{name} = for", "0", "N", depth, last)
        self.add("", f"{name if len(name) > 1 else f'S.{name}'} = np.stack({rows})")

    def turn(self, depth: int) -> None:
        i = self.fresh("n")
        self.add(f"var {i} = 0", f"{i} = np.int64(0)")
        self.add(f"while {i} < 2 {{", f"while {i} < 2:")
        self.inside((i, i), "I", depth - 1, lambda: self.add(f"{i} = {i} + 1", f"{i} = {i} + 1"))
        self.add("}", "")

    def over(self, depth: int) -> None:
        cell = self.fresh("cell")
        self.add(f"static for {cell} in cs {{", f"for {cell} in S.cs:")

        def last() -> None:
            a, b = self.expr("V", 1)
            self.add(f"kept = {cell}.trade({a})", f"kept = {cell}.trade({b})")

        self.inside((f"{cell}.s", f"{cell}.s"), "V", depth - 1, last)
        self.add("}", "")


def leaves(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Record):
        return leaves(tuple(vars(value)[f] for f in ("l", "r", "o", "p", "t") if f in vars(value)))
    return [x for v in value for x in leaves(v)] if isinstance(value, tuple) else [value]


def mapping(value: Any) -> Any:
    if isinstance(value, Record):
        return {k: mapping(v) for k, v in vars(value).items() if v is not None}
    return tuple(map(mapping, value)) if isinstance(value, tuple) else value


def inputs(seed: int) -> list[tuple[Any, Any, Any, Record]]:
    """What `main` is called with, one call after another, with no turns and with one."""
    random = np.random.default_rng(seed)

    def pair(at: int) -> Record:
        values = random.uniform(-1, 1, N + 2).astype(np.float32)
        return Record(l=values[:N], r=(values[N], np.int64(at)), o=values[N + 1])

    return [
        (
            f32(random.uniform(-1, 1)),
            random.uniform(-1, 1, (rows, N)).astype(np.float32),
            np.ones(more, bool),
            Record(p=pair(rows), t=(pair(more), bool(rows))),
        )
        for rows, more in ((2, 1), (0, 3), (1, 0))
    ]


def check(seed: int) -> None:
    text, python = Drawn(seed).texts()
    space: dict[str, Any] = {"np": np, "f32": f32, "stack": stack, "N": N, "Record": Record}
    space |= {"turned": turned, "wrapped": wrapped}
    exec(python, space)
    try:
        program = lowered(text, generics={"N": N})
        own, state, calls = State(), {}, []
        for x, v, flags, q in inputs(seed):
            wanted = leaves(space["main"](own, x, v, q, len(v), len(flags)))
            given = [x, v, flags, mapping(q)]
            found = flat(reference.evaluate(program, "main", given, {}, state))
            assert len(found) == len(wanted)
            for a, b in zip(wanted, found, strict=True):
                assert_close(np.asarray(a), b, 1e-5, "Python")
            calls.append(("main", given))
        agree(program, calls)
    except Exception as error:
        raise AssertionError(f"seed {seed}:\n{text}\n{python}") from error


@pytest.mark.parametrize("seed", range(4))
def test_drawn_values(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_more_drawn_values(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
