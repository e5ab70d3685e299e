"""Definitions as conditions: columns where they read the row and its neighbours alone, else code for a kernel.

A condition over matched rows reads *registers*: the first or the last rows of some variables, and totals over
these. They are brought forward with each row that is taken, so that a condition costs the same however long a match
is; and two ways that come to the same place with the same registers have the same future.

Code is for a small stack machine with SQL's three-valued logic, in 64 bits. Whole numbers are computed as BIGINT; what
overflows is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.expr.expression import compile_expression
from penstock.expr.values import values
from penstock.patterns.expressions import (
    Aggregate,
    Base,
    Classifier,
    MatchNumber,
    Place,
    Resolved,
    Variables,
    resolve,
)
from penstock.patterns.leaves import Kind, Leaves, kind_of

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Code", "Condition", "Conditions", "Update"]

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

_COMPARISONS: Final = {"eq": 0, "neq": 1, "lt": 2, "lte": 3, "gt": 4, "gte": 5}

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

STACK_MAX: Final = 64
"""Values at once: of an expression that nests more deeply, parts are to be computed first."""
CODE_MAX: Final = 4_096

_DAY_US: Final = 86_400_000_000
_FLOATS: Final = ("float",)
_NUMBERS: Final = ("int", "decimal", "float")

Code = tuple[int, int, int]


class Update(NamedTuple):
    """What becomes of registers when a row is taken."""

    kind: int
    register: int
    argument: int


class _Typed(NamedTuple):
    """What is on top of the stack."""

    kind: Kind
    scale: int = 0


@dataclass
class Condition:
    """A definition.

    Attributes:
        kind: always true, a column, or code.
        leaf: the number of the column.
        code: for the stack machine.
        ahead: how many rows behind its own it reads.
    """

    kind: Literal["true", "column", "code"]
    leaf: int = -1
    code: list[Code] = field(default_factory=list)
    ahead: int = 0


@dataclass
class Conditions:
    """All definitions of a pattern, with what they share.

    Attributes:
        leaves: the parts of one row that they read.
        conditions: of each variable.
        updates: of each variable, what becomes of registers when a row is it.
        initial: the registers before the first row.
    """

    leaves: Leaves
    variables: Variables
    conditions: dict[str, Condition] = field(default_factory=dict)
    updates: dict[str, list[Update]] = field(default_factory=dict)
    initial: list[int] = field(default_factory=list)
    _registers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def define(self, name: str, text: str | None) -> None:
        """Adds the definition of a variable; None: it is any row.

        Raises:
            SchemaError: it can't be compiled.
        """
        if text is None:
            self.conditions[name] = Condition("true")
            return
        resolved = resolve(text, self.leaves.schema, self.variables)
        self.conditions[name] = _Compiler(self, name, resolved).whole()

    def register(self, key: tuple[Any, ...], initial: list[int]) -> int:
        """The first of some registers, which are made if they aren't there."""
        if key not in self._registers:
            self._registers[key] = len(self.initial)
            self.initial += initial
        return self._registers[key]

    def update(self, names: frozenset[str] | None, update: Update) -> None:
        """Lets rows of some variables bring a register forward."""
        for name in self.variables.names:
            known = self.updates.setdefault(name, [])
            if (names is None or name in names) and update not in known:
                known.append(update)


class _Compiler:
    """Compiles the definition of one variable."""

    def __init__(self, conditions: Conditions, name: str, resolved: Resolved) -> None:
        self.conditions = conditions
        self.leaves = conditions.leaves
        self.name = name
        self.resolved = resolved
        self.code: list[Code] = []
        self.ahead = 0
        self._depth = 0

    def whole(self) -> Condition:
        tree = self.resolved.tree
        rows = self._rows_of(tree)
        if rows == {None}:
            leaf = self._leaf(tree)
            if self.leaves.expressions[leaf].type != pa.bool_():
                raise self._error("a condition", self.resolved.text)
            return Condition("column", leaf, ahead=self.ahead)
        found = self.value(tree)
        if found.kind not in ("bool", "null"):
            raise self._error("a condition", self.resolved.text)
        if len(self.code) > CODE_MAX:
            raise self._error(f"a definition of at most {CODE_MAX:,} operations", tree)
        return Condition("code", code=self.code, ahead=self.ahead)

    def _rows_of(self, node: exp.Expr) -> set[Base | None | str]:
        """The rows that a node reads; None is the row itself; a text is what no row has."""
        from sqlglot import exp

        found: set[Base | None | str] = set()
        for one in node.find_all(exp.Column):
            match self.resolved.parts[one.name]:
                case Place(base):
                    found.add(None if self._is_here(base) else base)
                case Classifier(base) if self._is_here(base):
                    found.add("constant")
                case _:
                    found.add("other")
        return found

    def _is_here(self, base: Base) -> bool:
        """Whether a matched row is the one whose condition this is."""
        return (
            base.kind == "last" and base.n == 0 and (base.names is None or self.name in base.names)
        )

    def value(self, node: exp.Expr) -> _Typed:
        """Appends the code of a node; what it gives."""
        from sqlglot import exp

        self._depth += 1
        if self._depth > STACK_MAX // 2:
            raise self._error("an expression that nests less deeply", node)
        rows = self._rows_of(node)
        if not rows:
            found = self._constant(node)
        elif len(rows) == 1 and not isinstance(next(iter(rows)), str):
            found = self._part(node, next(iter(rows)))
        elif isinstance(node, exp.Column):
            found = self._special(node)
        else:
            found = self._operation(node)
        self._depth -= 1
        return found

    def _leaf(self, node: exp.Expr) -> int:
        """The number of a part that reads one row."""
        from sqlglot import exp

        copy = node.copy()
        for one in list(copy.find_all(exp.Column)):
            part = self.resolved.parts[one.name]
            assert isinstance(part, Place)
            self.ahead = max(self.ahead, part.shift)
            made = exp.column(self.leaves.column(part.column, part.shift), quoted=True)
            if one is copy:
                copy = made
            else:
                one.replace(made)
        return self.leaves.add(copy.sql(dialect="duckdb", identify=True))

    def _part(self, node: exp.Expr, base: Any) -> _Typed:
        leaf = self._leaf(node)
        if base is None:
            self._emit(HERE, leaf)
        else:
            self.leaves.of_nothing = True
            self._emit(AT, leaf, self._row_register(base))
        return self._typed(self.leaves.expressions[leaf].type)

    def _typed(self, type_: pa.DataType) -> _Typed:
        kind = kind_of(type_)
        return _Typed(kind, type_.scale if isinstance(type_, pa.Decimal128Type) else 0)

    def _row_register(self, base: Base) -> int:
        if base.final:
            raise self._error("no FINAL in a definition", self.resolved.text)
        # One of each kind and variable, as long as the furthest needs: its rows are registers of their own.
        key = (base.kind, base.names, base.n)
        register = self.conditions.register(key, [-1] * (base.n + 1))
        kind = FIRST if base.kind == "first" else LAST
        self.conditions.update(base.names, Update(kind, register, base.n))
        return register + base.n

    def _special(self, node: exp.Column) -> _Typed:
        part = self.resolved.parts[node.name]
        match part:
            case MatchNumber():
                self._emit(NUMBER)
                return _Typed("int")
            case Classifier(base) if self._is_here(base):
                self._emit(TEXT, self.leaves.text(self.name))
                return _Typed("text")
            case Aggregate():
                return self._aggregate(part)
            case _:
                raise self._error("CLASSIFIER() of the row itself in a definition", node)

    def _aggregate(self, part: Aggregate) -> _Typed:
        if part.final:
            raise self._error("no FINAL in a definition", self.resolved.text)
        if not part.is_plain:
            raise self._error("one of count, sum, avg, min and max in a definition", part.sql)
        leaf = -1 if part.argument is None else self.leaves.add(part.argument)
        typed = _Typed("int") if leaf < 0 else self._typed(self.leaves.expressions[leaf].type)
        if part.function == "count":
            register = self.conditions.register(("count", part.names, leaf), [0])
            self.conditions.update(part.names, Update(COUNTED, register, leaf))
            self._emit(COUNT, register)
            return _Typed("int")
        is_float = typed.kind in _FLOATS
        if part.function in ("sum", "avg"):
            if typed.kind not in _NUMBERS:
                raise self._error("an aggregate of numbers", part.sql)
            kind = SUM_F if is_float else SUM_I
        elif part.function == "min":
            kind = MIN_F if is_float else MIN_I
        else:
            kind = MAX_F if is_float else MAX_I
        register = self.conditions.register((kind, part.names, leaf), [0, 0])
        self.conditions.update(part.names, Update(kind, register, leaf))
        if part.function != "avg":
            self._emit(TOTAL, register)
            return typed
        self._emit(AVERAGE_F if is_float else AVERAGE_I, register, typed.scale)
        return _Typed("float")

    def _constant(self, node: exp.Expr) -> _Typed:
        """A part without columns: it is computed now."""
        known = Schema((Field("x", pa.bool_()),))
        made = compile_expression(node.sql(dialect="duckdb", identify=True), known)
        row = pa.table([pa.array([True])], names=["x"])
        column = vectors.contiguous(values([made], row)[0])
        if pa.types.is_decimal(column.type) and not vectors.is_short_decimal(column.type):
            raise self._error("a number of at most 18 digits", node)
        typed = self._typed(column.type)
        if column.null_count:
            self._emit(CONSTANT, 0, 1)
            return _Typed("null") if node.key == "null" else typed
        if typed.kind == "text":
            if column.type != pa.string():
                raise self._error("a constant of another type", node)
            self._emit(TEXT, self.leaves.text(column[0].as_py()))
        elif typed.kind == "float":
            number = np.asarray(column.cast(pa.float64()).to_numpy()).view(np.int64)
            self._emit(CONSTANT, int(number[0]))
        else:
            self._emit(CONSTANT, int(vectors.codes(column)[0]))
        return typed

    def _operation(self, node: Any) -> _Typed:
        from sqlglot import exp

        match node:
            case exp.Paren():
                return self.value(node.this)
            case exp.And() | exp.Or():
                return self._logical(AND if isinstance(node, exp.And) else OR, node)
            case exp.Not():
                self._boolean(node.this)
                self._emit(NOT)
                return _Typed("bool")
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._compared(node.key, node.this, node.expression)
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._distinct(node)
            case exp.Is() if isinstance(node.expression, exp.Null):
                self.value(node.this)
                self._emit(IS_NULL)
                return _Typed("bool")
            case exp.Between() if not node.args.get("symmetric"):
                self._compared("gte", node.this, node.args["low"])
                self._compared("lte", node.this, node.args["high"])
                self._emit(AND)
                return _Typed("bool")
            case exp.In() if node.expressions:
                for i, one in enumerate(node.expressions):
                    self._compared("eq", node.this, one)
                    if i:
                        self._emit(OR)
                return _Typed("bool")
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.IntDiv() | exp.Mod():
                return self._computed(node)
            case exp.Neg():
                found = self._number(node.this)
                self._emit(NEGATE_F if found.kind == "float" else NEGATE_I)
                return found
            case exp.Abs():
                found = self._number(node.this)
                self._signed(node.this, found)
                return found
            case exp.Case() | exp.If():
                return self._case(node)
            case exp.Coalesce():
                return self._first_there([node.this, *node.expressions])
            case exp.Cast() if node.to.is_type("double"):
                self._as_float(self._number(node.this))
                return _Typed("float")
            case _:
                raise self._error(
                    "comparisons, arithmetic, AND, OR, NOT, IS NULL, BETWEEN, IN, CASE, COALESCE or abs "
                    "where an expression reads several rows of a match",
                    node,
                )

    def _signed(self, node: exp.Expr, found: _Typed) -> None:
        """The value on top without its sign, which takes it three times: it is cheaper than to keep it."""
        at = len(self.code)
        self.value(node)
        again = self.code[at:]
        del self.code[at:]
        is_float = found.kind == "float"
        negative: list[Code] = [
            (CONSTANT, 0, 0),
            (COMPARE_F if is_float else COMPARE_I, _COMPARISONS["lt"], 0),
        ]
        value = list(again)
        del self.code[len(self.code) - len(again) :]
        self.code += [*value, *negative, *value, (NEGATE_F if is_float else NEGATE_I, 0, 0), *value]
        self._emit(CHOOSE)

    def _logical(self, operation: int, node: exp.Expr) -> _Typed:
        self._boolean(node.this)
        self._boolean(node.args["expression"])
        self._emit(operation)
        return _Typed("bool")

    def _boolean(self, node: exp.Expr) -> None:
        if self.value(node).kind not in ("bool", "null"):
            raise self._error("a condition", node)

    def _number(self, node: exp.Expr) -> _Typed:
        found = self.value(node)
        if found.kind not in (*_NUMBERS, "interval", "null"):
            raise self._error("a number", node)
        return found

    def _compared(self, name: str, left: exp.Expr, right: exp.Expr) -> _Typed:
        found = self._both(left, right, "values that can be compared")
        operation = COMPARE_F if found.kind == "float" else COMPARE_I
        self._emit(operation, _COMPARISONS[name])
        return _Typed("bool")

    def _both(self, left: exp.Expr, right: exp.Expr, expected: str) -> _Typed:
        """Appends two values as of one type."""
        one = self.value(left)
        at = len(self.code)
        other = self.value(right)
        target = _common(one, other)
        if target is None:
            raise self._error(expected, f"{left.sql('duckdb')} and {right.sql('duckdb')}")
        self.code[at:at] = _conversion(one, target)
        self.code += _conversion(other, target)
        return target

    def _distinct(self, node: Any) -> _Typed:
        """`IS [NOT] DISTINCT FROM`: equal, or both NULL."""
        from sqlglot import exp

        self._compared("eq", node.this, node.expression)
        self._emit(CONSTANT, 0)
        self._emit(OTHERWISE)
        for one in (node.this, node.expression):
            self.value(one)
            self._emit(IS_NULL)
        self._emit(AND)
        self._emit(OR)
        if isinstance(node, exp.NullSafeNEQ):
            self._emit(NOT)
        return _Typed("bool")

    def _computed(self, node: Any) -> _Typed:
        operation = node.key
        one = self.value(node.this)
        at = len(self.code)
        other = self.value(node.expression)
        found = _arithmetic(operation, one, other)
        if found is None:
            raise self._error("numbers, or times and intervals", f"{node.sql('duckdb')}")
        left, right, code, result = found
        self.code[at:at] = _conversion(one, left)
        self.code += _conversion(other, right)
        self._emit(code)
        return result

    def _as_float(self, found: _Typed) -> None:
        self.code += _conversion(found, _Typed("float"))

    def _case(self, node: Any) -> _Typed:
        from sqlglot import exp

        if isinstance(node, exp.If):
            branches = [(node.this, node.args["true"])]
            default = node.args.get("false")
        else:
            branches = [(one.this, one.args["true"]) for one in node.args["ifs"]]
            default = node.args.get("default")
            if node.this is not None:
                branches = [(exp.EQ(this=node.this, expression=c), v) for c, v in branches]
        return self._chosen(branches, default if default is not None else exp.Null())

    def _chosen(self, branches: list[tuple[Any, Any]], default: Any) -> _Typed:
        (condition, value), *others = branches
        self._boolean(condition)
        one = self.value(value)
        at = len(self.code)
        other = self._chosen(others, default) if others else self.value(default)
        target = _common(one, other)
        if target is None:
            raise self._error("values of one type in CASE", self.resolved.text)
        self.code[at:at] = _conversion(one, target)
        self.code += _conversion(other, target)
        self._emit(CHOOSE)
        return target

    def _first_there(self, options: list[Any]) -> _Typed:
        if len(options) == 1:
            return self.value(options[0])
        one = self.value(options[0])
        at = len(self.code)
        other = self._first_there(options[1:])
        target = _common(one, other)
        if target is None:
            raise self._error("values of one type in COALESCE", self.resolved.text)
        self.code[at:at] = _conversion(one, target)
        self.code += _conversion(other, target)
        self._emit(OTHERWISE)
        return target

    def _emit(self, operation: int, a: int = 0, b: int = 0) -> None:
        self.code.append((operation, a, b))

    def _error(self, expected: str, node: exp.Expr | str) -> SchemaError:
        found = node if isinstance(node, str) else node.sql("duckdb")
        text = self.resolved.text
        where = "" if found == text else f" in {text!r}"
        return SchemaError(
            f"expected {expected} in the definition of {self.name}; found {found!r}{where}"
        )


def _common(one: _Typed, other: _Typed) -> _Typed | None:
    """The type in which two values are compared; None: there is none."""
    if "null" in (one.kind, other.kind):
        return other if one.kind == "null" else one
    if one.kind in _NUMBERS and other.kind in _NUMBERS:
        if "float" in (one.kind, other.kind):
            return _Typed("float")
        if one.kind == other.kind == "int":
            return one
        return _Typed("decimal", max(one.scale, other.scale))
    if {one.kind, other.kind} == {"time", "date"}:
        return _Typed("time")
    return one if one.kind == other.kind else None


def _conversion(given: _Typed, wanted: _Typed) -> list[Code]:
    if given == wanted or given.kind == "null":
        return []
    if wanted.kind == "float":
        return [(FLOAT, given.scale, 0)]
    if wanted.kind == "time" and given.kind == "date":
        return [(SCALE, _DAY_US, 0)]
    if wanted.scale > given.scale:
        return [(SCALE, 10 ** (wanted.scale - given.scale), 0)]
    return []


def _arithmetic(
    operation: str, one: _Typed, other: _Typed
) -> tuple[_Typed, _Typed, int, _Typed] | None:
    """How two values are computed: as what each is taken, by which operation, and what that gives."""
    kinds = one.kind, other.kind
    if "null" in kinds:
        one = other if one.kind == "null" else one
        other, kinds = one, (one.kind, one.kind)
    if one.kind in _NUMBERS and other.kind in _NUMBERS:
        return _of_numbers(operation, one, other)
    whole = {"add": ADD_I, "sub": SUBTRACT_I, "mul": MULTIPLY_I}.get(operation)
    match operation, *kinds:
        case "sub", "time" | "date", "time" | "date":
            if kinds == ("date", "date"):
                return one, other, SUBTRACT_I, _Typed("int")
            return _Typed("time"), _Typed("time"), SUBTRACT_I, _Typed("interval")
        case "add" | "sub", "time" | "date", "interval":
            assert whole is not None
            return _Typed("time"), other, whole, _Typed("time")
        case "add", "interval", "time" | "date":
            return one, _Typed("time"), ADD_I, _Typed("time")
        case "add" | "sub", "interval", "interval":
            assert whole is not None
            return one, other, whole, one
        case "mul", "interval", "int":
            return one, other, MULTIPLY_I, one
        case "mul", "int", "interval":
            return one, other, MULTIPLY_I, other
        case _:
            return None


def _of_numbers(
    operation: str, one: _Typed, other: _Typed
) -> tuple[_Typed, _Typed, int, _Typed] | None:
    float_ = _Typed("float")
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
        return one, other, MULTIPLY_I, _Typed("decimal" if scale else "int", scale)
    common = _common(one, other)
    assert common is not None
    code = {"add": ADD_I, "sub": SUBTRACT_I, "mod": REMAINDER_I, "intdiv": DIVIDE_I}.get(operation)
    if code is None or (operation == "intdiv" and common.kind != "int"):
        return None
    return common, common, code, common
