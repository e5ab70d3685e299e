"""Watermarks per producer in one partition: a function of the log alone, however it is cut into batches.

Each producer has a *mark*, the newest time up to which it has moved the watermark; before the row at
position i of producer d,

    watermark(i) = mark(d) - lateness
    mark(d) when d joins  =  the least mark of the producers known then; none, if d was expected

The partition's own mark is the least of all. Because a new producer begins there, it never goes back:
what was closed when a producer joined stays closed for it. Only one that was expected may join further
behind, for nothing is closed before all of these have been seen.

The least is the root of a tournament tree (Knuth, TAOCP 3, 5.4.1), so a row costs the logarithm of the
number of producers. That number is limited: the surplus share one mark, as do rows without a producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector
from penstock.ops.windows import NOTHING_YET_US

__all__ = ["PRODUCERS_MAX", "ProducerMarks"]

PRODUCERS_MAX: Final = 10_000
"""Of one topic, shared out evenly to its partitions: each is some 50 bytes of every version."""
NAME_MAX: Final = 200
"""Characters of a producer's name; a longer one is cut, and distinguished by its digest."""
UNKNOWN: Final = 2**63 - 1  # the leaf of a slot without a producer
OTHERS: Final = 0  # the slot that the surplus share

_I64 = types.Array(types.int64, 1, "C", readonly=True)


@njit(types.void(_I64, _I64, types.boolean[::1], types.int64[::1], types.int64, types.int64[::1]),
      cache=True, nogil=True)  # fmt: skip
def _advance(
    slots: Any, moves: Any, expected: Any, tree: Any, none: Any, marks_before: Any
) -> None:
    """Takes rows one by one; `tree[1]` is the least of the leaves, the second half."""
    leaves = len(tree) // 2
    for i in range(len(slots)):
        at = leaves + slots[i]
        mark = tree[at]
        before = mark
        if mark == UNKNOWN:
            least = tree[1]
            mark = none if expected[slots[i]] or least == UNKNOWN else least
        marks_before[i] = mark
        mark = max(mark, moves[i])
        if mark == before:
            continue
        tree[at] = mark
        at //= 2
        while at > 0:
            least = min(tree[2 * at], tree[2 * at + 1])
            if tree[at] == least:
                break
            tree[at] = least
            at //= 2


class ProducerMarks:
    """The marks of one partition's producers, from one batch to the next.

    Args:
        known: marks in µs by name; `NOTHING_YET_US` of those that have not moved the watermark yet.
        others: the mark that the surplus share; None: there are none so far.
        expected: producers that may join anywhere.
        producers_max: how many have marks of their own.
    """

    def __init__(
        self,
        known: Mapping[str, int],
        others: int | None,
        expected: Iterable[str],
        producers_max: int,
    ) -> None:
        self._expected_names = frozenset(expected)
        self._max = producers_max
        self._slots = {name: slot for slot, name in enumerate(known, 1)}
        self._names = ["", *known]  # by slot
        self._touched: set[int] = set()
        self._tree = np.full(2, UNKNOWN, np.int64)
        self._expected = np.zeros(1, np.bool_)
        self._grow()
        leaves = self._leaves()
        leaves[1 : 1 + len(known)] = np.fromiter(known.values(), np.int64, len(known))
        leaves[OTHERS] = UNKNOWN if others is None else others
        self._build()

    def advance(self, names: pa.Array | pa.ChunkedArray, moves_us: Vector) -> Vector:
        """Takes rows in the order of the log.

        Args:
            names: the producer of each row, text or NULL.
            moves_us: int64[n], where each row moves its producer's mark; `NOTHING_YET_US` for nowhere.

        Returns:
            int64[n], the mark of each row's producer before it; `NOTHING_YET_US` where it has none.
        """
        slots = self._slots_of(names)
        before = np.empty(len(slots), np.int64)
        _advance(
            slots,
            np.ascontiguousarray(moves_us),
            self._expected,
            self._tree,
            NOTHING_YET_US,
            before,
        )
        return before

    def touched(self) -> dict[str, int]:
        """The marks of the producers of which there were rows, the shared one left out."""
        leaves = self._leaves()
        slots = sorted(self._touched - {OTHERS})
        return {self._names[slot]: int(leaves[slot]) for slot in slots}

    def touched_others(self) -> int | None:
        """The shared mark, if there were rows of those who share it."""
        return int(self._leaves()[OTHERS]) if OTHERS in self._touched else None

    def check(self) -> None:
        """Asserts that the tree is one."""
        tree = self._tree
        for at in range(1, len(tree) // 2):
            assert tree[at] == min(tree[2 * at], tree[2 * at + 1]), at
        assert len(self._slots) <= self._max
        assert len(self._expected) == len(self._leaves()) > len(self._slots)

    def _slots_of(self, names: pa.Array | pa.ChunkedArray) -> Vector:
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        coded = names.dictionary_encode()
        size = len(self._slots)
        # Values of a dictionary are in the order of their first rows: who is surplus is up to the log.
        slots = [self._slot(str(name)) for name in coded.dictionary.to_pylist()]
        if len(self._slots) > size:
            self._grow()
        of = np.array([*slots, OTHERS], np.int64)  # the last one is that of NULL
        indices = coded.indices.cast(pa.int64()).fill_null(len(slots)).to_numpy()
        found: Vector = of[indices]
        self._touched.update(np.unique(found).tolist())
        return found

    def _slot(self, name: str) -> int:
        if len(name) > NAME_MAX:
            digest = blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
            name = f"{name[: NAME_MAX - 17]}…{digest}"
        slot = self._slots.get(name)
        if slot is None:
            if len(self._slots) >= self._max:
                return OTHERS
            slot = self._slots[name] = len(self._slots) + 1
            self._names.append(name)
        return slot

    def _grow(self) -> None:
        """Makes room for all slots: a power of two of leaves."""
        before = self._leaves()
        count = 1 << len(self._slots).bit_length()  # one more than there are names, at least
        if count > len(before):
            self._tree = np.full(2 * count, UNKNOWN, np.int64)
            self._leaves()[: len(before)] = before
            self._build()
        self._expected = np.zeros(count, np.bool_)
        for name in self._expected_names:
            if name in self._slots:
                self._expected[self._slots[name]] = True

    def _build(self) -> None:
        level = self._leaves()
        while len(level) > 1:
            half = len(level) // 2
            self._tree[half : 2 * half] = np.minimum(level[::2], level[1::2])
            level = self._tree[half : 2 * half]

    def _leaves(self) -> Vector:
        return self._tree[len(self._tree) // 2 :]
