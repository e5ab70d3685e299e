"""A search index in a directory, by tantivy: documents and offsets appear with one commit.

tantivy's commits have no room for a text, so offsets are in a file next to the index, which is replaced
before a commit. It has the offsets before and after that commit, and the index's operation number before it:
which of them hold is known from the number that the index has.

A rebuild writes `PATH__new`, which changes names with `PATH` at once (`folders`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.lazy import installed
from penstock.core.schema import JSON, TIMESTAMP
from penstock.errors import UserError
from penstock.sinks.targets.contract import (
    Batch,
    RefusedError,
    Rows,
    Unchanged,
    no_row,
)
from penstock.sinks.targets.kind import Facts, TargetKind
from penstock.sinks.targets.lake.folders import FOLDER_RENAMED, FolderTarget
from penstock.sinks.targets.texts import json_values, key_texts

__all__ = ["KINDS", "TantivyTarget", "tantivy"]

KEY_FIELD: Final = "penstock_key"
"""The field by which documents are replaced and deleted."""
STATE_FILE: Final = "penstock-sinks.json"
HEAP_BYTES: Final = 64 << 20
"""Of the index's writer, whose least is 15 MB; documents beyond are written to the disk."""
FIRST: Final = dt.datetime(1677, 9, 21, 0, 12, 43, 145225, tzinfo=dt.UTC)
LAST: Final = dt.datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=dt.UTC)
"""The instants that an index can hold: 64 bits of nanoseconds."""
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_US, LAST_US = ((one - EPOCH) // dt.timedelta(microseconds=1) for one in (FIRST, LAST))


def tantivy(path: str | Path) -> TantivyTarget:
    """A search index that needs no server. Other processes may search it with `tantivy.Index.open(path)`.

    STRING is text that is split into words; key columns of STRING are found as a whole. Numbers, booleans
    and instants are fields of their kinds, everything else is text as in JSON rows.

    Args:
        path: of its directory, created if it doesn't exist.
    """
    return TantivyTarget(path)


class TantivyTarget(FolderTarget):
    """See `tantivy`."""

    kind = "tantivy"
    unchanged: Unchanged = "kept"

    def __init__(self, path: str | Path, owner: str | None = None) -> None:
        super().__init__(path, owner)
        self._module: Any = installed("tantivy", "search", "to write a search index")
        self._writer: Any = None

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, when no other process has the index; the next offsets."""
        self.close()
        if not rows.key:
            raise UserError(f"expected a key, to replace documents of {self.name}; found none")
        self._rows, self._own = rows, self._owned_by(sink, rows)
        self._folder.take()
        self._adders = [_adder(self._module, field.type) for field in rows.schema]
        try:
            index = self._index = self._module.Index(self._schema(rows), path=str(self._path))
        except ValueError as error:
            raise UserError(
                f"expected the index {self._path} to have the columns {', '.join(rows.schema.names)}; found "
                f"another one ({error}). Choose another directory, or remove this one"
            ) from None
        try:
            self._writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)
        except ValueError as error:
            raise BlockingIOError(
                f"{self._path} is written to by another process: {error}"
            ) from None
        self._offsets = {int(p): int(o) for p, o in self._read_state().items()}
        return dict(self._offsets)

    def _schema(self, rows: Rows) -> Any:
        builder = self._module.SchemaBuilder()
        builder.add_text_field(KEY_FIELD, stored=False, tokenizer_name="raw")
        for field in rows.schema:
            type_ = field.type.value_type if pa.types.is_list(field.type) else field.type
            if type_ == pa.string():
                words = "raw" if field.name in rows.key else "default"
                builder.add_text_field(field.name, stored=True, tokenizer_name=words)
            elif pa.types.is_boolean(type_):
                builder.add_boolean_field(field.name, stored=True, indexed=True, fast=True)
            elif pa.types.is_integer(type_):
                builder.add_integer_field(field.name, stored=True, indexed=True, fast=True)
            elif pa.types.is_floating(type_):
                builder.add_float_field(field.name, stored=True, indexed=True, fast=True)
            elif type_ == TIMESTAMP or pa.types.is_date(type_):
                builder.add_date_field(field.name, stored=True, indexed=True, fast=True)
            elif type_ == pa.binary():
                builder.add_bytes_field(field.name, stored=True)
            else:
                builder.add_text_field(field.name, stored=True, tokenizer_name="raw")
        return builder.build()

    @property
    def _number(self) -> int:
        """Of the newest operation that the index has."""
        return int(orjson.loads((self._path / "meta.json").read_bytes())["opstamp"])

    def _read_state(self) -> dict[str, int]:
        try:
            state = orjson.loads((self._path / STATE_FILE).read_bytes())
        except FileNotFoundError:
            return {}
        if state["sink"] != self._own:
            raise self._others(self._own, state["sink"])
        return dict(state["before" if state["number"] == self._number else "after"])

    def _store_state(self, after: Mapping[int, int]) -> None:
        state = {
            "sink": self._own,
            "number": self._number,
            "before": {str(p): o for p, o in self._offsets.items()},
            "after": {str(p): o for p, o in after.items()},
        }
        beside = self._path / f"{STATE_FILE}.new"
        with beside.open("wb") as file:
            file.write(orjson.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path / STATE_FILE)

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together.

        Raises:
            RefusedError: an instant is outside of those that the index can hold, or a document that lacks
                values isn't there.
        """
        if self._writer is None:
            raise OSError(f"{self._path} is closed")
        _check_instants(batch.upserts)
        after = {**self._offsets, **offsets}
        if not len(batch):
            self._offsets = after
            self._store_state(after)
            return
        olds = self._olds(batch)
        try:
            for rows in (batch.deletes, batch.upserts):
                for key in key_texts(rows, self._rows.key) if len(rows) else ():
                    self._writer.delete_documents_by_term(KEY_FIELD, key)
            self._add(batch.upserts, olds)
            self._store_state(after)
            self._writer.commit()
        except ValueError as error:
            raise OSError(f"{self._path} can't be written: {error}") from None
        self._offsets = after

    def _olds(self, batch: Batch) -> dict[int, dict[str, list[Any]]]:
        """The values that documents lack, by their rows."""
        olds: dict[int, dict[str, list[Any]]] = {}
        rows = np.flatnonzero(batch.is_partial).tolist()
        if not rows:
            return olds
        self._index.reload()
        searcher, keys = self._index.searcher(), key_texts(batch.upserts, self._rows.key)
        for i in rows:
            lacks = [name for name, some in batch.kept.items() if some[i]]
            asked = self._module.Query.term_query(self._index.schema, KEY_FIELD, keys[i])
            found = searcher.search(asked, 1).hits
            if not found:
                raise no_row(lacks)
            document = searcher.doc(found[0][1]).to_dict()
            olds[i] = {name: document.get(name, []) for name in lacks}
        return olds

    def _add(self, rows: pa.RecordBatch, olds: Mapping[int, Mapping[str, list[Any]]]) -> None:
        if not len(rows):
            return
        columns = [_values(column) for column in rows.columns]
        names = rows.schema.names
        keys = key_texts(rows, self._rows.key)
        for i, (key, *values) in enumerate(zip(keys, *columns, strict=True)):
            document, old = self._module.Document(), olds.get(i, {})
            document.add_text(KEY_FIELD, key)
            for name, add, new in zip(names, self._adders, values, strict=True):
                value = old.get(name, new)
                for one in value if isinstance(value, list) else (value,):
                    if one is not None:
                        add(document, name, one)
            self._writer.add_document(document)

    def close(self) -> None:
        """Lets the index go."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(ValueError):  # a merge that failed: nothing is lost
                writer.wait_merging_threads()
        self._folder.let_go()

    def _at(self, path: Path, owner: str) -> TantivyTarget:
        return TantivyTarget(path, owner)


def _check_instants(rows: pa.RecordBatch) -> None:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        if values.type == TIMESTAMP or pa.types.is_date(values.type):
            # As numbers: Python has no times after the year 9999.
            is_date = pa.types.is_date(values.type)
            unit_us = 86_400_000_000 if is_date else 1
            numbers = (
                values.cast(pa.int32()).cast(pa.int64()) if is_date else values.cast(pa.int64())
            )
            found: Any = pc.min_max(numbers).as_py()
            for one in (found["min"], found["max"]):
                if one is not None and not FIRST_US <= one * unit_us <= LAST_US:
                    raise RefusedError(
                        f"expected {name} to be between {FIRST:%Y-%m-%d} and {LAST:%Y-%m-%d}, the times that "
                        f"a tantivy index can hold; found {_instant(one * unit_us)}"
                    )


def _instant(time_us: int) -> str:
    try:
        return (EPOCH + dt.timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        return f"{time_us:,} us since 1970"


def _is_plain(type_: pa.DataType) -> bool:
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date)
    return type_ in (pa.string(), JSON, pa.binary(), TIMESTAMP) or any(one(type_) for one in plain)


def _values(column: pa.Array) -> list[Any]:
    """Values as documents take them; an array's as lists."""
    if pa.types.is_list(column.type):
        flat = pc.list_flatten(column)
        items = iter(json_values(flat) if pa.types.is_list(flat.type) else _values(flat))
        counts = pc.list_value_length(column).to_pylist()
        return [None if n is None else [next(items) for _ in range(n)] for n in counts]
    if _is_plain(column.type):
        return list(column.to_pylist())
    return [text.strip('"') if text else None for text in json_values(column)]


def _adder(module: Any, type_: pa.DataType) -> Callable[[Any, str, Any], None]:
    document = module.Document
    if pa.types.is_list(type_):
        of: pa.DataType = type_.value_type
        return document.add_text if pa.types.is_list(of) else _adder(module, of)
    if pa.types.is_date(type_):
        return lambda d, n, v: d.add_date(n, dt.datetime(v.year, v.month, v.day, tzinfo=dt.UTC))
    found: Callable[[Any, str, Any], None]
    if pa.types.is_boolean(type_):
        found = document.add_boolean
    elif pa.types.is_integer(type_):
        found = document.add_integer
    elif pa.types.is_floating(type_):
        found = document.add_float
    elif type_ == TIMESTAMP:
        found = document.add_date
    else:
        found = document.add_bytes if type_ == pa.binary() else document.add_text
    return found


KINDS: Final = (
    TargetKind(
        name="tantivy",
        title="tantivy",
        make=tantivy,
        arguments="directory",
        examples=("DIRECTORY.tantivy",),
        suffixes=(".tantivy",),
        table="",
        extra="search",
        facts=Facts(
            guarantee="yes",
            exactly_once="one commit of the index shows documents and decides which offsets are valid",
            older_process="the index belongs to one process",
            loading="documents or rows by key",
            others="can search",
            left_out="is read from the target, and written again",
            rebuilt=FOLDER_RENAMED,
        ),
    ),
)
