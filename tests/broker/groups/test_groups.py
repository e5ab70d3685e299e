from __future__ import annotations

import random
from typing import Any

import pytest
from group_host import SESSION_MS, Host, stable

from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import GroupState, Join
from penstock.broker.server import pause_until
from penstock.wire.protocol import ErrorCode


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
    assert refused["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    joined = host.answers[host.join(refused["member_id"], requires=True)]
    assert joined["error_code"] == 0
    ghost = host.answers[host.join("nobody")]
    assert ghost["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_all_members() -> None:
    """A join is answered when all known members have joined again, or their time is over."""
    host = Host()
    first, second = stable(host, 2)
    third = host.join()
    assert third not in host.answers
    assert host.heartbeat(first, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    again = host.join(first)
    assert again not in host.answers
    host.tick(5_000)
    assert host.heartbeat(second, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    host.tick(9_000)
    assert host.heartbeat(second, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    host.tick(9_000)
    assert host.heartbeat(second, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    host.tick(7_000)
    answer = host.answers[third]
    assert (answer["error_code"], answer["generation_id"]) == (0, 3)
    assert host.heartbeat(second, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_dead_member_is_removed() -> None:
    """A member without heartbeats is dropped, and the others share what it had."""
    host = Host()
    first, second = stable(host, 2)
    host.tick(SESSION_MS - 1)
    assert host.heartbeat(first, 2) is ErrorCode.NONE
    host.tick(1)
    assert host.state is GroupState.PREPARING
    answer = host.answers[host.join(first)]
    assert [one["member_id"] for one in answer["members"]] == [first]
    assert host.heartbeat(second, 3) is ErrorCode.UNKNOWN_MEMBER_ID


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
    assert host.answers[waiting]["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    assert host.heartbeat(first, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert host.heartbeat(second, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_leaving_empties_the_group() -> None:
    """When the last member leaves, the group is empty and can be deleted."""
    host = Host()
    (only,) = stable(host, 1)
    assert host.groups.delete("g") is ErrorCode.NON_EMPTY_GROUP
    assert host.leave(only) is ErrorCode.NONE
    assert host.state is GroupState.EMPTY
    assert host.groups.delete("g") is ErrorCode.NONE
    assert host.groups.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND


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
    assert fenced is ErrorCode.FENCED_INSTANCE_ID
    assert host.leave("", "i") is ErrorCode.NONE


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
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
        assert (reply.fields["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT) is not fits


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


def test_what_ends_next_is_known() -> None:
    """Sessions, phases, delays and promised ids end on time: the next of them is told with a tick."""
    host = Host(delay_ms=300)
    host.tick(0)
    assert host.groups.next_end_ms > 1 << 60
    first = host.join(requires=True)
    host.tick(0)
    assert host.groups.next_end_ms == SESSION_MS, "the promised id"
    token = host.join(host.answers[first]["member_id"])
    host.tick(100)
    assert host.groups.next_end_ms == 300, "the delay"
    host.tick(200)
    answer = host.answers[token]
    assert host.groups.next_end_ms == 300 + SESSION_MS, "the session, before the assignment is due"
    member, generation = answer["member_id"], answer["generation_id"]
    host.sync(member, generation, {member: b"all"})
    host.tick(1000)
    assert host.heartbeat(member, generation) is ErrorCode.NONE
    host.tick(SESSION_MS - 1100)
    assert host.groups.next_end_ms == 300 + SESSION_MS, (
        "a heartbeat is noticed when it is asked for"
    )
    host.tick(100)
    assert host.groups.next_end_ms == 1300 + SESSION_MS
    host.tick(1000)
    assert host.state is GroupState.EMPTY


def test_who_leaves_begins_a_phase_that_ends_on_time() -> None:
    """Those who don't join again in time are out, long before their sessions would end."""
    host = Host()
    times = {"session_ms": 60_000, "rebalance_ms": 9_000}
    tokens = [host.join(**times) for _ in range(2)]
    first = host.answers[tokens[0]]["member_id"]
    tokens[0] = host.join(first, **times)
    ids = [host.answers[token]["member_id"] for token in tokens]
    host.sync(first, 2, dict.fromkeys(ids, b"x"))
    host.tick(1000)
    assert host.leave(first) is ErrorCode.NONE
    assert host.state is GroupState.PREPARING
    host.tick(8_999)
    assert host.state is GroupState.PREPARING
    host.tick(1)
    assert host.state is GroupState.EMPTY


@pytest.mark.parametrize(
    ("end_ms", "pause_ms"), [(0, 10), (1000, 10), (1004, 10), (1050, 50), (9999, 8999)]
)
def test_the_broker_looks_when_something_ends(end_ms: int, pause_ms: int) -> None:
    """In time, but not all the time."""
    assert pause_until(1000, end_ms) == pause_ms


def test_commits_need_a_member() -> None:
    """Offsets are taken from members of the present generation, or from anyone if there are
    none.
    """
    host = Host()
    assert host.groups.commit_fault(0, "g", -1, "", None) is None
    assert host.groups.commit_fault(0, "g", -1, "x", None) is None
    (only,) = stable(host, 1)
    assert host.groups.commit_fault(0, "g", 1, only, None) is None
    assert host.groups.commit_fault(0, "g", 0, only, None) is ErrorCode.ILLEGAL_GENERATION
    assert host.groups.commit_fault(0, "g", 1, "x", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert host.groups.commit_fault(0, "g", -1, "", None) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events(seed: int) -> None:
    """Whatever members do and however time passes: the invariants hold at each step, each request
    is answered once, and when all is quiet the living members form one stable generation.
    """
    chance = random.Random(seed)
    host = Host(delay_ms=chance.choice([0, 3000]))
    clients: list[dict[str, Any]] = [
        {
            "id": "",
            "token": None,
            "instance": f"i{n}" if n < 2 else None,
            "session_ms": chance.choice([6_000, 12_000, 60_000]),
            "rebalance_ms": chance.choice([9_000, 90_000]),
        }
        for n in range(4)
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
                host.tick(chance.randrange(chance.choice([500, 5_000, 20_000])))
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
            join(host, chance, client)
        return
    if answer["error_code"] in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
        client["id"] = ""
    elif answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
        client["id"] = answer["member_id"]
    elif answer["error_code"] == 0 and "leader" in answer:
        client["id"] = answer["member_id"]
        parts = {one["member_id"]: b"x" for one in answer["members"]}
        client["token"] = host.sync(client["id"], answer["generation_id"], parts)
    elif answer["error_code"] == 0:
        return
    if client["token"] is None:
        join(host, chance, client)


def join(host: Host, chance: random.Random, client: dict[str, Any]) -> None:
    """Joins, again or for the first time."""
    times = {name: client[name] for name in ("session_ms", "rebalance_ms")}
    requires = chance.random() < 0.5
    client["token"] = host.join(
        client["id"], instance=client["instance"], requires=requires, **times
    )
