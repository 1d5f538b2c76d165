"""A conversation that fits a model's context: what was said, and the prompt for what comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

from linnet.diagnostics import LinnetError
from linnet.serve.text import Text


class ContextError(LinnetError):
    """A message that the context cannot hold, even alone."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads for the next answer, how long that may get, and what was dropped."""

    ids: list[int]
    room: int
    dropped: int


@dataclass(slots=True)
class Conversation:
    """Questions and their answers, after a system message where there is one.

    `context` is how many tokens prompt and answer may be together. Where a question no longer
    fits, the oldest exchanges are dropped; the system message stays.
    """

    text: Text
    context: int
    system: str | None = None
    exchanges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def messages(self, question: str | None = None) -> list[dict[str, str]]:
        """All that was said, and the question."""
        said = [{"role": "system", "content": self.system}] if self.system is not None else []
        for asked, answer in self.exchanges:
            said.append({"role": "user", "content": asked})
            said.append({"role": "assistant", "content": answer})
        if question is not None:
            said.append({"role": "user", "content": question})
        return said

    def ask(self, question: str, wanted: int) -> Prompt:
        """The prompt for the answer to a question, with room for up to `wanted` tokens.

        Room for all of them is made if that is at most a quarter of the context. Raises
        ContextError, and drops nothing, where the question does not fit alone.
        """
        reserve = max(1, min(wanted, self.context // 4))
        kept = list(self.exchanges)
        for first in range(len(kept) + 1):
            self.exchanges = kept[first:]
            try:
                ids = self.text.encode_chat(self.messages(question))
            except LinnetError:
                self.exchanges = kept
                raise
            alone = first == len(kept)
            if len(ids) + (1 if alone else reserve) <= self.context:
                return Prompt(ids, min(wanted, self.context - len(ids)), first)
        self.exchanges = kept
        raise ContextError(
            f"the message does not fit: with what the chat template adds it is {len(ids)} tokens "
            f"long, and the context holds {self.context} with the answer"
        )

    def answered(self, question: str, answer: str) -> None:
        """The exchange belongs to the conversation from here on."""
        self.exchanges.append((question, answer))
