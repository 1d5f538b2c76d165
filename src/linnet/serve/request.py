"""What is asked of an engine, and what it makes of it: no tensors, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from linnet.diagnostics import LinnetError

NO_BIAS: Mapping[int, float] = MappingProxyType({})


def _no_bias() -> Mapping[int, float]:
    return NO_BIAS


class RequestError(LinnetError, ValueError):
    """A request that cannot be served as it stands; `field` is which part of it is at fault."""

    def __init__(self, message: str, field: str = "prompt") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; temperature 0 takes the most likely one.

    In this order: penalties and `logit_bias` (token id to what is added) change the logits; `top_k`
    keeps the k most likely tokens (0: all), then `top_p` the fewest of those whose probabilities
    reach p, then `min_p` those at least p times as likely as the most likely one.
    `repetition_penalty` divides positive logits and multiplies negative ones of every token of
    prompt and answer (Keskar et al., arXiv:1909.05858); `presence_penalty` is taken from the logit
    of each token that the answer has, `frequency_penalty` as many times as it has it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=_no_bias)

    def check(self) -> None:
        """Raises RequestError naming the setting that is out of range."""
        if not self.temperature >= 0 or math.isinf(self.temperature):
            self._refuse("temperature", "0 or more, finite")
        if self.top_k < 0:
            self._refuse("top_k", "0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            self._refuse("top_p", "above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            self._refuse("min_p", "from 0 to 1")
        if not 0 < self.repetition_penalty < math.inf:
            self._refuse("repetition_penalty", "above 0, finite")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                self._refuse(name, "a finite number")
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise RequestError(
                    f"logit_bias of token {token} is {bias}; tokens count from 0, and a bias is "
                    "a number (or -inf, which forbids the token)",
                    "logit_bias",
                )

    def _refuse(self, name: str, wanted: str) -> None:
        raise RequestError(f"{name} is {getattr(self, name)}; it must be {wanted}", name)

    @property
    def key(self) -> int:
        """The seed as the 32 bits that the noise is made from."""
        seed = self.seed & 0xFFFFFFFFFFFFFFFF
        return (seed ^ (seed >> 32)) & 0xFFFFFFFF

    @property
    def changes_logits(self) -> bool:
        """Whether logits depend on more than the model: penalties or a bias."""
        neutral = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return neutral != (1.0, 0.0, 0.0) or bool(self.logit_bias)


class Grammar(Protocol):
    """What an answer must look like; `start` gives the state of one answer."""

    def start(self) -> Matcher: ...


class Matcher(Protocol):
    """How far an answer has come in its grammar."""

    def allowed(self) -> Sequence[int]:
        """A bit for each token id, 32 to a number, the lowest first: which may come next."""
        ...

    def accept(self, token: int) -> None:
        """The token comes next."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing may follow any more."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of token ids and how to go on from it, at most `max_new_tokens` tokens.

    `eos` ends an answer as the model does, `stop_ids` and `stop` (strings) as the user wants; an
    answer's text ends before a stop string. `n` answers are made; `seed` None draws a fresh one,
    and answer i uses seed + i. `logprobs` asks for the log-probability of every token, and for so
    many alternatives beside it. `on_token` is called with the Completion and each new token, from
    the thread that drives the engine.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    id: int = -1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    on_token: Callable[[Completion, int], None] | None = None
    logprobs: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    n: int = 1
    grammar: Grammar | None = None

    def sampling(self, seed: int) -> Sampling:
        """How its tokens are chosen, with a seed."""
        return Sampling(
            self.temperature,
            self.top_k,
            self.top_p,
            seed,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.logit_bias or NO_BIAS,
        )


@dataclass(slots=True, eq=False)
class Completion:
    """An answer while it grows: its tokens, and their text where the engine knows a tokenizer.

    `text` has whole characters only, and nothing that may yet become a stop string. `reason` is
    None until it is finished, then "length" (the limit), "eos", "stop" (a stop id or string),
    "cache" (no position is left), or what `cancel` was told. Times are seconds of
    `time.monotonic`. `logprobs` has one number a token, `top_logprobs` its alternatives as (token
    id, log-probability), the likeliest first. `cached` is how many tokens of the prompt were found
    in pages of earlier requests. `choices` are all answers of the request, this one included.
    `error` says why no further token could be chosen, where the reason is "error".
    """

    request: Request
    sampling: Sampling
    choice: int = 0
    tokens: list[int] = field(default_factory=list[int])
    text: str = ""
    reason: str | None = None
    submitted: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    logprobs: list[float] = field(default_factory=list[float])
    top_logprobs: list[list[tuple[int, float]]] = field(
        default_factory=list[list[tuple[int, float]]]
    )
    cached: int = 0
    choices: tuple[Completion, ...] = ()
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds from submission to the first token."""
        return None if self.first_token is None else self.first_token - self.submitted

    @property
    def inter_token(self) -> float | None:
        """Seconds between tokens, on average."""
        if self.first_token is None or self.finished is None or len(self.tokens) < 2:
            return None
        return (self.finished - self.first_token) / (len(self.tokens) - 1)


@dataclass(slots=True)
class Stats:
    """What an engine did: passes of the model (`steps`), and those with prompts (`prefills`)."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    prefills: int = 0
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.generated_tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds at the moment: answers, and pages of its pool."""

    waiting: int
    running: int
    pages: int
    pages_held: int
    pages_reusable: int
