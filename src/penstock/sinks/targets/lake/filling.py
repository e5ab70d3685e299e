"""Rows of files, with the values that changes leave out as unchanged: files are written as a whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.core.vectors import from_int64
from penstock.sinks.targets.contract import Batch, no_row

__all__ = ["filled", "lacking_keys"]


def lacking_keys(batch: Batch, upserts: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The keys of the rows that lack values."""
    return upserts.select(list(key)).filter(pa.array(batch.is_partial))


def filled(batch: Batch, upserts: pa.Table, key: tuple[str, ...], old: pa.Table) -> pa.Table:
    """The rows with the values of the old ones where they lack some.

    Args:
        batch: that says which lack some.
        upserts: its rows, in the columns of the files.
        key: their key.
        old: rows of the files, with the columns of the key and those that rows lack.

    Raises:
        RefusedError: there is no old row of a key.
    """
    at = np.flatnonzero(batch.is_partial)
    place = {one: i for i, one in enumerate(_keys(old, upserts.schema, key))}
    found = [place.get(one, -1) for one in _keys(upserts.take(from_int64(at)), upserts.schema, key)]
    source = np.full(len(upserts), -1)
    source[at] = found
    if -1 in found:
        first = at[found.index(-1)]
        raise no_row([name for name, some in batch.kept.items() if some[first]])
    for name, some in batch.kept.items():
        column, i = upserts.column(name), upserts.schema.get_field_index(name)
        both = pa.chunked_array(
            [*column.chunks, *old.column(name).cast(column.type).chunks], column.type
        )
        rows = np.where(some, len(upserts) + source, np.arange(len(upserts)))
        upserts = upserts.set_column(i, upserts.schema.field(i), both.take(from_int64(rows)))
    return upserts


def _keys(rows: pa.Table, schema: pa.Schema, key: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Keys as Python's values; times as numbers, as Python has none after the year 9999."""
    columns = []
    for name in key:
        column = rows.column(name).cast(schema.field(name).type)
        if pa.types.is_temporal(column.type):
            whole = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
            column = column.cast(whole)
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))
