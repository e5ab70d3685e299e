"""The plan of a batch: all that it may know, fixed before it runs; what leaves a batch to another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.engine.record.marks import Activity, Producers
from penstock.engine.record.values import Json, by_name, by_number, known

__all__ = [
    "Begun",
    "Floors",
    "Plan",
    "Repeats",
    "Split",
    "Switch",
    "Transaction",
    "WriterEntry",
    "plan_from_json",
]

Floors: TypeAlias = Sequence[Sequence[int]]
"""Watermarks that a topic had: pairs of the offset from which each counts and the time in us, ascending."""


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """A writer of a topic, and how far it has come.

    Attributes:
        producer_id: allocated once for the writer.
        epoch: of the producer.
        next_sequence: by partition of the topic, of the next record.
    """

    producer_id: int
    epoch: int
    next_sequence: Mapping[int, int] = field(default_factory=dict)

    def after(self, next_sequence: Mapping[int, int]) -> WriterEntry:
        """The writer once it has written up to these sequences."""
        return WriterEntry(self.producer_id, self.epoch, next_sequence)

    @staticmethod
    def from_json(content: Json) -> WriterEntry:
        """Reads it."""
        sequences = by_number(content["next_sequence"])
        return WriterEntry(content["producer_id"], content["epoch"], sequences)


@dataclass(frozen=True, slots=True)
class Repeats:
    """The batch of another program that a batch is, run again.

    Attributes:
        number: of that batch.
        incarnation: of the pipeline then.
        outputs: the identities of all that that program writes.
        before: the same of the batch that that one was.
    """

    number: int
    incarnation: str
    outputs: Sequence[str]
    before: Repeats | None = None

    @staticmethod
    def from_json(content: Json) -> Repeats:
        """Reads it."""
        before = known(content.get("before"), Repeats.from_json)
        return Repeats(content["number"], content["incarnation"], content["outputs"], before)


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that the previous program has begun, and this one is to run again; see `engine.upgrade`.

    Attributes:
        wall_us: its clock.
        bytes_max: of a split.
        repeats: see `Repeats`.
        starts: by `topic/partition`, from where it reads.
        ends: by `topic/partition`, up to where it reads.
        topic_ids: of the topics that it was to read.
        watermark_us: by topic, as its plan had them.
        writers: by name, as its plan had them.
    """

    wall_us: int
    bytes_max: int | None
    repeats: Repeats | None
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    topic_ids: Mapping[str, str]
    watermark_us: Mapping[str, int]
    writers: Mapping[str, WriterEntry]

    @staticmethod
    def from_json(content: Json) -> Begun:
        """Reads it."""
        return Begun(
            content["wall_us"],
            content.get("bytes_max"),
            known(content.get("repeats"), Repeats.from_json),
            content.get("starts", {}),
            content["ends"],
            content.get("topic_ids", {}),
            content["watermark_us"],
            writers_from_json(content["writers"]),
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """How one attempt at a batch writes its output; see `penstock.engine.transactions`.

    Attributes:
        id: the transactional id.
        written: the identities of outputs that have what the batch gives.
        producer_id: of the writer.
        epoch: of the writer.
        sequences: by topic and partition, the next one.
    """

    id: str
    written: Sequence[str]
    producer_id: int
    epoch: int
    sequences: Mapping[str, Mapping[int, int]]

    @staticmethod
    def from_json(content: Json) -> Transaction:
        """Reads it."""
        return Transaction(**{**content, "sequences": by_name(content["sequences"])})


@dataclass(frozen=True)
class Split:
    """A range of one partition: `start <= offset < end`.

    Attributes:
        topic: that is read.
        partition: of it.
        start: the first offset.
        end: the offset after the last one.
        newest_us: the newest time to which the partition had moved the watermark before `start`; None where
            there was none.
        lane: that reads it.
        producers: where they have watermarks of their own, what is known of them before `start`; see
            `penstock.engine.watermarks`.
        floors: of a backfill; see `noted_floors`.
    """

    topic: str
    partition: int
    start: int
    end: int
    newest_us: int | None
    lane: int
    producers: Producers | None = None
    floors: Floors | None = None

    @property
    def place(self) -> str:
        """Topic and partition."""
        return f"{self.topic}/{self.partition}"

    @staticmethod
    def from_json(content: Json) -> Split:
        """Reads it."""
        producers = known(content.get("producers"), Producers.from_json)
        return Split(**{**content, "producers": producers})


@dataclass(frozen=True)
class Plan:
    """What batch `version` reads and what it may assume.

    Attributes:
        version: the batch's number, and of the version that it makes.
        epoch: of the owner that wrote the plan.
        program: digest of the program that the plan is of, and of how it is cut into tasks.
        wall_us: the wall clock, the only one that the batch may see.
        watermark_us: by topic; no row of a time before it is expected any more. Absent: nothing is known.
        frontier_us: by operator, what each of its ports is promised; see `penstock.ops.operator`.
        splits: what is read, a range of every partition.
        topic_ids: of the topics that are read: another one is another topic of the name.
        incarnation: of the pipeline: another one where its versions were lost, and begin at 1 again.
        bytes_max: that are read of one split; None is no limit. Where it is reached is up to the log alone,
            so a batch that is run again ends at the same record.
        repeats: the batch that this one is, where another program had begun it.
        outputs: the topics that the batch writes, by the outputs' identities.
        transaction: of one attempt at the batch, how it writes; never written down.
        needs_all: whether all that is read must still be there, as rows of an attempt before may stand in
            topics under the same numbers; never written down. See `penstock.engine.attempts`.
        letters: where a previous program may have refused records, by partition of the dead-letter topic, up
            to where it has letters of them; see `penstock.engine.letters.lettered`.
        activity: by topic, when data was last seen; see `penstock.engine.watermarks`.
        writers: by name, as they are before the batch.
    """

    version: int
    epoch: int
    program: str
    wall_us: int
    splits: tuple[Split, ...]
    watermark_us: Mapping[str, int]
    frontier_us: Mapping[str, Sequence[int]]
    writers: Mapping[str, WriterEntry]
    activity: Mapping[str, Activity] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    incarnation: str = ""
    repeats: Repeats | None = None
    bytes_max: int | None = None
    letters: Mapping[str, int] | None = None
    outputs: Mapping[str, str] | None = None
    transaction: Transaction | None = None
    needs_all: bool = False

    def to_json(self) -> Json:
        """The plan as what `orjson` writes."""
        return dict(vars(self))

    @staticmethod
    def from_json(content: Json) -> Plan:
        """Reads what `to_json` gave."""
        activity = content.get("activity", {})
        read = {
            "splits": tuple(map(Split.from_json, content["splits"])),
            "writers": writers_from_json(content["writers"]),
            "activity": {topic: Activity.from_json(one) for topic, one in activity.items()},
            "repeats": known(content.get("repeats"), Repeats.from_json),
            "transaction": known(content.get("transaction"), Transaction.from_json),
        }
        return Plan(**(content | read))


@dataclass(frozen=True, slots=True)
class Switch:
    """In place of a plan: nothing is read, and another program, or another version, takes over.

    Attributes:
        version: the number of the version that follows.
        program: digest of the program.
        name: of the upgrade.
    """

    version: int
    program: str
    name: str

    def to_json(self) -> Json:
        """The switch as what `orjson` writes."""
        return {"version": self.version, "program": self.program, "splits": [], "switch": self.name}


def plan_from_json(content: Json) -> Plan | Switch:
    """Reads what `to_json` of either gave."""
    if "switch" in content:
        return Switch(content["version"], content["program"], str(content["switch"]))
    return Plan.from_json(content)


def writers_from_json(content: Json) -> dict[str, WriterEntry]:
    """Reads writers by name."""
    return {name: WriterEntry.from_json(one) for name, one in content.items()}
