"""Products of one input that run as one, over weights that lie side by side in memory.

`q_proj(x)`, `k_proj(x)` and `v_proj(x)` read x once where the rows of the three weights follow each
other. Which calls go together is found here; `torch.layout` puts the weights where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from linnet.backends import Kernel
from linnet.core.build import Builder
from linnet.core.derive import shape_of
from linnet.core.ir import (
    Call,
    Element,
    For,
    Function,
    Node,
    Param,
    Program,
    Result,
    functions_of,
    operands,
)
from linnet.core.rewrite import map_functions, rewrite, substitute
from linnet.emit import ordered

# The params of an op whose first axes follow each other where calls become one; the results then
# follow each other along the last axis.
_ROWS = {"std.nn.linear::linear": ("weight", "bias")}
# Ops that are products of one input themselves: their weights are these operands.
_OPENED = {"std.nn.mlp::swiglu": (1, 2)}
# More members than this share a name that has the first and the last alone.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Beside:
    """Members of one block that follow each other in one tensor, along the first axis.

    `paths` are the manifest's, `*` for positions; `name` is the tensor's attribute of the block.
    """

    block: str
    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Calls that run as one, in the order in which their members lie.

    `sides` has, for operands that are members, what stands for those of all calls. `sizes` are the
    widths of the calls' results.
    """

    calls: tuple[Call, ...]
    sides: Mapping[int, Param]
    sizes: tuple[int, ...]

    @property
    def members(self) -> list[Param]:
        return [x for at in self.sides for x in self.members_at(at)]

    def members_at(self, at: int) -> list[Param]:
        """The calls' members at this operand."""
        return [_param(call.inputs[at]) for call in self.calls]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The groups of a program by their calls, and what lies side by side for them."""

    groups: Mapping[Call, Group] = field(default_factory=dict[Call, Group])
    besides: tuple[Beside, ...] = ()


def opened(program: Program) -> Program:
    """The program with the bodies of ops that hold siblings in place of their calls."""
    if not any(str(f.op) in _OPENED for f in program.functions.values()):
        return program

    def body_of(node: Node, builder: Builder) -> Node | None:
        match node:
            case Result(Call(op, inputs, sizes), index) if str(op.op) in _OPENED:
                weights = [inputs[at] for at in _OPENED[str(op.op)]]
                if not all(isinstance(w, Param) and w.kind == "param" for w in weights):
                    return None
                params: dict[Node, Node] = dict(zip(op.params, inputs, strict=True))
                dims = dict(zip(op.dims, sizes, strict=True))
                return substitute((op.results[index],), params, dims, builder)[0]
            case _:
                return None

    return map_functions(program, lambda function, renewed: rewrite(function, body_of, renewed))


def find_siblings(
    program: Program,
    kernel: Callable[[Call], Kernel | None],
    apart: Collection[str] = (),
    reserved: Collection[str] = (),
) -> Siblings:
    """Every group of a program whose members can lie side by side wherever its function runs.

    A member is in one tensor only: the larger group gets it, then the first. Groups with a member
    whose path in the manifest is in `apart` are left out. No tensor has a name that is reserved or
    a member's.
    """
    words = {word for entry in program.manifest.entries for word in entry.path.split(".")}
    words.update(reserved)
    besides: dict[tuple[str, ...], Beside] = {}
    taken: dict[str, Beside] = {}
    groups: dict[Call, Group] = {}
    done: set[Call] = set()
    found = _Search(program, kernel).run()
    for calls in sorted(found, key=len, reverse=True):
        wanted: dict[tuple[str, ...], Beside] = {}
        for paths in found[calls]:
            wanted |= {same: b for same in paths if (b := _beside(same, words)) is not None}
        fits = all(same in wanted for paths in found[calls] for same in paths)
        places = {(b.block, b.name): b for b in besides.values()}
        fits = fits and all(
            taken.get(path, b) == b and places.get((b.block, b.name), b) == b
            for b in wanted.values()
            for path in b.paths
        )
        if fits and done.isdisjoint(calls):
            done.update(calls)
            besides |= wanted
            taken |= {path: b for b in wanted.values() for path in b.paths}
            # What is left out leaves its members to nobody: what lies where does not depend on it.
            if not any(path in apart for b in wanted.values() for path in b.paths):
                groups |= dict.fromkeys(calls, _group(calls, words))
    return Siblings(groups, tuple(besides.values()))


def _beside(paths: tuple[str, ...], words: Collection[str]) -> Beside | None:
    """The members as one, if they are different ones of the same block instance."""
    block, names = _split(paths)
    if len(set(paths)) < len(paths) or any("*" in name for name in names):
        return None
    return Beside(block, _joined(names, words), paths)


def _split(paths: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The block that the paths have in common, and what is left of each."""
    parts = [path.split(".") for path in paths]
    common = 0
    while all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    return ".".join(parts[0][:common]), tuple(".".join(p[common:]) for p in parts)


def _joined(names: tuple[str, ...], words: Collection[str]) -> str:
    """`q_proj.weight`, `k_proj.weight` as `q_k_proj_weight`, which is no member's name."""
    parts = [name.replace(".", "_").split("_") for name in names]
    tail: list[str] = []
    while all(len(p) > 1 and p[-1] == parts[0][-1] for p in parts):
        tail.insert(0, parts[0][-1])
        parts = [p[:-1] for p in parts]
    heads = ["_".join(p) for p in parts]
    if len(heads) > _NAMED:
        heads = [heads[0], "to", heads[-1]]
    name = "_".join([*heads, *tail])
    while name in words:
        name += "_"
    return name


def _group(calls: tuple[Call, ...], words: Collection[str]) -> Group:
    sides: dict[int, Param] = {}
    for at in _members(calls[0]):
        params = [_param(call.inputs[at]) for call in calls]
        block, names = _split(tuple(p.name for p in params))
        name = _joined(names, words)
        sides[at] = replace(
            params[0], name=f"{block}.{name}" if block else name, kind="value", hint=""
        )
    sizes = tuple(_constant(call.inputs[min(sides)]) for call in calls)
    return Group(calls, sides, sizes)


def _param(node: Node) -> Param:
    assert isinstance(node, Param)
    return node


def _constant(node: Node) -> int:
    size = shape_of(node)[0].constant
    assert size is not None
    return size


def _members(call: Call) -> list[int]:
    """The positions of the operands whose rows may follow those of another call."""
    names = _ROWS.get(str(call.function.op), ())
    return [i for i, p in enumerate(call.function.params) if p.name in names]


class _Search:
    """Calls of one input in every function, with the manifest's paths of their members."""

    def __init__(self, program: Program, kernel: Callable[[Call], Kernel | None]) -> None:
        self.program = program
        self.kernel = kernel
        self.order = {entry.path: i for i, entry in enumerate(program.manifest.entries)}
        self._known: dict[Function, tuple[list[Node], list[list[Call]]]] = {}
        # For each group, the paths by operand: one tuple for each place that its function is at.
        self.found: dict[tuple[Call, ...], dict[tuple[tuple[str, ...], ...], None]] = {}

    def run(self) -> dict[tuple[Call, ...], dict[tuple[tuple[str, ...], ...], None]]:
        """Every function is seen once for each path that its members have."""
        waiting: list[tuple[Function, tuple[str | None, ...]]] = []
        for function in self.program.entries.values():
            waiting.append((function, tuple(p.name for p in function.params)))
        done = set(waiting)
        while waiting:
            function, given = waiting.pop(0)
            met = zip(function.params, given, strict=True)
            places: dict[Node, str] = {
                p: path for p, path in met if path is not None and p.kind == "param"
            }
            inner, together = self._look(function)
            for calls in together:
                self._note(calls, places)
            for node in inner:
                for run in _runs(node, places):
                    if run not in done:
                        done.add(run)
                        waiting.append(run)
        return self.found

    def _look(self, function: Function) -> tuple[list[Node], list[list[Call]]]:
        """The nodes of a body that run functions, and its calls of one input by that."""
        if function not in self._known:
            inner: list[Node] = []
            by_input: dict[object, list[Call]] = {}
            for node in ordered(function.results):
                kernel = self.kernel(node) if isinstance(node, Call) else None
                if kernel is None and functions_of(node):
                    inner.append(node)
                elif isinstance(node, Call) and kernel is not None:
                    key = _kind(node, kernel)
                    if key is not None:
                        by_input.setdefault(key, []).append(node)
            together = [calls for calls in by_input.values() if len(calls) > 1]
            self._known[function] = inner, together
        return self._known[function]

    def _note(self, calls: list[Call], places: Mapping[Node, str]) -> None:
        at = _members(calls[0])
        if not all(call.inputs[i] in places for call in calls for i in at):
            return
        calls = sorted(calls, key=lambda call: self.order[places[call.inputs[at[0]]]])
        paths = tuple(tuple(places[call.inputs[i]] for call in calls) for i in at)
        names = [tuple(_param(call.inputs[i]).name for call in calls) for i in at]
        own = all(
            _split(path)[1] == _split(name)[1] and path[0].endswith(name[0])
            for path, name in zip(paths, names, strict=True)
        )
        if own:
            self.found.setdefault(tuple(calls), {})[paths] = None


def _kind(call: Call, kernel: Kernel) -> object:
    """What calls that go together have in common; None where the call goes alone."""
    at = _members(call)
    members = [call.inputs[i] for i in at]
    if not at or not all(isinstance(m, Param) and m.kind == "param" for m in members):
        return None
    if any(d.constant is None for m in members for d in shape_of(m)):
        return None
    others = tuple(x for i, x in enumerate(call.inputs) if i not in at)
    return others, tuple(at), kernel.run, _param(members[0]).base


def _runs(
    node: Node, places: Mapping[Node, str]
) -> Iterator[tuple[Function, tuple[str | None, ...]]]:
    """The functions that a node runs, with the paths of what their params meet."""
    given = [_path(x, places) for x in operands(node)]
    match node:
        case For():
            for body in functions_of(node):
                yield body, (None, *given)
        case _:
            for function in functions_of(node):
                # A condition comes before what its branches take.
                yield function, tuple(given[len(given) - len(function.params) :])


def _path(node: Node, places: Mapping[Node, str]) -> str | None:
    while isinstance(node, Element):
        node = node.x
    return places.get(node)
