"""Row patterns over rows: `Matcher` finds the matches of partitions, in one call or in many.

Invariant: whatever calls a partition's rows come in, the matches are the same. A match is given once no further row can
change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.core.vectors import Vector, from_int64
from penstock.errors import SchemaError
from penstock.patterns import kernels
from penstock.patterns.conditions import STACK_MAX, Condition, Conditions
from penstock.patterns.expressions import Variables
from penstock.patterns.leaves import Leaves
from penstock.patterns.measures import Mapped, Measures
from penstock.patterns.program import Program, program_of
from penstock.patterns.spec import RowPattern
from penstock.patterns.text import parse_pattern
from penstock.patterns.tree import mapped_names

__all__ = ["Matcher", "Matches", "Partial", "Resume"]

STATES_MAX: Final = 1 << 20
"""States that the search for one match may try, where a definition depends on the rows before: as many take some tens
of megabytes. A partition of more rows may have some for each."""
STATES_PER_ROW_MAX: Final = 16
BITS_MAX: Final = 4
"""Nested loops whose states are a table of all rows: beyond that they are found by hashing."""
TABLE_MAX: Final = 1 << 26
"""Places of that table: 256 MB."""

_SKIPS: Final = {"past last row": 0, "next row": 1, "first": 2, "last": 3}


@dataclass(frozen=True)
class Resume:
    """Where the search was left, of each partition.

    Attributes:
        at: int64[partitions], the row at which the next match is looked for.
        numbers: int64[partitions], how many matches there were.
        whole: bool[partitions], whether no rows before those that are here were left out.
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
        variable: the name of the last one's variable, of each.
        rows: the measures of the rows that were taken.
    """

    partition: Vector
    first: Vector
    last: Vector
    count: Vector
    variable: tuple[str, ...]
    rows: pa.Table


@dataclass(frozen=True)
class Matches:
    """What a call found.

    Attributes:
        rows: the output.
        match: int64[rows], of each row of it the match, a place in the vectors below; -1: of no match.
        source: int64[rows], the row of the input that it is; with one row per match, the match's last one.
        partition: int64[n], of each match.
        first: int64[n], its first row.
        last: int64[n], its last row; the one before `first` for a match without rows.
        number: int64[n], its number in its partition, from 1.
        decided: int64[n], the time at which it couldn't change any more: that of its last row, or when an absence ended.
        skipped_wrongly: bool[n], where the row to skip to isn't there or is the first one; the next row was taken.
        open_from: int64[partitions], the first row that the next call must have.
        next_from: where the search is left.
        partial: the match of each partition that may still come.
        timed_out: matches that began, and didn't end within their time.
        abandoned: where the search was given up: it had too many ways.
        failed: how many rows have a part that couldn't be computed, and is NULL.
    """

    rows: pa.Table
    match: Vector
    source: Vector
    partition: Vector
    first: Vector
    last: Vector
    number: Vector
    decided: Vector
    skipped_wrongly: Vector
    open_from: Vector
    next_from: Resume
    partial: Partial
    timed_out: Partial
    abandoned: Partial
    failed: int


class Matcher:
    """A compiled pattern.

    Args:
        spec: the pattern.
        schema: of the rows.
        time: the column of event time, if there is one: TIMESTAMP without NULLs.

    Attributes:
        output: the schema of what is put out: measures, behind the columns of the row if each row is.
        back: how many rows before the next one to look at a call needs.

    Raises:
        SchemaError: it can't be compiled; the message names the part.
    """

    def __init__(self, spec: RowPattern, schema: pa.Schema, time: str | None) -> None:
        self.spec = spec
        self.schema = schema
        self._time = time
        node = parse_pattern(spec.pattern)
        self.program = program_of(node)
        self.variables = _variables(spec, self.program.names)
        known = Schema.from_arrow(schema)
        leaves = Leaves(known)
        self._conditions = Conditions(leaves, self.variables)
        self._define()
        self._measures = Measures(spec.measures, known, self.variables)
        self._check_time()
        self._mapped_names = mapped_names(node)
        self.output = self._output_schema()
        self.back = max(leaves.back, self._measures.back)
        self._tables, self._initial = self._compiled()

    def _define(self) -> None:
        defines = _named(self.spec.defines, "definition")
        for name in defines:
            if name.lower() not in {one.lower() for one in self.program.names}:
                raise SchemaError(
                    f"expected definitions of {known_names(self.program.names)}; found one of {name!r}"
                    f"{hint(name, self.program.names)}. Use it in the pattern, or leave it out"
                )
        by_lower = {name.lower(): text for name, text in defines.items()}
        mapped = set(mapped_names(parse_pattern(self.spec.pattern)))
        for name in self.program.names:
            text = by_lower.get(name.lower())
            if text is None and name not in mapped:
                raise SchemaError(
                    f"expected a definition of {name}, which rows must not be; found none"
                )
            self._conditions.define(name, text)

    def _check_time(self) -> None:
        if self.spec.within_us is None and self.program.needs_within:
            raise SchemaError(
                "expected within=, or a bound as in !b WITHIN 5 minutes, for an absence at the end; found none"
            )
        timed = self.spec.within_us is not None or self.program.amounts
        if timed and self._time is None:
            raise SchemaError(
                "expected rows with event time for a pattern with bounds of time; found rows without"
            )

    def _output_schema(self) -> pa.Schema:
        measures = self._measures.schema
        if self.spec.rows == "one":
            return measures
        taken = next((one for one in measures.names if one in self.schema.names), None)
        if taken is not None:
            raise SchemaError(
                f"expected measures with other names than the columns of the rows; found {taken!r}"
            )
        return pa.schema([*self.schema, *measures])

    def _compiled(self) -> tuple[tuple[Vector, ...], Vector]:
        """The kernel's tables, and the registers before the first row."""
        program, conditions = self.program, self._conditions
        deadlines = program.deadlines
        # Progress, deadlines, when an absence was decided; then those of conditions.
        first = 1 + deadlines + int(program.has_absence)
        initial = [0] + [kernels.NEVER] * deadlines
        initial += [-kernels.NEVER] * int(program.has_absence) + conditions.initial
        sets = list(program.sets)
        self._skip, skip_names = self._after()
        sets.append(tuple(program.names.index(one) for one in sorted(skip_names)))
        found = [conditions.conditions[name] for name in program.names]
        updates = [conditions.updates.get(name, []) for name in program.names]
        code = [one for condition in found for one in _moved(condition, first)]
        flat = [one for some in updates for one in some]
        kinds = {"true": 0, "column": 1, "code": 2}
        tables = (
            program.operations, program.a, program.b, program.joins(), program.amounts,
            _starts([len(one) for one in sets]), [one for some in sets for one in some],
            [kinds[one.kind] for one in found], [one.leaf for one in found],
            _starts([len(one.code) for one in found]), [one.ahead for one in found],
            [one[0] for one in code], [one[1] for one in code], [one[2] for one in code],
            _starts([len(one) for one in updates]),
            [one.kind for one in flat], [one.register + first for one in flat],
            [one.argument for one in flat],
        )  # fmt: skip
        return tuple(np.array(one, np.int64) for one in tables), np.array(initial, np.int64)

    def _after(self) -> tuple[int, frozenset[str]]:
        """How the next match's first row is found, and the variables that say it."""
        words = self.spec.after.split()
        lowered = " ".join(words).lower()
        if lowered in ("past last row", "next row"):
            return _SKIPS[lowered], frozenset()
        which = words[0].lower() if len(words) == 2 else "last"
        names = self.variables.find(words[-1].strip('"')) if len(words) in (1, 2) else None
        if which not in ("first", "last") or names is None:
            raise SchemaError(
                "expected after= 'past last row', 'next row', 'first x' or 'last x' with a variable x; found "
                f"{self.spec.after!r}"
            )
        return _SKIPS[which], names

    def match(
        self,
        rows: pa.Table,
        starts: Vector,
        *,
        complete: Vector | bool,
        resume: Resume | None = None,
        frontier_us: int | None = None,
    ) -> Matches:
        """Finds the matches that no further row can change.

        Args:
            rows: sorted by partition, and within it as the pattern says.
            starts: int64[partitions + 1], the first row of each partition, and the end of the last one.
            complete: whether a partition gets no rows behind those that are here.
            resume: where the last call left it, its rows numbered as they are here; None is the first call.
            frontier_us: the time before which no further row lies; None: it isn't known.
        """
        starts = np.ascontiguousarray(starts, np.int64)
        count = len(starts) - 1
        is_complete = np.broadcast_to(np.asarray(complete), (count,)).astype(np.uint8)
        if resume is None:
            resume = Resume(
                starts[:-1].copy(),
                np.zeros(count, np.int64),
                np.ones(count, np.bool_),
                np.zeros(len(rows), np.bool_),
            )
        search = _Search(self, rows, starts, resume, frontier_us)
        search.run(is_complete)
        return search.matches()


def _variables(spec: RowPattern, names: tuple[str, ...]) -> Variables:
    subsets: dict[str, frozenset[str]] = {}
    by_lower = {one.lower(): one for one in names}
    for name, members in _named(spec.subsets, "subset").items():
        if name.lower() in by_lower:
            raise SchemaError(
                f"expected a subset of another name than the variables have; found {name!r}"
            )
        for one in members:
            if one.lower() not in by_lower:
                raise SchemaError(
                    f"expected subsets of {known_names(names)}; found {one!r} in {name!r}{hint(one, names)}"
                )
        subsets[name] = frozenset(by_lower[one.lower()] for one in members)
    return Variables(names, subsets)


def _named(pairs: tuple[tuple[str, Any], ...], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name.lower() in {one.lower() for one in found}:
            raise SchemaError(f"expected one {what} of each name; found {name!r} twice")
        found[name] = value
    return found


def _moved(condition: Condition, first: int) -> list[tuple[int, int, int]]:
    """Code, its registers behind those of the program."""
    from penstock.patterns import conditions as c

    moved = []
    for operation, a, b in condition.code:
        if operation == c.AT:
            moved.append((operation, a, b + first))
        elif operation in (c.COUNT, c.TOTAL, c.AVERAGE_I, c.AVERAGE_F):
            moved.append((operation, a + first, b))
        else:
            moved.append((operation, a, b))
    return moved


def _starts(lengths: list[int]) -> Vector:
    return np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)


class _Search:
    """One call: the kernel's buffers, and what it reports."""

    def __init__(
        self,
        matcher: Matcher,
        rows: pa.Table,
        starts: Vector,
        resume: Resume,
        frontier_us: int | None,
    ) -> None:
        self.matcher = matcher
        self.rows = rows
        self.starts = starts
        self.at = np.array(resume.at, np.int64)
        self.numbers = np.array(resume.numbers, np.int64)
        self.whole = np.asarray(resume.whole)
        self.covered = np.array(resume.covered, np.uint8)
        self.begun_at = self.at.copy()
        self.longest = int(np.diff(starts).max(initial=0)) + 1
        self.events: list[Vector] = []
        self.taken: list[Vector] = []
        self.variables: list[Vector] = []
        self.failed = 0
        self._frontier = -kernels.NEVER if frontier_us is None else frontier_us

    def _settings(self) -> tuple[Vector, int]:
        """What the kernel is told, and how many places its memory has at first."""
        matcher, program = self.matcher, self.matcher.program
        within = matcher.spec.within_us
        joins = int(matcher._tables[3].max(initial=-1)) + 1  # noqa: SLF001 - one module
        table = (joins << program.bits) * self.longest
        registers = len(matcher._initial) - 1  # noqa: SLF001
        hashed = bool(registers) or program.bits > BITS_MAX or table > TABLE_MAX
        settings = np.array(
            [
                -1 if within is None else within,
                self._frontier,
                program.bits,
                program.deadlines,
                int(hashed),
                self.longest,
                0,
                max(STATES_MAX, STATES_PER_ROW_MAX * self.longest),
                matcher._measures.ahead,  # noqa: SLF001
                matcher._skip,  # noqa: SLF001
                len(program.sets),
                program.deadlines + 1 if program.has_absence else 0,
            ],
            np.int64,
        )
        return settings, 1024 if hashed else max(table, 1)

    def run(self, complete: Vector) -> None:
        """Runs the kernel, and takes what it reports."""
        matcher = self.matcher
        computed = matcher._conditions.leaves.compute(self.rows, self.starts)  # noqa: SLF001
        if computed.failed is not None:
            self.failed += int(computed.failed.sum())
        times = np.zeros(0, np.int64)
        if matcher._time is not None:  # noqa: SLF001
            times = vectors.codes(vectors.contiguous(self.rows.column(matcher._time)))  # noqa: SLF001
        initial = matcher._initial  # noqa: SLF001
        data = (
            computed.numbers,
            computed.numbers.view(np.float64),
            computed.valid,
            (computed.constants, np.ascontiguousarray(times), initial),
        )
        settings, places = self._settings()
        stamps = np.zeros(places, np.int32)
        key = 2 + len(initial)
        keys = np.zeros(places * key if settings[4] else 0, np.int64)
        stack = np.zeros(64 * (3 + len(initial)), np.int64)
        path, variables = np.zeros((2, self.longest), np.int64)
        most = np.zeros(2 * self.longest, np.int64)
        registers, tried = np.zeros((2, len(initial)), np.int64)
        ints = np.zeros(STACK_MAX, np.int64)
        null = np.zeros(STACK_MAX, np.bool_)
        result = np.zeros(5, np.int64)
        events = np.zeros(7 * 4096, np.int64)
        capacity = 2 * max(self.longest, len(self.rows)) + 4096
        rows, row_variables = np.zeros((2, capacity), np.int64)
        state = np.zeros(3, np.int64)
        while True:
            found = kernels.search(
                matcher._tables, data, settings, result, stamps, keys, stack, path, variables, most,  # noqa: SLF001
                registers, registers.view(np.float64), tried, tried.view(np.float64), ints,
                ints.view(np.float64), null, self.starts, complete, self.whole.astype(np.uint8), self.at,
                self.numbers, self.covered, events, rows, row_variables, state,
            )  # fmt: skip
            if found in (kernels.FULL["output"], kernels.FULL["done"]):
                self._take(events, rows, row_variables, state)
            if found == kernels.FULL["done"]:
                return
            if found == kernels.FULL["stack"]:
                stack = np.zeros(2 * len(stack), np.int64)
            elif found == kernels.FULL["memory"]:
                stamps = np.zeros(2 * len(stamps), np.int32)
                keys = np.zeros(2 * len(keys), np.int64)

    def _take(self, events: Vector, rows: Vector, variables: Vector, state: Vector) -> None:
        """Takes what the buffers have, and empties them."""
        some = events[: 7 * state[1]].reshape(-1, 7).copy()
        some[:, 4] += sum(map(len, self.taken))
        self.events.append(some)
        self.taken.append(rows[: state[2]].copy())
        self.variables.append(variables[: state[2]].copy())
        state[1:] = 0

    def matches(self) -> Matches:
        """All that was found, as columns."""
        events = np.concatenate(self.events)
        taken, variables = np.concatenate(self.taken), np.concatenate(self.variables)
        ends = np.append(events[1:, 4], len(taken)) if len(events) else events[:, 4]
        found: dict[str, tuple[Vector, Mapped, Vector]] = {}
        for name, kind in kernels.EVENTS.items():
            which = np.flatnonzero(events[:, 0] == kind)
            some = events[which]
            mapped, is_excluded = _mapped(some, ends[which], taken, variables, self.starts)
            found[name] = some, mapped, is_excluded
        some, mapped, is_excluded = found["match"]
        rows, match, source = self._output(some, mapped, is_excluded)
        counts = np.diff(mapped.starts)
        last = some[:, 2] - 1
        last[counts > 0] = mapped.rows[mapped.starts[1:][counts > 0] - 1]
        matcher = self.matcher
        decided = some[:, 5].copy()
        if matcher._time is not None and (counts == 0).any():  # noqa: SLF001
            times = vectors.codes(vectors.contiguous(self.rows.column(matcher._time)))  # noqa: SLF001
            decided[counts == 0] = times[some[counts == 0, 2]]
        open_from = np.maximum(self.starts[:-1], self.at - matcher.back)
        whole = self.whole & (open_from == self.starts[:-1])
        return Matches(
            rows, match, source, some[:, 1], some[:, 2], last, some[:, 3], decided, some[:, 6] == 1,
            open_from, Resume(self.at, self.numbers, whole, self.covered.astype(np.bool_)),
            *(self._partial(*found[name][:2]) for name in ("partial", "timed out", "abandoned")),
            self.failed,
        )  # fmt: skip

    def _output(
        self, events: Vector, mapped: Mapped, is_excluded: Vector
    ) -> tuple[pa.Table, Vector, Vector]:
        """The rows of the output, with the match of each, and the row that it is."""
        spec = self.matcher.spec
        counts = np.diff(mapped.starts)
        shown = np.arange(len(counts))
        if spec.empty == "omit":
            shown = shown[counts > 0]
        if spec.rows == "one":
            match, upto = shown, mapped.starts[shown + 1]
            source = events[shown, 2].copy()
            has_rows = counts[shown] > 0
            source[has_rows] = mapped.rows[upto[has_rows] - 1]
        else:
            each = np.repeat(np.arange(len(counts)), counts)
            entries = np.flatnonzero(~is_excluded)
            empty = shown[counts[shown] == 0]
            match = np.concatenate((each[entries], empty))
            upto = np.concatenate((entries + 1, mapped.starts[empty]))
            source = np.concatenate((mapped.rows[entries], events[empty, 2]))
            order = np.argsort(match, kind="stable")
            match, upto, source = match[order], upto[order], source[order]
        columns, failed = self.matcher._measures.compute(self.rows, mapped, match, upto)  # noqa: SLF001
        self.failed += int(failed.sum())
        if spec.unmatched:
            match, source, columns = self._with_unmatched(events, match, source, columns)
        if spec.rows == "all":
            rows = self.rows.select(self.matcher.schema.names)
            columns = [*rows.take(from_int64(source)).columns, *columns]
        return _table(columns, self.matcher.output), match, source

    def _with_unmatched(
        self, events: Vector, match: Vector, source: Vector, columns: list[Any]
    ) -> tuple[Vector, Vector, list[Any]]:
        """The same, with the rows that are of no match, in their places."""
        passed = np.zeros(len(self.rows) + 1, np.int64)
        np.add.at(passed, self.begun_at, 1)
        np.add.at(passed, self.at, -1)
        left = np.flatnonzero((np.cumsum(passed[:-1]) > 0) & (self.covered == 0))
        place = np.concatenate((events[match, 2], left))
        order = np.argsort(place, kind="stable")
        match = np.concatenate((match, np.full(len(left), -1)))[order]
        source = np.concatenate((source, left))[order]
        made = []
        for column in columns:
            both: Any = pa.chunked_array([column, pa.nulls(len(left), column.type)])
            made.append(both.combine_chunks().take(from_int64(order)))
        return match, source, made

    def _partial(self, events: Vector, mapped: Mapped) -> Partial:
        counts = np.diff(mapped.starts)
        ends = mapped.starts[1:]
        last = events[:, 2].copy()
        last[counts > 0] = mapped.rows[ends[counts > 0] - 1]
        names = self.matcher.program.names
        variable = tuple(
            names[mapped.variables[e - 1]] if n else "" for e, n in zip(ends, counts, strict=True)
        )
        columns, failed = self.matcher._measures.compute(  # noqa: SLF001
            self.rows, mapped, np.arange(len(counts)), ends
        )
        self.failed += int(failed.sum())
        rows = _table(columns, self.matcher._measures.schema)  # noqa: SLF001
        return Partial(events[:, 1], events[:, 2], last, counts, variable, rows)


def _mapped(
    events: Vector, ends: Vector, taken: Vector, variables: Vector, starts: Vector
) -> tuple[Mapped, Vector]:
    """Some events' rows, and which of these are excluded."""
    lengths = ends - events[:, 4]
    own = _starts(list(lengths))
    at = np.arange(int(own[-1])) + np.repeat(events[:, 4] - own[:-1], lengths)
    which = variables[at]
    partition = events[:, 1]
    mapped = Mapped(
        own, taken[at], np.where(which < 0, ~which, which), events[:, 3], starts[partition], starts[partition + 1]
    )  # fmt: skip
    return mapped, which < 0


def _table(columns: list[Any], schema: pa.Schema) -> pa.Table:
    if not columns:
        return pa.Table.from_batches([], schema)
    return pa.table(columns, schema=schema)


_ = Program
