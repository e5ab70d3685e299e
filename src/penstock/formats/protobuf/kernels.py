"""Kernels of Protobuf: fields are found in messages, and columns written as pieces of bytes.

Pieces are bytes one after another with the positions between them (one more than pieces). The caller sizes
every output for the worst case. A piece begins with its field's tag, which may be empty.
"""

from __future__ import annotations

from penstock.core.kernels import Array, Number, njit, types
from penstock.formats.json_pieces import copy_exact
from penstock.formats.words import I64_OUT, U8_IN, U8_OUT, U64, inlined

NUMBER_BYTES_MAX = 10
VARINT, EIGHT, SIZED, FOUR = 0, 1, 2, 5
"""How a value lies on the wire."""
OK, BROKEN, OTHER_WIRE = 0, 1, 2
"""What became of a message."""

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_I64_ROWS = types.int64[:, ::1]


@inlined
def get_number(buffer: Array, p: Number, stop: Number) -> tuple[Number, Number]:
    """Reads a number of varying length: it, and the position past it; -1 where there is none."""
    value = U64(0)
    shift = U64(0)
    while p < stop:
        byte = U64(buffer[p])
        p += 1
        value |= (byte & U64(0x7F)) << shift
        if byte < U64(0x80):
            return _I(value), p
        shift += U64(7)
        if shift > U64(63):
            break
    return _I(0), _I(-1)


@inlined
def get_value(
    buffer: Array, p: Number, stop: Number, wire: Number
) -> tuple[Number, Number, Number]:
    """A value's number or position, its size, and the position past it; -1 where there is none."""
    if wire == VARINT:
        value, p = get_number(buffer, p, stop)
        return value, _I(0), p
    size = _I(-1)
    if wire == EIGHT:
        size = _I(8)
    elif wire == FOUR:
        size = _I(4)
    elif wire == SIZED:
        size, p = get_number(buffer, p, stop)
    if p < 0 or size < 0 or size > stop - p:
        return _I(0), _I(0), _I(-1)
    return p, size, p + size


@njit(
    types.void(U8_IN, _I64_IN, _I64_IN, _I64_IN, _I64_IN, _I64_ROWS, _I64_ROWS, U8_OUT),
    cache=True,
    nogil=True,
)
def find_fields(
    buffer: Array,
    start: Array,
    stop: Array,
    numbers: Array,
    wires: Array,
    at: Array,
    size: Array,
    status: Array,
) -> None:
    """Of messages the last value of each field: a number, or a position; size -1 where there is none."""
    for row in range(len(start)):
        for slot in range(len(numbers)):
            size[slot, row] = -1
        p = start[row]
        while p < stop[row]:
            tag, p = get_number(buffer, p, stop[row])
            if p < 0 or tag < 8:
                status[row] = BROKEN
                break
            value, bytes_, p = get_value(buffer, p, stop[row], tag & 7)
            if p < 0:
                status[row] = BROKEN
                break
            for slot in range(len(numbers)):
                if numbers[slot] == tag >> 3:
                    if wires[slot] != tag & 7:
                        status[row] = OTHER_WIRE
                    at[slot, row] = value
                    size[slot, row] = bytes_


@njit(
    types.void(U8_IN, _I64_IN, _I64_IN, _I, _I, _I, I64_OUT, I64_OUT, I64_OUT, U8_OUT),
    cache=True,
    nogil=True,
)
def find_items(
    buffer: Array,
    start: Array,
    stop: Array,
    number: Number,
    wire: Number,
    is_counting: Number,
    ends: Array,
    at: Array,
    size: Array,
    status: Array,
) -> None:
    """The items of a repeated field, packed or one by one: how many there are of each message, or they."""
    count = 0
    ends[0] = 0
    for row in range(len(start)):
        p = start[row]
        while p < stop[row]:
            tag, p = get_number(buffer, p, stop[row])
            if p < 0:
                break
            value, bytes_, p = get_value(buffer, p, stop[row], tag & 7)
            if p < 0:
                break
            if tag >> 3 != number:
                continue
            if tag & 7 == wire:
                if not is_counting:
                    at[count] = value
                    size[count] = bytes_
                count += 1
            elif tag & 7 == SIZED:
                q = value
                while q < value + bytes_:
                    item, width, q = get_value(buffer, q, value + bytes_, wire)
                    if q < 0:
                        status[row] = BROKEN
                        break
                    if not is_counting:
                        at[count] = item
                        size[count] = width
                    count += 1
            else:
                status[row] = OTHER_WIRE
        ends[row + 1] = count


@inlined
def put_number(rest: Number, out: Array, q: Number) -> Number:
    """Writes a number of varying length: the position past it."""
    while rest >= U64(0x80):
        out[q] = (rest & U64(0x7F)) | U64(0x80)
        rest >>= U64(7)
        q += 1
    out[q] = rest
    return q + 1


@inlined
def put_tag(tag: Array, out: Array, q: Number) -> Number:
    """Writes a tag: the position past it."""
    for k in range(len(tag)):
        out[q] = tag[k]
        q += 1
    return q


@njit(types.void(_I64_IN, U8_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_numbers(values: Array, valid: Array, tag: Array, ends: Array, out: Array) -> None:
    """Integers."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            q = put_tag(tag, out, q)
            q = put_number(U64(values[row]), out, q)
        ends[row + 1] = q


@njit(types.void(U8_IN, _I, U8_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_fixed(
    data: Array, width: Number, valid: Array, tag: Array, ends: Array, out: Array
) -> None:
    """Values of `width` bytes each, as they are."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            q = put_tag(tag, out, q)
            copy_exact(data, row * width, out, q, width)
            q += width
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, U8_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_bytes(at: Array, data: Array, valid: Array, tag: Array, ends: Array, out: Array) -> None:
    """Bytes between the positions `at`: their length first."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            size = at[row + 1] - at[row]
            q = put_tag(tag, out, q)
            q = put_number(U64(size), out, q)
            copy_exact(data, at[row], out, q, size)
            q += size
        ends[row + 1] = q
