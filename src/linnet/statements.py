"""Statements of a generated function: what has a name, and how a loop's variables go on."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping

from linnet.core.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Concat,
    Dot,
    Expand,
    For,
    Function,
    Gather,
    If,
    Iota,
    Node,
    Reduce,
    Result,
    Select,
    Unary,
)
from linnet.emit import Ex, Lines, Names
from linnet.express import Expressions

# Longer expressions get a name of their own.
INLINE = 60


class Statements(Expressions):
    """The statements of one body: of a function, or of a loop or branch inside it."""

    names: Names
    lines: Lines
    body: Function
    values: tuple[Node, ...]  # what the body gives
    uses: Counter[Node]

    @abstractmethod
    def wish_of_call(self, node: Call) -> str:
        """A name for what a block's method gives."""

    # ------------------------------------------------ names

    def name_it(self, node: Node, text: Ex) -> None:
        name = self.names.fresh(node.hint or self.wish(node))
        self.lines.add(f"{name} = {text}")
        self.env[node] = Ex(name)
        self.named.add(node)

    def wish(self, node: Node) -> str:
        match node:
            case Result(Call(function) as made):
                parts = function.name.split(".")
                return self.wish_of_call(made) if len(parts) > 1 else parts[0]
            case Result(If()):
                return "chosen"
            case Reduce(op):
                return {"sum": "total", "prod": "product", "max": "largest", "min": "least"}.get(
                    op, op
                )
            case Binary(op):
                return {"add": "added", "mul": "scaled", "sub": "shifted"}.get(op, "value")
            case Compare():
                return "holds"
            case Select():
                return "chosen"
            case Gather():
                return "rows"
            case Dot():
                return "product"
            case Concat():
                return "joined"
            case Cast():
                return "converted"
            case Unary(op):
                return op
            case Iota():
                return "positions"
            case _:
                return "x"

    def settled(self, node: Node) -> None:
        """The node can be written more than once without being computed twice."""
        if isinstance(node, Expand) and node not in self.named:
            self.env.setdefault(node, self.full(node))
        if not self.env[node].trivial:
            self.name_it(node, self.env[node])

    def only_result(self, node: Node) -> bool:
        """The node is all that the function returns, so that `return` can hold it."""
        return self.values == (node,) and self.body.kind != "body"

    # ------------------------------------------------ variables

    def last_value(self, names: str) -> str:
        """What the last statement assigns to these names, taken back, if nothing else reads it."""
        depth, statement = self.lines.items[-1] if self.lines.items else (0, "")
        target, equals, value = statement.partition(" = ")
        once = all(self.uses[r] == 1 and r in self.named for r in self.values)
        if depth != self.lines.depth or not equals or target != names or not once:
            return names
        self.lines.items.pop()
        return value

    def next_values(
        self, names: Mapping[int, str], results: Mapping[int, Ex], child: Statements, start: int
    ) -> None:
        """The variables take a body's results, all at once where they read each other.

        The body's statements are those from line `start` on.
        """
        self.lines.depth += 1
        texts = {i: results[i].text for i in names}
        if len(results) == 1:
            texts = {i: child.last_value(text) for i, text in texts.items()}
        steps = self._renamed([(n, texts[i]) for i, n in names.items() if texts[i] != n], start)
        clash = any(
            re.search(rf"\b{re.escape(name)}\b", text)
            for k, (name, _) in enumerate(steps)
            for _, text in steps[k + 1 :]
        )
        if clash:
            targets, taken = ", ".join(n for n, _ in steps), ", ".join(t for _, t in steps)
            self.lines.add(f"{targets} = {taken}")
        else:
            for name, text in steps:
                self.lines.add(f"{name} = {text}")
        self.lines.depth -= 1

    def _renamed(self, steps: list[tuple[str, str]], start: int) -> list[tuple[str, str]]:
        """The steps that are left when a body's own names for new values give way to the
        variables', where no later statement reads a variable's old value."""
        lines = self.lines.items
        for name, text in list(steps):
            at = [
                k
                for k in range(start, len(lines))
                if lines[k] == (self.lines.depth, lines[k][1])
                and re.match(rf"([\w, ]+, )?{re.escape(text)}(, [\w, ]+)? = ", lines[k][1])
            ]
            old, new = (re.compile(rf"(?<![.\w]){re.escape(t)}\b") for t in (name, text))
            others = [step for step in steps if step != (name, text)]
            later = [t for _, t in lines[at[0] + 1 :]] + [t for _, t in others] if at else []
            if len(at) != 1 or any(old.search(t) for t in later):
                continue
            targets, equals, value = lines[at[0]][1].partition(" = ")
            # The value may read what had the name before.
            lines[at[0]] = (lines[at[0]][0], new.sub(name, targets) + equals + value)
            for k in range(at[0] + 1, len(lines)):
                lines[k] = (lines[k][0], new.sub(name, lines[k][1]))
            lines[at[0] :] = [line for line in lines[at[0] :] if line[1] != f"{name} = {name}"]
            steps = [(n, new.sub(name, t)) for n, t in others]
        return steps

    def for_head(self, node: For, element: str, number: str, counted: bool, array: str) -> str:
        if node.scanned:
            if counted:
                return f"for {number}, {element} in enumerate({array}):"
            return f"for {element} in {array}:"
        start = "" if node.start.constant == 0 else f"{self.dim(node.start)}, "
        return f"for {number if counted else '_'} in range({start}{self.dim(node.stop)}):"
