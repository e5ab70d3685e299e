"""The benchmark of state still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "state.py"


@pytest.mark.slow
def test_the_benchmark_of_state_runs() -> None:
    """Its smoke size measures two sizes of state, with and without look-ups, and gives ratios."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--smoke", "--json"], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)
    assert [(r["keys"], r["changes"]) for r in results] == [
        (1_000, False), (10_000, False), (1_000, True), (10_000, True),
    ]  # fmt: skip
    assert all(r["cpu_p50_ms"] > 0 and r["ratio"] > 0 for r in results)
