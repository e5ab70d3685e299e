"""SIGHUP: a running pipeline's program is read again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running.test_run import PATIENCE_S, PROGRAM, rows, send
from tests.patience import wait_until

import penstock as ps
from penstock.cli.support import reload as reloading
from penstock.cli.support.address import find_broker
from penstock.cli.support.host import Hosting, host
from penstock.cli.support.reload import RELOADED, Reload, program_fault


def test_a_program_with_an_error_changes_nothing(tmp_path: Path) -> None:
    """It is reported; the pipeline continues until a correct one is read."""
    said: list[str] = []
    faults = iter(["error: no such column", None])
    reload = Reload(tmp_path / "shop.py", ["python"], lambda _: next(faults))
    with reload.listening(said.append):
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: len(said) == 2, "the report")
        assert said[1].startswith("error: no such column\nthe pipeline continues")
        reload.restart()  # nothing: it isn't ready
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(reload.is_ready.is_set, "the second program")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_the_new_process_has_the_same_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter, its options and the program's; a savepoint isn't returned to again."""
    called: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: called.append((path, words)))
    monkeypatch.setenv(RELOADED, "")
    words = ["python3", "-m", "penstock.cli", "run", "--from", "a", "x.py", "--rebuild", "--no-ui"]
    reload = Reload(tmp_path, words, lambda _: None)
    reload.check()
    reload.restart()
    words = [sys.executable, "-m", "penstock.cli", "run", "x.py", "--no-ui"]
    assert called == [(sys.executable, words)]


def test_a_pipeline_that_is_stopped_meanwhile_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while the last batch is finished is the newer wish."""
    called: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, _: called.append(path))
    reload = Reload(tmp_path, ["python"], lambda _: None)
    app = ps.App("stopped", directory=tmp_path / "stopped")

    def run(*_: object, **__: object) -> None:
        reload.is_ready.set()
        app.stop()

    monkeypatch.setattr(app, "run", run)
    host(app, Hosting(ui=False, reload=reload))
    assert called == []
    assert app.is_stopping


@pytest.mark.parametrize(
    ("handler", "reloaded", "ends"),
    [(signal.SIG_DFL, None, 1), (signal.SIG_IGN, None, 0), (signal.SIG_IGN, "1", 1)],
    ids=["started", "nohup", "reloaded"],
)
def test_a_closed_terminal_ends_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler, reloaded, ends
) -> None:
    """Nobody asked for another program: SIGTERM, which ends it after the batch in flight; not with nohup."""
    looked = []
    monkeypatch.setattr(reloading, "_has_terminal", lambda: [looked.append(0), len(looked) == 1][1])
    monkeypatch.delenv(RELOADED, raising=False)
    if reloaded:
        monkeypatch.setenv(RELOADED, reloaded)
    ended: list[int] = []
    terminate = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    hang_up = signal.signal(signal.SIGHUP, handler)
    try:
        with Reload(tmp_path, ["python"], lambda _: None).listening(lambda _: None):
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: len(looked) == 2, "the signal")
            wait_until(lambda: len(ended) == ends, "the end")
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGHUP, hang_up)


def test_faults_are_those_of_the_command_line(tmp_path: Path) -> None:
    """With the line of the program."""
    (tmp_path / "wrong.py").write_text(
        "import penstock as ps\nps.App('x').stream('y', 'a STRIN')\n"
    )
    assert "line 2" in str(program_fault(tmp_path / "wrong.py"))


@pytest.mark.spark
@pytest.mark.slow
def test_a_running_pipeline_gets_a_view(tmp_path: Path) -> None:
    """A wrong program is passed over; a right one is taken up by the same process, with all rows once."""
    program, stderr = tmp_path / "two.py", tmp_path / "stderr"
    program.write_text(PROGRAM)
    directory = tmp_path / "two.penstock"
    command = [sys.executable, "-m", "penstock.cli", "run", "two.py", "--no-ui"]
    with stderr.open("wb") as file:
        child = subprocess.Popen(
            command, cwd=tmp_path, stderr=file, stdout=subprocess.DEVNULL, start_new_session=True
        )
    try:
        wait_until(lambda: b"the log is at" in stderr.read_bytes(), patience_s=PATIENCE_S)
        send(find_broker(None, {}, tmp_path), 2, 3)
        wait_until(lambda: rows(directory, "two") == [("tea", 5)], patience_s=PATIENCE_S)
        program.write_text(PROGRAM.replace('"one"', "one"))
        child.send_signal(signal.SIGHUP)
        continues = b"the pipeline continues with the previous program"
        wait_until(lambda: continues in stderr.read_bytes(), patience_s=PATIENCE_S)
        program.write_text(
            f'{PROGRAM}\napp.view("all", sales.group_by().agg(n=ps.sum("n"), m=ps.count()))\n'
        )
        child.send_signal(signal.SIGHUP)
        found = lambda: str(rows(directory, "all") or stderr.read_text())  # noqa: E731
        wait_until(
            lambda: b"restarting with two.py" in stderr.read_bytes(), found, patience_s=PATIENCE_S
        )
        wait_until(
            lambda: "\nthe log is at" in stderr.read_text().partition("restarting")[2],
            patience_s=PATIENCE_S,
        )
        send(find_broker(None, {}, tmp_path), 10)
        wait_until(lambda: rows(directory, "two") == [("tea", 15)], found, patience_s=PATIENCE_S)
        assert rows_of_all(directory) == (15, 3)
        child.terminate()
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()


def rows_of_all(directory: Path) -> tuple[object, ...]:
    """The one row of the view without keys."""
    from penstock.serve import Views

    [row] = Views(directory).table("all").to_pylist()
    return tuple(row.values())
