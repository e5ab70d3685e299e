"""Stored programs, one behind another in a few columns, and the lists of queries under leaves.

Each query is listed under the leaves of one of its necessary sets: the one whose leaves are rarest in the
documents that were seen. Removed queries lose their lists at once, and their place once they are as many as
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.core.vectors import Vector
from penstock.searches.kernels.matching import by_group, choose
from penstock.searches.kernels.moving import moved, used_leaves
from penstock.searches.pools import Pool
from penstock.searches.programs import Program

__all__ = ["Lists", "Shelf"]

CHOSEN_ANEW: Final = 16
"""Lists are chosen anew when so many times as many documents were seen as before."""
BELIEVED: Final = 64
"""Documents that the shares which are assumed of leaves count like."""
POPULARITY: Final = 0.1
"""By how much more documents a leaf is assumed to be in for each doubling of the queries that have it."""
REMOVED_MIN: Final = 1000
"""Removed queries for whose place everything else is moved."""


@dataclass(frozen=True)
class Lists:
    """The queries that documents are candidates for.

    Attributes:
        starts: int32[leaves + 1], where each leaf's queries begin.
        queries: int32[n].
        always: int32[m], those that are under no leaf.
    """

    starts: Vector
    queries: Vector
    always: Vector


class Shelf:
    """Programs, by their places from 0.

    Attributes:
        depth: of the stack that the deepest program needs, at most.
        documents: that were seen.
        seen: int64[leaves], how many documents had each leaf.
    """

    def __init__(self) -> None:
        self.numbers = Pool(np.int64)
        self.alive = Pool(np.bool_)
        self.never = Pool(np.bool_)
        self.code, self.starts = Pool(np.int32), Pool(np.int64, (0,))
        self.bounds, self.floats = Pool(np.int64), Pool(np.float64)
        self.set_leaves, self.set_starts = Pool(np.int32), Pool(np.int32, (0,))
        self.query_sets = Pool(np.int64, (0,))
        self.positive, self.positive_starts = Pool(np.int32), Pool(np.int64, (0,))
        self.depth = 1
        self.documents = 0
        self.seen = np.zeros(0, np.int64)
        self._chosen = Pool(np.int32)
        self._chosen_at = 0
        self._lists: Lists | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def put(self, number: int, program: Program) -> None:
        """Adds a program.

        Args:
            number: greater than those before.
            program: it.
        """
        self.code.extend(program.referring(len(self.bounds), len(self.floats)))
        self.starts.append(len(self.code))
        self.bounds.extend(program.bounds)
        self.floats.extend(program.numbers)
        for leaves in program.sets or ():
            self.set_leaves.extend(leaves)
            self.set_starts.append(len(self.set_leaves))
        self.query_sets.append(len(self.set_starts) - 1)
        self.positive.extend(program.positive)
        self.positive_starts.append(len(self.positive))
        self.never.append(program.sets is None)
        self.numbers.append(number)
        self.alive.append(True)
        self.depth = max(self.depth, len(program.code))
        self._lists = None

    def remove(self, numbers: Vector) -> None:
        """Takes programs away; numbers that aren't there are left alone."""
        known = self.numbers.values
        wanted = np.asarray(numbers, np.int64)
        places = np.searchsorted(known, wanted)
        is_known = places < len(known)
        is_known[is_known] = known[places[is_known]] == wanted[is_known]
        self.alive.values[places[is_known]] = False
        self._lists = None

    @property
    def is_sparse(self) -> bool:
        """Most programs were removed."""
        gone = len(self) - int(np.count_nonzero(self.alive.values))
        return gone >= REMOVED_MIN and 2 * gone > len(self)

    def lists(self, shares: Vector) -> Lists:
        """The lists, chosen anew where that is due.

        Args:
            shares: float64[leaves], of documents that are assumed to have each leaf.
        """
        if len(self.seen) < len(shares):
            more = np.zeros(len(shares) - len(self.seen), np.int64)
            self.seen = np.concatenate([self.seen, more])
        is_time = self.documents >= max(BELIEVED, CHOSEN_ANEW * self._chosen_at)
        if self._lists is not None and not is_time:
            return self._lists
        if is_time:
            self._chosen_at = self.documents
            self._chosen = Pool(np.int32)
        # What many queries ask for is common, until documents say otherwise.
        popularity = np.bincount(self.set_leaves.values, minlength=len(shares))
        assumed = shares * (1 + POPULARITY * np.log2(1 + popularity))
        weights = (self.seen + assumed * BELIEVED) / (self.documents + BELIEVED)
        sets = self.query_sets.values[len(self._chosen) :]
        chosen = np.empty(len(sets) - 1, np.int32)
        choose(sets, self.set_starts.values, self.set_leaves.values, weights, chosen)
        self._chosen.replace(np.concatenate([self._chosen.values, chosen]))
        self._lists = self._listed(len(shares))
        return self._lists

    def _listed(self, leaves: int) -> Lists:
        chosen, alive = self._chosen.values, self.alive.values & ~self.never.values
        always = np.flatnonzero(alive & (chosen < 0)).astype(np.int32)
        queries = np.flatnonzero(alive & (chosen >= 0)).astype(np.int32)
        starts = self.set_starts.values
        entries = _stretches(starts, chosen[queries])
        entry_queries = np.repeat(queries, starts[chosen[queries] + 1] - starts[chosen[queries]])
        grouped = by_group(self.set_leaves.values[entries], leaves)
        return Lists(grouped[: leaves + 1], entry_queries[grouped[leaves + 1 :]], always)

    def compact(self, leaves: int) -> Vector:
        """Gives the places of removed programs free.

        Args:
            leaves: how many there are.

        Returns:
            int32[n], the leaves that are still used, in the order of their new numbers.
        """
        kept = np.flatnonzero(self.alive.values)
        sets = _stretches(self.query_sets.values, kept)
        set_leaves = self.set_leaves.values[_stretches(self.set_starts.values, sets)]
        positive = self.positive.values[_stretches(self.positive_starts.values, kept)]
        is_used = np.zeros(leaves, np.bool_)
        is_used[set_leaves] = True
        is_used[positive] = True
        used_leaves(kept, self.starts.values, self.code.values, is_used)
        leaf_map = (np.cumsum(is_used) - 1).astype(np.int32)
        code = self.code.values[_stretches(self.starts.values, kept)]
        starts = _ends(np.diff(self.starts.values)[kept])
        bounds, floats = np.empty_like(self.bounds.values), np.empty_like(self.floats.values)
        sizes = moved(
            starts, code, leaf_map, self.bounds.values, self.floats.values, bounds, floats
        )
        set_sizes = np.diff(self.set_starts.values)[sets]
        for pool, values in (
            (self.code, code),
            (self.bounds, bounds[: sizes[0]]),
            (self.floats, floats[: sizes[1]]),
            (self.set_leaves, leaf_map[set_leaves]),
            (self.set_starts, _ends(set_sizes)),
            (self.positive, leaf_map[positive]),
            (self.positive_starts, _ends(np.diff(self.positive_starts.values)[kept])),
            (self.query_sets, _ends(np.diff(self.query_sets.values)[kept])),
            (self.starts, starts),
            (self.numbers, self.numbers.values[kept]),
            (self.never, self.never.values[kept]),
            (self.alive, self.alive.values[kept]),
        ):
            pool.replace(values)
        self.seen = np.pad(self.seen, (0, leaves - len(self.seen)))[is_used]
        self._chosen, self._lists = Pool(np.int32), None
        return np.flatnonzero(is_used).astype(np.int32)

    def check(self) -> None:
        """Asserts that what is said of each query is as long as it is said to be."""
        for starts, values in (
            (self.starts, self.code),
            (self.set_starts, self.set_leaves),
            (self.positive_starts, self.positive),
        ):
            assert starts.values[0] == 0
            assert starts.values[-1] == len(values)
            assert (np.diff(starts.values) >= 0).all()
        assert self.query_sets.values[-1] == len(self.set_starts) - 1
        assert len(self.starts) == len(self.query_sets) == len(self.positive_starts)
        assert len(self.numbers) == len(self.alive) == len(self.never) == len(self.starts) - 1
        assert (np.diff(self.numbers.values) > 0).all()

    def bytes(self) -> int:
        """That the columns take."""
        pools: Sequence[Any] = [one for one in vars(self).values() if isinstance(one, Pool)]
        return int(sum(one.values.nbytes for one in pools)) + self.seen.nbytes


def _ends(sizes: Vector) -> Vector:
    """Where stretches of these sizes begin, and the last one's end."""
    return np.asarray(np.concatenate([[0], np.cumsum(sizes)]))


def _stretches(starts: Vector, chosen: Vector) -> Vector:
    """The places of some stretches, one behind another."""
    begins = starts[chosen].astype(np.int64)
    sizes = starts[chosen + 1].astype(np.int64) - begins
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    made: Vector = np.arange(total) + np.repeat(begins - (ends - sizes), sizes)
    return made
