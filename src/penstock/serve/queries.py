"""Queries in processes of their own, which end when their time is up.

A query that somebody types may take all memory, or never end, and no library can be interrupted
everywhere. So it runs next to the process that asks, never in it: a process (`penstock.serve.asked`) with
limits that the system enforces, and that is killed when a query takes too long or nobody waits for
its answer any more. One is kept for the next query: to start it takes some seconds. One that has not
given back the memory of its query (`worn`) is not kept, as the next query would lack that memory.

    parent -> child   a line of JSON: the query and how many rows are wanted
    child -> parent   a line of JSON: what follows, or the error, and whether the process is worn; then
                      the rows as an Arrow stream
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import psutil
import pyarrow as pa

from penstock import errors
from penstock.errors import LimitError, PenstockError
from penstock.serve.answers import Answer
from penstock.serve.questions import Question, Refusal, read_head

__all__ = ["Queries", "QueryLimits"]

START_SECONDS_MAX: Final = 120.0  # for a process to be ready, on a machine that is busy
POLL_S: Final = 0.05  # how soon it is noticed that nobody waits any more
READ_BYTES: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 32 << 20  # a browser's table; users who want more ask `penstock query`
ALLOCATORS: Final = {
    "DUCKDB_JE_MALLOC_CONF": "retain:false",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
"""The system limits what a process reserves, not what it uses. By default these allocators reserve
memory ahead, by the thread, and keep it when a query is over; then the limit refuses small queries."""


@dataclass(frozen=True)
class QueryLimits:
    """What a query may take.

    Attributes:
        seconds: until its answer is there; a process that has yet to start has more.
        memory_bytes: of DuckDB; the process as a whole may reserve twice as much in addition to what it
            does at rest.
        rows: of an answer.
        at_once: queries; the next one waits, and not for longer than its own seconds.
    """

    seconds: float = 10.0
    memory_bytes: int = min(1 << 30, psutil.virtual_memory().total // 4)
    rows: int = 10_000
    at_once: int = 2


class Queries:
    """Answers queries over the views of one pipeline until `close`. May be used by many threads.

    Args:
        where: as for `Views`.
        limits: of each query.
    """

    def __init__(self, where: str | Path, limits: QueryLimits | None = None) -> None:
        text = str(where)
        self._where = text if "://" in text else str(Path(text).absolute())
        self.limits = limits or QueryLimits()
        self._free = threading.BoundedSemaphore(self.limits.at_once)
        self._lock = threading.Lock()
        self._kept: _Process | None = None
        self._running: set[_Process] = set()
        self._closed = False

    def ask(self, query: str | Question, gone: Callable[[], bool] = lambda: False) -> Answer:
        """The beginning of a query's answer.

        Args:
            query: one SELECT, or a question.
            gone: asked often; when it is true, nobody waits for the answer any more.

        Raises:
            QueryError: the query can't be answered.
            LimitError: it takes too long or too much memory, or others keep all processes busy.
        """
        self._wait_for_turn(gone)
        try:
            if isinstance(query, str):
                query = Question(query, self.limits.rows, bytes_max=ANSWER_BYTES_MAX)
            return self._ask(query, gone)
        finally:
            self._free.release()

    def _wait_for_turn(self, gone: Callable[[], bool]) -> None:
        seconds = self.limits.seconds
        deadline = time.monotonic() + seconds
        while not self._free.acquire(timeout=min(seconds, POLL_S)):
            if gone():
                raise PenstockError("expected a client that waits for the answer; found none")
            if time.monotonic() >= deadline:
                raise LimitError(
                    f"expected one of {self.limits.at_once} queries to end within {seconds:g} s; found "
                    "them running. Cancel one, or ask again"
                )

    def _ask(self, query: Question, gone: Callable[[], bool]) -> Answer:
        process = self._take()
        try:
            return process.ask(query, self.limits, gone)
        finally:
            self._put(process)

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise PenstockError("expected queries to be asked before close; found them closed")
            process, self._kept = self._kept, None
            if process is not None and not process.is_alive:
                process.kill()
                process = None
            process = process or _Process(self._where, self.limits)
            self._running.add(process)
            return process

    def _put(self, process: _Process) -> None:
        """Keeps a process that has answered for the next query, unless there is one; ends the others."""
        with self._lock:
            self._running.discard(process)
            if process.is_ready and self._kept is None and not self._closed:
                self._kept = process
                return
        process.kill()

    def close(self) -> None:
        """Ends all processes, and with them the queries that still run."""
        with self._lock:
            self._closed = True
            ending = [*self._running, *([self._kept] if self._kept else [])]
            self._kept = None
        for process in ending:
            process.kill()


class _Process:
    """A process that answers one query after the other."""

    def __init__(self, where: str, limits: QueryLimits) -> None:
        # -P: a file of the user's that is called like a library's module is not to be imported.
        command = [sys.executable, "-P", "-m", "penstock.serve.asked", where]
        self._process = subprocess.Popen(  # noqa: S603 - it is this program
            [*command, str(limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the one who asks, who then ends this
            env={**ALLOCATORS, **os.environ},
        )
        self._known = bytearray()
        self._started = self.is_ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, query: Question, limits: QueryLimits, gone: Callable[[], bool]) -> Answer:
        self.is_ready = False
        if not self._started:
            self._line(time.monotonic() + START_SECONDS_MAX, gone, "start")  # says that it is there
            self._started = True
        deadline = time.monotonic() + limits.seconds
        what = f"answer within {limits.seconds:g} s (QUERY_SECONDS_MAX)"
        with contextlib.suppress(BrokenPipeError):  # reported below, as an end without an answer
            assert self._process.stdin is not None
            self._process.stdin.write(orjson.dumps(query) + b"\n")
            self._process.stdin.flush()
        head = read_head(self._line(deadline, gone, what))
        if isinstance(head, Refusal):
            self.is_ready = not head.worn
            raise _error(head)
        body = self._bytes(head.size, deadline, gone, what)
        self.is_ready = not head.worn
        with pa.ipc.open_stream(body) as stream:
            rows = stream.read_all()
        return Answer(
            rows,
            head.rows_total,
            tuple(head.parameters),
            tuple(head.types),
            head.version,
            head.since,
            head.failures,
        )

    def kill(self) -> None:
        """Ends the process at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _line(self, deadline: float, gone: Callable[[], bool], what: str) -> bytes:
        while (end := self._known.find(b"\n")) < 0:
            self._read(deadline, gone, what)
        line = bytes(self._known[:end])
        del self._known[: end + 1]
        return line

    def _bytes(self, count: int, deadline: float, gone: Callable[[], bool], what: str) -> pa.Buffer:
        while len(self._known) < count:
            self._read(deadline, gone, what)
        assert len(self._known) == count, "an answer ends what the process says"
        body, self._known = self._known, bytearray()  # it may be large: no copy
        return pa.py_buffer(body)

    def _read(self, deadline: float, gone: Callable[[], bool], what: str) -> None:
        """Reads what the process has written.

        Raises:
            LimitError: the time is up, or the process is gone. It is of no use then.
            PenstockError: nobody waits; likewise.
        """
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while not poll.poll(1_000 * POLL_S):
            if gone():
                raise PenstockError("expected a client that waits for the answer; found none")
            if time.monotonic() > deadline:
                raise LimitError(
                    f"expected the query to {what}; found it still running, and ended it. Ask for "
                    "fewer windows, or use `penstock query`, which has no limit"
                )
        try:
            data = os.read(file, READ_BYTES)
        except OSError:  # it was ended by another thread, and its pipe closed, since we looked
            data = b""
        if not data:
            raise LimitError(
                "expected the query's process to answer; found that it has ended "
                f"({_ending(self._process.wait())}). Request less at once, or use `penstock query`, "
                "which has no limit"
            )
        self._known += data


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _error(refusal: Refusal) -> PenstockError:
    kind: type[PenstockError] = getattr(errors, refusal.error, PenstockError)
    return kind(refusal.text)
