"""A quick run leaves out what is slow, and says so; any other runs everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest
from tests.effort import rounds

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.parametrize("n", range(rounds("PENSTOCK_NONE", quick=1, full=3)))
def test_rounds(n):
    pass
"""


def run(folder: Path, *arguments: str, tests: str) -> str:
    """What pytest prints of these tests."""
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), *arguments, str(folder)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env = inherited | {"PENSTOCK_TESTS": tests}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_quick_run_leaves_out_what_is_slow(tmp_path: Path) -> None:
    """Slow tests aren't run, rounds are few; the end says how many were left out and what runs them, also
    where another process has left them out.
    """
    said = run(tmp_path, "-n", "1", tests="quick")
    assert "1 passed" in said
    assert "1 slow tests were left out" in said
    assert "./test --all" in said


def test_any_other_run_leaves_out_nothing(tmp_path: Path) -> None:
    """All tests, all rounds."""
    said = run(tmp_path, tests="all")
    assert "4 passed" in said
    assert "left out" not in said
