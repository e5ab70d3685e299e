"""The user's API: a program describes a graph of streams, tables, views and outputs."""

from penstock.flow._collections import AggregateCall, Grouped, Stream, Table, Windowed
from penstock.flow.app import Flow
from penstock.flow.functions import (
    EventTime,
    avg,
    count,
    event_time,
    hopping,
    max,  # noqa: A004 - the field's names, used as ps.max and so on
    min,  # noqa: A004
    session,
    sum,  # noqa: A004
    tumbling,
)

__all__ = [
    "AggregateCall",
    "EventTime",
    "Flow",
    "Grouped",
    "Stream",
    "Table",
    "Windowed",
    "avg",
    "count",
    "event_time",
    "hopping",
    "max",
    "min",
    "session",
    "sum",
    "tumbling",
]
