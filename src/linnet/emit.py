"""Writing Python source from Functions: expressions, names, sizes, order, line breaking.

What any backend that prints Python needs and what no backend decides.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from linnet.core.ir import Expand, Node, operands
from linnet.core.scalars import round_float
from linnet.dims import Atom, Dim
from linnet.types import F32, DType

WIDTH = 100
INDENT = "    "


class Level(IntEnum):
    """How tightly the outermost operator of an expression binds."""

    TUPLE = 0
    COMPARE = 1
    OR = 2
    XOR = 3
    AND = 4
    SHIFT = 5
    SUM = 6
    PRODUCT = 7
    SIGN = 8
    ATOM = 9


OPERATORS: dict[str, Level] = {
    "==": Level.COMPARE,
    "!=": Level.COMPARE,
    "<": Level.COMPARE,
    "<=": Level.COMPARE,
    ">": Level.COMPARE,
    ">=": Level.COMPARE,
    "|": Level.OR,
    "^": Level.XOR,
    "&": Level.AND,
    "<<": Level.SHIFT,
    ">>": Level.SHIFT,
    "+": Level.SUM,
    "-": Level.SUM,
    "*": Level.PRODUCT,
    "/": Level.PRODUCT,
    "//": Level.PRODUCT,
    "%": Level.PRODUCT,
    "@": Level.PRODUCT,
}


@dataclass(frozen=True, slots=True)
class Ex:
    """An expression as text, and how tightly its outermost operator binds."""

    text: str
    level: Level = Level.ATOM

    def __str__(self) -> str:
        return self.text

    @property
    def trivial(self) -> bool:
        """A name, a path of attributes or a number: repeating it costs nothing."""
        pattern = r"-?(\d[\d.]*(e-?\d+)?|[\w.]+(\[\d+\][\w.]*)*)"
        return re.fullmatch(pattern, self.text) is not None

    def at(self, level: Level) -> str:
        """The text, in parentheses unless it binds at least this tightly."""
        return self.text if self.level >= level else f"({self.text})"

    def method(self, name: str, *arguments: object) -> Ex:
        """A method call on the value."""
        # A number would read as `1.0.name`, and a sign binds looser than the dot.
        return Ex(f"{self.at(Level.ATOM)}.{name}({', '.join(map(str, arguments))})")

    def attribute(self, name: str) -> Ex:
        return Ex(f"{self.at(Level.ATOM)}.{name}")

    def index(self, *subscripts: object) -> Ex:
        return Ex(f"{self.at(Level.ATOM)}[{', '.join(map(str, subscripts))}]")


def infix(op: str, a: Ex, b: Ex) -> Ex:
    """`a op b`, grouped to the left; comparisons do not chain."""
    level = OPERATORS[op]
    left = Level(level + 1) if level is Level.COMPARE else level
    return Ex(f"{a.at(left)} {op} {b.at(Level(level + 1))}", level)


def prefix(op: str, x: Ex) -> Ex:
    return Ex(f"{op}{x.at(Level.ATOM)}", Level.SIGN)


def call(function: str, *arguments: object, **named: object) -> Ex:
    """A call, its named arguments last."""
    listed = [str(a) for a in arguments] + [f"{name}={value}" for name, value in named.items()]
    return Ex(f"{function}({', '.join(listed)})")


def subscript(start: Ex | None, stop: Ex | None, step: int = 1) -> str:
    """`start:stop:step`, the colons spaced out where an end is more than a name."""
    plain = all(e is None or e.trivial for e in (start, stop))
    first = f"{start} :" if start and not plain else f"{start or ''}:"
    last = f" {stop}" if stop and not plain else f"{stop or ''}"
    end = "" if step == 1 else f":{step}" if plain else f" : {step}"
    return f"{first}{last}{end}"


def bundle(items: Sequence[object]) -> str:
    """A tuple display."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(map(str, items))})"


# ---------------------------------------------------------------- numbers and sizes


# The largest f32: a number above it that rounds to it is refused by frameworks.
_LARGEST = (2 - 2**-23) * 2.0**127


def float_text(value: float, dtype: DType) -> str:
    """The shortest decimal that is this value of the dtype.

    Frameworks compute with a Python float in f32 where the tensor is f16 or bf16, so for those the
    text must be the rounded value itself.
    """
    if value != value:
        return 'float("nan")'
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if dtype == F32:
        for digits in range(1, 17):
            short = float(f"{value:.{digits}g}")
            if round_float(short, F32) == value and abs(short) <= _LARGEST:
                value = short
                break
    return repr(value).replace("e+", "e")


def number_text(value: bool | int | float, dtype: DType) -> Ex:
    text = float_text(value, dtype) if isinstance(value, float) else repr(value)
    return Ex(text, Level.SIGN if text.startswith("-") else Level.ATOM)


def dim_text(dim: Dim, name: Callable[[str], str]) -> Ex:
    """A dimension in Python, each of its names as `name` writes it."""
    total: Ex | None = None
    for product, coefficient in dim.coefficients():
        size = abs(coefficient)
        factors = [_atom_text(atom, name) for atom in product]
        if size != 1 or not factors:
            factors.insert(0, Ex(str(size)))
        term = factors[0]
        for factor in factors[1:]:
            term = infix("*", term, factor)
        if total is None:
            total = term if coefficient > 0 else prefix("-", term)
        else:
            total = infix("+" if coefficient > 0 else "-", total, term)
    return total or Ex("0")


def _atom_text(atom: Atom, name: Callable[[str], str]) -> Ex:
    if atom.op == "name":
        return Ex(name(atom.name))
    left, right = (dim_text(arg, name) for arg in atom.args)
    match atom.op:
        case "/":
            return infix("//", left, right)
        case "%":
            return infix("%", left, right)
        case "min" | "max":
            return call(atom.op, left, right)


# ---------------------------------------------------------------- names

_TAKEN = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "__builtins__"])


def identifier(text: str) -> str:
    """The text as a Python name, as near to it as Python allows."""
    name = re.sub(r"\W", "_", text)
    if not name or name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in _TAKEN else name


def snake_case(text: str) -> str:
    """`GroupedQueryAttention` -> `grouped_query_attention`."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", text).lower()


@dataclass(slots=True)
class Names:
    """The names of one scope; every one given out is new."""

    taken: set[str] = field(default_factory=set[str])

    def fresh(self, wish: str) -> str:
        """The wish as an identifier, numbered where it is taken."""
        base = identifier(wish)
        name, count = base, 2
        while name in self.taken:
            name = f"{base.rstrip('_')}_{count}"
            count += 1
        self.taken.add(name)
        return name


# ---------------------------------------------------------------- order and sharing


def ordered(
    roots: Iterable[Node], before: Mapping[Node, Sequence[Node]] | None = None
) -> list[Node]:
    """Every node under the roots, each after its operands and after what `before` asks of it.

    What is asked for and cannot be, since it lies in a circle, is left out.
    """
    done: dict[Node, None] = {}
    entered: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots][::-1]
    while stack:
        node, left = stack.pop()
        if left:
            done.setdefault(node)
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            asked = before.get(node, ()) if before else ()
            stack.extend((x, False) for x in (*operands(node), *asked)[::-1])
    return list(done)


def count_uses(order: Sequence[Node], results: Sequence[Node]) -> Counter[Node]:
    """How often each node's text appears: a view that only repeats axes counts for its operand."""
    uses: Counter[Node] = Counter(results)
    for node in reversed(order):
        if isinstance(node, Expand):
            uses[node.x] += uses[node]
        else:
            uses.update(operands(node))
    return uses


# ---------------------------------------------------------------- lines


@dataclass(slots=True)
class Lines:
    """Statements at their depths, mutable; `text` breaks those that are too long."""

    items: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    depth: int = 0

    def add(self, statement: str) -> None:
        self.items.append((self.depth, statement))

    def breaks(self, statement: str) -> bool:
        """Whether the statement, added here, would not fit one line."""
        return len(INDENT) * self.depth + len(statement) > WIDTH

    def text(self) -> list[str]:
        return [line for depth, statement in self.items for line in fit(statement, depth)]


def fit(statement: str, depth: int) -> list[str]:
    """The statement in lines of at most WIDTH columns, broken inside brackets."""
    if len(INDENT) * depth + len(statement) <= WIDTH:
        return [INDENT * depth + statement]
    targets, equals, value = statement.partition(" = ")
    names = [name.rstrip(",") for name in split_top(targets, (", ",))]
    if equals and len(names) > 1 and len(INDENT) * depth + len(targets) + 5 > WIDTH:
        # `a, b = value` with more names than a line holds.
        inner = [f"{INDENT * (depth + 1)}{name}," for name in names]
        return [f"{INDENT * depth}(", *inner, *fit(f") = {value}", depth)]
    pair = _brackets_to_break(statement, WIDTH - len(INDENT) * depth)
    several = statement.startswith("return ") and len(split_top(statement, (", ",))) > 1
    if several and statement.startswith("return ("):
        return _last_tuple(statement, depth) or _parenthesised(statement, depth)
    if pair is None or several:
        return _parenthesised(statement, depth)
    start, stop = pair
    if statement[start - 1 : start + 1] == " (" and statement[stop + 1 :].startswith("["):
        return _parenthesised(statement, depth)
    head, inside, tail = statement[: start + 1], statement[start + 1 : stop], statement[stop:]
    if len(INDENT) * depth + len(head) > WIDTH:
        return _parenthesised(statement, depth)
    parts = split_top(inside, (", ",))
    if len(INDENT) * (depth + 1) + len(inside) <= WIDTH:
        middle = [INDENT * (depth + 1) + inside]
    elif len(parts) > 1:
        middle = []
        for part in parts:
            lines = fit(part.rstrip(","), depth + 1)
            middle += [*lines[:-1], f"{lines[-1]},"]
    else:
        middle = _at_operators(inside, depth + 1)
    return [INDENT * depth + head, *middle, *fit(tail, depth)]


def _parenthesised(statement: str, depth: int) -> list[str]:
    """`x = long` as `x = (`, the value broken at its operators, `)`."""
    found = re.match(r"((?:return|[\w., \[\]]+ =) )(?!\()(.*)", statement)
    if found is None:
        return [INDENT * depth + statement]
    items = split_top(found[2], (", ",))
    if len(items) > 1:
        lines = [line for item in items for line in _item(item.rstrip(","), depth + 1)]
    else:
        lines = _at_operators(found[2], depth + 1)
    return [f"{INDENT * depth}{found[1]}(", *lines, f"{INDENT * depth})"]


def _last_tuple(statement: str, depth: int) -> list[str]:
    """`return (a, b), (` and what the last tuple holds, each on a line of its own; else nothing."""
    last = split_top(statement.removeprefix("return "), (", ",))[-1]
    inner = split_top(last[1:-1], (", ",)) if last[0] + last[-1] == "()" else []
    if len(inner) < 2:
        return []
    items = [line for item in inner for line in _item(item.rstrip(","), depth + 1)]
    head = statement.removesuffix(last)
    return [f"{INDENT * depth}{head}(", *items, f"{INDENT * depth})"]


def _item(text: str, depth: int) -> list[str]:
    """An element of a display on lines of its own."""
    lines = fit(text, depth)
    return [*lines[:-1], f"{lines[-1]},"]


def _at_operators(text: str, depth: int) -> list[str]:
    """The expression broken before its loosest operators."""
    compared = (" == ", " != ", " < ", " <= ", " > ", " >= ")
    for group in (compared, (" | ",), (" & ",), (" + ", " - "), (" * ", " / ", " @ ")):
        parts = split_top(text, group)
        if len(parts) > 1:
            return [line for part in parts for line in fit(part, depth)]
    if _brackets_to_break(text, 0) is None:
        return [INDENT * depth + text]
    return fit(text, depth)


def _scan(text: str) -> Iterator[tuple[int, str, int]]:
    """Position, character and bracket depth of what stands outside string literals."""
    depth, quote = 0, ""
    for i, c in enumerate(text):
        if quote:
            if c == quote and text[i - 1] != "\\":
                quote = ""
            continue
        if c in "\"'":
            quote = c
            continue
        if c in ")]}":
            depth -= 1
        yield i, c, depth
        if c in "([{":
            depth += 1


def _brackets_to_break(text: str, room: int) -> tuple[int, int] | None:
    """The first outermost bracket pair after which the line does not reach the next one."""
    pairs: list[tuple[int, int]] = []
    start = 0
    for i, c, depth in _scan(text):
        if depth == 0 and c in "([{":
            start = i
        if depth == 0 and c in ")]}" and i - start > 1:
            pairs.append((start, i))
    ends = [*(start for start, _ in pairs[1:]), len(text)]
    return next((p for p, end in zip(pairs, ends) if end >= room), pairs[-1] if pairs else None)


def split_top(text: str, separators: Sequence[str]) -> list[str]:
    """The text cut at separators outside brackets; operators go to the front of what follows."""
    cuts = [0]
    for i, _, depth in _scan(text):
        if depth == 0 and any(text.startswith(s, i) for s in separators):
            cuts.append(i + 2 if text.startswith(", ", i) else i + 1)
    return [text[a:b].rstrip() for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]
