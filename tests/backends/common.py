"""Running one program on the reference and on PyTorch, and comparing what comes out."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from linnet import reference
from linnet.check import check_text
from linnet.core.ir import Program
from linnet.core.lower import lower
from linnet.core.passes import optimize
from linnet.policy import Policy, tolerance
from linnet.torch import LinnetModule
from linnet.weights import as_array

CPU = torch.device("cpu")
torch.set_num_threads(1)


def lowered(text: str, **options: Any) -> Program:
    return lower(check_text(text), **options)


def module(program: Program, policy: Policy = "exact", *, passes: bool = True) -> LinnetModule:
    """The program's module with random weights, none of them zero."""
    made = LinnetModule(optimize(program, policy) if passes else program, policy, CPU)
    made._initialise(0)
    for parameter in made.parameters():
        if parameter.dtype.is_floating_point:
            parameter.add_(torch.where(parameter >= 0, 0.5, -0.5)).mul_(0.9)
    return made


def flat(value: Any) -> list[Any]:
    if value is None:
        return []
    return [leaf for v in value for leaf in flat(v)] if isinstance(value, tuple) else [value]


def assert_close(wanted: Any, found: Any, limit: float, what: str = "") -> None:
    """Equal shapes and dtypes; values within `limit` of the largest, NaN where NaN is wanted."""
    a, b = as_array(wanted), as_array(found)
    assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype.kind in "biu":
        np.testing.assert_array_equal(a, b, what)
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), what)
    np.testing.assert_array_equal(np.isinf(a), np.isinf(b), what)
    np.testing.assert_array_equal(np.sign(a[np.isinf(a)]), np.sign(b[np.isinf(b)]), what)
    finite = np.isfinite(a)
    largest = np.max(np.abs(a[finite]), initial=1e-30)
    error = np.max(np.abs(a[finite] - b[finite]), initial=0.0)
    assert error <= limit * largest, f"{what}: off by {error:.3g}, largest {largest:.3g}"


def state_of(made: LinnetModule) -> dict[str, torch.Tensor]:
    return {path: made.get_buffer_at(path) for path in made.state_paths}


def agree(
    program: Program,
    calls: Sequence[tuple[str, Sequence[object]] | tuple[str, Sequence[object], Mapping[str, int]]],
    policies: Sequence[Policy] = ("exact", "fast"),
    *,
    limit: float | None = None,
) -> list[LinnetModule]:
    """The calls, one after another, give what the reference gives, results and state."""
    out: list[LinnetModule] = []
    for policy in policies:
        # As it was lowered and with native kernels after all passes: the two ends.
        for passes in (False, True) if len(policies) == 1 else (policy != "exact",):
            made = module(program, policy, passes=passes)
            members = {path: tensor for path, tensor, _ in made._slots()}
            state: MutableMapping[str, Any] = {}
            for name, inputs, *rest in calls:
                generics = rest[0] if rest else None
                wanted = reference.evaluate(program, name, inputs, members, state, generics)
                found = made.run_entry(name, inputs, generics)
                for a, b in zip(flat(wanted), flat(found), strict=True):
                    close = tolerance(policy, "f32") if limit is None else limit
                    assert_close(a, b, close, f"{name}, {policy}, passes={passes}")
                held = state_of(made)
                for path, value in state.items():
                    assert_close(value, held[path], 1e-5, f"{path} after {name}, {policy}")
            out.append(made)
    return out
