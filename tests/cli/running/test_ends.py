"""How processes end that have threads in the background."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WAITS = """
import threading
from penstock.duck import connection
from penstock.errors import UserError
import penstock as ps

def wait(ready):
    con = connection()
    con.execute("SELECT 1")
    ready.set()
    threading.Event().wait(60)

ready = threading.Event()
threading.Thread(target=wait, args=(ready,), daemon=True).start()
ready.wait()
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ('raise UserError("nothing to do")', "error: nothing to do ("),
        ('app = ps.App("shop"); app.run = lambda *_, **__: 1 / 0', "ZeroDivisionError"),
    ],
)
def test_an_error_is_the_last_that_a_command_says(tmp_path: Path, end: str, said: str) -> None:
    """DuckDB's module doesn't list after it what a thread in the background holds."""
    (tmp_path / "shop.py").write_text(WAITS + end + "\n")
    command = [sys.executable, "-m", "penstock.cli", "run", "shop.py", "--no-ui"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "nanobind" not in done.stderr
