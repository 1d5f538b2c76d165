"""A GGUF file's metadata as the configuration that its checkpoint had: transformers' config.json.

Every key of the architecture is used, held to the one value that changes nothing, or a problem
that names it. Keys outside the architecture's own (`general.`, `tokenizer.`, ...) are about the
file and its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linnet.diagnostics import PlanError
from linnet.weights.arrays import FLOATS, Array
from linnet.weights.checkpoint import Checkpoint, open_checkpoint
from linnet.weights.report import Report, did_you_mean
from linnet.weights.rope_factors import scaling_of

Config = dict[str, Any]
_GROUP = "metadata"
# Keys that some converters write, with the values that change nothing.
_MUSTS: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "rope.scaling.finetuned": (True, False),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
}
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def config_of(weights: str | Path | Checkpoint) -> Config:
    """The configuration under transformers' names, or one PlanError with every problem of it."""
    checkpoint = open_checkpoint(weights)
    checkpoint.report.check(f"cannot read {checkpoint.label}")
    metadata = checkpoint.metadata
    if not metadata:
        raise PlanError(f"{checkpoint.label}: holds no metadata: its configuration is elsewhere")
    report = Report()
    architecture = str(metadata.get("general.architecture", ""))
    kind: Any = metadata.get("general.type", "model")
    if kind != "model" or architecture not in _FAMILIES:
        what = (
            f"of the type {kind!r}" if kind != "model" else f"of the architecture {architecture!r}"
        )
        raise PlanError(
            f"{checkpoint.label}: is {what}; models of {', '.join(_FAMILIES)} have a configuration "
            "here"
        )
    keys = _Keys(metadata, architecture, report)
    config = _FAMILIES[architecture](keys, checkpoint)
    config |= _tokens(metadata) | {"torch_dtype": _dtype(checkpoint)}
    keys.leftover()
    report.check(f"cannot make a configuration of {checkpoint.label}")
    return {key: value for key, value in config.items() if value is not None}


class _Keys:
    """The keys of one architecture, each dealt with once; what is wrong goes to the report."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, report: Report) -> None:
        self.metadata = metadata
        self.architecture = architecture
        self.report = report
        self.seen: set[str] = set()

    def get(self, name: str) -> Any:
        """The value as the file has it, or None."""
        self.seen.add(name)
        return self.metadata.get(f"{self.architecture}.{name}")

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number, the same for all layers; without a default it must be there."""
        value = self.get(name)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        if value is None and default is not None:
            return default
        if type(value) is not int or value < least:
            self.problem(name, f"it must be a whole number, {least} or more")
            return default or least
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """A finite number above 0, as the shortest decimals that mean it."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            self.problem(name, "it must be a number above 0")
            return default
        return plain_number(value)

    def required(self, name: str) -> float | None:
        """The number; its absence is a problem."""
        value = self.number(name)
        if value is None and self.get(name) is None:
            self.problem(name, "it must be a number above 0")
        return value

    def problem(self, name: str, wanted: str) -> None:
        key = f"{self.architecture}.{name}"
        value = self.metadata.get(key)
        found = "is missing" if value is None else f"is {_shown(value)}"
        self.report.add(_GROUP, f"`{key}` {found}: {wanted}")

    def leftover(self) -> None:
        """Every key of the architecture that nothing has dealt with is a problem."""
        prefix = f"{self.architecture}."
        for key in self.metadata:
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or name in self.seen:
                continue
            value = self.metadata[key]
            allowed = _MUSTS.get(name)
            if allowed is None:
                near = did_you_mean(key, [prefix + one for one in (*self.seen, *_MUSTS)])
                self.report.add(
                    _GROUP,
                    f"`{key}` is {_shown(value)}: not a key that is known here, so it may change "
                    f"the model{near}",
                )
            elif not any(value == one and type(value) is type(one) for one in allowed):
                options = " or ".join(map(str, allowed))
                self.problem(name, f"{options} is what is computed here")


def plain_number(value: float) -> float:
    """The shortest decimals that give the same f32 number: 1e-05, not 9.999999747378752e-06."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 72 else f"{text[:68]} ..."


# --- what every family has --------------------------------------------------------------------


def _tokens(metadata: Mapping[str, Any]) -> Config:
    named = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in named.items()}
    return {name: token for name, token in found.items() if type(token) is int}


def _dtype(checkpoint: Checkpoint) -> str:
    """That of most matrices; quantised ones were made from bf16 as a rule."""
    kinds = Counter(
        location.dtype if location.dtype in FLOATS else "bf16"
        for location in checkpoint.tensors.values()
        if len(location.shape) == 2
    )
    most = kinds.most_common(1)
    return _DTYPES.get(most[0][0] if most else "bf16", "bfloat16")


def _vocabulary(keys: _Keys, checkpoint: Checkpoint, embedding: str) -> int:
    """The rows of the embedding, which the stated number must be."""
    location = checkpoint.tensors.get(embedding)
    stated = keys.size("vocab_size", 0)
    rows = location.shape[0] if location is not None and len(location.shape) == 2 else 0
    if rows and stated and rows != stated:
        keys.problem("vocab_size", f"`{embedding}` has {rows:,} rows")
    if not rows and not stated:
        tokens: Any = keys.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list) else 0
    return rows or stated


def _heads(keys: _Keys, hidden: int) -> Config:
    """Heads, the width of one, and the part of it that turns."""
    count = keys.size("attention.head_count")
    width = keys.size("attention.key_length", hidden // count)
    if keys.size("attention.value_length", width) != width:
        keys.problem("attention.value_length", f"keys are {width} wide, and values must be")
    turning = keys.size("rope.dimension_count", width)
    config: Config = {
        "num_attention_heads": count,
        "num_key_value_heads": keys.size("attention.head_count_kv", count),
        "head_dim": width,
    }
    if turning > width:
        keys.problem("rope.dimension_count", f"heads are {width} wide")
    elif turning < width:
        config["partial_rotary_factor"] = turning / width
    return config


def _rotary(keys: _Keys, checkpoint: Checkpoint, turning: int) -> Config:
    """The base of the frequencies, and their scaling as transformers states it."""
    theta = keys.number("rope.freq_base", 10000.0) or 10000.0
    kind: Any = keys.get("rope.scaling.type")
    factor = keys.number("rope.scaling.factor")
    original = keys.size("rope.scaling.original_context_length", 0)
    config: Config = {"rope_theta": theta}
    older = keys.number("rope.scale_linear")
    if older is not None and kind is None:
        kind, factor = "linear", older
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        keys.problem("rope.scaling.type", "known are none, linear, yarn and longrope")
    scaling: Config = {}
    if kind in ("linear", "yarn", "longrope") and (factor or 1.0) != 1.0:
        scaling = {"rope_type": kind, "factor": factor}
    elif kind in ("yarn", "longrope"):
        scaling = {"rope_type": kind}
    if original and kind in ("yarn", "longrope"):
        scaling["original_max_position_embeddings"] = original
    for name, key in _SCALING.items():
        value = keys.number(f"rope.scaling.{name}")
        if value is not None and kind in ("yarn", "longrope"):
            scaling[key] = value
        elif value is not None and value != 1.0:
            keys.problem(f"rope.scaling.{name}", "it goes with a scaling of another type")
    for length in ("long", "short"):
        factors = _table(checkpoint, f"rope_factors_{length}.weight")
        if factors is not None:
            scaling |= {
                "rope_type": "longrope",
                f"{length}_factor": list(map(plain_number, factors)),
            }
    config["original_max_position_embeddings"] = original or None
    table = _table(checkpoint, "rope_freqs.weight")
    if table is not None:
        found = scaling_of(table, theta, turning, original or None)
        if found is None or (found and scaling):
            keys.report.add(
                _GROUP,
                f"`rope_freqs.weight` in {checkpoint.label} holds {len(table)} factors of the "
                f"rotary frequencies, {_shown(table[:4].tolist())}...: "
                + (
                    f"beside `{keys.architecture}.rope.scaling.type`, which is {kind!r}"
                    if found
                    else f"neither one factor nor those of llama3 for heads of {turning}"
                ),
            )
        scaling = scaling or found or {}
    config["rope_scaling"] = scaling or None
    return config


# What scaling by ramps has beside its factor: GGUF's names and transformers'.
_SCALING = {
    "attn_factor": "attention_factor",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_ext_factor": "extrapolation_factor",
    "yarn_log_multiplier": "mscale_all_dim",
}


def _table(checkpoint: Checkpoint, name: str) -> Array | None:
    location = checkpoint.tensors.get(name)
    return None if location is None else location.read("f32").reshape(-1)


def _decoder(keys: _Keys, checkpoint: Checkpoint) -> Config:
    """What llama and its relatives have in common."""
    hidden = keys.size("embedding_length")
    heads = _heads(keys, hidden)
    turning = round(heads["head_dim"] * heads.get("partial_rotary_factor", 1.0))
    return {
        "vocab_size": _vocabulary(keys, checkpoint, "model.embed_tokens.weight"),
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        **heads,
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.required("attention.layer_norm_rms_epsilon"),
        **_rotary(keys, checkpoint, turning),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in checkpoint.tensors,
    }


# --- the families -----------------------------------------------------------------------------


def _llama(keys: _Keys, checkpoint: Checkpoint) -> Config:
    """Mistral's files are llama's: the window, where one is stated, tells them apart."""
    config = _decoder(keys, checkpoint)
    del config["original_max_position_embeddings"]  # what scaling needs of it stands there
    window = keys.size("attention.sliding_window", 0, least=0)
    if window:
        return {"model_type": "mistral", **config, "sliding_window": window}
    names = checkpoint.tensors
    return {
        "model_type": "llama",
        **config,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in names,
    }


def _qwen(keys: _Keys, checkpoint: Checkpoint) -> Config:
    config = _decoder(keys, checkpoint)
    del config["original_max_position_embeddings"]
    if keys.architecture == "qwen2":
        width = config.pop("head_dim")  # not a setting of its own there
        if width * config["num_attention_heads"] != config["hidden_size"]:
            keys.problem("attention.head_count", f"heads are {width} wide, and share the width")
    return {"model_type": keys.architecture, **config, "use_sliding_window": False}


def _phi3(keys: _Keys, checkpoint: Checkpoint) -> Config:
    config = _decoder(keys, checkpoint)
    del config["head_dim"]
    window = keys.size("attention.sliding_window", 0, least=0)
    return {"model_type": "phi3", **config, "sliding_window": window or None}


def _gemma3(keys: _Keys, checkpoint: Checkpoint) -> Config:
    config = _decoder(keys, checkpoint)
    del config["original_max_position_embeddings"], config["hidden_act"]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    # The largest model alone scales queries by the width that heads would share.
    scalar = hidden // heads if config["num_hidden_layers"] == 62 else config["head_dim"]
    return {
        "model_type": "gemma3_text",
        **config,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": keys.size("attention.sliding_window", 4096),
        **_pattern(keys),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10000.0),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
    }


def _pattern(keys: _Keys) -> Config:
    """Which layers have the window: every one but each sixth, or as the file says."""
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and all(type(one) is bool for one in pattern):
        kinds = {True: "sliding_attention", False: "full_attention"}
        return {"layer_types": [kinds[one] for one in pattern]}
    if pattern is None:
        return {"sliding_window_pattern": 6}
    return {"sliding_window_pattern": keys.size("attention.sliding_window_pattern")}


def _gpt2(keys: _Keys, checkpoint: Checkpoint) -> Config:
    hidden = keys.size("embedding_length")
    inner = keys.size("feed_forward_length", 4 * hidden)
    context = keys.size("context_length")
    return {
        "model_type": "gpt2",
        "vocab_size": _vocabulary(keys, checkpoint, "wte.weight"),
        "n_positions": context,
        "n_ctx": context,
        "n_embd": hidden,
        "n_head": keys.size("attention.head_count"),
        "n_layer": keys.size("block_count"),
        "n_inner": inner if inner != 4 * hidden else None,
        "layer_norm_epsilon": keys.required("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        # Its head is the embedding; a copy that a file holds beside it must equal it.
        "tie_word_embeddings": True,
    }


def _bert(keys: _Keys, checkpoint: Checkpoint) -> Config:
    """RoBERTa's files too: the converter has cut their positions to begin at 0."""
    if keys.get("attention.causal") not in (None, False):
        keys.problem("attention.causal", "a BERT sees both sides: false")
    keys.get("pooling_type")  # what is made of the hidden states
    types = checkpoint.tensors.get("embeddings.token_type_embeddings.weight")
    return {
        "model_type": "bert",
        "vocab_size": _vocabulary(keys, checkpoint, "embeddings.word_embeddings.weight"),
        "hidden_size": keys.size("embedding_length"),
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": keys.size("attention.head_count"),
        "max_position_embeddings": keys.size("context_length"),
        "type_vocab_size": types.shape[0] if types is not None else None,
        "layer_norm_eps": keys.required("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
    }


_FAMILIES: dict[str, Callable[[_Keys, Checkpoint], Config]] = {
    "llama": _llama,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gemma3": _gemma3,
    "bert": _bert,
}
