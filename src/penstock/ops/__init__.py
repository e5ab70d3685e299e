"""Incremental operators: a delta in, a delta out; pure and deterministic."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.ops.aggregate import WindowedAggregate
    from penstock.ops.aggregates import Column
    from penstock.ops.keyed.upserts import Upserts
    from penstock.ops.operator import Context, Operator, Port, Prepared, Step, Traits
    from penstock.ops.partials import Partials
    from penstock.ops.registry import operator_from_spec
    from penstock.ops.routed import Routed, RowParcels
    from penstock.ops.sessions import SessionAggregate
    from penstock.ops.spec import Aggregate, AggregateSpec
    from penstock.ops.state import State
    from penstock.ops.windows import LATE, NO_TIME, Window
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "aggregate": ("WindowedAggregate",),
            "aggregates": ("Column",),
            "keyed.upserts": ("Upserts",),
            "operator": (
                "Context",
                "Operator",
                "Port",
                "Prepared",
                "Step",
                "Traits",
            ),
            "partials": ("Partials",),
            "registry": ("operator_from_spec",),
            "routed": (
                "Routed",
                "RowParcels",
            ),
            "sessions": ("SessionAggregate",),
            "spec": (
                "Aggregate",
                "AggregateSpec",
            ),
            "state": ("State",),
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
    "Port",
    "Prepared",
    "Routed",
    "RowParcels",
    "SessionAggregate",
    "State",
    "Step",
    "Traits",
    "Upserts",
    "Window",
    "WindowedAggregate",
    "operator_from_spec",
]
