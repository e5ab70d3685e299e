"""Decoding JSON rows, compared with a naive reference, row by row."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.schema import Field, Schema
from penstock.errors import LimitError, SchemaError
from penstock.formats import json as formats_json
from penstock.formats import json_kernel as kernel
from penstock.formats.json import DEPTH_MAX, Decoded, JsonDecoder

# The reference: what rows mean, once more and naively.

LIMITS = {pa.int32(): 2**31, pa.int64(): 2**63}
WHOLE = re.compile(r"-?[0-9]+")
INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
    r" ?(?:[Zz]|([+-]\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Number(str):
    __slots__ = ()


def refuse(text: str) -> None:
    """Refuses what Python takes for numbers and JSON doesn't."""
    raise ValueError(text)


def depth(value: Any) -> int:
    """How deep objects and arrays nest."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def instant(value: str) -> int:
    """ISO 8601 as microseconds since 1970."""
    y, mo, d, h, mi, s, f, zh, zm = INSTANT.fullmatch(value).groups()  # type: ignore[union-attr]
    zone = timedelta(
        hours=int(zh or 0), minutes=int(zm or 0) * (-1 if (zh or "")[:1] == "-" else 1)
    )
    assert int(zm or 0) < 60
    whole = datetime(int(y), int(mo), int(d), int(h or 0), int(mi or 0), int(s or 0), tzinfo=UTC)
    micros = (whole - EPOCH) // timedelta(microseconds=1) + int(f"{f or 0:0<6}"[:6])
    assert abs(zone) < timedelta(hours=24)
    micros -= zone // timedelta(microseconds=1)
    assert datetime.min.replace(tzinfo=UTC) - EPOCH <= timedelta(microseconds=micros)
    assert timedelta(microseconds=micros) <= datetime.max.replace(tzinfo=UTC) - EPOCH
    return micros


def value_of(value: Any, type_: pa.DataType) -> Any:
    """The value in a column of this type; any exception: it doesn't fit."""
    if value is None:
        return None
    if pa.types.is_list(type_):
        assert type(value) is list
        return [value_of(item, type_.value_type) for item in value]
    if type_ in LIMITS:
        assert type(value) is Number
        assert WHOLE.fullmatch(value)
        assert -LIMITS[type_] <= int(value) < LIMITS[type_]
        return int(value)
    if type_ in (pa.float32(), pa.float64()):
        assert type(value) is Number
        number = float(value)
        Fraction(number)  # refuses infinity
        return (
            struct.unpack("<f", struct.pack("<f", number))[0] if type_ == pa.float32() else number
        )
    if type_ == pa.date32() and type(value) is Number:
        assert WHOLE.fullmatch(value)
        assert -719_162 <= int(value) <= 2_932_896
        return int(value)
    if pa.types.is_timestamp(type_) and type(value) is Number:
        assert WHOLE.fullmatch(value)
        assert -62_135_596_800_000 <= int(value) < 253_402_300_800_000
        return int(value) * 1000
    assert type(value) is (bool if type_ == pa.bool_() else str)
    if type_ == pa.string():
        value.encode()
    elif type_ == pa.date32():
        assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value)
        return (date.fromisoformat(value) - date(1970, 1, 1)).days
    elif pa.types.is_timestamp(type_):
        return instant(value)
    return value


def reference(row: bytes | None, schema: Schema) -> list[Any] | None:
    """The row's values (instants in microseconds, dates in days), or None where it doesn't fit."""
    try:
        found = json.loads(
            row.decode(),  # type: ignore[union-attr]
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
        )
        assert type(found) is dict
        assert depth(found) <= 64
        values = [value_of(found.get(field.name), field.type) for field in schema]
        assert not any(f.required and v is None for f, v in zip(schema, values, strict=True))
    except (ValueError, AssertionError, AttributeError, OverflowError):
        return None
    return values


# Running the decoder on a list of rows.


def pack(rows: list[bytes | None], gap: bytes = b"") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows in one buffer, `gap` between them."""
    length = np.array([-1 if row is None else len(row) for row in rows], np.int32)
    sizes = np.maximum(length, 0) + len(gap)
    start = len(gap) + np.cumsum(sizes) - sizes
    buffer = np.frombuffer(gap + b"".join((row or b"") + gap for row in rows), np.uint8)
    return buffer, start.astype(np.int64), length


def decode_rows(rows: list[bytes | None], schema: Schema, gap: bytes = b"") -> Decoded:
    """Decodes the rows from one buffer."""
    decoded = JsonDecoder(schema).decode(*pack(rows, gap))
    decoded.columns.validate(full=True)
    return decoded


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type with integers instead of instants and dates."""
    if pa.types.is_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if pa.types.is_timestamp(type_):
        return pa.int64()
    return pa.int32() if type_ == pa.date32() else type_


def exact(value: Any) -> Any:
    """A value that is equal to another's only where the two are the same, bit by bit."""
    if isinstance(value, list):
        return [exact(item) for item in value]
    return ("float", struct.pack("d", value)) if isinstance(value, float) else (type(value), value)


def values_of(decoded: Decoded) -> list[list[Any]]:
    """Rows of values, instants in microseconds and dates in days."""
    columns = [column.cast(plain_type(column.type)).to_pylist() for column in decoded.columns]
    return [[exact(value) for value in row] for row in zip(*columns, strict=True)]


def check(rows: list[bytes | None], schema: Schema, gap: bytes = b"") -> Decoded:
    """Decodes and compares with the reference."""
    decoded = decode_rows(rows, schema, gap)
    expected = [reference(row, schema) for row in rows]
    refused = dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
    for i, row in enumerate(expected):
        assert (row is None) == (i in refused), (rows[i], refused.get(i))
    assert decoded.rows.tolist() == [i for i, row in enumerate(expected) if row is not None]
    assert decoded.bad_rows.tolist() == [i for i, row in enumerate(expected) if row is None]
    assert len(decoded.reasons) == len(decoded.bad_rows)
    assert all("expected" in reason and "found" in reason for reason in decoded.reasons)
    assert values_of(decoded) == [
        [exact(value) for value in row] for row in expected if row is not None
    ]
    return decoded


# Rows at random.

NAMES = ["v", "user", "seven77", "eight888", "nine_nine", "größe", "a name of seventeen",
         "twenty_four_bytes_long_x", 'quo"te', "back\\slash", "tab\t", "🐟"]  # fmt: skip
TYPES = ["BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "TIMESTAMP", "DATE",
         "ARRAY<BIGINT>", "ARRAY<STRING>", "ARRAY<ARRAY<DOUBLE>>", "ARRAY<TIMESTAMP>"]  # fmt: skip
TEXTS = ["", "x", "plain text of some length", "é", "日本語テキスト", "😀", "\x00", "\x7f", '"', "\\",
         "/", "line\nbreak", "eight888", "é" * 9, "a" * 300, "\u2028", "\ufeff", "\ud800"]  # fmt: skip


def integer_text(r: random.Random) -> str:
    """An integer of any size, often at an edge."""
    size = r.choice([1, 2, 7, 8, 9, 15, 16, 17, 18, 19, 19, 20, 40])
    edges = [
        2**31,
        2**63,
        2**53,
        10**18,
        1_700_000_000_000,
        253_402_300_800_000,
        62_135_596_800_000,
    ]
    value = r.choice([r.randrange(10**size), r.choice(edges) + r.randrange(-2, 3)])
    return r.choice(["", "", "-"]) + str(value)


def number_text(r: random.Random) -> str:
    """A number in any spelling, rarely a wrong one."""
    style = r.randrange(6)
    if style == 0:
        return integer_text(r)
    if style == 1:
        return repr(r.random() * 10 ** r.randrange(8))
    if style == 2:
        bits = struct.unpack("d", r.randbytes(8))[0]
        return repr(bits) if math.isfinite(bits) else "1e400"
    if style == 3:
        return f"{r.randrange(10**4)}.{r.randrange(10**4)}"
    digits = str(r.randrange(10 ** r.randrange(1, 25)))
    exponent = r.choice(["", "e", "E", "e+", "e-"])
    exponent += str(r.choice([0, 5, 22, 23, 300, 307, 308, 320, 400])) if exponent else ""
    point = "." + str(r.randrange(10 ** r.randrange(1, 25))) if r.random() < 0.5 else ""
    return r.choice(["", "-"]) + digits + point + exponent


def text_json(r: random.Random, text: str) -> str:
    """The text as JSON, with the escapes it needs or others besides."""
    spelled = json.dumps(text, ensure_ascii=r.random() < 0.3 or "\ud800" in text)
    if text and r.random() < 0.1:
        spelled = '"' + "".join(f"\\u{ord(c) & 0xFFFF:04{r.choice('xX')}}" for c in text) + '"'
    return spelled.replace("/", r.choice(["/", "\\/"]))


def instant_json(r: random.Random) -> str:
    """An instant, or nearly."""
    if r.random() < 0.2:
        return integer_text(r)
    year, month, day = (
        r.choice([2026, 2024, 2000, 1900, 1970, 1969, 1, 9999, 0]),
        r.randrange(14),
        r.randrange(33),
    )
    text = f"{year:04}-{r.choice([month, 2]):02}-{r.choice([day, 28, 29]):02}"
    text += (
        r.choice("TTTT t_")
        + f"{r.choice([r.randrange(25), 9]):02}:{r.choice([r.randrange(62), 5]):02}"
    )
    text += f":{r.choice([r.randrange(62), 7]):02}" if r.random() < 0.9 else ""
    text += r.choice(["", ".", ".", ","]) + str(
        r.randrange(10 ** r.choice([1, 3, 6, 8, 9, 10]))
    ) * r.randrange(2)
    text += r.choice(
        ["Z", "Z", "Z", "", "z", "+01:00", "-0530", " +02", "+24:00", "-23:59", "+01:60"]
    )
    return f'"{text}"'


def value_json(r: random.Random, type_: str) -> str:
    """A value that is of the type, or nearly, or now and then anything."""
    if r.random() < 0.05:
        type_ = r.choice(TYPES)
    if r.random() < 0.05:
        return r.choice(
            ["null", "NaN", "-Infinity", "nul", "01", "-", "1.", ".5", "+1", "1e", "{}", "[]", ""]
        )
    if type_.startswith("ARRAY<"):
        inner = [space(r) + value_json(r, type_[6:-1]) + space(r) for _ in range(r.randrange(4))]
        return "[" + ",".join(inner) + "]"
    if type_ in ("FLOAT", "DOUBLE"):
        return number_text(r)
    if type_ in ("INT", "BIGINT"):
        return integer_text(r) if r.random() < 0.9 else number_text(r)
    if type_ == "STRING":
        return text_json(r, r.choice(TEXTS) + r.choice(TEXTS))
    if type_ == "DATE":
        year = r.choice([2024, 2023, 1900, 2000, 0, 1])
        return f'"{year:04}-{r.randrange(1, 14):02}-{r.randrange(1, 33):02}"'
    return instant_json(r) if type_ == "TIMESTAMP" else r.choice(["true", "false"])


def space(r: random.Random) -> str:
    """White space, mostly none."""
    return "".join(r.choices(" \n\r\t", k=r.randrange(3))) if r.random() < 0.2 else ""


def unknown_json(r: random.Random, depth: int = 0) -> str:
    """A value for a field that no schema names."""
    kind = r.randrange(6 if depth < 4 else 4)
    if kind < 4:
        return value_json(r, ["STRING", "DOUBLE", "BOOLEAN", "TIMESTAMP"][kind])
    items = [unknown_json(r, depth + 1) for _ in range(r.randrange(3))]
    if kind == 4:
        return "[" + space(r) + ",".join(items) + space(r) + "]"
    return "{" + ",".join(f'{space(r)}"k{i}"{space(r)}:{v}' for i, v in enumerate(items)) + "}"


def row_json(r: random.Random, fields: list[tuple[str, str]]) -> bytes:
    """A row, keys in any order, some missing, some twice, some unknown."""
    members: list[tuple[str, str]] = []
    for name, type_ in fields:
        members.extend(
            (json.dumps(name, ensure_ascii=r.random() < 0.1), value_json(r, type_))
            for _ in range(r.choices([1, 0, 2], [40, 4, 1])[0])
        )
    members.extend(
        (r.choice(['"other"', '"us"', '"grö"', f'"x{i}"', '"\\u0041"']), unknown_json(r))
        for i in range(r.choice([0, 0, 1, 3]))
    )
    if r.random() < 0.3:
        r.shuffle(members)
    body = ",".join(f"{space(r)}{k}{space(r)}:{space(r)}{v}{space(r)}" for k, v in members)
    return (space(r) + "{" + (body or space(r)) + "}" + space(r)).encode("utf-8", "surrogatepass")


def schema_at_random(r: random.Random) -> tuple[Schema, list[tuple[str, str]]]:
    """A schema and its fields' names and types."""
    fields = [(name, r.choice(TYPES)) for name in r.sample(NAMES, r.randrange(1, 6))]
    parts = [Schema.parse(f"x {type_}").fields[0].type for _, type_ in fields]
    return Schema(
        tuple(Field(n, t, r.random() < 0.3) for (n, _), t in zip(fields, parts, strict=True))
    ), fields


def mutated(r: random.Random, row: bytes) -> bytes:
    """The row, damaged."""
    data = bytearray(row)
    for _ in range(r.choice([1, 1, 2, 5])):
        at = r.randrange(len(data) + 1)
        match r.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = bytes([r.choice(b'{}[]",:\\0e.-+ \x00\x1f\x80\xc3\xed\xff')])
            case 2:
                data[at : at + 1] = r.randbytes(1)
            case 3:
                del data[at : at + r.choice([1, 3])]
            case _:
                data[at:at] = data[at : at + r.randrange(20)]
    return bytes(data)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_rows_mean_what_the_reference_says(seed: int) -> None:
    """Any rows of any schema have the reference's values, and exactly the bad ones have reasons."""
    r = random.Random(seed)
    schema, fields = schema_at_random(r)
    rows: list[bytes | None] = [row_json(r, fields) for _ in range(r.randrange(40))]
    if r.random() < 0.2:
        rows.insert(0, None)
    check(rows, schema, r.choice([b"", b"", b"}", b"0", b'"', b"\xff" * 9]))


def short_json(r: random.Random, type_: str) -> str:
    """A value, for numbers mostly one of few digits and at the edges of what is few."""
    if type_ not in ("INT", "BIGINT", "DOUBLE", "TIMESTAMP", "FLOAT") or r.random() < 0.1:
        return value_json(r, type_)
    whole = str(r.randrange(10 ** r.choice([1, 2, 7, 8, 9, 13, 15, 16])))
    if r.random() < 0.05:
        whole = r.choice(["0", "00", "-0", "-7", "2147483647", "2147483648", "253402300799999"])
    if type_ in ("DOUBLE", "FLOAT") and r.random() < 0.7:
        whole += "." + "".join(r.choices("0123456789", k=r.choice([0, 1, 1, 2, 6, 7, 8, 9])))
    return whole + r.choice([""] * 20 + ["e3", "E-2", "e", ".", "x"])


def rows_of_one_shape(r: random.Random, fields: list[tuple[str, str]], rows: int) -> list[bytes]:
    """Rows as one program writes them: all fields in one order, without space or with one."""
    comma, colon = r.choice([(",", ":"), (", ", ": "), (", ", ":"), (",  ", ":")])
    names = [json.dumps(name, ensure_ascii=False) for name, _ in fields]
    types = [type_ for _, type_ in fields]
    texts = []
    for _ in range(rows):
        members = [
            f"{n}{colon}{short_json(r, t)}"
            for n, t in zip(names, types, strict=True)
            if r.random() > 0.01
        ]
        if r.random() < 0.02:
            r.shuffle(members)
        row = ("{" + comma.join(members) + "}").encode("utf-8", "surrogatepass")
        texts.append(mutated(r, row) if r.random() < 0.03 else row)
    return texts


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_rows_of_one_shape_mean_what_the_reference_says(seed: int) -> None:
    """So do rows that are alike but for some, wherever each ends and whatever lies behind it."""
    r = random.Random(seed)
    schema, fields = schema_at_random(r)
    gap = r.choice([b"", b"0", b"}", b'"', b"9" * 40, b"\xff" * 40])
    check([*rows_of_one_shape(r, fields, r.randrange(60))], schema, gap)


@pytest.mark.parametrize(("comma", "colon"), [(",", ":"), (", ", ": ")])
def test_rows_of_one_shape_are_expected(comma: str, colon: str) -> None:
    """After one row of all fields the next ones are read as such, and after another row soon again."""
    decoder = JsonDecoder(Schema.parse("user BIGINT, nine_nine DOUBLE, ts TIMESTAMP, x STRING"))
    members = ['"user"{}{}', '"nine_nine"{}{}.5', '"ts"{}170000000000{}', '"x"{}"text {}"']
    row = "{" + comma.join(one.format(colon, 7) for one in members) + "}"

    def expects(rows: list[str]) -> bool:
        buffer, start, length = pack([one.encode() for one in rows], b" " * 40)
        fields, keys = formats_json.compiled(decoder.schema)
        memories = kernel.memories(len(fields))
        values, valid = np.zeros((4, len(rows)), np.int64), np.zeros((4, len(rows)), np.uint8)
        lengths, status = np.zeros((1, len(rows)), np.int32), np.zeros(len(rows), np.uint8)
        table = formats_json.key_table(fields, keys)
        found = kernel.read_rows(
            *(buffer, start, length, fields, keys, table, *memories),
            *(values, lengths, valid, status),
        )
        assert found == 0
        assert values[0].tolist() == [7] * len(rows)
        return bool(memories[-1][kernel.WHOLE] > 0)

    other = row.replace("{", '{"more":1,')
    assert expects([row] * 2)
    assert not expects([row] * 2 + [other])
    assert expects([row] * 2 + [other] + [row] * 20)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_damaged_rows_are_judged_as_the_reference_does(seed: int) -> None:
    """Rows with bytes flipped, cut, doubled or inserted are accepted and refused as by the reference."""
    r = random.Random(seed)
    schema, fields = schema_at_random(r)
    whole = [row_json(r, fields) for _ in range(5)]
    check([mutated(r, row) for row in whole for _ in range(20)], schema)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=30))
def test_arbitrary_bytes_never_crash(rows: list[bytes]) -> None:
    """Rows of arbitrary bytes are refused with reasons, or are what the reference reads."""
    check([*rows, *(b'{"v":' + row + b"}" for row in rows)], Schema.parse("v STRING, w BIGINT"))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=200), st.randoms())
def test_doubles_are_correctly_rounded(numbers: list[float], r: random.Random) -> None:
    """A double, in any spelling, has the bits that `float` gives it."""
    spelled = [
        f(n) for n in numbers for f in (repr, "{:.17g}".format, "{:.20e}".format, "{:.3f}".format)
    ]
    spelled += [number_text(r) for _ in range(200)]
    spelled = [s for s in spelled if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", s)]
    spelled = [s for s in spelled if math.isfinite(float(s))]
    rows = [f'{{"v":{s}}}'.encode() for s in spelled]
    decoded = decode_rows([*rows], Schema.parse("v DOUBLE"))
    expected = struct.pack(f"{len(rows)}d", *map(float, spelled))
    assert decoded.columns.column(0).to_numpy().tobytes() == expected


def test_doubles_of_random_bits_are_correctly_rounded() -> None:
    """Doubles of random bits, in their shortest spelling, come back bit by bit."""
    bits = np.random.default_rng(7).integers(0, 2**63 - 1, 50_000, np.int64)
    numbers = bits.view(np.float64)[np.isfinite(bits.view(np.float64))]
    rows = [b'{"v":%s}' % repr(n).encode() for n in numbers.tolist()]
    decoded = decode_rows([*rows], Schema.parse("v DOUBLE"))
    assert decoded.columns.column(0).to_numpy().tobytes() == numbers.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_the_size_of_batches_does_not_matter(seed: int) -> None:
    """Rows decoded one by one, in pieces, or all at once give the same columns and reasons."""
    r = random.Random(seed)
    schema, fields = schema_at_random(r)
    rows = [
        row_json(r, fields) if r.random() < 0.8 else mutated(r, row_json(r, fields))
        for _ in range(60)
    ]
    whole = decode_rows([*rows], schema)
    size = r.choice([1, 7, 59])
    parts = [decode_rows([*rows[i : i + size]], schema) for i in range(0, len(rows), size)]
    assert [reason for part in parts for reason in part.reasons] == whole.reasons
    table = pa.Table.from_batches([part.columns for part in parts]).combine_chunks()
    # Compared as text, in which a double's sign of zero is seen and NaN can't occur.
    assert str(table.to_pylist()) == str(pa.Table.from_batches([whole.columns]).to_pylist())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_columns_that_are_not_wanted_decide_as_well(seed: int) -> None:
    """With any choice of columns the same rows fit, and those columns are the same."""
    r = random.Random(seed)
    schema, fields = schema_at_random(r)
    rows = [
        row_json(r, fields) if r.random() < 0.7 else mutated(r, row_json(r, fields))
        for _ in range(40)
    ]
    whole = decode_rows([*rows], schema)
    wanted = [name for name in schema.names if r.random() < 0.5]
    found = JsonDecoder(schema, wanted).decode(*pack([*rows]))
    assert found.columns.schema.names == (wanted or list(schema.names[:1]))
    assert found.columns.equals(whole.columns.select(found.columns.schema.names))
    assert (found.rows.tolist(), found.bad_rows.tolist(), found.reasons) == (
        whole.rows.tolist(),
        whole.bad_rows.tolist(),
        whole.reasons,
    )


def test_a_batch_of_slow_rows_only() -> None:
    """A batch in which the kernel settles no row is decoded all the same."""
    rows: list[bytes | None] = [b'{"\\u0076": "x%d", "v": "y%d"}' % (i, i) for i in range(100)]
    decoded = check(rows, Schema.parse("v STRING NOT NULL"))
    assert decoded.columns.column("v").to_pylist() == [f"y{i}" for i in range(100)]


def test_a_batch_without_rows() -> None:
    """No rows give no rows, in the schema's columns."""
    schema = Schema.parse("a BIGINT, b STRING, c ARRAY<INT>, d BOOLEAN")
    decoded = decode_rows([], schema)
    assert decoded.columns.schema == schema.arrow
    assert len(decoded.columns) == len(decoded.rows) == len(decoded.bad_rows) == 0


def test_one_decoder_is_not_changed_by_a_batch() -> None:
    """A decoder gives the same for the same batch, whatever it decoded in between."""
    decoder = JsonDecoder(Schema.parse("a BIGINT, at TIMESTAMP"))
    first = pack([b'{"a":1,"at":"2026-11-21T09:00:00Z"}'])
    before = decoder.decode(*first)
    decoder.decode(*pack([b'{"at":"2024-02-29T00:00:00Z","b":{},"a":2}', b"{"]))
    assert decoder.decode(*first).columns.equals(before.columns)


def test_nothing_lies_under_a_null() -> None:
    """The bytes of a column don't depend on what a refused or null value looked like."""
    schema = Schema.parse("a BIGINT, b DOUBLE, s STRING")
    rows: list[bytes | None] = [b'{"a":null,"b":1,"s":"x"}', b'{"b":null}', b'{"a":7,"a":null}']
    columns = decode_rows(rows, schema).columns
    for i in range(2):
        data = np.frombuffer(columns.column(i).buffers()[1], np.int64)
        assert not data[columns.column(i).is_null().to_numpy(zero_copy_only=False)].any()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, "expected a JSON object; found no value (null)"),
        (b"", "expected a JSON object; found an empty value"),
        (b"[1]", "expected a JSON object; found an array"),
        (b'"x"', 'expected a JSON object; found "x"'),
        (b"{}", "field 'n': expected a value (NOT NULL); found none"),
        (b'{"n":null}', "field 'n': expected a value (NOT NULL); found null"),
        (b'{"n":1.0}', "field 'n': expected INT (an integer from -2147483648 to 2147483647); found 1.0"),
        (b'{"n":2147483648}', "found 2147483648"),
        (b'{"n":"1"}', 'found "1"'),
        (b'{"n":1,"s":7}', "field 's': expected STRING (text); found 7"),
        (b'{"n":1,"s":"\\ud800"}', 'field \'s\': expected STRING (text); found "\\ud800"'),
        (b'{"n":1,"t":"yesterday"}', "field 't': expected TIMESTAMP (ISO 8601"),
        (b'{"n":1,"t":"2023-02-29T00:00:00Z"}', 'found "2023-02-29T00:00:00Z"'),
        (b'{"n":1,"l":[1,"x"]}', "field 'l': expected ARRAY<BIGINT> (an array, each item an integer"),
        (b'{"n":1} x', "expected valid JSON; found"),
        (b'{"n":1', "found the end at character 6"),
        (b'{"n":NaN}', "found NaN"),
        (b'{"s":"\xff"}', "expected UTF-8; found byte 0xff at position 6"),
        (b'{"n":1,"s":' + b"9" * 5000 + b"}", "…"),
    ],
)  # fmt: skip
def test_reasons_name_what_was_expected_and_found(row: bytes | None, reason: str) -> None:
    """A bad row's reason names the field, what it should hold, and what stands there."""
    schema = Schema.parse("n INT NOT NULL, s STRING, t TIMESTAMP, l ARRAY<BIGINT>")
    decoded = decode_rows([row], schema)
    assert len(decoded.rows) == 0
    assert reason in decoded.reasons[0]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("known", [False, True])
def test_nesting_is_limited(known: bool) -> None:
    """Objects and arrays nest up to `DEPTH_MAX`; deeper ones are refused, however deep they are."""
    schema = Schema.parse("v ARRAY<BIGINT>" if known else "w BIGINT")

    def row(depth: int) -> bytes:
        return b'{"v":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    rows: list[bytes | None] = [
        row(DEPTH_MAX),
        row(DEPTH_MAX + 1),
        row(500_000),
        b'{"v":' * 100_000,
    ]
    decoded = decode_rows(rows, schema)
    assert decoded.rows.tolist() == ([] if known else [0])
    assert all(str(DEPTH_MAX) in reason for reason in decoded.reasons[1 if known else 0 :])


def test_many_fields_in_any_order() -> None:
    """A schema of hundreds of columns is decoded, the keys in any order, unknown ones between them."""
    schema = Schema(tuple(Field(f"column_{i}", pa.int64()) for i in range(400)))
    r = random.Random(3)
    rows: list[bytes | None] = []
    for _ in range(20):
        keys = r.sample(range(500), 450)
        rows.append(json.dumps({f"column_{i}": i * 7 for i in keys}).encode())
    check(rows, schema)


def test_long_strings() -> None:
    """Strings of megabytes, plain and escaped, are decoded whole."""
    text = "long text, länger, \n" * 100_000
    rows: list[bytes | None] = [
        json.dumps({"s": text}, ensure_ascii=e).encode() for e in (True, False)
    ]
    assert decode_rows(rows, Schema.parse("s STRING")).columns.column(0).to_pylist() == [text, text]


def test_too_much_text_in_a_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A string column longer than Arrow's offsets reach is a limit error that says what to do."""
    monkeypatch.setattr(formats_json, "STRING_BYTES_MAX", 10)
    with pytest.raises(LimitError, match=r"field 's'.*found 12.*fewer rows"):
        decode_rows([b'{"s":"twelve bytes"}'], Schema.parse("s STRING"))


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 99), (5, 3), (2**62, 2)])
def test_rows_outside_the_buffer_are_refused(start: int, length: int) -> None:
    """A row that would be read outside the buffer is an error, not a read."""
    decoder = JsonDecoder(Schema.parse("a BIGINT"))
    with pytest.raises(ValueError, match="expected rows within 7 bytes"):
        decoder.decode(
            np.frombuffer(b'{"a":1}', np.uint8), np.array([start]), np.array([length], np.int32)
        )


def test_a_type_that_rows_cannot_have_is_refused() -> None:
    """A schema with a foreign Arrow type has no decoder."""
    with pytest.raises(SchemaError, match="expected a type among"):
        JsonDecoder(Schema((Field("a", pa.duration("s")),)))


def test_values_are_those_of_duckdb() -> None:
    """On well-formed rows, DuckDB's `from_json` reads the same values."""
    r = random.Random(11)
    rows: list[bytes | None] = []
    for i in range(2000):
        row = {"i": r.randrange(-(2**62), 2**62), "d": r.random() * 10 ** r.randrange(-5, 9), "b": i % 3 == 0,
               "s": r.choice(TEXTS[:-1]).replace("\x00", ""),
               "t": f"2026-11-{1 + i % 30:02}T09:{i % 60:02}:07.{i:06}Z",
               "a": f"2024-02-{1 + i % 29:02}", "l": [i, None]}  # fmt: skip
        rows.append(
            json.dumps({k: v if r.random() < 0.9 else None for k, v in row.items()}).encode()
        )
    schema = Schema.parse(
        "i BIGINT, d DOUBLE, b BOOLEAN, s STRING, t TIMESTAMP, a DATE, l ARRAY<BIGINT>"
    )
    shape = '{"i":"BIGINT","d":"DOUBLE","b":"BOOLEAN","s":"VARCHAR","t":"TIMESTAMP",'
    shape += '"a":"DATE","l":["BIGINT"]}'
    source = pa.table({"v": [(row or b"").decode() for row in rows]})
    with duckdb.connect() as connection:
        connection.register("source", source)
        theirs = connection.sql(
            f"SELECT unnest(from_json(v, '{shape}')) FROM source"
        ).to_arrow_table()
    ours = pa.Table.from_batches([decode_rows(rows, schema).columns])
    for name in schema.names:
        column = theirs.column(name).cast(plain_type(theirs.column(name).type))
        assert (
            ours.column(name).cast(plain_type(ours.column(name).type)).to_pylist()
            == column.to_pylist()
        )
