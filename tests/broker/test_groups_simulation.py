"""Consumer groups of both protocols in a world where everything goes wrong (see `simulator`)."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

import pytest
from simulator import Link, Server, Simulator, repeatable, seeds

from penstock.broker.assignors import Part
from penstock.broker.consumer_groups import ConsumerGroups
from penstock.broker.consumer_members import Beat, Timing
from penstock.broker.groups import Groups
from penstock.broker.members import GroupState, Join, Reply, Sync
from penstock.broker.topic_patterns import matching
from penstock.wire.kafka import ErrorCode

SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 15_000
BEAT_MS: Final = 3_000
REQUEST_MS: Final = 6_000
STORMY_MS: Final = 240_000
CALM_MS: Final = 150_000
CLIENTS: Final = 5
PARTITIONS: Final = 7
Journal = list[tuple[str, Any]]


class Topics:
    """A catalog whose topics come, grow and go."""

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, tuple[uuid.UUID, int]] = {}

    def names(self) -> Iterable[str]:
        return self.topics

    def find(self, name: str) -> tuple[uuid.UUID, int] | None:
        return self.topics.get(name)

    def change(self, rng: random.Random) -> None:
        name = rng.choice(["t1", "t2", "t3"])
        self.version += 1
        topic = self.topics.get(name)
        if topic is None:
            self.topics[name] = (uuid.UUID(int=rng.getrandbits(128)), rng.randint(1, 4))
        elif rng.random() < 0.5:
            self.topics[name] = (topic[0], topic[1] + 1)
        else:
            del self.topics[name]


class Client(Protocol):
    """A member, as the world sees it."""

    def die(self) -> None: ...


class World:
    """Clients that come and go, a coordinator that restarts, a clock that jumps."""

    def __init__(self, sim: Simulator, server: Server, spawn: Callable[[int], Client]) -> None:
        self.sim, self.server, self.spawn = sim, server, spawn
        self.clients: dict[int, Client] = {}
        self.is_calm = False
        self._numbers = itertools.count()
        self.restart: Callable[[], None] = lambda: None
        self.shake: Callable[[], None] = lambda: None
        for _ in range(3):
            self.add()
        sim.after(1000, self._mischief)

    def add(self) -> None:
        number = next(self._numbers)
        self.sim.note(f"client {number} starts")
        self.clients[number] = self.spawn(number)

    def _mischief(self) -> None:
        if self.is_calm:
            return
        rng = self.sim.random
        match rng.choice(["add", "die", "die", "restart", "down", "jump", "shake", "shake"]):
            case "add" if len(self.clients) < CLIENTS:
                self.add()
            case "die" if self.clients:
                number = rng.choice(list(self.clients))
                self.sim.note(f"client {number} dies")
                self.clients.pop(number).die()
            case "restart":
                self.restart()
            case "down":
                self.server.is_down = True
                self.sim.after(rng.randint(100, 4000), self._up)
            case "jump":
                self.server.jump(rng.choice([-2_000, 500, 5_000, 2 * SESSION_MS]))
            case "shake":
                self.shake()
            case _:
                pass
        self.sim.after(rng.randint(200, 8_000), self._mischief)

    def _up(self) -> None:
        self.server.is_down = False
        self.restart()

    def run(self, check: Callable[[], None]) -> None:
        self.sim.run(STORMY_MS, check)
        self.is_calm, self.server.is_down = True, False
        self.sim.calm()
        while len(self.clients) < 2:
            self.add()
        self.sim.run(STORMY_MS + CALM_MS, check)


# -- the classic protocol ------------------------------------------------------------------------


class ClassicClient:
    """Joins, syncs, beats; gives everything up before it joins again. The leader deals the
    partitions out in turn.
    """

    def __init__(self, world: ClassicWorld, number: int) -> None:
        self.world, self.sim = world, world.sim
        self.link = Link(world.server)
        self.instance = f"static-{number}" if number % 3 == 0 else None
        self.member, self.generation = "", -1
        self.owned: frozenset[int] = frozenset()
        self.is_dead = False
        self.join()

    def die(self) -> None:
        self.is_dead = True
        if self.member and self.sim.random.random() < 0.3:
            self.call("leave", self.member, lambda _: None)
        else:
            self.link.break_off()

    def call(self, kind: str, body: Any, then: Callable[[dict[str, Any]], None]) -> None:
        def answered(fields: dict[str, Any] | None) -> None:
            if self.is_dead:
                return
            if fields is None:
                self.sim.after(100, self.join if kind != "beat" else self.beat)
            else:
                then(fields)

        patience_ms = REBALANCE_MS + REQUEST_MS if kind == "join" else REQUEST_MS
        self.link.call((kind, body), answered, patience_ms)

    def join(self) -> None:
        if self.is_dead:
            return
        self.owned = frozenset()
        protocols = (("range", b"m"),)
        self.call(
            "join",
            Join(
                "g",
                self.member,
                self.instance,
                "c",
                "h",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                protocols,
                requires_member_id=True,
            ),
            self.joined,
        )

    def joined(self, fields: dict[str, Any]) -> None:
        match fields["error_code"]:
            case ErrorCode.none:
                self.member, self.generation = fields["member_id"], fields["generation_id"]
                self.sync([one["member_id"] for one in fields["members"]])
            case ErrorCode.member_id_required:
                self.member = fields["member_id"]
                self.join()
            case _:
                self.refused(fields)

    def sync(self, members: list[str]) -> None:
        assignments = {
            one: bytes(range(at, PARTITIONS, len(members))) for at, one in enumerate(members)
        }
        sync = Sync("g", self.generation, self.member, self.instance, assignments)
        self.call("sync", sync, self.synced)

    def synced(self, fields: dict[str, Any]) -> None:
        if fields["error_code"]:
            self.refused(fields)
            return
        self.owned = frozenset(fields["assignment"])
        self.world.given(self)
        self.beat()

    def beat(self) -> None:
        if not self.is_dead:
            self.call("beat", (self.generation, self.member, self.instance), self.beaten)

    def beaten(self, fields: dict[str, Any]) -> None:
        if fields["error_code"]:
            self.refused(fields)
            return
        self.world.commit(self)
        self.sim.after(BEAT_MS, self.beat)

    def refused(self, fields: dict[str, Any]) -> None:
        self.owned = frozenset()
        if fields["error_code"] != ErrorCode.rebalance_in_progress:
            self.member, self.generation = "", -1
        self.sim.after(100, self.join)


class ClassicWorld:
    """A classic coordinator, and what must hold of it."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.ids = itertools.count()
        self.journal: Journal = []
        self.owners: dict[tuple[int, int], str] = {}
        self.last_generation = 0
        self.groups = self.make()
        self.server = Server(sim, self.handle)
        self.world = World(sim, self.server, lambda number: ClassicClient(self, number))
        self.world.restart = self.restart
        sim.after(100, self.tick)

    def make(self) -> Groups:
        return Groups(lambda name: f"{name}-{next(self.ids)}")

    def restart(self) -> None:
        self.groups = self.make()
        for group_id, change in self.journal:
            self.groups.restore(self.server.now_ms(), group_id, change)
        self.groups.restored()
        group = self.groups.get("g")
        self.last_generation = group.generation if group is not None else 0
        self.server.restart(self.handle)

    def handle(self, token: int, request: tuple[str, Any]) -> None:
        now_ms, groups = self.server.now_ms(), self.groups
        match request:
            case ("join", join):
                self.answer(groups.join(now_ms, token, join))
            case ("sync", sync):
                self.answer(groups.sync(now_ms, token, sync))
            case ("beat", (generation, member, instance)):
                code = groups.heartbeat(now_ms, "g", generation, member, instance)
                self.answer([Reply(token, {"error_code": code})])
            case (_, member):
                code, replies = groups.leave(now_ms, "g", member, None)
                self.answer([*replies, Reply(token, {"error_code": code})])

    def answer(self, replies: list[Reply]) -> None:
        self.journal.extend(json.loads(json.dumps(one)) for one in self.groups.take_changes())
        for token, fields in replies:
            self.server.answer(token, fields)

    def tick(self) -> None:
        self.answer(self.groups.tick(self.server.now_ms()))
        self.sim.after(100, self.tick)

    def given(self, client: ClassicClient) -> None:
        """A partition has one owner in a generation that was kept."""
        group = self.groups.get("g")
        if group is None or group.generation != client.generation:
            return  # it has passed
        for part in client.owned:
            owner = self.owners.setdefault((client.generation, part), client.member)
            assert owner == client.member or client.instance, f"{part} is {owner}'s, too"

    def commit(self, client: ClassicClient) -> None:
        code = self.groups.commit_fault(
            self.server.now_ms(), "g", client.generation, client.member, client.instance
        )
        group = self.groups.get("g")
        if code is None and group is not None and group.state is GroupState.STABLE:
            assert client.owned == frozenset(group.members[client.member].assignment)

    def check(self) -> None:
        self.groups.check()
        group = self.groups.get("g")
        if group is None:
            return
        held = [one.join_token or one.sync_token for one in group.members.values()]
        assert {token for token in held if token is not None} == self.server.unanswered
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        assert len(group.members) + len(group.promised) <= 60
        if group.state is GroupState.STABLE:
            given = [part for one in group.members.values() for part in one.assignment]
            assert len(given) == len(set(given))

    def check_at_last(self) -> None:
        group = self.groups.get("g")
        assert group is not None
        assert group.state is GroupState.STABLE
        clients = [one for one in self.world.clients.values() if isinstance(one, ClassicClient)]
        assert {one.member for one in clients} == group.members.keys()
        assert sorted(part for one in clients for part in one.owned) == list(range(PARTITIONS))
        assert not group.promised
        assert not self.server.unanswered


@pytest.mark.parametrize("seed", seeds(12))
def test_classic_groups(seed: int) -> None:
    """Whatever happens, a partition has one reader in a generation; when it has calmed down, the
    clients that live share all of them.
    """
    with repeatable(seed):
        world = ClassicWorld(Simulator(seed))
        world.world.run(world.check)
        world.check_at_last()


# -- the protocol of KIP-848 ---------------------------------------------------------------------


class ModernClient:
    """Beats; gives up what it is told to, which takes a while, and says so."""

    def __init__(self, world: ModernWorld, number: int) -> None:
        self.world, self.sim = world, world.sim
        self.link = Link(world.server)
        self.id = f"m{number}"
        self.instance = f"static-{number % 4}" if number % 3 == 0 else None
        self.by_regex = number % 2 == 0
        self.epoch = 0
        self.owned: frozenset[Part] = frozenset()
        self.is_full = True
        self.is_dead = self.is_revoking = False
        self.next: Any = None
        self.beat()

    def die(self) -> None:
        self.is_dead = True
        self.next.cancel()
        rng = self.sim.random
        if self.epoch > 0 and rng.random() < 0.5:
            epoch = -2 if self.instance is not None and rng.random() < 0.5 else -1
            beat = Beat("g", self.id, epoch, instance_id=self.instance)
            self.link.call(beat, lambda _: None, REQUEST_MS)
        else:
            self.link.break_off()

    def beat(self) -> None:
        if self.is_dead:
            return
        self.next = self.sim.after(3_600_000, lambda: None)
        beat = Beat("g", self.id, self.epoch, instance_id=self.instance, owned=self.owned)
        if self.epoch == 0 or self.is_full:
            wanted = {"regex": "t[0-9]"} if self.by_regex else {"names": ("t1", "t2")}
            beat = replace(beat, rebalance_ms=REBALANCE_MS, **wanted)  # type: ignore[arg-type]
        elif self.sim.random.random() < 0.7:
            beat = replace(beat, owned=None)
        self.link.call(beat, self.beaten, REQUEST_MS)

    def beaten(self, fields: dict[str, Any] | None) -> None:
        if self.is_dead:
            return
        if fields is None:
            self.is_full = True
            self.later(100)
        elif fields["error_code"] == ErrorCode.unreleased_instance_id:
            self.later(1000)
        elif fields["error_code"]:
            assert fields["error_code"] in {
                ErrorCode.fenced_member_epoch,
                ErrorCode.unknown_member_id,
                ErrorCode.fenced_instance_id,
                ErrorCode.group_id_not_found,
            }, fields
            self.epoch, self.owned, self.is_full = 0, frozenset(), True
            self.later(100)
        else:
            self.epoch, self.is_full = fields["member_epoch"], False
            self.take(fields.get("assignment"))

    def take(self, assignment: dict[str, Any] | None) -> None:
        if assignment is None:
            self.world.commit(self)
            self.later(BEAT_MS)
            return
        wanted = frozenset(
            (one["topic_id"], number)
            for one in assignment["topic_partitions"]
            for number in one["partitions"]
        )
        if self.owned <= wanted:
            self.owned = wanted
            self.later(BEAT_MS)
            return
        # Giving up takes its time: the last records are worked on, offsets are committed.
        slow = self.sim.random.random() < 0.1
        delay_ms = self.sim.random.randint(0, 2 * REBALANCE_MS if slow else 2_000)
        epoch = self.epoch

        def give_up() -> None:
            if self.epoch == epoch and not self.is_dead:
                self.world.commit(self)
                self.owned &= wanted
                self.is_full = True
                self.beat()

        self.next = self.sim.after(delay_ms, give_up)

    def later(self, delay_ms: int) -> None:
        self.next = self.sim.after(delay_ms, self.beat)


class ModernWorld:
    """A coordinator of KIP-848, and what must hold of it."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.journal: Journal = []
        self.topics = Topics()
        for _ in range(4):
            self.topics.change(sim.random)
        self.groups = self.make()
        self.server = Server(sim, self.handle)
        self.world = World(sim, self.server, lambda number: ModernClient(self, number))
        self.world.restart = self.restart
        self.world.shake = lambda: self.topics.change(sim.random)
        sim.after(100, self.tick)

    def make(self) -> ConsumerGroups:
        return ConsumerGroups(
            self.topics, lambda: "never", matching, lambda _: Timing(SESSION_MS, BEAT_MS)
        )

    def restart(self) -> None:
        self.groups = self.make()
        for group_id, change in self.journal:
            self.groups.restore(self.server.now_ms(), group_id, change)
        self.groups.restored()
        self.server.restart(self.handle)

    def save(self) -> None:
        self.journal.extend(json.loads(json.dumps(one)) for one in self.groups.take_changes())

    def handle(self, token: int, beat: Beat) -> None:
        answer = self.groups.heartbeat(self.server.now_ms(), beat)
        self.save()
        self.server.answer(token, answer)

    def tick(self) -> None:
        self.groups.tick(self.server.now_ms())
        self.save()
        self.sim.after(100, self.tick)

    def live(self) -> list[ModernClient]:
        return [one for one in self.world.clients.values() if isinstance(one, ModernClient)]

    def commit(self, client: ModernClient) -> None:
        """Whoever may commit a partition has it."""
        for part in client.owned:
            code = self.groups.commit_fault("g", client.epoch, client.id, [part])
            group = self.groups.get("g")
            if code is None and group is not None:
                assert group.owners.get(part, client.id) == client.id

    def check(self) -> None:
        self.groups.check()
        group = self.groups.get("g")
        if group is None:
            return
        assert len(group.members) <= 60
        assert len(group.changed) == 0
        for client in self.live():
            member = group.members.get(client.id)
            if member is not None and client.epoch > 0 and member.epoch > 0:
                # So clients that aren't fenced never share a partition.
                has = member.assigned.keys() | member.revoking.keys()
                assert client.owned <= has, f"{client.id} reads what isn't its own"

    def check_at_last(self) -> None:
        group = self.groups.get("g")
        assert group is not None
        clients = self.live()
        assert {one.id for one in clients} == group.members.keys()
        owned = [part for one in clients for part in one.owned]
        names = {"t1", "t2"} | ({"t3"} if any(one.by_regex for one in clients) else set())
        wanted = [
            (topic, number)
            for name, (topic, count) in self.topics.topics.items()
            if name in names
            for number in range(count)
        ]
        assert sorted(owned) == sorted(wanted)
        assert group.state.value == "Stable"
        assert not self.server.unanswered


@pytest.mark.parametrize("seed", seeds(12))
def test_consumer_groups(seed: int) -> None:
    """Whatever happens, no two clients that may commit share a partition; when it has calmed down,
    the clients that live share all of them.
    """
    with repeatable(seed):
        world = ModernWorld(Simulator(seed))
        world.world.run(world.check)
        world.check_at_last()
