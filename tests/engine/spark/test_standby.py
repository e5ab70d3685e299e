"""What Spark's daemon finds imported already: handed over, or done without."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import wait_until

from penstock.engine.spark import standby

PATIENCE_S = 60
DAEMON = """
import os, sys
from penstock.engine.spark import standby
if not standby.hand_over():
    print("alone", os.getpid(), flush=True)
"""
STANDS_BY = """
import os, sys
from penstock.engine.spark import standby
if standby.stand_by(lambda: None):
    print("taken", os.getpid(), os.environ["WORD"], os.getcwd(), sys.argv[1:], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests' sessions in this process are left to these."""
    monkeypatch.setattr(standby, "_begun", [])


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[standby.Begun]:
    """A process that stands by, without the imports."""
    monkeypatch.setattr(standby, "COMMAND", ("-c", STANDS_BY))
    standby.begin({"WORD": "not this"})
    found = standby.begun()
    assert found is not None
    yield found
    found.end()
    found.process.wait(PATIENCE_S)


def daemon(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A daemon, as the JVM starts one."""
    return subprocess.Popen(
        [sys.executable, "-c", DAEMON, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        cwd=folder,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it says, once its input has ended."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    return said.strip()


def test_the_one_that_stands_by_becomes_the_daemon(waiting: standby.Begun, tmp_path: Path) -> None:
    """It has the daemon's streams, environment, arguments and folder, and ends with its input."""
    process = daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address})
    expected = f"taken {waiting.process.pid} this {tmp_path} ['pyspark.worker']"
    assert ended(process) == expected
    assert waiting.process.wait(PATIENCE_S) == 0
    assert not waiting.folder.exists()


def test_one_that_became_a_daemon_is_forgotten_when_it_has_ended(
    waiting: standby.Begun, tmp_path: Path
) -> None:
    """Nothing of it is left with who started it."""
    ended(daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address}))
    wait_until(lambda: standby.end() or standby.begun() is None)
    assert waiting.process.returncode is not None


def test_lanes_are_forked_until_a_daemon_comes(waiting: standby.Begun, tmp_path: Path) -> None:
    """Any number, as often as they are asked for; who comes after it gets none."""

    def work(number: int, name: str = "", folder: Path = tmp_path) -> None:
        (folder / f"{name}{number}").write_text("here")

    assert standby.fork_lanes(work, 2)
    assert standby.fork_lanes(functools.partial(work, name="again"), 1)
    process = daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address})
    assert ended(process).startswith(f"taken {waiting.process.pid} ")
    wait_until(lambda: all((tmp_path / name).exists() for name in ("0", "1", "again0")))
    assert not standby.fork_lanes(work, 1)


def test_only_one_daemon_is_taken_over(waiting: standby.Begun, tmp_path: Path) -> None:
    """The one after it imports for itself."""
    first = daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address})
    assert first.stdout is not None
    assert first.stdout.readline().startswith("taken")
    second = daemon(tmp_path, **{standby.ADDRESS: waiting.address})
    assert ended(second) == f"alone {second.pid}"
    ended(first)


def test_a_daemon_is_on_its_own_where_the_other_was_killed(
    waiting: standby.Begun, tmp_path: Path
) -> None:
    """Its socket may still be there."""
    waiting.process.kill()
    waiting.process.wait(PATIENCE_S)
    process = daemon(tmp_path, **{standby.ADDRESS: waiting.address})
    assert ended(process) == f"alone {process.pid}"


def test_a_daemon_ends_when_the_one_that_took_over_is_killed(
    waiting: standby.Begun, tmp_path: Path
) -> None:
    """So the JVM sees it, and starts another."""
    process = daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address})
    assert process.stdout is not None
    assert process.stdout.readline().startswith("taken")
    waiting.process.kill()
    assert process.wait(PATIENCE_S) == 0
    process.communicate()


def test_a_pipeline_starts_where_nothing_can_stand_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the folder for temporary files has a path that is too long for a socket."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert standby.begin({}) == {}
    assert standby.begun() is None
    assert not list(folder.iterdir())


def test_nobody_is_left_when_the_pipeline_ends_first(waiting: standby.Begun) -> None:
    """It hears that the process which has started it is gone."""
    assert waiting.process.stdin is not None
    waiting.process.stdin.close()
    assert waiting.process.wait(PATIENCE_S) == 0
    assert not waiting.folder.exists()


def test_the_next_one_removes_what_a_killed_one_left(waiting: standby.Begun) -> None:
    """Where whoever started it was killed too; the folder of one that stands by stays."""
    left = Path(tempfile.mkdtemp(prefix=standby.PREFIX))
    (left / standby.LOCK).touch()
    standby._sweep()
    assert not left.exists()
    assert waiting.folder.exists()


def test_what_still_stands_by_is_ended(waiting: standby.Begun) -> None:
    """Nothing of it is left."""
    standby.end()
    assert standby.begun() is None
    assert waiting.process.returncode is not None
    assert not waiting.folder.exists()


def test_what_has_become_a_daemon_is_left_to_the_jvm(
    waiting: standby.Begun, tmp_path: Path
) -> None:
    process = daemon(tmp_path, WORD="this", **{standby.ADDRESS: waiting.address})
    assert process.stdout is not None
    assert process.stdout.readline().startswith("taken")
    standby.end()
    assert standby.begun() is waiting
    assert waiting.process.poll() is None
    ended(process)


def test_workers_are_forked_with_every_operator_s_kernels() -> None:
    """Otherwise each worker would load, or compile, those of operators by itself."""
    code = (
        "from penstock.core import kernels\n"
        "from penstock.engine.spark import workers\n"
        "workers._load()\n"
        "print([one.path for one in kernels._KERNELS if one._made is None])"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
