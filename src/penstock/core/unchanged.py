"""Debezium's placeholder: what stands for a large value that an update didn't change.

PostgreSQL doesn't send such a value. The connector writes a text in its place, or what its type makes of the
text: its bytes, an array with it, or an array of its bytes (`unavailable.value.placeholder`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.vectors import Vector

__all__ = ["PLACEHOLDER", "are_unchanged", "may_be_unchanged"]

PLACEHOLDER: Final = "__debezium_unavailable_value"
_BYTES: Final = PLACEHOLDER.encode()


def may_be_unchanged(type_: pa.DataType) -> bool:
    """Whether a column can have the placeholder."""
    return _placeholder(type_) is not None


def are_unchanged(column: pa.Array) -> Vector | None:
    """bool[n]: which values of a column are the placeholder; None: no one is."""
    expected = _placeholder(column.type)
    if expected is None:
        return None
    if not pa.types.is_nested(column.type):
        found: Any = pc.equal(column, pa.scalar(expected, column.type))
    elif pa.types.is_map(column.type):
        found = _are_equal(column, [*expected.items()])
    else:
        found = _are_equal(column, expected)
    made = pc.fill_null(found, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return made if made.any() else None


def _placeholder(type_: pa.DataType) -> Any:
    """The placeholder in a column of a type; None: it can't have it."""
    if pa.types.is_string(type_):
        return PLACEHOLDER
    if pa.types.is_binary(type_):
        return _BYTES
    if pa.types.is_map(type_):
        return {PLACEHOLDER: PLACEHOLDER} if pa.types.is_string(type_.item_type) else None
    if pa.types.is_list(type_):
        if pa.types.is_integer(type_.value_type):
            return [*_BYTES]
        inner = _placeholder(type_.value_type)
        return None if inner is None else [inner]
    return None


def _are_equal(column: pa.Array, expected: list[Any]) -> pa.Array:
    """bool[n]: which lists are the expected one; those of another length aren't looked at."""
    lists: Any = column
    at = np.flatnonzero(np.diff(lists.offsets.to_numpy()) == len(expected))
    found = np.zeros(len(column), np.bool_)
    if len(at):
        found[at] = [one == expected for one in lists.take(pa.array(at)).to_pylist()]
    return pa.array(found)
