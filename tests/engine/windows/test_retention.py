"""What retention takes is taken back: whatever follows a table agrees with it, and sums of windows stay."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta
from tests.ops.test_aggregate import INPUT

import penstock as ps
from penstock.core.delta import EXPIRY, TIME
from penstock.core.time import instant_us
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.ops.rolling.revised_sessions import RevisedSessions

KEYS = (Column("k", INPUT.field("k").type),)
CALLS = (Aggregate("n", "count"),)
WINDOWS = {
    "tumbling": (Window("tumbling", 10, 10), WindowedAggregate),
    "hopping": (Window("hopping", 20, 5), WindowedAggregate),
    "sessions": (Window("session", 7), SessionAggregate),
    "revised": (Window("session", 7), RevisedSessions),
}
event = st.tuples(st.sampled_from("ab"), st.integers(-20, 20), st.integers(0, 30))
"""Key, time from the frontier, and by how much that moves behind it."""


@pytest.mark.parametrize("kind", sorted(WINDOWS))
@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(event, max_size=5), max_size=12),
    st.sampled_from([0, 5, 30]),
    st.integers(1, 3),
    st.integers(),
)
def test_changes_add_up_to_the_view(
    kind: str, batches: Any, keep: int, shards: int, seed: int
) -> None:
    """At every step, also of windows that come and go within a batch; no row is taken twice."""
    window, made = WINDOWS[kind]
    spec = AggregateSpec(KEYS, window, CALLS, TIME, changes=True, keep_us=keep)
    run = Contract(made(spec), shards=shards, chance=random.Random(seed))
    names = [field.name for field in INPUT]
    now = 0
    for batch in batches:
        moved = now
        rows, times, marks = [], [], []
        for k, at, more in batch:
            rows.append(tuple(k if name == "k" else None for name in names))
            times.append(now + at)
            marks.append(moved)
            moved = max(moved, now + at, moved + more)
        now = moved
        run.step([delta(INPUT, rows, times=times, marks=marks)], (now if batches else NO_TIME,))
        assert run.total() == run.view()


def events(app: ps.App, **options: Any) -> Any:
    """Clicks by user."""
    return app.stream(
        "events", "user STRING NOT NULL, n INT, at TIMESTAMP",
        time=ps.event_time("at", lateness="0 s"), **options,
    )  # fmt: skip


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["minutes", "corrected", "sessions"])
def test_what_follows_a_table_agrees_with_it(kind: str) -> None:
    """Groups of all time, joins, the first rows and topics; longer windows keep what they counted."""
    app = ps.App("p")
    stream = events(app)
    names = app.table("names", "user STRING, name STRING", key="user")
    window = {
        "minutes": lambda: stream.window(ps.tumbling("1 minute"), keep="5 minutes"),
        "corrected": lambda: stream.window(
            ps.tumbling("1 minute"), late="correct", keep="5 minutes"
        ),
        "sessions": lambda: stream.window(ps.session("1 minute"), keep="5 minutes"),
    }[kind]()
    table = window.group_by("user").agg(n=ps.sum("n"))
    app.view("table", table)
    app.view("totals", table.group_by("user").agg(n=ps.sum("n"), rows=ps.count()))
    app.view("best", table.top(2, by="n DESC", per="user"))
    app.view("named", table.join(names, on="user"))
    app.view("hours", table.window(ps.tumbling("1 hour")).agg(n=ps.sum("n")))
    table.to("upserts", emit="upserts")
    table.to("changes", emit="changes")
    run = ps.testing.run(app, cores=3)
    for user in "abc":
        run.send("names", user=user, name=user.upper())
    chance = random.Random(7)
    sent = 0
    for minute in [*range(16), 90, 91, 99]:
        for _ in range(chance.randint(0, 3)):
            hour, rest = divmod(minute, 60)
            at = f"{12 + hour}:{rest:02}:{chance.randint(0, 59):02}"
            late = len(run.dead_letters())
            run.send("events", user=chance.choice("abc"), n=chance.randint(1, 9), at=at)
            run.settle()
            sent += 1 - (len(run.dead_letters()) - late)
        if minute % 9 == 0:
            run.restart()
        rows = run.view("table").rows()
        totals: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for row in rows:
            totals[row["user"]] += row["n"]
            counts[row["user"]] += 1
        assert run.view("totals").rows() == [
            {"user": user, "n": totals[user], "rows": counts[user]} for user in sorted(counts)
        ]
        assert len(run.view("named").rows()) == len(rows)
        assert len(run.view("best").rows()) == sum(min(2, n) for n in counts.values())
        assert newest(run, "upserts") == len(rows)
        changed = [json.loads(r.value or b"") for r in run.topic("changes")]
        balance = sum({"c": 1, "u": 0, "d": -1}[one["op"]] for one in changed)
        assert balance == len(rows)
    assert len(rows) < sent / 2
    whole = sum(json.loads(r.value or b"")["n"] for r in run.log.records("events"))
    late_rows = sum(json.loads(r.value or b"")["n"] for r in run.dead_letters())
    assert sum(row["n"] for row in run.view("hours").rows()) == whole - late_rows


def newest(run: Any, topic: str) -> int:
    """How many keys a topic of upserts has."""
    found = {record.key: record.value for record in run.topic(topic)}
    return sum(value is not None for value in found.values())


def test_nothing_is_reported_without_retention() -> None:
    """Changes of a table that keeps everything have no further column."""
    spec = AggregateSpec(KEYS, Window("tumbling", 10, 10), CALLS, TIME, changes=True)
    assert EXPIRY not in Contract(WindowedAggregate(spec)).operator.traits.schema.names


@pytest.mark.parametrize("late", ["drop", "correct"])
@pytest.mark.parametrize(
    "window",
    [ps.tumbling("1 minute"), ps.hopping("2 minutes", every="1 minute"), ps.session("20 seconds")],
    ids=lambda window: window.kind,
)
def test_windows_go_though_nothing_follows(window: Window, late: Any) -> None:
    """A view that nobody else reads forgets what it keeps no longer, not a batch later."""
    app = ps.App("p")
    rows = app.stream("t", "k STRING, at TIMESTAMP", time=ps.event_time("at"))
    grouped = rows.window(window, keep="3 minutes", late=late).group_by("k")
    app.view("counts", grouped.agg(n=ps.count()))
    app.view("values", grouped.agg(ks=ps.collect("k", limit=1)))
    run = ps.testing.run(app)
    run.send("t", k="a", at="12:00:10")
    run.send("t", k="a", at="12:03:20")
    assert len(run.view("counts").rows()) == len(run.view("values").rows()) > 1
    run.send("t", k="a", at="12:04:59")
    newest = instant_us("2000-01-01T12:04:59Z")
    for view in ("counts", "values"):
        for row in run.view(view).rows():
            assert row["window_end"].timestamp() * 1e6 > newest - 180e6
    run.send("t", k="a", at="12:30:00")
    for view in ("counts", "values"):
        assert {row["window_end"].minute for row in run.view(view).rows()} <= {30, 31, 32}
