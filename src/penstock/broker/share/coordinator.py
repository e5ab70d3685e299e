"""Membership of share groups: a pure state machine. Time comes in, answers go out.

A member joins with epoch 0 under an id of its own, learns the group's epoch and its partitions with
each heartbeat that finds them changed, and leaves with epoch -1. Nothing is revoked: two members
that have a partition at the same time do no harm, so a new assignment is in force at once. Nor does
membership say who has a record: that is up to share sessions and locks (`share.sessions`).

Invariants (see `check`): each partition of a topic that members subscribe to is assigned to one of
them or more, and each of these members has a partition of it; no member's epoch is beyond its
group's.

Source: KIP-932 (ShareGroupHeartbeat, the simple assignor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from penstock.broker.groups.assignors import Part
from penstock.wire.protocol import ErrorCode

__all__ = ["Answer", "Assignment", "Beat", "ShareGroup", "ShareGroups", "assign"]

MEMBERS_MAX: Final = 200
"""Most members of a group, Kafka's group.share.max.size."""
GROUPS_MAX: Final = 1_000
"""Most groups with members; each of them takes some KB per member."""
TOPICS_MAX: Final = 1_000
"""Most topics that a member may subscribe to."""
LEAVE: Final = -1

Assignment: TypeAlias = frozenset[Part]
Layout: TypeAlias = Mapping[str, tuple[UUID, int]]
"""Topic -> its id and number of partitions. A topic that was created again is another one."""


class Beat(NamedTuple):
    """A member's heartbeat; `topics` is None where it has not changed."""

    group_id: str
    member_id: str
    epoch: int
    topics: tuple[str, ...] | None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""


class Answer(NamedTuple):
    """The answer to a member; the assignment is None where the member has it."""

    code: ErrorCode
    epoch: int = 0
    assignment: Assignment | None = None
    message: str | None = None


@dataclass(slots=True)
class ShareMember:
    """A member."""

    id: str
    topics: tuple[str, ...]
    ends_ms: int
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    assignment: Assignment = frozenset()
    sent: Assignment | None = None


@dataclass(slots=True)
class ShareGroup:
    """A group with members."""

    id: str
    epoch: int = 0
    layout: dict[str, tuple[UUID, int]] | None = None
    members: dict[str, ShareMember] = field(default_factory=dict)

    def topics(self) -> set[str]:
        """All topics that members subscribe to."""
        return {topic for one in self.members.values() for topic in one.topics}


def assign(subscriptions: Mapping[str, tuple[str, ...]], layout: Layout) -> dict[str, Assignment]:
    """Shares partitions among members: each has one or more, and so has each partition.

    >>> topic = UUID(int=7)
    >>> found = assign({"a": ("t",), "b": ("t",), "c": ("t",)}, {"t": (topic, 2)})
    >>> [sorted(index for _, index in some) for some in found.values()]
    [[0], [1], [0]]
    """
    found: dict[str, set[Part]] = {one: set() for one in subscriptions}
    turn = 0
    for topic in sorted(layout):
        members = sorted(one for one, topics in subscriptions.items() if topic in topics)
        topic_id, partitions = layout[topic]
        if not members or not partitions:
            continue
        rounds = max(len(members), partitions)
        for i in range(rounds):
            found[members[(turn + i) % len(members)]].add((topic_id, i % partitions))
        turn += rounds
    return {one: frozenset(some) for one, some in found.items()}


class ShareGroups:
    """The coordinator of all share groups.

    Args:
        find: a topic's id and number of partitions; None where there is none of that name.
    """

    def __init__(self, find: Callable[[str], tuple[UUID, int] | None]) -> None:
        self._find = find
        self._groups: dict[str, ShareGroup] = {}

    def __iter__(self) -> Iterator[ShareGroup]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> ShareGroup | None:
        """A group that has members."""
        return self._groups.get(group_id)

    def heartbeat(self, now_ms: int, session_ms: int, beat: Beat) -> Answer:
        """A member joins, lives or leaves."""
        if not beat.group_id or not beat.member_id or beat.epoch < LEAVE:
            return Answer(ErrorCode.INVALID_REQUEST, message="expected a group, a member, an epoch")
        if beat.topics is not None and len(beat.topics) > TOPICS_MAX:
            return Answer(ErrorCode.INVALID_REQUEST, message=f"expected up to {TOPICS_MAX} topics")
        group = self._groups.get(beat.group_id)
        if beat.epoch == LEAVE:
            return self._leave(group, beat.member_id)
        if beat.epoch == 0:
            return self._join(now_ms, session_ms, group, beat)
        member = group.members.get(beat.member_id) if group is not None else None
        if group is None or member is None:
            return Answer(
                ErrorCode.UNKNOWN_MEMBER_ID,
                message=f"expected a member of {beat.group_id!r}; found {beat.member_id!r}",
            )
        if beat.epoch not in {member.epoch, member.previous_epoch}:
            return Answer(
                ErrorCode.FENCED_MEMBER_EPOCH,
                message=f"expected epoch {member.epoch}; found {beat.epoch}",
            )
        if beat.epoch != member.epoch:
            member.sent = None  # the last answer was lost
        member.ends_ms = now_ms + session_ms
        if beat.topics is not None and beat.topics != member.topics:
            member.topics = beat.topics
            group.layout = None
        return self._answer(group, member)

    def _join(self, now_ms: int, session_ms: int, group: ShareGroup | None, beat: Beat) -> Answer:
        if not beat.topics:
            return Answer(ErrorCode.INVALID_REQUEST, message="expected topics; found none")
        if beat.rack == "":
            return Answer(ErrorCode.INVALID_REQUEST, message="expected a rack; found an empty name")
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            group = self._groups[beat.group_id] = ShareGroup(beat.group_id)
        member = group.members.get(beat.member_id)
        if member is None:
            if len(group.members) >= MEMBERS_MAX:
                return Answer(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    message=f"expected up to {MEMBERS_MAX} members of {group.id!r}",
                )
            member = ShareMember(beat.member_id, beat.topics, 0)
            group.members[member.id] = member
            group.layout = None
        elif member.topics != beat.topics:
            member.topics = beat.topics
            group.layout = None
        member.rack, member.client_id = beat.rack, beat.client_id
        member.client_host = beat.client_host
        member.ends_ms, member.sent = now_ms + session_ms, None
        return self._answer(group, member)

    def _leave(self, group: ShareGroup | None, member_id: str) -> Answer:
        if group is None or group.members.pop(member_id, None) is None:
            return Answer(ErrorCode.UNKNOWN_MEMBER_ID, message=f"found no member {member_id!r}")
        self._shrink(group)
        return Answer(ErrorCode.NONE, LEAVE)

    def _shrink(self, group: ShareGroup) -> None:
        group.layout = None
        if not group.members:
            del self._groups[group.id]

    def _answer(self, group: ShareGroup, member: ShareMember) -> Answer:
        self._refresh(group)
        if member.epoch != group.epoch:
            member.previous_epoch, member.epoch = member.epoch, group.epoch
        assignment = None
        if member.sent != member.assignment:
            assignment = member.sent = member.assignment
        return Answer(ErrorCode.NONE, member.epoch, assignment)

    def _refresh(self, group: ShareGroup) -> None:
        """Assigns again where members, subscriptions or topics have changed."""
        found_topics = {topic: self._find(topic) for topic in group.topics()}
        layout = {topic: one for topic, one in found_topics.items() if one is not None}
        if layout == group.layout:
            return
        group.layout = layout
        group.epoch += 1
        found = assign({one.id: one.topics for one in group.members.values()}, layout)
        for member in group.members.values():
            member.assignment = found[member.id]

    def tick(self, now_ms: int) -> None:
        """Forgets members that were silent for too long."""
        for group in self:
            late = [one.id for one in group.members.values() if one.ends_ms <= now_ms]
            for member_id in late:
                del group.members[member_id]
            if late:
                self._shrink(group)

    def check(self) -> None:
        """Asserts all invariants."""
        for group in self:
            assert 0 < len(group.members) <= MEMBERS_MAX
            layout = group.layout
            held: set[Part] = set()
            for member in group.members.values():
                assert member.epoch <= group.epoch
                held |= member.assignment
                if layout is not None:
                    topics = {topic for topic, _ in member.assignment}
                    assert topics == {layout[one][0] for one in member.topics if one in layout}
            if layout is not None:
                assert held == {(topic, i) for topic, size in layout.values() for i in range(size)}


def member_fields(member: ShareMember) -> dict[str, Any]:
    """What others see of a member when they describe its group."""
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topics),
    }
