"""The JSON endpoints: status, views, their charts, queries, events."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, TypeVar

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.core.time import duration_us, moment_us
from penstock.errors import LimitError, QueryError, UserError
from penstock.serve.shown.series import WINDOWS_MAX, Lines, key_columns, measures, series
from penstock.serve.shown.values import kind
from penstock.web.changes import UnknownViewError, waits
from penstock.web.export import EXPORT_ROWS_MAX, FORMATS, exported
from penstock.web.jsons import TableJson, dumps, table_json
from penstock.web.metrics import METRICS_TYPE, metrics_text

if TYPE_CHECKING:
    from penstock.engine.explain import Arranged
    from penstock.serve import (
        Answer,
        Failure,
        Question,
    )  # loads the engine, which a page over other views doesn't need
    from penstock.serve.arrivals import Arrivals
    from penstock.web.status import Status as StatusJson

ROWS_MAX: Final = 10_000  # rows of one answer: what a page can show and a browser can hold
ROWS_DEFAULT: Final = 500
READ_SECONDS_MAX: Final = 10.0  # to read a view: a page that waits longer looks dead
QUERY_CHARS_MAX: Final = 20_000  # of SQL: a GET line's worth
QUERIES_MAX: Final = 8  # that run or wait for their turn
WORKERS: Final = 2  # threads that read views: the pipeline needs the machine more
EVENT_CLIENTS_MAX: Final = 32  # open event streams: each polls
POLL_S: Final = 0.2  # how often a new version, or that a browser has gone, is looked for
HEARTBEAT_S: Final = 2.0  # an event at least this often, so that the page sees a dead server
Graph: TypeAlias = Callable[[], "Arranged | None"]
"""Gives where everything of the pipeline's drawing is (`penstock.app.read_graph`); None: it isn't known."""
T = TypeVar("T")


class ViewJson(TypedDict):
    """A view: its name, how many rows it has, its columns, and which are keys and which can be drawn."""

    name: str
    rows: int
    keys: list[str]
    measures: list[str]
    columns: list[dict[str, str]]
    warnings: list[str]


class ViewRows(TableJson):
    """The first rows of a view, and how many it has."""

    name: str
    rows_total: int
    warnings: list[str]


class ViewLines(Lines):
    """The lines of a view's chart."""

    name: str


class Status(Protocol):
    """Says what the pipeline does now: `StatusBoard.status`."""

    def __call__(self, *, history: bool = False) -> StatusJson:
        """What the status board says."""
        ...


class ViewSource(Protocol):
    """Committed views: `penstock.serve.Views`, or a test's."""

    @property
    def version(self) -> int:
        """The last committed version."""
        ...

    def names(self) -> list[str]:
        """The views' names."""
        ...

    def keys(self, name: str) -> list[str] | None:
        """A view's grouping columns; None where it can't say."""
        ...

    def every_us(self, name: str) -> int | None:
        """From the start of one of a view's windows to the next one's; None where it can't say."""
        ...

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """A view's rows."""
        ...

    def failed(self, name: str) -> Sequence[Failure]:
        """What failed in a view when it was last read."""
        ...

    def wait_for(self, token: str, timeout: float, gone: Callable[[], bool]) -> int:
        """Waits for a version that has seen a write: `Views.wait_for`."""
        ...

    def arrivals(self, call: Callable[[], None]) -> Arrivals:
        """Calls, in another thread, when a version is committed: `Views.arrivals`."""
        ...

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        """The answer to a SELECT over the views, all of one version: `Queries.ask`."""
        ...


def json_response(value: Any, status: int = 200) -> Response:
    """A value as a JSON answer."""
    return Response(dumps(value), status, media_type="application/json")


class Api:
    """The JSON endpoints. Views are read in a small pool of threads, never on the event loop.

    What takes too long is reported to the client. A query is ended as well; the reading of a view
    continues, but only once: clients that ask for the same wait for the same.
    """

    def __init__(
        self,
        views: ViewSource | None,
        status: Status,
        stopping: threading.Event,
        graph: Graph = lambda: None,
    ) -> None:
        self._views = views
        self._graph = graph
        self._status = status
        self._stopping = stopping
        self._pool = ThreadPoolExecutor(WORKERS, "penstock-web")
        self._asking = ThreadPoolExecutor(QUERIES_MAX, "penstock-query")
        self._asked = 0
        self._reading: dict[Hashable, asyncio.Future[Any]] = {}
        self._clients = 0
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[int, pa.Table]] = {}

    async def _read(self, call: Callable[..., T], *arguments: Hashable) -> T:
        key = (call.__name__, *arguments)
        if key not in self._reading:
            loop = asyncio.get_running_loop()
            begun = loop.run_in_executor(self._pool, partial(call, *arguments))
            begun.add_done_callback(partial(self._has_read, key))
            self._reading[key] = begun
        reading: asyncio.Future[T] = self._reading[key]
        try:
            return await asyncio.wait_for(asyncio.shield(reading), READ_SECONDS_MAX)
        except TimeoutError:
            raise LimitError(
                f"expected the view to be read within {READ_SECONDS_MAX:g} s (READ_SECONDS_MAX); found "
                "that it takes longer. Select what you need with SQL, or use `penstock query`"
            ) from None

    def _has_read(self, key: Hashable, reading: asyncio.Future[Any]) -> None:
        del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # seen, even where nobody waits for it any more

    async def status(self, _request: Request) -> Response:
        """GET /api/status."""
        return json_response(await asyncio.to_thread(self._status, history=True))

    async def graph(self, _request: Request) -> Response:
        """GET /api/graph."""
        found = await asyncio.to_thread(self._graph)
        return json_response(found or {"width": 0, "height": 0, "boxes": [], "lines": []})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        status = await asyncio.to_thread(self._status, history=False)
        return Response(metrics_text(status), media_type=METRICS_TYPE)

    async def views(self, _request: Request) -> Response:
        """GET /api/views."""
        return json_response(await self._read(self._describe))

    def _describe(self) -> dict[str, list[ViewJson]]:
        if self._views is None:
            return {"views": []}
        return {"views": [self._describe_one(name) for name in self._views.names()]}

    def _describe_one(self, name: str) -> ViewJson:
        table = self._table(name, None)
        keys = key_columns(table, self._keys(name))
        return {
            "name": name,
            "rows": table.num_rows,
            "keys": keys,
            "measures": measures(table, keys),
            "columns": [{"name": f.name, "kind": kind(f.type)} for f in table.schema],
            "warnings": self._warnings(name),
        }

    def _warnings(self, name: str) -> list[str]:
        """What is NULL or missing in a view, since it failed."""
        return [] if self._views is None else [one.text for one in self._views.failed(name)]

    def _keys(self, name: str) -> list[str] | None:
        return None if self._views is None else self._views.keys(name)

    def _table(self, name: str, since_us: int | None) -> pa.Table:
        """A view's rows. Those of one version are read once, for all pages and charts."""
        if self._views is None or name not in self._views.names():
            known = ", ".join(self._views.names()) if self._views is not None else ""
            raise UnknownViewError(f"expected a view among: {known or 'none yet'}; found {name!r}")
        if since_us is not None:
            return self._views.table(name, window_from_us=since_us)
        version = self._views.version
        with self._lock:
            kept = self._tables.get(name)
        if kept is None or kept[0] != version:
            kept = (version, self._views.table(name))
            with self._lock:
                self._tables[name] = kept
        return kept[1]

    async def view(self, request: Request) -> Response:
        """GET /api/views/{name}."""
        name = request.path_params["name"]
        since = _instant(request, "since")
        limit = _number(request, "limit", ROWS_DEFAULT, ROWS_MAX)
        return json_response(await self._read(self._rows, name, since, limit))

    def _rows(self, name: str, since_us: int | None, limit: int) -> ViewRows:
        table = self._table(name, since_us)
        rows = table.num_rows
        if "window_start" in table.column_names:
            table = table.sort_by([("window_start", "descending")])
        page = table_json(table.slice(0, limit))
        return {"name": name, "rows_total": rows, "warnings": self._warnings(name), **page}

    async def series(self, request: Request) -> Response:
        """GET /api/views/{name}/series."""
        name = request.path_params["name"]
        top = _number(request, "top", 8, 24)
        windows = _number(request, "windows", 240, WINDOWS_MAX)
        measure = request.query_params.get("measure") or None
        stretch = request.query_params.get("range")
        range_us = None if not stretch else duration_us(stretch)
        bounds = (_instant(request, "from"), _instant(request, "to"))
        asked = (name, measure, top, windows, range_us, *bounds)
        return json_response(await self._read(self._lines, *asked))

    def _lines(
        self,
        name: str,
        measure: str | None,
        top: int,
        windows: int,
        range_us: int | None,
        from_us: int | None,
        to_us: int | None,
    ) -> ViewLines:
        table = self._table(name, None)
        assert self._views is not None, "it has such a table"
        keys, every_us = self._views.keys(name), self._views.every_us(name)
        lines = series(
            table,
            keys=keys,
            every_us=every_us,
            measure=measure,
            top=top,
            windows=windows,
            range_us=range_us,
            from_us=from_us,
            to_us=to_us,
        )
        return {"name": name, **lines}

    async def export(self, request: Request) -> Response:
        """GET /api/views/{name}/export."""
        name, form = request.path_params["name"], request.query_params.get("format", "csv")
        table = await self._read(self._table, name, None)
        if table.num_rows > EXPORT_ROWS_MAX:
            raise LimitError(
                f"expected a view of at most {EXPORT_ROWS_MAX:,} rows (EXPORT_ROWS_MAX); found "
                f"{table.num_rows:,}. Use penstock query --format csv"
            )
        return await asyncio.to_thread(exported, table, name, form, self._warnings(name))

    async def query(self, request: Request) -> Response:
        """GET /api/query; a query whose asker has gone is ended."""
        sql = request.query_params.get("sql", "").strip()
        if not sql or len(sql) > QUERY_CHARS_MAX:
            raise QueryError(
                f"expected ?sql=SELECT … of at most {QUERY_CHARS_MAX} characters "
                f"(QUERY_CHARS_MAX); found {len(sql)} characters"
            )
        form = request.query_params.get("format")
        if form is not None and form not in FORMATS:
            raise UserError(f"expected ?format= among {', '.join(FORMATS)}; found {form!r}")
        if self._views is None:
            raise QueryError("expected committed views; found none yet. Wait for the first batch")
        if self._asked >= QUERIES_MAX:
            raise LimitError(
                f"expected at most {QUERIES_MAX} queries at a time (QUERIES_MAX); found that many. "
                "Try again when one has ended"
            )
        gone = threading.Event()
        self._asked += 1
        try:
            loop = asyncio.get_running_loop()
            ask = partial(_after, self._views, waits(request), sql, gone.is_set)
            answer = loop.run_in_executor(self._asking, ask)
            while not (await asyncio.wait({answer}, timeout=POLL_S))[0]:
                if self._stopping.is_set() or await request.is_disconnected():
                    gone.set()
            found = await answer
            table, rows_total = found.table, found.rows_total
        finally:
            gone.set()
            self._asked -= 1
        if form is not None:
            if rows_total is None or rows_total > table.num_rows:
                raise LimitError(
                    f"expected an answer of at most {table.num_rows:,} rows to export; found more. "
                    "Add a LIMIT, or use penstock query --format csv, which has no limit"
                )
            return await asyncio.to_thread(exported, table, "query", form, found.warnings)
        page = await asyncio.to_thread(table_json, table)
        return json_response({"rows_total": rows_total, "warnings": found.warnings, **page})

    async def events(self, _request: Request) -> Response:
        """GET /api/events."""
        if self._clients >= EVENT_CLIENTS_MAX:
            raise LimitError(
                f"expected at most {EVENT_CLIENTS_MAX} open pages (EVENT_CLIENTS_MAX); "
                "close some, or ask /api/status"
            )
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[bytes]:
        """One event for each change, and one now and then to say that we are here."""
        self._clients += 1
        try:
            yield b"retry: 1000\n\n"
            seen: object = object()
            quiet_s = 0.0
            while not self._stopping.is_set():
                status = await asyncio.to_thread(self._status, history=False)
                mark = (status.get("version"), status.get("state", {}).get("name"))
                if mark != seen or quiet_s >= HEARTBEAT_S:
                    seen, quiet_s = mark, 0.0
                    yield b"event: status\ndata: " + dumps(status) + b"\n\n"
                await asyncio.sleep(POLL_S)
                quiet_s += POLL_S
            yield b"event: bye\ndata: {}\n\n"
        finally:
            self._clients -= 1


def _after(
    views: ViewSource,
    write: tuple[str, float] | None,
    query: str,
    gone: Callable[[], bool],
) -> Answer:
    """The answer to a query, of a version that has seen a write."""
    if write is not None:
        views.wait_for(*write, gone)
    return views.ask(query, gone)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise UserError(f"expected ?{name}= a number from 1 to {most}; found {text!r}")
    return min(int(text), most)


def _instant(request: Request, name: str) -> int | None:
    """Microseconds as they are, an ISO 8601 instant, or a duration before now ("2 hours ago")."""
    text = request.query_params.get(name)
    if not text:
        return None
    if text.lstrip("-").isdigit() and len(text) <= 18:
        return int(text)
    is_plain = "T" not in text  # in an instant, a space is the `+` of its offset
    return moment_us(text if is_plain else text.replace(" ", "+"), time.time_ns() // 1_000)
