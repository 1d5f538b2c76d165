"""Patterns, types and expressions; operators by binding power."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, cast

from linnet.diagnostics import Edit, Help, Label
from linnet.source import Span
from linnet.syntax import tree
from linnet.syntax.cursor import Cursor, Unreadable
from linnet.syntax.tokens import (
    END,
    FLOAT,
    INT,
    KEYWORDS,
    NAME,
    REDUCTIONS,
    RESERVED,
    STATEMENT_WORDS,
    STRING,
    Token,
    words,
)

_TIERS = ("||", "&&", "== !=", "< <= > >=", "|", "^", "&", "+ -", "* / %")  # loosest first
BINDING = {op: tier for tier, ops in enumerate(_TIERS, 1) for op in ops.split()}
_LOOSEST = 1
_ARITH = BINDING["|"]  # tighter than any comparison: generic arguments, clauses, bounds
_DTYPES = words("bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64")
_PREFIXES = words("! - +")
_WORD_OPERATORS = {"and": "&&", "or": "||"}
_MAX_INT = (1 << 63) - 1

BEGINS_EXPR = (
    _PREFIXES | words("true false none some ( [ if match for") | {NAME, INT, FLOAT, STRING}
)
_BEGINS_OWN = BEGINS_EXPR - words("( [ - +")  # cannot go on an expression
# Keywords that end an expression rather than being meant as a name in it.
_NOT_A_VALUE = STATEMENT_WORDS | words("else in where as module use pub")


class Expressions(Cursor, ABC):
    """Reads each form with one method; what the method returns is whole, and just read."""

    @abstractmethod
    def body(self, what: str, *, yields: bool = False) -> tuple[tree.Stmt, ...]:
        """The statements of a loop used as a value, in their braces."""

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
                if self.nothing_inside():
                    self.report("a tuple pattern names its parts", self.since(token.start))
                return tree.TuplePattern(self.since(token.start), items)
            case "true" | "false" | "int" | "float" | "string" | "-":
                raise self.fail(
                    "a pattern is a name, `_`, a tuple, `some(..)`, `none` or a variant",
                    help="compare values with `if`",
                )
            case _:
                return self.name_pattern()

    def name_pattern(self) -> tree.NamePattern | tree.VariantPattern:
        path = self.path("a name or a pattern")
        if len(path.parts) == 1:
            return tree.NamePattern(path.span, path.parts[0])
        *head, name = path.parts
        owner = tree.Path(head[0].span.to(head[-1].span), tuple(head))
        return tree.VariantPattern(path.span, owner, name)

    # ------------------------------------------------------------ types

    def type_until(self, *stops: str) -> tree.TypeExpr:
        """A type, or what stands in for one that could not be read."""
        start = self.token.start
        type = self.attempt(self.type_expr, may_stay=True, stops=frozenset(stops))
        return tree.BadType(self.since(start)) if type is None else type

    def type_expr(self) -> tree.TypeExpr:
        start = self.token.start
        self.height = 0
        type = self.plain_type()
        while self.take("?"):
            self.grow(self.height + 1)
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
                return self.named_type()
            case _ if self.keyword_as_name():
                return self.named_type()
            case _:
                raise self.expected("a type")

    def closing_angle(self) -> int:
        """Where the `<` at hand closes, in a type; -1 where nothing closes it."""
        depth = 0
        for at in range(self.at, min(self.at + 200, len(self.tokens))):  # enough for any type
            kind = self.tokens[at].kind
            depth += (kind == "<") - (kind == ">")
            if depth == 0:
                return at
            if kind in ("{", "}", END) or self.statement_boundary(at):
                break
        return -1

    def named_type(self) -> tree.NamedType:
        path = self.path("a type")
        generics = self.comma_list(">", self.generic_arg) if self.take("<") else None
        if self.token.kind == "[":
            raise self.fail(
                f"`{path.text}` takes no brackets",
                help="a tensor type is written `Tensor[B, S; f32]`, an array of blocks "
                "`[Layer<H>; N]`",
            )
        self.grow(self.height + 1)
        return tree.NamedType(self.since(path.span.start), path, generics)

    def tuple_type(self) -> tree.TypeExpr:
        start = self.advance().start
        items = self.comma_list(")", self.type_expr, tree.BadType)
        self.grow(self.height + 1)
        if len(items) == 1 and self.tokens[self.at - 2].kind != ",":
            whole = self.since(start)
            help = self.replace("remove them; a tuple of one is `(T,)`", whole, items[0].span.text)
            self.report("a type takes no parentheses", whole, help=help)
            return items[0]
        return tree.TupleTypeExpr(self.since(start), items)

    def array_type(self) -> tree.ArrayTypeExpr:
        opened = self.advance()
        self.enter()
        element = self.type_expr()
        height = self.height
        self.expect(";", "and the length of the array", opened)
        length = self.arith()
        self.expect("]", "to close the array type", opened)
        self.leave()
        self.grow(max(height, self.height) + 1)
        return tree.ArrayTypeExpr(self.since(opened.start), element, length)

    def tensor_type(self) -> tree.TypeExpr:
        start = self.advance().start
        if self.token.kind == "<":
            help_: Help | str = "write `Tensor[B, S; f32]`"
            closes = self.closing_angle()
            inner = self.source.text[self.token.end : self.tokens[closes].start]
            if closes >= 0 and ";" in inner:
                whole = self.between(start, self.tokens[closes].end)
                help_ = self.replace(f"write `Tensor[{inner}]`", whole, f"Tensor[{inner}]")
            failure = self.fail("a tensor type takes square brackets", help=help_)
            if closes < 0:
                raise failure
            self.move(closes + 1)
            return tree.BadType(self.since(start))
        opened = self.advance()
        self.enter()
        shape: list[tree.Expr | tree.PackRef] = []
        height = 0
        while self.token.kind not in (";", "]"):
            shape.append(self.dim())
            height = max(height, self.height)
            if not self.take(","):
                break
        if self.token.kind == "]":
            help = self.dtype_help(shape)
            raise self.fail("a tensor type ends in `;` and its dtype", help=help)
        if self.token.kind != ";":
            related = self.opened(opened)
            raise self.expected("`,` or `;` in the tensor type", related=related)
        self.advance()
        dtype = self.path("a dtype")
        self.expect("]", "to close the tensor type", opened)
        self.leave()
        self.grow(height + 1)
        whole = self.since(start)
        if not shape:
            help = self.fix(dtype.text, whole)
            self.report("a tensor of rank 0 is written as its scalar", whole, help=help)
        return tree.TensorTypeExpr(whole, tuple(shape), dtype)

    def dtype_help(self, shape: list[tree.Expr | tree.PackRef]) -> Help | str:
        """If the last dimension looks like a dtype, the comma before it was meant as a `;`."""
        if len(shape) > 1 and isinstance(shape[-1], tree.Name):
            dtype = shape[-1].text
            between = self.between(shape[-2].span.end, shape[-1].span.start)
            if dtype in _DTYPES:
                return self.replace(f"write `; {dtype}]`", between, "; ")
            text = f"write `; {dtype}]` if `{dtype}` is the dtype, `; f32]` after it if not"
            return self.replace(text, between, "; ", safe=False)
        return "write `Tensor[B, S; f32]`"

    def dim(self) -> tree.Expr | tree.PackRef:
        return self.pack() if self.token.kind == "*" else self.expr()

    def pack(self) -> tree.PackRef:
        start = self.advance().start
        name = self.name("the name of a pack after `*`")
        self.height = 0
        return tree.PackRef(self.since(start), name)

    def generic_arg(self) -> tree.Expr:
        if self.token.kind == "*":
            pack = self.pack()
            help = self.fix(f"[{pack.span.text}]", pack.span)
            self.report("a pack is written as a list here", pack.span, help=help)
            self.height = 1
            return tree.ShapeLit(pack.span, (pack,))
        value = self.arith()
        kind = self.token.kind
        if kind == "<":
            raise self.fail("a generic argument is a dimension, a dtype or a list of dimensions")
        if kind in ("==", "!=", "<=", "&&", "||"):
            raise self.fail(f"inside generic arguments `{kind}` needs parentheses")
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
            binding = BINDING.get(op, 0)
            if binding < level or binding == 0:
                self.height = height
                return left
            if op == token.kind:
                self.advance()
            else:
                self.mend(f"`{token.text}` is written `{op}`", op)
            right = self.expr(binding + 1, floor)
            height = max(height, self.height) + 1
            self.grow(height)
            left = tree.Binary(self.since(start), op, self.span(token), left, right)

    def word_operator(self, token: Token) -> bool:
        """Whether `and` or `or` stands between operands here, and is not a name."""
        return self.peek().kind in BEGINS_EXPR and not self.first_on_line(self.at)

    def branches(self) -> bool:
        return self.token.kind in ("if", "match", "for")

    def branching(self, is_operand: bool) -> tree.Expr:
        """An `if` or `match`, which as an operand needs parentheses, or a `for`."""
        word = self.token.text
        if word == "for":
            # The checker knows where it may stand.
            return self.for_(self.token.start, static=False, yields=True)
        value = self.if_() if word == "if" else self.match_()
        if is_operand or self.token.kind in BINDING:
            start, end = value.span.start, value.span.end
            edits = (Edit(self.between(start, start), "("), Edit(self.between(end, end), ")"))
            self.report(
                f"`{word}` as an operand needs parentheses",
                self.between(start, start + len(word)),
                help=Help("put parentheses around it", edits),
            )
        return value

    def operand(self, floor: int) -> tree.Expr:
        """Unary operators, a primary, and what follows it: fields, subscripts and calls."""
        prefixes: list[Token] = []
        while self.token.kind in _PREFIXES:
            prefixes.append(self.advance())
        while self.token.kind == "self" and self.peek().kind == ".":
            gone = self.between(self.token.start, self.peek().end)
            help = self.replace("remove `self.`", gone, "")
            self.report("there is no `self`: members are bare names", self.here(), help=help)
            self.move(self.at + 2)
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
                case "::" if self.peek().kind == "<":
                    help = self.replace("remove it", self.here(), "")
                    raise self.fail("generics follow the name", help=help)
                case "<":
                    if not self.opens_generics():
                        return value
                    self.advance()
                    generics = self.comma_list(">", self.generic_arg)
                    height = max(height, self.height)
                    value = self.call(value, start, generics)
                case "[":
                    bracket = self.advance()
                    items = self.comma_list("]", self.index_item, tree.BadExpr)
                    if self.nothing_inside():
                        self.report("an index is missing", self.since(bracket.start))
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
        value = self.whole_expr()
        if self.token.kind == ":" and isinstance(value, tree.Name):
            help = self.replace("write `=`", self.here(), " =")
            raise self.fail("an argument is named with `=`", help=help)
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
            if self.token.kind == "..":
                raise self.fail("a slice is written `a:b`", help=self.fix(":"))
            assert first is not None
            return first
        stop: tree.Expr | None = None
        height = self.height
        two = self.advance().kind == "::"
        if not two and self.token.kind not in (",", "]", ":"):
            stop = self.expr()
            height = max(height, self.height)
        step = self.slice_step() if two or self.take(":") else None
        self.grow(max(height, self.height) + 1)
        return tree.Slice(self.since(token.start), first, stop, step)

    def slice_step(self) -> tree.Expr:
        if self.token.kind in (",", "]"):
            raise self.expected("a step after the last `:`", help="leave the `:` out for step 1")
        return self.expr()

    def condition(self) -> tree.Expr:
        start = self.token.start
        left = self.expr()
        if self.token.kind != "=":
            return left
        height, equals = self.height, self.here()
        self.report("a condition compares with `==`", equals, help=self.compare_help())
        self.advance()
        right = self.expr()
        self.grow(max(height, self.height) + 1)
        return tree.Binary(self.since(start), "==", equals, left, right)

    def elsewhere_help(self) -> Help | str | None:
        """For what goes on after a value in another language."""
        match self.token.kind:
            case "if" | "?":
                return "a choice is written `if condition { x } else { y }`"
            case ",":
                return "several values are one tuple: `(a, b)`"
            case "as":
                return f"write `cast<{self.peek().text}>(...)`"
            case "{" if self.tokens[self.at - 1].kind == NAME:
                name = self.tokens[self.at - 1].text
                return f"a struct is built by naming its fields: `{name}(a = ..., b = ...)`"
            case _:
                return self.compare_help()

    def compare_help(self) -> Help | None:
        if self.token.kind != "=":
            return None
        return self.replace("to compare, write `==`", self.here(), "==", safe=False)

    def index_name(self) -> tree.Ident | tree.PackRef:
        return self.pack() if self.token.kind == "*" else self.name("the name of an index")

    def for_(self, start: int, *, static: bool, yields: bool = False) -> tree.For:
        """A loop from its `for` on; as a value it is as high as what stands in it."""
        outer, self.deepest = self.deepest, self.depth
        self.expect("for", "after `static`")
        name = self.name("the name of the loop's variable")
        self.expect("in", "after the name of the loop's variable")
        first = self.arith()
        stop: tree.Expr | None = None
        if self.token.kind == "..." or (self.token.kind, self.peek().kind) == ("..", "="):
            help = "write `a..b + 1` to include `b`"
            raise self.fail("a range is written `a..b` and ends before `b`", help=help)
        if self.take(".."):
            stop = self.arith()
        body = self.body("`static for`" if static else "`for`", yields=yields)
        height = self.deepest - self.depth
        self.deepest = max(outer, self.deepest)
        self.grow(height + 1)
        return tree.For(self.since(start), static, name, first, stop, body)

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
        items = self.comma_list(")", self.whole_expr, tree.BadExpr)
        self.grow(self.height + 1)
        if len(items) == 1 and self.tokens[self.at - 2].kind != ",":
            return tree.Paren(self.since(start), items[0])
        return tree.Tuple(self.since(start), items)

    def whole_expr(self) -> tree.Expr:
        """An expression that no `=` follows."""
        value = self.expr()
        if self.token.kind == "=":
            raise self.expected("an operator or the end of the value", help=self.compare_help())
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
        following = self.peek().kind
        return following in (NAME, "true", "false", "!") and not self.first_on_line(self.at + 1)

    def word_not(self, floor: int) -> tree.Unary:
        token = self.advance()
        gap = self.between(token.start, self.token.start)
        self.report("`not` is written `!`", self.span(token), help=self.fix("!", gap))
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
                    help=self.fix("else if"),
                )
                continue  # its first token is taken as the `if`
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
        assigns = self.token.kind == NAME and self.peek().kind == "="
        if assigns or self.token.kind in STATEMENT_WORDS:
            raise self.fail(
                "a branch is one expression, without statements",
                code="E2124" if self.token.kind == "yield" else "E1101",
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
                related = self.opened(opened)
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
            self.mend("an arm's value follows `=>`", "=>")
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
        if token.kind == RESERVED and self.peek().kind in _BEGINS_OWN:
            raise self.reserved_syntax()
        loops = token.kind == "yield" or (token.kind, self.peek().kind) == ("static", "for")
        if loops and not self.first_on_line(self.at):
            return self.no_loop_value()
        if token.kind == "self":
            self.report("there is no `self`: members are bare names", self.here())
            self.advance()
            return tree.Name(self.span(token), token.text)
        if token.kind in ("crate", "super") and self.peek().kind == ".":
            raise self.fail(
                "a module's path stands only in a `use` line",
                help="write `use crate.m` at the top, and `m.x` here",
            )
        if self.word_as_value() or token.kind == RESERVED:
            self.reserved_as_name()
            self.advance()
            return tree.Name(self.span(token), token.text)
        raise self.expected("an expression", help=self.operator_help())

    def word_as_value(self) -> bool:
        """Whether a keyword stands where a value does, as if it were a name."""
        return self.keyword_as_name() and self.token.kind not in _NOT_A_VALUE

    def no_loop_value(self) -> tree.Expr:
        """A `yield` or a `static for` where a value stands, read as what it was meant to be."""
        token = self.advance()
        if token.kind == "static":
            help = self.fix("for", self.between(token.start, self.token.end))
            self.report("a `static for` has no value", self.span(token), code="E2124", help=help)
            return self.for_(self.token.start, static=False, yields=True)
        help_text = "bind the loop: `let ys = for i in 0..n { yield ... }`"
        self.report("`yield` is not a value", self.span(token), code="E2124", help=help_text)
        self.enter()
        value = self.expr()
        self.leave()
        return value

    def reserved_syntax(self) -> Unreadable:
        return self.fail(f"`{self.token.text}` is reserved for later versions", code="E1103")

    def operator_help(self) -> Help | str | None:
        """For operators of other languages: two signs side by side that Linnet reads as two."""
        if self.token.kind == "where" and self.peek().kind == "(":
            return self.fix("select")
        last = self.tokens[max(self.at - 2, 0) : self.at]
        if [t.kind for t in last] in (["+", "+"], ["-", "-"]) and self.adjacent(self.at - 1):
            sign = last[0].kind
            return f"there is no `{sign}{sign}`: write `i = i {sign} 1`"
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
                return self.fix("!=", self.between(self.token.start - 1, self.token.end))
            case "===" | "!==":
                return self.replace("remove one `=`", self.here(), "")
            case _:
                return None


def _bad_arg(span: Span) -> tree.Arg:
    return tree.Arg(span, None, tree.BadExpr(span))
