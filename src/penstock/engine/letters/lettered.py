"""Which records have a dead letter already, so that they get no other: a record has one, over upgrades.

A changed program reads records again that the one before has read, and refuses most of what that has
refused. A plan says up to where the dead-letter topic counts. All that the program before has put there of
the records of the plan is before that: it writes letters before it commits the version that the plan
follows. What the batch itself writes is behind it, so that a batch that is run again writes the same.

A record is known by its topic, partition and offset, and by its value, as a topic of the same name may have
been created anew.
"""

from __future__ import annotations

import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from penstock.engine.letters.letters import CUT_BYTES
from penstock.engine.log import Log
from penstock.wire.columns import Records
from penstock.wire.headers import header_values

__all__ = ["KnownOf", "lettered_before"]

KnownOf = Callable[[Records], np.ndarray]
"""Gives the offsets of those records of a chunk that have a letter: int64[n], ascending."""


class _Place(NamedTuple):
    """A letter: where it is, and of which value."""

    partition: int
    offset: int
    checksum: int


class _Lettered:
    """The letters of one topic, as far as they have been read."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log, self._topic = weakref.ref(log), topic
        self._read: dict[int, int] = {}
        self._letters: defaultdict[str, dict[int, list[_Place]]] = defaultdict(dict)

    def of(self, place: str, chunk: Records, ends: Mapping[str, int]) -> np.ndarray:
        """The offsets of a chunk's records that have a letter before these ends."""
        self._read_up_to(ends)
        known = self._letters.get(place, {})
        found = [
            at
            for row, at in enumerate(chunk.offset.tolist())
            if at in known
            and any(
                one.offset < ends.get(str(one.partition), 0)
                and one.checksum == _checksum(_value(chunk, row))
                for one in known[at]
            )
        ]
        return np.array(found, np.int64)

    def _read_up_to(self, ends: Mapping[str, int]) -> None:
        log = self._log()
        assert log is not None, "who asks has it"
        for partition, end in ends.items():
            start = self._read.get(int(partition), 0)
            if start >= end:
                continue
            first = log.start_offsets([self._topic])[self._topic].get(int(partition), 0)
            for records in log.read(self._topic, int(partition), max(start, first), end):
                self._take(int(partition), records)
            self._read[int(partition)] = end

    def _take(self, partition: int, records: Records) -> None:
        names = ("penstock.topic", "penstock.partition", "penstock.offset")
        columns = (header_values(records, name).to_pylist() for name in names)
        rows = zip(*columns, records.offset.tolist(), strict=True)
        for row, (topic, of, at, offset) in enumerate(rows):
            if topic is None or of is None or at is None or at.startswith(b"-"):
                continue  # of a row that was no record
            letter = _Place(partition, offset, _checksum(_value(records, row)))
            letters = self._letters[f"{topic.decode()}/{of.decode()}"]
            letters.setdefault(int(at), []).append(letter)


_KNOWN: Final[weakref.WeakKeyDictionary[Log, dict[str, _Lettered]]] = weakref.WeakKeyDictionary()
"""By the log: a process reads letters once."""


def lettered_before(
    log: Log, topic: str, ends: Mapping[str, int] | None, place: str
) -> KnownOf | None:
    """What finds the records of a partition that have a letter; None where a plan doesn't ask.

    Args:
        log: that has the letters, which are read when they are first needed.
        topic: of dead letters.
        ends: by partition, up to where they count.
        place: the records' `topic/partition`.
    """
    if ends is None:
        return None
    known = _KNOWN.setdefault(log, {}).setdefault(topic, _Lettered(log, topic))
    return lambda chunk: known.of(place, chunk, ends)


def _value(records: Records, row: int) -> bytes:
    """What a letter has of a record's value, whether it was cut or not."""
    start, length = int(records.value_start[row]), int(records.value_length[row])
    return records.buffer[start : start + min(max(length, 0), CUT_BYTES)].tobytes()


def _checksum(value: bytes) -> int:
    return zlib.crc32(value)
