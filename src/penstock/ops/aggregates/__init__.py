"""Aggregate functions, one file each; `FUNCTIONS` are all, by kind."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from penstock.core.names import known_names
from penstock.errors import FlowError
from penstock.ops.aggregates.count import ROWS
from penstock.ops.aggregates.function import (
    COUNT,
    Column,
    Function,
    Kept,
    Parameter,
    Part,
    Rows,
)

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

FUNCTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "count": ("count", "Count"),
    "count_distinct": ("distinct", "CountDistinct"),
    "sum": ("sums", "Sum"),
    "avg": ("sums", "Avg"),
    "variance": ("variance", "Variance"),
    "stddev": ("variance", "Stddev"),
    "min": ("extremes", "Min"),
    "max": ("extremes", "Max"),
    "arg_min": ("arg", "ArgMin"),
    "arg_max": ("arg", "ArgMax"),
    "approx_count_distinct": ("sketches", "ApproxCountDistinct"),
    "approx_quantile": ("sketches", "ApproxQuantile"),
    "theta_sketch_agg": ("theta", "ThetaSketch"),
    "theta_union_agg": ("theta", "ThetaUnion"),
    "bloom_filter_agg": ("bloom", "BloomFilter"),
    "quantile": ("lists", "Quantile"),
    "collect": ("lists", "Collect"),
    "collect_descending": ("lists", "CollectDescending"),
    "frequent": ("lists", "Frequent"),
    "frequencies": ("lists", "Frequencies"),
}
"""Of each kind, the module of this package and the class in it. It is imported when it is needed: a program
or a view needs a few of them."""


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
    function = _class(kind)
    if parameter is not None and not function.parametric:
        raise FlowError(f"expected {kind} without a parameter; found {parameter!r}")
    return function(column, by, parameter)


def _class(kind: str) -> type[Function]:
    if kind not in FUNCTIONS:
        return _foreign(kind)
    module, name = FUNCTIONS[kind]
    function: type[Function] = getattr(import_module(f"{__name__}.{module}"), name)
    return function


@functools.cache
def _foreign(kind: str) -> type[Function]:
    """An aggregate of another distribution.

    Raises:
        FlowError: there is no such function.
    """
    from penstock.expr.functions import aggregate_named
    from penstock.ops.aggregates.foreign import foreign

    declared = aggregate_named(kind)
    if declared is None:
        raise FlowError(
            f"expected one of the aggregates {known_names(FUNCTIONS)}; found {kind!r}. Install the plugin "
            "that has it"
        )
    return foreign(declared)
