"""The statements of one generated function of JAX: pure, with state as arguments and results.

A loop over layers is Python's, over calls of one jitted function; a counted loop is `lax.fori_loop`
or `lax.scan`, `while` is `lax.while_loop`, `if` is `lax.cond`: their bodies are functions that
stand before them and see what is around them.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from linnet.backends import Kernel
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    ArrayType,
    Binary,
    Call,
    Compare,
    Element,
    Expand,
    For,
    Function,
    If,
    Node,
    Param,
    Result,
    ResultsType,
    Select,
    Update,
    While,
    operands,
)
from linnet.diagnostics import InternalError
from linnet.dims import Facts, Relation, proves
from linnet.emit import Ex, Lines, bundle, call, count_uses, dim_text, ordered, snake_case
from linnet.jax.express import Expressions
from linnet.jax.narrow import meets_wide, narrow_nodes, worked_out_ahead
from linnet.jax.tree import attribute
from linnet.statements import INLINE, Statements

if TYPE_CHECKING:
    from linnet.jax.emit import FunctionWriter


def member_path(base: str, param: Param) -> str:
    """A member as an attribute of `base`; `.*` stands for the positions of an array."""
    out = base
    for part in map(attribute, param.name.split(".")):
        out = f'getattr({out}, "{part}")' if keyword.iskeyword(part) else f"{out}.{part}"
    return out


def base_of(text: str, path: str) -> str:
    """What the member at this path hangs on, of the member's text."""
    for part in reversed([*map(attribute, path.split("."))]):
        end = f', "{part}")'
        if text.endswith(f".{part}"):
            text = text.removesuffix(f".{part}")
        elif text.startswith("getattr(") and text.endswith(end):
            text = text.removeprefix("getattr(").removesuffix(end)
        else:
            raise InternalError("jax.body", f"{text} does not end in {part} of {path}")
    return text


def function_name(function: Function) -> str:
    """`decoder_layer_forward` of a method, else the function's own name."""
    parts = function.name.split(".")
    if function.block is not None and len(parts) > 1:
        return f"{snake_case(parts[0])}_{parts[1]}"
    return parts[0]


class Scope(Expressions, Statements):
    """The statements of one body: of a function, or of a loop or branch inside it."""

    def __init__(
        self,
        writer: FunctionWriter,
        body: Function,
        lines: Lines,
        bases: Mapping[str, str],
        facts: Facts,
    ) -> None:
        super().__init__(lambda d: dim_text(d, writer.size), facts)
        self.writer = writer
        self.module = writer.module
        self.large = writer.module.large
        self.names = writer.names
        self.body = body
        self.lines = lines
        self.bases = bases  # Linnet's names of what members hang on -> Python's
        self.values = body.results
        self.uses: Counter[Node] = Counter()
        self.filled_for: Counter[Node] = Counter()  # users that take no Python number
        self.outcomes: dict[Node, dict[int, Result]] = {}
        self.counters: set[Node] = set()
        self.own: set[Node] = set()  # params whose variables are this body's
        self.last_user: dict[Node, Node | None] = {}

    def run(self) -> list[Ex]:
        """Every statement is written; the expressions of the results."""
        order = ordered(self.body.results)
        self.ahead = worked_out_ahead(order)
        self.writer.wide |= meets_wide(order, self.values, self.ahead)
        if not self.large:
            self.narrow = narrow_nodes((n for n in order if n not in self.ahead), self.counters)
        self.uses = count_uses(order, self.values)
        self.last_user = {x: node for node in order for x in operands(node)}
        self.last_user.update(dict.fromkeys(self.values, None))
        for node in order:
            if isinstance(node, Result):
                self.outcomes.setdefault(node.of, {})[node.index] = node
            if not isinstance(node, (Binary, Compare, Select)):
                self.filled_for.update(operands(node))
        for node in order:
            self._visit(node)
        return [self._result(node) for node in self.values]

    def _result(self, node: Node) -> Ex:
        return self.env[node] if isinstance(node.type, ArrayType) else self.full(node)

    def _visit(self, node: Node) -> None:
        if node in self.env:
            return
        value = self.number(node)
        if value is not None:
            self.numbers.add(node)
            self.env[node] = value
            return
        match node:
            case Param():
                raise InternalError("jax.body", f"{node.name} is nobody's")
            case Expand(x):
                if self._loose(x) and self.filled_for[node] > 1:
                    self.name_it(node, self.full(node))
            case Element(x, index):
                whole = self.env[x].text
                self.env[node] = Ex(
                    whole.replace(".*", f"[{index}]", 1) if ".*" in whole else f"{whole}[{index}]"
                )
            case Update(x, index, value_):
                self.settled(x)
                self._bind(node, self._updated(x, index, value_))
            case Call():
                self._call(node)
            case If():
                self._if(node)
            case While():
                self._while(node)
            case For() if node.scanned:
                self._for_each(node)
            case For():
                self._for(node)
            case Result():
                raise InternalError("jax.body", f"{self.body.name}: a result before its node")
            case _:
                self._bind(node, self.express(node))

    def _updated(self, x: Node, index: int, value: Node) -> Ex:
        """The list with another element."""
        assert isinstance(x.type, ArrayType)
        old = self.env[x]
        before = [f"*{old}[:{index}]"] if index else []
        after = [f"*{old}[{index + 1}:]"] if index + 1 < x.type.length else []
        return Ex(f"[{', '.join([*before, str(self._result(value)), *after])}]")

    def wish(self, node: Node) -> str:
        match node:
            case Update(x):
                while isinstance(x, (Update, Element)):
                    x = x.x
                return _short(x) if isinstance(x, Param) else super().wish(x)
            case Result(While(body=body), index):
                return _short(body.params[index])
            case Result(For(body=body) as loop, index) if index < len(loop.carried):
                return _short(body.params[1 + index])
            case _:
                return super().wish(node)

    def _bind(self, node: Node, text: Ex) -> None:
        """The node is written as the text, or has a name if that reads or runs better."""
        long = len(text.text) > INLINE and not self.only_result(node)
        if text.trivial or not (self.uses[node] > 1 or node.hint or long):
            self.env[node] = text
        else:
            self.name_it(node, text)

    def wish_of_call(self, node: Call) -> str:
        member = re.sub(r"\W.*", "", self._prefix(node).split(".")[-1])
        parts = node.function.name.split(".")
        if node.function.block is None:
            return parts[0]
        return member if member not in self.bases.values() else parts[1]

    # ------------------------------------------------ calls

    def _prefix(self, node: Call) -> str:
        """The block that a method is called on: where its members hang."""
        for param, x in zip(node.function.params, node.inputs, strict=True):
            if param.kind not in ("param", "buffer"):
                continue
            return base_of(self.env[x].text, param.name)
        return self.bases["self"]

    def _call(self, node: Call) -> None:
        function, kernel = node.function, self.module.kernel(node)
        sizes = dict(zip(function.dims, node.dims, strict=True))
        if kernel is not None:
            values = self._kernel_inputs(node, kernel)
            sized = {name: self.dim(sizes[name]) for name in kernel.dims}
            text = call(kernel.run, *values, **sized) if kernel.run else values[0]
            self._assign(node, text, 1)
            return
        written = self.module.write(function)
        values = [
            self._passed(x, i in written.numbers)
            for i, (p, x) in enumerate(zip(function.params, node.inputs, strict=True))
            if p.kind in ("value", "state")
        ]
        if written.takes_self:
            values.insert(0, Ex(self._prefix(node)))
        named = {name: self.dim(sizes[d]) for d, name in written.dims.items()}
        self._assign(node, call(written.name, *values, **named), len(function.results))

    def _passed(self, node: Node, number: bool) -> Ex:
        if isinstance(node.type, ArrayType):
            return self.env[node]
        return self.env[node] if number and node in self.env else self.full(node)

    def _kernel_inputs(self, node: Call, kernel: Kernel) -> list[Ex]:
        out: list[Ex] = []
        for param, x in zip(node.function.params, node.inputs, strict=True):
            text = self._passed(x, param.name in kernel.numbers)
            out.append(Ex(f"{param.name}={text}") if param.name in kernel.named else text)
        return out

    def _assign(self, node: Node, text: Ex, count: int) -> None:
        """The results of a call are written, or named."""
        outcomes = self.outcomes.get(node, {})
        if count == 1:
            if 0 not in outcomes:
                return
            if isinstance(node, Call) or self.only_result(outcomes[0]):
                self._bind(outcomes[0], text)
            else:  # its functions read variables, which may have new values further down
                self.name_it(outcomes[0], text)
            return
        self.lines.add(f"{', '.join(self._targets(node, count))} = {text}")

    def _targets(self, node: Node, count: int, first: int = 0) -> list[str]:
        """A name for each result that is read."""
        names: list[str] = []
        for i in range(first, first + count):
            outcome = self.outcomes.get(node, {}).get(i)
            if outcome is None or not self.uses[outcome]:
                names.append("_")
                continue
            names.append(
                self._renewed(outcome) or self.names.fresh(outcome.hint or self.wish(outcome))
            )
            self.env[outcome] = Ex(names[-1])
            self.named.add(outcome)
        return names

    def _renewed(self, outcome: Result) -> str:
        """A new state takes the old one's name, where nothing reads that any more."""
        node = outcome.of
        if not isinstance(node, Call):
            return ""
        at = outcome.index - len(node.function.value_results)
        if at < 0:
            return ""
        path = node.function.writes[at]
        (old,) = (
            x
            for p, x in zip(node.function.params, node.inputs, strict=True)
            if p.kind == "state" and p.name == path
        )
        text = self.env[old].text
        own = old in self.own or old in self.named
        if own and text.isidentifier() and self.last_user.get(old) is node:
            # What is not yet written may still read the old one.
            word = re.compile(rf"(?<![.\w]){text}\b")
            if not any(word.search(t.text) for x, t in self.env.items() if x is not old):
                return text
        return self.names.fresh(_last_part(path))

    # ------------------------------------------------ control

    def _child(self, body: Function, bases: Mapping[str, str] | None = None) -> Scope:
        return Scope(self.writer, body, self.lines, bases or self.bases, self.facts)

    def _nested(self, child: Scope) -> list[Ex]:
        """The body's statements, one step further in."""
        self.lines.depth += 1
        try:
            return child.run()
        finally:
            self.lines.depth -= 1

    def _given(self, child: Scope, param: Param, x: Node) -> None:
        """The body's param is the outer value, which is not computed again there."""
        if param.kind == "value" or param.kind == "state":
            self.settled(x)
        child.env[param] = self.env[x]
        if x in self.numbers:
            child.numbers.add(param)
        if x in self.either:
            child.either.add(param)
        if x in self.narrow.nodes:
            child.counters.add(param)

    def settled(self, node: Node) -> None:
        if isinstance(node, Expand) and node not in self.env:
            self.env[node] = self.fitting(node)
        if not self.env[node].trivial:
            self.name_it(node, self.env[node])

    def _function(
        self,
        wish: str,
        arguments: Sequence[str],
        child: Scope,
        carried: Sequence[str] = (),
        stacked: int = 0,
    ) -> str:
        """A function of the child's body, which knows the names; `carried` are one argument."""
        name = self.names.fresh(wish)
        blank = (0, "")
        self.lines.items += [blank] if self.lines.items[-1:] != [blank] else []
        self.lines.add(f"def {name}({', '.join(arguments)}):")
        self.lines.depth += 1
        if len(carried) > 1:
            self.lines.add(f"{', '.join(carried)} = carried")
        results = _returned(child.run(), stacked)
        self.lines.add(f"return {child.last_value(results)}")
        self.lines.depth -= 1
        self.lines.items.append(blank)
        return name

    def _if(self, node: If) -> None:
        for x in node.inputs:
            if not isinstance(x.type, ArrayType) and x not in self.numbers:
                self.settled(x)
        named: list[str] = []
        for word, body in (("then", node.then), ("otherwise", node.other)):
            child = self._child(body)
            for param, x in zip(body.params, node.inputs, strict=True):
                self._given(child, param, x)
            named.append(self._function(word, (), child))
        text = call("lax.cond", self.env[node.c], *named)
        self._assign(node, text, len(node.then.results))

    def _carried(self, params: Sequence[Param], child: Scope) -> list[str]:
        """A variable of the body for each carried value."""
        names: list[str] = []
        for param in params:
            names.append(self.names.fresh(_short(param)))
            child.env[param] = Ex(names[-1])
            child.own.add(param)
        return names

    def _begun(self, inputs: Sequence[Node]) -> str:
        values = [self._result(x) for x in inputs]
        return str(values[0]) if len(values) == 1 else bundle(values) if values else "()"

    def _while(self, node: While) -> None:
        named: list[str] = []
        for word, body in (("going", node.test), ("turn", node.body)):
            child = self._child(body)
            for param, x in zip(body.params[node.count :], node.inputs[node.count :], strict=True):
                self._given(child, param, x)
            inside = self._carried(body.params[: node.count], child)
            named.append(self._function(word, [_packed(inside)], child, inside))
        begun = self._begun(node.inputs[: node.count])
        self._assign(node, call("lax.while_loop", *named, begun), node.count)

    def _for(self, node: For) -> None:
        """A counted loop: `lax.fori_loop`, or `lax.scan` where turns yield values."""
        count = len(node.carried)
        child = self._child(node.body)
        counter, rest = node.body.params[0], node.body.params[1:]
        number = self.names.fresh(counter.name)
        child.env[counter] = Ex(number)
        child.counters.add(counter)
        for param, x in zip(rest[count:], node.fixed, strict=True):
            self._given(child, param, x)
        inside = self._carried(rest[:count], child)
        carried = _packed(inside)
        start, stop = self.dim(node.start), self.dim(node.stop)
        begun = self._begun(node.carried)
        if not node.stacked:
            turn = self._function("turn", [number, carried], child, inside)
            self._assign(node, call("lax.fori_loop", start, stop, turn, begun), count)
            return
        turns = call("jnp.arange", *([start] if start.text != "0" else []), stop)
        if not count:
            turn = self._function("turn", [number], child)
            self._assign(node, call("lax.map", turn, turns), node.stacked)
            return
        turn = self._function("turn", [carried, number], child, inside, node.stacked)
        targets = self._targets(node, count), self._targets(node, node.stacked, count)
        sides = [names[0] if len(names) == 1 else bundle(names) for names in targets]
        self.lines.add(f"{', '.join(sides)} = {call('lax.scan', turn, begun, turns)}")

    def _for_each(self, node: For) -> None:
        """A loop of Python over the elements of sub arrays."""
        a, b = len(node.carried), len(node.carried) + len(node.scanned)
        variables: list[str] = []
        for param, x in zip(node.body.params[1 : 1 + a], node.carried, strict=True):
            text = self.env[x].text if x in self.named else ""
            if not (text and self.uses[x] == 1):
                text = self.names.fresh(_short(param))
                self.lines.add(f"{text} = {self._result(x)}")
            variables.append(text)
        element = self.names.fresh(node.variable)
        number = self.names.fresh(node.body.params[0].name)
        first = len(node.body.results) - node.stacked
        lists: dict[int, str] = {}
        for i in range(a, len(node.body.results)):
            outcome = self.outcomes.get(node, {}).get(i)
            wish = self._collected(node, i, b - a) if i < first else "stacked"
            lists[i] = self.names.fresh((outcome.hint if outcome else "") or wish)
            self.lines.add(f"{lists[i]} = []")
        blocks, walked, states = self._walked(node, element)
        for param, x in zip(node.body.params[1 + b :], node.fixed, strict=True):
            if param.kind in ("value", "state"):  # has its name before the first turn
                self.settled(x)
        start = len(self.lines.items)
        self.lines.add("for")
        self._turn(node, node.body, element, Ex(number), variables, lists, states, start)
        counted = any(re.search(rf"\b{number}\b", t) for _, t in self.lines.items[start + 1 :])
        own = [element] if blocks else []
        targets, arrays = [*own, *states.values()], [*blocks, *walked]
        ends = []
        if node.last is not None:
            ends = [f"{array}[-1]" for array in arrays]
            arrays = [f"{array}[:-1]" for array in arrays]
        head = arrays[0] if len(arrays) == 1 else f"zip({', '.join(arrays)}, strict=True)"
        target = ", ".join(targets)
        if counted:
            target = f"{number}, {target if len(targets) == 1 else f'({target})'}"
            head = f"enumerate({head})"
        self.lines.items[start] = (self.lines.depth, f"for {target} in {head}:")
        if node.last is not None:
            self.lines.add(f"{', '.join(targets)} = {', '.join(ends)}")
            start = len(self.lines.items)
            self.lines.depth -= 1  # a turn's statements stand one step further in
            last = self.dim(node.stop - 1)
            self._turn(node, node.last, element, last, variables, lists, states, start)
            self.lines.depth += 1
        self._stacked(node, {i: name for i, name in lists.items() if i >= first})
        for i, outcome in self.outcomes.get(node, {}).items():
            self.env[outcome] = Ex(variables[i] if i < a else lists[i])
            self.named.add(outcome)

    def _collected(self, node: For, i: int, scanned: int) -> str:
        states = [p for p in node.body.params[1 + len(node.carried) :][:scanned] if _is_state(p)]
        at = i - len(node.carried)
        return f"new_{_short(states[at])}" if at < len(states) else "collected"

    def _walked(
        self, node: For, element: str
    ) -> tuple[list[str], list[str], dict[tuple[str, str], str]]:
        """The array of blocks, the lists of states, and a name for an element of each of those."""
        first = 1 + len(node.carried)
        blocks: set[str] = set()
        walked: list[str] = []
        states: dict[tuple[str, str], str] = {}
        for param, x in zip(node.body.params[first:], node.scanned, strict=False):
            if _is_state(param):
                states[param.base, param.name] = self.names.fresh(f"{element}_{_short(param)}")
                walked.append(self.env[x].text)
            else:
                blocks.add(base_of(self.env[x].text, f"*.{param.name}"))
        if len(blocks) > 1:
            raise InternalError("jax.body", f"a loop over {blocks}")
        return sorted(blocks), walked, states

    def _turn(
        self,
        node: For,
        body: Function,
        element: str,
        number: Ex,
        variables: Sequence[str],
        lists: Mapping[int, str],
        states: Mapping[tuple[str, str], str],
        start: int,
    ) -> None:
        """The statements of one turn, and how the variables go on."""
        a, b = len(node.carried), len(node.carried) + len(node.scanned)
        child = self._child(body, {**self.bases, node.variable: element})
        counter, rest = body.params[0], body.params[1:]
        child.env[counter] = number
        child.numbers.add(counter)
        for i, param in enumerate(rest):
            if i < a:
                child.env[param] = Ex(variables[i])
            elif i >= b:
                self._given(child, param, node.fixed[i - b])
            elif _is_state(param):
                child.env[param] = Ex(states[param.base, param.name])
                child.own.add(param)
            else:
                child.env[param] = Ex(member_path(element, param))
        results = self._nested(child)
        self.lines.depth += 1
        for i, name in lists.items():
            self.lines.add(f"{name}.append({results[i]})")
        self.lines.depth -= 1
        names = dict(enumerate(variables))
        self.next_values(names, dict(enumerate(results[:a])), child, start)
        if len(self.lines.items) == start + 1:
            self.lines.items.append((self.lines.depth + 1, "pass"))

    def _stacked(self, node: For, stacks: Mapping[int, str]) -> None:
        """The lists are arrays, with a new first axis."""
        turned = proves(self.facts, Relation("<", node.start, node.stop))
        for i, name in stacks.items():
            assert isinstance(node.type, ResultsType)
            outcome = self.outcomes.get(node, {}).get(i)
            if outcome is None:
                continue
            if turned:
                self.lines.add(f"{name} = jnp.stack({name})")
            else:
                zeros = self.filled(Ex("0"), shape_of(outcome), dtype_of(outcome))
                self.lines.add(f"{name} = jnp.stack({name}) if {name} else {zeros}")


def _packed(carried: Sequence[str]) -> str:
    return carried[0] if len(carried) == 1 else "carried"


def _is_state(param: Param) -> bool:
    return param.kind == "state"


def _short(param: Param) -> str:
    return _last_part(param.name)


def _last_part(path: str) -> str:
    return path.rpartition(".")[2]


def _returned(results: Sequence[Ex], stacked: int) -> str:
    if not stacked:
        return ", ".join(map(str, results)) or "()"
    sides = results[: len(results) - stacked], results[len(results) - stacked :]
    return ", ".join(str(s[0]) if len(s) == 1 else bundle(s) for s in sides)
