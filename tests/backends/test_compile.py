"""Modes of running: the same values however an entry runs, and as few compilations as there are
kinds of block, whatever the depth and the sizes."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import linnet.torch as lt
from linnet.diagnostics import PlanError
from linnet.torch import attend, graphs, kernels, native
from linnet.torch import compile as modes
from linnet.torch.graphs import Recording, captured_functions, entry_functions
from linnet.torch.regions import split
from models.tiny import FAMILY

SIZES: dict[str, int | str] = {
    "Vocab": 40, "H": 16, "Heads": 4, "KvHeads": 2, "Inner": 24, "Layers": 2, "Batch": 2,
    "MaxSeq": 70, "T": "f32",
}  # fmt: skip
SMALL = """module small
use std.nn.linear::{Linear}

block Layer<H: Dim> {
    sub up: Linear<H, H, f32>
    state seen: i32
    state last: Tensor[H; f32]
    pub fn forward<B: Dim, S: Dim>(x: Tensor[B, S, H; f32]) -> Tensor[B, S, H; f32]
        where B > 0, S > 0
    {
        seen = seen + 1
        last = x[0, S - 1, :]
        return x + up.forward(x) * cast<f32>(seen)
    }
}

pub block Small<H: Dim = 4, Layers: Dim = 2> where H > 0 {
    sub layers: [Layer<H>; Layers]
    pub entry forward<B: Dim, S: Dim>(given: Tensor[B, S, H; f32]) -> Tensor[B, S, H; f32]
        where B > 0, S > 0
    {
        var x = given
        static for layer in layers { x = layer.forward(x) }
        return x * 2.0
    }
    pub entry until(given: Tensor[1, 1, H; f32], most: i32) -> (Tensor[1, 1, H; f32], i32) {
        var x = given
        var count: i32 = 0
        while count < most {
            x = forward(x)
            count = count + 1
        }
        return (x, count)
    }
    pub entry often<N: Dim>(given: Tensor[1, 1, H; f32]) -> Tensor[1, 1, H; f32] {
        var x = given
        for i in 0..N { x = forward(x) }
        return x
    }
}
"""


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1)).int()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.linnet"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def llama() -> lt.LinnetModule:
    entries = ["forward", "prefill", "decode", "generate", "sample", "generate_until"]
    return lt.load(FAMILY, generics=SIZES, seed=3, entries=entries)


# ---------------------------------------------------------------- what is asked for


def test_what_compile_may_be(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("eager", 1, 0, "Inductor", "max-autotune"):
        with pytest.raises(PlanError, match=re.escape(f"compile={value!r}: it is None, False, Tr")):
            lt.load(small, compile=value)  # type: ignore[arg-type]
    model = lt.load(small, compile=False)
    with pytest.raises(PlanError, match='"cudagraphs"'):
        model.run_entry("forward", [torch.ones(1, 1, 4)], compile="graphs")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PlanError, match=r"needs a C\+\+ compiler, and no-such-compiler is not the"):
        model.run_entry("forward", [torch.ones(1, 1, 4)], compile=True)
    with pytest.raises(PlanError, match="or load with compile=False"):
        lt.load(small, compile="inductor")
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(small))
    with pytest.raises(PlanError, match=r"no Python\.h"):
        modes.check_compilers(torch.device("cpu"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlanError, match="pip install triton"):
        modes.check_compilers(torch.device("cuda"))


def test_a_function_takes_the_option(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.linnet"
    path.write_text(
        "module f\npub fn f<N: Dim>(x: Tensor[N; f32]) -> Tensor[N; f32] {\n    return x * 2.0\n}\n"
    )
    doubled = lt.load_function(path, compile="reduce-overhead")
    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert doubled.run([torch.ones(2)], compile=False).tolist() == [2.0, 2.0]
    with pytest.raises(PlanError, match="compile='x'"):
        lt.load_function(path, compile="x")


# ---------------------------------------------------------------- regions


@pytest.mark.slow
def test_the_source_in_regions_does_the_same(llama: lt.LinnetModule) -> None:
    regions = split(llama._code.text)
    code = llama._code.again(regions.text, "in regions")
    at, eos = torch.tensor(3, dtype=torch.int32), torch.tensor(-1, dtype=torch.int32)
    key, temperature = torch.tensor([1, 2]), torch.tensor(0.7)
    calls: list[tuple[str, list[Any], dict[str, int]]] = [
        ("forward", [tokens(2, 5)], {}),
        ("prefill", [tokens(2, 3), at - 3], {}),
        ("decode", [tokens(2, 1), at], {}),
        ("generate", [tokens(2, 1), at], {"Steps": 2}),
        ("sample", [tokens(2, 1), at, key, temperature], {"Steps": 2}),
        ("generate_until", [tokens(2, 1), at, eos], {"MaxNew": 2}),
    ]
    results: list[list[Tensor]] = []
    for space in (llama._code.space, code.space):
        llama.reset_state()
        outs = [space[name](llama, *args, **sizes) for name, args, sizes in calls]
        results.append([t for out in outs for t in tree_leaves(out)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_no_region_has_a_loop_or_what_is_computed_once(llama: lt.LinnetModule) -> None:
    regions = split(llama._code.text)
    functions = {f.name: f for f in ast.parse(regions.text).body if isinstance(f, ast.FunctionDef)}
    text = {name: ast.unparse(functions[name]) for name in regions.names}
    assert "decoder_layer_forward_2(layer, " in text["model_run_2_part_2"]
    assert not any(re.search(r"\b(for|while|if) |constant_\w+\(", t) for t in text.values())
    assert "decoder_layer_forward" in regions.whole and "decode" not in regions.whole


def test_one_position_of_many_is_a_view_whose_place_is_no_constant_of_what_is_compiled() -> None:
    regions = split(
        "def run(self, x):\n"
        "    S = x.shape[1]\n"
        "    for layer in self.layers:\n"
        "        x = layer(x)\n"
        "    return torch.exp(x[:, S - 1]) * 2 + x[:, 0] - 1\n"
    )
    assert regions.names == ("run_part_1",)
    assert "torch.exp(x[:, :].select(1, S - 1)) * 2 + x[:, 0] - 1" in regions.text


def test_the_last_turn_of_a_loop_is_a_region_of_its_own(llama: lt.LinnetModule) -> None:
    text = split(llama._code.text).text
    assert re.search(r"\*layers, last_layer = self.layers\n +for layer in layers:\n", text)
    assert re.search(r"return model_run_rows\w*_part_\d+\(last_layer, ", text)


def test_what_is_little_is_no_region(small: Path) -> None:
    assert split(lt.load(small)._code.text).names == ("forward_part_1",)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 7])
def test_spans_are_written_without_reading_where(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = torch.randn(2, 3, count, 4)
    for at in range(-8, 8):
        want, found = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5, 4)
        kernels.write_span_(want, value, at)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "readable", lambda x: False)
            patch.setattr(native, "takes", lambda *tensors: False)
            kernels.write_span_(found, value, torch.tensor(at, dtype=torch.int32))
        assert torch.equal(found, want)


# ---------------------------------------------------------------- graphs


class Log(TorchDispatchMode):
    """Every operation of PyTorch, with the memory that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.reason = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, results))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reason = "a value was asked for"
        return results

    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _memory(old) != _memory(new):
                    old.copy_(new)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Recorder:
    """Recordings of operations on a CPU: as on a GPU, what they read has an address."""

    def __init__(self) -> None:
        self.plain = self.recorded = self.replayed = 0

    def first(self, run: Any) -> Any:
        self.plain += 1
        return run()

    def record(self, run: Any) -> Recording:
        self.recorded += 1
        log = Log()
        with log:
            results = run()

        def replay() -> None:
            self.replayed += 1
            log.replay()

        return Recording(results, None if log.reason else replay, log.reason)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.plain, self.recorded, self.replayed


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder()
    monkeypatch.setitem(graphs.CAPTURES, "cpu", lambda: found)
    # As on a device that must not be waited for.
    monkeypatch.setattr(kernels, "readable", lambda x: False)
    monkeypatch.setattr(attend, "readable", lambda x: False)
    monkeypatch.setattr(native, "takes", lambda *tensors: False)
    yield found


def both(small: Path) -> tuple[lt.LinnetModule, lt.LinnetModule]:
    return lt.load(small, compile=False), lt.load(small, compile="cudagraphs")


def same(
    plain: lt.LinnetModule,
    captured: lt.LinnetModule,
    *args: Any,
    entry: str = "forward",
    **generics: int,
) -> None:
    results = [m.run_entry(entry, args, generics) for m in (plain, captured)]
    for a, b in zip(*map(tree_leaves, results), strict=True):
        torch.testing.assert_close(a, b)
    for path in plain.state_paths:
        torch.testing.assert_close(plain.get_buffer_at(path), captured.get_buffer_at(path))


@pytest.mark.slow
def test_a_signature_runs_is_recorded_and_is_replayed(small: Path, recorder: Recorder) -> None:
    plain, captured = both(small)
    for i in range(5):
        same(plain, captured, torch.randn(1, 2, 4) + i)
    assert recorder.counts == (1, 1, 3)
    for count in range(1, 7):
        same(plain, captured, torch.randn(count, 3, 4))
    assert recorder.counts == (7, 1, 3)
    same(plain, captured, torch.randn(4, 3, 2).transpose(0, 2))
    assert recorder.counts == (7, 2, 3)


def test_a_replaced_weight_or_state_is_read(small: Path, recorder: Recorder) -> None:
    plain, captured = both(small)
    x = torch.randn(1, 2, 4)
    for _ in range(3):
        same(plain, captured, x)
    new = torch.randn(4, 4)
    for m in (plain, captured):
        m.layers[1].up.weight.data.copy_(new)  # in place: nothing moved
    same(plain, captured, x)
    assert recorder.counts == (1, 1, 2)
    for recorded, change in enumerate(
        (
            lambda m: setattr(m.layers[0].up, "weight", nn.Parameter(new.clone(), False)),
            lambda m: setattr(m.layers[0].up.weight, "data", new + 1),
            lambda m: m._put("layers.1.seen", torch.tensor(7, dtype=torch.int32)),
            lambda m: m.copy_weights({p: t + 1 for p, t in m.state_dict().items()}),
        ),
        start=2,
    ):
        for m in (plain, captured):
            change(m)
        same(plain, captured, x)
        same(plain, captured, x)
        assert recorder.recorded == recorded
    for m in (plain, captured):
        m.reset_state()
    same(plain, captured, x)
    assert recorder.recorded == recorded


def test_results_are_the_callers_own(small: Path, recorder: Recorder) -> None:
    captured = both(small)[1]
    x = torch.ones(1, 1, 4)
    found = [captured(x) for _ in range(4)]
    kept = [y.clone() for y in found]
    found[3].zero_()
    with torch.inference_mode():
        captured(x)
    assert [torch.equal(a, b) for a, b in zip(found, kept, strict=True)] == [True] * 3 + [False]
    assert len({float(y.sum()) for y in kept}) == 4 and not found[2].is_inference()


def test_of_a_loop_of_passes_the_pass_is_captured(small: Path, recorder: Recorder) -> None:
    plain, captured = both(small)
    x = torch.randn(1, 1, 4) / 100
    same(plain, captured, x, 5, entry="until")
    assert recorder.counts == (1, 1, 3)
    for n in (3, 4):
        same(plain, captured, x, entry="often", N=n)
    assert recorder.counts == (1, 1, 10)
    assert captured_functions(captured._code.text, entry_functions(captured._code)) == {"forward"}


def test_a_decoder_is_captured(llama: lt.LinnetModule, recorder: Recorder) -> None:
    captured = copy.deepcopy(llama)
    at = torch.tensor(6, dtype=torch.int32)
    for model, way in ((llama, False), (captured, "reduce-overhead")):
        model.reset_state()
        for m in (6, 6):
            model.run_entry("prefill", [tokens(2, m), 0], compile=way)
    for steps in (3, 2):
        given = ([tokens(2, 1), at], {"Steps": steps})
        want = llama.run_entry("generate", *given, compile=False)
        assert torch.equal(captured.run_entry("generate", *given, compile="cudagraphs"), want)
    # A step has its place in the caches as a number in memory: one recording is for all of them.
    assert recorder.counts == (2, 2, 3)
    names = captured_functions(llama._code.text, entry_functions(llama._code))
    assert {"decode", "prefill", "categorical"} <= names and "generate" not in names


def test_only_the_last_signatures_are_kept(
    small: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "KEPT", 2)
    plain, captured = both(small)
    for _ in range(2):
        for n in (1, 2, 3):
            same(plain, captured, torch.randn(n, 1, 4))
    assert recorder.counts == (6, 0, 0)
    for n in (3, 2, 2, 3):
        same(plain, captured, torch.randn(n, 1, 4))
    assert recorder.counts == (6, 2, 2)


def test_constants_stay_while_a_recording_reads_them(
    llama: lt.LinnetModule, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.once, "KEPT", 0)
    for _ in range(3):
        want = llama.run_entry("forward", [tokens(2, 6)], compile=False)
        found = llama.run_entry("forward", [tokens(2, 6)], compile="reduce-overhead")
        torch.testing.assert_close(found, want)
    assert recorder.counts == (1, 1, 1)


def test_what_waits_for_the_device_runs_without_a_graph(
    small: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A number that is asked for ends a recording; the run took place all the same.
    path = tmp_path / "asks.linnet"
    path.write_text(SMALL.replace("return x * 2.0", "return x[0..B, :, :] * 2.0"))
    plain, captured = both(small)
    text = captured._code.text.replace("return x * 2.0", "return x * (2.0 + 0 * x.sum().item())")
    assert ".item()" in text
    captured._code = captured._code.again(text, "asking")
    x = torch.randn(2, 1, 4)
    same(plain, captured, x)
    with pytest.warns(RuntimeWarning, match="forward runs without a graph: a value was asked for"):
        same(plain, captured, x)
    same(plain, captured, x)
    assert recorder.counts == (1, 1, 0)


def test_graphs_give_no_gradients(small: Path, recorder: Recorder) -> None:
    plain, captured = both(small)
    x = torch.ones(1, 1, 4)
    with pytest.raises(PlanError, match=r"forward: compile='reduce-overhead' gives no gradients"):
        captured(x.clone().requires_grad_())
    captured.layers[0].up.weight.requires_grad_()
    with pytest.raises(PlanError, match=r"call it under torch\.no_grad\(\), or with"):
        captured(x)
    with torch.no_grad():
        same(plain, captured, x)
    assert captured.run_entry("forward", [x], compile=False).requires_grad


def test_unasked_a_gpu_replays_graphs_and_nothing_is_compiled(small: Path) -> None:
    modes, cuda = lt.load(small)._modes, torch.device("cuda")
    assert modes.mode("forward", None, cuda, []) == "graphs"
    assert modes.mode("forward", "cudagraphs", cuda, []) == "reduce-overhead"
    assert modes.mode("forward", None, torch.device("cpu"), []) == "eager"
    with torch.enable_grad():
        wanted = torch.ones(1, requires_grad=True)
        assert modes.mode("forward", None, cuda, [wanted]) == "eager"


def test_on_a_cpu_nothing_is_captured_unasked(small: Path, recorder: Recorder) -> None:
    model = lt.load(small)
    for _ in range(3):
        model(torch.ones(1, 1, 4))
    assert recorder.counts == (0, 0, 0)


def test_without_a_capture_the_source_runs_as_it_is(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(graphs.CAPTURES, "cpu", lambda: None)
    plain, captured = both(small)
    for _ in range(3):
        same(plain, captured, torch.randn(1, 2, 4))


def test_a_copy_has_graphs_of_its_own(small: Path, recorder: Recorder) -> None:
    plain, captured = both(small)
    x = torch.randn(1, 2, 4)
    for _ in range(3):
        same(plain, captured, x)
    copied = copy.deepcopy(captured)
    copied(x)
    copied(x)
    assert copied.layers[0].seen.item() == 5 and captured.layers[0].seen.item() == 3
    assert recorder.counts == (2, 2, 1)


# ---------------------------------------------------------------- torch.compile


class Counter:
    """A backend of torch.compile that counts what it is given, and runs it as it is."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    found = Counter()
    monkeypatch.setattr(modes, "BACKEND", found)
    return found


@pytest.mark.slow
def test_a_kind_of_block_compiles_once_for_any_depth_and_few_sizes(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    limit = config.recompile_limit
    counts: list[list[int]] = []
    for layers in (2, 5):
        counter.graphs = 0
        counts.append([])
        generics = {**SIZES, "Layers": layers}
        entries = ["prefill", "decode", "generate"]
        model = lt.load(FAMILY, generics=generics, entries=entries, compile=True)
        counters.clear()
        for length in (5, 7, 1, 2, 19, 64) if layers == 2 else (5, 1):
            given = [tokens(2, length), 0]
            found = model.run_entry("prefill", given)
            want = model.run_entry("prefill", given, compile=False)
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
            counts[-1].append(counter.graphs)
        for steps in (2, 3):
            given = [tokens(2, 1), torch.tensor(4, dtype=torch.int32)]
            found = model.run_entry("generate", given, {"Steps": steps})
            assert torch.equal(found, model.run_entry("generate", given, {"Steps": steps}, False))
            counts[-1].append(counter.graphs)
        assert not counters["graph_break"]
    # Before the layers, a layer, the last one, and the head: for one position, and for any other
    # number; but the head takes one position of each row always.
    first, two, *rest = counts[0]
    assert (first, two, rest[:4]) == (4, 4, [7] * 4)
    # A step of `generate`, of which the sizes are those of one position, adds at most its own.
    assert counts[1] == [4, 7, *counts[0][-2:]] and counts[0][-1] <= 11
    assert config.recompile_limit == limit


@pytest.mark.slow
def test_too_many_variants_are_an_error_and_nothing_falls_back(
    small: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "VARIANTS", 1)
    model = lt.load(small, compile=True)
    plain = lt.load(small)
    x = torch.randn(2, 3, 4)
    same(plain, model, x)
    with pytest.raises(PlanError, match=r"torch\.compile failed for forward: .*recompile_limit"):
        model(torch.randn(1, 3, 4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # its own
def test_inductor_gives_the_same_values_and_gradients(small: Path) -> None:
    plain, compiled = lt.load(small), lt.load(small, compile=True, trainable=True)
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        for _ in range(2):
            same(plain, compiled, x)
    compiled.layers[0].up.weight.data.add_(1)
    compiled._put("layers.1.seen", torch.tensor(5, dtype=torch.int32))
    gradients = []
    for way in (False, True):
        compiled.zero_grad()
        compiled.reset_state()
        compiled.run_entry("forward", [x], compile=way).square().sum().backward()
        gradients.append([p.grad.clone() for p in compiled.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
