"""DataFrames into topics: each micro-batch once, all of it or nothing.

A task can't know in which batch its rows end up being stored, and Spark may run a batch again, in
other parts and in another order. So a stream's tasks only make records and hand them to the driver,
and its commit of batch b is one transaction, which holds the records and an offset of the group
`penstock.spark.QUERY`: b + 1. A batch whose number that offset has passed was stored already. The
query's id is that of its checkpoint, and the transactional id, so a process that runs the same query later
ends what a killed driver left open, and fences it.

A plain `df.write` has no batch to repeat. Its tasks write transactions of their own, which the driver
ends when all of them have succeeded.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.client import Client, TransactionalProducer
from penstock.client.groups import GroupAdmin
from penstock.core.keymatch import key_texts
from penstock.core.partitioner import murmur2_partitions
from penstock.core.schema import JSON
from penstock.errors import LimitError, UserError
from penstock.formats.json import encode_rows
from penstock.spark.options import Options
from penstock.spark.topics import log_address

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchSink", "StreamSink"]

GROUP_PREFIX: Final = "penstock.spark."
BATCH_BYTES_MAX: Final = 512 << 20
"""Bytes of the records of one micro-batch: the driver holds them a few times over."""
CHUNK_ROWS: Final = 100_000
"""Rows sent at a time."""
WRITE_TIMEOUT_MS: Final = 900_000
"""How long a plain write may take: Kafka's largest transaction timeout."""
QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's name for the local property of a stream's tasks."""
RECORD_COLUMNS: Final = ("key", "value", "timestamp", "partition")
_FIELDS: Final[list[Any]] = [
    pa.field("key", pa.large_binary()),
    pa.field("value", pa.large_binary()),
    pa.field("timestamp", pa.int64()),
    pa.field("partition", pa.int32()),
]
_RECORDS: Final = pa.schema(_FIELDS)


@dataclass(frozen=True)
class _Made(WriterCommitMessage):
    """A task's records, as an Arrow stream.

    Attributes:
        query: the stream's id.
        records: compressed.
        size: bytes of the records.
    """

    query: str
    records: bytes
    size: int


@dataclass(frozen=True)
class _Open(WriterCommitMessage):
    """A task's transaction, written and not ended; None: it had no rows."""

    transaction: tuple[str, tuple[int, int]] | None


@dataclass(frozen=True)
class _Maker:
    """Makes records of rows.

    Rows with a column `value` are records as Kafka's connector takes them: `value` and, if they are
    there, `key`, `timestamp` and `partition`. All others are written whole, as JSON; the option `key`
    names the columns of the key.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]

    @staticmethod
    def of(options: Options, schema: StructType) -> _Maker:
        names = tuple(schema.names)
        said = options.get("key")
        if "value" in names:
            unknown = sorted(set(names) - set(RECORD_COLUMNS))
            if unknown or said:
                raise UserError(
                    f"expected columns of {', '.join(RECORD_COLUMNS)} besides 'value', and no option "
                    f"'key'; found {', '.join(unknown) or 'key=' + repr(said)}. Rename 'value' to "
                    "write rows as JSON"
                )
            for one in schema.fields:
                kind = one.dataType.simpleString()
                if one.name in {"key", "value"} and kind not in {"string", "binary"}:
                    raise UserError(
                        f"expected {one.name!r} as STRING or BINARY; found {kind}. Rename it to write "
                        "rows as JSON"
                    )
            return _Maker(names, ())
        keys = tuple(one.strip() for one in said.split(",")) if said else ()
        missing = [one for one in keys if one not in names]
        if missing:
            raise UserError(f"expected a key among {', '.join(names)}; found {missing[0]!r}")
        kind = schema[keys[0]].dataType.simpleString() if len(keys) == 1 else ""
        if kind.startswith(("array<", "map<", "struct<", "variant")):
            raise UserError(f"expected a key that isn't nested; found {keys[0]!r} as {kind}")
        return _Maker(names, keys)

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The records of rows, in the columns of `_RECORDS`."""
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if len(rows):
                yield self._taken(rows) if "value" in self.names else self._whole(rows)

    def _taken(self, rows: pa.Table) -> pa.Table:
        columns: list[Any] = []
        for one in _RECORDS:
            if one.name not in self.names:
                columns.append(pa.nulls(len(rows), one.type))
            elif one.name == "timestamp":
                at = rows.column("timestamp")
                if not pa.types.is_timestamp(at.type):
                    raise UserError(f"expected 'timestamp' as TIMESTAMP; found {at.type}")
                columns.append(at.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()))
            else:
                columns.append(_cast(rows.column(one.name), one))
        return pa.Table.from_arrays(columns, schema=_RECORDS)

    def _whole(self, rows: pa.Table) -> pa.Table:
        for at, field in enumerate(rows.schema):
            if field.type == JSON:  # text, to Spark
                rows = rows.set_column(at, field.name, rows.column(at).cast(pa.string()))
        values: Any = encode_rows(rows)
        keys: Any = pa.nulls(len(rows), pa.large_binary())
        if len(self.keys) == 1:
            keys = key_texts(rows.column(self.keys[0])).cast(pa.binary())
        elif self.keys:
            keys = encode_rows(rows, columns=self.keys).cast(pa.binary())
        columns = [
            keys.cast(pa.large_binary()),
            values.cast(pa.binary()).cast(pa.large_binary()),
            pa.nulls(len(rows), pa.int64()),
            pa.nulls(len(rows), pa.int32()),
        ]
        return pa.Table.from_arrays(columns, schema=_RECORDS)


class _TopicSink:
    """Writes rows to a topic.

    Args:
        options: the source's.
        schema: of the rows.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._address = log_address(options)
        self._topic = options.need("topic", "the topic to write to")
        self._maker = _Maker.of(options, schema)


class StreamSink(_TopicSink, DataSourceStreamArrowWriter):
    """Writes a stream's micro-batches."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Makes a task's records; stores nothing."""
        sink = pa.BufferOutputStream()
        size = 0
        settings = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, _RECORDS, options=settings) as stream:
            for records in self._maker.records(iterator):
                size += records.nbytes
                _check_size(size)
                stream.write_table(records)
        return _Made(_query_id(), sink.getvalue().to_pybytes(), size)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Stores a batch, unless that was done before.

        Raises:
            LimitError: the batch is too large for the driver.
            FencedError: another driver runs the same query.
            BrokerError: it couldn't be stored.
        """
        made = [one for one in messages if isinstance(one, _Made)]
        if not made:
            return
        _check_size(sum(one.size for one in made))
        name = GROUP_PREFIX + made[0].query
        with TransactionalProducer(self._address, name) as writer:
            writer.start()  # what an earlier driver left is ended: the offset is what it is
            if batchId < _next_batch(self._address, name, self._topic):
                return
            now_ms = time.time_ns() // 1_000_000
            partitions = _partitions(self._address, self._topic)
            for one in made:
                with pa.ipc.open_stream(one.records) as stream:
                    for batch in stream:
                        _send(writer, self._topic, batch, partitions, batchId, now_ms)
            writer.commit_offsets(name, {(self._topic, 0): batchId + 1})
            writer.commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing was stored."""


class BatchSink(_TopicSink, DataSourceArrowWriter):
    """Writes a DataFrame: all of it becomes visible when every task has succeeded."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Writes a task's rows in a transaction, and leaves it open."""
        name = f"{GROUP_PREFIX}write.{uuid.uuid4().hex}"
        with TransactionalProducer(self._address, name, timeout_ms=WRITE_TIMEOUT_MS) as writer:
            writer.start()
            partitions, sent = _partitions(self._address, self._topic), 0
            try:
                for records in self._maker.records(iterator):
                    now_ms = time.time_ns() // 1_000_000
                    for batch in records.to_batches():
                        _send(writer, self._topic, batch, partitions, sent, now_ms)
                        sent += 1
            except BaseException:
                writer.abort()
                raise
            return _Open((name, writer.identity) if sent else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes it visible."""
        self._end(messages, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Takes it back."""
        self._end(messages, commit=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> None:
        for one in messages:
            if isinstance(one, _Open) and one.transaction is not None:
                name, identity = one.transaction
                with TransactionalProducer(self._address, name) as writer:
                    writer.resume(identity)
                    writer.commit() if commit else writer.abort()


def _query_id() -> str:
    """The stream's id, as its tasks know it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(QUERY_ID)
    if not found:
        raise UserError(
            "expected Spark to pass the stream's id to its tasks (micro-batches do); found none. "
            "Continuous processing is not supported"
        )
    return str(found)


def _next_batch(address: str, group: str, topic: str) -> int:
    """The first batch that isn't stored."""
    with GroupAdmin(address) as admin:
        return admin.committed(group, [topic]).get((topic, 0), 0)


def _partitions(address: str, topic: str) -> int:
    with Client(address) as client:
        return len(client.partitions(topic))


def _send(
    writer: TransactionalProducer,
    topic: str,
    batch: pa.RecordBatch,
    partitions: int,
    turn: int,
    now_ms: int,
) -> None:
    """Sends records: to the partition that they name, by their key, or in turn."""
    for at in range(0, len(batch), CHUNK_ROWS):
        rows = batch.slice(at, CHUNK_ROWS)
        keys, values = (rows.column(i).cast(pa.binary()) for i in (0, 1))
        times = rows.column(2).fill_null(now_ms).to_numpy()
        of = murmur2_partitions(keys, partitions)
        of = np.where(of < 0, turn % partitions, of)
        is_named = rows.column(3).is_valid().to_numpy(zero_copy_only=False)
        of = np.where(is_named, rows.column(3).fill_null(0).to_numpy(), of)
        wrong = of[(of < 0) | (of >= partitions)]
        if len(wrong):
            raise UserError(
                f"expected partitions of {topic!r} from 0 to {partitions - 1}; found {wrong[0]}"
            )
        bare = keys.null_count == len(keys)
        for partition in np.unique(of).tolist():
            take: Any = pa.array(np.flatnonzero(of == partition))
            mine = None if bare else keys.take(take)
            chosen = np.ascontiguousarray(times[of == partition])
            writer.send(topic, partition, mine, values.take(take), chosen)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return column.cast(field.type)


def _check_size(size: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise LimitError(
            f"expected a micro-batch of at most {BATCH_BYTES_MAX >> 20} MiB (BATCH_BYTES_MAX), as it "
            f"passes through the driver; found {size >> 20} MiB or more. Limit what a batch reads "
            "(maxOffsetsPerTrigger, maxFilesPerTrigger)"
        )
