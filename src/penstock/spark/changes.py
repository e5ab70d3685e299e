"""A view's changes, for Spark's streams: what differs from one version of it to a later one.

    change(a, b) = rows(b) - rows(a) as insertions, rows(a) - rows(b) as deletions, with multiplicity

so a reader that applies all changes from the beginning has the view. A stream's offset names a pin
(`pins`), which holds the view's files for as long as the stream stands there: the difference can be
computed again after a restart, whatever the pipeline has done since. What the pipeline did between two
micro-batches comes as one difference; what came and went between them doesn't come at all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock.errors import QueryError, UserError
from penstock.expr.duck import borrowed
from penstock.serve import ViewPart, Views, state_of
from penstock.spark import pins
from penstock.spark.arrow import chosen, fitted
from penstock.spark.options import Options
from penstock.spark.pins import Pin
from penstock.spark.views import view_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ChangeStream", "change_schema"]

CHANGE: Final = "_change_type"
"""`insert` or `delete`. The names are those of Delta's change data feed."""
VERSION: Final = "_commit_version"
"""The version at which the change was seen."""
ATTEMPTS_MAX: Final = 10
"""Versions that may be replaced, one after the other, while their files are being linked."""
_NOTHING: Final = ""
"""The pin before the first version."""

Offset = dict[str, Any]


@dataclass(frozen=True)
class _Difference(InputPartition):
    """What one task compares: the same shards in two versions."""

    before: Pin | None
    after: Pin


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a view's changes.

    Args:
        options: the source's.
        schema: the columns that are read.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if not options.wants_changes or options.get("version") is not None:
            raise UserError(
                "expected the option 'changes' as true, and no option 'version', to read a view as a "
                "stream: its rows change, and may go"
            )
        self._options = options
        self._wanted = chosen(change_schema(options), schema)
        self._state = state_of(options.app)
        self._name = options.need("view", "the view's name")
        self._last: Offset | None = None
        self._is_fixed = False

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Before the first version: the first changes are the view as it is."""
        return {"stream": uuid.uuid4().hex, "serial": 0, "pin": _NOTHING}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        """The view as it is now, pinned; where it was if it hasn't changed."""
        if self._is_fixed and self._last is not None:
            return self._last
        for attempt in range(ATTEMPTS_MAX):
            try:
                part = Views(self._options.app).snapshot().part(self._name)
                if start["pin"] and _same(pins.find(self._state, _path(start)).part, part):
                    found = start
                else:
                    found = self._pinned(start, part)
                break
            except FileNotFoundError:  # it was replaced just now
                if attempt == ATTEMPTS_MAX - 1:
                    raise
        self._last = found
        return found

    def _pinned(self, start: Offset, part: ViewPart) -> Offset:
        serial = start["serial"] + 1
        found = {**start, "serial": serial, "pin": f"{serial:012}-{pins.digest(part)}"}
        pins.make(self._state, part, _path(found))
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Goes no further than the first version that is looked at."""
        self._is_fixed = True

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The shards that have changed."""
        if start["pin"] == end["pin"]:
            return []
        after = pins.find(self._state, _path(end))
        before = pins.find(self._state, _path(start)) if start["pin"] else None
        if before is None:
            return [_Difference(None, Pin(after.files, one)) for one in after.part.shards()]
        if before.part.schema != after.part.schema:
            raise QueryError(
                f"expected the view {self._name!r} with the columns {before.part.schema.names}; found "
                f"{after.part.schema.names}: its program has changed. Start the stream again with "
                "another checkpoint"
            )
        if before.part.traces.keys() != after.part.traces.keys():
            return [_Difference(before, after)]
        pairs = zip(before.part.shards(), after.part.shards(), strict=True)
        return [
            _Difference(Pin(before.files, old), Pin(after.files, new))
            for old, new in pairs
            if not _same(old, new)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of some shards."""
        assert isinstance(partition, _Difference)
        after = _rows(partition.after, self._name)
        before = after.slice(0, 0) if partition.before is None else _rows(partition.before)
        found = difference(before, after)
        version = pa.array([partition.after.part.version] * len(found), pa.int64())
        return fitted([found.append_column(VERSION, version)], self._wanted)

    def commit(self, end: Offset) -> None:
        """Lets go of the versions before."""
        if end["pin"]:
            pins.drop_before(self._state, end["stream"], end["pin"])


def change_schema(options: Options) -> pa.Schema:
    """A view's columns, and what has become of the row."""
    fields: list[Any] = [*view_schema(options)]
    return pa.schema([*fields, pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64())])


def difference(before: pa.Table, after: pa.Table) -> pa.Table:
    """The rows that went and those that came, as often as they did, with a column `_change_type`."""
    with borrowed() as con:
        con.register("a", _compared(before))
        con.register("b", _compared(after))
        try:
            found: pa.Table = con.sql(
                f"SELECT *, 'delete' AS {CHANGE} FROM (SELECT * FROM a EXCEPT ALL SELECT * FROM b) "
                f"UNION ALL SELECT *, 'insert' FROM (SELECT * FROM b EXCEPT ALL SELECT * FROM a)"
            ).to_arrow_table()
        finally:
            con.unregister("a")
            con.unregister("b")
    fields: list[Any] = [*after.schema]
    return found.cast(pa.schema([*fields, pa.field(CHANGE, pa.string())]))


def _compared(rows: pa.Table) -> pa.Table:
    """Rows as DuckDB compares them: intervals as numbers, as it would give them back in another type."""
    return rows.cast(pa.schema([pa.field(one.name, _plain(one.type)) for one in rows.schema]))


def _plain(type_: Any) -> pa.DataType:
    if pa.types.is_list(type_):
        return pa.list_(_plain(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(one.name, _plain(one.type)) for one in type_])
    return pa.int64() if pa.types.is_duration(type_) else type_


def _rows(pin: Pin, view: str | None = None) -> pa.Table:
    """A view's rows; with its name, what fails in them is logged."""
    found = list(pin.part.read(pin.open()) if view is None else pin.read(view))
    return pa.concat_tables(found) if found else pin.part.schema.empty_table()


def _path(offset: Offset) -> str:
    return f"{offset['stream']}/{offset['pin']}"


def _same(one: ViewPart, other: ViewPart) -> bool:
    """Whether two versions of a view are made of the same."""
    return (one.spec, one.traces, one.steps) == (other.spec, other.traces, other.steps)
