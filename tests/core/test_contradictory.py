"""Where clauses that no sizes satisfy prove everything, and are the user's mistake."""

from __future__ import annotations

import pytest

from linnet.check import check_text
from linnet.core.lower import lower_function
from linnet.diagnostics import PlanError

TEXT = """module m

fn f<A: Dim>(x: Tensor[A; f32], z: Tensor[0; f32]) -> f32
where A < 2, A > 2 {
    let y = z[1::3]
    return sum[i] x[i] + sum[j] y[j]
}
"""


def test_clauses_that_no_sizes_satisfy_are_named() -> None:
    analysis = check_text(TEXT)
    with pytest.raises(PlanError, match="no sizes satisfy `where A < 2, A > 2`"):
        lower_function(analysis, "m", "f")
