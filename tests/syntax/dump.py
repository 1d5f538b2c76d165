"""A tree as text: expressions with every bracket written out, one statement or item a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from linnet.source import Span
from linnet.syntax import tree
from linnet.syntax.depth import MAX_DEPTH


def dump(node: tree.Syntax) -> str:
    match node:
        case tree.File():
            return "\n".join(_file(node))
        case tree.Ident() | tree.Name() | tree.Path():
            return node.text
        case tree.IntLit(value=value) | tree.FloatLit(value=value):
            return repr(value)
        case tree.StringLit(value=text):
            return repr(text)
        case tree.BoolLit(value=truth):
            return str(truth).lower()
        case tree.NoneLit() | tree.NonePattern():
            return "none"
        case tree.Paren(value=value):
            return f"paren({dump(value)})"
        case tree.Tuple(items=items) | tree.TuplePattern(items=items):
            return f"tuple({_list(items)})"
        case tree.TupleTypeExpr(items=items):
            return f"tuple({_list(items)})"
        case tree.PackRef(name=name):
            return f"*{name.text}"
        case tree.ShapeLit(items=items):
            return f"shape[{_list(items)}]"
        case tree.Some(value=value):
            return f"some({dump(value)})"
        case tree.SomePattern(item=item):
            return f"some({dump(item)})"
        case tree.Unary(op=op, value=value):
            return f"({op} {dump(value)})"
        case tree.Binary(op=op, left=left, right=right):
            return f"({dump(left)} {op} {dump(right)})"
        case tree.Arg(name=None, value=value):
            return dump(value)
        case tree.Arg(name=tree.Ident() as name, value=value):
            return f"{name.text}={dump(value)}"
        case tree.Call(callee=callee, generics=generics, args=args):
            return f"{dump(callee)}{_generics(generics)}({_list(args)})"
        case tree.Slice(start=start, stop=stop, step=step):
            return ":".join("" if part is None else dump(part) for part in (start, stop, step))
        case tree.Ellipsis_():
            return "..."
        case tree.Index(base=base, items=items):
            return f"{dump(base)}[{_list(items)}]"
        case tree.Field(base=base, name=name):
            return f"{dump(base)}.{name.text}"
        case tree.Reduction(kind=kind, dtype=dtype, indices=indices, body=body):
            generics = "" if dtype is None else f"<{dtype.text}>"
            return f"({kind}{generics}[{_list(indices)}] {dump(body)})"
        case tree.If(condition=condition, then=then, other=other):
            return f"if({dump(condition)}, {dump(then)}, {dump(other)})"
        case tree.Match(subject=subject, arms=arms):
            inner = " ".join(f"{dump(arm.pattern)}=>{dump(arm.value)};" for arm in arms)
            return f"match({dump(subject)}: {inner})"
        case tree.BadExpr() | tree.BadType():
            return "<bad>"
        case tree.NamePattern(name=name):
            return f"'{name.text}"
        case tree.WildcardPattern():
            return "_"
        case tree.VariantPattern(path=path, name=name):
            return f"{path.text}.{name.text}"
        case tree.NamedType(path=path, generics=generics):
            return path.text + _generics(generics)
        case tree.TensorTypeExpr(shape=shape, dtype=dtype):
            return f"Tensor[{_list(shape)}; {dtype.text}]"
        case tree.ArrayTypeExpr(element=element, length=length):
            return f"[{dump(element)}; {dump(length)}]"
        case tree.OptionalTypeExpr(of=of):
            return f"{dump(of)}?"
        case tree.Relation(left=left, op=op, right=right):
            return f"{dump(left)} {op} {dump(right)}"
        case tree.GenericParam(name=name, pack=pack, kind=kind, default=default):
            return f"{'*' * pack}{name.text}: {kind.text}{_default(default)}"
        case tree.Param(name=name, type=type, default=default):
            return f"{name.text}: {dump(type)}{_default(default)}"
        case _:
            return "\n".join(_lines(node))


def _lines(node: tree.Syntax) -> Iterator[str]:
    match node:
        case tree.Let(pattern=pattern, type=type, value=value):
            yield f"let {dump(pattern)}{_annotation(type)} = {dump(value)}"
        case tree.IndexLet(name=name, outputs=outputs, value=value):
            yield f"let {name.text}[{_list(outputs)}] = {dump(value)}"
        case tree.Var(name=name, type=type, value=value):
            yield f"var {name.text}{_annotation(type)} = {dump(value)}"
        case tree.Assign(name=name, value=value):
            yield f"{name.text} = {dump(value)}"
        case tree.Return(value=value):
            yield "return" if value is None else f"return {dump(value)}"
        case tree.For(static=static, name=name, start=start, stop=stop, body=body):
            until = "" if stop is None else f" .. {dump(stop)}"
            yield f"{'static ' * static}for {name.text} in {dump(start)}{until}"
            yield from _indented(body)
        case tree.Yield(value=value):
            yield f"yield {dump(value)}"
        case tree.While(condition=condition, body=body):
            yield f"while {dump(condition)}"
            yield from _indented(body)
        case tree.Const(name=name, type=type, value=value):
            yield f"{_head(node)}const {name.text}{_annotation(type)} = {dump(value)}"
        case tree.Alias(name=name, generics=generics, of=of):
            yield f"{_head(node)}type {name.text}{_params(generics)} = {dump(of)}"
        case tree.Struct(name=name, generics=generics, where=where, fields=members):
            yield f"{_head(node)}struct {name.text}{_params(generics)}{_where(where)}"
            for field in members:
                yield f"  {field.name.text}: {dump(field.type)}{_default(field.default)}"
        case tree.Enum(name=name, variants=variants):
            yield f"{_head(node)}enum {name.text} {{{_list(variants)}}}"
        case tree.Fn(kind=kind, name=name, generics=generics, params=params, result=result):
            arrow = "" if result is None else f" -> {dump(result)}"
            head = f"{_head(node)}{kind} {name.text}{_params(generics)}({_list(params)}){arrow}"
            yield head + _where(node.where) + (" required" if node.required else "")
            yield from _indented(node.body)
        case tree.Member(kind=kind, name=name, type=type, value=value):
            yield f"{_docs(node.docs)}{kind} {name.text}: {dump(type)}{_default(value)}"
        case tree.Block(name=name, generics=generics, where=where):
            word = "trait" if isinstance(node, tree.Trait) else "block"
            yield f"{_head(node)}{word} {name.text}{_params(generics)}{_where(where)}"
            for impl in node.impls:
                yield f"  impl {dump(impl.trait)}"
            yield from _indented(node.members)
            yield from _indented(node.methods)
        case _:
            raise TypeError(node)


def _file(file: tree.File) -> Iterator[str]:
    yield f"module {'<none>' if file.module is None else file.module.text}"
    for use in file.uses:
        names = ""
        if use.names is not None:
            names = "::{" + ", ".join(_use_name(n) for n in use.names) + "}"
        yield f"use {use.path.text}{names}"
    for item in file.items:
        yield dump(item)
    for comment in file.comments:
        yield f"comment {comment.span.start}: {comment.text!r}"


def _use_name(name: tree.UseName) -> str:
    return name.name.text if name.alias is None else f"{name.name.text} as {name.alias.text}"


def _indented(nodes: tuple[tree.Syntax, ...]) -> Iterator[str]:
    for node in nodes:
        for line in dump(node).split("\n"):
            yield "  " + line


def _head(item: tree.Item) -> str:
    return _docs(item.docs) + "pub " * item.public


def _docs(docs: str) -> str:
    return f"docs {docs!r}\n" if docs else ""


def _list(nodes: tuple[tree.Syntax, ...]) -> str:
    return ", ".join(dump(n) for n in nodes)


def _generics(nodes: tuple[tree.Syntax, ...] | None) -> str:
    return "" if nodes is None else f"<{_list(nodes)}>"


def _params(nodes: tuple[tree.GenericParam, ...]) -> str:
    return f"<{_list(nodes)}>" if nodes else ""


def _where(relations: tuple[tree.Relation, ...]) -> str:
    return f" where {_list(relations)}" if relations else ""


def _annotation(node: tree.TypeExpr | None) -> str:
    return "" if node is None else f": {dump(node)}"


def _default(node: tree.Expr | None) -> str:
    return "" if node is None else f" = {dump(node)}"


def children(node: tree.Syntax) -> Iterator[tree.Syntax]:
    """The nodes directly below a node."""
    for field in fields(node):
        value = getattr(node, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, tree.Syntax):
                yield part


def check_tree(file: tree.File) -> None:
    """Every span lies in the text and in its parent's, and no walk goes too deep."""
    assert (file.span.start, file.span.end) == (0, len(file.source.text))
    stack: list[tuple[tree.Syntax, int]] = [(file, 0)]
    while stack:
        node, height = stack.pop()
        assert height <= MAX_DEPTH + 10  # and a file, an item, a body, a statement around it
        check_span(node.span, file.span)
        for field in fields(node):
            value = getattr(node, field.name)
            if field.name != "span" and isinstance(value, Span):
                check_span(value, node.span)
        for child in children(node):
            check_span(child.span, node.span)
            stack.append((child, height + (not isinstance(child, tree.Arg | tree.Arm))))


def check_span(span: Span, parent: Span) -> None:
    assert span.source is parent.source
    assert 0 <= span.start <= span.end <= len(span.source.text)
    assert parent.start <= span.start and span.end <= parent.end, (parent, span)
