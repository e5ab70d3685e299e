"""The HTTP side: JSON over committed views, Server-Sent Events, and the page's files.

    GET /                               the page
    GET /api/status                     what the pipeline does now, with history
    GET /api/views                      names, columns, keys
    GET /api/views/{name}               rows, newest windows first: ?since=ISO|us &limit=N
    GET /api/views/{name}/series        lines for a chart: ?measure= &top= &windows=
    GET /api/query?sql=SELECT           read-only SQL over the views
    GET /api/events                     an event for each new version

Everything is read-only and for this machine alone: the Host header must name loopback (a page
elsewhere can't reach it by rebinding its own name), requests that a browser marks as coming from
another site are refused, and there is no CORS.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.core.time import instant_us
from penstock.errors import LimitError, PenstockError, QueryError, UserError
from penstock.web._json import dumps, kind, table_json
from penstock.web.series import WINDOWS_MAX, key_columns, measures, series

ROWS_MAX: Final = 10_000  # rows of one answer: what a page can show and a browser can hold
ROWS_DEFAULT: Final = 500
QUERY_SECONDS_MAX: Final = 10.0  # a query that takes longer disturbs the pipeline beside it
QUERY_CHARS_MAX: Final = 20_000  # of SQL: a GET line's worth
WORKERS: Final = 2  # threads that read views: the pipeline needs the machine more
EVENT_CLIENTS_MAX: Final = 32  # open event streams: each polls
POLL_S: Final = 0.2  # how often a new version is looked for
HEARTBEAT_S: Final = 2.0  # an event at least this often, so that the page sees a dead server
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
STATIC: Final = Path(__file__).parent / "static"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
T = TypeVar("T")


class Status(Protocol):
    """Says what the pipeline does now: `StatusBoard.status`."""

    def __call__(self, *, history: bool = False) -> dict[str, Any]:
        """The status board's dictionary."""
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

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """A view's rows."""
        ...

    def sql(self, query: str) -> pa.Table:
        """The answer to a SELECT over the views, all of one version."""
        ...


def create_app(
    views: ViewSource | None,
    status_source: Status,
    *,
    hosts: tuple[str, ...] = LOOPBACK,
    stopping: threading.Event | None = None,
) -> Starlette:
    """Builds the app.

    Args:
        views: committed views; None where nothing is committed yet (the page says so).
        status_source: gives the status board's dictionary.
        hosts: the names in a Host header that are answered.
        stopping: when set, event streams end, so that the server can.
    """
    api = _Api(views, status_source, stopping or threading.Event())
    routes = [
        Route("/", _page),
        Route("/api/status", api.status),
        Route("/api/views", api.views),
        Route("/api/views/{name}", api.view),
        Route("/api/views/{name}/series", api.series),
        Route("/api/query", api.query),
        Route("/api/events", api.events),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={PenstockError: _problem, Exception: _mishap},
    )


async def _page(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")


async def _problem(_request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, _UnknownViewError) else 400
    if isinstance(error, LimitError):
        status = 422
    elif not isinstance(error, UserError):
        status = 503
    return _json({"error": str(error)}, status)


async def _mishap(_request: Request, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: {error}"}, 500)


def _json(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, media_type="application/json")


class _UnknownViewError(QueryError):
    """No view has that name."""


class _Guard:
    """Refuses what isn't from this machine's own pages; adds the headers that protect them."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reason = self._refusal(Headers(scope=scope))
        if reason is not None:
            await PlainTextResponse(reason, 403)(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cache-Control"] = "no-store" if "/api/" in scope["path"] else "no-cache"
            await send(message)

        await self.app(scope, receive, protected)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if name not in self.hosts:
            return f"expected a Host among {', '.join(sorted(self.hosts))}; found {host!r}\n"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "expected a request from this page; found one from another site\n"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            return f"expected no Origin but http://{host}; found {origin!r}\n"
        return None


class _Api:
    """The JSON endpoints. Views are read in a small pool of threads, never on the event loop."""

    def __init__(self, views: ViewSource | None, status: Status, stopping: threading.Event) -> None:
        self._views = views
        self._status = status
        self._stopping = stopping
        self._pool = ThreadPoolExecutor(WORKERS, "penstock-web")
        self._clients = 0
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[int, pa.Table]] = {}

    async def _read(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._pool, call), QUERY_SECONDS_MAX)
        except TimeoutError:
            raise LimitError(
                f"expected an answer within {QUERY_SECONDS_MAX:g} s (QUERY_SECONDS_MAX); "
                "found none. Ask for fewer windows, or use `penstock query`, which has no limit"
            ) from None

    async def status(self, _request: Request) -> Response:
        return _json(await asyncio.to_thread(self._status, history=True))

    async def views(self, _request: Request) -> Response:
        return _json(await self._read(self._describe))

    def _describe(self) -> dict[str, Any]:
        if self._views is None:
            return {"views": []}
        return {"views": [self._describe_one(name) for name in self._views.names()]}

    def _describe_one(self, name: str) -> dict[str, Any]:
        table = self._table(name, None)
        keys = key_columns(table, self._keys(name))
        return {
            "name": name,
            "rows": table.num_rows,
            "keys": keys,
            "measures": measures(table, keys),
            "columns": [{"name": f.name, "kind": kind(f.type)} for f in table.schema],
        }

    def _keys(self, name: str) -> list[str] | None:
        return None if self._views is None else self._views.keys(name)

    def _table(self, name: str, since_us: int | None) -> pa.Table:
        """A view's rows. Those of one version are read once, for all pages and charts."""
        if self._views is None or name not in self._views.names():
            known = ", ".join(self._views.names()) if self._views is not None else ""
            raise _UnknownViewError(f"expected a view among: {known or 'none yet'}; found {name!r}")
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
        name = request.path_params["name"]
        since = _instant(request, "since")
        limit = _number(request, "limit", ROWS_DEFAULT, ROWS_MAX)
        return _json(await self._read(partial(self._rows, name, since, limit)))

    def _rows(self, name: str, since_us: int | None, limit: int) -> dict[str, Any]:
        table = self._table(name, since_us)
        rows = table.num_rows
        if "window_start" in table.column_names:
            table = table.sort_by([("window_start", "descending")])
        return {"name": name, "rows_total": rows, **table_json(table.slice(0, limit))}

    async def series(self, request: Request) -> Response:
        name = request.path_params["name"]
        top = _number(request, "top", 8, 24)
        windows = _number(request, "windows", 240, WINDOWS_MAX)
        measure = request.query_params.get("measure") or None
        return _json(await self._read(partial(self._lines, name, measure, top, windows)))

    def _lines(self, name: str, measure: str | None, top: int, windows: int) -> dict[str, Any]:
        table = self._table(name, None)
        lines = series(table, keys=self._keys(name), measure=measure, top=top, windows=windows)
        return {"name": name, **lines}

    async def query(self, request: Request) -> Response:
        sql = request.query_params.get("sql", "").strip()
        if not sql or len(sql) > QUERY_CHARS_MAX:
            raise QueryError(
                f"expected ?sql=SELECT … of at most {QUERY_CHARS_MAX} characters "
                f"(QUERY_CHARS_MAX); found {len(sql)} characters"
            )
        if self._views is None:
            raise QueryError("expected committed views; found none yet. Wait for the first batch")
        table = await self._read(partial(self._views.sql, sql))
        return _json({"rows_total": table.num_rows, **table_json(table.slice(0, ROWS_MAX))})

    async def events(self, _request: Request) -> Response:
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
                mark = (status.get("version"), status.get("batches"), status.get("phase"))
                if mark != seen or quiet_s >= HEARTBEAT_S:
                    seen, quiet_s = mark, 0.0
                    yield b"event: status\ndata: " + dumps(status) + b"\n\n"
                await asyncio.sleep(POLL_S)
                quiet_s += POLL_S
            yield b"event: bye\ndata: {}\n\n"
        finally:
            self._clients -= 1


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise UserError(f"expected ?{name}= a number from 1 to {most}; found {text!r}")
    return min(int(text), most)


def _instant(request: Request, name: str) -> int | None:
    """Microseconds as they are, or an ISO 8601 instant."""
    text = request.query_params.get(name)
    if not text:
        return None
    if text.lstrip("-").isdigit() and len(text) <= 18:
        return int(text)
    return instant_us(text.replace(" ", "+"))
