"""Serialized descriptors of Protobuf files, read and written without Protobuf's library.

The source is `google/protobuf/descriptor.proto`, and "Encoding" of Protobuf's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.schemas.protos import TYPES, ProtoEnum, ProtoField, ProtoFile, ProtoMessage

__all__ = ["decode_file", "encode_file"]

_NAMES: Final = {number: name for name, number in TYPES.items()}
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_PROTO3_OPTIONAL: Final = 17
DEPTH_MAX: Final = 32

_Members = dict[int, list["int | bytes"]]


def decode_file(data: bytes, source: str) -> ProtoFile:
    """Reads a `FileDescriptorProto`.

    Raises:
        ValueError: the bytes are none.
    """
    file = _members(data)
    if 1 not in file:
        raise ValueError("expected the file's name; found none")
    found = ProtoFile(source, source, is_descriptor=True)
    found.package = _text(file, 2)
    found.syntax = _text(file, 12) or "proto2"
    found.imports = [_str(one) for one in file.get(3, [])]
    found.messages = [_message(one, 0)[0] for one in file.get(4, [])]
    found.enums = [_enum(one) for one in file.get(5, [])]
    return found


def _message(data: int | bytes, depth: int) -> tuple[ProtoMessage, bool]:
    """A message, and whether it is a map's entry."""
    if depth > DEPTH_MAX:
        raise ValueError(f"expected at most {DEPTH_MAX} nested messages; found more")
    members = _members(_bytes(data))
    found = ProtoMessage(_text(members, 1))
    inner = [_message(one, depth + 1) for one in members.get(3, [])]
    entries = {one.name: one for one, is_entry in inner if is_entry}
    found.messages = [one for one, is_entry in inner if not is_entry]
    found.enums = [_enum(one) for one in members.get(4, [])]
    oneofs = [_text(_members(_bytes(one)), 1) for one in members.get(8, [])]
    for one in members.get(2, []):
        found.fields.append(_field(_members(_bytes(one)), oneofs, entries))
    options = _members(_bytes(members[7][-1])) if 7 in members else {}
    return found, bool(_number(options, 7))


def _field(members: _Members, oneofs: list[str], entries: dict[str, ProtoMessage]) -> ProtoField:
    kind = _NAMES.get(_number(members, 5), "message")
    label = {number: name for name, number in _LABELS.items()}.get(_number(members, 4), "")
    type_ = _text(members, 6) if kind in ("message", "enum", "group") else kind
    found = ProtoField(_text(members, 1), _number(members, 3), type_, label, is_enum=kind == "enum")
    if 9 in members and not _number(members, _PROTO3_OPTIONAL):
        at = _number(members, 9)
        if at >= len(oneofs):
            raise ValueError(f"expected one of {len(oneofs)} oneofs; found number {at}")
        found.oneof = oneofs[at]
    entry = entries.get(type_.rpartition(".")[2]) if label == "repeated" else None
    if entry is not None and kind == "message":
        parts = {one.number: one for one in entry.fields}
        if set(parts) != {1, 2}:
            raise ValueError("expected key and value of a map; found other fields")
        found.key, found.type, found.is_enum = parts[1].type, parts[2].type, parts[2].is_enum
        found.label = ""
    return found


def _enum(data: int | bytes) -> ProtoEnum:
    members = _members(_bytes(data))
    values = [_members(_bytes(one)) for one in members.get(2, [])]
    return ProtoEnum(_text(members, 1), {_text(one, 1): _signed(_number(one, 2)) for one in values})


def _members(data: bytes) -> _Members:
    """A message's members by their numbers."""
    found: _Members = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                found.setdefault(key >> 3, []).append(value)
                continue
            case 1:
                size = 8
            case 5:
                size = 4
            case 2:
                size, at = _varint(data, at)
            case other:
                raise ValueError(f"expected a wire type of Protobuf; found {other}")
        if at + size > len(data):
            raise ValueError("expected more bytes; found the end")
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("expected a number; found the end, or a longer one")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("expected a message; found a number")  # noqa: TRY004
    return value


def _str(value: int | bytes) -> str:
    return _bytes(value).decode()


def _text(members: _Members, number: int) -> str:
    return _str(members[number][-1]) if number in members else ""


def _number(members: _Members, number: int) -> int:
    value = members[number][-1] if number in members else 0
    if isinstance(value, bytes):
        raise ValueError("expected a number; found bytes")  # noqa: TRY004
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# -- writing ---------------------------------------------------------------------------------------


def encode_file(file: ProtoFile, name: str) -> bytes:
    """Writes a `FileDescriptorProto`: what data depends on, without options and services."""
    out = _put(1, name) + (_put(2, file.package) if file.package else b"")
    out += b"".join(_put(3, one) for one in file.imports)
    out += b"".join(_put(4, _put_message(one, file.syntax, file.package)) for one in file.messages)
    out += b"".join(_put(5, _put_enum(one)) for one in file.enums)
    return out + _put(12, file.syntax)


def _put_message(message: ProtoMessage, syntax: str, scope: str) -> bytes:
    full = f"{scope}.{message.name}".lstrip(".")
    out = _put(1, message.name)
    oneofs = list(dict.fromkeys(one.oneof for one in message.fields if one.oneof))
    entries = b""
    for one in message.fields:
        place = oneofs.index(one.oneof) if one.oneof else None
        if syntax == "proto3" and one.label == "optional" and not one.oneof:
            place = len(oneofs)
            oneofs.append(f"_{one.name}")  # one of its own, as the compiler makes it
        if one.key:
            entry = "".join(part.capitalize() for part in one.name.split("_")) + "Entry"
            key = ProtoField("key", 1, one.key, "optional")
            value = ProtoField("value", 2, one.type, "optional", is_enum=one.is_enum)
            inner = _put(1, entry) + b"".join(_put(2, _put_field(f, None)) for f in (key, value))
            entries += _put(3, inner + _put(7, _put(7, 1)))
            shown = ProtoField(one.name, one.number, f"{full}.{entry}", "repeated")
            out += _put(2, _put_field(shown, None))
        else:
            is_optional = place is not None and not one.oneof
            out += _put(2, _put_field(one, place, is_optional=is_optional))
    out += entries
    out += b"".join(_put(3, _put_message(one, syntax, full)) for one in message.messages)
    out += b"".join(_put(4, _put_enum(one)) for one in message.enums)
    return out + b"".join(_put(8, _put(1, one)) for one in oneofs)


def _put_field(one: ProtoField, place: int | None, *, is_optional: bool = False) -> bytes:
    out = _put(1, one.name) + _put(3, one.number) + _put(4, _LABELS[one.label or "optional"])
    out += _put(5, TYPES[one.kind])
    if one.kind in ("message", "enum"):
        out += _put(6, f".{one.type.lstrip('.')}")
    if place is not None:
        out += _put(9, place)
    return out + (_put(_PROTO3_OPTIONAL, 1) if is_optional else b"")


def _put_enum(one: ProtoEnum) -> bytes:
    values = (_put(1, name) + _put(2, number) for name, number in one.values.items())
    return _put(1, one.name) + b"".join(_put(2, value) for value in values)


def _put(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return bytes(_varint_of(number << 3)) + bytes(_varint_of(value % (1 << 64)))
    data = value.encode() if isinstance(value, str) else value
    return bytes(_varint_of(number << 3 | 2)) + bytes(_varint_of(len(data))) + data


def _varint_of(value: int) -> Iterator[int]:
    while value >= 0x80:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
