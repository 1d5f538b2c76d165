"""Walks in a stable order without recursion; substitution of nodes and sizes, bodies included."""

from __future__ import annotations

import sys

import pytest

from core.graphs import dims, function, program, tensor
from linnet.core.build import Builder
from linnet.core.ir import Function, Node
from linnet.core.print import function_text, program_text
from linnet.core.rewrite import (
    bodies,
    callees,
    map_functions,
    nodes_of,
    reachable,
    rewrite,
    substitute,
    topological,
)
from linnet.core.verify import verify, verify_function
from linnet.dims import Dim
from linnet.types import BOOL, F32, I64


def test_operands_come_before_users_each_once() -> None:
    b = Builder()
    x = b.param("x", tensor(F32, 2))
    y, z = b.unary("exp", x), b.unary("neg", x)
    top = b.binary("add", b.binary("mul", y, z), y)
    order = topological([top, z])
    assert order == [x, y, z, b.binary("mul", y, z), top]
    assert nodes_of(function([top, z], [x])) == tuple(order)


def test_a_graph_deeper_than_the_stack() -> None:
    b = Builder()
    node: Node = b.param("x", tensor(F32))
    f = function([node], [node])
    for _ in range(sys.getrecursionlimit() * 5):
        node = b.unary("exp", node)
    deep = function([node], f.params)
    verify_function(deep)
    assert rewrite(deep, lambda n, b: None) is deep
    assert len(function_text(deep).splitlines()) > sys.getrecursionlimit() * 5


def looping() -> tuple[Function, Function]:
    """A helper, and a caller that loops over it and branches inside the loop."""
    h = Builder()
    v = h.param("v", tensor(F32, "N"))
    helper = function([h.unary("exp", v)], [v], name="helper", kind="fn", names=("N",))
    t = Builder()
    v = t.param("v", tensor(F32, "B"))
    called = function(
        [t.result(t.call(helper, [v], dims("B")), 0)], [v], kind="body", names=("B",), name="yes"
    )
    e = Builder()
    v = e.param("v", tensor(F32, "B"))
    filled = function(
        [e.fill(e.size(Dim.of("B"), F32), dims("B"))], [v], kind="body", names=("B",), name="no"
    )
    w = Builder()
    i, x, go = (
        w.param("i", tensor(I64)),
        w.param("x", tensor(F32, "B")),
        w.param("go", tensor(BOOL)),
    )
    step = function(
        [w.result(w.if_(go, called, filled, [x]), 0)],
        [i, x, go],
        kind="body",
        names=("B",),
        name="step",
    )
    b = Builder()
    x, go = b.param("x", tensor(F32, "B")), b.param("go", tensor(BOOL))
    loop = b.for_(step, "i", Dim.of(0), Dim.of("B"), [x], [], [go])
    return helper, function([b.result(loop, 0)], [x, go], names=("B",))


def test_calls_are_found_in_bodies_of_bodies() -> None:
    helper, f = looping()
    assert [inner.name for inner in bodies(f)] == ["f", "step", "yes", "no"]
    assert callees(f) == [helper]
    p = program(helper, f)
    verify(p)
    assert reachable(p) == [helper, f]


def test_sizes_are_replaced_in_bodies_too() -> None:
    _, f = looping()
    b = Builder()
    y, go = b.param("y", tensor(F32, Dim.of("M") * 2)), b.param("go", tensor(BOOL))
    given: dict[Node, Node] = dict(zip(f.params, (y, go), strict=True))
    results = substitute(f.results, given, {"B": Dim.of("M") * 2}, b)
    g = function(results, [y, go], names=("M",), name="g")
    verify_function(g)
    text = function_text(g)
    assert "B" not in text.replace("Builder", "")
    assert "for i in 0 .. 2 * M" in text and "expand (2 * M):f32 []" in text


def test_a_changed_helper_is_the_one_that_loops_call() -> None:
    helper, f = looping()
    p = program(helper, f)

    def negate(node: Node, b: Builder) -> Node | None:
        from linnet.core.ir import Unary

        match node:
            case Unary("exp", x):
                return b.unary("neg", x)
            case _:
                return None

    after = map_functions(p, lambda g, renewed: rewrite(g, negate, renewed))
    verify(after)
    assert list(after.functions) == ["helper", "f"]
    assert "exp v" not in program_text(after) and "neg v" in program_text(after)
    same = map_functions(p, lambda g, renewed: rewrite(g, lambda n, b: None, renewed))
    assert same.functions["f"] is f and same.functions["helper"] is helper


@pytest.mark.parametrize("name", ["exact", "equivalent", "fast"])
def test_policies_by_name(name: str) -> None:
    from linnet.policy import POLICIES, allows, policy_named, tolerance

    policy = policy_named(name)
    assert [allows(p, policy) for p in POLICIES] == [
        POLICIES.index(p) >= POLICIES.index(policy) for p in POLICIES
    ]
    wanted = {"f32": 2e-4, "bf16": 3e-2, "f16": 5e-3} if name == "fast" else {}
    wanted = wanted or {"f32": 2e-5, "bf16": 1e-2, "f16": 2e-3}
    assert {d: tolerance(policy, d) for d in wanted} == wanted
    assert tolerance(policy, "i32") == tolerance(policy, "bool") == 0.0


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    from linnet.diagnostics import PlanError
    from linnet.policy import policy_named

    with pytest.raises(PlanError, match=r"'quick'.*choose exact, equivalent, fast"):
        policy_named("quick")
