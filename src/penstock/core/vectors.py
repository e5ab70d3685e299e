"""Arrow columns as NumPy vectors, which is what the Numba kernels work on.

A fixed-width column becomes its *codes*: int64 numbers of the same order as the values, so that one
kernel compares, hashes and finds extremes for every type. A DECIMAL of at most 18 digits is one, too: its
code is the number without the point. A text column becomes offsets and bytes; so do those whose values have
16 bytes: UUID, and other DECIMALs.
NULLs travel next to them as a validity vector, None where there are none; the code under a NULL is 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError

Vector: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DECIMAL_CODE_DIGITS_MAX: Final = 18
"""Digits of a DECIMAL that has codes: as many as 64 bits hold for certain."""
_FLIP: Final = np.int64(0x7FFFFFFFFFFFFFFF)


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; a copy only where it has several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    chunks = cast("Any", column)  # the stubs say that a chunk is chunked
    combined: pa.Array = chunks.chunk(0) if column.num_chunks == 1 else chunks.combine_chunks()
    return combined


def validity(column: pa.Array) -> Vector | None:
    """bool[n]; None where no row is NULL."""
    if column.null_count == 0:
        return None
    return np.ascontiguousarray(pc.is_valid(column).to_numpy(zero_copy_only=False))


def given(vector: Vector | None, dtype: type[np.generic]) -> Vector:
    """A vector that need not be there, as compiled loops take it: empty where it is missing.

    A loop is compiled for one type of each argument, and None would be another.
    """
    return np.zeros(0, dtype) if vector is None else vector


def is_text(type_: pa.DataType) -> bool:
    """Whether values of the type are bytes: of varying length, or more than a code has."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_fixed_size_binary(type_)
        or (pa.types.is_decimal128(type_) and type_.precision > DECIMAL_CODE_DIGITS_MAX)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def is_fixed(type_: pa.DataType) -> bool:
    """Whether values of the type have codes."""
    return bool(
        pa.types.is_boolean(type_)
        or (pa.types.is_integer(type_) and type_ != pa.uint64())
        or pa.types.is_float32(type_)
        or pa.types.is_float64(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_date(type_)
        or pa.types.is_time(type_)
        or pa.types.is_duration(type_)
        or is_short_decimal(type_)
    )


def is_short_decimal(type_: pa.DataType) -> bool:
    """Whether values of the type are decimals that have codes."""
    return bool(pa.types.is_decimal128(type_) and type_.precision <= DECIMAL_CODE_DIGITS_MAX)


def is_float(type_: pa.DataType) -> bool:
    """Whether values of the type are binary floating point."""
    return bool(pa.types.is_float32(type_) or pa.types.is_float64(type_))


def raw(column: pa.Array) -> Vector:
    """The values of a fixed-width column as they lie in memory (no copy, but for booleans and decimals).

    Raises:
        SchemaError: the type has no fixed width.
    """
    type_ = column.type
    dtype = _dtype(type_)
    if dtype is None:
        raise SchemaError(
            f"expected a column of numbers, booleans, timestamps or dates; found {type_}. "
            "Cast it, or don't use it in keys and aggregates"
        )
    if dtype == np.bool_:
        return np.asarray(column.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False))
    data = column.buffers()[1]
    if data is None or len(column) == 0:
        return np.zeros(len(column), dtype)
    if is_short_decimal(type_):  # of 128 bits the lower ones
        return np.ascontiguousarray(_view(data, dtype, 2 * len(column), column.offset * 16)[::2])
    return _view(data, dtype, len(column), column.offset * dtype.itemsize)


def int64s(column: pa.Array) -> Vector:
    """The values of a column of 64 bits each, as int64 and without a look at its type; no copy."""
    rows = len(column)
    if not rows:
        return np.zeros(0, np.int64)
    return _view(column.buffers()[1], np.int64, rows, column.offset * 8)


def _view(data: Any, dtype: Any, rows: int = -1, offset: int = 0) -> Vector:
    return np.frombuffer(data, dtype, rows, offset)


@lru_cache(maxsize=256)
def _dtype(type_: pa.DataType) -> np.dtype[Any] | None:
    if not is_fixed(type_):
        return None
    if pa.types.is_integer(type_) or is_float(type_) or pa.types.is_boolean(type_):
        return np.dtype(type_.to_pandas_dtype())
    return np.dtype(np.int32 if type_.bit_width == 32 else np.int64)


def codes(column: pa.Array) -> Vector:
    """int64[n] of the same order as a fixed-width column's values; 0 under a NULL.

    -0.0 is 0.0, and every NaN is one value, greater than all numbers.

    Raises:
        SchemaError: the type has no fixed width.
    """
    values = raw(column)
    if is_float(column.type):
        values = float_codes(values.astype(np.float64, copy=False))
    elif values.dtype != np.int64:
        values = values.astype(np.int64)
    valid = validity(column)
    if valid is not None:
        values = np.where(valid, values, np.int64(0))
    return values


def coarse_codes(
    column: pa.Array,
    *,
    descending: bool = False,
    nulls_first: bool = False,
) -> Vector:
    """int64[n] whose order is that of the values, but that values which differ may share one.

    Texts share one if their first eight bytes are equal. NaN is the greatest number; NULL comes behind all
    values, unless it comes first. Lists, structs and maps are texts, as `packed` makes them.
    """
    if pa.types.is_nested(column.type):
        column = packed(column)
    if pa.types.is_decimal(column.type) and not is_short_decimal(column.type):
        column = column.cast(pa.float64())
    found = _prefixes(column) if is_text(column.type) else codes(column)
    found = np.minimum(~found if descending else found, np.int64(2**63 - 2))
    valid = validity(column)
    if valid is None:
        return found
    return np.where(valid, found, np.int64(-(2**63) if nulls_first else 2**63 - 1))


def sortable(column: pa.Array) -> pa.Array:
    """A column that Arrow sorts as SQL does: NaN is the greatest number in either direction, and as NULL was.

    Lists, structs and maps are texts, as `packed` makes them.
    """
    if pa.types.is_nested(column.type):
        return packed(column)
    if not is_float(column.type):
        return column
    valid = validity(column)
    return from_int64(codes(column)) if valid is None else pa.array(codes(column), mask=~valid)


def _prefixes(column: pa.Array) -> Vector:
    """The first eight bytes of texts, as int64[n] of the same order."""
    starts, body = text(column)
    found = np.zeros(len(column), np.uint64)
    if len(body):
        begin, end = starts[:-1], starts[1:]
        for i in range(8):
            at = np.minimum(begin + i, len(body) - 1)
            found = (found << np.uint64(8)) | np.where(begin + i < end, body[at], 0).astype(
                np.uint64
            )
    return (found ^ np.uint64(1 << 63)).view(np.int64)


def float_codes(values: Vector) -> Vector:
    """int64[n] of the same order as float64[n]."""
    values = values + 0.0  # -0.0 becomes 0.0
    bits = values.view(np.int64)
    bits[np.isnan(values)] = 0x7FF8000000000000
    return bits ^ ((bits >> 63) & _FLIP)


def numbers(found: Vector, type_: pa.DataType) -> Vector:
    """float64[...]: the numbers that codes of a column stand for; of a DECIMAL, without the point."""
    if not is_float(type_):
        return found.astype(np.float64)
    return np.asarray((found ^ ((found >> 63) & _FLIP)).view(np.float64))


def text(column: pa.Array) -> tuple[Vector, Vector]:
    """A text column as offsets int32[n + 1] and bytes uint8[...]; no copy, but of values of 16 bytes."""
    if pa.types.is_decimal(column.type) or pa.types.is_fixed_size_binary(column.type):
        column = as_bytes(column)
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    if len(column) == 0 or offsets is None:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    starts = _view(offsets, np.int32, len(column) + 1, column.offset * 4)
    body = _view(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return starts, body


def as_bytes(column: pa.Array) -> pa.Array:
    """A text column as BINARY."""
    if pa.types.is_decimal(column.type):
        buffers = [column.buffers()[0], column.buffers()[1]]
        kind = pa.binary(16)
        column = pa.Array.from_buffers(kind, len(column), buffers, offset=column.offset)
    return column.cast(pa.binary())


def decimals(values: Vector, type_: pa.DataType, valid: Vector | None = None) -> pa.Array:
    """Codes of a DECIMAL, int64[n], as an Arrow column.

    Args:
        values: int64[n], the numbers without the point.
        type_: of the column.
        valid: bool[n]; None is all.
    """
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0], halves[:, 1] = values, values >> 63
    data: Any = pa.py_buffer(halves.tobytes())
    bitmap: Any = None
    if valid is not None:
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(type_, len(values), [bitmap, data])


def from_int64(values: Vector) -> pa.Array:
    """int64[n] as an Arrow column without NULLs; no copy."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(cast("Any", values))])


def packed(column: pa.Array) -> pa.Array:
    """A column of lists, structs or maps as bytes, equal where the values are; NULL where they are.

    A list is its items, a struct its members, a map its entries in their order. Each is a byte that says
    whether it is there, its length, and its bytes.

    Raises:
        SchemaError: they hold what has neither codes nor text.
    """
    nested = cast("Any", column)  # the stubs know it by another class
    mask = None if column.null_count == 0 else pc.is_null(column)
    if pa.types.is_struct(column.type):
        parts: list[Any] = [_items(member) for member in nested.flatten()]
        joined: Any = pc.binary_join_element_wise(*parts, b"") if parts else _empty(len(column))
        made = joined if mask is None else cast("Any", pc).if_else(mask, None, joined)
        return cast("pa.Array", made)
    if pa.types.is_map(column.type):
        entries = cast("Any", pc).binary_join_element_wise(
            _items(nested.keys), _items(nested.items), b""
        )
    else:
        entries = _items(nested.values)
    offsets = pa.array(nested.offsets.to_numpy().copy())  # a slice of them takes no mask
    lists: Any = pa.ListArray.from_arrays(offsets, entries, mask=mask)
    return cast("pa.Array", pc.binary_join(lists, b""))


def _items(values: pa.Array) -> pa.Array:
    """Values as bytes with a head each, none of them NULL."""
    if pa.types.is_nested(values.type):
        values = packed(values)
    valid = validity(values)
    # Arrow leaves bytes under NULLs, which would be distinguished by their length.
    is_bytes = is_text(values.type)
    body = as_bytes(values).fill_null(b"") if is_bytes else _code_bytes(values)
    heads = np.zeros(len(values), np.dtype([("there", np.uint8), ("length", "<i4")]))
    heads["there"] = 1 if valid is None else valid
    heads["length"] = np.diff(text(body)[0]) if len(body) else 0
    data = [None, pa.py_buffer(heads.tobytes())]
    head = pa.Array.from_buffers(pa.binary(heads.dtype.itemsize), len(values), data)
    parts: list[Any] = [head.cast(pa.binary()), body, b""]
    return cast("pa.Array", pc.binary_join_element_wise(*parts))


def _empty(rows: int) -> pa.Array:
    """So many times no bytes."""
    return pa.array([b""] * rows, pa.binary())


def _code_bytes(values: pa.Array) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(codes(values)).tobytes())
    return pa.Array.from_buffers(pa.binary(8), len(values), [None, data]).cast(pa.binary())


def maps_of(pairs: Any, type_: pa.DataType, mask: Any = None) -> Any:
    """Maps of lists of pairs. Of a key that occurs twice in one the last value counts, as in JSON.

    Args:
        pairs: lists of structs of a key and a value.
        type_: of the maps.
        mask: where they are NULL.
    """
    keys, values = pairs.values.flatten()
    keys = keys.fill_null("")  # of records that are cut there, or aren't UTF-8: they are bad
    ends = np.asarray(pairs.offsets.to_numpy()).astype(np.int64)
    owners = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    codes = keys.dictionary_encode().indices.to_numpy()
    both = owners * (len(keys) + 1) + codes
    _, from_behind = np.unique(both[::-1], return_index=True)
    if len(from_behind) < len(both):
        kept = np.sort(len(both) - 1 - from_behind)
        index: Any = pa.array(kept)
        keys, values = keys.take(index), values.take(index)
        counts = np.bincount(owners[kept], minlength=len(ends) - 1)
        ends = np.concatenate(([0], np.cumsum(counts)))
    maps: Any = pa.MapArray  # its stubs don't know the mask
    return maps.from_arrays(pa.array(ends.astype(np.int32)), keys, values, type_, mask=mask)
