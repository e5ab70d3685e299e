"""Changelogs: records of each format as upserts and deletions; members, against a parser of Python's."""

from __future__ import annotations

import base64
import json
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.schema import Schema
from penstock.core.text.unscaled import unscaled_decimals
from penstock.formats.changelog import ChangelogDecoder, Changes
from penstock.formats.members import MemberFinder, Texts
from penstock.wire.columns import decode, encode

SCHEMA = Schema.parse("id BIGINT NOT NULL, name STRING NOT NULL, n INT")


def changes(
    records: list[tuple[Any, Any]],
    kind: Any,
    schema: Schema = SCHEMA,
    key: Any = ("id",),
    headers: Any = None,
) -> Changes:
    """Decodes records of some keys and values; what isn't bytes is written as JSON."""
    columns = []
    for side in (0, 1):
        texts = [
            one if isinstance(one, bytes | None) else json.dumps(one).encode()
            for one in (record[side] for record in records)
        ]
        columns.append(pa.array(texts, pa.binary()))
    batches = encode(*columns, np.zeros(len(records), np.int64), headers=headers)
    made = decode(b"".join(bytes(batch) for batch in batches))
    return ChangelogDecoder(schema, key, kind).decode(made)


def triples(found: Changes) -> list[tuple[int, bool, tuple[Any, ...]]]:
    """Record, whether it is a deletion, and the row."""
    rows = [tuple(row.values()) for row in found.columns.to_pylist()]
    return list(zip(found.rows.tolist(), found.deleted.tolist(), rows, strict=True))


ROW = {"id": 1, "name": "a", "n": 2}


def test_a_record_is_a_row_and_a_tombstone_deletes_its_key() -> None:
    """In the records' order; what doesn't fit is told, and leaves the others alone."""
    found = changes(
        [
            (b"1", ROW),
            (b"1", None),
            ({"id": 2}, None),
            ({"schema": {"type": "struct"}, "payload": {"id": 3}}, None),
            (b"1", {"id": 1, "name": None}),
            (None, None),
            (b"one", None),
            ({"name": "a"}, None),
            (None, {"id": 9, "name": "z"}),
        ],
        "json",
    )
    assert triples(found) == [
        (0, False, (1, "a", 2)),
        (1, True, (1, None, None)),
        (2, True, (2, None, None)),
        (3, True, (3, None, None)),
        (8, False, (9, "z", None)),
    ]
    assert found.bad_rows.tolist() == [4, 5, 6, 7]
    assert "name" in found.reasons[0]
    assert "without value and key" in found.reasons[1]
    assert found.reasons[2].endswith("in the record's key")
    assert "'id'" in found.reasons[3]


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [
        ("STRING", b'a"b', 'a"b'),
        ("STRING", b"", ""),
        ("STRING", b"{not json", "{not json"),
        ("STRING", b'{"other":1}', '{"other":1}'),
        ("STRING", b'{"k":"x"}', "x"),
        ("STRING", b'{"schema":{},"payload":{"k":"x"}}', "x"),
        ("BIGINT", b"-9223372036854775808", -(2**63)),
        ("BOOLEAN", b"true", True),
        ("DOUBLE", b"1.5", 1.5),
        ("DATE", b"2026-01-02", "2026-01-02"),
        ("TIMESTAMP", b"2026-01-02 03:04:05.000006Z", "2026-01-02 03:04:05.000006+00:00"),
    ],
)
def test_a_key_is_the_text_of_its_column(type_: str, key: bytes, value: Any) -> None:
    """Of any type, as `Table.to` writes them; an object only where it has the column."""
    schema = Schema.parse(f"k {type_} NOT NULL, n INT")
    [(_, deleted, (found, _))] = triples(changes([(key, None)], "json", schema, ("k",)))
    assert deleted
    assert found == value or str(found) == value


@pytest.mark.parametrize("kind", ["json", "debezium"])
def test_a_key_with_other_columns_is_of_another_table(kind: str) -> None:
    """Rows and tombstones of it are bad, as the table has one row where the topic may have several."""
    row = ROW if kind == "json" else {"op": "c", "after": ROW}
    wide = {"id": 1, "name": "a"}
    found = changes(
        [
            ({"id": 1}, row),
            (wide, row),
            (wide, None),
            ({"schema": {}, "payload": wide}, row),
            ({"name": "a"}, row),
        ],
        kind,
    )
    assert triples(found) == [(0, False, (1, "a", 2)), (4, False, (1, "a", 2))]
    assert found.bad_rows.tolist() == [1, 2, 3]
    assert "the rows (id); found name in it as well" in found.reasons[0]
    assert found.reasons[0].endswith("Use the topic's key: id, name")


def test_without_a_key_tombstones_are_no_change() -> None:
    """Rows are taken, whatever the record's key is."""
    found = changes([({"id": 1, "name": "a"}, ROW), (b"1", None), (None, None)], "json", key=())
    assert triples(found) == [(0, False, (1, "a", 2))]
    assert not found.reasons


def test_a_text_key_that_is_no_text_is_bad() -> None:
    """The others of the batch are read."""
    schema = Schema.parse("k STRING NOT NULL")
    found = changes([(b"\xff", None), (b"a", None)], "json", schema, ("k",))
    assert triples(found) == [(1, True, ("a",))]
    assert found.bad_rows.tolist() == [0]


def test_a_key_of_several_columns_is_an_object() -> None:
    """Text alone is no such key."""
    schema = Schema.parse("a INT NOT NULL, b STRING NOT NULL, n INT")
    found = changes([({"b": "x", "a": 1}, None), (b"1", None)], "json", schema, ("a", "b"))
    assert triples(found) == [(0, True, (1, "x", None))]
    assert found.bad_rows.tolist() == [1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_debezium(wrapped: bool) -> None:
    """Envelopes of each kind, with and without their schema."""

    def made(envelope: Any) -> Any:
        return {"schema": {"fields": []}, "payload": envelope} if wrapped else envelope

    source = {"db": "x", "ts_ms": 1}
    found = changes(
        [
            (b"", made({"before": None, "after": ROW, "op": "c", "source": source, "ts_ms": 5})),
            (b"", made({"after": ROW | {"n": None}, "op": "r"})),
            (b"", made({"before": ROW, "after": ROW | {"name": "b"}, "op": "u"})),
            (b"", made({"before": ROW, "after": None, "op": "d"})),
            ({"id": 4}, made({"before": None, "after": None, "op": "d"})),
            (b"5", None),
            (b"", made({"op": "t"})),
            (b"", made({"op": "m", "message": {}})),
            (b"", made({"op": "u", "after": None})),
            (b"", made({"op": "c", "after": {"id": 1}})),
            (b"", made({"after": ROW})),
            (b"", b"[]"),
            (b"", made({"op": "c", "after": [1]})),
            (b"", made({"op": "c", "after": ROW, "x": "\ud800"})),
        ],
        "debezium",
    )
    assert triples(found) == [
        (0, False, (1, "a", 2)),
        (1, False, (1, "a", None)),
        (2, False, (1, "b", 2)),
        (3, True, (1, None, None)),
        (4, True, (4, None, None)),
        (5, True, (5, None, None)),
        (13, False, (1, "a", 2)),
    ]
    assert found.bad_rows.tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert "truncation" in found.reasons[0]
    assert "'after'" in found.reasons[2]
    assert "'op'" in found.reasons[4]


def test_a_truncation_before_deletions_of_all_keys_is_no_change() -> None:
    """Its header says so; another one's is bad, as rows would stay."""
    emptied, nothing = {"op": "t", "before": None, "after": None}, ()
    records = [(None, emptied), (b"1", None), (None, emptied)]
    headers = [[("penstock.emptied", b"true")], nothing, [("other", None)]]
    found = changes(records, "debezium", headers=headers)
    assert triples(found) == [(1, True, (1, None, None))]
    assert found.bad_rows.tolist() == [2]


def test_columns_of_json() -> None:
    """Debezium and captures have them as text, others as they are; a large value may be missing."""
    schema = Schema.parse("id INT, p JSON")
    texts = ['{"a": [1.00, 2]}', '"x"', "null", "__debezium_unavailable_value", "no JSON"]
    rows = [{"id": i, "p": text} for i, text in enumerate(texts)] + [{"id": 5, "p": {"a": 1}}]
    expected = ['{"a":[1.00,2]}', '"x"', "null", '"__debezium_unavailable_value"', '{"a":1}']
    for kind, values in (
        ("debezium", [{"op": "c", "before": None, "after": one} for one in rows]),
        ("debezium-precise", [{"payload": {"op": "r", "after": one}} for one in rows]),
        ("flat", rows),
    ):
        found = changes([(None, one) for one in values], kind, schema)
        assert found.columns.column("p").to_pylist() == expected
        assert found.bad_rows.tolist() == [4]
        assert "expected JSON (any value, or the text of one)" in found.reasons[0]
    for kind, values in (
        ("json", rows),
        ("maxwell", [{"type": "insert", "data": one} for one in rows]),
    ):
        found = changes([(None, one) for one in values], kind, schema)
        assert found.columns.column("p").to_pylist() == [
            *(json.dumps(text) for text in texts),
            '{"a":1}',
        ]


def test_maxwell() -> None:
    """Each type; an update that changes the key deletes the old one before."""

    def made(type_: str, data: Any, old: Any = None) -> Any:
        return {"database": "d", "table": "t", "type": type_, "ts": 1, "data": data, "old": old}

    found = changes(
        [
            (b"", made("insert", ROW)),
            (b"", made("update", ROW | {"n": 3}, {"n": 2})),
            (b"", made("update", ROW | {"id": 7}, {"id": 1})),
            (b"", made("delete", ROW)),
            (b"", made("bootstrap-start", {})),
            (b"", made("bootstrap-insert", ROW)),
            (b"", made("bootstrap-complete", {})),
            (b"", made("table-drop", {})),
            (b"", made("update", {"id": 8}, {"id": 1})),
            (b"", {"data": ROW}),
            (b"", {"type": "insert"}),
        ],
        "maxwell",
    )
    assert triples(found) == [
        (0, False, (1, "a", 2)),
        (1, False, (1, "a", 3)),
        (2, True, (1, None, None)),
        (2, False, (7, "a", 2)),
        (3, True, (1, None, None)),
        (5, False, (1, "a", 2)),
    ]
    assert found.bad_rows.tolist() == [7, 8, 9, 10]
    assert "table-drop" in found.reasons[0]


scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
)
value = st.recursive(
    scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
member = st.tuples(st.sampled_from(["op", "after", "o\u0070", "é", 'x"', ""]), value)


@settings(max_examples=examples(200))
@given(
    st.lists(st.one_of(st.lists(member, max_size=4), value), max_size=6),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_members_are_those_that_a_parser_finds(
    rows: list[Any], is_ascii: bool, indent: Any, escapes: bool
) -> None:
    """However objects are spelled; of two of one name the last, and none where it is null."""
    names = ("op", "after", "é")
    texts = []
    for row in rows:
        if isinstance(row, list) and all(isinstance(one, tuple) for one in row):
            pairs = [
                (json.dumps(k, ensure_ascii=is_ascii), json.dumps(v, indent=indent)) for k, v in row
            ]
            text = "{" + " , ".join(f"{k} : {v}" for k, v in pairs) + "}"
            texts.append(text.replace('"op"', '"\\u006fp"') if escapes else text)
        else:
            texts.append(json.dumps(row, indent=indent))
    texts += ["", "{", '{"op":1}x', '{"op":}']
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    buffer = np.frombuffer(b"".join(encoded), np.uint8)
    lengths = np.array([len(one) for one in encoded], np.int32)
    found = MemberFinder(names).find(Texts(buffer, ends[:-1], lengths))
    for i, text in enumerate(texts):
        try:
            wanted = json.loads(text)
        except json.JSONDecodeError:
            wanted = None
        if not isinstance(wanted, dict):
            assert i in found.bad
            continue
        for name in names:
            part = found.of[name]
            mine = json.loads(part.text(i)) if part.known[i] else None
            assert mine == wanted.get(name)
        assert found.others[i] == (not wanted.keys() <= set(names))


def base64_of(value: Decimal, scale: int) -> str:
    """As Kafka Connect's Decimal is written: BigInteger's bytes."""
    number = int(value.scaleb(scale, Context(prec=60)))
    size = (number + (number < 0)).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@given(
    st.lists(
        st.none() | st.decimals(-(10**36) + 1, 10**36 - 1, places=2, allow_nan=False), max_size=20
    )
)
def test_decimals_of_debezium_are_read_from_their_bytes(values) -> None:
    """Of each size and sign; what isn't there is NULL."""
    texts = [None if one is None else base64_of(one, 2) for one in values]
    found, is_one = unscaled_decimals(pa.array(texts, pa.string()), pa.decimal128(38, 2))
    assert is_one.all()
    assert found.to_pylist() == values


def test_decimals_that_are_none_are_bad_records() -> None:
    """Other texts, and numbers that the column doesn't hold; the others aren't touched."""
    texts = [
        "AMg=",
        "",
        "A",
        "AM",
        "AM=g",
        "12.5",
        "A===",
        "D0I/",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        None,
    ]
    found, is_one = unscaled_decimals(pa.array(texts), pa.decimal128(5, 2))
    assert is_one.tolist() == [True, *6 * [False], False, False, True]
    assert (found[0].as_py(), found[9].as_py()) == (Decimal("2.00"), None)


def test_a_table_of_debezium_s_default_decimals() -> None:
    """Rows and keys; deletions, and a row that doesn't fit with its reason."""
    schema = Schema.parse("id DECIMAL(4, 0) NOT NULL, price DECIMAL(6, 2), note STRING")
    some = [
        (
            b'{"id":"AQ=="}',
            b'{"op":"c","before":null,"after":{"id":"AQ==","price":"fQ==","note":"a"}}',
        ),
        (b'{"id":"Ag=="}', b'{"op":"u","after":{"id":"Ag==","price":12.5,"note":"b"}}'),
        (b'{"id":"Aw=="}', b'{"op":"u","after":{"id":"Aw==","price":"fQ=","note":"c"}}'),
        (b'{"id":"AQ=="}', b'{"op":"d","before":{"id":"AQ==","price":null},"after":null}'),
        (b'{"id":"BA=="}', None),
    ]
    found = changes(some, "debezium-precise", schema)
    assert found.columns.column("id").to_pylist() == [1, 1, 4]
    assert found.columns.column("price").to_pylist() == [Decimal("1.25"), None, None]
    assert found.deleted.tolist() == [False, True, True]
    assert found.bad_rows.tolist() == [1, 2]
    assert "expected base64 of a number" in found.reasons[1]
