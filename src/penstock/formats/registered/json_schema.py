"""JSON rows by a JSON Schema of a registry: its schemas of columns, rows to records, and back.

A record is a registry's head (a zero byte, the schema's id in four bytes) and a row as
`penstock.formats.json` has it. A schema is closed (`additionalProperties: false`), so that a column that may
be NULL can be added: an open one would take any value under the new name already. A column NOT NULL is
required; others may be null, or missing. Numbers that aren't finite are texts, as JSON has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import (
    INTERVAL,
    JSON,
    TIME_OF_DAY,
    TIMESTAMP,
    UUID,
    Field,
    Schema,
    type_text,
)
from penstock.errors import SchemaError
from penstock.formats.avro.reading import UNKNOWN_IDS_MAX, Lookup
from penstock.formats.avro.rows import HEAD_BYTES, Rows
from penstock.formats.json import Decoded, JsonDecoder, encode_rows

__all__ = ["JsonSchemaDecoder", "JsonSchemaEncoder", "json_schema"]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_NO_NUMBER: Final = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int32(): {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    pa.int64(): {"type": "integer"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    TIMESTAMP: {"type": "string", "format": "date-time"},
    pa.date32(): {"type": "string", "format": "date"},
    TIME_OF_DAY: {"type": "string"},
    INTERVAL: {"type": "string", "format": "duration"},
    UUID: {"type": "string", "format": "uuid"},
    JSON: {"type": ["object", "array", "string", "number", "boolean"]},
}


def json_schema(schema: Schema, title: str) -> dict[str, Any]:
    """The schema of rows.

    Args:
        schema: the columns. Members of a STRUCT are NOT NULL where Arrow's field isn't nullable.
        title: of the schema, such as `Value`.

    Raises:
        SchemaError: a column has a type that JSON rows don't have.

    >>> json_schema(Schema.parse("id BIGINT NOT NULL"), "Key")["properties"]
    {'id': {'type': 'integer'}}
    """
    return {"$schema": _DIALECT, "title": title, **_object(schema.fields)}


def _object(columns: Sequence[Field]) -> dict[str, Any]:
    properties = {one.name: _column(one) for one in columns}
    required = [one.name for one in columns if one.required]
    requirement = {"required": required} if required else {}
    return {
        "type": "object",
        "properties": properties,
        **requirement,
        "additionalProperties": False,
    }


def _column(one: Field) -> Any:
    found = _choices(one.type, one.name)
    if not one.required:
        found = [{"type": "null"}, *found]
    return found[0] if len(found) == 1 else {"oneOf": found}


def _choices(type_: Any, column: str) -> list[Any]:
    """The schemas of a type's values, of which one fits each."""
    if type_ in _PLAIN:
        return [_PLAIN[type_]]
    if pa.types.is_floating(type_):
        return [{"type": "number"}, _NO_NUMBER]
    if pa.types.is_decimal128(type_):
        return [{"type": "number"}]
    if pa.types.is_list(type_):
        return [{"type": "array", "items": _column(Field(column, type_.value_type))}]
    if pa.types.is_map(type_):
        return [{"type": "object", "additionalProperties": _column(Field(column, type_.item_type))}]
    if pa.types.is_struct(type_):
        return [_object([Field(one.name, one.type, not one.nullable) for one in type_])]
    raise SchemaError(
        f"expected columns of types that JSON has; found {column!r}, {type_text(type_)}. Convert it, or "
        "omit it"
    )


class JsonSchemaEncoder:
    """Encodes rows as JSON of one schema. It holds no state between batches; threads may share it.

    Args:
        schema: the columns.
        title: of the schema.

    Attributes:
        text: the schema, as JSON.

    Raises:
        SchemaError: a column has a type that JSON rows don't have.
    """

    def __init__(self, schema: Schema, title: str) -> None:
        self.schema = schema
        self.text = json.dumps(json_schema(schema, title), separators=(",", ":"))

    def encode(self, rows: pa.Table, head: bytes = b"") -> pa.Array:
        """The records of rows.

        Args:
            rows: they have the columns; others aren't looked at.
            head: what each record begins with.

        Returns: binary, as many as rows.
        """
        texts: Any = encode_rows(rows, columns=self.schema.names).cast(pa.binary())
        heads: Any = pa.scalar(head, pa.binary())
        joined: Any = pc.binary_join_element_wise(heads, texts, pa.scalar(b"", pa.binary()))
        return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


class JsonSchemaDecoder:
    """Decodes records of one schema. It holds no state between batches, but ids that it knows.

    Args:
        schema: the columns. A row fits if it fits these; the writer's schema only has to be known.
        lookup: asks a registry.
        columns: that are wanted; None is all.
    """

    def __init__(
        self, schema: Schema, lookup: Lookup, columns: frozenset[str] | None = None
    ) -> None:
        self.schema = schema
        self.heads = Heads(lookup)
        self._rows = JsonDecoder(schema, columns)

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """See `penstock.formats.lines.Decoder`."""
        rows = Rows(buffer, start, length)
        self.heads.read(rows)
        known = np.where(rows.good, length - HEAD_BYTES, -1).astype(np.int32)
        found = self._rows.decode(buffer, np.where(rows.good, rows.at, 0), known)
        bad = zip(found.bad_rows.tolist(), found.reasons, strict=True)
        return replace(found, reasons=[rows.reasons.get(row, reason) for row, reason in bad])


class Heads:
    """Reads the heads of records, and knows which ids are JSON Schemas.

    Args:
        lookup: asks a registry.

    Attributes:
        texts: the schemas by their ids.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.texts: dict[int, str] = {}
        self._lookup, self._misfits = lookup, dict[int, str]()

    def read(self, rows: Rows) -> np.ndarray:
        """The ids; records that have none of a known schema are bad."""
        ids = rows.ids()
        unknown = 0
        for id_ in np.unique(ids[rows.good]).tolist():
            if id_ in self.texts or id_ in self._misfits or unknown >= UNKNOWN_IDS_MAX:
                continue
            try:
                text = self._lookup(id_)
            except SchemaError as error:
                self._misfits[id_] = f"schema {id_}: {error}"
                continue
            if text is None:
                unknown += 1
            else:
                self.texts[id_] = text
        for id_, reason in self._misfits.items():
            rows.fail(ids == id_, lambda _, reason=reason: reason)  # type: ignore[misc] # of the default
        rest = ~np.isin(ids, list(self.texts))
        rows.fail(
            rest, lambda row: f"expected the id of a schema in the registry; found {ids[row]}"
        )
        return ids
