"""Opens a data directory: everything that a broker consists of, in the order in which one part needs
another.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import DynamicSettings
from penstock.broker.groups.classic import Groups
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer_members import Timing
from penstock.broker.groups.mixed import MixedGroups
from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.groups.registry import SHARE, GroupRegistry
from penstock.broker.groups.settings import GroupSettings, broker_wide
from penstock.broker.groups.store import GroupStore, Kept
from penstock.broker.known_ends import known_ends
from penstock.broker.listeners import Listener
from penstock.broker.recovery import FormerTopics, go_on_above, report_damage
from penstock.broker.security.guard import Guard
from penstock.broker.services import Services
from penstock.broker.share.shares import Shares
from penstock.broker.storage import machine_run
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.journals import lost_files
from penstock.broker.storage.room import Room
from penstock.broker.storage.topic_patterns import matching
from penstock.broker.storage.topics import Topics
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.log.disk import documents
from penstock.log.disk.files import LocalFiles

if TYPE_CHECKING:
    from penstock.broker.tier.tiering import Tiering

__all__ = ["Opening"]

_log = logging.getLogger(__name__)


class Opening:
    """A data directory that is being opened. The caller holds its lock.

    Args:
        config: the broker's configuration.
        listeners: where it will listen.
        advertised: the request types that it will serve, in which versions.
        loop: the event loop that it lives in.
        clock_ms: the time.
        spawn: runs something next to the requests.

    Raises:
        SetupError: something in the directory can't be read.
    """

    def __init__(
        self,
        config: BrokerConfig,
        listeners: list[Listener],
        advertised: list[dict[str, int]],
        *,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        began = time.perf_counter()
        self._config = config
        self._loop = loop
        self._clock_ms = clock_ms
        self._spawn = spawn
        self._files = LocalFiles(config.data)
        self._cluster_id, is_new = self._identify()
        self._guard = Guard(config)
        self._flusher = Flusher()
        lost_power = machine_run.lost_power(config.data)
        self._topics = Topics(self._files, clock_ms, lost_power=lost_power)
        ends = known_ends(self._files.load, {one.id.hex: one.name for one in self._topics})
        go_on_above(self._topics, ends, clock_ms())
        self._report_lost_files()
        self._dynamic = DynamicSettings(self._files)
        self._topics.set_defaults(self._dynamic.topic_defaults())
        self._group_offsets = GroupOffsets(self._files)
        self._tiering = self._open_tier()
        self._open_groups()
        self._transactions = Coordinator(
            self._files,
            self._topics.hosted,
            self._group_offsets,
            self._next_producer_id,
            self._flusher.make_durable,
            clock_ms,
        )
        self._transactions.recover(self._topics.partitions())
        self._former = FormerTopics(ends, self._topics, self._group_offsets, self._transactions)
        self._producer_ids = ProducerIds(
            self._files, self._known_producers(), is_new=is_new and self._topics.is_empty
        )
        if self._tiering is not None:
            self._topics.attach(self._tiering.tier)
        self.services = self._services(listeners, advertised)
        self._report(began)
        machine_run.note_run(config.data)

    def _identify(self) -> tuple[str, bool]:
        """The cluster's id, and whether it is a new one."""
        content = self._files.load("cluster.json")
        if content is not None:
            return str(documents.load(content, "cluster.json").get("id")), False
        cluster_id = uuid.uuid4().hex[:22]
        self._files.store("cluster.json", documents.dump({"id": cluster_id}))
        return cluster_id, True

    def _report_lost_files(self) -> None:
        """A file that is missing is not made silently."""

        def has(path: str) -> bool:
            directory, _, name = path.rpartition("/")
            return name in self._files.list(directory)

        if not self._topics.is_empty:
            for path, what in lost_files(has):
                _log.error("%s: %s", path, what)

    def _open_tier(self) -> Tiering | None:
        config = self._config
        if config.tier is None:
            return None
        from penstock.broker.tier.objects import ArrowObjects
        from penstock.broker.tier.tiering import Tiering

        return Tiering(
            ArrowObjects(config.tier),
            self._files,
            self._cluster_id,
            clock_ms=self._clock_ms,
            cache_bytes=config.tier_cache_bytes,
        )

    def _open_groups(self) -> None:
        config, now_ms = self._config, self._now_ms()
        self._group_settings = settings = GroupSettings(
            self._files, broker_wide(config.group_defaults)
        )

        def timing(group_id: str) -> Timing:
            return Timing(
                settings.number(group_id, "consumer.session.timeout.ms"),
                settings.number(group_id, "consumer.heartbeat.interval.ms"),
            )

        self._groups = Groups(_new_member_id, config.rebalance_delay_ms, config.session_ms_min)
        self._consumer_groups = ConsumerGroups(
            self._topics, lambda: str(uuid.uuid4()), matching, timing
        )
        kept: dict[str, Kept] = {"classic": self._groups, "consumer": self._consumer_groups}
        self._group_store = GroupStore(self._files, kept, now_ms)
        self._mixed_groups = MixedGroups(
            self._groups,
            self._consumer_groups,
            self._topics,
            self._topic_name,
            _new_member_id,
            config.migration_policy,
        )
        self._mixed_groups.restored(now_ms)
        self._registry = GroupRegistry(self._groups, self._consumer_groups, self._group_offsets)
        self._share = Shares(
            self._files,
            settings,
            self._topics,
            make_durable=self._flusher.make_durable,
            new_producer_id=self._next_producer_id,
            clock_ms=self._clock_ms,
            now_ms=self._now_ms,
            spawn=self._spawn,
            cache=self._tiering.cache if self._tiering is not None else None,
        )
        self._registry.others[SHARE] = self._share

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self._topics.by_id(topic_id.bytes)
        return None if topic is None else topic.name

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _next_producer_id(self) -> int:
        return self._producer_ids.take()  # opened last: it continues above all that the others know

    def _known_producers(self) -> Iterator[int]:
        """Every producer id that anything in the directory knows of."""
        for hosted in self._topics.partitions():
            yield from hosted.log.producers.ids()
        yield from (one.producer_id for one in self._group_offsets.staged.values())
        yield from self._transactions.producer_ids()
        yield from (held.producer_id for held in self._share)

    def _services(self, listeners: list[Listener], advertised: list[dict[str, int]]) -> Services:
        return Services(
            config=self._config,
            listeners=listeners,
            advertised=advertised,
            loop=self._loop,
            clock_ms=self._clock_ms,
            files=self._files,
            cluster_id=self._cluster_id,
            room=Room(self._config.data, self._config.min_free_bytes),
            flusher=self._flusher,
            dynamic=self._dynamic,
            topics=self._topics,
            former=self._former,
            tiering=self._tiering,
            guard=self._guard,
            group_settings=self._group_settings,
            group_offsets=self._group_offsets,
            groups=self._groups,
            consumer_groups=self._consumer_groups,
            mixed_groups=self._mixed_groups,
            group_store=self._group_store,
            registry=self._registry,
            share=self._share,
            producer_ids=self._producer_ids,
            transactions=self._transactions,
        )

    def _report(self, began_s: float) -> None:
        """Says what was found."""
        topics = self._topics
        report_damage(topics)
        _log.info(
            "opened %d topics, %d partitions in %.3f s",
            len(topics),
            topics.partition_count,
            time.perf_counter() - began_s,
        )


def _new_member_id(name: str) -> str:
    return f"{name[:200]}-{uuid.uuid4()}"
