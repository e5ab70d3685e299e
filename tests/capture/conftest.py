"""Servers and a broker that these tests share; a database and topics for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.capture.sources import MysqlSource, PostgresSource, Source, SqliteSource
from tests.databases import log, server

from penstock.capture import output
from penstock.registry import RegistryServer

__all__ = ["log", "server"]  # fixtures
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _stores_often(monkeypatch) -> None:
    """The position is stored often, so that tests needn't wait for it."""
    monkeypatch.setattr(output, "IDLE_STORE_S", 0.1)


@pytest.fixture
def source(server, log) -> Iterator[PostgresSource]:
    """A new database."""
    number = next(_numbers)
    name = f"db{number}"
    server.execute(f"CREATE DATABASE {name}")
    one = PostgresSource(log, f"capture{number}", server, name)
    yield one
    # A slot that stays would keep the server's log.
    for (slot,) in server.rows("SELECT slot_name FROM pg_replication_slots WHERE NOT active"):
        server.execute(f"SELECT pg_drop_replication_slot('{slot}')")


@pytest.fixture
def registry(log) -> Iterator[str]:
    """A registry of the log: its schemas stay, topics have names of their own."""
    server = RegistryServer(log, port=0)
    yield server.url
    server.close()


@pytest.fixture
def sqlite_source(log, tmp_path) -> SqliteSource:
    """A new file."""
    return SqliteSource(log, f"capture{next(_numbers)}", tmp_path / "shop.db")


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[Any]:
    """A MariaDB server that all tests share."""
    from tests.mariadb import mariadb

    settings = {"server-id": "7", "log-bin": "mysql-bin", "binlog-format": "ROW"}
    with mariadb(**settings, binlog_row_metadata="FULL") as one:
        yield one


@pytest.fixture
def mysql_source(mysql_server, log) -> MysqlSource:
    """A new database."""
    number = next(_numbers)
    mysql_server.rows(f"CREATE DATABASE db{number} CHARACTER SET utf8mb4")
    return MysqlSource(log, f"capture{number}", mysql_server, f"db{number}")


@pytest.fixture(params=["source", "mysql_source", "sqlite_source"])
def any_source(request) -> Source:
    """A new database of each kind."""
    made: Source = request.getfixturevalue(request.param)
    return made
