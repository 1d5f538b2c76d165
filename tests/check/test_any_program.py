"""Any program is checked: broken in any way, it gives findings and never an exception."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import linnet
from linnet.check import check_text
from linnet_md import programs

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.DOTALL)
SPEC = Path(__file__).parent.parent / "spec"
TEXTS = [
    *(p.read_text(encoding="utf-8") for p in Path(linnet.__file__).parent.glob("std/**/*.linnet")),
    *(t for f in sorted(SPEC.glob("*.md")) for p in programs(f) for t in p.files.values()),
]
TOKENS = [
    TOKEN.findall(re.sub(r"//[^\n]*", "", text))
    for text in TEXTS
    if "fn " in text or "block" in text
]
WORDS = sorted({t for tokens in TOKENS for t in tokens if not t.isspace()})


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_mutations(data: st.DataObject) -> None:
    tokens = list(data.draw(st.sampled_from(TOKENS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(tokens) - 1))
        match data.draw(st.sampled_from(("replace", "remove", "insert", "swap"))):
            case "replace":
                tokens[at] = data.draw(st.sampled_from(WORDS))
            case "remove":
                del tokens[at]
            case "insert":
                tokens.insert(at, data.draw(st.sampled_from(WORDS)) + " ")
            case "swap":
                other = data.draw(st.integers(0, len(tokens) - 1))
                tokens[at], tokens[other] = tokens[other], tokens[at]
    analysis = check_text("".join(tokens))
    for d in analysis.findings.items:
        assert d.primary.span.start <= d.primary.span.end
        assert d.code not in ("W1001", "W1002", "W1003", "W1004") or analysis.ok
