"""What a micro-batch engine's run says of its speed, figured alike for Spark's own and Penstock."""

from collections.abc import Sequence
from typing import TypedDict

WARM_UP_BATCHES = 1  # plans are made and code is compiled in the first


class Batch(TypedDict, total=False):
    """One micro-batch: its events, its time from trigger to commit, and where the time went."""

    rows: int
    ms: float
    late_dropped: int
    split_ms: dict[str, float]


def steady_rows_per_s(batches: Sequence[Batch]) -> int | None:
    """The rate after the first micro-batches, or None where there are no others."""
    later = batches[WARM_UP_BATCHES:]
    spent_ms = sum(batch["ms"] for batch in later)
    rows = sum(batch["rows"] for batch in later)
    return round(1000 * rows / spent_ms) if rows and spent_ms else None


def mean_split_ms(batches: Sequence[Batch]) -> dict[str, float]:
    """The mean time of each step over the steady micro-batches that had events."""
    later = [batch["split_ms"] for batch in batches[WARM_UP_BATCHES:] if batch["rows"]]
    names = dict.fromkeys(name for split in later for name in split)
    return {
        name: round(sum(split.get(name, 0) for split in later) / len(later), 1) for name in names
    }
