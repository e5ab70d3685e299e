"""The driver: plans a batch, has it run, commits it; over and over.

    plan N   = end of the log, watermarks, clock          written down, once, while the lanes compute
    run N    = tasks over plan N and version N-1          on Spark, or in this process
    version N = what the tasks report                     committed if absent, all of it at once

A crash between any two steps is repaired by taking the same steps again. See `penstock.engine.store`
for why two drivers at once can't do harm.
"""

from __future__ import annotations

import functools
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.client.network.connection import Aside
from penstock.engine.attempts import (
    Attempts,
    PlannedError,
    Writing,
    begun_again,
    check_begun,
    letters_of_before,
    new_writer,
    unfinished,
    warn_of_sources,
)
from penstock.engine.letters.box import of_any
from penstock.engine.log import Log
from penstock.engine.outgoing import writer_name
from penstock.engine.physical import Physical
from penstock.engine.plan import Execute, Limits, Work
from penstock.engine.progress.nodes import NodeProgress, Nodes
from penstock.engine.record.marks import Activity
from penstock.engine.record.plan import Plan, Split, Switch, WriterEntry
from penstock.engine.record.report import Report
from penstock.engine.record.values import Traces
from penstock.engine.record.version import Version
from penstock.engine.store import Store
from penstock.engine.transactions import OutputTransactions, transactional_id
from penstock.engine.upkeep.keeper import Keeper
from penstock.engine.versions import check_topics, first_version, of_program, same_program
from penstock.engine.watermarks import Look, look
from penstock.errors import BrokerError, FencedError, FlowError
from penstock.flow.graph import Source, origins
from penstock.ops import NO_TIME
from penstock.wire.protocol import ErrorCode

__all__ = ["Driver", "Limits", "Progress", "SourceProgress", "this_process"]

LOOK_AGE_MAX_S: Final = 0.05
"""Of a look at the log's ends that a plan may be made of, where there is time to wait for more."""
TOPICS_EVERY_S: Final = 10.0
"""Between two looks at the topics' ids and partitions, each a request for each topic."""
CLOCK_S: Final = 0.5
"""Between two looks at the clock while it is about to give something to do."""


def this_process() -> str:
    """Describes this process, for the one that it has taken over from."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What a batch read of a topic.

    Attributes:
        rows: records.
        lag: records that are left.
        watermark_us: the topic's; None: nothing is known.
        held_by: the partition or producer that holds the watermark back; None: nobody does.
        held_since_us: since when it does so without coming further.
    """

    rows: int
    lag: int
    watermark_us: int | None
    held_by: str | None
    held_since_us: int | None


@dataclass(frozen=True)
class Progress:
    """What one batch did.

    Attributes:
        version: the batch's number.
        batch_ms: the time from the plan to the commit.
        rows: records read.
        late_rows: rows too late for at least one of their windows.
        dead_rows: dead letters written.
        lost_rows: records that retention removed before they were read.
        sources: by topic.
        seconds: time by phase, summed over tasks; `plan` and `commit` are the driver's.
        nodes: by identity: the work and state of each source, step, operator and output.
    """

    version: int
    batch_ms: float
    rows: int
    late_rows: int
    dead_rows: int
    lost_rows: int
    sources: dict[str, SourceProgress] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, NodeProgress] = field(default_factory=dict)


class Driver:
    """One owner of one pipeline. Construct it, then call `step` until it is enough."""

    def __init__(
        self,
        physical: Physical,
        store: Store,
        log: Log,
        *,
        lanes: int,
        output_partitions: Mapping[str, int],
        dead_letter_topic: str,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        limits: Limits | None = None,
        keeper: Keeper | None = None,
        versions_kept: int | None = None,
    ) -> None:
        self.physical, self.store, self.log = physical, store, log
        self.lanes, self.dead_letter_topic = lanes, dead_letter_topic
        self.limits = limits or Limits()
        self._wall_us = wall_us
        self.program = physical.digest(output_partitions)
        self.epoch = store.claim(this_process())
        number = store.newest_version()
        version = store.version(number) if number else first_version(physical)
        if not same_program(version, physical):
            raise FlowError(
                f"expected the program that version {number} is of; found one that has changed. Run it: "
                "its new operators are computed from the log first"
            )
        # Names and steps of views may change: readers know them with the next version.
        published = version.views if number else None
        self.version = replace(of_program(version, physical), versions_kept=versions_kept)
        self._is_published = published in (None, self.version.views)
        self._call_off_switch()
        self._activity: Mapping[str, Activity] = self.version.activity
        self._ends: dict[str, dict[int, int]] = {}
        self._topic_ids: dict[str, str] = {}
        self._topics_looked_s = -TOPICS_EVERY_S
        self._looked_s = -LOOK_AGE_MAX_S
        self._transactions: OutputTransactions | None = None
        if physical.writes_last:
            outputs = [one.identity for one in physical.graph.outputs]
            name = transactional_id(physical.graph.name)
            self._transactions = OutputTransactions(log, name, dead_letter_topic, outputs)
        self._nodes = Nodes(physical)
        self._keeper = keeper or Keeper(store)
        self._planning_since = time.perf_counter()

    # -- one batch ----------------------------------------------------------------------------------

    def step(
        self,
        execute: Execute,
        *,
        timeout_s: float = 0.0,
        aside: Aside | None = None,
    ) -> Progress | None:
        """Runs one batch; None where there was nothing to do in `timeout_s`.

        Args:
            execute: runs a batch on all lanes.
            timeout_s: how long to wait for something to do.
            aside: what is attended to meanwhile.

        Raises:
            FencedError: another process has taken over the pipeline.
            PenstockError: a task failed; what it said.
        """
        self.store.check_owner(self.epoch)
        self._keeper.before(self.version)
        pending = self._pending()
        plan = pending or self._new_plan(timeout_s, aside)
        if plan is None:
            return None
        started = self._planning_since
        planned = time.perf_counter()
        try:
            plan, reports = self._written(plan, execute, is_new=pending is None)
        except PlannedError:
            return self.step(execute, timeout_s=timeout_s, aside=aside)  # with the plan that counts
        except Exception:
            self._topics_looked_s = -TOPICS_EVERY_S  # a topic may be another one
            raise
        executed = time.perf_counter()
        version = self._after(plan, reports)
        # A driver that has taken over meanwhile waits for this batch or repeats it: the same in any case.
        if not self.store.commit(version, relaxed=self._keeper.relaxed):
            version = self.store.version(plan.version)
        self.version, self._is_published = version, True
        warn_of_sources(plan, reports)
        has_written = any(report.has_written for report in reports)
        self._keeper.committed(version, has_written=has_written)
        ended = time.perf_counter()
        own = {"plan": planned - started, "commit": ended - executed}
        return self._progress(plan, reports, own, 1_000 * (ended - started))

    def close(self) -> None:
        """Ends what is done next to the batches; all that is committed survives the machine then.

        Raises:
            OSError: files can't be written.
        """
        self._keeper.settle(self.version)

    def _written(self, plan: Plan, execute: Execute, *, is_new: bool) -> tuple[Plan, list[Report]]:
        """Has a batch run, and what it has written count; the plan as it was run, and the lanes' reports."""
        traces_of = functools.partial(self._traces_of, plan)
        write = Writing(self.store, plan, is_written=not is_new)
        if self._transactions is None:
            # Of a batch that is repeated another program may have written, under the same numbers.
            attempts = Attempts(self.log, plan, is_first=is_new and plan.repeats is None)
            reports = execute(Work(attempts, traces_of, write))
            return attempts.plan, reports
        try:
            reports = execute(
                Work(functools.partial(self._transactions.attempt, plan), traces_of, write)
            )
            self.store.check_owner(self.epoch)
            self._transactions.commit(plan, reports)
        except FencedError as error:
            self.store.check_owner(self.epoch)
            raise BrokerError(
                f"expected the transaction of batch {plan.version} to stay open; found that it was ended: it "
                "took too long, or another pipeline of this name, with another directory, writes to the same "
                f"log ({error})",
                retriable=True,
            ) from error
        return plan, reports

    # -- planning -----------------------------------------------------------------------------------

    def _pending(self) -> Plan | None:
        content = self.store.plan(self.version.number + 1)
        if content is None:
            return None
        plan = self._own(content)
        self._look_for_ends()
        ends = {split.place: split.end for split in plan.splits}
        self._check_begun(plan.version, ends, plan.topic_ids)
        self._activity = plan.activity
        return plan

    def _own(self, plan: Plan | Switch) -> Plan:
        """A plan of this program; another number of lanes may have written it.

        Raises:
            FencedError: a changed program takes the pipeline over with this version.
            FlowError: a changed program has begun the batch.
        """
        if isinstance(plan, Switch):
            raise FencedError(
                f"expected to run batch {plan.version}; found that a changed program takes the "
                "pipeline over. This process is no longer needed"
            )
        if plan.program != self.program:
            raise FlowError(unfinished(plan.version))
        splits = tuple(replace(s, lane=i % self.lanes) for i, s in enumerate(plan.splits))
        return replace(plan, splits=splits)

    def _call_off_switch(self) -> None:
        """Continues with this program where another was about to take over, and didn't."""
        number = self.version.number + 1
        if isinstance(self.store.plan(number), Switch):
            self.store.sync(self.version)
            self.store.commit(replace(self.version, number=number, epoch=self.epoch))
            self.version = self.store.version(number)

    def _new_plan(self, timeout_s: float, aside: Aside | None = None) -> Plan | None:
        self._planning_since = time.perf_counter()
        # A waiting reader is notified at once if there is more than was seen just now.
        if timeout_s == 0 or time.monotonic() - self._looked_s > LOOK_AGE_MAX_S:
            self._look_for_ends()
        plan = self._planned()
        if plan is None and timeout_s > 0:
            while timeout_s > CLOCK_S and self._is_due(self._wall_us() + int(timeout_s * 1e6)):
                timeout_s = max(timeout_s / 2, CLOCK_S)
            self._look_for_ends(timeout_s, aside)
            plan = self._planned()
        return plan

    def _planned(self) -> Plan | None:
        """The plan of the next batch as the log is now, not written yet; None: there is nothing to do."""
        check_topics(self.version, self.physical, self._ends, self._topic_ids)
        begun = self.version.pending
        number = self.version.number + 1
        if begun is not None:
            self._check_begun(number, begun.ends, begun.topic_ids)
        now_us = self._wall_us() if begun is None else begun.wall_us
        splits = self._splits() if begun is None else begun_again(begun, self._splits())
        found = self._look(self.version, self._activity, self._ends, now_us)
        if begun is not None:
            marks = {**self.version.watermark_us, **begun.watermark_us}
            found = replace(found, watermark_us=marks)
        self._activity = found.activity
        frontiers = self.physical.frontiers(found.watermark_us, now_us, self.version.frontier_us)
        idle = all(s.start == s.end for s in splits) and not self._wakes(frontiers)
        if begun is None and idle and self._is_published and not self._must_keep(found, now_us):
            return None
        return Plan(
            version=number,
            epoch=self.epoch,
            program=self.program,
            wall_us=now_us,
            splits=splits,
            watermark_us=found.watermark_us,
            frontier_us=frontiers,
            writers=self._writers(),
            activity=found.activity,
            incarnation=self.version.incarnation or uuid.uuid4().hex[:12],
            topic_ids=self._topic_ids,
            repeats=None if begun is None else begun.repeats,
            bytes_max=self.limits.bytes_max if begun is None else begun.bytes_max,
            outputs={one.identity: one.topic for one in self.physical.graph.outputs},
            letters=letters_of_before(begun, self.log, self.dead_letter_topic),
        )

    def _look_for_ends(self, timeout_s: float = 0.0, aside: Aside | None = None) -> None:
        """Looks how far the log reaches; waits for more than was read."""
        self._planning_since = time.perf_counter()
        topics = [source.topic for source in self._sources()]
        now_s = time.monotonic()
        if now_s - self._topics_looked_s >= TOPICS_EVERY_S:
            self._look_at_topics(topics)
        elif all(self.version.offsets[t].keys() == self._ends[t].keys() for t in topics):
            try:
                self._ends = self.log.look(self._next_offsets(), timeout_s, aside)
            except BrokerError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                # Retention has removed what comes next, or the topic was created again.
                self._look_at_topics(topics)
        else:  # where reading begins isn't known before the first batch
            self._ends = self.log.end_offsets(topics)
        self._looked_s = time.monotonic()
        if timeout_s > 0:
            self._planning_since = time.perf_counter()

    def _look_at_topics(self, topics: Collection[str]) -> None:
        self._topics_looked_s = time.monotonic()
        self._topic_ids = self.log.topic_ids(topics)
        self._ends = self.log.end_offsets(topics)

    def _check_begun(self, number: int, ends: Mapping[str, int], ids: Mapping[str, str]) -> None:
        check_begun(number, ends, ids, self.physical.graph, self._ends, self._topic_ids)

    def _traces_of(self, plan: Plan, lane: int) -> Traces:
        """The state that a lane's shards begin a batch with, by operator and shard."""
        splits = {(s.topic, s.partition) for s in plan.splits if s.lane == lane}
        return {
            placed.id: {
                shard: trace
                for shard, trace in self.version.operators[placed.id].traces.items()
                if (
                    (placed.topic, shard) in splits
                    if placed.level == 0
                    else shard % self.lanes == lane
                )
            }
            for placed in self.physical.placed.values()
        }

    def _sources(self) -> tuple[Source, ...]:
        return self.physical.graph.sources

    def _splits(self) -> tuple[Split, ...]:
        """A split for every partition, empty ones too: closing windows is work as well."""
        self._note_starts()
        ranges = []
        for source in self._sources():
            topic = source.topic
            newest = self.version.newest_us.get(topic, {})
            producers = self.version.producers.get(topic, {})
            for partition in range(self.physical.partitions[topic]):
                start = self.version.offsets[topic][partition]
                end = max(start, min(self._ends[topic][partition], start + self.limits.rows_max))
                known = newest.get(partition), producers.get(partition)
                ranges.append((topic, partition, start, end, *known))
        # A partition stays with its lane, which has its state open.
        ranges.sort(key=lambda r: r[:2])
        return tuple(
            Split(*r[:5], lane=i % self.lanes, producers=r[5]) for i, r in enumerate(ranges)
        )

    def _note_starts(self) -> None:
        """Takes note of where the log begins, of partitions of which nothing was read."""
        known = self.version.offsets
        missing = [t for t, ends in self._ends.items() if not ends.keys() <= known[t].keys()]
        if missing:
            starts = self.log.start_offsets(missing)
            begun = {t: {**starts[t], **known[t]} for t in missing}
            self.version = replace(self.version, offsets={**known, **begun})

    def _look(
        self,
        version: Version,
        activity: Mapping[str, Activity],
        ends: Mapping[str, Mapping[int, int]],
        now_us: int,
    ) -> Look:
        sources, rows_max = self._sources(), self.limits.rows_max
        return look(sources, self.physical.peers, version, activity, ends, now_us, rows_max)

    def _is_due(self, now_us: int) -> bool:
        """Whether the clock alone gives something to do until then."""
        found = self._look(self.version, self._activity, self._ends, now_us)
        frontiers = self.physical.frontiers(found.watermark_us, now_us, self.version.frontier_us)
        return self._wakes(frontiers) or self._must_keep(found, now_us)

    def _must_keep(self, found: Look, now_us: int) -> bool:
        """Whether idleness that is under way should be kept, lest a restart begins it again."""
        if found.keep_us is None or not self.version.number:
            return False
        return now_us - self.version.wall_us >= found.keep_us

    def _wakes(self, frontiers: dict[str, list[int]]) -> bool:
        """Whether moving the frontiers alone would give rows, or rows of nothing are to be given at first."""
        before = self.version.frontier_us
        return any(
            placed.operator.wakes(
                before.get(name, [NO_TIME] * len(frontiers[name])), frontiers[name]
            )
            or (placed.traits.always and name not in before)
            for name, placed in self.physical.placed.items()
        )

    def _next_offsets(self) -> dict[tuple[str, int], int]:
        return {
            (topic, partition): offset
            for topic, partitions in self.version.offsets.items()
            for partition, offset in partitions.items()
        }

    def _writers(self) -> dict[str, WriterEntry]:
        """Every writer that a batch may need; a new one's producer id becomes durable with the plan."""
        begun = self.version.pending
        writers = {**self.version.writers, **(begun.writers if begun else {})}
        for name in self._writer_names():
            if name not in writers:
                writers[name] = new_writer(self.log)
        return writers

    def _writer_names(self) -> list[str]:
        dead, partitions = self.dead_letter_topic, self.physical.partitions
        names = [f"{dead}/{topic}/{p}" for topic, count in partitions.items() for p in range(count)]
        refused = self.physical.refused()
        names += [f"{dead}/{p.id}/{shard}" for p in refused for shard in range(p.shards)]
        names += [of_any(dead, shard) for shard in range(self.physical.shards_max)]
        for output in () if self._transactions else self.physical.graph.outputs:
            for origin in origins(output.node):
                shards = range(self.physical.shards_of(origin))
                names += [writer_name(output, origin, shard) for shard in shards]
        return names

    # -- committing ---------------------------------------------------------------------------------

    def _after(self, plan: Plan, reports: Sequence[Report]) -> Version:
        """The version after a batch."""
        made = self.version.after(plan, reports, self._sources())
        ends: dict[str, dict[int, int]] = {}
        for split in plan.splits:
            read = made.offsets[split.topic][split.partition]
            ends.setdefault(split.topic, {})[split.partition] = read
        held = self._look(made, plan.activity, ends, plan.wall_us).held
        return replace(made, held=held, upgrades=self._keeper.needed(made.upgrades))

    def _progress(
        self, plan: Plan, reports: Sequence[Report], seconds: dict[str, float], batch_ms: float
    ) -> Progress:
        lag: dict[str, int] = {}
        for split in plan.splits:
            end = self._ends.get(split.topic, {}).get(split.partition, split.end)
            read = self.version.offsets[split.topic].get(split.partition, split.end)
            lag[split.topic] = lag.get(split.topic, 0) + max(0, end - read)
        rows = dict.fromkeys(lag, 0)
        done = [source for report in reports for source in report.sources]
        for source in done:
            rows[source.topic] += source.rows
        for report in reports:
            for part, s in report.seconds.items():
                seconds[part] = seconds.get(part, 0.0) + s
        sources = {}
        for topic, left in lag.items():
            held = self.version.held.get(topic)
            by = (None, None) if held is None else (held.text, held.since_us)
            sources[topic] = SourceProgress(rows[topic], left, plan.watermark_us.get(topic), *by)
        return Progress(
            version=plan.version,
            batch_ms=batch_ms,
            rows=sum(rows.values()),
            late_rows=sum(source.late for source in done)
            + sum(sum(report.passed_late.values()) for report in reports),
            lost_rows=sum(source.lost for source in done),
            dead_rows=sum(sum(report.dead.values()) for report in reports),
            sources=sources,
            seconds=seconds,
            nodes=self._nodes.progress(
                [report.nodes for report in reports],
                self.version,
                plan.watermark_us,
                plan.frontier_us,
            ),
        )
