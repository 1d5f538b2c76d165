"""The loaded module: its tree, weights, entries, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import linnet
import linnet.torch as lt
from effort import calls
from linnet.diagnostics import LinnetError, PlanError
from linnet.loading import load_source
from linnet.torch.emit import emit
from linnet.weights import write_safetensors

SOURCE = """module small
use std.nn.linear::{Linear}
use std.nn.embedding::{Embedding}

pub block Layer<H: Dim, T: Float> {
    sub up: Linear<H, H, T>
    state seen: i32
    pub fn forward<*S: Shape>(x: Tensor[*S, H; T]) -> Tensor[*S, H; T] {
        seen = seen + 1
        return x + up.forward(x)
    }
}

pub block Small<V: Dim = 5, H: Dim = 4, Layers: Dim = 2, T: Float = f32> where H > 0 {
    sub embedding: Embedding<V, H, T>
    sub layers: [Layer<H, T>; Layers]
    sub head: Linear<H, V, T>
    buffer shift: Tensor[V; f32]

    /// The scores of every token.
    pub entry forward<B: Dim, S: Dim>(tokens: Tensor[B, S; i32]) -> Tensor[B, S, V; T] {
        var x = embedding.forward(tokens)
        static for layer in layers { x = layer.forward(x) }
        return head.forward(x) + cast<T>(shift)
    }
    pub entry mixed<N: Dim, M: Dim>(
        x: Tensor[N, 2 * N; f32], scale: f32, count: i32, on: bool, ids: Tensor[M; i64],
    ) -> (Tensor[N; f32], i32, bool) {
        return ((sums(x)) * scale, count + cast<i32>(M), !on)
    }
    pub entry steps<Steps: Dim>(start: i32) -> Tensor[Steps; i32] where Steps > 1 {
        return iota<i32>(Steps) + start
    }
    fn sums<N: Dim>(x: Tensor[N, 2 * N; f32]) -> Tensor[N; f32] {
        let total[n] = sum[m] x[n, m]
        return total
    }
}
"""
TOKENS = torch.tensor([[1, 2, 3]], dtype=torch.int32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.linnet"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def model(source: Path) -> lt.LinnetModule:
    return lt.load(source)


def arrays(model: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {path: t.to(dtype).clone() for path, t in model.state_dict().items()}


def test_the_tree_and_its_names(model: lt.LinnetModule) -> None:
    assert set(model.state_dict()) == {
        "embedding.weight",
        "layers.0.up.weight",
        "layers.1.up.weight",
        "head.weight",
        "shift",
    }
    assert isinstance(model.layers, nn.ModuleList) and len(model.layers) == 2
    assert model.state_paths == ("layers.0.seen", "layers.1.seen")
    assert model.entries == ("forward", "mixed", "steps")
    assert model.generics == {"V": 5, "H": 4, "Layers": 2, "T": "f32"}
    assert not any(p.requires_grad for p in model.parameters())
    assert "Small" in repr(model)


def test_parameters_without_weights_are_seeded(source: Path) -> None:
    a, b, c = lt.load(source), lt.load(source), lt.load(source, seed=1)
    assert torch.equal(a.head.weight, b.head.weight)
    assert not torch.equal(a.head.weight, c.head.weight)
    assert 0.005 < float(a.embedding.weight.std()) < 0.05


def test_entries_are_methods(model: lt.LinnetModule) -> None:
    out = model(TOKENS)
    assert out.shape == (1, 3, 5) and torch.equal(out, model.run_entry("forward", [TOKENS]))
    x = torch.ones(2, 4)
    ids = np.zeros(3, np.int64)
    total, count, off = model.mixed(x, 0.5, 4, True, ids)
    assert total.tolist() == [2.0, 2.0] and count.item() == 7 and off.item() is False
    named = model.run_entry("mixed", {"scale": 2, "x": x, "count": 0, "ids": [1], "on": False})
    assert named[0].tolist() == [8.0, 8.0] and named[1].item() == 1
    assert model.mixed(x, 0.5, ids=[1, 2], count=1, on=True)[1].item() == 3
    assert model.steps(3, generics={"Steps": 4}).tolist() == [3, 4, 5, 6]


def test_state_is_kept_until_it_is_reset(model: lt.LinnetModule) -> None:
    model.reset_state()
    model(TOKENS)
    model(TOKENS)
    assert [model.layers[i].seen.item() for i in (0, 1)] == [2, 2]
    model.reset_state()
    assert model.layers[0].seen.item() == 0


def test_generated_source_by_entry(model: lt.LinnetModule) -> None:
    whole, one = model.generated_source(), model.generated_source("steps")
    assert "def forward(self, tokens):" in whole and "def steps(start, *, Steps):" in one
    assert "forward" not in one
    assert '"""The scores of every token."""' in whole
    with pytest.raises(PlanError, match="has no entry stepz; did you mean steps"):
        model.generated_source("stepz")


def refused(
    model: lt.LinnetModule, match: str, entry: str, *inputs: object, **options: object
) -> None:
    with pytest.raises(PlanError, match=match):
        model.run_entry(entry, inputs, **options)  # type: ignore[arg-type]


def test_wrong_calls_are_refused(model: lt.LinnetModule) -> None:
    x, ids = torch.ones(2, 4), torch.zeros(3, dtype=torch.int64)
    refused(model, "forward: tokens is i64, expected", "forward", TOKENS.long())
    refused(model, "forward: tokens has 1 axis", "forward", TOKENS[0])
    refused(model, "forward takes 1 input", "forward", TOKENS, 1)
    refused(model, "forward takes 1 input", "forward")
    refused(model, "has no entry forwards; did you mean forward", "forwards", TOKENS)
    refused(model, "mixed: x has 5 on axis 1", "mixed", torch.ones(2, 5), 1.0, 1, True, ids)
    refused(model, "scale is True", "mixed", x, True, 1, True, ids)
    refused(model, "count is 1.5", "mixed", x, 1.0, 1.5, True, ids)
    refused(model, "count is 2147483648", "mixed", x, 1.0, 2**31, True, ids)
    refused(model, "on is 1,", "mixed", x, 1.0, 1, 1, ids)
    refused(model, "ids is not a rectangle", "mixed", x, 1.0, 1, True, [[1], [2, 3]])
    refused(model, "ids has 2 axes", "mixed", x, 1.0, 1, True, [[1], [2]])
    refused(model, "ids is a str of <U3, expected", "mixed", x, 1.0, 1, True, "abc")
    refused(model, "pass generics={'Steps'", "steps", 1)
    refused(model, "requires Steps > 1", "steps", 1, generics={"Steps": 1})
    refused(model, "has no generic Stepz", "steps", 1, generics={"Stepz": 1})
    refused(model, "compile='fast': it is None, False", "forward", TOKENS, compile="fast")
    with pytest.raises(PlanError, match="has no input token; did you mean tokens"):
        model.run_entry("forward", {"token": TOKENS})
    with pytest.raises(PlanError, match="mixed: missing scale, count, on"):
        model.run_entry("mixed", {"x": x, "ids": ids})


def test_wrong_loads_are_refused(source: Path, tmp_path: Path) -> None:
    for options, match in [
        ({"generics": {"Vocab": 3}}, "no generic Vocab"),
        ({"generics": {"H": 0}}, "requires H > 0"),
        ({"numerics": "exactly"}, "numerics"),
        ({"device": "gpu9"}, "device='gpu9' cannot be used"),
        ({"compile": "fast"}, "compile='fast': it is None, False, True"),
        ({"tensor_parallel": object()}, "tensor_parallel is of type object; it takes a DeviceMesh"),
        ({"devise": "cpu"}, "no option devise; did you mean device?"),
        ({"dtype": "bf16"}, r'no option dtype; dtypes are generics .* generics={"T": "bf16"}'),
        ({"zzz": 1}, "no option zzz; there are generics, root, main"),
        ({"root": "Smal"}, "no block Smal"),
        ({"weights": {"head.weight": torch.zeros(5, 4)}}, "missing"),
    ]:
        with pytest.raises(PlanError, match=match):
            lt.load(source, **options)  # type: ignore[arg-type]
    broken = tmp_path / "broken.linnet"
    broken.write_text("module m\npub entry f(x: f32) -> f32 { return x + 1 + y }\n")
    with pytest.raises(PlanError, match="E1201"):
        lt.load(broken)
    with pytest.raises(PlanError, match=r'no such file .* linnet.nest.load\("gpt2"\)'):
        lt.load("gpt2")
    with pytest.raises(LinnetError, match="`module m` and what follows it is text, and a path is"):
        lt.load(broken.read_text() * 20)


def test_what_a_module_is_not_asked_for(source: Path) -> None:
    model = lt.load(source)
    with pytest.raises(AttributeError, match="has no attribute forwards; did you mean forward"):
        model.forwards  # noqa: B018
    assert not hasattr(model, "generate")
    with pytest.raises(PlanError, match="cannot be pickled: keep its weights"):
        pickle.dumps(model)


def test_neutral_options_of_later_versions_are_taken(source: Path) -> None:
    lt.load(source, compile=None, trainable=False, offload=True, device_map=None)


def test_weights_from_a_file_are_mapped_and_tied(
    source: Path, model: lt.LinnetModule, tmp_path: Path
) -> None:
    tensors = arrays(model)
    tensors["embedding.weight"] = tensors.pop("head.weight") + 1
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors)
    bindings = {"head.weight": "embedding.weight"}
    made = lt.load(source, weights=path, bindings=bindings)
    assert made.head.weight is made.embedding.weight
    assert torch.equal(made.head.weight, tensors["embedding.weight"])
    assert torch.equal(made.shift, tensors["shift"])
    made.load_state_dict({**made.state_dict(), "shift": torch.full((5,), 9.0)})
    made.shift.add_(1.0)
    # What is written stays in this process; new values come in new memory, shared as before.
    other = lt.load(source, seed=3)
    made.copy_weights({**other.state_dict(), "embedding.weight": torch.ones(5, 4)})
    assert made.head.weight is made.embedding.weight
    again = lt.load(source, weights=path, bindings=bindings)
    assert torch.equal(again.head.weight, tensors["embedding.weight"])
    assert torch.equal(again.shift, tensors["shift"])


def test_weights_are_converted_only_when_asked(source: Path, model: lt.LinnetModule) -> None:
    short = arrays(model, torch.bfloat16) | {"shift": torch.zeros(5)}
    with pytest.raises(PlanError, match="cast_dtype"):
        lt.load(source, weights=short)
    made = lt.load(source, weights=short, cast_dtype=True)
    assert torch.equal(made.head.weight, short["head.weight"].float())
    half = lt.load(source, generics={"T": "bf16"}, weights=short)
    assert half.head.weight.dtype is torch.bfloat16 and half(TOKENS).dtype is torch.bfloat16
    assert torch.equal(half.head.weight, short["head.weight"])


def test_missing_weights_without_strict_are_random(source: Path, model: lt.LinnetModule) -> None:
    some = {"head.weight": torch.ones(5, 4), "extra": torch.ones(1)}
    made = lt.load(source, weights=some, strict=False)
    assert torch.equal(made.head.weight, some["head.weight"])
    assert not made.embedding.weight.is_meta and made(TOKENS).shape == (1, 3, 5)


def test_bind_weights_and_copy_weights(source: Path, model: lt.LinnetModule) -> None:
    made = lt.load(source, seed=5)
    lt.bind_weights(made, arrays(model))
    assert torch.equal(made(TOKENS), model(TOKENS))
    other = lt.load(source, seed=6)
    other.copy_weights(made)
    assert torch.equal(other(TOKENS), model(TOKENS))
    with pytest.raises(PlanError, match=r"1 problems\n  head.weight: is \[5, 4\], the source's"):
        other.copy_weights({**arrays(model), "head.weight": torch.zeros(4, 5)})


def test_it_is_a_module_like_any_other(source: Path, model: lt.LinnetModule) -> None:
    twin = copy.deepcopy(model)
    twin.head.weight.add_(1.0)
    assert not torch.equal(twin(TOKENS), model(TOKENS))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(TOKENS), model(TOKENS))
    assert twin.eval() is twin and twin.to("cpu") is twin and twin.float() is twin
    with pytest.raises(PlanError, match=r"embedding\.weight is f32 in the program"):
        twin.half()
    assert twin.head.weight.dtype is torch.float32
    with pytest.raises(PlanError, match="is on meta, the model on cpu"):
        twin(TOKENS.to("meta"))


def test_gradients_flow_where_they_are_asked_for(source: Path) -> None:
    made = lt.load(source)
    made.head.weight.requires_grad_(True)
    made(TOKENS).sum().backward()
    x = made.head.weight.grad
    assert x is not None and x.abs().sum() > 0 and made.embedding.weight.grad is None


def test_inference_mode_leaves_nothing_behind(source: Path) -> None:
    made = lt.load(source)
    with torch.inference_mode():
        made(TOKENS)
    made.head.weight.requires_grad_(True)
    made(TOKENS).sum().backward()


def test_what_is_loaded_in_inference_mode_is_like_any_other(source: Path) -> None:
    with torch.inference_mode():
        model = lt.load(source)
        copied = copy.deepcopy(model)
    for one in (model, copied):
        one.reset_state()
        assert not any(t.is_inference() for t in (*one.parameters(), *one.buffers()))


def test_random_weights_hang_on_the_seed_alone(source: Path) -> None:
    expected = lt.load(source).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = lt.load(source).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(found[path], expected[path]) for path in expected)


@pytest.mark.parametrize(
    "options, wanted",
    [
        ({"storage": ["q4"]}, "storage=\\['q4'\\]: choose"),
        ({"seed": "a"}, "seed='a'"),
        ({"seed": 2**70}, "64 bits"),
        ({"entries": "forward"}, "a list of names, \\['forward'\\]"),
        ({"trainable": 3}, "trainable: 3 is no path"),
    ],
)
def test_options_of_another_type(source: Path, options: dict[str, object], wanted: str) -> None:
    with pytest.raises(PlanError, match=wanted):
        lt.load(source, **options)


def test_a_sparse_input_is_refused(source: Path) -> None:
    with pytest.raises(PlanError, match=r"tokens is of layout torch.sparse_coo: pass tokens.to_de"):
        lt.load(source)(TOKENS.to_sparse())


def test_a_traceback_shows_generated_lines(model: lt.LinnetModule) -> None:
    import traceback

    twin = copy.deepcopy(model)
    twin.head = nn.Identity()
    with pytest.raises(AttributeError) as caught:
        twin(TOKENS)
    text = "".join(traceback.format_exception(caught.value))
    assert "<linnet Small>" in text and "kernels.linear(x, self.head.weight)" in text


FUNCTIONS = """module tools
pub fn double<*S: Shape, T: Float>(x: Tensor[*S; T]) -> Tensor[*S; T] { return x * 2.0 }
pub op counted<N: Dim>(x: Tensor[N; f32], shift: f32) -> (f32, Tensor[N; i32]) {
    return (sum[n] x[n] + shift, iota<i32>(N))
}
"""


def test_functions(tmp_path: Path) -> None:
    path = tmp_path / "tools.linnet"
    path.write_text(FUNCTIONS)
    double = lt.load_function(path, "double", dtypes={"T": "f32"}, ranks={"S": 2})
    assert double(torch.ones(2, 3)).sum().item() == 12 and "def double" in double.generated_source()
    assert double.inputs == (("x", "Tensor[S_0, S_1; f32]"),)
    counted = lt.load_function(path, "counted")
    total, order = counted(torch.ones(3), 1.0)
    assert total.item() == 6 and order.tolist() == [0, 1, 2]
    with pytest.raises(PlanError, match="needs a dtype for T"):
        lt.load_function(path, "double", ranks={"S": 1})
    with pytest.raises(PlanError, match="2 functions"):
        lt.load_function(path)
    with pytest.raises(PlanError, match="no function nothing"):
        lt.load_function(path, "nothing")


def test_constants_are_computed_once_for_each_size() -> None:
    from linnet.torch.kernels import once

    calls: list[int] = []

    def table(n: int) -> torch.Tensor:
        calls.append(n)
        return torch.arange(n)

    table.__globals__["DEVICE"] = torch.device("cpu")
    kept = once(table)
    with torch.inference_mode():
        first = kept(3)
    assert kept(3) is first and not first.is_inference() and calls == [3]
    for n in range(10):
        kept(n)
    assert kept(3) is not first and calls.count(3) == 2
    table.__globals__["DEVICE"] = torch.device("meta")
    assert kept(3) is not first
    del table.__globals__["DEVICE"]


def test_generated_code_reaches_members_around_the_modules_own_names(
    model: lt.LinnetModule,
) -> None:
    from linnet.torch.body import RESERVED

    own = {name for name in vars(lt.LinnetModule) if not name.startswith("_")}
    own |= {name for name in vars(model) if not name.startswith("_")}
    assert own <= RESERVED


def test_no_layers_at_all(source: Path) -> None:
    made = lt.load(source, generics={"Layers": 0})
    assert len(made.layers) == 0 and made(TOKENS).shape == (1, 3, 5)


@pytest.mark.slow
def test_generating_does_not_cost_by_the_layers() -> None:
    """All entries of the family, lowered and generated: 32 layers against 2 in one run."""
    family = Path(linnet.__file__).parent / "zoo" / "families" / "llama"
    sizes = {"Vocab": 32, "H": 16, "Heads": 4, "KvHeads": 2, "Inner": 24, "Batch": 1, "MaxSeq": 16}

    def generate(layers: int) -> None:
        emit(load_source(family, generics={**sizes, "Layers": layers, "T": "f32"}).program)

    generate(2)
    few, many = (calls(partial(generate, layers)) for layers in (2, 32))
    assert many <= 1.1 * few


def test_sizes_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "counts.linnet"
    file.write_text(
        "module counts\n\nfn counts<N: Dim>() -> Tensor[N; i64] {\n    return iota(N)\n}\n"
    )
    counts = lt.load_function(file, "counts")
    assert counts(N=2).tolist() == [0, 1]
    with pytest.raises(PlanError, match=r"named in a call of a function: counts\(\.\.\., N=8\)"):
        counts(generics={"N": 2})
    for wrong in (2.0, [2], True):
        with pytest.raises(PlanError, match=r"counts: N is .*; a size is a whole number"):
            counts(N=wrong)
