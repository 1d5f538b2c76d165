"""A place in the tokens of a file: reading, reporting, and finding where to go on.

What cannot be read is reported where it stands and unwinds (`Unreadable`) to the nearest place
that can go on: the next element of a list, statement, member or item. Those places are found with
the bracket table, so a mistake inside brackets never costs more than what the brackets hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import punctuation
from typing import TypeVar

from linnet.diagnostics import Edit, Findings, Help, Label
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.syntax.brackets import pair
from linnet.syntax.depth import MAX_DEPTH
from linnet.syntax.lexer import lex
from linnet.syntax.tokens import (
    BAD,
    END,
    FUNCTION_WORDS,
    KEYWORDS,
    MEMBER_WORDS,
    NAME,
    RESERVED,
    RESERVED_WORDS,
    STATEMENT_WORDS,
    STRING,
    TOP_WORDS,
    Token,
    words,
)

T = TypeVar("T")

# Before one of these, a keyword stands where a name should, so it was meant as one.
_LOST_BRACKET = re.compile(r"//\s*[\w.]+\s*[\])]")
_FOLLOWS_NAME = words(
    ": = ( < , ) [ ] { } . => :: > in as let var return static || && == != <= >= | ^ & + - * / %"
)


class Unreadable(Exception):
    """Unwinds to the nearest place that can go on; the mistake is already reported."""


class Cursor:
    def __init__(self, source: Source, findings: Findings) -> None:
        before = len(findings.items)
        tokens, comments = lex(source, findings)
        self.malformed = {d.primary.span.start for d in findings.items[before:]}
        self.source = source
        self.findings = findings
        self.comments = comments
        self.tokens = list(tokens)  # a `>=` that closes generics is split in place
        brackets = pair(tokens)
        self.partner = brackets.partner
        self.angle = brackets.angle
        self.at = 0
        self.token = self.tokens[0]
        self.last_end = 0  # where the last token taken ends
        self.close = -1  # the brace that ends the body being read, if there is one
        self.depth = 0  # brackets and bodies around this point
        self.height = 0  # of the expression read last
        self.deepest = 0  # how far down anything has stood since this was last reset
        self.in_block = False
        self.boundary = self.item_boundary  # where what is being read may go on after a mistake
        self.failed_at = -1
        self.too_deep = False
        self.semicolons: list[Span] = []
        self.not_names: dict[str, list[Span]] = {}  # words of the language that stand for names

    # ------------------------------------------------------------ tokens and spans

    def move(self, at: int) -> None:
        """Stand at a later token; what was passed over counts as read."""
        if at > self.at:
            self.last_end = self.tokens[at - 1].end
        self.at = at
        self.token = self.tokens[at]

    def advance(self) -> Token:
        token = self.token
        if token.kind != END:
            self.at += 1
            self.last_end = token.end
            self.token = self.tokens[self.at]
        return token

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self, kind: str) -> bool:
        if self.token.kind != kind:
            return False
        self.advance()
        return True

    def since(self, start: int) -> Span:
        """From a code point to the end of the last token taken."""
        return Span(self.source, min(start, self.last_end), self.last_end)

    def between(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def span(self, token: Token) -> Span:
        return Span(self.source, token.start, token.end)

    def here(self) -> Span:
        """The token at hand; at the end of the file, the place just after the text."""
        if self.token.kind == END:
            return Span(self.source, self.last_end, self.last_end)
        return self.span(self.token)

    def gap(self) -> Span:
        """The empty place just after the last token taken."""
        return Span(self.source, self.last_end, self.last_end)

    def first_on_line(self, at: int) -> bool:
        if at == 0:
            return True
        return self.source.text.find("\n", self.tokens[at - 1].end, self.tokens[at].start) >= 0

    def adjacent(self, at: int) -> bool:
        """Whether nothing stands between this token and the one before."""
        return at > 0 and self.tokens[at - 1].end == self.tokens[at].start

    # ------------------------------------------------------------ reporting

    def report(
        self,
        message: str,
        at: Span,
        *,
        code: str = "E1101",
        label: str = "",
        related: tuple[Label, ...] = (),
        help: Help | str | None = None,
    ) -> None:
        self.findings.add(code, message, at, label=label, related=related, help=help)

    def fail(
        self,
        message: str,
        *,
        code: str = "E1101",
        at: Span | None = None,
        label: str = "",
        related: tuple[Label, ...] = (),
        help: Help | str | None = None,
    ) -> Unreadable:
        """Report the token at hand, unless it is reported already; to be raised."""
        if self.failed_at != self.at and not self.reported(self.token):
            span = at if at is not None else self.here()
            self.report(message, span, code=code, label=label, related=related, help=help)
        self.failed_at = self.at
        return Unreadable()

    def reported(self, token: Token) -> bool:
        """Whether the lexer reported this token: a bad character, or a sign that looks like one."""
        stands_for = token.kind[0] in punctuation and token.text != token.kind
        return token.kind == BAD or stands_for or token.start in self.malformed

    def mend(self, message: str, instead: str) -> None:
        """Report the token at hand, and go on as if `instead` stood in its place."""
        self.report(message, self.here(), help=self.fix(instead))
        self.advance()

    def expected(
        self, what: str, *, related: tuple[Label, ...] = (), help: Help | str | None = None
    ) -> Unreadable:
        if help is None:
            help = self.comment_help() or self.reduction_help() or self.loop_help()
        return self.fail(f"expected {what}, found {self.found()}", related=related, help=help)

    def comment_help(self) -> str | None:
        """For `n // 2)`, whose bracket is lost in a comment."""
        if self.at == 0:
            return None
        end = self.tokens[self.at - 1].end
        rest = self.source.text[end:].split("\n", 1)[0].lstrip()
        if _LOST_BRACKET.match(rest):
            return "`//` begins a comment; `/` divides sizes and integers, and rounds down"
        return None

    def reduction_help(self) -> str | None:
        """For `mean[i] x[i]`: what begins with a name and is no reduction."""
        if self.at < 4 or self.tokens[self.at - 1].kind != "]" or self.first_on_line(self.at):
            return None
        start = self.at - 2
        while start > 0 and self.tokens[start].kind in (NAME, ","):
            start -= 1
        word = self.tokens[start - 1]
        if self.tokens[start].kind != "[" or word.kind != NAME or self.token.kind != NAME:
            return None
        at = self.between(self.tokens[start].start, self.tokens[self.at - 1].end).text
        if word.text in ("mean", "average", "avg"):
            return f"a mean is `(sum{at} ...) / cast<f32>(N)`, where N is how many are added"
        return f"`{word.text}` is no reduction: they are `sum prod max min any all`"

    def loop_help(self) -> str | None:
        """For `[x[i] for i in 0..n]`."""
        if self.token.kind != "for" or self.first_on_line(self.at):
            return None
        loop = "let ys = for i in 0..n { yield ... }"
        return f"define it by its elements, `let y[i] = ...`, or `{loop}`"

    def opened(self, bracket: Token) -> tuple[Label, ...]:
        return (Label(self.span(bracket), "opened here"),)

    def found(self) -> str:
        token = self.token
        if token.kind == END:
            return "the end of the file"
        if token.kind == STRING:
            return "a string"
        return f"`{token.text}`" if len(token.text) <= 40 else f"`{token.text[:39]}…`"

    def replace(self, text: str, span: Span, instead: str, *, safe: bool = True) -> Help:
        return Help(text, (Edit(span, instead),), safe)

    def fix(self, instead: str, span: Span | None = None) -> Help:
        """Write this in place of a span, or of the token at hand."""
        return self.replace(f"write `{instead}`", span or self.here(), instead)

    def expect(
        self, kind: str, where: str, opened: Token | None = None, help: Help | str | None = None
    ) -> Token:
        if self.token.kind == kind:
            return self.advance()
        related = () if opened is None else self.opened(opened)
        raise self.expected(f"`{kind}` {where}".rstrip(), related=related, help=help)

    def enter(self) -> None:
        """Count one more level around what follows; `leave` ends it."""
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        if self.depth > MAX_DEPTH:
            raise self.deep()

    def leave(self) -> None:
        self.depth -= 1

    def grow(self, height: int) -> None:
        """Note the height of the expression just made."""
        if self.depth + height > MAX_DEPTH:
            raise self.deep()
        self.height = height
        self.deepest = max(self.deepest, self.depth + height)

    def deep(self) -> Unreadable:
        if not self.too_deep:
            self.too_deep = True
            self.report(
                f"this nests more than {MAX_DEPTH} levels deep",
                self.here(),
                help="name a part of it with `let`",
            )
        self.failed_at = self.at
        return Unreadable()

    # ------------------------------------------------------------ recovery

    def attempt(
        self, read: Callable[[], T], *, may_stay: bool = False, stops: frozenset[str] = frozenset()
    ) -> T | None:
        """What `read` gives; None, standing at a boundary or stop, if that could not be read.

        With `may_stay`, the place where reading began may be one: nothing is there to be read.
        """
        start, outer = self.at, (self.depth, self.close, self.boundary, self.in_block)
        try:
            return read()
        except Unreadable:
            self.depth, self.close, self.boundary, self.in_block = outer
            self.recover(start, stops, may_stay)
            if may_stay:
                self.failed_at = self.at
            return None

    def recover(self, start: int, stops: frozenset[str], may_stay: bool) -> None:
        """Stand at the first boundary or stop at or after the mistake in what began at `start`.

        Balanced brackets are passed over whole, and the end of the braces being read never is.
        """
        at = start
        while self.tokens[at].kind != END and at != self.close:
            if at >= self.at and (may_stay or at > start):
                if self.boundary(at) or self.tokens[at].kind in stops:
                    break
            closes = self.partner[at]
            at = closes + 1 if closes > at else at + 1
        self.move(at)

    def statement_boundary(self, at: int) -> bool:
        kind = self.tokens[at].kind
        if kind in STATEMENT_WORDS:
            return True
        if kind == NAME and self.tokens[at + 1].kind == "=" and self.first_on_line(at):
            return True
        return self.close < 0 and (kind == "}" or self.item_boundary(at))

    def item_boundary(self, at: int) -> bool:
        """Whether an item, or in a block a member, begins here."""
        kind = self.tokens[at].kind
        if kind in ("pub", "use", "module") or (kind == "}" and self.in_block and self.close < 0):
            return True
        if kind in FUNCTION_WORDS or kind in TOP_WORDS:
            return self.tokens[at + 1].kind in (NAME, RESERVED)
        if kind in MEMBER_WORDS:
            return self.in_block and self.tokens[at + 1].kind in (NAME, RESERVED)
        return False

    # ------------------------------------------------------------ lists

    def closing(self, closer: str) -> bool:
        kind = self.token.kind
        return kind == closer or (closer == ">" and kind == ">=")

    def take_closer(self, closer: str) -> None:
        token = self.token
        if token.kind == closer:
            self.advance()
        else:  # `>=` in `param x: A<B>= none` is a `>` and a `=`
            rest = Token("=", "=", token.start + 1, token.end)
            self.tokens[self.at] = self.token = rest
            self.last_end = token.start + 1

    def comma_list(
        self, closer: str, element: Callable[[], T], bad: Callable[[Span], T] | None = None
    ) -> tuple[T, ...]:
        """The elements up to the closing bracket, which is taken; the opening one just was."""
        opened = self.tokens[self.at - 1]
        limit = (self.angle if closer == ">" else self.partner)[self.at - 1]
        related = self.opened(opened)
        elements: list[T] = []
        self.enter()
        height = 0
        while not self.closing(closer):
            start, outer = self.at, (self.depth, self.close, self.boundary)
            self.height = 0
            whole = False
            try:
                elements.append(element())
                whole = True
                height = max(height, self.height)
                if not self.closing(closer) and not self.take(","):
                    raise self.expected(f"`,` or `{closer}`", related=related)
            except Unreadable:
                self.depth, self.close, self.boundary = outer
                if not self.next_element(start, closer, limit):
                    raise
                if bad is not None and not whole:
                    elements.append(bad(self.since(self.tokens[start].start)))
                self.take(",")
        self.take_closer(closer)
        self.leave()
        self.height = height
        return tuple(elements)

    def nothing_inside(self) -> bool:
        """Whether the brackets just closed held nothing."""
        return self.tokens[self.at - 2].kind in ("(", "[", "{", "<")

    def next_element(self, start: int, closer: str, limit: int) -> bool:
        """Stand at the `,` or bracket that ends the element begun at `start`, if there is one."""
        if limit < 0 and closer != ">":
            return False
        at = start
        while limit < 0 or at < limit:
            kind = self.tokens[at].kind
            if at >= self.at:
                if kind == ",":
                    break
                if limit < 0:
                    if kind in (">", ">="):
                        break
                    if kind in ("(", "{", "}", END) or self.statement_boundary(at):
                        return False
            closes = max(self.partner[at], self.angle[at])
            at = closes + 1 if closes > at else at + 1
        # Brackets that cross lead past the closing one.
        self.move(at if limit < 0 else min(at, limit))
        return True

    # ------------------------------------------------------------ names

    def name(self, what: str) -> tree.Ident:
        """The name at hand; a word of the language in its place is reported and taken for one."""
        token = self.token
        if token.kind == NAME:
            self.advance()
        elif token.kind == RESERVED or self.keyword_as_name():
            self.reserved_as_name()
            self.advance()
        else:
            raise self.expected(what)
        return tree.Ident(self.span(token), token.text)

    def keyword_as_name(self) -> bool:
        if self.token.kind in STATEMENT_WORDS:
            return self.peek().kind in (":", "=")
        return self.token.kind in KEYWORDS and self.peek().kind in _FOLLOWS_NAME

    def reserved_as_name(self) -> None:
        self.not_names.setdefault(self.token.text, []).append(self.here())

    def report_reserved(self) -> None:
        """A word that cannot be a name is one finding, however often the name stands in a file."""
        for word, places in self.not_names.items():
            kind = "reserved" if word in RESERVED_WORDS else "a keyword"
            more = f" (and {len(places) - 1} more in this file)" if len(places) > 1 else ""
            self.report(
                f"`{word}` is {kind} and cannot be a name",
                places[0],
                code="E1004",
                help=Help(f"write `{word}_`{more}", tuple(Edit(p, word + "_") for p in places)),
            )

    def path(self, what: str, *, before: str = "") -> tree.Path:
        """Names with dots between them; a dot before a token of kind `before` is left."""
        start = self.token.start
        if self.token.kind == "crate":
            token = self.advance()
            parts = [tree.Ident(self.span(token), token.text)]
        else:
            parts = [self.name(what)]
        while self.token.kind == "." and self.peek().kind != before:
            self.advance()
            parts.append(self.name("a name after `.`"))
        return tree.Path(self.since(start), tuple(parts))

    def module_path(self, *, before: str = "") -> tree.Path:
        if self.token.kind in ("self", "super"):
            raise self.fail(
                f"`{self.token.text}` is reserved: a module path starts at `std`, `crate` or a "
                "dependency",
                code="E1103",
                help="write the whole path, as in `crate.a.b`",
            )
        return self.path("a module path", before=before)

    # ------------------------------------------------------------ separators there are not

    def skip_semicolons(self) -> bool:
        if self.token.kind != ";":
            return False
        while self.token.kind == ";":
            self.semicolons.append(self.span(self.advance()))
        return True

    def report_semicolons(self) -> None:
        """All stray semicolons of a file are one habit, so one finding."""
        if self.semicolons:
            more = len(self.semicolons) - 1
            text = f"remove it (and {more} more in this file)" if more else "remove it"
            help = Help(text, tuple(Edit(s, "") for s in self.semicolons), safe=True)
            self.report("Linnet has no semicolons", self.semicolons[0], help=help)

    def report_commas(self, commas: list[Span], message: str) -> None:
        if commas:
            help = Help("remove the commas", tuple(Edit(c, "") for c in commas), safe=True)
            self.report(message, commas[0], help=help)
