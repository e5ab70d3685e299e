"""Many rows of COPY to JSON at a time, in columns. Pure.

    COPY's text  ->  columns of texts  ->  columns of fragments  ->  JSON of rows and of their keys

Integers, booleans and texts without escapes are converted a column at a time; other values one by one, as
`Table.of_texts` does. `rows_of` gives the same JSON as that and `Table.row`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.capture._postgres._copy import unescaped
from penstock.capture._postgres._rows import Table, fragment, members
from penstock.capture._postgres._types import is_bool

__all__ = ["Rows", "rows_of"]

_BOM: Final = b"\xef\xbb\xbf"
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""What a text has escapes for, in JSON or in COPY's form."""


class Rows(NamedTuple):
    """Rows as JSON, binary: of their keys, and of the rows; the key of the last one as texts."""

    keys: pa.Array[Any]
    values: pa.Array[Any]
    last: tuple[str, ...]


def rows_of(table: Table, data: bytes, key: Sequence[str]) -> Rows:
    """The rows of a table.

    Args:
        table: whose; it has a primary key.
        data: whole lines of COPY, of all columns; at least one.
        key: the columns of `Rows.last`.
    """
    names = [one.name for one in table.relation.columns]
    columns = _split(data, len(names))
    is_text = data.isascii() or _is_utf8(data)
    fragments = {
        name: _fragments(columns[i], convert, is_text=is_text)
        for i, name, convert in table.converters
    }
    last = (columns[names.index(one)][-1].as_py() for one in key)
    return Rows(
        _objects(table.key, fragments),
        _objects(table.names, fragments),
        tuple(unescaped(one or b"").decode() for one in last),
    )


def _split(data: bytes, count: int) -> list[pa.Array[Any]]:
    """Lines of COPY as columns, binary, escapes as they are."""
    if data.startswith(_BOM):
        data = _BOM + data  # the first one is taken as a mark of the encoding
    names = [str(i) for i in range(count)]
    found = csv.read_csv(
        BytesIO(data),
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=names
        ),
        parse_options=csv.ParseOptions(
            delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[r"\N"],
            strings_can_be_null=True,
        ),
    )
    return [one.combine_chunks() for one in found.columns]


def _is_utf8(data: bytes) -> bool:
    """Whether all is; a database in SQL_ASCII may have anything."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fragments(
    column: pa.Array[Any], convert: Callable[[bytes], Any], *, is_text: bool
) -> pa.Array[Any]:
    """A column's values as JSON."""
    made: Any = column
    if convert is int:
        pass
    elif is_bool(convert):
        made = pc.if_else(pc.equal(column, pa.scalar(b"t", pa.binary())), b"true", b"false")
    elif convert is bytes.decode and is_text:
        made = _join(b'"', column, b'"')
        found: Any = pc.match_substring_regex(column, _ESCAPED)
        has_escapes: Any = pc.fill_null(found, False)  # noqa: FBT003
        if pc.any(has_escapes).as_py():
            some = [
                fragment(convert, unescaped(one or b""))
                for one in column.filter(has_escapes).to_pylist()
            ]
            made = pc.replace_with_mask(made, has_escapes, pa.array(some, pa.binary()))
    else:
        made = pa.array(
            [
                None if one is None else fragment(convert, unescaped(one))
                for one in column.to_pylist()
            ],
            pa.binary(),
        )
    null: Any = pa.scalar(b"null", pa.binary())
    filled: pa.Array[Any] = pc.fill_null(made, null)
    return filled


def _objects(names: Sequence[str], fragments: dict[str, pa.Array[Any]]) -> pa.Array[Any]:
    """Objects of some columns."""
    parts: list[bytes | pa.Array[Any]] = []
    for begin, name in zip(members(names), names, strict=True):
        parts += [begin, fragments[name]]
    return _join(*parts, b"}")


def _join(*parts: bytes | pa.Array[Any]) -> pa.Array[Any]:
    """Parts one after another, of each row; some are the same in all."""
    columns: list[Any] = [
        pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in parts
    ]
    joined: pa.Array[Any] = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))
    return joined
