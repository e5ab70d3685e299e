"""Changes of tables' schemas: what is reported of them, and at which a capture stops."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.capture.table_schemas import Column, Schemas, Shape, Version, differences
from penstock.errors import CorruptError, SetupError

SHAPE = Shape(
    (
        Column("id", "integer", True),
        Column("name", "character varying(9)", True),
        Column("v", "int"),
    ),
    ("id",),
)


def columns(**types: str) -> Shape:
    """A shape; a type that ends with `!` is NOT NULL."""
    made = (Column(name, one.removesuffix("!"), one.endswith("!")) for name, one in types.items())
    return Shape(tuple(made), ("id",))


@pytest.mark.parametrize(
    ("new", "text", "is_breaking"),
    [
        (
            columns(id="integer!", name="text!", v="int"),
            "name: character varying(9) is text",
            False,
        ),
        (columns(id="integer!", name="int!", v="int"), "name: character varying(9) is int", True),
        (columns(id="integer!", name="character varying(9)!"), "v is gone", False),
        (columns(id="integer!", v="int"), "name is gone", True),
        (columns(id="integer!", name="character varying(9)!", w="int"), "v is w now", False),
        (columns(id="integer!", n="character varying(9)!", v="int"), "name is n now", True),
        (columns(id="integer!", name="character varying(9)", v="int"), "can be null now", True),
        (columns(id="integer!", name="character varying(9)!", v="int!"), "can't be null", False),
        (
            columns(id="integer!", name="character varying(9)!", v="int", w="x!"),
            "w x is new",
            False,
        ),
        (Shape(SHAPE.columns, ("id", "name")), "the key (id) is (id, name) now", True),
        (Shape(SHAPE.columns, ()), "the key (id) is none now", True),
    ],
)
def test_each_difference_is_reported_and_breaks_readers_or_not(new, text, is_breaking) -> None:
    """A reader of the former columns may fail where a NOT NULL one is gone, or means something else."""
    [found] = differences(SHAPE, new)
    assert text in found.text
    assert found.is_breaking is is_breaking


def test_a_type_s_name_is_more_than_what_is_before_its_length() -> None:
    """An array of texts isn't a text, and a time without a zone isn't one with it."""
    [found] = differences(SHAPE, columns(id="integer!", name="character varying(9)[]!", v="int"))
    assert found.is_breaking
    types = {
        "timestamp(3) without time zone": ("TIMESTAMP WITHOUT TIME ZONE", 3, 93),
        "time(3) with time zone": ("TIME WITH TIME ZONE", 3, 2013),
        "character varying(9)[]": ("CHARACTER VARYING[]", 9, 1111),
        "decimal(6,2) unsigned": ("DECIMAL UNSIGNED", 6, 2),
        "enum('a\nb','(1)')": ("ENUM('A\nB','(1)')", None, 1111),
    }
    shape = columns(**{f"c{i}": one for i, one in enumerate(types)})
    [(_, record)] = [
        one
        for one in seen(Schemas({}, "versions", "shop", ("mysql", "shop", "db"), "pass"), shape)
        if one[0] == "shop"
    ]
    found = [
        (one["typeName"], one["length"], one["jdbcType"])
        for one in record["tableChanges"][0]["table"]["columns"]
    ]
    assert found == [*types.values()]


def test_a_key_that_was_renamed_is_the_same_key() -> None:
    """Its name is another one, which is reported once."""
    new = Shape((Column("nr", "integer", True), *SHAPE.columns[1:]), ("nr",))
    assert list(differences(SHAPE, new)) == [("id is nr now", True)]


def seen(schemas: Schemas, *shapes: Shape) -> list[tuple[str, Any]]:
    """The records that come of shapes."""
    records: list[tuple[str, Any]] = []

    def put(topic: str, key: Any, value: Any, time_ms: int, headers: Any = ()) -> None:
        records.append((topic, orjson.loads(value)))

    for shape in shapes:
        schemas.see(("public", "t"), shape, 1000, put)
    return records


def test_versions_are_counted_and_reported_as_debezium_reports_them() -> None:
    """The same shape again is no version; columns that the catalog doesn't know any more are as they were."""
    source = ("postgresql", "shop", "db")
    schemas = Schemas({}, "versions", "shop", source, "pass")
    without = Shape((Column("id", "integer", None), *SHAPE.columns[1:]), ("id",))
    wider = Shape((*SHAPE.columns, Column("d", "numeric(6,2)")), ("id",))
    records = seen(schemas, SHAPE, SHAPE, without, wider)
    assert [topic for topic, _ in records] == 2 * ["versions", "shop"]
    assert [value["number"] for topic, value in records if topic == "versions"] == [1, 2]
    assert Version.decoded(orjson.dumps(records[2][1])) == Version(2, wider)
    record = records[3][1]
    assert [*record] == ["source", "ts_ms", "databaseName", "schemaName", "ddl", "tableChanges"]
    assert (record["databaseName"], record["schemaName"]) == ("db", "public")
    [change] = record["tableChanges"]
    assert (change["type"], change["id"]) == ("ALTER", '"db"."public"."t"')
    assert change["table"]["primaryKeyColumnNames"] == ["id"]
    last = change["table"]["columns"][-1]
    assert (last["name"], last["typeName"], last["length"], last["scale"]) == ("d", "NUMERIC", 6, 2)
    assert (last["jdbcType"], last["position"], last["optional"]) == (2, 4, True)


def test_it_stops_before_a_change_at_which_readers_may_fail() -> None:
    """Nothing is written of it, and the message says which it is; what readers needn't know is passed on."""
    schemas = Schemas({}, "versions", None, ("postgresql", "shop", "db"), "stop")
    wider = Shape((*SHAPE.columns, Column("w", "text")), ("id",))
    assert len(seen(schemas, SHAPE, wider)) == 2
    with pytest.raises(SetupError, match=r"public\.t.*found: v: int is text now.*--on-schema"):
        seen(schemas, Shape((*SHAPE.columns[:2], Column("v", "text")), ("id",)))
    assert schemas.known["public.t"].shape == wider


def test_a_record_of_somebody_else_is_reported() -> None:
    """It isn't taken for a version."""
    with pytest.raises(CorruptError, match="expected the version of a table's schema"):
        Version.decoded(b'{"number": 1}')
