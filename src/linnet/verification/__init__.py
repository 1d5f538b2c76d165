"""`linnet verify`: a program's entries on every backend, compared with the reference."""

from __future__ import annotations

from linnet.verification.verify import Report, verify

__all__ = ["Report", "verify"]
