"""Records of a partition to rows with event time, and to dead letters.

Watermarks are judged row by row, in log order: the watermark before a row is the newest time to which its
partition, or its producer there, has moved it so far, less the lateness (or the plan's, where that is
higher). So whether a row is late depends on the log alone, not on how it was cut into batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.schemas import registered_kinds, registered_schemas
from penstock.core.delta import DELETED, OFFSET, TIME, WATERMARK
from penstock.core.keymatch import keys_match
from penstock.core.names import built
from penstock.core.schema import TIMESTAMP
from penstock.core.time import (
    EVENT_MAX_US,
    EVENT_MIN_US,
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    duration_text,
    instant_text,
)
from penstock.core.vectors import from_int64, int64s
from penstock.engine.letters.culprits import Guard
from penstock.engine.letters.lettered import KnownOf
from penstock.engine.letters.letters import Letters
from penstock.engine.letters.reasons import Reasons
from penstock.engine.log import Log
from penstock.engine.record.marks import FoundProducers, Producers
from penstock.engine.record.plan import Split
from penstock.engine.times.clocks import CLOCK, computed, doubt, unit_hint
from penstock.errors import FlowError
from penstock.expr import EvaluationError, Expression
from penstock.expr.columnar import UnfitError, compute
from penstock.expr.duck import evaluate
from penstock.expr.failing import guarded
from penstock.flow.graph import Source
from penstock.flow.times import Header
from penstock.formats.changelog import NEWEST_RECORDS, ChangelogDecoder, other_key
from penstock.formats.lines import Decoder, decoder_for
from penstock.formats.registered import Encoded, RegisteredChangelog, registered_changelog
from penstock.ops.lateness import marks_before
from penstock.ops.producers import PRODUCERS_MAX, ProducerMarks
from penstock.ops.rows import Explanations
from penstock.ops.windows import NOTHING_YET_US
from penstock.wire.columns import Records
from penstock.wire.headers import header_values

__all__ = ["Chunk", "SourceReader", "check_table_key"]

AHEAD_MAX_US: Final = 24 * 3_600 * 1_000_000  # clocks and time zones go wrong by hours, not by days

Changelog = ChangelogDecoder | RegisteredChangelog
STAMP_MIN_MS: Final = (
    INSTANT_MIN_US // 1_000 - 1
)  # beyond these a timestamp is as wrong as it can be
STAMP_MAX_MS: Final = INSTANT_MAX_US // 1_000 + 1


class Chunk:
    """Records that are read together, and the dead letters among them.

    Args:
        records: all of them, or those that can be decoded.
        known_of: gives the offsets of those that have a letter from before.
    """

    def __init__(self, records: Records, known_of: KnownOf | None) -> None:
        self.records = records
        self.letters: list[Letters] = []
        self._known_of = known_of
        self._lettered: np.ndarray | None = None

    @property
    def lettered(self) -> np.ndarray:
        """The offsets of records that have a dead letter from before."""
        if self._lettered is None:
            known_of = self._known_of
            self._lettered = np.zeros(0, np.int64) if known_of is None else known_of(self.records)
        return self._lettered

    def stamps(self, index: np.ndarray) -> np.ndarray:
        """The timestamps of records in µs, as far as these can say them."""
        stamps_ms = self.records.timestamp_ms[index]
        return np.asarray(np.clip(stamps_ms, STAMP_MIN_MS, STAMP_MAX_MS) * 1_000)

    def refuse(self, rows: np.ndarray, reasons: Sequence[str] | pa.Array) -> None:
        """Makes dead letters of records, but for those that have one from before."""
        if not len(rows):
            return
        texts = reasons if isinstance(reasons, pa.Array) else pa.array(reasons, pa.string())
        if len(self.lettered):
            new = ~np.isin(self.records.offset[rows], self.lettered)
            rows, texts = rows[new], texts.filter(pa.array(new))
        self.letters.append(Letters.of_records(self.records, rows, texts))

    def refuse_offsets(self, reasons: Reasons) -> None:
        """The same for records that are named by their offsets."""
        self.refuse(np.searchsorted(self.records.offset, reasons.offsets), reasons.texts)


class SourceReader:
    """Turns the chunks of one split into rows; counts, and knows how far its watermark has moved."""

    def __init__(
        self,
        source: Source,
        split: Split,
        watermark_us: int | None,
        wall_us: int,
        *,
        partitions: int = 1,
        columns: frozenset[str] | None = None,
        guard: Guard,
        known_of: KnownOf | None = None,
    ) -> None:
        self.source = source
        self.split = split
        self.newest_us = NOTHING_YET_US if split.newest_us is None else split.newest_us
        self.row_count = 0
        self.late_count = 0
        self.end: int | None = None  # where reading ended, if before the split's end
        self.lost_count = 0  # offsets that retention removed before they were read
        self._floor_us = NOTHING_YET_US if watermark_us is None else watermark_us
        self._ahead_max_us = min(wall_us + AHEAD_MAX_US, EVENT_MAX_US)
        self.doubt: str | None = None  # about the unit of a time
        self._explanations = Explanations()
        self._guard = guard
        self._decoder = _decoder(source, columns)
        self._known_of = known_of
        self._producers: ProducerMarks | None = None
        if source.time.producer is not None:
            before = split.producers or Producers()
            self._producers = ProducerMarks(
                dict(zip(before.names, before.marks_us, strict=True)),
                None if before.others is None else before.others[0],
                source.time.expected,
                max(1, PRODUCERS_MAX // partitions),
            )

    @property
    def producers(self) -> FoundProducers | None:
        """The marks of the producers of which there were rows, where they have marks of their own."""
        if self._producers is None:
            return None
        return FoundProducers(self._producers.touched(), self._producers.touched_others())

    def rows(self, chunks: Iterable[Records]) -> Iterator[tuple[Chunk, pa.Table]]:
        """Each chunk with its rows that fit, with `$time`, `$watermark` and `$offset`.

        Those of a table's topic have `$deleted`, too.
        """
        for records in chunks:
            self.row_count += len(records)
            chunk, rows, index = self._read(records)
            yield chunk, self._timed(chunk, rows, index)

    def _read(self, records: Records) -> tuple[Chunk, pa.Table, np.ndarray]:
        """What can be read of the records; its rows, or a table's changes, and the record of each."""
        found: list[tuple[Chunk, pa.Table, np.ndarray]] = []

        def on(index: np.ndarray | None) -> None:
            chunk = self._chunk(records if index is None else records.take(index))
            found[:] = [(chunk, *self._read_some(chunk))]

        bad, reasons = self._guard.search(f"decoding of {self.source.topic}", on, len(records))
        if len(bad):
            whole = self._chunk(records)
            whole.refuse(bad, reasons)
            found[0][0].letters.extend(whole.letters)
        return found[0]

    def _chunk(self, records: Records) -> Chunk:
        return Chunk(records, self._known_of)

    def _read_some(self, chunk: Chunk) -> tuple[pa.Table, np.ndarray]:
        """Rows, or a table's changes, and the record of each."""
        if isinstance(self._decoder, Changelog):
            return self._changed(self._decoder, chunk)
        return self._decoded(self._decoder, chunk)

    def _decoded(self, decoder: Decoder, chunk: Chunk) -> tuple[pa.Table, np.ndarray]:
        """A stream's rows, and the record of each."""
        records = chunk.records
        decoded = decoder.decode(records.buffer, records.value_start, records.value_length)
        chunk.refuse(np.asarray(decoded.bad_rows, np.int64), decoded.reasons)
        return pa.Table.from_batches([decoded.columns]), decoded.rows

    def _changed(self, decoder: Changelog, chunk: Chunk) -> tuple[pa.Table, np.ndarray]:
        """A table's changes, and the record of each."""
        changes = decoder.decode(chunk.records)
        chunk.refuse(np.asarray(changes.bad_rows, np.int64), changes.reasons)
        rows = pa.Table.from_batches([changes.columns])
        return rows.append_column(DELETED, pa.array(changes.deleted)), changes.rows

    def _timed(self, chunk: Chunk, rows: pa.Table, index: np.ndarray) -> pa.Table:
        rows, index = self._clocked(chunk, rows, index)
        times, known = self._times(chunk, rows, index)
        if self.doubt is None and self.split.newest_us is None:  # it is said once
            offsets = chunk.records.offset
            self.doubt = doubt(self.source, chunk.records, times[known], index[known], offsets)
        if CLOCK in rows.column_names:
            rows = rows.drop_columns([CLOCK])
        fits = known & (times >= EVENT_MIN_US) & (times <= self._ahead_max_us)
        if not fits.all():
            bad = np.flatnonzero(~fits)
            chunk.refuse(index[bad], list(map(self._time_reason, known[bad], times[bad])))
            rows, times, index = rows.filter(pa.array(fits)), times[fits], index[fits]
        rows, times, index = self._keyed(chunk, rows, times, index)
        marks = self._marks(chunk, rows, self._moves(chunk, rows, times, index), index)
        np.maximum(marks, self._floors(chunk, index), out=marks)
        return (
            rows.append_column(TIME, pa.array(times).view(TIMESTAMP))
            .append_column(WATERMARK, pa.array(marks))
            .append_column(OFFSET, pa.array(chunk.records.offset[index]))
        )

    def _floors(self, chunk: Chunk, index: np.ndarray) -> np.ndarray | int:
        """The topic's watermark for each row: the plan's, or what it was when the row was read first."""
        if not self.split.floors:
            return self._floor_us
        offsets, floors = np.array(self.split.floors, np.int64).T
        floors = np.concatenate([[NOTHING_YET_US], floors])
        at = np.searchsorted(offsets, chunk.records.offset[index], side="right")
        return np.asarray(np.maximum(floors[at], self._floor_us))

    def _moves(
        self, chunk: Chunk, rows: pa.Table, times: np.ndarray, index: np.ndarray
    ) -> np.ndarray:
        """The time to which each row moves the watermark; `NOTHING_YET_US` for nowhere."""
        time = self.source.time
        moves = times
        if time.processing or not len(times):
            return moves
        oldest_us = int(chunk.records.timestamp_ms.min()) * 1_000
        # Two plain passes show in most chunks that no row can be ahead.
        if time.source is not None and int(times.max()) - oldest_us > time.ahead_us:
            stamps = chunk.stamps(index)
            wrong = (times - stamps > time.ahead_us) & (chunk.records.timestamp_ms[index] > 0)
            if wrong.any():
                moves = np.where(wrong, stamps, times)
        if self.source.marker is not None:
            moves = np.where(_is_true(self.source.marker, rows), moves, NOTHING_YET_US)
        return moves

    def _marks(
        self, chunk: Chunk, rows: pa.Table, moves: np.ndarray, index: np.ndarray
    ) -> np.ndarray:
        """The watermark to which the rows before each one have moved its partition or producer."""
        lateness_us = self.source.time.lateness_us
        marks, self.newest_us = marks_before(moves, self.newest_us, lateness_us)
        if self._producers is None:
            return marks
        return (
            self._producers.advance(self._producer_names(chunk, rows, index), moves) - lateness_us
        )

    def _producer_names(self, chunk: Chunk, rows: pa.Table, index: np.ndarray) -> Any:
        """The producer of each row as text."""
        producer = self.source.time.producer
        if isinstance(producer, Header):
            found = header_values(chunk.records, producer.name).dictionary_encode()
            values = found.dictionary.to_pylist()
            texts = [None if b is None else b.decode(errors="replace") for b in values]
            names = pa.array(texts, pa.string()).take(found.indices)
            return names.take(pa.array(index))
        assert producer is not None
        return pc.cast(rows.column(producer), pa.string())

    def _keyed(
        self, chunk: Chunk, rows: pa.Table, times: np.ndarray, index: np.ndarray
    ) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Leaves out records whose key isn't what the stream says that the log is partitioned by.

        Also where nothing relies on it: whether a record counts depends on the record and its stream alone,
        so that a view that is added has the same rows as one that was always there.
        """
        records, key = chunk.records, self.source.key
        if key is None:
            return rows, times, index
        column = rows.column(key).combine_chunks()
        start, length = records.key_start[index], records.key_length[index]
        fits = keys_match(records.buffer, start, length, column, key)
        if fits.all():
            return rows, times, index
        bad = np.flatnonzero(~fits)
        expected = (
            f"expected the record's key to be the text of {key!r}, as key={key!r} says; found "
        )
        found = column.take(from_int64(bad)).to_pylist()
        chunk.refuse(index[bad], [f"{expected}{key}={value!r}" for value in found])
        return rows.filter(pa.array(fits)), times[fits], index[fits]

    def _clocked(
        self, chunk: Chunk, rows: pa.Table, index: np.ndarray
    ) -> tuple[pa.Table, np.ndarray]:
        """The rows with their time, where it is computed, without those for which it can't be."""
        clock = self.source.clock
        if clock is None:
            return rows, index
        found, failed = computed(clock, rows, self._explanations)
        rows, left = rows.append_column(CLOCK, found), np.ones(len(rows), np.bool_)
        if DELETED in rows.column_names:  # a deletion has no columns, and its record's timestamp
            left = ~rows.column(DELETED).to_numpy()
            failed = [(at[left[at]], reason) for at, reason in failed]
            left[:] = True
        for at, reason in failed:
            texts = [reason] * len(at) if isinstance(reason, str) else reason
            chunk.refuse(index[at], texts)
            left[at] = False
        return (rows, index) if left.all() else (rows.filter(pa.array(left)), index[left])

    def _times(
        self, chunk: Chunk, rows: pa.Table, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Event times in µs, and where there is one. A deletion has its record's timestamp."""
        time = self.source.time
        known = np.ones(len(index), np.bool_)
        if time.processing:
            return np.full(len(index), self._floor_us), known
        if time.source is None:
            return chunk.stamps(index), known
        times = _instants(rows, time.column or CLOCK, known)
        if time.sent is not None:
            by_its_clock = _instants(rows, time.sent, known)
            received = time.received
            by_ours = _instants(rows, received, known) if received else chunk.stamps(index)
            times = times + (by_ours - by_its_clock)
        if DELETED in rows.column_names:
            deleted = rows.column(DELETED).to_numpy()
            times, known = np.where(deleted, chunk.stamps(index), times), known | deleted
        return times, known

    def _time_reason(self, known: bool, time_us: int) -> str:  # noqa: FBT001
        time = self.source.time
        what = "the record's timestamp"
        if time.source is not None:
            what = " and ".join(repr(n) for n in (time.source, time.sent, time.received) if n)
        if not known:
            return f"expected an event time in {what}; found none"
        found = "another"
        if INSTANT_MIN_US <= time_us <= INSTANT_MAX_US:
            found = instant_text(int(time_us))
        taken = unit_hint(int(time_us)) if time.source is not None else ""
        return (
            f"expected an event time of the years 102 to 9898, at most {duration_text(AHEAD_MAX_US)} after "
            f"the wall clock, in {what}; found {found}{taken}"
        )


def check_table_key(
    source: Source, log: Log, first: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    """Checks that the key of a table that is new is its topic's, as far as the newest records show.

    Later records with another key are dead letters.

    Raises:
        FlowError: the topic's key has other columns as well.
    """
    decoder = _decoder(source, None)
    if not isinstance(decoder, Changelog):
        return
    for partition, end in ends.items():
        begin = max(first.get(partition, 0), end - NEWEST_RECORDS)
        fault = (
            other_key(decoder, log.read(source.topic, partition, begin, end))
            if begin < end
            else None
        )
        if fault is not None:
            raise FlowError(f"the table {source.topic!r}{built(source.built_at)}: {fault}")


def _decoder(source: Source, columns: frozenset[str] | None) -> Decoder | Changelog:
    """What decodes a source's records."""
    if source.format is None:
        return _json_decoder(source, columns)
    if source.changelog is not None:
        return _registered_changes(source)
    return decoder_for(source.schema, source.format, _needed(source, columns), registered_schemas)


@lru_cache(maxsize=256)
def _registered_changes(source: Source) -> Changelog:
    """The same for a table's changes by a registry's schemas: one for all batches, as it knows schemas."""
    changelog, format_ = source.changelog, source.format
    assert changelog is not None
    assert isinstance(format_, Encoded)
    assert changelog.format in ("json", "debezium")
    return registered_changelog(
        source.schema,
        changelog.key,
        changelog.format,
        format_,
        registered_schemas,
        registered_kinds,
    )


@lru_cache(maxsize=256)
def _json_decoder(source: Source, columns: frozenset[str] | None) -> Decoder | ChangelogDecoder:
    """The same for JSON: made once, as that takes longer than to decode a few records."""
    if (changelog := source.changelog) is not None:
        return ChangelogDecoder(source.schema, changelog.key, changelog.format)
    return decoder_for(source.schema, None, _needed(source, columns))


def _needed(source: Source, columns: frozenset[str] | None) -> frozenset[str] | None:
    """The columns to make of records: those that are read of the rows, and those that time and key need."""
    if columns is None:
        return None
    time = source.time
    named = [time.column, time.sent, time.received, time.producer, source.key]
    marked = frozenset() if source.marker is None else source.marker.columns
    clocked = frozenset() if source.clock is None else source.clock.columns
    return columns | marked | clocked | {name for name in named if isinstance(name, str)}


def _instants(rows: pa.Table, name: str, known: np.ndarray) -> np.ndarray:
    """A TIMESTAMP column in µs; takes the rows that have none out of `known`."""
    column = rows.column(name).combine_chunks()
    if column.null_count:
        known &= pc.is_valid(column).to_numpy(zero_copy_only=False)
        column = column.fill_null(0)
    return int64s(column)


def _is_true(condition: Expression, rows: pa.Table) -> np.ndarray:
    """For which rows a condition is true; where it is NULL, or fails, it is not."""
    found: Any = None
    if condition.tree is not None:
        with contextlib.suppress(UnfitError):
            found = compute(condition.tree, rows)
    if found is None:
        try:
            found = evaluate(rows, f"SELECT {condition.sql} AS x FROM rows").column(0)
        except EvaluationError:
            found, _ = guarded(condition.sql, rows)
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)  # noqa: FBT003
