"""Recursive descent from tokens to the tree: the file, its items and their statements."""

from __future__ import annotations

from typing import Literal, cast

from linnet.diagnostics import Edit, Findings, Help, Label
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.syntax.cursor import Unreadable
from linnet.syntax.depth import deep_stack
from linnet.syntax.exprs import BEGINS_EXPR, Expressions
from linnet.syntax.tokens import (
    BAD,
    END,
    FUNCTION_WORDS,
    GENERIC_KINDS,
    KEYWORDS,
    MEMBER_WORDS,
    NAME,
    RESERVED,
    STATEMENT_WORDS,
    STRING,
    TOP_WORDS,
    Token,
    words,
)

_RELATIONS = words("== != < <= > >=")
_ASSIGNED_OPERATORS = words("+ - * / % & | ^")
_OTHER_FN_WORDS = words("def func function fun proc")
# What a value cannot begin with and yet is meant as one.
_BEGINS_MISTAKE = frozenset({RESERVED, BAD, "self", "crate", "super"})
_IMPL = "write `impl Trait<...>` among the members of the block, which has the methods"
_PARTS_TAKE_DOTS = "the parts of a module path are separated by `.`"


def parse(source: Source, findings: Findings) -> tree.File:
    """The tree of a file, whatever its text; every mistake is in `findings`."""
    with deep_stack():
        return _Parser(source, findings).file()


def parse_text(text: str, name: str = "<text>") -> tuple[tree.File, Findings]:
    """The tree of a text and what was found in it."""
    findings = Findings()
    return parse(Source(name, text), findings), findings


class _Parser(Expressions):
    returns = False  # the body at hand ends in `return`
    yields = False  # it ends in `yield`
    in_trait = False
    lost_if = False  # an `if` with statements in it was reported in this function

    # ------------------------------------------------------------ file

    def file(self) -> tree.File:
        module = self.module()
        self.no_module = self.tokens[0].kind != "module"
        uses: list[tree.Use] = []
        items: list[tree.Item] = []
        while self.token.kind != END:
            if not self.skip_semicolons():
                self.attempt(lambda: self.top_level(uses, items))
        self.report_semicolons()
        self.report_reserved()
        whole = self.between(0, len(self.source.text))
        return tree.File(whole, self.source, module, tuple(uses), tuple(items), self.comments)

    def module(self) -> tree.Path | None:
        if self.take("module"):
            return self.attempt(self.declared_path, may_stay=True)
        name = _module_name(self.source.name)
        first = self.token.start if self.token.kind != END else 0
        start = self.between(first, first)
        help: Help | str = self.replace(f"add `module {name}` above", start, f"module {name}\n\n")
        if any(token.kind == "module" for token in self.tokens):
            help = "move the `module` line up to here"
        self.report(
            "a file begins with its `module` declaration", self.here(), code="E1102", help=help
        )
        return None

    def declared_path(self) -> tree.Path:
        path = self.module_path()
        if self.token.kind == "::":
            raise self.fail(_PARTS_TAKE_DOTS, help=self.fix("."))
        return path

    def top_level(self, uses: list[tree.Use], items: list[tree.Item]) -> None:
        match self.token.kind:
            case "use":
                if items:
                    self.report(
                        "`use` lines stand before the first item",
                        self.here(),
                        related=(Label(items[0].name.span, "the first item"),),
                        help="move it up, below `module`",
                    )
                uses.append(self.use())
            case "module":
                if self.no_module:  # its absence was reported; this is where it went
                    self.advance()
                    self.attempt(self.declared_path, may_stay=True)
                    return
                raise self.fail("a file has one `module` declaration, its first line")
            case "}":
                help = "remove it, or look for one too many above"
                raise self.fail("this `}` closes nothing", help=help)
            case _:
                items.append(self.item())

    def use(self) -> tree.Use:
        start = self.advance().start
        path = self.dotted(self.module_path(before="{"))
        if self.token.kind == ".":
            self.mend("the names to import follow `::`", "::")
            mended = self.braced_names()
            return tree.Use(self.since(start), path, mended)
        if self.token.kind == "{":
            help = self.replace("write `::{`", self.gap(), "::")
            raise self.expected("`::` before the names", help=help)
        if self.token.kind == "as":
            help_text = "import what you need from it: `use m::{a as b}`"
            raise self.fail("a module takes no other name", help=help_text)
        names: tuple[tree.UseName, ...] | None = None
        if self.take("::"):
            if self.token.kind == "*":
                raise self.fail("there are no `*` imports", help="list the names: `{a, b}`")
            names = self.braced_names() if self.token.kind == "{" else (self.single_use_name(),)
        return tree.Use(self.since(start), path, names)

    def dotted(self, path: tree.Path) -> tree.Path:
        """The whole path where its parts are separated by `::`, which is reported."""
        parts, colons = list(path.parts), []
        while self.token.kind == "::" and self.peek(2).kind == "::":
            colons.append(self.span(self.advance()))
            parts.append(self.name("a part of a module path"))
        if not colons:
            return path
        help = Help("write `.`", tuple(Edit(at, ".") for at in colons), True)
        self.report(_PARTS_TAKE_DOTS, colons[0], help=help)
        return tree.Path(self.since(path.span.start), tuple(parts))

    def braced_names(self) -> tuple[tree.UseName, ...]:
        start = self.advance().start
        names = self.comma_list("}", self.use_name)
        if self.nothing_inside():
            self.report("this imports nothing", self.since(start), help="name what to import")
        return names

    def use_name(self) -> tree.UseName:
        name = self.name("a name to import")
        alias = self.name("another name") if self.take("as") else None
        return tree.UseName(self.since(name.span.start), name, alias)

    def single_use_name(self) -> tree.UseName:
        colons = self.span(self.tokens[self.at - 1])
        name = self.use_name()
        if self.token.kind == "::":
            raise self.fail(_PARTS_TAKE_DOTS, at=colons, help=self.fix(".", colons))
        if name.alias is not None:
            help = self.fix("{" + name.span.text + "}", name.span)
            self.report("`as` stands inside braces", name.span, help=help)
        return name

    # ------------------------------------------------------------ items

    def item(self) -> tree.Item:
        first = self.token
        public = self.take("pub")
        match self.token.kind:
            case "fn" | "op" | "entry":
                return self.function(first, public)
            case "block" | "trait":
                return self.block(first, public)
            case "const":
                return self.const(first, public)
            case "type":
                return self.alias(first, public)
            case "struct":
                return self.struct(first, public)
            case "enum":
                return self.enum(first, public)
            case _ if self.begins_foreign_fn():
                return self.function(first, public)
            case _:
                raise self.no_item()

    def begins_foreign_fn(self) -> bool:
        return (
            self.token.kind == NAME
            and self.token.text in _OTHER_FN_WORDS
            and self.peek().kind == NAME
        )

    def no_item(self) -> Unreadable:
        kind, text = self.token.kind, self.token.text
        if kind == RESERVED or kind == "extern":
            error = self.reserved_syntax()
            if self.peek().kind in FUNCTION_WORDS:
                self.move(self.at + 2)  # not a function of its own
            return error
        if kind == "impl":
            return self.fail("an `impl` stands inside a `block`", help=_IMPL)
        if kind in MEMBER_WORDS:
            return self.fail(f"a `{text}` stands inside a `block`")
        if kind in STATEMENT_WORDS:
            help = "a value of the whole module is a `const`" if kind == "let" else None
            return self.fail(f"a `{text}` stands inside a function", help=help)
        if kind == NAME and text in ("import", "from"):
            help = "imports are written `use std.nn.linear::{Linear}`"
            return self.fail(f"`{text}` is not part of the language", help=help)
        if kind == NAME and text in ("class", "model", "component"):
            help = "a component is a `block`"
            return self.fail(f"`{text}` is not part of the language", help=help)
        return self.expected(
            "an item (`fn`, `op`, `entry`, `block`, `trait`, `struct`, `enum`, `type` or `const`)"
        )

    def const(self, first: Token, public: bool) -> tree.Const:
        self.advance()
        name = self.name("the name of a constant")
        type = self.annotation()
        self.expect("=", "and the value of the constant")
        value = self.value()
        return tree.Const(self.since(first.start), first.docs, public, name, type, value)

    def alias(self, first: Token, public: bool) -> tree.Alias:
        self.advance()
        name = self.name("the name of a type")
        generics = self.generics()
        self.expect("=", "and the type it stands for")
        of = self.type_until()
        return tree.Alias(self.since(first.start), first.docs, public, name, generics, of)

    def struct(self, first: Token, public: bool) -> tree.Struct:
        self.advance()
        name = self.name("the name of a struct")
        generics = self.generics()
        where = self.where()
        opened = self.expect("{", "and the fields of the struct")
        outer = self.close, self.boundary
        self.close, self.boundary = self.partner[self.at - 1], self.field_boundary
        fields: list[tree.StructField] = []
        commas: list[Span] = []
        while not self.at_end():
            if self.token.kind == "," and fields:
                commas.append(self.span(self.advance()))
            elif not self.skip_semicolons():
                field = self.attempt(self.struct_field)
                fields.extend(() if field is None else (field,))
        self.close, self.boundary = outer
        self.end_braces(f"the struct `{name.text}`", opened)
        self.report_commas(commas, "the fields of a struct stand without commas")
        whole = self.since(first.start)
        return tree.Struct(whole, first.docs, public, name, generics, where, tuple(fields))

    def field_boundary(self, at: int) -> bool:
        kinds = self.tokens[at].kind, self.tokens[at + 1].kind
        return kinds in ((NAME, ":"), (RESERVED, ":")) or self.item_boundary(at)

    def struct_field(self) -> tree.StructField:
        name = self.name("the name of a field")
        self.expect(":", "and the type of the field")
        type = self.type_until("=")
        default = self.value() if self.take("=") else None
        return tree.StructField(self.since(name.span.start), name, type, default)

    def enum(self, first: Token, public: bool) -> tree.Enum:
        self.advance()
        name = self.name("the name of an enum")
        self.expect("{", "and the variants of the enum")
        variants = self.comma_list("}", lambda: self.name("the name of a variant"))
        if self.nothing_inside():
            self.report("an enum has a variant or more", self.since(name.span.start))
        return tree.Enum(self.since(first.start), first.docs, public, name, variants)

    def generics(self) -> tuple[tree.GenericParam, ...]:
        return self.comma_list(">", self.generic_param) if self.take("<") else ()

    def generic_param(self) -> tree.GenericParam:
        start = self.token.start
        pack = self.take("*")
        name = self.name("the name of a generic")
        if self.token.kind in (",", ">"):
            help = (
                f"write `{name.text}: Dim` for a size, `{name.text}: Float` for a dtype, "
                f"`*{name.text}: Shape` for a pack of sizes"
            )
            raise self.fail(f"the generic `{name.text}` needs a kind", at=name.span, help=help)
        self.expect(":", "and the kind of the generic")
        if self.token.text not in GENERIC_KINDS:
            raise self.expected("a kind (Dim, Shape, DType, Numeric, Integer or Float)")
        kind = self.name("a kind")
        if kind.text == "Shape" and not pack:
            help_fix = self.fix(f"*{name.text}", name.span)
            self.report("a generic of kind `Shape` is a pack", name.span, help=help_fix)
        elif pack and kind.text != "Shape":
            help_fix = self.fix("Shape", kind.span)
            self.report("the kind of a pack is `Shape`", kind.span, help=help_fix)
            kind = tree.Ident(kind.span, "Shape")
        pack = kind.text == "Shape"
        default = self.generic_arg() if self.take("=") else None
        return tree.GenericParam(self.since(start), name, pack, kind, default)

    def where(self) -> tuple[tree.Relation, ...]:
        if not self.take("where"):
            return ()
        return self.attempt(self.relations, may_stay=True, stops=frozenset("{")) or ()

    def relations(self) -> tuple[tree.Relation, ...]:
        relations = [self.relation()]
        while self.token.kind in (",", "&&"):
            if self.token.kind == "&&":
                self.mend("the clauses of a `where` are separated by commas", ",")
            else:
                self.advance()
            if self.token.kind == "{" or self.at_end() or self.item_boundary(self.at):
                break
            relations.append(self.relation())
        if self.token.kind in _RELATIONS:
            help = "write two clauses: `0 < a, a < b`"
            raise self.fail("a clause compares two values", help=help)
        return tuple(relations)

    def relation(self) -> tree.Relation:
        start = self.token.start
        left = self.arith()
        op = self.token.kind
        if op == "=":
            self.mend("a clause compares with `==`", "==")
            op = "=="
        elif op in _RELATIONS:
            self.advance()
        else:
            raise self.expected("a comparison (`==`, `!=`, `<`, `<=`, `>` or `>=`)")
        right = self.arith()
        return tree.Relation(self.since(start), left, op, right)

    def function(self, first: Token, public: bool) -> tree.Fn:
        word = self.token.text
        if word in _OTHER_FN_WORDS:
            self.mend(f"a function is declared with `fn`, not `{word}`", "fn")
            word = "fn"
        else:
            self.advance()
        name = self.name(f"the name of the `{word}`")
        generics = self.generics()
        angles = "generics stand in `<...>`, as in `<N: Dim>`" if self.token.kind == "[" else None
        self.expect("(", f"and the parameters of `{name.text}`", help=angles)
        params = tuple(p for p in self.comma_list(")", self.param) if p is not None)
        result = self.result()
        where = self.where()
        self.lost_if = False
        required = self.in_trait and self.at_method_end()
        body = () if required else self.body(f"`{name.text}`", returns=result is not None)
        end = self.between(max(self.last_end - 1, first.start), self.last_end)
        kind = cast(Literal["fn", "op", "entry"], word)
        whole = self.since(first.start)
        return tree.Fn(
            whole,
            first.docs,
            public,
            kind,
            name,
            generics,
            params,
            result,
            where,
            body,
            end,
            required,
        )

    def at_method_end(self) -> bool:
        """Whether a trait's method ends here, without a body."""
        if self.token.kind in ("{", ":", "="):
            return False
        return self.at_end() or self.item_boundary(self.at) or self.first_on_line(self.at)

    def param(self) -> tree.Param | None:
        """A parameter; None for `self`, which is reported."""
        if self.token.kind == "self":
            end = self.peek()
            gone = self.between(self.token.start, end.start)
            if end.kind == ",":
                gone = self.between(self.token.start, self.peek(2).start)
            help_fix = self.replace("remove it", gone, "")
            self.report("there is no `self`: members are bare names", self.here(), help=help_fix)
            self.advance()
            return None
        name = self.name("the name of a parameter")
        if self.token.kind in (",", ")", "="):
            help = f"write `{name.text}: f32`, or what it is"
            raise self.fail(f"the parameter `{name.text}` needs a type", at=name.span, help=help)
        self.expect(":", "and the type of the parameter")
        type = self.type_until(",", "=", ")")
        default = self.expr() if self.take("=") else None
        return tree.Param(self.since(name.span.start), name, type, default)

    def result(self) -> tree.TypeExpr | None:
        if self.token.kind in (":", "=>") and not self.first_on_line(self.at + 1):
            self.mend("the result type follows `->`", "->")
        elif not self.take("->"):
            return None
        return self.type_until("where", "{")

    def block(self, first: Token, public: bool) -> tree.Block:
        """A block or a trait."""
        word = self.advance().text
        name = self.name(f"the name of a {word}")
        generics = self.generics()
        if self.token.kind == "(":
            weights = "; weights are `param` members" if word == "block" else ""
            help = f"sizes and dtypes are generics (`<H: Dim>`){weights}"
            raise self.fail(f"a {word} takes no parameters", help=help)
        where = self.where()
        what = "methods" if word == "trait" else "members"
        opened = self.expect("{", f"and the {what} of `{name.text}`")
        self.close, self.in_block = self.partner[self.at - 1], True
        self.in_trait = word == "trait"
        impls: list[tree.Impl] = []
        members: list[tree.Member] = []
        methods: list[tree.Fn] = []
        commas: list[Span] = []
        self.enter()
        while not self.at_block_end():
            if self.token.kind == "," and members:
                commas.append(self.span(self.advance()))
            elif not self.skip_semicolons():
                self.attempt(lambda: self.member_or_method(impls, members, methods))
        self.leave()
        self.close, self.in_block, self.in_trait = -1, False, False
        self.end_braces(f"the {word} `{name.text}`", opened)
        self.report_commas(commas, f"the {what} of a {word} stand without commas")
        make = tree.Trait if word == "trait" else tree.Block
        whole, docs = self.since(first.start), first.docs
        held = tuple(impls), tuple(members), tuple(methods)
        return make(whole, docs, public, name, generics, where, *held)

    def at_block_end(self) -> bool:
        if self.close >= 0 or self.token.kind in (END, "}", "use", "module"):
            return self.token.kind == END or self.at == self.close or self.close < 0
        word = self.peek().kind if self.token.kind == "pub" else self.token.kind
        return word in TOP_WORDS or word == "op"

    def member_or_method(
        self, impls: list[tree.Impl], members: list[tree.Member], methods: list[tree.Fn]
    ) -> None:
        first = self.token
        public = self.take("pub")
        kind = self.token.kind
        if kind in MEMBER_WORDS:
            if public:
                gone = self.between(first.start, self.token.start)
                help = self.replace("remove it", gone, "")
                article = "an" if kind == "impl" else "a"
                self.report(f"{article} `{kind}` takes no `pub`", self.span(first), help=help)
            if self.in_trait:
                gives = "a block has it, and a method that gives it: `fn weight() -> Tensor[...]`"
                raise self.fail(f"a trait has no `{kind}`", help=None if kind == "impl" else gives)
            if kind == "impl":
                impls.append(self.impl())
            else:
                members.append(self.member(first))
        elif kind in ("fn", "entry") or self.begins_foreign_fn():
            methods.append(self.function(first, public))
        elif kind == "op":
            help_text = "a method is a `fn`; an `op` takes what it needs as parameters"
            raise self.fail("an `op` stands outside blocks", help=help_text)
        elif kind in TOP_WORDS:
            raise self.fail(f"a `{kind}` stands outside blocks")
        elif kind in (RESERVED, "extern"):
            raise self.reserved_syntax()
        elif kind == NAME and self.peek().kind == ":":
            raise self.fail(
                f"expected `param`, `buffer`, `state` or `sub` before `{self.token.text}`",
                help="a weight is a `param`, a child block a `sub`",
            )
        else:
            member = "a member (`param`, `buffer`, `state`, `sub`), `impl`, "
            raise self.expected(f"{'' if self.in_trait else member}`fn` or `entry`")

    def impl(self) -> tree.Impl:
        start = self.advance().start
        trait = self.type_until("{")
        if self.token.kind in (NAME, "for", "{"):
            raise self.fail("an `impl` is a line of the block that has the methods", help=_IMPL)
        return tree.Impl(self.since(start), trait)

    def member(self, first: Token) -> tree.Member:
        kind = cast(Literal["param", "buffer", "state", "sub"], self.advance().text)
        name = self.name(f"the name of the `{kind}`")
        self.expect(":", f"and the type of the `{kind}`")
        type = self.type_until("=")
        value = self.value() if self.take("=") else None
        return tree.Member(self.since(first.start), first.docs, kind, name, type, value)

    # ------------------------------------------------------------ statements

    def body(
        self, what: str, *, returns: bool = False, yields: bool = False
    ) -> tuple[tree.Stmt, ...]:
        braces = {":": "a body stands in `{ ... }`", "=": "a body stands in `{ return ... }`"}
        help = braces.get(self.token.kind)
        opened = self.expect("{", f"and the body of {what}", help=help)
        outer = self.close, self.boundary, self.returns, self.yields
        self.close, self.boundary = self.partner[self.at - 1], self.statement_boundary
        self.returns, self.yields = returns, yields
        statements: list[tree.Stmt] = []
        self.enter()
        while not self.at_end():
            if not self.skip_semicolons():
                statement = self.attempt(self.statement)
                statements.extend(() if statement is None else (statement,))
        self.leave()
        self.close, self.boundary, self.returns, self.yields = outer
        self.end_braces(f"the body of {what}", opened)
        return tuple(statements)

    def at_end(self) -> bool:
        """Whether the braces being read end here, by their bracket or for lack of one."""
        if self.token.kind == END or self.at == self.close:
            return True
        return self.close < 0 and (self.token.kind == "}" or self.item_boundary(self.at))

    def end_braces(self, what: str, opened: Token) -> None:
        if self.take("}"):
            return
        if self.failed_at != self.at:
            message = f"expected `}}` to close {what}, found {self.found()}"
            self.report(message, self.here(), related=self.opened(opened))
        self.failed_at = self.at

    def statement(self) -> tree.Stmt | None:
        """A statement; None for what is none but could be read, and is reported."""
        match self.token.kind:
            case "let":
                return self.let()
            case "var":
                return self.var(self.advance().start)
            case "return":
                return self.return_()
            case "static":
                return self.for_(self.advance().start, static=True)
            case "for":
                return self.for_(self.token.start, static=False)
            case "yield":
                return self.yield_()
            case "while":
                return self.while_()
            case "name" if self.peek().kind == "=":
                return self.assign()
            case _:
                return self.other_statement()

    def let(self) -> tree.Let | tree.IndexLet | tree.Var:
        start = self.advance().start
        if self.token.kind == RESERVED and self.token.text == "mut":
            help = self.fix("var", self.between(start, self.token.end))
            self.report("a local that changes is a `var`", self.here(), help=help)
            self.advance()
            return self.var(start)
        if self.token.kind == NAME and self.peek().kind == "[":
            return self.index_let(start)
        return self.plain_let(start)

    def plain_let(self, start: int) -> tree.Let:
        pattern = self.pattern()
        type = self.annotation()
        self.bind("let")
        value = self.value()
        return tree.Let(self.since(start), pattern, type, value)

    def index_let(self, start: int) -> tree.IndexLet:
        name = self.name("a name")
        opened = self.advance()
        outputs = self.comma_list("]", self.index_name)
        if self.nothing_inside():
            brackets = self.since(opened.start)
            help = self.replace("for a scalar, remove the brackets", brackets, "")
            self.report("an element definition names its indices", brackets, help=help)
        self.bind("let")
        value = self.value()
        return tree.IndexLet(self.since(start), name, outputs, value)

    def var(self, start: int) -> tree.Var:
        name = self.name("the name of a local")
        type = self.annotation()
        self.bind("var")
        value = self.value()
        return tree.Var(self.since(start), name, type, value)

    def bind(self, word: str) -> None:
        if self.token.kind == "==":
            self.mend(f"`{word}` binds with `=`; `==` compares", "=")
        else:
            help = "a tuple is taken apart in parentheses: `let (a, b) = ...`"
            comma = help if self.token.kind == "," else None
            self.expect("=", f"and the value of the `{word}`", help=comma)

    def annotation(self) -> tree.TypeExpr | None:
        if not self.take(":"):
            return None
        if self.token.kind == "=" and self.adjacent(self.at):
            whole = self.between(self.token.start - 1, self.token.end)
            self.report("a value is bound with `=`", whole, help=self.fix("=", whole))
            return None
        return self.type_until("=")

    def value(self) -> tree.Expr:
        """An expression, or what stands in for one that could not be read."""
        start = self.token.start
        value = self.attempt(self.whole_expr, may_stay=True)
        return tree.BadExpr(self.since(start)) if value is None else value

    def return_(self) -> tree.Return:
        start = self.advance().start
        assigns = self.token.kind == NAME and self.peek().kind == "="
        begins = self.token.kind in BEGINS_EXPR | _BEGINS_MISTAKE
        if assigns or not (begins or self.word_as_value()):
            return tree.Return(self.since(start), None)
        value = self.value()
        return tree.Return(self.since(start), value)

    def assign(self) -> tree.Assign:
        name = self.name("a name")
        self.advance()
        value = self.value()
        return tree.Assign(self.since(name.span.start), name, value)

    def yield_(self) -> tree.Yield:
        start = self.advance().start
        value = self.value()
        return tree.Yield(self.since(start), value)

    def while_(self) -> tree.While:
        start = self.advance().start
        condition = self.condition()
        body = self.body("`while`")
        return tree.While(self.since(start), condition, body)

    # ------------------------------------------------------------ what is no statement

    def other_statement(self) -> tree.Let | tree.Return | tree.Yield | None:
        token, following, after = self.token, self.peek(), self.peek(2)
        kind = token.kind
        if not self.first_on_line(self.at) and self.tokens[self.at - 1].kind not in ("{", "}"):
            what = f"an operator or a new statement, found {self.found()}"
            help = self.elsewhere_help() or self.reduction_help()
            raise self.fail(f"expected {what}", help=help)
        if kind == RESERVED or kind == "extern":
            raise self.reserved_syntax()
        if kind == "else" and self.lost_if:
            self.failed_at = self.at  # reported with its `if`
        if kind in ("if", "match"):
            self.lost_if = self.lost_if or kind == "if"
            help = self.choice_help() or f"bind or return its value: `let x = {kind} ...`"
            raise self.fail(f"`{kind}` is an expression, not a statement", help=help)
        if kind in MEMBER_WORDS and following.kind == NAME:
            article = "an" if kind == "impl" else "a"
            raise self.fail(f"{article} `{kind}` stands in a block, not in a function")
        if kind == "const" and following.kind == NAME:
            self.mend("`const` cannot stand inside a function", "let")
            return self.plain_let(token.start)
        if kind in FUNCTION_WORDS | TOP_WORDS | words("pub use module"):
            raise self.fail(f"`{kind}` cannot stand inside a function")
        if kind == NAME and following.kind == ":":
            help_fix = self.replace("write `let`", self.between(token.start, token.start), "let ")
            self.report(
                f"expected `let` or `var` before `{token.text}`", self.here(), help=help_fix
            )
            return self.plain_let(token.start)
        if kind == NAME and following.kind in _ASSIGNED_OPERATORS and after.kind == "=":
            if after.start == following.end:
                self.operator_assignment(token.text, following, after)
                return None
        if kind == STRING and self.reported(token):
            self.advance()
            return None
        if kind in BEGINS_EXPR:
            return self.expression_statement()
        raise self.expected(
            "a statement (`let`, `var`, `return`, `for`, `while`, `yield`, `x = ..`)"
        )

    def choice_help(self) -> str | None:
        """How the value of an `if` with a statement in it is given, which may be no Linnet."""
        at = self.at + 1
        while self.tokens[at].kind not in ("{", ":", "}", END) and not self.first_on_line(at):
            at += 1
        condition = self.between(self.peek().start, self.tokens[at].start).text.strip()
        if self.tokens[at].kind not in ("{", ":") or len(condition) > 40:
            return None
        first, second = self.tokens[at + 1], self.tokens[min(at + 2, len(self.tokens) - 1)]
        if first.kind == "return":
            return f"return the choice: `return if {condition} {{ ... }} else {{ ... }}`"
        if first.kind == NAME and second.kind == "=":
            name = first.text
            return f"assign the choice: `{name} = if {condition} {{ ... }} else {{ {name} }}`"
        return None

    def operator_assignment(self, name: str, operator: Token, equals: Token) -> None:
        at = self.between(operator.start, equals.end)
        help = self.replace("write it out", at, f"= {name} {operator.text}")
        self.report(f"there is no `{operator.text}=`", at, help=help)
        self.move(self.at + 3)
        self.value()

    def expression_statement(self) -> tree.Return | tree.Yield | None:
        """None, or a `return` or `yield` for the last value of a body that ends in one."""
        value = self.expr()
        at = value.span
        if self.returns and self.token.kind == "}" and self.at_end():
            before = self.between(at.start, at.start)
            help = self.replace(f"write `return {_short(at)}`", before, "return ")
            self.report("a value is returned by `return`", at, help=help)
            return tree.Return(at, value)
        if self.yields and self.token.kind == "}" and self.at_end():
            before = self.between(at.start, at.start)
            help = self.replace(f"write `yield {_short(at)}`", before, "yield ")
            message = "the value of a `for` is what its turns `yield`"
            self.report(message, at, code="E2124", help=help)
            return tree.Yield(at, value)
        if self.token.kind in ("=", "=="):
            what = f"`{at.text}`" if len(at.text) <= 40 else "this"
            if isinstance(value, tree.Index):
                fix = "define a new tensor by its elements: `let y[i] = ...`"
                self.report("elements are not assigned: tensors are values", at, help=fix)
            elif isinstance(value, tree.Tuple):
                fix = "write `let (a, b) = ...`"
                self.report("a tuple is taken apart by `let`", at, help=fix)
            else:
                fix = "only a `var` and a `state` of this block can, by their bare names"
                self.report(f"{what} cannot be assigned", at, help=fix)
            self.advance()
            self.value()
            return None
        if isinstance(value, tree.Binary) and value.op == "==":
            help_fix = self.fix("=", value.op_span)
            message = "a value is assigned with `=`; `==` compares"
            self.report(message, value.op_span, help=help_fix)
        else:
            before = self.between(at.start, at.start)
            bind = self.replace("bind it: `let _ = ...`", before, "let _ = ", safe=False)
            self.report(
                "there are no expression statements",
                at,
                label="this value goes nowhere",
                help=bind if isinstance(value, tree.Call) else "bind it with `let`, or return it",
            )
        if not self.at_end() and not self.first_on_line(self.at):
            self.failed_at = self.at
            raise Unreadable
        return None


def _short(span: Span) -> str:
    text = " ".join(span.text.split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _module_name(file: str) -> str:
    """A module name for a file that declares none: its own, if that is one."""
    stem = file.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in stem)
    return name if name[:1].isalpha() and name not in KEYWORDS else "main"
