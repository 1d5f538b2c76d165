"""python -m bench.genai_export CHECKPOINT PLACE f32|f16|bf16: in an environment of its own.

The builder of ONNX Runtime GenAI reads a checkpoint as the Hub has them and writes its own ONNX
model. It asks for a tokenizer, which nothing here uses: prompts are ids.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    checkpoint, place, kind = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(checkpoint).resolve().iterdir():
            (Path(folder) / file.name).symlink_to(file)
        words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<unk>").save_pretrained(folder)
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
        precision = kind.replace("f", "fp", 1)
        told = ["-i", folder, "-o", place, "-c", folder, "-p", precision]
        return subprocess.call([*builder, *told])


if __name__ == "__main__":
    sys.exit(main())
