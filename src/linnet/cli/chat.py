"""`linnet chat`: a conversation with a model, in the terminal or line by line from a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.cli.model import Answer, add_model_arguments, check_arguments, load_model, open_model
from linnet.diagnostics import LinnetError

if TYPE_CHECKING:
    from linnet.serve.conversation import Conversation
    from linnet.serve.generation import Generator

HELP = """\
  /help          this list
  /reset         forget the conversation; the system message stays
  /system TEXT   another system message, also for what was said; without TEXT: the template's own
  /save FILE     write the conversation as JSON
  /exit          end (so does Ctrl-D)
  Ctrl-C stops an answer. A message that begins with // is sent with one slash."""
EPILOG = f"""\
Each line is a message. Answers go to standard output, everything else to standard error. Greedy
unless --temperature is above 0. Where the conversation outgrows the context, its oldest messages
are dropped, and a notice says so.

{HELP}
"""
CONTEXT = 4096
"""How many positions the caches have, unless the model has fewer or --context says otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_model_arguments(parser, new_tokens=512)
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"tokens that a conversation may have; default: the card's, at most {CONTEXT}",
    )


def run(args: argparse.Namespace) -> int:
    from linnet.nest.progress import TextProgress
    from linnet.nest.resolve import resolve
    from linnet.serve.conversation import Conversation
    from linnet.serve.generation import ENTRIES, Generator

    sampling = check_arguments(args)
    card = resolve(args.model, progress=TextProgress(sys.stderr))
    context = _context(args.context, card.generics.get("MaxSeq"))
    opened = open_model(args, card)
    if opened.text.template is None:
        raise LinnetError(
            f"{card.name} has no chat template, so it continues texts and holds no conversation: "
            f'linnet run {args.model} "Once upon a time"'
        )
    if args.system and not card.text.system:
        raise LinnetError(f"--system: the chat template of {card.name} takes no system message")
    model, _ = load_model(args, opened, context, ENTRIES)
    conversation = Conversation(opened.text, context, args.system or None)
    return Session(args, card, sampling, conversation, Generator(model)).run()


def _context(wanted: int | None, most: int | str | None) -> int:
    """How many positions the caches get."""
    if wanted is None:
        return min(most, CONTEXT) if isinstance(most, int) else CONTEXT
    if wanted < 2 or (isinstance(most, int) and wanted > most):
        limit = f"at most the model's {most}" if isinstance(most, int) else "2 or more"
        raise LinnetError(f"--context is {wanted}; it must be 2 or more and {limit}")
    return wanted


class _End(Exception):
    """The conversation is over."""


@dataclass(slots=True)
class Session:
    """Reads messages and streams answers until the end of input."""

    args: argparse.Namespace
    card: Any
    sampling: Any
    conversation: Conversation
    generator: Generator
    terminal: bool = field(default_factory=lambda: sys.stdin.isatty())
    failed: bool = False
    saved: set[Path] = field(default_factory=set[Path])

    def run(self) -> int:
        """Exit status: 1 where a line of piped input could not be answered or done."""
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        if self.terminal:
            with suppress(ImportError):
                import readline  # noqa: F401 - importing it gives input() its line editing
            context = self.conversation.context
            _say(f"{self.card.name}, context {context} tokens; /help lists commands, Ctrl-D ends")
        while True:
            try:
                self._line(self._read())
            except _End:
                return 1 if self.failed and not self.terminal else 0
            except LinnetError as error:
                self.failed = True
                _say(str(error))
            except KeyboardInterrupt:  # of an answer: see _answer
                print(file=sys.stderr)

    def _read(self) -> str:
        """The next message."""
        if not self.terminal:
            line = sys.stdin.readline()
            if not line:
                raise _End
            return line
        try:
            return input("> ")
        except EOFError:
            print()
            raise _End from None

    def _line(self, line: str) -> None:
        line = line.strip()
        if line.startswith("//"):
            self._answer(line[1:])
        elif line.startswith("/"):
            name, _, rest = line.partition(" ")
            self._command(name, rest.strip())
        elif line:
            self._answer(line)

    # ------------------------------------------------ commands

    def _command(self, name: str, rest: str) -> None:
        if rest and name in ("/help", "/reset", "/exit"):
            raise LinnetError(f"{name} takes nothing after it, and {rest!r} was given")
        match name:
            case "/help":
                print(HELP, file=sys.stderr)
            case "/reset":
                self.conversation.exchanges.clear()
                _say("the conversation is forgotten")
            case "/system":
                self._system(rest)
            case "/save":
                self._save(rest)
            case "/exit":
                raise _End
            case _:
                raise LinnetError(f"there is no command {name}; /help lists them, // sends a /")

    def _system(self, text: str) -> None:
        if text and not self.card.text.system:
            raise LinnetError(f"the chat template of {self.card.name} takes no system message")
        self.conversation.system = text or None
        _say("the system message is set" if text else "the system message is the template's own")

    def _save(self, name: str) -> None:
        """Only a file of this session's own is written over."""
        if not name:
            raise LinnetError("/save needs the name of a file")
        path = Path(name).expanduser()
        document = {
            "version": 1,
            "model": self.card.name,
            "messages": self.conversation.messages(),
        }
        try:
            with path.open("w" if path.resolve() in self.saved else "x", encoding="utf-8") as file:
                file.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        except FileExistsError:
            raise LinnetError(f"{path} exists, and no /save before this one wrote it") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise LinnetError(f"{path}: cannot be written: {reason}") from error
        self.saved.add(path.resolve())
        _say(f"saved {len(document['messages'])} messages to {path}")

    # ------------------------------------------------ answers

    def _answer(self, question: str) -> None:
        """The answer is streamed, and belongs to the conversation; also one that was stopped."""
        prompt = self.conversation.ask(question, self.args.max_new_tokens)
        if prompt.dropped:
            plural = "exchange was" if prompt.dropped == 1 else "exchanges were"
            _say(
                f"the context holds {self.conversation.context} tokens: the oldest "
                f"{prompt.dropped} {plural} dropped"
            )
        answer, stream = Answer(len(prompt.ids)), self.conversation.text.stream()
        tokens = self.generator.tokens(prompt.ids, prompt.room, self.sampling)
        try:
            for token in answer.follow(tokens, self.conversation.text.eos):
                answer.text += self._show(stream.push(token))
        except KeyboardInterrupt:
            answer.reason = "stopped"
        answer.text += self._show(stream.finish())
        print(flush=True)
        if answer.reason == "stopped" and not answer.tokens:
            _say("stopped before the answer began; the message is not kept")
            return
        self.conversation.answered(question, answer.text)
        if answer.reason == "length" and prompt.room < self.args.max_new_tokens:
            _say(f"the answer ends here: the context of {self.conversation.context} tokens is full")
        if sys.stderr.isatty():
            print(answer.figures(), file=sys.stderr)

    def _show(self, piece: str) -> str:
        print(piece, end="", flush=True)
        return piece


def _say(what: str) -> None:
    print(f"linnet: {what}", file=sys.stderr)
