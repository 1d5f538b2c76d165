"""An engine that says what it is told to say: the surface of the real one, without a model."""

from __future__ import annotations

import time
from collections.abc import Callable

from linnet.serve.request import Completion, Load, Request, RequestError, Stats
from linnet.serve.text import Text


class Engine:
    def __init__(self, text: Text, says: Callable[[Request, int], str], pause: float = 0.0) -> None:
        self.text, self.says, self.pause = text, says, pause
        self.slots, self.max_len, self.stats = 4, 256, Stats()
        self.open: list[Completion] = []
        self.scripts: dict[Completion, list[int]] = {}
        self.streams = {}
        self.cancelled: list[Completion] = []
        self.broken = False

    @property
    def load(self) -> Load:
        return Load(max(0, len(self.open) - self.slots), min(len(self.open), 4), 10, 2, 3)

    @property
    def busy(self) -> bool:
        return bool(self.open)

    def submit(self, request: Request) -> Completion:
        if not request.prompt:
            raise RequestError("the prompt is empty")
        made = tuple(
            Completion(request, request.sampling(0), k, submitted=time.monotonic())
            for k in range(request.n)
        )
        for one in made:
            one.choices = made
            self.open.append(one)
            said = self.text.encode(self.says(request, one.choice), special=False)
            self.scripts[one] = said + list(request.eos)[:1]
            self.streams[one] = self.text.stream(request.stop)
        self.stats.prompt_tokens += len(request.prompt)
        return made[0]

    def step(self) -> list[Completion]:
        if self.broken:
            raise RuntimeError("out of memory")
        time.sleep(self.pause)
        done = []
        for one in self.open[: self.slots]:
            token = self.scripts[one][len(one.tokens)]
            one.tokens.append(token)
            if one.request.logprobs is not None:
                one.logprobs.append(-0.5)
                one.top_logprobs.append([(token, -0.5)] * one.request.logprobs)
            one.first_token = one.first_token or time.monotonic()
            stream = self.streams[one]
            one.text += stream.push(token)
            if stream.stopped is not None:
                one.reason = "stop"
            elif token in one.request.eos:
                one.reason = "eos"
            elif len(one.tokens) == one.request.max_new_tokens:
                one.reason = "length"
            if one.reason:
                one.text += stream.finish()
                one.finished = time.monotonic()
                self.open.remove(one)
                done.append(one)
            self.stats.generated_tokens += 1
            if one.request.on_token:
                one.request.on_token(one, token)
        return done

    def cancel(self, completion: Completion, reason: str = "cancelled") -> None:
        self.open.remove(completion)
        completion.reason = reason
        self.cancelled.append(completion)
