"""Rows and dead letters as records on their way out. The same rows give the same records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.partitioner import murmur2_partitions
from penstock.engine.log import Outgoing
from penstock.engine.source import DeadLetter
from penstock.flow.graph import TIME, OutputNode, Source, source_of, table_of
from penstock.formats.json import encode_rows

__all__ = ["dead_letters_outgoing", "rows_outgoing"]

SLICE_ROWS: Final = 100_000  # rows encoded at a time: bounds memory, and JSON text to 2 GiB


def rows_outgoing(
    to: OutputNode, tables: list[pa.Table], *, partitions: int, shard: int, wall_us: int
) -> Iterator[Outgoing]:
    """JSON records of rows, by partition.

    A record's key is the text of the one grouping column, a JSON object of several, and null without
    any; records without a key go to the partition of their shard. Its timestamp is the row's event time, but
    not later than the plan's clock: brokers refuse records from the future.
    """
    tables = [table for table in tables if len(table)]
    if not tables:
        return
    rows = pa.concat_tables(tables)
    # Slices of a fixed size, wherever chunks ended: a repeated batch must make the same records.
    for start in range(0, len(rows), SLICE_ROWS):
        yield from _slice_outgoing(to, rows.slice(start, SLICE_ROWS), partitions, shard, wall_us)


def _slice_outgoing(
    to: OutputNode, rows: pa.Table, partitions: int, shard: int, wall_us: int
) -> Iterator[Outgoing]:
    times_us = rows.column(TIME).combine_chunks().view(pa.int64()).to_numpy()
    times_ms = np.minimum(times_us, wall_us) // 1_000
    shown = rows.select([name for name in rows.column_names if not name.startswith("$")])
    values = encode_rows(shown)
    keys = _keys(to, shown)
    if keys is None:
        yield Outgoing(shard % partitions, None, values, times_ms)
        return
    of = murmur2_partitions(keys.cast(pa.binary()), partitions)
    of = np.where(of < 0, shard % partitions, of)  # a null key
    for partition in range(partitions):
        index = np.flatnonzero(of == partition)
        if len(index):
            take = pa.array(index, pa.int64())
            yield Outgoing(partition, keys.take(take), values.take(take), times_ms[index])


def dead_letters_outgoing(
    origin: str, letters: list[DeadLetter], *, partitions: int, wall_us: int
) -> Outgoing:
    """Dead letters as records: key and value as they were, the rest as headers."""
    topic, _, partition = origin.rpartition("/")
    headers = [
        [
            ("penstock.reason", letter.reason.encode()),
            ("penstock.topic", topic.encode()),
            ("penstock.partition", partition.encode()),
            ("penstock.offset", str(letter.offset).encode()),
        ]
        for letter in letters
    ]
    return Outgoing(
        partition=int(partition) % partitions,
        keys=pa.array([letter.key for letter in letters], pa.binary()),
        values=pa.array([letter.value for letter in letters], pa.binary()),
        timestamps_ms=np.minimum([letter.timestamp_ms for letter in letters], wall_us // 1_000),
        headers=headers,
    )


def _keys(to: OutputNode, shown: pa.Table) -> pa.Array | None:
    table = table_of(to.node)
    names: tuple[str, ...]
    if table is not None:
        names = table.keys
    else:
        source: Source = source_of(to.node)
        names = (source.key,) if source.key else ()
    names = tuple(name for name in names if name in shown.column_names)
    if not names:
        return None
    if len(names) == 1:
        return _array(pc.cast(shown.column(names[0]), pa.string()))
    return _array(encode_rows(shown.select(list(names))))


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
