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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common.brokers import broker
from common.load_tools import (
    Figure,
    confluent_consume,
    confluent_produce,
    create,
    java_consume,
    java_latency,
    java_produce,
    say,
    table,
)
from common.sides import end_cleanly, limit_cores
from peers import cache

BROKERS = ("penstock", "kafka")
CLIENTS = ("confluent", "java", "reader")
SIZES = (100, 1000)
SMOKE_SIZES = (100,)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    bytes_per_run: int
    latency_records: int
    recovery_bytes: int
    sizes: tuple[int, ...] = SIZES


FULL = Plan(bytes_per_run=300 << 20, latency_records=5000, recovery_bytes=1 << 30)
SMOKE = Plan(bytes_per_run=1 << 20, latency_records=0, recovery_bytes=2 << 20, sizes=SMOKE_SIZES)


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
