"""What classic consumers send each other through the coordinator: subscriptions and assignments.

A version, and then Kafka's ConsumerProtocolSubscription or ConsumerProtocolAssignment in it. A later
version only adds fields at the end, so one that is newer than what is known here is read as the newest that
is. The broker reads them where members of both protocols share a group (KIP-848), and for no other group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ProtocolError
from penstock.wire.messages import data_codec, data_versions

__all__ = ["Assignment", "Subscription", "read_assignment", "read_subscription"]

ASSIGNMENT_VERSION: Final = 0
"""Later ones have no other fields, and every consumer reads this one."""
_SUBSCRIPTION: Final = "consumer_protocol_subscription"
_ASSIGNMENT: Final = "consumer_protocol_assignment"
_VERSION: Final = struct.Struct(">h")

Named = tuple[str, int]


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
        parts = [{"topic": name, "partitions": numbers} for name, numbers in by_topic.items()]
        fields = {"assigned_partitions": parts, "user_data": self.user_data or None}
        body = data_codec(_ASSIGNMENT, ASSIGNMENT_VERSION).encode(fields)
        return _VERSION.pack(ASSIGNMENT_VERSION) + body


def read_subscription(data: bytes) -> Subscription:
    """A member's metadata.

    Raises:
        ProtocolError: they are something else.
    """
    found = _read(_SUBSCRIPTION, data)
    return Subscription(
        tuple(found["topics"]),
        _parts(found.get("owned_partitions", ())),
        found.get("rack_id") or None,
        found["user_data"] or b"",
    )


def read_assignment(data: bytes) -> Assignment:
    """What a leader has given a member; no bytes: nothing yet.

    Raises:
        ProtocolError: it is something else.
    """
    if not data:
        return Assignment()
    found = _read(_ASSIGNMENT, data)
    return Assignment(_parts(found["assigned_partitions"]), found["user_data"] or b"")


def _read(name: str, data: bytes) -> dict[str, Any]:
    oldest, newest = data_versions(name)
    version = _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else -1
    if version < oldest:
        raise ProtocolError(
            f"expected a version of {oldest} or more before the data that consumers exchange; found "
            f"{data[: _VERSION.size]!r}. The client is no consumer, or broken"
        )
    return data_codec(name, min(version, newest)).decode(data[_VERSION.size :])


def _parts(topics: Iterable[dict[str, Any]]) -> frozenset[Named]:
    return frozenset((one["topic"], number) for one in topics for number in one["partitions"])
