"""Peak memory of this process and of its device; needs the standard library alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def peak_kib(process: int | None = None) -> int:
    """The most memory that this process has held since `reset_peak`; 0 where it cannot be known.

    With a process's id, what that one has held since it was started.
    """
    return _field("VmHWM", process)


def held_kib(process: int) -> int:
    """The memory that a process holds now."""
    return _field("VmRSS", process)


def reset_peak() -> int:
    """The peak counts from here on; gives what is held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak_kib()
    return _field("VmRSS")


def _field(name: str, process: int | None = None) -> int:
    try:
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


class DeviceMemory:
    """What the driver says that this process uses of a CUDA device, above what it did at first.

    Where the driver does not tell processes apart (in many containers), the peak that PyTorch's
    allocator has reserved stands for it.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._tool = shutil.which("nvidia-smi") if self._cuda else None
        self._before = self._now()

    def used_mib(self) -> int | None:
        """MiB more than when this was made; None without a device, or where nothing tells."""
        now = self._now()
        if now is not None and self._before is not None:
            return now - self._before
        torch = sys.modules.get("torch")
        if not self._cuda or torch is None:
            return None
        return int(torch.cuda.max_memory_reserved() >> 20)

    def _now(self) -> int | None:
        if self._tool is None:
            return None
        query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run([self._tool, *query], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        return used_by(os.getpid(), done.stdout)


def used_by(process: int, listed: str) -> int | None:
    """MiB of the process in nvidia-smi's list of processes; None where it is not in it."""
    rows = [line.partition(",") for line in listed.splitlines()]
    found = [used.strip() for pid, _, used in rows if pid.strip() == str(process)]
    return sum(map(int, found)) if found and all(one.isdigit() for one in found) else None
