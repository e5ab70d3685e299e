"""The compiled loop over partitions: one attempt after another, from each row at which a match may begin."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.patterns.attempt import (
    DATA,
    DECIDED,
    DUE,
    FOUND,
    FURTHEST,
    GENERATION,
    HASHED,
    MEMORY_FULL,
    MOST,
    NO_SKIP,
    OPEN,
    SET_STARTS,
    SETS,
    SKIP,
    SKIP_SET,
    STACK_FULL,
    TABLES,
    TAKEN,
    TIMES,
    TOO_LONG,
    TOO_MANY,
    WAS_BOUNDED,
    attempt,
)

__all__ = ["EVENTS", "FULL", "search"]

# Why the search stops before the last partition.
FULL: Final = {"done": 0, "output": 1, "stack": 3, "memory": 4}

# What it reports.
EVENTS: Final = {"match": 0, "timed out": 1, "partial": 2, "abandoned": 3}
_MATCHED, _TIMED_OUT, _PARTIAL, _ABANDONED = 0, 1, 2, 3

_INT = types.int64
_READ = types.Array(types.int64, 1, "C", readonly=True)
_W_INT = types.int64[::1]
_W_I32 = types.int32[::1]
_W_FLOAT = types.float64[::1]
_W_BOOL = types.boolean[::1]
_BYTES = types.uint8[::1]


@njit(_INT(TABLES, _W_INT, _W_INT, _W_INT, _INT, _INT), cache=True, nogil=True)
def _next_row(tables: Any, settings: Any, path: Any, variables: Any, taken: Any, start: Any) -> Any:
    """Where the next match is looked for; below 0 where the row isn't there to skip to, or is the first
    one.
    """
    if taken == 0:
        return start + 1
    skip = settings[SKIP]
    if skip == 0:
        return path[taken - 1] + 1
    if skip == 1:
        return start + 1
    found = -1
    begin, end = (
        tables[SET_STARTS][settings[SKIP_SET]],
        tables[SET_STARTS][settings[SKIP_SET] + 1],
    )
    for i in range(taken):
        name = variables[i] if variables[i] >= 0 else ~variables[i]
        for j in range(begin, end):
            if tables[SETS][j] == name and (skip == 3 or found < 0):
                found = path[i]
    return found if found > start else -1


@njit(
    _INT(
        TABLES, DATA, _W_INT, _W_INT, _W_I32, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_FLOAT,
        _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, _READ, _BYTES, _BYTES, _W_INT, _W_INT, _BYTES, _W_INT,
        _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _BYTES,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def search(
    tables: Any,
    data: Any,
    settings: Any,
    result: Any,
    stamps: Any,
    keys: Any,
    stack: Any,
    path: Any,
    variables: Any,
    most: Any,
    registers: Any,
    totals: Any,
    tried: Any,
    tried_totals: Any,
    ints: Any,
    floats: Any,
    null: Any,
    starts: Any,
    complete: Any,
    is_whole: Any,
    at: Any,
    numbers: Any,
    covered: Any,
    certain: Any,
    passed: Any,
    due: Any,
    events: Any,
    rows: Any,
    row_variables: Any,
    state: Any,
    begins: Any,
) -> Any:
    """Looks for the matches of partitions, until one of its buffers is full: 0, or which.

    Args:
        tables: as in `attempt`, as are all up to `null`.
        data: see there.
        settings: see there.
        result: see there.
        stamps: see there.
        keys: see there.
        stack: see there.
        path: see there.
        variables: see there.
        most: see there.
        registers: see there.
        totals: see there.
        tried: see there.
        tried_totals: see there.
        ints: see there.
        floats: see there.
        null: see there.
        starts: the first row of each partition, and the end of the last one.
        complete: whether a partition gets no further rows.
        is_whole: whether a partition begins with the first row that is here.
        at: the row of each partition at which its next match is looked for.
        numbers: how many matches each had.
        covered: whether a row is of a match.
        certain: of each partition, the time at which all attempts so far were decided.
        passed: of each row, the time at which the search passed it.
        due: of each partition, after which time its open attempt is decided though no row comes.
        events: of seven numbers each: what, partition, first row, number, first of its rows in `rows`, time,
            and whether the row to skip to isn't there.
        rows: of all events.
        row_variables: likewise.
        state: the partition, how many events there are, how many of `rows` are used; if all matches are
            wanted, also how many were reported from the row at which the search is, and whether it goes on
            from there.
        begins: whether a match may begin with a row.
    """
    times = data[3][TIMES]
    while state[0] < len(starts) - 1:
        i = state[0]
        begin, end = starts[i], starts[i + 1]
        settings[GENERATION] += 1
        while at[i] < end:
            start = at[i]
            if begins[start] == 0:
                if len(times) > 0:
                    certain[i] = max(certain[i], times[start])
                passed[start] = certain[i]
                at[i] = start + 1
                continue
            if (state[1] + 2) * 7 > len(events) or state[2] + 2 * (end - start) > len(rows):
                return 1
            if settings[HASHED] == 1:
                settings[GENERATION] += 1
            all_ways = settings[SKIP] == NO_SKIP
            where = (
                begin,
                end,
                np.int64(complete[i]),
                np.int64(is_whole[i]),
                start,
                numbers[i] + 1,
                state[4],
            )
            found = attempt(
                tables, data, settings, result, stamps, keys, stack, path, variables, most, registers,
                totals, tried, tried_totals, ints, floats, null, where,
            )  # fmt: skip
            if found in (STACK_FULL, MEMORY_FULL):
                settings[GENERATION] += 1
                state[4] = 1 if all_ways else 0
                return found
            used = state[2]
            event = state[1] * 7
            taken = result[TAKEN]
            if found == OPEN:
                due[i] = result[DUE]
            else:
                certain[i] = max(certain[i], result[DECIDED])
            events[event + 1], events[event + 2], events[event + 3] = i, start, numbers[i] + 1
            events[event + 4], events[event + 5], events[event + 6] = used, certain[i], 0
            if found == OPEN:
                if taken > 0:
                    events[event] = _PARTIAL
                    rows[used : used + taken] = path[:taken]
                    row_variables[used : used + taken] = variables[:taken]
                    state[1] += 1
                    state[2] += taken
                numbers[i] -= state[3]  # matches from here are reported again
                break
            if found == FOUND:
                numbers[i] += 1
                events[event] = _MATCHED
                rows[used : used + taken] = path[:taken]
                row_variables[used : used + taken] = variables[:taken]
                covered[start] = 1
                for j in range(taken):
                    covered[path[j]] = 1
                state[1] += 1
                state[2] += taken
                if all_ways:
                    # What failed is forgotten, as what leads to this match isn't known from it.
                    settings[GENERATION] += 1
                    state[3] += 1
                    state[4] = 1
                    continue
                target = _next_row(tables, settings, path, variables, taken, start)
                if target < 0:
                    events[event + 6] = 1
                    target = start + 1
                at[i] = target
                passed[start : min(target, end)] = certain[i]
                settings[GENERATION] += 1
                continue
            if found in (TOO_MANY, TOO_LONG):
                events[event] = _ABANDONED
                rows[used] = max(result[FURTHEST] - 1, start)
                state[1] += 1
                state[2] += 1
                settings[GENERATION] += 1
                at[i] = max(result[FURTHEST], start + 1)
                passed[start : min(at[i], end)] = certain[i]
                state[3], state[4] = 0, 0
                continue
            if result[MOST] > 0 and state[3] == 0:
                size, half = result[MOST], len(most) // 2
                events[event] = _TIMED_OUT
                rows[used : used + size] = most[:size]
                row_variables[used : used + size] = most[half : half + size]
                state[1] += 1
                state[2] += size
            if result[WAS_BOUNDED] == 1:
                settings[GENERATION] += 1
            at[i] = start + 1
            passed[start] = certain[i]
            state[3], state[4] = 0, 0
        state[0] += 1
        state[3], state[4] = 0, 0
    return 0
