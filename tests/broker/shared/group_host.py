"""Drives the state machine of classic groups, and keeps what it answers."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import Group, GroupState, Join, Reply, Sync
from penstock.wire.protocol import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 30_000


class Host:
    """Drives the state machine and keeps what was answered, by token."""

    def __init__(self, delay_ms: int = 0) -> None:
        ids = itertools.count()
        self.groups = Groups(lambda name: f"{name}-{next(ids)}", delay_ms)
        self.now = 0
        self.tokens = itertools.count()
        self.open: set[int] = set()
        self.answers: dict[int, dict[str, Any]] = {}

    def take(self, replies: list[Reply]) -> None:
        for token, fields in replies:
            assert token in self.open, "a token was answered twice"
            self.open.remove(token)
            self.answers[token] = fields
        self.groups.check()

    def token(self) -> int:
        token = next(self.tokens)
        self.open.add(token)
        return token

    def join(self, member: str = "", *, instance: str | None = None, **more: Any) -> int:
        token = self.token()
        join = Join(
            "g",
            member,
            instance,
            more.get("client", "c"),
            "host",
            more.get("session_ms", SESSION_MS),
            more.get("rebalance_ms", REBALANCE_MS),
            more.get("protocol_type", "consumer"),
            more.get("protocols", (("range", b"m"),)),
            requires_member_id=more.get("requires", False),
            may_skip_assignment=more.get("may_skip", False),
        )
        self.take(self.groups.join(self.now, token, join))
        return token

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
    ) -> int:
        token = self.token()
        sync = Sync("g", generation, member, instance, assignments or {})
        self.take(self.groups.sync(self.now, token, sync))
        return token

    def tick(self, ms: int) -> None:
        """Time passes. Looking at groups whose time may have come is as good as looking at all, and
        nothing happens before the time that is told.
        """
        self.now += ms
        thorough = all_due(self.groups)
        replies = self.groups.tick(self.now)
        assert thorough.tick(self.now) == replies
        assert comparable(thorough) == comparable(self.groups)
        self.take(replies)
        early = all_due(self.groups)
        assert early.tick(max(self.groups.next_end_ms - 1, self.now)) == []
        assert comparable(early) == comparable(self.groups)

    def heartbeat(self, member: str, generation: int) -> ErrorCode:
        return self.groups.heartbeat(self.now, "g", generation, member, None)

    def leave(self, member: str, instance: str | None = None) -> ErrorCode:
        code, replies = self.groups.leave(self.now, "g", member, instance)
        self.take(replies)
        return code

    @property
    def state(self) -> GroupState:
        group = self.groups.get("g")
        assert group is not None
        return group.state


def all_due(groups: Groups) -> Groups:
    """A copy that has all its groups looked at with the next tick."""
    copied = copy.copy(groups)
    copied._replies, copied._changed = [], set()
    copied._groups = {
        group.id: replace(
            group,
            members={one.id: replace(one) for one in group.members.values()},
            promised=dict(group.promised),
            ends_ms=0,
        )
        for group in groups
    }
    return copied


def comparable(groups: Groups) -> list[Group]:
    """The groups without what is only worked out from the rest."""
    return [replace(group, ends_ms=0) for group in groups]


def stable(host: Host, count: int) -> list[str]:
    """A stable group of `count` members; their ids, the leader first."""
    members: list[str] = []
    for _ in range(count):
        tokens = [host.join()]
        tokens += [host.join(member) for member in members]
        members = [host.answers[token]["member_id"] for token in tokens]
    answers = [host.answers[token] for token in tokens]
    leader = answers[0]["leader"]
    generation = answers[0]["generation_id"]
    waiting = [host.sync(one, generation) for one in members if one != leader]
    host.sync(leader, generation, {one: one.encode() for one in members})
    assert all(host.answers[token]["assignment"] for token in waiting)
    assert host.state is GroupState.STABLE
    return sorted(members, key=lambda one: one != leader)
