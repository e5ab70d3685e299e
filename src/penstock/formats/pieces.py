"""Columns as bytes of each value, for formats that put the values of a row one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.literals import uuid_texts
from penstock.core.schema import UUID
from penstock.errors import LimitError
from penstock.formats.json_encode import arrow_buffer, bytes_of
from penstock.formats.json_pieces import place_column

__all__ = ["Pieces", "joined", "texts_of", "whole_columns"]

BYTES_MAX: Final = 2**31 - 1
"""Of the records that are encoded at once: Arrow's offsets are 32 bits."""


@dataclass(frozen=True)
class Pieces:
    """A column's values: `data` between the positions `ends`, one more than values."""

    ends: np.ndarray
    data: np.ndarray

    @staticmethod
    def sized(rows: int, size: int) -> Pieces:
        """What kernels write into."""
        return Pieces(np.empty(rows + 1, np.int64), np.empty(size, np.uint8))

    def column(self, format_: str) -> pa.Array[Any]:
        """The values as a binary column.

        Args:
            format_: what they are, for the message.

        Raises:
            LimitError: they have more than `BYTES_MAX` bytes.
        """
        rows = len(self.ends) - 1
        if self.ends[-1] > BYTES_MAX:
            raise LimitError(
                f"expected at most {BYTES_MAX} bytes of {format_} at once; found more in {rows} rows. Write "
                "fewer rows at a time, or omit the longest columns"
            )
        buffers = [None, arrow_buffer(self.ends.astype(np.int32)), arrow_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, 0)


def whole_columns(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[Any]:
    """The columns of these names, each in one chunk."""
    columns: list[Any] = [rows.column(name) for name in names]
    return [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]


def texts_of(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the bytes of texts, binary values or UUIDs."""
    texts = uuid_texts(column) if column.type == UUID else column
    whole = texts.cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    if offsets is None or len(whole) == 0:
        return np.zeros(len(whole) + 1, np.int64), np.empty(0, np.uint8)
    at = bytes_of(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return at, bytes_of(data, np.uint8)


def joined(parts: Sequence[Pieces], rows: int, head: bytes = b"") -> Pieces:
    """The columns' pieces of each row, one after another, behind a head."""
    size = np.full(rows, len(head), np.int64)
    for part in parts:
        size += np.diff(part.ends)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(size, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    cursor = ends[:-1].copy()
    before = np.frombuffer(head, np.uint8)
    for part in parts:
        place_column(before, part.ends, part.data, cursor, out)
        before = before[:0]
    return Pieces(ends, out)
