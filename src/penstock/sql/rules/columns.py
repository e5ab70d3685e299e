"""Columns by pattern, and UNION BY NAME, as columns by name. DuckDB says which they are.

SELECT max(COLUMNS('v.*')) FROM t    ->  SELECT max(v1) AS v1, max(v2) AS v2 FROM t
SELECT * LIKE 'v%' FROM t            ->  SELECT v1 AS v1, v2 AS v2 FROM t
SELECT o.* FROM t                    ->  SELECT o.a AS a, o.b AS b FROM t     where o is a STRUCT
SELECT coalesce(*COLUMNS('v.*')) …   ->  SELECT coalesce(v1, v2) …
… WHERE COLUMNS(*) IS NOT NULL       ->  … WHERE k IS NOT NULL AND v IS NOT NULL

SELECT a FROM t UNION ALL BY NAME SELECT b, a FROM u
->  SELECT a, CAST(NULL AS BIGINT) AS b FROM (SELECT a FROM t)
    UNION ALL SELECT a, b FROM (SELECT b, a FROM u)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp, parse_one

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.expr.expression import sql_type
from penstock.expr.walks import find_all
from penstock.sql.places import within
from penstock.sql.rules.names import columns_at
from penstock.sql.scope import Environment
from penstock.sql.trees import conjuncts, replaced

__all__ = ["by_position", "with_columns"]

PATTERNS: Final = (exp.Like, exp.ILike, exp.Glob, exp.SimilarTo)


def with_columns(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query with columns by name.

    Raises:
        SchemaError: a pattern is where this isn't supported, or no column is like it.
    """
    selects = [one for one in find_all(tree, exp.Select) if any(map(_is_wide, _parts(one)))]
    if selects:
        tree = tree.copy()
        selects = [one for one in find_all(tree, exp.Select) if any(map(_is_wide, _parts(one)))]
    for select in reversed(selects):  # inner ones first: those around them read their columns
        items = [made for item in select.expressions for made in _expanded(item, select, env)]
        select.set("expressions", items)
        where = select.args.get("where")
        if where is not None and any(map(_patterns, conjuncts(where.this))):
            conditions = [
                made.unalias()
                for one in conjuncts(where.this)
                for made in (_expanded(one, select, env) if _patterns(one) else [one])
            ]
            where.set("this", exp.and_(*conditions, copy=False))
    for node in find_all(tree, exp.Columns):
        if node.find_ancestor(exp.Pivot) is None:
            with within(node):
                raise SchemaError(
                    "expected COLUMNS in a SELECT list or in WHERE, one pattern in each expression; "
                    f"found {node.sql(dialect='duckdb')!r}. List the columns"
                )
    return tree


def _parts(select: exp.Select) -> list[exp.Expr]:
    where = select.args.get("where")
    return [*select.expressions, *([] if where is None else [where.this])]


def _is_wide(part: exp.Expr) -> bool:
    """Whether an item or a condition may stand for several."""
    return bool(_patterns(part)) or _is_like(part) or _is_member_star(part)


def _patterns(part: exp.Expr) -> list[exp.Columns]:
    """COLUMNS in an expression, but not in a subquery of it."""
    select = part.find_ancestor(exp.Select)
    return [one for one in find_all(part, exp.Columns) if one.find_ancestor(exp.Select) is select]


def _is_like(item: exp.Expr) -> bool:
    """`* LIKE 'a%'`."""
    if isinstance(item, exp.Star):
        return item.args.get("ilike") is not None
    item = item.this if isinstance(item, exp.Not) else item
    return isinstance(item, PATTERNS) and isinstance(item.this, exp.Star)


def _is_member_star(item: exp.Expr) -> bool:
    """`o.*`, of no table."""
    if not isinstance(item, exp.Column) or not isinstance(item.this, exp.Star):
        return False
    names: set[str] = set()
    select = item.find_ancestor(exp.Select)
    while select is not None:
        parts = [select.args.get("from_"), *(select.args.get("joins") or [])]
        names |= {one.this.alias_or_name.lower() for one in parts if one is not None}
        lateral = select.find_ancestor(exp.Lateral)  # it knows the tables around it
        select = None if lateral is None else lateral.find_ancestor(exp.Select)
    return item.table.lower() not in names


def _expanded(item: exp.Expr, select: exp.Select, env: Environment) -> list[exp.Expr]:
    """A part as one for each column, named as DuckDB does."""
    for pattern in _patterns(item):
        if pattern.args.get("unpack"):
            columns = [
                _column(pattern, name).sql("duckdb") for name in _names(pattern, select, env)
            ]
            text = item.sql("duckdb").replace(pattern.sql("duckdb"), ", ".join(columns))
            return [parse_one(text, dialect="duckdb")]
    if patterns := _patterns(item):
        if len({one.sql() for one in patterns}) > 1:
            return [item]
        pattern, label = patterns[0], item.args.get("alias")
        found = _names(pattern, select, env)
        names = found if label is None else _names(pattern, select, env, label)
        return [
            exp.alias_(replaced(item.unalias(), _instead(_column(pattern, column))), _quoted(name))
            for column, name in zip(found, names, strict=True)
        ]
    if _is_like(item):
        return [exp.column(_quoted(name)) for name in _names(item, select, env)]
    if _is_member_star(item):
        of = exp.column(item.args["table"])
        return [
            exp.alias_(exp.Dot(this=of.copy(), expression=_quoted(name)), _quoted(name))
            for name in _names(item, select, env)
        ]
    return [item]


def _column(pattern: exp.Columns, name: str) -> exp.Column:
    """A column that a pattern stands for; of its table, in COLUMNS(t.*)."""
    of = pattern.this.args.get("table") if isinstance(pattern.this, exp.Column) else None
    return exp.column(_quoted(name), table=None if of is None else of.copy())


def _instead(column: exp.Column) -> Callable[[exp.Expr], exp.Expr | None]:
    return lambda node: column.copy() if isinstance(node, exp.Columns) else None


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _names(
    item: exp.Expr, select: exp.Select, env: Environment, label: exp.Identifier | None = None
) -> Sequence[str]:
    """The columns that an item is of this SELECT, as they are called; with a label, by that."""
    asked = item.copy()
    asked.set("unpack", None)
    asking = exp.Select(expressions=[asked if label is None else exp.alias_(asked, label.copy())])
    for clause in ("from_", "joins"):
        if (part := select.args.get(clause)) is not None:
            copied = [one.copy() for one in part] if isinstance(part, list) else part.copy()
            asking.set(clause, copied)
    with within(item):
        return columns_at(asking, item, env).names


def by_position(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query without BY NAME: a column that one side doesn't have is NULL there.

    Raises:
        SchemaError: a side has columns that can't be determined.
    """
    found = [one for one in find_all(tree, exp.SetOperation) if one.args.get("by_name")]
    for one in reversed(found):  # those inside of others first
        if not isinstance(one, exp.Union):
            raise SchemaError(f"expected BY NAME after UNION; found it after {one.key.upper()}")
        sides = one.this, one.expression
        left, right = (columns_at(_rows(side), side, env) for side in sides)
        known = {field.name.lower() for field in left}
        fields = [*left, *(field for field in right if field.name.lower() not in known)]
        one.set("this", _with_all(sides[0], left, fields))
        one.set("expression", _with_all(sides[1], right, fields))
        one.args.pop("by_name")
    return tree


def _rows(side: exp.Expr) -> exp.Select:
    """`SELECT * FROM (…)`."""
    inner = side.copy()
    return exp.select("*").from_(
        inner if isinstance(inner, exp.Subquery) else exp.Subquery(this=inner)
    )


def _with_all(side: exp.Expr, mine: Schema, fields: Sequence[Field]) -> exp.Select:
    """A side with a column for each field, in their order."""
    names = {field.name.lower(): field.name for field in mine}
    items: list[exp.Expr] = []
    for field in fields:
        name = exp.to_identifier(field.name, quoted=True)
        if field.name.lower() in names:
            items.append(
                exp.column(exp.to_identifier(names[field.name.lower()], quoted=True)).as_(name)
            )
        else:
            null = exp.cast(exp.null(), sql_type(field.type), dialect="duckdb")
            items.append(exp.alias_(null, name))
    return _rows(side).select(*items, append=False)
