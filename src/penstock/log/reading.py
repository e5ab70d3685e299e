"""Reading a partition: what of it lies where, and its batches from any offset on.

Local segments are contiguous and reach the end of the log; older ones may lie in a tier. What is
damaged or lost here is read there, if the tier has it. The state is the partition's (see
`penstock.log.partition`), which sets it and changes it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NoReturn

from penstock.log.aside import LOST, set_aside_in
from penstock.log.disk.files import LogFiles
from penstock.log.errors import DamagedError, OffsetRangeError, StorageError
from penstock.log.markers import Aborted
from penstock.log.producers import Producers
from penstock.log.segments.segment import Segment
from penstock.log.tier import Manifest, RemoteSegment, Tier
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Buffer

__all__ = ["PartitionReader"]


class PartitionReader:
    """The part of a partition that only reads."""

    config: LogConfig
    directory: str
    failure: str | None
    segments: list[Segment]
    remote: Manifest
    tier: Tier | None
    tier_fault: str
    is_end_unknown: bool
    start_offset: int
    settled_offset: int
    producers: Producers
    _files: LogFiles
    _faults: list[str]

    # -- state -------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets; also the high watermark."""
        return self.segments[-1].next_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction; the end where none is open."""
        first = self.producers.first_open
        return self.end_offset if first is None else max(first, self.start_offset)

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each producer's open transaction."""
        return self.producers.open_transactions()

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether that incarnation of the producer has a transaction open here."""
        return self.producers.has_open(producer_id, epoch)

    def aborted(self, lo: int, hi: int) -> list[Aborted]:
        """The aborted transactions that overlap [lo, hi), by first offset."""
        found: list[Aborted] = []
        at = bisect_right(self.segments, lo, key=lambda segment: segment.base_offset)
        for segment in self.segments[max(at - 1, 0) :]:
            some, is_all = segment.aborted.overlapping(lo, hi)
            found += some
            if is_all:
                break
        if lo < self.remote.end_offset:
            tiered = [
                one for one in self._read_in_tier() if one.next_offset > lo and one.base_offset < hi
            ]
            more = {Aborted(*one) for remote in tiered for one in remote.aborted}
            found += [one for one in more.difference(found) if one[1] < hi and one[2] >= lo]
        return sorted(found, key=lambda one: one.first_offset)

    @property
    def damaged(self) -> int:
        """How many places in the log are known not to be as they were written."""
        return len(self._faults) + sum(len(one.damage) for one in self.segments)

    def damage(self) -> list[str]:
        """What is known to be damaged, or was set aside, in words."""
        found = [
            f"expected offsets {one.first_offset} to {one.next_offset - 1} in {segment.path}; found "
            f"{one.what}; "
            + (
                "the tier has them: they are served from there, and the file is restored"
                if self.remote.missing_from(one.first_offset) >= one.next_offset
                else "restore the file from a copy if there is one"
            )
            for segment in self.segments
            for one in segment.damage
        ]
        return [*self._faults, *found, *(f"{name} was set aside" for name in self.lost_files())]

    def holes(self) -> list[tuple[int, int]]:
        """The offsets that are known to be unreadable: each hole's first, and the first behind it."""
        found = [one for segment in self.segments for one in segment.damage]
        return sorted((one.first_offset, one.next_offset) for one in found)

    def lost_files(self) -> list[str]:
        """Segments that recovery set aside, as they don't follow on the log."""
        return set_aside_in(self._files, self.directory, LOST)

    @property
    def size(self) -> int:
        """Bytes in the log's local segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def manifest_path(self) -> str:
        """Where the list of remote segments is kept."""
        return f"{self.directory}/tier"

    @property
    def uncopied_offset(self) -> int:
        """The first offset that isn't in the tier and should come there next."""
        return self.remote.missing_from(max(self.segments[0].base_offset, self.start_offset))

    @property
    def local_start_offset(self) -> int:
        """The first offset that is on the local disk; what lies below is in the tier."""
        return max(self.start_offset, self.segments[0].base_offset)

    def is_remote(self, offset: int) -> bool:
        """Whether a read there is one of the tier, as far as is known: damage is found by reading."""
        if offset < self.local_start_offset:
            return offset >= self.start_offset
        if offset >= self.remote.end_offset:
            return False
        damage = self._segment_of(offset).damage
        return (
            bool(damage)
            and self._copy_at(offset) is not None
            and any(one.first_offset <= offset < one.next_offset for one in damage)
        )

    def damaged_copies(self) -> list[RemoteSegment]:
        """What the tier has of local segments that are known to be damaged or lost."""
        copies = [self._copy_at(one.base_offset) for one in self.segments[:-1] if one.is_damaged]
        return [one for one in copies if one is not None]

    # -- reading -----------------------------------------------------------------------------------

    def _copy_at(self, offset: int) -> RemoteSegment | None:
        """What can be read in the tier instead of a local segment."""
        return None if self.tier is None else self.remote.segment_of(offset)

    def _segment_of(self, offset: int) -> Segment:
        if offset < self.segments[0].base_offset:
            self._require_manifest()
            remote = self.remote.segment_of(offset)
            if remote is None:
                self._refuse_gap(offset)
            return self._open_remote(remote)
        found = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[max(found - 1, 0)]

    def _refuse_gap(self, offset: int) -> NoReturn:
        following = self.remote.base_after(offset) or self.segments[0].base_offset
        raise DamagedError(
            f"expected offset {offset} of {self.directory} in a local segment, as the tier lacks it; "
            f"found none; read on from offset {following}, and restore the segment's file from a copy",
            following,
        )

    def require_end(self) -> None:
        """Raises StorageError if it isn't known where the log begins and ends."""
        if self.is_end_unknown:
            raise StorageError(self.tier_fault)

    def _require_manifest(self) -> None:
        if self.tier_fault:
            raise StorageError(self.tier_fault)

    def _open_remote(self, remote: RemoteSegment) -> Segment:
        if self.tier is None:
            raise StorageError(
                f"expected a broker with the object storage that holds {remote.name}; found none; "
                "start it with --tier"
            )
        return self.tier.open(remote)

    def check_offset(self, offset: int) -> None:
        """Raises OffsetRangeError unless a read may start at `offset`."""
        self.require_end()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetRangeError(
                f"expected an offset from {self.start_offset} to {self.end_offset} of "
                f"{self.directory}; found {offset}"
            )

    def read(
        self, offset: int, bytes_max: int, *, at_least_one: bool = True, upto: int | None = None
    ) -> Buffer:
        """Whole batches from the one that holds `offset` on, of one segment, at most `bytes_max`.

        The first batch may begin below `offset`; the reader skips what it didn't ask for. With
        `at_least_one` the first batch is returned even where it alone is larger. With `upto` only
        batches that begin below that offset are returned (a reader of committed data passes the
        last stable offset). Empty at the end of the log.

        Raises:
            OffsetRangeError: the offset is below the log's start or beyond its end.
            StorageError: the disk failed.
            NotLoadedError: the bytes lie in the tier, and aren't at hand.
        """
        self.check_offset(offset)
        end = self.end_offset if upto is None else upto
        try:
            while True:
                segment = self._segment_of(offset)
                data = self._read_in(segment, offset, bytes_max, at_least_one, end)
                following = _after_hollow(data)
                if following is None or following >= end or segment is self.active:
                    return data
                offset = following
        except OSError as error:
            raise StorageError(f"expected to read {self.directory}; found: {error}") from error

    def _read_in(
        self,
        segment: Segment,
        offset: int,
        bytes_max: int,
        at_least_one: bool,  # noqa: FBT001
        upto: int,
    ) -> Buffer:
        try:
            return segment.read(offset, bytes_max, at_least_one=at_least_one, upto=upto)
        except (DamagedError, OSError) as error:
            copy = self._copy_at(offset)
            if copy is None:
                raise
            if isinstance(error, OSError):
                segment.lose()
        return self._open_remote(copy).read(offset, bytes_max, at_least_one=at_least_one, upto=upto)

    def bytes_from(self, offset: int) -> int:
        """Bytes that a reader at `offset` has before it."""
        if offset >= self.end_offset:
            return 0
        if offset < self.segments[0].base_offset:  # whole segments: what is known without a read
            tiered = [one for one in self._tiered() if one.next_offset > offset]
            return sum(one.size for one in tiered) + self.size
        segment = self._segment_of(offset)
        later = sum(one.size for one in self.segments if one.base_offset > segment.base_offset)
        return segment.size - segment.locate(offset) + later

    def _tiered(self) -> list[RemoteSegment]:
        """The segments that lie in the tier only, or before the log's start."""
        local_from = self.segments[0].base_offset
        return [one for one in self.remote.segments if one.next_offset <= local_from]

    def _read_in_tier(self) -> list[RemoteSegment]:
        """The same, and those that are damaged here."""
        return self._tiered() + self.damaged_copies()

    def find_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record at or after the time; None if there is none.

        Raises:
            NotLoadedError: the answer lies in the tier, and isn't at hand.
        """
        self._require_manifest()
        for remote in self._tiered():
            if remote.max_timestamp < timestamp_ms or remote.next_offset <= self.start_offset:
                continue
            found = self._open_remote(remote).find_time(timestamp_ms, self.start_offset)
            if found is not None:
                return found
        for segment in self.segments:
            found = segment.find_time(timestamp_ms, self.start_offset)
            copy = self._copy_at(segment.base_offset) if segment.is_damaged else None
            if copy is not None:
                found = self._open_remote(copy).find_time(timestamp_ms, self.start_offset)
            if found is not None:
                return found
        return None

    def find_latest_time(self) -> tuple[int, int] | None:
        """Offset and time (ms) of the first record with the greatest time; None if log is empty."""
        pieces: list[Segment | RemoteSegment] = [*self._read_in_tier(), *self.segments]
        times = [one.max_timestamp for one in pieces if one.next_offset > self.start_offset]
        newest = max(times, default=-1)
        while newest >= 0 and self.start_offset < self.end_offset:
            found = self.find_time(newest)
            if found is not None:
                return found
            newest = self._newest_after_start()
        return None

    def _newest_after_start(self) -> int:
        """The greatest time at or after the start, where the segment's own lies before it."""
        newest = -1
        tiered = [one for one in self._read_in_tier() if one.next_offset > self.start_offset]
        for segment in [*(self._open_remote(one) for one in tiered), *self.segments]:
            if segment.next_offset <= self.start_offset:
                continue
            for position, header in segment.headers(segment.index.at_offset(self.start_offset)):
                if header.next_offset > self.start_offset:
                    batch = segment.file.read(position, header.size)
                    times = batches.record_times(batch, 0, header)
                    kept = [time_ms for offset, time_ms in times if offset >= self.start_offset]
                    newest = max([newest, *kept])
        return newest


def _after_hollow(data: Buffer) -> int | None:
    """Where to read on, if there are batches but no records in `data`: what compaction left behind
    for its offsets' sake. Clients would take it for a record that doesn't fit into their answer.
    """
    following = None
    if len(data) >= HEADER_BYTES and batches.parse(data).record_count == 0:
        for _, header in batches.iterate(data):
            if header.record_count:
                return None
            following = header.next_offset
    return following
