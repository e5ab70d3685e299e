"""Top-n per group: equal to sorting all rows, after every change."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.ops.keyed.top import Top

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


def test_state_is_the_content_where_nothing_is_taken_back() -> None:
    """After 100 batches of 1,000 rows, some rows a group are kept, and not all."""
    run = Contract(Top(INPUT, ("k",), (("n", True),), 2))
    for i in range(100):
        rows = [(f"k{j % 5}", i * 1_000 + j, None) for j in range(1_000)]
        run.step([arrow(rows, None)])
    assert run.states[0].rows <= 5 * 2 * 8
