"""Single realistic mistakes in the llama package and the parts of `std` it is made of.

Each is found in the syntax tree, made in the text, and must be an error or W2001; one that is a
valid program stands in `mutants_valid.txt` with the reason. By hand:

    python tests/mutation.py                 # counts, and what the list of valid ones has wrong
    python tests/mutation.py --show 50       # the whole messages of every so many mutants
    python tests/mutation.py --all --many 3  # all mutants; those with at least three errors
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from linnet.check import check
from linnet.check.analysis import Analysis
from linnet.check.memo import Memo
from linnet.diagnostics import Diagnostic, Edit, Findings
from linnet.fixes import edited
from linnet.render import render_text
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.syntax.parser import parse
from linnet.types import DTYPES
from linnet.workspace import Workspace

HERE = Path(__file__).resolve().parent
LINNET = HERE.parent / "src/linnet"
LLAMA = LINNET / "zoo/families/llama"
TARGETS = [
    *(LLAMA / "src" / name for name in ("layer.linnet", "lib.linnet", "rope.linnet")),
    *(
        LINNET / "std/nn" / f"{name}.linnet"
        for name in ("attention", "decoder", "linear", "mlp", "norm", "parallel", "rope", "softmax")
    ),
]
VALID = HERE / "mutants_valid.txt"
EACH = 9  # mutants of one kind in one file, spread over it


@dataclass(frozen=True)
class Mutant:
    """One mistake: `place` is the item and method it is in."""

    path: Path
    kind: str
    place: str
    old: str
    new: str
    edits: tuple[Edit, ...]

    @property
    def key(self) -> str:
        """What names it in the list of valid ones; it holds while its line does."""
        return f"{self.kind} | {self.path.stem} {self.place} | {self.old} => {self.new}"

    @property
    def text(self) -> str:
        return edited(self.edits[0].span.source.text, self.edits)


# ---------------------------------------------------------------- where in the tree


@dataclass(frozen=True)
class At:
    """A node with those above it, the file first."""

    node: tree.Syntax
    above: tuple[tree.Syntax, ...]

    @property
    def place(self) -> str:
        names = [
            n.name.text
            for n in (*self.above, self.node)
            if isinstance(n, (tree.Fn, tree.Block, tree.Struct, tree.Const))
        ]
        return ".".join(names) or "-"

    def inside(self, *kinds: type) -> bool:
        return any(isinstance(n, kinds) for n in self.above)

    def generics(self) -> list[tree.GenericParam]:
        owners = [n for n in (*self.above, self.node) if isinstance(n, (tree.Fn, tree.Block))]
        return [g for owner in owners for g in owner.generics]


def walk(node: tree.Syntax, above: tuple[tree.Syntax, ...] = ()) -> Iterator[At]:
    yield At(node, above)
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, tree.Syntax):
                yield from walk(child, (*above, node))


# ---------------------------------------------------------------- mistakes

Change = tuple[str, str, tuple[tuple[Span, str], ...]]  # old and new as shown, the edits
Kind = Callable[[At], Iterator[Change]]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def replaced(span: Span, new: str) -> Change:
    return span.text, new, ((span, new),)


def swaps(items: Sequence[tree.Syntax], whole: Span) -> Iterator[Change]:
    """Each two neighbours of a list change places."""
    for a, b in pairwise(items):
        if a.span.text != b.span.text:
            edits = ((a.span, b.span.text), (b.span, a.span.text))
            yield whole.text, _after(whole, edits), edits


def without(items: Sequence[tree.Syntax], i: int, whole: Span) -> Change:
    """One of a list is missing."""
    span = items[i].span
    if i + 1 < len(items):
        gone = Span(span.source, span.start, items[i + 1].span.start)
    elif i > 0:
        gone = Span(span.source, items[i - 1].span.end, span.end)
    else:
        gone = span
    return whole.text, _after(whole, ((gone, ""),)), ((gone, ""),)


def _after(whole: Span, edits: Sequence[tuple[Span, str]]) -> str:
    text = whole.source.text
    new = edited(text, (Edit(span, new) for span, new in edits))
    return new[whole.start : whole.end + len(new) - len(text)]


def called(node: tree.Syntax, *names: str) -> bool:
    return (
        isinstance(node, tree.Call)
        and isinstance(node.callee, tree.Name)
        and (not names or node.callee.text in names)
    )


@kind
def axes_of_a_permute_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if called(n, "permute") and isinstance(n, tree.Call):
        order = n.args[1].value
        if isinstance(order, tree.ShapeLit):
            yield from swaps(order.items, n.span)


@kind
def axes_of_a_shape_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if called(n, "reshape", "broadcast_to", "fill") and isinstance(n, tree.Call):
        for arg in n.args:
            if isinstance(arg.value, tree.ShapeLit):
                yield from swaps(arg.value.items, n.span)


@kind
def axes_of_a_type_swapped(at: At) -> Iterator[Change]:
    if isinstance(at.node, tree.TensorTypeExpr):
        yield from swaps(at.node.shape, at.node.span)


@kind
def an_axis_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, (tree.TensorTypeExpr, tree.ShapeLit)) and not at.inside(tree.Reduction):
        items = n.shape if isinstance(n, tree.TensorTypeExpr) else n.items
        if len(items) > 1:
            yield without(items, len(items) // 2, n.span)


@kind
def a_cast_dropped(at: At) -> Iterator[Change]:
    if called(at.node, "cast") and isinstance(at.node, tree.Call):
        yield replaced(at.node.span, at.node.args[0].value.span.text)


@kind
def a_call_dropped(at: At) -> Iterator[Change]:
    if called(at.node, "permute", "reshape") and isinstance(at.node, tree.Call):
        yield replaced(at.node.span, at.node.args[0].value.span.text)


@kind
def a_clause_dropped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, (tree.Fn, tree.Block)) and n.where:
        for i, clause in enumerate(n.where):
            old, _, edits = without(n.where, i, clause.span)
            if len(n.where) == 1:
                text = clause.span.source.text
                start = text.rindex("where", 0, clause.span.start)
                edits = ((Span(clause.span.source, start, clause.span.end), ""),)
            yield f"where {old}", "", edits


@kind
def a_division_dropped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Binary) and n.op in "/%" and _in_shape(at):
        yield replaced(n.span, n.left.span.text)


@kind
def another_divisor(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Binary) and n.op == "/" and _in_shape(at):
        names = [g.name.text for g in at.generics() if g.kind.text == "Dim"]
        if isinstance(n.right, tree.Name) and n.right.text in names and len(names) > 2:
            other = names[(names.index(n.right.text) + 1) % len(names)]
            if other != n.left.span.text:
                new = f"{n.left.span.text} / {other}"
                yield n.span.text, new, ((n.right.span, other),)


def _in_shape(at: At) -> bool:
    return at.inside(tree.TensorTypeExpr, tree.ShapeLit, tree.NamedType) and not at.inside(
        tree.Reduction
    )


@kind
def off_by_one(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Slice):
        for part in (n.start, n.stop):
            if part is not None:
                edit = (part.span, f"{part.span.text} + 1")
                yield n.span.text, _after(n.span, (edit,)), (edit,)
    elif isinstance(n, tree.Index):
        for item in n.items:
            if isinstance(item, tree.Binary) and item.op == "-":
                edit = (item.span, item.left.span.text)
                yield n.span.text, _after(n.span, (edit,)), (edit,)


@kind
def another_index(at: At) -> Iterator[Change]:
    n = at.node
    if not isinstance(n, tree.Index):
        return
    letters = [
        i.text
        for frame in (*at.above, n)
        if isinstance(frame, (tree.IndexLet, tree.Reduction))
        for i in (frame.outputs if isinstance(frame, tree.IndexLet) else frame.indices)
        if isinstance(i, tree.Ident)
    ]
    for item in n.items:
        if isinstance(item, tree.Name) and item.text in letters and len(letters) > 1:
            other = letters[(letters.index(item.text) + 1) % len(letters)]
            yield n.span.text, _after(n.span, ((item.span, other),)), ((item.span, other),)


@kind
def indices_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Index) and at.inside(tree.IndexLet):
        yield from swaps(n.items, n.span)


@kind
def arguments_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Call) and not called(n, "min", "max"):
        plain = [a for a in n.args if a.name is None]
        yield from swaps(plain, n.span)


@kind
def an_argument_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Call) and n.args:
        yield without(n.args, len(n.args) - 1, n.span)


@kind
def generic_arguments_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, (tree.Call, tree.NamedType)) and n.generics:
        yield from swaps(n.generics, n.span)


@kind
def a_generic_argument_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, (tree.Call, tree.NamedType)) and n.generics and len(n.generics) > 1:
        yield without(n.generics, 0, n.span)
        yield without(n.generics, len(n.generics) - 1, n.span)


@kind
def some_forgotten(at: At) -> Iterator[Change]:
    if isinstance(at.node, tree.Some):
        yield replaced(at.node.span, at.node.value.span.text)


@kind
def another_dtype(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.TensorTypeExpr):
        other = {"f32": "f16", "i32": "i64", "i64": "i32", "bool": "i32"}.get(n.dtype.text, "f32")
        yield n.span.text, _after(n.span, ((n.dtype.span, other),)), ((n.dtype.span, other),)
    elif called(n, "cast", "fill", "iota") and isinstance(n, tree.Call) and n.generics:
        old = n.generics[0].span
        new = {"f32": "f64", "i32": "f32", "i64": "f32"}.get(old.text, "f32")
        yield n.span.text, _after(n.span, ((old, new),)), ((old, new),)


@kind
def another_dimension(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Name) and at.inside(tree.TensorTypeExpr, tree.ShapeLit):
        names = [g.name.text for g in at.generics() if g.kind.text == "Dim" and not g.pack]
        if n.text in names and len(names) > 1:
            other = names[(names.index(n.text) + 1) % len(names)]
            whole = next(
                a.span
                for a in reversed(at.above)
                if isinstance(a, (tree.TensorTypeExpr, tree.ShapeLit))
            )
            yield whole.text, _after(whole, ((n.span, other),)), ((n.span, other),)


@kind
def the_other_head_count(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Name) and n.text in ("Heads", "KvHeads"):
        other = "KvHeads" if n.text == "Heads" else "Heads"
        whole = at.above[-1].span
        for above in reversed(at.above):
            if isinstance(
                above,
                (tree.TensorTypeExpr, tree.ShapeLit, tree.NamedType, tree.Call, tree.Relation),
            ):
                whole = above.span
                break
        yield whole.text, _after(whole, ((n.span, other),)), ((n.span, other),)


@kind
def the_word_return_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Return) and n.value is not None:
        yield replaced(n.span, n.value.span.text)


@kind
def the_return_forgotten(at: At) -> Iterator[Change]:
    if isinstance(at.node, tree.Return):
        yield replaced(at.node.span, "")


@kind
def another_axis_of_a_concat(at: At) -> Iterator[Change]:
    if called(at.node, "concat") and isinstance(at.node, tree.Call):
        for arg in at.node.args:
            if arg.name is not None:
                new = {"-1": "-2", "0": "1"}.get(arg.value.span.text, "0")
                edit = (arg.value.span, new)
                yield at.node.span.text, _after(at.node.span, (edit,)), (edit,)


@kind
def a_reduced_index_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Reduction):
        head = Span(n.span.source, n.span.start, n.body.span.start)
        if len(n.indices) > 1:
            yield without(n.indices, len(n.indices) - 1, head)
        else:
            yield replaced(n.span, n.body.span.text)


@kind
def an_output_index_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.IndexLet) and len(n.outputs) > 1:
        head = Span(n.span.source, n.span.start, n.value.span.start)
        yield without(n.outputs, len(n.outputs) - 1, head)


@kind
def outputs_swapped(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.IndexLet):
        head = Span(n.span.source, n.span.start, n.value.span.start)
        yield from swaps(n.outputs, head)


@kind
def a_name_misspelt(at: At) -> Iterator[Change]:
    n = at.node
    name = n.name if isinstance(n, (tree.Field, tree.UseName)) else n
    if isinstance(name, (tree.Name, tree.Ident)) and isinstance(
        n, (tree.Name, tree.Field, tree.UseName)
    ):
        text = name.text
        if len(text) > 3 and text not in DTYPES:
            new = text[: len(text) // 2] + text[len(text) // 2 + 1 :]
            yield replaced(name.span, new)


@kind
def a_let_forgotten(at: At) -> Iterator[Change]:
    if isinstance(at.node, (tree.Let, tree.IndexLet, tree.Var)):
        yield replaced(at.node.span, "")


@kind
def an_arm_forgotten(at: At) -> Iterator[Change]:
    if isinstance(at.node, tree.Match):
        for arm in at.node.arms:
            yield at.node.span.text, _after(at.node.span, ((arm.span, ""),)), ((arm.span, ""),)


@kind
def a_var_that_is_a_let(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Var):
        word = Span(n.span.source, n.span.start, n.span.start + 3)
        yield n.span.text, f"let{n.span.text[3:]}", ((word, "let"),)


@kind
def an_import_forgotten(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.Use):
        yield replaced(n.span, "")


@kind
def an_integer_for_a_float(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.IntLit) and not at.inside(tree.TensorTypeExpr, tree.ShapeLit):
        yield replaced(n.span, f"{n.span.text}.5")


@kind
def another_member_array(at: At) -> Iterator[Change]:
    n = at.node
    if isinstance(n, tree.For) and n.stop is None:
        old = n.start.span
        yield replaced(old, f"0..{old.text}")


# ---------------------------------------------------------------- all of them


def mutants(*, everything: bool = False, every: int = 1) -> list[Mutant]:
    """Different texts only, in the order of files, kinds and places; at most EACH of a kind.

    `every` takes only each so many of them.
    """
    out: list[Mutant] = []
    for path in TARGETS:
        source = Source(path.name, path.read_text(encoding="utf-8"))
        nodes = list(walk(parse(source, Findings())))
        texts = {source.text}
        for name, make in KINDS.items():
            found: list[Mutant] = []
            for at in nodes:
                for old, new, edits in make(at):
                    each = tuple(Edit(span, text) for span, text in edits)
                    one = Mutant(path, name, at.place, _line(old), _line(new), each)
                    if one.text not in texts:
                        texts.add(one.text)
                        found.append(one)
            out += found if everything else _spread(found)[::every]
    return out


def _spread(found: list[Mutant]) -> list[Mutant]:
    count = min(EACH, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def _line(text: str) -> str:
    return " ".join(text.split())


class _Enough(Exception):
    """The module with the mistake has something to say."""


class Checker:
    """Checks mutants against what is kept of one check of the package as it is."""

    def __init__(self) -> None:
        self._workspace = Workspace()
        self._memo = Memo()
        found = check(self._workspace, self._workspace.open(LLAMA), memo=self._memo).findings.items
        assert not found, "the package itself is fine"

    def findings(self, mutant: Mutant) -> tuple[Diagnostic, ...]:
        """The errors, and W2001, in the mutant's module; if all is well there, in the others."""
        workspace = self._workspace.renewed({mutant.path: mutant.text})
        source = workspace.file(mutant.path).source
        seen: tuple[Diagnostic, ...] = ()

        def early(analysis: Analysis) -> None:
            nonlocal seen
            seen = _wrong(analysis)
            if seen:
                raise _Enough

        memo = dataclasses.replace(self._memo.glance(source, 0), only=None, early=early)
        try:
            return _wrong(check(workspace, workspace.open(LLAMA), memo=memo))
        except _Enough:
            return seen


def _wrong(analysis: Analysis) -> tuple[Diagnostic, ...]:
    found = analysis.findings.sorted()
    errors = tuple(d for d in found if d.severity == "error")
    return errors or tuple(d for d in found if d.code == "W2001")


def valid() -> dict[str, str]:
    """The reason why each of these mutants is a program that means something."""
    reasons: dict[str, str] = {}
    reason: list[str] = []
    open_ = False
    for line in VALID.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("# "):
            reason = [*(reason if open_ else ()), line[2:]]
            open_ = True
        elif line.strip():
            assert reason and line not in reasons, line
            reasons[line] = " ".join(reason)
            open_ = False
    return reasons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true", help="every mutant, not some of each kind")
    parser.add_argument("--show", type=int, metavar="N", help="print the findings of every Nth")
    parser.add_argument("--many", type=int, metavar="N", help="print those with N errors or more")
    parser.add_argument("--kind", default="", help="only kinds that hold this text")
    args = parser.parse_args()
    known = valid()
    checker = Checker()
    counts: Counter[int] = Counter()
    kinds: dict[str, Counter[bool]] = {}
    unknown: list[str] = []
    for i, mutant in enumerate(m for m in mutants(everything=args.all) if args.kind in m.kind):
        found = checker.findings(mutant)
        counts[len(found)] += 1
        kinds.setdefault(mutant.kind, Counter())[bool(found)] += 1
        if bool(found) == (mutant.key in known):
            unknown.append(mutant.key)
        many = args.many is not None and len(found) >= args.many
        if many or (args.show is not None and i % args.show == 0 and found):
            print(f"---- {mutant.key}\n{render_text(found)}\n")
    for name, count in kinds.items():
        print(f"{count[True]:5} found {count[False]:4} not  {name}")
    print("findings of one mutant:", dict(sorted(counts.items())))
    print(*unknown, sep="\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
