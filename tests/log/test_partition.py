from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.log.disk.files import LocalFiles, LogFiles
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import (
    AppendError,
    DamagedError,
    OffsetRangeError,
    StorageError,
)
from penstock.log.partition import Partition
from penstock.log.segments.index import INTERVAL_BYTES_MAX
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.checksum import crc32c
from penstock.wire.protocol import ErrorCode

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=2_000, retention_ms=-1)


def batch(
    count: int = 3, size: int = 40, first_ms: int = NOW, step_ms: int = 1, **kwargs: int
) -> bytearray:
    """A batch of `count` records."""
    records = [(b"%d" % n, bytes(size)) for n in range(count)]
    times = [first_ms + step_ms * n for n in range(count)]
    return batches.build(records, timestamps_ms=times, **kwargs)


def reopen(files: LogFiles, config: LogConfig = SMALL) -> Partition:
    """The partition as a new process finds it."""
    log = Partition(files, "p", config, NOW)
    log.check()
    return log


def read_all(log: Partition, bytes_max: int = 700) -> list[bytes]:
    """Every batch from the start offset on, through reads of `bytes_max`."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = bytes(log.read(offset, bytes_max))
        assert data
        for at, header in batches.iterate(data):
            found.append(data[at : at + header.size])
            offset = header.next_offset
        assert sum(len(one) for one in found[-len(list(batches.iterate(data))) :]) == len(data)
    return found


def read_from(log: Partition, offset: int) -> list[bytes]:
    """Every batch from an offset on."""
    found: list[bytes] = []
    while offset < log.end_offset:
        data = bytes(log.read(offset, 700))
        for at, header in batches.iterate(data):
            found.append(data[at : at + header.size])
            offset = header.next_offset
    return found


@pytest.fixture(params=["memory", "local"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LogFiles:
    """Both kinds of files: a log behaves the same on either."""
    return MemoryFiles() if request.param == "memory" else LocalFiles(tmp_path)


def test_append_read_reopen(files: LogFiles) -> None:
    """What is appended is read back in order with patched offsets, also after a reopening."""
    log = reopen(files)
    written = []
    for n in range(100):
        one = batch(1 + n % 5)
        assert log.append(one, NOW).base_offset == log.end_offset - (1 + n % 5)
        written.append(bytes(one))
    log.check()
    assert len(log.segments) > 3
    assert read_all(log) == written
    assert read_all(log, 1) == written
    assert read_all(log, 1 << 20) == written
    log.close()
    again = reopen(files)
    assert again.end_offset == log.end_offset
    assert read_all(again) == written
    assert again.cut_bytes == 0


def test_every_offset_finds_its_batch(files: LogFiles) -> None:
    """A read at any offset begins with the batch that holds it, whatever was read before."""
    log = reopen(files)
    while log.end_offset < 300:
        log.append(batch(7), NOW)
    order = list(range(log.end_offset))
    random.Random(1).shuffle(order)
    for offset in order:
        header = batches.parse(log.read(offset, 500))
        assert header.base_offset <= offset < header.next_offset


def test_large_reads_are_views(tmp_path: Path) -> None:
    """A large read of local files maps them, and the view outlives a deletion of the file."""
    log = Partition(LocalFiles(tmp_path), "p", LogConfig(), NOW)
    for _ in range(20):
        log.append(batch(100, 200), NOW)
    view = log.read(0, 1 << 20)
    assert isinstance(view, memoryview)
    before = bytes(view)
    log.delete_records(log.end_offset, NOW)
    assert bytes(view) == before


def test_clean_close_needs_no_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that was closed in order opens without reading its batches."""
    log = Partition(LocalFiles(tmp_path), "p", SMALL, NOW)
    for _ in range(100):
        log.append(batch(), NOW)
    log.close()

    def refuse(*_: object) -> bool:
        raise AssertionError("a batch was checked")

    monkeypatch.setattr(batches, "checksum_matches", refuse)
    assert Partition(LocalFiles(tmp_path), "p", SMALL, NOW).end_offset == log.end_offset


def test_unclean_stop_scans_from_the_checkpoint_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash only the batches since the last checkpoint are read."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    for _ in range(50):
        log.append(batch(), NOW)
    log.sync(checkpoint=True)
    for _ in range(3):
        log.append(batch(), NOW)
    log.sync()
    checked = []
    real: Callable[..., bool] = batches.checksum_matches
    monkeypatch.setattr(batches, "checksum_matches", lambda *args: checked.append(1) or real(*args))
    again = Partition(files, "p", LogConfig(), NOW)
    assert again.end_offset == log.end_offset
    assert len(checked) == 3


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_crashes_lose_nothing_durable(data: st.DataObject, seed: int) -> None:
    """After any appends, syncs and crashes the log is a prefix of what was appended and holds all
    that was synced; producers are what a naive pass over the log gives.
    """
    chance = random.Random(seed)
    files = MemoryFiles()
    log = reopen(files)
    model: list[bytes] = []
    durable = 0
    sequences: dict[int, int] = {}
    steps = st.sampled_from(["append"] * 6 + ["sync", "checkpoint", "crash", "kill", "full"])
    for step in data.draw(st.lists(steps, max_size=40)):
        match step:
            case "append":
                producer = chance.randint(-1, 2)
                count = chance.randint(1, 6)
                one = batch(count, chance.randint(0, 200))
                if producer >= 0:
                    first = sequences.get(producer, 0)
                    one = batch(
                        count,
                        chance.randint(0, 200),
                        producer_id=producer,
                        producer_epoch=0,
                        base_sequence=first,
                    )
                    sequences[producer] = first + count
                log.append(one, NOW)
                model.append(bytes(one))
            case "sync" | "checkpoint":
                log.sync(checkpoint=step == "checkpoint")
                durable = len(model)
            case "full":
                files.room_bytes = chance.randint(0, 100)
                with pytest.raises(StorageError):
                    log.append(batch(3, 200), NOW)
                files.room_bytes = None
            case _:
                if step == "crash":
                    files.crash(chance)
                log = reopen(files)
                found = read_all(log)
                assert found == model[: len(found)]
                assert len(found) >= durable
                assert step == "crash" or len(found) == len(model)
                model = found
                if step == "crash":
                    durable = len(found)
                sequences = naive_sequences(model)
        log.check()
        assert read_all(log) == model
        assert {one[0]: one.last_sequence + 1 for one in log.producers.describe()} == sequences


def naive_sequences(model: list[bytes]) -> dict[int, int]:
    """The next sequence of each producer, by looking at every batch."""
    headers = [batches.parse(one) for one in model]
    return {one.producer_id: one.last_sequence + 1 for one in headers if one.producer_id >= 0}


@pytest.mark.quick_cases(24)
@pytest.mark.parametrize("cut", range(0, 420, 7))
def test_torn_tail_is_cut(cut: int) -> None:
    """Whatever number of bytes is missing at the end, the whole batches before it are kept."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    written = []
    for _ in range(5):
        one = batch(2)
        log.append(one, NOW)
        written.append(bytes(one))
    size = log.size
    file = files.open(log.active.path)
    file.truncate(max(size - cut, 0))
    again = Partition(files, "p", LogConfig(), NOW)
    whole = max(size - cut, 0) // len(written[0])
    assert read_all(again) == written[:whole]
    again.append(batch(), NOW)
    again.check()


@settings(max_examples=examples(60), deadline=None)
@given(
    at=st.integers(0, 10_000), bit=st.integers(0, 7), name=st.sampled_from(["index", "producers"])
)
def test_damaged_side_files_are_rebuilt(at: int, bit: int, name: str) -> None:
    """An index or a snapshot with a flipped bit is noticed and rebuilt from the log."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for n in range(30):
        one = batch(2, producer_id=5, producer_epoch=0, base_sequence=2 * n)
        log.append(one, NOW)
    log.close()
    path = "p/producers" if name == "producers" else log.segments[at % 3].index_path
    content = files.load(path)
    assert content is not None
    files.damage(path, at % len(content), bit)
    again = reopen(files)
    assert read_all(again) == read_all(log)
    assert again.producers.describe()[0][:3] == (5, 0, 59)


def test_segments_after_a_gap_are_set_aside() -> None:
    """Where no checkpoint says that the log was whole, a segment that doesn't follow the one before
    is kept under another name and not served.
    """
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(40):
        log.append(batch(), NOW)
    lost = log.segments[1]
    files.delete(lost.path)
    again = reopen(files)
    assert again.end_offset == lost.base_offset
    assert again.cut_bytes > 0
    assert again.lost_files()


def test_lost_segment_is_a_hole() -> None:
    """Where a checkpoint says that the log was whole, the records before and after a lost segment
    are served, and those in it are refused.
    """
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(40):
        log.append(batch(), NOW)
    log.close()
    lost = log.segments[1]
    files.delete(lost.path)
    files.delete(lost.index_path)
    for _ in range(2):
        again = reopen(files)
        assert (again.end_offset, again.damaged, again.lost_files()) == (log.end_offset, 1, [])
        for offset in range(lost.base_offset, lost.next_offset):
            with pytest.raises(DamagedError) as caught:
                again.read(offset, 100)
            assert caught.value.next_offset == lost.next_offset
        for offset in (lost.base_offset - 3, lost.next_offset):
            assert bytes(again.read(offset, 100)) == bytes(log.read(offset, 100))
        again.append(batch(), NOW)
        again.close()
        log.append(batch(), NOW)


@pytest.mark.parametrize("keeps_index", [True, False])
def test_a_lost_first_segment_is_a_hole(keeps_index: bool) -> None:
    """What follows on it is served as before, whether or not its index file is left."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(40):
        log.append(batch(), NOW)
    log.close()
    files.delete(log.segments[0].path)
    if not keeps_index:
        files.delete(log.segments[0].index_path)
    for _ in range(2):
        again = reopen(files)
        assert (again.start_offset, again.end_offset) == (0, log.end_offset)
        assert (again.damaged, again.lost_files()) == (1, [])
        with pytest.raises(DamagedError) as caught:
            again.read(0, 100)
        assert caught.value.next_offset == log.segments[1].base_offset
        assert len(read_from(again, caught.value.next_offset)) == 40 - caught.value.next_offset // 3
        again.close()


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("left", [None, 0, 200])
def test_offsets_that_were_durable_are_never_given_out_again(
    left: int | None, has_index: bool
) -> None:
    """Where the log's last segment is lost or cut, new records follow on those that were there: who
    had read further would pass over them otherwise. The lost ones are refused, start after start.
    """
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(38):
        log.append(batch(), NOW)
    log.close()
    last, end = log.active, log.end_offset
    assert last.size > 400
    if left is None:
        files.delete(last.path)
    else:
        files.open(last.path).truncate(left)
    if not has_index:
        files.delete(last.index_path)  # the producers' snapshot still tells
    written: list[bytes] = []
    for turn in range(3):
        again = reopen(files)
        assert again.end_offset == end + 3 * turn
        assert (again.damaged, again.lost_files()) == (1, [])
        assert f"to {end - 1} in " in again.damage()[0]
        with pytest.raises(DamagedError) as caught:
            again.read(end - 1, 100)
        assert caught.value.next_offset == end
        assert read_from(again, end) == written
        one = batch()
        assert again.append(one, NOW).base_offset == end + 3 * turn
        written.append(bytes(one))
        again.sync()  # and no checkpoint, as before a SIGKILL


def test_a_lost_segment_with_a_damaged_index_is_reported() -> None:
    """That there was one is known by the name alone, and up to where by the producers' snapshot."""
    for keeps_snapshot in (True, False):
        files = MemoryFiles()
        log = Partition(files, "p", SMALL, NOW)
        for _ in range(38):
            log.append(batch(), NOW)
        log.close()
        files.delete(log.active.path)
        files.damage(log.active.index_path, 20, 1)
        if not keeps_snapshot:
            files.delete("p/producers")
        again = reopen(files)
        assert "the index itself is damaged" in again.damage()[0]
        assert again.end_offset == (log.end_offset if keeps_snapshot else log.active.base_offset)


def test_a_restored_file_repairs_the_hole() -> None:
    """Once a lost file is back, the log is what it was."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(38):
        log.append(batch(), NOW)
    log.close()
    path, whole = log.active.path, files.load(log.active.path)
    assert whole is not None
    files.delete(path)
    again = reopen(files)
    again.append(batch(), NOW)
    again.close()
    files.store(path, whole)
    again = reopen(files)
    assert again.damaged == 0
    assert read_all(again)[:38] == read_all(log)


@pytest.mark.parametrize("left", [set(), {"producers"}])
def test_a_log_of_which_no_segment_is_left_is_reported(left: set[str]) -> None:
    """A partition that isn't new has one; what is known of its end is not given out again."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    assert not log.damaged
    for _ in range(40):
        log.append(batch(), NOW)
    log.close()
    for name in files.list("p"):
        if name not in left:
            files.delete(f"p/{name}")
    again = Partition(files, "p", SMALL, NOW, was_there=True)
    again.check()
    assert again.damaged
    assert "expected segments in p; found none" in again.damage()[0]
    assert (again.start_offset, again.end_offset) == (0, log.end_offset if left else 0)
    if left:
        with pytest.raises(DamagedError):
            again.read(0, 100)


def test_an_index_of_deleted_records_is_no_loss() -> None:
    """A sync may store the index of a segment that retention has deleted meanwhile."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for _ in range(40):
        log.append(batch(), NOW)
    task = log.begin_sync()
    log.delete_records(log.segments[2].base_offset + 1, NOW)
    task.run()
    log.end_sync(task)
    assert "00000000000000000000.index" in files.list("p")
    again = reopen(files)
    assert again.damaged == 0
    assert "00000000000000000000.index" not in files.list("p")
    assert read_all(again) == read_all(log)


def test_retention_passes_over_lost_segments() -> None:
    """A segment of which nothing is left goes with the one after it, and holds nothing up."""
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)
    for n in range(40):
        log.append(batch(first_ms=NOW + 1000 * n), NOW)
    log.close()
    files.delete(log.segments[1].path)
    third = log.segments[2]
    again = reopen(files, LogConfig(segment_bytes=2_000, retention_ms=10_000))
    again.retain(log.segments[1].max_timestamp + 10_000)
    assert again.start_offset == log.segments[1].base_offset
    again.retain(third.max_timestamp + 10_001)
    assert again.start_offset == third.next_offset
    assert again.damaged == 0


# -- refusals --------------------------------------------------------------------------------------


def refusal(log: Partition, one: bytearray) -> ErrorCode:
    """The code that a batch is refused with; the log must be unchanged."""
    end, size = log.end_offset, log.size
    with pytest.raises(AppendError) as caught:
        log.append(one, NOW)
    assert (log.end_offset, log.size) == (end, size)
    return caught.value.code


def test_invalid_batches_are_refused(files: LogFiles) -> None:
    """Each kind of wrong batch gets the protocol's code and leaves the log as it was."""
    log = Partition(files, "p", LogConfig(max_message_bytes=500), NOW)
    flipped = batch()
    flipped[-1] ^= 1
    assert refusal(log, flipped) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log, batch()[:-1]) is ErrorCode.INVALID_RECORD
    assert refusal(log, bytearray(10)) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch() + batch()) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch(1, 600)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(log, batch(attributes=0x20)) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch(attributes=0x10)) is ErrorCode.INVALID_RECORD
    assert refusal(log, batch(attributes=0x07)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(log, batch(first_ms=NOW + 3_700_000)) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(log, batch(0)) is ErrorCode.INVALID_RECORD
    old = batch()
    old[16] = 1
    assert refusal(log, old) is ErrorCode.INVALID_RECORD
    assert log.append(batch(), NOW).base_offset == 0


OWN_COMPRESSIONS = {
    "uncompressed": ("none", {}),
    "gzip": ("gzip", {"gzip_level": 9}),
    "snappy": ("snappy", {}),
    "lz4": ("lz4", {"lz4_level": 17}),
    "zstd": ("zstd", {"zstd_level": -5}),
}


@pytest.mark.parametrize("own", OWN_COMPRESSIONS)
@pytest.mark.parametrize("produced", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("append_time", [False, True])
def test_batches_are_stored_in_the_logs_compression(
    own: str, produced: str, append_time: bool
) -> None:
    """Whatever the producer's was; records, times, sequences and checksum are right, and a retry is
    known.
    """
    codec, level = OWN_COMPRESSIONS[own]
    files = MemoryFiles()
    config = LogConfig(compression_type=own, append_time=append_time, **level)
    log = Partition(files, "p", config, NOW)
    pairs = [(b"%d" % n, bytes(range(n, n + 50))) for n in range(40)]

    def sent() -> bytearray:
        return batches.build(
            pairs,
            timestamps_ms=[NOW] * 40,
            codec=produced,
            producer_id=4,
            producer_epoch=0,
            base_sequence=0,
        )

    assert log.append(sent(), NOW + 7).base_offset == 0
    assert log.append(sent(), NOW + 7).is_duplicate
    (stored,) = read_all(reopen(files, config), 1 << 20)
    header = batches.parse(stored)
    assert header.codec == codec
    assert (header.producer_id, header.base_sequence, header.record_count) == (4, 0, 40)
    found = list(batches.records(stored, 0, header))
    assert [(one.key, one.value) for one in found] == pairs
    assert header.max_timestamp == (NOW + 7 if append_time else NOW)
    if codec == produced and not append_time:
        assert stored[61:] == bytes(sent()[61:])


def test_what_cannot_be_compressed_again_is_refused(files: LogFiles) -> None:
    """Records that are not what their codec makes, and what is too large in the log's own form."""
    log = Partition(files, "p", LogConfig(compression_type="lz4", max_message_bytes=500), NOW)
    broken = batches.recompress(batch(), batches.parse(batch()), 0)
    broken[22] = 1  # says gzip
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    assert refusal(log, broken) is ErrorCode.CORRUPT_MESSAGE
    plain = Partition(
        files, "q", LogConfig(compression_type="uncompressed", max_message_bytes=500), NOW
    )
    small = batches.build([(b"k", bytes(1000))], timestamps_ms=[NOW], codec="zstd")
    assert len(small) < 500
    assert refusal(plain, small) is ErrorCode.MESSAGE_TOO_LARGE


def test_full_disk_leaves_no_half_batch() -> None:
    """A write that fails half-way is undone; with room again, appends go on."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    log.append(batch(), NOW)
    files.room_bytes = 50
    with pytest.raises(StorageError, match="free space"):
        log.append(batch(), NOW)
    log.check()
    assert log.end_offset == 3
    files.room_bytes = None
    log.append(batch(), NOW)
    assert reopen(files, LogConfig()).end_offset == 6


def test_failed_sync_stops_writing() -> None:
    """After a failed sync nobody can tell what the disk has, so nothing more is accepted."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    log.append(batch(), NOW)
    files.fails_to_sync = True
    with pytest.raises(StorageError):
        log.sync()
    files.fails_to_sync = False
    with pytest.raises(StorageError, match="restart"):
        log.append(batch(), NOW)
    assert len(read_all(log)) == 1


def test_offsets_out_of_range_are_refused(files: LogFiles) -> None:
    """A read may begin from the start to the end of the log, and nowhere else."""
    log = reopen(files)
    log.append(batch(), NOW)
    assert bytes(log.read(3, 100)) == b""
    for offset in (-1, 4, 1 << 62):
        with pytest.raises(OffsetRangeError):
            log.read(offset, 100)


# -- times -----------------------------------------------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(
    times=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), max_size=30),
    codec=st.sampled_from(["none", "zstd"]),
    start=st.integers(0, 40),
)
def test_time_look_up_is_exact(times: list[list[int]], codec: str, start: int) -> None:
    """The first record at or after a time is found to the record, as a naive search finds it."""
    log = Partition(MemoryFiles(), "p", LogConfig(segment_bytes=600, retention_ms=-1), NOW)
    naive: list[tuple[int, int]] = []
    for group in times:
        records = [(None, b"v" * 30)] * len(group)
        one = batches.build(records, timestamps_ms=group, codec=codec)
        base = log.append(one, NOW).base_offset
        naive += [(base + n, time) for n, time in enumerate(group)]
    start = min(start, log.end_offset)
    log.delete_records(start, NOW)
    naive = [one for one in naive if one[0] >= start]
    for time in range(52):
        expected = next((one for one in naive if one[1] >= time), None)
        assert log.find_time(time) == expected
    newest = max((time for _, time in naive), default=None)
    expected = next((one for one in naive if one[1] == newest), None)
    assert log.find_latest_time() == expected


def test_append_time(files: LogFiles) -> None:
    """With the broker's time, every record has the time of the append, and look-ups use it."""
    log = Partition(files, "p", LogConfig(append_time=True), NOW)
    assert log.append(batch(first_ms=5), NOW).append_time_ms == NOW
    log.append(batch(first_ms=5), NOW + 10)
    log.check()
    assert log.find_time(NOW + 1) == (3, NOW + 10)


# -- deletion --------------------------------------------------------------------------------------


def test_delete_records_moves_the_start(files: LogFiles) -> None:
    """The start moves to the record; whole segments before it go; a reopening remembers it."""
    log = reopen(files)
    for _ in range(60):
        log.append(batch(), NOW)
    log.sync()
    segments = len(log.segments)
    log.delete_records(100, NOW)
    log.check()
    assert log.start_offset == 100
    assert len(log.segments) < segments
    with pytest.raises(OffsetRangeError):
        log.read(99, 100)
    with pytest.raises(OffsetRangeError):
        log.delete_records(log.end_offset + 1, NOW)
    assert reopen(files).start_offset == 100
    log.delete_records(log.end_offset, NOW)
    assert (log.start_offset, log.size) == (180, 0)
    assert reopen(files).end_offset == 180


def test_retention_by_size_and_time(files: LogFiles) -> None:
    """Whole segments go once the log is too large without them, or their records are too old."""
    log = Partition(files, "p", LogConfig(segment_bytes=1000, retention_bytes=3000), NOW)
    for n in range(40):
        log.append(batch(first_ms=NOW + n), NOW + n)
    assert log.retain(NOW + 40) > 0
    log.check()
    assert 3000 <= log.size < 4200
    log.config = LogConfig(segment_bytes=1000, retention_ms=1000)
    assert log.retain(NOW + 500) == 0
    log.retain(NOW + 100_000)
    log.check()
    assert (log.size, log.start_offset) == (0, log.end_offset)
    log.append(batch(first_ms=NOW + 100_000), NOW + 100_000)
    assert log.end_offset == 123


def test_segments_roll_by_age(files: LogFiles) -> None:
    """A segment is closed once it is old enough, however small it is."""
    log = Partition(files, "p", LogConfig(segment_ms=1000), NOW)
    log.append(batch(), NOW)
    log.append(batch(), NOW + 1000)
    assert len(log.segments) == 1
    log.append(batch(), NOW + 1001)
    assert len(log.segments) == 2


def test_jitter_lets_segments_roll_sooner_each_at_its_own_time() -> None:
    """Partitions that began together don't begin new segments together; none is late, and each is
    true to its time.
    """

    def rolls_after(name: str, segment_ms: int, jitter_ms: int) -> int:
        config = LogConfig(segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
        log = Partition(MemoryFiles(), name, config, NOW)
        for ms in range(segment_ms + 2):
            log.append(batch(), NOW + ms)
            if len(log.segments) == 2:
                return ms
        raise AssertionError("it has not rolled")

    names = [f"t/{n}" for n in range(20)]
    assert {rolls_after(name, 50, 0) for name in names} == {51}
    found = [rolls_after(name, 50, 20) for name in names]
    assert found == [rolls_after(name, 50, 20) for name in names]
    assert len(set(found)) > 5
    assert 31 <= min(found) <= max(found) <= 51
    assert max(rolls_after(name, 50, 1 << 62) for name in names) <= 51


def test_the_topic_says_how_dense_the_index_is(files: LogFiles) -> None:
    """As soon as it is told, over a reopening, and records are found all the same."""
    dense = LogConfig(index_interval_bytes=0)
    log = Partition(files, "p", LogConfig(), NOW)
    for _ in range(10):
        log.append(batch(), NOW)
    assert len(log.active.index) == 1
    log.config = dense
    for _ in range(10):
        log.append(batch(), NOW)
    assert len(log.active.index) == 11
    log.close()
    log = reopen(files, dense)
    assert len(log.active.index) == 11
    assert [header.base_offset for _, header in batches.iterate(log.read(57, 100))] == [57]
    log.config = LogConfig(index_interval_bytes=(1 << 31) - 1, max_message_bytes=2 << 20)
    log.append(batch(9, INTERVAL_BYTES_MAX // 9), NOW)
    log.append(batch(), NOW)
    assert len(log.active.index) == 12


def test_segments_roll_when_their_index_is_full() -> None:
    """So that dense indexes have an end."""
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=5 * 32)
    log = Partition(MemoryFiles(), "p", config, NOW)
    for _ in range(12):
        log.append(batch(), NOW)
    log.check()
    assert [len(one.index) for one in log.segments] == [5, 5, 2]


def test_files_of_deleted_segments_stay_for_a_while(files: LogFiles) -> None:
    """As long as the topic says; none of them is served, nor found again after a crash."""
    config = LogConfig(segment_bytes=1000, retention_ms=-1, file_delete_delay_ms=1000)

    def names() -> list[str]:
        return [name for name in files.list("p") if name.endswith(".log")]

    log = Partition(files, "p", config, NOW)
    for _ in range(20):
        log.append(batch(), NOW)
    log.sync(checkpoint=True)
    everything = names()
    log.delete_records(30, NOW)
    log.remove_doomed(NOW + 10)
    assert names() == everything
    with pytest.raises(OffsetRangeError):
        log.read(0, 100)
    log.remove_doomed(NOW + 1009)
    assert names() == everything
    again = reopen(files, config)  # as after a crash
    assert again.start_offset == 30
    log.remove_doomed(NOW + 1010)
    kept = names()
    assert kept == everything[-len(log.segments) :]
    log.delete_records(45, NOW)
    log.remove_doomed(NOW, is_urgent=True)  # the disk is full
    assert len(names()) < len(kept)
    log.delete_records(54, NOW)
    log.close()
    assert len(names()) == len(log.segments)
    assert reopen(files, config).start_offset == 54


def test_what_a_crash_left_of_a_deletion_is_deleted() -> None:
    """By the next retention."""
    files = MemoryFiles()
    config = LogConfig(segment_bytes=1000, retention_ms=-1, file_delete_delay_ms=1000)
    log = Partition(files, "p", config, NOW)
    for _ in range(20):
        log.append(batch(), NOW)
    log.sync(checkpoint=True)
    log.delete_records(30, NOW)
    log = reopen(files, replace(config, file_delete_delay_ms=0))
    before = len(files.list("p"))
    log.retain(NOW)
    log.check()
    assert len(files.list("p")) < before
    assert log.segments[0].next_offset > 30


def test_closing_an_idle_partition_writes_nothing() -> None:
    """What the last checkpoint says is not said again; what was appended since is."""
    files = MemoryFiles()
    log = Partition(files, "t/0", LogConfig(), 0)
    log.close()
    assert files.list("t/0") == ["00000000000000000000.log"]
    log = Partition(files, "t/0", LogConfig(), 0)
    log.append(batches.build([(None, b"v")]), 0)
    log.close()
    index = files.load("t/0/00000000000000000000.index")
    assert index is not None
    files.delete("t/0/producers")
    log = Partition(files, "t/0", LogConfig(), 0)
    log.close()  # the producers were not there, so it is not as a checkpoint leaves it
    assert files.load("t/0/producers") is not None
    files.room_bytes = 0
    Partition(files, "t/0", LogConfig(), 0).close()
    assert files.load("t/0/00000000000000000000.index") == index
