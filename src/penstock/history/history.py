"""`History`: which offsets are read, and from where."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.tables.history import TopicTable, catalog_loader, open_table
from penstock.core.time import instant_us
from penstock.errors import UserError
from penstock.history.stretches import Stretch

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from penstock.history.spark import Piece

__all__ = ["History"]

Bound: TypeAlias = "int | Mapping[int, int] | str | datetime | None"
"""An offset (of each partition, or for each its own), or a time."""
_log = logging.getLogger(__name__)


class History:
    """A topic's rows, old and new. Calls block; use it from one thread.

    The topic names its table (`penstock.iceberg.table`), which the broker appends to, and the
    columns of its values (`penstock.schema`). Rows have `partition`, `offset`, `timestamp`, `key`,
    `headers` and the values' columns. Values that don't fit the schema are omitted.

    Bounds: a number is an offset, a mapping one for each partition (as `ends` gives them), a text or
    a `datetime` a time, which stands for the first record of that time or later, in each partition.

    Args:
        topic: its name.
        catalog: the URI of the broker's Iceberg catalog, as for `penstock broker --iceberg-catalog`.
        log: the broker's address, "host:port".
        warehouse: of the catalog, where it needs one.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        SetupError: pyiceberg is missing.
    """

    def __init__(
        self,
        topic: str,
        catalog: str,
        log: str = "127.0.0.1:9092",
        *,
        warehouse: str | None = None,
        **settings: Any,
    ) -> None:
        self.topic = topic
        self._address, self._settings = log, settings
        self._load: Callable[[], Catalog] = catalog_loader(catalog, warehouse)
        self._catalog: Catalog | None = None

    def ends(self) -> dict[int, int]:
        """For each partition the offset after what is committed now.

        As `end` it makes several reads see the same; as the `start` of a later read, what is new.
        """
        with Client(self._address, **self._settings) as client:
            return client.offsets(self.topic, "latest")

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
    ) -> pa.RecordBatchReader:
        """The rows as Arrow: iterate over batches, take all (`read_all`), or give it to DuckDB.

        Partitions follow one another, each in the order of its offsets. (Not if the table was rewritten
        in another order.)

        Args:
            columns: which; None for all. Fewer are read faster.
            start: where to begin; None: with the oldest record, in the table or the log.
            end: where to stop before; None: what is committed now.
            partitions: which; None for all.

        Raises:
            UserError: the topic has no table, or no such column or partition; there is no such time.
            BrokerError: the log can't be read; or it lost records during the read that the table doesn't
                have yet.
        """
        table, stretches = self._begin(start, end, partitions)
        wanted = table.columns(columns)

        def batches() -> Iterator[pa.RecordBatch]:
            for one in stretches:
                old, new = one.table, one.log
                for rows in table.read(one.partition, old.start, old.stop, wanted):
                    yield from rows.to_batches()
                if new:
                    for rows in table.log.read(one.partition, new.start, new.stop, wanted.names):
                        yield from rows.to_batches()

        return pa.RecordBatchReader.from_batches(wanted, batches())

    def spark(
        self,
        session: SparkSession,
        columns: Sequence[str] | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
    ) -> DataFrame:
        """The rows as a Spark DataFrame.

        Spark itself reads the Parquet files of the table, with its filters and columns pushed down
        to them; its tasks read the rest from the log, each time the DataFrame is used. Nothing
        passes through the driver. The rows are those of the call, however late they are read.

        Spark must be able to read where the files are: on s3:// it does with `hadoop-aws` among its
        jars and its credentials (`fs.s3a.*`). Its tasks need Penstock, reach the broker, and take a
        password from PENSTOCK_PASSWORD in their environment.

        Args:
            session: Spark's, of any kind.
            columns: which; None for all.
            start: where to begin; None: with the oldest record, in the table or the log.
            end: where to stop before; None: what is committed now.
            partitions: which; None for all.

        Raises:
            UserError: as for `arrow`; or the table has equality deletes.
        """
        from penstock.history.spark import frame

        table, stretches = self._begin(start, end, partitions)
        return frame(session, table, stretches, table.columns(columns))

    def pieces(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        partitions: Sequence[int] | None = None,
    ) -> list[Piece]:
        """The rows in pieces, which may go to other processes: `piece.read()` gives Arrow tables.

        Arguments and errors as for `arrow`.
        """
        from penstock.history.spark import pieces_of

        table, stretches = self._begin(start, end, partitions)
        return pieces_of(table, stretches, table.columns(columns))

    def schema(self) -> pa.Schema:
        """The rows' columns.

        Raises:
            UserError: the topic has no table.
        """
        return open_table(self._address, self.topic, self._opened, **self._settings).schema

    def _begin(
        self, start: Bound, end: Bound, partitions: Sequence[int] | None
    ) -> tuple[TopicTable, list[Stretch]]:
        """The table as it is now, and what is read. The table first: the log then goes further."""
        table = open_table(self._address, self.topic, self._opened, **self._settings)
        with Client(self._address, **self._settings) as client:
            firsts = client.offsets(self.topic, "earliest")
            ends = client.offsets(self.topic, "latest")
            lows = _offsets(start, dict.fromkeys(ends, 0), table, client)
            highs = _offsets(end, ends, table, client)
        unknown = sorted(set(partitions or ()) - set(ends))
        if unknown:
            raise UserError(
                f"expected partitions of {self.topic!r}, which has {sorted(ends)}; found {unknown}"
            )
        return table, [
            self._stretch(
                one, lows[one], min(highs[one], ends[one]), table.covered.get(one, 0), firsts[one]
            )
            for one in sorted(ends if partitions is None else set(partitions))
        ]

    def _stretch(self, partition: int, low: int, high: int, covered: int, first: int) -> Stretch:
        """Divides what is read of a partition between the table and the log, which has a start."""
        old = range(low, min(covered, high))
        new = range(max(low, covered, first), high)
        lost = range(max(low, covered), min(first, high))
        if lost and covered:
            _log.warning(
                "%s-%d: offsets %d to %d are neither in the table nor in the log any more; what "
                "committed records they had is missing",
                self.topic,
                partition,
                lost.start,
                lost.stop - 1,
            )
        return Stretch(partition, old, new)

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._load()
        return self._catalog


def _offsets(
    bound: Bound, default: Mapping[int, int], table: TopicTable, client: Client
) -> dict[int, int]:
    """The offset that a bound stands for in each partition."""
    match bound:
        case None:
            return dict(default)
        case bool():
            raise UserError(f"expected an offset or a time; found {bound!r}")
        case int():
            return dict.fromkeys(default, bound)
        case Mapping():
            return {**default, **bound}
    return table.first_since(client, -(-instant_us(bound) // 1000))
