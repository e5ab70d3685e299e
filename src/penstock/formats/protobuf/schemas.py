"""Protobuf's messages of columns: what a topic's records are registered as.

    column           type           column           type
    BOOLEAN          bool           TIMESTAMP        google.protobuf.Timestamp
    INT              int32          INTERVAL         google.protobuf.Duration
    BIGINT           int64          DATE             google.type.Date
    FLOAT            float          TIME             google.type.TimeOfDay
    DOUBLE           double         DECIMAL          confluent.type.Decimal
    STRING, UUID,    string         ARRAY, MAP       repeated, map
    JSON                            STRUCT           message
    BINARY           bytes

A column that may be NULL is `optional`. A field keeps the number that its name had in an earlier version, and
no number is used for another name, so a column that is added, dropped or moved is a compatible change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

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
from penstock.formats.avro.schemas import avro_name
from penstock.schemas import Malformed
from penstock.schemas.protobuf import ProtoFile, parse_protobuf
from penstock.schemas.protos import ProtoField, ProtoMessage

__all__ = [
    "DATE",
    "DECIMAL",
    "DURATION",
    "INSTANT",
    "TIME",
    "ProtobufSchema",
    "numbered",
    "protobuf_schema",
]

INSTANT: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
DATE: Final = "google.type.Date"
TIME: Final = "google.type.TimeOfDay"
DECIMAL: Final = "confluent.type.Decimal"
_FILES: Final = {
    INSTANT: "google/protobuf/timestamp.proto",
    DURATION: "google/protobuf/duration.proto",
    DATE: "google/type/date.proto",
    TIME: "google/type/timeofday.proto",
    DECIMAL: "confluent/type/decimal.proto",
}
_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "bool",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    UUID: "string",
    JSON: "string",
    TIMESTAMP: INSTANT,
    INTERVAL: DURATION,
    pa.date32(): DATE,
    TIME_OF_DAY: TIME,
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class ProtobufSchema:
    """A file whose first message records are.

    Attributes:
        text: as `.proto`.
        messages: those that aren't within others.
    """

    text: str
    messages: tuple[ProtoMessage, ...]


def protobuf_schema(
    schema: Schema,
    name: str,
    package: str,
    records: Mapping[str, str] = _NO_NAMES,
    earlier: Sequence[str] = (),
) -> ProtobufSchema:
    """The file of rows: a message with a field for each column.

    Args:
        schema: the columns. Members of a STRUCT are NOT NULL where Arrow's field isn't nullable.
        name: of the message, such as `Value`.
        package: such as a topic; what names can't have becomes `_`.
        records: names for the messages of STRUCT columns, which are then the file's; columns with one name
            have one type. Others are within their row's, named after their columns.
        earlier: the subject's versions, the newest first. One that says the same is taken as it is.

    Raises:
        SchemaError: a column has a name or a type that Protobuf doesn't have.

    >>> print(protobuf_schema(Schema.parse("id INT NOT NULL, name STRING"), "User", "my-shop").text)
    syntax = "proto3";
    package my_shop;
    <BLANKLINE>
    message User {
      int32 id = 1;
      optional string name = 2;
    }
    """
    made = [_message(name, schema.fields, records)]
    for one in schema:
        if (called := records.get(one.name)) and called not in {each.name for each in made}:
            kind: Any = one.type
            made.append(_message(called, _members(kind)))
    return numbered(made, package, earlier)


def numbered(
    messages: Sequence[ProtoMessage], package: str, earlier: Sequence[str] = ()
) -> ProtobufSchema:
    """The file of messages, whose fields get their numbers.

    Args:
        messages: the first one is what records are.
        package: see `protobuf_schema`.
        earlier: see `protobuf_schema`.
    """
    versions = list(_files(earlier))
    for one in messages:
        _number(one, _named((each.messages for each in versions), one.name))
    space = avro_name(package)
    lines = ['syntax = "proto3";', f"package {space};", ""]
    if imports := sorted({_FILES[one] for one in _kinds(messages) if one in _FILES}):
        lines += [*(f'import "{one}";' for one in imports), ""]
    text = "\n".join([*lines, *(line for one in messages for line in _lines(one, ""))])
    shape = _shape(parse_protobuf(text).messages)
    for version in versions:
        if version.package == space and _shape(version.messages) == shape:
            text = version.text
            break
    return ProtobufSchema(text, tuple(messages))


def _number(message: ProtoMessage, earlier: Sequence[ProtoMessage]) -> None:
    """Gives fields the numbers that their names had before, the newest that counts; others new ones."""
    known = {one.name: one.number for old in reversed(earlier) for one in old.fields}
    newest = max((one.number for old in earlier for one in old.fields), default=0)
    for one in message.fields:
        one.number = known.get(one.name, 0)
        if not one.number:
            newest += 1
            one.number = newest
    for inner in message.messages:
        _number(inner, _named((old.messages for old in earlier), inner.name))


def _files(texts: Iterable[str]) -> Iterable[ProtoFile]:
    for text in texts:
        try:
            yield parse_protobuf(text)
        except Malformed:  # of another kind, or with references: not ours
            continue


def _named(versions: Iterable[Sequence[ProtoMessage]], name: str) -> list[ProtoMessage]:
    """The messages of a name that versions had."""
    return [one for version in versions for one in version if one.name == name]


def _members(type_: Any) -> list[Field]:
    return [Field(one.name, one.type, not one.nullable) for one in type_]


def _message(
    name: str,
    columns: Sequence[Field],
    records: Mapping[str, str] = _NO_NAMES,
) -> ProtoMessage:
    wrong = [one.name for one in columns if not _NAME.fullmatch(one.name)]
    if wrong:
        raise SchemaError(
            f"expected columns that Protobuf has names for (letters, digits and '_', no digit first); found "
            f"{', '.join(map(repr, wrong))}. Rename them: select(…, name={wrong[0]!r})"
        )
    found = ProtoMessage(name)
    for column in columns:
        one = ProtoField(column.name, 0, "", "" if column.required else "optional")
        _fill(one, column, column.type, found, records.get(column.name))
        found.fields.append(one)
    return found


def _fill(
    one: ProtoField,
    column: Field,
    type_: Any,
    message: ProtoMessage,
    called: str | None,
) -> None:
    """Describes a field's type; a message of its own is put into `message`."""
    if pa.types.is_struct(type_):
        if called is None:
            taken = {each.name for each in message.messages}
            called = f"{column.name[0].upper()}{column.name[1:]}"
            while called in taken:
                called += "_"
            message.messages.append(_message(called, _members(type_)))
        one.type = called
        return
    is_plain = not one.key and one.label != "repeated"
    if pa.types.is_list(type_) and is_plain:
        one.label = "repeated"
        _fill(one, column, type_.value_type, message, called)
        return
    if pa.types.is_map(type_) and type_.key_type == pa.string() and is_plain:
        one.label, one.key = "", "string"
        _fill(one, column, type_.item_type, message, called)
        return
    found = DECIMAL if pa.types.is_decimal128(type_) else _TYPES.get(type_)
    if found is None:
        raise SchemaError(
            f"expected columns of types that Protobuf has, arrays and maps of none of them; found "
            f"{column.name!r}, {type_text(column.type)}. Convert it, or omit it"
        )
    one.type = found


def _kinds(messages: Iterable[ProtoMessage]) -> Iterable[str]:
    for one in messages:
        yield from (each.type for each in one.fields)
        yield from _kinds(one.messages)


def _lines(message: ProtoMessage, indent: str) -> Iterable[str]:
    yield f"{indent}message {message.name} {{"
    for one in message.fields:
        label = f"{one.label} " if one.label else ""
        yield f"{indent}  {label}{one.shown} {one.name} = {one.number};"
    for inner in message.messages:
        yield from _lines(inner, f"{indent}  ")
    yield f"{indent}}}"


def _shape(messages: Sequence[ProtoMessage]) -> Any:
    """What messages say, whatever their order is but for the first, which records are."""
    first = messages[0].name if messages else ""
    return first, frozenset(map(_parts, messages))


def _parts(message: ProtoMessage) -> Any:
    fields = frozenset(
        (one.name, one.number, one.type, one.label, one.key, one.oneof) for one in message.fields
    )
    return message.name, fields, frozenset(map(_parts, message.messages))
