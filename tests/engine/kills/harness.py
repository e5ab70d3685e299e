"""What the tests of kills share: an input that streams in, a program to kill, and what it has made."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import psutil
import pyarrow as pa
from tests.effort import rounds
from tests.patience import wait_until

from penstock.client import Client, Producer, Reader
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import QueryError
from penstock.serve import Views
from penstock.wire.columns import header

__all__ = [
    "KILLS",
    "PATIENCE_S",
    "SEED",
    "TOPICS",
    "Committed",
    "Feed",
    "Pipeline",
    "contents",
    "ended",
    "ends_of",
    "is_lane",
]

PROGRAM: Final = Path(__file__).with_name("program.py")
KILLS: Final = rounds("PENSTOCK_KILLS", quick=10, full=10)
SEED: Final = int(os.environ.get("PENSTOCK_KILL_SEED", "20261121"))
EVENTS_PER_CHUNK: Final = 400
PRICES_PER_CHUNK: Final = 2
PAGES: Final = 7
CLOSING_VALUE: Final = 501
PAUSE_S: Final = 0.1 if KILLS <= 30 else 0.3
"""Between two chunks: what is read once more at the end stays small where kills are many."""
OUTPUTS: Final = (
    "closed", "tens", "again", "pairs", "corrected", "visits", "charged", "joined", "parts", "picked",
    "answered", "timed-out",
)  # fmt: skip
TOPICS: Final = {"events": 2_000_000, "prices": 0}
"""The input, with its lateness in microseconds."""
PATIENCE_S: Final = 300.0


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
                for topic, partitions in (("events", 2), ("prices", 1)):
                    configs = {"retention.ms": "-1"}
                    client.create_topic(topic, partitions, configs=configs, exists_ok=True)
            producer = Producer(self.address, patience_s=PATIENCE_S)
            now_ms = 1_767_225_600_000
            while not self.finish.is_set():
                self._send(producer, now_ms)
                now_ms += 1_000
                time.sleep(PAUSE_S)
            self._send(producer, now_ms + 3_600_000, closing=True)  # closes all windows before it
            producer.close()
        except BaseException as error:
            self.failure = error

    def _send(self, producer: Producer, now_ms: int, *, closing: bool = False) -> None:
        """Sends what happens in a second. What closes takes part in no join: nothing comes after it."""
        pages = self.chance.sample(range(PAGES), PRICES_PER_CHUNK)
        prices = [
            {"page": f"/{p}", "price": self.chance.randrange(99), "at": now_ms} for p in pages
        ]
        names = pa.array([row["page"].encode() for row in prices], pa.binary())
        values = pa.array([orjson.dumps(row) for row in prices], pa.binary())
        producer.send("prices", 0, names, values, np.full(len(prices), now_ms, np.int64))
        rows, keys = [], []
        for _ in range(EVENTS_PER_CHUNK):
            user = f"u{self.chance.randrange(50)}"
            # Some are late for their window, some don't fit the schema.
            at = now_ms - self.chance.choice([0, 500, 1_900, 2_500, 30_000] + [0] * 20)
            row = {"user": user, "page": f"/{self.chance.randrange(PAGES)}", "at": at}
            row["v"] = "?" if self.chance.random() < 0.002 else self.chance.randrange(1_000)
            if closing:
                row["v"] = CLOSING_VALUE
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

    def __init__(
        self,
        name: str,
        directory: Path,
        address: str,
        *more: str,
        spark: str | None = None,
        state: str | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self.command = [sys.executable, str(program), name, str(directory), address, *more]
        self.env = dict(os.environ)
        if spark is not None and state is not None:
            self.env |= {"SPARK_MASTER": spark, "STATE": state}
        self.state: str | Path = state or directory
        self.log = directory.with_suffix(f".{'-'.join(more) or 'whole'}.stderr")
        self.start()

    def start(self) -> None:
        self.known: set[psutil.Process] = set()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stderr=log, start_new_session=True, env=self.env
            )

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers, and the daemon that forks them: killed, it leaves them orphans."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.known |= {p for p in family if is_lane(p)}
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

    def kill_jvm(self) -> None:
        """Kills Spark's own process; the program begins it anew, or ends and is started again."""
        jvm = wait_until(self._jvms, "Spark's process", patience_s=PATIENCE_S)[0]
        jvm.kill()
        wait_until(
            lambda: self.process.poll() is not None or any(one != jvm for one in self._jvms()),
            "the program to notice that Spark is gone",
            patience_s=PATIENCE_S,
        )
        if self.process.poll() is not None:
            self.start()

    def _jvms(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
            return [one for one in family if _is_jvm(one)]
        return []

    def wait_for(self, ends: dict[str, dict[int, int]] | None = None) -> None:
        """Waits until the program commits; with `ends`, until it has read and closed everything."""
        deadline = time.monotonic() + PATIENCE_S
        before, still = -1, 0
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline, f"no progress; {self.log.read_text()[-3_000:]}"
            with contextlib.suppress(QueryError):
                views = Views(self.state)
                status = views.status()
                read = {t: {int(p): o for p, o in status["offsets"][t].items()} for t in TOPICS}
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
    return all(
        status["watermark_us"].get(topic, 0)
        >= min(status["newest_us"][topic].values()) - lateness_us
        for topic, lateness_us in TOPICS.items()
    )


def is_lane(process: psutil.Process) -> bool:
    """Whether it is one of Spark's Python workers, or the daemon that forks them."""
    try:
        return process.cmdline()[1:3] == ["-m", "penstock.engine.spark.workers"]
    except psutil.Error:
        return False


def _is_jvm(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False


@contextlib.contextmanager
def ended(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
    finally:
        with contextlib.suppress(ProcessLookupError):
            pipeline.kill()


def contents(
    name: str, state: Path | str, address: str, outputs: Sequence[str] = OUTPUTS
) -> dict[str, list[object]]:
    """All that a pipeline made, in an order of its own."""
    snapshot = Views(state).snapshot()
    found: dict[str, list[object]] = {
        view: sorted(map(repr, snapshot.table(view).to_pylist())) for view in snapshot.names()
    }
    with Client(address) as client, Reader(address) as reader:
        for topic in outputs:
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
            letters += [_explained(dict(header(records, i))) for i in range(len(records))]
        found["dead letters"] = sorted(map(repr, letters))
    return found


def _explained(headers: dict[str, Any]) -> dict[str, Any]:
    """A letter's headers; how many reasons are in DuckDB's words depends on how batches are cut."""
    reason = headers["penstock.reason"]
    if b" // " in reason:
        headers["penstock.reason"] = reason.partition(b": ")[0]
    return headers


def _applied(rows: list[Any]) -> list[Any]:
    """Changes of a table, each of which must begin where the one before ended."""
    now: dict[Any, Any] = {}
    for _, key, value in rows:
        change = orjson.loads(value)
        assert now.get(key) == change["before"], (key, now.get(key), change)
        now[key] = change["after"]
    return [(0, key, orjson.dumps(row)) for key, row in now.items() if row is not None]


def ends_of(address: str) -> dict[str, dict[int, int]]:
    """Where the input ends."""
    with Client(address) as client:
        return {topic: client.offsets(topic, "latest") for topic in TOPICS}


class Committed:
    """Two topics that get the same rows, as readers of committed data see them; reads each record once."""

    def __init__(self, address: str, left: str, right: str) -> None:
        self.address = address
        self._weights = {left: 1, right: -1}
        self._next: dict[tuple[str, int], int] = {}
        self._differ: Counter[bytes] = Counter()
        self.rows = 0

    def agree(self) -> bool:
        """Whether both have the same rows, of all that is committed by now."""
        with Client(self.address) as client, Reader(self.address) as reader:
            for topic, weight in self._weights.items():
                for partition, end in client.offsets(topic, "latest").items():
                    start = self._next.get((topic, partition), 0)
                    for records in reader.read(topic, partition, start, end):
                        values = records.values().to_pylist()
                        self.rows += len(values)
                        for value in values:
                            self._differ[value] += weight
                    self._next[topic, partition] = end
        self._differ = Counter({value: n for value, n in self._differ.items() if n})
        return not self._differ
