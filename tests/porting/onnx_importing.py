"""Importing a model of ONNX in a test: the package is checked and gives ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from linnet import reference
from linnet.check import check
from linnet.core.lower import lower
from linnet.onnx import ExportResult, import_onnx
from linnet.syntax.format import format as formatted
from linnet.weights import read_arrays, read_bindings
from linnet.workspace import Workspace


def checked(result: ExportResult) -> str:
    """The text, which has no findings and is in the language's style."""
    text = (result.source / "src/lib.linnet").read_text()
    assert not check(Workspace(), result.source).findings.items
    assert formatted(text) == text
    return text


def members(result: ExportResult) -> dict[str, Any]:
    """The arrays of the package by path."""
    if result.weights is None:
        return {}
    arrays = read_arrays(result.weights)
    return {path: arrays[name] for path, name in read_bindings(result.bindings).items()}


def evaluated(result: ExportResult, feeds: Mapping[str, Any]) -> list[Any]:
    """What the reference gives."""
    program = lower(check(Workspace(), result.source))
    found = reference.evaluate(program, result.entry, list(feeds.values()), members(result))
    return list(found) if isinstance(found, tuple) else [found]


def original(model: onnx.ModelProto | Path, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime gives of the model itself."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    found = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return list(found.run(None, dict(feeds)))


def same(
    model: onnx.ModelProto, place: Path, *feeds: Mapping[str, Any], tolerance: float = 1e-5
) -> str:
    """Imported, checked, and the same numbers for every feed; the text."""
    result = import_onnx(model, output=place, module_name="imported")
    text = checked(result)
    for each in feeds:
        told = original(model, each)
        for mine, its in zip(evaluated(result, each), told, strict=True):
            assert np.shape(mine) == np.shape(its)
            assert np.asarray(mine).dtype == np.asarray(its).dtype
            np.testing.assert_allclose(mine, its, rtol=tolerance, atol=tolerance)
    return text


def model_of(text: str, /, **initializers: Any) -> onnx.ModelProto:
    """A model from ONNX's own text form, with arrays for names in it; `__` in a name is a dot."""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        for names in (node.input, node.output):
            dotted = [name.replace("__", ".") for name in names]
            del names[:]
            names.extend(dotted)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name.replace("__", "."))
        for name, array in initializers.items()
    )
    return proto
