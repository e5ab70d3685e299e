"""The leaves that queries have, by numbers, and where documents have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.searches.analysis import Analyzer, Vocabulary
from penstock.searches.bounds import codes_of
from penstock.searches.fields import Field, Fields, Kind, coordinates, flattened
from penstock.searches.leaves import (
    AnyValue,
    Cell,
    Inner,
    Leaf,
    PatternLeaf,
    TermLeaf,
    Tile,
    share,
)
from penstock.searches.pools import Pool
from penstock.searches.tree import Query
from penstock.searches.words import Occurrences, WordTable

if TYPE_CHECKING:
    from typing import Protocol

    class Queries(Protocol):
        """Stored queries over the elements of lists."""

        def store(self, query: Query) -> int:
            """Stores one."""

        def matches(self, documents: pa.Table) -> pa.Table:
            """Documents and queries."""


__all__ = ["Registry", "Vocabularies"]


class Vocabularies:
    """The terms of each analyzer; one that is full begins anew."""

    def __init__(self) -> None:
        self._of_analyzer: dict[Analyzer, Vocabulary] = {}

    def of(self, field: Field) -> Vocabulary:
        """Of a field's analyzer."""
        found = self._of_analyzer.get(field.analyzer)
        if found is None or found.is_full:
            found = self._of_analyzer[field.analyzer] = Vocabulary(field.analyzer)
        return found


class Registry:
    """Leaves.

    Args:
        fields: of the documents.
        inside: makes what stores queries over the elements of a list.
    """

    def __init__(self, fields: Fields, inside: Callable[[Fields], Queries]) -> None:
        self.shares = Pool(np.float64)
        self._fields = fields
        self._make_inside = inside
        self._numbers: dict[Leaf, int] = {}
        self._words: dict[str, WordTable] = {}
        self._any: dict[str, int] = {}
        self._cells: dict[str, dict[int, dict[int, int]]] = {}
        self._tiles: dict[str, dict[int, dict[int, int]]] = {}
        self._inside: dict[str, tuple[Queries, Pool]] = {}
        self._vocabularies = Vocabularies()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, leaf: Leaf) -> int:
        """A leaf's number; a new one is the next."""
        found = self._numbers.get(leaf)
        if found is not None:
            return found
        number = len(self._numbers)
        match leaf:
            case TermLeaf(name, text):
                self._table(name).add_term(text, number)
            case PatternLeaf(name, pattern):
                self._table(name).add_pattern(pattern, number)
            case AnyValue(name):
                self._any[name] = number
            case Cell(name, level, block):
                self._cells.setdefault(name, {}).setdefault(level, {})[block] = number
            case Tile(name, level, row, column):
                leaf_of = self._tiles.setdefault(name, {}).setdefault(level, {})
                leaf_of[row << level | column] = number
            case Inner(name, query):
                self._store_inside(name, query, number)
        self._numbers[leaf] = number
        self.shares.append(share(leaf))
        return number

    def keeping(self, numbers: Vector) -> Registry:
        """Another, with some of the leaves, numbered anew in their order."""
        leaves = list(self._numbers)
        made = Registry(self._fields, self._make_inside)
        for number in numbers.tolist():
            made.number(leaves[number])
        return made

    def occurrences(self, documents: pa.Table) -> list[Occurrences]:
        """Where documents have leaves: of each field's texts together, in the order of positions."""
        found: list[Occurrences] = []
        for name, table in self._words.items():
            found.append(table.occurrences(documents, self._vocabularies.of(self._field(name))))
        for name, leaf in self._any.items():
            rows = np.unique(flattened(documents, name).rows)
            found.append(_plain(rows, np.full(len(rows), leaf, np.int32)))
        for name, cells in self._cells.items():
            rows, codes, _, _ = self.values(documents, name)
            found += [_looked_up(rows, codes >> level, leaf_of) for level, leaf_of in cells.items()]
        for name, tiles in self._tiles.items():
            rows, _, latitudes, longitudes = self.values(documents, name)
            for level, leaf_of in tiles.items():
                found.append(_looked_up(rows, _tiles(latitudes, longitudes, level), leaf_of))
        for name, (queries, leaves) in self._inside.items():
            values = flattened(documents, name)
            elements: Any = values.values
            pairs = queries.matches(pa.Table.from_struct_array(elements))
            rows = values.rows[pairs["document"].to_numpy()]
            found.append(_distinct(rows, leaves.values[pairs["query"].to_numpy()]))
        return found

    def values(self, documents: pa.Table, name: str) -> tuple[Vector, Vector, Vector, Vector]:
        """The rows, codes, latitudes and longitudes of a field's values; what they don't have is 0."""
        values = flattened(documents, name)
        nothing = np.zeros(len(values.rows))
        if pa.types.is_struct(values.values.type):
            return values.rows, nothing.astype(np.int64), *coordinates(values.values)
        return values.rows, codes_of(values.values), nothing, nothing

    def _table(self, name: str) -> WordTable:
        if name not in self._words:
            self._words[name] = WordTable(name)
        return self._words[name]

    def _field(self, name: str) -> Field:
        found = self._fields.find(name)
        assert found is not None, "a leaf's field was found when its query was compiled"
        return found

    def _store_inside(self, name: str, query: Query, number: int) -> None:
        """Stores a query over a list's elements; it is refused if it can't be read."""
        if name not in self._inside:
            field = self._field(name)
            assert field.kind is Kind.NESTED
            self._inside[name] = self._make_inside(self._fields.inside(field)), Pool(np.int32)
        queries, leaves = self._inside[name]
        stored = queries.store(query)
        assert stored == len(leaves)
        leaves.append(number)


def _plain(rows: Vector, leaves: Vector) -> Occurrences:
    """Leaves that are no words."""
    nothing = np.zeros(len(rows), np.int32)
    return Occurrences(rows, leaves, nothing, nothing - 1)


def _distinct(rows: Vector, leaves: Vector) -> Occurrences:
    """Leaves that are no words; each once for a document."""
    pairs = np.unique(rows.astype(np.int64) << 32 | leaves)
    return _plain((pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32))


def _looked_up(rows: Vector, places: Vector, leaf_of: dict[int, int]) -> Occurrences:
    """Leaves by the cells that values are in."""
    keys = np.array(sorted(leaf_of), np.int64)
    leaves = np.array([leaf_of[one] for one in keys.tolist()], np.int64)
    at = np.minimum(np.searchsorted(keys, places), len(keys) - 1)
    hits = keys[at] == places
    return _distinct(rows[hits], leaves[at[hits]])


def _tiles(latitudes: Vector, longitudes: Vector, level: int) -> Vector:
    """The tiles of points; -1 of what is no point."""
    size = 1 << level
    known = np.isfinite(latitudes) & np.isfinite(longitudes)
    rows = _shares(np.where(known, latitudes, 0.0) + 90, 180, size)
    columns = _shares(np.where(known, longitudes, 0.0) + 180, 360, size)
    return np.where(known, rows << level | columns, -1)


def _shares(degrees: Vector, whole: float, size: int) -> Vector:
    """As `leaves.tile`."""
    found: Vector = np.clip(degrees / whole * size, 0, size - 1).astype(np.int64)
    return found
