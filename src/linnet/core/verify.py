"""A Program is well formed: checked after lowering and after every pass, where checks are on."""

from __future__ import annotations

from typing import NoReturn

from linnet.core.build import node_key
from linnet.core.derive import derive, equal_types
from linnet.core.ir import (
    ArrayType,
    Call,
    Expand,
    For,
    Function,
    Iota,
    Node,
    NodeType,
    Param,
    Program,
    Reshape,
    ResultsType,
    Size,
    Slice,
    functions_of,
)
from linnet.core.print import names_of, node_text
from linnet.core.rewrite import nodes_of, reachable
from linnet.core.rules import Broken, Obligation
from linnet.diagnostics import InternalError
from linnet.dims import Dim, Facts, proves
from linnet.types import I32, DType, EnumType, NoneType, StructType, TensorType, TupleType, Type


def verify(program: Program, stage: str = "verify") -> None:
    """Returns when the program is well formed; else an InternalError names function and node."""
    known = set(program.functions.values()) | set(program.entries.values())
    position = {function: i for i, function in enumerate(program.functions.values())}
    for function in reachable(program):
        if function not in known:
            raise InternalError(stage, f"{function.name} is called but is not in the program")
        if function.kind == "body":
            raise InternalError(stage, f"{function.name} is a body and stands in the program")
        for callee in _called(function):
            if position.get(callee, -1) >= position.get(function, len(position)):
                raise InternalError(stage, f"{callee.name} stands after its caller {function.name}")
        verify_function(function, stage)
    if program.main and program.main not in program.entries:
        raise InternalError(stage, f"the main entry {program.main} does not exist")


def verify_function(function: Function, stage: str = "verify") -> None:
    """Returns when the function and the bodies in it are well formed."""
    _Verifier(function, Facts.of(function.facts), stage).run()


def _called(function: Function) -> list[Function]:
    return [n.function for n in nodes_of(function) if isinstance(n, Call)]


class _Verifier:
    def __init__(self, function: Function, facts: Facts, stage: str, where: str = "") -> None:
        self.function = function
        self.facts = facts
        self.stage = stage
        self.where = where or function.name
        self.names = frozenset(function.dims)

    def run(self) -> None:
        self.check_params()
        seen: dict[object, Node] = {}
        given = set(self.function.params)
        for node in nodes_of(self.function):
            if isinstance(node, Param) and node not in given:
                self.fail(node, f"the parameter {node.name} is not one of this function")
            key = node_key(node)
            if key in seen:
                self.fail(node, "an equal node stands beside it")
            seen[key] = node
            self.check_type(node)
            self.check_dims(node)
            if isinstance(node, Call):
                self.check_call(node)
                continue
            for inner in functions_of(node):
                self.check_body(node, inner)
        self.check_results()

    def check_params(self) -> None:
        names = [(p.base, p.name) for p in self.function.params]
        if len(set(names)) != len(names):
            self.fail(None, "two parameters have one name")
        if len(set(self.function.dims)) != len(self.function.dims):
            self.fail(None, "two dims have one name")
        for fact in self.function.facts:
            if not fact.names() <= self.names:
                self.fail(None, f"the fact {fact} names dims that are not declared")

    def check_type(self, node: Node) -> None:
        """The type is the one its rule gives, and what the rule asks for is known."""
        try:
            derived = derive(node)
        except InternalError as error:
            self.fail(node, str(error))
        if isinstance(derived, Broken):
            self.fail(node, f"{derived.why} ({derived.code})")
        type, obligations = derived
        self.equal(node, node.type, type, "its type")
        self.prove(node, obligations)

    def check_dims(self, node: Node) -> None:
        for dim in dims_of(node):
            if not dim.names() <= self.names:
                self.fail(node, f"the dimension {dim} names what is not declared")
        if _unbound(node.type):
            self.fail(node, f"{node.type} has a pack or a dtype generic")

    def check_call(self, node: Call) -> None:
        bound = dict(zip(node.function.dims, node.dims, strict=True))
        for fact in node.function.facts:
            goal = fact.substitute(bound)
            if not proves(self.facts, goal):
                self.fail(node, f"{node.function.name} requires {fact}: {goal} is not known")

    def check_body(self, node: Node, body: Function) -> None:
        if body.kind != "body":
            self.fail(node, f"{body.name} is a {body.kind}, not a body")
        if not frozenset(body.dims) <= self.names:
            self.fail(node, f"the body {body.name} has dims of its own")
        if body.writes:
            self.fail(node, f"the body {body.name} writes state by name")
        where = f"{self.where}, in {type(node).__name__} body {body.name}"
        facts = self.facts.extend(body.facts)
        _Verifier(body, facts, self.stage, where).run()

    def check_results(self) -> None:
        function = self.function
        if len(function.results) < len(function.writes):
            self.fail(None, f"{len(function.results)} results for {len(function.writes)} writes")
        states = {p.name: p for p in function.params if p.kind == "state" and p.base == "self"}
        written = function.results[len(function.value_results) :]
        for name, node in zip(function.writes, written, strict=True):
            if name not in states:
                self.fail(node, f"the state {name} is written and is not a parameter")
            self.equal(node, node.type, states[name].of, f"the state {name}")
        for node in function.results:
            if isinstance(node.type, ResultsType):
                self.fail(node, "several results are returned as one")
        leaves = _leaves(function.returns)
        if leaves is None:
            return
        if len(leaves) != len(function.value_results):
            self.fail(None, f"{len(function.value_results)} results, {len(leaves)} declared")
        for node, leaf in zip(function.value_results, leaves, strict=True):
            self.equal(node, node.type, leaf, "the declared result")

    def equal(self, node: Node, found: NodeType, expected: NodeType, what: str) -> None:
        same = equal_types(found, expected)
        if isinstance(same, Broken):
            self.fail(node, f"{what}: {found} is not {expected}: {same.why}")
        for obligation in same:
            if not proves(self.facts, obligation.goal):
                self.fail(node, f"{what}: {found} is not {expected}: {obligation.goal} not known")

    def prove(self, node: Node, obligations: tuple[Obligation, ...]) -> None:
        for obligation in obligations:
            # A dimension may turn out negative for some sizes: binding them refuses it.
            if obligation.code == "E2208" and obligation.goal.left.constant is None:
                continue
            if not proves(self.facts, obligation.goal):
                self.fail(node, f"{obligation.goal} is not known ({obligation.code})")

    def fail(self, node: Node | None, why: str) -> NoReturn:
        at = ""
        if node is not None:
            names = names_of(self.function)
            at = f": {names[node]} = {node_text(node, names)} : {node.type}"
        raise InternalError(self.stage, f"in {self.where}{at}: {why}")


def dims_of(node: Node) -> tuple[Dim, ...]:
    """Every dimension that the node's type or its fields name."""
    return (*_type_dims(node.type), *_own_dims(node))


def _own_dims(node: Node) -> tuple[Dim, ...]:
    match node:
        case Size(dim):
            return (dim,)
        case Iota(extent):
            return (extent,)
        case Reshape(_, shape) | Expand(_, shape):
            return shape
        case Slice(_, ranges):
            return tuple(d for start, stop, _ in ranges for d in (start, stop))
        case Call(_, _, dims):
            return dims
        case For(_, _, start, stop):
            return (start, stop)
        case _:
            return ()


def _type_dims(type: NodeType) -> tuple[Dim, ...]:
    match type:
        case TensorType(shape):
            return tuple(axis for axis in shape if isinstance(axis, Dim))
        case ArrayType(element):
            return _type_dims(element)
        case ResultsType(items):
            return tuple(dim for item in items for dim in _type_dims(item))


def _unbound(type: NodeType) -> bool:
    match type:
        case TensorType(shape, dtype):
            return not isinstance(dtype, DType) or not all(isinstance(a, Dim) for a in shape)
        case ArrayType(element):
            return _unbound(element)
        case ResultsType(items):
            return any(map(_unbound, items))


def _leaves(returns: Type | None) -> list[TensorType] | None:
    """The tensors of a declared result, where its form alone tells them."""
    match returns:
        case TensorType():
            return [returns]
        case TupleType(items):
            parts = [_leaves(item) for item in items]
            return None if None in parts else [t for p in parts if p is not None for t in p]
        case StructType(fields=fields):
            return _leaves(TupleType(tuple(type for _, type in fields)))
        case NoneType():
            return []
        case EnumType():
            return [TensorType((), I32)]
        case _:  # a body's
            return None
