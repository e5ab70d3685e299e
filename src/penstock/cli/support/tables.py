"""Results on standard output: tables for people, JSON and CSV for scripts."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Final

import click
import orjson

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("table", "json", "csv")
CELL_CHARS_MAX: Final = 60  # of a cell in a table: one long value must not hide the others
DIGITS_SHOWN: Final = (
    15  # of a double in a table; JSON and CSV have all that it takes to read it again
)
ROWS_AT_ONCE: Final = 10_000  # turned into text at once, so that a large answer needs little memory


def write_table(
    table: pa.Table, form: str, out: IO[str] | None = None, *, head: bool = True
) -> None:
    """Writes an Arrow table: `table` for people, `json` (a line a row) or `csv` for scripts.

    Args:
        table: the rows.
        form: one of `FORMATS`.
        out: standard output by default.
        head: whether CSV begins with the names of columns.
    """
    from penstock.serve.shown.values import kind, plain_values, record_values

    out = out or sys.stdout
    if form == "table":
        numbers = [kind(field.type) == "number" for field in table.schema]
        rows = zip(*[plain_values(c) for c in table.columns], strict=True)
        out.write(text_table(table.column_names, rows, numbers))
        return
    if form == "csv" and head:
        out.write(_line(table.column_names, table.column_names, form))
    for lo in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(lo, ROWS_AT_ONCE)
        columns = [(record_values if form == "json" else plain_values)(c) for c in part.columns]
        for row in zip(*columns, strict=True):
            out.write(_line(table.column_names, row, form))


def write_rows(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    form: str,
    out: IO[str] | None = None,
    *,
    nothing: str = "",
) -> None:
    """Writes rows of plain values as `write_table` does, without loading Arrow.

    Args:
        names: of the columns.
        rows: their values.
        form: one of `FORMATS`.
        out: where to; None: standard output.
        nothing: what people are told where there are no rows, instead of a table without any.
    """
    out = out or sys.stdout
    if form == "table" and nothing and not rows:
        note(nothing)
        return
    if form == "table":
        numbers = [
            any(row[i] is not None for row in rows)
            and all(isinstance(row[i], int | float | None) for row in rows)
            for i in range(len(names))
        ]
        out.write(text_table(names, rows, numbers))
        return
    if form == "csv":
        out.write(_line(names, names, form))
    for row in rows:
        out.write(_line(names, row, form))


def _line(names: Sequence[str], row: Sequence[Any], form: str) -> str:
    if form == "json":
        named = dict(zip(names, row, strict=True))
        return orjson.dumps(named, default=_json_value).decode() + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_csv_value(v) for v in row])
    return text.getvalue()


def _json_value(value: Any) -> Any:
    """What orjson doesn't know: decimals are JSON numbers with all their digits."""
    return orjson.Fragment(format(value, "f")) if isinstance(value, Decimal) else str(value)


def _csv_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    return "" if value is None else value


def text_table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[bool] | None = None
) -> str:
    """A table of plain text, columns aligned; numbers to the right."""
    right = list(numbers) if numbers is not None else [False] * len(names)
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    lines = [names, ["─" * w for w in widths], *cells]
    text = io.StringIO()
    for line in lines:
        padded = [
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(line, widths, right, strict=True)
        ]
        text.write("  ".join(padded).rstrip() + "\n")
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):  # the sum of 5.4 and 0.12 is 5.52 to a person
        value = float(f"{value:.{DIGITS_SHOWN}g}")
    text = format(value, "f") if isinstance(value, Decimal) else str(value)
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= CELL_CHARS_MAX else clean[: CELL_CHARS_MAX - 1] + "…"


def note(text: str) -> None:
    """Prints a message for the person at the terminal, on standard error."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    """Prints a warning, likewise."""
    note(f"warning: {text}")
