"""Keeps the page to this machine, or to those who know its password; headers protect the rest.

Without a password the Host header must name this machine: a page elsewhere can't reach it by rebinding its
own name. With one, any name is answered: a browser sends a password only to the name it was given for.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
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


WRONG_S: Final = 1.0
"""How long the answer to a wrong password waits, so that guessing takes long."""
PASSWORD_CHARS_MIN: Final = 12
"""A shorter one is found by trying; `openssl rand -base64 18` makes a good one."""


class Guard:
    """Refuses what isn't from this machine's own pages; adds the headers that protect them.

    Args:
        app: what is guarded.
        hosts: the names in a Host header that are answered, where there is no password.
        password: that every request must bring (HTTP Basic, any user name); None: none.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], password: str | None = None) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}
        self._password = None if password is None else password.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not self._knows_password(Headers(scope=scope)):
            if "authorization" in Headers(scope=scope):
                await asyncio.sleep(WRONG_S)
            text = "expected the page's password; found a wrong one, or none\n"
            headers = {"WWW-Authenticate": 'Basic realm="Penstock", charset="UTF-8"'}
            await PlainTextResponse(text, 401, headers)(scope, receive, send)
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

    def _knows_password(self, headers: Headers) -> bool:
        if self._password is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        try:
            _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
        except ValueError:  # neither base64 nor ASCII
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(password, self._password)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._password is None and name not in self.hosts:
            return f"expected a Host among {', '.join(sorted(self.hosts))}; found {host!r}\n"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "expected a request from this page; found one from another site\n"
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return f"expected no Origin but http://{host}; found {origin!r}\n"
        return None
