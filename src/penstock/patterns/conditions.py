"""Definitions as conditions: columns where they read the row and its neighbours alone, else code for a
kernel.

A condition over matched rows reads *registers*: the first or the last rows of some variables, and totals over
these. They are brought forward with each row that is taken, so that a condition costs the same however long a
match is; and two ways that come to the same place with the same registers have the same future.

Code is for a small stack machine with SQL's three-valued logic, in 64 bits. Whole numbers are computed as
BIGINT; what overflows is NULL.
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
from penstock.patterns.leaves import Leaves, kind_of
from penstock.patterns.operations import (
    AND,
    AT,
    AVERAGE_F,
    AVERAGE_I,
    CHOOSE,
    COMPARE_F,
    COMPARE_I,
    COMPARISONS,
    CONSTANT,
    COUNT,
    COUNTED,
    FIRST,
    HERE,
    IS_NULL,
    LAST,
    MAX_F,
    MAX_I,
    MIN_F,
    MIN_I,
    NEGATE_F,
    NEGATE_I,
    NOT,
    NUMBER,
    NUMBERS,
    OR,
    OTHERWISE,
    SUM_F,
    SUM_I,
    TEXT,
    TOTAL,
    Code,
    Typed,
    arithmetic,
    common,
    conversion,
)

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Code", "Condition", "Conditions", "Update"]

STACK_MAX: Final = 64
"""Values at once: of an expression that nests more deeply, parts are to be computed first."""
CODE_MAX: Final = 4_096


class Update(NamedTuple):
    """What becomes of registers when a row is taken."""

    kind: int
    register: int
    argument: int


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

    def _rows_of(self, node: exp.Expr) -> set[Base | str | None]:
        """The rows that a node reads; None is the row itself; a text is what no row has."""
        from sqlglot import exp

        found: set[Base | str | None] = set()
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

    def value(self, node: exp.Expr) -> Typed:
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

    def _part(self, node: exp.Expr, base: Any) -> Typed:
        leaf = self._leaf(node)
        if base is None:
            self._emit(HERE, leaf)
        else:
            self.leaves.of_nothing = True
            self._emit(AT, leaf, self._row_register(base))
        return self._typed(self.leaves.expressions[leaf].type)

    def _typed(self, type_: pa.DataType) -> Typed:
        kind = kind_of(type_)
        return Typed(kind, type_.scale if isinstance(type_, pa.Decimal128Type) else 0)

    def _row_register(self, base: Base) -> int:
        if base.final:
            raise self._error("no FINAL in a definition", self.resolved.text)
        # One of each kind and variable, as long as the furthest needs: its rows are registers of their own.
        key = (base.kind, base.names, base.n)
        register = self.conditions.register(key, [-1] * (base.n + 1))
        kind = FIRST if base.kind == "first" else LAST
        self.conditions.update(base.names, Update(kind, register, base.n))
        return register + base.n

    def _special(self, node: exp.Column) -> Typed:
        part = self.resolved.parts[node.name]
        match part:
            case MatchNumber():
                self._emit(NUMBER)
                return Typed("int")
            case Classifier(base) if self._is_here(base):
                self._emit(TEXT, self.leaves.text(self.name))
                return Typed("text")
            case Aggregate():
                return self._aggregate(part)
            case _:
                raise self._error("CLASSIFIER() of the row itself in a definition", node)

    def _aggregate(self, part: Aggregate) -> Typed:
        if part.final:
            raise self._error("no FINAL in a definition", self.resolved.text)
        if not part.is_plain:
            raise self._error("one of count, sum, avg, min and max in a definition", part.sql)
        leaf = -1 if part.argument is None else self.leaves.add(part.argument)
        typed = Typed("int") if leaf < 0 else self._typed(self.leaves.expressions[leaf].type)
        if part.function == "count":
            register = self.conditions.register(("count", part.names, leaf), [0])
            self.conditions.update(part.names, Update(COUNTED, register, leaf))
            self._emit(COUNT, register)
            return Typed("int")
        is_float = typed.kind == "float"
        if part.function in ("sum", "avg"):
            if typed.kind not in NUMBERS:
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
        return Typed("float")

    def _constant(self, node: exp.Expr) -> Typed:
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
            return Typed("null") if node.key == "null" else typed
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

    def _operation(self, node: Any) -> Typed:
        from sqlglot import exp

        match node:
            case exp.Paren():
                return self.value(node.this)
            case exp.And() | exp.Or():
                return self._logical(AND if isinstance(node, exp.And) else OR, node)
            case exp.Not():
                self._boolean(node.this)
                self._emit(NOT)
                return Typed("bool")
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._compared(node.key, node.this, node.expression)
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._distinct(node)
            case exp.Is() if isinstance(node.expression, exp.Null):
                self.value(node.this)
                self._emit(IS_NULL)
                return Typed("bool")
            case exp.Between() if not node.args.get("symmetric"):
                self._compared("gte", node.this, node.args["low"])
                self._compared("lte", node.this, node.args["high"])
                self._emit(AND)
                return Typed("bool")
            case exp.In() if node.expressions:
                for i, one in enumerate(node.expressions):
                    self._compared("eq", node.this, one)
                    if i:
                        self._emit(OR)
                return Typed("bool")
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
                return Typed("float")
            case _:
                raise self._error(
                    "comparisons, arithmetic, AND, OR, NOT, IS NULL, BETWEEN, IN, CASE, COALESCE or abs "
                    "where an expression reads several rows of a match",
                    node,
                )

    def _signed(self, node: exp.Expr, found: Typed) -> None:
        """The value on top without its sign, which takes it three times: it is cheaper than to keep it."""
        at = len(self.code)
        self.value(node)
        again = self.code[at:]
        del self.code[at:]
        is_float = found.kind == "float"
        negative: list[Code] = [
            (CONSTANT, 0, 0),
            (COMPARE_F if is_float else COMPARE_I, COMPARISONS["lt"], 0),
        ]
        value = list(again)
        del self.code[len(self.code) - len(again) :]
        self.code += [*value, *negative, *value, (NEGATE_F if is_float else NEGATE_I, 0, 0), *value]
        self._emit(CHOOSE)

    def _logical(self, operation: int, node: exp.Expr) -> Typed:
        self._boolean(node.this)
        self._boolean(node.args["expression"])
        self._emit(operation)
        return Typed("bool")

    def _boolean(self, node: exp.Expr) -> None:
        if self.value(node).kind not in ("bool", "null"):
            raise self._error("a condition", node)

    def _number(self, node: exp.Expr) -> Typed:
        found = self.value(node)
        if found.kind not in (*NUMBERS, "interval", "null"):
            raise self._error("a number", node)
        return found

    def _compared(self, name: str, left: exp.Expr, right: exp.Expr) -> Typed:
        found = self._both(left, right, "values that can be compared")
        operation = COMPARE_F if found.kind == "float" else COMPARE_I
        self._emit(operation, COMPARISONS[name])
        return Typed("bool")

    def _both(self, left: exp.Expr, right: exp.Expr, expected: str) -> Typed:
        """Appends two values as of one type."""
        one = self.value(left)
        at = len(self.code)
        other = self.value(right)
        target = common(one, other)
        if target is None:
            raise self._error(expected, f"{left.sql('duckdb')} and {right.sql('duckdb')}")
        self.code[at:at] = conversion(one, target)
        self.code += conversion(other, target)
        return target

    def _distinct(self, node: Any) -> Typed:
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
        return Typed("bool")

    def _computed(self, node: Any) -> Typed:
        operation = node.key
        one = self.value(node.this)
        at = len(self.code)
        other = self.value(node.expression)
        found = arithmetic(operation, one, other)
        if found is None:
            raise self._error("numbers, or times and intervals", f"{node.sql('duckdb')}")
        left, right, code, result = found
        self.code[at:at] = conversion(one, left)
        self.code += conversion(other, right)
        self._emit(code)
        return result

    def _as_float(self, found: Typed) -> None:
        self.code += conversion(found, Typed("float"))

    def _case(self, node: Any) -> Typed:
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

    def _chosen(self, branches: list[tuple[Any, Any]], default: Any) -> Typed:
        (condition, value), *others = branches
        self._boolean(condition)
        one = self.value(value)
        at = len(self.code)
        other = self._chosen(others, default) if others else self.value(default)
        target = common(one, other)
        if target is None:
            raise self._error("values of one type in CASE", self.resolved.text)
        self.code[at:at] = conversion(one, target)
        self.code += conversion(other, target)
        self._emit(CHOOSE)
        return target

    def _first_there(self, options: list[Any]) -> Typed:
        if len(options) == 1:
            return self.value(options[0])
        one = self.value(options[0])
        at = len(self.code)
        other = self._first_there(options[1:])
        target = common(one, other)
        if target is None:
            raise self._error("values of one type in COALESCE", self.resolved.text)
        self.code[at:at] = conversion(one, target)
        self.code += conversion(other, target)
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
