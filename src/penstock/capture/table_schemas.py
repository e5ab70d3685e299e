"""What tables look like, version by version: what a change of a table's schema changes, and its records.

    columns and key as the database has them  ->  a version of the table, where they are new
                                                ->  Debezium's record of it, for the topic of schema changes

A version is stored in a compacted topic by table, in the transaction of the records that have it. So after a
kill the next process knows which one they have. Pure: records go to `put`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from penstock.capture.connect import Member
from penstock.capture.envelope import Put, version_text
from penstock.errors import CorruptError, SetupError, UserError

__all__ = [
    "Column",
    "Difference",
    "OnSchemaChange",
    "Schemas",
    "Shape",
    "TableName",
    "Version",
    "differences",
    "spelled",
    "unspelled",
]

TableName: TypeAlias = tuple[str, str]
"""Schema and name; no schema where the database has none."""
_SPELLED: Final = re.compile(
    r"""(?:("(?:[^"]|"")+"|`(?:[^`]|``)+`)\.|([^."`][^.]*)\.)?(.+)""", re.DOTALL
)
OnSchemaChange: TypeAlias = Literal["pass", "stop"]
_TEXTS: Final = frozenset(
    (
        "text",
        "character varying",
        "varchar",
        "character",
        "char",
        "tinytext",
        "mediumtext",
        "longtext",
    )
)
_SIZES: Final = re.compile(r"([^(]+)(?:\((\d+)(?:,\s*(-?\d+))?\))?(.*)", re.DOTALL)
"""A type's name, its length, its scale, and the rest of its name."""
_JDBC: Final = {
    **dict.fromkeys(("bigint", "oid", "int8"), -5),
    **dict.fromkeys(("integer", "int", "mediumint", "year"), 4),
    **dict.fromkeys(("smallint", "tinyint"), 5),
    **dict.fromkeys(("numeric", "decimal", "money"), 2),
    **dict.fromkeys(("real", "float"), 7),
    **dict.fromkeys(("double precision", "double"), 8),
    **dict.fromkeys(("boolean", "bit"), -7),
    **dict.fromkeys(("character", "char"), 1),
    **dict.fromkeys(("date",), 91),
    **dict.fromkeys(("time", "time without time zone"), 92),
    **dict.fromkeys(("time with time zone",), 2013),
    **dict.fromkeys(("datetime", "timestamp without time zone"), 93),
    **dict.fromkeys(("timestamp", "timestamp with time zone"), 2014),
    **dict.fromkeys(
        ("bytea", "blob", "longblob", "mediumblob", "tinyblob", "varbinary", "binary"), -2
    ),
    **dict.fromkeys(_TEXTS - {"character", "char"}, 12),
}
"""The numbers of java.sql.Types, as Debezium's records have them."""
_OTHER: Final = 1111
_log = logging.getLogger(__name__)


def spelled(table: TableName) -> str:
    """A table's name as text: another one for each table. A schema with dots is quoted.

    >>> spelled(("public", "users")), spelled(("", "users")), spelled(("my.db", "users"))
    ('public.users', 'users', '"my.db".users')
    """
    schema, name = table
    if "." in schema or schema.startswith('"'):
        schema = '"' + schema.replace('"', '""') + '"'
    return f"{schema}.{name}" if schema else name


def unspelled(text: str, schema: str = "") -> TableName:
    """A table, or a pattern of tables, of a text. MySQL's quotes are the same.

    Args:
        text: the name.
        schema: that is meant where the text has none.

    Raises:
        UserError: it has a quote without an end.

    >>> unspelled('"my.db".users'), unspelled("public.users"), unspelled("users", "my.db")
    (('my.db', 'users'), ('public', 'users'), ('my.db', 'users'))
    """
    found = _SPELLED.fullmatch(text)
    if found is None:
        raise UserError(f"expected a table such as 'public.users'; found {text!r}")
    quoted, plain, name = found.groups()
    if quoted:
        return quoted[1:-1].replace(2 * quoted[0], quoted[0]), name
    return (schema if plain is None else plain), name


@dataclass(frozen=True)
class Column:
    """A column: its name, its type as the database spells it, whether it is NOT NULL; None: as it was."""

    name: str
    type: str
    is_required: bool | None = False


@dataclass(frozen=True)
class Shape:
    """A table's columns in order, and the columns that its records are keyed by.

    Attributes:
        members: the columns that records have, for schemas of Avro; not stored.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    members: tuple[Member, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Version:
    """A version of a table's schema.

    Attributes:
        number: 1 is the first.
        shape: what the table looks like.
        topic: that its records went to, where the capture was dropped; else empty.
    """

    number: int
    shape: Shape
    topic: str = ""

    def encoded(self) -> bytes:
        """As a record's value."""
        shape = {"columns": [asdict(one) for one in self.shape.columns], "key": self.shape.key}
        return orjson.dumps({"number": self.number, "shape": shape, "topic": self.topic})

    @staticmethod
    def decoded(value: bytes) -> Version:
        """Reads it.

        Raises:
            CorruptError: another program has written to the topic.
        """
        try:
            found = orjson.loads(value)
            shape = found["shape"]
            columns = tuple(Column(**one) for one in shape["columns"])
            topic = str(found.get("topic", ""))
            return Version(int(found["number"]), Shape(columns, tuple(shape["key"])), topic)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError(
                f"expected the version of a table's schema; found {value[:60]!r} ({error}). Something else "
                "writes to its topic: choose another name"
            ) from None


class Difference(NamedTuple):
    """What is different, and whether readers of the former shape may fail at the new one."""

    text: str
    is_breaking: bool


def differences(old: Shape, new: Shape) -> Iterator[Difference]:
    """What a new shape changes.

    A column with another name and the same type in the same place was renamed; for readers it is one that is
    gone and one that is new.

    >>> one = Shape((Column("id", "integer", True), Column("v", "integer")), ("id",))
    >>> two = Shape((Column("id", "bigint", True), Column("w", "integer")), ("id",))
    >>> [one.text for one in differences(one, two)]
    ['id: integer is bigint now', 'v is w now']
    """
    before = {one.name: one for one in old.columns}
    after = {one.name: one for one in new.columns}
    renamed: dict[str, str] = {}
    if len(before) == len(after):
        pairs = zip(old.columns, new.columns, strict=True)
        renamed = {
            a.name: b.name
            for a, b in pairs
            if a.name not in after and b.name not in before and a.type == b.type
        }
    for name, one in before.items():
        if name in renamed:
            yield Difference(f"{name} is {renamed[name]} now", bool(one.is_required))
        elif (other := after.get(name)) is None:
            yield Difference(f"{name} is gone", bool(one.is_required))
        elif one.type != other.type:
            is_text = _base(one.type) in _TEXTS and _base(other.type) in _TEXTS
            yield Difference(f"{name}: {one.type} is {other.type} now", not is_text)
        elif one.is_required != other.is_required:
            change = "can't be null now" if other.is_required else "can be null now"
            yield Difference(f"{name} {change}", bool(one.is_required))
    for name, one in after.items():
        if name not in before and name not in renamed.values():
            yield Difference(f"{name} {one.type} is new", is_breaking=False)
    if old.key != new.key and tuple(renamed.get(one, one) for one in old.key) != new.key:
        yield Difference(f"the key {_listed(old.key)} is {_listed(new.key)} now", is_breaking=True)


class Schemas:
    """The tables' versions, of one session.

    Args:
        known: by table.
        topic: where versions are stored.
        changes: Debezium's topic of schema changes; None: none.
        source: of the records there: connector, name, database.
        on_change: `stop` at a change at which readers may fail, or `pass` it on.
    """

    def __init__(
        self,
        known: Mapping[str, Version],
        topic: str,
        changes: str | None,
        source: tuple[str, str, str],
        on_change: OnSchemaChange,
    ) -> None:
        self.known, self._topic, self.changes = dict(known), topic, changes
        self._connector, self._name, self._database = source
        self._stops = on_change == "stop"

    def see(
        self,
        table: tuple[str, str],
        shape: Shape,
        time_ms: int,
        put: Put,
        *,
        is_reported: bool = False,
    ) -> bool:
        """A table's records look like this from here on; whether that is new.

        Args:
            table: schema and name.
            shape: its.
            time_ms: of the change, since 1970.
            put: takes records.
            is_reported: whether a record of the statement says it.

        Raises:
            SetupError: readers may fail at it, and it is to stop then.
        """
        name = spelled(table)
        known = self.known.get(name)
        shape = _completed(shape, None if known is None else known.shape)
        if known is not None and known.shape == shape:
            return False
        version = Version(1 if known is None else known.number + 1, shape)
        if known is not None:
            self._look(name, version, [*differences(known.shape, shape)])
        self.known[name] = version
        put(self._topic, name.encode(), version.encoded(), time_ms)
        if not is_reported:
            self.report(table, "CREATE" if known is None else "ALTER", shape, time_ms, put)
        return True

    def report(
        self,
        table: tuple[str, str],
        what: str,
        shape: Shape | None,
        time_ms: int,
        put: Put,
        *,
        ddl: str | None = None,
        source: bytes = b"",
    ) -> None:
        """Writes Debezium's record of a change.

        Args:
            table: schema and name; no name where the statement is of no table.
            what: `CREATE`, `ALTER` or `DROP`.
            shape: what the table looks like now; None where it is gone.
            time_ms: of the change, since 1970.
            put: takes it.
            ddl: the statement, where the database has it.
            source: the block, as JSON; by default one without a position.
        """
        if self.changes is None:
            return
        schema, name = table
        database = schema if self._connector != "postgresql" and schema else self._database
        changes = []
        if name:
            parts = [database, *([schema] if schema != database and schema else []), name]
            listed = ".".join(f'"{one}"' for one in parts)
            changes.append({"type": what, "id": listed, "table": _described(shape)})
        value = {
            "source": orjson.Fragment(source or self._source(table, time_ms)),
            "ts_ms": time_ms,
            "databaseName": database,
            "schemaName": schema if schema != database and schema else None,
            "ddl": ddl,
            "tableChanges": changes,
        }
        put(self.changes, orjson.dumps({"databaseName": database}), orjson.dumps(value), time_ms)

    def _look(self, name: str, version: Version, found: Sequence[Difference]) -> None:
        changes = "; ".join(one.text for one in found) or "the order of its columns"
        if self._stops and (bad := [one.text for one in found if one.is_breaking]):
            raise SetupError(
                f"expected {name} to have columns that its readers know; found: {'; '.join(bad)}. Nothing of "
                "it was written. Change what reads the topic, then pass it on: on_schema_change='pass' "
                "(--on-schema-change pass)"
            )
        _log.warning("%s: version %d of its schema: %s", name, version.number, changes)

    def _source(self, table: tuple[str, str], time_ms: int) -> bytes:
        return orjson.dumps(
            {
                "version": version_text(),
                "connector": self._connector,
                "name": self._name,
                "ts_ms": time_ms,
                "snapshot": "false",
                "db": self._database,
                "sequence": None,
                "ts_us": time_ms * 1000,
                "ts_ns": time_ms * 1_000_000,
                **({"schema": table[0]} if table[0] else {}),
                "table": table[1],
            }
        )


def _described(shape: Shape | None) -> dict[str, Any] | None:
    """A table as Debezium's records have it; what isn't known is null."""
    if shape is None:
        return None
    columns = []
    for i, one in enumerate(shape.columns):
        name, length, scale = _parts(one.type)
        columns.append(
            {
                "name": one.name,
                "jdbcType": _JDBC.get(_base(one.type), _OTHER),
                "nativeType": None,
                "typeName": name.upper(),
                "typeExpression": name.upper(),
                "charsetName": None,
                "length": length and int(length),
                "scale": scale and int(scale),
                "position": i + 1,
                "optional": not one.is_required,
                "autoIncremented": False,
                "generated": False,
                "comment": None,
                "defaultValueExpression": None,
                "enumValues": None,
            }
        )
    return {
        "defaultCharsetName": None,
        "primaryKeyColumnNames": [*shape.key],
        "columns": columns,
        "comment": None,
    }


def _completed(shape: Shape, before: Shape | None) -> Shape:
    """A shape with what isn't known of it, as it was before."""
    if all(one.is_required is not None for one in shape.columns):
        return shape
    required = {} if before is None else {one.name: one.is_required for one in before.columns}
    columns = (
        replace(one, is_required=required.get(one.name, False)) if one.is_required is None else one
        for one in shape.columns
    )
    return replace(shape, columns=tuple(columns))


def _parts(type_: str) -> tuple[str, str | None, str | None]:
    """A type's name, its length and its scale."""
    found = _SIZES.fullmatch(type_)
    if found is None:
        return type_, None, None
    base, length, scale, rest = found.groups()
    return (base + rest).strip(), length, scale


def _base(type_: str) -> str:
    """Its name without what makes it no other type: `timestamp(3) without time zone` isn't `timestamp`."""
    return _parts(type_)[0].lower().removesuffix(" unsigned")


def _listed(key: Sequence[str]) -> str:
    return f"({', '.join(key)})" if key else "none"
