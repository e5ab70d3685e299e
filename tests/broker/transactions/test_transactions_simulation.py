"""Transactions in a world where everything goes wrong: messages are lost, repeated and late, clocks
jump, producers die and come back under their name, the process is killed and the machine loses power at
any instant.

The logs, journals and offsets are the real ones, over files in memory of which a crash leaves what
was synced and some of the rest.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from simulator import Link, Server, Simulator, repeatable, seeds

from penstock.broker.groups.offsets import Committed, GroupOffsets
from penstock.broker.storage.topics import Hosted, Topic
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.machine import OFFSETS, Change, State
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import AppendError
from penstock.log.markers import read_marker
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.protocol import ErrorCode

CONFIG = LogConfig(retention_ms=-1, timestamp_after_max_ms=1 << 60)
PLACES = [("t", 0), ("t", 1), ("u", 0)]
GROUP = "g"
TIMEOUT_MS = 3_000
TRANSACTIONAL = 0x10
RUN_MS = 40_000
RETRY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE}

Fields = dict[str, Any]


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        work.send(None)
    return stopped.value.value


@dataclass
class Promises:
    """What producers were promised.

    Attributes:
        epochs: the newest epoch that was given out, by producer id.
        written: how many records were acknowledged, by transaction, place, and first sequence.
        outcome: of a transaction: what its producer asked for, or was told.
    """

    epochs: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    written: dict[tuple[str, tuple[str, int]], dict[int, int]] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    asked: dict[str, bool] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)


class World:
    """The broker's half: requests in, answers out, syncs that take their time."""

    def __init__(self, sim: Simulator) -> None:
        self.sim, self.files, self.promises = sim, MemoryFiles(), Promises()
        self.ids = itertools.count(1)
        self.incarnation = 0
        self.server = Server(sim, self.handle)
        self.open()

    def open(self) -> None:
        """Opens what is on disk."""
        self.topics = {name: Topic(name, UUID(int=1), {}, CONFIG) for name in ("t", "u")}
        for name, index in PLACES:
            log = Partition(self.files, f"{name}-{index}", CONFIG, self.server.now_ms())
            self.topics[name].partitions.append(Hosted(self.topics[name], index, log))
        self.offsets = GroupOffsets(self.files)
        self.coordinator = Coordinator(
            self.files,
            lambda topic, index: self.topics[topic].partition(index),
            self.offsets,
            lambda: next(self.ids),
            self.sync_now,
            self.server.now_ms,
        )
        self.coordinator.recover(self.hosted())
        self.check()

    def hosted(self) -> list[Hosted]:
        return [self.topics[name].partitions[index] for name, index in PLACES]

    async def sync_now(self, wanted: Iterable[Any]) -> None:
        for one in wanted:
            task = one.begin_sync()
            task.run()
            one.end_sync(task)

    def durable(self, wanted: list[Any], then: Callable[[], None]) -> None:
        """Calls back when all is synced, one by one; never, if the machine crashes before."""
        incarnation, left = self.incarnation, list(wanted)

        def step() -> None:
            if incarnation != self.incarnation:
                return
            if left:
                finished(self.sync_now([left.pop()]))
                self.sim.after(self.sim.random.randint(0, 10), step)
            else:
                then()

        self.sim.after(self.sim.random.randint(0, 10), step)

    def crash(self) -> None:
        """The power fails, and comes back."""
        self.incarnation += 1
        self.files.crash(self.sim.random)
        self.server.restart(self.handle)
        self.open()
        self.sim.note("power failed")

    def kill(self) -> None:
        """The process ends and is started again; the page cache survives it."""
        self.incarnation += 1
        self.server.restart(self.handle)
        self.open()
        self.sim.note("killed")

    def tick(self) -> None:
        """What the broker does in the background."""
        self.coordinator.mark()
        for change in self.coordinator.machine.overdue(self.server.now_ms()):
            self.sim.note(f"{change.id} is overdue")
            self.carry_out(change, lambda: None)
        if self.sim.random.random() < 0.1:
            finished(self.coordinator.confirm())
        if self.sim.random.random() < 0.02 and not self.coordinator.machine.is_busy:
            self.coordinator.journal.rewrite(self.coordinator._bodies())
            self.offsets.journal.rewrite(self.offsets._bodies())

    def carry_out(self, change: Change | None, then: Callable[[], None]) -> None:
        if change is None:
            then()
            return
        self.coordinator.submit(change)
        if not change.is_commit_point:
            self.coordinator.settle(change)
            then()
            return

        def settle() -> None:
            assert self.coordinator.is_whole(change)
            self.coordinator.settle(change)
            then()

        awaited = self.coordinator.awaited(change)
        self.sim.random.shuffle(awaited)
        self.durable(awaited, settle)

    # -- requests ----------------------------------------------------------------------------------

    def handle(self, token: int, request: Fields) -> None:
        """Serves a request."""
        getattr(self, "on_" + request["kind"])(request, lambda **f: self.server.answer(token, f))

    def on_init(self, request: Fields, answer: Callable[..., None]) -> None:
        found = self.coordinator.machine.init(
            self.server.now_ms(), request["id"], TIMEOUT_MS, request.get("expected")
        )

        def reply() -> None:
            if not found.code:
                known = self.promises.epochs[found.producer_id]
                self.promises.epochs[found.producer_id] = max(known, found.epoch)
            answer(code=found.code, producer_id=found.producer_id, epoch=found.epoch)

        self.carry_out(found.change, reply)

    def on_add(self, request: Fields, answer: Callable[..., None]) -> None:
        who = request["id"], *request["who"]
        now_ms = self.server.now_ms()
        places, groups = request.get("places", ()), request.get("groups", ())
        found = self.coordinator.machine.add(now_ms, *who, places=places, groups=groups)
        self.carry_out(found.change, lambda: answer(code=found.code))

    def on_produce(self, request: Fields, answer: Callable[..., None]) -> None:
        place, machine, who = request["place"], self.coordinator.machine, request["who"]
        if request["joins"]:
            found = machine.add(self.server.now_ms(), request["id"], *who, places=(place,))
            if found.change is not None:
                self.coordinator.apply(found.change)
            fault = found.code or None
        else:
            fault = machine.fault_of(request["id"], *who, place=place)
        if fault is not None:
            answer(code=fault)
            return
        batch = batches.build(
            [(None, request["tag"].encode())] * request["count"],
            producer_id=who[0],
            producer_epoch=who[1],
            base_sequence=request["sequence"],
            attributes=TRANSACTIONAL,
        )
        log = self.topics[place[0]].partitions[place[1]].log
        is_first = not log.has_open_transaction(*who)
        if request["joins"] and is_first and request["sequence"]:
            answer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return
        try:
            log.append(batch, self.server.now_ms())
        except AppendError as error:
            answer(code=ErrorCode(int(error.code)))
            return
        assert who[1] >= self.promises.epochs[who[0]], "a fenced producer wrote"

        def reply() -> None:
            written = self.promises.written.setdefault((request["tag"], place), {})
            written[request["sequence"]] = request["count"]
            answer(code=ErrorCode.NONE)

        if request["later"]:
            reply()
        else:
            self.durable([log], reply)

    def on_stage(self, request: Fields, answer: Callable[..., None]) -> None:
        machine, who = self.coordinator.machine, request["who"]
        if request["joins"]:
            found = machine.add(self.server.now_ms(), request["id"], *who, groups=(GROUP,))
            if found.change is not None:
                self.coordinator.apply(found.change)
            fault = found.code or None
        else:
            fault = machine.fault_of(request["id"], *who, group=GROUP)
        if fault is not None:
            answer(code=fault)
            return
        known = machine.get(request["id"])
        assert known is not None
        offsets = {(request["id"], 0): Committed(0, -1, request["tag"], 0)}
        self.offsets.stage(known.serial, who, GROUP, offsets, self.server.now_ms())

        def reply() -> None:
            self.promises.staged.add(request["tag"])
            answer(code=ErrorCode.NONE)

        self.durable([self.offsets.journal], reply)

    def on_end(self, request: Fields, answer: Callable[..., None]) -> None:
        commit = request["commit"]
        self.promises.asked[request["tag"]] = commit
        found = self.coordinator.machine.end(
            self.server.now_ms(),
            request["id"],
            *request["who"],
            commit=commit,
            bumps=request["joins"],
        )
        if (
            commit
            and request["later"]
            and found.change is not None
            and not self.coordinator.has_records(found.change, request["total"])
        ):
            answer(code=ErrorCode.TRANSACTION_ABORTABLE)
            return

        def reply() -> None:
            if not found.code:
                if commit:
                    self.promises.committed.add(request["tag"])
                known = self.promises.epochs[found.producer_id]
                self.promises.epochs[found.producer_id] = max(known, found.epoch)
            answer(code=found.code, producer_id=found.producer_id, epoch=found.epoch)

        self.carry_out(found.change, reply)

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """What must hold after every event."""
        self.coordinator.check()
        for serial in self.offsets.staged:
            assert serial < self.coordinator.machine.next_serial

    def outcomes(self) -> tuple[dict[str, set[bool]], dict[str, dict[tuple[str, int], int]]]:
        """Of each transaction, how it ended in the partitions, and how many records are there."""
        ended: dict[str, set[bool]] = defaultdict(set)
        records: dict[str, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
        for hosted in self.hosted():
            data = bytes(hosted.log.read(0, 1 << 30)) if hosted.log.end_offset else b""
            opened: dict[int, set[str]] = defaultdict(set)
            for at, header in batches.iterate(data):
                if header.is_control:
                    marker = read_marker(data[at : at + header.size], header)
                    for tag in opened.pop(header.producer_id, ()):
                        ended[tag].add(marker.commit)
                    continue
                tag = _first_value(data[at : at + header.size])
                opened[header.producer_id].add(tag)
                records[tag][hosted.topic.name, hosted.index] += header.record_count
            assert not opened, "a transaction was left open"
        return ended, records

    def verify(self) -> int:
        """What must hold when all is over; the number of transactions that were committed."""
        for hosted in self.hosted():
            hosted.log.check()
            assert hosted.log.last_stable_offset == hosted.log.end_offset
        assert not self.offsets.staged
        for one in self.coordinator.machine:
            assert one.state in {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
        ended, records = self.outcomes()
        for tag, found in ended.items():
            assert len(found) == 1, f"{tag} was both committed and aborted"
            if True in found:
                assert self.promises.asked.get(tag), f"{tag} was committed, which nobody asked for"
        for (tag, place), written in self.promises.written.items():
            if tag in self.promises.committed:
                assert ended[tag] == {True}, f"{tag} was said to be committed"
                count = sum(written.values())
                assert records[tag][place] == count, f"{tag} lost or repeated records in {place}"
        committed = self.offsets.of(GROUP)
        for one in committed.values():
            assert self.promises.asked[one.metadata]
            assert ended.get(one.metadata, {True}) == {True}, "offsets without their records"
        return len(self.promises.committed)


def _first_value(batch: bytes) -> str:
    record = batch[batches.HEADER_BYTES :]
    return record[6 : 6 + record[5] // 2].decode()


class Producer:
    """One instance of an application; others have its name, too."""

    names = itertools.count()

    def __init__(self, world: World, transactional_id: str) -> None:
        self.world, self.id = world, transactional_id
        self.sim, self.link = world.sim, Link(world.server)
        self.joins = self.sim.random.random() < 0.6
        self.later = self.joins and self.sim.random.random() < 0.6  # commits make records durable
        self.who: tuple[int, int] | None = None
        self.sequences: dict[tuple[str, int], int] = {}
        self.is_dead = False
        self.tag = ""
        self.steps: list[Fields] = []
        self.call({"kind": "init"}, self.initialised)

    def call(self, request: Fields, then: Callable[[Fields], None]) -> None:
        """Sends a request until it is answered for good."""
        mine = {"id": self.id, "tag": self.tag, "joins": self.joins, "later": self.later}
        request = {**request, **mine, "who": self.who}

        def answered(fields: Fields | None) -> None:
            if self.is_dead:
                return
            if fields is None or fields["code"] in RETRY:
                self.sim.after(self.sim.random.randint(1, 300), send)
            else:
                then(fields)

        def send() -> None:
            if not self.is_dead:
                self.link.call(request, answered, 2_000)

        send()

    def initialised(self, fields: Fields) -> None:
        if fields["code"]:
            self.die(f"was told {fields['code'].name}")
            return
        self.who = fields["producer_id"], fields["epoch"]
        self.sequences.clear()
        self.begin()

    def begin(self) -> None:
        """Decides on a transaction, and takes its first step."""
        random = self.sim.random
        self.tag = f"x{next(self.names)}"
        places = random.sample(PLACES, random.randint(0, 3))
        self.steps = []
        if not self.joins and places:
            self.steps.append({"kind": "add", "places": places})
        for place in places * random.randint(1, 2):
            self.steps.append({"kind": "produce", "place": place, "count": random.randint(1, 3)})
        if random.random() < 0.5 or not places:
            if not self.joins:
                self.steps.append({"kind": "add", "groups": [GROUP]})
            self.steps.append({"kind": "stage"})
        self.steps.append({"kind": "end", "commit": random.random() < 0.7})
        self.next()

    def next(self) -> None:
        step = self.steps.pop(0)
        if step["kind"] == "produce":
            step["sequence"] = self.sequences.get(step["place"], 0)
        step["total"] = sum(self.sequences.values())
        self.call(step, lambda fields: self.done(step, fields))

    def done(self, step: Fields, fields: Fields) -> None:
        """A step was answered."""
        code = fields["code"]
        if code:
            self.die(f"was told {code.name} at {step['kind']} of {self.tag}")
            return
        if step["kind"] == "produce":
            place = step["place"]
            self.sequences[place] = self.sequences.get(place, 0) + step["count"]
        if self.steps:
            self.next()
            return
        if self.joins:
            self.who = fields["producer_id"], fields["epoch"]
            self.sequences.clear()
        if self.sim.random.random() < 0.05 or self.sim.now_ms > RUN_MS:
            self.die("ended")
        else:
            self.sim.after(self.sim.random.randint(0, 500), self.begin)

    def die(self, why: str) -> None:
        """This instance is gone; another will come."""
        self.is_dead = True
        self.sim.note(f"{self.id} {self.who} {why}")

        def come() -> None:
            if self.sim.now_ms < RUN_MS:
                Producer(self.world, self.id)

        self.sim.after(self.sim.random.randint(0, 2_000), come)


def chaos(world: World) -> None:
    """What else happens, now and then."""
    sim = world.sim

    def background() -> None:
        world.tick()
        sim.after(100, background)

    def trouble() -> None:
        kind = sim.random.random()
        if kind < 0.35:
            world.crash()
        elif kind < 0.5:
            world.kill()
            if sim.random.random() < 0.5:  # before all is written again that was said
                sim.after(sim.random.randint(0, 300), world.crash)
        elif kind < 0.7:
            world.server.jump(sim.random.choice([-5_000, -500, 500, 5_000]))
        else:
            Producer(world, f"id{sim.random.randint(0, 2)}")
        if sim.now_ms < RUN_MS:
            sim.after(sim.random.randint(100, 5_000), trouble)

    sim.after(100, background)
    sim.after(1_000, trouble)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", seeds(10))
def test_atomic_whatever_happens(seed: int) -> None:
    """Every transaction counts everywhere or nowhere, fenced producers never write, and what was
    prepared is completed.
    """
    with repeatable(seed):
        sim = Simulator(seed)
        world = World(sim)
        for n in range(3):
            Producer(world, f"id{n}")
        chaos(world)
        sim.run(RUN_MS, world.check)
        sim.calm()
        sim.run(RUN_MS + 60_000, world.check)
        world.crash()
        sim.run(RUN_MS + 90_000, world.check)
        world.verify()


def test_much_is_committed() -> None:
    """The simulation does what it is for: transactions of all kinds get through."""
    sim = Simulator(1)
    world = World(sim)
    for n in range(3):
        Producer(world, f"id{n}")
    chaos(world)
    sim.run(RUN_MS, world.check)
    assert len(world.promises.committed) > 20
    assert len(world.promises.asked) > len(world.promises.committed)
    assert world.incarnation > 2
    assert world.offsets.of(GROUP)
    assert OFFSETS not in PLACES
