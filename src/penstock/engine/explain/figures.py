"""What a node of a running pipeline has done since the process started, and does now, as JSON."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["NodeFigures"]


class NodeFigures(TypedDict):
    """The figures of one node; the facts of a pipeline's process have them (`penstock.app.nodes`).

    Attributes:
        name: see `penstock.engine.progress.nodes.NodeProgress`, as all that isn't said here.
        kind: see there.
        rows_in: in all.
        rows_out: in all; None: nothing reads them.
        late_rows: in all.
        ms: of the last batch.
        state_rows: after the last batch.
        state_bytes: after the last batch.
        oldest_us: see there.
        frontier_us: see there.
        seconds: spent in it in all, added up over lanes.
        rows_in_per_s: over the last seconds, as all rates.
        rows_out_per_s: a rate.
        busy: seconds of work a second.
        growth_rows_per_s: how fast the state grows; None: it keeps nothing.
        growth_bytes_per_s: likewise.
    """

    name: str
    kind: str
    rows_in: int
    rows_out: int | None
    late_rows: int
    ms: float
    state_rows: int | None
    state_bytes: int | None
    oldest_us: int | None
    frontier_us: int | None
    seconds: float
    rows_in_per_s: float
    rows_out_per_s: float | None
    busy: float
    growth_rows_per_s: float | None
    growth_bytes_per_s: float | None
