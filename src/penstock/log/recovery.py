"""Recovery: what a partition's files show after whatever ended the last process.

What a checkpoint vouches for is believed without being read. The rest of each segment is scanned:
whole batches are kept, what is damaged between them is left where it is, a torn end is cut, and the
producers' state follows from the batches behind its snapshot. Where the snapshot and the log don't fit
together, only the log counts.

Invariant: whole batches are kept, and no offset of what is known to have been there is given out
again. What isn't readable any more is damage, which the segment keeps in mind, or a file that is set
aside; both are counted. Bytes at the end that are no whole batch are cut, and kept aside as well: a
write that was cut short looks like a file that was. Only after the machine went down whole batches are
cut with them, behind a place that was never written (see `penstock.log.segments.scanning`). A segment
with damage is closed, so that a copy of its file can take its place.

A segment that is lost, of which there is other evidence (see `penstock.log.inventory`), keeps its place;
what the tier's manifest lists is read there meanwhile.

Source: Kafka's LogLoader.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from penstock.log.aside import LOST, keep_cut
from penstock.log.disk.files import LogFiles
from penstock.log.disk.memory import MemoryFiles
from penstock.log.inventory import Inventory, base_of
from penstock.log.markers import Aborted, Marker
from penstock.log.producers import Producers
from penstock.log.segments.index import SparseIndex
from penstock.log.segments.scanning import find_gap
from penstock.log.segments.segment import OFFSETS_MAX, Segment, segment_name
from penstock.log.segments.verification import Damage
from penstock.log.tier import RESTORED, Manifest
from penstock.wire.batches import NO_PRODUCER, Buffer, Header

__all__ = [
    "Interrupted",
    "Recovered",
    "begin_after_hole",
    "interrupted_at",
    "note_end",
    "recover",
]


class Interrupted(NamedTuple):
    """A transaction that was open where the log is damaged: some of it, or its end, may be lost."""

    producer_id: int
    first_offset: int
    hole_first: int
    hole_next: int


@dataclass(slots=True)
class Recovered:
    """A partition as its files show it.

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
        is_end_unknown: nothing is left that says at which offset to continue.
        faults: what is not as it was written, but for what segments know of.
        notes: what was cut, and other things that people should know.
        interrupted: the transactions that damage may have split, or joined to others.
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
    notes: list[str]
    interrupted: list[Interrupted]


def recover(
    files: LogFiles,
    directory: str,
    gaps_upto: int,
    now_ms: int,
    *,
    may_tier: bool,
    was_there: bool,
    lost_power: bool,
) -> Recovered:
    """Opens a partition's files.

    Args:
        files: where they are.
        directory: the partition's.
        gaps_upto: compaction may have left gaps between offsets before this one.
        now_ms: the time.
        may_tier: segments may lie in a tier, and no longer here.
        was_there: the partition isn't a new one, so there should be a segment.
        lost_power: the machine may have gone down since, and not all that was written have reached
            the disk.
    """
    recovery = _Recovery(
        files, directory, gaps_upto, now_ms, was_there=was_there, lost_power=lost_power
    )
    return recovery.run(may_tier=may_tier)


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


def interrupted_at(producers: Producers, first: int, next_offset: int) -> list[Interrupted]:
    """The transactions that are open where damage begins."""
    return [
        Interrupted(producer_id, began, first, next_offset)
        for producer_id, began in producers.open_transactions().items()
    ]


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
        self,
        files: LogFiles,
        directory: str,
        gaps_upto: int,
        now_ms: int,
        *,
        was_there: bool,
        lost_power: bool,
    ) -> None:
        self._was_there = was_there
        self._lost_power = lost_power
        self._files = files
        self._directory = directory
        self._gaps_upto = gaps_upto
        self._now_ms = now_ms
        self._remote, self._tier_fault = Manifest(), ""
        self._is_end_unknown = False
        self._faults: list[str] = []
        self._notes: list[str] = []
        self._interrupted: list[Interrupted] = []
        self._bases: list[int] = []
        stored = files.load(f"{directory}/producers")
        restored = Producers.restore(stored)
        if stored is not None and restored is None:
            self._faults.append(
                f"expected producers with a checksum in {directory}/producers; found {stored[:40]!r}; "
                "the log is read for them"
            )
        self._has_snapshot = restored is not None
        self._producers, self._replay_from = restored or (Producers(), 0)
        self._must_rebuild = self._lacks_end = False
        self._segments: list[Segment] = []
        self._cut_bytes = 0

    def run(self, *, may_tier: bool) -> Recovered:
        there = Inventory(
            self._files, self._directory, may_tier=may_tier, was_there=self._was_there
        )
        self._remote, self._tier_fault = there.remote, there.tier_fault
        self._faults += there.faults
        start_offset = there.start_offset or 0
        if there.bases or not self._was_there:
            self._open(there.bases or [there.begins])
        else:
            self._open_nothing(there.begins)
        kept = {one.base_offset for one in self._segments}
        for name in there.names:
            if name.endswith(RESTORED):
                self._files.delete(f"{self._directory}/{name}")
            if name.endswith(".index") and base_of(name, ".index") not in kept:
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
            self._notes,
            self._interrupted,
        )

    def _open(self, bases: list[int]) -> None:
        self._bases = bases
        for i, base in enumerate(bases):
            if self._segments and base != self._segments[-1].next_offset:
                self._set_aside_from(base)
                break
            segment = Segment(self._files, self._directory, base, self._now_ms)
            later = bases[i + 1 :]
            beyond = segment.recover(
                self._replay,
                self._replay_from,
                self._gaps_upto,
                offset_max=later[0] - 1 if later else None,
                may_be_torn=partial(self._may_be_torn, base),
                pass_over=self._pass_over,
            )
            self._end_segment(segment, beyond, later)
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
            f"expected segments in {self._directory}; found none; the records in them are lost if there "
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

    def _may_be_torn(self, base: int) -> bool:
        """Whether a segment may never have reached the disk as a whole. A checkpoint is stored once
        all before it is durable, so before a later one's no segment is torn.
        """
        return self._lost_power and base >= self._vouched_from

    @cached_property
    def _vouched_from(self) -> int:
        """The last segment that has a checkpoint."""
        return next((base for base in reversed(self._bases) if self._is_vouched_for(base)), -1)

    def _is_vouched_for(self, base: int) -> bool:
        path = f"{self._directory}/{segment_name(base)}.index"
        return SparseIndex.load(self._files.load(path)) is not None

    def _pass_over(self, _: Segment, damage: Damage) -> None:
        if damage.first_offset >= self._replay_from:  # else nobody knows what was open there
            self._note_interrupted(damage.first_offset, damage.next_offset)

    def _note_interrupted(self, first: int, next_offset: int) -> None:
        self._interrupted += interrupted_at(self._producers, first, next_offset)

    def _end_segment(self, segment: Segment, beyond: int, later: list[int]) -> None:
        """Cuts what recovery found torn, or lets the damaged rest of a segment be.

        If a later segment follows on what this one held, or its own checkpoint goes further, this
        one was whole, and what isn't so any more is damage, to be refused when it is read. Only
        where the machine went down a later segment may have reached the disk before this one.
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
            if was_whole or not self._may_be_torn(segment.base_offset):
                self._note_interrupted(segment.next_offset, later[0])
                segment.give_up(later[0])
                return
        elif was_whole and not later:
            self._give_up_end(segment, segment.missing_upto)
            return
        if segment.missing_bytes:
            self._faults.append(f"{segment.path} lost {segment.missing_bytes} bytes at its end")
        if beyond:
            self._cut(segment, beyond)

    def _cut(self, segment: Segment, beyond: int) -> None:
        data = segment.file.read(segment.size, beyond)
        upto = segment.base_offset + OFFSETS_MAX
        gap = find_gap(
            data, segment.size, segment.next_offset, upto, has_gaps=False, may_be_torn=False
        )
        text = (
            f"expected whole batches up to the end of {segment.path}; found {beyond:,} bytes at byte "
            f"{segment.size}, from offset {segment.next_offset} on, that are none"
        )
        if gap is not None:
            text += (
                ": some are zeros, which a machine that goes down leaves where nothing was synced"
            )
            if gap.is_followed:
                text += f"; there are whole batches behind them, from offset {gap.next_offset} on"
        self._notes.append(
            f"{text}. They are cut off{self._keep(segment.next_offset, data)}; a write that a crash cut "
            "short looks like this, and so does damage to records that were acknowledged"
        )
        self._cut_bytes += beyond
        segment.cut()

    def _keep(self, offset: int, data: Buffer) -> str:
        """Keeps what is about to be cut; says where."""
        try:
            path = keep_cut(self._files, self._directory, offset, data)
        except OSError as error:
            return f" and lost, as they could not be kept aside ({error.strerror or error})"
        return f" and kept in {path}" if path else " (all of them are zeros)"

    def _give_up_end(self, segment: Segment, offset: int) -> None:
        self._note_interrupted(segment.next_offset, offset)
        segment.give_up(offset)
        # A producer that sends the lost end again must not be answered that it is there.
        self._must_rebuild = self._lacks_end = True

    def _distrusted(self) -> tuple[list[Segment], int, int]:
        """What no checkpoint vouches for may be in the page cache only: it awaits a sync. The
        closed segments of which that is so, how many bytes, and up to where all is durable.
        """
        unsynced: list[Segment] = []
        total, durable_offset = 0, self._segments[-1].next_offset
        for segment in reversed(self._segments):
            scanned = segment.size - segment.trusted_bytes
            if scanned:
                total += 0 if segment.is_incomplete else scanned
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
            # Nobody knows when the batch was written: its records may be of any time, so a
            # producer of old events must not be taken for one that was silent for long.
            self._producers.record(header, header.base_offset, self._now_ms)

    def _rebuild(self) -> None:
        """Aborted transactions that no index knows of, and, where the snapshot and the log don't fit
        together, the producers: then only the log counts. But a transaction of which the snapshot knows
        that it has ended isn't open, wherever its marker is: readers of committed data would wait for
        it forever.
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
            log_base, index_base = base_of(name, ".log"), base_of(name, ".index")
            if log_base is not None and log_base >= base:
                file = self._files.open(path)
                self._cut_bytes += file.size()
                file.close()
                self._files.rename(path, path + LOST)
            elif index_base is not None and index_base >= base:
                self._files.delete(path)
