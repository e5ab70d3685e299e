"""Row patterns in a WINDOW clause, as MATCH_RECOGNIZE in FROM.

    SELECT k, x OVER w, sum(v) OVER w FROM t WHERE v > 0 WINDOW w AS (… MEASURES e AS x … PATTERN … )
    ->
    SELECT k, CASE WHEN "row" <= 1 THEN "x" END, CASE WHEN "row" <= 1 THEN "sum" END
    FROM (SELECT * FROM t WHERE v > 0) MATCH_RECOGNIZE (MEASURES e AS "x", sum(v) AS "sum",
      RUNNING count(*) AS "row" ALL ROWS PER MATCH WITH UNMATCHED ROWS …) AS t

The frame of a row is the match that begins at it, and else empty. As the next match begins behind the last
row of one, each row is in one match, or in none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.walks import find_all, nodes_of
from penstock.sql.places import within
from penstock.sql.text.matches import CLAUSE, Clause, Part
from penstock.sql.text.pattern_windows import MEASURE
from penstock.sql.trees import is_aggregate

__all__ = ["without_pattern_windows"]

_ROW: Final = f"{CLAUSE} row"
"""The measure that is a row's number in its match."""
_NUMBERED: Final = (
    exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead,
)  # fmt: skip
"""Functions that have no frame."""
_UNFIT: Final = ("group", "having", "joins", "laterals", "pivots")


def without_pattern_windows(tree: exp.Expr, dialect: str) -> exp.Expr:
    """The query with a clause in FROM for each window that has a pattern.

    Raises:
        SchemaError: it isn't over one table; or a function has no such frame.
    """
    if not any(CLAUSE in one.args for one in find_all(tree, exp.Window)):
        return tree
    tree = tree.copy()
    for select in find_all(tree, exp.Select):
        found = [one for one in select.args.get("windows") or [] if CLAUSE in one.args]
        if found:
            with within(found[0]):
                _Matched(select, found, dialect).rewrite()
    return tree


class _Matched:
    """A SELECT with a window that has a pattern."""

    def __init__(self, select: exp.Select, windows: list[exp.Window], dialect: str) -> None:
        self.select, self.window, self.dialect = select, windows[0], dialect
        first = select.args.get("from_")
        if len(windows) > 1 or first is None or any(map(select.args.get, _UNFIT)):
            raise SchemaError(
                "expected one window with a pattern, in a SELECT over one table without GROUP BY; found "
                "another SELECT. Join or group in a subquery in FROM"
            )
        self.source: exp.Expr = first.this
        self.alias = self.source.alias_or_name or CLAUSE
        clause: Clause = self.window.args[CLAUSE]
        self.start, self.clause = clause.start, clause
        self.measures: dict[str, Part] = {}

    def rewrite(self) -> None:
        """Puts the clause into FROM, and its measures in place of functions over the window."""
        name = self.window.name.lower()
        for tree in self._trees():
            for node in reversed(find_all(tree, exp.Window)):
                if node.alias.lower() == name and not isinstance(node.this, _NUMBERED):
                    with within(node):
                        value = self._value(node.this)
                    if node.parent is self.select:  # a column without a name
                        value = exp.alias_(value, _label(node), quoted=True)
                    node.replace(value)
        row = Part("RUNNING count(*)", self.start, _ROW)
        clause = replace(
            self.clause,
            rows="all",
            unmatched=True,
            in_window=True,
            measures=(*self.measures.values(), row),
        )
        inner = exp.select("*").from_(self.source.copy())
        inner.set("where", self.select.args.pop("where", None))
        alias = exp.TableAlias(this=exp.to_identifier(self.alias))
        made = exp.Subquery(this=inner, alias=alias)
        made.set(CLAUSE, clause)
        self.source.replace(made)
        self.window.args.pop(CLAUSE)
        qualify = self.select.args.get("qualify")
        if qualify is not None and not find_all(qualify, exp.Window):
            self.select.set("where", exp.Where(this=self.select.args.pop("qualify").this))
        for item in self.select.expressions:
            star = item.this if isinstance(item, exp.Column) else item
            if isinstance(star, exp.Star):
                hidden = [exp.column(one, quoted=True) for one in (*self.measures, _ROW)]
                star.set("except_", [*(star.args.get("except_") or []), *hidden])

    def _trees(self) -> list[exp.Expr]:
        """What may have functions over the window."""
        clauses = [self.select.args.get(what) for what in ("qualify", "order", "distinct")]
        return [*self.select.expressions, *(one for one in clauses if one is not None)]

    def _value(self, call: exp.Expr) -> exp.Expr:
        """What stands for a function over the window."""
        if isinstance(call, exp.Anonymous) and call.name.lower() == MEASURE:
            named = call.expressions[0].name
            one = next((m for m in self.clause.measures if m.name.lower() == named.lower()), None)
            if one is None:
                known = ", ".join(m.name for m in self.clause.measures) or "none"
                raise SchemaError(
                    f"expected a measure of the window {self.window.name!r}, {known}; found {named!r}"
                )
            text, start = one.text, one.start
        else:
            text, start = self._aggregate(call), self.start
        name = next((n for n, m in self.measures.items() if m.text == text), None)
        if name is None:
            name = f"{CLAUSE} {len(self.measures)}"
            self.measures[name] = Part(text, start, name)
        counts = isinstance(call, exp.Count) or (
            isinstance(call, exp.Filter) and isinstance(call.this, exp.Count)
        )
        begins = exp.LTE(this=self._own(_ROW), expression=exp.Literal.number(1))
        default = exp.Literal.number(0) if counts else None
        return exp.Case(ifs=[exp.If(this=begins, true=self._own(name))], default=default)

    def _aggregate(self, call: exp.Expr) -> str:
        """An aggregate of the rows of a match, as a measure."""
        call = call.copy()
        for column in find_all(call, exp.Column):
            if column.table.lower() == self.alias.lower():
                column.set("table", None)
        if isinstance(call, exp.FirstValue | exp.LastValue):
            kind = "FIRST" if isinstance(call, exp.FirstValue) else "LAST"
            return f"{kind}({call.this.sql(dialect=self.dialect)})"
        if not any(map(is_aggregate, nodes_of(call))):
            raise SchemaError(
                "expected a measure, an aggregate, first_value or last_value over a window with a pattern; "
                f"found {call.sql(dialect='duckdb')!r}"
            )
        return call.sql(dialect=self.dialect)

    def _own(self, name: str) -> exp.Expr:
        return exp.column(exp.to_identifier(name, quoted=True), table=self.alias)


def _label(window: exp.Window) -> str:
    """What a column is called that is a function over a window."""
    call = window.this
    if isinstance(call, exp.Anonymous) and call.name.lower() == MEASURE:
        return str(call.expressions[0].name)
    return window.sql(dialect="duckdb", normalize_functions="lower")
