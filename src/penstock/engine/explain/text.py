"""What a pipeline will do, as text: its operators, what is exchanged, and what they keep.

    orders  topic, 2 partitions, watermark 2026-01-01T12:00:50Z
      where amount >= 100
        -> topic large-orders, rows
      [1] aggregate by customer  exchanged by customer, 2 shards, 1,204 rows, 56.0 KB
          tumbling 1 minute: n = count(*), total = sum(amount)
        -> view totals

A node stands below what it reads. Where it reads several, it is told in full below the first, and its
number stands below the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.engine.explain.labels import Labels
from penstock.engine.physical import Physical, Placed
from penstock.engine.store import Json
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


def explain(physical: Physical, version: Json | None = None) -> str:
    """A pipeline's graph as text.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
    """
    return "\n".join(_Told(physical, version).lines())


class _Told:
    def __init__(self, physical: Physical, version: Json | None) -> None:
        self.physical, self.labels = physical, Labels(physical, version)
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
                yield f"{pad}-> topic {one.topic}, {', '.join(self.labels.output(one))}"
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
                yield f"{pad}union of {len(one.inputs)}"
            case Closed():
                yield f"{pad}closed rows"
            case RowStep():
                yield f"{pad}{self.labels.step(one)}"
        assert not isinstance(one, ViewNode | OutputNode)
        yield from self._below(one, depth + 1)

    def _source(self, source: Source) -> str:
        return f"{source.topic}  topic, {', '.join(self.labels.source(source))}"

    def _stateful(self, placed: Placed, number: str, pad: str) -> Iterator[str]:
        keys, size = self.labels.keys(placed), self.labels.size(placed)
        where = "in place" if placed.fused else f"exchanged by {keys}, {placed.shards} shards"
        yield f"{pad}{number}{placed.operator.kind} by {keys}  {', '.join(filter(None, [where, size]))}"
        if detail := self.labels.detail(placed):
            yield f"{pad}{' ' * len(number)}{detail}"
