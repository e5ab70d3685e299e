"""The tier's benchmark at its smoke size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "tier.py"


@pytest.mark.spark
@pytest.mark.slow
def test_tier_benchmark_runs() -> None:
    """It gives a figure for the log, the tier, the table and Spark."""
    pytest.importorskip("pyiceberg", reason="needs penstock[iceberg]")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--smoke", "--json"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert all(value > 0 for value in figures.values())
    assert {"log: rows", "tier: records, cold", "Iceberg: two columns"} <= figures.keys()
    assert "Spark, ps.History" in figures
