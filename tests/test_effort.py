"""A quick run leaves out what is slow, and says so; others run everything; long runs name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak import SOAKS, Soak
from tests.soak import run as soak

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

@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("n", ["a[0]", pytest.param("slow", marks=pytest.mark.slow), "c"])
def test_cases(n):
    pass

@pytest.mark.timeout(1)
def test_timeout(request):
    assert request.node.get_closest_marker("timeout").args == (LIMIT,)
"""
NAMED = re.compile(r'"(PENSTOCK_\w+)"')


SLOW = """
import pytest

pytestmark = pytest.mark.slow

def test_slow():
    pass

@pytest.mark.quick_cases(1)
def test_quick():
    pass
"""


def run(folder: Path, *arguments: str, tests: str) -> str:
    """What pytest prints of these tests."""
    (folder / "test_slow.py").write_text(SLOW)
    (folder / "test_some.py").write_text(TESTS.replace("LIMIT", "0" if tests == "soak" else "1"))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), *arguments, str(folder)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env = inherited | {"PENSTOCK_TESTS": tests}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_quick_run_leaves_out_what_is_slow(tmp_path: Path) -> None:
    """Slow tests aren't run, nor later cases of many; rounds are few. The end says how many were left out
    and what runs them, also where another process has left them out.
    """
    said = run(tmp_path, "-n", "1", tests="quick")
    assert "4 passed" in said
    assert "4 tests were left out" in said
    assert "./test --all" in said


@pytest.mark.slow
def test_any_other_run_leaves_out_nothing(tmp_path: Path) -> None:
    """All tests, all rounds; a long run has no timeouts besides."""
    for tests in ("all", "soak"):
        said = run(tmp_path, tests=tests)
        assert "10 passed" in said
        assert "left out" not in said


@pytest.mark.parametrize("one", SOAKS, ids=lambda one: one.name)
def test_long_runs_name_what_there_is(one: Soak) -> None:
    """Their files and modules exist, and some test reads each of their variables."""
    first, *others = one.arguments
    files = [f"{others[0].replace('.', '/')}.py"] if first == "-m" else [first, *others]
    for file in files:
        if "/" in file:
            assert (ROOT / file).exists(), file
    unread = set(one.variables) - {name for text in texts() for name in NAMED.findall(text)}
    assert unread == set()


def test_kills_have_a_long_run() -> None:
    """What says how often a test kills is said by a long run, too."""
    kills = {name for text in texts() for name in NAMED.findall(text) if name.endswith("_KILLS")}
    assert kills - {name for one in SOAKS for name in one.variables} == set()


def test_a_long_run_says_what_it_runs_and_what_failed(capfd: pytest.CaptureFixture[str]) -> None:
    """The command is printed with its variables and seed; the others run although one has failed."""
    failing = Soak(
        "first", "fails", ("-m", "tests.soak", "--seed", "none"), {"PENSTOCK_NONE": "SEED"}
    )
    passing = Soak("second", "passes", ("-m", "tests.soak", "--list"))
    assert soak([failing, passing], 7) == ["first"]
    said = capfd.readouterr().out
    assert "PENSTOCK_NONE=7 PENSTOCK_TESTS=soak python -m tests.soak --seed none" in said
    assert "first: failed" in said
    assert "second: passed" in said


def texts() -> list[str]:
    """The tests."""
    return [one.read_text() for one in (ROOT / "tests").rglob("*.py") if one.name != "soak.py"]
