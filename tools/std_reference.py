"""Writes docs/std.md, the reference of the standard library, from its sources.

Signatures are the sources' own; the meaning of an item is the first sentence of its documentation.
"""

from __future__ import annotations

import re
from pathlib import Path

from linnet.syntax import parse_text, tree

ROOT = Path(__file__).resolve().parent.parent
STD = ROOT / "src/linnet/std"
PAGE = ROOT / "docs/std.md"

HEAD = """\
# The standard library

Every public item of `std`, by module. Written by `tools/std_reference.py` from the sources under
`src/linnet/std`, where the rest of each item's documentation stands; a test compares the two.

* An `op` has an identity: its body is its meaning, and a backend may run a native kernel instead,
  as far as the numerics policy allows. A `fn` is expanded where it is called. A `block` has
  parameters.
* Import with `use std.nn.linear::{Linear, linear}`. Generic arguments that nothing else tells are
  written out, in the order of declaration: `max_pool2d<B, C, H, W, 3, 2, 1, T>(x)`.
* "In f32, cast to `T`" means that inputs are raised to f32 and the result is rounded once. Where
  nothing is said, sums of f16 and bf16 are kept in f32 and rounded once, and other steps round in
  `T`.
* Masks keep where they are `true`. Positions, slots and token ids are i32; training targets, expert
  numbers and random keys are i64. An index outside its axis reads the nearest position.
"""


def page() -> str:
    """The text of docs/std.md."""
    parts = [HEAD]
    for path in sorted(STD.rglob("*.linnet")):
        file, _ = parse_text(path.read_text(encoding="utf-8"), str(path))
        parts.append(section(file))
    return "\n".join(parts)


def section(file: tree.File) -> str:
    """A module: its opening comment, and a table of its public items."""
    assert file.module is not None
    opening = file.source.text[: file.module.span.start]
    lines = [line[3:] for line in opening.splitlines() if line.startswith("// ")]
    text = f"## `{file.module.text}`\n\n"
    text += "\n".join(lines) + "\n\n" if lines else ""
    text += "| Item | Signature | Meaning |\n| --- | --- | --- |\n"
    for item in file.items:
        if item.public:
            shown = "<br>".join(f"`{line}`" for line in signature(item))
            text += f"| {item.name.text} | {shown} | {meaning(item.docs)} |\n"
    return text


def signature(item: tree.Item) -> list[str]:
    """The declaration as it is called, on one line; a block's members and methods follow."""
    match item:
        case tree.Const():
            return [one_line(item.span.text)]
        case tree.Trait():
            return [f"trait {head(item)}"] + [
                f"{fn.kind} {head(fn)}" for fn in item.methods if fn.public or fn.required
            ]
        case tree.Block():
            own = [f"block {head(item)}"]
            own += [one_line(member.span.text) for member in item.members]
            return own + [f"fn {head(fn)}" for fn in item.methods if fn.public]
        case tree.Struct():
            fields = [one_line(field.span.text) for field in item.fields]
            return [f"struct {head(item)}", *fields]
        case tree.Fn():
            return [f"{item.kind} {head(item)}"]
        case _:
            raise ValueError(f"std has a public {type(item).__name__}: say how to show it")


def head(item: tree.Fn | tree.Block | tree.Struct) -> str:
    """From the name to before the body."""
    text = item.span.source.text
    start = item.name.span.start
    bare = isinstance(item, tree.Fn) and item.required
    return one_line(text[start : item.span.end if bare else text.index("{", start)])


def one_line(text: str) -> str:
    """The declaration without its documentation, line breaks and trailing commas."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    text = re.sub(r"([(<\[])\n\s*", r"\1", "\n".join(lines))
    text = re.sub(r",?\n\s*([)>\]])", r"\1", text)
    return re.sub(r"\s+", " ", text).strip().removeprefix("pub ")


def meaning(docs: str) -> str:
    """The first sentence."""
    text = " ".join(docs.split())
    end = re.search(r"(?<!al)\.(?= [A-Z`]|$)|: (?=[a-z`])", text)
    sentence = text[: end.start()] if end else text
    return sentence.replace("|", "\\|") + "."


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
