"""Recursive descent from tokens to the tree, with recovery at list, statement, member and item.

What cannot be read is reported where it stands and unwinds (`Unreadable`) to the nearest place
that can go on: the next element of a list, statement, member or item. Those places are found with
the bracket table, so a mistake inside brackets never costs more than what the brackets hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, cast

from linnet.diagnostics import Edit, Findings, Help, Label
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.syntax.brackets import pair
from linnet.syntax.depth import MAX_DEPTH, deep_stack
from linnet.syntax.lexer import lex
from linnet.syntax.tokens import (
    BAD,
    END,
    FLOAT,
    GENERIC_KINDS,
    INT,
    KEYWORDS,
    NAME,
    REDUCTIONS,
    RESERVED,
    STRING,
    Token,
)

T = TypeVar("T")

_BINDING = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    "+": 8,
    "-": 8,
    "*": 9,
    "/": 9,
    "%": 9,
}
_LOOSEST = 1
_ARITH = 5  # binds tighter than any comparison: the level of generic arguments and clauses
_RELATIONS = frozenset(("==", "!=", "<", "<=", ">", ">="))
_PREFIXES = frozenset(("!", "-", "+"))

_STATEMENT_WORDS = frozenset(("let", "var", "return", "static", "while", "for"))
_FUNCTION_WORDS = frozenset(("fn", "op", "entry"))
_MEMBER_WORDS = frozenset(("param", "buffer", "state", "sub"))
_TOP_WORDS = frozenset(("block", "struct", "enum", "const", "type"))
_BEGINS_EXPR = _PREFIXES | {
    NAME, INT, FLOAT, STRING, "true", "false", "none", "some", "(", "[", "if", "match"
}  # fmt: skip
# After one of these words stands what would follow a name, so the word was meant as one.
_FOLLOWS_NAME = frozenset(
    (":", "=", "(", "<", ",", ")", "[", "]", "{", "}", ".", "=>", "::", ">", "in", "as", END)
) | frozenset(_BINDING)
_MAX_INT = (1 << 63) - 1

_OTHER_FN_WORDS = frozenset(("def", "func", "function", "fun", "proc"))
_WORD_OPERATORS = {"and": "&&", "or": "||"}


class Unreadable(Exception):
    """Unwinds to the nearest place that can go on; the mistake is already reported."""


def parse(source: Source, findings: Findings) -> tree.File:
    """The tree of a file, whatever its text; every mistake is in `findings`."""
    with deep_stack():
        return _Parser(source, findings).file()


def parse_text(text: str, name: str = "<text>") -> tuple[tree.File, Findings]:
    """The tree of a text and what was found in it."""
    findings = Findings()
    return parse(Source(name, text), findings), findings


class _Parser:
    def __init__(self, source: Source, findings: Findings) -> None:
        tokens, comments = lex(source, findings)
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
        self.in_block = False
        self.failed_at = -1
        self.too_deep = False
        self.semicolons: list[Span] = []

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
        """Report the token at hand once; to be raised."""
        if self.failed_at != self.at and self.token.kind != BAD:
            span = at if at is not None else self.here()
            self.report(message, span, code=code, label=label, related=related, help=help)
        self.failed_at = self.at
        return Unreadable()

    def expected(
        self,
        what: str,
        *,
        related: tuple[Label, ...] = (),
        help: Help | str | None = None,
    ) -> Unreadable:
        return self.fail(f"expected {what}, found {self.found()}", related=related, help=help)

    def found(self) -> str:
        token = self.token
        if token.kind == END:
            return "the end of the file"
        if token.kind == STRING:
            return "a string"
        return f"`{token.text}`" if len(token.text) <= 40 else f"`{token.text[:39]}…`"

    def replace(self, text: str, span: Span, instead: str) -> Help:
        return Help(text, (Edit(span, instead),))

    def expect(
        self, kind: str, where: str, opened: Token | None = None, help: Help | str | None = None
    ) -> Token:
        if self.token.kind == kind:
            return self.advance()
        related = () if opened is None else (Label(self.span(opened), "opened here"),)
        raise self.expected(f"`{kind}` {where}".rstrip(), related=related, help=help)

    def enter(self) -> None:
        """Count one more level around what follows; `leave` ends it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.deep()

    def leave(self) -> None:
        self.depth -= 1

    def grow(self, height: int) -> None:
        """Note the height of the expression just made."""
        if self.depth + height > MAX_DEPTH:
            raise self.deep()
        self.height = height

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

    def recover(
        self, start: int, boundary: Callable[[int], bool], limit: int, *, may_stay: bool
    ) -> None:
        """Stand at the first boundary at or after the mistake in what began at `start`.

        Balanced brackets are passed over whole. With `may_stay`, `start` itself may be one.
        """
        at = start
        while self.tokens[at].kind != END and at != limit:
            if at >= self.at and (may_stay or at > start) and boundary(at):
                break
            closes = self.partner[at]
            at = closes + 1 if closes > at else at + 1
        self.move(at)

    def statement_boundary(self, at: int) -> bool:
        kind = self.tokens[at].kind
        if kind in _STATEMENT_WORDS:
            return True
        if kind == NAME and self.tokens[at + 1].kind == "=" and self.first_on_line(at):
            return True
        return self.close < 0 and (kind == "}" or self.item_boundary(at))

    def item_boundary(self, at: int) -> bool:
        """Whether an item, or in a block a member, begins here."""
        kind = self.tokens[at].kind
        if kind in ("pub", "use", "module"):
            return True
        if kind in _FUNCTION_WORDS or kind in _TOP_WORDS:
            return self.tokens[at + 1].kind in (NAME, RESERVED)
        if kind in _MEMBER_WORDS:
            return self.in_block and self.tokens[at + 1].kind in (NAME, RESERVED)
        return False

    def member_boundary(self, at: int) -> bool:
        return self.item_boundary(at) or (self.close < 0 and self.tokens[at].kind == "}")

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
        self,
        closer: str,
        element: Callable[[], T],
        bad: Callable[[Span], T] | None = None,
    ) -> tuple[T, ...]:
        """The elements up to the closing bracket, which is taken; the opening one just was."""
        opened = self.tokens[self.at - 1]
        limit = self.partner[self.at - 1]
        related = (Label(self.span(opened), "opened here"),)
        elements: list[T] = []
        self.enter()
        height = 0
        while not self.closing(closer):
            start, depth, close = self.at, self.depth, self.close
            self.height = 0
            whole = False
            try:
                elements.append(element())
                whole = True
                height = max(height, self.height)
                if not self.closing(closer) and not self.take(","):
                    raise self.expected(f"`,` or `{closer}`", related=related)
            except Unreadable:
                self.depth, self.close = depth, close
                if not self.next_element(start, closer, limit):
                    raise
                if bad is not None and not whole:
                    elements.append(bad(self.since(self.tokens[start].start)))
                self.take(",")
        self.take_closer(closer)
        self.leave()
        self.height = height
        return tuple(elements)

    def next_element(self, start: int, closer: str, limit: int) -> bool:
        """Stand at the `,` or bracket that ends the element begun at `start`, if there is one."""
        if limit < 0 and closer != ">":
            return False
        at = start
        while at != limit:
            kind = self.tokens[at].kind
            if at >= self.at:
                if kind == ",":
                    break
                if limit < 0:
                    if kind in (">", ">="):
                        break
                    if kind in ("(", "{", "}", END) or self.statement_boundary(at):
                        return False
            closes = self.partner[at]
            at = closes + 1 if closes > at else at + 1
        self.move(at)
        return True

    # ------------------------------------------------------------ names

    def name(self, what: str) -> tree.Ident:
        """The name at hand; a word of the language in its place is reported and taken for one."""
        token = self.token
        if token.kind == NAME:
            self.advance()
        elif token.kind == RESERVED or self.keyword_as_name():
            self.reserved_as_name(what)
            self.advance()
        else:
            raise self.expected(what)
        return tree.Ident(self.span(token), token.text)

    def keyword_as_name(self) -> bool:
        return self.token.kind in KEYWORDS and self.peek().kind in _FOLLOWS_NAME

    def reserved_as_name(self, what: str) -> None:
        token = self.token
        kind = "reserved" if token.kind == RESERVED else "a keyword"
        self.report(
            f"`{token.text}` is {kind} and cannot be {what}",
            self.span(token),
            code="E1004",
            help=self.replace("choose another name", self.span(token), token.text + "_"),
        )

    def path(self, what: str) -> tree.Path:
        start = self.token.start
        if self.token.kind == "crate":
            token = self.advance()
            parts = [tree.Ident(self.span(token), token.text)]
        else:
            parts = [self.name(what)]
        while self.take("."):
            parts.append(self.name("a name after `.`"))
        return tree.Path(self.since(start), tuple(parts))

    def module_path(self) -> tree.Path:
        if self.token.kind in ("self", "super"):
            raise self.fail(
                f"`{self.token.text}` is reserved: a module path starts at `std`, `crate` or a "
                "dependency",
                code="E1103",
                help="write the whole path, as in `crate.a.b`",
            )
        return self.path("a module path")

    # ------------------------------------------------------------ file

    def file(self) -> tree.File:
        module = self.module()
        uses: list[tree.Use] = []
        items: list[tree.Item] = []
        while self.token.kind != END:
            start = self.at
            try:
                if not self.skip_semicolons():
                    self.top_level(uses, items)
            except Unreadable:
                self.depth, self.close, self.in_block = 0, -1, False
                self.recover(start, self.item_boundary, -1, may_stay=False)
        self.report_semicolons()
        whole = Span(self.source, 0, len(self.source.text))
        return tree.File(whole, self.source, module, tuple(uses), tuple(items), self.comments)

    def module(self) -> tree.Path | None:
        if self.token.kind != "module":
            stem = "".join(
                c if c.isascii() and c.isalnum() else "_"
                for c in self.source.name.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
            )
            name = stem if stem[:1].isalpha() and stem not in KEYWORDS else "main"
            start = Span(self.source, self.token.start, self.token.start)
            self.report(
                "a file begins with its `module` declaration",
                self.here(),
                code="E1102",
                help=self.replace(f"add `module {name}` above", start, f"module {name}\n\n"),
            )
            return None
        self.advance()
        first = self.at
        try:
            path = self.module_path()
            if self.token.kind == "::":
                raise self.modules_take_dots()
            return path
        except Unreadable:
            self.recover(first, self.item_boundary, -1, may_stay=True)
            return None

    def modules_take_dots(self) -> Unreadable:
        help = self.replace("write `.`", self.here(), ".")
        return self.fail("the parts of a module path are separated by `.`", help=help)

    def skip_semicolons(self) -> bool:
        if self.token.kind != ";":
            return False
        while self.token.kind == ";":
            self.semicolons.append(self.span(self.advance()))
        return True

    def report_semicolons(self) -> None:
        """All stray semicolons of a file are one habit, so one finding."""
        if not self.semicolons:
            return
        more = len(self.semicolons) - 1
        note = f" (and {more} more in this file)" if more else ""
        self.report(
            "Linnet has no semicolons",
            self.semicolons[0],
            help=Help(f"remove it{note}", tuple(Edit(s, "") for s in self.semicolons)),
        )

    def top_level(self, uses: list[tree.Use], items: list[tree.Item]) -> None:
        match self.token.kind:
            case "use":
                if items:
                    self.report(
                        "`use` lines stand before the first item",
                        self.here(),
                        related=(Label(items[0].span, "the first item"),),
                        help="move it up, below `module`",
                    )
                uses.append(self.use())
            case "module":
                raise self.fail("a file has one `module` declaration, its first line")
            case "}":
                raise self.fail(
                    "this `}` closes nothing", help="remove it, or look for one too many above"
                )
            case _:
                items.append(self.item())

    def use(self) -> tree.Use:
        start = self.advance().start
        path = self.module_path()
        if not self.take("::"):
            if self.token.kind == "as":
                raise self.fail(
                    "a module takes no other name",
                    help="import what you need from it: `use m::{a as b}`",
                )
            if self.token.kind == "{":
                raise self.expected(
                    "`::` before the names", help=self.replace("write `::{`", self.gap(), "::")
                )
            return tree.Use(self.since(start), path, None)
        if self.take("{"):
            names = self.comma_list("}", self.use_name)
            if not names:
                self.report("this imports nothing", self.since(start), help="name what to import")
            return tree.Use(self.since(start), path, names)
        if self.token.kind == "*":
            raise self.fail(
                "`*` imports are not part of the language", help="list the names: `{a, b}`"
            )
        name = self.name("a name to import")
        if self.token.kind == "::":
            at = Span(self.source, name.span.start - 2, name.span.start)
            help = self.replace("write `.`", at, ".")
            raise self.fail("the parts of a module path are separated by `.`", at=at, help=help)
        if self.token.kind == "as":
            self.advance()
            alias = self.name("another name")
            both = self.source.text[name.span.start : alias.span.end]
            at = name.span.to(alias.span)
            self.report(
                "`as` stands inside braces",
                at,
                help=self.replace("put braces around", at, "{" + both + "}"),
            )
            name_span = self.since(name.span.start)
            return tree.Use(self.since(start), path, (tree.UseName(name_span, name, alias),))
        return tree.Use(self.since(start), path, (tree.UseName(name.span, name, None),))

    def use_name(self) -> tree.UseName:
        name = self.name("a name to import")
        alias = self.name("another name") if self.take("as") else None
        return tree.UseName(self.since(name.span.start), name, alias)

    # ------------------------------------------------------------ items

    def item(self) -> tree.Item:
        first = self.token
        public = self.take("pub")
        match self.token.kind:
            case "fn" | "op" | "entry":
                return self.function(first, public)
            case "block":
                return self.block(first, public)
            case "const":
                return self.const(first, public)
            case "type":
                return self.alias(first, public)
            case "struct":
                return self.struct(first, public)
            case "enum":
                return self.enum(first, public)
            case "name" if self.token.text in _OTHER_FN_WORDS and self.peek().kind == NAME:
                self.report(
                    f"a function is declared with `fn`, not `{self.token.text}`",
                    self.here(),
                    help=self.replace("write `fn`", self.here(), "fn"),
                )
                return self.function(first, public)
            case _:
                raise self.no_item()

    def no_item(self) -> Unreadable:
        token = self.token
        if token.kind == RESERVED or token.kind == "extern":
            return self.fail(f"`{token.text}` is reserved for later versions", code="E1103")
        if token.kind in _MEMBER_WORDS:
            return self.fail(f"a `{token.text}` stands inside a `block`")
        if token.kind in _STATEMENT_WORDS:
            return self.fail(
                f"a `{token.text}` stands inside a function",
                help="a value of the whole module is a `const`" if token.kind == "let" else None,
            )
        if token.kind == NAME and token.text in ("import", "from"):
            return self.fail(
                f"`{token.text}` is not part of the language",
                help="write `use std.nn.linear::{Linear}`",
            )
        if token.kind == NAME and token.text in ("class", "model", "component"):
            return self.fail(
                f"`{token.text}` is not part of the language",
                help=self.replace("a component is a `block`", self.here(), "block"),
            )
        return self.expected(
            "an item (`fn`, `op`, `entry`, `block`, `struct`, `enum`, `type` or `const`)"
        )

    def const(self, first: Token, public: bool) -> tree.Const:
        self.advance()
        name = self.name("the name of a constant")
        type = self.annotation(frozenset("="), self.member_boundary)
        self.expect("=", "and the value of the constant")
        value = self.value(self.member_boundary, -1)
        return tree.Const(self.since(first.start), first.docs, public, name, type, value)

    def alias(self, first: Token, public: bool) -> tree.Alias:
        self.advance()
        name = self.name("the name of a type")
        generics = self.generics()
        self.expect("=", "and the type it stands for")
        of = self.type_expr()
        return tree.Alias(self.since(first.start), first.docs, public, name, generics, of)

    def struct(self, first: Token, public: bool) -> tree.Struct:
        self.advance()
        name = self.name("the name of a struct")
        generics = self.generics()
        opened = self.expect("{", "and the fields of the struct")
        limit = self.partner[self.at - 1]
        fields: list[tree.StructField] = []
        commas: list[Span] = []
        while self.token.kind not in ("}", END) and not self.item_boundary(self.at):
            start = self.at
            try:
                if self.token.kind == "," and fields:
                    commas.append(self.span(self.advance()))
                elif not self.skip_semicolons():
                    fields.append(self.struct_field())
            except Unreadable:
                self.recover(start, self.field_boundary, limit, may_stay=False)
        self.expect("}", "to close the struct", opened)
        self.report_commas(commas, "the fields of a struct stand without commas")
        return tree.Struct(
            self.since(first.start), first.docs, public, name, generics, tuple(fields)
        )

    def field_boundary(self, at: int) -> bool:
        tokens = self.tokens
        if tokens[at].kind in (NAME, RESERVED) and tokens[at + 1].kind == ":":
            return True
        return tokens[at].kind == "}" or self.item_boundary(at)

    def report_commas(self, commas: list[Span], message: str) -> None:
        if commas:
            fix = Help("remove the commas", tuple(Edit(c, "") for c in commas))
            self.report(message, commas[0], help=fix)

    def struct_field(self) -> tree.StructField:
        name = self.name("the name of a field")
        self.expect(":", "and the type of the field")
        type = self.type_expr()
        return tree.StructField(self.since(name.span.start), name, type)

    def enum(self, first: Token, public: bool) -> tree.Enum:
        self.advance()
        name = self.name("the name of an enum")
        self.expect("{", "and the variants of the enum")
        variants = self.comma_list("}", lambda: self.name("the name of a variant"))
        return tree.Enum(self.since(first.start), first.docs, public, name, variants)

    def generics(self) -> tuple[tree.GenericParam, ...]:
        return self.comma_list(">", self.generic_param) if self.take("<") else ()

    def generic_param(self) -> tree.GenericParam:
        start = self.token.start
        star = self.token
        pack = self.take("*")
        name = self.name("the name of a generic")
        if self.token.kind in (",", ">"):
            raise self.fail(
                f"the generic `{name.text}` needs a kind",
                at=name.span,
                help=f"write `{name.text}: Dim` for a size, `{name.text}: Float` for a dtype "
                f"(or {', '.join(sorted(GENERIC_KINDS - {'Dim', 'Float'}))})",
            )
        self.expect(":", "and the kind of the generic")
        if self.token.kind != NAME or self.token.text not in GENERIC_KINDS:
            raise self.expected("a kind (Dim, Shape, DType, Numeric, Integer or Float)")
        kind = self.name("a kind")
        if kind.text == "Shape" and not pack:
            self.report(
                f"a generic of kind `Shape` is a pack: `*{name.text}`",
                name.span,
                help=self.replace(f"write `*{name.text}`", name.span, f"*{name.text}"),
            )
            pack = True
        elif pack and kind.text != "Shape":
            self.report(
                f"a pack has the kind `Shape`, not `{kind.text}`",
                kind.span,
                related=(Label(self.span(star), "makes it a pack"),),
                help=self.replace("write `Shape`", kind.span, "Shape"),
            )
        default = self.generic_arg() if self.take("=") else None
        return tree.GenericParam(self.since(start), name, pack, kind, default)

    def where(self) -> tuple[tree.Relation, ...]:
        if not self.take("where"):
            return ()
        relations: list[tree.Relation] = []
        while True:
            relations.append(self.relation())
            if self.token.kind == "&&":
                self.report(
                    "the clauses of a `where` are separated by commas",
                    self.here(),
                    help=self.replace("write `,`", self.here(), ","),
                )
                self.advance()
            elif not self.take(","):
                break
            if self.token.kind == "{":
                break
        if self.token.kind in _RELATIONS:
            raise self.fail(
                "a clause compares two values", help="write two clauses: `0 < a, a < b`"
            )
        return tuple(relations)

    def relation(self) -> tree.Relation:
        start = self.token.start
        left = self.arith()
        op = self.token.kind
        if op == "=":
            self.report(
                "a clause compares with `==`",
                self.here(),
                help=self.replace("write `==`", self.here(), "=="),
            )
            op = "=="
        elif op not in _RELATIONS:
            raise self.expected("a comparison (`==`, `!=`, `<`, `<=`, `>` or `>=`)")
        self.advance()
        right = self.arith()
        return tree.Relation(self.since(start), left, op, right)

    def function(self, first: Token, public: bool) -> tree.Fn:
        word = self.advance().text
        kind = cast(Literal["fn", "op", "entry"], word if word in _FUNCTION_WORDS else "fn")
        name = self.name(f"the name of a `{kind}`")
        generics = self.generics()
        self.expect("(", f"and the parameters of `{name.text}`")
        params = self.comma_list(")", self.param)
        result = self.result()
        where = self.where()
        body = self.body(f"`{name.text}`")
        end = Span(self.source, max(self.last_end - 1, first.start), self.last_end)
        return tree.Fn(
            self.since(first.start),
            first.docs,
            public,
            kind,
            name,
            generics,
            tuple(p for p in params if p is not None),
            result,
            where,
            body,
            end,
        )

    def param(self) -> tree.Param | None:
        """A parameter; None for `self`, which is reported."""
        if self.token.kind == "self":
            self.report(
                "there is no `self`: members and methods are bare names",
                self.here(),
                help="leave it out",
            )
            self.advance()
            return None
        start = self.token.start
        name = self.name("the name of a parameter")
        if self.token.kind in (",", ")", "="):
            raise self.fail(
                f"the parameter `{name.text}` needs a type",
                at=name.span,
                help=f"write `{name.text}: f32`, or what it is",
            )
        self.expect(":", "and the type of the parameter")
        type = self.type_until(frozenset((",", "=", ")")), self.statement_boundary)
        default = self.expr() if self.take("=") else None
        return tree.Param(self.since(start), name, type, default)

    def result(self) -> tree.TypeExpr | None:
        if self.token.kind in (":", "=>"):
            self.report(
                "the result type follows `->`",
                self.here(),
                help=self.replace("write `->`", self.here(), "->"),
            )
            self.advance()
        elif not self.take("->"):
            return None
        return self.type_until(frozenset(("where", "{")), self.member_boundary)

    def block(self, first: Token, public: bool) -> tree.Block:
        self.advance()
        name = self.name("the name of a block")
        generics = self.generics()
        if self.token.kind == "(":
            raise self.fail(
                "a block takes no parameters",
                help="sizes and dtypes are generics (`<H: Dim>`); weights are `param` members",
            )
        where = self.where()
        opened = self.expect("{", f"and the members of `{name.text}`")
        self.close = self.partner[self.at - 1]
        self.in_block = True
        members: list[tree.Member] = []
        methods: list[tree.Fn] = []
        self.enter()
        while not self.at_block_end():
            start, depth, close = self.at, self.depth, self.close
            try:
                if not self.skip_semicolons():
                    self.member_or_method(members, methods)
            except Unreadable:
                self.depth, self.close = depth, close
                self.recover(start, self.member_boundary, close, may_stay=False)
        self.leave()
        self.in_block = False
        self.close = -1
        self.end_braces(f"the block `{name.text}`", opened)
        return tree.Block(
            self.since(first.start),
            first.docs,
            public,
            name,
            generics,
            where,
            tuple(members),
            tuple(methods),
        )

    def at_block_end(self) -> bool:
        kind = self.token.kind
        if kind == END or self.at == self.close:
            return True
        if self.close >= 0:
            return False
        next_kind = self.peek().kind
        top = kind in _TOP_WORDS or (kind == "pub" and next_kind in (*_TOP_WORDS, "op"))
        return kind in ("}", "use", "module") or top

    def end_braces(self, what: str, opened: Token) -> None:
        if self.take("}"):
            return
        if self.failed_at != self.at:
            self.report(
                f"expected `}}` to close {what}, found {self.found()}",
                self.here(),
                related=(Label(self.span(opened), "opened here"),),
            )
        self.failed_at = self.at

    def member_or_method(self, members: list[tree.Member], methods: list[tree.Fn]) -> None:
        first = self.token
        public = self.take("pub")
        kind = self.token.kind
        if kind in _MEMBER_WORDS:
            if public:
                gone = Span(self.source, first.start, self.token.start)
                self.report(
                    f"a `{kind}` takes no `pub`",
                    self.span(first),
                    help=self.replace("remove it", gone, ""),
                )
            members.append(self.member(first))
        elif kind in ("fn", "entry"):
            methods.append(self.function(first, public))
        elif kind == "op":
            raise self.fail(
                "an `op` stands outside blocks",
                help="a method is a `fn`; an `op` takes what it needs as parameters",
            )
        elif kind in _TOP_WORDS:
            raise self.fail(f"a `{kind}` stands outside blocks")
        elif kind == NAME and self.token.text in _OTHER_FN_WORDS and self.peek().kind == NAME:
            methods.append(cast(tree.Fn, self.item()))
        elif kind == NAME and self.peek().kind == ":":
            self.report(
                f"expected `param`, `buffer`, `state` or `sub` before `{self.token.text}`",
                self.here(),
                help="a weight is a `param`, a child block a `sub`",
            )
            self.failed_at = self.at
            raise Unreadable
        else:
            raise self.expected("a member (`param`, `buffer`, `state`, `sub`), `fn` or `entry`")

    def member(self, first: Token) -> tree.Member:
        kind = cast(Literal["param", "buffer", "state", "sub"], self.advance().text)
        name = self.name(f"the name of a `{kind}`")
        self.expect(":", f"and the type of the `{kind}`")
        type = self.type_until(frozenset("="), self.member_boundary)
        value = self.value(self.member_boundary, self.close) if self.take("=") else None
        return tree.Member(self.since(first.start), first.docs, kind, name, type, value)

    # ------------------------------------------------------------ statements

    def body(self, what: str) -> tuple[tree.Stmt, ...]:
        opened = self.expect("{", f"and the body of {what}")
        outer = self.close
        self.close = self.partner[self.at - 1]
        statements: list[tree.Stmt] = []
        self.enter()
        while not self.at_body_end():
            start, depth, close = self.at, self.depth, self.close
            try:
                if not self.skip_semicolons():
                    statements.append(self.statement())
            except Unreadable:
                self.depth, self.close = depth, close
                self.recover(start, self.statement_boundary, close, may_stay=False)
        self.leave()
        self.close = outer
        self.end_braces(f"the body of {what}", opened)
        return tuple(statements)

    def at_body_end(self) -> bool:
        if self.token.kind == END or self.at == self.close:
            return True
        return self.close < 0 and (self.token.kind == "}" or self.item_boundary(self.at))

    def statement(self) -> tree.Stmt:
        match self.token.kind:
            case "let":
                return self.let()
            case "var":
                start = self.advance().start
                return self.var(start)
            case "return":
                return self.return_()
            case "static":
                return self.static_for()
            case "while":
                return self.while_()
            case "name" if self.peek().kind == "=":
                return self.assign()
            case _:
                raise self.no_statement()

    def let(self) -> tree.Let | tree.IndexLet | tree.Var:
        start = self.advance().start
        if self.token.kind == RESERVED and self.token.text == "mut":
            at = Span(self.source, start, self.token.end)
            self.report(
                "`mut` is reserved: a local that changes is a `var`",
                self.here(),
                help=self.replace("write `var`", at, "var"),
            )
            self.advance()
            return self.var(start)
        if self.token.kind == NAME and self.peek().kind == "[":
            return self.index_let(start)
        pattern = self.pattern()
        type = self.annotation(frozenset("="), self.statement_boundary)
        self.expect_equals("`let`")
        value = self.value(self.statement_boundary, self.close)
        return tree.Let(self.since(start), pattern, type, value)

    def index_let(self, start: int) -> tree.IndexLet:
        name = self.name("a name")
        opened = self.advance()
        outputs = self.comma_list("]", self.index_name)
        if not outputs:
            raise self.fail(
                "an element definition names at least one index",
                at=self.since(opened.start),
                help=f"for a scalar write `let {name.text} = ...`",
            )
        self.expect_equals("`let`")
        value = self.value(self.statement_boundary, self.close)
        return tree.IndexLet(self.since(start), name, outputs, value)

    def index_name(self) -> tree.Ident | tree.PackRef:
        return self.pack() if self.token.kind == "*" else self.name("the name of an index")

    def pack(self) -> tree.PackRef:
        start = self.advance().start
        name = self.name("the name of a pack after `*`")
        return tree.PackRef(self.since(start), name)

    def var(self, start: int) -> tree.Var:
        name = self.name("the name of a local")
        type = self.annotation(frozenset("="), self.statement_boundary)
        self.expect_equals("`var`")
        value = self.value(self.statement_boundary, self.close)
        return tree.Var(self.since(start), name, type, value)

    def expect_equals(self, word: str) -> None:
        if self.token.kind == "==":
            self.report(
                f"{word} binds with `=`; `==` compares",
                self.here(),
                help=self.replace("write `=`", self.here(), "="),
            )
            self.advance()
        else:
            self.expect("=", f"and the value of the {word}")

    def annotation(
        self, stops: frozenset[str], boundary: Callable[[int], bool]
    ) -> tree.TypeExpr | None:
        if not self.take(":"):
            return None
        if self.token.kind == "=" and self.adjacent(self.at):
            colon = Span(self.source, self.token.start - 1, self.token.start)
            self.report(
                "a value is bound with `=`", self.here(), help=self.replace("write `=`", colon, "")
            )
            return None
        return self.type_until(stops, boundary)

    def value(self, boundary: Callable[[int], bool], limit: int) -> tree.Expr:
        """An expression, or what stands in for one that could not be read."""
        start, depth, close = self.at, self.depth, self.close
        try:
            value = self.expr()
            if self.token.kind in ("=", "=="):
                raise self.stray_equals()
            return value
        except Unreadable:
            self.depth, self.close = depth, close
            self.recover(start, boundary, limit, may_stay=True)
            return tree.BadExpr(self.since(self.tokens[start].start))

    def stray_equals(self) -> Unreadable:
        return self.expected("an operator or the end of the value", help=self.compare_help())

    def compare_help(self) -> Help | None:
        if self.token.kind != "=":
            return None
        return self.replace("to compare, write `==`", self.here(), "==")

    def return_(self) -> tree.Return:
        start = self.advance().start
        ends = self.at == self.close or self.token.kind not in _BEGINS_EXPR | {RESERVED, BAD, "for"}
        if ends or (self.token.kind == NAME and self.peek().kind == "="):
            return tree.Return(self.since(start), None)
        value = self.value(self.statement_boundary, self.close)
        return tree.Return(self.since(start), value)

    def assign(self) -> tree.Assign:
        name = self.name("a name")
        self.advance()
        value = self.value(self.statement_boundary, self.close)
        return tree.Assign(self.since(name.span.start), name, value)

    def static_for(self) -> tree.StaticFor:
        start = self.advance().start
        self.expect("for", "after `static`")
        name, first, stop, body = self.loop("`static for`")
        return tree.StaticFor(self.since(start), name, first, stop, body)

    def loop(
        self, word: str
    ) -> tuple[tree.Ident, tree.Expr, tree.Expr | None, tuple[tree.Stmt, ...]]:
        name = self.name("the name of the loop's variable")
        self.expect("in", "after the name of the loop's variable")
        first = self.arith()
        stop: tree.Expr | None = None
        if self.token.kind == "...":
            raise self.range_is_two_dots()
        if self.take(".."):
            if self.token.kind == "=" and self.adjacent(self.at):
                raise self.range_is_two_dots()
            stop = self.arith()
        body = self.body(word)
        return name, first, stop, body

    def range_is_two_dots(self) -> Unreadable:
        return self.fail(
            "a range is written `a..b` and ends before `b`", help="write `a..b + 1` to include `b`"
        )

    def while_(self) -> tree.While:
        start = self.advance().start
        condition = self.condition()
        body = self.body("`while`")
        return tree.While(self.since(start), condition, body)

    def condition(self) -> tree.Expr:
        start = self.token.start
        left = self.expr()
        if self.token.kind != "=":
            return left
        equals = self.here()
        self.report("a condition compares with `==`", equals, help=self.compare_help())
        self.advance()
        right = self.expr()
        return tree.Binary(self.since(start), "==", equals, left, right)

    def no_statement(self) -> Unreadable:
        token, following = self.token, self.peek()
        kind = token.kind
        same_line = not self.first_on_line(self.at)
        if kind == "for":
            return self.reserved_for()
        if kind == RESERVED or kind == "extern":
            return self.fail(f"`{token.text}` is reserved for later versions", code="E1103")
        if kind in ("if", "match") and not same_line:
            return self.fail(
                f"`{kind}` is an expression, not a statement",
                help=f"bind or return its value: `let x = {kind} ...`",
            )
        if kind in _MEMBER_WORDS and following.kind == NAME:
            return self.fail(f"a `{kind}` stands in a block, not in a function")
        if kind in _FUNCTION_WORDS or kind in _TOP_WORDS or kind in ("pub", "use", "module"):
            return self.fail(f"`{kind}` cannot stand inside a function")
        if kind == NAME and following.kind in ("+", "-", "*", "/", "%", "&", "|", "^"):
            after = self.peek(2)
            if after.kind == "=" and after.start == following.end:
                at = Span(self.source, following.start, after.end)
                return self.fail(
                    f"there is no `{following.text}=`",
                    at=at,
                    help=self.replace("write it out", at, f"= {token.text} {following.text}"),
                )
        if kind == NAME and following.kind == ":" and not same_line:
            return self.fail(
                f"expected `let` or `var` before `{token.text}`",
                help=self.replace(
                    "write `let`", Span(self.source, token.start, token.start), "let "
                ),
            )
        if kind == NAME and following.kind == "==":
            return self.fail(
                "a value is assigned with `=`; `==` compares",
                at=self.span(following),
                help=self.replace("write `=`", self.span(following), "="),
            )
        if kind in _BEGINS_EXPR and not same_line:
            return self.expression_statement()
        if same_line and self.tokens[self.at - 1].kind not in ("{", "}"):
            return self.fail(
                f"expected an operator or a new statement, found {self.found()}",
                help=self.compare_help(),
            )
        return self.expected(
            "a statement (`let`, `var`, `return`, `static for`, `while` or `x = ..`)"
        )

    def expression_statement(self) -> Unreadable:
        start = self.at
        value = self.expr()
        if self.token.kind == "=":
            text = value.span.text
            if isinstance(value, tree.Index):
                return self.fail(
                    "elements are not assigned: tensors are values",
                    at=value.span,
                    help="define the new tensor by its elements: `let y[i] = ...`",
                )
            if isinstance(value, tree.Tuple):
                return self.fail(
                    "a tuple is taken apart by `let`",
                    at=value.span,
                    help="write `let (a, b) = ...`",
                )
            what = f"`{text}`" if len(text) <= 40 else "this"
            return self.fail(
                f"{what} cannot be assigned",
                at=value.span,
                help="only a `var` and a `state` of this block can, by their bare names",
            )
        before = Span(self.source, value.span.start, value.span.start)
        is_call = isinstance(value, tree.Call)
        self.failed_at = -1
        error = self.fail(
            "there are no expression statements",
            at=value.span,
            label="this value goes nowhere",
            help=self.replace("bind it", before, "let _ = ")
            if is_call
            else "bind it with `let`, or return it",
        )
        if self.at > start and self.statement_boundary(self.at):
            self.failed_at = -1
        return error

    def reserved_for(self) -> Unreadable:
        """Read a counted loop, which comes with a later version, so that it is one mistake."""
        error = self.fail(
            "`for` is reserved for later versions", code="E1103", help="write `static for`"
        )
        self.advance()
        self.loop("`for`")
        return error

    # ------------------------------------------------------------ patterns

    def pattern(self) -> tree.Pattern:
        token = self.token
        match token.kind:
            case "name" if token.text == "_":
                self.advance()
                return tree.WildcardPattern(self.span(token))
            case "none":
                self.advance()
                return tree.NonePattern(self.span(token))
            case "some":
                self.advance()
                opened = self.expect("(", "after `some`")
                self.enter()
                item = self.pattern()
                self.leave()
                self.take(",")
                self.expect(")", "to close `some`", opened)
                return tree.SomePattern(self.since(token.start), item)
            case "(":
                self.advance()
                items = self.comma_list(")", self.pattern)
                if not items:
                    raise self.fail("a tuple pattern names its parts", at=self.since(token.start))
                return tree.TuplePattern(self.since(token.start), items)
            case "true" | "false" | "int" | "float" | "string" | "-":
                raise self.fail(
                    "a pattern is a name, `_`, a tuple, `some(..)`, `none` or a variant",
                    help="compare values with `if`",
                )
            case _:
                return self.name_pattern()

    def name_pattern(self) -> tree.NamePattern | tree.VariantPattern:
        path = self.path("a pattern")
        if len(path.parts) == 1:
            return tree.NamePattern(path.span, path.parts[0])
        *head, name = path.parts
        owner = tree.Path(head[0].span.to(head[-1].span), tuple(head))
        return tree.VariantPattern(path.span, owner, name)

    # ------------------------------------------------------------ types

    def type_until(self, stops: frozenset[str], boundary: Callable[[int], bool]) -> tree.TypeExpr:
        """A type; if it cannot be read, stand at a stop or boundary after it."""
        start, depth, close = self.at, self.depth, self.close
        try:
            type = self.type_expr()
            if self.token.kind == "[" and isinstance(type, tree.NamedType):
                raise self.only_tensors_take_brackets(type)
            return type
        except Unreadable:
            self.depth, self.close = depth, close

            def stop(at: int) -> bool:
                return self.tokens[at].kind in stops or boundary(at)

            self.recover(start, stop, close, may_stay=True)
            if self.token.kind not in stops and not boundary(self.at) and self.at != close:
                raise
            return tree.BadType(self.since(self.tokens[start].start))

    def only_tensors_take_brackets(self, type: tree.NamedType) -> Unreadable:
        return self.fail(
            f"`{type.path.text}` takes no brackets",
            help="a tensor type is written `Tensor[B, S; f32]`, an array of blocks `[Layer<H>; N]`",
        )

    def type_expr(self) -> tree.TypeExpr:
        start = self.token.start
        type = self.plain_type()
        marks = 0
        while self.take("?"):
            marks += 1
            self.grow(marks)
            type = tree.OptionalTypeExpr(self.since(start), type)
        return type

    def plain_type(self) -> tree.TypeExpr:
        token = self.token
        match token.kind:
            case "(":
                return self.tuple_type()
            case "[":
                return self.array_type()
            case "name" if token.text == "Tensor" and self.peek().kind in ("[", "<"):
                return self.tensor_type()
            case "name" | "reserved" | "crate":
                path = self.path("a type")
                generics = self.comma_list(">", self.generic_arg) if self.take("<") else None
                return tree.NamedType(self.since(token.start), path, generics)
            case _:
                if self.keyword_as_name():
                    return tree.NamedType(self.span(token), self.path("a type"), None)
                raise self.expected("a type")

    def tuple_type(self) -> tree.TypeExpr:
        start = self.advance().start
        items = self.comma_list(")", self.type_expr, tree.BadType)
        comma = self.tokens[self.at - 2].kind == ","
        if len(items) == 1 and not comma:
            inner = items[0].span
            self.report(
                "a type takes no parentheses",
                self.since(start),
                help=Help(
                    "remove them; a tuple of one is `(T,)`",
                    (Edit(self.since(start), inner.text),),
                ),
            )
            return items[0]
        return tree.TupleTypeExpr(self.since(start), items)

    def array_type(self) -> tree.ArrayTypeExpr:
        opened = self.advance()
        self.enter()
        element = self.type_expr()
        self.expect(";", "and the length of the array", opened)
        length = self.arith()
        self.expect("]", "to close the array type", opened)
        self.leave()
        return tree.ArrayTypeExpr(self.since(opened.start), element, length)

    def tensor_type(self) -> tree.TypeExpr:
        start = self.advance().start
        if self.token.kind == "<":
            raise self.fail("a tensor type takes square brackets", help="write `Tensor[B, S; f32]`")
        opened = self.advance()
        self.enter()
        shape: list[tree.Expr | tree.PackRef] = []
        while self.token.kind not in (";", "]"):
            shape.append(self.dim())
            if not self.take(","):
                break
        if self.token.kind == "]":
            raise self.fail(
                "a tensor type ends in `;` and its dtype",
                help=self.dtype_help(shape),
                related=(Label(self.span(opened), "opened here"),),
            )
        if self.token.kind != ";":
            related = (Label(self.span(opened), "opened here"),)
            raise self.expected("`,` or `;` in the tensor type", related=related)
        semicolon = self.advance()
        dtype = self.path("a dtype")
        self.expect("]", "to close the tensor type", opened)
        self.leave()
        whole = self.since(start)
        if not shape:
            self.report(
                "a tensor of rank 0 is written as its scalar",
                Span(self.source, opened.start, semicolon.end),
                help=self.replace(f"write `{dtype.text}`", whole, dtype.text),
            )
        return tree.TensorTypeExpr(whole, tuple(shape), dtype)

    def dtype_help(self, shape: list[tree.Expr | tree.PackRef]) -> Help | str:
        """If the last dimension looks like a dtype, the comma before it was meant as a `;`."""
        if len(shape) > 1 and isinstance(shape[-1], tree.Name):
            dtype = shape[-1].text
            between = Span(self.source, shape[-2].span.end, shape[-1].span.start)
            return self.replace(f"write `; {dtype}]` if `{dtype}` is the dtype", between, "; ")
        return "write `Tensor[B, S; f32]`"

    def dim(self) -> tree.Expr | tree.PackRef:
        return self.pack() if self.token.kind == "*" else self.expr()

    def generic_arg(self) -> tree.Expr:
        if self.token.kind == "*":
            pack = self.pack()
            self.report(
                "a pack is written as a list here",
                pack.span,
                help=self.replace("put brackets around", pack.span, f"[{pack.span.text}]"),
            )
            return tree.ShapeLit(pack.span, (pack,))
        value = self.arith()
        kind = self.token.kind
        if kind == "<":
            raise self.fail(
                "a generic argument is a dimension, a dtype or a list of dimensions",
                help="inside generic arguments a comparison needs parentheses",
            )
        if kind in ("==", "!=", "<=", "&&", "||"):
            raise self.fail(
                f"inside generic arguments `{kind}` needs parentheses",
            )
        return value

    # ------------------------------------------------------------ expressions

    def arith(self) -> tree.Expr:
        return self.expr(_ARITH, _ARITH)

    def expr(self, level: int = _LOOSEST, floor: int = _LOOSEST) -> tree.Expr:
        """An expression of operators that bind at least as tight as `level`.

        `floor` is the loosest level this place allows: what a reduction's body extends to.
        """
        start = self.token.start
        left = self.branching(level > floor) if self.branches() else self.operand(floor)
        height = self.height
        while True:
            token = self.token
            op = token.kind
            if op == NAME and token.text in _WORD_OPERATORS and self.word_operator(token):
                op = _WORD_OPERATORS[token.text]
            binding = _BINDING.get(op, 0)
            if binding < level or binding == 0:
                self.height = height
                return left
            if op != token.kind:
                self.report(
                    f"`{token.text}` is written `{op}`",
                    self.span(token),
                    help=self.replace(f"write `{op}`", self.span(token), op),
                )
            self.advance()
            right = self.expr(binding + 1, floor)
            height = max(height, self.height) + 1
            self.grow(height)
            left = tree.Binary(self.since(start), op, self.span(token), left, right)

    def word_operator(self, token: Token) -> bool:
        """Whether `and` or `or` stands between operands here, and is not a name."""
        return self.peek().kind in _BEGINS_EXPR and not self.first_on_line(self.at)

    def branches(self) -> bool:
        return self.token.kind in ("if", "match")

    def branching(self, is_operand: bool) -> tree.Expr:
        """An `if` or `match`; as an operand it needs parentheses."""
        word = self.token.text
        value = self.if_() if word == "if" else self.match_()
        if is_operand or self.token.kind in _BINDING:
            edges = (
                Edit(Span(self.source, value.span.start, value.span.start), "("),
                Edit(Span(self.source, value.span.end, value.span.end), ")"),
            )
            self.report(
                f"`{word}` as an operand needs parentheses",
                Span(self.source, value.span.start, value.span.start + len(word)),
                help=Help("put parentheses around it", edges),
            )
        return value

    def operand(self, floor: int) -> tree.Expr:
        """Unary operators, a primary, and what follows it: fields, subscripts and calls."""
        prefixes: list[Token] = []
        while self.token.kind in _PREFIXES:
            prefixes.append(self.advance())
        start = self.token.start
        negated = bool(prefixes) and prefixes[-1].kind == "-"
        value = self.branching(True) if self.branches() else self.primary(floor, negated)
        value = self.postfix(value, start)
        for prefix in reversed(prefixes):
            self.grow(self.height + 1)
            op = cast(Literal["!", "-", "+"], prefix.kind)
            value = tree.Unary(self.since(prefix.start), op, value)
        return value

    def postfix(self, value: tree.Expr, start: int) -> tree.Expr:
        while True:
            height = self.height
            match self.token.kind:
                case "(":
                    closes = self.partner[self.at]
                    if closes >= 0 and self.tokens[closes + 1].kind == "=>":
                        return value  # the pattern of the next arm
                    value = self.call(value, start, None)
                case "<":
                    if not self.opens_generics():
                        return value
                    self.advance()
                    generics = self.comma_list(">", self.generic_arg)
                    height = max(height, self.height)
                    value = self.call(value, start, generics)
                case "[":
                    self.advance()
                    items = self.comma_list("]", self.index_item)
                    if not items:
                        self.report("an index is missing", self.since(self.last_end - 2))
                    value = tree.Index(self.since(start), value, items)
                case ".":
                    self.advance()
                    name = self.field()
                    value = tree.Field(self.since(start), value, name)
                case _:
                    return value
            self.grow(max(height, self.height) + 1)

    def opens_generics(self) -> bool:
        """Whether `<` follows a name and its `>` is directly followed by `(`."""
        closes = self.angle[self.at]
        return closes >= 0 and self.tokens[closes + 1].kind == "("

    def call(
        self, callee: tree.Expr, start: int, generics: tuple[tree.Expr, ...] | None
    ) -> tree.Call:
        self.expect("(", "and the arguments of the call")
        args = self.comma_list(")", self.arg, _bad_arg)
        named: tree.Arg | None = None
        for arg in args:
            if arg.name is not None:
                named = arg
            elif named is not None and not isinstance(arg.value, tree.BadExpr):
                self.report(
                    "positional arguments stand before named ones",
                    arg.span,
                    related=(Label(named.span, "a named argument"),),
                    help="name this one too, or move it up",
                )
                break
        return tree.Call(self.since(start), callee, generics, args)

    def arg(self) -> tree.Arg:
        start = self.token.start
        if self.token.kind == "*":
            raise self.fail("a pack stands inside brackets", help="write `[*S]`")
        name: tree.Ident | None = None
        if self.peek().kind == "=" and self.token.kind in KEYWORDS | {NAME, RESERVED}:
            name = self.name("the name of an argument")
            self.advance()
        value = self.expr()
        if self.token.kind == ":" and isinstance(value, tree.Name):
            raise self.fail(
                "an argument is named with `=`", help=self.replace("write `=`", self.here(), " =")
            )
        if self.token.kind == "=":
            raise self.stray_equals()
        return tree.Arg(self.since(start), name, value)

    def field(self) -> tree.Ident:
        if self.token.kind in (INT, FLOAT):
            raise self.fail(
                "the parts of a tuple have no numbers", help="take it apart: `let (a, b) = ...`"
            )
        return self.name("a name after `.`")

    def index_item(self) -> tree.Expr | tree.Slice | tree.Ellipsis_ | tree.PackRef:
        token = self.token
        if token.kind == "...":
            self.advance()
            return tree.Ellipsis_(self.span(token))
        if token.kind == "*":
            return self.pack()
        first = None if token.kind in (":", "::") else self.expr()
        if self.token.kind not in (":", "::"):
            if self.token.kind == ".." and first is not None:
                fix = self.replace("write `:`", self.here(), ":")
                raise self.fail("a slice is written `a:b`", help=fix)
            assert first is not None
            return first
        stop: tree.Expr | None = None
        step: tree.Expr | None = None
        height = 0 if first is None else self.height
        if self.take("::"):
            step = self.slice_step()
        else:
            self.advance()
            if self.token.kind not in (",", "]", ":"):
                stop = self.expr()
                height = max(height, self.height)
            if self.take(":"):
                step = self.slice_step()
        self.height = max(height, 0 if step is None else self.height)
        return tree.Slice(self.since(token.start), first, stop, step)

    def slice_step(self) -> tree.Expr:
        if self.token.kind in (",", "]"):
            raise self.expected("a step after the last `:`", help="leave the `:` out for step 1")
        return self.expr()

    # ------------------------------------------------------------ primaries

    def primary(self, floor: int, negated: bool) -> tree.Expr:
        token = self.token
        self.height = 0
        match token.kind:
            case "name":
                if token.text in REDUCTIONS and self.begins_reduction():
                    return self.reduction(floor)
                if token.text == "not" and self.negates():
                    return self.word_not(floor)
                self.advance()
                return tree.Name(self.span(token), token.text)
            case "int":
                return self.integer(negated)
            case "float":
                self.advance()
                return tree.FloatLit(self.span(token), cast(float, token.value))
            case "string":
                self.advance()
                return tree.StringLit(self.span(token), cast(str, token.value))
            case "true" | "false":
                self.advance()
                return tree.BoolLit(self.span(token), token.kind == "true")
            case "none":
                self.advance()
                return tree.NoneLit(self.span(token))
            case "some":
                return self.some()
            case "(":
                return self.parens()
            case "[":
                self.advance()
                items = self.comma_list("]", self.dim, tree.BadExpr)
                self.grow(self.height + 1)
                return tree.ShapeLit(self.since(token.start), items)
            case _:
                return self.no_operand()

    def integer(self, negated: bool) -> tree.IntLit:
        token = self.advance()
        value = cast(int, token.value)
        if value > _MAX_INT + negated:
            self.report(
                "this integer does not fit i64",
                self.span(token),
                code="E1005",
                label="at most 9223372036854775807",
            )
            value = 0
        return tree.IntLit(self.span(token), value)

    def some(self) -> tree.Some:
        start = self.advance().start
        opened = self.expect("(", "after `some`")
        self.enter()
        value = self.expr()
        self.take(",")
        self.expect(")", "to close `some`", opened)
        self.leave()
        self.grow(self.height + 1)
        return tree.Some(self.since(start), value)

    def parens(self) -> tree.Expr:
        start = self.advance().start
        items = self.comma_list(")", self.paren_item, tree.BadExpr)
        self.grow(self.height + 1)
        if len(items) == 1 and self.tokens[self.at - 2].kind != ",":
            return tree.Paren(self.since(start), items[0])
        return tree.Tuple(self.since(start), items)

    def paren_item(self) -> tree.Expr:
        value = self.expr()
        if self.token.kind == "=":
            raise self.stray_equals()
        return value

    def begins_reduction(self) -> bool:
        following = self.peek()
        if following.kind == "[":
            return True
        kinds = (following.kind, self.peek(2).kind, self.peek(3).kind, self.peek(4).kind)
        return kinds == ("<", NAME, ">", "[")

    def reduction(self, floor: int) -> tree.Reduction:
        token = self.advance()
        dtype: tree.Ident | None = None
        if self.take("<"):
            dtype = self.name("a dtype")
            self.advance()
        self.advance()
        if self.token.kind == "]" or self.token.kind in (INT, ":", "...", "::"):
            raise self.fail(
                f"`{token.text}[` begins a reduction, which names its indices: expected a name, "
                f"found {self.found()}",
                help=f"to subscript a value of your own, give it a name other than `{token.text}`",
            )
        indices = self.comma_list("]", self.index_name)
        self.enter()
        body = self.expr(floor, floor)
        self.leave()
        self.grow(self.height + 1)
        kind = cast(Literal["sum", "prod", "max", "min", "any", "all"], token.text)
        return tree.Reduction(self.since(token.start), kind, dtype, indices, body)

    def negates(self) -> bool:
        """Whether `not` stands before an operand, and is not a name of the user's."""
        return self.peek().kind in (NAME, "true", "false", "!") and not self.first_on_line(
            self.at + 1
        )

    def word_not(self, floor: int) -> tree.Unary:
        token = self.advance()
        gap = Span(self.source, token.start, self.token.start)
        self.report(
            "`not` is written `!`", self.span(token), help=self.replace("write `!`", gap, "!")
        )
        self.enter()
        value = self.operand(floor)
        self.leave()
        self.grow(self.height + 1)
        return tree.Unary(self.since(token.start), "!", value)

    def if_(self) -> tree.Expr:
        """`if` and its `else if` chain, read in a loop and built from the end."""
        heads: list[tuple[int, tree.Expr, tree.Expr]] = []
        height = 0
        while True:
            word = self.advance()
            self.enter()
            condition = self.condition()
            height = max(height, self.height)
            then = self.branch("`if`")
            height = max(height, self.height)
            self.leave()
            heads.append((word.start, condition, then))
            if self.token.kind == NAME and self.token.text in ("elif", "elsif", "elseif"):
                self.report(
                    f"`{self.token.text}` is written `else if`",
                    self.here(),
                    help=self.replace("write `else if`", self.here(), "else if"),
                )
                continue
            if self.token.kind != "else":
                raise self.fail(
                    "this `if` has no `else`",
                    at=self.span(word),
                    label="an `if` is an expression and needs both values",
                    help="add `else { ... }`",
                )
            self.advance()
            if self.token.kind != "if":
                break
        self.enter()
        value = self.branch("`else`")
        self.leave()
        self.height = max(height, self.height)
        for start, condition, then in reversed(heads):
            self.grow(self.height + 1)
            value = tree.If(self.since(start), condition, then, value)
        return value

    def branch(self, word: str) -> tree.Expr:
        opened = self.expect("{", f"and the value of {word}", help=self.compare_help())
        if self.token.kind in _STATEMENT_WORDS or (
            self.token.kind == NAME and self.peek().kind == "="
        ):
            raise self.fail(
                "a branch is one expression, without statements",
                help="compute it before with `let`, or in a `fn`",
            )
        value = self.expr()
        self.skip_semicolons()
        self.expect("}", f"to close the branch of {word}", opened, self.compare_help())
        return value

    def match_(self) -> tree.Match:
        start = self.advance().start
        self.enter()
        subject = self.expr()
        height = self.height
        opened = self.expect("{", "and the arms of the `match`")
        arms: list[tree.Arm] = []
        commas: list[Span] = []
        while self.token.kind != "}":
            if self.token.kind == "," and arms:
                commas.append(self.span(self.advance()))
                continue
            if self.token.kind == END:
                related = (Label(self.span(opened), "opened here"),)
                raise self.expected("a pattern or `}`", related=related)
            arms.append(self.arm())
            height = max(height, self.height)
        self.advance()
        self.leave()
        self.report_commas(commas, "the arms of a `match` stand without commas")
        self.grow(height + 1)
        return tree.Match(self.since(start), subject, tuple(arms))

    def arm(self) -> tree.Arm:
        start = self.token.start
        pattern = self.pattern()
        if self.token.kind in ("->", ":", "="):
            self.report(
                "an arm's value follows `=>`",
                self.here(),
                help=self.replace("write `=>`", self.here(), "=>"),
            )
            self.advance()
        elif self.token.kind == "|":
            raise self.fail("an arm has one pattern", help="write an arm for each")
        else:
            self.expect("=>", "after the pattern of an arm")
        if self.token.kind == "{":
            raise self.fail("an arm's value is an expression, without braces")
        value = self.expr()
        return tree.Arm(self.since(start), pattern, value)

    def no_operand(self) -> tree.Expr:
        """A word of the language where a value stands is taken for a name; the rest fails."""
        token = self.token
        if token.kind == "self" and self.peek().kind == ".":
            gone = Span(self.source, token.start, self.peek().end)
            self.report(
                "there is no `self`: members and methods are bare names",
                self.span(token),
                help=self.replace("remove `self.`", gone, ""),
            )
            self.advance()
            self.advance()
            return self.primary(_LOOSEST, False)
        if token.kind == "for":
            raise self.reserved_for()
        if token.kind == RESERVED and self.peek().kind in _BEGINS_EXPR - {"(", "[", "-", "+"}:
            raise self.fail(f"`{token.text}` is reserved for later versions", code="E1103")
        if token.kind == RESERVED or (
            self.keyword_as_name()
            and token.kind not in _STATEMENT_WORDS | {"else", "in", "where", "as", "module", "use"}
        ):
            self.reserved_as_name("a value")
            self.advance()
            return tree.Name(self.span(token), token.text)
        raise self.expected("an expression", help=self.operator_help())

    def operator_help(self) -> Help | str | None:
        """For operators of other languages: two signs side by side that Linnet reads as two."""
        if not self.adjacent(self.at):
            return None
        match self.tokens[self.at - 1].kind + self.token.kind:
            case "**":
                return "there is no power operator: write `x * x`, or `exp(log(x) * y)`"
            case "<<":
                return "write `shl(x, n)`"
            case ">>" | ">>=":
                return "write `shr(x, n)`"
            case "<>":
                before = Span(self.source, self.token.start - 1, self.token.end)
                return self.replace("write `!=`", before, "!=")
            case "===" | "!==":
                return self.replace("remove one `=`", self.here(), "")
            case _:
                return None


def _bad_arg(span: Span) -> tree.Arg:
    return tree.Arg(span, None, tree.BadExpr(span))
