"""Event times that are computed of rows, and those that are probably read in the wrong unit."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIMESTAMP
from penstock.core.time import instant_text
from penstock.expr import Expression
from penstock.flow.graph import Source
from penstock.ops.rows import Explanations, Select
from penstock.wire.columns import Records

__all__ = ["CLOCK", "DOUBTFUL_US", "computed", "doubt", "unit_hint"]

CLOCK: Final = "$clock"
"""The column of computed times, until rows have their own."""
_ROW: Final = "$row"
DOUBTFUL_US: Final = 631_152_000_000_000
"""1990-01-01: few streams have older events, and seconds that are read as milliseconds all are older."""
LIKELY_MAX_US: Final = 4_102_444_800_000_000  # 2100-01-01
_UNITS: Final = (
    ("seconds", "s", 1_000_000.0),
    ("milliseconds", "ms", 1_000.0),
    ("microseconds", "us", 1.0),
    ("nanoseconds", "ns", 0.001),
)


def computed(
    clock: Expression, rows: pa.Table, explanations: Explanations
) -> tuple[pa.Array, list[tuple[np.ndarray, Any]]]:
    """The time of each row, NULL where there is none; and which rows it can't be computed for, and why.

    Args:
        clock: the expression.
        rows: with the columns that it names.
        explanations: how many reasons may still be in DuckDB's words.
    """
    numbered = rows.append_column(_ROW, pa.array(np.arange(len(rows))))
    found, refused = Select(((CLOCK, clock),)).apply(numbered, explanations)
    times = np.zeros(len(rows), np.int64)
    missing = np.ones(len(rows), np.bool_)
    column = found.column(CLOCK).cast(TIMESTAMP).combine_chunks()
    at = found.column(_ROW).to_numpy()
    missing[at] = column.is_null().to_numpy(zero_copy_only=False)
    times[at] = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    failed = [(one.rows.column(_ROW).to_numpy(), one.reason) for one in refused]
    return pa.array(times, mask=missing).cast(TIMESTAMP), failed


def doubt(
    source: Source, records: Records, times: np.ndarray, index: np.ndarray, offsets: np.ndarray
) -> str | None:
    """A sentence about the first time before 1990 that is read from an integer; None: there is none.

    Args:
        source: the topic.
        records: of its rows.
        times: of rows, in µs.
        index: the record of each row.
        offsets: of the records.
    """
    time = source.time
    if time.source is None or not len(times) or int(times.min()) >= DOUBTFUL_US:
        return None
    first = int(np.flatnonzero(times < DOUBTFUL_US)[0])
    record = int(index[first])
    found = _integer(source, records, record)
    if found is None:
        return None
    us = int(times[first])
    likely = "Is it in another unit?"
    for name, unit, factor in _UNITS:
        if DOUBTFUL_US <= found * factor < LIKELY_MAX_US:
            likely = (
                f"In {name} it is {instant_text(int(found * factor))}: declare the column BIGINT, and write "
                f"ps.event_time(…, unit={unit!r}), in SQL WITH (unit = {unit!r})"
            )
            break
    return (
        f"expected event times after 1990 in {time.source!r} of the topic {source.topic!r}; found "
        f"{instant_text(us)}, read from the integer {found} at offset {int(offsets[record])}. {likely}"
    )


def unit_hint(us: int) -> str:
    """What an instant far in the future probably is, for the end of a message; empty: nothing is likely."""
    likely = any(DOUBTFUL_US <= us // factor < LIKELY_MAX_US for factor in (1_000, 1_000_000))
    hint = (
        ". Its number is probably of a smaller unit than it is read in: ps.event_time(…, unit='ms')"
    )
    return hint if likely else ""


def _integer(source: Source, records: Records, record: int) -> int | None:
    """The integer that a record has as its time; None: it has another value, or none that is known."""
    if source.format is not None or source.changelog is not None:
        return None
    start, length = int(records.value_start[record]), int(records.value_length[record])
    with contextlib.suppress(ValueError):
        row = json.loads(bytes(records.buffer[start : start + length]))
        clock = source.clock
        names = [source.time.column] if clock is None else sorted(clock.columns)
        for name in names:
            value = row.get(name) if isinstance(row, dict) else None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
