"""What documents are looked at for: terms, patterns of terms, and cells that values are in.

A leaf is present in a document or not. All queries share them, so that what a hundred thousand queries
need is found out once for each document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.searches.texts.patterns import Pattern
from penstock.searches.tree import Query

__all__ = [
    "AnyValue",
    "Cell",
    "Inner",
    "Leaf",
    "PatternLeaf",
    "TermLeaf",
    "Tile",
    "cells_between",
    "share",
    "tiles_around",
]

CELLS_MAX: Final = 4
"""That cover a range: with fewer they are coarser, with more a query is under more of them."""
TILES_MAX: Final = 9
LEVELS_MAX: Final = 20
"""Of tiles: the smallest are some 20 to 40 metres wide."""


_SHARES: Final = (0.3, 0.2, 0.1, 0.06, 0.03, 0.015)
"""Of documents that have a term, by the term's length: short words are common."""


@dataclass(frozen=True, slots=True)
class TermLeaf:
    """A term in a field."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PatternLeaf:
    """One of a pattern's terms in a field."""

    name: str
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class AnyValue:
    """A value in a field."""

    name: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A value whose code has these first bits: `code >> level == block`."""

    name: str
    level: int
    block: int


@dataclass(frozen=True, slots=True)
class Tile:
    """A point in a field of a grid of `2 ** level` by `2 ** level` degrees' shares."""

    name: str
    level: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Inner:
    """An element of a list that a query matches."""

    name: str
    query: Query


Leaf: TypeAlias = TermLeaf | PatternLeaf | AnyValue | Cell | Tile | Inner


def share(leaf: Leaf) -> float:
    """The share of documents that may have a leaf, before any were seen."""
    match leaf:
        case TermLeaf(_, text):
            return _SHARES[min(len(text), 5)]
        case PatternLeaf(_, pattern):
            return max(0.05, 0.9 * 0.5 ** min(pattern.literal_chars, 5))
        case AnyValue():
            return 0.95
        case Cell():
            return 0.3
        case Tile():
            return 0.05
        case Inner():
            return 0.2


def cells_between(name: str, low: int, high: int) -> list[Leaf]:
    """Cells of one size that cover a range of codes, and no more than `CELLS_MAX`."""
    level = max(0, (high - low).bit_length() - CELLS_MAX.bit_length() + 1)
    while (high >> level) - (low >> level) >= CELLS_MAX:
        level += 1
    return [Cell(name, level, block) for block in range(low >> level, (high >> level) + 1)]


def tiles_around(name: str, *, top: float, left: float, bottom: float, right: float) -> list[Leaf]:
    """No more than `TILES_MAX` tiles of one size that cover a box; `left > right` crosses the date line."""
    for level in range(LEVELS_MAX, -1, -1):
        size = 1 << level
        first_row, last_row = tile(bottom, 180.0, 90.0, size), tile(top, 180.0, 90.0, size)
        first, last = tile(left, 360.0, 180.0, size), tile(right, 360.0, 180.0, size)
        columns = (last - first if left <= right else size - first + last) + 1
        if (last_row - first_row + 1) * columns > TILES_MAX:
            continue
        return [
            Tile(name, level, row, column)
            for row in range(first_row, last_row + 1)
            for column in dict.fromkeys((first + i) % size for i in range(columns))
        ]
    raise AssertionError("one tile covers the earth")


def tile(degrees: float, whole: float, shift: float, size: int) -> int:
    """In which of `size` equal shares an angle is."""
    return min(max(int((degrees + shift) / whole * size), 0), size - 1)
