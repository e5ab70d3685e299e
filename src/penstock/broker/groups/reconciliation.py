"""How a member of a KIP-848 group reaches its assignment: one step with each heartbeat.

    STABLE --target lacks some of its partitions--> UNREVOKED --it says that it has given them up--+
      ^                                                                                            |
      +--it has all of its target-- UNRELEASED <--others still have some of it---------------------+

Invariant (see `check`): `group.owners` has the owner of each partition that a member has, or was asked
    to give up and has not. No partition has two owners.

Source: Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.consumer_members import (
    ConsumerGroup,
    ConsumerMember,
    ConsumerMemberState,
)

__all__ = ["check", "reconcile", "release"]


def reconcile(
    now_ms: int,
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: frozenset[Part] | None,
) -> bool:
    """Takes a member as far towards its target as is possible now.

    Args:
        now_ms: the time.
        group: the group; its owners change with the member.
        member: one of its members.
        owned: what the member says it has; None: it doesn't say.

    Returns:
        whether anything has changed that must be kept.
    """
    match member.state:
        case ConsumerMemberState.STABLE:
            if member.epoch == group.target_epoch:
                return False
        case ConsumerMemberState.UNREVOKED:
            if owned is None or not owned.isdisjoint(member.revoking):
                return False
        case ConsumerMemberState.UNRELEASED:
            pass
    before = (member.epoch, member.state, len(member.assigned))
    release(group, member, member.revoking)
    member.revoking = {}
    _advance(group, member, owned)
    if member.state is not ConsumerMemberState.UNREVOKED:
        member.revoke_by_ms = None
    else:
        member.revoke_by_ms = now_ms + member.rebalance_ms
        group.ends_ms = min(group.ends_ms or member.revoke_by_ms, member.revoke_by_ms)
    after = (member.epoch, member.state, len(member.assigned))
    return before != after or bool(member.revoking)


def _advance(group: ConsumerGroup, member: ConsumerMember, owned: frozenset[Part] | None) -> None:
    kept = {part: at for part, at in member.assigned.items() if part in member.target}
    given_up = {part: at for part, at in member.assigned.items() if part not in member.target}
    member.assigned = kept
    if given_up and (owned is None or not owned.isdisjoint(given_up)):
        member.revoking = given_up
        member.move_to(member.epoch, ConsumerMemberState.UNREVOKED)
        return
    release(group, member, given_up)
    missing = [part for part in member.target if part not in kept]
    free = [part for part in missing if part not in group.owners]
    for part in free:
        kept[part] = group.target_epoch
        group.owners[part] = member.id
    is_all = len(free) == len(missing)
    state = ConsumerMemberState.STABLE if is_all else ConsumerMemberState.UNRELEASED
    member.move_to(group.target_epoch, state)


def release(group: ConsumerGroup, member: ConsumerMember, parts: Collection[Part]) -> None:
    """Takes partitions from a member: they are free for others."""
    for part in parts:
        assert group.owners[part] == member.id
        del group.owners[part]


def check(group: ConsumerGroup) -> None:
    """Asserts all invariants."""
    owners = [
        (part, member.id)
        for member in group.members.values()
        for part in (*member.assigned, *member.revoking)
    ]
    assert len(owners) == len(group.owners), "a partition has two owners"
    assert dict(owners) == group.owners
    assert group.target_epoch <= group.epoch
    targets = [part for member in group.members.values() for part in member.target]
    assert len(targets) == len(set(targets))
    for member in group.members.values():
        _check_member(group, member)


def _check_member(group: ConsumerGroup, member: ConsumerMember) -> None:
    is_unrevoked = member.state is ConsumerMemberState.UNREVOKED
    assert bool(member.revoking) == is_unrevoked == (member.revoke_by_ms is not None)
    assert member.epoch <= group.target_epoch
    assert group.ends_ms <= member.ends_ms
    if member.state is ConsumerMemberState.STABLE and member.epoch == group.target_epoch:
        assert member.assigned.keys() == member.target
