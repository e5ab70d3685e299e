"""How does the broker do beside Kafka? Rates, latency, memory, start-up; by Kafka's own load tools.

    python benchmarks/broker.py [--brokers penstock,kafka] [--rounds 1] [--json]

Both brokers run on the same cores in the same run, one after the other, each with an empty directory:

- start-up: from starting the process (a formatted directory) to its first answer; then again with a
  thousand partitions;
- memory at rest, and the most under the load that follows: resident, and of it anonymous (not the page
  cache's), sampled;
- produce with acks=1 and acks=all, and consume, at 100 B and 1 KB: ProducerPerformance,
  ConsumerPerformance, the latter the median of a few runs, as one lasts but seconds; joining the group
  is not counted. With acks=all Penstock answers once the records are on the disk, Kafka once they are
  in the page cache; so also with topics that Kafka flushes (flush.messages=1);
- the broker's own processor time in each of these, per MB or per request: where the load tool takes
  more of the machine than the broker, or others use it, the rates say little of the broker;
- tiny requests: a record of 100 B in each request, five in flight;
- end to end: from producing a record to having it, p50 and p99: EndToEndLatency, which knows whole
  milliseconds, and librdkafka.

With several runs or rounds each figure is the median. Without Java the produce and consume rates are
confluent-kafka's, and Kafka is left out. The aim: 1.5 times Kafka's throughput, half its latency, a
tenth of its memory and of its start-up time.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self

import psutil

from common.load_tools import (
    UNBATCHED,
    Figure,
    confluent_consume,
    confluent_latency,
    confluent_produce,
    create,
    java_consume,
    java_latency,
    java_produce,
    plain_latency,
    say,
    table,
)
from common.sides import end_cleanly, limit_cores
from peers import cache
from peers.kafka import KafkaProcess, wait_until_ready

SAMPLE_S = 0.1
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # how finely the system counts processor time
REST_S = 2.0  # after start-up, before memory at rest is read
PARTITIONS_PER_TOPIC = 100
# With which a topic's batches are on the disk before they are answered: here acks=all asks for that.
FLUSHED = {"kafka": {"flush.messages": "1"}, "penstock": {}}

# What is better, and the ratio that is aimed at.
AIMS = {
    "records/s": 1.5,
    "requests/s": 1.5,
    "ms/MB": 1.5,
    "us/request": 1.5,
    "ms": 2.0,
    "MiB": 10.0,
    "s": 10.0,
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    bytes_per_run: int = 300 << 20
    tiny_requests: int = 100_000
    latency_records: int = 5_000
    partitions: int = 1_000
    consumer_runs: int = 3
    sizes: tuple[int, ...] = (100, 1000)


SMOKE = Plan(1 << 20, 0, 0, 20, 1, (100,))


class Process(Protocol):
    """A broker that runs."""

    address: str
    pid: int


class Memory:
    """The most memory that a process has while a `with` block lasts, in MiB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.resident, self.anonymous = self.now()

    def now(self) -> tuple[float, float]:
        """Resident and anonymous memory at the moment."""
        found = self._process.memory_info()
        return found.rss / (1 << 20), (found.rss - found.shared) / (1 << 20)

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                resident, anonymous = self.now()
                self.resident = max(self.resident, resident)
                self.anonymous = max(self.anonymous, anonymous)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


class Effort:
    """The processor time (`s`) that a process takes while a `with` block lasts; a tick at least."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.s = 0.0

    def _taken_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Self:
        self.s = -self._taken_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.s = max(self.s + self._taken_s(), TICK_S)


@contextlib.contextmanager
def started(which: str, data: Path) -> Iterator[tuple[Process, float]]:
    """A broker, and the seconds until it answered."""
    if which == "kafka":
        if not (data / "data" / "meta.properties").is_file():
            with KafkaProcess(data):
                pass  # formats the directory, which is not counted
        began = time.perf_counter()
        with KafkaProcess(data) as kafka:
            yield kafka, time.perf_counter() - began
        return
    from penstock.broker import BrokerProcess

    process = BrokerProcess(data)
    began = time.perf_counter()
    process.start()
    try:
        wait_until_ready(process.address, died=lambda: None)
        yield process, time.perf_counter() - began
    finally:
        process.stop()


def measure(which: str, plan: Plan, libs: Path | None, work: Path) -> Iterator[Figure]:
    """Everything about one broker."""
    say(f"{which}: start")
    with started(which, work / which) as (process, seconds):
        yield Figure("start-up", 0, which, seconds, "s")
        time.sleep(REST_S)
        resident, anonymous = Memory(process.pid).now()
        yield Figure("memory at rest, anonymous", 0, which, anonymous, "MiB")
        yield Figure("memory at rest, resident", 0, which, resident, "MiB")
        with Memory(process.pid) as memory:
            yield from load(which, plan, libs, process)
        yield Figure("memory under load, anonymous", 0, which, memory.anonymous, "MiB")
        yield Figure("memory under load, resident", 0, which, memory.resident, "MiB")
    yield from many_partitions(which, plan, work)


def load(which: str, plan: Plan, libs: Path | None, process: Process) -> Iterator[Figure]:
    """Rates, what they took of the processors, and latencies."""
    address = process.address
    for size in plan.sizes:
        count = max(plan.bytes_per_run // (size + 20), 100)
        megabytes = count * size / 1e6
        for acks, is_flushed in (("1", False), ("all", False), ("all", True)):
            topic, what = f"rates-{size}-{acks}", f"produce acks={acks}"
            if is_flushed:
                topic, what = f"{topic}-disk", f"{what}, on the disk"
            create(address, topic, FLUSHED[which] if is_flushed else None)
            say(f"{which}: {size} B, {what}")
            with Effort(process.pid) as effort:
                if libs is None:
                    rate = confluent_produce(address, topic, count, size, acks)
                else:
                    rate = java_produce(libs, address, topic, count, size, acks)
            yield Figure(what, size, which, rate, "records/s")
            yield Figure(f"{what}, CPU", size, which, 1e3 * effort.s / megabytes, "ms/MB")
        for _ in range(plan.consumer_runs):
            with Effort(process.pid) as effort:
                if libs is None:
                    rate = confluent_consume(address, topic, count)
                else:
                    rate = java_consume(libs, address, topic, count)
            yield Figure("consume", size, which, rate, "records/s")
            yield Figure("consume, CPU", size, which, 1e3 * effort.s / megabytes, "ms/MB")
    if libs is not None:
        yield from small_load(which, plan, libs, process)


def small_load(which: str, plan: Plan, libs: Path, process: Process) -> Iterator[Figure]:
    """A record at a time."""
    address, count = process.address, plan.tiny_requests
    if count:
        say(f"{which}: tiny requests")
        create(address, "tiny")
        with Effort(process.pid) as effort:
            rate = java_produce(libs, address, "tiny", count, 100, "1", UNBATCHED)
        yield Figure("tiny requests", 100, which, rate, "requests/s")
        yield Figure("tiny requests, CPU", 100, which, 1e6 * effort.s / count, "us/request")
    if plan.latency_records:
        say(f"{which}: latency")
        create(address, "latency")
        median, tail = java_latency(libs, address, "latency", plan.latency_records)
        yield Figure("end to end, p50", 100, which, median, "ms")
        yield Figure("end to end, p99", 100, which, tail, "ms")
        create(address, "latency-plain")  # has its leader by the time that it is used
        create(address, "latency-fine")
        median, tail = confluent_latency(address, "latency-fine", plan.latency_records)
        yield Figure("end to end (librdkafka), p50", 100, which, median, "ms")
        yield Figure("end to end (librdkafka), p99", 100, which, tail, "ms")
        median, tail = plain_latency(address, "latency-plain", plan.latency_records)
        yield Figure("end to end (the broker's part), p50", 100, which, median, "ms")
        yield Figure("end to end (the broker's part), p99", 100, which, tail, "ms")


def many_partitions(which: str, plan: Plan, work: Path) -> Iterator[Figure]:
    """Start-up with many partitions, stopped in order before."""
    from confluent_kafka.admin import AdminClient, NewTopic

    with started(which, work / f"{which}-many") as (process, _):
        admin = AdminClient({"bootstrap.servers": process.address, "log_level": 0})
        left = plan.partitions
        while left > 0:
            count = min(left, PARTITIONS_PER_TOPIC)
            topic = NewTopic(f"many-{left}", count, 1)
            admin.create_topics([topic])[topic.topic].result(60)
            left -= count
    with started(which, work / f"{which}-many") as (_, seconds):
        yield Figure(f"start-up, {plan.partitions} partitions", 0, which, seconds, "s")


def medians(figures: list[Figure]) -> list[Figure]:
    """One figure of each kind: the median of its rounds."""
    kinds: dict[tuple[str, int, str, str], list[float]] = {}
    for one in figures:
        kinds.setdefault((one.what, one.record_bytes, one.broker, one.unit), []).append(one.value)
    return [
        Figure(what, size, broker, statistics.median(values), unit)
        for (what, size, broker, unit), values in kinds.items()
    ]


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark that has both brokers do the same."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--brokers", default="penstock,kafka", help="default: both")
    parser.add_argument("--rounds", type=int, default=1, help="the figures are the medians")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where to put the data; default: a temporary one")
    parser.add_argument("--smoke", action="store_true", help="a size that only shows that it runs")
    parser.add_argument("--json", action="store_true")
    return parser


def compare(
    options: argparse.Namespace,
    measure: Callable[[str, Path | None, Path], Iterator[Figure]],
    aims: dict[str, float],
) -> None:
    """Measures each broker in turn, in every round, and prints the medians.

    Args:
        options: as `parser_of` has them.
        measure: which broker, Kafka's load tools if they are there, and where to put its data.
        aims: by unit, the ratio that is aimed at.
    """
    end_cleanly()
    cores = limit_cores(options.cores)
    brokers = ["penstock"] if options.smoke else options.brokers.split(",")
    reason = cache.problem("kafka")
    libs = None if reason or options.smoke else cache.jar_dir("kafka")
    if reason and not options.smoke:
        say(f"without Kafka and its tools: {reason}")
        brokers = [one for one in brokers if one != "kafka"]
    figures: list[Figure] = []
    for number in range(options.rounds):
        for which in brokers if number % 2 == 0 else reversed(brokers):
            with tempfile.TemporaryDirectory(
                dir=options.work, ignore_cleanup_errors=True
            ) as folder:
                figures += measure(which, libs, Path(folder))
    figures = medians(figures)
    if options.json:
        print(json.dumps({"cores": cores, "figures": [asdict(one) for one in figures]}))
    else:
        print(table(figures, aims))


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--mib", type=int, help="produced per run; default 300")
    options = parser.parse_args(arguments)
    plan = SMOKE if options.smoke else Plan()
    if options.mib:
        plan = Plan(options.mib << 20)
    compare(options, lambda which, libs, work: measure(which, plan, libs, work), AIMS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
