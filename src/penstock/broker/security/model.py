"""Kafka's words for access: resource types, operations, and who asks.

The numbers are those of Kafka's protocol (`ResourceType`, `AclOperation`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

__all__ = ["ANONYMOUS", "CLUSTER_NAME", "Caller", "Operation", "ResourceType"]

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection that did not say who it is."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    """What an operation is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """An operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Caller(Protocol):
    """Who asks: a `Call`, or a connection."""

    @property
    def principal(self) -> str:
        """`User:NAME`."""
        ...

    @property
    def client_host(self) -> str:
        """The address that the request comes from, without the port."""
        ...
