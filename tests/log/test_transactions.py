from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import AppendError
from penstock.log.markers import Aborted, Marker, build_marker, read_marker
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.protocol import ErrorCode

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1_000, retention_ms=-1)
TRANSACTIONAL = 0x10


def batch(
    producer: int, sequence: int, *, epoch: int = 0, count: int = 2, open_: bool = True
) -> bytearray:
    """A batch of a transactional (or just idempotent) producer."""
    return batches.build(
        [(b"k", b"v" * 30)] * count,
        timestamps_ms=[NOW] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if open_ else 0,
    )


def end(
    log: Partition, producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0
) -> int:
    """Writes a marker; its offset."""
    return log.append_marker(
        producer, epoch, commit=commit, coordinator_epoch=coordinator, now_ms=NOW
    ).base_offset


def refusal(log: Partition, one: bytearray) -> ErrorCode:
    """The code that a batch is refused with; the log must be unchanged."""
    before = log.end_offset
    with pytest.raises(AppendError) as caught:
        log.append(one, NOW)
    assert log.end_offset == before
    return caught.value.code


@pytest.fixture
def log() -> Partition:
    """An empty partition in memory."""
    return Partition(MemoryFiles(), "p", SMALL, NOW)


def test_stable_offset_follows_the_earliest_open_transaction(log: Partition) -> None:
    """The last stable offset is where the earliest open transaction began, else the end."""
    log.append(batch(1, 0, open_=False), NOW)
    assert log.last_stable_offset == 2
    log.append(batch(7, 0), NOW)
    log.append(batch(8, 0), NOW)
    assert log.last_stable_offset == 2
    assert log.open_transactions() == {7: 2, 8: 4}
    assert end(log, 7, commit=True) == 6
    assert log.last_stable_offset == 4
    assert end(log, 8, commit=False) == 7
    assert log.last_stable_offset == log.end_offset == 8
    assert log.aborted(0, 8) == [Aborted(8, 4, 7)]
    assert log.aborted(0, 4) == []
    log.check()


def test_markers_are_kafkas(log: Partition) -> None:
    """A marker is a transactional control batch of one record with Kafka's key and value."""
    end(log, 7, commit=True, epoch=3, coordinator=9)
    data = bytes(log.read(0, 1000))
    header = batches.parse(data)
    assert (header.attributes, header.record_count, header.base_sequence) == (0x30, 1, -1)
    assert (
        data[batches.HEADER_BYTES :].hex()
        == "20" + "000000" + "08" + "00000001" + "0c" + "000000000009" + "00"
    )
    assert read_marker(data, header) == Marker(commit=True, coordinator_epoch=9)
    assert log.find_time(NOW) == (0, NOW)  # as in Kafka, a marker has a time like any record


def test_clients_may_not_write_markers(log: Partition) -> None:
    """A control batch from a client is refused."""
    forged = build_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    assert refusal(log, forged) is ErrorCode.INVALID_RECORD


def test_older_epochs_are_fenced(log: Partition) -> None:
    """A marker with a newer epoch fences the older one; the newer begins at sequence 0."""
    log.append(batch(7, 0), NOW)
    end(log, 7, commit=False, epoch=1)
    assert refusal(log, batch(7, 2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, batch(7, 2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(AppendError) as caught:
        end(log, 7, commit=True, epoch=0)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    log.append(batch(7, 0, epoch=1), NOW)
    assert log.has_open_transaction(7, 1)
    assert not log.has_open_transaction(7, 0)
    assert log.producers.describe()[0] == (7, 1, 1, NOW, 0, 3)


def test_older_coordinators_are_fenced(log: Partition) -> None:
    """A marker from a coordinator that was replaced is refused."""
    end(log, 7, commit=True, coordinator=5)
    with pytest.raises(AppendError) as caught:
        end(log, 7, commit=True, coordinator=4)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_sequences_go_on_after_a_marker(log: Partition) -> None:
    """With the same epoch, the next transaction continues the sequence, and retries are known."""
    log.append(batch(7, 0), NOW)
    end(log, 7, commit=True)
    assert log.append(batch(7, 0), NOW).is_duplicate
    assert log.open_transactions() == {}
    log.append(batch(7, 2), NOW)
    assert log.open_transactions() == {7: 3}
    assert refusal(log, batch(7, 4, open_=False)) is ErrorCode.INVALID_TXN_STATE


def test_marker_after_deleted_records(log: Partition) -> None:
    """When the start passes an open transaction, stable records end at the start, not before it."""
    log.append(batch(7, 0), NOW)
    log.append(batch(8, 0, open_=False), NOW)
    log.delete_records(3, NOW)
    assert log.last_stable_offset == 3
    end(log, 7, commit=False)
    assert log.last_stable_offset == 5
    assert log.aborted(3, 5) == [Aborted(7, 0, 4)]


def test_segments_with_open_transactions_are_not_for_the_tier() -> None:
    """A closed segment goes to the tier once all its transactions have ended."""
    log = Partition(MemoryFiles(), "p", SMALL, NOW)
    log.append(batch(7, 0), NOW)
    for n in range(20):
        log.append(batch(1, 2 * n, open_=False), NOW)
    log.sync()
    assert log.closed_segments() == []
    last = end(log, 7, commit=False)
    log.sync()
    closed = log.closed_segments()
    assert [one.base_offset for one in closed] == [one.base_offset for one in log.segments[:-1]]
    assert all(one.aborted == (Aborted(7, 0, last),) for one in closed)


@dataclass
class Entry:
    """What a naive log remembers of a batch."""

    header: batches.Header
    is_commit: bool = False


def naive(model: list[Entry], floor: int) -> tuple[dict[int, int], list[Aborted]]:
    """Open and aborted transactions, by looking at every batch from `floor` on."""
    is_open: dict[int, int] = {}
    aborted = []
    for entry in model:
        one = entry.header
        if one.base_offset < floor:
            continue
        if one.is_control:
            first = is_open.pop(one.producer_id, None)
            if first is not None and not entry.is_commit:
                aborted.append(Aborted(one.producer_id, first, one.base_offset))
        elif one.is_transactional:
            is_open.setdefault(one.producer_id, one.base_offset)
    return is_open, aborted


class Machine:
    """A partition beside a naive model of it, driven by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.log = Partition(self.files, "p", SMALL, NOW)
        self.model: list[Entry] = []
        self.floor = 0  # what was deleted before a rebuild is no longer known
        self.durable = 0

    def append(self) -> None:
        producer, count = self.chance.randint(1, 4), self.chance.randint(1, 4)
        known = {one.producer_id: one for one in self.log.producers.describe()}.get(producer)
        sequence = known.last_sequence + 1 if known else 0
        epoch = known.epoch if known else 0
        is_open = producer in self.log.open_transactions() or self.chance.random() < 0.7
        one = batch(producer, sequence, epoch=epoch, count=count, open_=is_open)
        self.log.append(one, NOW)
        self.model.append(Entry(batches.parse(one)))

    def end(self) -> None:
        known = self.log.producers.describe()
        if not known:
            return
        one = self.chance.choice(known)
        commit = self.chance.random() < 0.4
        epoch = one.epoch + self.chance.randint(0, 1)
        offset = end(self.log, one.producer_id, commit=commit, epoch=epoch)
        self.model.append(Entry(batches.parse(self.log.read(offset, 0)), commit))

    def delete(self) -> None:
        self.log.delete_records(self.chance.randint(0, self.log.end_offset), NOW)

    def sync(self) -> None:
        self.log.sync(checkpoint=self.chance.random() < 0.5)
        self.durable = self.log.end_offset

    def crash(self) -> None:
        """Power fails: what was not synced may be lost."""
        self.files.crash(self.chance)
        self._reopen(may_lose=True)
        self.durable = self.log.end_offset

    def kill(self) -> None:
        """The process dies; a side file may be lost as well."""
        lost = [one for one in self.files.list("p") if not one.endswith((".log", "start"))]
        if lost and self.chance.random() < 0.5:
            self.files.delete(f"p/{self.chance.choice(lost)}")
            self._reopen(may_lose=True)
        else:
            self._reopen(may_lose=False)

    def _reopen(self, *, may_lose: bool) -> None:
        self.log = Partition(self.files, "p", SMALL, NOW)
        assert self.log.end_offset >= self.durable
        self.model = [one for one in self.model if one.header.next_offset <= self.log.end_offset]
        is_open, _ = naive(self.model, self.floor)
        if may_lose and self.log.open_transactions() != is_open:
            self.floor = self.log.segments[0].base_offset

    def check(self) -> None:
        log = self.log
        log.check()
        is_open, _ = naive(self.model, self.floor)
        assert log.open_transactions() == is_open
        stable = min([*is_open.values(), log.end_offset])
        assert log.last_stable_offset == max(stable, log.start_offset)
        lo = self.chance.randint(log.start_offset, log.end_offset)
        hi = self.chance.randint(lo, log.end_offset)
        found = log.aborted(lo, hi)
        assert found == sorted(found, key=lambda one: one.first_offset)
        assert self.hidden(found, lo, hi) == self.hidden(naive(self.model, 0)[1], lo, hi)
        self.check_stable_reads()

    def hidden(self, aborted: list[Aborted], lo: int, hi: int) -> list[int]:
        """The batches that readers of committed data leave out. Where a transaction began may have
        been deleted, and what told of it lost: but not what there is of it.
        """
        return [
            one.base_offset
            for one in (entry.header for entry in self.model)
            if one.is_transactional
            and not one.is_control
            and lo <= one.base_offset < hi
            and any(
                each.producer_id == one.producer_id
                and each.first_offset <= one.base_offset <= each.last_offset
                for each in aborted
            )
        ]

    def check_stable_reads(self) -> None:
        log, stable = self.log, self.log.last_stable_offset
        offset, seen = log.start_offset, []
        while data := log.read(offset, self.chance.randint(1, 500), upto=stable):
            for _, header in batches.iterate(data):
                seen.append(header.base_offset)
                offset = header.next_offset
        entries = [one.header for one in self.model]
        assert seen == [
            one.base_offset
            for one in entries
            if one.next_offset > log.start_offset and one.base_offset < stable
        ]


STEPS = ["append"] * 8 + ["end"] * 4 + ["sync"] * 2 + ["crash", "kill", "delete"]


@settings(max_examples=examples(150), deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=60), seed=st.integers(0, 1 << 32))
def test_transactions_are_a_function_of_the_log(steps: list[str], seed: int) -> None:
    """After any writes, deletions and crashes, and with side files lost, open and aborted
    transactions and the stable part are what a naive pass over the log gives.
    """
    machine = Machine(seed)
    for step in steps:
        getattr(machine, step)()
        machine.check()
