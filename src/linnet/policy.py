"""Numerics policies: what a backend may run in place of a body, and how close results must be."""

from __future__ import annotations

from typing import Literal, get_args

from linnet.diagnostics import PlanError

# exact: canonical bodies, and kernels shown bit-equal. equivalent: native kernels that keep the
# accumulation dtypes the bodies state. fast: kernels that accumulate in the input dtype.
Policy = Literal["exact", "equivalent", "fast"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_KEEPING = {"f64": 2e-5, "f32": 2e-5, "bf16": 1e-2, "f16": 2e-3}
_FAST = {"f64": 2e-4, "f32": 2e-4, "bf16": 3e-2, "f16": 5e-3}


def policy_named(name: str) -> Policy:
    """The policy of this name; a PlanError lists them where there is none."""
    for policy in POLICIES:
        if policy == name:
            return policy
    raise PlanError(f"no numerics policy is called {name!r}: choose {', '.join(POLICIES)}")


def tolerance(policy: Policy, dtype: str) -> float:
    """How far results may lie apart, relative to the largest value; 0 for integers and bools."""
    return (_FAST if policy == "fast" else _KEEPING).get(dtype, 0.0)


def allows(policy: Policy, needed: Policy) -> bool:
    """Whether a kernel that needs the policy `needed` may run under `policy`."""
    return POLICIES.index(needed) <= POLICIES.index(policy)
