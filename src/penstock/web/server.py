"""The page's server: uvicorn in a thread of its own, on loopback, next to the pipeline."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from penstock.errors import SetupError, UserError
from penstock.web.api import Graph, Status, ViewSource
from penstock.web.app import create_app, create_metrics_app
from penstock.web.console import Console
from penstock.web.guard import LOOPBACK, PASSWORD_CHARS_MIN

PORT: Final = 8750
PORTS_TRIED: Final = 20  # from the usual port up: more pipelines than one machine watches
START_SECONDS_MAX: Final = 10.0  # for a socket that is bound already
BACKLOG: Final = 128  # connections that wait to be accepted: a browser opens six for a page
STOP_SECONDS_MAX: Final = 3.0  # then open requests are cut off


class Server:
    """Serves the page until `close`.

    Args:
        views: committed views, or None.
        status: the status board's `status`.
        graph: gives the drawing's places; see `penstock.web.api.Graph`.
        host: a loopback address; anything else must be asked for and widens who can read the views.
        port: the port; None takes 8750 or the next free one.
        console: what shows the log beneath; None leaves it out.
        password: that every request must bring; needed beyond loopback.
        tls: paths of a certificate (with its chain) and of its key, in PEM; None serves plain HTTP.

    Raises:
        SetupError: the port is taken, or certificate and key can't be used.
        UserError: an address beyond loopback without a password, or a short one.
    """

    def __init__(
        self,
        views: ViewSource | None,
        status: Status,
        *,
        graph: Graph = lambda: None,
        host: str = "127.0.0.1",
        port: int | None = None,
        console: Console | None = None,
        password: str | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        check_password(host, password)
        self._listen(host, port, tls)
        app = create_app(
            views,
            status,
            graph=graph,
            hosts=(*LOOPBACK, host),
            stopping=self._stopping,
            console=console,
            password=password,
        )
        self._console = console
        self._start(app)
        if console is not None:
            console.start()

    _console: Console | None = None

    def _listen(self, host: str, port: int | None, tls: tuple[Path, Path] | None = None) -> None:
        self._tls: dict[str, Any] = {}
        if tls is not None:
            from penstock.broker.security.tls import no_password

            certificate, key = tls
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                    certificate, key, password=no_password
                )
            except (OSError, ValueError) as error:
                raise SetupError(
                    f"expected a certificate and its unencrypted key in {certificate} and {key}; found: "
                    f"{error}"
                ) from None
            self._tls = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
            # uvloop can't be closed while a browser still has a spare connection over TLS.
            self._tls["loop"] = "asyncio"
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if self._tls else 'http'}://{shown}:{self.port}"
        self._stopping = threading.Event()

    def _start(self, app: ASGIApp) -> None:
        """Serves an app, in a thread of its own, until `close`."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
            **self._tls,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="penstock-web", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise SetupError(f"expected the page's server to start on {self.url}; it did not")
            time.sleep(0.01)

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Stops the server; open pages are notified, and reconnect when a server is back."""
        self._stopping.set()
        if self._console is not None:
            self._console.close()
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            self._server.force_exit = True
        with contextlib.suppress(OSError):
            self._socket.close()


class MetricsServer(Server):
    """Serves `/metrics` and `/health` alone, also beyond loopback.

    Args:
        status: the status board's `status`.
        host: an address of this machine.
        port: the port; 0 takes a free one.

    Raises:
        SetupError: the port is taken.
    """

    def __init__(self, status: Status, host: str, port: int) -> None:
        self._listen(host, port)
        self._start(create_metrics_app(status, hosts=LOOPBACK if is_loopback(host) else None))


def check_password(
    host: str,
    password: str | None,
    *,
    what: str = "the page",
    variable: str = "PENSTOCK_UI_PASSWORD",
) -> None:
    """Refuses to serve something beyond this machine without a password.

    Args:
        host: the address to serve on.
        password: that requests must bring; None: none.
        what: is served.
        variable: of the environment that a person puts the password into.

    Raises:
        UserError: there is none, or it is short.
    """
    if password is not None and len(password) < PASSWORD_CHARS_MIN:
        raise UserError(
            f"expected a password of at least {PASSWORD_CHARS_MIN} characters; found {len(password)}. "
            "Make one: openssl rand -base64 18"
        )
    if password is None and not is_loopback(host):
        raise UserError(
            f"expected a password to serve {what} beyond this machine, on {host}; found none. Set "
            f"{variable}"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(host: str, port: int | None) -> socket.socket:
    ports = range(PORT, PORT + PORTS_TRIED) if port is None else (port,)
    for candidate in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
            # Before it listens, another process may bind the same port.
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    wanted = f"{PORT} to {PORT + PORTS_TRIED - 1}" if port is None else str(port)
    raise SetupError(
        f"expected to serve the page on {host}, port {wanted}; found: {last.strerror}. "
        "Choose another with --port, or run without the page: --no-ui"
    )
