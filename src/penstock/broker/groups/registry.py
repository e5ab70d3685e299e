"""All groups, of whatever kind, under one roof: a group id belongs to one kind at a time.

A group without members may change its kind: the first member decides, and the committed offsets
stay. Kinds are Kafka's group types: `classic` and `consumer` are known here, others (share groups)
register themselves in `others`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import GroupState
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.offsets import GroupOffsets
from penstock.wire.protocol import ErrorCode

__all__ = ["CLASSIC", "CONSUMER", "SHARE", "GroupKind", "GroupRegistry", "Summary"]

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
MEMBER_EPOCH_FROM: Final = 9
"""Version of OffsetCommit from which on members of the newer protocol use it, and from which on
clients know GROUP_ID_NOT_FOUND."""
_COUNTED = struct.Struct(">hi")


class Summary(NamedTuple):
    """One group in a list."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


class GroupKind(Protocol):
    """A coordinator of groups of another kind."""

    def summaries(self) -> Iterable[Summary]:
        """All its groups."""
        ...

    def has(self, group_id: str) -> bool:
        """Whether a group is one of these."""
        ...

    def delete(self, group_id: str) -> ErrorCode:
        """Forgets a group without members."""
        ...


class GroupRegistry:
    """All groups of one broker."""

    def __init__(self, classic: Groups, consumer: ConsumerGroups, offsets: GroupOffsets) -> None:
        self._classic = classic
        self._consumer = consumer
        self._offsets = offsets
        self.others: dict[str, GroupKind] = {}

    def kind(self, group_id: str) -> str | None:
        """A group's kind; one that has only committed offsets is a classic one. None: no group."""
        if self._consumer.get(group_id) is not None:
            return CONSUMER
        for name, other in self.others.items():
            if other.has(group_id):
                return name
        if self._classic.get(group_id) is not None or group_id in self._offsets.groups():
            return CLASSIC
        return None

    def claim(self, group_id: str, kind: str) -> bool:
        """Makes a group id that kind's, if it is free, its own already, or a group without members
        of a kind that can be converted. Consumers of either protocol may join those of the other:
        see `penstock.broker.groups.mixed`.
        """
        match self.kind(group_id):
            case None:
                return True
            case present if present == kind:
                return True
            case "classic":
                group = self._classic.get(group_id)
                if group is None or (not group.members and not group.promised):
                    self._classic.delete(group_id)
                    return True
                return kind == CONSUMER
            case "consumer" if kind == CLASSIC:
                self._consumer.delete(group_id)
                return True
            case _:
                return False

    def summaries(self) -> Iterator[Summary]:
        """Every group, with members, former members, or committed offsets only."""
        seen: set[str] = set()
        for one in self._all():
            if one.group_id not in seen:
                seen.add(one.group_id)
                yield one

    def _all(self) -> Iterator[Summary]:
        for group in self._consumer:
            yield Summary(group.id, "consumer", group.state.value, CONSUMER)
        for other in self.others.values():
            yield from other.summaries()
        for classic in self._classic:
            state = classic.state.value
            yield Summary(classic.id, classic.protocol_type or "", state, CLASSIC)
        for group_id in list(self._offsets.groups()):
            yield Summary(group_id, "", GroupState.EMPTY.value, CLASSIC)

    def active(self) -> set[str]:
        """Groups with members: their offsets don't expire."""
        return {one.group_id for one in self.summaries() if one.state not in {"Empty", "Dead"}}

    def delete(self, group_id: str) -> ErrorCode:
        """Forgets a group without members; its offsets are the caller's to forget."""
        match self.kind(group_id):
            case None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case "consumer":
                return self._consumer.delete(group_id)
            case "classic":
                code = self._classic.delete(group_id)
                return ErrorCode.NONE if code is ErrorCode.GROUP_ID_NOT_FOUND else code
            case other:
                return self.others[other].delete(group_id)

    def expire(self) -> None:
        """Forgets groups that have neither members nor offsets."""
        for group in self._consumer:
            if not group.members and not self._offsets.of(group.id):
                self._consumer.delete(group.id)
        for classic in self._classic:
            is_empty = classic.state is GroupState.EMPTY and not classic.promised
            if is_empty and not self._offsets.of(classic.id):
                self._classic.delete(classic.id)
        for group_id in list(self._offsets.groups()):
            self._offsets.drop(group_id)

    def subscribed(self, group_id: str) -> set[str] | None:
        """Topics that members of a group read; None: they don't say, it may be any."""
        modern = self._consumer.get(group_id)
        if modern is not None:
            return {
                name for member in modern.members.values() for name in modern.subscribed(member)
            }
        group = self._classic.get(group_id)
        names: set[str] = set()
        if group is not None and group.protocol_type == "consumer":
            for member in group.members.values():
                named = _named(member.metadata(group.protocol))
                if named is None:
                    return None
                names |= named
        return names

    def commit_fault(
        self,
        now_ms: int,
        group_id: str,
        epoch: int,
        member_id: str,
        instance_id: str | None,
        parts: Collection[Part],
        version: int,
        *,
        is_transactional: bool = False,
    ) -> ErrorCode | None:
        """Why a member may not commit these offsets; None if it may.

        Args:
            now_ms: the time.
            group_id: the group.
            epoch: the member's epoch or generation; below 0: not a member.
            member_id: the member.
            instance_id: its instance id, if it has one.
            parts: what it commits.
            version: of OffsetCommit.
            is_transactional: a producer commits for its consumer; it may not know its member id.
        """
        if is_transactional and epoch < 0 and not member_id and instance_id is None:
            return None
        match self.kind(group_id):
            case "consumer":
                group = self._consumer.get(group_id)
                member = None if group is None else group.members.get(member_id)
                is_modern = member is not None and member.classic is None
                if is_modern and version < MEMBER_EPOCH_FROM and not is_transactional:
                    return ErrorCode.UNSUPPORTED_VERSION
                fault = self._consumer.commit_fault(group_id, epoch, member_id, parts)
                is_stale = fault is ErrorCode.STALE_MEMBER_EPOCH
                return ErrorCode.ILLEGAL_GENERATION if is_stale and is_transactional else fault
            case None if epoch >= 0 and version >= MEMBER_EPOCH_FROM and not is_transactional:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case "classic" if self._classic.get(group_id) is None and epoch >= 0:
                return ErrorCode.UNKNOWN_MEMBER_ID  # it has offsets, but never had a member
            case None | "classic":
                return self._classic.commit_fault(now_ms, group_id, epoch, member_id, instance_id)
            case _:
                return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_fault(self, group_id: str, epoch: int, member_id: str | None) -> ErrorCode | None:
        """Why a member may not ask for the group's offsets; None if it may."""
        if self._consumer.get(group_id) is None:
            return None
        return self._consumer.commit_fault(group_id, epoch, member_id or "")


def _named(data: bytes) -> set[str] | None:
    """Topics in a classic member's metadata (version, count, names); None: it is cut short."""
    names: set[str] = set()
    if len(data) < _COUNTED.size:
        return None
    _, count = _COUNTED.unpack_from(data)
    at = _COUNTED.size
    for _ in range(count):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            return None
        names.add(data[at + 2 : end].decode(errors="replace"))
        at = end
    return names
