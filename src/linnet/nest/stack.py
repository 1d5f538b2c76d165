"""The reference stack: transformers' model of a card, from the same files or the same tensors."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.diagnostics import NestError
from linnet.dims import Dim
from linnet.loading import load_source, slots_of
from linnet.nest import quantised
from linnet.nest.card import Card
from linnet.weights import expand_bindings, open_checkpoint, read_bindings

if TYPE_CHECKING:
    import torch

    from linnet.weights import Checkpoint
    from linnet.weights.checkpoint import Weights

CONFIG = "config.json"
Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stack:
    """Another implementation's model, f32, and in words what it is and what its weights are."""

    model: Any
    description: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A card's model as it is bound: generics with their defaults, constants, tensors by path.

    `values` is how many numbers those tensors hold.
    """

    card: Card
    generics: dict[str, int | str]
    constants: dict[str, float]
    tensors: dict[str, str]
    values: int

    def size(self, name: str) -> int:
        return int(self.generics[name])

    def number(self, name: str, default: float) -> float:
        return self.constants.get(name, default)

    @property
    def decodes(self) -> bool:
        """It makes text: it has caches. Otherwise it reads text."""
        return "MaxSeq" in self.generics

    @property
    def tied(self) -> bool:
        """The output head is the embedding table."""
        names = self.tensors
        head = names.get("lm_head.weight")
        return head is None or head == names.get("embedding.weight")


def settings_of(
    card: Card, overrides: Mapping[str, int | str], bindings: Path | None = None
) -> Settings:
    """What the card binds, `overrides` in the place of its own."""
    loaded = load_source(
        card.source_path,
        root=card.root,
        main=card.entry,
        entries=[card.entry] if card.entry else None,
        generics={**card.generics, **overrides},
        constants=card.constants,
    )
    constants: dict[str, float] = {}
    for info in loaded.analysis.consts.values():
        if not info.module.name.startswith("std.") and isinstance(info.value, int | float | Dim):
            constants[info.const.name.text] = float(str(info.value))
    slots = slots_of(loaded.program)
    paths = [slot.path for slot in slots]
    place = bindings or card.bindings_path
    names = expand_bindings(read_bindings(place) if place else {}, paths)
    tensors = {path: names.get(path, path) for path in paths if path in names or place is None}
    values = sum(math.prod(slot.shape) for slot in slots if slot.path in tensors)
    return Settings(card, dict(loaded.program.generics), constants, tensors, values)


def published_stack(
    settings: Settings, weights: str | Path | Sequence[str | Path], layers: int | None
) -> Stack:
    """transformers' model of these files, its first `layers` layers.

    transformers reads the files itself where it can: a GGUF file, or SafeTensors with a config.json
    beside them. Else its model is made from what the card binds, and gets the tensors we read.
    """
    transformers = _transformers()
    kind = transformers.AutoModelForCausalLM if settings.decodes else transformers.AutoModel
    place = [Path(weights)] if isinstance(weights, str | Path) else [Path(one) for one in weights]
    folder = place[0] if place[0].is_dir() else place[0].parent
    ggufs = [path for path in place if path.suffix == ".gguf"] or sorted(folder.glob("*.gguf"))
    options: dict[str, Any] = {}
    if ggufs and not (folder / CONFIG).is_file():
        options, folder = {"gguf_file": ggufs[0].name}, ggufs[0].parent
    elif not (folder / CONFIG).is_file():
        return _filled(settings, open_checkpoint(weights), "the tensors that Linnet reads")
    with _quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            if layers is not None:
                _cut(config, layers)
            model = kind.from_pretrained(
                folder, config=config, dtype="float32", attn_implementation="eager", **options
            )
        except Exception as error:  # the library raises whatever its readers do
            if not options:
                raise NestError(f"transformers cannot read {folder}: {error}") from error
            return _filled(settings, open_checkpoint(weights), "the tensors that Linnet reads")
    source = "the same GGUF file" if options else "the same checkpoint"
    return Stack(model.eval(), _described(model, f"{source}, read by transformers"))


def random_stack(settings: Settings, seed: int) -> tuple[Stack, dict[str, Any]]:
    """transformers' model with random weights, and those weights by the card's tensor names.

    Wide enough that every part matters: matrices deviate by one over the root of their width, and
    norms and biases by 0.1 from what they begin as.
    """
    import torch

    model = _of_config(settings)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
            if parameter.dim() > 1:
                parameter.zero_()
            noise = torch.empty(parameter.shape).normal_(generator=source)
            parameter.add_(noise.mul_(scale))
    own, names = model.state_dict(), set(settings.tensors.values())
    arrays: dict[str, Any] = {}
    for name in sorted(names):
        if (theirs := quantised.own_name(name, names)) is not None:
            array = own[_own_name(model, own, theirs)].numpy()
            arrays |= quantised.stored(name, names, array)
    _fill(settings, model, open_checkpoint(arrays))
    return Stack(model, _described(model, f"random weights of seed {seed}")), arrays


def greedy(model: Any, ids: Sequence[int], count: int, ends: frozenset[int]) -> list[int]:
    """The most likely tokens after the ids, `count` at most, up to an end token."""
    import torch

    tokens: list[int] = []
    with torch.inference_mode():
        out = model(torch.tensor([list(ids)]), use_cache=True)
        while len(tokens) < count:
            token = int(out.logits[0, -1].argmax())
            if token in ends:
                break
            tokens.append(token)
            step = torch.tensor([[token]])
            out = model(step, cache=out.cache, use_cache=True)
    return tokens


def _described(model: Any, weights: str) -> str:
    import torch
    import transformers

    return (
        f"transformers {transformers.__version__} ({type(model).__name__}, f32, eager attention), "
        f"torch {torch.__version__}, {weights}"
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise NestError(
            f"this compares with transformers, which cannot be imported ({error}): "
            "pip install transformers accelerate gguf"
        ) from error
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what transformers says while it loads; its errors come all the same."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _cut(config: Any, layers: int) -> None:
    """The configuration of the first layers alone."""
    config.num_hidden_layers = layers
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = kinds[:layers]


# --- from what a card binds -------------------------------------------------------------------


def _of_config(settings: Settings) -> Any:
    """transformers' model of what the card binds, its weights as transformers begins them."""
    family = settings.card.package or settings.card.family or ""
    if family not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise NestError(
            f"{settings.card.name}: no configuration of transformers is known for the package "
            f"{family!r} (known are {known}); a checkpoint with its config.json would do"
        )
    transformers = _transformers()
    kind = transformers.AutoModelForCausalLM if settings.decodes else transformers.AutoModel
    config = CONFIGS[family](settings, transformers)
    with _quiet():
        return kind.from_config(config, attn_implementation="eager").float().eval()


def _filled(settings: Settings, weights: Weights, what: str) -> Stack:
    """The card's model in transformers with these tensors."""
    model = _of_config(settings)
    left = _fill(settings, model, open_checkpoint(weights))
    if left := [name for name in left if "pooler." not in name]:
        listed = ", ".join(left[:5])
        raise NestError(f"{settings.card.name}: nothing fills {listed} of {type(model).__name__}")
    return Stack(model, _described(model, what))


def _fill(settings: Settings, model: Any, checkpoint: Checkpoint) -> list[str]:
    """transformers' model has the values of the card's tensors; the parameters that none fills."""
    import torch

    own, names = model.state_dict(), set(settings.tensors.values())
    filled: set[int] = set()
    for name in sorted(names):
        if name not in checkpoint.tensors:
            raise NestError(f"{settings.card.name}: the checkpoint has no tensor {name}")
        if (theirs := quantised.own_name(name, names)) is None:
            continue
        target = own[_own_name(model, own, theirs)]
        array = quantised.values(name, names, lambda at, kind: checkpoint.tensors[at].read(kind))
        with torch.no_grad():
            target.copy_(torch.from_numpy(array))
        filled.add(target.data_ptr())
    return [name for name, at in model.named_parameters() if at.data_ptr() not in filled]


def _own_name(model: Any, own: Mapping[str, torch.Tensor], name: str) -> str:
    """The name that transformers' model gives a tensor: with a prefix, old names made new."""
    prefix = f"{model.base_model_prefix}."
    newer = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
    for known in (newer, prefix + newer, newer.removeprefix(prefix)):
        if known in own:
            return known
    raise NestError(f"{type(model).__name__} has no tensor like {name}, which the card binds")


def _decoder(settings: Settings) -> dict[str, Any]:
    """What the decoders with rotary positions have in common."""
    return {
        "vocab_size": settings.size("Vocab"),
        "hidden_size": settings.size("H"),
        "num_attention_heads": settings.size("Heads"),
        "num_key_value_heads": settings.size("KvHeads"),
        "intermediate_size": settings.size("Inner"),
        "num_hidden_layers": settings.size("Layers"),
        "max_position_embeddings": settings.size("MaxSeq"),
        "tie_word_embeddings": settings.tied,
        # Ids that no drawn token may collide with.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _default_rope(settings: Settings, theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": settings.number("THETA", theta)}


def _head_dim(settings: Settings) -> int:
    if "HeadDim" in settings.generics:
        return settings.size("HeadDim")
    return settings.size("H") // settings.size("Heads")


def _llama(settings: Settings, transformers: Any) -> Any:
    rope = _default_rope(settings, 10000.0)
    factor = settings.number("FACTOR", 1.0)
    original = int(settings.number("ORIGINAL_MAX_POSITION_EMBEDDINGS", 0))
    if factor != 1.0 and original == 0:
        rope |= {"rope_type": "linear", "factor": factor}
    elif factor != 1.0:
        rope |= {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": settings.number("LOW_FREQ_FACTOR", 1.0),
            "high_freq_factor": settings.number("HIGH_FREQ_FACTOR", 4.0),
            "original_max_position_embeddings": original,
        }
    common = _decoder(settings) | {
        "head_dim": _head_dim(settings),
        "rms_norm_eps": settings.number("EPS", 1e-5),
        "rope_parameters": rope,
    }
    window = int(settings.number("WINDOW", 0))
    if window:
        return transformers.MistralConfig(**common, sliding_window=window)
    return transformers.LlamaConfig(
        **common,
        attention_bias=any(path.endswith("q_proj.bias") for path in settings.tensors),
        mlp_bias=any(path.endswith("gate.bias") for path in settings.tensors),
    )


def _qwen2(settings: Settings, transformers: Any) -> Any:
    return transformers.Qwen2Config(
        **_decoder(settings),
        **_window(settings),
        rms_norm_eps=settings.number("EPS", 1e-6),
        rope_parameters=_default_rope(settings, 1000000.0),
    )


def _qwen3(settings: Settings, transformers: Any) -> Any:
    return transformers.Qwen3Config(
        **_decoder(settings),
        **_window(settings),
        head_dim=_head_dim(settings),
        rms_norm_eps=settings.number("EPS", 1e-6),
        rope_parameters=_default_rope(settings, 1000000.0),
    )


def _window(settings: Settings) -> dict[str, Any]:
    """Qwen's: on every layer, or on none."""
    window = int(settings.number("WINDOW", 0))
    if not window:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}


def _phi3(settings: Settings, transformers: Any) -> Any:
    return transformers.Phi3Config(
        **_decoder(settings),
        sliding_window=int(settings.number("WINDOW", 0)) or None,
        rms_norm_eps=settings.number("EPS", 1e-5),
        rope_parameters=_default_rope(settings, 10000.0),
        resid_pdrop=0.0,
    )


def _gpt2(settings: Settings, transformers: Any) -> Any:
    return transformers.GPT2Config(
        vocab_size=settings.size("Vocab"),
        n_positions=settings.size("MaxPositions"),
        n_embd=settings.size("H"),
        n_layer=settings.size("Layers"),
        n_head=settings.size("Heads"),
        n_inner=settings.size("Inner"),
        layer_norm_epsilon=settings.number("EPS", 1e-5),
        bos_token_id=None,
        eos_token_id=None,
    )


def _gemma3(settings: Settings, transformers: Any) -> Any:
    layers, period = settings.size("Layers"), settings.size("Period")
    kinds = ["sliding_attention"] * layers
    kinds[period - 1 :: period] = ["full_attention"] * (layers // period)
    factor = settings.number("FACTOR", 1.0)
    everywhere = _default_rope(settings, 1000000.0)
    if factor != 1.0:
        everywhere |= {"rope_type": "linear", "factor": factor}
    nearby = {"rope_type": "default", "rope_theta": settings.number("LOCAL_THETA", 10000.0)}
    return transformers.Gemma3TextConfig(
        **_decoder(settings),
        head_dim=_head_dim(settings),
        rms_norm_eps=settings.number("EPS", 1e-6),
        query_pre_attn_scalar=int(settings.number("QUERY_SCALAR", 256.0)),
        sliding_window=int(settings.number("WINDOW", 512)),
        layer_types=kinds,
        rope_parameters={"full_attention": everywhere, "sliding_attention": nearby},
    )


def _gpt_oss(settings: Settings, transformers: Any) -> Any:
    return transformers.GptOssConfig(
        **_decoder(settings),
        head_dim=_head_dim(settings),
        num_local_experts=settings.size("Experts"),
        num_experts_per_tok=settings.size("TopK"),
        rms_norm_eps=settings.number("EPS", 1e-5),
        sliding_window=int(settings.number("WINDOW", 128)),
        swiglu_alpha=settings.number("ALPHA", 1.702),
        swiglu_limit=settings.number("LIMIT", 7.0),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": settings.number("THETA", 150000.0),
            "factor": settings.number("FACTOR", 32.0),
            "beta_fast": settings.number("BETA_FAST", 32.0),
            "beta_slow": settings.number("BETA_SLOW", 1.0),
            "truncate": False,
            "original_max_position_embeddings": int(
                settings.number("ORIGINAL_MAX_POSITION_EMBEDDINGS", 4096.0)
            ),
        },
    )


def _bert(settings: Settings, transformers: Any) -> Any:
    common = {
        "vocab_size": settings.size("Vocab"),
        "max_position_embeddings": settings.size("MaxPositions"),
        "type_vocab_size": settings.size("TypeVocab"),
        "hidden_size": settings.size("D"),
        "num_attention_heads": settings.size("Heads"),
        "intermediate_size": settings.size("Inner"),
        "num_hidden_layers": settings.size("Layers"),
        "layer_norm_eps": settings.number("EPS", 1e-12),
    }
    first = int(settings.number("FIRST_POSITION", 0))
    if first:  # RoBERTa counts positions from the one after its padding's
        return transformers.RobertaConfig(**common, pad_token_id=first - 1)
    return transformers.BertConfig(**common)


CONFIGS: dict[str, Callable[[Settings, Any], Any]] = {
    "llama": _llama,
    "llama_fp8": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "bert": _bert,
}
"""Package -> transformers' configuration of what a card binds."""
