"""Rows as text, or with fewer types, for targets without types of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.core.literals import uuid_texts
from penstock.core.schema import INTERVAL, JSON, TIME_OF_DAY, UUID
from penstock.formats.json import encode_rows

__all__ = ["completed", "json_members", "json_rows", "json_values", "key_texts", "plain_columns"]


def json_rows(rows: pa.RecordBatch) -> list[bytes]:
    """Each row as a JSON object."""
    if not len(rows):
        return []
    return [str(text).encode() for text in encode_rows(pa.Table.from_batches([rows])).to_pylist()]


def completed(
    rows: pa.RecordBatch,
    kept: Mapping[str, npt.NDArray[np.bool_]],
    olds: Sequence[Mapping[str, Any] | None],
) -> list[bytes]:
    """Each row as a JSON object, with members of the old one where it lacks values.

    Args:
        rows: any.
        kept: which of them lack which columns.
        olds: of each row the members of the old one, by `json_members`; of one that lacks none, anything.

    >>> rows = pa.RecordBatch.from_pylist([{"a": 1, "b": None}])
    >>> completed(rows, {"b": np.array([True])}, [json_members(b'{"b": 1.50}')])
    [b'{"a":1,"b":1.50}']
    """
    made = json_rows(rows)
    lacks = {name: some for name, some in kept.items() if name in rows.schema.names}
    none = np.zeros(len(rows), np.bool_)
    for i in np.flatnonzero(np.logical_or.reduce([none, *lacks.values()])).tolist():
        row, old = json_members(made[i]), olds[i] or {}
        row |= {name: old.get(name) for name, some in lacks.items() if some[i]}
        made[i] = orjson.dumps(row)
    return made


def json_members(text: str | bytes) -> Any:
    """What JSON is, to be written by `orjson`; numbers keep their spelling."""
    return json.loads(text, parse_int=_spelled, parse_float=_spelled)


def _spelled(number: str) -> Any:
    return orjson.Fragment(number)


def key_texts(rows: pa.RecordBatch, key: tuple[str, ...]) -> list[str]:
    """Each row's key: the text of its column, or a JSON object of several, or of one with parts.

    >>> key_texts(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}]), ("a",))
    ['1']
    >>> key_texts(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}]), ("a", "b"))
    ['{"a":1,"b":"x"}']
    """
    if len(key) > 1 or pa.types.is_nested(rows.schema.field(key[0]).type):
        return [text.decode() for text in json_rows(rows.select(list(key)))]
    column = rows.column(key[0])
    if column.type == pa.string():
        return [str(text) for text in column.to_pylist()]
    return [str(text).strip('"') for text in json_values(column)]


def json_values(column: pa.Array) -> list[str | None]:
    """Each value as in JSON rows; None where it is NULL.

    >>> json_values(pa.array([[1, 2], None]))
    ['[1,2]', None]
    """
    texts = [str(text) for text in encode_rows(pa.table({"v": column})).to_pylist()]
    return [None if text == '{"v":null}' else text[5:-1] for text in texts]


def plain_columns(rows: pa.RecordBatch, *, times: bool = True) -> pa.Table:
    """Rows as files have them: UUIDs and JSON are text, intervals microseconds.

    Args:
        rows: any.
        times: whether times of day stay as they are; else they are microseconds, too.
    """
    whole = (INTERVAL,) if times else (INTERVAL, TIME_OF_DAY)
    columns = [
        uuid_texts(column).cast(pa.string())
        if column.type == UUID
        else column.cast(pa.int64())
        if column.type in whole
        else column.cast(pa.string())
        if column.type == JSON
        else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, rows.schema.names)
