"""Takes a program that has changed to a version of the program before.

    kept  = operators of both programs          their state is taken over
    lent  = new ones that keep what others do   likewise (`penstock.engine.states.sharing`)
    recut = those that are on other shards      likewise, each row to the shard of its key
    new   = operators of this program alone     made of the log, up to the offsets of a version
    version N+1 = version N, less what is gone, and with what is new

The *backfill* makes the new operators: it runs the part of the graph that they need over the log, up to
the offsets of the last version and never beyond its watermarks, in a record of its own
(`upgrades/NAME/`). The previous program runs meanwhile. When little is left, the *switch* takes the
pipeline over and fixes version N as the base: by a plan N+1 that reads nothing or, where the program of
before has begun a batch N+1, by that. The backfill reads up to the offsets of the base and ends with its
frontiers, and states are cut. Then version N+1 is committed, if absent.

Invariants
    1. Whether a row of the log is late is a function of the log before it, so what is backfilled is what a
       rebuild up to the base makes, row for row.
    2. Plan N+1 is unique: no batch of the previous program is begun between the base and the switch. One
       that was begun before is run again by the new program as N+2, with the same offsets, watermarks, clock
       and sequences, so that topics which both write get the same records, once.
    3. All that the switch does is committing one version: before it the old views are there, after it the
       new ones.
    4. Everything before is repeatable: an upgrade that is killed continues where it stopped.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Literal, TypeAlias, TypeVar

from penstock.client.network.connection import Aside
from penstock.core.time import instant_text
from penstock.engine.attempts import as_it_is, unfinished
from penstock.engine.driver import Progress, this_process
from penstock.engine.log import Log
from penstock.engine.physical import Physical, Placed, compile_graph
from penstock.engine.plan import Execute, Limits
from penstock.engine.record.plan import Begun, Plan, Repeats, Switch
from penstock.engine.record.values import Json, Offsets, Traces, by_name
from penstock.engine.record.version import Counts, Version
from penstock.engine.states.sharing import converge, lent_states
from penstock.engine.store import Store
from penstock.engine.upgrade.backfill import Backfill, Backfilled
from penstock.engine.versions import (
    change_of,
    equal_rows,
    of_program,
    operator_entry,
    same_rows,
    writes_alike,
)
from penstock.errors import FencedError, FlowError
from penstock.flow.graph import Closed, Graph, Node, OutputNode, Source, ViewNode, ancestors
from penstock.ops.recut import recut
from penstock.state.runs import Writer

__all__ = ["Outputs", "Target", "Upgrade"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

Outputs: TypeAlias = Literal["all", "new"]
"""What topics get that this program didn't write so far: all that the log gives, or what is new. None: all
where a topic is empty, else what is new."""

CLOSE_ROWS: Final = 200_000  # left to read when the switch begins: less than a second's work
PAUSE_S: Final = 0.05  # between steps that a host asks for after the end
ROUNDS_MAX: Final = 20  # that the backfill follows an earlier version that runs ahead of it


@dataclass(frozen=True)
class Target:
    """The program that is to run, and what goes with it.

    Attributes:
        physical: the program, placed.
        output_partitions: of each topic that it writes.
        dead_letter_topic: where records go that can't be used.
        lanes: that work on it.
    """

    physical: Physical
    output_partitions: Mapping[str, int]
    dead_letter_topic: str
    lanes: int


class Upgrade:
    """One change of a pipeline's program. Call `step` until it is `done`; then the program can run.

    Args:
        target: the program.
        store: the pipeline's record, with at least one version.
        base: the last version, or what is known of it.
        log: where the pipeline reads and writes.
        anew: whether to take no state over: a rebuild.
        outputs: what topics get that the program didn't write so far.
        limits: of a batch.
        wall_us: the clock.
        repair: turns a version into one that can be continued from.
        unfit: operators whose state has another form than they have now.
    """

    def __init__(
        self,
        target: Target,
        store: Store,
        base: Version,
        log: Log,
        *,
        anew: bool = False,
        outputs: Outputs | None = None,
        limits: Limits | None = None,
        wall_us: Callable[[], int] | None = None,
        repair: Callable[[Version], Version] = lambda version: version,
        unfit: frozenset[str] = frozenset(),
    ) -> None:
        self.target, self.store, self.log = target, store, log
        self.done = False
        self._is_anew = anew
        self._repair = repair
        base = self._base = repair(base)
        self._change = change_of(base, target.physical, anew=anew, unfit=unfit)
        self._unfit = unfit
        self._recut: tuple[int, dict[str, dict[int, Json]]] = (
            -1,
            {},
        )  # the base's number; states cut again
        self.program = target.physical.digest(target.output_partitions)
        # What was made of a topic that has been created again since is of no use.
        ids = sorted(log.topic_ids([s.topic for s in target.physical.graph.sources]).items())
        how = f"{self.program} {'anew' if anew else ''} {outputs} {sorted(self._change.kept)} {ids}"
        digest = blake2b(how.encode(), digest_size=8).hexdigest()
        self.name = f"{digest}-{base.switches}"
        self.record = store.within(self.name)
        self._decide(outputs, anew=anew)
        sources = {s.topic: s.identity for s in target.physical.graph.sources}
        known = sources if base.sources is None else base.sources
        self._kept_sources = frozenset(t for t, one in sources.items() if known.get(t) == one)
        self.lettered = frozenset(base.nodes)
        self.physical = self._part()
        self.backfill: Backfill | None = None
        self._is_bound = self._is_finishing = False
        self._rounds = 0
        self._ends: Offsets = {}
        self._pending: Plan | None = None
        self.epoch = 0
        if self.physical is not None:
            clock = {} if wall_us is None else {"wall_us": wall_us}
            self.backfill = Backfill(
                self.physical,
                self.record,
                log,
                base=base,
                sources=self._kept_sources,
                lanes=target.lanes,
                output_partitions=target.output_partitions,
                dead_letter_topic=target.dead_letter_topic,
                limits=limits,
                **clock,
            )
        self._clear_others()

    # -- what is to be done -------------------------------------------------------------------------

    def _decide(self, outputs: Outputs | None, *, anew: bool) -> None:
        """Which topics get all, and from where the log is there: decided once, as it is written to."""
        noted = self.record.noted("decided")
        if noted is None:
            fresh = list(self._change.outputs)
            if outputs == "all" and anew:
                fresh = list(self.target.physical.graph.outputs)
            elif outputs is None:
                fresh = [one for one in fresh if self._is_empty(one)]
            elif outputs == "new":
                fresh = []
            topics = [source.topic for source in self.target.physical.graph.sources]
            starts = self.log.start_offsets(topics)
            content = {
                "history": {one.identity: one.topic for one in fresh},
                "starts": starts,
            }
            noted = self.record.note("decided", content)
        self._history: dict[str, str] = noted["history"]
        self._starts: Offsets = by_name(noted["starts"])

    def _is_empty(self, output: OutputNode) -> bool:
        """Whether a topic never had a record.

        Raises:
            FlowError: it has those of an upgrade that was given up.
        """
        topic = output.topic
        if not any(self.log.end_offsets([topic])[topic].values()):
            return True
        for name in set(self.store.upgrades()) - set(self._base.upgrades):
            noted = self.store.within(name).noted("decided")
            if noted is not None and topic in noted["history"].values():
                raise FlowError(
                    f"expected the topic {topic!r} to be empty, or of the previous program; found the "
                    "records of an upgrade that was abandoned. Name another topic, or choose what "
                    "this one gets: --outputs all (after the existing records) or --outputs new"
                )
        return False

    def _part(self) -> Physical | None:
        """The part of the program that has to read the log again; None: nothing has to."""
        full = self.target.physical
        for placed in () if self._is_anew else self._change.new:
            self._check_reach(placed)
        views = tuple(ViewNode(p.name, p.node) for p in self._change.new)
        outputs = tuple(o for o in full.graph.outputs if o.identity in self._history)
        ends: list[ViewNode | OutputNode] = [*views, *outputs]
        if not ends:
            return None
        read = {node.identity for end in ends for node in ancestors(end.node)}
        sources = tuple(s for s in full.graph.sources if s.identity in read)
        graph = Graph(full.graph.name, sources, views, outputs)
        partitions = {source.topic: full.partitions[source.topic] for source in sources}
        part = compile_graph(graph, partitions, full.shards, full.unkeyed)
        for name, placed in part.placed.items():
            assert placed.cut == full.placed[name].cut, (
                "a part of a graph is placed as in the whole"
            )
        self._warn_of_gaps(graph)
        return part

    def _check_reach(self, placed: Placed) -> None:
        """Whether the log still gives what an operator has, whose state is to be cut otherwise.

        Raises:
            FlowError: it doesn't.
        """
        entry = self._base.operators.get(placed.id)
        if entry is None or self._begins(placed.node) == entry.begins:
            return
        if placed.id in self._unfit:
            raise FlowError(
                f"expected the state of {placed.title} in the form that this release keeps; found that of "
                "another release, and that retention has removed records that it was computed from. Run the "
                "program with the release that wrote the state; or use --rebuild, which computes it from "
                "the records that are left"
            )
        raise FlowError(
            f"expected to split the state of {placed.title} again ({entry.cut} to {placed.cut}), "
            "by the "
            "topic's partitions, from the log; found that retention has removed records that it was computed "
            "from. Leave the key unchanged, or run the program with --rebuild, which computes it from the "
            "records that are left"
        )

    def _warn_of_gaps(self, graph: Graph) -> None:
        """Says from when on what is backfilled is complete, where the log no longer begins at 0."""
        for source in graph.sources:
            newest_us = None
            for partition, start in self._starts[source.topic].items():
                end = self._base.offsets.get(source.topic, {}).get(partition, 0)
                if 0 < start < end:
                    chunk = next(self.log.read(source.topic, partition, start, start + 1), None)
                    at_us = int(chunk.timestamp_ms[0]) * 1_000 if chunk is not None else 0
                    newest_us = max(newest_us or 0, at_us)
            if newest_us is not None:
                _log.warning(
                    "expected the log of %r from its beginning on; found that retention has removed "
                    "records from before %s. What is computed from it now (%s) is complete from then on",
                    source.topic, instant_text(newest_us), ", ".join(self.names),
                )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is made of the log: views and topics."""
        found = [name for placed in self._change.new for name in placed.names]
        return tuple(dict.fromkeys([*found, *self._history.values()]))

    def _clear_others(self) -> None:
        """Deletes what upgrades left behind that were given up; one that still runs finds itself replaced."""
        found = set(self.store.upgrades()) - {self.name, *self._base.upgrades}
        states = self.store.states_kept(self._base.number) if found else []
        for name in sorted(found):
            if self.store.within(name).noted("decided") is not None:
                self.store.within(name).claim(this_process(), "upgrades the pipeline")
            self.store.vacuum_upgrade(name, states)

    # -- steps --------------------------------------------------------------------------------------

    def progress(self) -> Backfilled:
        """How far it has come."""
        if self.backfill is None:
            return Backfilled(0, 0, self.names)
        read = self.backfill.version.offsets
        ends = self.log.end_offsets(list(read))
        rows = total = 0
        for topic, starts in self._starts.items():
            for partition, start in starts.items() if topic in read else ():
                end = self._base.offsets.get(topic, {}).get(partition)
                end = ends[topic].get(partition, 0) if end is None else end
                total += max(0, end - start)
                rows += max(0, min(end, read[topic].get(partition, start)) - start)
        return Backfilled(rows, total, self.names)

    def step(
        self,
        execute: Execute,
        *,
        timeout_s: float = 0.0,
        aside: Aside | None = None,  # noqa: ARG002 - it doesn't wait for the log
    ) -> Progress | None:
        """Does the next piece of work; None where it was no batch.

        Args:
            execute: runs a plan of the backfill on all lanes.
            timeout_s: how long to wait where all is done.
            aside: what would be attended to meanwhile.

        Raises:
            FencedError: another process upgrades the pipeline.
            FlowError: the pipeline can't be upgraded; the message says why.
        """
        if self.done:
            time.sleep(min(timeout_s, PAUSE_S))
            return None
        if self.backfill is not None:
            progress = self.backfill.step(execute)
            if progress is not None:
                return progress
        if not self._is_bound:
            self._follow_or_switch()
        elif self.backfill is not None and not self._is_finishing:
            self._is_finishing = True
            self.backfill.finish()
        else:
            self._commit()
        return None

    def _follow_or_switch(self) -> None:
        newest = self._newest()
        if self.backfill is not None and self._rounds < ROUNDS_MAX:
            self._rounds += 1
            if self.backfill.rows_left(newest) > CLOSE_ROWS:
                self._base = newest
                self.backfill.bound(newest, {})
                return
        self._fix_base()

    def _newest(self) -> Version:
        number = self.store.newest_version()
        if number == self._base.number:
            return self._base
        return self._repair(self.store.version(number))

    def _fix_base(self) -> None:
        """Takes the pipeline over; from now on the last version is the base."""
        if not self.epoch:
            self.epoch = self.store.claim(
                this_process(),
                "runs a changed program, or rebuilds its state. It continues the pipeline",
            )
        while True:
            base = self._newest()
            number = base.number + 1
            plan = self.store.plan(number)
            if plan is None:
                plan = self.store.write_plan(Switch(number, self.program, self.name))
            if isinstance(plan, Plan) or plan.name == self.name:
                break
            # Another upgrade's, which ended before it was done.
            self.store.sync(base)
            self.store.commit(replace(base, number=number, epoch=self.epoch))
        self._pending = plan if isinstance(plan, Plan) else None
        begun = self._pending or base.pending
        if begun is not None and not writes_alike(base, begun.writers.keys(), self.target.physical):
            raise FlowError(unfinished(number))
        topics = [s.topic for s in self.target.physical.graph.sources]
        ends = self.log.end_offsets([t for t in topics if t not in base.offsets])
        self._ends = by_name(self.record.note(f"ends-{number}", dict(ends)))
        self._base, self._is_bound = base, True
        if self.backfill is not None:
            self.backfill.bound(base, self._ends)

    # -- the switch ---------------------------------------------------------------------------------

    def _commit(self) -> None:
        self._cut_anew()
        self._check_kept()
        content = self._joined()
        self.store.sync(content)
        if self.store.commit(content):
            self.done = True
            return
        found = self.store.version(content.number)
        if list(found.upgrades[-1:]) == [self.name]:
            self.done = True  # this upgrade, made by a process that was taken for dead
            return
        if self._pending is None:
            raise FencedError(
                f"expected to commit version {content.number}; found that another process has taken over "
                "the pipeline. Stop it, and run this program again"
            )
        # The previous process has ended its batch after all.
        self._is_bound = self._is_finishing = False
        if self.backfill is not None:
            self.backfill.finish(last=False)

    def _cut_anew(self) -> None:
        """Cuts the base's states that are to be on other shards; all rows are read and written once."""
        number = self._base.number
        if self._recut[0] == number:
            return
        files, attempt = self.store.files, uuid.uuid4().hex[:12]

        def writer_of(placed: Placed) -> Callable[[int, str], Writer]:
            folder = f"{self.record.folder}runs/{placed.id}"
            return lambda shard, name: Writer(
                files, f"{folder}/{shard:04d}/{name}", number + 1, attempt
            )

        made: dict[str, dict[int, Json]] = {}
        for placed in self._change.recut:
            operator = placed.operator
            found = list(self._base.operators[placed.id].traces.values())
            found = found or [operator.empty(files).describe()]
            writer = writer_of(placed)
            states = recut(operator, files, found, placed.shards, writer, placed.hashed_by)
            made[placed.id] = dict(enumerate(states))
        self._recut = number, made

    def _kept(self, name: str) -> Mapping[int, Json]:
        """The state of an operator that is taken over, shard by shard."""
        operators = self._base.operators
        if name in self._change.lent:
            placed, lenders = self.target.physical.placed[name], self._change.lent[name]
            states = {identity: entry.traces for identity, entry in operators.items()}
            return lent_states(placed, lenders, states, self.store.files)
        return self._recut[1].get(name) or operators[name].traces

    def _joined(self) -> Version:
        """The version after the base."""
        physical, base = self.target.physical, self._base
        made = None if self.backfill is None else self.backfill.version
        new = {placed.id for placed in self._change.new}
        states: Traces = {
            name: self._kept(name)
            if made is None or name not in new
            else made.operators[name].traces
            for name in physical.placed
        }
        converged = converge(physical, states, self.store.files, equal_rows)
        operators = {
            name: operator_entry(
                placed,
                converged[name],
                self._begins(placed.node) if name in new else self._began(name),
            )
            for name, placed in physical.placed.items()
        }
        watermark_us = self._of_sources(lambda one: one.watermark_us)
        seen = {**base.frontier_us, **(made.frontier_us if made else {})}
        joined = replace(
            of_program(base, physical),
            number=base.number + 1,
            epoch=self.epoch,
            program=self.program,
            switches=base.switches + 1,
            upgrades=[*base.upgrades, self.name],
            operators=operators,
            offsets=self._offsets(),
            newest_us=self._of_sources(lambda one: one.newest_us),
            watermark_us=watermark_us,
            producers=self._of_sources(lambda one: one.producers),
            activity=self._of_sources(lambda one: one.activity),
            held=self._of_sources(lambda one: one.held),
            frontier_us=physical.frontiers(watermark_us, base.wall_us, seen),
            counts=self._counts(made),
            pending=None,
        )
        # A version that was switched to may wait for a batch of before; so does the one after it then.
        begun, is_same = base.pending, base.program == self.program
        if self._pending is not None:
            begun = self._to_repeat(self._pending)
            is_same = self._pending.program == self.program
        if begun is None:
            return joined
        return replace(joined, pending=self._fitting(begun, is_same=is_same), writers={})

    def _offsets(self) -> Offsets:
        """Each topic's offsets: the former ones, or the backfill's of a topic that wasn't read before."""
        made = {} if self.backfill is None else self.backfill.version.offsets
        topics = [source.topic for source in self.target.physical.graph.sources]
        return {topic: self._base.offsets.get(topic, made.get(topic, {})) for topic in topics}

    def _of_sources(self, what: Callable[[Version], Mapping[str, T]]) -> dict[str, T]:
        """Each topic's entry of the version: the former one, or the backfill's where the source changed."""
        made = {} if self.backfill is None else what(self.backfill.version)
        former, found = what(self._base), {}
        for topic in (source.topic for source in self.target.physical.graph.sources):
            if topic in self._kept_sources and topic in former:
                found[topic] = former[topic]
            elif topic in made:
                found[topic] = made[topic]
        return found

    def _began(self, name: str) -> Offsets:
        """Where the log began, for what is taken over: of state that others keep, as theirs was."""
        entries = self._base.operators
        lenders = [one for one, _ in self._change.lent.get(name, {}).values()]
        found: dict[str, Mapping[int, int]] = {}
        for one in lenders or [name]:
            found |= entries[one].begins
        return found

    def _begins(self, node: Node) -> Offsets:
        """Where the log began, for what is made of it now: by topic and partition, if not at 0."""
        topics = {one.topic for one in ancestors(node) if isinstance(one, Source)}
        starts = {t: {p: o for p, o in self._starts[t].items() if o} for t in sorted(topics)}
        return {topic: offsets for topic, offsets in starts.items() if offsets}

    def _counts(self, made: Version | None) -> Counts:
        """What the previous program had counted, and what the backfill has: what is new of it."""
        names, topics = {placed.name for placed in self._change.new}, self._base.offsets.keys()

        def is_new(what: str, name: str) -> bool:
            # Rows are counted once; late and dead ones as often as they have a letter.
            if what == "late_by_view":
                return name in names
            return what in {"dead", "late"} or name not in topics

        return self._base.counts.adding(made.counts if made else Counts(), is_new)

    def _to_repeat(self, plan: Plan) -> Begun:
        """Of a batch that was begun, what the new program runs again; see `Driver`."""
        outputs = self._base.outputs or {}
        mine = self.target.physical.graph.outputs
        if plan.program != self.program:
            gone = set(outputs) - {one.identity for one in mine}
            for topic in sorted({outputs[one] for one in gone} & {one.topic for one in mine}):
                _log.warning(
                    "expected the previous program to finish the batch that it began; found that it didn't. "
                    "The topic %r, which it wrote otherwise, may have rows of that batch from both",
                    topic,
                )
        return Begun(
            wall_us=plan.wall_us,
            bytes_max=plan.bytes_max,
            repeats=Repeats(plan.version, plan.incarnation, sorted(outputs), plan.repeats),
            starts={split.place: split.start for split in plan.splits},
            ends={split.place: split.end for split in plan.splits},
            topic_ids=plan.topic_ids,
            watermark_us=plan.watermark_us,
            writers=plan.writers,
        )

    def _fitting(self, begun: Begun, *, is_same: bool) -> Begun:
        """The plan of an interrupted batch, which another program may have begun, for this one to run."""
        marks, writers = begun.watermark_us, begun.writers
        dead = f"{self.target.dead_letter_topic}/"
        if not is_same:
            # Another program may bury other rows: its letters must not be taken for those that are there.
            # So it gets new writers for them, as for all that it writes and the one before did not.
            writers = {name: one for name, one in writers.items() if not name.startswith(dead)}
        kept = {topic: us for topic, us in marks.items() if topic in self._kept_sources}
        begun = replace(begun, watermark_us=kept, writers=writers)
        return as_it_is(begun, self.log, [s.topic for s in self.target.physical.graph.sources])

    def _check_kept(self) -> None:
        """Whether what new operators read of kept ones is what these have.

        New operators were made of the log, and will get the changes of what kept ones have. Where these
        were made of records that are gone, or of rows that are late today, the two don't fit.

        Raises:
            FlowError: they don't.
        """
        if self.backfill is None or self.physical is None:
            return
        new = {placed.id for placed in self._change.new}
        for name, placed in self.physical.placed.items():
            if name in new or not placed.traits.retracts:
                continue
            readers = self.physical.readers(placed.node)
            if placed.traits.corrects:
                readers = [*readers, *self.physical.readers(Closed(placed.node))]
            if not any(getattr(reader.to, "id", None) in new for reader in readers):
                continue
            mine = self.backfill.version.operators[name].traces
            theirs = self._kept(name)
            if not same_rows(placed.operator, self.store.files, mine, theirs):
                raise FlowError(
                    f"expected {placed.title}, which new operators read, to be what the log gives; found "
                    "other rows: the log no longer has all of its input, or a topic was idle. Run the "
                    "program with --rebuild, which makes all of it of what the log has"
                )
