"""Confluent's Java client against our registry, and records in its format written and read by Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.patience import PATIENCE_S
from tests.suites.suite import cache

from penstock.broker.process import BrokerProcess
from penstock.registry import RegistryServer

PROGRAM = Path(__file__).with_name("RegistryClient.java")
SUBJECT = "java-value"
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}'
INCOMPATIBLE = ORDER.replace('"string"}', '"string"}, {"name": "n", "type": "int"}')


def test_java_s_client_agrees(broker: BrokerProcess) -> None:
    """It registers, looks up, is refused, and exchanges records with Python's serializers."""
    if problem := cache.problem("registry"):
        pytest.skip(problem)
    server = RegistryServer(broker.address, port=0)
    try:
        with SchemaRegistryClient({"url": server.url}) as client:
            context = SerializationContext("other", MessageField.VALUE)
            sent = AvroSerializer(client, ORDER)({"user": "written by Python"}, context)
            assert sent is not None
            command = [str(cache.java()), "-cp", cache.classpath("registry"), str(PROGRAM)]
            command += [server.url, SUBJECT, ORDER, INCOMPATIBLE, sent.hex()]
            run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
            assert run.returncode == 0, run.stderr
            said = dict(line.split(": ", 1) for line in run.stdout.splitlines())
            written = bytes.fromhex(said.pop("record"))
            known = client.get_latest_version(SUBJECT)
            read = AvroDeserializer(client)(written, context)
    finally:
        server.close()
    assert said == {
        "id": str(known.schema_id),
        "again": "true",
        "latest": "1",
        "by id": "true",
        "subjects": "true",
        "level": "FULL",
        "compatible": "false",
        "refused": "409",
        "read": "written by Python",
    }
    assert read == {"user": "written by Java"}
