"""A value served as JSON over HTTP on the loopback interface, to who waits for it to change."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_S = 1.0
"""How long a request waits for another value."""


class Served:
    """Answers each GET with the newest value, and its number as `ETag`.

    A request with `If-None-Match` is answered when there is another value than that one, or with 304 after
    WAIT_S.

    Attributes:
        url: where it is served, from a thread of its own, until `end`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number, self._body = 0, b"{}"
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # the connection stays open
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                status, number, body = served._next(self.headers.get("If-None-Match"))
                head = f"HTTP/1.1 {status}\r\nETag: {number}\r\nContent-Length: {len(body)}\r\n\r\n"
                self.wfile.write(head.encode() + body)  # at once: two writes wait for each other

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def put(self, value: object) -> None:
        """Serves this from now on."""
        body = json.dumps(value).encode()
        with self._changed:
            if body != self._body:
                self._number, self._body = self._number + 1, body
                self._changed.notify_all()

    def _next(self, known: str | None) -> tuple[str, int, bytes]:
        with self._changed:
            if self._changed.wait_for(lambda: str(self._number) != known, WAIT_S):
                return "200 OK", self._number, self._body
            return "304 Not Modified", self._number, b""

    def end(self) -> None:
        """Serves nothing more."""
        self._server.shutdown()
        self._server.server_close()
