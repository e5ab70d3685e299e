"""Sinks of topics whose records have schemas of a registry; Confluent's serializers write them."""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory
from tests.sinks.conftest import Topic

from penstock.client import Producer
from penstock.errors import UserError
from penstock.follow import follower
from penstock.registry import RegistryServer
from penstock.schemas.protobuf import parse_protobuf, serialized
from penstock.sinks import Sink, rebuild, sqlite
from penstock.sinks import sink as sink_module

SCHEMA = "id BIGINT NOT NULL, name STRING"
AVRO = """{"type": "record", "name": "u", "fields": [{"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": null}]}"""
JSON = """{"title": "u", "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}"""
PROTO = 'syntax = "proto3"; package shop; message U { int64 id = 1; optional string name = 2; }'


@pytest.fixture
def registry(log: str) -> Iterator[RegistryServer]:
    """A registry of the log."""
    one = RegistryServer(log, port=0)
    yield one
    one.close()


def written(url: str, topic: str, format_: str, rows: list[dict[str, Any]]) -> list[bytes]:
    """Rows as Confluent's serializers write them."""
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as client:
        if format_ == "protobuf":
            pool = descriptor_pool.DescriptorPool()
            pool.AddSerializedFile(b64decode(serialized(parse_protobuf(PROTO), "u.proto")))
            kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.U"))
            write: Any = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
            return [write(kind(**row), context) for row in rows]
        made = {
            "avro": (AvroSerializer, (client, AVRO)),
            "json-schema": (JSONSerializer, (JSON, client)),
        }
        serializer, arguments = made[format_]
        return [serializer(*arguments)(row, context) for row in rows]


def send(topic: Topic, keys: list[bytes], values: list[bytes | None]) -> None:
    """Sends records to the first partition."""
    with Producer(topic.log) as producer:
        columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
        producer.send(topic.name, 0, *columns, np.zeros(len(keys), np.int64))


def rows(path: Path, table: str = "users") -> list[tuple[Any, ...]]:
    """What a table has."""
    with sqlite3.connect(path) as sql:
        return sql.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


@pytest.mark.parametrize("format_", ["avro", "json-schema", "protobuf"])
def test_rows_are_read_by_their_schemas(
    topic: Topic, registry: RegistryServer, tmp_path: Path, format_: Any
) -> None:
    """Upserts and deletions; an id that the registry doesn't know is a dead letter; so does a rebuild."""
    people = [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 1, "name": "Ann"}]
    values = written(registry.url, topic.name, format_, people)
    unknown = b"\x00\x00\x01\x86\x9f" + values[0][5:]
    send(topic, [b"1", b"2", b"1", b"2", b"3"], [*values, None, unknown])
    target = sqlite(tmp_path / "t.db", table="users")
    settings: Any = {"key": "id", "log": topic.log, "format": format_, "registry": registry.url}
    sink = Sink(target, topic.name, SCHEMA, **settings)
    done = sink.run(until=lambda done: done.lag == 0)
    assert rows(tmp_path / "t.db") == [(1, "Ann")]
    assert done.dead == 1
    rebuild(Sink(sqlite(tmp_path / "t.db", table="users"), topic.name, SCHEMA, **settings))
    assert rows(tmp_path / "t.db") == rows(tmp_path / "t.db", "users__old") == [(1, "Ann")]


def test_without_a_key_they_are_appended(
    topic: Topic, registry: RegistryServer, tmp_path: Path
) -> None:
    """Each record is a row, once."""
    values = written(registry.url, topic.name, "avro", [{"id": 1, "name": "a"}] * 2)
    send(topic, [b"1", b"1"], [*values])
    target = sqlite(tmp_path / "t.db", table="users")
    for _ in range(2):
        sink = Sink(target, topic.name, SCHEMA, log=topic.log, format="avro", registry=registry.url)
        sink.run(until=lambda done: done.lag == 0)
    assert rows(tmp_path / "t.db") == [(1, "a"), (1, "a")]


def test_a_registry_that_is_away_is_waited_for(
    topic: Topic, registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing becomes a dead letter; the sink says what it waits for, and goes on."""
    monkeypatch.setattr(sink_module, "REGISTRY_S", 0.2)
    monkeypatch.setattr(follower, "BACKOFF_S", (0.05, 0.1))
    send(topic, [b"1"], [*written(registry.url, topic.name, "avro", [{"id": 1, "name": "a"}])])
    port = int(registry.url.rpartition(":")[2])
    registry.close()
    target = sqlite(tmp_path / "t.db", table="users")
    settings: Any = {"key": "id", "log": topic.log, "format": "avro", "registry": registry.url}
    sink = Sink(target, topic.name, SCHEMA, **settings)
    done = sink.run(until=lambda done: done.retries > 1)
    assert (
        "expected the schema registry" in done.trouble
        or "expected the schema registry" in done.last_error
    )
    assert (done.dead, done.upserts) == (0, 0)
    again = RegistryServer(topic.log, port=port)
    try:
        Sink(target, topic.name, SCHEMA, **settings).run(until=lambda done: done.lag == 0)
    finally:
        again.close()
    assert rows(tmp_path / "t.db") == [(1, "a")]


@pytest.mark.parametrize(
    "settings",
    [{"format": "avro"}, {"registry": "http://x"}, {"format": "maxwell", "registry": "http://x"}],
)
def test_a_registry_goes_with_its_formats(topic: Topic, tmp_path: Path, settings: Any) -> None:
    """One without the other is an error that says which go together."""
    target = sqlite(tmp_path / "t.db", table="users")
    with pytest.raises(UserError, match=r"expected registry=.* with format='avro'"):
        Sink(target, topic.name, SCHEMA, key="id", **settings)


@pytest.mark.parametrize("format_", ["avro", "json-schema", "protobuf"])
def test_a_key_with_other_columns_is_a_dead_letter(
    topic: Topic, registry: RegistryServer, tmp_path: Path, format_: Any
) -> None:
    """By the schema of the record's key, where it has one: rows and tombstones alike."""
    [row] = written(registry.url, topic.name, format_, [{"id": 1, "name": "ann"}])
    keys = [row, b"1", row, b'{"id":1,"name":"ann"}', b"2"]
    send(topic, keys, [row, row, None, None, None])
    target = sqlite(tmp_path / "t.db", table="users")
    settings: Any = {"key": "id", "log": topic.log, "format": format_, "registry": registry.url}
    done = Sink(target, topic.name, SCHEMA, **settings).run(until=lambda done: done.lag == 0)
    assert rows(tmp_path / "t.db") == [(1, "ann")]
    assert (done.upserts, done.deletes, done.dead) == (1, 1, 3)
