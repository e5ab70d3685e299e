"""Headers of records as columns: where one of a name lies, and all of a record's as they stand.

`decode` leaves headers alone, for few readers want them. Who does asks here, for all records at
once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.kernels import njit, types
from penstock.errors import CorruptError
from penstock.wire import kernels, plain
from penstock.wire.columns import Records, gather_column, header_bytes, headers_at
from penstock.wire.kernels import Bytes, Int, Int32s, Int64s

_READ, _READ64, _READ32 = kernels._READ, kernels._READ64, kernels._READ32  # noqa: SLF001
varint = kernels.varint

HEADERS_BYTES: Final = 100
"""Of a record, as far as `plain` is concerned: a walk costs what so many bytes cost there."""

__all__ = ["header_pairs", "header_values", "raw_headers", "records_of"]


@njit(
    types.int64(_READ, _READ64, _READ32, _READ, types.int64[::1], types.int32[::1]),
    cache=True,
    nogil=True,
)
def _walk(
    b: Bytes, value_start: Int64s, value_length: Int32s, name: Bytes, start: Int64s, length: Int32s
) -> Int:
    """Walks each record's headers; the index of the first whose lengths make no sense, or -1.

    With a name, `start` and `length` say where the last value of that name lies (length -1: there is
    none, or it is null); with an empty one, where all of the record's headers lie.
    """
    end = len(b)
    for i in range(len(value_start)):
        begin = value_start[i] + max(value_length[i], 0)
        start[i] = begin
        length[i] = -1
        count, p = varint(b, begin, end)
        if p < 0 or count < 0:
            return i
        for _ in range(count):
            size, p = varint(b, p, end)
            if p < 0 or size < 0 or size > end - p:
                return i
            same = size == len(name) and size > 0
            if same:
                for k in range(size):
                    if b[p + k] != name[k]:
                        same = False
                        break
            p += size
            size, p = varint(b, p, end)
            if p < 0 or size > end - p:
                return i
            if same:
                start[i] = p
                length[i] = max(size, -1)
            p += max(size, 0)
        if len(name) == 0:
            length[i] = p - begin
    return -1


def header_values(records: Records, name: str) -> pa.BinaryArray:
    """The last value of the header of that name of each record; null where there is none.

    >>> from penstock.wire.columns import decode, encode
    >>> batch = encode(None, pa.array([b"v"]), np.zeros(1, np.int64), headers=[[("h", b"x")]])
    >>> header_values(decode(batch[0]), "h").to_pylist()
    [b'x']
    """
    return _column(records, name.encode())


def raw_headers(records: Records) -> pa.BinaryArray | None:
    """Each record's headers as they stand in it (what `encode` takes); None if there are none."""
    found = _column(records, b"")
    return None if found.equals(pa.array([b"\0"] * len(found), pa.binary())) else found


def header_pairs(raw: bytes) -> list[tuple[str, bytes | None]]:
    """One record's headers of what `raw_headers` gave.

    >>> header_pairs(header_bytes([("h", b"x"), ("none", None)]))
    [('h', b'x'), ('none', None)]
    """
    return headers_at(np.frombuffer(raw, np.uint8), 0)


def records_of(
    offsets: np.ndarray,
    timestamps_ms: np.ndarray,
    keys: Any,
    values: Any,
    headers: Any,
) -> Records:
    """Records of columns, laid out as `decode` leaves them.

    Args:
        offsets: int64, increasing.
        timestamps_ms: int64.
        keys: binary.
        values: binary.
        headers: list<struct<name: string, value: binary>>.

    >>> headers = pa.array([[("h", b"x")]], pa.list_(pa.struct({"n": pa.string(), "v": pa.binary()})))
    >>> one = np.zeros(1, np.int64)
    >>> made = records_of(one, one, pa.array([b"k"]), pa.array([b"v"]), headers)
    >>> made.keys().to_pylist(), made.values().to_pylist(), header_values(made, "h").to_pylist()
    ([b'k'], [b'v'], [b'x'])
    """
    raw: Any = pa.array([b"\0"] * len(offsets), pa.binary())
    has_some = headers.value_lengths().fill_null(0).to_numpy() > 0
    if has_some.any():
        pairs = headers.filter(pa.array(has_some)).to_pylist()
        some = [header_bytes([tuple(one.values()) for one in each]) for each in pairs]
        raw = pc.replace_with_mask(raw, pa.array(has_some), pa.array(some, pa.binary()))
    tails = pc.binary_join_element_wise(pc.fill_null(values, b""), raw, b"")
    key_start, key_bytes = _laid_out(pc.fill_null(keys, b""))
    value_start, tail_bytes = _laid_out(tails)
    return Records(
        np.concatenate([key_bytes, tail_bytes]),
        offsets,
        timestamps_ms,
        key_start,
        pc.fill_null(pc.binary_length(keys), -1).to_numpy(zero_copy_only=False),
        value_start + len(key_bytes),
        pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False),
        int(offsets[-1]) + 1 if len(offsets) else 0,
    )


def _laid_out(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where each of a binary column's values begins, and the bytes."""
    _, ends, data = column.buffers()
    begins = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = int(begins[0]), int(begins[-1])
    held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:last]
    return begins[:-1].astype(np.int64) - first, held


def _column(records: Records, name: bytes) -> pa.BinaryArray:
    n = len(records)
    start, length = np.empty(n, np.int64), np.empty(n, np.int32)
    value_start = np.ascontiguousarray(records.value_start)
    value_length = np.ascontiguousarray(records.value_length)
    # A few records need nothing compiled.
    walk = plain.walk_headers if plain.takes(n * HEADERS_BYTES) else _walk
    wrong = walk(
        records.buffer, value_start, value_length, np.frombuffer(name, np.uint8), start, length
    )
    if wrong >= 0:
        raise CorruptError(
            f"expected headers within the record at offset {int(records.offset[wrong])}; found "
            "that their lengths don't fit; read past it, or restore the log from a copy"
        )
    return gather_column(records.buffer, start, length)
