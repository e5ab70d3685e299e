"""JSON Schemas: what parses, and when a reader takes every document of a writer's."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas import Kind, Malformed, parse


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


INT, TEXT, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}

# reader, writer, what breaks
CASES: list[tuple[Any, Any, list[str]]] = [
    (INT, INT, []),
    (NUMBER, INT, []),
    (INT, NUMBER, ["TYPE_NARROWED at /type"]),
    (INT, TEXT, ["TYPE_CHANGED at /type"]),
    ({"type": ["integer", "null"]}, INT, []),
    (INT, {"type": ["integer", "null"]}, ["TYPE_NARROWED at /type"]),
    (True, INT, []),
    ({}, INT, []),
    (False, INT, ["TYPE_NARROWED at /"]),
    (INT, {}, ["TYPE_NARROWED at /type"]),
    ({"enum": [1, 2]}, {"enum": [1]}, []),
    ({"enum": [1]}, {"enum": [1, 2]}, ["ENUM_ARRAY_NARROWED at /enum"]),
    ({"enum": [1]}, {"enum": [True]}, ["ENUM_ARRAY_NARROWED at /enum"]),
    ({"enum": [1]}, INT, ["ENUM_ARRAY_NARROWED at /enum"]),
    (INT, {"const": 1}, []),
    (TEXT, {"const": 1}, ["TYPE_NARROWED at /type"]),
    (INT, {**INT, "minimum": 1}, []),
    ({**INT, "minimum": 1}, INT, ["LIMIT_NARROWED at /minimum"]),
    ({**INT, "maximum": 9}, {**INT, "maximum": 5}, []),
    ({**INT, "maximum": 5}, {**INT, "maximum": 9}, ["LIMIT_NARROWED at /maximum"]),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 9}, ["LIMIT_NARROWED at /maxLength"]),
    ({**INT, "multipleOf": 2}, {**INT, "multipleOf": 4}, []),
    ({**INT, "multipleOf": 4}, {**INT, "multipleOf": 2}, ["MULTIPLE_OF_NARROWED at /multipleOf"]),
    ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, ["PATTERN_CHANGED at /pattern"]),
    (TEXT, {**TEXT, "pattern": "b"}, []),
    ({**TEXT, "title": "x"}, TEXT, []),
    (closed(a=INT, b=INT), closed(a=INT), []),
    (
        closed(a=INT),
        closed(a=INT, b=INT),
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL at /properties/b"],
    ),
    (
        opened(a=INT, b=INT),
        opened(a=INT),
        ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at /properties/b"],
    ),
    (opened(a=INT, b={}), opened(a=INT), []),
    (opened(a=INT), opened(a=INT, b=INT), []),
    (
        closed(("a", "b"), a=INT, b=INT),
        closed(("a",), a=INT, b=INT),
        ["REQUIRED_ATTRIBUTE_ADDED at /required"],
    ),
    (closed(a=INT, b=INT), closed(("a",), a=INT, b=INT), []),
    (
        closed(a=INT),
        opened(a=INT),
        ["ADDITIONAL_PROPERTIES_NARROWED at /additionalProperties"],
    ),
    (closed(a=closed(b=TEXT)), closed(a=closed(b=INT)), ["TYPE_CHANGED at /properties/a/properties/b/type"]),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INT}, []),
    (
        {"type": "array", "items": INT},
        {"type": "array", "items": TEXT},
        ["TYPE_CHANGED at /items/type"],
    ),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, ["UNIQUE_ITEMS_ADDED at /uniqueItems"]),
    ({"oneOf": [INT, TEXT]}, INT, []),
    ({"oneOf": [INT, TEXT]}, {"oneOf": [INT]}, []),
    ({"oneOf": [INT]}, {"oneOf": [INT, TEXT]}, ["SUM_TYPE_NARROWED at /oneOf/1"]),
    ({"anyOf": [INT, TEXT]}, {"type": "null"}, ["SUM_TYPE_NARROWED at /anyOf"]),
    ({"allOf": [INT, {"maximum": 5}]}, {**INT, "maximum": 4}, []),
    ({"allOf": [INT, {"maximum": 5}]}, INT, ["LIMIT_NARROWED at /allOf/1/maximum"]),
    ({**INT, "maximum": 5}, {"allOf": [INT, {"maximum": 4}]}, []),
    ({"not": INT}, TEXT, ["NOT_CHANGED at /not"]),
    (
        closed(),
        {**closed(), "patternProperties": {"^x": INT}},
        ["ADDITIONAL_PROPERTIES_NARROWED at /additionalProperties"],
    ),
    (
        {**closed(xa=TEXT), "patternProperties": {"^x": INT}},
        {**closed(), "patternProperties": {"^x": INT}},
        ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at /properties/xa"],
    ),
    (
        {**closed(), "patternProperties": {"^x": INT}},
        {**closed(xa=INT, b=INT), "patternProperties": {"^x": INT}},
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL at /properties/b"],
    ),
    ({"type": "array"}, {"type": "array", "prefixItems": [INT]}, []),
    (
        {"type": "array", "items": TEXT},
        {"type": "array", "prefixItems": [INT], "items": TEXT},
        ["ITEMS_CHANGED at /items"],
    ),
    ({"$ref": "#/$defs/n", "$defs": {"n": NUMBER}}, INT, []),
    ({"$ref": "#/$defs/n", "$defs": {"n": INT}}, TEXT, ["TYPE_CHANGED at /type"]),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "wanted"), CASES)
def test_a_reader_takes_a_writers_documents(reader: Any, writer: Any, wanted: list[str]) -> None:
    """What breaks is told with rule and place."""
    breaks = parse(Kind.JSON, json.dumps(reader)).breaks(parse(Kind.JSON, json.dumps(writer)))
    assert [f"{one.rule} at {one.path or '/'}" for one in breaks] == wanted
    assert all(one.text for one in breaks)


def test_schemas_that_name_themselves_are_compared() -> None:
    """A list of lists is what it was, and breaks where its members do."""
    tree = closed(value=INT, next={"$ref": "#"})
    other = closed(value=TEXT, next={"$ref": "#"})
    same = parse(Kind.JSON, json.dumps(tree))
    assert same.breaks(parse(Kind.JSON, json.dumps(tree))) == []
    [found] = same.breaks(parse(Kind.JSON, json.dumps(other)))
    assert found.path == "/properties/value/type"


def test_what_is_made_while_comparing_is_reported_apart() -> None:
    """Schemas without one keyword come and go; none is taken for one that was compared before."""

    def alike(last: str) -> str:
        kinds = ["string"] * 7 + [last]
        parts = {
            f"p{i}": {"allOf": [{"minLength": 0}], "type": kind} for i, kind in enumerate(kinds)
        }
        return json.dumps(closed(**parts))

    [found] = parse(Kind.JSON, alike("string")).breaks(parse(Kind.JSON, alike("integer")))
    assert found.path == "/properties/p7/type"


def test_a_comparison_looks_at_each_pair_once() -> None:
    """Optional members that are shared don't multiply."""

    def chain(leaf: Any) -> str:
        parts = {"R25": closed(x=leaf)}
        for i in range(25):
            one = {"oneOf": [{"type": "null"}, {"$ref": f"#/$defs/R{i + 1}"}]}
            parts[f"R{i}"] = closed(f=one, g=dict(one), h={**one, "title": "h"})
        return json.dumps({"$ref": "#/$defs/R0", "$defs": parts})

    ints, numbers, texts = (parse(Kind.JSON, chain(one)) for one in (INT, NUMBER, TEXT))
    assert numbers.breaks(ints) == []
    assert ints.breaks(texts)


leaves = st.sampled_from(
    [INT, TEXT, NUMBER, {"type": ["null", "integer"]}, {"enum": [1, "x", None]}, {**INT, "maximum": 3},
     {**TEXT, "maxLength": 1}, {"oneOf": [TEXT, {"type": "null"}]}, True]
)  # fmt: skip
objects = st.builds(
    lambda properties, needed, more: {
        "type": "object",
        "properties": properties,
        "required": sorted(needed),
        "additionalProperties": more,
    },
    st.dictionaries(st.sampled_from("ab"), leaves, max_size=2),
    st.sets(st.sampled_from("ab")),
    st.sampled_from([True, False, INT]),
)
values = st.sampled_from([1, 5, 2.5, "x", "xyz", None, True])
documents = values | st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(reader=leaves | objects, writer=leaves | objects, some=st.lists(documents, min_size=5))
def test_what_is_compatible_is_taken_by_another_validator(
    reader: Any, writer: Any, some: list[Any]
) -> None:
    """No document of the writer's is one that a compatible reader refuses."""
    if parse(Kind.JSON, json.dumps(reader)).breaks(parse(Kind.JSON, json.dumps(writer))):
        return
    mine, theirs = (jsonschema.Draft202012Validator(one) for one in (reader, writer))
    assert [one for one in some if theirs.is_valid(one) and not mine.is_valid(one)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a JSON Schema"),
        ("[]", "expected a schema (an object, true or false)"),
        ('{"type": "text"}', "expected one of array"),
        ('{"type": [["array"]]}', "expected one of array"),
        ('{"properties": []}', "expected schemas by name"),
        ('{"required": [[1]]}', "expected a list of names"),
        ('{"enum": 5}', "expected a list of values"),
        ('{"oneOf": {}}', "expected a list of schemas"),
        ('{"minimum": "1"}', "expected a number"),
        ('{"$ref": "#/$defs/x"}', "expected what exists"),
        ('{"$ref": "other.json"}', "expected a part of this schema, or a reference"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, message: str) -> None:
    """With the place in it."""
    with pytest.raises(Malformed) as caught:
        parse(Kind.JSON, text)
    assert message in str(caught.value)


def test_a_schema_points_to_references() -> None:
    """By the names under which they are given."""
    outer = '{"type": "object", "properties": {"a": {"$ref": "id.json"}}}'
    mine = parse(Kind.JSON, outer, [("id.json", '{"type": "integer"}')])
    theirs = parse(Kind.JSON, outer, [("id.json", '{"type": "string"}')])
    assert [one.rule for one in mine.breaks(theirs)] == ["TYPE_CHANGED"]
