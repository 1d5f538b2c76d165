"""What Linnet exported comes back: the same numbers, names, where clauses and states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.test_onnx import export_program, run
from backends.test_stablehlo import FAMILIES, family, given_for, sizes_of
from linnet import reference
from linnet.check import check
from linnet.core.ir import Program
from linnet.core.lower import lower
from linnet.onnx import import_onnx
from linnet.porting.names import value_name
from linnet.stablehlo.emit import paths_of
from linnet.workspace import Workspace
from porting.onnx_importing import checked, members

# The entries whose models have a shape for everything: the others pack rows or page.
ENTRIES = (
    *("forward", "next_token", "decode", "prefill", "decode_rows"),
    *("loss_packed", "log_probs_packed", "hidden_packed"),
    *("generate", "sample", "generate_until"),
)


def round_trip(program: Program, entry: str, place: Path) -> str:
    """Exported, imported, and what ONNX Runtime gives of the export; the text."""
    sizes = sizes_of(program, entry)
    arrays = given_for(program, entry, sizes, 1)
    kinds = paths_of(program.entries[entry])
    told = list(zip(kinds, arrays, strict=True))
    weights = {path: x for (kind, path, _), x in told if kind in ("param", "buffer")}
    states = {value_name(path): x.copy() for (kind, path, _), x in told if kind == "state"}
    made = export_program(program, entry, "equivalent", weights)
    result = import_onnx(made.model, output=place, module_name="imported")
    text = checked(result)
    own = [x for (kind, _, _), x in told if kind == "value"]
    again = lower(check(Workspace(), result.source))
    named = {name: size for name, size in sizes.items() if name in again.entries["forward"].dims}
    found = reference.evaluate(again, result.entry, own, members(result), states, named)
    results = list(found) if isinstance(found, tuple) else [found]
    props = {p.key: p.value for p in made.model.metadata_props}
    for port in made.outputs:
        if path := props.get(f"linnet.next_state.{port.name}"):
            results.append(states[value_name(path)])
    wanted = run(program, entry, sizes, "equivalent", arrays)
    for mine, its in zip(results, wanted, strict=True):
        assert np.shape(mine) == np.shape(its)
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5, err_msg=entry)
    return text


def test_a_decoding_entry_keeps_its_state(tmp_path: Path) -> None:
    text = round_trip(family("llama", "equivalent"), "decode", tmp_path / "decode")
    assert "state layers_0_attention_cache_keys: Tensor[3, 2, 16, 2; f32]" in text
    assert "layers_1_attention_cache_values = " in text
    assert "write_at(" in text
    assert "sub layers: [Layer; 2]" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in FAMILIES.iterdir()))
def test_every_entry_with_shapes_of_every_family(name: str, tmp_path: Path) -> None:
    program = family(name, "equivalent")
    tried = [entry for entry in program.entries if entry in ENTRIES]
    assert tried
    for entry in tried:
        round_trip(program, entry, tmp_path / entry)
