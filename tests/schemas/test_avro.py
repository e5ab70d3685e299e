"""Avro schemas: what parses, what is the same, and what a reader can read of a writer's data."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas import Kind, Malformed, parse


def record(*fields: Any, name: str = "r", **more: Any) -> dict[str, Any]:
    """A record of fields, each a name with a type, or a whole field."""
    members = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": name, "fields": members, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "f") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


TREE = record(("value", "int"), ("left", ["null", "r"]))
DEFAULT = {"name": "b", "type": "int", "default": 7}

# reader, writer, what breaks
CASES: list[tuple[Any, Any, list[str]]] = [
    ("int", "int", []),
    *((reader, "int", []) for reader in ("long", "float", "double")),
    *((reader, "long", []) for reader in ("float", "double")),
    ("double", "float", []),
    ("string", "bytes", []),
    ("bytes", "string", []),
    ("int", "long", ["TYPE_MISMATCH at /"]),
    ("float", "double", ["TYPE_MISMATCH at /"]),
    ("boolean", "int", ["TYPE_MISMATCH at /"]),
    ("string", "int", ["TYPE_MISMATCH at /"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
    (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        ["TYPE_MISMATCH at /items"],
    ),
    (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "string"},
        ["TYPE_MISMATCH at /values"],
    ),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH at /"]),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), []),
    (record(("a", "int"), DEFAULT), record(("a", "int")), []),
    (
        record(("a", "int"), ("b", "int")),
        record(("a", "int")),
        ["READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"],
    ),
    (record(("a", "long")), record(("a", "int")), []),
    (record(("a", "int")), record(("a", "long")), ["TYPE_MISMATCH at /fields/0/type"]),
    (record(("a", "int"), name="x"), record(("a", "int")), ["NAME_MISMATCH at /name"]),
    (record(("a", "int"), name="x", aliases=["r"]), record(("a", "int")), []),
    (record(("a", "int"), namespace="n"), record(("a", "int")), []),
    (record({"name": "new", "type": "int", "aliases": ["a"]}), record(("a", "int")), []),
    (enum("A", "B"), enum("A"), []),
    (enum("A"), enum("A", "B"), ["MISSING_ENUM_SYMBOLS at /symbols"]),
    (enum("A", default="A"), enum("A", "B"), []),
    (fixed(4), fixed(4), []),
    (fixed(4), fixed(8), ["FIXED_SIZE_MISMATCH at /size"]),
    (fixed(4), fixed(4, "g"), ["NAME_MISMATCH at /name"]),
    (["null", "int"], "int", []),
    (["null", "long"], "int", []),
    ("int", ["null", "int"], ["TYPE_MISMATCH at /0"]),
    (["null", "int"], ["int", "null"], []),
    (["null", "int"], ["null", "int", "string"], ["MISSING_UNION_BRANCH at /"]),
    (["null", "int"], "string", ["MISSING_UNION_BRANCH at /"]),
    (
        ["null", record(("a", "int"), ("b", "int"))],
        record(("a", "int")),
        ["READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"],
    ),
    (TREE, TREE, []),
    (
        record(("value", "string"), ("left", ["null", "r"])),
        TREE,
        ["TYPE_MISMATCH at /fields/0/type"],
    ),
    (decimal(9, 2), decimal(9, 2), []),
    (decimal(9, 3), decimal(9, 2), ["TYPE_MISMATCH at /"]),
    ("bytes", decimal(9, 2), []),
]


@pytest.mark.parametrize(("reader", "writer", "wanted"), CASES)
def test_a_reader_reads_a_writers_data_by_the_rules_of_resolution(
    reader: Any, writer: Any, wanted: list[str]
) -> None:
    """What breaks is told with rule and place."""
    breaks = parse(Kind.AVRO, json.dumps(reader)).breaks(parse(Kind.AVRO, json.dumps(writer)))
    assert [f"{one.rule} at {one.path or '/'}" for one in breaks] == wanted
    assert all(one.text for one in breaks)


def test_a_comparison_looks_at_each_pair_once() -> None:
    """Optional fields of shared types don't multiply."""

    def chain(leaf: str) -> str:
        nested: Any = record(("x", leaf), name="r30")
        for i in reversed(range(30)):
            again = ["null", f"r{i + 1}"]
            nested = record(("f", ["null", nested]), ("g", again), ("h", again), name=f"r{i}")
        return json.dumps(nested)

    ints, longs, texts = (parse(Kind.AVRO, chain(one)) for one in ("int", "long", "string"))
    assert longs.breaks(ints) == []
    found = ints.breaks(texts)
    assert {one.rule for one in found} == {"MISSING_UNION_BRANCH", "TYPE_MISMATCH"}
    assert len(found) < 100


primitives = st.sampled_from(
    ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
)
simple = primitives | st.lists(primitives, min_size=1, max_size=3, unique=True)
schemas = st.lists(st.tuples(st.sampled_from("abc"), simple), max_size=3, unique_by=lambda f: f[0])
VALUES: dict[str, list[Any]] = {
    "null": [None], "boolean": [True], "int": [1], "long": [1 << 40], "float": [0.5],
    "double": [0.1], "string": ["x"], "bytes": [b"\x01"],
}  # fmt: skip


@given(writer=schemas, reader=schemas)
def test_what_is_compatible_is_read_by_another_reader(writer: list[Any], reader: list[Any]) -> None:
    """Data of every branch that a compatible writer may write is read by fastavro."""
    new, old = record(*reader), record(*writer)
    if parse(Kind.AVRO, json.dumps(new)).breaks(parse(Kind.AVRO, json.dumps(old))):
        return
    for at in range(3):
        row = {}
        for name, type_ in writer:
            branches = type_ if isinstance(type_, list) else [type_]
            row[name] = VALUES[branches[at % len(branches)]][0]
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(old), row)
        fastavro.schemaless_reader(
            io.BytesIO(out.getvalue()), fastavro.parse_schema(old), fastavro.parse_schema(new)
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected an Avro schema as JSON"),
        ('"colour"', "expected a type of Avro, or one that is defined before; found 'colour'"),
        ("7", "expected a type; found 7"),
        ('{"type": "array"}', "expected 'items' of the array"),
        ('["int", "int"]', "expected each type once in a union"),
        ('["int", ["null"]]', "expected no union within a union"),
        ('{"type": "record", "fields": []}', "expected a name of the record"),
        (json.dumps(record(name="a-b")), "expected a name of letters"),
        (json.dumps(record(("a", "int"), ("a", "int"))), "expected one field 'a'"),
        (json.dumps(record(("a", fixed(1)), ("b", fixed(1)))), "expected one definition of f"),
        (json.dumps(record({"name": "a", "type": "int", "default": "x"})), "/fields/0/default"),
        (json.dumps(enum("A", "A")), "expected different symbols"),
        ('{"type": "enum", "name": "e"}', "expected different symbols"),
        ('{"type": "enum", "name": "e", "symbols": [[1]]}', "expected a list of names"),
        (json.dumps(record(aliases=7)), "expected a list of names"),
        (json.dumps(record({"name": "a", "type": "int", "aliases": [1]})), "/fields/0/aliases"),
        (json.dumps(enum("A", default="B")), "expected one of the symbols"),
        (json.dumps(fixed(-1)), "expected a number of bytes"),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, "nested types"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, message: str) -> None:
    """With the place in it."""
    with pytest.raises(Malformed) as caught:
        parse(Kind.AVRO, text)
    assert message in str(caught.value)


def test_a_schemas_text_keeps_all_but_spaces() -> None:
    """The order of attributes too; a normal form has one order, and whole names."""
    text = '{ "name": "r", "namespace": "n", "doc": "ü",\n "type": "record", "fields": [] }'
    found = parse(Kind.AVRO, text)
    assert found.text == '{"name":"r","namespace":"n","doc":"ü","type":"record","fields":[]}'
    assert found.normalized() == '{"name":"n.r","type":"record","fields":[],"doc":"ü"}'
    again = parse(Kind.AVRO, found.normalized())
    assert again.normalized() == found.normalized()


def test_a_schema_names_types_of_others() -> None:
    """Those that are given as references, which may name each other."""
    inner = json.dumps(fixed(4, "n.id"))
    middle = json.dumps(record(("id", "n.id"), name="n.user"))
    outer = json.dumps(record(("who", "n.user"), ("other", "n.id"), name="n.order"))
    parse(Kind.AVRO, outer, [("n.id", inner), ("n.user", middle)])
    with pytest.raises(Malformed):
        parse(Kind.AVRO, outer, [("n.id", inner)])
