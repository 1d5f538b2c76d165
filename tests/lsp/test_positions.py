"""Positions of the protocol in each encoding, with characters of one to four bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.lsp.positions import UTF8, UTF16, UTF32, Lines, edited

TEXTS = st.text(alphabet="ab\n\r é∑𝄞\u2028\x0c", max_size=40)
ENCODINGS = st.sampled_from([UTF8, UTF16, UTF32])


def units(text: str, encoding: str) -> int:
    if encoding == UTF32:
        return len(text)
    codec, size = ("utf-16-le", 2) if encoding == UTF16 else ("utf-8", 1)
    return len(text.encode(codec)) // size


@given(TEXTS, ENCODINGS)
@settings(deadline=None, max_examples=150)
def test_there_and_back(text: str, encoding: str) -> None:
    lines = Lines(text, encoding)
    for offset in range(len(text) + 1):
        line, character = lines.position(offset)
        start = lines.starts[line]
        assert character == units(text[start:offset], encoding)
        inside = not (text[offset - 1 : offset] == "\r" and text[offset : offset + 1] == "\n")
        if inside:
            assert lines.offset(line, character) == offset
    assert lines.offset(len(lines.starts), 0) == len(text)
    assert lines.offset(0, 1000) == len(text.replace("\r", "\n").split("\n")[0])


@given(TEXTS, TEXTS, ENCODINGS, st.data())
@settings(deadline=None, max_examples=100)
def test_edits(text: str, new: str, encoding: str, data: st.DataObject) -> None:
    lines = Lines(text, encoding)
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    start, end = lines.position(a), lines.position(b)
    a, b = lines.offset(*start), lines.offset(*end)
    assert edited(text, start, end, new, encoding) == text[:a] + new + text[b:]


@pytest.mark.parametrize(("encoding", "column"), [(UTF8, 5), (UTF16, 3), (UTF32, 2)])
def test_astral(encoding: str, column: int) -> None:
    assert Lines("a𝄞b", encoding).position(2) == (0, column)
    assert Lines("a𝄞b", encoding).offset(0, column) == 2
    assert Lines("a𝄞b", UTF16).offset(0, 2) == 2  # within a character: after it
