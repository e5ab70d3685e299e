"""What both joins of a stream with a table have in common: their columns, and putting rows together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME, WATERMARK
from penstock.core.vectors import Vector, from_int64
from penstock.ops.operator import Operator
from penstock.state.layout import HASH, WINDOW

__all__ = ["Enriching", "HowEnriched", "enriched", "enriched_schema", "others", "queries"]

HowEnriched: TypeAlias = Literal["inner", "left"]


@dataclass(frozen=True)
class Enriching(Operator):
    """A join of a stream, on port 0, with a table, on port 1.

    Args:
        how: `inner`, or `left`, which keeps rows that the table has nothing for.
        stream: the stream's columns.
        table: the table's.
        on: pairs of columns that must be equal: the stream's name, the table's.
    """

    how: HowEnriched
    stream: pa.Schema
    table: pa.Schema
    on: tuple[tuple[str, str], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The stream's columns, then the table's others."""
        return enriched_schema(self.stream, self.table, self.on, self.how)

    def key(self, port: int) -> tuple[str, ...]:
        """The columns of the stream, or of the table, that must be equal."""
        return tuple(pair[port] for pair in self.on)


def enriched_schema(
    stream: pa.Schema, table: pa.Schema, on: Sequence[tuple[str, str]], how: HowEnriched
) -> pa.Schema:
    """The stream's columns, then the table's but for those that equal one of the stream's."""
    added = [pa.field(f.name, f.type, f.nullable or how == "left") for f in others(table, on)]
    return pa.schema([*stream, *added])


def others(table: pa.Schema, on: Sequence[tuple[str, str]]) -> list[pa.Field]:
    """The table's columns that the stream doesn't bring."""
    equal = {other for _, other in on}
    return [field for field in table if field.name not in equal]


def queries(
    rows: pa.RecordBatch, hashes: Vector, names: Sequence[tuple[str, str]]
) -> pa.RecordBatch:
    """What rows look for in a bag without stretches.

    Args:
        rows: any.
        hashes: int64[n], of their keys.
        names: of each key column, what it is called in the rows, and here.
    """
    arrays = [from_int64(np.zeros(len(rows), np.int64)), from_int64(hashes)]
    arrays += [rows.column(mine) for mine, _ in names]
    return pa.RecordBatch.from_arrays(arrays, names=[WINDOW, HASH, *(name for _, name in names)])


def enriched(
    schema: pa.Schema,
    rows: pa.RecordBatch,
    found: pa.RecordBatch,
    here: Vector,
    there: Vector,
) -> pa.Table:
    """Rows of a stream with those of a table next to them.

    Args:
        schema: from `enriched_schema`.
        rows: with `$time`, perhaps `$watermark`, and the stream's columns.
        found: with the table's other columns.
        here: int64[n], positions in `rows`.
        there: int64[n], positions in `found`; -1 is NULL.
    """
    mine, missing = from_int64(here), there < 0
    other: Any = pa.array(there, mask=missing) if missing.any() else from_int64(there)
    arrays = [
        rows.column(field.name).take(mine)
        if field.name in rows.schema.names
        else found.column(field.name).take(other)
        for field in schema
    ]
    made = pa.Table.from_arrays(arrays, schema=schema)
    for name in (TIME, WATERMARK):
        if name in rows.schema.names:
            made = made.append_column(name, rows.column(name).take(mine))
    return made
