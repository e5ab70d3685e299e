"""Changes of rows to records of topics: Debezium's envelope, or the row alone. Pure.

    envelope   key: the key's columns; value: before, after, source, op and times; a deletion is followed by
               a record without a value
    flat       key: the key's columns; value: the row; a deletion is a record without a value

A change of the key is a deletion of the old one and an insert of the new one, in both. What `source` says is
a matter of each kind of database, and comes as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.capture.unread import Lost
from penstock.formats.changelog import EMPTIED

__all__ = [
    "DELETIONS_FOLLOW",
    "NO_HEADERS",
    "Block",
    "Envelope",
    "Format",
    "Headers",
    "Put",
    "Record",
    "Records",
    "Row",
    "Values",
    "Waiting",
    "members",
    "version_text",
]

Format: TypeAlias = Literal["debezium", "flat"]
Values: TypeAlias = Literal["precise", "readable"]
Row: TypeAlias = dict[str, Any]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
DELETIONS_FOLLOW: Final[Headers] = ((EMPTIED, b"true"),)
"""Of the record of a table that was emptied, where its keys are deleted one by one as well."""
NO_HEADERS: Final[Mapping[int, Headers]] = MappingProxyType({})
WAITING_BYTES: Final = 96
"""Of a record that waits, beyond its value."""
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


class Record(NamedTuple):
    """A record for a topic, and the values of its new row that it doesn't have."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int
    lost: tuple[Lost, ...] = ()


class Records(NamedTuple):
    """Records for a topic, in columns: keys and values, binary, none NULL, and one time for all; by place,
    the values of rows that they don't have.
    """

    keys: pa.Array[Any]
    values: pa.Array[Any]
    time_ms: int
    lost: Mapping[int, tuple[Lost, ...]] = MappingProxyType({})


class Block(NamedTuple):
    """Records for a topic, in columns: keys and values, binary, and times of commits, int64, in milliseconds
    since 1970.
    """

    topic: str
    keys: pa.Array[Any]
    values: pa.Array[Any]
    times_ms: npt.NDArray[np.int64]


@dataclass
class Waiting:
    """Records of a topic, taken one by one or in columns."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    #: Of those that have some, by place.
    headers: dict[int, Headers] = field(default_factory=dict)
    _blocks: list[Block] = field(default_factory=list)  # before the others
    _blocked: int = 0

    def __len__(self) -> int:
        return self._blocked + len(self.values)

    def add(
        self, key: bytes | None, value: bytes | None, time_ms: int, headers: Headers = ()
    ) -> int:
        """Takes a record; the bytes that it has while it waits."""
        if headers:
            self.headers[len(self)] = headers
        self.keys.append(key)
        self.values.append(value)
        self.times_ms.append(time_ms)
        return WAITING_BYTES + (0 if value is None else len(value))

    def put(self, block: Block, headers: Mapping[int, Headers] = NO_HEADERS) -> int:
        """Takes records in columns, with the headers of some by place; the bytes that they have."""
        self._seal()
        begin = self._blocked
        self.headers.update({begin + i: some for i, some in headers.items()})
        self._blocks.append(block)
        self._blocked += len(block.values)
        return WAITING_BYTES * len(block.values) + block.values.nbytes

    def block(self, topic: str) -> Block:
        """All of them."""
        self._seal()
        if len(self._blocks) == 1:
            return self._blocks[0]
        return Block(
            topic,
            pa.concat_arrays([one.keys for one in self._blocks]),
            pa.concat_arrays([one.values for one in self._blocks]),
            np.concatenate([one.times_ms for one in self._blocks]),
        )

    def rows(self) -> Iterator[tuple[bytes | None, bytes | None, int]]:
        """Key, value and time of each, which are few."""
        for one in self._blocks:
            keys, values = one.keys.to_pylist(), one.values.to_pylist()
            yield from zip(keys, values, one.times_ms.tolist(), strict=True)
        yield from zip(self.keys, self.values, self.times_ms, strict=True)

    def _seal(self) -> None:
        if self.values:
            keys, values = pa.array(self.keys, pa.binary()), pa.array(self.values, pa.binary())
            self._blocks.append(Block("", keys, values, np.array(self.times_ms, np.int64)))
            self._blocked += len(values)
            self.keys, self.values, self.times_ms = [], [], []

    def all_headers(self) -> list[Headers] | None:
        """Those of each record; None where none has any."""
        if not self.headers:
            return None
        return [self.headers.get(i, ()) for i in range(len(self))]


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
        head, tail = self.around(op, source, b"null" if before is None else orjson.dumps(before))
        return head + (b"null" if after is None else orjson.dumps(after)) + tail

    def around(self, op: str, source: bytes, before: bytes = b"null") -> tuple[bytes, bytes]:
        """What precedes the new row in an envelope, and what follows it."""
        now_ns = self._now_ns()
        return (
            b'{"before":%b,"after":' % before,
            b',"source":%b,"transaction":null,"op":"%b",%b}'
            % (
                source,
                op.encode(),
                b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (now_ns // 1_000_000, now_ns // 1000, now_ns),
            ),
        )


def members(names: Sequence[str]) -> list[bytes]:
    """What precedes each value in the JSON of an object.

    >>> members(["a", "b"])
    [b'{"a":', b',"b":']
    """
    return [(b"," if i else b"{") + orjson.dumps(name) + b":" for i, name in enumerate(names)]


def version_text() -> str:
    """What `source` says about the version."""
    try:
        return f"penstock {version('penstock')}"
    except PackageNotFoundError:  # a checkout that isn't installed
        return "penstock"
