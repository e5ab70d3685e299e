"""Reads remote segments through a bounded cache: in threads, by chunks, with read-ahead.

    tier = RemoteTier(cache)                 # what a partition asks; never blocks
    data, held = await cache.loaded(lambda: log.read(offset, n))

A partition reads a remote segment as it reads a local one, but its bytes come from the cache. A byte
that isn't cached raises `NotLoadedError`; `loaded` then fetches its chunk in a thread and retries. The
event loop never waits for the store. Each chunk's checksum is compared with the one from when it was
copied.

Memory: `cache_bytes` of chunks are kept for later reads, and at most `PINNED_BYTES_MAX` more
are held by answers on their way out; beyond that, loading waits.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.broker.tier.objects import Objects
from penstock.log.disk.files import LogFile
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import StorageError
from penstock.log.segments.segment import Segment
from penstock.log.tier import CHUNK_BYTES, Chunks, NotLoadedError, RemoteSegment
from penstock.wire.batches import Buffer
from penstock.wire.checksum import crc32c

__all__ = ["Cache", "RemoteTier"]

THREADS: Final = 8
"""Reads of the store that run at once."""
RUN_CHUNKS_MAX: Final = 8
"""Chunks that one request to the store brings: more wait longer for their first byte."""
READ_AHEAD_CHUNKS: Final = 8
"""Chunks that are fetched beyond what was asked for, while the answer is on its way."""
PINNED_BYTES_MAX: Final = 256 << 20
"""Bytes of chunks in answers that slow readers have yet to take."""
INDEX_BYTES_MAX: Final = 32 << 20
"""Bytes of remote segments' indexes that are kept."""
ROUNDS_MAX: Final = 64
"""How often one question may find that another chunk is missing."""
FAILED_PAUSE_S: Final = 0.5
"""After a failure the store is left alone for this long; questions wait, so clients don't spin."""
SILENT_S_MAX: Final = 3.0
"""How long the store may take before readers get an error; they retry anyway."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Block(bytearray):
    """Bytes of a chunk, counted for as long as anybody holds them."""

    __slots__ = ("__weakref__", "_cache")

    def __init__(self, cache: Cache, data: bytes) -> None:
        super().__init__(data)
        self._cache = cache
        cache.alive_bytes += len(data)

    def __del__(self) -> None:
        self._cache.alive_bytes -= len(self)


class _Opened:
    """A remote segment whose index is at hand."""

    __slots__ = ("checksums", "cost_bytes", "segment")

    def __init__(self, segment: Segment, checksums: Sequence[int], cost_bytes: int) -> None:
        self.segment = segment
        self.checksums = checksums
        self.cost_bytes = cost_bytes


class _RemoteFile:
    """A remote segment's bytes, as far as they are at hand."""

    __slots__ = ("_cache", "_remote")

    def __init__(self, cache: Cache, remote: RemoteSegment) -> None:
        self._cache = cache
        self._remote = remote

    def size(self) -> int:
        return self._remote.size

    def read(self, at: int, size: int) -> Buffer:
        return self._cache.read(self._remote, at, size)

    def write(self, _: int, __: Buffer) -> None:
        raise AssertionError("a remote segment never changes")

    def truncate(self, _: int) -> None:
        raise AssertionError("a remote segment never changes")

    def sync(self) -> None:
        """It is durable."""

    def rest(self) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        """There is nothing to close."""


class _RemoteFiles(MemoryFiles):
    """What a remote segment is opened from."""

    def __init__(self, cache: Cache, remote: RemoteSegment) -> None:
        super().__init__()
        self._file = _RemoteFile(cache, remote)

    def open(self, _: str) -> LogFile:
        return self._file


class Cache:
    """Chunks and indexes of remote segments. Use from the event loop's thread."""

    def __init__(self, objects: Objects, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.alive_bytes = 0
        self.kept_bytes = 0
        self.hits = self.misses = self.bytes_read = self.failures = 0
        self._objects = objects
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-tier-read")
        self._kept: OrderedDict[tuple[str, int], _Block] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[tuple[str, int], _Block] = (
            weakref.WeakValueDictionary()
        )
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._opened_bytes = 0
        self._loading: dict[tuple[str, int], asyncio.Future[list[_Block]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_at_s = float("-inf")
        self._is_failing = False
        self._silent_since_s: float | None = None  # when something was asked for and nothing came

    # -- what is loaded ----------------------------------------------------------------------------

    def open(self, remote: RemoteSegment) -> Segment:
        """The segment; raises NotLoadedError where its index isn't at hand."""
        opened = self._opened.get(remote.name)
        if opened is None:
            raise NotLoadedError(remote, ())
        self._opened.move_to_end(remote.name)
        return opened.segment

    def read(self, remote: RemoteSegment, at: int, size: int) -> Buffer:
        """Bytes of a segment; raises NotLoadedError where some aren't at hand."""
        numbers = remote.chunks_of(at, size)
        blocks = [self._alive.get((remote.name, one)) for one in numbers]
        missing = [one for one, block in zip(numbers, blocks, strict=True) if block is None]
        if missing:
            raise NotLoadedError(remote, missing)
        for one in numbers:
            if (remote.name, one) in self._kept:
                self._kept.move_to_end((remote.name, one))
        inside = at - numbers.start * CHUNK_BYTES if numbers else 0
        found = [block for block in blocks if block is not None]
        if len(found) == 1:
            return memoryview(found[0]).toreadonly()[inside : inside + size]
        return memoryview(_Block(self, b"".join(found))).toreadonly()[inside : inside + size]

    def forget(self, name: str) -> None:
        """A segment was deleted from the store."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            self._opened_bytes -= opened.cost_bytes
            for number in range(len(opened.checksums)):
                block = self._kept.pop((name, number), None)
                self.kept_bytes -= len(block) if block is not None else 0

    def empty(self) -> None:
        """Drops everything that no reader holds."""
        self._kept.clear()
        self._opened.clear()
        self.kept_bytes = self._opened_bytes = 0

    # -- what is not -------------------------------------------------------------------------------

    async def loaded(self, work: Callable[[], T]) -> tuple[T, list[object]]:
        """What `work` gives once everything that it needs is at hand; and what must be held so
        that it can be asked again.

        Raises:
            StorageError: the store failed, or gave bytes that differ from what was written.
        """
        held: list[object] = []
        for _ in range(ROUNDS_MAX):
            try:
                found = work()
            except NotLoadedError as miss:
                self.misses += 1
                held += await self._load(miss.segment, miss.chunks)
            else:
                self.hits += not held
                return found, held
        raise StorageError("expected an answer from the tier; found that it needs ever more of it")

    @property
    def is_failing(self) -> bool:
        """Whether the store failed when it was last asked, or has not answered for long."""
        since_s = self._silent_since_s
        if since_s is None:
            return self._is_failing
        return self._is_failing or asyncio.get_running_loop().time() - since_s > SILENT_S_MAX

    async def _load(self, remote: RemoteSegment, chunks: Sequence[int]) -> list[object]:
        pause_s = self._failed_at_s + FAILED_PAUSE_S - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        while self.alive_bytes > self.bytes_max + PINNED_BYTES_MAX:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.01)
        waited = self._begin(remote, chunks)
        held: list[object] = []
        for one in waited:
            held += await asyncio.shield(one)
        if chunks and len(waited):
            self._read_ahead(remote, chunks[-1] + 1)
        return held

    def _begin(
        self, remote: RemoteSegment, chunks: Sequence[int]
    ) -> list[asyncio.Future[list[_Block]]]:
        """Starts the loads that aren't running; returns what to wait for."""
        if not chunks:
            return [self._start(remote, [-1])]
        waited, run = [], list[int]()
        for number in chunks:
            under_way = self._loading.get((remote.name, number))
            if under_way is not None:
                waited.append(under_way)
            elif run and (number != run[-1] + 1 or len(run) >= RUN_CHUNKS_MAX):
                waited.append(self._start(remote, run))
                run = [number]
            else:
                run.append(number)
        if run:
            waited.append(self._start(remote, run))
        return waited

    def _read_ahead(self, remote: RemoteSegment, first: int) -> None:
        """A reader of this will want what follows: it is fetched meanwhile, if there is room."""
        last = len(self._opened[remote.name].checksums) if remote.name in self._opened else 0
        wanted = [
            one
            for one in range(first, min(first + READ_AHEAD_CHUNKS, last))
            if (remote.name, one) not in self._alive and (remote.name, one) not in self._loading
        ]
        if wanted and self.bytes_max >= 2 * READ_AHEAD_CHUNKS * CHUNK_BYTES:
            self._begin(remote, wanted)

    def _start(self, remote: RemoteSegment, run: list[int]) -> asyncio.Future[list[_Block]]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[_Block]] = loop.create_future()
        keys = [(remote.name, one) for one in run]
        if keys[0] in self._loading:
            return self._loading[keys[0]]
        if not self._loading:
            self._silent_since_s = loop.time()
        for key in keys:
            self._loading[key] = done
        task = loop.create_task(self._fetch(remote, run, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        done.add_done_callback(lambda one: one.cancelled() or one.exception())
        return done

    async def _fetch(
        self, remote: RemoteSegment, run: list[int], done: asyncio.Future[list[_Block]]
    ) -> None:
        """Reads a run of chunks (or the index) in a thread, checks and keeps it."""
        loop = asyncio.get_running_loop()
        try:
            if run == [-1]:
                data = await loop.run_in_executor(
                    self._pool, self._objects.get, remote.index_name, 0, remote.index_size
                )
                self._keep_index(remote, data)
                blocks: list[_Block] = []
            else:
                at = run[0] * CHUNK_BYTES
                size = min(len(run) * CHUNK_BYTES, remote.size - at)
                data = await loop.run_in_executor(
                    self._pool, self._objects.get, remote.name, at, size
                )
                blocks = self._keep(remote, run, data, size)
            self.bytes_read += len(data)
            self._is_failing, self._silent_since_s = False, loop.time()
            done.set_result(blocks)
        except OSError as error:
            self._failed_at_s = loop.time()
            self._is_failing = True
            self._fail(done, f"expected to read the tier; found: {error}")
        except StorageError as error:  # this object's fault, not the store's
            self._fail(done, str(error))
        except BaseException as error:
            done.set_exception(StorageError(f"expected to read the tier; found: {error!r}"))
            raise
        finally:
            for one in run:
                self._loading.pop((remote.name, one), None)
            if not self._loading:
                self._silent_since_s = None

    def _fail(self, done: asyncio.Future[list[_Block]], message: str) -> None:
        self.failures += 1
        _log.warning("%s", message)
        done.set_exception(StorageError(message))

    def _keep_index(self, remote: RemoteSegment, data: bytes) -> None:
        chunks = Chunks.load(data, remote)
        files = _RemoteFiles(self, remote)
        segment = Segment(files, "tier", remote.base_offset, chunks.checkpoint.created_ms)
        segment.index = chunks.index
        segment.size = remote.size
        segment.next_offset = remote.next_offset
        segment.max_timestamp = remote.max_timestamp
        self._opened[remote.name] = _Opened(segment, chunks.checksums, 2 * len(data))
        self._opened_bytes += 2 * len(data)
        while self._opened_bytes > INDEX_BYTES_MAX and len(self._opened) > 1:
            _, gone = self._opened.popitem(last=False)
            self._opened_bytes -= gone.cost_bytes

    def _keep(self, remote: RemoteSegment, run: list[int], data: bytes, size: int) -> list[_Block]:
        opened = self._opened.get(remote.name)
        if opened is None:
            return []  # its index was given up meanwhile; the question is asked again
        if len(data) != size:
            raise StorageError(
                f"expected {size} bytes of {remote.name} in the store; found {len(data)}; it has "
                "lost a part of the object: restore it"
            )
        blocks = []
        for place, number in enumerate(run):
            part = data[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES]
            if crc32c(part) != opened.checksums[number]:
                raise StorageError(
                    f"expected chunk {number} of {remote.name} as it was written; found other "
                    "bytes; the store has changed the object: restore it"
                )
            block = _Block(self, part)
            self._alive[remote.name, number] = block
            self._kept[remote.name, number] = block
            self.kept_bytes += len(block)
            blocks.append(block)
        while self.kept_bytes > self.bytes_max and self._kept:
            _, gone = self._kept.popitem(last=False)
            self.kept_bytes -= len(gone)
        return blocks

    async def close(self) -> None:
        """Ends the threads. Reads of a store that doesn't answer are not waited for."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)


class RemoteTier:
    """What a partition asks for its remote segments (`penstock.log.tier.Tier`)."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def open(self, segment: RemoteSegment) -> Segment:
        """See `Tier`."""
        return self._cache.open(segment)
