"""Members of both protocols in one group, in a world where everything goes wrong (see `simulator`)."""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from typing import Any, Final

import pytest
from simulated_members import (
    BEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    ClassicMember,
    Journal,
    ModernClient,
    Topics,
    World,
    carried_out,
)
from simulator import Server, Simulator, repeatable, seeds

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import GroupState, Join, Reply, Sync
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer_members import Beat, Timing
from penstock.broker.groups.consumer_protocol import Assignment, read_assignment, read_subscription
from penstock.broker.groups.mixed import MixedGroups
from penstock.broker.storage.topic_patterns import matching
from penstock.wire.protocol import ErrorCode

WANTED: Final = ("t1", "t2")
GIVES_UP_MS: Final = 2_000
Named = tuple[str, int]


def subscription(owned: frozenset[Named]) -> bytes:
    """A classic consumer's metadata."""
    names = b"".join(struct.pack(">h", len(one)) + one.encode() for one in WANTED)
    parts = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">ii", 1, number)
        for name, number in sorted(owned)
    )
    head = struct.pack(">hi", 1, len(WANTED)) + names + struct.pack(">i", -1)
    return head + struct.pack(">i", len(owned)) + parts


def deal(
    wanted: list[Named], owned: dict[str, frozenset[Named]], *, is_cooperative: bool
) -> dict[str, frozenset[Named]]:
    """What a leader gives its members: in turn, but nothing that another one still has."""
    members = sorted(owned)
    dealt = {one: set(wanted[at :: len(members)]) for at, one in enumerate(members)}
    if is_cooperative:
        for one in members:
            dealt[one] -= {p for other in members if other != one for p in owned[other]}
    return {one: frozenset(parts) for one, parts in dealt.items()}


class ClassicConsumer(ClassicMember):
    """A cooperative one keeps what it may while it joins again."""

    leaves = 0.5

    def __init__(self, world: MixedWorld, number: int) -> None:
        super().__init__(
            world.sim, world.server, f"classic-{number % 3}" if number % 5 == 0 else None
        )
        self.world = world
        self.owned: frozenset[Named] = frozenset()
        self.is_leader = self.is_partial = False
        self.version = -1
        self.ids: dict[str, Any] = {}  # which topics its names meant when it was assigned them
        self.join()

    def protocol(self) -> tuple[str, bytes]:
        name = "cooperative-sticky" if self.world.is_cooperative else "range"
        return name, subscription(self.owned)

    def die(self) -> None:
        if self.instance is not None:  # it will be back
            self.is_dead = True
            self.link.break_off()
        else:
            super().die()

    def prepare(self) -> None:
        """Who isn't cooperative gives everything up before it joins, which takes its time."""

        def join() -> None:
            if not self.is_dead:
                self.world.commit(self)
                if not self.world.is_cooperative:
                    self.owned = frozenset()
                self.join()

        self.sim.after(self.sim.random.randint(0, GIVES_UP_MS) if self.owned else 100, join)

    def sync(self, members: list[dict[str, Any]]) -> None:
        self.is_leader, self.version = bool(members), self.world.topics.version
        assignments: dict[str, bytes] = {}
        self.is_partial = False
        if members:
            owned = {one["member_id"]: read_subscription(one["metadata"]).owned for one in members}
            wanted = self.world.wanted(WANTED)
            dealt = deal(wanted, owned, is_cooperative=self.world.is_cooperative)
            self.is_partial = sum(map(len, dealt.values())) < len(wanted)
            assignments = {one: Assignment(parts).to_bytes() for one, parts in dealt.items()}
        sync = Sync("g", self.generation, self.member, self.instance, assignments)
        self.call("sync", sync, self.synced)

    def assigned(self, assignment: bytes) -> None:
        assigned = read_assignment(assignment).parts
        given_up = self.owned - assigned
        generation = self.generation

        def take() -> None:
            if self.is_dead or self.generation != generation:
                return
            self.owned = assigned
            self.ids = {name: one[0] for name, one in self.world.topics.topics.items()}
            if given_up:
                self.join()
            else:
                self.beat()

        if given_up:
            self.sim.after(self.sim.random.randint(0, GIVES_UP_MS), take)
        else:
            take()

    def beat(self) -> None:
        is_stale = self.is_partial or self.version != self.world.topics.version
        if self.is_leader and is_stale and not self.is_dead:
            self.prepare()
        else:
            super().beat()

    def commit(self) -> None:
        self.world.commit(self)

    def refused(self, fields: dict[str, Any]) -> None:
        code = fields["error_code"]
        assert code in {
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.FENCED_INSTANCE_ID,
        }, fields
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.owned, self.generation = frozenset(), -1
            if code != ErrorCode.ILLEGAL_GENERATION:
                self.member = ""
        self.prepare()


class MixedWorld:
    """Both coordinators, and what must hold of them."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.is_cooperative = sim.random.random() < 0.5
        self.ids = itertools.count()
        self.journal: list[tuple[str, tuple[str, Any]]] = []
        self.topics = Topics()
        for _ in range(4):
            self.topics.change(sim.random)
        self.make()
        self.seen: set[str] = set()
        self.server = Server(sim, self.handle)
        self.world = World(sim, self.server, self.spawn)
        self.world.restart = self.restart
        self.world.shake = lambda: self.topics.change(sim.random)
        sim.after(100, self.tick)

    def spawn(self, number: int) -> Any:
        # Now mostly of one kind, now of the other, so that groups are converted again and again.
        is_modern = self.sim.random.random() < (0.2 if self.sim.now_ms // 40_000 % 2 else 0.7)
        client = ModernClient if is_modern else ClassicConsumer
        self.sim.note(f"... {client.__name__}")
        return client(self, number)  # type: ignore[arg-type]

    def make(self) -> None:
        self.classic = Groups(lambda name: f"{name}-{next(self.ids)}")
        self.groups = ConsumerGroups(
            self.topics,
            lambda: f"static-{next(self.ids)}",
            matching,
            lambda _: Timing(SESSION_MS, BEAT_MS),
        )
        self.mixed = MixedGroups(
            self.classic,
            self.groups,
            self.topics,
            self.topic_name,
            lambda name: f"{name}-{next(self.ids)}",
        )

    def topic_name(self, topic_id: Any) -> str | None:
        found = (name for name, one in self.topics.topics.items() if one[0] == topic_id)
        return next(found, None)

    def restart(self) -> None:
        self.make()
        now_ms = self.server.now_ms()
        kinds = {"classic": self.classic, "consumer": self.groups}
        for kind, (group_id, change) in self.journal:
            kinds[kind].restore(now_ms, group_id, change)
        for one in kinds.values():
            one.restored()
        self.mixed.restored(now_ms)
        self.save()
        self.server.restart(self.handle)

    def save(self) -> None:
        for kind, one in (("classic", self.classic), ("consumer", self.groups)):
            changes: Journal = [json.loads(json.dumps(each)) for each in one.take_changes()]
            self.journal.extend((kind, (group_id, change)) for group_id, change in changes)

    def handle(self, token: int, request: Any) -> None:
        now_ms, mixed = self.server.now_ms(), self.mixed
        match request:
            case Beat():
                fields, replies = mixed.beat(now_ms, request)
                self.answer([*replies, Reply(token, fields)])
            case _:
                self.answer(carried_out(mixed, now_ms, token, request))

    def answer(self, replies: list[Reply]) -> None:
        self.save()
        for token, fields in replies:
            self.server.answer(token, fields)

    def tick(self) -> None:
        self.answer(self.mixed.tick(self.server.now_ms()))
        self.sim.after(100, self.tick)

    def wanted(self, names: Any) -> list[Named]:
        topics = self.topics.topics
        return [(one, at) for one in sorted(names) if one in topics for at in range(topics[one][1])]

    def parts(self, client: Any) -> set[Part]:
        """What a client reads."""
        if isinstance(client, ModernClient):
            return set(client.owned)
        return {(client.ids[name], at) for name, at in client.owned if name in client.ids}

    def fault(self, client: Any, parts: list[Part]) -> ErrorCode | None:
        """Why a client may not commit."""
        is_modern = isinstance(client, ModernClient)
        epoch = client.epoch if is_modern else client.generation
        member = client.id if is_modern else client.member
        if self.groups.get("g") is not None:
            if not is_modern and not member:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return self.groups.commit_fault("g", epoch, member, parts)
        if is_modern or not member:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self.classic.commit_fault(self.server.now_ms(), "g", epoch, member, client.instance)

    def commit(self, client: Any) -> None:
        """Whoever may commit a partition of a consumer group has it."""
        group = self.groups.get("g")
        for part in self.parts(client):
            if group is not None and self.fault(client, [part]) is None:
                owner = client.id if isinstance(client, ModernClient) else client.member
                assert group.owners.get(part, owner) == owner

    def check(self) -> None:
        self.mixed.check()
        self.check_sharing()
        classic, group = self.classic.get("g"), self.groups.get("g")
        held = [] if classic is None else classic.members.values()
        tokens = {one.join_token or one.sync_token for one in held} - {None}
        assert tokens == self.server.unanswered
        if group is not None and group.members:
            kinds = {one.classic is None for one in group.members.values()}
            self.seen.add("mixed" if len(kinds) == 2 else "consumer")
        elif classic is not None and classic.members:
            self.seen.add("classic")

    def check_sharing(self) -> None:
        """Of the clients that the coordinator knows and that are up to date, no two share."""
        owners: dict[Part, Any] = {}
        for client in self.world.clients.values():
            for part in self.parts(client):
                if self.knows(client):
                    other = owners.setdefault(part, client)
                    assert other is client, f"{part} is read by two"

    def knows(self, client: Any) -> bool:
        group = self.groups.get("g")
        if isinstance(client, ModernClient):
            member = None if group is None else group.members.get(client.id)
            return member is not None and client.epoch > 0 and member.epoch > 0
        if group is not None:
            member = group.members.get(client.member)
            return member is not None and client.generation > 0
        classic = self.classic.get("g")
        return (
            classic is not None
            and client.member in classic.members
            and client.generation == classic.generation
            and classic.state is GroupState.STABLE
        )

    def check_at_last(self) -> None:
        group, classic = self.groups.get("g"), self.classic.get("g")
        clients = list(self.world.clients.values())
        modern = [one for one in clients if isinstance(one, ModernClient)]
        ids = {one.id if isinstance(one, ModernClient) else one.member for one in clients}
        if modern:
            assert group is not None
            assert group.state.value == "Stable"
            assert ids == group.members.keys()
        else:
            assert classic is not None
            assert classic.state is GroupState.STABLE
            assert ids == classic.members.keys()
        names = {*WANTED} | ({"t3"} if any(one.by_regex for one in modern) else set())
        topics = self.topics.topics
        wanted = sorted((topics[name][0], at) for name, at in self.wanted(names))
        assert sorted(part for one in clients for part in self.parts(one)) == wanted
        assert not self.server.unanswered


@pytest.mark.parametrize("seed", seeds(12))
def test_mixed_groups(seed: int) -> None:
    """Whatever happens, no two clients that may commit share a partition; when it has calmed down,
    the clients that live share all of them, whichever protocol each speaks.
    """
    with repeatable(seed):
        world = MixedWorld(Simulator(seed))
        world.world.run(world.check)
        world.check_at_last()


@pytest.mark.slow
def test_conversions_happen() -> None:
    """The simulation does see all kinds of groups."""
    seen: set[str] = set()
    for seed in range(3):
        world = MixedWorld(Simulator(seed))
        world.world.run(world.check)
        seen |= world.seen
    assert seen == {"classic", "consumer", "mixed"}


def test_shortest_session_is_one_for_all_groups() -> None:
    """A classic member of a group of KIP-848 may have as short a session as in a group of its own."""
    topics = Topics()
    classic = Groups(lambda name: name, session_ms_min=1_000)
    modern = ConsumerGroups(topics, lambda: "made", matching)
    mixed = MixedGroups(classic, modern, topics, lambda _: None, lambda name: f"{name}-1")
    answer, _ = mixed.beat(
        0, Beat("g", "m", 0, rebalance_ms=REBALANCE_MS, names=WANTED, owned=frozenset())
    )
    assert answer["error_code"] == 0
    for session_ms, code in ((999, ErrorCode.INVALID_SESSION_TIMEOUT), (1_000, ErrorCode.NONE)):
        protocols = (("range", subscription(frozenset())),)
        join = Join("g", "", None, "c", "h", session_ms, REBALANCE_MS, "consumer", protocols)
        (reply,) = mixed.join(0, session_ms, join)
        assert reply.fields["error_code"] == code


def test_what_is_being_given_up_is_nobody_elses_in_an_upgrade() -> None:
    """A cooperative member that has just been told to give a partition up still has it when the group is
    upgraded: the newcomer gets it once the member has joined again without it.
    """
    topics = Topics()
    topics.topics["t1"] = (uuid.UUID(int=1), 2)
    classic = Groups(lambda name: f"{name}-1", session_ms_min=1_000)
    modern = ConsumerGroups(topics, lambda: "made", matching)
    names = {topic[0]: name for name, topic in topics.topics.items()}
    mixed = MixedGroups(classic, modern, topics, names.get, lambda name: f"{name}-1")

    def join(owned: frozenset[Named], member: str = "c-1") -> dict[str, Any]:
        protocols = (("cooperative-sticky", subscription(owned)),)
        join = Join("g", member, None, "c", "h", SESSION_MS, REBALANCE_MS, "consumer", protocols)
        (reply,) = mixed.join(0, "token", join)
        fields: dict[str, Any] = reply.fields
        return fields

    def sync(generation: int, given: frozenset[Named]) -> frozenset[Named]:
        request = Sync("g", generation, "c-1", None, {"c-1": Assignment(given).to_bytes()})
        (reply,) = mixed.sync(0, "token", request)
        return read_assignment(reply.fields["assignment"]).parts

    def newcomer(epoch: int) -> list[int]:
        beat = Beat("g", "m", epoch, rebalance_ms=REBALANCE_MS, names=("t1",), owned=frozenset())
        fields, _ = mixed.beat(0, beat)
        mixed.check()
        assert fields["error_code"] == 0
        epochs.append(fields["member_epoch"])
        parts = fields.get("assignment", {}).get("topic_partitions", [])
        return [number for topic in parts for number in topic["partitions"]]

    epochs: list[int] = []
    joined = join(frozenset(), "")
    both = frozenset({("t1", 0), ("t1", 1)})
    sync(joined["generation_id"], both)
    assert sync(join(both)["generation_id"], frozenset({("t1", 0)})) == {("t1", 0)}
    assert newcomer(0) == []
    code = mixed.heartbeat(0, "g", modern.get("g").members["c-1"].epoch, "c-1", None)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    kept = sync(join(frozenset({("t1", 0)}))["generation_id"], frozenset())
    assert len(kept) == 1
    (number,) = newcomer(epochs[-1])
    assert {("t1", number)} | kept == both


def test_an_instance_that_changes_its_protocol_disturbs_nobody() -> None:
    """In a rolling upgrade of static members the newcomer has what its instance had, at the same epoch."""
    topics = Topics()
    topics.topics["t1"] = (uuid.UUID(int=1), 2)
    classic = Groups(lambda name: f"{name}-1", session_ms_min=1_000)
    modern = ConsumerGroups(topics, lambda: "made", matching)
    mixed = MixedGroups(classic, modern, topics, {uuid.UUID(int=1): "t1"}.get, lambda name: name)
    protocols = (("range", subscription(frozenset())),)
    join = Join("g", "", "i", "c", "h", SESSION_MS, REBALANCE_MS, "consumer", protocols)
    (joined,) = mixed.join(0, "token", join)
    generation, member = joined.fields["generation_id"], joined.fields["member_id"]
    both = Assignment(frozenset({("t1", 0), ("t1", 1)})).to_bytes()
    mixed.sync(0, "token", Sync("g", generation, member, "i", {member: both}))
    beat = Beat("g", "m", 0, "i", rebalance_ms=REBALANCE_MS, names=WANTED, owned=frozenset())
    fields, _ = mixed.beat(0, beat)
    mixed.check()
    assert fields["member_epoch"] == generation
    (topic,) = fields["assignment"]["topic_partitions"]
    assert topic["partitions"] == [0, 1]
    group = modern.get("g")
    assert group is not None
    assert group.epoch == generation


def test_a_silent_classic_member_is_fenced_after_its_own_session() -> None:
    """In a group of both protocols each of its heartbeats buys a classic member one session, no more."""
    topics = Topics()
    classic = Groups(lambda name: f"{name}-1", session_ms_min=1_000)
    modern = ConsumerGroups(topics, lambda: "made", matching)
    mixed = MixedGroups(classic, modern, topics, lambda _: None, lambda name: f"{name}-1")
    mixed.beat(0, Beat("g", "m", 0, rebalance_ms=REBALANCE_MS, names=WANTED, owned=frozenset()))
    protocols = (("range", subscription(frozenset())),)
    join = Join("g", "", None, "c", "h", 7_000, REBALANCE_MS, "consumer", protocols)
    (joined,) = mixed.join(0, "token", join)
    generation, member = joined.fields["generation_id"], joined.fields["member_id"]
    group = modern.get("g")
    assert group is not None
    mixed.sync(1_000, "token", Sync("g", generation, member, None, {}))
    mixed.tick(7_999)
    assert mixed.heartbeat(7_999, "g", generation, member, None) is ErrorCode.NONE
    mixed.tick(14_998)
    assert member in group.members
    mixed.tick(14_999)
    assert member not in group.members
