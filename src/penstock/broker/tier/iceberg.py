"""Appends topics to their Iceberg tables in the background (see `penstock.broker.tier.tables`).

A topic with `penstock.iceberg.table` is followed from its log's start, object storage included, so a
table that is added late gets everything. Only what is durable and stable (no transaction open before
it) is taken, because an offset that is lost in a crash is used again. A commit is made when there
are `COMMIT_BYTES`, or after the interval.

It is no `Body` of `penstock.follow`. A follower is a client of the log, in threads and with a name of its
own. This one reads what no client can see, the end of what is durable, also of topics that come and go, and
needs neither an address to connect to nor the right to read.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.broker.tier.tables import Chunk, HistoryTable, schema_of
from penstock.broker.tier.tiering import Tiering, backoff_s
from penstock.core.schema import Schema
from penstock.log.errors import DamagedError
from penstock.log.partition import Partition
from penstock.wire.batches import Buffer

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["Iceberg"]

COMMIT_BYTES: Final = 64 << 20
"""Log bytes in a commit: a data file of tens of megabytes, and the memory of a few times that."""
READ_BYTES: Final = 4 << 20
"""Log bytes that are read at a time."""
POLL_S: Final = 0.2
"""How often it is looked whether a commit is due."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Following:
    """How it stands with a topic."""

    settings: tuple[str, str]
    table: HistoryTable | None = None
    failures: int = 0
    next_at_s: float = 0.0
    covered: dict[int, int] = field(default_factory=dict)


class Iceberg:
    """Keeps the tables. Use from the event loop's thread.

    Attributes:
        rows: appended since the start; likewise the other counters.
    """

    def __init__(
        self, load_catalog: Callable[[], Catalog], tiering: Tiering | None, interval_s: float
    ) -> None:
        self.rows = self.dead_letters = self.commits = self.failures = 0
        self.last_failure = ""
        self._load_catalog = load_catalog
        self._catalog: Catalog | None = None
        self._tiering = tiering
        self._interval_s = interval_s
        self._following: dict[uuid.UUID, _Following] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-iceberg")

    async def run(self, topics: Topics) -> None:
        """Works for as long as the broker does."""
        while True:
            await self.work(topics)
            await asyncio.sleep(POLL_S)

    async def work(self, topics: Topics) -> None:
        """One round over the topics that are due."""
        for topic in topics:
            settings = (
                topic.settings.get("penstock.iceberg.table", ""),
                topic.settings.get("penstock.schema", ""),
            )
            if not settings[0]:
                self._following.pop(topic.id, None)
                continue
            state = self._following.get(topic.id)
            if state is None or state.settings != settings:
                state = self._following[topic.id] = _Following(settings)
            await self._guarded(topic, state)
        known = {topic.id for topic in topics}
        for gone in self._following.keys() - known:
            del self._following[gone]

    async def _guarded(self, topic: Topic, state: _Following) -> None:
        now_s = asyncio.get_running_loop().time()
        pending = self._pending_bytes(topic, state)
        is_early = now_s < state.next_at_s
        if pending == 0 or (is_early and (state.failures or pending < COMMIT_BYTES)):
            return
        try:
            while await self._advance(topic, state):
                pass
        except Exception as error:  # noqa: BLE001 - catalogs raise what their drivers raise
            state.failures += 1
            state.table = None  # opened again, it says what has been committed after all
            pause_s = backoff_s(state.failures)
            state.next_at_s = now_s + pause_s
            self.failures += 1
            self.last_failure = str(error)
            _log.warning("the history of %s waits %.1f s: %s", topic.name, pause_s, error)
        else:
            state.failures = 0
            state.next_at_s = asyncio.get_running_loop().time() + self._interval_s

    def _pending_bytes(self, topic: Topic, state: _Following) -> int:
        """Bytes that wait; 1 where it isn't known yet."""
        if state.table is None:
            return 1
        return sum(
            one.log.bytes_from(max(state.covered.get(one.index, 0), one.log.start_offset))
            for one in topic.partitions
            if state.covered.get(one.index, 0) < _end(one)
        )

    async def _advance(self, topic: Topic, state: _Following) -> bool:
        """Makes one commit; whether there is enough for another."""
        loop = asyncio.get_running_loop()
        if state.table is None:
            name, schema = state.settings[0], schema_of(topic.settings)
            state.table = await loop.run_in_executor(
                self._pool, self._open, name, schema, str(topic.id)
            )
            state.covered = state.table.covered
        chunks: list[Chunk] = []
        held: list[object] = []
        size = 0
        for hosted in topic.partitions:
            while size < COMMIT_BYTES:
                chunk = await self._read(hosted, state, held)
                if chunk is None:
                    break
                size += len(chunk.data)
                state.covered[hosted.index] = chunk.end
                chunks.append(chunk)
        if not chunks:
            return False
        rows, letters = await loop.run_in_executor(self._pool, state.table.append, chunks)
        self.rows += rows
        self.dead_letters += letters
        self.commits += bool(rows or letters)
        return size >= COMMIT_BYTES

    def _open(self, name: str, schema: Schema | None, topic_id: str) -> HistoryTable:
        """In the thread: opens a table, and the catalog first, which may have been away."""
        if self._catalog is None:
            self._catalog = self._load_catalog()
        return HistoryTable(self._catalog, name, schema, topic_id)

    async def _read(self, hosted: Hosted, state: _Following, held: list[object]) -> Chunk | None:
        """The next range of a partition; None at the end of the stable records."""
        log = hosted.log
        start, end = state.covered.get(hosted.index, 0), _end(hosted)
        if start < log.start_offset:
            if start:
                _log.warning(
                    "the history of %s-%d lacks offsets %d to %d: retention was faster",
                    hosted.topic.name, hosted.index, start, log.start_offset - 1,
                )  # fmt: skip
            start = log.start_offset
        while True:
            if start >= end or hosted.topic.is_deleted:
                return None
            try:
                data = await self._load(log, start, end, held)
                break
            except DamagedError as damage:
                _log.warning(
                    "the history of %s-%d lacks offsets %d to %d: %s",
                    hosted.topic.name, hosted.index, start, damage.next_offset - 1, damage,
                )  # fmt: skip
                start = damage.next_offset
        stop = _stop(data)
        if stop <= start:
            return None
        return Chunk(hosted.index, start, stop, data, log.aborted(start, stop))

    async def _load(self, log: Partition, start: int, end: int, held: list[object]) -> Buffer:
        if self._tiering is None:
            return log.read(start, READ_BYTES, upto=end)
        data, kept = await self._tiering.cache.loaded(lambda: log.read(start, READ_BYTES, upto=end))
        held += kept
        return data

    async def close(self) -> None:
        """Waits for the commit that is under way."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)


def _end(hosted: Hosted) -> int:
    return min(hosted.log.durable_offset, hosted.log.last_stable_offset)


def _stop(data: bytes | bytearray | memoryview) -> int:
    from penstock.wire.columns import scan

    return scan(data).next_offset if len(data) else 0
