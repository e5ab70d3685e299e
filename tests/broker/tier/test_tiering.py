"""Tiering under failures: at every operation of the store and of the disk, errors and crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from crc32c import crc32c
from tests.effort import rounds

from penstock.broker.storage.topics import Hosted, Topics
from penstock.broker.tier.reader import Cache
from penstock.broker.tier.tiering import BACKOFF_S_MAX, Tiering, note_removal
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import DamagedError, StorageError
from penstock.log.partition import Partition
from penstock.log.producers import Producers
from penstock.log.tier import NotLoadedError
from penstock.log.validation import LogConfig
from penstock.wire import batches

NOW = 1_700_000_000_000
RUNS = rounds("PENSTOCK_TIER_RUNS", quick=4, full=12)
SETTINGS = {
    "segment.bytes": "1024",
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1500",
}


class Crash(BaseException):
    """The process ends here."""


class Chaos:
    """Decides what goes wrong; `chance` is the seed's."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.rate = 0.0

    def strike(self) -> bool:
        """Raises, or says that the operation is to fail after it was done."""
        if self.chance.random() >= self.rate:
            return False
        match self.chance.choice(["before", "after", "crash"]):
            case "before":
                raise OSError("expected the store; found none")
            case "crash":
                raise Crash
        return True


class FaultyObjects:
    """A store in memory that fails, stops half-way, and does what it reports as failed."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.held: dict[str, bytes] = {}

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        fails = self.chaos.strike()
        data = b""
        for piece in pieces:
            data += piece
            if self.chaos.chance.random() < self.chaos.rate / 4:
                self.held[name] = data[: len(data) // 2]
                raise OSError("expected to put all; found an end")
        self.held[name] = data
        if fails:
            raise OSError("expected an answer; found none")

    def get(self, name: str, at: int, size: int) -> bytes:
        if self.chaos.strike():
            return self.held[name][at : at + size // 2]  # a short read
        if name not in self.held:
            raise FileNotFoundError(name)
        return self.held[name][at : at + size]

    def size(self, name: str) -> int:
        self.chaos.strike()
        return len(self.held[name]) if name in self.held else -1

    def list(self, directory: str) -> list[str]:
        self.chaos.strike()
        return sorted(one for one in self.held if one.startswith(directory + "/"))

    def delete(self, name: str) -> None:
        fails = self.chaos.strike()
        self.held.pop(name, None)
        if fails:
            raise OSError("expected an answer; found none")

    def delete_tree(self, directory: str) -> None:
        for name in self.list(directory):
            self.delete(name)


class FaultyFiles(MemoryFiles):
    """A disk on which the process may end before and after a small file is replaced."""

    def __init__(self, chaos: Chaos) -> None:
        super().__init__()
        self.chaos = chaos

    def store(self, path: str, data: Any) -> None:
        can_crash = path.endswith(("/tier", ".index"))
        if can_crash and self.chaos.chance.random() < self.chaos.rate / 2:
            raise Crash
        super().store(path, data)
        if can_crash and self.chaos.chance.random() < self.chaos.rate / 2:
            raise Crash

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        if self.chaos.chance.random() < self.chaos.rate / 2:
            raise Crash


class World:
    """A broker's log and tier, which crash and come back, and a log without a tier beside it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.chaos = Chaos(random.Random(seed + 1))
        self.files = FaultyFiles(self.chaos)
        self.objects = FaultyObjects(self.chaos)
        self.plain = Partition(
            MemoryFiles(), "p", LogConfig(segment_bytes=1024, retention_ms=-1), NOW
        )
        self.tokens = 0
        self.open()
        self.topics.create("t", 1, dict(SETTINGS))

    def open(self) -> None:
        self.topics = Topics(self.files, lambda: NOW)
        self.tiering = Tiering(
            self.objects, self.files, "c", clock_ms=lambda: NOW, cache_bytes=4 << 20,
            token=self.token,
        )  # fmt: skip
        self.topics.attach(self.tiering.tier)

    def token(self) -> str:
        self.tokens += 1
        return f"{self.tokens:06d}"

    @property
    def hosted(self) -> Hosted:
        topic = self.topics.get("t")
        assert topic is not None
        return topic.partitions[0]

    async def crash(self) -> None:
        await self.tiering.close()
        self.files.crash(self.chance)
        self.open()

    async def lose_manifest(self) -> None:
        """A crash, after which the local list of remote segments is garbage, or gone."""
        await self.tiering.close()
        self.files.crash(self.chance)
        path = "topics/t/0/tier"
        whole = self.files.load(path)
        if whole is not None and self.chance.random() < 0.3:
            self.files.delete(path)
        elif whole is not None:
            MemoryFiles.store(self.files, path, whole[: self.chance.randrange(len(whole))])
        self.open()
        log = self.hosted.log
        log.check()
        local = max(log.segments[0].base_offset, self.plain.start_offset)
        try:
            found = bytes(log.read(local, 300))
        except (DamagedError, NotLoadedError):  # `spoil` was there before
            pass
        else:
            assert bytes(self.plain.read(local, 300)).startswith(found)
        if log.tier_fault and log.start_offset < log.segments[0].base_offset:
            with pytest.raises(StorageError, match="newest manifest"):
                log.read(log.start_offset, 300)
        await self.work(self.chance.choice([0.0, 0.3]))
        await self.work(0.0)
        assert not self.hosted.log.tier_fault

    async def work(self, rate: float) -> None:
        """A round of tiering, with failures."""
        self.chaos.rate = rate
        for state in self.tiering._states.values():
            state.retry_at_s = 0.0
            state.damaged = dict.fromkeys(state.damaged, 0.0)
        try:
            await self.tiering.work(self.topics)
        except Crash:
            await self.crash()
        finally:
            self.chaos.rate = 0.0
        assert not self.hosted.is_tiering

    async def compare(self) -> None:
        """Every read and look-up is that of the log without a tier."""
        log, plain = self.hosted.log, self.plain
        log.check()
        assert (log.start_offset, log.end_offset) == (plain.start_offset, plain.end_offset)
        for one in log.remote.segments:
            data = self.objects.held[one.name]
            assert (len(data), crc32c(data)) == (one.size, one.checksum)
            assert len(self.objects.held[one.index_name]) == one.index_size
        offset = log.start_offset
        while offset < log.end_offset:
            at = offset
            found, _ = await self.tiering.cache.loaded(lambda at=at: log.read(at, 400))
            assert bytes(plain.read(offset, 400)).startswith(bytes(found))  # less before damage
            offset = [header.next_offset for _, header in batches.iterate(bytes(found))][-1]
        await self.read_with_failures()
        when = NOW + self.chance.randint(0, 2000)
        by_time, _ = await self.tiering.cache.loaded(lambda: log.find_time(when))
        assert by_time == plain.find_time(when)
        latest, _ = await self.tiering.cache.loaded(log.find_latest_time)
        assert latest == plain.find_latest_time()

    async def read_with_failures(self) -> None:
        """A read gives the right bytes or an error, never others."""
        log = self.hosted.log
        at = self.chance.randint(log.start_offset, log.end_offset)
        self.tiering.cache.empty()
        self.chaos.rate = 0.3
        try:
            found, _ = await self.tiering.cache.loaded(lambda: log.read(at, 300))
        except (StorageError, Crash):
            return
        finally:
            self.chaos.rate = 0.0
        assert bytes(self.plain.read(at, 300)).startswith(bytes(found))
        assert found or at == log.end_offset

    async def spoil(self) -> None:
        """While the broker is down, a local segment that was copied is damaged or lost."""
        copied = [
            one
            for one in self.hosted.log.closed_segments()
            if one.size and self.hosted.log.remote.segment_of(one.base_offset) is not None
        ]
        await self.tiering.close()
        self.files.crash(self.chance)
        for info in self.chance.sample(copied, min(len(copied), self.chance.randint(1, 2))):
            match self.chance.choice(["flip", "cut", "lose", "lose all"]):
                case "flip":
                    self.files.damage(info.path, self.chance.randrange(info.size), 3)
                case "cut":
                    file = self.files.open(info.path)
                    file.truncate(self.chance.randrange(info.size))
                    file.sync()
                case "lose":
                    self.files.delete(info.path)
                case _:
                    self.files.delete(info.path)
                    self.files.delete(info.index_path)
        self.open()

    async def hurt(self) -> None:
        """A closed segment is damaged while there is work to do; then it is what it was again."""
        waiting = list(self.tiering._uncopied(self.hosted))
        if not waiting:
            return
        info = self.chance.choice(waiting)
        at, file = self.chance.randrange(info.size), self.files.open(info.path)
        byte = bytes(file.read(at, 1))
        file.write(at, bytes([byte[0] ^ 1]))
        file.sync()
        for _ in range(self.chance.randint(1, 3)):
            await self.work(self.chance.choice([0.0, 0.05]))
            log = self.hosted.log
            assert log.remote.segment_of(info.base_offset) is None
            assert log.segments[0].base_offset <= info.base_offset
        self.files.open(info.path).write(at, byte)
        self.files.open(info.path).sync()

    def append(self, n: int) -> None:
        records = [(b"%d" % n, bytes(self.chance.randint(1, 300)))] * self.chance.randint(1, 3)
        one = batches.build(records, timestamps_ms=[NOW + 10 * n] * len(records))
        self.plain.append(bytearray(one), NOW)
        self.hosted.log.append(one, NOW)
        self.hosted.log.sync()

    def delete_records(self) -> None:
        before = self.chance.randint(self.plain.start_offset, self.plain.end_offset)
        before = min(before, self.plain.start_offset + 12)
        self.plain.delete_records(before, NOW)
        self.hosted.log.delete_records(before, NOW)

    async def settle(self) -> None:
        """Without failures everything is copied, and nothing is in the store that isn't listed."""
        for state in self.tiering._states.values():
            state.is_swept = False
        for _ in range(3):
            await self.work(0.0)
        await self.compare()
        log = self.hosted.log
        names = {one.name for one in log.remote.segments}
        names |= {one.index_name for one in log.remote.segments}
        others = self.objects.held.keys() - names
        assert names <= self.objects.held.keys()
        assert all("/manifest-" in one for one in others)
        assert len(others) <= 1
        newest = next((self.objects.held[one] for one in others), log.remote.dump())
        assert newest == log.remote.dump()
        assert not list(self.tiering._uncopied(self.hosted))
        await self.work(0.0)
        assert not any(one.verify() for one in self.hosted.log.segments)


async def _run(seed: int) -> None:
    world = World(seed)
    try:
        for n in range(120):
            match world.chance.choice(["append"] * 6 + ["work"] * 3 + ["delete", "crash"]):
                case "append":
                    world.append(n)
                case "work":
                    await world.work(world.chance.choice([0.0, 0.05, 0.3]))
                    await world.compare()
                case "delete" if world.chance.random() < 0.3:
                    world.delete_records()
                case "delete" if world.chance.random() < 0.5:
                    await world.hurt()
                    await world.compare()
                case "crash" if world.chance.random() < 0.5:
                    await world.crash()
                case "crash" if world.chance.random() < 0.4:
                    await world.spoil()
                    await world.compare()
                case "crash" if world.chance.random() < 0.6:
                    await world.lose_manifest()
                    await world.compare()
                case _:
                    pass
        await world.settle()
        assert world.hosted.log.remote.segments
    finally:
        await world.tiering.close()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_tiered_log_is_the_untiered_one_whatever_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors, half-done operations and crashes at any operation neither lose, double nor leave
    anything: the log reads as one without a tier, and the store holds what is listed.
    """
    monkeypatch.setattr("penstock.broker.tier.reader.FAILED_PAUSE_S", 0.0)
    asyncio.run(_run(seed))


def test_a_short_read_is_an_error_and_not_data() -> None:
    """What the store gives is checked; once it is right again, so is the answer."""

    async def scenario() -> None:
        world = World(1)
        for n in range(30):
            world.append(n)
        await world.work(0.0)
        await world.work(0.0)
        log = world.hosted.log
        name = log.remote.segments[0].name
        right = world.objects.held[name]
        world.objects.held[name] = right[:-1] + b"\1"
        with pytest.raises(StorageError, match="restore it"):
            await world.tiering.cache.loaded(lambda: log.read(log.start_offset, 100))
        world.objects.held[name] = right
        await world.compare()
        await world.tiering.close()

    asyncio.run(scenario())


def test_a_store_that_is_away_for_days_is_still_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it has failed, the pause is the longest one, and then segments are copied."""

    async def scenario() -> None:
        world = World(7)
        for n in range(30):
            world.append(n)
        await world.work(0.0)
        state = world.tiering._state(world.hosted)
        state.failures, state.is_swept = 5_000, False
        with monkeypatch.context() as away:
            away.setattr(world.objects, "list", Mock(side_effect=OSError("away")))
            await world.work(0.0)
        assert state.retry_at_s - asyncio.get_running_loop().time() <= BACKOFF_S_MAX
        assert world.tiering.failures == 1
        await world.work(0.0)
        assert state.failures == 0
        await world.tiering.close()

    asyncio.run(scenario())


def test_a_damaged_segment_stays_and_others_are_copied() -> None:
    """What the local disk changed stays there, with what follows, and is told; the others are in the
    store, too, also after a crash. Once it is right again it is copied, and all is dropped.
    """

    async def scenario() -> None:
        world = World(4)
        for n in range(30):
            world.append(n)
        infos = world.hosted.log.closed_segments()
        info = infos[1]
        file = world.files.open(info.path)
        byte = bytes(file.read(info.size // 2, 1))
        file.write(info.size // 2, bytes([byte[0] ^ 1]))
        file.sync()
        for _ in range(2):
            await world.work(0.0)
            log = world.hosted.log
            log.remote.check()
            bases = [one.base_offset for one in log.remote.segments]
            assert bases == [one.base_offset for one in infos if one != info]
            assert log.uncopied_offset == log.segments[0].base_offset == info.base_offset
            assert world.tiering.damaged_segments == 1
            assert f"{info.path} as it was written" in world.tiering.last_failure
            await world.crash()
        with pytest.raises(DamagedError):
            world.hosted.log.read(info.base_offset, 100)
        file = world.files.open(info.path)
        file.write(info.size // 2, byte)
        await world.settle()
        log = world.hosted.log
        assert world.tiering.damaged_segments == 0
        assert log.segments[0].base_offset > info.next_offset
        assert log.remote.missing_from(0) == log.remote.end_offset
        await world.tiering.close()

    asyncio.run(scenario())


def test_a_damaged_segment_that_is_deleted_holds_nothing_up() -> None:
    """Its records are deleted up to its end, as the message says: then the rest is dropped."""

    async def scenario() -> None:
        world = World(4)
        for n in range(30):
            world.append(n)
        info = world.hosted.log.closed_segments()[0]
        world.files.open(info.path).truncate(info.size // 2)
        await world.crash()
        await world.work(0.0)
        log = world.hosted.log
        assert world.tiering.damaged_segments == 1
        assert "found some damaged or lost" in world.tiering.last_failure
        assert log.segments[0].base_offset == 0 < log.remote.start_offset
        assert log.start_offset == 0
        for one in (log, world.plain):
            one.delete_records(info.next_offset, NOW)
        await world.settle()
        assert world.tiering.damaged_segments == 0
        assert world.hosted.log.segments[0].base_offset > info.next_offset
        await world.tiering.close()

    asyncio.run(scenario())


async def lose_all_but(world: World, kept: set[str], manifest: bytes | None) -> None:
    """The broker ends, and of the partition's files these are left, and that manifest."""
    await world.tiering.close()
    for name in world.files.list("topics/t/0"):
        if name not in kept:
            world.files.delete(f"topics/t/0/{name}")
    if manifest is not None:
        MemoryFiles.store(world.files, "topics/t/0/tier", manifest)
    world.open()


async def expect_tiered(world: World, upto: int) -> None:
    """What the store has is served from there, and all of it is still listed."""
    log = world.hosted.log
    log.check()
    assert (log.tier_fault, log.start_offset, log.remote.end_offset) == ("", 0, upto)
    assert {one.name for one in log.remote.segments} <= world.objects.held.keys()
    offset = 0
    while offset < upto:
        read = partial(log.read, offset, 400)
        found, _ = await world.tiering.cache.loaded(read)
        assert bytes(found) == bytes(world.plain.read(offset, 400))[: len(found)]
        offset = [header.next_offset for _, header in batches.iterate(bytes(found))][-1]


@pytest.mark.parametrize("knows_end", [True, False])
@pytest.mark.parametrize("manifest", [b"", b"12345678 {}", None])
def test_a_partition_of_which_nothing_is_left_comes_back_from_the_store(
    manifest: bytes | None, knows_end: bool
) -> None:
    """Without segments and manifest the others are served, and this one as soon as the store has said
    what it holds; what is in neither is a hole. An empty store says nothing, and loses nothing.
    """
    one = batches.build([(b"k", b"v")], timestamps_ms=[NOW])

    async def scenario() -> None:
        world = World(5)
        world.topics.create("other", 1, {})
        for n in range(40):
            world.append(n)
        await world.work(0.0)
        tiered_upto = world.hosted.log.remote.end_offset
        restored = Producers.restore(world.files.load("topics/t/0/producers"))
        assert restored is not None
        known_upto = restored[1] if knows_end else tiered_upto
        assert known_upto > tiered_upto or not knows_end
        await lose_all_but(world, {"producers"} if knows_end else set(), manifest)
        held, world.objects.held = world.objects.held, {}
        await world.work(0.0)
        log = world.hosted.log
        assert log.tier_fault
        assert log.damaged == 1
        with pytest.raises(StorageError):
            log.read(tiered_upto - 1, 100)
        if not knows_end:
            with pytest.raises(StorageError, match="newest manifest"):
                log.append(bytearray(one), NOW)
        other = world.topics.hosted("other", 0)
        assert other is not None
        assert other.log.append(bytearray(one), NOW).base_offset == 0
        world.objects.held = held
        for turn in range(3):
            await world.work(0.0)
            await expect_tiered(world, tiered_upto)
            log = world.hosted.log
            if knows_end:
                with pytest.raises(DamagedError):
                    log.read(tiered_upto, 100)
            added = bytearray(one)
            assert log.append(added, NOW).base_offset == known_upto + turn
            log.sync()
            assert bytes(log.read(known_upto + turn, 100)) == bytes(added)
            await world.crash()
        await world.tiering.close()

    asyncio.run(scenario())


def test_a_removal_that_was_noted_for_a_topic_that_lives_on_is_dropped() -> None:
    """A crash between the note and the deletion leaves the topic and its objects."""

    async def scenario() -> None:
        world = World(2)
        for n in range(30):
            world.append(n)
        await world.work(0.0)
        note_removal(world.files, "c", world.hosted.topic)
        await world.crash()
        await world.work(0.0)
        assert not world.files.list("tier/removals")
        await world.compare()
        await world.settle()
        await world.tiering.close()

    asyncio.run(scenario())


def test_the_cache_is_bounded_and_reads_ahead() -> None:
    """Chunks beyond the cache's bytes are given up; a run of chunks takes few requests."""

    async def scenario() -> None:
        calls: list[int] = []

        class Counting(FaultyObjects):
            def get(self, name: str, at: int, size: int) -> bytes:
                calls.append(size)
                return super().get(name, at, size)

        world = World(3)
        world.objects = Counting(world.chaos)
        world.open()
        topic = world.topics.get("t")
        assert topic is not None
        world.topics.configure(topic, SETTINGS | {"segment.bytes": str(24 << 20)})
        big = bytes(900_000)
        for n in range(60):
            one = batches.build([(b"%d" % n, big)], timestamps_ms=[NOW + n])
            world.hosted.log.append(one, NOW)
        world.hosted.log.sync()
        await world.work(0.0)
        log, cache = world.hosted.log, Cache(world.objects, 20 << 20)
        log.tier = type(world.tiering.tier)(cache)
        offset, highest = 0, 0
        while offset < log.local_start_offset:
            at = offset
            found, _ = await cache.loaded(lambda at=at: log.read(at, 1 << 20))
            offset = [header.next_offset for _, header in batches.iterate(bytes(found))][-1]
            highest = max(highest, cache.kept_bytes)
        assert offset == log.local_start_offset > 40
        assert highest <= 20 << 20
        assert len(calls) < 30
        del found
        await cache.close()
        await world.tiering.close()
        assert cache.alive_bytes <= 21 << 20

    asyncio.run(scenario())
