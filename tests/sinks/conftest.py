"""A broker and a PostgreSQL server that these tests share, and targets of each kind."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.databases import Postgres, log, server
from tests.mariadb import MariaDB, mariadb
from tests.redis_server import RedisServer, redis_server
from tests.sinks.elastic_server import Elastic, elastic_server
from tests.sinks.opensearch_server import opensearch_server

import penstock as ps
from penstock.client import Client, Producer

__all__ = ["log", "server"]  # fixtures
_numbers = itertools.count()


@dataclass
class Place:
    """A target, and how its rows are read."""

    make: Callable[..., Any]
    rows: Callable[[str], list[tuple[Any, ...]]]
    execute: Callable[[str], None]


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MariaDB]:
    """A server that all tests share."""
    with mariadb() as one:
        yield one


@pytest.fixture
def seed() -> int:
    """Of a test's random numbers: PENSTOCK_SEED, or another one each time, which a failure shows."""
    found = int(os.environ.get("PENSTOCK_SEED") or random.randrange(2**32))
    print(f"PENSTOCK_SEED={found}")
    return found


@pytest.fixture(scope="session")
def cache() -> Iterator[RedisServer]:
    """A server that all tests share."""
    with redis_server() as one:
        yield one


@pytest.fixture
def empty(cache: RedisServer) -> RedisServer:
    """The server, without keys."""
    cache.client.flushall()
    return cache


@pytest.fixture
def elastic() -> Iterator[Elastic]:
    """A server that speaks what is documented of Elasticsearch's protocol."""
    with elastic_server() as one:
        yield one


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory) -> Iterator[str]:
    """The address of a real OpenSearch that all tests share, if it was fetched."""
    with opensearch_server(tmp_path_factory.mktemp("opensearch")) as one:
        yield one.url


@pytest.fixture(params=["postgres", "mysql", "sqlite", "duckdb"])
def place(request, tmp_path: Path) -> Place:
    """A new database of each kind."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("server")
        name = f"target{next(_numbers)}"
        server.execute(f"CREATE DATABASE {name}")
        return Place(
            lambda **settings: ps.sinks.postgres(server.url(name), **settings),
            lambda query: server.rows(query, name),
            lambda commands: server.execute(commands, name),
        )
    if request.param == "mysql":
        maria: MariaDB = request.getfixturevalue("mysql_server")
        name = f"target{next(_numbers)}"
        maria.rows(f"CREATE DATABASE {name}")
        return Place(
            lambda **settings: ps.sinks.mysql(maria.url(name), **settings),
            lambda query: maria.rows(query, name),
            lambda commands: [maria.rows(commands, name), None][1],
        )
    path = tmp_path / "target"
    kind = getattr(ps.sinks, request.param)

    def run(query: str) -> list[tuple[Any, ...]]:
        if request.param == "sqlite":
            one = sqlite3.connect(path, isolation_level=None)
        else:
            one = duckdb.connect(str(path))
        try:
            return one.execute(query).fetchall()
        finally:
            one.close()

    return Place(
        lambda **settings: kind(path, **settings), run, lambda commands: [run(commands), None][1]
    )


class Topic:
    """A topic that rows are sent to."""

    def __init__(self, log: str, partitions: int = 2) -> None:
        self.log, self.name, self.partitions = log, f"topic{next(_numbers)}", partitions
        with Client(log) as client:
            client.create_topic(self.name, partitions, {"retention.ms": "-1"})

    def send(self, *rows: dict[str, Any] | bytes, key: str = "id") -> None:
        """Rows, or their keys (bytes) to delete them; a key is always in the same partition."""
        with Producer(self.log) as producer:
            for row in rows:
                id_ = row if isinstance(row, bytes) else str(row[key]).encode()
                value = None if isinstance(row, bytes) else orjson.dumps(row)
                producer.send(
                    self.name,
                    sum(id_) % self.partitions,
                    pa.array([id_], pa.binary()),
                    pa.array([value], pa.binary()),
                    np.zeros(1, np.int64),
                )


@pytest.fixture
def topic(log) -> Topic:
    """A new topic of two partitions."""
    return Topic(log)
