"""From a view's rows to the lines of a chart: the newest windows, the largest keys.

The page gets a bounded answer however many keys and windows a view has: at most `top` lines of at
most `windows` points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.serve.shown.values import kind, plain_values

TOP_MAX: Final = 24  # lines: more can't be distinguished by eye
WINDOWS_MAX: Final = 2_000  # points of a line: more than a screen has pixels for
_WINDOW_COLUMNS: Final = ("window_start", "window_end")


class Line(TypedDict):
    """A line of a chart.

    Attributes:
        key: its label.
        total: the sum of what it shows, without signs.
        values: by window; None: the key has no row in it.
    """

    key: str
    total: float
    values: list[float | None]


class Lines(TypedDict):
    """The lines of a chart, as JSON.

    Attributes:
        keys: the view's key columns.
        measures: the columns that can be drawn.
        measure: the one that is drawn; None: there is none.
        keys_total: how many keys have rows in these windows.
        every_ms: from one window's start to the next one's. Windows without any row are left out: two starts
            further apart have a gap. None: there are no windows.
        windows: start and end of each.
        series: the lines, the largest first.
    """

    keys: list[str]
    measures: list[str]
    measure: str | None
    keys_total: int
    every_ms: float | None
    windows: list[list[str | None]]
    series: list[Line]


def key_columns(table: pa.Table, keys: Sequence[str] | None = None) -> list[str]:
    """Which columns of a view are its keys.

    Views put keys before aggregates. So where nobody says (`keys` is None) it is the shortest run of
    columns, the last text among them, that identifies the rows of a window.
    """
    names = [name for name in table.column_names if name not in _WINDOW_COLUMNS]
    if keys is not None:
        return [name for name in names if name in keys]
    texts = [i for i, name in enumerate(names) if kind(table.schema.field(name).type) != "number"]
    least = texts[-1] + 1 if texts else 0
    bounds = [name for name in _WINDOW_COLUMNS if name in table.column_names]
    for count in range(least, len(names) if bounds else least):
        by = [*bounds, *names[:count]]
        if table.group_by(by).aggregate([]).num_rows == table.num_rows:
            return names[:count]
    return names[:least]


def measures(table: pa.Table, keys: Sequence[str]) -> list[str]:
    """The columns that a chart can draw: numbers that are neither window bounds nor keys."""
    return [
        field.name
        for field in table.schema
        if field.name not in _WINDOW_COLUMNS
        and field.name not in keys
        and kind(field.type) == "number"
    ]


def series(
    table: pa.Table,
    *,
    keys: Sequence[str] | None = None,
    every_us: int | None = None,
    measure: str | None = None,
    top: int = 8,
    windows: int = 240,
    range_us: int | None = None,
    from_us: int | None = None,
    to_us: int | None = None,
) -> Lines:
    """The lines of a view's chart.

    Args:
        table: the view's rows, in any order.
        keys: the view's key columns; None guesses.
        every_us: from one window's start to the next one's; None takes what the rows say.
        measure: the column to draw; None takes the first number.
        top: how many keys, the largest by the sum over the windows shown.
        windows: how many of the newest windows.
        range_us: only windows that begin less than this before the newest one begins; None: all.
        from_us: only windows that begin then or later; None: all.
        to_us: only windows that begin before then; None: all.

    Raises:
        UserError: the view has no such number.
    """
    key_names = key_columns(table, keys)
    names = measures(table, key_names)
    if measure is not None and measure not in names:
        raise UserError(f"expected a measure among {', '.join(names) or 'none'}; found {measure!r}")
    if "window_start" not in table.column_names or not names or table.num_rows == 0:
        return _empty(key_names, names, measure or (names[0] if names else None))
    measure = measure or names[0]
    starts = np.sort(pc.unique(table["window_start"]).cast(pa.int64()).to_numpy())
    if from_us is not None:
        starts = starts[starts >= from_us]
    if to_us is not None:
        starts = starts[starts < to_us]
    starts = starts[-min(windows, WINDOWS_MAX) :]
    if not len(starts):
        return _empty(key_names, names, measure)
    if range_us is not None:
        starts = starts[starts > starts[-1] - range_us]
    at = table["window_start"].cast(pa.int64()).to_numpy()
    table = table.filter(pa.array((at >= starts[0]) & (at <= starts[-1])))
    column = np.searchsorted(starts, table["window_start"].cast(pa.int64()).to_numpy())
    values = table[measure].cast(pa.float64()).to_numpy()
    group, labels = _groups(table, key_names)
    return {
        "keys": key_names,
        "measures": names,
        "measure": measure,
        "keys_total": len(labels),
        "every_ms": (every_us or _every_us(table, starts)) / 1_000,
        "windows": _bounds(table, starts),
        "series": _lines(group, labels, column, values, len(starts), min(top, TOP_MAX)),
    }


def _empty(keys: list[str], names: list[str], measure: str | None) -> Lines:
    return {
        "keys": keys,
        "measures": names,
        "measure": measure,
        "keys_total": 0,
        "every_ms": None,
        "windows": [],
        "series": [],
    }


def _every_us(table: pa.Table, starts: np.ndarray) -> int:
    """The distance of windows as far as rows show: the least, but no more than a window's size."""
    least = [int(np.diff(starts).min())] if len(starts) > 1 else []
    if "window_end" in table.column_names:
        ends = table["window_end"].cast(pa.int64()).to_numpy()
        least.append(int((ends - table["window_start"].cast(pa.int64()).to_numpy()).min()))
    return min(least, default=1)


def _groups(table: pa.Table, keys: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The group of each row, and each group's label."""
    if not keys:
        return np.zeros(table.num_rows, np.int64), [""]
    texts = []
    for name in keys:
        values = pa.array([_label(v) for v in plain_values(pc.unique(table[name]))], pa.string())
        encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        texts.append(values.take(encoded.indices))
    separator = pa.array([" · "] * table.num_rows, pa.string())
    label = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, separator)
    encoded = label.dictionary_encode()
    group: np.ndarray = encoded.indices.to_numpy().astype(np.int64)
    return group, [str(text) for text in encoded.dictionary.to_pylist()]


def _label(value: object) -> str:
    return "NULL" if value is None else str(value)


def _bounds(table: pa.Table, starts: np.ndarray) -> list[list[str | None]]:
    """Each window's start and end; the end is null where the view doesn't say."""
    if "window_end" not in table.column_names:
        return [[text, None] for text in _instants(starts)]
    first = table["window_start"].cast(pa.int64()).to_numpy()
    ends = table["window_end"].cast(pa.int64()).to_numpy()
    _, index = np.unique(first, return_index=True)
    return [list(pair) for pair in zip(_instants(starts), _instants(ends[index]), strict=True)]


def _instants(micros: np.ndarray) -> list[str]:
    return plain_values(pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")))


def _lines(
    group: np.ndarray,
    labels: list[str],
    column: np.ndarray,
    values: np.ndarray,
    width: int,
    top: int,
) -> list[Line]:
    totals = np.bincount(group, np.nan_to_num(np.abs(values)), len(labels))
    best = np.argsort(-totals, kind="stable")[:top]
    rank = np.full(len(labels), -1)
    rank[best] = np.arange(len(best))
    shown = rank[group] >= 0
    grid = np.full((len(best), width), np.nan)
    grid[rank[group[shown]], column[shown]] = values[shown]
    return [
        {
            "key": labels[g],
            "total": float(totals[g]),
            "values": [None if v != v else v for v in row.tolist()],
        }
        for g, row in zip(best.tolist(), grid, strict=True)
    ]
