"""Sketches: small maps from a number to a number, one for each group, that are put together without loss.

    merge(sketch(a), sketch(b)) = sketch(a ++ b)

Merging takes the greatest value of each key (registers, as of HyperLogLog), the sum (histograms), or all bits
(words of Bloom filters). All are commutative and associative, so a sketch is a function of its group's rows,
however they were batched.

A sketch is a binary value: entries of a fixed size, in the order of their keys, little-endian. What isn't
there is 0. NULL is a sketch of nothing.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector, text, validity

__all__ = ["ENTRY", "Merge", "entries_of", "merged", "sketches"]

Merge: TypeAlias = Literal["registers", "histogram", "bits"]

ENTRY: Final[dict[str, np.dtype[Any]]] = {
    "registers": np.dtype([("key", "<u2"), ("value", "u1")]),
    "histogram": np.dtype([("key", "<i4"), ("value", "<i8")]),
    "bits": np.dtype([("key", "<i4"), ("value", "<i8")]),
}
"""An entry of each kind: 3 bytes, and 12."""
_REDUCE: Final[dict[str, np.ufunc]] = {
    "registers": np.maximum,
    "histogram": np.add,
    "bits": np.bitwise_or,
}


def sketches(merge: Merge, keys: Vector, values: Vector, ids: Vector, groups: int) -> pa.Array:
    """A sketch for each group, of entries in any order.

    Args:
        merge: how entries of one key are put together.
        keys: int64[n], within what an entry can hold.
        values: int64[n]; 0 says nothing.
        ids: int[n], the number of each entry's group.
        groups: how many there are.
    """
    code = (ids.astype(np.int64) << 32) + (keys.astype(np.int64) + 2**31)
    order = np.argsort(code, kind="stable")
    code = code[order]
    begins = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]])) if len(code) else order
    if len(code):
        values = _REDUCE[merge].reduceat(values[order], begins)
        code = code[begins]
        there = values != 0
        code, values = code[there], values[there]
    made = np.empty(len(code), ENTRY[merge])
    made["key"] = (code & 0xFFFF_FFFF) - 2**31
    made["value"] = values
    count = np.bincount(code >> 32, minlength=groups)
    offsets = np.concatenate([[0], np.cumsum(count)]) * ENTRY[merge].itemsize
    assert offsets[-1] < 2**31, "pieces of state are smaller"
    bits = np.packbits(count > 0, bitorder="little")
    buffers: list[Any] = [pa.py_buffer(bits.tobytes()), pa.py_buffer(offsets.astype(np.int32).tobytes()),
                          pa.py_buffer(made.tobytes())]  # fmt: skip
    return pa.Array.from_buffers(pa.binary(), groups, buffers)


def entries_of(merge: Merge, column: pa.Array) -> tuple[Vector, Vector, Vector]:
    """The entries of sketches: the row of each, its key, its value; each int64[n], in order."""
    offsets, body = text(column)
    size = ENTRY[merge].itemsize
    lengths = np.diff(offsets) // size if len(column) else np.zeros(0, np.int64)
    valid = validity(column)
    if valid is not None:
        assert not lengths[~valid].any(), "nothing lies under a NULL"
    found = body[int(offsets[0]) : int(offsets[-1])].view(ENTRY[merge])
    rows = np.repeat(np.arange(len(column)), lengths)
    return rows, found["key"].astype(np.int64), found["value"].astype(np.int64)


def merged(merge: Merge, column: pa.Array, ids: Vector, groups: int) -> pa.Array:
    """The sketches of each group as one."""
    rows, keys, values = entries_of(merge, column)
    return sketches(merge, keys, values, ids[rows], groups)
