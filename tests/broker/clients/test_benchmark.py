from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "figures"),
    [
        ("log.py", {"confluent consume", "reader to columns", "recovery without any"}),
        (
            "broker.py",
            {"start-up", "consume", "produce acks=all", "memory under load, anonymous"},
        ),
        ("queues.py", {"jobs, one at a time", "jobs, CPU"}),
    ],
)
def test_benchmark_runs(program: str, figures: set[str]) -> None:
    """The benchmarks of log, broker and queues work at their smallest size and give their figures."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), "--smoke", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["figures"]
    assert all(one["value"] > 0 for one in found)
    assert figures <= {one["what"] for one in found}
