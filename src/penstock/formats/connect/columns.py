"""Kafka Connect's records to columns, many at a time, from the JSON that they are.

    texts of records, and their schema  ->  a column for each field, and which records are certain

A record is certain if the kernel of JSON rows is certain of it and of each record within it, and if its
values fit their types. Of one that isn't, nothing is said; `penstock.formats.connect.avro` and `.protobuf`
write it by itself. Arrays aren't certain unless they are NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.schema import INTERVAL, JSON, TIME_OF_DAY, TIMESTAMP, Field, Schema
from penstock.core.time import DAY_US
from penstock.formats.connect import kernels
from penstock.formats.connect.avro import ZEROS
from penstock.formats.connect.parts import Avro, fields_of, inner
from penstock.formats.json import JsonDecoder
from penstock.formats.json_encode import arrow_buffer
from penstock.formats.members import Texts

__all__ = ["RecordReader", "texts_of"]

_NOTHING: Final = b"{}"
"""Stands for a record within another one that is NULL: all of its fields are."""
_BEYOND: Final = 64
"""Bytes behind the texts, so that kernels read whole words."""
_JSON_TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.string(),
    "array": pa.list_(pa.int32()),
}
"""How the kernel reads a type."""
_DAYS: Final = -719_162, 2_932_896
_SECONDS: Final = -62_135_596_800, 253_402_300_799
"""Of the years 1 to 9999: Protobuf's limits."""
_SECOND_US: Final = 1_000_000
_SIGNIFICANT: Final = 2**53
"""Of units of time; more of them don't occur, and may not fit."""
_MICROS: Final = {"Timestamp": 1_000, "MicroTimestamp": 1, "Time": 1_000, "MicroTime": 1}
_DECIMAL: Final[Any] = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("precision", pa.int32()),
        pa.field("scale", pa.int32()),
    ]
)

Change: TypeAlias = Callable[[Any, np.ndarray], Any]
"""Makes a column of what JSON has; clears what isn't certain of `good`."""


@dataclass(frozen=True)
class _Field:
    """A field of a record.

    Attributes:
        name: in the schema.
        type: as the column has it.
        is_optional: whether it may be NULL.
        change: makes the column of what the kernel has read.
        record: what reads it, where it is a record.
        default: what stands for NULL where it can't be; None: the record isn't certain then.
        is_reversed: whether null is the second choice of a union.
    """

    name: str
    type: Any
    is_optional: bool
    change: Change | None = None
    record: RecordReader | None = None
    default: Any = None
    is_reversed: bool = False


class RecordReader:
    """Reads records of one schema.

    Args:
        schema: of a record of Kafka Connect's; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
        as_messages: whether columns are those of Protobuf: dates, times and decimals.
        is_mysql: whether times are MySQL's, which are durations.
        known: records that were defined before.

    Attributes:
        fields: of the columns, as Avro's encoder takes them: a union whose second choice is null is two.
    """

    def __init__(
        self,
        schema: Avro,
        members: Mapping[str, Sequence[str]],
        *,
        as_messages: bool = False,
        is_mysql: bool = False,
        known: dict[str, RecordReader] | None = None,
    ) -> None:
        self._members, self._as_messages, self._is_mysql = members, as_messages, is_mysql
        self._known = {} if known is None else known
        pairs = fields_of(schema, members)
        self._fields = [self._field(one) for _, one in pairs]
        columns = [
            Field(name, JSON if one.record is not None else _json_type(field, self._as_messages))
            for (name, field), one in zip(pairs, self._fields, strict=True)
        ]
        self._decoder = JsonDecoder(Schema(tuple(columns)))
        self.fields = [two for one in self._fields for two in _listed(one)]
        names = schema["name"], f"{schema.get('namespace', '')}.{schema['name']}"
        self._known.update(dict.fromkeys(names, self))

    def read(self, texts: Texts) -> tuple[list[Any], np.ndarray]:
        """The columns of records, and which are certain; they lie in a buffer of `texts_of`."""
        found = self._decoder.certain(texts.buffer, texts.start, texts.length)
        good = found.good.copy()
        columns: list[Any] = []
        for i, one in enumerate(self._fields):
            column: Any = found.columns[i]
            if one.record is not None:
                column = self._read_record(one, texts.buffer, found.texts[i], good)
            elif one.change is not None:
                column = one.change(column, good)
            if not one.is_optional and column.null_count:
                column = self._filled(one, column, good)
            if one.is_reversed:
                good &= column.is_valid().to_numpy(zero_copy_only=False)
                columns.append(pa.array(np.zeros(len(texts), np.int32)))
                column = column.fill_null("")
            columns.append(column)
        return columns, good

    def _read_record(self, one: _Field, buffer: np.ndarray, at: Any, good: np.ndarray) -> Any:
        start, length = at
        absent = length < 0
        if absent.all():
            return pa.nulls(len(length), one.type)
        assert one.record is not None
        end = len(buffer) - _BEYOND - len(_NOTHING)
        where = np.where(absent, end, start), np.where(absent, len(_NOTHING), length)
        columns, is_certain = one.record.read(Texts(buffer, *where))
        good &= is_certain | absent
        mask: Any = pa.array(absent) if absent.any() else None
        return pa.StructArray.from_arrays(columns, fields=[*one.type], mask=mask)

    def _filled(self, one: _Field, column: Any, good: np.ndarray) -> Any:
        """A column NOT NULL, with what stands for NULL."""
        if self._as_messages:
            return column  # is left out
        if one.default is None:
            good &= column.is_valid().to_numpy(zero_copy_only=False)
            return _without_null(column)
        return column.fill_null(pa.scalar(one.default, column.type))

    # -- fields -----------------------------------------------------------------------------------------

    def _field(self, field: Avro) -> _Field:
        is_optional, type_ = isinstance(field["type"], list), inner(field["type"])
        kind = type_["type"] if isinstance(type_, dict) else type_
        name = field["name"]
        if kind == "record" or kind in self._known:
            record = self._known.get(kind) or RecordReader(
                type_,
                self._members,
                as_messages=self._as_messages,
                is_mysql=self._is_mysql,
                known=self._known,
            )
            members = [pa.field(one.name, one.type, not one.required) for one in record.fields]
            return _Field(name, pa.struct(members), is_optional, record=record)
        default = None if kind == "array" else field.get("default", ZEROS[kind])
        plain = pa.binary() if kind == "bytes" else _JSON_TYPES[kind]
        change = _bytes if kind == "bytes" else None
        found = _Field(name, plain, is_optional, change, default=default)
        if self._as_messages:
            return self._message_field(found, type_)
        if kind == "bytes":
            found = replace(found, default=b"")
        return replace(found, is_reversed=is_optional and field["type"][0] != "null")

    def _message_field(self, field: _Field, type_: Avro) -> _Field:
        """A field whose value is one of the messages that every compiler has, if it is."""
        more = type_ if isinstance(type_, dict) else {}
        space, _, name = more.get("connect.name", "").rpartition(".")
        if more.get("logicalType") == "decimal":
            change = _decimals(more["precision"], more["scale"])
            return replace(field, type=_DECIMAL, change=change)
        if space != "io.debezium.time":
            return field
        if name == "Date":
            return replace(field, type=pa.date32(), change=_dates)
        if name == "ZonedTimestamp":
            return replace(field, type=TIMESTAMP)
        if name not in _MICROS:
            return field
        made: Any = TIMESTAMP
        low, high = (one * _SECOND_US for one in _SECONDS)
        if name.endswith("Time"):
            made, low, high = TIME_OF_DAY, 0, DAY_US - 1
            if self._is_mysql:
                made, low, high = INTERVAL, -_SIGNIFICANT * 1_000, _SIGNIFICANT * 1_000
        return replace(field, type=made, change=_times(made, _MICROS[name], (low, high)))


def texts_of(values: pa.Array) -> Texts:
    """Texts of JSON, with room behind them for what stands for a record that is NULL."""
    offsets, data = vectors.text(values)
    tail = np.frombuffer(_NOTHING + bytes(_BEYOND), np.uint8)
    first = int(offsets[0])
    buffer = np.concatenate([data[first : int(offsets[-1])], tail])
    return Texts(buffer, offsets[:-1].astype(np.int64) - first, np.diff(offsets))


def _listed(one: _Field) -> list[Field]:
    found = Field(one.name, one.type, not one.is_optional or one.is_reversed)
    return [Field(f"{one.name} branch", pa.int32(), True), found] if one.is_reversed else [found]  # noqa: FBT003


def _json_type(field: Avro, as_messages: bool) -> pa.DataType:  # noqa: FBT001
    type_ = inner(field["type"])
    kind = type_["type"] if isinstance(type_, dict) else type_
    name = type_.get("connect.name", "") if isinstance(type_, dict) else ""
    if as_messages and name == "io.debezium.time.ZonedTimestamp":
        return TIMESTAMP
    return _JSON_TYPES[kind]


def _without_null(column: Any) -> Any:
    """A column of the same type without a NULL; what stands for one isn't used."""
    if not pa.types.is_struct(column.type):
        empty: Any = {pa.list_(pa.int32()): []}.get(column.type, b"")
        return pa.array([empty if one is None else one for one in column.to_pylist()], column.type)
    return pa.StructArray.from_arrays(
        [column.field(i) for i in range(column.type.num_fields)], fields=[*column.type]
    )


def _bytes(column: Any, good: np.ndarray) -> Any:
    """The bytes that texts are base64 of."""
    rows = len(column)
    offsets, data = vectors.text(column)
    ends, out = np.empty(rows + 1, np.int32), np.empty(len(data) * 3 // 4 + 3, np.uint8)
    fits = np.ones(rows, np.uint8)
    kernels.decode_base64(data, np.ascontiguousarray(offsets), fits, ends, out)
    good &= fits != 0
    bitmap = None if not column.null_count else column.buffers()[0]
    buffers: Any = [bitmap, arrow_buffer(ends), arrow_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _decimals(precision: int, scale: int) -> Change:
    def change(column: Any, good: np.ndarray) -> Any:
        values = _bytes(column, good)
        rest: list[Any] = [
            pa.array(np.full(len(column), one, np.int32)) for one in (precision, scale)
        ]
        if not scale:
            rest[1] = pa.nulls(len(column), pa.int32())
        mask: Any = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays([values, *rest], fields=[*_DECIMAL], mask=mask)

    return change


def _within(column: Any, low: int, high: int, good: np.ndarray) -> Any:
    """A column of integers, NULL beyond limits, where it isn't certain."""
    plain: Any = column.fill_null(low).to_numpy()
    fits = (plain >= low) & (plain <= high)
    if fits.all():
        return column
    good &= fits
    mask: Any = pa.array(fits)
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def _dates(column: Any, good: np.ndarray) -> Any:
    return _within(column, *_DAYS, good).view(pa.date32())


def _times(type_: Any, unit: int, limits: tuple[int, int]) -> Change:
    low, high = (one // unit for one in limits)

    def change(column: Any, good: np.ndarray) -> Any:
        number = column.cast(pa.int64())
        return pc.multiply(_within(number, low, high, good), unit).view(type_)

    return change
