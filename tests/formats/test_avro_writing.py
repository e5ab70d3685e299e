"""Columns as Avro: what fastavro reads of it, and what our own decoder does."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.formats.avro import Avro, AvroDecoder, AvroEncoder, headed

COLUMNS = """
    big BIGINT NOT NULL, small INT, is_one BOOLEAN, near FLOAT, far DOUBLE, text STRING NOT NULL, data BINARY,
    day DATE, at TIMESTAMP, clock TIME, cash DECIMAL(38, 9), cents DECIMAL(4, 2) NOT NULL, id UUID,
    tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, inner STRUCT<n INT, deep ARRAY<STRUCT<x DECIMAL(9, 1)>>>
"""
SCHEMA = Schema.parse(COLUMNS)


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(
        lambda n: Decimal((n < 0, Decimal(n).as_tuple().digits, -places))
    )


YEARS = datetime(2, 1, 1), datetime(9998, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
INTS = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ROWS = st.fixed_dictionaries(
    {
        "big": st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | INTS,
        "is_one": st.none() | st.booleans(),
        "near": st.none() | st.floats(width=32, allow_nan=False),
        "far": st.none() | st.floats(allow_nan=False),
        "text": TEXT,
        "data": st.none() | st.binary(max_size=200),
        "day": st.none() | st.dates(date(2, 1, 1), date(9998, 1, 1)),
        "at": st.none() | st.datetimes(*YEARS, timezones=st.just(UTC)),
        "clock": st.none() | st.times(),
        "cash": st.none() | decimals(38, 9),
        "cents": decimals(4, 2),
        "id": st.none() | st.uuids(),
        "tags": st.none() | st.lists(st.none() | TEXT, max_size=4),
        "counts": st.none() | st.dictionaries(TEXT, st.none() | st.integers(-9, 2**40), max_size=4),
        "inner": st.none()
        | st.fixed_dictionaries(
            {
                "n": st.none() | INTS,
                "deep": st.none()
                | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | decimals(9, 1)}), max_size=3),
            }
        ),
    }
)  # fmt: skip


def table(rows: list[dict[str, Any]], schema: Schema = SCHEMA) -> pa.Table:
    plain = [
        {n: v.bytes if isinstance(v, uuid.UUID) else v for n, v in row.items()} for row in rows
    ]
    return pa.Table.from_pylist(plain, schema=schema.arrow)


def read(schema: str, record: bytes) -> Any:
    """What fastavro reads, to the last byte."""
    data = io.BytesIO(record)
    found = fastavro.schemaless_reader(data, fastavro.parse_schema(json.loads(schema)), None)
    assert data.read() == b""
    return found


def decoded(encoder: AvroEncoder, records: list[bytes]) -> pa.Table:
    data = np.frombuffer(b"".join(records), np.uint8)
    length = np.array([len(one) for one in records], np.int32)
    start = np.cumsum(length, dtype=np.int64) - length
    found = AvroDecoder(encoder.schema, Avro(((None, encoder.text),))).decode(data, start, length)
    assert found.reasons == []
    return pa.Table.from_batches([found.columns])


ENCODER = AvroEncoder(SCHEMA, "Value", "my-shop.orders")


@settings(max_examples=examples(24))
@given(st.lists(ROWS, max_size=12), st.data())
def test_what_is_written_is_read_by_others(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    """All types, NULLs and slices: fastavro reads the values, and the decoder the same columns."""
    whole = table(rows)
    begin = data.draw(st.integers(0, len(rows)))
    some = whole.slice(begin)
    records = ENCODER.encode(some).to_pylist()
    assert [read(ENCODER.text, one) for one in records] == rows[begin:]
    assert decoded(ENCODER, records).equals(some.combine_chunks())


def test_a_head_stands_before_each_record() -> None:
    """A zero byte, and the schema's id in four."""
    encoder = AvroEncoder(Schema.parse("n INT NOT NULL"), "Value", "t")
    made = encoder.encode(pa.table({"n": pa.array([1, -1], pa.int32())}), headed(258))
    assert made.to_pylist() == [b"\0\0\0\1\2\2", b"\0\0\0\1\2\1"]


def test_records_of_columns_are_named_once() -> None:
    """Two columns of one named type: the second one refers to the first; what is NOT NULL is no union."""
    row: Any = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    schema = Schema((Field("before", row), Field("after", row)))
    encoder = AvroEncoder(schema, "Envelope", "shop", {"before": "Value", "after": "Value"})
    rows = [
        {"before": None, "after": {"id": 1, "v": None}},
        {"before": {"id": 1, "v": "x"}, "after": None},
    ]
    made = encoder.encode(table(rows, schema)).to_pylist()
    assert [read(encoder.text, one) for one in made] == rows
    before, after = json.loads(encoder.text)["fields"]
    assert before["type"][1]["fields"][0] == {"name": "id", "type": "long"}
    assert after["type"] == ["null", "shop.Value"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ('"per day" INT', r"expected columns that Avro has names for .* found 'per day'"),
        ('s STRUCT<"2nd" INT>', "found '2nd'"),
        ("span INTERVAL", "expected columns of types that Avro has; found 'span', INTERVAL"),
    ],
)  # fmt: skip
def test_columns_that_avro_does_not_have_are_refused(columns: str, message: str) -> None:
    """With what to do."""
    with pytest.raises(SchemaError, match=message):
        AvroEncoder(Schema.parse(columns), "Value", "t")


def test_times_are_exact() -> None:
    """To the microsecond, before 1970 as well."""
    encoder = AvroEncoder(Schema.parse("at TIMESTAMP, clock TIME"), "Value", "t")
    row = {"at": datetime(1900, 1, 1, 0, 0, 0, 1, UTC), "clock": time(23, 59, 59, 999_999)}
    [made] = encoder.encode(table([row], encoder.schema)).to_pylist()
    assert read(encoder.text, made) == row
