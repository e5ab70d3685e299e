"""The naive reference of a pipeline: one pass over the log, a Python object per row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Expected:
    """What a pipeline over a log must have computed."""

    view: dict[tuple[Any, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    late: set[tuple[int, int]] = field(default_factory=set)  # (partition, offset), for all windows
    watermark: float = float("-inf")  # what has ended before it is closed


def windows_of(at: int, size: int, every: int) -> list[int]:
    """The starts of the windows that contain an instant."""
    last = at // every * every
    return [w for w in range(last, at - size, -every) if w <= at < w + size]


def expect(
    partitions: list[list[dict[str, Any]]], *, size: int, every: int, lateness: int, key: str
) -> Expected:
    """Values by (window start, key), and the late rows; times in seconds."""
    expected = Expected()
    for partition, rows in enumerate(partitions):
        newest = None
        for offset, row in enumerate(rows):
            mark = None if newest is None else newest - lateness
            windows = windows_of(row["at"], size, every)
            open_ = [w for w in windows if mark is None or w + size > mark]
            for start in open_:
                expected.view[start, row[key]].append(row["v"])
            if not open_:
                expected.late.add((partition, offset))
            newest = row["at"] if newest is None else max(newest, row["at"])
    if all(partitions):
        expected.watermark = min(max(r["at"] for r in rows) for rows in partitions) - lateness
    return expected
