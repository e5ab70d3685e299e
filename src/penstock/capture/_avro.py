"""Records of captured tables as Avro, JSON Schema or Protobuf, by schemas that a registry has.

    a record as JSON, and what its table looks like  ->  a zero byte, the schema's id, the encoded record

A schema is registered when the first record by it is written, under the subjects `TOPIC-key` and
`TOPIC-value`, as Confluent's serializers do. One that a subject has is only looked up, so a process that
continues after a kill gets the same ids. The encoding's source is the specification of Apache Avro 1.12,
"Data Serialization".
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa

from penstock.capture import _connect
from penstock.capture._connect import FORMER, Avro
from penstock.capture._json_schema import json_schema_of
from penstock.capture._protobuf import protobuf_of
from penstock.capture._schemas import Shape
from penstock.capture._unread import UNREADABLE, Losses, Lost
from penstock.client.schemas import schema_id, schema_versions
from penstock.formats.avro import headed
from penstock.formats.protobuf import FIRST_MESSAGE
from penstock.schemas import Kind

__all__ = ["HEAD_BYTES", "Registered", "encoder"]

HEAD_BYTES: Final = 5
"""Of a record, before what its columns are."""
Write: TypeAlias = Callable[[bytearray, Any], None]
_FLOAT, _DOUBLE = struct.Struct("<f").pack, struct.Struct("<d").pack


@dataclass(frozen=True)
class _Pair:
    """How the records of a topic are written while its table looks like this."""

    shape: Shape
    key: Callable[[bytes], bytes]
    value: Callable[[bytes], bytes]


class Registered:
    """Writes the records of tables by their schemas; those of other topics stay as they are.

    Args:
        url: of the registry.
        kind: of the schemas.
        connector: `postgresql`, `mysql` or `mariadb`.
    """

    def __init__(self, url: str, kind: Kind, connector: str) -> None:
        self._url, self._kind, self._connector = url.rstrip("/"), kind, connector
        self._shapes: dict[str, Shape] = {}
        self._pairs: dict[str, _Pair] = {}
        self._lost: list[Lost] = []

    def use(self, topic: str, shape: Shape) -> None:
        """The records of a topic that follow have these columns."""
        self._shapes[topic] = shape

    def record(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Key and value of a record, from JSON.

        Raises:
            SetupError: the registry refuses the schema.
            BrokerError: the registry doesn't answer (retriable).
        """
        shape = self._shapes.get(topic)
        if shape is None:
            return key, value
        return self._made(self._pair(topic, shape), key, value)

    def take(self) -> tuple[Lost, ...]:
        """The values of the record that was made last that don't fit their types."""
        found = tuple(self._lost)
        self._lost.clear()
        return found

    def columns(
        self, topic: str, keys: pa.Array[Any], values: pa.Array[Any], shape: Shape
    ) -> tuple[pa.Array[Any], pa.Array[Any], dict[int, tuple[Lost, ...]]]:
        """Keys and values of rows that were read by themselves, from JSON, and by place the values that
        don't fit. See `record`.
        """
        pair, made = self._pair(topic, shape), list[tuple[bytes | None, bytes | None]]()
        lost = dict[int, tuple[Lost, ...]]()
        for i, pair_ in enumerate(zip(keys.to_pylist(), values.to_pylist(), strict=True)):
            made.append(self._made(pair, *pair_))
            if self._lost:
                lost[i] = self.take()
        return (
            pa.array([key for key, _ in made], pa.binary()),
            pa.array([value for _, value in made], pa.binary()),
            lost,
        )

    def _made(
        self, pair: _Pair, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """A record; of a row that is gone, only the values of the key are lost."""
        made_key = None if key is None else pair.key(key)
        of_key, made_value = self.take(), None if value is None else pair.value(value)
        if self._lost and value is not None and orjson.loads(value).get("after") is None:
            self._lost.clear()
        # Such a value is in both, and is one.
        known = {one.column for one in of_key}
        self._lost[:] = [*of_key, *(one for one in self._lost if one.column not in known)]
        return made_key, made_value

    def _pair(self, topic: str, shape: Shape) -> _Pair:
        known = self._pairs.get(topic)
        if known is not None and known.shape is shape:
            return known
        by_name = {one.name: one for one in shape.members}
        key = _connect.key(topic, [by_name[name] for name in shape.key if name in by_name])
        value = _connect.envelope(topic, shape.members, self._connector)
        members = [one.name for one in shape.members]
        found = _Pair(
            shape,
            self._writer(topic, "key", key, [*shape.key]) if shape.key else bytes,
            self._writer(topic, "value", value, members),
        )
        self._pairs[topic] = found
        return found

    def _writer(
        self, topic: str, part: str, schema: Avro, names: list[str]
    ) -> Callable[[bytes], bytes]:
        """What makes records of JSON."""
        subject, members = f"{topic}-{part}", {"Key": names, "Value": names}
        losses = Losses(topic, names if part == "key" else ())
        losses.found = self._lost
        match self._kind:
            case Kind.AVRO:
                head = self._head(subject, json.dumps(schema, separators=(",", ":")))
                write = encoder(schema, members, losses)

                def encoded(text: bytes) -> bytes:
                    out = bytearray(head)
                    write(out, orjson.loads(text))
                    return bytes(out)

                return encoded
            case Kind.JSON:
                written = json.dumps(json_schema_of(schema, members), separators=(",", ":"))
                head = self._head(subject, written)
                return lambda text: head + text
            case Kind.PROTOBUF:
                earlier = schema_versions(self._url, subject)
                is_mysql = self._connector != "postgresql"
                made, message = protobuf_of(
                    schema, members, topic, earlier, losses, is_mysql=is_mysql
                )
                head = self._head(subject, made.text) + FIRST_MESSAGE
                return lambda text: head + message(orjson.loads(text))

    def _head(self, subject: str, text: str) -> bytes:
        return headed(schema_id(self._url, subject, text, self._kind))


def encoder(schema: Avro, members: Mapping[str, list[str]], losses: Losses) -> Write:
    """What appends a value, as JSON has it, in Avro's encoding. Bytes are base64.

    A value that doesn't fit its type is null, or zero where it can't be null, as in Debezium's records.

    Args:
        schema: its; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
        losses: takes values that don't fit.
    """
    return _Compiler(members, losses).write(schema)


class _Compiler:
    def __init__(self, members: Mapping[str, list[str]], losses: Losses) -> None:
        self._members, self._losses = members, losses
        self._records: dict[str, Write] = {}

    def write(self, schema: Avro) -> Write:
        if isinstance(schema, list):
            return self._union(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            made = self._record(schema)
            names = schema["name"], f"{schema.get('namespace', '')}.{schema['name']}"
            self._records.update(dict.fromkeys(names, made))
            return made
        if kind == "array":
            return self._array(schema)
        return _PLAIN.get(kind) or self._records[kind]

    def _record(self, schema: Avro) -> Write:
        names = self._members.get(schema["name"]) or [one["name"] for one in schema["fields"]]
        fields = []
        for name, one in zip(names, schema["fields"], strict=True):
            append, empty = self.write(one["type"]), self._empty(one)
            is_former = (schema["name"], name) == FORMER
            fields.append((name, self._fitting(name, append, empty, is_former), empty))

        def write(out: bytearray, value: Any) -> None:
            get = value.get
            for name, append, empty in fields:
                found = get(name)
                if found is None:
                    out += empty
                else:
                    append(out, found)

        return write

    def _empty(self, field: Avro) -> bytes:
        """What stands for a value that there isn't."""
        out, kind = bytearray(), field["type"]
        value = None
        if not isinstance(kind, list):
            plain = kind if isinstance(kind, str) else kind["type"]
            value = field.get("default", _ZEROS.get(plain, {}))
        self.write(kind)(out, value)
        return bytes(out)

    def _fitting(self, field: str, append: Write, empty: bytes, is_former: bool) -> Write:  # noqa: FBT001
        losses = self._losses

        def fitting(out: bytearray, value: Any) -> None:
            begin, count = len(out), len(losses.found)
            try:
                append(out, value)
                if is_former:  # it was judged when it was new
                    del losses.found[count:]
            except UNREADABLE as error:
                del out[begin:]
                out += empty
                losses.note(field, value, error)

        return fitting

    def _union(self, schema: Avro) -> Write:
        null = schema.index("null")
        append = self.write(schema[1 - null])
        there, nothing = (b"\0", b"\2") if null else (b"\2", b"\0")

        def write(out: bytearray, value: Any) -> None:
            if value is None:
                out += nothing
            else:
                out += there
                append(out, value)

        return write

    def _array(self, schema: Avro) -> Write:
        append = self.write(schema["items"])

        def write(out: bytearray, value: Any) -> None:
            if value:
                _long(out, len(value))
                for one in value:
                    append(out, None if isinstance(one, list) else one)  # Debezium's: one dimension
            out.append(0)

        return write


def _long(out: bytearray, value: Any) -> None:
    if not isinstance(value, int):
        raise TypeError("expected an integer")
    number = value << 1 ^ value >> 63
    if not 0 <= number < 1 << 64:
        raise OverflowError("expected a number of 64 bits")
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _int(out: bytearray, value: Any) -> None:
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise OverflowError("expected a number of 32 bits")
    _long(out, value)


def _float(out: bytearray, value: Any) -> None:
    out += _FLOAT(float(value))


def _double(out: bytearray, value: Any) -> None:
    out += _DOUBLE(float(value))


def _boolean(out: bytearray, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    out.append(value)


def _string(out: bytearray, value: Any) -> None:
    data = value.encode()
    _long(out, len(data))
    out += data


def _bytes(out: bytearray, value: Any) -> None:
    data = base64.b64decode(value, validate=True)
    _long(out, len(data))
    out += data


_PLAIN: Final[dict[str, Write]] = {
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "string": _string,
    "bytes": _bytes,
}
_ZEROS: Final[dict[str, Any]] = {
    **dict.fromkeys(("int", "long"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "boolean": False,
    "string": "",
    "bytes": "",
    "array": [],
}
