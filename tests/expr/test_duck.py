"""DuckDB as an evaluator: tables of few rows are known to it from one query to the next."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pyarrow as pa
import pytest

from penstock import duck as core_duck
from penstock.core.schema import UUID
from penstock.expr import duck
from penstock.expr.duck import (
    GIVEN_MAX,
    PREPARED_MAX,
    SMALL_ROWS_MAX,
    EvaluationError,
    evaluate,
    query_tables,
    stopped_at,
    types_of,
)

JOINED = "SELECT rows0.k, rows1.k AS other FROM rows0 JOIN rows1 ON rows0.k <= rows1.k ORDER BY ALL"


def test_each_query_sees_its_own_rows() -> None:
    """Of tables with the same columns, one after the other and next to each other."""
    for n in (3, 1, 0, 2):
        rows = pa.table({"k": pa.array(range(n), pa.int64())})
        assert evaluate(rows, "SELECT k + 1 AS k FROM rows")["k"].to_pylist() == list(
            range(1, n + 1)
        )
    one, two = pa.table({"k": [1, 5]}), pa.table({"k": [2, 9]})
    found = query_tables({"rows0": one, "rows1": two}, JOINED).to_pylist()
    assert found == [{"k": 1, "other": 2}, {"k": 1, "other": 9}, {"k": 5, "other": 9}]
    twice = "SELECT * FROM rows0 UNION ALL SELECT * FROM rows0"
    assert query_tables({"rows0": one, "rows1": two}, twice)["k"].to_pylist() == [1, 5, 1, 5]


@pytest.mark.parametrize("n", [SMALL_ROWS_MAX, SMALL_ROWS_MAX + 1])
def test_many_rows_are_as_few(n: int) -> None:
    """Order and values are the same on both sides of the limit, UUIDs among them."""
    ids = [i.to_bytes(16, "big") for i in range(n)]
    rows = pa.table({"k": pa.array(range(n), pa.int64()), "u": pa.array(ids, UUID)})
    found = evaluate(rows, "SELECT k, CAST(u AS VARCHAR) AS u FROM rows WHERE k % 2 = 1")
    assert found["k"].to_pylist() == list(range(1, n, 2))
    assert found["u"][0].as_py() == "00000000-0000-0000-0000-000000000001"


def test_more_tables_than_are_known() -> None:
    """Those that were known first are known again where they return."""
    for i in [*range(GIVEN_MAX + 3), 0, 1]:
        assert evaluate(pa.table({f"k{i}": [i]}), "SELECT * FROM rows").to_pylist() == [
            {f"k{i}": i}
        ]


@pytest.mark.slow
def test_a_query_keeps_its_own_tables() -> None:
    """Where one of its tables is new, it takes the place of none that the query has."""
    first = pa.table({"first": [1]})
    for i in range(GIVEN_MAX):
        evaluate(first if i == 0 else pa.table({f"n{i}": [i]}), "SELECT * FROM rows")
    found = query_tables({"rows0": first, "rows1": pa.table({"new": [2]})}, "FROM rows0, rows1")
    assert found.to_pylist() == [{"first": 1, "new": 2}]


@pytest.mark.slow
def test_rows_are_let_go_of() -> None:
    """After a query, also one that fails, nothing keeps its rows."""
    rows = pa.table({"k": ["a"]})
    held = weakref.ref(rows)
    with pytest.raises(EvaluationError, match="Could not convert"):
        evaluate(rows, "SELECT CAST(k AS INTEGER) FROM rows")
    del rows
    gc.collect()
    assert held() is None


def test_a_query_may_have_tables_of_its_own() -> None:
    """Also one of the same name."""
    rows = pa.table({"k": [1, 2]})
    query = "WITH few AS (SELECT * FROM rows WHERE k > 1) SELECT k FROM few"
    assert evaluate(rows, query)["k"].to_pylist() == [2]
    for before in ("/* few */ ", "-- few\n", "/* WITH */ -- few\n  "):
        assert evaluate(rows, before + query)["k"].to_pylist() == [2]
        assert types_of({"rows": rows.schema}, before + query)[0][0] == "k"
    assert evaluate(rows, f"({query})")["k"].to_pylist() == [2]
    inner = "SELECT k FROM (WITH rows AS (SELECT 7 AS k) SELECT k FROM rows)"
    assert evaluate(rows, inner)["k"].to_pylist() == [7]


@pytest.mark.slow
def test_more_queries_than_are_planned() -> None:
    """Those that were planned first are planned again where they return, with the rows of then."""
    for i in [*range(PREPARED_MAX + 3), 0, 1]:
        rows = pa.table({"k": [i]})
        assert evaluate(rows, f"SELECT k + {i} AS k FROM rows").to_pylist() == [{"k": 2 * i}]


def test_a_plan_holds_for_other_rows() -> None:
    """What DuckDB may conclude of the first rows (none, one, no NULL) is not taken for granted."""
    query = (
        "SELECT count(*) AS n, max(k) AS most FROM rows WHERE k > 2 OR k IS NULL "
        "UNION ALL SELECT count(*), max(k) FROM rows WHERE k IN (SELECT max(k) FROM rows)"
    )
    for some, expected in [
        ([], [(0, None), (0, None)]),
        ([1], [(0, None), (1, 1)]),
        ([None, 3, 9, 9], [(4, 9), (2, 9)]),
        ([], [(0, None), (0, None)]),
    ]:
        found = evaluate(pa.table({"k": pa.array(some, pa.int64())}), query)
        assert [tuple(row.values()) for row in found.to_pylist()] == expected


def test_columns_of_other_types_have_another_plan() -> None:
    """The text of a query alone doesn't say what it gives."""
    for rows, type_ in [
        (pa.table({"k": ["a"]}), pa.string()),
        (pa.table({"k": [1]}), pa.int64()),
        (pa.table({"k": ["b"]}), pa.string()),
    ]:
        found = evaluate(rows, "SELECT max(k) AS k FROM rows")
        assert found == rows
        assert found.schema.types == [type_]


def test_plans_need_no_function_below_relations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DuckDB's package has none, relations give the same."""
    assert duck._submits()  # else this test and all others run the same code
    rows = pa.table({"k": [1, None, 3]})
    query = "SELECT k * 2 AS k, count(*) OVER () AS n FROM rows"
    one = evaluate(rows, query)
    monkeypatch.setattr(duck, "_submits", lambda: False)
    assert evaluate(rows, query) == one


SPANS = pa.table({"i": pa.array([1], pa.duration("us"))})
NEAREST = "SELECT count(*) AS n FROM rows ASOF JOIN rows AS other ON rows.i >= other.i"


@pytest.mark.parametrize(
    "values",
    [
        SPANS["i"],
        pa.array([[1, None]], pa.list_(pa.int64())),
        pa.array([{"x": 1}], pa.struct({"x": pa.int64()})),
        pa.array([{"x": 1}], pa.map_(pa.string(), pa.int64())),
    ],
)
def test_asof_joins_compare_all_types(values: pa.Array) -> None:
    """Also in plans that are used again, and one after the other."""
    rows = pa.table({"k": [1], "i": values})
    equal = NEAREST.replace(" ON ", " ON rows.k = other.k AND ")
    chained = f"{equal} ASOF JOIN rows AS third ON other.k = third.k AND other.i >= third.i"
    for query in (NEAREST, equal, chained) * 2:
        assert evaluate(rows, query).to_pylist() == [{"n": 1}]


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """A thread whose DuckDB fails inside at `NEAREST` over intervals, as it does without our settings."""
    monkeypatch.setattr(core_duck, "confine", lambda con: None)
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.mark.parametrize("n", [1, SMALL_ROWS_MAX + 1])
def test_an_error_inside_duckdb_ends_its_query_alone(breaking: Executor, n: int) -> None:
    """Others are answered after it, with tables and plans that were known before, by each way of asking."""
    rows = pa.table({"k": pa.array(range(n), pa.int64())})
    more = {"rows": SPANS} if n == 1 else {"rows": SPANS, "other_rows": rows}

    def answer() -> None:
        assert evaluate(rows, "SELECT max(k) + 1 AS k FROM rows").to_pylist() == [{"k": n}]
        assert types_of({"rows": rows.schema}, "SELECT k FROM rows")[0][1] == pa.int64()

    def answers() -> None:
        answer()
        with pytest.raises(EvaluationError, match="INTERNAL"):
            query_tables(more, NEAREST)
        answer()
        stopped_at({"rows": SPANS.schema}, NEAREST)
        answer()

    breaking.submit(answers).result()


def test_an_error_inside_duckdb_leaves_other_threads_alone(breaking: Executor) -> None:
    """Each has a database of its own, and what that knows."""
    for _ in range(2):
        found = evaluate(SPANS, "SELECT i FROM rows")
        assert found.num_rows == 1
        with pytest.raises(EvaluationError, match="INTERNAL"):
            breaking.submit(evaluate, SPANS, NEAREST).result()
