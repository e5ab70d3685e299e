"""Kafka's error codes: names, and which of them a later try may cure."""

from __future__ import annotations

from typing import Final

from penstock.errors import BrokerError

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC: Final = 3
MESSAGE_TOO_LARGE: Final = 10
RECORD_LIST_TOO_LARGE: Final = 18
UNSUPPORTED_VERSION: Final = 35
TOPIC_EXISTS: Final = 36
OUT_OF_ORDER_SEQUENCE: Final = 45
DUPLICATE_SEQUENCE: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTION_ABORTABLE: Final = 120
OFFSET_NOT_AVAILABLE: Final = 78
LEADERLESS: Final = 5  # LEADER_NOT_AVAILABLE

_NAMES: Final[dict[int, str]] = {
    -1: "UNKNOWN_SERVER_ERROR",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    9: "REPLICA_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    22: "ILLEGAL_GENERATION",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    33: "UNSUPPORTED_SASL_MECHANISM",
    34: "ILLEGAL_SASL_STATE",
    35: "UNSUPPORTED_VERSION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    54: "SECURITY_DISABLED",
    56: "KAFKA_STORAGE_ERROR",
    58: "SASL_AUTHENTICATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
    90: "PRODUCER_FENCED",
    91: "RESOURCE_NOT_FOUND",
    92: "DUPLICATE_RESOURCE",
    93: "UNACCEPTABLE_CREDENTIAL",
    100: "UNKNOWN_TOPIC_ID",
    120: "TRANSACTION_ABORTABLE",
}

# Where the cluster is moving a leader, starting, or busy: the same request may succeed later.
RETRIABLE: Final = frozenset(
    {3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 74, 75, 78, 89, 100}
)


def error_name(code: int) -> str:
    """Kafka's name for an error code.

    >>> error_name(3)
    'UNKNOWN_TOPIC_OR_PARTITION'
    """
    return _NAMES.get(code, f"error {code}")


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
