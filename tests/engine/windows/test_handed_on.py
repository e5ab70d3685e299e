"""Rows that an operator hands on as they come are judged by whoever reads them, as a source's are."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps

SCHEMA = "k STRING, id BIGINT NOT NULL, at TIMESTAMP"
WINDOWS = {
    "tumbling": ps.tumbling("1 minute"),
    "hopping": ps.hopping("2 minutes", every="30 seconds"),
    "session": ps.session("40 seconds"),
    "month": ps.tumbling("1 month"),
}

event = st.tuples(st.sampled_from("ab"), st.integers(0, 900))


def program(way: str) -> ps.App:
    """Windows of each kind over a stream, or over one behind an operator that changes nothing."""
    app = ps.App("p")
    rows = app.stream("t", SCHEMA, time=ps.event_time("at", lateness="20 seconds"), partitions=2)
    names = app.table("names", "k STRING, name STRING", key="k")
    if "enriched" in way:
        rows = rows.enrich(names, on="k", how="left").where("name IS NULL").select("k", "id", "at")
    if "deduplicated" in way:
        rows = rows.deduplicate("id")
    for kind, window in WINDOWS.items():
        table = rows.window(window).group_by("k").agg(n=ps.count(), ids=ps.collect("id", limit=99))
        app.view(kind, table)
        table.to(f"{kind}-closed")
    corrected = rows.window(WINDOWS["tumbling"], late="correct", keep="1 minute")
    app.view("corrected", corrected.group_by("k").agg(n=ps.count()))
    rows.window(ps.sliding("1 minute")).group_by("k").agg(n=ps.count()).to("sliding")
    rows.window(ps.count_window(3)).group_by("k").agg(s=ps.sum("id")).to("counted")
    others = rows.select("k", other="id", then="at")
    rows.join(others, on="k", within="15 seconds", how="left").to("joined")
    return app


def found(app: ps.App, events: list[tuple[str, int]], cuts: list[int]) -> dict[str, Any]:
    """All that a program gives of some events."""
    run = ps.testing.run(app)
    for i, (k, second) in enumerate(events):
        run.send("t", k=k, id=i, at=f"12:{second // 60:02}:{second % 60:02}", partition=i % 2)
        if i in cuts:
            run.settle()
    run.settle()
    results: dict[str, Any] = {view: run.view(view).rows() for view in (*WINDOWS, "corrected")}
    topics = [f"{kind}-closed" for kind in WINDOWS] + ["sliding", "counted", "joined"]
    results |= {topic: Counter(record.value for record in run.topic(topic)) for topic in topics}
    late = [json.loads(letter.value or b"")["id"] for letter in run.dead_letters()]
    counts = run.store.version(run.store.newest_version()).counts
    results["late"] = sorted(late)
    results["counts"] = sorted(counts.late_by_view.values()), sum(counts.late.values())
    return results


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(event, min_size=1, max_size=20),
    st.sampled_from(["enriched", "deduplicated", "enriched and deduplicated"]),
    st.integers(0, 2**32),
)
def test_late_rows_are_late_behind_an_operator(
    events: list[tuple[str, int]], way: str, seed: int
) -> None:
    """Views, closed rows, dead letters and counts are those of the same windows over the stream itself."""
    cuts = [i for i in range(len(events)) if random.Random(seed + i).random() < 0.3]
    assert found(program(way), events, cuts) == found(program("plain"), events, cuts)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", ["enriched", "deduplicated"])
def test_a_window_that_was_closed_stays_as_it_was(way: str) -> None:
    """A late row is one dead letter, which names all for whom it is late, and no session overlaps another."""
    run = ps.testing.run(program(way))
    for i, at in enumerate(("12:00:10", "12:05:00", "12:00:30", "12:09:00")):
        for partition in (0, 1):
            run.send("t", k="a", id=2 * i + partition, at=at, partition=partition)
        run.settle()
    assert [row["n"] for row in run.view("session").rows()] == [2, 2, 2]
    assert [row["n"] for row in run.view("tumbling").rows()] == [2, 2, 2]
    letters = run.dead_letters()
    assert sorted(json.loads(letter.value or b"")["id"] for letter in letters) == [4, 5]
    for name in ("tumbling", "hopping", "session", "corrected", "sliding", "counted", "joined"):
        assert f"for {name}" in letters[0].headers["penstock.reason"]


def test_rows_without_windows_are_never_late() -> None:
    """A topic and a count of all time have rows that come late, as they have those of a stream."""
    app = ps.App("p")
    rows = app.stream("t", SCHEMA, time=ps.event_time("at")).deduplicate("id")
    rows.to("once")
    app.view("n", rows.group_by().agg(n=ps.count()))
    run = ps.testing.run(app)
    for number, at in ((1, "12:05:00"), (2, "12:00:00"), (2, "12:00:00")):
        run.send("t", id=number, at=at)
        run.settle()
    assert run.view("n").rows() == [{"n": 2}]
    assert len(run.topic("once")) == 2
    assert run.dead_letters() == []


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=15), st.integers(0, 2**32))
def test_late_rows_beside_rows_that_are_taken_back(seconds: list[int], seed: int) -> None:
    """In windows that overlap, a row counts in those that were open before it, whatever comes beside it."""
    app = ps.App("p")
    rows = app.stream("t", "id BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    far = app.stream("far", "id BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    minutes = far.window(ps.tumbling("1 minute"), late="correct", keep="1 minute").group_by("id")
    taken_back = minutes.agg(n=ps.count()).closed().select("id", at="window_start")
    window = ps.hopping("2 minutes", every="30 seconds")
    table = (
        rows.union(taken_back)
        .window(window)
        .agg(n=ps.count(), least=ps.min("id"), ids=ps.collect("id", limit=99))
    )
    app.view("table", table)
    table.to("closed")
    table.to("changes", emit="changes")
    run = ps.testing.run(app)
    for at in ("18:00:00", "19:00:00", "18:59:10"):
        run.send("far", id=-1, at=at)
    expected: dict[int, list[int]] = {}
    newest = 0
    for i, second in enumerate(seconds):
        run.send("t", id=i, at=f"12:{second // 60:02}:{second % 60:02}")
        last = second // 30 * 30
        for start in range(last - 90, last + 1, 30):
            if start + 120 > newest or not i:
                expected.setdefault(start, []).append(i)
        newest = max(newest, second)
        if random.Random(seed + i).random() < 0.4:
            run.settle()
    noon = dt.datetime(2000, 1, 1, 12, tzinfo=dt.UTC)
    found = {
        int((row["window_start"] - noon).total_seconds()): row
        for row in run.view("table").rows()
        if row["window_start"].hour < 15
    }
    assert {start: row["ids"] for start, row in found.items()} == expected
    assert all(row["n"] == len(expected[start]) for start, row in found.items())
    assert all(row["least"] == expected[start][0] for start, row in found.items())
    closed = [json.loads(record.value or b"")["ids"] for record in run.topic("closed")]
    ended = [ids for start, ids in expected.items() if start + 120 <= newest]
    assert sorted(closed) == sorted(ended)
    there: Counter[str] = Counter()
    for record in run.topic("changes"):
        change = json.loads(record.value or b"")
        there[str(change["before"])] -= change["before"] is not None
        there[str(change["after"])] += change["after"] is not None
    assert sum((+there).values()) == sum(there.values()) == len(run.view("table").rows())
