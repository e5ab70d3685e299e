"""Aggregate functions, one file each; `FUNCTIONS` are all, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.core.names import known_names
from penstock.errors import FlowError
from penstock.ops.aggregates.arg import ArgMax, ArgMin
from penstock.ops.aggregates.bloom import BloomFilter
from penstock.ops.aggregates.count import ROWS, Count
from penstock.ops.aggregates.distinct import CountDistinct
from penstock.ops.aggregates.extremes import Max, Min
from penstock.ops.aggregates.function import (
    COUNT,
    Column,
    Function,
    Kept,
    Parameter,
    Part,
    Rows,
)
from penstock.ops.aggregates.lists import (
    Collect,
    CollectDescending,
    Frequencies,
    Frequent,
    Quantile,
)
from penstock.ops.aggregates.sketches import ApproxCountDistinct, ApproxQuantile
from penstock.ops.aggregates.sums import Avg, Sum
from penstock.ops.aggregates.theta import ThetaSketch, ThetaUnion
from penstock.ops.aggregates.variance import Stddev, Variance

__all__ = [
    "COUNT",
    "FUNCTIONS",
    "ROWS",
    "Column",
    "Function",
    "Kept",
    "Parameter",
    "Part",
    "Rows",
    "make_function",
]

FUNCTIONS: Final[Mapping[str, type[Function]]] = {
    one.kind: one
    for one in (
        *(Count, CountDistinct, Sum, Avg, Variance, Stddev),
        *(Min, Max, ArgMin, ArgMax),
        *(ApproxCountDistinct, ApproxQuantile, ThetaSketch, ThetaUnion, BloomFilter),
        *(Quantile, Collect, CollectDescending, Frequent, Frequencies),
    )
}


def make_function(
    kind: str,
    column: Column | None,
    by: Column | None = None,
    parameter: Parameter | None = None,
) -> Function:
    """An aggregate function of some columns.

    Raises:
        FlowError: there is no such function, or it can't be computed of these.
    """
    if kind not in FUNCTIONS:
        raise FlowError(f"expected one of the aggregates {known_names(FUNCTIONS)}; found {kind!r}")
    if parameter is not None and not FUNCTIONS[kind].parametric:
        raise FlowError(f"expected {kind} without a parameter; found {parameter!r}")
    return FUNCTIONS[kind](column, by, parameter)
