"""From a query's text to rows of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from sqlglot import Dialect, exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.tokenizer_core import TokenType

from penstock.errors import SchemaError
from penstock.expr.duck import connection
from penstock.expr.expression import sql_type
from penstock.expr.purity import check_query_pure
from penstock.flow import Flow
from penstock.sql.queries import compile_tree
from penstock.sql.relation import Relation, quoted
from penstock.sql.rules.by_name import by_position
from penstock.sql.rules.constants import with_values
from penstock.sql.rules.filters import with_cases
from penstock.sql.rules.first_rows import with_first_rows
from penstock.sql.rules.names import columns_of
from penstock.sql.rules.pivots import without_pivots
from penstock.sql.rules.temporal import clocks_of, with_bounds, without_bounds
from penstock.sql.scope import Environment, Named, Sizes
from penstock.sql.tables import with_rows, with_windows

__all__ = ["parsed", "query_rows"]


def query_rows(
    flow: Flow,
    query: str,
    tables: Mapping[str, Relation],
    dialect: str = "duckdb",
    sizes: Sizes | None = None,
) -> Relation:
    """The rows that a query gives, kept up to date.

    Args:
        flow: that they belong to.
        query: one SELECT.
        tables: by name.
        dialect: of the text, as sqlglot calls it.
        sizes: of topics, by which joins are ordered.

    Raises:
        SchemaError: it can't be read, or can't be kept up to date.
    """
    try:
        return _rows(flow, query, tables, dialect, sizes or Sizes())
    except RecursionError:
        raise SchemaError(
            "expected a query whose expressions nest less deeply, as an operator in a chain such as "
            "a || b || c nests in the next; found one beyond Python's limit. Write concat(a, b, c), or "
            "compute parts of it in a subquery"
        ) from None


def _rows(
    flow: Flow, query: str, tables: Mapping[str, Relation], dialect: str, sizes: Sizes
) -> Relation:
    tree = with_cases(parsed(query, dialect))
    known = {name.lower(): Named.of(rows) for name, rows in tables.items()}
    env = Environment(flow, known, sizes=sizes)
    tree, env = with_values(tree, env)
    tree, env = with_windows(with_bounds(with_rows(tree, env)), env)
    tree = by_position(without_pivots(tree, env), env)
    env = replace(env, clocks=clocks_of(tree, env))
    text = tree.sql(dialect="duckdb")
    lasting = without_bounds(tree)
    check_query_pure(connection(), text if lasting is tree else lasting.sql(dialect="duckdb"))
    named = {table.name.lower() for table in tree.find_all(exp.Table)}
    read = {name: table for name, table in env.tables.items() if name in named}
    labels = columns_of(text, tree, env).names  # DuckDB also says what is wrong with the query
    schema: dict[str, object] = {
        name: {label: _type(table, column) for label, column in table.columns.items()}
        for name, table in read.items()
    }
    try:
        qualified = qualify(tree, schema=schema, dialect="duckdb", quote_identifiers=False)
    except SqlglotError as error:
        there = ", ".join(env.tables)
        raise SchemaError(f"expected a query over {there}; found: {error}") from None
    answer = compile_tree(with_first_rows(_without_places(qualified)), env)
    names = labels or answer.labels
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SchemaError(f"expected columns of different names; found {twice[0]!r} twice. Use AS")
    return answer.rows.project(
        {name: quoted(column) for name, column in zip(names, answer.columns, strict=True)}
    )


def parsed(text: str, dialect: str = "duckdb") -> exp.Expr:
    """The tree of one SELECT.

    Raises:
        SchemaError: it can't be read, with line and column; or is another statement.
    """
    try:
        reader = Dialect.get_or_raise(dialect)
        tokens = reader.tokenize(text)
        for one, after in pairwise(tokens):  # SESSION is a word of its own in some dialects
            if one.token_type == TokenType.SESSION and after.token_type == TokenType.L_PAREN:
                one.token_type = TokenType.VAR
        trees = [tree for tree in reader.parser().parse(tokens, text) if tree is not None]
    except SqlglotError as error:
        raise SchemaError(f"expected SQL; found {_where(error)}") from None
    if len(trees) == 1 and isinstance(trees[0], exp.Pivot):  # a statement in DuckDB
        whole = exp.select("*").from_(exp.Subquery(this=trees[0]))
        whole.set("with_", trees[0].args.pop("with_", None))
        return whole
    if len(trees) != 1 or not isinstance(trees[0], exp.Query | exp.Values):
        raise SchemaError(f"expected one SELECT; found {text!r}")
    return trees[0]


def _where(error: SqlglotError) -> str:
    for one in getattr(error, "errors", []):
        return f"at line {one['line']}, column {one['col']}: {one['description']}, near {one['highlight']!r}"
    return str(error).splitlines()[0]


def _without_places(tree: exp.Expr) -> exp.Expr:
    """The tree without what errors needed: where its names are written, which is most of a copy's work."""
    for node in tree.walk():
        if node.meta_get("line") is not None or node.meta_get("dot_parts") is not None:
            for what in ("line", "col", "start", "end", "dot_parts"):
                node.meta.pop(what, None)
    return tree


def _type(table: Named, column: str) -> str:
    if column in table.rows.schema:
        return sql_type(table.rows.schema[column].type)
    return "TIMESTAMPTZ"  # a window's bound
