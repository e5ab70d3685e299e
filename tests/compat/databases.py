"""Captures, sinks and a registry, stopped in mid-stream: where they were is in the log and in their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson
import pyarrow.parquet as pq
from tests.compat.cases import FILES, Case, Facts
from tests.compat.logs import KEPT, broker, rows

import penstock as ps
from penstock import sinks
from penstock.capture import Capture, schemas, status
from penstock.client import Client
from penstock.registry import LogStore, Registry
from penstock.sinks import Sink

SCHEMA: Final = "id BIGINT NOT NULL, name STRING, price DECIMAL(10, 2), at TIMESTAMP"
LETTERS: Final = "shop.letters"


def write(folder: Path) -> Facts:
    """A database's changes are captured and followed; some of the changes are not captured yet."""
    execute(
        folder,
        "PRAGMA journal_mode = wal",
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, price NUMERIC, at TEXT)",
        "CREATE TABLE letters (id INTEGER PRIMARY KEY, body BLOB)",
    )
    _change(folder, 0)
    with broker(folder) as running, Client(running.address) as client:
        address = running.address
        for topic in ("shop.users", LETTERS, "whole.users"):
            client.create_topic(topic, 2, KEPT)
        _capture(folder, address)
        _change(folder, 1)
        _capture(folder, address)
        _follow(folder, address)
        _change(folder, 2)
        _capture(folder, address)  # the sinks have not followed that
        with closing(LogStore(address)) as store:
            _register(Registry(store))
        facts = {"rows": {topic: len(rows(address, topic)) for topic in (LETTERS, "shop.users")}}
    _change(folder, 3)  # the captures have not seen that
    execute(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    return facts


def execute(folder: Path, *commands: str) -> None:
    """Runs commands in the database."""
    with closing(sqlite3.connect(folder / FILES / "shop.db", isolation_level=None)) as sql:
        for command in commands:
            sql.execute(command)


def _change(folder: Path, part: int) -> None:
    """Rows come, change and go."""
    first = 10 * part + 1
    execute(
        folder,
        *(
            f"INSERT INTO users VALUES ({n}, 'user {n}', {n}.25, '2026-01-01T00:00:{n:02}Z')"
            for n in range(first, first + 10)
        ),
        f"UPDATE users SET name = 'part {part}' WHERE id % 7 = {part}",
        f"DELETE FROM users WHERE id % 9 = {part}",
        f"INSERT INTO letters(body) VALUES (x'00ff{part:02}')",
    )


def _table(folder: Path, table: str = "users") -> dict[int, tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / FILES / "shop.db")) as sql:
        return {row[0]: row[1:] for row in sql.execute(f"SELECT * FROM {table}")}


def _end(folder: Path, name: str) -> int:
    """Behind the newest change that the triggers of a capture have noted."""
    with closing(sqlite3.connect(folder / FILES / "shop.db")) as sql:
        query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
        tables = {name for (name,) in sql.execute("SELECT name FROM sqlite_master")}
        if "sqlite_sequence" not in tables:
            return 1
        found = sql.execute(query, (f"_penstock_{name}",)).fetchone()
        return int(found[0]) + 1 if found else 1


def _capture(folder: Path, address: str) -> None:
    """Captures what has changed, in both formats."""
    url = f"sqlite:///{folder / FILES / 'shop.db'}"
    for name, tables, form in (("shop", ["*"], "debezium"), ("whole", ["users"], "flat")):
        end = _end(folder, name)
        capture = Capture(url, tables, to=name, log=address, name=name, format=form, partitions=2)  # type: ignore[arg-type]
        capture.run(until=lambda done, end=end: done.position >= end)


def _targets(folder: Path, address: str) -> dict[str, Callable[[], Any]]:
    files = folder / FILES
    return {
        "sqlite": lambda: ps.sinks.sqlite(files / "target.sqlite", table="users"),
        "duckdb": lambda: ps.sinks.duckdb(files / "target.duckdb", table="users"),
        "parquet": lambda: ps.sinks.parquet(files / "parquet"),
        "kafka": lambda: ps.sinks.kafka(address, table="copied", partitions=2),
    }


def _follow(folder: Path, address: str) -> None:
    """Has each sink take over what is in the topic."""
    for name, target in _targets(folder, address).items():
        sink = Sink(target(), "whole.users", SCHEMA, key="id", log=address, name=f"to-{name}")
        sink.run(until=lambda done: done.lag == 0)


def _record(*fields: str) -> str:
    columns = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    return orjson.dumps({"type": "record", "name": "User", "fields": columns}).decode()


def _register(registry: Registry) -> None:
    """Subjects with versions, references, settings, and what is deleted."""
    registry.register("users-value", {"schema": _record("name")})
    registry.register("users-value", {"schema": _record("name", "shop")})
    registry.register("users-key", {"schema": '"long"'})
    registry.register("gone", {"schema": '"string"'})
    registry.register("json", {"schema": '{"type": "object"}', "schemaType": "JSON"})
    registry.register(
        "proto",
        {"schema": 'syntax = "proto3"; message M { int64 id = 1; }', "schemaType": "PROTOBUF"},
    )
    registry.delete_subject("gone")
    registry.set_config("users-value", {"compatibility": "FULL"})
    registry.set_mode("users-key", {"mode": "READONLY"})


# -- the current release ------------------------------------------------------------------------------------


def check(folder: Path, facts: Facts) -> None:
    """Continues the captures and the sinks at their positions; asks the registry."""
    with broker(folder) as running:
        address = running.address
        with closing(LogStore(address)) as store:
            _check_registry(Registry(store))
        for topic, count in facts["rows"].items():
            assert len(rows(address, topic)) == count
        assert status("shop", address).tables == {"letters": LETTERS, "users": "shop.users"}
        assert {one["name"] for one in sinks.status(address)} == {
            f"to-{n}" for n in _targets(folder, address)
        }
        _capture(folder, address)
        _check_envelopes(address, _table(folder))
        assert len(rows(address, LETTERS)) == 4, "a change was captured twice, or not at all"
        _follow(folder, address)
        _check_targets(folder, address)
        _change(folder, 4)
        _capture(folder, address)
        _check_envelopes(address, _table(folder))
        _follow(folder, address)
        _check_targets(folder, address)


def _check_envelopes(address: str, expected: dict[int, tuple[Any, ...]]) -> None:
    """Each change follows on the row that the change before it has left: none is missing, or there twice."""
    found: dict[int, Any] = {}
    for _, _, key, value, _ in rows(address, "shop.users"):
        assert key is not None
        row = orjson.loads(key)["id"]
        if value is None:
            assert row not in found
            continue
        change = orjson.loads(value)
        if change["op"] != "r":
            assert found.pop(row, None) == change["before"]
        if change["after"] is not None:
            found[row] = change["after"]
    assert {row: tuple(one.values())[1:] for row, one in found.items()}.keys() == expected.keys()
    assert {row: one["name"] for row, one in found.items()} == {
        r: one[0] for r, one in expected.items()
    }


def _check_targets(folder: Path, address: str) -> None:
    """Every target has the rows of the database."""
    expected = {row: one[0] for row, one in _table(folder).items()}
    files = folder / FILES
    with closing(sqlite3.connect(files / "target.sqlite")) as sql:
        assert dict(sql.execute("SELECT id, name FROM users").fetchall()) == expected
    with closing(duckdb.connect(str(files / "target.duckdb"))) as duck:
        assert dict(duck.execute("SELECT id, name FROM users").fetchall()) == expected
    copied = {key: value for _, _, key, value, _ in rows(address, "copied")}
    left = {int(key): orjson.loads(value)["name"] for key, value in copied.items() if key and value}
    assert left == expected
    changes = pq.read_table(
        files / "parquet", columns=["id", "name", "_offset", "_partition", "_deleted"]
    )
    places = [(one["_partition"], one["_offset"]) for one in changes.to_pylist()]
    assert len(set(places)) == len(places), "a record is in the files twice"
    newest = {one["id"]: one for one in sorted(changes.to_pylist(), key=lambda one: one["_offset"])}
    assert {row: one["name"] for row, one in newest.items() if not one["_deleted"]} == expected


def _check_registry(registry: Registry) -> None:
    assert registry.subjects() == ["json", "proto", "users-key", "users-value"]
    assert registry.subjects(deleted=True) == ["gone", "json", "proto", "users-key", "users-value"]
    assert registry.versions("users-value") == [1, 2]
    assert registry.version("users-value", "2")["id"] == 2
    assert registry.register("users-value", {"schema": _record("name")})["id"] == 1
    assert registry.config("users-value")["compatibilityLevel"] == "FULL"
    assert registry.mode("users-key")["mode"] == "READONLY"
    assert registry.register("more", {"schema": '"bytes"'})["id"] == 7


# -- a capture of PostgreSQL: its records alone, as its server is gone --------------------------------------


def write_postgres(folder: Path) -> Facts:
    """A capture of a server that `make.py` starts."""
    from tests.capture.sources import PostgresSource
    from tests.databases import Postgres

    server = Postgres()
    try:
        with broker(folder) as running:
            source = PostgresSource(running.address, "shop", server, "postgres")
            source.execute("CREATE TABLE users (id INT PRIMARY KEY, name TEXT)")
            source.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
            source.run()
            source.execute("ALTER TABLE users ADD COLUMN age INT")
            source.execute("UPDATE users SET age = id")
            source.run()
            found = status("shop", running.address)
            return {
                "position": found.position,
                "rows": len(rows(running.address, "shop.public.users")),
            }
    finally:
        server.stop()


def check_postgres(folder: Path, facts: Facts) -> None:
    """Reads the position and the schemas of the capture."""
    with broker(folder) as running:
        found = status("shop", running.address)
        assert found.position == facts["position"]
        assert found.tables == {"public.users": "shop.public.users"}
        assert len(rows(running.address, "shop.public.users")) == facts["rows"] == 4
        assert len(schemas("shop", running.address)) == 1


DATABASES: Final = (
    Case("databases", write, check),
    Case("postgres-capture", write_postgres, check_postgres),
)
