"""The stored searches of a version, ready to be matched: a cache of this process, found by what is in it.

    searches = the distinct texts of a table's rows, each with a number, compiled into one index

State has the texts alone. What is compiled of them follows from these, takes long to make, and changes by
what comes and goes: so a process keeps it from one batch to the next, and makes it anew where it has none of
a version, as after a restart. Shards that have the same searches share it.

A version is found by the sum of the hashes of its rows, 128 bits: sums are kept up by what comes and goes,
in whichever order.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector, from_int64, raw
from penstock.searches.fields import Fields
from penstock.searches.stored import Stored
from penstock.state import kernels
from penstock.state.bag import ROW, Bag, weights_of
from penstock.state.layout import concat, equal, hashes
from penstock.state.trace import Trace

__all__ = ["Compiler", "Searches", "Texts"]

KEPT_MAX: Final = 16
"""Versions that a process keeps: one for each operator that it runs, and some that are over."""
SUMS_MAX: Final = 1_024
"""Traces whose sum a process remembers: a few numbers each."""
PART_ROWS_MIN: Final = 1 << 10
"""Texts: fewer are merged into the next part."""

Version: TypeAlias = tuple[int, int]
"""The sum of the hashes of rows, in two halves."""
_CHANGING: Final[Version] = (-1, -1)
"""Of searches that are between two versions, and stay so where that fails."""
_MODULUS: Final = 1 << 64
_ODD: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass
class _Part:
    """Texts that were added one after another, the numbers ascending; some may be gone."""

    numbers: Vector
    hashes: Vector
    texts: pa.Array
    there: Vector
    order: Vector = field(init=False)  # by hash
    sorted: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.order = np.argsort(self.hashes, kind="stable")
        self.sorted = self.hashes[self.order]

    def with_(self, other: _Part) -> _Part:
        """This one and the next, without what is gone."""
        mine, theirs = (
            (
                part.numbers[part.there],
                part.hashes[part.there],
                part.texts.filter(pa.array(part.there)),
            )
            for part in (self, other)
        )
        texts = pa.concat_arrays([mine[2], theirs[2]])
        numbers, hashes_ = (np.concatenate([mine[i], theirs[i]]) for i in (0, 1))
        return _Part(numbers, hashes_, texts, np.ones(len(numbers), np.bool_))


class Texts:
    """Distinct texts with numbers, found by either; some 20 bytes each besides the text.

    Parts of geometrically growing size, as of a trace.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def __len__(self) -> int:
        return sum(int(part.there.sum()) for part in self._parts)

    def add(self, numbers: Vector, hashes_: Vector, texts: pa.Array) -> None:
        """Adds texts that aren't there, under numbers that ascend from add to add."""
        if len(texts):
            self._parts.append(_Part(numbers, hashes_, texts, np.ones(len(texts), np.bool_)))
        while len(self._parts) > 1 and len(self._parts[-2].numbers) <= max(
            PART_ROWS_MIN, 2 * len(self._parts[-1].numbers)
        ):
            last = self._parts.pop()
            self._parts[-1] = self._parts[-1].with_(last)

    def remove(self, hashes_: Vector, texts: pa.Array) -> Vector:
        """Removes texts, those that are there: their numbers, int64[n]."""
        found = [np.zeros(0, np.int64)]
        for part, at, _ in self._found(hashes_, texts):
            part.there[at] = False
            found.append(part.numbers[at])
        return np.concatenate(found)

    def have(self, hashes_: Vector, texts: pa.Array) -> Vector:
        """bool[n]: which texts are there."""
        found = np.zeros(len(texts), np.bool_)
        for _, _, which in self._found(hashes_, texts):
            found[which] = True
        return found

    def _found(self, hashes_: Vector, texts: pa.Array) -> Iterator[tuple[_Part, Vector, Vector]]:
        """Where texts are: the part, the places in it, and which of the texts are there."""
        for part in self._parts:
            lo, hi = (
                np.searchsorted(part.sorted, hashes_, side).astype(np.int64)
                for side in ("left", "right")
            )
            total = int((hi - lo).sum())
            which, at = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.expand(lo, hi, which, at)
            at = part.order[at]
            alike = equal(texts, which, part.texts, at) & part.there[at]
            yield part, at[alike], which[alike]

    def of(self, numbers: Vector) -> tuple[Vector, pa.Array]:
        """The hashes and texts of some numbers, ascending, that are there."""
        found: list[tuple[Vector, pa.Array]] = []
        for part in self._parts:
            mine = numbers[(numbers >= part.numbers[0]) & (numbers <= part.numbers[-1])]
            at = np.searchsorted(part.numbers, mine)
            found.append((part.hashes[at], part.texts.take(from_int64(at))))
        if not found:
            return np.zeros(0, np.int64), pa.array([], pa.string())
        return np.concatenate([one for one, _ in found]), pa.concat_arrays([t for _, t in found])

    def check(self) -> None:
        """Asserts the invariants: numbers ascend over all parts, and no text is there twice."""
        numbers = np.concatenate([[-1], *(part.numbers for part in self._parts)])
        assert (np.diff(numbers) > 0).all()
        there = [
            t for part in self._parts for t in part.texts.filter(pa.array(part.there)).to_pylist()
        ]
        assert len(set(there)) == len(there)


@dataclass
class Searches:
    """The searches of one version; it becomes the next one.

    Attributes:
        stored: what finds them.
        texts: of them, by number.
        version: of the rows that they are of.
    """

    stored: Stored
    texts: Texts
    version: Version = (0, 0)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, hashes_: Vector, texts: pa.Array) -> None:
        """Adds texts that aren't there. Those that can't be read match nothing."""
        if len(texts):
            numbers, _ = self.stored.add(texts.to_pylist())
            readable = numbers >= 0
            self.texts.add(numbers[readable], hashes_[readable], texts.filter(pa.array(readable)))

    def remove(self, hashes_: Vector, texts: pa.Array) -> None:
        """Removes texts that are there."""
        if len(texts):
            self.stored.remove(self.texts.remove(hashes_, texts))


@dataclass(frozen=True)
class Compiler:
    """What makes the searches of an operator.

    Attributes:
        bag: of their rows, found by the text.
        fields: of documents, as searches name them.
        name: that operators have whose searches of the same rows are the same.
    """

    bag: Bag
    fields: Fields
    name: str

    @contextlib.contextmanager
    def held(self, before: Trace, delta: pa.RecordBatch) -> Iterator[Searches]:
        """The searches of a version, which nobody else uses or changes meanwhile.

        Args:
            before: the rows of the version before.
            delta: what comes and goes with this one.
        """
        was = SUMS.of(before)
        now = _plus(was, _sum(delta))
        found = KEPT.get(self.name, now) or KEPT.get(self.name, was) or self.empty()
        with found.lock:
            if found.version not in (was, now):  # it has become another one meanwhile
                found = self.empty()
            if found.version != now:
                from_before, found.version = found.version == was, _CHANGING
                if not from_before:
                    self._build(found, before)
                self._advance(found, before, delta)
                found.version = now
            KEPT.put(self.name, found)
            yield found

    def remember(self, trace: Trace, searches: Searches) -> None:
        """Says of which trace searches are, so that it isn't read for it."""
        SUMS.put(trace, searches.version)

    def empty(self) -> Searches:
        """No searches."""
        return Searches(Stored(self.fields), Texts())

    def of(self, rows: pa.RecordBatch) -> Searches:
        """The searches that are in rows of the bag, whatever their weights."""
        found = self.empty()
        texts = self._texts(rows)
        found.add(hashes(texts), texts.column(2))
        return found

    def _build(self, found: Searches, before: Trace) -> None:
        """Adds the searches of a trace, to none."""
        last = None
        for rows in before.scan():
            texts = self._texts(rows)
            known, column = hashes(texts), texts.column(2)
            if last is not None:  # a text's rows may lie in two chunks
                edge = np.flatnonzero(known == last)
                gone = found.texts.have(known[edge], column.take(from_int64(edge)))
                keep = np.ones(len(known), np.bool_)
                keep[edge[gone]] = False
                known, column = known[keep], column.filter(pa.array(keep))
            found.add(known, column)
            last = hashes(rows)[-1]

    def _advance(self, searches: Searches, before: Trace, delta: pa.RecordBatch) -> None:
        """Makes the searches of the version before those of this one."""
        if not len(delta):
            return
        there = self.bag.find(before, self.bag.wanted(delta, hashes(delta), None))
        was, now = self._texts(there), self._texts(self.bag.sum([there, delta]))
        ids, first = self.bag.place.grouping(concat([was, now]))
        which = first[ids]
        both = np.isin(which[: len(was)], which[len(was) :])
        gone = was.filter(pa.array(~both))
        come = now.filter(pa.array(which[len(was) :] >= len(was)))
        searches.remove(hashes(gone), gone.column(2))
        searches.add(hashes(come), come.column(2))

    def _texts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The distinct texts of rows, none of them NULL, in the bag's order: `$window`, `$hash`, the text."""
        place = self.bag.place
        texts = place.group(rows.select(place.schema.names), whole=False)
        return texts.filter(texts.column(2).is_valid()) if texts.column(2).null_count else texts


@dataclass
class _Kept:
    """The searches of this process, those used last at the end."""

    by_name: OrderedDict[tuple[str, Version], Searches] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: str, version: Version) -> Searches | None:
        """The searches that were of a version, and may have become others since."""
        with self.lock:
            return self.by_name.get((name, version))

    def put(self, name: str, searches: Searches) -> None:
        """Keeps searches under the version that they are of now, and no other."""
        with self.lock:
            for key in [key for key, one in self.by_name.items() if one is searches]:
                del self.by_name[key]
            self.by_name[name, searches.version] = searches
            while len(self.by_name) > KEPT_MAX:
                self.by_name.popitem(last=False)


@dataclass
class _Sums:
    """The versions of traces: of their files, so that none is read for it again."""

    known: OrderedDict[object, Version] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, trace: Trace) -> Version:
        """The version of a trace's rows."""
        with self.lock:
            found = self.known.get(trace.runs)
        if found is None:
            found = (0, 0)
            for rows in trace.scan():
                found = _plus(found, _sum(rows))
            self.put(trace, found)
        return found

    def put(self, trace: Trace, version: Version) -> None:
        """Remembers the version of a trace."""
        with self.lock:
            self.known[trace.runs] = version
            self.known.move_to_end(trace.runs)
            while len(self.known) > SUMS_MAX:
                self.known.popitem(last=False)


KEPT: Final = _Kept()
SUMS: Final = _Sums()


def _sum(rows: pa.RecordBatch) -> Version:
    """The sum of the hashes of a bag's rows, each as often as it is there."""
    one, two = (hashes(rows).view(np.uint64), raw(rows.column(ROW)).view(np.uint64))
    counts = weights_of(rows).view(np.uint64)
    first, second = (
        int((_mixed(a * odd + b) * counts).sum(dtype=np.uint64))
        for (a, b), odd in zip(((one, two), (two, one)), _ODD, strict=True)
    )
    return first, second


def _mixed(values: Any) -> Any:
    """splitmix64's finalizer: sums of it say more than sums of hashes with a structure."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _plus(one: Version, two: Version) -> Version:
    return (one[0] + two[0]) % _MODULUS, (one[1] + two[1]) % _MODULUS
