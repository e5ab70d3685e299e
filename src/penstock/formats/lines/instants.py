"""Texts to instants by a format such as `%d/%b/%Y:%H:%M:%S %z`, whole columns at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.duck import borrowed
from penstock.errors import SchemaError

__all__ = ["instants"]

_INSTANT = pa.timestamp("us", "UTC")


def instants(texts: Any, time_format: str) -> Any:
    """The instants that texts name.

    Args:
        texts: a column of text.
        time_format: as for `strptime`. Without `%z`, the times are UTC.

    Returns:
        timestamp[us, UTC], as many as texts; null where a text has another form or names no day.

    Raises:
        SchemaError: it is no format.

    >>> instants(pa.array(["01/Jan/2026:00:30:00 +0200", "31/Feb/2026:00:00:00 +0000"]),
    ...     "%d/%b/%Y:%H:%M:%S %z").cast(pa.int64()).to_pylist()
    [1767220200000000, None]
    """
    import duckdb

    quoted = time_format.replace("'", "''")
    try:
        with borrowed() as con:
            con.register("rows", pa.table({"t": texts}))
            try:
                found = con.sql(
                    f"SELECT try_strptime(t, '{quoted}') AS at FROM rows"
                ).to_arrow_table()
            finally:
                con.unregister("rows")
    except duckdb.Error as error:
        raise SchemaError(
            f"expected a time format as for strptime, such as %Y-%m-%d %H:%M:%S; found "
            f"{time_format!r}: {str(error).splitlines()[0]}"
        ) from None
    # Both kinds of timestamp count from 1970 UTC: the connection's time zone is UTC.
    micros = found["at"].cast(pa.timestamp("us", found.schema.field("at").type.tz)).cast(pa.int64())
    return micros.combine_chunks().cast(_INSTANT)
