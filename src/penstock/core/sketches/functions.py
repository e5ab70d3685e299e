"""Functions over theta sketches in DuckDB, named as Spark names them; each is NULL where an argument is.

| function | gives |
|---|---|
| `theta_sketch_estimate(s)` | about how many values there are, as BIGINT |
| `theta_sketch_lower_bound(s)`, `theta_sketch_upper_bound(s)` | between which the number lies with 95 % |
| `theta_union(a, b)`, `theta_intersection(a, b)`, `theta_difference(a, b)` | a sketch |

| `theta_sketch_agg(x)`, `theta_union_agg(s)` | of a group: the sketch of its values, the union |

A value that isn't a sketch is an error of its row. The aggregates are macros over two further functions:
Python can't give DuckDB an aggregate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.sketches.murmur import theta_hashes
from penstock.core.sketches.theta import ALL, EMPTY, Thetas, merged, read, sketch, written
from penstock.core.vectors import Vector, contiguous

if TYPE_CHECKING:
    import duckdb

__all__ = ["AGGREGATES", "add_functions"]

AGGREGATES: Final = frozenset({"theta_sketch_agg", "theta_union_agg"})
"""Of the functions, those of a group."""

_MACROS: Final = {
    "theta_sketch_agg(x)": "coalesce(penstock_theta_all(list(penstock_theta_one(x))), unhex('{}'))",
    "theta_union_agg(s)": "coalesce(penstock_theta_all(list(s)), unhex('{}'))",
}

_NUMBERS: Final[dict[str, Callable[[Thetas], Vector]]] = {
    "theta_sketch_estimate": lambda of: np.floor(of.estimates + 0.5),
    "theta_sketch_lower_bound": lambda of: np.floor(of.bounds()[0]),
    "theta_sketch_upper_bound": lambda of: np.ceil(of.bounds()[1]),
}
_SETS: Final[dict[str, Callable[[Thetas, Thetas], Thetas]]] = {
    "theta_union": Thetas.union,
    "theta_intersection": Thetas.intersection,
    "theta_difference": Thetas.difference,
}


def add_functions(con: duckdb.DuckDBPyConnection) -> None:
    """Lets a connection know the functions."""
    how: dict[str, Any] = {"type": "arrow"}
    for name, number in _NUMBERS.items():
        con.create_function(name, _number(number), ["BLOB"], "BIGINT", **how)
    for name, both in _SETS.items():
        con.create_function(name, _both(both), ["BLOB", "BLOB"], "BLOB", **how)

    con.create_function("penstock_theta_one", _one, None, "BLOB", **how)
    con.create_function("penstock_theta_all", _all, ["BLOB[]"], "BLOB", **how)
    for call, body in _MACROS.items():
        con.execute(f"CREATE TEMP MACRO {call} AS {body.format(EMPTY.hex())}")


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The sketch of each value alone."""
    array = contiguous(column)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    rows = np.arange(len(array))
    return written(sketch(theta_hashes(array), rows, np.full(len(array), ALL)))


def _all(column: pa.ChunkedArray) -> pa.Array:
    """The union of the sketches in each list."""
    lists: Any = contiguous(column)
    found = merged(lists.flatten(), lists.value_parent_indices().to_numpy(), len(lists))
    return found.fill_null(EMPTY)


def _number(number: Callable[[Thetas], Vector]) -> Callable[[Any], pa.Array]:
    def computed(column: pa.ChunkedArray) -> pa.Array:
        return pa.array(number(read(contiguous(column))).astype(np.int64))

    return computed


def _both(both: Callable[[Thetas, Thetas], Thetas]) -> Callable[[Any, Any], pa.Array]:
    def computed(a: pa.ChunkedArray, b: pa.ChunkedArray) -> pa.Array:
        return written(both(read(contiguous(a)), read(contiguous(b))))

    return computed
