"""`EXPLAIN` of a query over views: DuckDB's plan, and how each view that it reads is kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.serve.answers import Answer
from penstock.serve.listings import running_facts
from penstock.serve.views import Snapshot
from penstock.state.sizes import state_size

if TYPE_CHECKING:
    import duckdb

    from penstock.engine.explain.figures import NodeFigures

__all__ = ["COLUMN", "explained", "running_figures"]

COLUMN: Final = "QUERY PLAN"
"""What PostgreSQL calls the column."""


def explained(
    snapshot: Snapshot,
    query: str,
    *,
    figures: Mapping[str, NodeFigures] | None,
    memory_bytes_max: int,
    prepare: Callable[[duckdb.DuckDBPyConnection], None] | None,
) -> Answer:
    """The plan of a query, a line in a row.

    Args:
        snapshot: whose views it reads.
        query: one SELECT.
        figures: of `ANALYZE`, which runs the query: by node of the running pipeline, what it has done
            (`running_figures`). None: the plan alone.
        memory_bytes_max: as for `Snapshot.answer`.
        prepare: as for `Snapshot.answer`.

    Raises:
        QueryError: it is not one SELECT over the views.
    """
    names = snapshot.named(query) if prepare is None else []
    found = snapshot.answer(
        query,
        rows_max=100,
        memory_bytes_max=memory_bytes_max,
        prepare=prepare or (lambda _: None),
        explain="EXPLAIN" if figures is None else "EXPLAIN ANALYZE",
    )
    lines = [f"Version {snapshot.version}"]
    for name in names:
        lines += _view(snapshot, name, figures or {})
    for text in found.table.column(1).to_pylist():
        lines += str(text).rstrip().splitlines()
    return Answer(pa.table({COLUMN: lines}), len(lines), (), ("VARCHAR",), snapshot.version)


def _view(snapshot: Snapshot, name: str, figures: Mapping[str, NodeFigures]) -> Iterator[str]:
    """How a view is kept up to date: its operator, its state, what it did in the running pipeline."""
    node, entry = snapshot.kept_by(name)
    rows, size, _ = state_size(entry.traces)
    shards = len(entry.traces)
    yield (
        f"View {name}: kept up to date by {entry.name or node!r}, {rows:,} rows and {size:,} bytes "
        f"of state in {shards} shard{'' if shards == 1 else 's'}"
    )
    done = figures.get(node)
    if done is not None:
        out = "" if done["rows_out"] is None else f", {done['rows_out']:,} rows out"
        total = sum(one["seconds"] for one in figures.values())
        share = f" ({done['seconds'] / total:.1%} of the pipeline's)" if total else ""
        yield (
            f"  since the pipeline's start: {done['rows_in']:,} rows in{out}, {done['seconds']:.3f} s of "
            f"processor time{share}"
        )


def running_figures(where: Path) -> Mapping[str, NodeFigures]:
    """By node, what the pipeline's process says that it has done; empty where there is none.

    Args:
        where: the directory of the state.
    """
    return running_facts(where).get("nodes") or {}
