"""How transactions end in a log: control records, and the index of those that were aborted.

A marker is a batch of one record whose key says whether the producer's open transaction was
committed or aborted, and whose value names the coordinator's epoch:

    key    int16 version 0, int16 type (0 abort, 1 commit)
    value  int16 version 0, int32 coordinator epoch

An aborted transaction of a producer covers that producer's records from `first_offset` on, up to the
marker at `last_offset`. A reader of committed data asks which of them overlap what it reads, and
drops those records.

Invariant of `AbortedIndex`: entries are in the order of their markers, so `last_offset` rises; when
entry i was made, no transaction that was still open began before `stable[i]`. So entries after i
whose transaction begins below `stable[i]` don't exist, and a look-up ends early. Source: KIP-98,
Kafka's TransactionIndex.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

from penstock.errors import CorruptError
from penstock.wire import batches
from penstock.wire.batches import Buffer, Header

__all__ = ["Aborted", "AbortedIndex", "Marker", "build_marker", "read_marker"]

ENTRY_BYTES: Final = 32
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_TRANSACTIONAL_CONTROL: Final = 0x30


class Marker(NamedTuple):
    """What a control record says."""

    commit: bool
    coordinator_epoch: int


class Aborted(NamedTuple):
    """A transaction that was aborted: the producer's records in [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, now_ms: int
) -> bytearray:
    """The control batch that ends a transaction; its offset is still to be patched."""
    key = _KEY.pack(0, _COMMIT if commit else _ABORT)
    return batches.build(
        [(key, _VALUE.pack(0, coordinator_epoch))],
        timestamps_ms=[now_ms],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=_TRANSACTIONAL_CONTROL,
    )


def read_marker(batch: Buffer, header: Header) -> Marker:
    """What the control batch says.

    Raises:
        CorruptError: it isn't a marker.
    """
    record = next(batches.records(batch, 0, header), None)
    key, value = (None, None) if record is None else (record.key, record.value)
    if key is None or len(key) != _KEY.size or value is None or len(value) < _VALUE.size:
        raise CorruptError(f"expected a transaction's marker at offset {header.base_offset}")
    kind = _KEY.unpack(key)[1]
    if kind not in {_ABORT, _COMMIT}:
        raise CorruptError(
            f"expected a marker of type 0 or 1 at offset {header.base_offset}; found {kind}"
        )
    return Marker(kind == _COMMIT, _VALUE.unpack_from(value)[1])


class AbortedIndex:
    """The aborted transactions whose markers lie in one segment: 32 bytes each."""

    __slots__ = ("first", "last", "producers", "stable")

    def __init__(self) -> None:
        self.producers = array("q")
        self.first = array("q")
        self.last = array("q")
        self.stable = array("q")

    def __len__(self) -> int:
        return len(self.last)

    def append(self, entry: Aborted, stable_offset: int) -> None:
        """Takes note of a transaction; `stable_offset` is the last stable offset after its
        marker.
        """
        assert not self.last or entry.last_offset > self.last[-1]
        self.producers.append(entry.producer_id)
        self.first.append(entry.first_offset)
        self.last.append(entry.last_offset)
        self.stable.append(stable_offset)

    def overlapping(self, lo: int, hi: int) -> tuple[list[Aborted], bool]:
        """Those that overlap [lo, hi), by marker; and whether none in later segments can."""
        found = []
        for i in range(bisect_left(self.last, lo), len(self.last)):
            if self.first[i] < hi:
                found.append(Aborted(self.producers[i], self.first[i], self.last[i]))
            if self.stable[i] >= hi:
                return found, True
        return found, False

    def entries(self) -> list[Aborted]:
        """All of them, by marker."""
        return list(map(Aborted, self.producers, self.first, self.last))

    def before(self, offset: int) -> AbortedIndex:
        """The entries of markers before an offset."""
        found, count = AbortedIndex(), bisect_left(self.last, offset)
        for its, mine in zip(found._columns(), self._columns(), strict=True):
            its.extend(mine[:count])
        return found

    def begun_before(self, offset: int) -> AbortedIndex:
        """The entries of transactions that began before an offset."""
        found = AbortedIndex()
        kept = [i for i, first in enumerate(self.first) if first < offset]
        for its, mine in zip(found._columns(), self._columns(), strict=True):
            its.extend([mine[i] for i in kept])
        return found

    def extend(self, other: AbortedIndex) -> None:
        """Takes over the entries of the segment after this one."""
        assert not self.last or not other.last or other.last[0] > self.last[-1]
        for mine, its in zip(self._columns(), other._columns(), strict=True):
            mine.extend(its)

    def _columns(self) -> tuple[array[int], ...]:
        return self.producers, self.first, self.last, self.stable

    def dump(self) -> bytes:
        """The entries' bytes: int64 little-endian, column by column."""
        out = b""
        for column in self._columns():
            copy = array("q", column)
            if sys.byteorder == "big":
                copy.byteswap()
            out += copy.tobytes()
        return out

    @classmethod
    def load(cls, data: bytes) -> AbortedIndex:
        """The entries in bytes whose checksum was right."""
        index = cls()
        size = len(data) // 4
        for n, column in enumerate(index._columns()):
            column.frombytes(data[n * size : (n + 1) * size])
            if sys.byteorder == "big":
                column.byteswap()
        return index

    def check(self, base_offset: int, next_offset: int) -> None:
        """Asserts the invariant for a segment with those offsets."""
        assert list(self.last) == sorted(set(self.last))
        assert all(base_offset <= one < next_offset for one in self.last)
        assert all(first < last for first, last in zip(self.first, self.last, strict=True))
