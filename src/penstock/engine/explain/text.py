"""What a pipeline will do, as text: its operators, what is exchanged, and what they keep.

    orders  topic, 2 partitions, watermark 2026-01-01T12:00:50Z
      where amount >= 100
        -> topic large-orders, rows
          -> sink large-orders: postgresql://ann@localhost/reports large
      [1] aggregate by customer  exchanged by customer, 2 shards, 1,204 rows, 56.0 KB
          tumbling 1 minute: n = count(*), total = sum(amount)
        -> view totals

With figures of the running pipeline, each line ends with what its node has done since the process started:
rows in and out, seconds of processor time, and their share of all nodes' time, as in
`(1,204 -> 12 rows, 0.310 s, 41.0%)`.

A node stands below what it reads. Where it reads several, it is shown in full below the first, and its
number stands below the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.engine.explain.figures import NodeFigures
from penstock.engine.explain.labels import Labels
from penstock.engine.physical import Physical, Placed
from penstock.engine.record.version import Version
from penstock.flow.graph import (
    Closed,
    Node,
    OutputNode,
    RowStep,
    Source,
    Stateful,
    Union,
    ViewNode,
)

__all__ = ["explain"]

INDENT: Final = "  "


def explain(
    physical: Physical,
    version: Version | None = None,
    figures: Mapping[str, NodeFigures] | None = None,
    targets: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A pipeline's graph as text.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
        figures: by node, what it has done, as `penstock.app.facts.Facts.nodes` has it. None shows none.
        targets: by topic, the sinks that follow it, as `App.targets` gives them.
    """
    return "\n".join(_Explanation(physical, version, figures or {}, targets or {}).lines())


class _Explanation:
    def __init__(
        self,
        physical: Physical,
        version: Version | None,
        figures: Mapping[str, NodeFigures],
        targets: Mapping[str, Sequence[str]],
    ) -> None:
        self.physical, self.labels = physical, Labels(physical, version)
        self.figures, self.targets = figures, targets
        self.seconds = sum(one["seconds"] for one in figures.values())
        graph = physical.graph
        self.below: dict[str, list[Node | ViewNode | OutputNode]] = {}
        for node in graph.nodes:
            for above in dict.fromkeys(node.inputs):
                self.below.setdefault(above.identity, []).append(node)
        ends: list[ViewNode | OutputNode] = [*graph.views, *graph.outputs]
        for end in ends:
            self.below.setdefault(end.node.identity, []).append(end)
        stateful = [node.identity for node in graph.stateful()]
        self.numbers = {name: i for i, name in enumerate(stateful, 1)}
        self.seen: set[str] = set()

    def lines(self) -> Iterator[str]:
        used = {node.identity for node in self.physical.graph.nodes}
        for source in self.physical.graph.sources:
            if source.identity in used:
                yield self._source(source)
                yield from self._below(source, 1)
            else:
                yield f"{source.topic}  topic, read by nothing"
        for node in self.physical.graph.nodes:
            if isinstance(node, Stateful) and not node.inputs:
                yield from self._one(node, 0)

    def _below(self, node: Node, depth: int) -> Iterator[str]:
        for one in self.below.get(node.identity, []):
            yield from self._one(one, depth)

    def _one(self, one: Node | ViewNode | OutputNode, depth: int) -> Iterator[str]:
        pad = INDENT * depth
        match one:
            case ViewNode():
                yield f"{pad}-> view {one.name}"
                return
            case OutputNode():
                yield (
                    f"{pad}-> topic {one.topic}, {', '.join(self.labels.output(one))}"
                    f"{self._done(one)}"
                )
                for target in self.targets.get(one.topic, ()):
                    yield f"{pad}{INDENT}-> sink {target}"
                return
            case Stateful():
                number = f"[{self.numbers[one.identity]}] "
                if one.identity in self.seen:
                    yield f"{pad}{number}{one.operator.kind}, see above"
                    return
                self.seen.add(one.identity)
                yield from self._stateful(self.physical.placed[one.identity], number, pad)
            case Union():
                if one.identity in self.seen:
                    yield f"{pad}union, see above"
                    return
                self.seen.add(one.identity)
                yield f"{pad}union of {len(one.inputs)}{self._done(one)}"
            case Closed():
                yield f"{pad}closed rows{self._done(one)}"
            case RowStep():
                yield f"{pad}{self.labels.step(one)}{self._done(one)}"
        assert not isinstance(one, ViewNode | OutputNode)
        yield from self._below(one, depth + 1)

    def _source(self, source: Source) -> str:
        return f"{source.topic}  topic, {', '.join(self.labels.source(source))}{self._done(source)}"

    def _done(self, node: Node | OutputNode) -> str:
        """What a node has done, where that is known; behind its words."""
        one = self.figures.get(node.identity)
        if one is None:
            return ""
        out = "" if one["rows_out"] is None else f" -> {one['rows_out']:,}"
        share = one["seconds"] / self.seconds if self.seconds else 0.0
        return f"  ({one['rows_in']:,}{out} rows, {one['seconds']:.3f} s, {share:.1%})"

    def _stateful(self, placed: Placed, number: str, pad: str) -> Iterator[str]:
        keys, size = self.labels.keys(placed), self.labels.size(placed)
        where = "in place" if placed.fused else f"exchanged by {keys}, {placed.shards} shards"
        words = f"{placed.operator.kind} by {keys}  {', '.join(filter(None, [where, size]))}"
        yield f"{pad}{number}{words}{self._done(placed.node)}"
        if detail := self.labels.detail(placed):
            yield f"{pad}{' ' * len(number)}{detail}"
        for name, others in self.labels.shared(placed):
            sharers = ", ".join(f"[{self.numbers[one]}] {theirs}" for one, theirs in others)
            yield f"{pad}{' ' * len(number)}{name} shared with {sharers}"
