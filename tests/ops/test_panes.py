"""Windows that overlap, put together of panes: each pane is read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.delta import TIME
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    Window,
    WindowedAggregate,
)
from penstock.state import MemoryStateFiles, Value
from penstock.state.spans import spans

VALUES = (Value("n", pa.int64(), "sum"), Value("x", pa.float64(), "max"))


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-5, 5)), max_size=20),
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(1, 17),
)
def test_spans_combine_their_rows(rows: Any, starts: list[int], length: int) -> None:
    """Each once, whatever the length; a span without rows has none."""
    table = {"n": [n for _, n in rows], "x": [float(n) for _, n in rows]}
    batch = pa.RecordBatch.from_pydict(
        {"n": pa.array(table["n"], pa.int64()), "x": pa.array(table["x"], pa.float64())}
    )
    places = np.array([place for place, _ in rows], np.int64)
    made, number = spans(VALUES, batch, places, np.array(starts, np.int64), length)
    assert len(number) == len(starts)
    for start, at in zip(starts, number.tolist(), strict=True):
        inside = [n for place, n in rows if start <= place < start + length]
        found = None if at < 0 else (made["n"][at].as_py(), made["x"][at].as_py())
        assert found == ((sum(inside), float(max(inside))) if inside else None)


def test_a_batch_places_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each pane of a key in each of its windows: 60 times as many."""
    minute, keys = 60_000_000, 50
    key, x = Column("k", pa.int64(), required=True), Column("x", pa.int64(), required=True)
    aggregates = (Aggregate("s", "sum", x), Aggregate("m", "max", x))
    window = Window("hopping", 60 * minute, minute)
    operator = WindowedAggregate(AggregateSpec((key,), window, aggregates, TIME, changes=True))
    placed = []
    real = Window.windows_of

    def windows_of(*given: Any) -> Any:
        found = real(*given)
        placed.append(len(found[0]))
        return found

    monkeypatch.setattr(Window, "windows_of", windows_of)
    files, chance = MemoryStateFiles(), np.random.default_rng(1)
    state = operator.empty(files)
    rows: list[tuple[int, int, int]] = []
    for version in range(63):
        at = min(version, 60) * minute + chance.integers(0, minute, keys)
        values = chance.integers(0, 1_000, keys)
        table = pa.table({"k": np.arange(keys), "x": values})
        table = table.append_column(TIME, pa.array(at, pa.timestamp("us", "UTC")))
        rows += zip(range(keys), at.tolist(), values.tolist(), strict=True)
        placed.clear()
        parcel = operator.prepare(0, table).parcel
        step = operator.step(state, [[parcel]], Context(files, "s", version, (NO_TIME,)))
        state = step.state
    assert step.changes is not None
    assert 0 < sum(placed) <= len(step.changes) == 2 * 60 * keys
    view = {}
    for row in operator.read(state).to_pylist():
        view[row["k"], row["window_start"].timestamp()] = row["s"], row["m"]
    for change in step.changes.slice(60 * keys).to_pylist():
        start = change["window_start"].timestamp()
        begin, end = start * 1e6, start * 1e6 + 60 * minute
        inside = [v for k, at, v in rows if k == change["k"] and begin <= at < end]
        assert (change["s"], change["m"]) == (sum(inside), max(inside))
        assert view[change["k"], start] == (change["s"], change["m"])
