"""JSON as values of a column: texts of JSON values, of any shape.

What a column of type JSON holds is the text of the value (RFC 8259), without the space between its tokens
and otherwise as it came: numbers keep their digits, objects their members in order, twice the same one too,
strings their escapes. So two values are equal where these texts are. Half of a surrogate pair isn't JSON
here, as no text has it, nor is what nests deeper than a row may.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.schema import JSON
from penstock.formats.payloads import kernel
from penstock.formats.payloads.spelling import compact, items, members, without_odd

__all__ = [
    "PLACEHOLDER",
    "column_of",
    "compact",
    "compacted",
    "items",
    "members",
    "normalised",
    "of_strings",
    "without_odd",
]

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What Debezium writes in place of a large value that an update doesn't change."""

_NOTHING = np.zeros(0, np.uint8)


def compacted(
    buffer: np.ndarray, extra: np.ndarray, at: np.ndarray, length: np.ndarray, bitmap: Any
) -> pa.Array:
    """A column of valid texts.

    Args:
        buffer: uint8, that they lie in.
        extra: uint8, of texts without space.
        at: int64[n], where each begins, in `buffer` or past its end in `extra`.
        length: int32[n], bytes of each.
        bitmap: Arrow's, of which are not NULL; None is all.
    """
    offsets = np.empty(len(at) + 1, np.int64)
    out: Any = np.empty(int(length.sum(dtype=np.int64)) + kernel.PADDING, np.uint8)
    kernel.compact_texts(buffer, extra, at, length, offsets, out)
    made: Any = offsets
    data = pa.py_buffer(out[: offsets[-1]])
    return pa.Array.from_buffers(JSON, len(at), [bitmap, pa.py_buffer(made), data])


def normalised(texts: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """A column of type JSON of texts, and which are none: bool[n]. These, and NULLs, are NULL."""
    column = vectors.contiguous(texts)
    offsets, data = vectors.text(column)
    rows = len(column)
    at = offsets[:-1].astype(np.int64)
    length = np.diff(offsets)
    good = np.empty(rows, np.uint8)
    kernel.check_texts(data, at, length, good)
    known = np.ones(rows, np.bool_)
    valid = vectors.validity(column)
    if valid is not None:
        known = valid
    wrong = known & (good == 0)
    there = known & ~wrong
    bitmap: Any = None
    if not there.all():
        length = np.where(there, length, np.int32(0))
        bitmap = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    return compacted(data, _NOTHING, at, length, bitmap), wrong


def of_strings(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Strings of a format that has JSON as text: as `normalised`, but the placeholder is a JSON string."""
    column: Any = texts.cast(pa.string())
    absent = pc.fill_null(pc.equal(column, pa.scalar(PLACEHOLDER)), False)  # noqa: FBT003
    if pc.any(absent).as_py():
        column = pc.if_else(absent, pa.scalar(f'"{PLACEHOLDER}"'), column)
    return normalised(column)


def column_of(texts: Any) -> Any:
    """Texts that DuckDB takes for JSON, as a column of this type.

    It has numbers that aren't finite, which become the texts "NaN", "Infinity" and "-Infinity" as in rows,
    and takes a comma behind the last item.
    """
    found, wrong = normalised(texts)
    if not wrong.any():
        return found
    column = vectors.contiguous(texts)
    rows = np.flatnonzero(wrong)
    some: list[Any] = column.take(vectors.from_int64(rows)).to_pylist()
    values = found.to_pylist()
    for row, text in zip(rows.tolist(), some, strict=True):
        values[row] = without_odd(text)
    return pa.array(values, JSON)
