"""Records' keys as texts of a column's values, and whether they are such.

Where a log is partitioned by a column, all rows of a group meet in one partition, and an aggregate needs no
exchange. That rests on what producers do; so it is checked, record by record.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.kernels import instruction, njit, types
from penstock.core.literals import interval_text, uuid_texts
from penstock.core.schema import INTERVAL, TIMESTAMP, UUID
from penstock.core.vectors import Vector

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U64 = np.uint64
_ZEROS = np.uint64(0x3030303030303030)
_BYTE_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)

load64 = instruction("load64")


def key_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """What a record's key is where it is a value of this column; NULL stays NULL.

    It is the text that JSON has for the value, such as base64 for bytes, but for instants, which have all
    digits of a second, in UTC, and floats, which have no `.0`.

    Args:
        column: of values that aren't nested.
    """
    found: Any = vectors.contiguous(column)
    if isinstance(found.type, pa.BaseExtensionType):
        found = found.storage
    if pa.types.is_timestamp(found.type):
        found = found.cast(TIMESTAMP, safe=False)
    elif pa.types.is_duration(found.type):
        found = found.cast(INTERVAL, safe=False)
    texts: Any
    if found.type == UUID:
        texts = uuid_texts(found)
    elif any(is_so(found.type) for is_so in _BYTE_TYPES):
        values = found.to_pylist()
        texts = pa.array(
            [None if one is None else base64.b64encode(one).decode() for one in values]
        )
    elif found.type == INTERVAL:
        micros = found.cast(pa.int64()).to_pylist()
        texts = pa.array([None if one is None else interval_text(one) for one in micros])
    else:
        texts = pc.cast(found, pa.string())
        if vectors.is_float(found.type):
            for text, name in (("inf", "Infinity"), ("-inf", "-Infinity"), ("nan", "NaN")):
                texts = pc.if_else(pc.equal(texts, pa.scalar(text)), pa.scalar(name), texts)
    made: pa.Array = texts.cast(pa.string())
    return made


def null_key(name: str) -> str:
    """What a record's key is where a column of this name is NULL; compacted topics don't take none.

    >>> null_key("city")
    '{"city":null}'
    """
    return f"{{{json.dumps(name, ensure_ascii=False)}:null}}"


def keys_match(
    buffer: np.ndarray, start: Vector, length: np.ndarray, column: pa.Array, name: str
) -> Vector:
    """Which keys are the text of the column's value in the same row.

    Args:
        buffer: uint8, what the starts point into.
        start: int64[n], of each key.
        length: int32[n], of each key; -1 for none.
        column: of n values, none of them nested.
        name: of the column.

    Returns:
        bool[n]. NULL matches no key, and `null_key`.
    """
    out = np.empty(len(column), np.bool_)
    known = vectors.given(vectors.validity(column), np.bool_)
    if pa.types.is_integer(column.type):
        _match_integers(buffer, start, length, vectors.codes(column), known, out)
    else:
        _match_text(buffer, start, length, *vectors.text(key_texts(column)), known, out)
    if len(known):
        null = null_key(name).encode()
        for i in np.flatnonzero(~known & ~out & (length == len(null))).tolist():
            out[i] = buffer[start[i] : start[i] + len(null)].tobytes() == null
    return out


@njit(types.void(_BYTES, _I64, _I32, _I64, types.Array(types.boolean, 1, "C", readonly=True),
      types.boolean[::1]), cache=True, nogil=True)  # fmt: skip
def _match_integers(
    buffer: Any, start: Any, length: Any, values: Any, known: Any, out: Any
) -> None:
    """Compares the number that a short key spells (D. Lemire, *Quickly parsing eight digits*, 2022).

    The digits of others are compared with the value's, from the back.
    """
    for i in range(len(values)):
        n = length[i]
        null = len(known) != 0 and not known[i]
        if n < 0 or null:
            out[i] = n < 0 and null
            continue
        value = values[i]
        at = start[i]
        if 0 < n < 8 and at + 8 <= len(buffer) and buffer[at] != 45:
            digits = (load64(buffer, at) ^ _ZEROS) << _U64(64 - 8 * n)  # zeros in front
            if (digits | (digits + _U64(0x7676767676767676))) & _U64(0x8080808080808080):
                out[i] = False
                continue
            pairs = (digits * _U64(2561)) >> _U64(8)
            fours = ((pairs & _U64(0x00FF00FF00FF00FF)) * _U64(6553601)) >> _U64(16)
            whole = ((fours & _U64(0x0000FFFF0000FFFF)) * _U64(42949672960001)) >> _U64(32)
            out[i] = np.int64(whole) == value and (n == 1 or buffer[at] != 48)
            continue
        at += n - 1
        same = n > 0
        rest = np.uint64(value) if value >= 0 else np.uint64(-(value + 1)) + np.uint64(1)
        left = n - (1 if value < 0 else 0)
        while same and left > 0:
            same = buffer[at] == np.uint64(48) + rest % np.uint64(10)
            rest //= np.uint64(10)
            at -= 1
            left -= 1
            if rest == np.uint64(0):
                break
        same = same and left == 0 and rest == np.uint64(0)
        if same and value < 0:
            same = buffer[at] == 45
        out[i] = same


@njit(types.void(_BYTES, _I64, _I32, _I32, _BYTES, types.Array(types.boolean, 1, "C", readonly=True),
      types.boolean[::1]), cache=True, nogil=True)  # fmt: skip
def _match_text(
    buffer: Any, start: Any, length: Any, offsets: Any, text: Any, known: Any, out: Any
) -> None:
    for i in range(len(out)):
        n = length[i]
        null = len(known) != 0 and not known[i]
        if n < 0 or null:
            out[i] = n < 0 and null
            continue
        same = offsets[i + 1] - offsets[i] == n
        j = 0
        while same and j < n:
            same = buffer[start[i] + j] == text[offsets[i] + j]
            j += 1
        out[i] = same
