"""Columns as Protobuf and back: what Google's library reads and writes, and what our own decoder does."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import (
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)
from google.type import date_pb2, timeofday_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.formats.test_avro_writing import INTS, ROWS, TEXT, table

from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.formats.avro import headed
from penstock.formats.json import Decoded
from penstock.formats.protobuf import ProtobufDecoder, ProtobufEncoder, protobuf_schema
from penstock.schemas.protobuf import parse_protobuf, serialized

COLUMNS = """
    big BIGINT NOT NULL, small INT, is_one BOOLEAN, near FLOAT, far DOUBLE, text STRING NOT NULL, data BINARY,
    day DATE, at TIMESTAMP, clock TIME, cash DECIMAL(38, 9), cents DECIMAL(4, 2) NOT NULL, id UUID,
    tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, inner STRUCT<n INT, deep ARRAY<STRUCT<x DECIMAL(9, 1)>>>,
    took INTERVAL, numbers ARRAY<INT>, halves ARRAY<DOUBLE>, pairs MAP<STRING, STRUCT<n INT>>
"""
SCHEMA = Schema.parse(COLUMNS)
HEAD = headed(7) + b"\0"
MORE = st.fixed_dictionaries(
    {
        "took": st.none() | st.timedeltas(timedelta(-90_000), timedelta(90_000)),
        "numbers": st.none() | st.lists(st.none() | INTS, max_size=5),
        "halves": st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=5),
        "pairs": st.none()
        | st.dictionaries(
            TEXT, st.none() | st.fixed_dictionaries({"n": st.none() | INTS}), max_size=3
        ),
    }
)
EVERY = st.builds(lambda one, more: {**one, **more}, ROWS, MORE)


def pool_of(text: str) -> descriptor_pool.DescriptorPool:
    """What Google's library makes of a `.proto` text."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2, date_pb2, timeofday_pb2, decimal_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(b64decode(serialized(parse_protobuf(text), "rows.proto")))
    return pool


def message_class(text: str, name: str) -> Any:
    return message_factory.GetMessageClass(pool_of(text).FindMessageTypeByName(name))


def plain(value: Any) -> Any:
    """A message, or a value, as a row has it."""
    if not hasattr(value, "DESCRIPTOR"):
        return value
    match value.DESCRIPTOR.full_name:
        case "google.protobuf.Timestamp":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                seconds=value.seconds, microseconds=value.nanos // 1000
            )
        case "google.protobuf.Duration":
            return timedelta(seconds=value.seconds, microseconds=int(value.nanos / 1000))
        case "google.type.Date":
            return date(value.year, value.month, value.day)
        case "google.type.TimeOfDay":
            return time(value.hours, value.minutes, value.seconds, value.nanos // 1000)
        case "confluent.type.Decimal":
            number = int.from_bytes(value.value, "big", signed=True)
            return Decimal((number < 0, Decimal(number).as_tuple().digits, -value.scale))
    found = {}
    for field in value.DESCRIPTOR.fields:
        one = getattr(value, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {name: plain(one[name]) for name in one}
        elif field.is_repeated:
            found[field.name] = [plain(each) for each in one]
        else:
            is_there = not field.has_presence or value.HasField(field.name)
            found[field.name] = plain(one) if is_there else None
    return found


def without_nulls(value: Any) -> Any:
    """A row as Protobuf can say it: no NULL within arrays and maps, none of them NULL; maps as dicts."""
    match value:
        case dict():
            found = {name: without_nulls(one) for name, one in value.items()}
            for name in found.keys() & {"tags", "numbers", "halves", "deep"}:
                found[name] = [one for one in found[name] or [] if one is not None]
            for name in found.keys() & {"counts", "pairs"}:
                pairs = found[name].items() if isinstance(found[name], dict) else found[name] or []
                found[name] = {key: one for key, one in pairs if one is not None}
            return found
        case list():
            return [without_nulls(one) for one in value]
        case UUID():
            return str(value)
    return value


def decoded(decoder: ProtobufDecoder, records: list[bytes]) -> Decoded:
    length = np.array([len(one) for one in records], np.int32)
    start = np.concatenate(([0], np.cumsum(length)[:-1])).astype(np.int64) if records else []
    return decoder.decode(
        np.frombuffer(b"".join(records), np.uint8), np.array(start, np.int64), length
    )


def rows_of(decoder: ProtobufDecoder, records: list[bytes]) -> list[dict[str, Any]]:
    found = decoded(decoder, records)
    assert found.reasons == []
    return [without_nulls(row) for row in found.columns.to_pylist()]


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """A row as columns of Arrow give it: UUIDs are bytes."""
    return {**row, "id": row["id"] and UUID(row["id"]).bytes}


ENCODER = ProtobufEncoder(SCHEMA, "Value", "shop.orders")
MESSAGE = message_class(ENCODER.text, "shop.orders.Value")


@settings(max_examples=examples(100))
@given(st.lists(EVERY, max_size=8), st.integers(0, 3))
def test_google_s_library_and_our_decoder_read_what_is_written(
    rows: list[dict[str, Any]], cut: int
) -> None:
    """Wherever a table is sliced; floats, decimals and instants to the last digit."""
    whole = table(rows, SCHEMA)
    for begin, end in ((0, cut), (cut, max(cut, len(rows)))):
        part, expected = whole.slice(begin, end - begin), list(map(without_nulls, rows[begin:end]))
        written = ENCODER.encode(part, HEAD).to_pylist()
        assert all(one.startswith(HEAD) for one in written)
        assert [plain(MESSAGE.FromString(one[len(HEAD) :])) for one in written] == expected
        ours = rows_of(ProtobufDecoder(SCHEMA, {7: ENCODER.text}.get), written)
        assert ours == list(map(as_read, expected))


def test_null_arrays_over_values_are_written_as_none() -> None:
    """What lies under a NULL of Arrow's isn't read."""
    values = pa.array([[1, 2], [3], [4]], pa.list_(pa.int32()))
    masked = pa.ListArray.from_arrays(
        values.offsets, values.values, mask=pa.array([False, True, False])
    )
    encoder = ProtobufEncoder(Schema.parse("numbers ARRAY<INT>"), "R", "p")
    written = encoder.encode(pa.table({"numbers": masked})).to_pylist()
    kind = message_class(encoder.text, "p.R")
    assert [list(kind.FromString(one).numbers) for one in written] == [[1, 2], [], [4]]


PROTO3 = """syntax = "proto3"; package shop; import "google/protobuf/wrappers.proto";
enum State { NEW = 0; PAID = 1; }
message Other { message Order { sint32 a = 3; sint64 b = 1; fixed32 c = 2; fixed64 d = 20000; sfixed32 e = 5;
  sfixed64 f = 6; uint32 g = 7; uint64 h = 8; State state = 9; optional State was = 10; Inner inner = 11;
  repeated sint32 steps = 12; map<string, Inner> by_name = 13; google.protobuf.Int64Value wrapped = 14;
  oneof how { string card = 15; int32 cash = 16; } bool is_new = 17; float near = 18; bytes raw = 19; } }
message Inner { string text = 1; optional int32 n = 2; }
"""
WRITTEN = (
    "a INT, b BIGINT, c BIGINT, d BIGINT, e INT, f BIGINT, g BIGINT, h BIGINT, state STRING, was STRING, "
    "inner STRUCT<text STRING, n BIGINT, other STRING>, steps ARRAY<BIGINT>, "
    "by_name MAP<STRING, STRUCT<n INT>>, wrapped BIGINT, card STRING, cash DOUBLE, is_new BOOLEAN, "
    "near DOUBLE, raw BINARY, missing TIMESTAMP"
)
SMALL = st.integers(-(2**31), 2**31 - 1)
WIDE = st.integers(-(2**63), 2**63 - 1)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "a": SMALL,
        "b": WIDE,
        "c": st.integers(0, 2**32 - 1),
        "d": st.integers(0, 2**63 - 1),
        "e": SMALL,
        "f": WIDE,
        "g": st.integers(0, 2**32 - 1),
        "h": st.integers(0, 2**63 - 1),
        "state": st.sampled_from([0, 1]),
        "was": st.sampled_from([0, 1, 7]),
        "inner": st.fixed_dictionaries({}, optional={"text": TEXT, "n": SMALL}),
        "steps": st.lists(SMALL, max_size=5),
        "by_name": st.dictionaries(
            TEXT, st.fixed_dictionaries({}, optional={"n": SMALL}), max_size=3
        ),
        "card": TEXT,
        "is_new": st.booleans(),
        "near": st.floats(width=32, allow_nan=False),
        "raw": st.binary(max_size=40),
    },
)


def order_class() -> Any:
    from google.protobuf import wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(b64decode(serialized(parse_protobuf(PROTO3), "o.proto")))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Other.Order"))


ORDER = order_class()


def expected_order(message: dict[str, Any]) -> dict[str, Any]:
    """What columns a message has: defaults where a field has no presence, NULL where it has."""
    zeros = dict.fromkeys("abcdefgh", 0)
    row = {**zeros, "is_new": False, "near": 0.0, "raw": b"", "steps": [], "by_name": [], **message}
    inner = message.get("inner")
    row["inner"] = (
        inner
        if inner is None
        else {"text": inner.get("text", ""), "n": inner.get("n"), "other": None}
    )
    row["state"] = "PAID" if message.get("state") else "NEW"
    row["was"] = {0: "NEW", 1: "PAID", 7: "7", None: None}[message.get("was")]
    row["by_name"] = [
        (key, {"n": one.get("n")}) for key, one in sorted(message.get("by_name", {}).items())
    ]
    return {name: row.get(name) for name in Schema.parse(WRITTEN).names}


@settings(max_examples=examples(100))
@given(st.lists(ORDERS, max_size=6))
@example([{"h": 2**63 - 1, "was": 7}])
def test_what_other_programs_write_is_read(messages: list[dict[str, Any]]) -> None:
    """All of Protobuf's numbers; a message within another, fields in any order and of any number."""
    index = bytes([4, 0, 0])  # two steps: the first message of the first one
    records = [headed(9) + index + ORDER(**one).SerializeToString() for one in messages]
    decoder = ProtobufDecoder(Schema.parse(WRITTEN), {9: PROTO3}.get)
    found = decoded(decoder, records)
    assert found.reasons == []
    rows = found.columns.to_pylist()
    for row in rows:
        row["by_name"].sort()
    assert rows == [expected_order(one) for one in messages]


@settings(max_examples=examples(200))
@given(st.lists(st.binary(max_size=60), max_size=6), st.data())
def test_damage_of_a_record_is_its_own(garbage: list[bytes], data: st.DataObject) -> None:
    """Whatever bytes there are: no error, and the good records among them are read."""
    row = data.draw(EVERY)
    [good] = ENCODER.encode(table([row], SCHEMA), HEAD).to_pylist()
    at = data.draw(st.integers(0, len(garbage)))
    damaged = [HEAD + one for one in garbage]
    decoder = ProtobufDecoder(SCHEMA, {7: ENCODER.text}.get)
    found = decoded(decoder, [*damaged[:at], good, *damaged[at:]])
    assert at in found.rows.tolist()
    assert len(found.rows) + len(found.bad_rows) == len(damaged) + 1
    [place] = np.flatnonzero(found.rows == at)
    assert without_nulls(found.columns.to_pylist()[place]) == as_read(without_nulls(row))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "expected 5 more bytes"),
        (b"{" + HEAD[1:], "expected a zero byte first"),
        (headed(8) + b"\0", "expected the id of a schema in the registry; found 8"),
        (headed(7), "expected the number of a message; found the record's end"),
        (headed(7) + b"\1", "expected the number of a message; found -1"),
        (headed(7) + bytes([2, 8]), "expected one of 1 messages of the file; found number 4"),
        (HEAD + b"\x08", "expected a Protobuf message; found other bytes"),
        (HEAD + b"\x0a\x01a", "one of another wire type"),
        (HEAD + b"\x12\x01\xff", "expected text in UTF-8"),
        (HEAD + b"", "field 'n': expected a value"),
    ],
)
def test_the_reason_of_a_bad_record(record: bytes, reason: str) -> None:
    """It says what was expected, and what was found."""
    schema = Schema.parse("n BIGINT NOT NULL, text STRING")
    text = protobuf_schema(Schema.parse("n BIGINT, text STRING"), "R", "p").text
    found = decoded(ProtobufDecoder(schema, {7: text}.get), [record])
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_a_key_of_a_map_that_is_no_text_makes_its_record_bad() -> None:
    """The records beside it are read."""
    schema = Schema.parse("m MAP<STRING, BIGINT>")
    text = protobuf_schema(schema, "R", "p").text
    records = [HEAD + b"\x0a\x05\x0a\x01" + key + b"\x10\x02" for key in (b"a", b"\xff", b"b")]
    found = decoded(ProtobufDecoder(schema, {7: text}.get), records)
    assert found.columns.to_pylist() == [{"m": [("a", 2)]}, {"m": [("b", 2)]}]
    assert found.rows.tolist() == [0, 2]
    assert "UTF-8" in found.reasons[0]
    again = decoded(
        ProtobufDecoder(schema, {7: text}.get), [records[0] + b"\x0a\x05\x0a\x01a\x10\x07"]
    )
    assert again.columns.to_pylist() == [{"m": [("a", 7)]}]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("n STRING", "expected column 'n' as its Protobuf field is; found STRING, and int64"),
        ("at DATE", "found DATE, and google.protobuf.Timestamp in the field"),
        ("tags STRING", "found STRING, and repeated string in the field"),
        ("other INT", "expected fields among other; found n, at, tags"),
    ],
)
def test_a_column_of_another_type_is_a_reason(columns: str, reason: str) -> None:
    """Of each record by that schema."""
    written = Schema.parse("n BIGINT, at TIMESTAMP, tags ARRAY<STRING>")
    text = protobuf_schema(written, "R", "p").text
    found = decoded(ProtobufDecoder(Schema.parse(columns), {7: text}.get), [HEAD])
    assert found.reasons[0].startswith("schema 7: ")
    assert reason in found.reasons[0]


def test_a_name_keeps_its_number() -> None:
    """However columns are moved, dropped and added again; also those of a STRUCT."""

    def numbers(text: str) -> dict[str, int]:
        return {one.name: one.number for one in parse_protobuf(text).messages[0].fields}

    versions: list[str] = []
    for columns, expected in (
        ("a INT, b INT, c STRUCT<x INT, y INT>", {"a": 1, "b": 2, "c": 3}),
        ("c STRUCT<y INT, z INT>, d INT, a INT", {"c": 3, "d": 4, "a": 1}),
        ("b INT, e INT", {"b": 2, "e": 5}),
    ):
        text = protobuf_schema(Schema.parse(columns), "R", "p", earlier=versions).text
        assert numbers(text) == expected
        versions.insert(0, text)
    inner = parse_protobuf(versions[1]).messages[0].messages[0]
    assert {one.name: one.number for one in inner.fields} == {"y": 2, "z": 3}
    first = protobuf_schema(
        Schema.parse("a INT, b INT, c STRUCT<x INT, y INT>"), "R", "p", earlier=versions
    )
    assert first.text == versions[2]


@pytest.mark.parametrize(
    "columns", ['"per day" BIGINT', "a ARRAY<ARRAY<INT>>", "a MAP<STRING, ARRAY<INT>>"]
)
def test_columns_that_protobuf_does_not_have_are_refused(columns: str) -> None:
    """With what to do."""
    with pytest.raises(SchemaError, match="expected columns"):
        protobuf_schema(Schema.parse(columns), "R", "p")
