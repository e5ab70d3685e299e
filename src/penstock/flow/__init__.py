"""The user's API: a program describes a graph of streams, tables, views and outputs."""

from penstock.flow._collections import Grouped, Stream, Table, Windowed
from penstock.flow.aggregates import AggregateCall
from penstock.flow.app import Flow
from penstock.flow.functions import (
    approx_count_distinct,
    approx_quantile,
    arg_max,
    arg_min,
    avg,
    avro,
    collect,
    count,
    count_distinct,
    csv,
    first,
    frequencies,
    frequent,
    hopping,
    last,
    max,  # noqa: A004 - the field's names, used as ps.max and so on
    min,  # noqa: A004
    pattern,
    quantile,
    session,
    stddev,
    sum,  # noqa: A004
    tumbling,
    variance,
)
from penstock.flow.rolling import count_window, sliding
from penstock.flow.times import (
    EventTime,
    Header,
    corrected_time,
    event_time,
    header,
    processing_time,
)

__all__ = [
    "AggregateCall",
    "EventTime",
    "Flow",
    "Grouped",
    "Header",
    "Stream",
    "Table",
    "Windowed",
    "approx_count_distinct",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "avg",
    "avro",
    "collect",
    "corrected_time",
    "count",
    "count_distinct",
    "count_window",
    "csv",
    "event_time",
    "first",
    "frequencies",
    "frequent",
    "header",
    "hopping",
    "last",
    "max",
    "min",
    "pattern",
    "processing_time",
    "quantile",
    "session",
    "sliding",
    "stddev",
    "sum",
    "tumbling",
    "variance",
]
