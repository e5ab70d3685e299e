"""A pipeline's figures in Prometheus' text form, made of the status when a scrape asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.follow.metrics import METRICS_TYPE, Family, families, text

if TYPE_CHECKING:
    from prometheus_client import Metric

    from penstock.web.status import Status

__all__ = ["METRICS_TYPE", "metrics_text"]

_STATE: Final = "penstock_pipeline_state"
PIPELINE: Final = (
    Family("version", "The last committed version.", "version"),
    Family("batch_seconds", "How long the last batch took.", "batch_ms", unit=1_000),
    Family(
        "committed_timestamp_seconds", "When the last version was made.", "committed_us", unit=1e6
    ),
)
RESTARTS: Final = Family(
    *("spark_restarts", "How often Spark was gone in this run, and was started again."),
    *("spark_restarts", "counter"),
)
TOPIC: Final = (
    Family("records", "Records read.", "rows", "counter"),
    Family("late_records", "Of these, too late for a window.", "late_rows", "counter"),
    Family("unusable_records", "Of these, that could not be used.", "unusable_rows", "counter"),
    Family("lost_records", "Removed by retention before they were read.", "lost_rows", "counter"),
    Family("lag_records", "Records that are in the log and not in the views.", "lag"),
    Family("watermark_timestamp_seconds", "Of the topic.", "watermark_us", unit=1e6),
)
NODE: Final = (
    Family("rows_in", "Rows handed to a node of the graph.", "rows_in", "counter"),
    Family("rows_out", "Rows that it gave, retractions included.", "rows_out", "counter"),
    Family("late_rows", "Rows that were too late for it.", "late_rows", "counter"),
    Family("seconds", "Spent in it, added up over lanes.", "seconds", "counter"),
    Family("state_rows", "Rows in the files of its state.", "state_rows"),
    Family("state_bytes", "Bytes of these files.", "state_bytes"),
    Family(
        *("oldest_state_timestamp_seconds", "The oldest event time that it keeps.", "oldest_us"),
        unit=1e6,
    ),
    Family(
        *("frontier_timestamp_seconds", "It gives no row of an earlier time.", "frontier_us"),
        unit=1e6,
    ),
)
VIEW: Final = (
    Family(
        "failed_values",
        "Values that are NULL, because they failed when it was last read.",
        "values",
    ),
    Family("failed_rows", "Rows that are missing, because their condition failed then.", "rows"),
    Family("failed_groups", "Groups whose query failed then.", "groups"),
)


def metrics_text(status: Status) -> bytes:
    """The metrics of a status (`StatusBoard.status`)."""
    return text(lambda: _metrics(status))


def _metrics(status: Status) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    app = status["app"]
    state = GaugeMetricFamily(_STATE, "1 for the state that it is in.", labels=["app", "state"])
    state.add_metric([app, status["state"]["name"]], 1)
    yield state
    figures: Mapping[str, object] = status
    known = [one for one in (*PIPELINE, RESTARTS) if figures[one.figure] is not None]
    yield from families("penstock_pipeline", ["app"], known, [([app], figures)])
    topics = [([app, topic], one) for topic, one in status["sources"].items()]
    yield from families("penstock_pipeline", ["app", "topic"], TOPIC, topics)
    nodes = [([app, node, one["kind"], one["name"]], one) for node, one in status["nodes"].items()]
    yield from families("penstock_node", ["app", "node", "kind", "name"], NODE, nodes)
    views = [([app, view], counts) for view, counts in status["failures"].items()]
    yield from families("penstock_view", ["app", "view"], VIEW, views)
    if status["sinks"]:
        from penstock.sinks import sink_metrics  # loads clients

        yield from sink_metrics(status["sinks"])
