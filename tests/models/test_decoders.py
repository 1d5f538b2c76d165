"""Every entry of every decoder family, and of the seed's package, against transformers.

Tiny random models in f32, as transformers saves them, converted by `nest.convert`. Logits agree
within 1e-4, tokens exactly. Windows and the boundaries of rotary scaling are so small that the
positions here get past them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnet import nest
from linnet.diagnostics import PlanError
from linnet.nest.card import Card
from linnet.serve import Engine, Request
from linnet.weights import expand_bindings, read_bindings

from . import families
from .families import LENGTH
from .runners import Reference, Runner, Torch

# transformers alone takes seconds to import
pytestmark = pytest.mark.slow

# One size serves every test: three rows, or sixteen pages.
ROWS, ROOM, PAGE = 3, 64, 4
PAGED = ["prefill_paged", "decode_paged", "step_paged"]
SIZES: dict[str, int | str] = {"Batch": ROWS, "MaxSeq": ROOM, "PageSize": PAGE}

# The families, and parameters of each whose gradients are compared: those that it has alone.
DECODERS = {
    "llama-llama3": ("layers.0.attention.k_proj.weight", "layers.1.mlp.gate.weight"),
    "mistral": ("layers.0.attention.q_proj.weight", "layers.1.attention_norm.weight"),
    "qwen2": ("layers.0.attention.q_proj.bias", "layers.1.attention.v_proj.bias"),
    "qwen2-window": ("layers.1.attention.k_proj.weight", "embedding.weight"),
    "qwen3": ("layers.0.attention.q_norm.weight", "layers.1.attention.k_norm.weight"),
    "phi3": ("layers.0.attention.qkv_proj.weight", "layers.1.mlp.gate_up.weight"),
    "gpt2-inner": ("h.0.attn.c_attn.weight", "wte.weight"),
    "gemma3": ("cycles.0.local.0.attention.k_norm.weight", "cycles.1.full.after_mlp_norm.weight"),
    "seed": ("layers.0.attention.k_proj.weight", "embedding.weight"),
}
# The seed's package leaves its sizes to its card, which is a larger model's.
SEED: dict[str, int | str] = {
    "Vocab": families.VOCAB,
    "H": 48,
    "Heads": 6,
    "KvHeads": 2,
    "Inner": 80,
    "Layers": 2,
    "T": "f32",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A card, the files and the sizes that it is loaded with, and transformers' model."""

    name: str
    card: Card
    weights: list[Path]
    generics: dict[str, int | str]
    original: Any

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """transformers' logits after every token."""
        return families.logits(self.name, tokens, self.original)

    def parameter(self, path: str) -> Any:
        """transformers' parameter that the card binds the path to."""
        assert self.card.bindings_path is not None
        bound = expand_bindings(read_bindings(self.card.bindings_path), [path])
        return self.original.get_parameter(bound[path])


@pytest.fixture(scope="session", params=DECODERS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    name, place = request.param, tmp_path_factory.mktemp(request.param)
    if name == "seed":
        rope = {"rope_type": "default", "rope_theta": 1e6}
        name, own = "mistral-full", {"head_dim": 8, "rms_norm_eps": 1e-5, "rope_parameters": rope}
        original, generics = families.model(name, **own), {**SEED, **SIZES}
        directory = families.saved(original, place / "checkpoint")
        card = Card.read(request.getfixturevalue("seed"))
    else:
        original, generics = families.model(name), SIZES
        directory = families.saved(original, place / "checkpoint")
        card = Card.read(nest.convert(directory, output=place / "card"))
    return Subject(name, card, [directory / "model.safetensors"], generics, original)


def on_torch(subject: Subject) -> Torch:
    """What a user loads."""
    weights = subject.weights
    return Torch(subject.card, subject.generics, nest.load, weights=weights, numerics="fast")


def on_reference(subject: Subject) -> Reference:
    card = subject.card
    return Reference(
        card.source_path,
        {**card.generics, **subject.generics},
        root=card.root,
        main=card.entry,
        constants=card.constants,
        weights=subject.weights,
        bindings=card.bindings_path,
        overrides=["Layers"],
    )


BACKENDS: dict[str, Callable[[Subject], Runner]] = {"reference": on_reference, "torch": on_torch}


@pytest.fixture(scope="session", params=BACKENDS)
def loaded(request: pytest.FixtureRequest, subject: Subject) -> Runner:
    return BACKENDS[request.param](subject)


@pytest.fixture
def run(loaded: Runner) -> Runner:
    """The subject on a backend, its states at zero."""
    loaded.reset()
    return loaded


def close(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=1e-4)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def after(subject: Subject, *sequence: np.ndarray) -> list[np.ndarray]:
    """For each sequence transformers' logits after each of its tokens."""
    return [subject.logits(tokens[None])[0] for tokens in sequence]


def pack(*prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segments of prompts laid end to end."""
    return (
        i32(np.concatenate(prompts)),
        i32(np.concatenate([np.arange(len(p)) for p in prompts])),
        i32(np.concatenate([np.full(len(p), i) for i, p in enumerate(prompts)])),
    )


# ---------------------------------------------------------------- whole sequences


def test_forward(subject: Subject, run: Runner) -> None:
    for shape in ((1, 1), (2, LENGTH)):
        tokens = families.tokens(1, *shape)
        close(run("forward", tokens), subject.logits(tokens))


def test_next_token(subject: Subject, run: Runner) -> None:
    tokens = families.tokens(2, 2, LENGTH)
    close(run("next_token", tokens), subject.logits(tokens)[:, -1])


@pytest.mark.parametrize("subject", ["gpt2-inner"], indirect=True)
@pytest.mark.parametrize("entry", ["forward", "next_token"])
def test_a_sequence_that_learned_positions_have_no_room_for_is_refused(
    entry: str, run: Runner
) -> None:
    run(entry, families.tokens(1, 1, ROOM))
    with pytest.raises(PlanError, match=rf"{entry} requires S <= {ROOM}, .* S = {ROOM + 1}"):
        run(entry, families.tokens(1, 1, ROOM + 1))


# ---------------------------------------------------------------- a batch in step


def test_decode_token_by_token(subject: Subject, run: Runner) -> None:
    tokens = families.tokens(3, ROWS, 20)
    wanted = subject.logits(tokens)
    for pos in range(20):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def test_prefill_in_parts_then_decode(subject: Subject, run: Runner) -> None:
    tokens = families.tokens(4, ROWS, LENGTH)
    wanted = subject.logits(tokens)
    for start, end in ((0, 6), (6, 7), (7, 30), (30, LENGTH - 2)):
        close(run("prefill", tokens[:, start:end], start), wanted[:, end - 1])
    for pos in (LENGTH - 2, LENGTH - 1):
        close(run("decode", tokens[:, pos : pos + 1], pos), wanted[:, pos])


def greedy(subject: Subject, prompts: np.ndarray, count: int) -> np.ndarray:
    """Tokens chosen one at a time from transformers' logits."""
    sequences = prompts
    for _ in range(count):
        best = subject.logits(sequences)[:, -1].argmax(-1)
        sequences = np.concatenate([sequences, i32(best)[:, None]], axis=1)
    return sequences[:, prompts.shape[1] :]


def test_generate(subject: Subject, run: Runner) -> None:
    prompts = families.tokens(13, ROWS, 33)
    run("prefill", prompts[:, :-1], 0)
    found = run("generate", prompts[:, -1:], 32, Steps=7)
    assert found.tolist() == greedy(subject, prompts, 7).tolist()


def test_generate_until(subject: Subject, run: Runner) -> None:
    """The rows have the same prompt, so that all of them stop at once."""
    prompts = np.repeat(families.tokens(14, 1, 12), ROWS, axis=0)
    wanted = greedy(subject, prompts[:1], 7)[0].tolist()
    stop = max(i for i, token in enumerate(wanted) if token not in wanted[:i])
    run("prefill", prompts[:, :-1], 0)
    found, count = run("generate_until", prompts[:, -1:], 11, wanted[stop], MaxNew=9)
    assert stop > 0 and int(count) == stop + 1
    assert found.tolist() == [wanted[: stop + 1] + [0] * (8 - stop)] * ROWS


DRAWS = """module draws

use std.random::{categorical, split}

/// Step `i` draws from the softmax of `logits[i]` with a key of its own.
pub fn drawn<Steps: Dim, B: Dim, V: Dim>(
    key: Tensor[2; i64],
    logits: Tensor[Steps, B, V; f32],
) -> Tensor[Steps, B; i32] {
    let keys = split<Steps>(key)
    var produced = fill<i32>([Steps, B], 0)
    for i in 0..Steps {
        let next = categorical(keys[i, :], logits[i, :, :])
        let written[s, b] = select(iota<i32>(Steps)[s] == cast<i32>(i), next[b], produced[s, b])
        produced = written
    }
    return produced
}
"""


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """std's draws from logits, `[Steps, B, V]` to `[Steps, B]`."""
    import linnet.torch

    file = tmp_path_factory.mktemp("draws") / "draws.linnet"
    file.write_text(DRAWS)
    return linnet.torch.load_function(file, "drawn")


def test_sample(subject: Subject, run: Runner, drawn: Callable[..., Any]) -> None:
    """The same tokens as std draws from transformers' logits."""
    prompts, key = families.tokens(17, ROWS, 20), np.array([7, 11], np.int64)
    run("prefill", prompts[:, :-1], 0)
    found = run("sample", prompts[:, -1:], 19, key, np.float32(1.5), Steps=8)
    logits = subject.logits(np.concatenate([prompts, found], axis=1))[:, 19:27]
    heated = np.ascontiguousarray(logits.transpose(1, 0, 2)) / np.float32(1.5)
    assert found.tolist() == drawn(key, heated).numpy().T.tolist()
    assert (found != logits.argmax(-1)).any(), "a temperature of 1.5 draws not only the best"


# ---------------------------------------------------------------- many requests, rows of the caches


def test_rows_at_their_own_positions(subject: Subject, run: Runner) -> None:
    """Two prompts of different lengths enter rows 2 and 0; then all rows step together."""
    first, second = families.tokens(5, LENGTH), families.tokens(6, 14)
    of_first, of_second = after(subject, first, second)
    prompts = np.zeros((2, 36), np.int32)
    prompts[0, :36], prompts[1, :5] = first[:36], second[:5]
    found = run("prefill_slots", prompts, i32([2, 0]), i32([36, 5]))
    close(found, np.stack([of_first[35], of_second[4]]))
    for step in range(4):
        tokens = i32([[second[5 + step]], [0], [first[36 + step]]])
        found = run("decode_rows", tokens, i32([5 + step, ROOM - 1, 36 + step]))
        close(found[[0, 2]], np.stack([of_second[5 + step], of_first[36 + step]]))


def test_packed_prompts_and_steps(subject: Subject, run: Runner) -> None:
    a, b, c = families.tokens(7, LENGTH), families.tokens(8, 14), families.tokens(9, 26)
    of_a, of_b, of_c = after(subject, a, b, c)
    tokens, positions, segments = pack(a[:37], b[:11])
    # One token of padding: a segment of its own, written where nothing reads.
    tokens, positions = np.append(tokens, i32(0)), np.append(positions, i32(ROOM - 1))
    segments, rows = np.append(segments, i32(2)), i32([1] * 37 + [2] * 11 + [0])
    found = run("prefill_packed", tokens, rows, positions, segments, i32([36, 47, 47]))
    close(found[:2], np.stack([of_a[36], of_b[10]]))
    # The third prompt enters row 0 in the same pass as a step of rows 1 and 2.
    tokens, positions, segments = pack(c[:24])
    found = run(
        "step_packed",
        tokens,
        i32([0] * 24),
        positions,
        segments,
        i32([23, 23, 23]),
        i32([[0], [a[37]], [b[11]]]),
        i32([ROOM - 1, 37, 11]),
    )
    close(found[[0, 4, 5]], np.stack([of_c[23], of_a[37], of_b[11]]))
    for step in range(2):
        tokens = i32([[c[24 + step]], [a[38 + step]], [b[12 + step]]])
        found = run("decode_rows", tokens, i32([24, 38, 12]) + i32(step))
        close(found, np.stack([of_c[24 + step], of_a[38 + step], of_b[12 + step]]))


# ---------------------------------------------------------------- many requests, pages of one pool

# Page 0 is nobody's.
TABLE = i32(
    [
        [5, 2, 15, 11, 9, 1, 3, 10, 14, 7],
        [4, 8, 0, 0, 0, 0, 0, 0, 0, 0],
        [6, 13, 12, 0, 0, 0, 0, 0, 0, 0],
    ]
)


def places(row: int, positions: range) -> list[int]:
    """Where the pool has these positions of a row."""
    return [int(TABLE[row, p // PAGE]) * PAGE + p % PAGE for p in positions]


def test_pages(subject: Subject, run: Runner) -> None:
    a, b, c = families.tokens(10, LENGTH), families.tokens(11, 8), families.tokens(12, 12)
    of_a, of_b, of_c = after(subject, a, b, c)
    idle = TABLE * i32([[1], [1], [0]])
    tokens, positions, segments = pack(a[:33], b[:5])
    # One token of padding, of the row without a request.
    tokens, positions, rows = (
        np.append(x, i32(k)) for x, k in ((tokens, 0), (positions, 0), (segments, 2))
    )
    where = i32(places(0, range(33)) + places(1, range(5)) + [0])
    found = run("prefill_paged", tokens, positions, rows, where, i32([32, 37, 37]), idle)
    close(found[:2], np.stack([of_a[32], of_b[4]]))
    found = run("decode_paged", i32([[a[33]], [b[5]], [0]]), i32([33, 5, 0]), idle)
    close(found[:2], np.stack([of_a[33], of_b[5]]))
    # Row 0 goes on with a chunk of three, row 2's prompt enters; then every row steps.
    found = run(
        "step_paged",
        np.concatenate([a[34:37], c[:10]]),
        i32([34, 35, 36, *range(10)]),
        i32([0] * 3 + [2] * 10),
        i32(places(0, range(34, 37)) + places(2, range(10))),
        i32([2, 12, 12]),
        i32([[a[37]], [b[6]], [c[10]]]),
        i32([37, 6, 10]),
        TABLE,
    )
    wanted = [of_a[36], of_c[9], of_a[37], of_b[6], of_c[10]]
    close(found[[0, 1, 3, 4, 5]], np.stack(wanted))
    found = run("decode_paged", i32([[a[38]], [b[7]], [c[11]]]), i32([38, 7, 11]), TABLE)
    close(found, np.stack([of_a[38], of_b[7], of_c[11]]))


# ---------------------------------------------------------------- training


def packed(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two sequences, and what the training entries take of them: targets and weights last."""
    sequences = [families.tokens(seed, LENGTH), families.tokens(seed + 1, 9)]
    targets = np.concatenate([np.roll(s, -1) for s in sequences]).astype(np.int64)
    weights = np.random.default_rng(3).random(LENGTH + 9).astype(np.float32) / 16
    weights[[LENGTH - 1, LENGTH + 8]] = 0  # nothing follows there
    return sequences, [*pack(*sequences), targets, weights]


def test_packed_training_entries(subject: Subject, run: Runner) -> None:
    sequences, inputs = packed(15)
    targets, weights = inputs[3:]
    logits = np.concatenate(after(subject, *sequences))
    largest = logits.max(-1, keepdims=True)
    every = logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
    chosen = np.take_along_axis(every, targets[:, None], 1)[:, 0]
    close(run("log_probs_packed", *inputs[:4]), chosen)
    close(run("loss_packed", *inputs), -(weights * chosen).sum())
    hidden = run("hidden_packed", *inputs[:3])
    close(hidden @ subject.original.get_output_embeddings().weight.detach().numpy().T, logits)


@pytest.mark.parametrize("loaded", ["torch"], indirect=True)
def test_gradients(subject: Subject, run: Runner, request: pytest.FixtureRequest) -> None:
    """Of the packed loss, for every parameter; those that the family has alone have some."""
    import torch

    assert isinstance(run, Torch)
    sequences, inputs = packed(18)
    own = DECODERS[request.node.callspec.params["subject"]]
    paths = run.module.set_trainable(True)
    assert set(own) <= set(paths)
    ours = [run.module.get_parameter(path) for path in paths]
    theirs = [subject.parameter(path) for path in paths]
    loss = run.module.run_entry("loss_packed", [torch.from_numpy(i) for i in inputs])
    found = torch.autograd.grad(loss, ours)
    run.module.set_trainable(False)
    logits = torch.cat(
        [subject.original(torch.from_numpy(s[None]).long()).logits[0] for s in sequences]
    )
    targets, weights = (torch.from_numpy(i) for i in inputs[3:])
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    for path, one, other in zip(
        paths, found, torch.autograd.grad((weights * losses).sum(), theirs), strict=True
    ):
        scale = float(other.abs().max())
        assert scale > 1e-3 or path not in own, path
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-4 * max(scale, 1))


def test_an_engine_serves_it(subject: Subject) -> None:
    """Over few pages, in chunks, some prompts beginning alike: as transformers says alone."""
    sizes = {**subject.generics, "Batch": 1}
    model = nest.load(subject.card, generics=sizes, weights=subject.weights, entries=PAGED)
    engine = Engine(model, rows=3, max_len=LENGTH, pack=11)
    stem = families.tokens(7, 30).tolist()
    requests = [Request(stem[:k], 6) for k in (30, 3, 13, 29)] + [
        Request([k, 2], 12) for k in (9, 1)
    ]
    answers, stats = engine.run(requests)
    assert stats.prefills > 3
    for one in answers:
        tokens = [*one.request.prompt, *one.tokens]
        logits = subject.logits(i32([tokens]))[0, len(one.request.prompt) - 1 : -1]
        for row, token in zip(logits, one.tokens, strict=True):
            assert row.max() - row[token] < 1e-4
            if row.argmax() != token:
                break  # a near tie; what follows is another answer
