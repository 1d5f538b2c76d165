"""`linnet.ir`: the checked program as Python objects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import linnet
from linnet.diagnostics import LinnetError, PlanError
from linnet.dims import Dim
from linnet.ir import Program, load_program, parse_binding

Golden = Callable[..., None]

SOURCE = """module small

use std.nn.linear::{Linear}

/// Two numbers.
pub struct Pair {
    left: f32
    right: f32
}

/// A stack of layers over a cache.
pub block Stack<H: Dim, Half: Dim = H / 2, Layers: Dim, T: Float = bf16>
where
    H % 2 == 0,
    H > 0
{
    sub layers: [Layer<H, T>; Layers]
    sub bias: Bias<Half>? = none
    state cache: Tensor[4, H; T]

    /// One step.
    entry step<B: Dim>(x: Tensor[B, H; T], at: i32 = 0) -> Tensor[B, H; T]
    where B > 0
    {
        var y = x
        static for layer in layers {
            y = layer.forward(y)
        }
        let added = match bias {
            some(b) => b.forward()
            none => 0.0
        }
        cache = cache + cast<T>(added)
        return y
    }
}

block Layer<H: Dim, T: Float> {
    sub linear: Linear<H, H, T>

    pub fn forward<B: Dim>(x: Tensor[B, H; T]) -> Tensor[B, H; T] {
        return linear.forward(x)
    }
}

block Bias<N: Dim> {
    buffer scale: Tensor[N; f32]

    pub fn forward() -> f32 {
        return sum[i] scale[i]
    }
}

pub fn twice<*S: Shape>(x: Tensor[*S; f32]) -> Tensor[*S; f32] {
    return x + x
}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    Path("small.linnet").write_text(SOURCE)
    return load_program("small.linnet")


def test_it_prints_as_the_source_declares(program: Program, golden: Golden) -> None:
    golden(f"{program}\n")


def test_it_describes_itself_as_plain_data(program: Program, golden: Golden) -> None:
    described = json.dumps(program.describe({"H": 8, "Layers": 3}), indent=1)
    std = str(Path(linnet.__file__).parent / "std")
    golden(described.replace(std, "STD") + "\n")


def test_entries_methods_and_functions(program: Program) -> None:
    assert program.root == "Stack"
    [step] = program.entries()
    assert step == program.entry("step")
    assert step.signature == (
        "entry step<B: Dim>(x: Tensor[B, H; T], at: i32 = 0) -> Tensor[B, H; T]"
    )
    assert step.reads == step.writes == ("cache",)
    assert step.uses == ("bias.scale", "layers.{i}.linear.bias", "layers.{i}.linear.weight")
    assert step.where == ("B > 0",) and step.docs == "One step."
    assert [f.name for f in program.methods("Linear")] == ["forward"]
    assert program.function("twice").generics[0].pack
    assert [b.name for b in program.own_blocks()] == ["Stack", "Layer", "Bias"]
    for wrong, message in (
        (lambda: program.entry("stop"), "no entry stop; did you mean step?"),
        (lambda: program.block("Layr"), "no block Layr; did you mean Layer?"),
        (lambda: program.function("x"), "no function x; it has twice"),
    ):
        with pytest.raises(linnet.PlanError) as error:
            wrong()
        assert message in str(error.value)


def test_the_manifest_in_symbols_in_part_and_in_numbers(program: Program) -> None:
    weight, bias, scale, cache = program.parameters()
    assert (weight.path, weight.kind, weight.dtype) == (
        "layers.{i}.linear.weight",
        "param",
        "T",
    )
    assert [*map(str, weight.shape), *map(str, weight.repeat)] == ["H", "H", "Layers"]
    assert all(isinstance(size, Dim) for size in weight.shape)
    assert weight.count is None and bias.optional and scale.optional and not cache.optional
    assert [str(s) for s in scale.shape] == ["Half"]

    [partly, *_] = program.parameters({"H": 8})
    assert partly.shape == (8, 8) and str(partly.repeat[0]) == "Layers"
    assert partly.dtype == "bf16" and partly.nbytes is None

    weight, _, scale, cache = program.parameters({"H": 8, "Layers": 3, "T": "f32"})
    assert (weight.count, weight.nbytes) == (192, 768)
    assert scale.shape == (4,) and cache.shape == (4, 8)


@pytest.mark.parametrize(
    ("generics", "message"),
    [
        ({"Q": 1}, "Stack has no generic Q"),
        ({"H": 7, "Layers": 1}, "Stack requires H % 2 == 0, which does not hold with H = 7"),
        ({"H": "f32"}, "H is a dimension and takes an integer, not 'f32'"),
        ({"T": "i32"}, "T takes a Float dtype (f16, bf16, f32, f64), not i32"),
        ({"H": (2, 3)}, "H is a dimension and takes an integer, not (2, 3)"),
    ],
)
def test_generics_that_cannot_be_bound(
    program: Program, generics: dict[str, int | str | tuple[int, ...]], message: str
) -> None:
    with pytest.raises(linnet.PlanError) as error:
        program.parameters(generics)
    assert message in str(error.value)


def test_examples_satisfy_what_the_source_asks(program: Program) -> None:
    found = list(program.examples({"Layers": 2}))
    assert len({one["H"] for one in found}) > 1
    for one in found:
        assert one["Layers"] == 2 and isinstance(one["H"], int) and one["H"] % 2 == 0 < one["H"]
        assert all(row.count is not None for row in program.parameters(one))
    with pytest.raises(linnet.PlanError, match="requires H % 2 == 0"):
        program.example({"H": 3, "Layers": 1})


def test_lowering(program: Program) -> None:
    plain = load_program("small.linnet", optimize=False)
    sizes = program.example()
    assert sizes.keys() == {"H", "Layers"}
    assert program.lower(sizes, entries=["step"]).main == "step"
    assert plain.lower(sizes).entries.keys() == {"step"}
    with pytest.raises(linnet.PlanError, match="needs values for H, Layers"):
        program.lower()


def test_a_default_may_use_constants_and_needs_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "x.linnet"
    file.write_text(
        "module x\n\nconst N = 4\n\nblock B<A: Dim, H: Dim = N * 2, K: Dim = H / A>\n"
        "where A > 0\n{\n    param w: Tensor[K; f32]\n\n    "
        "entry f() -> f32 {\n        return 1.0\n    }\n}\n"
    )
    program = load_program(file)
    assert program.lower({"A": 2}).generics == {"A": 2, "H": 8, "K": 4}
    with pytest.raises(linnet.PlanError, match="needs values for A"):
        program.lower()
    with pytest.raises(linnet.PlanError, match="the default of K divides by zero: 8 / 0"):
        program.lower({"A": 0})


def test_roots(tmp_path: Path) -> None:
    file = tmp_path / "x.linnet"
    entry = "{{\n    param w: f32\n\n    entry {}() -> f32 {{\n        return w\n    }}\n}}\n"
    two = f"module x\n\nblock A {entry.format('f')}\nblock B {entry.format('f')}"
    file.write_text(two)
    program = load_program(file)
    assert program.root is None and [e.block for e in program.entries()] == ["A", "B"]
    with pytest.raises(linnet.PlanError, match="several entries f \\(A, B\\): give the root"):
        program.entry("f")
    with pytest.raises(linnet.PlanError, match="several root blocks \\(A, B\\)"):
        program.parameters()
    assert load_program(file, root="B").entry("f").block == "B"
    with pytest.raises(linnet.PlanError, match="has no block C"):
        load_program(file, root="C")
    file.write_text("module x\n\npub block A {\n    param w: f32\n}\n")
    with pytest.raises(linnet.PlanError, match="no root block, one with entries"):
        load_program(file).parameters()
    assert len(load_program(file, root="A").parameters()) == 1
    file.write_text("module x\n\nentry f() -> f32 {\n    return 1.0\n}\n")
    assert load_program(file).entry("f").kind == "entry" and not load_program(file).parameters()


def test_a_source_with_errors(tmp_path: Path) -> None:
    (tmp_path / "x.linnet").write_text("module x\n\nfn f() -> f32 {\n    return absent\n}\n")
    with pytest.raises(linnet.PlanError, match="the source has 1 error") as error:
        load_program(tmp_path / "x.linnet")
    assert [d.code for d in error.value.diagnostics] == ["E1201"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("H=8", ("H", 8)),
        ("T=bf16", ("T", "bf16")),
        (" S = 2, 3", ("S", (2, 3))),
        ("S=2,", ("S", (2,))),
    ],
)
def test_bindings(text: str, found: tuple[str, object]) -> None:
    assert parse_binding(text) == found == linnet.parse_binding(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("H", "`H` binds nothing: write NAME=VALUE"),
        ("=8", "binds nothing"),
        ("H=", "binds nothing"),
        ("H=-1", "a size is at least 0"),
        ("T=f33", "did you mean f32?"),
        ("T=2.5", "neither a size"),
    ],
)
def test_bindings_that_say_nothing(text: str, message: str) -> None:
    with pytest.raises(linnet.PlanError) as error:
        parse_binding(text)
    assert message in str(error.value)


@pytest.mark.slow
def test_it_needs_no_array_library(tmp_path: Path) -> None:
    (tmp_path / "small.linnet").write_text(SOURCE)
    script = (
        "import sys\nimport linnet\nlinnet.load_program('small.linnet').describe()\n"
        "print(*sorted({'numpy', 'torch', 'ml_dtypes'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_the_reference_takes_what_lower_gives(tmp_path: Path) -> None:
    from linnet.reference import evaluate

    file = tmp_path / "small.linnet"
    file.write_text("module small\n\nentry twice(x: f32) -> f32 {\n    return 2.0 * x\n}\n")
    program = load_program(file)
    assert evaluate(program.lower(), None, [1.5]) == 3.0
    with pytest.raises(PlanError, match=r"not Program: `load_program\(\.\.\.\)\.lower"):
        evaluate(program, None, [1.5])  # type: ignore[arg-type]
    with pytest.raises(LinnetError, match="no such file or directory"):
        load_program(tmp_path / "missing")


GAUGE = """module gauge

block Part {
    param bias: f32? = none

    pub fn forward(x: f32) -> f32 {
        return match bias { some(b) => x + b none => x }
    }
}

pub block Gauge {
    sub parts: [Part; 2]
    sub last: Part? = none

    entry forward(x: f32) -> f32 {
        var y = x
        static for part in parts {
            y = part.forward(y)
        }
        return match last { some(p) => p.forward(y) none => y }
    }
}
"""


def test_an_optional_member_is_taken_or_refused(tmp_path: Path) -> None:
    import numpy as np

    from linnet.reference import evaluate

    (tmp_path / "gauge.linnet").write_text(GAUGE)
    gauge = load_program(tmp_path / "gauge.linnet")
    x = [np.float32(1)]
    members = {"parts.0.bias": np.float32(2), "parts.1.bias": np.float32(3)}
    assert evaluate(gauge.lower(), None, x) == 1
    assert evaluate(gauge.lower(present=members), None, x, members) == 6
    with pytest.raises(PlanError, match=r"forward is given parts.0.bias and 1 more, .*`present="):
        evaluate(gauge.lower(), None, x, members)
    below = {"last.bias": np.float32(4)}
    with pytest.raises(PlanError, match=r"forward is given last.bias, an optional member that"):
        evaluate(gauge.lower(present=members), None, x, {**members, **below})
    assert evaluate(gauge.lower(present=below), None, x, below) == 5
    with pytest.raises(PlanError, match=r"parts.0.bias is missing"):
        evaluate(gauge.lower(present=["parts.1.bias"]), None, x, {"parts.1.bias": np.float32(3)})


TRAITS = """module scored

pub trait Scored<V: Dim, B: Dim>
where V > 1 {
    fn hidden<N: Dim>(x: Tensor[N; i32]) -> Tensor[N, B; f32]
    where N > 0

    /// The first row.
    pub entry first<N: Dim>(x: Tensor[N; i32]) -> Tensor[B; f32]
    where N > V {
        return hidden(x)[0, :]
    }
}

pub block Model<Words: Dim, N: Dim>
where Words > 1 {
    impl Scored<Words, 2 * N>

    param weight: Tensor[Words, 2 * N; f32]
    state calls: i64

    fn hidden<M: Dim>(x: Tensor[M; i32]) -> Tensor[M, 2 * N; f32] {
        calls = calls + 1
        let y[m, n] = weight[x[m], n]
        return y
    }
}
"""


def test_what_a_trait_provides_is_told_as_the_blocks(tmp_path: Path) -> None:
    """In the block's names, with its effects; an own generic that it has too gets another name."""
    file = tmp_path / "scored.linnet"
    file.write_text(TRAITS)
    program = load_program(file)
    assert [b.name for b in program.blocks] == ["Model"]
    [model], [trait] = program.blocks, program.traits
    assert model.traits == ("Scored<Words, 2 * N>",) and [m.required for m in trait.methods] == [
        True,
        False,
    ]
    [entry] = program.entries()
    assert str(entry) == (
        "entry first<N_2: Dim>(x: Tensor[N_2; i32]) -> Tensor[2 * N; f32]\n"
        "    where N_2 > Words\n"
        "    reads and writes calls"
    )
    assert (entry.trait, entry.block, entry.docs) == ("Scored", "Model", "The first row.")
    assert entry.uses == ("weight",)
    assert str(trait).startswith("trait Scored<V: Dim, B: Dim>\n    where V > 1\n    fn hidden")
    with pytest.raises(PlanError, match="Scored is a trait: choose a block that implements it"):
        load_program(file, root="Scored")
