"""The checked program as Python objects: blocks, functions, entries, parameters.

`load_program(source)` checks and answers a Program. Dimensions, shapes, types and signatures print
as the language spells them. Nothing here needs an array library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from linnet.check import check
from linnet.check.analysis import Analysis, BlockInfo, Module
from linnet.check.blocks import Entry as DeclaredEntry
from linnet.check.blocks import blocks, instance_of, manifest, roots
from linnet.check.traits import own_generics
from linnet.check.typeexprs import identity
from linnet.core import ir as core
from linnet.core.lower import (
    Generics,
    Lowering,
    bind_generics,
    bind_given,
    bound_manifest,
    lower,
    main_module,
    require_ok,
    root_block,
)
from linnet.core.passes import optimize as run_passes
from linnet.diagnostics import PlanError
from linnet.dims import Dim, Relation
from linnet.dims.search import models
from linnet.policy import policy_named
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import (
    DTYPE_KINDS,
    DTYPES,
    GenericValue,
    Pack,
    TensorType,
    Type,
    dim_bindings,
    substitute,
)
from linnet.workspace import Workspace

Size = int | Dim | Pack
Value = int | str | tuple[int, ...]

__all__ = ["Block", "Function", "Generic", "Member", "Parameter", "Program", "Row", "load_program"]


@dataclass(frozen=True, slots=True)
class Generic:
    """`H: Dim`, `*S: Shape`, `T: Float = bf16`."""

    name: str
    kind: str
    pack: bool
    default: str | None

    def __str__(self) -> str:
        return f"{'*' * self.pack}{self.name}: {self.kind}{_equals(self.default)}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    name: str
    type: Type
    default: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{_equals(self.default)}"


@dataclass(frozen=True, slots=True)
class Function:
    """A function's signature, and the members it touches through its calls.

    `reads` and `writes` are states, `uses` params and buffers, as paths below its block (`{i}` for
    a position in an array). `where` holds its own clauses, in the source's words. `trait` names
    the trait that provides it to its block; a trait's own is `required` where it has no body.
    """

    name: str
    kind: Literal["fn", "op", "entry"]
    module: str
    block: str | None
    public: bool
    generics: tuple[Generic, ...]
    params: tuple[Parameter, ...]
    result: Type | None
    where: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    uses: tuple[str, ...]
    docs: str
    span: Span
    trait: str | None = None
    required: bool = False

    @property
    def signature(self) -> str:
        """The first line of its declaration, without `where`."""
        result = "" if self.result is None else f" -> {self.result}"
        params = ", ".join(map(str, self.params))
        return f"{self.kind} {self.name}{_listed(self.generics)}({params}){result}"

    def __str__(self) -> str:
        return "\n".join([broken(self.signature), *_where(self.where), *self._state()])

    def _state(self) -> list[str]:
        both = [path for path in self.reads if path in self.writes]
        groups = (
            ("reads", [path for path in self.reads if path not in both]),
            ("reads and writes", both),
            ("writes", [path for path in self.writes if path not in both]),
        )
        return [f"    {what} {', '.join(paths)}" for what, paths in groups if paths]


@dataclass(frozen=True, slots=True)
class Member:
    """A `param`, `buffer`, `state` or `sub` of a block."""

    name: str
    kind: Literal["param", "buffer", "state", "sub"]
    type: Type
    optional: bool
    docs: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.type}{'? = none' * self.optional}"


@dataclass(frozen=True, slots=True)
class Block:
    """A block: its generics, where clauses, members and methods, and the traits it implements.

    A trait is told of like a block without members.
    """

    name: str
    module: str
    public: bool
    generics: tuple[Generic, ...]
    where: tuple[str, ...]
    members: tuple[Member, ...]
    methods: tuple[Function, ...]
    docs: str
    span: Span
    traits: tuple[str, ...] = ()
    kind: Literal["block", "trait"] = "block"

    def __str__(self) -> str:
        lines = [broken(f"{self.kind} {self.name}{_listed(self.generics)}"), *_where(self.where)]
        lines += [f"    impl {trait}" for trait in self.traits]
        lines += [f"    {member}" for member in self.members]
        for method in self.methods:
            lines += [f"    {line}" for line in str(method).split("\n")]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Row:
    """A param, buffer or state below the root block.

    `path` has `{i}` (then `{j}`, ...) for a position in a sub array, `repeat` those arrays'
    lengths. Sizes are integers where they are bound, else dimensions.
    """

    path: str
    kind: Literal["param", "buffer", "state"]
    dtype: str
    shape: tuple[Size, ...]
    repeat: tuple[int | Dim, ...]
    optional: bool

    @property
    def count(self) -> int | None:
        """How many elements there are over all positions, where every size is bound."""
        sizes = [size for size in (*self.shape, *self.repeat) if isinstance(size, int)]
        return math.prod(sizes) if len(sizes) == len(self.shape) + len(self.repeat) else None

    @property
    def nbytes(self) -> int | None:
        """Their bytes, where the dtype is bound too."""
        count, dtype = self.count, DTYPES.get(self.dtype)
        return None if count is None or dtype is None else count * dtype.bits // 8

    @property
    def type(self) -> str:
        """One position's type, as the language spells it."""
        shape = ", ".join(map(str, self.shape))
        return (f"Tensor[{shape}; {self.dtype}]" if shape else self.dtype) + "?" * self.optional

    def __str__(self) -> str:
        repeat = "".join(f" x {length}" for length in self.repeat)
        return f"{self.kind} {self.path}: {self.type}{repeat}"


Named = TypeVar("Named", Block, Function)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A source that checks, seen from one root block (the only one, or the one that was named).

    `blocks` are the package's own and those they are made of, `functions` the package's free ones,
    `traits` its own and those of its blocks.
    """

    name: str
    root: str | None
    blocks: tuple[Block, ...]
    functions: tuple[Function, ...]
    analysis: Analysis
    optimize: bool = True
    traits: tuple[Block, ...] = ()

    # ------------------------------------------------------------ looking

    def entries(self) -> tuple[Function, ...]:
        """What can be run: the root block's entries; without one root, all there are."""
        names = {self.root} if self.root else {b.name.text for b in self._roots()}
        held = [f for b in self.blocks if b.name in names for f in b.methods]
        free = () if self.root else self.functions
        return tuple(f for f in (*held, *free) if f.kind == "entry")

    def entry(self, name: str) -> Function:
        """The entry of this name."""
        found = [f for f in self.entries() if f.name == name]
        if len(found) > 1:
            blocks = ", ".join(f.block or "a free one" for f in found)
            raise PlanError(f"{self.name} has several entries {name} ({blocks}): give the root")
        return _only(found, f"{self.name} has no entry {name}", name, self.entries())

    def block(self, name: str) -> Block:
        """The block of this name."""
        found = [b for b in self.blocks if b.name == name]
        return _only(found[:1], f"{self.name} has no block {name}", name, self.blocks)

    def own_blocks(self) -> tuple[Block, ...]:
        """The blocks that the package declares itself."""
        return self._own(self.blocks)

    def own_traits(self) -> tuple[Block, ...]:
        """The traits that the package declares itself."""
        return self._own(self.traits)

    def _own(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        own = {m.name for m in _own_modules(self.analysis)}
        return tuple(b for b in blocks if b.module in own)

    def methods(self, block: str) -> tuple[Function, ...]:
        """The methods of a block, entries among them, in the order of declaration; then those
        that its traits provide."""
        return self.block(block).methods

    def function(self, name: str) -> Function:
        """The free function of this name."""
        found = [f for f in self.functions if f.name == name]
        return _only(found[:1], f"{self.name} has no function {name}", name, self.functions)

    def parameters(self, generics: Generics | None = None) -> tuple[Row, ...]:
        """Every param, buffer and state of the root block, in the order of declaration.

        Sizes stay as the source has them; `generics` binds some or all of them. Once all are
        bound, they are checked against the where clauses.
        """
        block = self._root()
        if block is None:
            return ()
        given = dict(generics or {})
        if not given:
            return tuple(_row(e) for e in manifest(self.analysis, block))
        bound = bind_given(self.analysis, block, given)
        if len(bound) == len(block.generics):
            bound = bind_generics(self.analysis, block, given)
            listed = bound_manifest(self.analysis, block, bound).entries
            return tuple(
                _row(
                    DeclaredEntry(e.path, tuple(map(Dim.of, e.repeat)), e.kind, e.type, e.optional)
                )
                for e in listed
            )
        return tuple(_row(_substituted(e, bound)) for e in manifest(self.analysis, block))

    def optionals(self) -> tuple[str, ...]:
        """The paths of the root block's optional members; `*` is each position of an array."""
        block = self._root()
        if block is None:
            return ()
        return tuple(Lowering(self.analysis).optionals(self.analysis.blocks[block]))

    def generics(self) -> tuple[Generic, ...]:
        """The root block's generics; none where there is no root."""
        block = self._root()
        return () if block is None else tuple(map(_generic, block.generics))

    # ------------------------------------------------------------ lowering

    def example(self, generics: Generics | None = None) -> dict[str, Value]:
        """`generics`, and small sizes that satisfy the where clauses for whatever has no value."""
        return next(self.examples(generics))

    def examples(self, generics: Generics | None = None) -> Iterator[dict[str, Value]]:
        """A few different ways to bind what has no value, the smallest first."""
        given = dict(generics or {})
        block = self._root()
        if block is None:
            yield given
            return
        bound = bind_given(self.analysis, block, given)
        kinds = {g.name.text: g for g in block.generics if not g.pack and g.name.text not in bound}
        open_dims = [n for n, g in kinds.items() if g.kind.text == "Dim" and g.default is None]
        open_dtypes = [n for n, g in kinds.items() if g.kind.text != "Dim" and g.default is None]
        found = False
        for turn, sizes in enumerate(self._sizes(block, bound, open_dims)):
            dtypes = {n: _some_dtype(kinds[n].kind.text, turn) for n in open_dtypes}
            candidate: dict[str, Value] = {**given, **sizes, **dtypes}
            try:
                values = bind_generics(self.analysis, block, candidate)
                bound_manifest(self.analysis, block, values)
            except PlanError:
                continue
            found = True
            yield candidate
        if not found:
            # The message names what has no value, or the clause that does not hold.
            bind_generics(self.analysis, block, given)

    def _sizes(
        self, block: tree.Block, bound: Mapping[str, Any], names: list[str]
    ) -> Iterator[dict[str, int]]:
        facts = [f.substitute(dim_bindings(bound)) for f in self.analysis.blocks[block].facts]
        for g in block.generics:
            if g.default is not None and g.kind.text == "Dim" and g.name.text not in bound:
                value = self.analysis.dims[g.default].substitute(dim_bindings(bound))
                facts.append(Relation("==", Dim.of(g.name.text), value))
        known = [f for f in facts if f.names()]
        # The first two differ in what a size of 1 changes.
        found = [
            list(
                islice(models([*known, *(Relation(">=", Dim.of(n), Dim.of(m)) for n in names)]), 2)
            )
            for m in (2, 1, 4, 0)
        ]
        for sizes in (group[i] for i in (0, 1) for group in found if i < len(group)):
            yield {n: sizes[n] for n in names}

    def lower(
        self,
        generics: Generics | None = None,
        *,
        entries: Iterable[str] | None = None,
        main: str | None = None,
        numerics: str = "exact",
        present: Callable[[str], bool] | Collection[str] = (),
    ) -> core.Program:
        """The program as nodes, its generics bound, after the passes where `optimize` asks so.

        Optional members are there where `present`, the members by path or a predicate, has them.
        """
        policy = policy_named(numerics)
        lowered = lower(
            self.analysis,
            root=self.root,
            generics=generics,
            present=present,
            entries=entries,
            main=main,
        )
        return run_passes(lowered, policy) if self.optimize else lowered

    # ------------------------------------------------------------ telling

    def describe(self, generics: Generics | None = None) -> dict[str, Any]:
        """Everything as plain data, ready for JSON."""
        return {
            "program": self.name,
            "root": self.root,
            "blocks": [_block_data(b) for b in self.blocks],
            "traits": [_block_data(t) for t in self.traits],
            "functions": [function_data(f) for f in self.functions],
            "entries": [f"{f.block}.{f.name}" if f.block else f.name for f in self.entries()],
            "parameters": None if self.root is None else parameters_data(self.parameters(generics)),
        }

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*self.own_traits(), *self.own_blocks(), *self.functions]))

    def _roots(self) -> list[tree.Block]:
        return roots(self.analysis, main_module(self.analysis))

    def _root(self) -> tree.Block | None:
        module = main_module(self.analysis)
        block = root_block(self.analysis, module, self.root)
        if block is None and not any(f.kind == "entry" for f in self.functions):
            names = [each.name.text for each in blocks(module)]
            if names:
                raise PlanError(
                    f"{module.name} has no root block, one with entries that no block holds: "
                    f"name one as the root (root=, --root): {', '.join(names)}"
                )
        return block


def load_program(
    source: str | Path,
    *,
    root: str | None = None,
    std_root: str | Path | None = None,
    constants: Mapping[str, bool | int | float] | None = None,
    optimize: bool = True,
) -> Program:
    """The program in a file or a package, checked.

    Raises PlanError with every finding where the source has errors, and for an unknown root.
    `optimize` says whether `Program.lower` runs the passes.
    """
    analysis = check(Workspace(std_root=std_root), source, constants=constants)
    return program_of(analysis, root=root, optimize=optimize)


def program_of(analysis: Analysis, *, root: str | None = None, optimize: bool = True) -> Program:
    """The Program of what has been checked already."""
    require_ok(analysis)
    module = main_module(analysis)
    if root is not None:
        root_block(analysis, module, root)
    else:
        found = roots(analysis, module)
        root = found[0].name.text if len(found) == 1 else None
    own = _own_modules(analysis)
    functions = [
        _function(analysis, item, m, None)
        for m in own
        for item in m.items.values()
        if isinstance(item, tree.Fn)
    ]
    held = [_block(analysis, info) for info in _reached(analysis, own)]
    blocks = tuple(b for b in held if b.kind == "block")
    traits = tuple(b for b in held if b.kind == "trait")
    return Program(module.name, root, blocks, tuple(functions), analysis, optimize, traits)


def parse_binding(text: str) -> tuple[str, Value]:
    """`H=8`, `T=bf16`, `S=2,3` as a name and an integer, a dtype's name, or the sizes of a pack."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier() or not value:
        raise PlanError(f"`{text}` binds nothing: write NAME=VALUE, such as H=8 or T=bf16")
    if value in DTYPES:
        return name, value
    try:
        numbers = tuple(int(part) for part in value.removesuffix(",").split(","))
    except ValueError:
        near = get_close_matches(value, DTYPES, 1)
        hint = f"; did you mean {near[0]}?" if near else f": {', '.join(DTYPES)}"
        raise PlanError(
            f"`{text}`: {value} is neither a size, nor sizes such as 2,3, nor a dtype{hint}"
        ) from None
    if min(numbers) < 0:
        raise PlanError(f"`{text}`: a size is at least 0")
    return name, numbers if "," in value else numbers[0]


# ---------------------------------------------------------------- records of the analysis


def _own_modules(analysis: Analysis) -> list[Module]:
    """The package's modules; of the standard library, which is one package, those asked for."""
    if analysis.package.is_std:
        return analysis.roots
    return [m for m in analysis.modules.values() if m.file.package is analysis.package]


def _reached(analysis: Analysis, own: list[Module]) -> list[BlockInfo]:
    """The modules' blocks and traits, and all that they hold and implement, in the order of
    declaration."""
    ours = {m.name for m in own}
    wanted = [info.block for info in analysis.blocks.values() if info.module.name in ours]
    seen = set(wanted)
    for block in wanted:
        info = analysis.blocks[block]
        held = [instance_of(member) for member in info.members.values()]
        for instance in (*held, *(impl.trait for impl in info.impls)):
            if instance is not None and isinstance(instance.decl, tree.Block):
                if instance.decl not in seen:
                    seen.add(instance.decl)
                    wanted.append(instance.decl)
    return [analysis.blocks[block] for block in wanted]


def _block(analysis: Analysis, info: BlockInfo) -> Block:
    block = info.block
    members = tuple(
        Member(name, m.member.kind, m.type, m.optional, m.member.docs)
        for name, m in info.members.items()
    )
    methods = tuple(
        _function(analysis, fn, analysis.signatures[fn].module, info)
        for fn in info.methods.values()
    )
    return Block(
        block.name.text,
        info.module.name,
        block.public,
        tuple(map(_generic, block.generics)),
        _clauses(block.where),
        members,
        methods,
        block.docs,
        block.name.span,
        tuple(str(impl.trait) for impl in info.impls),
        "trait" if isinstance(block, tree.Trait) else "block",
    )


def _function(analysis: Analysis, fn: tree.Fn, module: Module, info: BlockInfo | None) -> Function:
    signature, effects = analysis.signatures[fn], analysis.effects.get(fn)
    if info is not None and isinstance(info.block, tree.Trait):
        effects = None  # they differ from block to block
    generics, where = tuple(map(_generic, fn.generics)), _clauses(fn.where)
    bindings: dict[str, GenericValue] = {}
    trait = None
    if info is not None and signature.block is not None and signature.block is not info.block:
        effects, trait = info.effects.get(fn), signature.block.name.text
        own = own_generics(fn, info)
        bindings = {**info.bindings(identity(info.block.generics), signature.block), **own}
        clauses = signature.facts[len(signature.facts) - len(fn.where) :]
        where = tuple(str(c.substitute(dim_bindings(bindings))) for c in clauses)
        names = (v[0] if isinstance(v, tuple) else v for v in own.values())
        generics = tuple(
            replace(g, name=str(name).lstrip("*")) for g, name in zip(generics, names, strict=True)
        )
    params = tuple(
        Parameter(
            name, substitute(type, bindings), None if p.default is None else _words(p.default.span)
        )
        for p, (name, type) in zip(fn.params, signature.params, strict=True)
    )

    def paths(found: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(map(_numbered, found)))

    return Function(
        fn.name.text,
        fn.kind,
        module.name,
        None if info is None else info.block.name.text,
        fn.public,
        generics,
        params,
        None if signature.result is None else substitute(signature.result, bindings),
        where,
        paths(effects.reads if effects else ()),
        paths(effects.writes if effects else ()),
        paths(effects.members if effects else ()),
        fn.docs,
        fn.name.span,
        trait,
        fn.required,
    )


def _generic(g: tree.GenericParam) -> Generic:
    default = None if g.default is None else _words(g.default.span)
    return Generic(g.name.text, g.kind.text, g.pack, default)


def _clauses(where: tuple[tree.Relation, ...]) -> tuple[str, ...]:
    return tuple(_words(clause.span) for clause in where)


def _words(span: Span) -> str:
    return " ".join(span.text.split())


def _row(entry: DeclaredEntry) -> Row:
    return Row(
        _numbered(entry.path),
        entry.kind,
        str(entry.type.dtype),
        tuple(axis if isinstance(axis, Pack) else _size(axis) for axis in entry.type.shape),
        tuple(map(_size, entry.lengths)),
        entry.optional,
    )


def _size(dim: Dim) -> int | Dim:
    return dim if dim.constant is None else dim.constant


def _numbered(path: str) -> str:
    """Positions as `{i}`, `{j}`, ...: bindings are written so."""
    first, *rest = path.split("*")
    return first + "".join(f"{{{chr(ord('i') + n)}}}{part}" for n, part in enumerate(rest))


def _substituted(entry: DeclaredEntry, bound: Mapping[str, Any]) -> DeclaredEntry:
    type = substitute(entry.type, bound)
    assert isinstance(type, TensorType)
    lengths = tuple(length.substitute(dim_bindings(bound)) for length in entry.lengths)
    return DeclaredEntry(entry.path, lengths, entry.kind, type, entry.optional)


def _some_dtype(kind: str, turn: int) -> str:
    """A dtype of the kind, another one on another turn."""
    liked = [n for n in ("f32", "bf16", "i32", "bool") if DTYPES[n] in DTYPE_KINDS[kind]]
    return liked[turn % len(liked)]


def _only(found: list[Named], message: str, name: str, known: Iterable[Named]) -> Named:
    if found:
        return found[0]
    names = list(dict.fromkeys(one.name for one in known))
    near = get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names) or 'none'}"
    raise PlanError(message + hint)


# ---------------------------------------------------------------- text and plain data


def _equals(default: str | None) -> str:
    return "" if default is None else f" = {default}"


def _listed(generics: tuple[Generic, ...]) -> str:
    return f"<{', '.join(map(str, generics))}>" if generics else ""


def _where(clauses: tuple[str, ...]) -> list[str]:
    return [broken(f"    where {', '.join(clauses)}")] if clauses else []


def broken(line: str, width: int = 92) -> str:
    """The line broken between parameters, generics or clauses where it is longer than the width."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    lines: list[str] = []
    open_brackets: list[str] = []
    current = ""
    for i, c in enumerate(line):
        current += c
        if c in "([" or (c == "<" and line[i + 1] not in "= "):
            open_brackets.append(c)
        elif open_brackets and (c in ")]" or (c == ">" and line[i - 1] not in "- ")):
            open_brackets.pop()
        if c == "," and "[" not in open_brackets and len(open_brackets) < 2:
            if lines and len(lines[-1]) + len(current) <= width:
                lines[-1] += current
            else:
                lines.append(current if not lines else indent + current.lstrip())
            current = ""
    if not lines:
        return current
    if len(lines[-1]) + len(current) <= width:
        return "\n".join([*lines[:-1], lines[-1] + current])
    return "\n".join([*lines, indent + current.lstrip()])


def function_data(f: Function) -> dict[str, Any]:
    """A function as plain data, ready for JSON."""
    return {
        "name": f.name,
        "kind": f.kind,
        "module": f.module,
        "block": f.block,
        "public": f.public,
        "generics": [_generic_data(g) for g in f.generics],
        "params": [{"name": p.name, "type": str(p.type), "default": p.default} for p in f.params],
        "result": None if f.result is None else str(f.result),
        "where": list(f.where),
        "reads": list(f.reads),
        "writes": list(f.writes),
        "uses": list(f.uses),
        "trait": f.trait,
        "required": f.required,
        "docs": f.docs,
        "location": place(f.span),
        "signature": f.signature,
    }


def parameters_data(rows: tuple[Row, ...]) -> dict[str, Any]:
    """Rows as plain data, with totals where every size is bound."""
    listed = [
        {
            "path": row.path,
            "kind": row.kind,
            "dtype": row.dtype,
            "shape": [s if isinstance(s, int) else str(s) for s in row.shape],
            "repeat": [s if isinstance(s, int) else str(s) for s in row.repeat],
            "optional": row.optional,
            "elements": row.count,
            "bytes": row.nbytes,
        }
        for row in rows
    ]
    return {"parameters": listed, "totals": totals(rows)}


def totals(rows: tuple[Row, ...]) -> dict[str, dict[str, int]] | None:
    """Elements and bytes of each kind, optional members apart; None while sizes are open."""
    out: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.count is None or row.nbytes is None:
            return None
        kind = "optional" if row.optional else row.kind
        total = out.setdefault(kind, {"elements": 0, "bytes": 0})
        total["elements"] += row.count
        total["bytes"] += row.nbytes
    return out


def _generic_data(g: Generic) -> dict[str, Any]:
    return {"name": g.name, "kind": g.kind, "pack": g.pack, "default": g.default}


def _block_data(b: Block) -> dict[str, Any]:
    return {
        "name": b.name,
        "module": b.module,
        "public": b.public,
        "generics": [_generic_data(g) for g in b.generics],
        "where": list(b.where),
        "traits": list(b.traits),
        "members": [
            {
                "name": m.name,
                "kind": m.kind,
                "type": str(m.type),
                "optional": m.optional,
                "docs": m.docs,
            }
            for m in b.members
        ],
        "methods": [function_data(f) for f in b.methods],
        "docs": b.docs,
        "location": place(b.span),
    }


def place(span: Span) -> str:
    """`src/lib.linnet:12:5`."""
    position = span.source.position(span.start)
    return f"{span.source.name}:{position.line}:{position.column}"
