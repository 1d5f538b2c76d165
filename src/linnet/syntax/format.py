"""From a tree and its comments to a layout: the one style of Linnet source.

Each method takes the tokens of one form from the stream, in order, so that none can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from linnet.diagnostics import Findings, InternalError
from linnet.source import Source
from linnet.syntax import tree
from linnet.syntax.depth import deep_stack
from linnet.syntax.exprs import BINDING
from linnet.syntax.gaps import Blank, Stream
from linnet.syntax.layout import IfBroken, Layout, extended, group, indent, join, line, render, text
from linnet.syntax.parser import parse

N = TypeVar("N", bound=tree.Syntax)

_SPACE = text(" ")


def format(text: str) -> str:
    """The text in Linnet's style; a text with syntax errors, which `check` tells, as it is."""
    formatted, _ = format_text(text)
    return text if formatted is None else formatted


def format_text(source: str, name: str = "<text>") -> tuple[str | None, Findings]:
    """The text in Linnet's style; None if it has syntax errors, which are then the findings."""
    findings = Findings()
    file = parse(Source(name, source), findings)
    return (None if findings.items else format_file(file)), findings


def format_file(file: tree.File) -> str:
    """The text of a file without syntax errors in Linnet's style."""
    with deep_stack():
        return render(_Formatter(file.source).file(file))


class _Formatter(Stream):
    # ------------------------------------------------------------ files and rows

    def file(self, file: tree.File) -> Layout:
        assert file.module is not None
        rows: list[tree.Path | tree.Use | tree.Item] = [file.module, *file.uses, *file.items]
        inside = self.rows(rows, self.top_level, _between_items)
        tail, _ = self.tail(Blank.ONE)
        if self.next or any(gap.notes for gap in self.gaps):
            raise InternalError("format", "part of the file would be lost")
        return join(*inside, tail)

    def rows(
        self, nodes: Sequence[N], write: Callable[[N], Layout], blank: Callable[[N, N], Blank]
    ) -> list[Layout]:
        """Each node on lines of its own."""
        parts: list[Layout] = []
        before: N | None = None
        for node in nodes:
            between = Blank.NONE if before is None else blank(before, node)
            parts += [self.row(between, first=before is None), write(node)]
            before = node
        return parts

    def braces(
        self, nodes: Sequence[N], write: Callable[[N], Layout], blank: Callable[[N, N], Blank]
    ) -> Layout:
        opened = self.take("{", indented=False)
        rows = self.rows(nodes, write, blank)
        tail, hard = self.tail(Blank.KEEP)
        if nodes or hard:
            return join(opened, indent(*rows, tail), line(hard=True), self.take("}"))
        pad = _SPACE if tail.width else text("")
        return join(opened, pad, tail, pad, self.take("}"))

    # ------------------------------------------------------------ lists

    def listed(
        self,
        opener: str,
        nodes: Sequence[N],
        write: Callable[[N], Layout],
        closer: str,
        *,
        pad: str = "",
        weak: bool = False,
        lone_comma: bool = False,
    ) -> Layout:
        """On one line if it fits and has no trailing comma; else each element on its own."""
        parts = [self.take(opener)]
        inside: list[Layout] = []
        broken = False
        for number, node in enumerate(nodes, 1):
            inside += [self.line(" " if number > 1 else pad), write(node)]
            if number < len(nodes):
                inside.append(self.comma())
            elif self.next == ",":
                broken = len(nodes) > 1 or not lone_comma
                inside.append(self.comma())
            else:
                inside += [*self.before_comma(), IfBroken(",")]
        return self.closed(parts, inside, closer, pad, broken, weak)

    def comma(self) -> Layout:
        self.pass_on()
        return self.take(",")

    def closed(
        self,
        before: Sequence[Layout],
        inside: Sequence[Layout],
        closer: str,
        pad: str = "",
        broken: bool = False,
        weak: bool = False,
    ) -> Layout:
        """What stands in brackets, with the comments before the closing one."""
        tail, hard = self.tail()
        if not inside and not hard:
            return join(*before, tail, self.take(closer))
        parts = (*before, indent(*inside, tail), line(pad, hard=hard), self.take(closer))
        return group(*parts, broken=broken, weak=weak)

    # ------------------------------------------------------------ modules and items

    def top_level(self, node: tree.Path | tree.Use | tree.Item) -> Layout:
        if isinstance(node, tree.Path):
            return join(self.take("module"), _SPACE, self.path(node))
        if isinstance(node, tree.Use):
            return self.use(node)
        return self.item(node)

    def use(self, use: tree.Use) -> Layout:
        parts = [self.take("use"), _SPACE, self.path(use.path)]
        if use.names is not None:
            parts.append(self.take("::"))
            if self.next == "{":
                parts.append(self.listed("{", use.names, self.use_name, "}"))
            else:
                parts.append(self.take())
        return join(*parts)

    def use_name(self, node: tree.UseName) -> Layout:
        if node.alias is None:
            return self.take()
        return join(self.take(), _SPACE, self.take("as"), _SPACE, self.take())

    def path(self, path: tree.Path) -> Layout:
        parts = [self.take()]
        for _ in path.parts[1:]:
            parts += [self.take("."), self.take()]
        return join(*parts)

    def item(self, item: tree.Item) -> Layout:
        parts = [self.take("pub"), _SPACE] if self.next == "pub" else []
        parts += [self.take(), _SPACE, self.take()]  # the word and the name
        match item:
            case tree.Const():
                parts += [*self.annotation(item.type), self.bound("=", item.value)]
            case tree.Alias():
                parts += [self.generics(item.generics), _SPACE, self.take("="), _SPACE]
                parts.append(self.type(item.of))
            case tree.Struct():
                parts += [self.generics(item.generics), self.where(item.where)]
                parts.append(self.braces(item.fields, self.struct_field, _keep))
            case tree.Enum():
                parts += [_SPACE, self.listed("{", item.variants, self.ident, "}", pad=" ")]
            case tree.Fn():
                parts += self.function(item)
            case tree.Block():
                parts += [self.generics(item.generics), self.where(item.where)]
                nodes: list[tree.Impl | tree.Member | tree.Fn] = []
                nodes += [*item.impls, *item.members, *item.methods]
                nodes.sort(key=lambda node: node.span.start)
                parts.append(self.braces(nodes, self.member_or_method, _between_members))
        return join(*parts)

    def struct_field(self, field: tree.StructField) -> Layout:
        parts = [self.take(), *self.annotation(field.type)]
        if field.default is not None:
            parts.append(self.bound("=", field.default))
        return join(*parts)

    def function(self, fn: tree.Fn) -> list[Layout]:
        """What follows the name."""
        generics = self.generics(fn.generics)
        params = self.listed("(", fn.params, self.param, ")")
        result: list[Layout] = []
        if fn.result is not None:
            result = [_SPACE, self.take("->"), _SPACE, self.type(fn.result)]
        head = [generics, extended(params, *result), self.where(fn.where, brace=not fn.required)]
        return head if fn.required else [*head, self.braces(fn.body, self.statement, _keep)]

    def param(self, param: tree.Param) -> Layout:
        parts = [self.take(), *self.annotation(param.type)]
        if param.default is not None:
            parts.append(self.bound("=", param.default))
        return join(*parts)

    def generics(self, generics: Sequence[tree.GenericParam]) -> Layout:
        return self.listed("<", generics, self.generic_param, ">") if generics else text("")

    def generic_param(self, param: tree.GenericParam) -> Layout:
        parts = [self.take("*")] if self.next == "*" else []
        parts += [self.take(), self.take(":"), _SPACE, self.take()]
        if param.default is not None:
            parts.append(self.bound("=", param.default))
        return join(*parts)

    def where(self, clauses: Sequence[tree.Relation], *, brace: bool = True) -> Layout:
        """Up to the opening brace: one clause on the line of the brace, several one a line."""
        if not clauses:
            return _SPACE if brace else text("")
        parts = [self.line(hard=True), self.take("where")]
        inside: list[Layout] = []
        for clause in clauses:
            inside += [self.line(), self.relation(clause)]
            if clause is not clauses[-1]:
                inside.append(self.comma())
        self.drop(",")
        if not brace:
            return join(*parts, group(indent(*inside), broken=len(clauses) > 1))
        return join(*parts, self.before_brace(inside, broken=len(clauses) > 1))

    def before_brace(self, inside: Sequence[Layout], *, broken: bool = False) -> Layout:
        """What stands between a word and an opening brace; broken, it has lines of its own."""
        tail, hard = self.tail()
        return group(indent(*inside, tail), line(hard=hard), broken=broken)

    def relation(self, relation: tree.Relation) -> Layout:
        left = self.expr(relation.left)
        return group(left, indent(*self.operator(), self.expr(relation.right)))

    def member_or_method(self, node: tree.Impl | tree.Member | tree.Fn) -> Layout:
        if isinstance(node, tree.Fn):
            return self.item(node)
        if isinstance(node, tree.Impl):
            return join(self.take(), _SPACE, self.type(node.trait))
        parts = [self.take(), _SPACE, self.take(), *self.annotation(node.type)]
        if node.value is not None:
            parts.append(self.bound("=", node.value))
        return join(*parts)

    # ------------------------------------------------------------ types and patterns

    def annotation(self, type: tree.TypeExpr | None) -> list[Layout]:
        return [] if type is None else [self.take(":"), _SPACE, self.type(type)]

    def type(self, type: tree.TypeExpr) -> Layout:
        match type:
            case tree.NamedType():
                path = self.path(type.path)
                return path if type.generics is None else join(path, self.arguments(type.generics))
            case tree.TensorTypeExpr():
                return self.tensor_type(type)
            case tree.TupleTypeExpr():
                return self.listed("(", type.items, self.type, ")", lone_comma=True)
            case tree.ArrayTypeExpr():
                opened, inside = self.take("["), [self.line(""), self.type(type.element)]
                inside += [self.semicolon(), self.line(), self.expr(type.length)]
                return self.closed([opened], inside, "]")
            case tree.OptionalTypeExpr():
                return join(self.type(type.of), self.take("?"))
            case tree.BadType():
                raise InternalError("format", "a type with a syntax error")

    def arguments(self, generics: Sequence[tree.Expr]) -> Layout:
        return self.listed("<", generics, self.expr, ">")

    def tensor_type(self, type: tree.TensorTypeExpr) -> Layout:
        before = [self.take("Tensor"), self.take("[")]
        inside: list[Layout] = []
        for number, dim in enumerate(type.shape, 1):
            inside += [self.line(" " if number > 1 else ""), self.dim(dim)]
            if number < len(type.shape):
                inside.append(self.comma())
        self.drop(",")
        inside += [self.semicolon(), self.line(), self.path(type.dtype)]
        return self.closed(before, inside, "]")

    def semicolon(self) -> Layout:
        self.pass_on()
        return self.take(";")

    def dim(self, dim: tree.Expr | tree.PackRef) -> Layout:
        return self.pack() if isinstance(dim, tree.PackRef) else self.expr(dim)

    def pack(self) -> Layout:
        return join(self.take("*"), self.take())

    def ident(self, _: tree.Ident) -> Layout:
        return self.take()

    def pattern(self, pattern: tree.Pattern) -> Layout:
        match pattern:
            case tree.NamePattern() | tree.WildcardPattern() | tree.NonePattern():
                return self.take()
            case tree.TuplePattern():
                return self.listed("(", pattern.items, self.pattern, ")", lone_comma=True)
            case tree.SomePattern():
                before = [self.take("some"), self.take("(")]
                inside = [self.line(""), self.pattern(pattern.item)]
                self.drop(",")
                return self.closed(before, inside, ")")
            case tree.VariantPattern():
                return join(self.path(pattern.path), self.take("."), self.take())

    # ------------------------------------------------------------ statements

    def statement(self, statement: tree.Stmt) -> Layout:
        match statement:
            case tree.Let():
                name = [self.take("let"), _SPACE, self.pattern(statement.pattern)]
                type = self.annotation(statement.type)
                return join(*name, *type, self.bound("=", statement.value))
            case tree.IndexLet():
                name = [self.take("let"), _SPACE, self.take()]
                outputs = self.listed("[", statement.outputs, self.index_name, "]")
                return join(*name, outputs, self.bound("=", statement.value))
            case tree.Var():
                name = [self.take("var"), _SPACE, self.take()]
                type = self.annotation(statement.type)
                return join(*name, *type, self.bound("=", statement.value))
            case tree.Assign():
                return join(self.take(), self.bound("=", statement.value))
            case tree.Return():
                return self.given("return", statement.value)
            case tree.For():
                return self.for_(statement)
            case tree.Yield():
                return self.given("yield", statement.value)
            case tree.While():
                head = [self.head("while", statement.condition)]
                return join(*head, self.braces(statement.body, self.statement, _keep))

    def for_(self, loop: tree.For) -> Layout:
        head = [self.take("static"), _SPACE] if loop.static else []
        head += [self.take("for"), _SPACE, self.take(), _SPACE]
        head += [self.take("in"), _SPACE, self.expr(loop.start)]
        if loop.stop is not None:
            head += [self.take(".."), self.expr(loop.stop)]
        return join(*head, _SPACE, self.braces(loop.body, self.statement, _keep))

    def given(self, word: str, value: tree.Expr | None) -> Layout:
        """`return` or `yield`, and the value."""
        before = self.take(word)
        if value is None:
            return before
        if self.breaks():
            return join(before, indent(self.line(), self.expr(value)))
        return join(before, _SPACE, self.expr(value))

    def index_name(self, name: tree.Ident | tree.PackRef) -> Layout:
        return self.pack() if isinstance(name, tree.PackRef) else self.take()

    def head(self, word: str, value: tree.Expr) -> Layout:
        """What stands before an opening brace."""
        before = self.take(word)
        inside = [self.line(), self.expr(value, indented=False)]
        return join(before, self.before_brace(inside))

    def bound(self, sign: str, value: tree.Expr) -> Layout:
        """` = value`: the value breaks in its own brackets, or else begins on the next line."""
        self.pass_on()
        parts = [_SPACE, self.take(sign)]
        if _breaks_inside(value) and not self.breaks():
            return join(*parts, _SPACE, self.expr(value))
        inside = [self.line(), self.expr(value, indented=False)]
        return group(*parts, indent(*inside))

    # ------------------------------------------------------------ expressions

    def expr(self, expr: tree.Expr, *, indented: bool = True) -> Layout:
        """The operands of a broken operator after the first are indented, or not."""
        match expr:
            case tree.Binary():
                return self.binary(expr, indented)
            case tree.Call():
                return self.call(expr)
            case tree.Index():
                base = self.expr(expr.base)
                # After a call, the call's arguments break first.
                weak = isinstance(expr.base, tree.Call) and bool(expr.base.args)
                return join(base, self.listed("[", expr.items, self.index_item, "]", weak=weak))
            case tree.Field():
                return join(self.expr(expr.base), self.take("."), self.take())
            case tree.Unary():
                return join(self.take(expr.op), self.expr(expr.value))
            case tree.Paren():
                inside = [self.take("("), self.line(""), self.expr(expr.value, indented=False)]
                return self.closed(inside[:1], inside[1:], ")")
            case tree.Tuple():
                return self.listed("(", expr.items, self.expr, ")", lone_comma=True)
            case tree.ShapeLit():
                return self.listed("[", expr.items, self.dim, "]")
            case tree.Some():
                before = [self.take("some"), self.take("(")]
                inside = [self.line(""), self.expr(expr.value)]
                self.drop(",")
                return self.closed(before, inside, ")")
            case tree.Reduction():
                return self.reduction(expr)
            case tree.If():
                return self.if_(expr)
            case tree.Match():
                head = self.head("match", expr.subject)
                return join(head, self.braces(expr.arms, self.arm, _keep))
            case tree.For():
                return self.for_(expr)
            case tree.BadExpr():
                raise InternalError("format", "an expression with a syntax error")
            case tree.Name() | tree.IntLit() | tree.FloatLit() | tree.StringLit():
                return self.take()
            case tree.BoolLit() | tree.NoneLit():
                return self.take()

    def binary(self, expr: tree.Binary, indented: bool) -> Layout:
        """Operands of one precedence, each on its own line or all on one."""
        operands: list[tree.Expr] = [expr.right]
        first = expr.left
        while isinstance(first, tree.Binary) and BINDING[first.op] == BINDING[expr.op]:
            operands.append(first.right)
            first = first.left
        before = self.expr(first)
        if indented and isinstance(first, tree.Binary):
            before = indent(before)  # its operands stand further in than ours
        rest: list[Layout] = []
        for operand in reversed(operands):
            rest += [*self.operator(), self.expr(operand)]
        return group(before, indent(*rest) if indented else join(*rest))

    def operator(self) -> list[Layout]:
        self.pass_on()
        return [_SPACE, self.take(), self.line()]

    def call(self, call: tree.Call) -> Layout:
        callee = self.expr(call.callee)
        generics = [] if call.generics is None else [self.arguments(call.generics)]
        return join(callee, *generics, self.listed("(", call.args, self.arg, ")"))

    def arg(self, arg: tree.Arg) -> Layout:
        if arg.name is None:
            return self.expr(arg.value)
        return join(self.take(), self.bound("=", arg.value))

    def index_item(self, item: tree.Expr | tree.Slice | tree.Ellipsis_ | tree.PackRef) -> Layout:
        match item:
            case tree.Slice():
                parts = [] if item.start is None else [self.expr(item.start)]
                parts.append(self.take())
                if item.stop is not None:
                    parts.append(self.expr(item.stop))
                if item.step is not None:
                    parts += [self.take(":")] if self.next == ":" else []
                    parts.append(self.expr(item.step))
                return join(*parts)
            case tree.Ellipsis_():
                return self.take("...")
            case tree.PackRef():
                return self.pack()
            case _:
                return self.expr(item)

    def reduction(self, expr: tree.Reduction) -> Layout:
        parts = [self.take(expr.kind)]
        if expr.dtype is not None:
            parts += [self.take("<"), self.take(), self.take(">")]
        parts.append(self.listed("[", expr.indices, self.index_name, "]"))
        return join(*parts, _SPACE, self.expr(expr.body))

    def if_(self, expr: tree.If) -> Layout:
        parts = [self.head("if", expr.condition), self.branch(expr.then)]
        other = expr.other
        parts += [_SPACE, self.take("else", indented=False), _SPACE]
        while isinstance(other, tree.If) and self.next == "if":
            parts += [self.head("if", other.condition), self.branch(other.then)]
            parts += [_SPACE, self.take("else", indented=False), _SPACE]
            other = other.other
        return group(*parts, self.branch(other))

    def branch(self, value: tree.Expr) -> Layout:
        opened, inside = self.take("{"), [self.line(), self.expr(value)]
        tail, hard = self.tail()
        return join(opened, indent(*inside, tail), line(hard=hard), self.take("}"))

    def arm(self, arm: tree.Arm) -> Layout:
        return join(self.pattern(arm.pattern), self.bound("=>", arm.value))


def _breaks_inside(expr: tree.Expr) -> bool:
    """Whether a value may begin on the line of its name, since brackets of its own can break."""
    match expr:
        case tree.Call():
            return bool(expr.args or expr.generics) or _breaks_inside(expr.callee)
        case tree.Index():
            return _breaks_inside(expr.base)
        case tree.Field():
            return _breaks_inside(expr.base)
        case tree.Unary():
            return _breaks_inside(expr.value)
        case tree.Reduction():
            return _breaks_inside(expr.body)
        case tree.ShapeLit() | tree.Tuple() | tree.Paren() | tree.Some():
            return True
        case tree.If() | tree.Match() | tree.For():
            return True
        case _:
            return False


def _keep(before: tree.Syntax, after: tree.Syntax) -> Blank:
    return Blank.KEEP


def _between_items(before: tree.Syntax, after: tree.Syntax) -> Blank:
    together = (tree.Use, tree.Const, tree.Alias)
    return Blank.KEEP if type(before) is type(after) and isinstance(after, together) else Blank.ONE


def _between_members(before: tree.Syntax, after: tree.Syntax) -> Blank:
    close = isinstance(before, tree.Member) and isinstance(after, tree.Member)
    close = close or (isinstance(before, tree.Impl) and isinstance(after, tree.Impl))
    return Blank.KEEP if close else Blank.ONE
