"""Records of tables on their way to a registry's format: held as JSON until many are encoded at once.

    records of a transaction, one by one or in columns  ->  what a topic has of them  ->  the log

Between `Output` and the log, with the log's interface as far as records go. What is counted, such as values
that don't fit and dead letters, is known when records are encoded. So that is before the state is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.envelope import NO_HEADERS, Block, Headers, Put, Waiting
from penstock.capture.progress import Log
from penstock.capture.registered import Registered
from penstock.capture.table_schemas import Shape
from penstock.capture.unread import Lost

__all__ = ["Encoding", "Judge", "without_letters"]

Judge = Callable[[tuple[Lost, ...]], Put | None]
"""Takes the values that an encoded record doesn't have; what takes it, where it is a dead letter."""


class Encoding:
    """Holds records until they are sent.

    Args:
        log: where to.
        by_schemas: writes records of tables; those of other topics are passed on as they are.
        judge: of each record with values that don't fit.
    """

    def __init__(self, log: Log, by_schemas: Registered, judge: Judge) -> None:
        self._log, self._by_schemas, self._judge = log, by_schemas, judge
        self._held: dict[str, Waiting] = {}
        #: Bytes that are held, and records.
        self.bytes = self.records = 0

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """Takes a record; see `Log.put`."""
        found = self._holding(topic)
        if found is None:
            self._log.put(topic, key, value, time_ms, headers)
            return
        self.bytes += found.add(key, value, time_ms, headers)
        self.records += 1

    def put_block(self, block: Block) -> None:
        """Takes records of one topic, in columns; see `Log.put_block`."""
        found = self._holding(block.topic)
        if found is None:
            self._log.put_block(block)
            return
        self.bytes += found.put(block)
        self.records += len(block.values)

    def _holding(self, topic: str) -> Waiting | None:
        """What takes the records of a topic that has schemas; None: they are written as they are."""
        found = self._held.get(topic)
        if found is None and self._by_schemas.shape(topic) is not None:
            found = self._held[topic] = Waiting()
        return found

    def use(self, topic: str, shape: Shape) -> int:
        """A topic's records have these columns from here on; see `pass_on`."""
        left_out = 0
        if topic in self._held and self._by_schemas.shape(topic) is not shape:
            left_out = self.pass_on()
        self._by_schemas.use(topic, shape)
        return left_out

    def pass_on(self) -> int:
        """Encodes what is held, and passes it on to the log.

        Returns: how many records are neither written nor dead letters: tombstones of rows whose key doesn't
        fit.
        """
        held, count = self._held, self._log.open_records + self.records
        self._held, self.bytes, self.records = {}, 0, 0
        for topic, waiting in held.items():
            shape = self._by_schemas.shape(topic)
            assert shape is not None
            if not self._by_schemas.are_many(len(waiting)):
                self._pass_on_each(topic, waiting)
                continue
            _, keys, values, times_ms = waiting.block(topic)
            keys, values, lost = self._by_schemas.columns(topic, keys, values, shape)
            block, headers = Block(topic, keys, values, times_ms), waiting.headers
            kept = without_letters(block, lost, self._judge, headers)
            if kept is not None:
                mask, places = pa.array(kept), np.cumsum(kept) - 1
                block = Block(topic, keys.filter(mask), values.filter(mask), times_ms[kept])
                headers = {int(places[i]): one for i, one in headers.items() if kept[i]}
            self._log.put_block(block, headers)
        return count - self._log.open_records

    def _pass_on_each(self, topic: str, waiting: Waiting) -> None:
        """Encodes a few records: columns of them would cost more than they."""
        by_schemas, log_put = self._by_schemas, self._log.put
        for i, (key, value, time_ms) in enumerate(waiting.rows()):
            made = by_schemas.record(topic, key, value)
            put = self._judge(by_schemas.take()) or log_put
            put(topic, *made, time_ms, waiting.headers.get(i, ()))


def without_letters(
    block: Block,
    lost: Mapping[int, tuple[Lost, ...]],
    judge: Judge,
    headers: Mapping[int, Headers] = NO_HEADERS,
) -> npt.NDArray[np.bool_] | None:
    """Which of some encoded records are written; the others become dead letters. None: all.

    Args:
        block: the records.
        lost: by place, the values that they don't have.
        judge: of those.
        headers: by place.
    """
    kept: npt.NDArray[np.bool_] | None = None
    for i, one in sorted(lost.items()):
        put = judge(one)
        if put is None:
            continue
        if kept is None:
            kept = np.ones(len(block.keys), np.bool_)
        kept[i] = False
        key: Any = block.keys[i].as_py()
        put(block.topic, key, block.values[i].as_py(), int(block.times_ms[i]), headers.get(i, ()))
    return kept
