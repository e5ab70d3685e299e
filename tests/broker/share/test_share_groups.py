"""Share groups over the wire: membership, fetching, acknowledging, restarts, dead letters."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from share_worker import (
    ACCEPT,
    DESCRIBE,
    GROUP,
    HEARTBEAT,
    REJECT,
    RELEASE,
    RENEW,
    Worker,
    configure,
    topic_id,
)
from tests.patience import wait_until

from penstock.broker import BrokerProcess
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

_names = itertools.count()
Connect = Callable[[str], Any]


def test_share_groups_are_advertised(raw: Any) -> None:
    """Clients learn that there are share groups."""
    answer = raw.call(ApiKey.API_VERSIONS, 3)
    features = {one["name"]: one["max_version_level"] for one in answer["finalized_features"]}
    assert features["share.version"] == 1
    assert {76, 77, 78, 79, 90, 91, 92} <= {one["api_key"] for one in answer["api_keys"]}


def test_records_are_shared(worker: Worker, second: Worker) -> None:
    """Members of one partition get different records, each once when they accept."""
    assert worker.fetch(most=3) == [(0, 1), (1, 1), (2, 1)]
    assert second.fetch(most=3) == [(3, 1), (4, 1), (5, 1)]
    assert worker.acknowledge(0, 2, ACCEPT) == 0
    assert second.acknowledge(0, 2, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert second.acknowledge(3, 6, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert worker.fetch(most=99) == [(offset, 1) for offset in range(6, 10)]


def test_release_and_piggybacked_acknowledgement(worker: Worker, second: Worker) -> None:
    """A released record comes again; a fetch may bring acknowledgements."""
    worker.fetch(most=2)
    acks = [{"first_offset": 0, "last_offset": 1, "acknowledge_types": [RELEASE, ACCEPT]}]
    assert worker.fetch(most=0, acks=acks) == []
    assert second.fetch(most=2) == [(0, 2), (2, 1)]


def test_waiting_member_gets_what_is_released(worker: Worker, second: Worker) -> None:
    """A long poll ends when a record becomes available, or is appended."""
    assert len(worker.fetch(most=99)) == 10
    second.send_fetch(wait=60_000)
    assert worker.acknowledge(7, 7, RELEASE) == 0
    assert second.receive() == [(7, 2)]
    second.send_fetch(wait=60_000)
    worker.raw.produce(worker.topic, batches.build([(None, b"more")]))
    assert second.receive() == [(10, 1)]


def test_delayed_release(worker: Worker) -> None:
    """Our own clients may say when a released record is to come again."""
    worker.fetch(most=1)
    began = time.monotonic()
    assert worker.acknowledge(0, 0, RELEASE, penstock_delay=300) == 0
    found: list[tuple[int, int]] = []
    while (0, 2) not in found:
        found += worker.fetch(most=99, wait=5000)
    assert time.monotonic() - began >= 0.3
    found += worker.fetch(most=99)
    assert sorted(found) == [(0, 2), *((offset, 1) for offset in range(1, 10))]


def test_renewal_keeps_a_record(worker: Worker) -> None:
    """A renewal is taken, alone or in a fetch that asks for no records."""
    worker.fetch(most=1)
    assert worker.acknowledge(0, 0, RENEW) == 0
    acks = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [RENEW]}]
    assert worker.fetch(most=0, acks=acks, is_renew_ack=True) == []


def test_membership(worker: Worker, second: Worker) -> None:
    """Members share partitions; a wrong epoch is fenced; who leaves is gone."""
    worker.beat()
    described = worker.raw.call(DESCRIBE, 1, group_ids=[worker.group, "nobody"])["groups"]
    assert described[0]["group_state"] == "Stable"
    assigned = [
        part["partitions"]
        for member in described[0]["members"]
        for part in member["assignment"]["topic_partitions"]
    ]
    assert sorted(assigned) == [[0], [1]]
    assert described[1]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert worker.beat(99)["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
    assert worker.beat(-1)["member_epoch"] == -1
    second.beat()
    assert second.beat(second.member_epoch)["error_code"] == 0
    worker.member_epoch = 5
    assert worker.beat()["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_topic_that_is_made_anew_is_another_one(worker: Worker) -> None:
    """A member learns of it with its next heartbeat, and goes on with the new one's records."""
    raw, topic = worker.raw, worker.topic
    worker.beat()
    assert (
        raw.call(ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout=5000)["responses"][0][
            "error_code"
        ]
        == 0
    )
    wanted = {"name": topic, "num_partitions": 2, "replication_factor": 1}
    made = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=5000)["topics"][0]
    assert made["error_code"] == 0
    raw.produce(topic, batches.build([(None, b"new")]))
    worker.topic_id = topic_id(raw, topic)
    assignment = worker.beat()["assignment"]
    assert assignment == {"topic_partitions": [{"topic_id": worker.topic_id, "partitions": [0, 1]}]}
    assert worker.fetch() == [(0, 1)]


def test_offsets_are_described_moved_and_forgotten(worker: Worker) -> None:
    """Administration of where a group stands; it must be empty to be moved."""
    raw, group, topic = worker.raw, worker.group, worker.topic
    worker.fetch(most=4)
    worker.acknowledge(0, 2, ACCEPT)
    wanted = {"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}
    found = raw.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[wanted])["groups"][0][
        "topics"
    ][0]["partitions"][0]
    assert (found["start_offset"], found["lag"]) == (3, 7)
    move = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 8}]}]
    answer = raw.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=move)
    assert answer["error_code"] == ErrorCode.NON_EMPTY_GROUP
    worker.beat(-1)
    assert (
        raw.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=move)["error_code"]
        == 0
    )
    found = raw.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[wanted])["groups"][0][
        "topics"
    ][0]["partitions"][0]
    assert (found["start_offset"], found["lag"]) == (8, 2)
    answer = raw.call(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=[{"topic_name": topic}]
    )
    assert answer["responses"][0]["error_code"] == 0
    found = raw.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[wanted])["groups"][0][
        "topics"
    ][0]["partitions"][0]
    assert (found["start_offset"], found["lag"], found["error_code"]) == (-1, -1, 0)
    everything = {"group_id": group, "topics": None}
    answer = raw.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[everything])["groups"][0]
    assert (answer["error_code"], answer["topics"]) == (0, [])


@pytest.mark.parametrize("epoch", [-1, 2])
def test_unknown_groups_and_members_are_distinguished(worker: Worker, epoch: int) -> None:
    """As in Kafka; an error says nothing else."""
    worker.beat()
    beat = {"member_id": "ghost", "member_epoch": epoch}
    for group, code in (
        (worker.group, ErrorCode.UNKNOWN_MEMBER_ID),
        ("no-group", ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        answer = worker.raw.call(HEARTBEAT, 1, group_id=group, **beat)
        assert answer["error_code"] == code
        assert (answer["member_id"], answer["heartbeat_interval"]) == (None, 0)
    described = worker.raw.call(DESCRIBE, 1, group_ids=["no-group"])["groups"][0]
    assert described["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert described["group_state"] == ""
    described = worker.raw.call(DESCRIBE, 1, group_ids=[""])["groups"][0]
    assert described["error_code"] == ErrorCode.INVALID_GROUP_ID
    rack = {"member_epoch": 0, "rack_id": "", "subscribed_topic_names": [worker.topic]}
    answer = worker.raw.call(HEARTBEAT, 1, group_id=worker.group, member_id="ghost", **rack)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    left = worker.beat(-1)
    assert (left["error_code"], left["heartbeat_interval"]) == (0, 0)


def test_group_settings(raw: Any, group: str) -> None:
    """Settings of groups are described with their defaults, and checked."""
    wanted = {"resource_type": GROUP, "resource_name": group, "configuration_keys": None}
    found = raw.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[wanted])["results"][0]["configs"]
    values = {one["name"]: one["value"] for one in found}
    assert values["share.auto.offset.reset"] == "earliest"
    assert values["share.delivery.count.limit"] == "5"
    bad = [{"name": "share.delivery.count.limit", "config_operation": 0, "value": "99"}]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": bad}
    answer = raw.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    assert answer["responses"][0]["error_code"] == ErrorCode.INVALID_CONFIG


def test_restart(own_broker: BrokerProcess, connect: Connect) -> None:
    """After SIGKILL accepted records are gone for good, others come again with their count."""
    own_broker.start()
    with connect(own_broker.address) as raw:
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        )
        configure(raw, 2, "t", retention_ms="-1")
        configure(raw, GROUP, "g", share_auto_offset_reset="earliest")
        raw.produce("t", batches.build([(None, b"%d" % i) for i in range(6)]))
        one = Worker(raw, "g", "t")
        one.beat()
        assert len(one.fetch(most=5)) == 5
        assert one.acknowledge(1, 2, ACCEPT) == 0
        assert one.acknowledge(3, 3, RELEASE) == 0
        assert one.fetch(most=1) == [(3, 2)]
    own_broker.kill()
    own_broker.start()
    with connect(own_broker.address) as raw:
        one = Worker(raw, "g", "t")
        one.beat()
        assert one.fetch(most=99) == [(0, 2), (3, 3), (4, 2), (5, 1)]


@pytest.mark.parametrize("order", ["none", "key"])
def test_damaged_records_are_passed_over(
    own_broker: BrokerProcess, connect: Connect, order: str
) -> None:
    """A queue goes on behind records that can't be read: new ones, and those that came back."""
    own_broker.start()
    with connect(own_broker.address) as raw:
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        )
        configure(raw, 2, "t", retention_ms="-1")
        configure(raw, GROUP, "g", share_auto_offset_reset="earliest")
        if order == "key":
            configure(raw, GROUP, "g", penstock_share_order="key")
        for i in range(6):
            raw.produce("t", batches.build([(b"key%d" % i, bytes(20_000))] * 2))
        one = Worker(raw, "g", "t")
        one.beat()
        assert one.fetch(most=4)[0] == (0, 1)
        assert one.acknowledge(0, 0, ACCEPT) == 0
    own_broker.stop()
    file = own_broker.data / "topics/t/0/00000000000000000000.log"
    data = bytearray(file.read_bytes())
    size = len(data) // 6
    for victim in (1, 4):  # handed out before, and not yet
        data[victim * size + 70] ^= 1
    file.write_bytes(data)
    own_broker.start()
    with connect(own_broker.address) as raw:
        one = Worker(raw, "g", "t")
        one.beat()
        found: set[int] = set()
        for _ in range(40):
            for offset, _count in one.fetch(most=99):
                found.add(offset)
                assert one.acknowledge(offset, offset, ACCEPT) == 0
        assert found == {1, 4, 5, 6, 7, 10, 11}
        raw.produce("t", batches.build([(None, b"more")]))
        assert one.fetch(most=99) == [(12, 1)]


def letters(raw: Any, topic: str) -> list[batches.Record]:
    """All records of a topic's first partition."""
    data = raw.fetch(topic, 0)["records"] or b""
    return [
        record for at, one in batches.iterate(data) for record in batches.records(data, at, one)
    ]


def test_dead_letters(worker: Worker) -> None:
    """A rejected record, and one that was delivered too often, go to the dead-letter topic once."""
    raw, target = worker.raw, f"dlq.{worker.topic}"
    raw.call(
        ApiKey.CREATE_TOPICS,
        5,
        topics=[{"name": target, "num_partitions": 1, "replication_factor": 1}],
    )
    configure(raw, 2, target, errors_deadletterqueue_group_enable="true")
    configure(
        raw,
        GROUP,
        worker.group,
        errors_deadletterqueue_topic_name=target,
        errors_deadletterqueue_copy_record_enable="true",
        share_delivery_count_limit="2",
    )
    worker.fetch(most=2)
    assert worker.acknowledge(1, 1, REJECT, penstock_reason="no such customer") == 0
    assert worker.acknowledge(0, 0, RELEASE) == 0
    assert worker.fetch(most=1) == [(0, 2)]
    assert worker.acknowledge(0, 0, RELEASE) == 0
    wait_until(lambda: len(letters(raw, target)) == 2, "two letters")
    found = letters(raw, target)
    assert [(one.value, dict(one.headers)["__dlq.errors.offset"]) for one in found] == [
        (b"1", b"1"),
        (b"0", b"0"),
    ]
    headers = dict(found[0].headers)
    assert headers["__dlq.errors.message"] == b"no such customer"
    assert headers["__dlq.errors.topic"] == worker.topic.encode()
    assert headers["__dlq.errors.group"] == worker.group.encode()
    assert dict(found[1].headers)["__dlq.errors.delivery.count"] == b"2"


def transact(raw: Any, topic: str, value: bytes, *, commit: bool) -> None:
    """A transaction with one record."""
    name = f"t-{next(_names)}"
    own = raw.call(
        ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    assert own["error_code"] == 0, own
    who = {"producer_id": own["producer_id"], "producer_epoch": own["producer_epoch"]}
    added = raw.call(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )  # fmt: skip
    code = added["results_by_topic_v3_and_below"][0]["results_by_partition"][0]
    assert code["partition_error_code"] == 0, added
    batch = batches.build([(None, value)], base_sequence=0, attributes=0x10, **who)
    part = {"index": 0, "records": bytes(batch)}
    data = [{"name": topic, "partition_data": [part]}]
    sent = raw.call(
        ApiKey.PRODUCE, 9, transactional_id=name, acks=-1, timeout=1000, topic_data=data
    )
    assert sent["responses"][0]["partition_responses"][0]["error_code"] == 0, sent
    if commit is not None:
        ended = raw.call(ApiKey.END_TXN, 3, transactional_id=name, committed=commit, **who)
        assert ended["error_code"] == 0, ended


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation(worker: Worker, level: str) -> None:
    """Groups that ask for committed records get no others; markers are for nobody."""
    raw = worker.raw
    configure(raw, GROUP, worker.group, share_isolation_level=level)
    transact(raw, worker.topic, b"aborted", commit=False)
    transact(raw, worker.topic, b"committed", commit=True)
    raw.produce(worker.topic, batches.build([(None, b"plain")]))
    found: list[int] = []

    def upto_the_last() -> bool:
        found.extend(offset for offset, _ in worker.fetch(most=99, wait=200))
        return 14 in found

    wait_until(upto_the_last, lambda: f"offset 14, found {found}")
    assert found[:10] == list(range(10))
    # 10: aborted, 11: its marker, 12: committed, 13: its marker, 14: plain
    assert found[10:] == ([12, 14] if level == "read_committed" else [10, 12, 14])
    assert worker.acknowledge(0, 9, ACCEPT) == 0
