"""A comment that was meant as a division: `n // 2` is `n`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from linnet.check.analysis import Module, Signature
from linnet.check.expect import text_of
from linnet.check.scope import Checking, Scope
from linnet.diagnostics import Edit, Help
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import DTYPE_KINDS, DType, DTypeVar, IntConst, TensorType, Type

_OPERAND = r"\(*\s*(?:[0-9]+|[A-Za-z_]\w*)\s*\)*"
_DIVISOR = re.compile(rf"//\s*({_OPERAND}(?:\s*[-+*/%]\s*{_OPERAND})*)\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")


def warn(checking: Checking) -> None:
    """W1004 where an integer is followed by a comment that is a number or made of known sizes."""
    meant: dict[Module, list[tree.Comment]] = {}
    for module in checking.modules.values():
        found = [c for c in module.tree.comments if _DIVISOR.fullmatch(c.text)]
        if found:
            meant[module] = found
    for signature in checking.analysis.signatures.values() if meant else ():
        if signature.module not in meant:
            continue
        for s, value in _values(signature.fn.body):
            if _is_integer(checking.analysis.types.get(value)):
                for comment in meant[signature.module]:
                    if _follows(comment, s) and _known(comment, signature):
                        _report(Scope(checking, signature.module), comment, s, value)


def _values(body: tuple[tree.Stmt, ...]) -> Iterator[tuple[tree.Stmt, tree.Expr]]:
    """Every statement that ends in a value, with it."""
    for s in body:
        match s:
            case tree.Let() | tree.IndexLet() | tree.Var() | tree.Assign():
                yield s, s.value
            case tree.Return(value=value) if value is not None:
                yield s, value
            case tree.For(body=inner) | tree.While(body=inner):
                yield from _values(inner)
            case _:
                pass


def _is_integer(type: Type | None) -> bool:
    match type:
        case IntConst():
            return True
        case TensorType(dtype=DType() as dtype):
            return dtype.is_integer
        case TensorType(dtype=DTypeVar(kind=kind)):
            return all(dtype.is_integer for dtype in DTYPE_KINDS[kind])
        case _:
            return False


def _follows(comment: tree.Comment, s: tree.Stmt) -> bool:
    gap = s.span.source.text[s.span.end : comment.span.start]
    return comment.span.start >= s.span.end and "\n" not in gap and not gap.strip()


def _known(comment: tree.Comment, signature: Signature) -> bool:
    """Whether all names in it are sizes where it stands."""
    sizes = {g.name.text for g in signature.generics if g.kind.text == "Dim"}
    return set(_NAME.findall(comment.text)) <= sizes


def _report(scope: Scope, comment: tree.Comment, s: tree.Stmt, value: tree.Expr) -> None:
    found = _DIVISOR.fullmatch(comment.text)
    assert found is not None
    divided = f"{text_of(value)} / {found[1].strip()}"
    rest = Span(comment.span.source, s.span.end, comment.span.end)
    scope.report(
        "W1004",
        f"`{text_of(comment)}` is a comment: the value is `{text_of(value)}`",
        comment,
        help=Help(f"to divide, write `{divided}`", (Edit(rest, f" / {found[1].strip()}"),)),
    )
