"""`csv` and `pattern`: what the values of a stream's records are, where they aren't JSON."""

from __future__ import annotations

from penstock.core.schema import Schema
from penstock.errors import FlowError, SchemaError
from penstock.flow.checks import check_text
from penstock.formats.lines import Csv, LineFormat, Pattern, decoder_for

__all__ = ["check_format", "csv", "pattern"]


def csv(*, delimiter: str = ",", null: str = "") -> Csv:
    """Records whose values are lines of CSV, with the schema's columns in their order.

    An empty text is NULL where the column isn't STRING.

    Args:
        delimiter: one character between values.
        null: another text that stands for NULL, such as `-` or `NA`.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise FlowError(f"expected a delimiter of one character, such as ';'; found {delimiter!r}")
    if not isinstance(null, str):
        raise FlowError(f"expected null as a text, such as null='NA'; found {null!r}")
    return Csv(delimiter, null)


def pattern(expression: str, *, time_format: str | None = None, null: str = "") -> Pattern:
    """Records whose values are lines in which a regular expression finds the columns.

    Each column is the text of the group that has its name, `(?P<status>[0-9]+)`. A group that takes no
    part gives an empty text, which is NULL where the column isn't STRING. A line that the expression
    isn't found in is a dead letter.

    Args:
        expression: in RE2's syntax; `^` and `$` are the line's ends.
        time_format: of TIMESTAMP columns, as for `strptime` (`%d/%b/%Y:%H:%M:%S %z`); by default ISO 8601.
        null: another text that stands for NULL, such as `-`.
    """
    check_text(expression, "a pattern", r"ps.pattern(r'^(?P<user>\w+) ')")
    if time_format is not None:
        check_text(time_format, "time_format", "time_format='%d/%b/%Y:%H:%M:%S %z'")
    if not isinstance(null, str):
        raise FlowError(f"expected null as a text, such as null='-'; found {null!r}")
    return Pattern(expression, time_format, null)


def check_format(format_: object, schema: Schema) -> LineFormat | None:
    """What a stream's `format=` says; None is JSON.

    Raises:
        FlowError: it is no format, or doesn't have the schema's columns.
    """
    if format_ == "json":
        return None
    if format_ == "csv":
        format_ = Csv()
    if not isinstance(format_, Csv | Pattern):
        raise FlowError(
            f"expected format='json', 'csv', ps.csv(…) or ps.pattern(…); found {format_!r}"
        )
    try:
        decoder_for(schema, format_)
    except SchemaError as error:
        raise FlowError(str(error)) from None
    return format_
