"""Temporal filters: conditions with now(), which rows fulfil from some time on, or until some time.

    at > now() - INTERVAL 1 HOUR            ->  now() < at + INTERVAL 1 HOUR
    at BETWEEN now() - INTERVAL 1 DAY AND now()  ->  now() <= at + INTERVAL 1 DAY AND now() >= at

now() is the least watermark of the streams that the query reads (`clocks_of`). So what a view shows depends
on the rows and the watermarks, and a replay gives the same. The rewritten condition is SQL, and means the
same: intervals are of fixed length, so they may be moved from one side to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from penstock.core.time import EVENT_MAX_US, INSTANT_MAX_US
from penstock.errors import SchemaError
from penstock.expr.duck import borrowed
from penstock.expr.walks import find_all, nodes_of
from penstock.flow.algebra.queries import lasting
from penstock.flow.graph import Node, Source, ancestors
from penstock.sql.places import within
from penstock.sql.relation import Relation
from penstock.sql.rules.intervals import after_event_time
from penstock.sql.scope import Environment, Scope
from penstock.sql.trees import shallow, subqueries

__all__ = ["clocks_of", "filtered", "is_temporal", "with_bounds", "without_bounds"]

NAMES: Final = frozenset({"now", "get_current_timestamp", "transaction_timestamp"})
OTHERS: Final = (exp.CurrentDate, exp.CurrentTime, exp.Localtime, exp.Localtimestamp)
FLIPPED: Final[dict[type[exp.Expr], type[exp.Binary]]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}
NEGATED: Final[dict[type[exp.Expr], type[exp.Binary]]] = {
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
}
CLAUSES: Final = ("where", "having", "qualify")
LONG_UNITS: Final = ("MONTH", "QUARTER", "YEAR", "DECADE", "CENTUR", "MILLENNI")
FIRST: Final = "TIMESTAMPTZ '0001-01-01 00:00:00Z'"
LAST: Final = "TIMESTAMPTZ '9999-12-31 23:59:59.999998Z'"
"""A microsecond before the last instant that a column can have, as one is added where it is included."""
FORM: Final = "WHERE at > now() - INTERVAL 1 HOUR"


# -- the rule ---------------------------------------------------------------------------------------


def with_bounds(tree: exp.Expr) -> exp.Expr:
    """The query with now() alone on the left side of conditions: `now() < at + INTERVAL 1 HOUR`.

    Raises:
        SchemaError: now() stands elsewhere, or in a condition that can't be brought into this form.
    """
    if not any(map(_reads_clock, nodes_of(tree))):
        return tree
    tree = tree.copy()
    for select in find_all(tree, exp.Select):
        for name in CLAUSES:
            clause = select.args.get(name)
            if clause is not None and _has_now(clause.this):
                clause.set("this", _bounded(clause.this))
        for join in select.args.get("joins") or ():
            on = join.args.get("on")
            if on is not None and _has_now(on):
                join.set("on", _bounded(on))
    odd = next(filter(_reads_clock, nodes_of(without_bounds(tree))), None)
    if odd is not None:
        name = "now" if _is_now(odd) else odd.sql(dialect="duckdb").lower()
        error = SchemaError(
            f"expected now() in a condition that AND connects to others, as in {FORM}; found "
            f"{name}{'()' if name == 'now' else ''} elsewhere. For what depends on the wall clock, use it in "
            "the query over the view"
        )
        error.near = name, 0
        raise error
    return tree


def without_bounds(tree: exp.Expr) -> exp.Expr:
    """The query without its conditions on now()."""
    if not any(map(is_temporal, nodes_of(tree))):
        return tree
    return tree.transform(lambda node: exp.true() if is_temporal(node) else node)


def is_temporal(tree: exp.Expr) -> bool:
    """Whether a condition is one of now() alone on the left side."""
    return type(tree) in FLIPPED and _is_now(tree.this)


def _bounded(tree: exp.Expr) -> exp.Expr:
    """A condition, those that AND connects with now() alone on the left."""
    with within(tree):
        return _moved(tree)


def _moved(tree: exp.Expr) -> exp.Expr:
    """See `_bounded`."""
    match tree:
        case _ if not _has_now(tree):
            return tree
        case exp.And():
            return exp.And(this=_bounded(tree.this), expression=_bounded(tree.expression))
        case exp.Paren():
            return _bounded(tree.this)
        case exp.Between():
            low = exp.GTE(this=tree.this.copy(), expression=tree.args["low"])
            high = exp.LTE(this=tree.this.copy(), expression=tree.args["high"])
            return exp.And(this=_bounded(low), expression=_bounded(high))
        case exp.Not() if type(inside := tree.this.unnest()) in NEGATED:
            opposite = NEGATED[type(inside)]
            return _bounded(opposite(this=inside.this, expression=inside.expression))
        case _ if type(tree) in FLIPPED and isinstance(tree, exp.Binary):
            return _alone(tree)
        case _:
            raise _odd(tree)


def _alone(condition: exp.Binary) -> exp.Expr:
    """A comparison with now() alone on its left side."""
    kind: type[exp.Binary] = type(condition)
    left, right = condition.this.unnest(), condition.expression.unnest()
    if not _has_now(left):
        kind, left, right = FLIPPED[kind], right, left
    moved: list[exp.Expr] = []
    while not _is_now(left):
        if not isinstance(left, exp.Add | exp.Sub) or _has_now(right):
            raise _odd(condition)
        one, two = left.this.unnest(), left.expression.unnest()
        moved += [right, two if _has_now(one) else one]
        if _has_now(one):
            made = exp.Sub if isinstance(left, exp.Add) else exp.Add
            left, right = one, made(this=_closed(right), expression=_closed(two))
        elif isinstance(left, exp.Add):
            left, right = two, exp.Sub(this=_closed(right), expression=_closed(one))
        else:
            kind = FLIPPED[kind]
            left, right = two, exp.Sub(this=_closed(one), expression=_closed(right))
    if _has_now(right) or subqueries(right):
        raise _odd(condition)
    if any(_is_long(one) for one in moved):
        raise SchemaError(
            "expected an interval of fixed length, such as INTERVAL 30 DAYS, next to now(); found "
            f"{_shown(condition)}: months and years differ in length"
        )
    return kind(this=_now(), expression=right)


def _closed(tree: exp.Expr) -> exp.Expr:
    return exp.Paren(this=tree.copy()) if isinstance(tree, exp.Binary) else tree.copy()


def _is_long(tree: exp.Expr) -> bool:
    """Whether an interval in it is of months, or may be."""
    for cast in find_all(tree, exp.Cast):
        if cast.is_type(exp.DataType.Type.INTERVAL) and (
            not isinstance(cast.this, exp.Literal) or _has_months(cast.this.this)
        ):
            return True
    intervals = find_all(tree, exp.Interval)
    if any(one.args.get("unit") is None and _has_months(one.name) for one in intervals):
        return True
    names = [one.name.upper() for one in find_all(tree, exp.Anonymous)]
    texts = [one.sql(dialect="duckdb").upper() for one in intervals] + names
    return "AGE" in names or any(unit in text for text in texts for unit in LONG_UNITS)


def _has_months(text: str) -> bool:
    """Whether an interval's text has months or years, however they are abbreviated."""
    parts = "SELECT year(i) <> 0 OR month(i) <> 0 FROM (SELECT TRY_CAST(? AS INTERVAL) AS i)"
    with borrowed() as con:
        [(found,)] = con.execute(parts, [text]).fetchall()
    return bool(found)


def _now() -> exp.Expr:
    return exp.Anonymous(this="now")


def _is_now(tree: exp.Expr) -> bool:
    if isinstance(tree, exp.CurrentTimestamp):
        return True
    return isinstance(tree, exp.Anonymous) and tree.name.lower() in NAMES


def _has_now(tree: exp.Expr) -> bool:
    """Whether now() is in an expression itself; subqueries have clauses of their own."""
    return any(map(_reads_clock, shallow(tree)))


def _reads_clock(node: exp.Expr) -> bool:
    return _is_now(node) or isinstance(node, OTHERS)


def _odd(tree: exp.Expr) -> SchemaError:
    return SchemaError(
        f"expected a comparison of columns with now() and intervals, as in {FORM}; found "
        f"{_shown(tree)}"
    )


def _shown(tree: exp.Expr) -> str:
    return repr(tree.sql(dialect="duckdb", normalize_functions=False))


# -- what is made of it -----------------------------------------------------------------------------


def clocks_of(named: Iterable[str], env: Environment) -> tuple[Source, ...]:
    """Whose watermarks are a query's now(): the streams that it reads; of tables alone, these.

    Args:
        named: the tables that the query names.
        env: the tables that it may name.
    """
    nodes = [env.tables[name].rows.node for name in named if name in env.tables]
    found = {one: None for node in nodes for one in ancestors(node) if isinstance(one, Source)}
    sources = sorted(found, key=lambda one: one.topic)
    streams = tuple(one for one in sources if one.changelog is None)
    return streams or tuple(sources)


def filtered(scope: Scope, conditions: Sequence[exp.Expr], clocks: Sequence[Node]) -> Scope:
    """The rows for which all conditions are true.

    Args:
        scope: the rows.
        conditions: without subqueries; some may be of now().
        clocks: whose frontiers now() is.

    Raises:
        SchemaError: a column isn't there; or now() is asked of rows that windows are to be made of, or
            where nothing has a watermark.
    """
    for condition in conditions:
        if not is_temporal(condition):
            scope = replace(scope, rows=scope.rows.filter(scope.sql(condition)))
    bounds = [condition for condition in conditions if is_temporal(condition)]
    if not bounds:
        return scope
    if scope.window is not None:
        raise SchemaError(
            "expected windows without a condition on now(), as they end by themselves; found "
            f"{_shown(bounds[0])}. Filter the windows in a query around this one"
        )
    if not clocks:
        raise SchemaError(
            "expected a stream or table next to now(), whose watermark it is; found "
            f"{_shown(bounds[0])} in a query over constants alone"
        )
    starts, ends = [], []
    for bound in bounds:
        time = _instant(scope, bound.expression)
        after = f"({time} + INTERVAL 1 MICROSECOND)"
        match bound:
            case exp.LT():
                ends.append(time)
            case exp.LTE():
                ends.append(after)
            case exp.GT():
                starts.append(after)
            case exp.GTE():
                starts.append(time)
            case _:
                starts.append(time)
                ends.append(after)
    return replace(scope, rows=_lasting(scope, starts, ends, clocks))


def _instant(scope: Scope, tree: exp.Expr) -> str:
    """A time as an instant that a column can have: infinity is one that now() never reaches."""
    time = f"CAST(({scope.sql(tree)}) AS TIMESTAMPTZ)"
    after_us = after_event_time(tree, scope)
    if after_us is not None and abs(after_us) < INSTANT_MAX_US - EVENT_MAX_US:
        return time
    return (
        f"CASE WHEN {time} > {LAST} THEN {LAST} WHEN {time} < {FIRST} THEN {FIRST} ELSE {time} END"
    )


def _lasting(
    scope: Scope, starts: Sequence[str], ends: Sequence[str], clocks: Sequence[Node]
) -> Relation:
    before = scope.rows.names
    named: dict[str, str] = {}
    for name, times, choose in (("starts", starts, "greatest"), ("ends", ends, "least")):
        if times:
            known = " OR ".join(f"{time} IS NULL" for time in times)
            text = times[0] if len(times) == 1 else f"{choose}({', '.join(times)})"
            text = text if len(times) == 1 else f"CASE WHEN {known} THEN NULL ELSE {text} END"
            named[scope.fresh(name)] = text
    columns = list(named)
    rows = scope.rows.added(named)
    first, last = columns[0] if starts else None, columns[-1] if ends else None
    return rows.over(lasting(rows.node, clocks, first, last)).only(before)
