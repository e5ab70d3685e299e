"""A question to the views, as it goes to the process that answers it, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from penstock.errors import QueryError
from penstock.serve.catalogs import catalog
from penstock.serve.catalogs.types import type_of
from penstock.serve.changes import changes
from penstock.serve.moments import parted
from penstock.serve.plans import explained, running_figures
from penstock.serve.views import Answer, Snapshot, Views
from penstock.state import LocalStateFiles

__all__ = ["ROWS_ALL", "Question", "answer"]

ROWS_ALL: Final = 2**62


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        query: one SELECT; of `changes` a view's name.
        rows: most rows of the answer.
        version: that is read; None: the last one, or what the query says itself.
        dialect: `postgres`: the query may name PostgreSQL's catalogs.
        kind: `rows`, `columns` of the answer without rows, or the `changes` of a view up to the version.
        types: by parameter ($1, …), as DuckDB calls it; None where the query is to say.
        since: of `changes`, the version that they begin after; None: with nothing.
        bytes_max: of the answer.
        explain: the answer is the query's plan; `analyze` runs it, and adds what the pipeline did.
    """

    query: str
    rows: int
    version: int | None = None
    dialect: Literal["duckdb", "postgres"] = "duckdb"
    kind: Literal["rows", "columns", "changes"] = "rows"
    types: tuple[str | None, ...] = ()
    since: int | None = None
    bytes_max: int = 32 << 20
    explain: Literal["", "plan", "analyze"] = ""


def answer(views: Views, question: Question, memory_bytes_max: int) -> Answer:
    """Answers a question.

    Raises:
        QueryError: it can't be answered.
        LimitError: it needs more memory.
    """
    if question.kind == "changes":
        return changes(views, question.query, question.since, question.version)
    query, as_of = parted(question.query)

    def ask(snapshot: Snapshot) -> Answer:
        is_catalog = question.dialect == "postgres" and catalog.is_about(query)
        prepared = catalog.Catalog(snapshot) if is_catalog else None
        named = catalog.plain(query) if is_catalog else query
        text, types = named, [str(one) for one in question.types]
        if question.kind == "columns":
            columns = _columns(snapshot, query) if prepared is None else prepared.columns()
            dialect = "duckdb" if prepared is None else "postgres"
            types = parameter_types(named, question.types, columns, dialect)
            text = substituted(named, [f"CAST(NULL AS {one})" for one in types])
        if prepared is not None and catalog.is_type_tree(text):
            types = ["OID[]"]
        if prepared is not None:
            text = prepared.rewritten(text)
        if question.explain:
            return explained(
                snapshot,
                text,
                figures=_figures(views) if question.explain == "analyze" else None,
                memory_bytes_max=memory_bytes_max,
                prepare=None if prepared is None else prepared.make,
            )
        found = snapshot.answer(
            text,
            rows_max=0 if question.kind == "columns" else question.rows,
            memory_bytes_max=memory_bytes_max,
            prepare=None if prepared is None else prepared.make,
        )
        return found._replace(parameters=tuple(types), version=snapshot.version)

    return views.read(question.version if as_of is None else as_of, ask)


def _figures(views: Views) -> Mapping[str, Any]:
    """What the nodes of the pipeline that runs here have done; of one that runs elsewhere nobody knows."""
    files = views.store.files
    return running_figures(files.directory) if isinstance(files, LocalStateFiles) else {}


def placeholders(query: str) -> Iterator[tuple[int, int, int]]:
    """Where a query has its parameters: start, end, and the number in `$1`."""
    try:
        tokens = sqlglot.tokenize(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise QueryError(f"expected a SELECT; found {query!r}: {error}") from None
    for one, following in zip(tokens, [*tokens[1:], None], strict=True):
        is_sign = one.token_type is TokenType.PARAMETER and one.text == "$"
        if is_sign and following is not None and following.text.isdecimal():
            yield one.start, following.end + 1, int(following.text)


def substituted(query: str, values: Sequence[str]) -> str:
    """A query with SQL in the places of its parameters.

    Raises:
        QueryError: there is no value for one.

    >>> substituted("SELECT $1, '$1'", ["CAST('7' AS BIGINT)"])
    "SELECT CAST('7' AS BIGINT), '$1'"
    """
    for start, end, number in reversed(list(placeholders(query))):
        if not 1 <= number <= len(values):
            raise QueryError(f"expected parameters from $1 to ${len(values)}; found ${number}")
        query = query[:start] + values[number - 1] + query[end:]
    return query


def _columns(snapshot: Snapshot, query: str) -> Mapping[str, str]:
    """The columns of the views that a query names, and what DuckDB calls their types."""
    found: dict[str, str] = {}
    lower = query.lower()
    for name in snapshot.names():
        if name.lower() in lower:
            for field in snapshot.schema(name):
                kind, is_array = type_of(field.type)
                found[field.name.lower()] = kind.duck + ("[]" if is_array else "")
    return found


def parameter_types(
    query: str,
    given: Sequence[str | None],
    columns: Mapping[str, str],
    dialect: str = "duckdb",
) -> list[str]:
    """What DuckDB calls the types of a query's parameters: as given, or as their surroundings show.

    A parameter that is cast has that type; one that is compared with a column or added to one has its.
    Others are text.

    >>> parameter_types("SELECT $1::int, a FROM t WHERE n > $2 LIMIT $3", [], {"n": "DOUBLE"})
    ['INT', 'DOUBLE', 'BIGINT']
    """
    count = max((number for _, _, number in placeholders(query)), default=0)
    types = [*given, *[None] * (count - len(given))]
    if None not in types:
        return [str(one) for one in types]
    try:
        tree = sqlglot.parse_one(query, dialect=dialect)
    except sqlglot.errors.SqlglotError:
        return [one or "VARCHAR" for one in types]
    for node in tree.find_all(exp.Placeholder, exp.Parameter):
        number = str(node.this if isinstance(node.this, str) else node.this.name)
        if number.isdecimal() and 0 < int(number) <= count and types[int(number) - 1] is None:
            types[int(number) - 1] = _surrounding(node, columns)
    return [one or "VARCHAR" for one in types]


def _surrounding(node: exp.Expr, columns: Mapping[str, str]) -> str | None:
    parent = node.parent
    child: exp.Expr = node
    while isinstance(parent, exp.Paren | exp.Neg):
        child, parent = parent, parent.parent
    match parent:
        case exp.Cast():
            return parent.to.sql("duckdb")
        case exp.Limit() | exp.Offset():
            return "BIGINT"
        case exp.Like() | exp.ILike():
            return "VARCHAR"
        case exp.Any():
            outer = parent.parent
            other = outer.this if isinstance(outer, exp.Binary) else None
            kind = _kind(other, columns)
            return f"{kind or 'VARCHAR'}[]"
        case exp.Between() | exp.In():
            return _kind(parent.this, columns)
        case exp.Binary():
            return _kind(parent.right if parent.left is child else parent.left, columns)
    return None


def _kind(node: object, columns: Mapping[str, str]) -> str | None:
    match node:
        case exp.Column():
            return columns.get(node.name.lower())
        case exp.Cast():
            return node.to.sql("duckdb")
        case exp.Count() | exp.Length():
            return "BIGINT"
        case exp.Literal():
            return "VARCHAR" if node.is_string else "BIGINT" if node.is_int else "DOUBLE"
        case (
            exp.Paren() | exp.Neg() | exp.Sum() | exp.Min() | exp.Max() | exp.Lower() | exp.Upper()
        ):
            return _kind(node.this, columns)
        case exp.Add() | exp.Sub() | exp.Mul():
            return _kind(node.left, columns) or _kind(node.right, columns)
    return None
