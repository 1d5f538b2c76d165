"""What a block takes over from its traits, and whether it has what they require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from linnet.check import calls, typeexprs
from linnet.check.analysis import BlockInfo, ImplInfo, ItemName, Local, Signature
from linnet.check.expect import compare, described, text_of
from linnet.check.scope import Scope
from linnet.diagnostics import Help, Label
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import (
    Axis,
    BlockType,
    DTypeVar,
    GenericValue,
    Pack,
    UnknownType,
    dim_bindings,
    substitute,
)


def implemented(scope: Scope, block: tree.Block) -> tuple[ImplInfo, ...]:
    """The traits of a block, their arguments read; what they provide has names of its own."""
    out: list[ImplInfo] = []
    unknown = False
    for impl in block.impls:
        trait = _trait(scope, impl)
        unknown = unknown or trait is None or trait.decl in scope.checking.holed
        if trait is not None:
            if any(trait.decl is each.trait.decl for each in out):
                message = f"`{trait.name}` is implemented twice"
                first = next(e.impl for e in out if e.trait.decl is trait.decl)
                scope.report("E1205", message, impl, related=(Label(first.span, "first here"),))
                continue
            out.append(ImplInfo(impl, trait))
    if unknown:
        scope.checking.holed.add(block)  # what they provide is not known
    _refuse_taken(scope, block, out)
    return tuple(out)


def _trait(scope: Scope, impl: tree.Impl) -> BlockType | None:
    t = impl.trait
    if not isinstance(t, tree.NamedType):
        if not isinstance(t, tree.BadType):
            scope.report("E1208", f"`{text_of(t)}` is not a trait", t)
        return None
    symbol = typeexprs.path_symbol(scope, t.path, "trait")
    match symbol:
        case ItemName(tree.Trait() as trait, _):
            if trait in scope.checking.broken:
                return None
            given = t.generics or ()
            values = typeexprs.arguments(scope, t, trait.generics, given, trait.name.text)
            if values is None:
                return None
            args = typeexprs.in_order(trait.generics, values)
            return BlockType(trait, trait.name.text, args)
        case None | Local(type=UnknownType()):
            return None
        case ItemName(tree.Block(), _):
            help = f"a block is used as a member: `sub x: {text_of(t)}`"
            scope.report("E1208", f"`{t.path.text}` is a block, not a trait", t, help=help)
        case _:
            scope.report("E1208", f"`{t.path.text}` is not a trait", t)
    return None


def provided(impls: Iterable[ImplInfo]) -> Iterator[tree.Fn]:
    """The methods that traits provide."""
    for each in impls:
        assert isinstance(each.trait.decl, tree.Trait)
        yield from (fn for fn in each.trait.decl.methods if not fn.required)


def _refuse_taken(scope: Scope, block: tree.Block, impls: list[ImplInfo]) -> None:
    names = [g.name for g in block.generics] + [m.name for m in block.members]
    names += [f.name for f in block.methods]
    own = {name.text: name for name in reversed(names)}
    others: dict[str, str] = {}
    for each in impls:
        for fn in provided([each]):
            name, trait = fn.name.text, each.trait.name
            related = (Label(fn.name.span, "provided here"),)
            if name in own:
                message = f"`{name}` is declared twice: `{trait}` provides it"
                help = "choose another name: a block has what its traits provide as it is"
                scope.report("E1205", message, own[name], related=related, help=help)
            elif name in others:
                message = f"`{others[name]}` and `{trait}` both provide `{name}`"
                scope.report("E1205", message, each.impl, related=related)
            others.setdefault(name, trait)


# ---------------------------------------------------------------- what a trait requires


def check(scope: Scope, info: BlockInfo) -> None:
    """A block has every method that its traits require, as they require it."""
    for each in info.impls:
        trait = each.trait.decl
        assert isinstance(trait, tree.Trait)
        bindings = typeexprs.bindings_of(each.trait)
        clauses = scope.checking.clauses.get(trait, ())
        calls.prove_instance(scope, each.impl.trait, each.trait.name, clauses, bindings)
        for fn in trait.methods:
            signature = scope.analysis.signatures.get(fn)
            if fn.required and signature is not None and fn not in scope.checking.broken:
                _method(scope, info, each, signature, bindings)


def _method(
    scope: Scope,
    info: BlockInfo,
    impl: ImplInfo,
    required: Signature,
    bindings: Mapping[str, GenericValue],
) -> None:
    name = required.fn.name.text
    own = info.methods.get(name)
    trait, block = impl.trait.name, info.block.name.text
    if own is None:
        if info.block not in scope.checking.holed:
            taken = info.members.get(name)
            but = f"; `{name}` is a {taken.member.kind}" if taken is not None else ""
            scope.report(
                "E2125",
                f"`{trait}` requires a method `{name}`, which `{block}` lacks{but}",
                impl.impl.trait,
                related=(Label(required.fn.name.span, "required here"),),
                help=f"write `{_wanted(scope, required, info, bindings)} {{ ... }}`",
            )
        return
    signature = scope.analysis.signatures.get(own)
    if signature is None or own in scope.checking.broken:
        return
    found = _difference(scope, info, signature, required, bindings)
    if found is None:
        return
    what, at = found
    scope.report(
        "E2125",
        f"`{name}` is not as `{trait}` requires it: {what}",
        at if signature.block is info.block else impl.impl.trait,
        related=(Label(required.fn.name.span, "required here"),),
        help=Help(f"it is `{_wanted(scope, required, info, bindings)}`"),
    )


def _difference(
    scope: Scope,
    info: BlockInfo,
    own: Signature,
    required: Signature,
    bindings: Mapping[str, GenericValue],
) -> tuple[str, tree.Syntax] | None:
    """What of a block's method is not as required, if anything, and where it stands."""
    have, want = own.fn, required.fn
    if (have.kind, have.public or not want.public) != (want.kind, True):
        return f"`{_head(have)}` is not `{_head(want)}`", have.name
    kinds = [[g.kind.text for g in fn.generics] for fn in (have, want)]
    if kinds[0] != kinds[1]:
        return "its generics are others", have.name
    names = [[name for name, _ in signature.params] for signature in (own, required)]
    if names[0] != names[1]:
        return f"its parameters are {_listed(names[0])} and not {_listed(names[1])}", have.name
    home = info.bindings(typeexprs.identity(info.block.generics), own.block)
    mine = own_generics(have, info)
    renamed = zip((g.name.text for g in want.generics), mine.values(), strict=True)
    wanted = {**bindings, **dict(renamed)}
    facts = (*info.facts, *(f.substitute(dim_bindings(wanted)) for f in required.facts))
    known = scope.checking.known(facts, info.block, have)
    inner = scope.inner(have.generics, known, fn=have)
    for param, (name, type), (_, meant) in zip(
        have.params, own.params, required.params, strict=True
    ):
        type, meant = substitute(type, {**home, **mine}), substitute(meant, wanted)
        if compare(inner, type, meant) is not None:
            return f"`{name}` is {described(type)} and not {described(meant)}", param.type
    if own.result is None or required.result is None:
        if own.result is not required.result:
            return "one of them gives no result", have.name
    else:
        type = substitute(own.result, {**home, **mine})
        meant = substitute(required.result, wanted)
        if compare(inner, type, meant) is not None:
            assert have.result is not None
            return f"its result is {described(type)} and not {described(meant)}", have.result
    for clause, relation in scope.checking.clauses.get(have, ()):
        if not known.proves(relation.substitute(dim_bindings({**home, **mine}))):
            return f"`{text_of(clause)}` does not follow from what it may ask for", clause
    return None


def _head(fn: tree.Fn) -> str:
    return f"{'pub ' if fn.public else ''}{fn.kind} {fn.name.text}"


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def own_generics(fn: tree.Fn, info: BlockInfo) -> dict[str, GenericValue]:
    """Each generic of a method for itself, under another name where the block has that one."""
    taken = {g.name.text for g in info.block.generics}
    out: dict[str, GenericValue] = {}
    for g in fn.generics:
        name = f"{g.name.text}_2" if g.name.text in taken else g.name.text
        axes: tuple[Axis, ...] = (Pack(name),)
        scalar = Dim.of(name) if g.kind.text == "Dim" else DTypeVar(name, g.kind.text)
        out[g.name.text] = axes if g.pack else scalar
    return out


def _wanted(
    scope: Scope, required: Signature, info: BlockInfo, bindings: Mapping[str, GenericValue]
) -> str:
    """The signature that a trait requires, in the names of the block."""
    fn, own = required.fn, own_generics(required.fn, info)
    values = {**bindings, **own}
    names = [f"{v[0]}" if isinstance(v, tuple) else f"{v}" for v in own.values()]
    kinds = [g.kind.text for g in fn.generics]
    generics = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    params = ", ".join(f"{name}: {substitute(type, values)}" for name, type in required.params)
    result = required.result
    sizes = dim_bindings(values)
    clauses = [str(r.substitute(sizes)) for _, r in scope.checking.clauses.get(fn, ())]
    head = f"{_head(fn)}<{generics}>" if generics else _head(fn)
    arrow = f" -> {substitute(result, values)}" if result is not None else ""
    return f"{head}({params}){arrow}{' where ' if clauses else ''}{', '.join(clauses)}"
