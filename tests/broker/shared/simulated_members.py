"""Members of consumer groups for simulations: what comes and goes, and how members of either protocol
behave (see `simulator` for what goes wrong).
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Final, Protocol

from simulator import Link, Server, Simulator

from penstock.broker.groups.assignors import Part
from penstock.broker.groups.classic import Groups
from penstock.broker.groups.classic_members import Join, Reply
from penstock.broker.groups.consumer_members import Beat
from penstock.broker.groups.mixed import MixedGroups
from penstock.wire.protocol import ErrorCode

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


class ClassicMember:
    """Joins, syncs, beats. What it does with its partitions is a subclass's."""

    leaves: ClassVar = 0.3
    """How often it says so when it goes."""

    def __init__(self, sim: Simulator, server: Server, instance: str | None) -> None:
        self.sim = sim
        self.link = Link(server)
        self.instance = instance
        self.member, self.generation = "", -1
        self.is_dead = False

    # a subclass's own: its protocol's name and metadata, what a leader answers with, what is done
    # with an assignment, after each heartbeat, when it is refused, and before it joins again

    def protocol(self) -> tuple[str, bytes]:
        raise NotImplementedError

    def sync(self, members: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def assigned(self, assignment: bytes) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def refused(self, fields: dict[str, Any]) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        raise NotImplementedError

    def die(self) -> None:
        self.is_dead = True
        if self.member and self.sim.random.random() < self.leaves:
            self.call("leave", self.member, lambda _: None)
        else:
            self.link.break_off()

    def call(self, kind: str, body: Any, then: Callable[[dict[str, Any]], None]) -> None:
        def answered(fields: dict[str, Any] | None) -> None:
            if self.is_dead:
                return
            if fields is None:
                self.sim.after(100, self.prepare if kind != "beat" else self.beat)
            else:
                then(fields)

        patience_ms = REBALANCE_MS + REQUEST_MS if kind == "join" else REQUEST_MS
        self.link.call((kind, body), answered, patience_ms)

    def join(self) -> None:
        if self.is_dead:
            return
        join = Join(
            "g",
            self.member,
            self.instance,
            "c",
            "h",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (self.protocol(),),
            requires_member_id=True,
        )
        self.call("join", join, self.joined)

    def joined(self, fields: dict[str, Any]) -> None:
        match fields["error_code"]:
            case ErrorCode.NONE:
                self.member, self.generation = fields["member_id"], fields["generation_id"]
                self.sync(fields["members"])
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member = fields["member_id"]
                self.join()
            case _:
                self.refused(fields)

    def synced(self, fields: dict[str, Any]) -> None:
        if fields["error_code"]:
            self.refused(fields)
        else:
            self.assigned(fields["assignment"])

    def beat(self) -> None:
        if not self.is_dead:
            self.call("beat", (self.generation, self.member, self.instance), self.beaten)

    def beaten(self, fields: dict[str, Any]) -> None:
        if fields["error_code"]:
            self.refused(fields)
            return
        self.commit()
        self.sim.after(BEAT_MS, self.beat)


def carried_out(
    groups: Groups | MixedGroups, now_ms: int, token: int, request: tuple[str, Any]
) -> list[Reply]:
    """What a coordinator replies to a classic member."""
    match request:
        case ("join", join):
            return groups.join(now_ms, token, join)
        case ("sync", sync):
            return groups.sync(now_ms, token, sync)
        case ("beat", (generation, member, instance)):
            code = groups.heartbeat(now_ms, "g", generation, member, instance)
            return [Reply(token, {"error_code": code})]
        case (_, member):
            code, replies = groups.leave(now_ms, "g", member, None)
            return [*replies, Reply(token, {"error_code": code})]
    raise AssertionError(request)


# -- the protocol of KIP-848 ---------------------------------------------------------------------


class ModernWorld(Protocol):
    """Who hears of what a member does."""

    sim: Simulator
    server: Server

    def commit(self, client: Any) -> None: ...


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
        elif fields["error_code"] == ErrorCode.UNRELEASED_INSTANCE_ID:
            self.later(1000)
        elif fields["error_code"]:
            assert fields["error_code"] in {
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
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
