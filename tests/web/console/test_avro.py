"""Avro values as the console shows them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.test_avro import encoded
from tests.web.logs import NOW_MS, Log, filled_log

from penstock.client import Client, Producer
from penstock.web.console.avro import decoded
from penstock.web.console.log import LogView
from penstock.web.console.records import Wanted

SCHEMA = {
    "type": "record",
    "name": "order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a", "b"]}},
    ],
}
KIND = {"type": "enum", "name": "kind", "namespace": "shop", "symbols": ["a", "b"]}
PAIR = {
    "type": "record",
    "name": "pair",
    "fields": [{"name": "one", "type": KIND}, {"name": "two", "type": "shop.kind"}],
}
TEXTS = st.text(max_size=20)
LONGS = st.integers(-(2**63), 2**63 - 1)
ORDERS = st.fixed_dictionaries(
    {
        "id": LONGS,
        "note": st.none() | TEXTS,
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "paid": st.booleans(),
        "tags": st.lists(TEXTS, max_size=5),
        "counts": st.dictionaries(TEXTS, st.integers(-(2**31), 2**31 - 1), max_size=5),
        "kind": st.sampled_from(["a", "b"]),
    }
)
ORDER_FIELDS = {"id", "note", "price", "paid", "tags", "counts", "kind"}


@given(ORDERS)
def test_values_are_what_the_writer_wrote(order: dict[str, Any]) -> None:
    """Records, unions, maps, arrays and enums, as the specification says."""
    assert decoded(encoded(order, SCHEMA), SCHEMA) == order


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    """With an error of values, never with an endless loop."""
    with contextlib.suppress(ValueError):
        assert decoded(data, SCHEMA).keys() == ORDER_FIELDS


@pytest.mark.parametrize(
    ("schema", "data", "shown"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\x02",
            "1970-01-01T00:00:00.001000Z",
        ),
        ({"type": "int", "logicalType": "date"}, b"\x04", "1970-01-03"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x02\x85",
            "-1.23",
        ),
        ("bytes", b"\x02\xff", "ff"),
        (["string", "long"], b"\x02\x06", 3),
        (PAIR, b"\x02\x00", {"one": "b", "two": "a"}),
    ],
)
def test_logical_types_are_shown_as_they_are_meant(schema: Any, data: bytes, shown: str) -> None:
    """Instants, dates, exact decimals; other bytes in hexadecimal."""
    assert decoded(data, schema) == shown


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker with two topics of Avro, and a registry's topic."""
    order = {"type": "record", "name": "o", "fields": [{"name": "user", "type": "string"}]}
    value = encoded({"user": "ann"}, order)
    kept = {"subject": "o-value", "version": 1, "id": 7, "schema": json.dumps(order)}
    topics = {
        "_schemas": [orjson.dumps(kept), b"null", b'{"compatibilityLevel": "FULL"}'],
        "registered": [b"\x00\x00\x00\x00\x07" + value, b"\x00\x00\x00\x00\x09" + value, b"tea"],
        "headless": [value],
    }
    with filled_log(tmp_path_factory.mktemp("avro")) as found:
        for topic, values in topics.items():
            with Client(found.address) as client, Producer(found.address, acks="all") as producer:
                client.create_topic(topic, 1, {"retention.ms": "-1"})
                times = np.full(len(values), NOW_MS, np.int64)
                producer.send(topic, 0, None, pa.array(values, pa.binary()), times)
        yield found


def test_records_are_decoded_by_a_registrys_schema(log: Log) -> None:
    """Those whose id is known; others stay bytes. The search looks into what is shown."""
    view = LogView(lambda: log.address)
    records = view.records(Wanted("registered", newest=False))["records"]
    assert records[0]["value"] == {"text": '{"user":"ann"}', "form": "avro"}
    assert [one["value"]["form"] for one in records[1:]] == ["text", "text"]
    found = view.records(Wanted("registered", search='"user":"ann"'))["records"]
    assert [one["offset"] for one in found] == [0]


def test_records_are_decoded_by_the_programs_schema(log: Log) -> None:
    """Of a topic whose values have no head."""
    from penstock.web.console.avro import AvroTexts

    order = json.dumps(
        {"type": "record", "name": "o", "fields": [{"name": "user", "type": "string"}]}
    )
    view = LogView(lambda: log.address, AvroTexts(lambda: {"headless": {None: order}}))
    [record] = view.records(Wanted("headless"))["records"]
    assert record["value"] == {"text": '{"user":"ann"}', "form": "avro"}
    assert (
        LogView(lambda: log.address).records(Wanted("headless"))["records"][0]["value"]["form"]
        == "text"
    )
