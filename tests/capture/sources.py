"""Databases whose changes are captured, each kind with the same interface."""

from __future__ import annotations

import io
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import orjson
import psycopg
from tests.databases import Postgres
from tests.patience import wait_until

from penstock.capture import Capture, Captured, letters_topic
from penstock.client import Client, Reader
from penstock.client.letters.dead_letters import DeadLetters, Letter
from penstock.client.schemas import registered_schemas


@dataclass
class Source:
    """A database, and what was captured of it."""

    log: str
    name: str
    errors: list[BaseException] = field(default_factory=list, kw_only=True)
    registry: str = field(default="", kw_only=True)
    tables = ("*",)
    truncates = True

    @property
    def url(self) -> str:
        """Its address."""
        raise NotImplementedError

    def execute(self, commands: str) -> None:
        """Runs commands in it, in one transaction where there are several."""
        raise NotImplementedError

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        raise NotImplementedError

    def end(self) -> int:
        """A position that is after all that was committed, and that a capture gets to."""
        raise NotImplementedError

    def topic(self, table: str) -> str:
        """Where a table goes to."""
        return f"{self.name}.{table}"

    def capture(self, *tables: str, **settings: Any) -> Capture:
        """A capture of it."""
        settings = {"to": self.name, "log": self.log, **settings}
        return Capture(self.url, tables or self.tables, **settings)

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

    def follows(self, capture: Capture, what: Callable[[], object]) -> None:
        """Waits for something that the capture brings about."""

        def look() -> object:
            assert not self.errors, self.errors
            return what()

        wait_until(look, lambda: f"the capture ({capture.done})")

    def records(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values of a topic's committed records, from JSON or, with a registry, from Avro; a
        partition's in their order.
        """
        with Client(self.log) as client, Reader(self.log) as reader:
            if topic not in client.topics():
                return []
            read = self._read_avro if self.registry else orjson.loads
            return [
                (None if k is None else read(k), None if v is None else read(v))
                for partition, end in client.offsets(topic).items()
                for records in reader.read(topic, partition, 0, end)
                for k, v in zip(
                    records.keys().to_pylist(), records.values().to_pylist(), strict=True
                )
            ]

    def _read_avro(self, data: bytes) -> Any:
        if data[0]:
            return orjson.loads(data)
        text = registered_schemas(self.registry)(int.from_bytes(data[1:5], "big"))
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), json.loads(text or ""))

    def letters(self) -> list[Letter]:
        """The capture's dead letters."""
        topic = letters_topic(self.name)
        with Client(self.log) as client:
            if topic not in client.topics():
                return []
        with DeadLetters(self.log, topic) as dead:
            return [*dead.letters()]

    def table(self, topic: str, *key: str) -> dict[Any, Any]:
        """What a topic's records make of a table, each change checked against the state before it."""
        rows: dict[Any, Any] = {}
        for fields, value in self.records(topic):
            found = tuple(fields[name] for name in key)
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


@dataclass
class PostgresSource(Source):
    """A database of a PostgreSQL server."""

    server: Postgres
    database: str
    tables = ("public.*",)

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

    def end(self) -> int:
        """A position that is after all that was committed, and that a capture gets to."""
        [(version,)] = self.rows("SHOW server_version_num")
        # Both write what the server does now and then by itself, so that a position comes.
        self.execute(
            "SELECT pg_log_standby_snapshot()" if int(version) >= 160_000 else "CHECKPOINT"
        )
        return int(self.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])

    def topic(self, table: str) -> str:
        """Where a table goes to."""
        return f"{self.name}.public.{table}"


@dataclass
class SqliteSource(Source):
    """A file."""

    path: Path
    truncates = False

    def __post_init__(self) -> None:
        with self.connect() as sql:
            sql.execute("PRAGMA journal_mode = wal")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection without transactions of Python's."""
        sql = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            yield sql
        finally:
            sql.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"sqlite:///{self.path}"

    def execute(self, commands: str) -> None:
        """Runs commands in it, in one transaction."""
        with self.connect() as sql:
            sql.executescript(f"BEGIN; {commands}; COMMIT")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.connect() as sql:
            return sql.execute(query).fetchall()

    def end(self) -> int:
        """Behind the newest change; before the first run there is none."""
        query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
        try:
            found = self.rows(query.replace("?", f"'_penstock_{self.name}'"))
        except sqlite3.OperationalError:
            return 1
        return int(found[0][0]) + 1 if found else 1


@dataclass
class MysqlSource(Source):
    """A database of a MariaDB server."""

    server: Any
    database: str

    @property
    def url(self) -> str:
        """Its address."""
        return str(self.server.url(self.database))

    def execute(self, commands: str) -> None:
        """Runs commands in it, in one transaction."""
        with self.server.session(self.database) as cursor:
            cursor.execute("BEGIN")
            for command in commands.split(";"):
                if command.strip():
                    cursor.execute(command)
            cursor.execute("COMMIT")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return list(self.server.rows(query, self.database))

    def run(self, *tables: str, **settings: Any) -> Captured:
        """Captures until all there is was captured. Positions of a server don't tell: after another one
        took over, a capture's are further on.
        """
        return self.capture(*tables, **settings).run(until=lambda done: done.is_caught_up)

    def end(self) -> int:
        """Behind all that was committed."""
        from penstock.capture.databases.mysql.binlog import place

        [(file, position, *_)] = self.rows("SHOW MASTER STATUS")
        return place(file, int(position))

    def topic(self, table: str) -> str:
        """Where a table goes to."""
        return f"{self.name}.{self.database}.{table}"
