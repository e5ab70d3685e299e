"""Kafka Connect's schemas of captured tables, as Confluent's Avro converter writes them. Pure.

    columns of a table  ->  a record `Key` of its key, a record `Envelope` of before, after, source, op, times

Names, types and their attributes (`connect.name`, `connect.version`, `connect.parameters`) are those of
Debezium's connectors with `schema.name.adjustment.mode=avro` and `field.name.adjustment.mode=avro`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import SetupError
from penstock.formats.avro.schemas import avro_name
from penstock.formats.connect.parts import Avro

__all__ = [
    "Avro",
    "Member",
    "array",
    "decimal",
    "envelope",
    "key",
    "named",
    "optional",
    "record",
]

DIGITS_MAX: Final = 64
"""Of a decimal whose column has no precision: Confluent's default."""
_SNAPSHOTS: Final = (
    "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
)
_WRONG: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class Member:
    """A column of a table's records.

    Attributes:
        name: the column's.
        type: of its values.
        is_required: whether it is NOT NULL.
        default: of such a column, as JSON has it; None: there is none.
    """

    name: str
    type: Avro
    is_required: bool = False
    default: Any = None


def named(type_: str, name: str, **parameters: str) -> Avro:
    """A type with a meaning: `io.debezium.time.Date` of an int."""
    attributes = {"connect.parameters": parameters} if parameters else {}
    return {"type": type_, "connect.version": 1, **attributes, "connect.name": name}


def decimal(scale: int, precision: int | None) -> Avro:
    """A decimal; the precision where its column has one."""
    parameters = {} if precision is None else {"connect.decimal.precision": str(precision)}
    return {
        **named("bytes", "org.apache.kafka.connect.data.Decimal", scale=str(scale), **parameters),
        "scale": scale,
        "precision": precision or DIGITS_MAX,
        "logicalType": "decimal",
    }


def array(items: Avro) -> Avro:
    """An array; any of its items may be NULL."""
    return {"type": "array", "items": optional(items)}


def optional(type_: Avro) -> Avro:
    """A type that may be NULL."""
    return ["null", type_]


def record(name: str, fields: Sequence[tuple[str, Avro]], doc: str = "") -> Avro:
    """One of Debezium's records, which has the same name in every table."""
    space, _, own = name.rpartition(".")
    attributes = {"connect.doc": doc} if doc else {}
    return {
        "type": "record",
        "name": own,
        "namespace": space,
        "fields": [_field(one, type_) for one, type_ in fields],
        "connect.version": 1,
        **attributes,
        "connect.name": name,
    }


def key(topic: str, members: Sequence[Member]) -> Avro:
    """The schema of a topic's keys."""
    return _once(_named_record(topic, "Key", _fields(topic, members)), set())


def envelope(topic: str, members: Sequence[Member], connector: str) -> Avro:
    """The schema of a topic's values.

    Args:
        topic: whose.
        members: the table's columns.
        connector: `postgresql`, `mysql` or `mariadb`.

    Raises:
        SetupError: two columns would have one name.
    """
    row = _named_record(topic, "Value", _fields(topic, members))
    row.pop("namespace")  # the envelope's
    block = record(
        "event.block",
        [("id", "string"), ("total_order", "long"), ("data_collection_order", "long")],
    )
    fields = [
        _field("before", optional(row)),
        _field("after", optional("Value")),
        _field("source", _source(connector)),
        _field("transaction", optional(block)),
        _field("op", "string"),
        *(_field(one, optional("long")) for one in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return _once({**_named_record(topic, "Envelope", fields), "connect.version": 2}, set())


def _once(schema: Avro, known: set[str]) -> Avro:
    """A schema that defines each of Debezium's records where it is first, and names it afterwards."""
    match schema:
        case list():
            return [_once(one, known) for one in schema]
        case {"type": "record", "connect.name": name} if name in known:
            return name
        case {"type": "record", "connect.name": name}:
            known.add(name)
            return {**schema, "fields": [_once(one, known) for one in schema["fields"]]}
        case dict():
            inner = ("type", "items")
            return {n: _once(one, known) if n in inner else one for n, one in schema.items()}
    return schema


def _named_record(topic: str, name: str, fields: list[Avro]) -> Avro:
    space = avro_name(topic)
    return {
        "type": "record",
        "name": name,
        "namespace": space,
        "fields": fields,
        "connect.name": f"{space}.{name}",
    }


def _fields(topic: str, members: Sequence[Member]) -> list[Avro]:
    found = []
    for one in members:
        name = _WRONG.sub("_", one.name)
        name = f"_{name}" if name[:1].isdigit() or not name else name
        field = _field(name, one.type if one.is_required else optional(one.type))
        if one.is_required and one.default is not None:
            field["default"] = one.default
        found.append(field)
    names = [one["name"] for one in found]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise SetupError(
            f"expected columns for {topic} whose names differ in letters, digits and '_', as Avro's do; "
            f"found more than one for {', '.join(twice)}. Rename them, or write JSON: format='debezium'"
        )
    return found


def _field(name: str, type_: Avro) -> Avro:
    null = {"default": None} if isinstance(type_, list) and type_[0] == "null" else {}
    return {"name": name, "type": type_, **null}


def _source(connector: str) -> Avro:
    snapshot = named("string", "io.debezium.data.Enum", allowed=_SNAPSHOTS)
    number, text = optional("long"), optional("string")
    fields: list[tuple[str, Avro]] = [
        *((one, "string") for one in ("version", "connector", "name")),
        ("ts_ms", "long"),
        ("snapshot", [{**snapshot, "connect.default": "false"}, "null"]),
        ("db", "string"),
        ("sequence", text),
        *((one, number) for one in ("ts_us", "ts_ns")),
    ]
    if connector == "postgresql":
        fields += [("schema", "string"), ("table", "string")]
        fields += [(one, number) for one in ("txId", "lsn", "xmin")]
        fields += [("origin", text), ("origin_lsn", number)]
    else:
        fields += [("table", text), ("server_id", "long"), ("gtid", text), ("file", "string")]
        fields += [("pos", "long"), ("row", "int"), ("thread", number), ("query", text)]
    made = record(f"io.debezium.connector.{connector}.Source", fields)
    for one in made["fields"]:
        if one["name"] == "snapshot":
            one["default"] = "false"
    return made
