"""What classic consumers send each other through the coordinator: subscriptions and assignments.

    subscription = version:i16 topics:[string] user_data:bytes? [owned:[part]] v1
                   [generation:i32] v2 [rack:string?] v3
    assignment   = version:i16 parts:[part] user_data:bytes?
    part         = topic:string numbers:[i32]

A later version only adds fields at the end. The broker reads them where members of both protocols
share a group (KIP-848), and for no other group.

Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["Assignment", "MalformedError", "Subscription", "read_assignment", "read_subscription"]

OWNED_FROM: Final = 1
GENERATION_FROM: Final = 2
RACK_FROM: Final = 3
"""Versions of a subscription from which on it has these fields."""
ASSIGNMENT_VERSION: Final = 0
"""Later ones have no other fields, and every consumer reads this one."""
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")

Named = tuple[str, int]


class MalformedError(ValueError):
    """Bytes that are no subscription, or no assignment."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's subscription, and the partitions that it owns."""

    topics: tuple[str, ...]
    owned: frozenset[Named] = frozenset()
    rack_id: str | None = None
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member gets."""

    parts: frozenset[Named] = frozenset()
    user_data: bytes = b""

    def to_bytes(self) -> bytes:
        """As consumers read it."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self.parts):
            by_topic.setdefault(topic, []).append(number)
        out = [_I16.pack(ASSIGNMENT_VERSION), _I32.pack(len(by_topic))]
        for topic, numbers in by_topic.items():
            name = topic.encode()
            out += [_I16.pack(len(name)), name, _I32.pack(len(numbers))]
            out += [_I32.pack(one) for one in numbers]
        out.append(_I32.pack(len(self.user_data) if self.user_data else -1))
        return b"".join([*out, self.user_data])


def read_subscription(data: bytes) -> Subscription:
    """A member's metadata.

    Raises:
        MalformedError: they are something else.
    """
    reader = _Reader(data)
    version = reader.i16()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.blob()
    owned = reader.parts() if version >= OWNED_FROM else frozenset()
    if version >= GENERATION_FROM:
        reader.i32()
    rack_id = reader.optional_text() if version >= RACK_FROM else None
    return Subscription(topics, owned, rack_id or None, user_data)


def read_assignment(data: bytes) -> Assignment:
    """What a leader has given a member; no bytes: nothing yet.

    Raises:
        MalformedError: it is something else.
    """
    if not data:
        return Assignment()
    reader = _Reader(data)
    reader.i16()
    return Assignment(reader.parts(), reader.blob())


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        lo, hi = self._at, self._at + size
        if size < 0 or hi > len(self._data):
            raise MalformedError(
                f"expected {size} bytes at {lo}, found {len(self._data) - lo}: no consumer's data"
            )
        self._at = hi
        return self._data[lo:hi]

    def i16(self) -> int:
        return int(_I16.unpack(self._take(_I16.size))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self._take(_I32.size))[0])

    def count(self) -> int:
        """How many things follow: each takes two bytes at least, so there is an end to them."""
        count = self.i32()
        if not 0 <= count <= (len(self._data) - self._at) // 2:
            raise MalformedError(f"expected a count that fits the bytes that follow; found {count}")
        return count

    def text(self) -> str:
        return _decoded(self._take(self.i16()))

    def optional_text(self) -> str | None:
        size = self.i16()
        return None if size < 0 else _decoded(self._take(size))

    def blob(self) -> bytes:
        size = self.i32()
        return b"" if size < 0 else self._take(size)

    def parts(self) -> frozenset[Named]:
        return frozenset(self._each_part())

    def _each_part(self) -> Iterable[Named]:
        for _ in range(self.count()):
            topic = self.text()
            for _ in range(self.count()):
                yield topic, self.i32()


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"expected UTF-8: {error}") from None
