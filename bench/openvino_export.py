"""python -m bench.openvino_export CHECKPOINT PLACE float|q8|q4: in OpenVINO's own environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    checkpoint, place, kind = sys.argv[1:]
    options: dict[str, Any] = {"load_in_8bit": kind == "q8"}
    if kind == "q4":
        group = group_size(json.loads((Path(checkpoint) / "config.json").read_text()))
        options = {
            "quantization_config": OVWeightQuantizationConfig(
                bits=4, sym=False, ratio=1.0, group_size=group
            )
        }
    model = OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, use_cache=True, **options
    )
    model.save_pretrained(place)
    return 0


def group_size(config: dict[str, Any]) -> int:
    """The widest usual group that every matrix's width is a multiple of."""
    heads = config["num_attention_heads"]
    widths = (
        config["hidden_size"],
        config["intermediate_size"],
        heads * (config.get("head_dim") or config["hidden_size"] // heads),
    )
    return next(size for size in (128, 64, 32, 16, 1) if all(w % size == 0 for w in widths))


if __name__ == "__main__":
    sys.exit(main())
