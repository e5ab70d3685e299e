"""Incremental operators: a delta in, a delta out; pure and deterministic."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.ops.aggregate import State, WindowedAggregate
    from penstock.ops.aggregates import Column
    from penstock.ops.keyed.upserts import Upserts
    from penstock.ops.lateness import Verdict, judge
    from penstock.ops.operator import Context, Operator, Prepared, Step
    from penstock.ops.partials import Partials
    from penstock.ops.registry import operator_from_spec
    from penstock.ops.sessions import SessionAggregate
    from penstock.ops.spec import Aggregate, AggregateSpec
    from penstock.ops.windows import LATE, NO_TIME, Window
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "aggregate": (
                "State",
                "WindowedAggregate",
            ),
            "aggregates": ("Column",),
            "keyed.upserts": ("Upserts",),
            "lateness": (
                "Verdict",
                "judge",
            ),
            "operator": (
                "Context",
                "Operator",
                "Prepared",
                "Step",
            ),
            "partials": ("Partials",),
            "registry": ("operator_from_spec",),
            "sessions": ("SessionAggregate",),
            "spec": (
                "Aggregate",
                "AggregateSpec",
            ),
            "windows": (
                "LATE",
                "NO_TIME",
                "Window",
            ),
        },
    )

__all__ = [
    "LATE",
    "NO_TIME",
    "Aggregate",
    "AggregateSpec",
    "Column",
    "Context",
    "Operator",
    "Partials",
    "Prepared",
    "SessionAggregate",
    "State",
    "Step",
    "Upserts",
    "Verdict",
    "Window",
    "WindowedAggregate",
    "judge",
    "operator_from_spec",
]
