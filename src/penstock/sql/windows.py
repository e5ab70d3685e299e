"""Window functions: which are computed where rows changed; the others are computed partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from penstock.core import vectors
from penstock.expr.expression import sql_type
from penstock.expr.query import query_columns
from penstock.flow.algebra.queries import over
from penstock.ops.over.functions import Frame, Function
from penstock.ops.over.functions import Kind as FunctionKind
from penstock.ops.over.window_functions import Ordered
from penstock.sql.relation import quoted
from penstock.sql.scope import Scope
from penstock.sql.trees import own

__all__ = ["Over", "windowed"]

REACH_MAX: Final = 1_000
"""Rows before or behind one that its value may depend on: more are a partition."""
WIDTH_MAX: Final = 64
"""Rows of a bounded frame: its values are computed from all of them."""
KINDS: Final[dict[type[exp.Expr], FunctionKind]] = {
    exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank", exp.Lag: "lag",
    exp.Lead: "lag", exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min",
    exp.Max: "max", exp.FirstValue: "first", exp.LastValue: "last", exp.NthValue: "nth",
}  # fmt: skip
RANKS: Final = ("row_number", "rank", "dense_rank")


@dataclass(frozen=True)
class Over:
    """A window function of a query.

    Attributes:
        name: of its column.
        tree: with the definition of its window, over the relation's columns.
    """

    name: str
    tree: exp.Window


@dataclass(frozen=True)
class _Call:
    """A window function as the engine computes it: its argument and its default aren't columns yet."""

    over: Over
    kind: FunctionKind
    argument: exp.Expr | None
    default: exp.Expr | None
    frame: Frame
    n: int


def windowed(scope: Scope, keys: Sequence[str], windows: Sequence[Over]) -> Scope:
    """The rows with columns of window functions over the same partitions.

    Args:
        scope: the rows.
        keys: columns that make up a partition.
        windows: the functions.
    """
    by_order: dict[tuple[exp.Expr, ...], list[_Call]] = {}
    others = []
    for one in windows:
        call = _call(one)
        if call is None or not _ordered_by(one):
            others.append(one)
        else:
            by_order.setdefault(tuple(one.tree.args["order"].expressions), []).append(call)
    plain = scope.rows.names
    for order, calls in by_order.items():
        made = _by_change(scope, keys, order, calls)
        if made is None:
            others += [call.over for call in calls]
        else:
            scope = made
    if len(scope.rows.names) > len(plain) + len(windows):  # without arguments
        names = [call.over.name for calls in by_order.values() for call in calls]
        kept = [name for name in scope.rows.names if name in plain or name in names]
        scope = Scope(scope.rows.only(kept), scope.names, scope.window)
    if others:
        columns = [f"rows0.{quoted(name)}" for name in scope.rows.names]
        columns += [_text(scope, keys, one) for one in others]
        text = f"SELECT {', '.join(columns)} FROM rows0"
        rows = scope.rows.query((), (keys,), text, placed=keys, row_key=scope.rows.row_key)
        scope = Scope(rows, scope.names, scope.window)
    return scope


def _text(scope: Scope, keys: Sequence[str], one: Over) -> str:
    tree = one.tree.copy()
    tree.set("partition_by", [own(name) for name in keys])
    return f"{scope.sql(tree)} AS {quoted(one.name)}"


def _by_change(
    scope: Scope, keys: Sequence[str], order: Sequence[exp.Expr], calls: Sequence[_Call]
) -> Scope | None:
    """The rows with columns of functions of one order; None where a type is none that the engine computes."""
    text = ", ".join(_text(scope, keys, call.over) for call in calls)
    typed = query_columns(f"SELECT {text} FROM rows0", {"rows0": scope.rows.schema})
    scope, by = scope.computed([one.this for one in order], "order")
    arguments = list(dict.fromkeys(one.argument for one in calls if one.argument is not None))
    scope, names = scope.computed(arguments, "argument")
    named = dict(zip(arguments, names, strict=True))
    scope, defaults = _defaults(scope, calls, named)
    schema = scope.rows.schema
    if not all(_is_plain(schema[name].type) for name in by):
        return None
    functions = []
    for call in calls:
        column = "" if call.argument is None else named[call.argument]
        default = defaults.get(call.over.name, "")
        function = Function(call.over.name, call.kind, column, call.frame, call.n, default)
        type_ = schema[column].type if column else pa.int64()
        if _type_of(call.kind, type_) != typed[call.over.name].type:
            return None
        functions.append((function, typed[call.over.name].type))
    ordered = [
        Ordered(name, bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for name, one in zip(by, order, strict=True)
    ]
    rows = scope.rows.over(over(scope.rows.node, keys, ordered, functions))
    return Scope(rows, scope.names, scope.window)


def _defaults(
    scope: Scope, calls: Sequence[_Call], arguments: dict[exp.Expr, str]
) -> tuple[Scope, dict[str, str]]:
    """Columns of what `lag` gives where there is no row, of its argument's type, by the function's name."""
    found: dict[str, exp.Expr] = {}
    for call in calls:
        if call.default is not None and call.argument is not None:
            type_ = scope.rows.schema[arguments[call.argument]].type
            found[call.over.name] = exp.cast(call.default, sql_type(type_), dialect="duckdb")
    scope, names = scope.computed(list(found.values()), "default")
    return scope, dict(zip(found, names, strict=True))


def _type_of(kind: str, type_: pa.DataType) -> pa.DataType | None:
    """Of a function's values; None where the engine doesn't compute it."""
    if kind in RANKS or kind == "count":
        return pa.int64()
    if not _is_plain(type_):
        return None
    if kind in ("sum", "avg"):
        is_integer = pa.types.is_integer(type_) and vectors.is_fixed(type_)
        if not (is_integer or pa.types.is_float64(type_)):
            return None
        return pa.float64() if kind == "avg" or not is_integer else pa.int64()
    return type_


def _is_plain(type_: pa.DataType) -> bool:
    """Whether values of the type are compared as they are kept."""
    return vectors.is_fixed(type_) or vectors.is_text(type_)


def _ordered_by(one: Over) -> bool:
    order = one.tree.args.get("order")
    return order is not None and all(
        isinstance(by, exp.Ordered)
        and not isinstance(by.this, exp.Literal)
        and not by.args.get("with_fill")
        for by in order.expressions
    )


def _call(one: Over) -> _Call | None:
    """What the engine computes for a window function; None where it doesn't."""
    tree, condition = one.tree.this, None
    if isinstance(tree, exp.Filter):
        tree, condition = tree.this, tree.expression.this
    kind = KINDS.get(type(tree))
    frame = _frame(one.tree.args.get("spec"))
    if kind is None or frame is None:
        return None
    argument = tree.args.get("this")
    if isinstance(argument, exp.Distinct | exp.Order) or tree.args.get("expressions"):
        return None
    if kind in ("min", "max") and tree.args.get("count"):
        return None
    n, default = 0, None
    if kind in RANKS:
        return (
            _Call(one, kind, None, None, Frame(), 0) if argument is None and not condition else None
        )
    if kind in ("lag", "nth"):
        found = _number(tree.args.get("offset"))
        if found is None or (kind == "nth" and found < 1) or condition is not None:
            return None
        n = -found if isinstance(tree, exp.Lead) else found
        default = tree.args.get("default")
    if kind in ("first", "last") and condition is not None:
        return None
    if isinstance(argument, exp.Star) or argument is None:
        if kind != "count":
            return None
        argument = None if condition is None else exp.Literal.number(1)
    if condition is not None:
        argument = exp.Case(ifs=[exp.If(this=condition.copy(), true=argument.copy())])
    lo, hi = frame.bounds or (0, 0)
    if max(abs(n) if kind == "lag" else 0, -lo, hi) > REACH_MAX or hi - lo >= WIDTH_MAX:
        return None
    return _Call(one, kind, argument, default, Frame() if kind == "lag" else frame, n)


def _number(tree: exp.Expr | None) -> int | None:
    """A whole number as it is written; 1 where nothing is."""
    if tree is None:
        return 1
    sign = 1
    if isinstance(tree, exp.Neg):
        sign, tree = -1, tree.this
    if not isinstance(tree, exp.Literal) or tree.is_string or not str(tree.this).isdecimal():
        return None
    return sign * int(tree.this)


def _frame(spec: exp.Expr | None) -> Frame | None:
    """The rows that aggregates are over; None where it is another frame."""
    if spec is None:
        return Frame(peers=True)
    if spec.args.get("exclude") is not None:
        return None
    is_rows = str(spec.args.get("kind", "")).upper() == "ROWS"
    lo = _bound(spec.args.get("start"), spec.args.get("start_side"))
    end = spec.args.get("end")
    hi = 0 if end is None else _bound(end, spec.args.get("end_side"))
    if lo == "first" and hi == 0:
        if not is_rows and str(spec.args.get("kind", "")).upper() != "RANGE":
            return None
        return Frame(peers=not is_rows)
    if not is_rows or not isinstance(lo, int) or not isinstance(hi, int):
        return None
    return Frame((lo, hi)) if lo <= hi else None


def _bound(at: object, side: object) -> int | str | None:
    if isinstance(at, str) and at.upper() == "CURRENT ROW":
        return 0
    preceding = str(side).upper() == "PRECEDING"
    if isinstance(at, str) and at.upper() == "UNBOUNDED":
        return "first" if preceding else None
    if not isinstance(at, exp.Literal) or at.is_string or not str(at.this).isdecimal():
        return None
    return -int(at.this) if preceding else int(at.this)
