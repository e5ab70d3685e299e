"""PostgreSQL's changes to records of topics. Pure: the clock is an argument.

What a record's envelope says about its table is made once for the table, what it says about the transaction
once for the transaction. So a change costs its row's JSON, one template that is filled in, and its position.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import orjson

from penstock.capture.databases.postgres.pgoutput import Begin, Message, Origin
from penstock.capture.databases.postgres.rows import NULL, Fragments, Table
from penstock.capture.envelope import Format, Headers, Put, version_text

__all__ = ["Encoder"]

_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
_END: Final = b',"xmin":null,"origin":%b,"origin_lsn":%b},"transaction":'
"""Of a record, behind its position."""
_HERE: Final = _END % (NULL, NULL)
"""That of a transaction that wasn't replicated."""
_ROW: Final = b"\0"
"""Stands for a row; JSON has none."""
CLOCK_CHANGES: Final = 256
"""How many changes of a transaction have one time of processing."""


class Encoder:
    """Makes records of changes, and passes them to `put`.

    Args:
        name: the source's, in the envelope.
        database: likewise.
        format: `debezium` or `flat`.
        now_ns: the clock, for the envelope's times.
        counts: whether changes say their place in their transaction.
    """

    def __init__(
        self,
        name: str,
        database: str,
        format: Format,  # noqa: A002 - the field's name
        now_ns: Callable[[], int],
        *,
        counts: bool = False,
    ) -> None:
        self._is_debezium, self._now_ns = format == "debezium", now_ns
        self._counts: dict[str, int] | None = {} if counts else None
        self._id = b""  # of the transaction, where changes are counted
        texts = (version_text(), name, database)
        version, name_, database_ = (orjson.dumps(text).replace(b"%", b"%%") for text in texts)
        self._names = (
            b'{"version":'
            + version
            + b',"connector":"postgresql","name":'
            + name_
            + b',"ts_ms":%b,'
            b'"snapshot":"%b","db":' + database_ + b',"sequence":"[%b,\\"'
        )
        self.at(0, None, None)

    def begin(self, begin: Begin, previous: int) -> None:
        """What follows belongs to a transaction.

        Args:
            begin: which.
            previous: the position behind the commit before.
        """
        self.at(begin.time_us, begin.xid, previous)
        if self._counts is not None:
            self._id = b"%d:%d" % (begin.xid, begin.commit_lsn)

    def ended(self, topic: str, put: Put) -> None:
        """The records of the transaction itself: its beginning, and its end with the count of its changes."""
        if self._counts:
            begin = {"status": "BEGIN", "id": self._id.decode()}
            end = {
                **begin,
                "status": "END",
                "event_count": sum(self._counts.values()),
                "data_collections": [
                    {"data_collection": name, "event_count": count}
                    for name, count in self._counts.items()
                ],
            }
            nothing = {"event_count": None, "data_collections": None}
            for status in (begin | nothing, end):
                value = orjson.dumps({**status, "ts_ms": self.time_ms})
                put(topic, orjson.dumps({"id": begin["id"]}), value, self.time_ms)

    def at(self, time_us: int, xid: int | None, previous: int | None) -> None:
        """When what follows was committed, and in which transaction.

        Args:
            time_us: of the commit, since 1970.
            xid: the transaction's number; None outside one.
            previous: the position behind the commit before; None in a snapshot.
        """
        self.time_ms = time_us // 1000
        self._ts_ms = b"%d" % self.time_ms
        self._previous = NULL if previous is None else b'\\"%d\\"' % previous
        self._times = b'\\"]","ts_us":%d,"ts_ns":%d,"schema":' % (time_us, 1000 * time_us)
        self._xid = b'null,"lsn":' if xid is None else b'%d,"lsn":' % xid
        self._left = 0
        self._id, self._end = b"", _HERE
        if self._counts is not None:
            self._counts.clear()
        self._mark(b"false")

    def replicated(self, origin: Origin) -> None:
        """The transaction comes from another server."""
        lsn = b"%d" % origin.lsn if origin.lsn else NULL
        self._end = _END % (orjson.dumps(origin.name), lsn)

    @property
    def is_replicated(self) -> bool:
        """Whether that was said of the transaction."""
        return self._end is not _HERE

    def inserted(self, table: Table, topic: str, row: Fragments, lsn: int, put: Put) -> None:
        """The record of a row that was inserted."""
        value = self._value(table, b"c", NULL, table.row(row), lsn)
        put(topic, table.key_of(row), value, self.time_ms)

    def updated(
        self,
        table: Table,
        topic: str,
        row: Fragments,
        lsn: int,
        put: Put,
        before: Fragments | None = None,
        gone: Fragments | None = None,
    ) -> None:
        """The records of a row that was updated.

        Args:
            table: whose.
            topic: where to.
            row: the new one.
            lsn: of the change.
            put: takes them.
            before: the former row, where it is known.
            gone: what is known of it under a former key.
        """
        gone = gone if before is None else before
        key = table.key_of(row)
        if gone is not None and key is not None and (old := table.key_of(gone)) != key:
            self.deleted(table, topic, gone, lsn, put, ((_NEW_KEY, key),))
            headers = ((_OLD_KEY, old),) if self._is_debezium else ()
            value = self._value(table, b"c", NULL, table.row(row), lsn)
            put(topic, key, value, self.time_ms, headers)
            return
        known = NULL if before is None else table.row(before)
        put(topic, key, self._value(table, b"u", known, table.row(row), lsn), self.time_ms)

    def deleted(
        self,
        table: Table,
        topic: str,
        before: Fragments,
        lsn: int,
        put: Put,
        headers: Headers = (),
    ) -> None:
        """The records of a row that was deleted."""
        key = table.key_of(before)
        if self._is_debezium:
            value = self._value(table, b"d", table.row(before), NULL, lsn)
            put(topic, key, value, self.time_ms, headers)
            put(topic, key, None, self.time_ms, headers)
        elif key is not None:
            put(topic, key, None, self.time_ms)

    def read(
        self, table: Table, row: Fragments, lsn: int, marker: bytes
    ) -> tuple[bytes | None, bytes]:
        """Key and value of a row of a snapshot; `marker` is Debezium's: `first`, `true`, `last`, …"""
        self._mark(marker)
        return table.key_of(row), self._value(table, b"r", NULL, table.row(row), lsn)

    def around(self, table: Table, lsn: int, marker: bytes) -> tuple[bytes, bytes]:
        """What precedes and follows the JSON of each row of a snapshot in its value. See `read`."""
        self._mark(marker)
        begin, _, end = self._value(table, b"r", NULL, _ROW, lsn).partition(_ROW)
        return begin, end

    def truncated(self, table: Table, topic: str, lsn: int, put: Put, headers: Headers) -> None:
        """The record of a table that was emptied; the flat form has none."""
        if self._is_debezium:
            put(topic, None, self._value(table, b"t", NULL, NULL, lsn), self.time_ms, headers)

    def message(self, topic: str, message: Message, lsn: int, put: Put) -> None:
        """The record of a message that was written into the database's log."""
        content = base64.b64encode(message.content).decode()
        at = b"%d" % lsn
        source = (self._head, at, self._times, _place("", ""), self._xid, at, self._end, NULL)
        value = b'{"op":"m","ts_ms":%d,"source":%b,"message":%b}' % (
            self._now_ns() // 1_000_000,
            b"".join(source),
            orjson.dumps({"prefix": message.prefix, "content": content}),
        )
        put(topic, orjson.dumps({"prefix": message.prefix}), value, self.time_ms)

    def pieces(self) -> list[bytes]:
        """What envelopes of inserts and updates are made of, between what differs from one to the next; see
        `plain`.
        """
        self._look_at_clock()
        self._left = 0  # the next transaction looks again
        name, middle, end = (self._names % (_ROW, b"false", _ROW)).split(_ROW)
        behind = _HERE + NULL + b',"op":"'
        return [
            *(b'{"before":null,"after":', b',"source":' + name, middle + b'\\"', b'\\"' + end),
            *(b'\\"]","ts_us":', b',"ts_ns":', b',"schema":', b',"lsn":'),
            *(behind + b"c" + self._now, behind + b"u" + self._now),
        ]

    @staticmethod
    def said(table: Table) -> bytes:
        """What envelopes contain about a table."""
        return _place(table.relation.schema, table.relation.name)

    # -- the envelope -----------------------------------------------------------------------------------

    def _value(self, table: Table, op: bytes, before: bytes, after: bytes, lsn: int) -> bytes:
        if not self._is_debezium:
            return after
        if self._left == 0:
            self._look_at_clock()
        self._left -= 1
        position = b"%d" % lsn
        parts = (b'{"before":', before, b',"after":', after, b',"source":', self._head, position)
        where = table.place or self._place_of(table)
        hidden = NULL if self._is_incremental else position
        transaction = self._place_in_transaction(table) if self._id else NULL
        end = (self._end, transaction, b',"op":"', op, self._now)
        source = (self._times, where, self._xid, hidden, *end)
        return b"".join(parts + source)

    def _place_in_transaction(self, table: Table) -> bytes:
        assert self._counts is not None
        name = f"{table.relation.schema}.{table.relation.name}"
        self._counts[name] = count = self._counts.get(name, 0) + 1
        total = sum(self._counts.values())
        return b'{"id":"%b","total_order":%d,"data_collection_order":%d}' % (self._id, total, count)

    def _look_at_clock(self) -> None:
        now_ns = self._now_ns()
        self._now = b'","ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % (
            now_ns // 1_000_000,
            now_ns // 1000,
            now_ns,
        )
        self._left = CLOCK_CHANGES

    def _place_of(self, table: Table) -> bytes:
        relation = table.relation
        table.place = _place(relation.schema, relation.name)
        return table.place

    def _mark(self, marker: bytes) -> None:
        """What sources begin with from now on, up to the position."""
        self._is_incremental = marker == b"incremental"
        self._head = self._names % (self._ts_ms, marker, self._previous)


def _place(schema: str, table: str) -> bytes:
    return orjson.dumps(schema) + b',"table":' + orjson.dumps(table) + b',"txId":'
