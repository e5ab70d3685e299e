"""A full disk: records are refused as the protocol says, all else goes on, and it passes by itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.process import BrokerProcess
from penstock.broker.storage.room import Room
from penstock.log import Journal, LogConfig, Partition, StorageError
from penstock.log.disk.memory import MemoryFiles
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

DISK_BYTES = 16 << 20
RESERVE_BYTES = 2 << 20
VALUE = bytes(100_000)
WAIT_S = 120


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill_up(place: Path, *, leave: int = 0) -> Path:
    """Somebody else's file takes the rest of the disk."""
    hog = place / "hog"
    free = os.statvfs(place)
    with hog.open("ab") as file:
        file.write(bytes(max(free.f_bavail * free.f_frsize - leave, 0)))
    return hog


def produce_until_refused(raw, topic: str) -> list[int]:
    """Offsets that were acknowledged before the first refusal."""
    offsets = []
    for _ in range(400):
        answer = raw.produce(topic, batches.build([(None, VALUE)]), acks=-1)
        if answer["error_code"]:
            assert answer["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
            return offsets
        offsets.append(answer["base_offset"])
    raise AssertionError("the disk never filled up")


def produce_until_taken(raw, topic: str) -> int:
    """Tries on as a client does."""
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = raw.produce(topic, batches.build([(None, VALUE)]), acks=-1)
        if not answer["error_code"]:
            return answer["base_offset"]
        assert answer["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def commit(raw, topic: str, offset: int) -> int:
    """Commits an offset; the error."""
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "m" * 3000,
    }
    answer = raw.call(
        ApiKey.OFFSET_COMMIT,
        7,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": topic, "partitions": [part]}],
    )
    return answer["topics"][0]["partitions"][0]["error_code"]


def create(raw, topic: str) -> int:
    """Makes a topic; the error."""
    answer = raw.call(
        ApiKey.CREATE_TOPICS,
        5,
        topics=[
            {
                "name": topic,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [
                    {"name": "segment.bytes", "value": "1048576"},
                    {"name": "message.timestamp.before.max.ms", "value": str(2**62)},
                    {"name": "retention.ms", "value": "-1"},
                ],
            }
        ],
        timeout=1000,
        validate_only=False,
    )
    return answer["topics"][0]["error_code"]


def test_the_reserve_keeps_everything_but_records_going(disk, connect):
    """Reads, commits and deletions go on; with room, records are taken again at once."""
    arguments = ["--min-free-bytes", str(RESERVE_BYTES)]
    with (
        BrokerProcess(disk / "data", arguments=arguments) as broker,
        connect(broker.address) as raw,
    ):
        assert create(raw, "t") == 0
        written = produce_until_refused(raw, "t")
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_frsize > RESERVE_BYTES // 2
        assert written == list(range(len(written)))
        assert commit(raw, "t", 3) == 0
        assert create(raw, "another") == 0
        assert raw.fetch("t", written[-1])["error_code"] == 0
        parts = [{"partition_index": 0, "offset": written[-1]}]
        answer = raw.call(
            ApiKey.DELETE_RECORDS, 1, topics=[{"name": "t", "partitions": parts}], timeout_ms=1000
        )
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0
        assert produce_until_taken(raw, "t") >= len(written)


@pytest.mark.slow
def test_a_disk_that_is_full_to_the_last_byte_passes_by_itself(disk, connect):
    """No record that was acknowledged is lost, the journal and checkpoints included."""
    with BrokerProcess(disk / "data", arguments=["--min-free-bytes", "0"]) as broker:
        with connect(broker.address) as raw:
            assert create(raw, "t") == 0
            assert commit(raw, "t", 0) == 0
            kept = [raw.produce("t", batches.build([(None, VALUE)]), acks=-1)["base_offset"]]
            hog = fill_up(disk)
            kept += produce_until_refused(raw, "t")
            codes = {commit(raw, "t", offset) for offset in range(5)}
            assert codes <= {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert ErrorCode.COORDINATOR_NOT_AVAILABLE in codes
            assert raw.fetch("t", 0)["error_code"] == 0
            broker.kill()
        broker.start()  # on the full disk
        with connect(broker.address) as raw:
            assert raw.fetch("t", kept[-1])["error_code"] == 0
            hog.unlink()
            assert produce_until_taken(raw, "t") >= len(kept)
            assert commit(raw, "t", 1) == 0
            assert create(raw, "another") == 0
        broker.stop()
        broker.start()
        with connect(broker.address) as raw:
            assert raw.produce("t", batches.build([(None, b"v")]))["base_offset"] > len(kept)


def partition(files: MemoryFiles) -> Partition:
    return Partition(files, "t/0", LogConfig(segment_bytes=1000), 0)


def test_a_sync_that_failed_for_want_of_room_is_made_good():
    """What wasn't durable is written again, and then is; what is after a crash says so."""
    files = MemoryFiles()
    log = partition(files)
    log.append(batches.build([(None, bytes(300))]), 1)
    log.sync()
    for _ in range(6):
        log.append(batches.build([(None, bytes(300))]), 1)
    files.fails_to_sync, files.sync_errno = True, errno.ENOSPC
    with pytest.raises(StorageError):
        log.sync()
    with pytest.raises(StorageError):
        log.append(batches.build([(None, b"v")]), 1)
    assert log.repair()
    with pytest.raises(StorageError):
        log.sync()
    files.fails_to_sync = False
    assert log.repair()
    log.append(batches.build([(None, b"v")]), 1)
    log.sync(checkpoint=True)
    log.check()
    assert log.durable_offset == log.end_offset == 8
    assert partition(files).end_offset == 8


def test_other_failures_are_for_good():
    """Only want of room passes; a disk that loses what it took doesn't."""
    files = MemoryFiles()
    log, journal = partition(files), Journal(files, "j")
    log.append(batches.build([(None, b"v")]), 1)
    journal.append(b"one")
    files.fails_to_sync = True
    with pytest.raises(StorageError):
        log.sync()
    journal.end_sync(journal.begin_sync(), OSError(errno.EIO, "no"))
    assert not log.repair()
    assert not journal.repair()
    damaged = partition(MemoryFiles())
    damaged.append(batches.build([(None, bytes(50))]), 1)
    damaged.end_sync(damaged.begin_sync(), OSError(errno.ENOSPC, "full"))
    damaged._files.damage(damaged.active.path, 90, 3)
    assert not damaged.repair()


def test_a_checkpoint_without_room_is_put_off():
    """The records are durable all the same, and the next sync tries again."""
    files = MemoryFiles()
    log = partition(files)
    for _ in range(6):
        log.append(batches.build([(None, bytes(300))]), 1)
    files.room_bytes = 0
    log.sync()
    assert log.failure is None
    assert log.durable_offset == 6
    assert not [name for name in files.list("t/0") if name.endswith(".index")]
    files.room_bytes = None
    log.append(batches.build([(None, b"v")]), 1)
    log.sync()
    closed = len(log.segments) - 1
    assert len([name for name in files.list("t/0") if name.endswith(".index")]) >= closed


def test_a_journal_goes_on_and_one_without_room_is_not_rewritten():
    """It keeps what it has."""
    files = MemoryFiles()
    journal = Journal(files, "j")
    journal.append(b"one")
    journal.end_sync(journal.begin_sync(), OSError(errno.ENOSPC, "full"))
    with pytest.raises(StorageError):
        journal.append(b"two")
    assert journal.repair()
    journal.append(b"two")
    files.room_bytes = 0
    journal.rewrite([b"two"])
    assert list(journal) == [b"one", b"two"]
    files.room_bytes = None
    journal.rewrite([b"two"])
    assert list(journal) == [b"two"]


def test_room_is_refused_below_the_reserve_and_given_above_it(tmp_path):
    """With some slack, so that it doesn't flicker; a small disk has a small reserve."""
    free = [1000, 10_000]
    room = Room(tmp_path, 500, lambda _: (free[0], free[1]))
    room.look()
    assert not room.is_full
    free[0] = 300
    room.take(600)
    assert room.is_full
    assert "log.min.free.bytes" in room.message
    for value, is_full in ((400, True), (520, True), (560, False), (499, True)):
        free[0] = value
        room.look()
        room.check()
        assert room.is_full is is_full
    small = Room(tmp_path, None, lambda _: (1000, 10_000))
    small.look()
    assert small.reserve_bytes == 500
    small.set_aside()
    assert (tmp_path / "ballast").stat().st_size > 0
    assert small.give_up_ballast()
    assert not small.give_up_ballast()
