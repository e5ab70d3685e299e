"""The status of a pipeline, as `GET /api/status` has it, and the terminal and `penstock status` show it.

Instants (`…_us`) are microseconds since 1970 UTC. None: it isn't known, or there is none.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from penstock.engine.explain.figures import NodeFigures
from penstock.sinks.figures import SinkFigures

__all__ = ["FailureCounts", "PartState", "SinkStatus", "SourceStatus", "StateStatus", "Status"]


class StateStatus(TypedDict):
    """How the pipeline is: `penstock.web.health.Health`.

    Attributes:
        name: of the state.
        level: `good`, `wait`, `bad` or `off`.
        since_us: since when.
        reason: why.
        advice: what helps.
    """

    name: str
    level: str
    since_us: int | None
    reason: str
    advice: str


class PartState(TypedDict):
    """How a part of a pipeline is; as `StateStatus`, but for `since`, a text."""

    name: str
    level: str
    since: str | None
    reason: str
    advice: str


class SourceStatus(TypedDict):
    """A topic that is read.

    Attributes:
        rows: records read.
        rows_per_s: over the last seconds.
        lag: records that are in the log and not in the views.
        watermark_us: its watermark.
        held_by: who holds it back.
        held_since_us: since when.
        watermark_delay_ms: how far it is behind the clock.
        late_rows: too late for a window.
        unusable_rows: those that could not be used.
        lost_rows: removed by retention before they were read.
    """

    rows: int
    rows_per_s: float
    lag: int | None
    watermark_us: int | None
    held_by: str | None
    held_since_us: int | None
    watermark_delay_ms: float | None
    late_rows: int
    unusable_rows: int
    lost_rows: int


class SinkStatus(SinkFigures):
    """A sink of the program, and how it is."""

    state: PartState


class FailureCounts(TypedDict):
    """How many values, rows and groups of a view failed when it was last read."""

    values: int
    rows: int
    groups: int


class Status(TypedDict):
    """The status of a pipeline; sums are over its topics.

    Attributes:
        app: the pipeline's name.
        state: how it is.
        version: the last committed one.
        committed_us: when that was made.
        now_us: when this was asked.
        started_us: when the pipeline's process was started.
        log: the log's address.
        spark_restarts: how often Spark was started again in this run.
        batch_ms: how long the last batch took.
        split_ms: its parts.
        rows: records read.
        rows_per_s: over the last seconds.
        lag: records that are in the log and not in the views.
        watermark_delay_ms: of the topic that is furthest behind.
        late_rows: too late for a window.
        unusable_rows: those that could not be used.
        lost_rows: removed by retention before they were read.
        dead_letter_topic: where letters of them are.
        sources: by topic.
        nodes: of the graph, by identity.
        sinks: of the program, by name.
        failures: by view.
        slowest: the node that takes most of the time.
        history: a point each second: ms, batch_ms, rows_per_s, lag, watermark_delay_ms, late_rows,
            unusable_rows; only where it was asked for.
    """

    app: str
    state: StateStatus
    version: int | None
    committed_us: int | None
    now_us: int
    started_us: int | None
    log: str | None
    spark_restarts: int | None
    batch_ms: float | None
    split_ms: dict[str, float]
    rows: int
    rows_per_s: float | None
    lag: int | None
    watermark_delay_ms: float | None
    late_rows: int
    unusable_rows: int
    lost_rows: int
    dead_letter_topic: str | None
    sources: dict[str, SourceStatus]
    nodes: dict[str, NodeFigures]
    sinks: dict[str, SinkStatus]
    failures: dict[str, FailureCounts]
    slowest: str | None
    history: NotRequired[list[list[float | None]]]
