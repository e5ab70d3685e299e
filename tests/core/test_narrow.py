"""Narrow columns widen to exactly what they were."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.narrow import narrow, widen

INT64 = st.integers(-(2**63), 2**63 - 1)
SPANS = st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63])


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pa.Array:
    base, span = draw(INT64), draw(SPANS)
    within = st.integers(base, min(base + span, 2**63 - 1))
    values = pa.array(draw(st.lists(within, min_size=rows, max_size=rows)), pa.int64())
    kind = draw(st.sampled_from(["int", "time", "float", "nulls", "text", "small"]))
    if kind == "time":
        return values.view(pa.timestamp("us", "UTC"))
    if kind == "float":
        return values.view(pa.float64())
    if kind == "nulls":
        return pa.array([None if v % 3 == 0 else v for v in values.to_pylist()], pa.int64())
    if kind == "text":
        return values.cast(pa.string())
    if kind == "small":
        return pa.array([v % 100 for v in values.to_pylist()], pa.int16())
    return values


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 20))
    return pa.record_batch({f"c{i}": draw(columns(rows)) for i in range(draw(st.integers(1, 4)))})


@given(batches(), st.integers(0, 3))
def test_widened_rows_are_the_same_to_the_bit(batch: pa.RecordBatch, skip: int) -> None:
    sliced = batch.slice(min(skip, len(batch)))
    back = widen(narrow(sliced), batch.schema)
    assert back.schema == batch.schema
    for made, kept in zip(back.columns, sliced.columns, strict=True):
        if pa.types.is_float64(kept.type):  # NaNs, too, bit by bit
            made, kept = made.view(pa.int64()), kept.view(pa.int64())
        assert made.equals(kept)


def test_a_state_like_batch_takes_a_third() -> None:
    rows = 10_000
    at = 1_700_000_000_000_000 + 60_000_000 * (np.arange(rows) % 30)
    batch = pa.record_batch(
        {
            "window": pa.array(at),
            "user": pa.array(np.arange(rows) % 5_000),
            "n": pa.array(np.ones(rows, np.int64)),
            "error": pa.array(np.zeros(rows)),
        }
    )
    assert narrow(batch).nbytes * 4 < batch.nbytes
