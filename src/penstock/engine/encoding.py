"""Rows to the keys and values of records, in the format of a topic that is written to.

The same rows give the same bytes, in every process: a registry gives one schema of a subject one id.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import keymatch
from penstock.core.schema import JSON, Field, Schema
from penstock.flow.graph import OutputNode
from penstock.formats.avro import headed
from penstock.formats.json import encode_rows
from penstock.formats.protobuf import FIRST_MESSAGE
from penstock.formats.registered import Encoded, RegisteredEncoder, registered_encoder
from penstock.schemas import Kind

__all__ = ["Registry", "RowEncoder", "encoder_for", "key_texts", "register_schemas"]

_OPS = ("c", "u", "d")
_ONE_ROW: Final = "{}"


class Registry(Protocol):
    """Asks registries; see `Log`."""

    def schema_id(self, registry: str, subject: str, schema: str, kind: Kind) -> int:
        """See `Log`."""
        ...

    def schema_versions(self, registry: str, subject: str) -> Sequence[str]:
        """See `Log`."""
        ...


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


def encoder_for(to: OutputNode, registry: Registry) -> RowEncoder:
    """What makes the records of an output."""
    return _Json(to) if to.format is None else _Registered(to, to.format, registry)


def register_schemas(to: OutputNode, registry: Registry) -> None:
    """Makes the schemas of an output known to its registry.

    Raises:
        SetupError: they aren't compatible with those that the subjects have.
    """
    if to.format is not None:
        _Registered(to, to.format, registry).register()


def key_texts(to: OutputNode, rows: pa.Table) -> pa.Array | None:
    """Keys as text; None where records have none.

    The key is the text of the one column, or a JSON object of several. It is an object as well where the one
    is an array, a structure or a map, or NULL: a key that is null is none, which compacted topics don't take.
    The one row of a table that has one has an object of no columns.
    """
    names = list(to.keys)
    if not names:
        return pa.repeat(_ONE_ROW, len(rows)) if to.is_one_row else None
    if len(names) > 1 or pa.types.is_nested(rows.schema.field(names[0]).type):
        return _array(encode_rows(rows.select(names)))
    return keymatch.key_texts(rows.column(names[0])).fill_null(keymatch.null_key(names[0]))


class _Json:
    def __init__(self, to: OutputNode) -> None:
        self._to = to

    def keys(self, rows: pa.Table) -> pa.Array | None:
        return key_texts(self._to, rows)

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
        taken = rows.take(pa.array(index[there], pa.int64()))
        for at, field in enumerate(taken.schema):
            if field.type == JSON:  # text within an envelope, as Debezium has it
                taken = taken.set_column(at, field.name, taken.column(at).cast(pa.string()))
        texts = encode_rows(taken)
        return _array(texts.take(pa.array(np.cumsum(there) - 1, mask=~there))).fill_null("null")


class _Registered:
    """Writes by schemas of a registry: rows, their keys, and changes."""

    def __init__(self, to: OutputNode, format_: Encoded, registry: Registry) -> None:
        assert format_.registry is not None, "`check_written` lets none pass"
        self._topic, self._kind = to.topic, format_.kind
        self._url, self._registry = format_.registry, registry
        if to not in _ENCODERS:
            versions = functools.partial(registry.schema_versions, self._url)
            _ENCODERS[to] = _encoders(to, self._kind, versions)
        self._key, self._value = _ENCODERS[to]

    def register(self) -> None:
        if self._key is not None:
            self._head("key", self._key)
        self._head("value", self._value)

    def _head(self, part: str, encoder: RegisteredEncoder) -> bytes:
        subject = f"{self._topic}-{part}"
        id_ = self._registry.schema_id(self._url, subject, encoder.text, self._kind)
        return headed(id_) + (FIRST_MESSAGE if self._kind == Kind.PROTOBUF else b"")

    def keys(self, rows: pa.Table) -> pa.Array | None:
        if self._key is None:
            return None
        return self._key.encode(rows, self._head("key", self._key))

    def values(self, rows: pa.Table) -> pa.Array:
        return self._value.encode(rows, self._head("value", self._value))

    def changes(self, rows: pa.Table, before: np.ndarray, after: np.ndarray) -> pa.Array:
        encoder = self._value
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


_Encoders: TypeAlias = tuple[RegisteredEncoder | None, RegisteredEncoder]
_ENCODERS: Final[weakref.WeakKeyDictionary[OutputNode, _Encoders]] = weakref.WeakKeyDictionary()
"""Those of outputs: which numbers Protobuf's fields have is asked once."""


def _encoders(to: OutputNode, kind: Kind, versions: Callable[[str], Sequence[str]]) -> _Encoders:
    """Those of keys, and of rows or changes."""
    schema = to.node.schema

    def made(
        part: str, schema: Schema, name: str, records: Mapping[str, str] | None = None
    ) -> RegisteredEncoder:
        earlier = functools.partial(versions, f"{to.topic}-{part}")
        return registered_encoder(kind, schema, name, to.topic, records, earlier)

    key = None
    if to.keys:
        key = made("key", Schema(tuple(schema[name] for name in to.keys)), "Key")
    if to.emission != "changes":
        return key, made("value", schema, "Value")
    row: Any = pa.struct(list(schema.arrow))
    change = Schema((Field("before", row), Field("after", row), Field("op", pa.string(), True)))  # noqa: FBT003
    return key, made("value", change, "Envelope", {"before": "Value", "after": "Value"})


def _ops(before: np.ndarray, after: np.ndarray) -> pa.Array:
    return pa.array(np.where(before < 0, 0, np.where(after < 0, 2, 1)), pa.int64())


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
