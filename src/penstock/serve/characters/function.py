"""`to_char` as a function of a connection."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.serve.characters.moments import moment_text, span_text
from penstock.serve.characters.numbers import DOUBLE_DIGITS, FLOAT_DIGITS, number_text

if TYPE_CHECKING:
    import duckdb

__all__ = ["add_function", "characters"]

_CALL: Final = re.compile(r"\bto_char\s*\(", re.IGNORECASE)
_FORMATS: Final[dict[str, Callable[[str, str], str | None]]] = {
    "DATE": lambda value, form: moment_text(
        value, form, "UTC"
    ),  # PostgreSQL takes it for an instant
    "TIMESTAMP": lambda value, form: moment_text(value, form, ""),
    "TIMESTAMP WITH TIME ZONE": lambda value, form: moment_text(value, form, "UTC"),
    "TIME": span_text,
    "INTERVAL": span_text,
    "FLOAT": lambda value, form: number_text(value, form, digits=FLOAT_DIGITS),
    "DOUBLE": lambda value, form: number_text(value, form, digits=DOUBLE_DIGITS),
}
"""By type of DuckDB's; what isn't here has decimals, or none."""
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DECIMAL")


def add_function(con: duckdb.DuckDBPyConnection, query: str) -> None:
    """Lets a connection know `to_char`, if the query calls it."""
    if _CALL.search(query) is None:
        return
    from duckdb.func import ARROW  # whoever has a connection has loaded it

    con.create_function("to_char_of", _column, ["VARCHAR"] * 3, "VARCHAR", type=ARROW)
    con.execute(
        "CREATE TEMP MACRO to_char(x, f) AS to_char_of(CAST(typeof(x) AS VARCHAR), CAST(x AS VARCHAR), "
        "CAST(f AS VARCHAR))"
    )


def _column(kinds: Any, values: Any, forms: Any) -> Any:  # DuckDB evaluates what is said here
    """The texts of some values; of equal ones, one is made."""
    known: dict[tuple[str, str, str], str | None] = {}
    found: list[str | None] = []
    for kind, value, form in zip(
        kinds.to_pylist(), values.to_pylist(), forms.to_pylist(), strict=True
    ):
        if kind is None or value is None or form is None:
            found.append(None)
            continue
        one = kind, value, form
        if one not in known:
            known[one] = characters(*one)
        found.append(known[one])
    return pa.array(found, pa.string())


def characters(kind: str, value: str, form: str) -> str | None:
    """A value as text.

    Args:
        kind: its type, as DuckDB calls it.
        value: as DuckDB writes it.
        form: PostgreSQL's format.

    Raises:
        ValueError: the format is none, or the type has none.

    >>> characters("TIMESTAMP", "2026-01-02 15:04:05", "FMDay, DD Mon YYYY HH12:MI AM")
    'Friday, 02 Jan 2026 03:04 PM'
    >>> characters("DECIMAL(9,2)", "-1234.5", "FM9,999.00")
    '-1,234.50'
    """
    if not form:
        return None
    made = _FORMATS.get(kind)
    if made is None and kind.removeprefix("U").split("(")[0] in _NUMBERS:
        return number_text(value, form)
    if made is None:
        raise ValueError(f"expected a moment, an interval or a number in to_char; found a {kind}")
    return made(value, form)
