"""TPC-H's queries as views, beside DuckDB, while its refresh functions insert and delete orders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.sql import SqlFlow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCALE = float(os.environ.get("PENSTOCK_TPCH_SCALE") or 0.1)
BATCHES = 3


@pytest.fixture(scope="module")
def tpch() -> Iterator[Any]:
    """The module of the benchmark's data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from tpch import data

        if reason := data.available():
            pytest.skip(reason)
        yield data


@pytest.mark.slow
def test_each_query_equals_duckdb_after_each_refresh(tpch: Any) -> None:
    """All 22 in one program, over the same tables, with a restart."""
    tables, queries = tpch.Tables(SCALE), tpch.queries(SCALE)
    app = SqlFlow("tpch")
    app.sql(tpch.program())
    for name, query in queries.items():
        app.view(name, sql=query)
    run = ps.testing.run(app)
    send(run, dict(tables.all()))
    found: dict[str, list[Counter[Any]]] = {name: [] for name in queries}
    for batch in range(BATCHES):
        for name, query in queries.items():
            found[name].append(counted(run.view(name).table))
            assert found[name][-1] == counted(tables.answer(query)), (name, batch)
        send(run, tables.refreshed(share=0.05))
        if batch == 0:
            run.restart()
    assert run.dead_letters() == []
    tables.close()
    assert len(queries) == 22
    assert sum(any(batches) for batches in found.values()) >= 18  # small data has no row for some
    assert sum(batches[0] != batches[-1] for batches in found.values()) >= 8


def send(run: Any, changes: Mapping[str, pa.Table]) -> None:
    """Appends records to the topics."""
    for topic, records in changes.items():
        keys, values = records["key"].to_pylist(), records["value"].to_pylist()
        for key, value in zip(keys, values, strict=True):
            run.send_raw(topic, value, key=key)


def counted(rows: pa.Table) -> Counter[Any]:
    """Rows with how often each is there; numbers to ten digits, as sums of doubles depend on their order."""
    return Counter(tuple(map(_plain, row.values())) for row in rows.to_pylist())


def _plain(value: Any) -> Any:
    return f"{float(value):.10g}" if isinstance(value, float | int | Decimal) else value
