"""Functions over keyed state: rows in order of event time, timers on time, however the log is cut."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Arriving, Contract, delta

import penstock as ps
from penstock.errors import FlowError
from penstock.ops.keyed.process import Process

TS = pa.timestamp("us", "UTC")
INPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("what", pa.string()), ("n", pa.int64()), ("at", TS)])
STATE = pa.schema([("k", pa.string()), ("total", pa.int64()), ("last", TS), ("wake", TS)])
PAUSE = 20
LATENESS = 15


def us(value: dt.datetime | None) -> int | None:
    """An instant as microseconds."""
    zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return None if value is None else (value - zero) // dt.timedelta(microseconds=1)


def sums(rows: pa.Table, state: pa.Table, until: dt.datetime) -> tuple[pa.Table, pa.Table]:
    """Running sums of each key; a key that pauses is told, and forgotten."""
    kept = {row["k"]: row for row in state.to_pylist()}
    out = []
    end = us(until)
    assert end is not None

    def pause(k: Any, row: Any) -> None:
        at = us(row["last"])
        assert at is not None
        out.append((k, "pause", row["total"], at + PAUSE))
        del kept[k]

    for row in rows.to_pylist():
        k, at = row["k"], us(row["$time"])
        assert at is not None
        assert at < end
        if k in kept and (us(kept[k]["wake"]) or 0) <= at:
            pause(k, kept[k])
        total = kept.get(k, {"total": 0})["total"] + row["n"]
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at)
        wake = moment + dt.timedelta(microseconds=PAUSE)
        kept[k] = {"k": k, "total": total, "last": moment, "wake": wake}
        out.append((k, "sum", total, at))
    for k, row in list(kept.items()):
        if (us(row["wake"]) or 0) < end:
            pause(k, row)
    columns = [pa.array([one[i] for one in out], f.type) for i, f in enumerate(OUTPUT)]
    return pa.table(columns, OUTPUT.names), pa.Table.from_pylist(list(kept.values()), STATE)


def operator(function: Any = sums) -> Process:
    """The function over keys."""
    return Process(INPUT, ("k",), OUTPUT, "at", STATE, "wake", "sums", function)


class WithFunction(Contract):
    """A spec has no function: it is put in again."""

    def __init__(self, function: Any = sums, **options: Any) -> None:
        super().__init__(operator(None), timed=True, **options)
        self.operator = operator(function)


def naive(rows: list[tuple[int, str, int]], until: int) -> Counter[Any]:
    """All rows in time, sorted, at once."""
    found: Counter[Any] = Counter()
    last: dict[str, tuple[int, int]] = {}
    for at, k, n in sorted(rows, key=lambda row: row[0]):
        if at >= until:
            continue
        total, before = last.get(k, (0, at))
        if at - before >= PAUSE:
            found[before + PAUSE, k, "pause", total, before + PAUSE] += 1
            total = 0
        last[k] = (total + n, at)
        found[at, k, "sum", total + n, at] += 1
    for k, (total, at) in last.items():
        if at + PAUSE < until:
            found[at + PAUSE, k, "pause", total, at + PAUSE] += 1
    return found


row = st.tuples(st.integers(-40, 150), st.sampled_from("abc"), st.integers(1, 3))


@settings(max_examples=examples(60))
@given(st.lists(st.lists(row, max_size=8), max_size=7), st.integers(1, 3), st.integers())
def test_a_function_sees_rows_in_order_of_time(batches: list[Any], shards: int, seed: int) -> None:
    """What comes out is what the sorted rows give at once; timers go off on time, late rows are told."""
    run = WithFunction(shards=shards, chance=random.Random(seed))
    stream = Arriving(run, INPUT, LATENESS)
    instants: set[tuple[int, str]] = set()
    for batch in batches:
        rows = []
        for at, k, n in batch:
            if (at, k) in instants:  # the order of rows of one instant is nobody's business
                continue
            instants.add((at, k))
            rows.append((at, (k, n)))
        stream.step(rows)
        plain = Counter(
            {(at, k, what, n, us(t)): c for (at, k, what, n, t), c in run.total().items()}
        )
        assert plain == naive([(at, *row) for at, row in stream.in_time], stream.frontier_us)


MISTAKES = [
    (lambda rows, state, until: 1 / 0, "ZeroDivisionError"),
    (lambda rows, state, until: rows, "two pyarrow.Tables"),
    (lambda rows, state, until: (rows, state), "with the columns k, what"),
    (
        lambda rows, state, until: (
            OUTPUT.empty_table(),
            pa.table([["x"], [1], [None], [None]], STATE),
        ),
        "another key",
    ),
    (
        lambda rows, state, until: (
            OUTPUT.empty_table(),
            pa.table([["a", "a"], [1, 2], [None, None], [None, None]], STATE),
        ),
        "one row of state a key",
    ),
    (
        lambda rows, state, until: (
            OUTPUT.empty_table(),
            pa.table([["a"], [1], [None], pa.array([5], TS)], STATE),
        ),
        "to move 'wake' on",
    ),
]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("function", "message"), MISTAKES)
def test_a_function_that_does_wrong_is_reported(function: Any, message: str) -> None:
    """Its name, what was expected and what was found."""
    run = WithFunction(function)
    with pytest.raises(FlowError, match=message) as caught:
        run.step([delta(INPUT, [("a", 1)], times=[1])], [10])
    assert "sums" in str(caught.value)


def test_rows_out_of_their_time_are_refused() -> None:
    """What comes out must not lie before what was given already."""

    def old(rows: pa.Table, state: pa.Table, until: dt.datetime) -> Any:
        n = len(rows)
        at = pa.array([0] * n, TS)
        return pa.table([["a"] * n, ["x"] * n, [1] * n, at], OUTPUT), state

    run = WithFunction(old)
    run.step([delta(INPUT, [("a", 1)], times=[1])], [10])
    with pytest.raises(FlowError, match="not before"):
        run.step([delta(INPUT, [("a", 1)], times=[12])], [20])


def count(rows: pa.Table, state: pa.Table, until: dt.datetime) -> Any:
    """Numbers each user's rows."""
    kept = dict(zip(*(state.column(name).to_pylist() for name in ("user", "n")), strict=True))
    out = []
    for user, at in zip(*(rows.column(name).to_pylist() for name in ("user", "at")), strict=True):
        kept[user] = kept.get(user, 0) + 1
        out.append({"user": user, "nth": kept[user], "at": at})
    schema = pa.schema([("user", pa.string()), ("nth", pa.int64()), ("at", TS)])
    return (
        pa.Table.from_pylist(out, schema),
        pa.table({"user": list(kept), "n": pa.array(kept.values(), pa.int64())}),
    )


def test_a_pipeline_with_a_function_goes_on_after_a_restart() -> None:
    """State and waiting rows are there again; what comes out is windowed as any stream."""
    app = ps.App("p")
    events = app.stream(
        "events",
        "user STRING NOT NULL, at TIMESTAMP",
        time=ps.event_time("at", lateness="1 minute"),
    )
    numbered = events.process(
        count,
        per="user",
        schema="user STRING, nth BIGINT, at TIMESTAMP",
        time="at",
        state="n BIGINT",
    )
    numbered.to("numbered")
    app.view("most", numbered.window(ps.tumbling("1 hour")).agg(most=ps.max("nth")))
    run = ps.testing.run(app, cores=2)
    for minute in (5, 4, 6, 7, 6, 9, 30):
        run.send("events", user="ab"[minute % 2], at=f"12:{minute:02}:00")
        run.settle()
        run.restart()
    assert run.view("most").rows()[0]["most"] == 3
    assert len(run.topic("numbered")) == 6


def test_two_functions_of_one_name_are_distinguished() -> None:
    """State is kept under the name."""
    app = ps.App("p")
    events = app.stream("events", "user STRING NOT NULL, at TIMESTAMP", time=ps.event_time("at"))
    kinds = {"schema": "user STRING, at TIMESTAMP", "time": "at", "state": "n BIGINT"}
    events.process(lambda rows, state, until: (rows, state), per="user", name="f", **kinds)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="different names"):
        events.process(lambda rows, state, until: (state, rows), per="user", name="f", **kinds)  # type: ignore[arg-type]
