"""Kafka's error codes as exceptions, and which of them a later try may cure."""

from __future__ import annotations

from typing import Final

from penstock.errors import BrokerError
from penstock.wire.protocol import ErrorCode, error_name

__all__ = ["RETRIABLE", "broker_error"]

# Where the cluster is moving a leader, starting, or busy: the same request may succeed later.
RETRIABLE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


def broker_error(code: int, what: str, advice: str = "", detail: str | None = None) -> BrokerError:
    """The exception for an error code in an answer.

    Args:
        code: Kafka's error code.
        what: what was being done, to follow "expected the broker to ".
        advice: what to do about it.
        detail: the broker's own words, if any.
    """
    found = f"{error_name(code)} (code {code})"
    if detail:
        found += f": {detail}"
    message = f"expected the broker to {what}; found {found}"
    if advice:
        message += f". {advice}"
    return BrokerError(message, code=code, retriable=code in RETRIABLE)
