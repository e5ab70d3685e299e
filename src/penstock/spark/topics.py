"""Topics for Spark: their records as rows, out of the log, or of the topic's table and the log beyond.

Rows are those of `penstock.formats.rows`: `partition`, `offset`, `timestamp`, `key`, `headers`, and a
column for each field of the values' schema, or `value`. Values that don't fit the schema are left out.
A stream's offsets are those of the log, by partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client import Client
from penstock.client.groups import GroupAdmin
from penstock.client.tables.history import LogRows
from penstock.core.schema import Schema
from penstock.core.time import instant_us
from penstock.errors import UserError
from penstock.formats.rows import Rows
from penstock.history import History, Piece, log_pieces
from penstock.spark.arrow import chosen, fitted
from penstock.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TopicReader", "TopicStream", "log_address", "topic_schema"]


@dataclass(frozen=True)
class _Piece(InputPartition):
    """What one task reads."""

    piece: Piece


class TopicReader(DataSourceReader):
    """Reads a topic from one offset or time to another, as committed now.

    Args:
        options: the source's.
        schema: the columns that are read.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._wanted = chosen(topic_schema(options), schema)

    def partitions(self) -> list[InputPartition]:
        """Stretches of the log, and files of the table where one was named."""
        return [_Piece(one) for one in self._pieces()]

    def _pieces(self) -> list[Piece]:
        options = self._options
        start, end = _bound(options.get("start")), _bound(options.get("end"))
        if options.get("catalog") is not None:
            return _history(options).pieces(self._wanted.names, start=start, end=end)
        rows = _rows(options)
        with Client(rows.bootstrap) as client:
            firsts = client.offsets(rows.topic, "earliest")
            ends = client.offsets(rows.topic, "latest")
            lows, highs = _offsets(client, rows.topic, start, firsts), dict(ends)
            if end is not None:
                highs = _offsets(client, rows.topic, end, ends)
        found: list[Piece] = []
        for one in ends:
            span = range(max(lows[one], firsts[one]), min(highs[one], ends[one]))
            found += log_pieces(rows, one, span, self._wanted)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch or file."""
        if isinstance(partition, _Piece):
            yield from fitted(partition.piece.read(), self._wanted)


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic as it grows.

    Args:
        options: the source's.
        schema: the columns that are read.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.get("catalog") is not None:
            raise UserError(
                "expected a stream of the log alone; found the option 'catalog'. Read what is old as "
                "a batch up to an offset, and stream from there"
            )
        self._options = options
        self._wanted = chosen(topic_schema(options), schema)
        self._rows = _rows(options)
        self._limit = options.number("maxOffsetsPerTrigger")
        self._until: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where the option `start` says; the log's beginning without it."""
        with Client(self._rows.bootstrap) as client:
            firsts = client.offsets(self._rows.topic, "earliest")
            bound = _bound(self._options.get("start"))
            return _named(_offsets(client, self._rows.topic, bound, firsts))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of what is committed; not more offsets further than the limit, evenly divided."""
        ends = self._ends() if self._until is None else self._until
        ends = {one: max(offset, start.get(one, 0)) for one, offset in ends.items()}
        if not isinstance(limit, ReadMaxRows):
            return ends
        lags = {one: offset - start.get(one, 0) for one, offset in ends.items()}
        left, found = limit.max_rows, {}
        for n, (one, lag) in enumerate(sorted(lags.items(), key=lambda item: item[1])):
            step = min(lag, left // (len(lags) - n) or min(left, 1))
            found[one] = start.get(one, 0) + step
            left -= step
        return {one: found[one] for one in ends}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the option `maxOffsetsPerTrigger` says."""
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Goes no further than the log's end at this moment."""
        self._until = self._ends()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """The end of what is committed."""
        return self._ends()

    def _ends(self) -> dict[str, int]:
        with Client(self._rows.bootstrap) as client:
            return _named(client.offsets(self._rows.topic, "latest"))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Stretches of the log."""
        found: list[InputPartition] = []
        for name, stop in end.items():
            span = range(start.get(name, 0), stop)
            found += map(_Piece, log_pieces(self._rows, int(name), span, self._wanted))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        assert isinstance(partition, _Piece)
        return fitted(partition.piece.read(), self._wanted)


def log_address(options: Options) -> str:
    """The broker's address.

    Raises:
        UserError: it wasn't said.
    """
    said = options.need("log", "the broker's address: .option('log', '127.0.0.1:9092')")
    return said.removeprefix("kafka://")


def topic_schema(options: Options) -> pa.Schema:
    """The columns of a topic's rows."""
    if options.get("catalog") is not None:
        return _history(options).schema()
    return Rows(_rows(options).schema).schema


def _history(options: Options) -> History:
    return History(
        options.need("topic", "the topic's name"),
        options.need("catalog", "the Iceberg catalog's URI"),
        log_address(options),
        warehouse=options.get("warehouse"),
    )


def _rows(options: Options) -> LogRows:
    """What reads the topic; its values' schema is the option `values`, or the topic's own."""
    address, topic = log_address(options), options.need("topic", "the topic's name")
    said = options.get("values")
    if said is None:
        with GroupAdmin(address) as admin:
            said = admin.topic_settings(topic).get("penstock.schema")
    return LogRows(address, topic, Schema.parse(said) if said else None)


def _bound(said: str | None) -> int | str | None:
    """An offset, `latest`, a time, or None: as far as there is."""
    if said is None or said == "earliest":
        return None
    if said.isdecimal():
        return int(said)
    return said


def _offsets(
    client: Client, topic: str, bound: int | str | None, default: Mapping[int, int]
) -> dict[int, int]:
    match bound:
        case None:
            return dict(default)
        case int():
            return dict.fromkeys(default, bound)
        case "latest":
            return client.offsets(topic, "latest")
        case _:
            return client.offsets(topic, -(-instant_us(bound) // 1000))


def _named(offsets: Mapping[int, int]) -> dict[str, Any]:
    return {str(one): offset for one, offset in sorted(offsets.items())}
