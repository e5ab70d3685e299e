"""Record batches made small for a transport: 8-byte columns as their distance from the least value.

Frame-of-reference encoding (Zukowski et al., *Super-Scalar RAM-CPU Cache Compression*, ICDE 2006), one
frame per column: two passes at memory speed, and a window or a count takes one to four bytes instead of
eight, a constant none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector

__all__ = ["narrow", "widen"]

BASE: Final = b"base"
WIDTHS: Final = (np.uint8, np.uint16, np.uint32)


def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in fewer bytes; columns with NULLs, and those of other widths, are left alone.

    >>> rows = pa.record_batch({"at": pa.array([7_000_000, 7_000_060]), "x": pa.array([0.5, 0.5])})
    >>> narrow(rows).schema.types
    [DataType(uint8), DataType(null)]
    >>> widen(narrow(rows), rows.schema).equals(rows)
    True
    """
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        made = None
        if _may_shrink(field.type) and len(array) and not array.null_count:
            made = _shrunk(vectors.raw(array).view(np.int64))
        if made is None:
            arrays.append(array)
            fields.append(field)
        else:
            arrays.append(made[0])
            fields.append(pa.field(field.name, made[0].type, metadata={BASE: b"%d" % made[1]}))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows that `narrow` was given.

    Args:
        batch: what it made of them.
        schema: of the rows.
    """
    bases = [(field.metadata or {}).get(BASE) for field in batch.schema]
    arrays = [
        array if base is None else _grown(array, base, field)
        for base, field, array in zip(bases, schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _may_shrink(type_: pa.DataType) -> bool:
    return vectors.is_fixed(type_) and type_.bit_width == 64


def _shrunk(values: Vector) -> tuple[pa.Array, int] | None:
    base = int(values.min())
    span = int(values.max()) - base
    if span == 0:
        return pa.nulls(len(values)), base
    for width in WIDTHS:
        if span <= np.iinfo(width).max:
            return pa.array((values - base).astype(width)), base
    return None


def _grown(array: pa.Array, base: bytes, field: pa.Field) -> pa.Array:
    if pa.types.is_null(array.type):
        values = np.full(len(array), int(base), np.int64)
    else:
        values = vectors.raw(array).astype(np.int64)
        values += int(base)
    return vectors.from_int64(values).view(field.type)
