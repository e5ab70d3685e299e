"""Share groups in a world where everything goes wrong: the real handlers, state machines, journal
and dead letters, over files in memory that lose what was not synced.

Workers die, answers are lost, clocks jump, the broker crashes in the middle of what it does, with
and without a power failure. After every event the invariants of all state machines hold, and what
workers were told agrees with a model that knows only what was said.
"""

from __future__ import annotations

import asyncio
import errno
import random
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from simulator import repeatable, seeds

from penstock.broker.groups.registry import SHARE
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.handlers import share as handlers
from penstock.broker.handlers.base import Call
from penstock.broker.share.model import State
from penstock.broker.share.shares import Shares
from penstock.broker.storage.topics import Topics
from penstock.log.disk.journal import Journal
from penstock.log.disk.memory import MemoryFiles
from penstock.wire import batches
from penstock.wire.protocol import ErrorCode

LIMIT = 3
LOCK_MS = 2_000
WALL_AHEAD_MS = 10**12
"""How far the wall clock is ahead of the other, give or take an hour: delays are kept by it."""
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": str(LIMIT),
    "share.record.lock.duration.ms": str(LOCK_MS),
    "errors.deadletterqueue.topic.name": "dlq.t",
    "errors.deadletterqueue.copy.record.enable": "true",
}
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Registry:
    """All groups are share groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def kind(self, group_id: str) -> str | None:
        """No group is of another kind."""
        return SHARE if self._broker.share.has(group_id) else None


class Flusher:
    """Makes durable at once, but lets others go first: so a crash may come between.

    The disk is full at times when a journal is synced, and has room again before anybody looks.
    """

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    async def make_durable(self, wanted: Iterable[Any]) -> None:
        """Syncs."""
        logs = [one for one in wanted if one.is_dirty and one.failure is None]
        await asyncio.sleep(0)
        for one in logs:
            task = one.begin_sync()
            if isinstance(one, Journal) and self._random.random() < 0.1:
                one.end_sync(task, OSError(errno.ENOSPC, "full"))
                assert one.repair()
                continue
            task.run()
            one.end_sync(task)
        await asyncio.sleep(0)


class Broker:
    """What share groups need of a broker, over files in memory."""

    def __init__(self, files: MemoryFiles, world: World) -> None:
        self.world = world
        self.connections: set[object] = set()
        self.registry = Registry(self)
        self.flusher = Flusher(world.random)
        self.tasks: list[asyncio.Task[None]] = []
        self.loop = asyncio.get_running_loop()
        self.topics = Topics(files, self.clock_ms)
        settings = GroupSettings(files)
        if "g" not in settings.groups():
            settings.replace("g", SETTINGS | world.more)
        self.share = Shares(
            files,
            settings,
            self.topics,
            make_durable=self.flusher.make_durable,
            new_producer_id=self.next_producer_id,
            clock_ms=self.clock_ms,
            now_ms=self.now_ms,
            spawn=self.spawn,
        )

    def now_ms(self) -> int:
        """The time that nobody sets back, since this broker's start."""
        return self.world.now_ms - self.world.started_ms + 1

    def clock_ms(self) -> int:
        """The wall clock."""
        return self.world.now_ms + self.world.wall_ahead_ms

    def next_producer_id(self) -> int:
        """An id that was never given out."""
        self.world.producer_ids += 1
        return self.world.producer_ids

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something beside."""
        self.tasks.append(self.loop.create_task(work))


@dataclass
class Worker:
    """A client: what it has, as far as it knows."""

    connection: object = field(default_factory=object)
    id: str = field(default_factory=lambda: "")
    member_epoch: int = 0
    session_epoch: int = 0
    held: dict[int, int] = field(default_factory=dict)


class World:
    """Workers, a broker, and what was said between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = MemoryFiles()
        self.now_ms = self.started_ms = 1_000_000
        self.wall_ahead_ms = WALL_AHEAD_MS
        self.producer_ids = 0
        order = self.random.choice(["none", "none", "key"])
        self.more = {
            "penstock.share.order": order,
            "penstock.share.retry.backoff.ms": self.random.choice(["0", "300"]),
        }
        self.accepted: set[int] = set()
        self.produced = 0
        self.workers: list[Worker] = []
        self.deliveries = Counter[int]()
        self.broker = Broker(self.files, self)
        for name, settings in (
            ("t", {}),
            ("dlq.t", {"errors.deadletterqueue.group.enable": "true"}),
        ):
            self.broker.topics.create(name, 1, settings)

    @property
    def log(self) -> Any:
        """The jobs."""
        topic = self.broker.topics.get("t")
        assert topic is not None
        return topic.partitions[0].log

    async def ask(self, worker: Worker, key: int, fields: dict[str, Any]) -> dict[str, Any] | None:
        """A request; None where it or its answer is lost, and with it the connection."""
        fate = self.random.random()
        if fate < 0.03:
            self.drop(worker)
            return None
        call = Call(
            cast("Any", self.broker), key, 2, "c", "h", ("h", 1), cast("Any", worker.connection)
        )
        api = next(one for one in handlers.APIS if one.key == key)
        answer = api.handle(call, fields)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if fate < 0.06:
            self.drop(worker)
            return None
        return {"error_code": 0} | cast("dict[str, Any]", answer)

    def drop(self, worker: Worker) -> None:
        """A worker's connection breaks: it starts over, knowing nothing."""
        self.broker.connections.discard(worker.connection)
        worker.connection, worker.session_epoch, worker.held = object(), 0, {}
        self.broker.connections.add(worker.connection)

    # -- what happens ------------------------------------------------------------------------------

    def produce(self) -> None:
        """Some records, durable."""
        count = self.random.randint(1, 5)
        pairs = [
            (b"k%d" % self.random.randrange(3), b"%d" % (self.produced + i)) for i in range(count)
        ]
        self.log.append(batches.build(pairs), self.broker.clock_ms())
        self.log.sync()
        self.produced += count

    async def join(self) -> None:
        """A worker more."""
        if len(self.workers) < 4:
            worker = Worker(id=str(uuid.UUID(int=self.random.getrandbits(128))))
            self.broker.connections.add(worker.connection)
            self.workers.append(worker)
            await self.beat(worker)

    async def beat(self, worker: Worker) -> None:
        """A heartbeat."""
        fields = {
            "group_id": "g",
            "member_id": worker.id,
            "member_epoch": worker.member_epoch,
            "rack_id": None,
            "subscribed_topic_names": ["t"] if worker.member_epoch == 0 else None,
        }
        answer = await self.ask(worker, handlers.APIS[0].key, fields)
        if answer is not None:
            worker.member_epoch = 0 if answer["error_code"] else answer["member_epoch"]

    async def leave(self, worker: Worker) -> None:
        """A worker leaves the group; what it has stays its own, as its session isn't over."""
        before = self.acquired(worker)
        fields = {
            "group_id": "g",
            "member_id": worker.id,
            "member_epoch": -1,
            "rack_id": None,
            "subscribed_topic_names": None,
        }
        answer = await self.ask(worker, handlers.APIS[0].key, fields)
        worker.member_epoch = 0
        assert self.acquired(worker) == before or answer is None

    def acquired(self, worker: Worker) -> list[int]:
        """The records that a worker has."""
        return [
            offset
            for held in self.broker.share.of("g")
            for run in held.state.runs
            if run.member == worker.id
            for offset in range(run.first, run.last + 1)
        ]

    async def close(self, worker: Worker) -> None:
        """A worker ends its session; what it has is given back."""
        if worker.session_epoch:
            worker.session_epoch = -1
            answer = await self.ask(worker, 79, self.session(worker) | {"topics": []})
            worker.session_epoch, worker.held = 0, {}
            assert answer is None or answer["error_code"] or not self.acquired(worker)

    def session(self, worker: Worker) -> dict[str, Any]:
        return {
            "group_id": "g",
            "member_id": worker.id,
            "share_session_epoch": worker.session_epoch,
            "is_renew_ack": False,
        }

    def topics(self, acks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        topic = self.broker.topics.get("t")
        assert topic is not None
        part = {"partition_index": 0, "acknowledgement_batches": acks}
        return [{"topic_id": topic.id, "partitions": [part]}]

    async def fetch(self, worker: Worker) -> None:
        """A worker takes records, and may settle others with the same request."""
        acks, settled = self.acks(worker) if self.random.random() < 0.3 else ([], {})
        acks = acks if worker.session_epoch else []
        settled = settled if acks else {}
        if any(kind == RENEW for kind in settled.values()):
            return
        fields = self.session(worker) | {
            "max_wait": 0,
            "max_bytes": self.random.choice([1, 1 << 20]),
            "max_records": self.random.randint(1, 6),
            "share_acquire_mode": self.random.randint(0, 1),
            "topics": self.topics(acks),
            "forgotten_topics_data": [],
        }
        answer = await self.ask(worker, 78, fields)
        if answer is None:
            return
        if answer["error_code"]:
            self.drop(worker)
            return
        worker.session_epoch += 1
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                self.note(worker, settled, part["acknowledge_error_code"])
                assert part["error_code"] == 0
                for one in part["acquired_records"]:
                    for offset in range(one["first_offset"], one["last_offset"] + 1):
                        self.deliver(worker, offset, one["delivery_count"])

    def deliver(self, worker: Worker, offset: int, count: int) -> None:
        """A record was handed out: nobody else has it, nobody has accepted it."""
        self.deliveries[offset] += 1
        assert offset not in self.accepted, f"{offset} was accepted, and came again"
        assert 1 <= count <= LIMIT, (offset, count)
        run = self.state.state_of(offset)
        if run.state is State.ACQUIRED:
            assert run.member == worker.id
        for other in self.workers:
            has = self.state.state_of(offset).member == other.id
            assert other is worker or not has, f"{offset} has two workers"
        worker.held[offset] = count

    def acks(self, worker: Worker) -> tuple[list[dict[str, Any]], dict[int, int]]:
        """Acknowledgements of some of what a worker has."""
        chosen = [one for one in sorted(worker.held) if self.random.random() < 0.6]
        kinds = [ACCEPT, ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, RENEW]
        settled = {offset: self.random.choice(kinds) for offset in chosen}
        batch = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
            | (
                {"penstock_delay": self.random.randint(1, 3000)}
                if self.random.random() < 0.3
                else {}
            )
            for offset, kind in settled.items()
        ]
        return batch, settled

    async def settle(self, worker: Worker) -> None:
        """A worker says what became of records."""
        acks, settled = self.acks(worker)
        if not acks or not worker.session_epoch:
            return
        answer = await self.ask(worker, 79, self.session(worker) | {"topics": self.topics(acks)})
        if answer is None:
            return
        if answer["error_code"]:
            self.drop(worker)
            return
        worker.session_epoch += 1
        self.note(worker, settled, answer["responses"][0]["partitions"][0]["error_code"])

    def note(self, worker: Worker, settled: dict[int, int], code: int) -> None:
        """What a worker said was taken, or it wasn't."""
        for offset, kind in settled.items():
            if kind != RENEW or code:
                worker.held.pop(offset, None)
            if kind == ACCEPT and not code:
                self.accepted.add(offset)
            if code:
                assert code == ErrorCode.INVALID_RECORD_STATE, code

    @property
    def state(self) -> Any:
        """The only share partition's state."""
        (held,) = self.broker.share.of("g")
        return held.state

    async def pass_time(self, ms: int) -> None:
        """Time passes, in ticks."""
        self.now_ms += ms
        self.broker.share.tick(self.broker.connections)
        for _ in range(self.random.randint(0, 4)):
            await asyncio.sleep(0)

    async def crash(self, *, power: bool) -> None:
        """The broker dies, at once, and starts again."""
        for task in self.broker.tasks:
            task.cancel()
        await asyncio.gather(*self.broker.tasks, return_exceptions=True)
        if power:
            self.files.crash(self.random)
        self.started_ms = self.now_ms = self.now_ms + self.random.randint(1, 5000)
        self.wall_ahead_ms = WALL_AHEAD_MS + self.random.choice([0, 0, -3_600_000, 3_600_000])
        self.broker = Broker(self.files, self)
        for worker in self.workers:
            self.drop(worker)
            worker.member_epoch = 0

    async def step(self) -> None:
        """Something happens."""
        dice = self.random.random()
        worker = self.random.choice(self.workers) if self.workers else None
        if dice < 0.12:
            self.produce()
        elif dice < 0.17 or worker is None:
            await self.join()
        elif dice < 0.45:
            await self.fetch(worker)
        elif dice < 0.75:
            await self.settle(worker)
        elif dice < 0.80:
            await self.beat(worker)
        elif dice < 0.81:
            await self.leave(worker)
        elif dice < 0.82:
            await self.close(worker)
        elif dice < 0.85:
            self.workers.remove(worker)  # dies
            self.broker.connections.discard(worker.connection)
        elif dice < 0.97:
            await self.pass_time(self.random.choice([0, 50, 500, LOCK_MS]))
        elif dice < 0.985:
            await self.crash(power=False)
        else:
            await self.crash(power=True)
        self.check()

    def check(self) -> None:
        """All invariants."""
        self.broker.share.groups.check()
        for held in self.broker.share:
            held.state.check()
            assert held.state.end_offset <= self.log.end_offset

    async def finish(self) -> None:
        """One worker is left, and does all that is left."""
        self.workers = []
        self.broker.connections.clear()
        await self.join()
        last = self.workers[0]
        for _ in range(3000):
            await self.fetch(last)
            settled = dict.fromkeys(last.held, ACCEPT)
            batch = [
                {"first_offset": offset, "last_offset": offset, "acknowledge_types": [ACCEPT]}
                for offset in settled
            ]
            if batch and last.session_epoch:
                fields = self.session(last) | {"topics": self.topics(batch)}
                answer = await self.ask(last, 79, fields)
                if answer is not None and not answer["error_code"]:
                    last.session_epoch += 1
                    self.note(last, settled, answer["responses"][0]["partitions"][0]["error_code"])
                elif answer is not None:
                    self.drop(last)
            await self.pass_time(7_000)
            await self.beat(last)
            self.check()
            if self.state.start_offset == self.produced:
                break
        for _ in range(50):
            await asyncio.sleep(0)
        assert self.state.start_offset == self.produced, list(self.state.runs)

    def letters(self) -> list[int]:
        """The offsets of all dead letters."""
        topic = self.broker.topics.get("dlq.t")
        assert topic is not None
        log = topic.partitions[0].log
        found, offset = [], 0
        while offset < log.end_offset:
            data = log.read(offset, 1 << 20)
            for at, one in batches.iterate(data):
                for record in batches.records(data, at, one):
                    headers = dict(record.headers)
                    found.append(int(headers["__dlq.errors.offset"] or b""))
                    assert record.value == headers["__dlq.errors.offset"]
                    offset = record.offset + 1
        return found


@pytest.mark.parametrize("seed", seeds(10))
def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    """Every record ends as accepted or as one dead letter; what was accepted never comes again."""

    async def simulate() -> None:
        world = World(seed)
        for _ in range(400):
            await world.step()
        await world.finish()
        letters = world.letters()
        assert len(letters) == len(set(letters)), Counter(letters).most_common(3)
        assert not world.accepted & set(letters)
        unsaid = set(range(world.produced)) - world.accepted - set(letters)
        assert all(world.deliveries[one] for one in unsaid)  # accepted; the answer was lost
        for task in world.broker.tasks:
            task.cancel()

    with repeatable(seed):
        asyncio.run(simulate())
