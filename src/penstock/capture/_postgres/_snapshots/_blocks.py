"""Many rows of COPY to JSON at a time. Pure.

    COPY's text  ->  where each value is  ->  JSON of rows and of their keys  ->  records' values

Integers, booleans and texts without escapes are copied from COPY's text; other values are converted one by
one, as `Table.of_texts` does. `rows_of` gives the same JSON as that and `Table.row`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture._chunked import Rows
from penstock.capture._postgres._copy import unescaped
from penstock.capture._postgres._rows import Table, fragment, members
from penstock.capture._postgres._snapshots import _kernels as kernels
from penstock.capture._postgres._types import is_bool
from penstock.errors import CorruptError, LimitError

__all__ = ["rows_of", "wrapped"]

VALUES_BYTES_MAX: Final = 2**31 - 1
"""Of all rows at once: Arrow's offsets are 32 bits."""
_CONSTANT_BYTES: Final = 6
"""Beyond its text, of a value: `false` of `f`, or quotes."""


def rows_of(table: Table, data: bytes, key: Sequence[str]) -> Rows:
    """The rows of a table.

    Args:
        table: whose; it has a primary key.
        data: whole lines of COPY, of all columns; at least one.
        key: the columns of `Rows.last`.

    Raises:
        CorruptError: a line has another number of values.
        LimitError: the rows are longer than `VALUES_BYTES_MAX`.
    """
    names = [one.name for one in table.relation.columns]
    text = _Text(data, len(names))
    is_text = data.isascii() or _is_utf8(data)
    kinds = {
        name: text.prepare(i, convert, is_text=is_text) for i, name, convert in table.converters
    }
    places = {name: i for i, name, _ in table.converters}
    last = (text.value(text.rows - 1, names.index(one)) for one in key)
    return Rows(
        text.objects(table.key, places, kinds),
        text.objects(table.names, places, kinds),
        tuple(unescaped(one or b"").decode() for one in last),
    )


class _Text:
    """Lines of COPY, and where their values are."""

    def __init__(self, data: bytes, columns: int) -> None:
        self._data, self._columns = data, columns
        self._array = np.frombuffer(data, np.uint8)
        self.rows = data.count(b"\n")
        count = self.rows * columns
        self._at, self._size = np.empty(count, np.int64), np.empty(count, np.int64)
        self._escaped = np.empty(count, np.uint8)
        found = kernels.find_values(self._array, columns, self._at, self._size, self._escaped)
        if found != count:
            raise CorruptError(
                f"expected {self.rows} lines of COPY with {columns} values each; found {data[:60]!r}"
            )
        self._extra: list[bytes] = []
        self._extra_bytes = 0

    def value(self, row: int, column: int) -> bytes | None:
        """A value as COPY has it."""
        i = row * self._columns + column
        at, size = int(self._at[i]), int(self._size[i])
        return None if size < 0 else self._data[at : at + size]

    def prepare(self, column: int, convert: Callable[[bytes], Any], *, is_text: bool) -> int:
        """How a column's values are written; those that aren't copied are made JSON of."""
        if convert is int:
            return kernels.PLAIN
        if is_bool(convert):
            return kernels.BOOL
        its = slice(column, None, self._columns)
        if convert is bytes.decode and is_text:
            some = np.flatnonzero(self._escaped[its])
        else:
            some = np.flatnonzero(self._size[its] >= 0)
        rows = some.tolist()
        made = [fragment(convert, unescaped(self.value(row, column) or b"")) for row in rows]
        if made:
            sizes = np.array([len(one) for one in made], np.int64)
            begins = np.cumsum(sizes) - sizes + self._extra_bytes
            places = some * self._columns + column
            self._at[places], self._size[places] = len(self._data) + begins, sizes
            self._extra += made
            self._extra_bytes += int(sizes.sum())
        return kernels.TEXT

    def objects(
        self, names: Sequence[str], places: dict[str, int], kinds: dict[str, int]
    ) -> pa.Array[Any]:
        """Objects of some columns."""
        begins = members(names)
        name_ends = np.cumsum([0, *map(len, begins)], dtype=np.int64)
        extra = b"".join(self._extra)
        size = (int(name_ends[-1]) + _CONSTANT_BYTES * len(names) + 2) * self.rows
        out = np.empty(size + len(self._data) + len(extra) + kernels.PADDING, np.uint8)
        ends = np.empty(self.rows + 1, np.int64)
        kernels.write_objects(
            *(self._array, np.frombuffer(extra, np.uint8), self._columns),
            np.array([places[one] for one in names], np.int64),
            np.array([kinds[one] for one in names], np.int64),
            *(self._at, self._size),
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


def _is_utf8(data: bytes) -> bool:
    """Whether all is; a database in SQL_ASCII may have anything."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
