"""A member of a group, in a process of its own, so that it can be killed.

    [SESSION_MS=6000] python group_member.py LIBRARY ADDRESS GROUP TOPIC STRATEGY [INSTANCE]

Prints each record's value when it has been read, commits after each batch, and says `+ N` and
`- N` for partitions that came and went. A commit that is refused (while the group rebalances, say)
is tried again, else the last one may be missing. Ends with SIGTERM, leaving the group.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

SESSION_MS = int(os.environ.get("SESSION_MS", "6000"))
BEAT_MS = 1_000
JOIN_MS = 15_000
"""How long kafka-python waits for a join to end; so long may it take a member to begin to leave."""


def say(*words: object) -> None:
    """A line of its own, at once."""
    print(*words, flush=True)


def confluent(address: str, group: str, topic: str, strategy: str, instance: str | None) -> None:
    """A member by librdkafka."""
    from confluent_kafka import Consumer, KafkaException

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
    }
    if strategy in {"uniform", "range-848"}:
        settings |= {
            "group.protocol": "consumer",
            "group.remote.assignor": strategy.removesuffix("-848"),
        }
    else:
        settings |= {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": BEAT_MS,
        }
    if instance is not None:
        settings["group.instance.id"] = instance
    reader = Consumer(settings)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    reader.subscribe(
        [topic],
        on_assign=lambda _, parts: say("+", *(one.partition for one in parts)),
        on_revoke=lambda _, parts: say("-", *(one.partition for one in parts)),
        on_lost=lambda _, parts: say("lost", *(one.partition for one in parts)),
    )
    behind = False
    while behind or not ended:
        messages = [one for one in reader.consume(50, 0.1) if not one.error()]
        for one in messages:
            say((one.value() or b"").decode())
        if messages or behind:
            behind = False
            try:
                reader.commit(asynchronous=False)
            except KafkaException as error:
                name = error.args[0].name()
                behind = name != "_NO_OFFSET"  # what was read has been taken away
                if behind and messages:
                    say("refused", name)
    reader.close()


def kafka_python(address: str, group: str, topic: str, strategy: str, instance: str | None) -> None:
    """A member by kafka-python."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc] # untyped
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("+", *sorted(one.partition for one in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("-", *sorted(one.partition for one in revoked))

        def on_partitions_lost(self, lost: Any) -> None:
            say("lost", *sorted(one.partition for one in lost))

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    reader = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        partition_assignment_strategy=[assignors[strategy]],
    )
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    # kafka-python 3.0.12 forgets a join that ends while nobody waits for it, as `poll` has timed out:
    # it joins once more, or, where it joined because metadata changed, has no assignment for good. So
    # joins get their time, and the leader knows the topic before the first one.
    ensure = reader._coordinator.ensure_active_group
    reader._coordinator.ensure_active_group = lambda timeout_ms=None: ensure(JOIN_MS)
    reader.subscribe([topic], listener=Listener())
    while not reader.partitions_for_topic(topic):
        time.sleep(0.1)
    behind = False
    while behind or not ended:
        found = reader.poll(timeout_ms=500, max_records=50)
        for records in found.values():
            for one in records:
                say(one.value.decode())
        if found or behind:
            behind = False
            try:
                reader.commit()
            except KafkaError as error:
                behind = True
                if found:
                    say("refused", type(error).__name__)
    reader.close(autocommit=False)


if __name__ == "__main__":
    library, *rest = sys.argv[1:]
    member = {"confluent": confluent, "kafka-python": kafka_python}[library]
    member(rest[0], rest[1], rest[2], rest[3], rest[4] if len(rest) > 4 else None)
