"""Changelogs as registered formats: many records at once are written as each by itself is."""

from __future__ import annotations

import base64
import io
import json
import random
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pytest

from penstock.capture.connect import Member, array, decimal, envelope, key, named, optional, record
from penstock.capture.unread import Losses
from penstock.formats.connect import ChangelogEncoder
from penstock.schemas import Kind

_TIME = "io.debezium.time."
POINT = record("io.debezium.data.geometry.Point", [("x", "double"), ("wkb", optional("bytes"))])
SCALED = record("io.debezium.data.VariableScaleDecimal", [("scale", "int"), ("value", "bytes")])
TYPES: dict[str, Any] = {
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "b": "boolean",
    "s": "string",
    "y": "bytes",
    "n": decimal(2, 8),
    "n0": decimal(0, None),
    "a": array("int"),
    "p": POINT,
    "v": SCALED,
    "day": named("int", _TIME + "Date"),
    "ms": named("long", _TIME + "Timestamp"),
    "us": named("long", _TIME + "MicroTimestamp"),
    "t": named("int", _TIME + "Time"),
    "tu": named("long", _TIME + "MicroTime"),
    "z": named("string", _TIME + "ZonedTimestamp"),
}
MEMBERS = [
    *(Member(name, type_) for name, type_ in TYPES.items()),
    *(Member(f"r {name}", TYPES[name], is_required=True) for name in TYPES if name != "a"),
    Member("with", "int", is_required=True, default=7),
    Member("é", "string", is_required=True, default="x"),
]
FITTING: dict[str, list[Any]] = {
    "i": [0, -1, 2**31 - 1, -(2**31), 77],
    "l": [0, -5, 2**63 - 1, -(2**63) + 1, 10**12],
    "f": [0.0, 1.5, -2.25e20, 3, 1e-30],
    "d": [0.0, -0.5, 1e300, 1234567890123456789, 3, 1e-30],
    "b": [True, False],
    "s": ["", "plain", 'esc "\\\n ☃ \u0001', "x" * 300],
    "y": [base64.b64encode(bytes(range(n))).decode() for n in (0, 1, 2, 3, 40)],
    "p": [{"x": 1.5, "wkb": "AAE="}, {"x": 2, "wkb": None}, {"x": None}],
    "v": [{"scale": 2, "value": "MDk="}, {"scale": -1, "value": ""}, {}],
    "day": [0, -719162, 2932896, 20000],
    "ms": [0, -1, 1_700_000_000_123, 253402300799000],
    "us": [0, -1, 1_700_000_000_123_456],
    "t": [0, 1, 86_399_999],
    "tu": [0, 86_399_999_999],
    "z": ["2026-01-02T03:04:05.000006Z", "0001-01-01T00:00:00Z", "2026-01-02T03:04:05+02:00"],
    "a": [None],
}
FITTING["n"] = FITTING["n0"] = ["", "Jws=", "/w==", "AKtUqYzrHwrS"]
ODD = [
    *(
        2**31,
        -(2**63),
        2**63,
        1.5,
        1e39,
        "NaN",
        "-Infinity",
        "A",
        "AA=A",
        "=AAA",
        "A" * 7,
        "infinity",
    ),
    *(
        [],
        [1, None, [2]],
        {},
        {"x": "no"},
        86_400_000,
        -1,
        2932897,
        True,
        False,
        "2026-01-02",
        1e300,
    ),
    *(12345678901234567890, 5e-324, -0.0),
    *("10000-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "é", "\ud7ff", {"x": None, "wkb": "*"}),
]
"""What some type or other doesn't have."""


def row(chance: random.Random, oddness: float) -> dict[str, Any]:
    """A row of the members, some NULL or missing, some with a value that doesn't fit."""
    found: dict[str, Any] = {}
    for one in MEMBERS:
        fitting = FITTING.get(one.name.removeprefix("r "), [1])
        if one.name == "é":
            fitting = ["text"]
        found[one.name] = chance.choice(fitting)
        if chance.random() < oddness:
            found[one.name] = chance.choice(ODD)
        if chance.random() < 0.1 and one.name not in {"r p", "r v"}:
            found[one.name] = None
            if chance.random() < 0.3:
                del found[one.name]
    return found


def changed(chance: random.Random, oddness: float = 0.0) -> bytes:
    """An envelope."""
    op = chance.choice("crud")
    source: dict[str, Any] = {
        **dict.fromkeys(("version", "connector", "name", "db", "schema", "table"), "text"),
        "ts_ms": 5,
        "snapshot": "false",
        "sequence": '["1","2"]',
        "ts_us": 5000,
        "ts_ns": 5000000,
        "txId": chance.choice([None, 7]),
        "lsn": 8,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }
    block = {"id": "1:2", "total_order": 1, "data_collection_order": 1}
    value = {
        "before": row(chance, oddness) if op in "ud" else None,
        "after": None if op == "d" else row(chance, oddness),
        "source": source,
        "transaction": chance.choice([None, None, block]),
        "op": op,
        "ts_ms": 1,
        "ts_us": 1000,
        "ts_ns": chance.choice([1000000, None]),
    }
    if oddness and chance.random() < 0.1:
        source.pop(chance.choice([*source]))
    if oddness and chance.random() < 0.1:
        source["snapshot"] = None
    return orjson.dumps(value)


def made(kind: Kind, losses: Losses, **more: Any) -> ChangelogEncoder:
    """What writes them."""
    names = [one.name for one in MEMBERS]
    schema = envelope("shop.t", MEMBERS, "postgresql")
    found = ChangelogEncoder(kind, schema, {"Value": names}, losses, "shop.t", list, **more)
    found.use(7)
    return found


def compare(encoder: ChangelogEncoder, losses: Losses, texts: list[bytes | None]) -> int:
    """Compares many at once with each by itself; how many were left to be written so."""
    found, left = encoder.many(pa.array(texts, pa.binary()))
    assert len(found) == len(left) == len(texts)
    for text, one, is_left in zip(texts, found.to_pylist(), left.tolist(), strict=True):
        losses.take()
        if text is None or is_left:
            assert one is None
            assert not (text is None and is_left)
        else:
            assert encoder.one(text) == one, text
            assert losses.take() == (), text
    return int(left.sum())


@pytest.mark.parametrize("is_mysql", [False, True])
@pytest.mark.parametrize("kind", [Kind.AVRO, Kind.PROTOBUF])
def test_many_records_are_written_as_each_by_itself(kind, is_mysql) -> None:
    """All types, NULL and missing values, escapes; a record with a value that doesn't fit is left."""
    chance, losses = random.Random(7), Losses()
    encoder = made(kind, losses, is_mysql=is_mysql)
    for oddness in (0.003, 0.02, 0.2):
        texts: list[bytes | None] = [changed(chance, oddness) for _ in range(150)]
        texts[::10] = [None] * 15
        left = compare(encoder, losses, texts)
        assert left or oddness < 0.01
        assert left < 120 or oddness > 0.01


@pytest.mark.parametrize("kind", [Kind.AVRO, Kind.PROTOBUF])
def test_ordinary_records_are_not_left(kind) -> None:
    """None whose values fit is written by itself, with NULLs, members that are missing, and tombstones."""
    chance, losses = random.Random(3), Losses()
    encoder = made(kind, losses)
    texts: list[bytes | None] = [changed(chance) for _ in range(100)]
    assert compare(encoder, losses, texts) == 0
    assert compare(encoder, losses, [None, None]) == 0
    compare(encoder, losses, [b"{}"])
    found, left = encoder.many(pa.array([b"[]", b'{"op":', b"1", b""], pa.binary()))
    assert left.all()
    assert found.null_count == 4


def test_a_name_that_json_escapes_leaves_its_records() -> None:
    """A column whose name has a quote is written all the same, record by record."""
    losses, member = Losses(), Member('qu"ote', "int", is_required=True)
    schema = envelope("shop.t", [member], "postgresql")
    encoder = ChangelogEncoder(Kind.AVRO, schema, {"Value": [member.name]}, losses, "shop.t", list)
    value = {**orjson.loads(changed(random.Random(1))), "after": {member.name: 5}}
    assert compare(encoder, losses, [orjson.dumps(value)]) == 1


def test_what_others_read_of_many_records() -> None:
    """The library fastavro reads the values that the JSON has, by the text of the schema."""
    texts = [changed(random.Random(seed)) for seed in range(40)]
    encoder = made(Kind.AVRO, Losses())
    found, _ = encoder.many(pa.array(texts, pa.binary()))
    schema = fastavro.parse_schema(json.loads(encoder.text))
    for text, one in zip(texts, found.to_pylist(), strict=True):
        read: Any = fastavro.schemaless_reader(io.BytesIO(one[5:]), schema, None)
        value = orjson.loads(text)
        assert read["op"] == value["op"]
        assert (read["after"] is None) == (value["after"] is None)
        if value["after"]:
            assert read["after"]["s"] == value["after"].get("s")
            assert read["after"]["l"] == value["after"].get("l")
            assert read["source"]["lsn"] == 8


def test_keys_and_json_schemas() -> None:
    """Keys have their schema; JSON stays as it is behind the head."""
    members = [Member("id", "long", is_required=True), Member("at", TYPES["us"], is_required=True)]
    losses = Losses()
    for kind in Kind:
        encoder = ChangelogEncoder(
            kind, key("shop.t", members), {"Key": ["id", "at"]}, losses, "shop.t", list
        )
        encoder.use(258)
        texts: list[bytes | None] = [b'{"id":%d,"at":%d}' % (i, 1000 - i) for i in range(70)]
        assert compare(encoder, losses, [*texts, None]) == 0
    encoder = made(Kind.JSON, losses)
    found, _ = encoder.many(pa.array([b"anything", None, b""], pa.binary()))
    assert found.to_pylist() == [b"\0\0\0\0\7anything", None, b"\0\0\0\0\7"]
