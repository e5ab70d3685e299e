"""What conditions over matched rows are computed with: a stack machine's operations, and the types of
values.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.patterns.leaves import Kind

# What the stack machine does. `_I` is of whole numbers, `_F` of doubles.
HERE: Final = 0
"""Part a at the row."""
AT: Final = 1
"""Part a at the row that register b has; below 0 it is that of no row, which is the last one."""
CONSTANT: Final = 2
"""The number a; b = 1: NULL."""
COUNT: Final = 3
"""Register a."""
TOTAL: Final = 4
"""Register a; NULL if the one behind it is 0."""
AVERAGE_I: Final = 5
AVERAGE_F: Final = 6
NUMBER: Final = 7
"""The number of the match."""
TEXT: Final = 8
"""The constant text a."""
FLOAT: Final = 9
"""The whole number on top as a double, divided by 10 ** a."""
SCALE: Final = 10
"""Times a."""
ADD_I: Final = 11
SUBTRACT_I: Final = 12
MULTIPLY_I: Final = 13
DIVIDE_I: Final = 14
REMAINDER_I: Final = 15
NEGATE_I: Final = 16
ADD_F: Final = 17
SUBTRACT_F: Final = 18
MULTIPLY_F: Final = 19
DIVIDE_F: Final = 20
REMAINDER_F: Final = 21
NEGATE_F: Final = 22
COMPARE_I: Final = 23
"""a: which comparison; two NULLs are NULL."""
COMPARE_F: Final = 24
AND: Final = 25
OR: Final = 26
NOT: Final = 27
IS_NULL: Final = 28
CHOOSE: Final = 29
"""Of three: the second if the first is true, else the third."""
OTHERWISE: Final = 30
"""Of two: the second if the first is NULL."""

COMPARISONS: Final = {"eq": 0, "neq": 1, "lt": 2, "lte": 3, "gt": 4, "gte": 5}

# How registers are brought forward.
LAST: Final = 0
"""Register a is the row, those behind it, as many as b, the ones before it."""
FIRST: Final = 1
"""The first register of a and b behind it that has no row yet is the row."""
COUNTED: Final = 2
"""One more in a, if part b is there; -1: for each row."""
SUM_I: Final = 3
SUM_F: Final = 4
MIN_I: Final = 5
MIN_F: Final = 6
MAX_I: Final = 7
MAX_F: Final = 8
"""Register a is the total of part b, the one behind it how many there are."""

_DAY_US: Final = 86_400_000_000
NUMBERS: Final = ("int", "decimal", "float")
"""Kinds of values that are computed and compared with each other."""

Code = tuple[int, int, int]


class Typed(NamedTuple):
    """What is on top of the stack."""

    kind: Kind
    scale: int = 0


def common(one: Typed, other: Typed) -> Typed | None:
    """The type in which two values are compared; None: there is none."""
    if "null" in (one.kind, other.kind):
        return other if one.kind == "null" else one
    if one.kind in NUMBERS and other.kind in NUMBERS:
        if "float" in (one.kind, other.kind):
            return Typed("float")
        if one.kind == other.kind == "int":
            return one
        return Typed("decimal", max(one.scale, other.scale))
    if {one.kind, other.kind} == {"time", "date"}:
        return Typed("time")
    return one if one.kind == other.kind else None


def conversion(given: Typed, wanted: Typed) -> list[Code]:
    """The code that makes a value of one type one of another."""
    if given == wanted or given.kind == "null":
        return []
    if wanted.kind == "float":
        return [(FLOAT, given.scale, 0)]
    if wanted.kind == "time" and given.kind == "date":
        return [(SCALE, _DAY_US, 0)]
    if wanted.scale > given.scale:
        return [(SCALE, 10 ** (wanted.scale - given.scale), 0)]
    return []


def arithmetic(operation: str, one: Typed, other: Typed) -> tuple[Typed, Typed, int, Typed] | None:
    """How two values are computed: as what each is taken, by which operation, and what that gives."""
    kinds = one.kind, other.kind
    if "null" in kinds:
        one = other if one.kind == "null" else one
        other, kinds = one, (one.kind, one.kind)
    if one.kind in NUMBERS and other.kind in NUMBERS:
        return _of_numbers(operation, one, other)
    whole = {"add": ADD_I, "sub": SUBTRACT_I, "mul": MULTIPLY_I}.get(operation)
    match operation, *kinds:
        case "sub", "time" | "date", "time" | "date":
            if kinds == ("date", "date"):
                return one, other, SUBTRACT_I, Typed("int")
            return Typed("time"), Typed("time"), SUBTRACT_I, Typed("interval")
        case "add" | "sub", "time" | "date", "interval":
            assert whole is not None
            return Typed("time"), other, whole, Typed("time")
        case "add", "interval", "time" | "date":
            return one, Typed("time"), ADD_I, Typed("time")
        case "add" | "sub", "interval", "interval":
            assert whole is not None
            return one, other, whole, one
        case "mul", "interval", "int":
            return one, other, MULTIPLY_I, one
        case "mul", "int", "interval":
            return one, other, MULTIPLY_I, other
        case _:
            return None


def _of_numbers(operation: str, one: Typed, other: Typed) -> tuple[Typed, Typed, int, Typed] | None:
    float_ = Typed("float")
    if operation == "div" or "float" in (one.kind, other.kind):
        code = {
            "add": ADD_F,
            "sub": SUBTRACT_F,
            "mul": MULTIPLY_F,
            "div": DIVIDE_F,
            "mod": REMAINDER_F,
        }.get(operation)
        return None if code is None else (float_, float_, code, float_)
    if operation == "mul":
        scale = one.scale + other.scale
        return one, other, MULTIPLY_I, Typed("decimal" if scale else "int", scale)
    shared = common(one, other)
    assert shared is not None
    code = {"add": ADD_I, "sub": SUBTRACT_I, "mod": REMAINDER_I, "intdiv": DIVIDE_I}.get(operation)
    if code is None or (operation == "intdiv" and shared.kind != "int"):
        return None
    return shared, shared, code, shared
