"""A Hub on this machine, and a cache of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from linnet.nest import web
from linnet.weights import write_safetensors

from .hub_server import Hub

ARRAY = np.arange(12, dtype=np.float32)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test has a cache of its own, no registry, and a Hub that refuses connections."""
    monkeypatch.setenv("LINNET_NEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("LINNET_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "cache"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been waited for a busy server."""
    waited: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waited.append)
    return waited


@pytest.fixture
def hub(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with `org/small`: one tensor, a tokenizer and a configuration."""
    hub = Hub()
    write_safetensors(tmp_path / "made.safetensors", {"x": ARRAY})
    hub.put("model.safetensors", (tmp_path / "made.safetensors").read_bytes())
    hub.put("tokenizer.json", b"{}")
    hub.put("config.json", b'{"eos_token_id": 2}')
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    yield hub
    hub.close()
