"""A pipeline's version: all that is true after a batch. Pure.

    version N = version N-1 after plan N, and what its lanes report          `Version.after`

This is the format that every later release reads: `from_json` has the defaults for what earlier ones didn't
write, and `docs/record.md` lists the fields. A version of a later format is refused. Values are never
changed: a version may be read by other threads, and shares with the one before what a batch left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, TypedDict

from penstock.engine.record.floors import noted_floors
from penstock.engine.record.marks import Activity, Held, Producers
from penstock.engine.record.plan import Begun, Floors, Plan, WriterEntry, writers_from_json
from penstock.engine.record.report import Report, SplitReport
from penstock.engine.record.values import Json, Offsets, by_name, by_number, known
from penstock.errors import PenstockError, SetupError

if TYPE_CHECKING:  # a version is read without the graph, and what that imports
    from penstock.flow.graph import Source

__all__ = ["Counts", "OperatorEntry", "TimeEntry", "Version", "ViewEntry", "ViewStep", "states_in"]

FORMAT: Final = 1
"""Of a version, in its JSON. It changes only if readers of this release would misread what is written."""


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator and its state.

    Attributes:
        spec: the operator, as `operator_from_spec` reads it.
        name: of the view or topic that shows it.
        cut: how its state is cut into shards (`Placed.cut`); None: by a release that didn't say.
        traces: by shard, what the operator says about its state; it alone can read it.
        begins: by topic and partition, the offset at which the log began when the state was made of it, if
            not at 0.
    """

    spec: Json
    name: str
    cut: str | None
    traces: Mapping[int, Json]
    begins: Offsets = field(default_factory=dict)

    def with_traces(self, traces: Mapping[int, Json]) -> OperatorEntry:
        """The operator with the state that a batch comes to, on some shards."""
        made = {**self.traces, **traces}
        return OperatorEntry(self.spec, self.name, self.cut, made, self.begins)

    def to_json(self) -> Json:
        """The entry as what `orjson` writes."""
        found: Json = {"spec": self.spec, "name": self.name, "cut": self.cut, "traces": self.traces}
        return found | ({"begins": self.begins} if self.begins else {})

    @staticmethod
    def from_json(content: Json) -> OperatorEntry:
        """Reads it."""
        return OperatorEntry(
            content["spec"],
            content.get("name", ""),
            content.get("cut"),
            by_number(content["traces"]),
            by_name(content.get("begins", {})),
        )


class ViewStep(TypedDict, total=False):
    """One step from the rows of an operator's state to a view's, as JSON: a condition, or columns.

    Attributes:
        where: the condition, in SQL.
        select: the columns: names and SQL.
        types: of those columns that SQL's text doesn't say.
    """

    where: str
    select: Sequence[Sequence[str]]
    types: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """How a reader makes a view of an operator's state, without the program.

    Attributes:
        operator: whose state it is.
        steps: from the state's rows to the view's.
        columns: of the view.
        keys: those that group it.
        row_key: those that identify a row; none where nobody knows.
    """

    operator: str
    steps: Sequence[ViewStep]
    columns: Sequence[str]
    keys: Sequence[str]
    row_key: Sequence[str] = ()

    @staticmethod
    def from_json(content: Json) -> ViewEntry:
        """Reads it."""
        return ViewEntry(
            content["operator"],
            content["steps"],
            content.get("columns", ()),
            content["keys"],
            content.get("row_key", ()),
        )


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """Where a topic's records have their event time.

    Attributes:
        kind: `field` of a JSON object, the record's `timestamp`, or `processing` time.
        name: of the field.
    """

    kind: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the pipeline's first batch: by topic or, of rows that operators handed on, by view.

    Attributes:
        rows: records read.
        dead: dead letters.
        late: rows too late for at least one of their windows.
        lost: records that retention removed before they were read.
        late_by_view: by view alone, rows too late for it.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    late_by_view: Mapping[str, int] = field(default_factory=dict)

    def after(self, reports: Iterable[Report]) -> Counts:
        """The counts after a batch."""
        found = self
        for report in reports:
            rows, late, lost = Counter[str](), Counter[str](), Counter[str]()
            for split in report.sources:
                rows[split.topic] += split.rows
                late[split.topic] += split.late
                lost[split.topic] += split.lost
            for view, count in report.passed_late.items():
                late[view] += count
            found = found.adding(Counts(rows, report.dead, late, lost, report.late))
        return found

    def adding(
        self, more: Counts, is_wanted: Callable[[str, str], bool] = lambda _what, _name: True
    ) -> Counts:
        """The sums with other counts.

        Args:
            more: the others.
            is_wanted: which of them, by field and by name.
        """
        made = {one.name: dict(getattr(self, one.name)) for one in fields(Counts)}
        for what, counts in made.items():
            for name, count in getattr(more, what).items():
                if is_wanted(what, name):
                    counts[name] = counts.get(name, 0) + count
        return Counts(**made)


@dataclass(frozen=True)
class Version:
    """All that is true of a pipeline after batch `number`.

    Attributes:
        number: counts from 1; 0: nothing was read. In JSON it is `version`.
        epoch: of the owner that committed it.
        wall_us: the batch's clock.
        name: of the pipeline.
        offsets: by topic and partition, of the next record.
        partitions: by topic.
        shards: into how many exchanged state is cut.
        operators: by identity.
        views: by name.
        program: digest of the program that made it; empty: none has.
        unkeyed: topics whose partitions say nothing about keys any more.
        sources: the sources' identities by topic; None: of a release that didn't say.
        times: by topic, where records have their event time; None: their values don't say.
        nodes: the identities of all nodes of the program.
        outputs: topics by the outputs' identities; None: of a release that didn't say.
        newest_us: by topic and partition, the newest time to which it has moved the watermark.
        watermark_us: by topic.
        frontier_us: by operator, what each of its ports was promised.
        producers: by topic and partition, where these have watermarks of their own.
        held: by topic, who holds its watermark back.
        activity: by topic, when data was last seen.
        floors: by topic and partition; see `noted_floors`.
        cut: partitions whose split ended before its end, as it reached the limit of bytes.
        topic_ids: by topic.
        incarnation: see `Plan`; None where the next batch makes a new one.
        writers: by name.
        counts: since the first batch.
        upgrades: names of the upgrades of which files are needed.
        switches: how many changes of the program there were.
        pending: a batch that the previous program has begun.
        versions_kept: where another number than the default is kept.
        run: of the machine, where it was committed before it was on the disk.
    """

    number: int
    epoch: int
    wall_us: int
    name: str
    offsets: Offsets
    partitions: Mapping[str, int]
    shards: int
    operators: Mapping[str, OperatorEntry]
    views: Mapping[str, ViewEntry]
    program: str = ""
    unkeyed: Sequence[str] = ()
    sources: Mapping[str, str] | None = None
    times: Mapping[str, TimeEntry | None] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    outputs: Mapping[str, str] | None = None
    newest_us: Offsets = field(default_factory=dict)
    watermark_us: Mapping[str, int] = field(default_factory=dict)
    frontier_us: Mapping[str, Sequence[int]] = field(default_factory=dict)
    producers: Mapping[str, Mapping[int, Producers]] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    activity: Mapping[str, Activity] = field(default_factory=dict)
    floors: Mapping[str, Mapping[int, Floors]] = field(default_factory=dict)
    cut: Sequence[tuple[str, int]] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    incarnation: str | None = None
    writers: Mapping[str, WriterEntry] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    upgrades: Sequence[str] = ()
    switches: int = 0
    pending: Begun | None = None
    versions_kept: int | None = None
    run: str | None = None

    def after(self, plan: Plan, reports: Sequence[Report], sources: Iterable[Source]) -> Version:
        """The version after a batch.

        Who holds the watermarks isn't known from these alone, and `held` stays; so do `upgrades`.

        Args:
            plan: of the batch.
            reports: of all its lanes.
            sources: the plan's.

        Raises:
            PenstockError: a split was not reported.
        """
        found = {(one.topic, one.partition): one for report in reports for one in report.sources}
        if found.keys() != {(split.topic, split.partition) for split in plan.splits}:
            raise PenstockError(
                f"expected reports of all splits of batch {plan.version}; found {sorted(found)}"
            )
        offsets = {topic: dict(of) for topic, of in self.offsets.items()}
        newest = {topic: dict(of) for topic, of in self.newest_us.items()}
        for split in plan.splits:
            one = found[split.topic, split.partition]
            offsets[split.topic][split.partition] = split.end if one.end is None else one.end
            if one.newest_us is not None:
                newest.setdefault(split.topic, {})[split.partition] = one.newest_us
        traces: dict[str, dict[int, Json]] = {}
        writers = dict(plan.writers)
        for report in reports:
            for operator, of in report.traces.items():
                traces.setdefault(operator, {}).update(of)
            for name, sequences in report.writers.items():
                writers[name] = writers[name].after(sequences)
        operators = {
            identity: entry.with_traces(traces[identity]) if identity in traces else entry
            for identity, entry in self.operators.items()
        }
        sources = tuple(sources)
        return replace(
            self,
            number=plan.version,
            epoch=plan.epoch,
            wall_us=plan.wall_us,
            program=plan.program,
            offsets=offsets,
            newest_us=newest,
            watermark_us=plan.watermark_us,
            frontier_us=plan.frontier_us,
            producers=self._producers_after(plan, found.values(), sources),
            activity=plan.activity,
            floors=noted_floors(self.floors, sources, plan, reports),
            cut=[place for place, one in found.items() if one.end is not None],
            topic_ids={**self.topic_ids, **plan.topic_ids},
            incarnation=plan.incarnation,
            writers=writers,
            operators=operators,
            counts=self.counts.after(reports),
            pending=None,
            run=None,
        )

    def _producers_after(
        self, plan: Plan, found: Iterable[SplitReport], sources: Iterable[Source]
    ) -> Mapping[str, Mapping[int, Producers]]:
        """What is known of producers: with those that had rows, without those that say nothing any more."""
        made = {topic: dict(of) for topic, of in self.producers.items()}
        for one in found:
            if one.producers is not None:
                entries = made.setdefault(one.topic, {})
                clock_us = plan.activity[one.topic].clock_us(one.partition)
                before = entries.get(one.partition, Producers())
                entries[one.partition] = before.taking(one.producers, clock_us)
        for source in sources:
            mark_us, time = plan.watermark_us.get(source.topic), source.time
            if mark_us is None or source.topic not in made:
                continue
            activity = plan.activity[source.topic]
            made[source.topic] = {
                partition: entry.without_silent(
                    activity.clock_us(partition) - time.idle_us,
                    mark_us + time.lateness_us,
                    time.expected,
                )
                for partition, entry in made[source.topic].items()
            }
        return made

    def states(self) -> Iterator[Json]:
        """What the operators say about their states."""
        return (state for entry in self.operators.values() for state in entry.traces.values())

    def to_json(self) -> Json:
        """The version as what `orjson` writes; maps by partition have numbers as keys."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        found["operators"] = {name: one.to_json() for name, one in self.operators.items()}
        return {"format": FORMAT, "version": found.pop("number"), **found}

    @staticmethod
    def from_json(content: Json) -> Version:
        """Reads what `to_json` of this release or an earlier one gave.

        Raises:
            SetupError: a later release wrote it.
            KeyError: something is missing that every release writes; likewise other errors for values of
                another type.
        """
        if content.get("format", FORMAT) > FORMAT:
            raise SetupError(
                f"expected state of a format up to {FORMAT}; found {content['format']}: a later release of "
                "Penstock wrote it. Run the pipeline with that release"
            )
        return Version(
            **{name: content[name] for name in _PLAIN if name in content},
            number=content["version"],
            offsets=by_name(content["offsets"]),
            operators={
                identity: OperatorEntry.from_json(one)
                for identity, one in content["operators"].items()
            },
            views={name: ViewEntry.from_json(one) for name, one in content["views"].items()},
            times={
                topic: known(one, lambda found: TimeEntry(**found))
                for topic, one in content.get("times", {}).items()
            },
            newest_us=by_name(content["newest_us"]),
            producers={
                topic: {int(p): Producers.from_json(one) for p, one in of.items()}
                for topic, of in content.get("producers", {}).items()
            },
            held={t: Held.from_json(one) for t, one in content.get("held", {}).items()},
            activity={t: Activity.from_json(one) for t, one in content.get("activity", {}).items()},
            floors=by_name(content.get("floors", {})),
            cut=[(topic, partition) for topic, partition in content.get("cut", ())],
            writers=writers_from_json(content["writers"]),
            counts=Counts(**content["counts"]),
            pending=known(content.get("pending"), Begun.from_json),
        )


def states_in(content: Json) -> list[Json]:
    """What operators say about their states, of a version's JSON: of many versions, read faster alone."""
    entries = content["operators"].values()
    return [state for entry in entries for state in entry["traces"].values()]


_PLAIN: Final = (
    *("epoch", "wall_us", "name", "partitions", "shards", "program", "unkeyed", "sources"),
    *("nodes", "outputs", "watermark_us", "frontier_us", "topic_ids", "incarnation"),
    *("upgrades", "switches", "versions_kept", "run"),
)
"""Fields that are in JSON as they are."""
