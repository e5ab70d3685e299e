"""The graph that a program describes: what flows where. Values only; nothing here runs.

    Source -> RowStep* -> Aggregation -> (RowStep* -> Aggregation)* -> ViewNode | OutputNode

Each node's `identity` is a digest of all that its content depends on. State is kept under it, so a
program may be reordered freely, and one whose meaning changed never takes up the state of another.

In one graph a meaning is one node: a flow hands out the node that it has already where the same is
built again (`Flow.node`), so that whatever reads either reads both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from penstock.core.schema import Schema
from penstock.ops import AggregateSpec
from penstock.ops.rows import MapBatches, RowOperator, Select, Where

TIME: Final = "$time"  # int64, the event time of a row in µs

__all__ = ["TIME", "Aggregation", "Graph", "Node", "OutputNode", "RowStep", "Source", "ViewNode"]


@dataclass(frozen=True, eq=False)
class Source:
    """A topic read as rows of a schema.

    Attributes:
        topic: its name in the log.
        schema: of its values, which are JSON objects.
        time_column: the TIMESTAMP column that is the event time; None takes the record's own timestamp.
        lateness_us: how far a row may lie behind the newest of its partition.
        idle_us: a partition without new rows for so long (wall clock) no longer holds the watermark.
        key: the column that the log is partitioned by, if the producers keep to one.
        partitions: of the topic, where Penstock creates it.
        retention_us: likewise, how long its records are kept; None is for ever.
    """

    topic: str
    schema: Schema
    time_column: str | None
    lateness_us: int
    idle_us: int
    key: str | None
    partitions: int
    retention_us: int | None

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        return _digest("source", self.topic, self.schema.text, self.time_column, self.lateness_us)


@dataclass(frozen=True, eq=False)
class RowStep:
    """`where`, `select` or `map_batches` over another node's rows."""

    parent: Node
    operator: RowOperator
    schema: Schema

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        match self.operator:
            case Where(condition):
                what = f"where {condition.sql}"
            case Select(columns):
                what = "select " + ", ".join(f"{e.sql} AS {n!r}" for n, e in columns)
            case MapBatches(name=name, schema=schema):
                what = f"map {name} {schema.text}"
            case other:
                what = repr(other)
        return _digest("rows", self.parent.identity, what)


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A keyed, windowed aggregate over another node's rows; its content is a table."""

    parent: Node
    spec: AggregateSpec
    schema: Schema

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping columns."""
        return tuple(key.name for key in self.spec.keys)

    @cached_property
    def identity(self) -> str:
        """Digest of what the table depends on."""
        return _digest("aggregate", self.parent.identity, self.spec.to_spec())


Node: TypeAlias = Source | RowStep | Aggregation


@dataclass(frozen=True, eq=False)
class ViewNode:
    """A table that people query by name."""

    name: str
    node: Node


@dataclass(frozen=True, eq=False)
class OutputNode:
    """A topic that receives a stream's rows, or a table's closed windows."""

    topic: str
    node: Node
    partitions: int
    retention_us: int | None

    @property
    def identity(self) -> str:
        """Digest of what is written."""
        return _digest("output", self.topic, self.node.identity)


@dataclass(frozen=True, eq=False)
class Graph:
    """All that one program describes."""

    name: str
    sources: tuple[Source, ...]
    views: tuple[ViewNode, ...]
    outputs: tuple[OutputNode, ...]

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Asserts that what means the same is one node."""
        known: dict[str, Node] = {}
        for end in [view.node for view in self.views] + [output.node for output in self.outputs]:
            for node in ancestry(end):
                assert known.setdefault(node.identity, node) is node, node

    def aggregations(self) -> list[Aggregation]:
        """Every aggregation that a view or an output needs, each after those it reads."""
        found: dict[str, Aggregation] = {}
        ends = [view.node for view in self.views] + [output.node for output in self.outputs]
        for end in ends:
            for node in reversed(list(ancestry(end))):
                if isinstance(node, Aggregation):
                    found.setdefault(node.identity, node)
        return list(found.values())


def ancestry(node: Node) -> Iterator[Node]:
    """The node, its parent, and so on up to the source."""
    yield node
    while not isinstance(node, Source):
        node = node.parent
        yield node


def source_of(node: Node) -> Source:
    """The source that a node's rows come from."""
    *_, last = ancestry(node)
    assert isinstance(last, Source)
    return last


def table_of(node: Node) -> Aggregation | None:
    """The nearest aggregation that a node's rows come from, itself included."""
    return next((n for n in ancestry(node) if isinstance(n, Aggregation)), None)


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).hexdigest()
