"""A graph and its parameters as a package: blocks, functions, checked text, weights, bindings."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linnet.check import check
from linnet.diagnostics import Diagnostic, ExportError
from linnet.porting.generic import Generic, Instance, generic_blocks
from linnet.porting.graph import Body, Graph, Node, topological, within
from linnet.porting.helpers import APPROXIMATE, HELPERS, texts_of
from linnet.porting.members import ANY, METHOD, Branch, Member, branch_of
from linnet.porting.names import Names, singular, type_name, value_name
from linnet.porting.outline import outlined, parts
from linnet.porting.recognise import recognised
from linnet.porting.write import Module, body_dims, dims_of, function_text, generics_text, type_text
from linnet.syntax.format import format as formatted
from linnet.weights import write_bindings
from linnet.weights.safetensors import write_safetensors
from linnet.workspace import LANGUAGE, MANIFEST, Workspace

WEIGHTS = "model.safetensors"
BINDINGS = "bindings.json"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A package that was written: `linnet.torch.load(source, weights=..., bindings=...)` takes it.

    source: the package's folder.
    module, root, entry: names of the module, its root block and that block's entry.
    weights: the file of the arrays, None where there were none to write.
    bindings: the file that says which tensor fills each parameter.
    notes: what was chosen, approximated or left out, a sentence each.
    """

    source: Path
    module: str
    root: str
    entry: str
    weights: Path | None
    bindings: Path
    notes: tuple[str, ...]


@dataclass(slots=True)
class Imported:
    """A program of another framework: its inputs, members, results, and what is known of sizes."""

    graph: Graph
    inputs: list[Node]
    members: list[Member]
    nodes: dict[Member, Node]
    results: list[Node]
    facts: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    written: list[Member] = field(default_factory=list)  # states, whose next are the last results


def export(
    program: Imported,
    output: str | Path,
    *,
    module_name: str | None,
    root_name: str,
    weights: str | Path | None,
    std_root: str | Path | None,
    entry: str = METHOD,
) -> ExportResult:
    """The program as a package in a folder that was not there, or was empty.

    Raises ExportError where the folder is not, a name cannot be one, or the text does not check;
    nothing is left behind then.
    """
    place = Path(output)
    module = _module_name(module_name, place)
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", root_name) or type_name(root_name) != root_name:
        raise ExportError(
            f"root_name {root_name!r} cannot be a block's name: a word in capitals such as `Model`"
        )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ExportError(f"{place}: is there already; give a folder that is new, or empty")
    reader = _Reader(program, root_name, entry)
    text = reader.text(module, ())
    problems = _findings(text, module, std_root)
    if problems and (sizes := dims_of([node.shape for node in program.inputs])):
        # A size of JAX is never 0, and only where that is needed it is said.
        text = reader.text(module, tuple(f"{name} > 0" for name in sizes))
        problems = _findings(text, module, std_root)
    if problems:
        told = "; ".join(f"{d.code} {d.message}" for d in problems[:5])
        raise ExportError(
            f"the source that was made of this program does not check, which is a limit of the "
            f"importer: {told}",
            tuple(problems),
        )
    arrays, bindings = reader.weights()
    written = _written(place, module, text, bindings, arrays, weights)
    notes = [*program.notes, *reader.notes]
    return ExportResult(
        place, module, root_name, entry, written, place / BINDINGS, tuple(dict.fromkeys(notes))
    )


def _module_name(wish: str | None, place: Path) -> str:
    if wish is None:
        return value_name(place.resolve().name)
    if value_name(wish) != wish:
        raise ExportError(
            f"module_name {wish!r} cannot be a module's name; `{value_name(wish)}` could be"
        )
    return wish


def _findings(text: str, module: str, std_root: str | Path | None) -> list[Diagnostic]:
    """What checking says of the text, as the package that it will be."""
    with tempfile.TemporaryDirectory() as folder:
        _write_source(Path(folder), module, text)
        analysis = check(Workspace(std_root=std_root), folder)
        return list(analysis.findings.sorted())


def _write_source(folder: Path, module: str, text: str) -> None:
    (folder / "src").mkdir()
    (folder / "src/lib.linnet").write_text(text, "utf-8", newline="\n")
    (folder / MANIFEST).write_text(
        f'[package]\nname = "{module}"\nversion = "0.1.0"\nlanguage = "{LANGUAGE}"\n', "utf-8"
    )


def _written(
    place: Path,
    module: str,
    text: str,
    bindings: Mapping[str, str],
    arrays: Mapping[str, Any],
    weights: str | Path | None,
) -> Path | None:
    """Everything beside its place, then moved there at once."""
    file = Path(weights) if weights is not None else place / WEIGHTS
    inside = file.resolve().parent == place.resolve()
    made: list[Path] = []
    folder: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        _write_source(folder, module, text)
        write_bindings(folder / BINDINGS, bindings)
        if arrays:
            target = folder / file.name if inside else file
            if not inside and not file.exists():
                made.append(file)
            write_safetensors(target, arrays)
        os.chmod(folder, 0o755)
        if place.exists():
            place.rmdir()
        os.replace(folder, place)
    except BaseException as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            where = error.filename or place
            raise ExportError(f"{where}: {error.strerror}; nothing was written") from error
        raise
    return file if arrays else None


class _Reader:
    """The module's text, from what the program is."""

    def __init__(self, program: Imported, root: str, entry: str) -> None:
        self.program = program
        self.root = root
        self.entry = entry
        self.notes: list[str] = []
        graph = program.graph
        self._keep_used()
        self.tree = branch_of(self.kept)
        paths = {member: path for path, member in self.tree.leaves()}
        self.paths = paths
        placed = {
            program.nodes[member]: graph.node(
                "param", (), [path], shape=member.shape, dtype=member.dtype, name=""
            )
            for member, path in paths.items()
        }
        self.states: dict[Node, str] = {}
        for member, path in paths.items():
            if member.kind == "state":  # the root's own: blocks below are given it as a value
                name = value_name(member.tensor.rpartition(".")[2])
                made = graph.node(
                    "input", (), [path[0]], shape=member.shape, dtype=member.dtype, name=name
                )
                self.states[made] = path[0]
                placed[program.nodes[member]] = made
        results = _placed(graph, program.results, placed)
        results = recognised(graph, results, self.notes)
        self.results = outlined(graph, self.tree, results)
        _settle(self.tree, (), {own[:-1] for own, node in parts(self.results) if node.op == "walk"})

    def _keep_used(self) -> None:
        used = set(within(self.program.results))
        used.update(self.program.nodes[member] for member in self.program.written)
        unused = [m for m in self.program.members if self.program.nodes[m] not in used]
        self.kept = [m for m in self.program.members if self.program.nodes[m] in used]
        if unused:
            names = ", ".join(f"`{member.tensor}`" for member in unused)
            self.notes.append(f"nothing reads {names}: left out")

    def text(self, name: str, facts: tuple[str, ...]) -> str:
        """The formatted text of the module."""
        members = frozenset(name for path, _ in self.tree.leaves() for name in path)
        members |= _arrays(self.tree)
        module = Module(Names(), facts=(*self.program.facts, *facts), members=members)
        module.names.taken.update({self.root, *HELPERS})
        self._reserve_items(module)
        blocks = _Blocks(self, module)
        root = blocks.root()
        for helper in sorted(module.helpers & APPROXIMATE.keys()):
            self.notes.append(APPROXIMATE[helper])
        imports = sorted(module.imports)
        uses = {m: sorted(i for k, i in imports if k == m) for m, _ in imports}
        lines = [f"module {name}", ""]
        lines += [f"use {m}::{{{', '.join(items)}}}" for m, items in uses.items()]
        texts = [*texts_of(module.helpers), *(t for _, t in module.functions.values())]
        return formatted(
            "\n".join(lines) + "\n\n" + "\n\n".join([*texts, *blocks.texts, root]) + "\n"
        )

    def _reserve_items(self, module: Module) -> None:
        """No local is called as what is imported."""
        for node in within(self.results):
            if node.op == "call":
                module.names.taken.add(node.data[0].rpartition("::")[2])

    def weights(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The arrays by their names in the file, and the tensor of each path."""
        arrays: dict[str, Any] = {}
        bindings: dict[str, str] = {}
        for member, path in self.paths.items():
            if member.kind == "state":
                continue
            bindings[".".join(_positions(self.tree, path))] = member.tensor
            if member.array is not None:
                arrays[member.tensor] = np.asarray(member.array)
        return arrays, bindings


def _placed(graph: Graph, results: Sequence[Node], known: Mapping[Node, Node]) -> list[Node]:
    """The results with parameters by their paths, in bodies of loops too."""
    new = dict(known)
    for node in topological(results):
        if node not in new:
            data = [
                Body(tuple(_placed(graph, item.results, known))) if isinstance(item, Body) else item
                for item in node.data
            ]
            inputs = [new[each] for each in node.inputs]
            new[node] = graph.node(
                node.op, inputs, data, shape=node.shape, dtype=node.dtype, name=node.name
            )
    return [new[node] for node in results]


def _arrays(tree: Branch) -> set[str]:
    """The names of all arrays of blocks."""
    below = [_arrays(child) for child in tree.children.values() if isinstance(child, Branch)]
    return {*tree.arrays, *tree.alike}.union(*below)


def _settle(branch: Branch, path: tuple[str, ...], walked: Collection[tuple[str, ...]]) -> None:
    """Arrays that no loop walks, since nothing asked for one, are none."""
    for array in list(branch.arrays):
        if (*path, array) not in walked:
            branch.alike[array] = branch.arrays.pop(array)
    for own, child in _blocks_of(branch, path):
        _settle(child, own, walked)


def _positions(tree: Branch, path: Sequence[str]) -> list[str]:
    """The path as the program has it, elements of arrays by their position."""
    out: list[str] = []
    at: Any = tree
    for name in path:
        if isinstance(at, Branch):
            arrays = {**at.arrays, **at.indexed}
            array = next((a for a, names in arrays.items() if name in names), None)
            if array is None:
                out.append(name)
                at = at.children[name]
            else:  # what is below is as in the first, which stands for all
                out += [array, str(arrays[array].index(name))]
                at = at.children[arrays[array][0]]
    return out


class _Blocks:
    """The text of each kind of block, those that are the same written once."""

    def __init__(self, reader: _Reader, module: Module) -> None:
        self.reader = reader
        self.module = module
        self.methods: dict[tuple[str, ...], list[Node]] = {}
        for path, node in parts(reader.results):
            self.methods.setdefault(path, []).append(node)
        self.known: dict[str, str] = {}
        self.texts: list[str] = []
        self.multiplied = _multiplied(reader.results)
        instances = [
            Instance(
                branch,
                self.methods[path][0].data[2] if path in self.methods else None,
                self.multiplied.get((*path, "weight"), False),
            )
            for path, branch in _plain_blocks(reader.tree, ())
        ]
        sizes = dims_of([node.shape for node in reader.program.inputs])
        self.generic = {
            key: (made, given)
            for made in generic_blocks(reader.program.graph, instances, sizes)
            for key, given in made.arguments.items()
        }
        self.named: dict[int, str] = {}  # generic blocks that are written

    def root(self) -> str:
        program = self.reader.program
        members, taken = self.members(self.reader.tree, ())
        inputs = [(node, node.data[0]) for node in program.inputs]
        dims, _ = body_dims(
            [node.shape for node in program.inputs], Body(tuple(self.reader.results))
        )
        entry = function_text(
            self.module,
            f"entry {self.reader.entry}",
            inputs,
            Body(tuple(self.reader.results)),
            dims,
            (),
            taken,
            [self.reader.paths[member][0] for member in program.written],
            self.reader.states,
        )
        body = "\n\n".join([*(["\n".join(members)] if members else []), entry])
        return f"pub block {self.reader.root} {{\n{body}\n}}"

    def members(self, branch: Branch, path: tuple[str, ...]) -> tuple[list[str], set[str]]:
        """Declarations, blocks below written first; and the names that they take."""
        walked = {names[0]: array for array, names in branch.arrays.items()}
        within = {name for names in branch.arrays.values() for name in names}
        kinds: dict[str, str] = {}
        for name, child in branch.children.items():
            if isinstance(child, Branch) and name not in within:
                kinds[name] = self.block(child, (*path, name), name)
            elif name in walked:
                array = walked[name]
                kinds[name] = self.block(child, (*path, array, ANY), singular(array))  # type: ignore[arg-type]
        branch.indexed = {
            array: names
            for array, names in branch.alike.items()
            if len({kinds[name] for name in names}) == 1
            and all((*path, name) in self.methods for name in names)
        }
        for array, names in branch.indexed.items():
            for at, name in enumerate(names):
                self.module.indexed[*path, name] = array, at
        arrays = {names[0]: (array, len(names)) for array, names in branch.indexed.items()}
        arrays |= {names[0]: (array, len(names)) for array, names in branch.arrays.items()}
        within |= {name for names in branch.indexed.values() for name in names}
        lines: list[str] = []
        taken = {array for array, _ in arrays.values()}
        for name, child in branch.children.items():
            if isinstance(child, Member):
                lines.append(f"{child.kind} {name}: {type_text(child.shape, child.dtype)}")
            elif name in arrays:
                array, count = arrays[name]
                lines.append(f"sub {array}: [{kinds[name]}; {count}]")
                continue
            elif name in within:
                continue
            else:
                lines.append(f"sub {name}: {kinds[name]}")
            taken.add(name)
        return lines, taken

    def block(self, branch: Branch, path: tuple[str, ...], name: str) -> str:
        """The block's type."""
        single = re.sub(r"_?\d+$", "", name) or name
        wish = self.kind(branch, path) or (singular(single) if single != name else single)
        if id(branch) in self.generic:
            made, given = self.generic[id(branch)]
            if id(made) not in self.named:
                self.named[id(made)] = self.module.names.fresh(type_name(wish), "")
                self.texts.append(self._generic(branch, made, self.named[id(made)]))
            return f"{self.named[id(made)]}<{', '.join(map(str, given))}>"
        members, taken = self.members(branch, path)
        methods = [
            self._method(node.data[2], path, taken, ()) for node in self.methods.get(path, [])
        ]
        text = "\n\n".join(["\n".join(members), *methods])
        if text not in self.known:
            self.known[text] = self.module.names.fresh(type_name(wish), "")
            self.texts.append(f"block {self.known[text]} {{\n{text}\n}}")
        return self.known[text]

    def kind(self, branch: Branch, path: tuple[str, ...]) -> str:
        """What a block of such parameters is called everywhere; "" where its place names it."""
        match [(name, child) for name, child in branch.children.items() if name != "bias"]:
            case [("weight", Member(shape=(_, _)))]:
                return "Linear" if (*path, "weight") in self.multiplied else ""
            case [("scale" | "weight", Member(shape=(_,)))]:
                return "Norm"
            case [("embedding", Member())]:
                return "Embedding"
        return ""

    def _generic(self, branch: Branch, made: Generic, name: str) -> str:
        members = [
            f"{child.kind} {own}: {type_text(made.shapes[own], child.dtype)}"
            for own, child in branch.children.items()
            if isinstance(child, Member)
        ]
        methods: list[str] = []
        if made.body is not None:
            methods.append(self._method(made.body, (), set(branch.children), made.names))
        text = "\n\n".join(["\n".join(members), *methods])
        return f"block {name}{generics_text(made.names)} {{\n{text}\n}}"

    def _method(
        self, body: Body, path: tuple[str, ...], taken: set[str], generics: Sequence[str]
    ) -> str:
        """A block's method; the generics that are the block's own are not its."""
        args = sorted(
            (node for node in topological(body.results) if node.op == "arg"),
            key=lambda node: node.data[0],
        )
        dims, _ = body_dims([node.shape for node in args], body)
        own = [dim for dim in dims if dim not in generics]
        names = {*taken, *generics, METHOD}
        given = [(node, node.name) for node in args]
        return function_text(self.module, f"pub fn {METHOD}", given, body, own, path, names)


def _multiplied(results: Sequence[Node]) -> dict[tuple[str, ...], bool]:
    """The parameters of products, and whether their last axis is the one that is summed over."""
    return {
        x.data[0]: letters[-1] not in node.data[2]
        for node in within(results)
        if node.op == "dot"
        for x, letters in zip(node.inputs, node.data[:2], strict=True)
        if x.op == "param"
    }


def _plain_blocks(
    branch: Branch, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Branch]]:
    """Every block that has parameters alone, by its path; one for each array."""
    for own, child in _blocks_of(branch, path):
        if all(isinstance(each, Member) for each in child.children.values()):
            yield own, child
        yield from _plain_blocks(child, own)


def _blocks_of(branch: Branch, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Branch]]:
    """The blocks below a block, by their paths; the first of each array for all."""
    walked = {names[0]: array for array, names in branch.arrays.items()}
    others = {name for names in branch.arrays.values() for name in names[1:]}
    for name, child in branch.children.items():
        if isinstance(child, Branch) and name not in others:
            yield ((*path, walked[name], ANY) if name in walked else (*path, name)), child
