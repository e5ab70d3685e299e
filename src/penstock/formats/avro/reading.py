"""Avro's binary encoding to columns, with or without the head of a schema registry.

Records have no marks within them: where a field lies follows from the ones before. So all records of a
batch are read together, field by field, each with a cursor of its own, as vectors: what takes a
record's cursor beyond its end, or isn't what the schema says, makes that record bad and no other. The
source is the specification of Apache Avro 1.12, "Data Serialization"; the head is Confluent's wire
format: a zero byte and the schema's id in four bytes, the most significant first.
"""

from __future__ import annotations

import decimal
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.literals import uuid_of
from penstock.core.schema import (
    DECIMAL_DIGITS_MAX,
    TIME_OF_DAY,
    TIMESTAMP,
    UUID,
    Schema,
    type_text,
)
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US
from penstock.errors import SchemaError
from penstock.formats.avro.names import Names
from penstock.formats.avro.rows import Rows, as_column
from penstock.formats.avro.schemas import fitting
from penstock.formats.json import Decoded
from penstock.schemas import Kind
from penstock.wire.columns import gather_column

__all__ = [
    "UNKNOWN_IDS_MAX",
    "Avro",
    "AvroDecoder",
    "Lookup",
    "Lookups",
    "Reading",
    "reading_of",
]

UNKNOWN_IDS_MAX: Final = 100
"""Ids in a batch that the registry doesn't know: after so many, the batch isn't what a serializer wrote."""
ITEMS_MAX: Final = 1 << 16
"""Items of one array or map: each is a step for the whole batch."""
Lookup: TypeAlias = Callable[[int], str | None]
"""Gives the schema of an id, with all types written out or named after that; None where there is none. It
raises `SchemaError` where the schema is of another kind."""
Lookups: TypeAlias = Callable[[str, Kind], Lookup]
"""Gives what asks the registry at a URL for schemas of a kind."""
_EXACT: Final = decimal.Context(prec=DECIMAL_DIGITS_MAX)


@dataclass(frozen=True)
class Avro:
    """Records whose values are Avro.

    Attributes:
        schemas: the writers', as JSON, by their ids; of values without a head by None alone.
        registry: the URL of a schema registry that knows the others; None: there are no others.
    """

    name: ClassVar[str] = "avro"
    kind: ClassVar[Kind] = Kind.AVRO

    schemas: tuple[tuple[int | None, str], ...] = ()
    registry: str | None = field(default=None, repr=False)  # plans know formats by their texts

    def decoder(
        self,
        schema: Schema,
        columns: frozenset[str] | None = None,  # noqa: ARG002 - others cost nothing
        lookups: Lookups | None = None,
    ) -> AvroDecoder:
        """See `penstock.formats.lines.Format`."""
        lookup = lookups(self.registry, self.kind) if lookups and self.registry else None
        return AvroDecoder(schema, self, lookup)


class AvroDecoder:
    """Decodes records of one schema. It holds no state between batches, but schemas, which don't change.

    Args:
        schema: the columns; of other fields than these nothing comes, and one that a writer doesn't have
            is NULL.
        format_: what the values are.
        lookup: asks its registry.

    Raises:
        SchemaError: a writer's schema is none, is no record's, or a column isn't what its field is.
    """

    def __init__(self, schema: Schema, format_: Avro, lookup: Lookup | None = None) -> None:
        self.schema = schema
        self._writers = {id_: self._reading(text) for id_, text in format_.schemas}
        self._lookup = lookup
        self._misfits: dict[int, str] = {}

    def _reading(self, text: str) -> Reading:
        """What reads the records of a writer's schema."""
        found = reading_of(text)
        fitting(self.schema, {name: field.type for name, field in found.fields})
        known = {name for name, _ in found.fields}
        return replace(found, wanted=frozenset(known) & frozenset(self.schema.names))

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """See `penstock.formats.lines.Decoder`."""
        rows = Rows(buffer, start, length)
        if None in self._writers:
            found = [(np.ones(len(rows), np.bool_), self._writers[None])]
        else:
            ids = rows.ids()
            self._learn(rows, ids)
            known = np.isin(ids, [one for one in self._writers if one is not None])
            names = ", ".join(map(str, self._writers))
            rows.fail(~known, lambda row: f"expected a schema id among {names}; found {ids[row]}")
            found = [(ids == id_, writer) for id_, writer in self._writers.items()]
        columns: dict[str, Any] = {}
        for mask, writer in found:
            if mask.any():
                for name, column in writer.read(rows, mask).items():
                    before = columns.get(name)
                    columns[name] = column if before is None else _either(mask, column, before)
        rows.end()
        arrays: list[Any] = []
        for one in self.schema:
            kind: Any = one.type
            column = columns[one.name] if one.name in columns else pa.nulls(len(rows), kind)
            arrays.append(as_column(rows, one.name, column, kind))
            if one.required:
                missing = f"field {one.name!r}: expected a value (NOT NULL); found null"
                known = np.asarray(arrays[-1].is_valid().to_numpy(zero_copy_only=False))
                rows.fail(~known, functools.partial(_said, missing))
        bad = np.flatnonzero(~rows.good)
        good = np.flatnonzero(rows.good)
        chosen: Any = pa.array(good)
        taken = [one.take(chosen) for one in arrays] if len(bad) else arrays
        batch = pa.RecordBatch.from_arrays(taken, schema=self.schema.arrow)
        return Decoded(batch, good, bad, [rows.reasons[row] for row in bad.tolist()])

    def _learn(self, rows: Rows, ids: np.ndarray) -> None:
        """Asks for the schemas that aren't known yet; records of those that don't fit are bad."""
        if self._lookup is None:
            return
        unknown = 0
        for id_ in np.unique(ids[rows.good]).tolist():
            if id_ not in self._writers and id_ not in self._misfits and unknown < UNKNOWN_IDS_MAX:
                try:
                    text = self._lookup(id_)
                    if text is None:
                        unknown += 1
                        continue
                    self._writers[id_] = self._reading(text)
                except SchemaError as error:
                    self._misfits[id_] = f"schema {id_}: {error}"
        for id_, reason in self._misfits.items():
            rows.fail(ids == id_, functools.partial(_said, reason))
        rest = ~np.isin(ids, [one for one in self._writers if one is not None])
        rows.fail(
            rest, lambda row: f"expected the id of a schema in the registry; found {ids[row]}"
        )


@dataclass(frozen=True)
class _Field:
    """How a type is read: the values of some records, NULL for the others.

    Attributes:
        type: of the column; None where it can only be passed over.
        read: reads it.
    """

    type: pa.DataType | None
    read: Callable[[Rows, np.ndarray], Any]


@dataclass(frozen=True)
class Reading:
    """How the records of a writer's schema are read.

    Attributes:
        fields: all of them, in their order.
        wanted: those that become columns.
    """

    fields: tuple[tuple[str, _Field], ...]
    wanted: frozenset[str] = frozenset()

    def read(self, rows: Rows, mask: np.ndarray) -> dict[str, Any]:
        """The wanted columns; NULL for other records."""
        found = {name: field.read(rows, mask) for name, field in self.fields}
        return {name: found[name] for name in self.wanted}


def reading_of(text: str) -> Reading:
    """What reads the records of a schema.

    Raises:
        SchemaError: it is none, or no record's.
    """
    try:
        root = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"expected an Avro schema as JSON; found {text!r} ({error})") from None
    if not isinstance(root, dict) or root.get("type") != "record":
        raise SchemaError(f"expected an Avro schema of type 'record'; found {text[:100]!r}")
    names, _ = Names().defined(root)
    return Reading(
        tuple((one["name"], _field(one["type"], names)) for one in root.get("fields", []))
    )


def _field(node: Any, names: Names) -> _Field:
    """How an Avro type is read."""
    if isinstance(node, list):
        return _union([_field(one, names) for one in node])
    name, more = (node, {}) if isinstance(node, str) else (node.get("type"), node)
    known = names.find(name) if isinstance(name, str) else None
    if known is not None:
        found: _Field | None = names.types[known]
        if found is None:
            raise SchemaError(f"expected a type that isn't within itself; found {name!r}")
        return found
    if isinstance(more.get("name"), str) and name in ("record", "enum", "fixed"):
        inner, full = names.defined(more)
        names.types[full] = made = _kind(name, more, inner)
        return made
    return _kind(name, more, names)


def _kind(name: Any, more: Mapping[str, Any], names: Names) -> _Field:
    """How a type is read that isn't a name of one that was defined."""
    logical = more.get("logicalType")
    match name:
        case dict() | list():
            return _field(name, names)
        case "null":
            return _Field(pa.null(), lambda rows, _: pa.nulls(len(rows)))
        case "boolean":
            return _Field(pa.bool_(), _boolean)
        case "int" if logical == "date":
            return _integers(pa.date32(), INSTANT_MIN_US // DAY_US, INSTANT_MAX_US // DAY_US)
        case "int" | "long" if logical in {"time-millis", "time-micros"}:
            unit = 1_000 if logical == "time-millis" else 1
            return _integers(TIME_OF_DAY, 0, DAY_US // unit - 1, unit)
        case "int":
            return _integers(pa.int32(), -(2**31), 2**31 - 1)
        case "long" if logical in {"timestamp-millis", "timestamp-micros"}:
            unit = 1_000 if logical == "timestamp-millis" else 1
            return _integers(TIMESTAMP, INSTANT_MIN_US // unit, INSTANT_MAX_US // unit, unit)
        case "long":
            return _integers(pa.int64(), -(2**63), 2**63 - 1)
        case "float" | "double":
            return _floats(4 if name == "float" else 8)
        case "bytes" | "fixed" if logical == "decimal" and _decimal_of(more) is not None:
            kind = _decimal_of(more)
            size = int(more["size"]) if name == "fixed" else None
            return _Field(kind, functools.partial(_decimals, kind, size))
        case "string" if logical == "uuid":
            return _Field(UUID, _uuids)
        case "string" if logical == "timestamp-text":
            return _Field(TIMESTAMP, _instants)
        case "fixed" if logical == "uuid" and int(more["size"]) == 16:
            return _Field(UUID, lambda rows, mask: _cut(rows, mask, 16).cast(UUID))
        case "string" | "bytes":
            kind = pa.string() if name == "string" else pa.binary()
            return _Field(None if logical == "decimal" else kind, _texts(kind))
        case "fixed":
            size = int(more["size"])
            return _Field(
                None if logical else pa.binary(), lambda rows, mask: _cut(rows, mask, size)
            )
        case "enum":
            return _enum([str(one) for one in more["symbols"]])
        case "record":
            return _record([(one["name"], _field(one["type"], names)) for one in more["fields"]])
        case "array":
            return _array(_field(more["items"], names))
        case "map":
            return _map(_field(more["values"], names))
        case _:
            raise SchemaError(
                f"expected an Avro type; found {name!r}. Types that are named elsewhere in the schema "
                "are written out here"
            )


def _decimal_of(node: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a decimal; None where it has more digits than a column may have."""
    digits, places = int(node["precision"]), int(node.get("scale", 0))
    if not 0 <= places <= digits or not 1 <= digits <= DECIMAL_DIGITS_MAX:
        return None
    return pa.decimal128(digits, places)


def _decimals(type_: Any, size: int | None, rows: Rows, mask: np.ndarray) -> Any:
    """Numbers of so many bytes, or of as many as are said first, in two's complement; big-endian."""
    sizes = rows.number(mask) if size is None else np.full(len(rows), size, np.int64)
    begin = rows.skip(mask, sizes)
    there = mask & rows.good
    sizes = np.where(there, sizes, 0)
    wide = np.zeros((len(rows), 16), np.uint8)
    lost = np.zeros(len(rows), np.bool_)  # bytes beyond 16 that aren't the sign's
    some = np.flatnonzero(there & (sizes > 0))
    sign = np.zeros(len(rows), np.uint8)
    sign[some] = np.where(rows.buffer[begin[some]] >= 0x80, 0xFF, 0)
    for at in range(int(sizes.max(initial=0))):  # from the last byte on
        here = np.flatnonzero(sizes > at)
        byte = rows.buffer[begin[here] + sizes[here] - 1 - at]
        if at < 16:
            wide[here, at] = byte
        else:
            lost[here] |= byte != sign[here]
    for at in range(16):
        short = sizes <= at
        wide[short, at] = sign[short]
    lost |= (wide[:, 15] >= 0x80) != (sign == 0xFF)
    text = type_text(type_)
    rows.fail(mask & lost, lambda _: f"expected {text}; found a number of more than 128 bits")
    wide[lost] = 0
    data: Any = [None, pa.py_buffer(wide.tobytes())]
    found = pa.Array.from_buffers(pa.decimal128(38, type_.scale), len(rows), data)
    most = pa.scalar(decimal.Decimal(10**type_.precision - 1).scaleb(-type_.scale, _EXACT))
    least: Any = pc.negate(most.cast(found.type))
    outside: Any = pc.or_(pc.greater(found, most.cast(found.type)), pc.less(found, least))
    over = outside.to_numpy(zero_copy_only=False)
    rows.fail(mask & over, lambda row: f"expected {text}; found {found[row].as_py()}")
    nulls: Any = pa.array(mask & rows.good)
    return pc.if_else(nulls, found, None).cast(type_)


def _uuids(rows: Rows, mask: np.ndarray) -> Any:
    """UUIDs as text."""
    texts = _texts(pa.string())(rows, mask).to_pylist()
    found: list[bytes | None] = []
    wrong = np.zeros(len(rows), np.bool_)
    for row, text in enumerate(texts):
        try:
            found.append(None if text is None else uuid_of(text))
        except ValueError:
            found.append(None)
            wrong[row] = True
    rows.fail(wrong, lambda row: f"expected a UUID; found {texts[row]!r}")
    return pa.array(found, UUID)


def _instants(rows: Rows, mask: np.ndarray) -> Any:
    """Instants as text (ISO 8601, with a zone)."""
    texts = _texts(pa.string())(rows, mask)
    try:
        return texts.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        found = [_instant(one) for one in texts.to_pylist()]
        wrong = np.array([one is None for one in found]) & texts.is_valid().to_numpy(
            zero_copy_only=False
        )
        rows.fail(wrong, lambda row: f"expected an instant; found {texts[row].as_py()!r}")
        return pa.array(found, TIMESTAMP)


def _instant(text: str | None) -> Any:
    try:
        return None if text is None else pa.scalar(text).cast(TIMESTAMP).as_py()
    except pa.ArrowInvalid:
        return None


def _union(branches: list[_Field]) -> _Field:
    """A value, or NULL, as its number says; other unions can only be passed over."""
    real = [one for one in branches if one.type != pa.null()]
    type_ = real[0].type if len(real) == 1 else pa.null() if not real else None

    def read(rows: Rows, mask: np.ndarray) -> Any:
        chosen = rows.number(mask)
        rows.fail(
            mask & ((chosen < 0) | (chosen >= len(branches))),
            lambda row: f"expected a branch of {len(branches)}; found {chosen[row]}",
        )
        found = pa.nulls(len(rows))
        for number, branch in enumerate(branches):
            column = branch.read(rows, mask & (chosen == number))
            found = column if branch.type == type_ and branch.type != pa.null() else found
        return found

    return _Field(type_, read)


def _boolean(rows: Rows, mask: np.ndarray) -> Any:
    byte = rows.bytes(mask, 1)[:, 0]
    rows.fail(mask & (byte > 1), lambda row: f"expected 0 or 1 as a boolean; found {byte[row]}")
    return _masked(byte == 1, rows, mask, pa.bool_())


def _integers(type_: pa.DataType, low: int, high: int, unit: int = 1) -> _Field:
    def read(rows: Rows, mask: np.ndarray) -> Any:
        value = rows.number(mask)
        rows.fail(
            mask & ((value < low) | (value > high)),
            lambda row: f"expected {type_text(type_)}, from {low} to {high}; found {value[row]}",
        )
        kept = np.where((value < low) | (value > high), 0, value) * unit
        narrow = kept.astype(np.int32 if type_ in (pa.int32(), pa.date32()) else np.int64)
        return _masked(narrow, rows, mask, type_)

    return _Field(type_, read)


def _floats(size: int) -> _Field:
    type_ = pa.float32() if size == 4 else pa.float64()

    def read(rows: Rows, mask: np.ndarray) -> Any:
        values = rows.bytes(mask, size).view(f"<f{size}")[:, 0]
        return _masked(values, rows, mask, type_)

    return _Field(type_, read)


def _texts(type_: pa.DataType) -> Callable[[Rows, np.ndarray], Any]:
    def read(rows: Rows, mask: np.ndarray) -> Any:
        size = rows.number(mask)
        begin = rows.skip(mask, size)
        there = mask & rows.good
        column: Any = gather_column(
            rows.buffer, np.where(there, begin, 0), np.where(there, size, -1).astype(np.int32)
        )
        if type_ == pa.binary():
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text(one) for one in column.to_pylist()]
            wrong = np.array([one is None for one in texts]) & there
            rows.fail(wrong, lambda _: "expected text in UTF-8; found other bytes")
            return pa.array(texts, pa.string())

    return read


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _cut(rows: Rows, mask: np.ndarray, size: int) -> Any:
    begin = rows.skip(mask, np.full(len(rows), size, np.int64))
    there = mask & rows.good
    lengths = np.where(there, size, -1).astype(np.int32)
    return gather_column(rows.buffer, np.where(there, begin, 0), lengths)


def _enum(symbols: list[str]) -> _Field:
    def read(rows: Rows, mask: np.ndarray) -> Any:
        number = rows.number(mask)
        rows.fail(
            mask & ((number < 0) | (number >= len(symbols))),
            lambda row: f"expected a symbol of {len(symbols)}; found number {number[row]}",
        )
        there = mask & rows.good
        index: Any = pa.array(np.where(there, number, 0), mask=~there)
        return pa.array(symbols, pa.string()).take(index)

    return _Field(pa.string(), read)


def _record(fields: list[tuple[str, _Field]]) -> _Field:
    shown = [one for one in fields if one[1].type is not None]
    members: list[Any] = [(name, field.type) for name, field in shown]
    type_ = pa.struct(members) if shown else None

    def read(rows: Rows, mask: np.ndarray) -> Any:
        all_ = [(field.type, field.read(rows, mask)) for _, field in fields]
        found = [column for kind, column in all_ if kind is not None]
        if type_ is None:
            return pa.nulls(len(rows))
        nulls: Any = pa.array(~(mask & rows.good))
        return pa.StructArray.from_arrays(found, fields=list(type_), mask=nulls)

    return _Field(type_, read)


def _array(item: _Field) -> _Field:
    """Blocks of items, up to one of none; a block's count is negative where its bytes follow it."""
    type_ = None if item.type is None else pa.list_(item.type)

    def read(rows: Rows, mask: np.ndarray) -> Any:
        left = np.zeros(len(rows), np.int64)
        is_open = mask.copy()
        lengths = np.zeros(len(rows), np.int64)
        parts: list[Any] = []
        owners: list[np.ndarray] = []
        for _ in range(ITEMS_MAX):
            begins = is_open & rows.good & (left == 0)
            if begins.any():
                count = rows.number(begins)
                rows.number(begins & (count < 0))  # the block's bytes
                left = np.where(begins, np.abs(count), left)
                is_open &= ~(begins & (count == 0))
            now = is_open & rows.good & (left > 0)
            if not now.any():
                if not (is_open & rows.good).any():
                    break
                continue
            column = item.read(rows, now)
            taken = np.flatnonzero(now)
            index: Any = pa.array(taken)
            parts.append(column.take(index))
            owners.append(taken)
            lengths[taken] += 1
            left[taken] -= 1
        rows.fail(is_open & rows.good, lambda _: f"expected at most {ITEMS_MAX} items; found more")
        if type_ is None:
            return pa.nulls(len(rows))
        offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        items = pa.array([], item.type)
        if parts:
            order: Any = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
            items = pa.concat_arrays(parts).take(order)
        nulls: Any = pa.array(~(mask & rows.good))
        return pa.ListArray.from_arrays(offsets, items, mask=nulls).cast(type_)

    return _Field(type_, read)


def _map(value: _Field) -> _Field:
    """Pairs, in blocks as an array's items."""
    text = _Field(pa.string(), _texts(pa.string()))
    pairs = _array(_record([("key", text), ("value", value)]))
    type_: Any = None if value.type is None else pa.map_(pa.string(), value.type)

    def read(rows: Rows, mask: np.ndarray) -> Any:
        found = pairs.read(rows, mask)
        if type_ is None:
            return pa.nulls(len(rows))
        return vectors.maps_of(found, type_, pa.array(~(mask & rows.good)))

    return _Field(type_, read)


def _said(text: str, _: int) -> str:
    return text


def _masked(values: np.ndarray, rows: Rows, mask: np.ndarray, type_: pa.DataType) -> Any:
    nulls = ~(mask & rows.good)
    if type_ in (TIMESTAMP, TIME_OF_DAY, pa.date32()):
        plain = pa.int32() if type_ == pa.date32() else pa.int64()
        return pa.array(values, plain, mask=nulls).view(type_)
    return pa.array(values, type_, mask=nulls)


def _either(mask: np.ndarray, one: Any, other: Any) -> Any:
    """The first column where the mask is true, the second elsewhere."""
    both = pa.concat_arrays([one, other.cast(one.type)])
    index: Any = pa.array(np.where(mask, 0, len(mask)) + np.arange(len(mask)))
    return both.take(index)
