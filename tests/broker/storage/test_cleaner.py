from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tests.patience import until

from penstock.broker.config import BrokerConfig
from penstock.broker.server import Broker
from penstock.broker.storage.cleaner import LogCleaner
from penstock.broker.storage.topic_settings import log_config
from penstock.log.disk.files import LocalFiles
from penstock.log.disk.memory import MemoryFiles
from penstock.log.partition import Partition
from penstock.wire import batches, columns, inspection

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.1",
}
KEYS = 50
PATIENCE_S = 240.0


def write(log: Partition, n: int) -> None:
    """Appends a batch with the n-th value of one key."""
    now_ms = time.time_ns() // 1_000_000
    one = batches.build([(b"key%d" % (n % KEYS), b"value %d" % n)], timestamps_ms=[now_ms])
    log.append(one, now_ms)


def latest(log: Partition) -> tuple[dict[bytes, bytes], int]:
    """Each key's last value as a reader finds it, and how many records it read."""
    found: dict[bytes, bytes] = {}
    count, offset = 0, log.start_offset
    while data := log.read(offset, 1 << 16):
        records = columns.decode(data)
        count += len(records)
        found |= dict(zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True))
        offset = records.next_offset
    return found, count


async def cleaned_while_written(config: BrokerConfig) -> Partition:
    """Writes to a compacted topic for as long as it takes to compact most of it."""
    broker = Broker(config)
    await broker.start()
    try:
        log = broker.topics.create("table", 1, SETTINGS).partitions[0].log
        deadline, n, count = time.monotonic() + PATIENCE_S, 0, 0
        while log.compactor.passes < 3 or count >= n / 2:
            assert time.monotonic() < deadline, (n, log.compactor.passes)
            for _ in range(20):
                write(log, n)
                n += 1
            await broker.services.flusher.make_durable([log])
            await asyncio.sleep(0.02)
            values, count = latest(log)
            recent = range(max(n - KEYS, 0), n)
            assert values == {b"key%d" % (m % KEYS): b"value %d" % m for m in recent}
        broker.topics.withdraw(broker.topics.create("other", 1, SETTINGS))
    finally:
        await broker.stop()
    log.check()
    return log


def test_compaction_in_the_background(tmp_path: Path) -> None:
    """While a table is written and read, old values go; every reader finds each key's last one."""
    config = BrokerConfig(
        tmp_path, listen="127.0.0.1:0", cleaner_interval_ms=20, flush_interval_ms=50
    )
    log = asyncio.run(cleaned_while_written(config))
    again = Partition(log._files, log.directory, log.config, 0)
    again.check()
    assert latest(again) == latest(log)


def test_a_damaged_segment_is_reported_once_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pass after the one that finds it cleans the others."""
    now_ms = time.time_ns() // 1_000_000
    files = LocalFiles(tmp_path)
    log = Partition(files, "p", log_config(SETTINGS), now_ms)
    for n in range(400):
        write(log, n)
    log.sync(checkpoint=True)
    path = tmp_path / log.segments[1].path
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    log.close()
    log = Partition(files, "p", log_config(SETTINGS), now_ms)

    async def clean() -> None:
        cleaner = LogCleaner(lambda: [log], lambda: now_ms, 1.0)
        try:
            while await cleaner.clean_one():
                pass
            for n in range(200):
                write(log, n)
            log.sync(checkpoint=True)
            while await cleaner.clean_one():
                pass
            assert cleaner.failures == 1
        finally:
            await cleaner.stop()

    asyncio.run(clean())
    assert log.compactor.passes >= 2
    assert [one.path for one in log.compactor.passed_over()] == ["p/" + path.name]
    warnings = [one for one in caplog.messages if "passes over offsets" in one]
    assert len(warnings) == 1
    assert bytes(data) == path.read_bytes()


def test_the_cleaner_looks_at_once_when_it_is_set_to_look_more_often(tmp_path: Path) -> None:
    """It would have looked in an hour. A rate that it is told bounds what it reads."""
    now_ms = time.time_ns() // 1_000_000
    log = Partition(LocalFiles(tmp_path), "p", log_config(SETTINGS), now_ms)
    for n in range(200):
        write(log, n)
    log.sync(checkpoint=True)

    async def clean() -> None:
        cleaner = LogCleaner(lambda: [log], lambda: now_ms, 3600)
        cleaner.start()
        try:
            cleaner.configure(3600, log.size)
            await asyncio.sleep(0)
            assert not log.compactor.passes
            cleaner.configure(0.01, log.size)
            began = time.monotonic()
            await until(lambda: log.compactor.passes, "a pass")
            assert time.monotonic() - began >= 0.5  # it reads nearly all at one log a second
        finally:
            await cleaner.stop()

    asyncio.run(clean())


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_policies(policy: str) -> None:
    """The policy says whether a log is compacted, and whether retention removes segments."""
    config = log_config({"cleanup.policy": policy})
    assert config.compacts == ("compact" in policy)
    assert config.deletes == ("delete" in policy)


def test_the_loop_that_looks_at_records_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once something was produced to a compacted topic, and not in the event loop."""
    loaded: list[str] = []

    def load() -> None:
        loaded.append(threading.current_thread().name)

    monkeypatch.setattr(inspection, "load_loop", load)
    monkeypatch.setattr(inspection._Loops, "compiled", None)
    monkeypatch.setattr(inspection._Loops, "is_wanted", False)

    async def run() -> None:
        cleaner = LogCleaner(list, lambda: 0, 0.001)
        cleaner.start()
        log = Partition(MemoryFiles(), "p", log_config({}), 0)
        log.append(batches.build([(b"key", b"value")]), 0)
        assert not inspection.is_loop_wanted()
        log.config = log_config(SETTINGS)
        log.append(batches.build([(b"key", b"value")]), 0)
        await until(lambda: bool(loaded))
        await cleaner.stop()

    asyncio.run(run())
    assert loaded[0].startswith("penstock-cleaner")
