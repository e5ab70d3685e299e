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
`end_sync` make it durable, and from time to time write a checkpoint, so that recovery scans little.
The clock is an argument.

Sources: *Designing Data-Intensive Applications*, chapter on stream processing; Kafka's UnifiedLog
and LogSegment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.log.compaction import Compactor, finish_swaps
from penstock.log.errors import OffsetRangeError, StorageError
from penstock.log.files import LogFile, LogFiles, is_want_of_room
from penstock.log.markers import Marker, build_marker
from penstock.log.producers import Producers
from penstock.log.reading import PartitionReader
from penstock.log.recovery import begin_after_hole, note_end, recover, start_document
from penstock.log.retention import kept_from, kept_locally_from
from penstock.log.segment import LEADER_EPOCH, Segment, segment_name
from penstock.log.tier import RESTORED, Manifest, RemoteSegment, SegmentInfo, Tier
from penstock.log.validation import LogConfig, recompressed, validate
from penstock.wire import batches
from penstock.wire.batches import NO_PRODUCER, Buffer, Header

__all__ = ["LEADER_EPOCH", "Appended", "Partition", "SyncTask"]

CHECKPOINT_BYTES: Final = 64 << 20
"""Bytes appended between two checkpoints: what recovery has to scan after a crash (about 50 ms)."""
RELATIVE_OFFSETS_MAX: Final = (1 << 31) - 1
"""Most offsets in a segment, as in Kafka."""


class Appended(NamedTuple):
    """Where a batch stands."""

    base_offset: int
    append_time_ms: int = -1
    is_duplicate: bool = False


@dataclass(slots=True)
class SyncTask:
    """What must reach the disk so that all before `end_offset` is durable. `run` may block, and then
    covers what was written to the active segment until it began.
    """

    files: LogFiles
    directory: str
    active: Segment
    segments: list[LogFile]
    names_changed: bool
    stores: list[tuple[str, bytes]]
    bytes_appended: int
    closed: list[Segment]
    settled_offset: int
    snapshot_offset: int
    is_store_put_off: bool = False
    end_offset: int = -1

    @property
    def may_run_again(self) -> bool:
        """Whether it is but a matter of the active segment's bytes."""
        return len(self.segments) == 1 and not self.names_changed and not self.stores

    def run(self) -> None:
        """Data first, then what vouches for it: that may wait until there is room for it."""
        self.end_offset = self.active.next_offset  # grows only once a batch is written
        for file in self.segments:
            file.sync()
        if self.names_changed:
            self.files.sync_directory(self.directory)
        try:
            for path, data in self.stores:
                self.files.store(path, data)
        except OSError as error:
            if not is_want_of_room(error):
                raise
            self.is_store_put_off = True


class Partition(PartitionReader):
    """One partition of a topic. Use from one thread; only `SyncTask.run` may run in another."""

    def __init__(
        self,
        files: LogFiles,
        directory: str,
        config: LogConfig,
        now_ms: int,
        *,
        was_there: bool = False,
    ) -> None:
        """Opens a partition, recovering it first where that is needed.

        Args:
            files: where it is.
            directory: its directory there.
            config: its topic's settings.
            now_ms: the time.
            was_there: it isn't a new one, so that a segment that is missing was lost.
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
        self._recover(now_ms, was_there=was_there)
        self.rest()

    # -- recovery ----------------------------------------------------------------------------------

    def _recover(self, now_ms: int, *, was_there: bool) -> None:
        finish_swaps(self._files, self.directory)
        self.compactor = Compactor(self, self._files, self.directory)
        found = recover(
            self._files,
            self.directory,
            self.compactor.gaps_upto,
            now_ms,
            may_tier=self.config.remote_storage,
            was_there=was_there,
        )
        self.remote, self.producers, self.segments = found.remote, found.producers, found.segments
        self.start_offset, self._snapshot_offset = found.start_offset, found.snapshot_offset
        self._closed, self._since_checkpoint = found.unsynced, found.unsynced_bytes
        self.durable_offset = found.durable_offset
        self.settled_offset = (self._closed or [self.active])[0].base_offset
        self.cut_bytes, self._faults = found.cut_bytes, found.faults
        self.tier_fault, self.is_end_unknown = found.tier_fault, found.is_end_unknown
        if self.is_end_unknown:
            self.failure = f"{found.tier_fault}. Until then nothing says at which offset to go on"
        tiered_upto = self.remote.end_offset
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

    def _go_on_from(self, offset: int, now_ms: int) -> None:
        """Goes on behind what the tier has; what it lacks stays."""
        if self.remote.segments and self.uncopied_offset < min(offset, self.end_offset):
            self.active.give_up(offset)
            self.segments.append(begin_after_hole(self._files, self.directory, offset, now_ms))
        else:
            self._start_again(offset, now_ms)

    def _start_again(self, offset: int, now_ms: int) -> None:
        """Local records up to an offset are gone, or in the tier; offsets go on from there."""
        for segment in self.segments:
            self._delete_files(segment)
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
        if self._must_roll(header, now_ms):
            self._roll(now_ms)
        self.active.append(batch, header)
        self.appended_bytes += len(batch)
        self._since_checkpoint += len(batch)

    def _must_roll(self, header: Header, now_ms: int) -> bool:
        active = self.active
        if active.size == 0:
            active.created_ms = now_ms
            return False
        return (
            active.size + header.size > self.config.segment_bytes
            or now_ms - active.created_ms > self.config.roll_ms
            or header.next_offset - active.base_offset > RELATIVE_OFFSETS_MAX
        )

    def _roll(self, now_ms: int) -> None:
        try:
            segment = Segment(self._files, self.directory, self.end_offset, now_ms)
            segment.file.truncate(0)
        except OSError as error:
            raise StorageError(
                f"expected to start a new segment in {self.directory}, found: "
                f"{error.strerror or error}; make room on the disk"
            ) from error
        self._closed.append(self.active)
        self.segments.append(segment)
        self._names_changed = True

    # -- durability --------------------------------------------------------------------------------

    @property
    def is_syncing(self) -> bool:
        """Whether a sync has begun and not ended."""
        return self._syncing > 0

    @property
    def is_dirty(self) -> bool:
        """Whether a sync would make anything durable."""
        return self.durable_offset < self.end_offset

    @property
    def is_sync_due(self) -> bool:
        """Whether as many records aren't durable as the topic allows (`flush.messages`)."""
        return self.end_offset - self.durable_offset >= self.config.flush_messages

    def begin_sync(self, *, checkpoint: bool = False) -> SyncTask:
        """What to do, possibly in another thread, so that all that was appended is durable."""
        checkpoint |= bool(self._closed) or self._since_checkpoint >= CHECKPOINT_BYTES
        segments = [*self._closed, self.active]
        stores: list[tuple[str, bytes]] = []
        if checkpoint:
            # The producers last: a snapshot that is newer than an index doesn't fit to it.
            stores = [(segment.index_path, segment.checkpoint()) for segment in segments]
            snapshot = self.producers.snapshot(self.end_offset)
            stores.append((f"{self.directory}/producers", snapshot))
        task = SyncTask(
            self._files,
            self.directory,
            self.active,
            [segment.file for segment in segments],
            self._names_changed,
            stores,
            self._since_checkpoint if checkpoint else 0,
            self._closed,
            self.active.base_offset,
            self.end_offset,
        )
        self._closed = []
        self._names_changed = False
        self._syncing += 1
        return task

    def note_durable(self, upto: int) -> None:
        """A sync that goes on has come that far."""
        self.durable_offset = max(self.durable_offset, upto)

    def end_sync(self, task: SyncTask, failure: OSError | None = None) -> None:
        """Takes note of how a sync went. After a failed one nothing more is written.

        The kernel may have dropped the pages that it couldn't write, so to try again would claim
        what isn't so. The log stays readable; a restart finds what is really there.
        """
        self._syncing -= 1
        if failure is not None or task.is_store_put_off:
            put_off = [one for one in task.closed if one in self.segments]
            self._closed = [*put_off, *self._closed]
            self._names_changed |= task.names_changed
        if failure is not None:
            self.is_short_of_room = is_want_of_room(failure)
            self.failure = (
                f"expected to make {self.directory} durable, found: "
                f"{failure.strerror or failure}; check the disk and restart the broker"
            )
            return
        self.note_durable(task.end_offset)
        if task.stores and not task.is_store_put_off:
            self._since_checkpoint -= task.bytes_appended
            self.settled_offset = max(self.settled_offset, task.settled_offset)
            self._snapshot_offset = max(self._snapshot_offset, task.snapshot_offset)

    def mend(self) -> bool:
        """Goes on after a sync that failed for want of room; False where that can't be.

        The kernel may have forgotten that pages are not on the disk. So what isn't known to be durable
        is read back, checked, and written again; the next sync then makes it durable, or fails.
        """
        if self.failure is None or not self.is_short_of_room or self._syncing:
            return False
        try:
            for segment in self.segments:
                if segment.next_offset > self.durable_offset:
                    segment.write_again(self.durable_offset)
        except (OSError, StorageError):
            return False
        self.failure, self.is_short_of_room = None, False
        return True

    def sync(self, *, checkpoint: bool = False) -> None:
        """Makes everything durable, here and now."""
        task = self.begin_sync(checkpoint=checkpoint)
        try:
            task.run()
        except OSError as error:
            self.end_sync(task, error)
            raise StorageError(self.failure) from error
        self.end_sync(task)

    def rest(self) -> None:
        """Gives up the descriptors and maps of closed segments; the next read takes them again."""
        if not self._syncing and not self.compactor.is_busy:
            for segment in self.segments[:-1]:
                if segment not in self._closed:
                    segment.file.rest()

    @property
    def _is_checkpointed(self) -> bool:
        """Whether what is on the disk says all that a checkpoint would."""
        is_clean = not (self.is_dirty or self._closed or self._since_checkpoint)
        return is_clean and self._snapshot_offset >= self.end_offset

    def close(self) -> None:
        """Makes everything durable with a checkpoint, so that the next open needs no scan.

        Where the last checkpoint says all already, nothing is written: thousands of idle partitions
        are closed at once.
        """
        try:
            if self.failure is None and not self._is_checkpointed:
                self.sync(checkpoint=True)
        finally:
            for segment in self.segments:
                segment.file.close()

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
                f"expected an offset of at most {self.end_offset}, found {before_offset}"
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
                self.sync()  # a snapshot tells how far the log came, whatever is lost later
            snapshot = self.producers.snapshot(self.end_offset)
            self._files.store(f"{self.directory}/producers", snapshot)
            self._snapshot_offset = self.end_offset

    def end_compaction(self) -> None:
        """Catches up on what had to wait for the end of a compaction."""
        self._delete_segments()

    def _delete_files(self, segment: Segment) -> None:
        self._files.delete(segment.index_path)
        self._files.delete(segment.path)

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
