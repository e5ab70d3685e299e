"""A sink's figures in Prometheus' text form, made when a scrape asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SetupError
from penstock.sinks._breaker import CIRCUITS

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from penstock.sinks._sink import Sink

__all__ = ["serve_metrics", "sink_metrics"]

PHASES: Final = ("starting", "following", "waiting", "paused", "failed", "stopped")
_GAUGES: Final = (
    ("lag_records", "Records that are in the log and not in the target.", "lag", 1),
    ("behind_seconds", "Since the target last had all of them.", "behind_ms", 1_000),
    ("progress_ratio", "The part of the topic's records that is in the target.", "progress", 1),
)
_STATES: Final = (
    ("state", "1 for the phase that it is in.", "phase", PHASES),
    ("breaker_state", "1 for the state of its circuit breaker.", "breaker", CIRCUITS),
)
_COUNTERS: Final = (
    ("upserts", "Rows written.", "upserts"),
    ("deletes", "Keys deleted.", "deletes"),
    ("dead_letters", "Records that don't fit, or that the target refused.", "dead"),
    ("retries", "Tries after an error that passes.", "retries"),
)


def sink_metrics(sinks: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """The metrics of sinks.

    Args:
        sinks: by name, what `Sink.figures` gives.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, what, unit in _GAUGES:
        gauge = GaugeMetricFamily(f"penstock_sink_{name}", text, labels=["sink"])
        for sink, one in sinks.items():
            if one[what] is not None:
                gauge.add_metric([sink], one[what] / unit)
        yield gauge
    for name, text, what in _COUNTERS:
        counter = CounterMetricFamily(f"penstock_sink_{name}", text, labels=["sink"])
        for sink, one in sinks.items():
            counter.add_metric([sink], one[what])
        yield counter
    for name, text, what, known in _STATES:
        state = GaugeMetricFamily(f"penstock_sink_{name}", text, labels=["sink", "state"])
        for sink, one in sinks.items():
            for value in known:
                state.add_metric([sink, value], int(value == one[what]))
        yield state


@contextlib.contextmanager
def serve_metrics(host: str, port: int, sinks: Iterable[Sink]) -> Iterator[int]:
    """Serves `/metrics` meanwhile; the port.

    Raises:
        SetupError: the address can't be listened on.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(list(sinks)))
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


def _collector(sinks: list[Sink]) -> Collector:
    from prometheus_client.registry import Collector

    class _Sinks(Collector):
        def collect(self) -> Iterable[Any]:
            return sink_metrics({one.name: one.figures() for one in sinks})

    return _Sinks()
