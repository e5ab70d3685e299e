"""Pieces of runs as files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.state import MemoryStateFiles, Writer


def test_the_same_rows_are_the_same_bytes() -> None:
    """Whatever they were cut from: nothing of what lay beside them gets into the file."""

    def batch(flags: list[bool | None], texts: list[str | None]) -> pa.RecordBatch:
        numbers = pa.array(np.arange(len(flags)))
        columns = [
            numbers,
            numbers,
            pa.array(flags),
            pa.array(texts),
            pa.array([texts] * len(flags)),
        ]
        return pa.RecordBatch.from_arrays(columns, ["$window", "$hash", "flag", "text", "texts"])

    def written(rows: pa.RecordBatch) -> bytes:
        files = MemoryStateFiles()
        return files.read(Writer(files, "t", 1, "a").write(rows).path)

    one = batch([True, None, False], ["a", None, "c"])
    assert one.num_rows == 3
    for more in (True, False):
        wide = batch([True, None, False] + [more] * 20, ["a", None, "c"] + [None] * 20)
        wide = wide.set_column(4, "texts", pa.array([["a", None, "c"]] * 23))
        assert written(wide.slice(0, 3)) == written(one)
    loose = pa.Array.from_buffers(pa.bool_(), 3, [None, pa.py_buffer(bytes([0b11111101]))])
    plain = pa.array([True, False, True])
    assert loose.equals(plain)
    assert written(one.set_column(2, "flag", loose)) == written(one.set_column(2, "flag", plain))


@pytest.mark.parametrize(
    "type_", [pa.int64(), pa.int32(), pa.bool_(), pa.float64(), pa.decimal128(20, 2), pa.binary(16)]
)
def test_what_lies_under_a_null_is_not_written(type_: pa.DataType) -> None:
    """Arrow's functions leave there whatever was in memory."""

    def written(under: int) -> bytes:
        bitmap = pa.py_buffer(bytes([0b101]))
        if pa.types.is_boolean(type_):
            data = pa.py_buffer(bytes([0b101 | under & 0b10]))
        else:
            width = type_.bit_width // 8
            row = bytes([7] * width)
            data = pa.py_buffer(row + bytes([under] * width) + row)
        numbers = pa.array(np.arange(3))
        column = pa.Array.from_buffers(type_, 3, [bitmap, data])
        rows = pa.RecordBatch.from_arrays([numbers, numbers, column], ["$window", "$hash", "x"])
        files = MemoryStateFiles()
        return files.read(Writer(files, "t", 1, "a").write(rows).path)

    assert written(255) == written(0)


def test_what_lies_under_nulls_within_values_is_not_written() -> None:
    """Of lists, structs, maps and texts, as of numbers."""
    arrays: Any = pa

    def numbers(under: int) -> Any:
        values: Any = np.array([1, under, 3, under], np.int64)
        bitmap = pa.py_buffer(bytes([0b0101]))
        return pa.Array.from_buffers(pa.int64(), 4, [bitmap, pa.py_buffer(values)])

    def columns(under: int) -> dict[str, Any]:
        some, last = numbers(under), pa.array([False, False, True])
        offsets = pa.array([0, 2, 3, 4], pa.int32())  # of the NULL, too, there is a value
        texts = pa.py_buffer(b"ab" + bytes([65 + under]) + b"c")
        ends = arrays.py_buffer(np.array([0, 2, 3, 4], np.int32))
        a_null = pa.py_buffer(bytes([0b101]))
        keys = pa.array(["a", "b", "c", "d"])
        struct = arrays.StructArray.from_arrays([some[:3], keys[:3]], ["x", "y"], mask=last)
        return {
            "list": arrays.ListArray.from_arrays(offsets, some, mask=last),
            "struct": struct,
            "map": arrays.MapArray.from_arrays(offsets, keys, some, mask=last),
            "text": pa.Array.from_buffers(pa.string(), 3, [a_null, ends, texts]),
            "structs": arrays.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), struct),
        }

    def written(under: int) -> bytes:
        index = pa.array(np.arange(3))
        made: dict[str, Any] = {"$window": index, "$hash": index, **columns(under)}
        rows = pa.RecordBatch.from_pydict(made)
        files = MemoryStateFiles()
        data = files.read(Writer(files, "t", 1, "a").write(rows).path)
        with pa.ipc.open_file(data) as found:
            assert found.get_batch(0).to_pylist() == rows.to_pylist()
        return data

    assert written(9) == written(0)
