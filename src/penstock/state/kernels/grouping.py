"""Grouping of rows that are in no order: which rows are of one identity, and the order of the groups.

Few groups are found in a hash table that stays in the nearest cache. Where there are many, rows are first
distributed by window and the uppermost bits of their hash. A bucket's rows are then sorted by the next bits,
as hashes are spread evenly. Where many rows share them, or windows and hashes aren't all, the bucket's
groups are found in a hash table, which stays in that cache too, and sorted among themselves only, as the
buckets are in order. One large hash table whose groups are sorted afterwards takes three times as long.

Rows, ties and groupings are those of `penstock.state.kernels`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector, given

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_W_I64 = types.int64[::1]
_W_I32 = types.int32[::1]

_U64 = np.uint64
_FEW: Final = 2048  # groups whose hash table stays in the first cache
_BUCKET: Final = 128  # rows, on average
_BUCKETS_LOG: Final = 12  # more of them at once, and writing to them would miss the second cache
_INSERTED: Final = 24  # as many are sorted by insertion
_WITHOUT: Final = (
    16  # buckets by a hash table, after one of which many rows have the same next bits
)
_SIGN = _U64(1 << 63)  # hashes are signed


@njit(types.int64(types.int64), inline="always", cache=True)
def _bits(n: Any) -> Any:
    """How many bits the numbers below n have."""
    bits = 0
    while (np.int64(1) << bits) < n:
        bits += 1
    return bits


@njit(types.uint64(types.int64, types.int64), inline="always", cache=True)
def _slot(x: Any, y: Any) -> Any:
    mixed = _U64(x) + _U64(y) * _U64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> _U64(29))


@njit(types.int64(_I64, _I64, _I64, _I64, _W_I32, _W_I64), cache=True, nogil=True)
def _group_few(w: Any, h: Any, order: Any, tie: Any, ids: Any, first: Any) -> Any:
    """Numbers groups in order of their first rows. Returns how many there are; -1 where they aren't few."""
    tied, ordered = len(tie) > 0, len(order) > 0
    table = np.full(4 * _FEW, -1, np.int32)
    mask = _U64(4 * _FEW - 1)
    group_w = np.empty(_FEW, np.int64)
    group_h = np.empty(_FEW, np.int64)
    groups = 0
    for i in range(len(h)):
        slot = _slot(h[i] ^ (tie[i] if tied else 0), w[i]) & mask
        while True:
            g = table[slot]
            if g < 0:
                if groups == _FEW:
                    return -1
                table[slot] = groups
                group_w[groups] = w[i]
                group_h[groups] = h[i]
                first[groups] = i
                ids[i] = groups
                groups += 1
                break
            if (
                group_h[g] == h[i]
                and group_w[g] == w[i]
                and (not tied or tie[first[g]] == tie[i])
                and (not ordered or order[first[g]] == order[i])
            ):
                ids[i] = g
                break
            slot = (slot + _U64(1)) & mask
    return groups


@njit(_W_I64(_I64, _I64, _I64, _I64), cache=True, nogil=True)
def _sorted(w: Any, h: Any, order: Any, tie: Any) -> Any:
    """Rows by (window, hash, order, tie)."""
    by = np.arange(len(h))
    if len(tie) > 0:
        by = np.argsort(tie, kind="mergesort")
    if len(order) > 0:
        by = by[np.argsort(order[by], kind="mergesort")]
    by = by[np.argsort(h[by], kind="mergesort")]
    for i in range(1, len(w)):
        if w[i] != w[0]:
            return by[np.argsort(w[by], kind="mergesort")]
    return by


@njit(types.void(_I64, _W_I32), cache=True, nogil=True)
def _renumber(ranked: Any, ids: Any) -> None:
    rank = np.empty(len(ranked), np.int32)
    for r in range(len(ranked)):
        rank[ranked[r]] = r
    for i in range(len(ids)):
        ids[i] = rank[ids[i]]


@njit(_W_I32(_I64), cache=True, nogil=True)
def _numbered(distinct: Any) -> Any:
    """A hash table of the numbers of values, with room for three times as many."""
    size = 16 * len(distinct)
    table = np.full(size, -1, np.int32)
    for i in range(len(distinct)):
        slot = _slot(0, distinct[i]) & _U64(size - 1)
        while table[slot] >= 0:
            slot = (slot + _U64(1)) & _U64(size - 1)
        table[slot] = i
    return table


@njit(types.int64(_I64, _W_I32), cache=True, nogil=True)
def _rank(w: Any, ranks: Any) -> Any:
    """Dense ranks of windows, which are few or come in stretches. Returns how many there are."""
    distinct = np.empty(16, np.int64)
    table = np.full(256, -1, np.int32)
    found = 0
    i = 0
    while i < len(w):
        window = w[i]
        mask = _U64(len(table) - 1)
        slot = _slot(0, window) & mask
        while table[slot] >= 0 and distinct[table[slot]] != window:
            slot = (slot + _U64(1)) & mask
        number = table[slot]
        if number < 0:
            number = found
            table[slot] = found
            distinct[found] = window
            found += 1
            if found == len(distinct):
                table = _numbered(distinct)
                more = np.empty(4 * found, np.int64)
                more[:found] = distinct
                distinct = more
        while i < len(w) and w[i] == window:
            ranks[i] = number
            i += 1
    by = np.argsort(distinct[:found])
    rank = np.empty(found, np.int32)
    sorted_ = True
    for r in range(found):
        rank[by[r]] = r
        sorted_ = sorted_ and by[r] == r
    if not sorted_:
        for i in range(len(w)):
            ranks[i] = rank[ranks[i]]
    return found


@njit(
    types.boolean(_W_I64, _W_I32, types.int64, _W_I64, _W_I64, _W_I32), inline="always", cache=True
)
def _sort_evenly(
    hashes: Any, rows: Any, known_bits: Any, counts: Any, sorted_h: Any, sorted_row: Any
) -> Any:
    """Sorts rows by hashes whose uppermost bits are alike, keeping the order of equal ones.

    By their next bits, of as many values as there are rows, each is almost in its place. Returns whether it
    was so: false where many have the same next bits.
    """
    n = len(hashes)
    bits = max(_bits(n), 1)
    shift = _U64(64 - bits)
    counts[: (1 << bits) + 1] = 0
    for j in range(n):
        c = ((_U64(hashes[j]) ^ _SIGN) << _U64(known_bits)) >> shift
        counts[c + _U64(1)] += 1
    most = np.int64(0)
    for k in range(1 << bits):
        most = max(most, counts[k + 1])
        counts[k + 1] += counts[k]
    if most > _INSERTED:
        return False
    for j in range(n):
        h = hashes[j]
        c = ((_U64(h) ^ _SIGN) << _U64(known_bits)) >> shift
        p = counts[c]
        counts[c] = p + 1
        sorted_h[p] = h
        sorted_row[p] = rows[j]
    for p in range(1, n):
        h = sorted_h[p]
        if h >= sorted_h[p - 1]:
            continue
        row = sorted_row[p]
        q = p
        while q > 0 and sorted_h[q - 1] > h:
            sorted_h[q] = sorted_h[q - 1]
            sorted_row[q] = sorted_row[q - 1]
            q -= 1
        sorted_h[q] = h
        sorted_row[q] = row
    return True


@njit(
    _W_I64(_I64, _W_I32, types.int64, types.int64, _W_I32, _W_I64),
    cache=True,
    nogil=True,
)
def _distribute(h: Any, ranks: Any, dropped: Any, hash_bits: Any, rows: Any, hashes: Any) -> Any:
    """Sorts rows by buckets: windows' ranks without `dropped` bits, then `hash_bits` of the hashes.

    Fills `rows`, in order of buckets, and `hashes`, theirs. Returns the buckets' ends, behind a zero.
    """
    n = len(h)
    buckets = ((np.int64(ranks.max()) >> dropped) + 1) << hash_bits
    bucket = np.empty(n, np.int32)
    ends = np.zeros(buckets + 1, np.int64)
    for i in range(n):
        b = np.int64(ranks[i] >> dropped) << hash_bits
        if hash_bits > 0:
            b |= np.int64((_U64(h[i]) ^ _SIGN) >> _U64(64 - hash_bits))
        bucket[i] = b
        ends[b + 1] += 1
    ends = np.cumsum(ends)
    at = ends[:-1].copy()
    for i in range(n):
        to = at[bucket[i]]
        rows[to] = i
        hashes[to] = h[i]
        at[bucket[i]] = to + 1
    return ends


@njit(types.boolean(_W_I64, types.int64, _W_I64, _W_I64), inline="always", cache=True)
def _place_evenly(group_h: Any, known_bits: Any, counts: Any, by: Any) -> Any:
    """Orders groups by their hashes' bits behind the known ones, by which each is almost in its place.

    Returns whether it was so: false where many have the same next bits.
    """
    groups = len(group_h)
    bits = _bits(groups)
    shift = _U64(64 - bits)
    counts[: (1 << bits) + 1] = 0
    for g in range(groups):
        c = ((_U64(group_h[g]) ^ _SIGN) << _U64(known_bits)) >> shift
        counts[c + _U64(1)] += 1
    most = np.int64(0)
    for k in range(1 << bits):
        most = max(most, counts[k + 1])
        counts[k + 1] += counts[k]
    if most > _INSERTED:
        return False
    for g in range(groups):
        c = ((_U64(group_h[g]) ^ _SIGN) << _U64(known_bits)) >> shift
        by[counts[c]] = g
        counts[c] += 1
    return True


@njit(types.int64(_I64, _I64, _I64, _I64, _W_I32, _W_I64), cache=True, nogil=True)
def _group_many(w: Any, h: Any, order: Any, tie: Any, ids: Any, first: Any) -> Any:
    """Numbers groups in their order. Returns how many there are."""
    n = len(w)
    tied, ordered = len(tie) > 0, len(order) > 0
    ranks = np.empty(n, np.int32)
    windows = _rank(w, ranks)

    # A bucket is some windows, or some of the hashes of one window.
    bits, window_bits = min(_bits(n // _BUCKET + 1), _BUCKETS_LOG), _bits(windows)
    hash_bits, dropped = max(bits - window_bits, 0), max(window_bits - bits, 0)
    several = dropped > 0  # windows in a bucket
    rows = np.empty(n, np.int32)
    hashes = np.empty(n, np.int64)
    ends = _distribute(h, ranks, dropped, hash_bits, rows, hashes)
    buckets = len(ends) - 1
    most = np.int64(0)
    for b in range(buckets):
        most = max(most, ends[b + 1] - ends[b])

    table = np.empty(2 << _bits(most), np.int32)
    number = np.empty(most, np.int32)  # of the group of a bucket's row, in the order of first rows
    group_h = np.empty(most, np.int64)
    group_row = np.empty(most, np.int64)
    by = np.empty(most, np.int64)  # groups in their order
    counts = np.empty((1 << _bits(most)) + 1, np.int64)
    place = np.empty(most, np.int32)
    sorted_h = np.empty(most, np.int64)
    sorted_row = np.empty(most, np.int32)
    # Buckets from here on are sorted without a hash table; where one can't be, it isn't tried for some.
    sorted_from = buckets if several or tied or ordered else 0
    done = 0
    for b in range(buckets):
        lo, hi = ends[b], ends[b + 1]
        if lo == hi:
            continue
        if b >= sorted_from:
            if _sort_evenly(hashes[lo:hi], rows[lo:hi], hash_bits, counts, sorted_h, sorted_row):
                before = np.int64(0)
                for p in range(hi - lo):
                    if p == 0 or sorted_h[p] != before:
                        before = sorted_h[p]
                        first[done] = sorted_row[p]
                        done += 1
                    ids[sorted_row[p]] = done - 1
                continue
            sorted_from = b + _WITHOUT
        size = 2 << _bits(hi - lo)
        mask = _U64(size - 1)
        table[:size] = -1
        groups = 0
        for j in range(lo, hi):
            i = rows[j]
            slot = _slot(hashes[j] ^ (tie[i] if tied else 0), ranks[i] if several else 0) & mask
            while True:
                g = table[slot]
                if g < 0:
                    g = groups
                    table[slot] = g
                    group_h[g] = hashes[j]
                    group_row[g] = i
                    groups += 1
                    break
                f = group_row[g]
                if (
                    group_h[g] == hashes[j]
                    and (not several or ranks[f] == ranks[i])
                    and (not tied or tie[f] == tie[i])
                    and (not ordered or order[f] == order[i])
                ):
                    break
                slot = (slot + _U64(1)) & mask
            number[j - lo] = g

        for g in range(groups):
            by[g] = g
        even = groups <= _INSERTED
        if not even and not several:
            even = _place_evenly(group_h[:groups], hash_bits, counts, by)
        if even:
            for p in range(1, groups):
                g = by[p]
                r = group_row[g]
                q = p
                while q > 0:
                    before = by[q - 1]
                    f = group_row[before]
                    if several and ranks[r] != ranks[f]:
                        less = ranks[r] < ranks[f]
                    elif group_h[g] != group_h[before]:
                        less = group_h[g] < group_h[before]
                    elif ordered and order[r] != order[f]:
                        less = order[r] < order[f]
                    else:
                        less = tied and tie[r] < tie[f]
                    if not less:
                        break
                    by[q] = before
                    q -= 1
                by[q] = g
        else:
            some = group_row[:groups]
            orders = order[some] if ordered else order
            ties = tie[some] if tied else tie
            by[:groups] = _sorted(w[some], group_h[:groups], orders, ties)

        for p in range(groups):
            place[by[p]] = done + p
            first[done + p] = group_row[by[p]]
        for j in range(lo, hi):
            ids[rows[j]] = place[number[j - lo]]
        done += groups
    return done


def group(w: Vector, h: Vector, order: Vector | None, tie: Vector | None) -> tuple[Vector, Vector]:
    """Groups rows that are in no order.

    Args:
        w: windows of the rows; `h` hashes, `order` and `tie` as `penstock.state.kernels` says, or None.
        h: as said.
        order: as said.
        tie: as said.

    Returns:
        (ids, first); `first` is the group's first row.
    """
    ids = np.empty(len(w), np.int32)
    first = np.empty(len(w), np.int64)
    orders, ties = given(order, np.int64), given(tie, np.int64)
    groups = _group_few(w, h, orders, ties, ids, first)
    if groups < 0:
        groups = _group_many(w, h, orders, ties, ids, first)
        return ids, first[:groups]
    some = first[:groups]
    if order is not None:
        orders = order[some]
    if tie is not None:
        ties = tie[some]
    ranked = _sorted(w[some], h[some], orders, ties)
    _renumber(ranked, ids)
    return ids, some[ranked]
