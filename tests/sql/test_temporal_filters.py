"""Conditions on now(): how they are rewritten, and what views show as event time passes."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
import sqlglot
from sqlglot import exp
from tests.effort import rounds

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.errors import PenstockError
from penstock.sql import SqlFlow
from penstock.sql.rules.temporal import with_bounds

REWRITTEN = {
    "at > now() - INTERVAL 1 HOUR": "now() < \"at\" + INTERVAL '1' HOUR",
    "now() - INTERVAL 1 HOUR <= at": "now() <= \"at\" + INTERVAL '1' HOUR",
    "at BETWEEN now() - INTERVAL 2 HOURS AND now()": (
        'now() <= "at" + INTERVAL \'2\' HOURS AND now() >= "at"'
    ),
    "now() BETWEEN at AND until": 'now() >= "at" AND now() <= until',
    "now() - at < INTERVAL 5 MINUTES AND k = 1": "now() < INTERVAL '5' MINUTES + \"at\" AND k = 1",
    "NOT (at <= current_timestamp - INTERVAL 1 HOUR)": "now() < \"at\" + INTERVAL '1' HOUR",
    "INTERVAL 1 HOUR + at >= now() + to_seconds(k)": (
        "now() <= (INTERVAL '1' HOUR + \"at\") - to_seconds(k)"
    ),
    "until - now() > INTERVAL 10 MINUTES": "now() < until - INTERVAL '10' MINUTES",
    "at + INTERVAL 1 MONTH > now()": "now() < \"at\" + INTERVAL '1' MONTH",
}
START = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES = rounds("PENSTOCK_SQL_BATCHES", quick=4, full=6)


def at_time(sql: str, now: str) -> str:
    """A query as of a time."""
    then = exp.cast(exp.Literal.string(now), "TIMESTAMPTZ")

    def put(node: exp.Expr) -> exp.Expr:
        of_now = isinstance(node, exp.Anonymous) and node.name.lower() == "now"
        return then.copy() if of_now or isinstance(node, exp.CurrentTimestamp) else node

    return sqlglot.parse_one(sql, dialect="duckdb").transform(put).sql(dialect="duckdb")


@pytest.mark.parametrize("condition", REWRITTEN)
def test_a_condition_is_rewritten(condition: str) -> None:
    """now() stands alone on the left, and DuckDB finds the same rows at any time."""
    query = f"SELECT * FROM t WHERE {condition}"
    made = with_bounds(sqlglot.parse_one(query, dialect="duckdb"))
    text = made.args["where"].this.sql(dialect="duckdb", normalize_functions=False)
    assert text == REWRITTEN[condition]
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'UTC'")
    con.execute(
        "CREATE TABLE t AS SELECT n % 3 AS k, TIMESTAMPTZ '2026-01-01' + INTERVAL (n * 5) MINUTE AS \"at\", "
        '"at" + INTERVAL 1 HOUR AS until FROM range(40) AS r(n)'
    )
    for minutes in (-60, 0, 31, 60, 125, 200, 50_000):
        now = (START + timedelta(minutes=minutes)).isoformat()
        rows = con.execute(at_time(query, now)).fetchall()
        assert con.execute(at_time(made.sql(dialect="duckdb"), now)).fetchall() == rows


VIEWS = {
    "recent": "SELECT k, v, at FROM s WHERE at > now() - INTERVAL 10 MINUTES AND v > 0",
    "between": "SELECT k, v FROM s WHERE at BETWEEN now() - INTERVAL 10 MINUTES AND now()",
    "counted": "SELECT k, count(*) AS n FROM s WHERE at >= now() - INTERVAL 9 MINUTES GROUP BY k",
    "joined": (
        "SELECT s.v, t.x FROM s LEFT JOIN t ON t.id = s.k AND t.since > now() - INTERVAL 20 MINUTES "
        "WHERE s.at > now() - INTERVAL 15 MINUTES"
    ),
    "newest": "SELECT k, max(at) AS m FROM s GROUP BY k HAVING max(at) > now() - INTERVAL 5 MINUTES",
    "both": (
        "SELECT k, v FROM s WHERE at <= now() AND k IN (SELECT id FROM t WHERE since <= now()) "
        "AND NOT EXISTS (SELECT 1 FROM s AS o WHERE o.k = s.k AND o.at > now() - INTERVAL 3 MINUTES)"
    ),
    "forever": (
        "SELECT id, x FROM t WHERE now() <= CASE x WHEN 'a' THEN TIMESTAMPTZ 'infinity' ELSE since END "
        "AND now() > CASE x WHEN 'b' THEN TIMESTAMPTZ '-infinity' ELSE since - INTERVAL 5 MINUTES END "
        "AND now() <= TIMESTAMPTZ '9999-12-31 23:59:59.999999Z' + INTERVAL 1 DAY"
    ),
    "upcoming": "SELECT id, x FROM t WHERE since > now() AND EXISTS (SELECT 1 FROM s WHERE s.k = t.id)",
    "either": (
        "SELECT v FROM s WHERE at < now() - INTERVAL 12 MINUTES "
        "UNION ALL SELECT k FROM s WHERE at = now()"
    ),
}


def test_views_follow_event_time() -> None:
    """After each batch, views equal DuckDB's answer where now() is the stream's watermark."""
    app = SqlFlow("shop")
    app.stream(
        "s", "k BIGINT, v BIGINT, at TIMESTAMP", time=ps.event_time("at", lateness="1 minute")
    )
    app.table("t", "id BIGINT, x STRING, since TIMESTAMP", key="id")
    for name, query in VIEWS.items():
        app.view(name, sql=query)
    run = ps.testing.run(app, cores=2)
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'UTC'; CREATE TABLE s(k BIGINT, v BIGINT, \"at\" TIMESTAMPTZ)")
    con.execute("CREATE TABLE t(id BIGINT PRIMARY KEY, x VARCHAR, since TIMESTAMPTZ)")
    chance, newest = random.Random(7), START
    for batch in range(BATCHES):
        for _ in range(6):
            at = newest + timedelta(minutes=chance.randint(-8, 4))
            newest = max(newest, at)
            row = [chance.randint(1, 3), chance.randint(-2, 5), at.isoformat()]
            run.send("s", **dict(zip(("k", "v", "at"), row, strict=True)))
            con.execute("INSERT INTO s VALUES (?, ?, ?)", row)
        since = (newest + timedelta(minutes=chance.randint(-20, 9))).isoformat()
        row = [chance.randint(1, 3), chance.choice("abc"), since]
        run.send("t", **dict(zip(("id", "x", "since"), row, strict=True)))
        con.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", row)
        run.settle()
        now = (newest - timedelta(minutes=1)).isoformat()
        for name, query in VIEWS.items():
            expected = Counter(con.execute(at_time(query, now)).fetchall())
            found = Counter(tuple(row.values()) for row in run.view(name).rows())
            assert found == expected, (name, batch)
        if batch == 2:
            run.restart()


def test_explain_shows_the_time_and_the_key() -> None:
    """What is compared is told as it is written, and a clock has no key."""
    app = SqlFlow("shop")
    for name in ("s", "b"):
        app.stream(name, "k BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    app.view("q", sql="SELECT s.k FROM s JOIN b ON s.k = b.k WHERE s.at > now() - INTERVAL 1 HOUR")
    text = explain(compile_graph(app.graph(), {"s": 1, "b": 1}, 2))
    assert "ends = CAST((\"at\" + INTERVAL '1' HOUR) AS TIMESTAMPTZ)\n" in text
    assert "temporal filter by s.k, at, ends  exchanged" in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT now() AS n FROM s", "found now() elsewhere"),
        ("SELECT * FROM s WHERE at > now() OR k = 1", "at > now() - INTERVAL 1 HOUR"),
        ("SELECT * FROM s WHERE date_trunc('day', now()) = at", "at > now() - INTERVAL 1 HOUR"),
        ("SELECT * FROM s WHERE at > current_date", "at > now() - INTERVAL 1 HOUR"),
        ("SELECT * FROM s WHERE at > now() - INTERVAL 1 MONTH", "of fixed length"),
        (
            "SELECT window_start FROM TUMBLE(s, at, INTERVAL 1 MINUTE) WHERE at > now() GROUP BY 1",
            "windows without a condition on now()",
        ),
        ("SELECT * FROM s WHERE at > now() - '1 month'::INTERVAL", "of fixed length"),
        ("SELECT * FROM s WHERE at > now() - INTERVAL '1 day 1 mon'", "of fixed length"),
        ("SELECT * FROM s WHERE now() - age(at, at) < at", "of fixed length"),
        ("SELECT k FROM s WHERE k IN (SELECT k FROM s WHERE at > now() OR k = 1)", "> now() OR k"),
        (
            "SELECT * FROM (VALUES (TIMESTAMPTZ '2026-01-01')) AS v(x) WHERE x > now()",
            "constants alone",
        ),
        (
            "SELECT s.k FROM s JOIN s AS b ON s.k = b.k FULL JOIN s AS c ON c.at > now()",
            "outer join",
        ),
    ],
)
def test_what_is_refused(query: str, said: str) -> None:
    """Other uses of now() are refused, with the form that is possible."""
    app = SqlFlow("shop")
    app.stream("s", "k BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    with pytest.raises(PenstockError, match="expected") as error:
        app.view("q", sql=query)
    assert said in str(error.value)
