"""The console's JSON endpoints.

    GET  /api/console                           what there is: a pipeline, a log; what may be changed
    GET  /api/topics                            topics with records and bytes
    GET  /api/topics/{name}                     partitions and configs
    GET  /api/topics/{name}/records             ?from=newest|oldest|TIME &positions=0:17,1:3 &partition=
                                                &limit= &search=
    GET  /api/topics/{name}/tail                records since ?positions=0:17,1:3 &partition= &limit= &search=
    GET  /api/groups, /api/groups/{name}        lag, time left, members
    GET  /api/lag                               ?group=NAME &range=1 hour: its lag since the page is served
    GET  /api/connections                       captures, sinks and queues with their states
    GET  /api/letters                           dead letters by reason
    GET  /api/letters/{topic}                   ?reason= &origin= &state= &skip=
    POST /api/letters/{topic}/repair              {"values": {"0/17": "…"}}
    POST /api/letters/{topic}/replay            {"letters": ["0/17"]} or {"reason": …, "origin": …}
    POST /api/letters/{topic}/drop              likewise, with "because"
    GET  /api/versions                          committed versions and savepoints

Changes are refused unless they were allowed when the page was started. They must be JSON, which a page of
another site can't send without asking first, and is then refused (see `Guard`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.time import duration_us, moment_us
from penstock.errors import PenstockError, UserError
from penstock.web.console.avro import AvroTexts
from penstock.web.console.lag import GROUPS_MAX, LagHistory
from penstock.web.console.log import LogView, Marks, letter_ids, where_of
from penstock.web.console.records import PAGE_MAX, Wanted
from penstock.web.console.versions import KeptVersions
from penstock.web.jsons import dumps

WORKERS: Final = 4  # threads that ask a broker: a page asks for two things at a time
BODY_BYTES_MAX: Final = 8 << 20  # of a change: a record's value and more
SEARCH_CHARS_MAX: Final = 200
OPEN: Final = ("open", "repaired")
"""States of letters with which something can be done."""


class Console:
    """The endpoints over one log.

    Args:
        address: gives the broker's address; raises `PenstockError` while it doesn't run.
        has_pipeline: whether the page shows a pipeline as well.
        allow_changes: whether letters may be repaired, replayed and dropped.
        versions: gives committed versions and savepoints; None where there is no pipeline.
        schemas: gives the Avro schemas of the program's topics, by topic and id; see `AvroTexts`.
        marks: gives the watermarks of the pipelines that read from the broker with an address; None: nobody
            knows them.
    """

    def __init__(
        self,
        address: Callable[[], str],
        *,
        has_pipeline: bool = True,
        allow_changes: bool = False,
        versions: Callable[[], KeptVersions] | None = None,
        schemas: Callable[[], Mapping[str, Mapping[int | None, str]]] = dict,
        marks: Callable[[str], Marks] | None = None,
    ) -> None:
        self._log = LogView(address, AvroTexts(schemas), marks)
        self._lag = LagHistory(lambda: self._log.lags(GROUPS_MAX))
        self._has_pipeline, self._allow_changes = has_pipeline, allow_changes
        self._versions = versions
        self._pool = ThreadPoolExecutor(WORKERS, "penstock-console")

    def start(self) -> None:
        """Begins to keep the history of groups' lag, until `close`."""
        self._lag.start()

    def close(self) -> None:
        """Ends the history."""
        self._lag.close()

    @property
    def routes(self) -> list[Route]:
        """Where the endpoints are."""
        return [
            Route("/api/console", self.about),
            Route("/api/topics", self.topics),
            Route("/api/topics/{name}", self.topic),
            Route("/api/topics/{name}/records", self.records),
            Route("/api/topics/{name}/tail", self.tail),
            Route("/api/groups", self.groups),
            Route("/api/groups/{name:path}", self.group),
            Route("/api/lag", self.lag),
            Route("/api/connections", self.connections),
            Route("/api/letters", self.letter_groups),
            Route("/api/letters/{topic}", self.letters),
            Route("/api/letters/{topic}/{action}", self.change, methods=["POST"]),
            Route("/api/versions", self.versions),
        ]

    async def about(self, _request: Request) -> Response:
        """GET /api/console."""
        log, error = None, None
        try:
            log = await self._ask(self._log.address)
        except (PenstockError, OSError) as problem:
            error = str(problem)
        return _json(
            {
                "pipeline": self._has_pipeline,
                "log": log,
                "error": error,
                "allow_changes": self._allow_changes,
                "versions": self._versions is not None,
            }
        )

    async def topics(self, _request: Request) -> Response:
        """GET /api/topics."""
        return _json({"topics": await self._ask(self._log.topics)})

    async def topic(self, request: Request) -> Response:
        """GET /api/topics/{name}."""
        return _json(await self._ask(self._log.topic, request.path_params["name"]))

    async def records(self, request: Request) -> Response:
        """GET /api/topics/{name}/records."""
        start = request.query_params.get("from", "newest").strip() or "newest"
        wanted = _wanted(request, newest=start == "newest")
        from_ms = None if start in ("newest", "oldest") or wanted.positions else _moment_ms(start)
        return _json(await self._ask(self._log.records, wanted, from_ms))

    async def tail(self, request: Request) -> Response:
        """GET /api/topics/{name}/tail."""
        return _json(await self._ask(self._log.tail, _wanted(request, newest=True)))

    async def groups(self, _request: Request) -> Response:
        """GET /api/groups."""
        return _json({"groups": await self._ask(self._log.groups)})

    async def group(self, request: Request) -> Response:
        """GET /api/groups/{name}."""
        return _json(await self._ask(self._log.group, request.path_params["name"]))

    async def lag(self, request: Request) -> Response:
        """GET /api/lag."""
        range_us = duration_us(request.query_params.get("range") or "1 hour")
        return _json(self._lag.series(request.query_params.get("group", ""), range_us / 1_000_000))

    async def connections(self, _request: Request) -> Response:
        """GET /api/connections."""
        return _json(await self._ask(self._log.connections))

    async def letter_groups(self, _request: Request) -> Response:
        """GET /api/letters."""
        return _json({"groups": await self._ask(self._log.letter_groups)})

    async def letters(self, request: Request) -> Response:
        """GET /api/letters/{topic}."""
        asked = request.query_params
        states = [asked["state"]] if asked.get("state") else []
        where = where_of(None, asked.get("reason"), asked.get("origin"), states)
        skip = _whole(asked.get("skip", "0"), "skip")
        return _json(await self._ask(self._log.letters, request.path_params["topic"], where, skip))

    async def change(self, request: Request) -> Response:
        """POST /api/letters/{topic}/{action}."""
        if not self._allow_changes:
            text = "expected a page that may change things; this one is read-only. Start it with: "
            return _json({"error": f"{text}penstock ui … --allow-changes"}, 403)
        topic, action = request.path_params["topic"], request.path_params["action"]
        body = await _body(request)
        match action:
            case "repair":
                values = {
                    next(iter(letter_ids([one]))): str(text)
                    for one, text in dict(body.get("values") or {}).items()
                }
                return _json(await self._ask(self._log.repair, topic, values))
            case "replay":
                return _json(await self._ask(self._log.replay, topic, _meant(body)))
            case "drop":
                because = str(body.get("because") or "")
                return _json(await self._ask(self._log.drop, topic, _meant(body), because))
        raise UserError(f"expected repair, replay or drop; found {action!r}")

    async def versions(self, _request: Request) -> Response:
        """GET /api/versions."""
        if self._versions is None:
            return _json({"versions": [], "savepoints": []})
        return _json(await self._ask(self._versions))

    async def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(call, *arguments))


def _json(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, media_type="application/json")


async def _body(request: Request) -> dict[str, Any]:
    """A change's JSON object.

    Raises:
        UserError: it is none, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise UserError(f"expected a body of type application/json; found {kind!r}")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES_MAX:
            raise UserError(
                f"expected at most {BODY_BYTES_MAX} bytes (BODY_BYTES_MAX); found more. Use penstock dlq"
            )
    try:
        found = orjson.loads(bytes(data))
    except orjson.JSONDecodeError as error:
        raise UserError(f"expected JSON; found {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"expected a JSON object; found {type(found).__name__}")
    return found


def _wanted(request: Request, *, newest: bool) -> Wanted:
    """The records that a request is about."""
    asked = request.query_params
    search, partition = asked.get("search", ""), asked.get("partition", "")
    if len(search) > SEARCH_CHARS_MAX:
        raise UserError(
            f"expected a text of at most {SEARCH_CHARS_MAX} characters to search for; found {len(search)}"
        )
    return Wanted(
        request.path_params["name"],
        newest,
        _positions(asked.get("positions", "")),
        (_whole(partition, "partition"),) if partition else None,
        min(max(_whole(asked.get("limit", "50"), "limit"), 1), PAGE_MAX),
        search,
    )


def _meant(body: dict[str, Any]) -> Any:
    """The open letters that a change is about; it must say which.

    Raises:
        UserError: it doesn't.
    """
    ids, reason = body.get("letters"), body.get("reason")
    if not ids and not reason:
        raise UserError('expected "letters": ["0/17", …] or "reason": "…"; found neither')
    return where_of(ids or None, reason, body.get("origin"), OPEN)


def _positions(text: str) -> dict[int, int]:
    found = {}
    for part in filter(None, text.split(",")):
        partition, _, offset = part.partition(":")
        found[_whole(partition, "positions")] = _whole(offset, "positions")
    return found


def _whole(text: str, name: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise UserError(f"expected ?{name}= a whole number; found {text!r}")
    return int(text)


def _moment_ms(text: str) -> int:
    """An instant, or a duration before now ("2 hours ago"), in ms since 1970."""
    try:
        return -(-moment_us(text, time.time_ns() // 1_000) // 1_000)
    except UserError:
        raise UserError(
            "expected ?from= newest, oldest, an instant such as 2026-11-21T09:00:00Z, or "
            f"'2 hours ago'; found {text!r}"
        ) from None
