"""A state that a function only hands on is none of its states.

Where something inside still takes states, all stay: it may be given another value as one of them,
which a backend that keeps states in place must take back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from linnet.core.build import Builder, named_like
from linnet.core.ir import (
    Call,
    Element,
    For,
    Function,
    Node,
    Program,
    Result,
    Update,
    functions_of,
    operands,
)
from linnet.core.ranges import Ranges, given
from linnet.core.rewrite import map_functions, nodes_of, rebuild, topological
from linnet.dims import Facts


def drop_untouched(program: Program) -> Program:
    """The program whose functions take and return the states that they read or change.

    A loss over packed tokens goes through the methods that could meet a cache and meets none.
    """
    known: dict[Function, _Trimmed] = {}

    def change(function: Function, renewed: Mapping[Function, Function]) -> Function:
        rewritten = _Rewriting(known, renewed).of(function, Facts(), {})
        trimmed = _trimmed(rewritten)
        known[function] = trimmed
        return trimmed.function

    return map_functions(program, change)


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """What became of a function: the params that are left, and where its results are now.

    A result is one of the function's, or (negative, from -1) the value of a param of the old one.
    """

    function: Function
    kept: tuple[int, ...]
    results: tuple[int, ...]


def _trimmed(function: Function) -> _Trimmed:
    first = len(function.value_results)
    new = dict(zip(function.writes, function.results[first:], strict=True))
    states = {p.name: p for p in function.params if p.kind == "state"}
    held = {path for path, p in states.items() if new.get(path, p) is p}
    others = [r for i, r in enumerate(function.results) if i < first]
    others += [node for path, node in new.items() if path not in held]
    used = set(topological(others))
    gone = {states[path] for path in held if states[path] not in used}
    if any(map(_takes_states, nodes_of(function))):
        gone = set()
    writes = tuple(path for path in function.writes if states[path] not in gone)
    results = (*function.value_results, *(new[path] for path in writes))
    at = {p: i for i, p in enumerate(function.params)}
    where = [*range(first)]
    for path in function.writes:
        dropped = states[path] in gone
        where.append(-1 - at[states[path]] if dropped else first + writes.index(path))
    kept = tuple(i for i, p in enumerate(function.params) if p not in gone)
    if not gone:
        return _Trimmed(function, kept, tuple(where))
    params = tuple(function.params[i] for i in kept)
    made = replace(function, params=params, results=results, writes=writes)
    return _Trimmed(made, kept, tuple(where))


@dataclass(slots=True)
class _Rewriting:
    """A function over trimmed callees; its loops carry no state that they only hand on."""

    known: Mapping[Function, _Trimmed]
    renewed: Mapping[Function, Function]
    bodies: dict[Function, Function] = field(default_factory=dict[Function, Function])

    def of(self, body: Function, facts: Facts, ranges: Ranges) -> Function:
        facts = facts.extend(body.facts)
        builder = Builder(facts, ranges)
        done: dict[Node, Node] = {}
        outcomes: dict[Node, list[Node]] = {}
        for node in nodes_of(body):
            inner = functions_of(node)
            if not isinstance(node, Call):
                for each in inner:
                    if each not in self.bodies:
                        self.bodies[each] = self.of(each, facts, given(node, ranges))
            inputs = [done[x] for x in operands(node)] if not isinstance(node, Result) else []
            match node:
                case Result(of, index) if of in outcomes:
                    done[node] = named_like(outcomes[of][index], node)
                case Result(of, index):
                    done[node] = rebuild(builder, node, [done[of]], {}, {})
                case Call(function, _, dims) if self.known[function].function is not function:
                    trimmed = self.known[function]
                    given_ = [inputs[i] for i in trimmed.kept]
                    call = builder.call(trimmed.function, given_, dims, node.span)
                    done[node] = call
                    outcomes[node] = [
                        builder.result(call, i, node.span) if i >= 0 else inputs[-1 - i]
                        for i in trimmed.results
                    ]
                case For():
                    done[node], outcomes[node] = self._for(builder, node, inputs)
                case Update(_, index) if _same_element(inputs, index):
                    done[node] = inputs[0]
                case _:
                    functions = {**self.renewed, **self.bodies}
                    done[node] = rebuild(builder, node, inputs, {}, functions)
        results = tuple(done[node] for node in body.results)
        if all(a is b for a, b in zip(results, body.results, strict=True)):
            return body
        return replace(body, results=results)

    def _for(self, builder: Builder, node: For, inputs: list[Node]) -> tuple[Node, list[Node]]:
        """The loop without the states that every turn hands on, and its old results."""
        turns = [self.bodies[each] for each in functions_of(node)]
        a, b = len(node.carried), len(node.carried) + len(node.scanned)
        params = turns[0].params[1 : 1 + b]
        scanned = [i for i in range(a, b) if params[i].kind == "state"]
        # The operand that each result goes on from, where it is a state.
        states = {i: i for i in range(a) if params[i].kind == "state"}
        states |= {a + k: i for k, i in enumerate(scanned)}
        gone = {r: i for r, i in states.items() if all(_hands_on(t, r, 1 + i) for t in turns)}
        if any(map(_takes_states, (each for turn in turns for each in nodes_of(turn)))):
            gone = {}
        left = [i for i in range(len(inputs)) if i not in gone.values()]
        kept = [r for r in range(len(turns[0].results)) if r not in gone]
        made = [
            replace(
                turn,
                params=(turn.params[0], *(turn.params[1 + i] for i in left)),
                results=tuple(turn.results[r] for r in kept),
            )
            if gone
            else turn
            for turn in turns
        ]
        loop = builder.for_(
            made[0],
            node.variable,
            node.start,
            node.stop,
            [inputs[i] for i in left if i < a],
            [inputs[i] for i in left if a <= i < b],
            [inputs[i] for i in left if b <= i],
            node.stacked,
            node.span,
            made[1] if len(made) > 1 else None,
        )
        results = [
            inputs[gone[r]] if r in gone else builder.result(loop, kept.index(r), node.span)
            for r in range(len(turns[0].results))
        ]
        return loop, results


def _takes_states(node: Node) -> bool:
    return any(p.kind == "state" for inner in functions_of(node) for p in inner.params)


def _hands_on(turn: Function, result: int, param: int) -> bool:
    own = turn.params[param]
    others = [node for i, node in enumerate(turn.results) if i != result]
    return turn.results[result] is own and own not in topological(others)


def _same_element(inputs: Sequence[Node], index: int) -> bool:
    whole, value = inputs
    return isinstance(value, Element) and value.x is whole and value.index == index
