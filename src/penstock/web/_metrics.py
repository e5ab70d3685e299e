"""A pipeline's figures in Prometheus' text form, made of the status when a scrape asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

__all__ = ["METRICS_TYPE", "metrics_text"]

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Name, help, the status' field, and what it is divided by.
_PIPELINE: Final = (
    ("version", "The last committed version.", "version", 1),
    ("batch_seconds", "How long the last batch took.", "batch_ms", 1_000),
    ("committed_timestamp_seconds", "When the last version was made.", "committed_us", 1e6),
)
_TOPIC_COUNTERS: Final = (
    ("records", "Records read.", "rows"),
    ("late_records", "Of these, too late for a window.", "late_rows"),
    ("unusable_records", "Of these, that could not be used.", "unusable_rows"),
    ("lost_records", "Removed by retention before they were read.", "lost_rows"),
)
_NODE_COUNTERS: Final = (
    ("rows_in", "Rows handed to a node of the graph.", "rows_in"),
    ("rows_out", "Rows that it gave, retractions included.", "rows_out"),
    ("late_rows", "Rows that were too late for it.", "late_rows"),
    ("seconds", "Spent in it, added up over lanes.", "seconds"),
)
_NODE_GAUGES: Final = (
    ("state_rows", "Rows in the files of its state.", "state_rows", 1),
    ("state_bytes", "Bytes of these files.", "state_bytes", 1),
    ("oldest_state_timestamp_seconds", "The oldest event time that it keeps.", "oldest_us", 1e6),
    ("frontier_timestamp_seconds", "It gives no row of an earlier time.", "frontier_us", 1e6),
)
_VIEW_GAUGES: Final = (
    ("failed_values", "Values that are NULL, because they failed when it was last read.", "values"),
    ("failed_rows", "Rows that are missing, because their condition failed then.", "rows"),
    ("failed_groups", "Groups whose query failed then.", "groups"),
)


def metrics_text(status: dict[str, Any]) -> bytes:
    """The metrics of a status (`StatusBoard.status`)."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(status))
    return generate_latest(registry)


def _collector(status: dict[str, Any]) -> Collector:
    from prometheus_client.registry import Collector

    class _Status(Collector):
        def collect(self) -> Iterable[Any]:
            yield from _pipeline(status)
            yield from _topics(status)
            yield from _nodes(status)
            yield from _views(status)
            if status["sinks"]:
                from penstock.sinks import sink_metrics  # loads clients

                yield from sink_metrics(status["sinks"])

    return _Status()


def _pipeline(status: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels, app = ["app"], [status["app"]]
    state = GaugeMetricFamily(
        "penstock_pipeline_state", "1 for the state that it is in.", labels=["app", "state"]
    )
    state.add_metric([*app, status["state"]["name"]], 1)
    yield state
    for name, text, what, unit in _PIPELINE:
        if status[what] is not None:
            metric = GaugeMetricFamily(f"penstock_pipeline_{name}", text, labels=labels)
            metric.add_metric(app, status[what] / unit)
            yield metric
    if status["spark_restarts"] is not None:
        text = "How often Spark was gone in this run, and was started again."
        counter = CounterMetricFamily("penstock_pipeline_spark_restarts", text, labels=labels)
        counter.add_metric(app, status["spark_restarts"])
        yield counter


def _topics(status: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels, sources = ["app", "topic"], status["sources"].items()
    for name, text, what in _TOPIC_COUNTERS:
        counter = CounterMetricFamily(f"penstock_pipeline_{name}", text, labels=labels)
        for topic, source in sources:
            counter.add_metric([status["app"], topic], source[what])
        yield counter
    for name, text, what, unit in (
        ("lag_records", "Records that are in the log and not in the views.", "lag", 1),
        ("watermark_timestamp_seconds", "Of the topic.", "watermark_us", 1e6),
    ):
        gauge = GaugeMetricFamily(f"penstock_pipeline_{name}", text, labels=labels)
        for topic, source in sources:
            if source[what] is not None:
                gauge.add_metric([status["app"], topic], source[what] / unit)
        yield gauge


def _nodes(status: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["app", "node", "kind", "name"]
    nodes = [
        ([status["app"], node, one["kind"], one["name"]], one)
        for node, one in status["nodes"].items()
    ]
    for name, text, what in _NODE_COUNTERS:
        counter = CounterMetricFamily(f"penstock_node_{name}", text, labels=labels)
        for names, one in nodes:
            if one[what] is not None:
                counter.add_metric(names, one[what])
        yield counter
    for name, text, what, unit in _NODE_GAUGES:
        gauge = GaugeMetricFamily(f"penstock_node_{name}", text, labels=labels)
        for names, one in nodes:
            if one[what] is not None:
                gauge.add_metric(names, one[what] / unit)
        yield gauge


def _views(status: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text, what in _VIEW_GAUGES:
        gauge = GaugeMetricFamily(f"penstock_view_{name}", text, labels=["app", "view"])
        for view, counts in status["failures"].items():
            gauge.add_metric([status["app"], view], counts[what])
        yield gauge
