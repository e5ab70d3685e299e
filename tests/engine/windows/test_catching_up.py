"""A pipeline that stood still and catches up: what happened meanwhile is where it belongs in time."""

from __future__ import annotations

import datetime as dt

import orjson

import penstock as ps
from penstock.testing import Run

PER_SECOND = 20
STOPPED_FROM_S, STOPPED_UNTIL_S, ENDS_S = 30, 90, 120
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rates() -> ps.App:
    """Requests by the second in which they happened, and of the ten seconds before each."""
    app = ps.App("site")
    time = ps.event_time("at", lateness="2 seconds")
    happened = app.stream("requests", "at TIMESTAMP NOT NULL", time=time)
    per_second = happened.window(ps.tumbling("1 second")).agg(n=ps.count())
    app.view("happened", per_second)
    per_second.to("per-second")
    recent = happened.window(ps.sliding("10 seconds")).agg(last_10_s=ps.count())
    app.view("most", recent.group_by().agg(most=ps.max("last_10_s")))
    return app


def processed() -> ps.App:
    """The same by processing time, for which the pause is a gap and then a spike."""
    app = ps.App("site")
    requests = app.stream("requests", "at TIMESTAMP NOT NULL", time=ps.processing_time())
    app.view("processed", requests.window(ps.tumbling("1 second")).agg(n=ps.count()))
    return app


def run_with_a_pause(app: ps.App) -> Run:
    """Requests arrive steadily for two minutes; the pipeline stands still for one of them."""
    run = ps.testing.run(app, now=BEGIN.isoformat())
    for second in range(ENDS_S):
        for i in range(PER_SECOND):
            at = BEGIN + dt.timedelta(seconds=second, milliseconds=1_000 * i // PER_SECOND)
            run.send("requests", at=at.isoformat())
        if STOPPED_FROM_S <= second < STOPPED_UNTIL_S:
            run._clock_us += 1_000_000  # nobody runs batches
        else:
            run.advance("1 second")
        if second == STOPPED_UNTIL_S:
            run.restart()
    run.settle()
    return run


def test_a_pause_leaves_no_gap_and_no_spike() -> None:
    """Each second has as many requests as happened in it, in the view, in the topic, and in rolling rates."""
    run = run_with_a_pause(rates())
    view = run.view("happened").rows()
    assert [row["n"] for row in view] == [PER_SECOND] * ENDS_S
    closed = [orjson.loads(record.value or b"") for record in run.topic("per-second")]
    assert [row["n"] for row in closed] == [PER_SECOND] * len(closed)
    assert ENDS_S - 4 <= len({row["window_start"] for row in closed}) == len(closed)
    assert run.view("most").rows() == [{"most": 10 * PER_SECOND}]
    assert run.dead_letters() == [], "nothing was late for it"


def test_processing_time_shows_the_pause() -> None:
    """By the clock of the machine the same input has a gap, and then a spike of a minute's requests."""
    counts = [row["n"] for row in run_with_a_pause(processed()).view("processed").rows()]
    assert sum(counts) == PER_SECOND * ENDS_S
    assert max(counts) >= PER_SECOND * (STOPPED_UNTIL_S - STOPPED_FROM_S)
    assert len(counts) <= ENDS_S - (STOPPED_UNTIL_S - STOPPED_FROM_S) + 2
