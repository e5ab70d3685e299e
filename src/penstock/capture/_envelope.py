"""Changes of rows to records of topics: Debezium's envelope, or the row alone. Pure.

    envelope   key: the key's columns; value: before, after, source, op and times; a deletion is followed by
               a record without a value
    flat       key: the key's columns; value: the row; a deletion is a record without a value

A change of the key is a deletion of the old one and an insert of the new one, in both. What `source` says is
a matter of each kind of database, and comes as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson
import pyarrow as pa

from penstock.formats.changelog import EMPTIED

__all__ = [
    "DELETIONS_FOLLOW",
    "Envelope",
    "Format",
    "Headers",
    "Put",
    "Record",
    "Records",
    "Row",
    "Values",
    "version_text",
]

Format: TypeAlias = Literal["debezium", "flat"]
Values: TypeAlias = Literal["precise", "readable"]
Row: TypeAlias = dict[str, Any]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
DELETIONS_FOLLOW: Final[Headers] = ((EMPTIED, b"true"),)
"""Of the record of a table that was emptied, where its keys are deleted one by one as well."""
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


class Record(NamedTuple):
    """A record for a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int


class Records(NamedTuple):
    """Records for a topic, in columns: keys and values, binary, none NULL, and one time for all."""

    keys: pa.Array[Any]
    values: pa.Array[Any]
    time_ms: int


class Put(Protocol):
    """Takes a record."""

    def __call__(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """Its topic, key, value, time of the commit since 1970, and headers."""


class Envelope:
    """Makes records of changes.

    Args:
        format: `debezium` or `flat`.
        now_ns: the clock, for the envelope's times.
    """

    def __init__(self, format: Format, now_ns: Callable[[], int]) -> None:  # noqa: A002
        self.is_debezium, self._now_ns = format == "debezium", now_ns

    def row(
        self, topic: str, key: bytes | None, op: str, row: Row, source: bytes, time_ms: int
    ) -> Record:
        """The record of a row of a snapshot, `r`, or of one that was inserted, `c`."""
        return Record(topic, key, self.value(op, None, row, source), (), time_ms)

    def updated(
        self,
        topic: str,
        keys: tuple[bytes | None, bytes | None],
        rows: tuple[Row | None, Row],
        source: bytes,
        time_ms: int,
        gone: Row | None = None,
    ) -> Iterator[Record]:
        """The records of a row that was updated.

        Args:
            topic: where to.
            keys: the former and the new one.
            rows: the former, where it is known, and the new one.
            source: the block, as JSON.
            time_ms: of the commit, since 1970.
            gone: what is known of the row under a former key, where the whole former row isn't.
        """
        (old_key, key), (before, after) = keys, rows
        gone = before if before is not None else gone
        if old_key == key or gone is None:
            yield Record(topic, key, self.value("u", before, after, source), (), time_ms)
            return
        yield from self.deleted(topic, old_key, gone, source, time_ms, ((_NEW_KEY, key),))
        headers = ((_OLD_KEY, old_key),) if self.is_debezium else ()
        yield Record(topic, key, self.value("c", None, after, source), headers, time_ms)

    def deleted(
        self,
        topic: str,
        key: bytes | None,
        before: Row,
        source: bytes,
        time_ms: int,
        headers: Headers = (),
    ) -> Iterator[Record]:
        """The records of a row that was deleted."""
        if self.is_debezium:
            yield Record(topic, key, self.value("d", before, None, source), headers, time_ms)
            yield Record(topic, key, None, headers, time_ms)
        elif key is not None:
            yield Record(topic, key, None, (), time_ms)

    def truncated(
        self, topic: str, source: bytes, time_ms: int, headers: Headers
    ) -> Iterator[Record]:
        """The record of a table that was emptied; the flat form has none."""
        if self.is_debezium:
            yield Record(topic, None, self.value("t", None, None, source), headers, time_ms)

    def value(self, op: str, before: Row | None, after: Row | None, source: bytes) -> bytes:
        """A record's value."""
        if not self.is_debezium:
            return orjson.dumps(after)
        now_ns = self._now_ns()
        return b'{"before":%b,"after":%b,"source":%b,"transaction":null,"op":"%b",%b}' % (
            b"null" if before is None else orjson.dumps(before),
            b"null" if after is None else orjson.dumps(after),
            source,
            op.encode(),
            b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (now_ns // 1_000_000, now_ns // 1000, now_ns),
        )


def version_text() -> str:
    """What `source` says about the version."""
    try:
        return f"penstock {version('penstock')}"
    except PackageNotFoundError:  # a checkout that isn't installed
        return "penstock"
