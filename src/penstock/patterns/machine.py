"""The compiled stack machine: conditions over matched rows, and the registers that they read."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.kernels import njit, types
from penstock.patterns import operations as c

__all__ = ["bring_forward", "true"]

_INT = types.int64
_READ = types.Array(types.int64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 2, "C", readonly=True)
_FLOATS = types.Array(types.float64, 2, "C", readonly=True)
_VALID = types.Array(types.boolean, 2, "C", readonly=True)
_W_INT = types.int64[::1]
_W_FLOAT = types.float64[::1]
_W_BOOL = types.boolean[::1]

_HERE, _AT, _CONSTANT, _COUNT, _TOTAL = c.HERE, c.AT, c.CONSTANT, c.COUNT, c.TOTAL
_AVERAGE_I, _AVERAGE_F, _NUMBER, _TEXT = c.AVERAGE_I, c.AVERAGE_F, c.NUMBER, c.TEXT
_FLOAT, _SCALE, _NEGATE_I, _NEGATE_F, _NOT, _IS_NULL = (
    c.FLOAT, c.SCALE, c.NEGATE_I, c.NEGATE_F, c.NOT, c.IS_NULL,
)  # fmt: skip
_ADD_I, _SUBTRACT_I, _MULTIPLY_I = c.ADD_I, c.SUBTRACT_I, c.MULTIPLY_I
_DIVIDE_I, _REMAINDER_I = c.DIVIDE_I, c.REMAINDER_I
_ADD_F, _SUBTRACT_F, _MULTIPLY_F, _DIVIDE_F = c.ADD_F, c.SUBTRACT_F, c.MULTIPLY_F, c.DIVIDE_F
_COMPARE_I, _COMPARE_F, _AND, _OR = c.COMPARE_I, c.COMPARE_F, c.AND, c.OR
_CHOOSE, _OTHERWISE = c.CHOOSE, c.OTHERWISE
_LAST, _FIRST, _COUNTED, _SUM_I, _SUM_F = c.LAST, c.FIRST, c.COUNTED, c.SUM_I, c.SUM_F
_MIN_I, _MIN_F, _MAX_I = c.MIN_I, c.MIN_F, c.MAX_I
_BROKEN = -(1 << 62)
"""How many values a total has that overflowed: it stays below 0."""
_I64_MAX = (1 << 63) - 1


@njit(types.int64(_INT, _INT, _INT), cache=True, nogil=True)
def _product_fits(x: Any, y: Any, made: Any) -> Any:
    """Whether `made`, the lower 64 bits of a product, is the product: 1 or 0."""
    if x == 0 or y == 0:
        return 1
    if (x == -1 and y < -_I64_MAX) or (y == -1 and x < -_I64_MAX):
        return 0
    return 1 if made // y == x and made % y == 0 else 0


@njit(types.int64(_INT, _INT, _INT), cache=True, nogil=True)
def _compared(which: Any, less: Any, more: Any) -> Any:
    """Whether a comparison holds: 1 or 0."""
    if which == 0:
        return 1 - (less | more)
    if which == 1:
        return less | more
    if which == 2:
        return less
    if which == 3:
        return 1 - more
    if which == 4:
        return more
    return 1 - less


@njit(types.int64(types.float64, types.float64), cache=True, nogil=True)
def _below(x: Any, y: Any) -> Any:
    """Whether one double is less than another; NaN is the greatest."""
    if np.isnan(x):
        return 0
    return 1 if np.isnan(y) or x < y else 0


@njit(
    types.void(_INT, _W_INT, _W_BOOL, _INT),
    cache=True,
    nogil=True,
)
def _whole(operation: Any, ints: Any, null: Any, top: Any) -> None:
    """An operation on two whole numbers: the result takes the place of the first. What overflows is NULL."""
    x, y = ints[top], ints[top + 1]
    null[top] = null[top] or null[top + 1]
    if null[top]:
        return
    if operation == _ADD_I:
        ints[top] = x + y
        null[top] = (x >= 0) == (y >= 0) and (ints[top] >= 0) != (x >= 0)
    elif operation == _SUBTRACT_I:
        ints[top] = x - y
        null[top] = (x >= 0) != (y >= 0) and (ints[top] >= 0) != (x >= 0)
    elif operation == _MULTIPLY_I:
        ints[top] = x * y
        null[top] = _product_fits(x, y, ints[top]) == 0
    elif y == 0 or (y == -1 and x < -_I64_MAX):
        null[top] = True
    else:
        quotient = abs(x) // abs(y)
        if (x < 0) != (y < 0):
            quotient = -quotient
        ints[top] = quotient if operation == _DIVIDE_I else x - quotient * y


@njit(
    types.void(_INT, _W_FLOAT, _W_BOOL, _INT),
    cache=True,
    nogil=True,
)
def _double(operation: Any, floats: Any, null: Any, top: Any) -> None:
    """An operation on two doubles: the result takes the place of the first."""
    x, y = floats[top], floats[top + 1]
    null[top] = null[top] or null[top + 1]
    if null[top]:
        return
    if operation == _ADD_F:
        floats[top] = x + y
    elif operation == _SUBTRACT_F:
        floats[top] = x - y
    elif operation == _MULTIPLY_F:
        floats[top] = x * y
    elif operation == _DIVIDE_F:
        if y != 0.0:
            floats[top] = x / y
        elif x == 0.0 or np.isnan(x):
            floats[top] = np.nan
        else:
            floats[top] = np.inf if (x > 0.0) == (np.copysign(1.0, y) > 0.0) else -np.inf
    else:
        floats[top] = np.nan if y == 0.0 else np.fmod(x, y)


@njit(types.void(_INT, _W_INT, _W_BOOL, _INT), cache=True, nogil=True)
def _logical(operation: Any, ints: Any, null: Any, top: Any) -> None:
    """AND or OR of two conditions: the result takes the place of the first."""
    decides = 0 if operation == _AND else 1
    x_decides = not null[top] and ints[top] == decides
    y_decides = not null[top + 1] and ints[top + 1] == decides
    if x_decides or y_decides:
        ints[top] = decides
        null[top] = False
    else:
        null[top] = null[top] or null[top + 1]
        ints[top] = 1 - decides


@njit(
    types.int64(
        types.UniTuple(_READ, 3), _INT, _INT, _NUMBERS, _VALID, _READ, _W_INT, _W_FLOAT, _W_INT, _W_FLOAT,
        _W_BOOL, _INT, _INT,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def true(
    code: Any,
    begin: Any,
    end: Any,
    numbers: Any,
    valid: Any,
    texts: Any,
    registers: Any,
    totals: Any,
    ints: Any,
    floats: Any,
    null: Any,
    row: Any,
    number: Any,
) -> Any:
    """Whether a condition is true: 1 or 0.

    Args:
        code: operations, and their two arguments.
        begin: the condition's first operation.
        end: where it ends.
        numbers: the parts of each row.
        valid: which of them aren't NULL.
        texts: the codes of constant texts.
        registers: see `penstock.patterns.conditions`; `totals` are the same bits.
        totals: see there.
        ints: the stack; `floats` are the same bits.
        floats: see there.
        null: of values on the stack.
        row: that the condition is about.
        number: of the match.
    """
    operations, first, second = code
    top = -1
    for i in range(begin, end):
        operation, a, b = operations[i], first[i], second[i]
        if operation <= _TEXT:
            top += 1
            null[top] = False
            if operation == _HERE:
                ints[top] = numbers[a, row]
                null[top] = not valid[a, row]
            elif operation == _AT:
                at = registers[b]
                if at < 0:
                    at = numbers.shape[1] - 1
                ints[top] = numbers[a, at]
                null[top] = not valid[a, at]
            elif operation == _CONSTANT:
                ints[top] = a
                null[top] = b == 1
            elif operation == _COUNT:
                ints[top] = registers[a]
            elif operation == _NUMBER:
                ints[top] = number
            elif operation == _TEXT:
                ints[top] = texts[a]
            else:
                count = registers[a + 1]
                null[top] = count <= 0
                ints[top] = registers[a]
                if operation == _AVERAGE_F and count > 0:
                    floats[top] = totals[a] / count
                elif operation == _AVERAGE_I and count > 0:
                    floats[top] = registers[a] / count / 10.0**b
        elif operation == _FLOAT:
            floats[top] = ints[top] / 10.0**a
        elif operation == _SCALE:
            made = ints[top] * a
            null[top] = null[top] or _product_fits(ints[top], a, made) == 0
            ints[top] = made
        elif operation == _NEGATE_I:
            null[top] = null[top] or ints[top] < -_I64_MAX
            ints[top] = -ints[top]
        elif operation == _NEGATE_F:
            floats[top] = -floats[top]
        elif operation == _NOT:
            ints[top] = 1 - ints[top]
        elif operation == _IS_NULL:
            ints[top] = 1 if null[top] else 0
            null[top] = False
        elif operation == _CHOOSE:
            top -= 2
            from_ = top + 1 if not null[top] and ints[top] == 1 else top + 2
            ints[top], null[top] = ints[from_], null[from_]
        else:
            top -= 1
            if operation <= _REMAINDER_I:
                _whole(operation, ints, null, top)
            elif operation == _COMPARE_I:
                null[top] = null[top] or null[top + 1]
                less = 1 if ints[top] < ints[top + 1] else 0
                more = 1 if ints[top] > ints[top + 1] else 0
                ints[top] = _compared(a, less, more)
            elif operation == _COMPARE_F:
                null[top] = null[top] or null[top + 1]
                less = _below(floats[top], floats[top + 1])
                more = _below(floats[top + 1], floats[top])
                ints[top] = _compared(a, less, more)
            elif operation in (_AND, _OR):
                _logical(operation, ints, null, top)
            elif operation == _OTHERWISE:
                if null[top]:
                    ints[top], null[top] = ints[top + 1], null[top + 1]
            else:
                _double(operation, floats, null, top)
    return 1 if not null[0] and ints[0] == 1 else 0


@njit(
    types.void(
        types.UniTuple(_READ, 3), _INT, _INT, _NUMBERS, _FLOATS, _VALID, _W_INT, _W_FLOAT, _INT
    ),
    cache=True,
    nogil=True,
)
def bring_forward(
    updates: Any,
    begin: Any,
    end: Any,
    numbers: Any,
    doubles: Any,
    valid: Any,
    registers: Any,
    totals: Any,
    row: Any,
) -> None:
    """Brings registers forward with a row that is taken.

    Args:
        updates: kinds, registers, and arguments.
        begin: the first one of the row's variable.
        end: where they end.
        numbers: as in `true`; `doubles` are the same bits.
        doubles: see there.
        valid: likewise.
        registers: likewise.
        totals: likewise.
        row: that is taken.
    """
    kinds, places, arguments = updates
    for i in range(begin, end):
        kind, at, leaf = kinds[i], places[i], arguments[i]
        if kind == _LAST:
            for j in range(at + leaf, at, -1):
                registers[j] = registers[j - 1]
            registers[at] = row
        elif kind == _FIRST:
            for j in range(at, at + leaf + 1):
                if registers[j] < 0:
                    registers[j] = row
                    break
        elif leaf >= 0 and not valid[leaf, row]:
            pass
        elif kind == _COUNTED:
            registers[at] += 1
        else:
            count = registers[at + 1]
            registers[at + 1] = count + 1
            if kind == _SUM_F:
                totals[at] = doubles[leaf, row] + (totals[at] if count else 0.0)
            elif kind == _SUM_I:
                x, y = registers[at], numbers[leaf, row]
                registers[at] = x + y
                if (x >= 0) == (y >= 0) and (registers[at] >= 0) != (x >= 0):
                    registers[at + 1] = _BROKEN
            elif count == 0:
                registers[at] = numbers[leaf, row]
            elif kind == _MIN_I:
                registers[at] = min(registers[at], numbers[leaf, row])
            elif kind == _MAX_I:
                registers[at] = max(registers[at], numbers[leaf, row])
            elif kind == _MIN_F:
                if _below(doubles[leaf, row], totals[at]):
                    totals[at] = doubles[leaf, row]
            elif _below(totals[at], doubles[leaf, row]):
                totals[at] = doubles[leaf, row]
