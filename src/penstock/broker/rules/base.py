"""What each request type needs to be allowed, and what it answers where it is not.

A rule stands between the request and its handler: it refuses the whole, or takes out what is not
allowed, has the handler do the rest, and adds the refusals to its answer. So handlers know nothing
of authorization, and where it is off nothing of this runs. Produce and Fetch, which have no handler,
ask `Guard.may` themselves. The operations and errors are Kafka's (KafkaApis).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.handlers.base import Api, Call, Fields, topic_of
from penstock.broker.security.model import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ErrorCode

__all__ = ["Asked", "Rule", "denial", "free", "split", "whole"]

Answer = Fields | Awaitable[Fields]

DENIED: Final[dict[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what answers it where it is allowed."""

    call: Call
    api: Api

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the caller may do something."""
        return self.call.broker.guard.allows(self.call, operation, resource_type, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the caller may do something with the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the caller may do something with a topic."""
        return self.may(operation, ResourceType.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the caller may do something with a group."""
        return self.may(operation, ResourceType.GROUP, name)

    def proceed(self, fields: Fields, finish: Callable[[Fields], Fields] | None = None) -> Answer:
        """Has the handler answer, and changes its answer."""
        answer = self.api.handle(self.call, fields)
        if finish is None:
            return answer
        if inspect.isawaitable(answer):
            return _later(answer, finish)
        return finish(answer)


async def _later(answer: Awaitable[Fields], finish: Callable[[Fields], Fields]) -> Fields:
    return finish(await answer)


Rule = Callable[[Asked, Fields], Answer]


def free(asked: Asked, fields: Fields) -> Answer:
    """Always allowed: the request shows and changes nothing of others."""
    return asked.proceed(fields)


def denial(resource_type: ResourceType, **more: Any) -> Fields:
    """An answer, or a part of one, that says no."""
    return {"error_code": DENIED[resource_type], **more}


def whole(
    operation: Operation,
    resource_type: ResourceType,
    key: str | None = None,
    refuse: Callable[[Fields, ErrorCode], Fields] | None = None,
) -> Rule:
    """The request as a whole needs one operation on one resource.

    Args:
        operation: what it needs.
        resource_type: of what.
        key: the field that names the resource; None: the cluster.
        refuse: makes the refusal; without it, an error code alone.
    """

    def rule(asked: Asked, fields: Fields) -> Answer:
        name = CLUSTER_NAME if key is None else fields[key] or ""
        if asked.may(operation, resource_type, name):
            return asked.proceed(fields)
        code = DENIED[resource_type]
        return {"error_code": code} if refuse is None else refuse(fields, code)

    return rule


def split(
    asked: Asked,
    operation: Operation,
    entries: Iterable[Fields],
    name_key: str = "name",
) -> tuple[list[Fields], list[Fields]]:
    """The entries of a request whose topic may be used, and those whose may not. An id that no topic
    has is left to the handler, which says so.
    """
    allowed: list[Fields] = []
    refused: list[Fields] = []
    for entry in entries:
        name = entry.get(name_key)
        if name is None:
            topic = topic_of(asked.call, entry, name=name_key)
            name = topic.name if topic is not None else None
        is_allowed = name is None or asked.may_topic(operation, name)
        (allowed if is_allowed else refused).append(entry)
    return allowed, refused
