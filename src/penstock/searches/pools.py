"""Columns that grow: what a query adds goes behind what others added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.vectors import Vector

__all__ = ["Pool"]


class Pool:
    """A vector that grows at its end.

    Args:
        dtype: of its values.
        values: at first.
    """

    def __init__(self, dtype: Any, values: Sequence[Any] = ()) -> None:
        self._data = np.empty(64, dtype)
        self._size = 0
        self.extend(values)

    def __len__(self) -> int:
        return self._size

    def extend(self, values: Sequence[Any] | Vector) -> None:
        """Adds values at the end."""
        end = self._size + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[: self._size] = self.values
            self._data = grown
        self._data[self._size : end] = values
        self._size = end

    def append(self, value: Any) -> None:
        """Adds one value."""
        self.extend((value,))

    @property
    def values(self) -> Vector:
        """All values; they are the pool's own until it grows."""
        return self._data[: self._size]

    def replace(self, values: Vector) -> None:
        """Takes other values in place of all."""
        self._data = np.array(values, self._data.dtype)
        self._size = len(values)
