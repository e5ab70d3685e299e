"""Runs batches in this process as roughly as a cluster may: the default of `penstock.testing`.

    chunks      what the log gives is cut again in each attempt
    lanes       another number in each attempt, run in any order; parcels arrive in any order
    bytes       plans, states, parcels and reports pass through the frames that a cluster sends
    memory      what lanes have open is thrown away at times; what a file holds is read again
    losses      a lane is lost on some level; what the attempt has written by then stays written
    repetition  some batches are run to their end twice, and must come to the same bytes

All of it is decided by `random.Random(seed)`, so a seed repeats a run. What fails here and not on
`LocalHost` is a fault of an operator, of the engine, or of a function of the program that isn't pure.
"""

from __future__ import annotations

import pickle
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from penstock.core.names import built
from penstock.engine.lanes.messages import Done, Frames, Go, Message, frame
from penstock.engine.lanes.messages import Parcel as ParcelMessage
from penstock.engine.log import Log, Outgoing, Writer
from penstock.engine.physical import Physical
from penstock.engine.plan import Work
from penstock.engine.record.report import Report
from penstock.engine.record.values import Json, Traces
from penstock.engine.states.hot import Hot
from penstock.engine.store import Store
from penstock.engine.tasks import Handed, Job, LaneBatch, Parcel
from penstock.errors import FlowError
from penstock.flow.graph import function_of
from penstock.state import StateFiles
from penstock.state.files import Bytes
from penstock.state.runs import OPEN
from penstock.wire.columns import Records

__all__ = ["ShakenHost", "not_the_same"]

LANES_MAX: Final = 4
CUTS_MAX: Final = 3  # of one chunk: more find no more, and take longer
LOSSES: Final = 0.15  # how often an attempt loses a lane
REPEATED: Final = 0.25  # how many batches are run to their end twice
FORGOTTEN: Final = 0.3  # how often a lane has nothing open
ENCODED: Final = 0.5  # of the parcels that stay in their lane; the others always are
_ATTEMPT: Final = re.compile(
    r"(\d{12})-[0-9a-f]{12}"
)  # in a state file's name: version and attempt


def not_the_same(what: str) -> FlowError:
    """The error where a batch that is run again comes to something else."""
    return FlowError(
        f"expected the batch, run again, to give the same; found other {what}. A function of the program "
        "that depends on more than its rows (a clock, chance, the order of a set, how rows are cut) does that"
    )


class ShakenHost:
    """Executes plans for a `Driver`.

    Args:
        job: what the lanes do.
        lanes: how many the driver plans for.
        chance: decides all that is left open.

    Raises:
        FlowError: a function of the program can't be sent to other processes.
    """

    def __init__(self, job: Job, *, lanes: int, chance: random.Random) -> None:
        self.lanes, self.chance = lanes, chance
        self.lost, self.repeated = 0, 0  # attempts, and batches
        self._job = replace(
            job,
            physical=_travelled(job.physical),
            open_store=lambda: self._made.store(job.open_store()),
            open_log=lambda: _ShakenLog(job.open_log(), self._made, chance),
        )
        self._made = _Made()
        self._hot = [Hot() for _ in range(LANES_MAX)]

    def execute(self, work: Work) -> list[Report]:
        """The reports of all lanes.

        Raises:
            FlowError: run twice, the batch came to something else.
        """
        while self.chance.random() < LOSSES:
            self._attempt(work, is_lost=True)
            self.lost += 1
        if self.chance.random() >= REPEATED:
            return self._attempt(work).reports
        one = self._attempt(work)
        two = self._attempt(work)
        self.repeated += 1
        differs = one.difference(two)
        if differs is not None:
            raise not_the_same(differs)
        return two.reports

    def _attempt(self, work: Work, *, is_lost: bool = False) -> _Made:
        """Runs a batch on some lanes; to its end, unless one of them is lost."""
        plan = work.attempt()
        chance, levels = self.chance, self._job.physical.levels
        made = self._made = _Made()
        lanes = chance.randint(1, LANES_MAX)
        splits = tuple(replace(s, lane=i % lanes) for i, s in enumerate(plan.splits))
        traces = _together(work.traces_of(lane) for lane in range(self.lanes))
        if chance.random() < FORGOTTEN:
            OPEN.clear()
        for lane in range(LANES_MAX):
            if chance.random() < FORGOTTEN:
                self._hot[lane] = Hot()
        go, _ = _arrived(Go(1, replace(plan, splits=splits), traces, []))
        assert isinstance(go, Go)
        batches = [
            LaneBatch(
                self._job,
                lane,
                lanes,
                go.plan,
                go.traces,
                self._hot[lane],
                work.write,
            )
            for lane in range(lanes)
        ]
        ends_at = chance.randrange(levels + 1) if is_lost else None
        handed: list[list[Handed]] = [[] for _ in batches]
        for level in range(levels):
            order = chance.sample(range(lanes), lanes)
            if level == ends_at:
                order = order[1:]
            for lane in order:
                batches[lane].run_level(level, handed[lane])
            if level == ends_at:
                break
            handed = self._exchanged(level, batches)
        if ends_at is not None:
            for batch in chance.sample(batches, lanes - 1) if ends_at == levels else []:
                batch.finish()
            self._hot[chance.randrange(lanes)] = Hot()
            return made
        for lane in chance.sample(range(lanes), lanes):
            done, _ = _arrived(Done(1, batches[lane].finish()))
            assert isinstance(done, Done)
            made.reports.append(done.report)
        work.write()
        return made

    def _exchanged(self, level: int, batches: Sequence[LaneBatch]) -> list[list[Handed]]:
        """What each lane gets for the next level, in any order."""
        handed: list[list[Handed]] = [[] for _ in batches]
        for batch in batches:
            for parcel in batch.take_parcels():
                lane = parcel[0]
                if lane != batch.lane or self.chance.random() < ENCODED:
                    handed[lane].append(_received(level, parcel))
                else:
                    handed[lane].append(parcel[1])
        for some in handed:
            self.chance.shuffle(some)
        return handed


@dataclass
class _Made:
    """What an attempt has written and reported."""

    reports: list[Report] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)  # by path, without the attempt
    sent: dict[str, list[Outgoing]] = field(default_factory=lambda: defaultdict(list))

    def store(self, store: Store) -> Store:
        """The record, with note taken of what is written to it."""
        return Store(_NotedFiles(store.files, self), store.folder)

    def difference(self, other: _Made) -> str | None:
        """What differs between two attempts at one batch; None: nothing does."""
        for place in sorted(self.sent.keys() | other.sent.keys()):
            if _records(self.sent.get(place, [])) != _records(other.sent.get(place, [])):
                return f"records in {place}"
        mine, others = self._reported(), other._reported()
        for what in sorted(mine.keys() | others.keys()):
            if mine.get(what) != others.get(what):
                return f"{what}: {mine.get(what)} and {others.get(what)}"
        for path in sorted(self.files.keys() | other.files.keys()):
            if self.files.get(path) != other.files.get(path):
                return f"bytes in the state file {path}"
        return None

    def _reported(self) -> dict[str, object]:
        """All that lanes reported, whichever did."""
        found: dict[str, object] = {}
        counts: dict[str, int] = defaultdict(int)
        for report in self.reports:
            for source in report.sources:
                found[f"report of {source.topic}/{source.partition}"] = source
            for operator, traces in report.traces.items():
                for shard, trace in traces.items():
                    found[f"state of {operator}/{shard}"] = _ATTEMPT.sub(r"\1", repr(trace))
            for name, writer in report.writers.items():
                found[f"sequences of {name}"] = writer
            of_rows = {"late": report.late, "passed_late": report.passed_late, "dead": report.dead}
            for what, counted in of_rows.items():
                for name, count in counted.items():
                    counts[f"count of {what} rows of {name}"] += count
        return found | counts


class _ShakenLog:
    """A log whose chunks are cut at random, and what is written to it noted (see `Log`)."""

    def __init__(self, log: Log, made: _Made, chance: random.Random) -> None:
        self._log, self._made, self._chance = log, made, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """See `Log`."""
        for chunk in self._log.read(topic, partition, start, end):
            cuts = min(self._chance.randint(0, CUTS_MAX), max(0, len(chunk) - 1))
            ends = sorted(self._chance.sample(range(1, len(chunk)), cuts)) if cuts else []
            for lo, hi in zip([0, *ends], [*ends, len(chunk)], strict=True):
                yield chunk.slice(lo, hi)

    def send(self, topic: str, outgoing: Outgoing, writer: Writer) -> None:
        """See `Log`."""
        who = writer.transactional_id or writer.producer_id
        self._made.sent[f"{topic}/{outgoing.partition} by {who}"].append(outgoing)
        self._log.send(topic, outgoing, writer)


class _NotedFiles:
    """Files, with note taken of what is written (see `StateFiles`)."""

    def __init__(self, files: StateFiles, made: _Made) -> None:
        self._files, self._made = files, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        """See `StateFiles`."""
        data = b"".join(bytes(memoryview(chunk)) for chunk in chunks)
        self._made.files[_ATTEMPT.sub(r"\1", path)] = data
        self._files.write(path, [data])


def _travelled(physical: Physical) -> Physical:
    """A plan as another process has it."""
    from pyspark import cloudpickle

    try:
        data = cloudpickle.dumps(physical)  # type: ignore[no-untyped-call] # it has no types
    except Exception as error:
        functions = [(function_of(node), node.built_at) for node in physical.graph.nodes]
        names = ", ".join(f"{one[0]!r}{built(at)}" for one, at in functions if one is not None)
        raise FlowError(
            f"expected functions that can be sent to other processes; found of {names}: {error}. Make inside "
            "the function what it needs"
        ) from error
    return _unpickled(data)


def _unpickled(data: bytes) -> Physical:
    found: Physical = pickle.loads(data)  # noqa: S301 - what has just been pickled
    return found


def _together(traces: Iterable[Traces]) -> Traces:
    """The state that all lanes begin with."""
    found: dict[str, dict[int, Json]] = defaultdict(dict)
    for some in traces:
        for operator, shards in some.items():
            found[operator].update(shards)
    return dict(found)


def _received(level: int, parcel: Parcel) -> Handed:
    """A parcel as another lane gets it."""
    _, one, to_bytes = parcel
    message = ParcelMessage(1, level, one.operator, one.port, one.shard, one.origin)
    found, blob = _arrived(message, to_bytes())
    assert isinstance(found, ParcelMessage)
    return Handed(found.operator, found.port, found.shard, found.origin, blob)


def _arrived(message: Message, blob: bytes = b"") -> tuple[Message, memoryview]:
    """A message as its receiver has it."""
    left, frames = memoryview(frame(message, len(blob)) + blob), Frames()
    while True:
        space = frames.space()
        piece, left = left[: len(space)], left[len(space) :]
        space[: len(piece)] = piece
        found = frames.filled(len(piece))
        if found is not None:
            return found


def _records(parts: Sequence[Outgoing]) -> list[Any]:
    """Records one after the other, however they were put together."""
    return [
        record
        for part in parts
        for record in zip(
            [None] * len(part.values) if part.keys is None else part.keys.to_pylist(),
            part.values.to_pylist(),
            np.asarray(part.timestamps_ms).tolist(),
            part.header_pairs(),
            strict=True,
        )
    ]
