"""What a package that is not installed makes of each call: an error that says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """module m
pub block Root {
    param w: Tensor[2; f32]
    pub entry main(x: Tensor[2; f32]) -> Tensor[2; f32] { return x * w }
}
"""
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
MODEL = "smollm2-135m-instruct"  # which is not reached

# What is called, without which package, and what the error then says.
IN_PYTHON = [
    ("linnet.jax.load('m.linnet')", "jax", "linnet.jax.load needs jax", "jax"),
    ("linnet.jax.load_source('m.linnet')", "jax", "linnet.jax.load_source needs jax", "jax"),
    ("linnet.jax.load_model('m.linnet')", "jax", "linnet.jax.load_model needs jax", "jax"),
    ("linnet.jax.load_nnx('m.linnet')", "jax", "linnet.jax.load_nnx needs jax", "flax"),
    ("linnet.jax.load_nnx('m.linnet')", "flax", "linnet.jax.load_nnx needs flax", "flax"),
    ("linnet.jax.to_nnx(None)", "flax", "linnet.jax.to_nnx needs flax", "flax"),
    ("linnet.onnx.load_model('m.linnet')", "onnx", "linnet.onnx.load_model needs onnx", "onnx"),
    (
        "linnet.onnx.load_model('m.linnet')",
        "onnxruntime",
        "linnet.onnx.load_model needs onnxruntime",
        "onnx",
    ),
    (
        "linnet.onnx.export_model('m.linnet')",
        "onnx",
        "linnet.onnx.export_model needs onnx",
        "onnx",
    ),
    ("linnet.torch.load('m.linnet')", "torch", "linnet.torch.load needs torch", "torch"),
    ("linnet.serve.Engine", "torch", "linnet.serve.Engine needs torch", "torch,serve"),
    ("linnet.nest.load(MODEL)", "ml_dtypes", "linnet.nest needs ml_dtypes", "nest"),
    *(
        (f"linnet.nest.load(MODEL, backend={backend!r}, weights={{}})", package, said, extra)
        for backend, package, said, extra in (
            ("torch", "torch", "linnet.torch.load needs torch", "torch"),
            ("jax", "jax", "linnet.jax.load needs jax", "jax"),
            ("jax_source", "jax", "linnet.jax.load_source needs jax", "jax"),
            ("jax_model", "jax", "linnet.jax.load_model needs jax", "jax"),
            ("nnx", "flax", "linnet.jax.load_nnx needs flax", "flax"),
            ("onnx_model", "onnxruntime", "linnet.onnx.load_model needs onnxruntime", "onnx"),
        )
    ),
]
COMMANDS = [
    ("jax m.linnet", "jax", "linnet.jax needs jax", "jax"),
    ("onnx m.linnet", "onnx", "linnet.onnx needs onnx", "onnx"),
    ("torch m.linnet", "torch", "linnet.torch needs torch", "torch"),
    ("explain --backend jax m.linnet", "jax", "linnet.jax needs jax", "jax"),
    ("lsp", "pygls", "linnet lsp needs pygls", "lsp"),
    *(
        (f"{command} --backend {backend} {MODEL}", package, said, extra)
        for command in ("run", "chat", "serve")
        for backend, package, said, extra in (
            ("jax", "jax", "linnet.jax.load_model needs jax", "jax"),
            ("onnx", "onnxruntime", "linnet.onnx.load_model needs onnxruntime", "onnx"),
        )
    ),
    (f"run --backend jax {MODEL} hi", "torch", "linnet run needs torch", "torch,jax,nest"),
    (f"run {MODEL} hi", "torch", "linnet run needs torch", "torch,nest"),
    (f"chat {MODEL}", "torch", "linnet chat needs torch", "torch,nest"),
    (f"run {MODEL} hi", "tokenizers", "linnet run needs tokenizers", "torch,nest"),
    (f"serve {MODEL}", "uvicorn", "linnet serve needs uvicorn", "torch,serve"),
    (
        f"serve --backend onnx {MODEL}",
        "uvicorn",
        "linnet serve needs uvicorn",
        "torch,onnx,serve",
    ),
]
QUICK = (IN_PYTHON[0], IN_PYTHON[3], COMMANDS[0])


def ran(code: str, blocked: str, place: Path) -> subprocess.CompletedProcess[str]:
    (place / "m.linnet").write_text(SOURCE)
    return subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked={blocked}) + code],
        cwd=place,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def check_call(case: tuple[str, str, str, str], place: Path) -> None:
    code, blocked, said, extra = case
    # An ImportError, for whoever tries another way then, and one of ours.
    wrapped = f"""
MODEL = {MODEL!r}
try:
    import {".".join(code.split("(")[0].split(".")[:2])}
    {code}
except ImportError as error:
    from linnet import PlanError
    assert isinstance(error, PlanError)
    print(error)
"""
    done = ran(wrapped, blocked, place)
    expected = f"{said}, which is not installed: pip install 'linnet[{extra}]'\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def check_command(case: tuple[str, str, str, str], place: Path) -> None:
    words, blocked, said, extra = case
    code = f"from linnet.cli import main; sys.exit(main({words.split()!r}))"
    done = ran(code, blocked, place)
    expected = f"linnet: {said}, which is not installed: pip install 'linnet[{extra}]'"
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [expected]), done.stderr


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case[0]} without {case[1]}")
def test_the_first_calls(case: tuple[str, str, str, str], tmp_path: Path) -> None:
    (check_call if case in IN_PYTHON else check_command)(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_PYTHON, ids=lambda case: f"{case[0]} without {case[1]}")
def test_in_python(case: tuple[str, str, str, str], tmp_path: Path) -> None:
    check_call(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: f"{case[0]} without {case[1]}")
def test_commands(case: tuple[str, str, str, str], tmp_path: Path) -> None:
    check_command(case, tmp_path)


def test_stablehlo_needs_no_framework(tmp_path: Path) -> None:
    code = "from linnet.cli import main; sys.exit(main(['stablehlo', 'm.linnet']))"
    done = ran(code, "jax", tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("module @"), done.stderr
