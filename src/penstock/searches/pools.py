"""Columns that grow: what a query adds goes behind what others added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock.core.vectors import Vector

__all__ = ["Pool"]


WAITING_MAX: Final = 65_536
"""Values that wait as Python's objects, some 40 bytes each, to be taken together."""


class Pool:
    """A vector that grows at its end.

    Args:
        dtype: of its values.
        values: at first.
    """

    def __init__(self, dtype: Any, values: Sequence[Any] = ()) -> None:
        self._data = np.empty(64, dtype)
        self._size = 0
        self._waiting: list[Any] = list(values)

    def __len__(self) -> int:
        return self._size + len(self._waiting)

    def extend(self, values: Sequence[Any]) -> None:
        """Adds values at the end."""
        self._waiting.extend(values)
        if len(self._waiting) > WAITING_MAX:
            self._take()

    def append(self, value: Any) -> None:
        """Adds one value."""
        self._waiting.append(value)
        if len(self._waiting) > WAITING_MAX:
            self._take()

    @property
    def values(self) -> Vector:
        """All values; they are the pool's own until it grows."""
        if self._waiting:
            self._take()
        return self._data[: self._size]

    def replace(self, values: Vector) -> None:
        """Takes other values in place of all."""
        self._data = np.array(values, self._data.dtype)
        self._size = len(values)
        self._waiting = []

    def _take(self) -> None:
        """Makes values of those that wait."""
        end = self._size + len(self._waiting)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : end] = self._waiting
        self._size = end
        self._waiting = []
