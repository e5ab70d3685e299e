"""A stream and the table as it is: equal to a nested loop over the table of each batch."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.ops.joins.stream_table_join import StreamTableJoin

STREAM = pa.schema([("k", pa.string()), ("j", pa.int64()), ("x", pa.int64())])
TABLE = pa.schema([("key", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
keys = st.sampled_from(["a", "b", None])
event = st.tuples(keys, st.sampled_from([1, 2, None]), st.integers(0, 2))
row = st.tuples(keys, st.sampled_from([1, 2, None]), st.sampled_from([None, (), ("t",)]))
batch = st.tuples(st.lists(event, max_size=5), st.lists(row, max_size=5))


def naive(how: str, events: list[Any], table: Counter[Any], pairs: int) -> Counter[Any]:
    """All pairs, one by one; the key has `pairs` columns."""
    found: Counter[Any] = Counter()
    for at, one in events:
        met = [
            (other, n)
            for other, n in table.items()
            if one[:pairs] == other[:pairs] and None not in one[:pairs]
        ]
        for other, n in met:
            found[at, *one, *other[pairs:]] += n
        if not met and how == "left":
            found[at, *one, *[None] * (3 - pairs)] += 1
    return found


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=examples(40))
@given(st.lists(batch, max_size=6), st.integers(1, 2), st.integers(1, 3), st.integers())
def test_rows_meet_the_table_of_their_batch(
    how: Any, batches: list[Any], pairs: int, shards: int, seed: int
) -> None:
    """Rows of the table come and go, some are there twice; what was given stays."""
    chance = random.Random(seed)
    on = (("k", "key"), ("j", "n"))[:pairs]
    run = Contract(
        StreamTableJoin(how, STREAM, TABLE, on), shards=shards, chance=chance, timed=True
    )
    table: Counter[Any] = Counter()
    wanted: Counter[Any] = Counter()
    for events, come in batches:
        there = list(table.elements())
        changes = [(r, -1) for r in chance.sample(there, chance.randint(0, len(there)))]
        changes += [(r, 1) for r in come]
        for one, weight in changes:
            table[one] += weight
        table = +table
        timed = [(chance.randint(0, 9), one) for one in events]
        wanted += naive(how, timed, table, pairs)
        rows = [one for _, one in timed]
        run.step(
            [
                delta(STREAM, rows, times=[at for at, _ in timed]),
                delta(TABLE, [r for r, _ in changes], weights=[w for _, w in changes]),
            ]
        )
        assert run.late == [[], []]
        assert run.total() == wanted
