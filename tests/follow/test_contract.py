"""What followers of every kind do: see `penstock.follow.follower.Body`."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.follow.contract import BodyContract, Subject

import penstock as ps
from penstock.capture import Capture
from penstock.client import Client, Producer, Reader, TransactionalProducer
from penstock.files.ingesting import _Ingestion
from penstock.follow.control import control_topic
from penstock.follow.follower import Body, Follower
from penstock.follow.report import Doing
from penstock.sinks import Sink

_numbers = itertools.count()


def count_of(log: str, topic: str) -> int:
    """A topic's committed records."""
    with Client(log) as client, Reader(log) as reader:
        if topic not in client.topics():
            return 0
        [end] = client.offsets(topic).values()
        return sum(len(one.offset) for one in reader.read(topic, 0, 0, end))


class Numbers(Body[Doing]):
    """Writes the numbers of a list to a topic, each once: the least that a source is."""

    kind = "numbers"

    def __init__(self, name: str, fed: list[int]) -> None:
        self.name, self.done, self._fed = name, Doing(), fed
        self.records = 0

    def figures(self) -> dict[str, Any]:
        """See `Body`."""
        return {"source": "numbers", "target": self.name, "records": self.records, "dead": 0}

    def attempt(self) -> None:
        """Writes what there is, again and again."""
        follower, client = self.follower, self.follower.client
        for topic in (self.name, control_topic(self.kind, self.name)):
            client.create_topic(topic, 1, exists_ok=True)
        with TransactionalProducer(follower.address, self.name) as writer:
            writer.start()
            at = count_of(follower.address, self.name)
            follower.enter("streaming")
            while not (follower.look() or follower.is_over or follower.wait(0.01)):
                some = self._fed[at:]
                if some:
                    values = pa.array([b"%d" % one for one in some], pa.binary())
                    writer.send(self.name, 0, None, values, np.zeros(len(some), np.int64))
                    writer.commit()
                    at, self.records = at + len(some), self.records + len(some)
                follower.succeed()


class NumbersSubject(Subject):
    """Numbers of a list in memory."""

    def __init__(self, log: str, name: str) -> None:
        self.log, self.name = log, name
        self._list: list[int] = []

    def follower(self) -> Follower[Any]:
        """Another one."""
        return Follower(Numbers(self.name, self._list), self.log, {})

    def feed(self) -> None:
        """A number."""
        self._list.append(len(self._list))
        self.fed += 1

    def carried(self) -> int:
        """Records of the topic."""
        return count_of(self.log, self.name)


class SinkSubject(Subject):
    """Rows of a topic into a table."""

    def __init__(self, log: str, name: str, folder: Path) -> None:
        self.log, self.topic, self.name = log, name, f"{name}.users"
        self._path = folder / "users.sqlite"
        with Client(log) as client:
            client.create_topic(name, 1)

    def follower(self) -> Follower[Any]:
        """Another one."""
        target = ps.sinks.sqlite(self._path, table="users")
        return Sink(target, self.topic, "id BIGINT NOT NULL", log=self.log)._follower

    def feed(self) -> None:
        """A row."""
        with Producer(self.log) as producer:
            value = pa.array([orjson.dumps({"id": self.fed})], pa.binary())
            producer.send(self.topic, 0, None, value, np.zeros(1, np.int64))
        self.fed += 1

    def carried(self) -> int:
        """Rows of the table."""
        try:
            with closing(sqlite3.connect(self._path)) as sql:
                return int(sql.execute("SELECT count(*) FROM users").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


class CaptureSubject(Subject):
    """Rows of a database into a topic."""

    def __init__(self, log: str, name: str, folder: Path) -> None:
        self.log, self.name, self._path = log, name, folder / "shop.db"
        with closing(sqlite3.connect(self._path, isolation_level=None)) as sql:
            sql.execute("PRAGMA journal_mode = wal")
            sql.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")

    def follower(self) -> Follower[Any]:
        """Another one."""
        url = f"sqlite:///{self._path}"
        return Capture(url, ["users"], to=self.name, log=self.log)._follower

    def feed(self) -> None:
        """A row."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as sql:
            sql.execute("INSERT INTO users VALUES (?)", (self.fed,))
        self.fed += 1

    def carried(self) -> int:
        """Records of the table's topic."""
        return count_of(self.log, f"{self.name}.users")


class IngestSubject(Subject):
    """Files into a topic."""

    def __init__(self, log: str, name: str, folder: Path) -> None:
        self.log, self.name, self._folder = log, name, folder / "files"
        self._folder.mkdir()

    def follower(self) -> Follower[Any]:
        """Another one, which watches."""
        body = _Ingestion(self._folder, self.name, None, None, None, 0, self.name)
        body.check(watch=True, until=None)
        return Follower(body, self.log, {})

    def feed(self) -> None:
        """A file."""
        (self._folder / f"{self.fed}.jsonl").write_bytes(b'{"n":%d}\n' % self.fed)
        self.fed += 1

    def carried(self) -> int:
        """Records of the topic."""
        return count_of(self.log, self.name)


@pytest.fixture
def name() -> str:
    """One that no other test uses."""
    return f"follower{next(_numbers)}"


class TestNumbers(BodyContract):
    """The least that a source is."""

    @pytest.fixture
    def subject(self, log, name) -> Subject:
        """A list."""
        return NumbersSubject(log, name)


class TestSink(BodyContract):
    """A sink into a file of SQLite."""

    @pytest.fixture
    def subject(self, log, name, tmp_path) -> Subject:
        """A topic and a table."""
        return SinkSubject(log, name, tmp_path)


class TestCapture(BodyContract):
    """A capture of a file of SQLite."""

    @pytest.fixture
    def subject(self, log, name, tmp_path) -> Subject:
        """A table."""
        return CaptureSubject(log, name, tmp_path)


class TestIngest(BodyContract):
    """An import of files that watches a directory."""

    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch) -> None:
        monkeypatch.setattr("penstock.files.ingesting.LOOK_S", 0.02)

    @pytest.fixture
    def subject(self, log, name, tmp_path) -> Subject:
        """A directory."""
        return IngestSubject(log, name, tmp_path)
