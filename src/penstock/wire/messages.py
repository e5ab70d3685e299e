"""Kafka's messages to and from plain dicts, every length checked against the bytes that are there.

The tables of fields (names, types, nullability, tags, per version) are kio's, which are generated
from Apache Kafka's own message descriptors. The codec is ours, for two reasons: a peer's absurd
count must be an error and not an allocation (kio's decoder reserves what a count claims, and aborts
the process), and a handler that reads and writes dicts needs no code per version: a field that a
version lacks is absent when read and left out when written.

    codec = request_codec(api_key=3, version=12)
    body = codec.decode(frame_bytes)           # {"topics": [{"name": "clicks", ...}], ...}
    response_codec(3, 12).encode({"brokers": [...], "topics": [...]})

Names are kio's: snake case, without a unit (`session_timeout`, `throttle_time`: milliseconds, as
plain integers; timestamps likewise). A field that is not given takes the descriptor's default,
or zero, empty, or null where it has none.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import ProtocolError
from penstock.wire.kafka import (
    EntityType,
    api_key_map,
    load_entity_schema,
    load_payload_module,
    schema_name_map,
)

__all__ = [
    "ELEMENTS_MAX",
    "Codec",
    "api_name",
    "data_codec",
    "data_versions",
    "read_unsigned_varint",
    "request_codec",
    "response_codec",
    "versions",
    "write_unsigned_varint",
]

ELEMENTS_MAX: Final = 1 << 18
"""Most array elements in one message. An element of a few bytes becomes a Python object of a few
hundred, so this, not the frame's size, bounds the memory that a hostile frame can take (about 100
MB)."""

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_UINT64 = struct.Struct(">Q")
_FLOAT64 = struct.Struct(">d")
_EXTENSIONS: Final[dict[str, tuple[tuple[str, int, str, Any], ...]]] = {
    "AcknowledgementBatch": (
        ("penstock_delay", 10_000, "int64", 0),  # a released record waits for so long (ms)
        ("penstock_reason", 10_001, "string", ""),  # why a record is rejected
        ("penstock_uncounted", 10_002, "bool", False),  # whether a release undoes the delivery
    ),
    "EndTxnRequest": (
        ("penstock_records", 10_000, "int64", -1),  # how many were sent, durable or not
    ),
    "EndTxnResponse": (
        (
            "penstock_counts",
            10_000,
            "bool",
            False,
        ),  # whether a commit is refused unless it has these
    ),
}
"""Tagged fields of our own, by struct: name, tag, type, default. Who doesn't know them passes over
them (KIP-482); the tags are far from those that Kafka gives out."""
_ZERO_UUID = uuid.UUID(int=0)

_NUMBERS: Final[dict[str, struct.Struct]] = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint8": struct.Struct(">B"),
    "uint16": _UINT16,
    "uint32": _UINT32,
    "uint64": _UINT64,
    "float64": _FLOAT64,
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}

_Reader = Callable[["_Input"], Any]
_Writer = Callable[[bytearray, Any], None]


def read_unsigned_varint(buffer: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The unsigned varint (at most 32 bits) at `at`, and the position after it."""
    result = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 28:
            raise ProtocolError("expected a varint of at most 5 bytes; found a longer one")


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Appends `value` as an unsigned varint."""
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


class _Input:
    """A cursor over one message's bytes; it never goes beyond them."""

    __slots__ = ("at", "buffer", "elements_left", "end")

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.at = 0
        self.end = len(buffer)
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > self.end:
            raise ProtocolError(f"expected {size} more bytes; found {self.end - self.at}")
        data = self.buffer[self.at : end]
        self.at = end
        return data

    def varint(self) -> int:
        value, self.at = read_unsigned_varint(self.buffer, self.at)
        return value

    def count(self, size: int) -> int:
        """Checks the number of elements of an array: each takes at least one byte."""
        self.elements_left -= max(size, 0)
        if size > self.end - self.at or self.elements_left < 0:
            raise ProtocolError(
                f"expected an array of at most {min(self.end - self.at, ELEMENTS_MAX)} elements "
                f"(the bytes that are left, the limit); found a count of {size}"
            )
        return size

    def skip_tags(self) -> None:
        for _ in range(self.count(self.varint())):
            self.varint()
            self.take(self.varint())


def _number(packing: struct.Struct) -> tuple[_Reader, _Writer]:
    size = packing.size
    unpack = packing.unpack_from
    pack = packing.pack

    def read(source: _Input) -> Any:
        value = unpack(source.buffer, source.at)[0]
        source.at += size
        return value

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return read, write


def _blob(*, text: bool, compact: bool, nullable: bool) -> tuple[_Reader, _Writer]:
    """Strings and byte strings: a length (16 bits for old strings, 32 for old bytes), then the
    bytes.
    """
    width = _INT16 if text else _INT32

    def read(source: _Input) -> Any:
        if compact:
            size = source.varint() - 1
        else:
            size = width.unpack_from(source.buffer, source.at)[0]
            source.at += width.size
        if size < 0:
            if size != -1 or not nullable:
                raise ProtocolError(f"expected a length of 0 or more; found {size}")
            return None
        data = source.take(size)
        return data.decode() if text else data

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise ProtocolError("expected a value; found null in a field that can't be null")
            out += b"\0" if compact else width.pack(-1)
            return
        data = value.encode() if text else value
        if compact:
            write_unsigned_varint(out, len(data) + 1)
        else:
            out += width.pack(len(data))
        out += data

    return read, write


def _read_bool(source: _Input) -> bool:
    return source.take(1) != b"\0"


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _read_uuid(source: _Input) -> uuid.UUID:
    return uuid.UUID(bytes=source.take(16))


def _write_uuid(out: bytearray, value: Any) -> None:
    out += (value or _ZERO_UUID).bytes


def _array(
    read_one: _Reader, write_one: _Writer, *, compact: bool, nullable: bool
) -> tuple[_Reader, _Writer]:
    def read(source: _Input) -> Any:
        if compact:
            size = source.varint() - 1
        else:
            size = _INT32.unpack_from(source.buffer, source.at)[0]
            source.at += 4
        if size < 0:
            if size != -1 or not nullable:
                raise ProtocolError(f"expected a count of 0 or more; found {size}")
            return None
        return [read_one(source) for _ in range(source.count(size))]

    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            out += b"\0" if compact else b"\xff\xff\xff\xff"
            return
        if compact:
            write_unsigned_varint(out, len(value) + 1)
        else:
            out += _INT32.pack(len(value))
        for item in value:
            write_one(out, item)

    return read, write


def _nullable_struct(read_one: _Reader, write_one: _Writer) -> tuple[_Reader, _Writer]:
    """KIP-893: a signed byte says whether the struct is there."""

    def read(source: _Input) -> Any:
        return None if _INT8.unpack(source.take(1))[0] < 0 else read_one(source)

    def write(out: bytearray, value: Any) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            write_one(out, value)

    return read, write


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    read: _Reader
    write: _Writer
    default: Any
    tag: int | None


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """The type without `| None`, and whether it had one."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        rest = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        return rest[0], True
    return hint, False


def _primitive(kind: str, *, flexible: bool, nullable: bool) -> tuple[_Reader, _Writer, Any]:
    if kind in _NUMBERS:
        return *_number(_NUMBERS[kind]), 0
    if kind == "bool":
        return _read_bool, _write_bool, False
    if kind == "uuid":
        return _read_uuid, _write_uuid, _ZERO_UUID
    text = kind == "string"
    read, write = _blob(text=text, compact=flexible, nullable=nullable)
    return read, write, None if nullable else "" if text else b""


def _compile_field(field: dataclasses.Field[Any], hint: Any, *, flexible: bool) -> _Field:
    bare, nullable = _unwrap(hint)
    is_array = typing.get_origin(bare) is tuple
    tag = field.metadata.get("tag")
    if is_array:
        element, _ = _unwrap(typing.get_args(bare)[0])
        pair: tuple[_Reader, _Writer]
        if dataclasses.is_dataclass(element):
            inner = _compile(typing.cast("type", element))
            pair = inner.read, inner.write
        else:
            kind = field.metadata["kafka_type"]
            pair = _primitive(kind, flexible=flexible, nullable=False)[:2]
        read, write = _array(*pair, compact=flexible, nullable=nullable)
        default: Any = None if nullable else ()
    elif dataclasses.is_dataclass(bare):
        inner = _compile(typing.cast("type", bare))
        read, write = inner.read, inner.write
        if nullable and tag is None:
            read, write = _nullable_struct(read, write)
        default = None if nullable else {}
    else:
        kind = field.metadata["kafka_type"]
        read, write, default = _primitive(kind, flexible=flexible, nullable=nullable)
    if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
        default = _plain(field.default)
        if default is None and field.metadata.get("kafka_type") in _NUMBERS:
            default = -1  # kio's null for a time that Kafka writes as -1
    return _Field(field.name, read, write, default, tag)


def _plain(value: Any) -> Any:
    """A descriptor's default as what this codec uses: durations are milliseconds."""
    if hasattr(value, "total_seconds"):
        return round(value.total_seconds() * 1000)
    return value


class Codec:
    """Reads and writes one message (or one struct inside it) at one version."""

    __slots__ = ("_plain", "_tagged", "flexible", "name")

    def __init__(self, entity: type[Any]) -> None:
        self.name: str = entity.__name__
        self.flexible: bool = entity.__flexible__
        hints = typing.get_type_hints(entity)
        compiled = [
            _compile_field(field, hints[field.name], flexible=self.flexible)
            for field in dataclasses.fields(entity)
        ]
        for name, tag, kind, default in _EXTENSIONS.get(entity.__name__, ()):
            pair = _primitive(kind, flexible=True, nullable=False)[:2]
            compiled.append(_Field(name, *pair, default, tag))
        self._plain = [field for field in compiled if field.tag is None]
        self._tagged = {field.tag: field for field in compiled if field.tag is not None}

    @property
    def first(self) -> str:
        """The name of the first field that is always there; empty where there is none."""
        return self._plain[0].name if self._plain else ""

    def read(self, source: _Input) -> dict[str, Any]:
        """Reads one struct at the cursor."""
        values = {field.name: field.read(source) for field in self._plain}
        if self.flexible:
            for field in self._tagged.values():
                values[field.name] = field.default
            for _ in range(source.count(source.varint())):
                tag, size = source.varint(), source.varint()
                end = source.at + size
                known = self._tagged.get(tag)
                if known is None:
                    source.take(size)
                    continue
                values[known.name] = known.read(source)
                if source.at != end:
                    raise ProtocolError(f"expected tagged field {tag} to take {size} bytes")
        return values

    def write(self, out: bytearray, values: dict[str, Any]) -> None:
        """Appends one struct."""
        for field in self._plain:
            field.write(out, values.get(field.name, field.default))
        if not self.flexible:
            return
        given = [
            field
            for field in sorted(self._tagged.values(), key=lambda one: one.tag or 0)
            if field.name in values and values[field.name] != field.default
        ]
        write_unsigned_varint(out, len(given))
        for field in given:
            body = bytearray()
            field.write(body, values[field.name])
            write_unsigned_varint(out, field.tag or 0)
            write_unsigned_varint(out, len(body))
            out += body

    def decode(self, body: bytes) -> dict[str, Any]:
        """The message in `body`; bytes after it are ignored, as Kafka does.

        Raises:
            ProtocolError: the bytes end early, or a length, a count or a text makes no sense.
        """
        try:
            return self.read(_Input(body))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(
                f"expected a whole {self.name} in {len(body)} bytes; found that they end early or "
                f"hold no valid text ({error}); the client speaks another protocol or is broken"
            ) from None

    def encode(self, values: dict[str, Any]) -> bytearray:
        """The message's bytes."""
        out = bytearray()
        self.write(out, values)
        return out


@functools.cache
def _compile(entity: type) -> Codec:
    return Codec(entity)


def api_name(api_key: int) -> str:
    """Kafka's name of a request type in snake case (`list_offsets`), or `api 99`."""
    return api_key_map.get(api_key, f"api {api_key}")


@functools.cache
def versions(api_key: int) -> tuple[int, int]:
    """The first and last version of a request type that the descriptors know."""
    return data_versions(api_key_map[api_key])


@functools.cache
def _codec(api_key: int, version: int, *, response: bool) -> Codec:
    name = api_key_map[api_key]
    module = load_payload_module(
        api_key, version, EntityType.response if response else EntityType.request
    )
    camel = "".join(word.capitalize() for word in name.split("_"))
    return _compile(getattr(module, camel + ("Response" if response else "Request")))


def request_codec(api_key: int, version: int) -> Codec:
    """The codec of a request's body (what follows the header)."""
    return _codec(api_key, version, response=False)


def response_codec(api_key: int, version: int) -> Codec:
    """The codec of a response's body."""
    return _codec(api_key, version, response=True)


@functools.cache
def data_codec(name: str, version: int) -> Codec:
    """The codec of a message that is neither request nor response: what requests and records carry.

    Args:
        name: Kafka's, in snake case (`consumer_protocol_assignment`).
        version: one of `data_versions`.
    """
    return _compile(load_entity_schema(name, version, EntityType.data))


@functools.cache
def data_versions(name: str) -> tuple[int, int]:
    """The first and last version of a message that the descriptors know."""
    known = schema_name_map[name]
    return min(known), max(known)
