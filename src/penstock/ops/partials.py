"""The map side of a windowed aggregate: rows -> one partial row per pane and key.

Partials are what state is made of, so the map side, the shuffle, a step and a merge all combine the same
columns: the parts of the aggregates (`penstock.ops.aggregates`), such as `$n` rows, `$count.x` values that
are not NULL, `$sum.x` (with its rounding error). For parts that can't be combined, further tables keep
each (group, value) with its weight.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.delta import WEIGHT
from penstock.core.keys import cut, hash_columns
from penstock.core.narrow import narrow, widen
from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.ops.aggregates import COUNT, ROWS, Column, Kept, Rows
from penstock.ops.operator import Prepared
from penstock.ops.spec import AggregateSpec
from penstock.ops.windows import LATE
from penstock.state.layout import (
    HASH,
    WINDOW,
    Layout,
    hashes,
    take,
)

GROUPS: Final = "groups"  # the trace of partial rows
VALUES: Final = "values."  # + a number: a trace of (group, values) -> weight
FROM: Final = "$from"  # the first window that rows of this pane count in
VALUE: Final = "$value."  # + a number: a column of values
ORDER: Final = "$order"  # where a row of several values lies among those of its group
TIE: Final = "$values"  # the hash of several values

Hash: TypeAlias = Callable[[Sequence[pa.Array], int], Vector]


def standard_hash(columns: Sequence[pa.Array], rows: int) -> Vector:
    """The hash that state is sorted by."""
    return hash_columns(columns, rows)


@dataclass(frozen=True)
class Partials:
    """A delta of an operator's traces: sorted and consolidated, by the trace's name."""

    tables: Mapping[str, pa.RecordBatch]

    @property
    def rows(self) -> int:
        """Partial rows in all tables."""
        return sum(len(table) for table in self.tables.values())

    def cut(self, shards: int) -> list[Partials]:
        """The rows of each shard, still sorted."""
        parts: list[dict[str, pa.RecordBatch]] = [{} for _ in range(shards)]
        for name, table in self.tables.items():
            for part, rows in zip(parts, cut(table, hashes(table), shards), strict=True):
                part[name] = rows
        return [Partials(part) for part in parts]

    def to_bytes(self) -> bytes:
        """One blob: for each table its length (int64) and an Arrow IPC stream of narrow columns."""
        blobs: list[Any] = []
        for table in map(narrow, self.tables.values()):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_batch(table)
            blob = sink.getvalue()
            blobs += [struct.pack("<q", blob.size), memoryview(blob)]
        return b"".join(blobs)


def group_layout(spec: AggregateSpec, *, kept: bool, exact: bool = False) -> Layout:
    """The layout of partial rows; with or without the parts that are made of kept values."""
    values = tuple(part.value for part in spec.parts if kept or part.kept is None)
    keys = tuple(pa.field(key.name, key.type) for key in spec.keys)
    tie = pa.field(FROM, pa.int64()) if spec.partly_late else None
    return Layout(keys, values, tie, exact=exact)


def value_names(kept: Kept) -> list[str]:
    """The names of kept columns in their trace."""
    return [f"{VALUE}{i}" for i in range(len(kept.columns))]


def value_layout(spec: AggregateSpec, kept: Kept, *, exact: bool) -> Layout:
    """The layout of a trace of kept values.

    Where rows may be late for some of a pane's windows, a value is kept once for each first window that
    it counts in. Of two columns, the second one is what the values of a group are in order by.
    """
    fields = [
        pa.field(name, column.type)
        for name, column in zip(value_names(kept), kept.columns, strict=True)
    ]
    groups = group_layout(spec, kept=False, exact=exact)
    if groups.tie is not None:
        fields.append(groups.tie)
    if len(fields) == 1:
        return Layout(groups.keys, (ROWS.value,), fields[0], exact=exact)
    tie = pa.field(TIE, pa.int64())
    order = None if spec.window.paned else pa.field(ORDER, pa.int64())
    return Layout(groups.keys, (ROWS.value,), tie, carried=tuple(fields), order=order, exact=exact)


def kept_traces(spec: AggregateSpec) -> dict[str, Kept]:
    """What values are kept, by the trace's name."""
    return {f"{VALUES}{i}": kept for i, kept in enumerate(spec.kept)}


def layouts(spec: AggregateSpec, *, exact: bool) -> dict[str, Layout]:
    """The layouts of an operator's traces, by name."""
    traces = kept_traces(spec).items()
    values = {name: value_layout(spec, kept, exact=exact) for name, kept in traces}
    return {GROUPS: group_layout(spec, kept=False, exact=exact), **values}


class Mapper:
    """Makes partials of rows.

    Args:
        spec: what is computed.
        hash_: of key columns; a test may give a weak one.
    """

    def __init__(self, spec: AggregateSpec, hash_: Hash) -> None:
        self.spec = spec
        self.hash = hash_
        numbers = len(spec.keys) == 1 and vectors.is_fixed(spec.keys[0].type)
        self.layouts = layouts(spec, exact=numbers and hash_ is standard_hash)
        self.kept = kept_traces(spec)
        self.parts = [part for part in spec.parts if part.kept is None]

    def partials(self, rows: pa.Table | pa.RecordBatch, first_open: Vector | None) -> Partials:
        """See `WindowedAggregate.partials`."""
        weights = self._weights(rows)
        times = self._times(rows)
        columns = {name: checked(rows, column) for name, column in self.spec.inputs.items()}
        if first_open is not None and (first_open == LATE).any():
            keep = pa.array(np.flatnonzero(first_open != LATE))
            columns = {name: take(column, keep) for name, column in columns.items()}
            times, first_open = times[keep], first_open[keep]
            weights = None if weights is None else weights[keep]
        window = self.spec.window
        placed = first_open if window.kind == "tumbling" else None
        panes = window.panes(times) if placed is None else placed
        keys = [columns[key.name] for key in self.spec.keys]
        place = {WINDOW: vectors.from_int64(panes)}
        place[HASH] = vectors.from_int64(self.hash(keys, len(times)))
        place |= {key.name: columns[key.name] for key in self.spec.keys}
        if self.layouts[GROUPS].tie is not None:
            firsts = window.firsts(times) if first_open is None else first_open
            place[FROM] = vectors.from_int64(firsts)
        tables = {GROUPS: self._groups(place, columns, weights)}
        for name, kept in self.kept.items():
            values = [columns[column.name] for column in kept.columns]
            tables[name] = self._values(self.layouts[name], place, values, weights)
        return Partials(tables)

    @property
    def parcels(self) -> PartialParcels:
        """How partials travel."""
        return PartialParcels(self.layouts)

    def _weights(self, rows: pa.Table | pa.RecordBatch) -> Vector | None:
        """int64[rows]; None where every row counts once."""
        if WEIGHT not in rows.schema.names:
            return None
        if not self.spec.retracts:
            raise SchemaError(
                f"expected rows without {WEIGHT!r}, as the operator was declared insert-only; found it. "
                "Declare its input with retracts=True"
            )
        return vectors.raw(vectors.contiguous(rows.column(WEIGHT)))

    def _times(self, rows: pa.Table | pa.RecordBatch) -> Vector:
        if self.spec.time is None:
            return np.zeros(len(rows), np.int64)
        return checked_times(rows, self.spec.time)

    def _groups(
        self, place: dict[str, pa.Array], columns: dict[str, pa.Array], weights: Vector | None
    ) -> pa.RecordBatch:
        layout = self.layouts[GROUPS]
        placed = pa.RecordBatch.from_pydict(place)
        ids, first = layout.grouping(placed)
        at = pa.array(first)
        out = [take(placed.column(name), at) for name in placed.schema.names]
        rows = Rows(columns, weights, ids, len(first))
        for part in self.parts:
            out += part.lift(rows)
        made = pa.RecordBatch.from_arrays(out, schema=layout.schema)
        return layout.drop_empty(made, whole=False) if weights is not None else made

    def _values(
        self,
        layout: Layout,
        place: dict[str, pa.Array],
        values: list[pa.Array],
        weights: Vector | None,
    ) -> pa.RecordBatch:
        counts = np.ones(len(values[0]), np.int64) if weights is None else weights
        columns = {**place, COUNT: pa.array(counts)}
        columns |= {f"{VALUE}{i}": value for i, value in enumerate(values)}
        if layout.carried:
            carried = [columns[field.name] for field in layout.carried]
            columns[TIE] = vectors.from_int64(hash_columns(carried, len(counts)))
        if layout.order is not None:
            columns[ORDER] = vectors.from_int64(vectors.coarse_codes(values[-1]))
        names = layout.schema.names
        rows = pa.RecordBatch.from_arrays([columns[n] for n in names], schema=layout.schema)
        for i, value in enumerate(values):
            if value.null_count:
                rows = rows.filter(pc.is_valid(rows.column(f"{VALUE}{i}")))
        return layout.group(rows, whole=False)


def checked(rows: pa.Table | pa.RecordBatch, column: Column) -> pa.Array:
    """A column of rows, as it was declared; of a float's zeros and NaNs there is one each.

    Raises:
        SchemaError: it does not fit the declaration.
    """
    found = vectors.contiguous(rows.column(column.name))
    if found.type != column.type:
        raise SchemaError(f"expected {column.name!r} as {column.type}; found {found.type}")
    if column.required and found.null_count:
        raise SchemaError(
            f"expected no NULL in {column.name!r}, which is declared NOT NULL; found {found.null_count}"
        )
    if vectors.is_float(found.type):  # one zero and one NaN, whichever came first
        found = pc.add(found, pa.scalar(0.0, found.type))
        if pc.any(pc.is_nan(found)).as_py():
            nan = pa.scalar(float("nan"), found.type)
            found = pc.if_else(pc.is_nan(found), nan, found)
    return found


def checked_times(rows: pa.Table | pa.RecordBatch, name: str) -> Vector:
    """The event times in a column: int64[rows], us.

    Raises:
        SchemaError: it is no such column, or a row has no event time.
    """
    column = vectors.contiguous(rows.column(name))
    if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
        raise SchemaError(f"expected the event time {name!r} as timestamp[us]; found {column.type}")
    if column.null_count:
        raise SchemaError(
            f"expected an event time in each row; found {column.null_count} NULLs in {name!r}. "
            "Remove such rows first"
        )
    return vectors.raw(column)


@dataclass(frozen=True)
class PartialParcels:
    """How partials travel; operators with these prepare them by themselves.

    Attributes:
        layouts: of the tables, by name.
    """

    layouts: Mapping[str, Layout]

    def prepared(self, rows: pa.Table, key: Sequence[str]) -> Prepared:
        """See `Parcels`."""
        raise NotImplementedError

    def combine(self, parts: Sequence[Partials]) -> Partials:
        """One delta of several, in their order."""
        if len(parts) == 1:
            return parts[0]
        return Partials(
            {
                name: layout.merge([part.tables[name] for part in parts], whole=False)
                for name, layout in self.layouts.items()
            }
        )

    def parse(self, blob: bytes | memoryview | pa.Buffer) -> Partials:
        """Reads what `Partials.to_bytes` gave.

        Raises:
            SchemaError: the blob is of another operator.
        """
        data = pa.py_buffer(blob)
        tables, at = {}, 0
        for name, layout in self.layouts.items():
            size = struct.unpack_from("<q", data, at)[0]
            with pa.ipc.open_stream(data.slice(at + 8, size)) as stream:
                found = stream.read_next_batch()
            if found.schema.names != layout.schema.names:
                raise SchemaError(
                    f"expected partials with the columns {layout.schema.names}; found "
                    f"{found.schema.names}"
                )
            tables[name] = widen(found, layout.schema)
            at += 8 + size
        return Partials(tables)
