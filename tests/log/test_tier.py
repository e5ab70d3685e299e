from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import StorageError
from penstock.log.partition import Partition
from penstock.log.segments.segment import Segment
from penstock.log.tier import Chunks, Manifest, RemoteSegment
from penstock.log.validation import LogConfig
from penstock.wire import batches

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=600, retention_ms=-1, remote_storage=True)


class MemoryTier:
    """A tier whose segments are all at hand."""

    def __init__(self) -> None:
        self.files = MemoryFiles()

    def open(self, segment: RemoteSegment) -> Segment:
        found = Segment(self.files, "tier", segment.base_offset, NOW)
        found.recover(lambda *_: None, segment.next_offset)
        return found


def batch(count: int, first_ms: int) -> bytearray:
    records = [(b"%d" % n, bytes(40)) for n in range(count)]
    return batches.build(records, timestamps_ms=[first_ms + n for n in range(count)])


def copy_one(log: Partition, files: MemoryFiles, tier: MemoryTier) -> None:
    """Copies the oldest segment that isn't in the tier."""
    for one in log.closed_segments():
        if one.base_offset >= log.remote.end_offset:
            data = bytes(files.open(one.path).read(0, one.size))
            tier.files.open(f"tier/{one.base_offset:020d}.log").write(0, data)
            listed = RemoteSegment(
                one.base_offset, one.next_offset, one.size, one.max_timestamp,
                f"{one.base_offset}", crc32c(data), 0, 0, one.aborted,
            )  # fmt: skip
            log.remote = log.remote.added(listed)
            files.store(log.manifest_path, log.remote.dump())
            return


def drop(log: Partition, files: MemoryFiles, before: int) -> None:
    log.remote = log.remote.dropped(before)
    files.store(log.manifest_path, log.remote.dump())
    log.drop_local(before)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("seed", range(8))
def test_a_tiered_log_reads_as_an_untiered_one(seed: int) -> None:
    """Whatever is copied, dropped, deleted and lost in crashes, reads and look-ups stay the same."""
    chance = random.Random(seed)
    files, tier, plain_files = MemoryFiles(), MemoryTier(), MemoryFiles()
    log, plain = Partition(files, "p", CONFIG, NOW), Partition(plain_files, "p", CONFIG, NOW)
    log.tier = tier
    for step in range(120):
        match chance.choice(["append", "append", "append", "copy", "drop", "delete", "crash"]):
            case "append":
                one = batch(chance.randint(1, 4), NOW + 10 * step)
                plain.append(bytearray(one), NOW)
                log.append(one, NOW)
                log.sync()
            case "copy":
                copy_one(log, files, tier)
            case "drop":
                bases = [one.base_offset for one in log.segments]
                fit = [one for one in bases if one <= log.remote.end_offset]
                if fit and fit[-1] >= log.remote.local_start_offset:
                    drop(log, files, fit[-1])
            case "delete" if chance.random() < 0.2:
                before = chance.randint(log.start_offset, log.end_offset)
                log.delete_records(before, NOW)
                plain.delete_records(before, NOW)
                log.remote = log.remote.trimmed(log.start_offset)
                files.store(log.manifest_path, log.remote.dump())
            case "crash":
                log.sync()
                files.crash(chance)
                log = Partition(files, "p", CONFIG, NOW)
                log.tier = tier
            case _:
                pass
        log.check()
        assert (log.start_offset, log.end_offset) == (plain.start_offset, plain.end_offset)
        offset = log.start_offset
        while offset < log.end_offset:
            found, expected = log.read(offset, 200), plain.read(offset, 200)
            assert bytes(found) == bytes(expected)
            offset = [header.next_offset for _, header in batches.iterate(bytes(found))][-1]
        when = NOW + chance.randint(0, 10 * step + 5)
        assert log.find_time(when) == plain.find_time(when)
        assert log.find_latest_time() == plain.find_latest_time()


def test_retention_counts_what_lies_in_the_tier() -> None:
    """Time and size limits of the whole log delete remote segments, too."""
    files, tier = MemoryFiles(), MemoryTier()
    log = Partition(files, "p", CONFIG, NOW)
    log.tier = tier
    for n in range(40):
        log.append(batch(3, NOW + 1000 * n), NOW)
    log.sync()
    for _ in range(5):
        copy_one(log, files, tier)
    drop(log, files, log.remote.end_offset)
    assert log.local_start_offset == log.remote.end_offset > 0
    second = log.remote.segments[1]
    log.config = LogConfig(segment_bytes=600, retention_ms=10_000, remote_storage=True)
    log.retain(second.max_timestamp + 10_000)
    assert log.start_offset == second.base_offset
    whole = sum(one.size for one in log.remote.segments[1:]) + log.size
    log.config = LogConfig(segment_bytes=600, retention_ms=-1, retention_bytes=whole - second.size)
    log.retain(NOW)
    assert log.start_offset == second.next_offset
    log.remote = log.remote.trimmed(log.start_offset)
    log.check()


def test_aborted_transactions_are_known_wherever_they_lie() -> None:
    """What was aborted in segments that lie in the tier only is told as before, after a crash too."""
    files, tier = MemoryFiles(), MemoryTier()
    log = Partition(files, "p", CONFIG, NOW)
    log.tier = tier
    chance = random.Random(4)
    for n in range(60):
        producer = n % 3
        if log.has_open_transaction(producer, 0) and chance.random() < 0.5:
            ends = {"commit": chance.random() < 0.5, "coordinator_epoch": 0, "now_ms": NOW}
            log.append_marker(producer, 0, **ends)
        one = batches.build(
            [(b"k", bytes(60))], timestamps_ms=[NOW], producer_id=producer, producer_epoch=0,
            base_sequence=n // 3, attributes=0x10,
        )  # fmt: skip
        log.append(one, NOW)
    for producer in log.open_transactions():
        log.append_marker(producer, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
    log.sync()
    expected = log.aborted(0, log.end_offset)
    assert len(expected) > 5
    while log.remote.end_offset < log.active.base_offset:
        copy_one(log, files, tier)
        drop(log, files, log.remote.end_offset)
        assert log.aborted(0, log.end_offset) == expected
    log = Partition(files, "p", CONFIG, NOW)
    log.tier = tier
    log.check()
    assert log.aborted(0, log.end_offset) == expected
    assert log.local_start_offset > 40


def test_without_its_tier_a_partition_says_what_to_do() -> None:
    """A broker that is started without the tier reads what is local, and names the option."""
    files, tier = MemoryFiles(), MemoryTier()
    log = Partition(files, "p", CONFIG, NOW)
    for n in range(20):
        log.append(batch(3, NOW + n), NOW)
    log.sync()
    copy_one(log, files, tier)
    drop(log, files, log.remote.end_offset)
    with pytest.raises(StorageError, match="--tier"):
        log.read(0, 100)
    assert log.read(log.local_start_offset, 100)


def test_a_damaged_manifest_is_refused() -> None:
    """A manifest whose checksum is wrong is never taken for an empty one."""
    manifest = Manifest((RemoteSegment(0, 5, 100, 7, "n", 1, 2, 3, ((9, 0, 4),)),), 5)
    data = manifest.dump()
    assert Manifest.restore(data) == manifest
    assert Manifest.restore(None) is None
    with pytest.raises(StorageError):
        Manifest.restore(data.replace(b"100", b"101"))


def test_a_manifest_knows_what_it_lacks() -> None:
    """Segments may be added behind a gap and into it, in any order."""
    manifest = Manifest()
    assert manifest.missing_from(7) == 7
    bases = list(range(0, 100, 10))
    random.Random(1).shuffle(bases)
    held: set[int] = set()
    for base in bases:
        manifest = manifest.added(RemoteSegment(base, base + 10, 1, 1, f"{base}", 0, 0, 0))
        held.add(base)
        manifest.check()
        assert Manifest.restore(manifest.dump()) == manifest
        for offset in range(0, 110, 5):
            lacks = next(one for one in range(offset, 120) if one // 10 * 10 not in held)
            assert manifest.missing_from(offset) == lacks
            after = [one for one in sorted(held) if one > offset]
            assert manifest.base_after(offset) == (after[0] if after else None)


def test_an_index_object_that_differs_is_refused() -> None:
    """What the store gives for an index is checked against the manifest."""
    files = MemoryFiles()
    log = Partition(files, "p", CONFIG, NOW)
    for n in range(20):
        log.append(batch(3, NOW + n), NOW)
    log.sync()
    info = log.closed_segments()[0]
    stored = files.load(info.index_path)
    assert stored is not None
    data = Chunks.dump(stored, [1, 2, 3])
    listed = RemoteSegment(0, info.next_offset, 1, 1, "n", 0, len(data), crc32c(data))
    loaded = Chunks.load(data, listed)
    assert list(loaded.checksums) == [1, 2, 3]
    assert loaded.checkpoint.next_offset == info.next_offset
    with pytest.raises(StorageError):
        Chunks.load(data[:-1] + b"x", listed)
