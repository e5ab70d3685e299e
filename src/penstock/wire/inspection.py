"""Looks into the records of a batch that is to be appended: at their times, and whether they have keys.

    faults  =  [ i : keys are wanted and key(i) is null,  or  time(i) not in {-1} and [earliest, latest] ]

Two loops find the same. The compiled one makes no object per record, but takes a second to load and
140 MiB of memory; so it is for those who look into many batches, and is loaded in a thread of theirs
(`is_loop_wanted`, `load_loop`). Until then, the plain one does the work.

Nothing is looked at behind a record's key. Source: Kafka's LogValidator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import CorruptError
from penstock.wire.batches import HEADER_BYTES, Buffer, Header, decompressed, read_varint

__all__ = [
    "FAULTS_MAX",
    "NO_TIMESTAMP",
    "Fault",
    "Inspected",
    "Wanted",
    "inspect",
    "is_loop_wanted",
    "load_loop",
    "want_loop",
]

NO_TIMESTAMP: Final = -1
"""The time of a record that has none; it is never out of range."""
FAULTS_MAX: Final = 1 << 14
"""Most records at fault that are reported one by one: nothing compresses so well as many empty records, and
an answer takes about 100 bytes for each."""
_RECORD_BYTES_MIN: Final = 6
"""Attributes, two deltas, key length, value length, header count."""
_INT64_MIN: Final = -(1 << 63)


class Wanted(NamedTuple):
    """What records must be like.

    Attributes:
        earliest_ms: the least time; `latest_ms` the greatest. Both fit into 64 bits.
        keys: whether each needs a key.
        time_ms: the time that all of them have, whatever they say; None: their own.
    """

    earliest_ms: int
    latest_ms: int
    keys: bool = False
    time_ms: int | None = None


class Fault(NamedTuple):
    """A record at fault.

    Attributes:
        batch_index: its place in the batch, from 0.
        timestamp_ms: its time, which is out of range; None: it lacks a key.
    """

    batch_index: int
    timestamp_ms: int | None


class Inspected(NamedTuple):
    """What was found.

    Attributes:
        max_timestamp: the records' greatest time (ms), at least `NO_TIMESTAMP`.
        fault_count: how many are at fault.
        time_fault_count: how many of those for their time.
        faults: the first `FAULTS_MAX` of them, in order.
    """

    max_timestamp: int
    fault_count: int
    time_fault_count: int
    faults: list[Fault]


_Loop: TypeAlias = Callable[[Buffer, int, int, Wanted], Inspected | None]


class _Loops:
    """Which loop there is, and whether the other one is wanted."""

    compiled: _Loop | None = None
    is_wanted = False


def want_loop() -> None:
    """Says that many batches will be looked into."""
    _Loops.is_wanted = True


def is_loop_wanted() -> bool:
    """Whether somebody shall load the compiled loop."""
    return _Loops.is_wanted and _Loops.compiled is None


def load_loop() -> None:
    """Loads the compiled loop, which takes about a second; from now on it does the work."""
    import numpy as np

    from penstock.wire.kernels import BAD_RECORD, inspect_records

    none = np.empty(0, np.int64)

    def compiled(body: Buffer, count: int, base_ms: int, wanted: Wanted) -> Inspected | None:
        data = np.frombuffer(body, np.uint8)
        data.flags.writeable = False
        is_own = wanted.time_ms is None
        asked = data, count, base_ms, is_own, wanted.earliest_ms, wanted.latest_ms, wanted.keys
        reason, max_ms, faults, late = inspect_records(*asked, none, none)
        if reason == BAD_RECORD:
            return None
        if not faults:
            return Inspected(max_ms, 0, 0, [])
        index = np.empty(min(faults, FAULTS_MAX), np.int64)
        time_ms = np.empty_like(index)
        inspect_records(*asked, index, time_ms)
        described = [
            Fault(at, time) if at >= 0 else Fault(~at, None)
            for at, time in zip(index.tolist(), time_ms.tolist(), strict=True)
        ]
        return Inspected(max_ms, faults, late, described)

    _Loops.compiled = compiled


def inspect(batch: Buffer, header: Header, wanted: Wanted) -> Inspected:
    """Looks into a whole batch, whose header this is.

    Raises:
        CorruptError: its records are not what the header says.
        LimitError: they would take more than `batches.DECOMPRESSED_BYTES_MAX`.
    """
    body: Buffer = memoryview(batch)[HEADER_BYTES : header.size]
    if header.codec_number:
        body = decompressed(header, memoryview(body))
    loop = _Loops.compiled or _plain
    base_ms = header.base_timestamp if wanted.time_ms is None else wanted.time_ms
    found = loop(body, header.record_count, base_ms, wanted)
    if found is None:
        raise CorruptError(
            f"expected {header.record_count} records in {len(body)} bytes; found others"
        )
    return found


def _plain(body: Buffer, count: int, base_ms: int, wanted: Wanted) -> Inspected | None:
    """The loop in Python; None where the bytes are not so many records."""
    max_ms, late, faults, described = NO_TIMESTAMP, 0, 0, list[Fault]()
    body = memoryview(body)
    at, end = 0, len(body)
    for index in range(count):
        try:
            length, at = read_varint(body, at)
            if not _RECORD_BYTES_MIN <= length <= end - at:
                return None
            record, at = body[at : at + length], at + length
            delta, field = read_varint(record, 1)
            _, field = read_varint(record, field)
            key_bytes, field = read_varint(record, field)
        except CorruptError:
            return None
        if not -1 <= key_bytes <= length - field:
            return None
        time_ms = base_ms
        if wanted.time_ms is None:
            time_ms = (base_ms + delta - _INT64_MIN) % (1 << 64) + _INT64_MIN
        max_ms = max(max_ms, time_ms)
        lacks_key = wanted.keys and key_bytes < 0
        is_late = not (
            lacks_key
            or time_ms == NO_TIMESTAMP
            or wanted.earliest_ms <= time_ms <= wanted.latest_ms
        )
        if lacks_key or is_late:
            late += is_late
            faults += 1
            if faults <= FAULTS_MAX:
                described.append(Fault(index, None if lacks_key else time_ms))
    return Inspected(max_ms, faults, late, described) if at == end else None
