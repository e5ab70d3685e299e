"""The parts of a broker, for the code that answers requests and operates it.

`penstock.broker.opening` makes one from a data directory. No part knows the whole: each gets the few
others that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import DynamicSettings
from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import Reply
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.mixed import MixedGroups
from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.groups.registry import GroupRegistry
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.store import GroupStore
from penstock.broker.listeners import Listener
from penstock.broker.recovery import FormerTopics
from penstock.broker.security.guard import Guard
from penstock.broker.share.shares import Shares
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.room import Room
from penstock.broker.storage.topics import Topic, Topics
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.producer_ids import ProducerIds
from penstock.log.disk.files import LogFiles

if TYPE_CHECKING:
    from penstock.broker.tier.tiering import Tiering

__all__ = ["Services"]


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of a broker.

    Attributes:
        config: its configuration.
        listeners: where it listens.
        advertised: the request types that it serves, in which versions.
        loop: the event loop that all of it lives in.
        clock_ms: the time.
        files: the data directory.
        cluster_id: of the data directory.
        room: the room on the disk.
        flusher: makes durable what is written.
        dynamic: what clients have set of the broker's settings.
        topics: what there is to read and write.
        former: forgets those that are gone.
        tiering: what lies in object storage, where something may.
        guard: who gets in, and what they may do.
        group_settings: settings of groups.
        group_offsets: what groups have committed.
        groups: groups of the classic protocol.
        consumer_groups: groups of KIP-848's.
        mixed_groups: both; what members say goes to it.
        group_store: keeps them.
        registry: the kind of each group.
        share: share groups.
        producer_ids: ids that are given out once.
        transactions: transactions.
    """

    config: BrokerConfig
    listeners: list[Listener]
    advertised: list[dict[str, int]]
    loop: asyncio.AbstractEventLoop
    clock_ms: Callable[[], int]
    files: LogFiles
    cluster_id: str
    room: Room
    flusher: Flusher
    dynamic: DynamicSettings
    topics: Topics
    former: FormerTopics
    tiering: Tiering | None
    guard: Guard
    group_settings: GroupSettings
    group_offsets: GroupOffsets
    groups: Groups
    consumer_groups: ConsumerGroups
    mixed_groups: MixedGroups
    group_store: GroupStore
    registry: GroupRegistry
    share: Shares
    producer_ids: ProducerIds
    transactions: Coordinator

    def now_ms(self) -> int:
        """A monotonic clock for timeouts."""
        return int(self.loop.time() * 1000)

    def next_producer_id(self) -> int:
        """An id that was never given out before."""
        return self.producer_ids.take()

    def answer_members(self, replies: list[Reply]) -> None:
        """Sends what group members wait for, once the store knows of it."""
        self.group_store.save()
        for token, fields in replies:
            if not token.done():  # its connection may be gone
                token.set_result(fields)

    def note_removal(self, topic: Topic) -> None:
        """Has what a topic has in object storage removed, once the topic itself is gone."""
        from penstock.broker.tier.tiering import note_removal

        note_removal(self.files, self.cluster_id, topic)
