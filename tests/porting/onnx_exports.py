"""Makes a model of ONNX with PyTorch's exporters, in a process and with packages of its own.

`python onnx_exports.py bert|llama new|old|optimum FILE`: a small model of transformers, with
dynamic axes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def small(kind: str) -> tuple[Any, list[str]]:
    """The model, its weights drawn, and the names of its inputs."""
    import torch
    import transformers

    torch.manual_seed(0)
    if kind == "bert":
        made: Any = transformers.BertModel(
            transformers.BertConfig(
                vocab_size=64,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=48,
                max_position_embeddings=40,
            )
        )
        names = ["input_ids", "attention_mask"]
    else:
        made = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=64,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=48,
                max_position_embeddings=40,
            )
        )
        names = ["input_ids"]

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, *given: Any) -> Any:
            told = dict(zip(names, given, strict=True))
            found = self.model(**told, **({"use_cache": False} if kind == "llama" else {}))
            return found[0]

    whole = Whole().eval()
    for parameter in whole.parameters():  # none is like another: exporters store those once
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return whole, names


def main() -> None:
    import torch

    kind, exporter, path = sys.argv[1:]
    model, names = small(kind)
    if exporter == "optimum":
        from optimum.exporters.onnx import onnx_export_from_model

        folder = Path(path).with_suffix("")
        onnx_export_from_model(model.model, folder, task="feature-extraction", do_validation=False)
        (folder / "model.onnx").rename(path)
        return
    ids = torch.randint(0, 64, (2, 7))
    given = (ids, torch.ones_like(ids))[: len(names)]
    axes = {0: "batch_size", 1: "sequence"}
    if exporter == "new":
        shapes = (tuple(axes for _ in names),)
        torch.onnx.export(model, given, path, dynamo=True, dynamic_shapes=shapes, input_names=names)
    else:
        torch.onnx.export(
            model,
            given,
            path,
            dynamo=False,
            dynamic_axes=dict.fromkeys(names, axes),
            input_names=names,
        )


if __name__ == "__main__":
    main()
