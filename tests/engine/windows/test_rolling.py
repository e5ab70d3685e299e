"""Sliding windows and windows of so many rows in a pipeline, with new owners in between."""

from __future__ import annotations

import json
from typing import Any

import penstock as ps


def values(run: Any, topic: str) -> list[dict[str, Any]]:
    """The records of a topic."""
    return [json.loads(record.value) for record in run.topic(topic)]


def test_rolling_aggregates_survive_restarts_and_late_rows() -> None:
    """Rows come in the order of time whatever order they came in; a late one is a dead letter."""
    app = ps.App("p")
    time = ps.event_time("at", lateness="10 seconds")
    events = app.stream("events", "user STRING, n BIGINT, at TIMESTAMP", time=time)
    recent = events.window(ps.sliding("30 seconds")).group_by("user")
    recent.agg(total=ps.sum("n * 2"), many=ps.count(where="n > 1"), was=ps.first("n")).to("recent")
    every = events.window(ps.count_window(3, every=2))
    every.agg(rows=ps.count(), total=ps.sum("n"), users=ps.collect("user", limit=9)).to("every")
    run = ps.testing.run(app)
    for user, n, at in [("a", 1, 10), ("b", 2, 20), ("a", 3, 15), ("a", 4, 40), ("a", 5, 41),
                        ("b", 9, 30), ("a", 7, 59)]:  # fmt: skip
        run.send("events", user=user, n=n, at=f"12:00:{at}")
        run.restart()
    run.send("events", user="b", n=9, at="12:05:00")
    run.send("events", user="b", n=9, at="12:04:00")
    run.settle()
    found = [
        (r["at"][17:19], r["n"], r["total"], r["many"], r["was"]) for r in values(run, "recent")
    ]
    assert found == [
        ("10", 1, 2, 0, 1),
        ("15", 3, 8, 1, 1),
        ("20", 2, 4, 1, 2),
        ("40", 4, 14, 2, 3),
        ("41", 5, 24, 3, 3),
        ("59", 7, 32, 3, 4),
    ]
    assert [
        (r["rows"], r["total"], r["users"], r["window_end"][17:19]) for r in values(run, "every")
    ] == [
        (3, 6, ["a", "a", "b"], "20"),
        (3, 11, ["a", "a", "b"], "41"),
    ]
    assert len(run.dead_letters()) == 2
