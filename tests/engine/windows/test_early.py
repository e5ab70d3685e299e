"""Early results: what an open window comes to, at most every so often, with new owners in between."""

from __future__ import annotations

import json
from typing import Any

import penstock as ps


def values(run: Any, topic: str) -> list[Any]:
    """The values of a topic's records; None of tombstones."""
    return [record.value and json.loads(record.value) for record in run.topic(topic)]


def test_an_open_window_is_written_once_an_interval() -> None:
    """However often it changes; what is held back survives a restart, and comes though no event does."""
    app = ps.App("p")
    events = app.stream("events", "user STRING, n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    days = events.window(ps.tumbling("1 day")).group_by("user").agg(n=ps.sum("n"))
    days.to("early", emit="upserts", every="10 seconds")
    days.where("n > 2").to("large", emit="changes", every="10 seconds")
    run = ps.testing.run(app)
    run.advance("10 seconds")
    for i in range(5):
        run.send("events", user="a", n=1, at=f"12:00:0{i}")
        run.settle()
        if i == 2:
            run.restart()
    counts = [v["n"] for v in values(run, "early")]
    assert len(counts) <= 1  # the first one at most
    run.advance("11 seconds")
    assert [v["n"] for v in values(run, "early")] == [*counts, 5]
    assert [(v["op"], v["after"]["n"]) for v in values(run, "large")] == [("c", 5)]
    run.advance("30 seconds")
    assert [v["n"] for v in values(run, "early")] == [*counts, 5]
    run.send("events", user="a", n=-4, at="12:00:09")
    run.advance("11 seconds")
    assert [v["n"] for v in values(run, "early")] == [*counts, 5, 1]
    assert values(run, "large")[-1]["op"] == "d"
    [record, *_] = run.topic("early")
    assert json.loads(record.key) == {"window_start": "2000-01-01T00:00:00Z", "user": "a"}


def test_a_program_may_begin_to_pace_and_cease() -> None:
    """A program that says `every` later goes on, and so does one that no longer says it."""

    def program(every: str | None) -> ps.App:
        app = ps.App("p")
        events = app.stream("events", "user STRING, n BIGINT")
        totals = events.group_by("user").agg(n=ps.sum("n"))
        app.view("totals", totals)
        totals.to("paced" if every else "all", emit="upserts", every=every)
        return app

    run = ps.testing.run(program(None))
    run.send("events", user="a", n=1)
    run.settle()
    for every in ("10 seconds", None, "20 seconds"):
        run.change(program(every))
        run.send("events", user="a", n=1)
        run.advance("21 seconds")
    assert [row["n"] for row in run.view("totals").rows()] == [4]
    assert values(run, "paced")[-1]["n"] == 4
