"""PIVOT over given values as aggregates with FILTER, and UNPIVOT as SELECTs that are united.

    PIVOT t ON k IN (1, 2) USING sum(v) GROUP BY id
    ->  SELECT id, sum(v) FILTER (WHERE k = 1) AS "1", sum(v) FILTER (WHERE k = 2) AS "2"
        FROM t GROUP BY id

    UNPIVOT t ON a, b INTO NAME n VALUE v
    ->  SELECT id, 'a' AS n, a AS v FROM t WHERE a IS NOT NULL
        UNION ALL SELECT id, 'b' AS n, b AS v FROM t WHERE b IS NOT NULL

DuckDB says what the columns are called; without GROUP BY these are also what rows are grouped by. It compares
the values as text, so that a DOUBLE of 1.0 isn't among IN (1).
"""

from __future__ import annotations

from functools import reduce
from itertools import product

import pyarrow as pa
from sqlglot import exp

from penstock.errors import SchemaError
from penstock.sql.rules.names import columns_at
from penstock.sql.scope import Environment
from penstock.sql.trees import aggregates, replaced

__all__ = ["without_pivots"]

UNPIVOTED = "unpivoted rows"
"""What an UNPIVOT's source is called, which is read once for each column."""


def without_pivots(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query without PIVOT and UNPIVOT.

    Raises:
        SchemaError: the columns depend on the data, or DuckDB finds something wrong.
    """
    if tree.find(exp.Pivot) is None:
        return tree
    tree = tree.copy()
    if any(_is_of_join(pivot) for pivot in tree.find_all(exp.Pivot)):
        raise SchemaError(
            "expected PIVOT after a table or a subquery; found it after a JOIN. Write "
            "FROM (SELECT … FROM a JOIN b …) PIVOT (…)"
        )
    for node in reversed(
        list(tree.find_all(exp.Pivot, exp.Table, exp.Subquery))
    ):  # inner ones first
        if isinstance(node, exp.Pivot) and node.this is not None:
            node.replace(_rewritten(node, node.this, node, env))
        elif pivots := node.args.get("pivots"):
            source = node.copy()
            source.set("pivots", None)
            for pivot in pivots:
                alias = pivot.args.get("alias")
                source = exp.Subquery(this=_rewritten(pivot, source, node, env))
                source.set("alias", None if alias is None else alias.copy())
            node.replace(source)
    return tree


def _is_of_join(pivot: exp.Pivot) -> bool:
    """Whether it follows a JOIN, all of which DuckDB takes as its source; a comma is none."""
    if pivot.this is not None:
        return False
    above = pivot.parent if isinstance(pivot.parent, exp.Join) else pivot.parent.parent  # type: ignore[union-attr]
    return isinstance(above, exp.Join) and {n for n, value in above.args.items() if value} != {
        "this"
    }


def _rewritten(pivot: exp.Pivot, source: exp.Expr, place: exp.Expr, env: Environment) -> exp.Query:
    """The query that a PIVOT or an UNPIVOT is.

    Args:
        pivot: it.
        source: that it is over.
        place: where it stands in the tree.
        env: the tables.
    """
    made = _Pivot(pivot, source, place, env)
    return made.unpivoted() if pivot.args.get("unpivot") else made.pivoted()


class _Pivot:
    """One of them."""

    def __init__(
        self, pivot: exp.Pivot, source: exp.Expr, place: exp.Expr, env: Environment
    ) -> None:
        self.pivot, self.source, self.place, self.env = pivot, source, place, env

    def pivoted(self) -> exp.Query:
        is_statement = self.pivot.this is not None
        on = self.pivot.args.get("expressions" if is_statement else "fields") or []
        using = self.pivot.args.get("using" if is_statement else "expressions") or []
        using = using or [exp.Count(this=exp.Star())]
        conditions = [self._conditions(one) for one in on]
        if not conditions:
            raise SchemaError("expected PIVOT t ON k IN (1, 2) USING sum(v); found no ON")
        names = self._names()
        combinations = [exp.and_(*one) for one in product(*conditions)]
        made = len(names) - len(combinations) * len(using)
        groups = [_column(name) for name in names[:made]]
        items: list[exp.Expr] = list(groups)
        each = product(combinations, using)
        for name, (condition, call) in zip(names[made:], each, strict=True):
            items.append(exp.alias_(_filtered(call, condition), _quoted(name)))
        query = exp.select(*items).from_(self.source.copy())
        return query.group_by(*(group.copy() for group in groups)) if groups else query

    def unpivoted(self) -> exp.Query:
        entries = self.pivot.args["expressions"]
        if self.pivot.this is None:
            entries = self.pivot.args["fields"][0].expressions
        names = self._names()
        *rest, label, value = names
        source = self.source
        if shared := not isinstance(source, exp.Table):
            source = exp.Table(this=_quoted(UNPIVOTED))
        parts = []
        for name, tree in (one for entry in entries for one in self._entries(entry)):
            columns = [_column(one) for one in rest]
            items = [exp.Literal.string(name).as_(_quoted(label)), tree.as_(_quoted(value))]
            part = exp.select(*columns, *items).from_(source.copy())
            if not self.pivot.args.get("include_nulls"):
                part = part.where(exp.not_(exp.Is(this=tree.copy(), expression=exp.null())))
            parts.append(part)
        query = reduce(lambda one, two: exp.union(one, two, distinct=False), parts)  # type: ignore[arg-type,return-value]
        if shared:
            rows = exp.select("*").from_(self.source.copy())
            query = query.with_(_quoted(UNPIVOTED), as_=rows)
        return query

    def _entries(self, entry: exp.Expr) -> list[tuple[str, exp.Expr]]:
        """The columns that an entry of UNPIVOT stands for: what each is called, and is."""
        if isinstance(entry, exp.PivotAlias | exp.Alias):
            return [(entry.args["alias"].name, entry.this)]
        if isinstance(entry, exp.Tuple):
            raise SchemaError(
                "expected UNPIVOT with one column of values; found "
                f"{entry.sql(dialect='duckdb')!r}. Unite SELECTs with UNION ALL"
            )
        found = self._asked(exp.select(entry.copy()).from_(self.source.copy()))
        if len(found) == 1 and entry.find(exp.Star) is None:
            return [(found[0], entry)]
        return [(name, _column(name)) for name in found]

    def _names(self) -> tuple[str, ...]:
        """What DuckDB calls the columns of the result."""
        if self.pivot.this is not None:
            plain = self.pivot.copy()
            plain.set("with_", None)
            whole: exp.Expr = exp.Subquery(this=plain)
        else:
            whole, plain = self.source.copy(), self.pivot.copy()
            plain.set("alias", None)
            whole.set("pivots", [plain])
        return self._asked(exp.select("*").from_(whole))

    def _asked(self, query: exp.Expr) -> tuple[str, ...]:
        return columns_at(query, self.place, self.env).names

    def _conditions(self, on: exp.Expr) -> list[exp.Expr]:
        """A condition for each value of `k IN (…)`."""
        if not isinstance(on, exp.In) or not on.expressions or on.find(exp.PivotAny):
            raise _of_data(self.pivot)
        keys = list(on.this.expressions) if isinstance(on.this, exp.Tuple) else [on.this]
        if not all(isinstance(key, exp.Column | exp.Paren | exp.Func) for key in keys):
            raise _of_data(self.pivot)
        asked = exp.select(*(key.copy() for key in keys)).from_(self.source.copy())
        types = [field.type for field in columns_at(asked, self.place, self.env)]
        found: list[exp.Expr] = []
        for one in on.expressions:
            given = one.this if isinstance(one, exp.PivotAlias | exp.Alias) else one
            values = given.expressions if isinstance(given, exp.Tuple) else [given]
            found.append(
                exp.and_(*(_is(k, t, v) for k, t, v in zip(keys, types, values, strict=True)))
            )
        return found


def _is(key: exp.Expr, type_: pa.DataType, value: exp.Expr) -> exp.Expr:
    """Whether a row's key is a value: as text, but where that is the same."""
    if isinstance(value, exp.Column):  # a word without quotes
        value = exp.Literal.string(value.name)
    if isinstance(value, exp.Null):
        return exp.Is(this=key.copy(), expression=exp.null())
    if isinstance(value, exp.Literal):
        is_plain = value.is_string if pa.types.is_string(type_) else False
        if is_plain or (value.is_int and pa.types.is_integer(type_)):
            return exp.EQ(this=key.copy(), expression=value.copy())
    one, two = (exp.cast(part.copy(), "VARCHAR", dialect="duckdb") for part in (key, value))
    return exp.EQ(this=one, expression=two)


def _filtered(call: exp.Expr, condition: exp.Expr) -> exp.Expr:
    """An aggregate, or an expression of one, over the rows of a condition."""
    tree = call.this if isinstance(call, exp.Alias) else call
    found = aggregates(tree)
    if len(found) != 1 or found[0].find(exp.Filter):
        raise SchemaError(
            "expected one aggregate without FILTER in each expression of PIVOT; found "
            f"{tree.sql(dialect='duckdb')!r}. Filter before, in FROM (SELECT … WHERE …)"
        )
    where = exp.Where(this=condition.copy())
    made = {found[0]: exp.Filter(this=found[0].copy(), expression=where)}
    return replaced(tree, made.get).copy()


def _of_data(pivot: exp.Pivot) -> SchemaError:
    return SchemaError(
        "expected the values of PIVOT, as in PIVOT t ON k IN (1, 2) USING sum(v); found "
        f"{pivot.sql(dialect='duckdb').strip()!r}, whose columns would be those values that the data has, "
        "and change with it. List them, or GROUP BY k for a row for each"
    )


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _column(name: str) -> exp.Column:
    return exp.column(_quoted(name))
