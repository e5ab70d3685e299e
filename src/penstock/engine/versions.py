"""What a version says about the program that it is of, and what another program has in common with it.

State belongs to operators, and these are distinguished by their identity, a digest of all that their rows
depend on. So a program that has changed shares with a version what it computes in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar

import pyarrow as pa

from penstock.core.schema import INTERVAL, UUID, holds_json, type_text
from penstock.engine.physical import Physical, Placed
from penstock.engine.record.plan import Plan
from penstock.engine.record.values import Json
from penstock.engine.record.version import OperatorEntry, TimeEntry, Version, ViewEntry, ViewStep
from penstock.engine.states.sharing import lent
from penstock.engine.store import Store
from penstock.errors import CorruptError, FlowError
from penstock.flow.graph import Closed, OutputNode, RowStep, Source, Stateful, origins, row_key
from penstock.ops import Operator
from penstock.ops.rows import Select, Where
from penstock.state import StateFiles

T = TypeVar("T")

__all__ = [
    "Change",
    "before_first",
    "change_of",
    "check_topics",
    "equal_rows",
    "first_version",
    "of_program",
    "operator_entry",
    "recovered",
    "same_program",
    "same_rows",
    "without_topics",
    "writes_alike",
]


class _OfProgram(TypedDict):
    """The fields of a version that are about its program."""

    partitions: Mapping[str, int]
    shards: int
    unkeyed: list[str]
    sources: Mapping[str, str]
    times: Mapping[str, TimeEntry | None]
    nodes: list[str]
    outputs: Mapping[str, str]
    views: Mapping[str, ViewEntry]


@dataclass(frozen=True)
class Change:
    """What a program makes of the version that it finds.

    Attributes:
        kept: operators whose state is taken over as it is.
        recut: operators whose state is taken over, and cut into other shards.
        lent: operators that it has not, whose traces others keep: by identity, whose; see `sharing.lent`.
        new: operators that it has not, or in another form: they are made of the log.
        outputs: topics' identities that it doesn't write so far.
    """

    kept: frozenset[str]
    recut: tuple[Placed, ...]
    lent: Mapping[str, Mapping[str, tuple[str, str]]]
    new: tuple[Placed, ...]
    outputs: tuple[OutputNode, ...]


def first_version(physical: Physical) -> Version:
    """Version 0: nothing has been read."""
    graph = physical.graph
    return Version(
        number=0,
        epoch=0,
        wall_us=0,
        name=graph.name,
        offsets={source.topic: {} for source in graph.sources},
        operators={p.id: operator_entry(p, {}) for p in physical.placed.values()},
        **_of_program(physical),
    )


def of_program(version: Version, physical: Physical) -> Version:
    """A version whose fields about its program describe this one; its operators are unchanged."""
    return replace(version, **_of_program(physical))


def _of_program(physical: Physical) -> _OfProgram:
    graph = physical.graph
    return {
        "partitions": dict(physical.partitions),
        "shards": physical.shards,
        "unkeyed": sorted(physical.unkeyed),
        "sources": {source.topic: source.identity for source in graph.sources},
        "times": {source.topic: _time_entry(source) for source in graph.sources},
        "nodes": sorted({node.identity for node in (*graph.sources, *graph.nodes)}),
        "outputs": {output.identity: output.topic for output in graph.outputs},
        "views": {view.name: _view_entry(view.node) for view in graph.views},
    }


def _time_entry(source: Source) -> TimeEntry | None:
    """Where a record has its event time, for readers without the program; None: its value doesn't say."""
    time = source.time
    if time.processing:
        return TimeEntry("processing")
    if time.computed or time.sent or source.changelog is not None:
        return None
    if time.column is None:
        return TimeEntry("timestamp")
    return TimeEntry("field", time.column) if source.format is None else None


def operator_entry(
    placed: Placed,
    traces: Mapping[int, Json],
    begins: Mapping[str, Mapping[int, int]] | None = None,
) -> OperatorEntry:
    """What a version says about an operator."""
    spec = placed.node.operator.to_spec()
    return OperatorEntry(spec, placed.name, placed.cut, traces, begins or {})


def change_of(
    version: Version,
    physical: Physical,
    *,
    anew: bool = False,
    unfit: frozenset[str] = frozenset(),
) -> Change:
    """Compares a program with a version.

    Args:
        version: any.
        physical: the program, and where its operators run.
        anew: whether no state is to be taken over.
        unfit: operators whose state has another form than they have now.
    """
    known = {} if anew else {n: one for n, one in version.operators.items() if n not in unfit}
    kept = frozenset(
        p.id
        for p in physical.placed.values()
        # Versions of earlier releases don't say how they are cut: as this one would.
        if p.id in known and known[p.id].cut in {None, p.cut}
    )
    rest = [p for p in physical.placed.values() if p.id not in kept]
    recut = tuple(p for p in rest if p.id in known and p.is_hashed)
    made = [p for p in rest if p not in recut]
    borrowed = {p.id: lent(p, physical, kept) for p in made if p.id not in version.operators}
    borrowed = {name: lenders for name, lenders in borrowed.items() if lenders}
    return Change(
        kept,
        recut,
        borrowed,
        tuple(p for p in made if p.id not in borrowed),
        tuple(o for o in physical.graph.outputs if not _writes(version, o)),
    )


def same_program(
    version: Version, physical: Physical, *, unfit: frozenset[str] = frozenset()
) -> bool:
    """Whether a version can be continued from as it is; arguments as for `change_of`."""
    change = change_of(version, physical, unfit=unfit)
    graph = physical.graph
    sources = {source.topic: source.identity for source in graph.sources}
    outputs = {output.identity for output in graph.outputs}
    return (
        not change.new
        and not change.lent
        and not change.outputs
        and version.operators.keys() == change.kept
        and version.sources in (None, sources)
        and (version.outputs is None or version.outputs.keys() == outputs)
        and version.offsets.keys() == sources.keys()
        and version.partitions == dict(physical.partitions)
    )


def recovered(store: Store, number: int, physical: Physical) -> Version:
    """What can be known of a version that can't be read: from the plan that made it, without any state.

    Raises:
        CorruptError: the plan can't be read either.
    """
    plan = store.plan(number)
    if not isinstance(plan, Plan) or not plan.splits:
        raise CorruptError(
            f"expected to read version {number}, or its plan, to know what was written to topics; found "
            "neither. Restore the state from a copy, or name another directory (and other topics)"
        )
    first = first_version(physical)
    offsets = {topic: dict(of) for topic, of in first.offsets.items()}
    for split in plan.splits:
        offsets.setdefault(split.topic, {})[split.partition] = split.end
    return replace(
        first,
        number=number,
        offsets=offsets,
        watermark_us=plan.watermark_us,
        operators={},
        upgrades=store.upgrades(),
        switches=number,
    )


def before_first(physical: Physical, plan: Plan) -> Version:
    """Version 0 where another program has begun the first batch."""
    # Of earlier releases, the writers say what that program writes.
    return replace(
        first_version(physical), outputs=plan.outputs, operators={}, nodes=[], writers=plan.writers
    )


def check_topics(
    version: Version,
    physical: Physical,
    ends: Mapping[str, Mapping[int, int]],
    ids: Mapping[str, str],
) -> None:
    """Checks that the topics are those that a version has read.

    Args:
        version: of the pipeline.
        physical: its program.
        ends: of the topics, the offset after the last record of each partition.
        ids: of the topics.

    Raises:
        FlowError: one has grown, or was created again, however long it is by now.
    """
    title = physical.graph.topic_title
    again = "The topic was deleted and created again: run the pipeline with --rebuild"
    for topic, found in ends.items():
        expected = physical.partitions[topic]
        if len(found) != expected:
            raise FlowError(
                f"expected {expected} partitions of {title(topic)}; found {len(found)}. Start the "
                "pipeline again: state that depends on the number is recomputed from the log"
            )
        for partition, end in found.items():
            read = version.offsets[topic].get(partition, 0)
            if end < read:
                raise FlowError(
                    f"expected the partition {partition} of {title(topic)} to reach offset {read}, which "
                    f"was read already; found its end at {end}. {again}"
                )
    for topic, known in version.topic_ids.items():
        if ids.get(topic, known) != known and any(version.offsets.get(topic, {}).values()):
            raise FlowError(
                f"expected {title(topic)} with the id {known}, of which something was read already; found "
                f"{ids[topic]}. {again}"
            )


def without_topics(version: Version, sources: Collection[Source]) -> Version:
    """A version that has read nothing of some topics: they were created again, and what is in them is new."""
    topics = {source.topic: source.identity for source in sources}

    def rest(of: Mapping[str, T]) -> dict[str, T]:
        return {topic: one for topic, one in of.items() if topic not in topics}

    return replace(
        version,
        offsets={t: {} if t in topics else one for t, one in version.offsets.items()},
        nodes=[one for one in version.nodes if one not in topics.values()],
        newest_us=rest(version.newest_us),
        watermark_us=rest(version.watermark_us),
        producers=rest(version.producers),
        floors=rest(version.floors),
        activity=rest(version.activity),
        held=rest(version.held),
        sources=None if version.sources is None else rest(version.sources),
        topic_ids=rest(version.topic_ids),
    )


def _writes(version: Version, output: OutputNode) -> bool:
    """Whether the version's program writes a topic, and the same into it."""
    if version.outputs is not None:
        return output.identity in version.outputs
    prefixes = tuple(f"{output.topic}/{origin.identity}/" for origin in origins(output.node))
    return any(name.startswith(prefixes) for name in version.writers)


def _view_entry(node: Any) -> ViewEntry:
    """How a reader makes a view of an aggregation's state, without the program."""
    steps: list[ViewStep] = []
    columns, key = list(node.schema.names), list(row_key(node))
    while isinstance(node, RowStep):
        match node.operator:
            case Where(condition):
                steps.append({"where": condition.sql})
            case Select(computed):
                step: ViewStep = {"select": [[name, e.sql] for name, e in computed]}
                types = {
                    name: type_text(e.type)
                    for name, e in computed
                    if e.type in (UUID, INTERVAL) or holds_json(e.type)
                }
                if types:
                    step["types"] = types
                steps.append(step)
        node = node.parent
    assert isinstance(node, Stateful)
    keys = [key for key in node.operator.traits.keys if key in columns]
    identified = key if set(key) <= set(columns) else []
    return ViewEntry(node.identity, steps[::-1], columns, keys, identified)


def same_rows(
    operator: Operator, files: StateFiles, one: Mapping[int, Json], other: Mapping[int, Json]
) -> bool:
    """Whether two states of a table have the same rows, shard by shard; both are read as a whole."""
    for shard in sorted(one.keys() | other.keys()):
        rows = [
            iter(()) if shard not in traces else operator.scan(operator.open(files, traces[shard]))
            for traces in (one, other)
        ]
        if not equal_rows(*rows):
            return False
    return True


def equal_rows(one: Iterator[pa.RecordBatch], other: Iterator[pa.RecordBatch]) -> bool:
    """Whether two sequences of rows are the same, however they are cut."""
    left: pa.RecordBatch | None = None
    right: pa.RecordBatch | None = None
    while True:
        left = _some(left, one)
        right = _some(right, other)
        if left is None or right is None:
            return left is right
        rows = min(len(left), len(right))
        a, b = left.slice(0, rows), right.slice(0, rows)
        if not a.equals(b) and repr(a.to_pylist()) != repr(b.to_pylist()):  # NaN equals nothing
            return False
        left, right = left.slice(rows), right.slice(rows)


def _some(rest: pa.RecordBatch | None, more: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    while rest is None or not len(rest):
        rest = next(more, None)
        if rest is None:
            return None
    return rest


def writes_alike(version: Version, writers: Collection[str], physical: Physical) -> bool:
    """Whether a program writes what the previous one has begun with by the same shards.

    Args:
        version: the last one.
        writers: of the batch after it, which the previous program has begun.
        physical: the program.
    """
    for output in physical.graph.outputs:
        for origin in origins(output.node):
            node = origin.table if isinstance(origin, Closed) else origin
            placed = physical.placed.get(node.identity)
            entry = version.operators.get(node.identity)
            cut = None if entry is None else entry.cut
            is_cut_so = placed is None or cut in {None, placed.cut}
            prefix = f"{output.topic}/{origin.identity}/"
            shards = sum(name.startswith(prefix) for name in writers)
            if shards and not (is_cut_so and shards == physical.shards_of(origin)):
                return False
    return True
