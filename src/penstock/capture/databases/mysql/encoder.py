"""MySQL's changes to records of topics, with the source block of Debezium's MySQL connector."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock.capture.database import Settings, unspelled
from penstock.capture.databases.mysql.columns import shape_of
from penstock.capture.databases.mysql.groups.statements import Defined
from penstock.capture.databases.mysql.server import Server
from penstock.capture.envelope import Envelope, Record, Row, version_text
from penstock.capture.output import Output
from penstock.capture.unread import Lost

__all__ = ["Encoder", "key_of", "report"]


def key_of(row: Row, key: tuple[str, ...]) -> bytes | None:
    """The key of a row's records."""
    return orjson.dumps({name: row[name] for name in key}) if key else None


class Encoder:
    """Makes records.

    Args:
        settings: the capture's.
        connector: `mysql` or `mariadb`.
    """

    def __init__(self, settings: Settings, connector: str) -> None:
        self.envelope = Envelope(settings.format, time.time_ns)
        self._head = orjson.dumps(
            {"version": version_text(), "connector": connector, "name": settings.source_name}
        )[:-1]

    def source(self, table: tuple[str, str], at: Mapping[str, Any]) -> bytes:
        """The block of a change.

        Args:
            table: schema and name.
            at: `time_s`, `snapshot`, `server`, `gtid`, `file`, `pos`, `row`.
        """
        if not self.envelope.is_debezium:
            return b""
        row: int = at["row"]
        return self.block(table, at) % row

    def block(self, table: tuple[str, str], at: Mapping[str, Any]) -> bytes:
        """The block of an event's changes, with `%d` for the row's number; empty where there is none."""
        if not self.envelope.is_debezium:
            return b""
        seconds = at["time_s"]
        source = {
            "ts_ms": seconds * 1000,
            "snapshot": at["snapshot"],
            "db": table[0],
            "sequence": None,
            "ts_us": seconds * 1_000_000,
            "ts_ns": seconds * 1_000_000_000,
            "table": table[1],
            "server_id": at["server"],
            "gtid": at["gtid"],
            "file": at["file"],
            "pos": at["pos"],
        }
        text = (self._head + b"," + orjson.dumps(source)[1:-1]).replace(b"%", b"%%")
        return text + b',"row":%d,"thread":null,"query":null}'

    def around(self, table: tuple[str, str], at: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """What is before and behind the rows of a chunk, in envelopes."""
        return self.envelope.around("r", self.source(table, at))

    def inserted(
        self, topic: str, key: tuple[str, ...], row: Row, source: bytes, time_ms: int, op: str
    ) -> Record:
        """The record of a new row `c`, or of one that is read `r`."""
        return self.envelope.row(topic, key_of(row, key), op, row, source, time_ms)

    def updated(
        self,
        topic: str,
        key: tuple[str, ...],
        rows: tuple[Row | None, Row],
        source: bytes,
        time_ms: int,
        lost: tuple[Lost, ...] = (),
    ) -> Iterator[Record]:
        """The records of a row that was updated. The former one is None where it isn't in the topic; the last
        record has the new one, without the values that are lost.
        """
        before, after = rows
        new = old = key_of(after, key)
        if before is not None and any(before[name] != after[name] for name in key):
            old = key_of(before, key)
        *others, last = self.envelope.updated(topic, (old, new), rows, source, time_ms)
        yield from others
        yield last._replace(lost=lost) if lost else last

    def deleted(
        self, topic: str, key: tuple[str, ...], row: Row, source: bytes, time_ms: int
    ) -> Iterator[Record]:
        """The records of a row that was deleted."""
        return self.envelope.deleted(topic, key_of(row, key), row, source, time_ms)


def report(
    found: Defined,
    text: str,
    time_s: int,
    at: Mapping[str, Any],
    parts: tuple[Server, Encoder, Output],
) -> None:
    """A statement has defined a table: a record of Debezium's says so.

    The columns are the catalog's, which may be ahead of the log.

    Args:
        found: what it has done, to which table.
        text: the statement.
        time_s: when, since 1970.
        at: its place, for the source.
        parts: the server, what makes records, and where to.
    """
    (what, table), (server, encoder, output) = found, parts
    if output.schemas.changes is None or not any(
        unspelled(one)[0] == table[0] for one in output.tables
    ):
        return
    definition = server.definition(table)
    is_gone = what == "DROP" or not definition.columns
    output.schemas.report(
        table,
        "ALTER" if what == "RENAME" else what,
        None if is_gone else shape_of(definition),
        time_s * 1000,
        output.put,
        ddl=text.strip(),
        source=encoder.block(table, at) % 0 if encoder.envelope.is_debezium else b"",
    )
