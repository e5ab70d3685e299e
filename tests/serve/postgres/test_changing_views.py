"""PostgreSQL's clients read views while these change: each answer is one committed version."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.serve.committing import commit
from tests.serve.test_queries import ENDLESS

import penstock as ps
from penstock.serve import Queries, QueryLimits
from penstock.serve.postgres.server import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")]

VERSIONS = 4  # that each client is to see
ACCOUNTS = 50
BOTH = (
    "SELECT (SELECT sum(balance) FROM balances)::BIGINT, (SELECT sum(n) FROM balances)::BIGINT, n "
    "FROM transferred"
)
"""Both views in one query: the total is zero, and each transfer has moved two balances."""
EACH = "SELECT b.balance, b.n, t.n FROM balances AS b CROSS JOIN transferred AS t"


def bank(columns: str = "") -> ps.App:
    """Transfers between accounts: what each has, and how many there were."""
    app = ps.App("bank")
    app.stream("transfers", "debit BIGINT NOT NULL, credit BIGINT NOT NULL, amount BIGINT NOT NULL")
    app.view(
        "balances",
        sql=f"""SELECT account, sum(amount)::BIGINT AS balance, count(*) AS n {columns} FROM (
            SELECT credit AS account, amount FROM transfers
            UNION ALL SELECT debit, -amount FROM transfers) AS moves GROUP BY account""",
    )
    app.view("transferred", sql="SELECT count(*) AS n FROM transfers")
    return app


TRANSFERS = 20  # of a version


class Bank:
    """A pipeline whose versions a test commits, and the endpoint of its views."""

    def __init__(self, directory: Path) -> None:
        self.run = ps.testing.run(bank(), shaken=False)
        self.directory, self.random = directory, random.Random(1)
        self.grow()
        self.queries = Queries(
            directory, QueryLimits(seconds=10 * PATIENCE_S, memory_bytes=512 << 20)
        )
        self.server = PostgresServer(directory, queries=self.queries)

    def grow(self) -> None:
        for _ in range(TRANSFERS):
            debit, credit = self.random.sample(range(ACCOUNTS), 2)
            amount = self.random.randrange(1, 100)
            self.run.send("transfers", debit=debit, credit=credit, amount=amount)
        commit(self.run, self.directory)

    def close(self) -> None:
        self.server.close()
        self.queries.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Bank]:
    with closing(Bank(tmp_path / "bank.penstock")) as made:
        yield made


class Reader:
    """What one client has read."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @property
    def is_done(self) -> bool:
        return len(set(self.numbers)) >= VERSIONS

    def took(self, answer: Any) -> None:
        """Takes an answer to BOTH."""
        total, moved, transfers = map(int, answer)
        assert (total, moved) == (0, 2 * transfers), answer
        assert transfers >= max(self.numbers, default=0), "a version before one that was read"
        self.numbers.append(transfers)

    def took_each(self, rows: Any) -> None:
        """Takes an answer to EACH."""
        balances, moves, transfers = zip(*rows, strict=True)
        assert len(set(transfers)) == 1
        self.took((sum(map(int, balances)), sum(map(int, moves)), transfers[0]))


def psql(url: str, reader: Reader) -> None:
    databases = pytest.importorskip("tests.databases")
    command = [databases.PROGRAMS[16] / "psql", "-X", "-At", "-F", " ", url]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while not reader.is_done:
            process.stdin.write(f"{BOTH};\n")
            process.stdin.flush()
            reader.took(process.stdout.readline().split())
        process.stdin.close()


def psycopg_simple(url: str, reader: Reader) -> None:
    """Several statements in one message, each an answer of its own."""
    with psycopg.connect(url, autocommit=True) as con, psycopg.ClientCursor(con) as cursor:
        while not reader.is_done:
            cursor.execute(f"{BOTH}; {EACH}")
            reader.took(cursor.fetchone())
            assert cursor.nextset()
            reader.took_each(cursor.fetchall())


def psycopg_prepared(url: str, reader: Reader) -> None:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as con:
        while not reader.is_done:
            for binary in (False, True):
                row = con.execute(f"{BOTH} WHERE n > %s", (0,), binary=binary).fetchone()
                reader.took(row)


def psycopg_pipeline(url: str, reader: Reader) -> None:
    with psycopg.connect(url, autocommit=True) as con:
        while not reader.is_done:
            with con.pipeline():
                cursors = [con.execute(query) for query in (BOTH, EACH, BOTH)]
            one, each, two = (cursor.fetchall() for cursor in cursors)
            reader.took(one[0])
            reader.took_each(each)
            reader.took(two[0])


def psycopg_cursor(url: str, reader: Reader) -> None:
    """A cursor of the server is of one version, however late its rows are fetched."""
    with psycopg.connect(url) as con:
        while not reader.is_done:
            with con.cursor("each") as cursor:
                cursor.itersize = 7
                reader.took_each(list(cursor.execute(EACH)))
            con.commit()


def psycopg_transaction(url: str, reader: Reader) -> None:
    """Statements of a transaction that reads one version agree."""
    with psycopg.connect(url) as con:
        con.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        while not reader.is_done:
            rows = con.execute("SELECT balance, n FROM balances").fetchall()
            [(number,)] = con.execute("SELECT n FROM transferred").fetchall()
            reader.took_each([(*row, number) for row in rows])
            con.commit()


def psycopg_copy(url: str, reader: Reader) -> None:
    with psycopg.connect(url, autocommit=True) as con, con.cursor() as cursor:
        while not reader.is_done:
            with cursor.copy(f"COPY ({EACH}) TO STDOUT (FORMAT binary)") as copy:
                copy.set_types(["int8", "int8", "int8"])
                reader.took_each(list(copy.rows()))


def sqlalchemy_and_pandas(url: str, reader: Reader) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql", "postgresql+psycopg"))
    try:
        while not reader.is_done:
            with engine.connect() as con:
                reader.took(con.execute(sqlalchemy.text(BOTH)).one())
            reader.took_each(pd.read_sql(EACH, engine).itertuples(index=False))
    finally:
        engine.dispose()


def asyncpg_prepared(url: str, reader: Reader) -> None:
    async def read() -> None:
        pool = await asyncpg.create_pool(url, min_size=3, max_size=3, timeout=PATIENCE_S)
        async with pool.acquire() as con:
            prepared = await con.prepare(f"{BOTH} WHERE n > $1")
            while not reader.is_done:
                reader.took(await prepared.fetchrow(0))
                others = await asyncio.gather(*(pool.fetch(EACH) for _ in range(2)))
                for rows in sorted(others, key=lambda one: one[0][2]):
                    reader.took_each(rows)
        await pool.close()

    asyncio.run(read())


CLIENTS: list[Callable[[str, Reader], None]] = [
    psql,
    psycopg_simple,
    psycopg_prepared,
    psycopg_pipeline,
    psycopg_cursor,
    psycopg_transaction,
    psycopg_copy,
    sqlalchemy_and_pandas,
    asyncpg_prepared,
]


def test_each_answer_is_one_committed_version(served: Bank) -> None:
    """Two views in one query agree, by every client and protocol, while versions are committed."""
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        running = [pool.submit(client, served.server.url, Reader()) for client in CLIENTS]
        while not all(one.done() for one in running):
            served.grow()
        for one in running:
            one.result()


def test_prepared_statements_survive_a_changed_program(served: Bank) -> None:
    """A view gets a column, and loses it: drivers prepare anew what has other columns."""
    whole, some = "SELECT * FROM balances WHERE n > %s", "SELECT account FROM balances WHERE n > %s"

    async def follow() -> None:
        con = await asyncpg.connect(served.server.url, timeout=PATIENCE_S)
        with psycopg.connect(served.server.url, autocommit=True, prepare_threshold=0) as other:
            for columns in ("", ", max(amount) AS largest", ""):
                served.run.change(bank(columns))
                commit(served.run, served.directory)
                for _ in range(2):
                    found = other.execute(whole, (0,)).fetchall()[0]
                    assert len(found) == (4 if columns else 3)
                    assert other.execute(some, (0,)).fetchone() is not None
                    rows = await con.fetch(whole.replace("%s", "$1"), 0)
                    assert len(rows[0]) == len(found)
        await con.close()

    asyncio.run(follow())


def test_clients_that_vanish_leave_their_places(served: Bank) -> None:
    """Killed in a query, in a cursor, or before they read: as many as there are places are served again."""
    url = served.server.url
    for _ in range(2):
        for query in (ENDLESS, EACH, "COPY (SUBSCRIBE balances) TO STDOUT"):
            waiting = [psycopg.connect(url, autocommit=True) for _ in range(3)]
            for one in waiting:
                one.pgconn.send_query(query.encode())
            for one in waiting:
                one.close()
    # Sooner than the limit of a query's time, which would free its place as well.
    wait_until(lambda: not served.server._connections, "the end of each session")
    with psycopg.connect(url, autocommit=True) as con:
        Reader().took(con.execute(BOTH).fetchone())
