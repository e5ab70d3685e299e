"""Confluent's REST API of a schema registry.

Paths, fields, codes and content types are those of Confluent's documentation, "Schema Registry API
Reference"; docs/registry.md lists them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.registry.refusals import Refusal
from penstock.registry.service import Registry
from penstock.schemas import Kind
from penstock.web import Guard

__all__ = ["create_app"]

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_TAKEN: Final = frozenset(
    (
        CONTENT_TYPE,
        "application/vnd.schemaregistry+json",
        "application/json",
        "application/octet-stream",
    )
)
BODY_BYTES_MAX: Final = 1 << 20
"""Of a request: its schema becomes a record, whose topic takes as much."""

_log = logging.getLogger(__name__)

_Answer = Callable[[Request, Mapping[str, Any]], Any]
"""Gives what is answered, of a request and its body; several run at a time, each in a thread."""


def create_app(
    registry: Registry, *, hosts: tuple[str, ...], password: str | None = None
) -> Starlette:
    """Builds the app.

    Args:
        registry: what it serves.
        hosts: the names in a Host header that are answered, where there is no password.
        password: that every request must bring.
    """

    def route(method: str, path: str, answer: _Answer) -> Route:
        return Route(path, _handler(answer), methods=[method])

    return Starlette(
        routes=[route(*one) for one in _endpoints(registry)],
        middleware=[Middleware(Guard, hosts=hosts, password=password)],
        exception_handlers={Refusal: _refused, HTTPException: _unknown, Exception: _failed},
    )


def _endpoints(registry: Registry) -> list[tuple[str, str, _Answer]]:
    """Methods, paths and answers. A subject may have slashes, so paths with more after it come first."""
    return [
        ("GET", "/", lambda *_: {}),
        ("GET", "/contexts", lambda *_: ["."]),
        ("GET", "/v1/metadata/id", lambda *_: {"scope": {"path": [], "clusters": {}}, "id": ""}),
        ("GET", "/v1/metadata/version", lambda *_: {"version": "penstock", "commitId": ""}),
        *_schema_endpoints(registry),
        *_version_endpoints(registry),
        *_subject_endpoints(registry),
        *_rule_endpoints(registry),
    ]


def _version_endpoints(registry: Registry) -> list[tuple[str, str, _Answer]]:
    def version(request: Request, _: Mapping[str, Any]) -> dict[str, Any]:
        place = _subject(request), _version(request)
        return registry.version(*place, _form(request), deleted=_flag(request, "deleted"))

    def delete(request: Request, _: Mapping[str, Any]) -> int:
        place = _subject(request), _version(request)
        return registry.delete_version(*place, permanent=_flag(request, "permanent"))

    def versions(request: Request, _: Mapping[str, Any]) -> list[int]:
        deleted = _flag(request, "deleted", "deletedOnly")
        return registry.versions(_subject(request), deleted=deleted)

    def register(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        return registry.register(_subject(request), body, normalize=_flag(request, "normalize"))

    of = "/subjects/{subject:path}/versions"
    one = f"{of}/{{version}}"
    return [
        ("GET", f"{one}/schema", lambda r, body: _Text(version(r, body)["schema"])),
        (
            "GET",
            f"{one}/referencedby",
            lambda r, _: registry.referenced_by(_subject(r), _version(r)),
        ),
        ("GET", one, version),
        ("DELETE", one, delete),
        ("GET", of, _paged(versions)),
        ("POST", of, register),
    ]


def _subject_endpoints(registry: Registry) -> list[tuple[str, str, _Answer]]:
    def lookup(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        flags = {name: _flag(request, name) for name in ("normalize", "deleted")}
        return registry.lookup(_subject(request), body, _form(request), **flags)

    def delete(request: Request, _: Mapping[str, Any]) -> list[int]:
        return registry.delete_subject(_subject(request), permanent=_flag(request, "permanent"))

    def subjects(request: Request, _: Mapping[str, Any]) -> list[str]:
        return registry.subjects(
            request.query_params.get("subjectPrefix", ""),
            deleted=_flag(request, "deleted"),
            deleted_only=_flag(request, "deletedOnly"),
        )

    one = "/subjects/{subject:path}"
    return [
        ("POST", one, lookup),
        ("DELETE", one, delete),
        ("GET", "/subjects", _paged(subjects)),
    ]


def _schema_endpoints(registry: Registry) -> list[tuple[str, str, _Answer]]:
    def schema(request: Request, _: Mapping[str, Any]) -> dict[str, Any]:
        asked = request.query_params
        return registry.schema(
            _id(request),
            asked.get("subject", ""),
            _form(request),
            max_id=_flag(request, "fetchMaxId"),
        )

    def schemas(request: Request, _: Mapping[str, Any]) -> list[dict[str, Any]]:
        return registry.schemas(
            request.query_params.get("subjectPrefix", ""),
            deleted=_flag(request, "deleted"),
            latest=_flag(request, "latestOnly"),
        )

    return [
        ("GET", "/schemas/types", lambda *_: [str(one) for one in reversed(Kind)]),
        ("GET", "/schemas/ids/{id}", schema),
        (
            "GET",
            "/schemas/ids/{id}/schema",
            lambda r, _: _Text(registry.schema(_id(r), form=_form(r))["schema"]),
        ),
        (
            "GET",
            "/schemas/ids/{id}/versions",
            lambda r, _: registry.places(_id(r), deleted=_flag(r, "deleted")),
        ),
        (
            "GET",
            "/schemas/ids/{id}/subjects",
            lambda r, _: sorted(
                {one["subject"] for one in registry.places(_id(r), deleted=_flag(r, "deleted"))}
            ),
        ),
        ("GET", "/schemas", _paged(schemas)),
    ]


def _rule_endpoints(registry: Registry) -> list[tuple[str, str, _Answer]]:
    """Compatibility, config and mode."""

    def compatibility(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        version = request.path_params.get("version")
        found = registry.compatibility(
            _subject(request), version, body, normalize=_flag(request, "normalize")
        )
        more = {"messages": found} if _flag(request, "verbose") else {}
        return {"is_compatible": not found, **more}

    def config(request: Request, _: Mapping[str, Any]) -> dict[str, Any]:
        or_global = _flag(request, "defaultToGlobal")
        return registry.config(_subject_or_all(request), or_global=or_global)

    def mode(request: Request, _: Mapping[str, Any]) -> dict[str, str]:
        or_global = _flag(request, "defaultToGlobal")
        return registry.mode(_subject_or_all(request), or_global=or_global)

    def set_mode(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
        return registry.set_mode(_subject_or_all(request), body, force=_flag(request, "force"))

    of = "/compatibility/subjects/{subject:path}/versions"
    found: list[tuple[str, str, _Answer]] = [
        ("POST", f"{of}/{{version}}", compatibility),
        ("POST", of, compatibility),
    ]
    for path in ("/config", "/config/{subject:path}"):
        found += [
            ("GET", path, config),
            ("PUT", path, lambda r, body: registry.set_config(_subject_or_all(r), body)),
            ("DELETE", path, lambda r, _: registry.delete_config(_subject_or_all(r))),
        ]
    found += [("GET", "/mode", mode), ("PUT", "/mode", set_mode)]
    each = "/mode/{subject:path}"
    return [
        *found,
        ("GET", each, mode),
        ("PUT", each, set_mode),
        ("DELETE", each, lambda r, _: registry.delete_mode(_subject(r))),
    ]


class _Text(str):
    """An answer that is written as it is."""

    __slots__ = ()


def _handler(answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        found = await asyncio.to_thread(answer, request, await _body(request))
        text = found if isinstance(found, _Text) else json.dumps(found, ensure_ascii=False)
        return Response(text, media_type=CONTENT_TYPE)

    return handle


async def _body(request: Request) -> Mapping[str, Any]:
    if request.method in ("GET", "DELETE"):
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _TAKEN:
        raise Refusal(
            415,
            f"HTTP 415 Unsupported Media Type: expected Content-Type: {CONTENT_TYPE} or "
            f"application/json; found {kind or 'none'}",
        )
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise Refusal(413, f"expected a request of at most {BODY_BYTES_MAX} bytes; found more")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(400, "Unrecognized request: expected an object in JSON")
    return found


def _subject(request: Request) -> str:
    return str(request.path_params["subject"])


def _subject_or_all(request: Request) -> str | None:
    return request.path_params.get("subject")


def _version(request: Request) -> str:
    return str(request.path_params["version"])


def _form(request: Request) -> str:
    return request.query_params.get("format", "")


def _id(request: Request) -> int:
    text = str(request.path_params["id"])
    if not text.isdecimal() or int(text) >= 2**31:
        raise Refusal(40403, f"Schema {text} not found")
    return int(text)


def _flag(request: Request, *names: str) -> bool:
    return any(request.query_params.get(one, "").lower() == "true" for one in names)


def _paged(answer: _Answer) -> _Answer:
    """An answer of which `offset` and `limit` ask for a part."""

    def part(request: Request, body: Mapping[str, Any]) -> Any:
        found = answer(request, body)
        try:
            offset = int(request.query_params.get("offset", "0"))
            limit = int(request.query_params.get("limit", "-1"))
        except ValueError:
            raise Refusal(400, "expected numbers as offset and limit") from None
        return found[offset:] if limit < 0 else found[offset : offset + limit]

    return part


def _problem(status: int, code: int, message: str) -> Response:
    body = json.dumps({"error_code": code, "message": message}, ensure_ascii=False)
    return Response(body, status, media_type=CONTENT_TYPE)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _problem(error.status, error.code, str(error))


async def _unknown(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(
        error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}"
    )


async def _failed(_request: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    return _problem(500, 50001, f"Error in the registry: {type(error).__name__}: {error}")
