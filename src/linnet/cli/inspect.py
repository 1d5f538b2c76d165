"""`linnet inspect`: what Linnet makes of a source, from tokens to the nodes of its functions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from linnet.cli import ERRORS, OK, USAGE, color
from linnet.cli.source import (
    Opened,
    add_numerics,
    add_optionals,
    add_source_arguments,
    opened,
    presence,
    source_path,
)
from linnet.core.passes import PASSES, optimize
from linnet.core.print import program_text
from linnet.diagnostics import Findings, PlanError
from linnet.ir import Function, Program, Row, broken, function_data, parameters_data, place, totals
from linnet.render import render_text
from linnet.source import Source
from linnet.syntax import lex, parse, tree
from linnet.syntax.depth import deep_stack
from linnet.workspace import Workspace

WIDTH = 100
EPILOG = "Without one of these: a summary of blocks, entries, functions and parameters."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tokens", action="store_true", help="each token with its place")
    what.add_argument("--ast", action="store_true", help="the syntax tree, nodes with their places")
    what.add_argument(
        "--entries", action="store_true", help="what can be run: signatures, clauses, state"
    )
    what.add_argument(
        "--parameters",
        action="store_true",
        help="params, buffers and states of the root block; concrete under --bind",
    )
    what.add_argument("--core-ir", action="store_true", help="the nodes of every function")
    parser.add_argument("-O", dest="passes", action="store_true", help="--core-ir after all passes")
    parser.add_argument(
        "--after", metavar="PASS", help="--core-ir after this pass and those before"
    )
    parser.add_argument("--spans", action="store_true", help="--core-ir with places in the source")
    add_numerics(parser, "exact", "the policy that -O and --after run under (default: exact)")
    add_optionals(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="--entries, --parameters or the summary as one JSON document",
    )
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    core = args.core_ir or args.passes or args.after
    if args.json and (args.tokens or args.ast or core):
        print(
            "linnet inspect: --json is for --entries, --parameters and the summary", file=sys.stderr
        )
        return USAGE
    if args.tokens or args.ast:
        return _files(args)
    found = opened(args)
    if core:
        if not args.core_ir:
            print("linnet inspect: -O and --after are for --core-ir", file=sys.stderr)
            return USAGE
        print(_core(args, found), end="")
    elif args.parameters:
        rows = found.program.parameters(found.given)
        print(_json(parameters_data(rows)) if args.json else "\n".join(_parameters(rows)))
    elif args.entries:
        chosen = [f for f in found.program.entries() if not args.entry or f.name in args.entry]
        print(
            _json({"entries": [function_data(f) for f in chosen]}) if args.json else _text(chosen)
        )
    elif args.json:
        print(_json(found.program.describe(found.given)))
    else:
        print("\n".join(_summary(found.program)))
    return OK


def _json(document: dict[str, Any]) -> str:
    return json.dumps({"version": 1, **document}, indent=2)


# ---------------------------------------------------------------- tokens and trees


def _files(args: argparse.Namespace) -> int:
    """Tokens or trees of a file or of all files of a package, whatever mistakes are in them."""
    workspace = Workspace(std_root=args.std)
    path = source_path(args)
    files = workspace.files_of(workspace.open(path)) if path.is_dir() else (workspace.file(path),)
    findings = Findings()
    for number, file in enumerate(files):
        if len(files) > 1:
            print("\n" * (number > 0) + f"// {file.source.name}")
        lines = _tokens if args.tokens else _tree
        for line in lines(file.source, findings):
            print(line)
    for diagnostic in findings.sorted():
        print(render_text(diagnostic, color=color(args, sys.stderr)), end="\n\n", file=sys.stderr)
    return ERRORS if findings.errors else OK


def _tokens(source: Source, findings: Findings) -> Iterator[str]:
    tokens, _ = lex(source, findings)
    for token in tokens:
        kind = "" if token.kind == token.text else token.kind
        value = (
            "" if token.value is None or str(token.value) == token.text else f" = {token.value!r}"
        )
        shown = " ".join(token.text.split("\n"))
        yield f"{_at(source, token.start):<8} {kind:<9} {shown}{value}".rstrip()


def _tree(source: Source, findings: Findings) -> Iterator[str]:
    file = parse(source, findings)
    with deep_stack():
        yield from _node(file, "", WIDTH)


def _at(source: Source, index: int) -> str:
    position = source.position(index)
    return f"{position.line}:{position.column}"


def _node(node: tree.Syntax, label: str, width: int) -> Iterator[str]:
    """`(Kind line:column values children)`, on one line where it fits, else indented."""
    head = f"{label}({type(node).__name__} {_at(node.span.source, node.span.start)}"
    parts: list[tuple[str, list[tree.Syntax]]] = []
    for field in fields(node):
        value = getattr(node, field.name)
        match value:
            case tree.Ident() | tree.Path():
                head += f" {field.name}={value.text}"
            case tree.Syntax():
                parts.append((f"{field.name}=", [value]))
            case tuple() if value and field.name != "comments":
                parts.append((f"{field.name}=", list(value)))
            case bool():
                head += f" {field.name}" * value
            case str() | int() | float() if value != "":
                head += (
                    f" {field.name}={value!r}" if field.name in ("value", "docs") else f" {value}"
                )
            case _:
                pass
    inner = [
        list(_node(child, label if len(children) == 1 else "", width - 2))
        for label, children in parts
        for child in children
    ]
    whole = " ".join([head, *(line for lines in inner for line in lines)]) + ")"
    if len(whole) <= width and all(len(lines) == 1 for lines in inner):
        yield whole
        return
    yield head
    at = 0
    for label, children in parts:
        several = len(children) > 1
        if several:
            yield f"  {label}["
        for _ in children:
            yield from (f"  {'  ' * several}{line}" for line in inner[at])
            at += 1
        if several:
            yield "  ]"
    yield ")"


# ---------------------------------------------------------------- programs


def _core(args: argparse.Namespace, found: Opened) -> str:
    names = [step.name for step in PASSES]
    if args.after is not None and args.after not in names:
        raise PlanError(
            f"--after {args.after}: no such pass; they are, in order, {', '.join(names)}"
        )
    program = replace(found.program, optimize=False).lower(
        found.bound("inspect"),
        entries=found.entries,
        main=found.main,
        present=presence(args, found.program),
    )
    if args.passes or args.after:
        program = optimize(program, args.numerics, after=args.after)
    return program_text(program, spans=args.spans)


def _text(entries: list[Function]) -> str:
    return "\n\n".join(map(str, entries)) if entries else "no entries"


def _parameters(rows: tuple[Row, ...]) -> Iterator[str]:
    if not rows:
        yield "no parameters"
        return
    kinds = max(len(row.kind) for row in rows)
    paths = max(len(row.path) for row in rows)
    for row in rows:
        repeat = "".join(f" x {length}" for length in row.repeat)
        yield f"{row.kind:<{kinds}}  {row.path:<{paths}}  {row.type}{repeat}"
    found = totals(rows)
    if found is None:
        yield ""
        yield "--bind NAME=VALUE gives sizes; with all of them, totals"
        return
    yield ""
    for kind, total in found.items():
        yield f"{kind}: {total['elements']:,} elements, {total['bytes']:,} bytes"


def _summary(program: Program) -> Iterator[str]:
    own, traits = program.own_blocks(), program.own_traits()
    root = f", root block {program.root}" if program.root else ""
    yield f"module {program.name}{root}"
    for heading, listed in (("traits", traits), ("blocks", own)):
        if listed:
            yield from ("", heading)
        for block in listed:
            generics = f"<{', '.join(g.name for g in block.generics)}>" if block.generics else ""
            counts = [] if heading == "traits" else [_count(len(block.members), "member")]
            counts += [_count(len(block.methods), "method"), *(f"impl {t}" for t in block.traits)]
            yield f"  {block.name}{generics}: {', '.join(counts)}  ({place(block.span)})"
    entries = program.entries()
    if entries:
        yield from ("", "entries")
    for entry in entries:
        owner = f"{entry.block}." if entry.block and not program.root else ""
        yield from _indented(owner + entry.signature.removeprefix("entry "))
        if entry.writes:
            yield f"      writes {', '.join(entry.writes)}"
    free = [f for f in program.functions if f.kind != "entry"]
    if free:
        yield from ("", "functions")
    for function in free:
        yield from _indented(("pub " * function.public) + function.signature)
    if program.root:
        rows = program.parameters()
        kinds = ("param", "buffer", "state")
        found = [_count(n, k) for k in kinds if (n := sum(row.kind == k for row in rows))]
        yield from ("", "parameters", f"  {', '.join(found) or 'none'} (--parameters lists them)")


def _indented(signature: str) -> Iterator[str]:
    """A signature below a heading, its parameters below one another where it is long."""
    yield from (f"  {line}" for line in broken(signature).split("\n"))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
