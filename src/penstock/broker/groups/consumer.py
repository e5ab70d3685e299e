"""Consumer groups in the protocol of KIP-848: a pure state machine.

The coordinator assigns partitions, and each member reaches its assignment at its own pace, with its
heartbeats. Three epochs count the steps: the *group's* grows when members, subscriptions or topics
change; the *target's* is the group epoch that the last assignment was computed for; a *member's* is the
target epoch that it has reached. A member first gives up what its target lacks (UNREVOKED), then gets
what is free of the rest (UNRELEASED until that is all, then STABLE).

Invariant (see `check`): a partition has one owner at most: the member that it is assigned to, or that
was asked to give it up and has not confirmed. It is given to another one only after its owner has
confirmed, has left, or is fenced (its session or its time for giving it up has ended).

A member that is fenced without noticing may continue for a while, but its commits are refused: its
id is unknown by then. The protocol relies on a client's requests arriving in order, which holds for
one connection; a heartbeat of an earlier connection that arrives late could claim that nothing is
owned any more.

Source: KIP-848; KIP-1251 (commits with an older epoch); Kafka's GroupMetadataManager and
CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

from penstock.broker.groups import reconciliation
from penstock.broker.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Part, Wish
from penstock.broker.groups.classic_members import NEVER_MS
from penstock.broker.groups.consumer_members import (
    JOIN,
    LEAVE_FOR_A_WHILE,
    Beat,
    Catalog,
    ConsumerGroup,
    ConsumerMember,
    ConsumerMemberState,
    Timing,
    by_topic,
)
from penstock.broker.groups.refusals import (
    RefusedError,
    check_epoch,
    check_instance,
    no_group,
    no_member,
    validate,
)
from penstock.errors import UserError
from penstock.wire.protocol import ErrorCode

__all__ = ["ConsumerGroups"]

MEMBERS_MAX: Final = 1_000
"""Most members of a group (Kafka's group.consumer.max.size has no limit by default)."""
GROUPS_MAX: Final = 10_000
"""Most groups; each takes some KB."""


class ConsumerGroups:
    """The coordinator of all groups of this protocol.

    Args:
        catalog: the topics.
        new_member_id: makes a unique id.
        matching: the names that match a regular expression; raises UserError if it is none.
        timing: a group's settings.
    """

    def __init__(
        self,
        catalog: Catalog,
        new_member_id: Callable[[], str],
        matching: Callable[[str, Iterable[str]], frozenset[str]],
        timing: Callable[[str], Timing] = lambda _: Timing(),
    ) -> None:
        self._catalog = catalog
        self._new_member_id = new_member_id
        self._matching = matching
        self._timing = timing
        self._groups: dict[str, ConsumerGroup] = {}
        self._changed: set[str] = set()
        self.next_end_ms = 0
        """When `tick` has something to do, as far as the last one knew."""
        self.left: set[str] = set()
        """Groups that a member of this protocol left: see `penstock.broker.groups.mixed`."""

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> ConsumerGroup | None:
        """A group that has or had members."""
        return self._groups.get(group_id)

    def adopt(self, group: ConsumerGroup) -> None:
        """Takes over a group that was a classic one."""
        assert group.id not in self._groups
        self._groups[group.id] = group
        group.topics_digest = self._look_up(group)
        group.ends_ms = min((one.ends_ms for one in group.members.values()), default=0)
        for member in group.members.values():
            self._note(group, member)

    def release(self, group_id: str) -> ConsumerGroup:
        """Gives a group away: it is to be a classic one."""
        self._changed.add(group_id)
        return self._groups.pop(group_id)

    def fault(self, beat: Beat) -> dict[str, Any] | None:
        """The answer to a heartbeat that makes no sense whatever the state; None: it may."""
        try:
            validate(beat)
        except RefusedError as refused:
            return refused.answer()
        return None

    # -- heartbeats --------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int, beat: Beat) -> dict[str, Any]:
        """A member joins, lives, has given up partitions, or leaves; the response's fields."""
        try:
            validate(beat)
            if beat.epoch < JOIN:
                return self._leave(beat)
            return self._beat(now_ms, beat)
        except RefusedError as refused:
            return refused.answer()

    def _beat(self, now_ms: int, beat: Beat) -> dict[str, Any]:
        timing = self._timing(beat.group_id)
        group = self._group_for(beat)
        matches = self._resolve(group, beat.regex)
        member = self._member_for(group, beat)
        before, voted = dict(member.assigned), member.assignor
        is_changed = _update(member, beat)
        group.members[member.id] = member
        if member.assignor != voted and group.assignor:  # else the members have assigned themselves
            is_changed |= self.preferred_assignor(group) != group.assignor
        if is_changed or group.catalog_version != self._catalog.version:
            self._refresh(group, matches, is_changed=is_changed)
        if group.epoch > group.target_epoch:
            self._assign(group)
        if reconciliation.reconcile(now_ms, group, member, beat.owned):
            self._note(group, member)
        session_ms = timing.session_ms if beat.classic is None else beat.classic.session_ms
        member.session_ends_ms = now_ms + session_ms
        member.due_ms = None if beat.classic is None else now_ms + member.rebalance_ms
        group.ends_ms = min(group.ends_ms or member.ends_ms, member.ends_ms)
        fields: dict[str, Any] = {
            "error_code": 0,
            "member_id": member.id,
            "member_epoch": member.epoch,
            "heartbeat_interval": timing.heartbeat_ms,
        }
        must_know = beat.epoch == JOIN or beat.is_full or member.assigned != before
        if must_know or member.may_not_know(now_ms, timing.heartbeat_ms, beat.owned):
            fields["assignment"] = {"topic_partitions": by_topic(member.assigned)}
            member.sent_ms = now_ms
        return fields

    def _group_for(self, beat: Beat) -> ConsumerGroup:
        group = self._groups.get(beat.group_id)
        if group is None:
            if beat.epoch != JOIN:
                raise no_group(beat.group_id)
            if len(self._groups) >= GROUPS_MAX:
                raise RefusedError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"expected at most {GROUPS_MAX} groups; delete one first",
                )
            group = ConsumerGroup(beat.group_id)
        if len(group.members) >= MEMBERS_MAX and beat.member_id not in group.members:
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"expected at most {MEMBERS_MAX} members in group {group.id!r}",
            )
        return group

    def _member_for(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        """The member that a heartbeat is of; makes it, and the group, with the first one."""
        if beat.instance_id is not None:
            member = self._static_member_for(group, beat, beat.instance_id)
        else:
            member = group.members.get(beat.member_id)
        is_other_protocol = member is not None and member.classic is not None and not beat.classic
        if member is None or (is_other_protocol and beat.epoch != JOIN):
            if beat.epoch != JOIN:
                raise no_member(group.id, beat.member_id)
            member = ConsumerMember(beat.member_id or self._new_member_id())
            self._groups[group.id] = group
        check_epoch(member, beat)
        return member

    def _static_member_for(
        self, group: ConsumerGroup, beat: Beat, instance_id: str
    ) -> ConsumerMember | None:
        old = group.by_instance(instance_id)
        if old is None:
            return None
        if beat.epoch != JOIN:
            check_instance(old, beat)
            return old
        if beat.classic is not None and beat.member_id:
            check_instance(old, beat)
            return old
        is_any_classic = beat.classic is not None or old.classic is not None
        if old.epoch != LEAVE_FOR_A_WHILE and not is_any_classic:
            raise RefusedError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"expected instance id {instance_id!r} to be free; found that member {old.id!r} "
                f"of group {group.id!r} has it; stop that one, or wait for its session to end",
            )
        del group.members[old.id]
        group.changed.add(old.id)
        self.left.add(group.id)
        member_id = beat.member_id or self._new_member_id()
        old.id, old.epoch, old.previous_epoch = member_id, 0, 0
        for part in (*old.assigned, *old.revoking):
            group.owners[part] = member_id
        group.members[member_id] = old
        self._note(group, old)
        return old

    def _resolve(self, group: ConsumerGroup, regex: str | None) -> dict[str, frozenset[str]]:
        """Topics for each expression of the group, and for a new one."""
        wanted = {one.regex for one in group.members.values() if one.regex}
        if regex:
            wanted.add(regex)
        if group.catalog_version == self._catalog.version and wanted <= group.matches.keys():
            return group.matches
        try:
            return {one: self._matching(one, self._catalog.names()) for one in wanted}
        except UserError as error:
            raise RefusedError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None

    def _refresh(
        self, group: ConsumerGroup, matches: dict[str, frozenset[str]], *, is_changed: bool
    ) -> None:
        """Looks at subscriptions and topics again; another epoch if they are not the same."""
        group.matches = matches
        digest = self._look_up(group)
        if is_changed or digest != group.topics_digest:
            group.topics_digest = digest
            group.epoch += 1
            self._changed.add(group.id)

    def _look_up(self, group: ConsumerGroup) -> str:
        """Finds the subscribed topics, and a digest that changes with them."""
        names: set[str] = set()
        for member in group.members.values():
            names |= group.subscribed(member)
        found = {name: self._catalog.find(name) for name in sorted(names)}
        topics = {name: topic for name, topic in found.items() if topic is not None}
        group.catalog_version = self._catalog.version
        group.topics = topics
        return blake2b(repr(topics).encode(), digest_size=8).hexdigest()

    # -- assignments -------------------------------------------------------------------------------

    def _assign(self, group: ConsumerGroup) -> None:
        """Computes all targets."""
        group.assignor = self.preferred_assignor(group)
        wishes = {
            member.id: Wish(
                frozenset(
                    group.topics[name][0]
                    for name in group.subscribed(member)
                    if name in group.topics
                ),
                member.target,
                _order(member),
            )
            for member in group.members.values()
        }
        targets = ASSIGNORS[group.assignor](wishes, dict(group.topics.values()))
        for member in group.members.values():
            target = frozenset(targets[member.id])
            if target != member.target:
                member.target = target
                self._note(group, member)
        group.target_epoch = group.epoch
        self._changed.add(group.id)

    @staticmethod
    def preferred_assignor(group: ConsumerGroup) -> str:
        """The assignor that most members ask for; the default where none does."""
        votes = Counter(one.assignor for one in group.members.values() if one.assignor)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self, beat: Beat) -> dict[str, Any]:
        group = self._groups.get(beat.group_id)
        if group is None:
            raise no_group(beat.group_id)
        if beat.instance_id is None:
            member = group.members.get(beat.member_id)
        else:
            member = group.by_instance(beat.instance_id)
        if member is None:
            raise no_member(group.id, beat.member_id)
        if beat.instance_id is not None:
            check_instance(member, beat)
        if beat.epoch == LEAVE_FOR_A_WHILE:
            reconciliation.release(group, member, member.revoking)
            member.revoking, member.revoke_by_ms = {}, None
            member.epoch, member.state = LEAVE_FOR_A_WHILE, ConsumerMemberState.STABLE
            self._note(group, member)
        else:
            self._remove(group, member)
        return {"error_code": 0, "member_id": beat.member_id, "member_epoch": beat.epoch}

    def remove(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Takes a member out at an administrator's wish."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        static = group.by_instance(instance_id) if instance_id is not None else None
        member = static if instance_id is not None else group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and member_id and member.id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        self._remove(group, member)
        return ErrorCode.NONE

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        del group.members[member.id]
        self.left.add(group.id)
        reconciliation.release(group, member, member.assigned)
        reconciliation.release(group, member, member.revoking)
        self._note(group, member)
        self._refresh(group, self._resolve(group, None), is_changed=True)

    def tick(self, now_ms: int) -> None:
        """Time has passed: fences members that are silent, or don't give up what they must."""
        for group in self._groups.values():
            if not group.members or now_ms < group.ends_ms:
                continue
            for member in list(group.members.values()):
                if now_ms >= member.ends_ms:
                    self._remove(group, member)
            group.ends_ms = min((one.ends_ms for one in group.members.values()), default=0)
        ends = (group.ends_ms for group in self._groups.values() if group.members)
        self.next_end_ms = min(ends, default=NEVER_MS)

    def delete(self, group_id: str) -> ErrorCode:
        """Forgets a group without members."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.members:
            return ErrorCode.NON_EMPTY_GROUP
        del self._groups[group_id]
        self._changed.add(group_id)
        return ErrorCode.NONE

    # -- offsets -----------------------------------------------------------------------------------

    def commit_fault(
        self, group_id: str, epoch: int, member_id: str, parts: Collection[Part] | None = None
    ) -> ErrorCode | None:
        """Why offsets may not be committed, or asked for; None if they may.

        Args:
            group_id: the id of a group with this protocol.
            epoch: the member's, as it believes; below 0: not a member.
            member_id: the member.
            parts: what is committed; None: nothing, offsets are asked for. A commit from an older
                epoch is good if the member has had all these partitions since then.
        """
        group = self._groups[group_id]
        if epoch < 0 and (not member_id if parts is None else not group.members):
            return None
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return None
        if member.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        if epoch > member.epoch or parts is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        for part in parts:
            since = member.assigned.get(part, member.revoking.get(part))
            if since is None or since > epoch:
                return ErrorCode.STALE_MEMBER_EPOCH
        return None

    # -- what a restart needs ----------------------------------------------------------------------

    def _note(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        group.changed.add(member.id)
        self._changed.add(group.id)

    def take_changes(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """What has changed since the last call, per group; None: the group is gone."""
        changed, self._changed = self._changed, set()
        for group_id in changed:
            group = self._groups.get(group_id)
            if group is None:
                yield group_id, None
                continue
            yield group_id, self._describe(group, group.changed)
            group.changed = set()

    def snapshot(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Everything, as changes to nothing."""
        for group in self._groups.values():
            yield group.id, self._describe(group, group.members)

    @staticmethod
    def _describe(group: ConsumerGroup, members: Iterable[str]) -> dict[str, Any]:
        described: dict[str, Any] = {}
        for member_id in members:
            member = group.members.get(member_id)
            described[member_id] = member.to_json() if member is not None else None
        return {
            "epoch": group.epoch,
            "target": group.target_epoch,
            "assignor": group.assignor,
            "topics": group.topics_digest,
            "members": described,
        }

    def restore(self, now_ms: int, group_id: str, change: dict[str, Any] | None) -> None:
        """Applies a change that was stored; every member has its whole time from now on."""
        if change is None:
            self._groups.pop(group_id, None)
            return
        group = self._groups.setdefault(group_id, ConsumerGroup(group_id))
        group.epoch, group.target_epoch = change["epoch"], change["target"]
        group.assignor, group.topics_digest = change["assignor"], change["topics"]
        for member_id, stored in change["members"].items():
            group.members.pop(member_id, None)
            if stored is None:
                continue
            member = ConsumerMember.from_json(member_id, stored)
            timing, classic = self._timing(group_id), member.classic
            session_ms = timing.session_ms if classic is None else classic.session_ms
            member.session_ends_ms = now_ms + session_ms
            if member.revoking:
                member.revoke_by_ms = now_ms + member.rebalance_ms
            group.members[member_id] = member

    def restored(self) -> None:
        """Everything was restored."""
        for group in self._groups.values():
            group.owners = {
                part: member.id
                for member in group.members.values()
                for part in (*member.assigned, *member.revoking)
            }
            group.ends_ms = min((one.ends_ms for one in group.members.values()), default=0)
        self.check()

    def check(self) -> None:
        """Asserts all invariants."""
        for group in self._groups.values():
            reconciliation.check(group)


def _order(member: ConsumerMember) -> str:
    """Static members come first, by their instance ids, as in Kafka."""
    return f"0{member.instance_id}" if member.instance_id is not None else f"1{member.id}"


def _update(member: ConsumerMember, beat: Beat) -> bool:
    """Takes over what a heartbeat says; whether that asks for another assignment."""
    member.client_id, member.client_host = beat.client_id, beat.client_host
    if beat.epoch == JOIN:
        member.classic = beat.classic
    if beat.instance_id is not None:
        member.instance_id = beat.instance_id
    if beat.rack_id is not None:
        member.rack_id = beat.rack_id
    if beat.rebalance_ms != -1:
        member.rebalance_ms = beat.rebalance_ms
    before = (member.names, member.regex)
    if beat.names is not None:
        member.names = frozenset(beat.names)
    if beat.regex is not None:
        member.regex = beat.regex
    if beat.assignor is not None:
        member.assignor = beat.assignor
    is_new = member.epoch == 0 and not member.target and not member.assigned
    return is_new or before != (member.names, member.regex)
