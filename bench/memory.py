"""Peak memory of this process and of its device; needs the standard library alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_kib() -> int:
    """The most memory that this process has held since `reset_peak`; 0 where it cannot be known."""
    return _field("VmHWM")


def reset_peak() -> int:
    """The peak counts from here on; gives what is held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak_kib()
    return _field("VmRSS")


def _field(name: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


class DeviceMemory:
    """What the driver says is used of a CUDA device, above what it was at first."""

    def __init__(self, device: str) -> None:
        self._tool = shutil.which("nvidia-smi") if device.startswith("cuda") else None
        self._index = device.partition(":")[2] or "0"
        self._before = self._now()

    def used_mib(self) -> int | None:
        """MiB more than when this was made; None without a device or its driver's tool."""
        now = self._now()
        return None if now is None or self._before is None else now - self._before

    def _now(self) -> int | None:
        if self._tool is None:
            return None
        query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", self._index]
        try:
            found = subprocess.run([self._tool, *query], capture_output=True, text=True, timeout=20)
            return int(found.stdout.split()[0])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return None
