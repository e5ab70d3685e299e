"""What all handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.broker.security.model import ANONYMOUS
from penstock.broker.topics import Hosted, Topic

if TYPE_CHECKING:
    from penstock.broker.connection import Connection
    from penstock.broker.server import Broker

__all__ = ["Api", "Call", "Fields", "Handler", "hosted", "topic_of"]

Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request's circumstances."""

    broker: Broker
    api_key: int
    version: int
    client_id: str
    client_host: str
    address: tuple[str, int]
    connection: Connection
    principal: str = ANONYMOUS


Handler: TypeAlias = Callable[[Call, Fields], "Fields | Awaitable[Fields]"]


@dataclass(frozen=True, slots=True)
class Api:
    """One request type: the versions that are served, and by what."""

    key: int
    first: int
    last: int
    handle: Handler


def topic_of(call: Call, fields: Fields, *, name: str = "name") -> Topic | None:
    """The topic that a struct names, by id where it has one that isn't zero."""
    topic_id = fields.get("topic_id")
    if topic_id is not None and topic_id.int:
        return call.broker.topics.by_id(topic_id.bytes)
    return call.broker.topics.get(fields.get(name) or "")


def hosted(call: Call, topic: str, partition: int) -> Hosted | None:
    """A partition by its topic's name."""
    found = call.broker.topics.get(topic)
    return found.partition(partition) if found is not None else None
