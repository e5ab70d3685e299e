"""How does the broker do beside Kafka? Rates, latency, memory, start-up; by Kafka's own load tools.

    python benchmarks/broker.py [--brokers penstock,kafka] [--rounds 1] [--json]

Both brokers run on the same cores in the same run, one after the other, each with an empty directory:

- start-up: from starting the process (a formatted directory) to its first answer; then again with a
  thousand partitions;
- memory at rest, and the most under the load that follows: resident, and of it anonymous (not the page
  cache's), sampled;
- produce with acks=1 and acks=all, and consume, at 100 B and 1 KB: ProducerPerformance,
  ConsumerPerformance;
- tiny requests: a record of 100 B in each request, five in flight;
- end to end: from producing a record to having it: EndToEndLatency, p50 and p99.

With several rounds each figure is the median. Without Java the produce and consume rates are
confluent-kafka's, and Kafka is left out. The aim: 1.5 times Kafka's throughput, half its latency, a
tenth of its memory and of its start-up time.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import psutil

from log import (
    confluent_consume,
    confluent_produce,
    create,
    java,
    java_consume,
    java_latency,
    java_produce,
    say,
)
from peers import cache
from peers.kafka import KafkaProcess, wait_until_ready
from sides import end_cleanly, limit_cores

SAMPLE_S = 0.1
REST_S = 2.0  # after start-up, before memory at rest is read
PARTITIONS_PER_TOPIC = 100

# What is better, and the ratio that is aimed at.
AIMS = {"records/s": 1.5, "requests/s": 1.5, "ms": 2.0, "MiB": 10.0, "s": 10.0}
MORE_IS_BETTER = {"records/s", "requests/s"}


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

    bytes_per_run: int = 300 << 20
    tiny_requests: int = 100_000
    latency_records: int = 5_000
    partitions: int = 1_000
    sizes: tuple[int, ...] = (100, 1000)


SMOKE = Plan(1 << 20, 0, 0, 20, (100,))


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()


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
            yield from load(which, plan, libs, process.address)
        yield Figure("memory under load, anonymous", 0, which, memory.anonymous, "MiB")
        yield Figure("memory under load, resident", 0, which, memory.resident, "MiB")
    yield from many_partitions(which, plan, work)


def load(which: str, plan: Plan, libs: Path | None, address: str) -> Iterator[Figure]:
    """Rates and latencies."""
    for size in plan.sizes:
        count = max(plan.bytes_per_run // (size + 20), 100)
        for acks in ("1", "all"):
            topic = f"rates-{size}-{acks}"
            create(address, topic)
            say(f"{which}: {size} B, acks={acks}")
            if libs is None:
                rate = confluent_produce(address, topic, count, size, acks)
            else:
                rate = java_produce(libs, address, topic, count, size, acks)
            yield Figure(f"produce acks={acks}", size, which, rate, "records/s")
        if libs is None:
            rate = confluent_consume(address, topic, count)
        else:
            rate = java_consume(libs, address, topic, count)
        yield Figure("consume", size, which, rate, "records/s")
    if libs is None:
        return
    if plan.tiny_requests:
        say(f"{which}: tiny requests")
        create(address, "tiny")
        rate = tiny_requests(libs, address, "tiny", plan.tiny_requests)
        yield Figure("tiny produce requests", 100, which, rate, "requests/s")
    if plan.latency_records:
        say(f"{which}: latency")
        create(address, "latency")
        median, tail = java_latency(libs, address, "latency", plan.latency_records)
        yield Figure("end to end, p50", 100, which, median, "ms")
        yield Figure("end to end, p99", 100, which, tail, "ms")


def tiny_requests(libs: Path, address: str, topic: str, count: int) -> float:
    """Requests/s of one record each."""
    out = java(
        libs,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "100"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}"),
        *("acks=1", "linger.ms=0", "batch.size=0", "max.in.flight.requests.per.connection=5"),
    )
    last = [line for line in out.splitlines() if "records/sec" in line][-1]
    return float(last.split(" records/sec")[0].split()[-1])


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


def table(figures: list[Figure]) -> str:
    """The figures side by side, with how much better ours are, and the aim."""
    rows: dict[tuple[str, int, str], dict[str, float]] = {}
    for one in figures:
        rows.setdefault((one.what, one.record_bytes, one.unit), {})[one.broker] = one.value
    lines = [f"{'':32}{'bytes':>6}{'penstock':>13}{'kafka':>13}{'ratio':>8}{'aim':>6}  unit"]
    for (what, size, unit), values in rows.items():
        ours, theirs = values.get("penstock"), values.get("kafka")
        ratio = ""
        if ours and theirs:
            ratio = f"{ours / theirs if unit in MORE_IS_BETTER else theirs / ours:.2f}"
        cells = "".join(
            f"{'-' if value is None else format(value, ',.0f' if value > 100 else ',.3f'):>13}"
            for value in (ours, theirs)
        )
        lines.append(f"{what:32}{size or '':>6}{cells}{ratio:>8}{AIMS[unit]:>6}  {unit}")
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--brokers", default="penstock,kafka", help="default: both")
    parser.add_argument("--rounds", type=int, default=1, help="the figures are the medians")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--mib", type=int, help="produced per run; default 300")
    parser.add_argument("--work", type=Path, help="where to put the data; default: a temporary one")
    parser.add_argument("--smoke", action="store_true", help="a size that only shows that it runs")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    end_cleanly()
    cores = limit_cores(options.cores)
    plan = SMOKE if options.smoke else Plan()
    if options.mib:
        plan = Plan(options.mib << 20)
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
                figures += measure(which, plan, libs, Path(folder))
    figures = medians(figures)
    if options.json:
        print(json.dumps({"cores": cores, "figures": [asdict(one) for one in figures]}))
    else:
        print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
