"""Damage to what no checkpoint vouches for: the segment that is written to, after a crash."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.log.reading import served

from penstock.log.aside import CUTS_MAX
from penstock.log.disk.memory import BLOCK_BYTES, MemoryFiles
from penstock.log.errors import DamagedError, StorageError
from penstock.log.partition import Partition
from penstock.log.segments import scanning
from penstock.log.syncing import PRODUCERS_MAX
from penstock.log.validation import LogConfig
from penstock.wire import batches

NOW = 1_700_000_000_000
CONFIG = LogConfig(retention_ms=-1)
RECORDS = 2


def batch(n: int = 0, *, size: int = 60, **more: int) -> bytearray:
    """A batch of two records without zeros in their values."""
    value = random.Random(n).randbytes(size).replace(b"\0", b"\1")
    return batches.build([(b"k", value)] * RECORDS, timestamps_ms=[NOW] * RECORDS, **more)


def log_of(count: int, config: LogConfig = CONFIG) -> tuple[MemoryFiles, Partition, list[bytes]]:
    """A log that was synced but for a checkpoint, as a process leaves it that is killed."""
    files = MemoryFiles()
    log = Partition(files, "p", config, NOW)
    written = []
    for n in range(count):
        one = batch(n)
        log.append(one, NOW)
        written.append(bytes(one))
    log.sync()
    return files, log, written


def reopen(
    files: MemoryFiles, *, lost_power: bool = False, config: LogConfig = CONFIG
) -> Partition:
    """The partition as the next process finds it."""
    log = Partition(files, "p", config, NOW, was_there=True, lost_power=lost_power)
    log.check()
    return log


def by_offset(written: list[bytes]) -> dict[int, bytes]:
    """Batches by their first offset."""
    return {n * RECORDS: one for n, one in enumerate(written)}


@settings(max_examples=examples(200), deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), lost_power=st.booleans())
def test_a_flipped_bit_costs_one_batch(at: int, bit: int, lost_power: bool) -> None:
    """Wherever it is, the batches before and behind are served and no offset is given out again. Only
    of the last batch, whose size nothing confirms, the bytes may be cut off and kept aside.
    """
    files, log, written = log_of(8)
    at %= log.size
    path, end = log.active.path, log.end_offset
    files.damage(path, at, bit)
    victim = next(n for n in range(8) if at < sum(map(len, written[: n + 1])))
    expected = by_offset(written)
    damaged = bytearray(expected.pop(victim * RECORDS))
    damaged[at - sum(map(len, written[:victim]))] ^= 1 << bit
    again = reopen(files, lost_power=lost_power)
    assert served(again, 500) == expected
    if again.end_offset < end:
        assert victim == 7
        assert files.load("p/00000000000000000014.0.cut") == damaged
        assert "from offset 14 on" in again.notes[0]
        assert "00000000000000000014.0.cut" in again.notes[0]
        return
    for turn in range(3):
        first = victim * RECORDS
        assert (again.damaged, again.end_offset) == (1, end + turn * RECORDS)
        assert f"offsets {first} to {first + 1} in {path}" in again.damage()[0]
        with pytest.raises(DamagedError) as caught:
            again.read(first, 100)
        assert caught.value.next_offset == first + RECORDS
        assert served(again, 500) == expected
        one = batch(100 + turn)
        assert again.append(one, NOW).base_offset == end + turn * RECORDS
        expected[end + turn * RECORDS] = bytes(one)
        again.sync(checkpoint=turn == 1)
        again = reopen(files, lost_power=turn == 0)


def test_most_flips_in_the_last_batch_leave_a_hole() -> None:
    """All but those in the fields that say how large it is: what it held is known, and so refused."""
    cut = []
    for at in range(len(batch(7))):
        files, log, written = log_of(8)
        files.damage(log.active.path, sum(map(len, written[:7])) + at, 0)
        again = reopen(files, lost_power=True)
        if again.end_offset < log.end_offset:
            cut.append(at)
    assert set(cut) <= {*range(8, 12), 16, *range(23, 27), *range(57, 61)}, cut


def test_a_damaged_file_that_is_restored_closes_the_hole() -> None:
    """The segment was closed, so that nothing was written behind the damage in its file."""
    files, log, written = log_of(8)
    path = log.active.path
    whole = files.load(path)
    assert whole is not None
    files.damage(path, 100, 1)
    again = reopen(files)
    one = batch(9)
    again.append(one, NOW)
    again.close()
    files.store(path, whole)
    again = reopen(files)
    assert again.damaged == 0
    assert served(again, 500) == by_offset([*written, bytes(one)])


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_block_that_was_never_written(lost_power: bool) -> None:
    """After the machine went down it is the torn end, as nothing behind it had been synced, and what is
    cut off is kept; else it is damage like any other.
    """
    files, log, written = log_of(40)
    path = log.active.path
    data = bytearray(files.load(path) or b"")
    data[3 * BLOCK_BYTES : 4 * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    files.store(path, data)
    again = reopen(files, lost_power=lost_power)
    sizes = [sum(map(len, written[:n])) for n in range(41)]
    first = max(n for n in range(40) if sizes[n] <= 3 * BLOCK_BYTES)
    following = min(n for n in range(40) if sizes[n] >= 4 * BLOCK_BYTES)
    expected = by_offset(written)
    if lost_power:
        assert served(again, 500) == by_offset(written[:first])
        assert again.end_offset == first * RECORDS
        kept = files.load(f"p/{first * RECORDS:020d}.0.cut")
        assert kept == data[sizes[first] :]
        assert f"whole batches behind them, from offset {following * RECORDS} on" in again.notes[0]
    else:
        for n in range(first, following):
            del expected[n * RECORDS]
        assert served(again, 500) == expected
        assert again.end_offset == log.end_offset


def test_what_a_torn_write_leaves_is_cut_off_and_kept() -> None:
    """A few of them, the newest; zeros alone are nothing to keep."""
    files, log, written = log_of(1)
    for n in range(1, CUTS_MAX + 4):
        file = files.open(log.active.path)
        file.write(log.active.size, batch(n)[: 15 * n])
        log = reopen(files, lost_power=n % 2 == 0)
        assert (log.end_offset, log.cut_bytes) == (RECORDS, 15 * n)
    names = [name for name in files.list("p") if name.endswith(".cut")]
    assert len(names) == CUTS_MAX
    files.open(log.active.path).write(log.active.size, bytes(5000))
    log = reopen(files)
    assert log.cut_bytes == 5000
    assert [name for name in files.list("p") if name.endswith(".cut")] == names
    assert served(log, 500) == by_offset(written)


def test_without_room_a_torn_end_is_said_to_be_lost() -> None:
    """The log goes on, and nobody looks for the bytes."""
    files, log, _ = log_of(3)
    files.open(log.active.path).write(log.active.size, batch(9)[:50])
    files.room_bytes = 0
    again = reopen(files)
    assert again.cut_bytes == 50
    assert "could not be kept aside" in again.notes[0]


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 32), damages=st.integers(1, 4))
def test_damage_in_several_places(seed: int, damages: int) -> None:
    """Overwritten stretches of any size anywhere: whole batches are served, at most one alone between
    two of them is given up with them, and the end stays where it was: the last two are not hit.
    """
    chance = random.Random(seed)
    files, log, written = log_of(30)
    path = log.active.path
    data = bytearray(files.load(path) or b"")
    hit = set()
    sizes = [sum(map(len, written[:n])) for n in range(31)]
    for _ in range(damages):
        size = chance.choice([1, 10, 61, 300, 700])
        at = chance.randrange(len(data) - size - len(written[-1]) - len(written[-2]))
        data[at : at + size] = chance.randbytes(size)
        hit |= {n for n in range(30) if sizes[n] < at + size and at < sizes[n + 1]}
    files.store(path, data)
    again = reopen(files, lost_power=chance.random() < 0.5)
    found, whole = served(again, 500), by_offset(written)
    assert found.items() <= whole.items()
    assert again.end_offset == log.end_offset
    spared = {n for n in range(30) if n not in hit}
    alone = {n for n in spared if n - 1 in hit and n + 1 in hit}
    assert set(found) >= {n * RECORDS for n in spared - alone}


def test_batches_within_records_are_not_taken_for_the_logs() -> None:
    """A topic may hold a copy of another one: its records are batches, with offsets that would fit."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    inner = b"".join(bytes(one) for one in (batch(n) for n in range(20)))
    nested = bytearray(inner)
    at = 0
    for n, (_, header) in enumerate(batches.iterate(inner)):
        batches.patch(nested, at, 3 + 2 * n, 0)
        at += header.size
    copies = batches.build([(b"k", bytes(nested))], timestamps_ms=[NOW])
    log.append(batch(1), NOW)
    log.append(copies, NOW)
    for n in range(5):
        log.append(batch(n), NOW)
    log.sync()
    files.damage(log.active.path, len(batch(1)) + 8, 6)  # the length: where it ends isn't known
    again = reopen(files)
    assert sorted(served(again, 500)) == [0, *range(3, 13, 2)]
    assert again.end_offset == log.end_offset


def test_records_that_look_like_batches_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that are read for checksums are few times those that are searched."""
    checked: list[int] = []
    real = batches.checksum_matches

    def count(data: batches.Buffer, at: int, header: batches.Header) -> bool:
        checked.append(header.size)
        return real(data, at, header)

    head = batch(0)
    batches.patch(head, 0, 7, 0)
    head[8:12] = (100_000).to_bytes(4, "big")
    data = bytes(200) + bytes(head[:61]) * 4000
    monkeypatch.setattr(batches, "checksum_matches", count)
    gap = scanning.find_gap(data, 0, 0, 1000, has_gaps=False, may_be_torn=False)
    assert gap is None
    assert 0 < sum(checked) <= (scanning.CHECKED_TIMES_MAX + 1) * len(data)


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_closed_segment_that_is_cut_is_a_hole_for_a_process_that_was_killed(
    lost_power: bool,
) -> None:
    """What a later segment follows on was written; unless the machine went down before its sync."""
    config = replace(CONFIG, segment_bytes=1000)
    files, log, written = log_of(12, config)
    first, second = log.segments[:2]
    for segment in log.segments:
        files.delete(segment.index_path)
    files.delete("p/producers")
    files.open(first.path).truncate(first.size - 10)
    again = reopen(files, lost_power=lost_power, config=config)
    expected = by_offset(written)
    lost = second.base_offset - RECORDS
    if lost_power:
        assert served(again, 500) == {one: data for one, data in expected.items() if one < lost}
        assert again.lost_files()
    else:
        del expected[lost]
        assert served(again, 500) == expected
        assert again.end_offset == log.end_offset


def test_a_checkpoint_comes_after_a_recovery() -> None:
    """What was read and found whole is vouched for with the next sync, and isn't read again."""
    files, log, written = log_of(20)
    again = reopen(files)
    assert again.is_dirty
    again.sync()
    assert not again.is_dirty
    assert (again.unvouched_bytes, again._is_checkpointed) == (0, True)
    files.open(log.active.path).truncate(log.size - len(written[-1]))
    again = reopen(files)
    assert (again.damaged, again.end_offset) == (1, log.end_offset)
    assert f"offsets 38 to 39 in {log.active.path}" in again.damage()[0]


def test_a_checkpoint_that_is_wanted_is_written_once() -> None:
    """And none where nothing was appended since the last one, however often it is asked for."""
    files, log, _ = log_of(3)
    assert not log.is_dirty
    log.want_checkpoint()
    assert log.is_dirty
    log.sync()
    index = files.load(log.active.index_path)
    assert index is not None
    files.delete(log.active.index_path)
    log.want_checkpoint()
    assert not log.is_dirty
    log.sync()
    assert files.load(log.active.index_path) is None
    log.append(batch(5), NOW)
    log.want_checkpoint()
    files.room_bytes = 0
    log.sync()
    assert files.load(log.active.index_path) is None
    files.room_bytes = None
    log.want_checkpoint()
    log.sync()
    assert files.load(log.active.index_path) is not None


def test_a_checkpoint_by_time_leaves_out_many_producers() -> None:
    """It vouches for the bytes; the producers follow with the next one after many bytes, or at the end."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    for producer in range(PRODUCERS_MAX + 1):
        more = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        log.append(batch(producer, **more), NOW)
        log.want_checkpoint()
        log.sync()
        assert log.unvouched_bytes == 0
        assert not log.is_dirty
    again = reopen(files)
    assert (again._snapshot_offset, again.unvouched_bytes) == (PRODUCERS_MAX * RECORDS, 0)
    assert len(again.producers) == PRODUCERS_MAX + 1
    again.close()
    assert reopen(files)._snapshot_offset == log.end_offset


@pytest.mark.parametrize("left", [0, 1, 7])
def test_a_log_that_was_longer_goes_on_above(left: int) -> None:
    """Where others know of offsets beyond its end: those between are a hole, start after start."""
    files, log, written = log_of(8)
    files.open(log.active.path).truncate(sum(map(len, written[:left])))
    again = reopen(files)
    assert (again.damaged, again.end_offset) == (0, left * RECORDS)
    again.go_on_above(20, NOW)
    again.check()
    expected = by_offset(written[:left])
    for turn in range(3):
        first = left * RECORDS
        assert (again.damaged, again.end_offset) == (1, 20 + turn * RECORDS)
        assert f"offsets {first} to 19 in {log.active.path}" in again.damage()[0]
        with pytest.raises(DamagedError) as caught:
            again.read(first, 100)
        assert caught.value.next_offset == 20
        one = batch(50 + turn)
        assert again.append(one, NOW).base_offset == 20 + turn * RECORDS
        expected[20 + turn * RECORDS] = bytes(one)
        assert served(again, 500) == expected
        again.sync()
        again = reopen(files, lost_power=turn == 1)
    again.go_on_above(40, NOW)
    again.go_on_above(50, NOW)
    assert again.append(batch(60), NOW).base_offset == 50
    assert again.damaged == 3


def test_transactions_that_damage_interrupts_are_named() -> None:
    """Which were open where it begins: their end, or some of their records, may lie in it."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    more = {"producer_epoch": 0, "attributes": 0x10}
    for n, producer in enumerate((7, 9, 7)):
        one = batch(n, producer_id=producer, base_sequence=RECORDS * (n // 2), **more)
        log.append(one, NOW)
    log.append_marker(9, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    log.append(batch(5), NOW)
    log.append_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    log.sync()
    size = len(batch(0, producer_id=1, base_sequence=0, **more))
    files.damage(log.active.path, 2 * size + 70, 1)
    again = reopen(files)
    assert again.open_transactions() == {}
    assert [tuple(one) for one in again.interrupted] == [(7, 0, 4, 6), (9, 2, 4, 6)]


def test_whatever_is_open_at_a_lost_end_is_named() -> None:
    """Its marker was lost with the end."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    one = batch(0, producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    log.append(one, NOW)
    log.append_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    log.sync()
    files.open(log.active.path).truncate(len(one))
    again = reopen(files)
    again.go_on_above(3, NOW)
    assert [tuple(one) for one in again.interrupted] == [(7, 0, 2, 3)]
    assert again.open_transactions() == {7: 0}


def test_a_file_that_fails_to_be_read_is_no_torn_end() -> None:
    """Damage in a hole's segment stays where it is: appends go elsewhere."""
    files, log, written = log_of(8)
    files.damage(log.active.path, 100, 1)
    again = reopen(files)
    before = files.load(log.active.path)
    again.append(batch(9), NOW)
    again.close()
    assert files.load(log.active.path) == before
    again = reopen(files)
    with pytest.raises(StorageError):
        again.read(0, 100)
    assert served(again, 500) | by_offset(written[:1]) == by_offset(
        [*written, bytes(again_batch())]
    )


def again_batch() -> bytearray:
    """The ninth batch as the log has it."""
    one = batch(9)
    batches.patch(one, 0, 16, 0)
    return one
