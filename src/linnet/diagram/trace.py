"""A function of a checked program as a Graph: each part is followed once, for all sizes.

A value is where it comes from: the nodes that an arrow to its user starts at. What only gives
values another form (reshape, permute, cast, a function of these) is no node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linnet.check.analysis import (
    Access,
    Analysis,
    ArrayElement,
    AxisGather,
    FnCall,
    ItemName,
    Local,
    MemberName,
    PreludeCall,
    StructCall,
    Variant,
)
from linnet.check.blocks import manifest
from linnet.check.typeexprs import bindings_of
from linnet.diagnostics import PlanError
from linnet.diagram.graph import Edge, Graph, Group, Kind, Node
from linnet.dims import Dim
from linnet.syntax import tree
from linnet.types import (
    BlockArray,
    BlockType,
    GenericValue,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    dim_bindings,
    element_count,
    substitute,
    substitute_generic,
)

MAX_NODES, MAX_CALLS = 600, 20_000
SYMBOLS = {
    **{"*": "×", "/": "÷", "-": "−", "<=": "≤", ">=": "≥", "!=": "≠", "==": "="},
    **{"&&": "and", "||": "or", "!": "not", "rsqrt": "1/√", "sqrt": "√"},
}
FORMS = ("cast", "reshape", "permute", "broadcast_to", "fill", "iota")
PLAIN, LONG, TEXT = 14, 22, 30  # characters of a size kept as it is; shown at all; of a formula


@dataclass(frozen=True, slots=True)
class Wire:
    """The nodes that a value comes from, and the params in it that are no nodes."""

    sources: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """A block, or an array of `length` of them, at a path below the root."""

    type: BlockType
    path: str
    length: Dim | None = None

    @property
    def decl(self) -> tree.Block:
        assert isinstance(self.type.decl, tree.Block)
        return self.type.decl


# None is an optional without a value.
Value = Wire | Instance | tuple["Value", ...] | dict[str, "Value"] | None


@dataclass(frozen=True, slots=True)
class Scope:
    """A function while it is followed: its generics, its block, its names' values."""

    bindings: Mapping[str, GenericValue]
    owner: Instance | None
    depth: int
    env: dict[object, Value]


class NoForm(Exception):
    """A function makes more of its arguments than another form."""


class Tracer:
    def __init__(
        self,
        analysis: Analysis,
        sizes: Mapping[str, int],
        expand: int,
        params: bool,
        arithmetic: bool,
    ) -> None:
        self.analysis = analysis
        self.sizes = {name: Dim.of(size) for name, size in sizes.items()}
        self.expand, self.params, self.arithmetic = expand, params, arithmetic
        self.nodes: list[Node] = []
        self.edges: dict[tuple[str, str], list[str]] = {}
        self.back: set[tuple[str, str]] = set()
        self.groups: list[Group] = []
        self.group: str | None = None
        self.members: dict[str, Wire] = {}  # by path: what a state holds now, a param's node
        self.forms: dict[tree.Fn, bool] = {}
        self.probing = self.calls = self.made = 0

    def trace(self, fn: tree.Fn, scope: Scope, title: str, sizes: str) -> Graph:
        """The drawing of a function whose generics and block the scope has."""
        signature = self.analysis.signatures[fn]
        for param, (name, type) in zip(fn.params, signature.params, strict=True):
            shown = self.type(scope, type)
            scope.env[self.analysis.symbols[param.name]] = self.node("input", name, shown)
        result = self.run(scope, fn.body)
        if signature.result is not None:
            several = isinstance(signature.result, TupleType) and isinstance(result, tuple)
            parts = result if several and isinstance(result, tuple) else (result,)
            types = signature.result.items if isinstance(signature.result, TupleType) else ()
            for i, part in enumerate(parts):
                type = types[i] if several else signature.result
                label = f"result {i + 1}" if several else "result"
                self.node(
                    "output", label, self.type(scope, type), [(part, self.shape(scope, type))]
                )
        return self.finished(title, sizes)

    def finished(self, title: str, sizes: str) -> Graph:
        """The graph; a frame that holds nothing but another frame is one with it."""
        groups = {g.id: g for g in self.groups}
        merged: dict[str, str] = {}
        for outer in self.groups:
            inner = [g for g in groups.values() if g.parent == outer.id]
            if not any(n.group == outer.id for n in self.nodes):
                if len(inner) == 1 and outer.id in groups:
                    one = groups.pop(inner[0].id)
                    merged[one.id] = outer.id
                    label = f"{one.label} {groups[outer.id].label}".strip()
                    groups[outer.id] = replace(groups[outer.id], label=label)
                    for g in [g for g in groups.values() if g.parent == one.id]:
                        groups[g.id] = replace(g, parent=outer.id)
        used = {merged.get(n.group, n.group) for n in self.nodes if n.group is not None}
        for g in reversed(self.groups):
            if g.id in groups and g.id in used and g.parent is not None:
                used.add(merged.get(g.parent, g.parent))
        nodes = tuple(
            replace(n, group=merged.get(n.group, n.group)) if n.group else n for n in self.nodes
        )
        edges = tuple(
            Edge(src, dst, ", ".join(dict.fromkeys(filter(None, labels))), (src, dst) in self.back)
            for (src, dst), labels in self.edges.items()
        )
        return Graph(title, nodes, edges, tuple(g for g in groups.values() if g.id in used), sizes)

    # ------------------------------------------------------------ nodes

    def node(
        self, kind: Kind, label: str, sublabel: str = "", into: Iterable[tuple[Value, str]] = ()
    ) -> Wire:
        """A new node that the values flow into, and what comes from it."""
        if self.probing:
            raise NoForm
        if len(self.nodes) >= MAX_NODES:
            raise PlanError(f"over {MAX_NODES} boxes to draw: open fewer blocks (expand, --expand)")
        self.made += 1
        made = Node(f"n{self.made}", kind, label, sublabel, self.group)
        self.nodes.append(made)
        for value, text in into:
            for source in joined([value]).sources:
                self.edges.setdefault((source, made.id), []).append(text)
        return Wire((made.id,))

    def frame(self, label: str) -> str:
        if self.probing:
            raise NoForm
        made = Group(f"g{len(self.groups) + 1}", label, self.group)
        self.groups.append(made)
        return made.id

    def member(self, at: Instance, name: str, own: bool = False) -> Value:
        """What a member of a block is worth."""
        info = self.analysis.blocks[at.decl].members[name]
        type = substitute(info.type, bindings_of(at.type))
        path = f"{at.path}.{name}" if at.path else name
        match type:
            case BlockType():
                return Instance(type, path)
            case BlockArray(of, length):
                return Instance(of, path, length)
            case _ if info.member.kind != "state" and not self.params:
                return Wire((), (name if own else ".".join(path.split(".")[-2:]),))
            case _ if path not in self.members:
                kind: Kind = "state" if info.member.kind == "state" else "param"
                shown = self.shape(Scope({}, None, 0, {}), type)
                self.members[path] = self.node(kind, name, shown)
        return self.members[path]

    def write(self, at: Instance, name: str, value: Value, text: str) -> None:
        """A state gets another value: an arrow back to it, or to the state as it is next."""
        path = f"{at.path}.{name}" if at.path else name
        if self.probing:
            raise NoForm
        now, wire = self.members.get(path), joined([value])
        held = {n.id for n in self.nodes if n.kind == "state"}
        if now is None:
            self.node("state", name, text, [(value, text)])
        elif held.isdisjoint(now.sources):  # written before: the last value is what is kept
            self.node("state", f"{name} (next)", text, [(value, text)])
        else:
            read = [(now.sources[0], s) for s in wire.sources if (now.sources[0], s) in self.edges]
            self.back.update(read)
            if len(read) < len(wire.sources):
                self.node("state", f"{name} (next)", text, [(value, text)])
        self.members[path] = wire

    # ------------------------------------------------------------ statements

    def run(self, scope: Scope, stmts: Sequence[tree.Stmt]) -> Value:
        """The value of the `return` or `yield` that ends the statements."""
        for stmt in stmts:
            match stmt:
                case tree.Return(value=value) | tree.Yield(value=value):
                    return Wire() if value is None else self.value(scope, value)
                case tree.Let(pattern=pattern, value=value):
                    self.bind(scope, pattern, self.value(scope, value))
                case tree.IndexLet(name=name, value=value):
                    made = self.formula(scope, stmt, name.text, value)
                    scope.env[self.analysis.symbols[name]] = made
                case tree.Var(name=name, value=value):
                    scope.env[self.analysis.symbols[name]] = self.value(scope, value)
                case tree.Assign(name=name, value=value):
                    self.assign(scope, name, value)
                case tree.For():
                    self.loop(scope, stmt, drawn_if_never=False)
                case tree.While(condition=condition, body=body):
                    self.value(scope, condition)
                    self.inside(f"while {short(condition)}", scope, body)
        return Wire()

    def assign(self, scope: Scope, name: tree.Ident, value: tree.Expr) -> None:
        given = self.value(scope, value)
        match self.analysis.symbols[name]:
            case MemberName(member):
                assert scope.owner is not None
                text = self.shape(scope, self.analysis.types[value])
                self.write(scope.owner, member.name.text, given, text)
            case symbol:
                scope.env[symbol] = given

    def bind(self, scope: Scope, pattern: tree.Pattern, value: Value) -> None:
        match pattern:
            case tree.NamePattern(name=name):
                symbol = self.analysis.symbols.get(name)
                if isinstance(symbol, Local):
                    scope.env[symbol] = value
            case tree.TuplePattern(items=items):
                parts = value if isinstance(value, tuple) else [value] * len(items)
                for item, part in zip(items, parts, strict=True):
                    self.bind(scope, item, part)
            case tree.SomePattern(item=item):
                self.bind(scope, item, value)
            case _:
                pass

    def inside(self, label: str, scope: Scope, body: Sequence[tree.Stmt]) -> Value:
        """The statements in a frame of their own."""
        before, self.group = self.group, self.frame(label)
        value = self.run(scope, body)
        self.group = before
        return value

    def loop(self, scope: Scope, stmt: tree.For, *, drawn_if_never: bool = True) -> Value:
        """The loop's frame; one that never runs has none, unless its value is wanted."""
        bounds = self.analysis.ranges.get(stmt)
        if bounds is not None:
            count = bounds[1] - bounds[0]
            scope.env[self.analysis.symbols[stmt.name]] = Wire()
        else:
            array = self.value(scope, stmt.start)
            assert isinstance(array, Instance) and array.length is not None
            count = array.length
            element = Instance(array.type, f"{array.path}.*")
            scope.env[self.analysis.symbols[stmt.name]] = element
        turns = count.substitute(dim_bindings(scope.bindings)).substitute(self.sizes)
        if turns.constant == 0 and not drawn_if_never:
            return None
        return self.inside(f"× {turns}", scope, stmt.body)

    # ------------------------------------------------------------ expressions

    def value(self, scope: Scope, e: tree.Expr) -> Value:
        """Where the value of an expression comes from."""
        if e in self.analysis.dims:
            return Wire()
        match e:
            case tree.Paren(value=inner) | tree.Some(value=inner):
                return self.value(scope, inner)
            case tree.NoneLit():
                return None
            case tree.Tuple(items=items):
                return tuple(self.value(scope, i) for i in items)
            case tree.Name() | tree.Field():
                return self.name(scope, e)
            case tree.Unary(op=op, value=inner):
                return self.elementwise(scope, e, op, (inner,))
            case tree.Binary(op=op, left=left, right=right):
                return self.elementwise(scope, e, op, (left, right))
            case tree.Call():
                return self.call(scope, e)
            case tree.Index():
                return self.index(scope, e)
            case tree.Reduction(kind=kind, indices=indices, body=body):
                over = ", ".join(i.span.text for i in indices)
                return self.formula(scope, e, f"{kind}[{over}]", body)
            case tree.If():
                return self.choice(scope, e)
            case tree.Match():
                return self.match(scope, e)
            case tree.For():
                return self.loop(scope, e)
            case _:
                return Wire()

    def name(self, scope: Scope, e: tree.Name | tree.Field) -> Value:
        symbol = self.analysis.symbols.get(e)
        if symbol is None and isinstance(e, tree.Field):
            symbol = self.analysis.symbols.get(e.name)
        if isinstance(symbol, MemberName) and isinstance(e, tree.Name):
            assert scope.owner is not None
            return self.member(scope.owner, symbol.member.name.text, own=True)
        if isinstance(symbol, Local) and symbol in scope.env:
            return scope.env[symbol]
        if not isinstance(e, tree.Field) or isinstance(symbol, ItemName | Variant):
            return Wire()
        base = self.value(scope, e.base)
        match base:
            case Instance():
                return self.member(base, e.name.text)
            case dict():
                return base[e.name.text]
            case _:
                return base

    def elementwise(
        self, scope: Scope, e: tree.Expr, op: str, operands: Sequence[tree.Expr]
    ) -> Value:
        values = [self.value(scope, o) for o in operands]
        whole = joined(values)
        type = substitute(self.analysis.types[e], scope.bindings)
        if not isinstance(type, TensorType) or not type.shape or not whole.sources:
            return whole
        if not self.arithmetic or (op == "+" and len(operands) == 1):
            if self.probing:
                raise NoForm
            return whole
        label = SYMBOLS.get(op, op)
        for operand, value in zip(operands, values, strict=True):
            wire, text = joined([value]), short(operand)
            text = text if len(text) <= PLAIN else ", ".join(wire.members)
            if len(operands) == 2 and not wire.sources and text:
                first = operand is operands[0] and op in "-/"
                label = f"{text} {label}" if first else f"{label} {text}"
        return self.node("op", label, "", self.operands(scope, operands, values))

    def operands(
        self, scope: Scope, exprs: Sequence[tree.Expr], values: Sequence[Value]
    ) -> list[tuple[Value, str]]:
        types = self.analysis.types
        return [
            (v, self.shape(scope, types[e]) if e in types else "")
            for e, v in zip(exprs, values, strict=True)
        ]

    def formula(self, scope: Scope, at: tree.Syntax, label: str, body: tree.Expr) -> Value:
        """Index notation: one node, which everything that it reads flows into."""
        read = list(self.read(scope, body))
        whole = joined([v for v, _ in read])
        plain = not any(isinstance(part, tree.Reduction) for part in tree.walk(at))
        if plain and not self.arithmetic and whole.sources and not self.probing:
            return whole
        text = short(body)
        return self.node("op", label, text if len(text) <= TEXT else "", read)

    def read(self, scope: Scope, e: tree.Syntax) -> Iterator[tuple[Value, str]]:
        """The values that an expression of index notation reads, as they are read."""
        match e:
            case tree.Call(args=args):
                meaning = self.analysis.calls.get(e)
                if isinstance(meaning, FnCall | PreludeCall) and not meaning.lifted:
                    yield self.value(scope, e), self.shape(scope, meaning.result)
                else:
                    for arg in args:
                        yield from self.read(scope, arg.value)
            case tree.Name() | tree.Field():
                if e in self.analysis.types:
                    yield self.value(scope, e), self.shape(scope, self.analysis.types[e])
            case tree.Match(subject=subject, arms=arms):
                value = self.value(scope, subject)
                for arm in arms:
                    self.bind(scope, arm.pattern, value)
                    yield from self.read(scope, arm.value)
            case _:
                for part in tree.children(e):
                    yield from self.read(scope, part)

    def index(self, scope: Scope, e: tree.Index) -> Value:
        """A subscript: a node that says which part is taken."""
        base = self.value(scope, e.base)
        meaning = self.analysis.subscripts[e]
        if isinstance(meaning, ArrayElement):
            assert isinstance(base, Instance)
            return Instance(base.type, f"{base.path}.{meaning.index}")
        if isinstance(meaning, Access):
            return joined([v for v, _ in self.read(scope, e)])
        into = [(base, self.shape(scope, self.analysis.types[e.base]))]
        for axis in meaning.axes:
            if isinstance(axis, AxisGather):
                into += self.operands(scope, [axis.index], [self.value(scope, axis.index)])
        whole = joined([v for v, _ in into])
        if not whole.sources or (not self.arithmetic and not self.probing):
            return whole
        return self.node("op", short(e)[len(short(e.base)) :], "", into)

    def choice(self, scope: Scope, e: tree.If) -> Value:
        settled = self.known(e.condition)
        if settled is not None:
            return self.value(scope, e.then if settled else e.other)
        parts = (e.condition, e.then, e.other)
        return self.one_of(scope, e, "if", e.condition, [self.value(scope, p) for p in parts])

    def match(self, scope: Scope, e: tree.Match) -> Value:
        subject = self.value(scope, e.subject)
        taken: list[Value] = []
        for arm in e.arms:
            fits = self.fits(arm.pattern, subject)
            if fits is not False:
                self.bind(scope, arm.pattern, subject)
                taken.append(self.value(scope, arm.value))
            if fits:
                break
        return taken[0] if len(taken) == 1 else self.one_of(scope, e, "match", e.subject, taken)

    def fits(self, pattern: tree.Pattern, value: Value) -> bool | None:
        """Whether a pattern fits; None where that is known at run time alone."""
        match pattern:
            case tree.SomePattern(item=item):
                return value is not None and self.fits(item, value)
            case tree.NonePattern():
                return value is None
            case tree.TuplePattern(items=items) if isinstance(value, tuple):
                each = [self.fits(i, v) for i, v in zip(items, value, strict=True)]
                return False if False in each else None if None in each else True
            case tree.NamePattern(name=name) | tree.VariantPattern(name=name):
                site = self.analysis.symbols.get(pattern, self.analysis.symbols.get(name))
                return None if isinstance(site, Variant) else True
            case _:
                return True

    def one_of(
        self, scope: Scope, e: tree.Expr, label: str, of: tree.Expr, values: Sequence[Value]
    ) -> Value:
        """One of several values, which is chosen at run time."""
        whole, type = joined(values), self.analysis.types[e]
        if not whole.sources or (isinstance(type, TensorType) and not type.shape):
            return whole
        text = short(of)
        into = [(v, self.shape(scope, type)) for v in values]
        return self.node("op", label, text if len(text) <= TEXT else "", into)

    def known(self, e: tree.Expr) -> bool | int | float | None:
        """The value of a condition of constants."""
        match e:
            case tree.Paren(value=inner):
                return self.known(inner)
            case tree.BoolLit(value=value) | tree.IntLit(value=value) | tree.FloatLit(value=value):
                return value
            case tree.Unary(op=op, value=inner):
                known = self.known(inner)
                return None if known is None else not known if op == "!" else -known
            case tree.Binary(op=op, left=left, right=right) if op in COMPARED:
                a, b = self.known(left), self.known(right)
                return None if a is None or b is None else COMPARED[op](a, b)
            case tree.Name() | tree.Field():
                symbol = self.analysis.symbols.get(e)
                if isinstance(symbol, ItemName) and isinstance(symbol.item, tree.Const):
                    found = self.analysis.consts[symbol.item].value
                    if isinstance(found, Dim):
                        return found.constant
                    return found if isinstance(found, bool | int | float) else None
        return None

    # ------------------------------------------------------------ calls

    def call(self, scope: Scope, e: tree.Call) -> Value:
        match self.analysis.calls[e]:
            case StructCall(struct, parts):
                assert isinstance(struct.decl, tree.Struct)
                names = self.analysis.structs[struct.decl].fields
                given = [None if a is None else self.value(scope, a) for a in parts]
                return dict(zip(names, given, strict=True))
            case PreludeCall(name=name) as call:
                args = [a for a in call.args if not isinstance(a, tree.ShapeLit)]
                if name not in (*FORMS, "concat"):
                    return self.elementwise(scope, e, name, args)
                values = [self.value(scope, a) for a in args]
                whole = joined(values)
                if name != "concat" or not whole.sources:
                    return whole
                into = self.operands(scope, args, values)
                return self.node("op", "concat", f"axis {call.axis}", into)
            case FnCall() as call:
                return self.fn_call(scope, call)

    def fn_call(self, scope: Scope, call: FnCall) -> Value:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise PlanError(f"over {MAX_CALLS} calls to follow: this is too large to draw")
        if call.lifted:
            return joined([v for a in call.args if a for v, _ in self.read(scope, a)])
        at = scope.owner
        if call.receiver is not None:
            found = self.value(scope, call.receiver)
            assert isinstance(found, Instance)
            at = found
        values = [
            (None if isinstance(p.default, tree.NoneLit) else Wire())
            if a is None
            else self.value(scope, a)
            for p, a in zip(call.fn.params, call.args, strict=True)
        ]
        args = [
            substitute_generic(call.bindings[g.name.text], scope.bindings) for g in call.fn.generics
        ]
        fn = call.fn
        if fn.required and at is not None:  # of a trait: the block has its own
            fn = self.analysis.blocks[at.decl].methods[fn.name.text]
        own = dict(zip((g.name.text for g in fn.generics), args, strict=True))
        if call.owner is not None and call.receiver is None:
            return self.follow(fn, at, own, values, scope.depth)
        given = [(a, v) for a, v in zip(call.args, values, strict=True) if a is not None]
        into = self.operands(scope, [a for a, _ in given], [v for _, v in given])
        if call.owner is None:
            if self.is_form(fn, own):
                return self.follow(fn, None, own, values, scope.depth)
            members = ", ".join(joined(values).members)
            return self.node("op", fn.name.text, members, into)
        assert at is not None
        return self.block(scope, fn, at, own, values, into)

    def follow(
        self,
        fn: tree.Fn,
        at: Instance | None,
        own: Mapping[str, GenericValue],
        values: Sequence[Value],
        depth: int,
    ) -> Value:
        """A call, as what its function does."""
        around: Mapping[str, GenericValue] = {}
        if at is not None:
            home = self.analysis.signatures[fn].block
            around = self.analysis.blocks[at.decl].bindings(bindings_of(at.type), home)
        scope = Scope({**around, **own}, at, depth, {})
        for param, value in zip(fn.params, values, strict=True):
            scope.env[self.analysis.symbols[param.name]] = value
        return self.run(scope, fn.body)

    def is_form(self, fn: tree.Fn, own: Mapping[str, GenericValue]) -> bool:
        """Whether a function only gives its arguments another form."""
        if fn not in self.forms:
            self.probing += 1
            try:
                self.follow(fn, None, own, [Wire(("",))] * len(fn.params), 0)
                self.forms[fn] = True
            except NoForm:
                self.forms[fn] = False
            finally:
                self.probing -= 1
        return self.forms[fn]

    def block(
        self,
        scope: Scope,
        fn: tree.Fn,
        at: Instance,
        own: Mapping[str, GenericValue],
        values: Sequence[Value],
        into: list[tuple[Value, str]],
    ) -> Value:
        """A block's method: opened where it may be and is more than one operation, else a box."""
        name, kind = at.path.rpartition(".")[2], self.instance(at.type)
        if name == "*" or name.isdecimal():
            name, kind = at.type.name, ""
        infos = self.analysis.blocks[at.decl].members.values()
        leaf = not any(info.member.kind == "sub" for info in infos)
        if scope.depth + leaf < self.expand:
            saved = len(self.nodes), len(self.groups), self.made, self.group
            kept = dict(self.edges), set(self.back), dict(self.members)
            self.group = self.frame(f"{name}: {at.type.name}" if kind else name)
            result = self.follow(fn, at, own, values, scope.depth + 1)
            self.group = saved[3]
            if sum(n.kind in ("call", "op") for n in self.nodes[saved[0] :]) > 1:
                return result
            del self.nodes[saved[0] :], self.groups[saved[1] :]
            self.made, (self.edges, self.back, self.members) = saved[2], kept
        effects = self.analysis.blocks[at.decl].effects.get(fn, self.analysis.effects.get(fn))
        states = (
            sorted({p.rpartition(".")[2] for p in effects.reads | effects.writes})
            if effects
            else []
        )
        lines = [kind, f"state {', '.join(states)}" if states else ""]
        if self.params:
            lines.append(self.count(at))
        label = name if fn.name.text == "forward" else f"{name}.{fn.name.text}"
        return self.node("call", label, "\n".join(filter(None, lines)), into)

    # ------------------------------------------------------------ words

    def count(self, at: Instance) -> str:
        """How many parameters a block has, optional ones aside."""
        bindings, total = dim_bindings(bindings_of(at.type)), Dim.of(0)
        for entry in manifest(self.analysis, at.decl):
            if entry.kind == "param" and not entry.optional:
                size = element_count(entry.type.shape)
                for length in entry.lengths:
                    size = size * length
                total = total + size.substitute(bindings)
        bound = total.substitute(self.sizes)
        if bound.constant is not None:
            return f"{bound.constant:,} parameters" if bound.constant else ""
        return f"{total} parameters" if len(str(total)) <= TEXT else ""

    def instance(self, type: BlockType) -> str:
        whole = f"{type.name}<{', '.join(map(self.generic, type.args))}>"
        return whole if type.args and len(whole) <= TEXT else type.name

    def generic(self, value: GenericValue) -> str:
        match value:
            case Dim():
                return self.dim(value)
            case tuple():
                return f"[{', '.join(a if isinstance(a, str) else str(a) for a in value)}]"
            case _:
                return str(value)

    def dim(self, dim: Dim) -> str:
        """As the source has it where that is short; else with the sizes that are known."""
        text = str(dim)
        if len(text) > PLAIN and self.sizes:
            text = min(text, str(dim.substitute(self.sizes)), key=len)
        return text if len(text) <= LONG else "…"

    def shape(self, scope: Scope, type: Type) -> str:
        """What stands on an arrow: `[B, S, H]`, a scalar's dtype."""
        match substitute(type, scope.bindings):
            case TensorType(shape, dtype):
                axes = ", ".join(self.dim(a) if isinstance(a, Dim) else str(a) for a in shape)
                return f"[{axes}]" if shape else str(dtype)
            case OptionalType(of):
                return self.shape(scope, of)
            case _:
                return ""

    def type(self, scope: Scope, type: Type) -> str:
        match substitute(type, scope.bindings):
            case TensorType(shape, dtype) if shape:
                axes = self.shape(scope, type)[1:-1]
                return f"Tensor[{axes}; {dtype}]"
            case OptionalType(of):
                return f"{self.type(scope, of)}?"
            case TupleType(items):
                return f"({', '.join(self.type(scope, i) for i in items)})"
            case found:
                return str(found)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "+": operator.add, "-": operator.sub},
    **{"*": operator.mul, "&&": lambda a, b: a and b, "||": lambda a, b: a or b},
}


def joined(values: Iterable[Value]) -> Wire:
    """All that the values come from."""
    sources: dict[str, None] = {}
    members: dict[str, None] = {}
    todo = list(values)
    while todo:
        match todo.pop(0):
            case Wire() as wire:
                sources.update(dict.fromkeys(wire.sources))
                members.update(dict.fromkeys(wire.members))
            case tuple() as parts:
                todo = [*parts, *todo]
            case dict() as fields:
                todo = [*fields.values(), *todo]
            case _:
                pass
    return Wire(tuple(sources), tuple(members))


def short(e: tree.Syntax) -> str:
    """An expression as it is written, on one line."""
    return " ".join(e.span.text.split())
