from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.groups.offsets import RETENTION_MS, Committed, GroupOffsets
from penstock.broker.monitoring.stats import Stats
from penstock.broker.server import Broker
from penstock.broker.storage import topics as topics_module
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.topics import Topics, name_fault
from penstock.errors import LimitError
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import StorageError
from penstock.wire import batches

NOW = 1_700_000_000_000


def batch() -> bytearray:
    """A batch of two records."""
    return batches.build([(None, b"a"), (None, b"b")], timestamps_ms=[NOW, NOW])


@pytest.fixture
def files() -> MemoryFiles:
    """A data directory in memory."""
    return MemoryFiles()


def open_topics(files: MemoryFiles) -> Topics:
    """The topics as a new process finds them."""
    return Topics(files, lambda: NOW)


def test_topics_survive(files: MemoryFiles) -> None:
    """Id, partitions and settings of a topic are there after a reopening; a deleted one is not."""
    before = open_topics(files)
    kept = before.create("kept", 2, {"retention.ms": "5"})
    gone = before.create("gone", 1, {})
    before.grow(kept, 3)
    before.withdraw(gone)
    assert before.is_taken("gone")
    before.discard(gone)
    assert not before.is_taken("gone")
    after = open_topics(files)
    found = after.get("kept")
    assert found is not None
    assert (found.id, len(found.partitions), found.settings) == (kept.id, 3, kept.settings)
    assert found.config.retention_ms == 5
    assert after.get("gone") is None
    assert after.by_id(kept.id.bytes) is found
    assert after.partition_count == 3


def test_unfinished_creation_leaves_nothing(files: MemoryFiles) -> None:
    """A directory without a description and without records goes; one with records is refused, and so
    is one that had some once.
    """
    topic = open_topics(files).create("t", 1, {})
    files.delete("topics/t/topic.json")
    assert open_topics(files).get("t") is None
    assert not files.list("topics")
    topic = open_topics(files).create("t", 1, {})
    topic.partitions[0].log.append(batch(), NOW)
    files.delete("topics/t/topic.json")
    topics = open_topics(files)
    assert topics.get("t") is None
    assert topics.is_taken("t")
    assert "restore the file" in topics.refused["t"]
    with pytest.raises(StorageError, match="restore the file"):
        topics.hosted("t", 0)
    log = topic.partitions[0].log
    log.delete_records(log.end_offset, NOW)
    log.close()
    assert log.size == 0
    assert "t" in open_topics(files).refused


def test_files_of_deleted_topics_stay_for_a_while(files: MemoryFiles) -> None:
    """As long as the topic says; its name is free at once."""
    topics = open_topics(files)
    for n in range(2):
        topic = topics.create("t", 1, {"file.delete.delay.ms": "1000"})
        topics.withdraw(topic)
        topics.discard(topic)
        assert not topics.is_taken("t")
        assert len(files.list("trash")) == n + 1
    topics.remove_doomed(NOW + 999, is_urgent=False)
    assert len(files.list("trash")) == 2
    topics.remove_doomed(NOW + 1000, is_urgent=False)
    assert not files.list("trash")
    topic = topics.create("t", 1, {"file.delete.delay.ms": "1000"})
    topics.withdraw(topic)
    topics.discard(topic)
    topics.remove_doomed(NOW, is_urgent=True)
    assert not files.list("trash")


def test_limits_are_errors(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many topics or partitions are refused with the limit's number, and nothing is made."""
    monkeypatch.setattr(topics_module, "TOPICS_MAX", 2)
    monkeypatch.setattr(topics_module, "PARTITIONS_MAX", 5)
    topics = open_topics(files)
    topics.create("a", 4, {})
    with pytest.raises(LimitError, match="5"):
        topics.create("b", 2, {})
    topics.create("b", 1, {})
    with pytest.raises(LimitError, match="2 topics"):
        topics.create("c", 1, {})
    assert len(topics) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_names_that_are_no_names(name: str) -> None:
    """Names that Kafka refuses are refused: they become directories."""
    assert name_fault(name) is not None


def test_stats_count(files: MemoryFiles) -> None:
    """Statistics tell sizes, offsets, and rates over the time between samples."""
    now_s = [0.0]
    topics = open_topics(files)
    topic = topics.create("t", 2, {})
    stats = Stats(topics, lambda: now_s[0])
    stats.sample()
    for _ in range(10):
        topic.partitions[1].log.append(batch(), NOW)
    now_s[0] = 2.0
    (found,) = stats.topics()
    assert (found.name, found.partitions, found.end_offsets) == ("t", 2, (0, 20))
    assert found.bytes == 10 * len(batch())
    assert (found.records_per_s, found.bytes_per_s) == (10.0, found.bytes / 2)


def test_one_sync_serves_many(files: MemoryFiles) -> None:
    """Requests that arrive while a sync runs share the next one; all are durable when answered."""

    async def session() -> None:
        flusher = Flusher()
        logs = [one.log for one in open_topics(files).create("t", 3, {}).partitions]

        async def request(n: int) -> None:
            log = logs[n % 3]
            end = log.append(batch(), NOW).base_offset + 2
            await flusher.make_durable([log])
            assert log.durable_offset >= end

        await asyncio.gather(*(request(n) for n in range(100)))
        assert flusher.syncs < 10
        files.fails_to_sync = True
        logs[0].append(batch(), NOW)
        await flusher.make_durable(logs)
        assert logs[0].failure is not None
        flusher.close()

    asyncio.run(session())


def test_offsets_are_kept_and_forgotten(files: MemoryFiles) -> None:
    """Commits survive; they are forgotten with their topic, and after a week without members."""
    offsets = GroupOffsets(files)
    offsets.commit(
        "g", {("t", 0): Committed(5, 0, "m", NOW), ("u", 1): Committed(6, 0, "", NOW)}, NOW
    )
    offsets.commit("g", {("t", 0): Committed(7, 0, "n", NOW)}, NOW)
    again = GroupOffsets(files)
    assert again.of("g")["t", 0] == Committed(7, 0, "n", NOW)
    again.forget_topic("t")
    assert list(GroupOffsets(files).of("g")) == [("u", 1)]
    again.expire({"g"}, NOW + RETENTION_MS + 1)
    assert again.of("g")
    again.expire(set(), NOW + RETENTION_MS + 1)
    assert not GroupOffsets(files).of("g")


def test_groups_outlive_their_offsets(files: MemoryFiles) -> None:
    """A group is there from its first commit on, a transaction's too, until it is dropped."""
    offsets = GroupOffsets(files)
    offsets.commit("g", {("t", 0): Committed(5, 0, "", NOW)}, NOW)
    offsets.forget("g", [("t", 0)])
    offsets.stage(1, (7, 0), "h", {("t", 0): Committed(6, 0, "", NOW)}, NOW)
    assert set(offsets.groups()) == {"g", "h"}
    for group in ("g", "h"):
        offsets.drop(group)
    assert set(offsets.groups()) == {"h"}
    assert set(GroupOffsets(files).groups()) == {"h"}
    offsets.finish(1, commit=False)
    assert set(offsets.groups()) == {"h"}
    offsets.drop("h")
    assert not offsets.groups()
    offsets.commit("i", {("t", 0): Committed(5, 0, "", NOW)}, NOW)
    offsets.forget_group("i")
    assert not offsets.groups()
    assert not GroupOffsets(files).groups()


def test_offset_journal_is_rewritten(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is mostly obsolete is replaced by what still counts."""
    monkeypatch.setattr("penstock.broker.groups.offsets.REWRITE_BYTES_MIN", 1000)
    offsets = GroupOffsets(files)
    for n in range(100):
        offsets.commit("g", {("t", 0): Committed(n, 0, "", NOW)}, NOW)
    offsets.compact()
    assert offsets.journal.size < 200
    assert GroupOffsets(files).of("g")["t", 0].offset == 99


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine."""
    asyncio.run(work)


def test_broker_runs_in_process(tmp_path: Path) -> None:
    """A broker can be started and stopped inside a program, again and again."""

    async def session() -> None:
        for n in range(3):
            broker = Broker(BrokerConfig(data=tmp_path, listen="127.0.0.1:0"))
            await broker.start()
            assert broker.address[1] > 0
            assert len(broker.topics) == n
            broker.topics.create(f"t{n}", 1, {})
            await broker.stop()

    run(session())
