"""Encoding columns as JSON rows: what is written reads back the same."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.schema import Schema
from penstock.errors import LimitError, SchemaError, UserError
from penstock.formats import json_encode
from penstock.formats.json import JsonDecoder, encode_rows

INSTANTS = st.datetimes(timezones=st.just(dt.UTC))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.one_of(st.floats(width=32, allow_nan=False), st.just(math.nan)),
    "DOUBLE": st.one_of(st.floats(allow_nan=False), st.just(math.nan)),
    "STRING": TEXT,
    "TIMESTAMP": INSTANTS | INSTANTS.map(lambda t: t.replace(microsecond=0)),
    "DATE": st.dates(),
    "ARRAY<STRING>": st.lists(st.none() | TEXT, max_size=4),
    "ARRAY<DOUBLE>": st.lists(st.none() | st.floats(-1e9, 1e9), max_size=4),
    "ARRAY<ARRAY<BIGINT>>": st.lists(st.none() | st.lists(st.integers(0, 9)), max_size=3),
    "ARRAY<TIMESTAMP>": st.lists(st.none() | INSTANTS, max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of any types."""
    names = draw(
        st.lists(TEXT.filter(lambda s: s[:1] not in ("", "$")), min_size=1, max_size=5, unique=True)
    )
    rows = draw(st.integers(0, 12))
    columns = []
    for _ in names:
        type_ = draw(st.sampled_from(sorted(VALUES)))
        values = st.lists(st.none() | VALUES[type_], min_size=rows, max_size=rows)
        columns.append(pa.array(draw(values), Schema.parse(f"x {type_}").fields[0].type))
    return pa.table(columns, names=names)


def decode(rows: pa.StringArray, schema: Schema) -> pa.Table:
    """Reads rows back."""
    offsets, data = rows.buffers()[1:]
    at = np.frombuffer(offsets, np.int32)
    buffer = np.frombuffer(data or b"", np.uint8)
    decoded = JsonDecoder(schema).decode(buffer, at[:-1].astype(np.int64), np.diff(at))
    assert decoded.reasons == []
    return pa.Table.from_batches([decoded.columns])


@settings(max_examples=examples(300), deadline=None)
@given(tables(), st.data())
def test_rows_read_back_the_same(table: pa.Table, data: st.DataObject) -> None:
    """Whatever is written, from whole tables or slices, is decoded to the same values."""
    low = data.draw(st.integers(0, len(table)))
    part = table.slice(low)
    rows = encode_rows(part)
    rows.validate(full=True)
    again = decode(rows, Schema.from_arrow(table.schema))
    assert again.schema.types == part.schema.types
    assert repr(again.to_pylist()) == repr(part.to_pylist())  # zero has a sign, and NaN is NaN


@settings(max_examples=examples(100), deadline=None)
@given(tables())
def test_rows_are_valid_for_strict_parsers(table: pa.Table) -> None:
    """Every row is one JSON object with the table's columns in order, to parsers that aren't ours."""
    for row in encode_rows(table).to_pylist():
        assert list(orjson.loads(row)) == list(json.loads(row)) == table.column_names


@settings(max_examples=examples(60), deadline=None)
@given(tables(), st.integers(1, 5))
def test_text_does_not_depend_on_chunks(table: pa.Table, size: int) -> None:
    """The same rows have the same text, however the table is cut."""
    whole = encode_rows(table).to_pylist()
    cut = pa.Table.from_batches(table.to_batches(max_chunksize=size), table.schema)
    assert encode_rows(cut).to_pylist() == whole
    assert [
        row for i in range(len(table)) for row in encode_rows(table.slice(i, 1)).to_pylist()
    ] == whole


def test_the_text_of_each_type() -> None:
    """Each type has the text that the documentation promises."""
    at = [0, 1_000, 1, -1, None, 253_402_300_799_999_999]
    table = pa.table(
        {
            "b": [True, False, None, True, False, True],
            "i": [2**63 - 1, -(2**63), None, 0, -1, 7],
            "d": [1.0, -0.0, math.nan, math.inf, 1e300, 0.1],
            "s": ['q"b\\', "\x00\n\t\x1f", None, "é😀", "\u2028/", ""],
            "t": pa.array(at, pa.timestamp("us", "UTC")),
            "a": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(2024, 2, 29)] * 1
            + [None] * 2,
            "l": [[1, None], [], None, [2], [3], [4]],
        }
    )
    first, second, third, fourth, fifth, sixth = encode_rows(table).to_pylist()
    assert first == (
        '{"b":true,"i":9223372036854775807,"d":1.0,"s":"q\\"b\\\\","t":"1970-01-01T00:00:00Z",'
        '"a":"0001-01-01","l":[1,null]}'
    )
    assert second == (
        '{"b":false,"i":-9223372036854775808,"d":-0.0,"s":"\\u0000\\n\\t\\u001f",'
        '"t":"1970-01-01T00:00:00.001Z","a":"9999-12-31","l":[]}'
    )
    assert third == (
        '{"b":null,"i":null,"d":"NaN","s":null,"t":"1970-01-01T00:00:00.000001Z","a":null,"l":null}'
    )
    assert fourth == (
        '{"b":true,"i":0,"d":"Infinity","s":"é😀","t":"1969-12-31T23:59:59.999999Z","a":"2024-02-29",'
        '"l":[2]}'
    )
    assert fifth == '{"b":false,"i":-1,"d":1e+300,"s":"\u2028/","t":null,"a":null,"l":[3]}'
    assert sixth == (
        '{"b":true,"i":7,"d":0.1,"s":"","t":"9999-12-31T23:59:59.999999Z","a":null,"l":[4]}'
    )


def test_types_beyond_a_schema() -> None:
    """Other integers, decimals, dictionaries, large and zoned types are written as what they mean."""
    table = pa.table(
        {
            "u": pa.array([2**64 - 1], pa.uint64()),
            "s": pa.array(["x"]).dictionary_encode(),
            "l": pa.array([["y"]], pa.large_list(pa.large_string())),
            "m": pa.array([1_500], pa.timestamp("ms")),
            "n": pa.array([1_500], pa.timestamp("ns", "Europe/Paris")),
            "z": pa.nulls(1),
        }
    )
    (text,) = encode_rows(table).to_pylist()
    assert text == (
        '{"u":18446744073709551615,"s":"x","l":["y"],"m":"1970-01-01T00:00:01.500Z",'
        '"n":"1970-01-01T00:00:00.000001Z","z":null}'
    )


def test_doubles_are_the_shortest_that_read_back() -> None:
    """A double's text has no more digits than Python's, and the same value."""
    r = random.Random(5)
    numbers = [r.random() * 10 ** r.randrange(-8, 18) for _ in range(5000)]
    numbers += [round(r.random() * 10 ** r.randrange(9), r.randrange(8)) for _ in range(5000)]
    numbers += [struct.unpack("d", r.randbytes(8))[0] for _ in range(5000)]
    numbers = [n for n in numbers if math.isfinite(n)]
    texts = [row[5:-1] for row in encode_rows(pa.table({"v": numbers})).to_pylist()]

    def digits(text: str) -> str:
        return text.partition("e")[0].replace(".", "").strip("-0")

    for number, text in zip(numbers, texts, strict=True):
        assert float(text) == number
        assert len(digits(text)) == len(digits(repr(number)))


def test_columns_are_chosen_and_ours_left_out() -> None:
    """Columns that begin with `$` aren't written unless they are asked for by name."""
    table = pa.table({"a": [1], "$weight": [2], "b": [3]})
    assert encode_rows(table).to_pylist() == ['{"a":1,"b":3}']
    assert encode_rows(table, columns=["b", "$weight"]).to_pylist() == ['{"b":3,"$weight":2}']
    assert encode_rows(table, columns=[]).to_pylist() == ["{}"]


def test_wrong_columns_are_refused() -> None:
    """A missing column, a foreign type and a date outside the years are errors that name the column."""
    with pytest.raises(SchemaError, match="expected one column 'x'"):
        encode_rows(pa.table({"a": [1]}), columns=["x"])
    months = pa.array([pa.MonthDayNano([1, 0, 0])], pa.month_day_nano_interval())
    with pytest.raises(SchemaError, match=r"column 'a'.*found month_day_nano"):
        encode_rows(pa.table({"a": months}))
    with pytest.raises(UserError, match=r"column 'a'.*years 1 to 9999"):
        encode_rows(pa.table({"a": pa.array([2**62], pa.timestamp("us", "UTC"))}))


def test_too_much_text_in_a_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose text is longer than Arrow's offsets reach are a limit error."""
    monkeypatch.setattr(json_encode, "TEXT_BYTES_MAX", 10)
    with pytest.raises(LimitError, match="found more in 1 rows"):
        encode_rows(pa.table({"a": [1_000_000]}))
