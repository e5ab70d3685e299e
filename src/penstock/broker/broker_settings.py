"""The broker's own settings as clients see them: every one of Kafka 4.3's, with what is so here.

`kafka_configs.json` has Kafka's names, types, defaults and the first sentence of their documentation, as a
Kafka 4.3.1 node describes them (Apache Kafka, Apache License 2.0). Where this broker differs, or was
told something, the value is what is so; a setting that means nothing here is described with Kafka's
default. None can be changed while the broker runs: it is told when it starts.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.config import CONNECTIONS_MAX, PARTITIONS_PER_TOPIC_MAX
from penstock.broker.settings import LONG, SettingError
from penstock.log.index import INTERVAL_BYTES
from penstock.log.producers import EXPIRY_MS

if TYPE_CHECKING:
    from penstock.broker.server import Broker

__all__ = ["BrokerSetting", "broker_settings", "broker_values", "check_unchanged", "synonym_of"]

MIN_FREE_BYTES: Final = "log.min.free.bytes"
PARTITIONS_MAX_NAME: Final = "topic.partitions.max"


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One setting of the broker.

    Attributes:
        name: Kafka's name.
        kind: Kafka's type number.
        default: Kafka's default; None where it has none.
        doc: what it means.
        is_dynamic: whether Kafka can change it while it runs.
        is_sensitive: whether its value is never told.
    """

    name: str
    kind: int
    default: str | None
    doc: str
    is_dynamic: bool = False
    is_sensitive: bool = False


@functools.cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        Path(__file__).with_name("kafka_configs.json").read_bytes()
    )
    return content


@functools.cache
def broker_settings() -> dict[str, BrokerSetting]:
    """Every setting by name."""
    found = {
        name: BrokerSetting(
            name,
            one["type"],
            one["default"],
            one["doc"],
            one.get("dynamic", False),
            one.get("sensitive", False),
        )
        for name, one in _content()["brokers"].items()
    }
    text = "Records are refused while less is free on the disk; everything else goes on."
    found[MIN_FREE_BYTES] = BrokerSetting(MIN_FREE_BYTES, LONG, None, text)
    text = "Most partitions of a topic: one process serves all of them, more give no more speed."
    found[PARTITIONS_MAX_NAME] = BrokerSetting(PARTITIONS_MAX_NAME, LONG, None, text)
    return dict(sorted(found.items()))


def synonym_of(kind: str, name: str) -> str | None:
    """The broker's setting that a topic's or a group's falls back to (`topics`, `groups`)."""
    names = _content()[kind].get(name, ())
    return names[0] if names else None


def broker_values(broker: Broker) -> dict[str, str]:
    """What is so here, where it isn't Kafka's default."""
    config = broker.config
    listeners = ",".join(f"{one.protocol}://{one.address}" for one in broker.listeners)
    host, port = broker.address
    protocol = broker.listeners[0].protocol if broker.listeners else "PLAINTEXT"
    return {
        "advertised.listeners": f"{protocol}://{config.advertise or f'{host}:{port}'}",
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": "1",
        "group.consumer.migration.policy": config.migration_policy,
        "group.initial.rebalance.delay.ms": str(config.rebalance_delay_ms),
        "group.max.size": "1000",
        "group.min.session.timeout.ms": str(config.session_ms_min),
        "listeners": listeners,
        "log.dir": str(config.data),
        "log.dirs": str(config.data),
        "log.flush.interval.ms": str(config.flush_interval_ms),
        "log.index.interval.bytes": str(INTERVAL_BYTES),
        "log.retention.check.interval.ms": str(config.retention_interval_ms),
        "max.connections": str(CONNECTIONS_MAX),
        MIN_FREE_BYTES: str(broker.room.reserve_bytes),
        "node.id": "1",
        "num.partitions": str(config.default_partitions),
        "num.network.threads": "1",
        "offsets.topic.replication.factor": "1",
        "process.roles": "broker,controller",
        "producer.id.expiration.ms": str(EXPIRY_MS),
        "sasl.enabled.mechanisms": ",".join(config.mechanisms),
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        PARTITIONS_MAX_NAME: str(PARTITIONS_PER_TOPIC_MAX),
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
    }


def check_unchanged(values: dict[str, str], name: str, value: str | None) -> None:
    """Accepts that a setting is set to what it is already, and nothing else.

    Raises:
        SettingError: it would change, or there is none of that name.
    """
    setting = broker_settings().get(name)
    if setting is None:
        raise SettingError(f"expected a setting of the broker, found {name!r}")
    current = values.get(name, setting.default)
    if (value or "") != (current or ""):
        raise SettingError(
            f"expected {name}={current}: the broker's settings are fixed while it runs, see `penstock "
            f"broker --help` for what it can be told; found {value!r}"
        )
