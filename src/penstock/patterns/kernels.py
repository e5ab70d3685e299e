"""The compiled search of a row pattern: backtracking in order of preference, with a memory of what failed.

A *state* is an instruction, a row, and the registers. What lies before a state matters to nothing that comes behind it,
so a state that failed once fails again: each is tried once, and `(A* B*)* C` takes time in proportion to the rows
and the instructions. Where there are no registers, states that failed for one first row are remembered for the next
ones, too. With registers there may be as many states as there are ways: at most `states` are tried.

Where the search comes to the end of the rows, and more may come, all that follows depends on these: it stops.

Source: R. Cox, Regular Expression Matching: the Virtual Machine Approach (2009), for the memory; ISO/IEC 19075-5,
for the order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.patterns import program as p
from penstock.patterns.machine import bring_forward, true

__all__ = ["EVENTS", "FULL", "search"]

NEVER: Final = (1 << 63) - 1
"""A deadline that doesn't come."""

# What an attempt comes to.
_FAILED: Final = 0
_FOUND: Final = 1
_OPEN: Final = 2
_STACK_FULL: Final = 3
_MEMORY_FULL: Final = 4
_TOO_MANY: Final = 5

# Why the search stops before the last partition.
FULL: Final = {"done": 0, "output": 1, "stack": 3, "memory": 4}

# What it reports.
EVENTS: Final = {"match": 0, "timed out": 1, "partial": 2, "abandoned": 3}
_MATCHED, _TIMED_OUT, _PARTIAL, _ABANDONED = 0, 1, 2, 3

_INT = types.int64
_READ = types.Array(types.int64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 2, "C", readonly=True)
_FLOATS = types.Array(types.float64, 2, "C", readonly=True)
_VALID = types.Array(types.boolean, 2, "C", readonly=True)
_W_INT = types.int64[::1]
_W_I32 = types.int32[::1]
_W_FLOAT = types.float64[::1]
_W_BOOL = types.boolean[::1]
_BYTES = types.uint8[::1]

# The tables of a program: instructions, their sets, definitions with their code, and what becomes of registers.
_TABLES = types.UniTuple(_READ, 18)
_OPERATIONS, _A, _B, _JOINS, _AMOUNTS, _SET_STARTS, _SETS = 0, 1, 2, 3, 4, 5, 6
_KINDS, _LEAVES, _CODE_STARTS, _AHEAD, _CODE, _CODE_A, _CODE_B = 7, 8, 9, 10, 11, 12, 13
_UPDATE_STARTS, _UPDATES, _UPDATED, _UPDATE_ARGUMENTS = 14, 15, 16, 17
_TEXTS, _TIMES, _INITIAL = 0, 1, 2
_DATA = types.Tuple((_NUMBERS, _FLOATS, _VALID, types.UniTuple(_READ, 3)))

_MATCH, _TAKE, _SPLIT, _JUMP, _START, _END = p.MATCH, p.TAKE, p.SPLIT, p.JUMP, p.START, p.END
_CLEAR, _CHECK, _UNLESS, _PASS, _IF_ANY = p.CLEAR, p.CHECK, p.UNLESS, p.PASS, p.IF_ANY
_DEADLINE, _NO_DEADLINE, _ABSENT = p.DEADLINE, p.NO_DEADLINE, p.ABSENT

# What is said of an attempt and of the pattern, in one vector.
SETTINGS: Final = (
    "within", "frontier", "bits", "deadlines", "hashed", "width", "generation", "states", "measures ahead",
    "skip", "skip set", "decided",
)  # fmt: skip
_WITHIN, _FRONTIER, _BITS, _DEADLINES, _HASHED, _WIDTH, _GENERATION, _STATES = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
_MEASURES_AHEAD, _SKIP, _SKIP_SET, _DECIDED_AT = 8, 9, 10, 11

# What an attempt leaves, in another.
RESULT: Final = ("taken", "decided", "most", "was bounded", "row")
_TAKEN, _DECIDED, _MOST, _WAS_BOUNDED = 0, 1, 2, 3

_FRAME = 3
"""Numbers of a saved state besides registers: instruction, row, and how many rows were taken."""
_PROGRESS = 0
"""The register of bits: which iterations have a row."""


@njit(
    _INT(
        _TABLES, _DATA, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, _INT, _INT, _INT, _INT,
        _INT,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _is(
    tables: Any,
    data: Any,
    registers: Any,
    totals: Any,
    tried: Any,
    tried_totals: Any,
    ints: Any,
    floats: Any,
    null: Any,
    name: Any,
    row: Any,
    known: Any,
    number: Any,
    takes: Any,
) -> Any:
    """Whether a row is a variable: 1 or 0; 2 where rows behind `known` decide.

    Args:
        tables: of the program.
        data: of the rows.
        registers: of the state; `totals` are the same bits. Brought forward if `takes` is 1 and the row is it.
        totals: see there.
        tried: as many, for the rest; `tried_totals` are the same bits.
        tried_totals: see there.
        ints: the stack; `floats` are the same bits.
        floats: see there.
        null: of values on the stack.
        name: of the variable.
        row: the row.
        known: the end of the rows that are known, or a row that is never reached.
        number: of the match.
        takes: whether the row is taken if it is the variable.
    """
    numbers, doubles, valid, others = data
    kind = tables[_KINDS][name]
    if kind != 0 and row + tables[_AHEAD][name] >= known:
        return 2
    if kind == 1:
        leaf = tables[_LEAVES][name]
        if not valid[leaf, row] or numbers[leaf, row] == 0:
            return 0
    begin, end = tables[_UPDATE_STARTS][name], tables[_UPDATE_STARTS][name + 1]
    updates = (tables[_UPDATES], tables[_UPDATED], tables[_UPDATE_ARGUMENTS])
    if kind == 2:
        tried[:] = registers
        bring_forward(updates, begin, end, numbers, doubles, valid, tried, tried_totals, row)
        code = (tables[_CODE], tables[_CODE_A], tables[_CODE_B])
        first, last = tables[_CODE_STARTS][name], tables[_CODE_STARTS][name + 1]
        if not true(
            code, first, last, numbers, doubles, valid, others[_TEXTS], tried, tried_totals, ints, floats,
            null, row, number,
        ):  # fmt: skip
            return 0
        if takes:
            registers[:] = tried
    elif takes:
        bring_forward(updates, begin, end, numbers, doubles, valid, registers, totals, row)
    return 1


@njit(_INT(_W_INT, _W_I32, _W_INT, _W_INT, _INT, _INT, _INT, _INT), cache=True, nogil=True)
def _was_tried(
    settings: Any,
    stamps: Any,
    keys: Any,
    registers: Any,
    join: Any,
    row: Any,
    begin: Any,
    count: Any,
) -> Any:
    """Whether a state was tried before: 1 or 0, and then it is remembered; 2 where the memory is full.

    Args:
        settings: of the search.
        stamps: of each place of the memory, the generation that wrote it.
        keys: of states with registers.
        registers: of the state.
        join: the instruction's number among those that are remembered.
        row: of the state.
        begin: the partition's first row.
        count: how many states this attempt remembers.
    """
    generation = settings[_GENERATION]
    if settings[_HASHED] == 0:
        at = (join << settings[_BITS]) | registers[_PROGRESS]
        at = at * settings[_WIDTH] + row - begin
        if stamps[at] == generation:
            return 1
        stamps[at] = generation
        return 0
    size = 2 + len(registers)
    capacity = len(stamps)
    if 2 * count >= capacity:
        return 2
    mixed = np.uint64(join) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(row)
    for i in range(len(registers)):
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed += np.uint64(registers[i])
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    at = np.int64(mixed & np.uint64(capacity - 1))
    while stamps[at] == generation:
        base = at * size
        same = keys[base] == join and keys[base + 1] == row
        i = 0
        while same and i < len(registers):
            same = keys[base + 2 + i] == registers[i]
            i += 1
        if same:
            return 1
        at = (at + 1) & (capacity - 1)
    stamps[at] = generation
    base = at * size
    keys[base], keys[base + 1] = join, row
    keys[base + 2 : base + size] = registers
    return 0


@njit(_INT(_W_INT, _W_INT, _INT), cache=True, nogil=True)
def _limit(settings: Any, registers: Any, first_time: Any) -> Any:
    """The last time that the next row may have."""
    limit = NEVER
    if settings[_WITHIN] >= 0:
        limit = first_time + settings[_WITHIN]
    for i in range(settings[_DEADLINES]):
        limit = min(limit, registers[1 + i])
    return limit


@njit(
    _INT(
        _TABLES, _DATA, _W_INT, _W_INT, _W_I32, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_FLOAT, _W_INT,
        _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, types.UniTuple(_INT, 6),
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _attempt(  # noqa: C901, PLR0912, PLR0915 - one loop over the instructions, whose state is in variables
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
    where: Any,
) -> Any:
    """The preferred match that begins at a row.

    Args:
        tables: of the program.
        data: of the rows.
        settings: of the search.
        result: what there is to say of it.
        stamps: the memory.
        keys: likewise.
        stack: of states that are still to be tried.
        path: the rows that are taken.
        variables: which variable each of these is; of an excluded one, its complement.
        most: the longest path that was out of time: its rows, and behind them its variables.
        registers: see `penstock.patterns.conditions`; `totals` are the same bits.
        totals: see there.
        tried: as many; `tried_totals` are the same bits.
        tried_totals: see there.
        ints: the stack of conditions; `floats` are the same bits.
        floats: see there.
        null: of the values on it.
        where: the partition's first row and its end, whether it is complete, whether it begins here, the row, and
            the number of the match.
    """
    begin, end, complete, is_whole, start, number = where
    times, initial = data[3][_TIMES], data[3][_INITIAL]
    operations, first, second, joins = tables[_OPERATIONS], tables[_A], tables[_B], tables[_JOINS]
    known = end if complete == 0 else NEVER
    is_timed = len(times) > 0
    first_time = times[start] if is_timed and start < end else 0
    frontier = settings[_FRONTIER]
    width = len(registers)
    size = _FRAME + width
    registers[:] = initial
    pc, row, taken, top, count = 0, start, 0, 0, 0
    result[_MOST] = 0
    result[_WAS_BOUNDED] = 0
    while True:
        fails = False
        if joins[pc] >= 0:
            before = _was_tried(settings, stamps, keys, registers, joins[pc], row, begin, count)
            if before == 2:
                return _TOO_MANY if count >= settings[_STATES] else _MEMORY_FULL
            fails = before == 1
            count += 1
        if not fails:
            operation, a, b = operations[pc], first[pc], second[pc]
            if operation == _SPLIT:
                if (top + 1) * size > len(stack):
                    return _STACK_FULL
                base = top * size
                stack[base], stack[base + 1], stack[base + 2] = b, row, taken
                stack[base + 3 : base + size] = registers
                top += 1
                pc = a
                continue
            if operation == _JUMP:
                pc = a
                continue
            if operation == _MATCH:
                result[_TAKEN] = taken
                result[_DECIDED] = times[path[taken - 1]] if is_timed and taken > 0 else 0
                if settings[_DECIDED_AT] > 0:
                    result[_DECIDED] = max(result[_DECIDED], registers[settings[_DECIDED_AT]])
                last = path[taken - 1] if taken > 0 else start - 1
                if taken > 0 and last + settings[_MEASURES_AHEAD] >= known:
                    return _OPEN
                return _FOUND
            if operation == _START:
                fails = row != begin or is_whole == 0
            elif operation == _END:
                if row == end and complete == 0:
                    result[_TAKEN] = taken
                    return _OPEN
                fails = row < end
            elif operation == _CLEAR:
                registers[_PROGRESS] &= ~(1 << a)
            elif operation == _CHECK:
                fails = (registers[_PROGRESS] >> a) & 1 == 0
            elif operation == _NO_DEADLINE:
                registers[1 + a] = NEVER
            elif operation == _DEADLINE:
                if taken > 0:
                    registers[1 + a] = times[path[taken - 1]] + tables[_AMOUNTS][b]
            else:  # these look at the next row
                limit = _limit(settings, registers, first_time) if is_timed else NEVER
                if row >= end:
                    is_over = frontier > limit
                    if complete == 0 and not is_over:
                        result[_TAKEN] = taken
                        return _OPEN
                else:
                    is_over = is_timed and times[row] > limit
                if operation == _ABSENT:
                    result[_WAS_BOUNDED] = 1  # it ends at a time that the first row decides
                    if not (row >= end or is_over):
                        for i in range(tables[_SET_STARTS][a], tables[_SET_STARTS][a + 1]):
                            found = _is(
                                tables, data, registers, totals, tried, tried_totals, ints, floats, null,
                                tables[_SETS][i], row, known, number, 0,
                            )  # fmt: skip
                            if found == 2:
                                result[_TAKEN] = taken
                                return _OPEN
                            fails = fails or found == 1
                        if not fails:
                            row += 1
                            continue
                    else:
                        registers[settings[_DECIDED_AT]] = limit
                elif operation == _UNLESS:
                    if row < end and not is_over:
                        found = _is(
                            tables, data, registers, totals, tried, tried_totals, ints, floats, null, a, row,
                            known, number, 0,
                        )  # fmt: skip
                        if found == 2:
                            result[_TAKEN] = taken
                            return _OPEN
                        fails = found == 1
                elif row >= end or is_over:
                    fails = True
                    if is_over:
                        result[_WAS_BOUNDED] = 1
                        if taken > result[_MOST]:
                            result[_MOST] = taken
                            most[:taken] = path[:taken]
                            half = len(most) // 2
                            most[half : half + taken] = variables[:taken]
                elif operation == _TAKE:
                    found = _is(
                        tables, data, registers, totals, tried, tried_totals, ints, floats, null, a, row,
                        known, number, 1,
                    )  # fmt: skip
                    if found == 2:
                        result[_TAKEN] = taken
                        return _OPEN
                    fails = found == 0
                    if not fails:
                        path[taken] = row
                        variables[taken] = ~a if b == 1 else a
                        taken += 1
                        row += 1
                        registers[_PROGRESS] = (1 << settings[_BITS]) - 1
                else:  # PASS and IF_ANY
                    any_ = False
                    for i in range(tables[_SET_STARTS][a], tables[_SET_STARTS][a + 1]):
                        found = _is(
                            tables, data, registers, totals, tried, tried_totals, ints, floats, null,
                            tables[_SETS][i], row, known, number, 0,
                        )  # fmt: skip
                        if found == 2:
                            result[_TAKEN] = taken
                            return _OPEN
                        any_ = any_ or found == 1
                    if operation == _PASS:
                        fails = any_ or taken == 0
                        row += 1
                    elif any_:
                        pc = b
                        continue
        if not fails:
            pc += 1
            continue
        if top == 0:
            return _FAILED
        top -= 1
        base = top * size
        pc, row, taken = stack[base], stack[base + 1], stack[base + 2]
        registers[:] = stack[base + 3 : base + size]


@njit(_INT(_TABLES, _W_INT, _W_INT, _W_INT, _INT, _INT), cache=True, nogil=True)
def _next_row(tables: Any, settings: Any, path: Any, variables: Any, taken: Any, start: Any) -> Any:
    """Where the next match is looked for; below 0 where the row isn't there to skip to, or is the first one."""
    if taken == 0:
        return start + 1
    skip = settings[_SKIP]
    if skip == 0:
        return path[taken - 1] + 1
    if skip == 1:
        return start + 1
    found = -1
    begin, end = (
        tables[_SET_STARTS][settings[_SKIP_SET]],
        tables[_SET_STARTS][settings[_SKIP_SET] + 1],
    )
    for i in range(taken):
        name = variables[i] if variables[i] >= 0 else ~variables[i]
        for j in range(begin, end):
            if tables[_SETS][j] == name and (skip == 3 or found < 0):
                found = path[i]
    return found if found > start else -1


@njit(
    _INT(
        _TABLES, _DATA, _W_INT, _W_INT, _W_I32, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_FLOAT, _W_INT,
        _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, _READ, _BYTES, _BYTES, _W_INT, _W_INT, _BYTES, _W_INT, _W_INT,
        _W_INT, _W_INT,
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
    events: Any,
    rows: Any,
    row_variables: Any,
    state: Any,
) -> Any:
    """Looks for the matches of partitions, until one of its buffers is full: 0, or which.

    Args:
        tables: as in `_attempt`, as are all up to `null`.
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
        events: of seven numbers each: what, partition, first row, number, first of its rows in `rows`, time, and
            whether the row to skip to isn't there.
        rows: of all events.
        row_variables: likewise.
        state: the partition, how many events there are, how many of `rows` are used.
    """
    while state[0] < len(starts) - 1:
        i = state[0]
        begin, end = starts[i], starts[i + 1]
        settings[_GENERATION] += 1
        while at[i] < end:
            start = at[i]
            if (state[1] + 2) * 7 > len(events) or state[2] + 2 * (end - start) > len(rows):
                return 1
            if settings[_HASHED] == 1:
                settings[_GENERATION] += 1
            where = (
                begin,
                end,
                np.int64(complete[i]),
                np.int64(is_whole[i]),
                start,
                numbers[i] + 1,
            )
            found = _attempt(
                tables, data, settings, result, stamps, keys, stack, path, variables, most, registers,
                totals, tried, tried_totals, ints, floats, null, where,
            )  # fmt: skip
            if found == _STACK_FULL or found == _MEMORY_FULL:
                settings[_GENERATION] += 1
                return found
            used = state[2]
            event = state[1] * 7
            taken = result[_TAKEN]
            events[event + 1], events[event + 2], events[event + 3] = i, start, numbers[i] + 1
            events[event + 4], events[event + 5], events[event + 6] = used, result[_DECIDED], 0
            if found == _OPEN:
                if taken > 0:
                    events[event] = _PARTIAL
                    rows[used : used + taken] = path[:taken]
                    row_variables[used : used + taken] = variables[:taken]
                    state[1] += 1
                    state[2] += taken
                break
            if found == _FOUND:
                numbers[i] += 1
                events[event] = _MATCHED
                rows[used : used + taken] = path[:taken]
                row_variables[used : used + taken] = variables[:taken]
                covered[start] = 1
                for j in range(taken):
                    covered[path[j]] = 1
                state[1] += 1
                state[2] += taken
                target = _next_row(tables, settings, path, variables, taken, start)
                if target < 0:
                    events[event + 6] = 1
                    target = start + 1
                at[i] = target
                settings[_GENERATION] += 1
                continue
            if found == _TOO_MANY:
                events[event] = _ABANDONED
                state[1] += 1
                settings[_GENERATION] += 1
            elif result[_MOST] > 0:
                size, half = result[_MOST], len(most) // 2
                events[event] = _TIMED_OUT
                rows[used : used + size] = most[:size]
                row_variables[used : used + size] = most[half : half + size]
                state[1] += 1
                state[2] += size
            if result[_WAS_BOUNDED] == 1:
                settings[_GENERATION] += 1
            at[i] = start + 1
        state[0] += 1
    return 0
