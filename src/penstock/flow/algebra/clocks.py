"""When a node's rows happen: the column of their event time, and the times of what they are made of."""

from __future__ import annotations

from penstock.flow.graph import Node, RowStep, Source, Stateful, Union, handed_on, retracts
from penstock.flow.times import EventTime
from penstock.ops.rows import Select, Where

__all__ = ["event_time_column", "event_times", "is_decided", "is_read"]


def event_time_column(node: Node) -> str | None:
    """The column of a stream that is its event time; None where it has none, or streams that it unites have
    theirs in different ones.
    """
    match node:
        case Source(time=time, changelog=None) if not time.processing and time.sent is None:
            return time.column
        case RowStep(parent=parent, operator=Where()):
            return event_time_column(parent)
        case RowStep(parent=parent, operator=Select(columns=columns)):
            above = event_time_column(parent)
            clock = _clock(parent)
            return next(
                (name for name, e in columns if handed_on(e) == above or e.sql == clock), None
            )
        case Union(inputs=inputs):
            found = {event_time_column(one) for one in inputs}
            return found.pop() if len(found) == 1 else None
        case _:
            return None


def _clock(node: Node) -> str | None:
    """The expression over a stream's columns that is its event time; None: it is none, or a column."""
    while isinstance(node, RowStep) and isinstance(node.operator, Where):
        node = node.parent
    if isinstance(node, Source) and node.clock is not None and node.time.sent is None:
        return node.clock.sql
    return None


def is_read(node: Node) -> bool:
    """Whether a stream's rows are a topic's, at the time of a column or of the record."""
    match node:
        case Source(time=time, changelog=None):
            return not time.processing and time.sent is None
        case RowStep(parent=parent, operator=Where() | Select()):
            return is_read(parent)
        case Union(inputs=inputs):
            return all(is_read(one) for one in inputs)
        case _:
            return False


def is_decided(node: Node) -> bool:
    """Whether a stream's rows are matches of a pattern, which happen when they are certain."""
    match node:
        case RowStep(parent=parent):
            return is_decided(parent)
        case Union(inputs=inputs):
            return any(map(is_decided, inputs))
        case Stateful(operator=operator):
            return operator.kind == "match"
        case _:
            return False


def event_times(node: Node) -> list[EventTime]:
    """When the rows of each stream happen from which a node's rows have their times.

    A table that a stream is joined with gives its rows no time.
    """
    match node:
        case Source(time=time, changelog=changelog):
            return [time] if changelog is None else []
        case Stateful(inputs=inputs) if len(inputs) > 1:
            above = [one for one in inputs if not retracts(one)]
        case _:
            above = list(node.inputs)
    return [time for one in above for time in event_times(one)]
