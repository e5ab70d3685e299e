"""What a lane does in a batch, wherever it runs: in one of Spark's Python workers or in this process.

    level 0      splits -> records -> rows -> operators          parcels to shards of the next level
    level k > 0  parcels of this lane's shards -> operators      and a report for the driver

A lane takes all that it knows from the plan and the state that the batch begins with, so a batch that is
run again sends the same parcels and writes the same records. Shard s belongs to lane s modulo lanes.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIMESTAMP
from penstock.core.time import instant_text
from penstock.engine.log import Log, Outgoing, Writer
from penstock.engine.outgoing import dead_letters_outgoing, rows_outgoing
from penstock.engine.physical import Physical, Placed
from penstock.engine.plan import Plan, Split
from penstock.engine.source import NOTHING_YET_US, OFFSET, WATERMARK, DeadLetter, SourceReader
from penstock.engine.store import Json, Store
from penstock.errors import BrokerError, PenstockError
from penstock.flow.graph import TIME, Node, OutputNode, RowStep, Source, source_of
from penstock.formats.json import encode_rows
from penstock.ops import LATE, NO_TIME, Context, Partials, Step
from penstock.ops.lateness import first_open
from penstock.ops.rows import Refused
from penstock.state import StateFiles
from penstock.wire.columns import Records

__all__ = ["Handed", "Hot", "Job", "LaneBatch", "Parcel", "described"]

OFFSET_OUT_OF_RANGE: Final = 1  # Kafka's error code
DEAD_LETTERS_AT_ONCE: Final = 10_000  # each is a Python object while it waits: bounds memory


@dataclass(frozen=True, slots=True)
class Handed:
    """What one shard of an operator gets from one origin.

    Attributes:
        content: the object itself where it was made in this lane, else its bytes.
    """

    operator: str
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
    """

    physical: Physical
    open_store: Callable[[], Store]
    open_log: Callable[[], Log]
    dead_letter_topic: str
    output_partitions: dict[str, int]


def described(error: Exception) -> Json:
    """An error as JSON, for the driver to raise."""
    if isinstance(error, PenstockError):
        return {"type": type(error).__name__, "text": str(error), "retriable": error.retriable}
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
    retriable = isinstance(error, OSError | MemoryError)
    return {
        "type": "PenstockError",
        "text": f"expected a task to work; found {text}",
        "retriable": retriable,
    }


@dataclass
class _Clock:
    """Seconds by part of the work."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, part: str, since: float) -> float:
        now = time.perf_counter()
        self.seconds[part] += now - since
        return now


@dataclass
class Hot:
    """States that stay open in a lane between batches, each with the description that it is of."""

    states: dict[tuple[str, int], tuple[Json, Any]] = field(default_factory=dict)

    def open(self, placed: Placed, shard: int, files: StateFiles, description: Json | None) -> Any:
        """The state that a description is of; the empty one where there is none."""
        if description is None:
            return placed.operator.empty(files)
        known = self.states.get((placed.id, shard))
        if known is not None and known[0] == description:
            return known[1]
        return placed.operator.open(files, description)

    def keep(self, placed: Placed, shard: int, description: Json, state: Any) -> None:
        """Keeps a state for the next batch: if it begins with this one, no file is opened again."""
        self.states[placed.id, shard] = (description, state)


class LaneBatch:
    """One lane's work on one batch: level by level, then `finish`.

    Args:
        job: what the pipeline does.
        lane: this lane's number, of `lanes`.
        plan: of the batch.
        traces: by operator and shard, the state that the batch begins with.
        hot: what this lane has open from batches before.
    """

    def __init__(self, job: Job, lane: int, lanes: int, plan: Plan, traces: Json, hot: Hot) -> None:
        started = time.perf_counter()
        self.job, self.lane, self.lanes = job, lane, lanes
        self.plan, self.before, self.hot = plan, traces, hot
        self.store = job.open_store()
        self.log = job.open_log()
        self.parcels: list[Parcel] = []
        self.traces: dict[str, dict[str, Json]] = defaultdict(dict)
        self.sources: list[Json] = []
        self.writers: dict[str, Writer] = {}
        self.late: dict[str, int] = defaultdict(int)
        self.dead: dict[str, list[DeadLetter]] = defaultdict(list)  # waiting, by origin
        self.dead_count: dict[str, int] = defaultdict(int)  # by the topic that they are of
        self.clock = _Clock()
        self._since = started
        self.clock.add("open", started)

    def run_level(self, level: int, handed: Sequence[Handed]) -> None:
        """Runs one level.

        Args:
            level: 0 reads the log; the others take parcels.
            handed: all that was sent to this lane's shards, in the order of its origins.
        """
        if level == 0:
            for split in self.plan.splits:
                if split.lane == self.lane:
                    self.run_split(split)
            return
        partials: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for one in handed:
            partials[one.operator, one.shard].append(one.content)
        for placed in self.job.physical.placed.values():
            if placed.stage == level and not placed.fused:
                for shard in range(self.lane, placed.shards, self.lanes):
                    parts = [
                        part if isinstance(part, Partials) else placed.operator.parse(part)
                        for part in partials[placed.id, shard]
                    ]
                    self.step(placed, shard, parts)

    def take_parcels(self) -> list[Parcel]:
        """What the level that has just been run sends; it is taken once."""
        taken, self.parcels = self.parcels, []
        return taken

    def finish(self) -> Json:
        """Writes what is left; what this lane has done."""
        self.write_dead_letters()
        return {
            "version": self.plan.version,
            "traces": self.traces,
            "sources": self.sources,
            "writers": {
                name: {"next_sequence": {str(p): s for p, s in writer.next_sequence.items()}}
                for name, writer in self.writers.items()
            },
            "late": self.late,
            "dead": self.dead_count,
            "seconds": self.clock.seconds,
        }

    # -- level 0 ------------------------------------------------------------------------------------

    def run_split(self, split: Split) -> None:
        """Reads a range of a partition, and runs all that follows in this lane."""
        physical = self.job.physical
        source = next(s for s in physical.graph.sources if s.topic == split.topic)
        readers = physical.reading(source)
        reader = SourceReader(
            source,
            split,
            self.plan.watermark_us.get(split.topic),
            self.plan.wall_us,
            check_key=physical.relies_on_key(source),
        )
        inputs: list[list[Any]] = [[] for _ in readers]
        name = f"{split.topic}/{split.partition}"
        if split.start < split.end:
            chunks = self._timed_chunks(split, reader)
            for rows in reader.rows(chunks):
                now = self.clock.add("json", self._since)
                before = self.clock.seconds["operator"]
                self._take_chunk(source, reader, rows, readers, inputs)
                self.bury(split.topic, name, reader.dead)
                reader.dead = []
                self._since = self.clock.add("steps", now)
                self.clock.seconds["steps"] -= self.clock.seconds["operator"] - before
        self._finish(readers, inputs, split.partition, f"{split.topic}/{split.partition:06d}")
        self.sources.append(
            {
                "topic": split.topic,
                "partition": split.partition,
                "newest_us": None if reader.newest_us == NOTHING_YET_US else reader.newest_us,
                "rows": reader.row_count,
                "late": reader.late_count,
                "lost": reader.lost_count,
            }
        )

    def _timed_chunks(self, split: Split, reader: SourceReader) -> Iterator[Records]:
        """The split's chunks, without those records that retention has removed meanwhile."""
        chunks = self.log.read(split.topic, split.partition, split.start, split.end)
        while True:
            started, decoded_s = time.perf_counter(), self.log.decode_s
            try:
                chunk = next(chunks, None)
            except BrokerError as error:
                if error.code != OFFSET_OUT_OF_RANGE or reader.row_count or reader.lost_count:
                    raise
                first = self.log.start_offsets([split.topic])[split.topic][split.partition]
                reader.lost_count = min(first, split.end) - split.start
                chunks = self.log.read(split.topic, split.partition, first, split.end)
                if reader.lost_count <= 0:
                    raise
                continue
            self._since = self.clock.add("fetch", started)
            self.clock.seconds["decode"] += self.log.decode_s - decoded_s
            self.clock.seconds["fetch"] -= self.log.decode_s - decoded_s
            if chunk is None:
                return
            yield chunk

    def _take_chunk(
        self,
        source: Source,
        reader: SourceReader,
        rows: pa.Table,
        readers: list[Placed | OutputNode],
        inputs: list[list[Any]],
    ) -> None:
        reasons: dict[int, str] = {}  # of late rows, by offset
        refused: list[Refused] = []
        evaluated: dict[Node, pa.Table] = {source: rows}
        for i, to in enumerate(readers):
            table = _evaluate(self.job.physical.input_of(to), evaluated, refused)
            if isinstance(to, Placed):
                inputs[i].append(self._partials(to, table, reasons))
            else:
                inputs[i].append(table)
        reader.late_count += len(reasons)
        for bad in refused:
            reasons |= dict.fromkeys(_vector(bad.rows, OFFSET).tolist(), bad.reason)
        if reasons:
            reader.refuse_offsets(dict(sorted(reasons.items())))

    def _partials(self, to: Placed, table: pa.Table, reasons: dict[int, str]) -> Partials:
        """A chunk's partials; notes its late rows in `reasons`, by offset."""
        started = time.perf_counter()
        window = to.node.spec.window
        times, marks = (_vector(table, name) for name in (TIME, WATERMARK))
        verdict = first_open(times, marks, window)
        if verdict is not None:
            late = (verdict.first_open == LATE) | (verdict.first_open > window.firsts(times))
            self._note_late(to, table, np.flatnonzero(late), reasons)
        opened = None if verdict is None else verdict.first_open
        partials = to.operator.partials(table, opened)
        self.clock.add("operator", started)
        return partials

    def _note_late(
        self, to: Placed, table: pa.Table, index: np.ndarray, reasons: dict[int, str]
    ) -> None:
        name = ", ".join(to.names)
        self.late[name] += len(index)
        columns = (_vector(table, column)[index].tolist() for column in (OFFSET, TIME, WATERMARK))
        for offset, at, mark in zip(*columns, strict=True):
            if offset in reasons:
                reasons[offset] += f"; and for {name}"
            else:
                reasons[offset] = (
                    f"late: its event time is {instant_text(at)}, the watermark was already "
                    f"{instant_text(mark)}, and a window that it belongs to was closed; for {name}"
                )

    # -- operators ----------------------------------------------------------------------------------

    def _finish(
        self,
        readers: list[Placed | OutputNode],
        inputs: list[list[Any]],
        shard: int,
        origin: str,
    ) -> None:
        """Hands on what was gathered: to an operator here, to another shard, or to a topic."""
        for i, to in enumerate(readers):
            if isinstance(to, OutputNode):
                self._write(to, inputs[i], shard)
            elif to.fused:
                self.step(to, shard, inputs[i])
            else:
                self._exchange(to, inputs[i], origin)

    def _exchange(self, to: Placed, parts: list[Partials], origin: str) -> None:
        started = time.perf_counter()
        for shard, part in enumerate(to.operator.combine(parts).cut(to.shards)):
            handed = Handed(to.id, shard, origin, part)
            self.parcels.append((shard % self.lanes, handed, part.to_bytes))
        self.clock.add("exchange", started)

    def step(self, placed: Placed, shard: int, parts: list[Partials]) -> None:
        """Runs an aggregation for one shard, and all that reads it."""
        started = time.perf_counter()
        operator, files = placed.operator, self.store.files
        state = self.hot.open(placed, shard, files, self.before.get(placed.id, {}).get(str(shard)))
        context = Context(
            files=files,
            directory=f"runs/{placed.id}/{shard:04d}",
            version=self.plan.version,
            watermark_us=self.plan.watermark_us.get(source_of(placed.node).topic, NO_TIME),
            attempt=uuid.uuid4().hex[:12],
        )
        result = operator.step(state, parts, context)
        description = result.state.describe()
        self.traces[placed.id][str(shard)] = description
        self.hot.keep(placed, shard, description, result.state)
        self.clock.add("state", started)
        readers = self.job.physical.reading(placed.node)
        if readers:
            self._feed(placed, readers, result, shard)

    def _feed(
        self, placed: Placed, readers: list[Placed | OutputNode], result: Step, shard: int
    ) -> None:
        inputs: list[list[Any]] = []
        refused: list[Refused] = []
        changed: dict[Node, pa.Table] = {}
        closed: dict[Node, pa.Table] = {}
        if result.changes is not None:
            changed[placed.node] = _with_time(result.changes)
        if result.final is not None:
            closed[placed.node] = _with_time(result.final)
        for to in readers:
            node = self.job.physical.input_of(to)
            if isinstance(to, Placed):
                inputs.append([to.operator.partials(_evaluate(node, changed, refused))])
            else:
                inputs.append([_evaluate(node, closed, refused)])
        for bad in refused:
            letters = [
                DeadLetter(-1, None, row, self.plan.wall_us // 1_000, bad.reason)
                for row in encode_rows(bad.rows).cast(pa.binary()).to_pylist()
            ]
            self.bury(source_of(placed.node).topic, f"{placed.id}/{shard}", letters)
        self._finish(readers, inputs, shard, f"{placed.id}/{shard:06d}")

    # -- topics -------------------------------------------------------------------------------------

    def _write(self, to: OutputNode, tables: list[pa.Table], shard: int) -> None:
        started = time.perf_counter()
        partitions = self.job.output_partitions[to.topic]
        for outgoing in rows_outgoing(
            to, tables, partitions=partitions, shard=shard, wall_us=self.plan.wall_us
        ):
            self._send(to.topic, f"{to.topic}/{shard}", outgoing)
        self.clock.add("output", started)

    def bury(self, topic: str, origin: str, letters: list[DeadLetter]) -> None:
        """Takes dead letters of later offsets than before; writes them in counts that never differ."""
        self.dead_count[topic] += len(letters)
        waiting = self.dead[origin]
        waiting += sorted(letters, key=lambda letter: letter.offset)
        while len(waiting) >= DEAD_LETTERS_AT_ONCE:
            self._write_dead_letters(origin, waiting[:DEAD_LETTERS_AT_ONCE])
            del waiting[:DEAD_LETTERS_AT_ONCE]

    def write_dead_letters(self) -> None:
        """Writes what is left."""
        for origin, letters in self.dead.items():
            if letters:
                self._write_dead_letters(origin, letters)

    def _write_dead_letters(self, origin: str, letters: list[DeadLetter]) -> None:
        started = time.perf_counter()
        topic = self.job.dead_letter_topic
        outgoing = dead_letters_outgoing(
            origin,
            letters,
            partitions=self.job.output_partitions[topic],
            wall_us=self.plan.wall_us,
        )
        self._send(topic, f"{topic}/{origin}", outgoing)
        self.clock.add("dead letters", started)

    def _send(self, topic: str, name: str, outgoing: Outgoing) -> None:
        if name not in self.writers:
            planned = self.plan.writers[name]
            sequences = {int(p): s for p, s in planned["next_sequence"].items()}
            self.writers[name] = Writer(planned["producer_id"], planned["epoch"], sequences)
        self.log.send(topic, outgoing, self.writers[name])


def _evaluate(node: Node, known: dict[Node, pa.Table], refused: list[Refused]) -> pa.Table:
    """The rows of a node, from those of its ancestors; each step runs once."""
    if node not in known:
        assert isinstance(node, RowStep)
        known[node], bad = node.operator.apply(_evaluate(node.parent, known, refused))
        refused += bad
    return known[node]


def _with_time(rows: pa.Table) -> pa.Table:
    """A table's rows happen in the last instant of their window, so that they are never late."""
    if "window_end" not in rows.column_names:
        return rows
    last = _vector(rows, "window_end") - 1
    return rows.append_column(TIME, pa.array(last).view(TIMESTAMP))


def _vector(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).combine_chunks().view(pa.int64()).to_numpy()
