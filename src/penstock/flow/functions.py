"""The functions of a program: windows, aggregates and formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from penstock.core.delta import TIME
from penstock.core.names import hint
from penstock.core.sketches.bloom import shape_of
from penstock.core.time import WINDOW_MAX_US
from penstock.errors import FlowError
from penstock.expr.functions import FUNCTIONS, aggregate_named
from penstock.flow.aggregates import AggregateCall
from penstock.flow.calendars import calendar_window
from penstock.flow.checks import check_duration, check_registry, check_text
from penstock.formats.avro import Avro
from penstock.formats.lines import Csv, Pattern
from penstock.formats.lines.kinds import Named, named_format
from penstock.ops import Window

__all__ = [
    "aggregate",
    "approx_count_distinct",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "avg",
    "avro",
    "bloom_filter_agg",
    "collect",
    "count",
    "count_distinct",
    "csv",
    "first",
    "frequencies",
    "frequent",
    "hopping",
    "last",
    "max",
    "min",
    "pattern",
    "quantile",
    "record_format",
    "session",
    "stddev",
    "sum",
    "theta_sketch_agg",
    "theta_union_agg",
    "tumbling",
    "variance",
]


def tumbling(
    size: str | timedelta, *, offset: str | timedelta = "0 seconds", zone: str | None = None
) -> Window:
    """Windows of one size, one after another. Each row belongs to one window.

    Args:
        size: `"1 minute"`, or of the calendar: `"1 month"`, `"1 quarter"`, `"1 year"`.
        offset: shifts the beginning: a day that begins at `"6 hours"`, a fiscal year at `"3 months"`.
        zone: the time zone of days, weeks, months or years, such as `"Europe/Berlin"`: a day then has
            23, 24 or 25 hours. Weeks begin on Monday. Without it, windows are counted from 1970-01-01,
            a Thursday, in UTC; months and years are those of UTC.
    """
    return _window("tumbling", size, size, offset, zone)


def hopping(
    size: str | timedelta,
    *,
    every: str | timedelta,
    offset: str | timedelta = "0 seconds",
    zone: str | None = None,
) -> Window:
    """Windows of one size that begin at regular intervals and overlap. A row belongs to several windows.

    Arguments as for `tumbling`. With `zone=…`, and of months, the size is a multiple of `every`.
    """
    return _window("hopping", size, every, offset, zone)


def session(gap: str | timedelta) -> Window:
    """Windows defined by a group's activity: each row is less than `gap` after the previous one.

    A session begins with its first row and ends `gap` after its last one. A row that arrives out of
    order may extend a session or join two. When the watermark has passed its end, a session is closed
    and never changes again, unless late rows correct it. A row is late when the watermark has passed
    its own time.

    Args:
        gap: a session ends after this long without a row: `"30 minutes"`.
    """
    gap_us = check_duration(gap, "a session's gap", "'30 minutes'")
    if gap_us <= 0:
        raise FlowError(f"expected a session's gap longer than nothing; found {gap!r}")
    return Window("session", size_us=gap_us)


def _call(
    kind: str, column: str | None, where: str | None, by: str | None = None, name: str | None = None
) -> AggregateCall:
    name = name or kind
    if column is not None or kind != "count":
        check_text(column, f"{name}'s column", f"ps.{name}('amount')")
    if where is not None:
        check_text(where, f"{name}'s condition", f"ps.{name}('amount', where='amount > 0')")
    return AggregateCall(kind, column, where, by)


def _window(
    kind: Literal["tumbling", "hopping"],
    size: str | timedelta,
    every: str | timedelta,
    offset: str | timedelta,
    zone: str | None,
) -> Window:
    calendar = calendar_window(kind, size, every, offset, zone)
    if calendar is not None:
        return calendar
    size_us = check_duration(size, "a window's size", "'1 minute'")
    every_us = check_duration(every, "every", "'10 seconds'")
    offset_us = check_duration(offset, "offset", "'30 minutes'")
    if size_us <= 0 or every_us <= 0:
        raise FlowError(f"expected a window longer than nothing; found {size!r} every {every!r}")
    if size_us > WINDOW_MAX_US:
        raise FlowError(f"expected windows of at most 100 years; found {size!r}")
    if every_us > size_us:
        raise FlowError(
            f"expected windows that leave no gap (every <= size); found {size!r} every {every!r}"
        )
    return Window(kind, size_us=size_us, every_us=every_us, offset_us=offset_us)


def count(column: str | None = None, *, where: str | None = None) -> AggregateCall:
    """The number of rows; of a column, the number of its values that aren't NULL.

    Args:
        column: a column, or an SQL expression over the row's columns; None counts rows.
        where: counts only rows for which this condition is true.
    """
    return _call("count", column, where)


def sum(column: str, *, where: str | None = None) -> AggregateCall:  # noqa: A001 - the field's name, used as ps.sum
    """The sum of a column's values; NULL where there are none.

    Args:
        column: a column, or an SQL expression over the row's columns: `ps.sum("price * amount")`.
        where: uses only rows for which this condition is true.
    """
    return _call("sum", column, where)


def min(column: str, *, where: str | None = None) -> AggregateCall:  # noqa: A001
    """The smallest of a column's values; NULL without any. Arguments as for `sum`."""
    return _call("min", column, where)


def max(column: str, *, where: str | None = None) -> AggregateCall:  # noqa: A001
    """The largest of a column's values; NULL without any. Arguments as for `sum`."""
    return _call("max", column, where)


def avg(column: str, *, where: str | None = None) -> AggregateCall:
    """The mean of a column's values; NULL without any. Arguments as for `sum`."""
    return _call("avg", column, where)


def variance(column: str, *, where: str | None = None) -> AggregateCall:
    """The variance of a sample (`var_samp`); NULL below two values. Arguments as for `sum`."""
    return _call("variance", column, where)


def stddev(column: str, *, where: str | None = None) -> AggregateCall:
    """The standard deviation of a sample (`stddev_samp`); NULL below two values. Arguments as for `sum`."""
    return _call("stddev", column, where)


def count_distinct(column: str, *, where: str | None = None) -> AggregateCall:
    """The exact number of distinct values of a column. All values are kept. Arguments as for `sum`."""
    return _call("count_distinct", column, where)


def approx_count_distinct(column: str, *, where: str | None = None) -> AggregateCall:
    """An estimate of the number of distinct values: within 1.6 % (standard error), in 12 KiB at most.

    For streams; use `count_distinct` for tables. Arguments as for `sum`.
    """
    return _call("approx_count_distinct", column, where)


def approx_quantile(column: str, share: float, *, where: str | None = None) -> AggregateCall:
    """An estimate of the value below which a share of a column's values lies, within 0.8 % of it.

    It keeps a histogram, whatever the number of values. Arguments as for `quantile`.
    """
    return replace(
        _call("approx_quantile", column, where), parameter=_share(share, "approx_quantile")
    )


def theta_sketch_agg(column: str, *, where: str | None = None) -> AggregateCall:
    """The theta sketch of a column's distinct values, as BINARY of 32 KiB at most; of none the empty sketch.

    In expressions, `theta_sketch_estimate` gives how many values there are (standard error 1.6 %),
    `theta_sketch_lower_bound` and `theta_sketch_upper_bound` between which the number lies with 95 %;
    `theta_union`, `theta_intersection` and `theta_difference` of two sketches give a sketch. The bytes are
    those of Apache DataSketches, which Spark's functions of the same names read.

    For streams. Arguments as for `sum`.
    """
    return _call("theta_sketch_agg", column, where)


def theta_union_agg(column: str, *, where: str | None = None) -> AggregateCall:
    """The union of a BINARY column's theta sketches: that of all values that any of them has.

    Rows whose value isn't a theta sketch are dead letters. For streams, such as `closed()` windows.
    Arguments as for `sum`.
    """
    return _call("theta_union_agg", column, where)


def arg_min(column: str, by: str, *, where: str | None = None) -> AggregateCall:
    """The column's value in the row with the least value of another: `ps.arg_min("shop", by="price")`.

    Rows with NULL in either are skipped. Ties in `by` give the least value.

    Args:
        column: a column, or an SQL expression over the row's columns.
        by: likewise.
        where: uses only rows for which this condition is true.
    """
    check_text(by, "what arg_min is by", "ps.arg_min('shop', by='price')")
    return _call("arg_min", column, where, by)


def arg_max(column: str, by: str, *, where: str | None = None) -> AggregateCall:
    """The column's value in the row with the greatest value of another; otherwise as `arg_min`.

    Ties in `by` give the greatest value.
    """
    check_text(by, "what arg_max is by", "ps.arg_max('user', by='score')")
    return _call("arg_max", column, where, by)


def first(column: str, *, where: str | None = None) -> AggregateCall:
    """The column's first value by event time, NULLs skipped; of several at that time, the least.

    Arguments as for `sum`.
    """
    return _call("arg_min", column, where, TIME, "first")


def last(column: str, *, where: str | None = None) -> AggregateCall:
    """The column's last value by event time, NULLs skipped; of several at that time, the greatest.

    Arguments as for `sum`.
    """
    return _call("arg_max", column, where, TIME, "last")


def aggregate(function: str, column: str, *, where: str | None = None) -> AggregateCall:
    """An aggregate of another distribution, by its name: docs/plugins.md says how it is written.

    Args:
        function: its name.
        column: a column, or an expression.
        where: a condition: which rows it sees.

    Raises:
        FlowError: there is no such function.
        SetupError: it can't be loaded.
    """
    if aggregate_named(function) is None:
        names = sorted(FUNCTIONS.names())
        raise FlowError(
            f"expected an aggregate of an installed plugin; found {function!r}{hint(function, names)}. "
            "Install its distribution where the program and its tasks run"
        )
    return _call(function, column, where, name="aggregate")


def bloom_filter_agg(
    column: str, *, capacity: int, error: float = 0.01, where: str | None = None
) -> AggregateCall:
    """A Bloom filter of a column's values, as BINARY, for `might_contain(filter, value)` in expressions.

    NULLs are skipped; without values, the filter has none. Not for tables, whose rows can be retracted.

    Args:
        column: a column, or an SQL expression over the row's columns.
        capacity: the expected number of different values of a group. With more, errors become more frequent.
        error: the share of values outside the group for which the answer is wrong.
        where: uses only rows for which this condition is true.

    Raises:
        FlowError: a filter for so many values would be larger than 8 MiB.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise FlowError(
            f"expected a capacity, such as ps.bloom_filter_agg('user', capacity=100_000); found {capacity!r}"
        )
    if isinstance(error, bool) or not isinstance(error, int | float) or not 1e-12 <= error <= 0.5:
        raise FlowError(f"expected an error of 1e-12 to 0.5, such as error=0.01; found {error!r}")
    try:
        shape = shape_of(capacity, error)
    except ValueError as refusal:
        raise FlowError(str(refusal)) from None
    parameter = (shape.words, shape.hashes)
    return replace(_call("bloom_filter_agg", column, where), parameter=parameter)


def quantile(column: str, share: float, *, where: str | None = None) -> AggregateCall:
    """The exact value below which a share of a column's values lies (`quantile_cont`); NULL without any.

    Args:
        column: a column of numbers, or a SQL expression over the row's columns. All its values are kept.
        share: 0 to 1: 0.5 is the median, 0.99 the 99th percentile.
        where: uses only rows for which this condition is true.
    """
    return replace(_call("quantile", column, where), parameter=_share(share, "quantile"))


def _share(share: float, name: str) -> float:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise FlowError(
            f"expected a share of 0 to 1, such as ps.{name}('ms', 0.95); found {share!r}"
        )
    return float(share)


def collect(
    column: str, *, limit: int, by: str | None = None, where: str | None = None
) -> AggregateCall:
    """The first values of a column in an order, as an array; NULLs are skipped. NULL without any.

    Args:
        column: a column, or an SQL expression over the row's columns. All its values are kept.
        limit: how many values at most.
        by: what they are ordered by, a column or an expression: `by="at DESC"` puts the newest first. Rows
            that are NULL in it are skipped; those that are equal are ordered by their value. By default,
            values are in ascending order.
        where: uses only rows for which this condition is true.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise FlowError(f"expected a limit, such as ps.collect('page', limit=10); found {limit!r}")
    kind = "collect"
    if by is not None:
        check_text(by, "what collect is ordered by", "ps.collect('page', by='at DESC', limit=10)")
        name, _, direction = by.strip().rpartition(" ")
        if name and direction.upper() in ("ASC", "DESC"):
            by = name.strip()
            kind = "collect_descending" if direction.upper() == "DESC" else kind
    return replace(_call(kind, column, where, by, "collect"), parameter=limit)


def frequent(column: str, *, limit: int, where: str | None = None) -> AggregateCall:
    """The most frequent of a column's values as an array, the most frequent first; NULL without any.

    Exact: all values are kept with their counts. Among equally frequent values the least comes first.

    Args:
        column: a column, or an SQL expression over the row's columns.
        limit: how many values at most.
        where: uses only rows for which this condition is true.
    """
    return _frequent("frequent", column, limit, where)


def frequencies(column: str, *, limit: int, where: str | None = None) -> AggregateCall:
    """The counts of the values that `frequent` gives, in the same order. Same arguments."""
    return _frequent("frequencies", column, limit, where)


def _frequent(kind: str, column: str, limit: int, where: str | None) -> AggregateCall:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise FlowError(f"expected a limit, such as ps.{kind}('page', limit=10); found {limit!r}")
    return replace(_call(kind, column, where), parameter=limit)


def csv(*, delimiter: str = ",", null: str = "") -> Csv:
    """Records whose values are lines of CSV, with the schema's columns in their order.

    An empty text is NULL if the column isn't STRING.

    Args:
        delimiter: one character between values.
        null: another text for NULL, such as `-` or `NA`.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise FlowError(f"expected a delimiter of one character, such as ';'; found {delimiter!r}")
    if not isinstance(null, str):
        raise FlowError(f"expected null as a text, such as null='NA'; found {null!r}")
    return Csv(delimiter, null)


def record_format(name: str, **options: object) -> Named:
    """A format of another distribution, by its name: docs/plugins.md says how it is written.

    Args:
        name: its name.
        options: of the format.

    Raises:
        UserError: there is no such format.
        SetupError: it can't be loaded.
    """
    return named_format(name, options)


def pattern(expression: str, *, time_format: str | None = None, null: str = "") -> Pattern:
    """Records whose values are lines in which a regular expression finds the columns.

    Each column is the text of the group that has its name, `(?P<status>[0-9]+)`. A group without a match
    gives an empty text, which is NULL if the column isn't STRING. A line without a match is a dead letter.

    Args:
        expression: in RE2's syntax; `^` and `$` are the line's ends.
        time_format: of TIMESTAMP columns, as for `strptime` (`%d/%b/%Y:%H:%M:%S %z`); by default ISO 8601.
        null: another text for NULL, such as `-`.
    """
    check_text(expression, "a pattern", r"ps.pattern(r'^(?P<user>\w+) ')")
    if time_format is not None:
        check_text(time_format, "time_format", "time_format='%d/%b/%Y:%H:%M:%S %z'")
    if not isinstance(null, str):
        raise FlowError(f"expected null as a text, such as null='-'; found {null!r}")
    return Pattern(expression, time_format, null)


def avro(
    schema: str | Mapping[str, Any] | Mapping[int, str | Mapping[str, Any]] | None = None,
    *,
    registry: str | None = None,
) -> Avro:
    """Records whose values are Avro's binary encoding of a record.

    Columns are fields of the same name; other fields are skipped, and a column without a field is
    NULL. A union is of null and one type; a logical type is `date`, `timestamp-millis` or
    `timestamp-micros`.

    Args:
        schema: the writer's, as JSON text or as a dict. For values that begin with a schema registry's
            head (a zero byte and an id of four bytes) a mapping of the ids to their schemas; other ids
            are dead letters, unless a registry knows them.
        registry: the URL of a schema registry that speaks Confluent's API, such as
            `http://127.0.0.1:8081`. It is asked once for each id. A record whose id it doesn't know, or
            whose schema has a column as another type, is a dead letter. While the registry is away, the
            pipeline waits. A password is in PENSTOCK_REGISTRY_PASSWORD.
    """
    if registry is not None:
        return _registered(schema, registry)
    given: Any = schema
    if not isinstance(given, Mapping) or "type" in given:
        return Avro(((None, _json(given)),))
    if not given or not all(isinstance(one, int) for one in given):
        raise FlowError(
            "expected an Avro schema, or a mapping of ids to schemas, such as {7: schema}; found "
            f"{given!r}"
        )
    return Avro(tuple((id_, _json(one)) for id_, one in sorted(given.items())))


def _registered(schema: object, registry: str) -> Avro:
    """Values with a head, whose schemas a registry has."""
    url = check_registry(registry)
    known = () if schema is None else avro(schema).schemas  # type: ignore[arg-type] # it says what it expects
    if any(id_ is None for id_, _ in known):
        raise FlowError("expected schemas by their ids next to a registry; found one without")
    return Avro(known, url)


def _json(schema: object) -> str:
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping):
        raise FlowError(f"expected an Avro schema as JSON or a mapping; found {schema!r}")
    return json.dumps(schema, sort_keys=True)
