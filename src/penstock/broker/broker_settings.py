"""The broker's own settings as clients see them: every setting of Kafka 4.3, with its effective value.

`kafka_configs.json` has Kafka's names, types, defaults and the first sentence of their documentation, as a
Kafka 4.3.1 node describes them (Apache Kafka, Apache License 2.0). Where this broker differs or is
configured, the value is the effective one. A setting without a meaning here is described with Kafka's
default. The settings that Kafka can change at run time can be changed here too, except listeners,
certificates and login mechanisms (see `penstock.broker.dynamic_settings`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.broker.config import BrokerConfig
from penstock.broker.limits import CONNECTIONS_MAX, PARTITIONS_PER_TOPIC_MAX
from penstock.broker.listeners import Listener
from penstock.broker.storage.topic_settings import LONG
from penstock.log.producers import EXPIRY_MS
from penstock.log.segments.index import INTERVAL_BYTES

__all__ = [
    "LEGACY",
    "TOPIC_DEFAULTS",
    "BrokerSetting",
    "broker_settings",
    "broker_values",
    "synonym_of",
]

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
        is_sensitive: whether its value is never shown.
    """

    name: str
    kind: int
    default: str | None
    doc: str
    is_dynamic: bool = False
    is_sensitive: bool = False

    @property
    def is_changeable(self) -> bool:
        """Whether this broker lets it be changed while it runs."""
        return self.is_dynamic and not self.name.startswith(_START_ONLY)


@functools.cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        Path(__file__).with_name("kafka_configs.json").read_bytes()
    )
    return content


LEGACY: Final = {
    "retention.ms": ("log.retention.ms", "log.retention.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
"""Topic settings whose default Kafka keeps under a name in another unit, or under another setting: the
broker setting that may be set, and the one that has the default. Kafka lists them once the first is
set."""
_START_ONLY: Final = (
    "config.providers",
    "cordoned.log.dirs",
    "listener",
    "metric.reporters",
    "principal.",
    "sasl.",
    "ssl.",
)
"""How settings begin that Kafka can change while it runs, and this broker can't."""


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
    text = "Records are refused while less is free on the disk; everything else continues."
    found[MIN_FREE_BYTES] = BrokerSetting(MIN_FREE_BYTES, LONG, None, text)
    text = "Most partitions of a topic: one process serves all of them, more give no more speed."
    found[PARTITIONS_MAX_NAME] = BrokerSetting(PARTITIONS_MAX_NAME, LONG, None, text)
    return dict(sorted(found.items()))


def synonym_of(kind: str, name: str) -> str | None:
    """The broker's setting that a topic's or a group's falls back to (`topics`, `groups`)."""
    names = _content()[kind].get(name, ())
    return names[0] if names else None


def _topic_defaults() -> dict[str, str]:
    found = {one: name for name in _content()["topics"] if (one := synonym_of("topics", name))}
    found |= {one: name for name, (one, _) in LEGACY.items()}
    return {one: name for one, name in sorted(found.items()) if broker_settings()[one].is_dynamic}


TOPIC_DEFAULTS: Final = _topic_defaults()
"""The broker's settings that are defaults of topics' settings, and those."""


def broker_values(
    config: BrokerConfig, listeners: Sequence[Listener], reserve_bytes: int
) -> dict[str, str]:
    """The effective values that differ from Kafka's defaults.

    Args:
        config: the broker's configuration.
        listeners: where it listens.
        reserve_bytes: how much room is left on the disk.
    """
    first = listeners[0]
    shown = config.advertise or f"{first.host}:{first.port}"
    return {
        "advertised.listeners": f"{first.protocol}://{shown}",
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": "1",
        **config.group_defaults,
        "group.consumer.migration.policy": config.migration_policy,
        "group.initial.rebalance.delay.ms": str(config.rebalance_delay_ms),
        "group.max.size": "1000",
        "group.min.session.timeout.ms": str(config.session_ms_min),
        "listeners": ",".join(f"{one.protocol}://{one.address}" for one in listeners),
        "log.dir": str(config.data),
        "log.dirs": str(config.data),
        "log.cleaner.backoff.ms": str(config.cleaner_interval_ms),
        "log.flush.interval.ms": str(config.flush_interval_ms),
        "log.flush.offset.checkpoint.interval.ms": str(config.checkpoint_interval_ms),
        "log.index.interval.bytes": str(INTERVAL_BYTES),
        "log.segment.delete.delay.ms": "0",
        "log.retention.check.interval.ms": str(config.retention_interval_ms),
        "max.connections": str(CONNECTIONS_MAX),
        MIN_FREE_BYTES: str(reserve_bytes),
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
