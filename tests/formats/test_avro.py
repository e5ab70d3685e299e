"""Avro's records: what a naive encoder wrote, and what Polars did; bad ones touch no others."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.schema import Schema
from penstock.errors import FlowError, SchemaError
from penstock.formats.avro import Avro, AvroDecoder
from penstock.formats.json import Decoded


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def encoded(value: Any, type_: Any) -> bytes:
    """The specification, read as a program."""
    match type_:
        case list():
            branch = type_.index("null") if value is None else 1 - type_.index("null")
            return number(branch) + encoded(value, type_[branch])
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return number(value)
        case "float" | "double":
            return struct.pack("<f" if type_ == "float" else "<d", value)
        case "bytes":
            return number(len(value)) + value
        case "string":
            return encoded(value.encode(), "bytes")
        case {"type": "enum"}:
            return number(type_["symbols"].index(value))
        case {"type": "fixed"}:
            return bytes(value)
        case {"type": "array"}:
            items = [encoded(one, type_["items"]) for one in value]
            first, rest = items[: len(items) // 2], items[len(items) // 2 :]
            blocks = [number(-len(first)) + number(len(b"".join(first)))] if first else []
            blocks += first + ([number(len(rest))] if rest else []) + rest
            return b"".join(blocks) + number(0)
        case {"type": "map"}:
            pairs = [encoded(k, "string") + encoded(v, type_["values"]) for k, v in value.items()]
            return (number(len(pairs)) if pairs else b"") + b"".join(pairs) + number(0)
        case {"type": "record"}:
            return b"".join(encoded(value[one["name"]], one["type"]) for one in type_["fields"])
    raise AssertionError(type_)


def record(**fields: Any) -> dict[str, Any]:
    pairs = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return {"type": "record", "name": "r", "fields": pairs}


WRITER = record(
    b="boolean",
    i=["null", "int"],
    skipped={"type": "map", "values": ["null", "double"]},
    l="long",
    f="float",
    d=["double", "null"],
    s=["null", "string"],
    y="bytes",
    e={"type": "enum", "name": "e", "symbols": ["red", "blue"]},
    x={"type": "fixed", "name": "x", "size": 3},
    many={"type": "array", "items": ["null", "string"]},
    one=record(p="long", q=["null", "string"]),
)
COLUMNS = (
    "b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, y BINARY, e STRING, x BINARY, "
    "many ARRAY<STRING>, one STRUCT<p BIGINT, q STRING>, absent INT"
)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.one_of(st.none(), st.text(max_size=5))
ROWS = st.fixed_dictionaries(
    {
        "b": st.booleans(),
        "i": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "skipped": st.dictionaries(
            st.text(max_size=2), st.one_of(st.none(), st.floats()), max_size=2
        ),
        "l": LONGS,
        "f": st.floats(width=32, allow_nan=False),
        "d": st.one_of(st.none(), st.floats(allow_nan=False)),
        "s": TEXTS,
        "y": st.binary(max_size=4),
        "e": st.sampled_from(["red", "blue"]),
        "x": st.binary(min_size=3, max_size=3),
        "many": st.lists(TEXTS, max_size=4),
        "one": st.fixed_dictionaries({"p": LONGS, "q": TEXTS}),
    }
)


def decode(columns: str, format_: Avro, rows: list[bytes | None]) -> Decoded:
    data = b"".join(b"#" + (row or b"") for row in rows) + b"#"
    lengths = np.array([-1 if row is None else len(row) for row in rows], np.int32)
    starts = np.cumsum([1, *(1 + max(int(one), 0) for one in lengths)])[:-1].astype(np.int64)
    decoder = AvroDecoder(Schema.parse(columns), format_)
    return decoder.decode(np.frombuffer(data, np.uint8), starts, lengths)


@given(st.lists(st.tuples(ROWS, st.sampled_from(["whole", "whole", "cut", "longer"])), max_size=8))
def test_records_are_read_as_they_were_written(rows: list[tuple[Any, str]]) -> None:
    """All types, some records of which are cut off or too long, beside which others are as they were."""
    values, good = [], []
    for n, (row, kind) in enumerate(rows):
        data = encoded(row, WRITER)
        values.append({"whole": data, "cut": data[:-1], "longer": data + b"\0"}[kind])
        if kind == "whole":
            good.append(n)
    found = decode(COLUMNS, ps.avro(WRITER), list(values))
    assert found.rows.tolist() == good
    kept = [{k: v for k, v in rows[n][0].items() if k != "skipped"} for n in good]
    assert found.columns.to_pylist() == [{**row, "absent": None} for row in kept]
    assert len(found.reasons) == len(rows) - len(good)
    assert all(reason.startswith("expected ") for reason in found.reasons)


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_rows_or_bad(rows: list[bytes]) -> None:
    """Whatever comes, each record is one or the other."""
    found = decode(COLUMNS, ps.avro(WRITER), list(rows))
    assert sorted([*found.rows.tolist(), *found.bad_rows.tolist()]) == list(range(len(rows)))


def test_a_damaged_map_is_its_records_own() -> None:
    """Cut anywhere, or with a key that isn't UTF-8; the records beside it are read."""
    pairs = {"ab": 1, "c": 2}
    writer = record(m={"type": "map", "values": "long"})
    whole = encoded({"m": pairs}, writer)
    damaged = [whole[:size] for size in range(len(whole))] + [whole.replace(b"ab", b"a\xff")]
    found = decode("m MAP<STRING, BIGINT>", ps.avro(writer), [whole, *damaged, whole])
    assert found.rows.tolist() == [0, len(damaged) + 1]
    assert found.columns.to_pylist() == [{"m": list(pairs.items())}] * 2
    assert found.reasons[-1] == "expected text in UTF-8; found other bytes"


def test_the_last_of_equal_keys_counts() -> None:
    """A map with one key twice could be read by nothing that comes after."""
    columns, writer = "m MAP<STRING, BIGINT>", record(m={"type": "map", "values": "long"})
    pairs = [
        encoded(key, "string") + number(value) for key, value in (("a", 1), ("b", 2), ("a", 3))
    ]
    twice = number(3) + b"".join(pairs) + number(0)
    found = decode(columns, ps.avro(writer), [encoded({"m": {"a": 7}}, writer), twice, number(0)])
    assert found.columns.to_pylist() == [{"m": [("a", 7)]}, {"m": [("b", 2), ("a", 3)]}, {"m": []}]


def test_a_head_says_which_schema_it_is() -> None:
    """Values of several writers in one batch; other ids, and what has no head, are bad."""
    old, new = record(n="int"), record(s=["null", "string"], n="long")
    rows = [
        b"\0\0\0\0\x07" + encoded({"n": 1}, old),
        b"\0\0\0\1\x00" + encoded({"s": "x", "n": 2**40}, new),
        b"\0\0\0\0\x09" + encoded({"n": 1}, old),
        b"\1\0\0\0\x07" + encoded({"n": 1}, old),
        b"\0\0",
        None,
    ]
    found = decode("n BIGINT, s STRING", ps.avro({7: old, 256: json.dumps(new)}), rows)
    assert found.columns.to_pylist() == [{"n": 1, "s": None}, {"n": 2**40, "s": "x"}]
    assert found.bad_rows.tolist() == [2, 3, 4, 5]
    assert "expected a schema id among 7, 256; found 9" in found.reasons[0]
    assert "expected a zero byte first; found 1" in found.reasons[1]
    assert "no value (null)" in found.reasons[3]


def test_what_polars_writes_is_read() -> None:
    """Its records, out of the blocks of a file; an encoder that we didn't write."""
    table = pl.DataFrame(
        {"n": [1, -5, None], "d": [0.5, None, 2.5], "s": ["a", "é", None], "b": [True, None, False]}
    )
    sink = io.BytesIO()
    table.write_avro(sink)
    data = sink.getvalue()
    start = data.index(b"{", data.index(b"avro.schema"))
    writer, length = json.JSONDecoder().raw_decode(data[start:].decode("latin-1"))
    schema = json.dumps(writer).encode("latin-1").decode()
    assert length > 0
    mark = data[-16:]
    begin = data.index(mark) + 16  # the block: how many, how long, the records, the mark
    body = data[begin + 1 : -16]
    size_bytes = next(i for i, byte in enumerate(body) if byte < 0x80) + 1
    body = body[size_bytes:]
    rows, at = [], 0
    for expected in table.to_dicts():  # where a record ends, only decoding it tells
        for end in range(at + 1, len(body) + 1):
            found = decode(
                "n BIGINT, d DOUBLE, s STRING, b BOOLEAN", ps.avro(schema), [body[at:end]]
            )
            if len(found.rows):
                rows += found.columns.to_pylist()
                at = end
                break
        assert rows[-1] == expected
    assert at == len(body)


def test_instants_and_dates(tmp_path: Any) -> None:
    """Logical types, through a pipeline; what lies beyond the years 1 to 9999 is a dead letter."""
    writer = record(
        user="string",
        at={"type": "long", "logicalType": "timestamp-millis"},
        day=["null", {"type": "int", "logicalType": "date"}],
    )
    app = ps.App("avro")
    events = app.stream(
        "events",
        "user STRING NOT NULL, at TIMESTAMP NOT NULL, day DATE",
        time=ps.event_time("at"),
        format=ps.avro(writer),
    )
    app.view("users", events.group_by("user").agg(n=ps.count(), last=ps.max("day")))
    run = ps.testing.run(app)
    at_ms = 1_700_000_000_000
    for user, at, day in (("ann", at_ms, 5), ("ann", at_ms + 1, None), ("bob", 2**62, 1)):
        run.send_raw("events", encoded({"user": user, "at": at, "day": day}, _plain(writer)))
    run.restart()
    [row] = run.view("users").rows()
    assert (row["user"], row["n"], str(row["last"])) == ("ann", 2, "1970-01-06")
    [letter] = run.dead_letters()
    assert "expected TIMESTAMP" in letter.headers["penstock.reason"]


def _plain(type_: Any) -> Any:
    """A schema without its logical types."""
    if isinstance(type_, list):
        return [_plain(one) for one in type_]
    if isinstance(type_, dict) and "logicalType" in type_:
        return type_["type"]
    if isinstance(type_, dict) and "fields" in type_:
        fields = [{**one, "type": _plain(one["type"])} for one in type_["fields"]]
        return {**type_, "fields": fields}
    return type_


@pytest.mark.parametrize(
    ("columns", "schema", "message"),
    [
        (
            "n INT",
            record(n="long"),
            "expected column 'n' as its Avro field is; found INT, and BIGINT",
        ),
        ("n INT", record(m="int"), "expected fields among n; found m"),
        ("n INT", {"type": "string"}, "of type 'record'"),
        ("n INT", "{", "as JSON"),
        ("n INT", record(n="other"), "found 'other'"),
        ("n INT", record(n=["int", "string"]), "a type that no column has"),
    ],
)
def test_schemas_are_checked(columns: str, schema: Any, message: str) -> None:
    """When the program is read."""
    with pytest.raises(FlowError, match=message):
        ps.App("checked").stream("t", columns, format=ps.avro(schema))


def test_schemas_are_json_or_by_id() -> None:
    """Nothing else is taken."""
    with pytest.raises(FlowError, match="a mapping of ids"):
        ps.avro({"a": "b"})
    with pytest.raises(FlowError, match="expected an Avro schema"):
        ps.avro(7)  # type: ignore[arg-type]


DECIMALS = record(
    short={"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    long=["null", {"type": "fixed", "name": "f", "size": 20, "logicalType": "decimal",
                   "precision": 38, "scale": 0}],
    id={"type": "string", "logicalType": "uuid"},
    at={"type": "int", "logicalType": "time-millis"},
)  # fmt: skip


def two(value: int, size: int | None = None) -> bytes:
    """Two's complement, the greatest byte first."""
    return value.to_bytes(size or (value.bit_length() // 8 + 1), "big", signed=True)


@given(
    st.lists(
        st.tuples(
            st.integers(-2_000_000, 2_000_000),
            st.one_of(st.none(), st.integers(-(10**39), 10**39), st.integers(-5, 5)),
            st.uuids(),
            st.integers(-1, 86_400_000),
            st.integers(0, 3),
        )
    )
)
def test_decimals_uuids_and_times(rows: list[Any]) -> None:
    """Of bytes as long as they are and longer, and of a fixed size; with more digits they are bad."""
    data, good = [], []
    for n, (short, long, one, at, more) in enumerate(rows):
        body = encoded(two(short, short.bit_length() // 8 + 1 + more), "bytes")
        body += number(0) if long is None else number(1) + two(long, 20)
        data.append(body + encoded(str(one), "string") + number(at))
        fits = abs(short) < 10**6 and (long is None or abs(long) < 10**38)
        if fits and 0 <= at < 86_400_000:
            good.append(n)
    columns = "short DECIMAL(10, 4), long DECIMAL(38, 0), id UUID, at TIME"
    found = decode(columns, ps.avro(DECIMALS), list(data))
    assert found.rows.tolist() == good
    columns_read = found.columns.to_pydict()
    assert [int(one * 100) for one in columns_read["short"]] == [rows[n][0] for n in good]
    assert [one if one is None else int(one) for one in columns_read["long"]] == [
        rows[n][1] for n in good
    ]
    assert columns_read["id"] == [rows[n][2].bytes for n in good]
    micros = found.columns.column("at").cast("int64").to_pylist()
    assert micros == [rows[n][3] * 1000 for n in good]


def test_a_decimal_with_fewer_digits_than_its_field_is_refused() -> None:
    """Values that don't fit would be lost."""
    with pytest.raises(FlowError, match=r"DECIMAL\(5, 2\), and DECIMAL\(6, 2\) in the field"):
        ps.App("p").stream("t", "short DECIMAL(5, 2)", format=ps.avro(DECIMALS))


def kinds(namespace: str | None, *symbols: str) -> dict[str, Any]:
    space = {} if namespace is None else {"namespace": namespace}
    return {"type": "enum", "name": "K", **space, "symbols": list(symbols)}


@pytest.mark.parametrize("name", ["K", "a.K", {"type": "a.K"}])
def test_a_name_is_in_the_namespace_around_it(name: Any) -> None:
    """It isn't a type of another namespace that was defined in between; names in full are known, too."""
    inner = {**record(p=kinds(None, "N", "M"), q="K"), "name": "c.inner"}
    fields = record(x=kinds(None, "A", "B"), y=kinds("b", "X", "Y"), i=inner, z=name)
    found = decode(
        "x STRING, y STRING, i STRUCT<p STRING, q STRING>, z STRING",
        ps.avro({**fields, "namespace": "a"}),
        [number(0) + number(1) + number(1) + number(0) + number(1)],
    )
    expected = {"x": "A", "y": "Y", "i": {"p": "M", "q": "N"}, "z": "B"}
    assert found.columns.to_pylist() == [expected]


def test_a_name_of_another_namespace_is_not_found() -> None:
    """Nor is one that isn't defined yet."""
    with pytest.raises(SchemaError, match="expected an Avro type; found 'K'"):
        decode("x STRING, z STRING", ps.avro(record(x=kinds("b", "X"), z="K")), [])
