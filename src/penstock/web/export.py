"""Tables as files that a browser saves: CSV and Parquet.

CSV has the texts of the page's JSON: instants in ISO 8601, exact decimals, nested values as JSON. NULL is
nothing, an empty text is `""`. Parquet has the columns as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from starlette.responses import Response

from penstock.errors import UserError
from penstock.web.jsons import page_texts

__all__ = ["EXPORT_ROWS_MAX", "FORMATS", "exported"]

FORMATS: Final = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
EXPORT_ROWS_MAX: Final = 1_000_000
"""Rows of a view in one file: they are in memory twice; `penstock query` streams any number."""


def exported(table: pa.Table, name: str, form: str, warnings: Sequence[str] = ()) -> Response:
    """A table as a file to save.

    Args:
        table: its rows.
        name: of the file, without its ending.
        form: `csv` or `parquet`.
        warnings: what is to be said about the rows; each is a header.

    Raises:
        UserError: it is another format.
    """
    if form not in FORMATS:
        raise UserError(f"expected ?format= among {', '.join(FORMATS)}; found {form!r}")
    out = BytesIO()
    if form == "parquet":
        pq.write_table(table, out, compression="zstd")
    else:
        pc.write_csv(_texts(table), out)
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name) or "rows"
    headers = {"Content-Disposition": f'attachment; filename="{safe}.{form}"'}
    answer = Response(out.getvalue(), headers=headers, media_type=FORMATS[form])
    for one in warnings:  # of a header, nothing but ASCII is sure to arrive
        answer.headers.append("Penstock-Warning", one.encode("ascii", "replace").decode())
    return answer


def _texts(table: pa.Table) -> pa.Table:
    """Columns that CSV can't say by itself as texts."""
    columns: list[pa.Array[Any] | pa.ChunkedArray[Any]] = []
    for column in table.columns:
        kind = column.type
        is_plain = (
            pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_float64(kind)
        )
        columns.append(column if is_plain else pa.array(page_texts(column), pa.string()))
    return pa.table(columns, names=table.column_names)
