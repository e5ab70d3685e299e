"""The delta: an Arrow table of rows with an integer weight; the only thing that flows.

A row of weight +1 appears, of -1 disappears; an update is both. A delta without the weight column
only gains rows (every weight is +1): what comes from a topic is of that kind, and operators then skip
the work that retractions need.

Penstock's own columns begin with `$`; a user's can't.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import JSON
from penstock.core.vectors import Vector, contiguous, from_int64, raw

WEIGHT: Final = "$weight"  # int64
TIME: Final = "$time"  # timestamp, the event time of a row
WATERMARK: Final = "$watermark"  # int64, the watermark before the row in µs; of a source's rows
OFFSET: Final = "$offset"  # int64, of the record that the row was
NUMBER: Final = (
    "$number"  # int64, of a row among those that an operator gives, on its way through steps
)
DELETED: Final = "$deleted"  # boolean, of a table's topic: whether the row of this key is gone

EXPIRY: Final = "$expiry"
"""int8, of the changes of a table with retention: whom a change concerns.

0, `FOLLOWING` or `SUMMING`. Who follows the table (a join, a topic, a group of all time) sees rows go when
retention takes them. Who sums up its windows by longer ones doesn't: these keep what they have counted.
Where a window changes in the batch in which it goes, each gets its part.
"""
FOLLOWING: Final = 1
SUMMING: Final = 2


def expiring(both: pa.Table, following: pa.Table, summing: pa.Table) -> pa.Table:
    """The changes of a table with retention, with `$expiry`: those of everybody, and of either."""
    parts = [following, summing, both]
    audiences = np.repeat(np.array([FOLLOWING, SUMMING, 0], np.int8), [len(part) for part in parts])
    return pa.concat_tables(parts).append_column(EXPIRY, pa.array(audiences))


def followed(delta: pa.Table) -> pa.Table:
    """A table's changes as those see them who follow it."""
    return _without(delta, SUMMING)


def summed(delta: pa.Table) -> pa.Table:
    """A table's changes as those see them who sum up its windows."""
    return _without(delta, FOLLOWING)


def _without(delta: pa.Table, audience: int) -> pa.Table:
    if EXPIRY not in delta.column_names:
        return delta
    visible = pc.not_equal(delta.column(EXPIRY), pa.scalar(audience, pa.int8()))
    return delta.filter(visible).drop_columns([EXPIRY])


def weights(delta: pa.Table) -> np.ndarray | None:
    """The weights as an int64 array of one per row, or None where every one is +1."""
    if WEIGHT not in delta.column_names:
        return None
    return delta.column(WEIGHT).to_numpy()


def unnumbered(delta: pa.Table) -> pa.Table:
    """The delta's columns without `$number`."""
    return delta.drop_columns([NUMBER]) if NUMBER in delta.column_names else delta


def rows(delta: pa.Table) -> pa.Table:
    """The delta's columns without the weight."""
    return delta.drop_columns([WEIGHT]) if WEIGHT in delta.column_names else delta


def union(deltas: Sequence[pa.Table]) -> pa.Table:
    """The rows of several deltas, with the columns that all of them have.

    Rows of one partition that took several ways come in an order that doesn't show where chunks ended.
    """
    if len(deltas) == 1:
        return deltas[0]
    names = [n for n in deltas[0].column_names if all(n in one.column_names for one in deltas)]
    # Of a column, one way may say that it is NOT NULL, and another one may not.
    found = pa.concat_tables([one.select(names) for one in deltas], promote_options="default")
    if OFFSET not in names:
        return found
    order = np.argsort(raw(contiguous(found.column(OFFSET))), kind="stable")
    return found.take(from_int64(order))


PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What stands for a large value that an update didn't change, as PostgreSQL doesn't send it: this text, its
bytes, an array or a map of them, or JSON of any of these (Debezium's `unavailable.value.placeholder`)."""


def may_be_unchanged(type_: pa.DataType) -> bool:
    """Whether a column can have the placeholder."""
    return bool(_placeholders(type_, PLACEHOLDER))


def are_unchanged(column: pa.Array, text: str = PLACEHOLDER) -> Vector | None:
    """bool[n]: which values of a column are the placeholder; None: no one is.

    Args:
        column: any.
        text: the placeholder, where the connector was given another one.
    """
    expected = _placeholders(column.type, text)
    if not expected:
        return None
    if not pa.types.is_nested(column.type):
        found: Any = pc.is_in(column, value_set=pa.array(expected, column.type))
    elif pa.types.is_map(column.type):
        found = _are_equal(column, [*expected[0].items()])
    else:
        found = _are_equal(column, expected[0])
    made = pc.fill_null(found, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return made if made.any() else None


def _placeholders(type_: pa.DataType, text: str) -> list[Any]:
    """The forms of the placeholder in a column of a type; none: it can't have it."""
    if type_ == JSON:
        quoted = json.dumps(text, ensure_ascii=False)
        return [quoted, f"[{quoted}]", f"{{{quoted}:{quoted}}}"]
    if pa.types.is_string(type_):
        quoted = json.dumps(text, ensure_ascii=False)
        return [text, f"{{{quoted}:{quoted}}}"]  # the latter of an hstore as JSON
    if pa.types.is_binary(type_):
        return [text.encode()]
    if pa.types.is_map(type_):
        return [{text: text}] if pa.types.is_string(type_.item_type) else []
    if pa.types.is_list(type_):
        if pa.types.is_integer(type_.value_type):
            return [[*text.encode()]]
        return [[one] for one in _placeholders(type_.value_type, text)[:1]]
    return []


def _are_equal(column: pa.Array, expected: list[Any]) -> pa.Array:
    """bool[n]: which lists are the expected one; those of another length aren't looked at."""
    lists: Any = column
    at = np.flatnonzero(np.diff(lists.offsets.to_numpy()) == len(expected))
    found = np.zeros(len(column), np.bool_)
    if len(at):
        found[at] = [one == expected for one in lists.take(pa.array(at)).to_pylist()]
    return pa.array(found)
