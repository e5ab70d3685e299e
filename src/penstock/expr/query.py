"""Whole queries: which columns they give, and whether they give the same whenever they are computed."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa

from penstock.core.schema import Field, Schema, type_text
from penstock.errors import SchemaError
from penstock.expr.duck import EvaluationError, connection, quoted, types_of
from penstock.expr.expression import cast_sql, known_type, sql_type
from penstock.expr.purity import check_query_pure

_PLACE = "?"  # where a column's name goes

__all__ = ["answered", "common_type", "fixed_query", "query_columns"]


def query_columns(query: str, tables: Mapping[str, Schema]) -> Schema:
    """The columns of a query over some tables, of Penstock's types.

    Raises:
        SchemaError: DuckDB can't read it, or a column has a type that nothing here has.
    """
    return _query_columns(query, tuple(tables.items()))


@functools.lru_cache(maxsize=1_024)
def _query_columns(query: str, tables: tuple[tuple[str, Schema], ...]) -> Schema:
    """See `query_columns`: a program whose joins sizes order is compiled twice."""
    try:
        found = types_of({name: one.arrow for name, one in tables}, query)
    except EvaluationError as error:
        raise SchemaError(f"expected a query that DuckDB understands; found: {error}") from None
    names = [name for name, _, _ in found]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        failure = SchemaError(f"expected columns of different names; found {twice!r} twice. Use AS")
        failure.near = twice, 1
        raise failure
    fields = []
    for name, arrow, type_ in found:
        fields.append(_supported(Field(name, known_type(arrow, type_))))
    return Schema(tuple(fields))


def _supported(field: Field) -> Field:
    """A column of a type that Penstock has."""
    try:
        type_text(field.type)
    except SchemaError as error:
        failure = SchemaError(
            f"{error}, in the column {field.name!r}. Cast it, as in CAST(x AS VARCHAR)"
        )
        failure.near = field.name, 0
        raise failure from None
    return field


def fixed_query(
    query: str, tables: Mapping[str, Schema], columns_of: Schema | None = None
) -> tuple[str, Schema]:
    """The query with columns of Penstock's types, and these. What doesn't fit its type is NULL.

    Args:
        query: a SELECT.
        tables: that it is over.
        columns_of: columns of the names and types of the result's, where they are known: DuckDB isn't asked.

    Raises:
        SchemaError: as `query_columns`, or the query depends on more than its rows.
    """
    check_query_pure(connection(), query)
    if columns_of is None:
        schema = query_columns(query, tables)
    else:
        handed_on = (Field(one.name, answered(one.type)) for one in columns_of)
        schema = Schema(tuple(map(_supported, handed_on)))
    columns = []
    for field in schema:
        tried = cast_sql(_PLACE, field.type).replace("CAST(", "TRY_CAST(")
        columns.append(f"{tried.replace(_PLACE, quoted(field.name))} AS {quoted(field.name)}")
    return f"SELECT {', '.join(columns)} FROM ({query})", schema


@functools.lru_cache(maxsize=1_024)
def answered(type_: pa.DataType) -> pa.DataType:
    """What a query gives for a column of a type that it hands on."""
    [(_, found, name)] = types_of({"rows": pa.schema([("x", type_)])}, "SELECT x FROM rows")
    return known_type(found, name)


@functools.lru_cache(maxsize=1_024)
def common_type(one: pa.DataType, other: pa.DataType) -> str | None:
    """The SQL type in which two types are compared and united; None where they are equal.

    Raises:
        SchemaError: there is none.
    """
    if one == other:
        return None
    tables = {"one": pa.schema([("x", one)]), "other": pa.schema([("x", other)])}
    try:
        [(_, found, name)] = types_of(tables, "SELECT x FROM one UNION ALL SELECT x FROM other")
    except EvaluationError as error:
        raise SchemaError(f"expected columns that can be compared; found: {error}") from None
    return sql_type(known_type(found, name))
