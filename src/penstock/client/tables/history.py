"""A topic's Iceberg table and the log beyond it: the same rows (`penstock.formats.rows`) of both.

The table is what the broker wrote (`penstock.iceberg.table`); what isn't in it yet comes from the log,
as committed. A `TopicTable` is the table at one snapshot, and `covered` says where the log continues, so
each record is read once. `penstock.history` is what people use.

Records as they were produced come from tables that keep values as bytes (`TopicTable.records`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.tables.files import TableFile, TableRows, is_plain
from penstock.core.lazy import installed
from penstock.core.schema import Schema
from penstock.errors import CorruptError, SetupError, UserError
from penstock.formats.rows import OWN_COLUMNS, Rows
from penstock.wire.columns import Records
from penstock.wire.headers import records_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from penstock.client.client import Client

__all__ = ["LogRows", "TopicTable", "catalog_loader", "open_table"]

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
    catalogs: Any = installed(
        "pyiceberg.catalog", "iceberg", "which reads and writes Iceberg tables"
    )
    properties = {"uri": uri} | ({"warehouse": warehouse} if warehouse else {})
    return lambda: catalogs.load_catalog("penstock", **properties)


def open_table(
    bootstrap: str, topic: str, load: Callable[[], Catalog], **settings: Any
) -> TopicTable:
    """The table that a topic's settings name, as it is now.

    Args:
        bootstrap: of the topic's log.
        topic: its name.
        load: gives the catalog, see `catalog_loader`.
        settings: as for `Client`.

    Raises:
        UserError: the topic names no table, or another topic's, or the table isn't there.
        SetupError: the catalog can't be opened.
    """
    from penstock.client.groups import GroupAdmin

    with GroupAdmin(bootstrap, **settings) as admin:
        topic_settings = admin.topic_settings(topic)
        topic_id = admin.topic_id(topic)
    name = topic_settings.get("penstock.iceberg.table")
    schema = topic_settings.get("penstock.schema")
    if not name:
        raise UserError(
            f"expected topic {topic!r} to name its table (penstock.iceberg.table); found that it "
            "has none: name one, or read the log"
        )
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load().load_table(name)
    except NoSuchTableError:
        raise UserError(
            f"expected table {name} of topic {topic!r} in the catalog; found none; is it the "
            "broker's own catalog, and has it committed yet?"
        ) from None
    except Exception as error:
        raise SetupError(f"expected to open table {name} in the catalog; found: {error}") from error
    if table.properties.get(TOPIC_ID) != str(topic_id):
        raise UserError(
            f"expected table {name} to be that of topic {topic!r} (id {topic_id}); found that of "
            f"{table.properties.get(TOPIC_ID)!r}; its offsets are another topic's"
        )
    return TopicTable(table, bootstrap, topic, Schema.parse(schema) if schema else None, **settings)


@dataclass(frozen=True)
class LogRows:
    """A topic's rows out of its log. Goes to other processes.

    Attributes:
        bootstrap: of the log.
        topic: its name.
        schema: of its values; None where it has none.
        options: for the log's `Reader`.
    """

    bootstrap: str
    topic: str
    schema: Schema | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(
        self, partition: int, start: int, end: int, names: Sequence[str]
    ) -> Iterator[pa.Table]:
        """The rows with start <= offset < end, in order; those columns of them.

        Raises:
            BrokerError: as `Reader.read` does.
        """
        from penstock.client.reader import Reader

        rows = Rows(self.schema)
        with Reader(self.bootstrap, **self.options) as reader:
            for records in reader.read(self.topic, partition, start, end):
                yield rows.make(partition, records)[0].select(list(names))


class TopicTable:
    """One topic's table at one snapshot, and the log beyond it. Blocking, for one thread.

    Args:
        table: the topic's Iceberg table, as pyiceberg loads it.
        bootstrap: of the log, for what isn't in the table.
        topic: its name.
        schema: of its values, as in its setting `penstock.schema`; None where it has none.
        options: for the log's `Reader`.

    Attributes:
        covered: for each partition the first offset that isn't in the table.
        schema: of the rows.
        log: the rows of the log.
    """

    def __init__(
        self, table: Table, bootstrap: str, topic: str, schema: Schema | None, **options: Any
    ) -> None:
        self._table = table
        self.log = LogRows(bootstrap, topic, schema, options)
        self.schema = Rows(schema).schema
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

    def columns(self, names: Sequence[str] | None) -> pa.Schema:
        """Those columns, None for all.

        Raises:
            UserError: there is no such column, or no column at all.
        """
        chosen = list(self.schema.names if names is None else names)
        unknown = sorted(set(chosen) - set(self.schema.names))
        if unknown or not chosen:
            raise UserError(
                f"expected columns of {', '.join(self.schema.names)}; found {unknown or 'none'}"
            )
        return pa.schema([self.schema.field(name) for name in chosen])

    def read(
        self,
        partition: int,
        start: int,
        end: int,
        wanted: pa.Schema,
        since_us: int | None = None,
    ) -> Iterator[pa.Table]:
        """The table's rows with start <= offset < end, as far as it covers them.

        They are in the order of the offsets, unless the table was rewritten. Files whose
        rows are all older than `since_us` are passed over.
        """
        span = range(start, min(end, self.covered.get(partition, 0)))
        for file in self.files(partition, span):
            if since_us is None or file.newest_us is None or file.newest_us >= since_us:
                yield from self.rows(file, partition, span, wanted).read(file.task)

    def files(self, partition: int, span: range) -> list[TableFile]:
        """The files that may hold rows of a partition at these offsets, in the order of these.

        Raises:
            UserError: the table has equality deletes, which pyiceberg doesn't read.
        """
        return [one for one in self._files if one.may_hold(partition, span)] if span else []

    @functools.cached_property
    def _files(self) -> list[TableFile]:
        """All files of the snapshot, by their least offsets: its manifests are read once."""
        schema = self._table.schema()
        try:
            found = [TableFile.of(task, schema) for task in self._table.scan().plan_files()]
        except (NotImplementedError, ValueError) as error:
            raise UserError(
                f"expected table {self.name} without equality deletes; found some: another writer "
                f"changes it. Compact them away, or read it with Spark's Iceberg ({error})"
            ) from error
        return sorted(found, key=lambda one: one.offsets.start if one.offsets is not None else 0)

    def rows(self, file: TableFile, partition: int, span: range, wanted: pa.Schema) -> TableRows:
        """What reads of a file the rows at these offsets, and those columns of them."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.expressions.parser import parse
        from pyiceberg.io.pyarrow import ArrowScan

        chosen: BooleanExpression = AlwaysTrue()
        if not file.is_within(partition, span):
            chosen = parse(
                f"partition = {partition} and offset >= {span.start} and offset < {span.stop}"
            )
        known = set(self._table.schema().column_names)
        names = tuple(name for name in wanted.names if name in known)
        projection = self._table.scan(selected_fields=names or ("offset",)).projection()
        return TableRows(
            ArrowScan(self._table.metadata, self._table.io, projection, chosen), wanted
        )

    def is_plain(self, wanted: pa.Schema) -> bool:
        """Whether the files' columns are found by their names (`table_files.is_plain`)."""
        return is_plain(self._table.schemas().values(), wanted)

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
                f"expected values as bytes in table {self.name}; found them decoded (columns "
                f"{', '.join(more) or 'value'}): what was produced can't be made of them again, "
                "byte for byte; omit --iceberg-catalog to read the log"
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
                    f"table {self.name}; found {offsets[0]} to {offsets[-1]}; another writer has "
                    "rewritten it: omit --iceberg-catalog to read the log"
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
        for rows in self.read(partition, start, end, self.columns(names)):
            step = max(len(rows) * PIECE_BYTES // max(rows.nbytes, 1), 1)
            for at in range(0, len(rows), step):
                yield rows.slice(at, step)

    def offset_at(self, partition: int, timestamp_ms: int, before: int) -> int | None:
        """The first offset below `before` in the table with that timestamp or a later one."""
        at = pa.scalar(timestamp_ms * 1000)
        wanted = self.columns(["offset", "timestamp"])
        for rows in self.read(partition, 0, before, wanted, timestamp_ms * 1000):
            late = pc.greater_equal(rows.column("timestamp").cast(pa.int64()), at)
            first = pc.index(late, pa.scalar(value=True)).as_py()
            if first >= 0:
                return int(rows.column("offset")[first].as_py())
        return None

    def first_since(self, client: Client, timestamp_ms: int) -> dict[int, int]:
        """For each partition the first offset of that time or later, in the table or the log."""
        found = client.offsets(self.log.topic, timestamp_ms)
        for partition, log_start in client.offsets(self.log.topic, "earliest").items():
            older = self.offset_at(partition, timestamp_ms, log_start)
            found[partition] = found[partition] if older is None else older
        return found
