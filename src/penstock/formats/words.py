"""Words, eight bytes at a time, and blocks of 32, for the kernels that read and write text.

The loads and stores are single unaligned machine instructions, of a block one or two. They don't check
bounds: a caller proves that `index + 8 <= len(array)`, or `index + BLOCK` of a block; or it uses `word`,
which does and fills with zeros past the end.
All arithmetic on words is unsigned; an `np.uint64` never meets a signed integer here, because
Numba would turn the pair into a float.

Source of the tricks: H. S. Warren, *Hacker's Delight*, 2nd edition, section 6-1 (the first zero
byte); D. Lemire, *Quickly parsing eight digits* (2022).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import Array, Number, instruction, types
from penstock.core.kernels.copying import called, copy_block, inlined

__all__ = [
    "HIGH_BITS",
    "I64_OUT",
    "ONES",
    "U8_IN",
    "U8_OUT",
    "U64",
    "ZERO_DIGITS",
    "bits_of_double",
    "called",
    "copy_block",
    "digit_count",
    "digits_value",
    "double_of_bits",
    "inlined",
    "leading_zeros",
    "load64",
    "marks_escapes",
    "marks_text",
    "multiply_high",
    "store64",
    "trailing_zeros",
    "word",
]

U64: Final = np.uint64
U8_IN: Final = types.Array(types.uint8, 1, "C", readonly=True)  # a writable array fits as well
U8_OUT: Final = types.uint8[::1]
I64_OUT: Final = types.int64[::1]

ONES: Final = U64(0x0101010101010101)
HIGH_BITS: Final = U64(0x8080808080808080)
ZERO_DIGITS: Final = U64(0x3030303030303030)

load64 = instruction("load64")
store64 = instruction("store64")
marks_text = instruction("marks_text")
marks_escapes = instruction("marks_escapes")
trailing_zeros = instruction("trailing_zeros")
leading_zeros = instruction("leading_zeros")
multiply_high = instruction("multiply_high")
double_of_bits = instruction("double_of_bits")
bits_of_double = instruction("bits_of_double")


@inlined
def word(array: Array, index: Number) -> Number:
    """The word at `index >= 0`, with zeros for what lies past the array's end."""
    if index + 8 <= len(array):
        return load64(array, index)
    value = U64(0)
    for k in range(min(len(array) - index, 8)):
        value |= U64(array[index + k]) << U64(8 * k)
    return value


@inlined
def digit_count(text: Number) -> Number:
    """How many of a word's first bytes are decimal digits, 0 to 8."""
    digits = text ^ ZERO_DIGITS
    return trailing_zeros(((digits + U64(0x7676767676767676)) | digits) & HIGH_BITS) >> 3


@inlined
def digits_value(text: Number, count: Number) -> Number:
    """The number that a word's first `count` bytes (1 to 8, all digits) spell."""
    value = (text ^ ZERO_DIGITS) << U64(64 - 8 * count)  # zeros in front instead of text behind
    value = ((value & U64(0x0F0F0F0F0F0F0F0F)) * U64(2561)) >> U64(8)
    value = ((value & U64(0x00FF00FF00FF00FF)) * U64(6553601)) >> U64(16)
    return ((value & U64(0x0000FFFF0000FFFF)) * U64(42949672960001)) >> U64(32)
