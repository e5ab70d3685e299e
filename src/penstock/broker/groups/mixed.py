"""Members of both protocols in one group, so that consumers can be changed one after the other.

    JOIN of KIP-848 to a classic group of consumers     it becomes a consumer group (upgrade)
    JoinGroup to a consumer group with members          the member is one of that group
    the last member of KIP-848 left, classic ones stay  it becomes a classic group (downgrade)

A classic member of a consumer group gets its assignment from the broker in the answer to its SyncGroup.
Its generation is its member epoch. A JoinGroup says what it owns, as a heartbeat of KIP-848 does, so it
is carried out as one; it gives up partitions between two of them, as cooperative clients do anyway
(others give up everything before each). REBALANCE_IN_PROGRESS, the answer to its Heartbeat, has it join
again: when the group's epoch has grown, when it has to give something up, or when what it waited for is
    free.

Either conversion can be forbidden (`group.consumer.migration.policy`). Without the upgrade members of
KIP-848 are refused as long as there are others; without the downgrade a group of classic members may
continue as a consumer group; without both there are no groups with members of both.

Invariant (see `check`): a group id belongs to one coordinator; a consumer group with members has one of
KIP-848 among them, if groups may be downgraded. `ConsumerGroups` keeps each partition to one owner.

In an upgrade members keep what the leader gave them, as of the generation that was the last: what
one said it owned and wasn't given is still to be given up. In a downgrade the group begins a
rebalance: the classic protocol's own rules hold from the next generation on.

Source: KIP-848 (online migration); Kafka's
GroupMetadataManager, classicGroupJoinToConsumerGroup and what follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.classic import SESSION_MS_MAX, Groups
from penstock.broker.groups.classic_members import (
    Group,
    GroupState,
    Join,
    Member,
    Reply,
    Sync,
    Token,
)
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer_members import (
    JOIN,
    Beat,
    Catalog,
    Classic,
    ConsumerGroup,
    ConsumerMember,
    ConsumerMemberState,
)
from penstock.broker.groups.consumer_protocol import (
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
)
from penstock.errors import ProtocolError
from penstock.wire.protocol import ErrorCode

__all__ = ["BIDIRECTIONAL", "POLICIES", "MixedGroups"]

BIDIRECTIONAL: Final = "bidirectional"
POLICIES: Final = (BIDIRECTIONAL, "upgrade", "downgrade", "disabled")

CONSUMERS: Final = "consumer"
"""The classic protocol type whose groups can be upgraded."""


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class MixedGroups:
    """Both coordinators as one.

    Args:
        classic: the groups of the classic protocol.
        consumer: the groups of KIP-848.
        catalog: the topics.
        topic_name: a topic's name; None: it is gone.
        new_member_id: makes a unique id from a client id.
        policy: one of `POLICIES`.
    """

    def __init__(
        self,
        classic: Groups,
        consumer: ConsumerGroups,
        catalog: Catalog,
        topic_name: Callable[[UUID], str | None],
        new_member_id: Callable[[str], str],
        policy: str = BIDIRECTIONAL,
    ) -> None:
        assert policy in POLICIES
        self._may_upgrade = policy in {BIDIRECTIONAL, "upgrade"}
        self._may_downgrade = policy in {BIDIRECTIONAL, "downgrade"}
        self._classic = classic
        self._consumer = consumer
        self._catalog = catalog
        self._topic_name = topic_name
        self._new_member_id = new_member_id

    def restored(self, now_ms: int) -> None:
        """Both coordinators were restored: completes a conversion that was cut in two."""
        for group in self._consumer:
            if self._classic.get(group.id) is not None:
                self._consumer.release(group.id)
            else:
                self._consumer.left.add(group.id)
        self._settle(now_ms)
        self.check()

    # -- members of KIP-848 ------------------------------------------------------------------------

    def beat(self, now_ms: int, beat: Beat) -> tuple[dict[str, Any], list[Reply]]:
        """A heartbeat, which may upgrade the group; the response's fields, and others' answers."""
        replies: list[Reply] = []
        classic = self._classic.get(beat.group_id)
        if beat.epoch == JOIN and classic is not None:
            fault = self._consumer.fault(beat)
            if fault is not None:
                return fault, []
            try:
                group = self._upgraded(classic)
            except _RefusedError as refused:
                fields = {"error_code": refused.code, "error_message": str(refused)}
                return {**fields, "member_epoch": 0}, []
            replies = self._classic.release(classic.id)
            self._consumer.adopt(group)
            self._consumer.left.add(group.id)  # should the member be refused after all
        fields = self._consumer.heartbeat(now_ms, beat)
        self._settle(now_ms)
        return fields, replies

    def _upgraded(self, classic: Group) -> ConsumerGroup:
        if classic.members and classic.protocol_type != CONSUMERS:
            raise _RefusedError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"expected a group of consumers; found {classic.id!r} with members of the type "
                f"{classic.protocol_type!r}; choose another group id",
            )
        if classic.members and not self._may_upgrade:
            raise _RefusedError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"expected a consumer group; found {classic.id!r} with members of the classic "
                "protocol; stop them first, or permit upgrades (--migration-policy)",
            )
        group = ConsumerGroup(classic.id, classic.generation, classic.generation)
        said: dict[str, Subscription] = {}
        for one in classic.members.values():
            try:
                assignment = read_assignment(one.assignment)
                said[one.id] = read_subscription(one.metadata(classic.protocol or _first(one)))
            except ProtocolError as error:
                raise _RefusedError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"expected consumers' metadata of member {one.id!r} of {classic.id!r}: {error}",
                ) from None
            if assignment.user_data:
                raise _RefusedError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"expected one of Kafka's own assignors in group {classic.id!r}; found one "
                    "that sends members more than their partitions; change it first",
                )
            member = _upgraded(one, said[one.id], classic.generation)
            self._take(group, member, assignment.parts)
            member.target = frozenset(member.assigned)
            group.members[member.id] = member
        for member in group.members.values():
            self._still_owned(group, member, said[member.id])
        return group

    def _take(self, group: ConsumerGroup, member: ConsumerMember, named: frozenset[Any]) -> None:
        for part in self._parts(named) - group.owners.keys():
            member.assigned[part] = group.epoch
            group.owners[part] = member.id

    def _still_owned(
        self, group: ConsumerGroup, member: ConsumerMember, said: Subscription
    ) -> None:
        """A rebalance is under way: what the member had before it may still be in use."""
        for part in self._parts(said.owned) - group.owners.keys():
            member.revoking[part] = group.epoch
            group.owners[part] = member.id
        if member.revoking:
            member.state = ConsumerMemberState.UNREVOKED
            member.revoke_by_ms = member.session_ends_ms

    def _parts(self, named: frozenset[tuple[str, int]]) -> set[Part]:
        found = set()
        for name, number in named:
            topic = self._catalog.find(name)
            if topic is not None and 0 <= number < topic[1]:
                found.add((topic[0], number))
        return found

    # -- classic members ---------------------------------------------------------------------------

    def join(self, now_ms: int, token: Token, join: Join) -> list[Reply]:
        """A classic member joins, or joins again."""
        group = self._consumer.get(join.group_id)
        if group is not None and not group.members:
            self._consumer.delete(join.group_id)
            group = None
        if group is None:
            return self._classic.join(now_ms, token, join)
        try:
            fields = self._join(now_ms, group, join)
        except _RefusedError as refused:
            is_early = refused.code is ErrorCode.INVALID_SESSION_TIMEOUT
            member_id = join.member_id if is_early else ""  # as Kafka says it
            fields = {"error_code": refused.code, "generation_id": -1, "member_id": member_id}
        self._settle(now_ms)
        return [Reply(token, fields)]

    def _join(self, now_ms: int, group: ConsumerGroup, join: Join) -> dict[str, Any]:
        if not self._classic.session_ms_min <= join.session_timeout_ms <= SESSION_MS_MAX:
            raise _RefusedError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if not (self._may_upgrade or self._may_downgrade):
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        names = {name for name, _ in join.protocols}
        for one in group.members.values():
            if one.classic is not None and one.id != join.member_id:
                names &= set(one.classic.names)
        if join.protocol_type != CONSUMERS or not names:
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not join.member_id and join.instance_id is None and join.requires_member_id:
            code, member_id = ErrorCode.MEMBER_ID_REQUIRED, self._new_member_id(join.client_id)
            return {"error_code": code, "generation_id": -1, "member_id": member_id}
        try:
            said = read_subscription(join.protocols[0][1])
        except ProtocolError:
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        is_static = join.instance_id is not None and group.by_instance(join.instance_id) is not None
        is_fenced = bool(join.member_id) and join.member_id not in group.members and not is_static
        if is_fenced and (said.owned or join.instance_id is not None):
            # Others may have what it owned by now, or its instance was taken out: it starts again.
            raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        member_id = join.member_id
        if not member_id and join.instance_id is None:
            member_id = self._new_member_id(join.client_id)
        answer = self._consumer.heartbeat(now_ms, _beat(join, member_id, said, self._parts))
        if answer["error_code"]:
            raise _RefusedError(answer["error_code"])
        return {
            "error_code": 0,
            "generation_id": answer["member_epoch"],
            "protocol_type": CONSUMERS,
            "protocol_name": join.protocols[0][0],
            "leader": "",
            "member_id": answer["member_id"],
            "members": [],
        }

    def sync(self, now_ms: int, token: Token, sync: Sync) -> list[Reply]:
        """A classic member asks for its assignment."""
        group = self._consumer.get(sync.group_id)
        if group is None:
            return self._classic.sync(now_ms, token, sync)
        try:
            fields = self._sync(now_ms, group, sync)
        except _RefusedError as refused:
            fields = {"error_code": refused.code}
        return [Reply(token, fields)]

    def _sync(self, now_ms: int, group: ConsumerGroup, sync: Sync) -> dict[str, Any]:
        member, classic = _member(group, sync.member_id, sync.instance_id, sync.generation)
        if sync.protocol_type not in {None, CONSUMERS} or (
            sync.protocol_name not in {None, classic.names[0]}
        ):
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_revoking = member.state is ConsumerMemberState.UNREVOKED
        if group.epoch > member.epoch and not is_revoking:
            _expect_join(now_ms, group, member)
            raise _RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.due_ms = None
        _extend(now_ms, group, member, classic)
        return {
            "error_code": 0,
            "protocol_type": CONSUMERS,
            "protocol_name": classic.names[0],
            "assignment": self._assignment(member),
        }

    def _assignment(self, member: ConsumerMember) -> bytes:
        named = ((self._topic_name(topic), number) for topic, number in member.assigned)
        return Assignment(
            frozenset((name, at) for name, at in named if name is not None)
        ).to_bytes()

    def heartbeat(
        self, now_ms: int, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """A classic member is alive; it learns whether it must join again."""
        group = self._consumer.get(group_id)
        if group is None:
            return self._classic.heartbeat(now_ms, group_id, generation, member_id, instance_id)
        try:
            member, classic = _member(group, member_id, instance_id, generation)
        except _RefusedError as refused:
            return refused.code
        _extend(now_ms, group, member, classic)
        if not _must_join(group, member):
            return ErrorCode.NONE
        _expect_join(now_ms, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, now_ms: int, group_id: str, member_id: str, instance_id: str | None
    ) -> tuple[ErrorCode, list[Reply]]:
        """A member leaves, or is taken out; a static one may be named by its instance id alone."""
        if self._consumer.get(group_id) is None:
            return self._classic.leave(now_ms, group_id, member_id, instance_id)
        code = self._consumer.remove(group_id, member_id, instance_id)
        self._settle(now_ms)
        return code, []

    def tick(self, now_ms: int) -> list[Reply]:
        """Time has passed."""
        replies = self._classic.tick(now_ms)
        self._consumer.tick(now_ms)
        self._settle(now_ms)
        return replies

    @property
    def next_end_ms(self) -> int:
        """When `tick` has something to do, as far as the last one knew."""
        return min(self._classic.next_end_ms, self._consumer.next_end_ms)

    # -- downgrades --------------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> None:
        """Groups whose last member of KIP-848 left become classic ones, if there are others."""
        left, self._consumer.left = self._consumer.left, set()
        if not self._may_downgrade:
            return
        for group_id in left:
            group = self._consumer.get(group_id)
            if group is None or not group.members:
                continue
            if all(one.classic is not None for one in group.members.values()):
                self._consumer.release(group_id)
                self._classic.adopt(self._downgraded(group), now_ms)

    def _downgraded(self, group: ConsumerGroup) -> Group:
        # Members behind it have to start again. The group's epoch would make that all of them.
        generation = max(one.epoch for one in group.members.values())
        classic = Group(group.id, GroupState.PREPARING, generation, CONSUMERS, is_seen=True)
        for one in group.members.values():
            assert one.classic is not None
            join = Join(
                group.id,
                one.id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.classic.session_ms,
                one.rebalance_ms,
                CONSUMERS,
                one.classic.protocols,
            )
            ends_ms, assignment = one.session_ends_ms, self._assignment(one)
            classic.members[one.id] = Member(one.id, join, ends_ms, assignment)
        return classic

    def check(self) -> None:
        """Asserts all invariants."""
        self._classic.check()
        self._consumer.check()
        for group in self._consumer:
            classic = self._classic.get(group.id)
            assert classic is None, f"{group.id} is two groups"
            if group.members and self._may_downgrade and group.id not in self._consumer.left:
                assert any(one.classic is None for one in group.members.values())


def _first(member: Member) -> str:
    return member.join.protocols[0][0]


def _upgraded(one: Member, said: Subscription, generation: int) -> ConsumerMember:
    return ConsumerMember(
        one.id,
        one.join.instance_id,
        said.rack_id,
        one.join.client_id,
        one.join.client_host,
        one.join.rebalance_timeout_ms,
        frozenset(said.topics),
        epoch=generation,
        previous_epoch=generation,
        session_ends_ms=one.session_ends_ms,
        classic=Classic(one.join.session_timeout_ms, one.join.protocols),
    )


def _beat(
    join: Join,
    member_id: str,
    said: Subscription,
    parts: Callable[[frozenset[tuple[str, int]]], set[Part]],
) -> Beat:
    """What a member of KIP-848 would say instead of this JoinGroup."""
    return Beat(
        group_id=join.group_id,
        member_id=member_id,
        epoch=JOIN,
        instance_id=join.instance_id,
        rack_id=said.rack_id,
        rebalance_ms=join.rebalance_timeout_ms,
        names=said.topics,
        regex="",
        owned=frozenset(parts(said.owned)),
        client_id=join.client_id,
        client_host=join.client_host,
        version=0,
        classic=Classic(join.session_timeout_ms, join.protocols),
    )


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, Classic]:
    """The classic member that a request is of."""
    static = None if instance_id is None else group.by_instance(instance_id)
    if static is None and instance_id is not None:
        raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    if static is not None and static.id != member_id:
        raise _RefusedError(ErrorCode.FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.epoch != generation:
        raise _RefusedError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _must_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.epoch or member.state is ConsumerMemberState.UNREVOKED:
        return True
    if member.state is ConsumerMemberState.STABLE:
        return False
    return all(group.owners.get(part, member.id) == member.id for part in member.target)


def _extend(now_ms: int, group: ConsumerGroup, member: ConsumerMember, classic: Classic) -> None:
    """The member's session starts again. Clocks may go back, so it may end earlier than before."""
    member.session_ends_ms = now_ms + classic.session_ms
    group.ends_ms = min(group.ends_ms or member.ends_ms, member.ends_ms)


def _expect_join(now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
    """The member was asked to join again; it has the rebalance timeout that it announced."""
    if member.due_ms is None:
        member.due_ms = now_ms + member.rebalance_ms
        group.ends_ms = min(group.ends_ms or member.due_ms, member.due_ms)
