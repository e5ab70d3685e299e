"""Theta sketches: the least hashes of a set's values, from which sizes of unions and intersections follow.

    sketch(a ++ b) = union(sketch(a), sketch(b))

A sketch is a threshold, theta, and the hashes below it of all values of its set. Of a set with at most
`NOMINAL` values theta is the end of all hashes, and the sketch is the set; otherwise it is the least hash
that isn't kept. So a sketch is a function of the set: no chance, no dependence on how rows were batched. The
size is about (how many hashes there are) / (theta as a share of all hashes), with a standard error of 1.6 %.

Sources: Bar-Yossef et al., *Counting distinct elements in a data stream*, 2002; Dasgupta et al., *A framework
for estimating stream expression cardinalities*, 2016. As bytes a sketch is an ordered compact one of Apache
DataSketches (serial version 3, the default seed), byte for byte what that library gives when it has trimmed
its own; Spark's `theta_…` functions read it.

    u8 preamble's words | u8 3 | u8 3 (a compact theta sketch) | u16 0 | u8 flags | u16 of the seed
    u32 hashes | u32 0                                    with two words or more
    u64 theta                                             with three
    u64 each hash, ascending
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.sketches.murmur import SEED_HASH
from penstock.core.vectors import Vector, text

__all__ = ["ALL", "EMPTY", "NOMINAL", "Thetas", "merged", "read", "sketch", "written"]

NOMINAL: Final = 1 << 12
"""Hashes of a sketch at most: 32 KiB. The standard error is 1 / sqrt(NOMINAL)."""
ALL: Final = 2**63 - 1
"""The theta of a sketch that has all its values."""

_SAME: Final = 3 << 8 | 3 << 16 | SEED_HASH << 48  # of the first word, what all sketches have
_SAME_BITS: Final = np.uint64(0xFFFF_0000_00FF_FF00)
_FLAGS: Final = 0b11010 << 40  # read-only, compact, ordered
_IS_EMPTY: Final = 0b00100 << 40
_ORDERED: Final = np.uint64(0b11000 << 40)
_BIG_ENDIAN: Final = np.uint64(0b00001 << 40)


@dataclass(frozen=True)
class Thetas:
    """Some sketches.

    Attributes:
        thetas: int64[n], of each.
        rows: int64[m], the number of each hash's sketch, ascending.
        hashes: int64[m], ascending in each sketch, below its theta, none twice.
    """

    thetas: Vector
    rows: Vector
    hashes: Vector

    @property
    def counts(self) -> Vector:
        """int64[n]: the hashes of each."""
        return np.bincount(self.rows, minlength=len(self.thetas)).astype(np.int64)

    @property
    def empty(self) -> Vector:
        """bool[n]: whether it is of the empty set."""
        return np.asarray((self.counts == 0) & (self.thetas == ALL))

    @property
    def estimates(self) -> Vector:
        """float64[n]: about how many values each set has."""
        return np.asarray(self.counts / self._share)

    def bounds(self, deviations: float = 2) -> tuple[Vector, Vector]:
        """float64[n] twice: between which the number lies with 95 %, for two standard deviations.

        The classic interval of a binomial share, with a correction for continuity, as DataSketches has it for
        more than 120 hashes.
        """
        count, share = self.counts, self._share
        b = deviations * np.sqrt((1 - share) / share)

        def bound(of: Vector, sign: int) -> Vector:
            number = of / share
            return np.asarray(number + b * b / 2 + sign * b / 2 * np.sqrt(b * b + 4 * number))

        low = np.maximum(bound(np.maximum(count - 0.5, 0), -1), count)
        exact = self.thetas == ALL
        return np.where(exact, count, low), np.where(exact, count, bound(count + 0.5, 1))

    def union(self, other: Thetas) -> Thetas:
        """Of the values in one or the other, row by row."""
        both = np.concatenate([self.hashes, other.hashes])
        rows = np.concatenate([self.rows, other.rows])
        return sketch(both, rows, np.minimum(self.thetas, other.thetas))

    def intersection(self, other: Thetas) -> Thetas:
        """Of the values in both, row by row."""
        thetas = np.where(self.empty | other.empty, ALL, np.minimum(self.thetas, other.thetas))
        return self._chosen(thetas, self._is_in(other))

    def difference(self, other: Thetas) -> Thetas:
        """Of the values in this and not in the other, row by row."""
        thetas = np.where(self.empty, ALL, np.minimum(self.thetas, other.thetas))
        return self._chosen(thetas, ~self._is_in(other))

    @property
    def _share(self) -> Vector:
        return np.asarray(self.thetas / 2.0**63)

    def _is_in(self, other: Thetas) -> Vector:
        """bool[m]: whether the same row of the other has the hash."""
        if not len(other.hashes):
            return np.zeros(len(self.hashes), np.bool_)
        found = np.zeros(len(self.hashes), np.bool_)
        both = np.concatenate([other.hashes, self.hashes])
        order = np.lexsort((both, np.concatenate([other.rows, self.rows])))
        rows = np.concatenate([other.rows, self.rows])[order]
        both = both[order]
        twice = np.flatnonzero((both[1:] == both[:-1]) & (rows[1:] == rows[:-1])) + 1
        found[order[twice] - len(other.hashes)] = True  # lexsort is stable: ours is the second
        return found

    def _chosen(self, thetas: Vector, chosen: Vector) -> Thetas:
        keep = chosen & (self.hashes < thetas[self.rows])
        return Thetas(thetas, self.rows[keep], self.hashes[keep])


def sketch(hashes: Vector, rows: Vector, thetas: Vector) -> Thetas:
    """The sketch of each row, of hashes in any order.

    Args:
        hashes: int64[m], 0 to `ALL`; any may be there more than once.
        rows: int64[m], the number of each one's sketch.
        thetas: int64[n], below which each has all hashes.
    """
    below = hashes < thetas[rows]
    rows, hashes = rows[below].astype(np.int64), hashes[below]
    order = np.lexsort((hashes, rows))
    rows, hashes = rows[order], hashes[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (hashes[1:] != hashes[:-1]) | (rows[1:] != rows[:-1])
    rows, hashes = rows[new], hashes[new]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    thetas = thetas.copy()
    ends = rank == NOMINAL
    thetas[rows[ends]] = hashes[ends]
    keep = rank < NOMINAL
    return Thetas(thetas, rows[keep], hashes[keep])


def written(made: Thetas, missing: Vector | None = None) -> pa.Array:
    """Sketches as a column of bytes; NULL where `missing` says so, which has no hashes."""
    counts, groups = made.counts, len(made.thetas)
    words = np.where(made.thetas < ALL, 3, np.where(counts > 1, 2, 1))
    lengths = words + counts
    if missing is not None:
        assert not counts[missing].any(), "NULL has no hashes"
        lengths = np.where(missing, 0, lengths)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    body = np.zeros(int(ends[-1]) if groups else 0, np.uint64)
    there = np.ones(groups, np.bool_) if missing is None else ~missing
    head = words.astype(np.uint64) | np.uint64(_SAME | _FLAGS)
    head |= np.where(made.empty, np.uint64(_IS_EMPTY), np.uint64(0))
    body[begins[there]] = head[there]
    two, three = there & (words > 1), there & (words > 2)
    body[begins[two] + 1] = counts[two].astype(np.uint64)
    body[begins[three] + 2] = made.thetas[three].astype(np.uint64)
    rank = np.arange(len(made.rows)) - (np.cumsum(counts) - counts)[made.rows]
    body[(begins + words)[made.rows] + rank] = made.hashes.astype(np.uint64)
    assert len(body) < 2**28, "pieces of state are smaller"
    offsets = np.concatenate([[0], ends * 8]).astype(np.int32)
    bits: Any = (
        None if missing is None else pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    )
    buffers: list[Any] = [bits, pa.py_buffer(offsets.tobytes()), pa.py_buffer(body.tobytes())]
    return pa.Array.from_buffers(pa.binary(), groups, buffers)


def read(column: pa.Array) -> Thetas:
    """Sketches of a column of bytes; NULL is read as the empty set.

    Raises:
        ValueError: a value isn't an ordered compact sketch of the default seed; the message says which.
    """
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    offsets, data = text(column.fill_null(b"") if column.null_count else column)
    lengths = np.diff(offsets).astype(np.int64) if len(column) else np.zeros(0, np.int64)
    _check((lengths % 8 == 0) & ((lengths > 0) == there), column)
    count = lengths // 8
    rows = np.repeat(np.arange(len(column)), count)
    at = np.arange(len(rows)) - (np.cumsum(count) - count)[rows]  # of each word, in its sketch
    if not len(rows):
        return Thetas(np.full(len(column), ALL), rows, rows)
    body = data[int(offsets[0]) : int(offsets[-1])].view(np.uint64)
    heads = np.zeros(len(column), np.uint64)
    heads[rows[at == 0]] = body[at == 0]
    words = (heads & np.uint64(0xFF)).astype(np.int64)
    same = (heads & _SAME_BITS) == np.uint64(_SAME)
    same &= (heads & (_ORDERED | _BIG_ENDIAN)) == _ORDERED
    _check(~there | (same & (words >= 1) & (words <= 3) & (words <= count)), column)
    thetas = np.full(len(column), ALL)
    is_theta = (at == 2) & (words[rows] == 3)
    thetas[rows[is_theta]] = body[is_theta].view(np.int64)
    counts = np.where(words == 1, count - 1, 0)
    is_count = (at == 1) & (words[rows] > 1)
    counts[rows[is_count]] = (body[is_count] & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    _check(~there | ((counts == count - words) & (thetas > 0)), column)
    kept = at >= words[rows]
    found = Thetas(thetas, rows[kept], body[kept].view(np.int64))
    rising = np.ones(len(found.rows), np.bool_)
    rising[1:] = (found.hashes[1:] > found.hashes[:-1]) | (found.rows[1:] != found.rows[:-1])
    bad = ~rising | (found.hashes < 0) | (found.hashes >= thetas[found.rows])
    wrong = np.zeros(len(column), np.bool_)
    wrong[found.rows[bad]] = True
    _check(~wrong, column)
    return found


def merged(column: pa.Array, ids: Vector, groups: int) -> pa.Array:
    """The union of each group's sketches; NULL where all are of the empty set.

    Args:
        column: sketches; NULL is one of the empty set.
        ids: int[n], the number of each one's group.
        groups: how many there are.
    """
    found = read(column)
    thetas = np.full(groups, ALL)
    np.minimum.at(thetas, ids, found.thetas)
    made = sketch(found.hashes, ids[found.rows], thetas)
    return written(made, missing=made.empty)


def _check(right: Vector, column: pa.Array) -> None:
    if right.all():
        return
    value = column[int(np.flatnonzero(~right)[0])].as_py()
    raise ValueError(
        "expected a theta sketch: compact, ordered, uncompressed, of the default seed, as theta_sketch_agg "
        f"makes it; found {len(value)} bytes: {value[:16]!r}"
    )


EMPTY: Final[bytes] = written(Thetas(np.full(1, ALL), *np.zeros((2, 0), np.int64)))[0].as_py()
"""The sketch of no values."""
