"""`linnet chat`: from a pipe with a scripted model, in a terminal of its own, on real weights."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from linnet.cli import chat, main

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
END = 256
# Printable bytes stand for themselves in a vocabulary, the others for the characters from 256 on.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [value for value in range(256) if value not in PRINTABLE]
CHARACTERS = {value: chr(value) for value in PRINTABLE}
CHARACTERS |= {value: chr(256 + k) for k, value in enumerate(OTHERS)}
BACK = {character: value for value, character in CHARACTERS.items()}
CARD = """
[generics]
Vocab = 257
MaxSeq = 200
Batch = 1
[text]
chat = true
end = ["<end>"]
[weights]
files = ["model.safetensors"]
"""
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A card with a tokenizer of bytes; its weights are never read."""
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "nest.toml").write_text(CARD)
    (folder / "model.safetensors").write_bytes(b"")
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate(BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


class Scripted:
    """A decoder that says its answers one after the other, whatever it is asked."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = [
            [BYTES.index(CHARACTERS[value]) for value in answer.encode()] for answer in answers
        ]
        self.cache: list[int] = []
        self.prefills: list[tuple[int, int]] = []
        self.steps = 0
        self.interrupt_after: int | None = None

    def run_entry(self, name: str, inputs: list[Any]) -> torch.Tensor:
        tokens, position = inputs
        self.cache[position:] = tokens[0].tolist()
        if name == "prefill":
            self.answer = [*self.answers.pop(0), END]
            self.prefills.append((position, tokens.shape[1]))
        if self.interrupt_after == self.steps:
            self.interrupt_after = None
            raise KeyboardInterrupt
        self.steps += 1
        logits = torch.zeros(1, 257)
        logits[0, self.answer.pop(0)] = 1
        return logits

    @property
    def read(self) -> str:
        """What it has in its cache, as text."""
        raw = bytes(BACK[BYTES[id]] if id != END else ord("|") for id in self.cache)
        return raw.decode()


Chat = Any


@pytest.fixture
def talk(card: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs `linnet chat` on lines, with a scripted model: status, output, errors."""

    def call(lines: str, model: Scripted, *words: object) -> tuple[int, str, str]:
        positions: list[int] = []

        def load(args: object, opened: object, count: int, entries: object) -> Any:
            positions.append(count)
            return model, 0.0

        monkeypatch.setattr(chat, "load_model", load)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        status = main(["chat", str(card), *map(str, words)])
        out, err = capsys.readouterr()
        assert "bug in Linnet" not in err, err
        return status, out, err

    return call


def test_an_answer_for_each_line(talk: Chat) -> None:
    model = Scripted(["Hello.", "né🙂", ""])
    status, out, err = talk("hi\n\n  how?  \nwhy", model)
    assert (status, out, err) == (0, "Hello.\nné🙂\n\n", "")
    assert model.read == "u:hi|a:Hello.|u:how?|a:né🙂|u:why|a:"
    # What was said stays in the caches: each turn computes from the end of the answer on.
    starts = [position for position, _ in model.prefills]
    assert starts == [0, len("u:hi|a:Hello."), len("u:hi|a:Hello.|u:how?|a:né🙂".encode())]


def test_commands(talk: Chat, tmp_path: Path) -> None:
    model = Scripted(["one", "two", "three", "four"])
    file = tmp_path / "said é.json"
    lines = ["/help", "a", "/system Be brief.", "b", f"/save {file}", f"/save {file}", "/reset"]
    status, out, err = talk("\n".join([*lines, "/system", "//c", "/exit", "d"]), model)
    assert (status, out) == (0, "one\ntwo\nthree\n")
    assert model.read == "u:/c|a:three"
    assert "/system TEXT" in err and "saved 5 messages" in err and "forgotten" in err
    assert json.loads(file.read_text("utf-8")) == {
        "version": 1,
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "two"},
        ],
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/rest", "there is no command /rest; /help lists them, // sends a /"),
        ("/save", "/save needs the name of a file"),
        ("/save /no/such/folder/f", "/no/such/folder/f: cannot be written: No such file"),
        ("/save {there}", "exists, and no /save before this one wrote it"),
        ("/exit now", "/exit takes nothing after it, and 'now' was given"),
        ("x" * 300, "the message does not fit: with what the chat template adds it is 305 tokens"),
    ],
)
def test_lines_that_cannot_be(talk: Chat, card: Path, line: str, message: str) -> None:
    """The next line is answered all the same, and the exit status says that one was not."""
    there = card / "nest.toml"
    before = there.read_text()
    status, out, err = talk(f"{line.replace('{there}', str(there))}\nb\n", Scripted(["yes"]))
    assert status == 1 and out == "yes\n"
    assert message in err
    assert there.read_text() == before


def test_the_system_message_of_the_command_line(talk: Chat) -> None:
    model = Scripted(["yes"])
    talk("a\n", model, "--system", "Be kind.")
    assert model.read == "s:Be kind.|u:a|a:yes"


def test_stopped_answers(talk: Chat) -> None:
    model = Scripted(["abcdef", "x"])
    model.interrupt_after = 3
    status, out, _ = talk("q\nr\n", model)
    assert (status, out) == (0, "abc\nx\n")
    assert model.read == "u:q|a:abc|u:r|a:x"


def test_an_answer_stopped_before_it_began_is_forgotten(talk: Chat) -> None:
    model = Scripted(["abcdef", "x"])
    model.interrupt_after = 0
    status, out, err = talk("q\nr\n", model)
    assert (status, out) == (0, "\nx\n")
    assert "stopped before the answer began; the message is not kept" in err
    assert model.read == "u:r|a:x"


def test_half_a_character_is_not_shown(talk: Chat) -> None:
    _, out, _ = talk("q\n", Scripted(["a🙂"]), "--max-new-tokens", 3)
    assert out == "a\n"


def test_the_context_is_kept(talk: Chat) -> None:
    model = Scripted(["y" * 300, "z", "w"])
    status, out, err = talk("q\nr\ns\n", model, "--context", 40, "--max-new-tokens", 100)
    assert status == 0
    assert out == f"{'y' * (40 - len('u:q|a:'))}\nz\nw\n"
    assert "the answer ends here: the context of 40 tokens is full" in err
    assert "the context holds 40 tokens: the oldest 1 exchange was dropped" in err
    assert model.read == "u:r|a:z|u:s|a:w"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--context", "1"], "--context is 1; it must be 2 or more and at most the model's 200"),
        (["--context", "201"], "--context is 201"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--threads", "0"], "--threads is 0"),
    ],
)
def test_wrong_options_are_named(talk: Chat, words: list[str], message: str) -> None:
    status, out, err = talk("a\n", Scripted(["no"]), *words)
    assert (status, out) == (1, "") and message in err


def test_a_model_for_texts_says_what_to_do(talk: Chat, card: Path) -> None:
    manifest = card / "nest.toml"
    manifest.write_text(manifest.read_text().replace("chat = true", "chat = false"))
    status, out, err = talk("a\n", Scripted(["no"]))
    assert (status, out) == (1, "")
    assert "scripted has no chat template, so it continues texts and holds no conversation" in err
    assert f'linnet run {card} "Once upon a time"' in err


def test_a_template_without_system_messages(talk: Chat, card: Path) -> None:
    manifest = card / "nest.toml"
    manifest.write_text(manifest.read_text().replace("chat = true", "chat = true\nsystem = false"))
    status, _, err = talk("a\n", Scripted(["no"]), "--system", "x")
    assert status == 1 and "--system: the chat template of scripted takes no system message" in err
    status, out, err = talk("/system x\na\n", Scripted(["yes"]))
    assert (status, out) == (1, "yes\n") and "takes no system message" in err


# --- on real weights --------------------------------------------------------------------------


def small_card_or_skip() -> None:
    from linnet.nest.card import find_card
    from linnet.nest.fetch import local_weights

    card = find_card("smollm2-135m-instruct")
    if local_weights(card) is None and os.environ.get("LINNET_OFFLINE") == "1":
        pytest.skip(f"LINNET_OFFLINE=1, and the weights of {card.name} are not cached")


# Ctrl-C reaches the process whose terminal this is; the process makes it its own, for after a
# fork of this one, which may have threads by now, nothing may run.
IN_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "linnet", *sys.argv[1:]])
"""


class Terminal:
    """`linnet chat` in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "LINNET_CHECKS"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_ITS_TERMINAL, "chat", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environment, "TERM": "dumb"},
        )
        os.close(slave)
        self.shown = ""

    def until(self, pattern: str, seconds: float = 240) -> str:
        """What is shown up to the pattern."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown)) is None:
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.shown!r}"
            if select.select([self.master], [], [], left)[0]:
                self.shown += os.read(self.master, 4096).decode(errors="replace")
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C at the prompt, until the pattern shows.

        CPython's `input()` waits on, until the next key, where the signal comes between its
        printing the prompt and its waiting for a key: a person would press again, too.
        """
        for _ in range(24):
            self.type("\x03")
            if select.select([self.master], [], [], 10)[0]:
                break
        self.until(pattern)


@pytest.mark.slow
def test_in_a_terminal() -> None:
    """An answer, one stopped by Ctrl-C, Ctrl-C at the prompt, and Ctrl-D."""
    small_card_or_skip()
    terminal = Terminal("smollm2-135m-instruct", "--dtype", "f32", "--context", "600")
    try:
        assert "context 600 tokens" in terminal.until("> ")
        terminal.type("What is the capital of France?\n")
        assert "The capital of France is Paris." in terminal.until(r"tokens/s\s+> ")
        terminal.type("Write a very long poem about the sea.\n")
        terminal.until(r"sea\.\s+\S+ \S+ ")  # the echo, and the first words
        terminal.type("\x03")
        assert "(stopped)" in terminal.until("> ")
        terminal.interrupt("> ")
        terminal.type("\x04")
        assert terminal.process.wait(120) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


@pytest.mark.slow
def test_the_small_card_remembers() -> None:
    small_card_or_skip()
    lines = "What is the capital of France?\nAnd of Italy?\n"
    words = ["chat", "smollm2-135m-instruct", "--dtype", "f32", "--context", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "linnet", *words],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "The capital of France is Paris.\nThe capital of Italy is Rome.\n"
