"""From the graph of a program to stages: which operators run together, and where rows are exchanged.

A stage is one round of tasks. Stage 0 has a task for each group of *splits* (topic, partition, from,
to); a later stage has one for each *shard*. An aggregation runs in the stage of its input (*fused*)
where all rows of a group already meet in one task: its input has one shard, or is partitioned by a
column that it groups by. Otherwise its input is pre-aggregated where it is, cut by the hash of the
group and exchanged, and the aggregation runs one stage later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from penstock.flow.graph import (
    Aggregation,
    Graph,
    Node,
    OutputNode,
    RowStep,
    Source,
    ancestry,
    source_of,
    table_of,
)
from penstock.ops import WindowedAggregate
from penstock.ops.rows import Select, Where

__all__ = ["Physical", "Placed", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Placed:
    """An aggregation and where it runs.

    Attributes:
        id: its node's identity.
        operator: gives changes where another aggregation reads it, closed windows where a topic does.
        stage: the round of tasks that it runs in.
        shards: into how many parts its state is cut; part i belongs to task i of the stage.
        fused: whether it runs in the task that made its input.
        names: of the views and topics that show it, for reports.
    """

    id: str
    node: Aggregation
    operator: WindowedAggregate
    stage: int
    shards: int
    fused: bool
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Physical:
    """A graph that is ready to run.

    Attributes:
        partitions: of each topic that is read.
        placed: every aggregation by identity, each after those it reads.
        stages: how many rounds of tasks a batch takes.
        shards: how many tasks each round after the first has.
    """

    graph: Graph
    partitions: Mapping[str, int]
    placed: Mapping[str, Placed]
    stages: int
    shards: int

    def reading(self, node: Source | Aggregation) -> list[Placed | OutputNode]:
        """What reads a source's rows or a table's, through row steps only."""
        readers: list[Placed | OutputNode] = [
            p for p in self.placed.values() if _origin(p.node.parent) is node
        ]
        readers += [o for o in self.graph.outputs if _origin(o.node) is node]
        return readers

    def relies_on_key(self, source: Source) -> bool:
        """Whether an aggregation is fused because the log is partitioned by the stream's key."""
        return self.partitions[source.topic] > 1 and any(
            p.fused and p.stage == 0 and source_of(p.node) is source for p in self.placed.values()
        )

    def digest(self, lanes: int, output_partitions: Mapping[str, int]) -> str:
        """What a repeated batch must have in common with the first attempt, to write the same."""
        graph = self.graph
        parts = sorted(source.identity for source in graph.sources)
        parts += sorted(output.identity for output in graph.outputs)
        parts += sorted(f"{p.id} {p.stage} {p.shards} {p.fused}" for p in self.placed.values())
        parts += [str(lanes), str(sorted(output_partitions.items()))]
        return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def input_of(self, reader: Placed | OutputNode) -> Node:
        """The node whose rows a reader takes."""
        return reader.node.parent if isinstance(reader, Placed) else reader.node


def compile_graph(graph: Graph, partitions: Mapping[str, int], shards: int) -> Physical:
    """Places every aggregation.

    Args:
        graph: what the program describes.
        partitions: of each topic that it reads, as they are in the log.
        shards: into how many parts exchanged state is cut.
    """
    placed: dict[str, Placed] = {}
    partitioned_by: dict[str, frozenset[str]] = {}  # columns that decide the shard; by identity
    for node in graph.aggregations():
        origin = _origin(node.parent)
        if isinstance(origin, Source):
            stage, width = 0, partitions[origin.topic]
            # Records without a key lie in any partition, so a key that may be NULL decides nothing.
            keyed = origin.key is not None and origin.schema[origin.key].required
            columns = frozenset([origin.key] if keyed and origin.key else [])
        else:
            above = placed[origin.identity]
            stage, width, columns = above.stage, above.shards, partitioned_by[origin.identity]
        fused = width == 1 or (
            bool(columns) and columns <= set(node.keys) and _unchanged(node.parent, columns)
        )
        if not fused:
            stage, width, columns = stage + 1, shards, frozenset(node.keys)
        partitioned_by[node.identity] = columns
        spec = replace(
            node.spec,
            changes=any(table_of(a.parent) is node for a in graph.aggregations()),
            final=any(table_of(o.node) is node for o in graph.outputs),
        )
        placed[node.identity] = Placed(
            id=node.identity,
            node=node,
            operator=WindowedAggregate(spec),
            stage=stage,
            shards=width,
            fused=fused,
            names=_names(graph, node),
        )
    stages = 1 + max((p.stage for p in placed.values()), default=0)
    return Physical(graph, dict(partitions), placed, stages, shards)


def _origin(node: Node) -> Source | Aggregation:
    return table_of(node) or source_of(node)


def _unchanged(node: Node, columns: frozenset[str]) -> bool:
    """Whether row steps hand the columns on as they are, up to the next source or aggregation."""
    for step in ancestry(node):
        match step:
            case RowStep(operator=Select(columns=computed)):
                same = {name for name, e in computed if e.text in {name, f'"{name}"'}}
                if not columns <= same:
                    return False
            case RowStep(operator=Where()):
                pass
            case RowStep():
                return False
            case Source() | Aggregation():
                break
    return True


def _names(graph: Graph, node: Aggregation) -> tuple[str, ...]:
    views = [v.name for v in graph.views if table_of(v.node) is node]
    outputs = [o.topic for o in graph.outputs if table_of(o.node) is node]
    return tuple(views + outputs) or (node.identity,)
