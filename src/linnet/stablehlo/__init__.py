"""StableHLO: an entry of a program as one module of text, for XLA and whatever else reads it."""

from __future__ import annotations

from linnet.stablehlo.arguments import check_dynamic
from linnet.stablehlo.emit import emit

__all__ = ["check_dynamic", "emit"]
