"""Commits that make their records durable together with themselves: what a crash in between leaves."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.protocol.produce import parse
from penstock.broker.storage.room import BALLAST
from penstock.broker.storage.topics import Hosted, Topic
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.machine import State
from penstock.broker.transactions.prepared import replayed
from penstock.broker.transactions.records import outcomes_in, unsettled_in
from penstock.client.network import hot
from penstock.errors import SetupError
from penstock.log.disk.memory import MemoryFiles
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.batches import DURABLE_LATER
from penstock.wire.protocol import ErrorCode

CONFIG = LogConfig(retention_ms=-1, timestamp_after_max_ms=1 << 60)
PLACES = [("t", 0), ("u", 0)]
ID = "writer"
TRANSACTIONAL = 0x10


class Crash(random.Random):
    """A crash that leaves all that was written, or what was synced alone."""

    def __init__(self, *, keeps_all: bool) -> None:
        super().__init__(0)
        self.keeps_all = keeps_all

    def randint(self, a: int, b: int) -> int:
        return b if self.keeps_all else a

    def random(self) -> float:
        return 0.9


def synced(one: Any) -> None:
    task = one.begin_sync()
    try:
        task.run()
    except OSError as error:
        one.end_sync(task, error)
    else:
        one.end_sync(task)


async def sync_all(wanted: Iterable[Any]) -> None:
    for one in wanted:
        if one.failure is None:
            synced(one)


class FilesWithBallast(MemoryFiles):
    """Files on a full disk where there is room once the ballast is given up."""

    def delete(self, path: str) -> None:
        if path == BALLAST:
            self.room_bytes = None
        super().delete(path)


class World:
    """A broker's logs and transactions, over files that can crash."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.files, self.ids = files or MemoryFiles(), itertools.count(1)
        self.sync: Callable[[Iterable[Any]], Awaitable[None]] = sync_all
        self.config = CONFIG
        self.open()
        answer = self.machine.init(0, ID, 60_000, None)
        assert answer.change is not None
        self.run(answer.change)
        self.who = answer.producer_id, answer.epoch

    def open(self, *, was_there: bool = False) -> None:
        self.topics = {name: Topic(name, UUID(int=1), {}, CONFIG) for name, _ in PLACES}
        for name, _ in PLACES:
            self.open_topic(name, was_there=was_there)
        self.coordinator = Coordinator(
            self.files,
            lambda topic, index: self.topics[topic].partition(index),
            GroupOffsets(self.files),
            lambda: next(self.ids),
            lambda wanted: self.sync(wanted),
            lambda: 0,
        )
        self.coordinator.recover(one.partitions[0] for one in self.topics.values())
        self.machine = self.coordinator.machine
        self.coordinator.check()

    def open_topic(self, name: str, *, was_there: bool = False) -> None:
        topic = self.topics[name]
        log = Partition(self.files, f"{name}-0", self.config, 0, was_there=was_there)
        topic.partitions = [Hosted(topic, 0, log)]

    @property
    def logs(self) -> list[Partition]:
        return [one.partitions[0].log for one in self.topics.values()]

    def kill(self) -> None:
        """The process ends, the page cache survives it: nothing is lost, nothing is durable for it."""
        self.open()

    def crash(self, *, keeps_all: bool) -> None:
        self.files.crash(Crash(keeps_all=keeps_all))
        self.open()

    def run(self, change: Any) -> bool:
        return asyncio.run(self.coordinator.carry_out(change))

    def tick(self) -> None:
        asyncio.run(self.coordinator.tick())
        self.coordinator.check()

    def write(self, *partitions: int, sequence: int = 0) -> None:
        """A record to each, not synced."""
        for index in partitions:
            answer = self.machine.add(0, ID, *self.who, places=[PLACES[index]])
            if answer.change is not None:
                self.coordinator.apply(answer.change)
            producer_id, epoch = self.who
            batch = batches.build(
                [(None, b"x")],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                attributes=TRANSACTIONAL,
            )
            self.logs[index].append(batch, 0)

    def end(self) -> Any:
        """The commit's change; it has a new epoch."""
        answer = self.machine.end(0, ID, *self.who, commit=True, bumps=True)
        assert answer.change is not None
        return answer.change

    @property
    def state(self) -> State:
        known = self.machine.get(ID)
        assert known is not None
        return known.state

    def aborted(self) -> list[bool]:
        """Of each partition, whether its first transaction was aborted."""
        return [bool(log.aborted(0, 1)) for log in self.logs]


@pytest.fixture
def world() -> World:
    return World()


def test_a_commit_makes_its_records_durable(world: World) -> None:
    """What was acknowledged before without being on the disk is there after any crash."""
    world.write(0, 1)
    assert all(log.durable_offset == 0 for log in world.logs)
    assert world.run(world.end())
    assert all(log.durable_offset >= 1 for log in world.logs)
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]
    assert all(log.last_stable_offset == log.end_offset == 2 for log in world.logs)


def test_durable_records_need_no_second_look(world: World) -> None:
    """Where all records were durable before, the commit waits for the journal alone."""
    world.write(0, 1)
    for log in world.logs:
        synced(log)
    change = world.end()
    world.coordinator.submit(change)
    assert world.coordinator.awaited(change) == [world.coordinator.journal]


@pytest.mark.parametrize("synced_logs", [[], [0], [1], [0, 1]])
def test_a_crash_before_the_records_are_durable_aborts(
    world: World, synced_logs: list[int]
) -> None:
    """The journal's record may be on the disk first: all partitions commit, or all abort."""
    world.write(0, 1)
    change = world.end()
    world.coordinator.submit(change)
    synced(world.coordinator.journal)
    for index in synced_logs:
        synced(world.logs[index])
    is_whole = len(synced_logs) == 2
    for _ in range(2):  # the second start finds what the first one decided
        world.crash(keeps_all=False)
        assert world.state is (State.COMPLETE_COMMIT if is_whole else State.COMPLETE_ABORT)
        there = [log.end_offset > 0 for log in world.logs]
        assert there == [index in synced_logs for index in range(2)]
        assert world.aborted() == [one and not is_whole for one in there]
    again = world.machine.end(0, ID, *world.who, commit=True, bumps=True)
    assert again.code is (ErrorCode.NONE if is_whole else ErrorCode.INVALID_TXN_STATE)


def test_a_crash_may_leave_a_commit_that_counts(world: World) -> None:
    """All of it may have reached the disk before the power failed."""
    world.write(0, 1)
    world.coordinator.submit(world.end())
    world.crash(keeps_all=True)
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]


def test_what_a_restart_calls_committed_is_on_the_disk(world: World) -> None:
    """The page cache survives a process, so its commit counts; the next power failure doesn't undo that."""
    world.write(0, 1)
    world.coordinator.submit(world.end())
    world.kill()
    assert world.state is State.COMPLETE_COMMIT
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT
    assert [log.end_offset for log in world.logs] == [2, 2]
    assert world.aborted() == [False, False]


def test_a_restart_needs_a_disk_that_works(world: World) -> None:
    """A commit that counts by the page cache alone isn't told to anybody."""
    world.write(0, 1)
    world.coordinator.submit(world.end())
    synced(world.coordinator.journal)
    world.coordinator.journal.close()  # so that partitions alone remain to be synced
    world.files.fails_to_sync = True
    with pytest.raises(SetupError, match="check the disk"):
        world.kill()
    world.files.fails_to_sync = False
    world.kill()
    assert world.state is State.COMPLETE_COMMIT


def test_what_comes_in_the_place_of_lost_records_is_not_theirs(world: World) -> None:
    """Offsets are given out again: a later transaction there isn't aborted with the lost one."""
    world.write(0, 1)
    change = world.end()
    world.coordinator.submit(change)
    synced(world.coordinator.journal)
    world.crash(keeps_all=False)
    assert not outcomes_in(world.coordinator.journal)
    answer = world.machine.init(0, ID, 60_000, None)
    assert answer.change is not None
    world.run(answer.change)
    world.who = answer.producer_id, answer.epoch
    world.write(0)
    synced(world.logs[0])
    world.crash(keeps_all=False)
    assert world.state is State.ONGOING
    assert world.logs[0].open_transactions() == {world.who[0]: 0}
    assert world.run(world.end())
    assert world.aborted() == [False, False]


def test_a_marker_shows_that_a_commit_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage to another partition doesn't turn what readers have seen into an abort. It is reported, once."""
    world.write(0, 1)
    change = world.end()
    assert world.run(change)
    synced(world.logs[0])  # its marker
    world.files.open("u-0/00000000000000000000.log").truncate(0)
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]
    assert world.coordinator.split == 1
    assert (
        "u-0: the transaction of 'writer' with records at offsets 0 to 0 was committed"
        in caplog.text
    )
    world.crash(keeps_all=False)
    assert world.coordinator.split == 0


def test_an_administrators_abort_shows_nothing(world: World) -> None:
    """A staged commit whose records are lost is aborted, though somebody has ended a part of it."""
    world.write(0, 1)
    change = world.end()
    world.coordinator.submit(change)
    synced(world.coordinator.journal)
    world.logs[0].append_marker(*world.who, commit=False, coordinator_epoch=0, now_ms=0)
    synced(world.logs[0])
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_ABORT
    assert world.aborted() == [True, False]


def test_a_log_whose_end_is_unknown_is_not_a_short_one(world: World) -> None:
    """Where nothing says how far a log came, nothing says that a commit's records are lost."""
    world.write(0, 1)
    assert world.run(world.end())
    synced(world.logs[0])
    world.crash(keeps_all=False)
    world.files.delete("u-0")
    world.files.store("u-0/tier", b"damaged")
    world.config = replace(CONFIG, remote_storage=True)
    world.open(was_there=True)
    assert world.logs[1].is_end_unknown
    assert world.state is not State.COMPLETE_ABORT
    assert not any(b'"cut"' in one for one in world.coordinator.journal)
    assert world.coordinator.split == 0


def test_a_commit_is_aborted_where_a_log_cannot_be_synced(world: World) -> None:
    """The producer is told, and the same holds after a restart."""
    world.write(0, 1)
    world.files.fails_to_sync = True
    synced(world.logs[0])
    world.files.fails_to_sync = False
    assert world.logs[0].failure is not None
    assert not world.run(world.end())
    assert world.state is State.PREPARE_ABORT  # the failed log takes no marker
    again = world.machine.end(0, ID, *world.who, commit=True, bumps=True)
    assert again.code is ErrorCode.INVALID_TXN_STATE
    world.crash(keeps_all=True)
    assert world.state is State.COMPLETE_ABORT
    assert world.aborted() == [True, True]


def test_a_journal_that_was_repaired_is_not_yet_durable(world: World) -> None:
    """A commit isn't answered because its sync's failure was forgotten: it must have been synced."""
    world.write(0, 1)
    change = world.end()

    async def fills_up(wanted: Iterable[Any]) -> None:
        """The disk is full during the journal's sync, and has room again before the others end."""
        world.sync = sync_all
        world.files.fails_to_sync, world.files.sync_errno = True, errno.ENOSPC
        synced(world.coordinator.journal)
        world.files.fails_to_sync = False
        assert world.coordinator.journal.repair()
        await sync_all(one for one in wanted if one is not world.coordinator.journal)

    world.sync = fills_up
    assert world.run(change)
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT


@pytest.mark.parametrize("is_repaired", [True, False])
def test_a_commit_that_a_full_disk_stopped_goes_on(world: World, is_repaired: bool) -> None:
    """Once the journal works again the commit counts, or is aborted where a partition doesn't."""
    world.write(0, 1)
    world.files.fails_to_sync, world.files.sync_errno = True, errno.ENOSPC
    assert not world.run(world.end())
    world.tick()
    assert world.machine.is_busy
    world.files.fails_to_sync = False
    assert world.coordinator.journal.repair()
    assert world.logs[0].repair()
    assert not is_repaired or world.logs[1].repair()
    world.tick()
    assert not world.machine.is_busy
    assert world.state is (State.COMPLETE_COMMIT if is_repaired else State.PREPARE_ABORT)
    world.tick()
    assert world.aborted() == [not is_repaired, False]  # the other one takes no marker yet
    world.crash(keeps_all=False)
    assert world.state is (State.COMPLETE_COMMIT if is_repaired else State.COMPLETE_ABORT)


def test_what_is_complete_is_confirmed_while_the_next_one_commits(world: World) -> None:
    """A producer that always has a commit on its way doesn't keep the journal from forgetting others."""
    world.write(0, 1)
    change = world.end()
    assert world.run(change)
    world.who = change.after.identity
    world.write(0, 1)
    world.coordinator.submit(world.end())
    asyncio.run(world.coordinator.confirm())
    assert unsettled_in(world.coordinator.journal) == {change.after.serial + 1}
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT


def test_an_abort_waits_for_room(world: World) -> None:
    """A commit whose partition failed is aborted once the journal has room to say so."""
    world.write(0, 1)
    world.files.fails_to_sync = True
    synced(world.logs[0])
    world.files.fails_to_sync = False
    change = world.end()

    async def fills_up(wanted: Iterable[Any]) -> None:
        await sync_all(wanted)
        world.files.room_bytes = 0

    world.sync = fills_up
    assert not world.run(change)
    world.tick()
    assert world.machine.is_busy
    world.files.room_bytes, world.sync = None, sync_all
    world.tick()
    assert world.state is State.PREPARE_ABORT
    world.crash(keeps_all=True)
    assert world.state is State.COMPLETE_ABORT
    assert world.aborted() == [True, True]


def test_a_topic_that_was_made_again_lacks_nothing(world: World) -> None:
    """A deleted topic's records are gone by somebody's wish: the commit counts for the others."""
    world.write(0, 1)
    assert world.run(world.end())
    world.coordinator.forget_topic("u")
    world.coordinator.check()
    world.files.delete("u-0")
    world.open_topic("u")
    synced(world.coordinator.journal)
    world.crash(keeps_all=False)  # with the marker
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]
    assert [log.end_offset for log in world.logs] == [2, 0]


def test_a_commit_goes_on_without_a_topic_that_is_deleted(world: World) -> None:
    """What is on its way when a topic is deleted doesn't wait for it."""
    world.write(0, 1)
    change = world.end()
    world.coordinator.submit(change)
    world.coordinator.forget_topic("u")
    world.files.delete("u-0")
    world.open_topic("u")
    synced(world.coordinator.journal)
    synced(world.logs[0])
    assert world.coordinator.is_whole(change)
    world.coordinator.settle(change)
    world.coordinator.check()
    assert world.state is State.COMPLETE_COMMIT
    assert [log.end_offset for log in world.logs] == [2, 0]


def test_a_restart_on_a_full_disk_uses_the_ballast() -> None:
    """What it decides must be noted; without any room it says what is wrong."""
    world = World(FilesWithBallast())
    world.write(0, 1)
    world.coordinator.submit(world.end())
    synced(world.coordinator.journal)
    world.files.room_bytes = 0
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_ABORT
    world = World()
    world.write(0, 1)
    world.coordinator.submit(world.end())
    synced(world.coordinator.journal)
    world.files.room_bytes = 0
    with pytest.raises(SetupError, match="free some space"):
        world.crash(keeps_all=False)


def test_older_brokers_find_what_they_know_after_a_stop(world: World) -> None:
    """They pass over staged states; so a broker that stops leaves others."""
    world.write(0, 1)
    assert world.run(world.end())
    for log in world.logs:
        log.close()
    world.coordinator.close()
    said = [one for one in world.coordinator.journal if not one.startswith(b'["staged"')]
    assert len(said) < len(list(world.coordinator.journal))
    assert replayed(said).known[ID] == world.machine.get(ID)


def test_lost_records_are_missed_at_the_commit(world: World) -> None:
    """A producer says how many records were acknowledged; a crash has taken one of two."""
    world.write(0, 1)
    assert world.coordinator.has_records(world.end(), 2)
    synced(world.logs[0])
    world.crash(keeps_all=False)
    assert world.state is State.ONGOING
    assert not world.coordinator.has_records(world.end(), 2)


def test_only_transactions_put_it_off() -> None:
    """The tagged field says so in requests of transactions that want acks=all; others are as ever."""

    def acks(wanted: int, name: str | None, *, later: bool) -> int:
        pieces = hot.produce_together(
            12,
            {"t": {0: memoryview(b"batch")}},
            acks=wanted,
            timeout_ms=1,
            transactional_id=name,
            durable_later=later,
        )
        frame = memoryview(b"".join(pieces))
        assert bytes(frame).endswith(DURABLE_LATER) is later
        found, id_, [(_, [part])] = parse(frame, 0, 12)
        assert (id_, part.records) == (name, b"batch")
        return found

    assert acks(-1, ID, later=True) == 1
    assert acks(-1, ID, later=False) == -1
    assert acks(-1, None, later=True) == -1
    assert acks(0, ID, later=True) == 0
