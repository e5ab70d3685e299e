"""Rows to the keys and values of records, in the format of a topic that is written to.

The same rows give the same bytes, in every process: a registry gives one schema of a subject one id.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import Field, Schema
from penstock.flow.graph import OutputNode
from penstock.formats.avro import AvroEncoder, headed
from penstock.formats.json import encode_rows

__all__ = ["Ids", "RowEncoder", "encoder_for", "key_texts", "register_schemas"]

Ids: TypeAlias = Callable[[str, str, str], int]
"""The id of a schema: of a registry's URL, a subject, and the schema's text; see `Log.schema_id`."""
_OPS = ("c", "u", "d")


class RowEncoder(Protocol):
    """What makes records of rows."""

    def keys(self, rows: pa.Table) -> pa.Array | None:
        """The rows' keys; None where records have none."""
        ...

    def values(self, rows: pa.Table) -> pa.Array:
        """The rows themselves."""
        ...

    def changes(self, rows: pa.Table, before: np.ndarray, after: np.ndarray) -> pa.Array:
        """Changes: of each the row before and the row after, by their indexes; -1 where there is none."""
        ...


def encoder_for(to: OutputNode, ids: Ids) -> RowEncoder:
    """What makes the records of an output."""
    if to.format is None:
        return _Json(to.keys)
    url = to.format.registry
    assert url is not None, "`check_written` lets none pass"
    return _Avro(to, _encoders(to), functools.partial(ids, url))


def register_schemas(to: OutputNode, ids: Ids) -> None:
    """Makes the schemas of an output known to its registry.

    Raises:
        SetupError: they aren't compatible with those that the subjects have.
    """
    if to.format is not None:
        encoder = encoder_for(to, ids)
        assert isinstance(encoder, _Avro)
        encoder.register()


def key_texts(names: Sequence[str], rows: pa.Table) -> pa.Array | None:
    """Keys as text: that of the one column, a JSON object of several; None without any."""
    if not names:
        return None
    if len(names) == 1:
        return _array(pc.cast(rows.column(names[0]), pa.string()))
    return _array(encode_rows(rows.select(list(names))))


class _Json:
    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    def keys(self, rows: pa.Table) -> pa.Array | None:
        return key_texts(self._keys, rows)

    def values(self, rows: pa.Table) -> pa.Array:
        return encode_rows(rows)

    def changes(self, rows: pa.Table, before: np.ndarray, after: np.ndarray) -> pa.Array:
        old, new = (self._encoded(rows, index) for index in (before, after))
        heads = pa.array([f'{{"op":"{op}","before":' for op in _OPS]).take(_ops(before, after))
        middle, end = (pa.repeat(text, len(after)) for text in (',"after":', "}"))
        parts: list[Any] = [heads, old, middle, new, end, ""]
        return _array(pc.binary_join_element_wise(*parts))

    @staticmethod
    def _encoded(rows: pa.Table, index: np.ndarray) -> Any:
        """The rows as JSON; null where the index is -1."""
        there = index >= 0
        texts = encode_rows(rows.take(pa.array(index[there], pa.int64())))
        return _array(texts.take(pa.array(np.cumsum(there) - 1, mask=~there))).fill_null("null")


class _Avro:
    def __init__(self, to: OutputNode, encoders: _Encoders, ids: Callable[[str, str], int]) -> None:
        self._topic, self._ids = to.topic, ids
        self._is_changes = to.emission == "changes"
        self._key, self._value, self._change = encoders

    def register(self) -> None:
        if self._key is not None:
            self._head("key", self._key)
        self._head("value", self._change if self._is_changes else self._value)

    def _head(self, part: str, encoder: AvroEncoder) -> bytes:
        return headed(self._ids(f"{self._topic}-{part}", encoder.text))

    def keys(self, rows: pa.Table) -> pa.Array | None:
        if self._key is None:
            return None
        return self._key.encode(rows, self._head("key", self._key))

    def values(self, rows: pa.Table) -> pa.Array:
        return self._value.encode(rows, self._head("value", self._value))

    def changes(self, rows: pa.Table, before: np.ndarray, after: np.ndarray) -> pa.Array:
        encoder = self._change
        old, new = (
            self._structs(rows, index, field.type)
            for index, field in zip((before, after), encoder.schema, strict=False)
        )
        ops = pa.array(_OPS).take(_ops(before, after))
        made = pa.table([old, new, ops], names=list(encoder.schema.names))
        return encoder.encode(made, self._head("value", encoder))

    @staticmethod
    def _structs(rows: pa.Table, index: np.ndarray, type_: Any) -> Any:
        """Rows as values of one column; NULL where the index is -1."""
        gone = index < 0
        taken = rows.take(pa.array(np.where(gone, 0, index), pa.int64()))
        columns = [_array(taken.column(one.name)) for one in type_]
        nulls: Any = pa.array(gone)
        return pa.StructArray.from_arrays(columns, fields=list(type_), mask=nulls)


_Encoders: TypeAlias = tuple[AvroEncoder | None, AvroEncoder, AvroEncoder]


@functools.lru_cache(maxsize=256)
def _encoders(to: OutputNode) -> _Encoders:
    """Those of keys, of rows, and of changes."""
    schema = to.node.schema
    key = None
    if to.keys:
        key = AvroEncoder(Schema(tuple(schema[name] for name in to.keys)), "Key", to.topic)
    row: Any = pa.struct(list(schema.arrow))
    change = Schema((Field("before", row), Field("after", row), Field("op", pa.string(), True)))  # noqa: FBT003
    names = {"before": "Value", "after": "Value"}
    return (
        key,
        AvroEncoder(schema, "Value", to.topic),
        AvroEncoder(change, "Envelope", to.topic, names),
    )


def _ops(before: np.ndarray, after: np.ndarray) -> pa.Array:
    return pa.array(np.where(before < 0, 0, np.where(after < 0, 2, 1)), pa.int64())


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
