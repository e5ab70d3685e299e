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

__all__ = ["RELOADED", "Reload", "program_fault", "without_once"]

TERMINAL: Final = "/dev/tty"
ONCE: Final = {"--rebuild": 1, "--from": 2}
"""Options that hold for the first start alone, with their words: done again, they throw results away."""
RELOADED: Final = "PENSTOCK_RELOADED"
"""In the environment of a program that was started by `restart`: SIGHUP is ignored then, without nohup."""


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
        self._again = without_once(again or sys.orig_argv)
        self._checking = threading.Lock()
        self._say: Callable[[str], None] = lambda _: None
        self._is_detached = False
        self.is_ready = threading.Event()

    @contextlib.contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """Takes SIGHUP until the block ends.

        Without the terminal that it began in, a pipeline ends: SIGHUP then means that it was closed. One that
        nohup has started continues.

        Args:
            say: prints a message for the user.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._say = say
        had_terminal = _has_terminal()
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._is_detached = os.environ.pop(RELOADED, None) is None and is_ignored

        def heard(*_: object) -> None:
            if had_terminal and not _has_terminal():
                if not self._is_detached:
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
        if not self._is_detached:
            os.environ[RELOADED] = "1"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *self._again[1:]])  # noqa: S606 - this program


def without_once(words: Sequence[str]) -> list[str]:
    """A command without the options of `ONCE`.

    >>> without_once(["penstock", "run", "shop.py", "--from", "monday", "--no-ui", "--rebuild"])
    ['penstock', 'run', 'shop.py', '--no-ui']
    """
    kept, skipped = [], 0
    for word in words:
        skipped = skipped or ONCE.get(word, 0) or int(word.startswith("--from="))
        if skipped:
            skipped -= 1
        else:
            kept.append(word)
    return kept


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
