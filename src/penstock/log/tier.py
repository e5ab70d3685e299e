"""Remote segments: what of a partition lies in object storage, and where.

    DIRECTORY/tier      the manifest: closed segments that were copied, oldest first (JSON, CRC-32C)

The manifest is the truth: an object that it doesn't list is an orphan, a segment that it lists is
whole in the store. It is replaced as a whole, after the objects are there and before a local copy
is dropped, and on the way out before the objects are deleted. So a crash at any instant leaves
every record either in a local segment or in a listed remote one, and no segment listed twice.

Invariant: remote segments rise and don't overlap. Up to the first local one's base offset there is no
gap between them; a gap beyond is a local segment that is damaged, isn't copied, and so stays.
A copied segment never changes. Everything here is pure: who reads the store is an argument
(`Tier`). Source: KIP-405.

The index object that goes with a segment holds its sparse index and the checksum of each chunk, so
that a part of a segment can be checked when it is read back:

    8  magic "pstier01"   4  chunk bytes   4  chunks   4  bytes of the sparse index
       chunks x CRC-32C (little-endian)    the segment's `.index` file
"""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.log.errors import StorageError
from penstock.log.markers import AbortedIndex
from penstock.log.segments.index import Checkpoint, SparseIndex
from penstock.wire.checksum import crc32c

if TYPE_CHECKING:
    from penstock.log.segments.segment import Segment

__all__ = [
    "CHUNK_BYTES",
    "RESTORED",
    "Chunks",
    "Manifest",
    "NotLoadedError",
    "RemoteSegment",
    "SegmentInfo",
    "Tier",
]

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a segment that are read back, checked and cached as one."""
RESTORED: Final = ".restored"
"""Ends the name of a copy that is being brought back, until it has a segment's place."""
_MAGIC: Final = b"pstier01"
_HEAD = struct.Struct("<8sIII")
_FORMAT: Final = 1


class NotLoadedError(StorageError):
    """What was asked for lies in the tier and isn't at hand: load it, then ask again.

    Attributes:
        segment: where it lies.
        chunks: the numbers of the chunks that are missing; none: the segment's index is.
    """

    def __init__(self, segment: RemoteSegment, chunks: Sequence[int]) -> None:
        super().__init__(
            f"expected {segment.name} at hand; found it in object storage only; ask again"
        )
        self.segment = segment
        self.chunks = tuple(chunks)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A local segment that is closed and durable: it will never change.

    Attributes:
        base_offset: its first offset.
        next_offset: the offset after its last one.
        size: its bytes.
        max_timestamp: of its records, -1 where it has none.
        path: of its file.
        index_path: of its index file.
        aborted: the aborted transactions with records in it: producer id, first and last offset.
        is_incomplete: recovery found some of it damaged or lost.
    """

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    path: str
    index_path: str
    aborted: tuple[tuple[int, int, int], ...] = ()
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One segment in the store, as the manifest lists it.

    Attributes:
        base_offset: its first offset.
        next_offset: the offset after its last one.
        size: its bytes.
        max_timestamp: of its records, -1 where it has none.
        name: of its object, unique for each attempt to copy; the index object is `name.index`.
        checksum: CRC-32C of the whole segment.
        index_size: bytes of the index object.
        index_checksum: CRC-32C of the index object.
        aborted: aborted transactions: producer id, first and last offset.
    """

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    name: str
    checksum: int
    index_size: int
    index_checksum: int
    aborted: tuple[tuple[int, int, int], ...] = ()

    @property
    def index_name(self) -> str:
        """The index object's name."""
        return self.name + ".index"

    def chunks_of(self, at: int, size: int) -> range:
        """The numbers of the chunks that hold bytes `at` to `at + size`."""
        end = min(at + size, self.size)
        return range(at // CHUNK_BYTES, -(-end // CHUNK_BYTES))


class Tier(Protocol):
    """Where a partition's remote segments are read."""

    def open(self, segment: RemoteSegment) -> Segment:
        """The segment, to be read as a local one; reads of what isn't at hand raise too.

        Raises:
            NotLoadedError: its index isn't at hand.
        """
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """What of a partition lies in the store. A value: a change makes another one."""

    segments: tuple[RemoteSegment, ...] = ()
    local_start_offset: int = 0
    _bases: tuple[int, ...] = field(default=(), repr=False, compare=False)
    _ends: tuple[int, ...] = field(default=(), repr=False, compare=False)  # before each gap

    def __post_init__(self) -> None:
        bases = tuple(one.base_offset for one in self.segments)
        ends = [
            one.next_offset
            for one, following in zip(self.segments, bases[1:], strict=False)
            if one.next_offset != following
        ]
        ends += [one.next_offset for one in self.segments[-1:]]
        object.__setattr__(self, "_bases", bases)
        object.__setattr__(self, "_ends", tuple(ends))

    @property
    def start_offset(self) -> int:
        """The first offset in the store; 0 where it holds nothing."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """The offset after the last one in the store; 0 where it holds nothing."""
        return self.segments[-1].next_offset if self.segments else 0

    def segment_of(self, offset: int) -> RemoteSegment | None:
        """The segment that holds the offset."""
        found = bisect_right(self._bases, offset) - 1
        if found < 0 or offset >= self.segments[found].next_offset:
            return None
        return self.segments[found]

    def missing_from(self, offset: int) -> int:
        """The first offset from this one on that isn't in the store."""
        if self.segment_of(offset) is None:
            return offset
        return self._ends[bisect_right(self._ends, offset)]

    def base_after(self, offset: int) -> int | None:
        """The base offset of the first segment beyond an offset."""
        found = bisect_right(self._bases, offset)
        return self._bases[found] if found < len(self._bases) else None

    def added(self, segment: RemoteSegment) -> Manifest:
        """With one more segment."""
        at = bisect_right(self._bases, segment.base_offset)
        before, after = self.segments[:at], self.segments[at:]
        assert not before or before[-1].next_offset <= segment.base_offset
        assert not after or segment.next_offset <= after[0].base_offset
        return replace(self, segments=(*before, segment, *after))

    def trimmed(self, start_offset: int) -> Manifest:
        """Without the segments that end at or before an offset."""
        kept = tuple(one for one in self.segments if one.next_offset > start_offset)
        return self if len(kept) == len(self.segments) else replace(self, segments=kept)

    def dropped(self, local_start_offset: int) -> Manifest:
        """With a later local start."""
        assert self.local_start_offset <= local_start_offset <= self.end_offset
        return replace(self, local_start_offset=local_start_offset)

    def dump(self) -> bytes:
        """The file's bytes."""
        body = json.dumps(
            {
                "format": _FORMAT,
                "local_start_offset": self.local_start_offset,
                "segments": [asdict(one) for one in self.segments],
            }
        ).encode()
        return b"%08x " % crc32c(body) + body

    @classmethod
    def restore(cls, data: bytes | None) -> Manifest | None:
        """The manifest in a file's bytes, None where they are missing.

        Raises:
            StorageError: they are damaged.
        """
        if data is None:
            return None
        if data[:9] != b"%08x " % crc32c(data[9:]):
            raise StorageError(
                f"expected a manifest of remote segments; found {data[:40]!r}…: its checksum is "
                "wrong; restore the file from the newest manifest in the object storage"
            )
        described = json.loads(data[9:])
        segments = tuple(
            RemoteSegment(**{**one, "aborted": tuple(tuple(each) for each in one["aborted"])})
            for one in described["segments"]
        )
        return cls(segments, int(described["local_start_offset"]))

    def check(self) -> None:
        """Asserts the invariant."""
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            assert before.next_offset <= after.base_offset
        assert len({one.name for one in self.segments}) == len(self.segments)
        assert all(one.size > 0 and one.base_offset < one.next_offset for one in self.segments)


@dataclass(frozen=True, slots=True)
class Chunks:
    """An index object: a segment's sparse index and its chunks' checksums."""

    index: SparseIndex
    checkpoint: Checkpoint
    checksums: Sequence[int]
    aborted: AbortedIndex

    @staticmethod
    def dump(index: bytes, checksums: Sequence[int]) -> bytes:
        """The object's bytes."""
        table = struct.pack(f"<{len(checksums)}I", *checksums)
        return _HEAD.pack(_MAGIC, CHUNK_BYTES, len(checksums), len(index)) + table + index

    def index_file(self) -> bytes:
        """The segment's index file, as it was."""
        return self.index.dump(self.checkpoint, self.aborted)

    @classmethod
    def load(cls, data: bytes, segment: RemoteSegment) -> Chunks:
        """What an object's bytes say.

        Raises:
            StorageError: they are not what was written.
        """
        if len(data) == segment.index_size and crc32c(data) == segment.index_checksum:
            magic, chunk_bytes, count, index_size = _HEAD.unpack_from(data)
            table_end = _HEAD.size + 4 * count
            if magic == _MAGIC and chunk_bytes == CHUNK_BYTES:
                checksums = array("I", struct.unpack_from(f"<{count}I", data, _HEAD.size))
                loaded = SparseIndex.load(data[table_end : table_end + index_size])
                if loaded is not None:
                    return cls(loaded[0], loaded[1], checksums, loaded[2])
        raise StorageError(
            f"expected the index object {segment.index_name} as it was written "
            f"({segment.index_size} bytes); found {len(data)} bytes that differ; the store has "
            "lost or changed it: restore the object"
        )
