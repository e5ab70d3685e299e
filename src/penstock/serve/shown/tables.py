"""Views' rows for tests, and tables as HTML for notebooks: the first rows, exact values, a chart of
windows, in the notebook's own colours.
"""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.core.rows import python_values, sorted_rows
from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.serve.shown.charts import chart_html

if TYPE_CHECKING:
    from penstock.serve.answers import Failure

__all__ = ["View", "columns_text", "table_html"]

ROWS_SHOWN: Final = 20  # of a table: what fits a screen
CELL_CHARS_MAX: Final = 80  # of a value: one long value must not hide the others
_CELL: Final = "padding:.2em .8em;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.3)"


class View:
    """A view's content, for tests."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        keys: Sequence[str] | None = None,
        failures: Sequence[Failure] = (),
    ) -> None:
        self.name, self.table, self.keys = name, table, keys
        self.failures = failures
        """What failed when the rows were read, and is NULL or left out."""

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, in the order of their columns' values."""
        return sorted_rows(self.table)

    def __repr__(self) -> str:
        rows = self.table.num_rows
        columns = columns_text(self.table.schema)
        return f"View({self.name!r}: {rows:,} row{'' if rows == 1 else 's'} of {columns})"

    def _repr_html_(self) -> str:
        """In a notebook: a chart of its windows, and the first rows."""
        return table_html(self.table, self.name, self.keys)


def columns_text(schema: pa.Schema) -> str:
    """Columns with their types, for people.

    >>> columns_text(pa.schema([("n", pa.int64())]))
    'n BIGINT'
    """
    try:
        return Schema.from_arrow(schema).text
    except SchemaError:  # not one of ours: a table may be any
        return ", ".join(f"{one.name} {one.type}" for one in schema)


def table_html(
    table: pa.Table, title: str, keys: Sequence[str] | None = None, measure: str | None = None
) -> str:
    """A table's first rows, below a chart where it has windows and numbers.

    Args:
        table: any; timestamps with a zone are shown in UTC.
        title: stands above it, with the number of rows.
        keys: the columns whose values are the lines of the chart; None guesses.
        measure: the column that the chart draws; None takes the first number.

    Raises:
        UserError: there is no such measure.

    >>> "<td" in table_html(pa.table({"n": [1]}), "per_user")
    True
    """
    right = [
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)
        for t in table.schema.types
    ]
    aligned = [f"{_CELL};text-align:{'right' if one else 'left'}" for one in right]
    count = table.num_rows
    more = f", the first {ROWS_SHOWN} shown" if count > ROWS_SHOWN else ""
    rows = f"{count:,} row{'' if count == 1 else 's'}{more}"
    parts = [
        chart_html(table, keys, measure),
        '<table style="border-collapse:collapse"><caption style="text-align:left;padding:.3em .8em">',
        f"<b>{html.escape(title)}</b> {rows}</caption><thead><tr>",
        *(
            f'<th scope="col" style="{style}">{html.escape(name)}</th>'
            for name, style in zip(table.column_names, aligned, strict=True)
        ),
        "</tr></thead><tbody>",
    ]
    columns = [python_values(column) for column in table.slice(0, ROWS_SHOWN).columns]
    for row in zip(*columns, strict=True):
        cells = zip(row, aligned, strict=True)
        inner = "".join(f'<td style="{style}">{_text(value)}</td>' for value, style in cells)
        parts.append(f"<tr>{inner}</tr>")
    return "".join([*parts, "</tbody></table>"])


def _text(value: Any) -> str:
    match value:
        case None:
            return '<i style="opacity:.6">NULL</i>'
        case dt.datetime():
            at = value if value.tzinfo is None else value.astimezone(dt.UTC)
            text = at.replace(tzinfo=None).isoformat(" ") + ("" if value.tzinfo is None else "Z")
        case Decimal():
            text = format(value, "f")
        case bytes():
            text = value.decode("utf-8", "replace")
        case _:
            text = str(value)
    return html.escape(text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…")
