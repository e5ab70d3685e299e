"""Records of a partition to rows with event time, and to dead letters.

Watermarks are judged row by row, in log order: the watermark before a row is the newest event time of
its partition so far, less the lateness (or the plan's, where that is higher). So whether a row is
late depends on the log alone, not on how it was cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.delta import DELETED, OFFSET, TIME, WATERMARK
from penstock.core.keymatch import keys_match
from penstock.core.schema import TIMESTAMP
from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, duration_text, instant_text
from penstock.engine.plan import AHEAD_MAX_US, Split
from penstock.flow.graph import Source
from penstock.formats.changelog import ChangelogDecoder
from penstock.formats.json import JsonDecoder
from penstock.wire.columns import Records

__all__ = ["NOTHING_YET_US", "DeadLetter", "SourceReader"]

NOTHING_YET_US: Final = -(
    2**62
)  # a watermark before any row: below every instant, safe to subtract from


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be used, and why."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    reason: str


class SourceReader:
    """Turns the chunks of one split into rows; remembers what failed."""

    def __init__(
        self,
        source: Source,
        split: Split,
        watermark_us: int | None,
        wall_us: int,
        *,
        check_key: bool,
    ) -> None:
        self.source = source
        self.split = split
        self.newest_us = NOTHING_YET_US if split.newest_us is None else split.newest_us
        self.row_count = 0
        self.late_count = 0
        self.lost_count = 0  # offsets that retention removed before they were read
        self.dead: list[DeadLetter] = []
        self._floor_us = NOTHING_YET_US if watermark_us is None else watermark_us
        self._ahead_max_us = min(wall_us + AHEAD_MAX_US, INSTANT_MAX_US)
        self._check_key = check_key
        self._decoder = JsonDecoder(source.schema)
        self._changes: ChangelogDecoder | None = None
        if (changelog := source.changelog) is not None:
            self._changes = ChangelogDecoder(source.schema, changelog.key, changelog.format)
        self._chunk: Records | None = None

    def rows(self, chunks: Iterable[Records]) -> Iterator[pa.Table]:
        """The rows that fit, with `$time`, `$watermark` and `$offset`, a table for each chunk.

        Those of a table's topic have `$deleted`, too.
        """
        for records in chunks:
            self._chunk = records
            self.row_count += len(records)
            yield self._timed(*(self._decoded if self._changes is None else self._changed)(records))

    def _decoded(self, records: Records) -> tuple[pa.Table, np.ndarray]:
        """A stream's rows, and the record of each."""
        decoded = self._decoder.decode(records.buffer, records.value_start, records.value_length)
        for row, reason in zip(decoded.bad_rows, decoded.reasons, strict=True):
            self._refuse(int(row), reason)
        return pa.Table.from_batches([decoded.columns]), decoded.rows

    def _changed(self, records: Records) -> tuple[pa.Table, np.ndarray]:
        """A table's changes, and the record of each."""
        assert self._changes is not None
        changes = self._changes.decode(records)
        for row, reason in zip(changes.bad_rows, changes.reasons, strict=True):
            self._refuse(int(row), reason)
        rows = pa.Table.from_batches([changes.columns])
        return rows.append_column(DELETED, pa.array(changes.deleted)), changes.rows

    def refuse_offsets(self, reasons: dict[int, str]) -> None:
        """Makes dead letters of records of the current chunk, by offset."""
        assert self._chunk is not None
        offsets = np.fromiter(reasons, np.int64, len(reasons))
        for row, reason in zip(
            np.searchsorted(self._chunk.offset, offsets), reasons.values(), strict=True
        ):
            self._refuse(int(row), reason)

    def _timed(self, rows: pa.Table, index: np.ndarray) -> pa.Table:
        assert self._chunk is not None
        times, known = self._times(rows, index)
        fits = known & (times >= INSTANT_MIN_US) & (times <= self._ahead_max_us)
        if not fits.all():
            for position in np.flatnonzero(~fits):
                self._refuse(
                    int(index[position]), self._time_reason(known[position], times[position])
                )
            rows, times, index = rows.filter(pa.array(fits)), times[fits], index[fits]
        rows, times, index = self._keyed(rows, times, index)
        newest = np.maximum.accumulate(np.concatenate(([self.newest_us], times)))
        self.newest_us = int(newest[-1])
        watermark = np.maximum(newest[:-1] - self.source.lateness_us, self._floor_us)
        return (
            rows.append_column(TIME, pa.array(times).view(TIMESTAMP))
            .append_column(WATERMARK, pa.array(watermark))
            .append_column(OFFSET, pa.array(self._chunk.offset[index]))
        )

    def _keyed(
        self, rows: pa.Table, times: np.ndarray, index: np.ndarray
    ) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Leaves out records whose key isn't what the stream says that the log is partitioned by."""
        chunk, key = self._chunk, self.source.key
        if not self._check_key or key is None:
            return rows, times, index
        assert chunk is not None
        column = rows.column(key).combine_chunks()
        fits = keys_match(chunk.buffer, chunk.key_start[index], chunk.key_length[index], column)
        if fits.all():
            return rows, times, index
        for position in np.flatnonzero(~fits):
            self._refuse(
                int(index[position]),
                f"expected the record's key to be the text of {key!r}, as key={key!r} says; found "
                f"{key}={column[int(position)].as_py()!r}",
            )
        return rows.filter(pa.array(fits)), times[fits], index[fits]

    def _times(self, rows: pa.Table, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Event times in µs, and where there is one. A deletion has its record's timestamp."""
        assert self._chunk is not None
        stamps = self._chunk.timestamp_ms[index] * 1_000
        if self.source.time_column is None:
            return stamps, np.ones(len(index), np.bool_)
        column = rows.column(self.source.time_column).combine_chunks()
        known = np.ones(len(column), np.bool_)
        if column.null_count:
            known = pc.is_valid(column).to_numpy(zero_copy_only=False)
        times = column.view(pa.int64()).fill_null(0).to_numpy()
        if DELETED in rows.column_names:
            deleted = rows.column(DELETED).to_numpy()
            times, known = np.where(deleted, stamps, times), known | deleted
        return times, known

    def _time_reason(self, known: bool, time_us: int) -> str:  # noqa: FBT001
        column = self.source.time_column or "the record's timestamp"
        if not known:
            return f"expected an event time in {column!r}; found none"
        return (
            f"expected an event time of at most {duration_text(AHEAD_MAX_US)} after the wall clock "
            f"in {column!r}; found {instant_text(int(time_us))}"
        )

    def _refuse(self, row: int, reason: str) -> None:
        assert self._chunk is not None
        chunk = self._chunk
        self.dead.append(
            DeadLetter(
                offset=int(chunk.offset[row]),
                key=_slice(chunk.buffer, chunk.key_start[row], chunk.key_length[row]),
                value=_slice(chunk.buffer, chunk.value_start[row], chunk.value_length[row]),
                timestamp_ms=int(chunk.timestamp_ms[row]),
                reason=reason,
            )
        )


def _slice(buffer: np.ndarray, start: int, length: int) -> bytes | None:
    return None if length < 0 else buffer[start : start + length].tobytes()
