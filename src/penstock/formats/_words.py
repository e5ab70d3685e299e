"""Words, eight bytes at a time, and blocks of 32, for the kernels that read and write text.

The loads and stores are single unaligned machine instructions, of a block one or two. They don't check
bounds: a caller proves that `index + 8 <= len(array)`, or `index + BLOCK` of a block; or it uses `word`,
which does and fills with zeros past the end.
All arithmetic on words is unsigned; an `np.uint64` never meets a signed integer here, because
Numba would turn the pair into a float.

Source of the tricks: H. S. Warren, *Hacker's Delight*, 2nd edition, section 6-1 (the first zero
byte); D. Lemire, *Quickly parsing eight digits* (2022).
"""

# mypy: ignore-errors
# (these functions have Numba's types, which mypy can't see)

from __future__ import annotations

from typing import Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

U64: Final = np.uint64
U8_IN: Final = types.Array(types.uint8, 1, "C", readonly=True)  # a writable array fits as well
U8_OUT: Final = types.uint8[::1]
I64_OUT: Final = types.int64[::1]

# How the functions that kernels call are compiled: into their callers, which alone have signatures
# and a cache on disk, and without counting references to arrays, which costs more than the work.
# `inlined` is for the usual way through a row (an array is seven arguments to a call), `called`
# for what is rare or long.
called: Final = njit(nogil=True, error_model="numpy", _nrt=False)
inlined: Final = njit(nogil=True, error_model="numpy", _nrt=False, forceinline=True)

ONES: Final = U64(0x0101010101010101)
HIGH_BITS: Final = U64(0x8080808080808080)
ZERO_DIGITS: Final = U64(0x3030303030303030)

BLOCK: Final = 32
"""Bytes that are looked at or copied at once: what fits in a vector of most machines, or in two."""

_I8 = ir.IntType(8)
_I64 = ir.IntType(64)
_I128 = ir.IntType(128)
_V = ir.VectorType(_I8, BLOCK)


def _pointer(context, builder, array_type, array, index, bits):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


@intrinsic
def load64(_typing, array, _index):
    """The word at `index`, little-endian. Unchecked."""

    def code(context, builder, signature, args):
        return builder.load(
            _pointer(context, builder, signature.args[0], args[0], args[1], 64), align=1
        )

    return types.uint64(array, types.int64), code


@intrinsic
def store64(_typing, array, _index, _value):
    """Writes a word at `index`, little-endian. Unchecked."""

    def code(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], 64)
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), code


def _block(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _V.as_pointer())


def _every(byte):
    return ir.Constant(_V, [byte] * BLOCK)


def _marks(compare_spaces):
    """A function of an array and an index: a bit for each byte of a block that ends plain text."""

    def marks(_typing, array, _index):
        def code(context, builder, signature, args):
            text = builder.load(_block(context, builder, signature.args[0], *args), align=1)
            hits = builder.or_(
                builder.icmp_unsigned("==", text, _every(ord('"'))),
                builder.icmp_unsigned("==", text, _every(ord("\\"))),
            )
            hits = builder.or_(hits, compare_spaces(builder, text))
            return builder.zext(builder.bitcast(hits, ir.IntType(BLOCK)), _I64)

        return types.uint64(array, types.int64), code

    return intrinsic(marks)


# A bit for each byte of a block where plain ASCII text ends: a quote, a backslash, a control character, or a
# byte of a longer character (which is negative). Unchecked.
marks_text = _marks(lambda builder, text: builder.icmp_signed("<", text, _every(32)))
# A bit for each byte of a block that JSON must escape. Unchecked.
marks_escapes = _marks(lambda builder, text: builder.icmp_unsigned("<", text, _every(32)))


@intrinsic
def copy_block(_typing, source, _from, target, _to):
    """Copies a block. Unchecked."""

    def code(context, builder, signature, args):
        text = builder.load(_block(context, builder, signature.args[0], *args[:2]), align=1)
        builder.store(text, _block(context, builder, signature.args[2], *args[2:]), align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), code


@intrinsic
def trailing_zeros(_typing, _value):
    """How many low bits are zero; 64 for zero."""

    def code(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), code


@intrinsic
def leading_zeros(_typing, _value):
    """How many high bits are zero; 64 for zero."""

    def code(_context, builder, _signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), code


@intrinsic
def multiply_high(_typing, _left, _right):
    """The upper 64 bits of the 128-bit product."""

    def code(_context, builder, _signature, args):
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), code


@intrinsic
def double_of_bits(_typing, _bits):
    """The double that has these bits."""

    def code(_context, builder, _signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), code


@intrinsic
def bits_of_double(_typing, _value):
    """A double's bits, as the signed integer that an 8-byte slot holds."""

    def code(_context, builder, _signature, args):
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), code


@inlined
def word(array, index):
    """The word at `index >= 0`, with zeros for what lies past the array's end."""
    if index + 8 <= len(array):
        return load64(array, index)
    value = U64(0)
    for k in range(min(len(array) - index, 8)):
        value |= U64(array[index + k]) << U64(8 * k)
    return value


@inlined
def digit_count(text):
    """How many of a word's first bytes are decimal digits, 0 to 8."""
    digits = text ^ ZERO_DIGITS
    return trailing_zeros(((digits + U64(0x7676767676767676)) | digits) & HIGH_BITS) >> 3


@inlined
def digits_value(text, count):
    """The number that a word's first `count` bytes (1 to 8, all digits) spell."""
    value = (text ^ ZERO_DIGITS) << U64(64 - 8 * count)  # zeros in front instead of text behind
    value = ((value & U64(0x0F0F0F0F0F0F0F0F)) * U64(2561)) >> U64(8)
    value = ((value & U64(0x00FF00FF00FF00FF)) * U64(6553601)) >> U64(16)
    return ((value & U64(0x0000FFFF0000FFFF)) * U64(42949672960001)) >> U64(32)
