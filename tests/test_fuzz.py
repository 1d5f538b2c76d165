"""Half a minute of fuzzing in CI, of texts that are others after each change to the sources."""

from __future__ import annotations

import zlib

import pytest

from fuzz import SECONDS, Broken, campaign, corpus, probe, report, smaller


@pytest.mark.slow
def test_no_text_breaks_anything() -> None:
    texts = corpus(None)
    result = campaign(30.0, zlib.crc32("".join(texts).encode()), texts)
    assert not result.broken, result.broken
    assert result.texts > 50 and result.findings > 0, "\n".join(report(result))
    assert len(result.changes) == 7


def test_a_broken_text_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_on_needle(data: bytes) -> int:
        if b"needle" in data:
            raise Broken("there is a needle")
        return 0

    monkeypatch.setattr("fuzz.probe", breaks_on_needle)
    assert smaller(b"hay " * 50 + b"needle" + b" hay" * 50, "there is a needle") == b"needle"


def test_slow_texts_and_exceptions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.SECONDS", -SECONDS)
    with pytest.raises(Broken, match="s for 9 bytes"):
        probe(b"module m\n")
    monkeypatch.setattr("fuzz.check", lambda *_: 1 / 0)
    result = campaign(5.0, 1, ["module m\n"], stop_at=1)
    assert [problem.split(" ")[0] for _, problem in result.broken] == ["ZeroDivisionError"]
