"""What the benchmarks of the log and of the broker share: load, as others' clients make it, and a table.

confluent-kafka from Python, and Kafka's own ProducerPerformance, ConsumerPerformance and EndToEndLatency.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peers import cache
from penstock.wire.protocol import ApiKey

JAVA_TIMEOUT_S = 600.0
READ_TIMEOUT_S = 300.0
WARM_UP_RECORDS = 500
PARKED_S = 0.001  # by then a fetch lies in the broker
BATCHED = ("linger.ms=5", "batch.size=65536")
UNBATCHED = ("linger.ms=0", "batch.size=0", "max.in.flight.requests.per.connection=5")
MORE_IS_BETTER = {"records/s", "requests/s", "jobs/s"}


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    what: str
    record_bytes: int
    broker: str
    value: float
    unit: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- confluent-kafka -------------------------------------------------------------------------------


def create(address: str, topic: str, settings: dict[str, str] | None = None) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings or {})])[topic].result(30)


def confluent_produce(address: str, topic: str, count: int, size: int, acks: str) -> float:
    """Records/s from the first `produce` to the last acknowledgement."""
    from confluent_kafka import Producer

    options = {"acks": acks, "linger.ms": 5, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **options})
    producer.list_topics(topic, timeout=10)
    value = bytes(size)
    began = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(READ_TIMEOUT_S):
        raise RuntimeError("confluent-kafka: some records were not acknowledged")
    return count / (time.perf_counter() - began)


def confluent_consume(address: str, topic: str, count: int) -> float:
    """Records/s from the assignment to the last record."""
    from confluent_kafka import Consumer, TopicPartition

    options = {
        "group.id": "benchmark",
        "enable.auto.commit": False,
        "log_level": 0,
        "fetch.queue.backoff.ms": 1,  # else a broker that fills its queue makes it pause for 1 s
    }
    consumer = Consumer({"bootstrap.servers": address, **options})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        began = time.perf_counter()
        left, deadline = count, began + READ_TIMEOUT_S
        while left > 0:
            left -= len(consumer.consume(min(left, 10_000), 1.0))
            if time.perf_counter() > deadline:
                raise RuntimeError(f"confluent-kafka: {left} of {count} records did not come")
        return count / (time.perf_counter() - began)
    finally:
        consumer.close()


def confluent_latency(address: str, topic: str, count: int) -> tuple[float, float]:
    """Median and 99th percentile of the time from producing a record of 100 B to having it (ms), one
    at a time. EndToEndLatency knows whole milliseconds only.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    options = {"bootstrap.servers": address, "log_level": 0, "socket.nagle.disable": True}
    producer = Producer({**options, "acks": "1", "linger.ms": 0})
    consumer = Consumer({**options, "group.id": "latency", "enable.auto.commit": False})
    times: list[float] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for _ in range(count + WARM_UP_RECORDS):
            began = time.perf_counter()
            producer.produce(topic, bytes(100))
            if consumer.poll(READ_TIMEOUT_S) is None:
                raise RuntimeError("confluent-kafka: a record did not come")
            times.append(1e3 * (time.perf_counter() - began))
            producer.poll(0)
    finally:
        consumer.close()
    return median_and_tail(times[WARM_UP_RECORDS:])


def plain_latency(address: str, topic: str, count: int) -> tuple[float, float]:
    """Likewise by a client of one thread that does nothing besides: a fetch that waits in the broker
    on one connection, a record on another. What is left is the broker and the system.
    """
    from penstock.client.network import hot
    from penstock.client.network.connection import Connection
    from penstock.wire import batches

    host, _, port = address.rpartition(":")
    reader, writer = (Connection(host, int(port), "plain", READ_TIMEOUT_S) for _ in range(2))
    version, newest = hot.FETCH_VERSIONS[1], hot.PRODUCE_VERSIONS[1]
    times: list[float] = []
    try:
        for offset in range(count + WARM_UP_RECORDS):
            batch = batches.build([(None, bytes(100))], timestamps_ms=[int(1e3 * time.time())])
            record = hot.produce_request(
                newest, topic, 0, memoryview(batch), acks=1, timeout_ms=30_000
            )
            body = hot.fetch_request(
                version, [(topic, 0, offset)], wait_ms=10_000, bytes_max=1 << 20
            )
            wanted = reader.send(ApiKey.FETCH, version, [body], flexible=True)
            time.sleep(PARKED_S)
            began = time.perf_counter()
            sent = writer.send(ApiKey.PRODUCE, newest, record, flexible=True)
            frame = reader.receive(wanted)
            times.append(1e3 * (time.perf_counter() - began))
            error, (fetched,) = hot.read_fetch(version, frame)
            if error or fetched.error or fetched.start == fetched.end:
                raise RuntimeError(f"expected a record at offset {offset}, found {fetched}")
            writer.receive(sent)
    finally:
        reader.close()
        writer.close()
    return median_and_tail(times[WARM_UP_RECORDS:])


def median_and_tail(times: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    times = sorted(times)
    return times[len(times) // 2], times[len(times) * 99 // 100]


# -- Kafka's own load tools ------------------------------------------------------------------------


def java(libs: Path, tool: str, *arguments: str) -> str:
    launcher = cache.java()
    assert launcher is not None  # `java_problem` looked
    command = [str(launcher), "-Xmx512m", "-cp", f"{libs}/*", f"org.apache.kafka.tools.{tool}"]
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S
    )
    if ended.returncode:
        raise RuntimeError(f"{tool} failed: {(ended.stdout + ended.stderr)[-1500:]}")
    return ended.stdout


def java_produce(
    libs: Path,
    address: str,
    topic: str,
    count: int,
    size: int,
    acks: str,
    properties: tuple[str, ...] = BATCHED,
) -> float:
    """Records/s as ProducerPerformance has them."""
    out = java(
        libs,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}"),
        *(f"acks={acks}", *properties),
    )
    last = [line for line in out.splitlines() if "records/sec" in line][-1]
    return float(last.split(" records/sec")[0].split()[-1])


def java_consume(libs: Path, address: str, topic: str, count: int) -> float:
    """Records/s as ConsumerPerformance has them; joining the group isn't counted."""
    out = java(
        libs,
        "ConsumerPerformance",
        *("--bootstrap-server", address, "--topic", topic, "--messages", str(count)),
    )
    lines = [line.split(",") for line in out.splitlines() if line.count(",") >= 5]
    row = dict(zip((name.strip() for name in lines[0]), lines[-1], strict=True))
    return float(row["fetch.nMsg.sec"])


def java_take(libs: Path, address: str, topic: str, count: int) -> float:
    """Records/s that ShareConsumerPerformance takes and acknowledges, with what joining takes."""
    options = ("--topic", topic, "--group", topic, "--num-records", str(count))
    options += ("--timeout", str(int(1e3 * READ_TIMEOUT_S)))
    out = java(libs, "ShareConsumerPerformance", "--bootstrap-server", address, *options)
    lines = [line.split(",") for line in out.splitlines() if line.count(",") >= 5]
    row = dict(zip((name.strip() for name in lines[0]), lines[-1], strict=True))
    if int(row["data.consumed.in.nMsg"]) < count:
        raise RuntimeError(f"expected {count} records, found {out}")
    return float(row["nMsg.sec"])


def java_latency(libs: Path, address: str, topic: str, count: int) -> tuple[float, float]:
    """Median and 99th percentile of the time from producing a record to having it (ms)."""
    out = java(libs, "EndToEndLatency", address, topic, str(count), "1", "100")
    line = next(line for line in out.splitlines() if line.startswith("Percentiles"))
    values = [float(part.split("=")[1].strip(" ,")) for part in line.split(":")[1].split(",")]
    return values[0], values[1]


# -- the figures -----------------------------------------------------------------------------------


def table(figures: list[Figure], aims: Mapping[str, float] | None = None) -> str:
    """The figures side by side, with the ratio to Kafka (above 1: better) and what is aimed at.

    Args:
        figures: of one or two brokers.
        aims: the ratio that is aimed at, by unit; None: nothing is.
    """
    rows: dict[tuple[str, int, str], dict[str, float]] = {}
    for one in figures:
        rows.setdefault((one.what, one.record_bytes, one.unit), {})[one.broker] = one.value
    aim = f"{'aim':>6}" if aims else ""
    lines = [f"{'':34}{'bytes':>6}{'penstock':>13}{'kafka':>13}{'ratio':>8}{aim}  unit"]
    for (what, size, unit), values in rows.items():
        ours, theirs = values.get("penstock"), values.get("kafka")
        ratio = ""
        if ours and theirs:
            ratio = f"{ours / theirs if unit in MORE_IS_BETTER else theirs / ours:.2f}"
        cells = "".join(
            f"{'-' if value is None else format(value, ',.0f' if value > 100 else ',.3f'):>13}"
            for value in (ours, theirs)
        )
        aim = f"{aims[unit]:>6}" if aims else ""
        lines.append(f"{what:34}{size or '':>6}{cells}{ratio:>8}{aim}  {unit}")
    return "\n".join(lines)
