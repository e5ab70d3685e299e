"""Columns as bytes of each value, for formats that put the values of a row one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.formats.json_pieces import place_column

__all__ = ["Pieces", "joined"]


@dataclass(frozen=True)
class Pieces:
    """A column's values: `data` between the positions `ends`, one more than values."""

    ends: np.ndarray
    data: np.ndarray

    @staticmethod
    def sized(rows: int, size: int) -> Pieces:
        """What kernels write into."""
        return Pieces(np.empty(rows + 1, np.int64), np.empty(size, np.uint8))


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
