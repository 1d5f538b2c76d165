"""What colours Linnet elsewhere knows the words of the lexer, and reads every source to its end."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pygments.token import Comment, Error, Keyword, Name, Operator, String

from linnet.check.prelude import KINDS, PRELUDE, RESERVED
from linnet.diagnostics import Findings
from linnet.pygments import LinnetLexer
from linnet.source import Source
from linnet.syntax import lex
from linnet.syntax.tokens import KEYWORDS, NAME, REDUCTIONS, RESERVED_WORDS
from linnet.types import DTYPES

ROOT = Path(__file__).resolve().parents[2]
VSCODE = ROOT / "editors/vscode"
SEED = ROOT.parent / "shared/seed/mistral-7b-instruct-v0.3/src"
QUICK = ("whole", "comments", "attention", "norm", "parallel", "moe")  # the others are slow
FILES = [
    path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.slow)
    for path in sorted(
        [*(ROOT / "src/linnet").rglob("*.linnet"), *ROOT.glob("tests/**/*.linnet"), *SEED.glob("*")]
    )
]
GRAMMAR = json.loads((VSCODE / "syntaxes/linnet.tmLanguage.json").read_text())


def nodes(grammar: Any) -> Iterator[dict[str, Any]]:
    if isinstance(grammar, dict):
        yield grammar
        grammar = list(grammar.values())
    if isinstance(grammar, list):
        for part in grammar:
            yield from nodes(part)


def words_of(within: Any, scope: str = "") -> set[str]:
    """The words that a part of the grammar lists, for one scope or any."""
    found: set[str] = set()
    for node in nodes(within):
        listed = re.match(r"\\b\(\?:([\w|]+)\)", str(node.get("match", "")))
        if listed and scope in ("", node["name"]):
            found |= set(listed[1].split("|"))
    return found


def test_words_are_those_of_the_lexer() -> None:
    assert words_of(GRAMMAR["repository"]["keywords"]) == KEYWORDS | RESERVED_WORDS
    assert words_of(GRAMMAR, "invalid.illegal.reserved.linnet") == RESERVED_WORDS
    assert words_of(GRAMMAR, "keyword.operator.reduction.linnet") == REDUCTIONS
    assert words_of(GRAMMAR, "support.function.linnet") == {*PRELUDE, *RESERVED}
    assert words_of(GRAMMAR, "support.type.linnet") == {*DTYPES, "Tensor", *KINDS}


def test_every_pattern_compiles_and_every_include_exists() -> None:
    for name in ("linnet", "markdown"):
        grammar = json.loads((VSCODE / f"syntaxes/{name}.tmLanguage.json").read_text())
        for node in nodes(grammar):
            for key in ("match", "begin", "end", "while"):
                if isinstance(node.get(key), str):
                    # `\G`, and references from an `end` to its `begin`, are the engine's
                    re.compile(re.sub(r"\\G|\\[0-9]", "", node[key]))
            target = node.get("include")
            if isinstance(target, str) and target.startswith("#"):
                assert target[1:] in grammar["repository"]


def scopes(text: str) -> list[tuple[int, int, str]]:
    """Where the grammar's patterns match, as a TextMate engine would apply them, line by line."""
    out: list[tuple[int, int, str]] = []
    stack: list[dict[str, Any]] = [GRAMMAR]
    start = 0
    for line in text.splitlines(keepends=True):
        at, body = 0, line.rstrip("\n")
        while at <= len(body):
            best: tuple[int, int, re.Match[str], dict[str, Any] | None] | None = None
            rules = [(stack[-1].get("end"), None)] if len(stack) > 1 else []
            rules += [(r.get("match") or r["begin"], r) for r in expanded(stack[-1]["patterns"])]
            for order, (pattern, rule) in enumerate(rules):
                found = re.compile(pattern).search(body, at)
                if found and (best is None or found.start() < best[0]):
                    best = (found.start(), order, found, rule)
            if best is None:
                break
            _, _, found, rule = best
            inner = "".join(r.get("name", "") for r in stack[1:][-1:])
            if rule is None:
                out.append((start + found.start(), start + found.end(), inner))
                stack.pop()
            else:
                name = rule.get("name", "")
                for group, capture in rule.get("captures", {}).items():
                    a, b = found.span(int(group))
                    out.append((start + a, start + b, capture["name"]))
                if not rule.get("captures"):
                    out.append((start + found.start(), start + found.end(), name))
                if "begin" in rule:
                    stack.append(rule)
            at = found.end() + (found.end() == found.start())
        start += len(line)
    assert len(stack) == 1, stack[-1]["name"]
    return out


def expanded(patterns: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for rule in patterns:
        if "include" in rule:
            target = GRAMMAR["repository"][rule["include"][1:]]
            yield from expanded([target])
        elif "match" in rule or "begin" in rule:
            yield rule
        else:
            yield from expanded(rule["patterns"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_source(path: Path) -> None:
    """Pygments loses nothing and knows everything; both grammars see the lexer's words."""
    text = path.read_text()
    lexer = LinnetLexer(stripnl=False, ensurenl=False)
    found = list(lexer.get_tokens_unprocessed(text))
    assert "".join(value for _, _, value in found) == text
    assert not [value for _, kind, value in found if kind in Error]
    kinds = {at: kind for at, kind, _ in found}
    tokens, comments = lex(Source("", text), Findings())
    scoped = {start: name for start, _, name in scopes(text)}
    for token in tokens:
        if token.kind in KEYWORDS:
            in_path = token.text in ("crate", "self", "super")
            kind = kinds.get(token.start, Name.Namespace)
            assert kind in Keyword or (in_path and kind in Name.Namespace), token
            scope = scoped.get(token.start, "")
            assert scope.startswith(
                ("keyword", "storage", "constant.language", *["entity.name.namespace"] * in_path)
            ), (token, scope)
        elif token.kind == NAME and token.start in kinds:
            kind = kinds[token.start]
            assert kind in Name or kind in Keyword.Type or kind in Operator.Word, token
    for comment in comments:
        assert kinds[comment.span.start] in (Comment.Single, Comment.Multiline, String.Doc)
        assert scoped[comment.span.start].startswith("comment")


def test_extension() -> None:
    extension = json.loads((VSCODE / "package.json").read_text())
    contributes = extension["contributes"]
    paths = [extension["main"], *(g["path"] for g in contributes["grammars"])]
    paths += [language["configuration"] for language in contributes["languages"]]
    assert [p for p in paths if not (VSCODE / p).is_file()] == []
    json.loads((VSCODE / "language-configuration.json").read_text())
    declared = {c["command"] for c in contributes["commands"]}
    script = (VSCODE / "extension.js").read_text()
    assert declared == set(re.findall(r'registerCommand\("([^"]+)"', script))
    assert (
        not (VSCODE / "node_modules").exists()
        or "node_modules" in (VSCODE / ".gitignore").read_text()
    )


def test_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pygments.lexers"] == {"linnet": "linnet.pygments:LinnetLexer"}
    assert LinnetLexer.aliases == ["linnet"]
