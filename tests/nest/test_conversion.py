"""`nest.convert`: settings held against headers, and the card that comes of it.

The package is a stand-in with llama's parameters and no layers' code, so that checking it is quick;
tests/models/test_families.py converts for the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import LinnetError, NestError
from linnet.nest import conversion, resolve
from linnet.nest.__main__ import main
from linnet.nest.card import Card
from linnet.nest.stored import settled
from linnet.weights import TensorLocation, open_checkpoint, read_bindings, write_safetensors
from weights.gguf_files import write_gguf

from ..models import families, tiny
from .hub_server import COMMIT, Hub

CONFIG: dict[str, Any] = {**families.TINY["mistral-full"].stated, "head_dim": None}
STANDIN = """\
module llama

pub const THETA: f32 = 10000.0
pub const EPS: f32 = 1e-5
pub const WINDOW: i32 = 0

pub block Linear<In: Dim, Out: Dim, T: Float> {
    param weight: Tensor[Out, In; T]
    param bias: Tensor[Out; T]? = none
}

pub block Norm<H: Dim, T: Float> {
    param weight: Tensor[H; T]
}

pub block Table<Vocab: Dim, H: Dim, T: Float> {
    param weight: Tensor[Vocab, H; T]
}

pub block Attention<H: Dim, Heads: Dim, KvHeads: Dim, HeadDim: Dim, T: Float> {
    sub q_proj: Linear<H, Heads * HeadDim, T>
    sub k_proj: Linear<H, KvHeads * HeadDim, T>
    sub v_proj: Linear<H, KvHeads * HeadDim, T>
    sub o_proj: Linear<Heads * HeadDim, H, T>
}

pub block Mlp<H: Dim, Inner: Dim, T: Float> {
    sub gate: Linear<H, Inner, T>
    sub up: Linear<H, Inner, T>
    sub down: Linear<Inner, H, T>
}

pub block Layer<H: Dim, Heads: Dim, KvHeads: Dim, HeadDim: Dim, Inner: Dim, T: Float> {
    sub attention_norm: Norm<H, T>
    sub attention: Attention<H, Heads, KvHeads, HeadDim, T>
    sub mlp_norm: Norm<H, T>
    sub mlp: Mlp<H, Inner, T>
}

pub block Model<
    Vocab: Dim,
    H: Dim,
    Heads: Dim,
    KvHeads: Dim,
    Inner: Dim,
    Layers: Dim,
    Batch: Dim,
    MaxSeq: Dim,
    T: Float = bf16,
    HeadDim: Dim = H / Heads,
>
where
    Heads > 0,
    Batch > 0,
    HeadDim > 4
{
    sub embedding: Table<Vocab, H, T>
    sub layers: [Layer<H, Heads, KvHeads, HeadDim, Inner, T>; Layers]
    sub norm: Norm<H, T>
    sub lm_head: Linear<H, Vocab, T>

    pub entry forward(x: Tensor[1; f32]) -> Tensor[1; f32] {
        return x
    }
}
"""


@pytest.fixture(autouse=True)
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """The package `llama` of the zoo is the stand-in, for cards too."""
    package = tmp_path / "zoo" / "families" / "llama"
    (package / "src").mkdir(parents=True)
    (package / "linnet.toml").write_text(
        '[package]\nname = "llama"\nversion = "0.1.0"\nlanguage = "0.1"\n'
    )
    (package / "src" / "lib.linnet").write_text(STANDIN)
    monkeypatch.setattr(conversion, "ZOO", tmp_path / "zoo")
    monkeypatch.setattr("linnet.nest.card.ZOO", tmp_path / "zoo")


Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """`made(key=value, ...)`: a checkpoint with its configuration changed."""

    def make(tensors: dict[str, Any] | None = None, **changes: Any) -> Path:
        place = tmp_path / "from" / "small"
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        write_safetensors(place / "model.safetensors", tensors or tiny.weights())
        return place

    return make


def refused(source: Path, **options: Any) -> str:
    """The refusal, after which nothing is left behind."""
    output = source.parent / "card"
    with pytest.raises(NestError) as error:
        nest.convert(source, output=output, **options)
    assert [path.name for path in source.parent.iterdir()] == ["small"]
    return str(error.value)


def test_the_card(made: Made, tmp_path: Path) -> None:
    source = made()
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Small\n")
    assert nest.convert(source, output=tmp_path / "card") == tmp_path / "card"
    assert sorted(path.name for path in (tmp_path / "card").iterdir()) == [
        "README.md",
        "bindings.json",
        "nest.toml",
    ]
    card = Card.read(tmp_path / "card")
    assert (card.name, card.title, card.license) == ("card", "small", "apache-2.0")
    assert (card.family, card.package, card.root, card.entry) == (
        "llama",
        "llama",
        "Model",
        "forward",
    )
    assert card.tags == ("text-generation", "decoder-only", "grouped-query-attention")
    assert list(card.generics.items()) == [
        ("Vocab", 96),
        ("H", 48),
        ("Heads", 6),
        ("KvHeads", 2),
        ("Inner", 80),
        ("Layers", 2),
        ("Batch", 1),
        ("MaxSeq", 64),
        ("T", "f32"),
    ]
    assert card.constants == {"EPS": 1e-6, "THETA": 10000.0, "WINDOW": 0}
    assert card.check == {"B": 1, "S": 8}
    assert card.weights_dir == source and card.weights.files == ("model.safetensors",)
    assert not card.weights.cast_dtype and not card.weights.copies
    assert card.bindings_path is not None and read_bindings(card.bindings_path) == tiny.NAMES
    readme = (tmp_path / "card" / "README.md").read_text()
    assert "| `Vocab` | 96 | `vocab_size` |" in readme and len(readme) > 400


def test_no_data_is_read(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made()

    def fail(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("linnet.weights.location.MappedFile.view", fail)
    monkeypatch.setattr(TensorLocation, "read", fail)
    assert nest.convert(source, output=tmp_path / "card").is_dir()


def test_where_a_card_may_go(made: Made, tmp_path: Path) -> None:
    source = made()
    (tmp_path / "empty").mkdir()
    assert (nest.convert(source, output=tmp_path / "empty") / "nest.toml").is_file()
    assert (nest.convert(source, output=tmp_path / "new" / "deep") / "nest.toml").is_file()
    with pytest.raises(NestError, match="is not empty; name a new directory"):
        nest.convert(source, output=tmp_path / "empty")
    with pytest.raises(NestError, match="is not empty"):
        nest.convert(source, output=source)
    (tmp_path / "file").touch()
    with pytest.raises(NestError, match="is a file; name a new directory"):
        nest.convert(source, output=tmp_path / "file")


# --- heads ------------------------------------------------------------------------------------

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def tied_tensors(**others: Any) -> dict[str, Any]:
    return {name: x for name, x in tiny.weights().items() if name != HEAD} | others


def test_tied_and_absent(made: Made, tmp_path: Path) -> None:
    nest.convert(made(tied_tensors(), tie_word_embeddings=True), output=tmp_path / "card")
    assert read_bindings(tmp_path / "card" / "bindings.json")[HEAD] == EMBEDDING


def test_tied_and_redundant(made: Made, tmp_path: Path) -> None:
    """Headers cannot tell whether they are equal: the card says that they must be, and loading
    compares the bytes."""
    weights = tiny.weights()
    twice = {**weights, HEAD: weights[EMBEDDING]}
    nest.convert(made(twice, tie_word_embeddings=True), output=tmp_path / "card")
    card = Card.read(tmp_path / "card")
    assert card.weights.copies == {HEAD: EMBEDDING}
    assert read_bindings(tmp_path / "card" / "bindings.json")[HEAD] == EMBEDDING
    assert "is a copy of" in (tmp_path / "card" / "README.md").read_text()
    kept = settled(card, twice)
    assert HEAD not in open_checkpoint(kept).tensors and EMBEDDING in open_checkpoint(kept).tensors
    other = weights[EMBEDDING].copy()
    other[3, 4] += 1
    with pytest.raises(NestError, match=r"`lm_head.weight` must equal `model.embed_tokens.weight`"):
        settled(card, {**twice, HEAD: other})
    nest.load(card)
    made({**twice, HEAD: other}, tie_word_embeddings=True)
    with pytest.raises(NestError, match=r"they differ in \d of 18,432 bytes"):
        nest.load(card)


def test_tied_and_contradictory(made: Made) -> None:
    text = refused(
        made(tied_tensors(**{HEAD: np.zeros((97, 48), np.float32)}), tie_word_embeddings=True)
    )
    assert (
        "`tie_word_embeddings` is true, but `lm_head.weight` has the shape [97, 48] and "
        "`model.embed_tokens.weight` [96, 48]: they cannot be equal"
    ) in text


def test_untied_and_absent(made: Made) -> None:
    assert refused(made(tied_tensors())) == (
        "cannot convert small (mistral): 1 problem\n"
        "  head:\n"
        "    `tie_word_embeddings` is false, but the checkpoint has no `lm_head.weight`"
    )


# --- tensors ----------------------------------------------------------------------------------


def llama(made: Made, tensors: dict[str, Any], **changes: Any) -> Path:
    source = made(tensors, model_type="llama", architectures=["LlamaForCausalLM"], **changes)
    config = json.loads((source / "config.json").read_text())
    del config["sliding_window"]
    (source / "config.json").write_text(json.dumps(config))
    return source


def biases(parts: str = "q k v o") -> dict[str, Any]:
    wide = {"q": 48, "k": 16, "v": 16, "o": 48}
    return {
        f"model.layers.{i}.self_attn.{p}_proj.bias": np.zeros(wide[p], np.float32)
        for i in range(2)
        for p in parts.split()
    }


def test_biases(made: Made, tmp_path: Path) -> None:
    weights = tiny.weights()
    stated = llama(made, weights | biases(), attention_bias=True)
    nest.convert(stated, output=tmp_path / "card")
    names = read_bindings(tmp_path / "card" / "bindings.json")
    assert names["layers.{i}.attention.k_proj.bias"] == "model.layers.{i}.self_attn.k_proj.bias"
    absent = refused(llama(made, weights, attention_bias=True))
    assert "`model.layers.0.self_attn.q_proj.bias`; `attention_bias` is true" in absent
    extra = refused(llama(made, weights | biases()))
    assert "q_proj.bias` [48] in model.safetensors; `attention_bias` is false" in extra
    some = refused(llama(made, weights | biases("q k v"), attention_bias=True))
    assert "o_proj.bias`; `attention_bias` is true" in some


def test_every_tensor_is_bound_or_refused(made: Made, tmp_path: Path) -> None:
    weights = tiny.weights()
    text = refused(made(weights | {"model.layers.0.self_attn.sinks": np.zeros(6, np.float32)}))
    assert text == (
        "cannot convert small (mistral): 1 problem\n"
        "  tensors that nothing in the package `llama` reads:\n"
        "    `model.layers.0.self_attn.sinks` [6] in model.safetensors"
    )
    lacking = dict(weights)
    lacking["model.layers.1.mlp.up.weight"] = lacking.pop("model.layers.1.mlp.up_proj.weight")
    text = refused(made(lacking))
    assert "tensors that the checkpoint lacks:\n    `model.layers.1.mlp.up_proj.weight`" in text
    assert "did you mean `model.layers.1.mlp.up.weight`?" in text
    inert = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    nest.convert(made(weights | inert), output=tmp_path / "card")


def test_layers_that_are_not_there(made: Made) -> None:
    """One problem, and not one for each tensor of the layer."""
    expected = (
        "cannot convert small (mistral): 1 problem\n"
        "  layers:\n"
        "    `num_hidden_layers` is {}, the checkpoint has 2 layers"
    )
    assert refused(made(num_hidden_layers=3)) == expected.format(3)
    assert refused(made(num_hidden_layers=1)) == expected.format(1)


@pytest.mark.parametrize(
    "key, value",
    [
        ("vocab_size", 97),
        ("hidden_size", 96),
        ("intermediate_size", 96),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 4),
        ("head_dim", 16),
    ],
)
def test_shapes_that_the_settings_contradict(made: Made, key: str, value: int) -> None:
    text = refused(made(**{key: value}))
    assert "shapes" in text and f"`{key}`" in text


def test_words_of_shapes(made: Made) -> None:
    assert refused(made(intermediate_size=96)) == (
        "cannot convert small (mistral): 3 problems\n"
        "  shapes (3):\n"
        "    `model.layers.0.mlp.gate_proj.weight` is [80, 48], and 1 more like it; [96, 48] by "
        "`intermediate_size`\n"
        "    `model.layers.0.mlp.up_proj.weight` is [80, 48], and 1 more like it; [96, 48] by "
        "`intermediate_size`\n"
        "    `model.layers.0.mlp.down_proj.weight` is [48, 80], and 1 more like it; [48, 96] by "
        "`intermediate_size`"
    )
    assert refused(made(head_dim=4)) == (
        "cannot convert small (mistral): Model requires HeadDim > 4, which does not hold with "
        "HeadDim = 4\n"
        "  of its configuration, HeadDim is `head_dim`"
    )


# --- dtypes -----------------------------------------------------------------------------------


def card_of(source: Path, output: Path, **options: Any) -> Card:
    return Card.read(nest.convert(source, output=output, **options))


def test_dtypes(made: Made, tmp_path: Path) -> None:
    """What was asked for, else what is stated, else what the tensors are."""
    plain = card_of(made(), tmp_path / "plain")
    assert plain.generics["T"] == "f32" and not plain.weights.cast_dtype
    stated = card_of(made(torch_dtype="bfloat16"), tmp_path / "stated")
    assert stated.generics["T"] == "bf16" and stated.weights.cast_dtype
    asked = card_of(made(dtype="bfloat16"), tmp_path / "asked", dtype="f16")
    assert asked.generics["T"] == "f16" and asked.weights.cast_dtype
    nest.load(asked, generics={"T": "bf16"})
    with pytest.raises(NestError, match="--dtype f64: choose f32, f16, bf16"):
        card_of(made(), tmp_path / "none", dtype="f64")


def test_mixed_dtypes(made: Made, tmp_path: Path) -> None:
    import ml_dtypes

    mixed = {name: x.astype(ml_dtypes.bfloat16) for name, x in tiny.weights().items()}
    mixed["model.norm.weight"] = tiny.weights()["model.norm.weight"]
    assert refused(made(mixed)).endswith(
        "`dtype` is absent and the tensors are bf16 (`model.embed_tokens.weight`) and f32 "
        "(`model.norm.weight`): --dtype says which one it is"
    )
    card = card_of(made(mixed), tmp_path / "card", dtype="bf16")
    assert card.generics["T"] == "bf16" and card.weights.cast_dtype
    integers = tiny.weights() | {"model.norm.weight": np.zeros(48, np.int32)}
    assert "`model.norm.weight` is stored as i32, not as floats" in refused(made(integers))


# --- sources ----------------------------------------------------------------------------------


def test_what_is_no_checkpoint(made: Made, tmp_path: Path) -> None:
    with pytest.raises(NestError, match="nowhere: no such directory"):
        nest.convert("nowhere", output=tmp_path / "card")
    source = made()
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    assert "other weights: pytorch_model.bin" in refused(source)
    (source / "config.json").write_text("{")
    (source / "pytorch_model.bin").rename(source / "model.safetensors")
    assert "config.json: cannot be read as JSON" in refused(source)
    (source / "config.json").unlink()
    assert "it has no config.json" in refused(source)
    made()
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-8])
    with pytest.raises(LinnetError, match="cut short"):
        nest.convert(source, output=tmp_path / "card")
    assert not (tmp_path / "card").exists()


def test_shards_of_an_index(made: Made, tmp_path: Path) -> None:
    source = made()
    names = list(tiny.weights())
    parts = {"a-1.safetensors": names[:5], "a-2.safetensors": names[5:]}
    for file, held in parts.items():
        write_safetensors(source / file, {name: tiny.weights()[name] for name in held})
    shards = {name: file for file, held in parts.items() for name in held}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (source / "model.safetensors").unlink()
    assert card_of(source, tmp_path / "card").weights.files == tuple(parts)


def test_a_directory_stands_for_its_model(made: Made, own_cache: Path) -> None:
    source = made()
    card = resolve(source)
    assert card.name == "small" and own_cache in card.directory.parents
    assert resolve(str(source)).directory == card.directory
    assert len(nest.load(source).state_dict()) == len(tiny.NAMES) + 9
    changed = resolve(made(rms_norm_eps=1e-3))
    assert changed.directory != card.directory and changed.constants["EPS"] == 1e-3
    (card.directory / "nest.toml").write_text("[")
    assert resolve(made()).constants == card.constants
    with pytest.raises(NestError, match="`hidden_act`"):
        nest.load(made(hidden_act="relu"))


def test_a_repository_stands_for_its_model(made: Made, hub: Hub, tmp_path: Path) -> None:
    source = made()
    for file in ("config.json", "model.safetensors"):
        hub.put(file, (source / file).read_bytes())
    card = Card.read(nest.convert("org/small", output=tmp_path / "card"))
    assert card.weights.repo == "org/small" and card.weights.revision == COMMIT
    assert card.links.huggingface == "https://huggingface.co/org/small"
    assert hub.sent < (source / "model.safetensors").stat().st_size / 4
    assert resolve("hf://org/small@main").constants == card.constants
    model = nest.load("org/small")
    assert model.state_dict()["norm.weight"].shape == (48,)


def test_a_gguf_file_stands_for_its_model(tmp_path: Path) -> None:
    """Its metadata is the configuration; quantised tensors have no dtype to differ in."""
    metadata: dict[str, Any] = {
        "general.license": "mit",
        "llama.context_length": 64,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, 64),
        "model.norm.weight": (64,),
    }
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {
            f"{layer}.{part}_layernorm.weight": (64,) for part in ("input", "post_attention")
        }
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (64, 64) for p in "qo"}
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (32, 64) for p in "kv"}
        shapes |= {f"{layer}.mlp.{p}_proj.weight": (96, 64) for p in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (64, 96)}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    file = write_gguf(tmp_path / "small-q8.gguf", "llama", metadata, tensors, "Q8_0")
    card = card_of(file, tmp_path / "card")
    assert card.weights.files == ("small-q8.gguf",) and card.weights_dir == tmp_path
    assert card.generics["H"] == 64 and card.constants["THETA"] == 500000.0
    assert card.generics["T"] == "bf16" and card.weights.cast_dtype and card.license == "mit"
    assert resolve(file).generics == card.generics
    assert nest.load(str(file)).state_dict()["norm.weight"].shape == (64,)


def test_a_directory_whose_name_is_no_text(made: Made, tmp_path: Path) -> None:
    place = made()
    odd = place.rename(place.parent / "odd\udcff")
    with pytest.raises(NestError, match="cannot be written"):
        nest.convert(odd, output=tmp_path / "card")
    assert not (tmp_path / "card").exists()


def test_revisions(made: Made, tmp_path: Path) -> None:
    with pytest.raises(NestError, match="a local checkpoint has no revision"):
        nest.convert(made(), output=tmp_path / "card", revision="main")
    with pytest.raises(NestError, match="the revision is stated twice, a and b"):
        nest.convert("org/small@a", output=tmp_path / "card", revision="b")


def test_the_command(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "card"
    source = made(max_position_embeddings=10000, run_name="third")
    words = ["convert", str(source), "-o", str(output), "--dtype", "bf16"]
    assert main(words) == 1
    assert "--ignore run_name, if it does not" in capsys.readouterr().err
    assert main([*words, "--ignore", "run_name"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}\n"
    assert said.err == (
        "linnet.nest: MaxSeq is 8192, for caches of a moderate size: `max_position_embeddings` is "
        '10000, and generics={"MaxSeq": N} gives longer ones\n'
    )
    assert Card.read(output).generics["T"] == "bf16"
