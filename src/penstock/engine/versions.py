"""What a version says about the program that it is of, and what another program has in common with it.

State belongs to operators, and these are distinguished by their identity, a digest of all that their rows
depend on. So a program that has changed shares with a version what it computes in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.core.schema import INTERVAL, UUID, holds_json, type_text
from penstock.engine.physical import Physical, Placed
from penstock.engine.plan import Plan
from penstock.engine.states.sharing import lent
from penstock.engine.store import Json, Store
from penstock.engine.watermarks import no_producers
from penstock.errors import CorruptError, FlowError
from penstock.flow.graph import Closed, OutputNode, RowStep, Source, Stateful, origins, row_key
from penstock.ops import Operator
from penstock.ops.rows import Select, Where
from penstock.state import StateFiles

__all__ = [
    "Change",
    "add_counts",
    "before_first",
    "change_of",
    "check_topics",
    "equal_rows",
    "first_version",
    "noted_floors",
    "of_program",
    "operator_entry",
    "recovered",
    "same_program",
    "same_rows",
    "without_topics",
    "writes_alike",
]

FLOORS_MAX: Final = 256
"""Floors of a partition: a version is written with each batch, and has a few KiB of them."""


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


def first_version(physical: Physical) -> Json:
    """Version 0: nothing has been read."""
    graph = physical.graph
    content = {
        "version": 0,
        "epoch": 0,
        "wall_us": 0,
        "name": graph.name,
        "offsets": {source.topic: {} for source in graph.sources},
        "newest_us": {},
        "watermark_us": {},
        "frontier_us": {},
        "producers": {},
        "held": {},
        "activity": {},
        "operators": {p.id: operator_entry(p, {}) for p in physical.placed.values()},
        "writers": {},
        "counts": {"rows": {}, "dead": {}, "late": {}, "lost": {}, "late_by_view": {}},
        "upgrades": [],
        "switches": 0,
    }
    return of_program(content, physical)


def of_program(version: Json, physical: Physical) -> Json:
    """A version whose entries about its program describe this one; its operators are unchanged."""
    graph = physical.graph
    return {
        **version,
        "partitions": dict(physical.partitions),
        "shards": physical.shards,
        "unkeyed": sorted(physical.unkeyed),
        "sources": {source.topic: source.identity for source in graph.sources},
        "times": {source.topic: _time_entry(source) for source in graph.sources},
        "nodes": sorted({node.identity for node in (*graph.sources, *graph.nodes)}),
        "outputs": {output.identity: output.topic for output in graph.outputs},
        "views": {view.name: _view_entry(view.node) for view in graph.views},
    }


def _time_entry(source: Source) -> Json | None:
    """Where a record has its event time, for readers without the program; None: its value doesn't say."""
    time = source.time
    if time.processing:
        return {"kind": "processing"}
    if time.computed or time.sent or source.changelog is not None:
        return None
    if time.column is None:
        return {"kind": "timestamp"}
    return {"kind": "field", "name": time.column} if source.format is None else None


def operator_entry(placed: Placed, traces: Json) -> Json:
    """What a version says about an operator."""
    return {
        "spec": placed.node.operator.to_spec(),
        "name": placed.name,
        "cut": placed.cut,
        "traces": traces,
    }


def change_of(
    version: Json,
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
    known = {} if anew else {n: one for n, one in version["operators"].items() if n not in unfit}
    kept = frozenset(
        p.id
        for p in physical.placed.values()
        # Versions of earlier releases don't say how they are cut: as this one would.
        if p.id in known and known[p.id].get("cut", p.cut) == p.cut
    )
    rest = [p for p in physical.placed.values() if p.id not in kept]
    recut = tuple(p for p in rest if p.id in known and p.is_hashed)
    made = [p for p in rest if p not in recut]
    borrowed = {p.id: lent(p, physical, kept) for p in made if p.id not in version["operators"]}
    borrowed = {name: lenders for name, lenders in borrowed.items() if lenders}
    return Change(
        kept,
        recut,
        borrowed,
        tuple(p for p in made if p.id not in borrowed),
        tuple(o for o in physical.graph.outputs if not _writes(version, o)),
    )


def same_program(version: Json, physical: Physical, *, unfit: frozenset[str] = frozenset()) -> bool:
    """Whether a version can be continued from as it is; arguments as for `change_of`."""
    change = change_of(version, physical, unfit=unfit)
    graph = physical.graph
    sources = {source.topic: source.identity for source in graph.sources}
    outputs = {output.identity for output in graph.outputs}
    return (
        not change.new
        and not change.lent
        and not change.outputs
        and version["operators"].keys() == change.kept
        and version.get("sources", sources) == sources
        and version.get("outputs", dict.fromkeys(outputs)).keys() == outputs
        and version["offsets"].keys() == sources.keys()
        and version["partitions"] == dict(physical.partitions)
    )


def recovered(store: Store, number: int, physical: Physical) -> Json:
    """What can be known of a version that can't be read: from the plan that made it, without any state.

    Raises:
        CorruptError: the plan can't be read either.
    """
    plan = store.plan(number)
    if plan is None or not plan["splits"]:
        raise CorruptError(
            f"expected to read version {number}, or its plan, to know what was written to topics; found "
            "neither. Restore the state from a copy, or name another directory (and other topics)"
        )
    content = of_program(first_version(physical), physical)
    for split in plan["splits"]:
        offsets = content["offsets"].setdefault(split["topic"], {})
        offsets[str(split["partition"])] = split["end"]
    return {
        **content,
        "version": number,
        "watermark_us": plan["watermark_us"],
        "operators": {},
        "upgrades": store.upgrades(),
        "switches": number,
    }


def before_first(physical: Physical, plan: Json) -> Json:
    """Version 0 where another program has begun the first batch."""
    content = first_version(physical)
    del content["outputs"]
    if (
        plan.get("outputs") is not None
    ):  # of earlier releases, the writers say what that program writes
        content["outputs"] = plan["outputs"]
    return {**content, "operators": {}, "nodes": [], "writers": plan["writers"]}


def check_topics(
    version: Json,
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
            read = version["offsets"][topic].get(str(partition), 0)
            if end < read:
                raise FlowError(
                    f"expected the partition {partition} of {title(topic)} to reach offset {read}, which "
                    f"was read already; found its end at {end}. {again}"
                )
    for topic, known in version.get("topic_ids", {}).items():
        if ids.get(topic, known) != known and any(version["offsets"].get(topic, {}).values()):
            raise FlowError(
                f"expected {title(topic)} with the id {known}, of which something was read already; found "
                f"{ids[topic]}. {again}"
            )


def without_topics(version: Json, sources: Collection[Source]) -> Json:
    """A version that has read nothing of some topics: they were created again, and what is in them is new."""
    topics = {source.topic: source.identity for source in sources}
    kept = {
        what: {t: one for t, one in version.get(what, {}).items() if t not in topics}
        for what in (
            "newest_us",
            "watermark_us",
            "producers",
            "floors",
            "activity",
            "held",
            "sources",
            "topic_ids",
        )
    }
    nodes = [one for one in version.get("nodes", ()) if one not in topics.values()]
    offsets = {t: {} if t in topics else one for t, one in version["offsets"].items()}
    return {**version, **kept, "nodes": nodes, "offsets": offsets}


def _writes(version: Json, output: OutputNode) -> bool:
    """Whether the version's program writes a topic, and the same into it."""
    if "outputs" in version:
        return output.identity in version["outputs"]
    prefixes = tuple(f"{output.topic}/{origin.identity}/" for origin in origins(output.node))
    return any(name.startswith(prefixes) for name in version["writers"])


def _view_entry(node: Any) -> Json:
    """How a reader makes a view of an aggregation's state, without the program."""
    steps: list[Json] = []
    columns, key = list(node.schema.names), list(row_key(node))
    while isinstance(node, RowStep):
        match node.operator:
            case Where(condition):
                steps.append({"where": condition.sql})
            case Select(computed):
                steps.append({"select": [[name, e.sql] for name, e in computed]})
                types = {
                    name: type_text(e.type)
                    for name, e in computed
                    if e.type in (UUID, INTERVAL) or holds_json(e.type)
                }
                steps[-1] |= {"types": types} if types else {}
        node = node.parent
    assert isinstance(node, Stateful)
    keys = [key for key in node.operator.keys if key in columns]
    said = {"operator": node.identity, "steps": steps[::-1], "columns": columns, "keys": keys}
    return said | ({"row_key": key} if key and set(key) <= set(columns) else {})


def same_rows(operator: Operator, files: StateFiles, one: Json, other: Json) -> bool:
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


def writes_alike(version: Json, plan: Json, physical: Physical) -> bool:
    """Whether a program writes what the previous one has begun with by the same shards.

    Args:
        version: the last one.
        plan: of the batch after it, which the previous program has begun.
        physical: the program.
    """
    for output in physical.graph.outputs:
        for origin in origins(output.node):
            node = origin.table if isinstance(origin, Closed) else origin
            placed = physical.placed.get(node.identity)
            entry = version["operators"].get(node.identity, {})
            is_cut_so = placed is None or entry.get("cut", placed.cut) == placed.cut
            prefix = f"{output.topic}/{origin.identity}/"
            shards = sum(name.startswith(prefix) for name in plan["writers"])
            if shards and not (is_cut_so and shards == physical.shards_of(origin)):
                return False
    return True


def noted_floors(
    before: Json, sources: tuple[Source, ...], plan: Plan, reports: Iterable[Json]
) -> Json:
    """By topic and partition, where a topic's watermark, and not the rows before, decides what is late.

    A row is late by the rows before it, which the log has, or by its topic's watermark, which passes a
    partition or a producer that is idle. The wall clock decided that. A rebuild, or a view that is new,
    reads the same rows at another time, and takes it from here: pairs of the offset from which a watermark
    counts and the watermark; the newest `FLOORS_MAX` of a partition are kept.

    Args:
        before: the same before the batch.
        sources: the plan's.
        plan: of the batch.
        reports: of its lanes.
    """
    late_us = {source.topic: source.time.lateness_us for source in sources}
    floors = {topic: dict(of) for topic, of in before.items() if topic in late_us}
    of_split = {(s["topic"], s["partition"]): s["producers"] for r in reports for s in r["sources"]}
    for split in plan.splits:
        floor_us, name = plan.watermark_us.get(split.topic), str(split.partition)
        if split.start == split.end or floor_us is None:
            continue
        known = split.producers or no_producers()
        marks = [us for us in (split.newest_us, *known["marks_us"]) if us is not None]
        is_behind = not marks or min(marks) - late_us[split.topic] < floor_us
        # A producer that was idle is forgotten; the one that comes back is as a new one.
        found = of_split[split.topic, split.partition] or {"known": {}}
        if is_behind or not found["known"].keys() <= set(known["names"]):
            noted = floors.setdefault(split.topic, {}).get(name, [])
            if not noted or noted[-1][1] < floor_us:
                floors[split.topic][name] = [*noted, [split.start, floor_us]][-FLOORS_MAX:]
    return floors


def add_counts(to: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds counts by name to a version's."""
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
