"""A capture's figures in Prometheus' text form, made when a scrape asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock.capture._capture import Capture

__all__ = ["serve_metrics"]

_COUNTERS: Final = (
    ("records", "Records written and committed.", "records"),
    ("transactions", "Transactions of the database with changes of the tables.", "transactions"),
    ("snapshot_rows", "Rows of snapshots that were read.", "snapshot_rows"),
    ("unread_values", "Values that couldn't be read or written.", "unread"),
    ("dead_letters", "Rows that are dead letters.", "letters"),
)
_PHASES: Final = ("starting", "snapshot", "streaming", "paused", "waiting")


@contextlib.contextmanager
def serve_metrics(host: str, port: int, capture: Capture) -> Iterator[int]:
    """Serves `/metrics` meanwhile; the port.

    Raises:
        SetupError: the address can't be listened on.
    """
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class _Figures(Collector):
        def collect(self) -> Iterable[Any]:
            return _metrics(capture)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SetupError(f"expected to listen on {host}:{port}; found: {error}") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _metrics(capture: Capture) -> Iterator[Any]:
    """What a capture has done since its process began, and in which phase it is."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, what in _COUNTERS:
        counter = CounterMetricFamily(f"penstock_capture_{name}", text, labels=["capture"])
        counter.add_metric([capture.name], getattr(capture.done, what))
        yield counter
    text = "1 for the phase that it is in."
    state = GaugeMetricFamily("penstock_capture_state", text, labels=["capture", "state"])
    for phase in _PHASES:
        state.add_metric([capture.name, phase], int(phase == capture.done.phase))
    yield state
