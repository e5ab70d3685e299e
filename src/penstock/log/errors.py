"""Why a log refuses a batch, with the protocol's code for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import CorruptError, PenstockError
from penstock.wire.protocol import ErrorCode

__all__ = [
    "AppendError",
    "DamagedError",
    "DamagedSegmentError",
    "OffsetRangeError",
    "RecordError",
    "StorageError",
]


class RecordError(NamedTuple):
    """What is wrong with one record of a batch.

    Attributes:
        batch_index: its place in the batch, from 0.
        message: what was expected, what was found.
    """

    batch_index: int
    message: str


class AppendError(PenstockError):
    """A batch that may not be appended; the log is unchanged.

    Attributes:
        code: the protocol's error code.
        records: the records at fault, in order, where it is known which they are; not all where they
            are many.
    """

    def __init__(self, code: ErrorCode, message: str, records: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.records = records


class StorageError(PenstockError):
    """The disk failed or is full; the batch is not in the log."""


class DamagedError(StorageError):
    """The records that were asked for are not what was written; others can be read.

    Attributes:
        next_offset: the first offset after them.
    """

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class DamagedSegmentError(CorruptError):
    """A segment isn't what was written, so it can't be copied.

    Attributes:
        base_offset: where it begins.
    """

    def __init__(self, message: str, base_offset: int) -> None:
        super().__init__(message)
        self.base_offset = base_offset


class OffsetRangeError(PenstockError):
    """An offset below the log's start or beyond its end was asked for."""
