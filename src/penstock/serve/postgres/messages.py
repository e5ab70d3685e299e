"""PostgreSQL's messages, version 3 of the protocol, as bytes: no I/O here.

startup:   length int32, code int32, then names and values, each with a byte 0 behind, and a byte 0
others:    type byte, length int32 (itself included), body
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolError

__all__ = [
    "CANCEL",
    "GSS",
    "SSL",
    "VERSION",
    "Column",
    "Reader",
    "command_complete",
    "data_rows",
    "error",
    "message",
    "row_description",
    "warning",
]

VERSION: Final = 3 << 16
CANCEL: Final = 80877102
SSL: Final = 80877103
GSS: Final = 80877104
NAME_BYTES_MAX: Final = 64
"""PostgreSQL's own limit of names is 63 bytes; views have none, so names here may be longer."""


@dataclass(frozen=True)
class Column:
    """A column of an answer.

    Attributes:
        name: of the column.
        oid: its type's number.
        size: of the type in bytes; -1: it varies.
        format: 0 for text, 1 for binary.
    """

    name: str
    oid: int
    size: int
    format: int = 0


@dataclass
class Reader:
    """Reads the body of a message."""

    data: bytes
    at: int = field(default=0)

    def text(self) -> str:
        """Text up to its end, a byte 0."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ProtocolError("expected text that ends with the byte 0; found no end")
        found = self.data[self.at : end]
        self.at = end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"expected UTF-8; found {found!r}") from None

    def number(self, size: int) -> int:
        """A signed number of so many bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def numbers(self, size: int) -> list[int]:
        """A count in two bytes, and as many numbers."""
        return [self.number(size) for _ in range(self.number(2))]

    def take(self, size: int) -> bytes:
        """So many bytes."""
        found = self.data[self.at : self.at + size]
        if size < 0 or len(found) != size:
            raise ProtocolError(f"expected {size} more bytes in a message; found {len(found)}")
        self.at += size
        return found


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of the server."""
    return kind + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    """Text with its end."""
    return value.replace("\0", "").encode() + b"\0"


def error(code: str, reason: str, severity: str = "ERROR", routine: str = "") -> bytes:
    """An error with its SQLSTATE; `routine` is what PostgreSQL calls the place, where drivers ask."""
    return message(
        b"E", _fields({"S": severity, "V": severity, "C": code, "M": reason, "R": routine})
    )


def warning(reason: str) -> bytes:
    """A notice that isn't an error; it may come between any two messages."""
    return message(b"N", _fields({"S": "WARNING", "V": "WARNING", "C": "01000", "M": reason}))


def _fields(values: Mapping[str, str]) -> bytes:
    return b"".join(name.encode() + text(value) for name, value in values.items() if value) + b"\0"


def parameters(values: Mapping[str, str]) -> bytes:
    """What a client learns about the server at the beginning."""
    return b"".join(message(b"S", text(name) + text(value)) for name, value in values.items())


def row_description(columns: Sequence[Column]) -> bytes:
    """The columns of an answer."""
    parts = [struct.pack("!h", len(columns))]
    parts += [
        text(one.name) + struct.pack("!ihihih", 0, 0, one.oid, one.size, -1, one.format)
        for one in columns
    ]
    return message(b"T", b"".join(parts))


def data_rows(columns: Sequence[Sequence[bytes | None]], rows: int) -> Iterable[bytes]:
    """The rows of an answer, each a message; of columns whose values are bytes."""
    head = struct.pack("!h", len(columns))
    pack = struct.Struct("!i").pack
    null = pack(-1)
    if not columns:
        yield from [message(b"D", head)] * rows
    for row in zip(*columns, strict=True):
        parts = [head]
        for value in row:
            if value is None:
                parts.append(null)
            else:
                parts.append(pack(len(value)))
                parts.append(value)
        yield message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """That a command is done."""
    return message(b"C", text(tag))
