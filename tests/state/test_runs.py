"""Pieces of runs as files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

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
