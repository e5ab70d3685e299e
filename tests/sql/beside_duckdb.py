"""A query as a view, beside DuckDB's answer over what the tables contain, after each batch."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import orjson
import pyarrow as pa
from tests.sql.chance.schemas import Schema, quoted

import penstock as ps
from penstock.flow.graph import is_one_row
from penstock.serve.views import Snapshot
from penstock.sql import SqlFlow

__all__ = ["Difference", "compare", "compare_all", "failing", "is_query"]

LATENESS = timedelta(minutes=15)
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = "2026-01-01T00:{:02}:00Z"


WINDOWS = re.compile(
    r"(TUMBLE|HOP|SESSION|SLIDE)\(e, ts, INTERVAL (\d+) MINUTES(?:, INTERVAL (\d+) MINUTES)?\)"
    r"( WHERE .*?(?= GROUP BY))?"
)


class Difference(AssertionError):
    """A view isn't what DuckDB says."""


def flow() -> SqlFlow:
    """Streams `s` and `e`, and two tables, `t` and `u`, with columns that meet, NULLs and duplicates."""
    app = SqlFlow("shop")
    app.stream("s", "k BIGINT, v BIGINT, d DOUBLE, x STRING, at TIMESTAMP")
    time = ps.event_time("ts", lateness=LATENESS)
    app.stream("e", "k BIGINT, v BIGINT, x STRING, ts TIMESTAMP", time=time)
    app.table("t", "id BIGINT, k BIGINT, v BIGINT, x STRING", key="id")
    app.table("u", "id BIGINT, k BIGINT, w BIGINT, y STRING", key="id")
    return app


def flow_of(schema: Schema) -> SqlFlow:
    """The streams and tables of a schema."""
    app = SqlFlow("shop")
    for table in schema.tables:
        app.sql(table.statement())
    return app


class World:
    """Random changes of the tables, as records and in DuckDB."""

    def __init__(self, run: Any, seed: int) -> None:
        self.run, self.chance = run, random.Random(seed)
        self.rows: dict[str, dict[int, list[Any]]] = {"t": {}, "u": {}}
        self.newest: datetime | None = None  # of the events, whose time goes on
        self.batch = 0
        self.plans: dict[str, str] = {}
        self.con = _opened()

    def change(self) -> None:
        """Some changes, and what the tables contain after them."""
        for _ in range(self.chance.randint(1, 8)):
            name = self.chance.choice("sttuu")
            if name == "s":
                self._event()
            else:
                self._row(name)
        for _ in range(self.chance.randint(0, 4)):
            self._timed()
        self.batch += 1
        for name, rows in self.rows.items():
            self.con.execute(f"DELETE FROM {name}")
            for row in rows.values():
                self.con.execute(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", row)

    def _maybe(self, value: Any) -> Any:
        return None if self.chance.random() < 0.15 else value

    def _event(self) -> None:
        chance = self.chance
        row = {
            "k": self._maybe(chance.randint(1, 3)),
            "v": self._maybe(chance.randint(-3, 5)),
            "d": self._maybe(chance.randint(0, 9) / 2),
            "x": self._maybe(chance.choice("abc")),
            "at": MINUTE.format(chance.randint(0, 59)),
        }
        self.run.send("s", **row)
        self.con.execute("INSERT INTO s VALUES (?, ?, ?, ?, ?)", list(row.values()))

    def _timed(self) -> None:
        """An event that isn't late: times go on by a few minutes with each batch."""
        chance = self.chance
        at = START + timedelta(minutes=10 * self.batch, seconds=30 * chance.randint(0, 20))
        self.newest = at if self.newest is None else max(self.newest, at)
        row = {
            "k": self._maybe(chance.randint(1, 3)),
            "v": self._maybe(chance.randint(-3, 5)),
            "x": self._maybe(chance.choice("abc")),
            "ts": at.isoformat(),
        }
        self.run.send("e", **row)
        self.con.execute("INSERT INTO e VALUES (?, ?, ?, ?)", list(row.values()))

    def answer(self, query: str) -> duckdb.DuckDBPyConnection:
        """What DuckDB says now. The optimizer of 2.0 fails at some queries, which it can do without."""
        try:
            return self._asked(query)
        except duckdb.InternalException:
            self.con.execute("PRAGMA disable_optimizer")
            return self._asked(query)

    def _asked(self, query: str) -> duckdb.DuckDBPyConnection:
        """The answer; a query that doesn't depend on now() is planned once."""
        if _moving(query):
            return self.con.execute(self.as_of_now(query))
        if query not in self.plans:
            name = f"plan{len(self.plans)}"
            self.con.execute(f"PREPARE {name} AS {self.as_of_now(query)}")
            self.plans[query] = name
        return self.con.execute(f"EXECUTE {self.plans[query]}")

    def as_of_now(self, query: str) -> str:
        """A query as DuckDB knows it, of now."""
        return _as_duckdb(query, None if self.newest is None else self.newest - LATENESS)

    def _row(self, name: str) -> None:
        chance, rows = self.chance, self.rows[name]
        id_ = chance.randint(1, 6)
        if id_ in rows and chance.random() < 0.3:
            del rows[id_]
            self.run.send_raw(name, None, key=str(id_).encode())
            return
        columns = ("id", "k", "v", "x") if name == "t" else ("id", "k", "w", "y")
        row = [
            id_,
            self._maybe(chance.randint(1, 3)),
            self._maybe(chance.randint(-3, 5)),
            self._maybe(chance.choice("abc")),
        ]
        rows[id_] = row
        self.run.send(name, partition=0, **dict(zip(columns, row, strict=True)))


class WorldOf(World):
    """Random changes of the tables of a schema."""

    def __init__(self, run: Any, seed: int, schema: Schema) -> None:
        super().__init__(run, seed)
        self.schema = schema
        self.kept: dict[str, dict[str, dict[str, Any]]] = {one.name: {} for one in schema.tables}
        for table in schema.tables:
            self.con.execute(table.in_duckdb())

    def change(self) -> None:
        """Some changes, and what the tables contain after them."""
        for _ in range(self.chance.randint(1, 10)):
            table = self.chance.choice(self.schema.tables)
            row = table.row(self.chance)
            key = {name: row[name] for name in table.key}
            rows = self.kept[table.name]
            place = repr(key) if key else str(len(rows))  # a stream keeps all
            if place in rows and self.chance.random() < 0.3:
                del rows[place]
                text = orjson.dumps(key) if len(key) > 1 else str(*key.values()).encode()
                self.run.send_raw(table.topic(), None, key=text)
                continue
            rows[place] = row
            self.run.send(table.topic(), partition=0, **row)
        for table in self.schema.tables:
            self.con.execute(f"DELETE FROM {quoted(table.name)}")
            for row in self.kept[table.name].values():
                self.con.execute(table.insertion(), table.values(row))


def compare(
    query: str,
    *,
    seed: int,
    batches: int = 4,
    cores: int = 2,
    views: Mapping[str, str] | None = None,
) -> None:
    """Runs a query over random changes.

    Args:
        query: over the streams and tables of `flow`.
        seed: of the changes.
        batches: how many.
        cores: lanes.
        views: that it may read, by name; one may read those before it, and is compared as well.

    Raises:
        Difference: after some batch, the view has other rows, or other columns.
    """
    compare_all([query], seed=seed, batches=batches, cores=cores, views=views)


def compare_all(
    queries: Sequence[str],
    *,
    seed: int,
    batches: int = 4,
    cores: int = 2,
    views: Mapping[str, str] | None = None,
    shaken: bool = True,
    schema: Schema | None = None,
) -> None:
    """Runs queries over random changes, as views of one program: as `compare` does, for less each.

    Args:
        queries: over the streams and tables of `flow`.
        seed: of the changes.
        batches: how many.
        cores: lanes.
        views: see `compare`.
        shaken: whether batches are cut, repeated and interrupted; see `penstock.testing`.
        schema: what the queries are over, instead of `flow`.

    Raises:
        Difference: of the first view that differs.
    """
    app = flow() if schema is None else flow_of(schema)
    named = dict(views or {})
    for i, (name, text) in enumerate(named.items()):
        app.sql(f"CREATE {'MATERIALIZED ' if i % 2 else ''}VIEW {name} AS {text}")
    for i, query in enumerate(queries):
        try:
            app.view(f"q{i}", sql=query)
        except Exception as error:
            error.add_note(query)
            raise
    views_of = {view.name: view.node for view in app.graph().views}
    run = ps.testing.run(app, cores=cores, shaken=shaken)
    world = World(run, seed) if schema is None else WorldOf(run, seed, schema)
    for batch in range(batches):
        world.change()
        run.settle()
        for name, text in named.items():
            world.con.execute(f"CREATE OR REPLACE VIEW {name} AS {world.as_of_now(text)}")
        version = run.store.newest_version()
        shown = Snapshot(run.store, run.store.version(version)) if version else None
        for i, query in enumerate(queries):
            if shown is None:
                continue  # nothing that the queries read has come yet
            found = world.answer(query)
            try:
                table = shown.table(f"q{i}")
                _check(found, table)
                _check_key(table, shown.row_key(f"q{i}"), is_one=is_one_row(views_of[f"q{i}"]))
            except Difference as error:
                letters = [letter.headers for letter in run.dead_letters()][:3]
                raise Difference(
                    f"{query}\nseed {seed}, batch {batch}: {error}, dead letters {letters}"
                ) from None
        if batch == batches // 2:
            run.restart()


def failing(queries: Sequence[str], **how: Any) -> list[tuple[str, Exception]]:
    """Those of some queries that fail, each with its error: alone if it does so alone.

    Args:
        queries: as of `compare_all`.
        how: its other arguments.
    """
    try:
        compare_all(queries, **how)
    except Exception as error:
        if len(queries) == 1:
            return [(queries[0], error)]
        half = len(queries) // 2
        return [
            *failing(queries[:half], **how),
            *failing(queries[half:], **how),
        ] or [("; ".join(queries), error)]
    return []


def _check(found: duckdb.DuckDBPyConnection, view: pa.Table) -> None:
    """Compares a view with DuckDB's answer."""
    names = [one[0] for one in found.description or []]
    if view.column_names != names:
        raise Difference(f"expected the columns {names}; found {view.column_names}")
    expected = _counted(found.fetchall())
    columns = (column.to_pylist(maps_as_pydicts="strict") for column in view.columns)
    shown = _counted(list(zip(*columns, strict=True)))
    if shown != expected:
        raise Difference(f"missing {dict(expected - shown)}, too many {dict(shown - expected)}")


def _check_key(view: pa.Table, key: Sequence[str], *, is_one: bool) -> None:
    """Whether what is said to identify a view's rows does."""
    if is_one and len(view) > 1:
        raise Difference(f"expected one row at most; found {len(view)}")
    if not key:
        return
    columns = (column.to_pylist(maps_as_pydicts="strict") for column in view.select(key).columns)
    rows = _counted(list(zip(*columns, strict=True)))
    if twice := [row for row, count in rows.items() if count > 1]:
        raise Difference(f"expected one row of each {', '.join(key)}; found several of {twice[:3]}")


def _counted(rows: Sequence[Sequence[Any]]) -> Counter[Any]:
    return Counter(tuple(map(_plain, row)) for row in rows)


def _plain(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if math.isnan(value) else round(value, 6)
        case UUID():
            return value.bytes
        case Decimal():
            return int(value) if value == value.to_integral_value() else round(float(value), 6)
        case dict():
            return tuple((name, _plain(one)) for name, one in value.items())
        case list():
            return tuple(map(_plain, value))
        case _:
            return value


def _opened() -> duckdb.DuckDBPyConnection:
    """DuckDB with the tables of `flow`, without rows."""
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET threads = 1")
    con.execute("SET enable_progress_bar = false")
    # In 2.0.0 it ends the process: … FULL JOIN … ON … AND NOT EXISTS (…) JOIN … WHERE … IN (…).
    con.execute("SET disabled_optimizers = 'outer_join_simplification'")
    con.execute(
        'CREATE TABLE s(k BIGINT, v BIGINT, d DOUBLE, x VARCHAR, "at" TIMESTAMPTZ); '
        "CREATE TABLE e(k BIGINT, v BIGINT, x VARCHAR, ts TIMESTAMPTZ); "
        "CREATE TABLE t(id BIGINT, k BIGINT, v BIGINT, x VARCHAR); "
        "CREATE TABLE u(id BIGINT, k BIGINT, w BIGINT, y VARCHAR)"
    )
    return con


def is_query(text: str, schema: Schema | None = None) -> bool:
    """Whether DuckDB takes a query over the tables of `flow`; not one part of a query alone, say."""
    with _opened() as con:
        for table in () if schema is None else schema.tables:
            con.execute(table.in_duckdb())
        try:
            con.execute(_as_duckdb(text, None))
        except duckdb.Error:
            return False
    return True


def _as_duckdb(query: str, now: datetime | None) -> str:
    """A query as DuckDB knows it: windows as subqueries, and the watermark of the events as now()."""
    at = "-infinity" if now is None else now.isoformat()
    return WINDOWS.sub(_rows_of_windows, query).replace("now()", f"TIMESTAMPTZ '{at}'")


def _moving(query: str) -> bool:
    """Whether what DuckDB is asked depends on the watermark."""
    return "now()" in query or "SLIDE(" in query


def _rows_of_windows(found: re.Match[str]) -> str:
    """Windows of event time as DuckDB says them: each row with its windows, of groups of `k`.

    Rows that WHERE removes are in no session, and end no sliding window.
    """
    kind, first, second, where = found.groups()
    e = f"(SELECT * FROM e{where or ''}) AS e"
    length = f"INTERVAL {first} MINUTES"
    bucket = f"time_bucket({length}, ts, TIMESTAMPTZ '1970-01-01 00:00:00+00')"
    match kind:
        case "TUMBLE":
            rows = f"SELECT *, {bucket} AS window_start, {bucket} + {length} AS window_end FROM {e}"
        case "HOP":
            start = f"{bucket} - i * {length}"
            rows = (
                f"SELECT e.*, {start} AS window_start, {start} + INTERVAL {second} MINUTES AS window_end "
                f"FROM {e}, range({int(second) // int(first)}) AS r(i)"
            )
        case "SESSION":
            rows = (
                "SELECT * EXCLUDE (n), min(ts) OVER (PARTITION BY k, n) AS window_start, "
                f"max(ts) OVER (PARTITION BY k, n) + {length} AS window_end FROM (SELECT * EXCLUDE (new), "
                "sum(new) OVER (PARTITION BY k ORDER BY ts) AS n FROM (SELECT *, coalesce(CAST(ts - lag(ts) "
                f"OVER (PARTITION BY k ORDER BY ts) >= {length} AS INT), 0) AS new FROM {e}))"
            )
        case _:
            rows = (
                f"SELECT o.*, w.ts - {length} AS window_start, w.ts AS window_end FROM "
                f"(SELECT DISTINCT ts, k FROM {e}) AS w JOIN {e.replace('AS e', 'AS o')} "
                "ON w.k IS NOT DISTINCT FROM o.k "
                f"AND o.ts <= w.ts AND o.ts > w.ts - {length} WHERE w.ts < now()"
            )
    return f"({rows})"
