"""Spark's own Kafka source and sink, batch and streaming, against our broker, in scenarios of our own.

    python tests/suites/spark.py [--address HOST:PORT] [--only name]

Spark's connector comes with `python benchmarks/peers/fetch.py spark`. One session runs them all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from suite import Scenario, cache, create_topic, expect, report, tried, wait

CORES = 2
QUERY_S_MAX = 120
FLUSH_S_MAX = 30

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""

_session: Any = None
_folder = Path()


@contextlib.contextmanager
def spark() -> Iterator[None]:
    """A session for as long as the block."""
    global _session, _folder
    launcher = cache.java()
    assert launcher is not None
    os.environ.setdefault("JAVA_HOME", str(launcher.resolve().parent.parent))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(jar) for jar in cache.jars("spark")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("penstock-suite")
    for name, value in settings.items():
        builder = builder.config(name, value)
    _session = builder.getOrCreate()
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-spark-") as folder:
            _folder = Path(folder)
            yield
    finally:
        _session.stop()


def source(address: str, topic: str, *, streaming: bool = False, **options: object) -> Any:
    """Spark's reader of a topic; `topic` may be overruled by `subscribePattern` or `assign`."""
    reader = (_session.readStream if streaming else _session.read).format("kafka")
    reader = reader.option("kafka.bootstrap.servers", address)
    if not {"subscribePattern", "assign"} & options.keys():
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def values(rows: Any) -> list[str]:
    """The values of rows as text, sorted."""
    return sorted(str(row.value, "utf-8") for row in rows.select("value").collect())


def stream(rows: Any, name: str, **options: object) -> Any:
    """Begins a query over rows that keeps what it has read in a table in memory."""
    checkpoint = options.pop("checkpoint", None) or _folder / f"{name}-{time.monotonic_ns()}"
    writer = rows.writeStream.format("memory").queryName(name)
    trigger = options or {"availableNow": True}
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def streamed(rows: Any, name: str) -> tuple[list[str], list[int]]:
    """What a query reads until it has all that is there: the values, and how many in each batch."""
    query = stream(rows, name)
    expect("end of the query", query.awaitTermination(QUERY_S_MAX), True)
    sizes = [one["numInputRows"] for one in query.recentProgress]
    return values(_session.table(name)), sizes


def produce(address: str, topic: str, wanted: Sequence[str], **options: Any) -> None:
    """Writes values to two partitions in turn.

    Args:
        address: the broker's.
        topic: the topic, of two partitions.
        wanted: text.
        options: `timestamps` (one in milliseconds for each value), `headers`, `transactional_id`,
            `commit`.
    """
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 3}
    transactional = options.get("transactional_id")
    if transactional:
        settings["transactional.id"] = transactional
    producer = Producer(settings)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    times = options.get("timestamps") or itertools.repeat(0)
    for number, (value, timestamp) in enumerate(zip(wanted, times, strict=False)):
        more = {"timestamp": timestamp, "headers": options.get("headers")}
        producer.produce(topic, value, key=f"key of {value}", partition=number % 2, **more)
    expect("messages left", producer.flush(FLUSH_S_MAX), 0)
    if transactional:
        (producer.commit_transaction if options["commit"] else producer.abort_transaction)()


def numbers(what: str, count: int) -> list[str]:
    """`what 0`, `what 1`, …"""
    return [f"{what} {n}" for n in range(count)]


def batch_all(address: str) -> None:
    """A batch has a topic from its earliest to its latest offset, with all columns."""
    topic = create_topic(address, "spark-batch", 2)
    headers = [("a", b"1"), ("empty", b""), ("null", None), ("a", b"2")]
    produce(address, topic, numbers("row", 100), headers=headers)
    rows = source(address, topic, includeHeaders="true")
    expect("values", values(rows), sorted(numbers("row", 100)))
    found = rows.where("partition = 1").orderBy("offset").first()
    expect("key and value", (bytes(found.key), bytes(found.value)), (b"key of row 1", b"row 1"))
    expect("place", (found.topic, found.partition, found.offset), (topic, 1, 0))
    expect("kind of time", found.timestampType, 0)
    found_headers = [
        (one.key, None if one.value is None else bytes(one.value)) for one in found.headers
    ]
    expect("headers", found_headers, headers)


def batch_offsets(address: str) -> None:
    """A batch between offsets per partition (-2: the earliest, -1: the latest)."""
    topic = create_topic(address, "spark-offsets", 2)
    produce(address, topic, numbers("row", 100))
    start, end = ({topic: {"0": at, "1": to}} for at, to in ((10, -2), (12, 3)))
    span = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    wanted = ["row 1", "row 20", "row 22", "row 3", "row 5"]
    expect("values", values(source(address, topic, **span)), wanted)
    latest = json.dumps({topic: {"0": -1, "1": 3}})
    wanted = sorted([f"row {n}" for n in range(0, 100, 2)] + ["row 1", "row 3", "row 5"])
    expect("to the end", values(source(address, topic, endingOffsets=latest)), wanted)


def batch_timestamps(address: str) -> None:
    """A batch between times, for all partitions and for each."""
    topic = create_topic(address, "spark-times", 2)
    begin = int(time.time() * 1000) - 1_000_000
    times = [begin + 1000 * n for n in range(200)]
    produce(address, topic, numbers("row", 200), timestamps=times)
    span = {"startingTimestamp": times[50], "endingTimestamp": times[60]}
    wanted = sorted(numbers("row", 200)[50:60])
    expect("values", values(source(address, topic, **span)), wanted)
    start = json.dumps({topic: {"0": times[190], "1": times[195]}})
    wanted = sorted(f"row {n}" for n in range(190, 200) if n % 2 == 0 or n >= 195)
    expect("of each", values(source(address, topic, startingOffsetsByTimestamp=start)), wanted)
    late = {"startingTimestamp": times[199] + 1}
    lenient = {**late, "startingOffsetsByTimestampStrategy": "latest"}
    expect("after all", values(source(address, topic, **lenient)), [])
    with failing("No offset matched"):
        values(source(address, topic, **late))


def batch_topics(address: str) -> None:
    """Topics by a pattern, and partitions that are assigned."""
    first, second = (create_topic(address, f"spark-topic-{one}", 2) for one in "ab")
    produce(address, first, ["one", "two"])
    produce(address, second, ["three", "four"])
    pattern = f"spark-topic-.-{os.getpid()}-.*"
    wanted = ["four", "one", "three", "two"]
    expect("by a pattern", values(source(address, "", subscribePattern=pattern)), wanted)
    assign = json.dumps({first: [1], second: [0]})
    expect("assigned", values(source(address, "", assign=assign)), ["three", "two"])
    expect("by names", values(source(address, f"{first},{second}")), wanted)


def batch_parts(address: str) -> None:
    """A batch in more parts than there are partitions."""
    topic = create_topic(address, "spark-parts", 2)
    produce(address, topic, numbers("row", 1000))
    rows = source(address, topic, minPartitions=10)
    expect("parts", rows.rdd.getNumPartitions(), 10)
    expect("values", values(rows), sorted(numbers("row", 1000)))


def batch_read_committed(address: str) -> None:
    """Of transactions, those that were committed: also where the last offset is a marker's."""
    topic = create_topic(address, "spark-isolation", 2)
    mine = {"transactional_id": f"{topic}-id"}
    produce(address, topic, numbers("yes", 50), **mine, commit=True)
    produce(address, topic, numbers("no", 50), **mine, commit=False)
    wanted = sorted(numbers("yes", 50))
    committed = {"kafka__isolation__level": "read_committed"}
    expect("committed", values(source(address, topic, **committed)), wanted)
    expect("all", len(values(source(address, topic))), 100)
    rows = source(address, topic, streaming=True, startingOffsets="earliest", **committed)
    expect("streamed", streamed(rows, "isolation")[0], wanted)


def batch_data_loss(address: str) -> None:
    """After delete-records: offsets that are gone fail a batch, or are left out where that is wanted."""
    topic = create_topic(address, "spark-loss", 2)
    produce(address, topic, numbers("row", 100))
    delete_before(address, topic, 0, 30)
    expect("what is left", len(values(source(address, topic))), 70)
    gone = {"startingOffsets": json.dumps({topic: {"0": 10, "1": 50}})}
    wanted = sorted(f"row {n}" for n in range(60, 100, 2))
    lenient = values(source(address, topic, **gone, failOnDataLoss="false"))
    expect("values", lenient, wanted)
    with failing("data", "lost|missed|[Oo]utOfRange|out of range"):
        values(source(address, topic, **gone, failOnDataLoss="true"))


def stream_offsets(address: str) -> None:
    """A stream from the earliest offset, from given ones, and from a time."""
    topic = create_topic(address, "spark-stream", 2)
    begin = int(time.time() * 1000) - 1_000_000
    times = [begin + 1000 * n for n in range(100)]
    produce(address, topic, numbers("row", 100), timestamps=times)
    rows = source(address, topic, streaming=True, startingOffsets="earliest")
    expect("from the earliest", streamed(rows, "earliest")[0], sorted(numbers("row", 100)))
    places = json.dumps({topic: {"0": 48, "1": -2}})
    rows = source(address, topic, streaming=True, startingOffsets=places)
    wanted = sorted([f"row {n}" for n in range(1, 100, 2)] + ["row 96", "row 98"])
    expect("from offsets", streamed(rows, "places")[0], wanted)
    rows = source(address, topic, streaming=True, startingTimestamp=times[90])
    expect("from a time", streamed(rows, "moment")[0], sorted(numbers("row", 100)[90:]))


def stream_latest(address: str) -> None:
    """A running stream from the latest offset sees what comes, in new partitions too."""
    topic = create_topic(address, "spark-latest", 2)
    produce(address, topic, numbers("before", 20))
    latest = {"startingOffsets": "latest", "kafka__metadata__max__age__ms": "500"}
    rows = source(address, topic, streaming=True, **latest)
    query = stream(rows, "latest", processingTime="0 seconds")
    try:
        wait(lambda: query.lastProgress is not None, "the first batch", QUERY_S_MAX)
        produce(address, topic, numbers("after", 20))
        wait(lambda: _session.table("latest").count() >= 20, "20 rows", QUERY_S_MAX)
        expect("values", values(_session.table("latest")), sorted(numbers("after", 20)))
        grow(address, topic, 3)
        wanted = {"grown", *numbers("after", 20)}
        produce_to(address, topic, 2, "grown")
        wait(lambda: set(values(_session.table("latest"))) >= wanted, "a new row", QUERY_S_MAX)
    finally:
        query.stop()


def stream_pace(address: str) -> None:
    """No batch has more than it may, and none of the rows is lost between batches."""
    topic = create_topic(address, "spark-pace", 2)
    produce(address, topic, numbers("row", 1000))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    seen, sizes = streamed(source(address, topic, streaming=True, **options), "pace")
    expect("values", seen, sorted(numbers("row", 1000)))
    expect("largest batch", max(sizes) <= 300, True)
    expect("batches with rows", len([size for size in sizes if size]) >= 4, True)


def stream_restart(address: str) -> None:
    """A query goes on from its checkpoint, and notices what was deleted meanwhile."""
    topic, into = (create_topic(address, f"spark-restart-{one}", 2) for one in ("in", "out"))
    checkpoint = _folder / topic

    def copy(fail: str = "true") -> None:
        options = {"startingOffsets": "earliest", "failOnDataLoss": fail}
        rows = source(address, topic, streaming=True, **options).select("key", "value")
        query = sink(rows.writeStream, address, into, checkpointLocation=checkpoint)
        query = query.trigger(availableNow=True).start()
        expect("end of the query", query.awaitTermination(QUERY_S_MAX), True)

    produce(address, topic, numbers("first", 50))
    copy()
    produce(address, topic, numbers("second", 50))
    copy()
    wanted = sorted([*numbers("first", 50), *numbers("second", 50)])
    expect("values", values(source(address, into)), wanted)
    produce(address, topic, numbers("third", 50))
    delete_before(address, topic, 0, 60)
    with failing("data", "lost|missed|[Oo]utOfRange|out of range"):
        copy()
    copy("false")
    left = set(values(source(address, into)))  # what failed may have written some rows already
    lost = {f"third {n}" for n in range(0, 20, 2)}
    expect("values with a loss", left, {*wanted, *numbers("third", 50)} - lost)


def sink(writer: Any, address: str, topic: str | None, **options: object) -> Any:
    """Spark's writer to a topic, or to the topics that rows name."""
    writer = writer.format("kafka").option("kafka.bootstrap.servers", address)
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    return writer


def sink_batch(address: str) -> None:
    """A batch is written with keys, headers, partitions and nulls."""
    topic = create_topic(address, "spark-sink", 3)
    rows = _session.range(60).selectExpr(
        "if(id % 10 = 0, null, concat('k', id)) as key",
        "if(id = 59, null, concat('v', id)) as value",
        "cast(id % 3 as int) as partition",
        "array(struct('n' as key, cast(string(id) as binary) as value)) as headers",
    )
    sink(rows.write, address, topic, includeHeaders="true", kafka__compression__type="zstd").save()
    seen = source(address, topic, includeHeaders="true").collect()
    expect("rows", len(seen), 60)
    for row in seen:
        number = int(row.headers[0].value)
        key = None if number % 10 == 0 else f"k{number}".encode()
        value = None if number == 59 else f"v{number}".encode()
        found = (row.partition, row.key and bytes(row.key), row.value and bytes(row.value))
        expect(f"row {number}", found, (number % 3, key, value))


def sink_topics(address: str) -> None:
    """Rows name the topic that they go to."""
    topics = [create_topic(address, f"spark-route-{one}", 1) for one in "ab"]
    name = f"if(id % 2 = 0, '{topics[0]}', '{topics[1]}') as topic"
    rows = _session.range(100).selectExpr(name, "string(id) as value")
    sink(rows.write, address, None).save()
    for rest, topic in enumerate(topics):
        wanted = sorted(str(n) for n in range(100) if n % 2 == rest)
        expect(f"values of {rest}", values(source(address, topic)), wanted)


def sink_stream(address: str) -> None:
    """A stream with state is written, updates of its groups with keys."""
    topic, into = (create_topic(address, f"spark-counts-{one}", 2) for one in ("in", "out"))
    produce(address, topic, [f"w{n % 5}" for n in range(100)])
    rows = source(address, topic, streaming=True, startingOffsets="earliest")
    counted = rows.groupBy("value").count()
    written = counted.selectExpr("value as key", "string(count) as value")
    writer = sink(written.writeStream.outputMode("update"), address, into,
                  checkpointLocation=_folder / into)  # fmt: skip
    query = writer.trigger(availableNow=True).start()
    expect("end of the query", query.awaitTermination(QUERY_S_MAX), True)
    seen = {(bytes(row.key), bytes(row.value)) for row in source(address, into).collect()}
    expect("counts", seen, {(f"w{n}".encode(), b"20") for n in range(5)})


@contextlib.contextmanager
def failing(*patterns: str) -> Iterator[None]:
    """The block fails, and its message has all the patterns."""
    import re

    try:
        yield
    except Exception as error:
        if missing := [one for one in patterns if not re.search(one, str(error))]:
            raise AssertionError(f"expected {missing[0]!r} in the error, found {error}") from None
        return
    raise AssertionError(f"expected an error with {patterns!r}, found none")


def delete_before(address: str, topic: str, partition: int, offset: int) -> None:
    """Deletes a partition's records below an offset."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    (done,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(FLUSH_S_MAX)


def grow(address: str, topic: str, partitions: int) -> None:
    """Gives a topic more partitions."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    (done,) = admin.create_partitions([NewPartitions(topic, partitions)]).values()
    done.result(FLUSH_S_MAX)


def produce_to(address: str, topic: str, partition: int, value: str) -> None:
    """Writes one value to a partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "log_level": 3})
    producer.produce(topic, value, partition=partition)
    expect("messages left", producer.flush(FLUSH_S_MAX), 0)


SCENARIOS: tuple[Scenario, ...] = (
    batch_all,
    batch_offsets,
    batch_timestamps,
    batch_topics,
    batch_parts,
    batch_read_committed,
    batch_data_loss,
    stream_offsets,
    stream_latest,
    stream_pace,
    stream_restart,
    sink_batch,
    sink_topics,
    sink_stream,
)


def main() -> int:
    """Runs the scenarios, tells."""
    import pyspark

    found = tried(SCENARIOS, __doc__, cache.problem("spark"), spark)
    return report(f"Spark {pyspark.__version__}, own scenarios", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())
