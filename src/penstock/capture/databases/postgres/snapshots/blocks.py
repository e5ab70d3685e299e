"""Many rows of COPY to JSON at a time. Pure.

    COPY's text  ->  where each value is  ->  JSON of rows and of their keys

Integers, booleans and texts without escapes are copied from COPY's text; other values are converted one by
one, as `Table.of_texts` does. `rows_of` gives the same JSON as that and `Table.row`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.capture.chunked import BOOL, PLAIN, TEXT, Raw, Rows
from penstock.capture.databases.postgres.copy import unescaped
from penstock.capture.databases.postgres.rows import Table, fragment
from penstock.capture.databases.postgres.snapshots import kernels
from penstock.capture.databases.postgres.types import is_bool
from penstock.capture.unread import Lost
from penstock.errors import CorruptError, UserError

__all__ = ["key_text", "rows_of"]


def rows_of(table: Table, data: bytes, key: Sequence[str]) -> Rows:
    """The rows of a table.

    Args:
        table: whose; it has a primary key.
        data: whole lines of COPY, of all columns; at least one.
        key: the columns of `Rows.last`.

    Raises:
        CorruptError: a line has another number of values.
        LimitError: the rows are longer than Arrow's offsets reach.
    """
    names = [one.name for one in table.relation.columns]
    raw, escaped = _found(data, len(names))
    # Before JSON of values takes their place.
    last = [raw.value(raw.rows - 1, names.index(one)) for one in key]
    is_text = data.isascii() or _is_utf8(data)
    lost: dict[int, tuple[Lost, ...]] = {}
    kinds = {
        name: _prepare(raw, table, (i, name, convert), escaped if is_text else None, lost)
        for i, name, convert in table.converters
    }
    places = {name: i for i, name, _ in table.converters}
    keys, values = (
        raw.objects(some, [places[one] for one in some], [kinds[one] for one in some])
        for some in (table.key, table.names)
    )
    return Rows(keys, values, tuple(key_text(unescaped(one or b"")) for one in last), lost)


def _found(data: bytes, columns: int) -> tuple[Raw, Any]:
    """Lines of COPY, and which of their values have a byte that JSON or COPY escapes."""
    rows = data.count(b"\n")
    count = rows * columns
    at, size = np.empty(count, np.int64), np.empty(count, np.int64)
    escaped = np.empty(count, np.uint8)
    found = kernels.find_values(np.frombuffer(data, np.uint8), columns, at, size, escaped)
    if found != count:
        raise CorruptError(
            f"expected {rows} lines of COPY with {columns} values each; found {data[:60]!r}"
        )
    return Raw(data, columns, at, size), escaped


def _prepare(
    raw: Raw,
    table: Table,
    of: tuple[int, str, Callable[[bytes], Any]],
    escaped: Any,
    lost: dict[int, tuple[Lost, ...]],
) -> int:
    """How a column's values are written; those that aren't copied are made JSON of.

    Args:
        raw: the rows.
        table: whose.
        of: the column's place, its name, and what makes JSON of a value.
        escaped: which values can't be copied as texts; None: none can.
        lost: filled with values that can't be written, by row.
    """
    column, name, convert = of
    if convert is int:
        return PLAIN
    if is_bool(convert):
        return BOOL
    its = slice(column, None, raw.columns)
    if convert is bytes.decode and escaped is not None:
        some = np.flatnonzero(escaped[its])
    else:
        some = np.flatnonzero(raw.size[its] >= 0)
    made, losses = [], table.losses
    for row in some.tolist():
        text = unescaped(raw.value(row, column) or b"")
        made.append(fragment(convert, text, losses, name))
        if losses.found:
            lost[row] = (*lost.get(row, ()), *losses.take())
    raw.put(column, some, made)
    return TEXT


def key_text(value: bytes | None) -> str:
    """A value of a key as text, for a state and for SQL.

    Raises:
        UserError: it isn't UTF-8, in a database in SQL_ASCII.
    """
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        raise UserError(f"expected keys in UTF-8, to read chunks by; found {value!r}") from None


def _is_utf8(data: bytes) -> bool:
    """Whether all is; a database in SQL_ASCII may have anything."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
