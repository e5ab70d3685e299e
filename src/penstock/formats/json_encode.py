"""Columns to JSON rows.

The text is a function of the values alone: no spaces, columns in order, doubles in their shortest
form that reads back the same (with `.0` where they are whole), instants as ISO 8601 in UTC with as
many places (0, 3 or 6) as they need, only what must be escaped escaped. JSON has no numbers that are not
finite: they are the texts "NaN", "Infinity" and "-Infinity", as in Protobuf's JSON and Debezium's. What
it writes, `JsonDecoder` reads back equal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.literals import interval_text, uuid_texts
from penstock.core.schema import INTERVAL, JSON, TIME_OF_DAY, UUID
from penstock.errors import LimitError, SchemaError, UserError
from penstock.formats import json_pieces as kernels
from penstock.formats import json_scalar_pieces as scalars
from penstock.formats.json_text import PADDING
from penstock.formats.payloads.kernel import check_texts

CHUNK_ROWS: Final = 16_384  # encoded at a time: a chunk's text stays in the processor's cache
TEXT_BYTES_MAX: Final = 2**31 - 1  # of all rows at once: Arrow's offsets are 32 bits


@dataclass(frozen=True)
class _Pieces:
    """A column's values as JSON text: `data` between the positions `ends`, one more than values."""

    ends: np.ndarray
    data: np.ndarray


def encode_rows(table: pa.Table, *, columns: Sequence[str] | None = None) -> pa.StringArray:
    r"""Writes one JSON object per row.

    Args:
        table: columns of booleans, numbers, text, JSON, instants, dates, times, intervals (ISO 8601), UUIDs,
            bytes (base64), lists, structs and maps.
        columns: which columns, in which order; None for all whose names don't begin with `$`.

    Returns:
        As many strings as rows.

    Raises:
        SchemaError: a column has a type that rows can't have, or there is none of that name.
        UserError: an instant or a date lies outside the years 1 to 9999.
        LimitError: the text is longer than `TEXT_BYTES_MAX`.

    >>> encode_rows(pa.table({"user": [7], "name": ['a "b"']})).to_pylist()
    ['{"user":7,"name":"a \\"b\\""}']
    """
    names = [n for n in table.column_names if not n.startswith("$")] if columns is None else columns
    for name in names:
        if table.column_names.count(name) != 1:
            raise SchemaError(
                f"expected one column {name!r} among {', '.join(table.column_names)}; "
                f"found {table.column_names.count(name)}"
            )
    chosen = table.select(list(names))
    if not names:
        return pa.array(["{}"] * len(table), pa.string())
    chunks = []
    total = 0
    for batch in chosen.to_batches(max_chunksize=CHUNK_ROWS):
        chunks.append(_encode(batch))
        total += chunks[-1].nbytes
        _check_size(total, len(table))
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


def _check_size(size: int, rows: int) -> None:
    if size > TEXT_BYTES_MAX:
        raise LimitError(
            f"expected at most {TEXT_BYTES_MAX} bytes of JSON at once; found more in {rows} rows. "
            "Write fewer rows at a time, or omit the columns with the longest text"
        )


def _encode(batch: pa.RecordBatch) -> pa.StringArray:
    rows = len(batch)
    columns = [_pieces(batch.column(i), batch.schema.names[i]) for i in range(batch.num_columns)]
    prefixes = [
        ("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":"
        for i, name in enumerate(batch.schema.names)
    ]
    names = [np.frombuffer(prefix.encode(), np.uint8) for prefix in prefixes]
    size = np.full(rows, sum(len(name) for name in names) + 1, np.int64)
    for column in columns:
        size += np.diff(column.ends)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(size, out=ends[1:])
    _check_size(int(ends[-1]), rows)
    out = np.empty(int(ends[-1]), np.uint8)
    cursor = ends[:-1].copy()
    for name, column in zip(names, columns, strict=True):
        kernels.place_column(name, column.ends, column.data, cursor, out)
    out[cursor] = ord("}")
    buffers = [None, arrow_buffer(ends.astype(np.int32)), arrow_buffer(out)]
    return cast("pa.StringArray", pa.Array.from_buffers(pa.string(), rows, buffers, 0))


def arrow_buffer(array: np.ndarray) -> pa.Buffer:
    """A contiguous array's memory as an Arrow buffer, not copied."""
    return pa.py_buffer(memoryview(cast("Any", array)))


def bytes_of(buffer: pa.Buffer | None, dtype: type[np.generic]) -> np.ndarray:
    """An Arrow buffer's memory as an array, not copied."""
    return np.frombuffer(b"" if buffer is None else memoryview(cast("Any", buffer)), dtype)


def _pieces(array: Any, name: str) -> _Pieces:
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return _pieces(array.dictionary_decode(), name)
    if isinstance(type_, pa.BaseExtensionType):
        return _pieces(array.storage, name)
    if type_ == JSON:
        return _json_pieces(array)
    if pa.types.is_string(type_) or pa.types.is_string_view(type_):
        return _text_pieces(array.cast(pa.large_string()))
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return _time_pieces(array, name)
    if pa.types.is_float64(type_):
        return _double_pieces(array)
    if pa.types.is_signed_integer(type_):
        return _integer_pieces(array)
    if pa.types.is_floating(type_):
        return _number_pieces(array, point=True)
    if (
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_null(type_)
    ):
        return _number_pieces(array, point=False)
    return _other_pieces(array, name)


def _other_pieces(array: Any, name: str) -> _Pieces:
    """Of values that aren't numbers, text or instants."""
    type_ = array.type
    if pa.types.is_fixed_size_list(type_):
        return _list_pieces(array.cast(pa.list_(type_.value_type)), name)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list_pieces(array, name)
    if pa.types.is_struct(type_):
        members = pa.RecordBatch.from_arrays(array.flatten(), [one.name for one in type_])
        return _raw_pieces(_encode(members), array)
    if pa.types.is_map(type_):
        return _map_pieces(array, name)
    if type_ == UUID:
        return _text_pieces(uuid_texts(array))
    if pa.types.is_time(type_):
        return _text_pieces(_time_texts(array))
    if pa.types.is_duration(type_):
        micros = array.cast(INTERVAL).cast(pa.int64()).to_pylist()
        texts = [None if one is None else interval_text(one) for one in micros]
        return _text_pieces(pa.array(texts, pa.large_string()))
    is_fixed = pa.types.is_fixed_size_binary(type_)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or is_fixed:
        texts = [
            None if one is None else base64.b64encode(one).decode() for one in array.to_pylist()
        ]
        return _text_pieces(pa.array(texts, pa.large_string()))
    raise SchemaError(
        f"column {name!r}: expected booleans, numbers, text, bytes, instants, dates, times, or lists, "
        f"structs or maps of such to write as JSON; found {type_}. Convert the column, or omit it"
    )


def _valid(array: Any) -> np.ndarray:
    """One byte per value: whether it isn't NULL."""
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)


def _text(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the bytes of large strings."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    at = bytes_of(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return at, bytes_of(data, np.uint8)


def _outputs(rows: int, size: int) -> _Pieces:
    return _Pieces(np.empty(rows + 1, np.int64), np.empty(size + PADDING, np.uint8))


def _text_pieces(array: Any) -> _Pieces:
    at, data = _text(array)
    escapes = kernels.count_escapes(data[at[0] : at[-1]])
    pieces = _outputs(len(array), int(at[-1] - at[0]) + 6 * len(array) + 5 * escapes)
    kernels.write_text(at, data, _valid(array), pieces.ends, pieces.data)
    return pieces


def _integer_pieces(array: Any) -> _Pieces:
    values = array.cast(pa.int64()).fill_null(0).to_numpy()
    pieces = _outputs(len(array), len(array) * scalars.INTEGER_BYTES)
    scalars.write_integers(values, _valid(array), pieces.ends, pieces.data)
    return pieces


def _double_pieces(array: Any) -> _Pieces:
    values = array.fill_null(0.0).to_numpy()
    valid = _valid(array)
    places = np.empty(len(array), np.int8)
    others = pa.array([], pa.float64())
    if scalars.find_places(values, places) < len(array):
        others = pa.array(values[(places < 0) & (valid != 0)])
    at, data = _text(_number_texts(others))
    pieces = _outputs(len(array), len(array) * scalars.DOUBLE_BYTES)
    scalars.write_doubles(values, valid, places, at, data, pieces.ends, pieces.data)
    return pieces


def _number_texts(array: Any) -> Any:
    """Numbers as Arrow writes them; those that are not finite as quoted text."""
    texts = array.cast(pa.large_string())
    if not pa.types.is_floating(array.type) or pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    large: Any = pa.large_string()
    infinity: Any = pa.scalar(float("inf"), array.type)
    for is_so, text in (
        (pc.equal(array, infinity), '"Infinity"'),
        (pc.equal(array, pc.negate(infinity)), '"-Infinity"'),
        (pc.is_nan(array), '"NaN"'),
    ):
        texts = pc.if_else(is_so, pa.scalar(text, large), texts)
    return texts


def _number_pieces(array: Any, *, point: bool) -> _Pieces:
    at, data = _text(_number_texts(array))
    pieces = _outputs(len(array), int(at[-1] - at[0]) + 6 * len(array))
    scalars.write_numbers(at, data, _valid(array), point, pieces.ends, pieces.data)
    return pieces


def _time_pieces(array: Any, name: str) -> _Pieces:
    dates = pa.types.is_date(array.type)
    if dates:
        whole = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    else:
        zone = array.type.tz
        whole = array.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    valid = _valid(array)
    values = np.ascontiguousarray(whole.fill_null(0).to_numpy())
    pieces = _outputs(len(array), len(array) * scalars.INSTANT_BYTES)
    wrong = scalars.write_times(values, valid, dates, pieces.ends, pieces.data)
    if wrong >= 0:
        raise UserError(
            f"column {name!r}: expected instants in the years 1 to 9999; found {values[wrong]} "
            f"{'days' if dates else 'microseconds'} since 1970"
        )
    return pieces


def _time_texts(array: Any) -> Any:
    """Times of day as HH:MM:SS, with as many digits of a second as they have."""
    texts = array.cast(TIME_OF_DAY).cast(pa.string())
    plain = pc.replace_substring_regex(texts, r"\.?0*$", "")
    return pc.if_else(pc.match_substring(texts, "."), plain, texts).cast(pa.large_string())


def _raw_pieces(texts: Any, array: Any) -> _Pieces:
    """JSON texts as they are; null where the array is NULL."""
    at, data = _text(texts.cast(pa.large_string()))
    pieces = _outputs(len(array), int(at[-1] - at[0]) + 6 * len(array))
    scalars.write_numbers(at, data, _valid(array), False, pieces.ends, pieces.data)  # noqa: FBT003
    return pieces


def _json_pieces(array: Any) -> _Pieces:
    """JSON as it is. Text that isn't any, as no column of this type has, is written as text."""
    at, data = _text(array)
    good = np.empty(len(array), np.uint8)
    check_texts(data, at[:-1].copy(), np.diff(at).astype(np.int32), good)
    valid = _valid(array)
    if (good | (valid == 0)).all():
        pieces = _outputs(len(array), int(at[-1] - at[0]) + 6 * len(array))
        scalars.write_numbers(at, data, valid, False, pieces.ends, pieces.data)  # noqa: FBT003
        return pieces
    is_json: Any = pa.array(good.astype(np.bool_))
    quoted = _joined(_text_pieces(array)).cast(pa.large_string())
    return _raw_pieces(pc.if_else(is_json, array, quoted), array)


def _map_pieces(array: Any, name: str) -> _Pieces:
    """Maps as objects. Their keys are the text that JSON has for them, in quotes."""
    if pa.types.is_nested(array.type.key_type):
        raise SchemaError(
            f"column {name!r}: expected a map whose keys aren't nested to write as JSON; found {array.type}. "
            "Convert the column, or omit it"
        )
    ends = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    keys = _joined(_pieces(array.keys.slice(first, last - first), name))
    if not pa.types.is_string(array.type.key_type):
        quoted: list[Any] = ['"', keys, '"', ""]
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, pc.binary_join_element_wise(*quoted))
    items = _joined(_pieces(array.items.slice(first, last - first), name))
    pairs: list[Any] = [keys, items, ":"]
    members = pc.binary_join_element_wise(*pairs)
    offsets: Any = pa.array((ends - first).astype(np.int32))
    lists: Any = pa.ListArray.from_arrays(offsets, members)
    parts: list[Any] = ["{", pc.binary_join(lists, ","), "}", ""]
    return _raw_pieces(pc.binary_join_element_wise(*parts), array)


def _joined(pieces: _Pieces) -> Any:
    """The texts of pieces as an array."""
    ends = pieces.ends.astype(np.int32)
    data = np.ascontiguousarray(pieces.data[: int(pieces.ends[-1])])
    buffers = [None, arrow_buffer(ends), arrow_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers, 0)


def _list_pieces(array: Any, name: str) -> _Pieces:
    at = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    items = _pieces(array.values.slice(at[0], at[-1] - at[0]), name)
    at -= at[0]
    size = int(items.ends[-1]) + int(at[-1]) + 4 * len(array)
    pieces = _outputs(len(array), size)
    kernels.write_lists(at, _valid(array), items.ends, items.data, pieces.ends, pieces.data)
    return pieces
