"""The join of two tables: equal to a nested loop and to DuckDB after every change, whatever the batches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.ops.joins.table_join import How, TableJoin

LEFT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("m", pa.int64()), ("tags", pa.list_(pa.string()))])
HOWS = get_args(How)

keys = st.sampled_from(["a", "b", None])
left_row = st.tuples(keys, st.sampled_from([1, None]), st.integers(0, 2))
right_row = st.tuples(keys, st.sampled_from([1, 2, None]), st.sampled_from([None, (), ("t",)]))
batch = st.tuples(st.lists(left_row, max_size=5), st.lists(right_row, max_size=5))


def naive(how: str, left: Counter[Any], right: Counter[Any], pairs: int) -> Counter[Any]:
    """All pairs, one by one; `pairs` columns of the key."""
    found: Counter[Any] = Counter()

    def equal(one: Any, two: Any) -> bool:
        return one[:pairs] == two[:pairs] and None not in one[:pairs]

    for one, n in left.items():
        partners = [(two, m) for two, m in right.items() if equal(one, two)]
        if how in ("semi", "anti"):
            if bool(partners) == (how == "semi"):
                found[one] += n
            continue
        for two, m in partners:
            found[one + two[pairs:]] += n * m
        if not partners and how in ("left", "full"):
            found[one + (None,) * (3 - pairs)] += n
    if how in ("right", "full"):
        for two, m in right.items():
            if not any(equal(one, two) for one in left):
                found[two[:pairs] + (None,) * (3 - pairs) + two[pairs:]] += m
    return found


def changes(chance: random.Random, table: Counter[Any], come: list[Any]) -> list[tuple[Any, int]]:
    """Some rows that come, and some that were there and go."""
    there = [row for row, n in table.items() for _ in range(n)]
    gone = chance.sample(there, chance.randint(0, len(there)))
    made = [(row, 1) for row in come] + [(row, -1) for row in gone]
    for row, weight in made:
        table[row] += weight
    for row in [row for row, n in table.items() if not n]:
        del table[row]
    chance.shuffle(made)
    return made


def arrow(schema: pa.Schema, rows: list[tuple[Any, int]]) -> pa.Table:
    """Changes as a delta."""
    values = [tuple(list(v) if isinstance(v, tuple) else v for v in row) for row, _ in rows]
    return delta(schema, values, weights=[weight for _, weight in rows])


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(40))
@given(st.lists(batch, max_size=6), st.integers(1, 2), st.integers(1, 3), st.integers())
def test_a_join_follows_its_tables(
    how: How, batches: list[Any], pairs: int, shards: int, seed: int
) -> None:
    """Changes add up to what a nested loop finds, and so does the view, after each batch."""
    on = (("k", "key"), ("n", "m"))[:pairs]
    chance = random.Random(seed)
    run = Contract(TableJoin(how, LEFT, RIGHT, on), shards=shards, chance=chance)
    left: Counter[Any] = Counter()
    right: Counter[Any] = Counter()
    for one, two in batches:
        run.step(
            [arrow(LEFT, changes(chance, left, one)), arrow(RIGHT, changes(chance, right, two))]
        )
        wanted = naive(how, left, right, pairs)
        assert run.total() == wanted
        assert run.view() == wanted
    gone = [[(row, -n) for row, n in table.items()] for table in (left, right)]
    run.step([arrow(LEFT, gone[0]), arrow(RIGHT, gone[1])])
    assert not run.total()
    assert not run.view()


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("how", HOWS)
def test_a_join_is_what_duckdb_finds(how: How) -> None:
    """Of some thousand rows with keys that are hot and keys that are rare."""
    chance = random.Random(3)
    on = (("k", "key"),)
    rows = [
        [
            (chance.choice([None, "hot", f"k{chance.randint(0, 300)}"]), chance.randint(0, 9), i)
            for i in range(1_500)
        ],
        [(chance.choice(["hot", *(f"k{i}" for i in range(200))]), i, None) for i in range(700)],
    ]
    tables = [delta(schema, some) for schema, some in zip((LEFT, RIGHT), rows, strict=True)]
    run = Contract(TableJoin(how, LEFT, RIGHT, on), shards=2, chance=chance)
    for start in range(0, 1_500, 300):
        run.step([tables[0].slice(start, 300), tables[1].slice(start // 2, 150)])
    left, right = tables
    words = {"inner": "", "full": "FULL OUTER", "left": "LEFT", "right": "RIGHT"}
    join = f"{words.get(how, how.upper())} JOIN right_ ON k = key"
    shown = "k, n, x" if how in ("semi", "anti") else "coalesce(k, key) AS k, n, x, m, tags"
    with duckdb.connect() as con:
        con.register("left_", left)
        con.register("right_", right)
        found = con.sql(f"SELECT {shown} FROM left_ {join}").to_arrow_table()
    assert run.view() == run.total() == counted(found)


def test_a_change_costs_its_own_key() -> None:
    """A row of a rare key reads no row of the hot one: state is looked up by key."""
    run = Contract(TableJoin("full", LEFT, RIGHT, (("k", "key"),)))
    hot = [("hot", i, i) for i in range(2_000)]
    run.step([delta(LEFT, hot), delta(RIGHT, [("hot", 1, None)])])
    before = run.changes.copy()
    run.step([delta(LEFT, [("rare", 1, 1)]), delta(RIGHT, [])])
    assert run.changes - before == Counter({("rare", 1, 1, None, None): 1})
