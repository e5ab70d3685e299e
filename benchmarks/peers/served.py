"""A value served as JSON over HTTP on the loopback interface, quickly enough to be polled."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve_json(value: Callable[[], object]) -> ThreadingHTTPServer:
    """Serve what `value()` returns to every GET, from a thread of its own.

    Returns:
        The server; its port is `server_address[1]`, `shutdown()` ends it.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # the connection stays open
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = json.dumps(value()).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)  # at once: two writes wait for each other

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
