"""DuckDB in memory, with functions of sketches: a connection for each thread, one core, no files, UTC."""

from __future__ import annotations

import atexit
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

# DuckDB and the functions are imported where they are used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = ["add_functions", "borrowed", "confine", "connection", "kept"]

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


@contextlib.contextmanager
def borrowed(*, as_written: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """This thread's DuckDB, for a query that may fail in any way; see `connection`.

    After an error inside DuckDB (INTERNAL, FATAL), its database refuses every other query. This ends the
    query that failed alone: who asks next gets another connection.
    """
    import duckdb

    con = connection(as_written=as_written)
    try:
        yield con
    except (duckdb.Error, OSError, ValueError) as error:  # as a stream of Arrow's gives any error
        inside = isinstance(error, duckdb.InternalException | duckdb.FatalException)
        if inside or str(error).startswith(("INTERNAL Error", "FATAL Error")):
            _replaced(con)
        raise


def _replaced(con: duckdb.DuckDBPyConnection) -> None:
    """Lets go of a connection, and of what was kept with it."""
    mine = vars(_thread)
    for name in ("connection", "as_written"):
        if mine.get(name) is con:
            del mine[name]
            if name == "connection":
                mine.pop("kept", None)
            _opened.remove(con)
            con.close()


def kept(what: str) -> dict[Any, Any]:
    """What somebody keeps with this thread's connection, such as names that it knows; it goes with it."""
    found: dict[Any, Any] = vars(_thread).setdefault("kept", {}).setdefault(what, {})
    return found


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
        # By loops over a few rows, ASOF joins on intervals, arrays, structs and maps fail inside DuckDB.
        "asof_loop_join_threshold = 0",
        "enable_external_access = false",
        "python_enable_replacements = false",
        "lock_configuration = true",
    ):
        con.execute(f"SET {setting}")
