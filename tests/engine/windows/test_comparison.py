"""Closed windows beside those of some time before, in a pipeline with new owners in between."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import penstock as ps


def values(run: Any, topic: str) -> list[dict[str, Any]]:
    """The records of a topic."""
    return [json.loads(record.value) for record in run.topic(topic)]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_window_stands_beside_the_former_one(steps: int) -> None:
    """Every closed window comes once, with its group's of so many steps before, or NULL."""
    app = ps.App("p")
    time = ps.event_time("at", lateness="5 seconds")
    events = app.stream("events", "user STRING, n BIGINT, at TIMESTAMP", time=time)
    windows = events.window(ps.hopping("20 seconds", every="10 seconds")).group_by("user")
    totals = windows.agg(total=ps.sum("n"), most=ps.max("n")).where("total > 1")
    totals.compared(f"{steps * 10} seconds").to("compared")
    run = ps.testing.run(app)
    chance, sums = random.Random(steps), Counter[Any]()
    for i in range(40):
        at, user, n = (
            max(0, i * 3 + chance.randint(-5, 0)),
            chance.choice("ab"),
            chance.randint(0, 2),
        )
        run.send("events", user=user, n=n, at=f"12:{at // 60:02}:{at % 60:02}")
        for window in (at // 10, at // 10 - 1):
            sums[window, user] += n
        if i % 10 == 0:
            run.restart()
    run.send("events", user="a", n=1, at="12:30:00")
    run.settle()
    shown = {key: n for key, n in sums.items() if n > 1}
    expected = Counter((w, user, n, shown.get((w - steps, user))) for (w, user), n in shown.items())
    assert expected.total() > 10
    assert expected == Counter(
        (_second(r["window_start"]) // 10, r["user"], r["total"], r["previous_total"])
        for r in values(run, "compared")
    )
    assert all((r["previous_most"] is None) == (r["previous_total"] is None)
               for r in values(run, "compared"))  # fmt: skip


def _second(instant: str) -> int:
    hours, minutes, seconds = instant[11:19].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) - 12 * 3600


def test_corrections_of_either_window_follow() -> None:
    """What a late row changes is taken back and given anew, in the window itself and beside the next."""
    app = ps.App("p")
    events = app.stream("events", "n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    minutes = events.window(ps.tumbling("1 minute"), late="correct", keep="10 minutes")
    compared = minutes.agg(n=ps.sum("n")).compared("1 minute", prefix="was_")
    last = compared.group_by("window_start").agg(n=ps.max("n"), was=ps.max("was_n"))
    app.view("last", last)
    run = ps.testing.run(app)
    for n, at in [(1, "00:10"), (2, "01:10"), (4, "02:10"), (8, "00:20"), (1, "14:00")]:
        run.send("events", n=n, at=f"12:{at}")
        run.settle()
    rows = {r["window_start"].minute: (r["n"], r["was"]) for r in run.view("last").rows()}
    assert rows == {0: (9, None), 1: (2, 9), 2: (4, 2)}


def test_days_of_a_zone_meet_the_same_day_of_last_week() -> None:
    """A week with 167 hours is a week; and a month's former one lies a year before."""
    app = ps.App("p")
    events = app.stream("events", "n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    days = events.window(ps.tumbling("1 day", zone="Europe/Berlin")).agg(n=ps.sum("n"))
    days.compared("1 week").to("days")
    months = events.window(ps.tumbling("1 month")).agg(n=ps.sum("n"))
    months.compared("1 year").to("months")
    run = ps.testing.run(app)
    for n, at in [(7, "2024-03-15"), (1, "2025-03-24"), (2, "2025-03-30"), (3, "2025-03-31"),
                  (4, "2025-04-06"), (5, "2025-04-30"), (6, "2025-10-26"), (7, "2025-11-01")]:  # fmt: skip
        run.send("events", n=n, at=f"{at}T12:00:00Z")
        run.settle()
    assert [(r["n"], r["previous_n"]) for r in values(run, "days")] == [
        (7, None), (1, None), (2, None), (3, 1), (4, 2), (5, None), (6, None),
    ]  # fmt: skip
    assert [(r["n"], r["previous_n"]) for r in values(run, "months")] == [
        (7, None), (6, 7), (9, None), (6, None),
    ]  # fmt: skip
