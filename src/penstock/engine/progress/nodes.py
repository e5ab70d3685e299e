"""What a batch reports of each node: the lanes' counts, and the state that the new version has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.engine.explain.labels import Labels
from penstock.engine.physical import Physical
from penstock.engine.progress.meter import LATE, ROWS_IN, ROWS_OUT, SECONDS
from penstock.engine.record.version import Version
from penstock.flow.graph import Closed, Node, OutputNode, RowStep, Source, Stateful, Union
from penstock.ops import NO_TIME
from penstock.state.sizes import state_size

__all__ = ["NodeProgress", "Nodes"]

NAME_CHARS_MAX: Final = 60  # of a step, whose name is its text


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """What one node of the graph did in a batch.

    Attributes:
        name: of a topic; of the views and topics that show an operator; the text of a step.
        kind: `source`, `output`, `step`, `union`, `closed`, or the operator's.
        rows_in: handed to it; of a source, read.
        rows_out: given by it, retractions included; None where nothing reads them, so that they
            aren't computed.
        late_rows: of `rows_in`, those that were too late for at least one of their windows.
        ms: spent in it, added up over lanes.
        state_rows: rows in the state's files after the batch; None where it keeps nothing. A file that
            several nodes have counts for the first.
        state_bytes: bytes of these files.
        oldest_us: the event time from which on the state has rows; None where it isn't kept by time.
        frontier_us: it gives no row of an earlier time any more; None where nothing is promised.
    """

    name: str
    kind: str
    rows_in: int
    rows_out: int | None
    late_rows: int
    ms: float
    state_rows: int | None = None
    state_bytes: int | None = None
    oldest_us: int | None = None
    frontier_us: int | None = None


class Nodes:
    """The nodes of a graph, as reports name them.

    Args:
        physical: the graph, and where it runs.
    """

    def __init__(self, physical: Physical) -> None:
        self._graph = physical.graph
        labels = Labels(physical, None)
        self._named = {
            one.identity: _named(one, physical, labels)
            for one in (*self._graph.nodes, *self._graph.outputs)
        }

    def progress(
        self,
        reports: Iterable[Mapping[str, Sequence[float]]],
        version: Version,
        watermarks_us: Mapping[str, int],
        frontiers_us: Mapping[str, Sequence[int]],
    ) -> dict[str, NodeProgress]:
        """What each node did, by identity.

        Args:
            reports: of the lanes (`Meter.report`).
            version: that the batch made.
            watermarks_us: of the batch's plan, by topic.
            frontiers_us: of the batch's plan, by operator and port.
        """
        sums: dict[str, list[float]] = {}
        for report in reports:
            for node, counts in report.items():
                known = sums.get(node)
                sums[node] = list(counts) if known is None else _added(known, counts)
        promised = self._promised(watermarks_us, frontiers_us)
        seen: set[str] = set()
        return {
            node: self._one(node, sums.get(node), version, promised.get(node), seen)
            for node in self._named
        }

    def _one(
        self,
        node: str,
        counts: Sequence[float] | None,
        version: Version,
        frontier_us: int | None,
        seen: set[str],
    ) -> NodeProgress:
        name, kind = self._named[node]
        rows, size, oldest_us = None, None, None
        entry = version.operators.get(node)
        if entry is not None:
            rows, size, oldest_us = state_size(entry.traces, seen)
        if counts is None:
            counts = (0, 0, 0, 0.0)
        return NodeProgress(
            name=name,
            kind=kind,
            rows_in=int(counts[ROWS_IN]),
            rows_out=int(counts[ROWS_OUT]) if counts[ROWS_OUT] >= 0 else None,
            late_rows=int(counts[LATE]),
            ms=1_000 * counts[SECONDS],
            state_rows=rows,
            state_bytes=size,
            oldest_us=oldest_us,
            frontier_us=None if frontier_us in {None, NO_TIME} else frontier_us,
        )

    def _promised(
        self, watermarks_us: Mapping[str, int], frontiers_us: Mapping[str, Sequence[int]]
    ) -> dict[str, int]:
        """What each node promises, from what is promised to it."""
        found: dict[str, int] = {}
        for node in self._graph.nodes:
            match node:
                case Source(topic=topic):
                    found[node.identity] = watermarks_us.get(topic, NO_TIME)
                case Stateful():
                    ports = frontiers_us.get(node.identity, ())[: len(node.inputs)]
                    found[node.identity] = node.operator.frontier(ports) if ports else NO_TIME
                case _:
                    found[node.identity] = min(found[one.identity] for one in node.inputs)
        return found


def _added(one: list[float], other: Sequence[float]) -> list[float]:
    found = [a + b for a, b in zip(one, other, strict=True)]
    known = [counts[ROWS_OUT] for counts in (one, other) if counts[ROWS_OUT] >= 0]
    found[ROWS_OUT] = sum(known) if known else -1
    return found


def _named(node: Node | OutputNode, physical: Physical, labels: Labels) -> tuple[str, str]:
    """A node's name and kind."""
    match node:
        case Source(topic=topic):
            return topic, "source"
        case OutputNode(topic=topic):
            return topic, "output"
        case Stateful():
            return physical.placed[node.identity].name, node.operator.kind
        case Closed(table=table):
            return physical.placed[table.identity].name, "closed"
        case Union():
            return f"union of {len(node.inputs)}", "union"
        case _:
            assert isinstance(node, RowStep)
            text = labels.step(node)
            return text if len(text) <= NAME_CHARS_MAX else text[: NAME_CHARS_MAX - 1] + "…", "step"
