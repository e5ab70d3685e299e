from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer_members import Beat, ConsumerGroupState
from penstock.broker.storage.topic_patterns import matching
from penstock.errors import UserError
from penstock.wire.protocol import ErrorCode

SESSION_MS = 45_000
REBALANCE_MS = 30_000


class Topics:
    """A catalog of topics."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self.counts = counts

    def names(self) -> Iterable[str]:
        return self.counts

    def find(self, name: str) -> tuple[uuid.UUID, int] | None:
        count = self.counts.get(name)
        return None if count is None else (uuid.uuid5(uuid.NAMESPACE_DNS, name), count)

    def change(self, **counts: int) -> None:
        self.counts = counts
        self.version += 1


class Host:
    """Drives the state machine; time stands still unless told otherwise."""

    def __init__(self, **counts: int) -> None:
        ids = itertools.count()
        self.topics = Topics(**(counts or {"t": 4}))
        self.groups = ConsumerGroups(self.topics, lambda: f"made-{next(ids)}", matching)
        self.now = 0

    def beat(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        if epoch == 0:
            more = {"rebalance_ms": REBALANCE_MS, "names": ("t",), "owned": frozenset()} | more
        answer = self.groups.heartbeat(self.now, Beat("g", member, epoch, **more))
        self.groups.check()
        return answer

    def code(self, member: str, epoch: int, **more: Any) -> int:
        return int(self.beat(member, epoch, **more)["error_code"])

    def tick(self, ms: int) -> None:
        self.now += ms
        self.groups.tick(self.now)
        self.groups.check()

    def settle(self, *members: Member) -> None:
        for _ in range(6):
            for member in members:
                member.beat()

    @property
    def state(self) -> ConsumerGroupState:
        group = self.groups.get("g")
        assert group is not None
        return group.state


class Member:
    """A client that does what it is told."""

    def __init__(self, host: Host, name: str, **more: Any) -> None:
        self.host, self.name, self.more = host, name, more
        self.epoch = 0
        self.owned: frozenset[Part] = frozenset()

    def beat(self, **more: Any) -> dict[str, Any]:
        if self.epoch == 0:
            answer = self.host.beat(self.name, 0, **self.more, **more)
        else:
            answer = self.host.beat(self.name, self.epoch, owned=self.owned, **more)
        assert not answer["error_code"], answer
        self.epoch = answer["member_epoch"]
        if answer.get("assignment") is not None:
            self.owned = parts(answer)
        return answer

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


def parts(answer: dict[str, Any]) -> frozenset[Part]:
    """The assignment in an answer."""
    topics = answer["assignment"]["topic_partitions"]
    return frozenset((one["topic_id"], number) for one in topics for number in one["partitions"])


def test_one_member() -> None:
    """The only member gets everything with its first answer; nothing is repeated later."""
    host = Host()
    a = Member(host, "a")
    answer = a.beat()
    assert (answer["member_id"], answer["member_epoch"], a.numbers) == ("a", 1, [0, 1, 2, 3])
    assert "assignment" not in a.beat()
    assert host.state is ConsumerGroupState.STABLE


def test_partitions_are_given_up_before_they_are_given_on() -> None:
    """A newcomer gets its share only once the one who had it has said that it gave it up."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    a.beat()
    b.beat()
    assert b.numbers == []
    before = a.owned
    remaining = parts(host.beat("a", a.epoch))
    assert len(remaining) == 2
    host.beat("a", a.epoch, owned=before)  # it still works on the last records
    b.beat()
    assert b.numbers == []
    assert host.state is ConsumerGroupState.RECONCILING
    a.owned = remaining
    a.beat()
    b.beat()
    assert sorted(a.numbers + b.numbers) == [0, 1, 2, 3]
    host.settle(a, b)
    assert host.state is ConsumerGroupState.STABLE
    assert (a.epoch, b.epoch) == (2, 2)


def test_member_that_does_not_give_up_is_fenced() -> None:
    """Who keeps what it must give up beyond its rebalance timeout has lost all of it."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    a.beat()
    b.beat()
    held = a.owned
    host.beat("a", 1, owned=held)
    for _ in range(REBALANCE_MS // 5000):
        host.tick(5000)
        host.code("a", 1, owned=held)
        b.beat()
    assert host.code("a", 1, owned=held) == ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_what_ends_next_is_known() -> None:
    """The next session or revocation that ends is told with a tick."""
    host = Host()
    host.tick(0)
    assert host.groups.next_end_ms > 1 << 60
    first = Member(host, "a")
    first.beat()
    host.tick(1000)
    assert host.groups.next_end_ms == SESSION_MS
    first.beat()
    host.tick(SESSION_MS - 1000)
    assert host.groups.next_end_ms == 1000 + SESSION_MS
    host.tick(1000)
    assert host.groups.next_end_ms > 1 << 60


def test_silent_member_is_fenced() -> None:
    """A member whose session has ended is unknown, and its partitions go to the others."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    host.settle(a, b)
    host.tick(SESSION_MS - 1)
    b.beat()
    host.tick(1)
    assert host.code("a", a.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert host.groups.commit_fault("g", a.epoch, "a", []) is ErrorCode.UNKNOWN_MEMBER_ID


def test_lost_answer_is_sent_again() -> None:
    """A request with the epoch before is good if the member claims nothing that it doesn't have."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    a.beat()
    b.beat()
    kept = parts(host.beat("a", 1))
    lost = host.beat("a", 1, owned=kept)
    assert lost["member_epoch"] == 2
    again = host.beat("a", 1, owned=kept, names=("t",), rebalance_ms=REBALANCE_MS)
    assert again["member_epoch"] == 2
    assert parts(again) == kept
    assert host.code("a", 1, owned=None) == ErrorCode.FENCED_MEMBER_EPOCH
    assert host.code("a", 3) == ErrorCode.FENCED_MEMBER_EPOCH
    rejoined = host.beat("a", 0)
    assert (rejoined["error_code"], parts(rejoined)) == (0, kept)


def test_who_does_not_say_that_it_has_its_assignment_gets_it_again() -> None:
    """Once in a heartbeat's interval, as its answer may be lost; a member that has said so isn't."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    a.beat()
    a.beat()
    host.tick(60_000 - SESSION_MS)
    assert "assignment" not in host.beat("a", 1)
    b.beat()
    lost = host.beat("a", 1)
    assert len(parts(lost)) == 2
    assert "assignment" not in host.beat("a", 1)
    host.tick(4_999)
    assert "assignment" not in host.beat("a", 1)
    host.tick(1)
    assert parts(host.beat("a", 1)) == parts(lost)
    host.tick(4_000)
    assert "assignment" not in host.beat("a", 1)
    a.owned = parts(lost)
    a.beat()
    host.settle(a, b)
    for _ in range(3):
        host.tick(10_000)
        for one in (a, b):
            assert "assignment" not in host.beat(one.name, one.epoch)
    assert a.owned | b.owned == frozenset((host.topics.find("t")[0], n) for n in range(4))  # type: ignore[index]


def test_leaving() -> None:
    """What a member leaves goes to the others; the last one leaves an empty group."""
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    host.settle(a, b)
    answer = host.beat("a", -1)
    assert (answer["error_code"], answer["member_epoch"]) == (0, -1)
    host.settle(b)
    assert b.numbers == [0, 1, 2, 3]
    host.beat("b", -1)
    assert host.state is ConsumerGroupState.EMPTY
    assert host.groups.delete("g") is ErrorCode.NONE
    assert host.code("b", -1) == ErrorCode.GROUP_ID_NOT_FOUND


def test_static_member_comes_back() -> None:
    """A static member that left for a while gets what it had, under its new id, without anyone
    else noticing; two at a time are refused.
    """
    host = Host()
    a = Member(host, "a", instance_id="i")
    b = Member(host, "b")
    host.settle(a, b)
    had = a.owned
    assert host.code("x", 0, instance_id="i") == ErrorCode.UNRELEASED_INSTANCE_ID
    assert host.code("x", a.epoch, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert host.beat("a", -2, instance_id="i")["member_epoch"] == -2
    again = host.beat("a2", 0, instance_id="i")
    assert parts(again) == had
    assert "assignment" not in b.beat()
    assert host.code("a", a.epoch, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID


def test_static_member_that_stays_away_is_removed() -> None:
    """A static member's place is kept until its session ends."""
    host = Host()
    a, b = Member(host, "a", instance_id="i"), Member(host, "b")
    host.settle(a, b)
    host.beat("a", -2, instance_id="i")
    host.tick(SESSION_MS // 2)
    b.beat()
    assert len(b.numbers) == 2
    host.tick(SESSION_MS // 2)
    host.settle(b)
    assert len(b.numbers) == 4


def test_topics_change() -> None:
    """New partitions are given out, those of deleted topics taken back, with the next heartbeat."""
    host = Host(t=2)
    a = Member(host, "a", names=("t", "later"))
    a.beat()
    host.topics.change(t=3, other=9)
    a.beat()
    assert a.numbers == [0, 1, 2]
    host.topics.change(t=3, later=1)
    a.beat()
    assert len(a.owned) == 4
    host.topics.change(later=1)
    host.settle(a)
    assert a.numbers == [0]
    epoch = a.epoch
    host.topics.change(later=1, unrelated=5)
    a.beat()
    assert a.epoch == epoch


def test_regular_expressions() -> None:
    """An expression finds topics that match as a whole, also those that come later."""
    host = Host(t1=1, t2=1, xt1=1)
    a = Member(host, "a", names=None, regex="t[0-9]")
    a.beat()
    assert len(a.owned) == 2
    host.topics.change(t1=1, t2=1, xt1=1, t3=1)
    a.beat()
    assert len(a.owned) == 3
    a.beat(regex="x.*")
    host.settle(a)
    assert len(a.owned) == 1
    bad = host.beat("b", 0, names=None, regex="(")
    assert bad["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_expressions_take_bounded_time() -> None:
    """An expression that would keep a backtracking matcher busy for ever is matched at once."""
    assert matching("(a*)*b", ["a" * 249] * 5000) == frozenset()
    with pytest.raises(UserError):
        matching("a" * 5000, [])
    with pytest.raises(UserError):
        matching("a)(b", [])


def test_only_a_vote_that_counts_begins_an_epoch() -> None:
    """A member that asks for the assignor which the group has anyway disturbs nobody; the vote that
    changes it has all partitions shared out again.
    """
    host = Host()
    a, b, c = (
        Member(host, one, assignor=vote) for one, vote in (("a", "range"), ("b", None), ("c", None))
    )
    host.settle(a, b, c)
    group = host.groups.get("g")
    assert group is not None
    epoch = group.epoch
    b.beat(assignor="range")
    assert (group.epoch, group.assignor) == (epoch, "range")
    c.beat(assignor="uniform")
    b.beat(assignor="uniform")
    assert (group.epoch, group.assignor) == (epoch + 1, "uniform")


def test_assignor_is_the_majoritys() -> None:
    """Members choose among the coordinator's assignors; an unknown one is refused."""
    host = Host(t=4, u=4)
    a = Member(host, "a", names=("t", "u"), assignor="range")
    a.beat()
    group = host.groups.get("g")
    assert group is not None
    assert group.assignor == "range"
    assert host.code("b", 0, assignor="mine") == ErrorCode.UNSUPPORTED_ASSIGNOR
    host.beat("b", 0, assignor="uniform")
    host.beat("c", 0, assignor="uniform")
    assert group.assignor == "uniform"


@pytest.mark.parametrize(
    "more",
    [
        {"epoch": -3},
        {"epoch": 0, "rebalance_ms": -1},
        {"epoch": 0, "owned": frozenset([(uuid.UUID(int=1), 0)])},
        {"epoch": 0, "names": None},
        {"epoch": 0, "instance_id": ""},
        {"epoch": 0, "rack_id": ""},
        {"epoch": -2},
        {"epoch": 0, "member": ""},
        {"epoch": 0, "member": "m" * 300},
    ],
)
def test_senseless_requests(more: dict[str, Any]) -> None:
    """What makes no sense is refused and leaves nothing behind."""
    host = Host()
    assert host.code(more.pop("member", "a"), more.pop("epoch"), **more) == (
        ErrorCode.INVALID_REQUEST
    )
    assert host.groups.get("g") is None


def test_old_clients_are_given_ids() -> None:
    """In version 0 the coordinator makes the member's id."""
    assert Host().beat("", 0, version=0)["member_id"] == "made-0"


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member too many is refused; those there are go on."""
    monkeypatch.setattr("penstock.broker.groups.consumer.MEMBERS_MAX", 1)
    host = Host()
    a = Member(host, "a")
    a.beat()
    assert host.code("b", 0) == ErrorCode.GROUP_MAX_SIZE_REACHED
    a.beat()


def test_commits() -> None:
    """Members commit what they have, also with the epoch before if they have had it since; others
    don't.
    """
    host = Host()
    a, b = Member(host, "a"), Member(host, "b")
    a.beat()
    everything = set(a.owned)
    host.settle(b, a)
    fault = host.groups.commit_fault
    assert fault("g", a.epoch, "a", a.owned) is None
    assert fault("g", 1, "a", a.owned) is None
    assert fault("g", 1, "a", everything) is ErrorCode.STALE_MEMBER_EPOCH
    assert fault("g", 1, "b", b.owned) is ErrorCode.STALE_MEMBER_EPOCH
    assert fault("g", 9, "a", a.owned) is ErrorCode.STALE_MEMBER_EPOCH
    assert fault("g", -1, "", a.owned) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fault("g", -1, "") is None
    assert fault("g", 1, "a") is ErrorCode.STALE_MEMBER_EPOCH
    host.beat("a", -1)
    host.beat("b", -1)
    assert fault("g", -1, "", a.owned) is None


def test_leaving_is_one_epoch() -> None:
    """Also when the one who leaves was the only one to read a topic."""
    host = Host(t=2, u=2)
    a, b = Member(host, "a", assignor="range"), Member(host, "b", names=("u",))
    a.beat()
    b.beat()
    host.settle(a, b)
    group = host.groups.get("g")
    assert group is not None
    before = group.epoch
    assert host.groups.preferred_assignor(group) == "range"
    host.beat("b", -1)
    assert group.epoch == before + 1
    host.settle(a)
    assert (a.epoch, a.numbers) == (before + 1, [0, 1])
    host.beat("a", -1)
    assert host.groups.preferred_assignor(group) == "uniform"


def test_restart() -> None:
    """After a restart everyone goes on with its epoch and partitions, also in the middle of a
    rebalance.
    """
    host = Host()
    a, b = Member(host, "a", instance_id="i"), Member(host, "b")
    changes: list[tuple[str, Any]] = []

    def restart() -> Host:
        changes.extend(json.loads(json.dumps(one)) for one in host.groups.take_changes())
        after = Host()
        for group_id, change in changes:
            after.groups.restore(0, group_id, change)
        after.groups.restored()
        assert list(after.groups.snapshot()) == list(host.groups.snapshot())
        a.host = b.host = after
        return after

    a.beat()
    host = restart()
    b.beat()
    a.owned = parts(host.beat("a", 1))
    host = restart()
    host.settle(a, b)
    assert sorted(a.numbers + b.numbers) == [0, 1, 2, 3]
    assert host.state is ConsumerGroupState.STABLE
    host.beat("a", -1, instance_id="i")
    host = restart()
    host.settle(b)
    assert b.numbers == [0, 1, 2, 3]
    host.tick(SESSION_MS)
    host = restart()
    assert host.state is ConsumerGroupState.EMPTY
