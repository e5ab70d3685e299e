"""Damage to what a killed broker had acknowledged and synced, but no checkpoint vouched for: it is told,
and no offset that anybody knows of is given out again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until, wait_until

from penstock.broker import BrokerProcess
from penstock.broker.config import BrokerConfig
from penstock.broker.doctor import Level, Report, examine, repair
from penstock.broker.server import Broker
from penstock.broker.storage import machine_run
from penstock.log.errors import DamagedError
from penstock.wire import batches
from penstock.wire.protocol import ApiKey

Connect = Callable[[str], Any]
COUNT = 30
COMMITTED = 25
NOW_MS = time.time_ns() // 1_000_000
TRANSACTIONAL = 0x10


def batch(n: int, **more: int) -> bytearray:
    """A record of its own."""
    return batches.build([(b"%d" % n, b"value %d" % n)], timestamps_ms=[NOW_MS], **more)


@dataclass
class Killed:
    """The data directory of a broker that was killed, and what it had acknowledged.

    Topic `t`: records, of which a group has committed `COMMITTED`. `shared`: records that a share group
    has acquired. `a` and `b`: a committed transaction, then an aborted one of the same producer.
    """

    data: Path
    sizes: dict[str, list[int]] = field(default_factory=dict)  # of the batches of each topic


class Producer:
    """A transactional producer over a raw connection."""

    def __init__(self, raw: Any, name: str) -> None:
        self.raw, self.name = raw, name
        answer = raw.call(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000
        )
        self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.sequences: dict[str, int] = {}

    def run(self, *topics: str, count: int, commit: bool) -> None:
        """One transaction."""
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": one, "partitions": [0]} for one in topics],
        }
        while True:
            results = self.raw.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields)[
                "results_by_topic_v3_and_below"
            ]
            if not results[0]["results_by_partition"][0]["partition_error_code"]:
                break
        for topic in topics:
            for n in range(count):
                sequence = self.sequences.get(topic, 0)
                self.sequences[topic] = sequence + 1
                one = batch(
                    n,
                    producer_id=self.id,
                    producer_epoch=self.epoch,
                    base_sequence=sequence,
                    attributes=TRANSACTIONAL,
                )
                part = {"index": 0, "records": bytes(one)}
                data = [{"name": topic, "partition_data": [part]}]
                answer = self.raw.call(
                    ApiKey.PRODUCE,
                    9,
                    transactional_id=self.name,
                    acks=-1,
                    timeout=1000,
                    topic_data=data,
                )
                assert not answer["responses"][0]["partition_responses"][0]["error_code"]
        ended = self.raw.call(
            ApiKey.END_TXN,
            3,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        assert not ended["error_code"]


def commit(raw: Any, group: str, offset: int) -> None:
    """A group has read `t` up to there."""
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [part]}]
    raw.call(
        ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, connect_any: Connect) -> Killed:
    """What SIGKILL leaves."""
    found = Killed(tmp_path_factory.mktemp("killed") / "data")
    broker = BrokerProcess(found.data)
    with broker, connect_any(broker.address) as raw:
        topic = {"num_partitions": 1, "replication_factor": 1}
        raw.call(
            ApiKey.CREATE_TOPICS, 5, topics=[{"name": one, **topic} for one in ("t", "u", "a", "b")]
        )
        for n in range(COUNT):
            assert not raw.produce("t", batch(n), acks=-1)["error_code"]
            assert not raw.produce("u", batch(n), acks=-1)["error_code"]
        commit(raw, "audit", COMMITTED)
        commit(raw, "far", 1_000_000)
        producer = Producer(raw, "mover")
        producer.run("a", "b", count=4, commit=True)
        producer.run("a", count=3, commit=False)
        journal = found.data / "transactions/state.journal"
        wait_until(lambda: journal.read_bytes().count(b'["done"') == 2, "markers to be durable")
        wait_until(lambda: not raw.call(ApiKey.DESCRIBE_CONFIGS, 1, resources=[])["results"])
        broker.kill()
    for name in ("t", "u", "a", "b"):
        data = (found.data / f"topics/{name}/0/{0:020d}.log").read_bytes()
        found.sizes[name] = [header.size for _, header in batches.iterate(data)]
    return found


@pytest.fixture
def data(killed: Killed, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(killed.data, tmp_path / "data"))


def log_file(data: Path, topic: str) -> Path:
    """The segment that was written to."""
    return data / f"topics/{topic}/0/{0:020d}.log"


def cut(data: Path, topic: str, sizes: list[int], kept: int, more: int = 0) -> None:
    """The file loses its end behind some batches."""
    with log_file(data, topic).open("r+b") as file:
        file.truncate(sum(sizes[:kept]) + more)


def flip(data: Path, topic: str, at: int) -> None:
    """One bit."""
    content = bytearray(log_file(data, topic).read_bytes())
    content[at] ^= 1
    log_file(data, topic).write_bytes(content)


@asynccontextmanager
async def serving(data: Path, **settings: Any) -> AsyncIterator[Broker]:
    """A broker in this process."""
    broker = Broker(BrokerConfig(data, listen="127.0.0.1:0", **settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def log_of(broker: Broker, topic: str) -> Any:
    """A topic's partition."""
    hosted = broker.topics.hosted(topic, 0)
    assert hosted is not None
    return hosted.log


def keys(log: Any) -> list[int]:
    """The records' keys that can be read, in order."""
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        try:
            data = bytes(log.read(offset, 1 << 20))
        except DamagedError as damage:
            offset = damage.next_offset
            continue
        for at, header in batches.iterate(data):
            if not header.is_control:
                found += [int(one.key or b"") for one in batches.records(data, at, header)]
            offset = header.next_offset
    return found


def damage_in(report: Report) -> str:
    """What is said to be damaged."""
    found = [one for one in report.findings if one.level is Level.DAMAGE]
    assert bool(found) is not report.is_sound
    return "\n".join(f"{one.path}: {one.text}" for one in found)


def metric(broker: Broker, name: str) -> float:
    """A metric's value."""
    (found,) = [one for one in broker.collect() if one.name == name]
    return float(found.samples[0].value)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """What was logged as a warning or an error."""
    with caplog.at_level(logging.WARNING):
        yield lambda: "\n".join(one.getMessage() for one in caplog.records)


def test_what_nobody_damaged_is_sound(data: Path, logged: Callable[[], str]) -> None:
    """After SIGKILL alone there is nothing to tell."""
    assert examine(data).is_sound
    assert {one.level for one in examine(data).findings} <= {Level.NOTE}

    async def session() -> None:
        async with serving(data) as broker:
            assert [log_of(broker, one).end_offset for one in "tuab"] == [COUNT, COUNT, 9, 5]
            assert metric(broker, "penstock_damaged_places") == 0

    asyncio.run(session())
    assert not logged()


def test_an_end_that_is_cut_between_two_batches(
    data: Path, killed: Killed, logged: Callable[[], str]
) -> None:
    """A group that has read further is not led past new records: the log goes on above it."""
    cut(data, "t", killed.sizes["t"], COMMITTED - 10)
    said = damage_in(examine(data))
    assert f"topics/t/0: expected the log to reach offset {COUNT}" in said
    assert "group 'far' has committed" in said
    assert f"offsets {COMMITTED - 10} to {COUNT - 1} are lost" in said

    async def session() -> None:
        async with serving(data) as broker:
            log = log_of(broker, "t")
            assert (log.damaged, log.end_offset) == (1, COUNT)
            assert log.append(batch(COUNT), NOW_MS).base_offset == COUNT
            with pytest.raises(DamagedError) as caught:
                log.read(COMMITTED, 100)
            assert caught.value.next_offset == COUNT
            assert metric(broker, "penstock_damaged_places") == 1
        async with serving(data) as broker:
            log = log_of(broker, "t")
            assert (log.damaged, log.end_offset) == (1, COUNT + 1)
            assert keys(log) == [*range(COMMITTED - 10), COUNT]

    asyncio.run(session())
    assert f"t-0: expected the log to reach offset {COUNT}, which group 'far' has" in logged()
    assert f"Offsets {COMMITTED - 10} to {COUNT - 1} are lost" in logged()
    assert f"offsets {COMMITTED - 10} to {COUNT - 1} are" in damage_in(examine(data)).lower() or (
        f"from offset {COMMITTED - 10} on; found one from {COUNT}" in damage_in(examine(data))
    )


def test_a_commit_beyond_the_end_says_no_more_than_that(
    data: Path, killed: Killed, connect: Connect
) -> None:
    """Clients may commit what they like: the log doesn't jump there."""

    async def session() -> None:
        async with serving(data) as broker:
            assert log_of(broker, "t").end_offset == COUNT
            found = broker.services.group_offsets.of("far")["t", 0]
            assert (found.offset, found.log_end) == (1_000_000, COUNT)

    asyncio.run(session())


def test_what_nobody_knows_of_is_given_out_again(
    data: Path, killed: Killed, logged: Callable[[], str]
) -> None:
    """An end that is cut between two batches, of which nothing tells, looks like the log's: that is what
    checkpoints by time are for.
    """
    cut(data, "u", killed.sizes["u"], 10)
    assert examine(data).is_sound

    async def session() -> None:
        async with serving(data) as broker:
            assert log_of(broker, "u").end_offset == 10

    asyncio.run(session())
    assert not logged()


@pytest.mark.parametrize("victim", [0, 7, COUNT - 1])
def test_a_flipped_bit(data: Path, killed: Killed, logged: Callable[[], str], victim: int) -> None:
    """Costs its batch, the first, one in the middle, or the last; all others are served."""
    flip(data, "u", sum(killed.sizes["u"][:victim]) + 65)
    said = damage_in(examine(data))
    assert f"topics/u/0/{0:020d}.log: expected the batches of offsets {victim} to {victim}" in said
    assert "a checksum that doesn't match" in said
    before = log_file(data, "u").read_bytes()

    async def session() -> None:
        for turn in range(2):
            async with serving(data) as broker:
                log = log_of(broker, "u")
                assert (log.damaged, log.end_offset) == (1, COUNT + turn)
                with pytest.raises(DamagedError) as caught:
                    log.read(victim, 100)
                assert caught.value.next_offset == victim + 1
                assert log.append(batch(COUNT + turn), NOW_MS).base_offset == COUNT + turn
                expected = [n for n in range(COUNT + turn + 1) if n != victim]
                assert keys(log) == expected

    asyncio.run(session())
    assert f"u-0: expected offsets {victim} to {victim} in topics/u/0/{0:020d}.log" in logged()
    assert log_file(data, "u").read_bytes() == before, "so that a copy can take its place"


def test_an_end_that_is_cut_within_a_batch(
    data: Path, killed: Killed, logged: Callable[[], str]
) -> None:
    """What is left of the batch is kept beside, and nobody says that it was never acknowledged."""
    cut(data, "u", killed.sizes["u"], 20, more=30)
    rest = log_file(data, "u").read_bytes()[sum(killed.sizes["u"][:20]) :]
    (found,) = [one for one in examine(data).findings if one.level is Level.WARNING]
    assert found.path == f"topics/u/0/{0:020d}.log"
    assert "30 torn bytes" in found.text
    assert "from offset 20 on" in found.text
    assert "damage to records that were acknowledged" in found.text

    async def session() -> None:
        async with serving(data) as broker:
            assert log_of(broker, "u").end_offset == 20
            assert metric(broker, "penstock_cut_bytes") == 30

    asyncio.run(session())
    kept = data / f"topics/u/0/{20:020d}.0.cut"
    assert kept.read_bytes() == rest
    assert "u-0: expected whole batches" in logged()
    assert f"kept in topics/u/0/{kept.name}" in logged()
    (found,) = [one for one in examine(data).findings if one.level is Level.WARNING]
    assert found.path.endswith(kept.name)


def test_the_doctor_keeps_what_it_cuts(data: Path, killed: Killed) -> None:
    """As the next start would."""
    cut(data, "u", killed.sizes["u"], 20, more=30)
    assert len(repair(examine(data))) == 1
    assert (data / f"topics/u/0/{20:020d}.0.cut").stat().st_size == 30
    assert log_file(data, "u").stat().st_size == sum(killed.sizes["u"][:20])


@pytest.mark.parametrize("kept", [2, 4])
def test_a_committed_transaction_that_is_split(
    data: Path, killed: Killed, logged: Callable[[], str], kept: int
) -> None:
    """What is left of it stays committed, as in the other partition: its marker is written again. That
    records of it are lost is told.
    """
    cut(data, "b", killed.sizes["b"], kept)
    said = damage_in(examine(data))
    assert "topics/b/0: expected the commit of the transaction of 'mover' from offset 0 on" in said
    split = "b-0: the transaction of 'mover' with records at offsets 0 to 3 was committed, and"

    async def session() -> None:
        async with serving(data) as broker:
            log = log_of(broker, "b")
            assert log.open_transactions() == {}
            assert log.aborted(0, log.end_offset) == []
            assert log.last_stable_offset == log.end_offset == 6
            assert keys(log) == list(range(kept))
            assert (split in logged()) is (kept < 4)
            assert metric(broker, "penstock_transactions_split") == (kept < 4)

    asyncio.run(session())
    assert "b-0: expected the commit of the transaction of 'mover' from offset 0 on" in logged()
    assert (split.removeprefix("b-0: ") in said) is (kept < 4)


def test_a_marker_that_is_damaged_with_more_behind(
    data: Path, killed: Killed, logged: Callable[[], str]
) -> None:
    """The producer's next transaction has decided for both: that can't be undone, and is told."""
    marker = sum(killed.sizes["a"][:4])
    flip(data, "a", marker + 65)

    async def session() -> None:
        async with serving(data) as broker:
            assert log_of(broker, "a").damaged == 1

    said = damage_in(examine(data))
    asyncio.run(session())
    for text in (said, logged()):
        assert "the transaction of 'mover' with records at offsets 0 to 3 was committed" in text
        assert "readers of committed data don't get its records" in text


def test_checkpoints_come_by_time(tmp_path: Path, logged: Callable[[], str]) -> None:
    """A topic that was written to a little, and then no more, is vouched for; that costs nothing when
    nothing is appended.
    """
    data = tmp_path / "data"
    sizes = [len(batch(n)) for n in range(10)]

    async def fill() -> None:
        async with serving(data, checkpoint_interval_ms=20, flush_interval_ms=20) as broker:
            log = broker.topics.create("quiet", 1, {}).partitions[0].log
            for n in range(10):
                log.append(batch(n), NOW_MS)
            index = data / f"topics/quiet/0/{0:020d}.index"
            await until(index.exists, "a checkpoint")
            busy = lambda: log.unvouched_bytes or log.is_dirty or log.is_syncing  # noqa: E731
            await until(
                lambda: not busy()
            )  # a sync that began before the last one ended is over, too
            index.unlink()
            syncs = broker.services.flusher.syncs
            await asyncio.sleep(0.2)  # ten times as long: nothing comes
            assert not index.exists()
            assert broker.services.flusher.syncs == syncs
            log.append(batch(10), NOW_MS)
            await until(index.exists, "a checkpoint")
            shutil.copytree(data, tmp_path / "copy")

    asyncio.run(fill())
    cut(tmp_path / "copy", "quiet", sizes, 7)
    assert "Offsets 7 to 10 are lost" in damage_in(examine(tmp_path / "copy"))

    async def session() -> None:
        async with serving(tmp_path / "copy") as broker:
            assert log_of(broker, "quiet").end_offset == 11

    asyncio.run(session())
    assert f"quiet-0: expected offsets 7 to 10 in topics/quiet/0/{0:020d}.log" in logged()


def test_a_checkpoint_comes_after_a_recovery(data: Path, killed: Killed, tmp_path: Path) -> None:
    """Whatever was found whole: for a topic that stands for months then, that is long."""

    async def recover() -> None:
        async with serving(data, flush_interval_ms=20) as broker:
            await until(lambda: not log_of(broker, "u").unvouched_bytes, "a checkpoint")
            shutil.copytree(data, tmp_path / "copy")

    asyncio.run(recover())
    cut(tmp_path / "copy", "u", killed.sizes["u"], 10)
    assert f"Offsets 10 to {COUNT - 1} are lost" in damage_in(examine(tmp_path / "copy"))

    async def session() -> None:
        async with serving(tmp_path / "copy") as broker:
            assert log_of(broker, "u").end_offset == COUNT

    asyncio.run(session())


def test_a_share_group_that_was_given_records(tmp_path: Path, logged: Callable[[], str]) -> None:
    """Knows how far the log came, too."""
    data = tmp_path / "data"

    async def fill() -> None:
        async with serving(data) as broker:
            topic = broker.topics.create("jobs", 1, {})
            for n in range(10):
                topic.partitions[0].log.append(batch(n), NOW_MS)
            held = broker.services.share.place("workers", topic.partitions[0], 8)
            assert held is not None
            await broker.services.flusher.make_durable(
                [topic.partitions[0].log, broker.services.share.journal]
            )
            shutil.copytree(data, tmp_path / "copy")

    asyncio.run(fill())
    cut(tmp_path / "copy", "jobs", [len(batch(n)) for n in range(10)], 3)
    assert "share group 'workers' was given records up to" in damage_in(examine(tmp_path / "copy"))

    async def session() -> None:
        async with serving(tmp_path / "copy") as broker:
            assert log_of(broker, "jobs").end_offset == 8

    asyncio.run(session())
    assert "jobs-0: expected the log to reach offset 8, which share group 'workers'" in logged()


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_new_topic_of_an_old_name_begins_anew(data: Path, is_forgotten: bool) -> None:
    """Whatever groups and transactions knew of the former one, also where a crash came before they
    forgot it.
    """

    async def session() -> None:
        async with serving(data) as broker:
            for name in ("t", "b"):
                topic = broker.topics.get(name)
                assert topic is not None
                broker.topics.withdraw(topic)
                broker.topics.discard(topic)
                if is_forgotten:
                    await broker.services.flusher.make_durable(broker.services.former.forget(name))
        async with serving(data) as broker:
            for name in ("t", "b"):
                broker.topics.create(name, 1, {})
        async with serving(data) as broker:
            for name in ("t", "b"):
                assert (log_of(broker, name).end_offset, log_of(broker, name).damaged) == (0, 0)
            assert broker.services.group_offsets.of("audit") == {}

    asyncio.run(session())
    assert examine(data).is_sound


def test_whether_the_machine_went_down(data: Path, tmp_path: Path) -> None:
    """It is noted once all is recovered: a start that is cut short leaves the doubt."""
    assert not machine_run.lost_power(data)
    (data / machine_run.FILE).write_text("another run\n")
    assert machine_run.lost_power(data)

    async def session() -> None:
        async with serving(data):
            assert not machine_run.lost_power(data)

    asyncio.run(session())
    assert machine_run.lost_power(tmp_path)


@pytest.mark.parametrize("went_down", [False, True])
def test_a_place_that_reads_as_zeros(
    data: Path, killed: Killed, logged: Callable[[], str], went_down: bool
) -> None:
    """Where the machine has run on, it was written once: what lies behind is served. Else it is what was
    not synced, and neither was what lies behind: that is cut off, and kept.
    """
    content = bytearray(log_file(data, "u").read_bytes())
    content[512:1024] = bytes(512)
    log_file(data, "u").write_bytes(content)
    if went_down:
        (data / machine_run.FILE).unlink()
    sizes = killed.sizes["u"]
    first = max(n for n in range(COUNT) if sum(sizes[:n]) <= 512)
    behind = min(n for n in range(COUNT) if sum(sizes[:n]) >= 1024)
    assert examine(data).is_sound is went_down

    async def session() -> None:
        async with serving(data) as broker:
            log = log_of(broker, "u")
            expected = range(first) if went_down else [*range(first), *range(behind, COUNT)]
            assert keys(log) == [*expected]
            assert log.end_offset == (first if went_down else COUNT)

    asyncio.run(session())
    if went_down:
        assert f"there are whole batches behind them, from offset {behind} on" in logged()
        assert (data / f"topics/u/0/{first:020d}.0.cut").exists()
