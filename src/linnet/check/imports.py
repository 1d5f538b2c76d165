"""What a name that means nothing was meant to be: an import, or the word of another language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from linnet.check.scope import Scope
from linnet.diagnostics import Edit, Help
from linnet.source import Source, Span
from linnet.syntax import tree
from linnet.workspace import ModuleFile

_PUBLIC = re.compile(r"^pub (\w+) (\w+)", re.MULTILINE)
_KINDS = {
    "call": ("fn", "op", "entry", "struct"),
    "type": ("block", "struct", "enum", "type"),
    "value": ("const", "enum"),
}
# Names of other tensor libraries: the dtype here, or the form to write.
_DTYPES = {
    "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32",
    "float64": "f64", "double": "f64", "int": "i32", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "long": "i64", "uint8": "u8", "byte": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "boolean": "bool", "size_t": "i64", "usize": "i64",
}  # fmt: skip
_FORMS = {
    "arange": "iota<i64>(N)", "range": "iota<i64>(N)", "zeros": "fill<f32>([..], 0.0)",
    "ones": "fill<f32>([..], 1.0)", "full": "fill([..], value)", "where": "select(c, a, b)",
    "cat": "concat(a, b, axis = 0)", "concatenate": "concat(a, b, axis = 0)",
    "view": "reshape(x, [..])", "swapaxes": "permute(x, [1, 0])", "expand": "broadcast_to(x, [..])",
    "squeeze": "reshape(x, [..])", "unsqueeze": "reshape(x, [..])", "flatten": "reshape(x, [..])",
    "maximum": "max(a, b)", "minimum": "min(a, b)", "mean": "(sum[i] x[i]) / cast<f32>(N)",
    "einsum": "let c[m, n] = sum[k] a[m, k] * b[k, n]", "pow": "exp(log(x) * y)",
    "take": "let y[i] = x[at[i]]", "astype": "cast<f32>(x)", "len": "the generic that is its size",
}  # fmt: skip


def that_brings(scope: Scope, name: str, place: str) -> Help | None:
    """The import of a name that just one module of `std` or of the own package makes public.

    `place` says what may stand there: a `call`, a `type` or a `value`.
    """
    kinds = _KINDS[place]
    homes = [
        f
        for f in _files(scope)
        if any(name == n and kind in kinds for kind, n in _PUBLIC.findall(f.source.text))
    ]
    own = scope.module.file
    if len(homes) != 1 or homes[0] is own or name in scope.module.imports:
        return None
    path = ".".join(homes[0].name)
    edit = _edit(scope.module.tree, path, name)
    safe = path.startswith("std.")
    return Help(f"import it: `use {path}::{{{name}}}`", (edit,) if edit else (), safe)


def foreign(name: tree.Name | tree.Ident, place: str) -> Help | None:
    """What is written here for a name that other languages have."""
    dtype = _DTYPES.get(name.text)
    if dtype is not None:
        return Help(f"the dtype is called `{dtype}`", (Edit(name.span, dtype),), place == "type")
    form = _FORMS.get(name.text) if place == "call" else None
    return Help(f"it is written `{form}`") if form is not None else None


def _files(scope: Scope) -> Iterator[ModuleFile]:
    """The modules whose items a file may import, but for those of other packages."""
    workspace = scope.checking.workspace
    package = scope.module.file.package
    if workspace is None:
        return
    yield from workspace.files_of(workspace.std)
    if package is not workspace.std and package.root is not None:
        yield from workspace.files_of(package)


def _edit(file: tree.File, path: str, name: str) -> Edit | None:
    """Adds the name to the list of its module's `use` line, or a line among the sorted ones."""
    for use in file.uses:
        if use.path.text == path and use.names:
            return _listed(use.names, name)
    line = f"use {path}::{{{name}}}"
    after = [use for use in file.uses if use.path.text < path]
    if after:
        return _insert(file.source, after[-1].span.end, f"\n{line}")
    if file.uses:
        return _insert(file.source, file.uses[0].span.start, f"{line}\n")
    if file.module is None:
        return None
    return _insert(file.source, file.module.span.end, f"\n\n{line}")


def _listed(names: Sequence[tree.UseName], name: str) -> Edit:
    for each in names:
        if each.name.text > name:
            return _insert(each.span.source, each.span.start, f"{name}, ")
    last = names[-1].span
    return _insert(last.source, last.end, f", {name}")


def _insert(source: Source, at: int, text: str) -> Edit:
    return Edit(Span(source, at, at), text)
