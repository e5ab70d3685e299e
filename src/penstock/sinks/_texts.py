"""Rows as text, for targets without types of their own."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pyarrow as pa

from penstock.core.schema import UUID
from penstock.formats.json import encode_rows

__all__ = ["json_rows", "key_texts"]


def json_rows(rows: pa.RecordBatch) -> list[bytes]:
    """Each row as a JSON object."""
    if not len(rows):
        return []
    return [str(text).encode() for text in encode_rows(pa.Table.from_batches([rows])).to_pylist()]


def key_texts(rows: pa.RecordBatch, key: tuple[str, ...]) -> list[str]:
    """Each row's key: the text of its column, or a JSON object of several.

    >>> key_texts(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}]), ("a",))
    ['1']
    >>> key_texts(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}]), ("a", "b"))
    ['{"a":1,"b":"x"}']
    """
    if len(key) > 1:
        return [text.decode() for text in json_rows(rows.select(list(key)))]
    column = rows.column(key[0])
    return [_text(value, column.type) for value in column.to_pylist()]


def _text(value: Any, type_: pa.DataType) -> str:
    if type_ == UUID:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, str):
        return value
    plain = pa.table({"v": pa.array([value], type_)})
    found = orjson.loads(str(encode_rows(plain)[0].as_py()))["v"]
    return found if isinstance(found, str) else orjson.dumps(found).decode()
