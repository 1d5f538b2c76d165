"""`linnet init`: a new package that checks and runs."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from linnet.cli import OK
from linnet.diagnostics import LinnetError
from linnet.syntax.tokens import KEYWORDS, RESERVED_WORDS
from linnet.workspace import LANGUAGE, MANIFEST, NAME_RULE, PACKAGE_NAME

MANIFEST_TEXT = """\
[package]
name = "{name}"
version = "0.1.0"
language = "{language}"

# Packages beside this one, by their folders: `use shared::{{item}}` after
# shared = {{ path = "../shared" }}
[dependencies]
"""
SOURCE = """\
module {module}

use std.nn.activations::{{relu}}
use std.nn.linear::{{Linear}}

/// Two linear layers with a `relu` between them.
pub block Model<In: Dim, Hidden: Dim, Out: Dim, T: Float = f32> {{
    sub first: Linear<In, Hidden, T>
    sub second: Linear<Hidden, Out, T>

    /// `[B, In]` to `[B, Out]`.
    entry forward<B: Dim>(x: Tensor[B, In; T]) -> Tensor[B, Out; T] {{
        return second.forward(relu(first.forward(x)))
    }}
}}
"""
README = """\
# {name}

A package in Linnet, a typed tensor language. The model is in `src/lib.linnet`.

```console
$ linnet check .
$ linnet inspect --parameters --bind In=4 Hidden=8 Out=2 -- .
$ linnet fmt .
```

Run it with PyTorch (`pip install 'linnet[torch]'`):

```python
import linnet.torch
import torch

model = linnet.torch.load(".", generics={{"In": 4, "Hidden": 8, "Out": 2}})
print(model(torch.ones(3, 4)).shape)  # torch.Size([3, 2])
```

Without weights, parameters are random; `weights="model.safetensors"` binds them by path.
"""
IGNORED = """\
__pycache__/
*.safetensors
*.gguf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="the package's name (default: the folder's)")
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", default=".", help="where; made if it is not there"
    )


def run(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    name = _checked(args.name) if args.name is not None else _from_folder(folder)
    module = name.replace("-", "_")
    texts = {
        MANIFEST: MANIFEST_TEXT.format(name=name, language=LANGUAGE),
        "src/lib.linnet": SOURCE.format(module=module),
        "README.md": README.format(name=name),
        ".gitignore": IGNORED,
    }
    _refuse(folder)
    kept = [path for path in texts if os.path.lexists(folder / path)]
    _write({folder / path: text for path, text in texts.items() if path not in kept})
    for path in texts:
        print(f"{folder / path}{': kept as it is' if path in kept else ''}")
    return OK


def _checked(name: str) -> str:
    if not re.fullmatch(PACKAGE_NAME, name):
        raise LinnetError(f"--name {name}: cannot be a package's name: {NAME_RULE}")
    if _taken(name):
        raise LinnetError(f"--name {name}: is a word of the language; choose another name")
    return name


def _from_folder(folder: Path) -> str:
    """The folder's name as a package may have it."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name).strip("_-")
    if not re.fullmatch(PACKAGE_NAME, name) or _taken(name):
        name = f"model_{name}".rstrip("_")
    return name


def _taken(name: str) -> bool:
    return name in KEYWORDS | RESERVED_WORDS | {"std"}


def _refuse(folder: Path) -> None:
    """What stands in the way is said before anything is written."""
    for place in (folder, folder / "src"):
        if os.path.lexists(place) and not place.is_dir():
            raise LinnetError(f"{place}: is there already, and is no folder; nothing was written")
    for path in (MANIFEST, "src/lib.linnet"):
        if os.path.lexists(folder / path):
            what = "this is a package already" if path == MANIFEST else "is there already"
            raise LinnetError(f"{folder / path}: {what}; nothing was written")


def _write(files: dict[Path, str]) -> None:
    """All the files; after an error none of them, nor a folder made for them."""
    made: list[Path] = []
    try:
        for path, text in files.items():
            for folder in reversed([p for p in path.parents if not p.exists()]):
                folder.mkdir()
                made.append(folder)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                made.append(path)
                file.write(text)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            place = error.filename or next(iter(files))
            raise LinnetError(f"{place}: {error.strerror}; nothing was written") from error
        raise
