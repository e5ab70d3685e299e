"""Many rows of a database to JSON at a time. Pure.

    where each value is, in bytes that the database has sent  ->  JSON of rows and of their keys

Values that are JSON as they are, or between quotes, are copied from these bytes; JSON of others is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.chunked import kernels
from penstock.capture.envelope import members
from penstock.errors import LimitError

__all__ = ["BOOL", "PLAIN", "TEXT", "Raw", "wrapped"]

BOOL, PLAIN, TEXT = kernels.BOOL, kernels.PLAIN, kernels.TEXT
VALUES_BYTES_MAX: Final = 2**31 - 1
"""Of all rows at once: Arrow's offsets are 32 bits."""
_CONSTANT_BYTES: Final = 6
"""Beyond its bytes, of a value: `false` of `f`, or quotes."""


class Raw:
    """Rows, and where their values are.

    Args:
        data: what has them.
        columns: how many values a row has.
        at: their places, row by row; changed when JSON of some is given.
        size: their sizes; -1 for NULL. Likewise.
    """

    def __init__(
        self, data: bytes, columns: int, at: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
    ) -> None:
        self.data, self.columns, self.at, self.size = data, columns, at, size
        self.array = np.frombuffer(data, np.uint8)
        self.rows = len(at) // columns
        self._extra: list[bytes] = []
        self._extra_bytes = 0

    def value(self, row: int, column: int) -> bytes | None:
        """A value as the database has sent it."""
        i = row * self.columns + column
        at, size = int(self.at[i]), int(self.size[i])
        return None if size < 0 else self.data[at : at + size]

    def put(self, column: int, rows: npt.NDArray[np.int64], made: Sequence[bytes]) -> None:
        """Gives JSON of values of a column, in some rows."""
        if made:
            self.put_all(column, rows, b"".join(made), np.array([*map(len, made)], np.int64))

    def put_all(
        self,
        column: int,
        rows: npt.NDArray[np.int64],
        made: bytes,
        sizes: npt.NDArray[np.int64],
    ) -> None:
        """The same, one after another in `made`."""
        places = rows * self.columns + column
        self.at[places] = len(self.data) + self._extra_bytes + np.cumsum(sizes) - sizes
        self.size[places] = sizes
        self._extra.append(made)
        self._extra_bytes += len(made)

    def objects(self, names: Sequence[str], places: Sequence[int], kinds: Sequence[int]) -> Any:
        """Objects of some columns, as JSON: binary, a row each.

        Args:
            names: the columns'.
            places: which they are.
            kinds: how their values are written.

        Raises:
            LimitError: they are longer than `VALUES_BYTES_MAX`.
        """
        begins = members(names)
        name_ends = np.cumsum([0, *map(len, begins)], dtype=np.int64)
        extra = b"".join(self._extra)
        size = (int(name_ends[-1]) + _CONSTANT_BYTES * len(names) + 2) * self.rows
        out = np.empty(size + len(self.data) + len(extra) + kernels.PADDING, np.uint8)
        ends = np.empty(self.rows + 1, np.int64)
        kernels.write_objects(
            *(self.array, np.frombuffer(extra, np.uint8), self.columns),
            *(np.array(places, np.int64), np.array(kinds, np.int64), self.at, self.size),
            *(_padded(b"".join(begins)), name_ends, ends, out),
        )
        _check_size(int(ends[-1]))
        return _binary(ends.astype(np.int32), out)


def wrapped(
    rows: pa.Array[Any], head: bytes, tail: bytes, scratch: npt.NDArray[np.uint8]
) -> tuple[pa.Array[Any], npt.NDArray[np.uint8]]:
    """Values between a head and a tail.

    Args:
        rows: the values, binary, none NULL.
        head: what precedes each.
        tail: what follows.
        scratch: memory for the results, so that the system doesn't have to give some each time.

    Returns: the results, binary; they are valid until their memory, which comes with them, is passed again.

    >>> wrapped(pa.array([b"a", b"", b"bc"]), b"<", b">", np.empty(0, np.uint8))[0].to_pylist()
    [b'<a>', b'<>', b'<bc>']
    """
    if not head + tail:
        return rows, scratch
    at = np.frombuffer(_memory(rows, 1), np.int32)[rows.offset :][: len(rows) + 1]
    size = int(at[-1] - at[0]) + (len(head) + len(tail)) * len(rows)
    _check_size(size)
    room = size + kernels.PADDING
    out = scratch if len(scratch) >= room else np.empty(room, np.uint8)
    data, ends = np.frombuffer(_memory(rows, 2), np.uint8), np.empty(len(at), np.int32)
    kernels.wrap_all(data, at, _padded(head), _padded(tail), ends, out)
    return _binary(ends, out), out


def _padded(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data + bytes(kernels.PADDING), np.uint8)


def _memory(rows: pa.Array[Any], i: int) -> memoryview:
    found = rows.buffers()[i]
    return memoryview(b"" if found is None else cast("Any", found))


def _binary(ends: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Array[Any]:
    buffers = [None, *(pa.py_buffer(memoryview(cast("Any", one))) for one in (ends, data))]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _check_size(size: int) -> None:
    if size > VALUES_BYTES_MAX:
        raise LimitError(f"expected at most {VALUES_BYTES_MAX:,} bytes of rows; found {size:,}")
