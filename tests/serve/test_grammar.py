"""Answers of a given form: what random logits make of it, token by token."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import regex
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers import pre_tokenizers as pre

from linnet.diagnostics import InternalError, LinnetError
from linnet.nest.card import find_card
from linnet.nest.fetch import fetch_weights
from linnet.serve import Engine, Request, RequestError
from linnet.serve.grammar import Form, Grammars
from linnet.serve.sampling import Draw, DrawError, Sampling, draw
from linnet.serve.text import Text
from linnet.serve.vocabulary import tokenizer_of

from .decoders import LONGEST, pool

PIECES = ['{"', '":', '"}', '", "', "true", "null", "na", "me", "ab", "10", "é", "😀", "  ", "\n\n"]
SPECIAL = ["<s>", "</s>", "<|end|>"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog", "größe"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])(T[0-2][0-9]:[0-5][0-9])?Z*"
OPTIONS = ["yes", "yes, but", "no", 'a "b" \\ /.*', "größe 😀", "-\n-"]


def byte_level() -> Tokenizer:
    """Byte-level merges, with special tokens added as tokenizer.json files do."""
    letters = sorted(pre.ByteLevel.alphabet())
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {letter: k for k, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    for piece in PIECES:
        written = plain.pre_tokenize_str(piece)[0][0]
        for end in range(2, len(written) + 1):
            if written[:end] not in vocabulary:
                vocabulary[written[:end]] = len(vocabulary)
                merges.append((written[: end - 1], written[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = plain, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in SPECIAL])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=3)
    return tokenizer


def sentence_pieces() -> Tokenizer:
    """A GGUF file's sentencepiece vocabulary, with a token for each byte."""
    pieces = [one.replace(" ", "▁") for one in PIECES]
    letters = sorted({letter for piece in pieces for letter in piece} | {"▁"})
    steps = {piece[:end] for piece in pieces for end in range(2, len(piece) + 1)}
    tokens = ["<unk>", *SPECIAL, *(f"<0x{k:02X}>" for k in range(256)), *letters, *sorted(steps)]
    return tokenizer_of(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [-float(len(token)) for token in tokens],
            "tokenizer.ggml.token_type": [2, 3, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260)],
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
        },
        "test",
    )


@cache
def text_of(kind: str) -> Text:
    tokenizer = {"byte level": byte_level, "sentence pieces": sentence_pieces}[kind]()
    ends = frozenset(tokenizer.token_to_id(one) for one in SPECIAL[1:])
    return Text(tokenizer, ends, None)


@cache
def grammars_of(kind: str) -> Grammars:
    return Grammars(text_of(kind))


def bits(words: Any, count: int) -> np.ndarray:
    return np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little", count=count)


def answer(
    text: Text, form: Form, seed: int, limit: int, may_end: Callable[[str], bool] | None = None
) -> tuple[str, bool]:
    """What random logits make of a form, at most so many tokens, and whether it is at its end.

    All along, an end token is allowed exactly where `may_end`, and no other special one.
    """
    vocab = text.tokenizer.get_vocab_size()
    special = {text.tokenizer.token_to_id(one) for one in [*SPECIAL, "<unk>"]} - {None}
    logits = np.random.default_rng(seed).normal(0, 2, (limit, 1, vocab)).astype(np.float32)
    matcher, tokens = form.start(), list[int]()
    for k in range(limit):
        allowed = bits(matcher.allowed(), vocab)
        assert not any(allowed[token] for token in special - text.eos)
        so_far = text.decode(tokens)
        if may_end is not None and not so_far.endswith("\ufffd"):
            assert [bool(allowed[end]) for end in text.eos] == [may_end(so_far)] * len(text.eos)
        one = Draw(Sampling(float(seed % 3), seed=seed), k, matcher=matcher)
        token = draw(logits[k], [one])[0].token
        if token in text.eos:
            return text.decode(tokens), True
        tokens.append(token)
        matcher.accept(token)
        if matcher.finished:
            assert set(np.flatnonzero(bits(matcher.allowed(), vocab))) <= text.eos
            return text.decode(tokens), True
    return text.decode(tokens).rstrip("\ufffd"), False


def is_object(written: str) -> bool:
    try:
        return isinstance(json.loads(written), dict)
    except ValueError:
        return False


def is_person(written: str) -> bool:
    if not is_object(written):
        return False
    found = json.loads(written)
    assert set(found) <= set(PERSON["properties"]), found  # type: ignore[arg-type]
    return (
        isinstance(found.get("name"), str)
        and len(found["name"]) <= 8
        and isinstance(found.get("age"), int)
        and 0 <= found["age"] <= 150
        and found.get("kind", "cat") in ("cat", "dog", "größe")
        and all(isinstance(one, bool) for one in found.get("tags", []))
        and len(found.get("tags", [])) <= 3
    )


KINDS = ("byte level", "sentence pieces")


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_make_matches_of_a_pattern(kind: str) -> None:
    text, form = text_of(kind), grammars_of(kind).regex(DATE)
    ended = 0
    for seed in range(25):
        written, over = answer(
            text, form, seed, 4 + seed, lambda one: re.fullmatch(DATE, one) is not None
        )
        found = regex.fullmatch(DATE, written, partial=not over)
        assert found is not None, written
        ended += over
    assert 3 < ended < 25


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_choose_one_of_the_choices(kind: str) -> None:
    text, form = text_of(kind), grammars_of(kind).choice(OPTIONS)
    seen: set[str] = set()
    for seed in range(40):
        written, over = answer(text, form, seed, 3 if seed < 5 else 40, OPTIONS.__contains__)
        assert written in OPTIONS if over else any(one.startswith(written) for one in OPTIONS)
        seen.add(written)
    assert len(seen) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_make_json_of_a_schema(kind: str) -> None:
    text, form = text_of(kind), grammars_of(kind).json_schema(PERSON)
    ended = 0
    for seed in range(12):
        written, over = answer(text, form, seed, 250, is_person)
        assert is_person(written) or not over, written
        ended += over
    assert ended > 3


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_make_json_objects(kind: str) -> None:
    text, form = text_of(kind), grammars_of(kind).json_object()
    done = 0
    for seed in range(10):
        written, over = answer(text, form, seed, 60, is_object)
        assert is_object(written) if over else written == "" or written[0] == "{"
        done += over
    assert done > 0


def test_an_answer_cut_short_is_the_beginning_of_one() -> None:
    # Whatever was cut short can still be brought to an end.
    text, form = text_of("byte level"), grammars_of("byte level").json_object()
    closers = [text.tokenizer.token_to_id(one) for one in '"}]:1']
    vocab = text.tokenizer.get_vocab_size()
    dice = random.Random(1)
    for seed in range(10):
        matcher, tokens = form.start(), list[int]()
        for k in range(200):
            allowed = np.flatnonzero(bits(matcher.allowed(), vocab)).tolist()
            wanted = [one for one in (*text.eos, *closers) if one in allowed]
            token = dice.choice(allowed) if k < 20 + seed else (wanted or allowed)[0]
            if token in text.eos:
                break
            matcher.accept(token)
            tokens.append(token)
            if matcher.finished:
                break
        assert is_object(text.decode(tokens)), text.decode(tokens)


def test_white_space_in_json_comes_to_an_end() -> None:
    text, form = text_of("byte level"), grammars_of("byte level").json_object()
    space = text.encode("\t", special=False)[0]
    matcher = form.start()
    matcher.accept(text.encode("{", special=False)[0])
    count = 0
    while bits(matcher.allowed(), space + 1)[space]:
        matcher.accept(space)
        count += 1
        assert count < 100
    assert count >= 16


def test_answers_of_one_form_do_not_share_their_state() -> None:
    text, form = text_of("byte level"), grammars_of("byte level").choice(["ab", "na"])
    one, other = form.start(), form.start()
    one.accept(text.encode("ab", special=False)[0])
    assert one.finished and not other.finished
    assert bits(other.allowed(), 300)[text.encode("na", special=False)[0]]


def test_a_grammar_of_the_users_own() -> None:
    text, form = text_of("byte level"), grammars_of("byte level").lark('start: "(" start ")" | "x"')
    for seed in range(5):
        written, over = answer(text, form, seed, 30)
        depth = written.count("(")
        assert written == "(" * depth + "x" + ")" * depth if over else set(written) <= {*"(x)"}


def test_a_token_that_the_form_does_not_allow_is_our_mistake() -> None:
    matcher = grammars_of("byte level").regex("a+").start()
    with pytest.raises(InternalError, match="token 3 is not one that the answer's form allows"):
        matcher.accept(3)


def test_a_form_that_is_too_much_is_its_own_rows_failure() -> None:
    class Lost:
        finished = False

        def allowed(self) -> list[int]:
            raise LinnetError("too much")

        def accept(self, token: int) -> None: ...

    with pytest.raises(DrawError, match="row 1 of the logits: too much") as error:
        draw(np.zeros((2, 9)), [Draw(Sampling(), 0), Draw(Sampling(), 0, matcher=Lost())])
    assert error.value.rows == (1,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one: one.regex("(ab"), r"the pattern '\(ab' cannot be followed: unclosed group"),
        (lambda one: one.regex("(?=a)b"), "look-ahead"),
        (lambda one: one.regex(r"(a)\1"), "backreferences are not supported"),
        (lambda one: one.regex("(" * 9000 + ")" * 9000), "cannot be followed"),
        (lambda one: one.regex(r"[^\s\S]"), "no text has this form"),
        (lambda one: one.regex("\ud800"), "regex has half of a character"),
        (lambda one: one.json_schema({"type": "objekt"}), "Invalid type: objekt"),
        (lambda one: one.json_schema({"not": {}}), 'Unimplemented keys: \\["not"\\]'),
        (lambda one: one.json_schema({"$ref": "http://a.b/c"}), "http://a.b/c"),
        (lambda one: one.json_schema({"enum": []}), "Unsatisfiable schema"),
        (lambda one: one.json_schema(False), "the JSON schema is false; it must be an object"),
        (lambda one: one.json_schema("[1]"), r"the JSON schema is \[1\]; it must be an object"),
        (lambda one: one.json_schema("{"), "the JSON schema is no JSON: Expecting property name"),
        (lambda one: one.json_schema({"a": {1}}), "the JSON schema is no JSON"),
        (lambda one: one.json_schema('{"items":' * 500 + "{}" + "}" * 500), "cannot be followed"),
        (lambda one: one.choice([]), "the choices must be a list of texts, none of them empty"),
        (lambda one: one.choice("ab"), "the choices must be a list of texts"),
        (lambda one: one.choice(["a", ""]), "none of them empty"),
        (lambda one: one.choice([1]), "the choices must be a list of texts"),
        (lambda one: one.lark("start: foo"), 'the grammar cannot be followed: .*"foo"'),
    ],
)
def test_forms_that_cannot_be_followed_say_why(
    make: Callable[[Grammars], Form], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        make(grammars_of("byte level"))
    assert error.value.field in ("regex", "response_format", "choice", "grammar")


def test_the_field_is_the_users() -> None:
    with pytest.raises(RequestError) as error:
        grammars_of("byte level").regex("(", "guided_regex")
    assert error.value.field == "guided_regex"


def test_a_tokenizer_of_another_kind_is_named() -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    other = Text(tokenizer, frozenset(), None, origin="X")
    with pytest.raises(LinnetError, match="the tokenizer of X is of a kind that no answer can be"):
        Grammars(other).prepare()


@pytest.mark.slow  # a model is built
def test_the_engine_gives_answers_their_form() -> None:
    text, grammars = text_of("byte level"), grammars_of("byte level")
    engine = Engine(pool(40), text=text, rows=4, max_len=LONGEST)
    names = "[a-f]{3}-[0-9]{2,4}"
    forms = {grammars.regex(names): names, grammars.choice(["no"]): "no"}
    requests = [
        Request([3, 5, 9, k], 12, temperature=float(k), seed=k, n=2, logprobs=0, grammar=form)
        for form in forms
        for k in (0, 1)
    ]
    free = Request([3, 5, 9], 12)
    answers, _ = engine.run([*requests, free])
    assert len(answers) == 9
    for one in answers:
        if one.request is free:
            assert len(one.tokens) == 12
        else:
            assert regex.fullmatch(forms[one.request.grammar], one.text) and one.reason == "eos"
            assert len(one.logprobs) == len(one.tokens)


def test_an_end_beyond_the_vocabulary_is_no_end_of_a_form() -> None:
    text = replace(text_of("byte level"), eos=frozenset((279, 1 << 20)))
    allowed = Grammars(text).regex("a*").start().allowed()
    assert bits(allowed, 281)[279] and not bits(allowed, 281)[280]


@pytest.mark.slow
def test_a_real_vocabulary_makes_json_of_a_schema() -> None:
    card = find_card("smollm2-135m-instruct")
    mirrored = replace(card, weights=replace(card.weights, repo="", files=()))
    text = Text.load(fetch_weights(mirrored).text_files)
    form = Grammars(text).json_schema(PERSON)
    for seed in range(20):
        written, over = answer(text, form, seed, 150, is_person)
        assert is_person(written) or not over
