"""Reading weights keeps the peak near one copy of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from linnet.weights import write_safetensors

MB = 1 << 20
COUNT, ROWS, WIDTH = 12, 2048, 2048  # 12 tensors of 16 MB in f32

# The peak is the kernel's own count for the process, mapped file pages included.
PROGRAM = f"""
import re, sys
import numpy as np
from linnet.weights import Slot, open_checkpoint, plan_bindings, read_bound

def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

before = peak()
slots = [Slot(f"t{{k}}", ({ROWS}, {WIDTH}), "f32") for k in range({COUNT})]
slots.append(Slot("tied", ({ROWS}, {WIDTH}), "f32"))
bound = plan_bindings(slots, sys.argv[1], {{"tied": "t0"}})
assert peak() - before < 8 << 20, "checking has read the data"
copies = {{}}
for group, array in read_bound(bound):
    copies |= dict.fromkeys([slot.path for slot in group], np.array(array))
assert len(copies) == {COUNT + 1} and copies["tied"] is copies["t0"]
assert all(abs(copies[f"t{{k}}"][0, 0] - k) < 0.01 for k in range({COUNT}))
print(peak() - before)
"""


def tensors() -> dict[str, np.ndarray]:
    return {f"t{k}": np.full((ROWS, WIDTH), k, np.float32) for k in range(COUNT)}


def write(path: Path) -> None:
    if path.suffix == ".safetensors":
        write_safetensors(path, tensors())
        return
    writer = gguf.GGUFWriter(path, "none")
    for name, array in tensors().items():
        scheme = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(array, scheme), raw_dtype=scheme)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w.safetensors", "w.gguf"])
def test_the_peak_is_near_one_copy(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    copy = COUNT * ROWS * WIDTH * 4
    assert copy < int(run.stdout) < copy + 56 * MB
