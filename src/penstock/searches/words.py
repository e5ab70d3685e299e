"""The leaves of one field that its texts have: terms, and patterns of terms, by the terms' codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.searches.analysis import Terms, Vocabulary
from penstock.searches.fields import Values, flattened
from penstock.searches.kernels.matching import by_group, expanded
from penstock.searches.pools import Pool
from penstock.searches.texts.cutting import GAP
from penstock.searches.texts.patterns import Pattern, Patterns

__all__ = ["Occurrences", "WordTable"]


@dataclass(frozen=True)
class Occurrences:
    """Where leaves are in a batch of documents.

    Attributes:
        rows: int32[n], the documents.
        leaves: int32[n].
        positions: int32[n].
        words: int32[n], the number of the word in `terms`; -1: it is no word.
        terms: the words of a field; None: the leaves are no words.
        values: the field's texts.
    """

    rows: Vector
    leaves: Vector
    positions: Vector
    words: Vector
    terms: Terms | None = None
    values: Values | None = None


class WordTable:
    """What the codes of a vocabulary mean for the queries over a field.

    Args:
        name: of the field.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._leaf_of: dict[str, int] = {}
        self._patterns = Patterns()
        self._new_terms: list[str] = []
        self._new_patterns: list[tuple[int, Pattern]] = []
        self._vocabulary: Vocabulary | None = None
        self._known = 0
        self._codes = Pool(np.int32)
        self._leaves = Pool(np.int32)
        self._lists: Vector | None = None

    def add_term(self, text: str, leaf: int) -> None:
        """A leaf that is a term."""
        self._leaf_of[text] = leaf
        self._new_terms.append(text)

    def add_pattern(self, pattern: Pattern, leaf: int) -> None:
        """A leaf that is a pattern."""
        self._new_patterns.append((leaf, pattern))

    def occurrences(self, documents: pa.Table, vocabulary: Vocabulary) -> Occurrences:
        """Where leaves are in the field's texts."""
        values = flattened(documents, self.name)
        terms = vocabulary.terms_of(values.values.cast(pa.string()))
        self._learn(vocabulary)
        if self._lists is None:
            self._lists = by_group(self._codes.values, self._known)
        starts = self._lists[: self._known + 1]
        leaves = self._leaves.values[self._lists[self._known + 1 :]]
        rows = values.rows[terms.words.value]
        positions = _positions(terms, values)
        room = max(1024, len(rows))
        while True:
            out = np.empty((4, room), np.int32)
            count = expanded(terms.codes, rows, positions, starts, leaves, *out)
            if count <= room:
                break
            room = count
        row, leaf, position, word = out[:, :count]
        return Occurrences(row, leaf, position, word, terms, values)

    def _learn(self, vocabulary: Vocabulary) -> None:
        """Finds the leaves of terms that are new, and the terms of leaves that are new."""
        if vocabulary is not self._vocabulary:
            self._vocabulary = vocabulary
            self._known = 0
            self._codes, self._leaves, self._lists = Pool(np.int32), Pool(np.int32), None
        codes: list[int] = []
        leaves: list[int] = []
        known = vocabulary.terms[: self._known] if self._new_patterns else []
        for text in self._new_terms:
            code = vocabulary.code(text)
            if code is not None and code < self._known:
                codes.append(code)
                leaves.append(self._leaf_of[text])
        self._new_terms = []
        fresh = Patterns()
        for leaf, pattern in self._new_patterns:
            self._patterns.add(leaf, pattern)
            fresh.add(leaf, pattern)
        self._new_patterns = []
        places, found = fresh.hits(known)
        codes += places
        leaves += found
        new = vocabulary.terms[self._known :]
        for i, text in enumerate(new):
            leaf_of = self._leaf_of.get(text)
            if leaf_of is not None:
                codes.append(self._known + i)
                leaves.append(leaf_of)
        places, found = self._patterns.hits(new)
        codes += [self._known + one for one in places]
        leaves += found
        if new or codes:
            self._lists = None
        self._known = len(vocabulary)
        self._codes.extend(codes)
        self._leaves.extend(leaves)


def _positions(terms: Terms, values: Values) -> Any:
    """Of each word in its document: the values of a list stand one behind another, with gaps."""
    positions, value, rows = terms.words.position, terms.words.value, values.rows
    if len(rows) < 2 or not len(value) or bool((rows[1:] > rows[:-1]).all()):
        return positions
    spans = np.zeros(len(rows), np.int64)
    np.maximum.at(spans, value, positions.astype(np.int64) + 1)
    ends = np.cumsum(spans + GAP)
    begins = np.concatenate([[0], ends[:-1]])
    is_first = np.concatenate([[True], rows[1:] != rows[:-1]])
    of_row = np.maximum.accumulate(np.where(is_first, begins, 0))
    return (positions + (begins - of_row)[value]).astype(np.int32)
