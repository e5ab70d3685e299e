"""Nexmark's queries give what DuckDB finds in all events, and their benchmark still runs."""

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
    """Twenty of the twenty-three; the others are named with the reason."""
    assert names() == list(nexmark["queries"].QUERIES)
    assert len(names()) == 20


@pytest.mark.parametrize("name", names())
def test_a_query_gives_what_duckdb_finds(nexmark: dict[str, Any], name: str) -> None:
    """Over some batches, with a restart in between."""
    query = nexmark["queries"].QUERIES[name]
    run = ps.testing.run(nexmark["queries"].pipeline(query))
    rows: dict[str, pa.Table] = nexmark["events"].tables()
    rows["side"] = nexmark["topics"].side_table()
    for batch in range(BATCHES):
        for topic in query.topics:
            send(run, topic, nexmark["topics"].KEYS.get(topic), part(rows[topic], batch))
        run.settle()
        if batch == 0:
            run.restart()
    if query.view:
        found = run.view("result").table
    else:
        values = [orjson.loads(record.value or b"") for record in run.topic("result")]
        found = pa.Table.from_pylist(values)
    assert len(found)
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
