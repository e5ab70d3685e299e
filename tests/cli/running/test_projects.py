"""`penstock new` and `penstock dev`: a project that runs at once, and restarts when it changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.patience import wait_until

from penstock.cli.pipelines.dev import Restarted, _watch, stamps
from penstock.cli.pipelines.new import SAMPLES, samples
from penstock.errors import PenstockError
from penstock.serve import Views

PATIENCE_S = 600.0
NEW_VIEW = """
app.view("stays", clicks.window(ps.session("4 minutes")).group_by("user").agg(clicks=ps.count()))
"""


@pytest.fixture
def project(penstock: Any, tmp_path: Path) -> Path:
    """A project that was made just now."""
    made = penstock("new", "shop")
    assert made.code == 0, made.err
    assert "penstock dev shop.py" in made.err
    return tmp_path / "shop"


def test_a_new_project_passes_its_own_test(project: Path) -> None:
    """Its test runs as its README says, whatever configures pytest in a folder above."""
    above = '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib", "--no-such-option"]\n'
    (project.parent / "pyproject.toml").write_text(above)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_new_projects_program_is_explained(penstock: Any, project: Path) -> None:
    """The program is read without an error; its data has the columns of its stream."""
    explained = penstock("explain", project / "shop.py")
    assert explained.code == 0, explained.err
    assert "per_page" in explained.out
    lines = (project / "data" / "clicks.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == SAMPLES
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert rows[0].keys() == {"user", "page", "ms", "at"}
    assert samples(0.0) == samples(0.0)


def test_a_project_needs_a_name_that_is_free(penstock: Any, project: Path) -> None:
    """A name that is no Python name is refused, and nothing that is there is written over."""
    assert "letters, digits and _" in penstock("new", "my-shop").err
    before = (project / "shop.py").read_text()
    again = penstock("new", "shop")
    assert again.code == 1
    assert "Choose another name" in again.err
    assert (project / "shop.py").read_text() == before


def test_programs_are_watched_and_nothing_else(tmp_path: Path) -> None:
    """State, environments, caches and tests change without a restart."""
    kept = [tmp_path / "shop.py", tmp_path / "parts" / "sums.py", tmp_path / "views.sql"]
    other = ["shop.penstock/x.py", ".git/x.py", "env/lib/x.py", "__pycache__/x.py", "test_shop.py"]
    for path in [*kept, *(tmp_path / one for one in other), tmp_path / "env" / "pyvenv.cfg"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert stamps(tmp_path / "shop.py").keys() == set(kept)


class Stop(Exception):
    """Ends the loop that watches."""


def test_a_faulty_program_does_not_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A change restarts the program; one with a fault is reported, and what runs goes on."""
    file = tmp_path / "shop.py"
    file.write_text("1")
    child = Restarted([sys.executable, "-c", "import time; time.sleep(600)"])
    faults = {"22": "error: no such column", "333": None}
    seen: list[tuple[int, int]] = []

    def look(_: float) -> None:
        assert child._child is not None
        seen.append((child.starts, child._child.pid))
        if len(seen) == 4:
            raise Stop
        text = {1: "22", 3: "333"}.get(len(seen))
        if text:
            file.write_text(text)

    try:
        with pytest.raises(Stop):
            _watch(file, child, lambda: faults[file.read_text()], look)
    finally:
        child.stop()
    assert [starts for starts, _ in seen] == [1, 1, 1, 2]
    assert seen[0][1] == seen[2][1] != seen[3][1]
    said = capfd.readouterr().err
    assert said.count(f"changed: {file}") == 2
    assert "error: no such column" in said
    assert "continues with the previous program" in said


def counted(directory: Path, view: str) -> int:
    """How many clicks a view counts; none before it is there."""
    try:
        return sum(Views(directory).table(view)["clicks"].to_pylist())
    except PenstockError:
        return 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_project_runs_and_restarts(project: Path) -> None:
    """The README's command reads the sample data; a new view is computed from the log after a restart."""
    command = [sys.executable, "-m", "penstock.cli", "dev", "shop.py", "--no-ui"]
    command += ["--ingest", "clicks=data/*.jsonl"]
    program, state = project / "shop.py", project / "shop.penstock"
    stderr = project / "stderr"
    with stderr.open("wb") as file:
        child = subprocess.Popen(command, cwd=project, stderr=file, env=os.environ.copy())
    try:
        wait_until(
            lambda: counted(state, "per_page") == SAMPLES, stderr.read_text, patience_s=PATIENCE_S
        )
        good = program.read_text()
        program.write_text(good + "app.vieww('x')\n")
        wait_until(
            lambda: "previous program" in stderr.read_text(),
            stderr.read_text,
            patience_s=PATIENCE_S,
        )
        assert "shop.py" in stderr.read_text()
        program.write_text(good + NEW_VIEW)
        wait_until(
            lambda: counted(state, "stays") == SAMPLES, stderr.read_text, patience_s=PATIENCE_S
        )
    finally:
        child.terminate()
        assert child.wait(PATIENCE_S) == 0
