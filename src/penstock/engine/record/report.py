"""What a lane reports of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.engine.record.marks import FoundProducers
from penstock.engine.record.values import Json, by_name, known

__all__ = ["Report", "SplitReport"]


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What was made of a range of a partition.

    Attributes:
        topic: that was read.
        partition: of it.
        newest_us: the newest time to which it has moved the watermark; None: nothing is known.
        rows: records read.
        late: of these, rows too late for at least one of their windows.
        lost: records that retention removed before they were read.
        doubt: what is odd about the times of its records; None: nothing is.
        end: where reading ended, if before the split's end.
        producers: of which there were rows, where they have watermarks of their own.
    """

    topic: str
    partition: int
    newest_us: int | None
    rows: int
    late: int
    lost: int
    doubt: str | None
    end: int | None
    producers: FoundProducers | None

    @staticmethod
    def from_json(content: Json) -> SplitReport:
        """Reads it."""
        found = known(content["producers"], FoundProducers.from_json)
        return SplitReport(**{**content, "producers": found})


@dataclass(frozen=True, slots=True)
class Report:
    """What a lane has done in a batch.

    Attributes:
        version: the batch's number.
        traces: by operator and shard, the state that the batch comes to.
        sources: the splits of this lane.
        writers: by name and partition, the next sequence.
        late: by view, rows too late for it.
        passed_late: by view, of the rows that it handed on, those too late for who reads it.
        dead: dead letters by topic, or by view.
        transaction: of what was written in one, the next sequence by topic and partition.
        seconds: by part of the work.
        nodes: by identity, the counts of `progress.meter`.
    """

    version: int
    traces: Mapping[str, Mapping[int, Json]]
    sources: Sequence[SplitReport]
    writers: Mapping[str, Mapping[int, int]]
    late: Mapping[str, int]
    passed_late: Mapping[str, int]
    dead: Mapping[str, int]
    transaction: Mapping[str, Mapping[int, int]]
    seconds: Mapping[str, float]
    nodes: Mapping[str, Sequence[float]]

    @property
    def has_written(self) -> bool:
        """Whether topics have something of it."""
        return bool(self.writers or self.transaction)

    @staticmethod
    def from_json(content: Json) -> Report:
        """Reads what came from a lane in another process."""
        return Report(
            **{
                **content,
                "traces": by_name(content["traces"]),
                "sources": [SplitReport.from_json(one) for one in content["sources"]],
                "writers": by_name(content["writers"]),
                "transaction": by_name(content["transaction"]),
            }
        )
