"""The resources that have settings, by Kafka's numbers, and the answer for those that have none."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.wire.protocol import ConfigResource, ErrorCode

__all__ = ["error", "is_broker", "is_cluster", "no_resource"]

_REFUSED: Final[dict[int, str]] = {
    ConfigResource.BROKER_LOGGER: "loggers (type 8) can't be changed: see --log-level",
    ConfigResource.CLIENT_METRICS: "clients are not asked for metrics (type 16)",
}


def is_broker(kind: int, name: str) -> bool:
    """Whether this broker is meant."""
    return kind == ConfigResource.BROKER and name == str(NODE_ID)


def is_cluster(kind: int, name: str) -> bool:
    """Whether all brokers are meant."""
    return kind == ConfigResource.BROKER and not name


def no_resource(kind: int, name: str) -> str:
    """Why something has no settings."""
    return _REFUSED.get(
        kind,
        f"expected a topic (type {ConfigResource.TOPIC}), broker {NODE_ID} (type "
        f"{ConfigResource.BROKER}) or a group (type {ConfigResource.GROUP}); found type {kind}, "
        f"{name!r}",
    )


def error(code: ErrorCode, message: str) -> Fields:
    """The part of an answer that says no."""
    return {"error_code": code, "error_message": message}
