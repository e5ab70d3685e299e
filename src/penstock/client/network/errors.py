"""Kafka's error codes as exceptions, and which of them a later try may cure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

from penstock.errors import BrokerError
from penstock.wire.protocol import ErrorCode, error_name

__all__ = ["RETRIABLE", "Advice", "broker_error", "check"]

Advice: TypeAlias = str | Mapping[int, str]
"""What to do about an error; a mapping: by its code."""

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
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
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


def check(
    answer: Mapping[str, Any],
    what: str,
    *lists: str,
    advice: Advice = "",
    accepts: Collection[int] = (),
) -> None:
    """Raises the error of an answer, or the first of its entries.

    Args:
        answer: an answer, or one of its entries.
        what: what was asked for, to follow "expected the broker to ".
        lists: names of lists, each in the entries of the one before it, whose entries are checked as well.
        advice: what to do about an error.
        accepts: error codes that the caller reads himself.

    Raises:
        BrokerError: there is an error.
    """
    code = answer.get("error_code", ErrorCode.NONE)
    if code and code not in accepts:
        words = advice if isinstance(advice, str) else advice.get(code, "")
        raise broker_error(code, what, words, answer.get("error_message"))
    if lists:
        for entry in answer[lists[0]] or ():
            check(entry, what, *lists[1:], advice=advice, accepts=accepts)
