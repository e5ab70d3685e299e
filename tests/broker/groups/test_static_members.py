"""Static members of classic groups (KIP-345) that restart: the others don't notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_host import Host
from member_processes import Member, shared, until

from penstock.broker.groups.classic_members import GroupState
from penstock.wire.protocol import ApiKey, ErrorCode

HEARTBEAT = ApiKey.HEARTBEAT
DESCRIBE = ApiKey.DESCRIBE_GROUPS
GENERATIONS_MAX = 20
INSTANCES = ("i0", "i1")
COOPERATIVE = "cooperative-sticky"


def two_static(**more: Any) -> tuple[Host, dict[str, str]]:
    """A stable group of two static members, the first of which leads, and their ids."""
    host = Host()
    first = host.answers[host.join(instance="i0", **more)]["member_id"]
    second = host.join(instance="i1", **more)
    leader = host.join(first, instance="i0", **more)
    assert host.answers[leader]["leader"] == first
    ids = {"i0": first, "i1": host.answers[second]["member_id"]}
    host.sync(first, 2, {member: name.encode() for name, member in ids.items()}, "i0")
    assert host.state is GroupState.STABLE
    return host, ids


@pytest.mark.parametrize("instance", INSTANCES)
@pytest.mark.parametrize("may_skip", [False, True])
def test_a_restart_begins_no_generation(instance: str, *, may_skip: bool) -> None:
    """Whoever it is, and whatever it says with the same protocol: it has what it had."""
    host, ids = two_static(protocols=((COOPERATIVE, b"owns some"), ("range", b"")))
    protocols = ((COOPERATIVE, b"owns none"), ("range", b""))
    back = host.answers[host.join(instance=instance, protocols=protocols, may_skip=may_skip)]
    assert (back["error_code"], back["generation_id"]) == (0, 2)
    assert host.state is GroupState.STABLE
    token = host.sync(back["member_id"], 2, instance=instance)
    assert host.answers[token]["assignment"] == instance.encode()
    other = next(one for one in INSTANCES if one != instance)
    beat = host.groups.heartbeat(host.now, "g", 2, ids[other], other)
    assert beat is ErrorCode.NONE
    fenced = host.groups.heartbeat(host.now, "g", 2, ids[instance], instance)
    assert fenced is ErrorCode.FENCED_INSTANCE_ID


def test_a_leader_that_restarts_does_not_assign() -> None:
    """From JoinGroup 9 on it is told so; before, it is told that its former self leads."""
    for may_skip in (True, False):
        host, ids = two_static()
        back = host.answers[host.join(instance="i0", may_skip=may_skip)]
        assert back["skip_assignment"] is may_skip
        assert back["leader"] == (back["member_id"] if may_skip else ids["i0"])
        assert len(back["members"]) == (2 if may_skip else 0)
        again = host.join(back["member_id"], instance="i0")  # it leads, whatever it was told
        assert host.state is GroupState.PREPARING
        assert again in host.open
        follower = host.answers[host.join(instance="i1", may_skip=True)]
        assert follower["leader"] == back["member_id"]
        assert (follower["members"], follower.get("skip_assignment", False)) == ([], False)


def test_a_restart_that_changes_the_protocol_begins_a_generation() -> None:
    """Where the members would choose another one now, all join again."""
    host, _ = two_static(protocols=(("range", b""), ("sticky", b"")))
    host.join(instance="i1", protocols=(("sticky", b""), ("range", b"")))
    assert host.state is GroupState.STABLE, "one vote each: the first member's counts"
    host.join(instance="i0", protocols=(("sticky", b""), ("range", b"")))
    assert host.state is GroupState.PREPARING


def test_a_restart_before_the_assignment_begins_a_generation() -> None:
    """The leader may be assigning to the member that was."""
    host = Host()
    first = host.answers[host.join(instance="i0")]["member_id"]
    second = host.join(instance="i1")
    host.join(first, instance="i0")
    assert host.answers[second]["generation_id"] == 2
    assert host.state is GroupState.COMPLETING
    host.join(instance="i1")
    assert host.state is GroupState.PREPARING


# -- real clients ----------------------------------------------------------------------------------


def generation(raw: Any, group: str) -> int:
    """A stable group's generation: the one with which a member's heartbeat is taken."""
    one = raw.call(DESCRIBE, 5, groups=[group])["groups"][0]["members"][0]
    who = {"member_id": one["member_id"], "group_instance_id": one["group_instance_id"]}
    for number in range(GENERATIONS_MAX):
        code = raw.call(HEARTBEAT, 3, group_id=group, generation_id=number, **who)["error_code"]
        if code != ErrorCode.ILLEGAL_GENERATION:
            assert code == 0, code
            return number
    raise AssertionError(f"expected a generation below {GENERATIONS_MAX}")


@pytest.fixture
def running() -> Iterator[list[Member]]:
    """Members' processes, which are ended."""
    found: list[Member] = []
    yield found
    for one in found:
        one.end(kill=True)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "variant",
    [("confluent", "range"), ("confluent", COOPERATIVE), ("kafka-python", COOPERATIVE)],
    ids="-".join,
)
def test_clients_that_restart(
    raw: Any, address: str, topic: str, running: list[Member], variant: tuple[str, str]
) -> None:
    """One after the other is killed and started again, and has the partition that it had."""
    group = f"static-{topic}"

    def start(instance: str) -> Member:
        running.append(Member(variant, address, group, topic, 60_000, instance))
        return running[-1]

    members = {one: start(one) for one in INSTANCES}
    until("both share", lambda: shared([*members.values()], 2), lambda: [*members.values()])
    began = generation(raw, group)
    events = {one: list(member.events) for one, member in members.items()}
    for instance in INSTANCES:
        members[instance].end(kill=True)
        running.remove(members[instance])
        has_as_before(start(instance), members[instance].owned)
        assert generation(raw, group) == began
    assert members["i1"].events == events["i1"], "those of the one that ran while i0 restarted"


def has_as_before(again: Member, owned: set[int]) -> None:
    """Waits until a member has these partitions."""
    until("it has its partition", lambda: again.owned == owned, lambda: again.events)
