"""Members of JSON objects, as stretches of the buffer that they lie in: envelopes are opened with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.schema import Field, Schema
from penstock.formats import json_kernel as kernel
from penstock.formats.json import compiled, key_table
from penstock.formats.json_members import find_members
from penstock.formats.json_slow import BadRowError, parse, shown, spelled

__all__ = ["MemberFinder", "Members", "Texts"]


@dataclass(frozen=True)
class Texts:
    """Stretches of a buffer.

    Attributes:
        buffer: uint8, C-contiguous.
        start: int64[n], where each begins.
        length: int32[n], its bytes; -1 where there is none.
    """

    buffer: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def known(self) -> np.ndarray:
        """bool[n]: which are there."""
        return self.length >= 0

    def take(self, rows: np.ndarray) -> Texts:
        """Some of them."""
        return Texts(self.buffer, self.start[rows], self.length[rows])

    def first(self, at: int = 0) -> np.ndarray:
        """uint8[n]: the byte at a position of each; 0 where that is beyond its end."""
        there = self.length > at
        return np.where(there, self.buffer[np.where(there, self.start + at, 0)], 0)

    def text(self, row: int) -> bytes:
        """One of them; it must be there."""
        return self.buffer[self.start[row] : self.start[row] + self.length[row]].tobytes()


@dataclass(frozen=True)
class Members:
    """What `MemberFinder.find` found.

    Attributes:
        of: by name, the member's value in each row; none where the row has no such member, or null.
        others: bool[n], which rows have a member of another name.
        bad: the rows that are no objects, and why.
    """

    of: dict[str, Texts]
    others: np.ndarray
    bad: dict[int, str]


class MemberFinder:
    """Finds some members of objects. It holds no state between batches; threads may share it.

    >>> row = b'{"op": "c", "after": {"id": 7}}'
    >>> rows = Texts(np.frombuffer(row, np.uint8), np.array([0]), np.array([len(row)], np.int32))
    >>> MemberFinder(["after", "before"]).find(rows).of["after"].text(0)
    b'{"id": 7}'
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._fields, self._keys = compiled(Schema(tuple(Field(n, pa.string()) for n in names)))
        self._table = key_table(self._fields, self._keys)

    def find(self, rows: Texts) -> Members:
        """The members of each row.

        Raises:
            ValueError: a row lies outside its buffer.
        """
        start = np.ascontiguousarray(rows.start, np.int64)
        length = np.ascontiguousarray(rows.length, np.int32)
        at = np.empty((len(self.names), len(rows)), np.int64)
        size = np.empty((len(self.names), len(rows)), np.int32)
        status, others = np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint8)
        slow = find_members(
            *(rows.buffer, start, length, self._fields, self._keys, self._table),
            *(at, size, others, status),
        )
        if slow < 0:
            raise ValueError(f"expected rows within {len(rows.buffer)} bytes; found row {~slow}")
        bad: dict[int, str] = {}
        extra = bytearray()
        for row in np.flatnonzero(status != kernel.OK).tolist():
            try:
                found = self._slowly(rows, row)
            except BadRowError as error:
                bad[row], others[row] = str(error), 0
                continue
            others[row] = not found.keys() <= set(self.names)
            for i, text in enumerate(map(_spelled, map(found.get, self.names))):
                if text is not None:
                    at[i, row], size[i, row] = len(rows.buffer) + len(extra), len(text)
                    extra += text
        buffer = rows.buffer
        if extra:
            buffer = np.concatenate([buffer, np.frombuffer(bytes(extra), np.uint8)])
        of = {name: Texts(buffer, at[i], size[i]) for i, name in enumerate(self.names)}
        return Members(of, others.astype(np.bool_), bad)

    @staticmethod
    def _slowly(rows: Texts, row: int) -> dict[str, Any]:
        if rows.length[row] < 0:
            raise BadRowError("expected a JSON object; found no value (null)")
        found = parse(rows.text(row))
        if type(found) is not dict:
            raise BadRowError(f"expected a JSON object; found {shown(found)}")
        return found


def _spelled(value: Any) -> bytes | None:
    return None if value is None else spelled(value).encode()
