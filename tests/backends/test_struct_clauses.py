"""What structs promise, lowered: functions know the clauses of the parts that are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.common import agree, lowered
from linnet.core.passes import optimize
from linnet.core.verify import verify
from linnet.diagnostics import PlanError
from linnet.reference import evaluate

F = np.float32
SOURCE = """
module m

pub struct OverRows<B: Dim, S: Dim, Batch: Dim, MaxSeq: Dim>
where
    B == 1,
    S == Batch
{
    seen: Tensor[Batch, MaxSeq; bool]
}

pub struct Prefix<S: Dim, P: Dim, Rows: Dim>
where S == P + Rows {
    scale: f32
}

pub struct Pass<B: Dim, S: Dim, Batch: Dim, MaxSeq: Dim> {
    positions: Tensor[S; i32]
    rows: OverRows<B, S, Batch, MaxSeq>? = none
}

pub struct Step<B: Dim, S: Dim, Batch: Dim, MaxSeq: Dim> {
    how: (Pass<B, S, Batch, MaxSeq>, f32)
}

fn as_row<Batch: Dim, MaxSeq: Dim>(
    q: Tensor[1, Batch; f32],
    seen: Tensor[Batch, MaxSeq; bool],
) -> Tensor[1, Batch; f32] {
    let counts[b] = sum[m] cast<f32>(seen[b, m])
    return q + counts
}

fn parts<S: Dim, P: Dim, Rows: Dim>(x: Tensor[S; f32], p: Prefix<S, P, Rows>?) -> Tensor[S; f32] {
    return match p {
        some(found) => concat(x[0:P] * found.scale, x[P:P + Rows], axis = 0)
        none => x
    }
}

block Layer<Batch: Dim, MaxSeq: Dim> {
    param weight: f32
    state last: Tensor[Batch; f32]

    fn keep(q: Tensor[1, Batch; f32], seen: Tensor[Batch, MaxSeq; bool]) -> Tensor[1, Batch; f32] {
        let y = as_row(q, seen) + last
        last = reshape(y, [Batch])
        return y
    }

    pub fn forward<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        step: Step<B, S, Batch, MaxSeq>,
    ) -> Tensor[B, S; f32] {
        let (pass, by) = step.how
        let y: Tensor[B, S; f32] = match pass.rows {
            some(rows) => keep(q, rows.seen)
            none => q + cast<f32>(pass.positions)
        }
        return y * weight * by
    }
}

pub block Model<Batch: Dim, MaxSeq: Dim, Layers: Dim = 2> {
    sub layers: [Layer<Batch, MaxSeq>; Layers]

    fn run<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        pass: Pass<B, S, Batch, MaxSeq>,
    ) -> Tensor[B, S; f32] {
        var x = q
        static for layer in layers {
            x = layer.forward(x, Step(how = (pass, 2.0)))
        }
        return x
    }

    entry forward<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        pass: Pass<B, S, Batch, MaxSeq>,
    ) -> Tensor[B, S; f32] {
        return run(q, pass)
    }

    entry plain<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        positions: Tensor[S; i32],
    ) -> Tensor[B, S; f32] {
        return run(q, Pass(positions = positions))
    }

    entry rows(
        q: Tensor[1, Batch; f32],
        seen: Tensor[Batch, MaxSeq; bool],
    ) -> Tensor[1, Batch; f32] {
        let rows = OverRows<1, Batch, Batch, MaxSeq>(seen = seen)
        return run(q, Pass(positions = iota<i32>(Batch), rows = some(rows)))
    }

    entry split<P: Dim, Rows: Dim>(
        x: Tensor[P + Rows; f32],
        a: Tensor[P; f32],
    ) -> Tensor[P + Rows; f32] {
        let prefix = Prefix<P + Rows, P, Rows>(scale = 3.0)
        return parts(x, some(prefix)) + parts<P + Rows, P, Rows>(x, none)
    }
}
"""
Q = np.array([[1.0, 2.0, 3.0]], F)
SEEN = np.array([[True, True], [True, False], [False, False]])
WEIGHTS = [F(2.0), F(0.5)]


def program() -> Any:
    made = lowered(SOURCE, generics={"Batch": 3, "MaxSeq": 2})
    verify(made)
    return made


def test_what_is_there_decides_and_its_clauses_are_known() -> None:
    made = program()
    positions = np.arange(3, dtype=np.int32)
    agree(
        made,
        [
            ("plain", [Q, positions]),
            ("rows", [Q, SEEN]),
            ("forward", [Q, {"positions": positions, "rows": {"seen": SEEN}}]),
            ("rows", [Q, SEEN]),
            ("split", [np.arange(5, dtype=F), np.zeros(2, F)]),
        ],
    )
    functions = {f.name: f for f in made.functions.values()}
    with_rows, without = functions["Layer.forward"], functions["Layer.forward.2"]
    assert [str(f) for f in with_rows.facts] == ["B == 1", "S == 3"] and without.facts == ()
    assert with_rows.writes == ("last",) and without.writes == ()
    assert functions["parts.2"].facts == () != functions["parts"].facts


def test_an_entry_refuses_what_breaks_a_clause() -> None:
    made = program()
    given = {"positions": np.arange(2, dtype=np.int32), "rows": {"seen": SEEN}}
    with pytest.raises(PlanError) as caught:
        evaluate(made, "forward", [Q[:, :2], given], dict.fromkeys(["layers.*.weight"], WEIGHTS))
    assert str(caught.value) == (
        "forward requires S == 3, which does not hold with S = 2 from axis 1 of q"
    )


HEAD = """
module m

pub struct OverRows<B: Dim, S: Dim, Batch: Dim>
where
    B == 1,
    S == Batch
{
    seen: Tensor[Batch; bool]
}

pub struct Paged<S: Dim, Pages: Dim, Size: Dim>
where
    Size > 0,
    S == Pages * Size
{
    k: f32
}

pub struct Pass<B: Dim, S: Dim, Batch: Dim, Pages: Dim = 2, Size: Dim = 3> {
    rows: OverRows<B, S, Batch>? = none
    paged: Paged<S, Pages, Size>? = none
}

enum Mode { A, B }

fn row<Batch: Dim>(q: Tensor[1, Batch; f32], seen: Tensor[Batch; bool]) -> Tensor[1, Batch; f32] {
    return q + cast<f32>(seen)
}

fn pages<B: Dim, Pages: Dim, Size: Dim>(
    x: Tensor[B, Pages * Size; f32],
) -> Tensor[B, Pages, Size; f32] {
    return reshape(x, [B, Pages, Size])
}
"""
ENUM = """
pub block R<Batch: Dim> {
    fn f<B: Dim, S: Dim>(q: Tensor[B, S; f32], p: Pass<B, S, Batch>, m: Mode) -> Tensor[B, S; f32] {
        return match (p.rows, m) {
            (some(r), Mode.A) => row(q, r.seen)
            (some(r), Mode.B) => row(q * 2.0, r.seen)
            (none, Mode.A) => q
            (none, Mode.B) => q * 3.0
        }
    }

    entry a<B: Dim, S: Dim>(q: Tensor[B, S; f32], c: bool) -> Tensor[B, S; f32] {
        let m = if c { Mode.A } else { Mode.B }
        return f(q, Pass(), m)
    }

    entry b<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        seen: Tensor[Batch; bool],
        c: bool,
    ) -> Tensor[B, S; f32]
    where
        B == 1,
        S == Batch
    {
        let m = if c { Mode.A } else { Mode.B }
        return f(q, Pass(rows = some(OverRows(seen = seen))), m)
    }
}
"""
LOOP = """
pub block R<Batch: Dim> {
    fn f<B: Dim, S: Dim>(q: Tensor[B, S; f32], p: Pass<B, S, Batch>) -> Tensor[B, S; f32] {
        var x = q
        for i in 0..3 {
            x = match p.rows {
                some(r) => row(x, r.seen)
                none => x * 2.0
            }
        }
        var n: i32 = 0
        while n < 2 {
            let y: Tensor[B, S; f32] = match p.rows {
                some(r) => if n < 1 { row(x, r.seen) } else { x }
                none => x
            }
            x = y
            n = n + 1
        }
        let all = for i in 0..2 {
            yield match p.rows {
                some(r) => row(x, r.seen)
                none => x
            }
        }
        return match p.paged {
            some(pg) => reshape(pages<B, 2, 3>(x), [B, S]) * pg.k
            none => x + sum0(all)
        }
    }

    fn sum0<*S: Shape, N: Dim>(a: Tensor[N, *S; f32]) -> Tensor[*S; f32] {
        let y[*s] = sum[n] a[n, *s]
        return y
    }

    entry a<B: Dim, S: Dim>(q: Tensor[B, S; f32]) -> Tensor[B, S; f32] {
        return f(q, Pass())
    }

    entry b<B: Dim, S: Dim>(q: Tensor[B, S; f32], p: Pass<B, S, Batch>) -> Tensor[B, S; f32] {
        return f(q, p)
    }

    entry c(q: Tensor[1, 6; f32]) -> Tensor[1, 6; f32] {
        let p: Pass<1, 6, Batch> = Pass(paged = some(Paged(k = 2.0)))
        return f(q, p)
    }
}
"""
LOCAL = """
pub block R<Batch: Dim> {
    fn make<B: Dim, S: Dim>(q: Tensor[B, S; f32], p: Pass<B, S, Batch>) -> OverRows<B, S, Batch>? {
        return p.rows
    }

    fn wrap<B: Dim, S: Dim>(r: OverRows<B, S, Batch>) -> (Pass<B, S, Batch>, i32) {
        return (Pass(rows = some(r)), 1)
    }

    entry b(q: Tensor[1, Batch; f32], seen: Tensor[Batch; bool]) -> Tensor[1, Batch; f32] {
        let (p, n) = wrap(OverRows<1, Batch, Batch>(seen = seen))
        let one: Tensor[1, Batch; f32] = match make(q, p) {
            some(r) => row(q, r.seen)
            none => q
        }
        let y[b, s] = match p.rows {
            some(r) => one[b, s] + cast<f32>(r.seen[s])
            none => 0.0
        }
        return y
    }

    entry d<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        p: Pass<B, S, Batch>,
    ) -> (Tensor[B, S; f32], Pass<B, S, Batch>) {
        let r = make(q, p)
        let (y, pp): (Tensor[B, S; f32], (Pass<B, S, Batch>, i32)) = match r {
            some(r) => (row(q, r.seen), wrap(r))
            none => (q, (p, 1))
        }
        let (ppp, n) = pp
        let out: Tensor[B, S; f32] = match ppp.rows {
            some(r) => row(y, r.seen)
            none => y
        }
        return (out, ppp)
    }
}
"""
TRAIT = """
module m

pub struct OverRows<B: Dim, S: Dim, Batch: Dim>
where
    B == 1,
    S == Batch
{
    seen: Tensor[Batch; bool]
}

pub struct Pass<B: Dim, S: Dim, Batch: Dim> {
    positions: Tensor[S; f32]
    rows: OverRows<B, S, Batch>? = none
}

fn row<N: Dim>(q: Tensor[1, N; f32], seen: Tensor[N; bool]) -> Tensor[1, N; f32] {
    return q + cast<f32>(seen)
}

trait Decoder<Batch: Dim> {
    fn hidden<B: Dim, S: Dim>(q: Tensor[B, S; f32], pass: Pass<B, S, Batch>) -> Tensor[B, S; f32]

    pub entry forward<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        at: Tensor[S; f32],
    ) -> Tensor[B, S; f32] {
        return hidden(q, Pass(positions = at))
    }

    pub entry rows(
        q: Tensor[1, Batch; f32],
        at: Tensor[Batch; f32],
        seen: Tensor[Batch; bool],
    ) -> Tensor[1, Batch; f32] {
        return twice(q, Pass(positions = at, rows = some(OverRows(seen = seen))))
    }

    fn twice<B: Dim, S: Dim>(q: Tensor[B, S; f32], pass: Pass<B, S, Batch>) -> Tensor[B, S; f32] {
        let y: Tensor[B, S; f32] = match pass.rows {
            some(r) => row(hidden(q, pass), r.seen)
            none => hidden(q, pass)
        }
        return y + pass.positions
    }
}

block Layer<Rows: Dim> {
    param w: f32
    state last: Tensor[Rows; f32]

    fn keep(q: Tensor[1, Rows; f32], seen: Tensor[Rows; bool]) -> Tensor[1, Rows; f32] {
        let y = row(q, seen) + last
        last = reshape(y, [Rows])
        return y
    }

    pub fn forward<B: Dim, S: Dim>(
        q: Tensor[B, S; f32],
        pass: Pass<B, S, Rows>,
    ) -> Tensor[B, S; f32] {
        let y: Tensor[B, S; f32] = match pass.rows {
            some(r) => keep(q, r.seen)
            none => q
        }
        return y * w
    }
}

pub block Model<N: Dim> {
    impl Decoder<N>

    sub layers: [Layer<N>; 3]

    fn hidden<B: Dim, S: Dim>(q: Tensor[B, S; f32], pass: Pass<B, S, N>) -> Tensor[B, S; f32] {
        var x = q
        static for layer in layers {
            x = layer.forward(x, pass)
        }
        return x
    }
}
"""
NEVER = """
pub struct Sixteen<Batch: Dim>
where Batch == 16 {
    x: f32
}

pub block R<Batch: Dim> {
    fn f(q: Tensor[Batch; f32], s: Sixteen<Batch>?) -> Tensor[16; f32] {
        return match s {
            some(s) => q * s.x
            none => fill([16], 0.0)
        }
    }

    entry a(q: Tensor[Batch; f32]) -> Tensor[16; f32] {
        return f(q, none)
    }

    entry b(q: Tensor[Batch; f32], s: Sixteen<Batch>) -> Tensor[16; f32] {
        return f(q, some(s))
    }
}
"""
SIX, SOME = np.ones((1, 6), F), np.ones(6, bool)
BOTH = {"rows": {"seen": SOME}, "paged": {"k": 1.5}}
CALLS: list[Any] = [
    (
        ENUM,
        [
            ("a", [np.ones((2, 3), F), True]),
            ("a", [np.ones((2, 3), F), False]),
            ("b", [SIX, SOME, True]),
            ("b", [SIX, SOME, False]),
        ],
    ),
    (LOOP, [("a", [np.ones((2, 3), F)]), ("c", [SIX]), ("b", [SIX, BOTH])]),
    (LOCAL, [("b", [SIX, SOME]), ("d", [SIX, BOTH])]),
]


@pytest.mark.parametrize(("source", "calls"), CALLS, ids=["enum", "loop", "local"])
def test_presence_is_known_wherever_the_value_goes(source: str, calls: Any) -> None:
    made = lowered(HEAD + source, generics={"Batch": 6})
    verify(made)
    verify(optimize(made, "fast"))
    agree(made, calls, ("fast",))


def test_a_clause_that_the_model_breaks_is_no_obstacle_to_other_entries() -> None:
    made = lowered(HEAD + NEVER, generics={"Batch": 6})
    verify(made)
    assert evaluate(made, "a", [SIX[0]]).shape == (16,)
    with pytest.raises(PlanError) as caught:
        evaluate(made, "b", [SIX[0], {"x": 1.0}])
    assert str(caught.value) == "b requires 6 == 16, which never holds"


def test_a_trait_writes_a_layer_once_for_all_passes() -> None:
    made = lowered(TRAIT, generics={"N": 6})
    verify(made)
    rows = ("rows", [SIX, np.arange(6, dtype=F), SOME])
    agree(made, [("forward", [Q, np.arange(3, dtype=F)]), rows, rows], ("fast",))
    assert made.functions["Model.hidden"].writes == ()
    assert made.functions["Model.hidden.2"].writes == ("layers.*.last",)
