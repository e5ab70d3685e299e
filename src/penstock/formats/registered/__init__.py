"""Topics whose records have a registry's head: the formats by name, and changelogs of all of them.

Avro and Protobuf read many schemas in one pass. A JSON Schema gives the unit of a column's numbers, as Kafka
Connect's converters do, so changelogs are decoded schema by schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.schema import Schema
from penstock.formats.avro import Avro, AvroChangelogDecoder, AvroEncoder, Lookup, Lookups
from penstock.formats.avro.rows import HEAD_BYTES, Rows
from penstock.formats.changelog import ChangelogDecoder, Changes
from penstock.formats.members import Texts
from penstock.formats.protobuf import (
    ProtobufChangelogDecoder,
    ProtobufDecoder,
    ProtobufEncoder,
)
from penstock.formats.registered.json_schema import Heads, JsonSchemaDecoder, JsonSchemaEncoder
from penstock.schemas import Kind
from penstock.wire.columns import Records

__all__ = [
    "KINDS",
    "Encoded",
    "JsonSchema",
    "Lookups",
    "Protobuf",
    "RegisteredChangelog",
    "RegisteredEncoder",
    "RegisteredFormat",
    "encoded_as",
    "registered_changelog",
    "registered_encoder",
]


@dataclass(frozen=True)
class JsonSchema:
    """Records whose values are JSON by a schema of a registry.

    Attributes:
        registry: its URL.
    """

    name: ClassVar[str] = "json-schema"
    kind: ClassVar[Kind] = Kind.JSON

    registry: str = field(repr=False)  # plans know formats by their texts

    def decoder(
        self,
        schema: Schema,
        columns: frozenset[str] | None = None,
        lookups: Lookups | None = None,
    ) -> JsonSchemaDecoder:
        """See `penstock.formats.lines.Format`."""
        lookup = lookups(self.registry, self.kind) if lookups else _unknown
        return JsonSchemaDecoder(schema, lookup, columns)


@dataclass(frozen=True)
class Protobuf:
    """Records whose values are Protobuf by a schema of a registry.

    Attributes:
        registry: its URL.
    """

    name: ClassVar[str] = "protobuf"
    kind: ClassVar[Kind] = Kind.PROTOBUF

    registry: str = field(repr=False)

    def decoder(
        self,
        schema: Schema,
        columns: frozenset[str] | None = None,  # noqa: ARG002 - others cost nothing
        lookups: Lookups | None = None,
    ) -> ProtobufDecoder:
        """See `penstock.formats.lines.Format`."""
        lookup = lookups(self.registry, self.kind) if lookups else _unknown
        return ProtobufDecoder(schema, lookup)


def _unknown(_: int) -> None:
    """Knows no schema."""


Encoded = Avro | JsonSchema | Protobuf
"""What keys and values may be other than JSON."""
RegisteredFormat: TypeAlias = Literal["avro", "json-schema", "protobuf"]
_FORMATS: Final = (Avro, JsonSchema, Protobuf)
KINDS: Final[Mapping[str, Kind]] = {one.name: one.kind for one in _FORMATS}
"""The kinds of schemas by their formats."""
_Rows: TypeAlias = Literal["json", "debezium"]
_TIME: Final = "io.debezium.time."
_MICROS: Final = (f"{_TIME}MicroTimestamp", f"{_TIME}MicroTime")
_JSON: Final = "io.debezium.data.Json"
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


def encoded_as(name: str, registry: str) -> Encoded:
    """The format of a name, with a registry."""
    [format_] = (one for one in _FORMATS if one.name == name)
    return format_(registry=registry)


class RegisteredEncoder(Protocol):
    """What makes records of rows by a schema, whose text it has."""

    @property
    def schema(self) -> Schema:
        """The columns."""

    @property
    def text(self) -> str:
        """The schema as a registry keeps it."""

    def encode(self, rows: pa.Table, head: bytes = b"") -> pa.Array[Any]:
        """The records of rows, each behind the head."""


def registered_encoder(
    kind: Kind,
    schema: Schema,
    name: str,
    space: str,
    records: Mapping[str, str] | None = None,
    earlier: Callable[[], Sequence[str]] = tuple,
) -> RegisteredEncoder:
    """What encodes rows by a schema of a kind.

    Args:
        kind: of the schema.
        schema: the columns.
        name: of the record, or message.
        space: the namespace, or package, that this is in.
        records: the names of columns that are records.
        earlier: gives the schemas that the subject has, in which a message's fields have their numbers.

    Raises:
        SchemaError: the kind doesn't have these columns.
    """
    match kind:
        case Kind.AVRO:
            return AvroEncoder(schema, name, space, records)
        case Kind.JSON:
            return JsonSchemaEncoder(schema, name)
        case Kind.PROTOBUF:
            return ProtobufEncoder(schema, name, space, records, earlier())


def registered_changelog(
    schema: Schema,
    key: tuple[str, ...],
    format: _Rows,  # noqa: A002
    encoded: Encoded,
    lookups: Lookups,
    kinds: Callable[[str], Callable[[int], Kind | None]],
) -> RegisteredChangelog:
    """What decodes the records of one table.

    Args:
        schema: of the rows.
        key: the columns that identify them, which are NOT NULL.
        format: `json` for rows of the kind that `encoded` says, or `debezium` for envelopes of any kind.
        encoded: names the registry.
        lookups: asks it for schemas.
        kinds: asks it of which kind they are.
    """
    url = encoded.registry
    assert url is not None, "`check_changelog` lets none pass"

    def made(kind: Kind) -> RegisteredChangelog:
        lookup = lookups(url, kind)
        match kind:
            case Kind.AVRO:
                return AvroChangelogDecoder(schema, key, format, Avro((), url), lookup)
            case Kind.JSON:
                return _JsonChangelogDecoder(schema, key, format, lookup)
            case Kind.PROTOBUF:
                return ProtobufChangelogDecoder(schema, key, format, lookup)

    if format == "json":
        return made(encoded.kind)
    return _AnyChangelogDecoder(made, kinds(url))


class _AnyChangelogDecoder:
    """Decodes envelopes of any kind, by the schema that a record names.

    Args:
        made: gives what decodes a kind.
        kind_of: the kind of a schema by its id; None where the registry doesn't know it.
    """

    def __init__(
        self, made: Callable[[Kind], RegisteredChangelog], kind_of: Callable[[int], Kind | None]
    ) -> None:
        self._made, self._kind_of = made, kind_of
        self._kinds: dict[int, Kind] = {}
        self._decoders: dict[Kind, RegisteredChangelog] = {}

    def decode(self, records: Records) -> Changes:
        """The changes that some records are."""
        ids = _ids(records)
        known, place = np.unique(ids, return_inverse=True)
        kinds = [self._kind(id_) for id_ in known.tolist()]
        of = np.array(kinds, object)[place]
        parts = []
        for kind in sorted(set(kinds)) or [Kind.AVRO]:
            if kind not in self._decoders:
                self._decoders[kind] = self._made(kind)
            parts.append((np.flatnonzero(of == kind), self._decoders[kind]))
        return _apart(records, parts)

    def _kind(self, id_: int) -> Kind:
        if id_ not in self._kinds:
            found = None if id_ < 0 else self._kind_of(id_)
            if found is None:
                return Kind.AVRO  # which says what is wrong
            self._kinds[id_] = found
        return self._kinds[id_]


class _JsonChangelogDecoder:
    """Decodes rows or envelopes that are JSON of a registry's schemas."""

    def __init__(
        self, schema: Schema, key: tuple[str, ...], format_: _Rows, lookup: Lookup
    ) -> None:
        self._schema, self._key, self._format = schema, key, format_
        self._heads = Heads(lookup)
        self._decoders: dict[int, ChangelogDecoder] = {}

    def decode(self, records: Records) -> Changes:
        """The changes that some records are."""
        ids = np.full(len(records), -1, np.int64)
        bad: dict[int, str] = {}
        values = Texts(records.buffer, records.value_start, records.value_length)
        keys = Texts(records.buffer, records.key_start, records.key_length)
        self._read(ids, bad, values, np.flatnonzero(values.known))
        headed = (keys.length >= HEAD_BYTES) & (keys.first() == 0)
        self._read(ids, bad, keys, np.flatnonzero(~values.known & headed))
        good = np.ones(len(records), np.bool_)
        good[list(bad)] = False
        known = np.unique(ids[good]).tolist() or [-1]
        parts = [(np.flatnonzero((ids == id_) & good), self._decoder(id_)) for id_ in known]
        found = _apart(_without_heads(records), parts)
        bad |= dict(zip(found.bad_rows.tolist(), found.reasons, strict=True))
        order = sorted(bad)
        reasons = [bad[row] for row in order]
        return replace(found, bad_rows=np.array(order, np.int64), reasons=reasons)

    def _read(self, ids: np.ndarray, bad: dict[int, str], texts: Texts, some: np.ndarray) -> None:
        """Finds the ids of some records, and which of these are bad."""
        part = texts.take(some)
        rows = Rows(part.buffer, part.start, part.length)
        ids[some] = self._heads.read(rows)
        bad |= {int(some[row]): reason for row, reason in rows.reasons.items()}

    def _decoder(self, id_: int) -> ChangelogDecoder:
        """What decodes the records of a schema; those of -1 have none."""
        if id_ not in self._decoders:
            units = _units(self._heads.texts.get(id_, "{}"))
            self._decoders[id_] = ChangelogDecoder(self._schema, self._key, self._format, *units)
        return self._decoders[id_]


RegisteredChangelog = (
    AvroChangelogDecoder | ProtobufChangelogDecoder | _JsonChangelogDecoder | _AnyChangelogDecoder
)
"""What decodes the records of one table."""


def _ids(records: Records) -> np.ndarray:
    """int64[n]: the id of each record's value, or of its key where it has none; -1 where neither has."""
    ids = np.full(len(records), -1, np.int64)
    for start, length in (
        (records.key_start, records.key_length),
        (records.value_start, records.value_length),
    ):
        there = np.flatnonzero(length >= HEAD_BYTES)
        head = records.buffer[start[there, None] + np.arange(HEAD_BYTES)]
        numbers = np.ascontiguousarray(head[:, 1:]).view(">u4")[:, 0].astype(np.int64)
        ids[there] = np.where(head[:, 0] == 0, numbers, -1)
    return ids


def _without_heads(records: Records) -> Records:
    """Keys and values without their heads; keys that have none are text."""
    behind: dict[str, Any] = {}
    for part in ("key", "value"):
        start, length = getattr(records, f"{part}_start"), getattr(records, f"{part}_length")
        headed = (length >= HEAD_BYTES) & (Texts(records.buffer, start, length).first() == 0)
        behind[f"{part}_start"] = np.where(headed, start + HEAD_BYTES, start)
        behind[f"{part}_length"] = np.where(headed, length - HEAD_BYTES, length).astype(np.int32)
    return replace(records, **behind)


def _apart(records: Records, parts: Sequence[tuple[np.ndarray, Any]]) -> Changes:
    """The changes of records that are decoded apart, in the records' order."""
    if len(parts) == 1 and len(parts[0][0]) == len(records):
        found: Changes = parts[0][1].decode(records)
        return found
    made = [(rows, decoder.decode(records.take(rows))) for rows, decoder in parts]
    rows = np.concatenate([rows[one.rows] for rows, one in made])
    order = np.argsort(rows, kind="stable")
    whole = pa.concat_batches([one.columns for _, one in made])  # type: ignore[attr-defined] # not in the stubs
    index: Any = pa.array(order)
    bad = dict(_bad(made))
    return Changes(
        whole.take(index),
        rows[order],
        np.concatenate([one.deleted for _, one in made])[order],
        np.array(sorted(bad), np.int64),
        [bad[row] for row in sorted(bad)],
        frozenset(int(rows[row]) for rows, one in made for row in one.foreign),
    )


def _bad(made: Sequence[tuple[np.ndarray, Changes]]) -> Iterator[tuple[int, str]]:
    for rows, one in made:
        yield from zip(rows[one.bad_rows].tolist(), one.reasons, strict=True)


def _units(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The columns of a schema, or of its envelopes, that are microseconds, unscaled, and JSON as text."""
    node = _plain(json.loads(text))
    properties = node.get("properties", {})
    after = _plain(properties.get("after"))
    columns = after.get("properties", {}) if "op" in properties else properties
    titles = {name: _plain(one).get("title") for name, one in columns.items()}
    return (
        frozenset(name for name, title in titles.items() if title in _MICROS),
        frozenset(name for name, title in titles.items() if title == _DECIMAL),
        frozenset(name for name, title in titles.items() if title == _JSON),
    )


def _plain(node: Any) -> dict[str, Any]:
    """A schema without the choice of null."""
    if not isinstance(node, dict):
        return {}
    for one in node.get("oneOf", ()):
        if isinstance(one, dict) and one.get("type") != "null":
            return one
    return node
