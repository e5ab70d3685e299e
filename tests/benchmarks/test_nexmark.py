"""Nexmark's queries give what DuckDB finds in all events; the benchmarks of queries still run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from tests.effort import some_slow

import penstock as ps

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = 6_000
BATCHES = 3


@pytest.fixture(scope="module")
def nexmark() -> Iterator[dict[str, Any]]:
    """The benchmark's modules, and a database of all events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from auctions import generator, queries, topics

        events = generator.Events(ROWS)
        database = topics.truth_database(events, 1)
        yield {"events": events, "queries": queries, "topics": topics, "database": database}
        database.close()


def names() -> list[str]:
    """Of the queries, without importing them: the file is not on the path while tests are collected."""
    text = (BENCHMARKS / "auctions" / "queries.py").read_text()
    return [f"q{i}" for i in range(23) if f"def q{i}(" in text]


def test_all_queries_are_tried(nexmark: dict[str, Any]) -> None:
    """Twenty-one of the twenty-three in Python; the others are named with the reason."""
    assert names() == list(nexmark["queries"].QUERIES)
    assert len(names()) == 21


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", names())
def test_a_query_gives_what_duckdb_finds(nexmark: dict[str, Any], name: str) -> None:
    """Over some batches, with a restart in between."""
    check(nexmark, nexmark["queries"].QUERIES[name])


def test_text_in_a_file_of_results_is_text(nexmark: dict[str, Any], tmp_path: Path) -> None:
    """A time of day as text, which q10 has, is none of another type; a wrong one is found."""
    file, unequal = tmp_path / "rows", nexmark["topics"].unequal
    file.write_text('{"n": 1, "hm": "22:13"}\n{"n": 2, "hm": "09:05"}\n')
    truth = "SELECT * FROM (VALUES (1, '22:13'), (2, '09:05')) AS t(n, hm)"
    assert not unequal(nexmark["database"], truth, file)
    assert "1, such as" in unequal(nexmark["database"], truth.replace("09:05", "09:06"), file)


def sql_names() -> list[str]:
    """Of the queries in SQL."""
    return in_file("penstock.sql")


def in_file(file: str) -> list[str]:
    """The queries of a file of `auctions`."""
    text = (BENCHMARKS / "auctions" / file).read_text()
    return [f"q{i}" for i in range(23) if f"-- q{i}\n" in text]


def test_all_queries_are_tried_in_sql(nexmark: dict[str, Any]) -> None:
    """All twenty-three."""
    assert sql_names() == [f"q{i}" for i in range(23)]
    assert sql_names() == list(nexmark["queries"].LANGUAGES["sql"])
    assert sql_names() == in_file("duckdb.sql")
    assert in_file("flink.sql") == [name for name in sql_names() if name != "q6"]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "name", some_slow(sql_names(), quick=["q1", "q4", "q5", "q8", "q12", "q20"])
)
def test_a_query_in_sql_gives_what_duckdb_finds(nexmark: dict[str, Any], name: str) -> None:
    """Likewise."""
    check(nexmark, nexmark["queries"].LANGUAGES["sql"][name])


def check(nexmark: dict[str, Any], query: Any) -> None:
    """Compares a query's result with DuckDB's."""
    run = ps.testing.run(nexmark["queries"].pipeline(query))
    rows: dict[str, pa.Table] = nexmark["events"].tables()
    rows["side"] = nexmark["topics"].side_table()
    for batch in range(BATCHES):
        for topic in query.topics:
            send(run, topic, nexmark["topics"].KEYS.get(topic), part(rows[topic], batch))
        run.settle()
        if query.by_the_clock:
            run.advance("10 seconds")
        if batch == 0:
            run.restart()
    if query.view:
        found = run.view("result").table
    else:
        values = [orjson.loads(record.value or b"") for record in run.topic("result")]
        found = pa.Table.from_pylist(values)
    assert len(found)
    if query.by_the_clock:
        assert len(set(found["window_start"].to_pylist())) == BATCHES
    assert nexmark["topics"].unequal(nexmark["database"], query, found) == ""
    assert run.dead_letters() == []


def part(table: pa.Table, batch: int) -> pa.Table:
    """A batch's share of the rows."""
    each = -(-len(table) // BATCHES)
    return table.slice(batch * each, each)


def send(run: Any, topic: str, key: str | None, table: pa.Table) -> None:
    """Rows as records, with times in milliseconds."""
    for row in table.to_pylist():
        run.send_raw(topic, orjson.dumps(row), key=None if key is None else str(row[key]))


@pytest.mark.slow
def test_the_benchmark_of_tpch_runs() -> None:
    """Its smoke size keeps what DuckDB computes."""
    command = [
        sys.executable,
        BENCHMARKS / "tpch_views.py",
        "--smoke",
        "--queries",
        "q3,q22",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["queries"]
    assert [(one["query"], one["equal"]) for one in found] == [("q3", True), ("q22", True)]
    assert all(one["state_mb"] > 0 and len(one["changes"]) == 2 for one in found)


@pytest.mark.slow
def test_the_benchmark_of_nexmark_runs() -> None:
    """Its smoke size finds what DuckDB finds, and gives the rates as JSON."""
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / "nexmark.py",
            "--smoke",
            "--queries",
            "q4,q20",
            "--peers",
            "",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert [result["penstock_equal"] for result in found["queries"]] == [True, True]
    assert all(result["penstock"]["rows_per_s"] > 0 for result in found["queries"])
