from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.patience import PATIENCE_S, wait_until

from penstock.broker import BrokerProcess
from penstock.broker.storage.topics import Hosted, Topic
from penstock.log.disk.journal import bodies_in
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

Raw = Any
_ids = itertools.count()
TRANSACTIONAL = 0x10
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture
def tid() -> str:
    """A new transactional id."""
    return f"producer-{next(_ids)}"


class Speaker:
    """A producer that says what it is told to, over a raw connection."""

    def __init__(self, raw: Raw, transactional_id: str, topic: str) -> None:
        self.raw, self.tid, self.topic = raw, transactional_id, topic
        self.producer_id = self.epoch = -1

    def init(self, *, expect: bool = False, version: int = 5, timeout: int = 60_000) -> int:
        """InitProducerId, until no transaction is in the way; its error code."""
        who = (self.producer_id, self.epoch) if expect else (-1, -1)
        while True:
            answer = self.raw.call(
                ApiKey.INIT_PRODUCER_ID,
                version,
                transactional_id=self.tid,
                transaction_timeout=timeout,
                producer_id=who[0],
                producer_epoch=who[1],
            )
            if answer["error_code"] != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        if not answer["error_code"]:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return int(answer["error_code"])

    def add(self, *partitions: int, epoch: int | None = None, version: int = 3) -> list[int]:
        """AddPartitionsToTxn; the error codes."""
        fields = {
            "transactional_id": self.tid,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "topics": [{"name": self.topic, "partitions": list(partitions)}],
        }
        answer = self.raw.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            **{f"v3_and_below_{k}": v for k, v in fields.items()},
        )
        found = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
        return [one["partition_error_code"] for one in found]

    def produce(
        self, sequence: int, *, partition: int = 0, version: int = 12, epoch: int | None = None
    ) -> int:
        """Produces one transactional record; the error code."""
        batch = batches.build(
            [(None, b"%d" % sequence)],
            timestamps_ms=[NOW_MS],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        part = {"index": partition, "records": bytes(batch)}
        data = [{"name": self.topic, "partition_data": [part]}]
        fields = {"transactional_id": self.tid, "acks": -1, "timeout": 1000, "topic_data": data}
        answer = self.raw.call(ApiKey.PRODUCE, version, **fields)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    def end(
        self, *, commit: bool, version: int = 5, epoch: int | None = None, **fields: Any
    ) -> int:
        """EndTxn; its error code. The epoch goes on as the answer says."""
        answer = self.raw.call(
            ApiKey.END_TXN,
            version,
            transactional_id=self.tid,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
            **fields,
        )
        if not answer["error_code"] and version >= 5:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return int(answer["error_code"])

    def describe(self) -> tuple[str, int]:
        """The state and epoch that the coordinator knows."""
        (found,) = self.raw.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.tid])[
            "transaction_states"
        ]
        return found["transaction_state"], found["producer_epoch"]

    def commit_offset(
        self, group: str, offset: int, *, version: int = 5, epoch: int | None = None, **member: Any
    ) -> int:
        """TxnOffsetCommit; its error code."""
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
        answer = self.raw.call(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id=self.tid,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            **{"generation_id": -1, **member},
            topics=[{"name": self.topic, "partitions": [part]}],
        )
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    def ends(self, partition: int = 0) -> tuple[int, int]:
        """High watermark and last stable offset."""
        part = {"partition_index": partition, "timestamp": -1}
        topics = [{"name": self.topic, "partitions": [part]}]
        found = [
            self.raw.call(
                ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=level, topics=topics
            )
            for level in (0, 1)
        ]
        high, stable = (one["topics"][0]["partitions"][0]["offset"] for one in found)
        return high, stable

    def fetched(self, group: str, *, stable: bool = True) -> tuple[int, int]:
        """OffsetFetch: error code and offset."""
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        answer = self.raw.call(
            ApiKey.OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=stable
        )
        part = answer["topics"][0]["partitions"][0]
        return part["error_code"], part["committed_offset"]


@pytest.fixture
def speaker(raw: Raw, tid: str, topic: str) -> Speaker:
    """A producer with an id of its own, initialised."""
    one = Speaker(raw, tid, topic)
    assert one.init() == 0
    return one


def test_a_fenced_producer_is_told_so(speaker: Speaker) -> None:
    """It is not told of lost records: its successor's aren't its own."""
    former = speaker.epoch
    assert speaker.produce(0) == ErrorCode.NONE
    assert speaker.init() == ErrorCode.NONE
    assert speaker.produce(0) == ErrorCode.NONE
    fenced = speaker.end(commit=True, epoch=former, penstock_records=1)
    assert fenced == ErrorCode.PRODUCER_FENCED
    missed = speaker.end(commit=True, penstock_records=2)
    assert missed == ErrorCode.TRANSACTION_ABORTABLE
    assert speaker.end(commit=True, penstock_records=1) == ErrorCode.NONE


# -- the protocol, as Kafka 4.3.1 was seen to answer ----------------------------------------------


def test_first_version_of_the_protocol(speaker: Speaker) -> None:
    """Partitions are added, written to and committed under one epoch."""
    assert speaker.produce(0, version=9) == ErrorCode.INVALID_TXN_STATE
    assert speaker.produce(0, version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert speaker.end(commit=True, version=4) == ErrorCode.INVALID_TXN_STATE
    assert speaker.add(0, 9) == [55, 3]
    assert speaker.add(0) == [0]
    assert speaker.produce(0, version=11) == 0
    assert speaker.ends() == (1, 0)
    assert speaker.describe() == ("Ongoing", 0)
    assert speaker.end(commit=True, version=4) == 0
    assert speaker.ends() == (2, 2)
    assert speaker.describe() == ("CompleteCommit", 0)
    assert speaker.end(commit=True, version=4) == 0  # a repetition
    assert speaker.end(commit=False, version=4) == ErrorCode.INVALID_TXN_STATE
    assert speaker.add(0, 1) == [0, 0]
    assert speaker.end(commit=False, version=4) == 0
    assert speaker.ends(1) == (1, 1)  # a marker, though nothing was written


def test_second_version_of_the_protocol(speaker: Speaker) -> None:
    """Batches add their partitions, and each end gives a new epoch that fences the one before."""
    assert speaker.produce(0) == 0
    assert speaker.produce(0, partition=1) == 0
    assert speaker.end(commit=True) == 0
    assert speaker.describe() == ("CompleteCommit", 1)
    assert speaker.end(commit=True, epoch=0) == 0  # a repetition
    assert speaker.epoch == 1
    assert speaker.end(commit=False, epoch=0) == ErrorCode.INVALID_TXN_STATE
    assert speaker.produce(1, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.produce(0) == 0
    assert speaker.end(commit=False) == 0
    assert speaker.end(commit=True) == ErrorCode.INVALID_TXN_STATE  # there is nothing to commit
    assert speaker.end(commit=False) == 0  # but an abort of nothing gives an epoch
    assert speaker.describe() == ("CompleteAbort", 3)


def test_the_partitions_of_a_request_join_at_once(
    broker: BrokerProcess, raw: Raw, speaker: Speaker, tid: str, topic: str
) -> None:
    """With one record in the journal; without those that aren't there, and those without such a batch."""
    batch = batches.build(
        [(None, b"x")],
        timestamps_ms=[NOW_MS],
        producer_id=speaker.producer_id,
        producer_epoch=speaker.epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    other = batches.build([(None, b"y")], timestamps_ms=[NOW_MS])
    names = {f"{topic}-{one}": [{"index": 0, "records": bytes(batch)}] for one in "ab"}
    wanted = [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in [*names, "plain"]]
    raw.call(ApiKey.CREATE_TOPICS, 5, topics=wanted, timeout=1000)
    names |= {topic: [{"index": i, "records": bytes(batch)} for i in (1, 7)]}
    names |= {"nowhere": [{"index": 0, "records": bytes(batch)}]}
    names |= {"plain": [{"index": 0, "records": bytes(other)}]}
    data = [{"name": name, "partition_data": parts} for name, parts in names.items()]
    answer = raw.call(
        ApiKey.PRODUCE, 12, transactional_id=tid, acks=-1, timeout=1000, topic_data=data
    )
    codes = [[p["error_code"] for p in one["partition_responses"]] for one in answer["responses"]]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[0], [0], [0, unknown], [unknown], [0]]
    (found,) = raw.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[tid])[
        "transaction_states"
    ]
    places = {one["topic"]: one["partitions"] for one in found["topics"]}
    assert places == {f"{topic}-a": [0], f"{topic}-b": [0], topic: [1]}
    journal = bodies_in((broker.data / "transactions/state.journal").read_bytes())
    assert sum(json.loads(one)[:2] == ["add", tid] for one in journal) == 1
    assert speaker.end(commit=True) == 0
    assert speaker.ends(0) == (0, 0)
    assert speaker.ends(1) == (2, 2)


def test_a_new_instance_fences_the_old(raw: Raw, speaker: Speaker, tid: str, topic: str) -> None:
    """Who takes a transactional id over aborts what is open, and the former owner is fenced."""
    assert speaker.produce(0) == 0
    newer = Speaker(raw, tid, topic)
    assert newer.init() == 0
    assert (newer.producer_id, newer.epoch) == (speaker.producer_id, 2)
    assert newer.ends() == (2, 2)
    assert speaker.add(0) == [ErrorCode.PRODUCER_FENCED]
    assert speaker.add(0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert speaker.produce(1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.produce(1, version=11) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.end(commit=True, version=4) == ErrorCode.PRODUCER_FENCED
    assert speaker.init(expect=True) == ErrorCode.PRODUCER_FENCED
    assert newer.init(expect=True) == 0
    assert newer.epoch == 3


def test_a_transaction_has_its_time(raw: Raw, speaker: Speaker) -> None:
    """What is open for too long is aborted; its producer may go on with a new epoch."""
    assert speaker.init(timeout=0) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert speaker.init(timeout=900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert speaker.init(timeout=300) == 0
    assert speaker.produce(0) == 0
    wait_until(lambda: speaker.describe()[0] == "CompleteAbort", "an abort")
    assert speaker.describe()[1] == speaker.epoch + 1
    assert speaker.ends() == (2, 2)
    assert speaker.produce(1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.end(commit=True) == ErrorCode.INVALID_TXN_STATE
    assert speaker.init(expect=True) == 0
    assert speaker.produce(0) == 0


def test_wrong_ids(speaker: Speaker) -> None:
    """An unknown transactional id or producer id is told apart from a fenced one."""
    speaker.producer_id += 1000
    assert speaker.add(0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert speaker.produce(0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert speaker.init(expect=True) == ErrorCode.PRODUCER_FENCED
    speaker.tid = ""
    assert speaker.init() == ErrorCode.INVALID_REQUEST


def test_offsets_in_a_transaction(speaker: Speaker, tid: str) -> None:
    """A group's offsets count once the transaction is committed, and never if it is aborted."""
    assert speaker.commit_offset(tid, 5, version=3) == ErrorCode.INVALID_TXN_STATE
    assert speaker.commit_offset(tid, 5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    who = {"transactional_id": tid, "producer_id": speaker.producer_id}
    added = speaker.raw.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, **who, producer_epoch=0, group_id=tid)
    assert added["error_code"] == 0
    assert speaker.commit_offset(tid, 5, version=3) == 0
    assert speaker.fetched(tid) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert speaker.fetched(tid, stable=False) == (0, -1)
    assert speaker.end(commit=True, version=4) == 0
    assert speaker.fetched(tid) == (0, 5)
    assert speaker.commit_offset(tid, 9) == 0
    assert speaker.fetched(tid) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert speaker.end(commit=False) == 0
    assert speaker.fetched(tid) == (0, 5)
    assert speaker.commit_offset(tid, 1, generation_id=3, member_id="x") == 25
    assert speaker.commit_offset(tid, 1, epoch=7) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_deleted_group_gets_no_offsets(speaker: Speaker, tid: str) -> None:
    """A group that is deleted stays so, even if a transaction was about to commit offsets of it."""
    assert speaker.commit_offset(tid, 1) == 0
    assert speaker.end(commit=True) == 0
    assert speaker.commit_offset(tid, 5) == 0
    deleted = speaker.raw.call(ApiKey.DELETE_GROUPS, 2, groups_names=[tid])
    assert deleted["results"][0]["error_code"] == 0
    assert speaker.end(commit=True) == 0
    assert speaker.fetched(tid) == (0, -1)


def test_an_administrator_ends_what_hangs(speaker: Speaker) -> None:
    """WriteTxnMarkers aborts in one partition, whatever the coordinator knows."""
    assert speaker.produce(0) == 0
    topics = [{"name": speaker.topic, "partition_indexes": [0, 7]}]
    marker = {"producer_id": speaker.producer_id, "transaction_result": False, "topics": topics}
    answer = speaker.raw.call(
        ApiKey.WRITE_TXN_MARKERS, 1, markers=[{**marker, "producer_epoch": speaker.epoch}]
    )
    codes = answer["markers"][0]["topics"][0]["partitions"]
    assert [one["error_code"] for one in codes] == [0, 3]
    assert speaker.ends() == (2, 2)


def test_transactions_are_listed(speaker: Speaker, tid: str) -> None:
    """They can be picked by state, producer id, age and pattern, which can't take long."""

    def ids(**filters: Any) -> list[str]:
        answer = speaker.raw.call(ApiKey.LIST_TRANSACTIONS, 2, **{"duration_filter": -1, **filters})
        assert answer["error_code"] == 0
        return [one["transactional_id"] for one in answer["transaction_states"]]

    assert speaker.produce(0) == 0
    assert tid in ids()
    assert ids(producer_id_filters=[speaker.producer_id]) == [tid]
    assert ids(producer_id_filters=[speaker.producer_id], state_filters=["Empty"]) == []
    assert ids(transactional_id_pattern=tid.replace("o", "[a-o]"), state_filters=["Ongoing"]) == [
        tid
    ]
    assert ids(transactional_id_pattern=tid[1:]) == []
    assert ids(transactional_id_pattern="(a*)*b") == []
    bad = speaker.raw.call(
        ApiKey.LIST_TRANSACTIONS, 2, transactional_id_pattern="[", duration_filter=-1
    )
    assert bad["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert speaker.raw.call(ApiKey.LIST_TRANSACTIONS, 0, state_filters=["Odd"])[
        "unknown_state_filters"
    ] == ["Odd"]


# -- what readers see -----------------------------------------------------------------------------


def fetch(speaker: Speaker, offset: int, **more: Any) -> dict[str, Any]:
    """Fetches committed data from partition 0."""
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    fields = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "session_epoch": -1,
        "topics": [{"topic": speaker.topic, "partitions": [{**part, "current_leader_epoch": -1}]}],
    }
    answer = speaker.raw.call(ApiKey.FETCH, 11, **{**fields, **more})
    found: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return found


def test_committed_reads_end_at_the_last_stable_offset(speaker: Speaker) -> None:
    """Nothing of an open transaction is given out, nor what comes after it; aborted ones are
    named.
    """
    assert speaker.produce(0) == 0
    assert speaker.end(commit=False) == 0
    assert speaker.produce(0) == 0
    part = fetch(speaker, 0)
    assert (part["high_watermark"], part["last_stable_offset"]) == (3, 2)
    assert part["aborted_transactions"] == [
        {"producer_id": speaker.producer_id, "first_offset": 0},
    ]
    assert [header.base_offset for _, header in batches.iterate(part["records"])] == [0, 1]
    assert fetch(speaker, 2)["records"] == b""
    loose = fetch(speaker, 0, isolation_level=0)
    assert loose["aborted_transactions"] is None
    assert [header.base_offset for _, header in batches.iterate(loose["records"])] == [0, 1, 2]
    assert speaker.end(commit=True) == 0
    assert fetch(speaker, 2)["aborted_transactions"] == []


def test_a_marker_wakes_a_committed_long_poll(
    speaker: Speaker, connect: Callable[[str], Raw], address: str
) -> None:
    """A reader that waits for committed data gets it when the transaction ends, not before."""
    assert speaker.produce(0) == 0
    with connect(address) as reader:
        waiting = Speaker(reader, "", speaker.topic)
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        fields = {
            "max_wait": 60_000,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 1,
            "topics": [{"topic": speaker.topic, "partitions": [part]}],
        }
        reader.send(1, 6, fields)
        assert speaker.produce(1) == 0
        reader.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            reader.exactly(4)
        began = time.monotonic()
        assert speaker.end(commit=True) == 0
        reader.socket.settimeout(PATIENCE_S)
        answer = waiting.raw.receive(1, 6)
    assert time.monotonic() - began < 30, "it was woken, and didn't end by itself"
    assert answer["responses"][0]["partitions"][0]["records"]


def test_open_records_wake_those_who_read_them() -> None:
    """Those who read what is committed wait on, until something changes for them."""

    async def woken() -> list[list[bool]]:
        log: Any = None  # isn't looked at
        hosted = Hosted(Topic("t", UUID(int=1), {}, LogConfig()), 0, log)
        loop, found = asyncio.get_running_loop(), []
        for wake in (hosted.wake_for_open, hosted.wake):
            loose, strict = loop.create_future(), loop.create_future()
            hosted.waiters, hosted.committed_waiters = {loose}, {strict}
            wake()
            found.append([loose.done(), strict.done()])
        return found

    assert asyncio.run(woken()) == [[True, False], [True, True]]


def test_an_open_transaction_wakes_a_long_poll(
    speaker: Speaker, connect: Callable[[str], Raw], address: str
) -> None:
    """Of a reader of whatever is there."""
    with connect(address) as reader:
        reader.send_fetch(speaker.topic, 0, max_wait=600_000)
        assert speaker.produce(0) == 0
        answer = reader.receive(1, 11)
    assert answer["responses"][0]["partitions"][0]["records"]


# -- proper clients --------------------------------------------------------------------------------


def consume(address: str, topic: str, *, isolation: str = "read_committed") -> list[bytes]:
    """All values that a reader sees now, up to the end of the partitions."""
    config = {
        "bootstrap.servers": address,
        "group.id": f"readers-{next(_ids)}",
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    reader = Consumer(config)
    reader.assign([TopicPartition(topic, index, 0) for index in (0, 1)])
    values: list[bytes] = []
    ended: set[int] = set()
    while len(ended) < 2:
        message = reader.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            values.append(message.value() or b"")
    reader.close()
    return sorted(values)


def transactional(address: str, transactional_id: str, **more: Any) -> Producer:
    """A transactional producer."""
    config = {"bootstrap.servers": address, "transactional.id": transactional_id, "linger.ms": 0}
    producer = Producer({**config, **more})
    producer.init_transactions(PATIENCE_S)
    return producer


def test_c_client_commits_and_aborts(address: str, topic: str, tid: str) -> None:
    """The C client's committed records are seen, its aborted ones never."""
    producer = transactional(address, tid)
    for n in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % n, partition=partition)
        producer.flush(PATIENCE_S)
        if n % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    assert consume(address, topic) == sorted([b"0", b"2", b"4"] * 2)
    assert len(consume(address, topic, isolation="read_uncommitted")) == 12


def test_c_client_is_fenced(address: str, topic: str, tid: str) -> None:
    """A second C client with the id takes over; the first can't commit any more."""
    first = transactional(address, tid)
    first.begin_transaction()
    first.produce(topic, b"old", partition=0)
    first.flush(PATIENCE_S)
    second = transactional(address, tid)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"new", partition=0)
    second.commit_transaction(PATIENCE_S)
    assert consume(address, topic) == [b"new"]


def test_c_client_copies_exactly_once(address: str, raw: Raw, topic: str, tid: str) -> None:
    """Consume, transform, produce: offsets move with the output or not at all."""
    source = transactional(address, tid)
    source.begin_transaction()
    for n in range(10):
        source.produce(topic, b"%d" % n, partition=0)
    source.commit_transaction(PATIENCE_S)
    config = {
        "bootstrap.servers": address,
        "group.id": tid,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "session.timeout.ms": 45_000,
    }
    copier = transactional(address, tid + "-copy")
    tries = 0
    while (done := len([v for v in consume(address, topic) if v.startswith(b"c")])) < 10:
        tries += 1
        reader = Consumer(config)
        reader.subscribe([topic])
        copier.begin_transaction()
        # Four at once would wait for as long as there are fewer.
        for message in reader.consume(1, PATIENCE_S) + reader.consume(3, 0.1):
            if message.partition() == 0 and message.error() is None:
                copier.produce(topic, b"c" + message.value(), partition=1)
        offsets = reader.position(reader.assignment())
        copier.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_S)
        if tries % 2:
            copier.abort_transaction(PATIENCE_S)
        else:
            copier.commit_transaction(PATIENCE_S)
        reader.close()
        assert tries < 30, done
    copies = [value for value in consume(address, topic) if value.startswith(b"c")]
    assert copies == [b"c%d" % n for n in range(10)]


# -- restarts --------------------------------------------------------------------------------------


@pytest.fixture
def restarted(own_broker: BrokerProcess, connect: Callable[[str], Raw]) -> Iterator[Any]:
    """A broker of the test's own, with a topic; what kills and restarts it."""
    own_broker.start()
    open_ones = [raw := connect(own_broker.address)]
    wanted = {"name": "t", "num_partitions": 2, "replication_factor": 1}
    raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)

    def restart() -> Raw:
        own_broker.kill()
        own_broker.start()
        open_ones.append(connect(own_broker.address))
        return open_ones[-1]

    yield raw, restart
    for one in open_ones:
        one.socket.close()


def test_open_transactions_survive_a_kill(restarted: Any) -> None:
    """After SIGKILL an open transaction goes on; its offsets too; a fenced producer stays fenced."""
    raw, restart = restarted
    one, other = Speaker(raw, "one", "t"), Speaker(raw, "other", "t")
    assert one.init() == other.init() == 0
    assert other.init() == 0
    assert one.produce(0) == other.produce(0, partition=1) == 0
    assert one.commit_offset("g", 7) == 0
    one.raw = other.raw = restart()
    assert one.describe() == ("Ongoing", 0)
    assert one.ends() == (1, 0)
    assert one.fetched("g") == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert one.produce(1) == 0
    assert other.end(commit=True, epoch=0, version=4) == ErrorCode.PRODUCER_FENCED
    assert one.end(commit=True) == other.end(commit=False) == 0
    assert one.ends() == (3, 3)
    assert one.fetched("g") == (0, 7)
    one.raw = restart()
    assert one.describe() == ("CompleteCommit", 1)
    assert one.ends() == (3, 3)
    assert one.fetched("g") == (0, 7)
    assert one.produce(0) == 0


@pytest.mark.slow
def test_a_clean_stop_needs_no_recovery(tmp_path: Path, connect: Callable[[str], Raw]) -> None:
    """A broker that was stopped knows all its transactions."""
    with BrokerProcess(tmp_path / "data") as broker, connect(broker.address) as raw:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
        speaker = Speaker(raw, "x", "t")
        assert speaker.init() == 0
        assert speaker.produce(0) == speaker.end(commit=True) == 0
        assert speaker.produce(0) == 0
    with BrokerProcess(tmp_path / "data") as broker, connect(broker.address) as raw:
        speaker.raw = raw
        assert speaker.describe() == ("Ongoing", 1)
        assert speaker.end(commit=True) == 0


# -- Kafka's own tools -----------------------------------------------------------------------------


@pytest.fixture
def kafka_tool() -> Callable[..., str]:
    """Runs one of Apache Kafka's command-line tools; a skip where they can't be had."""
    benchmarks = str(Path(__file__).parents[3] / "benchmarks")
    if benchmarks not in sys.path:
        sys.path.append(benchmarks)
    cache = pytest.importorskip("peers.cache", reason="benchmarks/peers/cache.py is not there")
    if reason := cache.problem("kafka"):
        pytest.skip(reason)

    def run(tool: str, *arguments: str) -> str:
        main = f"org.apache.kafka.tools.{tool}"
        command = [str(cache.java()), "-Xmx256m", "-cp", cache.classpath("kafka"), main, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.peer
@pytest.mark.slow
def test_java_client_uses_the_second_version(
    address: str, speaker: Speaker, topic: str, kafka_tool: Callable[..., str]
) -> None:
    """The Java client takes an epoch per transaction, reads what was committed in a session, and
    ends what hangs.
    """
    place = ("--bootstrap-server", address)
    kafka_tool(
        "ProducerPerformance", *place, "--topic", topic, "--num-records", "3000",
        "--record-size", "10", "--throughput", "1500", "--transactional-id", topic,
        "--transaction-duration-ms", "100",
    )  # fmt: skip
    (found,) = speaker.raw.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[topic])[
        "transaction_states"
    ]
    assert found["transaction_state"] == "CompleteCommit"
    assert found["producer_epoch"] > 5
    assert speaker.produce(0) == 0
    read = ("--topic", topic, "--from-beginning", "--isolation-level", "read_committed")
    listed = kafka_tool("TransactionsCommand", *place, "list")
    assert any(row.split()[0] == speaker.tid and "Ongoing" in row for row in listed.splitlines())
    hanging = kafka_tool(
        "TransactionsCommand", *place, "describe-producers", "--topic", topic, "--partition", "0"
    )
    rows = [row.split() for row in hanging.splitlines()]
    (start,) = (row[-1] for row in rows if row[:1] == [str(speaker.producer_id)])
    kafka_tool(
        "TransactionsCommand", *place, "abort", "--topic", topic, "--partition", "0",
        "--start-offset", start,
    )  # fmt: skip
    values = kafka_tool(
        "consumer.ConsoleConsumer", *place, *read, "--max-messages", "3000", "--timeout-ms", "20000"
    )
    assert len(values.splitlines()) == 3000
    assert "0" not in values.splitlines()
