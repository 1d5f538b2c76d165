"""Warnings about what a correct program declares and never uses."""

from __future__ import annotations

from collections.abc import Sequence

from linnet.check.analysis import Local, Module
from linnet.check.scope import Checking, Scope
from linnet.diagnostics import Edit, Help
from linnet.source import Span
from linnet.syntax import tree


def warn(checking: Checking) -> None:
    """W1001 to W1003, in every module that was checked."""
    for module in checking.modules.values():
        _imports(checking, module)
    for local in checking.all_locals:
        if local not in checking.used_locals:
            _local(checking, local)
    used = {member for _, member in checking.used_members}
    for info in checking.analysis.blocks.values():
        scope = Scope(checking, info.module)
        for name, member in info.members.items():
            if member.member not in used and not name.startswith("_"):
                scope.report(
                    "W1003",
                    f"the {member.member.kind} `{name}` of `{info.block.name.text}` is never used",
                    member.member.name,
                )


def _imports(checking: Checking, module: Module) -> None:
    scope = Scope(checking, module)
    for use in module.tree.uses:
        names: list[tuple[tree.Ident, tree.Use | tree.UseName]]
        if use.names is None:
            names = [(use.path.parts[-1], use)]
        else:
            names = [(n.alias or n.name, n) for n in use.names]
        unused = [
            (name, at)
            for name, at in names
            if (module, name.text) not in checking.used_imports and not name.text.startswith("_")
        ]
        for name, at in unused:
            if len(unused) == len(names):
                help = Help("remove the line", (Edit(_line(use.span), ""),), safe=True)
            else:
                listed = [each for _, each in names]
                gone = _with_comma(listed, listed.index(at))
                help = Help(f"remove `{at.span.text}`", (Edit(gone, ""),), safe=True)
            scope.report("W1001", f"the import `{name.text}` is never used", name, help=help)


def _line(span: Span) -> Span:
    """The span with the line end after it."""
    text = span.source.text
    end = span.end + 1 if text[span.end : span.end + 1] == "\n" else span.end
    return Span(span.source, span.start, end)


def _with_comma(listed: Sequence[tree.Syntax], i: int) -> Span:
    """A name of a list and what separates it from the next one, or the one before."""
    span = listed[i].span
    if i + 1 < len(listed):
        return Span(span.source, span.start, listed[i + 1].span.start)
    return Span(span.source, listed[i - 1].span.end, span.end)


def _local(checking: Checking, local: Local) -> None:
    if local.kind in ("param", "loop", "element") or local.name.startswith("_"):
        return
    decl = local.decl
    at = decl.name if isinstance(decl, (tree.IndexLet, tree.Var, tree.NamePattern)) else decl
    checking.findings.add(
        "W1002",
        f"`{local.name}` is never used",
        at.span,
        help=Help(f"call it `_{local.name}` to keep it", (Edit(at.span, f"_{local.name}"),)),
    )
