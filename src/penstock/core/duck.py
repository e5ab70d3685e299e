"""DuckDB in memory, with functions of sketches: a connection for each thread, one core, no files, UTC."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, cast

from penstock.core.sketches.functions import add_functions

# DuckDB is imported where it is used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = ["confine", "connection"]

_thread = threading.local()
_opened: list[duckdb.DuckDBPyConnection] = []


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's in-memory DuckDB: one core, no files, no network, UTC."""
    import duckdb

    if not hasattr(_thread, "connection"):
        con = duckdb.connect(":memory:")
        con.execute("SET threads = 1")
        add_functions(con)
        confine(con)
        _thread.connection = con
        _opened.append(con)
    return cast("duckdb.DuckDBPyConnection", _thread.connection)


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
