"""Groups of Kafka's own Java consumers, seen with Kafka's own tools."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from tests.peers import kafka_peer

from penstock.broker import BrokerProcess
from penstock.wire.protocol import ApiKey

CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PATIENCE_S: Final = 60.0
PARTITIONS: Final = 6


@pytest.fixture
def java() -> Callable[..., list[str]]:
    """Makes the command that runs a Java class of Kafka's."""
    cache = kafka_peer().cache
    launcher = str(cache.java())

    def command(main: str, *arguments: str) -> list[str]:
        return [launcher, "-Xmx128m", "-cp", cache.classpath("kafka"), main, *arguments]

    return command


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that don't outlive the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["classic", "consumer", "regex"])
def test_java_consumers(
    own_broker: BrokerProcess,
    connect: Callable[[str], Any],
    java: Callable[..., list[str]],
    members: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    mode: str,
) -> None:
    """Two consumers share a topic, one leaves, the other goes on; nothing is lost or read twice."""
    own_broker.start()
    address = own_broker.address
    with connect(address) as raw:
        wanted = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    protocol = "classic" if mode == "classic" else "consumer"
    what = ["--include", "t.*"] if mode == "regex" else ["--topic", "t"]
    tail = ["--from-beginning", "--command-property", f"group.protocol={protocol}"]
    outputs = [tmp_path / "a.txt", tmp_path / "b.txt"]

    def start(output: Path) -> None:
        command = java(CONSUMER, "--bootstrap-server", address, "--group", "g", *what, *tail)
        with output.open("wb") as target:
            members.append(subprocess.Popen(command, stdout=target, stderr=subprocess.DEVNULL))

    def tool(*arguments: str) -> list[list[str]]:
        command = java(TOOL, "--bootstrap-server", address, "--group", "g", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return [line.split() for line in done.stdout.splitlines() if line.startswith("g ")]

    def produce(first: int) -> None:
        for number in range(first, first + 300):
            producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
        producer.flush()

    def until_read(count: int) -> list[int]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            whole = [one.read_text().rpartition("\n")[0] for one in outputs if one.exists()]
            found = [int(line) for text in whole for line in text.split()]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, f"expected {count} records; found {len(found)}"
            time.sleep(0.2)

    produce(0)
    start(outputs[0])
    until_read(300)
    start(outputs[1])
    deadline = time.monotonic() + PATIENCE_S
    while [one[4] for one in tool("--describe", "--members")] != ["3", "3"]:
        assert time.monotonic() < deadline, "expected both to have 3 partitions"
    produce(300)
    until_read(600)
    members[0].terminate()
    members[0].wait()
    produce(600)
    assert sorted(until_read(900)) == list(range(900))
    members[1].terminate()
    members[1].wait()
    assert [one[3:6] for one in sorted(tool("--describe"))] == [["150", "150", "0"]] * PARTITIONS
