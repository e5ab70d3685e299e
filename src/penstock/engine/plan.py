"""The plan of a batch: all that it may know, fixed before it runs; what bounds it, and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from penstock.engine.store import VERSIONS_KEPT, Json

__all__ = ["SWITCH", "Execute", "Limits", "Plan", "Settings", "Split", "Work"]

SWITCH: Final = "switch"
"""What a plan has that reads nothing and lets a changed program take over (`penstock.engine.upgrade`)."""

AHEAD_MAX_US: Final = 24 * 3_600 * 1_000_000  # clocks and time zones go wrong by hours, not by days


@dataclass(frozen=True)
class Limits:
    """How much one batch may take on.

    Attributes:
        rows_max: of one partition in one batch; bounds how long a batch takes when catching up, and its
            memory: what is grouped of so many rows lies in a lane twice, before and after it is one run.
        bytes_max: of one partition in one batch, keys and values: bounds memory where records are large. The
            record that reaches it is the batch's last one.
    """

    rows_max: int = 1_250_000
    bytes_max: int = 256 << 20


@dataclass(frozen=True)
class Settings:
    """Where a pipeline runs.

    Attributes:
        directory: of the state and Spark's log.
        spark: `spark://…`; None runs Spark on this machine.
        address: of this machine, for a cluster's workers; None: on the way to Spark's master.
        state: a URI that pyarrow knows, for state that a cluster shares; None is in `directory`.
        cores: tasks at a time.
        rows_max: of one partition in one batch.
        shards: into how many exchanged state is cut; None leaves it as it is, at first one for each core.
        versions_kept: how many committed versions can be read.
    """

    directory: Path
    spark: str | None = None
    address: str | None = None
    state: str | None = None
    cores: int = 2
    rows_max: int = Limits.rows_max
    shards: int | None = None
    versions_kept: int = VERSIONS_KEPT

    @property
    def state_uri(self) -> str:
        """Where the state is."""
        return self.state or str((self.directory / "state").absolute())

    @property
    def spark_folder(self) -> Path:
        """Spark's log, and its temporary files."""
        return self.directory / "spark"


@dataclass(frozen=True)
class Split:
    """A range of one partition: `start <= offset < end`.

    Attributes:
        newest_us: the newest time to which the partition had moved the watermark before `start`; None where
            there was none.
        lane: that reads it.
        producers: where they have watermarks of their own, what is known of them before `start`; see
            `penstock.engine.watermarks`.
        floors: of a backfill, watermarks that the topic once had: pairs of the offset from which each counts
            and the time in us, both ascending; see
            `noted_floors`.
    """

    topic: str
    partition: int
    start: int
    end: int
    newest_us: int | None
    lane: int
    producers: Json | None = None
    floors: list[list[int]] | None = None


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
        topic_ids: of the topics that are read: another one is another topic of the name.
        incarnation: of the pipeline: another one where its versions were lost, and begin at 1 again.
        bytes_max: that are read of one split; None is no limit. Where it is reached is up to the log alone,
            so a batch that is run again ends at the same record.
        repeats: `number`, `incarnation` and `outputs` of the batch that this one is, where another
            program had begun it; `before`: the same of that one.
        outputs: the topics that the batch writes, by the outputs' identities.
        transaction: of one attempt at the batch, how it writes; never written down. See
            `penstock.engine.transactions`.
        needs_all: whether all that is read must still be there, as rows of an attempt before may stand in
            topics under the same numbers; never written down. See `penstock.engine.attempts`.
        letters: where a previous program may have refused records, by partition of the dead-letter topic, up
            to where it has letters of them; see `penstock.engine.letters.lettered`.
        activity: by topic, when data was last seen; see `penstock.engine.watermarks`.
        writers: by name, producer id, epoch and next sequences, as they are before the batch.
    """

    version: int
    epoch: int
    program: str
    wall_us: int
    splits: tuple[Split, ...]
    watermark_us: dict[str, int]
    frontier_us: dict[str, list[int]]
    writers: dict[str, Json]
    activity: Json = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    incarnation: str = ""
    repeats: Json | None = None
    bytes_max: int | None = None
    letters: dict[str, int] | None = None
    outputs: dict[str, str] | None = None
    transaction: Json | None = None
    needs_all: bool = False

    def to_json(self) -> Json:
        """The plan as plain values."""
        # Not `asdict`, which copies all values: a split may know thousands of producers.
        return {**vars(self), "splits": [dict(vars(split)) for split in self.splits]}

    @staticmethod
    def from_json(content: Json) -> Plan:
        """Reads what `to_json` gave."""
        splits = tuple(Split(**split) for split in content["splits"])
        return Plan(**{**content, "splits": splits})


@dataclass(frozen=True)
class Work:
    """A batch, as a driver hands it to a host.

    Attributes:
        attempt: gives the plan; asked at each attempt.
        traces_of: gives the state that a lane's shards begin with.
        write: writes the plan down. The lanes compute meanwhile, but write to topics only after it: what
            leaves the pipeline must be of the plan that counts. Called again, it does nothing.
    """

    attempt: Callable[[], Plan]
    traces_of: Callable[[int], Json]
    write: Callable[[], None]


Execute: TypeAlias = Callable[[Work], list[Json]]
"""Runs a batch on all lanes, and gives their reports."""
