"""Commits that make their records durable together with themselves: what a crash in between leaves."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.protocol.produce import parse
from penstock.broker.storage.topics import Hosted, Topic
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.machine import State
from penstock.broker.transactions.records import outcomes_in
from penstock.client.network import hot
from penstock.log.disk.memory import MemoryFiles
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.batches import DURABLE_LATER
from penstock.wire.kafka import ErrorCode

CONFIG = LogConfig(retention_ms=-1, timestamp_after_max_ms=1 << 60)
PLACES = [("t", 0), ("t", 1)]
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


async def make_durable(wanted: Iterable[Any]) -> None:
    for one in wanted:
        if one.failure is None:
            synced(one)


class World:
    """A broker's logs and transactions, over files that can crash."""

    def __init__(self) -> None:
        self.files, self.ids = MemoryFiles(), itertools.count(1)
        self.open()
        answer = self.machine.init(0, ID, 60_000, None)
        assert answer.change is not None
        self.run(answer.change)
        self.who = answer.producer_id, answer.epoch

    def open(self) -> None:
        self.topic = Topic("t", UUID(int=1), {}, CONFIG)
        for name, index in PLACES:
            log = Partition(self.files, f"{name}-{index}", CONFIG, 0)
            self.topic.partitions.append(Hosted(self.topic, index, log))
        self.logs = [one.log for one in self.topic.partitions]
        self.coordinator = Coordinator(
            self.files,
            lambda _, index: self.topic.partition(index),
            GroupOffsets(self.files),
            lambda: next(self.ids),
            make_durable,
            lambda: 0,
        )
        self.coordinator.recover(self.topic.partitions)
        self.machine = self.coordinator.machine
        self.coordinator.check()

    def crash(self, *, keeps_all: bool) -> None:
        self.files.crash(Crash(keeps_all=keeps_all))
        self.open()

    def run(self, change: Any) -> bool:
        return asyncio.run(self.coordinator.carry_out(change))

    def write(self, *partitions: int, sequence: int = 0) -> None:
        """A record to each, not synced."""
        for index in partitions:
            answer = self.machine.add(0, ID, *self.who, places=[("t", index)])
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
    assert again.code is (ErrorCode.none if is_whole else ErrorCode.invalid_txn_state)


def test_a_killed_process_leaves_a_commit_that_counts(world: World) -> None:
    """The page cache survives a process: nothing is lost, so the commit counts."""
    world.write(0, 1)
    world.coordinator.submit(world.end())
    world.crash(keeps_all=True)
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]


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


def test_a_marker_shows_that_a_commit_counted(world: World) -> None:
    """Damage to another partition doesn't turn what readers have seen into an abort."""
    world.write(0, 1)
    change = world.end()
    assert world.run(change)
    synced(world.logs[0])  # its marker
    world.files.open("t-1/00000000000000000000.log").truncate(0)
    world.crash(keeps_all=False)
    assert world.state is State.COMPLETE_COMMIT
    assert world.aborted() == [False, False]


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
    assert again.code is ErrorCode.invalid_txn_state
    world.crash(keeps_all=True)
    assert world.state is State.COMPLETE_ABORT
    assert world.aborted() == [True, True]


def test_lost_records_are_missed_at_the_commit(world: World) -> None:
    """A producer says how many records were acknowledged; a crash has taken one of two."""
    world.write(0, 1)
    assert world.coordinator.has_records(ID, *world.who, 2)
    synced(world.logs[0])
    world.crash(keeps_all=False)
    assert world.state is State.ONGOING
    assert not world.coordinator.has_records(ID, *world.who, 2)


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
