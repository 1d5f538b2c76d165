"""A program spread over devices: pretended ones, that refuse operands of two devices.

This machine has none, so tensors say where they are and keep their values on the CPU (pretend.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from linnet.weights import write_safetensors

from .test_offload import SOURCE, arrays


@pytest.mark.slow
def test_devices(tmp_path: Path) -> None:
    source, weights = tmp_path / "deep.linnet", tmp_path / "deep.safetensors"
    source.write_text(SOURCE)
    write_safetensors(weights, arrays(source))
    script = Path(__file__).with_name("on_pretended.py")
    run = subprocess.run(
        [sys.executable, "-P", script, source, weights],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{script.parent}:{src()}"},
    )
    assert run.returncode == 0, run.stderr


def src() -> Path:
    import linnet

    return Path(linnet.__file__).parents[1]
