"""Figures as Prometheus' families, and the server of `/metrics` of a process without a page.

A table says which figures are served under which names; `families` is all that turns figures into samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import SetupError
from penstock.follow.breaker import CIRCUITS
from penstock.follow.report import PHASES

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

__all__ = ["FOLLOWER", "METRICS_TYPE", "Family", "families", "follower_families", "serve", "text"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of Prometheus' text form."""


@dataclass(frozen=True)
class Family:
    """A metric.

    Attributes:
        name: behind the table's prefix.
        text: what it says.
        figure: of which it is made; one that is None has no sample.
        kind: `counter`, `gauge`, or the states of which it is 1 for one and 0 for the others.
        unit: what the figure is divided by.
    """

    name: str
    text: str
    figure: str
    kind: Literal["counter", "gauge"] | tuple[str, ...] = "gauge"
    unit: float = 1


FOLLOWER = (
    Family("state", "1 for the phase that it is in.", "phase", PHASES),
    Family("breaker_state", "1 for the state of its circuit breaker.", "breaker", CIRCUITS),
    Family("retries", "Tries after an error that passes.", "retries", "counter"),
    Family("records", "Records that went through.", "records", "counter"),
    Family("dead_letters", "Records that are dead letters.", "dead", "counter"),
)
"""What all followers serve, with the labels `kind` and `name`."""


def families(
    prefix: str,
    labels: Sequence[str],
    table: Iterable[Family],
    figures: Iterable[tuple[Sequence[str], Mapping[str, Any]]],
) -> Iterator[Metric]:
    """Metrics of a table.

    Args:
        prefix: of their names.
        labels: of their samples.
        table: which.
        figures: with the labels' values.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rows = list(figures)
    for one in table:
        name = f"{prefix}_{one.name}"
        if one.kind == "counter":
            metric: Any = CounterMetricFamily(name, one.text, labels=labels)
        elif one.kind == "gauge":
            metric = GaugeMetricFamily(name, one.text, labels=labels)
        else:
            metric = GaugeMetricFamily(name, one.text, labels=[*labels, "state"])
        for values, found in rows:
            value = found.get(one.figure)
            if isinstance(one.kind, tuple):
                for state in one.kind:
                    metric.add_metric([*values, state], int(state == value))
            elif value is not None:
                metric.add_metric(values, value / one.unit)
        yield metric


def follower_families(
    kind: str, table: Iterable[Family], figures: Mapping[str, Mapping[str, Any]]
) -> Iterator[Metric]:
    """Metrics of followers of a kind: those of the kind, `penstock_KIND_…`, and those of all followers.

    Args:
        kind: such as `sink`.
        table: the kind's.
        figures: by name, what `Follower.figures` gives.
    """
    rows = [([name], found) for name, found in figures.items()]
    yield from families(f"penstock_{kind}", [kind], table, rows)
    rows = [([kind, name], found) for name, found in figures.items()]
    yield from families("penstock_follower", ["kind", "name"], FOLLOWER, rows)


def text(collect: Callable[[], Iterable[Metric]]) -> bytes:
    """Metrics in Prometheus' text form."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(collect))
    return generate_latest(registry)


@contextlib.contextmanager
def serve(host: str, port: int, collect: Callable[[], Iterable[Metric]]) -> Iterator[int]:
    """Serves `/metrics` meanwhile; the port.

    Args:
        host: where.
        port: where; 0: any that is free.
        collect: gives the metrics, at each scrape, in a thread.

    Raises:
        SetupError: the address can't be listened on.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(collect))
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


def _collector(collect: Callable[[], Iterable[Metric]]) -> Collector:
    from prometheus_client.registry import Collector

    class _Collected(Collector):
        def collect(self) -> Iterable[Metric]:
            return collect()

    return _Collected()
