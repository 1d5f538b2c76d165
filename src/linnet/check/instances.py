"""How a `sub` would have to be declared for a call of its method to fit."""

from __future__ import annotations

from linnet.check.analysis import GenericName, Local, MemberName
from linnet.check.expect import bare
from linnet.check.scope import Scope
from linnet.diagnostics import Edit, Help, Label
from linnet.syntax import tree
from linnet.types import BlockType, DType, DTypeVar, TensorType, Type, dtype_within, generic_text


def with_dtype(
    scope: Scope, receiver: tree.Expr, owner: BlockType, want: Type, found: Type
) -> tuple[Help, Label] | None:
    """The declaration with the dtype of what is given, where the sub has that by a default.

    `want` is the parameter's type in the generics of the block.
    """
    member = _member(scope, receiver)
    if member is None or not isinstance(want, TensorType) or not isinstance(found, TensorType):
        return None
    written = member.type.of if isinstance(member.type, tree.OptionalTypeExpr) else member.type
    written = written.element if isinstance(written, tree.ArrayTypeExpr) else written
    assert isinstance(owner.decl, tree.Block)
    generics = owner.decl.generics
    names = [g.name.text for g in generics]
    if not isinstance(written, tree.NamedType) or not isinstance(want.dtype, DTypeVar):
        return None
    name, given = want.dtype.name, written.generics or ()
    if name not in names or (at := names.index(name)) < len(given):
        return None
    dtype = found.dtype
    if not dtype_within(dtype, generics[at].kind.text) or not _known(scope, dtype):
        return None
    between = [generic_text(value) for value in owner.args[len(given) : at]]
    args = [*(g.span.text for g in given), *between, str(dtype)]
    form = f"{written.path.text}<{', '.join(args)}>"
    default = f"`{name}` of `{owner.decl.name.text}` is {owner.args[at]} by default here"
    text = f"declare `{member.name.text}` as `{form}`"
    return Help(text, (Edit(written.span, form),)), Label(written.span, default)


def _member(scope: Scope, e: tree.Expr) -> tree.Member | None:
    """The `sub` of this block that an expression is, or is an element of."""
    match bare(e):
        case tree.Name() as name:
            symbol = scope.analysis.symbols.get(name)
            if isinstance(symbol, Local) and isinstance(symbol.decl, tree.For):
                return _member(scope, symbol.decl.start)
            return symbol.member if isinstance(symbol, MemberName) else None
        case tree.Index(base=base):
            return _member(scope, base)
        case _:
            return None


def _known(scope: Scope, dtype: object) -> bool:
    """Whether the members of this block can be declared with the dtype."""
    if isinstance(dtype, DType):
        return True
    assert isinstance(dtype, DTypeVar) and scope.block is not None
    return isinstance(scope.lookup(dtype.name), GenericName) and any(
        g.name.text == dtype.name for g in scope.block.generics
    )
