"""Avro records on their way: each has a cursor, and all cursors are moved together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import JSON
from penstock.formats.payloads import of_strings

__all__ = ["Rows", "as_column"]

HEAD_BYTES: Final = 5
"""Of a registry: a zero byte, and the schema's id."""
FOUND_MAX: Final = 60
"""Characters of a wrong value that a reason shows."""


class Rows:
    """Records on their way: where each one's cursor is, and which are bad."""

    def __init__(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        self.buffer = buffer
        self.at = start.astype(np.int64).copy()
        self.stop = self.at + np.maximum(length, 0)
        self.good = np.ones(len(start), np.bool_)
        self.reasons: dict[int, str] = {}
        self.fail(length < 0, lambda _: "expected an Avro record; found no value (null)")

    def __len__(self) -> int:
        return len(self.at)

    def fail(self, mask: np.ndarray, reason: Callable[[int], str]) -> None:
        """Makes records bad, unless they are."""
        for row in np.flatnonzero(mask & self.good).tolist():
            self.reasons[row] = reason(row)
        self.good &= ~mask

    def ids(self) -> np.ndarray:
        """The ids in the heads."""
        head = self.bytes(np.ones(len(self), np.bool_), HEAD_BYTES)
        self.fail(head[:, 0] != 0, lambda row: f"expected a zero byte first; found {head[row, 0]}")
        return np.ascontiguousarray(head[:, 1:]).view(">u4")[:, 0].astype(np.int64)

    def end(self) -> None:
        """Nothing may follow."""
        self.fail(
            self.at != self.stop,
            lambda row: (
                f"expected the record's end; found {self.stop[row] - self.at[row]} more bytes"
            ),
        )

    def skip(self, mask: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Passes over bytes; where they begin."""
        mask = mask & self.good
        short = mask & ((size < 0) | (size > self.stop - self.at))
        self.fail(short, lambda row: f"expected {size[row]} more bytes; found the record's end")
        begin = self.at.copy()
        self.at[mask & ~short] += size[mask & ~short]
        return begin

    def bytes(self, mask: np.ndarray, size: int) -> np.ndarray:
        """uint8[n, size]; zeros for other records."""
        begin = self.skip(mask, np.full(len(self), size, np.int64))
        out = np.zeros((len(self), size), np.uint8)
        rows = np.flatnonzero(mask & self.good)
        out[rows] = self.buffer[begin[rows, None] + np.arange(size)]
        return out

    def number(self, mask: np.ndarray) -> np.ndarray:
        """int64[n]: zigzag numbers of varying length; 0 for other records."""
        value = np.zeros(len(self), np.uint64)
        rows = np.flatnonzero(mask & self.good)
        for shift in range(0, 70, 7):
            over = rows[self.at[rows] >= self.stop[rows]]
            self._fail_rows(over, "expected a number; found the record's end")
            rows = rows[self.at[rows] < self.stop[rows]]
            if not len(rows):
                break
            byte = self.buffer[self.at[rows]].astype(np.uint64)
            self.at[rows] += 1
            value[rows] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
            rows = rows[byte >= 0x80]
        self._fail_rows(rows, "expected a number of at most 10 bytes; found a longer one")
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def _fail_rows(self, rows: np.ndarray, reason: str) -> None:
        mask = np.zeros(len(self), np.bool_)
        mask[rows] = True
        self.fail(mask, lambda _: reason)


def as_column(rows: Rows, name: str, values: Any, type_: Any) -> Any:
    """A field's values as a column; records whose text isn't the JSON that the column has are bad."""
    if type_ != JSON or values.type != pa.string():
        return values.cast(type_)
    found, wrong = of_strings(values)
    rows.fail(
        wrong,
        lambda row: (
            f"field {name!r}: expected JSON as text; found {values[row].as_py()[:FOUND_MAX]!r}"
        ),
    )
    return found
