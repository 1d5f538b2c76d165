"""State in place: which nodes are what a module's buffer holds, and where a copy must be taken.

In the IR a state is a value that each write replaces; in PyTorch it is a buffer, which a write
changes under everyone who still looks at it. This analysis says which node is the content of which
buffer, which writes may go in place, and which earlier contents someone reads later: those are
copied where they are produced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from linnet.core.ir import (
    ArrayType,
    Call,
    Element,
    Expand,
    For,
    Function,
    Gather,
    If,
    Node,
    Param,
    Permute,
    Reshape,
    Result,
    Slice,
    Update,
    While,
    operands,
)
from linnet.diagnostics import InternalError
from linnet.emit import ordered

_POSITION = re.compile(r"\.\*|\[\d+\]")

Place = str
"""Where a state lives, as the generated code spells it; `.*` for the positions of an array."""

PlaceOf = Callable[[Node, int, Param, Mapping[Node, Place]], Place]


# Nodes whose value may share memory with their operand `x`: a gather at a Python index is a view.
_VIEWS = (Reshape, Permute, Expand, Slice, Gather)


def element_place(place: Place, index: int) -> Place:
    return place.replace(".*", f"[{index}]", 1)


def overlapping(a: Place, b: Place) -> bool:
    """Whether a buffer of one is a buffer of the other: an array of them has each position."""
    if a == b:
        return True
    parts, others = _POSITION.split(a), _POSITION.split(b)
    at, bt = _POSITION.findall(a), _POSITION.findall(b)
    return parts == others and all(".*" in (x, y) or x == y for x, y in zip(at, bt, strict=True))


@dataclass(slots=True)
class Residence:
    """The state of one body; mutable while it is worked out.

    `places`: nodes that a buffer holds. `in_place`: Results of kernel calls that are written into
    their first input. `stores`: what is copied into a buffer, before a node or (None) at the end.
    `copies`: nodes whose value is cloned where it is produced, for later readers.
    `pinned`: nodes to evaluate exactly where they stand in `order`.
    """

    order: list[Node]
    places: dict[Node, Place] = field(default_factory=dict[Node, Place])
    in_place: dict[Node, Place] = field(default_factory=dict[Node, Place])
    stores: dict[Node | None, list[tuple[Node, Place]]] = field(
        default_factory=dict["Node | None", "list[tuple[Node, Place]]"]
    )
    copies: set[Node] = field(default_factory=set[Node])
    pinned: set[Node] = field(default_factory=set[Node])
    cloned_results: set[int] = field(default_factory=set[int])


def reside(
    body: Function,
    places: Mapping[Node, Place],
    writes_in_place: Callable[[Call], bool],
    place_of: PlaceOf,
    demanded: Sequence[tuple[Node, Place]],
    values: Sequence[Node],
) -> Residence:
    """The residence of a body whose state params live at `places`.

    `demanded` are results that must be in a buffer at the end, `values` the others. `place_of`
    says where the state param of a callee or of a control node's body lives, given the operand
    that meets it.
    """
    if not places and not demanded:
        return Residence(ordered(body.results))
    return _Analysis(body, places, writes_in_place, place_of, demanded, values).run()


def met_params(node: Node) -> list[tuple[int, Param]]:
    """The params of a callee or a body, with the positions of the operands that they take."""
    match node:
        case Call(function):
            return list(enumerate(function.params))
        case While(_, body):
            return list(enumerate(body.params))
        case For(body):
            return list(enumerate(body.params[1:]))
        case If(_, then):
            return list(enumerate(then.params, 1))
        case _:
            return []


def state_inputs(node: Node) -> list[tuple[int, Param]]:
    """Operand positions that a node reads as state in a buffer, with the params they meet."""
    return [(i, p) for i, p in met_params(node) if p.kind == "state"]


def written_operands(node: Node) -> dict[int, int]:
    """For each result that is new state: which operand it replaces."""
    match node:
        case Call(function):
            first = len(function.value_results)
            index = {p.name: i for i, p in enumerate(function.params) if p.kind == "state"}
            return {first + j: index[path] for j, path in enumerate(function.writes)}
        case While(_, body, _, count):
            return {i: i for i in range(count) if body.params[i].kind == "state"}
        case For(body, _, _, _, carried, scanned):
            out = {i: i for i in range(len(carried)) if body.params[1 + i].kind == "state"}
            states = [
                len(carried) + i
                for i in range(len(scanned))
                if body.params[1 + len(carried) + i].kind == "state"
            ]
            return out | {len(carried) + j: at for j, at in enumerate(states)}
        case If(_, then, other):
            kept, same = _final_states(then), _final_states(other)
            same = {i: at for i, at in kept.items() if same.get(i) == at}
            return {i: 1 + at for i, at in same.items()}
        case _:
            return {}


def _final_states(branch: Function) -> dict[int, int]:
    """The results of a branch that are a state's content at its end, and which param's.

    A branch is an expression: it writes state only through the methods that it calls.
    """
    # A param's position, and for what one position of an array holds, that position too.
    held: dict[Node, tuple[int, ...]] = {
        p: (i,) for i, p in enumerate(branch.params) if p.kind == "state"
    }
    replaced: set[Node] = set()
    for node in ordered(branch.results):
        old: Node | None = None
        match node:
            case Result(of, index):
                at = written_operands(of).get(index)
                old = operands(of)[at] if at is not None else None
            case Update(x, index, value) if held.get(value) == (*held.get(x, ()), index):
                old = x
            case Element(x, index) if x in held:
                held[node] = (*held[x], index)
            case _:
                pass
        if old in held:
            held[node] = held[old]
            replaced.add(old)
    return {
        i: held[r][0]
        for i, r in enumerate(branch.results)
        if len(held.get(r, ())) == 1 and r not in replaced
    }


class _Analysis:
    def __init__(
        self,
        body: Function,
        places: Mapping[Node, Place],
        writes_in_place: Callable[[Call], bool],
        place_of: PlaceOf,
        demanded: Sequence[tuple[Node, Place]],
        values: Sequence[Node],
    ) -> None:
        self.values = values
        self.body = body
        self.writes_in_place = writes_in_place
        self.place_of = place_of
        self.demanded = demanded
        self.found = Residence([])
        self.found.places.update(places)
        self.nodes = ordered(body.results)
        self.position: dict[Node, int] = {}
        self.users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for x in dict.fromkeys(operands(node)):
                self.users.setdefault(x, []).append(node)

    def run(self) -> Residence:
        found = self.found
        for node in self.nodes:
            self._natural(node)
        for node in self.nodes:
            inputs = operands(node)
            for at, param in state_inputs(node):
                self._demand(inputs[at], self._place_of(node, at, param), node)
        for node, place in self.demanded:
            self._demand(node, place, None)
        found.order = ordered(self.body.results, self._before())
        self.position = {node: i for i, node in enumerate(found.order)}
        self._restore()
        self._resolve()
        return found

    # ------------------------------------------------ who lives where

    def _natural(self, node: Node) -> None:
        """A node that is in a buffer by what produces it."""
        places = self.found.places
        match node:
            case Result(of, index):
                replaced = written_operands(of).get(index)
                if replaced is not None:
                    param = dict(state_inputs(of))[replaced]
                    places[node] = self._place_of(of, replaced, param)
            case Element(x, index) if x in places and isinstance(x.type, ArrayType):
                places[node] = element_place(places[x], index)
            case Update(x, index, value) if x in places:
                if places.get(value) == element_place(places[x], index):
                    places[node] = places[x]
            case _:
                pass

    def _place_of(self, node: Node, at: int, param: Param) -> Place:
        return self.place_of(node, at, param, self.found.places)

    def _demand(self, node: Node, place: Place, at: Node | None) -> None:
        """The buffer holds the node when `at` runs."""
        if self.found.places.get(node) == place or self._written_in_place(node, place):
            return
        stored = self.found.stores.setdefault(at, [])
        if (node, place) not in stored:
            stored.append((node, place))

    def _written_in_place(self, node: Node, place: Place) -> bool:
        """Whether a chain of writing calls leads from the buffer's content to the node."""
        chain: list[Node] = []
        while self.found.places.get(node) != place:
            match node:
                case Result(Call(_, inputs) as call, 0) if self.writes_in_place(call):
                    chain.append(node)
                    node = inputs[0]
                case Update(x, index, value) if self._written_in_place(
                    value, element_place(place, index)
                ):
                    chain.append(node)
                    node = x
                case _:
                    return False
        for link in chain:
            self.found.places[link] = place
            if isinstance(link, Result):
                self.found.in_place[link] = place
        return True

    # ------------------------------------------------ order

    def _overwritten(self, node: Node) -> list[Node]:
        """The contents that running the node replaces in their buffers.

        What was stored in another buffer first, and is replaced there, stays in its own.
        """
        if isinstance(node, Result):
            return []
        inputs, met, places = operands(node), dict(state_inputs(node)), self.found.places
        replaced = [
            inputs[at]
            for at in written_operands(node).values()
            if places.get(inputs[at]) == self._place_of(node, at, met[at])
        ]
        if isinstance(node, Call) and any(
            r in self.found.in_place for r in self.users.get(node, ())
        ):
            replaced.append(inputs[0])
        return replaced

    def _before(self) -> dict[Node, list[Node]]:
        """Readers of a buffer's content go before what overwrites it, where they can."""
        before: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for old in self._overwritten(node):
                for content in self._sharing(old):
                    for user in self.users.get(content, ()):
                        if not _under(node, user, before):
                            before.setdefault(node, []).append(user)
        return before

    def _sharing(self, old: Node) -> list[Node]:
        """The contents that a write over `old` may replace: positions of arrays overlap."""
        place = self.found.places.get(old)
        if place is None or not _POSITION.search(place):
            return [old]
        return [n for n, held in self.found.places.items() if overlapping(place, held)]

    # ------------------------------------------------ what a buffer must hold again

    def _restore(self) -> None:
        """Contents that a buffer has lost by the time it must hold them are stored once more."""
        held: dict[Place, Node | None] = {
            place: node for node, place in self.found.places.items() if isinstance(node, Param)
        }
        for node in self.found.order:
            for content, place in self._needs(node):
                self._hold(held, content, place, node)
            results = {r.index: r for r in self.users.get(node, ()) if isinstance(r, Result)}
            for index, at in written_operands(node).items():
                param = dict(state_inputs(node))[at]
                held[self._place_of(node, at, param)] = results.get(index)
            for result in results.values():
                if result in self.found.in_place:
                    held[self.found.in_place[result]] = result
        for content, place in self.demanded:
            self._hold(held, content, place, None)

    def _needs(self, node: Node) -> list[tuple[Node, Place]]:
        """What must be in which buffer when the node runs."""
        inputs = operands(node)
        out = [(inputs[at], self._place_of(node, at, param)) for at, param in state_inputs(node)]
        for result in self.users.get(node, ()):
            if result in self.found.in_place:
                out.append((inputs[0], self.found.in_place[result]))
        return out

    def _hold(
        self, held: dict[Place, Node | None], content: Node, place: Place, at: Node | None
    ) -> None:
        # Nobody but its own methods assigns a sub's state: in arrays of subs nothing is restored.
        if _POSITION.search(place):
            return
        if held.setdefault(place, content) is not content:
            stored = self.found.stores.setdefault(at, [])
            if (content, place) not in stored:
                stored.append((content, place))
            held[place] = content

    # ------------------------------------------------ who reads too late

    def _resolve(self) -> None:
        """Copies of contents that are read after they are overwritten, or leave the function."""
        end = len(self.found.order)
        aliases = self._aliases()
        events = self._events(end)
        for old, (at, event) in events.items():
            for node, origins in aliases.items():
                if old not in origins:
                    continue
                for user in self.users.get(node, ()):
                    if user in self._views(node) or self._only_in_buffer(user, node, event):
                        continue
                    self.found.pinned.add(user)
                    if user is event or self.position[user] >= at:
                        self.found.copies.add(old)
                if any(node is n for n in (*self.values, *self._stored_from(at, end))):
                    self.found.copies.add(old)
        for i, result in enumerate(self.values):
            if aliases.get(result, frozenset()) - self.found.copies:
                self.found.cloned_results.add(i)

    def _events(self, end: int) -> dict[Node, tuple[int, Node | None]]:
        """For each content that is overwritten in this body: when, and by what."""
        events: dict[Node, tuple[int, Node | None]] = {}

        def add(old: Node, at: int, event: Node | None) -> None:
            if old not in events or at < events[old][0]:
                events[old] = (at, event)

        for node in self.found.order:
            now = self.position[node]
            for old in self._overwritten(node):
                for content in self._sharing(old):
                    whole = isinstance(content.type, ArrayType) and content is not old
                    if not whole and self._since(content) < now:
                        add(content, now, node)
        for at, stored in self.found.stores.items():
            moment = end if at is None else self.position[at]
            for node, place in stored:
                for old, held in self.found.places.items():
                    if held == place and old is not node and self._since(old) < moment:
                        add(old, moment, at)
        return events

    def _since(self, content: Node) -> int:
        """When a buffer holds it: a result does as soon as its node has run."""
        if isinstance(content, Result) and content.of in self.position:
            return self.position[content.of]
        return -1 if isinstance(content, Param) else self.position[content]

    def _stored_from(self, moment: int, end: int) -> list[Node]:
        """What is stored anywhere at this moment or later."""
        return [
            node
            for at, stored in self.found.stores.items()
            if (end if at is None else self.position[at]) >= moment
            for node, _ in stored
        ]

    def _only_in_buffer(self, user: Node, node: Node, event: Node | None) -> bool:
        """The user takes the node as the buffer's content, and at no other operand."""
        inputs = operands(user)
        at = {i for i, x in enumerate(inputs) if x is node}
        by_buffer = {i for i, _ in state_inputs(user)}
        if isinstance(user, Call) and user is event:
            if any(r in self.found.in_place for r in self.users.get(user, ())):
                by_buffer.add(0)
        if at <= by_buffer:
            restored = any(n is node for s in self.found.stores.values() for n, _ in s)
            if event is not None and self.position[user] > self.position[event] and not restored:
                raise InternalError("torch.state", f"{self.body.name}: state read after its end")
            return True
        return False

    def _views(self, node: Node) -> list[Node]:
        return [u for u in self.users.get(node, ()) if _is_view(u, node)]

    def _aliases(self) -> dict[Node, frozenset[Node]]:
        """For each node, the buffer contents that it may share memory with."""
        out: dict[Node, frozenset[Node]] = {}
        for node in self.found.order:
            if node in self.found.places:
                out[node] = frozenset((node,))
                continue
            shared: frozenset[Node] = frozenset()
            if isinstance(node, _VIEWS):
                shared = out.get(node.x, shared)
            elif isinstance(node, Result):
                inputs = operands(node.of)
                for i in aliased_inputs(node.of, node.index):
                    shared |= out.get(inputs[i], frozenset())
            if shared:
                out[node] = shared
        return out


def _is_view(user: Node, node: Node) -> bool:
    return isinstance(user, _VIEWS) and user.x is node


def aliased_inputs(node: Node, index: int) -> tuple[int, ...]:
    """The operands of a Call or control node that its result may be a view of."""
    match node:
        case Call(function):
            if index >= len(function.value_results):
                return ()
            return _aliased_params(function)[index]
        case _:
            # A body never returns a view of a buffer, but may return a value that it was given.
            if isinstance(node, For) and index >= len(node.body.results) - node.stacked:
                return ()  # a stack of copies
            return tuple(i for i, p in met_params(node) if p.kind == "value")


@lru_cache(maxsize=2048)
def _aliased_params(function: Function) -> tuple[tuple[int, ...], ...]:
    """For each value result, the value params that it may be a view of."""
    shared: dict[Node, frozenset[int]] = {
        p: frozenset((i,)) for i, p in enumerate(function.params) if p.kind == "value"
    }
    for node in ordered(function.results):
        match node:
            case Reshape(x) | Permute(x) | Expand(x) | Slice(x) | Gather(x):
                shared[node] = shared.get(x, frozenset())
            case Result(of, index):
                inputs = operands(of)
                parts = [shared.get(inputs[i], frozenset()) for i in aliased_inputs(of, index)]
                shared[node] = frozenset().union(*parts)
            case _:
                pass
    return tuple(tuple(sorted(shared.get(r, frozenset()))) for r in function.value_results)


def _under(node: Node, other: Node, before: Mapping[Node, Sequence[Node]]) -> bool:
    """Whether `other` is the node, depends on it, or has been asked to come after it."""
    stack, seen = [other], {other}
    while stack:
        x = stack.pop()
        if x is node:
            return True
        for y in (*operands(x), *before.get(x, ())):
            if y not in seen:
                seen.add(y)
                stack.append(y)
    return False
