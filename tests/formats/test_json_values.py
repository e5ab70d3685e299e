"""DECIMAL, TIME, UUID and INTERVAL in JSON, as a naive reader takes them and back again."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.literals import interval_of, interval_text
from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.formats.json import Decoded, JsonDecoder, encode_rows

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DIGITS = st.text("0123456789", min_size=1, max_size=22)
NUMBERS = st.builds(
    lambda sign, whole, point, fraction, exponent: sign + whole + point * ("." + fraction) + exponent,
    st.sampled_from(["", "-", "", "+"]),
    st.one_of(DIGITS, st.sampled_from(["0", "12", "999999999999999999", "1000000000000000000"])),
    st.booleans(),
    st.one_of(DIGITS, st.sampled_from(["5", "50", "000"])),
    st.sampled_from(["", "", "", "", "e2", "E-3", "e+400", "e"]),
)  # fmt: skip
SPANS = st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8))  # within 2**63 us
SHAPE = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


def decode(schema: str, rows: list[str]) -> Decoded:
    texts = [row.encode() for row in rows]
    lengths = np.array([len(row) for row in texts], np.int32)
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1].astype(np.int64)
    found = JsonDecoder(Schema.parse(schema)).decode(
        np.frombuffer(b"".join(texts) + b" ", np.uint8), starts, lengths
    )
    found.columns.validate(full=True)
    return found


def exact(text: str, precision: int, scale: int) -> Decimal | None:
    """What a number is as a DECIMAL; None where it has other digits."""
    if not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,4})?", text):
        return None
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return Decimal(0)
    trimmed = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(trimmed)
    if exponent < -scale or len(trimmed) + exponent > precision - scale:
        return None
    return value


@given(SHAPE, st.lists(st.tuples(NUMBERS, st.booleans()), min_size=1, max_size=20))
@example((18, 0), [("999999999999999999", False), ("1000000000000000000", True), ("-0", False)])
@example((3, 3), [("0.999", True), ("1", False), ("0.9990", False), ("00.1", False), (".5", True)])
def test_decimals_are_exact_or_bad(shape: tuple[int, int], rows: list[tuple[str, bool]]) -> None:
    """As a number or as a text; never rounded; and what is written reads back equal."""
    precision, scale = shape
    schema = f"x DECIMAL({precision}, {scale})"
    found = decode(schema, [f'{{"x": {json.dumps(t) if q else t}}}' for t, q in rows])
    expected = [exact(text, precision, scale) for text, _ in rows]
    assert found.rows.tolist() == [i for i, one in enumerate(expected) if one is not None]
    assert found.columns.column("x").to_pylist() == [one for one in expected if one is not None]
    assert found.columns.schema.types == [pa.decimal128(precision, scale)]
    table = pa.Table.from_batches([found.columns])
    again = decode(schema, encode_rows(table).to_pylist())
    assert again.columns.equals(found.columns)


VALUES = {
    "TIME": st.one_of(
        st.times().map(lambda t: (t.isoformat(), t)),
        st.integers(0, 86_399_999).map(
            lambda n: (n, (EPOCH + dt.timedelta(milliseconds=n)).time())
        ),
        st.sampled_from([("24:00:00", None), ("12:60", None), (86_400_000, None), (-1, None),
                         ("12:30", dt.time(12, 30)), (1.5, None), ("", None)]),
    ),
    "UUID": st.one_of(
        st.uuids().map(lambda u: (str(u), u.bytes)),
        st.uuids().map(lambda u: (u.hex.upper(), u.bytes)),
        st.sampled_from([("x", None), (7, None), ("1234-5678", None),
                         ("123e4567e89b-12d3-a456-426614174000", None)]),
    ),
    "INTERVAL": st.one_of(
        SPANS.map(lambda d: (interval_text(d // dt.timedelta(microseconds=1)), d)),
        st.integers(-(2**62), 2**62).map(lambda n: (n, dt.timedelta(microseconds=n))),
        st.sampled_from([("P1M", None), ("P", None), ("PT", None), ("P1Y", None), (2**63, None),
                         ("P2W", dt.timedelta(14)), ("PT1.5S", dt.timedelta(seconds=1.5))]),
    ),
    "DATE": st.one_of(
        st.dates().map(lambda d: (str(d), d)),
        st.dates().map(lambda d: ((d - dt.date(1970, 1, 1)).days, d)),
        st.sampled_from([(10**9, None), ("2026-02-30", None), (1.0, None)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("type_", sorted(VALUES))
@given(st.data())
def test_times_uuids_and_intervals_are_read_and_written(type_: str, data: st.DataObject) -> None:
    """What fits is the value, by itself and in arrays; what doesn't is bad and touches no other."""
    given_ = data.draw(st.lists(st.one_of(VALUES[type_], st.just((None, None))), min_size=1))
    found = decode(f"x {type_}", [json.dumps({"x": value}) for value, _ in given_])
    good = [i for i, (v, expected) in enumerate(given_) if v is None or expected is not None]
    assert found.rows.tolist() == good
    values = [given_[i][1] for i in good]
    assert found.columns.column("x").to_pylist() == values
    assert all("expected " + type_ in reason for reason in found.reasons)
    for column in (found.columns.column("x"), pa.array([values], pa.list_(found.columns[0].type))):
        table = pa.table({"x": column})
        kind = (
            type_
            if len(table) == len(good) and not pa.types.is_list(column.type)
            else f"ARRAY<{type_}>"
        )
        again = decode(f"x {kind}", encode_rows(table).to_pylist())
        assert pa.Table.from_batches([again.columns]).equals(table)


@given(SPANS)
def test_intervals_are_written_as_they_are_read(value: dt.timedelta) -> None:
    """To the microsecond, also below zero."""
    micros = value // dt.timedelta(microseconds=1)
    assert interval_of(interval_text(micros)) == micros


@pytest.mark.parametrize(
    "kind", ["INTERVAL", "ARRAY<INTERVAL>", "STRUCT<a INTERVAL>", "MAP<STRING, INTERVAL>"]
)
@pytest.mark.parametrize("micros", [-(2**63), 1 - 2**63, 2**63 - 1, -(2**63) - 1, 2**63])
def test_intervals_at_the_ends_of_64_bits(kind: str, micros: int) -> None:
    """Each that fits is read, as a number and as text, also within other values; the others are refused."""
    form = {"I": "%s", "A": "[%s]", "S": '{"a":%s}', "M": '{"k":%s}'}[kind[0]]
    rows = ['{"x":%s}' % (form % one) for one in (micros, f'"{interval_text(micros)}"')]
    found = decode(f"x {kind}", rows)
    if -(2**63) <= micros < 2**63:
        assert encode_rows(pa.Table.from_batches([found.columns])).to_pylist() == [rows[1]] * 2
    else:
        assert len(found.columns) == 0


def test_written_values() -> None:
    """What consumers of a topic find."""
    one = uuid.UUID("264145f2-5a3d-4015-9f9c-a04938edc143")
    table = pa.table(
        {
            "d": pa.array([Decimal("-0.50"), None], pa.decimal128(10, 2)),
            "u": pa.array([one.bytes, None], pa.binary(16)),
            "t": pa.array([dt.time(9, 5), dt.time(9, 5, 0, 120_000)], pa.time64("us")),
            "i": pa.array([dt.timedelta(hours=-36), dt.timedelta(0)], pa.duration("us")),
        }
    )
    assert encode_rows(table).to_pylist() == [
        f'{{"d":-0.50,"u":"{one}","t":"09:05:00","i":"-P1DT12H"}}',
        '{"d":null,"u":null,"t":"09:05:00.12","i":"PT0S"}',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DECIMAL", "DECIMAL(p, s) with 1 <= p <= 38"),
        ("DECIMAL(39, 2)", "DECIMAL(p, s) with"),
        ("DECIMAL(4, 5)", "DECIMAL(p, s) with"),
        ("DECIMAL(4", "DECIMAL(p, s) with"),
        ("ENUM('a')", "STRING instead of ENUM"),
        ("ENUM", "STRING instead of ENUM"),
        ("HUGEINT", "DECIMAL(38, 0) instead of HUGEINT"),
        ("VARIANT", "JSON instead of VARIANT"),
    ],
)
def test_types_that_there_are_not(text: str, expected: str) -> None:
    """The message says what there is instead."""
    with pytest.raises(SchemaError, match=re.escape(expected)):
        Schema.parse(f"x {text}")


def test_types_are_written_as_they_are_read() -> None:
    """The text of a schema is what state is kept under."""
    text = "a DECIMAL(10, 2) NOT NULL, b ARRAY<DECIMAL(38, 0)>, c UUID, d TIME, e INTERVAL"
    assert Schema.parse(text).text == text
    assert Schema.parse("a NUMERIC(5)").text == "a DECIMAL(5, 0)"
