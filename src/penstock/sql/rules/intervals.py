"""Interval joins: two streams whose event times are at most some intervals apart, by the condition.

    b.at BETWEEN a.at - INTERVAL 1 MINUTE AND a.at + INTERVAL 1 HOUR   ->  before 1 minute, after 1 hour

What is recognised is a lower and an upper bound of the difference of both streams' event times. Rows are then
kept for as long as a partner may come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.core.time import duration_us
from penstock.errors import UserError
from penstock.flow.algebra.clocks import event_time_column
from penstock.flow.interval_join import WITHIN_MAX_US
from penstock.sql.scope import Scope
from penstock.sql.trees import name_of

__all__ = ["Apart", "after_event_time", "apart", "interval_us"]


@dataclass(frozen=True)
class Apart:
    """How far apart in time rows of two streams are.

    Attributes:
        before_us: how far a right row may lie before its left row; below 0 where it must lie after it.
        after_us: how far after it.
        used: the conditions that say so.
    """

    before_us: int
    after_us: int
    used: tuple[exp.Expr, ...]


def apart(conditions: Sequence[exp.Expr], left: Scope, right: Scope) -> Apart | None:
    """What conditions say about the distance of two streams' rows; None where they don't bound it."""
    times = event_time_column(left.rows.node), event_time_column(right.rows.node)
    if None in times or left.window is not None or right.window is not None:
        return None
    least: int | None = None
    most: int | None = None
    used: list[exp.Expr] = []
    for condition in conditions:
        for kind, one, two in _compared(condition):
            distance = _distance(one, two, (left, right), times)
            if distance is None:
                break
            sign, us = distance  # kind says of sign * (right's time - left's) what it is beside us
            low = sign > 0 if kind in (exp.GT, exp.GTE) else sign < 0
            limit = sign * us
            if kind in (exp.GT, exp.LT):
                limit += 1 if low else -1
            if low or kind is exp.EQ:
                least = limit if least is None else max(least, limit)
            if not low or kind is exp.EQ:
                most = limit if most is None else min(most, limit)
        else:
            used.append(condition)
    if least is None or most is None or least > most or max(abs(least), abs(most)) > WITHIN_MAX_US:
        return None
    return Apart(-least, most, tuple(used))


def after_event_time(tree: exp.Expr, scope: Scope) -> int | None:
    """µs after its row's event time that a time lies; None where it is another one.

    Args:
        tree: the time.
        scope: the rows.
    """
    column = event_time_column(scope.rows.node)
    found = None if column is None else _time(tree, (scope, scope), (column, None))
    return None if found is None else found[1]


def _compared(condition: exp.Expr) -> list[tuple[type[exp.Expr], exp.Expr, exp.Expr]]:
    """The comparisons that a condition is; an empty one breaks off."""
    match condition.unnest():
        case exp.Between() as between:
            low, high = between.args["low"], between.args["high"]
            return [(exp.GTE, between.this, low), (exp.LTE, between.this, high)]
        case exp.GT() | exp.GTE() | exp.LT() | exp.LTE() | exp.EQ() as one:
            return [(type(one), one.this, one.expression)]
        case _:
            return [(exp.EQ, exp.null(), exp.null())]


def _distance(
    one: exp.Expr,
    two: exp.Expr,
    sides: tuple[Scope, Scope],
    times: tuple[str | None, str | None],
) -> tuple[int, int] | None:
    """`one` beside `two` as `sign * (right's time - left's)` beside µs."""
    for difference, other, turned in ((one, two, 1), (two, one, -1)):
        inside, us = difference.unnest(), interval_us(other)
        if isinstance(inside, exp.Sub) and us is not None:
            first, second = (_time(part, sides, times) for part in (inside.this, inside.expression))
            if first is None or second is None or first[0] == second[0]:
                return None
            sign = turned if first[0] else -turned
            return sign, turned * (us - first[1] + second[1])
    first, second = _time(one, sides, times), _time(two, sides, times)
    if first is None or second is None or first[0] == second[0]:
        return None
    return (1 if first[0] else -1), second[1] - first[1]


def _time(
    tree: exp.Expr, sides: tuple[Scope, Scope], times: tuple[str | None, str | None]
) -> tuple[int, int] | None:
    """A side's event time with intervals added: which side, and µs."""
    match tree.unnest():
        case exp.Column() as column:
            for side in (0, 1):
                name = sides[side].names.get(name_of(column))
                if name is not None and name == times[side]:
                    return side, 0
        case exp.Add() | exp.Sub() as sum_:
            base, added = sum_.this, interval_us(sum_.expression)
            if added is None and isinstance(sum_, exp.Add):
                base, added = sum_.expression, interval_us(sum_.this)
            found = _time(base, sides, times)
            if found is not None and added is not None:
                return found[0], found[1] + (added if isinstance(sum_, exp.Add) else -added)
    return None


def interval_us(tree: exp.Expr) -> int | None:
    """A constant interval of fixed length."""
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        us = interval_us(tree.this)
        return None if us is None else -us
    if not isinstance(tree, exp.Interval) or not isinstance(tree.this, exp.Literal):
        return None
    unit = tree.args.get("unit")
    whole = unit is None or tree.this.this.isdigit() or tree.args.get("fraction_in_string")
    if not whole:  # DuckDB cuts INTERVAL 1.5 HOURS, and not INTERVAL '1.5 hours'
        return None
    try:
        return duration_us(f"{tree.this.this} {'' if unit is None else unit.name}".strip())
    except UserError:
        return None
