"""Sessions in a pipeline: views, closed rows, changes, what reads them, and a new owner in between."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.errors import FlowError
from penstock.serve.shown.series import series

SCHEMA = "user STRING NOT NULL, n BIGINT, at TIMESTAMP"
DAY = datetime.fromisoformat("2000-01-01T00:00:00Z")


def events(app: ps.App, lateness: str = "0 seconds", **options: Any) -> Any:
    """A stream of events."""
    time = ps.event_time("at", lateness=lateness)
    return app.stream("events", SCHEMA, time=time, **options)


def records(run: Any, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values of a topic's records."""
    return [(r.key and r.key.decode(), r.value and json.loads(r.value)) for r in run.topic(topic)]


def short(row: dict[str, Any]) -> tuple[Any, ...]:
    """A session's row as (user, start, end, n), in minutes of the day."""
    start, end = ((row[c] - DAY) / timedelta(minutes=1) for c in ("window_start", "window_end"))
    return row["user"], start, end, row["n"]


def test_a_session_ends_after_its_gap() -> None:
    """Rows less than the gap apart are one session of their user; its end is the gap after its last row."""
    app = ps.App("p")
    sessions = events(app, lateness="1 hour").window(ps.session("30 minutes")).group_by("user")
    app.view("sessions", sessions.agg(n=ps.count(), big=ps.max("n", where="n < 9")))
    app.view(
        "all", events(app, lateness="1 hour").window(ps.session("5 minutes")).agg(n=ps.count())
    )
    run = ps.testing.run(app)
    for user, n, at in [("a", 1, "12:00"), ("b", 9, "12:10"), ("a", 3, "12:30"), ("a", 2, "12:29")]:
        run.send("events", user=user, n=n, at=f"{at}:00")
        run.settle()
    rows = run.view("sessions").rows()
    assert [(*short(row), row["big"]) for row in rows] == [
        ("a", 720, 780, 3, 3),
        ("b", 730, 760, 1, None),
    ]
    assert [row["n"] for row in run.view("all").rows()] == [1, 1, 2]


def test_whatever_reads_sessions_follows() -> None:
    """Closed rows once, changes as before and after, tables of the table, windows of closed sessions."""
    app = ps.App("p")
    sessions = (
        events(app, lateness="10 minutes").window(ps.session("30 minutes")).group_by("user")
    ).agg(n=ps.count())
    sessions.to("closed")
    sessions.where("n > 0").to("changes", emit="changes")
    app.view("users", sessions.group_by("user").agg(sessions=ps.count(), n=ps.sum("n")))
    closed = sessions.closed().window(ps.tumbling("1 hour")).group_by("user")
    app.view("hours", closed.agg(sessions=ps.count()))
    app.view("trains", sessions.closed().window(ps.session("2 hours")).agg(sessions=ps.count()))
    run = ps.testing.run(app)
    for at in ("12:00", "12:35", "12:28", "13:20", "13:00", "20:00"):
        run.send("events", user="a", n=1, at=f"{at}:00")
        run.settle()
    assert [(r["sessions"], r["n"]) for r in run.view("users").rows()] == [(3, 5)]
    assert [(key, v["window_end"][11:16], v["n"]) for key, v in records(run, "closed")] == [
        ("a", "13:05", 3),
        ("a", "13:50", 1),
    ]
    kinds = [value["op"] for _, value in records(run, "changes")]
    assert kinds == ["c", "c", "d", "u", "c", "c"]
    assert [r["sessions"] for r in run.view("hours").rows()] == [2]
    assert [r["sessions"] for r in run.view("trains").rows()] == [2]
    [letter] = run.dead_letters()
    assert letter.headers["penstock.reason"].startswith(
        "late: its event time is 2000-01-01T13:00:00Z"
    )


event = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 600))


@settings(max_examples=examples(20))
@given(st.lists(st.lists(event, max_size=6), max_size=8), st.booleans())
def test_changes_add_up_to_the_table(batches: list[list[Any]], restarts: bool) -> None:
    """Whoever applies a topic's changes has the view, and restarts between batches change nothing."""
    app = ps.App("p")
    sessions = (
        events(app, lateness="2 minutes", partitions=2, key="user")
        .window(ps.session("1 minute"))
        .group_by("user")
        .agg(n=ps.count())
    )
    app.view("sessions", sessions)
    app.view("sizes", sessions.group_by("n").agg(sessions=ps.count()))
    sessions.to("changes", emit="changes")
    run = ps.testing.run(app, cores=2)
    for batch in batches:
        for user, second in batch:
            run.send("events", user=user, n=1, at=f"12:{second // 60:02}:{second % 60:02}")
        run.settle()
        if restarts:
            run.restart()
    if not any(batches):
        return
    kept: dict[Any, Any] = {}
    for key, value in records(run, "changes"):
        assert kept.pop(key, None) == value["before"]
        if value["after"] is not None:
            kept[key] = value["after"]
    rows = run.view("sessions").rows()
    assert sorted((r["user"], r["window_start"], r["n"]) for r in kept.values()) == sorted(
        (r["user"], r["window_start"].isoformat().replace("+00:00", "Z"), r["n"]) for r in rows
    )
    late = len(run.dead_letters())
    assert sum(r["n"] for r in rows) + late == sum(map(len, batches))
    assert sum(r["sessions"] * r["n"] for r in run.view("sizes").rows()) + late == sum(
        map(len, batches)
    )


def test_the_chart_of_sessions_has_a_point_for_each() -> None:
    """The page draws a view of sessions, whose starts have no step."""
    app = ps.App("p")
    sessions = events(app, lateness="1 hour").window(ps.session("5 minutes")).group_by("user")
    app.view("sessions", sessions.agg(n=ps.count()))
    run = ps.testing.run(app)
    for minute, user in [(0, "a"), (1, "b"), (2, "a"), (20, "a"), (40, "b")]:
        run.send("events", user=user, n=1, at=f"12:{minute:02}:00")
    view = run.view("sessions")
    lines = series(view.table, keys=["user"], every_us=0)
    assert lines["every_ms"] > 0
    assert [(one["key"], one["values"]) for one in lines["series"]] == [
        ("a", [2, None, 1, None]),
        ("b", [None, 1, None, 1]),
    ]


def test_what_sessions_cannot_do_is_refused() -> None:
    """A message says what was expected, what was found and what to do."""
    app = ps.App("p")
    stream = events(app)
    with pytest.raises(FlowError, match="how long windows are corrected"):
        stream.window(ps.session("1 minute"), late="correct")
    with pytest.raises(FlowError, match="a table that has no windows"):
        stream.group_by("user").agg(n=ps.count()).window(ps.session("1 minute"))
    with pytest.raises(FlowError, match="gap longer than nothing"):
        ps.session("0 seconds")
    with pytest.raises(FlowError, match=r"gap as a duration.*'30 seconds'"):
        ps.session(30)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="at most 3650 days"):
        ps.session("4000 days")


def test_late_rows_correct_closed_sessions() -> None:
    """A late row joins two closed sessions: both are taken back, and whatever reads them follows."""
    app = ps.App("p")
    window = events(app).window(ps.session("10 minutes"), late="correct", keep="1 day")
    sessions = window.group_by("user").agg(n=ps.sum("n"), values=ps.collect("n", limit=9))
    app.view("sessions", sessions)
    app.view("long", sessions.closed().group_by("user").agg(longest=ps.max("n"), all=ps.count()))
    sessions.to("closed")
    run = ps.testing.run(app)
    for n, at in [(1, "12:00"), (2, "12:15"), (4, "13:00"), (8, "12:08"), (16, "14:00")]:
        run.send("events", user="a", n=n, at=f"{at}:00")
        run.settle()
        run.restart()
    found = [(*short(row), row["values"]) for row in run.view("sessions").rows()]
    assert sorted(found) == [
        ("a", 720, 745, 11, [1, 2, 8]),
        ("a", 780, 790, 4, [4]),
        ("a", 840, 850, 16, [16]),
    ]
    assert [(r["longest"], r["all"]) for r in run.view("long").rows()] == [(11, 2)]
    newest = {key: value and value["n"] for key, value in records(run, "closed")}
    assert sorted(n for n in newest.values() if n is not None) == [4, 11]
    assert run.dead_letters() == []


def test_sessions_of_a_table_follow_it() -> None:
    """Windows that count enough make sessions; one that no longer does splits its session."""
    app = ps.App("p")
    minutes = (
        events(app, lateness="1 hour")
        .window(ps.tumbling("1 minute"))
        .group_by("user")
        .agg(n=ps.sum("n"))
    )
    busy = minutes.where("n > 1").window(ps.session("90 seconds")).group_by("user")
    app.view("busy", busy.agg(minutes=ps.count(), n=ps.sum("n")))
    run = ps.testing.run(app)
    for minute in range(5):
        run.send("events", user="a", n=2, at=f"12:0{minute}:00")
        run.settle()
    assert [(r["minutes"], r["n"]) for r in run.view("busy").rows()] == [(5, 10)]
    run.restart()
    run.send("events", user="a", n=-2, at="12:02:30")
    run.settle()
    assert [(r["minutes"], r["n"]) for r in run.view("busy").rows()] == [(2, 4), (2, 4)]


def test_sessions_take_aggregates_that_need_all_values() -> None:
    """Distinct values and quantiles are those of the session."""
    app = ps.App("p")
    sessions = events(app, lateness="1 hour").window(ps.session("30 minutes")).group_by("user")
    app.view(
        "s",
        sessions.agg(different=ps.count_distinct("n"), half=ps.quantile("n", 0.5), n=ps.count()),
    )
    run = ps.testing.run(app)
    for n, at in [(5, "12:00"), (5, "12:40"), (1, "12:20")]:
        run.send("events", user="a", n=n, at=f"{at}:00")
        run.settle()
    assert [(r["different"], r["half"], r["n"]) for r in run.view("s").rows()] == [(2, 5.0, 3)]
