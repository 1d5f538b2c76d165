"""From text to tokens and comments."""

from __future__ import annotations

import math
import re

from linnet.diagnostics import Edit, Findings, Help
from linnet.source import Source, Span
from linnet.syntax.tokens import (
    BAD,
    END,
    FLOAT,
    INT,
    KEYWORDS,
    NAME,
    RESERVED,
    RESERVED_WORDS,
    SIGNS,
    STRING,
    Token,
)
from linnet.syntax.tree import Comment

# Every alternative is linear: none can fail after a long match.
_TOKEN = re.compile(
    r"""
      (?P<space>   [ \t\r\n\f\v]+ )
    | (?P<name>    [^\W\d]\w* )
    | (?P<number>  0[xXbBoO][0-9A-Za-z_]*
                 | [0-9][0-9_]* (?:\.[0-9][0-9_]*)? (?:[eE][+-]?[0-9][0-9_]*)?
                   [0-9A-Za-z_]* (?:\.[0-9][0-9A-Za-z_]*)* )
    | (?P<line>    //[^\n]* )
    | (?P<block>   /\* )
    | (?P<tripled> "{3} (?: [\s\S]*? "{3} | [^\n]* ) )
    | (?P<string>  "(?:[^"\\\n]|\\[^\n]?)*"? )
    | (?P<quoted>  '[^'\n]*' | “[^“”\n]*” )
    | (?P<hash>    \#[^\n]* )
    | (?P<sign>    """
    + "|".join(re.escape(s) for s in sorted(SIGNS, key=len, reverse=True))
    + ")",
    re.VERBOSE,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_DECIMAL = re.compile(r"[0-9]+(?:_[0-9]+)*")
_BASED = re.compile(r"0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0b[01]+(?:_[01]+)*")
_FLOAT = re.compile(r"[0-9]+(?:_[0-9]+)*(?:\.[0-9]+(?:_[0-9]+)*)?(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?")
_SUFFIX = re.compile(r"([0-9][0-9_.]*?)_?((?:bf|f|i|u)(?:8|16|32|64))")
_DOT_EXPONENT = re.compile(r"\.[eE][+-]?[0-9]+")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_ESCAPE = re.compile(r"\\(?:u(?:\{[^}\"\\\n]*\}?)?|[^\n]?)")
_SIMPLE_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", '\\"': '"'}

# What people paste from documents, and what Linnet writes for it.
_LOOKALIKES = {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "→": "->",
    "⇒": "=>",
    "×": "*",
    "·": "*",
    "∗": "*",
    "÷": "/",
    "−": "-",
    "–": "-",
    "—": "-",
    "∧": "&&",
    "∨": "||",
    "¬": "!",
    "…": "...",
    "，": ",",
    "：": ":",
    "（": "(",
    "）": ")",
}
_ADVICE = {
    "@": "write a matrix product in index notation: `let c[i, j] = sum[k] a[i, k] * b[k, j]`",
    "~": "write `!x` for a bool, `x ^ -1` for an integer",
    "`": "names and strings take no backquotes",
    "$": "names are letters, digits and `_`",
    "“": 'strings take straight double quotes: "..."',
    "”": 'strings take straight double quotes: "..."',
    "'": 'strings take straight double quotes: "..."',
    "\\": "an expression may go on over several lines without a mark",
}
_TOO_LONG = 1 << 64  # stands for any integer of more digits than an i64 can have


def lex(source: Source, findings: Findings) -> tuple[tuple[Token, ...], tuple[Comment, ...]]:
    """The tokens of a file, the last of kind END, and its comments in order."""
    return _Lexer(source, findings).run()


class _Lexer:
    def __init__(self, source: Source, findings: Findings) -> None:
        self.source = source
        self.text = source.text
        self.findings = findings
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.docs: list[str] = []

    def run(self) -> tuple[tuple[Token, ...], tuple[Comment, ...]]:
        text, size, match = self.text, len(self.text), _TOKEN.match
        at = 1 if text.startswith("\ufeff") else 0
        while at < size:
            found = match(text, at)
            if found is None:
                at = self.bad(at)
                continue
            end = found.end()
            match found.lastgroup:
                case "space":
                    pass
                case "name":
                    self.name(at, end)
                case "sign":
                    end = self.sign(at, end)
                case "number":
                    end = self.number(at, end)
                case "line":
                    self.comment(at, end)
                case "block":
                    end = self.block_comment(at)
                case "tripled":
                    self.tripled(at, end)
                case "string":
                    self.string(at, end)
                case "quoted":
                    self.quoted(at, end)
                case _:
                    self.hash(at, end)
            at = end
        self.push(END, size, size)
        return tuple(self.tokens), tuple(self.comments)

    def push(self, kind: str, start: int, end: int, value: int | float | str | None = None) -> None:
        docs = ""
        if self.docs:
            docs = "\n".join(self.docs)
            self.docs.clear()
        self.tokens.append(Token(kind, self.text[start:end], start, end, value, docs))

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    # ------------------------------------------------------------ words and signs

    def name(self, start: int, end: int) -> None:
        text = self.text[start:end]
        if not text.isascii():
            odd = _NON_ASCII.search(text)
            assert odd is not None
            self.findings.add(
                "E1001",
                f"`{text}` is not a name: names are ASCII letters, digits and `_`",
                self.span(start + odd.start(), start + odd.end()),
                label="not ASCII",
            )
        if text in KEYWORDS:
            self.push(text, start, end)
        else:
            self.push(RESERVED if text in RESERVED_WORDS else NAME, start, end)

    def sign(self, start: int, end: int) -> int:
        text = self.text[start:end]
        if text == "." and self.text[end : end + 1] in _DIGITS and not self.after_value(start):
            found = _TOKEN.match(self.text, end)
            assert found is not None
            end = found.end()
            written = self.text[start:end]
            self.findings.add(
                "E1005",
                f"`{written}` needs a digit before the point",
                self.span(start, end),
                help=Help(f"write `0{written}`", (Edit(self.span(start, start), "0"),), safe=True),
            )
            self.push(FLOAT, start, end, 0.0)
            return end
        self.push(text, start, end)
        return end

    def after_value(self, at: int) -> bool:
        """Whether a value ends just before `at`, as in `t.0`."""
        if not self.tokens or self.tokens[-1].end != at:
            return False
        return self.tokens[-1].kind in (NAME, ")", "]")

    def bad(self, start: int) -> int:
        """Report the run of characters at `start` that begin no token; where it ends."""
        char = self.text[start]
        if char in _LOOKALIKES:
            sign = _LOOKALIKES[char]
            self.report_bad(start, start + 1, f"write `{sign}`", sign)
            self.push(sign, start, start + 1)
            return start + 1
        end = start + 1
        while end < len(self.text) and self.text[end] not in _LOOKALIKES:
            if _TOKEN.match(self.text, end) is not None:
                break
            end += 1
        run = self.text[start:end]
        if run.isspace():
            self.report_bad(start, end, "use plain spaces", " " * len(run))
            return end
        advice = _ADVICE.get(char)
        if char == "@" and not self.text[:start].rpartition("\n")[2].strip():
            advice = "there are no decorators: what is offered outside is declared with `entry`"
        self.report_bad(start, end, advice, None)
        self.push(BAD, start, end)
        return end

    def report_bad(self, start: int, end: int, advice: str | None, fix: str | None) -> None:
        span = self.span(start, end)
        names = _show(self.text[start:end])
        edits = (Edit(span, fix),) if fix is not None else ()
        help = Help(advice, edits) if advice is not None else None
        self.findings.add("E1001", f"{names} is not part of the language", span, help=help)

    def hash(self, start: int, end: int) -> None:
        span = self.span(start, start + 1)
        self.findings.add(
            "E1001",
            "`#` is not part of the language",
            span,
            help=Help("comments start with `//`", (Edit(span, "//"),), safe=True),
        )

    # ------------------------------------------------------------ comments

    def comment(self, start: int, end: int) -> None:
        text = self.text[start:end].rstrip("\r")
        self.comments.append(Comment(self.span(start, start + len(text)), text))
        if text.startswith("///") and not text.startswith("////"):
            self.docs.append(text[3:].removeprefix(" ").rstrip())

    def block_comment(self, start: int) -> int:
        depth, at = 1, start + 2
        while depth:
            edge = _COMMENT_EDGE.search(self.text, at)
            if edge is None:
                self.findings.add(
                    "E1002",
                    "this comment is never closed",
                    self.span(start, start + 2),
                    label="opened here",
                    notes=("comments nest: every `/*` needs its own `*/`",) if depth > 1 else (),
                    help="close it with `*/`",
                )
                at = len(self.text)
                break
            depth += 1 if edge.group() == "/*" else -1
            at = edge.end()
        text = self.text[start:at]
        self.comments.append(Comment(self.span(start, at), text))
        if text.startswith("/**") and not text.startswith("/***") and depth == 0 and len(text) > 4:
            self.docs.append(_block_docs(text))
        return at

    # ------------------------------------------------------------ literals

    def number(self, start: int, end: int) -> int:
        text = self.text[start:end]
        if _DECIMAL.fullmatch(text):
            after = _DOT_EXPONENT.match(self.text, end)
            if after is not None:
                end = after.end()
                self.bad_number(start, end, "a digit must follow the point", text + ".0")
                self.push(FLOAT, start, end, 0.0)
            elif self.text[end : end + 1] == "." and not _continues(self.text, end + 1):
                end += 1
                self.bad_number(start, end, "a digit must follow the point", text + ".0")
                self.push(FLOAT, start, end, 0.0)
            else:
                self.push(INT, start, end, _integer(text, 10, 19))
        elif _BASED.fullmatch(text):
            hexadecimal = text[1] == "x"
            base, digits = (16, 16) if hexadecimal else (2, 64)
            self.push(INT, start, end, _integer(text[2:], base, digits))
        elif _FLOAT.fullmatch(text):
            value = float(text)
            if math.isinf(value):
                self.findings.add(
                    "E1005",
                    f"`{_short(text)}` is larger than any dtype holds",
                    self.span(start, end),
                )
                value = 0.0
            self.push(FLOAT, start, end, value)
        else:
            self.malformed(start, end, text)
        return end

    def bad_number(self, start: int, end: int, why: str, instead: str) -> None:
        span = self.span(start, end)
        self.findings.add(
            "E1005",
            f"`{_short(span.text)}`: {why}",
            span,
            help=Help(f"write `{_short(instead)}`", (Edit(self.span(start, end), instead),))
            if span.text.endswith(".")
            else Help("write the digit after the point"),
        )

    def malformed(self, start: int, end: int, text: str) -> None:
        span = self.span(start, end)
        help: Help | None = None
        suffix = _SUFFIX.fullmatch(text)
        if suffix is not None:
            why = "numbers take no suffix"
            help = Help(
                "a literal takes its dtype from where it stands; "
                f"elsewhere write `cast<{suffix.group(2)}>({suffix.group(1)})`"
            )
        elif text[:2] in ("0o", "0O"):
            why = "there are no octal numbers"
            help = Help("write it in hexadecimal (`0xff`) or decimal")
        elif text[:2] in ("0X", "0B"):
            why = f"the prefix is written `{text[:2].lower()}`"
            help = Help(
                "write it in lower case", (Edit(self.span(start + 1, start + 2), text[1].lower()),)
            )
        elif text.endswith("_") or "__" in text or "_." in text or "_e" in text.lower():
            why = "each `_` must stand between two digits"
        else:
            why = "not a number"
            help = Help("numbers look like `42`, `1_000`, `0xff`, `0b1010`, `1.5`, `1e-5`")
        self.findings.add("E1005", f"`{_short(text)}`: {why}", span, help=help)
        is_float = "." in text or (suffix is not None and "f" in suffix.group(2))
        self.push(FLOAT if is_float else INT, start, end, 0.0 if is_float else 0)

    def quoted(self, start: int, end: int) -> None:
        span = self.span(start, end)
        inner = self.text[start + 1 : end - 1]
        fix = inner.replace("\\", "\\\\").replace('"', '\\"')
        self.findings.add(
            "E1003",
            "strings take straight double quotes",
            span,
            help=Help('write "..."', (Edit(span, f'"{fix}"'),), safe=True),
        )
        self.push(STRING, start, end, inner)

    def tripled(self, start: int, end: int) -> None:
        self.findings.add(
            "E1003",
            "there are no strings in three quotes",
            self.span(start, end),
            help="documentation stands before the item, on lines that begin with `///`",
        )
        self.push(STRING, start, end, self.text[start + 3 : max(start + 3, end - 3)])

    def string(self, start: int, end: int) -> None:
        closed = end - start > 1 and self.closes(start, end)
        if not closed:
            self.findings.add(
                "E1003",
                "this string is not closed on its line",
                self.span(start, end),
                label="opened here",
                help='end it with `"`; a line break inside a string is written `\\n`',
            )
        inner_end = end - 1 if closed else end
        parts: list[str] = []
        at = start + 1
        while True:
            slash = self.text.find("\\", at, inner_end)
            if slash < 0:
                parts.append(self.text[at:inner_end])
                break
            parts.append(self.text[at:slash])
            escape = _ESCAPE.match(self.text, slash, inner_end)
            assert escape is not None
            parts.append(self.escape(escape.group(), slash))
            at = escape.end()
        self.push(STRING, start, end, "".join(parts))

    def closes(self, start: int, end: int) -> bool:
        """Whether the last character is a quote that no backslash escapes."""
        if self.text[end - 1] != '"':
            return False
        at = end - 1
        while at > start + 1 and self.text[at - 1] == "\\":
            at -= 1
        return (end - 1 - at) % 2 == 0

    def escape(self, text: str, at: int) -> str:
        """What an escape stands for; reported, and empty, if it is none."""
        simple = _SIMPLE_ESCAPES.get(text)
        if simple is not None:
            return simple
        digits = text[3:-1]
        if text.startswith("\\u{") and text.endswith("}") and 1 <= len(digits) <= 6:
            if all(c in "0123456789abcdefABCDEF" for c in digits):
                code = int(digits, 16)
                if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                    return chr(code)
                why = "is not a Unicode character"
            else:
                why = "needs hexadecimal digits between the braces"
        elif text.startswith("\\u"):
            why = "needs one to six hexadecimal digits in braces, as in `\\u{e9}`"
        elif text == "\\":
            return ""  # the end of an open string, already reported
        else:
            why = "is not an escape"
        self.findings.add(
            "E1003",
            f"`{_short(text)}` {why}",
            self.span(at, at + len(text)),
            help='escapes are `\\n`, `\\t`, `\\\\`, `\\"` and `\\u{..}`',
        )
        return ""


_DIGITS = frozenset("0123456789")


def _continues(text: str, at: int) -> bool:
    """Whether what follows a point makes it a range or a field, not a bare `1.`."""
    following = text[at : at + 1]
    return following == "." or following == "_" or following.isalnum()


def _integer(digits: str, base: int, most: int) -> int:
    digits = digits.replace("_", "").lstrip("0")
    return int(digits or "0", base) if len(digits) <= most else _TOO_LONG


def _block_docs(text: str) -> str:
    lines = text[3:-2].split("\n")
    cleaned = [lines[0].strip()]
    for line in lines[1:]:
        stripped = line.strip()
        cleaned.append(stripped[1:].removeprefix(" ") if stripped.startswith("*") else stripped)
    return "\n".join(cleaned).strip()


def _show(run: str) -> str:
    shown = "".join(c for c in run[:8] if c.isprintable())
    if "`" in run:
        return "a backquote"
    if shown == run[:8]:
        return f"`{run}`" if len(run) <= 8 else f"`{shown}…`"
    codes = " ".join(f"U+{ord(c):04X}" for c in run[:4])
    return codes if len(run) <= 4 else codes + " …"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
