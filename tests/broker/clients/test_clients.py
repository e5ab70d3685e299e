from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPartitions
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.interpreter

_groups = itertools.count()


@pytest.fixture
def group() -> str:
    """A new consumer group."""
    return f"group-{next(_groups)}"


@pytest.fixture
def admin(address: str) -> AdminClient:
    """The administration client."""
    return AdminClient({"bootstrap.servers": address})


def consumer(address: str, group: str, **more: Any) -> Consumer:
    """A consumer that begins at the start."""
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 45_000,
            "heartbeat.interval.ms": 200,
            **more,
        }
    )


def produce(
    address: str, topic: str, values: list[bytes], partition: int = -1, **more: Any
) -> None:
    """Produces values and waits for all to be acknowledged."""
    errors: list[Any] = []
    client = Producer({"bootstrap.servers": address, "linger.ms": 1, **more})
    for value in values:
        client.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert client.flush(PATIENCE_S) == 0
    assert not errors


def poll(client: Consumer, count: int, timeout_s: float = PATIENCE_S) -> list[bytes]:
    """The next `count` values."""
    values: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count and time.monotonic() < deadline:
        for message in client.consume(count - len(values), 0.1):
            assert message.error() is None
            values.append(message.value() or b"")
    return values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(
    address: str, topic: str, group: str, acks: str, compression: str
) -> None:
    """The C client gets back what it produced, with every kind of acknowledgement and
    compression.
    """
    values = [b"value %d" % n for n in range(500)]
    produce(address, topic, values, 0, acks=acks, **{"compression.type": compression})
    client = consumer(address, group)
    client.assign([TopicPartition(topic, 0, 0)])
    assert poll(client, 500) == values
    client.close()


def test_idempotent_producer(address: str, topic: str, group: str) -> None:
    """An idempotent producer works; its records are there once, in order."""
    values = [b"%d" % n for n in range(2000)]
    produce(address, topic, values, 1, **{"enable.idempotence": True})
    client = consumer(address, group)
    client.assign([TopicPartition(topic, 1, 0)])
    assert poll(client, 2000) == values
    client.close()


def test_seek_by_offset_and_time(address: str, topic: str, group: str) -> None:
    """A consumer begins at any offset, or at the first record of a time, to the record."""
    client = Producer({"bootstrap.servers": address, "linger.ms": 50})
    for n in range(100):
        client.produce(topic, b"%d" % n, partition=0, timestamp=1_000_000 + 10 * n)
    client.flush()
    reader = consumer(address, group)
    (found,) = reader.offsets_for_times(
        [TopicPartition(topic, 0, 1_000_000 + 355)], timeout=PATIENCE_S
    )
    assert found.offset == 36
    reader.assign([TopicPartition(topic, 0, 36)])
    assert poll(reader, 3) == [b"36", b"37", b"38"]
    assert reader.get_watermark_offsets(TopicPartition(topic, 0)) == (0, 100)
    reader.close()


def test_committed_offsets(address: str, topic: str, group: str) -> None:
    """A group goes on where it committed, with the commit's metadata kept."""
    produce(address, topic, [b"%d" % n for n in range(10)], 0)
    first = consumer(address, group)
    first.subscribe([topic])
    assert len(poll(first, 10)) == 10
    first.commit(offsets=[TopicPartition(topic, 0, 4, "note")], asynchronous=False)
    first.close()
    second = consumer(address, group)
    (found,) = second.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    assert (found.offset, found.metadata) == (4, "note")
    second.subscribe([topic])
    assert poll(second, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    second.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_and_hand_over(
    address: str, topic: str, group: str, strategy: str
) -> None:
    """Two members of a group get a partition each; when one leaves, the other gets both."""
    options = {"partition.assignment.strategy": strategy}
    members = [consumer(address, group, **options) for _ in range(2)]
    for one in members:
        one.subscribe([topic])
    wait_for(members, lambda: [len(one.assignment()) for one in members] == [1, 1])
    produce(address, topic, [b"x"], 0)
    produce(address, topic, [b"y"], 1)
    got = poll(members[0], 1) + poll(members[1], 1)
    assert sorted(got) == [b"x", b"y"]
    members[1].close()
    wait_for(members[:1], lambda: len(members[0].assignment()) == 2)
    members[0].close()


def wait_for(members: list[Consumer], is_so: Any) -> None:
    """Polls the members until something is so."""

    def polled() -> bool:
        for one in members:
            one.poll(0.05)
        return bool(is_so())

    wait_until(polled, "an assignment")


def test_topic_administration(admin: AdminClient) -> None:
    """Topics are made, described, grown, configured and deleted."""
    admin.create_topics([NewTopic("admin", 2, config={"retention.ms": "5000"})])["admin"].result()
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("admin", 2)])["admin"].result()
    compact = NewTopic("compact", 1, config={"cleanup.policy": "squeeze"})
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.create_topics([compact])["compact"].result()
    with pytest.raises(KafkaException, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic("three", 1, 3)])["three"].result()
    with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
        admin.create_topics([NewTopic("../x", 1)])["../x"].result()
    admin.create_partitions([NewPartitions("admin", 3)])["admin"].result()
    assert len(admin.list_topics("admin", PATIENCE_S).topics["admin"].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, "admin")
    before = admin.describe_configs([resource])[resource].result()
    assert before["retention.ms"].value == "5000"
    assert before["segment.bytes"].is_default
    change = ConfigEntry("segment.bytes", "4096", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, "admin", incremental_configs=[change])
    admin.incremental_alter_configs([changed])[changed].result()
    after = admin.describe_configs([resource])[resource].result()
    assert after["segment.bytes"].value == "4096"
    admin.delete_topics(["admin"])["admin"].result()
    assert "admin" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_broker_settings_are_described(admin: AdminClient) -> None:
    """The broker's own settings can be looked at."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result()
    assert found["socket.request.max.bytes"].value == str(100 << 20)


def test_group_administration(admin: AdminClient, address: str, topic: str, group: str) -> None:
    """Groups are listed, described and deleted; their offsets can be altered and deleted."""
    produce(address, topic, [b"a"], 0)
    member = consumer(address, group)
    member.subscribe([topic])
    assert poll(member, 1) == [b"a"]
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state.name == "STABLE"
    assert len(described.members) == 1
    assert group in [one.group_id for one in admin.list_consumer_groups().result().valid]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result()
    member.close()
    altered = [GroupPartitions(group, [TopicPartition(topic, 0, 0)])]
    admin.alter_consumer_group_offsets(altered)[group].result()
    listed = admin.list_consumer_group_offsets([GroupPartitions(group)])[group].result()
    assert [(one.partition, one.offset) for one in listed.topic_partitions] == [(0, 0)]
    admin.delete_consumer_groups([group])[group].result()
    assert group not in [one.group_id for one in admin.list_consumer_groups().result().valid]


def test_offsets_and_record_deletion(admin: AdminClient, address: str, topic: str) -> None:
    """Offsets are listed by every mark; deleted records move the start."""
    produce(address, topic, [b"%d" % n for n in range(10)], 0)
    place = TopicPartition(topic, 0)
    admin.delete_records([TopicPartition(topic, 0, 4)])[place].result()

    def offset(spec: Any) -> int:
        return int(admin.list_offsets({place: spec})[place].result().offset)

    assert offset(OffsetSpec.earliest()) == 4
    assert offset(OffsetSpec.latest()) == 10
    assert 4 <= offset(OffsetSpec.max_timestamp()) < 10
    assert offset(OffsetSpec.for_timestamp(1 << 50)) == -1


def test_topics_are_made_on_first_use(address: str) -> None:
    """A producer may write to a topic that isn't there yet, as with Kafka's defaults."""
    produce(address, "made-by-use", [b"a"])


def test_the_records_at_fault_are_reported(address: str, admin: AdminClient) -> None:
    """With librdkafka, each record: those without a key, and those that were only beside them."""
    topic = NewTopic("keyed-records", 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])["keyed-records"].result(PATIENCE_S)
    codes: dict[bytes, Any] = {}
    client = Producer({"bootstrap.servers": address, "linger.ms": 60_000, "batch.num.messages": 4})
    for key in (b"a", None, b"c", None):
        client.produce(
            "keyed-records",
            b"beside" if key else b"keyless",
            key,
            on_delivery=lambda error, one: codes.setdefault(one.value(), error.code()),
        )
    # No flush: it may send what is there so far, and one record at fault is told of all beside it.
    deadline = time.monotonic() + PATIENCE_S
    while len(codes) < 2 and time.monotonic() < deadline:
        client.poll(0.1)
    assert codes == {
        b"keyless": KafkaError.INVALID_RECORD,
        b"beside": KafkaError._INVALID_DIFFERENT_RECORD,
    }


def test_long_poll_wakes_at_once(address: str, topic: str, group: str) -> None:
    """A consumer that waits gets a record when it is produced, not when its wait is over."""
    reader = consumer(address, group, **{"fetch.wait.max.ms": 50_000})
    reader.assign([TopicPartition(topic, 0, 0)])
    reader.poll(0.3)
    delays = []
    writer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    writer.list_topics(topic, timeout=PATIENCE_S)
    for _ in range(10):
        began = time.monotonic()
        writer.produce(topic, b"x", partition=0)
        writer.poll(0)
        assert reader.poll(PATIENCE_S) is not None
        delays.append(time.monotonic() - began)
    reader.close()
    assert sorted(delays)[5] < 5, "nothing but the record ended the wait"


# -- kafka-python ----------------------------------------------------------------------------------


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python(address: str, topic: str, group: str, compression: str) -> None:
    """kafka-python produces, consumes in a group, commits, and goes on from its commit."""
    script = Path(__file__).with_name("kafka_python_client.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), address, topic, group, compression],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    if done.returncode == 77:
        pytest.skip(f"kafka-python has no library for {compression}: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr


# -- kcat ------------------------------------------------------------------------------------------


def test_kcat(address: str, topic: str) -> None:
    """The command kcat produces and consumes."""
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not on PATH")
    base = [kcat, "-b", address, "-t", topic]
    subprocess.run([*base, "-P", "-p", "0"], input=b"a\nb\nc\n", check=True, timeout=PATIENCE_S)
    out = subprocess.run(
        [*base, "-C", "-p", "0", "-o", "1", "-e", "-q"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert out.stdout == b"b\nc\n"


def test_many_clients_at_once(address: str, topic: str) -> None:
    """Producers that write at the same time all get their records in."""
    values = [[b"%d-%d" % (n, m) for m in range(200)] for n in range(8)]
    threads = [
        threading.Thread(target=produce, args=(address, topic, one, 0), kwargs={"acks": "all"})
        for one in values
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = consumer(address, "unused")
    reader.assign([TopicPartition(topic, 0, 0)])
    got = poll(reader, 1600)
    reader.close()
    for one in values:
        assert [value for value in got if value in set(one)] == one
