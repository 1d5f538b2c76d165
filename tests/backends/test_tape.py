"""Runs on a CPU that take place again without Python, against the same runs with it."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch
from torch import Tensor

import linnet.torch as lt
from linnet.torch import native
from linnet.torch.graphs import _holding
from linnet.torch.kernels import HOLDING
from linnet.torch.native import ops, tape
from models.tiny import FAMILY, SIZES


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 90, shape, generator=torch.Generator().manual_seed(sum(shape))).int()


@pytest.fixture(scope="module", params=["f32", pytest.param("bf16", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> tuple[lt.LinnetModule, lt.LinnetModule]:
    """A decoder whose heads the C kernels take, and a copy."""
    sizes = {**SIZES, "H": 64, "HeadDim": 16, "Heads": 4, "T": request.param}
    entries = ["prefill", "decode", "decode_rows", "generate"]
    model = lt.load(FAMILY, generics={**sizes, "Batch": 2, "MaxSeq": 40}, seed=3, entries=entries)
    return model, copy.deepcopy(model)


def replays(model: lt.LinnetModule) -> int:
    graphs = model._modes._graphs
    assert graphs is not None
    made = [g.recording for g in graphs.kept.values()]
    return sum(r is not None and r.replay is not None for r in made)


def test_steps_of_a_decoder(pair: tuple[lt.LinnetModule, lt.LinnetModule]) -> None:
    plain, captured = pair
    for model in pair:
        model.reset_state()
    for count in (5, 3):
        given = [tokens(2, count), 0]
        want = plain.run_entry("prefill", given, compile=False)
        for _ in range(3):
            got = captured.run_entry("prefill", given, compile="reduce-overhead")
            assert torch.equal(got, want)
    for at in range(3, 30):
        step = [tokens(2, 1) + at % 5, at]
        want = plain.run_entry("decode", step, compile=False)
        assert torch.equal(captured.run_entry("decode", step, compile="reduce-overhead"), want)
    for at in range(6):
        step = [tokens(2, 1), torch.tensor([30 + at, 2 * at], dtype=torch.int32)]
        want = plain.run_entry("decode_rows", step, compile=False)
        got = captured.run_entry("decode_rows", step, compile="reduce-overhead")
        assert torch.equal(got, want)
    # Both kinds of step are recorded and the few tokens; a prompt decides by what it reads.
    assert replays(captured) == 3
    for name in plain.state_paths:
        assert torch.equal(plain.get_buffer_at(name), captured.get_buffer_at(name))
    later = [tokens(2, 1), 31], {"Steps": 4}
    want = plain.run_entry("generate", *later, compile=False)
    assert torch.equal(captured.run_entry("generate", *later, compile="reduce-overhead"), want)


def test_what_is_replaced_is_read(pair: tuple[lt.LinnetModule, lt.LinnetModule]) -> None:
    plain, captured = pair
    step = [tokens(2, 1), 4]
    with torch.no_grad():
        for changes in range(3):
            for model in pair:
                weight = model.layers[1].attention.o_proj.weight
                model.layers[1].attention.o_proj.weight = torch.nn.Parameter(
                    weight * (1 + changes), requires_grad=False
                )
                model.norm.weight.mul_(0.5)
            want = plain.run_entry("decode", step, compile=False)
            for _ in range(3):
                got = captured.run_entry("decode", step, compile="reduce-overhead")
                assert torch.equal(got, want)


def test_a_transposed_weight_is_read(pair: tuple[lt.LinnetModule, lt.LinnetModule]) -> None:
    """It lies where it lay, with the same shape, alone (o_proj) or beside others (q_proj)."""
    plain, captured = pair
    with torch.no_grad():
        for name in ("o_proj", "q_proj"):
            results = []
            for model in pair:
                model.reset_state()
                weight = getattr(model.layers[0].attention, name).weight
                weight.mul_(30)
                run = partial(model.run_entry, "prefill", [tokens(2, 4), 0], compile=False)
                run()
                for _ in range(3):
                    model.run_entry("decode", [tokens(2, 1), 4], compile="reduce-overhead")
                weight.data = weight.data.t()
                run()
                results.append(model.run_entry("decode", [tokens(2, 1), 4], compile=False))
            same = captured.run_entry("decode", [tokens(2, 1), 4], compile="reduce-overhead")
            assert torch.equal(results[0], same)
            weights = {path: tensor.contiguous() for path, tensor in plain.state_dict().items()}
            fresh = copy.deepcopy(plain)
            fresh.load_state_dict(weights, assign=True)
            assert torch.allclose(fresh.run_entry("decode", [tokens(2, 1), 4]), results[0], 1e-3)


def test_constants_of_two_threads() -> None:
    """What one thread's recording reads is kept by no other."""
    one: dict[object, object] = {}
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with _holding({}):
            begun.set()
            ended.wait()

    thread = threading.Thread(target=other)
    with _holding(one):
        thread.start()
        begun.wait()
        assert HOLDING.held is one
    ended.set()
    thread.join()
    assert HOLDING.held is None


def test_sums_run_in_c() -> None:
    for dtype in native.KIND:
        x, y = torch.randn(3, 37).to(dtype), torch.randn(3, 37).to(dtype)
        found, again = native.replayed(lambda x=x, y=y: x + y)
        assert again is not None
        x.copy_(torch.randn(3, 37))
        again()
        assert torch.equal(found, x + y)


def test_ops_between_kernels_run_again() -> None:
    x, weight, total = torch.randn(1, 32), torch.randn(70, 32), torch.zeros(70)

    def run() -> tuple[Tensor, Tensor]:
        y = ops.linear(x, weight).sin()
        fresh = torch.zeros(3)
        fresh += 1
        total.add_(y[0])
        return torch.cat((y, y), 1)[:, 5:], fresh.double()

    (found, fresh), again = native.replayed(run)
    assert again is not None
    for turn in range(2, 5):
        x.copy_(torch.randn(1, 32))
        before = total.clone()
        again()
        y = ops.linear(x, weight).sin()
        assert torch.equal(found, torch.cat((y, y), 1)[:, 5:]), turn
        assert torch.equal(fresh, torch.ones(3).double())
        assert torch.allclose(total, before + y[0])


def test_what_hangs_on_numbers_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5)
    for run in (
        lambda: x * x.sum().item(),
        lambda: x.nonzero(),
        lambda: x[x > 0],
        lambda: x.neg() if bool(x[0] > 0) else x,
        lambda: native.reads(),
    ):
        results, again = native.replayed(run)
        assert again is None
    monkeypatch.setattr(tape, "LARGEST", 5000)
    results, again = native.replayed(lambda: x * 2)
    assert again is not None
    for large in (lambda: x.expand(900, 5) + x, lambda: torch.zeros(3000)[:3] + 1):
        space = native.Space()
        results, again = native.replayed(large, space)
        assert again is None and torch.equal(results, large()) and not space.bytes


def test_recordings_share_what_their_runs_leave() -> None:
    x, weight, space = torch.randn(1, 256), torch.randn(256, 256) / 16, native.Space()

    def deep(turns: int) -> Tensor:
        y = x
        for i in range(turns):
            y = ops.linear(y, weight) + y.sin().cos()[:, torch.tensor([i, 0])].sum()
        return y

    first, again_first = native.replayed(lambda: deep(2), space)
    before = space.bytes
    second, again_second = native.replayed(lambda: deep(30), space)
    assert again_first is not None and again_second is not None
    assert space.bytes <= before + 64 * 1024
    for _ in range(2):
        x.copy_(torch.randn(1, 256))
        for turns, found, again in ((2, first, again_first), (30, second, again_second)):
            again()
            assert torch.equal(found, deep(turns))


def test_what_depends_on_nothing_is_made_once() -> None:
    x = torch.randn(4)

    def run() -> tuple[Tensor, Tensor]:
        total = torch.zeros(4)
        total.view(2, 2).add_(1.0)
        return x * torch.arange(4) + torch.full((4,), 2.0), total + x

    _, tape_of = tape.record(run, native._sum_record, native.Space())
    # The arange and the full are not: zeros, the sum into them, a product and two sums.
    assert len(tape_of.steps) == 5
    again = native.replayed(run)
    assert again[1] is not None
    x.add_(1.0)
    again[1]()
    assert all(map(torch.equal, again[0], run()))


@pytest.mark.slow
def test_recording_imports_no_compiler() -> None:
    """torch._dynamo takes seconds to import, which a short answer would wait for."""
    program = (
        "import sys, torch; from linnet.torch import native; x = torch.ones(3)\n"
        "native.replayed(lambda: x.sin()); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr


def test_ops_of_pytorch_write_where_their_results_were() -> None:
    x, table = torch.randn(3, 4), torch.randn(9, 4)
    at = torch.tensor([1, 0, 8])

    def run() -> tuple[torch.Tensor, ...]:
        wide = torch.cat((x * 2.0, x.cos()), -1)
        parts = torch.split(wide.double().to(torch.bfloat16), 4, -1)
        return wide.sum(-1), table.index_select(0, at), parts[1] + 1, wide.max(-1).values

    results, replay = native.replayed(run)
    assert replay is not None
    addresses = [r.data_ptr() for r in results]
    for _ in range(2):
        x.add_(1.0)
        at.add_(-1).clamp_(0)
        replay()
        assert all(map(torch.equal, results, run()))
    assert [r.data_ptr() for r in results] == addresses


@pytest.mark.slow
def test_steps_over_pages() -> None:
    """One recording serves every table, and a pack of chunks and steps is what both are apart."""
    sizes = {**SIZES, "H": 64, "HeadDim": 16, "Heads": 4, "T": "f32", "Batch": 1, "MaxSeq": 64 * 9}
    entries = ["prefill_paged", "decode_paged", "step_paged"]
    plain = lt.load(FAMILY, generics=sizes, seed=3, entries=entries)
    captured = copy.deepcopy(plain)

    def both(name: str, *given: Tensor) -> Tensor:
        want: Tensor = plain.run_entry(name, list(given), compile=False)
        for _ in range(2):
            got = captured.run_entry(name, list(given), compile="reduce-overhead")
            assert torch.allclose(got, want, atol=1e-5)
        return want

    row = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0]).int()
    positions = torch.tensor([3, 4, 5, 6, 7, 0, 1, 2]).int()
    last, step = torch.tensor([7, 4]).int(), torch.tensor([[5], [6]]).int()
    for table in ([[1, 2], [4, 3]], [[8, 7], [2, 6]]):
        pages = torch.tensor(table).int()
        both("decode_paged", step, torch.tensor([0, 1]).int(), pages)
        both("decode_paged", step, torch.tensor([70, 2]).int(), pages)
        slots = pages[row.long(), 0] * 64 + positions
        chunk = tokens(8), positions, row, slots
        both("prefill_paged", *chunk, last, pages)
        # Row 0 starts in the pack and row 1 steps; row 0's own step is padding.
        first = [x[5:] for x in chunk]
        split = both("step_paged", *first, last * 0 + 2, step, torch.tensor([127, 8]).int(), pages)
        at = torch.tensor([8]).int()
        one = step[1], at, torch.ones(1).int(), pages[1, :1] * 64 + at
        packed = [torch.cat(pair) for pair in zip(first, one, strict=True)]
        mixed = both("prefill_paged", *packed, torch.tensor([2, 3]).int(), pages)
        assert torch.allclose(mixed[0], split[0], atol=1e-5)
        assert torch.allclose(mixed[1], split[3], atol=1e-5)
    assert replays(captured) == 4
