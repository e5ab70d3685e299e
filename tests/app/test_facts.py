"""What a pipeline leaves in its directory for whoever wants to know how it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from penstock.app.facts import FILE, Facts, hold, read_facts, write_facts

FACTS = Facts(
    app="shop", pid=1, machine="m", directory="d", started_us=1, said_us=2, lag={"clicks": 3}
)
HOLDER = """
import sys
from pathlib import Path
from penstock.app.facts import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    """All fields; and nobody stands behind them."""
    write_facts(tmp_path, FACTS)
    found = read_facts(tmp_path)
    assert found is not None
    assert found.facts == FACTS
    assert not found.alive
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"app": "x"}', "null"])
def test_a_file_that_is_no_heartbeat_is_none(tmp_path: Path, content: str) -> None:
    """A directory of an older Penstock, or a damaged file, is no error."""
    assert read_facts(tmp_path) is None
    (tmp_path / FILE).write_text(content)
    assert read_facts(tmp_path) is None


def test_facts_of_a_newer_penstock_are_read(tmp_path: Path) -> None:
    """What isn't known here is left out."""
    write_facts(tmp_path, FACTS)
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace('{"app"', '{"mood":"fine","app"'))
    found = read_facts(tmp_path)
    assert found is not None
    assert found.facts == FACTS


def test_a_process_stands_behind_its_facts_until_it_ends_however(tmp_path: Path) -> None:
    """SIGKILL leaves no time to say goodbye; the system notices. Two may be there for a while."""
    write_facts(tmp_path, FACTS)
    with hold(tmp_path):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            for _ in range(2):  # to ask changes nothing
                assert read_facts(tmp_path).alive  # type: ignore[union-attr]
            holder.kill()
            holder.wait(PATIENCE_S)
            assert read_facts(tmp_path).alive  # type: ignore[union-attr]
    assert not read_facts(tmp_path).alive  # type: ignore[union-attr]
