"""Declarations: generics, where clauses, signatures, members, fields; each resolved once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from linnet.check import consts, exprs, traits, typeexprs
from linnet.check.analysis import (
    BlockInfo,
    GenericName,
    MemberInfo,
    MemberName,
    MethodName,
    Module,
    Signature,
    StructInfo,
)
from linnet.check.expect import bare, text_of
from linnet.check.scope import (
    Checking,
    Owner,
    Scope,
    refuse_prelude,
    refuse_repeats,
)
from linnet.diagnostics import Edit, Help
from linnet.dims import Dim, Relation, RelationOp
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    UNKNOWN,
    BlockArray,
    BlockType,
    GenericValue,
    OptionalType,
    StructType,
    TensorType,
    TupleType,
    Type,
    UnknownType,
)


def register(checking: Checking, module: Module) -> None:
    """Remember where everything in a module is declared."""
    for item in module.tree.items:
        checking.owners[item] = Owner(module)
        generics = () if isinstance(item, (tree.Const, tree.Enum)) else item.generics
        _register_generics(checking, Owner(module, name=item.name.text), generics)
        if isinstance(item, tree.Block):
            for fn in item.methods:
                checking.owners[fn] = Owner(module, item, item.generics)
                owner = Owner(module, item, item.generics, fn.name.text)
                _register_generics(checking, owner, fn.generics)


def _register_generics(
    checking: Checking, owner: Owner, generics: tuple[tree.GenericParam, ...]
) -> None:
    for i, param in enumerate(generics):
        checking.owners[param] = replace(owner, generics=(*owner.generics, *generics[:i]))


def declare(checking: Checking, module: Module) -> None:
    """Resolve every declaration of a module."""
    for item in module.tree.items:
        with checking.silence(item in checking.broken):
            _declare(checking, item, module)


def _declare(checking: Checking, item: tree.Item, module: Module) -> None:
    match item:
        case tree.Const():
            consts.constant(checking, item, module)
        case tree.Alias():
            alias(checking, item)
        case tree.Struct():
            _struct(checking, item, module)
        case tree.Enum():
            scope = Scope(checking, module)
            refuse_repeats(scope, item.variants, "variant")
            for name in item.variants:
                refuse_prelude(scope, name)
        case tree.Fn():
            _signature(checking, item, module, None)
        case tree.Block():
            _block(checking, item, module)


# ---------------------------------------------------------------- generics and clauses


def default(checking: Checking, param: tree.GenericParam) -> GenericValue | None:
    """What a generic's default means in the generics before it; None when it means nothing."""
    if param in checking.defaults:
        return checking.defaults[param]
    owner = checking.owners[param]
    checking.defaults[param] = None  # a default cannot need itself: only earlier names are visible
    scope = Scope(
        checking,
        owner.module,
        generics={g.name.text: g for g in owner.generics},
        pending=[],
    )
    assert param.default is not None
    with checking.silence(False):
        values = typeexprs.explicit(scope, param, (param,), (param.default,), owner.name)
    found = values.get(param.name.text) if values is not None else None
    checking.divisors[param] = scope.pending or []
    checking.defaults[param] = found
    return found


def _generics(
    scope: Scope, generics: Sequence[tree.GenericParam], outer: Sequence[tree.GenericParam] = ()
) -> None:
    """Names and defaults of a list of generics are well formed."""
    refuse_repeats(scope, [g.name for g in (*outer, *generics)], "generic")
    for param in generics:
        scope.analysis.symbols[param.name] = GenericName(param)
        refuse_prelude(scope, param.name)
        if param.default is not None:
            default(scope.checking, param)


def _read_clauses(
    scope: Scope, owner: tree.Fn | tree.Block | tree.Struct
) -> list[tuple[tree.Relation, Relation]]:
    """The where clauses as relations; what they divide by is kept for `_prove_clauses`."""
    out: list[tuple[tree.Relation, Relation]] = []
    for clause in owner.where:
        scope.pending = []
        left = exprs.dimension(scope, clause.left, "a side of a `where` clause")
        right = exprs.dimension(scope, clause.right, "a side of a `where` clause")
        scope.checking.divisors[clause] = scope.pending
        if left is not None and right is not None:
            op: RelationOp = clause.op  # type: ignore[assignment]
            out.append((clause, Relation(op, left, right)))
        else:
            scope.checking.clouded.add(owner)
    scope.pending = None
    scope.checking.clauses[owner] = out
    return out


def _prove_clauses(
    scope: Scope,
    owner: tree.Fn | tree.Block | tree.Struct,
    outer: tuple[Relation, ...],
    clauses: Sequence[tuple[tree.Relation, Relation]],
) -> None:
    """Every divisor in a clause is positive by the other clauses, in any order.

    The scope has all the facts from here on.
    """
    checking = scope.checking
    of = (owner, scope.block)
    for clause in owner.where:
        if checking.divisors[clause]:
            others = (*outer, *(r for c, r in clauses if c is not clause))
            for by, span in checking.divisors[clause]:
                near = tuple(r for r in others if r.names() <= by.names())
                if not checking.known(near, *of).proves(Relation(">", by, Dim.of(0))):
                    scope.known = checking.known(others, *of)
                    exprs.prove_divisor(scope, by, span)
    scope.known = checking.known((*outer, *(r for _, r in clauses)), *of)
    for param in owner.generics:
        for by, span in checking.divisors.get(param, ()):
            exprs.prove_divisor(scope, by, span)


# ---------------------------------------------------------------- aliases and structs


def alias(checking: Checking, item: tree.Alias) -> Type:
    """What an alias stands for, in its own generics."""
    if item in checking.aliases:
        return checking.aliases[item]
    with checking.silence(item in checking.broken):
        return _alias(checking, item)


def _alias(checking: Checking, item: tree.Alias) -> Type:
    owner = checking.owners[item]
    scope = Scope(checking, owner.module)
    if item in checking.in_progress:
        if item not in checking.failed:
            checking.failed.add(item)
            scope.report("E2122", f"the type `{item.name.text}` stands for itself", item.name)
        return UNKNOWN
    checking.in_progress[item] = None
    _generics(scope, item.generics)
    found = typeexprs.resolve(scope.inner(item.generics), item.of, component=True)
    del checking.in_progress[item]
    checking.aliases[item] = UNKNOWN if item in checking.failed else found
    return checking.aliases[item]


def _struct(checking: Checking, item: tree.Struct, module: Module) -> None:
    scope = Scope(checking, module)
    _generics(scope, item.generics)
    refuse_repeats(scope, [f.name for f in item.fields], "field")
    inner = scope.inner(item.generics)
    clauses = _read_clauses(inner, item)
    _prove_clauses(inner, item, (), clauses)
    fields = {f.name.text: typeexprs.resolve(inner, f.type) for f in item.fields}
    for field in item.fields:
        _field_default(inner, field, fields[field.name.text])
    facts = tuple(r for _, r in clauses)
    checking.analysis.structs[item] = StructInfo(item, module, fields, facts)


def _field_default(scope: Scope, field: tree.StructField, found: Type) -> None:
    """`= none` stands only at an optional field, which may then be left out."""
    name, default = field.name.text, field.default
    if default is None:
        return
    if not isinstance(bare(default), tree.NoneLit):
        rest = Span(field.span.source, field.type.span.end, default.span.end)
        scope.report(
            "E4102",
            f"a field takes its value where the struct is built, so `{name}` cannot be given "
            f"`{text_of(default)}`; only `= none` may stand here",
            default,
            help=Help("leave it out", (Edit(rest, ""),)),
        )
    elif not isinstance(found, (OptionalType, UnknownType)):
        _needs_optional(scope, name, field.type)


def _needs_optional(scope: Scope, name: str, type: tree.TypeExpr) -> None:
    end = type.span.end
    scope.report(
        "E4101",
        f"`{name}` is `none` when absent, so its type is optional",
        type,
        help=Help(
            f"write `{text_of(type)}?`", (Edit(Span(type.span.source, end, end), "?"),), True
        ),
    )


def check_structs(checking: Checking) -> None:
    """No struct contains itself."""

    def holds(t: Type) -> list[tree.Struct]:
        match t:
            case StructType(decl=decl):
                assert isinstance(decl, tree.Struct)
                return [decl]
            case TupleType(items):
                return [s for x in items for s in holds(x)]
            case OptionalType(of):
                return holds(of)
            case _:
                return []

    structs = checking.analysis.structs
    for item, info in structs.items():
        todo = [s for t in info.fields.values() for s in holds(t)]
        seen: set[tree.Struct] = set()
        while todo:
            current = todo.pop()
            if current is item:
                scope = Scope(checking, info.module)
                scope.report("E2122", f"the struct `{item.name.text}` contains itself", item.name)
                break
            if current not in seen:
                seen.add(current)
                todo += [s for t in structs[current].fields.values() for s in holds(t)]


# ---------------------------------------------------------------- functions


def _signature(checking: Checking, fn: tree.Fn, module: Module, block: BlockInfo | None) -> None:
    with checking.silence(fn in checking.broken):
        _read_signature(checking, fn, module, block)


def _read_signature(
    checking: Checking, fn: tree.Fn, module: Module, block: BlockInfo | None
) -> None:
    owner = Scope(checking, module)
    outer: tuple[tree.GenericParam, ...] = ()
    facts: tuple[Relation, ...] = ()
    if block is not None:
        outer, facts = block.block.generics, block.facts
        owner = owner.inner(outer, checking.known(facts, block.block), block=block.block)
    _generics(owner, fn.generics, outer)
    scope = owner.inner(fn.generics, fn=fn)
    clauses = _read_clauses(scope, fn)
    _prove_clauses(scope, fn, facts, clauses)
    refuse_repeats(
        scope, [*(g.name for g in fn.generics), *(p.name for p in fn.params)], "parameter"
    )
    params = tuple((p.name.text, typeexprs.resolve(scope, p.type)) for p in fn.params)
    result = typeexprs.resolve(scope, fn.result) if fn.result is not None else None
    checking.analysis.signatures[fn] = Signature(
        fn,
        module,
        block.block if block is not None else None,
        (*outer, *fn.generics),
        params,
        result,
        (*facts, *(r for _, r in clauses)),
    )


# ---------------------------------------------------------------- blocks


def _block(checking: Checking, item: tree.Block, module: Module) -> None:
    outer = Scope(checking, module)
    _generics(outer, item.generics)
    scope = outer.inner(item.generics)
    scope.block = item
    clauses = _read_clauses(scope, item)
    _prove_clauses(scope, item, (), clauses)
    names = [*(m.name for m in item.members), *(f.name for f in item.methods)]
    refuse_repeats(scope, [*(g.name for g in item.generics), *names], "member")
    for name in names:
        refuse_prelude(scope, name)
    impls = traits.implemented(scope, item)
    members: dict[str, MemberInfo] = {}
    for member in item.members:
        members.setdefault(member.name.text, _member(scope, member))
    methods: dict[str, tree.Fn] = {}
    for fn in (*item.methods, *traits.provided(impls)):
        methods.setdefault(fn.name.text, fn)
    info = BlockInfo(item, module, members, methods, tuple(r for _, r in clauses), impls)
    checking.analysis.blocks[item] = info
    for member in item.members:
        checking.analysis.symbols[member.name] = MemberName(member)
    for fn in item.methods:
        checking.analysis.symbols[fn.name] = MethodName(fn)
        _signature(checking, fn, module, info)


def _member(scope: Scope, member: tree.Member) -> MemberInfo:
    """A member of the type that its kind can have."""
    found = typeexprs.resolve(scope, member.type, component=True)
    optional = isinstance(found, OptionalType)
    of = found.of if isinstance(found, OptionalType) else found
    _member_value(scope, member, optional)
    kind, name = member.kind, member.name.text
    fault = None
    if isinstance(of, UnknownType):
        pass
    elif kind == "sub":
        if not isinstance(of, (BlockType, BlockArray)):
            fault = f"a `sub` is a block or an array of blocks; `{name}` is {of}"
    elif not isinstance(of, TensorType):
        fault = f"a `{kind}` is a tensor; `{name}` is {found}"
    elif optional and kind != "param":
        fault = f"a `{kind}` is always there; `{name}` cannot be optional"
    if fault is not None:
        scope.report("E4101", fault, member.type)
        of = UNKNOWN
    return MemberInfo(member, of, optional)


def _member_value(scope: Scope, member: tree.Member, optional: bool) -> None:
    """`= none` stands exactly at the members that may be absent."""
    kind, name = member.kind, member.name.text
    if member.value is None:
        if optional and kind in ("param", "sub"):
            end = member.type.span.end
            edit = Edit(Span(member.span.source, end, end), " = none")
            scope.report(
                "E4101",
                f"`{name}` may be absent, which is written `= none`",
                member.type,
                help=Help("add ` = none`", (edit,), safe=True),
            )
        return
    if not isinstance(bare(member.value), tree.NoneLit) or kind in ("buffer", "state"):
        holds = {
            "param": "a `param` takes its value from the weights",
            "buffer": "a `buffer` takes its value from the weights",
            "state": "a `state` is zeros at first",
            "sub": "a `sub` takes its values from the weights",
        }[kind]
        allowed = "" if kind in ("buffer", "state") else "; only `= none` may stand here"
        zero = kind == "state" and text_of(member.value) in ("0", "0.0", "none", "false")
        end = member.type.span.end
        rest = Span(member.span.source, end, member.value.span.end)
        help = Help("leave it out", (Edit(rest, ""),), safe=True) if zero else None
        scope.report(
            "E4102",
            f"{holds}, so `{name}` cannot be given `{text_of(member.value)}`{allowed}",
            member.value,
            help=help,
        )
    elif not optional:
        _needs_optional(scope, name, member.type)
