"""Windows of event time in SQL: what they aggregate, sliding ones, and late rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

import penstock as ps
from penstock.errors import PenstockError, SchemaError
from penstock.sql import SqlFlow

START = datetime(2026, 1, 1, tzinfo=UTC)
AGGREGATES = (
    "count(*) FILTER (WHERE v > 3) AS n, count(DISTINCT v) AS d, max_by(x, v) AS b, arg_min(x, v) AS l, "
    "round(stddev(v), 6) AS s, median(v) AS m, quantile_cont(v, 0.25) AS q, count_if(v > 2) AS c, "
    "approx_count_distinct(v) AS a"
)
SLIDING = (
    "SELECT window_start, window_end, k, sum(v) AS total, count(*) AS n "
    "FROM SLIDE(s, at, INTERVAL 5 MINUTES) GROUP BY window_start, window_end, k HAVING count(*) > 1"
)
BEFORE = (
    (
        "SELECT DISTINCT e.at - INTERVAL 5 MINUTES, e.at, e.k, sum(o.v), count(*) FROM "
        "(SELECT DISTINCT at, k FROM s) AS e JOIN s AS o ON e.k IS NOT DISTINCT FROM o.k AND o.at <= e.at "
        "AND o.at > e.at - INTERVAL 5 MINUTES GROUP BY e.at, e.k HAVING count(*) > 1"
    )
    .replace("at", '"at"')
    .replace('D"at"E', "DATE")
)


def test_aggregates_of_windows() -> None:
    """They equal DuckDB's over the same rows, also those that windows have and other groups don't."""
    app = SqlFlow("shop")
    time = ps.event_time("at", lateness="1 hour")
    app.stream("s", "k STRING, v BIGINT, x STRING, at TIMESTAMP", time=time)
    app.view(
        "tumbled",
        sql=f"SELECT window_start, k, {AGGREGATES} FROM TUMBLE(s, at, INTERVAL 5 MINUTES) "
        "GROUP BY window_start, k",
    )
    app.view("slid", sql=SLIDING)
    run = ps.testing.run(app, cores=2)
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'UTC'")
    con.execute('CREATE TABLE s(k VARCHAR, v BIGINT, x VARCHAR, "at" TIMESTAMPTZ)')
    chance = random.Random(5)

    def send(*row: Any) -> None:
        run.send("s", **dict(zip(("k", "v", "x", "at"), row, strict=True)))
        con.execute("INSERT INTO s VALUES (?, ?, ?, ?)", row)

    for _ in range(3):
        values = chance.sample(range(30), 12)  # all differ, so that max_by has no ties
        for v in values:
            at = START + timedelta(seconds=30 * chance.randint(0, 30))
            key = chance.choice(["a", "b", None])
            send(key, None if v % 9 == 0 else v, chance.choice("xyz"), at.isoformat())
        run.settle()
    send("z", 1, "z", (START + timedelta(hours=2)).isoformat())
    run.settle()
    bucket = 'time_bucket(INTERVAL 5 MINUTES, "at")'
    expected = con.execute(f"SELECT {bucket}, k, {AGGREGATES} FROM s GROUP BY 1, 2").fetchall()
    assert counted(run, "tumbled") == Counter(expected)
    assert counted(run, "slid") == Counter(con.execute(BEFORE).fetchall())


def counted(run: Any, view: str) -> Counter[Any]:
    def plain(value: Any) -> Any:
        return round(value, 6) if isinstance(value, float) else value

    return Counter(tuple(map(plain, row.values())) for row in run.view(view).rows())


def test_late_rows_correct_windows() -> None:
    """Within keep, a late row is added to its closed window; closed windows then go from the view."""
    app = SqlFlow("shop")
    app.sql(
        "CREATE STREAM s (at TIMESTAMP, WATERMARK FOR at);"
        "CREATE MATERIALIZED VIEW corrected AS SELECT window_start, count(*) AS n FROM TUMBLE(s, at, "
        "INTERVAL 1 MINUTE, late => 'correct', keep => INTERVAL 1 HOUR) GROUP BY window_start;"
        "CREATE MATERIALIZED VIEW dropped AS SELECT window_start, count(*) AS n "
        "FROM TUMBLE(s, at, INTERVAL 1 MINUTE, keep => '1 hour') GROUP BY window_start"
    )
    run = ps.testing.run(app)
    for minute in (0, 10, 0):
        run.send("s", at=(START + timedelta(minutes=minute)).isoformat())
        run.settle()
    assert [row["n"] for row in run.view("corrected").rows()] == [2, 1]
    assert [row["n"] for row in run.view("dropped").rows()] == [1, 1]
    for minute in (90, 91):  # what a batch reads moves the watermark of the next one
        run.send("s", at=(START + timedelta(minutes=minute)).isoformat())
        run.settle()
    assert [row["n"] for row in run.view("corrected").rows()] == [1, 1]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("CREATE VIEW v AS SELECT x FROM s EMIT CHANGES", "expected EMIT in CREATE SINK"),
        (
            "CREATE VIEW v AS SELECT 1 FROM TUMBLE(s, at, INTERVAL 1 MINUTE, tardy => 1) GROUP BY x",
            "the options keep and late",
        ),
        (
            "CREATE VIEW v AS SELECT window_end FROM SLIDE(s, other, INTERVAL 1 MINUTE) GROUP BY 1",
            "'at'; found 'other'",
        ),
        (
            "CREATE VIEW v AS SELECT window_end FROM TUMBLE(s, other, INTERVAL 1 MINUTE) GROUP BY 1",
            "expected the event time of 's' in TUMBLE(…), 'at'; found 'other'",
        ),
        (
            "CREATE VIEW v AS SELECT string_agg(x) FROM TUMBLE(s, at, INTERVAL 1 MINUTE) GROUP BY window_end",
            "aggregates over windows",
        ),
    ],
)
def test_what_is_refused(program: str, said: str) -> None:
    """The message says what windows take."""
    app = SqlFlow("shop")
    app.sql("CREATE STREAM s (x STRING, at TIMESTAMP, other TIMESTAMP, WATERMARK FOR at)")
    with pytest.raises(PenstockError, match="expected") as error:
        app.sql(program)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("table", "said", "at"),
    [
        ("TUMBLE(s, at, INTERVAL 0 SECONDS)", "expected a window longer than nothing", "TUMBLE"),
        ("SLIDE(s, at, INTERVAL 400 DAYS)", "of at most 366 days", "SLIDE"),
        ("TUMBLE(s, at, INTERVAL 1 DAY, late => 'kept')", "found late='kept'", "count"),
    ],
)
def test_what_windows_are_refused_is_shown_in_the_query(table: str, said: str, at: str) -> None:
    """Also what the windows of Python check, which know no text."""
    app = SqlFlow("shop")
    app.sql("CREATE STREAM s (x STRING, at TIMESTAMP, WATERMARK FOR at)")
    query = f"SELECT count(*) AS n FROM {table} GROUP BY window_end"
    with pytest.raises(SchemaError) as error:
        app.view("v", sql=query)
    message = str(error.value)
    assert message.startswith(f"the view 'v': line 1, column {query.index(at) + 1}: expected ")
    assert said in message


def test_windows_of_a_time_that_is_no_column() -> None:
    """The clock on the wall cuts rows as they are processed, records' timestamps as they were appended."""
    app = SqlFlow("shop")
    app.sql("""
        CREATE STREAM clicks (k STRING) WITH (time = 'processing');
        CREATE STREAM calls (k STRING);
        CREATE VIEW called AS SELECT k AS who FROM clicks WHERE k <> 'x';
        CREATE MATERIALIZED VIEW tumbled AS SELECT window_start, k, count(*) AS n
          FROM TUMBLE(clicks, INTERVAL 10 SECONDS) GROUP BY window_start, k;
        CREATE MATERIALIZED VIEW hopped AS SELECT window_start, count(*) AS n
          FROM HOP(called, INTERVAL 5 SECONDS, INTERVAL 10 SECONDS) GROUP BY window_start;
        CREATE MATERIALIZED VIEW visits AS SELECT window_start, window_end, count(*) AS n
          FROM SESSION(clicks, INTERVAL 10 SECONDS) GROUP BY window_start, window_end;
        CREATE MATERIALIZED VIEW appended AS SELECT window_start, count(*) AS n
          FROM TUMBLE(calls, INTERVAL 10 SECONDS) GROUP BY window_start;
    """)
    run = ps.testing.run(app, now="2026-01-01T12:00:01Z")
    for k in "axa":
        run.send("clicks", k=k)
        run.send("calls", k=k)
    run.settle()
    run.advance("6 seconds")
    run.send("clicks", k="b")
    run.settle()
    run.advance("20 seconds")
    run.send("clicks", k="b")

    def rows(view: str) -> set[Any]:
        return {tuple(row.values()) for row in run.view(view).rows()}

    def at(second: int) -> datetime:
        return START + timedelta(hours=12, seconds=second)

    assert rows("tumbled") == {
        (at(0), "a", 2), (at(0), "x", 1), (at(0), "b", 1), (at(20), "b", 1)
    }  # fmt: skip
    assert rows("hopped") == {(at(-5), 2), (at(0), 3), (at(5), 1), (at(20), 1), (at(25), 1)}
    assert rows("visits") == {(at(1), at(17), 4), (at(27), at(37), 1)}
    assert rows("appended") == {(at(0), 3)}


def test_what_is_made_of_streams_without_a_column_of_time_has_none() -> None:
    """A union of such streams, and rows joined with a table, whatever the table's own time is."""
    app = SqlFlow("shop")
    app.sql("""
        CREATE STREAM calls (k STRING);
        CREATE STREAM chats (k STRING);
        CREATE STREAM visits (k STRING, at TIMESTAMP, WATERMARK FOR at);
        CREATE VIEW contacts AS SELECT k FROM calls UNION ALL SELECT k FROM chats;
        CREATE MATERIALIZED VIEW contacted AS SELECT window_start, count(*) AS n
          FROM TUMBLE(contacts, INTERVAL 10 SECONDS) GROUP BY window_start;
    """)
    calls, visits = app.named["calls"], app.named["visits"]
    assert isinstance(calls, ps.Stream)
    assert isinstance(visits, ps.Stream)
    read = app.table("users", "k STRING, x TIMESTAMP", key="k", time=ps.event_time("x"))
    made = visits.group_by("k").agg(x=ps.max("at"))
    cut = visits.window(ps.tumbling("1 day")).group_by("k").agg(x=ps.max("at")).select("k", "x")
    for name, table in (("read", read), ("made", made), ("cut", cut)):
        app.view(name, sql="""
            SELECT window_start, count(*) AS n, count(x) AS met
              FROM TUMBLE(joined, INTERVAL 10 SECONDS) GROUP BY window_start
        """, tables={"joined": calls.enrich(table, on="k", how="left")})  # fmt: skip
    run = ps.testing.run(app, now="2026-01-01T12:00:01Z")
    run.send("users", k="a", x=START.isoformat())
    run.send("visits", k="a", at=START.isoformat())
    run.settle()
    for k in "ab":
        run.send("calls", k=k)
    run.send("chats", k="a")
    run.settle()
    at = START + timedelta(hours=12)
    assert run.view("contacted").rows() == [{"window_start": at, "n": 3}]
    for name in ("read", "made", "cut"):
        assert run.view(name).rows() == [{"window_start": at, "n": 2, "met": 1}]


UNITED = """
    CREATE STREAM a (k STRING, at TIMESTAMP, other TIMESTAMP, WATERMARK FOR at);
    CREATE STREAM b (who STRING, seen TIMESTAMP, WATERMARK FOR seen);
    CREATE VIEW v AS SELECT k, at, other FROM a UNION ALL SELECT who, seen, seen FROM b;
    CREATE VIEW w AS SELECT k, other AS at FROM a UNION ALL SELECT who, seen FROM b;
"""


def test_windows_over_united_streams() -> None:
    """Their time is the column that has the event time of each of them; it also bounds joins."""
    app = SqlFlow("shop")
    app.sql(f"""{UNITED}
        CREATE STREAM c (k STRING, day TIMESTAMP, WATERMARK FOR day);
        CREATE MATERIALIZED VIEW counted AS SELECT window_start, count(*) AS n
          FROM TUMBLE(v, at, INTERVAL 1 MINUTE) GROUP BY window_start;
        CREATE MATERIALIZED VIEW slid AS SELECT k, window_end, count(*) AS n
          FROM SLIDE(v, at, INTERVAL 1 MINUTE) GROUP BY k, window_end;
        CREATE MATERIALIZED VIEW joined AS SELECT v.k, c.day FROM v JOIN c
          ON v.k = c.k AND c.day BETWEEN v.at - INTERVAL 1 MINUTE AND v.at;
    """)
    run = ps.testing.run(app)
    for second in (0, 30, 70):
        at = (START + timedelta(seconds=second)).isoformat()
        run.send("a", k="x", at=at, other=START.isoformat())
        run.send("b", who="x", seen=at)
        run.send("c", k="x", day=at)
    run.settle()
    assert [one["n"] for one in run.view("counted").rows()] == [4, 2]
    assert {one["window_end"].second: one["n"] for one in run.view("slid").rows()} == {0: 2, 30: 4}
    days = Counter(one["day"].second for one in run.view("joined").rows())
    assert days == {0: 4, 30: 4, 10: 2}


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (
            "TUMBLE(v, other, INTERVAL 1 MINUTE)",
            "event time of 'v' in TUMBLE(…), 'at'; found 'other'",
        ),
        (
            "HOP(w, at, INTERVAL 1 MINUTE, INTERVAL 2 MINUTE)",
            "that of each of its streams; found 'at'",
        ),
        ("SLIDE(w, at, INTERVAL 1 MINUTE)", "that of each of its streams; found 'at'"),
    ],
)
def test_another_column_of_united_streams_is_refused(windows: str, said: str) -> None:
    """As it is of a stream that was read."""
    app = SqlFlow("shop")
    app.sql(UNITED)
    with pytest.raises(PenstockError, match="expected") as error:
        app.sql(f"CREATE VIEW x AS SELECT window_end FROM {windows} GROUP BY window_end")
    assert said in str(error.value)
