"""SIGKILL of the driver, of Python workers and of the broker while input streams in: nothing shows.

The seed is in the message of a failure; repeat it with
`PENSTOCK_KILL_SEED=… pytest tests/engine/test_kills.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pytest
from tests.effort import rounds

from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer, Reader
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import BrokerError, QueryError
from penstock.serve import Views
from penstock.wire.columns import header

PROGRAM = Path(__file__).with_name("kill_program.py")
KILLS = rounds("PENSTOCK_KILLS", quick=10, full=30)
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "20261121"))
EVENTS_PER_CHUNK = 400
LATENESS_US = 2_000_000
PATIENCE_S = 300.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3_000)]


class Feed(threading.Thread):
    """Streams a seeded input into the log, in the order of chunks, until it is told to finish."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.address, self.chance = address, random.Random(seed)
        self.finish = threading.Event()
        self.failure: BaseException | None = None
        self.sent = 0

    def run(self) -> None:
        try:
            with Client(self.address) as client:
                client.create_topic("events", 2, configs={"retention.ms": "-1"}, exists_ok=True)
            producer = Producer(self.address, patience_s=PATIENCE_S)
            now_ms = 1_767_225_600_000
            while not self.finish.is_set():
                self._send(producer, now_ms)
                now_ms += 1_000
                time.sleep(0.05)
            self._send(producer, now_ms + 3_600_000)  # closes all windows before it
            producer.close()
        except BaseException as error:
            self.failure = error

    def _send(self, producer: Producer, now_ms: int) -> None:
        rows, keys = [], []
        for _ in range(EVENTS_PER_CHUNK):
            user = f"u{self.chance.randrange(50)}"
            # Some are late for their window, some don't fit the schema.
            at = now_ms - self.chance.choice([0, 500, 1_900, 2_500, 30_000] + [0] * 20)
            row = {"user": user, "page": f"/{self.chance.randrange(7)}", "at": at}
            row["v"] = "?" if self.chance.random() < 0.002 else self.chance.randrange(1_000)
            rows.append(orjson.dumps(row))
            keys.append(user.encode())
        of = murmur2_partitions(pa.array(keys, pa.binary()), 2)
        for partition in (0, 1):
            index = pa.array(np.flatnonzero(of == partition))
            times = np.full(len(index), now_ms, np.int64)
            producer.send(
                "events",
                partition,
                pa.array(keys, pa.binary()).take(index),
                pa.array(rows, pa.binary()).take(index),
                times,
            )
        self.sent += EVENTS_PER_CHUNK


class Pipeline:
    """The program in a process of its own."""

    def __init__(self, name: str, directory: Path, address: str, *more: str) -> None:
        self.command = [sys.executable, str(PROGRAM), name, str(directory), address, *more]
        self.directory = directory
        self.log = directory.with_suffix(f".{'-'.join(more) or 'whole'}.stderr")
        self.start()

    def start(self) -> None:
        self.known: set[psutil.Process] = set()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stderr=log, start_new_session=True)

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers, and the daemon that forks them: killed, it leaves them orphans."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.known |= {p for p in family if _is_worker(p)}
        self.known = {p for p in self.known if p.is_running()}
        return sorted(self.known, key=lambda p: p.pid)

    def kill_worker(self, chance: random.Random) -> None:
        """Kills one of Spark's Python workers, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                return chance.choice(self.workers()).kill()
            time.sleep(0.1)
        raise AssertionError(f"no worker to kill; {self.log.read_text()[-3_000:]}")

    def kill(self) -> None:
        """Kills the driver; its JVM notices by itself, as after a real crash."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends the program in order."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()[-3_000:]

    def wait_for(self, ends: dict[int, int] | None = None) -> None:
        """Waits until the program commits; with `ends`, until it has read and closed everything."""
        deadline = time.monotonic() + PATIENCE_S
        before, still = -1, 0
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline, f"no progress; {self.log.read_text()[-3_000:]}"
            with contextlib.suppress(QueryError):
                views = Views(self.directory)
                status = views.status()
                read = {int(p): o for p, o in status["offsets"]["events"].items()}
                if ends is None and before not in (-1, status["version"]):
                    return
                if status["version"] != before:
                    still, deadline = -1, time.monotonic() + PATIENCE_S
                still += 1
                if read == ends and _has_closed(status) and still > 10:
                    return
                before = status["version"]
            time.sleep(0.1)


def _has_closed(status: dict[str, Any]) -> bool:
    """Whether the watermark is where what was read takes it: that is a batch after the last rows."""
    newest = min(status["newest_us"]["events"].values())
    return bool(status["watermark_us"].get("events", 0) >= newest - LATENESS_US)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:3] == ["-m", "penstock.engine.spark.workers"]
    except psutil.Error:
        return False


@contextlib.contextmanager
def ended(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
    finally:
        with contextlib.suppress(ProcessLookupError):
            pipeline.kill()


def contents(name: str, directory: Path, address: str) -> dict[str, list[object]]:
    """All that a pipeline made, in an order of its own."""
    snapshot = Views(directory).snapshot()
    found: dict[str, list[object]] = {
        view: sorted(map(repr, snapshot.table(view).to_pylist())) for view in snapshot.names()
    }
    with Client(address) as client, Reader(address) as reader:
        for topic in ("closed", "tens", "pairs", "corrected", "joined"):
            full = f"{name}-{topic}"
            rows: list[tuple[int, bytes | None, bytes | None]] = []
            for partition, end in client.offsets(full, "latest").items():
                for records in reader.read(full, partition, 0, end):
                    batch = records.to_arrow()
                    rows += zip(
                        [partition] * len(batch),
                        batch.column("key").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    )
            if topic == "joined":
                rows = _applied(rows)
            if topic in ("corrected", "joined"):  # what lies between depends on how batches are cut
                rows = list({row[:2]: row for row in rows}.values())
            found[topic] = sorted(map(repr, rows))
        dead = f"{name}.dead-letters"
        letters: list[object] = []
        for records in reader.read(dead, 0, 0, client.offsets(dead, "latest")[0]):
            letters += [dict(header(records, i)) for i in range(len(records))]
        found["dead letters"] = sorted(map(repr, letters))
    return found


def _applied(rows: list[Any]) -> list[Any]:
    """Changes of a table, each of which must begin where the one before ended."""
    now: dict[Any, Any] = {}
    for _, key, value in rows:
        change = orjson.loads(value)
        assert now.get(key) == change["before"], (key, now.get(key), change)
        now[key] = change["after"]
    return [(0, key, orjson.dumps(row)) for key, row in now.items() if row is not None]


@pytest.mark.slow
def test_kills_leave_no_trace(tmp_path: Path) -> None:
    """After many kills at random moments, all that was made equals an undisturbed run's."""
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address = broker.address
    feed = Feed(address, SEED)
    counts = {"driver": 0, "worker": 0, "broker": 0}
    try:
        with ended(Pipeline("hit", tmp_path / "hit.penstock", address)) as hit:
            feed.start()
            hit.wait_for()
            victims = ["driver", "worker", "broker", "worker", "broker", "worker", "broker"]
            for victim in chance.sample((victims * KILLS)[:KILLS], KILLS):
                time.sleep(chance.uniform(0.0, 0.7))
                if victim == "driver":
                    hit.kill()
                    hit.start()
                    hit.wait_for()
                elif victim == "broker":
                    broker.kill()
                    broker.start()
                else:
                    hit.kill_worker(chance)
                counts[victim] += 1
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            with Client(address) as client:
                ends = client.offsets("events", "latest")
            assert sum(ends.values()) == feed.sent, "the input itself is there, once"
            hit.wait_for(ends)
            hit.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address)) as calm:
            calm.wait_for(ends)
            calm.stop()
        disturbed = contents("hit", tmp_path / "hit.penstock", address)
        undisturbed = contents("calm", tmp_path / "calm.penstock", address)
        assert undisturbed["closed"], "windows were closed"
        assert len(undisturbed["dead letters"]) > 10, "some rows were late or bad"
        for what, rows in undisturbed.items():
            # Sorted again: the names are in the rows.
            mine = sorted(str(row).replace("hit", "calm") for row in disturbed[what])
            assert mine == sorted(map(str, rows)), f"{what} differ; seed {SEED}, kills {counts}"
        print(f"seed {SEED}: kills {counts}, {feed.sent:,} events")
    finally:
        broker.stop()


def committed(address: str, topics: tuple[str, ...]) -> list[list[bytes]]:
    """The values that readers of committed data see, by topic, in an order of their own."""
    found = []
    with Client(address) as client, Reader(address) as reader:
        for topic in topics:
            chunks = [
                records.values().to_pylist()
                for partition, end in client.offsets(topic, "latest").items()
                for records in reader.read(topic, partition, 0, end)
            ]
            found.append(sorted(value for chunk in chunks for value in chunk))
    return found


@pytest.mark.slow
def test_readers_see_whole_batches(tmp_path: Path) -> None:
    """Two topics that get the same rows in transactions have the same rows whenever the driver is dead."""
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address = broker.address
    feed = Feed(address, SEED)
    topics = ("whole-tens", "whole-again")
    seen = 0
    try:
        with ended(Pipeline("whole", tmp_path / "whole.penstock", address, "transactions")) as one:
            feed.start()
            one.wait_for()
            for _ in range(KILLS // 3):
                time.sleep(chance.uniform(0.0, 0.7))
                victim = chance.choice(["driver", "driver", "worker", "broker"])
                if victim == "broker":
                    broker.kill()
                    broker.start()
                elif victim == "worker":
                    one.kill_worker(chance)
                else:
                    one.kill()
                    # What it was just about to commit may still become visible; half of it never stays.
                    deadline = time.monotonic() + 10.0
                    left, right = committed(address, topics)
                    while left != right and time.monotonic() < deadline:
                        left, right = committed(address, topics)
                    assert left == right, f"seed {SEED}: {len(left)} and {len(right)} rows"
                    assert len(left) >= seen
                    seen = len(left)
                    one.start()
                    one.wait_for()
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            with Client(address) as client:
                one.wait_for(client.offsets("events", "latest"))
            one.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address)) as calm:
            with Client(address) as client:
                calm.wait_for(client.offsets("events", "latest"))
            calm.stop()
        left, right = committed(address, topics)
        [wanted] = committed(address, ("calm-tens",))
        assert left == right == wanted
        assert len(wanted) > 100
    finally:
        broker.stop()


@pytest.mark.slow
def test_the_older_owner_stops(tmp_path: Path) -> None:
    """Of two programs with one directory the older one ends with an error that says why."""
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    directory = tmp_path / "two.penstock"
    feed = Feed(broker.address, SEED)
    try:
        with ended(Pipeline("two", directory, broker.address)) as older:
            feed.start()
            older.wait_for()
            with ended(Pipeline("two", directory, broker.address)) as newer:
                assert older.process.wait(PATIENCE_S) == 1
                said = older.log.read_text()
                assert "Another process runs the same pipeline" in said, said[-2_000:]
                newer.wait_for()
                feed.finish.set()
                feed.join(PATIENCE_S)
                with contextlib.suppress(BrokerError), Client(broker.address) as client:
                    newer.wait_for(client.offsets("events", "latest"))
                newer.stop()
    finally:
        broker.stop()
