from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "log.py"


def test_log_benchmark_runs() -> None:
    """The log's benchmark works at its smallest size and gives figures for each client."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--smoke", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert all(one["value"] > 0 for one in figures)
    assert {"confluent consume", "reader to columns", "recovery without any"} <= {
        one["what"] for one in figures
    }


def test_broker_benchmark_runs() -> None:
    """The broker's benchmark works at its smallest size: rates, memory, start-up."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("broker.py")), "--smoke", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert all(one["value"] > 0 for one in figures)
    assert {"start-up", "consume", "produce acks=all", "memory under load, anonymous"} <= {
        one["what"] for one in figures
    }


def test_queue_benchmark_runs() -> None:
    """The queues' benchmark works at its smallest size."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("queues.py")), "--smoke", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert {one["what"] for one in figures} == {"jobs, one at a time", "jobs, CPU"}
    assert all(one["value"] > 0 for one in figures)
