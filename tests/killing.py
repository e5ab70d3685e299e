"""Ends processes as a crash does."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

__all__ = ["kill"]


def kill(process: subprocess.Popen[Any]) -> None:
    """Kills a process that runs; one that has ended by itself, such as by an error, fails the test."""
    process.kill()
    code = process.wait()
    assert code == -signal.SIGKILL, f"expected it to run until it is killed; it ended with {code}"
