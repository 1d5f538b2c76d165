"""The C kernels against formulas in f64, over shapes, dtypes, strides and edge values."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from linnet import native as build
from linnet.torch import native, quantised
from linnet.torch.native import ops

# Rounded once to the dtype: half a unit of the last place, and what f32 sums lose.
NEAR = {torch.float32: 2e-6, torch.bfloat16: 4.5e-3, torch.float16: 6e-4}
DTYPES = list(NEAR)


@pytest.fixture(autouse=True, params=[1])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread unless a test asks for more: on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    source = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=source).to(dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype and found.shape == expected.shape
    largest = expected.abs().max().item() if expected.numel() else 0.0
    assert torch.allclose(found.double(), expected, rtol=NEAR[dtype], atol=NEAR[dtype] * largest)


def test_there_is_a_compiler_here() -> None:
    assert native.available()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8, 9, 13, 24, 97, 600])
def test_products(dtype: torch.dtype, rows: int) -> None:
    for width, count in ((1, 1), (7, 5), (64, 33), (600, 40), (33, 0), (0, 3), (1200, 17)):
        x, weight = drawn(rows, width, dtype=dtype), drawn(count, width, dtype=dtype)
        close(ops.linear(x, weight), x.double() @ weight.double().T, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_parts(dtype: torch.dtype) -> None:
    """Rows that lie apart, axes turned, more axes, one axis."""
    whole, weight = drawn(6, 3, 80, dtype=dtype), drawn(50, 80, dtype=dtype)
    for x in (whole, whole[:, 1], whole[::2, :, :], whole.transpose(0, 1), whole[2, 0]):
        close(ops.linear(x, weight), x.double() @ weight.double().T, dtype)
        close(ops.linear(x, weight[10:30]), x.double() @ weight[10:30].double().T, dtype)
    x, turned = whole[..., 5:55], drawn(50, 30, dtype=dtype).T
    close(ops.linear(x, turned), x.double() @ turned.double().T, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_rotations_and_gates(dtype: torch.dtype) -> None:
    for width in (1, 7, 64, 100):
        x, weight = drawn(3, 5, width, dtype=dtype), drawn(width, dtype=dtype)
        quotient = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
        expected = quotient.to(dtype).double() * weight.double()
        # The quotient may round the other way where it lies between two numbers of the dtype.
        found = ops.rms_norm(x, weight, 1e-5)
        assert torch.allclose(found.double(), expected, rtol=2.5 * NEAR[dtype], atol=1e-6)
    for width in (2, 6, 64, 80):
        heads = drawn(2, 5, 3 * width, dtype=dtype).reshape(2, 5, 3, width).transpose(1, 2)
        cosines, sines = drawn(5, width, dtype=dtype), drawn(5, width, dtype=dtype) * 2
        half = width // 2
        turned = torch.cat((-heads[..., half:], heads[..., :half]), -1)
        expected = heads.double() * cosines.double() + turned.double() * sines.double()
        close(ops.rope(heads, cosines, sines), expected, dtype)
    for shape in ((2, 3, 100), (1, 74), (16,), (0, 4), (5, 1, 6)):
        gate, up = drawn(*shape, dtype=dtype) * 4, drawn(*shape, dtype=dtype)
        expected = gate.double() * gate.double().sigmoid() * up.double()
        close(ops.silu_gated(gate, up), expected, dtype)
        left, right = torch.cat((gate, up), -1).chunk(2, -1)
        close(ops.silu_gated(left, right), expected, dtype)
    extreme = torch.tensor([0.0, -0.0, 1e4, -1e4, 88.0, -88.0], dtype=dtype)
    close(ops.silu_gated(extreme, torch.ones_like(extreme)), extreme.double().relu(), dtype)


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    at: Tensor,
    window: int,
    sinks: Tensor | None,
) -> Tensor:
    """The formula, with a score of -1e30 for what is not seen."""
    rows, _, queries, width = query.shape
    groups, keys = key.shape[1:3]
    position = at.reshape(-1, 1) + torch.arange(queries)
    place = torch.arange(keys)
    seen = place <= position[:, :, None]
    if window:
        seen &= position[:, :, None] - place < window
    own = query.double().reshape(rows, groups, -1, queries, width)
    scores = own @ key.double()[:, :, None].transpose(-1, -2) * 0.125
    scores = torch.where(seen[:, None, None], scores, -1e30)
    if sinks is not None:
        sink = sinks.double().reshape(1, groups, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    weights = scores.softmax(-1)[..., :keys]
    return (weights @ value.double()[:, :, None]).reshape(query.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("heads, groups", [(4, 4), (14, 2)])
def test_attention_over_what_is_written(
    dtype: torch.dtype, queries: int, heads: int, groups: int
) -> None:
    for width, keys in ((16, 1), (48, 40), (64, 100)):
        query = drawn(2, queries, heads * width, dtype=dtype)
        query = query.reshape(2, queries, heads, width).transpose(1, 2)
        key, value = (drawn(2, groups, keys + 5, width, dtype=dtype)[:, :, :keys] for _ in "kv")
        for at in (0, 5, keys - 1, keys + 50, -2):
            for window in (0, 1, 17):
                for sinks in (None, drawn(heads, dtype=dtype)):
                    position = torch.tensor(at, dtype=torch.int32)
                    found = ops.attend(query, key, value, 0.125, position, window, sinks)
                    close(found, attended(query, key, value, position, window, sinks), dtype)
        each = torch.tensor([0, keys - 1], dtype=torch.int32)
        close(
            ops.attend(query, key, value, 0.125, each),
            attended(query, key, value, each, 0, None),
            dtype,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 5, 48, 61, 130])
def test_attention_of_a_prompt(dtype: torch.dtype, queries: int) -> None:
    for heads, groups, width in ((4, 4, 16), (6, 2, 40), (2, 1, 7)):
        query = drawn(2, queries, heads * width, dtype=dtype)
        query = query.reshape(2, queries, heads, width).transpose(1, 2)
        key, value = (drawn(2, groups, queries + 60, width, dtype=dtype) for _ in "kv")
        for at in (0, 7, 60):
            for window in (None, 1, 20, 300):
                sinks = drawn(heads, dtype=dtype) if window == 20 else None
                found = ops.attend_prompt(query, key, value, 0.125, at, window, sinks)
                position = torch.tensor(at)
                close(found, attended(query, key, value, position, window or 0, sinks), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", DTYPES)
def test_keys_of_a_dtype_of_their_own(dtype: torch.dtype, kept: torch.dtype) -> None:
    query = drawn(2, 6, 6, 48, dtype=dtype)
    key, value = (drawn(2, 2, 45, 48, dtype=kept)[:, :, :40] for _ in "kv")
    for sinks in (None, drawn(6, dtype=dtype)):
        wanted = attended(query, key, value, torch.tensor(30), 17, sinks)
        close(ops.attend_prompt(query, key, value, 0.125, 30, 17, sinks), wanted, dtype)
        few = ops.attend(query[:, :, :2], key, value, 0.125, 30, 17, sinks)
        close(few, wanted[:, :, :2], dtype)


@pytest.mark.parametrize("queries", [1, 6])
def test_no_number_among_what_is_attended(queries: int) -> None:
    """NaN is not swallowed, and a score of minus infinity weighs nothing."""
    for keys in (8, 33):
        query, key, value = drawn(1, 2, queries, 16), drawn(1, 1, keys, 16), drawn(1, 1, keys, 16)
        query[..., 0] = query[..., 0].abs() + 1
        for bad in (float("nan"), float("-inf")):
            key[0, 0, :2, 0] = bad
            at = keys - queries
            place = torch.tensor(at, dtype=torch.int32)
            expected = attended(query, key, value, place, 0, None)
            found = (
                ops.attend(query, key, value, 0.125, place)
                if queries < 5
                else ops.attend_prompt(query, key, value, 0.125, at)
            )
            assert torch.equal(found.isnan(), expected.isnan()), (keys, bad)
            assert torch.allclose(found.double(), expected, atol=1e-5, equal_nan=True)


def test_sinks_that_lie_apart() -> None:
    query, key = drawn(1, 4, 6, 16), drawn(1, 2, 40, 16)
    apart = drawn(8)[::2]
    for few in (query, query[:, :, :2]):
        kernel = ops.attend_prompt if few is query else ops.attend
        found = kernel(few, key, key, 0.125, 5, None, apart)
        close(found, attended(few, key, key, torch.tensor(5), 0, apart), torch.float32)


def test_rows_of_nothing() -> None:
    assert ops.rms_norm(drawn(3, 0), drawn(0), 1e-5).shape == (3, 0)


def test_what_new_tensors_are_by_default_does_not_matter() -> None:
    x, weight, query, key = drawn(3, 40), drawn(7, 40), drawn(1, 4, 2, 16), drawn(1, 4, 99, 16)
    norm, cache, at = drawn(40), torch.zeros(1, 4, 99, 16), torch.tensor([1, 2], dtype=torch.int32)
    codes, scales = bytes_of(5, 16), drawn(5)

    def run() -> list[Tensor]:
        ops.put_span_(cache, query, 3)
        return [
            ops.linear(x, weight),
            ops.rms_norm(x, norm, 1e-5),
            ops.silu_gated(x, x),
            ops.rope(query, key[0, 0, :2], key[0, 0, :2]),
            ops.attend(query, key, key, 0.125, 50),
            ops.attend_prompt(query, key, key, 0.125, 50),
            ops.rows_of(weight, at),
            ops.packed_linear(query[0, 0], codes, ops.FP8, scales),
            cache,
        ]

    expected = run()
    with torch.device("meta"):
        assert all(map(torch.equal, run(), expected))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert all(map(torch.equal, run(), expected))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
def test_a_thread_that_ends_leaves_no_memory() -> None:
    x, weight = drawn(9, 8192, dtype=torch.bfloat16), drawn(512, 8192, dtype=torch.bfloat16)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def in_thread() -> None:
        other = threading.Thread(target=ops.linear, args=(x, weight))
        other.start()
        other.join()

    in_thread()
    before = resident()
    for _ in range(6):
        in_thread()  # 21 MB of its own
    assert resident() - before < 63 << 20


def test_a_damaged_library_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = native.library()
    assert whole is not None

    def compiled(compiler: str, path: Path) -> bool:
        path.write_bytes(Path(whole._name).read_bytes())
        return True

    monkeypatch.setenv("LINNET_NATIVE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compiled)
    (tmp_path / Path(whole._name).name).write_bytes(b"\x7fELF")
    assert build.library.__wrapped__() is not None


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LINNET_NATIVE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert build.library.__wrapped__() is None


def test_what_a_kernel_does_not_take() -> None:
    x, weight = drawn(2, 8), drawn(3, 8)
    assert native.takes(x, weight)
    assert not native.takes(x.double(), weight.double())
    assert not native.takes(x.clone().requires_grad_(), weight)
    with torch.no_grad():
        assert native.takes(x.clone().requires_grad_(), weight)
    inside = torch.vmap(lambda row: row * native.takes(row, weight))(x)
    assert not inside.any()


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_the_team_does_not_matter(threads: None) -> None:
    x, weight = drawn(40, 200), drawn(700, 200)
    close(ops.linear(x, weight), x.double() @ weight.double().T, torch.float32)
    close(ops.linear(x[:1], weight), x[:1].double() @ weight.double().T, torch.float32)
    query, key = drawn(1, 4, 1, 64), drawn(1, 2, 999, 64)
    at = torch.tensor(997, dtype=torch.int32)
    found = ops.attend(query, key, key, 0.125, at)
    close(found, attended(query, key, key, at, 0, None), torch.float32)
    query = drawn(1, 4, 300, 64)
    found = ops.attend_prompt(query, key, key, 0.125, 100)
    close(found, attended(query, key, key, torch.tensor(100), 0, None), torch.float32)


@pytest.mark.slow
def test_without_a_compiler() -> None:
    """PyTorch's own kernels run, with the same results."""
    program = (
        "import torch; from linnet.torch import kernels, native\n"
        "torch.manual_seed(0); x, w = torch.randn(3, 64), torch.randn(64)\n"
        "print(native.available()); print(kernels.rms_norm(x, w, 1e-5).sum().item())"
    )
    found = []
    for environment in ({"LINNET_NATIVE": "0"}, {}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout.split())
    assert [answers[0] for answers in found] == ["False", "True"]
    assert float(found[0][1]) == pytest.approx(float(found[1][1]), rel=1e-5)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 50, 520])
def test_weights_as_std_quant_stores_them(dtype: torch.dtype, rows: int) -> None:
    count = 37
    for groups, half in ((700, 1), (5, 3), (3, 64), (2, 16), (1, 4)):
        x = drawn(2, rows, groups * 2 * half, dtype=dtype)[0]
        packed, zero = bytes_of(count, groups, half), bytes_of(count, groups) & 15
        scale = drawn(count, groups, dtype=dtype)
        weight = quantised.dequantize_int4_groups(packed, scale, zero).double()
        found = ops.packed_linear(x, packed, ops.INT4_GROUPS, scale, zero, dtype)
        close(found, x.double() @ weight.T, dtype)
    for width in (1, 7, 8, 300, 700):
        x, packed = drawn(rows, width, dtype=dtype), bytes_of(count, width)
        for scale in (drawn(count), drawn(count).bfloat16()):
            weight = quantised.decode_fp8(packed).double() * scale.double()[:, None]
            found = ops.packed_linear(x / 64, packed, ops.FP8, scale)
            close(found, (x / 64).double() @ weight.T, dtype)
    for groups in (1, 3, 22):
        x, packed = drawn(rows, groups * 32, dtype=dtype), bytes_of(count, groups, 16)
        scales = torch.randint(120, 132, (count, groups), dtype=torch.uint8)
        weight = quantised._mxfp4(packed, scales, dtype).double()
        found = ops.packed_linear(x, packed, ops.MXFP4, scales, rounded=dtype)
        close(found, x.double() @ weight.T, dtype)


def test_every_code_of_few_bits() -> None:
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    found = ops.packed_linear(torch.ones(1, 1), every, ops.FP8, torch.ones(256))
    assert torch.equal(found[0], quantised.decode_fp8(every)[:, 0])
    blocks = torch.arange(256, dtype=torch.uint8).reshape(16, 1, 16)
    for scale in (0, 66, 127, 190, 255):
        scales = torch.full((16, 1), scale, dtype=torch.uint8)
        each = ops.packed_linear(torch.eye(32), blocks, ops.MXFP4, scales)
        assert torch.equal(each, quantised._mxfp4(blocks, scales, torch.float32).T)
    packed = torch.arange(256, dtype=torch.uint8).reshape(16, 1, 16)
    zero, scale = torch.arange(16, dtype=torch.uint8)[:, None], torch.full((16, 1), 0.1)
    each = ops.packed_linear(torch.eye(32), packed, ops.INT4_GROUPS, scale, zero)
    assert torch.equal(each, quantised.dequantize_int4_groups(packed, scale, zero).T)
