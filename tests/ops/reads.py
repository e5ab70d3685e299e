"""How many rows of their state operators read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.ops.over import window_functions as over
from penstock.state import ordered, trace

__all__ = ["count_reads"]


def count_reads(patch: pytest.MonkeyPatch) -> list[int]:
    """Rows that are found by key from now on, a number for each time."""
    read: list[int] = []
    real_lookup, real_read = trace.Trace.lookup, ordered._read
    real_around, real_upto = over.around, ordered._Bounds.upto

    def lookup(*given: Any, **how: Any) -> Any:
        found = real_lookup(*given, **how)
        read.append(sum(map(len, found[1])))
        return found

    def some(*given: Any, **how: Any) -> Any:
        found = real_read(*given, **how)
        read.append(len(found.rows))
        return found

    def near(*given: Any, **how: Any) -> Any:
        found = real_around(*given, **how)
        read.append(len(found.rows))
        return found

    def upto(*given: Any, **how: Any) -> Any:
        found = real_upto(*given, **how)
        read.append(len(found[0]))
        return found

    patch.setattr(trace.Trace, "lookup", lookup)
    patch.setattr(ordered._Bounds, "upto", upto)
    patch.setattr(over, "around", near)
    patch.setattr(ordered, "_read", some)
    return read
