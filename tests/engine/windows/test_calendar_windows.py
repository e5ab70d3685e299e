"""Windows of a calendar in a pipeline, with a new owner in between."""

from __future__ import annotations

import json

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph


def test_months_of_a_zone_close_and_survive_a_restart() -> None:
    """A month closes, once, when clocks there have passed its end; what is kept is found again."""
    app = ps.App("p")
    events = app.stream("events", "n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    months = events.window(ps.tumbling("1 month", zone="America/New_York"), keep="40 days")
    months.agg(n=ps.sum("n")).to("months")
    app.view("months", months.agg(n=ps.sum("n")))
    run = ps.testing.run(app)
    for at in ("2025-03-01T04:59:59Z", "2025-03-01T05:00:00Z", "2025-04-01T03:59:59Z"):
        run.send("events", n=1, at=at)
        run.restart()
    assert [json.loads(r.value)["window_start"] for r in run.topic("months")] == [
        "2025-02-01T05:00:00Z"
    ]
    run.send("events", n=1, at="2025-04-01T04:00:00Z")
    run.settle()
    assert [
        (v["n"], v["window_end"]) for v in map(json.loads, (r.value for r in run.topic("months")))
    ] == [
        (1, "2025-03-01T05:00:00Z"),
        (2, "2025-04-01T04:00:00Z"),
    ]
    for at in ("2025-05-01T00:00:00Z", "2025-05-01T03:00:00Z"):
        run.send("events", n=1, at=at)
        run.settle()
    assert [row["n"] for row in run.view("months").rows()] == [2, 3]


def test_a_plan_says_windows_as_they_are_written() -> None:
    """Calendars by their steps and zone, rows in their order by what is computed of them."""
    app = ps.App("p")
    events = app.stream("events", "n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    month = ps.hopping("3 months", every="1 month", zone="Europe/Berlin")
    days = events.window(month).agg(n=ps.count())
    days.to("days", emit="upserts", every="10 seconds")
    days.compared("1 month").to("compared")
    events.window(ps.sliding("5 minutes")).agg(total=ps.sum("n")).to("sliding")
    events.window(ps.count_window(9)).agg(total=ps.sum("n")).to("counted")
    text = explain(compile_graph(app.graph(), {"events": 1}, 2))
    for line in (
        "hopping 3 months every 1 month in Europe/Berlin: n = count(*)",
        "size 5 minutes: total = sum(n)",
        "size 9, every 9: total = sum(n)",
        "interval 10 seconds",
        "after -(21 days",
    ):
        assert line in text, text
