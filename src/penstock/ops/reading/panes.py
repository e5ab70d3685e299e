"""Panes of the windows that a batch touches, as a grid: a row for each key, a column for each pane.

Where keys have windows that overlap, most of them are touched together, and share their panes. They are
looked up once each, and summed over spans (`penstock.state.spans`), not once for each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.windows import Window
from penstock.state.layout import WINDOW, Layout, Value, concat, windows
from penstock.state.spans import spans

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """The panes of some windows.

    Attributes:
        window: how they hop.
        place: the layout of windows and keys.
        touched: the windows, with their keys.
        keys: each key once, with the window 0.
        key_of: int64[touched], the number of each window's key.
        begin_us: where the first pane begins.
        width: panes of a key.
    """

    window: Window
    place: Layout
    touched: pa.RecordBatch
    keys: pa.RecordBatch
    key_of: Vector
    begin_us: int
    width: int

    @staticmethod
    def of(window: Window, place: Layout, touched: pa.RecordBatch) -> Grid | None:
        """The grid of some windows; None where they share so few panes that it would be the larger one."""
        if not window.paned or window.calendar is not None or not len(touched):
            return None
        starts = windows(touched)
        begin, end = int(starts.min()), int(starts.max()) + window.size_us
        width = (end - begin) // window.pane_us
        ids, first = place.grouping(_anywhen(place, touched))
        if len(first) * width > len(touched) * (window.size_us // window.pane_us):
            return None
        keys = _anywhen(place, touched).take(vectors.from_int64(first))
        return Grid(window, place, touched, keys, ids.astype(np.int64), begin, width)

    def panes(self) -> pa.RecordBatch:
        """All panes: sorted, each once."""
        starts = self.begin_us + np.arange(self.width) * self.window.pane_us
        columns = [vectors.from_int64(np.repeat(starts, len(self.keys)))]
        every = vectors.from_int64(np.tile(np.arange(len(self.keys)), self.width))
        columns += [column.take(every) for column in self.keys.columns[1:]]
        return pa.RecordBatch.from_arrays(columns, schema=self.place.schema)

    def sums(self, values: Sequence[Value], panes: pa.RecordBatch) -> tuple[pa.RecordBatch, Vector]:
        """Combines panes over windows.

        Args:
            values: the columns to combine.
            panes: rows in panes, in any order; of keys and panes of the grid, or others, which are left out.

        Returns:
            Rows with the columns of values; and for each window the number of its row, or -1.
        """
        both = concat([self.keys, _anywhen(self.place, panes.select(self.place.schema.names))])
        ids, first = self.place.grouping(both)
        leader = np.where(first < len(self.keys), first, -1)[ids][len(self.keys) :]
        column = (windows(panes) - self.begin_us) // self.window.pane_us
        mine = np.flatnonzero((leader >= 0) & (column >= 0) & (column < self.width))
        places = leader[mine] * self.width + column[mine]
        starts = (windows(self.touched) - self.begin_us) // self.window.pane_us
        length = self.window.size_us // self.window.pane_us
        rows = panes.take(vectors.from_int64(mine))
        return spans(values, rows, places, self.key_of * self.width + starts, length)


def _anywhen(place: Layout, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Windows and keys, all in the window 0."""
    columns = {name: rows.column(name) for name in place.schema.names}
    columns[WINDOW] = vectors.from_int64(np.zeros(len(rows), np.int64))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=place.schema)
