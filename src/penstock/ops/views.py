"""Views put together from state: partial rows -> the rows that people see, and how they changed.

State holds panes; a *full* row holds all that the aggregates need of a window and key. Rows of state are
padded to full rows, panes are spread over the windows they belong to, and what belongs together is
combined. For tumbling windows without retractions all of that is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WEIGHT
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector
from penstock.ops.aggregates import COUNT, Kept, Part, Rows
from penstock.ops.partials import (
    FROM,
    GROUPS,
    Partials,
    group_layout,
    kept_traces,
    value_names,
)
from penstock.ops.reading.frequent import frequent_name, most_frequent
from penstock.ops.reading.panes import Grid
from penstock.ops.reading.values import counts_name, readings, recounted
from penstock.ops.spec import WINDOW_END, AggregateSpec
from penstock.state.layout import WINDOW, Layout, combine, concat, equal, take, windows
from penstock.state.ordered import Side, ends, ranked
from penstock.state.trace import ALWAYS, Trace


class Assembler:
    """Makes rows of the view from rows of state."""

    def __init__(self, spec: AggregateSpec) -> None:
        self.spec = spec
        self.kept = kept_traces(spec)
        self.readings = {name: readings(spec, kept) for name, kept in self.kept.items()}
        self.lifted = {
            name: [part for parts, _ in some for part in parts]
            for name, some in self.readings.items()
        }
        self.direct = not spec.window.paned and not self.kept  # state is the view
        full = group_layout(spec, kept=True)
        self.panes = full  # full rows, still in panes
        self.full = Layout(full.keys, full.values)  # full rows, in windows
        self.place = Layout(full.keys, ())

    # --- reading ------------------------------------------------------------------------------

    def scan(
        self, traces: Mapping[str, Trace], lo_us: int | None, hi_us: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The view's rows of windows that start in [lo_us, hi_us)."""
        if self.direct:
            for rows in traces[GROUPS].scan(lo_us, hi_us):
                yield self.finish(rows)
            return
        low = max(traces[GROUPS].low_us, ALWAYS if lo_us is None else lo_us)
        reach = None
        if hi_us is not None:
            reach = self.spec.window.reach(hi_us)
        groups = [self.panes.padded(rows) for rows in traces[GROUPS].scan(low, reach)]
        if not groups:
            return
        parts = [self._spread(concat(groups), low, hi_us).select(self.full.schema.names)]
        for name, kept in self.kept.items():
            values = [_there(rows) for rows in traces[name].scan(low, reach)]
            if values:
                rows = self._spread(concat(values), low, hi_us)
                ids, first = self.place.grouping(rows)
                place = rows.select(self.place.schema.names).take(vectors.from_int64(first))
                parts.append(self._lifted(kept, self.lifted[name], rows, ids, place))
        yield self.finish(self.full.group(concat(parts), whole=True))

    def finish(self, full: pa.RecordBatch) -> pa.RecordBatch:
        """Full rows as people see them; groups without rows are left out."""
        count = vectors.raw(full.column(COUNT))
        if (count <= 0).any():
            full = full.filter(pa.array(count > 0))
        columns = [] if self.spec.window.kind == "none" else self._bounds(full)
        columns += results(self.spec, full)
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schema)

    def _bounds(self, full: pa.RecordBatch) -> list[pa.Array]:
        start = full.column(WINDOW)
        end = vectors.from_int64(self.spec.window.ends(windows(full)))
        type_ = pa.timestamp("us", "UTC")
        return [start.view(type_), end.view(type_)]

    def _lifted(
        self,
        kept: Kept,
        parts: Sequence[Part],
        rows: pa.RecordBatch,
        ids: Vector,
        place: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """Full rows of no count that have parts of kept values, one for each place.

        Args:
            kept: what is kept.
            parts: that are lifted from it.
            rows: of its trace, in windows.
            ids: int32[rows], the number of each row's place.
            place: windows and keys.
        """
        names = zip(kept.columns, value_names(kept), strict=True)
        columns = {column.name: rows.column(name) for column, name in names}
        values = Rows(columns, vectors.raw(rows.column(COUNT)), ids, len(place))
        made = dict(zip(place.schema.names, place.columns, strict=True))
        for part in parts:
            fields = zip(part.value.fields, part.lift(values), strict=True)
            made |= {field.name: column for field, column in fields}
        return self.full.padded(pa.RecordBatch.from_pydict(made))

    # --- panes and windows --------------------------------------------------------------------

    def _spread(self, rows: pa.RecordBatch, lo_us: int, hi_us: int | None) -> pa.RecordBatch:
        """Rows in panes as rows in each window that starts in [lo_us, hi_us)."""
        if not self.spec.window.paned:
            return rows
        which, window = self._windows_of(rows, lo_us, hi_us)
        at = pa.array(which)
        columns: list[Any] = [vectors.from_int64(window)]
        columns += [take(column, at) for column in rows.columns[1:]]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _windows_of(
        self, rows: pa.RecordBatch, lo_us: int, hi_us: int | None
    ) -> tuple[Vector, Vector]:
        """For rows in panes, each window they count in: (row, window's start)."""
        least = None
        if FROM in rows.schema.names:
            least = vectors.raw(rows.column(FROM))
        which, starts = self.spec.window.windows_of(windows(rows), least)
        keep = starts >= lo_us
        if hi_us is not None:
            keep &= starts < hi_us
        return which[keep], starts[keep]

    # --- changes ------------------------------------------------------------------------------

    def changes(
        self, traces: Mapping[str, Trace], delta: Partials
    ) -> tuple[pa.Table, dict[str, pa.RecordBatch]]:
        """How a delta changes the view: old rows with weight -1, then new rows with +1.

        Returns:
            The changes, and deltas of the traces of `remembered`.
        """
        remembered: dict[str, pa.RecordBatch] = {}
        if self.direct:
            touched = delta.tables[GROUPS]
            values = self.full.schema.names[2 + len(self.full.keys) :]
            which, found = traces[GROUPS].lookup(touched, values)
            mine = np.arange(len(touched))
            old = self._fold(touched, found, which)
            new = self._fold(
                touched, [*found, touched.select(values)], np.concatenate([which, mine])
            )
        else:
            touched = self._touched(traces, delta)
            old, new, remembered = self._reassemble(traces, delta, touched)
        return self._difference(old, new), remembered

    def _fold(
        self, touched: pa.RecordBatch, parts: list[pa.RecordBatch], which: Vector
    ) -> tuple[Vector, pa.RecordBatch]:
        """Combines rows by their number in `touched`: the numbers that occur, and a full row for each."""
        if not len(which):
            return which, self.full.empty()
        seen = np.zeros(len(touched), np.bool_)
        seen[which] = True
        numbers = np.flatnonzero(seen)
        ids = (np.cumsum(seen, dtype=np.int32) - np.int32(1))[which]
        rows = concat(parts)
        columns = _at(touched.select(self.place.schema.names), numbers).columns
        for value in self.full.values:
            columns += combine(value, rows, ids, len(numbers))
        return numbers, pa.RecordBatch.from_arrays(columns, schema=self.full.schema)

    def _difference(
        self, old: tuple[Vector, pa.RecordBatch], new: tuple[Vector, pa.RecordBatch]
    ) -> pa.Table:
        sides = []
        for numbers, full in (old, new):
            seen = np.flatnonzero(vectors.raw(full.column(COUNT)) > 0)
            sides.append((numbers[seen], self.finish(_at(full, seen))))
        (before, was), (after, now) = sides
        where = np.full(1 + max(before.max(initial=-1), after.max(initial=-1)), -1)
        where[before] = np.arange(len(before))
        i = where[after]
        j = np.flatnonzero(i >= 0)
        i = i[j]
        same = self._same(was, i, now, j)
        gone, come = np.ones(len(was), np.bool_), np.ones(len(now), np.bool_)
        gone[i[same]] = False
        come[j[same]] = False
        parts = [
            weighted(_at(was, np.flatnonzero(gone)), -1),
            weighted(_at(now, np.flatnonzero(come)), 1),
        ]
        return pa.Table.from_batches(parts)

    def _same(self, was: pa.RecordBatch, i: Vector, now: pa.RecordBatch, j: Vector) -> Vector:
        """bool[n]: whether row i[n] before and j[n] after, of the same group, look the same."""
        return same_results(self.spec, was, i, now, j)

    def _touched(self, traces: Mapping[str, Trace], delta: Partials) -> pa.RecordBatch:
        """The windows and keys that a delta may change: sorted, each once."""
        low = traces[GROUPS].low_us
        parts = []
        for table in delta.tables.values():
            rows = table.select(self.place.schema.names)
            if self.spec.window.paned:
                which, starts = self._windows_of(table, low, None)
                columns = [vectors.from_int64(starts)]
                columns += [take(table.column(f.name), pa.array(which)) for f in self.place.schema][
                    1:
                ]
                rows = pa.RecordBatch.from_arrays(columns, schema=self.place.schema)
            parts.append(rows)
        return self.place.group(concat(parts), whole=False)

    def _wanted(self, touched: pa.RecordBatch) -> pa.RecordBatch:
        """The panes and keys that make up some windows: sorted, each once."""
        window = self.spec.window
        if not window.paned:
            return touched
        which, starts = window.panes_of(windows(touched))
        columns = [vectors.from_int64(starts)]
        columns += [take(touched.column(f.name), pa.array(which)) for f in self.place.schema][1:]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.place.schema)
        return self.place.group(rows, whole=False)

    def _reassemble(
        self, traces: Mapping[str, Trace], delta: Partials, touched: pa.RecordBatch
    ) -> tuple[Side, Side, dict[str, pa.RecordBatch]]:
        """The touched rows of the view before and after; and what is remembered of them, by the trace."""
        low = traces[GROUPS].low_us
        grid = Grid.of(self.spec.window, self.place, touched)
        wanted = self._wanted(touched) if grid is None else grid.panes()
        sides: list[list[Side]] = [[], []]
        everything = np.arange(len(touched), dtype=np.int64)
        _, found = traces[GROUPS].lookup(wanted)
        for side, rows in zip(sides, (found, [*found, delta.tables[GROUPS]]), strict=True):
            if rows:
                panes = self.panes.padded(concat(rows))
                if grid is not None:
                    panes = self._summed(grid, panes, touched, side)
                here, number = self._in_touched(panes, touched, low)
                side.append((number, here.select(self.full.schema.names)))
        remembered: dict[str, pa.RecordBatch] = {}
        for name, kept in self.kept.items():
            trace, change = traces[name], delta.tables[name]
            for parts, source in self.readings[name]:
                if source == "all":
                    found_sides = self._whole(trace, change, wanted, touched)
                elif source == "counts":
                    counts = counts_name(name)
                    number = self._number(touched, change)
                    was, now, remembered[counts] = recounted(
                        trace, traces[counts], change, touched, number
                    )
                    for side, count in zip(sides, (was, now), strict=True):
                        side.append((everything, self._counted(parts, count, touched)))
                    continue
                elif source == "often":
                    number, often = self._number(touched, change), frequent_name(name)
                    most = max(part.often or 0 for part in parts)
                    old, new, remembered[often] = most_frequent(
                        trace, traces[often], change, touched, number, most
                    )
                    found_sides = (old, new)
                elif source == "ranks":
                    number = self._number(touched, change)
                    for part in parts:
                        both = self._ranked(part, trace, change, touched, number)
                        for side, of_side in zip(sides, both, strict=True):
                            side.append((everything, of_side))
                    continue
                else:
                    number = self._number(touched, change)
                    found_sides = ends(trace, touched, change, number, source)
                for side, (number, values) in zip(sides, found_sides, strict=True):
                    if len(values):
                        ids = number.astype(np.int32)
                        made = self._lifted(kept, parts, values, ids, touched)
                        side.append((everything, made))
        before, after = (self._sum(side, touched) for side in sides)
        return before, after, remembered

    def _summed(
        self, grid: Grid, panes: pa.RecordBatch, touched: pa.RecordBatch, side: list[Side]
    ) -> pa.RecordBatch:
        """Adds to a side the sums of panes that count in all of their windows; the others are given back."""
        partly = np.zeros(len(panes), np.bool_)
        if FROM in panes.schema.names:
            firsts = self.spec.window.firsts(windows(panes))
            partly = vectors.raw(panes.column(FROM)) > firsts
        whole = panes.filter(pa.array(~partly))
        made, number = grid.sums(self.full.values, whole)
        there = np.flatnonzero(number >= 0)
        place = touched.take(vectors.from_int64(there))
        values = made.take(vectors.from_int64(number[there]))
        columns = [*place.columns, *values.columns]
        side.append((there, pa.RecordBatch.from_arrays(columns, schema=self.full.schema)))
        return panes.filter(pa.array(partly))

    def _whole(
        self, trace: Trace, delta: pa.RecordBatch, wanted: pa.RecordBatch, touched: pa.RecordBatch
    ) -> tuple[Side, Side]:
        """All kept values of the touched rows, before and after."""
        _, found = trace.lookup(wanted)

        def side(parts: list[pa.RecordBatch]) -> Side:
            rows = _there(trace.layout.group(concat(parts), whole=True))
            here, number = self._in_touched(rows, touched, trace.low_us)
            return number, here

        return side([*found, delta.slice(0, 0)]), side([*found, delta])

    def _ranked(
        self,
        part: Part,
        trace: Trace,
        delta: pa.RecordBatch,
        touched: pa.RecordBatch,
        number: Vector,
    ) -> Iterator[pa.RecordBatch]:
        """Full rows of no count with a part that is made of values by their ranks, before and after."""
        assert part.ranks is not None, "it is read so"
        tie = trace.layout.tie
        assert tie is not None, "it is the value"
        for found in ranked(trace, touched, delta, number, part.ranks.of):
            values = vectors.numbers(found.codes, tie.type)
            columns = [*touched.columns, *part.ranks.made(found.counts, values)]
            names = [*touched.schema.names, *(field.name for field in part.value.fields)]
            yield self.full.padded(pa.RecordBatch.from_arrays(columns, names=names))

    def _counted(
        self, parts: Sequence[Part], counts: Vector, touched: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Full rows of no count that have the number of values."""
        made = dict(zip(touched.schema.names, touched.columns, strict=True))
        made |= {part.value.name: vectors.from_int64(counts) for part in parts}
        return self.full.padded(pa.RecordBatch.from_pydict(made))

    def _sum(
        self, parts: list[tuple[Vector, pa.RecordBatch]], touched: pa.RecordBatch
    ) -> tuple[Vector, pa.RecordBatch]:
        if not parts:
            return np.zeros(0, np.int64), self.full.empty()
        numbers = np.concatenate([number for number, _ in parts])
        return self._fold(touched, [rows for _, rows in parts], numbers)

    def _in_touched(
        self, rows: pa.RecordBatch, touched: pa.RecordBatch, low_us: int
    ) -> tuple[pa.RecordBatch, Vector]:
        """Of rows in panes, those in touched windows; and the number of each one's: int32[rows]."""
        spread = self._spread(rows, low_us, None)
        number = self._number(touched, spread)
        mine = np.flatnonzero(number >= 0)
        return spread.take(vectors.from_int64(mine)), number[mine].astype(np.int32)

    def _number(self, touched: pa.RecordBatch, rows: pa.RecordBatch) -> Vector:
        """The position in `touched` of each row's window and key, or -1."""
        both = concat([touched, rows.select(self.place.schema.names)])
        ids, first = self.place.grouping(both)
        leader = np.where(
            first < len(touched), first, -1
        )  # the group's first row: touched come first
        return np.asarray(leader[ids][len(touched) :])


def _there(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The kept values that are there."""
    return rows.filter(pa.array(vectors.raw(rows.column(COUNT)) > 0))


def _at(rows: pa.RecordBatch, numbers: Vector) -> pa.RecordBatch:
    """The rows of some sorted numbers; no copy where these are all."""
    return rows if len(numbers) == len(rows) else rows.take(vectors.from_int64(numbers))


def weighted(rows: pa.RecordBatch, weight: int) -> pa.RecordBatch:
    """Rows with a `$weight`."""
    return rows.append_column(WEIGHT, vectors.from_int64(np.full(len(rows), weight, np.int64)))


def results(spec: AggregateSpec, full: pa.RecordBatch) -> list[pa.Array]:
    """The keys and the aggregates of rows that have all that these need."""
    keys = [full.column(key.name) for key in spec.keys]
    return [*keys, *(aggregate.function.result(full) for aggregate in spec.aggregates)]


def same_results(
    spec: AggregateSpec, was: pa.RecordBatch, i: Vector, now: pa.RecordBatch, j: Vector
) -> Vector:
    """bool[n]: whether the aggregates of row i[n] before and of row j[n] after look the same."""
    alike = np.ones(len(i), np.bool_)
    for aggregate in spec.aggregates:
        alike &= equal(was.column(aggregate.name), i, now.column(aggregate.name), j)
    return alike


def timed(rows: pa.Table) -> pa.Table:
    """Rows of windows with `$time`: each happens in the last instant of its window."""
    ends = vectors.raw(vectors.contiguous(rows.column(WINDOW_END)))
    return rows.append_column(TIME, vectors.from_int64(ends - 1).view(TIMESTAMP))
