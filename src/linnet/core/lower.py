"""Analysis -> Program: the root's generics bound, one Function per block method and dtype.

The dimensions of entries, methods and free functions stay symbolic; those of blocks are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from linnet.check.analysis import Analysis, BlockInfo, Module
from linnet.check.blocks import blocks, manifest, roots
from linnet.core import expressions
from linnet.core.body import Body, field_types, proved_by, seen_outside
from linnet.core.ir import Function, Manifest, ManifestEntry, OpId, Program, stands_for
from linnet.core.values import (
    ABSENT,
    PLACEHOLDER,
    Absent,
    Bound,
    Fields,
    Present,
    Value,
    structure,
)
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Relation
from linnet.render import render_text
from linnet.syntax import tree
from linnet.types import (
    DTYPE_KINDS,
    DTYPES,
    BlockArray,
    BlockType,
    DType,
    EnumType,
    GenericValue,
    OptionalType,
    StructType,
    TensorType,
    TupleType,
    Type,
    dim_bindings,
    substitute,
    substitute_generic,
)

Generics = Mapping[str, int | str | tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A Function and the structure of its value results."""

    function: Function
    template: Value


class Lowering:
    """One program being lowered; functions are shared by what they are specialised on."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.functions: dict[str, Function] = {}
        self._lowered: dict[tuple[object, ...], Lowered] = {}
        self._bounds: dict[tuple[tree.Block, tuple[GenericValue, ...]], Bound] = {}

    def bound(self, block: BlockType, bindings: Mapping[str, GenericValue]) -> Bound:
        """The block instance with its arguments folded to constants."""
        assert isinstance(block.decl, tree.Block)
        args = tuple(_folded(substitute_generic(a, bindings)) for a in block.args)
        key = (block.decl, args)
        if key not in self._bounds:
            info = self.analysis.blocks[block.decl]
            names = [g.name.text for g in info.block.generics]
            text = f"{block.name}<{', '.join(map(str, args))}>" if args else block.name
            self._bounds[key] = Bound(info, dict(zip(names, args, strict=True)), text)
        return self._bounds[key]

    def optionals(self, info: BlockInfo, prefix: str = "") -> Iterator[str]:
        """The paths of all optional members in and below a block."""
        for name, member in info.members.items():
            path = prefix + name
            if member.optional:
                yield path
            of = member.type
            if isinstance(of, BlockArray):
                path, of = f"{path}.*", of.of
            if isinstance(of, BlockType):
                assert isinstance(of.decl, tree.Block)
                yield from self.optionals(self.analysis.blocks[of.decl], f"{path}.")

    # ------------------------------------------------------------ functions

    def function(
        self,
        fn: tree.Fn,
        module: Module,
        owner: Bound | None,
        presence: frozenset[str],
        own: Mapping[str, GenericValue],
        args: tuple[Value, ...],
    ) -> Lowered:
        """The Function of `fn` for these dtypes, pack ranks and argument structures.

        `own` binds the function's own generics in the caller's names; only dtypes and ranks count.
        """
        kept: dict[str, GenericValue] = {}
        for g in fn.generics:
            value = own[g.name.text]
            if isinstance(value, Dim):
                kept[g.name.text] = Dim.of(g.name.text)
            elif isinstance(value, tuple):
                kept[g.name.text] = tuple(Dim.of(f"{g.name.text}_{i}") for i in range(len(value)))
            else:
                kept[g.name.text] = value
        key = (
            fn,
            owner,
            presence,
            tuple(kept.items()),
            tuple(structure(a) for a in args),
        )
        if key not in self._lowered:
            self._lowered[key] = self._lower(fn, module, owner, presence, kept, args)
        return self._lowered[key]

    def _lower(
        self,
        fn: tree.Fn,
        module: Module,
        owner: Bound | None,
        presence: frozenset[str],
        own: Mapping[str, GenericValue],
        args: tuple[Value, ...],
    ) -> Lowered:
        signature = self.analysis.signatures[fn]
        bindings = {**(owner.generics(signature.block) if owner else {}), **own}
        facts = tuple(
            r
            for r in (f.substitute(dim_bindings(bindings)) for f in signature.facts)
            if r.left.constant is None or r.right.constant is None
        )
        for (_, type), arg in zip(signature.params, args, strict=True):
            held = proved_by(self.analysis, substitute(type, bindings), arg)
            facts += tuple(r for r in held if r.names() or not r.holds({}))
        facts = tuple(dict.fromkeys(facts))
        dims = tuple(d for g in fn.generics for d in _dim_names(own[g.name.text], g.name.text))
        body = Body(self, bindings, owner, presence, dims, facts)
        for param, (name, type), arg in zip(fn.params, signature.params, args, strict=True):
            body.bind(param.name, body.parameter(name, substitute(type, bindings), arg))
        value = body.reified(expressions.run(body, fn.body))
        name = self._unique(
            f"{owner.info.block.name.text}.{fn.name.text}" if owner else fn.name.text
        )
        result = signature.result
        function = body.finish(
            name=name,
            kind=_kind(fn, owner),
            op=OpId(self._package(module), module.name, fn.name.text) if fn.kind == "op" else None,
            block=owner.name if owner else None,
            value=value,
            facts=facts,
            returns=seen_outside(self.analysis, substitute(result, bindings), value)
            if result is not None
            else None,
            takes=tuple(
                (name, seen_outside(self.analysis, substitute(type, bindings), arg))
                for (name, type), arg in zip(signature.params, args, strict=True)
                if not isinstance(arg, Absent)
            ),
            span=fn.name.span,
            docs=fn.docs,
        )
        self.functions[name] = function
        return Lowered(function, value)

    def _package(self, module: Module) -> str:
        # A module may declare any name: what is std's is where it lies.
        package = module.file.package
        return package.name if package.is_std or package.name != "std" else "std (another)"

    def _unique(self, name: str) -> str:
        if name not in self.functions:
            return name
        count = 2
        while f"{name}.{count}" in self.functions:
            count += 1
        return f"{name}.{count}"


def _kind(fn: tree.Fn, owner: Bound | None) -> str:
    if fn.kind == "fn" and owner is not None:
        return "method"
    return fn.kind


def _dim_names(value: GenericValue, name: str) -> tuple[str, ...]:
    if isinstance(value, Dim):
        return (name,)
    if isinstance(value, tuple):
        return tuple(f"{name}_{i}" for i in range(len(value)))
    return ()


def _folded(value: GenericValue) -> GenericValue:
    if isinstance(value, Dim) and value.constant is None:
        raise AssertionError(f"a block generic is not bound: {value}")
    return value


# ---------------------------------------------------------------- whole programs


def lower(
    analysis: Analysis,
    *,
    root: str | None = None,
    generics: Generics | None = None,
    present: Callable[[str], bool] | Collection[str] = (),
    entries: Iterable[str] | None = None,
    main: str | None = None,
) -> Program:
    """Every entry of the root block (or `entries`), with its generics bound.

    An entry whose where clauses are false of them is left out, or an error if it was asked for.
    An optional member is there where `present` is true of its path (a `*` for each position of an
    array), or has its path, or one below it, among its own.
    Raises PlanError for findings of the checker, an unknown or ambiguous root, generics that are
    unknown, unbound, of the wrong kind or break a where clause, and dimensions below zero.
    """
    require_ok(analysis)
    module = main_module(analysis)
    block = root_block(analysis, module, root)
    if block is None:
        return _lower_free(analysis, module, generics or {}, entries, main)
    info = analysis.blocks[block]
    bindings = bind_generics(analysis, block, generics or {})
    lowering = Lowering(analysis)
    args = tuple(bindings[g.name.text] for g in block.generics)
    bound = lowering.bound(BlockType(block, block.name.text, args), {})
    optionals = tuple(lowering.optionals(info))
    there = present if callable(present) else _among(present)
    presence = frozenset(p for p in optionals if there(p))
    listed = bound_manifest(analysis, block, bindings)
    found: dict[str, Function] = {}
    refused: dict[str, str] = {}
    available = [m for m in info.methods.values() if m.kind == "entry"]
    for fn in _chosen(available, entries, block.name.text):
        refusal = _refusal(analysis, fn, block, bindings)
        if refusal is None:
            module = analysis.signatures[fn].module
            found[fn.name.text] = _lower_entry(lowering, fn, module, bound, presence)
        elif entries is not None or main == fn.name.text:
            raise PlanError(refusal)
        else:
            refused[fn.name.text] = refusal
    program = _program(lowering, block.name.text, found, listed, bindings, main)
    absent = tuple(p for p in optionals if p not in presence)
    return replace(program, absent=absent, refused=refused)


def _among(paths: Collection[str]) -> Callable[[str], bool]:
    """Whether a member of this path, at some position of its arrays, is among the paths."""
    return lambda path: any(stands_for(path, given) for given in paths)


def _lower_free(
    analysis: Analysis,
    module: Module,
    generics: Generics,
    entries: Iterable[str] | None,
    main: str | None,
) -> Program:
    available = [i for i in module.items.values() if isinstance(i, tree.Fn) and i.kind == "entry"]
    if not available:
        raise PlanError(f"{module.file.source.name} has neither a root block nor an entry")
    if generics:
        raise PlanError(
            f"{module.name} has no root block, so there is no generic "
            f"{next(iter(generics))} to bind"
        )
    lowering = Lowering(analysis)
    found = {
        fn.name.text: _lower_entry(lowering, fn, module, None, frozenset())
        for fn in _chosen(available, entries, module.name)
    }
    return _program(lowering, module.name, found, Manifest(module.name, ()), {}, main)


def lower_function(
    analysis: Analysis,
    module: str,
    name: str,
    *,
    dtypes: Mapping[str, str] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Iterable[str] = (),
) -> Program:
    """One free function as a program with one entry: `dtypes` binds its dtype generics, `ranks`
    its packs, `absent` names optional parameters that are not passed."""
    require_ok(analysis)
    item = analysis.modules[module].items.get(name) if module in analysis.modules else None
    if not isinstance(item, tree.Fn):
        raise PlanError(f"{module} has no function {name}")
    own: dict[str, GenericValue] = {}
    for g in item.generics:
        own[g.name.text] = _free_generic(name, g, dtypes or {}, ranks or {})
    signature = analysis.signatures[item]
    lowering = Lowering(analysis)
    missing = frozenset(absent)
    args = tuple(_argument(analysis, type, n in missing) for n, type in signature.params)
    lowered = lowering.function(item, analysis.modules[module], None, frozenset(), own, args)
    return _program(lowering, module, {name: lowered.function}, Manifest(module, ()), {}, name)


def refuse_unknown(
    analysis: Analysis,
    module: str,
    name: str,
    dtypes: Mapping[str, str] | None,
    ranks: Mapping[str, int] | None,
    absent: Iterable[str],
) -> None:
    """Raises PlanError for what `lower_function` is given that the function does not have."""
    require_ok(analysis)
    item = analysis.modules[module].items.get(name)
    if not isinstance(item, tree.Fn):
        raise PlanError(f"{module} has no function {name}")
    own = [g.name.text for g in item.generics if not g.pack and g.kind.text != "Dim"]
    packs = [g.name.text for g in item.generics if g.pack]
    params = analysis.signatures[item].params
    optional = [param for param, type in params if isinstance(type, OptionalType)]
    for given, known, what in (
        (dtypes or {}, own, "dtype generic"),
        (ranks or {}, packs, "pack"),
        (absent, optional, "optional parameter"),
    ):
        for one in given:
            if one not in known:
                listed = ", ".join(known) or "none"
                raise PlanError(f"{name} has no {what} {one}; there is {listed}")
    for pack, count in (ranks or {}).items():
        if not isinstance(count, int) or count < 0:
            raise PlanError(f"{name}: *{pack} has a number of axes from 0, not {count!r}")


def _free_generic(
    fn: str, g: tree.GenericParam, dtypes: Mapping[str, str], ranks: Mapping[str, int]
) -> GenericValue:
    name = g.name.text
    if g.pack:
        if name not in ranks:
            raise PlanError(f"{fn} needs the number of axes of *{name}: ranks={{'{name}': 2}}")
        return tuple(Dim.of(f"{name}_{i}") for i in range(ranks[name]))
    if g.kind.text == "Dim":
        return Dim.of(name)
    if name in dtypes:
        return _dtype(fn, g, dtypes[name])
    if isinstance(g.default, tree.Name) and g.default.text in DTYPES:
        return DTYPES[g.default.text]
    raise PlanError(f"{fn} needs a dtype for {name}: dtypes={{'{name}': 'f32'}}")


def require_ok(analysis: Analysis) -> None:
    """Raises PlanError with the rendered findings when the checker found errors."""
    if not analysis.ok:
        errors = tuple(d for d in analysis.findings.sorted() if d.severity == "error")
        plural = "error" if len(errors) == 1 else "errors"
        raise PlanError(
            f"the source has {len(errors)} {plural}\n\n{render_text(errors)}".rstrip(), errors
        )


def main_module(analysis: Analysis) -> Module:
    """The module that a program is named by: `lib.linnet` where it was asked for."""
    for module in analysis.roots:
        if module.file.source.name.endswith("lib.linnet"):
            return module
    return analysis.roots[0]


def root_block(analysis: Analysis, module: Module, root: str | None) -> tree.Block | None:
    """The block of this name, else the one root; None where there is none."""
    if root is not None:
        item = module.items.get(root)
        names = [block.name.text for block in blocks(module)]
        if isinstance(item, tree.Block) and root in names:
            return item
        if isinstance(item, tree.Trait):
            raise PlanError(f"{root} is a trait: choose a block that implements it")
        raise PlanError(f"{module.file.source.name} has no block {root}{_near(root, names)}")
    found = roots(analysis, module)
    if len(found) > 1:
        listed = ", ".join(b.name.text for b in found)
        raise PlanError(f"{module.name} has several root blocks ({listed}): choose one with root=")
    return found[0] if found else None


def bind_generics(
    analysis: Analysis, block: tree.Block, given: Generics
) -> dict[str, GenericValue]:
    """Every generic of a root block bound to a constant, and its where clauses true."""
    owner = block.name.text
    out = bind_given(analysis, block, given)
    broken = _broken(analysis.blocks[block].facts, block, out)
    if broken is not None:
        raise PlanError(f"{owner} requires {broken}")
    missing = [g.name.text for g in block.generics if g.name.text not in out and g.default is None]
    if missing:
        raise PlanError(
            f"{owner} needs values for {', '.join(missing)}: "
            f"generics={{{', '.join(f'{n!r}: ...' for n in missing)}}}"
        )
    return out


def bind_given(analysis: Analysis, block: tree.Block, given: Generics) -> dict[str, GenericValue]:
    """What is given, and the defaults that follow from it, as constants."""
    owner, names = block.name.text, [g.name.text for g in block.generics]
    for name in given:
        if name not in names:
            raise PlanError(f"{owner} has no generic {name}{_near(name, names)}")
    out: dict[str, GenericValue] = {}
    for g in block.generics:
        name = g.name.text
        if name in given:
            out[name] = _generic(owner, g, given[name])
        elif g.default is not None:
            value = _default(analysis, owner, g, out)
            if value is not None:
                out[name] = value
    return out


def refusals(analysis: Analysis, block: tree.Block, generics: Generics) -> dict[str, str]:
    """The entries of a root block that cannot be run with these generics, and why."""
    bindings = bind_generics(analysis, block, generics)
    methods = analysis.blocks[block].methods
    found = {name: _refusal(analysis, fn, block, bindings) for name, fn in methods.items()}
    return {
        name: refusal
        for name, refusal in found.items()
        if refusal is not None and methods[name].kind == "entry"
    }


def _refusal(
    analysis: Analysis, fn: tree.Fn, block: tree.Block, bindings: Mapping[str, GenericValue]
) -> str | None:
    """Why an entry cannot be run with these generics of its block, whatever it is called with."""
    own = {g.name.text for g in fn.generics}
    outer = {name: value for name, value in bindings.items() if name not in own}
    broken = _broken(analysis.signatures[fn].facts, block, outer)
    return None if broken is None else f"{block.name.text}.{fn.name.text} requires {broken}"


def _broken(
    facts: Iterable[Relation], block: tree.Block, bound: Mapping[str, GenericValue]
) -> str | None:
    """The first fact that is false of the block's bound sizes, and the sizes in it."""
    sizes = {
        n: v.constant for n, v in bound.items() if isinstance(v, Dim) and v.constant is not None
    }
    for fact in facts:
        used = fact.left.names() | fact.right.names()
        if used <= sizes.keys() and not _holds(fact, sizes):
            names = [g.name.text for g in block.generics]
            listed = ", ".join(f"{n} = {sizes[n]}" for n in names if n in used)
            return f"{fact}, which does not hold with {listed}"
    return None


def _holds(fact: Relation, sizes: Mapping[str, int]) -> bool:
    try:
        return fact.holds(sizes)
    except ZeroDivisionError:
        return False


def _generic(owner: str, g: tree.GenericParam, value: object) -> GenericValue:
    name = g.name.text
    if g.pack:
        raise PlanError(f"{owner}: the pack *{name} cannot be bound from outside")
    if g.kind.text != "Dim":
        return _dtype(owner, g, value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanError(f"{owner}: {name} is a dimension and takes an integer, not {value!r}")
    if value < 0:
        raise PlanError(f"{owner}: {name} = {value} is negative; a dimension is at least 0")
    return Dim.of(value)


def _dtype(owner: str, g: tree.GenericParam, value: object) -> DType:
    name = g.name.text
    may = [one for one, dtype in DTYPES.items() if dtype in DTYPE_KINDS[g.kind.text]]
    dtype = DTYPES.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise PlanError(f"{owner}: {name} is a dtype, one of {', '.join(may)}, not {value!r}")
    if dtype.name not in may:
        raise PlanError(
            f"{owner}: {name} takes a {g.kind.text} dtype ({', '.join(may)}), not {dtype}"
        )
    return dtype


def _default(
    analysis: Analysis, owner: str, g: tree.GenericParam, out: Mapping[str, GenericValue]
) -> GenericValue | None:
    """The default in the generics before it; None where it needs one that is not bound."""
    default = g.default
    assert default is not None
    if g.kind.text != "Dim":
        assert isinstance(default, tree.Name)
        return DTYPES.get(default.text) or out.get(default.text)
    value = analysis.dims[default]
    if value.names() - out.keys():
        return None
    folded = value.substitute(dim_bindings(out))
    if folded.constant is None:
        raise PlanError(f"{owner}: the default of {g.name.text} divides by zero: {folded}")
    if folded.constant < 0:
        raise PlanError(f"{owner}: the default of {g.name.text}, {value}, is {folded}, negative")
    return folded


# Of one declaration: the paths of all are written out, and the largest published model has 24,000.
MOST_MEMBERS = 1 << 16


def bound_manifest(
    analysis: Analysis,
    block: tree.Block,
    bindings: Mapping[str, GenericValue],
) -> Manifest:
    """Every param, buffer and state of a root block whose generics are all constants."""
    dims = dim_bindings(bindings)
    out: list[ManifestEntry] = []
    for entry in manifest(analysis, block):
        where = f"{entry.kind} {entry.path}"
        repeat = tuple(_extent(where, length.substitute(dims), length) for length in entry.lengths)
        if math.prod(repeat) > MOST_MEMBERS:
            raise PlanError(
                f"{where}: there are {math.prod(repeat):,} of it with these sizes; a model has "
                f"{MOST_MEMBERS:,} at most"
            )
        type = substitute(entry.type, bindings)
        assert isinstance(type, TensorType)
        for axis, declared in zip(type.shape, entry.type.shape, strict=True):
            assert isinstance(axis, Dim) and isinstance(declared, Dim)
            _extent(where, axis, declared)
        out.append(ManifestEntry(entry.path, repeat, entry.kind, type, entry.optional))
    return Manifest(block.name.text, tuple(out))


def _extent(where: str, bound: Dim, declared: Dim) -> int:
    value = bound.constant
    if value is None:
        raise PlanError(f"{where}: the dimension {declared} divides by zero with these sizes")
    if value < 0:
        raise PlanError(f"{where}: the dimension {declared} is {value} with these sizes")
    return value


def _lower_entry(
    lowering: Lowering,
    fn: tree.Fn,
    module: Module,
    owner: Bound | None,
    presence: frozenset[str],
) -> Function:
    own: dict[str, GenericValue] = {}
    for g in fn.generics:
        if g.pack or g.kind.text != "Dim":
            kind = "pack" if g.pack else "dtype"
            raise PlanError(
                f"entry {fn.name.text} is generic over the {kind} {g.name.text}: "
                "an entry can leave only dimensions open"
            )
        own[g.name.text] = Dim.of(g.name.text)
    signature = lowering.analysis.signatures[fn]
    args = tuple(_argument(lowering.analysis, type) for _, type in signature.params)
    return lowering.function(fn, module, owner, presence, own, args).function


def _argument(analysis: Analysis, type: Type, absent: bool = False) -> Value:
    """The structure of an outside argument: optionals present unless named."""
    match type:
        case OptionalType(of):
            return ABSENT if absent else Present(_argument(analysis, of))
        case TupleType(items):
            return tuple(_argument(analysis, t) for t in items)
        case StructType():
            fields = field_types(analysis, type).items()
            return Fields(type, tuple((name, _argument(analysis, t)) for name, t in fields))
        case TensorType() | EnumType():
            return PLACEHOLDER
        case _:
            raise PlanError(f"a parameter of type {type} cannot be passed from outside")


def _chosen(available: list[tree.Fn], entries: Iterable[str] | None, owner: str) -> list[tree.Fn]:
    if entries is None:
        return available
    by_name = {fn.name.text: fn for fn in available}
    for name in (chosen := list(entries)):
        if name not in by_name:
            raise PlanError(
                f"{owner} has no entry {name}{_near(name, list(by_name))}; "
                f"it has {', '.join(by_name) or 'none'}"
            )
    return [by_name[name] for name in chosen]


def _program(
    lowering: Lowering,
    name: str,
    entries: dict[str, Function],
    listed: Manifest,
    bindings: Mapping[str, GenericValue],
    main: str | None,
) -> Program:
    if main is None:
        only = next(iter(entries)) if len(entries) == 1 else ""
        main = "forward" if "forward" in entries else only
    elif main not in entries:
        raise PlanError(f"{name} has no entry {main}{_near(main, list(entries))}")
    generics: dict[str, int | str] = {}
    for generic, value in bindings.items():
        generics[generic] = (
            value.constant if isinstance(value, Dim) and value.constant is not None else str(value)
        )
    return Program(name, dict(lowering.functions), entries, listed, generics, main)


def _near(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else ""
