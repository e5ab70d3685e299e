"""PostgreSQL's changes to records of topics. Pure: the clock is an argument."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.capture._envelope import Envelope, Format, Record, Values, version_text
from penstock.capture._postgres._pgoutput import UNCHANGED, Begin, Change, Message, Relation, Tuple
from penstock.capture._postgres._types import Type, Types, converter, placeholder, zero

__all__ = ["Encoder", "Facts", "Moment", "Table", "key_columns"]


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
        self._envelope, self._now_ns = Envelope(format, now_ns), now_ns
        self._name, self._database = name, database
        self._version = version_text()

    def change(self, table: Table, topic: str, change: Change, at: Moment) -> Iterator[Record]:
        """The records of a changed row."""
        source, time_ms = self._source_of(table, at), at.time_us // 1000
        old = change.old or []
        if change.new is None:
            before = table.key_row(old) if change.old_is_key else table.row(old)
            key = table.key_of(before)
            yield from self._envelope.deleted(topic, key, before, source, time_ms)
            return
        known = None if change.old_is_key else change.old
        after = table.row(change.new, known)
        key = old_key = table.key_of(after)
        if change.op == "c":
            yield self._envelope.row(topic, key, "c", after, source, time_ms)
            return
        before_ = None if known is None else table.row(known)
        gone = before_
        if change.old is not None and table.key:
            gone = table.key_row(change.old) if before_ is None else before_
            old_key = table.key_of(gone)
        keys, rows = (old_key, key), (before_, after)
        yield from self._envelope.updated(topic, keys, rows, source, time_ms, gone)

    def read(self, table: Table, topic: str, values: Tuple, at: Moment) -> Record:
        """The record of a row of a snapshot."""
        row, source = table.row(values), self._source_of(table, at)
        key, time_ms = table.key_of(row), at.time_us // 1000
        return self._envelope.row(topic, key, "r", row, source, time_ms)

    def truncated(self, table: Table, topic: str, at: Moment) -> Iterator[Record]:
        """The record of a table that was emptied; the flat form has none."""
        source = self._source_of(table, at)
        yield from self._envelope.truncated(topic, source, at.time_us // 1000)

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

    def _source_of(self, table: Table, at: Moment) -> bytes:
        if not self._envelope.is_debezium:
            return b""
        return self._source(table.relation.schema, table.relation.name, at)

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
