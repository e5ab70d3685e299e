"""Temporary files of JVMs: those of the living stay, those of the dead go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.engine.spark.scratch import begin

OTHER = """
import sys
from pathlib import Path
from penstock.engine.spark.scratch import begin
print(begin(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> set[Path]:
    return {one for one in (folder / "tmp").iterdir() if one.is_dir()}


def test_folders_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """A killed process's with what is in it; a living one's, and another pipeline's, stay."""
    folder = tmp_path / "a pipeline"
    elsewhere = begin(tmp_path / "another")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        (theirs / "blockmgr").mkdir()
        (theirs / "blockmgr" / "block").write_text("x")
        mine = begin(folder)
        assert names(folder) == {theirs, mine}
        other.kill()
        other.wait()
        again = begin(folder)  # this process has started another JVM: the one of before is gone
    assert names(folder) == {again}
    assert elsewhere.is_dir()
