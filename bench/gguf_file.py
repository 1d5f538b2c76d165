"""A GGUF file of a checkpoint: the Hub's directory, stored as floats or in few bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linnet.diagnostics import NestError
from linnet.weights import open_checkpoint
from linnet.weights.arrays import Array

# Storage -> GGUF's type of the matrices, and what general.file_type says of it.
STORAGES = {
    "f32": ("F32", 0),
    "f16": ("F16", 1),
    "bf16": ("BF16", 32),
    "q4": ("Q4_0", 2),
    "q8": ("Q8_0", 7),
}
# The Hub's model type -> GGUF's architecture.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, place: Path, storage: str, words: Path | None = None) -> None:
    """The checkpoint as one GGUF file, with the vocabulary of the GGUF file `words` if any."""
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    architecture = ARCHITECTURES.get(config["model_type"])
    if architecture is None or rope.get("rope_type", "default") != "default":
        raise NestError(
            f"no GGUF is written for {config['model_type']} with "
            f"{rope.get('rope_type', 'default')} positions: {', '.join(ARCHITECTURES)} with the "
            "default ones are"
        )
    kind, number = STORAGES[storage]
    writer = gguf.GGUFWriter(place, architecture, use_temp_file=True)
    _write_settings(writer, config, rope, number)
    if words is None:
        writer.add_tokenizer_model("none")
    else:
        _copy_vocabulary(writer, words)
    for name, array in _tensors(checkpoint, config, architecture):
        wide = array.ndim == 2 and array.shape[-1] % 32 == 0
        form = gguf.GGMLQuantizationType[kind if wide else "F32"]
        # In 4 bits the table of tokens, which the output head may be too, has 8: as files have it.
        if storage == "q4" and name in ("token_embd.weight", "output.weight"):
            form = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(array, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: Any, config: dict[str, Any], rope: dict[str, Any], kind: int) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_file_type(kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_vocab_size(config["vocab_size"])


def _copy_vocabulary(writer: Any, words: Path) -> None:
    """Tokens, merges and what else a tokenizer is made of, as the other file has them."""
    import gguf

    for name, field in gguf.GGUFReader(words).fields.items():
        if name.startswith("tokenizer."):
            kinds = field.types
            inner = kinds[-1] if kinds[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kinds[0], inner)


def _tensors(checkpoint: Path, config: dict[str, Any], kind: str) -> Iterator[tuple[str, Array]]:
    """Every tensor in f32 under GGUF's name, queries and keys in GGUF's order of a head's rows."""
    heads = config["num_attention_heads"]
    key_heads = config.get("num_key_value_heads") or heads
    tied = config.get("tie_word_embeddings", False)
    for name, at in open_checkpoint(checkpoint).tensors.items():
        if name == "lm_head.weight" and tied:
            continue
        array = at.read("f32")
        if kind == "llama" and ".q_proj." in name:
            array = _paired(array, heads)
        if kind == "llama" and ".k_proj." in name:
            array = _paired(array, key_heads)
        yield _renamed(name), np.ascontiguousarray(array)


def _renamed(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, end = rest.rpartition(".")
    if part not in _IN_LAYER:
        raise NestError(f"no GGUF name is known for the tensor {name}")
    return f"blk.{layer}.{_IN_LAYER[part]}.{end}"


def _paired(array: Array, heads: int) -> Array:
    """The two halves of each head's rows taken in turns: llama's rotation turns neighbours."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)
