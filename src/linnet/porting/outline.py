"""Which part of a computation belongs to which block: loops over arrays, and methods of blocks.

A stack of alike blocks becomes one body that `static for` walks, where each block's part is the
same operations on its own parameters. What only reads the parameters of one block, and lies
together, becomes that block's method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from linnet.porting.graph import Body, Graph, Node, called, constant, exact_key, topological
from linnet.porting.members import ANY, METHOD, Branch, Path

_TRIES = 6  # places where a layer may end that are tried
_MOVES = frozenset({"reshape", "expand", "permute", "cast"})
_TRIVIAL = frozenset({"reshape", "expand", "permute", "cast", "item"})


def outlined(graph: Graph, tree: Branch, results: Sequence[Node], owner: Path = ()) -> list[Node]:
    """The results, with walks over arrays and calls of methods of the blocks below `owner`."""
    block = tree.at(owner)
    out = list(results)
    for array, elements in list(block.arrays.items()):
        walked = _walked(graph, out, owner, array, elements)
        if walked is None:
            block.alike[array] = block.arrays.pop(array)
        else:
            out = walked
    stacked = {name for elements in block.arrays.values() for name in elements}
    for name, child in block.children.items():
        if isinstance(child, Branch) and name not in stacked:
            out = _with_method(graph, out, (*owner, name))
    return _deeper(graph, tree, out)


def _deeper(graph: Graph, tree: Branch, results: Sequence[Node]) -> list[Node]:
    """The bodies of the methods and walks that were made, outlined in turn."""
    new: dict[Node, Node] = {}
    for node in topological(results):
        inputs = [new[each] for each in node.inputs]
        made = graph.rebuilt(node, inputs)
        if node.op in ("method", "walk"):
            path, method, body, *rest = node.data
            own = (*path, ANY) if node.op == "walk" else path
            inner = Body(tuple(outlined(graph, tree, body.results, own)))
            made = graph.node(
                node.op,
                inputs,
                [path, method, inner, *rest],
                shape=node.shape,
                dtype=node.dtype,
                name=node.name,
            )
        new[node] = made
    return [new[node] for node in results]


# ---------------------------------------------------------------- walks


def _walked(
    graph: Graph, results: Sequence[Node], owner: Path, array: str, elements: Sequence[str]
) -> list[Node] | None:
    """The results with one loop over the elements, where each does the same; else None."""
    order = topological(results)
    where = {name: at for at, name in enumerate(elements)}
    depth = len(owner)
    latest: dict[Node, int] = {}
    for node in order:
        own = -1
        if node.op == "param" and len(node.data[0]) > depth and node.data[0][:depth] == owner:
            own = where.get(node.data[0][depth], -1)
        latest[node] = max([own, *(latest[each] for each in node.inputs)])
    users = _users(order, results)
    starts = _ends(order, users, latest, 0, results)
    stops = _ends(order, users, latest, 1, results)
    for first in starts:
        for second in stops:
            if (first.shape, first.dtype) != (second.shape, second.dtype):
                continue
            found = _chain(graph, order, latest, first, second, owner, elements)
            if found is None:
                continue
            initial, constants, last = found
            given = [initial, *constants]
            args = {
                node: graph.arg(at, node, called(node) if at else "x")
                for at, node in enumerate([first, *constants])
            }
            known = dict(args)
            for node in order:
                if _of(node, owner, elements[1]):
                    path = (*owner, array, ANY, *node.data[0][depth + 1 :])
                    known[node] = graph.node(
                        "param", (), [path], shape=node.shape, dtype=node.dtype, name=node.name
                    )
            body = Body(tuple(graph.substitute([second], known)))
            walk = graph.node("walk", given, [(*owner, array), METHOD, body, 1])
            [item] = graph.items(walk, [second])
            graph.named(item, "x")
            new = graph.substitute(results, {last: item})
            if not any(_of(node, owner, name) for node in topological(new) for name in elements):
                return new
    return None


def _of(node: Node, owner: Path, name: str) -> bool:
    """The node is a parameter below this child."""
    depth = len(owner)
    return (
        node.op == "param"
        and len(node.data[0]) > depth + 1
        and node.data[0][: depth + 1] == (*owner, name)
    )


def _users(order: Iterable[Node], results: Iterable[Node]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {}
    for node in order:
        for each in node.inputs:
            users.setdefault(each, []).append(node)
    return users


def _ends(
    order: Sequence[Node],
    users: Mapping[Node, Sequence[Node]],
    latest: Mapping[Node, int],
    number: int,
    results: Sequence[Node],
) -> list[Node]:
    """Where this element's part may end: values through which all that it does goes on."""
    region = [node for node in order if latest[node] == number and node.op != "param"]
    inside = set(region)
    consumers = {
        n for n in region if any(e.op == "param" and latest[e] == number for e in n.inputs)
    }
    found: list[Node] = []
    for at, end in enumerate(region):
        after: set[Node] = {end}
        for node in region[at + 1 :]:
            if any(each in after for each in node.inputs):
                after.add(node)
        before = [node for node in region if node not in after]
        if any(node in after and node is not end for node in consumers):
            continue
        leaks = any(
            (user in inside and user in after and user is not end) or user not in inside
            for node in before
            for user in users.get(node, ())
        )
        if not leaks and not any(node in before for node in results):
            found.append(end)
        if len(found) == _TRIES:
            break
    return found


def _chain(
    graph: Graph,
    order: Sequence[Node],
    latest: Mapping[Node, int],
    first: Node,
    second: Node,
    owner: Path,
    elements: Sequence[str],
) -> tuple[Node, list[Node], Node] | None:
    """What goes into the first element, what all are given, and what comes out of the last."""
    template = _between(first, second, owner, elements[1])
    if template is None:
        return None
    constants = [
        node
        for node in dict.fromkeys(each for made in template for each in made.inputs)
        if node not in template and node is not first and not _of(node, owner, elements[1])
    ]
    constants = [node for node in constants if constant(node) is None and node.op != "size"]
    if any(_of(node, owner, name) for node in constants for name in elements):
        return None
    if any(latest[node] >= 0 for node in constants):
        return None
    like = (first.shape, first.dtype)
    for initial in (n for n in order if latest[n] == -1 and (n.shape, n.dtype) == like):
        if (
            _instance(graph, template, first, initial, second, owner, elements[1], elements[0])
            is first
        ):
            break
    else:
        return None
    at = second
    for name in elements[2:]:
        found = _instance(graph, template, first, at, second, owner, elements[1], name)
        if found is None:
            return None
        at = found
    return initial, constants, at


def _between(first: Node, second: Node, owner: Path, name: str) -> list[Node] | None:
    """All that leads to `second` from `first` and from the element's own parameters."""
    found: list[Node] = []
    reached = {first}
    for node in topological([second]):
        if node is first:
            continue
        if any(each in reached or _of(each, owner, name) for each in node.inputs):
            reached.add(node)
            found.append(node)
    return found if second in reached else None


def _instance(
    graph: Graph,
    template: Sequence[Node],
    first: Node,
    given: Node,
    second: Node,
    owner: Path,
    name: str,
    other: str,
) -> Node | None:
    """The same operations for another element, where the graph has them all."""
    new: dict[Node, Node] = {first: given}
    for node in template:
        inputs: list[Node] = []
        for each in node.inputs:
            if each not in new and _of(each, owner, name):
                path = (*owner, other, *each.data[0][len(owner) + 1 :])
                moved = _known(graph, each, (), (path,))
                if moved is None:
                    return None
                new[each] = moved
            inputs.append(new.get(each, each))
        made = _known(graph, node, tuple(inputs), node.data)
        if made is None:
            return None
        new[node] = made
    return new[second]


def _known(
    graph: Graph, like: Node, inputs: tuple[Node, ...], data: tuple[object, ...]
) -> Node | None:
    key = like.op, inputs, tuple(exact_key(item) for item in data), like.shape, like.dtype
    return graph.known.get(key)


# ---------------------------------------------------------------- methods


def _with_method(graph: Graph, results: Sequence[Node], path: Path) -> list[Node]:
    """The results, with what reads the block's parameters as a call of its method."""
    order = topological(results)
    own = {n for n in order if n.op == "param" and n.data[0][: len(path)] == path}
    moved = set(own)  # the parameters, and what is only they
    for node in order:
        if node.op in _MOVES and all(each in moved for each in node.inputs) and node.inputs:
            moved.add(node)
    consumers = {n for n in order if n not in moved and any(each in moved for each in n.inputs)}
    region = _convex(order, consumers)
    if sum(node.op not in _TRIVIAL for node in region) < 2:
        return list(results)
    if any(e.op == "param" and e not in own for n in region for e in n.inputs):
        return list(results)
    region |= moved - own
    _join(order, region)
    _absorb(order, region, results)
    outputs = [
        node
        for node in order
        if node in region
        and (node in results or any(node in u.inputs for u in order if u not in region))
    ]
    inputs = [
        node
        for node in dict.fromkeys(e for n in order if n in region for e in n.inputs)
        if node not in region and node not in own and constant(node) is None and node.op != "size"
    ]
    if not 1 <= len(outputs) <= 3 or any(not node.dtype for node in [*inputs, *outputs]):
        return list(results)
    known = {
        node: graph.arg(at, node, called(node) if len(inputs) > 1 else "x")
        for at, node in enumerate(inputs)
    }
    body = Body(tuple(graph.substitute(outputs, known)))
    if len(outputs) == 1:
        [out] = outputs
        call = graph.node(
            "method", inputs, [path, METHOD, body], shape=out.shape, dtype=out.dtype, name=out.name
        )
        return graph.substitute(results, {out: call})
    call = graph.node("method", inputs, [path, METHOD, body])
    return graph.substitute(results, dict(zip(outputs, graph.items(call, outputs), strict=True)))


def _convex(order: Sequence[Node], consumers: set[Node]) -> set[Node]:
    """The consumers, and what lies on a way from one to another."""
    after: set[Node] = set()
    for node in order:
        if node in consumers or any(each in after for each in node.inputs):
            after.add(node)
    before = set(consumers)
    for node in reversed(order):
        if node in before:
            before.update(each for each in node.inputs if each in after)
    return before & after


def _join(order: Sequence[Node], region: set[Node]) -> None:
    """What only joins values of the region, such as the sum after a branch, is part of it."""
    for node in order:
        if node not in region and len(set(node.inputs) & region) > 1 and set(node.inputs) <= region:
            region.add(node)


def _absorb(order: Sequence[Node], region: set[Node], results: Sequence[Node]) -> None:
    """What comes from nothing that is given, and is read in the region only, is made there."""
    settled = {n for n in order if n.op in ("iota", "literal", "size")}
    for node in order:
        if node.inputs and all(each in settled for each in node.inputs):
            settled.add(node)
    users = _users(order, results)
    for node in reversed(order):
        if node in settled and node not in results and node.inputs + (node,):
            if users.get(node) and all(user in region for user in users[node]):
                region.add(node)


def parts(results: Sequence[Node]) -> Iterator[tuple[Path, Node]]:
    """Every method and walk below, with the path of its block."""
    for node in topological(results):
        if node.op in ("method", "walk"):
            path, _, body, *_ = node.data
            own = (*path, ANY) if node.op == "walk" else path
            yield own, node
            yield from parts(body.results)
        else:
            for body in node.bodies:
                yield from parts(body.results)
