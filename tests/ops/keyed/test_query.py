"""Groups that a query is asked of: equal to asking it of all rows, after every change."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.ops import Context
from penstock.ops.keyed import query
from penstock.ops.keyed.query import GroupQuery
from penstock.state import MemoryStateFiles

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


HOSTILE = pa.schema([("k", pa.string()), ("s", pa.string()), ("n", pa.int64())])
MEDIANS = "SELECT k, median(s::INT) AS m, count(*) AS c FROM rows0 GROUP BY k"
HUGE = "170141183460469231731687303715884105727::HUGEINT"
SUMS = f"SELECT k, sum(CASE WHEN n = 1 THEN {HUGE} END)::DOUBLE AS t FROM rows0 GROUP BY k"
hostile_row = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from(["1", "5", "x", "", None]),
    st.sampled_from([0, 1]),
)


def of_groups(there: Counter[Any], kind: str) -> Counter[Any]:
    """The reference: each group by itself, its values read by Python."""
    found: Counter[Any] = Counter()
    for k in {key for key, _, _ in there.elements()}:
        rows = [row for row in there.elements() if row[0] == k]
        if kind == "medians":
            numbers = sorted(int(s) for _, s, _ in rows if s in ("1", "5"))
            found[k, statistics.median(numbers) if numbers else None, len(rows)] += 1
        else:
            ones = sum(n for _, _, n in rows)
            found[
                k,
                None if ones != 1 else float(2**127),
            ] += 1
    return found


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(hostile_row, max_size=6), max_size=5),
    st.sampled_from(["medians", "sums"]),
    st.integers(),
)
def test_groups_for_which_a_query_fails(changes: Any, kind: str, seed: int) -> None:
    """What fails for a row is NULL to the query; a group whose aggregate fails has NULL, the others not."""
    column = ("m", pa.float64()) if kind == "medians" else ("t", pa.float64())
    count = [("c", pa.int64())] if kind == "medians" else []
    output = pa.schema([("k", pa.string()), column, *count])
    query = MEDIANS if kind == "medians" else SUMS
    operator = GroupQuery((HOSTILE,), (("k",),), query, output, placed=("k",))
    chance = random.Random(seed)
    run = Contract(operator, shards=2, chance=chance)
    there: Counter[Any] = Counter()
    for come in changes:
        gone = [one for one in there.elements() if chance.random() < 0.3]
        there.update(come)
        there.subtract(gone)
        weights = [1] * len(come) + [-1] * len(gone)
        run.step([delta(HOSTILE, come + gone, weights=weights)])
        assert run.view() == run.total() == of_groups(there, kind)


def test_a_group_that_fails_is_a_letter_once() -> None:
    """Its key and the reason, when it begins to fail; it isn't repeated while the group fails."""
    output = pa.schema([("k", pa.string()), ("m", pa.float64()), ("c", pa.int64())])
    operator = GroupQuery((HOSTILE,), (("k",),), MEDIANS, output, placed=("k",)).emitting(
        changes=True, closed=False
    )
    files = MemoryStateFiles()
    state = operator.empty(files)
    reasons = []
    for version, s in enumerate(["1", "x", "7"], 1):
        rows = operator.prepare(0, delta(HOSTILE, [("a", s, 0), ("b", "3", 0)])).parcel
        found = operator.step(state, [[rows]], Context(files, "s", version, (0,)))
        state = found.state
        reasons.append([(one.rows.to_pylist(), one.reason) for one in found.refused])
    assert reasons[0] == reasons[2] == []
    [(key, reason)] = reasons[1]
    assert key == [{"k": "a"}]
    assert "Could not convert string 'x'" in reason


@pytest.mark.parametrize("most", [500, 6])
def test_each_group_that_fails_is_a_letter(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are; where the search ends early, maybe others too, and those that fail already."""
    monkeypatch.setattr(query, "CALLS_MAX", most)
    output = pa.schema([("k", pa.string()), ("t", pa.float64())])
    operator = GroupQuery((HOSTILE,), (("k",),), SUMS, output, placed=("k",)).emitting(
        changes=True, closed=False
    )
    files = MemoryStateFiles()
    state = operator.empty(files)
    for version, failing in enumerate((set(range(0, 60, 3)), set(range(0, 60, 2))), 1):
        rows = [(f"g{i}", None, int(i in failing)) for i in range(60) for _ in "12"]
        parcel = operator.prepare(0, delta(HOSTILE, rows)).parcel
        found = operator.step(state, [[parcel]], Context(files, "s", version, (0,)))
        state = found.state
        groups = [row["k"] for one in found.refused for row in one.rows.to_pylist()]
        assert len(set(groups)) == len(groups)
        now = failing if version == 1 else failing - set(range(0, 60, 3))
        expected = {f"g{i}" for i in now}
        assert set(groups) == expected if most == 500 else set(groups) >= expected
