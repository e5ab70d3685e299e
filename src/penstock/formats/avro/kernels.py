"""Kernels that write Avro: one column's values as pieces of bytes.

Pieces are bytes one after another with the positions between them (one more than pieces). The caller sizes
every output for the worst case. Where `nullable` is 1, a piece begins with the number of its branch in a
union of null and the type: a value with 2 (which is 1 as zigzag), NULL with 0 and nothing else.
"""

from __future__ import annotations

from penstock.core.kernels import Array, Number, njit, types
from penstock.formats.json_pieces import copy_exact
from penstock.formats.words import I64_OUT, U8_IN, U8_OUT, U64, inlined

NUMBER_BYTES_MAX = 10
BRANCH_VALUE = 2

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)


@inlined
def put_number(value: Number, out: Array, q: Number) -> Number:
    """Writes a zigzag number of varying length: the position past it."""
    rest = U64((value << 1) ^ (value >> 63))
    while rest >= U64(0x80):
        out[q] = (rest & U64(0x7F)) | U64(0x80)
        rest >>= U64(7)
        q += 1
    out[q] = rest
    return q + 1


@inlined
def put_branch(value: Number, nullable: Number, out: Array, q: Number) -> Number:
    """Writes the number of the branch, if there is one: the position past it."""
    if nullable:
        out[q] = BRANCH_VALUE if value else 0
        q += 1
    return q


@njit(types.void(_I64_IN, U8_IN, _I, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_numbers(values: Array, valid: Array, nullable: Number, ends: Array, out: Array) -> None:
    """Integers."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        q = put_branch(valid[row], nullable, out, q)
        if valid[row]:
            q = put_number(values[row], out, q)
        ends[row + 1] = q


@njit(types.void(U8_IN, _I, U8_IN, _I, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_fixed(
    data: Array, width: Number, valid: Array, nullable: Number, ends: Array, out: Array
) -> None:
    """Values of `width` bytes each, as they are."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        q = put_branch(valid[row], nullable, out, q)
        if valid[row]:
            copy_exact(data, row * width, out, q, width)
            q += width
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, U8_IN, _I, _I, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_bytes(
    at: Array, data: Array, valid: Array, nullable: Number, sized: Number, ends: Array, out: Array
) -> None:
    """Bytes between the positions `at`: their length first if `sized` is 1."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        q = put_branch(valid[row], nullable, out, q)
        if valid[row]:
            size = at[row + 1] - at[row]
            if sized:
                q = put_number(size, out, q)
            copy_exact(data, at[row], out, q, size)
            q += size
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, _I, _I64_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_blocks(
    at: Array,
    valid: Array,
    nullable: Number,
    item_ends: Array,
    items: Array,
    ends: Array,
    out: Array,
) -> None:
    """Arrays and maps of the items' pieces between the positions `at`: one block, and the end."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        q = put_branch(valid[row], nullable, out, q)
        if valid[row]:
            count = at[row + 1] - at[row]
            if count:
                q = put_number(count, out, q)
                size = item_ends[at[row + 1]] - item_ends[at[row]]
                copy_exact(items, item_ends[at[row]], out, q, size)
                q += size
            out[q] = 0
            q += 1
        ends[row + 1] = q
