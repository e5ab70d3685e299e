"""What lies under NULLs, in columns that are written.

Arrow's functions leave there whatever was in memory. Equal columns are to be equal bytes, and no file is to
contain what the process had in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["cleared"]


def cleared(column: Any) -> Any:
    """The array with zeros, or nothing, under its NULLs, and under those within its values."""
    type_: Any = column.type
    types = pa.types
    arrays: Any = pa
    if types.is_struct(type_):
        members = [cleared(one) for one in column.flatten()]
        return arrays.StructArray.from_arrays(members, fields=list(type_), mask=_nulls(column))
    if types.is_map(type_):
        # Whose entries are its own alone.
        whole = arrays.concat_arrays([column, column.slice(0, 0)])
        entries = arrays.StructArray.from_arrays([whole.keys, whole.items], ["key", "value"])
        rows = cleared(arrays.ListArray.from_arrays(whole.offsets, entries, mask=_nulls(column)))
        keys, items = rows.values.field(0), rows.values.field(1)
        return arrays.MapArray.from_arrays(rows.offsets, keys, items, type_, mask=_nulls(column))
    if types.is_list(type_):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        values = cleared(column.flatten())
        return arrays.ListArray.from_arrays(offsets, values, type_, mask=_nulls(column))
    if not column.null_count or types.is_null(type_):
        return column
    there = column.is_valid().to_numpy(zero_copy_only=False)
    if type_.num_buffers != 2:
        filled = column.fill_null(b"" if types.is_binary(type_) else "")
        return _array(type_, there, *filled.buffers()[1:])
    if types.is_boolean(type_):
        known = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        return _array(type_, there, pa.py_buffer(_bits(known)))
    width = type_.bit_width // 8
    data = column.buffers()[1]
    size, begin = len(column) * width, column.offset * width
    values = np.frombuffer(data, np.uint8, size, begin).reshape(-1, width)
    if not values[~there].any():
        return column
    values = values.copy()
    values[~there] = 0
    return _array(type_, there, arrays.py_buffer(values))


def _array(type_: pa.DataType, there: Any, *data: Any) -> pa.Array:
    return pa.Array.from_buffers(type_, len(there), [pa.py_buffer(_bits(there)), *data])


def _bits(flags: Any) -> Any:
    return np.packbits(flags, bitorder="little")


def _nulls(column: Any) -> Any:
    return column.is_null() if column.null_count else None
