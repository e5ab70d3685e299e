"""Keeps the page to this machine: what comes from elsewhere is refused, and headers protect the rest."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Guard:
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
