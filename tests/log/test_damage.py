from __future__ import annotations

import copy
import functools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.log.reading import served

from penstock.errors import CorruptError
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import DamagedError, StorageError
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=60_000, retention_ms=-1)


def fill(log: Partition, count: int, chance: random.Random) -> None:
    """Appends batches of several producers, some of them in transactions."""
    for _ in range(count):
        producer = chance.choice([-1, -1, 1, 2])
        known = {one.producer_id: one for one in log.producers.describe()}.get(producer)
        numbers = {}
        if producer > 0:
            numbers = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": known.last_sequence + 1 if known else 0,
                "attributes": 0x10 if producer == 2 else 0,
            }
        pairs = [(b"k%d" % chance.randint(0, 300), bytes(chance.randint(0, 200)))] * chance.randint(
            1, 4
        )
        log.append(batches.build(pairs, timestamps_ms=[NOW] * len(pairs), **numbers), NOW)
        if log.open_transactions() and chance.random() < 0.1:
            log.append_marker(2, 0, commit=False, coordinator_epoch=0, now_ms=NOW)


def log_of(seed: int, *, compacted: bool = False) -> tuple[MemoryFiles, dict[int, bytes]]:
    """The files of a closed log, and its batches by offset."""
    chance = random.Random(seed)
    files = MemoryFiles()
    config = replace(CONFIG, cleanup_policy="compact") if compacted else CONFIG
    log = Partition(files, "p", config, NOW)
    fill(log, 500, chance)
    log.sync(checkpoint=True)
    if compacted:
        log.compactor.run(NOW)
    else:
        log.delete_records(chance.randint(0, 100), NOW)
    fill(log, 200, chance)
    log.close()
    written = {
        header.base_offset: bytes(segment.file.read(at, header.size))
        for segment in log.segments
        for at, header in segment.headers(0)
    }
    return files, written


@functools.cache
def a_log(number: int) -> tuple[MemoryFiles, dict[int, bytes]]:
    """One of three logs, to be copied before it is changed."""
    return log_of(number + 1, compacted=number == 2)


def test_a_wrong_length_may_lead_anywhere() -> None:
    """A batch whose length leads to where no header fits is damage like any other."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    for _ in range(5):
        log.append(batches.build([(b"k", bytes(50))], timestamps_ms=[NOW]), NOW)
    log.close()
    path = log.active.path
    data = bytearray(files.load(path) or b"")
    data[8:12] = (len(data) - batches.HEADER_BYTES // 2 - 12).to_bytes(4, "big")
    files.store(path, data)
    log = Partition(files, "p", CONFIG, NOW)
    with pytest.raises(DamagedError):
        log.read(0, 1000)


@pytest.mark.parametrize("loss", ["the segment", "its end", "and the producers"])
def test_aborted_transactions_are_known_from_the_index_of_a_lost_segment(loss: str) -> None:
    """Their markers are gone, but not the records before: readers of committed data are told."""
    files = MemoryFiles()
    log = Partition(files, "p", replace(CONFIG, segment_bytes=1000), NOW)
    for n in range(4):
        for i, value in enumerate((b"aborted", b"committed")):
            numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2 * n + i}
            one = batches.build(
                [(b"k", value * 60)], timestamps_ms=[NOW], attributes=0x10, **numbers
            )
            log.append(one, NOW)
            log.append_marker(1, 0, commit=i == 1, coordinator_epoch=0, now_ms=NOW)
    log.close()
    expected = log.aborted(0, log.end_offset)
    lost = next(one for one in log.segments if len(one.aborted) and one.base_offset)
    assert len(expected) == 4
    if loss == "its end":
        files.open(lost.path).truncate(10)
    else:
        files.delete(lost.path)
    if loss == "and the producers":
        files.delete("p/producers")
    again = Partition(files, "p", CONFIG, NOW, was_there=True)
    assert again.damaged
    assert again.aborted(0, again.end_offset) == expected


def test_a_gap_before_damage_is_not_the_end() -> None:
    """Where compaction left a gap and what follows is damaged, a reader is told where to go on: an
    empty answer would let it wait for ever.
    """
    files = MemoryFiles()
    log = Partition(files, "p", replace(CONFIG, cleanup_policy="compact"), NOW)
    for n in range(20):
        log.append(batches.build([(b"k%d" % max(n, 9), bytes(50))], timestamps_ms=[NOW]), NOW)
    log.append(batches.build([(b"more", bytes(70_000))], timestamps_ms=[NOW]), NOW)
    log.sync(checkpoint=True)
    log.compactor.run(NOW)
    log.close()
    assert log.segments[0].index.offsets[0] > 0
    files.damage(log.segments[0].path, 70, 1)
    log = Partition(files, "p", CONFIG, NOW)
    with pytest.raises(DamagedError) as damage:
        log.read(0, 1000)
    assert len(log.read(damage.value.next_offset, 1000))


def test_committed_data_is_read_up_to_damage() -> None:
    """What lies before a damaged open transaction is served: its damage isn't theirs."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    log.append(batches.build([(b"k", bytes(20_000))], timestamps_ms=[NOW]), NOW)
    log.append(
        batches.build(
            [(b"k", bytes(20_000))],
            timestamps_ms=[NOW],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            attributes=0x10,
        ),
        NOW,
    )
    log.close()
    files.damage(log.active.path, 30_000, 1)
    log = Partition(files, "p", CONFIG, NOW)
    assert log.last_stable_offset == 1
    log.active.verify()
    assert batches.parse(log.read(0, 1000, upto=1)).next_offset == 1


def test_damaged_batch_is_refused_and_others_are_served() -> None:
    """One flipped bit costs one batch: the reader is told where to go on, and it is counted."""
    files, written = copy.deepcopy(a_log(0))
    log = Partition(files, "p", CONFIG, NOW)
    bases = [one for one in written if one >= log.start_offset]
    victim = bases[len(bases) // 2]
    segment = log._segment_of(victim)
    files.damage(segment.path, segment.locate(victim) + 70, 3)
    log = Partition(files, "p", CONFIG, NOW)
    assert log.damaged == 0  # nothing was read yet
    found = served(log, 30_000)
    assert found == {one: data for one, data in written.items() if one in bases and one != victim}
    assert log.damaged == 1
    assert f"offsets {victim} to" in log.damage()[0]


@pytest.mark.parametrize("at", [0, 7, 8, 12, 16, 17, 23, 57])
def test_every_field_of_a_header_is_guarded(at: int) -> None:
    """Offset, length and epoch lie outside a batch's checksum; damage there is found, too."""
    for files, written in map(copy.deepcopy, map(a_log, range(3))):
        log = Partition(files, "p", CONFIG, NOW)
        segment = log.segments[0]
        position, _ = list(segment.headers(0))[40]
        files.damage(segment.path, position + at, 0)
        again = Partition(files, "p", CONFIG, NOW)
        found = served(again, 30_000)
        assert again.damaged
        assert found.items() <= written.items()
        assert len(found) > len(written) * 0.6


@settings(max_examples=examples(150), deadline=None)
@given(number=st.integers(0, 2), seed=st.integers(0, 1 << 32))
def test_damage_is_noticed_and_never_served(number: int, seed: int) -> None:
    """Whatever files are flipped, cut or lost, the partition opens, gives out only what was written, says
    that something is missing if it is, and takes new records.
    """
    chance = random.Random(seed)
    files, written = copy.deepcopy(a_log(number))
    start = Partition(copy.deepcopy(files), "p", CONFIG, NOW).start_offset
    is_lost = False
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(files.list("p"))
        size = len(files.load(f"p/{name}") or b"")
        if not is_lost and chance.random() < 0.2:  # without all three files nothing tells
            files.delete(f"p/{name}")
            is_lost = True
        elif not size:
            continue
        elif chance.random() < 0.7:
            files.damage(f"p/{name}", chance.randrange(size), chance.randrange(8))
        else:
            files.open(f"p/{name}").truncate(chance.randrange(size))
    log = Partition(files, "p", CONFIG, NOW, was_there=True)
    found = served(log, 30_000)
    assert found.items() <= written.items()
    expected = [one for one in written if one >= start]
    if any(one not in found for one in expected):
        assert log.damaged or log.cut_bytes or log.lost_files()
    log.find_time(NOW)
    log.aborted(log.start_offset, log.end_offset)
    log.append(batches.build([(b"k", b"new")], timestamps_ms=[NOW]), NOW)
    log.config = replace(CONFIG, cleanup_policy="compact")
    log.sync()
    try:
        log.compactor.run(NOW)
    except (CorruptError, StorageError):
        assert log.damaged or log.compactor.uncleanable
    log.close()
    Partition(files, "p", CONFIG, NOW)
