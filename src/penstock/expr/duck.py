"""DuckDB as an evaluator of expressions: in memory, one core, no files, no network."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.duck import borrowed, confine, connection, kept
from penstock.expr.functions import add_functions, learn
from penstock.expr.typed import extended, sql_type, with_json

# DuckDB is imported where it is used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = [
    "EvaluationError",
    "add_functions",
    "borrowed",
    "confine",
    "connection",
    "evaluate",
    "known",
    "query_tables",
    "quoted",
    "sql_type",
    "stopped_at",
    "types_of",
]

SMALL_ROWS_MAX: Final = 2_000
"""Of all tables of a query: with so many, it hardly matters whether they were known before."""
GIVEN_MAX: Final = 1_024
"""Tables that a connection knows: each has other columns. More than `PREPARED_MAX` queries have, mostly: a
table that is forgotten and comes again is another one, and its queries are planned again."""
PREPARED_MAX: Final = 512
"""Queries that a connection has planned, each some sixty kilobytes: more than those of a hundred views."""
BATCH_ROWS: Final = 131_072
"""Of a batch that DuckDB gives, as it does unasked."""
_numbers = itertools.count()
_ONE_WORD: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[\w.]*\d[eE][+-]?\d+|[\w.]+|<=|>=|<>|!=|=>|::|\|\||//|\*\*|->>?|\S"""
)
"""What DuckDB reads as one, in text that sqlglot wrote."""
_HAS_TABLES: Final = re.compile(
    r"([\s(]|/\*.*?\*/|--[^\n]*\n)*(WITH|PIVOT|UNPIVOT)\b", re.IGNORECASE | re.DOTALL
)
"""A query that begins with tables of its own."""
_RUNS_ONCE: Final = re.compile(r"\bASOF\b", re.IGNORECASE)
"""Queries whose plans DuckDB can't run twice: ASOF joins with equality fail inside it, of all types."""


class EvaluationError(Exception):
    """DuckDB could not compute a row; its message says why."""


def evaluate(rows: pa.Table, query: str) -> pa.Table:
    """Runs `query` over `rows`, which it knows as the table `rows`; keeps the order of rows.

    Raises:
        EvaluationError: some row can't be computed.
    """
    return query_tables({"rows": rows}, query)


def query_tables(
    tables: Mapping[str, pa.Table], query: str, *, as_written: bool = False
) -> pa.Table:
    """Runs `query` over some tables, which it knows by their names.

    Args:
        tables: with their names.
        query: a SELECT.
        as_written: computes each part of an expression where it is written, so that `TRY` holds its errors.

    Raises:
        EvaluationError: it can't be computed.
    """
    if not as_written and _is_small(tables, query):
        return _prepared(tables, query)
    with _asked(tables, query, as_written=as_written) as relation:
        found: pa.Table = relation.to_arrow_table()
        return found


def types_of(tables: Mapping[str, pa.Schema], query: str) -> list[tuple[str, pa.DataType, str]]:
    """The columns that a query gives over some tables: names, types in Arrow, and as DuckDB calls them.

    Raises:
        EvaluationError: it can't be computed of such rows.
    """
    import duckdb

    try:
        if _HAS_TABLES.match(query):
            empty = {name: pa.Table.from_batches([], one) for name, one in tables.items()}
            with _asked(empty, query) as relation:
                names, columns = [str(one) for one in relation.types], relation.columns
        else:
            with borrowed() as con:
                learn(con, query)
                relation = con.sql(_declared(tables) + query)
            names, columns = [str(one) for one in relation.types], relation.columns
        types = [_arrow_type(name) for name in names]
    except duckdb.Error as error:
        raise EvaluationError(_said(error)) from None
    return list(zip(columns, types, names, strict=True))


def _said(error: Exception) -> str:
    """What DuckDB says is wrong, and what it proposes instead."""
    first, *others = str(error).splitlines()
    more = [one for one in others[:1] if one.startswith(("Candidate bindings", "Did you mean"))]
    return ". ".join([first.rstrip("!."), *more])


def stopped_at(tables: Mapping[str, pa.Schema], query: str) -> tuple[str, int] | None:
    """The word at which DuckDB stops, and how many like it come before; None: it doesn't say."""
    import duckdb

    words = _ONE_WORD.findall(query)
    try:
        with borrowed() as con:
            learn(con, query)
            con.execute(f"EXPLAIN {_declared(tables)}\n" + "\n".join(words))
    except duckdb.Error as error:
        found = re.search(r"^LINE (\d+):", str(error), re.MULTILINE)
    else:
        return None
    at = -1 if found is None else int(found[1]) - 2  # a word on each line, below the tables
    if not 0 <= at < len(words):
        return None
    alike = [one.strip('"').lower() for one in words[: at + 1]]
    return words[at].strip('"'), alike.count(alike[-1]) - 1


def _declared(tables: Mapping[str, pa.Schema]) -> str:
    """Tables without rows, before a query: DuckDB takes their columns' types from there.

    That is a quarter of the work that it has with tables that are registered.
    """
    if not tables:
        return ""
    parts = []
    for name, schema in tables.items():
        columns = ", ".join(f"CAST(NULL AS {sql_type(f.type)}) AS {quoted(f.name)}" for f in schema)
        parts.append(f"{quoted(name)} AS (SELECT {columns} WHERE FALSE)")
    return f"WITH {', '.join(parts)} "


@functools.lru_cache(maxsize=1_024)
def _arrow_type(name: str) -> pa.DataType:
    """What a type of DuckDB's is in Arrow."""
    relation = connection().sql(f"SELECT CAST(NULL AS {name}) AS x")
    rows: pa.Table = relation.to_arrow_table()
    return with_json(rows.schema.types[0], relation.types[0])


def quoted(name: str) -> str:
    """A name in SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def _asked(
    tables: Mapping[str, pa.Table], query: str, *, as_written: bool = False
) -> Iterator[duckdb.DuckDBPyRelation]:
    import duckdb

    try:
        with borrowed(as_written=as_written) as con:
            learn(con, query)
            for name, table in tables.items():
                con.register(name, known(table))
            try:
                yield con.sql(query)
            finally:
                with contextlib.suppress(duckdb.FatalException):  # then the connection goes, too
                    for name in tables:
                        con.unregister(name)
    except duckdb.Error as error:
        raise EvaluationError(str(error).splitlines()[0]) from None


def _is_small(tables: Mapping[str, pa.Table], query: str) -> bool:
    """Whether planning a query takes longer than its rows do, and its plan can be kept."""
    rows = sum(table.num_rows for table in tables.values())
    if not tables or rows > SMALL_ROWS_MAX:
        return False
    return not (_HAS_TABLES.match(query) or _RUNS_ONCE.search(query))


def _prepared(tables: Mapping[str, pa.Table], query: str) -> pa.Table:
    """Runs a query over a few rows by a plan that is made once: what it reads has other rows each time.

    A plan is right for all rows, as DuckDB knows nothing of what is in a table of Arrow's.
    """
    import duckdb

    given: list[_Given] = []
    try:
        with borrowed() as con:
            learn(con, query)
            given += (_given(con, i, table) for i, table in enumerate(tables.values()))
            return _executed(con, _plan(con, dict(zip(tables, given, strict=True)), query))
    except duckdb.Error as error:
        raise EvaluationError(str(error).splitlines()[0]) from None
    finally:
        for one in given:
            one.rows = one.nothing


def _plan(con: duckdb.DuckDBPyConnection, given: Mapping[str, _Given], query: str) -> str:
    """The name of a query's plan, which is made if there is none."""
    plans: dict[tuple[str, ...], str] = kept("plans")
    key = (query, *given, *(one.name for one in given.values()))
    plan = plans.pop(key, None)
    if plan is None:
        if len(plans) == PREPARED_MAX:  # the one that was asked for longest ago
            con.execute(f"DEALLOCATE {plans.pop(next(iter(plans)))}")
        plan = f"plan_{next(_numbers)}"
        parts = (
            f"{quoted(name)} AS NOT MATERIALIZED (FROM {one.name})" for name, one in given.items()
        )
        con.execute(f"PREPARE {plan} AS WITH {', '.join(parts)} {query}")
    plans[key] = plan
    return plan


def _executed(con: duckdb.DuckDBPyConnection, plan: str) -> pa.Table:
    found: pa.Table
    if _submits():  # as relations do, but a relation asks first what columns there will be
        found = con._submit(f"EXECUTE {plan}", None, "arrow", BATCH_ROWS).arrow_table()  # noqa: SLF001
    else:
        found = con.sql(f"EXECUTE {plan}").to_arrow_table()
    return found


@functools.cache
def _submits() -> bool:
    """Whether this DuckDB has the function below its relations, which takes a quarter of their time."""
    import duckdb

    try:
        one = connection()._submit("SELECT 1::BIGINT AS x", None, "arrow", 1).arrow_table()  # noqa: SLF001
        return bool(one.to_pydict() == {"x": [1]})
    except (AttributeError, TypeError, duckdb.Error):  # gone, or of other arguments
        return False


class _Given:
    """A table that DuckDB knows by a name, and whose rows are others in each query.

    What registers rows, and forgets them, takes longer than a query over a few. Of many rows, DuckDB reads
    no columns that it doesn't need only where it has the table itself.
    """

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.nothing = pa.Table.from_batches([], schema)
        self.rows = self.nothing

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream: object = self.rows.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call] # no types
        return stream


def _given(con: duckdb.DuckDBPyConnection, number: int, table: pa.Table) -> _Given:
    """The table of these columns, with these rows, in a query that has others before it."""
    rows = known(table)
    made: dict[tuple[int, pa.Schema], _Given] = kept("given")
    key = number, rows.schema
    one = made.pop(key, None)
    if one is None:
        if len(made) == GIVEN_MAX:  # the one that was asked for longest ago: none of this query
            con.unregister(made.pop(next(iter(made))).name)
        one = _Given(f"given_{next(_numbers)}", rows.schema)
        con.register(one.name, one)
    made[key] = one
    one.rows = rows
    return one


def known(rows: pa.Table) -> pa.Table:
    """Rows whose UUIDs and JSON are known as such: by their Arrow types they are bytes and text."""
    for i, field in enumerate(rows.schema):
        column = rows.column(i)
        if (made := extended(column)) is not column:
            rows = rows.set_column(i, field.name, made)
    return rows
