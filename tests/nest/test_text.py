"""The text contract of a card: what `[text]` may say, and where a checkpoint is not like it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from linnet.diagnostics import LinnetError, NestError
from linnet.nest.card import Card, TextContract, card_directories, find_card
from linnet.nest.fetch import fetch_weights, local_weights
from linnet.nest.text import load_text
from linnet.serve.text import Text

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
BEGIN, END, STOP = 256, 257, 258
TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CARD = """
[generics]
Vocab = %d
[text]
%s
"""


def checkpoint(folder: Path, **changes: Any) -> Path:
    """A checkpoint's text files: bytes, `<s>` (256), `</s>` (257) and `<stop>` (258)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate(BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<stop>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return folder


def text(folder: Path, contract: str = "", vocab: int = 300, **changes: Any) -> Text:
    (checkpoint(folder, **changes) / "nest.toml").write_text(CARD % (vocab, contract))
    return load_text(Card.read(folder), folder)


def refusal(folder: Path, contract: str = "", vocab: int = 300, **changes: Any) -> str:
    with pytest.raises(NestError) as caught:
        text(folder, contract, vocab, **changes)
    message = str(caught.value).replace(f"{folder}/", "").replace(str(folder), "HERE")
    assert message.startswith(f"the text of {folder.name} is not what its card says\n  ")
    return message.partition("\n  ")[2]


def test_a_card_that_agrees(tmp_path: Path) -> None:
    read = text(tmp_path, 'chat = true\nbegin = "<s>"\nend = ["</s>"]')
    assert read.eos == {END} and read.begin == BEGIN and read.vocab == 300
    assert read.encode("é")[0] == BEGIN and len(read.encode("é")) == 3
    assert len(read.encode("é", special=False)) == 2
    assert read.encode("<s>a").count(BEGIN) == 1
    assert read.encode_chat([{"role": "user", "content": "hi"}]).count(BEGIN) == 1


def test_what_the_card_leaves_out_is_as_the_checkpoint_has_it(tmp_path: Path) -> None:
    read = text(tmp_path)
    assert read.eos == {END} and read.begin is None and read.template == TEMPLATE
    assert read.stated == {END: "generation_config.json"}


def test_tokens_may_be_given_by_id(tmp_path: Path) -> None:
    # The template of this card ends answers with the token that it adds.
    (tmp_path / "chat.jinja").write_text(TEMPLATE.replace("</s>", "<stop></s>"))
    read = text(tmp_path, f'chat = true\ntemplate = "chat.jinja"\nend = ["</s>", {STOP}]')
    assert read.eos == {END, STOP}
    assert read.render_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False) == (
        "<s>user:hi<stop></s>"
    )


def test_begin_may_be_nothing(tmp_path: Path) -> None:
    read = text(tmp_path, "begin = false")
    assert read.encode("a") == [BYTES.index("a")]


def test_chat_false_takes_the_template_away(tmp_path: Path) -> None:
    with pytest.raises(LinnetError, match="has no chat template"):
        text(tmp_path, "chat = false").render_chat([])


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (
            'end = ["</t>"]',
            "`end` of [text] names '</t>', and the tokenizer of HERE has no such token",
        ),
        ("end = [257, 999]", "nest.toml: `end` of [text] names id 999, and the tokenizer of HERE"),
        ('begin = "<t>"', "nest.toml: `begin` of [text] names '<t>'"),
        (
            'end = ["<stop>"]',
            "HERE: generation_config.json ends answers at '</s>' (id 257), which `end` in [text] "
            "of nest.toml does not list",
        ),
        (
            'end = ["</s>", "<stop>"]',
            "`end` in [text] lists '<stop>' (id 258), which neither generation_config.json of HERE "
            "nor its chat template knows",
        ),
    ],
)
def test_tokens_that_disagree(tmp_path: Path, contract: str, message: str) -> None:
    assert message in refusal(tmp_path, contract)


def test_an_end_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 900]}')
    (folder / "nest.toml").write_text(CARD % (1000, 'end = ["</s>"]'))
    message = "generation_config.json ends answers at id 900, a token that the tokenizer does not"
    with pytest.raises(NestError, match=message):
        load_text(Card.read(folder), folder)


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    assert text(tmp_path, "chat = true", vocab=259).vocab == 259
    message = refusal(tmp_path, "chat = true", vocab=257)
    assert (
        "HERE: the tokenizer has '</s>' (id 257), '<stop>' (id 258), and `Vocab` is 257" in message
    )
    read = text(tmp_path, 'chat = true\nunused = ["<stop>", "<of another tokenizer>"]', vocab=258)
    with pytest.raises(LinnetError, match=r"holds '<stop>', which is id 258 of .* below"):
        read.encode("a<stop>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "nest.toml: [text] says `chat = true`, and HERE has no chat template"),
        ("{% if %}", "the chat template of HERE is not valid"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
            "refuses: no system; where it takes no system message, `system = false` in [text]",
        ),
        ("{{ messages[-1].content }}</s>", "the chat template of HERE leaves out what the system"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "writes no end token after an answer: '</s>' should end one",
        ),
    ],
)
def test_templates_that_hold_no_conversation(
    tmp_path: Path, template: str | None, message: str
) -> None:
    assert message in refusal(tmp_path, "chat = true", chat_template=template)


def test_a_template_without_system_messages(tmp_path: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    assert text(tmp_path, "chat = true\nsystem = false", chat_template=template + TEMPLATE).template


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(NestError, match=r"gone\.jinja: the card's chat template cannot be read"):
        text(tmp_path, 'template = "gone.jinja"')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chats = true", "[text]: unknown key `chats`; did you mean `chat`?"),
        ("chat = 1", "[text]: `chat` is 1, not true or false"),
        ("begin = true", "[text]: `begin` is True, not a token's text or its id, or false"),
        ('begin = ""', "[text]: `begin` is '', not a token's text or its id, or false"),
        ('end = "</s>"', "[text]: `end` is '</s>', not a list of tokens"),
        ("end = [true]", "[text]: `end` is [True], not a list of tokens"),
        ('template = "../x"', "[text]: `template` is '../x', not a relative path"),
    ],
)
def test_what_the_table_may_not_say(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "nest.toml").write_text(f"[text]\n{line}\n")
    with pytest.raises(NestError) as caught:
        Card.read(tmp_path)
    assert message in str(caught.value)


def test_what_the_table_says(tmp_path: Path) -> None:
    line = 'chat = true\nsystem = false\nbegin = 1\nend = ["</s>", 3]\ntemplate = "a/b.jinja"'
    (tmp_path / "nest.toml").write_text(f"[text]\n{line}\nunused = [4]\n")
    assert Card.read(tmp_path).text == TextContract(True, "a/b.jinja", False, 1, ("</s>", 3), (4,))


def test_every_card_for_chat_has_a_contract() -> None:
    for name in card_directories():
        card = find_card(name)
        if "chat" in card.tags:
            assert card.text.chat and card.text.end, name


@pytest.mark.slow
def test_the_contract_of_the_small_card_holds() -> None:
    card = find_card("smollm2-135m-instruct")
    if local_weights(card) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {card.name} are not cached")
    read = load_text(card, fetch_weights(card).text_files)
    assert read.eos == {2} and read.vocab == 49152
    assert read.encode("Hello") == [19556]
