"""From the graph of a program to levels: which operators run together, and where rows are exchanged.

A batch is a sequence of levels. Level 0 reads *splits* (topic, partition, from, to); at a later level the
lanes run the operators of that level, *shard* by shard. An operator runs at the level of its input (*fused*)
where all rows of a key already meet in one lane: its only input has one shard, or is placed by columns
that its key has. Otherwise its inputs are prepared where they are, cut by the hash of the key and
exchanged, and it runs one level after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import pyarrow as pa

from penstock.core.delta import unnumbered
from penstock.core.names import built
from penstock.flow.graph import (
    Closed,
    Graph,
    Node,
    Origin,
    OutputNode,
    RowStep,
    Source,
    Stateful,
    Union,
    ancestors,
    columns_read,
    needed,
    origins,
)
from penstock.ops import NO_TIME, Operator, Traits
from penstock.ops.rows import Explanations, MapBatches, Refused, Select, Unnest, Where

__all__ = ["Physical", "Placed", "Reader", "compile_graph"]


@dataclass(frozen=True, eq=False)
class Placed:
    """An operator and where it runs.

    Attributes:
        id: its node's identity.
        operator: gives what is read of it, and no more.
        level: that it runs at.
        shards: into how many parts its state is cut; part i belongs to lane i modulo lanes, or, at level 0,
            to the lane that reads partition i.
        fused: whether it runs in the lane that made its input.
        topic: at level 0, the topic that it reads.
        names: of the views and topics that show it, for reports.
        hashed_by: the columns whose hash decides the shard, where they aren't the operator's key: those by
            which its input is placed.
    """

    id: str
    node: Stateful
    operator: Operator
    level: int
    shards: int
    fused: bool
    topic: str | None
    names: tuple[str, ...]
    hashed_by: tuple[str, ...] | None = None

    @property
    def traits(self) -> Traits:
        """What the operator is."""
        return self.operator.traits

    @property
    def is_hashed(self) -> bool:
        """Whether columns of a row decide its shard; otherwise the partition that it was read from does."""
        return self.topic is None or self.shards == 1

    @property
    def title(self) -> str:
        """The name with the place in the program, for messages."""
        return f"{self.name}{built(self.node.built_at)}"

    @property
    def name(self) -> str:
        """What people know it by."""
        return ", ".join(self.names)

    @property
    def cut(self) -> str:
        """How its state is cut: of two placings of one operator that agree in it, the shards are the same."""
        return (
            f"{self.shards} {'in place' if self.fused else 'exchanged'} {self.topic or ''}".strip()
        )


@dataclass(frozen=True, eq=False)
class Reader:
    """Who takes the rows of an origin: a port of an operator, or a topic."""

    to: Placed | OutputNode
    port: int
    node: Node


@dataclass(frozen=True, eq=False)
class Physical:
    """A graph that is ready to run.

    Attributes:
        partitions: of each topic that is read.
        placed: every operator by identity, each after those it reads.
        levels: how many a batch has.
        shards: of an operator whose input is exchanged.
        unkeyed: topics whose keys decide nothing, whatever the streams say: they have got more partitions,
            so that a key's records may lie in two.
    """

    graph: Graph
    partitions: Mapping[str, int]
    placed: Mapping[str, Placed]
    levels: int
    shards: int
    unkeyed: frozenset[str] = frozenset()
    _readers: Mapping[str, list[Reader]] = field(init=False, repr=False)
    _columns: Mapping[str, frozenset[str]] = field(init=False, repr=False)
    _peers: Mapping[str, frozenset[str]] = field(init=False, repr=False)
    _alike: Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found: dict[str, list[Reader]] = {}
        readers = [
            Reader(p, port, node)
            for p in self.placed.values()
            for port, node in enumerate(p.node.inputs)
        ]
        readers += [Reader(output, 0, output.node) for output in self.graph.outputs]
        for reader in readers:
            for origin in origins(reader.node):
                found.setdefault(origin.identity, []).append(reader)
        object.__setattr__(self, "_readers", found)
        object.__setattr__(self, "_columns", columns_read(self.graph))
        together = [_awaited(node) for node in self.graph.nodes if len(node.inputs) > 1]
        peers = {
            source.topic: frozenset().union(*(t for t in together if source.topic in t))
            for source in self.graph.sources
        }
        object.__setattr__(self, "_peers", peers)
        object.__setattr__(self, "_alike", _alike(self.placed.values()))

    @property
    def writes_last(self) -> bool:
        """Whether topics are written at a level of its own, the last, each partition by one lane."""
        return self.graph.transactions and bool(self.graph.outputs)

    def readers(self, origin: Origin) -> list[Reader]:
        """What takes an origin's rows, through steps that keep nothing."""
        return self._readers.get(origin.identity, [])

    def refused(self) -> list[Placed]:
        """Operators whose rows may be dead letters: late ones, and those for which a step behind fails."""
        return [
            p
            for p in self.placed.values()
            if p.traits.passes_late
            or any(
                isinstance(reader.node, RowStep | Union)
                for origin in (p.node, Closed(p.node))
                for reader in self.readers(origin)
            )
        ]

    @property
    def shards_max(self) -> int:
        """Of the operator with the most shards, or the topic with the most partitions."""
        return max([1, *self.partitions.values(), *(p.shards for p in self.placed.values())])

    def columns_of(self, node: Node) -> frozenset[str]:
        """Of a node's columns, those that some reader looks at."""
        return self._columns.get(node.identity, frozenset())

    def applied(
        self, node: RowStep, rows: pa.Table, explanations: Explanations
    ) -> tuple[pa.Table, list[Refused]]:
        """What a step makes of rows, without columns that it would hand on for nobody.

        What is next to an array is there once for each of its elements: the array itself would be too.
        """
        operator, read = node.operator, self.columns_of(node)
        if isinstance(operator, Unnest | MapBatches):  # from here on rows are others
            rows = unnumbered(rows)
        match operator:
            case Unnest(column=column):
                names = [n for n in rows.column_names if n in read | {column} or n.startswith("$")]
                return operator.apply(rows.select(names), explanations)
            case Select():
                return needed(operator, read).apply(rows, explanations)
            case _:
                return operator.apply(rows, explanations)

    def alike(self, operator: str) -> Mapping[str, tuple[tuple[str, str], ...]]:
        """Of an operator's traces, those that others keep, too: by name, who does, as (operator, name).

        They are of the same rows, in the same form and cut alike, so they may be one; see
        `penstock.engine.states.sharing`.
        """
        return self._alike.get(operator, {})

    def shards_of(self, origin: Origin) -> int:
        """Into how many parts the rows of an origin come."""
        match origin:
            case Source(topic=topic):
                return self.partitions[topic]
            case Closed(table=table):
                return self.placed[table.identity].shards
            case _:
                return self.placed[origin.identity].shards

    def frontiers(
        self,
        watermarks_us: Mapping[str, int],
        wall_us: int,
        before_us: Mapping[str, Sequence[int]],
    ) -> dict[str, list[int]]:
        """By operator, what each of its ports is promised, and the clock as it sees it.

        Args:
            watermarks_us: of the sources.
            wall_us: the wall clock.
            before_us: what was given before; a clock that was set back stands.
        """
        found: dict[str, list[int]] = {}
        promised: dict[str, int] = {}
        for node in self.graph.nodes:
            above = [promised[one.identity] for one in node.inputs]
            match node:
                case Source(topic=topic):
                    promised[node.identity] = watermarks_us.get(topic, NO_TIME)
                case Stateful():
                    found[node.identity] = list(above)
                    step_us = node.operator.traits.clock_us
                    if step_us:
                        seen_us = before_us.get(node.identity, (NO_TIME,))[-1]
                        found[node.identity].append(max(wall_us // step_us * step_us, seen_us))
                    promised[node.identity] = node.operator.frontier(above)
                case _:
                    promised[node.identity] = min(above)
        return found

    def peers(self, source: Source) -> frozenset[str]:
        """The topics that are waited for together with a source's: a union, or a join, is of both."""
        return self._peers[source.topic] - {source.topic}

    def digest(self, output_partitions: Mapping[str, int]) -> str:
        """What a repeated batch must have in common with the first attempt, to write the same.

        The number of lanes isn't part of it: a lane takes whole splits and shards.
        """
        graph = self.graph
        parts = sorted(source.identity for source in graph.sources)
        parts += sorted(output.identity for output in graph.outputs)
        parts += sorted(f"{p.id} {p.level} {p.shards} {p.fused}" for p in self.placed.values())
        parts += [str(sorted(output_partitions.items()))]
        if self.writes_last:
            parts.append("transactions")
        return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def compile_graph(
    graph: Graph,
    partitions: Mapping[str, int],
    shards: int,
    unkeyed: frozenset[str] = frozenset(),
) -> Physical:
    """Places every operator.

    Args:
        graph: what the program describes.
        partitions: of each topic that it reads, as they are in the log.
        shards: into how many parts exchanged state is cut.
        unkeyed: topics whose keys decide nothing; see `Physical`.
    """
    placed: dict[str, Placed] = {}
    places: dict[str, _Place] = {}
    changes, closed = _wanted(graph)
    names = _names(graph)
    for node in graph.stateful():
        above = [_place(o, places, partitions, unkeyed) for i in node.inputs for o in origins(i)]
        traits = node.operator.traits
        fused = len(above) == 1 and above[0].holds(node) and not traits.always
        by = traits.placed
        keyed = any(port.key for port in traits.ports)
        exchanged = shards if keyed else 1  # without a key, all rows go to one
        place = _Place(
            1 + max((p.level for p in above), default=0), exchanged, frozenset(by), tuple(by)
        )
        if fused:
            kept = above[0].columns <= set(by)
            place = replace(above[0], columns=above[0].columns if kept else frozenset())
        places[node.identity] = place
        placed[node.identity] = Placed(
            id=node.identity,
            node=node,
            operator=node.operator.emitting(
                changes=node.identity in changes, closed=node.identity in closed
            ),
            level=place.level,
            shards=place.shards,
            fused=fused,
            topic=place.topic,
            names=names[id(node)],
            hashed_by=place.order if fused else None,
        )
    levels = 1 + max((p.level for p in placed.values()), default=0)
    if graph.transactions and graph.outputs:
        levels += 1
    return Physical(graph, dict(partitions), placed, levels, shards, unkeyed)


def _alike(placed: Iterable[Placed]) -> dict[str, dict[str, tuple[tuple[str, str], ...]]]:
    """Traces of the same rows; see `Physical.alike`."""
    found: dict[object, list[tuple[str, str]]] = {}
    for one in placed:
        for port, above in enumerate(one.node.inputs):
            taken = one.traits.ports[port]
            place = above.identity, one.cut, one.hashed_by, taken.key
            for name, form in taken.arranges.items():
                found.setdefault((*place, form), []).append((one.id, name))
    alike: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {}
    for group in found.values():
        for operator, name in group if len(group) > 1 else ():
            alike.setdefault(operator, {})[name] = tuple(group)
    return alike


@dataclass(frozen=True)
class _Place:
    """Where rows are, and which columns decide their shard; none: nothing is known."""

    level: int
    shards: int
    columns: frozenset[str]
    order: tuple[str, ...] = ()  # of the columns, as they are hashed
    topic: str | None = None  # at level 0

    def holds(self, node: Stateful) -> bool:
        """Whether all rows of one key of the only input are on one shard already."""
        if self.shards == 1:
            return True
        key, columns = set(node.operator.traits.ports[0].key), self.columns
        return bool(columns) and columns <= key and _unchanged(node.inputs[0], columns)


def _place(
    origin: Origin,
    places: Mapping[str, _Place],
    partitions: Mapping[str, int],
    unkeyed: frozenset[str],
) -> _Place:
    match origin:
        case Source():
            # Records without a key lie in any partition, so a key that may be NULL decides nothing.
            keyed = origin.key is not None and origin.schema[origin.key].required
            keyed = keyed and origin.topic not in unkeyed
            columns = frozenset([origin.key] if keyed and origin.key else [])
            return _Place(0, partitions[origin.topic], columns, topic=origin.topic)
        case Closed(table=table):
            return places[table.identity]
        case _:
            return places[origin.identity]


def _awaited(node: Node) -> set[str]:
    """The topics whose watermarks decide what a node promises."""
    match node:
        case Source(topic=topic):
            return {topic}
        case Stateful(operator=operator) if operator.traits.timed:
            ports = range(len(node.inputs))
            # A port counts if nothing is promised where it promises nothing.
            above = [
                node.inputs[port]
                for port in ports
                if operator.frontier([NO_TIME if p == port else 0 for p in ports]) == NO_TIME
            ]
        case Stateful():
            above = []
        case _:
            above = list(node.inputs)
    return {topic for one in above for topic in _awaited(one)}


def _wanted(graph: Graph) -> tuple[set[str], set[str]]:
    """The operators whose changes are read, and those whose closed rows are read."""
    read = [i for node in graph.stateful() for i in node.inputs] + [o.node for o in graph.outputs]
    found = [origin for node in read for origin in origins(node)]
    return (
        {origin.identity for origin in found if isinstance(origin, Stateful)},
        {origin.table.identity for origin in found if isinstance(origin, Closed)},
    )


def _unchanged(node: Node, columns: frozenset[str]) -> bool:
    """Whether row steps hand the columns on as they are, up to the next origin."""
    match node:
        case RowStep(operator=Select(columns=computed)):
            same = {name for name, e in computed if e.text in {name, f'"{name}"'}}
            return columns <= same and _unchanged(node.parent, columns)
        case RowStep(operator=Where()):
            return _unchanged(node.parent, columns)
        case RowStep():
            return False
        case Union():
            return all(_unchanged(above, columns) for above in node.inputs)
        case _:
            return True


def _names(graph: Graph) -> dict[int, tuple[str, ...]]:
    """By `id`, what shows an operator: views and topics; else what it is, and which depend on it."""
    shown: dict[int, list[str]] = {}
    below: dict[int, list[str]] = {}
    ends = [(v.name, v.node) for v in graph.views] + [(o.topic, o.node) for o in graph.outputs]
    for name, end in ends:
        above = {id(o.table if isinstance(o, Closed) else o) for o in origins(end)}
        for one in above:
            shown.setdefault(one, []).append(name)
        for node in ancestors(end):
            below.setdefault(id(node), []).append(name)
    found = {}
    for node in graph.stateful():
        text = f"{node.operator.kind} for {' and '.join(below.get(id(node), []))}"
        found[id(node)] = tuple(shown.get(id(node), [text]))
    return found
