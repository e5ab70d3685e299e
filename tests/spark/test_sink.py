"""DataFrames into topics: each row once, whoever is killed, and whatever is run again."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.patience import wait_until

from penstock.broker import BrokerProcess
from penstock.client import Client, Reader, TransactionalProducer
from penstock.errors import LimitError, UserError
from penstock.spark import sink as sink_module
from penstock.spark.arrow import for_spark
from penstock.spark.options import Options
from penstock.wire.columns import Records

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
PROGRAM = Path(__file__).with_name("sink_program.py")
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "20261122"))
_names = (f"sink-{n}" for n in itertools.count())
_queries = (f"query-{n}" for n in itertools.count())


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A new topic of two partitions."""
    name = next(_names)
    with Client(broker.address) as client:
        client.create_topic(name, 2, {"retention.ms": "-1"})
    return name


def chunks(address: str, topic: str) -> Iterator[tuple[int, Records]]:
    """What is committed, partition by partition."""
    with Client(address) as client, Reader(address) as reader:
        for partition, end in client.offsets(topic).items():
            for records in reader.read(topic, partition, 0, end):
                yield partition, records


def stored(address: str, topic: str) -> list[Any]:
    """The values, in any order."""
    found = [text for _, one in chunks(address, topic) for text in one.values().to_pylist()]
    return sorted(
        (orjson.loads(text) for text in found), key=lambda row: (len(repr(row)), repr(row))
    )


def sink(
    address: str, topic: str, rows: pa.Table, kind: Any = sink_module.StreamSink, **options: Any
) -> Any:
    given = Options.of({"log": address, "topic": topic, **options}, "/")
    return kind(given, for_spark(rows.schema))


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, stop), pa.int64())})


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> str:
    """A stream of a new checkpoint."""
    name = next(_queries)
    monkeypatch.setattr(sink_module, "_query_id", lambda: name)
    return name


def test_a_batch_is_stored_once(broker: BrokerProcess, topic: str, query: str) -> None:
    """Also where it is run again, in other parts and another order."""
    rows = numbers(0, 100)
    writer = sink(broker.address, topic, rows, key="n")
    halves = [writer.write(iter(rows.slice(at, 50).to_batches())) for at in (0, 50)]
    writer.commit(halves, 0)
    assert stored(broker.address, topic) == rows.to_pylist()
    other = [writer.write(iter(rows.slice(at, 25).to_batches())) for at in (75, 0, 25, 50)]
    writer.commit(other, 0)
    assert len(stored(broker.address, topic)) == 100
    more = [writer.write(iter(numbers(100, 110).to_batches()))]
    writer.commit(more, 1)
    assert len(stored(broker.address, topic)) == 110


def test_what_a_killed_driver_left_is_taken_back(
    broker: BrokerProcess, topic: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the records and the end of the transaction; the batch is run again."""
    rows = numbers(0, 10)
    writer = sink(broker.address, topic, rows)
    made = [writer.write(iter(rows.to_batches()))]

    def die(_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalProducer, "commit", die)
        with pytest.raises(SystemExit):
            writer.commit(made, 0)
    assert stored(broker.address, topic) == []
    writer.commit(made, 0)
    assert stored(broker.address, topic) == rows.to_pylist()


def test_checkpoints_are_apart(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams have their own batches."""
    rows = numbers(0, 5)
    writer = sink(broker.address, topic, rows)
    for name in (next(_queries), next(_queries)):
        monkeypatch.setattr(sink_module, "_query_id", lambda name=name: name)
        writer.commit([writer.write(iter(rows.to_batches()))], 0)
    assert len(stored(broker.address, topic)) == 10


def test_records_are_those_of_the_columns(broker: BrokerProcess, topic: str, query: str) -> None:
    """With a column `value`, as Kafka's connector has it: key, timestamp, partition."""
    rows = pa.table(
        {
            "key": pa.array(["a", None], pa.string()),
            "value": pa.array([b'"one"', b'"two"'], pa.binary()),
            "timestamp": pa.array([1_767_225_600_123_000, None], pa.timestamp("us", "UTC")),
            "partition": pa.array([1, 0], pa.int32()),
        }
    )
    writer = sink(broker.address, topic, rows)
    writer.commit([writer.write(iter(rows.to_batches()))], 0)
    (first, zero), (second, one) = chunks(broker.address, topic)
    assert (first, zero.keys().to_pylist(), zero.values().to_pylist()) == (0, [None], [b'"two"'])
    assert (second, one.keys().to_pylist(), one.values().to_pylist()) == (1, [b"a"], [b'"one"'])
    assert one.timestamp_ms.tolist() == [1_767_225_600_123]


def test_keys_are_those_that_pipelines_expect(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    """Bytes too, and instants in UTC wherever the session is."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=ZoneInfo("Europe/Berlin"))
    for values, expected in (
        (pa.array([b"\xff\x00"]), b"/wA="),
        (pa.array([at], pa.timestamp("us", "Europe/Berlin")), b"2026-01-02 02:04:05.000000Z"),
        (pa.array([float("inf")]), b"Infinity"),
        (pa.array([timedelta(days=1)], pa.duration("us")), b"P1D"),
    ):
        rows = pa.table({"k": values, "n": [1]})
        maker = sink_module._Maker.of(
            Options.of({"topic": topic, "key": "k"}, "/"), for_spark(rows.schema)
        )
        [records] = maker.records(rows.to_batches())
        assert records.column("key").to_pylist() == [expected]
    with pytest.raises(UserError, match="a key that isn't nested; found 'k' as array<bigint>"):
        sink(broker.address, topic, pa.table({"k": [[1]]}), key="k")


def test_partitions_that_there_are_not_are_refused(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    """Those below nothing as well."""
    for named in (-1, 2):
        rows = pa.table({"value": ["x"], "partition": pa.array([named], pa.int32())})
        writer = sink(broker.address, topic, rows)
        made = [writer.write(iter(rows.to_batches()))]
        with pytest.raises(UserError, match=f"from 0 to 1; found {named}"):
            writer.commit(made, 0)
    assert stored(broker.address, topic) == []


def test_a_write_is_all_or_nothing(broker: BrokerProcess, topic: str) -> None:
    """Tasks' transactions end together; those of a failed job are taken back."""
    rows = numbers(0, 20)
    writer = sink(broker.address, topic, rows, sink_module.BatchSink)
    failed = [writer.write(iter(rows.slice(at, 10).to_batches())) for at in (0, 10)]
    writer.abort([*failed, None])
    assert stored(broker.address, topic) == []
    made = [writer.write(iter(rows.slice(at, 10).to_batches())) for at in (0, 10)]
    assert stored(broker.address, topic) == []
    writer.commit([*made, writer.write(iter([]))])
    assert stored(broker.address, topic) == rows.to_pylist()


def test_what_cannot_be_written_is_refused(
    broker: BrokerProcess, topic: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that nobody would find, keys that there aren't, batches that are too large."""
    with pytest.raises(UserError, match=r"besides 'value'.*found other"):
        sink(broker.address, topic, pa.table({"value": ["x"], "other": [1]}))
    with pytest.raises(UserError, match="expected a key among n; found 'm'"):
        sink(broker.address, topic, numbers(0, 1), key="m")
    with pytest.raises(UserError, match="'value' as STRING or BINARY; found bigint"):
        sink(broker.address, topic, pa.table({"value": [1]}))
    monkeypatch.setattr(sink_module, "BATCH_BYTES_MAX", 100)
    with pytest.raises(LimitError, match="BATCH_BYTES_MAX"):
        sink(broker.address, topic, numbers(0, 90)).write(iter(numbers(0, 90).to_batches()))


def test_a_frame_is_written(session: Any, broker: BrokerProcess, topic: str) -> None:
    """`df.write` appends, and nothing else."""
    frame = session.range(0, 50, 1, 3).selectExpr("id AS n")
    to = frame.write.format("penstock").options(log=broker.address, topic=topic)
    to.mode("append").save()
    assert sorted(row["n"] for row in stored(broker.address, topic)) == list(range(50))
    with pytest.raises(Exception, match="found a mode that overwrites"):
        to.mode("overwrite").save()


@pytest.mark.slow
def test_a_stream_survives_kills(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """SIGKILL of the driver, its JVM and its workers, at any moment: each row is there once."""
    chance = random.Random(SEED)
    kills, batches = rounds("PENSTOCK_SPARK_SINK_KILLS", quick=1, full=1), 8
    command = [sys.executable, str(PROGRAM), broker.address, topic, str(tmp_path), str(batches)]
    log = tmp_path / "stderr"
    known = 0
    for _ in range(kills):
        with log.open("ab") as errors:
            process = subprocess.Popen(command, stderr=errors, start_new_session=True)
        try:
            wait_until(
                lambda known=known: (
                    process.poll() is not None or _high(broker.address, topic) > known  # noqa: B023
                ),
                lambda: f"records; {log.read_text()[-3000:]}",
                patience_s=300,
            )
            delay = chance.random()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(delay)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        known = _high(broker.address, topic)
    with log.open("ab") as errors:
        subprocess.run(command, stderr=errors, check=True, timeout=600)
    found = [row["n"] for row in stored(broker.address, topic)]
    assert len(found) >= 40 * batches, f"seed {SEED}"
    assert sorted(found) == list(range(len(found))), f"seed {SEED}"


def _high(address: str, topic: str) -> int:
    """How much is stored, committed or not."""
    with Client(address) as client:
        return sum(client.offsets(topic).values())
