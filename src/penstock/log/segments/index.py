"""The sparse index of one segment: where to start looking for an offset or a time.

Entry i says: a batch with base offset `offsets[i]` starts at byte `positions[i]`, no record before
it in the segment is later than `times[i]`, and `sums[i]` is the CRC-32C of the first 16 bytes of all
batches before it (offsets and lengths lie outside the batches' own checksums). The first three
columns rise, so each is found by bisection. The first entry is the segment's first batch; entries
are at least `index.interval.bytes` apart.

On disk (`BASE.index`, replaced as a whole) the index is also the segment's checkpoint: the bytes
below `valid_bytes` were whole, checked and durable when it was written, so recovery scans only what
follows.

    8  magic "pslogix3"
    8  valid bytes      8  next offset      8  max timestamp      8  created (ms)
    4  sum of the batches' first 16 bytes
    4  entries          4  aborted transactions (see `penstock.log.markers`)
    4  CRC-32C of what follows this head      4  CRC-32C of the head so far
       entries x (offsets, positions, times, sums), int64 little-endian, column by column
       aborted x (producers, first, last, stable), likewise
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from penstock.log.markers import ENTRY_BYTES as ABORTED_BYTES
from penstock.log.markers import AbortedIndex
from penstock.wire.checksum import crc32c

__all__ = [
    "ENTRY_BYTES",
    "INTERVAL_BYTES",
    "INTERVAL_BYTES_MAX",
    "NO_TIME",
    "Checkpoint",
    "SparseIndex",
]

INTERVAL_BYTES: Final = 16 << 10
"""Log bytes between two entries, unless the topic says otherwise: a look-up reads at most this much (or
one batch), and a 1 GiB segment has an index of 2 MB."""
INTERVAL_BYTES_MAX: Final = 1 << 20
"""Most bytes between two entries: nobody else is served while a look-up reads and checks them."""
NO_TIME: Final = -1
ENTRY_BYTES: Final = 32
"""Of an entry, in memory and on the disk."""

_MAGIC: Final = b"pslogix3"
_HEAD = struct.Struct("<8sqqqqIIIII")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an index file says about its segment."""

    valid_bytes: int
    next_offset: int
    max_timestamp: int
    created_ms: int
    prefix_sum: int = 0


class SparseIndex:
    """Offsets, positions and times of some of a segment's batches."""

    __slots__ = ("offsets", "positions", "sums", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.sums = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def note(
        self,
        offset: int,
        position: int,
        max_timestamp_before: int,
        sum_before: int,
        interval_bytes: int = INTERVAL_BYTES,
    ) -> None:
        """Takes note of a batch, if the last entry is so far behind."""
        if self.positions and position - self.positions[-1] < interval_bytes:
            return
        self.offsets.append(offset)
        self.positions.append(position)
        self.times.append(max_timestamp_before)
        self.sums.append(sum_before)

    def at_offset(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        found = bisect_right(self.offsets, offset)
        return self.positions[found - 1] if found else 0

    def at_time(self, timestamp_ms: int) -> int:
        """A position at or before the first batch with a record at or after the time."""
        found = bisect_left(self.times, timestamp_ms)
        return self.positions[found - 1] if found else 0

    def last_position_upto(self, limit: int) -> tuple[int, int]:
        """The last entry's position that is at most `limit`, and its offset; (0, -1) if none."""
        found = bisect_right(self.positions, limit)
        return (self.positions[found - 1], self.offsets[found - 1]) if found else (0, -1)

    def dump(self, checkpoint: Checkpoint, aborted: AbortedIndex) -> bytes:
        """The index file's bytes."""
        columns = (self.offsets, self.positions, self.times, self.sums)
        entries = b"".join(_little(one).tobytes() for one in columns) + aborted.dump()
        head = _HEAD.pack(
            _MAGIC,
            checkpoint.valid_bytes,
            checkpoint.next_offset,
            checkpoint.max_timestamp,
            checkpoint.created_ms,
            checkpoint.prefix_sum,
            len(self),
            len(aborted),
            crc32c(entries),
            0,
        )[:-4]
        return head + struct.pack("<I", crc32c(head)) + entries

    @classmethod
    def load(cls, data: bytes | None) -> tuple[SparseIndex, Checkpoint, AbortedIndex] | None:
        """The index in a file's bytes; None where it is missing or damaged."""
        if data is None or len(data) < _HEAD.size:
            return None
        magic, valid, next_offset, newest, created, total, count, aborted, crc, head_crc = (
            _HEAD.unpack_from(data)
        )
        entries = data[_HEAD.size :]
        if magic != _MAGIC or head_crc != crc32c(data[: _HEAD.size - 4]):
            return None
        if len(entries) != ENTRY_BYTES * count + ABORTED_BYTES * aborted or crc != crc32c(entries):
            return None
        index = cls()
        columns = (index.offsets, index.positions, index.times, index.sums)
        for number, column in enumerate(columns):
            column.frombytes(entries[8 * count * number : 8 * count * (number + 1)])
            _little(column)
        checkpoint = Checkpoint(valid, next_offset, newest, created, total)
        return index, checkpoint, AbortedIndex.load(entries[ENTRY_BYTES * count :])

    def check(self, size: int) -> None:
        """Asserts the invariant for a segment of `size` bytes."""
        assert len(self.offsets) == len(self.positions) == len(self.times) == len(self.sums)
        assert list(self.offsets) == sorted(set(self.offsets))
        assert list(self.positions) == sorted(set(self.positions))
        assert list(self.times) == sorted(self.times)
        assert not self.positions or (self.positions[0] == 0 and self.positions[-1] < size)


def _little(column: array[int]) -> array[int]:
    """Turns a column's bytes around on a big-endian machine."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
