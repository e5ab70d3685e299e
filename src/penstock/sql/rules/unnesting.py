"""UNNEST: a row for each element, in FROM and in SELECT. It is always of one array, beside the rows so far.

FROM t LEFT JOIN UNNEST(t.l) AS u(x) ON TRUE    ->  UNNEST(CASE WHEN len(t.l) > 0 THEN t.l ELSE [NULL] END)
FROM t, UNNEST(t.l) WITH ORDINALITY AS u(x, n)  ->  UNNEST(list_transform(t.l, lambda e, n: {…: e, …: n}))
FROM t, generate_series(1, t.k) AS g(i)         ->  FROM t, UNNEST(generate_series(1, t.k)) AS g(i)
SELECT generate_series(1, k) FROM t             ->  SELECT UNNEST(generate_series(1, k)) FROM t (PostgreSQL's)
FROM t, json_each(t.p) AS e                     ->  FROM t, UNNEST([{'key': …, 'value': …}, …]) AS e

In SELECT, the rows are made before DISTINCT, ORDER BY and LIMIT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp, parse_one

from penstock.core.names import known_names
from penstock.errors import SchemaError
from penstock.expr.walks import find_all
from penstock.flow.algebra.rows import unnest
from penstock.sql.relation import quoted
from penstock.sql.scope import Scope
from penstock.sql.trees import Name

__all__ = ["MAKE_ROWS", "array_of", "beside", "elements", "with_json_each", "with_series"]

MAKE_ROWS: Final = (exp.Explode, exp.Unnest)
"""What gives several rows where it stands in SELECT."""
_MEMBER: Final = "{{'key': {key}, 'value': {value}, 'type': json_type({value})}}"
_EACH: Final = (
    "CASE json_type({of}) WHEN 'OBJECT' THEN list_transform(json_keys({of}), lambda k: {member}) "
    "WHEN 'ARRAY' THEN list_transform(range(CAST(json_array_length({of}) AS BIGINT)), lambda i: {item}) "
    "ELSE CASE WHEN {of} IS NOT NULL THEN [{whole}] END END"
)
"""The rows of `json_each`. A name may have any characters, so a pointer finds the member (RFC 6901)."""


def with_series(tree: exp.Expr) -> exp.Expr:
    """The query with UNNEST of arrays for `generate_series` and `range` in FROM, and where they make rows."""
    for rows in find_all(tree, exp.ExplodingGenerateSeries):
        above, array = rows.parent, exp.GenerateSeries(**rows.args)
        rows.replace(array)
        if not isinstance(above, exp.Table | exp.Explode | exp.Unnest):
            array.replace(exp.Explode(this=array.copy()))
    for series in find_all(tree, exp.GenerateSeries):
        table = series.parent
        if not isinstance(table, exp.Table):
            continue
        name = "range" if series.args.get("is_end_exclusive") else "generate_series"
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or name))
        columns = table.alias_column_names or [table.alias or name]
        alias.set("columns", [exp.to_identifier(columns[0])])
        made = exp.Unnest(expressions=[series.copy()], alias=alias, offset=False)
        if (joins := table.args.get("joins")) is not None:
            made.set("joins", joins)
        table.replace(made)
    return tree


def with_json_each(tree: exp.Expr) -> exp.Expr:
    """The query with UNNEST of an array for `json_each` in FROM.

    Raises:
        SchemaError: its columns are given other names.
    """
    for call in find_all(tree, exp.Anonymous):
        table = call.parent
        if call.name.lower() != "json_each" or not isinstance(table, exp.Table | exp.Lateral):
            continue
        if table.alias_column_names or not 1 <= len(call.expressions) <= 2:
            raise SchemaError(
                "expected json_each(document) or json_each(document, path) with columns called key, value "
                f"and type; found {table.sql(dialect='duckdb')!r}. Write json_each(t.p) AS e, and e.key"
            )
        of = call.expressions[0].sql(dialect="duckdb")
        if len(call.expressions) > 1:
            of = f"json_extract({of}, {call.expressions[1].sql(dialect='duckdb')})"
        pointer = "'/' || replace(replace(k, '~', '~0'), '/', '~1')"
        text = _EACH.format(
            of=f"({of})",
            member=_MEMBER.format(key="k", value=f"json_extract(({of}), {pointer})"),
            item=_MEMBER.format(key="CAST(i AS VARCHAR)", value=f"json_extract(({of}), i)"),
            whole=_MEMBER.format(key="CAST(NULL AS VARCHAR)", value=f"CAST(({of}) AS JSON)"),
        )
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or "json_each"))
        array = parse_one(text, dialect="duckdb")
        made = exp.Unnest(expressions=[array], alias=alias, offset=False)
        if (joins := table.args.get("joins")) is not None:
            made.set("joins", joins)
        table.replace(made)
    return tree


def array_of(node: exp.Expr) -> exp.Expr:
    """The array that an UNNEST in SELECT is of.

    Raises:
        SchemaError: it is of more than that.
    """
    options = [] if isinstance(node, exp.Unnest) else node.expressions
    arrays: list[exp.Expr] = node.expressions if isinstance(node, exp.Unnest) else [node.this]
    if len(arrays) != 1 or options:
        raise SchemaError(
            f"expected UNNEST of one array in SELECT; found {node.sql(dialect='duckdb')!r}"
        )
    return arrays[0]


def elements(scope: Scope, array: exp.Expr, name: str, form: str = "{}") -> tuple[Scope, str]:
    """The rows with one for each element of an array.

    Args:
        scope: the rows.
        array: an expression over them.
        name: of the column of elements, if there is none of that name.
        form: SQL of the array that is taken for it, with `{}` where it is.

    Returns:
        The rows, and the column's name.

    Raises:
        SchemaError: it is no array.
    """
    scope, [whole] = scope.computed([array], "array")
    made = scope.fresh(name)
    if not pa.types.is_list(found := scope.rows.schema[whole].type):
        raise SchemaError(f"expected an array in UNNEST; found {found}")
    rows = scope.rows.added(
        {made: form.format(quoted(whole).replace("{", "{{").replace("}", "}}"))}
    )
    return replace(scope, rows=rows.over(unnest(rows.node, made, made))), made


def beside(scope: Scope, source: exp.Unnest, how: str, wanted: Mapping[Name, str]) -> Scope:
    """The rows with those of an UNNEST beside them.

    Args:
        scope: the rows so far.
        source: an UNNEST in FROM.
        how: `"inner"`, or `"left"`, which keeps rows without elements.
        wanted: the columns that the SELECT needs, with their tables' names.

    Raises:
        SchemaError: it isn't of one array, or a column isn't there.
    """
    alias, labels, number = (
        source.alias_or_name,
        source.alias_column_names,
        source.args.get("offset"),
    )
    if len(source.expressions) != 1 or (number and not (labels and isinstance(number, exp.Expr))):
        raise SchemaError(
            "expected UNNEST of one array, as in FROM t, UNNEST(t.tags) AS u(tag), or with a number "
            "UNNEST(t.tags) WITH ORDINALITY AS u(tag, n); found "
            f"{source.sql(dialect='duckdb')!r}"
        )
    form = "list_transform({0}, lambda e, n: {{'element': e, 'number': n}})" if number else "{0}"
    if how == "left":
        form = f"CASE WHEN len({{0}}) > 0 THEN {form} ELSE [NULL] END"
    made, element = elements(scope, source.expressions[0], f"{alias}.element", form)
    columns = [name for of, name in wanted if of == alias]
    is_whole = bool(labels) or not pa.types.is_struct(made.rows.schema[element].type)
    if number:
        members = {n: "number" if n.lower() == number.name.lower() else "element" for n in columns}
    elif is_whole:
        return replace(made, names={**made.names, **{(alias, name): element for name in columns}})
    else:
        members = _members(made.rows.schema[element].type, alias, columns)
    names = dict(made.names)
    added: dict[str, str] = {}
    for name, member in members.items():
        names[alias, name] = made.fresh(f"{alias}.{name}", added)
        added[names[alias, name]] = f"struct_extract({quoted(element)}, '{member}')"
    return Scope(made.rows.added(added), names)


def _members(type_: Any, alias: str, columns: list[str]) -> dict[str, str]:
    """The members of objects that columns of an UNNEST without names are.

    Raises:
        SchemaError: one isn't there.
    """
    members = {member.name.lower(): member.name for member in type_}
    for name in columns:
        if name.lower() not in members:
            raise SchemaError(
                f"expected one of the members {known_names(list(members))} of {alias!r}; found {name!r}. "
                f"Name the object: UNNEST(…) AS {alias}(one)"
            )
    return {name: members[name.lower()].replace("'", "''") for name in columns}
