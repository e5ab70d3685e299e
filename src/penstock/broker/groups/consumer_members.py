"""The nouns of consumer groups in the protocol of KIP-848: a member, a group, what members ask for.
See `penstock.broker.groups.consumer`.
"""

from __future__ import annotations

import enum
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from penstock.broker.groups.assignors import Part

__all__ = [
    "JOIN",
    "LEAVE",
    "LEAVE_FOR_A_WHILE",
    "Beat",
    "Catalog",
    "Classic",
    "ConsumerGroup",
    "ConsumerGroupState",
    "ConsumerMember",
    "ConsumerMemberState",
    "Timing",
    "by_topic",
]

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
"""Epochs of a heartbeat that say what a member does; a static one may leave for a while."""


class Catalog(Protocol):
    """The topics that there are."""

    @property
    def version(self) -> int:
        """Is another one after every change."""
        ...

    def names(self) -> Iterable[str]:
        """All topics."""
        ...

    def find(self, name: str) -> tuple[UUID, int] | None:
        """A topic's id and number of partitions."""
        ...


class ConsumerGroupState(enum.Enum):
    """Where a group stands; values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerMemberState(enum.Enum):
    """How far a member is on its way to its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It must give up partitions first."""
    UNRELEASED = "unreleased"
    """It waits for partitions that another one still has."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A group's settings (consumer.session.timeout.ms, consumer.heartbeat.interval.ms)."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class Classic:
    """More about a member that speaks the classic protocol.

    Attributes:
        session_ms: how long it may be silent.
        protocols: the assignors that it knows, each with what it said to it.
    """

    session_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def names(self) -> list[str]:
        """Its assignors, the one that it likes best first."""
        return [name for name, _ in self.protocols]


@dataclass(frozen=True, slots=True)
class Beat:
    """A ConsumerGroupHeartbeat request. What is None has not changed since the last one.

    Attributes:
        epoch: the member's; 0 joins, -1 leaves, -2 leaves for a while (static members).
        rebalance_ms: how long the member may take to give up partitions; -1: no change.
        owned: partitions that the member holds.
        classic: the request was a JoinGroup of the classic protocol.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    names: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Part] | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 1
    classic: Classic | None = None

    @property
    def is_full(self) -> bool:
        """Whether the request is a full one, as after an error; the answer is then full too."""
        subscribes = self.names is not None or self.regex is not None
        return self.rebalance_ms != -1 and subscribes and self.owned is not None


@dataclass(slots=True)
class ConsumerMember:
    """One member.

    Attributes:
        epoch: the target's epoch that the member has reached.
        previous_epoch: the one before; a request that carries it was sent before the answer came.
        assigned: what it may use, with the epoch since when.
        revoking: partitions that it was asked to give up, and still has.
        revoke_by_ms: when it must have; None: there is nothing to give up.
        classic: it speaks the classic protocol; None: that of KIP-848.
        due_ms: when a classic member's JoinGroup or SyncGroup is due; None: none is.
        sent_ms: when its assignment was last sent, until the member confirms it; None: it has
            confirmed.
    """

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = 0
    names: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: ConsumerMemberState = ConsumerMemberState.STABLE
    assigned: dict[Part, int] = field(default_factory=dict)
    revoking: dict[Part, int] = field(default_factory=dict)
    target: frozenset[Part] = frozenset()
    session_ends_ms: int = 0
    revoke_by_ms: int | None = None
    classic: Classic | None = None
    due_ms: int | None = None
    sent_ms: int | None = None

    @property
    def ends_ms(self) -> int:
        """When the member is fenced, unless it is heard of before."""
        by_ms = (self.session_ends_ms, self.revoke_by_ms, self.due_ms)
        return min(one for one in by_ms if one is not None)

    def move_to(self, epoch: int, state: ConsumerMemberState) -> None:
        """Takes the member to an epoch."""
        self.previous_epoch, self.epoch, self.state = self.epoch, epoch, state

    def may_not_know(self, now_ms: int, patience_ms: int, owned: frozenset[Part] | None) -> bool:
        """Whether the answer with the member's assignment may be lost: the member has not confirmed it
        for a while.

        KIP-848 leaves it to the member to ask again (by a full request) where an answer didn't come.
        librdkafka 2.16 doesn't, and its group would wait for the rebalance timeout: five minutes.
        """
        has_it = owned is not None and owned == self.assigned.keys()
        if has_it or not (self.assigned or self.revoking):
            self.sent_ms = None
        return self.sent_ms is not None and now_ms - self.sent_ms >= patience_ms

    def to_json(self) -> dict[str, Any]:
        """What a restart needs."""
        classic = None
        if self.classic is not None:
            protocols = [[name, b64encode(data).decode()] for name, data in self.classic.protocols]
            classic = {"session": self.classic.session_ms, "protocols": protocols}
        return {
            "classic": classic,
            "instance": self.instance_id,
            "rack": self.rack_id,
            "client": self.client_id,
            "host": self.client_host,
            "rebalance": self.rebalance_ms,
            "names": sorted(self.names),
            "regex": self.regex,
            "assignor": self.assignor,
            "epoch": self.epoch,
            "previous": self.previous_epoch,
            "state": self.state.value,
            "assigned": [[topic.hex, number, at] for (topic, number), at in self.assigned.items()],
            "revoking": [[topic.hex, number, at] for (topic, number), at in self.revoking.items()],
            "target": [[topic.hex, number] for topic, number in self.target],
        }

    @classmethod
    def from_json(cls, member_id: str, stored: dict[str, Any]) -> ConsumerMember:
        """The member that `to_json` described."""
        classic = None
        if stored.get("classic") is not None:
            protocols = ((name, b64decode(data)) for name, data in stored["classic"]["protocols"])
            classic = Classic(stored["classic"]["session"], tuple(protocols))
        return cls(
            member_id,
            stored["instance"],
            stored["rack"],
            stored["client"],
            stored["host"],
            stored["rebalance"],
            frozenset(stored["names"]),
            stored["regex"],
            stored["assignor"],
            stored["epoch"],
            stored["previous"],
            ConsumerMemberState(stored["state"]),
            {(UUID(hex=topic), number): at for topic, number, at in stored["assigned"]},
            {(UUID(hex=topic), number): at for topic, number, at in stored["revoking"]},
            frozenset((UUID(hex=topic), number) for topic, number in stored["target"]),
            classic=classic,
            sent_ms=0,  # its last answer may have been lost with the process that wrote it
        )


@dataclass(slots=True)
class ConsumerGroup:
    """One group.

    Attributes:
        epoch: grows whenever the assignment may have to change.
        target_epoch: the epoch that the members' targets were computed for.
        owners: who has, or has yet to give up, a partition.
        topics: the subscribed topics, as of `catalog_version`.
        topics_digest: changes when they change; kept to compare with when the epoch last grew, also
            after a restart.
        matches: what the members' regular expressions match, as of then.
        ends_ms: no session and no revocation ends before.
        changed: members that the store doesn't know as they are; None: the whole group.
    """

    id: str
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    owners: dict[Part, str] = field(default_factory=dict)
    topics: dict[str, tuple[UUID, int]] = field(default_factory=dict)
    topics_digest: str = ""
    matches: dict[str, frozenset[str]] = field(default_factory=dict)
    catalog_version: int | None = None
    ends_ms: int = 0
    changed: set[str] = field(default_factory=set)

    @property
    def state(self) -> ConsumerGroupState:
        """Where the group stands."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(
            one.state is ConsumerMemberState.STABLE and one.epoch == self.target_epoch
            for one in self.members.values()
        ):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def by_instance(self, instance_id: str) -> ConsumerMember | None:
        """The static member of that name."""
        found = (one for one in self.members.values() if one.instance_id == instance_id)
        return next(found, None)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """Names of topics that a member reads, whether they are there or not."""
        return member.names | self.matches.get(member.regex, frozenset())


def by_topic(parts: Collection[Part]) -> list[dict[str, Any]]:
    """Partitions as messages carry them."""
    found: dict[UUID, list[int]] = {}
    for topic, number in sorted(parts):
        found.setdefault(topic, []).append(number)
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in found.items()]
