"""GGUF tensors of every family under the checkpoint's names, in its layout and with its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import MODEL_ARCH, MODEL_TENSORS, TENSOR_NAMES

from linnet.weights import Slot, open_checkpoint, plan_bindings, read_arrays
from linnet.weights.location import Paired, PlusOne, Transposed
from linnet.weights.published import published_name
from weights.gguf_files import gguf_name, write_gguf

H, HEADS, KV, HEAD, INNER, VOCAB, LAYERS = 64, 4, 2, 16, 96, 40, 2

ATTENTION = {
    "self_attn.q_proj.weight": (HEADS * HEAD, H),
    "self_attn.k_proj.weight": (KV * HEAD, H),
    "self_attn.v_proj.weight": (KV * HEAD, H),
    "self_attn.o_proj.weight": (H, HEADS * HEAD),
}
MLP = {
    "mlp.gate_proj.weight": (INNER, H),
    "mlp.up_proj.weight": (INNER, H),
    "mlp.down_proj.weight": (H, INNER),
}
NORMS = {"input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,)}
QK_NORMS = {"self_attn.q_norm.weight": (HEAD,), "self_attn.k_norm.weight": (HEAD,)}
BIASES = {
    "self_attn.q_proj.bias": (HEADS * HEAD,),
    "self_attn.k_proj.bias": (KV * HEAD,),
    "self_attn.v_proj.bias": (KV * HEAD,),
}
OTHERS = {"model.embed_tokens.weight": (VOCAB, H), "model.norm.weight": (H,)}
HEAD_OF_ITS_OWN = {"lm_head.weight": (VOCAB, H)}


def linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (H,), f"{name}.bias": (H,)}


# The tensors of a layer, the prefix of layers, and all others: what the checkpoints have.
FAMILIES: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "llama": ("model.layers", NORMS | ATTENTION | BIASES | MLP, OTHERS | HEAD_OF_ITS_OWN),
    "qwen2": ("model.layers", NORMS | ATTENTION | BIASES | MLP, OTHERS),
    "qwen3": ("model.layers", NORMS | ATTENTION | QK_NORMS | MLP, OTHERS | HEAD_OF_ITS_OWN),
    "phi3": (
        "model.layers",
        NORMS
        | {
            "self_attn.qkv_proj.weight": ((HEADS + 2 * KV) * HEAD, H),
            "self_attn.o_proj.weight": (H, HEADS * HEAD),
            "mlp.gate_up_proj.weight": (2 * INNER, H),
            "mlp.down_proj.weight": (H, INNER),
        },
        OTHERS | HEAD_OF_ITS_OWN,
    ),
    "gemma3": (
        "model.layers",
        NORMS
        | ATTENTION
        | QK_NORMS
        | MLP
        | {"pre_feedforward_layernorm.weight": (H,), "post_feedforward_layernorm.weight": (H,)},
        OTHERS,
    ),
    "gpt2": (
        "h",
        norm("ln_1")
        | norm("ln_2")
        # Conv1D: the way in comes first.
        | {"attn.c_attn.weight": (H, 3 * H), "attn.c_attn.bias": (3 * H,)}
        | {"attn.c_proj.weight": (H, H), "attn.c_proj.bias": (H,)}
        | {"mlp.c_fc.weight": (H, INNER), "mlp.c_fc.bias": (INNER,)}
        | {"mlp.c_proj.weight": (INNER, H), "mlp.c_proj.bias": (H,)},
        {"wte.weight": (VOCAB, H), "wpe.weight": (24, H), **norm("ln_f")} | HEAD_OF_ITS_OWN,
    ),
    "bert": (
        "encoder.layer",
        linear("attention.self.query", H, H)
        | linear("attention.self.key", H, H)
        | linear("attention.self.value", H, H)
        | linear("attention.output.dense", H, H)
        | norm("attention.output.LayerNorm")
        | linear("intermediate.dense", INNER, H)
        | linear("output.dense", H, INNER)
        | norm("output.LayerNorm"),
        {
            "embeddings.word_embeddings.weight": (VOCAB, H),
            "embeddings.position_embeddings.weight": (24, H),
            "embeddings.token_type_embeddings.weight": (2, H),
            **norm("embeddings.LayerNorm"),
        },
    ),
}
METADATA = {"llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV}


def checkpoint(family: str) -> dict[str, np.ndarray[Any, Any]]:
    prefix, layer, others = FAMILIES[family]
    shapes = dict(others)
    for k in range(LAYERS):
        shapes |= {f"{prefix}.{k}.{name}": shape for name, shape in layer.items()}
    random = np.random.default_rng(len(family))
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("scheme", [None, "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_a_file_reads_as_its_checkpoint(tmp_path: Path, family: str, scheme: str | None) -> None:
    expected = checkpoint(family)
    metadata = METADATA if family == "llama" else {}
    path = write_gguf(tmp_path / "m.gguf", family, metadata, expected, scheme)
    arrays = read_arrays(path)
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        read = arrays[name]
        assert read.dtype == np.float32 and read.shape == array.shape, name
        if scheme is not None and array.ndim == 2:
            # A scale is common to 32 neighbours of the stored rows: another layout would show.
            assert np.abs(read - array).max() < 0.03, name
        elif family == "gemma3" and "norm" in name:
            # Adding 1 has rounded it.
            assert np.array_equal(read, (array + np.float32(1)) - np.float32(1)), name
        else:
            assert np.array_equal(read, array), name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_the_architecture_has_a_published_name(family: str) -> None:
    """The library's list of an architecture's tensors has none that the tables forget."""
    architecture = MODEL_ARCH[family.upper()]
    unnamed = {
        kind.name
        for kind in MODEL_TENSORS[architecture]
        if published_name(name := TENSOR_NAMES[kind].format(bid=3) + ".weight", family) == name
    }
    tables = {"ROPE_FREQS", "ROPE_FACTORS_LONG", "ROPE_FACTORS_SHORT", "ATTN_ROT_EMBD"}
    experts = {"FFN_GATE_INP", "FFN_GATE_EXP", "FFN_DOWN_EXP", "FFN_UP_EXP"}
    # The converter drops a BERT's pooler and head, and keeps its projections apart.
    bert = {"OUTPUT_NORM", "ATTN_QKV", "CLS", "CLS_OUT"} if family == "bert" else set()
    assert unnamed <= tables | experts | bert


@pytest.mark.parametrize("family", FAMILIES)
def test_names_go_there_and_back(family: str) -> None:
    for name in checkpoint(family):
        assert published_name(gguf_name(name, family), family) == name


def test_other_tensors_and_families_keep_their_names() -> None:
    for name in ("rope_freqs.weight", "blk.0.ffn_gate_inp.weight", "blk.x.attn_q.weight", "t", ""):
        assert published_name(name, "llama") == name
    assert published_name("blk.0.attn_q.weight", "falcon") == "blk.0.attn_q.weight"
    assert published_name("blk.0.attn_q.scale", "llama") == "blk.0.attn_q.scale"


def test_how_each_tensor_is_read(tmp_path: Path) -> None:
    forms: dict[str, Any] = {}
    for family in ("llama", "gpt2", "gemma3", "qwen2", "phi3"):
        metadata = METADATA if family == "llama" else {}
        path = write_gguf(tmp_path / f"{family}.gguf", family, metadata, checkpoint(family))
        for name, location in open_checkpoint(path).tensors.items():
            if location.form is not None:
                forms[f"{family} {name}"] = location.form
    assert forms["llama model.layers.1.self_attn.q_proj.bias"] == Paired(HEADS)
    assert forms["llama model.layers.1.self_attn.k_proj.weight"] == Paired(KV)
    assert forms["gpt2 h.0.mlp.c_fc.weight"] == Transposed()
    assert forms["gemma3 model.norm.weight"] == PlusOne()
    assert len(forms) == LAYERS * (4 + 4 + 6) + 1


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_one_is_taken_off_before_rounding(tmp_path: Path, dtype: str) -> None:
    small = np.full(H, 2.0**-12, np.float32)
    path = write_gguf(tmp_path / "m.gguf", "gemma3", {}, {"model.norm.weight": small})
    slots = [Slot("n", (H,), dtype)]
    bound = plan_bindings(slots, path, {"n": "model.norm.weight"}, cast_dtype=True)
    # 1 + 2^-12 has no bf16 form: rounding it first would give 0.
    assert np.array_equal(bound[0].read().astype(np.float32), small)
    location = open_checkpoint(path).tensors["model.norm.weight"]
    assert bytes(location.raw().data) == small.tobytes()


def test_a_norm_in_half_precision_stays_in_it(tmp_path: Path) -> None:
    ones = np.ones(H, np.float16)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    writer.add_tensor("output_norm.weight", ones * np.float16(1.5))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_arrays(tmp_path / "m.gguf")["model.norm.weight"]
    assert read.dtype == np.float16 and np.array_equal(read, ones * np.float16(0.5))
