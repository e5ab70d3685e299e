"""Records as rows of a table: their place, time, key and headers, and their decoded value.

    partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, headers LIST<STRUCT<name, value>>
    and a column per field of the schema, or `value` BINARY where there is none

A field that is named like one of the five is called `value_NAME`. A null value (a tombstone) is a
row whose fields are null. A value that the schema doesn't fit is a dead letter with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Schema
from penstock.formats.json import JsonDecoder
from penstock.wire.columns import Records, header

__all__ = ["DEAD_COLUMNS", "OWN_COLUMNS", "Rows"]

_HEADER: Final = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])
_OWN: Final[list[Any]] = [
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP),
    pa.field("key", pa.binary()),
    pa.field("headers", pa.list_(_HEADER)),
]
OWN_COLUMNS: Final = pa.schema(_OWN)
DEAD_COLUMNS: Final = pa.schema(
    [
        *_OWN[:-1],
        pa.field("value", pa.binary()),
        pa.field("reason", pa.string()),
    ]
)


def _headers(records: Records) -> pa.Array:
    """The headers' column; only records that have some are looked at one by one."""
    at = records.value_start + np.maximum(records.value_length, 0)
    some = np.flatnonzero(records.buffer[at] != 0) if len(at) else at
    found = [header(records, int(row)) for row in some]
    counts = np.zeros(len(records), np.int64)
    counts[some] = [len(one) for one in found]
    flat = [{"name": name, "value": value} for one in found for name, value in one]
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    offsets: Any = pa.array(ends)
    return cast("pa.Array", pa.ListArray.from_arrays(offsets, pa.array(flat, _HEADER)))


def _own_columns(partition: int, records: Records) -> list[pa.Array]:
    return [
        pa.array(np.full(len(records), partition, np.int32)),
        pa.array(records.offset),
        pa.array(records.timestamp_ms * 1000).view(TIMESTAMP),
        records.keys(),
    ]


class Rows:
    """Turns records into rows, and into dead letters.

    Args:
        schema: of the values, which are JSON; None: they stay as they are.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._decoder = None if schema is None else JsonDecoder(schema)
        fields: list[Any] = [pa.field("value", pa.binary())]
        if schema is not None:
            own = set(OWN_COLUMNS.names)
            fields = [
                pa.field(f"value_{one.name}" if one.name in own else one.name, one.type)
                for one in schema
            ]
        self.schema = pa.schema([*OWN_COLUMNS, *fields])

    def make(self, partition: int, records: Records) -> tuple[pa.Table, pa.Table]:
        """A partition's rows, and dead letters."""
        own = [*_own_columns(partition, records), _headers(records)]
        if self._decoder is None:
            rows = pa.Table.from_arrays([*own, records.values()], schema=self.schema)
            return rows, DEAD_COLUMNS.empty_table()
        decoded = self._decoder.decode(records.buffer, records.value_start, records.value_length)
        is_bad = np.zeros(len(records), bool)
        is_bad[decoded.bad_rows] = True
        place = np.full(len(records), -1, np.int64)
        place[decoded.rows] = np.arange(len(decoded.rows))
        kept = np.flatnonzero(~is_bad | (records.value_length < 0))
        taken = place[kept]
        index: Any = pa.array(taken, mask=taken < 0)
        values = [column.take(index) for column in decoded.columns.columns]
        chosen: Any = pa.array(kept)
        mine = [column.take(chosen) for column in own]
        rows = pa.Table.from_arrays([*mine, *values], schema=self.schema)
        return rows, self._dead(partition, records, decoded.bad_rows, decoded.reasons)

    @staticmethod
    def _dead(
        partition: int, records: Records, bad: np.ndarray, reasons: Sequence[str]
    ) -> pa.Table:
        is_letter = records.value_length[bad] >= 0
        rows: Any = pa.array(bad[is_letter])
        why = pa.array(reasons, pa.string()).filter(pa.array(is_letter))
        columns = [*_own_columns(partition, records), records.values()]
        return pa.Table.from_arrays(
            [*(one.take(rows) for one in columns), why], schema=DEAD_COLUMNS
        )
