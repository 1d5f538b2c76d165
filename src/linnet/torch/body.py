"""The statements of one generated function: what is named, what happens in place, loops, branches.

Expressions are `torch.express`'s, and `torch.state` says what a buffer holds at each moment.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from linnet.backends import Kernel
from linnet.core.derive import dtype_of, shape_of
from linnet.core.ir import (
    ArrayType,
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Dot,
    Element,
    Expand,
    For,
    Function,
    Gather,
    If,
    Iota,
    Literal,
    Node,
    Param,
    Permute,
    Reduce,
    Reshape,
    Result,
    ResultsType,
    Select,
    Size,
    Slice,
    Unary,
    Update,
    While,
    operands,
)
from linnet.diagnostics import InternalError
from linnet.dims import Facts, Relation, proves
from linnet.emit import Ex, Lines, bundle, call, count_uses, dim_text, ordered, snake_case
from linnet.statements import INLINE, Statements
from linnet.torch.express import Expressions, torch_dtype
from linnet.torch.lora import LINEAR
from linnet.torch.siblings import Group
from linnet.torch.state import (
    Place,
    Residence,
    aliased_inputs,
    element_place,
    met_params,
    reside,
    state_inputs,
    written_operands,
)
from linnet.torch.touched import touches_state

if TYPE_CHECKING:
    from linnet.torch.emit import FunctionWriter

# What members cannot be reached as: names of nn.Module's own, and of the loaded module's.
RESERVED = frozenset(dir(nn.Module())) | {
    "add_lora",
    "amp",
    "copy_weights",
    "device",
    "entries",
    "generated_source",
    "generics",
    "get_buffer_at",
    "load_lora",
    "lora",
    "lora_paths",
    "merge_lora",
    "numerics",
    "parts",
    "placement",
    "program",
    "reset_state",
    "run_entry",
    "save_weights",
    "set_checkpointing",
    "set_trainable",
    "shards",
    "state_paths",
    "trains",
    "weight_names",
}


def member_path(base: str, param: Param) -> Place:
    """A member as an attribute of `base`; `.*` stands for the positions of an array."""
    parts = param.name.split(".")
    slots = {"param": "_parameters", "buffer": "_buffers", "state": "_buffers"}
    out = base
    for i, part in enumerate(parts):
        plain = part not in RESERVED and not keyword.iskeyword(part)
        slot = slots.get(param.kind, "") if i == len(parts) - 1 else "_modules"
        out += f".{part}" if plain else f'.{slot}["{part}"]'
    return out


def _block_of(place: Place) -> list[Ex]:
    """The block of a weight, and its name there if it is not `weight`: a call's last arguments."""
    listed = re.fullmatch(r'(.*)\._parameters\["(\w+)"\]', place)
    block, name = listed.groups() if listed else place.rpartition(".")[::2]
    return [Ex(block), *([] if name == "weight" else [Ex(f'name="{name}"')])]


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
        super().__init__(lambda d: dim_text(d, writer.size), facts, writer.module.checked)
        self.writer = writer
        self.module = writer.module
        self.names = writer.names
        self.body = body
        self.lines = lines
        self.bases = bases  # Linnet's names of what members hang on -> Python's
        self.states: dict[Node, Place] = {}  # of the body's state params
        self.demanded: list[tuple[Node, Place]] = []
        self.values = body.value_results  # the results that are no new state
        self.uses: Counter[Node] = Counter()
        self.filled_for: Counter[Node] = Counter()  # users that take no Python number
        self.outcomes: dict[Node, dict[int, Result]] = {}
        self.residence = Residence([])
        self.held: dict[Place, Node] = {}
        self.hoisted: set[Node] = set()
        self.shared: set[Node] = set()  # weights, kept constants, and views of them
        self.members: dict[Node, Place] = {}  # where adapted weights are, which `env` adapts
        self.lent: set[tuple[Node, int]] = set()  # results that a callee or a body shares
        self.groups: dict[Call, Group] = {}  # calls that run as one
        self.grouped: set[Call] = set()  # those of them that do already

    def run(self) -> list[Ex]:
        """Every statement is written; the expressions of the value results."""
        self._plan()
        for param in self.body.params:
            if param in self.residence.copies:
                self._copied(param)
        for node in self._live():
            self._store(node)
            self._visit(node)
            self._forget(node)
            if self._shares(node):
                self.shared.add(node)
        self._store(None)
        results = [self.full(r) for r in self.values]
        for i in self.residence.cloned_results:
            results[i] = results[i].method("clone")
        return results

    def reach(self, param: Param, place: Place) -> None:
        """The member is at the place; an adapted weight is read through its block."""
        self.env[param] = Ex(place)
        if self.module.variant.adapts(param):
            self.members[param] = place
            self.env[param] = call("lora.weight", *_block_of(place))

    def _shares(self, node: Node) -> bool:
        match node:
            case Param():
                return node.kind in ("param", "buffer") or node in self.shared
            case Result(of, index):
                if of in self.hoisted or (of, index) in self.lent:
                    return True
                given = operands(of)
                return any(given[i] in self.shared for i in aliased_inputs(of, index))
            case Element(x) | Reshape(x) | Permute(x) | Expand(x) | Slice(x) | Gather(x):
                return x in self.shared or node in self.hoisted
            case _:
                return node in self.hoisted

    def _plan(self) -> None:
        if self.body is self.writer.function:
            own = [p for p in self.body.params if p.kind == "state"]
            self.states = {p: self.env[p].text for p in own}
            places = {p.name: self.env[p].text for p in own}
            new = self.body.results[len(self.values) :]
            pairs = zip(new, self.body.writes, strict=True)
            self.demanded = [(node, places[path]) for node, path in pairs]
        self.residence = reside(
            self.body, self.states, self._in_place, self._place_of, self.demanded, self.values
        )
        self.hoisted = self._constants()

    def _live(self) -> list[Node]:
        """The nodes to write, in order: nothing that only a hoisted constant needs."""
        stored = [n for s in self.residence.stores.values() for n, _ in s]
        roots = [*self.body.results, *stored]
        seen: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(operands(node) if node not in self.hoisted else ())
        order = [n for n in self.residence.order if n in seen]
        counted = [n for n in order if n not in self.hoisted]
        self.uses = count_uses(counted, [*self.values, *stored])
        for node in order:
            if isinstance(node, Result):
                self.outcomes.setdefault(node.of, {})[node.index] = node
            if not isinstance(node, (Binary, Compare, Select)):
                self.filled_for.update(operands(node))
        self._together(order)
        return order

    def _together(self, order: Sequence[Node]) -> None:
        """The groups of calls that all run here; what they read is read once."""
        found = self.module.siblings.groups
        for group in dict.fromkeys(found[n] for n in order if isinstance(n, Call) and n in found):
            if not all(self._in_its_place(member) for member in group.members):
                continue
            self.groups |= dict.fromkeys(group.calls, group)
            for i, x in enumerate(operands(group.calls[0])):
                if i not in group.sides:
                    self.uses[x] -= len(group.calls) - 1

    def _in_its_place(self, member: Param) -> bool:
        """Whether the member is reached from what its path starts at."""
        base = self.bases.get(member.base)
        return base is not None and self.env[member].text == member_path(base, member)

    def _visit(self, node: Node) -> None:
        if node in self.env or isinstance(node, Param):
            return
        if node in self.hoisted:
            self._hoist(node)
            return
        value = self.number(node)
        if value is not None:
            self.numbers.add(node)
            self.env[node] = value
            return
        match node:
            case Update():
                self.env[node] = Ex(self.residence.places[node])
            case Expand(x):
                if self._loose(x) and self.filled_for[node] > 1:
                    self.name_it(node, self.full(node))
            case Element(x, index):
                self.env[node] = Ex(element_place(self.env[x].text, index))
                if node in self.residence.copies:
                    self._copied(node)
            case Call():
                self._call(node)
            case If():
                self._if(node)
            case While():
                self._while(node)
            case For():
                self._for(node)
            case Result():
                raise InternalError("torch.emit", f"{self.body.name}: a result before its node")
            case _:
                self._bind(node, self.express(node))

    # ------------------------------------------------ names

    def _bind(self, node: Node, text: Ex, *, now: bool = False) -> None:
        """The node is written as the text, or has a name if that reads or runs better."""
        pinned = now or node in self.residence.pinned
        long = len(text.text) > INLINE and not self.only_result(node)
        if text.trivial or not (pinned or self.uses[node] > 1 or node.hint or long):
            self.env[node] = text
        else:
            self.name_it(node, text)
        if node in self.residence.copies:
            self._copied(node)

    def _copied(self, node: Node) -> None:
        """The node's content, cloned before it is overwritten."""
        text = self.env[node]
        wish = node.hint or re.sub(r".*\.|\[.*?\]", "", text.text) or "old"
        name = self.names.fresh(wish)
        kept = text if self.module.variant.rebinding else f"{text}.clone()"
        self.lines.add(f"{name} = {kept}")
        self.env[node] = Ex(name)

    # ------------------------------------------------ state

    def _in_place(self, node: Call) -> bool:
        kernel = self.module.kernel(node)
        return kernel is not None and bool(kernel.in_place)

    def _place_of(self, node: Node, at: int, param: Param, places: Mapping[Node, Place]) -> Place:
        if isinstance(node, Call):
            return member_path(self._prefix(node, places), param)
        if isinstance(node, For):
            first = len(node.carried)
            if first <= at < first + len(node.scanned):
                return places[operands(node)[at]]
        return member_path(self.bases[param.base], param)

    def _prefix(self, node: Call, places: Mapping[Node, Place] | None = None) -> str:
        """The module that a method is called on: where its members hang."""
        known = places if places is not None else self.residence.places
        for param, x in zip(node.function.params, node.inputs, strict=True):
            if param.kind == "value":
                continue
            text = self._member(x, known)
            end = member_path("", param)
            if text is not None and text.endswith(end):
                return text.removesuffix(end)
        # A state that was computed and not yet stored is the own block's.
        return "self"

    def _root(self, node: Node) -> Node:
        return self._root(node.x) if isinstance(node, Element) else node

    def _member(self, node: Node, places: Mapping[Node, Place]) -> Place | None:
        if node in places:
            return places[node]
        if isinstance(node, Element):
            whole = self._member(node.x, places)
            return None if whole is None else element_place(whole, node.index)
        if node in self.members:
            return self.members[node]
        if isinstance(node, Param) and (node.kind != "value" or isinstance(node.of, ArrayType)):
            return self.env[node].text
        return None

    def _store(self, at: Node | None) -> None:
        """What the node (or the end) needs in buffers is copied there."""
        for value, place in self.residence.stores.get(at, ()):
            if self.held.get(place) is not value:
                new = self.full(value)
                rebinding = self.module.variant.rebinding
                self.lines.add(f"{place} = {new}" if rebinding else f"{place}.copy_({new})")
                self.held[place] = value

    def _forget(self, node: Node) -> None:
        """A buffer that the node wrote holds nothing known where the new state has no reader."""
        met = dict(state_inputs(node))
        for index, at in written_operands(node).items():
            if index not in self.outcomes.get(node, {}):
                self.held.pop(self._place_of(node, at, met[at], self.residence.places), None)

    def wish_of_call(self, node: Call) -> str:
        prefix = self._prefix(node).split(".")[-1]
        member = re.sub(r"\W.*", "", prefix)
        parts = node.function.name.split(".")
        if node.function.block is None:
            return parts[0]
        return member if member not in self.bases.values() else parts[1]

    # ------------------------------------------------ constants

    def _constants(self) -> set[Node]:
        """The largest parts that depend on sizes alone and are worth computing once."""
        if not self.body.params and self.body is self.writer.function:
            return set()
        fixed: set[Node] = set()
        for node in self.residence.order:
            # A member is no constant, even where it has just been assigned one.
            owned = any(p.kind != "value" for _, p in met_params(node))
            if not owned and not isinstance(node, (Param, Element, Update)):
                if all(x in fixed for x in operands(node)):
                    fixed.add(node)
        roots = {r for r in self.body.results if r in fixed}
        for node in self.residence.order:
            if node not in fixed:
                roots.update(x for x in operands(node) if x in fixed)
        whole = {_computed(r) for r in roots}
        return {r for r in whole if _worthwhile(r)}

    def _hoist(self, node: Node) -> None:
        """The constant has a function of its own, run once for each of its sizes."""
        several = isinstance(node.type, ResultsType)
        outcomes = self.outcomes.get(node, {})
        results: tuple[Node, ...] = (node,)
        if several:
            assert isinstance(node.type, ResultsType)
            known = {**outcomes}
            results = tuple(
                known.get(i) or Result(node, i, type=t) for i, t in enumerate(node.type.items)
            )
        made = Function(
            name=f"constant_{self._constant_name(node)}",
            kind="fn",
            op=None,
            block=None,
            dims=self.writer.function.dims,
            params=(),
            results=results,
            writes=(),
            facts=self.writer.function.facts,
            returns=None,
        )
        written = self.module.write(made, once=True)
        self.names.taken.add(written.name)
        text = call(written.name, *(self.writer.size(d) for d in written.dims))
        if several:
            self._assign(node, text, len(results), now=False)
        else:
            self._bind(node, text)

    def _constant_name(self, node: Node) -> str:
        if isinstance(node, Call):
            return function_name(node.function)
        return node.hint or self.wish(node)

    # ------------------------------------------------ calls

    def _call(self, node: Call) -> None:
        function, kernel = node.function, self.module.kernel(node)
        stateful = any(p.kind == "state" for p in function.params)
        sizes = dict(zip(function.dims, node.dims, strict=True))
        result = self.outcomes.get(node, {}).get(0)
        group = self.groups.get(node)
        # A version of a function for some rows may have one of the calls for fewer of them.
        if group is not None and all(each in self.outcomes for each in group.calls):
            if node not in self.grouped:
                self._run_together(group)
            return
        if kernel is not None:
            values = self._kernel_inputs(node, kernel)
            if str(function.op) == LINEAR and self._root(node.inputs[1]) in self.members:
                place = self._member(node.inputs[1], self.residence.places)
                assert place is not None
                block, *name = _block_of(place)
                text = call("lora.linear", values[0], block, *values[2:], *name)
                self._assign(node, text, 1, now=False)
                return
            sized = {name: self.dim(sizes[name]) for name in kernel.dims}
            place = self.residence.in_place.get(result) if result is not None else None
            if result is not None and place is not None:
                if self.module.variant.rebinding:
                    self.lines.add(f"{place} = {call(kernel.run, place, *values[1:], **sized)}")
                else:
                    self.lines.add(str(call(kernel.in_place, place, *values[1:], **sized)))
                self._landed(result, place)
                return
            if not values:
                sized["device"] = Ex("DEVICE")
            # A kernel without a name is its first argument.
            text = call(self._run(node, kernel), *values, **sized) if kernel.run else values[0]
            self._assign(node, text, 1, now=False)
            return
        written = self.module.write(function)
        self.lent.update((node, i) for i in written.shared)
        values = [
            self._passed(x, i in written.numbers)
            for i, (p, x) in enumerate(zip(function.params, node.inputs, strict=True))
            if p.kind == "value"
        ]
        run = written.name
        if written.takes_self:
            prefix = self._prefix(node)
            values.insert(0, Ex(prefix))
            if self._checkpointed(node, prefix):
                values.insert(0, Ex(run))
                run = "training.checkpointed"
        named = {name: self.dim(sizes[d]) for d, name in written.dims.items()}
        text = call(run, *values, **named)
        self._assign(node, text, len(function.value_results), now=stateful)
        for index, outcome in self.outcomes.get(node, {}).items():
            if index >= len(function.value_results):
                self._landed(outcome, self.residence.places[outcome])

    def _checkpointed(self, node: Call, prefix: Place) -> bool:
        """Whether its activations are made again: a call on an array's element, without state."""
        if not self.module.variant.checkpointed:
            return False
        first, *_ = prefix.split(".")
        element = first != self.bases["self"] or re.search(r"\[\d+\]", prefix)
        return bool(element) and not touches_state(node.function)

    def _run_together(self, group: Group) -> None:
        """One call for those of the group, over their members side by side, where the first is."""
        first = group.calls[0]
        kernel = self.module.kernel(first)
        assert kernel is not None
        blocks = first in self.module.stored.calls  # those lie where they are, each for itself
        sides = {
            at: Ex(bundle([self.env[member] for member in group.members_at(at)]))
            if blocks
            else Ex(member_path(self.bases[side.base], side))
            for at, side in group.sides.items()
        }
        run = kernel.run
        if blocks:
            run = self._run(first, kernel).replace("linear", "linears")
        text = call(run, *self._kernel_inputs(first, kernel, sides))
        even = len(set(group.sizes)) == 1
        way, sizes = ("chunk", len(group.sizes)) if even else ("split", bundle(group.sizes))
        names: list[str] = []
        for each, member in zip(group.calls, group.members_at(min(group.sides)), strict=True):
            result = self.outcomes[each][0]
            wish = result.hint or member.name.removesuffix(".weight").rpartition(".")[2]
            name = self.names.fresh(wish)
            self.env[result] = Ex(name)
            self.named.add(result)
            names.append(name)
        self.grouped.update(group.calls)
        targets, whole = ", ".join(names), text
        if blocks:
            self.lines.add(f"{targets} = {text}")
            return
        if self.lines.breaks(f"{targets} = {whole.method(way, sizes, -1)}"):
            whole = Ex(self.names.fresh("product"))
            self.lines.add(f"{whole} = {text}")
        self.lines.add(f"{targets} = {whole.method(way, sizes, -1)}")

    def _run(self, node: Call, kernel: Kernel) -> str:
        """The kernel's name, or of the one that takes its weight in blocks."""
        met = self.module.stored.calls.get(node)
        return kernel.run if met is None or not met.run else met.run

    def _passed(self, node: Node, number: bool) -> Ex:
        return self.env[node] if number and node in self.env else self.full(node)

    def _kernel_inputs(
        self, node: Call, kernel: Kernel, instead: Mapping[int, Ex] | None = None
    ) -> list[Ex]:
        out: list[Ex] = []
        met = self.module.stored.calls.get(node)
        for i, (param, x) in enumerate(zip(node.function.params, node.inputs, strict=True)):
            text = (instead or {}).get(i) or self._passed(x, param.name in kernel.numbers)
            if met is not None and not met.run and i == met.operand:
                text = call("blocks.dense", text)
            out.append(Ex(f"{param.name}={text}") if param.name in kernel.named else text)
        return out

    def _landed(self, node: Node, place: Place) -> None:
        """The node is now what the buffer holds."""
        self.env[node] = Ex(place)
        self.held[place] = node
        if node in self.residence.copies:
            self._copied(node)

    def _assign(self, node: Node, text: Ex, count: int, *, now: bool) -> None:
        """The value results of a call are written, or named."""
        outcomes = self.outcomes.get(node, {})
        wanted = [r for i, r in outcomes.items() if i < count and self.uses[r]]
        if count == 1 and wanted:
            self._bind(wanted[0], text, now=now)
        elif wanted:
            names: list[str] = []
            for i in range(count):
                outcome = outcomes.get(i)
                if outcome is None or not self.uses[outcome]:
                    names.append("_")
                    continue
                wish = outcome.hint or self.wish(outcome)
                name = self.names.fresh(wish)
                self.env[outcome] = Ex(name)
                self.named.add(outcome)
                names.append(name)
            self.lines.add(f"{', '.join(names)} = {text}")
        elif now:
            self.lines.add(str(text))

    # ------------------------------------------------ control

    def _child(self, node: Node, body: Function, places: Mapping[tuple[str, str], Place]) -> Scope:
        """The scope of a body whose results, new states aside, are values."""
        child = Scope(self.writer, body, self.lines, self.bases, self.facts)
        child.states = {p: places[p.base, p.name] for p in body.params if p.kind == "state"}
        return child

    def _returning(self, child: Scope, states: Mapping[int, Place]) -> list[int]:
        """The body ends with these results in buffers; the positions of the others."""
        values = [i for i in range(len(child.body.results)) if i not in states]
        child.values = tuple(child.body.results[i] for i in values)
        child.demanded = [(child.body.results[i], place) for i, place in states.items()]
        return values

    def _given(self, child: Scope, param: Param, x: Node) -> None:
        """The body's param is the outer value, which is not computed again there."""
        if param.kind == "state":
            # Whatever the outer value was: the body may write the buffer and come back.
            child.env[param] = Ex(child.states[param])
            return
        if param.kind != "value":
            member = self._member(x, self.residence.places)
            if member is None:
                child.env[param] = self.env[x]
            else:
                child.reach(param, member)
            return
        self.settled(x)
        child.env[param] = self.env[x]
        own = (
            (self.numbers, child.numbers),
            (self.either, child.either),
            (self.shared, child.shared),
        )
        for group, inner in own:
            if x in group:
                inner.add(param)

    def _state_places(self, node: Node) -> dict[tuple[str, str], Place]:
        known = self.residence.places
        return {
            (p.base, p.name): self._place_of(node, at, p, known) for at, p in state_inputs(node)
        }

    def _nested(self, child: Scope) -> list[Ex]:
        """The body's statements, one step further in."""
        self.lines.depth += 1
        try:
            return child.run()
        finally:
            self.lines.depth -= 1

    def _lend(self, node: Node, child: Scope, values: Sequence[int]) -> None:
        self.lent.update((node, i) for i in values if child.body.results[i] in child.shared)

    def _if(self, node: If) -> None:
        places = self._state_places(node)
        for x in node.inputs:
            if self._member(x, self.residence.places) is None:
                self.settled(x)
        params = node.then.params
        written = {
            i: places[params[at - 1].base, params[at - 1].name]
            for i, at in written_operands(node).items()
        }
        outcomes = self.outcomes.get(node, {})
        names = {
            i: self.names.fresh(outcome.hint or "chosen")
            for i, outcome in sorted(outcomes.items())
            if i not in written
        }
        condition = self.env[node.c]
        for word, body in ((f"if {condition}", node.then), ("else", node.other)):
            child = self._child(node, body, places)
            values = self._returning(child, written)
            for param, x in zip(body.params, node.inputs, strict=True):
                self._given(child, param, x)
            start = len(self.lines.items)
            self.lines.add(f"{word}:")
            results = dict(zip(values, self._nested(child), strict=True))
            self._lend(node, child, values)
            self.next_values({i: names[i] for i in results if i in names}, results, child, start)
            if len(self.lines.items) == start + 1:
                self.lines.items.append((self.lines.depth + 1, "pass"))
        self._after(node, names)

    def _carried(self, params: Sequence[Param], inputs: Sequence[Node]) -> dict[int, str]:
        """A variable for each carried value, holding its first value."""
        names: dict[int, str] = {}
        for i, (param, x) in enumerate(zip(params, inputs, strict=True)):
            if param.kind != "value":
                continue
            text = self.env[x].text if x in self.named else ""
            if text and self.uses[x] == 1:
                names[i] = text  # a variable of nobody else: it goes on as the loop's
                continue
            names[i] = self.names.fresh(param.name)
            self.lines.add(f"{names[i]} = {self.full(x)}")
        return names

    def _after(self, node: Node, names: Mapping[int, str]) -> None:
        for i, outcome in self.outcomes.get(node, {}).items():
            if i in names:
                self.env[outcome] = Ex(names[i])
                self.named.add(outcome)
                if outcome in self.residence.copies:
                    self._copied(outcome)
            else:
                self._landed(outcome, self.residence.places[outcome])

    def _while(self, node: While) -> None:
        places = self._state_places(node)
        names = self._carried(node.body.params[: node.count], node.inputs[: node.count])
        scopes: list[Scope] = []
        for body in (node.test, node.body):
            child = self._child(node, body, places)
            for i, (param, x) in enumerate(zip(body.params, node.inputs, strict=True)):
                if i in names:
                    child.env[param] = Ex(names[i])
                else:
                    self._given(child, param, x)
            scopes.append(child)
        test, again = scopes
        states = {i: again.states[node.body.params[i]] for i in range(node.count) if i not in names}
        values = self._returning(again, states)
        self._loop_test(test)
        start = len(self.lines.items)
        results = dict(zip(values, self._nested(again), strict=True))
        self._lend(node, again, values)
        self.next_values(names, results, again, start)
        self._after(node, names)

    def _loop_test(self, test: Scope) -> None:
        """`while condition:`, or an endless loop that its first statements may leave."""
        start = len(self.lines.items)
        self.lines.add("while True:")
        (condition,) = self._nested(test)
        if len(self.lines.items) == start + 1:
            self.lines.items[start] = (self.lines.depth, f"while {condition}:")
            return
        self.lines.depth += 1
        self.lines.add(f"if not {condition}:")
        self.lines.items.append((self.lines.depth + 1, "break"))
        self.lines.depth -= 1

    def _for(self, node: For) -> None:
        names = self._carried(node.body.params[1 : 1 + len(node.carried)], node.carried)
        element = self.names.fresh(node.variable)
        counter = node.body.params[0].name
        number = self.names.fresh(counter) if node.scanned else element
        child, arrays = self._turn(node, node.body, element, Ex(number), names)
        values = self._ending(node, child)
        yielded = len(node.body.results) - node.stacked
        stacks = self._stacks(node, yielded)
        array = arrays[0] if len(arrays) == 1 else ""
        if node.scanned and not array:
            raise InternalError("torch.emit", f"a loop over {arrays}")
        if node.last is not None:
            first = self.names.fresh(f"{node.variable}s")
            last = self.names.fresh(f"last_{node.variable}")
            self.lines.add(f"*{first}, {last} = {array}")
            array = first
        start = len(self.lines.items)
        self.lines.add("for")
        results = dict(zip(values, self._nested(child), strict=True))
        self._lend(node, child, [i for i in values if i < yielded])
        self._put(stacks, results, child)
        self.next_values(names, results, child, start)
        if len(self.lines.items) == start + 1:
            self.lines.items.append((self.lines.depth + 1, "pass"))
        counted = any(re.search(rf"\b{number}\b", t) for _, t in self.lines.items[start + 1 :])
        head = self.for_head(node, element, number, counted, array)
        self.lines.items[start] = (self.lines.depth, head)
        if node.last is not None:
            self._last_turn(node, node.last, last, names)
        self._stacked(node, stacks)
        self._after(node, names | stacks)

    def _turn(
        self, node: For, body: Function, element: str, number: Ex, names: Mapping[int, str]
    ) -> tuple[Scope, list[str]]:
        """The scope of one turn, and the arrays that the loop walks."""
        carried, scanned = len(node.carried), len(node.carried) + len(node.scanned)
        bases = {**self.bases, node.variable: element} if node.scanned else self.bases
        child = Scope(self.writer, body, self.lines, bases, self.facts)
        counter, rest = body.params[0], body.params[1:]
        child.env[counter] = number
        child.numbers.add(counter)
        places = self._state_places(node)
        child.states = {
            p: member_path(element, p) if carried <= i < scanned else places[p.base, p.name]
            for i, p in enumerate(rest)
            if p.kind == "state"
        }
        arrays: set[str] = set()
        for i, (param, x) in enumerate(zip(rest, operands(node), strict=True)):
            if i in names:
                child.env[param] = Ex(names[i])
            elif carried <= i < scanned:
                whole = self._member(x, self.residence.places)
                assert whole is not None
                arrays.add(whole.removesuffix(".*" + member_path("", param)))
                child.reach(param, member_path(element, param))
            else:
                self._given(child, param, x)
        return child, sorted(arrays)

    def _ending(self, node: For, child: Scope) -> list[int]:
        """A turn ends with its states in buffers; the positions of its other results."""
        scanned = len(node.carried) + len(node.scanned)
        states = [p for p in child.body.params[1 : 1 + scanned] if p.kind == "state"]
        first = len(child.body.results) - node.stacked - len(states)
        return self._returning(child, {first + j: child.states[p] for j, p in enumerate(states)})

    def _last_turn(self, node: For, body: Function, element: str, names: Mapping[int, str]) -> None:
        """The statements of the last turn, after the loop of those before it."""
        number = self.dim(node.stop - 1)
        child, _ = self._turn(node, body, element, number, names)
        values = self._ending(node, child)
        start = len(self.lines.items)
        self.lines.depth -= 1  # a turn's statements stand one step further in
        results = dict(zip(values, self._nested(child), strict=True))
        self._lend(node, child, values)
        self.next_values(names, results, child, start)
        self.lines.depth += 1

    def _stacks(self, node: For, yielded: int) -> dict[int, str]:
        """An empty list for each stacked result that is read, which the turns fill.

        A tensor written row by row would cost its whole size again for each row's gradient.
        """
        names: dict[int, str] = {}
        for i, outcome in sorted(self.outcomes.get(node, {}).items()):
            if i >= yielded:
                names[i] = self.names.fresh(outcome.hint or "stacked")
                self.lines.add(f"{names[i]} = []")
        return names

    def _put(self, stacks: Mapping[int, str], results: Mapping[int, Ex], child: Scope) -> None:
        """A turn's values are kept, before the carried variables move on."""
        self.lines.depth += 1
        for i, name in stacks.items():
            text = results[i].text
            if len(results) == 1:
                text = child.last_value(text)
            self.lines.add(f"{name}.append({text})")
        self.lines.depth -= 1

    def _stacked(self, node: For, stacks: Mapping[int, str]) -> None:
        """The lists are tensors, with a new first axis."""
        turned = proves(self.facts, Relation("<", node.start, node.stop))
        for i, name in stacks.items():
            outcome = self.outcomes[node][i]
            text = call("torch.stack", Ex(name))
            if not turned:
                sizes = bundle([self.dim(d) for d in shape_of(outcome)])
                dtype = torch_dtype(dtype_of(outcome))
                text = call("kernels.stacked", Ex(name), sizes, dtype=dtype, device="DEVICE")
            self.lines.add(f"{name} = {text}")


_COMPUTED = (Unary, Binary, Compare, Select, Cast, Gather, Reduce, Concat, Dot)


def _computed(node: Node) -> Node:
    """The node that a constant's value comes from: repeated axes are views, results one call's."""
    while isinstance(node, (Expand, Result)):
        node = node.x if isinstance(node, Expand) else node.of
    return node


def _worthwhile(root: Node) -> bool:
    """Whether a constant costs more than keeping it: a call, a table, or several steps."""
    if isinstance(root, (Literal, Size, Iota)):
        return False
    nodes = ordered((root,))
    if any(isinstance(n, (Call, If, While, For)) for n in nodes):
        return True
    steps = [n for n in nodes if isinstance(n, _COMPUTED) and shape_of(n)]
    return len(steps) > 1 or any(len(shape_of(n)) > 1 for n in steps)
