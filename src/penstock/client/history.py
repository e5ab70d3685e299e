"""Reads a stretch of a topic by column: from its Iceberg table as far as that goes, then the log.

    history = History(catalog.load_table("shop.events"), "127.0.0.1:9092", "events", schema)
    for rows in history.read(0, start, end, ["user", "offset"]):
        ...

Both give the same rows (`penstock.formats.rows`), in the order of the offsets: a batch over old
records reads a few columns of Parquet instead of decoding every record. The table is what the
broker wrote (`penstock.iceberg.table`); what isn't in it yet comes from the log, as committed.

Records as they were produced come from tables that keep values as bytes (`History.records`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import Schema
from penstock.errors import CorruptError, SetupError, UserError
from penstock.formats.rows import OWN_COLUMNS, Rows
from penstock.wire.columns import Records
from penstock.wire.headers import records_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

__all__ = ["History", "catalog_loader", "open_history"]

COVERED: Final = "penstock.offsets"
TOPIC_ID: Final = "penstock.topic-id"
ANCESTORS_MAX: Final = 10_000
"""Snapshots that are looked through for the newest one that says what is covered."""
RAW_COLUMNS: Final = {*OWN_COLUMNS.names, "value"}
"""Columns of a table whose topic has no schema: its records as they were produced."""

PIECE_BYTES: Final = 64 << 20
"""Bytes of rows that are made into records at a time: a few copies of them are in memory."""


def catalog_loader(uri: str, warehouse: str | None) -> Callable[[], Catalog]:
    """What opens the catalog at a URI; further properties and credentials come from pyiceberg's
    environment variables (`PYICEBERG_CATALOG__PENSTOCK__…`). It blocks, and may fail for a while.

    Raises:
        SetupError: pyiceberg is missing.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise SetupError(
            "expected pyiceberg for --iceberg-catalog, found none; "
            "run: pip install 'penstock[iceberg]'"
        ) from None
    properties = {"uri": uri} | ({"warehouse": warehouse} if warehouse else {})
    return lambda: load_catalog("penstock", **properties)


def open_history(
    bootstrap: str, topic: str, uri: str, warehouse: str | None = None, **settings: Any
) -> History:
    """The history of a topic, in the table that its settings name.

    Args:
        bootstrap: of the topic's log.
        topic: its name.
        uri: of the catalog, as for `penstock broker --iceberg-catalog`.
        warehouse: as for `--iceberg-warehouse`.
        settings: as for `Client`.

    Raises:
        UserError: the topic names no table, or another topic's, or the table isn't there.
        SetupError: pyiceberg is missing, or the catalog can't be opened.
    """
    from penstock.client.groups import GroupAdmin

    load = catalog_loader(uri, warehouse)
    with GroupAdmin(bootstrap, **settings) as admin:
        told = admin.topic_settings(topic)
        topic_id = admin.topic_id(topic)
    name, schema = told.get("penstock.iceberg.table"), told.get("penstock.schema")
    if not name:
        raise UserError(
            f"expected topic {topic!r} to name its table (penstock.iceberg.table), found that it "
            "has none; leave out --iceberg-catalog to read the log"
        )
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load().load_table(name)
    except NoSuchTableError:
        raise UserError(
            f"expected table {name} of topic {topic!r} in the catalog {uri!r}, found none; is it "
            "the broker's own catalog, and has it committed yet?"
        ) from None
    except Exception as error:
        raise SetupError(f"expected to open table {name} in the catalog, found: {error}") from error
    if table.properties.get(TOPIC_ID) != str(topic_id):
        raise UserError(
            f"expected table {name} to be that of topic {topic!r} (id {topic_id}), found that of "
            f"{table.properties.get(TOPIC_ID)!r}; its offsets are another topic's"
        )
    return History(table, bootstrap, topic, Schema.parse(schema) if schema else None, **settings)


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
        self.name = ".".join(table.name())
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
        names = list(self._rows.schema.names if columns is None else columns)
        unknown = set(names) - set(self._rows.schema.names)
        if unknown:
            raise SetupError(
                f"expected columns of {', '.join(self._rows.schema.names)}; found {sorted(unknown)}"
            )
        middle = min(max(self.covered.get(partition, 0), start), end)
        yield from self._from_table(partition, start, middle, names)
        if middle < end:
            yield from self._from_log(partition, middle, end, names)

    def require_values(self) -> None:
        """Makes sure that the table has values as they were produced.

        Raises:
            UserError: it has, or had, columns of decoded values, of which the bytes can't be made
                again: spaces, the order of fields, numbers and what no column takes are gone.
        """
        found = [{one.name for one in each.fields} for each in self._table.schemas().values()]
        more = sorted(set().union(*found) - RAW_COLUMNS)
        if more or any(names != RAW_COLUMNS for names in found) or not self._has_bytes():
            raise UserError(
                f"expected values as bytes in table {self.name}, found them decoded (columns "
                f"{', '.join(more) or 'value'}): what was produced can't be made of them again, "
                "byte for byte; leave out --iceberg-catalog to read the log"
            )

    def _has_bytes(self) -> bool:
        from pyiceberg.types import BinaryType

        return isinstance(self._table.schema().find_type("value"), BinaryType)

    def records(self, partition: int, start: int, end: int) -> Iterator[Records]:
        """The table's records with start <= offset < end, as they were produced.

        Raises:
            UserError: the table has decoded values only.
            CorruptError: the table isn't as the broker wrote it.
        """
        self.require_values()
        position, end = start, min(end, self.covered.get(partition, 0))
        for rows in self._pieces(partition, start, end, [*OWN_COLUMNS.names, "value"]):
            offsets = rows.column("offset").to_numpy()
            if offsets[0] < position or (np.diff(offsets) <= 0).any():
                raise CorruptError(
                    f"expected offsets of partition {partition} from {position} on in order in "
                    f"table {self.name}, found {offsets[0]} to {offsets[-1]}; somebody has "
                    "rewritten it: leave out --iceberg-catalog to read the log"
                )
            position = int(offsets[-1]) + 1
            yield records_of(
                offsets,
                rows.column("timestamp").cast(pa.int64()).to_numpy() // 1000,
                rows.column("key").combine_chunks(),
                rows.column("value").combine_chunks(),
                rows.column("headers").combine_chunks(),
            )

    def _pieces(self, partition: int, start: int, end: int, names: list[str]) -> Iterator[pa.Table]:
        """The rows in tables that a copy of in memory is no burden."""
        for rows in self._from_table(partition, start, end, names):
            step = max(len(rows) * PIECE_BYTES // max(rows.nbytes, 1), 1)
            for at in range(0, len(rows), step):
                yield rows.slice(at, step)

    def offset_at(self, partition: int, timestamp_ms: int, before: int) -> int | None:
        """The first offset below `before` in the table with that timestamp or a later one."""
        end = min(before, self.covered.get(partition, 0))
        at = pa.scalar(timestamp_ms * 1000)
        for rows in self._from_table(partition, 0, end, ["offset", "timestamp"]):
            late = pc.greater_equal(rows.column("timestamp").cast(pa.int64()), at)
            first = pc.index(late, pa.scalar(value=True)).as_py()
            if first >= 0:
                return int(rows.column("offset")[first].as_py())
        return None

    def _from_table(
        self, partition: int, start: int, end: int, names: list[str]
    ) -> Iterator[pa.Table]:
        if start >= end:
            return
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
