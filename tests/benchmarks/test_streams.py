"""The benchmarks of joins, sessions and late rows on topics, and of growth, still run."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def result(program: str, *arguments: str) -> Any:
    command = [sys.executable, BENCHMARKS / program, "--smoke", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["joins.py", "sessions.py", "late.py", "patterns.py"])
def test_a_benchmark_on_topics_finds_the_true_rows(program: str) -> None:
    """Its smoke size gives what DuckDB finds, and says how fast and at what cost."""
    for found in result(program, "--peers", "")["cases"]:
        assert found["penstock_equal"]
        assert found["penstock"]["rows_per_s"] > 0
        assert found["penstock"]["cpu_s"] > 0


def test_the_benchmark_of_small_changes_runs() -> None:
    """Each operator takes a change at each size; in this process, as a start takes longer than that."""
    program = runpy.run_path(str(BENCHMARKS / "small_changes.py"))
    spent_ms = [program["measure"](make, 20, 1) for make in program["OPERATORS"].values()]
    assert len(spent_ms) == 6
    assert min(spent_ms) > 0


def test_the_benchmark_of_window_functions_runs() -> None:
    """Each function takes a change, computed either way."""
    program = runpy.run_path(str(BENCHMARKS / "window_functions.py"))
    for sql, function, where in program["FUNCTIONS"].values():
        for make in ("by_change", "whole"):
            assert program["measure"](program[make](sql, function), 20, where, 1) > 0


@pytest.mark.slow
def test_the_benchmark_of_growth_runs() -> None:
    """Each case gives a time for each size, and a slope."""
    found = result("growth.py")["results"]
    assert {one["operator"] for one in found} >= {"aggregate", "join", "sessions", "top"}
    assert all(len(one["ms"]) == len(one["sizes"]) == 3 for one in found)
