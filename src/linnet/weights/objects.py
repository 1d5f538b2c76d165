"""JSON files that hold one object, of a size that one can have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from linnet.diagnostics import LinnetError

# A published configuration has some hundred kilobytes at most, the largest index about 20 MB.
LIMIT = 1 << 25
VALUE_LIMIT = 1 << 20


def read_object(path: Path, error: type[LinnetError]) -> dict[str, Any]:
    """The object in the file; where it holds none, or more than any such file, an `error`."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT or data.count(b",") > VALUE_LIMIT:
            raise error(
                f"{path}: holds over {LIMIT >> 20} MiB or {VALUE_LIMIT:,} values: it is not read"
            )
        document: Any = json.loads(data.decode("utf-8"))
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror or failure}") from failure
    except (ValueError, RecursionError) as failure:
        raise error(f"{path}: cannot be read as JSON: {failure}") from failure
    if not isinstance(document, dict):
        raise error(f"{path}: is not a JSON object")
    return document
