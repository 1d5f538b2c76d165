"""What must hold of every format."""

from __future__ import annotations

from linnet.syntax import parse_text
from linnet.syntax.format import format_text
from syntax.dump import dump


def formatted(text: str) -> str:
    """The formatted text: the same tree, the same comments, and stable."""
    after, findings = format_text(text)
    assert after is not None, findings.items
    assert shape(after) == shape(text)
    assert format_text(after)[0] == after
    return after


def shape(text: str) -> tuple[str, list[list[str]]]:
    """The tree without positions, documentation included, and the comments' words in order."""
    file, findings = parse_text(text)
    assert not findings.items, findings.items
    tree = dump(file).split("\ncomment")[0]
    return tree, [[line.strip() for line in c.text.split("\n")] for c in file.comments]
