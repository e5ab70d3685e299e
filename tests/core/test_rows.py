"""Rows as Python's values."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import penstock as ps
from penstock.core.rows import python_values, sorted_rows

DAYS = pa.array([0, None, 10**8, -800_000], pa.int32()).cast(pa.date32())
INSTANTS = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))


def test_days_that_python_lacks_are_texts() -> None:
    """Alone, and within values with members; other values are as they were."""
    texts = [dt.date(1970, 1, 1), None, "275760-09-13", "-221-09-04"]
    assert python_values(DAYS) == texts
    assert sorted_rows(pa.table({"d": DAYS}))[-1] == {"d": None}
    lists = pa.array([[0, 10**8], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    assert python_values(lists) == [[texts[0], texts[2]], []]
    struct = pa.StructArray.from_arrays([DAYS, pa.array([1, 2, 3, 4])], ["d", "n"])
    assert python_values(struct) == [{"d": d, "n": i + 1} for i, d in enumerate(texts)]
    keys = pa.array(["a", "b", "c", "d"])
    maps = pa.MapArray.from_arrays(pa.array([0, 4], pa.int32()), keys, DAYS)
    assert python_values(maps) == [list(zip("abcd", texts, strict=True))]


def test_instants_that_python_lacks_are_texts() -> None:
    """With Z, as they are in UTC."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    found = python_values(INSTANTS)
    assert found[0].endswith("Z")
    assert found[1] == epoch


def test_a_view_with_such_a_day_can_be_read() -> None:
    """Its other rows, too."""
    app = ps.App("years")
    t = app.stream("t", "k STRING")
    app.view("v", t.group_by("k").agg(n=ps.count()).select("k", d="TRY_CAST(k AS DATE)"))
    run = ps.testing.run(app)
    run.send("t", k="290000-01-01")
    run.send("t", k="2026-01-01")
    assert run.view("v").rows() == [
        {"k": "2026-01-01", "d": dt.date(2026, 1, 1)},
        {"k": "290000-01-01", "d": "290000-01-01"},
    ]
