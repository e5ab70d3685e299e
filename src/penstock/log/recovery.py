"""Recovery: what a partition's files tell after whatever ended the last process.

What a checkpoint vouches for is believed without being read. The rest of each segment is scanned:
whole batches are kept, a torn end is cut, and the producers' state follows from the batches behind
its snapshot. Where the snapshot and the log don't fit together, only the log counts.

Invariant: of what was durable nothing is dropped silently, and no offset of it is given out again.
Bytes that are cut were never said to be durable; what was and isn't readable any more is damage, which
the segment keeps in mind, or a file that is set aside; both are counted. An index file without its
segment tells of one that is lost: it is stored after the segment and deleted before it. So does the
tier's manifest, of a segment between local ones; what it lists is read there meanwhile.

Source: Kafka's LogLoader.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from penstock.log.errors import StorageError
from penstock.log.files import LogFiles
from penstock.log.index import SparseIndex
from penstock.log.markers import Aborted, Marker
from penstock.log.memory import MemoryFiles
from penstock.log.producers import Producers
from penstock.log.segment import NAME_DIGITS, Segment, segment_name
from penstock.log.tier import RESTORED, Manifest
from penstock.wire.batches import NO_PRODUCER, Header
from penstock.wire.checksum import crc32c

__all__ = ["Recovered", "begin_after_hole", "note_end", "recover", "start_document"]


@dataclass(slots=True)
class Recovered:
    """A partition as its files tell it.

    Attributes:
        remote: what lies in the tier.
        producers: producers and open transactions, as of the log's end.
        snapshot_offset: what the stored snapshot of them covers.
        start_offset: of the log, wherever its records lie.
        segments: the local ones, contiguous, one at least.
        unsynced: closed ones that may be in the page cache only.
        unsynced_bytes: what no checkpoint vouches for.
        durable_offset: everything before it is on the disk.
        cut_bytes: bytes that were left out.
        tier_fault: why it isn't known what lies in the tier, if it isn't.
        is_end_unknown: nothing is left that says at which offset to go on.
        faults: what is not as it was written, but for what segments know of.
    """

    remote: Manifest
    producers: Producers
    snapshot_offset: int
    start_offset: int
    segments: list[Segment]
    unsynced: list[Segment]
    unsynced_bytes: int
    durable_offset: int
    cut_bytes: int
    tier_fault: str
    is_end_unknown: bool
    faults: list[str]


def recover(
    files: LogFiles,
    directory: str,
    gaps_upto: int,
    now_ms: int,
    *,
    may_tier: bool,
    was_there: bool,
) -> Recovered:
    """Opens a partition's files.

    Args:
        files: where they are.
        directory: the partition's.
        gaps_upto: compaction may have left gaps between offsets before this one.
        now_ms: the time.
        may_tier: segments may lie in a tier, and no longer here.
        was_there: the partition isn't a new one, so there should be a segment.
    """
    recovery = _Recovery(files, directory, gaps_upto, now_ms, was_there=was_there)
    return recovery.run(may_tier=may_tier)


def start_document(start_offset: int) -> bytes:
    """What the file of the log's start holds."""
    body = json.dumps({"start_offset": start_offset}).encode()
    return b"%08x " % crc32c(body) + body


def note_end(
    producers: Producers, segment: Segment, header: Header, marker: Marker, now_ms: int
) -> None:
    """Takes note of a marker that is in the log."""
    first = producers.end(
        header.producer_id, header.producer_epoch, marker.coordinator_epoch, now_ms
    )
    known = segment.aborted.last
    if marker.commit or first is None or (known and known[-1] >= header.base_offset):
        return
    entry = Aborted(header.producer_id, first, header.base_offset)
    stable = producers.first_open
    segment.aborted.append(entry, header.next_offset if stable is None else stable)


def begin_after_hole(files: LogFiles, directory: str, offset: int, now_ms: int) -> Segment:
    """A new segment after a hole. Its index vouches for what lies before, so that the next start
    doesn't take the hole for the log's end.
    """
    segment = Segment(files, directory, offset, now_ms)
    with contextlib.suppress(OSError):  # a full disk: the next checkpoint stores it
        files.store(segment.index_path, segment.checkpoint())
    return segment


class _Recovery:
    def __init__(
        self, files: LogFiles, directory: str, gaps_upto: int, now_ms: int, *, was_there: bool
    ) -> None:
        self._was_there = was_there
        self._files = files
        self._directory = directory
        self._gaps_upto = gaps_upto
        self._now_ms = now_ms
        self._remote, self._tier_fault = Manifest(), ""
        self._is_end_unknown = False
        self._faults: list[str] = []
        stored = files.load(f"{directory}/producers")
        restored = Producers.restore(stored)
        if stored is not None and restored is None:
            self._faults.append(
                f"expected producers with a checksum in {directory}/producers, found {stored[:40]!r}; "
                "the log is read for them"
            )
        self._has_snapshot = restored is not None
        self._producers, self._replay_from = restored or (Producers(), 0)
        self._must_rebuild = self._lacks_end = False
        self._segments: list[Segment] = []
        self._cut_bytes = 0

    def run(self, *, may_tier: bool) -> Recovered:
        names = self._files.list(self._directory)
        stored_start = self._load_start()
        bases = self._bases(names, stored_start)
        self._remote = self._load_manifest(bases, stored_start or 0, may_tier=may_tier)
        names = self._without_dropped(names)
        start_offset, tiered_upto = stored_start or 0, self._remote.end_offset
        bases = self._with_copied(bases, {_base_of(name, ".log") for name in names})
        begins = max(start_offset, tiered_upto)
        is_known = stored_start is not None and not self._tier_fault
        if bases and is_known and bases[0] > begins:
            bases.insert(0, begins)
        if bases or not self._was_there:
            self._open(bases or [begins])
        else:
            self._open_nothing(begins)
        kept = {one.base_offset for one in self._segments}
        for name in names:
            if name.endswith(RESTORED):
                self._files.delete(f"{self._directory}/{name}")
            if name.endswith(".index") and _base_of(name, ".index") not in kept:
                self._files.delete(f"{self._directory}/{name}")
        first, end = self._segments[0].base_offset, self._segments[-1].next_offset
        if self._must_rebuild or not first <= self._replay_from <= end:
            self._rebuild()
        if self._lacks_end:
            self._store_producers(end)
        if self._remote.segments:
            first = min(first, self._remote.start_offset)
        unsynced, unsynced_bytes, durable_offset = self._distrusted()
        return Recovered(
            self._remote,
            self._producers,
            self._replay_from,
            start_offset if self._tier_fault else max(start_offset, first),
            self._segments,
            unsynced,
            unsynced_bytes,
            durable_offset,
            self._cut_bytes,
            self._tier_fault,
            self._is_end_unknown,
            self._faults,
        )

    def _bases(self, names: list[str], stored_start: int | None) -> list[int]:
        """Where segments begin: those that are there, and those of which an index file tells.

        Retention may delete a segment whose index a sync is about to store: such an index speaks
        of nothing beyond the log's start.
        """
        found = [base for name in names if (base := _base_of(name, ".log")) is not None]
        floor = stored_start if stored_start is not None else min(found, default=0)
        there = set(found)
        for name in names:
            base = _base_of(name, ".index")
            if base is None or base in there:
                continue
            loaded = SparseIndex.load(self._files.load(f"{self._directory}/{name}"))
            if loaded is None and base >= floor:
                self._faults.append(
                    f"expected a segment beside {self._directory}/{name}, found none, and the index "
                    "itself damaged; if there was a segment, its records are lost"
                )
            elif loaded and loaded[1].valid_bytes and loaded[1].next_offset > max(floor, base):
                found.append(base)
        return sorted(found)

    def _with_copied(self, bases: list[int], there: set[int | None]) -> list[int]:
        """Where local segments begin: what is lost, but in the tier, stays a place among the others."""
        found = {one for one in bases if one in there or self._remote.segment_of(one) is None}
        if found:
            first = min(found)
            found |= {one.base_offset for one in self._remote.segments if one.base_offset > first}
        return sorted(found)

    def _open(self, bases: list[int]) -> None:
        for i, base in enumerate(bases):
            if self._segments and base != self._segments[-1].next_offset:
                self._set_aside_from(base)
                break
            segment = Segment(self._files, self._directory, base, self._now_ms)
            beyond = segment.recover(self._replay, self._replay_from, self._gaps_upto)
            self._end_segment(segment, beyond, bases[i + 1 :])
            self._segments.append(segment)
        last = self._segments[-1]
        if (
            last.next_offset < self._replay_from
        ):  # a snapshot is stored once all before it is durable
            self._give_up_end(last, self._replay_from)
        if last.is_incomplete:
            self._segments.append(self._begin_at(last.next_offset))

    def _open_nothing(self, begins: int) -> None:
        """No segment is left. The producers' snapshot still says how far the log came."""
        self._faults.append(
            f"expected segments in {self._directory}, found none; the records in them are lost if there "
            "were any: restore the files from a copy"
        )
        end = max(begins, self._replay_from)
        if self._tier_fault and not self._has_snapshot:
            self._is_end_unknown = True
            self._segments = [Segment(MemoryFiles(), self._directory, begins, self._now_ms)]
        elif self._tier_fault or end == begins:
            self._segments = [self._begin_at(end)]
        else:
            hole = Segment(self._files, self._directory, begins, self._now_ms)
            hole.give_up(end)
            self._segments = [hole, self._begin_at(end)]

    def _begin_at(self, offset: int) -> Segment:
        return begin_after_hole(self._files, self._directory, offset, self._now_ms)

    def _end_segment(self, segment: Segment, beyond: int, later: list[int]) -> None:
        """Cuts what recovery found torn, or lets the damaged rest of a segment be.

        A checkpoint is stored once all before it is durable. So if a later segment has one, or this
        one's own goes further, this one was whole, and what isn't so any more is damage, to be refused
        when it is read. Without one it is how far the log came before the power failed.
        """
        copy = self._remote.segment_of(segment.base_offset)
        if copy is not None and segment.next_offset < copy.next_offset:
            segment.give_up(copy.next_offset)
            segment.max_timestamp = copy.max_timestamp
            return
        is_whole = not beyond and (not later or segment.next_offset == later[0])
        if is_whole and not segment.missing_bytes:
            return
        was_whole = segment.missing_upto > segment.next_offset
        if later and segment.next_offset <= later[0]:
            if was_whole or any(map(self._is_vouched_for, later)):
                segment.give_up(later[0])
                return
        elif was_whole and not later:
            self._give_up_end(segment, segment.missing_upto)
            return
        self._cut_bytes += beyond
        if segment.missing_bytes:
            self._faults.append(f"{segment.path} lost {segment.missing_bytes} bytes at its end")
        segment.cut()

    def _give_up_end(self, segment: Segment, offset: int) -> None:
        segment.give_up(offset)
        # A producer that sends the lost end again must not be told that it is there.
        self._must_rebuild = self._lacks_end = True

    def _is_vouched_for(self, base: int) -> bool:
        path = f"{self._directory}/{segment_name(base)}.index"
        return SparseIndex.load(self._files.load(path)) is not None

    def _load_manifest(self, bases: list[int], start_offset: int, *, may_tier: bool) -> Manifest:
        """What lies in the tier. Where that is lost, what is local is kept and served; offsets
        below are refused rather than taken for deleted, until `adopt` is told what there is.
        """
        path = f"{self._directory}/tier"
        try:
            found = Manifest.restore(self._files.load(path))
        except StorageError as error:
            self._tier_fault = f"{path}: {error}"
            return Manifest()
        lacks_some = min(bases) > start_offset if bases else self._was_there
        if found is None and lacks_some and may_tier:
            where = f"begins at offset {min(bases)}" if bases else "is gone"
            self._tier_fault = (
                f"expected a manifest of remote segments in {path}, for the local "
                f"log {where}; found none. Restore the file from the newest manifest in the object "
                "storage"
            )
        return found or Manifest()

    def _without_dropped(self, names: list[str]) -> list[str]:
        """Removes what `drop_local` was about to remove: the tier has it."""
        kept = []
        for name in names:
            stem = name.partition(".")[0]
            if stem.isdigit() and int(stem) < self._remote.local_start_offset:
                self._files.delete(f"{self._directory}/{name}")
            else:
                kept.append(name)
        return kept

    def _distrusted(self) -> tuple[list[Segment], int, int]:
        """What no checkpoint vouches for may be in the page cache only: it awaits a sync. The
        closed segments of which that is so, how many bytes, and up to where all is durable.
        """
        unsynced: list[Segment] = []
        total, durable_offset = 0, self._segments[-1].next_offset
        for segment in reversed(self._segments):
            if segment.is_incomplete:
                continue
            scanned = segment.size - segment.trusted_bytes
            if scanned:
                total += scanned
                durable_offset = segment.base_offset
                if segment is not self._segments[-1]:
                    unsynced.insert(0, segment)
        return unsynced, total, durable_offset

    def _replay(self, segment: Segment, position: int, header: Header) -> None:
        """Takes note of a batch that is in the log, if the snapshot doesn't cover it."""
        if header.base_offset < self._replay_from:
            # The snapshot is newer than the segment's index, which lacks this marker.
            self._must_rebuild |= header.is_control and header.base_offset >= segment.vouched_upto
        elif header.producer_id == NO_PRODUCER:
            pass
        elif header.is_control:
            marker = segment.marker(position, header)
            note_end(self._producers, segment, header, marker, self._now_ms)
        else:
            # Nobody knows when the batch was written: its records may tell of any time, so a
            # producer of old events must not be taken for one that was silent for long.
            self._producers.record(header, header.base_offset, self._now_ms)

    def _rebuild(self) -> None:
        """Aborted transactions that no index knows of, and, where the snapshot and the log don't fit
        together, the producers: then only the log counts. But a transaction of which the snapshot knows
        that it has ended isn't open, wherever its marker is: readers of committed data would wait for
        it for ever.
        """
        first, end = self._segments[0].base_offset, self._segments[-1].next_offset
        fits = self._has_snapshot and not self._lacks_end and first <= self._replay_from <= end
        known, replay_from = self._producers, self._replay_from
        self._producers, self._replay_from = Producers(), 0
        for segment in self._segments:
            segment.aborted = segment.aborted.before(segment.vouched_upto)
            for position, header in segment.headers(0):
                self._replay(segment, position, header)
        if fits:
            self._producers, self._replay_from = known, replay_from
        elif self._has_snapshot:
            self._producers.close_others(set(known.open_transactions()))

    def _store_producers(self, end: int) -> None:
        """Takes the place of a snapshot that knows of batches that are lost."""
        with contextlib.suppress(OSError):  # a full disk: the next checkpoint stores it
            self._files.store(f"{self._directory}/producers", self._producers.snapshot(end))
            self._replay_from = end

    def _set_aside_from(self, base: int) -> None:
        """Renames the segments after a gap: they can't be read in order. Their bytes count as
        cut.
        """
        for name in self._files.list(self._directory):
            path = f"{self._directory}/{name}"
            log_base, index_base = _base_of(name, ".log"), _base_of(name, ".index")
            if log_base is not None and log_base >= base:
                file = self._files.open(path)
                self._cut_bytes += file.size()
                file.close()
                self._files.rename(path, path + ".lost")
            elif index_base is not None and index_base >= base:
                self._files.delete(path)

    def _load_start(self) -> int | None:
        """The stored start, 0 where none was ever stored, None where it can't be read."""
        data = self._files.load(f"{self._directory}/start")
        if data is None:
            return 0
        if data[:9] != b"%08x " % crc32c(data[9:]):
            self._faults.append(
                f"expected the log's start in {self._directory}/start, found {data[:40]!r}: its "
                "checksum is wrong; records that were deleted may be there again"
            )
            return None
        return int(json.loads(data[9:])["start_offset"])


def _base_of(name: str, suffix: str) -> int | None:
    """The base offset in a file's name; None for another file."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == NAME_DIGITS and stem.isdigit() else None
