"""Consumer groups, classic protocol: a pure state machine. Time and tokens come in, replies go out.

    EMPTY -> PREPARING      a member joins
    PREPARING -> COMPLETING all have joined again, or their time is over: a new generation
    COMPLETING -> STABLE    the leader has sent the assignment
    COMPLETING, STABLE -> PREPARING     a member joins, changes, leaves or dies
    PREPARING -> EMPTY      no member joined again

Invariant (see `check`): a member of a PREPARING group that waits for its join, and one of a
COMPLETING group that waits for its assignment, has a token; no other member has one. A *token*
stands for an answer that is due: the caller gives one with each join and sync, and each comes back
exactly once, in a `Reply`, from this call or a later one.

Source: Kafka's ClassicGroup and GroupMetadataManager; KIP-62, KIP-345 (static members), KIP-394 (member
ids), KIP-814 (a leader that doesn't assign).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.broker.groups.classic_members import (
    NEVER_MS,
    Group,
    GroupState,
    Join,
    Member,
    Reply,
    Sync,
    Token,
    member_fault,
)
from penstock.wire.protocol import ErrorCode

__all__ = ["Groups"]

SESSION_MS_MIN: Final = 6_000
"""Shortest session timeout unless another is set, as of Kafka's group.min.session.timeout.ms."""
SESSION_MS_MAX: Final = 1_800_000
"""Longest session timeout, Kafka's group.max.session.timeout.ms."""
MEMBERS_MAX: Final = 1_000
"""Most members of a group (Kafka's group.max.size has no limit by default)."""
GROUPS_MAX: Final = 10_000
"""Most groups with members; each takes some KB."""


class Groups:
    """The coordinator of all groups.

    Args:
        new_member_id: makes a unique id from a client id.
        delay_ms: how long a new group waits for more members.
        session_ms_min: shortest session timeout of a member.
    """

    def __init__(
        self,
        new_member_id: Callable[[str], str],
        delay_ms: int = 0,
        session_ms_min: int = SESSION_MS_MIN,
    ) -> None:
        self._new_member_id = new_member_id
        self._delay_ms = delay_ms
        self.session_ms_min = session_ms_min
        self._groups: dict[str, Group] = {}
        self._replies: list[Reply] = []
        self._changed: set[str] = set()
        self._adopted: set[str] = set()
        self.next_end_ms = 0
        """When `tick` has something to do, as far as the last one knew."""

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> Group | None:
        """A group that has or had members."""
        return self._groups.get(group_id)

    def adopt(self, group: Group, now_ms: int) -> None:
        """Takes over a group that was of another kind; its members are to join again."""
        assert group.id not in self._groups
        assert group.state is GroupState.PREPARING
        group.deadline_ms = now_ms + group.rebalance_timeout_ms()
        self._groups[group.id] = group
        group.to_json()
        self._changed.add(group.id)
        self._adopted.add(group.id)

    def release(self, group_id: str) -> list[Reply]:
        """Gives a group away to another kind; its members are asked to join again."""
        for member in self._groups.pop(group_id).members.values():
            self._answer_stale(member)
        self._changed.add(group_id)
        return self._drain()

    def _drain(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def _reply(self, token: Token, **fields: Any) -> None:
        self._replies.append(Reply(token, fields))

    # -- joining -----------------------------------------------------------------------------------

    def join(self, now_ms: int, token: Token, join: Join) -> list[Reply]:
        """A member joins, or joins again."""
        code = self._join(now_ms, token, join)
        if code:
            self._reply(token, error_code=code, generation_id=-1, member_id=join.member_id)
        return self._drain()

    def _join(self, now_ms: int, token: Token, join: Join) -> ErrorCode | None:
        if not join.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self.session_ms_min <= join.session_timeout_ms <= SESSION_MS_MAX:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not join.protocol_type or not join.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        group = self._groups.get(join.group_id)
        if group is None:
            if join.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if len(self._groups) >= GROUPS_MAX:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            group = self._groups[join.group_id] = Group(join.group_id)
        group.ends_ms = 0
        if group.members and (
            group.protocol_type != join.protocol_type
            or not group.supports(join.protocols, but=join.member_id)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not join.member_id:
            return self._join_new(now_ms, token, group, join)
        return self._join_known(now_ms, token, group, join)

    def _join_new(self, now_ms: int, token: Token, group: Group, join: Join) -> ErrorCode | None:
        if len(group.members) + len(group.promised) >= MEMBERS_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        member_id = self._new_member_id(join.instance_id or join.client_id)
        static = group.by_instance(join.instance_id)
        if static is not None:
            return self._replace_static(now_ms, token, group, static, member_id, join)
        if join.requires_member_id and join.instance_id is None:
            group.promised[member_id] = now_ms + join.session_timeout_ms
            self._reply(
                token,
                error_code=ErrorCode.MEMBER_ID_REQUIRED,
                generation_id=-1,
                member_id=member_id,
            )
            return None
        self._add(now_ms, token, group, member_id, join)
        return None

    def _join_known(self, now_ms: int, token: Token, group: Group, join: Join) -> ErrorCode | None:
        if group.promised.pop(join.member_id, None) is not None:
            self._add(now_ms, token, group, join.member_id, join)
            return None
        static = group.by_instance(join.instance_id)
        if static is not None and static.id != join.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(join.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_same = member.join.protocols == join.protocols
        self._answer_stale(member)
        member.join = join
        member.session_ends_ms = now_ms + join.session_timeout_ms
        is_current = group.state is GroupState.COMPLETING or (
            group.state is GroupState.STABLE and group.leader != member.id
        )
        if is_same and is_current:
            self._answer_join(group, member, token)
        else:
            member.join_token = token
            if group.state is not GroupState.PREPARING:
                self._prepare(now_ms, group)
            self._complete_join_if_all(now_ms, group)
        return None

    def _replace_static(
        self,
        now_ms: int,
        token: Token,
        group: Group,
        old: Member,
        member_id: str,
        join: Join,
    ) -> ErrorCode | None:
        """A static member came back under a new id: it takes over what the old one had, and its place.

        The others don't notice, unless the group would now choose another protocol. What the member
        says with the one that is chosen doesn't matter: with a cooperative assignor it says that it
        owns nothing any more, and yet has what it had.
        """
        self._answer_stale(old, ErrorCode.FENCED_INSTANCE_ID)
        ends_ms = now_ms + join.session_timeout_ms
        member = Member(member_id, join, ends_ms, assignment=old.assignment)
        known_leader = group.leader
        group.replace(old, member)
        if group.state is GroupState.STABLE and group.protocol == group.preferred_protocol():
            self._changed.add(group.id)
            self._answer_return(group, member, token, known_leader)
            return None
        member.join_token = token
        if group.state is not GroupState.PREPARING:
            self._prepare(now_ms, group)
        self._complete_join_if_all(now_ms, group)
        return None

    def _add(self, now_ms: int, token: Token, group: Group, member_id: str, join: Join) -> None:
        member = Member(member_id, join, now_ms + join.session_timeout_ms, join_token=token)
        is_first = not group.members
        group.members[member_id] = member
        group.is_seen = True
        group.protocol_type = join.protocol_type
        if group.state is not GroupState.PREPARING:
            if is_first and group.state is GroupState.EMPTY:
                group.delay_until_ms = now_ms + self._delay_ms
            self._prepare(now_ms, group)
        self._complete_join_if_all(now_ms, group)

    def _answer_stale(
        self, member: Member, code: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS
    ) -> None:
        """Answers what the member still waits for: it has asked again, or is gone."""
        for token in (member.join_token, member.sync_token):
            if token is not None:
                self._reply(token, error_code=code, member_id=member.id, generation_id=-1)
        member.join_token = member.sync_token = None

    def _prepare(self, now_ms: int, group: Group) -> None:
        for member in group.members.values():
            if member.sync_token is not None:
                self._reply(member.sync_token, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                member.sync_token = None
                member.session_ends_ms = now_ms + member.join.session_timeout_ms
        group.state = GroupState.PREPARING
        group.deadline_ms = now_ms + group.rebalance_timeout_ms()

    def _complete_join_if_all(self, now_ms: int, group: Group) -> None:
        if group.state is not GroupState.PREPARING:
            return
        if not group.members:
            self._complete_join(now_ms, group)
            return
        if now_ms < group.delay_until_ms or group.promised:
            return
        if any(one.join_token is None for one in group.members.values()):
            return
        self._complete_join(now_ms, group)

    def _complete_join(self, now_ms: int, group: Group) -> None:
        """Begins a generation with those who joined; static members may be away for a while."""
        for member in list(group.members.values()):
            if member.join_token is None and member.join.instance_id is None:
                del group.members[member.id]
        group.generation += 1
        if not group.members:
            group.state, group.protocol, group.leader = GroupState.EMPTY, None, None
            self._changed.add(group.id)
            return
        group.state = GroupState.COMPLETING
        group.deadline_ms = now_ms + group.rebalance_timeout_ms()
        group.protocol = group.preferred_protocol()
        joined = [one.id for one in group.members.values() if one.join_token is not None]
        if group.leader not in joined:
            group.leader = joined[0] if joined else next(iter(group.members))
        for member in group.members.values():
            token, member.join_token = member.join_token, None
            if token is not None:
                member.session_ends_ms = now_ms + member.join.session_timeout_ms
                self._answer_join(group, member, token)

    def _answer_return(
        self, group: Group, member: Member, token: Token, known_leader: str | None
    ) -> None:
        """Answers a static member that returns to the present generation. If it leads the group it must
        not assign: the members have their assignment. For clients too old for `skip_assignment`, the
        answer names their former member id as the leader.
        """
        may_skip = member.join.may_skip_assignment
        fields = group.join_fields(member, group.leader if may_skip else known_leader)
        self._reply(token, **fields, skip_assignment=fields["leader"] == member.id)

    def _answer_join(self, group: Group, member: Member, token: Token) -> None:
        self._reply(token, **group.join_fields(member, group.leader))

    # -- assignments -------------------------------------------------------------------------------

    def sync(self, now_ms: int, token: Token, sync: Sync) -> list[Reply]:
        """A member asks for its assignment; the leader brings everyone's."""
        code = self._sync(now_ms, token, sync)
        if code:
            self._reply(token, error_code=code)
        return self._drain()

    def _sync(self, now_ms: int, token: Token, sync: Sync) -> ErrorCode | None:
        if not sync.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(sync.group_id)
        code = member_fault(group, sync.member_id, sync.instance_id, sync.generation)
        if code or group is None:
            return code
        is_other = group.protocol is not None and sync.protocol_name not in {None, group.protocol}
        if sync.protocol_type not in {None, group.protocol_type} or is_other:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        group.ends_ms = 0
        member = group.members[sync.member_id]
        member.session_ends_ms = now_ms + member.join.session_timeout_ms
        match group.state:
            case GroupState.EMPTY:
                return ErrorCode.UNKNOWN_MEMBER_ID
            case GroupState.PREPARING:
                return ErrorCode.REBALANCE_IN_PROGRESS
            case GroupState.STABLE:
                self._answer_sync(group, member, token)
            case GroupState.COMPLETING:
                self._answer_stale(member)
                member.sync_token = token
                if group.leader == member.id:
                    self._assign(group, sync.assignments)
        return None

    def _assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        group.state = GroupState.STABLE
        self._changed.add(group.id)
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            token, member.sync_token = member.sync_token, None
            if token is not None:
                self._answer_sync(group, member, token)

    def _answer_sync(self, group: Group, member: Member, token: Token) -> None:
        self._reply(
            token,
            error_code=0,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            assignment=member.assignment,
        )

    # -- living and leaving ------------------------------------------------------------------------

    def heartbeat(
        self, now_ms: int, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """A member is alive; it learns whether it must join again."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        code = member_fault(group, member_id, instance_id, generation)
        if code or group is None:
            return code or ErrorCode.UNKNOWN_MEMBER_ID
        member = group.members[member_id]
        member.session_ends_ms = now_ms + member.join.session_timeout_ms
        if group.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, now_ms: int, group_id: str, member_id: str, instance_id: str | None
    ) -> tuple[ErrorCode, list[Reply]]:
        """A member leaves; a static one may be named by its instance id alone."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        group.ends_ms = 0
        if group.promised.pop(member_id, None) is not None:
            self._complete_join_if_all(now_ms, group)
            return ErrorCode.NONE, self._drain()
        static = group.by_instance(instance_id)
        if instance_id is not None:
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, []
            if member_id and static.id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID, []
            member_id = static.id
        if member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        self._remove(now_ms, group, member_id)
        return ErrorCode.NONE, self._drain()

    def _remove(self, now_ms: int, group: Group, member_id: str) -> None:
        member = group.members.pop(member_id)
        self._answer_stale(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.leader == member_id:
            group.leader = None
        if group.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(now_ms, group)
        self._complete_join_if_all(now_ms, group)

    def tick(self, now_ms: int) -> list[Reply]:
        """Time has passed: ends sessions, and phases of rebalances that take too long."""
        for group in list(self._groups.values()):
            if group.ends_ms <= now_ms:
                self._tick(now_ms, group)
                group.ends_ms = group.next_end_ms(now_ms)
        ends = (group.ends_ms for group in self._groups.values())
        self.next_end_ms = min(ends, default=NEVER_MS)
        return self._drain()

    def _tick(self, now_ms: int, group: Group) -> None:
        for member_id in [one for one, until in group.promised.items() if until <= now_ms]:
            del group.promised[member_id]
        for member in [one for one in group.members.values() if one.is_silent(now_ms)]:
            self._remove(now_ms, group, member.id)
        if group.state is GroupState.PREPARING and now_ms >= group.deadline_ms:
            self._complete_join(now_ms, group)
        elif group.state is GroupState.COMPLETING and now_ms >= group.deadline_ms:
            for member in [one for one in group.members.values() if one.sync_token is None]:
                self._remove(now_ms, group, member.id)
        self._complete_join_if_all(now_ms, group)
        if group.state is GroupState.EMPTY and not group.promised and not group.is_seen:
            del self._groups[group.id]

    def delete(self, group_id: str) -> ErrorCode:
        """Forgets a group without members."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        del self._groups[group_id]
        self._changed.add(group_id)
        return ErrorCode.NONE

    def commit_fault(
        self, now_ms: int, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode | None:
        """Why offsets may not be committed; None if they may.

        Anyone may commit to a group without members, whether or not it says who it is: members of
        KIP-848 that have only assigned themselves partitions do.
        """
        group = self._groups.get(group_id)
        if generation < 0 and (group is None or group.state is GroupState.EMPTY):
            return None
        if group is None:
            return ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = member_fault(group, member_id, instance_id, generation)
        if code:
            return code
        member = group.members[member_id]
        member.session_ends_ms = now_ms + member.join.session_timeout_ms
        if group.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return None

    # -- what a restart needs ----------------------------------------------------------------------

    def take_changes(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Groups that have come to another generation; as in Kafka, a rebalance under way isn't
        kept, and its members join again after a restart.
        """
        changed, self._changed = self._changed, set()
        for group_id in changed:
            group = self._groups.get(group_id)
            if group is None:
                yield group_id, None
            elif group.state in {GroupState.STABLE, GroupState.EMPTY}:
                yield group_id, group.to_json()
            elif group_id in self._adopted:
                yield group_id, group.kept
        self._adopted.clear()

    def snapshot(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All groups, as far as they are kept."""
        for group in self._groups.values():
            if group.kept is not None:
                yield group.id, group.kept

    def restore(self, now_ms: int, group_id: str, change: dict[str, Any] | None) -> None:
        """Applies a change that was stored; every member has its whole time from now on."""
        if change is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = Group.from_json(group_id, change, now_ms)

    def restored(self) -> None:
        """Everything was restored."""
        self.check()

    def check(self) -> None:
        """Asserts all invariants."""
        assert not self._replies
        for group in self._groups.values():
            for member in group.members.values():
                assert member.join_token is None or group.state is GroupState.PREPARING
                assert member.sync_token is None or group.state is GroupState.COMPLETING
            assert group.ends_ms <= group.next_end_ms(group.ends_ms)
            if group.state is GroupState.EMPTY:
                assert not group.members
            else:
                assert group.members
            if group.state in {GroupState.COMPLETING, GroupState.STABLE}:
                assert group.leader in group.members
                assert group.protocol is not None
