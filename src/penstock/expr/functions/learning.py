"""Which functions of other distributions there are, and which a connection of DuckDB knows."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, Final

from penstock import duck
from penstock.expr.functions.kinds import AggregateFunction, SqlFunction
from penstock.plugins import Registry

if TYPE_CHECKING:
    import duckdb

__all__ = ["FUNCTIONS", "add_functions", "aggregate_named", "learn", "learned"]

_CALLED: Final = re.compile(r'(\w+)"?\s*\(')
"""What may be the name of a function in a query, in lower case."""
FUNCTIONS: Final[Registry[SqlFunction]] = Registry("penstock.functions", None, SqlFunction)
"""Those of other distributions."""
_learned: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def learned(con: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The functions of other distributions that a connection knows."""
    return _learned.get(con, frozenset())


def learn(con: duckdb.DuckDBPyConnection, query: str) -> None:
    """Lets a connection know the functions of other distributions that a query calls.

    Raises:
        SetupError: one can't be loaded.
    """
    names = FUNCTIONS.names()
    if not names:  # as mostly: queries aren't searched
        return
    for name in names.intersection(_CALLED.findall(query.lower())) - learned(con):
        _add(con, name)


def _add(con: duckdb.DuckDBPyConnection, name: str) -> None:
    [(is_there,)] = con.execute(
        "SELECT count(*) > 0 FROM duckdb_functions() WHERE function_name = ?", [name]
    ).fetchall()
    kind = None if is_there else FUNCTIONS.named(name)
    if kind is not None:
        kind.add(con)
    _learned[con] = learned(con) | {name}


def add_functions(con: duckdb.DuckDBPyConnection, query: str | None = None) -> None:
    """Lets a connection know the functions that DuckDB hasn't: of sketches, and of other distributions.

    Args:
        con: the connection.
        query: the only one that it will answer; functions that it doesn't call are left out. Without one,
            those that can't be loaded are left out, too.
    """
    duck.add_functions(con, query)
    if query is not None:
        learn(con, query)
    elif FUNCTIONS.names():
        for one in FUNCTIONS.others():
            _add(con, one.name)


def aggregate_named(name: str) -> AggregateFunction | None:
    """The aggregate of this name in another distribution; None: there is none.

    Raises:
        SetupError: it can't be loaded.
    """
    if name not in FUNCTIONS.names():
        return None
    found = FUNCTIONS.named(name)
    return found if isinstance(found, AggregateFunction) else None
