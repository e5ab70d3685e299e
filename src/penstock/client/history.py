"""Reads a stretch of a topic by column: from its Iceberg table as far as that goes, then the log.

    history = History(catalog.load_table("shop.events"), "127.0.0.1:9092", "events", schema)
    for rows in history.read(0, start, end, ["user", "offset"]):
        ...

Both give the same rows (`penstock.formats.rows`), in the order of the offsets: a batch or a replay
over old records reads a few columns of Parquet instead of decoding every record. The table is what
the broker wrote (`penstock.iceberg.table`); what isn't in it yet comes from the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import SetupError
from penstock.formats.rows import Rows

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

__all__ = ["History"]

COVERED: Final = "penstock.offsets"
ANCESTORS_MAX: Final = 10_000
"""Snapshots that are looked through for the newest one that says what is covered."""


class History:
    """One topic's rows. Blocking, for one thread.

    Args:
        table: the topic's Iceberg table, as pyiceberg loads it.
        bootstrap: of the log, for what isn't in the table.
        topic: its name.
        schema: of its values, as in its setting `penstock.schema`; None where it has none.
        options: for the log's `Reader`.
    """

    def __init__(
        self, table: Table, bootstrap: str, topic: str, schema: Schema | None, **options: Any
    ) -> None:
        self._table = table
        self._bootstrap, self._topic, self._options = bootstrap, topic, options
        self._rows = Rows(schema)
        self.covered = self._read_covered()

    def _read_covered(self) -> dict[int, int]:
        snapshot = self._table.current_snapshot()
        said = self._table.properties.get(COVERED, "{}")
        for _ in range(ANCESTORS_MAX):
            if snapshot is None:
                break
            if snapshot.summary and COVERED in snapshot.summary.additional_properties:
                said = snapshot.summary.additional_properties[COVERED]
                break
            parent = snapshot.parent_snapshot_id
            snapshot = self._table.snapshot_by_id(parent) if parent is not None else None
        return {int(partition): int(upto) for partition, upto in json.loads(said).items()}

    def refresh(self) -> None:
        """Sees what has been appended to the table meanwhile."""
        self._table.refresh()
        self.covered = self._read_covered()

    def read(
        self, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The rows with start <= offset < end, in order; values that don't fit are left out.

        Args:
            partition: its number.
            start: the first offset.
            end: the offset to stop before.
            columns: which columns, None for all; fewer are read faster.

        Raises:
            SetupError: there is no such column.
            BrokerError: as `Reader.read` does, for what isn't in the table.
        """
        names = list(columns if columns is not None else self._rows.schema.names)
        unknown = set(names) - set(self._rows.schema.names)
        if unknown:
            raise SetupError(
                f"expected columns of {', '.join(self._rows.schema.names)}; found {sorted(unknown)}"
            )
        middle = min(max(self.covered.get(partition, 0), start), end)
        if start < middle:
            yield from self._from_table(partition, start, middle, names)
        if middle < end:
            yield from self._from_log(partition, middle, end, names)

    def _from_table(
        self, partition: int, start: int, end: int, names: list[str]
    ) -> Iterator[pa.Table]:
        from pyiceberg.expressions.parser import parse
        from pyiceberg.io.pyarrow import ArrowScan

        chosen = parse(f"partition = {partition} and offset >= {start} and offset < {end}")
        scan = self._table.scan(row_filter=chosen, selected_fields=tuple(names))
        reader = ArrowScan(self._table.metadata, self._table.io, scan.projection(), chosen)
        wanted = self._schema(names)
        for task in sorted(scan.plan_files(), key=self._first_offset):
            for batch in reader.to_record_batches([task]):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch]).select(names).cast(wanted)

    def _schema(self, names: list[str]) -> pa.Schema:
        fields: list[Any] = [self._rows.schema.field(name) for name in names]
        return pa.schema(fields)

    def _first_offset(self, task: FileScanTask) -> int:
        """A file's least offset. A file holds rows of one partition, and files don't overlap."""
        from pyiceberg.conversions import from_bytes

        field: Any = self._table.schema().find_field("offset")
        bound = (task.file.lower_bounds or {}).get(field.field_id)
        return 0 if bound is None else int(from_bytes(field.field_type, bound))

    def _from_log(
        self, partition: int, start: int, end: int, names: list[str]
    ) -> Iterator[pa.Table]:
        from penstock.client.reader import Reader

        with Reader(self._bootstrap, **self._options) as reader:
            for records in reader.read(self._topic, partition, start, end):
                rows, _ = self._rows.make(partition, records)
                yield rows.select(names)
