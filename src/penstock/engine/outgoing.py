"""Rows and dead letters as records on their way out. The same rows give the same records."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import delta
from penstock.core.delta import TIME
from penstock.core.partitioner import murmur2_partitions
from penstock.engine.encoding import Registry, RowEncoder, encoder_for, key_texts
from penstock.engine.letters.culprits import Guard
from penstock.engine.log import Outgoing
from penstock.flow.graph import Origin, OutputNode
from penstock.ops.rows import Refused

__all__ = [
    "from_bytes",
    "joined",
    "rows_outgoing",
    "to_bytes",
    "writer_name",
]

JOINED_BYTES_MAX: Final = 64 << 20  # of the values of parts that are written as one
SLICE_ROWS: Final = 100_000  # rows encoded at a time: bounds memory, and JSON text to 2 GiB


def rows_outgoing(
    to: OutputNode,
    tables: list[pa.Table],
    registry: Registry,
    *,
    partitions: int,
    shard: int,
    wall_us: int,
    guard: Guard,
    refused: list[Refused],
) -> Iterator[Outgoing]:
    """Records of rows, or of changes, by partition.

    Rows that can't be encoded are left out, and added to `refused`.

    Records without a key go to the partition of their shard; `key_texts` says what keys are. A record's
    timestamp is the row's event time, or the plan's clock where that is earlier (brokers refuse records from
    the future) or there is none.
    """
    encoder = encoder_for(to, registry)
    tables = [delta.followed(table) for table in tables]
    tables = [table for table in tables if len(table)]
    if not tables:
        return
    rows = pa.concat_tables(tables)
    if TIME in rows.column_names:
        times_us = rows.column(TIME).combine_chunks().view(pa.int64()).to_numpy()
        times_ms = np.minimum(times_us, wall_us) // 1_000
    else:
        times_ms = np.full(len(rows), wall_us // 1_000)
    weights = delta.weights(rows)
    shown = rows.select([name for name in rows.column_names if not name.startswith("$")])
    if weights is None:
        before, after = None, np.arange(len(rows))
    else:
        before, after = _paired(to, shown, weights)
    # Slices of a fixed size, wherever chunks ended: a repeated batch must make the same records.
    for start in range(0, len(after), SLICE_ROWS):
        old = None if before is None else before[start : start + SLICE_ROWS]
        new = after[start : start + SLICE_ROWS]
        at = new if old is None else np.where(new < 0, old, new)
        made: list[tuple[pa.Array | None, pa.Array]] = []
        work = functools.partial(_record_some, made, encoder, to, shown, old, new)
        bad, reasons = guard.search(to.topic, work, len(new))
        if len(bad):
            left_out = shown.take(_index(at[bad]))
            refused.append(Refused(left_out, pa.array(reasons, pa.string()), key=to.keys or None))
            at = np.delete(at, bad)
        keys, values = made[0]
        at_ms = times_ms[at]
        yield from _partitioned(keys, values, at_ms, partitions, shard)


def _paired(to: OutputNode, rows: pa.Table, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Changes as records: for each the row before and the row after, or -1.

    A row that goes and one of the same key that comes are one record.
    """
    gone = np.repeat(np.flatnonzero(weights < 0), -weights[weights < 0])
    come = np.repeat(np.flatnonzero(weights > 0), weights[weights > 0])
    keys = key_texts(to, rows)
    if keys is None:
        none = np.full(max(len(gone), len(come)), -1)
        return (
            np.concatenate([gone, none[: len(come)]]),
            np.concatenate([none[: len(gone)], come]),
        )
    found = pc.index_in(keys.take(_index(come)), value_set=keys.take(_index(gone)))
    at = found.fill_null(-1).to_numpy()
    left = np.ones(len(gone), np.bool_)
    left[at[at >= 0]] = False
    only_gone = gone[left]
    before = np.where(at >= 0, gone[at] if len(gone) else at, -1)
    return (
        np.concatenate([only_gone, before]),
        np.concatenate([np.full(len(only_gone), -1), come]),
    )


def _record_some(
    made: list[tuple[pa.Array | None, pa.Array]],
    encoder: RowEncoder,
    to: OutputNode,
    rows: pa.Table,
    before: np.ndarray | None,
    after: np.ndarray,
    index: np.ndarray | None,
) -> None:
    """Puts keys and values of some of a slice's records into `made`."""
    if index is not None:
        before, after = None if before is None else before[index], after[index]
    made[:] = [_records(encoder, to, rows, before, after)]


def _records(
    encoder: RowEncoder,
    to: OutputNode,
    rows: pa.Table,
    before: np.ndarray | None,
    after: np.ndarray,
) -> tuple[pa.Array | None, pa.Array]:
    """Keys and values of some records."""
    if before is None:
        some = rows.take(_index(after))
        return encoder.keys(some), encoder.values(some)
    keys = encoder.keys(rows.take(_index(np.where(after < 0, before, after))))
    if to.emission == "changes":
        return keys, encoder.changes(rows, before, after)
    there = after >= 0
    values = encoder.values(rows.take(_index(after[there])))
    return keys, _array(values.take(pa.array(np.cumsum(there) - 1, mask=~there)))


def _partitioned(
    keys: pa.Array | None, values: pa.Array, at_ms: np.ndarray, partitions: int, shard: int
) -> Iterator[Outgoing]:
    if keys is None:
        yield Outgoing(shard % partitions, None, values, at_ms)
        return
    of = murmur2_partitions(keys.cast(pa.binary()), partitions)
    of = np.where(of < 0, shard % partitions, of)  # a null key
    for partition in range(partitions):
        index = np.flatnonzero(of == partition)
        if len(index):
            take = pa.array(index, pa.int64())
            yield Outgoing(partition, keys.take(take), values.take(take), at_ms[index])


def writer_name(to: OutputNode, origin: Origin, shard: int) -> str:
    """What the writer of an origin's shard to a topic is known by."""
    return f"{to.topic}/{origin.identity}/{shard}"


def to_bytes(outgoing: Outgoing) -> bytes:
    """Rows on their way out as Arrow IPC, for another lane to write."""
    columns = {"values": outgoing.values, "at_ms": pa.array(outgoing.timestamps_ms)}
    if outgoing.keys is not None:
        columns["keys"] = outgoing.keys
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_bytes(partition: int, data: Any) -> Outgoing:
    """What `to_bytes` gave."""
    with pa.ipc.open_stream(data) as stream:
        batch = stream.read_next_batch()
    keys = batch.column("keys") if "keys" in batch.schema.names else None
    return Outgoing(partition, keys, batch.column("values"), batch.column("at_ms").to_numpy())


def joined(parts: Sequence[Outgoing]) -> Iterator[Outgoing]:
    """The same records in fewer parts: a request to the log costs more than copying a few."""
    kept: list[Outgoing] = []
    size = 0
    for part in parts:
        like = not kept or (
            part.values.type == kept[0].values.type
            and (None if part.keys is None else part.keys.type)
            == (None if kept[0].keys is None else kept[0].keys.type)
        )
        if kept and (not like or size + part.values.nbytes > JOINED_BYTES_MAX):
            yield _joined(kept)
            kept, size = [], 0
        kept.append(part)
        size += part.values.nbytes
    if kept:
        yield _joined(kept)


def _joined(parts: list[Outgoing]) -> Outgoing:
    if len(parts) == 1:
        return parts[0]
    keys = [part.keys for part in parts if part.keys is not None]
    return Outgoing(
        parts[0].partition,
        pa.concat_arrays(keys) if keys else None,
        pa.concat_arrays([part.values for part in parts]),
        np.concatenate([part.timestamps_ms for part in parts]),
    )


def _index(rows: np.ndarray) -> pa.Array:
    return pa.array(rows, pa.int64())


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
