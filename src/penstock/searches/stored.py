"""Stored queries, and the documents that run past them.

Invariant: `matches` gives each pair of a document and a query of which the query's tree is true, whatever was
added, removed and asked before. Each query is listed under the leaves of one of its necessary sets, the
rarest ones in the documents so far. A query without such a set is a candidate for each document.

Source: the presearcher of Lucene's Monitor (there one document at a time; here a batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.errors import SearchError
from penstock.searches.analysis import Analyzer, Vocabulary
from penstock.searches.bounds import codes_of
from penstock.searches.fields import Field, Fields, Kind, coordinates, flattened
from penstock.searches.kernels import by_group, choose, matched
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
from penstock.searches.programs import Compiler, Op, Program
from penstock.searches.syntax import parse
from penstock.searches.tree import Query
from penstock.searches.words import Occurrences, WordTable

__all__ = ["Refused", "Stored"]

CHOSEN_ANEW: Final = 16
"""Lists are chosen anew when so many times as many documents were seen as before."""
BELIEVED: Final = 64
"""Documents that the shares which are assumed count like."""


@dataclass(frozen=True)
class Refused:
    """A query that can't be read.

    Attributes:
        row: among those that were to be added.
        reason: what was expected, and what was found.
        at: where in its text, from 0.
    """

    row: int
    reason: str
    at: int


class Stored:
    """Queries that wait for documents.

    Args:
        fields: of the documents.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._leaves: dict[Leaf, int] = {}
        self._kinds: list[Leaf] = []
        self._vocabularies: dict[Analyzer, Vocabulary] = {}
        self._of_queries: dict[Analyzer, Vocabulary] = {}
        self._words: dict[str, WordTable] = {}
        self._columns: dict[str, int] = {}
        self._inner: dict[str, Stored] = {}
        self._cells: dict[tuple[str, int], dict[int, int]] = {}
        self._tiles: dict[tuple[str, int], dict[int, int]] = {}
        self._any: dict[str, int] = {}
        self._compiler = Compiler(fields, self._vocabulary_of_queries, self._leaf, self._column)
        self._numbers = Pool(np.int64)
        self._alive = Pool(np.bool_)
        self._code, self._starts = Pool(np.int32), Pool(np.int64)
        self._starts.append(0)
        self._bounds, self._floats = Pool(np.int64), Pool(np.float64)
        self._set_leaves, self._set_starts, self._query_sets = (
            Pool(np.int32),
            Pool(np.int32),
            Pool(np.int64),
        )
        self._set_starts.append(0)
        self._query_sets.append(0)
        self._never = Pool(np.bool_)
        self._chosen = Pool(np.int32)
        self._depth = 1
        self._next = 0
        self._seen = np.zeros(0, np.int64)
        self._documents = 0
        self._chosen_at = 0
        self._lists: tuple[Vector, Vector, Vector] | None = None
        self.candidates = 0

    def __len__(self) -> int:
        return int(self._alive.values.sum())

    def add(self, texts: Sequence[str | None]) -> tuple[Vector, list[Refused]]:
        """Stores queries.

        Args:
            texts: in Lucene's syntax.

        Returns:
            int64[n] with the number of each, by which matches name it; -1: it was refused. And those.
        """
        numbers = np.full(len(texts), -1, np.int64)
        refused: list[Refused] = []
        for row, text in enumerate(texts):
            try:
                if text is None:
                    raise SearchError("expected a query; found NULL", 0)
                numbers[row] = self.store(parse(text, operator=self.fields.operator))
            except SearchError as error:
                refused.append(Refused(row, str(error), error.at))
        return numbers, refused

    def store(self, query: Query) -> int:
        """Stores one query.

        Returns:
            Its number.

        Raises:
            SearchError: it names what documents don't have.
        """
        program = self._compiler.program(query)
        bounds, floats = len(self._bounds), len(self._floats)
        self._code.extend(_moved(program, bounds, floats))
        self._starts.append(len(self._code))
        self._bounds.extend(program.bounds)
        self._floats.extend(program.numbers)
        for leaves in program.sets or []:
            self._set_leaves.extend(leaves)
            self._set_starts.append(len(self._set_leaves))
        self._query_sets.append(len(self._set_starts) - 1)
        self._never.append(program.sets is None)
        self._numbers.append(self._next)
        self._alive.append(True)
        self._depth = max(self._depth, len(program.code))
        self._lists = None
        self._next += 1
        return self._next - 1

    def remove(self, numbers: Vector) -> None:
        """Forgets queries.

        Args:
            numbers: int64[n], that `add` gave.
        """
        known = self._numbers.values
        places = np.searchsorted(known, numbers)
        is_known = places < len(known)
        is_known[is_known] = known[places[is_known]] == np.asarray(numbers)[is_known]
        self._alive.values[places[is_known]] = False
        self._lists = None

    def matches(self, documents: pa.Table, *, scores: bool = False) -> pa.Table:
        """Which documents match which queries.

        Args:
            documents: with the columns of the fields' schema.
            scores: how well, too.

        Returns:
            `document: int64`, the row; `query: int64`, the number; `score: double`, if asked for. In the order
            of documents, then of queries' numbers.
        """
        columns = self._values(documents)
        found = self._occurrences(documents)
        rows = np.concatenate([one.rows for one in found]) if found else np.empty(0, np.int32)
        leaves = np.concatenate([one.leaves for one in found]) if found else rows
        positions = np.concatenate([one.positions for one in found]) if found else rows
        grouped = by_group(rows, documents.num_rows)
        tokens, order = grouped[: documents.num_rows + 1], grouped[documents.num_rows + 1 :]
        leaves, positions = leaves[order], positions[order]
        document, query, score = self._matched(tokens, leaves, positions, columns)
        order = np.lexsort((query, document))
        document, query, score = document[order], query[order], score[order]
        made: dict[str, Any] = {
            "document": document.astype(np.int64),
            "query": self._numbers.values[query],
        }
        if scores:
            made["score"] = score
        return pa.table(made)

    def _matched(
        self, tokens: Vector, leaves: Vector, positions: Vector, columns: tuple[Vector, ...]
    ) -> tuple[Vector, Vector, Vector]:
        lists = self._chosen_lists()
        queries = len(self._numbers)
        parts: list[tuple[Vector, Vector, Vector]] = []
        document = 0
        counts = np.zeros(1, np.int64)
        while document < len(tokens) - 1:
            room = queries + 65_536
            out = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.float64)
            count, document, _ = matched(
                document, tokens, leaves, positions, *lists, self._starts.values, self._code.values,
                self._bounds.values, self._floats.values, *columns, self._depth, self._seen, counts,
                *out,
            )  # fmt: skip
            parts.append((out[0][:count], out[1][:count], out[2][:count]))
        self._documents += len(tokens) - 1
        self.candidates += int(counts[0])
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
        return tuple(np.concatenate(one) for one in zip(*parts, strict=True))  # type: ignore[return-value]

    def _chosen_lists(self) -> tuple[Vector, Vector, Vector]:
        """Of each leaf the queries that are listed under it, and those that are under none."""
        if len(self._seen) < len(self._kinds):
            more = np.zeros(len(self._kinds) - len(self._seen), np.int64)
            self._seen = np.concatenate([self._seen, more])
        is_time = self._documents >= max(BELIEVED, CHOSEN_ANEW * self._chosen_at)
        if self._lists is not None and not is_time:
            return self._lists
        known = 0 if is_time else len(self._chosen)
        if is_time:
            self._chosen_at = self._documents
            self._chosen = Pool(np.int32)
        weights = self._weights()
        chosen = np.empty(len(self._numbers) - known, np.int32)
        choose(
            self._query_sets.values[known:],
            self._set_starts.values,
            self._set_leaves.values,
            weights,
            chosen,
        )
        self._chosen.extend(chosen)
        return self._listed()

    def _weights(self) -> Vector:
        """The share of documents that each leaf is in, as far as it is known."""
        assumed = np.array([share(one) for one in self._kinds], np.float64)
        return (self._seen + assumed * BELIEVED) / (self._documents + BELIEVED)

    def _listed(self) -> tuple[Vector, Vector, Vector]:
        chosen, alive = self._chosen.values, self._alive.values & ~self._never.values
        always = np.flatnonzero(alive & (chosen < 0)).astype(np.int32)
        queries = np.flatnonzero(alive & (chosen >= 0)).astype(np.int32)
        sets, starts = chosen[queries], self._set_starts.values
        sizes = starts[sets + 1] - starts[sets]
        entry_queries = np.repeat(queries, sizes)
        ends = np.cumsum(sizes)
        places = np.arange(len(entry_queries)) - np.repeat(ends - sizes, sizes)
        entry_leaves = self._set_leaves.values[places + np.repeat(starts[sets], sizes)]
        grouped = by_group(entry_leaves, len(self._kinds))
        count = len(self._kinds) + 1
        self._lists = grouped[:count], entry_queries[grouped[count:]], always
        return self._lists

    def _occurrences(self, documents: pa.Table) -> list[Occurrences]:
        """Where leaves are in documents."""
        found: list[Occurrences] = []
        for name, table in self._words.items():
            field = self.fields.find(name)
            assert field is not None
            vocabulary = self._vocabularies.get(field.analyzer)
            if vocabulary is None or vocabulary.is_full:
                vocabulary = self._vocabularies[field.analyzer] = Vocabulary(field.analyzer)
            found.append(table.occurrences(documents, vocabulary))
        for name, leaf in self._any.items():
            rows = np.unique(flattened(documents, name).rows)
            found.append(_plain(rows, np.full(len(rows), leaf, np.int32)))
        for (name, level), leaf_of in self._cells.items():
            values = flattened(documents, name)
            found.append(_looked_up(values.rows, codes_of(values.values) >> level, leaf_of))
        for (name, level), leaf_of in self._tiles.items():
            values = flattened(documents, name)
            places = _tiles(*coordinates(values.values), level)
            found.append(_looked_up(values.rows, places, leaf_of))
        for name, inner in self._inner.items():
            found.append(self._inside(documents, name, inner))
        return found

    def _inside(self, documents: pa.Table, name: str, inner: Stored) -> Occurrences:
        """Elements of lists that match queries of their own."""
        values = flattened(documents, name)
        elements: Any = values.values
        table = pa.Table.from_struct_array(elements)
        found = inner.matches(table)
        rows = values.rows[found["document"].to_numpy()]
        queries = np.asarray(found["query"].to_numpy())
        leaf_of = self._inner_leaves[name]
        pairs = np.unique(rows.astype(np.int64) << 32 | leaf_of.values[queries])
        return _plain((pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32))

    def _values(self, documents: pa.Table) -> tuple[Vector, Vector, Vector, Vector]:
        """The values that programs compare, of each column and document."""
        starts = np.zeros((max(len(self._columns), 1), documents.num_rows + 1), np.int32)
        codes: list[Vector] = []
        latitudes: list[Vector] = []
        longitudes: list[Vector] = []
        total = 0
        for name, column in self._columns.items():
            values = flattened(documents, name)
            counts = np.bincount(values.rows, minlength=documents.num_rows)
            starts[column, 0] = total
            starts[column, 1:] = total + np.cumsum(counts)
            total += len(values.rows)
            nothing = np.zeros(len(values.rows))
            if pa.types.is_struct(values.values.type):
                latitude, longitude = coordinates(values.values)
                codes.append(nothing.astype(np.int64))
                latitudes.append(latitude)
                longitudes.append(longitude)
            else:
                codes.append(codes_of(values.values))
                latitudes.append(nothing)
                longitudes.append(nothing)
        if not codes:
            return starts, np.empty(0, np.int64), np.empty(0), np.empty(0)
        return starts, np.concatenate(codes), np.concatenate(latitudes), np.concatenate(longitudes)

    def _vocabulary_of_queries(self, field: Field) -> Vocabulary:
        found = self._of_queries.get(field.analyzer)
        if found is None or found.is_full:
            found = self._of_queries[field.analyzer] = Vocabulary(field.analyzer)
        return found

    def _column(self, field: Field) -> int:
        return self._columns.setdefault(field.name, len(self._columns))

    def _leaf(self, leaf: Leaf) -> int:
        """A leaf's number; it is new if it is the first of its kind."""
        number = self._leaves.get(leaf)
        if number is not None:
            return number
        number = len(self._kinds)
        match leaf:
            case TermLeaf(name, text):
                self._words.setdefault(name, WordTable(name)).add_term(text, number)
            case PatternLeaf(name, pattern):
                self._words.setdefault(name, WordTable(name)).add_pattern(pattern, number)
            case AnyValue(name):
                self._any[name] = number
            case Cell(name, level, block):
                self._cells.setdefault((name, level), {})[block] = number
            case Tile(name, level, row, column):
                self._tiles.setdefault((name, level), {})[row << level | column] = number
            case Inner(name, query):
                self._store_inner(name, query, number)
        self._leaves[leaf] = number
        self._kinds.append(leaf)
        return number

    @property
    def _inner_leaves(self) -> dict[str, Pool]:
        return self.__dict__.setdefault("_leaf_of_inner", {})  # type: ignore[no-any-return]

    def _store_inner(self, name: str, query: Query, number: int) -> None:
        if name not in self._inner:
            field = self.fields.find(name)
            assert field is not None
            assert field.kind is Kind.NESTED
            self._inner[name] = Stored(self.fields.inside(field))
            self._inner_leaves[name] = Pool(np.int32)
        stored = self._inner[name].store(query)
        assert stored == len(self._inner_leaves[name])
        self._inner_leaves[name].append(number)


def _moved(program: Program, bounds: int, floats: int) -> list[int]:
    """A program whose references count from the pools' begin."""
    code = list(program.code)
    at = 0
    while at < len(code):
        op = code[at]
        if op == Op.PHRASE:
            at += 4 + 2 * code[at + 1]
            continue
        if op == Op.RANGE:
            code[at + 2] += bounds
        elif op in (Op.DISTANCE, Op.BOX):
            code[at + 2] += floats
        elif op == Op.BOOST:
            code[at + 1] += floats
        at += SIZES[Op(op)]
    return code


SIZES: Final = {
    Op.TERM: 2,
    Op.LEAF: 2,
    Op.RANGE: 3,
    Op.DISTANCE: 3,
    Op.BOX: 3,
    Op.ALL: 1,
    Op.NONE: 1,
    Op.BOOLEAN: 5,
    Op.BOOST: 2,
}


def _plain(rows: Vector, leaves: Vector) -> Occurrences:
    """Leaves that are no words."""
    nothing = np.zeros(len(rows), np.int32)
    return Occurrences(rows, leaves, nothing, nothing - 1)


def _looked_up(rows: Vector, places: Vector, leaf_of: dict[int, int]) -> Occurrences:
    """Leaves by the cells that values are in; each once for a document."""
    keys = np.array(sorted(leaf_of), np.int64)
    leaves = np.array([leaf_of[one] for one in keys.tolist()], np.int64)
    at = np.minimum(np.searchsorted(keys, places), len(keys) - 1)
    hits = keys[at] == places
    pairs = np.unique(rows[hits].astype(np.int64) << 32 | leaves[at[hits]])
    return _plain((pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32))


def _tiles(latitudes: Vector, longitudes: Vector, level: int) -> Vector:
    """The tiles of points; -1 of what is no point."""
    size = 1 << level
    with np.errstate(invalid="ignore"):
        known = np.isfinite(latitudes) & np.isfinite(longitudes)
        rows = np.clip(
            np.where(known, (latitudes + 90) / 180 * size, 0).astype(np.int64), 0, size - 1
        )
        columns = np.clip(
            np.where(known, (longitudes + 180) / 360 * size, 0).astype(np.int64), 0, size - 1
        )
    return np.where(known, rows << level | columns, -1)
