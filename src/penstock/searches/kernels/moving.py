"""Kernels that move programs, and number their leaves anew."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.searches.programs import Op

__all__ = ["moved", "size_of", "used_leaves"]

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_F64 = types.Array(types.float64, 1, "C", readonly=True)
_TERM: Final = int(Op.TERM)
_LEAF: Final = int(Op.LEAF)
_PHRASE: Final = int(Op.PHRASE)
_RANGE: Final = int(Op.RANGE)
_DISTANCE: Final = int(Op.DISTANCE)
_BOX: Final = int(Op.BOX)
_BOOLEAN: Final = int(Op.BOOLEAN)
_BOOST: Final = int(Op.BOOST)


@njit(types.int64(_I32, types.int64), cache=True, nogil=True)
def size_of(code: Any, at: Any) -> Any:
    """Of the instruction at a place, with its arguments."""
    op = code[at]
    if op == _PHRASE:
        return np.int64(4 + 2 * code[at + 1])
    if op in (_TERM, _LEAF, _BOOST):
        return np.int64(2)
    if op in (_RANGE, _DISTANCE, _BOX):
        return np.int64(3)
    return np.int64(5) if op == _BOOLEAN else np.int64(1)


@njit(types.void(_I64, _I64, _I32, types.boolean[::1]), cache=True, nogil=True)
def used_leaves(kept: Any, starts: Any, code: Any, out: Any) -> None:
    """Marks the leaves of some programs."""
    for query in kept:
        at = starts[query]
        while at < starts[query + 1]:
            if code[at] == _TERM or code[at] == _LEAF:
                out[code[at + 1]] = True
            elif code[at] == _PHRASE:
                for i in range(code[at + 1]):
                    out[code[at + 4 + 2 * i]] = True
            at += size_of(code, at)


@njit(types.UniTuple(types.int64, 2)(_I64, types.int32[::1], _I32, _I64, _F64, types.int64[::1],
      types.float64[::1]), cache=True, nogil=True)  # fmt: skip
def moved(
    starts: Any,
    code: Any,
    leaf_map: Any,
    bounds: Any,
    floats: Any,
    out_bounds: Any,
    out_floats: Any,
) -> Any:
    """Changes programs in their place: numbers of leaves, and where what they refer to is.

    Returns:
        How many bounds and how many numbers they refer to.
    """
    b, f = np.int64(0), np.int64(0)
    at = starts[0]
    while at < starts[-1]:
        op = code[at]
        if op in (_TERM, _LEAF):
            code[at + 1] = leaf_map[code[at + 1]]
        elif op == _PHRASE:
            for i in range(code[at + 1]):
                code[at + 4 + 2 * i] = leaf_map[code[at + 4 + 2 * i]]
        elif op == _RANGE:
            place = code[at + 2]
            out_bounds[b], out_bounds[b + 1] = bounds[place], bounds[place + 1]
            code[at + 2] = b
            b += 2
        elif op in (_DISTANCE, _BOX, _BOOST):
            argument = at + 1 if op == _BOOST else at + 2
            place = code[argument]
            code[argument] = f
            for i in range(1 if op == _BOOST else (3 if op == _DISTANCE else 4)):
                out_floats[f] = floats[place + i]
                f += 1
        at += size_of(code, at)
    return b, f
