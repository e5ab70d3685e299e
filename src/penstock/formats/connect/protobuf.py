"""Kafka Connect's schemas as Protobuf's messages, and what writes records one at a time.

The latter are the rules in full, as `penstock.formats.connect.avro` has them for Avro.

Dates, times and decimals are the messages that every compiler has (`google.protobuf.Timestamp`,
`google.type.Date`, `confluent.type.Decimal`): so a record says what its numbers mean, without a converter's
attributes.
"""

from __future__ import annotations

import base64
import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.formats.connect.parts import FORMER, UNFIT, Avro, Losses, fields_of, inner
from penstock.formats.protobuf import ProtobufSchema, numbered, schemas, tag
from penstock.schemas.protos import ProtoField, ProtoMessage

__all__ = ["protobuf_of"]

Put: TypeAlias = Callable[[Any], bytes]
"""Makes a value's bytes, as JSON has it, without its field's tag."""
Message: TypeAlias = Callable[[Any], bytes]
"""Makes an object's bytes."""
_FLOAT, _DOUBLE = struct.Struct("<f").pack, struct.Struct("<d").pack
_SECOND_US: Final = 1_000_000
_NUMBER, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_MICROS: Final = {
    "io.debezium.time.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.Time": 1_000,
    "io.debezium.time.MicroTime": 1,
}
"""Microseconds of a unit."""


def protobuf_of(
    schema: Avro,
    members: Mapping[str, Sequence[str]],
    package: str,
    earlier: Sequence[str],
    losses: Losses,
    *,
    is_mysql: bool = False,
) -> tuple[ProtobufSchema, Message]:
    """The file of what Avro's schema is of, and what makes messages of its first record.

    A value that doesn't fit its type is left out. So are NULLs in arrays.

    Args:
        schema: of Kafka Connect's; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
        package: such as a topic.
        earlier: the subject's versions, the newest first.
        losses: takes values that don't fit.
        is_mysql: whether times are MySQL's, which may be negative and longer than a day: durations.
    """
    compiler = _Compiler(members, losses, is_mysql=is_mysql)
    compiler.kind(schema)
    messages = list(reversed(compiler.messages.values()))  # the outermost is complete last
    made = numbered(messages, package, earlier)
    return made, compiler.writers[messages[0].name]


class _Compiler:
    def __init__(
        self, members: Mapping[str, Sequence[str]], losses: Losses, *, is_mysql: bool
    ) -> None:
        self._members, self._losses, self._is_mysql = members, losses, is_mysql
        self.messages: dict[str, ProtoMessage] = {}
        self.writers: dict[str, Message] = {}

    def kind(self, schema: Avro) -> tuple[str, int, Put]:
        """A type's name, how it lies on the wire, and what writes it."""
        more: dict[str, Any] = schema if isinstance(schema, dict) else {}
        kind: Any = more.get("type", schema)
        name = more.get("connect.name", "")
        if kind == "record":
            return self._record(schema)
        if name in _KNOWN:
            return _KNOWN[name]
        if name in _MICROS:
            return _times(name, is_mysql=self._is_mysql)
        if more.get("logicalType") == "decimal":
            return schemas.DECIMAL, _SIZED, _sized(_decimal(more["scale"], more["precision"]))
        if kind in _PLAIN:
            return _PLAIN[kind]
        found = kind.rpartition(".")[2]
        return found, _SIZED, _sized(self.writers[found])

    def _record(self, schema: Avro) -> tuple[str, int, Put]:
        own = schema["name"]
        message = ProtoMessage(own)
        fields = []
        for name, one in fields_of(schema, self._members):
            is_optional, type_ = isinstance(one["type"], list), inner(one["type"])
            is_array = isinstance(type_, dict) and type_["type"] == "array"
            if is_array:
                type_ = inner(type_["items"])
            kind, wire, put = self.kind(type_)
            label = "repeated" if is_array else "optional" if is_optional else ""
            message.fields.append(field := ProtoField(one["name"], 0, kind, label))
            fields.append((name, field, wire, put, is_array))
        self.messages[own] = message
        self.writers[own] = self._writer(own, fields)
        return own, _SIZED, _sized(self.writers[own])

    def _writer(
        self, own: str, fields: Sequence[tuple[str, ProtoField, int, Put, bool]]
    ) -> Message:
        tags: list[bytes] = []
        losses = self._losses

        def write(value: Any) -> bytes:
            if not tags:  # fields have their numbers by now
                tags.extend(tag(field.number, wire) for _, field, wire, _, _ in fields)
            out = bytearray()
            for head, (name, _, _, put, is_array) in zip(tags, fields, strict=True):
                found = value.get(name)
                if found is None:
                    continue
                count = len(losses.found)
                try:
                    if is_array:
                        out += b"".join(
                            head + put(one)
                            for one in found
                            if one is not None and not isinstance(one, list)
                        )
                    else:
                        out += head + put(found)
                except UNFIT as error:
                    losses.note(name, found, error)
                if (own, name) == FORMER:  # it was judged when it was new
                    del losses.found[count:]
            return bytes(out)

        return write


def _varint(value: int) -> bytes:
    rest = value & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _integer(bits: int) -> Put:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def put(value: Any) -> bytes:
        if not isinstance(value, int) or not low <= value <= high:
            raise OverflowError(f"expected an integer of {bits} bits")
        return _varint(value)

    return put


def _sized(make: Message) -> Put:
    def put(value: Any) -> bytes:
        data = make(value)
        return _varint(len(data)) + data

    return put


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return b"\1" if value else b"\0"


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _numbers(*values: int) -> bytes:
    """A message whose fields are numbers, from 1 on; zeros are left out."""
    return b"".join(
        tag(number, _NUMBER) + _varint(value) for number, value in enumerate(values, 1) if value
    )


def _decimal(scale: int, precision: int) -> Message:
    rest = (
        tag(2, _NUMBER) + _varint(precision) + (tag(3, _NUMBER) + _varint(scale) if scale else b"")
    )
    head = tag(1, _SIZED)

    def put(value: Any) -> bytes:
        data = _bytes(value)
        return head + _varint(len(data)) + data + rest

    return put


def _instant(micros: int) -> bytes:
    seconds, rest = divmod(micros, _SECOND_US)
    if not _SECONDS[0] <= seconds <= _SECONDS[1]:
        raise OverflowError("expected an instant of the years 1 to 9999")
    return _numbers(seconds, rest * 1_000)


_SECONDS: Final = -62_135_596_800, 253_402_300_799
"""Of the years 1 to 9999: Protobuf's limits."""


def _zoned(value: Any) -> bytes:
    found = dt.datetime.fromisoformat(value)
    since = found.astimezone(dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return _instant(since // dt.timedelta(microseconds=1))


def _date(value: Any) -> bytes:
    if not isinstance(value, int):
        raise TypeError("expected days since 1970")
    found = dt.date(1970, 1, 1) + dt.timedelta(days=value)
    return _numbers(found.year, found.month, found.day)


def _duration(micros: int) -> bytes:
    sign = -1 if micros < 0 else 1  # of both parts
    seconds, rest = divmod(abs(micros), _SECOND_US)
    return _numbers(sign * seconds, sign * rest * 1_000)


def _times(name: str, *, is_mysql: bool) -> tuple[str, int, Put]:
    unit = _MICROS[name]
    if name.endswith("Timestamp"):
        return schemas.INSTANT, _SIZED, _sized(lambda value: _instant(value * unit))
    if is_mysql:
        return schemas.DURATION, _SIZED, _sized(lambda value: _duration(value * unit))

    def clock(value: Any) -> bytes:
        seconds, rest = divmod(value * unit, _SECOND_US)
        if not 0 <= seconds < 86_400:
            raise OverflowError("expected a time of day")
        minutes, second = divmod(seconds, 60)
        return _numbers(minutes // 60, minutes % 60, second, rest * 1_000)

    return schemas.TIME, _SIZED, _sized(clock)


_PLAIN: Final[dict[str, tuple[str, int, Put]]] = {
    "int": ("int32", _NUMBER, _integer(32)),
    "long": ("int64", _NUMBER, _integer(64)),
    "float": ("float", _FOUR, lambda value: _FLOAT(float(value))),
    "double": ("double", _EIGHT, lambda value: _DOUBLE(float(value))),
    "boolean": ("bool", _NUMBER, _boolean),
    "string": ("string", _SIZED, _sized(lambda value: value.encode())),
    "bytes": ("bytes", _SIZED, _sized(_bytes)),
}
_KNOWN: Final[dict[str, tuple[str, int, Put]]] = {
    "io.debezium.time.Date": (schemas.DATE, _SIZED, _sized(_date)),
    "io.debezium.time.ZonedTimestamp": (schemas.INSTANT, _SIZED, _sized(_zoned)),
}
