"""Work that fails for some rows in a way that nobody foresaw: these rows are left out, the others used."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.engine.letters.culprits import CALLS_MAX, TRIES, Guard
from penstock.errors import CorruptError, FlowError


def table(count: int) -> pa.Table:
    return pa.table({"n": list(range(count))})


@settings(max_examples=examples(60))
@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.integers(0, 3))
def test_rows_that_work_fails_for_are_left_out(count: int, bad: set[int], pairs: int) -> None:
    """Those that fail alone are found; rows that fail together only are refused, too, never the pipeline."""
    together = {0, 1} if pairs == 3 else set()

    def work(rows: pa.Table) -> list[int]:
        numbers = rows.column("n").to_pylist()
        if bad & set(numbers) or (together and together <= set(numbers)):
            raise ValueError(f"no {min(bad | together)}")
        return numbers

    found, refused = Guard(stops=False)("work", work, table(count))
    left_out = [n for one in refused for n in one.rows.column("n").to_pylist()]
    assert sorted(found + left_out) == list(range(count))
    if not together:
        assert set(left_out) == bad & set(range(count))
        assert found == [n for n in range(count) if n not in bad]
    assert all("ValueError: no" in text for one in refused for text in one.reason.to_pylist())


def test_work_that_fails_at_first_is_tried_again() -> None:
    """What passes at a later attempt refuses nothing."""
    calls: list[int] = []

    def work(rows: pa.Table) -> int:
        calls.append(len(rows))
        if len(calls) < TRIES:
            raise RuntimeError("not yet")
        return len(rows)

    assert Guard(stops=False)("work", work, table(9)) == (9, [])
    assert calls == [9] * TRIES


def test_a_search_ends() -> None:
    """Work that fails for all of very many rows takes a bounded number of calls."""
    calls: list[int] = []

    def work(rows: pa.Table) -> int:
        calls.append(len(rows))
        if len(rows):
            raise RuntimeError("never")
        return 0

    found, [refused] = Guard(stops=False)("work", work, table(100_000))
    assert found == 0
    assert len(refused.rows) == 100_000
    assert len(calls) <= 2 * CALLS_MAX


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (MemoryError(), False),
        (OSError(28, "No space left on device"), False),
        (CorruptError("bytes"), False),
        (ValueError("rows"), True),
    ],
)
def test_errors_that_are_no_rows_fault_pass(error: Exception, stops: bool) -> None:
    """The machine's errors and damage end the batch, and any error does if the user wants that."""

    def work(rows: pa.Table) -> int:
        raise error

    with pytest.raises(type(error)):
        Guard(stops=stops)("work", work, table(3))


def explode(rows: pa.Table) -> pa.Table:
    if "boom" in rows.column("s").to_pylist():
        raise KeyError("boom")
    return rows


def exploding(rows: pa.Table, state: pa.Table, until: Any) -> tuple[pa.Table, pa.Table]:
    if "boom" in rows.column("s").to_pylist():
        raise KeyError("boom")
    return rows.select(["user", "s", "at"]), state


def program(kind: str, on_error: str = "dead-letter") -> ps.App:
    app = ps.App("culprits", on_error=on_error)
    rows = app.stream(
        "t", "user STRING, s STRING, at TIMESTAMP", time=ps.event_time("at", lateness="0 seconds")
    )
    if kind == "map":
        rows.map_batches(explode, "user STRING, s STRING, at TIMESTAMP").to("out")
    else:
        made = rows.process(
            exploding,
            per="user",
            state="seen BIGINT",
            schema="user STRING, s STRING, at TIMESTAMP",
            time="at",
        )
        made.to("out")
    app.view("n", rows.group_by("s").agg(n=ps.count()))
    return app


@pytest.mark.parametrize("kind", ["map", "process"])
def test_a_function_that_raises_for_a_row_does_not_stop_the_pipeline(kind: str) -> None:
    """Its rows (of a keyed function, those of the key) are dead letters with the error; the rest is used."""
    run = ps.testing.run(program(kind))
    for i in range(30):
        s = "boom" if i % 10 == 3 else "fine"
        run.send("t", user=f"user {i}", s=s, at=f"12:00:{i:02d}")
    run.send("t", user="last", s="last", at="13:00:00")
    run.settle()
    assert len(run.topic("out")) == (28 if kind == "map" else 27)  # the last one waits
    letters = run.dead_letters()
    assert len(letters) == 3
    assert all("KeyError: 'boom'" in one.headers["penstock.reason"] for one in letters)
    assert {row["s"]: row["n"] for row in run.view("n").rows()} == {
        "fine": 27,
        "boom": 3,
        "last": 1,
    }


def restless(rows: pa.Table, state: pa.Table, until: Any) -> tuple[pa.Table, pa.Table]:
    """Counts rows; of `stuck` it leaves the timer where it is, of `raises` it fails when it is woken."""
    given = rows.column("user").to_pylist()
    kept = dict(zip(state.column("user").to_pylist(), state.column("n").to_pylist(), strict=True))
    if not given and "raises" in kept:
        raise KeyError("boom")
    users = sorted({*kept, *given})
    at = rows.schema.field("at").type
    first = pa.scalar(0, pa.int64()).cast(at)
    wakes = [first if user in ("stuck", "raises") else None for user in users]
    numbers = [kept.get(user, 0) + given.count(user) for user in users]
    made = pa.table({"user": users, "n": numbers, "wake": pa.array(wakes, at)})
    return rows.select(["user", "at"]), made


@pytest.mark.parametrize(
    ("user", "reason"), [("stuck", "to move 'wake' on"), ("raises", "KeyError: 'boom'")]
)
def test_a_timer_that_fails_does_not_stop_the_pipeline(user: str, reason: str) -> None:
    """The key's state is a dead letter, once, and stays; it is woken no more until it asks for it again."""
    app = ps.App("culprits")
    rows = app.stream(
        "t", "user STRING, at TIMESTAMP", time=ps.event_time("at", lateness="0 seconds")
    )
    how = {"state": "n BIGINT, wake TIMESTAMP", "wake": "wake"}
    made = rows.process(restless, per="user", schema="user STRING, at TIMESTAMP", time="at", **how)
    made.to("out")
    run = ps.testing.run(app)
    for minute, name in enumerate(["fine", user, "fine", "last"]):
        run.send("t", user=name, at=f"12:{minute:02d}:00")
        run.settle()
    assert [orjson.loads(one.value)["user"] for one in run.topic("out")] == ["fine", user, "fine"]
    [letter] = run.dead_letters()
    assert reason in letter.headers["penstock.reason"]
    assert orjson.loads(letter.value)["user"] == user
    run.send("t", user=user, at="12:10:00")
    run.send("t", user="last", at="12:20:00")
    run.settle()
    assert len(run.dead_letters()) == 2, "it failed again, as it asked again to be woken"


def test_a_program_may_want_to_stop() -> None:
    """`on_error="stop"` ends the pipeline with the function's error."""
    run = ps.testing.run(program("map", "stop"))
    run.send("t", user="a", s="boom", at="12:00:00")
    with pytest.raises(FlowError, match="KeyError: 'boom'"):
        run.settle()
    with pytest.raises(FlowError, match="on_error='dead-letter' or 'stop'; found 'ignore'"):
        ps.App("culprits", on_error="ignore")


def test_no_row_is_no_culprit() -> None:
    """Work that fails without any row is no row's fault."""

    def work(rows: pa.Table) -> int:
        raise ValueError(str(len(rows)))

    with pytest.raises(ValueError, match="0"):
        Guard(stops=False)("work", work, table(0))
    bad, _ = Guard(stops=False).search("work", lambda _: None, 5)
    assert np.array_equal(bad, np.zeros(0, np.int64))
