"""Checks batches that a checkpoint vouches for: each of them once, before it is served first.

A segment that is opened with a checkpoint is not read. Its batches are checked when a reader first
comes near them, an index interval (16 KiB, or one batch) at a time: each checksum, and, as offsets
lie outside the checksums, the running sum of the batches' first 16 bytes that the index holds.

Damage stays where it is: of an interval that is not as it was, the batches that can be shown to be
whole are served, and what lies between is refused. Readers who ask for an offset beyond it continue.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from typing import Final, NamedTuple

from penstock.log.disk.files import LogFile
from penstock.log.segments.index import SparseIndex
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Buffer, Header
from penstock.wire.checksum import crc32c

__all__ = ["LEADER_EPOCH", "Damage", "Verification", "Walk", "add_prefix"]

LEADER_EPOCH: Final = 0
"""There is one broker, so leadership never changes."""
_PREFIX = struct.Struct(">qii")


def add_prefix(total: int, header: Header) -> int:
    """The running sum of the batches' first 16 bytes, with one batch more."""
    prefix = _PREFIX.pack(header.base_offset, header.length, header.leader_epoch)
    return int(crc32c(prefix, total))


class Damage(NamedTuple):
    """Bytes [begin, end) of a segment that are not what was written, and the offsets they held."""

    begin: int
    end: int
    first_offset: int
    next_offset: int

    @property
    def what(self) -> str:
        """The bytes, in words."""
        size = self.end - self.begin
        return (
            f"{size} damaged bytes at byte {self.begin}" if size else f"none at byte {self.begin}"
        )


class Verification:
    """What of a segment's trusted part was checked, and what was found."""

    def __init__(
        self, index: SparseIndex, end: int, next_offset: int, prefix_sum: int, *, has_gaps: bool
    ) -> None:
        """Takes the index as it was loaded, where and how the trusted part ends, and whether
        offsets may be missing in it.
        """
        self._has_gaps = has_gaps
        self._index = index
        self._count = len(index)
        self._unchecked = bytearray(b"\1") * self._count
        self._left = self._count
        self._end = end
        self._next_offset = next_offset
        self._prefix_sum = prefix_sum
        self.damage: list[Damage] = []

    @property
    def is_done(self) -> bool:
        """Whether everything was checked."""
        return not self._left

    def ensure(self, file: LogFile, position: int) -> int:
        """Checks the interval around a position, unless that was done. Returns where it ends."""
        if position >= self._end:
            return 1 << 62
        i = bisect_right(self._index.positions, position, 0, self._count) - 1
        end = self._index.positions[i + 1] if i + 1 < self._count else self._end
        if self._unchecked[i]:
            self._unchecked[i] = 0
            self._left -= 1
            self._check(file, i, self._index.positions[i], end)
        return end

    def note(self, damage: Damage) -> None:
        """Takes note of damage."""
        insort(self.damage, damage)

    def damage_at(self, position: int) -> Damage | None:
        """The damage that begins at a position or around it."""
        found = bisect_right(self.damage, position, key=lambda one: one.begin) - 1
        if found >= 0 and position < self.damage[found].end:
            return self.damage[found]
        return None

    def first_damage(self, begin: int, end: int) -> int:
        """Where the first known damage in [begin, end) begins; `end` if there is none."""
        return min((one.begin for one in self.damage if begin <= one.begin < end), default=end)

    def _check(self, file: LogFile, i: int, begin: int, end: int) -> None:
        is_last = i + 1 == self._count
        next_offset = self._next_offset if is_last else self._index.offsets[i + 1]
        wanted = self._prefix_sum if is_last else self._index.sums[i + 1]
        first_offset = self._index.offsets[i]
        data = file.read(begin, end - begin)
        walk = Walk(first_offset, self._index.sums[i], has_gaps=self._has_gaps)
        at = walk.go(data, 0)
        if at == end - begin and walk.prefix_sum == wanted:
            return
        if at == end - begin or self._has_gaps:  # any offset before may be a wrong one
            self.note(Damage(begin, end, first_offset, next_offset))
            return
        lost = Damage(begin + at, end, walk.offset, next_offset)
        if at + HEADER_BYTES <= len(data):
            after = at + batches.parse(data, at).size
            if at < after <= len(data) - HEADER_BYTES:
                first = batches.parse(data, after).base_offset
                rest = Walk(first, 0, has_gaps=False)
                is_whole = first > walk.offset and rest.go(data, after) == end - begin
                if is_whole and rest.offset == next_offset:
                    lost = Damage(begin + at, begin + after, walk.offset, first)
        self.note(lost)


class Walk:
    """Goes from batch to batch as long as they are whole."""

    def __init__(self, offset: int, prefix_sum: int, *, has_gaps: bool) -> None:
        self.offset = offset
        self.prefix_sum = prefix_sum
        self._has_gaps = has_gaps

    def go(self, data: Buffer, at: int) -> int:
        """Returns the position of the first batch that isn't whole, or the end."""
        while at + HEADER_BYTES <= len(data):
            header = batches.parse(data, at)
            if (
                header.fault() is not None
                or at + header.size > len(data)
                or header.leader_epoch != LEADER_EPOCH
                or header.base_offset < self.offset
                or (header.base_offset > self.offset and not self._has_gaps)
                or not batches.checksum_matches(data, at, header)
            ):
                return at
            self.offset = header.next_offset
            self.prefix_sum = add_prefix(self.prefix_sum, header)
            at += header.size
        return at
