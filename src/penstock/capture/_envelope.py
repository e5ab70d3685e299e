"""Changes to records of topics: Debezium's envelope, or the row alone. Pure: the clock is an argument.

    envelope   key: the key's columns; value: before, after, source, op and times; a deletion is followed by
               a record without a value
    flat       key: the key's columns; value: the row; a deletion is a record without a value

A change of the key is a deletion of the old one and an insert of the new one, in both.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from penstock.capture._pgoutput import UNCHANGED, Begin, Change, Message, Relation, Tuple
from penstock.capture._types import Type, Types, Values, converter, placeholder, zero

__all__ = ["Encoder", "Facts", "Format", "Moment", "Record", "Table"]

Format: TypeAlias = Literal["debezium", "flat"]
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


class Record(NamedTuple):
    """A record for a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time_ms: int


@dataclass(frozen=True)
class Facts:
    """What the catalog knows of a table, and the server's messages don't.

    Attributes:
        primary_key: its columns in the key's order; empty where there is none.
        required: the columns that are NOT NULL.
        defaults: of columns with a constant as their default, its text.
    """

    primary_key: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    defaults: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """When and where something changed.

    Attributes:
        lsn: of the change.
        time_us: of the commit, since 1970.
        xid: the transaction's number; None outside one.
        previous: the position behind the commit before; None in a snapshot.
        snapshot: Debezium's marker: `false`, or of a snapshot `first`, `true`, `last`, …
    """

    lsn: int
    time_us: int
    xid: int | None
    previous: int | None = None
    snapshot: str = "false"

    @staticmethod
    def of(begin: Begin, lsn: int, previous: int) -> Moment:
        """That of a change in a transaction."""
        return Moment(lsn, begin.time_us, begin.xid, previous)


class Table:
    """How the rows of one table, as it is now, become JSON.

    Args:
        relation: it, as the server describes it.
        facts: what the catalog knows.
        types: what types mean.
        values: how they are written.
    """

    def __init__(self, relation: Relation, facts: Facts, types: Types, values: Values) -> None:
        self.relation = relation
        self.key = key_columns(relation, facts)
        #: How many values were told as unchanged alone, and are placeholders in records.
        self.placeholders = 0
        self._columns: list[tuple[int, str, Callable[[bytes], Any], Any]] = []
        self._fill: dict[str, Any] = {}
        for i, column in enumerate(relation.columns):
            type_: Type = types(column.oid, column.modifier)
            convert = converter(type_, values)
            if convert is None:
                continue
            self._columns.append((i, column.name, convert, placeholder(type_, values)))
            default = facts.defaults.get(column.name)
            if default is None and column.name in facts.required:
                default = zero(type_)
            self._fill[column.name] = None if default is None else _value(convert, default)

    def row(self, values: Tuple, old: Tuple | None = None) -> dict[str, Any]:
        """A row; what an update didn't touch is taken from the old one, where that is known."""
        row: dict[str, Any] = {}
        for i, name, convert, unknown in self._columns:
            value = values[i]
            if value is UNCHANGED and old is not None:
                value = old[i]
            if value is None:
                row[name] = None
            elif isinstance(value, bytes):
                row[name] = _value(convert, value)
            else:
                row[name] = unknown
                self.placeholders += 1
        return row

    def key_row(self, values: Tuple) -> dict[str, Any]:
        """A row of which only the replica identity is known; what is NOT NULL is its default, or zero."""
        columns = self.relation.columns
        return {
            name: _value(convert, known)
            if columns[i].is_identity and isinstance(known := values[i], bytes)
            else self._fill[name]
            for i, name, convert, _ in self._columns
        }

    def key_of(self, row: dict[str, Any]) -> bytes | None:
        """The key of a row's records."""
        return orjson.dumps({name: row[name] for name in self.key}) if self.key else None


def _value(convert: Callable[[bytes], Any], text: bytes) -> Any:
    """A value; what can't be read as its type is passed on as the server wrote it."""
    try:
        return convert(text)
    except (ValueError, ArithmeticError, IndexError):
        return text.decode("utf-8", "replace")


def key_columns(relation: Relation, facts: Facts) -> tuple[str, ...]:
    """The columns that records are keyed by.

    The server's messages say them, as they were when the row changed: the replica identity's. The catalog,
    which may have changed meanwhile, says their order, and the primary key where the identity is the
    whole row or nothing.
    """
    told = tuple(one.name for one in relation.columns if one.is_identity)
    if relation.identity in "di":
        return facts.primary_key if set(facts.primary_key) == set(told) else told
    names = {one.name for one in relation.columns}
    return facts.primary_key if names.issuperset(facts.primary_key) else ()


class Encoder:
    """Makes records of changes.

    Args:
        name: the source's, in the envelope.
        database: likewise.
        format: `debezium` or `flat`.
        now_ns: the clock, for the envelope's times.
    """

    def __init__(
        self,
        name: str,
        database: str,
        format: Format,  # noqa: A002 - the field's name
        now_ns: Callable[[], int],
    ) -> None:
        self.format, self._now_ns = format, now_ns
        self._name, self._database = name, database
        self._version = _version()

    def change(self, table: Table, topic: str, change: Change, at: Moment) -> Iterator[Record]:
        """The records of a changed row."""
        time_ms = at.time_us // 1000
        if change.new is None:
            old = change.old or []
            before = table.key_row(old) if change.old_is_key else table.row(old)
            yield from self._deleted(table, topic, before, at, ())
            return
        known = None if change.old_is_key else change.old
        after = table.row(change.new, known)
        key = table.key_of(after)
        before_ = None if known is None else table.row(known)
        if change.op == "u" and change.old is not None and table.key:
            told = table.key_row(change.old) if before_ is None else before_
            old_key = table.key_of(told)
            if old_key != key:
                yield from self._deleted(table, topic, told, at, ((_NEW_KEY, key),))
                headers = ((_OLD_KEY, old_key),)
                value = self._value(table, "c", None, after, at)
                yield Record(topic, key, value, headers if self._is_debezium else (), time_ms)
                return
        yield Record(topic, key, self._value(table, change.op, before_, after, at), (), time_ms)

    def read(self, table: Table, topic: str, values: Tuple, at: Moment) -> Record:
        """The record of a row of a snapshot."""
        row = table.row(values)
        return Record(
            topic, table.key_of(row), self._value(table, "r", None, row, at), (), at.time_us // 1000
        )

    def truncated(self, table: Table, topic: str, at: Moment) -> Iterator[Record]:
        """The record of a table that was emptied; the flat form has none."""
        if self._is_debezium:
            value = self._value(table, "t", None, None, at)
            yield Record(topic, None, value, (), at.time_us // 1000)

    def message(self, topic: str, message: Message, at: Moment) -> Record:
        """The record of a message that was written into the database's log."""
        value = {
            "op": "m",
            "ts_ms": self._now_ns() // 1_000_000,
            "source": orjson.Fragment(self._source("", "", at)),
            "transaction": None,
            "message": {
                "prefix": message.prefix,
                "content": base64.b64encode(message.content).decode(),
            },
        }
        key = orjson.dumps({"prefix": message.prefix})
        return Record(topic, key, orjson.dumps(value), (), at.time_us // 1000)

    @property
    def _is_debezium(self) -> bool:
        return self.format == "debezium"

    def _deleted(
        self,
        table: Table,
        topic: str,
        before: dict[str, Any],
        at: Moment,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> Iterator[Record]:
        key, time_ms = table.key_of(before), at.time_us // 1000
        if self._is_debezium:
            value = self._value(table, "d", before, None, at)
            yield Record(topic, key, value, headers, time_ms)
            yield Record(topic, key, None, headers, time_ms)
        elif key is not None:
            yield Record(topic, key, None, (), time_ms)

    def _value(
        self,
        table: Table,
        op: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        at: Moment,
    ) -> bytes:
        if not self._is_debezium:
            return orjson.dumps(after)
        now_ns = self._now_ns()
        relation = table.relation
        return b'{"before":%b,"after":%b,"source":%b,"transaction":null,"op":"%b",%b}' % (
            b"null" if before is None else orjson.dumps(before),
            b"null" if after is None else orjson.dumps(after),
            self._source(relation.schema, relation.name, at),
            op.encode(),
            b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (now_ns // 1_000_000, now_ns // 1000, now_ns),
        )

    def _source(self, schema: str, table: str, at: Moment) -> bytes:
        previous = None if at.previous is None else str(at.previous)
        return orjson.dumps(
            {
                "version": self._version,
                "connector": "postgresql",
                "name": self._name,
                "ts_ms": at.time_us // 1000,
                "snapshot": at.snapshot,
                "db": self._database,
                "sequence": orjson.dumps([previous, str(at.lsn)]).decode(),
                "ts_us": at.time_us,
                "ts_ns": at.time_us * 1000,
                "schema": schema,
                "table": table,
                "txId": at.xid,
                "lsn": at.lsn,
                "xmin": None,
                "origin": None,
                "origin_lsn": None,
            }
        )


def _version() -> str:
    try:
        return f"penstock {version('penstock')}"
    except PackageNotFoundError:  # a checkout that isn't installed
        return "penstock"
