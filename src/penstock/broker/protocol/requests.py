"""The broker's counters of requests: plain integers, so that counting is cheap.

Invariant: per API, the sum of its buckets is the number of its answers; an answer of `us` microseconds
is in bucket `us.bit_length()`, so bucket b holds those below 2**b us and the resolution is a factor of
two.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import Any, Final

__all__ = ["BUCKETS", "Requests"]

BUCKETS: Final = 26
"""Buckets of durations, of 1 us to 2**25 us (34 s); what takes longer is in the last."""
WALK_DEPTH: Final = 3
"""How deep errors are looked for in an answer: topics, partitions, and one more."""


class Requests:
    """Counters of requests, by API key."""

    __slots__ = (
        "answered_us",
        "buckets",
        "bytes_in",
        "bytes_out",
        "connections_opened",
        "counts",
        "errors",
        "key",
    )

    def __init__(self) -> None:
        self.key = 0
        """Of the request that is being served."""
        self.counts: Counter[int] = Counter()
        self.answered_us: Counter[int] = Counter()
        self.buckets: dict[int, list[int]] = {}
        self.errors: Counter[tuple[int, int]] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_opened = 0

    def began(self, key: int) -> None:
        """A request of this API is being served."""
        self.key = key
        self.counts[key] += 1

    def answered(self, key: int, began_s: float) -> None:
        """It has its answer."""
        us = int((perf_counter() - began_s) * 1e6)
        self.answered_us[key] += us
        buckets = self.buckets.get(key)
        if buckets is None:
            buckets = self.buckets[key] = [0] * BUCKETS
        buckets[min(us.bit_length(), BUCKETS - 1)] += 1

    def failed(self, key: int, code: int) -> None:
        """An answer has an error."""
        self.errors[key, code] += 1

    def note_errors(self, key: int, fields: Any, depth: int = WALK_DEPTH) -> None:
        """Counts the errors in an answer's fields."""
        if isinstance(fields, list):
            for one in fields:
                if not isinstance(one, dict):
                    return
                self.note_errors(key, one, depth)
            return
        code = fields.get("error_code")
        if code:
            self.errors[key, int(code)] += 1
        if depth > 0:
            for value in fields.values():
                if isinstance(value, list) and value:
                    self.note_errors(key, value, depth - 1)

    def check(self) -> None:
        """Asserts the invariant."""
        for key, buckets in self.buckets.items():
            assert len(buckets) == BUCKETS
            assert sum(buckets) <= self.counts[key]
