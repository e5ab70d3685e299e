"""Which SQL expressions are functions of their row alone.

A batch may be computed again after a crash, and anywhere: what it wrote the first time stays, and what
it writes now takes the same sequence numbers. So an expression must give the same for the same row
whenever it is computed: nothing of the wall clock, of chance, of the session, or of the other rows that
happen to be in the batch. And it is one value: UNNEST makes rows, which no expression does.

Which functions those are, DuckDB's own catalogue says (`duckdb_functions()`: `stability`); the
expression is read by DuckDB's own parser. A macro is what it expands to. Keyword forms (CURRENT_DATE)
look like columns to the parser: a name that is no column is a function's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.schema import Schema
from penstock.core.sketches.functions import AGGREGATES
from penstock.errors import SchemaError
from penstock.expr.functions import learn, learned

if TYPE_CHECKING:
    import duckdb

__all__ = ["check_pure", "check_query_pure", "makes_rows", "names_aggregate", "varies"]

_CLOCK: Final = frozenset(
    {
        "now", "today", "ago", "age", "current_date", "current_time", "current_timestamp",
        "get_current_time", "get_current_timestamp", "transaction_timestamp", "localtime",
        "localtimestamp", "current_localtime", "current_localtimestamp", "pg_conf_load_time",
        "pg_postmaster_start_time",
    }
)  # fmt: skip
_CHANCE: Final = frozenset({"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "setseed"})
# What the catalogue calls consistent (the ICU extension's), or doesn't have: keywords of the grammar.
_ALSO_VOLATILE: Final = frozenset(
    {
        "current_time", "current_timestamp", "localtime", "localtimestamp", "current_localtime",
        "current_localtimestamp",
    }
)  # fmt: skip
_MAKE_ROWS: Final = frozenset(
    {"unnest", "unlist"}
)  # of DuckDB's binder; the catalogue has no such kind
_SAMPLES: Final = frozenset({"reservoir_quantile"})  # aggregates of rows that chance chooses
_FAILS: Final = "error"  # volatile in name only, lest it be folded: it fails for the same rows
_FILTER: Final = ". WHERE at > now() - INTERVAL 1 HOUR compares with event time"
_AGE: Final = "age"  # of one argument: until today
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class _Catalogue:
    """What DuckDB has, by name in lower case.

    Attributes:
        volatile: functions that may give something else the next time.
        aggregates: functions of many rows, and of no single one.
        macros: their parameters and what they expand to, for each number of arguments.
    """

    volatile: frozenset[str]
    aggregates: frozenset[str]
    macros: dict[str, tuple[tuple[frozenset[str], str], ...]]

    @functools.cached_property
    def suspects(self) -> frozenset[str]:
        """Words without which a query gives the same whenever it is computed."""
        return self.volatile | self.macros.keys() | _SAMPLES | {_AGE}

    @functools.cached_property
    def beyond_rows(self) -> frozenset[str]:
        """Words without which an expression is a function of its row."""
        return self.suspects | self.aggregates | _MAKE_ROWS


@dataclass(frozen=True)
class _Found:
    """A function that isn't of one row alone: the one that was written, and what it comes down to.

    Attributes:
        name: in lower case.
        shown: as messages show it.
        body: what it expands to; None where it is no macro.
        is_aggregate: whether it is of many rows.
        makes_rows: whether it gives many rows.
    """

    name: str
    shown: str
    body: str | None = None
    is_aggregate: bool = False
    makes_rows: bool = False


def check_pure(con: duckdb.DuckDBPyConnection, sql: str, text: str, schema: Schema) -> None:
    """Refuses an expression that is more than a function of its row.

    Args:
        con: any connection.
        sql: the expression, as DuckDB reads it.
        text: as the user wrote it.
        schema: the columns that it is over.

    Raises:
        SchemaError: with the function that is to blame, and what to use instead.
    """
    learn(con, sql)
    if _catalogue(con).beyond_rows.isdisjoint(_WORD.findall(sql.lower())):
        return  # most; to read one takes DuckDB a millisecond
    columns = frozenset(name.lower() for name in schema.names)
    found = next(_impure(con, sql, columns), None)
    if found is None:
        return
    if found.is_aggregate:
        raise SchemaError(
            f"expected an expression over the columns of one row; found the aggregate {found.shown} in "
            f"{text!r}. Aggregate with group_by(…).agg(…)"
        )
    if found.makes_rows:
        what = found.shown if found.body is None else f"{found.shown}, which is {found.body},"
        raise SchemaError(
            f"expected an expression that gives one value for each row; found {what} in {text!r}. Compute "
            "the array as a column and use Stream.unnest; in SQL, write FROM t, UNNEST(array) AS u(element)"
        )
    raise SchemaError(
        "expected an expression that gives the same whenever it is computed, because a batch may be "
        f"computed again after a crash; found {found.shown} in {text!r}. {_advice(found.name)}"
    )


def check_query_pure(con: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuses a query that may give something else of the same rows.

    Raises:
        SchemaError: with the function that is to blame, and what to use instead.
    """
    learn(con, query)
    if _catalogue(con).suspects.isdisjoint(_WORD.findall(query.lower())):
        return
    [(tree,)] = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    for name, arguments in _names(json.loads(tree).get("statements", [])):
        if arguments is not None and varies(con, name, arguments):
            error = SchemaError(
                "expected a query that gives the same whenever it is computed, because a batch may be "
                f"computed again after a crash; found {name}(). {_advice(name)}"
                f"{_FILTER if name in _CLOCK else ''}"
            )
            error.near = name, 0
            raise error


def varies(con: duckdb.DuckDBPyConnection, name: str, arguments: int) -> bool:
    """Whether a call may give something else the next time; of a macro, what it expands to."""
    catalogue = _catalogue(con)
    if name in catalogue.volatile or name in _SAMPLES or (name == _AGE and arguments == 1):
        return True
    return any(
        not one.is_aggregate and not one.makes_rows
        for parameters, body in catalogue.macros.get(name, ())
        for one in _impure(con, body, parameters)
    )


def names_aggregate(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether DuckDB has an aggregate function of this name, or a macro that expands to one."""
    learn(con, f"{name}(")
    catalogue, name = _catalogue(con), name.lower()
    return name in catalogue.aggregates or any(
        one.is_aggregate
        for parameters, body in catalogue.macros.get(name, ())
        for one in _impure(con, body, parameters)
    )


def makes_rows(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether a call gives many rows, as UNNEST does; of a macro, what it expands to."""
    return name in _MAKE_ROWS or any(
        one.makes_rows
        for parameters, body in _catalogue(con).macros.get(name, ())
        for one in _impure(con, body, parameters)
    )


def _advice(name: str) -> str:
    if name in _SAMPLES:
        return "It chooses rows by chance: use approx_quantile or quantile_cont"
    if name in _CLOCK:
        return (
            "It reads the clock: use the time that the row has, a TIMESTAMP column of the stream; what is "
            "recent is for the query over the view to say"
        )
    if name in _CHANCE:
        return (
            "It is left to chance: make the value from the row's own columns, as in "
            "hash(user, at) % 100 < 5 for a sample, or md5(concat_ws('/', user, at)) for a name"
        )
    return "It depends on more than the row: use the row's own columns, or a constant"


def _impure(con: duckdb.DuckDBPyConnection, sql: str, columns: frozenset[str]) -> Iterator[_Found]:
    """The functions of an expression that aren't of one row alone, macros looked into."""
    catalogue = _catalogue(con)
    pending: list[tuple[str, frozenset[str], _Found | None]] = [(sql, columns, None)]
    seen: set[str] = set()
    while pending:
        expression, known, macro = pending.pop()
        for name, arguments in _names(_parsed(con, expression)):
            if arguments is None and name in known:
                continue
            shown = name.upper() if arguments is None else f"{name}()"
            written = macro or _Found(name, shown)
            if name in catalogue.aggregates:
                yield replace(written, is_aggregate=True)
            elif name in catalogue.volatile or (name == _AGE and arguments == 1):
                yield written
            elif name in _MAKE_ROWS and arguments is not None:
                yield replace(written, makes_rows=True)
            elif name not in seen:
                seen.add(name)
                for parameters, body in catalogue.macros.get(name, ()):
                    pending.append((body, parameters, macro or replace(written, body=body)))


def _names(node: Any) -> Iterator[tuple[str, int | None]]:
    """Functions with their number of arguments; names of columns and keywords with None."""
    if isinstance(node, list):
        for item in node:
            yield from _names(item)
    elif isinstance(node, dict):
        match node.get("class"):
            case "FUNCTION":
                arguments = node.get("arguments") or node.get("children") or ()
                yield str(node["function_name"]).lower(), len(arguments)
            case "COLUMN_REF" if len(node["column_names"]) == 1:
                yield str(node["column_names"][0]).lower(), None
        for item in node.values():
            yield from _names(item)


def _parsed(con: duckdb.DuckDBPyConnection, expression: str) -> Any:
    """DuckDB's syntax tree; of what it can't read, nothing: binding it then says why."""
    [(tree,)] = con.execute(
        "SELECT json_serialize_sql(?::VARCHAR)", [f"SELECT ({expression})"]
    ).fetchall()
    return json.loads(tree).get("statements", [])


def _catalogue(con: duckdb.DuckDBPyConnection) -> _Catalogue:
    return _read_catalogue(con, learned(con))


@functools.lru_cache(
    maxsize=1
)  # of one build of DuckDB, and the same functions of other distributions
def _read_catalogue(con: duckdb.DuckDBPyConnection, _: frozenset[str]) -> _Catalogue:
    rows = con.execute(
        "SELECT DISTINCT lower(function_name), function_type, stability, parameters, macro_definition "
        "FROM duckdb_functions() WHERE function_type IN ('macro', 'aggregate') "
        "OR stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')"
    ).fetchall()
    macros: dict[str, tuple[tuple[frozenset[str], str], ...]] = {}
    for name, kind, _, parameters, body in rows:
        if kind == "macro":
            known = frozenset(one.lower() for one in parameters)
            macros[name] = (*macros.get(name, ()), (known, body))
    volatile = frozenset(name for name, kind, *_ in rows if kind == "scalar")
    aggregates = frozenset(name for name, kind, *_ in rows if kind == "aggregate")
    return _Catalogue((volatile | _ALSO_VOLATILE) - {_FAILS}, aggregates | AGGREGATES, macros)
