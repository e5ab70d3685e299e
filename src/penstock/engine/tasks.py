"""What a task of a batch does, wherever it runs: in Spark's Python workers or in this process.

    stage 0      splits -> records -> rows -> operators          messages to the next stage's shards
    stage k > 0  messages of one shard -> operators              and reports for the driver

A message is (shard, tag, blob). Tasks take all that they know from the plan and the version before it,
so a task that is run again sends the same messages and writes the same records.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.schema import TIMESTAMP
from penstock.core.time import instant_text
from penstock.engine.log import Log, Outgoing, Writer
from penstock.engine.outgoing import dead_letters_outgoing, rows_outgoing
from penstock.engine.physical import Physical, Placed
from penstock.engine.plan import Plan, Split
from penstock.engine.source import NOTHING_YET_US, OFFSET, WATERMARK, DeadLetter, SourceReader
from penstock.engine.store import Json, Store
from penstock.errors import BrokerError, FencedError, PenstockError
from penstock.flow.graph import TIME, Node, OutputNode, RowStep, Source, source_of
from penstock.formats.json import encode_rows
from penstock.ops import LATE, NO_TIME, Context, Partials, Step
from penstock.ops.lateness import first_open
from penstock.ops.rows import Refused
from penstock.wire.columns import Records

__all__ = ["ERROR", "REPORT", "Job", "Message", "run_shard_stage", "run_source_stage"]

Message: TypeAlias = tuple[int, str, bytes]
REPORT: Final = "report"
ERROR: Final = "error"
PARTIALS: Final = "partials"
OFFSET_OUT_OF_RANGE: Final = 1  # Kafka's error code
DEAD_LETTERS_AT_ONCE: Final = 10_000  # each is a Python object while it waits: bounds memory


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


def run_source_stage(job: Job, lane: int) -> Iterator[Message]:
    """Stage 0: the splits of one lane."""

    def work(task: _Task) -> None:
        for split in task.plan.splits:
            if split.lane == lane:
                task.run_split(split)

    yield from _guarded(job, f"{lane:06d}", work)


def run_shard_stage(
    job: Job, stage: int, shard: int, messages: Iterable[Message]
) -> Iterator[Message]:
    """A later stage: all that was sent to one shard."""
    partials: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    versions: set[int] = set()
    failed = False
    for _, tag, blob in messages:
        kind, _, rest = tag.partition("/")
        if kind == PARTIALS:
            version, operator, origin = rest.split("/", 2)
            versions.add(int(version))
            partials[operator].append((origin, blob))
        else:
            failed = failed or kind == ERROR
            yield (shard, tag, blob)
    if failed or not versions:
        return  # part of the input is missing: whatever were computed would be wrong

    def work(task: _Task) -> None:
        if versions != {task.plan.version}:
            raise FencedError(
                f"expected the input of batch {task.plan.version}; found that of {sorted(versions)}. "
                "Another process runs the same pipeline"
            )
        for placed in job.physical.placed.values():
            if placed.stage == stage and not placed.fused:
                # Tasks end in any order; their origin puts what they sent into one that is always the same.
                blobs = [blob for _, blob in sorted(partials[placed.id])]
                task.step(placed, shard, [placed.operator.parse(blob) for blob in blobs])

    yield from _guarded(job, f"{stage}-{shard:06d}", work)


def _guarded(job: Job, origin: str, work: Callable[[_Task], None]) -> Iterator[Message]:
    """Runs a task; an error becomes a message, so that its text reaches the user undisturbed."""
    try:
        task = _Task(job, origin)
        work(task)
        task.write_dead_letters()
    except Exception as error:  # noqa: BLE001 - whatever it is, its text must reach the user
        content = _described(error)
        for shard in range(job.physical.shards):
            yield (shard, ERROR, orjson.dumps(content))
        return
    yield from task.messages
    yield (0, REPORT, orjson.dumps(task.report(), option=orjson.OPT_NON_STR_KEYS))


def _described(error: Exception) -> Json:
    """An error as a message."""
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


class _Task:
    """One task's work: the operators of its shards, what it sends, writes and reports."""

    def __init__(self, job: Job, origin: str) -> None:
        started = time.perf_counter()
        self.job, self.origin = job, origin
        self.store = job.open_store()
        self.log = job.open_log()
        self.plan = Plan.from_json(self.store.current_plan())
        self.base = self.store.version(self.plan.version - 1) if self.plan.version > 1 else {}
        self.messages: list[Message] = []
        self.traces: dict[str, dict[str, Json]] = defaultdict(dict)
        self.sources: list[Json] = []
        self.writers: dict[str, Writer] = {}
        self.late: dict[str, int] = defaultdict(int)
        self.dead: dict[str, list[DeadLetter]] = defaultdict(list)  # waiting, by origin
        self.dead_count: dict[str, int] = defaultdict(int)  # by the topic that they are of
        self.clock = _Clock()
        self._since = started
        self.clock.add("open", started)

    # -- stage 0 ------------------------------------------------------------------------------------

    def run_split(self, split: Split) -> None:
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
        for target, part in enumerate(to.operator.combine(parts).cut(to.shards)):
            self.messages.append(
                (target, f"{PARTIALS}/{self.plan.version}/{to.id}/{origin}", part.to_bytes())
            )
        self.clock.add("exchange", started)

    def step(self, placed: Placed, shard: int, parts: list[Partials]) -> None:
        """Runs an aggregation for one shard, and all that reads it."""
        started = time.perf_counter()
        operator, files = placed.operator, self.store.files
        described = self.base.get("operators", {}).get(placed.id, {}).get("traces", {})
        state = (
            operator.open(files, described[str(shard)])
            if str(shard) in described
            else operator.empty(files)
        )
        context = Context(
            files=files,
            directory=f"runs/{placed.id}/{shard:04d}",
            version=self.plan.version,
            watermark_us=self.plan.watermark_us.get(source_of(placed.node).topic, NO_TIME),
            attempt=uuid.uuid4().hex[:12],
        )
        result = operator.step(state, parts, context)
        self.traces[placed.id][str(shard)] = result.state.describe()
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

    def report(self) -> Json:
        return {
            "version": self.plan.version,
            "traces": self.traces,
            "sources": self.sources,
            "writers": {n: {"next_sequence": w.next_sequence} for n, w in self.writers.items()},
            "late": self.late,
            "dead": self.dead_count,
            "seconds": self.clock.seconds,
        }


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
