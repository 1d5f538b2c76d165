"""Which weights of a program are kept in blocks of few bits, and what fills them.

A weight can be kept so where all that is done with it is to multiply inputs by it (`std.nn.linear`,
or the output head inside a loss) or to read rows of it (`std.nn.embedding`). The program is walked
from its entries, through every call, to find out.
"""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from linnet.backends import Kernel
from linnet.core.ir import (
    Call,
    Element,
    For,
    Function,
    If,
    ManifestEntry,
    Node,
    Program,
    Result,
    While,
    functions_of,
    operands,
)
from linnet.diagnostics import PlanError
from linnet.emit import ordered
from linnet.policy import Policy
from linnet.torch.blocks import FORMATS, Blocks
from linnet.torch.body import RESERVED
from linnet.weights import Bound, Slot
from linnet.weights.quantise import BLOCK, quantise

# What floats become, by the name of the storage.
STORAGES = {"q4": "Q4_0", "q8": "Q8_0"}
_FOUR_BITS = frozenset({"Q4_0", "Q4_1"})
_FLOATS = ("f32", "bf16", "f16")

# The operand of an op that may be in blocks, and the function that reads it so; without one the
# op is given floats for as long as it runs.
_TAKES = {
    "std.nn.linear::linear": ("weight", "blocks.linear"),
    "std.nn.embedding::embedding": ("table", "blocks.embedding"),
    "std.nn.loss::linear_token_log_probs": ("weight", ""),
    "std.nn.loss::linear_cross_entropy": ("weight", ""),
    "std.nn.loss::split_token_log_probs": ("weight", ""),
    "std.nn.loss::split_cross_entropy": ("weight", ""),
}

_FIXED = (
    "weights in blocks of few bits are fixed: load the model without storage to train, adapt, "
    "fill or save it"
)

KernelOf = Callable[[Call], Kernel | None]


@dataclass(frozen=True, slots=True)
class Met:
    """How a call reads a weight that may be in blocks: which operand, and with what function.

    Without a function the kernel of the call runs, and the operand is widened for it.
    """

    operand: int
    run: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What a program keeps in blocks: concrete paths of members, and the calls that meet them.

    `entries` are the members as the manifest has them, `*` for positions. Floats become
    blocks of `format`; a file's own blocks of a format in `own` are kept.
    """

    format: str = ""
    own: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()
    calls: Mapping[Node, Met] = field(default_factory=dict[Node, Met])

    def floats(self, program: Program) -> frozenset[str]:
        """The matrices of a program that are not in blocks."""
        entries = program.manifest.entries
        return frozenset(
            e.path for e in entries if len(e.type.shape) > 1 and e.path not in self.entries
        )


NOTHING = Stored()


class StorageWarning(UserWarning):
    """A weight stays in floats though blocks were asked for."""


def check_storage(storage: str | None, numerics: str, *, trains: bool = False) -> None:
    """The storage is one that there is, for what is asked of the module."""
    if storage is None:
        return
    if not isinstance(storage, str) or storage not in STORAGES:
        listed = ", ".join(repr(name) for name in STORAGES)
        raise PlanError(f"storage={storage!r}: choose {listed}, or None for the program's dtypes")
    if numerics == "exact":
        raise PlanError(
            f"storage={storage!r} with numerics='exact': products over blocks are native kernels, "
            "which 'exact' does not allow; choose 'equivalent' or 'fast'"
        )
    if trains:
        raise PlanError(f"trainable with storage={storage!r}: {_FIXED}")


def refuse_blocks(stored: Stored, asked: str) -> None:
    """No weight is in blocks, which take no gradients, adapters or other values."""
    if stored.members:
        raise PlanError(f"{asked}: {_FIXED}")


def plan_storage(
    program: Program,
    storage: str | None,
    bound: Sequence[Bound],
    policy: Policy,
    kernel: KernelOf,
) -> Stored:
    """The members to keep in blocks, and the calls that meet them; a warning names what stays.

    `kernel` says which native kernel a call gets. A PlanError where no weight can be kept so.
    """
    if storage is None:
        return NOTHING
    entries = [entry for entry in program.manifest.entries if entry.kind != "state"]
    packed = next((entry.path for entry in entries if str(entry.type.dtype) == "u8"), None)
    if packed is not None:
        raise PlanError(
            f"storage={storage!r}: {program.name} keeps weights in few bits itself ({packed} is "
            "u8): load it without storage"
        )
    flow = _Flow(program, policy, kernel)
    reasons = {entry.path: _unfit(entry, flow) for entry in entries if entry.path in flow.met}
    members = {p for e in entries if reasons.get(e.path) == "" for p in e.expanded()}
    unused = {p for e in entries if e.path not in flow.reached for p in e.expanded()}
    members = _as_tied(members, unused, bound)
    kept = [f"{path}: {reason}" for path, reason in reasons.items() if reason]
    if not members:
        listed = "".join(f"\n  {line}" for line in kept[:8])
        raise PlanError(
            f"storage={storage!r}: no weight of {program.name} can be kept in blocks{listed}"
        )
    if kept:
        listed = "".join(f"\n  {line}" for line in kept)
        text = f"storage={storage!r}: these weights stay in floats{listed}"
        warnings.warn(text, StorageWarning, stacklevel=3)
    stored = frozenset(e.path for e in entries if members & set(e.expanded()))
    own = _own(storage, bound)
    return Stored(STORAGES[storage], own, frozenset(members), stored, flow.taken)


def _unfit(entry: ManifestEntry, flow: _Flow) -> str:
    """Why a weight that a linear map or an embedding reads cannot be in blocks; empty: it can."""
    shape, dtype = entry.type.shape, str(entry.type.dtype)
    columns = int(str(shape[-1])) if shape else 1
    if entry.path in flow.elsewhere:
        return f"{flow.elsewhere[entry.path]} reads it too"
    if dtype not in _FLOATS or entry.kind != "param" or len(shape) != 2:
        return f"is a {entry.kind} {entry.type}"
    if not columns or columns % BLOCK:
        return f"has rows of {columns}, which are not whole blocks of {BLOCK}"
    name = entry.path.rpartition(".")[2]
    if name in RESERVED or keyword.iskeyword(name):
        return f"has the name {name}, which PyTorch or Python keeps for itself"
    return ""


def _as_tied(members: set[str], unused: set[str], bound: Sequence[Bound]) -> set[str]:
    """Paths that share one tensor are in blocks together, or none of them is."""
    shared: dict[int, set[str]] = {}
    for one in bound:
        shared.setdefault(id(one.location), set()).add(one.slot.path)
    for paths in shared.values():
        if paths & members:
            members = members | paths if paths <= members | unused else members - paths
    return members


def _own(storage: str, bound: Sequence[Bound]) -> frozenset[str]:
    """The formats of a file's own blocks that are kept.

    Wider blocks than those asked for are what its maker chose, where most are as asked for.
    """
    four = any(one.location.encoding.startswith(("Q4_", "IQ4_")) for one in bound)
    return frozenset(FORMATS) if storage == "q8" or four else _FOUR_BITS


# ---------------------------------------------------------------- who reads what


class _Flow:
    """Where the weights of a program's entries go: by what calls they are read.

    `met` are the manifest paths that a linear map or an embedding reads, `elsewhere` says what
    else reads a path, `reached` are all that any entry takes.
    """

    def __init__(self, program: Program, policy: Policy, kernel: KernelOf) -> None:
        self.kernel = kernel
        self.linear = "blocks.linear" if policy == "fast" else "blocks.linear_f32"
        self.met: set[str] = set()
        self.taken: dict[Node, Met] = {}
        self.elsewhere: dict[str, str] = {}
        self.reached: set[str] = set()
        self._carried: dict[Node, frozenset[str]] = {}
        self._changed = True
        for entry in program.entries.values():
            for param in entry.params:
                if param.kind in ("param", "buffer"):
                    self.reached.add(param.name)
                    self._carry(param, frozenset((param.name,)))
        functions = list(self._functions(program))
        orders = [(function, ordered(function.results)) for function in functions]
        # What a callee gives back is known a round later.
        while self._changed:
            self._changed = False
            for function, order in orders:
                for node in order:
                    self._visit(node)
                if function.kind in ("entry", "body"):
                    self._read(function.results, "a result")

    def _functions(self, program: Program) -> Iterator[Function]:
        """Every function that runs, callers first: none that a native kernel stands for."""
        waiting = list(program.entries.values())
        found = set(waiting)
        while waiting:
            function = waiting.pop(0)
            yield function
            for node in ordered(function.results):
                native = isinstance(node, Call) and self.kernel(node) is not None
                for inner in () if native else functions_of(node):
                    if inner not in found:
                        found.add(inner)
                        waiting.append(inner)

    def _carry(self, node: Node, paths: frozenset[str]) -> None:
        known = self._carried.get(node, frozenset())
        if not paths <= known:
            self._carried[node] = known | paths
            self._changed = True

    def _paths(self, node: Node) -> frozenset[str]:
        return self._carried.get(node, frozenset())

    def _read(self, nodes: Iterable[Node], reader: str) -> None:
        """Something other than a linear map or an embedding reads the weights."""
        for node in nodes:
            for path in self._paths(node):
                self.elsewhere.setdefault(path, reader)

    def _visit(self, node: Node) -> None:
        match node:
            case Call(function, inputs):
                native = self.kernel(node)
                if native is None:
                    self._pass(function, inputs)
                else:
                    self._native(node)
            case Result(Call(function) as made, index) if self.kernel(made) is None:
                self._carry(node, self._paths(function.results[index]))
            case Result():
                pass
            case Element(x):
                self._carry(node, self._paths(x))
            case If(c, then, other, inputs):
                self._read((c,), "a condition")
                self._pass(then, inputs)
                self._pass(other, inputs)
            case While(test, body, inputs, count):
                self._read(inputs[:count], "a loop")
                self._pass(test, inputs)
                self._pass(body, inputs)
            case For(_, _, _, _, carried):
                self._read(carried, "a loop")
                for body in functions_of(node):
                    self._pass(body, operands(node), 1)
            case _:
                self._read(operands(node), "another operation")

    def _pass(self, function: Function, inputs: Sequence[Node], first: int = 0) -> None:
        for param, x in zip(function.params[first:], inputs, strict=True):
            self._carry(param, self._paths(x))

    def _native(self, call: Call) -> None:
        """A native kernel reads its operands: one of them it may take in blocks."""
        name = str(call.function.op)
        taken, run = _TAKES.get(name, ("", ""))
        for i, (param, x) in enumerate(zip(call.function.params, call.inputs, strict=True)):
            if param.name != taken:
                self._read((x,), name)
            elif self._paths(x):
                self.met |= self._paths(x)
                self.taken[call] = Met(i, self.linear if run == "blocks.linear" else run)


# ---------------------------------------------------------------- from floats and files


def empty(slot: Slot, stored: Stored, dtype: torch.dtype) -> Blocks:
    """The place of a weight that is not filled yet."""
    rows, columns = slot.shape
    numbers, width = FORMATS[stored.format]
    data = torch.empty(rows, columns // numbers * width, dtype=torch.uint8, device="meta")
    return Blocks(stored.format, (rows, columns), dtype, data)


def packed(matrix: torch.Tensor, stored: Stored, dtype: torch.dtype) -> Blocks:
    """The matrix, of f32, in blocks."""
    data = torch.from_numpy(quantise(matrix.numpy(), stored.format))
    return Blocks(stored.format, (matrix.shape[0], matrix.shape[1]), dtype, data)


def read_blocks(
    bound: Iterable[Bound], stored: Stored, dtypes: Mapping[str, torch.dtype]
) -> Iterator[tuple[tuple[Slot, ...], Blocks]]:
    """Each tensor once, with all the slots that share it: a file's own blocks as they lie there,
    others made of its numbers."""
    shared: dict[tuple[int, str], list[Bound]] = {}
    for one in bound:
        shared.setdefault((id(one.location), one.slot.dtype), []).append(one)
    for group in shared.values():
        slot, location = group[0].slot, group[0].location
        format, data = location.encoding, None
        if format in stored.own and location.shape == slot.shape:
            data = location.blocks()
        if data is None:
            format = stored.format
            data = quantise(location.read().reshape(slot.shape), format)
        with warnings.catch_warnings():
            # An array of the user's may be read-only; nothing here writes into it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(data)
        rows, columns = slot.shape
        blocks = Blocks(format, (rows, columns), dtypes[slot.dtype], tensor)
        yield tuple(one.slot for one in group), blocks
        location.release()
