"""Loops over sorted rows: order, search, reduce. Compiled by Numba; no Arrow in here.

Rows are placed by (window, hash, order, tie): int64 each. There is no tie where window and hash say it all;
it is a column's codes or dense ranks where several rows of one run share both. Layouts whose rows are read in
some order have that before the tie.
A *grouping* is `ids` int32[rows], the number of each row's group in sorted order, and `first` int64[groups],
one row of each group. Reductions go through the rows as they lie and add into `out[ids[i]]`: input is read in
sequence, and of sorted stretches output is written in sequence, too.

What need not be there is None: ties, validities (all rows are valid), weights (every row counts once),
rounding errors (there are none). The compiled loops get an empty vector then (`vectors.given`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector, given

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_F64 = types.Array(types.float64, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_W_I64 = types.int64[::1]
_W_F64 = types.float64[::1]
_W_I32 = types.int32[::1]
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)

_STRIDE: Final = 8  # rows of a hash column in a cache line
_SPLITTABLE: Final = 1e290  # beyond, Dekker's splitting overflows


@njit(types.int64(_I64, _I64, _I64, _I64, _I64, _W_I32, _W_I64), cache=True, nogil=True)
def _merge(w: Any, h: Any, order: Any, tie: Any, bounds: Any, ids: Any, first: Any) -> Any:
    k = len(bounds) - 1
    tied, ordered = len(tie) > 0, len(order) > 0
    at = bounds[:-1].copy()
    live = np.empty(k, np.int64)
    n = 0
    for i in range(k):
        if at[i] < bounds[i + 1]:
            live[n] = i
            n += 1
    group = -1
    last = np.int64(-1)
    while n > 0:
        best = 0
        a = at[live[0]]
        for c in range(1, n):
            b = at[live[c]]
            less = w[b] < w[a]
            if w[b] == w[a]:
                less = h[b] < h[a]
                if tied and h[b] == h[a]:
                    less = tie[b] < tie[a]
                    if ordered and order[b] != order[a]:
                        less = order[b] < order[a]
            if less:
                a = b
                best = c
        if (
            last < 0
            or h[a] != h[last]
            or w[a] != w[last]
            or (tied and tie[a] != tie[last])
            or (ordered and order[a] != order[last])
        ):
            group += 1
            first[group] = a
        ids[a] = group
        last = a
        source = live[best]
        at[source] += 1
        if at[source] == bounds[source + 1]:
            n -= 1
            for c in range(best, n):
                live[c] = live[c + 1]
    return group + 1


def merge(
    w: Vector, h: Vector, order: Vector | None, tie: Vector | None, bounds: Vector
) -> tuple[Vector, Vector]:
    """Groups the rows of sorted stretches.

    Args:
        w: windows of all rows, stretch after stretch; `h` hashes, `order` and `tie` as said, or None.
        h: as said.
        order: as said.
        tie: as said.
        bounds: int64[stretches + 1]; stretch i is rows bounds[i] to bounds[i + 1].

    Returns:
        (ids, first).
    """
    ids = np.empty(len(w), np.int32)
    first = np.empty(len(w), np.int64)
    groups = _merge(w, h, given(order, np.int64), given(tie, np.int64), bounds, ids, first)
    return ids, first[:groups]


@njit(types.int64(_I64, _I64, types.int64, types.int64, types.int64, types.int64, types.boolean),
      cache=True, nogil=True)  # fmt: skip
def bisect(w: Any, h: Any, lo: Any, hi: Any, key_w: Any, key_h: Any, after: Any) -> Any:
    """The first row of w, h [lo, hi) not below (key_w, key_h), or with `after`, above it."""
    while lo < hi:
        mid = (lo + hi) >> 1
        below = w[mid] < key_w or (
            w[mid] == key_w and (h[mid] < key_h or (after and h[mid] == key_h))
        )
        if below:
            lo = mid + 1
        else:
            hi = mid
    return lo


@njit(types.int64(_I64, _I64, _I64, _I64, _W_I64, _W_I64), cache=True, nogil=True)
def find(qw: Any, qh: Any, w: Any, h: Any, lo: Any, hi: Any) -> Any:
    """For each of the sorted queries, the rows [lo, hi) of sorted w, h that equal it.

    Within one window hashes are spread evenly: each search guesses its place from where the last one ended
    (interpolation search, Peterson 1957) and gallops from the guess (Bentley and Yao, An almost
    optimal algorithm for unbounded searching, 1976). With uneven hashes it is a logarithm slower.

    Returns:
        The total number of rows found.
    """
    n = len(w)
    queries = len(qw)
    total = 0
    q = 0
    at = 0
    while q < queries:
        window = qw[q]
        end = q + 1
        while end < queries and qw[end] == window:
            end += 1
        a, b = at, n
        while a < b:
            mid = (a + b) >> 1
            if w[mid] < window:
                a = mid + 1
            else:
                b = mid
        first = a
        b = n
        while a < b:
            mid = (a + b) >> 1
            if w[mid] <= window:
                a = mid + 1
            else:
                b = mid
        last = a
        at = first
        slope = 0.0
        if last > first and h[last - 1] > h[first]:
            slope = (last - first) / (np.float64(h[last - 1]) - np.float64(h[first]))
        while q < end:
            key = qh[q]
            a = at
            b = last
            if at < last:
                guess: Any = at + np.int64((np.float64(key) - np.float64(h[at])) * slope)
                guess = min(max(guess, at), last - 1)
                step = _STRIDE
                if h[guess] < key:
                    a = guess + 1
                    b = guess + step
                    while b < last and h[b] < key:
                        a = b + 1
                        step *= 2
                        b += step
                    b = min(b, last)
                else:
                    b = guess
                    a = guess - step
                    while a >= at and h[a] >= key:
                        b = a
                        step *= 2
                        a -= step
                    a = max(a + 1, at)
            while a < b:
                mid = (a + b) >> 1
                if h[mid] < key:
                    a = mid + 1
                else:
                    b = mid
            at = a
            lo[q] = a
            b = a
            step = 1
            while b < last and h[b] == key:
                a = b + 1
                b += step
                step *= 2
            b = min(b, last)
            while a < b:
                mid = (a + b) >> 1
                if h[mid] == key:
                    a = mid + 1
                else:
                    b = mid
            hi[q] = a
            total += a - at
            q += 1
        at = last
    return total


@njit(types.void(_I64, types.boolean, _I64, _W_I64, _I64), cache=True, nogil=True)
def lower(values: Any, floats: Any, wanted: Any, lo: Any, hi: Any) -> None:
    """Moves each `lo` to the first row of sorted values [lo, hi) whose code isn't below the one wanted.

    `floats` says that values are the bits of doubles, whose codes `wanted` are (`vectors.float_codes`).
    """
    for i in range(len(lo)):
        a, b = lo[i], hi[i]
        while a < b:
            mid = (a + b) >> 1
            code = values[mid]
            if floats:
                code ^= (code >> 63) & 0x7FFFFFFFFFFFFFFF
            if code < wanted[i]:
                a = mid + 1
            else:
                b = mid
        lo[i] = a


@njit(types.void(_I64, _I64, _W_I64, _W_I64), cache=True, nogil=True)
def expand(lo: Any, hi: Any, which: Any, rows: Any) -> None:
    """Writes out ranges: `which` gets the range's number, `rows` each row in it."""
    out = 0
    for i in range(len(lo)):
        for row in range(lo[i], hi[i]):
            which[out] = i
            rows[out] = row
            out += 1


@njit(types.boolean(_I32, _I64, _I64, _BOOL), cache=True, nogil=True)
def _same_codes(ids: Any, first: Any, values: Any, valid: Any) -> Any:
    nulls = len(valid) > 0
    for i in range(len(ids)):
        f = first[ids[i]]
        if values[i] != values[f] or (nulls and valid[i] != valid[f]):
            return False
    return True


def same_codes(ids: Vector, first: Vector, values: Vector, valid: Vector | None) -> bool:
    """Whether each row has the code of its group's first row."""
    return bool(_same_codes(ids, first, values, given(valid, np.bool_)))


@njit(types.boolean(_I32, _I64, _I32, _U8, _BOOL), cache=True, nogil=True)
def _same_text(ids: Any, first: Any, offsets: Any, data: Any, valid: Any) -> Any:
    nulls = len(valid) > 0
    for i in range(len(ids)):
        f = first[ids[i]]
        if f == i:
            continue
        if nulls and valid[i] != valid[f]:
            return False
        if nulls and not valid[i]:
            continue
        length = offsets[f + 1] - offsets[f]
        if offsets[i + 1] - offsets[i] != length:
            return False
        x, y = offsets[f], offsets[i]
        for j in range(length):
            if data[x + j] != data[y + j]:
                return False
    return True


def same_text(
    ids: Vector, first: Vector, offsets: Vector, data: Vector, valid: Vector | None
) -> bool:
    """Whether each row has the text of its group's first row."""
    return bool(_same_text(ids, first, offsets, data, given(valid, np.bool_)))


@njit(types.void(_I64, _I64, _I64, _W_I32), cache=True, nogil=True)
def without_tie(first: Any, w: Any, h: Any, out: Any) -> None:
    """Numbers the groups by window and hash alone: neighbours that share both get one number."""
    number = 0
    for g in range(len(first)):
        if g > 0 and (w[first[g]] != w[first[g - 1]] or h[first[g]] != h[first[g - 1]]):
            number += 1
        out[g] = number


@njit(types.void(_I64, _BOOL, _I64, _I32, _W_I64), cache=True, nogil=True)
def _sum_integers(x: Any, valid: Any, weights: Any, ids: Any, out: Any) -> None:
    nulls = len(valid) > 0
    weighted = len(weights) > 0
    out[:] = 0
    for i in range(len(ids)):
        if not nulls or valid[i]:
            out[ids[i]] += x[i] * weights[i] if weighted else x[i]


def sum_integers(
    x: Vector, valid: Vector | None, weights: Vector | None, ids: Vector, out: Vector
) -> None:
    """Sums x per group, times the weights, modulo 2**64; NULLs are skipped."""
    _sum_integers(x, given(valid, np.bool_), given(weights, np.int64), ids, out)


@njit(types.void(_BOOL, _I64, _I32, _W_I64), cache=True, nogil=True)
def _count_valid(valid: Any, weights: Any, ids: Any, out: Any) -> None:
    nulls = len(valid) > 0
    weighted = len(weights) > 0
    out[:] = 0
    for i in range(len(ids)):
        if not nulls or valid[i]:
            out[ids[i]] += weights[i] if weighted else 1


def count_valid(valid: Vector | None, weights: Vector | None, ids: Vector, out: Vector) -> None:
    """Counts the rows that are not NULL per group, by weight."""
    _count_valid(given(valid, np.bool_), given(weights, np.int64), ids, out)


@njit(types.void(_F64, _F64, _BOOL, _I64, _I32, _W_F64, _W_F64), cache=True, nogil=True)
def _sum_floats(
    x: Any, error: Any, valid: Any, weights: Any, ids: Any, out: Any, rest: Any
) -> None:
    nulls = len(valid) > 0
    weighted = len(weights) > 0
    erring = len(error) > 0
    out[:] = 0.0
    rest[:] = 0.0
    for i in range(len(ids)):
        if nulls and not valid[i]:
            continue
        v = x[i]
        e = error[i] if erring else 0.0
        if weighted and weights[i] != 1:
            k = np.float64(weights[i])
            p = v * k
            e = e * k
            if k != -1.0 and np.isfinite(p) and abs(v) < _SPLITTABLE:
                t = 134217729.0 * v
                vh = t - (t - v)
                t = 134217729.0 * k
                kh = t - (t - k)
                vl = v - vh
                kl = k - kh
                e += ((vh * kh - p) + vh * kl + vl * kh) + vl * kl
            v = p
        g = ids[i]
        hi = out[g]
        s = hi + v
        z = s - hi
        rest[g] += ((hi - (s - z)) + (v - z)) + e
        out[g] = s
    for g in range(len(out)):
        s = out[g] + rest[g]
        if np.isfinite(s):
            rest[g] -= s - out[g]
            out[g] = s
        else:
            rest[g] = 0.0


def sum_floats(
    x: Vector,
    error: Vector | None,
    valid: Vector | None,
    weights: Vector | None,
    ids: Vector,
    out: Vector,
    rest: Vector,
) -> None:
    """Sums x (+ error) per group in double-double arithmetic: `out` + `rest` is the sum.

    The rounding error of each addition is kept (Knuth's TwoSum) and that of each multiplication
    (Dekker's product), so the sum of a group is the same double however its rows were batched, but
    for the 106th bit. A sum that is not finite stays so, with a rest of 0.
    """
    flags, counts = given(valid, np.bool_), given(weights, np.int64)
    _sum_floats(x, given(error, np.float64), flags, counts, ids, out, rest)


@njit(types.void(_I64, _I64, _BOOL, types.int64, _I32, _W_I64), cache=True, nogil=True)
def _extreme_pair(values: Any, seconds: Any, valid: Any, sign: Any, ids: Any, out: Any) -> None:
    nulls = len(valid) > 0
    out[:] = -1
    for i in range(len(ids)):
        if nulls and not valid[i]:
            continue
        best = out[ids[i]]
        if best < 0:
            out[ids[i]] = i
            continue
        a, b = values[i], values[best]
        if a == b:
            a, b = seconds[i], seconds[best]
        if a < b if sign > 0 else a > b:
            out[ids[i]] = i


def extreme_pair(
    values: Vector, seconds: Vector, valid: Vector | None, sign: int, ids: Vector, out: Vector
) -> None:
    """The row with the least (sign 1) or greatest (-1) pair of codes per group; -1 where all are NULL."""
    _extreme_pair(values, seconds, given(valid, np.bool_), sign, ids, out)


@njit(types.void(_I64, _BOOL, types.int64, _I32, _W_I64), cache=True, nogil=True)
def _extreme(values: Any, valid: Any, sign: Any, ids: Any, out: Any) -> None:
    nulls = len(valid) > 0
    out[:] = -1
    for i in range(len(ids)):
        if nulls and not valid[i]:
            continue
        best = out[ids[i]]
        if best < 0 or (values[i] < values[best] if sign > 0 else values[i] > values[best]):
            out[ids[i]] = i


def extreme(values: Vector, valid: Vector | None, sign: int, ids: Vector, out: Vector) -> None:
    """The row with the least (sign 1) or greatest (sign -1) code per group; -1 where all are NULL."""
    _extreme(values, given(valid, np.bool_), sign, ids, out)
