"""The broker: one event loop that owns a data directory and answers Kafka's protocol on a
socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import secrets
import signal
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.broker import dispatch, fetch
from penstock.broker.acceptor import Acceptor
from penstock.broker.cleaner import LogCleaner
from penstock.broker.config import (
    IDLE_MS_MAX,
    BrokerConfig,
)
from penstock.broker.connection import Connection
from penstock.broker.consumer_groups import ConsumerGroups
from penstock.broker.consumer_members import Timing
from penstock.broker.coordinator import Coordinator
from penstock.broker.data_lock import DataLock
from penstock.broker.fetch_sessions import FetchSessions
from penstock.broker.flusher import Flusher
from penstock.broker.group_offsets import GroupOffsets
from penstock.broker.group_registry import SHARE, GroupRegistry
from penstock.broker.group_settings import GroupSettings
from penstock.broker.group_store import GroupStore, Kept
from penstock.broker.groups import Groups
from penstock.broker.journals import lost_journals
from penstock.broker.lag import LagWatch
from penstock.broker.listeners import Listener
from penstock.broker.logs import Seldom
from penstock.broker.members import Reply
from penstock.broker.metrics import MetricsServer
from penstock.broker.mixed_groups import MixedGroups
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.requests import Requests
from penstock.broker.room import Room
from penstock.broker.security.guard import Guard
from penstock.broker.security.model import Caller, Operation, ResourceType
from penstock.broker.share.shares import Shares
from penstock.broker.stats import Stats
from penstock.broker.topic_patterns import matching
from penstock.broker.topics import Topic, Topics
from penstock.errors import SetupError
from penstock.log import documents
from penstock.log.errors import StorageError
from penstock.log.files import LocalFiles

if TYPE_CHECKING:
    from penstock.broker.iceberg import Iceberg
    from penstock.broker.tiering import Tiering

__all__ = ["Broker", "serve"]

DESCRIPTORS_WANTED: Final = 65_536
"""Open files that the process asks the system for, as far as it is allowed to."""
TICK_MS: Final = 100
"""How often timeouts of group members are looked at."""
FLUSHED_TOGETHER: Final = 16
"""How many partitions that nobody waits for are synced at once: others wait for these at most."""
SAMPLE_S: Final = 1.0
"""How often the counters behind rates are sampled."""
LISTEN_RETRY_S: Final = 0.1
"""How often a port that is taken is tried again, while a predecessor may still hold it."""

_log = logging.getLogger(__name__)


class Broker:
    """A data directory being served. Use `serve`, or `start` and `stop`."""

    def __init__(self, config: BrokerConfig, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.config = config
        self.clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.listeners = config.listeners()
        self.advertised = dispatch.advertised()
        self.connections: set[Connection] = set()
        self.receive_bytes = 0
        self.cluster_id = ""
        self._lock = DataLock(config.data)
        self._servers: list[asyncio.Server | Acceptor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._files = LocalFiles(config.data)
        self.flusher = Flusher()
        self.fetch_sessions: FetchSessions[fetch.Wanted] = FetchSessions(
            lambda: secrets.randbelow((1 << 31) - 1) + 1
        )
        self.requests = Requests()
        self.faults = Seldom(_log)
        self.room = Room(config.data, config.min_free_bytes)
        self.metrics = MetricsServer(self)
        self.cleaner = LogCleaner(
            lambda: (one.log for one in self.topics.partitions()),
            self.clock_ms,
            config.cleaner_interval_ms / 1000,
        )
        self.groups = Groups(_new_member_id, config.rebalance_delay_ms, config.session_ms_min)
        self.tiering: Tiering | None = None
        self.iceberg: Iceberg | None = None
        self.topics: Topics
        self.group_offsets: GroupOffsets
        self.group_settings: GroupSettings
        self.share: Shares
        self.consumer_groups: ConsumerGroups
        self.mixed_groups: MixedGroups
        self.group_store: GroupStore
        self.registry: GroupRegistry
        self.transactions: Coordinator
        self.stats: Stats
        self.guard: Guard

    @property
    def address(self) -> tuple[str, int]:
        """Where the first listener is."""
        return self.listeners[0].host, self.listeners[0].port

    def now_ms(self) -> int:
        """A clock for timeouts, which nobody sets back."""
        return int(self.loop.time() * 1000)

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the data directory and listens.

        Raises:
            SetupError: the directory is in use or can't be written, or the address is taken.
        """
        await self._lock.take(self.config.lock_wait_s)
        _raise_descriptor_limit()
        try:
            self._open_data()
            self._look_at_room()
            for listener in self.listeners:
                self._servers.append(await self._listen(listener))
            if self.config.metrics is not None:
                await self.metrics.start(
                    self.config.metrics, is_remote_allowed=self.config.allow_remote
                )
        except BaseException:
            for server in self._servers:
                server.close()
            self._lock.release()
            raise
        self.spawn(self._tick())
        self.spawn(self._flush())
        self.spawn(self._retain())
        self.cleaner.start()
        self.spawn(self.transactions.run())

    def _open_data(self) -> None:
        began = time.perf_counter()
        content = self._files.load("cluster.json")
        if content is None:
            self.cluster_id = uuid.uuid4().hex[:22]
            self._files.store("cluster.json", documents.dump({"id": self.cluster_id}))
        else:
            self.cluster_id = str(documents.load(content, "cluster.json").get("id"))
        self._producer_ids = ProducerIds(self._files)
        self.guard = Guard(self.config)
        self.topics = Topics(self._files, self.clock_ms)
        self._tell_of_lost_journals()
        self.group_offsets = GroupOffsets(self._files)
        self._open_groups()
        self.transactions = Coordinator(
            self._files,
            self.topics.hosted,
            self.group_offsets,
            self.next_producer_id,
            self.flusher.make_durable,
            self.clock_ms,
        )
        self.transactions.recover(self.topics.partitions())
        self.stats = Stats(self.topics, self.loop.time)
        self._open_tier()
        self.lag_watch = LagWatch(self.topics, self.group_offsets)
        self._open_iceberg()
        cut = sum(one.log.cut_bytes for one in self.topics.partitions())
        if cut:
            _log.warning("recovery left out %d bytes of torn or damaged batches", cut)
        for hosted in self.topics.partitions():
            for what in hosted.log.damage():
                _log.error("%s: %s", hosted.log.directory, what)
            if hosted.log.tier_fault:
                _log.error("%s", hosted.log.tier_fault)
        _log.info(
            "opened %d topics, %d partitions in %.3f s",
            len(self.topics),
            self.topics.partition_count,
            time.perf_counter() - began,
        )

    def _tell_of_lost_journals(self) -> None:
        """A journal that is missing is not made silently."""

        def has(path: str) -> bool:
            directory, _, name = path.rpartition("/")
            return name in self._files.list(directory)

        if len(self.topics):
            for path, what in lost_journals(has):
                _log.error("%s: %s", path, what)

    def _open_groups(self) -> None:
        self.group_settings = settings = GroupSettings(self._files)

        def timing(group_id: str) -> Timing:
            return Timing(
                settings.number(group_id, "consumer.session.timeout.ms"),
                settings.number(group_id, "consumer.heartbeat.interval.ms"),
            )

        self.consumer_groups = ConsumerGroups(
            self.topics, lambda: str(uuid.uuid4()), matching, timing
        )
        kept: dict[str, Kept] = {"classic": self.groups, "consumer": self.consumer_groups}
        self.group_store = GroupStore(self._files, kept, self.now_ms())
        self.mixed_groups = MixedGroups(
            self.groups,
            self.consumer_groups,
            self.topics,
            self._topic_name,
            _new_member_id,
            self.config.migration_policy,
        )
        self.mixed_groups.restored(self.now_ms())
        self.registry = GroupRegistry(self.groups, self.consumer_groups, self.group_offsets)
        self.share = Shares(self, self._files, settings)
        self.registry.others[SHARE] = self.share

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self.topics.by_id(topic_id.bytes)
        return None if topic is None else topic.name

    def _open_tier(self) -> None:
        config = self.config
        if config.tier is None:
            return
        from penstock.broker.objects import ArrowObjects
        from penstock.broker.tiering import Tiering

        self.tiering = Tiering(
            ArrowObjects(config.tier),
            self._files,
            self.cluster_id,
            clock_ms=self.clock_ms,
            cache_bytes=config.tier_cache_bytes,
        )
        self.topics.attach(self.tiering.tier)
        self.spawn(self.tiering.run(self.topics, config.tier_interval_ms / 1000))

    def _open_iceberg(self) -> None:
        config = self.config
        if config.iceberg_catalog is None:
            return
        from penstock.broker.iceberg import Iceberg
        from penstock.client.history import catalog_loader

        load = catalog_loader(config.iceberg_catalog, config.iceberg_warehouse)
        self.iceberg = Iceberg(load, self.tiering, config.iceberg_interval_ms / 1000)
        self.spawn(self.iceberg.run(self.topics))

    def note_removal(self, topic: Topic) -> None:
        """Has what a topic has in object storage removed, once the topic itself is gone."""
        from penstock.broker.tiering import note_removal

        note_removal(self._files, self.cluster_id, topic)

    async def _serve(self, listener: Listener) -> asyncio.Server | Acceptor:
        if listener.protocol.has_tls:
            return Acceptor(self, listener)
        return await self.loop.create_server(
            lambda: Connection(self, listener),
            listener.host,
            listener.port,
            backlog=1024,
            reuse_address=True,
        )

    async def _listen(self, listener: Listener) -> asyncio.Server | Acceptor:
        deadline = self.loop.time() + self.config.lock_wait_s
        while True:
            try:
                server = await self._serve(listener)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and self.loop.time() < deadline:
                    await asyncio.sleep(LISTEN_RETRY_S)
                    continue
                raise SetupError(
                    f"expected to listen on {listener.address}, found: {error.strerror or error};"
                    " stop what uses the port, or choose another with --listen (port 0: any free)"
                ) from None
            listener.port = server.sockets[0].getsockname()[1]
            return server

    async def stop(self) -> None:
        """Answers nothing more, makes everything durable, and releases the directory."""
        for server in self._servers:
            server.close()
        self.metrics.stop()
        for connection in list(self.connections):
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cleaner.stop()
        await self.transactions.finish()
        await self.flusher.settle()
        self.flusher.close()
        if self.iceberg is not None:
            await self.iceberg.close()
        if self.tiering is not None:
            await self.tiering.close()
        self.guard.close()
        try:
            self.topics.close()
            self.group_offsets.journal.close()
            self.group_store.journal.close()
            self.share.journal.close()
            self.transactions.close()
        finally:
            self._lock.release()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something beside the requests, and keeps hold of it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a background task failed", exc_info=task.exception())

    # -- in the background -------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._look_at_room()
            now_ms = self.now_ms()
            replies = self.mixed_groups.tick(now_ms)
            self.group_store.save()
            self.share.tick()
            self.answer_members(replies)

    def _look_at_room(self) -> None:
        """Refuses records while the disk is full; what failed for that goes on when it isn't."""
        try:
            self.room.look()
        except OSError as error:
            _log.warning("expected to ask for the room on the disk, found: %s", error)
        if self.flusher.failed and not self.room.is_full:
            mended = self.flusher.mend()
            if mended:
                _log.warning("%d logs go on after a full disk", mended)

    async def _flush(self) -> None:
        sample_at_s = self.loop.time()
        while True:
            await asyncio.sleep(self.config.flush_interval_ms / 1000)
            dirty = [one.log for one in self.topics.partitions() if one.log.is_dirty]
            for at in range(0, len(dirty), FLUSHED_TOGETHER):
                await self.flusher.make_durable(dirty[at : at + FLUSHED_TOGETHER])
            await self.flusher.make_durable([self.group_store.journal, self.share.journal])
            if self.loop.time() >= sample_at_s:
                self.stats.sample()
                self.guard.refresh()
                sample_at_s += SAMPLE_S

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self.config.retention_interval_ms / 1000)
            now_ms = self.clock_ms()
            idle_before_s = self.loop.time() - IDLE_MS_MAX / 1000
            for connection in list(self.connections):
                connection.rest()
                if connection.last_active_s < idle_before_s:
                    connection.close()
            try:
                self.room.set_aside()
                for hosted in self.topics.partitions():
                    if hosted.log.retain(now_ms):
                        hosted.wake()
                    hosted.log.producers.expire(now_ms)
                    hosted.log.rest()
                self.group_offsets.expire(self.registry.active(), now_ms)
                self.registry.expire()
                if not self.flusher.is_busy:
                    self.group_offsets.compact()
                    self.group_store.compact()
                    self.share.compact()
                    self.transactions.compact()
            except (OSError, StorageError) as error:
                given_up = self.room.give_up_ballast()
                _log.warning("retention was cut short: %s", error)
                if given_up:
                    continue
            self.lag_watch.look(now_ms, {one.name: one.bytes_per_s for one in self.stats.topics()})
            await self.transactions.expire()

    # -- requests ----------------------------------------------------------------------------------

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """See `dispatch.handle`."""
        dispatch.handle(self, connection, frame)

    def authorize(
        self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a caller (a `Call`, or a connection) may do something with a resource."""
        authorizer = self.guard.authorizer
        return not authorizer.is_on or authorizer.allows(caller, operation, resource_type, name)

    def answer_members(self, replies: list[Reply]) -> None:
        """Sends what group members wait for, once the store knows of it."""
        self.group_store.save()
        for token, fields in replies:
            if not token.done():  # its connection may be gone
                token.set_result(fields)

    def next_producer_id(self) -> int:
        """An id that was never given out before."""
        return self._producer_ids.take()


def _new_member_id(name: str) -> str:
    return f"{name[:200]}-{uuid.uuid4()}"


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(config: BrokerConfig, *, ready: Callable[[Broker], None] | None = None) -> None:
    """Serves until the task is cancelled, or the process gets SIGTERM or SIGINT.

    Args:
        config: what to serve, and where.
        ready: is called once the broker listens; its `address` is then known.

    Raises:
        SetupError: the directory is in use or can't be written, or the address is taken.
    """
    broker = Broker(config)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stopped.set)
            signals.append(number)
    try:
        await broker.start()
        if broker.guard.tls is not None:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(signal.SIGHUP, broker.guard.reload)
                signals.append(signal.SIGHUP)
        try:
            if ready is not None:
                ready(broker)
            await stopped.wait()
        finally:
            await broker.stop()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
