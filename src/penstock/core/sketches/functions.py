"""Functions over sketches in DuckDB, named as Spark names them; each is NULL where an argument is.

| function | gives |
|---|---|
| `theta_sketch_estimate(s)` | about how many values there are, as BIGINT |
| `theta_sketch_lower_bound(s)`, `theta_sketch_upper_bound(s)` | between which the number lies with 95 % |
| `theta_union(a, b)`, `theta_intersection(a, b)`, `theta_difference(a, b)` | a sketch |

| `might_contain(f, x)` | whether a Bloom filter may have a value: false is certain |

| `theta_sketch_agg(x)`, `theta_union_agg(s)` | of a group: the sketch of its values, the union |
| `bloom_filter_agg(x, capacity, error)` | of a group: the Bloom filter of its values |

A value that isn't a sketch is an error of its row. The aggregates are macros over further functions: Python
can't give DuckDB an aggregate. `might_contain` is one, too, as a filter may be large: which bits to look at
is computed of its head, for many rows at once; the bits are looked at row by row, as a column of filters
would be a copy of the filter for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.sketches.bloom import HEAD_BYTES, Shape, bits_of, filters, read_head, shape_of
from penstock.core.sketches.murmur import theta_hashes
from penstock.core.sketches.theta import ALL, EMPTY, Thetas, merged, read, sketch, written
from penstock.core.vectors import Vector, contiguous, from_int64

if TYPE_CHECKING:
    import duckdb

__all__ = ["AGGREGATES", "add_functions"]

AGGREGATES: Final = frozenset({"theta_sketch_agg", "theta_union_agg", "bloom_filter_agg"})
"""Of the functions, those of a group."""

_EMPTY: Final = f"unhex('{EMPTY.hex()}')"
_MACROS: Final = {
    "theta_sketch_agg(x)": f"coalesce(penstock_theta_all(list(penstock_theta_one(x))), {_EMPTY})",
    "theta_union_agg(s)": f"coalesce(penstock_theta_all(list(s)), {_EMPTY})",
    "bloom_filter_agg(x, capacity, error)": (
        "penstock_bloom_all(coalesce(list(x), []), (capacity)::BIGINT, (error)::DOUBLE)"
    ),
    "might_contain(f, x)": (
        f"penstock_bloom_test((f)::BLOB, penstock_bloom_bits(x, ((f)::BLOB)[1:{HEAD_BYTES}], "
        "octet_length((f)::BLOB)))"
    ),
}

_TESTED: Final[list[Any]] = ["BLOB", "BIGINT[]"]
_NO_SHAPE: Final = Shape(1, 1)  # of NULL, which has any

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
    con.create_function("penstock_bloom_all", _filter, None, "BLOB", **how)
    con.create_function("penstock_bloom_bits", _bits, None, "BIGINT[]", **how)
    con.create_function("penstock_bloom_test", _test, _TESTED, "BOOLEAN")
    for call, body in _MACROS.items():
        con.execute(f"CREATE TEMP MACRO {call} AS {body}")


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The sketch of each value alone."""
    array = _plain(column)
    rows = np.arange(len(array))
    return written(sketch(theta_hashes(array), rows, np.full(len(array), ALL)))


def _all(column: pa.ChunkedArray) -> pa.Array:
    """The union of the sketches in each list."""
    lists: Any = contiguous(column)
    found = merged(lists.flatten(), lists.value_parent_indices().to_numpy(), len(lists))
    return found.fill_null(EMPTY)


def _filter(column: pa.ChunkedArray, capacity: pa.ChunkedArray, error: pa.ChunkedArray) -> pa.Array:
    """The Bloom filter of the values in each list."""
    lists: Any = contiguous(column)
    values, rows = _plain(lists.flatten()), lists.value_parent_indices().to_numpy()
    asked: list[Any] = list(zip(capacity.to_pylist(), error.to_pylist(), strict=True))
    made = [b""] * len(lists)
    for one in set(asked):
        shape = _shape(*one)
        mine = np.array([other == one for other in asked])[rows] & _there(values)
        at, some = rows[mine], values.take(from_int64(np.flatnonzero(mine)))
        many = [np.full(len(some), number, np.int64) for number in (shape.bits, shape.hashes)]
        bits = bits_of(some, *many).ravel()
        words = np.zeros((len(lists), shape.words), np.int64)
        each = np.repeat(at, shape.hashes)
        np.bitwise_or.at(words, (each, bits >> 6), np.left_shift(np.int64(1), bits & 63))
        for i in (i for i, other in enumerate(asked) if other == one):
            here = np.flatnonzero(words[i])
            made[i] = filters(shape, np.zeros_like(here), here, words[i][here], 1)[0].as_py()
    return pa.array(made, pa.binary())


def _shape(capacity: int, error: float) -> Shape:
    if capacity < 1 or not 1e-12 <= error <= 0.5:
        raise ValueError(
            "expected a capacity of 1 or more and an error of 1e-12 to 0.5, such as "
            f"bloom_filter_agg(user, 100000, 0.01); found {capacity} and {error}"
        )
    return shape_of(capacity, error)


def _bits(column: pa.ChunkedArray, head: pa.ChunkedArray, length: pa.ChunkedArray) -> pa.Array:
    """The bits that each value sets in a filter of this head; 0 is the highest bit of the first byte."""
    heads: Any = zip(head.to_pylist(), length.to_pylist(), strict=True)
    shapes = [_NO_SHAPE if one[0] is None else read_head(*one) for one in heads]
    sizes = np.array([shape.bits for shape in shapes], np.int64)
    hashes = np.array([shape.hashes for shape in shapes], np.int64)
    found = bits_of(_plain(column), sizes, hashes)
    offsets = np.concatenate([[0], np.cumsum(hashes)]).astype(np.int32)
    bits = found[found >= 0]
    values = from_int64(np.ascontiguousarray(8 * HEAD_BYTES + (bits ^ 63)))
    lists: Any = pa.ListArray
    made: pa.Array = lists.from_arrays(pa.array(offsets), values)
    return made


def _test(of: bytes, bits: list[int]) -> bool:
    """Whether all of some bits are set."""
    return all(of[bit >> 3] & (0x80 >> (bit & 7)) for bit in bits)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = contiguous(column)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _there(values: pa.Array) -> Vector:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False))


def _number(number: Callable[[Thetas], Vector]) -> Callable[[Any], pa.Array]:
    def computed(column: pa.ChunkedArray) -> pa.Array:
        return pa.array(number(read(contiguous(column))).astype(np.int64))

    return computed


def _both(both: Callable[[Thetas, Thetas], Thetas]) -> Callable[[Any, Any], pa.Array]:
    def computed(a: pa.ChunkedArray, b: pa.ChunkedArray) -> pa.Array:
        return written(both(read(contiguous(a)), read(contiguous(b))))

    return computed
