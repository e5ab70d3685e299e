"""`penstock dev`: runs a pipeline, and restarts it when its program changes.

A changed program is first read by a process of its own. One that has an error is reported, and what
runs continues with the former program until the error is corrected.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from penstock.cli.support.errors import INTERRUPTED
from penstock.cli.support.reload import program_fault
from penstock.cli.support.tables import note
from penstock.errors import UserError

LOOK_S: Final = 0.3  # between two looks at the files
STOP_S_MAX: Final = 60.0  # for the batch in flight; then it is killed, which loses nothing
FILES_MAX: Final = 2_000  # that are watched: more is no folder of a program
PORT: Final = 8750  # of the page, or the next free one
PORTS_TRIED: Final = 20
SUFFIXES: Final = (".py", ".sql")
_NOT_OURS: Final = ("__pycache__", "node_modules", "site-packages")

Stamps = dict[Path, tuple[int, int]]
"""Of each file that is watched: when it was changed (ns) and its size (bytes)."""


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  penstock dev shop.py
  penstock dev shop.py --ingest "clicks=data/*.jsonl" --listen 127.0.0.1:9092
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def dev(file: Path, options: tuple[str, ...]) -> None:
    """Run the pipeline in FILE, and restart it when a program in its folder changes.

    OPTIONS are those of penstock run. The log and the state are kept: after a restart the pipeline
    continues, and new views are computed from the log.
    """
    if not file.is_file() or file.suffix not in SUFFIXES:
        raise UserError(f"expected a program such as shop.py or shop.sql; found {str(file)!r}")
    if "--seconds" in options:
        raise UserError("expected no --seconds, as dev runs until Ctrl-C; use penstock run")
    more = list(options)
    if "--no-ui" not in options and "--port" not in options:
        more += ["--port", str(_free_port())]
    penstock = [sys.executable, "-m", "penstock.cli"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    child = Restarted([*penstock, "run", str(file), *more])
    try:
        _watch(file, child, lambda: program_fault(file))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        child.stop()


class Restarted:
    """A child process that can be started again.

    Args:
        command: that is run.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts it, after the one before has stopped."""
        self.stop()
        self._child = subprocess.Popen(self._command)  # noqa: S603 - this program
        self.starts += 1

    def stop(self) -> None:
        """Ends it, after the batch in flight."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def ended(self) -> int | None:
        """The exit code, once, of a process that has ended by itself."""
        if self._child is None or (code := self._child.poll()) is None:
            return None
        self._child = None
        return code


def _watch(
    file: Path,
    child: Restarted,
    fault: Callable[[], str | None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Starts the child, and starts it again whenever a file changes and the program has no fault."""
    seen: Stamps = {}
    while True:
        now = stamps(file)
        if now != seen:
            changed = sorted(str(p) for p in {*now, *seen} if now.get(p) != seen.get(p))
            if seen:
                note(f"changed: {', '.join(changed)}")
            seen = now
            found = fault() if child.starts else None  # the first start says itself what is wrong
            if found is None:
                child.start()
            else:
                note(
                    f"{found}\nthe pipeline continues with the previous program; waiting for a change"
                )
        if (code := child.ended()) is not None:
            if code == 0:  # it was stopped from elsewhere
                return
            note("the pipeline has ended (see above); waiting for a change")
        pause(LOOK_S)


def stamps(file: Path) -> Stamps:
    """The programs in a file's folder and below, and when they were changed.

    Hidden folders, environments, pipelines' directories and tests are left out.
    """
    found: Stamps = {}
    for folder, folders, names in os.walk(file.parent):
        folders[:] = [
            one
            for one in sorted(folders)
            if not one.startswith(".") and not one.endswith(".penstock") and one not in _NOT_OURS
        ]
        if (Path(folder) / "pyvenv.cfg").exists():
            folders[:] = []
            continue
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("test_") and len(found) < FILES_MAX:
                path = Path(folder) / name
                try:
                    about = path.stat()
                except OSError:  # an editor replaces it just now
                    continue
                found[path] = about.st_mtime_ns, about.st_size
    return found


def _free_port() -> int:
    """The page's usual port or the next free one: the same after each restart."""
    for port in range(PORT, PORT + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return PORT  # `penstock run` says that it is taken
