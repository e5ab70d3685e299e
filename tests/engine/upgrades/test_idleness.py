"""Idleness, which the wall clock decides, in what is made of the log again: late rows are late again."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.testing import Run

NOW = "2026-01-01T13:00:00Z"


def program(producer: str | None, *, with_new: bool = False) -> ps.App:
    """Counts per minute, of a topic with two partitions."""
    app = ps.App("p")
    time = ps.event_time("at", lateness="0 s", producer=producer)
    rows = app.stream("t", "who STRING, at TIMESTAMP", time=time, partitions=2)
    per_minute = rows.window(ps.tumbling("1 minute")).group_by("who")
    app.view("per_minute", per_minute.agg(n=ps.count()))
    if with_new:
        app.view("new", per_minute.agg(n=ps.count("at")))
    rows.window(ps.tumbling("1 minute")).agg(n=ps.count()).to("closed")
    return app


def content(run: Run, view: str) -> list[Any]:
    """A view's rows."""
    return sorted((f"{r['window_start']:%H:%M}", r["who"], r["n"]) for r in run.view(view).rows())


def send(run: Run, who: str, at: str, partition: int) -> None:
    """One row, in a batch of its own."""
    run.send("t", who=who, at=f"2026-01-01T{at}Z", partition=partition)
    run.step()


@pytest.mark.parametrize("rebuild", [True, False])
@pytest.mark.parametrize("producer", [None, "who"])
def test_what_idleness_made_late_is_late_again(producer: str | None, rebuild: bool) -> None:
    """A partition, or a producer, comes back behind the watermark, catches up, and is idle again."""
    run = ps.testing.run(program(producer), now=NOW, cores=2)
    there = 0 if producer else 1  # a producer that is idle shares its partition with others
    send(run, "bob", "12:00:10", there)
    for minute in (1, 11):
        send(run, "ann", f"12:{minute:02}:00", 0)
        send(run, "ann", f"12:{minute + 5:02}:00", 0)
        run.advance("2 minutes")
        send(run, "bob", f"12:{minute:02}:30", there)  # late
        send(run, "bob", f"12:{minute + 5:02}:30", there)
        send(run, "bob", f"12:{minute + 1:02}:30", there)  # late by its own rows
    before, closed = content(run, "per_minute"), run.topic("closed")
    letters = [one.value for one in run.dead_letters()]
    assert len(letters) == 4
    if rebuild:
        run.change(program(producer), rebuild=True)
    else:
        run.change(program(producer, with_new=True))
        assert content(run, "new") == before
    assert content(run, "per_minute") == before
    assert run.topic("closed") == closed
    if rebuild:
        assert [one.value for one in run.dead_letters()] == letters
