"""A PostgreSQL server and a broker that these tests share; a database and topics for each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
import pytest
from tests.databases import Postgres, postgres
from tests.patience import wait_until

from penstock.broker.process import BrokerProcess
from penstock.capture import Capture, Captured, _output
from penstock.client import Client, Reader

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _stores_often(monkeypatch) -> None:
    """The position is stored often, so that tests needn't wait for it."""
    monkeypatch.setattr(_output, "IDLE_STORE_S", 0.1)


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A server that all tests share."""
    with postgres() as one:
        yield one


@pytest.fixture(scope="session")
def log(tmp_path_factory) -> Iterator[str]:
    """A broker's address."""
    process = BrokerProcess(tmp_path_factory.mktemp("log"), die_with_parent=False).start()
    yield process.address
    process.stop()


@dataclass
class Source:
    """A database, and what was captured of it."""

    server: Postgres
    database: str
    log: str
    name: str
    errors: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url(self.database)

    def execute(self, commands: str) -> None:
        """Runs commands in it."""
        self.server.execute(commands, self.database)

    def steps(self, commands: str) -> None:
        """Runs statements, one after another in one session."""
        with psycopg.connect(self.url, autocommit=True) as one:
            for command in commands.split(";\n"):
                if command.strip():
                    one.execute(command)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.server.rows(query, self.database)

    def capture(self, *tables: str, **settings: Any) -> Capture:
        """A capture of it."""
        settings = {"to": self.name, "log": self.log, **settings}
        return Capture(self.url, tables or ["public.*"], **settings)

    def run(self, *tables: str, **settings: Any) -> Captured:
        """Captures until all there is was captured."""
        end = self.end()
        return self.capture(*tables, **settings).run(until=lambda done: done.position >= end)

    @contextmanager
    def running(self, *tables: str, **settings: Any) -> Iterator[Capture]:
        """Captures meanwhile."""
        capture = self.capture(*tables, **settings)

        def run() -> None:
            try:
                capture.run()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield capture
        finally:
            capture.stop()
            thread.join()
        assert not self.errors, self.errors

    def end(self) -> int:
        """A position that is after all that was committed, and that a capture gets to."""
        self.execute("SELECT pg_log_standby_snapshot()")
        return int(self.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])

    def follows(self, capture: Capture, what: Callable[[], object]) -> None:
        """Waits for something that the capture brings about."""

        def look() -> object:
            assert not self.errors, self.errors
            return what()

        wait_until(look, lambda: f"the capture ({capture.done})")

    def records(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values of a topic's committed records, as JSON; a partition's in their order."""
        with Client(self.log) as client, Reader(self.log) as reader:
            if topic not in client.topics():
                return []
            return [
                (None if k is None else orjson.loads(k), None if v is None else orjson.loads(v))
                for partition, end in client.offsets(topic).items()
                for records in reader.read(topic, partition, 0, end)
                for k, v in zip(
                    records.keys().to_pylist(), records.values().to_pylist(), strict=True
                )
            ]

    def table(self, topic: str, *key: str) -> dict[Any, Any]:
        """What a topic's records make of a table, each change checked against the state before it."""
        rows: dict[Any, Any] = {}
        for told, value in self.records(topic):
            found = tuple(told[name] for name in key)
            if value is None:
                assert found not in rows
            elif value["op"] in "cr":
                assert found not in rows, f"{found} twice"
                rows[found] = value["after"]
            elif value["op"] == "u":
                assert found in rows, f"{found} was changed, and isn't there"
                rows[found] = value["after"]
            else:
                del rows[found]
        return rows


@pytest.fixture
def source(server, log) -> Iterator[Source]:
    """A new database."""
    number = next(_numbers)
    name = f"db{number}"
    server.execute(f"CREATE DATABASE {name}")
    one = Source(server, name, log, f"capture{number}")
    yield one
    # A slot that stays would keep the server's log.
    for (slot,) in server.rows("SELECT slot_name FROM pg_replication_slots WHERE NOT active"):
        server.execute(f"SELECT pg_drop_replication_slot('{slot}')")
