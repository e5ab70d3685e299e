"""The benchmark of stored searches still runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "searches.py"


@pytest.mark.slow
def test_the_benchmark_of_searches_runs() -> None:
    """Its smoke size finds what Lucene finds, if that is here, while searches come and go."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--smoke", "--json"], capture_output=True, text=True, check=True
    )
    ours, *others = json.loads(done.stdout)["searches"]
    assert ours["matches"] > 1_000
    assert min(ours["documents_per_s"], ours["changed_per_s"]) > 0
    assert all(ours["equal"] and ours["ratio"] > 0 for _ in others)
