"""Of some changes the last one of each key, with the values that it leaves out.

An update may give a large value as unchanged (`penstock.core.delta`). Such a value is that of the nearest
change before that has one. Where none in the batch does, the target's stays: the batch says which.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.delta import PLACEHOLDER, are_unchanged, may_be_unchanged
from penstock.core.vectors import from_int64
from penstock.sinks.targets.contract import Batch, RefusedError, Rows, Target, Unchanged, no_row

__all__ = ["Merging"]


class Merging:
    """Makes batches of changes.

    Args:
        rows: what they are like.
        target: its `unchanged` says what it does with values that a change leaves out.
        placeholder: the text that stands for such a value.
    """

    def __init__(self, rows: Rows, target: Target, placeholder: str = PLACEHOLDER) -> None:
        self.unchanged: Unchanged = target.unchanged
        self.placeholder, self._key = placeholder, rows.key
        others = [one for one in rows.schema if one.name not in rows.key]
        self._large = [one.name for one in others if may_be_unchanged(one.type)]

    def merged(
        self,
        columns: pa.RecordBatch,
        deleted: npt.NDArray[np.bool_],
        at: npt.NDArray[np.int64],
        partition: int,
    ) -> Batch:
        """What changes come to; without a key, all rows.

        Args:
            columns: of each change, in the records' order.
            deleted: which are deletions.
            at: the offset of the record of each.
            partition: of all these records.

        Raises:
            RefusedError: a value isn't in the changes, and the target can't have it.
        """
        keys = list(self._key)
        if not keys:
            kept, none = from_int64(np.flatnonzero(~deleted)), np.zeros(0, np.int64)
            none_gone = columns.slice(0, 0).select([])
            return Batch(columns.take(kept), none_gone, at[~deleted], none, partition)
        last = _last(columns, keys)
        gone = deleted[last]
        upserts = columns.take(from_int64(last[~gone]))
        unknown: dict[str, npt.NDArray[np.bool_]] = {}
        for name in self._large:
            column = columns.column(name)
            is_unchanged = are_unchanged(column, self.placeholder)
            if is_unchanged is None or not (is_unchanged[last] & ~gone).any():
                continue
            source = _sources(~is_unchanged | deleted, _ids(columns, keys, last), len(last))[~gone]
            unknown[name] = (source < 0) | deleted[source]
            values = self._values(name, column, source, last[~gone], unknown[name])
            place = upserts.schema.get_field_index(name)
            upserts = upserts.set_column(place, upserts.schema.field(place), values)
        unknown = {name: some for name, some in unknown.items() if some.any()}
        deletes = columns.select(keys).take(from_int64(last[gone]))
        return Batch(upserts, deletes, at[last[~gone]], at[last[gone]], partition, unknown)

    def _values(
        self,
        name: str,
        column: pa.Array,
        source: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
        unknown: npt.NDArray[np.bool_],
    ) -> pa.Array:
        """A column's values of the last changes: those of their sources, if they have one.

        Raises:
            RefusedError: there is none, and the target's isn't the one, or can't stay.
        """
        if self.unchanged == "logged":
            return column.take(from_int64(np.where(unknown, last, source)))
        if (unknown & (source >= 0)).any():  # a deletion is in between
            raise no_row([name])
        if self.unchanged == "refused" and unknown.any():
            raise RefusedError(
                f"expected a row with all its values, as the target can't keep its own; found that {name} is "
                "left out as unchanged. Follow the topic by a table, and write that"
            )
        places: pa.Int64Array = pa.array(source, pa.int64(), mask=unknown)
        return column.take(places)


def _last(columns: pa.RecordBatch, keys: list[str]) -> npt.NDArray[np.int64]:
    """The position of each key's last change, ascending."""
    if len(columns) == 1:
        return np.zeros(1, np.int64)
    found = _positions(columns, keys).aggregate([("$at", "max")])
    return np.sort(found.column("$at_max").to_numpy())


def _positions(columns: pa.RecordBatch, keys: list[str]) -> pa.TableGroupBy:
    table = pa.Table.from_batches([columns.select(keys)])
    return table.append_column("$at", from_int64(np.arange(len(columns)))).group_by(keys)


def _ids(
    columns: pa.RecordBatch, keys: list[str], last: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Of each change the number of its key: that of the key's last change."""
    found = _positions(columns, keys).aggregate([("$at", "max"), ("$at", "list")])
    numbers = np.searchsorted(last, found.column("$at_max").to_numpy())
    lists: Any = found.column("$at_list").combine_chunks()
    ids = np.empty(len(columns), np.int64)
    ids[lists.flatten().to_numpy()] = np.repeat(numbers, np.diff(lists.offsets.to_numpy()))
    return ids


def _sources(
    fits: npt.NDArray[np.bool_], ids: npt.NDArray[np.int64], keys: int
) -> npt.NDArray[np.int64]:
    """Of each key its last change that fits; -1: none does."""
    found = np.full(keys, -1)
    at = np.flatnonzero(fits)
    np.maximum.at(found, ids[at], at)
    return found
