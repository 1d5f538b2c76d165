"""Nodes as the statements of a function: which values get names, and how each is written."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from linnet.diagnostics import InternalError
from linnet.dims import Dim
from linnet.porting.graph import (
    COMPARE,
    ELEMENTWISE,
    FLOATS,
    ONE,
    WIDTHS,
    ZERO,
    Body,
    Node,
    Shape,
    called,
    constant,
    topological,
    within,
)
from linnet.porting.names import Names, singular
from linnet.weights.arrays import DTYPES

# How tightly an expression holds together, loosest first.
_ANY, _LOGIC, _COMPARE, _OR, _XOR, _AND, _ADD, _MUL, _UNARY, _ATOM = range(10)
_SIGNS = {
    "add": ("+", _ADD),
    "sub": ("-", _ADD),
    "mul": ("*", _MUL),
    "div": ("/", _MUL),
    "rem": ("%", _MUL),
    "and": ("&", _AND),
    "xor": ("^", _XOR),
    "or": ("|", _OR),
    **{op: (sign, _COMPARE) for op, sign in COMPARE.items()},
}
_LETTERS = "hijklmnopqrtuvwxyzacdefg"
_WIDEST = 56  # characters of an expression that may stand within another
_INDEXED = frozenset({"dot", "define", "reduce"})  # what reads its inputs by their elements
_MOVES = frozenset({"expand", "permute", "reshape", "cast"})
_STEPS = frozenset({"dot", "define", "reduce", "for", "while", "walk"})  # statements of their own


@dataclass(frozen=True, slots=True)
class Expr:
    """The text of an expression, and how tightly it holds together."""

    text: str
    level: int = _ATOM

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


@dataclass(slots=True)
class Module:
    """What the functions of a module need beside them."""

    names: Names = field(default_factory=Names)
    imports: set[tuple[str, str]] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    functions: dict[Any, tuple[str, str]] = field(default_factory=dict)  # name and text by body
    facts: tuple[str, ...] = ()
    members: frozenset[str] = frozenset()  # names of members, which hide what is imported
    indexed: dict[tuple[Any, ...], tuple[str, int]] = field(default_factory=dict)

    def path_text(self, path: tuple[Any, ...], owner: tuple[Any, ...]) -> str:
        """A member as the block at `owner` writes it; elements of arrays by their position."""
        text = ""
        for at in range(len(owner), len(path)):
            array, position = self.indexed.get(path[: at + 1], (path[at], None))
            text += f".{array}" + ("" if position is None else f"[{position}]")
        return text.removeprefix(".")

    def imported(self, item: str) -> str:
        """The name of an item of the standard library, which is imported, or of a helper."""
        module, name = item.split("::")
        if not module:
            return self.helped(name)
        told = f"{name}_of" if name in self.members else name
        self.imports.add((module, name if told == name else f"{name} as {told}"))
        return told

    def helped(self, name: str) -> str:
        self.helpers.add(name)
        return name


def type_text(shape: Shape, dtype: str) -> str:
    """A type as it is written."""
    return f"Tensor[{', '.join(map(str, shape))}; {dtype}]" if shape else dtype


def types_text(nodes: Sequence[Node]) -> str:
    """The type of one result, or the tuple of several."""
    types = [type_text(node.shape, node.dtype) for node in nodes]
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def dims_of(shapes: Iterable[Shape]) -> list[str]:
    """The generics that the shapes name, in order."""
    found: dict[str, None] = {}
    for shape in shapes:
        for axis in shape:
            found.update(dict.fromkeys(sorted(axis.names())))
    return list(found)


def body_dims(shapes: Sequence[Shape], body: Body) -> tuple[list[str], bool]:
    """The generics of a function with these arguments, and whether a call must write them out."""
    alone = {str(axis) for shape in shapes for axis in shape}
    needed = dims_of(shapes)
    for node in within(body.results):
        sizes = [i for i in node.data if isinstance(i, Dim)]
        sizes += [j for i in node.data if isinstance(i, tuple) for j in i if isinstance(j, Dim)]
        for name in dims_of([node.shape, tuple(sizes)]):
            if name not in needed:
                needed.append(name)
    return needed, not alone >= set(needed)


def generics_text(dims: Sequence[str]) -> str:
    return f"<{', '.join(f'{name}: Dim' for name in dims)}>" if dims else ""


def where_text(module: Module, dims: Sequence[str]) -> str:
    """The facts about these generics, as a where clause."""
    told = [
        fact
        for fact in module.facts
        if set(re.findall(r"[A-Za-z_]\w*", fact)) <= {*dims, "min", "max"}
    ]
    return f"\nwhere {', '.join(told)} " if told else " "


class Scope:
    """The statements of one function, written for some results."""

    def __init__(
        self,
        module: Module,
        owner: tuple[str, ...],
        names: Names,
        env: Mapping[Node, Expr],
        letters: dict[Dim, list[str]] | None = None,
    ) -> None:
        self.module = module
        self.owner = owner
        self.names = names
        self.env: dict[Node, Expr] = dict(env)
        self.named = {node for node, expr in env.items() if expr.level == _ATOM}
        self.letters: dict[Dim, list[str]] = {} if letters is None else letters
        self.lines: list[str] = []
        self.users: dict[Node, list[Node]] = {}
        self.uses: Counter[Node] = Counter()
        self.repeated: set[Node] = set()  # what a template reads more than once
        self.members: frozenset[str] = frozenset()

    def run(self, results: Sequence[Node]) -> list[Expr]:
        """Writes what the results need; their expressions."""
        order = topological(results)
        self.uses.update(results)
        for node in order:
            self.uses.update(node.inputs)
            for each in node.inputs:
                self.users.setdefault(each, []).append(node)
            if node.op == "define":
                for number, each in enumerate(node.inputs):
                    while each.op in _MOVES - {"cast"}:
                        each = each.inputs[0]
                    if len(re.findall(rf"@{number}\b", node.data[0])) > 1:
                        self.repeated.add(each)
        for node in order:
            if node not in self.env:
                self.step(node)
        return [self.typed(node) for node in results]

    def step(self, node: Node) -> None:
        """The node is known from now on: by a name, or as an expression to be put into another."""
        match node.op:
            case "for" | "while" | "walk":
                return getattr(self, f"_{node.op}")(node)  # type: ignore[no-any-return]
            case "if" | "method" if not node.dtype:
                return self._several(node)
            case "dot" | "define" | "reduce":
                return self._indexed(node)
            case "item":
                raise InternalError("porting", "results of a node that was not written")
        expr = self.expression(node)
        if self.stays(node, expr):
            self.env[node] = expr
        else:
            self.let(node, expr.text)

    def stays(self, node: Node, expr: Expr) -> bool:
        """The expression may stand where it is used."""
        users = self.users.get(node, [])
        if node.op in ("param", "literal", "size"):
            return True
        if node in self.repeated or any(u.op in ("for", "while", "walk", "if") for u in users):
            return False
        by_element = [user for user in users if user.op in _INDEXED]
        if (
            node.op in ("expand", "permute", "reshape", "row")
            and by_element
            and self.uses[node] == 1
        ):
            if node.op != "reshape" or _units_only(node):
                return True
        if by_element and node.op not in _MOVES:
            if node.op not in ELEMENTWISE or any(user.op != "reduce" for user in by_element):
                return False
        if by_element and node.op == "cast":
            return self.uses[node] == 1 and len(expr.text) <= _WIDEST
        if by_element and node.op == "reshape":
            return False
        if node.op == "expand" and constant(node) is not None:
            return len(expr.text) <= _WIDEST
        if self.uses[node] != 1:
            return False
        if not users:  # what is returned
            return len(expr.text) <= _WIDEST
        return len(expr.text) <= (_WIDEST // 2 if node.name else _WIDEST)

    def let(self, node: Node, text: str, declared: str = "") -> None:
        name = self.names.fresh(self.wish(node))
        self.lines.append(f"let {name}{declared} = {text}")
        self.env[node] = Expr(name)
        self.named.add(node)

    def wish(self, node: Node) -> str:
        name = called(node, len(self.owner))
        return f"{name}_out" if name in self.members else name

    # ------------------------------------------------ expressions

    def typed(self, node: Node) -> Expr:
        """The node where nothing else tells its dtype."""
        if node.op == "literal" and node.dtype != "bool":
            if math.isfinite(node.data[0]):
                return Expr(f"cast<{node.dtype}>({number(node)})")
        return self.env.get(node) or self.expression(node)

    def operand(self, node: Node) -> Expr:
        """The node where something else tells its dtype."""
        return self.env[node] if node in self.env else self.expression(node)

    def operands(self, nodes: Sequence[Node]) -> list[Expr]:
        """Nodes of one dtype, which at least the first of them tells."""
        told = any(node.op != "literal" for node in nodes)
        return [
            self.typed(node) if at == 0 and not told else self.operand(node)
            for at, node in enumerate(nodes)
        ]

    def expression(self, node: Node) -> Expr:
        """The whole of what the node is."""
        match node.op:
            case "literal":
                if node.dtype in FLOATS and not math.isfinite(node.data[0]):
                    return self.endless(node)
                return Expr(number(node), _UNARY if number(node)[0] == "-" else _ATOM)
            case "param":
                return Expr(self.module.path_text(node.data[0], self.owner))
            case "size":
                return Expr(f"cast<{node.dtype}>({node.data[0]})")
            case "iota":
                return Expr(f"iota<{node.dtype}>({node.data[0]})")
            case op if op in ELEMENTWISE:
                return self.applied(node, self.operands_of(node))
            case "reshape":
                return Expr(f"reshape({self.typed(node.inputs[0]).text}, {shape_text(node.shape)})")
            case "expand":
                [x] = node.inputs
                if x.op == "literal":
                    value = self.operand(x).text
                    return Expr(f"fill<{node.dtype}>({shape_text(node.shape)}, {value})")
                return Expr(f"broadcast_to({self.typed(x).text}, {shape_text(node.shape)})")
            case "row":
                x, at = node.inputs
                rest = ", ..." if node.rank else ""
                return Expr(f"{self.typed(x).at(_ATOM)}[{self.typed(at).text}{rest}]")
            case "permute":
                order = ", ".join(map(str, node.data[0]))
                return Expr(f"permute({self.typed(node.inputs[0]).text}, [{order}])")
            case "slice":
                ranges = _ranges_text(node.data[0], node.inputs[0].shape)
                return Expr(f"{self.typed(node.inputs[0]).at(_ATOM)}[{ranges}]")
            case "concat":
                parts = [self.typed(x).text for x in node.inputs]
                return Expr(f"concat({', '.join(parts)}, axis = {node.data[0]})")
            case "call":
                name, generics = self.module.imported(node.data[0]), ", ".join(node.data[1])
                form = node.data[2] or ("{}",) * len(node.inputs)
                given = ", ".join(
                    each.format((self.operand(x) if node.data[2] else self.typed(x)).text)
                    for each, x in zip(form, node.inputs, strict=True)
                )
                return Expr(f"{name}{f'<{generics}>' if generics else ''}({given})")
            case "method":
                return Expr(self.method_text(node))
            case "if":
                return self.branch_text(node)
        raise InternalError("porting", f"{node.op} cannot be written")

    def operands_of(self, node: Node) -> list[Expr]:
        if node.op == "select":
            return [self.operand(node.inputs[0]), *self.operands(node.inputs[1:])]
        if node.op == "cast" or node.op == "helper":
            return [self.typed(x) for x in node.inputs]
        return self.operands(node.inputs)

    def applied(self, node: Node, given: Sequence[Expr]) -> Expr:
        """An elementwise operation on the texts of its operands."""
        op = node.op
        match op:
            case "helper":
                name = self.module.helped(node.data[0])
                return Expr(f"{name}({', '.join(x.text for x in given)})")
            case "cast":
                return Expr(f"cast<{node.dtype}>({given[0].text})")
            case "neg":
                return Expr(f"-{given[0].at(_ATOM)}", _UNARY)
            case "not" if node.dtype == "bool":
                return Expr(f"{given[0].at(_OR)} == false", _COMPARE)
            case "not":
                ones = "-1" if node.dtype[0] == "i" else str(2 ** WIDTHS[node.dtype] - 1)
                return Expr(f"{given[0].at(_XOR)} ^ {ones}", _XOR)
        if op in _SIGNS:
            sign, level = _SIGNS[op]
            # Comparisons do not chain, and the right operand of `-` and `/` is held together.
            left, right = (level + 1, level + 1) if level == _COMPARE else (level, level + 1)
            if op in ("mul", "add") and node.inputs[1].op == op:
                right = level + 1
            return Expr(f"{given[0].at(left)} {sign} {given[1].at(right)}", level)
        return Expr(f"{op}({', '.join(x.text for x in given)})")

    def endless(self, node: Node) -> Expr:
        value = node.data[0]
        name = self.module.helped("not_a_number" if math.isnan(value) else "infinity")
        text = f"{name}<{node.dtype}>()"
        return Expr(f"-{text}", _UNARY) if value < 0 else Expr(text)

    # ------------------------------------------------ index notation

    def element(self, node: Node, at: Sequence[str]) -> Expr:
        """The node's element at these positions."""
        if node.op == "literal":
            return self.operand(node)
        if node in self.named or node.op in ("param", "arg", "input", "size"):
            text = self.typed(node)
            return Expr(f"{text.at(_ATOM)}[{', '.join(at)}]") if at else text
        match node.op:
            case "iota":
                return Expr(f"iota<{node.dtype}>({node.data[0]})[{at[0]}]")
            case "expand":
                [x] = node.inputs
                return self.element(x, _narrowed(x.shape, at))
            case "permute":
                places = dict(zip(node.data[0], at, strict=True))
                return self.element(node.inputs[0], [places[i] for i in range(node.rank)])
            case "row":
                x, position = node.inputs
                return self.element(x, [self.typed(position).text, *at])
            case "reshape" if _units_only(node):
                kept = [i for i, size in zip(at, node.shape, strict=True) if size != ONE]
                [x], told = node.inputs, iter(kept)
                return self.element(x, ["0" if size == ONE else next(told) for size in x.shape])
            case op if op in ELEMENTWISE:
                given = [self.element(x, _narrowed(x.shape, at)) for x in node.inputs]
                if op == "select":
                    test, yes, no = (x.text for x in given)
                    return Expr(f"if {test} {{ {yes} }} else {{ {no} }}", _ANY)
                values = node.inputs
                if values[0].op == "literal" and all(x.op == "literal" for x in values):
                    given[0] = self.typed(values[0])
                return self.applied(node, given)
        text = self.expression(node)
        return Expr(f"{text.at(_ATOM)}[{', '.join(at)}]") if at else text

    def indices(self, extents: Sequence[Dim]) -> list[str]:
        """A letter for each axis, the same for the same extent where it can be."""
        seen: Counter[Dim] = Counter()
        out: list[str] = []
        for extent in extents:
            known = self.letters.setdefault(extent, [])
            if seen[extent] == len(known):
                names = extent.names()
                first = next(iter(names))[0].lower() if len(names) == 1 else ""
                wishes = [
                    *first,
                    *_LETTERS,
                    *(f"{letter}_{n}" for n in range(2, 9) for letter in _LETTERS),
                ]
                free = next(w for w in wishes if w not in self.names.taken)
                known.append(self.names.fresh(free))
            out.append(known[seen[extent]])
            seen[extent] += 1
        return out

    def _indexed(self, node: Node) -> None:
        left, over, text = self.by_elements(node)
        read = re.sub(r"\b(sum|prod|max|min|any|all)\[[^\]]*\] ", "", text)
        if any(not re.search(rf"\b{letter}\b", read) for letter in over):
            # What is repeated along an axis that is reduced must have that axis.
            for each in node.inputs:
                if each not in self.named and each.rank:
                    self.let(each, self.expression(each).text)
            left, over, text = self.by_elements(node)
        # An index that stands nowhere has no extent: the result is the same along its axis.
        held = [letter for letter in left if re.search(rf"\b{letter}\b", text)]
        name = self.names.fresh(self.wish(node))
        axes = f"[{', '.join(held)}]" if held else ""
        self.lines.append(f"let {name}{axes} = {text}")
        if held != left:
            known = [size if i in held else ONE for i, size in zip(left, node.shape, strict=True)]
            wide = f"reshape({name}, {shape_text(tuple(known))})"
            if tuple(known) != node.shape:
                wide = f"broadcast_to({wide}, {shape_text(node.shape)})"
            name = self.names.fresh(name)
            self.lines.append(f"let {name} = {wide}")
        self.env[node] = Expr(name)
        self.named.add(node)

    def by_elements(self, node: Node) -> tuple[list[str], list[str], str]:
        """The indices of the result, those that are reduced over, and an element's text."""
        if node.op == "define":
            template, outputs, reduced = node.data
            extents = [*outputs, *reduced]
            told = self.indices(extents)
            text = self.filled(template, node.inputs, told, extents)
            return told[: len(outputs)], told[len(outputs) :], text
        if node.op == "reduce":
            [x] = node.inputs
            kind, axes = node.data
            kept = [i for i in range(x.rank) if i not in axes]
            places = [*kept, *axes]
            named = dict(zip(places, self.indices([x.shape[i] for i in places]), strict=True))
            over = [named[i] for i in axes]
            body = self.element(x, [named[i] for i in range(x.rank)])
            return [named[i] for i in kept], over, f"{kind}[{', '.join(over)}] {body.text}"
        of_a, of_b, result = node.data
        a, b = node.inputs
        sizes = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True))
        letters = [*result, *(c for c in dict.fromkeys(of_a + of_b) if c not in result)]
        held = dict(zip(letters, self.indices([sizes[c] for c in letters]), strict=True))
        over = [held[c] for c in letters if c not in result]
        summed = f"sum[{', '.join(over)}] " if over else ""
        left = self.element(a, [held[c] for c in of_a]).at(_MUL)
        right = self.element(b, [held[c] for c in of_b]).at(_UNARY)
        return [held[c] for c in result], over, f"{summed}{left} * {right}"

    def filled(
        self,
        template: str,
        inputs: Sequence[Node],
        letters: Sequence[str],
        extents: Sequence[Dim],
        whole: str = "",
    ) -> str:
        """A template with its indices, extents and elements written in."""
        whole = whole or template
        out, at = "", 0
        while at < len(template):
            mark = re.match(r"([$#@])(\d+)", template[at:])
            if mark is None:
                word = re.match(r"!(\w+)", template[at:])  # a function of `helpers`
                if word is not None:
                    out += self.module.helped(word[1])
                    at += len(word[0])
                    continue
                out, at = out + template[at], at + 1
                continue
            at += len(mark[0])
            kind, number = mark[1], int(mark[2])
            if kind == "$":
                out += letters[number]
            elif kind == "#":
                size = extents[number]
                out += str(size) if len(size.terms) <= 1 else f"({size})"
            else:
                places: list[str] = []
                if template[at : at + 1] == "[":
                    stop = _closing(template, at)
                    inner = _split(template[at + 1 : stop])
                    places = [self.filled(part, inputs, letters, extents, whole) for part in inner]
                    at = stop + 1
                x = inputs[number]
                others = [o for i, o in enumerate(inputs) if re.search(rf"@{i}\b", whole)]
                told = any(o.dtype == x.dtype and constant(o) is None for o in others)
                if (value := constant(x)) is not None and not told and math.isfinite(value):
                    out += self.typed(_scalar(x)).text
                else:
                    out += self.element(x, places).at(_UNARY)
        return out

    # ------------------------------------------------ calls and control

    def _several(self, node: Node) -> None:
        """A call of several results, taken apart."""
        text = self.method_text(node) if node.op == "method" else self.branch_text(node).text
        items = self.items_of(node)
        names = [self.names.fresh(self.wish(item)) if item is not None else "_" for item in items]
        told = names[0] if len(names) == 1 else f"({', '.join(names)})"
        self.lines.append(f"let {told} = {text}")
        for item, name in zip(items, names, strict=True):
            if item is not None:
                self.env[item] = Expr(name)
                self.named.add(item)

    def items_of(self, node: Node) -> list[Node | None]:
        """The node's results, in order, None for those that nothing reads."""
        count = len(next(node.bodies).results) if node.op != "while" else 0
        if node.op == "while":
            count = len(node.data[1].results)
        found = {user.data[0]: user for user in self.users.get(node, [])}
        return [found.get(at) for at in range(count)]

    def method_text(self, node: Node) -> str:
        path, method, body = node.data[:3]
        given = ", ".join(self.typed(x).text for x in node.inputs)
        dims, written = body_dims([x.shape for x in node.inputs], body)
        generics = f"<{', '.join(dims)}>" if written and dims else ""
        return f"{self.module.path_text(path, self.owner)}.{method}{generics}({given})"

    def branch_text(self, node: Node) -> Expr:
        """`if` over bodies that are expressions, or calls of functions."""
        chosen, *given = node.inputs
        exprs = [self.typed(x) for x in given]
        arms = [self.inline(body, given, exprs, "branch") for body in node.bodies]
        test = self.operand(chosen)
        if chosen.dtype == "bool":  # the first body is for false, as a number would choose
            return Expr(f"if {test.text} {{ {arms[1]} }} else {{ {arms[0]} }}", _ANY)
        text = ""
        for at, arm in enumerate(arms[:-1]):
            text += f"if {test.at(_OR)} <= {at} {{ {arm} }} else "
        return Expr(f"{text}{{ {arms[-1]} }}", _ANY)

    def inline(self, body: Body, given: Sequence[Node], exprs: Sequence[Expr], wish: str) -> str:
        """A body as one expression: its own, or a call of a function that is written for it."""
        args = _args(body, given)
        env = {arg: expr for arg, expr in zip(args, exprs, strict=True) if arg is not None}
        trial = Scope(self.module, self.owner, Names(self.names.taken), env)
        results = trial.run(body.results)
        if not trial.lines:
            texts = [x.text for x in results]
            return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
        used = [i for i, arg in enumerate(args) if arg is not None]
        key = body, tuple((given[i].shape, given[i].dtype) for i in used)
        shapes = [given[i].shape for i in used]
        dims, written = body_dims(shapes, body)
        if key not in self.module.functions:
            name = self.module.names.fresh(wish)
            text = function_text(
                self.module, f"fn {name}", [(args[i], given[i].name) for i in used], body, dims
            )
            self.module.functions[key] = name, text
        name = self.module.functions[key][0]
        generics = f"<{', '.join(dims)}>" if written and dims else ""
        return f"{name}{generics}({', '.join(exprs[i].text for i in used)})"

    def inner(self, env: Mapping[Node, Expr]) -> Scope:
        """The scope of a body within this function."""
        made = Scope(self.module, self.owner, self.names, env, self.letters)
        made.members = self.members
        return made

    def variables(self, items: Sequence[Node | None], carried: Sequence[Node]) -> list[str]:
        """Declares a `var` for each value that is carried."""
        names: list[str] = []
        for item, node in zip(items, carried, strict=True):
            wish = (item.name if item is not None else "") or node.name or "value"
            name = self.names.fresh(wish)
            expr = self.typed(node)
            self.lines.append(f"var {name} = {expr.text}")
            names.append(name)
        return names

    def assign(self, names: Sequence[str], new: Sequence[Expr], inner: Scope) -> None:
        """All variables at once: what reads an old one is worked out before it changes."""
        todo = [(n, e) for n, e in zip(names, new, strict=True) if e.text != n]
        changed = [n for n, _ in todo]
        if len(todo) > 1:
            for at, (name, expr) in enumerate(todo):
                others = changed[:at]
                if any(re.search(rf"\b{re.escape(other)}\b", expr.text) for other in others):
                    held = self.names.fresh(f"next_{name}")
                    inner.lines.append(f"let {held} = {expr.text}")
                    todo[at] = name, Expr(held)
            # Those that are held are computed before anything is assigned.
        inner.lines += [f"{name} = {expr.text}" for name, expr in todo]

    def _for(self, node: Node) -> None:
        body, count, carried = node.data
        items = self.items_of(node)
        constants, first = (
            node.inputs[: -carried or None],
            node.inputs[len(node.inputs) - carried :],
        )
        if not carried:
            constants = node.inputs
        names = self.variables(items[:carried], first)
        turn = self.names.fresh("i")
        exprs = [*(self.operand(x) for x in constants), Expr(turn), *map(Expr, names)]
        args = _numbered(body)
        inner = self.inner({arg: exprs[i] for i, arg in args.items()})
        results = inner.run(body.results)
        stacked = [x for x, item in zip(results[carried:], items[carried:], strict=True) if item]
        # What is stacked is worked out before anything that it reads is assigned.
        for at, expr in enumerate(stacked):
            if any(re.search(rf"\b{re.escape(n)}\b", expr.text) for n in names):
                name = self.names.fresh("yielded")
                inner.lines.append(f"let {name} = {expr.text}")
                stacked[at] = Expr(name)
        self.assign(names, results[:carried], inner)
        head = f"for {turn} in 0..{count} {{"
        told: list[str] = []
        if stacked:
            for item in items[carried:]:
                if item is not None:
                    told.append(self.names.fresh(self.wish(item)))
                    self.env[item] = Expr(told[-1])
                    self.named.add(item)
            texts = [x.text for x in stacked]
            inner.lines.append(f"yield {_tuple(texts)}")
            head = f"let {_tuple(told)} = {head}"
        self.lines += [head, *inner.lines, "}"]
        self.bind(items[:carried], names)

    def _while(self, node: Node) -> None:
        test, body, carried = node.data
        items = self.items_of(node)
        split = len(node.inputs) - carried
        constants, first = node.inputs[:split], node.inputs[split:]
        names = self.variables(items, first)
        exprs = [*(self.operand(x) for x in constants), *map(Expr, names)]
        goes_on = self.inline(test, node.inputs, exprs, "goes_on")
        inner = self.inner({arg: exprs[i] for i, arg in _numbered(body).items()})
        results = inner.run(body.results)
        self.assign(names, results, inner)
        self.lines += [f"while {goes_on} {{", *inner.lines, "}"]
        self.bind(items, names)

    def _walk(self, node: Node) -> None:
        path, method, body, carried = node.data
        items = self.items_of(node)
        names = self.variables(items, node.inputs[:carried])
        child = self.names.fresh(singular(path[-1]))
        given = ", ".join([*names, *(self.typed(x).text for x in node.inputs[carried:])])
        dims, written = body_dims([x.shape for x in node.inputs], body)
        generics = f"<{', '.join(dims)}>" if written and dims else ""
        call = f"{child}.{method}{generics}({given})"
        self.lines.append(f"static for {child} in {self.module.path_text(path, self.owner)} {{")
        if len(names) == 1:
            self.lines.append(f"{names[0]} = {call}")
        else:
            new = [self.names.fresh(f"next_{name}") for name in names]
            self.lines.append(f"let ({', '.join(new)}) = {call}")
            self.lines += [f"{name} = {held}" for name, held in zip(names, new, strict=True)]
        self.lines.append("}")
        self.bind(items, names)

    def bind(self, items: Sequence[Node | None], names: Sequence[str]) -> None:
        for item, name in zip(items, names, strict=True):
            if item is not None:
                self.env[item] = Expr(name)
                self.named.add(item)


def function_text(
    module: Module,
    head: str,
    args: Sequence[tuple[Node | None, str]],
    body: Body,
    dims: Sequence[str],
    owner: tuple[str, ...] = (),
    taken: Iterable[str] = (),
    written: Sequence[str] = (),
    states: Mapping[Node, str] | None = None,
) -> str:
    """A whole function: what it is given, what it does and what it returns.

    The last results of the body are what the states `written` become; `states` are read by name.
    """
    names = Names({*taken, *dims, *module.names.taken})
    env: dict[Node, Expr] = {}
    told: list[str] = []
    for node, wish in args:
        assert node is not None
        name = names.fresh(wish or called(node))
        env[node] = Expr(name)
        told.append(f"{name}: {type_text(node.shape, node.dtype)}")
    env.update((node, Expr(name)) for node, name in (states or {}).items())
    scope = Scope(module, owner, names, env)
    scope.members = frozenset(taken)
    results = scope.run(body.results)
    texts = [x.text for x in results]
    if written:  # all that reads a state comes before what writes one
        for at, text in enumerate(texts):
            if not re.fullmatch(r"\w+", text) or text in taken:
                texts[at] = names.fresh("result")
                scope.lines.append(f"let {texts[at]} = {text}")
        count = len(texts) - len(written)
        scope.lines += [f"{state} = {text}" for state, text in zip(written, texts[count:])]
        texts = texts[:count]
    returned = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    lines = [*scope.lines, f"return {returned}"]
    kept = body.results[: len(texts)]
    start = f"{head}{generics_text(dims)}({', '.join(told)}) -> {types_text(kept)}"
    where = where_text(module, dims)
    return start + where + "{\n" + "\n".join(lines) + "\n}"


def number(node: Node) -> str:
    """A finite number as a literal of its dtype, as short as it can be."""
    value = node.data[0]
    if isinstance(value, bool):
        return str(value).lower()
    if node.dtype not in FLOATS:
        return str(int(value))
    exact: Any = DTYPES[node.dtype].type(value)
    text = str(exact) if node.dtype == "f64" else _shortest(exact, node.dtype)
    return text if "." in text or "e" in text else f"{text}.0"


def _shortest(exact: Any, dtype: str) -> str:
    if dtype == "f32":
        text = str(exact)
    else:
        wide = float(exact)
        kind = DTYPES[dtype].type
        with np.errstate(over="ignore"):
            text = next(t for n in range(1, 18) if kind(float(t := f"{wide:.{n}g}")) == exact)
    limits: Any = ml_dtypes.finfo
    if abs(float(text)) > abs(float(exact)) >= float(limits(exact.dtype).max):
        text = repr(float(exact))  # the shortest would lie above the largest
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", text)


def _tuple(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def shape_text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _ranges_text(ranges: Sequence[tuple[Dim, Dim, int]], shape: Shape) -> str:
    """A slice, its whole axes in front or at the end as `...`."""
    parts = [_range_text(*each, size) for each, size in zip(ranges, shape, strict=True)]
    cut = [at for at, part in enumerate(parts) if part != ":"]
    if parts[0] == ":" and cut:
        parts = ["...", *parts[cut[0] :]]
    elif parts[-1] == ":":
        parts = [*parts[: cut[-1] + 1], "..."] if cut else ["..."]
    return ", ".join(parts)


def _range_text(start: Dim, stop: Dim, step: int, size: Dim) -> str:
    first = "" if start == ZERO else str(start)
    last = "" if stop == size else str(stop)
    return f"{first}:{last}" + (f":{step}" if step != 1 else "")


def _narrowed(shape: Shape, at: Sequence[str]) -> list[str]:
    """The positions of an operand that is broadcast to all of these."""
    kept = at[len(at) - len(shape) :]
    return ["0" if size == ONE else i for size, i in zip(shape, kept, strict=True)]


def _scalar(node: Node) -> Node:
    """The number that a node is everywhere."""
    while node.op != "literal":
        [node] = node.inputs
    return node


def _units_only(node: Node) -> bool:
    """A reshape that adds and drops axes of size 1, nothing else."""
    [x] = node.inputs
    return [a for a in x.shape if a != ONE] == [a for a in node.shape if a != ONE]


def _closing(text: str, at: int) -> int:
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "[(") - (text[place] in "])")
        if not depth:
            return place
    raise InternalError("porting", f"an open bracket: {text}")


def _split(text: str) -> list[str]:
    """The parts of a list, commas within brackets left alone."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[(<{") - (char in "])>}") if char not in "<>" else 0
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts] if text.strip() else []


def _numbered(body: Body) -> dict[int, Node]:
    return {node.data[0]: node for node in topological(body.results) if node.op == "arg"}


def _args(body: Body, given: Sequence[Node]) -> list[Node | None]:
    """The body's node for each of what it is given, None where it does not read it."""
    found = _numbered(body)
    return [found.get(at) for at in range(len(given))]
