"""Names in queries as views take them: words of DuckDB's grammar, and PostgreSQL's schema.

    SELECT max(at) FROM v WHERE at > now()   ->  SELECT max("at") FROM v WHERE "at" > now()
    SELECT * FROM penstock.public.v          the schema that PostgreSQL's clients see views in

Every read of a text by DuckDB goes through here: `penstock query` and `sql`, HTTP, PostgreSQL's protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

# DuckDB and sqlglot are imported where they are used: what lists or copies views needs none.
if TYPE_CHECKING:
    import duckdb

__all__ = ["IN_SCHEMA", "names_schema", "open_schema", "register", "with_quotes"]

DATABASE, SCHEMA = "penstock", "public"
IN_SCHEMA: Final = rf"""(?:(?:"{DATABASE}"|{DATABASE})\s*\.\s*)?(?:"{SCHEMA}"|{SCHEMA})\s*\.\s*"""
"""What may be before a view's name, as a pattern that ignores case."""
_SCHEMA: Final = re.compile(rf"\b{SCHEMA}\b", re.IGNORECASE)
_DEFAULT: Final = re.compile(r"\bdefault\b", re.IGNORECASE)
"""What DuckDB parses where a name is, and has no meaning for in a query."""


def with_quotes(con: duckdb.DuckDBPyConnection, query: str) -> str:
    """A query whose names DuckDB reads as names.

    What it can't parse is read by sqlglot, as views are, and each name that is a word of DuckDB's grammar
    gets quotes. Nothing else in the text changes.

    Args:
        con: parses; it needn't know any table.
        query: any text. What nobody can parse is returned as it is.
    """
    if _parses(con, query) and _DEFAULT.search(query) is None:
        return query
    kinds = dict(
        con.execute("SELECT keyword_name, keyword_category FROM duckdb_keywords()").fetchall()
    )
    text = query
    for start, end, is_label in sorted(set(_names(query)), reverse=True):
        kind = kinds.get(query[start:end].lower())
        if kind is None or (is_label and kind == "reserved"):
            continue  # `FROM v GROUP` is a query without its end, and no alias
        text = f'{text[:start]}"{query[start:end]}"{text[end:]}'
    return text if _parses(con, text) else query


def _names(query: str) -> Iterator[tuple[int, int, bool]]:
    """Where a query has names without quotes: start, end, and whether it is an alias without AS."""
    import sqlglot
    from sqlglot import exp

    try:
        trees = sqlglot.parse(query, "duckdb")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return
    for one in (name for tree in trees if tree for name in tree.find_all(exp.Identifier)):
        if one.quoted or "start" not in one.meta:
            continue
        start, end = int(one.meta["start"]), int(one.meta["end"]) + 1
        outer = one.parent
        is_alias = isinstance(outer, exp.Alias | exp.TableAlias) and not isinstance(
            outer.parent, exp.CTE
        )
        yield start, end, is_alias and query[:start].rstrip()[-2:].upper() != "AS"


def _parses(con: duckdb.DuckDBPyConnection, query: str) -> bool:
    import duckdb

    try:
        con.extract_statements(query)
    except duckdb.ParserException:
        return False
    except duckdb.Error:
        pass  # it is reported where the query is run
    return True


def names_schema(query: str) -> bool:
    """Whether a query may name the schema of the views."""
    return _SCHEMA.search(query) is not None


def open_schema(con: duckdb.DuckDBPyConnection) -> None:
    """Makes the schema, in which names are then looked up first."""
    con.execute(f"ATTACH ':memory:' AS {DATABASE}")
    con.execute(f"CREATE SCHEMA {DATABASE}.{SCHEMA}")
    con.execute(f"USE {DATABASE}.{SCHEMA}")


def register(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table, *, in_schema: bool) -> None:
    """Lets a connection know a view's rows.

    Args:
        con: the connection.
        name: of the view.
        rows: of it.
        in_schema: whether `open_schema` was called; then the view is there, and nowhere else.
    """
    if not in_schema:
        con.register(name, rows)
        return
    con.register(f"rows of {name}", rows)
    text = name.replace('"', '""')
    con.execute(f'CREATE VIEW {DATABASE}.{SCHEMA}."{text}" AS FROM temp.main."rows of {text}"')
