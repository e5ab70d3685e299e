"""A process that imports what Spark's Python workers need while the JVM still starts.

    session.py    starts it (`python -m penstock.engine.spark.workers --standby`) and the JVM at once
    host.py       has it fork lanes that stand in for Spark's: the first batches don't wait for the JVM
    JVM           starts its daemon (`python -m penstock.engine.spark.workers`) when the first task comes
    the daemon    hands its standard streams and environment to the one that stands by, which
                  becomes the daemon; it then only waits, since the JVM ends the process that it has started

The imports take 2 s of processor time, as the JVM's own start does: on two cores both are over at once.
Where nothing stands by, or it is gone, the daemon imports for itself. It stands by for one daemon; a later
one, after a kill, is on its own.

The folder of its socket goes when it takes over, or ends. If it is killed together with its parent,
the folder stays until the next one is started: its lock is free then.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from penstock.engine.spark.scratch import is_held

__all__ = [
    "ADDRESS",
    "OPTION",
    "Begun",
    "begin",
    "begun",
    "end",
    "fork_lanes",
    "hand_over",
    "ready",
    "stand_by",
]

ADDRESS: Final = "PENSTOCK_STANDBY"
"""The environment variable with the socket's path."""
OPTION: Final = "--standby"
PREFIX: Final = "penstock-standby-"  # of a folder; a socket's path has 100 bytes at most
LOCK: Final = "lock"  # in it, held for as long as the process lives
STREAMS: Final = (0, 1, 2)
HEAD_BYTES: Final = 4
ANSWER_S: Final = 60.0
"""How long the process that stands by may take to import, or to read; then nothing does."""
COMMAND: Final = ("-m", "penstock.engine.spark.workers", OPTION)

_log = logging.getLogger(__name__)


class _Daemon(NamedTuple):
    """What the process that takes over has of the daemon: where it was, and how it was started."""

    environment: dict[str, str]
    arguments: list[str]
    path: list[str]
    folder: str


class Begun:
    """A process that stands by.

    Attributes:
        folder: with its socket.
        address: of that.
        process: itself.

    Raises:
        OSError: it can't be started, or the folder's path is too long for a socket.
    """

    def __init__(self, threads: dict[str, str], log: BinaryIO | None) -> None:
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.address = str(self.folder / "standby")
        try:
            self.process = self._started(threads, log)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _started(self, threads: dict[str, str], log: BinaryIO | None) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX) as listener, (self.folder / "unheld").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
                Path(lock.name).rename(self.folder / LOCK)
            listener.bind(self.address)
            listener.listen()
            return subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, *COMMAND, str(listener.fileno())],
                stderr=log,
                stdin=subprocess.PIPE,  # which ends when this process does
                env=os.environ | threads | {ADDRESS: self.address},
                pass_fds=[listener.fileno(), lock.fileno()],
                process_group=0,  # Ctrl-C is for the pipeline, and the daemon ends its group
            )

    @property
    def is_waiting(self) -> bool:
        """Whether it lives, and no daemon has taken it."""
        return self.process.poll() is None and self.folder.exists()

    def end(self) -> None:
        """Ends it, unless it has become a daemon, which the JVM ends."""
        assert self.process.stdin is not None
        if self.is_waiting:
            os.killpg(self.process.pid, signal.SIGKILL)  # and the lanes that stand in
            self.process.wait()
        self.process.stdin.close()
        if self.process.returncode is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _sweep() -> None:
    """Removes the folders of processes that were killed before they could do so, or their parents."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's
            if (folder / LOCK).exists() and not is_held(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)


_begun: list[Begun] = []  # those that haven't ended, the last one being of this process's JVM


def begin(threads: dict[str, str], log: BinaryIO | None = None) -> dict[str, str]:
    """Starts the process; the last one is let go.

    Args:
        threads: environment variables that libraries read when they are imported.
        log: for its standard error; None: this process's.

    Returns:
        The environment variable for the JVM; none where the process can't be started, as nothing needs it.
    """
    end()
    try:
        _begun.append(Begun(threads, log))
    except OSError as error:
        _log.debug("no standby process: %s", error)
        return {}
    return {ADDRESS: _begun[-1].address}


def ready(threads: dict[str, str], log: BinaryIO | None = None) -> dict[str, str]:
    """The environment variable for the JVM, of what stands by already; else as `begin`, of which these are
    the arguments.
    """
    one = begun()
    if one is not None and one.is_waiting:
        return {ADDRESS: one.address}
    return begin(threads, log)


def fork_lanes(work: Callable[[int], None], count: int) -> bool:
    """Has the process that stands by fork lanes, which work until Spark's take their places.

    Args:
        work: what a lane does, with its number; it is pickled.
        count: of lanes.

    Returns:
        Whether one stands by. It forks them once it has imported what they need.
    """
    one = begun()
    if one is None or not one.is_waiting:
        return False
    from pyspark import cloudpickle

    body = pickle.dumps((cloudpickle.dumps(work), count))  # type: ignore[no-untyped-call] # it has no types
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(one.address)
            connection.sendall(len(body).to_bytes(HEAD_BYTES, "big") + body)
    except OSError as error:
        _log.debug("no lanes stand in: %s", error)
        return False
    return True


def end() -> None:
    """Ends what still stands by."""
    for one in _begun:
        one.end()
    _begun[:] = [one for one in _begun if one.process.returncode is None]


def begun() -> Begun | None:
    """The process that was started last."""
    return _begun[-1] if _begun else None


def hand_over() -> bool:
    """In the daemon: hands it over to the process that stands by. It returns when that has ended.

    Returns:
        Whether there was one.
    """
    address = os.environ.pop(ADDRESS, None)
    if address is None:
        return False
    folder = os.getcwd()  # noqa: PTH109 - a text
    body = json.dumps(_Daemon(dict(os.environ), sys.argv, sys.path, folder)).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(address)
        socket.send_fds(connection, [len(body).to_bytes(HEAD_BYTES, "big")], STREAMS)
        connection.sendall(body)
        if connection.recv(1):  # it has taken over
            connection.settimeout(None)
            connection.recv(1)  # nothing, when it has ended
            return True
    return False


def stand_by(load: Callable[[], None]) -> bool:
    """In the process that stands by: forks lanes that are asked for, and takes over from a daemon.

    Args:
        load: the imports. A daemon may come meanwhile; it waits.

    Returns:
        Whether there was one; not if the parent of this process has ended.
    """
    address = os.environ.pop(ADDRESS)
    with socket.socket(fileno=int(sys.argv[-1])) as listener:
        load()
        while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
            connection, _ = listener.accept()
            head, streams, _, _ = socket.recv_fds(connection, HEAD_BYTES, len(STREAMS))
            body = _exactly(connection, int.from_bytes(head, "big"))
            if streams:  # a daemon's
                shutil.rmtree(Path(address).parent, ignore_errors=True)
                _become(connection, streams, _Daemon(*json.loads(body)))
                return True
            connection.close()
            _fork(listener, *pickle.loads(body))  # noqa: S301 - in a folder of this user's alone
    shutil.rmtree(Path(address).parent, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # lanes that stand in for a driver that was killed
    return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    body = bytearray()
    while len(body) < size and (part := connection.recv(size - len(body))):
        body += part
    return bytes(body)


def _fork(listener: socket.socket, work: bytes, count: int) -> None:
    """Forks lanes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for, as in PySpark's daemon
    for number in range(count):
        if os.fork():
            continue
        status = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)  # what functions print goes where that of Spark's workers goes
            listener.close()
            with contextlib.suppress(OSError, EOFError):  # the driver is gone, or has Spark's lanes
                pickle.loads(work)(number)  # noqa: S301 - as above
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is: this is a process's end
            traceback.print_exc()
        finally:
            os._exit(status)


def _become(connection: socket.socket, streams: list[int], daemon: _Daemon) -> None:
    for stream, own in zip(streams, STREAMS, strict=True):
        os.dup2(stream, own)
        os.close(stream)
    os.environ.clear()
    os.environ.update(daemon.environment)
    sys.argv[:], sys.path[:] = daemon.arguments, daemon.path
    os.chdir(daemon.folder)
    connection.send(b"!")
    connection.detach()  # open for as long as this process lives: its end ends the other one's wait
