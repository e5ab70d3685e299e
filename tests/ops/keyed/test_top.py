"""Top-n per group: equal to sorting all rows, after every change."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples, rounds
from tests.ops.contract import Contract, counted, delta, few_rows
from tests.ops.reads import count_reads

from penstock.core.keys import hash_columns
from penstock.core.vectors import packed, sortable
from penstock.ops import NO_TIME, Context, routed
from penstock.ops.keyed.top import Top
from penstock.state import MemoryStateFiles, ordered

INPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])

row = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 1, 2, 3, None]),
    st.sampled_from([None, (), ("t",)]),
)


def naive(rows: Counter[Any], per: tuple[str, ...], n: int, *, descending: bool) -> Counter[Any]:
    """All rows of each group, sorted."""

    def last(value: Any) -> Any:
        sign = -1 if descending and isinstance(value, int) else 1
        return (value is None, 0 if value is None else sign * value)

    def tie(one: Any) -> Any:
        text = [(v is None, v or "") for v in (one[0],)]
        return (last(one[1]), text, (one[2] is None, one[2] or ()))

    found: Counter[Any] = Counter()
    groups: dict[Any, list[Any]] = {}
    for one in rows.elements():
        groups.setdefault(one[0] if per else None, []).append(one)
    for group in groups.values():
        found.update(sorted(group, key=tie)[:n])
    return found


def arrow(rows: list[Any], weights: list[int] | None) -> pa.Table:
    """Rows as a delta."""
    values = [tuple(list(v) if isinstance(v, tuple) else v for v in one) for one in rows]
    return delta(INPUT, values, weights=weights)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(row, max_size=8), max_size=6),
    st.sampled_from([(), ("k",)]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(),
)
def test_the_first_rows_of_each_group(
    batches: list[Any], per: Any, n: int, descending: bool, takes_back: bool, seed: int
) -> None:
    """Changes add up to the first rows of all that is there, and so does the view."""
    chance = random.Random(seed)
    operator = Top(INPUT, per, (("n", descending),), n, takes_back=takes_back)
    run = Contract(operator, shards=2 if per else 1, chance=chance)
    there: Counter[Any] = Counter()
    for batch in batches:
        rows = [(one, 1) for one in batch]
        if takes_back:
            gone = chance.sample(list(there.elements()), chance.randint(0, there.total()))
            rows += [(one, -1) for one in gone]
        for one, weight in rows:
            there[one] += weight
        there = +there
        weights = [weight for _, weight in rows] if takes_back else None
        run.step([arrow([one for one, _ in rows], weights)])
        wanted = naive(there, per, n, descending=descending)
        assert run.total() == wanted
        assert run.view() == wanted
        if not takes_back:
            assert sum(state.traces["rows"].rows for state in run.states) <= 9 * n * len(batches)


def test_duckdb_finds_the_same() -> None:
    """Of some thousand rows."""
    chance = random.Random(1)
    rows = [(f"k{chance.randint(0, 50)}", chance.randint(0, 10**6), None) for _ in range(5_000)]
    table = arrow(rows, None)
    run = Contract(Top(INPUT, ("k",), (("n", True),), 3), shards=2, chance=chance)
    for start in range(0, 5_000, 700):
        run.step([table.slice(start, 700)])
    with duckdb.connect() as con:
        con.register("rows", table)
        found = con.sql(
            "SELECT * FROM rows QUALIFY row_number() OVER (PARTITION BY k ORDER BY n DESC) <= 3"
        ).to_arrow_table()
    assert run.view() == counted(found)


@pytest.mark.parametrize("takes_back", [False, True])
@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_no_number_is_the_greatest(order: str, takes_back: bool) -> None:
    """NaN comes last in ascending order, first in descending order, and NULL behind it, as in DuckDB."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    values = [1.0, math.nan, math.inf, None, -math.inf, 2.0]
    by = (("v", order == "DESC"), ("k", False))
    run = Contract(Top(schema, (), by, 3, takes_back=takes_back), chance=random.Random(1))
    for at in range(0, len(values), 2):
        rows = [(i, values[i]) for i in (at, at + 1)]
        run.step([delta(schema, rows, weights=[1, 1] if takes_back else None)])
    with duckdb.connect() as con:
        con.register("rows", delta(schema, list(enumerate(values))))
        found = con.sql(f"SELECT k, v FROM rows ORDER BY v {order}, k LIMIT 3").to_arrow_table()
    assert sorted(one[0] for one in run.view()) == sorted(found["k"].to_pylist())


COLUMNS = pa.schema(
    [("k", pa.string()), ("s", pa.string()), ("v", pa.float64()), ("d", pa.decimal128(30, 1)),
     ("j", pa.int32()), ("tags", pa.list_(pa.string()))]
)  # fmt: skip
POOL: dict[str, list[Any]] = {
    "s": [None, "", "in common", "in common: a", "in common: b"],
    "v": [None, -math.inf, -0.5, 0.0, 1e300, math.inf, math.nan],
    "d": [None, -1, 10**20, 10**20 + 1],
    "j": [None, -5, 0, 2**31 - 1],
    "tags": [None, (), ("a",), ("a", "b")],
}


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("ab"), *map(st.sampled_from, POOL.values())), max_size=9
        ),
        max_size=5,
    ),
    st.sampled_from(list(POOL)),
    st.booleans(),
    st.booleans(),
    st.integers(),
)
def test_what_is_read_is_enough(
    batches: Any, by: str, descending: bool, is_weak: bool, seed: int
) -> None:
    """Of all types, in runs of few rows and with hashes that collide: the first rows of a sort of all."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        few_rows(patch, 6)
        patch.setattr(ordered, "READ_ROWS", 1)
        if is_weak:
            patch.setattr(routed, "hash_columns", lambda columns, n: hash_columns(columns, n) % 2)
        run = Contract(
            Top(COLUMNS, ("k",), ((by, descending),), 2, takes_back=True), shards=2, chance=chance
        )
        there: Counter[Any] = Counter()
        for batch in batches:
            gone = chance.sample(list(there.elements()), chance.randint(0, there.total()))
            rows = [(one, 1) for one in batch] + [(one, -1) for one in gone]
            for one, weight in rows:
                there[one] += weight
            values = [tuple(list(v) if isinstance(v, tuple) else v for v in one) for one, _ in rows]
            run.step([delta(COLUMNS, values, weights=[weight for _, weight in rows])])
            expected = sorted_by_arrow(+there, by, descending=descending)
            assert run.view() == expected
            assert run.total() == expected


def sorted_by_arrow(rows: Counter[Any], by: str, *, descending: bool) -> Counter[Any]:
    """The first two rows of each group."""
    found: Counter[Any] = Counter()
    for key in "ab":
        some = [one for one in rows.elements() if one[0] == key]
        values = [tuple(list(v) if isinstance(v, tuple) else v for v in one) for one in some]
        table = delta(COLUMNS, values)
        table = table.append_column("t", packed(table["tags"].combine_chunks()))
        ties = [(name if name != "tags" else "t", "ascending") for name in COLUMNS.names]
        table = table.append_column("n", sortable(table["v"].combine_chunks()))
        first = {"tags": "t", "v": "n"}.get(by, by)
        keys: Any = [(first, "descending" if descending else "ascending"), *ties]
        order = pc.sort_indices(table, sort_keys=[(*key, "at_end") for key in keys])
        found.update(counted(table.take(order[:2]).drop_columns(["t", "n"])))
    return found


@pytest.mark.slow
def test_a_change_reads_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups with a hundred times as many rows, at most four times as many."""
    read = count_reads(monkeypatch)
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    counts = []
    for size in (100, 10_000):
        operator = Top(schema, ("k",), (("n", True),), 3, takes_back=True)
        files, values = MemoryStateFiles(), np.random.default_rng(1).permutation(10 * size)
        state = operator.empty(files)
        numbers = [values[at : at + 20_000] for at in range(0, len(values), 20_000)]
        batches = [(some, np.ones(len(some), np.int64)) for some in numbers]
        for i in range(20):
            pair = np.concatenate([values[5 * i :][:5], 10 * size + 5 * i + np.arange(5)])
            batches.append((pair, np.repeat([-1, 1], 5)))
        for version, (some, weights) in enumerate(batches):
            if version == len(batches) - 20:
                read.clear()
            rows = pa.table({"k": some % 10, "n": some, "$weight": weights})
            parcel = operator.prepare(0, rows).parcel
            step = operator.step(state, [[parcel]], Context(files, "s", version, (NO_TIME,)))
            state = step.state
        counts.append(sum(read))
    assert 0 < counts[1] <= 4 * counts[0]


@pytest.mark.slow
def test_state_is_the_content_where_nothing_is_taken_back() -> None:
    """After many batches of 1,000 rows, some rows a group are kept, and not all."""
    run = Contract(Top(INPUT, ("k",), (("n", True),), 2))
    for i in range(rounds("PENSTOCK_TOP_BATCHES", quick=20, full=100)):
        rows = [(f"k{j % 5}", i * 1_000 + j, None) for j in range(1_000)]
        run.step([arrow(rows, None)])
    assert run.states[0].rows <= 5 * 2 * 8
