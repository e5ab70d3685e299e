"""Folders for the temporary files of Spark's JVM: one for each start, under the pipeline's own.

    FOLDER/tmp/lock        held for the moment in which folders are made and removed
    FOLDER/tmp/NAME/lock   held by the process that has started the JVM, for as long as it lives

A JVM that ends in order removes its files; a killed one leaves them, some hundred kilobytes each time. The
system lets go of a lock when its process ends, however it does. So a process that starts a JVM removes
the folders that no process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["begin", "is_held"]

LOCK: Final = "lock"
_held: dict[
    Path, int
] = {}  # by pipeline: the lock of this process's last JVM; PySpark has one at a time


def begin(folder: Path) -> Path:
    """A folder for a JVM that is about to be started; those of JVMs that are gone are removed.

    Args:
        folder: of Spark's files of a pipeline. The JVM that this process has started for it before is gone.

    Raises:
        OSError: folders can't be made.
    """
    home = (folder / "tmp").absolute()
    home.mkdir(parents=True, exist_ok=True)
    last = _held.pop(home, None)
    if last is not None:
        os.close(last)
    turn = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(turn, fcntl.LOCK_EX)
        for one in home.iterdir():
            if one.is_dir() and _is_free(one / LOCK):
                shutil.rmtree(one, ignore_errors=True)
        made = Path(tempfile.mkdtemp(dir=home))
        _held[home] = os.open(made / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            fcntl.flock(_held[home], fcntl.LOCK_EX)
    finally:
        os.close(turn)
    return made


def is_held(path: Path) -> bool:
    """Whether a process holds a lock.

    Raises:
        OSError: it can't be found out.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _is_free(path: Path) -> bool:
    try:
        return not is_held(path)
    except OSError:
        return False
