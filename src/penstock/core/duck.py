"""DuckDB in memory, with functions of sketches: a connection for each thread, one core, no files, UTC."""

from __future__ import annotations

import atexit
import re
import threading
from typing import TYPE_CHECKING, Final, cast

# DuckDB and the functions are imported where they are used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = ["add_functions", "confine", "connection"]

_SKETCHES: Final = re.compile("theta_|bloom_|might_contain", re.IGNORECASE)
"""What is in the name of each function of sketches."""
_MOVING: Final = "common_subexpressions,in_clause"
"""Optimizers that take parts out of a `TRY`, and compute them where nothing catches their errors."""
_thread = threading.local()
_opened: list[duckdb.DuckDBPyConnection] = []


def connection(*, as_written: bool = False) -> duckdb.DuckDBPyConnection:
    """This thread's in-memory DuckDB: one core, no files, no network, UTC.

    Args:
        as_written: another one, which computes each part of an expression where it is written.
    """
    import duckdb

    name = "as_written" if as_written else "connection"
    if not hasattr(_thread, name):
        con = duckdb.connect(":memory:")
        con.execute("SET threads = 1")
        if as_written:
            con.execute(f"SET disabled_optimizers = '{_MOVING}'")
        add_functions(con)
        confine(con)
        setattr(_thread, name, con)
        _opened.append(con)
    return cast("duckdb.DuckDBPyConnection", getattr(_thread, name))


def add_functions(con: duckdb.DuckDBPyConnection, query: str | None = None) -> None:
    """Lets a connection know the functions of sketches.

    Args:
        con: the connection.
        query: the only one that it will answer; if that calls none of them, this does nothing.
    """
    if query is None or _SKETCHES.search(query):
        from penstock.core.sketches import functions

        functions.add_functions(con)


@atexit.register
def _close() -> None:
    """DuckDB complains of what is left when the interpreter ends."""
    for con in _opened:
        con.close()
    _opened.clear()
    vars(_thread).clear()


def confine(con: duckdb.DuckDBPyConnection) -> None:
    """Lets a connection see what is registered with it and nothing else: no files, no network."""
    for setting in (
        "TimeZone = 'UTC'",
        "enable_external_access = false",
        "python_enable_replacements = false",
        "lock_configuration = true",
    ):
        con.execute(f"SET {setting}")
