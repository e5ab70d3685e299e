"""Documents of a data directory that are lost or damaged between two runs: it is told, what they say
is not made up, and everything else is served.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.effort import some_slow
from tests.patience import PATIENCE_S, wait_until

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.broker.config import BrokerConfig
from penstock.broker.doctor import Level, examine
from penstock.broker.server import Broker
from penstock.broker.transactions.producer_ids import SKIPPED, ProducerIds
from penstock.errors import SetupError
from penstock.log.disk import documents
from penstock.log.disk.files import LocalFiles
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

Connect = Callable[[str], Any]
Write = Callable[[str, list[str]], list[int]]


class Kept:
    """A directory that is served within `with`, and what the brokers said."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self._said = directory / "broker.log"

    @property
    def said(self) -> str:
        """Everything that was logged."""
        return self._said.read_text()

    @contextmanager
    def served(self) -> Iterator[str]:
        """The broker's address; it is stopped in order."""
        with self._said.open("ab") as log, BrokerProcess(self.data, stderr=log.fileno()) as broker:
            yield broker.address


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A directory of the test's own."""
    return Kept(tmp_path)


def by_librdkafka(address: str, values: list[str]) -> list[int]:
    """Has an idempotent producer write to topic `t`; the offsets that were acknowledged."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for one in values:
        producer.produce(
            "t", one, partition=0, on_delivery=lambda _error, m: offsets.append(m.offset())
        )
    assert producer.flush(PATIENCE_S) == 0
    return offsets


def by_kafka_python(address: str, values: list[str]) -> list[int]:
    """The same, by kafka-python."""
    script = Path(__file__).with_name("kafka_python_producer.py")
    command = [sys.executable, str(script), address, "t", *values]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    found: list[int] = json.loads(ended.stdout)
    return found


def read(address: str, topic: str = "t") -> list[str]:
    """All values of a topic's first partition."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        found.append(message.value().decode())
    consumer.close()
    return found


def create(connect: Connect, address: str, *names: str) -> None:
    """Makes topics of one partition."""
    wanted = [{"name": one, "num_partitions": 1, "replication_factor": 1} for one in names]
    with connect(address) as raw:
        answer = raw.call(ApiKey.CREATE_TOPICS, 5, topics=wanted, timeout=1000)
    assert [one["error_code"] for one in answer["topics"]] == [0] * len(names)


# -- producer_ids.json -----------------------------------------------------------------------------


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("write", "left"),
    [
        (by_librdkafka, None),
        pytest.param(by_kafka_python, None, marks=pytest.mark.slow),
        pytest.param(by_librdkafka, b'{"next": 9000, "crc": "00000000"}', marks=pytest.mark.slow),
        (by_librdkafka, b'{"next": 0}'),  # an old copy
    ],
)
def test_new_producers_are_not_taken_for_old_ones(
    kept: Kept, connect: Connect, write: Write, left: bytes | None
) -> None:
    """Whatever became of the file of ids: what is acknowledged is stored."""
    file = kept.data / "producer_ids.json"
    with kept.served() as address:
        create(connect, address, "t")
        write(address, list("abcd"))
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    with kept.served() as address:
        assert write(address, list("efgh")) == [4, 5, 6, 7]
        assert read(address) == list("abcdefgh")
    assert "producer_ids.json: expected" in kept.said
    assert "producer ids continue from" in kept.said
    assert examine(kept.data).is_sound


@pytest.mark.slow
def test_a_lost_file_of_producer_ids_is_damage(kept: Kept, connect: Connect) -> None:
    """Of a broker with topics, also where it never gave an id out. A new directory has the file."""
    with kept.served() as address:
        assert documents.load((kept.data / "producer_ids.json").read_bytes(), "")["next"] == 0
        create(connect, address, "t")
    assert "producer_ids" not in kept.said
    (kept.data / "producer_ids.json").unlink()
    (found,) = [one for one in examine(kept.data).findings if one.path == "producer_ids.json"]
    assert found.level is Level.DAMAGE
    assert "which producer ids were assigned" in found.text
    with kept.served():
        pass
    assert "which producer ids were assigned" in kept.said


@pytest.mark.slow
def test_ids_that_no_partition_knows_count_too(kept: Kept, connect: Connect) -> None:
    """Those of transactional ids that have written nothing yet."""
    with kept.served() as address, connect(address) as raw:
        create(connect, address, "t")
        first = raw.call(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id="a",
            transaction_timeout=9000,
            producer_id=-1,
        )
    (kept.data / "producer_ids.json").unlink()
    with kept.served() as address, connect(address) as raw:
        second = raw.call(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id="b",
            transaction_timeout=9000,
            producer_id=-1,
        )
    assert second["producer_id"] == first["producer_id"] + 1 + SKIPPED


def test_made_up_ids_use_up_nothing(tmp_path: Path) -> None:
    """Clients may write under any id: the largest that there is leaves ids to give out."""
    ids = ProducerIds(LocalFiles(tmp_path), [7, (1 << 63) - 1], is_new=False)
    assert ids.take() == 8 + SKIPPED
    assert ProducerIds(LocalFiles(tmp_path), [8 + SKIPPED], is_new=False).take() > 8 + SKIPPED


# -- topic.json ------------------------------------------------------------------------------------

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
TOPIC_EXISTS = ErrorCode.TOPIC_ALREADY_EXISTS
DAMAGES = {
    "lost": lambda _: None,
    "flipped": lambda content: content.replace(b'"partitions": 1', b'"partitions": 2'),
    "torn": lambda content: content[: len(content) // 2],
    "newer": lambda _: documents.dump({"format": 99}),
}


@contextmanager
def damaged(file: Path, how: str) -> Iterator[None]:
    """The file is damaged within `with`."""
    whole = file.read_bytes()
    if (content := DAMAGES[how](whole)) is None:
        file.unlink()
    else:
        assert content != whole
        file.write_bytes(content)
    yield
    file.write_bytes(whole)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", some_slow(DAMAGES, quick=["lost", "torn"]))
def test_a_topic_without_its_description_is_refused_alone(
    kept: Kept, connect: Connect, how: str
) -> None:
    """The others are served; its name isn't given out again; with its file it is as it was."""
    with kept.served() as address:
        create(connect, address, "t", "other")
        by_librdkafka(address, ["a"])
    with damaged(kept.data / "topics" / "t" / "topic.json", how):
        (found,) = [one for one in examine(kept.data).findings if one.level is Level.DAMAGE]
        assert "The topic isn't served" in found.text
        with kept.served() as address, connect(address) as raw:
            wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            (made,) = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)["topics"]
            assert made["error_code"] == TOPIC_EXISTS
            assert "The topic isn't served" in made["error_message"]
            (gone,) = raw.call(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=1000)[
                "responses"
            ]
            assert gone["error_code"] == STORAGE_ERROR
            asked = raw.call(
                ApiKey.METADATA, 9, topics=[{"name": "t"}], allow_auto_topic_creation=True
            )
            assert [one["error_code"] for one in asked["topics"]] == [STORAGE_ERROR]
            listed = raw.call(ApiKey.METADATA, 9, topics=None)["topics"]
            codes = {one["name"]: one["error_code"] for one in listed}
            assert codes == {"other": 0, "t": STORAGE_ERROR}
    assert "The topic isn't served" in kept.said
    with kept.served() as address:
        assert by_librdkafka(address, ["b"]) == [1]
        assert read(address) == ["a", "b"]


@pytest.mark.slow
def test_clients_are_served_the_other_topics(kept: Kept, connect: Connect) -> None:
    """The client that is told of one it can't have still reads and writes others."""
    with kept.served() as address:
        create(connect, address, "t", "bad")
    with damaged(kept.data / "topics" / "bad" / "topic.json", "torn"), kept.served() as address:
        admin = AdminClient({"bootstrap.servers": address})
        listed = admin.list_topics(timeout=PATIENCE_S).topics
        assert listed["t"].error is None
        assert listed["bad"].error.code() == STORAGE_ERROR
        producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 3000})
        errors: dict[str, KafkaError | None] = {}
        for name in ("t", "bad"):
            producer.produce(name, b"a", on_delivery=lambda e, m: errors.update({m.topic(): e}))
        assert producer.flush(PATIENCE_S) == 0
        assert errors["t"] is None
        assert errors["bad"] is not None
        assert by_kafka_python(address, ["b"]) == [1]
        assert read(address) == ["a", "b"]


@pytest.mark.slow
def test_a_transaction_waits_for_a_topic_that_is_refused(kept: Kept, connect: Connect) -> None:
    """What is committed meanwhile is committed there as well once it is served again."""
    with kept.served() as address, connect(address) as raw:
        create(connect, address, "t", "other")
        known = raw.call(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id="x",
            transaction_timeout=900_000,
            producer_id=-1,
        )
        who = {"producer_id": known["producer_id"], "producer_epoch": known["producer_epoch"]}
        names = [{"name": name, "partitions": [0]} for name in ("t", "other")]
        both = {"transactional_id": "x", **who, "topics": names}
        raw.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            **{f"v3_and_below_{key}": value for key, value in both.items()},
        )
        for name in ("t", "other"):
            batch = batches.build([(None, b"v")], base_sequence=0, attributes=0x10, **who)
            data = [{"name": name, "partition_data": [{"index": 0, "records": bytes(batch)}]}]
            fields = {"transactional_id": "x", "acks": -1, "timeout": 1000, "topic_data": data}
            (part,) = raw.call(ApiKey.PRODUCE, 9, **fields)["responses"][0]["partition_responses"]
            assert part["error_code"] == 0
    with damaged(kept.data / "topics" / "t" / "topic.json", "torn"):
        with kept.served() as address, connect(address) as raw:
            ended = raw.call(ApiKey.END_TXN, 3, transactional_id="x", **who, committed=True)
            assert ended["error_code"] == 0
            assert read(address, "other") == ["v"]
        with kept.served():  # what waits is not taken for done by another start
            pass
    assert "a transaction's marker must wait" in kept.said
    with kept.served() as address:
        assert read(address) == ["v"]


@pytest.mark.slow
def test_dead_letters_wait_for_a_topic_that_is_refused(kept: Kept) -> None:
    """They are written once it is served again."""
    broker = BrokerProcess(kept.data)
    try:
        queue = ps.Queue("jobs", broker.start().address)
        queue.put(b"poison")
        assert queue.get(PATIENCE_S) is not None
        broker.stop()
        with damaged(kept.data / "topics" / "dlq.jobs" / "topic.json", "torn"):
            broker.start()
            job = queue.get(PATIENCE_S)
            assert job is not None
            job.reject("nobody can")
            broker.stop()
        broker.start()
        wait_until(lambda: queue.stats().dead == 1, "a dead letter")
        queue.close()
    finally:
        broker.kill()


@pytest.mark.slow
def test_the_metric_counts_refused_topics(kept: Kept, connect: Connect) -> None:
    """So that somebody notices."""
    with kept.served() as address:
        create(connect, address, "t")

    async def refused() -> float:
        broker = Broker(BrokerConfig(kept.data, listen="127.0.0.1:0"))
        await broker.start()
        (metric,) = [one for one in broker.collect() if one.name == "penstock_topics_refused"]
        await broker.stop()
        return metric.samples[0].value

    assert asyncio.run(refused()) == 0
    with damaged(kept.data / "topics" / "t" / "topic.json", "torn"):
        assert asyncio.run(refused()) == 1


# -- groups/settings.json --------------------------------------------------------------------------


@pytest.mark.slow
def test_lost_settings_of_groups_are_reported(kept: Kept, connect: Connect) -> None:
    """They are not taken for none. A new directory has the file."""
    file = kept.data / "groups" / "settings.json"
    with kept.served() as address:
        create(connect, address, "t")
    assert "settings.json" not in kept.said
    file.unlink()
    (found,) = [one for one in examine(kept.data).findings if one.level is Level.DAMAGE]
    assert (found.path, "settings of their own" in found.text) == ("groups/settings.json", True)
    with kept.served():
        pass
    assert "groups/settings.json: expected" in kept.said


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "content", "starts"),
    [
        pytest.param("groups/settings.json", b"", False, marks=pytest.mark.slow),
        ("groups/settings.json", b'{"groups": {"g": {}}, "crc": "00000000"}', False),
        pytest.param("groups/settings.json", b'{"groups": 1}', False, marks=pytest.mark.slow),
        pytest.param(
            "cluster.json", b'{"id": "x", "crc": "00000000"}', False, marks=pytest.mark.slow
        ),
        ("producer_ids.json", b'{"next": 5, "crc": "00000000"}', True),
        pytest.param("security/users.json", b"{", False, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_document_is_found_as_the_broker_finds_it(
    kept: Kept, name: str, content: bytes, *, starts: bool
) -> None:
    """By the doctor, its checksum included; the broker says the same and starts only where nothing
    but the file is lost.
    """
    with kept.served():
        pass
    (kept.data / name).parent.mkdir(exist_ok=True)
    (kept.data / name).write_bytes(content)
    (found,) = [one for one in examine(kept.data).findings if one.level is Level.DAMAGE]
    assert (found.path, "won't start" not in found.text) == (name, starts)
    with nullcontext() if starts else pytest.raises(SetupError), kept.served():
        pass
    assert name in kept.said
