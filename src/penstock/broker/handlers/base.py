"""What all handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from penstock.broker.security.guard import Guarded
from penstock.broker.security.model import ANONYMOUS
from penstock.broker.services import Services
from penstock.broker.storage.topics import Hosted, Topic
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["Api", "Call", "Client", "Fields", "Handler", "hosted", "missing", "topic_of"]

Fields: TypeAlias = dict[str, Any]


class Client(Guarded, Protocol):
    """A connection, as handlers see it."""

    def trust(self, principal: str) -> None:
        """It has said who it is, and proven it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request's circumstances."""

    broker: Services
    api_key: int
    version: int
    client_id: str
    client_host: str
    address: tuple[str, int]
    connection: Client
    principal: str = ANONYMOUS


Handler: TypeAlias = Callable[[Call, Fields], "Fields | Awaitable[Fields]"]


@dataclass(frozen=True, slots=True)
class Api:
    """One request type: the versions that are served, and by what."""

    key: ApiKey
    first: int
    last: int
    handle: Handler


def topic_of(call: Call, fields: Fields, *, name: str = "name") -> Topic | None:
    """The topic that a struct names, by id where it has one that isn't zero."""
    topic_id = fields.get("topic_id")
    if topic_id is not None and topic_id.int:
        return call.broker.topics.by_id(topic_id.bytes)
    return call.broker.topics.get(fields.get(name) or "")


def missing(call: Call, name: str) -> tuple[ErrorCode, str]:
    """The error for a topic that isn't found: it doesn't exist, or it isn't served."""
    refused = call.broker.topics.refused.get(name)
    if refused is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR, refused
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected a topic; found {name!r}"


def hosted(call: Call, topic: str, partition: int) -> Hosted | None:
    """A partition by its topic's name."""
    found = call.broker.topics.get(topic)
    return found.partition(partition) if found is not None else None
