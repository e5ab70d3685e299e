"""Making a partition durable: syncs that another thread runs, and checkpoints.

A sync makes the batches durable. A checkpoint stores each segment's index, which vouches for what is
durable, and the producers: recovery believes it and reads only what follows. It comes with the sync
after `CHECKPOINT_BYTES`, when a segment was closed, when a recovery has read what no checkpoint
vouched for, and when `want_checkpoint` asks for one, which the broker does by time. Such a one leaves
the producers out where they are many: it is there to vouch for bytes, and the loop isn't to wait.
Where nothing was appended since the last one there is none.

A segment of which recovery found something damaged gets none: it is read again at each start, as its
file may be restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.log.compaction.compactor import Compactor
from penstock.log.disk.files import LogFile, LogFiles, is_want_of_room
from penstock.log.errors import StorageError
from penstock.log.reading import PartitionReader
from penstock.log.segments.doomed import DoomedSegments
from penstock.log.segments.segment import Segment

__all__ = ["SyncTask", "SyncedPartition"]

CHECKPOINT_BYTES: Final = 64 << 20
"""Bytes appended between two checkpoints: what recovery has to scan after a crash (about 50 ms)."""
PRODUCERS_MAX: Final = 100
"""Most producers that a checkpoint by time stores: that takes the loop a millisecond."""


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
    vouched_bytes: int
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


class SyncedPartition(PartitionReader):
    """The part of a partition that makes it durable. Its state is the partition's."""

    compactor: Compactor
    is_short_of_room: bool
    appended_bytes: int
    durable_offset: int
    _closed: list[Segment]
    _doomed: DoomedSegments
    _names_changed: bool
    _snapshot_offset: int
    _since_checkpoint: int
    _vouched_bytes: int
    _wants_checkpoint: bool
    _syncing: int

    @property
    def is_syncing(self) -> bool:
        """Whether a sync has begun and not ended."""
        return self._syncing > 0

    @property
    def is_dirty(self) -> bool:
        """Whether a sync would make anything durable, or write a checkpoint that is wanted."""
        return self.durable_offset < self.end_offset or self._wants_checkpoint

    @property
    def unvouched_bytes(self) -> int:
        """Bytes that no checkpoint vouches for."""
        return self.appended_bytes - self._vouched_bytes

    def want_checkpoint(self) -> None:
        """Has the next sync write a checkpoint, unless the last one says all already."""
        self._wants_checkpoint = self.unvouched_bytes > 0 and self.failure is None

    @property
    def is_sync_due(self) -> bool:
        """Whether as many records aren't durable as the topic allows (`flush.messages`)."""
        return self.end_offset - self.durable_offset >= self.config.flush_messages

    def begin_sync(self, *, checkpoint: bool = False) -> SyncTask:
        """What to do, possibly in another thread, so that all that was appended is durable."""
        checkpoint |= bool(self._closed) or self._since_checkpoint >= CHECKPOINT_BYTES
        vouches = checkpoint or self._wants_checkpoint
        checkpoint |= vouches and len(self.producers) <= PRODUCERS_MAX
        self._wants_checkpoint = False
        segments = [*self._closed, self.active]
        stores: list[tuple[str, bytes]] = []
        if vouches:
            whole = [segment for segment in segments if not segment.is_incomplete]
            stores = [(segment.index_path, segment.checkpoint()) for segment in whole]
        if checkpoint:
            # The producers last: a snapshot that is newer than an index doesn't fit to it.
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
            self.end_offset if checkpoint else 0,
            self.appended_bytes,
        )
        self._closed = []
        self._names_changed = False
        self._syncing += 1
        return task

    def note_durable(self, upto: int) -> None:
        """A sync that continues has come that far."""
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
                f"expected to make {self.directory} durable; found: "
                f"{failure.strerror or failure}; check the disk and restart the broker"
            )
            return
        self.note_durable(task.end_offset)
        if task.stores and not task.is_store_put_off:
            self._since_checkpoint -= task.bytes_appended
            self.settled_offset = max(self.settled_offset, task.settled_offset)
            self._snapshot_offset = max(self._snapshot_offset, task.snapshot_offset)
            self._vouched_bytes = max(self._vouched_bytes, task.vouched_bytes)

    def repair(self) -> bool:
        """Continues after a sync that failed because the disk was full; False where that can't be.

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
            self._doomed.remove_all()
            for segment in self.segments:
                segment.file.close()
