"""The step that goes wrong is found: in a reference that errs on purpose, and on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linnet
from linnet import reference
from linnet.check import check_text
from linnet.core.ir import Call, Function, Node, Param, Program, ResultsType, functions_of
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.core.rewrite import nodes_of
from linnet.reference import evaluate
from linnet.verification import draw, verify
from linnet.verification import locate as locating
from linnet.verification.locate import Place, locate
from linnet.verification.report import text
from linnet.verification.sizes import choices
from linnet.verification.verify import _flat, _member

LLAMA = Path(linnet.__file__).parent / "zoo" / "families" / "llama"
TINY = {"Vocab": 24, "H": 64, "Heads": 4, "KvHeads": 2, "Inner": 80, "Layers": 2, "MaxSeq": 16}
SOURCE = """module walk

use std.nn.norm::{rms_norm}

pub block Cell<H: Dim> {
    param weight: Tensor[H, H; f32]
    state seen: Tensor[H; f32]

    pub fn step<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        let mixed[b, h] = sum[k] x[b, k] * weight[h, k]
        let best[h] = max[b] mixed[b, h]
        seen = seen * 0.5 + best
        return tanh(mixed) + x
    }
}

pub block Walk<H: Dim = 4>
where H > 1
{
    sub cells: [Cell<H>; 3]
    param scale: Tensor[H; f32]
    state count: i64

    fn once<B: Dim>(x: Tensor[B, H; f32]) -> Tensor[B, H; f32] {
        var y = x
        static for cell in cells {
            y = cell.step(y)
        }
        count = count + 1
        return rms_norm(y, scale, 1e-5)
    }

    pub entry run<B: Dim>(x: Tensor[B, H; f32], far: bool) -> (Tensor[B, H; f32], f32)
    where B > 0
    {
        let y = once(x)
        return if far { (exp(y), y[0, 0]) } else { (sqrt(abs(y)), y[0, 1]) }
    }

    pub entry often<B: Dim, Turns: Dim>(x: Tensor[B, H; f32]) -> Tensor[Turns, B, H; f32]
    where B > 0
    {
        var y = x
        return for i in 0..Turns {
            y = once(y)
            yield sin(y)
        }
    }

    pub entry until<B: Dim>(x: Tensor[B, H; f32], turns: i64) -> Tensor[B, H; f32]
    where B > 0
    {
        var y = x
        var turn: i64 = 0
        while turn < turns {
            y = once(y)
            turn = turn + 1
        }
        return cos(y)
    }
}
"""


def lowered(policy: str) -> Program:
    return optimize(lower(check_text(SOURCE)), policy)


def searched(
    program: Program, name: str, run: Callable[[Program, Sequence[Any], Any, Any], Any]
) -> Place | None:
    """What is located in an entry where a backend runs programs so."""
    function = program.entries[name]
    weights, before = draw.weights(program, 0), draw.states(program, 0)
    case = next(c for c in draw.cases(function, choices(function, 8), 0) if c.name == "prime")
    rest = function.params[len(case.inputs) :]
    held = {"state": before}
    given = [*case.inputs, *(_member(p.name, p.of, held.get(p.kind, weights)) for p in rest)]

    def results(changed: Program) -> Sequence[Any]:
        states = {path: x.copy() for path, x in before.items()}
        return _flat(run(changed, case.arguments(function), weights, states))

    return locate(program, name, given, case.sizes, "exact", results)


def as_it_is(program: Program, inputs: Sequence[Any], weights: Any, states: Any) -> Any:
    (name,) = program.entries
    return evaluate(
        program,
        name,
        inputs,
        weights,
        states,
        {"B": 7, "Turns": 3} if name == "often" else {"B": 7},
    )


@pytest.mark.parametrize("policy", ["exact", "fast"])
@pytest.mark.parametrize("name", ["run", "often", "until"])
def test_nothing_is_found_where_nothing_is_wrong(name: str, policy: str) -> None:
    assert searched(lowered(policy), name, as_it_is) is None


def computing(program: Program, name: str) -> Iterator[Node]:
    """The nodes of floats that an entry computes, in all that it runs."""
    seen: set[Function] = set()
    waiting = [program.entries[name]]
    for function in waiting:
        for node in nodes_of(function):
            for inner in functions_of(node):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
            if not isinstance(node, Param | Call) and not isinstance(node.type, ResultsType):
                if type(node).__name__ in ("Unary", "Dot", "Reduce") and node.span is not None:
                    yield node


@pytest.mark.parametrize("few", [1, 4])
@pytest.mark.parametrize("name", ["run", "often", "until"])
def test_each_step_that_errs_is_named(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One operation at a time gives twice what it should, wherever it stands; `run` takes one of
    its branches. Turns are looked into one by one, or (`few`) those that are wrong alone."""
    monkeypatch.setattr(locating, "FEW", few)
    program = lowered("fast")
    right, found = reference.node_value, 0
    for wrong in computing(program, name):
        met: list[Node] = []

        def erring(
            node: Node,
            inputs: Any,
            sizes: Any,
            checked: bool = False,
            wrong: Node = wrong,
            met: list[Node] = met,
        ) -> Any:
            value = right(node, inputs, sizes, checked)
            if type(node) is type(wrong) and node.span == wrong.span:
                met.append(node)
                return value * np.float32(2)
            return value

        def run(*args: Any, erring: Any = erring) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(reference, "node_value", erring)
                return as_it_is(*args)

        place = searched(program, name, run)
        if not met:
            assert place is None  # the branch that is not taken
            continue
        assert place is not None and place.kind == "step", wrong.span
        assert place.span == wrong.span
        found += 1
    assert found >= 4


# ---------------------------------------------------------------- kernels with the wrong sign


def in_torch(patch: pytest.MonkeyPatch) -> str:
    from linnet.torch import kernels

    right = kernels.rope
    patch.setattr(kernels, "rope", lambda *args: -right(*args))
    return "std.nn.rope::rope"


def in_jax(patch: pytest.MonkeyPatch) -> str:
    from linnet.jax import kernels

    right = kernels.rows_attention
    patch.setattr(kernels, "rows_attention", lambda *args, **named: -right(*args, **named))
    return "std.nn.attention::rows_attention"


def in_stablehlo(patch: pytest.MonkeyPatch) -> str:
    from linnet.stablehlo import kernels

    op = "std.nn.cache::write_rows"
    right = kernels.KERNELS[op]

    def write(w: Any, call: Call) -> str:
        return str(w.op(f"stablehlo.negate {right.write(w, call)}", w.types(call)[0]))

    patch.setitem(kernels.KERNELS, op, replace(right, write=write))  # type: ignore[arg-type]
    return op


def in_onnx(patch: pytest.MonkeyPatch) -> str:
    from linnet.onnx import kernels, native

    op = "std.nn.norm::rms_norm"

    def flipped(kernel: kernels.Kernel) -> kernels.Kernel:
        return replace(kernel, write=lambda p, call: p.writer.op("Neg", kernel.write(p, call)))

    patch.setitem(native.WITH_NATIVE, op, tuple(map(flipped, native.WITH_NATIVE[op])))
    return op


@pytest.mark.parametrize(
    ("backend", "plant"),
    [
        ("torch", in_torch),
        ("onnx", in_onnx),
        pytest.param("jax", in_jax, marks=pytest.mark.slow),
        pytest.param("stablehlo", in_stablehlo, marks=pytest.mark.slow),
    ],
)
def test_a_kernel_with_the_wrong_sign_is_located(
    backend: str, plant: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op is named, its kernel, and the line that calls it."""
    op = plant(monkeypatch)
    report = verify(LLAMA, backends=[backend], entries=["decode_rows"], generics=TINY)
    (outcome,) = report.outcomes
    assert outcome.failure is not None and outcome.failure.place is not None
    place = outcome.failure.place
    assert (place.kind, place.what) == ("step", op)
    assert place.path[0] == "Model.run" and place.path[1] == "layer 0"
    assert place.difference.worst == pytest.approx(2.0, rel=1e-3)
    assert place.span is not None and f"{op.rpartition(':')[2]}(" in place.span.text
    said = text(report)
    assert f"{op} (native: " in said and "DIFFERS: 1 of 1 entries" in said
    assert f"{place.span.source.name}:" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kernel_with_the_wrong_sign_is_located_when_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from linnet.torch import kernels

    right = kernels.rms_norm
    monkeypatch.setattr(kernels, "rms_norm", lambda *args: -right(*args))
    (tmp_path / "walk.linnet").write_text(SOURCE)
    report = verify(tmp_path / "walk.linnet", backends=["torch-compiled"], entries=["run"])
    failure = report.outcomes[0].failure
    assert failure is not None and failure.place is not None, text(report)
    assert failure.place.what == "std.nn.norm::rms_norm"
    assert failure.place.span is not None
    assert failure.place.span.text == "rms_norm(y, scale, 1e-5)"
