"""Columns of type JSON: any value as its text, from every format and back, beside Python's `json`."""

from __future__ import annotations

import json
from typing import Any, Final

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import JSON, Schema
from penstock.errors import SchemaError
from penstock.formats.avro import Avro, AvroDecoder, AvroEncoder, headed
from penstock.formats.json import Decoded, JsonDecoder, encode_rows
from penstock.formats.lines import Csv, decoder_for
from penstock.formats.payloads import normalised
from penstock.formats.payloads.spelling import items, members
from penstock.formats.protobuf import FIRST_MESSAGE, ProtobufDecoder, ProtobufEncoder
from penstock.formats.registered.json_schema import JsonSchemaEncoder

DOCUMENTS: Final = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["\\", '"', ' " ', "a\\", '\\\\"', "{", "], [", "é😀\u2028", "\x00\x7f"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
SPACED: Final = (
    {"separators": (",", ":")},
    {},
    {"indent": "\t \r"},
    {"separators": (" , ", "\n:\t"), "ensure_ascii": False},
)
BAD: Final = (
    b'{"a":', b'{"a":1', b"[1,]", b"[,1]", b'{"a" 1}', b"{'a':1}", b"NaN", b"-Infinity", b"01", b"1.", b".5",
    b"+1", b"tru", b'"a', b'"a\tb"', b'"\\x"', b'"\\ud800"', b'{"\\udc00":1}', b'"\xff"',
    b"[" * 64 + b"]" * 64, b"1 2", b"/**/1", b"",
)  # fmt: skip


def decode(
    rows: list[bytes], schema: str = "id INT, p JSON", embedded: tuple[str, ...] = ()
) -> Decoded:
    return JsonDecoder(Schema.parse(schema), embedded=embedded).decode(*taken(rows))


def row(document: bytes, head: bytes = b'"id": 1') -> bytes:
    return b"{" + head + b',"p": ' + document + b" }"


def tight(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


@given(st.lists(DOCUMENTS, min_size=1, max_size=5), st.sampled_from(SPACED))
def test_a_document_is_its_text_without_space(documents: list[Any], spaced: Any) -> None:
    """However it is spaced; the fast and the slow way give the same; it is written as it is."""
    texts = [json.dumps(one, **spaced) for one in documents]
    loose = dict(spaced, separators=(",", ":"))
    loose.pop("indent", None)
    expected = [None if one is None else json.dumps(one, **loose) for one in documents]
    for head in (b'"id": 1', b'"i\\u0064":1', b'"id":2,"id":1', b'"p":[3],"id":1'):
        found = decode([row(text.encode(), head) for text in texts])
        assert found.reasons == []
        assert found.columns.column("p").to_pylist() == expected
        assert found.columns.column("p").type == JSON
        written = encode_rows(pa.Table.from_batches([found.columns])).to_pylist()
        assert written == [f'{{"id":1,"p":{one or "null"}}}' for one in expected]
        assert [json.loads(one)["p"] for one in written] == documents


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.sampled_from(SPACED))
def test_strings_of_debezium_have_the_document(documents: list[Any], spaced: Any) -> None:
    """A column of JSON is text within an envelope, or the value itself; and is written as text."""
    texts = [json.dumps(one, **spaced) for one in documents]
    rows = [row(json.dumps(text).encode()) for text in texts]
    found = decode(rows, embedded=("p",))
    assert found.reasons == []
    assert [json.loads(one) for one in found.columns.column("p").to_pylist()] == documents
    whole = [one for one in [*documents, 1] if not isinstance(one, str)]
    found = decode([row(tight(one).encode()) for one in whole], embedded=("p",))
    assert [json.loads(one or "null") for one in found.columns.column("p").to_pylist()] == whole


@given(st.lists(DOCUMENTS, max_size=4), st.sampled_from(SPACED))
def test_parts_of_a_document_are_found_as_they_are_spelled(
    documents: list[Any], spaced: Any
) -> None:
    """Members and items, in their order."""
    assert [json.loads(one) for one in items(json.dumps(documents, **spaced))] == documents
    named = {str(i): one for i, one in enumerate(documents)}
    assert {n: json.loads(one) for n, one in members(json.dumps(named, **spaced))} == named


@pytest.mark.parametrize(
    "document",
    [
        "1.00",
        "1e400",
        "-0",
        "0.1e-7",
        "9" * 5_000,
        '{"a":1,"a":2}',
        '"\\u0041\\/"',
        '"\\ud83d\\ude00"',
    ],
)
def test_a_document_stays_as_it_is_spelled(document: str) -> None:
    """Digits, escapes and members that occur twice, by the fast way and the slow one."""
    for head in (b'"id": 1', b'"i\\u0064": 1'):
        assert decode([row(document.encode(), head)]).columns.column("p").to_pylist() == [document]


@pytest.mark.parametrize("document", BAD)
def test_what_is_no_document_is_a_bad_row(document: bytes) -> None:
    """Cut, too deep, with numbers that JSON lacks, or halves of characters; other rows are read."""
    found = decode([row(b"1"), row(document), row(b"2")])
    assert found.bad_rows.tolist() == [1]
    assert found.columns.column("p").to_pylist() == ["1", "2"]
    text = document.decode(errors="replace")
    if "\ufffd" not in text and document:
        _, wrong = normalised(pa.array(["1", text, None]))
        assert wrong.tolist() == [False, True, False]
        embedded = decode([row(json.dumps(text).encode())], embedded=("p",))
        assert [one[:45] for one in embedded.reasons] == [
            "field 'p': expected JSON (any value, or the t"
        ]


def test_null_is_no_document() -> None:
    """A member that is null or missing is NULL, and refused by NOT NULL; text of Debezium may say null."""
    found = decode([row(b"null"), b'{"id":1}', row(b"[null]")])
    assert found.columns.column("p").to_pylist() == [None, None, "[null]"]
    assert decode([row(b"null")], "p JSON NOT NULL").bad_rows.tolist() == [0]
    assert decode([row(b'"null"'), row(b"null")], embedded=("p",)).columns.column(
        "p"
    ).to_pylist() == [
        "null",
        None,
    ]


def test_documents_within_arrays_objects_and_maps() -> None:
    """Each is the text of its value; written back, the row is the same."""
    schema = "l ARRAY<JSON>, s STRUCT<j JSON, n INT>, m MAP<STRING, JSON>, d ARRAY<STRUCT<j JSON>>"
    text = '{"l":[{"a":1.00},null,"x"],"s":{"j":[1, 2],"n":3},"m":{"k":{"b" :true}},"d":[{"j":1e2},{}]}'
    found = decode([text.encode()], schema)
    assert found.columns.to_pylist(maps_as_pydicts="strict") == [
        {
            "l": ['{"a":1.00}', None, '"x"'],
            "s": {"j": "[1,2]", "n": 3},
            "m": {"k": '{"b":true}'},
            "d": [{"j": "1e2"}, {"j": None}],
        }
    ]
    (written,) = encode_rows(pa.Table.from_batches([found.columns])).to_pylist()
    assert written == text.replace(" ", "").replace("{}]", '{"j":null}]')
    assert decode([b'{"s":{"j":"\\ud800"}}'], schema).bad_rows.tolist() == [0]
    assert decode([b'{"l":{"a":1}}'], schema).bad_rows.tolist() == [0]


def test_text_that_is_no_json_is_written_as_text() -> None:
    """Whatever a column of the type has: a record is valid JSON."""
    column = pa.array(['{"a":1}', "plain", 'a "b', None, "[1"], JSON)
    assert [json.loads(one)["p"] for one in encode_rows(pa.table({"p": column})).to_pylist()] == [
        {"a": 1}, "plain", 'a "b', None, "[1",
    ]  # fmt: skip


def test_csv_has_documents_as_text() -> None:
    """What is none is a bad line with its reason; nothing is NULL."""
    lines = [b'1,"{""a"": [1, 2]}"', b"2,text", b"3,", b"4,12.50", b"5, null"]
    decoder = decoder_for(Schema.parse("id INT, p JSON"), Csv())
    found = decoder.decode(*taken(lines))
    assert found.columns.column("p").to_pylist() == ['{"a":[1,2]}', None, "12.50", "null"]
    assert found.reasons == ["column 'p': expected JSON; found 'text'"]


def test_the_type_has_a_name() -> None:
    """In schemas, also within others; what other systems call so is proposed."""
    text = "p JSON NOT NULL, l ARRAY<JSON>, s STRUCT<j JSON>"
    assert Schema.parse(text).text == text
    assert Schema.parse("p json").arrow.field("p").type == JSON
    with pytest.raises(SchemaError, match="JSON instead of JSONB"):
        Schema.parse("p JSONB")


def whole(found: Decoded) -> list[Any]:
    return found.columns.column("p").to_pylist()


def taken(records: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where records lie: buffer, starts, lengths."""
    length = np.array([len(one) for one in records], np.int32)
    start = np.cumsum(length, dtype=np.int64) - length
    return np.frombuffer(b"".join(records), np.uint8), start, length


@given(st.lists(DOCUMENTS, max_size=5), st.sampled_from(SPACED))
def test_schemas_of_a_registry_have_documents(documents: list[Any], spaced: Any) -> None:
    """Avro and Protobuf as text, JSON Schema as the value; each reads what it writes."""
    schema = Schema.parse("p JSON")
    made, _ = normalised(
        pa.array(
            [None if one is None else json.dumps(one, **spaced) for one in documents], pa.string()
        )
    )
    rows = pa.table({"p": made})
    expected = made.to_pylist()
    avro = AvroEncoder(schema, "Value", "shop")
    found = AvroDecoder(schema, Avro(((None, avro.text),))).decode(
        *taken(avro.encode(rows).to_pylist())
    )
    assert whole(found) == expected
    proto = ProtobufEncoder(schema, "Value", "shop")
    head = headed(7) + FIRST_MESSAGE
    records = proto.encode(rows, head).to_pylist()
    assert whole(ProtobufDecoder(schema, {7: proto.text}.get).decode(*taken(records))) == expected
    written = JsonSchemaEncoder(schema, "Value")
    jsonschema.Draft7Validator.check_schema(json.loads(written.text))
    validator = jsonschema.Draft7Validator(json.loads(written.text))
    values = [json.loads(one) for one in written.encode(rows).to_pylist()]
    assert [one["p"] for one in values] == documents
    for value in values:
        validator.validate(value)


def test_strings_that_are_no_documents_are_bad_records() -> None:
    """In Avro and Protobuf; but Debezium's placeholder for a value that didn't change is a text."""
    texts = pa.table({"p": ["[1, 2]", "text", None, "__debezium_unavailable_value", "null"]})
    expected = ["[1,2]", None, '"__debezium_unavailable_value"', "null"]
    strings, schema = Schema.parse("p STRING"), Schema.parse("p JSON")
    avro = AvroEncoder(strings, "Value", "shop")
    records = avro.encode(texts).to_pylist()
    found = AvroDecoder(schema, Avro(((None, avro.text),))).decode(*taken(records))
    assert (whole(found), found.bad_rows.tolist()) == (expected, [1])
    assert found.reasons == ["field 'p': expected JSON as text; found 'text'"]
    proto = ProtobufEncoder(strings, "Value", "shop")
    records = proto.encode(texts, headed(7) + FIRST_MESSAGE).to_pylist()
    found = ProtobufDecoder(schema, {7: proto.text}.get).decode(*taken(records))
    assert (whole(found), found.bad_rows.tolist()) == (expected, [1])
    assert "expected JSON as text" in found.reasons[0]
