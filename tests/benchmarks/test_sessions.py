"""The benchmark of sessions still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sessions.py"


@pytest.mark.slow
def test_the_benchmark_of_sessions_runs() -> None:
    """Its smoke size closes sessions, finds those that DuckDB finds, and gives the ratio as JSON."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--operator", "--smoke", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["equal"]
    assert 0 < found["closed"] < found["sessions"]
    assert found["ratio"] > 0
