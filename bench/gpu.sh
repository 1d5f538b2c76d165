#!/bin/sh
# The figures of a GPU: Mistral 7B at its real size with random weights in bf16, batch 1,
# 512 tokens and 128 after them. Run from the repository, where Python has torch, transformers,
# numpy, ml_dtypes, safetensors and gguf. The weights (14.5 GB) lie in /dev/shm where it is.
#
#     sh bench/gpu.sh [FOLDER FOR bench.json]
#
# MODEL, DEVICE, METHODS and ROUNDS name others; DEVICE=cpu MODEL=... tries the script without a GPU.
set -e
cd "$(dirname "$0")/.."
scratch=$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)
cache=$(mktemp -d "$scratch/linnet-bench.XXXXXX")
trap 'rm -rf "$cache"' EXIT
PYTHONPATH=src "${PYTHON:-python3}" -m bench.run "${MODEL:-mistral-7b-instruct-v0.3}" --random \
    --dtype "${DTYPE:-bf16}" --device "${DEVICE:-cuda}" --prompt "${PROMPT:-512}" --new "${NEW:-128}" \
    --methods "${METHODS:-transformers-eager,transformers-compile,linnet-torch,linnet-inductor,linnet-cudagraphs}" \
    --warmup 2 --iters "${ROUNDS:-5}" --timeout "${TIMEOUT:-420}" --cache "$cache" --out "${1:-bench-gpu}"
