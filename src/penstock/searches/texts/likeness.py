"""Which terms may match fuzzy patterns and patterns with a text inside: joins of sorted columns.

A fuzzy term and one that is like it, by `k` edits, have a text in common: each becomes it by leaving out at
most `k` characters (an insertion, deletion, replacement or swap of neighbours is one left out on either
side). So the hashes of all such texts of both sides are joined, and distances are computed for what meets.
Source: W. Garbe, *1000x Faster Spelling Correction*, 2012; T. Bocek et al., *Fast Similarity Search in Large
Dictionaries*, 2007.

A term with a text inside has all groups of three characters of this text. The rarest of them is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector

__all__ = ["GRAM", "TEXT_CHARS_MAX", "alike", "having"]

GRAM: Final = 3
"""Characters of a group."""
TEXT_CHARS_MAX: Final = 32
"""Of a fuzzy term: with two characters left out, one of `n` has some `n ** 2 / 2` texts."""

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_PRIME: Final = 0x100000001B3
_SEED: Final = -0x340D631B7BDDDCDB  # of FNV-1a


def alike(terms: Sequence[str], wanted: Sequence[str], edits: int) -> tuple[Vector, Vector]:
    """Each pair of a wanted text and a term that is like it.

    Args:
        terms: any texts.
        wanted: of `TEXT_CHARS_MAX` characters at most.
        edits: how many there may be.

    Returns:
        int64[n] of places in `wanted`, ascending, and in `terms`.
    """
    texts, ends = points(terms)
    others, other_ends = points(wanted)
    hashes, owners = _hashes(texts, ends, edits)
    wanted_hashes, wanted_owners = _hashes(others, other_ends, edits)
    order = np.argsort(hashes, kind="stable")
    places, found = _met(wanted_hashes, hashes[order])
    pairs = np.unique(
        wanted_owners[places].astype(np.int64) << 32 | owners[order][found].astype(np.int64)
    )
    which, term = pairs >> 32, pairs & 0xFFFFFFFF
    fits = np.zeros(len(pairs), np.bool_)
    _near(texts, ends, others, other_ends, edits, which, term, fits)
    return which[fits], term[fits]


def having(terms: Sequence[str], wanted: Sequence[str]) -> tuple[Vector, Vector]:
    """Pairs of a wanted text and a term that may have it inside: it has the rarest of its groups.

    Args:
        terms: any texts.
        wanted: of `GRAM` characters at least.

    Returns:
        int64[n] of places in `wanted`, ascending, and in `terms`.
    """
    grams, owners = _grams(*points(terms))
    order = np.argsort(grams, kind="stable")
    grams, owners = grams[order], owners[order]
    wanted_grams, wanted_owners = _grams(*points(wanted))
    low = np.searchsorted(grams, wanted_grams, "left")
    counts = np.searchsorted(grams, wanted_grams, "right") - low
    by_count = np.lexsort((counts, wanted_owners))
    _, first = np.unique(wanted_owners[by_count], return_index=True)
    rarest = by_count[first]
    places, found = _stretched(low[rarest], counts[rarest])
    pairs = np.unique(places << 32 | owners[found].astype(np.int64))
    return pairs >> 32, pairs & 0xFFFFFFFF


def points(texts: Sequence[str]) -> tuple[Vector, Vector]:
    """int32[...], the characters of texts, and int64[n + 1], where each begins."""
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(one) for one in texts], out=ends[1:])
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.int32), ends


def _met(wanted: Vector, known: Vector) -> tuple[Vector, Vector]:
    """Where values are equal to others, which are sorted."""
    low = np.searchsorted(known, wanted, "left")
    return _stretched(low, np.searchsorted(known, wanted, "right") - low)


def _stretched(low: Vector, counts: Vector) -> tuple[Vector, Vector]:
    """Each place as often as it counts, and the places of its stretch."""
    places = np.repeat(np.arange(len(low)), counts)
    ends = np.cumsum(counts)
    return places, np.arange(len(places)) + np.repeat(low - (ends - counts), counts)


def _hashes(texts: Vector, ends: Vector, edits: int) -> tuple[Vector, Vector]:
    sizes = np.minimum(np.diff(ends), TEXT_CHARS_MAX + edits)
    room = int((1 + sizes + (sizes * (sizes - 1) // 2 if edits > 1 else 0)).sum())
    hashes, owners = np.empty(room, np.int64), np.empty(room, np.int32)
    count = _left_out(texts, ends, edits, TEXT_CHARS_MAX + edits, hashes, owners)
    return hashes[:count], owners[:count]


def _grams(texts: Vector, ends: Vector) -> tuple[Vector, Vector]:
    """Each group of three characters as a number, and the text that it is of."""
    sizes = np.maximum(np.diff(ends) - GRAM + 1, 0)
    owners, at = _stretched(ends[:-1], sizes)
    wide = texts.astype(np.int64)
    return wide[at] << 42 | wide[at + 1] << 21 | wide[at + 2], owners.astype(np.int32)


@njit(types.int64(_I32, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def _hash(text: Any, begin: Any, end: Any, one: Any, two: Any) -> Any:
    """Of a text without the characters at two places."""
    made = np.int64(_SEED)
    for i in range(begin, end):
        if i != one and i != two:
            made = (made ^ np.int64(text[i])) * np.int64(_PRIME)
    return made


@njit(types.int64(_I32, _I64, types.int64, types.int64, types.int64[::1], types.int32[::1]), cache=True,
      nogil=True)  # fmt: skip
def _left_out(texts: Any, ends: Any, edits: Any, longest: Any, hashes: Any, owners: Any) -> Any:
    """Hashes of texts without up to so many of their characters; gives their number."""
    n = np.int64(0)
    for t in range(len(ends) - 1):
        begin, end = ends[t], ends[t + 1]
        if end - begin > longest:
            continue
        hashes[n], owners[n] = _hash(texts, begin, end, -1, -1), t
        n += 1
        for i in range(begin, end):
            hashes[n], owners[n] = _hash(texts, begin, end, i, -1), t
            n += 1
            if edits > 1:
                for j in range(i + 1, end):
                    hashes[n], owners[n] = _hash(texts, begin, end, i, j), t
                    n += 1
    return n


@njit(types.int64(_I32, types.int64, types.int64, _I32, types.int64, types.int64, types.int64,
      types.int64[:, ::1]), cache=True, nogil=True)  # fmt: skip
def _distance(a: Any, a0: Any, n: Any, b: Any, b0: Any, m: Any, most: Any, rows: Any) -> Any:
    """How many edits make one text the other; more than `most` if it is more."""
    for j in range(m + 1):
        rows[0, j] = j
    for i in range(1, n + 1):
        this, above, two_above = i % 3, (i - 1) % 3, (i - 2) % 3
        rows[this, 0] = i
        least = np.int64(i)
        for j in range(1, m + 1):
            cost = np.int64(0) if a[a0 + i - 1] == b[b0 + j - 1] else np.int64(1)
            best = min(rows[above, j] + 1, rows[this, j - 1] + 1, rows[above, j - 1] + cost)
            if (
                i > 1
                and j > 1
                and a[a0 + i - 1] == b[b0 + j - 2]
                and a[a0 + i - 2] == b[b0 + j - 1]
            ):
                best = min(best, rows[two_above, j - 2] + 1)
            rows[this, j] = best
            least = min(least, best)
        if least > most + 1:
            return most + 1
    return rows[n % 3, m]


@njit(types.void(_I32, _I64, _I32, _I64, types.int64, _I64, _I64, types.boolean[::1]), cache=True,
      nogil=True)  # fmt: skip
def _near(
    texts: Any,
    ends: Any,
    wanted: Any,
    wanted_ends: Any,
    edits: Any,
    which: Any,
    term: Any,
    out: Any,
) -> None:
    """Of pairs, whether one text is like the other."""
    longest = np.int64(0)
    for t in range(len(ends) - 1):
        longest = max(longest, ends[t + 1] - ends[t])
    rows = np.empty((3, longest + 1), np.int64)
    for i in range(len(which)):
        begin, other = wanted_ends[which[i]], ends[term[i]]
        n, m = wanted_ends[which[i] + 1] - begin, ends[term[i] + 1] - other
        out[i] = _distance(wanted, begin, n, texts, other, m, edits, rows) <= edits
