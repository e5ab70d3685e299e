"""The benchmark of joins still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "joins.py"


@pytest.mark.slow
def test_the_benchmark_of_joins_runs() -> None:
    """Its smoke size joins what DuckDB joins, of many sessions and of one, and gives ratios."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--operator", "--smoke", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)["joins"]
    assert [r["how"] for r in results] == ["inner", "left", "left"]
    assert all(r["equal"] and r["rows"] > 10_000 and r["ratio"] > 0 for r in results)
