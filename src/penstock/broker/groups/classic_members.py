"""The nouns of consumer groups: a member, a group, what members ask for. See
`penstock.broker.groups.classic`.
"""

from __future__ import annotations

import enum
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.wire.protocol import ErrorCode

__all__ = [
    "NEVER_MS",
    "Group",
    "GroupState",
    "Join",
    "Member",
    "Reply",
    "Sync",
    "Token",
    "member_fault",
]

Token = Any
NEVER_MS: Final = 1 << 62
"""A time that doesn't come."""


class GroupState(enum.Enum):
    """Where a group stands; values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Reply(NamedTuple):
    """The answer that a token stands for: the response's fields."""

    token: Token
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request.

    Attributes:
        requires_member_id: a new member is given its id, and joins again with it.
        may_skip_assignment: the client understands an answer that makes it the leader without
            assigning.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_member_id: bool = False
    may_skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    assignments: dict[str, bytes]
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(slots=True)
class Member:
    """One member of a group."""

    id: str
    join: Join
    session_ends_ms: int
    assignment: bytes = b""
    join_token: Token = None
    sync_token: Token = None

    @property
    def waits(self) -> bool:
        """Whether an answer is due to it. Who waits for one can't send heartbeats."""
        return self.join_token is not None or self.sync_token is not None

    def is_silent(self, now_ms: int) -> bool:
        """Whether its session is over."""
        return not self.waits and self.session_ends_ms <= now_ms

    def to_json(self) -> dict[str, Any]:
        """What a restart needs."""
        return {
            "instance": self.join.instance_id,
            "client": self.join.client_id,
            "host": self.join.client_host,
            "session": self.join.session_timeout_ms,
            "rebalance": self.join.rebalance_timeout_ms,
            "protocols": [[name, _to_text(data)] for name, data in self.join.protocols],
            "assignment": _to_text(self.assignment),
        }

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said with the protocol that was chosen."""
        return next((data for name, data in self.join.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    """One group.

    Attributes:
        promised: member ids that were handed out, and until when (ms) they may be used.
        deadline_ms: of the rebalance's present phase.
        delay_until_ms: a new group waits so long for more members.
        is_seen: it has or had a member.
        kept: what a restart would find.
        ends_ms: nothing ends by itself before; 0 if that is to be worked out.
    """

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    deadline_ms: int = 0
    delay_until_ms: int = 0
    is_seen: bool = False
    kept: dict[str, Any] | None = None
    ends_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """What a restart needs."""
        self.kept = {
            "generation": self.generation,
            "type": self.protocol_type,
            "protocol": self.protocol,
            "leader": self.leader,
            "preparing": self.state is GroupState.PREPARING,
            "members": {member.id: member.to_json() for member in self.members.values()},
        }
        return self.kept

    @classmethod
    def from_json(cls, group_id: str, stored: dict[str, Any], now_ms: int) -> Group:
        """The group that `to_json` described; every member's session begins now."""
        state = GroupState.STABLE if stored["members"] else GroupState.EMPTY
        group = cls(group_id, state, stored["generation"], is_seen=True, kept=stored)
        group.protocol_type, group.protocol = stored["type"], stored["protocol"]
        group.leader = stored["leader"]
        is_preparing = stored.get("preparing", False)  # it was another kind of group just before
        for member_id, one in stored["members"].items():
            join = Join(
                group_id,
                member_id,
                one["instance"],
                one["client"],
                one["host"],
                one["session"],
                one["rebalance"],
                stored["type"],
                tuple((name, b64decode(data)) for name, data in one["protocols"]),
            )
            assignment = b64decode(one["assignment"])
            group.members[member_id] = Member(member_id, join, now_ms + one["session"], assignment)
        if is_preparing and group.members:
            group.state = GroupState.PREPARING
            group.deadline_ms = now_ms + group.rebalance_timeout_ms()
        return group

    def by_instance(self, instance_id: str | None) -> Member | None:
        """The static member of that name."""
        if instance_id is None:
            return None
        found = (one for one in self.members.values() if one.join.instance_id == instance_id)
        return next(found, None)

    def replace(self, old: Member, new: Member) -> None:
        """Puts one member in another's place, which is the leader's if that one led."""
        self.members = {
            new.id if one is old else one.id: new if one is old else one
            for one in self.members.values()
        }
        if self.leader == old.id:
            self.leader = new.id

    def preferred_protocol(self) -> str:
        """The protocol that most members like best of those that all know; of several, the one that
        has its first vote from the member that joined first.
        """
        members = self.members.values()
        common = set.intersection(*({name for name, _ in one.join.protocols} for one in members))
        votes = Counter(
            next(name for name, _ in one.join.protocols if name in common) for one in members
        )
        return votes.most_common(1)[0][0]

    def join_fields(self, member: Member, leader: str | None) -> dict[str, Any]:
        """The answer to a member that has joined the present generation; the `leader` also gets the
        metadata of all members.
        """
        members = []
        if leader == member.id:
            members = [
                {
                    "member_id": one.id,
                    "group_instance_id": one.join.instance_id,
                    "metadata": one.metadata(self.protocol),
                }
                for one in self.members.values()
            ]
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": leader,
            "member_id": member.id,
            "members": members,
        }

    def next_end_ms(self, now_ms: int) -> int:
        """When the next session, promise, or phase of a rebalance ends if no request arrives."""
        ends = [one.session_ends_ms for one in self.members.values() if not one.waits]
        ends += self.promised.values()
        if self.state in {GroupState.PREPARING, GroupState.COMPLETING}:
            ends.append(self.deadline_ms)
        if self.state is GroupState.PREPARING and self.delay_until_ms > now_ms:
            ends.append(self.delay_until_ms)
        return min(ends, default=NEVER_MS)

    def rebalance_timeout_ms(self) -> int:
        """How long members may take to join again: as long as the most patient one says."""
        return max((one.join.rebalance_timeout_ms for one in self.members.values()), default=0)

    def supports(self, protocols: tuple[tuple[str, bytes], ...], but: str = "") -> bool:
        """Whether some protocol is known to all members (other than `but`) and to the new one."""
        common = {name for name, _ in protocols}
        for member in self.members.values():
            if member.id != but:
                common &= {name for name, _ in member.join.protocols}
        return bool(common)


def member_fault(
    group: Group | None, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    """Why a request is none of a member of the present generation; None if it is."""
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    static = group.by_instance(instance_id)
    if static is not None and static.id != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in group.members or (static is None and instance_id is not None):
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return None


def _to_text(data: bytes) -> str:
    return b64encode(data).decode()
