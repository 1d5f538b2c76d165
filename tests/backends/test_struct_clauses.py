"""What structs promise, lowered: functions know the clauses of the parts that are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.common import agree, lowered
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
