"""What a share group's settings mean to the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.broker.groups.settings import reset_of
from penstock.broker.share.model import Rules

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """One group's settings.

    Attributes:
        rules: those of its partitions' state machines.
        reset: where it begins: `earliest`, `latest`, or how far back (ms).
        is_committed: whether it gets committed records only.
        session_ms: how long a member may be silent.
        heartbeat_ms: how often a member is to send a heartbeat.
        letter_topic: where dead letters go; empty: nowhere.
        copies_record: whether a dead letter carries the record.
    """

    rules: Rules
    reset: str | int
    is_committed: bool
    session_ms: int
    heartbeat_ms: int
    letter_topic: str
    copies_record: bool

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Policy:
        """The policy that the values of a group's settings amount to."""

        def number(name: str) -> int:
            return int(settings[name])

        letter_topic = settings["errors.deadletterqueue.topic.name"]
        rules = Rules(
            lock_ms=number("share.record.lock.duration.ms"),
            delivery_limit=number("share.delivery.count.limit"),
            unsettled_max=number("share.partition.max.record.locks"),
            backoff_ms=number("penstock.share.retry.backoff.ms"),
            backoff_ms_max=number("penstock.share.retry.backoff.max.ms"),
            has_letters=bool(letter_topic),
            may_renew=settings["share.renew.acknowledge.enable"] == "true",
            in_key_order=settings["penstock.share.order"] == "key",
        )
        return cls(
            rules,
            reset_of(settings["share.auto.offset.reset"]),
            settings["share.isolation.level"] == "read_committed",
            number("share.session.timeout.ms"),
            number("share.heartbeat.interval.ms"),
            letter_topic,
            settings["errors.deadletterqueue.copy.record.enable"] == "true",
        )
