"""A registry in memory, asked over its HTTP API without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx

from penstock.registry import MemoryStore, Registry, Store
from penstock.registry.http import create_app


class Asking:
    """Asks a registry; `status` is of the last answer."""

    def __init__(self, store: Store | None = None, password: str | None = None) -> None:
        self.store = MemoryStore() if store is None else store
        self._app = create_app(Registry(self.store), hosts=("registry",), password=password)
        self.status = 0
        self.answer: httpx.Response

    @classmethod
    def of(cls, other: Asking) -> Asking:
        """Another client of the same registry."""
        found = cls(other.store)
        found._app = other._app
        return found

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
                headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
                headers |= more.pop("headers", {})
                content = None if body is None else json.dumps(body)
                return await client.request(method, path, content=content, headers=headers, **more)

        self.answer = asyncio.run(ask())
        self.status = self.answer.status_code
        return self.answer.json() if self.answer.text[:1] in '{[0123456789"' else self.answer.text

    def code(self, method: str, path: str, body: Any = None) -> int:
        """The error code of an answer; 0: it was none."""
        found = self(method, path, body)
        return found["error_code"] if isinstance(found, dict) and "error_code" in found else 0

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Registers a schema; the id that it has."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return int(self("POST", path, {"schema": text, **more})["id"])


def record(*fields: str, name: str = "r", default: bool = False) -> str:
    """An Avro record of ints."""
    more = {"default": 0} if default else {}
    members = [{"name": one, "type": "int", **more} for one in fields]
    return json.dumps({"type": "record", "name": name, "fields": members})
