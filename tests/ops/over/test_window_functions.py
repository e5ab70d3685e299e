"""Window functions kept up by change: equal to DuckDB's over all rows, after every change."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta, few_rows
from tests.ops.reads import count_reads

from penstock.core.keys import hash_columns
from penstock.ops import NO_TIME, Context, routed
from penstock.ops.over import window_functions as over
from penstock.ops.over.functions import Frame, Function
from penstock.ops.over.window_functions import Ordered, WindowFunctions
from penstock.state import MemoryStateFiles

INPUT = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("d", pa.float64()), ("s", pa.string()), ("i", pa.int32())]
)  # fmt: skip
POOL: dict[str, list[Any]] = {
    "k": ["a", "b", None],
    "n": [None, -(2**62), 0, 1, 2, 3, 2**62],
    "d": [None, -math.inf, -0.5, 0.0, 0.25, 2.0, math.inf, math.nan],
    "s": [None, "", "in common", "in common: a", "in common: b"],
    "i": [None, -3, 0, 7],
}
TYPES = {"n": "BIGINT", "d": "DOUBLE", "s": "VARCHAR", "i": "INTEGER"}
FRAMES = ((-2, 1), (-3, 0), (0, 2), (-3, -2), (2, 3), (0, 0))


def direction(one: Ordered) -> str:
    return (
        f"{one.name} {'DESC' if one.descending else 'ASC'} "
        f"NULLS {'FIRST' if one.nulls_first else 'LAST'}"
    )


def function(chance: random.Random, name: str, order: list[Ordered]) -> tuple[Function, str, Any]:
    """A window function, as the operator and as DuckDB have it, and its type."""
    by = ", ".join(map(direction, order))
    whole = f"PARTITION BY k ORDER BY {by}, {', '.join(f'{c} NULLS LAST' for c in INPUT.names)}"
    kind: Any = chance.choice(
        ["row_number", "rank", "dense_rank", "lag", "count", "sum", "avg", "min", "max", "first",
         "last", "nth"]
    )  # fmt: skip
    column = chance.choice("ndsi" if kind not in ("sum", "avg") else "ndi")
    type_: Any = INPUT.field(column).type
    if kind in ("rank", "dense_rank"):
        return Function(name, kind), f"{kind}() OVER (PARTITION BY k ORDER BY {by})", pa.int64()
    if kind == "row_number":
        return Function(name, kind), f"row_number() OVER ({whole})", pa.int64()
    if kind == "lag":
        n = chance.choice([-2, -1, 0, 1, 3])
        default = column if chance.random() < 0.3 else ""
        sql = f"lag({column}, {n}{', ' + column if default else ''}) OVER ({whole})"
        return Function(name, kind, column, n=n, default=default), sql, type_
    n = chance.randint(1, 3) if kind == "nth" else 0
    of = "" if kind == "count" and chance.random() < 0.3 else column
    call = {"first": "first_value", "last": "last_value", "nth": "nth_value"}.get(kind, kind)
    text = f"{call}({of or '*'}{f', {n}' if n else ''})"
    if kind in ("sum", "count") and column != "d":
        type_ = pa.int64()
    type_ = pa.float64() if kind == "avg" else pa.int64() if kind == "count" else type_
    roll = chance.random()
    if roll < 0.4:
        lo, hi = chance.choice(FRAMES)
        ends = [f"{abs(at)} {'PRECEDING' if at < 0 else 'FOLLOWING'}" for at in (lo, hi)]
        sql = f"{text} OVER ({whole} ROWS BETWEEN {' AND '.join(ends)})"
        return Function(name, kind, of, Frame((lo, hi)), n), sql, type_
    if roll < 0.7 or kind in ("last", "nth"):  # which of some peers it is, DuckDB leaves open
        sql = f"{text} OVER ({whole} ROWS UNBOUNDED PRECEDING)"
        return Function(name, kind, of, Frame(), n), sql, type_
    if kind == "first":
        return Function(name, kind, of), f"{text} OVER ({whole})", type_
    sql = f"{text} OVER (PARTITION BY k ORDER BY {by})"
    return Function(name, kind, of), sql, type_


CON = duckdb.connect(":memory:", config={"threads": 1})
NAMES = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR", pa.int32(): "INT"}


def asked(functions: Any, rows: Counter[Any]) -> list[Counter[Any]]:
    """DuckDB's answer for each function, with sums that don't fit as NULL."""
    CON.register("rows", delta(INPUT, list(rows.elements())))
    made = [f"TRY_CAST({sql} AS {NAMES[type_]}) AS {one.name}" for one, sql, type_ in functions]
    found = CON.sql(f"SELECT *, {', '.join(made)} FROM rows").to_arrow_table()
    return each(counted(found), len(functions))


def each(rows: Counter[Any], functions: int) -> list[Counter[Any]]:
    """The rows with each function alone: equal rows may have its values in any order.

    Averages of great integers differ in the last digits.
    """
    found: list[Counter[Any]] = [Counter() for _ in range(functions)]
    for row, n in rows.items():
        plain = [float(f"{v:.12g}") if isinstance(v, float) else v for v in row]
        for i, one in enumerate(found):
            one[*plain[: len(INPUT)], plain[len(INPUT) + i]] += n
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(st.tuples(*map(st.sampled_from, POOL.values())), max_size=6), max_size=4),
    st.integers(),
    st.booleans(),
)
def test_window_functions(batches: Any, seed: int, is_weak: bool) -> None:
    """Changes add up to DuckDB's answer over all that is there, and so does the view."""
    chance = random.Random(seed)
    by = chance.sample(list(TYPES), chance.randint(1, 2))
    order = [Ordered(one, chance.random() < 0.5, chance.random() < 0.3) for one in by]
    functions = [function(chance, f"f{i}", order) for i in range(chance.randint(1, 3))]
    output = pa.schema([*INPUT, *((one.name, type_) for one, _, type_ in functions)])
    plain = tuple(one for one, _, _ in functions)
    with pytest.MonkeyPatch.context() as patch:
        few_rows(patch, 6)
        patch.setattr(over, "READ_ROWS", 1)
        patch.setattr(over, "READ_TIMES", 2)
        if is_weak:
            patch.setattr(routed, "hash_columns", lambda columns, n: hash_columns(columns, n) % 2)
        operator = WindowFunctions(INPUT, ("k",), tuple(order), plain, output)
        run = Contract(operator, shards=2, chance=chance)
        there: Counter[Any] = Counter()
        for batch in batches:
            gone = chance.sample(list(there.elements()), chance.randint(0, there.total()))
            some = gone[: chance.choice([1, 2, len(gone)])]
            there.update(batch)
            there.subtract(some)
            there = +there
            weights = [1] * len(batch) + [-1] * len(some)
            run.step([delta(INPUT, [*batch, *some], weights=weights)])
            expected = asked(functions, there)
            assert each(run.view(), len(functions)) == expected
            assert each(run.total(), len(functions)) == expected


NUMBERS = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("x", pa.int64())])
NEAR = (Function("f", "lag", "x", n=2), Function("g", "avg", "x", Frame((-3, 1))))
RUNNING = (Function("f", "sum", "x"), Function("g", "row_number"))


@pytest.mark.parametrize("functions", [NEAR, RUNNING], ids=["near", "running"])
def test_a_change_reads_what_it_changes(
    functions: tuple[Function, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition a hundred times as long, no more; a running sum those behind it, while they change."""
    types = {"lag": pa.int64(), "avg": pa.float64(), "sum": pa.int64(), "row_number": pa.int64()}
    output = pa.schema([*NUMBERS, *((f.name, types[f.kind]) for f in functions)])
    operator = WindowFunctions(NUMBERS, ("k",), (Ordered("o"),), functions, output)
    read, counts, files = count_reads(monkeypatch), [], MemoryStateFiles()
    for size in (100, 10_000):
        state = operator.empty(files)
        whole = [(i % 2, i, i % 7) for i in range(size)]
        swapped = [(size % 2, size - 8, 0), (0, size - 8, (size - 8) % 7)]
        for version, (rows, weights) in enumerate([(whole, [1] * size), (swapped, [1, -1])]):
            read.clear()
            parcel = operator.prepare(0, delta(NUMBERS, rows, weights=weights)).parcel
            context = Context(files, f"s{size}", version, (NO_TIME,))
            step = operator.step(state, [[parcel]], context)
            state = step.state
        counts.append(sum(read))
    assert 0 < counts[1] <= counts[0] + 4
    assert counts[1] < 60
