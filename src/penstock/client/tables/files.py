"""The files of a topic's Iceberg table: what their statistics say, and how their rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

__all__ = ["TableFile", "TableRows", "is_plain"]


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, and what its statistics say about its rows; None where they don't.

    Attributes:
        task: as pyiceberg plans it, with what is deleted of it.
        partition: the one whose rows these are.
        offsets: from the least to the greatest.
        newest_us: the latest timestamp, in µs since 1970.
    """

    task: FileScanTask
    partition: int | None
    offsets: range | None
    newest_us: int | None

    @staticmethod
    def of(task: FileScanTask, schema: Schema) -> TableFile:
        """Reads the statistics."""
        from pyiceberg.conversions import from_bytes

        def bound(name: str, side: Mapping[int, bytes] | None) -> int | None:
            one: Any = schema.find_field(name)
            found = (side or {}).get(one.field_id)
            return None if found is None else int(from_bytes(one.field_type, found))

        lows, highs = task.file.lower_bounds, task.file.upper_bounds
        first, last = bound("partition", lows), bound("partition", highs)
        low, high = bound("offset", lows), bound("offset", highs)
        return TableFile(
            task,
            first if first == last else None,
            None if low is None or high is None else range(low, high + 1),
            bound("timestamp", highs),
        )

    def may_hold(self, partition: int, span: range) -> bool:
        """Whether a row may be of a partition and at one of these offsets."""
        if self.partition not in {None, partition}:
            return False
        mine = self.offsets
        return mine is None or (mine.start < span.stop and mine.stop > span.start)

    def is_within(self, partition: int, span: range) -> bool:
        """Whether all rows are surely of a partition and at these offsets."""
        mine = self.offsets
        return (
            self.partition == partition
            and mine is not None
            and mine.start >= span.start
            and mine.stop <= span.stop
        )


@dataclass(frozen=True)
class TableRows:
    """Rows of a table's files, as pyiceberg reads them. Goes to other processes.

    Attributes:
        scan: pyiceberg's `ArrowScan`: which rows, which columns.
        schema: of what is given; a column that the table doesn't have is null.
    """

    scan: Any
    schema: pa.Schema

    def read(self, task: FileScanTask) -> Iterator[pa.Table]:
        """The rows of one file."""
        for batch in self.scan.to_record_batches([task]):
            if batch.num_rows:
                yield self._fitted(pa.Table.from_batches([batch]))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        for one in self.schema:
            if one.name not in rows.column_names:
                rows = rows.append_column(one, pa.nulls(len(rows), one.type))
        return rows.select(self.schema.names).cast(self.schema)


def is_plain(schemas: Iterable[Schema], wanted: pa.Schema) -> bool:
    """Whether the files' columns are found by their names, as readers of plain Parquet do.

    Not if one was renamed, dropped with its name given to another, or changed in its
    type to one that a reader of Parquet doesn't make of the old one.

    Args:
        schemas: that the table has, or had.
        wanted: the columns.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    places: dict[str, set[int]] = {}
    names: dict[int, set[str]] = {}
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        for one in schema.fields:
            places.setdefault(one.name, set()).add(one.field_id)
            names.setdefault(one.field_id, set()).add(one.name)
            types.setdefault(one.name, []).append(arrow.field(one.name).type)
    return all(
        len(places[one.name]) == 1
        and len(names[next(iter(places[one.name]))]) == 1
        and all(_reads_as(found, one.type) for found in types[one.name])
        for one in wanted
        if one.name in places
    )


def _reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type may be read as one of another."""
    widened = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    return _bare(found).equals(_bare(wanted)) or (found, wanted) in widened


def _bare(type_: pa.DataType) -> pa.DataType:
    """The type without what Arrow alone distinguishes: widths of lengths, names of items."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_bare(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(one.name, _bare(one.type)) for one in type_])
    narrow: dict[pa.DataType, pa.DataType] = {
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }
    return narrow.get(type_, type_)
