"""Every kernel does what its op's body says, within what its policy allows."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import linnet
from backends.common import CPU, assert_close, flat
from linnet.backends import Kernel, Sample
from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.core.build import Builder
from linnet.core.ir import Call, Function, Program
from linnet.core.lower import lower_function
from linnet.policy import tolerance
from linnet.reference import evaluate_function
from linnet.syntax import tree
from linnet.torch import LinnetModule
from linnet.torch import kernels as K
from linnet.torch.runtime import _tensor_of
from linnet.types import DType, TensorType
from linnet.weights import DTYPES
from linnet.workspace import Workspace

STD = Path(linnet.__file__).parent / "std"
ROWS = [(op, i) for op, row in K.KERNELS.items() for i in range(len(row))]
FLOATS = ("f32", "bf16", "f16", "f64")


@cache
def analysis(module: str) -> Analysis:
    return check(Workspace(), STD.joinpath(*module.split(".")[1:]).with_suffix(".linnet"))


@cache
def op_function(
    op: str, dtype: str, ranks: tuple[tuple[str, int], ...], absent: Any, kept: str | None = None
) -> Program:
    """The op for one dtype, its keys and values `kept` in another."""
    module, _, name = op.partition("::")
    fn = analysis(module).modules[module].items[name]
    assert isinstance(fn, tree.Fn)
    dtypes = {g.name.text: dtype for g in fn.generics if g.kind.text not in ("Dim", "Shape")}
    if kept is not None:
        dtypes["Kv"] = kept
    return lower_function(
        analysis(module), module, name, dtypes=dtypes, ranks=dict(ranks), absent=absent
    )


def generics_of(op: str) -> set[str]:
    module, _, name = op.partition("::")
    fn = analysis(module).modules[module].items[name]
    assert isinstance(fn, tree.Fn)
    return {generic.name.text for generic in fn.generics}


def the_op(op: str, sample: Sample, dtype: str, kept: str | None = None) -> Function:
    """The op as the sample calls it; a pack has as many axes as the sample has sizes for it."""
    packs = {"S": 0, "B": 0}
    for name in sample.dims:
        head, _, number = name.partition("_")
        if number:
            packs[head] += 1
    program = op_function(op, dtype, tuple(packs.items()), sample.absent, kept)
    return program.entries[op.partition("::")[2]]


def calling(function: Function, sample: Sample) -> Program:
    """A program whose entry calls the op, its sizes bound."""
    b = Builder()
    sizes = {name: linnet_dim(sample.dims.get(name, 0)) for name in function.dims}
    params = []
    for p in function.params:
        assert isinstance(p.of, TensorType)
        shape = tuple(axis.substitute(sizes) for axis in p.of.shape)  # type: ignore[union-attr]
        params.append(b.param(p.name, TensorType(shape, p.of.dtype)))
    call = b.call(function, params, [sizes[name] for name in function.dims])
    entry = Function(
        "run", "entry", None, None, (), tuple(params), b.results(call), (), (), function.returns
    )
    manifest = op_manifest()
    return Program("test", {"run": entry}, {"run": entry}, manifest, {}, "run")


def linnet_dim(size: int) -> Any:
    from linnet.dims import Dim

    return Dim.of(size)


def op_manifest() -> Any:
    from linnet.core.ir import Manifest

    return Manifest("test", ())


def inputs_of(function: Function, sample: Sample, seed: int, kind: str) -> list[np.ndarray]:
    """Arrays for the op's parameters: plain, or with ties, zeros, infinities and NaN."""
    draw = np.random.default_rng(seed)
    out: list[np.ndarray] = []
    for p in function.params:
        assert isinstance(p.of, TensorType) and isinstance(p.of.dtype, DType)
        shape = tuple(axis.evaluate(sample.dims) for axis in p.of.shape)  # type: ignore[union-attr]
        to = DTYPES[p.of.dtype.name]
        low, high = sample.ranges.get(p.name, (-3, 3))
        if p.of.dtype.name == "bool":
            value: Any = draw.random(shape) < (0.0 if kind == "unseen" else 0.5)
        elif p.name in sample.ranges and p.of.dtype.is_integer:
            value = draw.integers(int(low), int(high) + 1, shape)
        elif p.name in sample.ranges:
            value = draw.uniform(low, high, shape)
        else:
            value = draw.standard_normal(shape) * 2
            if kind == "special":
                edges = [0.0, -0.0, 1.0, 1.0, -2.0, np.inf, -np.inf, np.nan]
                value = draw.choice(edges, shape)
        out.append(np.asarray(value).astype(to))
    return out


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, laid out column by column."""
    return x.mT.contiguous().mT if x.ndim >= 2 else x


def bits(x: Any) -> np.ndarray:
    a = np.asarray(x)
    return a.view(np.uint8) if a.dtype.kind not in "biu" else a


def runs(op: str, kernel: Kernel, dtype: str, monkeypatch: Any, kept: str | None = None) -> int:
    """Every sample the kernel accepts agrees; how many there were."""
    count = 0
    for seed, sample in enumerate(kernel.samples):
        function = the_op(op, sample, dtype, kept)
        program = calling(function, sample)
        call = program.entries["run"].results[0].of  # type: ignore[attr-defined]
        assert isinstance(call, Call)
        if kernel.accepts(call) is not None:
            continue
        count += 1
        with monkeypatch.context() as m:
            m.setattr("linnet.torch.emit.KERNELS", {op: (kernel,)})
            native = LinnetModule(program, "fast", CPU)
        text = native.generated_source()
        assert f"def {function.name}" not in text, "the body, not the kernel"
        assert not kernel.run or kernel.run in text
        masked = any(p.name == "mask" for p in function.params)
        kinds = ["plain", *(["special"] if kernel.policy == "exact" else [])]
        # A query that may see nothing gets the mean of all values, not NaN.
        for kind in [*kinds, *(["unseen"] if masked else [])]:
            arrays = inputs_of(function, sample, seed, kind)
            wanted = evaluate_function(function, arrays, sample.dims)
            for layout in (lambda x: x, strided):
                tensors = [layout(_tensor_of(a)) for a in arrays]
                found = flat(native.run_entry("run", tensors))
                for a, b in zip(wanted, found, strict=True):
                    name = str(np.asarray(a).dtype)
                    close = tolerance(kernel.policy, dtype if name != "float32" else "f32")
                    if dtype in ("bf16", "f16") and name == "float32":
                        close = tolerance(kernel.policy, dtype)  # from inputs that were rounded
                    what = f"{op} {kernel.run} {dtype} {kept or dtype} {sample} {kind}"
                    assert_close(a, b, 0.0 if kernel.policy == "exact" else close, what)
    return count


@pytest.mark.parametrize(("op", "index"), ROWS, ids=[f"{o}-{i}" for o, i in ROWS])
@pytest.mark.slow
def test_a_kernel_agrees_with_its_op(op: str, index: int, monkeypatch: Any) -> None:
    kernel = K.KERNELS[op][index]
    assert sum(runs(op, kernel, dtype, monkeypatch) for dtype in FLOATS[:2]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("op", K.KERNELS)
def test_the_other_float_dtypes(op: str, monkeypatch: Any) -> None:
    for kernel in K.KERNELS[op]:
        for dtype in FLOATS[2:]:
            runs(op, kernel, dtype, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in K.KERNELS if "Kv" in generics_of(op)])
def test_keys_and_values_kept_in_another_dtype(op: str, monkeypatch: Any) -> None:
    for kernel in K.KERNELS[op]:
        for dtype, kept in (("f32", "bf16"), ("f32", "f16"), ("bf16", "f32"), ("f32", "f64")):
            assert runs(op, kernel, dtype, monkeypatch, kept) > 0 or dtype == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("op", K.KERNELS)
def test_a_kernel_has_the_gradient_of_its_op(op: str, monkeypatch: Any) -> None:
    """In each input that is a float, for a drawn gradient of the result; eps is a constant."""
    draw = torch.Generator().manual_seed(3)
    for kernel, (seed, sample) in product(K.KERNELS[op], enumerate(K.KERNELS[op][0].samples)):
        for dtype in ("f64", "f32"):
            program = calling(the_op(op, sample, dtype), sample)
            call = program.entries["run"].results[0].of  # type: ignore[attr-defined]
            if kernel.accepts(call) is not None:
                continue
            function, ways = the_op(op, sample, dtype), []
            for kernels in ({}, {op: (kernel,)}):
                with monkeypatch.context() as m:
                    m.setattr("linnet.torch.emit.KERNELS", kernels)
                    ways.append(LinnetModule(program, "fast", CPU))
            tensors = [_tensor_of(a) for a in inputs_of(function, sample, seed, "plain")]
            inputs = [
                tensor.requires_grad_(True)
                for param, tensor in zip(function.params, tensors, strict=True)
                if tensor.is_floating_point() and param.name != "eps"
            ]
            wanted, found = (flat(way.run_entry("run", tensors)) for way in ways)
            for a, b in zip(wanted, found, strict=True):
                if not a.requires_grad or not a.numel():
                    continue
                assert b.requires_grad, f"{op} {kernel.run}"
                up = torch.randn(a.shape, generator=draw, dtype=a.dtype)
                gradients = (
                    torch.autograd.grad(y, inputs, up, retain_graph=True, allow_unused=True)
                    for y in (a, b)
                )
                for x, g, h in zip(inputs, *gradients, strict=True):
                    none = torch.zeros_like(x)
                    g, h = (none if one is None else one for one in (g, h))
                    error = float((g - h).abs().max()) if x.numel() else 0.0
                    # Where a gradient cancels to nothing it is as far off as its terms are.
                    close = 2e-4 * max(1.0, float(g.abs().max()) if x.numel() else 0.0)
                    assert error <= close, f"{op} {kernel.run} {dtype} {sample}: off by {error}"


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in K.KERNELS if op.startswith("std.nn.attention::")])
def test_attention_that_waits_for_no_device(op: str, monkeypatch: Any) -> None:
    """What runs on a GPU, on the CPU: no position is read as a number."""
    monkeypatch.setattr("linnet.torch.attend.readable", lambda x: False)
    assert all(runs(op, kernel, "f32", monkeypatch) for kernel in K.KERNELS[op])


def test_writes_that_do_not_wait_for_the_device_write_the_same() -> None:
    """What runs on a GPU, on the CPU: places outside, and (0, 0) written or not."""
    draw = torch.Generator().manual_seed(0)
    for rows, at in [
        ([0, 1, 2], [0, 1, 9]),
        ([5, 1, -1], [0, 1, 0]),
        ([0, 2, 1], [4, -1, 5]),
        ([3, 3, 3], [0, 0, 0]),
        ([], []),
    ]:
        cache = torch.randn(3, 2, 5, 4, generator=draw)
        value = torch.randn(len(rows), 2, 4, generator=draw)
        wanted, found = cache.clone(), cache.clone()
        row, place = torch.tensor(rows, dtype=torch.long), torch.tensor(at, dtype=torch.long)
        inside = (row >= 0) & (row < 3) & (place >= 0) & (place < 5)
        K._put(wanted, row, place, value)
        K._put_unwaiting(found, row, place, inside, value)
        assert torch.equal(wanted, found), (rows, at)


def test_what_a_kernel_refuses_is_said() -> None:
    from linnet.backends import choose

    program = op_function("std.nn.attention::attention", "f16", (), ())
    function = program.entries["attention"]
    b = Builder()
    params = [b.param(p.name, p.of) for p in function.params]
    call = b.call(function, params, [linnet_dim(2)] * len(function.dims))
    assert isinstance(call, Call)
    kernel, refusals = choose(K.KERNELS, call, "equivalent")
    assert kernel is not None and kernel.run == "attend.attention_f32"
    assert refusals == {"attend.attention": "computes in f16, the op in f32"}
    kernel, refusals = choose(K.KERNELS, call, "fast")
    assert kernel is not None and kernel.run == "attend.attention"
    assert choose(K.KERNELS, call, "exact")[0] is None
    assert "needs numerics='equivalent'" in choose(K.KERNELS, call, "exact")[1].values()
