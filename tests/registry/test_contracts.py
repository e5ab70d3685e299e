"""Topics that take only what their subjects' schemas write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.registry.asking import record

from penstock.broker.process import BrokerProcess
from penstock.broker.storage.contracts import Contracts
from penstock.client import Client, Producer
from penstock.errors import BrokerError
from penstock.log.errors import AppendError
from penstock.registry import LogStore, Registry
from penstock.schemas import Kind
from penstock.schemas.subjects import Entry, Schema, schema_record
from penstock.wire import batches

INVALID_RECORD = 87
VALUES, KEYS = "confluent.value.schema.validation", "confluent.key.schema.validation"
_names = (f"contract-{number}" for number in itertools.count())


@pytest.fixture
def registry(broker: BrokerProcess) -> Iterator[Registry]:
    store = LogStore(broker.address)
    yield Registry(store)
    store.close()


def topic_with(broker: BrokerProcess, *settings: str) -> str:
    name = next(_names)
    with Client(broker.address) as client:
        client.create_topic(name, 1, dict.fromkeys(settings, "true"))
    return name


def send(
    broker: BrokerProcess,
    topic: str,
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    compression: str = "none",
) -> None:
    with Producer(broker.address, acks="all", compression=compression) as producer:
        encoded_keys = None if keys is None else pa.array(keys, pa.binary())
        times = np.zeros(len(values), np.int64)
        producer.send(topic, 0, encoded_keys, pa.array(values, pa.binary()), times)


def framed(id_: int) -> bytes:
    return b"\0" + id_.to_bytes(4, "big") + b"data"


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_values_need_a_schema_of_the_topics_subject(
    broker: BrokerProcess, registry: Registry, compression: str
) -> None:
    """Other ids, and what has none, are refused as a batch; a null value is taken."""
    topic = topic_with(broker, VALUES)
    mine = registry.register(f"{topic}-value", {"schema": record("x", name=f"a{compression}")})[
        "id"
    ]
    other = registry.register(
        f"other-{compression}", {"schema": record("x", name=f"b{compression}")}
    )["id"]
    send(broker, topic, [framed(mine), None], compression=compression)
    for wrong, message in (
        (
            framed(other),
            f"expected a value by a schema of the subject {topic}-value; found id {other}",
        ),
        (b"\0\0", "expected a value that begins with a zero byte"),
        (b'{"x": 1}', "expected a value that begins with a zero byte"),
    ):
        with pytest.raises(BrokerError) as caught:
            send(broker, topic, [framed(mine), wrong], compression=compression)
        assert caught.value.code == INVALID_RECORD
        assert message in str(caught.value)
    with Client(broker.address) as client:
        assert client.offsets(topic) == {0: 2}


def test_a_schema_counts_from_its_registration_to_its_deletion(
    broker: BrokerProcess, registry: Registry
) -> None:
    """The broker reads what the registry wrote, at once."""
    topic = topic_with(broker, VALUES)
    with pytest.raises(BrokerError):
        send(broker, topic, [framed(1)])
    first = registry.register(f"{topic}-value", {"schema": record("x", name=topic[:8])})["id"]
    send(broker, topic, [framed(first)])
    registry.delete_version(f"{topic}-value", "1")
    with pytest.raises(BrokerError):
        send(broker, topic, [framed(first)])


def test_keys_have_a_contract_of_their_own(broker: BrokerProcess, registry: Registry) -> None:
    """Of the subject TOPIC-key; values are then free."""
    topic = topic_with(broker, KEYS)
    mine = registry.register(f"{topic}-key", {"schema": '"string"'})["id"]
    send(broker, topic, [b"anything"], [framed(mine)])
    with pytest.raises(BrokerError, match=f"expected a key by a schema of the subject {topic}-key"):
        send(broker, topic, [framed(mine)], [framed(mine + 1000)])


def test_records_that_lead_back_are_refused() -> None:
    """A length below zero would lead through the same bytes as often as the header says: 2,147,483,647."""
    body = bytearray(16)
    body[0], body[4], body[5], body[6], body[11], body[15] = 3, 1, 1, 15, 1, 12
    batch = bytearray(batches.build([(None, bytes(9))]))
    assert len(batch) == batches.HEADER_BYTES + len(body)
    batch[batches.HEADER_BYTES :] = body
    batch[batches.HEADER_BYTES - 4 : batches.HEADER_BYTES] = (100).to_bytes(4, "big")
    topics: Any = SimpleNamespace(get=lambda _: None)
    topic: Any = SimpleNamespace(name="t", settings={VALUES: "true"})
    with pytest.raises(AppendError, match="expected 100 records; found others"):
        Contracts(topics).check(topic, batch)


def refusal(contracts: Contracts, topic: Any, batch: Any) -> Any:
    """What is said of a batch; None: it is taken."""
    try:
        contracts.check(topic, batch)
    except AppendError as error:
        return str(error), error.records
    return None


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_is_refused_alike_one_by_one_and_together(codec: int) -> None:
    """Any mix of ids, NULLs and values without a head; short batches, long ones, and broken ones."""
    rng = np.random.default_rng(7)
    together, single = Contracts(topics := any_topics()), Contracts(topics)
    together._load()
    single._load = lambda: None  # type: ignore[method-assign]
    for state in (together._fresh(), single._fresh()):
        for id_ in (1, 2):
            state.apply(*schema_record(entry(f"t-{'value' if id_ == 1 else 'key'}", id_)))
    topic: Any = SimpleNamespace(name="t", settings={VALUES: "true", KEYS: "true"})
    parts = [framed(1), framed(2), framed(3), b"", b"\0\0\0\0", b"\1\0\0\0\1", None]
    for count in (1, 15, 16, 17, 300):
        for odds in (0.0, 0.01, 0.5):
            chosen = [
                [
                    parts[rng.integers(len(parts))] if rng.random() < odds else good
                    for good in (framed(2), framed(1))
                ]
                for _ in range(count)
            ]
            batch = batches.build([(key, value) for key, value in chosen])
            header = batches.parse(batch)
            packed = batches.recompress(batch, header, codec) if codec else batch
            assert refusal(together, topic, packed) == refusal(single, topic, packed)
            wrong = bytearray(packed)
            wrong[batches.HEADER_BYTES - 4 : batches.HEADER_BYTES] = (count + 1).to_bytes(4, "big")
            for one in (together, single):
                assert "expected" in refusal(one, topic, wrong)[0]


def any_topics() -> Any:
    return SimpleNamespace(get=lambda _: None)


def entry(subject: str, id_: int) -> Entry:
    return Entry(subject, 1, id_, Schema(Kind.AVRO, '"string"'))


def test_other_topics_take_anything(broker: BrokerProcess) -> None:
    """The setting is off at first."""
    send(broker, topic_with(broker), [b"anything"])
