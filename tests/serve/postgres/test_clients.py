"""PostgreSQL's own clients and drivers that others wrote read views as tables."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
import trustme
from tests.patience import PATIENCE_S
from tests.serve.committing import clicks, commit
from tests.serve.test_failures import texts
from tests.serve.test_queries import ENDLESS

from penstock.cli.support.host import LateViews
from penstock.errors import SetupError
from penstock.serve import Queries, QueryLimits
from penstock.serve.postgres.server import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")]

NOON = dt.datetime(2000, 1, 1, 12, tzinfo=dt.UTC)
VALUES = (
    "1::smallint, 2::int, 3::bigint, 1.5::double, -1234567.089::decimal(12, 3), true, 'x', "
    "date '2026-01-02', timestamp '2026-01-02 03:04:05.678', timestamptz '2026-01-02 03:04:05Z', "
    "[1, 2, null], ['a', 'b \"c\"'], {'a': [1]}, interval 1 day, "
    "uuid '00000000-0000-0000-0000-000000000001', time '01:02:03', null, from_hex('00ff')"
)
READ = (
    1, 2, 3, 1.5, Decimal("-1234567.089"), True, "x", dt.date(2026, 1, 2),
    dt.datetime.fromisoformat("2026-01-02T03:04:05.678"), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    [1, 2, None], ["a", 'b "c"'], {"a": [1]}, dt.timedelta(days=1), uuid.UUID(int=1), dt.time(1, 2, 3),
    None, b"\0\xff",
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(clicks(), tmp_path_factory.mktemp("shop.penstock"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[PostgresServer]:
    queries = Queries(directory, QueryLimits(seconds=PATIENCE_S, memory_bytes=512 << 20))
    server = PostgresServer(directory, queries=queries)
    yield server
    server.close()
    queries.close()


def psql(server: PostgresServer, *commands: str) -> str:
    """What psql prints for some commands."""
    databases = pytest.importorskip("tests.databases")
    arguments = [part for one in commands for part in ("-c", one)]
    done = subprocess.run(
        [databases.PROGRAMS[16] / "psql", "-X", "-At", server.url, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PGCONNECT_TIMEOUT": str(int(PATIENCE_S))},
    )
    return done.stdout + done.stderr


def test_psql_lists_describes_and_reads(server: PostgresServer) -> None:
    r"""`\dt`, `\d view`, `\di`, `\l` and a query print what they print of a table."""
    said = psql(server, r"\dt", r"\d per_user", r"\l", 'SELECT "user", n FROM per_user ORDER BY 1')
    lines = said.splitlines()
    assert lines[0] == "public|per_user|table|penstock"
    assert "n|bigint||not null|" in lines
    assert "ms|double precision|||" in lines
    assert lines[-3:] == ["u0|7", "u1|7", "u2|6"]
    whole = psql(server, r"\pset tuples_only off", r"\d+ per_user", r"\di")
    assert '"per_user_pkey" PRIMARY KEY, btree (window_start, "user")' in whole
    assert "public|per_user_pkey|index|penstock|per_user" in whole
    assert "ERROR" not in said + whole


def test_values_that_fail_are_notices_of_the_query(tmp_path: Path) -> None:
    """A query's process hands on what failed in the views that it read, and drivers show it."""
    directory = commit(texts(bad=3), tmp_path / "shop.penstock")
    queries = Queries(directory, QueryLimits(seconds=PATIENCE_S, memory_bytes=512 << 20))
    views = LateViews(directory)
    server = PostgresServer(directory, queries=queries, answered=views.answered)
    try:
        with psycopg.connect(server.url) as con:
            heard = []
            con.add_notice_handler(lambda one: heard.append((one.severity, one.message_primary)))
            assert con.execute("SELECT count(n) FROM v").fetchone() == (2,)
    finally:
        server.close()
        queries.close()
    [(severity, said)] = heard
    assert severity == "WARNING"
    assert said.startswith("3 values of n in the view v are NULL, because ")
    assert [one.count for one in views.failed("v")] == [3]


@pytest.mark.quick_cases(1)
def test_psycopg_reads_every_type_in_text_and_in_binary(server: PostgresServer) -> None:
    """Values arrive as they are, with and without parameters, and by cursors of the server."""
    with psycopg.connect(server.url) as con:
        for binary in (False, True):
            assert con.cursor(binary=binary).execute(f"SELECT {VALUES}").fetchone() == READ
        query = 'SELECT "user" FROM per_user WHERE n > %s AND "user" = ANY(%s) ORDER BY 1 LIMIT %s'
        assert con.execute(query, (6, ["u1", "u2", "u0"], 9)).fetchall() == [("u0",), ("u1",)]
        with con.cursor("some") as cursor:
            cursor.execute('SELECT "user" FROM per_user ORDER BY 1')
            assert cursor.fetchmany(2) + cursor.fetchall() == [("u0",), ("u1",), ("u2",)]


def test_errors_have_codes(server: PostgresServer) -> None:
    """Drivers raise their own exceptions: by SQLSTATE. A failed transaction needs a ROLLBACK."""
    wrong = {
        "SELECT * FROM nothing": psycopg.errors.UndefinedTable,
        "SELECT nothing FROM per_user": psycopg.errors.UndefinedColumn,
        "SELECT nothing(n) FROM per_user": psycopg.errors.UndefinedFunction,
        "SELECT 'x'::INT": psycopg.errors.InvalidTextRepresentation,
        "SELEC 1": psycopg.errors.FeatureNotSupported,
        "SELECT (": psycopg.errors.SyntaxError,
        "DELETE FROM per_user": psycopg.errors.ReadOnlySqlTransaction,
        "SELECT * FROM per_user AS OF VERSION 99": psycopg.errors.SnapshotTooOld,
    }
    with psycopg.connect(server.url, autocommit=True) as con:
        for query, error in wrong.items():
            with pytest.raises(error):
                con.execute(query)
        con.execute("BEGIN")
        with pytest.raises(psycopg.errors.UndefinedTable):
            con.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            con.execute("SELECT 1")
        con.execute("ROLLBACK")
        assert con.execute("SELECT 1").fetchone() == (1,)


def test_sqlalchemy_reflects_and_pandas_reads(server: PostgresServer) -> None:
    """Reflection finds a view's columns and types; pandas reads it as a table."""
    engine = sqlalchemy.create_engine(server.url.replace("postgresql", "postgresql+psycopg"))
    try:
        found = sqlalchemy.inspect(engine)
        assert found.get_table_names() == ["per_user"]
        columns = {one["name"]: str(one["type"]) for one in found.get_columns("per_user")}
        assert columns["n"] == "BIGINT"
        assert columns["window_start"] == "TIMESTAMP"
        key = ["window_start", "user"]
        assert found.get_pk_constraint("per_user")["constrained_columns"] == key
        assert found.get_indexes("per_user") == found.get_foreign_keys("per_user") == []
        frame = pd.read_sql_table("per_user", engine)
        assert sorted(frame["n"]) == [6, 7, 7]
        some = sqlalchemy.text("SELECT count(*) AS c FROM per_user WHERE n > :n")
        assert list(pd.read_sql(some, engine, params={"n": 6})["c"]) == [2]
    finally:
        engine.dispose()


def test_asyncpg_prepares_with_the_types_of_parameters(server: PostgresServer) -> None:
    """It sends binary values of the types that the server finds, and reads arrays, whose types it asks."""

    async def read() -> None:
        con = await asyncpg.connect(server.url, timeout=PATIENCE_S)
        query = 'SELECT "user" FROM per_user WHERE n > $1 AND window_start <= $2 AND "user" <> $3 ORDER BY 1'
        for _ in range(2):
            rows = await con.fetch(query, 6, NOON, "u1")
            assert [one["user"] for one in rows] == ["u0"]
        rows = await con.fetch(f"SELECT {VALUES}")
        assert tuple(rows[0])[:12] == READ[:12]
        assert await con.fetchval("SELECT sum(n) FROM per_user; -- BIGINTs") == 20
        async with con.transaction(readonly=True):
            numbers = [one["n"] async for one in con.cursor("SELECT n FROM per_user", prefetch=2)]
        assert sorted(numbers) == [6, 7, 7]
        await con.close()

    asyncio.run(read())


def test_parameters_are_found_and_have_postgresqls_types(server: PostgresServer) -> None:
    """Adjacent ones too, as psycopg writes lists; asyncpg takes values of the types that are announced."""
    with psycopg.connect(server.url) as con:
        some = 'SELECT "user" FROM per_user WHERE "user" IN (%s,%s) ORDER BY 1'
        assert con.execute(some, ("u0", "u2")).fetchall() == [("u0",), ("u2",)]
        assert con.execute(
            "SELECT coalesce(%s,%s,'c'),%s||%s", (None, "b", "x", "y")
        ).fetchone() == (
            "b",
            "xy",
        )

    async def read() -> None:
        con = await asyncpg.connect(server.url, timeout=PATIENCE_S)
        assert (
            await con.fetchval(
                "SELECT sum(n + $1)::BIGINT FROM per_user WHERE n IN ($2,$3)", 1, 6, 7
            )
            == 23
        )
        day = await con.fetchval("SELECT $1::date", dt.date(2026, 1, 2))
        assert day == dt.date(2026, 1, 2)
        assert await con.fetchval("SELECT $1::int + 1", 41) == 42
        assert await con.fetchval("SELECT coalesce($1,$2,max(n)) FROM per_user", None, 3) == 3
        assert await con.fetchval('SELECT $1||$2||max("user") FROM per_user', "a", "b") == "abu2"
        await con.close()

    asyncio.run(read())


def test_tools_that_write_the_schema_find_the_views(server: PostgresServer) -> None:
    """`public.view` and `penstock.public.view`, in SQLAlchemy's queries, COPY and psql."""
    engine = sqlalchemy.create_engine(server.url.replace("postgresql", "postgresql+psycopg"))
    try:
        found = sqlalchemy.MetaData()
        found.reflect(engine, schema="public")
        table = found.tables["public.per_user"]
        with engine.connect() as con:
            some = sqlalchemy.select(table.c.n).where(table.c.user.in_(["u0", "u2"])).order_by("n")
            assert con.execute(some).fetchall() == [(6,), (7,)]
    finally:
        engine.dispose()
    assert psql(server, "SELECT n FROM penstock.public.per_user ORDER BY n LIMIT 1") == "6\n"
    assert sorted(psql(server, "COPY public.per_user (n) TO STDOUT").split()) == ["6", "7", "7"]
    assert psql(server, r"\d public.per_user").startswith("window_start|")


def test_beyond_loopback_a_password_is_needed(directory: Path) -> None:
    """The address is refused without one; with one, SCRAM-SHA-256 lets in who knows it, and nobody else."""
    with pytest.raises(SetupError, match="expected a password for"):
        PostgresServer(directory, "0.0.0.0")
    server = PostgresServer(directory, "0.0.0.0", password="tiger")
    try:
        address = {"host": "127.0.0.1", "port": server.port, "user": "scott", "dbname": "penstock"}
        with psycopg.connect(**address, password="tiger") as con:
            assert con.info.error_message == ""
            assert con.execute("SHOW server_version").fetchone() == ("16.0",)
        with pytest.raises(psycopg.OperationalError, match="expected the endpoint's password"):
            psycopg.connect(**address, password="lion")
    finally:
        server.close()


def test_a_client_copies_and_explains(server: PostgresServer) -> None:
    """COPY gives rows as text and in binary; EXPLAIN the plan, ANALYZE its times."""
    query = 'SELECT "user", n FROM per_user ORDER BY 1'
    with psycopg.connect(server.url, autocommit=True) as con, con.cursor() as cursor:
        with cursor.copy(f"COPY ({query}) TO STDOUT WITH (FORMAT csv, HEADER)") as copy:
            assert b"".join(copy) == b"user,n\nu0,7\nu1,7\nu2,6\n"
        with cursor.copy(f"COPY ({query}) TO STDOUT BINARY") as copy:
            copy.set_types(["text", "int8"])
            assert list(copy.rows()) == [("u0", 7), ("u1", 7), ("u2", 6)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            cursor.execute("COPY per_user FROM STDIN")
        plan = [one for (one,) in cursor.execute(f"EXPLAIN {query}")]
        assert plan[0].startswith("Version ")
        assert plan[1].startswith("View per_user: kept up to date by")
        assert any("per_user" in one or "SCAN" in one for one in plan[2:])
        assert not any("Total Time" in one for one in plan)
        analyzed = cursor.execute("EXPLAIN ANALYZE SELECT n FROM per_user WHERE n > %s", (6,))
        assert any("Total Time" in one for (one,) in analyzed)
        assert cursor.execute("EXPLAIN SELECT relname FROM pg_class").fetchone() is not None
        with pytest.raises(psycopg.errors.UndefinedTable):
            cursor.execute("EXPLAIN SELECT * FROM nothing")


def test_tls_is_needed_where_there_is_a_certificate(directory: Path, tmp_path: Path) -> None:
    """A client checks the name, logs in, reads and cancels; without TLS it is refused."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    with pytest.raises(SetupError, match="expected a certificate in"):
        PostgresServer(directory, tls=(tmp_path / "ca.pem", tmp_path / "nothing.pem"))
    queries = Queries(directory, QueryLimits(seconds=PATIENCE_S, memory_bytes=512 << 20))
    server = PostgresServer(directory, password="tiger", queries=queries, tls=(pem, pem))
    address = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": "u",
        "dbname": "d",
        "password": "tiger",
    }
    try:
        checked = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / "ca.pem")}
        with psycopg.connect(**address, **checked, autocommit=True) as con:
            assert con.pgconn.ssl_in_use
            assert con.execute("SELECT count(*) FROM per_user").fetchone() == (3,)
            con.execute("SET statement_timeout = '50ms'")
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement_timeout"):
                con.execute(ENDLESS)
            con.execute("SET statement_timeout = 0")
            assert con.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="expected TLS"):
            psycopg.connect(**address, sslmode="disable")
    finally:
        server.close()
        queries.close()


def test_a_cancelled_query_ends_and_the_session_goes_on(server: PostgresServer) -> None:
    """A client's cancellation ends the query that runs; the next one is answered."""
    with psycopg.connect(server.url, autocommit=True) as con:
        con.execute("SELECT 1")

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(con.execute, ENDLESS)
            while (
                not running.done()
            ):  # a cancellation that comes before the query counts for nothing
                con.cancel_safe(timeout=PATIENCE_S)
            with pytest.raises(psycopg.errors.QueryCanceled):
                running.result()
        assert con.execute("SELECT count(*) FROM per_user").fetchone() == (3,)


def test_a_transaction_reads_one_version_while_views_change(tmp_path: Path) -> None:
    """Other statements read the newest version; AS OF an older one; and a write can be waited for."""
    run = clicks(20)
    directory = commit(run, tmp_path / "shop.penstock")
    queries = Queries(directory, QueryLimits(seconds=PATIENCE_S, memory_bytes=512 << 20))
    server = PostgresServer(directory, queries=queries)
    total = "SELECT sum(n)::BIGINT FROM per_user"

    def grow() -> None:
        run.send("clicks", user="u1", ms=1.0, at="12:00:30")
        commit(run, directory)

    try:
        with (
            psycopg.connect(server.url, autocommit=True) as fresh,
            psycopg.connect(server.url) as pinned,
        ):
            pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for expected in (20, 21, 22):
                assert fresh.execute(total).fetchone() == (expected,)
                assert pinned.execute(total).fetchone() == (20,)
                grow()
            [version] = pinned.execute("SHOW penstock.version").fetchone() or ("",)
            assert fresh.execute(f"{total} AS OF VERSION {version}").fetchone() == (20,)
            pinned.commit()
            assert pinned.execute(total).fetchone() == (23,)
            offsets = server.views().status()["offsets"]["clicks"]
            partition, end = max(offsets.items(), key=lambda one: one[1])
            fresh.execute(f"SET penstock.after = 'clicks-{partition}:{end}'")
            fresh.execute("SET penstock.wait = '0s'")
            with pytest.raises(
                psycopg.errors.QueryCanceled, match="expected a version that has read"
            ):
                fresh.execute(total)
            while server.views().status()["offsets"]["clicks"][partition] == end:
                grow()
            assert fresh.execute(total).fetchone() is not None
            fresh.execute("RESET penstock.after")
            n, types = 0, ["int8", "bool", "int8", "timestamptz", "timestamptz", "text", "int8"]
            subscribe = "COPY (SUBSCRIBE per_user WITH (PROGRESS)) TO STDOUT"
            with fresh.cursor() as cursor, cursor.copy(subscribe) as copy:
                copy.set_types([*types, "float8"])
                for version, ended, weight, *row in copy.rows():
                    n += 0 if ended else weight * row[3]
                    if ended and version == server.views().version:
                        if n == 30:
                            break
                        grow()
                fresh.cancel_safe(timeout=PATIENCE_S)
                with pytest.raises(psycopg.errors.QueryCanceled):
                    copy.read()
            assert n == 30
            assert fresh.execute(total).fetchone() == (n,)
    finally:
        server.close()
        queries.close()
