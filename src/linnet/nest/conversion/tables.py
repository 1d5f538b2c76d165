"""What each `model_type` of transformers means to a package of the zoo: data, read by `plan`.

The defaults are those of transformers' configuration classes, which an absent key takes. A key that
a table does not know is an error that names it: see `docs/nest.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from linnet.nest.conversion import layers, rotary
from linnet.nest.conversion.reader import Reader

Step = Callable[[Reader], None]


@dataclass(frozen=True, slots=True)
class Table:
    """One model type: its package, what its keys give, and the names of its tensors.

    `sizes` and `constants` map a name in the package to (keys, default): the keys are spellings of
    one setting. `musts` maps a key to the values that the package computes, transformers' default
    first. `steps` read what several keys state together. `tensors` maps a parameter path to a
    tensor's name; `{i}` is a layer, whose path `layer` gives where it is not written that way.
    `head` is the head's path ("": it has none of its own), its tensor, and the embedding's path.
    `renames` are older endings of names, `prefixes` what may stand before all of them. `optional`
    maps a generic that counts a part to the part's path and its weight's name, `unread` are
    patterns of tensors of parts that the package leaves out.
    """

    family: str
    architectures: tuple[str, ...]
    sizes: Mapping[str, tuple[tuple[str, ...], int | None]]
    constants: Mapping[str, tuple[tuple[str, ...], float]]
    musts: Mapping[str, tuple[Any, ...]]
    steps: tuple[Step, ...]
    inert: frozenset[str]
    tensors: Mapping[str, str]
    tied: bool
    head: tuple[str, str, str] | None = ("lm_head.weight", "lm_head.weight", "embedding.weight")
    biases: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    layer: Callable[[int, Mapping[str, int | str]], str] | None = None
    prefixes: tuple[str, ...] = ("",)
    renames: Mapping[str, str] = field(default_factory=dict[str, str])
    optional: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    unread: tuple[str, ...] = ()
    entry: str = "forward"
    tags: tuple[str, ...] = ("text-generation", "decoder-only")
    check: Mapping[str, int] = field(default_factory=lambda: {"B": 1, "S": 8})


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keys of every configuration that say nothing of what a forward pass computes.
COMMON = _keys(
    # where the file comes from, and which code of transformers reads it
    "model_type _name_or_path name_or_path transformers_version architectures auto_map "
    "_commit_hash _attn_implementation _attn_implementation_autoset _attn_implementation_internal "
    "attn_implementation _experts_implementation _from_model_config finetuning_task "
    "task_specific_params tokenizer_class prefix torchscript use_bfloat16 tf_legacy_loss "
    "transformers.js_config unsloth_fixed unsloth_version "
    # what is returned and kept
    "output_attentions output_hidden_states return_dict output_scores return_dict_in_generate "
    "use_cache cache_implementation chunk_size_feed_forward tie_last_hidden_states "
    # training
    "initializer_range gradient_checkpointing tie_encoder_decoder problem_type id2label label2id "
    "num_labels "
    # tokens
    "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id mask_token_id "
    "decoder_start_token_id forced_bos_token_id forced_eos_token_id "
    # generation
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
    "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens"
)
# Settings of every configuration that would change a model, with the value that does not.
COMMON_MUSTS: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": (None, {}),
    "per_layer_config": (None, {}),
}

_DECODER = _keys("attention_dropout is_decoder")
_SILU = ("silu", "swish")
_TANH_GELU = ("gelu_pytorch_tanh", "gelu_new")


def _sizes(
    vocab: int, hidden: int, heads: int, inner: int, layers: int
) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """The sizes that llama-like configurations state, with transformers' defaults."""
    return {
        "Vocab": (("vocab_size",), vocab),
        "H": (("hidden_size",), hidden),
        "Heads": (("num_attention_heads",), heads),
        "Inner": (("intermediate_size",), inner),
        "Layers": (("num_hidden_layers",), layers),
    }


_EMBEDDING = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
}
_NORMS = {
    "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
}


def _attention(kind: str, parts: str = "q k v o") -> dict[str, str]:
    return {
        f"layers.{{i}}.attention.{p}_proj.{kind}": f"model.layers.{{i}}.self_attn.{p}_proj.{kind}"
        for p in parts.split()
    }


def _mlp(kind: str) -> dict[str, str]:
    return {
        f"layers.{{i}}.mlp.{p}.{kind}": f"model.layers.{{i}}.mlp.{p}_proj.{kind}"
        for p in ("gate", "up", "down")
    }


_HEAD_NORMS = {
    f"layers.{{i}}.attention.{p}_norm.weight": f"model.layers.{{i}}.self_attn.{p}_norm.weight"
    for p in "qk"
}
_LLAMA = {**_EMBEDDING, **_NORMS, **_attention("weight"), **_mlp("weight")}
_EPS = {"EPS": (("rms_norm_eps",), 1e-6)}


LLAMA = Table(
    family="llama",
    architectures=("LlamaForCausalLM",),
    sizes=_sizes(32000, 4096, 32, 11008, 32),
    constants=_EPS,
    musts={"hidden_act": _SILU, "rope_interleaved": (False,)},
    steps=(
        partial(layers.heads, has_width=True),
        partial(layers.positions, default=2048),
        partial(rotary.rotary, kinds=("default", "linear", "llama3")),
        layers.no_window,
    ),
    inert=_DECODER | _keys("pretraining_tp is_llama_config"),
    tensors=_LLAMA,
    tied=False,
    biases={"attention_bias": _attention("bias"), "mlp_bias": _mlp("bias")},
)
MISTRAL = Table(
    family="llama",
    architectures=("MistralForCausalLM",),
    sizes=_sizes(32000, 4096, 32, 14336, 32),
    constants=_EPS,
    musts={"hidden_act": _SILU, "attention_bias": (False,), "mlp_bias": (False,)},
    steps=(
        partial(layers.heads, shared_default=8, has_width=True),
        partial(layers.positions, default=131072),
        partial(rotary.rotary, kinds=("default", "linear", "llama3")),
        partial(layers.window_everywhere, default=4096),
    ),
    inert=_DECODER,
    tensors=_LLAMA,
    tied=False,
)
QWEN2 = Table(
    family="qwen2",
    architectures=("Qwen2ForCausalLM",),
    sizes=_sizes(151936, 4096, 32, 22016, 32),
    constants=_EPS,
    musts={"hidden_act": _SILU, "use_mrope": (False,)},
    steps=(
        partial(layers.heads, shared_default=32),
        partial(layers.positions, default=32768),
        partial(rotary.rotary, kinds=("default",)),
        layers.window_by_layer,
    ),
    inert=_DECODER,
    tensors={**_LLAMA, **_attention("bias", "q k v")},
    tied=False,
)
QWEN3 = Table(
    family="qwen3",
    architectures=("Qwen3ForCausalLM",),
    sizes=_sizes(151936, 4096, 32, 22016, 32),
    constants=_EPS,
    musts={"hidden_act": _SILU, "attention_bias": (False,)},
    steps=(
        partial(layers.heads, shared_default=32, has_width=True, width_default=128),
        partial(layers.positions, default=32768),
        partial(rotary.rotary, kinds=("default",)),
        layers.window_by_layer,
    ),
    inert=_DECODER,
    tensors={**_LLAMA, **_HEAD_NORMS},
    tied=False,
)
PHI3 = Table(
    family="phi3",
    architectures=("Phi3ForCausalLM",),
    sizes=_sizes(32064, 3072, 32, 8192, 32),
    constants={"EPS": (("rms_norm_eps",), 1e-5)},
    musts={
        "hidden_act": _SILU,
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "lm_head_bias": (False,),
    },
    steps=(
        layers.heads,
        partial(layers.positions, default=4096),
        partial(rotary.rotary, kinds=("default",)),
        partial(layers.window_everywhere, default=None),
    ),
    # The context of training bears on scaled positions alone, which are refused.
    inert=_DECODER | _keys("resid_pdrop embd_pdrop original_max_position_embeddings"),
    tensors={
        **_EMBEDDING,
        **_NORMS,
        **_attention("weight", "qkv o"),
        "layers.{i}.mlp.gate_up.weight": "model.layers.{i}.mlp.gate_up_proj.weight",
        "layers.{i}.mlp.down.weight": "model.layers.{i}.mlp.down_proj.weight",
    },
    tied=False,
)


def _gpt2_positions(reader: Reader) -> None:
    """MaxSeq and MaxPositions are the rows of the position table; the heads divide the width."""
    rows = int(reader.generics["MaxPositions"])
    if reader.size("n_ctx", default=rows) != rows:
        reader.problem(
            f"{reader.stated('n_ctx')} and `n_positions` is {rows}: two spellings of one setting "
            "that disagree"
        )
    reader.generic("Batch", 1)
    reader.generic("MaxSeq", min(rows, layers.MAX_SEQ), "n_positions")
    hidden, heads = int(reader.generics["H"]), int(reader.generics["Heads"])
    if hidden % heads:
        reader.problem(f"`n_embd` is {hidden}, not a multiple of the {heads} heads of `n_head`")
    reader.generic("Inner", reader.size("n_inner", default=4 * hidden), "n_inner")


GPT2 = Table(
    family="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    sizes={
        "Vocab": (("vocab_size",), 50257),
        "MaxPositions": (("n_positions", "max_position_embeddings"), 1024),
        "H": (("n_embd", "hidden_size"), 768),
        "Heads": (("n_head", "num_attention_heads"), 12),
        "Layers": (("n_layer", "num_hidden_layers"), 12),
    },
    constants={"EPS": (("layer_norm_epsilon",), 1e-5)},
    musts={
        "activation_function": _TANH_GELU[::-1],
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
    },
    steps=(_gpt2_positions,),
    inert=_DECODER
    | _keys(
        "resid_pdrop embd_pdrop attn_pdrop summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels summary_first_dropout"
    ),
    tensors={
        name: name
        for name in (
            "wte.weight",
            "wpe.weight",
            *(
                f"h.{{i}}.{part}.{kind}"
                for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
                for kind in ("weight", "bias")
            ),
            "ln_f.weight",
            "ln_f.bias",
        )
    },
    tied=True,
    head=("", "lm_head.weight", "wte.weight"),
    prefixes=("transformer.", ""),
)


def _gemma3_layer(layer: int, generics: Mapping[str, int | str]) -> str:
    """The path of a layer: in a cycle of Period, or in the tail that makes no whole one."""
    period = int(generics["Period"])
    cycle, place = divmod(layer, period)
    if cycle >= int(generics["Layers"]) // period:
        return f"tail.{place}"
    return f"cycles.{cycle}.full" if place == period - 1 else f"cycles.{cycle}.local.{place}"


GEMMA3 = Table(
    family="gemma3",
    architectures=("Gemma3ForCausalLM",),
    sizes=_sizes(262208, 2304, 8, 9216, 26),
    constants={**_EPS, "QUERY_SCALAR": (("query_pre_attn_scalar",), 256.0)},
    musts={
        "hidden_activation": _TANH_GELU,
        "hidden_act": _TANH_GELU,
        "attention_bias": (False,),
        "final_logit_softcapping": (None,),
        "attn_logit_softcapping": (None,),
        "use_bidirectional_attention": (False,),
    },
    steps=(
        partial(layers.heads, shared_default=4, has_width=True, width_default=256),
        partial(layers.positions, default=131072),
        rotary.rotary_pair,
        layers.window_by_period,
    ),
    inert=_DECODER,
    tensors={
        **_EMBEDDING,
        "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
        **_attention("weight"),
        **_HEAD_NORMS,
        "layers.{i}.after_attention_norm.weight": (
            "model.layers.{i}.post_attention_layernorm.weight"
        ),
        "layers.{i}.mlp_norm.weight": "model.layers.{i}.pre_feedforward_layernorm.weight",
        **_mlp("weight"),
        "layers.{i}.after_mlp_norm.weight": "model.layers.{i}.post_feedforward_layernorm.weight",
    },
    tied=True,
    layer=_gemma3_layer,
)


def _bert_heads(reader: Reader) -> None:
    """The heads divide the width."""
    hidden, heads = int(reader.generics["D"]), int(reader.generics["Heads"])
    if hidden % heads:
        reader.problem(f"{reader.stated('hidden_size', 'num_attention_heads')}: not a multiple")


def _first_position(reader: Reader) -> None:
    """The positions begin after the row of the padding."""
    padding = reader.size("pad_token_id", default=1, least=0)
    reader.constant("FIRST_POSITION", padding + 1, "pad_token_id")


BERT = Table(
    family="bert",
    architectures=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    sizes={
        "Vocab": (("vocab_size",), 30522),
        "MaxPositions": (("max_position_embeddings",), 512),
        "TypeVocab": (("type_vocab_size",), 2),
        "D": (("hidden_size",), 768),
        "Heads": (("num_attention_heads",), 12),
        "Inner": (("intermediate_size",), 3072),
        "Layers": (("num_hidden_layers",), 12),
    },
    constants={"EPS": (("layer_norm_eps",), 1e-12)},
    musts={
        "hidden_act": ("gelu", "gelu_python"),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
    },
    steps=(_bert_heads,),
    inert=_keys("hidden_dropout_prob attention_probs_dropout_prob classifier_dropout"),
    tensors={
        **{
            f"embeddings.{part}.weight": f"embeddings.{part}_embeddings.weight"
            for part in ("word", "position", "token_type")
        },
        **{
            f"{path}.{kind}": f"{name}.{kind}"
            for path, name in {
                "embeddings.norm": "embeddings.LayerNorm",
                **{
                    f"layers.{{i}}.attention.{part}": f"encoder.layer.{{i}}.attention.self.{part}"
                    for part in ("query", "key", "value")
                },
                "layers.{i}.attention.output.dense": "encoder.layer.{i}.attention.output.dense",
                "layers.{i}.attention.output.norm": "encoder.layer.{i}.attention.output.LayerNorm",
                "layers.{i}.intermediate": "encoder.layer.{i}.intermediate.dense",
                "layers.{i}.output.dense": "encoder.layer.{i}.output.dense",
                "layers.{i}.output.norm": "encoder.layer.{i}.output.LayerNorm",
            }.items()
            for kind in ("weight", "bias")
        },
    },
    tied=True,
    head=None,
    prefixes=("bert.", ""),
    renames={".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"},
    optional={"Poolers": ("pooler.0", "pooler.dense.weight")},
    unread=("cls.*",),
    tags=("text-encoder", "encoder-only"),
)
ROBERTA = replace(
    BERT,
    architectures=("RobertaModel", "RobertaForMaskedLM"),
    sizes={**BERT.sizes, "Vocab": (("vocab_size",), 50265)},
    steps=(_bert_heads, _first_position),
    prefixes=("roberta.", ""),
    unread=("lm_head.*",),
)

TABLES: dict[str, Table] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "phi3": PHI3,
    "gpt2": GPT2,
    "gemma3_text": GEMMA3,
    "bert": BERT,
    "roberta": ROBERTA,
}

# Types that hold a model of the zoo beside what the zoo lacks, and what to do about it.
INSTEAD: dict[str, str] = {
    "gemma3": (
        "it sees images too: the package `gemma3` is its text model alone. Save that as a "
        "checkpoint of its own (transformers: Gemma3ForConditionalGeneration.from_pretrained(...)"
        ".model.language_model in a Gemma3ForCausalLM, save_pretrained), or take a checkpoint "
        "whose `model_type` is gemma3_text, such as google/gemma-3-1b-it"
    ),
    "gpt_oss": (
        "the package `gpt_oss` computes it, but no card is made from its configuration. For the "
        'files of openai/gpt-oss-20b there is one: nest.load("gpt-oss-20b", weights=DIRECTORY); '
        "for other sizes write a card like it"
    ),
}
