"""Kafka Connect's records to Avro, one at a time: the rules in full, and what doesn't fit.

A record is what JSON has of it. `penstock.formats.connect.columns` writes most of them many at a time; what
that isn't certain of comes here. Its bytes are the same, so a record doesn't depend on which of the two has
written it. The source is the specification of Apache Avro 1.12, "Data Serialization".
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.formats.connect.parts import FORMER, UNFIT, Avro, Losses, fields_of

__all__ = ["ZEROS", "encoder"]

Write: TypeAlias = Callable[[bytearray, Any], None]
_FLOAT, _DOUBLE = struct.Struct("<f").pack, struct.Struct("<d").pack


def encoder(schema: Avro, members: Mapping[str, Sequence[str]], losses: Losses) -> Write:
    """What appends a value, as JSON has it, in Avro's encoding. Bytes are base64.

    A value that doesn't fit its type is null, or zero where it can't be null, as in Debezium's records.

    Args:
        schema: its; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
        losses: takes values that don't fit.
    """
    return _Compiler(members, losses).write(schema)


class _Compiler:
    def __init__(self, members: Mapping[str, Sequence[str]], losses: Losses) -> None:
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
        fields = []
        for name, one in fields_of(schema, self._members):
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
            value = field.get("default", ZEROS.get(plain, {}))
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
            except UNFIT as error:
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
ZEROS: Final[dict[str, Any]] = {
    **dict.fromkeys(("int", "long"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "boolean": False,
    "string": "",
    "bytes": "",
    "array": [],
}
"""What stands for a value that can't be NULL, by type."""
