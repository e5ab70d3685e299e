"""The databases that a chain begins with: pgbench's tables and its transaction, in PostgreSQL and MariaDB."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any, Final, Protocol

from tests.databases import Postgres, postgres, psycopg

__all__ = ["ACCOUNTS", "MariaSource", "PostgresSource", "Source", "maria_source", "postgres_source"]

ACCOUNTS: Final = 2_000
"""Fewer than pgbench makes: what is written at first isn't the subject."""
TELLERS: Final = 10
DELTA_MAX: Final = 5_000
CLIENTS: Final = 3
RATE: Final = 150
"""Transactions per second of all clients, at most."""


class Source(Protocol):
    """A database with pgbench's tables.

    Attributes:
        url: what is captured.
        away: errors of a server that is away, or recovers.
        victims: what can be killed of it, by name.
    """

    url: str
    away: tuple[type[Exception], ...]
    victims: tuple[str, ...]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kills one of its processes; it answers again afterwards, or soon."""

    def work(self, end: threading.Event) -> None:
        """Runs the transaction over and over; goes on where the server was away."""


class PostgresSource:
    """PostgreSQL, and pgbench itself."""

    away = (psycopg.OperationalError,)
    victims = ("postmaster", "backend")

    def __init__(self, server: Postgres) -> None:
        self._server, self.url = server, server.url()
        self._script = server.folder / "bench.sql"
        self._script.write_text(SCRIPT)
        self._script.chmod(0o644)
        server.pgbench("-i", "-s", "1", "-q").wait()
        server.execute(f"DELETE FROM pgbench_accounts WHERE aid > {ACCOUNTS}")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._server.rows(query)

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kills the server, or one of the processes that serve a client; it recovers then."""
        if victim == "backend":
            self._server.kill_backend(chance)
        else:
            self._server.kill()
            self._server.start()

    def work(self, end: threading.Event) -> None:
        """Runs pgbench; begun again where the database has gone."""
        options = ["-n", "-c", str(CLIENTS), "-T", "3600", "--rate", str(RATE)]
        while not end.is_set():
            process = self._server.pgbench(*options, "-f", str(self._script))
            while process.poll() is None and not end.wait(0.1):
                pass
            process.kill()
            process.wait()
            end.wait(0.2)


SCRIPT: Final = f"""
\\set aid random(1, {ACCOUNTS})
\\set bid 1
\\set tid random(1, {TELLERS})
\\set delta random(-{DELTA_MAX}, {DELTA_MAX})
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history(tid, bid, aid, delta) VALUES (:tid, :bid, :aid, :delta);
END;
"""
"""pgbench's own transaction, over these accounts."""


class MariaSource:
    """MariaDB, and the same transaction by PyMySQL.

    The database is called `public`, so that topics have the same names.
    """

    victims = ("mariadb", "thread")

    def __init__(self, server: Any) -> None:
        from pymysql import err

        self._server, self.url = server, server.url("public")
        self.away: tuple[type[Exception], ...] = (err.OperationalError, err.InterfaceError)
        server.rows("CREATE DATABASE public CHARACTER SET utf8mb4")
        for table in TABLES_SQL:
            server.rows(f"CREATE TABLE pgbench_{table}", "public")
        server.rows("INSERT INTO pgbench_branches VALUES (1, 0, NULL)", "public")
        for name, count in (("tellers", TELLERS), ("accounts", ACCOUNTS)):
            server.rows(
                f"INSERT INTO pgbench_{name} SELECT seq, 1, 0, NULL FROM seq_1_to_{count}", "public"
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._server.rows(query, "public")

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kills the server; or has it end a connection, such as the capture's or a client's."""
        if victim == "thread":
            connections = self._server.rows("SELECT id FROM information_schema.processlist")
            with contextlib.suppress(*self.away):
                self._server.rows(f"KILL {chance.choice(connections)[0]}")
        else:
            self._server.kill()
            self._server.start()

    def work(self, end: threading.Event) -> None:
        """Runs the clients until it is told to end."""
        clients = [threading.Thread(target=self._client, args=(end,)) for _ in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()

    def _client(self, end: threading.Event) -> None:
        chance = random.Random()
        while not end.is_set():
            with contextlib.suppress(*self.away), self._server.session("public") as cursor:
                while not end.wait(CLIENTS / RATE):
                    place = {"aid": chance.randint(1, ACCOUNTS), "tid": chance.randint(1, TELLERS)}
                    delta = chance.randint(-DELTA_MAX, DELTA_MAX)
                    for statement in TRANSACTION:
                        cursor.execute(statement, {**place, "delta": delta})
            end.wait(0.2)


TABLES_SQL: Final = (
    "branches (bid INT PRIMARY KEY, bbalance INT, filler CHAR(88))",
    "tellers (tid INT PRIMARY KEY, bid INT, tbalance INT, filler CHAR(84))",
    "accounts (aid INT PRIMARY KEY, bid INT, abalance INT, filler CHAR(84))",
    "history (tid INT, bid INT, aid INT, delta INT, mtime DATETIME, filler CHAR(22))",
)
TRANSACTION: Final = (
    "BEGIN",
    "UPDATE pgbench_accounts SET abalance = abalance + %(delta)s WHERE aid = %(aid)s",
    "UPDATE pgbench_tellers SET tbalance = tbalance + %(delta)s WHERE tid = %(tid)s",
    "UPDATE pgbench_branches SET bbalance = bbalance + %(delta)s WHERE bid = 1",
    "INSERT INTO pgbench_history(tid, bid, aid, delta) VALUES (%(tid)s, 1, %(aid)s, %(delta)s)",
    "COMMIT",
)


@contextlib.contextmanager
def postgres_source() -> Iterator[Source]:
    """One in PostgreSQL, for a while."""
    with postgres(18) as server:
        yield PostgresSource(server)


@contextlib.contextmanager
def maria_source() -> Iterator[Source]:
    """One in MariaDB, for a while; skips the test where there is none."""
    from tests.mariadb import mariadb

    settings = {"server-id": "7", "log-bin": "mysql-bin", "binlog-format": "ROW"}
    with mariadb(**settings, binlog_row_metadata="FULL") as server:
        yield MariaSource(server)
