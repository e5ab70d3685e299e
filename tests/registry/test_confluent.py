"""Confluent's own clients against our broker and registry: serializers, deserializers, administration."""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from tests.formats.test_protobuf import message_class
from tests.patience import PATIENCE_S
from tests.registry.asking import record

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client.schemas import schema_id, schema_versions
from penstock.registry import RegistryServer
from penstock.schemas.protobuf import parse_protobuf, serialized
from penstock.testing import MemoryLog, Record

_names = (f"orders-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(broker: BrokerProcess) -> Iterator[str]:
    server = RegistryServer(broker.address, port=0)
    yield server.url
    server.close()


@pytest.fixture
def registry(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return next(_names)


def exchanged(broker: str, topic: str, values: list[bytes]) -> list[bytes]:
    """Values that were sent to a topic by Confluent's producer, and read by its consumer."""
    producer = Producer({"bootstrap.servers": broker})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        found = consumer.consume(len(values), PATIENCE_S)
    finally:
        consumer.close()
    assert [one.error() for one in found] == [None] * len(values)
    return [one.value() for one in found]


ORDER = '{"type": "record", "name": "o", "fields": [{"name": "user", "type": "string"}]}'
JSON = '{"title": "o", "type": "object", "properties": {"user": {"type": "string"}}}'
PROTO = """syntax = "proto3"; package shop; enum State { NEW = 0; PAID = 1; }
message O { string user = 1; oneof how { State state = 2; int32 cash = 3; } map<string, N> tags = 4; }
message N { optional int32 n = 1; }"""
Making = Callable[[SchemaRegistryClient], tuple[Any, Any, Any]]


def avro(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    return AvroSerializer(client, ORDER), AvroDeserializer(client), {"user": "ann"}


def json_schema(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    making = JSONSerializer(JSON, client), JSONDeserializer(None, schema_registry_client=client)
    return (*making, {"user": "ann"})


def protobuf(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = pool.AddSerializedFile(b64decode(serialized(parse_protobuf(PROTO), "o.proto")))
    kind = message_factory.GetMessageClass(file.message_types_by_name["O"])
    settings = {"use.deprecated.format": False}
    making = (
        ProtobufSerializer(kind, client, settings),
        ProtobufDeserializer(kind, settings, client),
    )
    return (*making, kind(user="ann", state=1, tags={"a": {"n": 7}}))


@pytest.mark.parametrize("making", [avro, json_schema, protobuf])
def test_serializers_and_deserializers_work_unchanged(
    broker: BrokerProcess, registry: SchemaRegistryClient, topic: str, making: Making
) -> None:
    """What is written by a schema that the serializer registers is read by what the registry gives."""
    serializer, deserializer, value = making(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    [data] = exchanged(broker.address, topic, [serializer(value, context)])
    assert data[0] == 0
    assert deserializer(data, context) == value
    assert registry.get_latest_version(f"{topic}-value").version == 1


def test_a_protobuf_text_of_another_client_is_read(
    url: str, registry: SchemaRegistryClient, topic: str
) -> None:
    """Java's client registers text; Python's asks for the descriptor."""
    text = 'syntax = "proto3"; package x; message Timestamp { int64 seconds = 1; int32 nanos = 2; }'
    with SchemaRegistryClient({"url": url}) as another:
        another.register_schema(f"{topic}-value", Schema(text, "PROTOBUF"))
    kind = timestamp_pb2.Timestamp
    context = SerializationContext(topic, MessageField.VALUE)
    settings = {"use.deprecated.format": False, "use.latest.version": True,
                "auto.register.schemas": False, "skip.known.types": False}  # fmt: skip
    data = ProtobufSerializer(kind, registry, settings)(kind(seconds=7), context)
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, registry)
    assert data is not None
    assert read(data, context) == kind(seconds=7)


def test_the_administration_client_works_unchanged(
    registry: SchemaRegistryClient, topic: str
) -> None:
    """Registering, looking up, checking, configuring, deleting; errors have Confluent's codes."""
    client = registry
    id_ = client.register_schema(topic, Schema(record("x"), "AVRO"))
    assert client.get_schema(id_).schema_type == "AVRO"
    assert client.lookup_schema(topic, Schema(record("x"), "AVRO")).version == 1
    assert topic in client.get_subjects()
    assert not client.test_compatibility(topic, Schema(record("y"), "AVRO"))
    with pytest.raises(SchemaRegistryError) as caught:
        client.register_schema(topic, Schema(record("y"), "AVRO"))
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
    assert client.set_compatibility(topic, "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility(topic) == "NONE"
    reference = SchemaReference("r", topic, 1)
    outer = '{"type": "array", "items": "r"}'
    other = client.register_schema(f"{topic}-list", Schema(outer, "AVRO", [reference]))
    assert client.get_schema(other).references[0].subject == topic
    with pytest.raises(SchemaRegistryError) as caught:
        client.delete_subject(topic)
    assert caught.value.error_code == 42206
    assert client.delete_subject(f"{topic}-list") == [1]
    assert client.delete_subject(f"{topic}-list", permanent=True) == [1]
    assert client.delete_version(topic, 1) == 1
    assert topic not in client.get_subjects()


def paid(url: str, topic: str, format_: str, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A record that a pipeline writes."""
    monkeypatch.setattr(MemoryLog, "schema_id", lambda _, *arguments: schema_id(*arguments))
    monkeypatch.setattr(
        MemoryLog, "schema_versions", lambda _, *arguments: schema_versions(*arguments)
    )
    app = ps.App("shop")
    columns = "user STRING, paid DECIMAL(9, 2), at TIMESTAMP, tags ARRAY<STRING>"
    app.stream("orders", columns, key="user").to(topic, format=format_, registry=url)  # type: ignore[arg-type]
    run = ps.testing.run(app)
    run.send("orders", user="ann", paid="12.50", at="2026-01-02T03:04:05.000006Z", tags=["a", None])
    run.settle()
    [record] = run.topic(topic)
    return record


def test_confluent_reads_json_that_a_pipeline_writes(
    registry: SchemaRegistryClient, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deserializer validates it by the schema that the pipeline has registered."""
    record = paid(url, topic, "json-schema", monkeypatch)
    read = JSONDeserializer(None, schema_registry_client=registry)
    at = "2026-01-02T03:04:05.000006Z"
    value = {"user": "ann", "paid": 12.5, "at": at, "tags": ["a", None]}
    assert read(record.value, SerializationContext(topic, MessageField.VALUE)) == value
    assert read(record.key, SerializationContext(topic, MessageField.KEY)) == {"user": "ann"}
    assert registry.get_latest_version(f"{topic}-value").schema.schema_type == "JSON"


def test_confluent_reads_protobuf_that_a_pipeline_writes(
    registry: SchemaRegistryClient, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By classes that are made of the schemas that the pipeline has registered."""
    record = paid(url, topic, "protobuf", monkeypatch)

    def read(part: MessageField, data: bytes | None, name: str) -> Any:
        schema = registry.get_latest_version(f"{topic}-{part}").schema
        assert schema.schema_type == "PROTOBUF"
        kind = message_class(str(schema.schema_str), f"{topic.replace('-', '_')}.{name}")
        settings = {"use.deprecated.format": False}
        return ProtobufDeserializer(kind, settings, registry)(
            data, SerializationContext(topic, part)
        )

    found = read(MessageField.VALUE, record.value, "Value")
    assert (found.user, [*found.tags]) == ("ann", ["a"])
    assert found.at.ToDatetime(UTC) == datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert int.from_bytes(found.paid.value, "big", signed=True) == 1250
    assert (found.paid.precision, found.paid.scale) == (9, 2)
    assert read(MessageField.KEY, record.key, "Key").user == "ann"


def test_confluent_reads_what_a_pipeline_writes(
    registry: SchemaRegistryClient, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values by schemas that the pipeline has registered, logical types included."""
    record = paid(url, topic, "avro", monkeypatch)
    read = AvroDeserializer(registry)
    at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    value = {"user": "ann", "paid": Decimal("12.50"), "at": at, "tags": ["a", None]}
    assert read(record.value, SerializationContext(topic, MessageField.VALUE)) == value
    assert read(record.key, SerializationContext(topic, MessageField.KEY)) == {"user": "ann"}
    assert {f"{topic}-key", f"{topic}-value"} <= set(registry.get_subjects())
