"""Loops of window functions: over rows in order, each with a range of rows or with what was before."""

from __future__ import annotations

from typing import Any

from penstock.core.kernels import njit, types

__all__ = ["frame_extremes", "frame_sums", "joined", "running_extremes", "running_sums"]

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_F64 = types.Array(types.float64, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_W_I64 = types.int64[::1]
_W_F64 = types.float64[::1]


@njit(types.void(_F64, _BOOL, _I64, _I64, _W_F64), cache=True, nogil=True)
def frame_sums(x: Any, valid: Any, lo: Any, hi: Any, out: Any) -> None:
    """The sum of the valid values of each range of rows, in their order."""
    for i in range(len(lo)):
        total = 0.0
        for row in range(lo[i], hi[i]):
            if valid[row]:
                total += x[row]
        out[i] = total


@njit(types.void(_I64, _BOOL, types.int64, _I64, _I64, _W_I64), cache=True, nogil=True)
def frame_extremes(codes: Any, valid: Any, sign: Any, lo: Any, hi: Any, out: Any) -> None:
    """The row with the least (sign 1) or greatest (-1) valid code of each range; -1 where there is none."""
    for i in range(len(lo)):
        best = -1
        for row in range(lo[i], hi[i]):
            if valid[row]:
                less = codes[row] < codes[best] if sign > 0 else codes[row] > codes[best]
                if best < 0 or less:
                    best = row
        out[i] = best


@njit(types.void(_F64, _BOOL, _I64, _W_F64), cache=True, nogil=True)
def running_sums(x: Any, valid: Any, base: Any, out: Any) -> None:
    """The sums of values up to each row.

    Args:
        x: the values; behind the rows' those that sums begin from.
        valid: of the rows.
        base: where a sum begins again, the place in `x` of what it begins from, or -1 for 0; elsewhere -2.
        out: of each row.
    """
    total = 0.0
    for i in range(len(base)):
        if base[i] == -1:
            total = 0.0
        elif base[i] >= 0:
            total = x[base[i]]
        if valid[i]:
            total += x[i]
        out[i] = total


@njit(types.void(_I64, _BOOL, types.int64, _I64, _W_I64), cache=True, nogil=True)
def running_extremes(codes: Any, valid: Any, sign: Any, base: Any, out: Any) -> None:
    """Where the least (sign 1) or greatest (-1) value up to each row is; -1 where there is none.

    Args:
        codes: of the values; behind the rows' those that were the extremes before.
        valid: of the same.
        sign: 1 or -1.
        base: as `running_sums` has it.
        out: of each row.
    """
    best = -1
    for i in range(len(base)):
        if base[i] == -1:
            best = -1
        elif base[i] >= 0:
            best = base[i] if valid[base[i]] else -1
        if valid[i]:
            less = codes[i] < codes[best] if sign > 0 else codes[i] > codes[best]
            if best < 0 or less:
                best = i
        out[i] = best


@njit(types.void(_I64, _W_I64, _W_I64, types.boolean[::1]), cache=True, nogil=True)
def joined(number: Any, lo: Any, hi: Any, begins: Any) -> None:
    """Joins ranges of a group that overlap.

    Args:
        number: the group of each range, ascending.
        lo: the first place of each; then of all that are joined with it, from it on.
        hi: the last place of each; then of all that are joined with it, up to it.
        begins: says which overlap none before.
    """
    n = len(number)
    for i in range(n - 2, -1, -1):
        if number[i] == number[i + 1] and lo[i + 1] < lo[i]:
            lo[i] = lo[i + 1]
    for i in range(n):
        begins[i] = i == 0 or number[i] != number[i - 1] or lo[i] > hi[i - 1]
        if not begins[i] and hi[i - 1] > hi[i]:
            hi[i] = hi[i - 1]
