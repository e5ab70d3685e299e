"""Copies closed segments to object storage, and deletes what retention no longer keeps, there and
locally.

    CLUSTER/TOPIC-ID/N/00000000000000000000-TOKEN.log          a segment
    CLUSTER/TOPIC-ID/N/00000000000000000000-TOKEN.log.index    its index and checksums
    CLUSTER/TOPIC-ID/N/manifest-TOKEN                          a copy of the manifest

Order is everything: objects, then the manifest on the local disk (which is the truth), then the
copy of the manifest, then what is no longer needed. Each attempt to copy has a name of its own, so
a late write of an earlier one does no harm. What the manifest doesn't list is an orphan; orphans
are looked for when a partition is first worked on, and after each failure. Where the local manifest
is lost, nothing is an orphan: it is restored from its copy before anything else is done.

A deleted topic's objects are listed in `tier/removals/` and removed by that list. It is written before
the topic is deleted, and kept while the store is unavailable. See `penstock.log.tier` for the
invariant.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import secrets
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.broker.tier.objects import Objects
from penstock.broker.tier.reader import Cache, RemoteTier
from penstock.log.disk.files import LogFile, LogFiles
from penstock.log.errors import StorageError
from penstock.log.segments.index import Checkpoint, SparseIndex
from penstock.log.segments.verification import Verification
from penstock.log.tier import CHUNK_BYTES, Chunks, Manifest, RemoteSegment, SegmentInfo
from penstock.wire.checksum import crc32c

__all__ = ["Tiering", "backoff_s", "note_removal"]

COPIES_MAX: Final = 2
"""Segments that are copied at once: more take the disk and the network from clients."""
PIECE_BYTES: Final = 64 << 10
"""Bytes that are read from a local segment at a time: small enough to be a copy, not a map."""
BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 60.0
"""Pause after a failure, doubled each time: a store that is away is asked once a minute."""
DAMAGED_PAUSE_S: Final = 60.0
"""How long a damaged segment isn't looked at again: each look reads it up to the damage."""
STALE_ROUNDS_MAX: Final = 20
"""Rounds that a closed segment's index may take to be written; after that it is a failure."""
_STAYS: Final = (
    "it stays on the local disk, with what follows it, and isn't copied: restore the file, or delete "
    "the records up to there"
)
REMOVALS: Final = "tier/removals"

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _StaleError(StorageError):
    """A segment's index file isn't what the segment is."""


class _DamagedSegmentError(StorageError):
    """A local segment isn't what was written."""


class _StoppedError(OSError):
    """A copy was given up: the topic is gone, or the broker stops."""


@dataclass(slots=True)
class _State:
    """How it stands with a partition."""

    is_swept: bool = False
    failures: int = 0
    retry_at_s: float = 0.0
    manifest_name: str = ""
    stale_rounds: int = 0
    damaged: dict[int, float] = field(default_factory=dict)  # base offset: when to look again


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures, one after the other.

    >>> [backoff_s(failures) for failures in (1, 2, 3, 100_000)]
    [0.5, 1.0, 2.0, 60.0]
    """
    return min(BACKOFF_S_MIN * 2.0 ** min(failures - 1, 30), BACKOFF_S_MAX)


def note_removal(files: LogFiles, cluster_id: str, topic: Topic) -> None:
    """Remembers that a topic's objects are to be removed; call it before the topic is discarded."""
    if topic.config.remote_storage or any(one.log.remote.segments for one in topic.partitions):
        note = {
            "id": str(topic.id),
            "name": topic.name,
            "directory": _topic_directory(cluster_id, topic),
        }
        path = f"{REMOVALS}/{topic.id}"
        files.open(path).close()  # makes the directory
        files.store(path, json.dumps(note).encode())


def _topic_directory(cluster_id: str, topic: Topic) -> str:
    return f"{cluster_id}/{topic.name}-{topic.id}"


def _base_of(name: str) -> int:
    """The base offset of the segment that an object holds; -1 for another object."""
    base = name.rpartition("/")[2].partition("-")[0]
    return int(base) if name.endswith(".log") and base.isdigit() else -1


def _age(manifest: Manifest) -> tuple[int, int, int, int]:
    """What rises from one of a partition's manifests to the next."""
    fields = manifest.start_offset, manifest.local_start_offset, len(manifest.segments)
    return manifest.end_offset, *fields


class Tiering:
    """The broker's tier. Use from the event loop's thread.

    Attributes:
        cache: what remote segments are read through.
        copied_segments: since the start; likewise the other counters.
    """

    def __init__(
        self,
        objects: Objects,
        files: LogFiles,
        cluster_id: str,
        *,
        clock_ms: Callable[[], int],
        cache_bytes: int,
        token: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self.cache = Cache(objects, cache_bytes)
        self.tier = RemoteTier(self.cache)
        self.copied_segments = self.copied_bytes = self.deleted_segments = self.failures = 0
        self.restored_segments = 0
        self.last_failure = ""
        self._objects = objects
        self._files = files
        self._cluster_id = cluster_id
        self._clock_ms = clock_ms
        self._token = token
        self._states: dict[tuple[uuid.UUID, int], _State] = {}
        self._is_closing = False
        self._store_pool = ThreadPoolExecutor(COPIES_MAX + 1, thread_name_prefix="penstock-tier")
        self._disk_pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-tier-disk")

    # -- the loop ----------------------------------------------------------------------------------

    async def run(self, topics: Topics, interval_s: float) -> None:
        """Works for as long as the broker does."""
        while True:
            await self.work(topics)
            await asyncio.sleep(interval_s)

    async def work(self, topics: Topics) -> None:
        """One round over everything that is due. Failures are remembered, and tried again later."""
        now_s = asyncio.get_running_loop().time()
        due = [one for one in topics.partitions() if self._is_due(one, now_s)]
        await self._guarded(self._remove_topics(topics), self._state_of_removals())
        queue = iter(due)

        async def worker() -> None:
            for hosted in queue:
                if not await self._guarded(self._work_on(hosted), self._state(hosted)):
                    break  # most likely the store is away: the others wait for the next round

        await asyncio.gather(*(worker() for _ in range(min(COPIES_MAX, len(due)))))
        known = {(one.id, index) for one in topics for index in range(len(one.partitions))}
        for gone in self._states.keys() - known - {_REMOVALS_KEY}:
            del self._states[gone]

    def _state(self, hosted: Hosted) -> _State:
        return self._states.setdefault((hosted.topic.id, hosted.index), _State())

    def _state_of_removals(self) -> _State:
        return self._states.setdefault(_REMOVALS_KEY, _State())

    def _is_due(self, hosted: Hosted, now_s: float) -> bool:
        log = hosted.log
        is_tiered = log.config.remote_storage or bool(log.remote.segments or log.tier_fault)
        return is_tiered and self._state(hosted).retry_at_s <= now_s

    async def _guarded(self, work: Any, state: _State) -> bool:
        """Whether it went well; a failure is noted with the time of the next attempt."""
        try:
            await work
        except _StoppedError:
            return True
        except (OSError, StorageError) as error:
            state.failures += 1
            state.is_swept = False
            pause_s = backoff_s(state.failures)
            state.retry_at_s = asyncio.get_running_loop().time() + pause_s
            self.failures += 1
            self.last_failure = str(error)
            _log.warning("tiering failed, next attempt in %.1f s: %s", pause_s, error)
            return False
        state.failures = 0
        return True

    async def _in_store(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._store_pool, work, *arguments)

    # -- one partition -----------------------------------------------------------------------------

    async def _work_on(self, hosted: Hosted) -> None:
        """Everything that is due for a partition, in an order that is safe at any instant."""
        log, state = hosted.log, self._state(hosted)
        if log.tier_fault:
            await self._restore_manifest(hosted)
        if not state.is_swept:
            await self._sweep(hosted)
            state.is_swept = True
        if not log.config.remote_storage and log.config.remote_delete_on_disable:
            log.delete_records(log.local_start_offset, self._clock_ms())
            await self._trim(hosted, log.remote.end_offset)
            return
        await self._trim(hosted, log.start_offset)
        if log.config.remote_storage and not log.config.remote_copy_disable:
            await self._copy_all(hosted, state)
        await self._drop_local(hosted)
        for copy in log.damaged_copies():
            await self._restore(hosted, copy)

    async def _copy_all(self, hosted: Hosted, state: _State) -> None:
        """Copies what is closed. A damaged segment is skipped. It and the segments after it stay on the
        local disk until it is restored or deleted.
        """
        waiting = list(self._uncopied(hosted))
        bases = {one.base_offset for one in waiting}
        state.damaged = {base: at_s for base, at_s in state.damaged.items() if base in bases}
        now_s = asyncio.get_running_loop().time()
        for info in waiting:
            if state.damaged.get(info.base_offset, 0.0) > now_s:
                continue
            try:
                await self._copy(hosted, info)
            except _StaleError:  # just closed: its index is written by the sync under way
                state.stale_rounds += 1
                if state.stale_rounds > STALE_ROUNDS_MAX:
                    raise
                break
            except _DamagedSegmentError as error:
                state.damaged[info.base_offset] = now_s + DAMAGED_PAUSE_S
                self.failures += 1
                self.last_failure = str(error)
                _log.error("%s", error)
                continue
            state.damaged.pop(info.base_offset, None)
            state.stale_rounds = 0

    async def _restore_manifest(self, hosted: Hosted) -> None:
        """Takes the store's newest copy of a manifest that is lost on the local disk.

        The copy may be one change behind: then a segment is copied again, or deleted again.
        """
        log, directory = hosted.log, self._directory(hosted)
        found: list[Manifest] = []
        names = await self._in_store(self._objects.list, directory)
        for name in names:
            if name.removeprefix(f"{directory}/").startswith("manifest-"):
                size = await self._in_store(self._objects.size, name)
                data = await self._in_store(self._objects.get, name, 0, max(size, 0))
                with contextlib.suppress(StorageError):
                    found.append(Manifest.restore(data) or Manifest())
        newest = max(found, key=_age, default=Manifest())
        first = log.segments[0].base_offset
        begins = max(newest.end_offset, log.start_offset)
        others = [one for one in names if _base_of(one) >= newest.end_offset]
        is_lost = begins < first or log.is_end_unknown
        if is_lost and (not found or others):
            what = f"none, but {others[-1]}" if others else "none at all"
            raise StorageError(
                f"{log.tier_fault}. Nothing is copied or deleted there until then; expected a manifest "
                f"that goes up to offset {first} in {directory} of the store; found {what}"
            )
        kept = dataclasses.replace(newest, local_start_offset=min(newest.local_start_offset, first))
        await self._store_manifest(hosted, kept)
        fault = log.tier_fault
        log.adopt(kept, self._clock_ms())
        _log.error(
            "restored a manifest from the store, offsets up to %d: %s", kept.end_offset, fault
        )
        if begins < first:
            _log.error("%s: %s", log.directory, log.damage()[0])

    def _uncopied(self, hosted: Hosted) -> Iterator[SegmentInfo]:
        log = hosted.log
        for info in log.closed_segments(log.uncopied_offset):
            if log.remote.segment_of(info.base_offset) is None:
                yield info

    def _directory(self, hosted: Hosted) -> str:
        return f"{_topic_directory(self._cluster_id, hosted.topic)}/{hosted.index}"

    async def _copy(self, hosted: Hosted, info: SegmentInfo) -> None:
        log = hosted.log
        if info.next_offset <= log.start_offset or hosted.topic.is_deleted:
            return  # retention was faster
        if info.is_incomplete:
            raise _DamagedSegmentError(
                f"expected {info.path} with all offsets up to {info.next_offset - 1}; found some damaged or "
                f"lost; {_STAYS}"
            )
        name = f"{self._directory(hosted)}/{info.base_offset:020d}-{self._token()}.log"
        file = self._files.open(info.path)
        try:
            copy = await self._in_store(self._transfer, hosted, info, name, file)
        finally:
            file.close()
        await self._commit(hosted, log.remote.added(copy))
        self.copied_segments += 1
        self.copied_bytes += copy.size

    def _transfer(
        self, hosted: Hosted, info: SegmentInfo, name: str, file: LogFile
    ) -> RemoteSegment:
        """In a thread: puts the objects of a segment, and says what they are."""
        stored = self._files.load(info.index_path)
        loaded = SparseIndex.load(stored)
        if (
            stored is None
            or loaded is None
            or (loaded[1].valid_bytes, loaded[1].next_offset) != (info.size, info.next_offset)
        ):
            raise _StaleError(
                f"expected the index of {info.path} to vouch for {info.size} bytes; found another; "
                "`penstock doctor` says what is wrong with it"
            )
        checksums: list[int] = []
        self._verify(hosted, info, file, loaded)
        self._objects.put(name, self._pieces(hosted, info, file, checksums))
        index = Chunks.dump(stored, checksums[:-1])
        self._objects.put(name + ".index", [index])
        for one, size in ((name, info.size), (name + ".index", len(index))):
            found = self._objects.size(one)
            if found != size:
                raise OSError(f"expected {size} bytes in the copy {one}; found {found}")
        return RemoteSegment(
            info.base_offset,
            info.next_offset,
            info.size,
            info.max_timestamp,
            name,
            checksums[-1],
            len(index),
            crc32c(index),
            info.aborted,
        )

    @staticmethod
    def _verify(
        hosted: Hosted, info: SegmentInfo, file: LogFile, loaded: tuple[Any, Checkpoint, Any]
    ) -> None:
        """Checks each batch: the store is to have what was written, not what a disk made of it."""
        index, checkpoint, _ = loaded
        verification = Verification(
            index,
            info.size,
            info.next_offset,
            checkpoint.prefix_sum,
            has_gaps=info.base_offset < hosted.log.compactor.gaps_upto,
        )
        for position in list(index.positions):
            verification.ensure(file, position)
            if verification.damage:
                bad = verification.damage[0]
                raise _DamagedSegmentError(
                    f"expected {info.path} as it was written; found damage at bytes {bad.begin} to "
                    f"{bad.end} (offsets {bad.first_offset} to {bad.next_offset - 1}); {_STAYS}"
                )

    def _pieces(
        self, hosted: Hosted, info: SegmentInfo, file: LogFile, checksums: list[int]
    ) -> Iterator[bytes]:
        """A segment's bytes; adds the checksum of each chunk, and at last that of the whole."""
        whole = at = 0
        while at < info.size:
            if self._is_closing or hosted.topic.is_deleted:
                raise _StoppedError("the copy was abandoned")
            chunk = bytearray()
            while len(chunk) < min(CHUNK_BYTES, info.size - at):
                left = min(CHUNK_BYTES, info.size - at) - len(chunk)
                piece = file.read(at + len(chunk), min(PIECE_BYTES, left))
                if not piece:
                    raise StorageError(f"expected {info.size} bytes in {info.path}; found fewer")
                chunk += piece
            checksums.append(crc32c(chunk))
            whole = crc32c(chunk, whole)
            at += len(chunk)
            yield bytes(chunk)
        checksums.append(whole)

    async def _commit(self, hosted: Hosted, manifest: Manifest) -> None:
        """Makes a manifest the truth, then puts a copy of it next to the segments."""
        log, state = hosted.log, self._state(hosted)
        await self._store_manifest(hosted, manifest)
        log.remote = manifest
        before, state.manifest_name = state.manifest_name, ""  # after a failure: a copy is due
        name = f"{self._directory(hosted)}/manifest-{self._token()}"
        await self._in_store(self._objects.put, name, [manifest.dump()])
        state.manifest_name = name
        if before:
            await self._in_store(self._objects.delete, before)

    async def _store_manifest(self, hosted: Hosted, manifest: Manifest) -> None:
        if hosted.topic.is_deleted:
            raise _StoppedError("the topic was deleted")
        hosted.is_tiering = True  # a deletion of the topic waits
        store = partial(self._files.store, hosted.log.manifest_path, manifest.dump())
        try:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._disk_pool, store))
        finally:
            hosted.is_tiering = False

    async def _trim(self, hosted: Hosted, start_offset: int) -> None:
        """Removes the remote segments that end at or before an offset."""
        log = hosted.log
        gone = [one for one in log.remote.segments if one.next_offset <= start_offset]
        if not gone:
            return
        await self._commit(hosted, log.remote.trimmed(start_offset))
        for one in gone:
            self.cache.forget(one.name)
            await self._in_store(self._objects.delete, one.name)
            await self._in_store(self._objects.delete, one.index_name)
            self.deleted_segments += 1

    async def _drop_local(self, hosted: Hosted) -> None:
        log = hosted.log
        upto = log.local_retention_offset(self._clock_ms())
        if upto <= log.segments[0].base_offset or log.is_syncing:
            return
        await self._commit(hosted, log.remote.dropped(upto))
        if not log.is_syncing:
            log.drop_local(upto)

    async def _restore(self, hosted: Hosted, copy: RemoteSegment) -> None:
        """Puts a copy in the place of a local segment that was damaged, or lost, after it was copied.

        Until then readers are served from the store.
        """
        log = hosted.log
        if hosted.topic.is_deleted:
            return
        data = await self._in_store(self._objects.get, copy.index_name, 0, copy.index_size)
        chunks = Chunks.load(data, copy)
        file = self._files.open(log.restored_path(copy))
        try:
            await self._in_store(self._bring_back, hosted, copy, chunks, file)
        finally:
            file.close()
        if not hosted.topic.is_deleted and log.restore_segment(copy, chunks.index_file()):
            self.restored_segments += 1
            _log.warning(
                "restored offsets %d to %d of %s from %s: the local segment was damaged or lost",
                copy.base_offset, copy.next_offset - 1, log.directory, copy.name,
            )  # fmt: skip

    def _bring_back(
        self, hosted: Hosted, copy: RemoteSegment, chunks: Chunks, file: LogFile
    ) -> None:
        """In a thread: a segment's bytes, as they were written, durably."""
        file.truncate(0)
        for number, checksum in enumerate(chunks.checksums):
            if self._is_closing or hosted.topic.is_deleted:
                raise _StoppedError("the restoration was abandoned")
            at = number * CHUNK_BYTES
            data = self._objects.get(copy.name, at, min(CHUNK_BYTES, copy.size - at))
            if crc32c(data) != checksum:
                raise StorageError(
                    f"expected chunk {number} of {copy.name} as it was written; found other bytes; the "
                    "local segment is damaged, too: restore either from a copy"
                )
            file.write(at, data)
        file.sync()

    async def _sweep(self, hosted: Hosted) -> None:
        """Removes objects that the manifest doesn't list: left by crashes and failures."""
        state, directory = self._state(hosted), self._directory(hosted)
        manifest = hosted.log.remote
        if manifest.segments and not state.manifest_name:
            name = f"{directory}/manifest-{self._token()}"
            await self._in_store(self._objects.put, name, [manifest.dump()])
            state.manifest_name = name
        listed = {one.name for one in manifest.segments}
        listed |= {one.index_name for one in manifest.segments} | {state.manifest_name}
        found = await self._in_store(self._objects.list, directory)
        missing = listed - set(found) - {""}
        if missing:
            _log.error("expected %d objects in the tier; found %s gone", len(listed), min(missing))
        for orphan in sorted(set(found) - listed):
            await self._in_store(self._objects.delete, orphan)

    # -- deleted topics ----------------------------------------------------------------------------

    async def _remove_topics(self, topics: Topics) -> None:
        state = self._state_of_removals()
        if state.retry_at_s > asyncio.get_running_loop().time():
            return
        for name in self._files.list(REMOVALS):
            path = f"{REMOVALS}/{name}"
            note = json.loads(self._files.load(path) or b"{}")
            if note and topics.by_id(uuid.UUID(note["id"]).bytes) is None:
                if topics.is_leaving(note["name"]):
                    continue
                await self._in_store(self._objects.delete_tree, note["directory"])
            self._files.delete(path)

    # -- for others --------------------------------------------------------------------------------

    def uncopied_bytes(self, topics: Topics) -> int:
        """Bytes of closed segments that wait to be copied."""
        return sum(
            info.size
            for hosted in topics.partitions()
            if hosted.log.config.remote_storage
            for info in self._uncopied(hosted)
        )

    @property
    def damaged_segments(self) -> int:
        """Local segments that aren't copied because they are damaged."""
        return sum(len(one.damaged) for one in self._states.values())

    async def close(self) -> None:
        """Cancels copies in progress; finishes changes on the local disk."""
        self._is_closing = True
        await self.cache.close()
        self._store_pool.shutdown(wait=False, cancel_futures=True)
        self._disk_pool.shutdown(wait=True)


_REMOVALS_KEY: Final = (uuid.UUID(int=0), -1)
