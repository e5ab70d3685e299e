"""The compiled search of a row pattern: backtracking in order of preference, with a memory of what failed.

A *state* is an instruction, a row, and the registers. What lies before a state matters to nothing that comes
behind it, so a state that failed once fails again: each is tried once, and `(A* B*)* C` takes time in
proportion to the rows and the instructions. Where there are no registers, states that failed for one first
row are remembered for the next ones, too.

With registers there may be as many states as there are ways. Some are tried for each first row, and more for
each row that is looked at. Then the search is given up for all rows that it looked at, so that adversaries
have to pay for it with rows. Whether it is given up depends on these rows alone, not on the calls that they
come in.

Where the search comes to the end of the rows, and more may come, all that follows depends on these: it stops.

Source: R. Cox, Regular Expression Matching: the Virtual Machine Approach (2009), for the memory; ISO/IEC
    19075-5,
for the order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.patterns import program as p
from penstock.patterns.machine import bring_forward, true

__all__ = [
    "DATA", "DECIDED", "DUE", "FOUND", "FRAME", "FURTHEST", "GENERATION", "HASHED", "MEMORY_FULL", "MOST",
    "NEVER", "NO_SKIP", "OPEN", "RESULT", "SETS", "SETTINGS", "SET_STARTS", "SKIP", "SKIP_SET",
    "STACK_FULL", "TABLES", "TAKEN", "TIMES", "TOO_LONG", "TOO_MANY", "WAS_BOUNDED", "attempt",
]  # fmt: skip

NEVER: Final = (1 << 63) - 1
"""A deadline that doesn't come."""

# What an attempt comes to.
FAILED: Final = 0
FOUND: Final = 1
OPEN: Final = 2
STACK_FULL: Final = 3
MEMORY_FULL: Final = 4
TOO_MANY: Final = 5
TOO_LONG: Final = 6

_INT = types.int64
_READ = types.Array(types.int64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 2, "C", readonly=True)
_FLOATS = types.Array(types.float64, 2, "C", readonly=True)
_VALID = types.Array(types.boolean, 2, "C", readonly=True)
_W_INT = types.int64[::1]
_W_I32 = types.int32[::1]
_W_FLOAT = types.float64[::1]
_W_BOOL = types.boolean[::1]

# The tables of a program: instructions, their sets, definitions with their code, and what becomes of
# registers.
TABLES = types.UniTuple(_READ, 18)
_OPERATIONS, _A, _B, _JOINS, _AMOUNTS, SET_STARTS, SETS = 0, 1, 2, 3, 4, 5, 6
_KINDS, _LEAVES, _CODE_STARTS, _AHEAD, _CODE, _CODE_A, _CODE_B = 7, 8, 9, 10, 11, 12, 13
_UPDATE_STARTS, _UPDATES, _UPDATED, _UPDATE_ARGUMENTS = 14, 15, 16, 17
_TEXTS, TIMES, _INITIAL = 0, 1, 2
DATA = types.Tuple((_NUMBERS, _FLOATS, _VALID, types.UniTuple(_READ, 3)))

_MATCH, _TAKE, _SPLIT, _JUMP, _START, _END = p.MATCH, p.TAKE, p.SPLIT, p.JUMP, p.START, p.END
_CLEAR, _CHECK, _UNLESS, _PASS, _IF_ANY = p.CLEAR, p.CHECK, p.UNLESS, p.PASS, p.IF_ANY
_DEADLINE, _NO_DEADLINE, _ABSENT = p.DEADLINE, p.NO_DEADLINE, p.ABSENT

# What is said of an attempt and of the pattern, in one vector.
SETTINGS: Final = (
    "within", "frontier", "bits", "deadlines", "hashed", "width", "generation", "states", "states per row",
    "measures ahead", "skip", "skip set", "rows",
)  # fmt: skip
_WITHIN, _FRONTIER, _BITS, _DEADLINES, HASHED, _WIDTH, GENERATION, _STATES = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
_STATES_PER_ROW, _MEASURES_AHEAD, SKIP, SKIP_SET, _ROWS = 8, 9, 10, 11, 12

# What an attempt leaves, in another.
RESULT: Final = ("taken", "decided", "most", "was bounded", "furthest", "due", "top", "count")
TAKEN, DECIDED, MOST, WAS_BOUNDED, FURTHEST, DUE, _TOP, _COUNT = 0, 1, 2, 3, 4, 5, 6, 7
NO_SKIP: Final = 4
"""The way to skip of a pattern of which all matches are wanted, not only the preferred one from each row."""

FRAME: Final = 3
"""Numbers of a saved state besides registers: instruction, row, and how many rows were taken."""
_PROGRESS = 0
"""The register of bits: which iterations have a row."""


@njit(types.void(_W_INT, _READ, _INT, _INT, _INT), cache=True, nogil=True)
def _saw(result: Any, times: Any, row: Any, end: Any, limit: Any) -> None:
    """Notes that an attempt has looked at a row: it isn't decided before that one's time, or a limit."""
    if len(times) > 0 and row < end:
        result[DECIDED] = max(result[DECIDED], min(times[row], limit))


@njit(
    _INT(
        TABLES, DATA, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, _INT, _INT, _INT, _INT,
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
        registers: of the state; `totals` are the same bits. Brought forward if `takes` is 1 and the row is
            it.
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
            code, first, last, numbers, valid, others[_TEXTS], tried, tried_totals, ints, floats,
            null, row, number,
        ):  # fmt: skip
            return 0
        if takes:
            registers[:] = tried
    elif takes:
        bring_forward(updates, begin, end, numbers, doubles, valid, registers, totals, row)
    return 1


@njit(
    _INT(
        TABLES, DATA, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, _INT, _INT, _INT, _INT,
        _W_INT,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _is_any(
    tables: Any,
    data: Any,
    registers: Any,
    totals: Any,
    tried: Any,
    tried_totals: Any,
    ints: Any,
    floats: Any,
    null: Any,
    names: Any,
    row: Any,
    known: Any,
    number: Any,
    result: Any,
) -> Any:
    """Whether a row is one of the set `names` of variables; otherwise as `_is`. `result` has what it saw."""
    any_ = 0
    for i in range(tables[SET_STARTS][names], tables[SET_STARTS][names + 1]):
        found = _is(
            tables, data, registers, totals, tried, tried_totals, ints, floats, null, tables[SETS][i],
            row, known, number, 0,
        )  # fmt: skip
        if found == 2:
            return 2
        ahead = tables[_AHEAD][tables[SETS][i]]
        if ahead > 0:
            _saw(result, data[3][TIMES], row + ahead, len(data[3][TIMES]), NEVER)
        any_ |= found
    return any_


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
    generation = settings[GENERATION]
    if settings[HASHED] == 0:
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
        TABLES, DATA, _W_INT, _W_INT, _W_I32, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_INT, _W_FLOAT,
        _W_INT, _W_FLOAT, _W_INT, _W_FLOAT, _W_BOOL, types.UniTuple(_INT, 7),
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def attempt(  # one loop over the instructions, whose state is in variables
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
        where: the partition's first row and its end, whether it is complete, whether it begins here, the row,
            the number of the match, and whether the search goes on: for the next match from there, or after
            it wanted room for its stack.
    """
    begin, end, complete, is_whole, start, number, again = where
    times, initial = data[3][TIMES], data[3][_INITIAL]
    operations, first, second, joins = tables[_OPERATIONS], tables[_A], tables[_B], tables[_JOINS]
    kinds, leaves, ahead, updates = (
        tables[_KINDS], tables[_LEAVES], tables[_AHEAD], tables[_UPDATE_STARTS]
    )  # fmt: skip
    numbers, _, valid, _ = data
    known = end if complete == 0 else NEVER
    is_timed = len(times) > 0
    first_time = times[start] if is_timed and start < end else 0
    frontier = settings[_FRONTIER]
    width = len(registers)
    size = FRAME + width
    pc, row, taken, top, count, furthest = 0, start, 0, 0, 0, start
    if again == 1:
        top, count, furthest = result[_TOP], result[_COUNT], result[FURTHEST]
    else:
        registers[:] = initial
        result[MOST] = 0
        result[WAS_BOUNDED] = 0
        result[DECIDED] = first_time
    result[DUE] = NEVER
    goes_on = again == 1
    while True:
        fails = goes_on
        goes_on = False
        if not fails and joins[pc] >= 0:
            furthest = max(furthest, row)
            most_states = settings[_STATES] + settings[_STATES_PER_ROW] * (furthest - start)
            if (settings[HASHED] == 1 or settings[SKIP] == NO_SKIP) and count >= most_states:
                result[FURTHEST] = furthest
                return TOO_MANY
            before = _was_tried(settings, stamps, keys, registers, joins[pc], row, begin, count)
            if before == 2:
                base = top * size
                stack[base], stack[base + 1], stack[base + 2] = pc, row, taken
                stack[base + FRAME : base + size] = registers
                result[_TOP], result[FURTHEST], result[_COUNT] = top + 1, furthest, count
                return MEMORY_FULL
            fails = before == 1
            count += 1
        if not fails:
            operation, a, b = operations[pc], first[pc], second[pc]
            if operation == _SPLIT:
                base = top * size
                if (top + 2) * size > len(stack):  # room for this state itself
                    stack[base], stack[base + 1], stack[base + 2] = pc, row, taken
                    stack[base + FRAME : base + size] = registers
                    result[_TOP], result[FURTHEST] = top + 1, furthest
                    result[_COUNT] = count - 1 if joins[pc] >= 0 else count
                    return STACK_FULL
                stack[base], stack[base + 1], stack[base + 2] = b, row, taken
                stack[base + FRAME : base + size] = registers
                top += 1
                pc = a
                continue
            if operation == _JUMP:
                pc = a
                continue
            if operation == _MATCH:
                result[TAKEN] = taken
                result[_TOP], result[_COUNT], result[FURTHEST] = top, count, furthest
                last = path[taken - 1] if taken > 0 else start - 1
                if taken > 0 and last + settings[_MEASURES_AHEAD] >= known:
                    return OPEN
                if taken > 0 and settings[_MEASURES_AHEAD] > 0:
                    _saw(result, times, last + settings[_MEASURES_AHEAD], end, NEVER)
                return FOUND
            if operation == _START:
                fails = row != begin or is_whole == 0
            elif operation == _END:
                if row == end and complete == 0:
                    result[TAKEN] = taken
                    return OPEN
                fails = row < end
                _saw(result, times, row, end, NEVER)
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
                        result[TAKEN] = taken
                        result[DUE] = limit
                        return OPEN
                    if is_timed and complete == 0:
                        result[DECIDED] = max(result[DECIDED], limit)
                else:
                    is_over = is_timed and times[row] > limit
                    _saw(result, times, row, end, limit)
                    if row - start >= settings[_ROWS] and not is_over:
                        result[FURTHEST] = start + 1
                        return TOO_LONG
                found = 0
                if row >= end or is_over:
                    pass
                elif operation != _TAKE:
                    found = _is_any(
                        tables, data, registers, totals, tried, tried_totals, ints, floats, null, a, row,
                        known, number, result,
                    )  # fmt: skip
                elif kinds[a] == 2 or updates[a] < updates[a + 1]:
                    found = _is(
                        tables, data, registers, totals, tried, tried_totals, ints, floats, null, a, row,
                        known, number, 1,
                    )  # fmt: skip
                    _saw(result, times, row + ahead[a], end, NEVER)
                elif kinds[a] == 1:  # a call would cost more than all the rest
                    found = 2
                    if row + ahead[a] < known:
                        found = int(valid[leaves[a], row] and numbers[leaves[a], row] != 0)
                        _saw(result, times, row + ahead[a], end, NEVER)
                else:
                    found = 1
                if found == 2:
                    result[TAKEN] = taken
                    return OPEN
                if operation == _UNLESS:
                    fails = found == 1
                elif operation == _ABSENT:
                    result[WAS_BOUNDED] = 1  # it ends at a time that the first row decides
                    fails = found == 1
                    if not fails and row < end and not is_over:
                        row += 1
                        continue
                elif row >= end or is_over:
                    fails = True
                    if is_over:
                        result[WAS_BOUNDED] = 1
                        if taken > result[MOST]:
                            result[MOST] = taken
                            most[:taken] = path[:taken]
                            half = len(most) // 2
                            most[half : half + taken] = variables[:taken]
                elif operation == _TAKE:
                    fails = found == 0
                    if not fails:
                        path[taken] = row
                        variables[taken] = ~a if b == 1 else a
                        taken += 1
                        row += 1
                        registers[_PROGRESS] = (1 << settings[_BITS]) - 1
                elif operation == _PASS:
                    fails = found == 1 or taken == 0
                    row += 1
                elif found == 1:  # IF_ANY
                    pc = b
                    continue
        if not fails:
            pc += 1
            continue
        if top == 0:
            return FAILED
        top -= 1
        base = top * size
        pc, row, taken = stack[base], stack[base + 1], stack[base + 2]
        registers[:] = stack[base + FRAME : base + size]
