"""Compaction of a partition: when it is due, and how cleaned segments take the place of old ones.

    DIRECTORY/BASE.cleaned     a cleaned segment that is being written
    DIRECTORY/BASE.swap        it is whole: it takes the place of all segments in [BASE, next offset)
    DIRECTORY/cleaner          up to where the log is clean, and up to where it may have gaps

A pass goes over all closed segments that may be cleaned, some neighbours at a time: read, write
aside, sync, store the swap file (from here on the cleaned segment counts), remove the old files and
rename. Recovery finishes a swap whose file is there, and forgets a cleaned segment without one. So at
any instant a crash leaves each record either in its old segment or in the cleaned one.

The work is done in a thread, the decisions in the partition's own:

    task = compactor.plan(now)              owner
    task.map()                              any thread
    while task.clean():                     any thread; False once there is nothing more
        compactor.swap(task)                owner: readers get the cleaned segment from now on
        task.store()                        any thread: the same on disk
        compactor.settle(task)              owner
    compactor.end(task)                     owner, also after a failure

Invariant: a pass begins at the log's start and leaves alone the active segment, what isn't durable,
what lies beyond the last stable offset and what is younger than `min.compaction.lag.ms`. It passes
over segments that are damaged or lost (`cleaning` says what that means for the others);
one that is found damaged on the way ends the pass, and the next one passes over it. As it may be
restored before the next start, the first pass after that begins to map keys there again. Segments
stay contiguous, as the last batch of a cleaned one stays, if need be without records. While a pass is
under way no file is deleted: that waits for its end. Source: Kafka's LogCleanerManager.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptError
from penstock.log.disk.files import LogFiles
from penstock.log.errors import DamagedSegmentError, StorageError
from penstock.log.reading import PartitionReader
from penstock.log.segments.segment import Segment, segment_name
from penstock.wire.checksum import crc32c

if TYPE_CHECKING:
    from penstock.log.compaction.cleaning import Cleaner, Pace, Source

__all__ = ["MAP_BYTES_MAX", "Compactor", "Task", "finish_swaps"]

MAP_BYTES_MAX: Final = 32 << 20
"""Memory for the key map: a million keys in a pass."""
OFFSETS_MAX: Final = (1 << 31) - 1
"""Most offsets in a segment, as in Kafka."""


def _load(data: bytes | None) -> dict[str, int | str] | None:
    """What a small checked file says; None where it is missing or damaged."""
    if data is None or data[:9] != b"%08x " % crc32c(data[9:]):
        return None
    loaded: dict[str, int | str] = json.loads(data[9:])
    return loaded


def _dump(content: dict[str, int | str]) -> bytes:
    body = json.dumps(content).encode()
    return b"%08x " % crc32c(body) + body


def finish_swaps(files: LogFiles, directory: str) -> None:
    """Does what a crash cut short."""
    names = files.list(directory)
    for name in names:
        if name.endswith(".swap"):
            _finish_swap(files, directory, name[:-5])
    for name in names:
        if name.endswith(".cleaned"):
            files.delete(f"{directory}/{name}")


def _finish_swap(files: LogFiles, directory: str, name: str) -> None:
    path = f"{directory}/{name}"
    swap = _load(files.load(f"{path}.swap"))
    names = files.list(directory)
    if swap is not None and f"{name}.cleaned" in names:
        for one in names:
            stem, _, suffix = one.partition(".")
            if suffix in {"log", "index"} and int(name) < int(stem) < int(swap["next_offset"]):
                files.delete(f"{directory}/{one}")
        files.delete(f"{path}.index")
        files.rename(f"{path}.cleaned", f"{path}.log")
    if swap is not None and f"{name}.log" in files.list(directory):
        files.store(f"{path}.index", base64.b64decode(str(swap["index"])))
    files.delete(f"{path}.swap")
    files.sync_directory(directory)


@dataclass(slots=True)
class Task:
    """One pass. `map`, `clean` and `store` may run in another thread, one at a time."""

    files: LogFiles
    directory: str
    cleaner: Cleaner
    sources: list[Source]
    dirty_from: int
    segment_bytes: int
    now_ms: int
    groups: list[list[Source]] = field(default_factory=list)
    mapped_upto: int = 0
    cleaned: Segment | None = None
    group: list[Source] = field(default_factory=list)

    def map(self) -> None:
        """Notes where each key is last.

        Raises:
            DamagedSegmentError: a segment is damaged.
            OSError: the disk failed.
        """
        dirty = [one for one in self.sources if one.next_offset > self.dirty_from]
        self.mapped_upto = self.cleaner.map_keys(dirty, self.dirty_from)
        within = [one for one in self.sources if one.base_offset < self.mapped_upto]
        self.groups = _grouped(within, self.segment_bytes)

    def clean(self) -> bool:
        """Writes the next cleaned segment aside, durably. False once there is nothing more.

        Raises:
            DamagedSegmentError: a segment is damaged.
            OSError: the disk failed or is full.
        """
        while self.groups:
            self.group = self.groups.pop(0)
            base = self.group[0].base_offset
            target = Segment(self.files, self.directory, base, self.now_ms, "cleaned")
            target.file.truncate(0)
            if self.cleaner.clean(self.group, target):
                target.file.sync()
                self.files.sync_directory(self.directory)
                index = base64.b64encode(target.checkpoint()).decode()
                swap: dict[str, int | str] = {"next_offset": target.next_offset, "index": index}
                self.files.store(f"{self.directory}/{segment_name(base)}.swap", _dump(swap))
                self.cleaned = target
                return True
            target.file.close()
            self.files.delete(target.path)
        return False

    def store(self) -> None:
        """Removes the old files, and gives the cleaned one its place."""
        _finish_swap(self.files, self.directory, segment_name(self.group[0].base_offset))


def _grouped(sources: Sequence[Source], bytes_max: int) -> list[list[Source]]:
    """Neighbours that fit into one segment together."""
    groups: list[list[Source]] = []
    size = 0
    for one in sources:
        if (
            groups
            and groups[-1][-1].next_offset == one.base_offset
            and size + one.size <= bytes_max
            and one.next_offset - groups[-1][0].base_offset <= OFFSETS_MAX
        ):
            groups[-1].append(one)
            size += one.size
        else:
            groups.append([one])
            size = one.size
    return groups


class Compactor:
    """What a partition knows about its compaction. Use from the partition's thread.

    Args:
        partition: whose segments it replaces.
        files: where they are.
        ended: called when a pass has ended.
    """

    def __init__(
        self, partition: PartitionReader, files: LogFiles, ended: Callable[[], None]
    ) -> None:
        self._partition = partition
        self._files = files
        self._ended = ended
        self._path = f"{partition.directory}/cleaner"
        self.task: Task | None = None
        self.uncleanable: str | None = None
        self._found_damaged: set[int] = set()  # base offsets, by the passes of this process
        self._hole_from: int | None = None  # the first one that the last pass passed over
        self.passes = 0
        self.removed_bytes = 0
        stored = files.load(self._path)
        state = _load(stored)
        # A damaged file means that there may be gaps anywhere.
        self.gaps_upto = int(state["gaps_upto"]) if state else (0 if stored is None else 1 << 62)
        self.dirty_from = int(state["dirty_from"]) if state else 0
        if state and "hole_from" in state:
            self.dirty_from = min(self.dirty_from, int(state["hole_from"]))

    @property
    def is_busy(self) -> bool:
        """Whether a pass is under way."""
        return self.task is not None

    def _store(self) -> None:
        content: dict[str, int | str] = {"gaps_upto": self.gaps_upto, "dirty_from": self.dirty_from}
        if self._hole_from is not None:
            content["hole_from"] = self._hole_from
        self._files.store(self._path, _dump(content))

    # -- when --------------------------------------------------------------------------------------

    def cleanable(self, now_ms: int) -> list[Segment]:
        """The closed segments that may be cleaned, from the log's start on; there may be holes."""
        log, config = self._partition, self._partition.config
        upto = min(log.last_stable_offset, log.settled_offset)
        found: list[Segment] = []
        for segment in log.segments[:-1]:
            if segment.next_offset > upto:
                break
            if self._is_damaged(segment):
                continue
            is_young = segment.max_timestamp > now_ms - config.min_compaction_lag_ms
            is_dirty = segment.next_offset > self.dirty_from
            if is_dirty and config.min_compaction_lag_ms > 0 and is_young:
                break
            found.append(segment)
        return found

    def _is_damaged(self, segment: Segment) -> bool:
        return segment.is_damaged or segment.base_offset in self._found_damaged

    def passed_over(self) -> list[Segment]:
        """The closed segments that no pass reads, as they are damaged or lost."""
        return [one for one in self._partition.segments[:-1] if self._is_damaged(one)]

    def dirty_bytes(self, now_ms: int) -> tuple[int, int]:
        """Bytes that may be cleaned: those that never were, and all."""
        segments = self.cleanable(now_ms)
        dirty = sum(one.size for one in segments if one.next_offset > self.dirty_from)
        return dirty, sum(one.size for one in segments)

    def is_due(self, now_ms: int) -> bool:
        """Whether there is enough to gain, or something has waited for too long."""
        log, config = self._partition, self._partition.config
        if not config.compacts or log.remote.segments or config.remote_storage:
            return False
        if self.is_busy or self.uncleanable is not None or log.failure is not None:
            return False
        dirty, total = self.dirty_bytes(now_ms)
        if not dirty:
            return False
        first = next(one for one in self.cleanable(now_ms) if one.next_offset > self.dirty_from)
        has_waited = now_ms - first.created_ms > config.max_compaction_lag_ms
        return has_waited or dirty > total * config.min_cleanable_dirty_ratio

    # -- how ---------------------------------------------------------------------------------------

    def plan(
        self,
        now_ms: int,
        hash_key: tuple[int, int],
        pace: Pace,
        *,
        map_bytes_max: int = MAP_BYTES_MAX,
        force: bool = False,
    ) -> Task | None:
        """Begins a pass if one is due (or could do anything, with `force`); see the module.

        Args:
            now_ms: the time.
            hash_key: two random 64-bit numbers.
            pace: is notified of each stretch of bytes; may sleep, or raise to stop.
            map_bytes_max: most memory for the key map.
            force: don't ask whether it pays.
        """
        if not (self.is_due(now_ms) or (force and not self.is_busy and self.cleanable(now_ms))):
            return None
        # NumPy and Numba come with it, so they are loaded when there is something to clean.
        from penstock.log.compaction.cleaning import Cleaner, Holes, Source

        log = self._partition
        segments = self.cleanable(now_ms)
        upto = segments[-1].next_offset
        holes = [one for one in self.passed_over() if one.base_offset < upto]
        self._hole_from = holes[0].base_offset if holes else None
        cleaner = Cleaner(
            self._files,
            aborted=log.aborted(log.start_offset, upto),
            holes=Holes()
            if not holes
            else Holes(
                holes[0].base_offset,
                holes[-1].next_offset,
                max((one.next_offset for one in holes if not one.knows_aborted), default=0),
            ),
            last_of_producers=log.producers.last_batches(),
            now_ms=now_ms,
            grace_ms=log.config.delete_retention_ms,
            hash_key=hash_key,
            map_bytes_max=map_bytes_max,
            pace=pace,
        )
        dirty_from = self.dirty_from if self.dirty_from < upto else segments[0].base_offset
        self.gaps_upto = max(self.gaps_upto, upto)
        self._store()
        self.task = Task(
            self._files,
            log.directory,
            cleaner,
            [
                Source(
                    one.base_offset,
                    one.next_offset,
                    one.size,
                    one.path,
                    one.prefix_sum,
                    one.aborted,
                )
                for one in segments
            ],
            dirty_from,
            log.config.segment_bytes,
            now_ms,
        )
        return self.task

    def swap(self, task: Task) -> None:
        """Lets readers see the cleaned segment in the place of the old ones."""
        assert task is self.task
        cleaned, log = task.cleaned, self._partition
        assert cleaned is not None
        first = next(
            i for i, one in enumerate(log.segments) if one.base_offset == cleaned.base_offset
        )
        old = log.segments[first : first + len(task.group)]
        assert old[-1].next_offset == cleaned.next_offset
        cleaned.created_ms = old[0].created_ms
        log.segments[first : first + len(old)] = [cleaned]
        self.removed_bytes += sum(one.size for one in old) - cleaned.size

    def settle(self, task: Task) -> None:
        """The cleaned segment has its place on disk, too."""
        assert task.cleaned is not None
        cleaned, task.cleaned = task.cleaned, None
        task.group = []
        cleaned.file.close()
        cleaned.path = f"{task.directory}/{segment_name(cleaned.base_offset)}.log"
        cleaned.file = self._files.open(cleaned.path)

    def end(self, task: Task, failure: BaseException | None = None) -> None:
        """Takes note of how a pass went. After a failed one, what was swapped stays so."""
        assert task is self.task
        self.task = None
        if failure is not None and task.cleaned is not None:
            self._partition.failure = (
                f"expected to give a cleaned segment of {task.directory} its place; found: "
                f"{failure}; check the disk and restart the broker"
            )
        elif failure is not None and task.group:
            path = f"{task.directory}/{segment_name(task.group[0].base_offset)}"
            self._files.delete(f"{path}.swap")
            self._files.delete(f"{path}.cleaned")
        if failure is None:
            self.dirty_from = task.mapped_upto
            self._store()
            self.passes += 1
        elif isinstance(failure, DamagedSegmentError):
            self._found_damaged.add(failure.base_offset)
        elif isinstance(failure, (CorruptError, StorageError)):
            self.uncleanable = str(failure)
        self._ended()

    def run(
        self, now_ms: int, hash_key: tuple[int, int] = (0, 0), *, map_bytes_max: int = MAP_BYTES_MAX
    ) -> bool:
        """A whole pass, here and now, if anything may be cleaned. Whether there was one."""
        task = self.plan(now_ms, hash_key, lambda _: None, map_bytes_max=map_bytes_max, force=True)
        if task is None:
            return False
        try:
            task.map()
            while task.clean():
                self.swap(task)
                task.store()
                self.settle(task)
        except (OSError, CorruptError, StorageError) as error:
            self.end(task, error)
            if isinstance(error, DamagedSegmentError):
                return self.run(now_ms, hash_key, map_bytes_max=map_bytes_max)
            raise
        self.end(task)
        return True
