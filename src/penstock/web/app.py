"""The HTTP side: JSON over committed views, Server-Sent Events, and the page's files.

    GET /                               the page
    GET /api/status                     what the pipeline does now, with history
    GET /api/graph                      where everything of the pipeline's drawing is
    GET /metrics                        the same figures for Prometheus
    GET /api/views                      names, columns, keys
    GET /api/views/{name}               rows, newest windows first: ?since=ISO|us &limit=N
    GET /api/views/{name}/series        lines for a chart: ?measure= &top= &windows= &range=
    GET /api/views/{name}/export        a file: ?format=csv|parquet
    GET /api/views/{name}/changes       its changes as they are committed: ?from=VERSION
    GET /api/query?sql=SELECT           read-only SQL over the views: &format=csv|parquet
    GET /api/events                     an event for each new version
    /api/console, topics, groups, …     the log beneath (`penstock.web.console.api`)

Everything is read-only, but for dead letters where changes were allowed. The page is for this machine alone:
the Host header must name loopback (a page elsewhere can't reach it by rebinding its own name), requests
that a browser marks as coming from another site are refused, and there is no CORS.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.errors import BrokerError, LimitError, PenstockError, UserError
from penstock.web.api import Api, Graph, Status, ViewSource, json_response
from penstock.web.changes import Changes, UnknownViewError
from penstock.web.console import Console
from penstock.web.guard import LOOPBACK, Guard
from penstock.web.metrics import METRICS_TYPE, metrics_text
from penstock.wire.protocol import ErrorCode

STATIC: Final = Path(__file__).parent / "static"


def create_app(
    views: ViewSource | None,
    status_source: Status,
    *,
    graph: Graph = lambda: None,
    hosts: tuple[str, ...] = LOOPBACK,
    stopping: threading.Event | None = None,
    console: Console | None = None,
    password: str | None = None,
) -> Starlette:
    """Builds the app.

    Args:
        views: committed views; None where nothing is committed yet (the page says so).
        status_source: gives the status board's dictionary.
        graph: gives the drawing's places; see `Graph`.
        hosts: the names in a Host header that are answered.
        stopping: when set, event streams end, so that the server can.
        console: what shows the log beneath; None leaves it out.
        password: that every request must bring; None: none, and only `hosts` are answered.
    """
    stopping = stopping or threading.Event()
    api = Api(views, status_source, stopping, graph)
    routes = [
        Route("/", _page),
        Route("/api/status", api.status),
        Route("/api/graph", api.graph),
        Route("/metrics", api.metrics),
        Route("/api/views", api.views),
        Route("/api/views/{name}", api.view),
        Route("/api/views/{name}/series", api.series),
        Route("/api/views/{name}/export", api.export),
        Route("/api/views/{name}/changes", Changes(views, stopping).changes),
        Route("/api/query", api.query),
        Route("/api/events", api.events),
        *(console.routes if console is not None else ()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=hosts, password=password)],
        exception_handlers={PenstockError: _problem, Exception: _mishap},
    )


def create_metrics_app(status_source: Status, *, hosts: tuple[str, ...] | None) -> Starlette:
    """An app of `/metrics` for Prometheus and `/health` for programs that restart services, without a page.

    Health is 200 while the pipeline is well or starting, and 503 with the reason while it isn't.

    Args:
        status_source: gives the status board's dictionary.
        hosts: the names in a Host header that are answered; None answers any.
    """

    async def metrics(_request: Request) -> Response:
        status = await asyncio.to_thread(status_source, history=False)
        return Response(metrics_text(status), media_type=METRICS_TYPE)

    async def health(_request: Request) -> Response:
        status = await asyncio.to_thread(status_source, history=False)
        return json_response(status["state"], 503 if status["state"]["level"] == "bad" else 200)

    routes = [Route("/metrics", metrics), Route("/health", health)]
    guard = [] if hosts is None else [Middleware(Guard, hosts=hosts)]
    return Starlette(routes=routes, middleware=guard)


async def _page(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")


async def _problem(_request: Request, error: Exception) -> Response:
    missing = isinstance(error, UnknownViewError) or (
        isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    status = 404 if missing else 400
    if isinstance(error, LimitError):
        status = 422
    elif not missing and not isinstance(error, UserError):
        status = 503
    return json_response({"error": str(error)}, status)


async def _mishap(_request: Request, error: Exception) -> Response:
    return json_response({"error": f"{type(error).__name__}: {error}"}, 500)
