"""What values prove: a struct is only built where its clauses hold, so they hold where it is."""

from __future__ import annotations

from collections.abc import Iterator

from linnet.check.analysis import Analysis
from linnet.dims import Relation
from linnet.syntax import tree
from linnet.types import StructType, TupleType, Type, dim_bindings, substitute


def structs_in(
    analysis: Analysis, type: Type, above: frozenset[object] = frozenset()
) -> Iterator[StructType]:
    """The structs with clauses of which every value of this type holds a value."""
    match type:
        case TupleType(items):
            for item in items:
                yield from structs_in(analysis, item, above)
        case StructType(decl=tree.Struct() as decl) if decl not in above:
            if decl.where:
                yield type
            bindings = dict(zip((g.name.text for g in decl.generics), type.args, strict=True))
            for field in analysis.structs[decl].fields.values():
                yield from structs_in(analysis, substitute(field, bindings), above | {decl})
        case _:
            pass


def clauses_of(analysis: Analysis, struct: StructType) -> tuple[Relation, ...]:
    """A struct's clauses, of these generics."""
    assert isinstance(struct.decl, tree.Struct)
    names = (g.name.text for g in struct.decl.generics)
    sizes = dim_bindings(dict(zip(names, struct.args, strict=True)))
    return tuple(fact.substitute(sizes) for fact in analysis.structs[struct.decl].facts)
