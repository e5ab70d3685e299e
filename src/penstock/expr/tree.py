"""Expressions as a small tree of our own: columns, constants, and calls of a closed list of functions.

Only what means the same in Arrow as in DuckDB, bit by bit, becomes a tree; the rest is left to DuckDB.
A tree is plain data: it is pickled, compared and hashed, and needs no parser where it is computed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Schema
from penstock.expr.duck import EvaluationError, query_tables

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Call", "Column", "Constant", "Tree", "tree_of"]

EXACT_DOUBLE_MAX: Final = 2**53
"""Up to here every integer is a double."""
EXACT_DIGITS_MAX: Final = 15
"""Decimals of so many digits become the same double whichever way they are read."""
DECIMAL_DIGITS_MAX: Final = 38
PRODUCT_DIGITS: Final = 18
"""Digits that DuckDB gives the product of two DECIMALs which have no more, whatever it needs."""
DEPTH_MAX: Final = 48
"""Of a tree's expression: trees are computed, and pickled, by recursion."""
OPTIONS_MAX: Final = 16
"""Of IN: each is a comparison here, where DuckDB looks them up in a table."""
_INTEGERS: Final = (pa.int32(), pa.int64())
_DIGITS: Final = {pa.int32(): 10, pa.int64(): 19}
"""Of a DECIMAL that an integer becomes next to one."""
_FOLDED: Final = ("BOOLEAN", "INTEGER", "BIGINT", "DECIMAL", "VARCHAR", "DATE", "TIMESTAMP")
"""What constants may be. Arrow has others as one of these, which compare in ways of their own: UUID, JSON."""
_EPOCH: Final = dt.date(1970, 1, 1)
_ORDERED: Final = (pa.string(), TIMESTAMP, pa.date32())


@dataclass(frozen=True)
class Column:
    """A column of the input."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class Constant:
    """A value, never NULL.

    Attributes:
        value: of a date, its days since 1970.
        text: of a number with a point, as it is written: next to a DECIMAL it is one.
    """

    value: bool | int | float | str | Decimal
    type: pa.DataType
    text: str = ""


@dataclass(frozen=True)
class Call:
    """A function of `penstock.expr.columnar`, applied.

    Attributes:
        type: of the result; integers are computed in its width, and checked for overflow.
    """

    function: str
    arguments: tuple[Tree, ...]
    type: pa.DataType


Tree: TypeAlias = Column | Constant | Call


def tree_of(parsed: exp.Expr, schema: Schema) -> Tree | None:
    """The tree of a parsed expression; None where some part of it has none.

    Args:
        parsed: by sqlglot, its columns resolved.
        schema: of the input.
    """
    try:
        return _scaled(parsed, schema) or _Builder(schema).build(parsed)
    except _UnknownError:
        return None


def _scaled(parsed: exp.Expr, schema: Schema) -> Tree | None:
    """An integer times a constant with a point: a decimal fraction. Only as the whole of an expression."""
    from sqlglot import exp

    if not isinstance(parsed, exp.Mul):
        return None
    for literal, other in ((parsed.this, parsed.expression), (parsed.expression, parsed.this)):
        if isinstance(literal, exp.Literal) and not literal.is_string:
            whole, point, rest = str(literal.this).partition(".")
            digits = whole + rest
            if point and rest and digits.isdecimal() and len(digits) <= EXACT_DIGITS_MAX:
                value = _Builder(schema).build(other)
                if value.type in _INTEGERS and not isinstance(value, Constant):
                    width = (10 if value.type == pa.int32() else 19) + len(digits)
                    type_ = pa.decimal128(width, len(rest))
                    return Call("scale", (value, Constant(int(digits), pa.int64())), type_)
    return None


class _UnknownError(Exception):
    """This part is left to DuckDB."""


class _Builder:
    """Builds trees bottom-up; raises `_UnknownError` at the first part that it doesn't know."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._depth = 0

    def build(self, node: exp.Expr) -> Tree:
        if self._depth == DEPTH_MAX:
            raise _UnknownError
        self._depth += 1
        found = self._built(node)
        self._depth -= 1
        return found

    def _built(self, node: exp.Expr) -> Tree:
        from sqlglot import exp

        if node.args.get("negate"):  # NOT LIKE is a node of its own
            positive = node.copy()
            positive.set("negate", None)
            return _logical("not", self.build(positive))
        match node:
            case exp.Paren():
                return self.build(node.this)
            case exp.Cast() if node.to.is_type("boolean"):
                return _logical_only(self.build(node.this))
            case exp.Cast() | exp.Add() | exp.Sub() if _is_constant(node):
                return _folded(node)
            case exp.Extract() if node.name.upper() == "YEAR":
                return _year_of(self.build(node.expression))
            case exp.Year():
                return _year_of(self.build(node.this))
            case exp.Column() if not node.table:
                return Column(node.name, self.schema[node.name].type)
            case exp.Boolean():
                return Constant(bool(node.this), pa.bool_())
            case exp.Literal():
                return _literal(node)
            case exp.Neg() if isinstance(node.this, exp.Literal):
                return _negative(_literal(node.this))
            case exp.And() | exp.Or():
                name = "and" if isinstance(node, exp.And) else "or"
                return _logical(name, self.build(node.this), self.build(node.expression))
            case exp.Not():
                return _logical("not", self.build(node.this))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return Call("is_null", (self.build(node.this),), pa.bool_())
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                name = _COMPARISONS[type(node).__name__]
                return _compared(name, self.build(node.this), self.build(node.expression))
            case exp.Between() if not node.args.get("symmetric"):
                value = self.build(node.this)
                low, high = self.build(node.args["low"]), self.build(node.args["high"])
                _check_room(value, low, high)
                return _logical("and", _compared("ge", value, low), _compared("le", value, high))
            case exp.In() if node.expressions and not node.args.get("query"):
                return self._any_of(node)
            case exp.Add() | exp.Sub() | exp.Mul():
                name = _ARITHMETIC[type(node).__name__]
                return _computed(name, self.build(node.this), self.build(node.expression))
            case exp.Mod():
                return _remainder(self.build(node.this), self.build(node.expression))
            case exp.DPipe():
                return _joined(self.build(node.this), self.build(node.expression))
            case exp.Like() if not node.args.get("escape"):
                return _like(self.build(node.this), self.build(node.expression))
            case exp.Case() if not node.this:
                return self._chosen(node)
            case _:
                raise _UnknownError

    def _chosen(self, node: exp.Case) -> Tree:
        """`CASE WHEN condition THEN value [ELSE value] END`: what a conditional aggregate is made of."""
        from sqlglot import exp

        if len(node.args["ifs"]) != 1:
            raise _UnknownError
        [only] = node.args["ifs"]
        condition, value = self.build(only.this), self.build(only.args["true"])
        if condition.type != pa.bool_():
            raise _UnknownError
        default = node.args.get("default")
        if default is None or isinstance(default, exp.Null):
            value = _exact(value)
            return Call("choose", (condition, value), value.type)
        return _one_of(condition, value, self.build(default))

    def _any_of(self, node: exp.In) -> Tree:
        if len(node.expressions) > OPTIONS_MAX:
            raise _UnknownError
        value = self.build(node.this)
        options = [self.build(option) for option in node.expressions]
        _check_room(value, *options)
        found: Tree | None = None
        for option in options:
            equal = _compared("eq", value, option)
            found = equal if found is None else _logical("or", found, equal)
        assert found is not None
        return found


_COMPARISONS: Final = {"EQ": "eq", "NEQ": "ne", "LT": "lt", "LTE": "le", "GT": "gt", "GTE": "ge"}
_ARITHMETIC: Final = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


def _literal(node: exp.Literal) -> Constant:
    if node.is_string:
        return Constant(node.this, pa.string())
    text = str(node.this)
    if text.isdecimal():
        value = int(text)
        if value < 2**31:
            return Constant(value, pa.int32())
        if value < 2**63:
            return Constant(value, pa.int64())
        raise _UnknownError
    whole, point, rest = text.partition(".")
    digits = whole + rest
    if not point or not digits.isdecimal() or len(digits) > EXACT_DIGITS_MAX:
        raise _UnknownError
    return Constant(float(text), pa.float64(), text)


def _negative(constant: Constant) -> Constant:
    if isinstance(constant.value, bool | str):
        raise _UnknownError
    return Constant(-constant.value, constant.type, f"-{constant.text}" if constant.text else "")


def _is_constant(node: exp.Expr) -> bool:
    from sqlglot import exp

    return not any(isinstance(one, exp.Column | exp.Query) for one in node.walk())


def _folded(node: exp.Expr) -> Constant:
    """What DuckDB makes of an expression without columns, such as a date and an interval."""
    sql = node.sql(dialect="duckdb", identify=True)
    try:
        found = query_tables({}, f"SELECT x, typeof(x) FROM (SELECT {sql} AS x)")
        value, name = (column[0].as_py() for column in found.columns)
    except (EvaluationError, OverflowError, ValueError):  # of dates: Python doesn't know infinity
        raise _UnknownError from None
    if name.partition("(")[0] not in _FOLDED:
        raise _UnknownError
    type_ = found.schema.types[0]
    match value:
        case bool() | str():
            return Constant(value, type_)
        case int() if type_ in _INTEGERS:
            return Constant(value, type_)
        case Decimal() if pa.types.is_decimal128(type_):
            return Constant(value, type_)
        case dt.datetime() if type_ == pa.timestamp("us") and value.time() == dt.time():
            return Constant((value.date() - _EPOCH).days, pa.date32())  # compared, it is the same
        case dt.date() if type_ == pa.date32():
            return Constant((value - _EPOCH).days, type_)
        case _:
            raise _UnknownError


def _year_of(value: Tree) -> Tree:
    if value.type != pa.date32():
        raise _UnknownError
    return Call("year", (value,), pa.int64())


def _exact(value: Tree) -> Tree:
    """A constant with a point as the DECIMAL that it is; anything else as it is."""
    return _as_decimal(value) if isinstance(value, Constant) and value.text else value


def _one_of(condition: Tree, value: Tree, other: Tree) -> Tree:
    if isinstance(other, Constant) or other.type != pa.float64():
        value = _exact(value)
    if value.type != other.type and is_decimal(value.type):
        other = _as_decimal(other)
        if not isinstance(other, Constant) or not _fits(other.value, value.type):
            raise _UnknownError
        other = Constant(other.value, value.type)
    if value.type != other.type:
        raise _UnknownError
    return Call("one_of", (condition, value, other), value.type)


def is_decimal(type_: pa.DataType) -> bool:
    """Whether values of the type are DECIMALs."""
    return bool(pa.types.is_decimal128(type_))


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        pa.scalar(value, type_)
    except pa.ArrowInvalid:
        return False
    return True


def _as_decimal(value: Tree) -> Tree:
    """A number as a DECIMAL of the width that DuckDB gives it next to another."""
    if is_decimal(value.type):
        return value
    if isinstance(value, Constant) and value.text:
        _, _, rest = value.text.partition(".")
        digits = len(value.text.lstrip("-")) - 1
        return Constant(Decimal(value.text), pa.decimal128(digits, len(rest)))
    if value.type not in _INTEGERS:
        raise _UnknownError
    type_ = pa.decimal128(_DIGITS[value.type], 0)
    if isinstance(value, Constant):
        return Constant(Decimal(int(value.value)), type_)
    return Call("decimal", (value,), type_)


def _check_room(*compared: Tree) -> None:
    """Lets pass what BETWEEN and IN compare: DuckDB makes them one type, into which a DECIMAL may not fit."""
    if any(is_decimal(one.type) for one in compared):
        types: list[Any] = [_as_decimal(one).type for one in compared]
        digits = max(one.precision - one.scale for one in types) + max(one.scale for one in types)
        if digits > DECIMAL_DIGITS_MAX:
            raise _UnknownError


def _logical_only(value: Tree) -> Tree:
    if value.type != pa.bool_():
        raise _UnknownError
    return value


def _logical(name: str, *arguments: Tree) -> Tree:
    if any(argument.type != pa.bool_() for argument in arguments):
        raise _UnknownError
    return Call(name, arguments, pa.bool_())


def _compared(name: str, left: Tree, right: Tree) -> Tree:
    if left.type in _INTEGERS and right.type in _INTEGERS:
        pass
    elif is_decimal(left.type) or is_decimal(right.type):
        left, right = _as_decimal(left), _as_decimal(right)
    elif pa.float64() in (left.type, right.type):
        _check_double(left, right)
    elif left.type != right.type or left.type not in (*_ORDERED, pa.bool_()):
        raise _UnknownError
    return Call(name, (left, right), pa.bool_())


def _computed(name: str, left: Tree, right: Tree) -> Tree:
    if left.type in _INTEGERS and right.type in _INTEGERS:
        wide = pa.int64() in (left.type, right.type)
        return Call(name, (left, right), pa.int64() if wide else pa.int32())
    if is_decimal(left.type) or is_decimal(right.type):
        left, right = _as_decimal(left), _as_decimal(right)
        return Call(name, (left, right), _decimal_of(name, left.type, right.type))
    _check_double(left, right)
    return Call(name, (left, right), pa.float64())


def _decimal_of(name: str, left: Any, right: Any) -> pa.DataType:
    """The type that DuckDB gives the sum, the difference or the product of two DECIMALs."""
    if name == "multiply":
        digits, scale = left.precision + right.precision, left.scale + right.scale
        both_short = max(left.precision, right.precision) <= PRODUCT_DIGITS
        if digits > PRODUCT_DIGITS and both_short and scale < PRODUCT_DIGITS:
            digits = PRODUCT_DIGITS
    else:
        scale = max(left.scale, right.scale)
        digits = scale + max(left.precision - left.scale, right.precision - right.scale) + 1
    if scale > DECIMAL_DIGITS_MAX:
        raise _UnknownError
    return pa.decimal128(min(digits, DECIMAL_DIGITS_MAX), scale)


def _check_double(left: Tree, right: Tree) -> None:
    """Lets pass what is computed in doubles: one is a column of them, the other a number.

    A constant with a point is a DECIMAL in DuckDB, and is computed as such next to anything else.
    """
    numbers = (pa.float64(), *_INTEGERS)
    if left.type not in numbers or right.type not in numbers:
        raise _UnknownError
    for one, other in ((left, right), (right, left)):
        if one.type == pa.float64() and not isinstance(one, Constant):
            if other.type in (pa.float64(), pa.int32()):
                return
            if isinstance(other, Constant) and abs(float(other.value)) <= EXACT_DOUBLE_MAX:
                return
    raise _UnknownError


def _remainder(left: Tree, right: Tree) -> Tree:
    if left.type not in _INTEGERS or not isinstance(right, Constant):
        raise _UnknownError
    if right.type not in _INTEGERS or int(right.value) <= 0:
        raise _UnknownError
    wide = pa.int64() in (left.type, right.type)
    return Call("remainder", (left, right), pa.int64() if wide else pa.int32())


def _joined(left: Tree, right: Tree) -> Tree:
    if left.type != pa.string() or right.type != pa.string():
        raise _UnknownError
    return Call("join", (left, right), pa.string())


def _like(text: Tree, pattern: Any) -> Tree:
    """A pattern of `%` only: what `_` and a backslash mean is not the same everywhere."""
    if text.type != pa.string() or not isinstance(pattern, Constant):
        raise _UnknownError
    if not isinstance(pattern.value, str) or set(pattern.value) & {"_", "\\"}:
        raise _UnknownError
    return Call("like", (text, pattern), pa.bool_())
