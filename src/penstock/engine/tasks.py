"""What a lane does in a batch, wherever it runs: in one of Spark's Python workers or in this process.

    level 0      splits -> records -> rows -> operators          parcels to shards of later levels
    level k > 0  parcels of this lane's shards -> operators      and a report for the driver

Rows come from an *origin* (a source, an operator, its closed rows) and pass through steps that keep nothing
to their readers: an operator in the same lane, one on other shards, or a topic.

A lane takes all that it knows from the plan and the state that the batch begins with, so a batch that is
run again sends the same parcels and writes the same records. Shard s belongs to lane s modulo lanes.
"""

from __future__ import annotations

import functools
import itertools
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import OFFSET, TIME, WATERMARK, union, unnumbered
from penstock.engine.attempts import cut_short, input_gone
from penstock.engine.letters.box import LetterBox
from penstock.engine.letters.culprits import Guard
from penstock.engine.letters.failures import within
from penstock.engine.letters.lettered import lettered_before
from penstock.engine.letters.reasons import Reasons
from penstock.engine.letters.refusals import Blamed, Refusals, blamed
from penstock.engine.letters.steps import stepped
from penstock.engine.log import Log, Outgoing, Writer
from penstock.engine.outgoing import (
    from_bytes,
    joined,
    rows_outgoing,
    to_bytes,
    writer_name,
)
from penstock.engine.physical import Physical, Placed, Reader
from penstock.engine.progress.meter import Clock, Meter
from penstock.engine.record.plan import Plan, Split
from penstock.engine.record.report import Report, SplitReport
from penstock.engine.record.values import Json, Traces
from penstock.engine.source import Chunk, SourceReader
from penstock.engine.states.hot import Hot
from penstock.engine.states.sharing import Shares
from penstock.engine.store import Store
from penstock.errors import BrokerError
from penstock.flow.graph import Closed, Node, Origin, OutputNode, RowStep, Source, Union, origins
from penstock.ops import Context, Prepared
from penstock.ops.rows import Explanations, Refused
from penstock.ops.windows import NO_TIME, NOTHING_YET_US
from penstock.state import LocalStateFiles, StateFiles
from penstock.wire.columns import Records
from penstock.wire.protocol import ErrorCode

__all__ = ["Handed", "Job", "LaneBatch", "Parcel"]

WRITTEN: Final = (
    ">"  # begins the name under which parts of a topic are handed on; no operator's does
)


@dataclass(frozen=True, slots=True)
class Handed:
    """What one port of an operator gets on one shard from one origin.

    Attributes:
        content: the object itself where it was made in this lane, else its bytes.
    """

    operator: str
    port: int
    shard: int
    origin: str
    content: Any


Parcel: TypeAlias = tuple[int, Handed, Callable[[], bytes]]
"""For which lane, what, and what gives its bytes where it has to travel."""


@dataclass(frozen=True)
class Job:
    """What every task of a pipeline knows.

    Attributes:
        physical: the operators and where they run.
        open_store: gives the pipeline's record, in whatever process the task runs.
        open_log: gives the log, likewise.
        dead_letter_topic: where records go that can't be used.
        output_partitions: of each topic that is written, dead letters included.
        relaxed: whether state need not be on the disk when a batch ends; see `penstock.engine.upkeep`.
        lettered: nodes whose dead letters have been written already, of all that is read here.
    """

    physical: Physical
    open_store: Callable[[], Store]
    open_log: Callable[[], Log]
    dead_letter_topic: str
    output_partitions: dict[str, int]
    lettered: frozenset[str] = frozenset()
    relaxed: bool = False


class LaneBatch:
    """One lane's work on one batch: level by level, then `finish`.

    Args:
        job: what the pipeline does.
        lane: this lane's number, of `lanes`.
        plan: of the batch.
        traces: by operator and shard, the state that the batch begins with.
        hot: what this lane has open from batches before.
        may_write: called before anything is written to a topic; returns when the plan is written down.
    """

    def __init__(
        self,
        job: Job,
        lane: int,
        lanes: int,
        plan: Plan,
        traces: Traces,
        hot: Hot,
        may_write: Callable[[], None],
    ) -> None:
        started = time.perf_counter()
        self.job, self.lane, self.lanes = job, lane, lanes
        self.plan, self.before, self.hot = plan, traces, hot
        self.shares = Shares(job.physical)
        self._may_write = may_write
        self.store = job.open_store()
        self.files: StateFiles = self.store.files
        if job.relaxed and isinstance(self.files, LocalStateFiles):
            self.files = self.files.relaxed()
        self.log = job.open_log()
        self.log.expect(plan.topic_ids)
        self.parcels: list[Parcel] = []
        self.waiting: dict[tuple[str, int], list[Handed]] = defaultdict(list)
        self.traces: dict[str, dict[int, Json]] = defaultdict(dict)
        self.sources: list[SplitReport] = []
        self.writers: dict[str, Writer] = {}
        self.transacted: dict[str, dict[int, int]] = defaultdict(dict)  # next sequences
        self.late: dict[str, int] = defaultdict(int)
        self.passed_late: dict[str, int] = defaultdict(int)  # late rows that operators handed on
        self.letters = LetterBox(
            job.dead_letter_topic,
            job.output_partitions[job.dead_letter_topic],
            plan,
            {one.id: one.name for one in job.physical.placed.values()},
            self._send_letters,
        )
        self.guard = Guard(stops=job.physical.graph.stops)
        self.explanations: dict[tuple[str, str], Explanations] = defaultdict(Explanations)
        self.clock = Clock()
        self.meter = Meter()
        self._since = started
        self.clock.add("open", started)

    def run_level(self, level: int, handed: Sequence[Handed]) -> None:
        """Runs one level.

        Args:
            level: 0 reads the log; the others take parcels.
            handed: all that was sent to this lane's shards, in the order of its origins.
        """
        for one in handed:
            self.waiting[one.operator, one.shard].append(one)
        if level == 0:
            for split in self.plan.splits:
                if split.lane == self.lane:
                    with within(
                        f"{split.topic}/{split.partition}, offsets {split.start} to {split.end}"
                    ):
                        self.run_split(split)
            return
        for placed in self.job.physical.placed.values():
            if placed.level == level and not placed.fused:
                for shard in range(self.lane, placed.shards, self.lanes):
                    self.step(placed, shard, self._arrived(placed, shard))
        if self.job.physical.writes_last and level == self.job.physical.levels - 1:
            self._write_last()

    def _arrived(self, placed: Placed, shard: int) -> list[list[Any]]:
        """What came for a shard, by port, in an order that doesn't depend on who was faster."""
        inputs: list[list[Any]] = [[] for _ in placed.node.inputs]
        arrived = self.waiting.pop((placed.id, shard), [])
        for one in sorted(arrived, key=lambda handed: handed.origin):
            made_here = not isinstance(one.content, bytes | memoryview)
            parcels = placed.traits.ports[one.port].parcels
            inputs[one.port].append(one.content if made_here else parcels.parse(one.content))
        return inputs

    def take_parcels(self) -> list[Parcel]:
        """What the level that has just been run sends; it is taken once."""
        taken, self.parcels = self.parcels, []
        return taken

    def finish(self) -> Report:
        """Writes what is left; what this lane has done."""
        self.shares.finish(self.traces, self.hot, self.files)
        self.letters.close()
        return Report(
            version=self.plan.version,
            traces=self.traces,
            sources=self.sources,
            writers={name: writer.next_sequence for name, writer in self.writers.items()},
            late=self.late,
            passed_late=self.passed_late,
            dead=self.letters.counts,
            transaction=self.transacted,
            seconds=self.clock.seconds,
            nodes=self.meter.report(),
        )

    # -- level 0 ------------------------------------------------------------------------------------

    def run_split(self, split: Split) -> None:
        """Reads a range of a partition, and runs all that follows in this lane."""
        physical = self.job.physical
        source = next(s for s in physical.graph.sources if s.topic == split.topic)
        readers, name = physical.readers(source), split.place
        reader = SourceReader(
            source,
            split,
            self.plan.watermark_us.get(split.topic),
            self.plan.wall_us,
            columns=physical.columns_of(source),
            partitions=physical.partitions[split.topic],
            guard=self.guard,
            known_of=lettered_before(self.log, self.job.dead_letter_topic, self.plan.letters, name),
        )
        inputs: list[list[Any]] = [[] for _ in readers]
        reading_s = self._reading_s()
        if split.start < split.end:
            chunks = self._timed_chunks(split, reader)
            for chunk, rows in reader.rows(chunks):
                now = self.clock.add("json", self._since)
                before = self.clock.seconds["operator"]
                if source.identity in self.job.lettered:
                    chunk.letters.clear()
                reader.late_count += self._take_chunk(source, name, chunk, rows, readers, inputs)
                self.letters.take(split.topic, name, chunk.letters)
                self._since = self.clock.add("steps", now)
                self.clock.seconds["steps"] -= self.clock.seconds["operator"] - before
        self.meter.read(source.identity, reader.row_count, self._reading_s() - reading_s)
        self._finish(readers, inputs, source, split.partition)
        self.sources.append(
            SplitReport(
                topic=split.topic,
                partition=split.partition,
                newest_us=None if reader.newest_us == NOTHING_YET_US else reader.newest_us,
                rows=reader.row_count,
                late=reader.late_count,
                lost=reader.lost_count,
                doubt=reader.doubt,
                end=reader.end,
                producers=reader.producers,
            )
        )

    def _reading_s(self) -> float:
        """Seconds so far in which records were made rows."""
        return sum(self.clock.seconds[part] for part in ("fetch", "decode", "json"))

    def _timed_chunks(self, split: Split, reader: SourceReader) -> Iterator[Records]:
        """The split's chunks, without those records that retention has removed meanwhile.

        It ends early with the record that reaches the plan's limit of bytes; `reader.end` then says where.
        """
        left_bytes = self.plan.bytes_max
        chunks = self.log.read(split.topic, split.partition, split.start, split.end)
        while True:
            started, decoded_s = time.perf_counter(), self.log.decode_s
            try:
                chunk = next(chunks, None)
            except BrokerError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                if self.plan.needs_all or reader.row_count or reader.lost_count:
                    raise input_gone(self.plan, split) from error
                first = self.log.start_offsets([split.topic])[split.topic][split.partition]
                reader.lost_count = min(first, split.end) - split.start
                if reader.lost_count <= 0:
                    raise cut_short(self.plan, split) from error
                chunks = self.log.read(split.topic, split.partition, first, split.end)
                continue
            self._since = self.clock.add("fetch", started)
            self.clock.seconds["decode"] += self.log.decode_s - decoded_s
            self.clock.seconds["fetch"] -= self.log.decode_s - decoded_s
            if chunk is None:
                return
            if left_bytes is not None:
                chunk, left_bytes = chunk.within(left_bytes)
            yield chunk
            if left_bytes is not None and left_bytes <= 0 and chunk.next_offset < split.end:
                reader.end = chunk.next_offset
                return

    def _take_chunk(
        self,
        source: Source,
        place: str,
        chunk: Chunk,
        rows: pa.Table,
        readers: list[Reader],
        inputs: list[list[Any]],
    ) -> int:
        """Gives a chunk's rows to those who read them; how many are late."""
        reasons = Reasons()
        refused: list[Blamed] = []
        evaluated: dict[str, pa.Table] = {source.identity: rows}
        for one, gathered in zip(readers, inputs, strict=True):
            table = self._evaluate(one.node, evaluated, refused, place)
            if isinstance(one.to, Placed):
                gathered.append(self._prepared(one.to, one.port, table, reasons, refused))
            else:
                gathered.append(table)
        if len(reasons.offsets):
            reasons.leave_out(chunk.lettered)
        late = reasons.late()
        for _, _, bad in refused:
            reasons.note(_vector(bad.rows, OFFSET), bad.reason)
        chunk.refuse_offsets(reasons)
        return late

    def _prepared(
        self, to: Placed, port: int, table: pa.Table, reasons: Reasons, refused: list[Blamed]
    ) -> Any:
        """The parcel of some rows; notes those that are late by offset, and those that can't be used."""
        started = time.perf_counter()

        def work(rows: pa.Table) -> tuple[pa.Table, Prepared]:
            return rows, to.operator.prepare(port, unnumbered(rows))

        (table, prepared), bad = self.guard(to.name, work, table)
        if to.id not in self.job.lettered:
            refused += blamed(to.id, to.title, bad)
        if prepared.partly_late is not None and len(prepared.partly_late):
            self.late[to.name] += len(prepared.partly_late)
            self.meter.late(to.id, len(prepared.partly_late))
            reasons.note_partly(_vector(table, OFFSET)[prepared.partly_late])
        if prepared.late is not None and len(prepared.late):
            self._note_late(to, table, prepared.late, reasons)
        self.meter.got(to.id, table.num_rows)
        self.meter.took(to.id, started)
        self.clock.add("operator", started)
        return prepared.parcel

    def _note_late(self, to: Placed, table: pa.Table, index: np.ndarray, reasons: Reasons) -> None:
        self.late[to.name] += len(index)
        self.meter.late(to.id, len(index))
        if to.id in self.job.lettered:
            return
        offsets, times, marks = (_vector(table, one)[index] for one in (OFFSET, TIME, WATERMARK))
        reasons.note_late(offsets, times, marks, to.name)

    # -- operators ----------------------------------------------------------------------------------

    def _finish(
        self, readers: list[Reader], inputs: list[list[Any]], origin: Origin, shard: int
    ) -> None:
        """Hands on what was gathered: to an operator here, to another shard, or to a topic."""
        for one, gathered in zip(readers, inputs, strict=True):
            if isinstance(one.to, OutputNode):
                self._write(one.to, gathered, origin, shard)
            elif one.to.fused:
                self.step(one.to, shard, [gathered])
            else:
                self._exchange(one.to, one.port, gathered, f"{origin.identity}/{shard:06d}")

    def _exchange(self, to: Placed, port: int, parts: list[Any], origin: str) -> None:
        if not parts:
            return
        started = time.perf_counter()
        whole = to.traits.ports[port].parcels.combine(parts)
        for shard, part in enumerate(whole.cut(to.shards)):
            if part.rows:
                handed = Handed(to.id, port, shard, origin, part)
                self.parcels.append((shard % self.lanes, handed, part.to_bytes))
        self.meter.took(to.id, started)
        self.clock.add("exchange", started)

    def step(self, placed: Placed, shard: int, inputs: list[list[Any]]) -> None:
        """Runs an operator for one shard, and all that reads it."""
        started = time.perf_counter()
        known = self.before.get(placed.id, {}).get(shard)
        if known is not None and not any(inputs) and self._rests(placed):
            self.traces[placed.id][shard] = known
            readers = self.job.physical.readers(placed.node)
            if readers:
                self.meter.gave(placed.id, 0)
            self._finish(readers, [[] for _ in readers], placed.node, shard)
            return
        state = self.hot.open(placed, shard, self.files, known)
        of_attempt = functools.partial(self._context, placed, shard)
        with within(f"{placed.title}, shard {shard}"):
            result, refused = stepped(self.guard, placed, state, inputs, of_attempt)
        if placed.id not in self.job.lettered:
            refusals = Refusals(placed.node)
            refusals.take(blamed(placed.id, placed.title, [*result.refused, *refused]))
            self._bury(placed.name, f"{placed.id}/{shard}", refusals)
        description = result.state.describe()
        self.traces[placed.id][shard] = description
        self.hot.keep(placed, shard, description, result.state)
        self.meter.took(placed.id, started)
        self.clock.add("state", started)
        if result.changes is not None:
            tables = itertools.chain([result.changes], result.more)
            self.meter.gave(placed.id, self._feed(placed, placed.node, tables, shard))
        if result.closed is not None:
            closed = Closed(placed.node)
            self.meter.gave(placed.id, result.closed.num_rows)
            self.meter.gave(closed.identity, result.closed.num_rows)
            self._feed(placed, closed, [result.closed], shard)

    def _context(self, placed: Placed, shard: int, *, alone: bool = False) -> Context:
        """What an operator's step may know; `alone`: it makes all its traces itself."""
        return Context(
            files=self.files,
            directory=f"{self.store.folder}runs/{placed.id}/{shard:04d}",
            version=self.plan.version,
            frontiers_us=tuple(self.plan.frontier_us[placed.id]),
            attempt=uuid.uuid4().hex[:12],
            shared={} if alone else self.shares.of(placed, shard),
            stops=self.guard.stops,
        )

    def _bury(self, topic: str, origin: str, refusals: Refusals) -> None:
        """Takes rows that an operator couldn't use, or the steps behind it; see `LetterBox.take`."""
        self.letters.take_rows(topic, origin, refusals.letters(self.plan.wall_us // 1_000))

    def _rests(self, placed: Placed) -> bool:
        """Whether time means nothing to an operator, so that without rows there is nothing to do."""
        traits, now_us = placed.traits, self.plan.frontier_us[placed.id]
        if traits.timed or traits.clock_us or traits.always:
            return False
        return not placed.operator.wakes([NO_TIME] * len(now_us), now_us)

    def _feed(self, placed: Placed, origin: Origin, tables: Iterable[pa.Table], shard: int) -> int:
        """Hands what an operator gave to all that reads it; how many rows it was."""
        readers = self.job.physical.readers(origin)
        refusals = Refusals(origin, steps=any(one.node is not origin for one in readers))
        place, count = f"{placed.id}/{shard}", 0
        inputs: list[list[Any]] = [[] for _ in readers]
        for rows in tables:
            if not rows.num_rows:
                continue
            count += rows.num_rows
            if placed.traits.passes_late:  # numbers, by which they are found where they are late
                numbers = vectors.from_int64(np.arange(rows.num_rows))
                rows = rows.append_column(OFFSET, numbers)  # noqa: PLW2901
            reasons, refused = Reasons(), list[Blamed]()
            # Readers know the origin by its identity, and find its rows under that.
            known: dict[str, pa.Table] = {origin.identity: refusals.numbered(rows)}
            for one, gathered in zip(readers, inputs, strict=True):
                table = self._evaluate(one.node, known, refused, place)
                if isinstance(one.to, Placed):
                    gathered.append(self._prepared(one.to, one.port, table, reasons, refused))
                else:
                    gathered.append(table)
            if reasons.late():
                self.passed_late[placed.name] += reasons.late()
                late = rows.take(vectors.from_int64(reasons.offsets))
                bad = Refused(late, reasons.texts, "late")
                refused += blamed(origin.identity, placed.title, [bad])
            refusals.take(refused, rows)
        self._bury(placed.name, place, refusals)
        # Without rows, too: time may have passed for the operators that are fused.
        self._finish(readers, inputs, origin, shard)
        return count

    def _evaluate(
        self, node: Node, known: dict[str, pa.Table], refused: list[Blamed], place: str
    ) -> pa.Table:
        """The rows of a node, from those of its ancestors that are known; each step runs once."""
        if node.identity in known:
            return known[node.identity]
        if isinstance(node, RowStep):
            rows = self._evaluate(node.parent, known, refused, place)
            started = time.perf_counter()
            explanations = self.explanations[node.identity, place]
            work = functools.partial(self.job.physical.applied, node, explanations=explanations)
            what = f"{type(node.operator).__name__} ({node.built_at})"
            (found, bad), unforeseen = self.guard(what, work, rows)
            self.meter.got(node.identity, rows.num_rows)
            self.meter.took(node.identity, started)
            if node.identity not in self.job.lettered:
                refused += blamed(node.identity, what, [*bad, *unforeseen])
        else:
            assert isinstance(node, Union)
            # Of its inputs, those that come from here; the others bring their rows themselves.
            here = [one for one in node.inputs if any(o.identity in known for o in origins(one))]
            tables = [self._evaluate(one, known, refused, place) for one in here]
            found = union(tables)
        known[node.identity] = found
        self.meter.gave(node.identity, found.num_rows)
        return found

    # -- topics -------------------------------------------------------------------------------------

    def _write(self, to: OutputNode, tables: list[pa.Table], origin: Origin, shard: int) -> None:
        started = time.perf_counter()
        transaction = self.plan.transaction
        if transaction is not None and to.identity in transaction.written:
            return  # what this batch gives is there, and counts
        partitions = self.job.output_partitions[to.topic]
        refused: list[Refused] = []
        parts = rows_outgoing(
            to,
            tables,
            self.log,
            partitions=partitions,
            shard=shard,
            wall_us=self.plan.wall_us,
            guard=self.guard,
            refused=refused,
        )
        for number, outgoing in enumerate(parts):
            if transaction is None:
                self._send(to.topic, writer_name(to, origin, shard), outgoing)
            else:
                self._hand_on(to.topic, outgoing, f"{origin.identity}/{shard:06d}/{number:08d}")
        if to.identity not in self.job.lettered:
            self._bury_written(to, origin, shard, refused)
        self.meter.got(to.identity, sum(table.num_rows for table in tables))
        self.meter.took(to.identity, started)
        self.clock.add("output", started)

    def _bury_written(
        self, to: OutputNode, origin: Origin, shard: int, refused: Sequence[Refused]
    ) -> None:
        """Takes rows that couldn't be written to a topic."""
        maker = origin.table if isinstance(origin, Closed) else origin
        of = maker.topic if isinstance(maker, Source) else maker.identity
        refusals = Refusals(origin)
        refusals.take(blamed(to.identity, f"topic {to.topic}", refused))
        self._bury(self.letters.named(of), f"{of}/{shard}", refusals)

    def _hand_on(self, topic: str, outgoing: Outgoing, origin: str) -> None:
        """Gives records to the one lane that writes to their partition."""
        owner = (zlib.crc32(topic.encode()) + outgoing.partition) % self.lanes
        handed = Handed(WRITTEN + topic, 0, outgoing.partition, origin, outgoing)
        self.parcels.append((owner, handed, functools.partial(to_bytes, outgoing)))

    def _write_last(self) -> None:
        """Writes what all lanes have for this lane's partitions, in the batch's transaction."""
        transaction = self.plan.transaction
        places = sorted(place for place in self.waiting if place[0].startswith(WRITTEN))
        if transaction is None or not places:
            return
        started = time.perf_counter()
        topics = [(name.removeprefix(WRITTEN), partition) for name, partition in places]
        self._may_write()
        identity = transaction.producer_id, transaction.epoch
        self.log.join(Writer(*identity, transactional_id=transaction.id), topics)
        for place, (topic, partition) in zip(places, topics, strict=True):
            parts = [
                one.content
                if isinstance(one.content, Outgoing)
                else from_bytes(partition, one.content)
                for one in sorted(self.waiting.pop(place), key=lambda handed: handed.origin)
            ]
            sequence = transaction.sequences.get(topic, {}).get(partition, 0)
            writer = Writer(*identity, {partition: sequence}, transaction.id)
            for outgoing in joined(parts):
                self.log.send(topic, outgoing, writer)
            self.transacted[topic][partition] = writer.next_sequence[partition]
        self.clock.add("output", started)

    def _send_letters(self, topic: str, name: str, outgoing: Outgoing) -> None:
        started = time.perf_counter()
        self._send(topic, name, outgoing)
        self.clock.add("dead letters", started)

    def _send(self, topic: str, name: str, outgoing: Outgoing) -> None:
        self._may_write()
        if name not in self.writers:
            planned = self.plan.writers[name]
            sequences = dict(planned.next_sequence)
            self.writers[name] = Writer(planned.producer_id, planned.epoch, sequences)
        self.log.send(topic, outgoing, self.writers[name])


def _vector(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).combine_chunks().view(pa.int64()).to_numpy()
