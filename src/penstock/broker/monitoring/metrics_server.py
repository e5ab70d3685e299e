"""Serves metrics in Prometheus' text form over HTTP, where `--metrics HOST:PORT` says.

They are read in the event loop (that touches what only the loop may touch), the text is made in a
thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from penstock.broker.listeners import split_address
from penstock.errors import SetupError

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["MetricsServer"]

REQUEST_BYTES_MAX: Final = 16 << 10
"""Largest HTTP request; a scrape has a few headers."""
REQUEST_S_MAX: Final = 10.0
"""How long an HTTP request may take to arrive, and its answer to be taken."""
SCRAPERS_MAX: Final = 8
"""Scrapes at once; each holds a snapshot."""

_log = logging.getLogger(__name__)


class _Snapshot:
    """What a registry asks: the metrics as they were read."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _text(metrics: list[Metric]) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(metrics))
    return generate_latest(registry)


class MetricsServer:
    """A small HTTP server for `GET /metrics` and `GET /health`.

    Args:
        collect: returns all metrics, now.
    """

    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        self._collect = collect
        self._server: asyncio.Server | None = None
        self._places = asyncio.Semaphore(SCRAPERS_MAX)
        self.address: tuple[str, int] | None = None

    async def start(self, listen: str, *, is_remote_allowed: bool = False) -> None:
        """Listens.

        Raises:
            SetupError: the address is taken, or is not this machine's alone.
        """
        host, port = split_address(listen)
        if not (host == "localhost" or is_remote_allowed or ip_address(host).is_loopback):
            raise SetupError(
                f"expected a loopback address for metrics; found {host!r}; clients are not "
                "authenticated there: pass --allow-remote if everyone who can reach it may read them"
            )
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise SetupError(
                f"expected to serve metrics on {listen}; found: {error.strerror or error}; choose "
                "another address with --metrics"
            ) from None
        self.address = host, self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Listens no longer."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                async with self._places:
                    status, body = await self._answer(head)
                kind = "text/plain; version=0.0.4; charset=utf-8"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a malformed request gets no answer
        except Exception:  # noqa: BLE001 - a scrape must not end the broker
            _log.exception("a request for metrics failed")
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ")[0].split(b"?")[0]
        if method != b"GET":
            return "405 Method Not Allowed", b"expected GET\n"
        if path == b"/health":
            return "200 OK", b"serving\n"
        if path != b"/metrics":
            return "404 Not Found", b"expected /metrics or /health\n"
        began = time.perf_counter()
        metrics = self._collect()
        text = await asyncio.get_running_loop().run_in_executor(None, _text, metrics)
        _log.debug("served %d bytes of metrics in %.3f s", len(text), time.perf_counter() - began)
        return "200 OK", text
