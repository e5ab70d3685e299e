"""Groups of real clients whose members join, leave and are killed, with every way to assign."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from member_processes import Member, shared, until
from tests.peers import kafka_peer

from penstock.broker import BrokerProcess

PARTITIONS: Final = 5
BATCH: Final = 50
VARIANTS: Final = (
    ("confluent", "uniform"),
    ("confluent", "range-848"),
    ("confluent", "range"),
    ("confluent", "roundrobin"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
)


class Feed:
    """Numbered records, a few every now and then, until it is stopped."""

    def __init__(self, address: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0})
        self._topic = topic
        self._stopped = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
            self.count = number + 1
            if self._stopped.wait(0.01):
                break
        self._producer.flush()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all groups."""
    with BrokerProcess(tmp_path_factory.mktemp("rebalancing") / "data") as process:
        yield process


def run_group(broker: BrokerProcess, variant: tuple[str, str]) -> None:
    """Members come, leave, and die; then every record was read, and the offsets say so."""
    name = "-".join(variant)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result()
    make_quick(admin, name)
    feed = Feed(broker.address, name)
    everyone: list[Member] = []

    def start() -> Member:
        member = Member(variant, broker.address, name, name)
        everyone.append(member)
        return member

    def settle(*members: Member, partitions: int = PARTITIONS) -> None:
        until(
            f"{len(members)} members of {name} to share {partitions} partitions",
            lambda: shared(list(members), partitions),
            lambda: [one.events for one in members],
        )

    try:
        first = start()
        settle(first)
        second, third = start(), start()
        settle(first, second, third)
        second.end(kill=True)
        settle(first, third)
        fourth = start()
        first.end()
        settle(third, fourth)
        if variant[0] != "kafka-python":
            # kafka-python 3.0.12 may fall asleep when metadata change under a leader: its I/O
            # thread then waits in select() without a timeout, and sends no heartbeats any more.
            admin.create_partitions([NewPartitions(name, PARTITIONS + 2)])[name].result()
            settle(third, fourth, partitions=PARTITIONS + 2)
        feed.stop()
        until(
            f"all {feed.count} records of {name} to be read",
            lambda: len({n for one in everyone for n in one.read}) >= feed.count,
            lambda: len({n for one in everyone for n in one.read}),
        )
        third.end()
        fourth.end()
    finally:
        feed.stop()
        for member in everyone:
            member.end(kill=True)
    check_offsets(admin, name, feed.count)
    # Only what a killed member hadn't committed, or couldn't commit, was read again.
    refusals = [event for one in everyone for event in one.events if event.startswith("refused")]
    counts = Counter(n for one in everyone for n in one.read)
    repeated = sum(1 for times in counts.values() if times > 1)
    assert repeated <= BATCH * (1 + len(refusals)), f"{name}: {repeated} again, {refusals}"


@pytest.mark.slow
def test_members_of_both_protocols(broker: BrokerProcess) -> None:
    """Consumers are changed from one protocol to the other one after the other, and back, while
    they read: nobody reads what another one has, and no record is lost.
    """
    change_protocols(broker.address)


@pytest.mark.peer
@pytest.mark.slow
def test_members_of_both_protocols_at_kafka(tmp_path: Path) -> None:
    """The same clients come through the same changes at a Kafka node."""
    kafka = kafka_peer()
    settings = {
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "500",
    }
    with kafka.KafkaProcess(tmp_path, settings=settings) as process:
        change_protocols(process.address)


def change_protocols(address: str) -> None:
    """A group of real clients is upgraded and downgraded, member by member."""
    name = "mixed"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result()
    make_quick(admin, name)
    feed = Feed(address, name)
    everyone: list[Member] = []

    def start(*variant: str) -> Member:
        member = Member((variant[0], variant[1]), address, name, name)
        everyone.append(member)
        return member

    def settle(*members: Member) -> None:
        until(
            f"{len(members)} members to share {PARTITIONS} partitions",
            lambda: shared(list(members), PARTITIONS),
            lambda: [one.events for one in members],
        )

    try:
        first, second = start("confluent", "range"), start("kafka-python", "range")
        settle(first, second)
        modern = start("confluent", "uniform")  # the group is upgraded
        settle(first, second, modern)
        first.end()
        settle(second, modern)
        other = start("confluent", "uniform")
        settle(second, modern, other)
        second.end()
        settle(modern, other)
        third = start("confluent", "range")
        settle(modern, other, third)
        modern.end(kill=True)
        settle(other, third)
        other.end()  # the group is downgraded
        settle(third)
        fourth = start("kafka-python", "range")
        settle(third, fourth)
        feed.stop()
        until(
            f"all {feed.count} records to be read",
            lambda: len({n for one in everyone for n in one.read}) >= feed.count,
            lambda: [one.events for one in everyone],
        )
        third.end()
        fourth.end()
    finally:
        feed.stop()
        for member in everyone:
            member.end(kill=True)
    check_reading(admin, name, feed, everyone)


def make_quick(admin: AdminClient, group: str) -> None:
    """Short sessions of the newer protocol."""
    quick = [
        ConfigEntry(f"consumer.{key}", value, incremental_operation=AlterConfigOpType.SET)
        for key, value in (("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500"))
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=quick)
    admin.incremental_alter_configs([resource])[resource].result()


def check_reading(admin: AdminClient, name: str, feed: Feed, everyone: list[Member]) -> None:
    """Everything is committed. Only what a killed member hadn't committed, or couldn't commit, was
    read again.
    """
    check_offsets(admin, name, feed.count)
    refusals = [event for one in everyone for event in one.events if event.startswith("refused")]
    counts = Counter(n for one in everyone for n in one.read)
    repeated = sum(1 for times in counts.values() if times > 1)
    assert repeated <= BATCH * (1 + len(refusals)), f"{name}: {repeated} again, {refusals}"


def check_offsets(admin: AdminClient, name: str, count: int) -> None:
    """Everything is committed, and nothing beyond."""
    wanted = [TopicPartition(name, one) for one in range(PARTITIONS)]
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name, wanted)])
    found = future[name].result().topic_partitions
    assert found is not None
    assert [one.offset for one in found] == [
        len(range(part, count, PARTITIONS)) for part in range(PARTITIONS)
    ]
    # librdkafka 2.16 may close without a word where a heartbeat is on its way; the session ends it.
    states: list[str] = []

    def is_empty() -> bool:
        states.append(admin.describe_consumer_groups([name])[name].result().state.name)
        return states[-1] == "EMPTY"

    until(f"{name} to be empty", is_empty, lambda: states[-1])


@pytest.mark.slow
def test_members_stay_over_a_restart(own_broker: BrokerProcess) -> None:
    """A broker that is killed costs its groups a reconnection: nobody loses a partition, and no
    record is read twice.
    """
    own_broker.start()
    admin = AdminClient({"bootstrap.servers": own_broker.address, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result()
    groups = {
        name: [Member(("confluent", name), own_broker.address, name, "t", 45_000) for _ in range(2)]
        for name in ("uniform", "range")
    }
    members = [one for group in groups.values() for one in group]
    try:
        for group in groups.values():
            until("two members", partial(shared, group, PARTITIONS), lambda: members[0].events)
        feed = Feed(own_broker.address, "t")
        until("some records", lambda: all(one.read for one in members), lambda: feed.count)
        feed.stop()
        for name, group in groups.items():
            until(
                f"all records in {name}",
                lambda group=group: sum(len(one.read) for one in group) == feed.count,  # type: ignore[misc]
                lambda: feed.count,
            )
        before = [list(one.events) for one in members]
        own_broker.kill()
        own_broker.start()
        again = Feed(own_broker.address, "t")
        time.sleep(5)
        again.stop()
        for name, group in groups.items():
            until(
                f"all records in {name} after the restart",
                lambda group=group: (  # type: ignore[misc]
                    sum(len(one.read) for one in group) == feed.count + again.count
                ),
                lambda: [len(one.read) for one in members],
            )
        assert [one.events for one in members] == before
    finally:
        for member in members:
            member.end(kill=True)


@pytest.mark.slow
def test_members_join_leave_and_die(broker: BrokerProcess) -> None:
    """No record is lost, few are read twice, and the committed offsets are right. The groups run at
    once, since most of the time is spent on waiting.
    """
    with ThreadPoolExecutor(len(VARIANTS)) as pool:
        for outcome in [pool.submit(run_group, broker, one) for one in VARIANTS]:
            outcome.result()
