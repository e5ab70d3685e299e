"""When a stream's rows happened, and what its watermark follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Schema, type_text
from penstock.core.time import MINUTE_US
from penstock.errors import FlowError
from penstock.expr import compile_expression
from penstock.flow.checks import check_condition, check_duration, check_text, quoted

__all__ = [
    "EventTime",
    "Header",
    "check_time",
    "corrected_time",
    "event_time",
    "header",
    "processing_time",
]

IDLE_DEFAULT: Final = "1 minute"
"""Long against network hiccups, short against a dashboard's patience."""
AHEAD_DEFAULT: Final = "1 minute"
"""Long against the differences of clocks that are kept right, short against a window."""
EXPECTED_MAX: Final = 1_000
"""Producers named in a program; each is looked at before every batch."""


@dataclass(frozen=True)
class Header:
    """A header of a stream's records. See `header`."""

    name: str


Producer: TypeAlias = str | Header
Unit: TypeAlias = Literal["s", "ms", "us", "ns"]
UNITS_US: Final[Mapping[Unit, float]] = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Units of numbers since 1970-01-01 UTC, in µs."""


@dataclass(frozen=True)
class EventTime:
    """When a stream's rows happened, and how late they may come. See `event_time`.

    Attributes:
        column: that says when; None takes the record's timestamp.
        lateness_us: how far a row may lie behind the newest before it.
        idle_us: who brings nothing for so long (wall clock) no longer holds the watermark.
        ahead_us: how far a row may lie after its record's timestamp and still move the watermark there.
        sent: the column that says when the row was sent, by the same clock as `column`.
        received: when it was received, by a correct clock; None uses the record's timestamp.
        producer: what identifies producers, each of which has a watermark of its own.
        expected: producers that hold the watermark until something of them was read.
        punctuated: a condition; only rows for which it is true move the watermark.
        processing: rows happen when they are processed; nothing else here counts.
        computed: an expression over the row's columns that says when, instead of `column`.
        unit: of numbers since 1970 that `column` says; only until the columns are known (`check_time`).
    """

    column: str | None
    lateness_us: int
    idle_us: int
    ahead_us: int = MINUTE_US
    sent: str | None = None
    received: str | None = None
    producer: Producer | None = None
    expected: tuple[str, ...] = ()
    punctuated: str | None = None
    processing: bool = False
    computed: str | None = None
    unit: Unit | None = None

    @property
    def source(self) -> str | None:
        """The column, or the expression; None: the record's timestamp."""
        return self.column if self.computed is None else self.computed

    @property
    def text(self) -> str:
        """What the event time of rows, and which of them are late, depends on; empty for the plain case."""
        parts = [
            ("ahead", None if self.ahead_us == MINUTE_US else self.ahead_us),
            ("sent", self.sent),
            ("received", self.received),
            ("producer", self.producer),
            ("expected", sorted(self.expected) or None),
            ("punctuated", self.punctuated),
            ("processing", self.processing or None),
            ("computed", self.computed),
        ]
        return ", ".join(f"{name} {value!r}" for name, value in parts if value is not None)


def event_time(
    column: str | None = None,
    *,
    unit: Unit | None = None,
    lateness: str | timedelta = "0 seconds",
    idle: str | timedelta = IDLE_DEFAULT,
    ahead: str | timedelta = AHEAD_DEFAULT,
    sent: str | None = None,
    received: str | None = None,
    producer: str | Header | None = None,
    expected: list[str] | tuple[str, ...] = (),
    punctuated: str | None = None,
) -> EventTime:
    """Names the event time of a stream's rows.

    Args:
        column: a TIMESTAMP column, or an SQL expression over the row's columns, such as
            `"to_timestamp(ts)"`; None uses the record's timestamp in the log. A row for which the expression
            fails is a dead letter.
        unit: of a column or an expression of numbers since 1970-01-01 UTC: `"s"`, `"ms"`, `"us"`, `"ns"`.
        lateness: how far a row may be behind the newest one of its partition, or of its producer there. A
            row whose windows all ended longer ago is late: it is counted and written to the
            dead-letter topic.
        idle: a partition or producer without new rows for this long no longer holds back the watermark. An
            idle topic doesn't hold back the topics that it is joined or united with.
        ahead: how far a row may be after its record's timestamp. A row further ahead is counted in
            its windows, but moves the watermark only to its record's timestamp, so a clock that is
            ahead doesn't make other rows late. Records without a timestamp are trusted.
        sent: a TIMESTAMP column of when the row was sent, by the same clock as `column`. The event time is
            then `column + (received - sent)`: correct even if that clock is wrong.
        received: a TIMESTAMP column of when it was received, by a correct clock; None uses the record's
            timestamp.
        producer: a column, or `ps.header(…)`, that identifies the producer. Each producer has its own
            watermark, and the lowest counts: a producer that is behind holds windows open until it is idle.
        expected: names of producers. No window closes before a row of each was read, or it has been
            idle.
        punctuated: a condition over the row's columns, such as `"kind = 'end of day'"`. A row for which it is
            true promises that no earlier row will come. Only such rows move the watermark.
    """
    for name, what in ((column, "the event time's column"), (sent, "sent"), (received, "received")):
        if name is not None:
            check_text(name, what, "ps.event_time('at')")
    if unit is not None and (unit not in UNITS_US or column is None):
        raise FlowError(
            "expected a unit of a column of numbers, such as ps.event_time('ts', unit='ms'), of "
            f"{', '.join(UNITS_US)}; found {unit!r} of {column!r}"
        )
    if sent is not None and column is None:
        raise FlowError(
            f"expected the column with the time of the event as well as sent={sent!r}, such as "
            f"ps.event_time('occurred', sent={sent!r})"
        )
    if received is not None and sent is None:
        raise FlowError(
            f"expected sent=… as well as received={received!r}: the difference of both corrects the "
            "event time"
        )
    if producer is not None and not isinstance(producer, Header):
        check_text(producer, "the producer's column", "ps.event_time('at', producer='device')")
    if punctuated is not None:
        check_text(punctuated, "the markers' condition", "punctuated=\"kind = 'end'\"")
    return EventTime(
        column,
        check_duration(lateness, "lateness", "'30 seconds'"),
        check_duration(idle, "idle", "'1 minute'"),
        check_duration(ahead, "ahead", "'1 minute'"),
        sent,
        received,
        producer,
        _check_expected(expected, producer),
        punctuated,
        unit=unit,
    )


def processing_time() -> EventTime:
    """Uses the time at which rows are processed.

    All rows of a batch have the time of the batch's plan, which a repeated batch keeps. Windows close
    by the clock, and no row is late. Another run over the same log gives other results; prefer
    `event_time()`, the records' timestamps, if they suffice.
    """
    return EventTime(None, 0, 0, processing=True)


def header(name: str) -> Header:
    """A header of a stream's records, as `producer` of `event_time`: its text; the last one of that name."""
    return Header(check_text(name, "a header's name", "ps.header('device')"))


def corrected_time(occurred: str, sent: str, received: str) -> str:
    """The expression `occurred + (received - sent)`: the time of an event by a correct clock.

    The error of a device's clock is the same in `occurred` and `sent`, so it cancels out in their
    difference.

    Args:
        occurred: a TIMESTAMP column, or an expression: when it happened, by the device's clock.
        sent: when it was sent, by the same clock.
        received: when it was received, by a correct clock.

    Returns:
        SQL, for `select(at=ps.corrected_time("occurred", "sent", "received"))`.
    """
    parts = [
        f"epoch_us({check_text(one, what, repr(what))})"
        for one, what in ((occurred, "occurred"), (sent, "sent"), (received, "received"))
    ]
    return f"make_timestamptz({parts[0]} + ({parts[2]} - {parts[1]}))"


def check_time(time: object, columns: Schema, *, table: bool = False) -> EventTime:
    """Event time; by default the record's own timestamp.

    Args:
        time: what the program passed.
        columns: of the rows.
        table: whether it is a table's, whose deletions have no columns.

    Raises:
        FlowError: it is no event time, or its columns are of the wrong type.
        SchemaError: it names a column that isn't there.
    """
    if time is None:
        return event_time()
    if not isinstance(time, EventTime):
        column = time if isinstance(time, str) else "at"
        raise FlowError(
            f"expected time=ps.event_time({column!r}, lateness='30 seconds'); found time={time!r}"
        )
    time = _resolved(time, columns)
    for name in (time.column, time.sent, time.received):
        if name is not None and pa.types.is_integer(columns[name].type):
            raise FlowError(
                f"expected the event time {name!r} to be a TIMESTAMP; found {columns[name].type}. Name the "
                f"unit of numbers since 1970: ps.event_time({name!r}, unit='ms'), in SQL WITH (unit = 'ms')"
            )
        if name is not None and columns[name].type != TIMESTAMP:
            raise FlowError(
                f"expected the event time {name!r} to be a TIMESTAMP; found {columns[name].type}"
            )
    options = [("sent", time.sent), ("producer", time.producer), ("punctuated", time.punctuated)]
    for option, value in options:
        if table and value is not None:
            raise FlowError(
                f"expected a stream for {option}={value!r}; found a table, whose deletions have no columns"
            )
    if isinstance(time.producer, str) and pa.types.is_list(columns[time.producer].type):
        raise FlowError(f"expected a producer of single values; found the array {time.producer!r}")
    if time.punctuated is not None:
        check_condition(time.punctuated, columns)
    return time


def _resolved(time: EventTime, columns: Schema) -> EventTime:
    """The event time with its expression in place of a column, where it isn't a TIMESTAMP column alone.

    Raises:
        FlowError: the expression, or the column, is of the wrong type.
        SchemaError: it can't be read, or names a column that isn't there.
    """
    text = time.column
    if time.computed is not None or text is None:
        return time
    if text in columns:
        if time.unit is None:
            return time
        text = quoted(text)
    elif time.unit is None and text.isidentifier():
        columns[text]  # it says which columns there are
    type_ = compile_expression(text, columns).type
    if time.unit is not None:
        if not (
            pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        ):
            raise FlowError(
                f"expected numbers in {time.column!r} for unit={time.unit!r}; found {type_text(type_)}. A "
                "TIMESTAMP needs no unit, and a text a CAST: ps.event_time('ts::BIGINT', unit='ms')"
            )
        text = _instant_sql(text, time.unit, whole=pa.types.is_integer(type_))
    elif type_ != TIMESTAMP:
        raise FlowError(
            f"expected the event time {text!r} to be a TIMESTAMP; found {type_text(type_)}. Name the unit of "
            f"numbers since 1970: ps.event_time({text!r}, unit='ms')"
        )
    return replace(time, column=None, computed=text, unit=None)


def _instant_sql(text: str, unit: Unit, *, whole: bool) -> str:
    """The instant that a number of units since 1970 is."""
    if not whole:
        # Exact to the microsecond: a double's error is a quarter of one in this century.
        return f"make_timestamptz(CAST(round(CAST({text} AS DOUBLE) * {UNITS_US[unit]}) AS BIGINT))"
    if unit == "ns":
        return f"make_timestamptz(CAST(({text}) // 1000 AS BIGINT))"
    return f"make_timestamptz(CAST({text} AS BIGINT) * {UNITS_US[unit]})"


def _check_expected(expected: object, producer: object) -> tuple[str, ...]:
    if not isinstance(expected, list | tuple) or not all(isinstance(e, str) for e in expected):
        raise FlowError(
            "expected names of producers, as texts in a list, such as expected=['pump 1', 'pump 2']; "
            f"found {expected!r}"
        )
    if expected and producer is None:
        raise FlowError(f"expected producer=… as well as expected={expected!r}: it identifies them")
    if len(expected) > EXPECTED_MAX:
        raise FlowError(
            f"expected at most {EXPECTED_MAX} producers (EXPECTED_MAX); found {len(expected)}"
        )
    return tuple(dict.fromkeys(expected))
