"""A GGUF file's tensors as the checkpoint had them that it was made from: names, layout, values.

The tables follow llama.cpp's converter. One table of bindings then serves both formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from linnet.weights.location import Paired, PlusOne, TensorLocation, Transposed
from linnet.weights.report import Report


@dataclass(frozen=True, slots=True)
class _Names:
    """GGUF's modules to a checkpoint's: those of a layer, below `layers`, and all others."""

    layers: str
    modules: Mapping[str, str]
    others: Mapping[str, str]
    transposed: frozenset[str] = field(default_factory=frozenset[str])


_OTHERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LLAMA = _Names(
    "model.layers",
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    _OTHERS,
)
_PHI3 = replace(
    _LLAMA,
    modules={
        **_LLAMA.modules,
        "attn_qkv": "self_attn.qkv_proj",
        "ffn_up": "mlp.gate_up_proj",
    },
)
_GEMMA3 = replace(
    _LLAMA,
    modules={
        **_LLAMA.modules,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
_GPT2 = _Names(
    "h",
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"},
    transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
)
_BERT = _Names(
    "encoder.layer",
    {
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    {
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
    },
)
_FAMILIES = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "phi3": _PHI3,
    "gemma3": _GEMMA3,
    "gpt2": _GPT2,
    "bert": _BERT,
}
# Only the llama converter stores the rows of q and k as interleaved pairs.
_PAIRED = {"attn_q": "head_count", "attn_k": "head_count_kv"}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def published_name(name: str, architecture: str) -> str:
    """The checkpoint's name for a tensor; of an unknown family or part, GGUF's own."""
    family = _FAMILIES.get(architecture)
    stem, _, suffix = name.rpartition(".")
    if family is None or suffix not in ("weight", "bias"):
        return name
    if stem in family.others:
        return f"{family.others[stem]}.{suffix}"
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in family.modules:
        return name
    return f"{family.layers}.{match[1]}.{family.modules[match[2]]}.{suffix}"


def published(
    location: TensorLocation, architecture: str, metadata: Mapping[str, Any], report: Report
) -> TensorLocation:
    """The tensor under its published name, to be read in the published layout and values."""
    named = replace(location, name=published_name(location.name, architecture))
    match = _BLOCK.fullmatch(location.name)
    module = match[2] if match else location.name.rpartition(".")[0]
    if architecture == "llama" and match and module in _PAIRED:
        return _unpaired(named, location.name, _PAIRED[module], metadata, report)
    if architecture == "gemma3" and module.endswith("norm"):
        return replace(named, form=PlusOne())
    if architecture == "gpt2" and module in _GPT2.transposed and len(location.shape) == 2:
        return replace(named, form=Transposed(), shape=location.shape[::-1])
    return named


def _unpaired(
    named: TensorLocation, stored: str, count: str, metadata: Mapping[str, Any], report: Report
) -> TensorLocation:
    key = f"llama.attention.{count}"
    heads: Any = metadata.get(key, metadata.get("llama.attention.head_count"))
    rows = named.shape[0] if named.shape else 0
    if type(heads) is int and heads > 0 and rows % (2 * heads) == 0:
        return replace(named, form=Paired(heads))
    report.add(
        "files",
        f"{named.file}: `{stored}` has {rows} rows, which `{key}` = {heads!r} "
        "does not divide into pairs",
    )
    return named
