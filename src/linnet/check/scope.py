"""Modules, imports and the names in scope at a place."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import islice

from linnet.check.analysis import (
    Analysis,
    GenericName,
    IndexVar,
    ItemName,
    Local,
    MemberName,
    MethodName,
    Module,
    ModuleName,
    PreludeName,
    Symbol,
)
from linnet.check.evidence import clauses_of, structs_in
from linnet.check.memo import Kept, Memo
from linnet.diagnostics import Counterexample, Diagnostic, Edit, Findings, Help, Label
from linnet.dims import (
    Dim,
    Effort,
    Facts,
    Proved,
    Relation,
    RelationOp,
    Verdict,
    prove,
    proves,
    suggest,
)
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.types import UNKNOWN, Axis, GenericValue, Type
from linnet.workspace import ModuleFile, Package, Workspace

Constant = bool | int | float


@cache
def prelude_names() -> frozenset[str]:
    """The names that need no import and cannot be declared."""
    from linnet.check.prelude import NAMES  # its rules read scopes

    return NAMES


@dataclass(frozen=True, slots=True)
class ClauseHelp(Help):
    """To add these `where` clauses."""

    clauses: tuple[Relation, ...] = ()


ASSUMED = 12  # missing clauses of one function taken for facts: each makes all proofs start anew


# Spent on what is said of obligations that fail, in one run. A file in which hundreds fail has the
# later ones reported without sizes and clauses, in good time.
DOUBTS = 2_000_000


class Known:
    """The facts of a scope, and what was already asked of them."""

    __slots__ = ("_proved", "_verdicts", "clouded", "doubts", "facts")

    def __init__(
        self,
        relations: Iterable[Relation] = (),
        *,
        clouded: bool = False,
        doubts: Effort | None = None,
    ) -> None:
        self.doubts = doubts or Effort(DOUBTS)
        self.facts = Facts.of(relations)
        self.clouded = clouded  # a clause could not be read, so nothing can be asked
        self._proved: dict[Relation, bool] = {}
        self._verdicts: dict[Relation, Verdict] = {}

    def proves(self, goal: Relation) -> bool:
        """The goal holds for all sizes."""
        if goal.op in ("==", "<=", ">=") and goal.left == goal.right:
            return True
        if self.clouded:
            return True
        known = self._proved.get(goal)
        if known is None:
            briefly = self.doubts.left < 0
            known = self._proved[goal] = proves(self.facts, goal, briefly=briefly)
        return known

    def verdict(self, goal: Relation) -> Verdict:
        """Whether the goal holds, and if not, sizes or clauses to show."""
        if self.proves(goal):
            return Proved()
        known = self._verdicts.get(goal)
        if known is None:
            known = self._verdicts[goal] = prove(self.facts, goal, self.doubts)
        return known

    def suggestions(self, goal: Relation) -> tuple[Relation, ...]:
        """Clauses that would make the goal provable."""
        return suggest(self.facts, goal, self.doubts)


@dataclass(frozen=True, slots=True)
class Called:
    """A call site: `prefix` is the receiver's path below the block, None for a free function.

    `block` is the receiver's, where that is another.
    """

    fn: tree.Fn
    prefix: str | None
    span: Span
    block: tree.Block | None = None


@dataclass(eq=False, slots=True)
class Touched:
    """What a function's own text reads, writes and calls."""

    reads: set[str] = field(default_factory=set[str])
    writes: set[str] = field(default_factory=set[str])
    members: set[str] = field(default_factory=set[str])
    calls: list[Called] = field(default_factory=list[Called])


@dataclass(frozen=True, slots=True)
class Place:
    """An axis that an index stands on."""

    extent: Axis
    span: Span
    of: str
    access: tree.Index


@dataclass(frozen=True, slots=True)
class Owner:
    """Where an item, a method or a generic is declared."""

    module: Module
    block: tree.Block | None = None
    generics: tuple[tree.GenericParam, ...] = ()  # in scope before it
    name: str = ""  # what a generic belongs to


@dataclass(eq=False, slots=True)
class Checking:
    """One run of the checker: what it is filling in, and what was used on the way."""

    analysis: Analysis
    workspace: Workspace | None
    constants: Mapping[str, Constant]
    memo: Memo = field(default_factory=lambda: Memo(wanted=False))
    modules: dict[ModuleFile, Module] = field(default_factory=dict[ModuleFile, Module])
    reused: set[Module] = field(default_factory=set[Module])  # nothing in them is checked again
    open_modules: list[ModuleFile] = field(default_factory=list[ModuleFile])
    owners: dict[tree.Syntax, Owner] = field(default_factory=dict[tree.Syntax, "Owner"])
    defaults: dict[tree.GenericParam, GenericValue | None] = field(
        default_factory=dict[tree.GenericParam, "GenericValue | None"]
    )
    # Divisors in generics' defaults and where clauses, to be proved when all facts are known.
    divisors: dict[tree.Syntax, list[tuple[Dim, Span]]] = field(
        default_factory=dict[tree.Syntax, list[tuple[Dim, Span]]]
    )
    clauses: dict[tree.Syntax, list[tuple[tree.Relation, Relation]]] = field(
        default_factory=dict[tree.Syntax, list[tuple[tree.Relation, Relation]]]
    )
    aliases: dict[tree.Alias, Type] = field(default_factory=dict[tree.Alias, Type])
    failed: set[tree.Syntax] = field(default_factory=set[tree.Syntax])
    in_progress: dict[tree.Syntax, None] = field(default_factory=dict[tree.Syntax, None])
    misspelt: set[tuple[Module, str]] = field(default_factory=set[tuple[Module, str]])  # imports
    # Extents that were reported to differ, by the two accesses that an index stands in.
    swapped: dict[tuple[tree.Index, tree.Index], set[tuple[Axis, Axis]]] = field(
        default_factory=dict[tuple[tree.Index, tree.Index], set[tuple[Axis, Axis]]]
    )
    suspects: set[Local] = field(default_factory=set[Local])  # of a wrong form, reported
    used_imports: set[tuple[Module, str]] = field(default_factory=set[tuple[Module, str]])
    used_members: set[tuple[Module, tree.Member]] = field(
        default_factory=set[tuple[Module, tree.Member]]
    )
    used_locals: set[Local] = field(default_factory=set[Local])
    all_locals: list[Local] = field(default_factory=list[Local])
    # Calls on elements of index notation, which must not write state.
    lifted: list[tuple[Scope, tree.Call, Called]] = field(
        default_factory=list["tuple[Scope, tree.Call, Called]"]
    )
    touched: dict[tree.Fn, Touched] = field(default_factory=dict[tree.Fn, Touched])
    own_constants: set[tree.Const] = field(default_factory=set[tree.Const])
    replaced: dict[str, tree.Const] = field(default_factory=dict[str, tree.Const])

    # Items and methods with a syntax error in their head: what uses them is silent.
    # What each public name is declared as, and where, by the package that may import it.
    public: dict[Package, dict[str, list[tuple[str, ModuleFile]]]] = field(
        default_factory=dict[Package, dict[str, list[tuple[str, ModuleFile]]]]
    )
    doubts: Effort = field(default_factory=lambda: Effort(DOUBTS))
    assumed: dict[tree.Syntax, list[Relation]] = field(
        default_factory=dict[tree.Syntax, list[Relation]]
    )
    negative: set[tuple[object, Dim]] = field(default_factory=set[tuple[object, Dim]])
    silent: bool = False
    unread: dict[Source, list[int]] = field(default_factory=dict[Source, list[int]])
    holed: set[tree.Syntax] = field(
        default_factory=set[tree.Syntax]
    )  # blocks, files: names are lost
    broken: set[tree.Syntax] = field(default_factory=set[tree.Syntax])
    clouded: set[tree.Syntax] = field(default_factory=set[tree.Syntax])
    private: set[tuple[Module, tree.Fn]] = field(default_factory=set[tuple[Module, tree.Fn]])
    unknown_names: set[tuple[object, str]] = field(default_factory=set[tuple[object, str]])
    _known: dict[tuple[object, ...], Known] = field(default_factory=dict[tuple[object, ...], Known])

    @property
    def findings(self) -> Findings:
        return self.analysis.findings

    def was_read(self, node: tree.Syntax) -> bool:
        """Whether the parser could read all of this, so that what it says is to be judged."""
        unread = self.unread.get(node.span.source, [])
        at = bisect_left(unread, node.span.start)
        if at == len(unread):
            return True
        line_end = node.span.source.text.find("\n", node.span.end)
        return 0 <= line_end < unread[at]

    def lost_in(self, fn: tree.Fn, before: int | None = None) -> bool:
        """Whether something of a function's body, up to a place, could not be read."""
        end = fn.span.end if before is None else before
        unread = self.unread.get(fn.span.source, [])
        at = bisect_left(unread, fn.span.start)
        return at < len(unread) and unread[at] < end

    @contextmanager
    def silence(self, when: bool) -> Iterator[None]:
        """Nothing is reported within the `with`, if so: what stands there is not what was meant.

        What is looked up from there, and judged only once, is judged for itself.
        """
        before, self.silent = self.silent, when
        try:
            yield
        finally:
            self.silent = before

    def known(self, relations: tuple[Relation, ...], *of: tree.Syntax | None) -> Known:
        """The facts of these declarations, with what was already asked of them elsewhere."""
        clouded = any(each in self.clouded for each in of)
        relations += tuple(r for each in of if each for r in self.assumed.get(each, ()))
        key = (clouded, relations)
        if key not in self._known:
            self._known[key] = Known(relations, clouded=clouded, doubts=self.doubts)
        return self._known[key]


@dataclass(eq=False, slots=True)
class Scope:
    """What names mean, and what is known of sizes, at a place.

    `pending` collects divisors instead of proving them, while a list of clauses is being read.
    `paths` gives the member path of locals that stand for blocks. `elements` is set inside index
    notation, where tensors are read element by element.
    """

    checking: Checking
    module: Module
    generics: dict[str, tree.GenericParam] = field(default_factory=dict[str, tree.GenericParam])
    known: Known = field(default_factory=Known)
    block: tree.Block | None = None
    fn: tree.Fn | None = None
    locals: list[dict[str, Local | IndexVar]] = field(
        default_factory=list[dict[str, "Local | IndexVar"]]
    )
    paths: dict[Local, str] = field(default_factory=dict[Local, str])
    places: dict[IndexVar, list[Place]] = field(default_factory=dict[IndexVar, list[Place]])
    lost: set[IndexVar] = field(default_factory=set[IndexVar])  # stand on something unknown
    unlisted: set[str] = field(
        default_factory=set[str]
    )  # reported names of no index, in this `let`
    elements: bool = False
    index_uses: int = 0
    pending: list[tuple[Dim, Span]] | None = None
    touched: Touched = field(default_factory=Touched)
    params: dict[str, Local] = field(default_factory=dict[str, Local])
    nowhere: bool = False  # an index of this statement was reported to stand on no axis
    returned: bool = False  # a `return` is missing where it was reported already

    @property
    def analysis(self) -> Analysis:
        return self.checking.analysis

    @property
    def findings(self) -> Findings:
        return self.checking.analysis.findings

    def report(
        self,
        code: str,
        message: str,
        at: tree.Syntax | Span,
        *,
        label: str = "",
        related: tuple[Label, ...] = (),
        notes: tuple[str, ...] = (),
        help: Help | str | None = None,
        counterexample: Counterexample | None = None,
    ) -> None:
        """Add a finding at a node.

        A clause that it says is missing is missing once: later obligations may rest on it.
        """
        if self.checking.silent:
            return
        span = at if isinstance(at, Span) else at.span
        self.findings.add(
            code,
            message,
            span,
            label=label,
            related=related,
            notes=notes,
            help=help,
            counterexample=counterexample,
        )
        if isinstance(help, ClauseHelp):
            self.assume(help.clauses)

    def may_be_lost(self, name: tree.Name | tree.Ident) -> bool:
        """Whether a name that means nothing may be declared in what could not be read."""
        holed = self.checking.holed
        if self.block in holed or self.module.tree in holed:
            return True
        return self.fn is not None and self.checking.lost_in(self.fn, name.span.start)

    def first_negative(self, size: Dim) -> bool:
        """Whether this size is met for the first time here, and not where it was refused."""
        key = (self.fn or self.block or self.module, size)
        if size.constant is not None or key not in self.checking.negative:
            self.checking.negative.add(key)
            return True
        return False

    def assume(self, clauses: tuple[Relation, ...]) -> None:
        """Take clauses reported as missing for facts, here and wherever they would hold."""
        names = frozenset[str]().union(*(c.names() for c in clauses))
        owner = self.clause_owner(names)
        if owner is None:
            return
        assumed = self.checking.assumed.setdefault(owner, [])
        if len(assumed) < ASSUMED:
            assumed.extend(clauses)
            relations = (*self.known.facts.relations, *clauses)
            self.known = self.checking.known(relations, self.fn, self.block)

    def clause_owner(self, names: frozenset[str]) -> tree.Block | tree.Fn | None:
        """Where a clause about these generics belongs: at the block, if it has all of them."""
        if self.block is not None and names <= {g.name.text for g in self.block.generics}:
            return self.block
        return self.fn

    def learn(self, held: Type) -> None:
        """Take for facts what a value of this type proves, until the `nested` around this ends."""
        structs = list(structs_in(self.analysis, held))
        if structs:
            relations = (c for s in structs for c in clauses_of(self.analysis, s))
            known, own = self.known.facts.relations, (self.fn, self.block)
            decls = (s.decl for s in structs if isinstance(s.decl, tree.Struct))
            self.known = self.checking.known((*known, *relations), *own, *decls)

    def _assumptions(self) -> int:
        assumed = self.checking.assumed
        return sum(len(assumed.get(of, ())) for of in (self.fn, self.block) if of is not None)

    def proves(self, op: RelationOp, left: Dim, right: Dim | int) -> bool:
        return self.known.proves(Relation(op, left, Dim.of(right)))

    @contextmanager
    def nested(self) -> Iterator[dict[str, Local | IndexVar]]:
        """Names declared and facts learned within end with the `with`."""
        names: dict[str, Local | IndexVar] = {}
        self.locals.append(names)
        before, assumptions = self.known, self._assumptions()
        try:
            yield names
        finally:
            self.locals.pop()
            if self._assumptions() != assumptions:  # these hold outside too
                before = self.checking.known(before.facts.relations, self.fn, self.block)
            self.known = before

    @contextmanager
    def mode(self, elements: bool) -> Iterator[None]:
        """Read tensors whole, or element by element, within the `with`."""
        before, self.elements = self.elements, elements
        try:
            yield
        finally:
            self.elements = before

    def declare(self, name: tree.Ident, symbol: Local | IndexVar) -> None:
        """A new local in the innermost scope."""
        refuse_prelude(self, name)
        self.analysis.symbols[name] = symbol
        self.analysis.symbols.setdefault(symbol.decl, symbol)
        self.locals[-1][name.text] = symbol
        if isinstance(symbol, Local):
            self.checking.all_locals.append(symbol)

    def add_local(self, name: tree.Ident, decl: tree.Syntax, type: Type, kind: str) -> Local:
        """Declare a `let`, `var`, parameter or loop variable."""
        local = Local(name.text, decl, type, kind)  # type: ignore[arg-type]
        self.declare(name, local)
        return local

    def lookup(self, name: str) -> Symbol | None:
        """What a bare name means here; marks imports as used."""
        for names in reversed(self.locals):
            if name in names:
                return names[name]
        if name in self.params:
            return self.params[name]
        if name in self.generics:
            return GenericName(self.generics[name])
        if self.block is not None:
            info = self.analysis.blocks.get(self.block)
            if info is not None:
                if name in info.members:
                    return MemberName(info.members[name].member)
                if name in info.methods:
                    return MethodName(info.methods[name])
        if name in self.module.items:
            return ItemName(self.module.items[name], self.module)
        if name in self.module.imports:
            self.checking.used_imports.add((self.module, name))
            return self.module.imports[name]
        if name in prelude_names():
            return PreludeName(name)
        if (self.module, name) in self.checking.misspelt:
            return Local(name, self.module.tree, UNKNOWN, "let")
        return None

    def visible(self) -> list[str]:
        """Every name in scope, for suggestions."""
        out: list[str] = []
        for names in reversed(self.locals):
            out.extend(names)
        out.extend(self.params)
        out.extend(self.generics)
        info = self.analysis.blocks.get(self.block) if self.block else None
        if info is not None:
            out.extend(info.members)
            out.extend(info.methods)
        out.extend(self.module.items)
        out.extend(self.module.imports)
        out.extend(prelude_names())
        return out

    def inner(
        self,
        generics: Iterable[tree.GenericParam],
        known: Known | None = None,
        **changes: object,
    ) -> Scope:
        """A scope inside this one with more generics and other facts; locals start afresh."""
        names = {**self.generics, **{g.name.text: g for g in generics}}
        return replace(
            self,
            generics=names,
            known=known or self.known,
            locals=[],
            paths={},
            places={},
            lost=set(),
            unlisted=set(),
            touched=Touched(),
            params={},
            pending=None,
            **changes,  # type: ignore[arg-type]
        )


def refuse_prelude(scope: Scope, name: tree.Ident) -> bool:
    """Report a declaration that takes a prelude name."""
    if name.text not in prelude_names():
        return False
    scope.report(
        "E1207",
        f"`{name.text}` is a prelude name and means the same everywhere",
        name,
        help="choose another name",
    )
    return True


def refuse_repeats(scope: Scope, names: Iterable[tree.Ident], what: str) -> None:
    """Report a name that stands twice in one list."""
    seen: dict[str, tree.Ident] = {}
    for name in names:
        if name.text in seen:
            scope.report(
                "E1205",
                f"the {what} `{name.text}` is declared twice",
                name,
                related=(Label(seen[name.text].span, "first here"),),
            )
        else:
            seen[name.text] = name


LONGEST = 64  # a name that is compared letter by letter
NAMES = 500  # looked through for one that may have been meant


def similar(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` is most likely a misspelling of."""
    pool = [n for n in dict.fromkeys(islice(names, NAMES)) if n != name]
    plain = _plain(name)
    for n in pool:
        if _plain(n) == plain:
            return n
    limit = (
        0
        if not 3 <= len(plain) <= LONGEST
        else 1
        if len(plain) < 6
        else 2
        if len(plain) < 10
        else 3
    )
    found: str | None = None
    for n in pool:
        if limit == 0:
            break
        other = _plain(n)
        mine, its = _letters(plain), _letters(other)
        if len(mine - its) > limit or len(its - mine) > limit:
            continue  # each of these is an edit at least
        distance = _distance(plain, other, limit)
        if distance <= limit:
            found, limit = n, distance - 1  # only a nearer one is better
    return found


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """What of a name cannot be a slip of style."""
    return name.lower().replace("_", "") or name


@lru_cache(maxsize=4096)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)


def _distance(a: str, b: str, limit: int) -> int:
    """How many letters were left out, put in, changed or swapped; up to the limit."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, before, row = before, row, [i]
        # Further from the diagonal than the limit, all are further apart than it.
        row.extend([limit + 1] * min(len(b), max(0, i - limit - 1)))
        for j in range(len(row), min(len(b), i + limit) + 1):
            y = b[j - 1]
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                best = min(best, last[j - 2] + 1)
            row.append(best)
        row.extend([limit + 1] * (len(b) + 1 - len(row)))
        if min(row) > limit:
            return limit + 1
    return row[-1]


def suggestion(name: tree.Ident | tree.Name, names: Iterable[str]) -> Help | None:
    """`did you mean`, as an edit."""
    near = similar(name.text, names)
    return Help(f"did you mean `{near}`?", (Edit(name.span, near),)) if near else None


# ---------------------------------------------------------------- modules


def load(checking: Checking, file: ModuleFile) -> Module:
    """The module of a file with its items and imports; what it imports is loaded too."""
    if file in checking.modules:
        return checking.modules[file]
    kept = checking.memo.kept(checking.workspace, file)
    if kept is not None:
        return _take_over(checking, kept)
    syntax, mistakes = checking.memo.parsed(file, checking.findings)
    faults = [d.primary.span.start for d in mistakes]
    lost = (d.primary.span.start for d in mistakes if not _mended(d))
    checking.unread[file.source] = sorted(lost)
    module = Module(syntax.module.text if syntax.module else ".".join(file.name), file, syntax)
    _enter(checking, module)
    scope = Scope(checking, module)
    if faults:
        _mark_broken(checking, syntax, faults)
    _collect_items(scope)
    checking.open_modules.append(file)
    for use in syntax.uses:
        _import(scope, use)
    checking.open_modules.pop()
    return module


def _enter(checking: Checking, module: Module) -> None:
    checking.modules[module.file] = module
    known, name = checking.analysis.modules, module.name
    known[name if name not in known else f"{name} ({module.file.source.name})"] = module


def _take_over(checking: Checking, kept: Kept) -> Module:
    """A module as it was checked before, and what it imports."""
    _enter(checking, kept.module)
    checking.reused.add(kept.module)
    for file in kept.imports:
        load(checking, file)
    kept.restore(checking)
    return kept.module


def _mended(d: Diagnostic) -> bool:
    """Whether the parser read on as if the fix had been applied, or lost no more than a token."""
    return d.code in ("E1003", "E1004", "E1005") or (d.help is not None and d.help.edits != ())


def _mark_broken(checking: Checking, syntax: tree.File, faults: list[int]) -> None:
    """Items and methods whose head, all before the brace of the body, is at fault.

    Where something between the parts of a block or a file could not be read, its name is lost.
    """
    unread = checking.unread[syntax.source]
    for item in syntax.items:
        methods = item.methods if isinstance(item, tree.Block) else ()
        parts: tuple[tree.Item, ...] = (item, *methods)
        for node in parts:
            end = _body_start(node)
            if any(node.span.start <= at < end for at in faults):
                checking.broken.add(node)
        if isinstance(item, tree.Block):
            inside = [at for at in unread if _body_start(item) <= at < item.span.end]
            if not _covered(inside, methods):
                checking.holed.add(item)
    if not _covered(unread, syntax.items):
        checking.holed.add(syntax)


def _body_start(node: tree.Item) -> int:
    """Where the head of an item ends: at the brace of its body, if it has one."""
    if not isinstance(node, (tree.Fn, tree.Block)):
        return node.span.end
    head: list[tree.Syntax] = [node.name, *node.generics, *node.where]
    if isinstance(node, tree.Fn):
        head += [*node.params, *((node.result,) if node.result else ())]
    brace = node.span.source.text.find("{", max(part.span.end for part in head))
    return brace + 1 if 0 <= brace < node.span.end else node.span.end


def _covered(places: Iterable[int], nodes: Iterable[tree.Syntax]) -> bool:
    """Whether each of these places lies in one of the nodes."""
    spans = sorted((node.span.start, node.span.end) for node in nodes)
    for at in places:
        before = bisect_right(spans, (at, len(spans) and spans[-1][1])) - 1
        if before < 0 or at >= spans[before][1]:
            return False
    return True


def _collect_items(scope: Scope) -> None:
    items = scope.module.items
    for item in scope.module.tree.items:
        name = item.name.text
        scope.analysis.symbols[item.name] = ItemName(item, scope.module)
        if refuse_prelude(scope, item.name):
            continue
        if name in items:
            scope.report(
                "E1204",
                f"`{name}` is declared twice in module `{scope.module.name}`",
                item.name,
                related=(Label(items[name].name.span, "first here"),),
            )
        else:
            items[name] = item


def _import(scope: Scope, use: tree.Use) -> None:
    """Bind what a `use` line brings."""
    target = _target(scope, use)
    if use.names is None:
        last = use.path.parts[-1]
        _bind_import(scope, last, ModuleName(target) if target else None)
        return
    for each in use.names:
        bound = each.alias or each.name
        symbol: Symbol | None = None
        if target is not None:
            symbol = exported(scope, target, each.name)
            meant = similar(each.name.text, target.items) if symbol is None else None
            if meant is not None and each.alias is None:  # its uses are no mistakes
                scope.checking.misspelt.add((scope.module, meant))
        _bind_import(scope, bound, symbol)
        if symbol is not None:
            scope.analysis.symbols[each.name] = symbol


def _target(scope: Scope, use: tree.Use) -> Module | None:
    """The module that a `use` line names; its absence and cycles are reported."""
    checking = scope.checking
    parts = tuple(p.text for p in use.path.parts)
    file = None
    if checking.workspace is not None:
        file = checking.workspace.resolve(scope.module.file.package, parts)
    if file is None:
        scope.report(
            "E1202", f"there is no module `{use.path.text}`", use.path, help=_where(scope, parts)
        )
        return None
    if file in checking.open_modules:
        chain = checking.open_modules[checking.open_modules.index(file) :]
        names = [checking.modules[f].name for f in chain]
        scope.report(
            "E1206",
            f"modules import each other: {' -> '.join([names[-1], *names])}",
            use.path,
            help="move what both need into a module of its own",
        )
        return checking.modules[file]
    return load(checking, file)


def _where(scope: Scope, parts: tuple[str, ...]) -> str | None:
    """Where the module was looked for."""
    package = scope.module.file.package
    rest = "/".join(parts[1:])
    match parts[0]:
        case "std":
            workspace = scope.checking.workspace
            files = workspace.files_of(workspace.std) if workspace is not None else ()
            names = [".".join(f.name) for f in files]
            same = [n for n in names if n.rpartition(".")[2] == parts[-1]]
            near = same[0] if len(same) == 1 else similar(".".join(parts), names)
            return f"did you mean `{near}`?" if near else None
        case "crate" if package.root is None:
            return "a file outside a package has no `crate`; a `linnet.toml` makes it one"
        case head if head == "crate" or head in package.dependencies:
            owner = package if head == "crate" else package.dependencies[head]
            workspace = scope.checking.workspace
            files = workspace.files_of(owner) if workspace is not None else ()
            names = [".".join((head, *f.name[1:])) for f in files]
            near = similar(".".join(parts), names)
            if near is not None and near != head:
                return f"did you mean `{near}`?"
            return f"it would be `src/{rest or 'lib'}.linnet` of package `{owner.name}`"
        case head:
            near = similar(head, ["std", "crate", *package.dependencies])
            begins = "a module begins with `std`, `crate` or a key of `[dependencies]`"
            return f"{begins}; " + (
                f"did you mean `{near}`?" if near else f"`{head}` is none of them"
            )


def exported(scope: Scope, module: Module, name: tree.Ident) -> ItemName | None:
    """The public item `name` of another module; its absence or privacy is reported."""
    item = module.items.get(name.text)
    if item is None:
        public = [n for n, i in module.items.items() if i.public]
        brought = module.imports.get(name.text)
        help: Help | str | None = suggestion(name, public)
        if isinstance(brought, ItemName):
            help = f"it only imports it; import it from `{brought.module.name}`, which declares it"
        scope.report("E1201", f"module `{module.name}` has no item `{name.text}`", name, help=help)
        return None
    if not item.public and module is not scope.module:
        scope.report(
            "E1203",
            f"`{name.text}` is private to module `{module.name}`",
            name,
            related=(Label(item.name.span, "declared here, without `pub`"),),
            help=publish(scope, item, f"write `pub` before it in `{module.name}`", module),
        )
    return ItemName(item, module)


def publish(scope: Scope, item: tree.Item, text: str, module: Module) -> Help:
    """The `pub` that an item or a method lacks, as an edit where it is of the own package."""
    start = Span(item.span.source, item.span.start, item.span.start)
    own = module.file.package is scope.module.file.package
    return Help(text, (Edit(start, "pub "),) if own else ())


def _bind_import(scope: Scope, name: tree.Ident, symbol: Symbol | None) -> None:
    module = scope.module
    if refuse_prelude(scope, name):
        return
    own = module.items.get(name.text)
    if own is not None or name.text in module.imports:
        scope.report(
            "E1204",
            f"`{name.text}` is imported and declared"
            if own is not None
            else f"`{name.text}` is imported twice",
            name,
            related=(Label(own.name.span, "declared here"),) if own is not None else (),
            help=f"import it under another name: `{name.text} as ...`",
        )
        return
    if symbol is None:
        symbol = Local(name.text, name, UNKNOWN, "let")  # silences what follows from it
    module.imports[name.text] = symbol
    scope.analysis.symbols[name] = symbol
