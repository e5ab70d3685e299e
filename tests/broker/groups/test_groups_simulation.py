"""Consumer groups of both protocols in a world where everything goes wrong (see `simulator`)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from simulated_members import (
    BEAT_MS,
    PARTITIONS,
    SESSION_MS,
    ClassicMember,
    Journal,
    ModernClient,
    Topics,
    World,
    carried_out,
)
from simulator import Server, Simulator, repeatable, seeds

from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import GroupState, Reply, Sync
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer_members import Beat, Timing
from penstock.broker.storage.topic_patterns import matching
from penstock.wire.protocol import ErrorCode

# -- the classic protocol ------------------------------------------------------------------------


class ClassicClient(ClassicMember):
    """Gives everything up before it joins again. The leader deals the partitions out in turn."""

    def __init__(self, world: ClassicWorld, number: int) -> None:
        super().__init__(world.sim, world.server, f"static-{number}" if number % 3 == 0 else None)
        self.world = world
        self.owned: frozenset[int] = frozenset()
        self.join()

    def protocol(self) -> tuple[str, bytes]:
        return "range", b"m"

    def join(self) -> None:
        if not self.is_dead:
            self.owned = frozenset()
        super().join()

    def prepare(self) -> None:
        self.join()

    def sync(self, members: list[dict[str, Any]]) -> None:
        assignments = {
            one["member_id"]: bytes(range(at, PARTITIONS, len(members)))
            for at, one in enumerate(members)
        }
        sync = Sync("g", self.generation, self.member, self.instance, assignments)
        self.call("sync", sync, self.synced)

    def assigned(self, assignment: bytes) -> None:
        self.owned = frozenset(assignment)
        self.world.given(self)
        self.beat()

    def commit(self) -> None:
        self.world.commit(self)

    def refused(self, fields: dict[str, Any]) -> None:
        self.owned = frozenset()
        if fields["error_code"] != ErrorCode.REBALANCE_IN_PROGRESS:
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
        self.answer(carried_out(self.groups, self.server.now_ms(), token, request))

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
