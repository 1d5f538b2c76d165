"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from linnet.serve.request import Completion, Load, Stats

if TYPE_CHECKING:
    from linnet.serve.engine import Engine

TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)

# Field of Load -> gauge and what it is; of Stats -> counter and what it is.
GAUGES = {
    "waiting": ("queue", "Answers that wait for a row."),
    "running": ("running", "Answers that are being made."),
    "pages": ("cache_pages", "Pages of the cache."),
    "pages_held": ("cache_pages_held", "Pages that hold what running answers read."),
    "pages_reusable": ("cache_pages_reusable", "Pages kept for prompts that begin alike."),
}
COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "cached_tokens": ("prefix_hit_tokens", "Tokens of prompts that were found in the cache."),
    "generated_tokens": ("generated_tokens", "Tokens that were generated."),
    "preemptions": ("preemptions", "Times that an answer lost its pages to another."),
    "steps": ("steps", "Passes of the model."),
    "prefills": ("prefills", "Passes of the model with prompts in them."),
}


class Metrics:
    """Counts of one server; `load` is what its engine held after the last step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.load: Load = engine.load
        self.registry = registry = CollectorRegistry()
        self.responses = Counter(
            "linnet_http_responses", "Responses by status.", ["code"], registry=registry
        )
        self.requests = Counter(
            "linnet_requests", "Finished answers, by why they ended.", ["reason"], registry=registry
        )
        self._first = Histogram(
            "linnet_time_to_first_token_seconds",
            "From a request to its first token.",
            buckets=FIRST,
            registry=registry,
        )
        self._between = Histogram(
            "linnet_time_between_tokens_seconds",
            "From a token of an answer to its next.",
            buckets=TOKEN,
            registry=registry,
        )
        self._whole = Histogram(
            "linnet_request_seconds",
            "From a request to the end of an answer.",
            buckets=WHOLE,
            registry=registry,
        )
        registry.register(_Engine(self))

    def token(self, seconds: float, first: bool) -> None:
        """A token came so long after the request (the first), or after the one before."""
        (self._first if first else self._between).observe(seconds)

    def finished(self, completion: Completion, seconds: float) -> None:
        """An answer has ended, so long after its request."""
        self._whole.observe(seconds)
        self.requests.labels(completion.reason or "").inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _Engine(Collector):
    """What the engine itself counts, read when it is asked for."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        load, stats = self._metrics.load, self._metrics.engine.stats
        for name, (metric, what) in GAUGES.items():
            yield GaugeMetricFamily(f"linnet_{metric}", what, value=getattr(load, name))
        for name, (metric, what) in COUNTERS.items():
            yield CounterMetricFamily(f"linnet_{metric}", what, value=_count(stats, name))


def _count(stats: Stats, name: str) -> float:
    return float(getattr(stats, name))
