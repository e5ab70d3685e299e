"""A view's changes as they are committed: NDJSON, or server-sent events.

A message brings the reader's copy of the view from one committed version to a later one:

    {"version": 17, "since": 16, "changes": [[-1, {"name": "Ada", "n": 1}], [1, {"name": "Ada", "n": 2}]]}

The number is a weight: how many equal rows have come, or gone where it is negative. `warnings`, if there are
any, say what failed in the rows that were compared, and is NULL. Where `since` is null
the rows are all there are, and replace the copy. A reader that is slow gets the versions meanwhile in one
message, and nothing waits for it: it reads committed state. After an interruption it continues from the
last version that it has seen, `?from=` or `Last-Event-ID`; if that isn't kept any more, `since` is null. So
it is where a machine that stopped has lost the last versions: the version that is left replaces the copy, and
those that are made again follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import LimitError, PenstockError, QueryError, UserError
from penstock.serve.shown.values import record_values
from penstock.web.jsons import dumps

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.serve import Answer, Question
    from penstock.serve.arrivals import Arrivals

__all__ = ["Changes", "changes_line"]

SUBSCRIBERS_MAX: Final = 32  # open streams: each compares versions
STOP_S: Final = 0.2  # between two looks whether the server stops
HEARTBEAT_S: Final = 5.0  # something at least this often, so that both sides see a dead connection
BYTES_MAX: Final = 64 << 20  # of a message's rows in Arrow


class UnknownViewError(QueryError):
    """No view has that name."""


class Versions(Protocol):
    """Committed views whose versions can be compared."""

    @property
    def version(self) -> int:
        """The last committed version."""
        ...

    def names(self) -> list[str]:
        """The views' names."""
        ...

    def arrivals(self, call: Callable[[], None]) -> Arrivals:
        """Calls, in another thread, when a version is committed."""
        ...

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        """Answers a question."""
        ...


def changes_line(answer: Answer) -> bytes:
    """A message of a view's changes, without the end of its line."""
    table = answer.table
    names = table.column_names[:-1]
    *columns, weights = [record_values(column) for column in table.columns]
    rows = [
        [weight, dict(zip(names, row, strict=True))]
        for weight, *row in zip(weights, *columns, strict=True)
    ]
    more = {"warnings": answer.warnings} if answer.warnings else {}
    return dumps({"version": answer.version, "since": answer.since, "changes": rows, **more})


class Changes:
    """The endpoint of views' changes.

    Args:
        views: committed views; None where there are none.
        stopping: when set, streams end.
    """

    def __init__(self, views: Versions | None, stopping: threading.Event) -> None:
        self._views, self._stopping = views, stopping
        self._open = 0
        self._turn = asyncio.Lock()  # one comparison at a time: the pipeline needs the machine more
        self._newest: tuple[tuple[str, int | None, int], tuple[int, bytes]] | None = None

    async def changes(self, request: Request) -> Response:
        """GET /api/views/{name}/changes."""
        name = request.path_params["name"]
        given = request.headers.get("last-event-id") or request.query_params.get("from")
        since, until = _version(given, "from"), _version(request.query_params.get("until"), "until")
        if self._views is None or name not in await asyncio.to_thread(self._views.names):
            raise UnknownViewError(
                f"expected a committed view; found {name!r}, which doesn't exist"
            )
        if self._open >= SUBSCRIBERS_MAX:
            raise LimitError(
                f"expected at most {SUBSCRIBERS_MAX} open streams of changes (SUBSCRIBERS_MAX); found "
                "that many. Close some"
            )
        as_events = "text/event-stream" in request.headers.get("accept", "")
        lines = self._lines(name, since, until, as_events=as_events)
        kind = "text/event-stream" if as_events else "application/x-ndjson"
        return StreamingResponse(lines, media_type=kind, headers={"X-Accel-Buffering": "no"})

    async def _lines(
        self, name: str, since: int | None, until: int | None, *, as_events: bool
    ) -> AsyncIterator[bytes]:
        views = self._views
        assert views is not None
        self._open += 1
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(woken.set)

        arrivals = views.arrivals(wake)
        said_s = looked_s = loop.time()
        try:
            while not self._stopping.is_set() and (until is None or (since or 0) < until):
                woken.clear()
                newest = await asyncio.to_thread(lambda: views.version)
                looked_s = loop.time()
                if newest and newest != since:
                    since, line = await self._between(name, since, newest)
                    said_s = loop.time()
                    yield b"id: %d\ndata: %s\n\n" % (since, line) if as_events else line + b"\n"
                    continue
                while not self._stopping.is_set() and not woken.is_set():
                    left = looked_s + arrivals.pause_s() - loop.time()
                    if left <= 0:
                        break
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), min(left, STOP_S))
                    if loop.time() - said_s >= HEARTBEAT_S:
                        said_s = loop.time()
                        yield b":\n\n" if as_events else b"\n"
            if as_events:
                yield b"event: end\ndata: {}\n\n"
        except PenstockError as error:
            said = orjson.dumps({"error": str(error)})
            yield b"event: error\ndata: %s\n\n" % said if as_events else said + b"\n"
        finally:
            arrivals.close()
            self._open -= 1
            if not self._open:
                self._newest = None  # nobody shares it

    async def _between(self, name: str, since: int | None, newest: int) -> tuple[int, bytes]:
        """A version and the message that leads to it; readers that ask for the same share them."""
        from penstock.serve import Question

        async with self._turn:
            key = (name, since, newest)
            if self._newest is None or self._newest[0] != key:
                # Of the last version by then: `newest` may not be kept any more.
                question = Question(name, 0, kind="changes", since=since, bytes_max=BYTES_MAX)
                assert self._views is not None
                answer: Answer = await asyncio.to_thread(
                    self._views.ask, question, self._stopping.is_set
                )
                line = await asyncio.to_thread(changes_line, answer)
                self._newest = key, (answer.version, line)
            return self._newest[1]


def _version(text: str | None, name: str) -> int | None:
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UserError(f"expected ?{name}= a version's number; found {text!r}")
    return int(text) or None


def waits(request: Request) -> tuple[str, float] | None:
    """The write that an answer is to have seen, and how many seconds to wait for it at most.

    Raises:
        UserError: the header makes no sense.
    """
    token = request.headers.get("penstock-after") or request.query_params.get("after")
    if not token:
        return None
    text: Any = request.headers.get("penstock-wait") or request.query_params.get("wait") or "10"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 60:
        raise UserError(f"expected Penstock-Wait from 0 to 60 seconds; found {text!r}")
    return token, seconds
