"""A tiny random model behind a server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import linnet.torch
from linnet.serve.engine import PAGED, Engine
from linnet.serve.http import Server
from linnet.serve.text import Text

from ..models import tiny
from .test_text import text

LONGEST = 256
ROWS = 4
PAGE = 16
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}<tool_call>{% endfor %}"
    "{% for m in messages %}{{ bos_token + m.role + ':' + m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
)
TEXT = replace(
    text(),
    special={"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    template=TEMPLATE,
    vocab=260,
)


@cache
def weights() -> dict[str, np.ndarray]:
    """A row for each token of TEXT."""
    draw = np.random.default_rng(3)
    rows = {
        name: (0.2 * draw.standard_normal((260, 48))).astype(np.float32)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    return tiny.weights() | rows


@cache
def model() -> Any:
    """The model: one engine may use it at a time."""
    generics = {"Vocab": 260, "Batch": 1, "MaxSeq": (ROWS * LONGEST // PAGE + 1) * PAGE}
    return linnet.torch.load(
        tiny.FAMILY,
        generics={**tiny.SIZES, **generics, "PageSize": PAGE},
        bindings=tiny.NAMES,
        weights=weights(),
        entries=PAGED,
    )


def engine(said: Text = TEXT, max_len: int = LONGEST) -> Engine:
    """Four rows of up to 256 tokens."""
    return Engine(model(), text=said, rows=ROWS, max_len=max_len)


def slow(made: Engine, pause: float) -> None:
    """Its passes take longer from here on."""
    run = made.driver.run

    def slowly(*given: Any) -> Any:
        time.sleep(pause)
        return run(*given)

    made.driver.run = slowly  # type: ignore[method-assign]


@contextmanager
def serving(made: Engine, said: Text = TEXT, **options: Any) -> Iterator[Server]:
    """The engine behind a server, until the end of the block."""
    server = Server(made, said, name="tiny", port=0, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        assert not thread.is_alive()
