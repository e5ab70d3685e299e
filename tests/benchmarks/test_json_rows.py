"""The benchmark of JSON rows still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "json_rows.py"


@pytest.mark.slow
def test_the_benchmark_of_json_rows_runs() -> None:
    """Its smoke size measures every case, and gives each peer's rate and ratio as JSON."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--smoke", "--json"], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)
    assert {result["what"] for result in results} == {"decode", "encode"}
    assert all(result["rows_per_second"]["Penstock"] > 0 for result in results)
    assert all(result["ratio"]["DuckDB"] > 0 for result in results)
    [read, written] = [result for result in results if result["rows"] == "a JSON column"]
    assert (
        read["rows_per_second"].keys()
        == written["rows_per_second"].keys()
        == {"Penstock", "DuckDB", "orjson"}
    )
