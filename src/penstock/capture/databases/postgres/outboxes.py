"""The outbox pattern: rows of one table are events, which go to topics that they name.

An application writes an event into the table in the transaction of its other writes. So there is an event
exactly if these are committed. Columns and topics are the defaults of Debezium's event router.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple

import orjson

from penstock.capture.databases.postgres.copy import parse_tables, quoted
from penstock.capture.databases.postgres.rows import NULL, Fragments, Table
from penstock.capture.databases.postgres.server import Server
from penstock.capture.envelope import Headers
from penstock.capture.table_schemas import unspelled
from penstock.capture.unread import Lost
from penstock.errors import SetupError

__all__ = ["Event", "Router", "outbox"]

TOPIC_CHARS_MAX: Final = 249
"""Of a topic's name: Kafka's."""
_COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")


class Event(NamedTuple):
    """A record of an outbox's row, and why it can't be written: it isn't, without one of its values."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    lost: tuple[Lost, ...] = ()


class Router:
    """Makes records of an outbox's rows: topic `outbox.event.AGGREGATETYPE`, key `aggregateid`, value
    `payload`, and a header `id`.

    Args:
        table: the outbox.

    Raises:
        SetupError: it lacks a column.
    """

    def __init__(self, table: Table) -> None:
        if missing := [one for one in _COLUMNS if one not in table.names]:
            relation = table.relation
            raise SetupError(
                f"expected the outbox {relation.schema}.{relation.name} to have columns "
                f"{', '.join(_COLUMNS)}; found none called {', '.join(missing)}. "
                "penstock.capture.outbox(URL) creates such a table"
            )
        self._at = [table.names.index(one) for one in _COLUMNS]
        types = {one.name: one.oid for one in table.relation.columns}
        self._is_bytes = types["payload"] == _BYTEA
        self._losses = table.losses

    def route(self, row: Fragments) -> Event:
        """A row's record."""
        id_, aggregate, key, _, payload = (row[i] for i in self._at)
        topic = re.sub(r"[^A-Za-z0-9._-]", "_", f"outbox.event.{_text(aggregate).decode()}")
        value = None if payload == NULL else _text(payload)
        if value is not None and self._is_bytes:
            value = base64.b64decode(value)
        lost = tuple(one._replace(is_key=True) for one in self._losses.take())
        if len(topic) > TOPIC_CHARS_MAX:
            why = f"expected a topic's name of at most {TOPIC_CHARS_MAX} characters"
            lost += (Lost("aggregatetype", f"{why}; found {topic!r}", is_key=True),)
        headers = (("id", _text(id_)),)
        return Event(topic, None if key == NULL else _text(key), value, headers, lost)


_BYTEA: Final = 17


def _text(fragment: bytes) -> bytes:
    """A value's text: of a JSON string what is in it."""
    return orjson.loads(fragment).encode() if fragment[:1] == b'"' else fragment


def outbox(url: str, table: str = "public.outboxevent") -> None:
    """Creates the table of an outbox, if it isn't there, with the columns that Debezium's router has.

        insert into outboxevent(aggregatetype, aggregateid, type, payload)
        values ('order', '17', 'OrderCreated', '{"total": 59.98}');

    A row may be deleted in the transaction that inserts it, so that the table stays empty.

    Args:
        url: of the database.
        table: its name.
    """
    [name] = parse_tables([table])
    where = ".".join(map(quoted, unspelled(name)))
    server = Server(url)
    try:
        server.sql.execute(
            f"CREATE TABLE IF NOT EXISTS {where} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), "
            "aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb)"
        )
    finally:
        server.close()
