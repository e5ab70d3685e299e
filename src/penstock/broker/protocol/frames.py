"""What the two requests that are read by hand, Produce and Fetch, have in common: their arrays, texts
and tagged fields, in the old form and in the flexible one.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import ProtocolError
from penstock.wire.messages import read_unsigned_varint, write_unsigned_varint

__all__ = ["read_count", "read_text", "skip_tags", "text_of", "write_count"]

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def skip_tags(frame: memoryview, at: int) -> int:
    """The position after a struct's tagged fields."""
    count, at = read_unsigned_varint(frame, at)
    for _ in range(count):
        _, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        at += size
        if at > len(frame):
            raise ProtocolError("expected tagged fields within the request; found that it ends")
    return at


def read_count(frame: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    """An array's number of elements, which the bytes that are left must be able to hold."""
    if flexible:
        count, at = read_unsigned_varint(frame, at)
        count -= 1
    else:
        count = _INT32.unpack_from(frame, at)[0]
        at += 4
    if count > len(frame) - at:
        raise ProtocolError(
            f"expected at most {len(frame) - at} elements; found a count of {count}"
        )
    return max(count, 0), at


def read_text(frame: memoryview, at: int, *, flexible: bool) -> tuple[bytes | None, int]:
    """A string's bytes with their length before them, as they stand; None for null."""
    begin = at
    if flexible:
        size, at = read_unsigned_varint(frame, at)
        size -= 1
    else:
        size = _INT16.unpack_from(frame, at)[0]
        at += 2
    if size < 0:
        return None, at
    if at + size > len(frame):
        raise ProtocolError(f"expected a text of {size} bytes; found {len(frame) - at}")
    return bytes(frame[begin : at + size]), at + size


def text_of(encoded: bytes, *, flexible: bool) -> str:
    """The string in bytes with their length before them."""
    begin = read_unsigned_varint(encoded, 0)[1] if flexible else 2
    return encoded[begin:].decode()


def write_count(out: bytearray, count: int, *, flexible: bool) -> None:
    """Appends an array's number of elements; -1 for null."""
    if flexible:
        write_unsigned_varint(out, count + 1)
    else:
        out += _INT32.pack(count)
