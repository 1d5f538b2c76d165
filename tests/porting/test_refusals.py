"""What cannot be imported is said, all at once, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from linnet.diagnostics import LinnetError
from linnet.jax import ExportError, export_linnet, import_stablehlo

from .importing import assert_same, checked, evaluated, members, shaped

pytestmark = pytest.mark.slow

X = np.ones((3, 4), np.float32)


def printed(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def called_back(x: Any) -> Any:
    return jax.pure_callback(lambda y: y, shaped(x.shape, x.dtype), x)


REFUSED: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "unknown primitives, all of them": (
        lambda x: (jnp.linalg.svd(x)[1], jax.lax.bessel_i1e(x), jnp.fft.fft(x).real),
        ["operations have no translation", "`bessel_i1e` at ", "`svd` at ", "test_refusals.py:"],
    ),
    "effects": (printed, ["`debug_print`", "it has effects"]),
    "callbacks": (called_back, ["`pure_callback`", "no translation"]),
    "random numbers": (
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
        ["`random_seed` at ", "draw them outside"],
    ),
    "complex numbers": (lambda x: jnp.abs(x + 1j), ["complex64 has no counterpart"]),
    "fp8": (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), ["float8_e4m3fn has no"]),
    "several sort keys": (
        lambda x: lax.sort((x, x), num_keys=2),
        ["`sort`", "by several keys is not translated"],
    ),
    "in a loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: lax.bessel_i1e(c), x),
        ["`bessel_i1e` at "],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    function, words = REFUSED[name]
    with pytest.raises(ExportError) as caught:
        export_linnet(lambda _, x: function(x), {}, (X,), output=tmp_path / "m")
    assert isinstance(caught.value, LinnetError)
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"params": {"w": np.ones(3, np.complex64)}}, "the parameter `w`: the dtype complex64"),
        ({"params": {"w": jnp.ones(3, jnp.float8_e5m2)}}, "the parameter `w`: the dtype float8"),
        ({"example_inputs": X}, "example_inputs are a ndarray, expected a tuple"),
        ({"example_inputs": (X.astype(np.complex64),)}, "the input `x`: the dtype complex64"),
        ({"root_name": "model"}, "root_name 'model' cannot be a block's name"),
        ({"module_name": "My Model"}, "module_name 'My Model' .* `my_model` could be"),
        ({"function": lambda p, x: None}, "returns nothing"),
        ({"function": lambda p, x: x if x.sum() > 0 else -x}, "JAX cannot trace the function"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"function": lambda p, x: x, "params": {}, "example_inputs": (X,), **options}
    with pytest.raises(ExportError, match=words):
        export_linnet(**given, output=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ExportError, match="is there already"):
        export_linnet(lambda _, x: x, {}, (X,), output=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    (tmp_path / "empty").mkdir()
    export_linnet(lambda _, x: x, {}, (X,), output=tmp_path / "empty")
    assert (tmp_path / "empty/linnet.toml").is_file()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from linnet.porting import package

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package, "write_safetensors", full)
    with pytest.raises(ExportError, match="No space left on device; nothing was written"):
        export_linnet(lambda p, x: x * p["a"], {"a": X}, (X,), output=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_what_nothing_reads_is_left_out(tmp_path: Path) -> None:
    params = {"used": X, "unused": X, "block": {"also": X}}
    result = export_linnet(lambda p, x: x + p["used"], params, (X,), output=tmp_path / "m")
    assert result.notes == ("nothing reads `block.also`, `unused`: left out",)
    assert set(members(result)) == {"used"} and "also" not in checked(result)


def test_names_that_the_language_has(tmp_path: Path) -> None:
    words = [
        "kernel",
        "let",
        "exp",
        "forward",
        "x",
        "b",
        "Tensor",
        "for",
        "select",
        "3d",
        "a-b",
        "S",
    ]
    params = {word: np.float32(at + 1) for at, word in enumerate(words)}
    params["state"] = {"param": np.float32(7), "i": np.float32(0.5), "softmax": np.float32(2)}

    def odd(params: Any, x: Any) -> Any:
        total = x
        for at, word in enumerate(words):
            total = total * 0.5 + params[word] * (at + 1)
        state = params["state"]
        y = jax.nn.softmax(total * state["param"] + state["i"]) * state["softmax"]
        return y @ y.T

    example = (shaped(export.symbolic_shape("b, s"), jnp.float32),)
    result = export_linnet(odd, params, example, output=tmp_path / "m")
    checked(result)
    assert_same(evaluated(result, [X]), [odd(params, X)])


def test_inputs_that_are_called_as_the_language_is(tmp_path: Path) -> None:
    def odd(params: Any, let: Any, exp: Any, h: Any, relu: Any) -> Any:
        return {"out": jax.nn.relu(let @ exp.T) + h, "more": relu}

    given = (X, X, np.float32(2), X)
    result = export_linnet(odd, {}, given, output=tmp_path / "m")
    checked(result)
    wanted = jax.tree_util.tree_leaves(odd({}, *given))
    assert_same(evaluated(result, given), wanted)


MODULE = jax.jit(lambda w, x: x @ w)


@pytest.mark.parametrize(
    ("text", "params", "words"),
    [
        ("module {", {}, "this is no StableHLO module"),
        (b"nothing", {}, "this is no StableHLO module"),
        ("module {}", {}, "has no function `main`"),
        (None, {"w": np.ones((4, 3), np.float32)}, "argument 0 of `main` is .*4, 5; f32.* `w` is"),
        (None, [X, X, X], "argument 0 of `main` is|`main` has 2 arguments, and there are 3"),
    ],
)
def test_wrong_modules(text: Any, params: Any, words: str, tmp_path: Path) -> None:
    if text is None:
        text = MODULE.lower(np.ones((4, 5), np.float32), X).as_text()
    with pytest.raises(ExportError, match=words):
        import_stablehlo(text, params, output=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_operations_of_a_module_that_are_unknown(tmp_path: Path) -> None:
    text = (
        jax.jit(lambda x: (lax.cumsum(jnp.fft.rfft(x).real), lax.linalg.qr(x)[0]))
        .lower(X)
        .as_text()
    )
    with pytest.raises(ExportError, match=r"`stablehlo\.fft` at line \d+") as caught:
        import_stablehlo(text, {}, output=tmp_path / "m")
    assert "custom_call" in str(caught.value) and "stablehlo.real" not in str(caught.value)
    dynamic = export.export(jax.jit(lambda x: x * 2))(
        shaped(export.symbolic_shape("n, 4"), X.dtype)
    )
    with pytest.raises(ExportError, match="has no fixed shape; export the function"):
        import_stablehlo(dynamic.mlir_module(), {}, output=tmp_path / "m")
