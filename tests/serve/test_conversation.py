"""Conversations: what the caches hold is not computed again, and what no longer fits is dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from linnet.serve.conversation import ContextError, Conversation
from linnet.serve.generation import Generator, shared_prefix
from linnet.serve.sampling import Sampling
from linnet.serve.text import ChatError, Text

VOCAB = 40
GREEDY = Sampling()
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'w39' %}{{ raise_exception('not that') }}"
    "{% endif %}{{ m.role }} {{ m.content }} end {% endfor %}assistant"
)


class Decoder:
    """A decoder whose next token depends on every token of its cache up to the last position."""

    def __init__(self) -> None:
        self.cache: dict[int, int] = {}
        self.computed = 0

    def run_entry(self, name: str, inputs: list[Any]) -> torch.Tensor:
        tokens, position = inputs
        assert tokens.dtype == torch.int32 and tokens.shape[0] == 1
        assert name == "prefill" or (name == "decode" and tokens.shape == (1, 1))
        for k, token in enumerate(tokens[0].tolist()):
            self.cache[position + k] = token
        self.computed += tokens.shape[1]
        return self.logits([self.cache[k] for k in range(position + tokens.shape[1])])

    @staticmethod
    def logits(tokens: list[int]) -> torch.Tensor:
        seed = hash(tuple(tokens)) % 2**31
        return torch.rand((1, VOCAB), generator=torch.Generator().manual_seed(seed))


def following(ids: list[int], count: int) -> list[int]:
    """The greedy tokens after the ids, from nothing cached."""
    said = list(ids)
    for _ in range(count):
        said.append(int(Decoder.logits(said).argmax()))
    return said[len(ids) :]


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=6),
    counts=st.lists(st.integers(1, 5), min_size=6, max_size=6),
    taken=st.lists(st.integers(0, 5), min_size=6, max_size=6),
)
def test_caches_change_nothing(
    prompts: list[list[int]], counts: list[int], taken: list[int]
) -> None:
    """Each answer is that of a fresh model, also after answers that were broken off."""
    generator = Generator(Decoder())
    for ids, count, take in zip(prompts, counts, taken, strict=False):
        tokens = generator.tokens(ids, count, GREEDY)
        found = [next(tokens) for _ in range(min(count, take))]
        assert found == following(ids, len(found))


def test_only_what_is_new_is_computed() -> None:
    model = Decoder()
    generator = Generator(model)
    answer = list(generator.tokens([1, 2, 3], 4, GREEDY))
    assert model.computed == 3 + 3  # the last token is not fed
    list(generator.tokens([1, 2, 3, *answer, 7, 8], 1, GREEDY))
    assert model.computed == 6 + 3
    list(generator.tokens([1, 2, 3, *answer, 7, 8], 1, GREEDY))  # the same: its end alone
    assert model.computed == 9 + 1
    list(generator.tokens([1, 9, 3], 1, GREEDY))
    assert model.computed == 10 + 2


def test_an_interrupt_leaves_the_caches_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Decoder()
    generator = Generator(model)
    list(generator.tokens([1, 2, 3, 4], 3, GREEDY))
    run = model.run_entry

    def interrupted(name: str, inputs: list[Any]) -> torch.Tensor:
        run(name, inputs)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "run_entry", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(generator.tokens([1, 2, 9, 9, 9], 3, GREEDY))
    monkeypatch.undo()
    ids = [1, 2, 3, 4, 5]
    assert list(generator.tokens(ids, 3, GREEDY)) == following(ids, 3)


def test_sampling_is_by_position() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    whole = list(Generator(Decoder()).tokens([1, 2], 6, sampling))
    rest = list(Generator(Decoder()).tokens([1, 2, *whole[:3]], 3, sampling))
    assert rest == whole[3:]
    assert whole != list(Generator(Decoder()).tokens([1, 2], 6, GREEDY))


def test_prefixes() -> None:
    assert shared_prefix([], [1]) == 0
    assert shared_prefix([1, 2], [1, 2, 3]) == 2
    assert shared_prefix([1, 2, 3], [1, 5, 3]) == 1


# --- what fits --------------------------------------------------------------------------------


def conversation(context: int, system: str | None = None) -> Conversation:
    words = {f"w{k}": k for k in range(36)} | {"user": 36, "assistant": 37, "system": 38, "end": 39}
    tokenizer = Tokenizer(models.WordLevel({**words, "w39": 40}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return Conversation(Text(tokenizer, frozenset({39}), TEMPLATE), context, system)


def test_a_conversation_grows() -> None:
    talk = conversation(100, "w9")
    prompt = talk.ask("w1 w2", 10)
    assert prompt.ids == [38, 9, 39, 36, 1, 2, 39, 37]
    assert (prompt.room, prompt.dropped) == (10, 0)
    talk.answered("w1 w2", "w3")
    assert talk.ask("w4", 10).ids == [38, 9, 39, 36, 1, 2, 39, 37, 3, 39, 36, 4, 39, 37]
    assert [one["role"] for one in talk.messages()] == ["system", "user", "assistant"]


def test_the_oldest_exchanges_make_room() -> None:
    talk = conversation(20, "w9")
    for k in range(1, 4):  # six tokens each; the system message, question and frame are seven
        prompt = talk.ask(f"w{k}", 10)
        talk.answered(f"w{k}", "w30")
    assert prompt.dropped == 1 and prompt.room == 1 + 6
    assert prompt.ids == [38, 9, 39, 36, 2, 39, 37, 30, 39, 36, 3, 39, 37]
    assert talk.exchanges == [("w2", "w30"), ("w3", "w30")]


def test_a_question_alone_may_fill_the_context() -> None:
    talk = conversation(20)
    talk.answered("w1", "w2")
    prompt = talk.ask(" ".join(["w5"] * 16), 10)
    assert (len(prompt.ids), prompt.room, prompt.dropped) == (19, 1, 1)
    talk.answered("w1", "w2")
    with pytest.raises(ContextError, match="is 20 tokens long, and the context holds 20 with the"):
        talk.ask(" ".join(["w5"] * 17), 10)
    assert talk.exchanges == [("w1", "w2")]


def test_what_the_template_refuses_changes_nothing() -> None:
    talk = conversation(30)
    talk.answered("w1", "w2")
    with pytest.raises(ChatError, match="not that"):
        talk.ask("w39", 10)
    assert talk.exchanges == [("w1", "w2")]
