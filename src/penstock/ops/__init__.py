"""Incremental operators: a delta in, a delta out; pure and deterministic."""

from penstock.ops.aggregate import Context, State, Step, WindowedAggregate
from penstock.ops.lateness import Verdict, judge
from penstock.ops.partials import Partials
from penstock.ops.spec import Aggregate, AggregateSpec, Column
from penstock.ops.windows import LATE, NO_TIME, Window

__all__ = [
    "LATE",
    "NO_TIME",
    "Aggregate",
    "AggregateSpec",
    "Column",
    "Context",
    "Partials",
    "State",
    "Step",
    "Verdict",
    "Window",
    "WindowedAggregate",
    "judge",
]
