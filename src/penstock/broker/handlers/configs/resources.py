"""The resources that have settings, by Kafka's numbers, and the answer for those that have none."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.wire.kafka import ErrorCode

__all__ = ["BROKER", "GROUP", "TOPIC", "error", "is_broker", "is_cluster", "no_resource"]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_REFUSED: Final = {
    BROKER_LOGGER: "loggers (type 8) can't be changed: see --log-level",
    CLIENT_METRICS: "clients are not asked for metrics (type 16)",
}


def is_broker(kind: int, name: str) -> bool:
    """Whether this broker is meant."""
    return kind == BROKER and name == str(NODE_ID)


def is_cluster(kind: int, name: str) -> bool:
    """Whether all brokers are meant."""
    return kind == BROKER and not name


def no_resource(kind: int, name: str) -> str:
    """Why something has no settings."""
    return _REFUSED.get(
        kind,
        f"expected a topic (type {TOPIC}), broker {NODE_ID} (type {BROKER}) or a group (type "
        f"{GROUP}), found type {kind}, {name!r}",
    )


def error(code: ErrorCode, message: str) -> Fields:
    """The part of an answer that says no."""
    return {"error_code": code, "error_message": message}
