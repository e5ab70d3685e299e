"""The broker: one event loop that owns a data directory and answers Kafka's protocol on a
socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import (
    CLEANER_BACKOFF_MS,
    CLEANER_BYTES_PER_S,
    CONNECTIONS,
    CONNECTIONS_PER_IP,
    CONNECTIONS_PER_IP_OVERRIDES,
    PRODUCER_EXPIRY_MS,
    overrides_in,
)
from penstock.broker.groups.lag import LagWatch
from penstock.broker.limits import CONNECTIONS_MAX, CONNECTIONS_MAX_EVER, IDLE_MS_MAX
from penstock.broker.listeners import Listener
from penstock.broker.monitoring.metrics import Sources, collect
from penstock.broker.monitoring.metrics_server import MetricsServer
from penstock.broker.monitoring.stats import Stats
from penstock.broker.opening import Opening
from penstock.broker.protocol import dispatch
from penstock.broker.protocol.acceptor import Acceptor
from penstock.broker.protocol.connection import Connection
from penstock.broker.protocol.connections import Connections
from penstock.broker.protocol.dispatch import Dispatcher
from penstock.broker.protocol.fetch import FetchApi
from penstock.broker.protocol.produce import ProduceApi
from penstock.broker.protocol.requests import Requests
from penstock.broker.pulse import Pulse, until_next
from penstock.broker.services import Services
from penstock.broker.storage.checkpoints import checkpoint
from penstock.broker.storage.cleaner import LogCleaner
from penstock.broker.storage.contracts import Contracts
from penstock.broker.storage.data_lock import DataLock
from penstock.broker.storage.topics import Topics
from penstock.errors import SetupError
from penstock.log.errors import StorageError
from penstock.log.producers import EXPIRY_MS

if TYPE_CHECKING:
    from prometheus_client import Metric

    from penstock.broker.tier.iceberg import Iceberg

__all__ = ["Broker", "serve"]

DESCRIPTORS_WANTED: Final = 65_536
"""Open files that the process asks the system for, as far as it is allowed to."""
TICK_MS_MIN: Final = 10
"""Members whose time is over within this time of each other are looked at together."""
SAMPLE_S: Final = 1.0
"""How often the counters behind rates are sampled."""
LISTEN_RETRY_S: Final = 0.1
"""How often a port that is taken is tried again, while a predecessor may still hold it."""

_log = logging.getLogger(__name__)


class Broker:
    """A data directory being served. Use `serve`, or `start` and `stop`."""

    def __init__(self, config: BrokerConfig, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.config = config
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.listeners = config.listeners()
        self.metrics = MetricsServer(self.collect)
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._pulse = Pulse(self.loop)
        self._lock = DataLock(config.data)
        self._servers: list[asyncio.Server | Acceptor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._iceberg: Iceberg | None = None
        self.services: Services
        self.connections: Connections[Connection]

    @property
    def address(self) -> tuple[str, int]:
        """Where the first listener is."""
        return self.listeners[0].host, self.listeners[0].port

    @property
    def topics(self) -> Topics:
        """What there is to read and write, once the broker has started."""
        return self.services.topics

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the data directory and listens.

        Raises:
            SetupError: the directory is in use or can't be written, or the address is taken.
        """
        await self._lock.take(self.config.lock_wait_s)
        _raise_descriptor_limit()
        try:
            self._open()
            self._look_at_room()
            for listener in self.listeners:
                self._servers.append(await self._listen(listener))
            if self.config.metrics is not None:
                await self.metrics.start(
                    self.config.metrics, is_remote_allowed=self.config.allow_remote
                )
            self._lock.announce([f"{one.protocol}://{one.address}" for one in self.listeners])
        except BaseException:
            for server in self._servers:
                server.close()
            self._lock.release()
            raise
        self._spawn(self._tick())
        self._spawn(self._tick_groups())
        self._spawn(self._flush())
        self._spawn(
            checkpoint(
                self.topics, self.services.flusher, self.config.checkpoint_interval_ms / 1000
            )
        )
        self._spawn(self._retain())
        self._cleaner.start()
        self._spawn(self.services.transactions.run())

    def _open(self) -> None:
        """Opens the data directory, and what serves it."""
        config = self.config
        services = self.services = Opening(
            config,
            self.listeners,
            dispatch.advertised(),
            loop=self.loop,
            clock_ms=self._clock_ms,
            spawn=self._spawn,
        ).services
        topics = services.topics
        self._stats = Stats(topics, self.loop.time)
        self._lag_watch = LagWatch(topics, services.group_offsets)
        self._cleaner = LogCleaner(
            lambda: (one.log for one in topics.partitions()),
            self._clock_ms,
            config.cleaner_interval_ms / 1000,
        )
        self._begin_to_copy()
        requests = Requests()
        produce = ProduceApi(
            topics=topics,
            transactions=services.transactions,
            guard=services.guard,
            room=services.room,
            flusher=services.flusher,
            requests=requests,
            contracts=Contracts(topics),
            clock_ms=self._clock_ms,
            flush_interval_ms=config.flush_interval_ms,
        )
        self._fetch = FetchApi(
            topics=topics,
            guard=services.guard,
            tiering=services.tiering,
            clock_s=self.loop.time,
        )
        dispatcher = Dispatcher(services, produce, self._fetch, requests, self._pulse.stir)
        self.connections = Connections(self.loop, services.guard, requests, dispatcher.handle)
        services.dynamic.follow(self._follow_settings)

    def _follow_settings(self) -> None:
        """Carries out what clients have set of the broker's settings."""
        services, dynamic = self.services, self.services.dynamic
        services.topics.set_defaults(dynamic.topic_defaults())
        interval_ms = dynamic.number(CLEANER_BACKOFF_MS, self.config.cleaner_interval_ms)
        bytes_per_s = dynamic.number(CLEANER_BYTES_PER_S, float("inf"))
        self._cleaner.configure(interval_ms / 1000, bytes_per_s)
        count_max = dynamic.number(CONNECTIONS, CONNECTIONS_MAX)
        self.connections.count_max = min(int(count_max), CONNECTIONS_MAX_EVER)
        limit = dynamic.value(CONNECTIONS_PER_IP)
        services.guard.limit_addresses(
            None if limit is None else int(limit),
            overrides_in(dynamic.value(CONNECTIONS_PER_IP_OVERRIDES) or ""),
        )
        self._producer_expiry_ms = int(dynamic.number(PRODUCER_EXPIRY_MS, EXPIRY_MS))

    def _begin_to_copy(self) -> None:
        """Begins to keep object storage and tables up to date, where that is configured."""
        config, services = self.config, self.services
        if services.tiering is not None:
            self._spawn(services.tiering.run(services.topics, config.tier_interval_ms / 1000))
        if config.iceberg_catalog is not None:
            from penstock.broker.tier.iceberg import Iceberg
            from penstock.client.tables.history import catalog_loader

            load = catalog_loader(config.iceberg_catalog, config.iceberg_warehouse)
            self._iceberg = Iceberg(load, services.tiering, config.iceberg_interval_ms / 1000)
            self._spawn(self._iceberg.run(services.topics))

    def collect(self) -> list[Metric]:
        """All metrics, now."""
        return collect(
            Sources(
                self.services,
                self._stats,
                self.connections.requests,
                self._fetch.sessions,
                self._iceberg,
                len(self.connections),
                self.connections.receive_bytes,
            )
        )

    async def _serve(self, listener: Listener) -> asyncio.Server | Acceptor:
        if listener.protocol.has_tls:
            return Acceptor(self.connections, listener)
        return await self.loop.create_server(
            lambda: Connection(self.connections, listener),
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
                    f"expected to listen on {listener.address}; found: {error.strerror or error};"
                    " stop what uses the port, or choose another with --listen (port 0: any free)"
                ) from None
            listener.port = server.sockets[0].getsockname()[1]
            return server

    async def stop(self) -> None:
        """Answers nothing more, makes everything durable, and releases the directory."""
        services = self.services
        for server in self._servers:
            server.close()
        self.metrics.stop()
        for connection in self.connections:
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cleaner.stop()
        await services.transactions.finish()
        await services.flusher.settle()
        services.flusher.close()
        if self._iceberg is not None:
            await self._iceberg.close()
        if services.tiering is not None:
            await services.tiering.close()
        services.guard.close()
        try:
            services.topics.close()
            services.group_offsets.journal.close()
            services.group_store.journal.close()
            services.share.journal.close()
            services.transactions.close()
        finally:
            self._lock.release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something next to the requests, and keeps hold of it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a background task failed", exc_info=task.exception())

    # -- in the background -------------------------------------------------------------------------

    async def _tick(self) -> None:
        services = self.services
        while True:
            await self._pulse.pause()
            self._look_at_room()
            services.share.tick(self.connections)

    async def _tick_groups(self) -> None:
        services = self.services
        while True:
            now_ms = services.now_ms()
            services.answer_members(services.mixed_groups.tick(now_ms))
            pause_ms = pause_until(now_ms, services.mixed_groups.next_end_ms)
            await self._pulse.pause(pause_ms / 1000)

    def _look_at_room(self) -> None:
        """Refuses records while the disk is full; what failed for that continues when it isn't."""
        services = self.services
        try:
            services.room.look()
        except OSError as error:
            _log.warning("expected to ask for the room on the disk; found: %s", error)
        if services.room.is_full or services.flusher.failed:
            self._pulse.stir()  # requests that wait for room wait for the next look
        if services.flusher.failed and not services.room.is_full:
            repaired = services.flusher.repair()
            if repaired:
                _log.warning("%d logs continue after a full disk", repaired)

    async def _flush(self) -> None:
        services = self.services
        sample_at_s = self.loop.time()
        while True:
            await asyncio.sleep(until_next(self.loop.time(), self.config.flush_interval_ms / 1000))
            dirty = [one.log for one in services.topics.partitions() if one.log.is_dirty]
            await services.flusher.make_durable_by_the_way(dirty)
            await services.flusher.make_durable(
                [services.group_store.journal, services.share.journal]
            )
            if self.loop.time() >= sample_at_s:
                self._stats.sample()
                services.guard.refresh()
                sample_at_s += SAMPLE_S

    async def _retain(self) -> None:
        services = self.services
        while True:
            await asyncio.sleep(self.config.retention_interval_ms / 1000)
            now_ms = self._clock_ms()
            idle_before_s = self.loop.time() - IDLE_MS_MAX / 1000
            for connection in self.connections:
                connection.rest()
                if connection.last_active_s < idle_before_s:
                    connection.close()
            try:
                services.room.set_aside()
                for hosted in services.topics.partitions():
                    if hosted.log.retain(now_ms):
                        hosted.wake()
                    hosted.log.producers.expire(now_ms, self._producer_expiry_ms)
                    hosted.log.rest()
                services.topics.remove_doomed(now_ms, is_urgent=services.room.is_full)
                services.group_offsets.expire(services.registry.active(), now_ms)
                services.registry.expire()
                if not services.flusher.is_busy:
                    services.group_offsets.compact()
                    services.group_store.compact()
                    services.share.compact()
                    services.transactions.compact()
            except (OSError, StorageError) as error:
                given_up = services.room.give_up_ballast()
                _log.warning("retention was cut short: %s", error)
                if given_up:
                    continue
            self._lag_watch.look(
                now_ms, {one.name: one.bytes_per_s for one in self._stats.topics()}
            )
            await services.transactions.expire()


def pause_until(now_ms: int, end_ms: int) -> int:
    """How long (ms) to pause so as to be there when something ends."""
    return max(end_ms - now_ms, TICK_MS_MIN)


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
        if broker.services.guard.tls is not None:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(signal.SIGHUP, broker.services.guard.reload)
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
