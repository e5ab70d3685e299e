from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from penstock.broker.groups import Groups
from penstock.broker.members import GroupState, Join, Reply, Sync
from penstock.wire.kafka import ErrorCode

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
            REBALANCE_MS,
            more.get("protocol_type", "consumer"),
            more.get("protocols", (("range", b"m"),)),
            requires_member_id=more.get("requires", False),
        )
        self.take(self.groups.join(self.now, token, join))
        return token

    def sync(
        self, member: str, generation: int, assignments: dict[str, bytes] | None = None
    ) -> int:
        token = self.token()
        sync = Sync("g", generation, member, None, assignments or {})
        self.take(self.groups.sync(self.now, token, sync))
        return token

    def tick(self, ms: int) -> None:
        self.now += ms
        self.take(self.groups.tick(self.now))

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


def test_one_member() -> None:
    """The only member leads, gets the list of members, and assigns itself."""
    host = Host()
    joined = host.answers[host.join()]
    assert joined["leader"] == joined["member_id"]
    assert [one["member_id"] for one in joined["members"]] == [joined["member_id"]]
    token = host.sync(joined["member_id"], 1, {joined["member_id"]: b"all"})
    assert host.answers[token]["assignment"] == b"all"


def test_member_id_is_required_first() -> None:
    """A new client gets an id first, so that a retry doesn't leave a ghost behind."""
    host = Host()
    refused = host.answers[host.join(requires=True)]
    assert refused["error_code"] == ErrorCode.member_id_required
    joined = host.answers[host.join(refused["member_id"], requires=True)]
    assert joined["error_code"] == 0
    ghost = host.answers[host.join("nobody")]
    assert ghost["error_code"] == ErrorCode.unknown_member_id


def test_rebalance_waits_for_all_members() -> None:
    """A join is answered when all known members have joined again, or their time is over."""
    host = Host()
    first, second = stable(host, 2)
    third = host.join()
    assert third not in host.answers
    assert host.heartbeat(first, 2) is ErrorCode.rebalance_in_progress
    again = host.join(first)
    assert again not in host.answers
    host.tick(5_000)
    assert host.heartbeat(second, 2) is ErrorCode.rebalance_in_progress
    host.tick(9_000)
    assert host.heartbeat(second, 2) is ErrorCode.rebalance_in_progress
    host.tick(9_000)
    assert host.heartbeat(second, 2) is ErrorCode.rebalance_in_progress
    host.tick(7_000)
    answer = host.answers[third]
    assert (answer["error_code"], answer["generation_id"]) == (0, 3)
    assert host.heartbeat(second, 2) is ErrorCode.unknown_member_id


def test_dead_member_is_removed() -> None:
    """A member without heartbeats is dropped, and the others share what it had."""
    host = Host()
    first, second = stable(host, 2)
    host.tick(SESSION_MS - 1)
    assert host.heartbeat(first, 2) is ErrorCode.none
    host.tick(1)
    assert host.state is GroupState.PREPARING
    answer = host.answers[host.join(first)]
    assert [one["member_id"] for one in answer["members"]] == [first]
    assert host.heartbeat(second, 3) is ErrorCode.unknown_member_id


def test_leader_that_never_assigns_is_removed() -> None:
    """When the leader doesn't sync in time, the others rebalance without it."""
    host = Host()
    first, second = stable(host, 2)
    tokens = [host.join(first), host.join(second)]
    generation = host.answers[tokens[0]]["generation_id"]
    waiting = host.sync(second, generation)
    for _ in range(4):
        host.tick(8_000)
        host.heartbeat(first, generation)
    assert host.answers[waiting]["error_code"] == ErrorCode.rebalance_in_progress
    assert host.heartbeat(first, generation) is ErrorCode.unknown_member_id
    assert host.heartbeat(second, generation) is ErrorCode.rebalance_in_progress


def test_leaving_empties_the_group() -> None:
    """When the last member leaves, the group is empty and can be deleted."""
    host = Host()
    (only,) = stable(host, 1)
    assert host.groups.delete("g") is ErrorCode.non_empty_group
    assert host.leave(only) is ErrorCode.none
    assert host.state is GroupState.EMPTY
    assert host.groups.delete("g") is ErrorCode.none
    assert host.groups.delete("g") is ErrorCode.group_id_not_found


def test_static_member_returns_without_a_rebalance() -> None:
    """A static member that restarts takes its assignment over; its old self is fenced."""
    host = Host()
    leader = host.answers[host.join()]["member_id"]
    static = host.join(instance="i")
    host.join(leader)
    old = host.answers[static]["member_id"]
    host.sync(leader, 2, {old: b"part", leader: b"rest"})
    back = host.answers[host.join(instance="i")]
    assert (back["error_code"], back["generation_id"]) == (0, 2)
    assert host.state is GroupState.STABLE
    token = host.sync(back["member_id"], 2)
    assert host.answers[token]["assignment"] == b"part"
    fenced = host.groups.heartbeat(host.now, "g", 2, old, "i")
    assert fenced is ErrorCode.fenced_instance_id
    assert host.leave("", "i") is ErrorCode.none


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_ms": 10}, ErrorCode.invalid_session_timeout),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (("other", b""),)}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    ],
)
def test_unfit_members_are_refused(more: dict[str, Any], code: ErrorCode) -> None:
    """A member that doesn't fit the group gets the protocol's error and changes nothing."""
    host = Host()
    stable(host, 1)
    assert host.answers[host.join(**more)]["error_code"] == code
    assert host.state is GroupState.STABLE


def test_shortest_session_is_a_setting() -> None:
    """A member may ask for a session as short as the coordinator was told, and none shorter."""
    groups = Groups(lambda name: name, session_ms_min=1_000)
    for session_ms, fits in ((999, False), (1_000, True)):
        join = Join(
            "g", "", None, "c", "h", session_ms, 60_000, "consumer", (("range", b""),), True
        )
        (reply,) = groups.join(0, session_ms, join)
        assert (reply.fields["error_code"] == ErrorCode.invalid_session_timeout) is not fits


def test_protocol_is_chosen_by_vote() -> None:
    """Of the protocols that all know, the one that most like best is chosen."""
    host = Host()
    wishes = [("a", "b"), ("b", "a", "c"), ("b", "a")]
    members: list[tuple[str, Any]] = []
    for wish in wishes:
        protocols = tuple((name, b"") for name in wish)
        tokens = [host.join(protocols=protocols)]
        tokens += [host.join(one, protocols=theirs) for one, theirs in members]
        members.append((host.answers[tokens[0]]["member_id"], protocols))
    assert host.answers[tokens[0]]["protocol_name"] == "b"


def test_new_group_may_wait_for_more_members() -> None:
    """With a delay, members that come at about the same time are in the first generation."""
    host = Host(delay_ms=3000)
    tokens = [host.join(), host.join()]
    assert not host.answers
    host.tick(3000)
    assert [host.answers[token]["generation_id"] for token in tokens] == [1, 1]


def test_commits_need_a_member() -> None:
    """Offsets are taken from members of the present generation, or from anyone if there are
    none.
    """
    host = Host()
    assert host.groups.commit_fault(0, "g", -1, "", None) is None
    (only,) = stable(host, 1)
    assert host.groups.commit_fault(0, "g", 1, only, None) is None
    assert host.groups.commit_fault(0, "g", 0, only, None) is ErrorCode.illegal_generation
    assert host.groups.commit_fault(0, "g", 1, "x", None) is ErrorCode.unknown_member_id
    assert host.groups.commit_fault(0, "g", -1, "", None) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events(seed: int) -> None:
    """Whatever members do and however time passes: the invariants hold at each step, each request
    is answered once, and when all is quiet the living members form one stable generation.
    """
    chance = random.Random(seed)
    host = Host(delay_ms=chance.choice([0, 3000]))
    clients: list[dict[str, Any]] = [
        {"id": "", "token": None, "instance": f"i{n}" if n < 2 else None} for n in range(4)
    ]
    for _ in range(300):
        act(host, chance, chance.choice(clients))
    for _ in range(200):
        for client in clients:
            act(host, chance, client, is_sane=True)
        host.tick(1000)
    group = host.groups.get("g")
    assert group is not None
    assert group.state is GroupState.STABLE
    assert set(group.members) == {client["id"] for client in clients}


def act(
    host: Host, chance: random.Random, client: dict[str, Any], *, is_sane: bool = False
) -> None:
    """One step of a client that keeps to the protocol, or (unless sane) doesn't."""
    if not is_sane:
        match chance.randrange(12):
            case 0:
                host.tick(chance.randrange(20_000))
            case 1:
                client |= {"id": "", "token": None}  # it forgets everything
            case 2:
                host.leave(client["id"], client["instance"])
            case 3:
                host.sync(client["id"], chance.randrange(20))
            case 4:
                host.join(client["id"])
    token = client["token"]
    if token is not None and token in host.open:
        return
    answer = host.answers.get(token) if token is not None else None
    client["token"] = None
    if answer is None:
        group = host.groups.get("g")
        generation = group.generation if group else 0
        if not client["id"] or host.heartbeat(client["id"], generation):
            client["token"] = host.join(
                client["id"], instance=client["instance"], requires=chance.random() < 0.5
            )
        return
    if answer["error_code"] in {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}:
        client["id"] = ""
    elif answer["error_code"] == ErrorCode.member_id_required:
        client["id"] = answer["member_id"]
    elif answer["error_code"] == 0 and "leader" in answer:
        client["id"] = answer["member_id"]
        parts = {one["member_id"]: b"x" for one in answer["members"]}
        client["token"] = host.sync(client["id"], answer["generation_id"], parts)
    elif answer["error_code"] == 0:
        return
    if client["token"] is None:
        client["token"] = host.join(
            client["id"], instance=client["instance"], requires=chance.random() < 0.5
        )
