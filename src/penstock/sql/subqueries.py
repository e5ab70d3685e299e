"""Subqueries of an expression: each is compiled for what it sees of the rows, and joined to them.

restricted  the rows for which a condition with subqueries is true
attached    the rows with a column for each subquery, and the expression over these columns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.flow import AggregateCall
from penstock.ops.joins.table_join import How
from penstock.sql.aggregation import Called, aggregated
from penstock.sql.places import within
from penstock.sql.relation import quoted
from penstock.sql.rules.equality import by_equality
from penstock.sql.rules.temporal import filtered
from penstock.sql.scope import Answer, Carry, Environment, Scope, carried, joined_back
from penstock.sql.sources import CompileQuery, as_key
from penstock.sql.trees import aggregates, cuts, free, own, replaced, subqueries

__all__ = ["Subqueries"]


@dataclass(frozen=True)
class Subqueries:
    """The subqueries of one SELECT.

    Attributes:
        env: the tables that they may read.
        compile: what compiles them.
    """

    env: Environment
    compile: CompileQuery

    def restricted(self, scope: Scope, condition: exp.Expr) -> Scope:
        """The rows for which a condition with subqueries is true."""
        negated = isinstance(condition, exp.Not)
        inside = condition.this if isinstance(condition, exp.Not) else condition
        while isinstance(inside, exp.Paren):
            inside = inside.this
        if isinstance(inside, exp.Exists):
            if (equal := by_equality(inside.this)) is not None:
                query, given = equal
                answer = self.compile(query, self.env, None)
                return _partnered(scope, given, answer, "anti" if negated else "semi")
            answer, carry = self._asked(scope, inside.this)
            found = answer.rows.only(carry.columns)  # a partner is one however often it is there
            return joined_back(scope, found, carry, "anti" if negated else "semi")
        if isinstance(inside, exp.In) and inside.args.get("query") is not None and not negated:
            return self._in(scope, inside)
        own = scope.rows.names
        scope, plain = self.attached(scope, condition)
        scope = filtered(scope, [plain], self.env.clocks)
        return replace(scope, rows=scope.rows.only(own))  # other rows may call theirs the same

    def _asked(self, scope: Scope, query: exp.Expr) -> tuple[Answer, Carry]:
        """A subquery's answer for each combination of the columns that it has of these rows."""
        while isinstance(query, exp.Subquery) and not cuts(query):
            query = query.this
        if columns := free(query):
            carry = carried(scope, columns)
            return self.compile(query, self.env, carry), carry
        answer = self.compile(query, self.env, None)  # the same for all rows, which it is joined to
        one = Scope(answer.rows, {}).fresh("outer")
        answer = replace(answer, rows=answer.rows.added({one: "1"}))
        return answer, Carry(answer.rows.only([one]), {})

    def _in(self, scope: Scope, tree: exp.In) -> Scope:
        """`x IN (subquery)` as a condition: rows that have a partner. NULL has none."""
        given = list(tree.this.expressions) if isinstance(tree.this, exp.Tuple) else [tree.this]
        answer, carry = self._asked(scope, tree.args["query"])
        if len(answer.columns) != len(given):
            raise SchemaError(
                f"expected {len(given)} columns in IN (…); found {len(answer.columns)}"
            )
        if not carry.names:
            return _partnered(scope, given, answer, "semi")
        before = scope.rows.names
        scope, values = scope.computed(given, "value")
        mine, others = _compared(scope, values, answer)
        known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in mine)
        found = answer.rows.project({**{c: quoted(c) for c in carry.columns}, **others})
        found = found.filter(known)
        wider = Carry(found, {**carry.names, **{(None, name): name for name in mine}})
        made = replace(scope, rows=scope.rows.added(mine).filter(known))
        joined = joined_back(made, found, wider, "semi")
        return replace(joined, rows=joined.rows.only(before))

    def attached(self, scope: Scope, tree: exp.Expr) -> tuple[Scope, exp.Expr]:
        """The rows with a column for each subquery of an expression, and the expression over these."""
        done: dict[exp.Expr, exp.Expr] = {}
        for node in subqueries(tree):
            if node in done:
                continue
            with within(node):
                scope, done[node] = self._joined(scope, node)
        return scope, replaced(tree, done.get) if done else tree

    def _joined(self, scope: Scope, node: exp.Expr) -> tuple[Scope, exp.Expr]:
        """The rows with a column for a subquery, and what is in its place."""
        match node:
            case exp.Exists():
                return self._exists(scope, node)
            case exp.In():
                return self._is_in(scope, node)
            case exp.Subquery():
                return self._scalar(scope, node)
            case exp.Binary():
                return self._quantified(scope, node)
            case _:
                raise SchemaError(
                    f"expected IN (…) or EXISTS (…); found {node.sql(dialect='duckdb')!r}, which isn't "
                    "supported"
                )

    def _exists(self, scope: Scope, node: exp.Exists) -> tuple[Scope, exp.Expr]:
        answer, carry = self._asked(scope, node.this)
        name = scope.fresh("exists")
        found = answer.rows.only(carry.columns).distinct().added({name: "TRUE"})
        scope = joined_back(scope, found, carry, "left")
        return scope, exp.Not(this=exp.Is(this=own(name), expression=exp.null()))

    def _scalar(self, scope: Scope, node: exp.Subquery) -> tuple[Scope, exp.Expr]:
        answer, carry = self._asked(scope, node)
        if len(answer.columns) != 1:
            raise SchemaError(
                f"expected one column in a scalar subquery; found {len(answer.columns)} in "
                f"{node.sql(dialect='duckdb')!r}"
            )
        name = scope.fresh("scalar")
        [column] = answer.columns
        rows = answer.rows.project({**{c: quoted(c) for c in carry.columns}, name: quoted(column)})
        if not _gives_one(node):
            keys = ", ".join(map(quoted, carry.columns))
            one = f"CASE WHEN count(*) = 1 THEN any_value({quoted(name)}) END"
            rows = rows.query(
                (),
                (carry.columns,),
                f"SELECT {keys}, {one} AS {quoted(name)} FROM rows0 GROUP BY {keys}",
                placed=carry.columns,
                row_key=carry.columns,
                like=rows.schema,
            )
        return joined_back(scope, rows, carry, "left"), own(name)

    def _is_in(self, scope: Scope, node: exp.In) -> tuple[Scope, exp.Expr]:
        """`x IN (subquery)` as a value: true, false, or NULL."""
        answer, carry = self._asked(scope, node.args["query"])
        if isinstance(node.this, exp.Tuple) or len(answer.columns) != 1:
            raise SchemaError(
                "expected one value and one column in NOT IN (…), and in IN (…) below OR; found "
                f"{node.sql(dialect='duckdb')!r}. Use EXISTS"
            )
        [column] = answer.columns
        name = scope.fresh("in")
        keys = ", ".join(map(quoted, carry.columns))
        values = answer.rows.project(
            {**{c: quoted(c) for c in carry.columns}, name: quoted(column)}
        )
        *keys_of, value_ = values.schema
        all_of = Field(name, pa.list_(value_.type))
        any_null = Field(f"{name} null", pa.bool_())
        whole = values.query(
            (),
            (carry.columns,),
            f"SELECT {keys}, list(DISTINCT {quoted(name)}) AS {quoted(name)}, "
            f"count(*) > count({quoted(name)}) AS {quoted(name + ' null')} FROM rows0 GROUP BY {keys}",
            placed=carry.columns,
            row_key=carry.columns,
            like=Schema((*keys_of, all_of, any_null)),
        )
        scope = joined_back(scope, whole, carry, "left")
        value = f"({scope.sql(node.this)})"
        text = (
            f"CASE WHEN {quoted(name)} IS NULL AND {quoted(name + ' null')} IS NULL THEN FALSE "
            f"WHEN {value} IS NULL THEN NULL WHEN list_contains({quoted(name)}, {value}) THEN TRUE "
            f"WHEN {quoted(name + ' null')} THEN NULL ELSE FALSE END"
        )
        made = scope.fresh("is in")
        return replace(scope, rows=scope.rows.added({made: text})), own(made)

    def _quantified(self, scope: Scope, node: exp.Binary) -> tuple[Scope, exp.Expr]:
        """`x > ALL (subquery)`, `x <= ANY (subquery)`: true, false, or NULL."""
        query, every = node.expression.this, isinstance(node.expression, exp.All)
        if isinstance(node, exp.EQ) and not every:
            return self._is_in(scope, exp.In(this=node.this, query=query))
        if isinstance(node, exp.NEQ) and every:
            scope, held = self._is_in(scope, exp.In(this=node.this, query=query))
            return scope, exp.Not(this=held)
        answer, carry = self._asked(scope, query)
        least, most, rows, values = (
            scope.fresh(f"{what} value") for what in ("least", "most", "n", "any")
        )
        of = quoted(answer.columns[0])
        bounds_of = aggregated(
            answer.rows,
            carry.columns,
            [
                Called(least, f"min({of})", AggregateCall("min", of), counts=False),
                Called(most, f"max({of})", AggregateCall("max", of), counts=False),
                Called(rows, "count(*)", AggregateCall("count"), counts=True),
                Called(values, f"count({of})", AggregateCall("count", of), counts=True),
            ],
            None,
        )
        scope = joined_back(scope, bounds_of, carry, "left")
        value = f"({scope.sql(node.this)})"
        word = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.EQ: "=", exp.NEQ: "<>"}[
            type(node)
        ]
        if isinstance(node, exp.GT | exp.GTE):
            bounds = [most if every else least]
        elif isinstance(node, exp.LT | exp.LTE):
            bounds = [least if every else most]
        else:
            bounds = [least, most]
        each = [f"{value} {word} {quoted(bound)}" for bound in bounds]
        decided = f" {'AND' if every else 'OR'} ".join(each)
        text = (
            f"CASE WHEN coalesce({quoted(rows)}, 0) = 0 THEN {'TRUE' if every else 'FALSE'} "
            f"WHEN ({decided}) = {'FALSE' if every else 'TRUE'} THEN {'FALSE' if every else 'TRUE'} "
            f"WHEN {value} IS NULL OR {quoted(values)} < {quoted(rows)} THEN NULL "
            f"ELSE {'TRUE' if every else 'FALSE'} END"
        )
        made = scope.fresh("is so")
        return replace(scope, rows=scope.rows.added({made: text})), own(made)


def _compared(
    scope: Scope, values: Sequence[str], answer: Answer
) -> tuple[dict[str, str], dict[str, str]]:
    """Columns to add to the rows, and the answer's under the same names, each pair of one type."""
    mine: dict[str, str] = {}
    others: dict[str, str] = {}
    for i, (value, column) in enumerate(zip(values, answer.columns, strict=True)):
        name = scope.fresh(f"in {i}")
        types = scope.rows.schema[value].type, answer.rows.schema[column].type
        mine[name], others[name] = (as_key(one, *types) for one in (value, column))
    return mine, others


def _partnered(scope: Scope, given: Sequence[exp.Expr], answer: Answer, how: How) -> Scope:
    """The rows whose values are among an answer's rows, or aren't. NULL is equal to nothing."""
    before = scope.rows.names
    made, values = scope.computed(given, "value")
    mine, others = _compared(made, values, answer)
    rows = made.rows.added(mine)
    theirs = {f"{name} of": text for name, text in others.items()}
    joined = rows.join(answer.rows.project(theirs), list(zip(mine, theirs, strict=True)), how)
    return replace(scope, rows=joined.only(before))


def _gives_one(node: exp.Subquery) -> bool:
    """Whether a scalar subquery gives one row for sure: an aggregate without groups."""
    query = node.this
    while isinstance(query, exp.Subquery):
        query = query.this
    return (
        isinstance(query, exp.Select)
        and query.args.get("group") is None
        and any(aggregates(item) for item in query.expressions)
        and not query.args.get("having")
    )
