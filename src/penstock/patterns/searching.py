"""One call of a matcher: the kernel's buffers, and what it reports, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector, from_int64
from penstock.patterns import kernels
from penstock.patterns.attempt import FRAME, NEVER, NO_SKIP, RESULT, SETTINGS
from penstock.patterns.conditions import STACK_MAX
from penstock.patterns.leaves import Computed, Leaves
from penstock.patterns.measures import Mapped, Measures
from penstock.patterns.program import Program
from penstock.patterns.spec import RowPattern

__all__ = ["Compiled", "Matches", "Partial", "Resume", "Search", "starts_of"]

STATES_MAX: Final = 1 << 17
"""States that the search for one match may try where a definition depends on the rows before: some tens of
milliseconds, and of megabytes."""
STATES_PER_ROW_MAX: Final = 16
"""And so many more for each row that it looks at: a long match has more."""
BITS_MAX: Final = 4
"""Nested loops whose states are a table of all rows: with more, states are found by hashing."""
TABLE_MAX: Final = 1 << 26
"""Places of that table: 256 MB."""
EVENTS_MAX: Final = 4_096
"""That the kernel reports before they are taken from it."""
STATES_FIRST: Final = 1_024
"""Of a memory that is hashed, at first: it grows."""

_EVENT: Final = 7  # numbers of an event
_KEY: Final = 2  # of a state besides registers


@dataclass(frozen=True)
class Resume:
    """Where the search was left, of each partition.

    Attributes:
        at: int64[partitions], the row at which the next match is looked for.
        numbers: int64[partitions], how many matches there were.
        whole: bool[partitions], whether the rows that are here begin with the partition's first one.
        covered: bool[rows], which rows are of a match that was given.
    """

    at: Vector
    numbers: Vector
    whole: Vector
    covered: Vector


@dataclass(frozen=True)
class Partial:
    """Matches that have begun: that may still come, that ran out of time, or that were given up.

    Attributes:
        partition: int64[n].
        first: int64[n], the first row.
        last: int64[n], the last row that was taken.
        count: int64[n], how many were.
        decided: int64[n], the time at which that was certain.
        variable: of each, the name of the last one's variable; empty if none was taken.
        rows: the measures of the rows that were taken.
    """

    partition: Vector
    first: Vector
    last: Vector
    count: Vector
    decided: Vector
    variable: tuple[str, ...]
    rows: pa.Table


@dataclass(frozen=True)
class Matches:
    """What a call found.

    Attributes:
        rows: the output.
        match: int64[rows], of each row of it the match, a place in the vectors below; -1: of no match.
        source: int64[rows], the row of the input that it is; with one row per match, the match's last one.
        certain: int64[rows], the time at which it was certain: `decided`, also of rows that are of no match.
        partition: int64[n], of each match.
        first: int64[n], its first row.
        last: int64[n], its last row; the one before `first` for a match without rows.
        number: int64[n], its number in its partition, from 1.
        decided: int64[n], the time at which it was certain: that of the last row that the search had to look
            at, for it or an attempt before, or when a bound of time had passed. Calls make no difference.
        skipped_wrongly: bool[n], where the row to skip to isn't there, or is the match's first one. The
            search went on with the next row.
        due: int64[partitions], after which frontier what is open is decided though no row comes, or `NEVER`.
        open_from: int64[partitions], the first row that the next call must have.
        next_from: where the search is left, its rows numbered as they were here.
        partial: the match of each partition that may still come.
        timed_out: matches that began, and didn't end within their time.
        abandoned: where the search was given up, as it had too many ways: no match begins at the rows from
            `first` to `last`.
        failed: how many rows have a part that couldn't be computed, and is NULL.
    """

    rows: pa.Table
    match: Vector
    source: Vector
    certain: Vector
    partition: Vector
    first: Vector
    last: Vector
    number: Vector
    decided: Vector
    skipped_wrongly: Vector
    due: Vector
    open_from: Vector
    next_from: Resume
    partial: Partial
    timed_out: Partial
    abandoned: Partial
    failed: int


@dataclass(frozen=True)
class Compiled:
    """A pattern, as a search needs it.

    Attributes:
        spec: the pattern.
        program: its instructions.
        tables: the kernel's.
        initial: the registers before the first row.
        leaves: what definitions read.
        measures: the columns of matches.
        skip: how the next match's first row is found.
        time: the column of event time.
        columns: of the input.
        output: the schema of what is put out.
        back: how many rows before the next one to look at a call needs.
        rows_max: rows that one attempt may look at.
        first: the columns of which one is true where a match may begin; None: it may anyway.
    """

    spec: RowPattern
    program: Program
    tables: tuple[Vector, ...]
    initial: Vector
    leaves: Leaves
    measures: Measures
    skip: int
    time: str | None
    columns: tuple[str, ...]
    output: pa.Schema
    back: int
    rows_max: int
    first: tuple[int | None, ...]


def starts_of(lengths: Any) -> Vector:
    """Where each of some parts begins, and the end: int64[n + 1]."""
    return np.concatenate(([0], np.cumsum(np.asarray(lengths, np.int64)))).astype(np.int64)


@dataclass
class _Buffers:
    """What the kernel writes to."""

    stamps: Vector
    keys: Vector
    stack: Vector
    events: Vector
    rows: Vector
    variables: Vector
    state: Vector

    def grow(self, full: int) -> None:
        """Makes room after the kernel stopped for want of it."""
        if full == kernels.FULL["stack"]:
            self.stack = np.concatenate((self.stack, np.zeros_like(self.stack)))
        elif full == kernels.FULL["memory"]:
            self.stamps = np.zeros(2 * len(self.stamps), np.int32)
            self.keys = np.zeros(2 * len(self.keys), np.int64)


class Search:
    """One call.

    Args:
        compiled: the pattern.
        rows: sorted by partition.
        starts: of the partitions.
        resume: where the last call left them.
        frontier_us: the time before which no further row lies.
    """

    def __init__(
        self,
        compiled: Compiled,
        rows: pa.Table,
        starts: Vector,
        resume: Resume,
        frontier_us: int | None,
    ) -> None:
        self._compiled = compiled
        self._rows = rows
        self._starts = starts
        self._at = np.array(resume.at, np.int64)
        self._begun_at = self._at.copy()
        self._numbers = np.array(resume.numbers, np.int64)
        self._whole = np.array(resume.whole, np.uint8)
        self._covered = np.array(resume.covered, np.uint8)
        self._covered_before = self._covered.copy()
        self._longest = int(np.diff(starts).max(initial=0)) + 1
        self._events: list[Vector] = []
        self._taken: list[Vector] = []
        self._variables: list[Vector] = []
        self._failed = 0
        self._certain = np.full(len(starts) - 1, -NEVER)
        self._passed = np.full(len(rows), -NEVER)
        self._due = np.full(len(starts) - 1, NEVER)
        self._frontier = -NEVER if frontier_us is None else frontier_us
        self._times = np.zeros(0, np.int64)
        if compiled.time is not None:
            column = vectors.contiguous(rows.column(compiled.time))
            self._times = np.ascontiguousarray(vectors.codes(column))

    def run(self, complete: Vector) -> None:
        """Runs the kernel until all partitions are searched.

        Args:
            complete: uint8[partitions], whether a partition gets no further rows.
        """
        compiled = self._compiled
        computed = compiled.leaves.compute(self._rows, self._starts)
        if computed.failed is not None:
            self._failed += int(computed.failed[: len(self._rows)].sum())
        others = (computed.constants, self._times, compiled.initial)
        numbers = computed.numbers
        data = (numbers, numbers.view(np.float64), computed.valid, others)
        settings = self._settings()
        buffers = self._buffers(settings)
        width = len(compiled.initial)
        path, variables = np.zeros((2, self._longest), np.int64)
        most = np.zeros(2 * self._longest, np.int64)
        registers, tried = np.zeros((2, width), np.int64)
        ints, null = np.zeros(STACK_MAX, np.int64), np.zeros(STACK_MAX, np.bool_)
        result = np.zeros(len(RESULT), np.int64)
        begins = self._begins(computed)
        while True:
            full = kernels.search(
                compiled.tables, data, settings, result, buffers.stamps, buffers.keys, buffers.stack, path,
                variables, most, registers, registers.view(np.float64), tried, tried.view(np.float64), ints,
                ints.view(np.float64), null, self._starts, complete, self._whole, self._at, self._numbers,
                self._covered, self._certain, self._passed, self._due, buffers.events, buffers.rows,
                buffers.variables, buffers.state, begins,
            )  # fmt: skip
            if full in (kernels.FULL["output"], kernels.FULL["done"]):
                self._take(buffers)
            if full == kernels.FULL["done"]:
                return
            buffers.grow(full)

    def _settings(self) -> Vector:
        """What the kernel is told of the pattern and of this call."""
        program, spec = self._compiled.program, self._compiled.spec
        registers = len(self._compiled.initial) - 1
        hashed = registers > 0 or program.bits > BITS_MAX or self._table() > TABLE_MAX
        said = {
            "within": -1 if spec.within_us is None else spec.within_us,
            "frontier": self._frontier,
            "bits": program.bits,
            "deadlines": program.deadlines,
            "hashed": int(hashed),
            "width": self._longest,
            "generation": 0,
            "states": STATES_MAX,
            "states per row": STATES_PER_ROW_MAX,
            "measures ahead": self._compiled.measures.ahead,
            "skip": self._compiled.skip,
            "skip set": len(program.sets),
            "rows": self._compiled.rows_max,
        }
        return np.array([said[name] for name in SETTINGS], np.int64)

    def _begins(self, computed: Computed) -> Vector:
        """uint8[rows]: whether a match may begin with a row, as far as columns say."""
        count = len(self._rows)
        found = np.zeros(count, np.bool_)
        for leaf in self._compiled.first:
            if leaf is None:
                return np.ones(count, np.uint8)
            found |= computed.valid[leaf, :count] & (computed.numbers[leaf, :count] != 0)
        return found.astype(np.uint8)

    def _table(self) -> int:
        """Places of a memory that has one for each state without registers."""
        joins = int(self._compiled.program.joins().max(initial=-1)) + 1
        return (joins << self._compiled.program.bits) * self._longest

    def _buffers(self, settings: Vector) -> _Buffers:
        hashed = bool(settings[SETTINGS.index("hashed")])
        places = STATES_FIRST if hashed else max(self._table(), 1)
        width = len(self._compiled.initial)
        room = 2 * max(self._longest, len(self._rows)) + EVENTS_MAX
        return _Buffers(
            np.zeros(places, np.int32),
            np.zeros(places * (_KEY + width) if hashed else 0, np.int64),
            np.zeros(64 * (FRAME + width), np.int64),
            np.zeros(_EVENT * EVENTS_MAX, np.int64),
            np.zeros(room, np.int64),
            np.zeros(room, np.int64),
            np.zeros(5, np.int64),
        )

    def _take(self, buffers: _Buffers) -> None:
        """Takes what the kernel has reported."""
        _, events, used, *_ = buffers.state.tolist()
        some = buffers.events[: _EVENT * events].reshape(-1, _EVENT).copy()
        some[:, 4] += sum(map(len, self._taken))
        self._events.append(some)
        self._taken.append(buffers.rows[:used].copy())
        self._variables.append(buffers.variables[:used].copy())
        buffers.state[1:3] = 0

    def matches(self) -> Matches:
        """All that was found."""
        events = np.concatenate(self._events)
        taken, variables = np.concatenate(self._taken), np.concatenate(self._variables)
        ends = np.append(events[1:, 4], len(taken)) if len(events) else events[:, 4]
        found: dict[str, tuple[Vector, Mapped, Vector]] = {}
        for name, kind in kernels.EVENTS.items():
            which = np.flatnonzero(events[:, 0] == kind)
            if name == "match" and self._compiled.skip == NO_SKIP:
                # Others from the row at which a partition is left may still come: all are given then.
                which = which[events[which, 2] < self._at[events[which, 1]]]
            some = events[which]
            found[name] = some, *_mapped(some, ends[which], taken, variables, self._starts)
        some, mapped, is_excluded = found["match"]
        if self._compiled.skip == NO_SKIP:
            self._covered = self._covered_before
            self._covered[mapped.rows] = 1
            self._covered[some[:, 2]] = 1
        rows, match, source = self._output(some, mapped, is_excluded)
        decided = some[:, 5].copy()
        if (
            self._compiled.skip == NO_SKIP
        ):  # all from one row are given when the last one is certain
            decided = self._passed[some[:, 2]]
        certain = self._passed[source]
        certain[match >= 0] = decided[match[match >= 0]]
        open_from = np.maximum(self._starts[:-1], self._at - self._compiled.back)
        whole = (self._whole == 1) & (open_from == self._starts[:-1])
        return Matches(
            rows=rows,
            match=match,
            source=source,
            certain=certain,
            partition=some[:, 1],
            first=some[:, 2],
            last=_last(mapped, some[:, 2] - 1),
            number=some[:, 3],
            decided=decided,
            skipped_wrongly=some[:, 6] == 1,
            due=self._due,
            open_from=open_from,
            next_from=Resume(self._at, self._numbers, whole, self._covered.astype(np.bool_)),
            partial=self._partial(*found["partial"][:2]),
            timed_out=self._partial(*found["timed out"][:2]),
            abandoned=self._abandoned(*found["abandoned"][:2]),
            failed=self._failed,
        )

    def _output(
        self, events: Vector, mapped: Mapped, is_excluded: Vector
    ) -> tuple[pa.Table, Vector, Vector]:
        """The rows of the output, with the match of each, and the row that it is."""
        spec = self._compiled.spec
        counts = np.diff(mapped.starts)
        shown = np.arange(len(counts))
        if spec.empty == "omit":
            shown = shown[counts > 0]
        if spec.rows == "one":
            match, upto = shown, mapped.starts[shown + 1]
            source = _last(mapped, events[:, 2])[shown]
        else:
            each = np.repeat(np.arange(len(counts)), counts)
            entries = np.flatnonzero(~is_excluded)
            empty = shown[counts[shown] == 0]
            match = np.concatenate((each[entries], empty))
            upto = np.concatenate((entries + 1, mapped.starts[empty]))
            source = np.concatenate((mapped.rows[entries], events[empty, 2]))
            if len(empty):
                order = np.argsort(match, kind="stable")
                match, upto, source = match[order], upto[order], source[order]
        columns, failed = self._compiled.measures.compute(self._rows, mapped, match, upto)
        self._failed += int(failed.sum())
        if spec.unmatched:
            match, source, columns = self._with_unmatched(events, match, source, columns)
        if spec.rows == "all":
            rows = self._rows.select(list(self._compiled.columns))
            columns = [*rows.take(from_int64(source)).columns, *columns]
        return _table(columns, self._compiled.output), match, source

    def _with_unmatched(
        self, events: Vector, match: Vector, source: Vector, columns: list[Any]
    ) -> tuple[Vector, Vector, list[Any]]:
        """The same, with the rows that are of no match, in their places."""
        passed = np.zeros(len(self._rows) + 1, np.int64)
        np.add.at(passed, self._begun_at, 1)
        np.add.at(passed, self._at, -1)
        left = np.flatnonzero((np.cumsum(passed[:-1]) > 0) & (self._covered == 0))
        order = np.argsort(np.concatenate((events[match, 2], left)), kind="stable")
        match = np.concatenate((match, np.full(len(left), -1)))[order]
        source = np.concatenate((source, left))[order]
        made = []
        for column in columns:
            both: Any = pa.chunked_array([column, pa.nulls(len(left), column.type)])
            made.append(both.combine_chunks().take(from_int64(order)))
        return match, source, made

    def _partial(self, events: Vector, mapped: Mapped) -> Partial:
        counts, ends = np.diff(mapped.starts), mapped.starts[1:]
        names = self._compiled.program.names
        variable = tuple(
            names[mapped.variables[end - 1]] if count else ""
            for end, count in zip(ends.tolist(), counts.tolist(), strict=True)
        )
        measures = self._compiled.measures
        columns, failed = measures.compute(self._rows, mapped, np.arange(len(counts)), ends)
        self._failed += int(failed.sum())
        return Partial(
            events[:, 1], events[:, 2], _last(mapped, events[:, 2]), counts, events[:, 5], variable,
            _table(columns, measures.schema),
        )  # fmt: skip

    def _abandoned(self, events: Vector, mapped: Mapped) -> Partial:
        """Where the search was given up: each has the last row that it looked at, and took none."""
        none = replace(mapped, starts=np.zeros_like(mapped.starts))
        return replace(self._partial(events, none), last=mapped.rows)


def _last(mapped: Mapped, otherwise: Vector) -> Vector:
    """The last row of each match, and something else where it has none."""
    found = otherwise.copy()
    has_rows = np.diff(mapped.starts) > 0
    found[has_rows] = mapped.rows[mapped.starts[1:][has_rows] - 1]
    return found


def _mapped(
    events: Vector, ends: Vector, taken: Vector, variables: Vector, starts: Vector
) -> tuple[Mapped, Vector]:
    """Some events' rows, and which of these are excluded."""
    lengths = ends - events[:, 4]
    own = starts_of(lengths)
    at = np.arange(int(own[-1])) + np.repeat(events[:, 4] - own[:-1], lengths)
    which = variables[at]
    partition = events[:, 1]
    mapped = Mapped(
        own, taken[at], np.where(which < 0, ~which, which), events[:, 3], starts[partition],
        starts[partition + 1],
    )  # fmt: skip
    return mapped, which < 0


def _table(columns: list[Any], schema: pa.Schema) -> pa.Table:
    if not columns:
        return pa.Table.from_batches([], schema)
    return pa.table(columns, schema=schema)
