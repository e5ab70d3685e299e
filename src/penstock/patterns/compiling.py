"""Row patterns over rows: `Matcher` finds the matches of partitions, in one call or in many.

Invariant: whatever calls a partition's rows come in, the matches are the same. A match is given once no
    further row
can change it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.patterns import operations as c
from penstock.patterns.attempt import NEVER, NO_SKIP
from penstock.patterns.conditions import Condition, Conditions
from penstock.patterns.expressions import Variables
from penstock.patterns.leaves import Leaves
from penstock.patterns.measures import Measures
from penstock.patterns.program import START, Program, program_of
from penstock.patterns.searching import Compiled, Matches, Resume, Search, starts_of
from penstock.patterns.spec import RowPattern
from penstock.patterns.text import parse_pattern
from penstock.patterns.tree import Node, can_be_empty, first_names, mapped_names

__all__ = ["Matcher"]

_SKIPS: Final = {"past last row": 0, "next row": 1, "first": 2, "last": 3, "no skip": NO_SKIP}
_TO_ROW: Final = re.compile(r'(?:(first|last)\s+)?(?:"(.+)"|(\w+))', re.IGNORECASE)


class Matcher:
    """A compiled pattern.

    Args:
        spec: the pattern.
        schema: of the rows.
        time: the column of event time, if there is one: TIMESTAMP without NULLs, which may be none of the
            schema's.
        rows_max: rows that the search for one match may look at; None: any number.

    Attributes:
        spec: the pattern.
        program: its automaton.
        is_numbered: whether matches' numbers are read.
        is_anchored: whether it asks for the first row of a partition.
        output: the schema of what is put out: measures, behind the columns of the row if each row is.
        back: how many rows before the next one to look at a call needs.

    Raises:
        SchemaError: it can't be compiled; the message names the part.
    """

    def __init__(
        self, spec: RowPattern, schema: pa.Schema, time: str | None, *, rows_max: int | None = None
    ) -> None:
        self.spec = spec
        node = parse_pattern(spec.pattern)
        self.program = program_of(node)
        texts = [text for _, text in spec.defines] + [text for _, text, _ in spec.measures]
        self.is_numbered = any("match_number" in text.lower() for text in texts)
        self.is_anchored = START in self.program.operations
        variables = _variables(spec, self.program.names)
        _check_time(spec, self.program, time)
        known = Schema.from_arrow(schema)
        conditions = Conditions(Leaves(known), variables)
        _define(spec, conditions, frozenset(mapped_names(node)))
        measures = Measures(spec.measures, known, variables)
        self.output = _output(spec, schema, measures.schema)
        self.back = max(conditions.leaves.back, measures.back)
        skip, skip_names = _after(spec, variables)
        tables, initial = _tables(self.program, conditions, skip_names)
        self._compiled = Compiled(
            spec, self.program, tables, initial, conditions.leaves, measures, skip, time,
            tuple(schema.names), self.output, self.back, NEVER if rows_max is None else rows_max,
            _beginning(node, conditions),
        )  # fmt: skip

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
        search = Search(self._compiled, rows, starts, resume, frontier_us)
        search.run(is_complete)
        return search.matches()


def _beginning(node: Node, conditions: Conditions) -> tuple[int | None, ...]:
    """The columns that say whether a match may begin with a row; see `Compiled`."""
    if can_be_empty(node):
        return (None,)
    found = [conditions.conditions[name] for name in first_names(node)]
    return tuple(one.leaf if one.kind == "column" and not one.ahead else None for one in found)


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


def _define(spec: RowPattern, conditions: Conditions, mapped: frozenset[str]) -> None:
    names = conditions.variables.names
    defines = {name.lower(): text for name, text in _named(spec.defines, "definition").items()}
    for name, _ in spec.defines:
        if name.lower() not in {one.lower() for one in names}:
            raise SchemaError(
                f"expected definitions of {known_names(names)}; found one of {name!r}"
                f"{hint(name, names)}"
                ". Use it in the pattern, or leave it out"
            )
    for name in names:
        text = defines.get(name.lower())
        if text is None and name not in mapped:
            raise SchemaError(
                f"expected a definition of {name}, as rows must not be it; found none. Define it"
            )
        conditions.define(name, text)


def _check_time(spec: RowPattern, program: Program, time: str | None) -> None:
    if spec.within_us is None and program.needs_within:
        raise SchemaError(
            "expected a time at which an absence at a pattern's end is over; found none. Bound the match "
            "with within=, or the absence as in !b WITHIN 5 minutes"
        )
    if time is None and (spec.within_us is not None or program.amounts):
        raise SchemaError(
            "expected rows with event time for a pattern with bounds of time; found rows without it"
        )


def _output(spec: RowPattern, schema: pa.Schema, measures: pa.Schema) -> pa.Schema:
    names = measures.names
    if twice := next((one for i, one in enumerate(names) if one in names[:i]), None):
        raise SchemaError(f"expected each measure once; found {twice!r} twice")
    if spec.rows == "one":
        if spec.unmatched:
            raise SchemaError(
                "expected all rows of a match where rows of no match are put out; found one row per match"
            )
        return measures
    if taken := next((one for one in names if one in schema.names), None):
        raise SchemaError(
            f"expected measures of other names than the columns of the rows; found {taken!r}. Rename it"
        )
    return pa.schema([*schema, *measures])


def _after(spec: RowPattern, variables: Variables) -> tuple[int, frozenset[str]]:
    """How the next match's first row is found, and the variables that say it."""
    text = " ".join(spec.after.split())
    if text.lower() in ("past last row", "next row", "no skip"):
        return _SKIPS[text.lower()], frozenset()
    found = _TO_ROW.fullmatch(text)
    names = variables.find((found[2] or found[3]).replace('""', '"')) if found else None
    if found is None or names is None:
        raise SchemaError(
            "expected after= 'past last row', 'next row', 'first x', 'last x' or 'no skip', where x is a "
            f"variable; found {spec.after!r}"
        )
    return _SKIPS[(found[1] or "last").lower()], names


def _tables(
    program: Program, conditions: Conditions, skip_names: frozenset[str]
) -> tuple[tuple[Vector, ...], Vector]:
    """The kernel's tables, and the registers before the first row."""
    # Registers: progress, deadlines; then those of conditions.
    first = 1 + program.deadlines
    initial = [0] + [NEVER] * program.deadlines + conditions.initial
    sets = [*program.sets, tuple(program.names.index(one) for one in sorted(skip_names))]
    found = [conditions.conditions[name] for name in program.names]
    updates = [conditions.updates.get(name, []) for name in program.names]
    code = [one for condition in found for one in _moved(condition, first)]
    flat = [one for some in updates for one in some]
    kinds = {"true": 0, "column": 1, "code": 2}
    tables = (
        program.operations, program.a, program.b, program.joins(), program.amounts,
        starts_of([len(one) for one in sets]), [one for some in sets for one in some],
        [kinds[one.kind] for one in found], [one.leaf for one in found],
        starts_of([len(one.code) for one in found]), [one.ahead for one in found],
        [one[0] for one in code], [one[1] for one in code], [one[2] for one in code],
        starts_of([len(one) for one in updates]),
        [one.kind for one in flat], [one.register + first for one in flat],
        [one.argument for one in flat],
    )  # fmt: skip
    return tuple(np.array(one, np.int64) for one in tables), np.array(initial, np.int64)


def _moved(condition: Condition, first: int) -> list[tuple[int, int, int]]:
    """Code, its registers behind those of the program."""
    moved = []
    for operation, a, b in condition.code:
        if operation == c.AT:
            moved.append((operation, a, b + first))
        elif operation in (c.COUNT, c.TOTAL, c.AVERAGE_I, c.AVERAGE_F):
            moved.append((operation, a + first, b))
        else:
            moved.append((operation, a, b))
    return moved
