"""The graph that a program describes: what flows where. Values only; nothing here runs.

    Source | Stateful | Closed -> (RowStep | Union)* -> Stateful | ViewNode | OutputNode

A *stateful* node is an operator over one or more inputs; its rows, or a source's, pass through steps that
keep nothing until they reach the next one, a view or a topic.

Each node's `identity` is a digest of all that its content depends on. State is kept under it, so a
program may be reordered freely, and one whose meaning changed never takes up the state of another.

In one graph a meaning is one node: a flow hands out the node that it has already where the same is
built again (`Flow.node`), so that whatever reads either reads both. `built_at` is the file and line of the
program that built a node first, for messages; nothing depends on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from penstock.core.names import built, place
from penstock.core.schema import Schema
from penstock.expr import Expression
from penstock.expr.tree import Column
from penstock.flow.times import EventTime
from penstock.formats.changelog import ChangelogFormat
from penstock.formats.lines import LineFormat
from penstock.formats.registered import Encoded
from penstock.ops import Operator
from penstock.ops.codec import written_fields
from penstock.ops.keyed.process import Process
from penstock.ops.rows import MapBatches, Readable, RowOperator, Select, Unnest, Where
from penstock.ops.spec import WINDOW_START

__all__ = [
    "Changelog",
    "Closed",
    "Graph",
    "Key",
    "Node",
    "Origin",
    "OutputNode",
    "RowStep",
    "Source",
    "Stateful",
    "Union",
    "ViewNode",
    "ancestors",
    "candidate_keys",
    "columns_read",
    "function_of",
    "handed_on",
    "is_one_row",
    "keys_of",
    "may_be_late",
    "needed",
    "origins",
    "over_others",
    "retracts",
    "row_key",
    "timed",
]


@dataclass(frozen=True)
class Changelog:
    """How a topic's records are changes of a table.

    Attributes:
        key: the columns that identify its rows.
        format: of the records.
    """

    key: tuple[str, ...]
    format: ChangelogFormat


@dataclass(frozen=True, eq=False)
class Source:
    """A topic read as rows of a schema.

    Attributes:
        topic: its name in the log.
        schema: of its values; of a table's rows.
        time: when its rows happened, and how late they may come.
        key: the column that the log is partitioned by, if the producers keep to one.
        partitions: of the topic, where Penstock creates it.
        retention_us: likewise, how long its records are kept; None is forever.
        changelog: where it is read as a table, how; its rows then have `$deleted`.
        marker: where only some rows move the watermark, the condition that they fulfil.
        format: of the values, where they aren't JSON.
        clock: where their time is computed, the expression that gives it.
    """

    topic: str
    schema: Schema
    time: EventTime
    key: str | None
    partitions: int
    retention_us: int | None
    changelog: Changelog | None = None
    marker: Expression | None = None
    format: LineFormat | None = None
    clock: Expression | None = None
    built_at: str = field(default_factory=place, kw_only=True, repr=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """There are none."""
        return ()

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        time = self.time
        parts: list[object] = [self.topic, self.schema.text, time.column, time.lateness_us]
        if time.text:
            parts.append(time.text)
        if self.changelog is not None:
            parts += [self.changelog.format, self.changelog.key]
        if self.format is not None:
            parts.append(repr(self.format))
        return _digest("source", *parts)


@dataclass(frozen=True, eq=False)
class RowStep:
    """`where`, `select` or `map_batches` over another node's rows."""

    parent: Node
    operator: RowOperator
    schema: Schema
    built_at: str = field(default_factory=place, kw_only=True, repr=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The node whose rows it takes."""
        return (self.parent,)

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
            case Unnest(column=column, name=name):
                what = f"unnest {column!r} AS {name!r}"
            case Readable(column=column, fields=fields, meaning=meaning):
                what = f"readable {column!r} {written_fields(fields)} {meaning}"
            case other:
                what = repr(other)
        return _digest("rows", self.parent.identity, what)


@dataclass(frozen=True, eq=False)
class Union:
    """The rows of several nodes that have the same columns."""

    inputs: tuple[Node, ...]
    schema: Schema
    built_at: str = field(default_factory=place, kw_only=True, repr=False)

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        return _digest("union", *(node.identity for node in self.inputs))


@dataclass(frozen=True, eq=False)
class Stateful:
    """An operator over the rows of other nodes: a table, or a stream.

    Attributes:
        single: whether it has one row at most, which follows from the operator and its inputs.
    """

    inputs: tuple[Node, ...]
    operator: Operator
    schema: Schema
    single: bool = field(default=False, kw_only=True)
    built_at: str = field(default_factory=place, kw_only=True, repr=False)

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        spec = json.dumps(self.operator.to_spec(), sort_keys=True)
        return _digest("operator", spec, *(node.identity for node in self.inputs))


@dataclass(frozen=True, eq=False)
class Closed:
    """The rows of a table's windows, once these are closed: a stream."""

    table: Stateful
    built_at: str = field(default_factory=place, kw_only=True, repr=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The table."""
        return (self.table,)

    @property
    def schema(self) -> Schema:
        """The table's."""
        return self.table.schema

    @cached_property
    def identity(self) -> str:
        """Digest of what the rows depend on."""
        return _digest("closed", self.table.identity)


Node: TypeAlias = Source | RowStep | Union | Stateful | Closed
Origin: TypeAlias = Source | Stateful | Closed
"""Where rows begin their way through steps that keep nothing."""

N = TypeVar("N", bound=Node)

Key: TypeAlias = tuple[frozenset[str], ...]
"""Columns that together identify rows: of each the names that its values have. Without any, it is one row."""

Emission: TypeAlias = Literal["rows", "changes", "upserts"]


@dataclass(frozen=True, eq=False)
class ViewNode:
    """A table that people query by name."""

    name: str
    node: Node


@dataclass(frozen=True, eq=False)
class OutputNode:
    """A topic that receives a node's rows.

    Attributes:
        emission: `rows` as they come; `changes` as records of before and after; `upserts` as the newest row
            of each key, or its tombstone.
        keys: the columns that make up a record's key.
        format: of keys and values, where they aren't JSON.
    """

    topic: str
    node: Node
    emission: Emission
    keys: tuple[str, ...]
    partitions: int
    retention_us: int | None
    format: Encoded | None = None

    @property
    def is_one_row(self) -> bool:
        """Whether it is of a table that has one row at most."""
        return self.emission != "rows" and is_one_row(self.node)

    @property
    def identity(self) -> str:
        """Digest of what is written."""
        parts = () if self.format is None else (self.format.name,)
        return _digest("output", self.topic, self.emission, self.keys, self.node.identity, *parts)


@dataclass(frozen=True, eq=False)
class Graph:
    """All that one program describes.

    Attributes:
        transactions: whether what a batch writes to topics is one transaction.
        stops: whether an error that some rows cause ends the pipeline; otherwise these are dead letters.
        unused: sources that are declared, and that nothing here is made of: their topics are created, and
            not read.
    """

    name: str
    sources: tuple[Source, ...]
    views: tuple[ViewNode, ...]
    outputs: tuple[OutputNode, ...]
    transactions: bool = False
    stops: bool = False
    unused: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        self.check()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that a view or an output needs, each after those it reads."""
        found: dict[int, Node] = {}
        for end in [view.node for view in self.views] + [output.node for output in self.outputs]:
            for node in ancestors(end):
                found.setdefault(id(node), node)
        return tuple(found.values())

    def topic_title(self, topic: str) -> str:
        """A topic that it reads, with the place in the program, for messages."""
        places = [source.built_at for source in self.sources if source.topic == topic]
        return f"the topic {topic!r}{built(places[0]) if places else ''}"

    def check(self) -> None:
        """Asserts that what means the same is one node."""
        known: dict[str, Node] = {}
        for node in self.nodes:
            assert known.setdefault(node.identity, node) is node, node

    def stateful(self) -> list[Stateful]:
        """Every operator, each after those it reads."""
        return [node for node in self.nodes if isinstance(node, Stateful)]


class Owner(Protocol):
    """The flow that a collection belongs to."""

    name: str

    def node(self, node: N) -> N:
        """The one node of the flow that means the same, be it this one or one from before."""

    def add_output(self, output: OutputNode) -> None:
        """Adds a topic to write to."""


def ancestors(node: Node) -> Iterator[Node]:
    """The node and all that it depends on: each once, after those it reads."""
    seen: set[int] = set()

    def visit(one: Node) -> Iterator[Node]:
        if id(one) not in seen:
            seen.add(id(one))
            for above in one.inputs:
                yield from visit(above)
            yield one

    return visit(node)


def over_others(node: N, inputs: Sequence[Node]) -> N:
    """A node over other nodes in the place of its inputs; the node itself where they are the same."""
    if all(one is two for one, two in zip(inputs, node.inputs, strict=True)):
        return node
    made: Node
    match node:
        case RowStep():
            made = replace(node, parent=inputs[0])
        case Closed():
            [table] = inputs
            assert isinstance(table, Stateful), "windows are an operator's"
            made = replace(node, table=table)
        case Union() | Stateful():
            made = replace(node, inputs=tuple(inputs))
        case _:
            raise AssertionError("a source has no inputs")
    assert isinstance(made, type(node))
    return made


def columns_read(graph: Graph) -> dict[str, frozenset[str]]:
    """By the identity of each node whose rows are read: the columns that some reader looks at."""
    found: dict[str, frozenset[str]] = {}

    def read(node: Node, columns: frozenset[str]) -> None:
        found[node.identity] = found.get(node.identity, frozenset()) | columns

    for shown in [view.node for view in graph.views] + [output.node for output in graph.outputs]:
        read(shown, frozenset(shown.schema.names))
    for node in reversed(graph.nodes):
        match node:
            case Stateful(inputs=inputs, operator=operator):
                for port, above in enumerate(inputs):
                    columns = operator.traits.ports[port].reads
                    there = frozenset(above.schema.names)
                    read(above, there if columns is None else columns & there)
            case RowStep(parent=parent, operator=Select() as select):
                computed = needed(select, found.get(node.identity, frozenset())).columns
                read(parent, frozenset().union(*(e.columns for _, e in computed)))
            case RowStep(parent=parent, operator=Where(condition=condition)):
                read(parent, found.get(node.identity, frozenset()) | condition.columns)
            case RowStep(parent=parent, operator=Unnest(column=column, name=name)):
                read(parent, found.get(node.identity, frozenset()) - {name} | {column})
            case Source() | Closed():
                pass
            case _:  # each of them has all columns of the others, or calls what may look at any
                for above in node.inputs:
                    read(above, frozenset(above.schema.names))
    return found


def needed(select: Select, read: frozenset[str]) -> Select:
    """A step without columns that it only hands on, for nobody. What it computes may fail, and stays."""
    kept = tuple(
        (name, one)
        for name, one in select.columns
        if name in read or not (one.text == f'"{name}"' and isinstance(one.tree, Column))
    )
    return Select(kept or select.columns)


def origins(node: Node) -> tuple[Origin, ...]:
    """Where a node's rows begin, through steps that keep nothing; the node itself if it is one."""
    if isinstance(node, RowStep | Union):
        return tuple(dict.fromkeys(one for above in node.inputs for one in origins(above)))
    return (node,)


def retracts(node: Node) -> bool:
    """Whether a node's rows may be taken back."""
    match node:
        case Source():
            return False
        case Stateful():
            return node.operator.traits.retracts
        case Closed():
            return node.table.operator.traits.corrects
        case _:
            return any(retracts(above) for above in node.inputs)


def may_be_late(node: Node) -> bool:
    """Whether a node's rows may lie before their own watermark."""
    match node:
        case Source():
            return True
        case Stateful():
            return node.operator.traits.passes_late and any(map(may_be_late, node.inputs))
        case Closed():
            return False
        case _:
            return any(map(may_be_late, node.inputs))


def timed(node: Node) -> bool:
    """Whether a node's rows have an event time."""
    match node:
        case Stateful():
            return node.operator.traits.timed
        case _:
            return all(timed(above) for above in node.inputs)


def row_key(node: Node) -> tuple[str, ...]:
    """The columns that identify a table's rows; none where some are left out, or nothing does."""
    order = {name: i for i, name in enumerate(node.schema.names)}
    for key in candidate_keys(node):
        if key:
            return tuple(min(names, key=order.__getitem__) for names in key)
    return ()


def is_one_row(node: Node) -> bool:
    """Whether there is one row at most, so that there is nothing to distinguish."""
    return () in candidate_keys(node)


def candidate_keys(node: Node) -> list[Key]:
    """What identifies a table's rows, each by itself; the first is the one that is written."""
    match node:
        case Stateful(operator=operator) if operator.traits.retracts:
            traits = operator.traits
            found = [traits.keys] if traits.keys or node.single or traits.single else []
            if traits.closes and WINDOW_START in node.schema:
                found = [(WINDOW_START, *traits.keys)]
            found += traits.other_keys
            return [tuple(frozenset((name,)) for name in key) for key in found]
        case RowStep(operator=Select(columns=columns)):
            named: dict[str, set[str]] = {}
            for name, expression in columns:
                named.setdefault(handed_on(expression), set()).add(name)
            keys = [
                tuple(frozenset(n for one in names for n in named.get(one, ())) for names in key)
                for key in candidate_keys(node.parent)
            ]
            return [key for key in keys if all(key)]
        case RowStep(operator=Where() | Readable()) | Closed():
            return candidate_keys(node.inputs[0])
        case _:
            return []


def handed_on(expression: Expression) -> str:
    """The column that an expression is, if it is one: others are no column's name."""
    text = expression.text
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def function_of(node: Node) -> tuple[str, Callable[..., Any]] | None:
    """The user's function that a node calls, and its name."""
    match node:
        case RowStep(operator=MapBatches(function=function, name=name)):
            return name, function
        case Stateful(operator=Process(function=function, name=name)) if function is not None:
            return name, function
        case _:
            return None


def keys_of(node: Node) -> tuple[str, ...]:
    """The columns that a node's records have as key: of what groups its rows, or partitions their log."""
    match node:
        case Source():
            found: tuple[str, ...] = () if node.key is None else (node.key,)
        case Stateful():
            found = node.operator.traits.keys
        case Union():
            first, *others = [keys_of(above) for above in node.inputs]
            found = first if all(other == first for other in others) else ()
        case _:
            found = keys_of(node.inputs[0])
    return tuple(name for name in found if name in node.schema)


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).hexdigest()
