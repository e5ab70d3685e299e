"""Flink's Kafka source and its exactly-once sink against our broker, in scenarios of our own.

    python tests/suites/flink.py [--address HOST:PORT] [--only name]

Flink comes with `python benchmarks/peers/fetch.py flink`. The jobs are in `flink_job.py`, which runs in
Flink's own environment: one process reads, and each run of the exactly-once sink is a process of its
own, which is killed (SIGKILL, with its JVM) between two checkpoints and restored from the last one.
PENSTOCK_KILLS says how often.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs import Jobs
from suite import Scenario, cache, create_topic, expect, report, tried, wait

from penstock.broker import BrokerProcess

JOB = Path(__file__).with_name("flink_job.py")
JOB_S_MAX = 120.0
CHECKPOINT_INTERVAL_MS = 1500
RECORDS_PER_S = 400
KILLS = int(os.environ.get("PENSTOCK_KILLS", "3"))  # of a job, in each scenario that has them
SETTLE_S = 4.0  # time for doubles to show

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""


def begin() -> Jobs:
    """A process that carries out Flink jobs."""
    return Jobs([cache.python("flink"), JOB], _folder / "flink.log", JOB_S_MAX)


_reader: Jobs | None = None
_folder = Path()


@contextlib.contextmanager
def flink() -> Iterator[None]:
    """Flink for as long as the block: a folder for its files and a process for jobs that read."""
    global _reader, _folder
    with tempfile.TemporaryDirectory(prefix="penstock-flink-") as name:
        _folder = Path(name)
        _reader = begin()
        try:
            yield
        finally:
            _reader.kill()


def read(address: str, topic: str, **job: Any) -> list[str]:
    """What a job reads."""
    assert _reader is not None
    job = {"group": f"{topic}-group", "start": ["earliest"], **job}
    _reader.begin(bootstrap=address, topic=topic, **job)
    return list(_reader.result()["values"])


def produce(address: str, topic: str, values: Sequence[str], **options: Any) -> None:
    """Writes values to the partitions in turn.

    Args:
        address: the broker's.
        topic: the topic, of two partitions.
        values: text.
        options: `timestamps` (one in milliseconds for each value), `transactional_id`, `commit`.
    """
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 3}
    settings["enable.idempotence"] = True  # what is sent again after a crash is there once
    transactional = options.get("transactional_id")
    if transactional:
        settings["transactional.id"] = transactional
    producer = Producer(settings)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    times = options.get("timestamps") or itertools.repeat(0)
    for number, (value, timestamp) in enumerate(zip(values, times, strict=False)):
        producer.produce(topic, value, partition=number % 2, timestamp=timestamp)
    expect("messages left", producer.flush(JOB_S_MAX), 0)
    if transactional:
        (producer.commit_transaction if options["commit"] else producer.abort_transaction)()


def committed_values(address: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """What librdkafka reads of a topic, from its beginning to its end."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 3,
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
    values, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(JOB_S_MAX)
        assert message is not None
        if (error := message.error()) is None:
            values.append(str(message.value(), "utf-8"))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended += 1
        else:
            raise AssertionError(f"expected records of {topic}, found {error}")
    consumer.close()
    return values


def commit(address: str, group: str, topic: str, places: dict[int, int]) -> None:
    """Commits a group's offsets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 3})
    wanted = [TopicPartition(topic, one, at) for one, at in places.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def group_offsets(address: str, group: str, topic: str) -> dict[int, int]:
    """A group's committed offsets, by partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 3})
    found = consumer.committed([TopicPartition(topic, one) for one in range(2)], timeout=10)
    consumer.close()
    return {one.partition: one.offset for one in found}


@contextlib.contextmanager
def producing(address: str, topic: str, what: str) -> Iterator[list[str]]:
    """Writes on and on for as long as the block; gives what has been acknowledged."""
    written: list[str] = []
    end = threading.Event()

    def work() -> None:
        pause_s = 0.1
        while not end.wait(pause_s):
            begin = len(written)
            more = [f"{what} {begin + n}" for n in range(round(RECORDS_PER_S * pause_s))]
            produce(address, topic, more)
            written.extend(more)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield written
    finally:
        end.set()
        worker.join()


def numbers(what: str, count: int) -> list[str]:
    """`what 0`, `what 1`, …"""
    return [f"{what} {n}" for n in range(count)]


def source_bounded(address: str) -> None:
    """From the earliest to the latest offset."""
    topic = create_topic(address, "flink-bounded", 2)
    produce(address, topic, numbers("row", 5000))
    seen = read(address, topic, stop=["latest"])
    expect("all rows", sorted(seen) == sorted(numbers("row", 5000)), True)


def source_latest(address: str) -> None:
    """Unbounded, from the latest offset: nothing of what was there before."""
    topic = create_topic(address, "flink-latest", 2)
    produce(address, topic, numbers("before", 100))
    with producing(address, topic, "after"):
        seen = read(address, topic, start=["latest"], count=500)
    expect("kinds of rows", {one.split()[0] for one in seen}, {"after"})
    expect("rows", len(set(seen)), 500)


def source_committed(address: str) -> None:
    """From a group's committed offsets; from the earliest one where there are none."""
    topic = create_topic(address, "flink-committed", 2)
    produce(address, topic, numbers("row", 100))
    commit(address, f"{topic}-group", topic, {0: 40, 1: 45})
    where = {"start": ["committed", "EARLIEST"], "stop": ["latest"]}
    wanted = [f"row {n}" for n in range(100) if n // 2 >= (45 if n % 2 else 40)]
    expect("rows", sorted(read(address, topic, **where)), sorted(wanted))
    expect("rows of a new group", len(read(address, topic, **where, group=f"{topic}-new")), 100)


def source_timestamp(address: str) -> None:
    """From the first record of a time or later, to the first of another."""
    topic = create_topic(address, "flink-timestamp", 2)
    begin = int(time.time() * 1000) - 1_000_000
    times = [begin + 1000 * n for n in range(200)]
    produce(address, topic, numbers("row", 200), timestamps=times)
    seen = read(address, topic, start=["timestamp", times[150]], stop=["latest"])
    expect("rows", sorted(seen), sorted(numbers("row", 200)[150:]))
    span = {"start": ["timestamp", times[50]], "stop": ["timestamp", times[60]]}
    expect(
        "rows of a span", sorted(read(address, topic, **span)), sorted(numbers("row", 200)[50:60])
    )


def source_offsets(address: str) -> None:
    """From and to offsets that are given."""
    topic = create_topic(address, "flink-offsets", 2)
    produce(address, topic, numbers("row", 100))
    span = {"start": ["offsets", {0: 10, 1: 20}], "stop": ["offsets", {0: 12, 1: 23}]}
    wanted = ["row 20", "row 22", "row 41", "row 43", "row 45"]
    expect("rows", sorted(read(address, topic, **span)), wanted)


def source_pattern(address: str) -> None:
    """Topics by a pattern."""
    first, second = (create_topic(address, f"flink-pattern-{one}", 2) for one in "ab")
    produce(address, first, ["one"])
    produce(address, second, ["two"])
    seen = read(address, f"flink-pattern-.-{os.getpid()}-.*", pattern=True, stop=["latest"])
    expect("rows", sorted(seen), ["one", "two"])


def source_read_committed(address: str) -> None:
    """Of transactions, those that were committed."""
    topic = create_topic(address, "flink-isolation", 2)
    mine = {"transactional_id": f"{topic}-id"}
    produce(address, topic, numbers("yes", 50), **mine, commit=True)
    produce(address, topic, numbers("no", 50), **mine, commit=False)
    produce(address, topic, numbers("also", 10), **mine, commit=True)
    seen = read(address, topic, stop=["latest"], isolation="read_committed")
    expect("committed", sorted(seen), sorted([*numbers("yes", 50), *numbers("also", 10)]))
    expect("all", len(read(address, topic, stop=["latest"])), 110)


def copy(address: str, topic: str, into: str, **job: Any) -> Jobs:
    """Begins a job that copies a topic exactly once, in a process of its own."""
    checkpoints = _folder / "checkpoints" / into
    checkpoints.mkdir(parents=True, exist_ok=True)
    made = begin()
    common = {"group": f"{into}-group", "prefix": f"{into}-", "start": ["earliest"]}
    where = {"checkpoints": str(checkpoints), "interval_ms": CHECKPOINT_INTERVAL_MS}
    made.begin(bootstrap=address, topic=topic, into=into, **{**common, **where, **job})
    return made


def last_checkpoint(into: str) -> Path | None:
    """The folder of the newest checkpoint that is complete."""
    found = (_folder / "checkpoints" / into).glob("*/chk-*/_metadata")
    newest = max(found, key=lambda one: one.stat().st_mtime_ns, default=None)
    return newest and newest.parent


def sink_to_the_end(address: str) -> None:
    """A bounded job's last transactions are committed at its end, and its offsets too."""
    topic, into = (create_topic(address, f"flink-{one}", 2) for one in ("in", "out"))
    produce(address, topic, numbers("row", 5000))
    job = copy(address, topic, into, naming="INCREMENTING", stop=["latest"])
    try:
        job.result()
    finally:
        job.kill()
    seen = committed_values(address, into)
    expect("rows", (len(seen), len(set(seen))), (5000, 5000))


def killed(address: str, naming: str) -> None:
    """Kills a copying job again and again between checkpoints, restores it, compares."""
    topic, into = (
        create_topic(address, f"flink-{naming.lower()}-{one}", 2) for one in ("in", "out")
    )
    job = None
    with producing(address, topic, "row") as written:
        for _ in range(KILLS):
            checkpoint = last_checkpoint(into)
            job = copy(address, topic, into, naming=naming, restore=checkpoint and str(checkpoint))
            try:
                await_open_transaction(address, job, into, checkpoint)
            finally:
                job.kill()
    checkpoint = last_checkpoint(into)
    job = copy(address, topic, into, naming=naming, restore=str(checkpoint))
    try:
        compare(address, job, into, written)
        everything = committed_values(address, into, "read_uncommitted")
        expect("records of aborted transactions", len(everything) > len(written), True)

        def at_end() -> bool:
            return sum(group_offsets(address, f"{into}-group", topic).values()) == len(written)

        wait(at_end, "the group's offsets at the end", JOB_S_MAX)
    finally:
        job.kill()


def await_open_transaction(address: str, job: Jobs, into: str, checkpoint: Path | None) -> None:
    """Until a checkpoint after the one given is complete and more has been written since."""

    def moved() -> bool:
        if output := job.ended():
            raise AssertionError(f"expected the job to run on, found {output[-1500:]}")
        return last_checkpoint(into) not in (None, checkpoint)

    wait(moved, "a new checkpoint", JOB_S_MAX)

    def is_open() -> bool:
        everything = committed_values(address, into, "read_uncommitted")
        return len(committed_values(address, into)) < len(everything)

    wait(is_open, "records that aren't committed", JOB_S_MAX)


def compare(address: str, job: Jobs, into: str, written: list[str]) -> None:
    """Waits for all that was written, then looks whether it is there once each."""
    wanted = sorted(written)

    def complete() -> bool:
        if output := job.ended():
            raise AssertionError(f"expected the job to run on, found {output[-1500:]}")
        return set(committed_values(address, into)) >= set(wanted)

    wait(complete, f"{len(wanted)} records", JOB_S_MAX)
    time.sleep(SETTLE_S)
    seen = sorted(committed_values(address, into))
    doubles = len(seen) - len(set(seen))
    expect("records, each once", (len(seen), doubles, seen == wanted), (len(wanted), 0, True))


def sink_killed_incrementing(address: str) -> None:
    """Each transaction has an id of its own (INCREMENTING): every record exactly once."""
    killed(address, "INCREMENTING")


def sink_killed_pooling(address: str) -> None:
    """Ids are used again, and lingering transactions found by listing them (POOLING)."""
    killed(address, "POOLING")


def sink_broker_killed(address: str) -> None:
    """The broker is killed and comes back, again and again: every record exactly once.

    It is another broker than the one of `address`, as that one may not be ours to kill.
    """
    with BrokerProcess(_folder / "killed") as broker:
        topic, into = (
            create_topic(broker.address, f"flink-crash-{one}", 2) for one in ("in", "out")
        )
        with producing(broker.address, topic, "row") as written:
            job = copy(broker.address, topic, into, naming="INCREMENTING", restarts=20)
            try:
                for _ in range(KILLS):
                    await_open_transaction(broker.address, job, into, last_checkpoint(into))
                    broker.kill()
                    broker.start()
                await_open_transaction(broker.address, job, into, last_checkpoint(into))
            except BaseException:
                job.kill()
                raise
        try:
            compare(broker.address, job, into, written)
        finally:
            job.kill()


SCENARIOS: tuple[Scenario, ...] = (
    source_bounded,
    source_latest,
    source_committed,
    source_timestamp,
    source_offsets,
    source_pattern,
    source_read_committed,
    sink_to_the_end,
    sink_killed_incrementing,
    sink_killed_pooling,
    sink_broker_killed,
)


def main() -> int:
    """Runs the scenarios, tells."""
    found = tried(SCENARIOS, __doc__, cache.problem("flink"), flink)
    return report("Flink 2.3.0, own scenarios", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())
