"""Groups that a query is asked of: equal to asking it of all rows, after every change."""

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

from penstock.ops.keyed.query import GroupQuery

LEFT = pa.schema([("k", pa.string()), ("n", pa.int64())])
RIGHT = pa.schema([("j", pa.string()), ("m", pa.int64())])
RANKED = "SELECT k, n, row_number() OVER (PARTITION BY k ORDER BY n) AS r FROM rows0"
JOINED = "SELECT k, n, m FROM rows0 FULL JOIN rows1 ON k = j AND n < m"
TOTAL = "SELECT count(*) AS c, CAST(sum(n) AS BIGINT) AS s FROM rows0"
LISTED = "SELECT string_agg(k, ',' ORDER BY k) AS l FROM rows0"

row = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, 2, None]))
batches = st.lists(st.tuples(st.lists(row, max_size=6), st.lists(row, max_size=4)), max_size=5)


def ports(operator: GroupQuery) -> int:
    return len(operator.inputs)


def asked(operator: GroupQuery, there: list[Counter[Any]]) -> Counter[Any]:
    """The query over all rows at once; of none there is nothing, unless it is asked always."""
    if not operator.always and not any(rows.total() for rows in there):
        return Counter()
    con = duckdb.connect(":memory:")
    for port, rows in enumerate(there):
        con.register(f"rows{port}", delta(operator.inputs[port], list(rows.elements())))
    return counted(con.sql(operator.query or "SELECT * FROM rows0").to_arrow_table())


@settings(max_examples=examples(40))
@given(batches, st.sampled_from(["ranked", "joined", "total", "listed", "kept"]), st.integers())
def test_a_query_over_groups(changes: Any, kind: str, seed: int) -> None:
    operator = {
        "ranked": GroupQuery((LEFT,), (("k",),), RANKED, pa.schema([*LEFT, ("r", pa.int64())])),
        "joined": GroupQuery(
            (LEFT, RIGHT), (("k",), ("j",)), JOINED, pa.schema([*LEFT, ("m", pa.int64())])
        ),
        "total": GroupQuery(
            (LEFT,), ((),), TOTAL, pa.schema([("c", pa.int64()), ("s", pa.int64())]), always=True
        ),
        "listed": GroupQuery((LEFT,), ((),), LISTED, pa.schema([("l", pa.string())])),
        "kept": GroupQuery((LEFT,), (("k", "n"),), "", LEFT),
    }[kind]
    chance = random.Random(seed)
    run = Contract(operator, shards=2 if any(operator.key_) else 1, chance=chance)
    there: list[Counter[Any]] = [Counter() for _ in range(ports(operator))]
    for batch in changes:
        inputs = []
        for port in range(ports(operator)):
            come = list(batch[port])
            gone = [one for one in there[port].elements() if chance.random() < 0.3]
            there[port].update(come)
            there[port].subtract(gone)
            weights = [1] * len(come) + [-1] * len(gone)
            inputs.append(delta(operator.inputs[port], come + gone, weights=weights))
        run.step(inputs)
        expected = asked(operator, there)
        assert run.view() == expected
        assert run.total() == expected
