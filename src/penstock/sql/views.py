"""From a query's text to rows of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from penstock.errors import SchemaError
from penstock.expr.duck import connection
from penstock.expr.expression import sql_type
from penstock.expr.patterns import check_patterns
from penstock.expr.purity import check_query_pure
from penstock.expr.walks import find_all
from penstock.flow import Flow
from penstock.sql.patterns.tables import with_matches
from penstock.sql.patterns.windows import without_pattern_windows
from penstock.sql.places import placed as with_place
from penstock.sql.places import unplaced, within
from penstock.sql.queries import compile_tree
from penstock.sql.relation import Relation, quoted
from penstock.sql.rules.columns import by_position, with_columns
from penstock.sql.rules.constants import with_values
from penstock.sql.rules.filters import with_cases
from penstock.sql.rules.first_rows import with_first_rows
from penstock.sql.rules.lists import with_lists
from penstock.sql.rules.names import columns_of, tables_of, with_merged, with_merging
from penstock.sql.rules.pivots import without_pivots
from penstock.sql.rules.reading import read, with_divisions
from penstock.sql.rules.temporal import clocks_of, with_bounds, without_bounds
from penstock.sql.rules.unnesting import with_json_each, with_series
from penstock.sql.rules.unsupported import check_supported
from penstock.sql.scope import Environment, Named, NamedTables, Sizes
from penstock.sql.searches.conditions import without_searches
from penstock.sql.tables import with_named_columns, with_rows, with_windows
from penstock.sql.text import foreign
from penstock.sql.text.wording import syntax_refusal

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
    except SchemaError as error:
        failure = error
    try:
        _rows(flow, query, tables, dialect, Sizes(), placed=True)
    except SchemaError as error:
        form = foreign.named(query, str(error))
        if form is not None:
            error = error.reworded(form.message)
            error.at, error.near = form.start, None
        failure = with_place(error, query, dialect)
    raise failure from None


def _rows(
    flow: Flow,
    query: str,
    tables: Mapping[str, Relation],
    dialect: str,
    sizes: Sizes,
    *,
    placed: bool = False,
) -> Relation:
    """See `query_rows`; placed: whether errors know where in the text they are."""
    tree = parsed(query, dialect)
    env = Environment(flow, NamedTables.of(tables), sizes=sizes)
    return _of_tree(tree if placed else unplaced(tree), env, dialect, placed=placed)


def _of_tree(tree: exp.Expr, env: Environment, dialect: str, *, placed: bool) -> Relation:
    """The rows of a query as it was read."""
    kinds = check_supported(tree)
    check_patterns(tree)
    if exp.Window in kinds:
        tree = without_pattern_windows(tree, dialect)
    if exp.Subquery in kinds or exp.Window in kinds:
        of_rows = partial(_of_tree, dialect=dialect, placed=placed)
        tree, env = with_matches(tree, env, of_rows, dialect)
    tree, env = _rewritten(tree, kinds, env)
    named = tables_of(tree)
    env = replace(env, clocks=clocks_of(named, env))
    text = (without_searches(tree) if exp.Anonymous in kinds else tree).sql(dialect="duckdb")
    lasting = without_bounds(tree)
    check_query_pure(connection(), text if lasting is tree else lasting.sql(dialect="duckdb"))
    read = {name: env.tables[name] for name in named if name in env.tables}
    labels = columns_of(text, named, env).names  # DuckDB also says what is wrong with the query
    schema: dict[str, object] = {
        _as_text(name): {_as_text(label): _type(table, of) for label, of in table.columns.items()}
        for name, table in read.items()
    }
    try:
        qualified = qualify(
            with_merging(tree), schema=schema, dialect="duckdb", quote_identifiers=False
        )
    except SqlglotError as error:
        there = ", ".join(env.tables)
        raise SchemaError(
            f"expected a query over {there}; found: {error}. A subquery in FROM sees the tables before "
            "it only behind LATERAL, as in FROM t, LATERAL (SELECT t.k + 1 AS k) AS x"
        ) from None
    qualified = with_merged(qualified)
    if exp.Div in kinds:
        qualified = with_divisions(qualified, schema)
    if exp.RowNumber in kinds:
        qualified = with_first_rows(qualified)
    answer = compile_tree(qualified if placed else unplaced(qualified), env)
    names = labels or answer.labels
    alike = [name.lower() for name in names]
    twice = [name for i, name in enumerate(names) if name.lower() in alike[:i]]
    if twice:
        failure = SchemaError(
            f"expected columns of different names; found {twice[0]!r} twice. Use AS"
        )
        failure.near = twice[0], 1
        raise failure
    return answer.rows.project(
        {name: quoted(column) for name, column in zip(names, answer.columns, strict=True)}
    )


def _rewritten(
    tree: exp.Expr, kinds: frozenset[type[exp.Expr]], env: Environment
) -> tuple[exp.Expr, Environment]:
    """The query by the rules that come before names are qualified, and the tables that these have made.

    Args:
        tree: the query.
        kinds: the classes of its nodes. To look for one in the tree takes a hundredth of a plan's time.
        env: the tables that it may name.
    """

    def has(*classes: type[exp.Expr]) -> bool:
        return any(issubclass(kind, classes) for kind in kinds)

    if has(exp.TableAlias):
        tree = with_named_columns(tree, env)
    if has(exp.Filter):
        tree = with_cases(tree)
    if has(exp.Comprehension, exp.Array):
        tree = with_lists(tree)
    if has(exp.GenerateSeries):
        tree = with_series(tree)
    if has(exp.Anonymous):
        tree = with_json_each(tree)
    if has(exp.Values):
        tree, env = with_values(tree, env)
    tree = with_rows(tree, env)
    tree = with_bounds(tree)
    if has(exp.Anonymous):
        tree, env = with_windows(tree, env)
    _check_tables(tree, env)
    if has(exp.Columns, exp.Star):
        tree = with_columns(tree, env)
    if has(exp.Pivot):
        tree = without_pivots(tree, env)
    if has(exp.SetOperation):
        tree = by_position(tree, env)
    return tree, env


def _as_text(name: str) -> str:
    """A name as sqlglot reads it in a schema, where it is SQL: `@timestamp` would be a parameter."""
    return name if exp.SAFE_IDENTIFIER_RE.match(name) else quoted(name)


def parsed(text: str, dialect: str = "duckdb") -> exp.Expr:
    """The tree of one SELECT.

    Raises:
        SchemaError: it can't be read, with line and column; or is another statement.
    """
    try:
        trees = read(text, dialect)
    except SqlglotError as error:
        what, at = syntax_refusal(error, text)
        failure = SchemaError(what)
        failure.at = at
        raise failure from None
    if len(trees) == 1 and isinstance(trees[0], exp.Pivot):  # a statement in DuckDB
        whole = exp.select("*").from_(exp.Subquery(this=trees[0]))
        whole.set("with_", trees[0].args.pop("with_", None))
        return whole
    if len(trees) != 1 or not isinstance(trees[0], exp.Query | exp.Values):
        raise SchemaError(f"expected one SELECT; found {text!r}")
    return trees[0]


def _check_tables(tree: exp.Expr, env: Environment) -> None:
    """Checks that tables are there: DuckDB would propose others for one that isn't, its own among them."""
    found = find_all(tree, exp.CTE, exp.Table)
    known = {one.alias.lower() for one in found if isinstance(one, exp.CTE)}
    for table in (one for one in found if isinstance(one, exp.Table)):
        if isinstance(table.this, exp.Identifier) and table.name.lower() not in known:
            with within(table):
                env.table(table.name)


def _type(table: Named, column: str) -> str:
    if column in table.rows.schema:
        return sql_type(table.rows.schema[column].type)
    return "TIMESTAMPTZ"  # a window's bound
