"""Dead letters over changes of a program: a record has one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest

import penstock as ps
from penstock.testing import Run


def program(columns: str = "", views: tuple[str, ...] = (), **how: Any) -> ps.App:
    """Windows, a condition that may fail, and further views; of more columns, if there are some."""
    app = ps.App("p", **how)
    time = ps.event_time("at", lateness="0 s")
    events = app.stream(
        "events", f"id BIGINT NOT NULL, u STRING, at TIMESTAMP{columns}", time=time, partitions=2
    )
    app.view("m", events.window(ps.tumbling("1 minute")).group_by("u").agg(n=ps.count()))
    events.where("CAST(u AS INT) > 0").to("out")
    if "hours" in views:
        app.view("hours", events.window(ps.tumbling("1 hour")).group_by("u").agg(n=ps.count()))
    if "sessions" in views:
        app.view("sessions", events.window(ps.session("1 minute")).group_by("u").agg(n=ps.count()))
    return app


def feed(run: Run, partition: int = 0) -> None:
    """A good record, a failing condition, a late one, one that is no JSON, one without a key."""
    for text, at in (("1", "12:00"), ("x", "14:30"), ("1", "12:00")):
        run.send("events", partition=partition, id=1, u=text, at=f"{at}:00")
    run.send_raw("events", b"{oops", partition=partition)
    run.send_raw("events", b'{"u":"1"}', partition=partition)


def times(run: Run) -> Counter[Any]:
    """How many letters each record has."""
    places = ("penstock.topic", "penstock.partition", "penstock.offset")
    return Counter(tuple(one.headers[name] for name in places) for one in run.dead_letters())


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("columns", ["", ", country STRING"])
def test_a_record_has_one_letter_over_upgrades(columns: str, *, rebuild: bool) -> None:
    """Whatever changes: a column, views, or all state is computed again; counts follow."""
    run = ps.testing.run(program())
    feed(run)
    before = times(run)
    assert len(before) == 4
    views = ("hours", "sessions")
    for steps in (1, 2, 3, None):  # an upgrade that dies, and another one
        run.change(program(columns, views), rebuild=rebuild, steps=steps)
        assert times(run) == before
    run.change(program(columns, views[:1]))
    feed(run, partition=1)
    assert set(times(run).values()) == {1}
    assert len(times(run)) == 8
    counts = asdict(run.store.version(run.store.newest_version()).counts)
    assert sum(counts["dead"].values()) == 8


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("after", ["plan", "output", "transaction", "commit"])
def test_a_batch_that_was_begun_writes_no_letter_twice(after: Any, *, transactions: bool) -> None:
    """The program before died within it; the changed one runs it again."""
    run = ps.testing.run(program(transactions=transactions))
    feed(run)
    run.settle()
    feed(run, partition=1)
    assert run.crash(after)
    run.change(program(", country STRING", ("hours",), transactions=transactions))
    feed(run)
    assert len(times(run)) == 4 + 4 + 5, "what comes at 12:00 again is late"
    assert set(times(run).values()) == {1}


def test_a_topic_that_was_made_anew_has_letters_of_its_own() -> None:
    """Its records have the places of others, and are other records."""
    run = ps.testing.run(program())
    feed(run)
    run.settle()
    run.log._topics["events"] = [[], []]
    run.log._ids["events"] = "another"
    for text in (b"{else", b"{"):
        run.send_raw("events", text, partition=0)
    run.change(program(", country STRING"), rebuild=True)
    assert [times(run)["events", "0", at] for at in "01234"] == [1, 2, 1, 1, 1]
    assert {one.value for one in run.dead_letters()} >= {b"{else", b"{"}


def test_a_view_that_is_added_has_the_records_that_count() -> None:
    """Those with another key than the stream's don't, whether anything relies on it or not."""

    def keyed(*views: str) -> ps.App:
        app = ps.App("p")
        rows = app.stream("rows", "user STRING NOT NULL, item STRING", key="user", partitions=2)
        for name in views:
            app.view(name, rows.group_by(name).agg(n=ps.count()))
        return app

    def fed(*views: str) -> Run:
        run = ps.testing.run(keyed(*views))
        run.send("rows", user="ann", item="x")
        row = json.dumps({"user": "bob", "item": "x"}).encode()
        run.send_raw("rows", row, key="somebody else")
        run.settle()
        return run

    changed = fed("user")
    changed.change(keyed("user", "item"))
    for run in (changed, fed("user", "item"), fed("item")):
        assert run.view("item").rows() == [{"item": "x", "n": 1}]
        assert len(run.dead_letters()) == 1
