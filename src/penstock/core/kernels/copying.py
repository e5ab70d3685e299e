"""How kernels call functions, and copy bytes."""

from __future__ import annotations

from typing import Final

from penstock.core.kernels import BLOCK, Array, Number, instruction, njit

__all__ = ["called", "copy_block", "copy_plain", "inlined"]

# How the functions that kernels call are compiled: into their callers, which alone have signatures
# and a cache on disk, and without counting references to arrays, which costs more than the work.
# `inlined` is for the usual way through a row (an array is seven arguments to a call), `called`
# for what is rare or long.
called: Final = njit(nogil=True, error_model="numpy", _nrt=False)
inlined: Final = njit(nogil=True, error_model="numpy", _nrt=False, forceinline=True)

copy_block = instruction("copy_block")


@inlined
def copy_plain(source: Array, p: Number, out: Array, q: Number, length: Number) -> None:
    """Copies `length` bytes, in blocks; what is written beyond them is overwritten or padding."""
    if p + length + BLOCK <= len(source):
        for k in range(0, length, BLOCK):
            copy_block(source, p + k, out, q + k)
    else:
        for k in range(length):
            out[q + k] = source[p + k]
