"""A run of messages to records: what kernels get about tables and envelopes, and what they made. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.databases.postgres.pgoutput import Begin
from penstock.capture.databases.postgres.plain import kernels
from penstock.capture.databases.postgres.rows import Table
from penstock.capture.databases.postgres.types import Type, Types, converter
from penstock.capture.envelope import Block, Values, members

__all__ = ["Changes", "Place", "Taken"]

_GROWTH: Final = 6
"""Most bytes of JSON for a byte of a message: a control character becomes `\\u0001`. Quotes and digits that
are added to a value have room, as its five bytes of kind and length count, too."""
_NUMBERS: Final = {"int2", "int4", "int8", "oid"}


class Place(NamedTuple):
    """A table that is captured.

    Attributes:
        table: how its rows are read.
        topic: where its records go.
        since: the position from which its changes count.
        said: its part of an envelope's source, as JSON.
    """

    table: Table
    topic: str
    since: int
    said: bytes


class Taken(NamedTuple):
    """What was made of a run.

    Attributes:
        stop: the place of the message behind it.
        blocks: the records.
        begin: the transaction that is open at its end; None where none is.
        open_records: of the run, that are of this one.
        transactions: that ended, and have records.
        end: the position behind the last one that ended; 0 where none did.
        ended_us: the time of its commit, since 1970.
        xids: of transactions that began, in order.
    """

    stop: int
    blocks: list[Block]
    begin: Begin | None
    open_records: int
    transactions: int
    end: int
    ended_us: int
    xids: list[int]


class Changes:
    """Makes records of inserts and updates of plain tables.

    Args:
        tables: by oid, those that are known; None where changes aren't ours. A table that isn't plain is left
            out, so that a run ends at its changes.
        types: what types mean.
        values: how they are written.
    """

    def __init__(self, tables: Mapping[int, Place | None], types: Types, values: Values) -> None:
        of_topic = Counter(one.topic for one in tables.values() if one is not None)
        known: list[tuple[int, Place | None]] = []
        kinds: list[int] = []
        names, keys, said = (_Pieces() for _ in range(3))
        column_at, key_at = [0], [0]
        key_columns: list[int] = []
        for oid, place in tables.items():
            its: list[int] = []
            if place is not None:
                found = [
                    _kind(types(one.oid, one.modifier), values)
                    for one in place.table.relation.columns
                ]
                # Records of two tables in one topic must be in their order.
                if None in found or of_topic[place.topic] > 1:
                    continue
                its = cast("list[int]", found)
                columns = [one.name for one in place.table.relation.columns]
                begins = iter(members(place.table.names))
                for kind in its:
                    names.add(b"" if kind == kernels.LEFT_OUT else next(begins))
                for begin, name in zip(members(place.table.key), place.table.key, strict=True):
                    keys.add(begin)
                    key_columns.append(columns.index(name))
            said.add(place.said if place is not None else b"")
            kinds += its
            column_at.append(len(kinds))
            key_at.append(len(key_columns))
            known.append((oid, place))
        self._known = known
        self._oids = _numbers([oid for oid, _ in known])
        self._since = _numbers([-1 if place is None else place.since for _, place in known])
        self._widths = _numbers(
            [
                -1
                if place is None
                else sum(map(len, members([*place.table.names, *place.table.key])))
                + len(place.said)
                + 12 * kernels.DIGITS_MAX
                for _, place in known
            ]
        )
        self._columns = (_numbers(column_at), np.array(kinds, np.uint8), *names.arrays())
        self._keys = (_numbers(key_columns), _numbers(key_at), *keys.arrays())
        self._said = said.arrays()
        self._places = np.empty(2 * max(1, len(kinds)), np.int64)
        self._values = self._key_bytes = np.empty(0, np.uint8)
        #: Whether there is a plain table.
        self.has_any = any(place is not None for _, place in known)

    def take(
        self,
        messages: Sequence[bytes],
        begin: Begin | None,
        has_records: bool,  # noqa: FBT001 - an attribute of the transaction
        position: int,
        pieces: Callable[[], Sequence[bytes]],
    ) -> Taken:
        """Takes messages from the first one on, as many as are plain; up to the last end of a transaction,
        if there is one and all are.

        Args:
            messages: of the replication protocol.
            begin: the transaction that is open.
            has_records: whether that has some.
            position: behind the last commit that was taken.
            pieces: gives those of an envelope; see `kernels.PIECES`.
        """
        at = np.zeros(len(messages) + 1, np.int64)
        np.cumsum([*map(len, messages)], out=at[1:])
        data = np.frombuffer(b"".join((*messages, bytes(kernels.PADDING))), np.uint8)
        count = len(self._known)
        counts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        stop = kernels.measure(data, at, 0, self._oids, self._widths, counts, sizes)
        state = np.zeros(kernels.STATE, np.int64)
        state[kernels.POSITION] = position
        if begin is not None:
            state[kernels.IS_OPEN], state[kernels.HAD] = 1, has_records
            for i, value in (
                (kernels.COMMIT_LSN, begin.commit_lsn),
                (kernels.TIME_US, begin.time_us),
                (kernels.XID, begin.xid),
            ):
                state[i] = value
        made = _Pieces(pieces() if stop else [b""] * kernels.PIECES)
        room = _GROWTH * sizes
        value_at = _begins(room + counts * (self._widths + made.size))
        key_at = _begins(room + counts * self._widths)
        record_at = _begins(counts)
        self._values = _room(self._values, int(value_at[-1]))
        self._key_bytes = _room(self._key_bytes, int(key_at[-1]))
        ends = [np.empty(int(record_at[-1]) + count + 1, np.int32) for _ in range(2)]
        times_ms, xids = np.empty(int(record_at[-1]), np.int64), np.empty(stop, np.int64)
        heads = np.empty(made.size + 8 * kernels.DIGITS_MAX + kernels.PADDING, np.uint8)
        stop = kernels.write(
            *(data, at, 0, stop, self._oids, self._since, *self._columns, *self._keys),
            *(*self._said, *made.arrays(), heads, np.zeros(4, np.int64), self._places),
            *(state, xids, record_at, counts, self._values, value_at, ends[0]),
            *(self._key_bytes, key_at, ends[1], times_ms),
        )
        blocks = [
            self._block(i, int(counts[i]), int(record_at[i]), value_at, key_at, ends, times_ms)
            for i in np.flatnonzero(counts).tolist()
        ]
        values = state.tolist()
        is_open = Begin(values[kernels.COMMIT_LSN], values[kernels.TIME_US], values[kernels.XID])
        return Taken(
            int(stop),
            blocks,
            is_open if values[kernels.IS_OPEN] else None,
            values[kernels.RECORDS],
            values[kernels.TRANSACTIONS],
            values[kernels.END],
            values[kernels.ENDED_US],
            xids[: values[kernels.XIDS]].tolist(),
        )

    def _block(
        self,
        i: int,
        count: int,
        first: int,
        value_at: npt.NDArray[np.int64],
        key_at: npt.NDArray[np.int64],
        ends: list[npt.NDArray[np.int32]],
        times_ms: npt.NDArray[np.int64],
    ) -> Block:
        """The records of a table, in memory of their own."""
        place = self._known[i][1]
        assert place is not None
        its = slice(first + i, first + i + count + 1)
        values = _binary(self._values, int(value_at[i]), ends[0][its])
        if place.table.key:
            keys = _binary(self._key_bytes, int(key_at[i]), ends[1][its])
        else:
            keys = pa.nulls(count, pa.binary())
        return Block(place.topic, keys, values, times_ms[first : first + count])


class _Pieces:
    """Bytes, one after another."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._pieces = [*pieces]
        self.add = self._pieces.append

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    def arrays(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The bytes, with padding, and where each begins, and the end of the last one."""
        at = np.cumsum([0, *map(len, self._pieces)], dtype=np.int64)
        text = b"".join((*self._pieces, bytes(kernels.PADDING)))
        return np.frombuffer(text, np.uint8), at


def _kind(type_: Type, values: Values) -> int | None:
    """How a kernel writes a column; None where it can't."""
    convert = converter(type_, values)
    if convert is None:
        return kernels.LEFT_OUT
    if convert is bytes.decode:
        return kernels.TEXT
    if type_.element is not None:
        return None
    if type_.name in _NUMBERS:
        return kernels.NUMBER
    if type_.name == "bool":
        return kernels.BOOL
    if values == "precise" and type_.name == "timestamp":
        return kernels.MILLIS if 0 <= type_.modifier <= 3 else kernels.MICROS
    if values == "precise" and type_.name == "timestamptz" and type_.modifier in {-1, 6}:
        return kernels.INSTANT
    return None


def _numbers(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _begins(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each begins, and the end of the last one."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def _room(memory: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Memory for so many bytes, and padding: it, or more."""
    room = size + kernels.PADDING
    return memory if len(memory) >= room else np.empty(2 * room, np.uint8)


def _binary(data: npt.NDArray[np.uint8], begin: int, ends: npt.NDArray[np.int32]) -> pa.Array[Any]:
    """Values of a table, copied."""
    whole = data[begin : begin + int(ends[-1])].tobytes()
    buffers = [None, pa.py_buffer(memoryview(cast("Any", ends))), pa.py_buffer(whole)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
