"""A partition: an append-only sequence of record batches in a directory of segments.

    DIRECTORY/00000000000000000000.log      record batches, as they came, base offsets patched
    DIRECTORY/00000000000000000000.index    sparse index and checkpoint of that segment
    DIRECTORY/producers                     producers and open transactions as of some offset
    DIRECTORY/start                         log start offset, once records were deleted
    DIRECTORY/tier                          segments that lie in object storage, once there are any

Invariant: segments are contiguous; `start_offset <= last_stable_offset <= end_offset`; a batch is in
the log as a whole or not at all; a batch that was reported durable survives any crash. All but the
last segment are closed. Where the oldest lie in a tier only, local segments follow on them without a
gap. The index of aborted transactions is a function of the batches, like the producers' state; each
segment's part of it is kept in the segment's index file.

An append writes to the page cache. `begin_sync`, the returned task's `run` (in any thread) and
`end_sync` make it durable (see `penstock.log.syncing`). The clock is an argument.

Sources: *Designing Data-Intensive Applications*, chapter on stream processing; Kafka's UnifiedLog
and LogSegment.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.compaction.compactor import Compactor, finish_swaps
from penstock.log.disk.files import LogFiles
from penstock.log.errors import OffsetRangeError, StorageError
from penstock.log.inventory import start_document
from penstock.log.markers import Marker, build_marker
from penstock.log.producers import Producers
from penstock.log.recovery import begin_after_hole, interrupted_at, note_end, recover
from penstock.log.retention import kept_from, kept_locally_from
from penstock.log.segments.doomed import DoomedSegments, remove_segment
from penstock.log.segments.index import INTERVAL_BYTES_MAX
from penstock.log.segments.rolling import must_roll
from penstock.log.segments.segment import LEADER_EPOCH, Segment, segment_name
from penstock.log.syncing import SyncedPartition, SyncTask
from penstock.log.tier import RESTORED, Manifest, RemoteSegment, SegmentInfo, Tier
from penstock.log.validation import LogConfig, recompressed, validate
from penstock.wire import batches
from penstock.wire.batches import NO_PRODUCER, Buffer, Header

__all__ = ["LEADER_EPOCH", "Appended", "Partition", "SyncTask"]


class Appended(NamedTuple):
    """Where a batch stands."""

    base_offset: int
    append_time_ms: int = -1
    is_duplicate: bool = False


class Partition(SyncedPartition):
    """One partition of a topic. Use from one thread; only `SyncTask.run` may run in another."""

    def __init__(
        self,
        files: LogFiles,
        directory: str,
        config: LogConfig,
        now_ms: int,
        *,
        was_there: bool = False,
        lost_power: bool = True,
    ) -> None:
        """Opens a partition, recovering it first where that is needed.

        Args:
            files: where it is.
            directory: its directory there.
            config: its topic's settings.
            now_ms: the time.
            was_there: it isn't a new one, so that a segment that is missing was lost.
            lost_power: the machine may have gone down since the last process wrote, with what that
                had not synced; else all that it wrote reached the files.
        """
        self.config = config
        self.directory = directory
        self.failure: str | None = None
        self.is_short_of_room = False
        self.appended_bytes = 0
        self.tier: Tier | None = None
        self._files = files
        self._names_changed = True
        self._syncing = 0
        self._doomed = DoomedSegments(files)
        self._recover(now_ms, was_there=was_there, lost_power=lost_power)
        self.rest()

    # -- recovery ----------------------------------------------------------------------------------

    def _recover(self, now_ms: int, *, was_there: bool, lost_power: bool) -> None:
        finish_swaps(self._files, self.directory)
        self.compactor = Compactor(self, self._files, self._delete_segments)
        found = recover(
            self._files,
            self.directory,
            self.compactor.gaps_upto,
            now_ms,
            may_tier=self.config.remote_storage,
            was_there=was_there,
            lost_power=lost_power,
        )
        self.remote, self.producers, self.segments = found.remote, found.producers, found.segments
        self.start_offset, self._snapshot_offset = found.start_offset, found.snapshot_offset
        self._closed, self._since_checkpoint = found.unsynced, found.unsynced_bytes
        self._wants_checkpoint = found.unsynced_bytes > 0
        self._vouched_bytes = -found.unsynced_bytes
        self.durable_offset = found.durable_offset
        self.settled_offset = (self._closed or [self.active])[0].base_offset
        self.cut_bytes, self._faults = found.cut_bytes, found.faults
        self.notes, self.interrupted = found.notes, found.interrupted
        self.tier_fault, self.is_end_unknown = found.tier_fault, found.is_end_unknown
        if self.is_end_unknown:
            self.failure = f"{found.tier_fault}. Until then the next offset is unknown"
        tiered_upto = self.remote.end_offset
        if self.start_offset > max(self.end_offset, tiered_upto):
            self.notes.append(
                f"expected the log to reach offset {self.start_offset}, where records before were "
                f"deleted; found its end at {self.end_offset}: it continues at {self.start_offset}"
            )
        if max(self.start_offset, tiered_upto) > self.end_offset:
            self._go_on_from(max(self.start_offset, tiered_upto), now_ms)
        elif self.active.base_offset < tiered_upto and self.active.size:
            # The name of an empty one was lost: what is in the tier stays closed.
            self._roll(now_ms)

    def adopt(self, manifest: Manifest, now_ms: int) -> None:
        """Takes a manifest in place of one that was lost; it must be on the disk already. Offsets
        between what it lists and what is local are a hole.
        """
        assert self.tier_fault
        self.remote, self.tier_fault = manifest, ""
        first = self.segments[0].base_offset
        if manifest.segments:
            known_from = manifest.start_offset
            known_from = known_from if self.is_end_unknown else min(known_from, first)
            self.start_offset = max(self.start_offset, known_from)
        begins = max(manifest.end_offset, self.start_offset)
        if self.is_end_unknown:
            self._start_again(begins, now_ms)
            self.is_end_unknown, self._names_changed, self.failure = False, True, None
        elif begins > self.end_offset:
            self._go_on_from(begins, now_ms)
        elif begins < first:
            hole = Segment(self._files, self.directory, begins, now_ms)
            hole.give_up(first)
            self.segments.insert(0, hole)

    def go_on_above(self, offset: int, now_ms: int) -> None:
        """The log was longer than its files show: offsets up to this one, which is beyond its end, were
        given out once, and are a hole. For a partition that was just opened.
        """
        assert offset > self.end_offset
        self.require_end()
        last, first = self.active, self.end_offset
        self.interrupted += interrupted_at(self.producers, first, offset)
        last.give_up(offset)
        self._closed.append(last)
        self.segments.append(begin_after_hole(self._files, self.directory, offset, now_ms))
        self._names_changed = True

    def _go_on_from(self, offset: int, now_ms: int) -> None:
        """Continues behind what the tier has; what it lacks stays."""
        if self.remote.segments and self.uncopied_offset < min(offset, self.end_offset):
            self.active.give_up(offset)
            self.segments.append(begin_after_hole(self._files, self.directory, offset, now_ms))
        else:
            self._start_again(offset, now_ms)

    def _start_again(self, offset: int, now_ms: int) -> None:
        """Local records up to an offset are gone, or in the tier; offsets continue from there."""
        for segment in self.segments:
            remove_segment(self._files, segment)
        self.segments = [Segment(self._files, self.directory, offset, now_ms)]
        self._closed, self.durable_offset, self.settled_offset = [], offset, offset
        self.producers, self._snapshot_offset = Producers(), offset

    def _store_start(self) -> None:
        self._files.store(f"{self.directory}/start", start_document(self.start_offset))

    # -- appending ---------------------------------------------------------------------------------

    def append(self, batch: bytearray | memoryview, now_ms: int) -> Appended:
        """Appends one batch, whose bytes are patched in place. It is durable after the next sync.

        Raises:
            AppendError: the batch is not valid here; the log is unchanged.
            StorageError: the disk is full or failed; the log is unchanged.
        """
        if self.failure is not None:
            raise StorageError(self.failure)
        header = validate(batch, self.config, now_ms)
        if header.producer_id != NO_PRODUCER:
            stored = self.producers.check(header)
            if stored is not None:
                return Appended(stored.base_offset, stored.timestamp_ms, is_duplicate=True)
        if self.config.recompresses:
            batch = recompressed(batch, header, self.config)
            header = batches.parse(batch)
        base_offset = self.end_offset
        batches.patch(batch, 0, base_offset, LEADER_EPOCH)
        if self.config.append_time:
            batches.stamp_append_time(batch, 0, header, now_ms)
        header = batches.parse(batch)
        self._write(batch, header, now_ms)
        if header.producer_id != NO_PRODUCER:
            self.producers.record(header, base_offset, now_ms)
        return Appended(base_offset, now_ms if self.config.append_time else -1)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
    ) -> Appended:
        """Writes the control record that ends a producer's transaction. It is durable after the
        next sync.

        A marker is also written where no transaction is open: from then on older epochs of the
        producer are fenced.

        Raises:
            AppendError: a newer epoch of the producer or of the coordinator is known.
            StorageError: the disk is full or failed; the log is unchanged.
        """
        if self.failure is not None:
            raise StorageError(self.failure)
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        batch = build_marker(
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            now_ms=now_ms,
        )
        base_offset = self.end_offset
        batches.patch(batch, 0, base_offset, LEADER_EPOCH)
        if self.config.append_time:
            batches.stamp_append_time(batch, 0, batches.parse(batch), now_ms)
        header = batches.parse(batch)
        self._write(batch, header, now_ms)
        marker = Marker(commit, coordinator_epoch)
        note_end(self.producers, self.active, header, marker, now_ms)
        return Appended(base_offset, now_ms if self.config.append_time else -1)

    def _write(self, batch: Buffer, header: Header, now_ms: int) -> None:
        if self.active.size == 0:
            self.active.created_ms = now_ms
        elif must_roll(self.active, header, self.config, now_ms):
            self._roll(now_ms)
        self.active.index_interval_bytes = min(self.config.index_interval_bytes, INTERVAL_BYTES_MAX)
        self.active.append(batch, header)
        self.appended_bytes += len(batch)
        self._since_checkpoint += len(batch)

    def _roll(self, now_ms: int) -> None:
        try:
            segment = Segment(self._files, self.directory, self.end_offset, now_ms)
            segment.file.truncate(0)
        except OSError as error:
            raise StorageError(
                f"expected to start a new segment in {self.directory}; found: "
                f"{error.strerror or error}; free space on the disk"
            ) from error
        self._closed.append(self.active)
        self.segments.append(segment)
        self._names_changed = True

    # -- deleting ----------------------------------------------------------------------------------

    def delete_records(self, before_offset: int, now_ms: int) -> None:
        """Moves the log's start, and removes the segments that lie wholly before it.

        Raises:
            OffsetRangeError: the offset is beyond the log's end (or negative).
            StorageError: it isn't known where the log ends.
        """
        self.require_end()
        if not 0 <= before_offset <= self.end_offset:
            raise OffsetRangeError(
                f"expected an offset of at most {self.end_offset}; found {before_offset}"
            )
        if before_offset <= self.start_offset:
            return
        if before_offset == self.end_offset and self.active.size:
            self._roll(now_ms)
        self.start_offset = before_offset
        self._store_start()
        self._delete_segments()

    def retain(self, now_ms: int) -> int:
        """Removes the oldest segments that retention no longer keeps; returns how many.

        A segment goes when its newest record is too old or when the log is too large without it.
        The active segment is rolled first when it is due, so an idle topic empties as well.
        """
        pieces: list[Segment | RemoteSegment] = [
            *(one for one in self.remote.segments if one.next_offset > self.start_offset),
            *(one for one in self.segments if self.remote.segment_of(one.base_offset) is None),
        ]
        pieces.sort(key=lambda one: one.base_offset)
        keep_from = kept_from(pieces, self.active, self.config, now_ms)
        before = len(self.segments)
        if keep_from is not None and keep_from > self.start_offset:
            self.delete_records(keep_from, now_ms)
        elif self.segments[0].next_offset <= self.start_offset:
            self._delete_segments()  # left by a process that ended before it was done
        return before - len(self.segments)

    def _delete_segments(self) -> None:
        """Removes segments that end at or before the start; readers keep the views that they
        hold.
        """
        if self.compactor.is_busy:  # which ends soon, and then comes here again
            return
        ends = [
            one.next_offset for one in self.segments[:-1] if one.next_offset <= self.start_offset
        ]
        if ends:
            self._keep_producers(ends[-1])
        for segment in self.segments[: len(ends)]:
            self.segments.remove(segment)
            if segment in self._closed:
                self._closed.remove(segment)
            self._delete_files(segment)

    def _keep_producers(self, before_offset: int) -> None:
        """Sees to it that what producers did before an offset is known without the records there."""
        if self._snapshot_offset < before_offset and not self._syncing:
            if self.failure is None:
                self.sync()  # a snapshot shows how far the log came, whatever is lost later
            snapshot = self.producers.snapshot(self.end_offset)
            self._files.store(f"{self.directory}/producers", snapshot)
            self._snapshot_offset = self.end_offset

    def _delete_files(self, segment: Segment) -> None:
        if self.config.file_delete_delay_ms:
            self._doomed.add(segment)
        else:
            remove_segment(self._files, segment)

    def remove_doomed(self, now_ms: int, *, is_urgent: bool = False) -> None:
        """Removes the files of deleted segments once their time has come; at once where it is urgent."""
        if is_urgent:
            self._doomed.remove_all()
        elif self._doomed:
            self._doomed.remove(now_ms, self.config.file_delete_delay_ms)

    # -- tiering -----------------------------------------------------------------------------------

    def closed_segments(self, from_offset: int = 0) -> list[SegmentInfo]:
        """The local segments that are closed, durable and free of open transactions, oldest
        first: they never change.
        """
        return [
            SegmentInfo(
                one.base_offset,
                one.next_offset,
                one.size,
                one.max_timestamp,
                one.path,
                one.index_path,
                tuple(self.aborted(one.base_offset, one.next_offset)),
                one.is_incomplete,
            )
            for one in self.segments[:-1]
            if from_offset < one.next_offset <= min(self.durable_offset, self.last_stable_offset)
            and one not in self._closed
        ]

    def local_retention_offset(self, now_ms: int) -> int:
        """Up to where local retention no longer keeps what the tier has as well."""
        upto = self.segments[0].base_offset
        copied_upto = self.remote.missing_from(upto)
        kept = kept_locally_from(self.segments[:-1], copied_upto, self.size, self.config, now_ms)
        return upto if kept is None else kept

    def drop_local(self, before_offset: int) -> None:
        """Forgets the local segments that end at or before an offset: the tier has them.

        The manifest on disk must say so already (`Manifest.dropped`).
        """
        assert before_offset <= min(self.remote.end_offset, self.remote.local_start_offset)
        self._keep_producers(before_offset)
        while len(self.segments) > 1 and self.segments[0].next_offset <= before_offset:
            self._delete_files(self.segments.pop(0))

    def restore_segment(self, copy: RemoteSegment, index: bytes) -> bool:
        """Puts the tier's copy in the place of a local segment that is damaged or lost. False where
        that has gone meanwhile.

        Args:
            copy: what the tier has; its bytes are in `restored_path` and on the disk.
            index: the segment's index file. It is stored first: a crash before the renaming leaves an
                index whose segment is damaged or lost, which is what it was.
        """
        found = [one for one in self.segments[:-1] if one.base_offset == copy.base_offset]
        if not found or found[0].next_offset != copy.next_offset or found[0] in self._closed:
            self._files.delete(self.restored_path(copy))
            return False
        old = found[0]
        self._files.store(old.index_path, index)
        self._files.rename(self.restored_path(copy), old.path)
        old.file.close()
        restored = Segment(self._files, self.directory, copy.base_offset, old.created_ms)
        restored.recover(lambda *_: None, copy.next_offset)
        assert (restored.size, restored.next_offset) == (copy.size, copy.next_offset)
        self.segments[self.segments.index(old)] = restored
        return True

    def restored_path(self, copy: RemoteSegment) -> str:
        """Where a copy is brought back to."""
        return f"{self.directory}/{segment_name(copy.base_offset)}{RESTORED}"

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts all invariants, reading the whole log."""
        assert self.segments
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            assert before.next_offset == after.base_offset
        for segment in self.segments:
            segment.check()
        self.remote.check()
        first = self.segments[0].base_offset
        if self.remote.segments:
            assert first <= max(self.remote.end_offset, self.start_offset)
            assert self.remote.end_offset <= self.active.base_offset
            first = min(first, self.remote.start_offset)
        first = min(first, self.start_offset) if self.tier_fault else first
        assert first <= self.start_offset <= self.last_stable_offset <= self.end_offset
        assert self.durable_offset <= self.end_offset
        self.producers.check_invariants(self.end_offset)
