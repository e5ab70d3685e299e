"""Changelogs whose keys and values are Avro, as `penstock.formats.changelog` has them in JSON.

- `json` (rows): the value is a record with the row's columns.
- `debezium`: the value is Debezium's envelope, a record with `before`, `after` and `op`.

A record's key is a record with the key columns, or the value of the one key column. A key without a
registry's head is text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.formats.avro.reading import (
    Avro,
    AvroDecoder,
    Lookup,
    Reading,
    reading_of,
)
from penstock.formats.avro.rows import HEAD_BYTES, Rows, as_column
from penstock.formats.avro.schemas import fitting
from penstock.formats.changelog import EMPTIED, ChangelogDecoder, Changes, Gathered
from penstock.formats.json import Decoded
from penstock.formats.members import Texts
from penstock.wire.columns import Records, header

__all__ = ["AvroChangelogDecoder", "HeadedChangelogDecoder", "envelope_schema", "key_schema"]


class Decoding(Protocol):
    """What makes columns of values: see `penstock.formats.lines.Decoder`."""

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded: ...


_LOGICAL: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.ZonedTimestamp": "timestamp-text",
    "io.debezium.data.Uuid": "uuid",
}
"""Debezium's types, which it writes as attributes of plain ones, as logical types."""


class HeadedChangelogDecoder:
    """Decodes the records of one table, whose keys and values have a registry's head.

    Args:
        schema: of the rows.
        key: the columns that identify them, which are NOT NULL.
        values: decodes values: rows, or envelopes with the columns of `envelope_schema`.
        keys: decodes keys.
        columns: gives a key's columns by the id of its schema; none where the registry doesn't know it.
        is_envelope: whether values are envelopes.
    """

    def __init__(
        self,
        schema: Schema,
        key: tuple[str, ...],
        values: Decoding,
        keys: Decoding,
        columns: Callable[[int], Sequence[str]],
        *,
        is_envelope: bool,
    ) -> None:
        self.schema = schema
        self._columns, self._wider = columns, dict[int, tuple[str, ...]]()
        self._is_envelope = is_envelope
        self._key, self._key_schema = key, key_schema(schema, key)
        self._values, self._keys = values, keys
        self._texts = ChangelogDecoder(schema, key, "json")
        self._arrow = pa.schema([pa.field(one.name, one.type) for one in schema])

    def decode(self, records: Records) -> Changes:
        """The changes that some records are."""
        gathered = Gathered(self._arrow)
        values = Texts(records.buffer, records.value_start, records.value_length)
        keys = Texts(records.buffer, records.key_start, records.key_length)
        self._refuse_wider(gathered, keys)
        self._delete(gathered, keys, np.flatnonzero(~values.known))
        rows = np.flatnonzero(values.known)
        some = values.take(rows)
        decoded = self._values.decode(some.buffer, some.start, some.length)
        if not self._is_envelope:
            gathered.add(rows, decoded, deleted=False)
            return gathered.finish()
        gathered.refuse(rows[decoded.bad_rows], decoded.reasons)
        self._opened(gathered, records, keys, rows[decoded.rows], decoded.columns)
        return gathered.finish()

    def _opened(
        self, gathered: Gathered, records: Records, keys: Texts, rows: np.ndarray, found: Any
    ) -> None:
        """Takes envelopes: of each its record's index, and `op`, `before` and `after`."""
        ops = np.array(found.column("op").fill_null("").to_pylist(), object)
        before, after = found.column("before"), found.column("after")
        has_before, has_after = (
            np.asarray(one.is_valid().to_numpy(zero_copy_only=False)) for one in (before, after)
        )
        is_row, is_gone = np.isin(ops, ["c", "r", "u"]), ops == "d"
        gathered.refuse(
            rows[is_row & ~has_after], "expected the row as 'after'; found none in the envelope"
        )
        self._take(gathered, rows, after, is_row & has_after, self.schema, deleted=False)
        self._take(gathered, rows, before, is_gone & has_before, self._key_schema, deleted=True)
        self._delete(gathered, keys, rows[is_gone & ~has_before])
        for at in np.flatnonzero(~is_row & ~is_gone).tolist():
            row = int(rows[at])
            if ops[at] == "t" and EMPTIED in dict(header(records, row)):
                continue
            gathered.refuse(
                rows[at : at + 1], f"expected 'op' to be c, r, u or d; found {ops[at]!r}"
            )

    @staticmethod
    def _take(
        gathered: Gathered,
        rows: np.ndarray,
        structs: Any,
        mask: np.ndarray,
        schema: Schema,
        *,
        deleted: bool,
    ) -> None:
        """Takes the columns of a schema of some records' structs."""
        kept: Any = pa.array(mask)
        some = structs.filter(kept)
        columns = [some.field(one.name) for one in schema]
        batch = pa.RecordBatch.from_arrays(columns, names=list(schema.names))
        fits = np.ones(len(batch), np.bool_)
        reasons: dict[int, str] = {}
        for one, column in zip(schema, columns, strict=True):
            if one.required and column.null_count:
                known = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
                for at in np.flatnonzero(~known).tolist():
                    reasons.setdefault(
                        at, f"field {one.name!r}: expected a value (NOT NULL); found null"
                    )
                fits &= known
        bad = np.array(sorted(reasons), np.int64)
        good: Any = pa.array(fits)
        causes = [reasons[at] for at in bad.tolist()]
        decoded = Decoded(batch.filter(good), np.flatnonzero(fits), bad, causes)
        gathered.add(rows[mask], decoded, deleted=deleted)

    def _refuse_wider(self, gathered: Gathered, keys: Texts) -> None:
        """Refuses the records whose key has columns besides the table's: see `penstock.formats.changelog`."""
        if not self._key:
            return
        headed = np.flatnonzero(_headed(keys))
        some = keys.take(headed)
        ids = Rows(some.buffer, some.start, some.length).ids()
        for id_ in np.unique(ids).tolist():
            if others := self._others(id_):
                gathered.refuse_key(headed[ids == id_], self._key, others)
        self._texts.refuse_wider(gathered, keys, np.flatnonzero(~_headed(keys)))

    def _others(self, id_: int) -> tuple[str, ...]:
        """The columns that keys of a schema have besides the table's."""
        if id_ not in self._wider:
            try:
                names = self._columns(id_)
            except SchemaError:
                names = ()
            if not names:
                return ()  # what decodes the key says why
            others = tuple(name for name in names if name not in self._key)
            self._wider[id_] = others if set(self._key) <= set(names) else ()
        return self._wider[id_]

    def _delete(self, gathered: Gathered, keys: Texts, rows: np.ndarray) -> None:
        """Deletes what the keys of some records name."""
        if not self._key:
            return
        some = keys.take(rows)
        is_avro = _headed(some)
        self._texts.delete_by_key(gathered, keys, rows[~is_avro])
        some = some.take(np.flatnonzero(is_avro))
        decoded = self._keys.decode(some.buffer, some.start, some.length)
        reasons = [f"{reason}, in the record's key" for reason in decoded.reasons]
        gathered.add(rows[is_avro], replace(decoded, reasons=reasons), deleted=True)


class AvroChangelogDecoder(HeadedChangelogDecoder):
    """Decodes the records of one table. It holds no state between batches, but schemas.

    Args:
        schema: of the rows.
        key: the columns that identify them, which are NOT NULL.
        format: `json` for rows, or `debezium`.
        avro: what the records are.
        lookup: asks its registry.
    """

    def __init__(
        self,
        schema: Schema,
        key: tuple[str, ...],
        format: Literal["json", "debezium"],  # noqa: A002
        avro: Avro,
        lookup: Lookup | None,
    ) -> None:
        is_envelope = format == "debezium"
        decoder = _EnvelopeDecoder if is_envelope else AvroDecoder
        keys = _KeyDecoder(key_schema(schema, key), avro, lookup)
        columns = functools.partial(_key_columns, lookup)
        values = decoder(schema, avro, lookup)
        super().__init__(schema, key, values, keys, columns, is_envelope=is_envelope)


def _headed(keys: Texts) -> np.ndarray:
    """bool[n]: which keys have a registry's head."""
    return np.asarray((keys.length >= HEAD_BYTES) & (keys.first() == 0))


def _key_columns(lookup: Lookup | None, id_: int) -> list[str]:
    text = None if lookup is None else lookup(id_)
    parsed = None if text is None else json.loads(text)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return []  # the value of a single column
    return [one["name"] for one in parsed["fields"]]


def key_schema(schema: Schema, key: tuple[str, ...]) -> Schema:
    """The columns of keys; without any the first, which isn't read."""
    return Schema(tuple(schema[name] for name in key or schema.names[:1]))


def envelope_schema(schema: Schema) -> Schema:
    """The columns of envelopes: `op`, and of `before` and `after` the columns of a table."""
    row: Any = pa.struct([pa.field(one.name, one.type) for one in schema])
    return Schema((Field("op", pa.string()), Field("before", row), Field("after", row)))


class _KeyDecoder(AvroDecoder):
    """Keys: records of the key columns, or the value of the one there is."""

    def _reading(self, text: str) -> Reading:
        parsed = json.loads(text)
        if isinstance(parsed, dict) and parsed.get("type") == "record":
            return super()._reading(text)
        if len(self.schema.fields) > 1:
            raise SchemaError(
                f"expected a record with the key {', '.join(self.schema.names)}; found {text[:100]}"
            )
        [name] = self.schema.names
        only = {"name": name, "type": parsed}
        return super()._reading(json.dumps({"type": "record", "name": "Key", "fields": [only]}))


class _EnvelopeDecoder(AvroDecoder):
    """Envelopes: `op`, and of `before` and `after` the columns of a table."""

    def __init__(self, schema: Schema, avro: Avro, lookup: Lookup | None) -> None:
        self._columns = schema
        super().__init__(envelope_schema(schema), avro, lookup)

    def _reading(self, text: str) -> Reading:
        fields = dict(reading_of(json.dumps(_debezium(json.loads(text)))).fields)
        if missing := [name for name in self.schema.names if name not in fields]:
            raise SchemaError(
                f"expected an envelope with op, before and after; found a record without "
                f"{', '.join(missing)}"
            )
        for name in ("before", "after"):
            type_ = fields[name].type
            if type_ is None or not pa.types.is_struct(type_):
                raise SchemaError(f"expected {name!r} of an envelope as a record; found {type_}")
            inner = {one.name: one.type for one in type_}
            fitting(self._columns, inner)
        return _Envelopes(
            tuple(fields.items()), frozenset(self.schema.names), columns=self._columns
        )


@dataclass(frozen=True)
class _Envelopes(Reading):
    """How envelopes of a writer's schema are read.

    Attributes:
        columns: of `before` and `after`.
    """

    columns: Schema = field(kw_only=True)

    def read(self, rows: Rows, mask: np.ndarray) -> dict[str, Any]:
        """See `Reading`."""
        found = super().read(rows, mask)
        parts = {name: self._chosen(rows, found[name]) for name in ("before", "after")}
        return {"op": found["op"], **parts}

    def _chosen(self, rows: Rows, structs: Any) -> Any:
        """Of structs the columns of the table; NULL for those that they don't have."""
        names = [one.name for one in structs.type]
        kinds: dict[str, Any] = {one.name: one.type for one in self.columns}
        arrays: list[Any] = [
            as_column(rows, one.name, structs.field(one.name), one.type)
            if one.name in names
            else pa.nulls(len(structs), kinds[one.name])
            for one in self.columns
        ]
        fields: Any = [pa.field(one.name, one.type) for one in self.columns]
        nulls = structs.is_null()
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)


def _debezium(node: Any) -> Any:
    """A schema in which Debezium's types are logical ones."""
    match node:
        case list():
            return [_debezium(one) for one in node]
        case dict():
            found = {name: _debezium(one) for name, one in node.items()}
            logical = _LOGICAL.get(str(node.get("connect.name")))
            return {"logicalType": logical, **found} if logical else found
    return node
