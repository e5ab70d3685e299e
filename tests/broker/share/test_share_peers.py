"""Share groups with Apache Kafka on the other side: its consumers on our broker, our queue on its."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.peers import kafka_peer

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client.share import ShareClient
from penstock.wire.protocol import ConfigResource

pytestmark = [pytest.mark.peer, pytest.mark.slow]
TOOLS = "org.apache.kafka.tools"
START_S = 60.0


@pytest.fixture(scope="module")
def kafka() -> Any:
    """The module that knows where Kafka is."""
    return kafka_peer()


class Consumer:
    """Kafka's VerifiableShareConsumer: says as JSON what it receives and acknowledges."""

    def __init__(self, kafka: Any, address: str, topic: str, group: str, *options: str) -> None:
        java = [str(kafka.cache.java()), "-Xmx256m", "-cp", kafka.cache.classpath("kafka")]
        argv = [*java, f"{TOOLS}.VerifiableShareConsumer"]
        argv += ["--bootstrap-server", address, "--topic", topic, "--group-id", group, "--verbose"]
        self.process = subprocess.Popen(
            [*argv, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.received: list[tuple[int, int]] = []
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("name") == "record_data":
                self.received.append((event["partition"], event["offset"]))
            elif event.get("name") == "offsets_acknowledged" and event.get("success"):
                self.acknowledged += event["count"]

    def stop(self, *, kill: bool = False) -> None:
        """Ends it."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(30)
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait_until(done: Any, timeout_s: float = 60.0) -> None:
    """Waits until `done()`."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of ours."""
    process = BrokerProcess(tmp_path / "data", die_with_parent=False).start()
    yield process
    process.kill()


def test_kafkas_share_consumers_on_our_broker(kafka: Any, own: BrokerProcess) -> None:
    """Two of Kafka's share consumers and a queue of ours share the jobs of one topic; a consumer
    and the broker die by SIGKILL; every job is received, and the group ends with nothing to do.
    """
    jobs = 400
    with ps.Queue("jobs", own.address, lock="2s", backoff="10ms", prefetch=5) as queue:
        queue._join()
        consumers = [Consumer(kafka, own.address, "jobs", "jobs") for _ in range(2)]
        mine: set[tuple[int, int]] = set()
        try:
            for i in range(jobs // 2):
                queue.put(str(i))
            wait_until(lambda: sum(len(one.received) for one in consumers) > 20, START_S)
            consumers[0].stop(kill=True)
            own.kill()
            own.start()
            for i in range(jobs // 2, jobs):
                queue.put(str(i))
            for _ in range(20):
                job = queue.get("2s")
                if job is not None:
                    mine.add((job.partition, job.offset))
                    job.ack()
            wait_until(lambda: queue.stats().waiting == 0)
        finally:
            for one in consumers:
                one.stop()
        received = {place for one in consumers for place in one.received} | mine
        assert received == {(0, offset) for offset in range(jobs)}
        assert queue.stats().dead == 0


def test_kafkas_tools_on_our_broker(kafka: Any, own: BrokerProcess) -> None:
    """Kafka's tools configure, list, describe and reset a share group, and consume with it."""
    java = [str(kafka.cache.java()), "-Xmx256m", "-cp", kafka.cache.classpath("kafka")]

    def run(name: str, *arguments: str) -> str:
        argv = [*java, name, "--bootstrap-server", own.address]
        done = subprocess.run(
            [*argv, *arguments], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    groups = f"{TOOLS}.consumer.group.ShareGroupCommand"
    with ps.Queue("jobs", own.address) as queue:
        for i in range(50):
            queue.put(str(i))
    alter = ("--alter", "--entity-type", "groups", "--entity-name", "g")
    run("kafka.admin.ConfigCommand", *alter, "--add-config", "share.auto.offset.reset=earliest")
    consume = ("--topic", "jobs", "--group", "g", "--max-messages", "50", "--timeout-ms", "30000")
    out = run(f"{TOOLS}.consumer.ConsoleShareConsumer", *consume)
    assert sorted(out.split(), key=int) == [str(i) for i in range(50)]
    assert "g" in run(groups, "--list").split()
    described = run(groups, "--describe", "--group", "g").split()
    assert described[-5:] == ["g", "jobs", "0", "50", "0"]
    reset = ("--reset-offsets", "--group", "g", "--topic", "jobs", "--to-earliest", "--execute")
    run(groups, *reset)
    assert run(groups, "--describe", "--group", "g").split()[-2:] == ["0", "50"]
    run(groups, "--delete", "--group", "g")
    assert "g" not in run(groups, "--list").split()


def test_our_queue_on_kafka(kafka: Any, tmp_path: Path) -> None:
    """Our queue works on Kafka's share groups: what it says is the protocol."""
    with (
        kafka.KafkaProcess(tmp_path / "kafka") as broker,
        ps.Queue("jobs", broker.address, lock="15s") as queue,
        ps.Queue("jobs", broker.address, lock="15s") as other,
        ShareClient(broker.address) as client,
    ):
        client.configure(ConfigResource.GROUP, "jobs", {"share.auto.offset.reset": "earliest"})
        for i in range(6):
            queue.put(str(i))
        done = []
        first = queue.get("60s")
        assert first is not None
        first.release()
        deadline = time.monotonic() + 60
        while len(done) < 6 and time.monotonic() < deadline:
            for one in (queue, other):
                job = one.get("1s")
                if job is not None:
                    done.append((job.text(), job.attempt))
                    job.renew()
                    job.ack()
        assert sorted(done) == [("0", 2), *((str(i), 1) for i in range(1, 6))]
        assert queue.stats().waiting == 0
