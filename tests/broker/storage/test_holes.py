"""What clients see of records that the disk has damaged: never silence, and always a way past."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.patience import PATIENCE_S, wait_until

from penstock.broker import BrokerProcess
from penstock.client import Reader
from penstock.errors import BrokerError
from penstock.wire import batches

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
from peers import cache
from peers import kafka as apache
from penstock.wire.protocol import ApiKey, ErrorCode

Connect = Callable[[str], Any]
NOW_MS = time.time_ns() // 1_000_000
CORRUPT_MESSAGE = ErrorCode.CORRUPT_MESSAGE
READABLE = [0, 1, 2, 3, *range(6, 12)]


@pytest.fixture(scope="module")
def holey(tmp_path_factory: pytest.TempPathFactory, connect_any: Connect) -> Iterator[str]:
    """A broker with topic `t`, of whose offsets 0 to 11 (two a batch) 4 and 5 are damaged; times
    rise by 1 ms a batch.
    """
    broker = BrokerProcess(tmp_path_factory.mktemp("holes") / "data").start()
    with connect_any(broker.address) as raw:
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        )
        for n in range(6):
            one = batches.build([(b"k", bytes(20_000))] * 2, timestamps_ms=[NOW_MS + n] * 2)
            raw.produce("t", one, acks=-1)
    broker.stop()
    file = broker.data / "topics/t/0/00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 6 * 2 + 100] ^= 1
    file.write_bytes(data)
    broker.start()
    yield broker.address
    broker.kill()


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-m", "penstock.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_librdkafka_gets_an_error_and_seeks_past(holey: str, level: str) -> None:
    """It gets INVALID_MSG with the offset, again and again, and goes on after a seek."""
    settings = {
        "bootstrap.servers": holey,
        "group.id": str(uuid.uuid4()),
        "auto.offset.reset": "earliest",
        "isolation.level": level,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    found: list[int] = []
    errors = 0
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(READABLE):
        assert time.monotonic() < deadline, found
        message = consumer.poll(1.0)
        if message is not None and message.error() is not None:
            assert (message.error().name(), message.offset()) == ("INVALID_MSG", 4)
            errors += 1
            if errors == 2:
                consumer.seek(TopicPartition("t", 0, 6))
        elif message is not None:
            found.append(message.offset())
    assert found == READABLE
    consumer.close()


@pytest.mark.slow
def test_kafka_python_gets_an_error_and_seeks_past(holey: str) -> None:
    """`poll` raises CorruptRecordError until the consumer is moved on."""
    script = Path(__file__).with_name("kafka_python_hole.py")
    command = [sys.executable, str(script), holey, str(uuid.uuid4()), "6"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [[4, 4], READABLE]


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(apache.available() is not None, reason=str(apache.available()))
def test_javas_consumer_ends_and_begins_again_behind(holey: str) -> None:
    """Kafka's console consumer stops at the hole at once, and reads on where it is told to."""

    def consume(*more: str) -> list[int]:
        java = [str(cache.java()), "-Xmx200m", "-XX:TieredStopAtLevel=1"]
        command = [*java, "-cp", cache.classpath("kafka"), "org.apache.kafka.tools.consumer."]
        command[-1] += "ConsoleConsumer"
        command += ["--bootstrap-server", holey, "--topic", "t", *more]
        command += ["--formatter-property", "print.offset=true"]
        command += ["--formatter-property", "print.value=false"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        return [
            int(line.removeprefix("Offset:"))
            for line in ended.stdout.splitlines()
            if line.startswith("Offset:")
        ]

    assert consume("--from-beginning") == [0, 1, 2, 3]  # without a time limit: it fails
    assert consume("--partition", "0", "--offset", "6", "--max-messages", "6") == READABLE[4:]


def test_our_reader_says_how_to_go_on(holey: str) -> None:
    """The error names the offsets and three ways past; with `on_damage` they are skipped."""
    with Reader(holey, patience_s=PATIENCE_S) as reader:
        chunks = reader.read("t", 0, 0, 12, chunk_bytes=1)
        with pytest.raises(BrokerError) as error:
            list(chunks)
        assert error.value.code == CORRUPT_MESSAGE
        for text in ("Offsets 4 to 5", "--from 6", "--topic t:0 --to-offset 6", "Restore the file"):
            assert text in str(error.value)
        holes: list[tuple[int, int]] = []
        chunks = reader.read("t", 0, 5, 12, on_damage=lambda *hole: holes.append(hole))
        assert [offset for one in chunks for offset in one.offset.tolist()] == READABLE[4:]
        assert holes == [(5, 6)]


@pytest.mark.slow
def test_the_command_line_says_how_to_go_on(holey: str) -> None:
    """`consume` prints what comes before, fails with the way past, or skips with a warning."""
    form = ("--format", "json", "--broker", holey)
    stopped = penstock("consume", "t", *form)
    assert (stopped.returncode, len(stopped.stdout.splitlines())) == (1, 4)
    assert "continue at offset 6" in stopped.stderr
    skipped = penstock("consume", "t", "--skip-damaged", *form)
    assert (skipped.returncode, len(skipped.stdout.splitlines())) == (0, len(READABLE))
    assert "offsets 4 to 5 of partition 0" in skipped.stderr


@pytest.mark.slow
def test_a_group_is_moved_past(holey: str) -> None:
    """`penstock groups reset` with the offset that the error names."""
    group = str(uuid.uuid4())
    stopped = penstock("consume", "t", "--group", group, "--broker", holey)
    assert stopped.returncode == 1
    place = ("--topic", "t:0", "--to-offset", 6, "--execute")
    moved = penstock("groups", "--broker", holey, "reset", group, *place)
    assert moved.returncode == 0, moved.stderr
    found = penstock("consume", "t", "--group", group, "--broker", holey)
    assert (found.returncode, len(found.stdout.splitlines())) == (0, 6)


def test_times_and_deletions_pass_over_holes(holey: str, connect: Connect) -> None:
    """The first record of a time in the hole is the one behind it; the log may begin in a hole."""

    def offset_for(raw: Any, timestamp: int) -> int:
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        wanted = [{"name": "t", "partitions": [part]}]
        answer = raw.call(ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=1, topics=wanted)
        found: int = answer["topics"][0]["partitions"][0]["offset"]
        return found

    def delete(raw: Any, offset: int) -> int:
        part = {"partition_index": 0, "offset": offset}
        topics = [{"name": "t", "partitions": [part]}]
        answer = raw.call(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=1000)
        found: int = answer["topics"][0]["partitions"][0]["error_code"]
        return found

    with connect(holey) as raw:
        assert [offset_for(raw, NOW_MS + n) for n in range(6)] == [0, 2, 6, 6, 8, 10]
        assert offset_for(raw, -3) in {10, 11}
        assert delete(raw, 5) == 0
        assert offset_for(raw, -2) == 5
        assert raw.fetch("t", 5)["error_code"] == CORRUPT_MESSAGE
        assert delete(raw, 6) == 0
        wait_until(lambda: raw.fetch("t", 6)["error_code"] == 0, "what lies behind")
        assert offset_for(raw, NOW_MS) == 6
