"""How fast is the log? Produce, consume, and recover, through clients that others wrote and our own.

    python benchmarks/log.py [--clients confluent,java,reader] [--brokers penstock,kafka] [--json]

The same programs drive the embedded broker and Apache Kafka, one after the other, on the same cores:
confluent-kafka from Python, Kafka's own ProducerPerformance, ConsumerPerformance and EndToEndLatency
(where its jars are there), and Penstock's columnar reader. Last, how long the embedded broker takes
to serve a partition again after SIGKILL: with its checkpoints, and with all of them deleted, so that
every byte is checked.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from brokers import broker
from peers import cache
from sides import end_cleanly, limit_cores

BROKERS = ("penstock", "kafka")
CLIENTS = ("confluent", "java", "reader")
SIZES = (100, 1000)
SMOKE_SIZES = (100,)
JAVA_TIMEOUT_S = 600.0
READ_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    what: str
    record_bytes: int
    broker: str
    value: float
    unit: str


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    bytes_per_run: int
    latency_records: int
    recovery_bytes: int
    sizes: tuple[int, ...] = SIZES


FULL = Plan(bytes_per_run=300 << 20, latency_records=5000, recovery_bytes=1 << 30)
SMOKE = Plan(bytes_per_run=1 << 20, latency_records=0, recovery_bytes=2 << 20, sizes=SMOKE_SIZES)


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


def java_produce(libs: Path, address: str, topic: str, count: int, size: int, acks: str) -> float:
    out = java(
        libs,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}"),
        *(f"acks={acks}", "linger.ms=5", "batch.size=65536"),
    )
    last = [line for line in out.splitlines() if "records/sec" in line][-1]
    return float(last.split(" records/sec")[0].split()[-1])


def java_consume(libs: Path, address: str, topic: str, count: int) -> float:
    out = java(
        libs,
        "ConsumerPerformance",
        *("--bootstrap-server", address, "--topic", topic, "--messages", str(count)),
    )
    lines = [line.split(",") for line in out.splitlines() if line.count(",") >= 5]
    row = dict(zip((name.strip() for name in lines[0]), lines[-1], strict=True))
    return float(row["fetch.nMsg.sec"])


def java_latency(libs: Path, address: str, topic: str, count: int) -> tuple[float, float]:
    """Median and 99th percentile of the time from producing a record to having it (ms)."""
    out = java(libs, "EndToEndLatency", address, topic, str(count), "1", "100")
    line = next(line for line in out.splitlines() if line.startswith("Percentiles"))
    values = [float(part.split("=")[1].strip(" ,")) for part in line.split(":")[1].split(",")]
    return values[0], values[1]


# -- our own reader --------------------------------------------------------------------------------


def reader_consume(address: str, topic: str, count: int) -> float:
    """Records/s into columns, with checksums verified."""
    from penstock.client import Reader

    with Reader(address) as reader:
        found = sum(len(one) for one in reader.read(topic, 0, 0, min(count, 1000)))  # warm up
        began = time.perf_counter()
        found = sum(len(one) for one in reader.read(topic, 0, 0, count))
        elapsed = time.perf_counter() - began
    if found != count:
        raise RuntimeError(f"the reader: expected {count} records, found {found}")
    return count / elapsed


# -- recovery --------------------------------------------------------------------------------------


def recovery(plan: Plan, work: Path) -> Iterator[Figure]:
    """From starting the process to serving, after SIGKILL."""
    from penstock.broker import BrokerProcess

    process = BrokerProcess(work / "recovery")
    began = time.perf_counter()
    process.start()
    yield Figure("start, empty", 0, "penstock", time.perf_counter() - began, "s")
    try:
        create(process.address, "t", {"segment.bytes": str(1 << 30)})
        count = plan.recovery_bytes // 1000
        say(f"recovery: filling {plan.recovery_bytes >> 20} MiB")
        confluent_produce(process.address, "t", count, 1000, "all")
        for what, damage in (
            ("recovery with checkpoints", False),
            ("recovery without any", True),
        ):
            process.kill()
            if damage:
                for file in (work / "recovery" / "topics").rglob("*.index"):
                    file.unlink()
            began = time.perf_counter()
            process.start()
            yield Figure(what, 1000, "penstock", time.perf_counter() - began, "s")
        if reader_consume(process.address, "t", count) <= 0:
            raise RuntimeError("records were lost")
    finally:
        process.kill()


# -- all of it -------------------------------------------------------------------------------------


def measure(
    plan: Plan, which: str, clients: list[str], libs: Path | None, work: Path
) -> Iterator[Figure]:
    """Every client against one broker."""
    with broker(which, work / which) as address:
        for size in plan.sizes:
            count = max(plan.bytes_per_run // (size + 20), 100)
            for acks in ("1", "all"):
                for client in clients:
                    topic = f"{client}-{size}-{acks}"
                    say(f"{which}: {client}, {size} B, acks={acks}")
                    yield from through(client, libs, address, topic, count, size, acks, which)
        if plan.latency_records and libs is not None and "java" in clients:
            create(address, "latency")
            median, tail = java_latency(libs, address, "latency", plan.latency_records)
            yield Figure("java end to end, p50", 100, which, median, "ms")
            yield Figure("java end to end, p99", 100, which, tail, "ms")


def through(
    client: str,
    libs: Path | None,
    address: str,
    topic: str,
    count: int,
    size: int,
    acks: str,
    which: str,
) -> Iterator[Figure]:
    """One client: produce, and with acks=all consume what was produced."""

    def figure(what: str, run: Callable[[], float]) -> Figure:
        return Figure(what, size, which, run(), "records/s")

    create(address, topic)
    match client:
        case "confluent":
            produced = confluent_produce(address, topic, count, size, acks)
            yield Figure(f"confluent produce acks={acks}", size, which, produced, "records/s")
            if acks == "all":
                yield figure("confluent consume", lambda: confluent_consume(address, topic, count))
        case "java" if libs is not None:
            yield figure(
                f"java produce acks={acks}",
                lambda: java_produce(libs, address, topic, count, size, acks),
            )
            if acks == "all":
                yield figure("java consume", lambda: java_consume(libs, address, topic, count))
        case "reader" if acks == "all":
            confluent_produce(address, topic, count, size, "1")
            yield figure("reader to columns", lambda: reader_consume(address, topic, count))
        case _:
            return


def table(figures: list[Figure]) -> str:
    """The figures side by side, with the ratio to Kafka (above 1: better)."""
    rows: dict[tuple[str, int, str], dict[str, float]] = {}
    for one in figures:
        rows.setdefault((one.what, one.record_bytes, one.unit), {})[one.broker] = one.value
    lines = [f"{'':34}{'bytes':>7}{'penstock':>14}{'kafka':>14}{'ratio':>8}  unit"]
    for (what, size, unit), values in rows.items():
        ours, theirs = values.get("penstock"), values.get("kafka")
        ratio = ""
        if ours and theirs:
            ratio = f"{ours / theirs if unit == 'records/s' else theirs / ours:.2f}"
        cells = "".join(
            f"{'-' if value is None else format(value, ',.0f' if value > 100 else ',.3f'):>14}"
            for value in (ours, theirs)
        )
        lines.append(f"{what:34}{size or '':>7}{cells}{ratio:>8}  {unit}")
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", default=",".join(CLIENTS), help="of confluent, java, reader")
    parser.add_argument("--brokers", default="", help="of penstock, kafka; default: those here")
    parser.add_argument("--kafka-libs", type=Path, help="Kafka's jars; default: the fetched ones")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-recovery", action="store_true")
    parser.add_argument("--work", type=Path, help="where to put the data; default: a temporary one")
    parser.add_argument("--smoke", action="store_true", help="a size that only shows that it runs")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    end_cleanly()
    cores = limit_cores(options.cores)
    plan = SMOKE if options.smoke else FULL
    reason = cache.problem("kafka") if options.kafka_libs is None else cache.java_problem("kafka")
    libs = None if reason else options.kafka_libs or cache.jar_dir("kafka")
    brokers = options.brokers.split(",") if options.brokers else list(BROKERS)
    clients = options.clients.split(",")
    if options.smoke and not options.brokers:
        brokers, clients = ["penstock"], ["confluent", "reader"]
    if libs is None and ("kafka" in brokers or "java" in clients):
        say(f"without Kafka and its tools: {reason}")
        brokers = [one for one in brokers if one != "kafka"]
        clients = [one for one in clients if one != "java"]
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=options.work, ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        for which in brokers:
            figures += measure(plan, which, clients, libs, work)
        if not options.no_recovery and "penstock" in brokers:
            figures += recovery(plan, work)
    if options.json:
        print(json.dumps({"cores": cores, "figures": [asdict(one) for one in figures]}))
    else:
        print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
