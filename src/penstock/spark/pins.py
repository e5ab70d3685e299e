"""Pins: a view in one version, kept for as long as Spark needs it.

A pipeline deletes files of old versions, some seconds after they have been replaced. What Spark plans
now it may read later, and the changes of a view are what differs from an earlier version, maybe from
before a restart. So a pin is a directory of its own next to the state, with hard links to the view's
files, and `pin.json`, written last, which says what they are. Nothing that the pipeline does touches it.

    state/pins/NAME/pin.json
    state/pins/NAME/runs/…        links

State that isn't on a local disk is copied for streams, and read as it is in batches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa

from penstock.engine.record.values import by_number
from penstock.engine.store import open_files, sealed, unsealed
from penstock.errors import QueryError
from penstock.serve import ViewPart
from penstock.serve.answers import Counting, logged
from penstock.state import LocalStateFiles, StateFiles
from penstock.state.garbage import live

__all__ = ["Pin", "batch_name", "digest", "drop_before", "drop_old", "find", "make"]

FOLDER: Final = "pins"
DESCRIPTION: Final = "pin.json"
BATCH_SECONDS_MAX: Final = 3600.0
"""How long the pins of batches stay: nobody says when a DataFrame is used for the last time."""
BATCHES: Final = "batches"
"""The folder of batches' pins; streams have folders of their own, which they clean."""


@dataclass(frozen=True)
class Pin:
    """Where a view's files are, and what they are. Goes to other processes.

    Attributes:
        files: path or URI of the directory that they are under.
        part: the view in one version.
    """

    files: str
    part: ViewPart

    def open(self) -> StateFiles:
        """The files."""
        return open_files(self.files)

    def read(self, view: str, window_from_us: int | None = None) -> Iterator[pa.Table]:
        """The rows; what fails in them is logged in the task that reads them.

        Args:
            view: its name.
            window_from_us: omits windows that begin earlier.
        """
        counting = Counting(view)
        yield from self.part.read(self.open(), window_from_us, counting)
        logged(_state_of(self.files))(view, counting.failures)


def _state_of(files: str) -> str:
    """The state that a pin is of: pins of one state are many."""
    return files.partition(f"/{FOLDER}/")[0]


def make(state: str, part: ViewPart, name: str) -> Pin:
    """Pins a view; the same again if it is there.

    Args:
        state: path or URI of the pipeline's state.
        part: the view, as it is now.
        name: of the pin, with the folder that it is in.

    Raises:
        FileNotFoundError: the version is gone already; take the newest.
    """
    target = f"{state.rstrip('/')}/{FOLDER}/{name}"
    files, theirs = open_files(target), open_files(state)
    if not files.exists(DESCRIPTION):
        for path in live(part.traces.values()):
            if isinstance(files, LocalStateFiles) and isinstance(theirs, LocalStateFiles):
                _link(theirs.directory / path, files.directory / path)
            else:
                files.create(path, theirs.read(path))
        content = {
            "version": part.version,
            "spec": part.spec,
            "traces": part.traces,
            "steps": part.steps,
        }
        files.create(DESCRIPTION, sealed(content))
    elif isinstance(files, LocalStateFiles):
        os.utime(files.directory)
    return Pin(target, part)


def find(state: str, name: str) -> Pin:
    """A pin that was made before.

    Raises:
        QueryError: it is gone.
    """
    target = f"{state.rstrip('/')}/{FOLDER}/{name}"
    try:
        stored = unsealed(bytes(open_files(target).read(DESCRIPTION)), f"{target}/{DESCRIPTION}")
    except FileNotFoundError:
        raise QueryError(
            f"expected what the stream has read of the view in {target}; found nothing there. Start the "
            "stream again with a new checkpoint"
        ) from None
    part = ViewPart(
        stored["version"], stored["spec"], by_number(stored["traces"]), tuple(stored["steps"])
    )
    return Pin(target, part)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP}:
            raise
        shutil.copyfile(source, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def batch_name(part: ViewPart) -> str:
    """The name of a batch's pin: all readers of the same batch use it."""
    return f"{BATCHES}/{part.version}-{digest(part)}"


def digest(part: ViewPart) -> str:
    """Of what a view is made of."""
    body = orjson.dumps(
        [part.spec, part.traces, part.steps], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    )
    return hashlib.blake2b(body, digest_size=8).hexdigest()


def drop_before(state: str, folder: str, kept: str) -> None:
    """Deletes a stream's pins whose names are less than that of one that is kept."""
    files = open_files(f"{state.rstrip('/')}/{FOLDER}/{folder}")
    if isinstance(files, LocalStateFiles):
        for one in files.directory.glob("*"):
            if one.name < kept:
                shutil.rmtree(one, ignore_errors=True)
        return
    for path in files.list(""):
        if path.partition("/")[0] < kept:
            files.delete(path)


def drop_old(state: str, now_s: float | None = None) -> None:
    """Deletes batches' pins that nobody has asked for in a while, on a local disk."""
    files = open_files(f"{state.rstrip('/')}/{FOLDER}/{BATCHES}")
    if isinstance(files, LocalStateFiles):
        since = (time.time() if now_s is None else now_s) - BATCH_SECONDS_MAX
        for one in files.directory.glob("*"):
            if one.stat().st_mtime < since:
                shutil.rmtree(one, ignore_errors=True)
