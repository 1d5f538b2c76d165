"""Models over 8 devices, which a process of its own makes out of one CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("check", ["shards", "gradients", "rules", "wide", "mistakes"])
def test_over_eight_devices(check: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("spread.py")), check],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0 and ran.stdout == f"{check} holds\n", ran.stdout + ran.stderr
