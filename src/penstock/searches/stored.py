"""Stored queries, and the documents that run past them.

Invariant: `matches` gives each pair of a document and a query of which the query's tree is true, whatever was
added, removed and asked before.

Source: the presearcher of Lucene's Monitor (there for a few documents at a time; here for a batch, as a join
of the documents' leaves with the lists of queries).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.errors import SearchError
from penstock.searches.fields import Fields
from penstock.searches.highlights import highlighted
from penstock.searches.kernels.matching import by_group, found_words, matched
from penstock.searches.leaves import Leaf
from penstock.searches.programs import Compiler
from penstock.searches.registry import Registry, Vocabularies
from penstock.searches.shelf import Shelf
from penstock.searches.syntax import parse
from penstock.searches.tree import Query
from penstock.searches.words import Occurrences

__all__ = ["Facts", "Refused", "Stored"]

ROOM: Final = 65_536
"""Matches that a call of the kernel has room for, besides all of one document."""


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


@dataclass(frozen=True)
class Facts:
    """What stored queries are and did.

    Attributes:
        queries: that are stored.
        unindexed: of them, those that are candidates for each document.
        bytes: of their programs and sets of leaves.
        documents: that ran past.
        candidates: pairs of a document and a query that were evaluated.
    """

    queries: int
    unindexed: int
    bytes: int
    documents: int
    candidates: int


@dataclass(frozen=True)
class _Batch:
    """A batch's leaves, by documents.

    Attributes:
        found: where they are.
        order: int32[n], their places in `found`, one behind another.
        tokens: int32[documents + 1], where each document's begin.
        leaves: int32[n].
        positions: int32[n].
    """

    found: list[Occurrences]
    order: Vector
    tokens: Vector
    leaves: Vector
    positions: Vector


class Stored:
    """Queries that wait for documents.

    Args:
        fields: of the documents.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._registry = Registry(fields, Stored)
        self._columns: dict[str, int] = {}
        self._shelf = Shelf()
        vocabularies = Vocabularies()
        self._compiler = Compiler(
            fields,
            vocabularies.of,
            self._leaf,
            lambda field: self._columns.setdefault(field.name, len(self._columns)),
        )
        self._next = 0
        self._candidates = 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self._shelf.alive.values))

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
            Its number: greater than those before, and never used again.

        Raises:
            SearchError: it names what documents don't have.
        """
        self._shelf.put(self._next, self._compiler.program(query))
        self._next += 1
        return self._next - 1

    def remove(self, numbers: Vector | Sequence[int]) -> None:
        """Forgets queries.

        Args:
            numbers: int64[n], that `add` gave.
        """
        self._shelf.remove(np.asarray(numbers, np.int64))
        if self._shelf.is_sparse:
            kept = self._shelf.compact(len(self._registry))
            self._registry = self._registry.keeping(kept)

    def matches(
        self,
        documents: pa.Table,
        *,
        scores: bool = False,
        terms: bool = False,
        highlights: bool = False,
    ) -> pa.Table:
        """Which documents match which queries.

        Args:
            documents: with the columns of the fields' schema.
            scores: how well: by BM25, as if there were no other documents.
            terms: the words that matched, as well.
            highlights: where they are.

        Returns:
            `document: int64`, the row; `query: int64`, the number; and what was asked for: `score: double`,
            `terms: list<string>`, `highlights: list<HIGHLIGHT>`. In the order of documents, then of numbers.
        """
        batch = self._batch(documents)
        document, query, score = self._matched(batch, self._values(documents))
        order = np.lexsort((query, document))
        document, query, score = document[order], query[order], score[order]
        made: dict[str, Any] = {
            "document": document.astype(np.int64),
            "query": self._shelf.numbers.values[query],
        }
        if scores:
            made["score"] = score
        if terms or highlights:
            words, stretches = self._highlighted(batch, document, query)
            made |= {"terms": words} if terms else {}
            made |= {"highlights": stretches} if highlights else {}
        return pa.table(made)

    def facts(self) -> Facts:
        """What these queries are and did."""
        return Facts(
            len(self),
            len(self._shelf.lists(self._registry.shares.values).always),
            self._shelf.bytes(),
            self._shelf.documents,
            self._candidates,
        )

    def check(self) -> None:
        """Asserts what must be so."""
        self._shelf.check()
        leaves = len(self._registry)
        assert len(self._registry.shares) == leaves
        for pool in (self._shelf.set_leaves, self._shelf.positive):
            assert not len(pool) or 0 <= pool.values.min() <= pool.values.max() < leaves

    def _leaf(self, leaf: Leaf) -> int:
        """A leaf's number in the registry of the moment."""
        return self._registry.number(leaf)

    def _batch(self, documents: pa.Table) -> _Batch:
        found = self._registry.occurrences(documents)
        nothing = np.empty(0, np.int32)
        rows = np.concatenate([nothing, *(one.rows for one in found)])
        leaves = np.concatenate([nothing, *(one.leaves for one in found)])
        positions = np.concatenate([nothing, *(one.positions for one in found)])
        grouped = by_group(rows, documents.num_rows)
        tokens, order = grouped[: documents.num_rows + 1], grouped[documents.num_rows + 1 :]
        return _Batch(found, order, tokens, leaves[order], positions[order])

    def _matched(
        self, batch: _Batch, columns: tuple[Vector, Vector, Vector, Vector]
    ) -> tuple[Vector, Vector, Vector]:
        """Documents, places of queries, and scores."""
        shelf = self._shelf
        lists = shelf.lists(self._registry.shares.values)
        documents = len(batch.tokens) - 1
        nothing = np.empty(0, np.int32)
        parts = [(nothing, nothing, np.empty(0))]
        document = 0
        while document < documents:
            room = len(shelf) + ROOM
            out = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room)
            count, document, candidates = matched(
                document, batch.tokens, batch.leaves, batch.positions,
                lists.starts, lists.queries, lists.always,
                shelf.starts.values, shelf.code.values, shelf.bounds.values, shelf.floats.values,
                *columns, shelf.depth, shelf.seen, *out,
            )  # fmt: skip
            self._candidates += candidates
            parts.append((out[0][:count], out[1][:count], out[2][:count]))
        shelf.documents += documents
        found, queries, scores = (np.concatenate(one) for one in zip(*parts, strict=True))
        return found, queries, scores

    def _highlighted(
        self, batch: _Batch, document: Vector, query: Vector
    ) -> tuple[pa.Array, pa.Array]:
        shelf = self._shelf
        room = max(1024, 4 * len(document))
        while True:
            out = np.empty((2, room), np.int32)
            count = found_words(
                document, query, shelf.positive_starts.values, shelf.positive.values,
                shelf.starts.values, shelf.code.values, batch.tokens, batch.leaves, batch.positions,
                len(self._registry), *out,
            )  # fmt: skip
            if count <= room:
                break
            room = count
        match, token = out[0, :count], out[1, :count]
        return highlighted(batch.found, len(document), match, batch.order[token])

    def _values(self, documents: pa.Table) -> tuple[Vector, Vector, Vector, Vector]:
        """The values that programs compare, of each column and document."""
        starts = np.zeros((max(len(self._columns), 1), documents.num_rows + 1), np.int32)
        parts = [(np.empty(0, np.int64), np.empty(0), np.empty(0))]
        total = 0
        for name, column in self._columns.items():
            rows, *values = self._registry.values(documents, name)
            counts = np.bincount(rows, minlength=documents.num_rows)
            starts[column, 0] = total
            starts[column, 1:] = total + np.cumsum(counts)
            total += len(rows)
            parts.append((values[0], values[1], values[2]))
        codes, latitudes, longitudes = (np.concatenate(one) for one in zip(*parts, strict=True))
        return starts, codes, latitudes, longitudes
