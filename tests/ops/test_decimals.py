"""Aggregates of decimals and UUIDs, against exact numbers, at every step."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.ops import Aggregate, AggregateSpec, Column, Window, WindowedAggregate

SHORT, LONG = pa.decimal128(18, 3), pa.decimal128(38, 4)
INPUT = pa.schema([("k", LONG), ("s", SHORT), ("l", LONG), ("u", pa.binary(16))])
K, S, L, U = (Column(field.name, field.type) for field in INPUT)
CALLS = (
    *(Aggregate(f"{kind}s", kind, S) for kind in ("sum", "avg", "min", "max", "count_distinct")),
    *(Aggregate(f"{kind}l", kind, L) for kind in ("sum", "avg", "min", "max", "count_distinct")),
    Aggregate("us", "count_distinct", U),
    Aggregate("um", "max", U),
    Aggregate("by", "arg_max", S, L),
)
short = st.one_of(
    st.none(),
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.sampled_from([0, 1, -1, 2**32, -(2**32), 10**18 - 1]),
).map(lambda n: None if n is None else Decimal(n).scaleb(-3))
longs = st.one_of(
    st.none(),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.sampled_from([0, 1, -1, 2**64, -(2**64), 2**96, 10**38 - 1, -(10**38) + 1]),
)
row = st.tuples(
    st.sampled_from([None, 1, 10**30]),
    short,
    longs,
    st.sampled_from([None, bytes(16), b"\xff" * 16, b"0123456789abcdef"]),
)


def scaled(number: int | None) -> Decimal | None:
    """A number of the last digit's unit as a DECIMAL(38, 4), whatever the context's precision."""
    if number is None:
        return None
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -4))


def naive(rows: list[Any]) -> tuple[Any, ...]:
    """The aggregates of a group's rows."""
    columns = [[one for one in column if one is not None] for column in zip(*rows, strict=True)]
    _, shorts, longs_, u = columns
    results: list[Any] = []
    for values in (shorts, longs_):
        total = sum(map(Fraction, values))
        unit = 1000 if values is shorts else 10_000
        fits = bool(values) and abs(total * unit) < 10**38
        results += [total if fits else None, float(total / len(values)) if values else None]
        results += [min(values, default=None), max(values, default=None), len(set(values))]
    pairs = [(one[2], one[1]) for one in rows if None not in (one[1], one[2])]
    return (*results, len(set(u)), max(u, default=None), max(pairs, default=(0, None))[1])


def alike(found: Any, expected: Any) -> bool:
    """Whether they are equal; means but for the last digits."""
    return all(
        one == two if not isinstance(two, float) else abs(one - two) <= 1e-14 * max(1.0, abs(two))
        for one, two in zip(found, expected, strict=True)
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(row, max_size=8), max_size=5), st.booleans(), st.integers(1, 3), st.integers()
)
@example([[(1, None, 10**38 - 1, None)], [(1, None, 1, None)], [(1, None, -1, None)]], False, 1, 0)
def test_decimals_are_exact(batches: Any, retracts: bool, shards: int, seed: int) -> None:
    """Sums of any cut, also beyond 38 digits and back; of tables, when rows leave, too."""
    spec = AggregateSpec((K,), Window("none"), CALLS, None, retracts=retracts)
    chance = random.Random(seed)
    run = Contract(WindowedAggregate(spec), shards=shards, chance=chance)
    alive: list[Any] = []
    for batch in [*batches, []]:
        come = [(scaled(one[0]), one[1], scaled(one[2]), one[3]) for one in batch]
        gone = [one for one in alive if chance.random() < 0.4] if retracts else []
        for one in gone:
            alive.remove(one)
        alive += come
        weights = [-1] * len(gone) + [1] * len(come)
        run.step([delta(INPUT, gone + come, weights=weights if retracts else None)])
        groups: dict[Any, list[Any]] = {}
        for one in alive:
            groups.setdefault(one[0], []).append(one)
        found = {one[0]: one[1:] for one in run.view()}
        assert found.keys() == groups.keys()
        for key, rows in groups.items():
            assert alike(found[key], naive(rows)), (found[key], naive(rows))
        assert run.total() == run.view()


@pytest.mark.parametrize("type_", [pa.decimal128(18, 2), pa.decimal128(30, 2)])
def test_a_sum_has_the_columns_places(type_: pa.DataType) -> None:
    """As in SQL: 38 digits, as many after the point."""
    spec = AggregateSpec((), Window("none"), (Aggregate("t", "sum", Column("x", type_)),), None)
    operator = WindowedAggregate(spec)
    assert operator.traits.schema.field("t").type == pa.decimal128(38, 2)
    run = Contract(operator)
    cents = [Decimal("0.10")] * 3 + [Decimal("-0.31")]
    run.step([pa.table({"x": pa.array(cents, type_)})])
    assert run.view() == Counter({(Decimal("-0.01"),): 1})
