"""SIGHUP to a running pipeline: its program is read again, and upgraded as a new start would.

A process of its own reads the program first. One that has an error is reported, and what runs continues.
Otherwise the pipeline stops after the batch in flight, and this process becomes the new one: the same
process id, arguments and environment, so that a service manager notices nothing. State that both programs
compute is kept; what is new is computed from the log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Reload", "program_fault"]

TERMINAL: Final = "/dev/tty"


class Reload:
    """Listens for SIGHUP while a pipeline runs.

    Args:
        file: the program.
        again: the command that starts it; None: whatever started this process.
        fault: says what is wrong with the program; None: nothing.
    """

    def __init__(
        self,
        file: Path,
        again: Sequence[str] | None = None,
        fault: Callable[[Path], str | None] | None = None,
    ) -> None:
        self._file, self._fault = file, fault or program_fault
        self._again = list(again or sys.orig_argv)
        self._checking = threading.Lock()
        self._say: Callable[[str], None] = lambda _: None
        self.is_ready = threading.Event()

    @contextlib.contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """Takes SIGHUP until the block ends.

        Without the terminal that it began in, a pipeline ends: SIGHUP then means that it was closed.

        Args:
            say: tells the user.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._say = say
        had_terminal = _has_terminal()

        def heard(*_: object) -> None:
            if had_terminal and not _has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                threading.Thread(target=self.check, name="penstock-reload", daemon=True).start()

        before = signal.signal(signal.SIGHUP, heard)
        try:
            yield
        finally:
            # Until the new program listens, another SIGHUP must not end the process.
            signal.signal(signal.SIGHUP, signal.SIG_IGN if self.is_ready.is_set() else before)

    def check(self) -> None:
        """Reads the program in a process of its own; where it is well, the pipeline is to end."""
        if not self._checking.acquire(blocking=False):
            return  # it is being read already
        try:
            self._say(f"reading {self._file} again")
            found = self._fault(self._file)
            if found is None:
                self.is_ready.set()
            else:
                self._say(f"{found}\nthe pipeline continues with the previous program")
        finally:
            self._checking.release()

    def restart(self) -> None:
        """Becomes the new process, if that was asked for; call it when everything is stopped."""
        if not self.is_ready.is_set():
            return
        self._say(f"restarting with {self._file}")
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *self._again[1:]])  # noqa: S606 - this program


def program_fault(file: Path) -> str | None:
    """What is wrong with a program, as a process of its own finds; None: nothing."""
    command = [sys.executable, "-m", "penstock.cli", "explain", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode == 0:
        return None
    return done.stderr.strip() or f"error: reading the program ended with code {done.returncode}"


def _has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
