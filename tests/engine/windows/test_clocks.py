"""Event times that are computed: of expressions, and of numbers since 1970 in a named unit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.sql import SqlFlow

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z


def minutes(run: Any, view: str = "v") -> list[tuple[str, int]]:
    return [(row["window_start"].strftime("%H:%M"), row["n"]) for row in run.view(view).rows()]


@pytest.mark.parametrize(
    ("schema", "unit", "factor"),
    [
        ("ts BIGINT", "s", 1),
        ("ts INT", "s", 1),
        ("ts BIGINT", "ms", 10**3),
        ("ts BIGINT", "us", 10**6),
        ("ts BIGINT", "ns", 10**9),
        ("ts DOUBLE", "s", 1),
        ("ts DECIMAL(18, 3)", "s", 1),
    ],
)
def test_numbers_since_1970_are_event_times(schema: str, unit: Any, factor: int) -> None:
    """Rows are in the windows that their numbers mean; one that is NULL is a dead letter."""
    app = ps.App("p")
    rows = app.stream("rows", schema, time=ps.event_time("ts", unit=unit))
    app.view("v", rows.window(ps.tumbling("1 minute")).agg(n=ps.count()))
    run = ps.testing.run(app)
    for second in (0, 59, 60):
        run.send("rows", ts=(NOON + second) * factor)
    run.send("rows", ts=None)
    assert minutes(run) == [("12:00", 2), ("12:01", 1)]
    [letter] = run.dead_letters()
    assert "expected an event time in" in letter.headers["penstock.reason"]


def test_an_expression_is_an_event_time() -> None:
    """It is computed before rows are late; a row for which it fails is a dead letter with the reason."""
    app = ps.App("p")
    rows = app.stream(
        "rows", "day STRING, time STRING", time=ps.event_time("(day || ' ' || time)::TIMESTAMPTZ")
    )
    rows.window(ps.tumbling("1 minute")).agg(n=ps.count()).to("out")
    run = ps.testing.run(app)
    for time in ("12:00:30Z", "noon", "12:01:00Z", "12:00:59Z"):
        run.send("rows", day="2026-01-01", time=time)
    assert [json.loads(one.value or b"")["n"] for one in run.topic("out")] == [1]
    failed, late = sorted(one.headers["penstock.reason"] for one in run.dead_letters())
    assert failed.startswith("(day || ' ' || time)::TIMESTAMPTZ: ")
    assert late.startswith("late: its event time is 2026-01-01T12:00:59")


def test_sql_computes_columns_and_event_times() -> None:
    """A column of the list may be computed, anywhere in it, and WATERMARK FOR may name it."""
    app = SqlFlow("p")
    app.sql("""
        CREATE STREAM rows (
          k STRING, at AS to_timestamp(ts / 1000), is_late AS ts < 5 OR k > 'x', ts BIGINT,
          WATERMARK FOR at AS at - INTERVAL 5 SECONDS
        );
        CREATE VIEW renamed AS SELECT k, at AS happened FROM rows WHERE k <> 'z';
        CREATE MATERIALIZED VIEW v AS
          SELECT window_start, max(happened) AS newest, count(*) AS n
          FROM TUMBLE(renamed, happened, INTERVAL 1 MINUTE) GROUP BY window_start;
        CREATE MATERIALIZED VIEW near AS
          SELECT a.k, b.at - a.at AS gap FROM rows a JOIN rows b
          ON a.k = b.k AND b.at > a.at AND b.at <= a.at + INTERVAL 1 MINUTE;
    """)
    assert app.named["rows"].schema.names == ("k", "at", "is_late", "ts")
    run = ps.testing.run(app)
    for second in (0, 59, 61):
        run.send("rows", k="a", ts=(NOON + second) * 1_000)
    run.settle()
    assert minutes(run) == [("12:00", 2), ("12:01", 1)]
    assert sorted(row["gap"].seconds for row in run.view("near").rows()) == [2, 59]


def test_sql_names_a_unit() -> None:
    """Without a column that is an instant, windows take none."""
    app = SqlFlow("p")
    app.sql("""
        CREATE STREAM rows (ts BIGINT, WATERMARK FOR ts) WITH (unit = 'ms');
        CREATE MATERIALIZED VIEW v AS
          SELECT window_start, count(*) AS n FROM TUMBLE(rows, INTERVAL 1 MINUTE) GROUP BY window_start
    """)
    run = ps.testing.run(app)
    run.send("rows", ts=NOON * 1_000)
    run.settle()
    assert minutes(run) == [("12:00", 1)]


def test_a_table_has_a_computed_time() -> None:
    """A deletion has its record's timestamp, as it has no columns."""
    app = ps.App("p")
    app.view(
        "v", app.table("t", "k STRING, ts BIGINT", key="k", time=ps.event_time("ts", unit="s"))
    )
    run = ps.testing.run(app)
    run.send("t", k="a", ts=NOON)
    run.send("t", k="b", ts=NOON)
    run.send_raw("t", None, key=b"a")
    run.settle()
    assert run.view("v").rows() == [{"k": "b", "ts": NOON}]
    assert run.dead_letters() == []


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (("ts", None), "Name the unit of numbers since 1970: ps.event_time\\('ts', unit='ms'\\)"),
        (("ts + 1", None), "to be a TIMESTAMP; found BIGINT"),
        (("nope", None), "expected one of the columns ts, k; found 'nope'"),
        (("k", "ms"), "expected numbers in 'k' for unit='ms'; found STRING"),
        (("ts", "hours"), "expected a unit of a column of numbers"),
        ((None, "ms"), "expected a unit of a column of numbers"),
        (("now()", None), "now"),
    ],
)
def test_what_is_no_event_time_is_refused(time: tuple[Any, Any], message: str) -> None:
    """The message says what a column of numbers needs."""
    with pytest.raises(PenstockError, match=message):
        ps.App("p").stream("rows", "ts BIGINT, k STRING", time=ps.event_time(time[0], unit=time[1]))


def test_a_time_before_1990_read_from_an_integer_is_doubted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seconds read as milliseconds are said with the likely unit; an old date as text isn't."""
    app = ps.App("p")
    for topic in ("numbers", "texts"):
        rows = app.stream(topic, "at TIMESTAMP", time=ps.event_time("at"))
        app.view(topic, rows.window(ps.tumbling("1 minute")).agg(n=ps.count()))
    run = ps.testing.run(app, shaken=False)
    for second in (0, 1):
        run.send("numbers", at=NOON + second)
        run.send("texts", at="1970-01-21T10:54:28Z")
        run.settle()
    [said] = [one.getMessage() for one in caplog.records if "after 1990" in one.getMessage()]
    assert (
        f"read from the integer {NOON} at offset 0. In seconds it is 2026-01-01T12:00:00Z" in said
    )
    assert "unit='s'" in said
