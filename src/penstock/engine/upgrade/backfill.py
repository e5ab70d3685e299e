"""The backfill: makes what is new in a program of the log, up to a version of the program before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.client.network.connection import Aside
from penstock.engine.attempts import letters_until
from penstock.engine.driver import Driver
from penstock.engine.record.marks import Activity
from penstock.engine.record.plan import Plan, Split
from penstock.engine.record.values import Offsets
from penstock.engine.record.version import Version
from penstock.engine.watermarks import Look

__all__ = ["Backfill", "Backfilled"]


@dataclass(frozen=True)
class Backfilled:
    """How far a backfill has come.

    Attributes:
        rows: records read.
        rows_total: that there are to read, as far as is known now.
        names: of what is made.
    """

    rows: int
    rows_total: int
    names: tuple[str, ...]

    @property
    def percent(self) -> float:
        """Of the records."""
        return 100.0 * self.rows / self.rows_total if self.rows_total else 100.0

    def __str__(self) -> str:
        return (
            f"{self.percent:.0f}% ({self.rows:,} of {self.rows_total:,} records, "
            f"{self.rows_total - self.rows:,} remain) of {', '.join(self.names)}"
        )


class Backfill(Driver):
    """The driver of a backfill: never ahead of a version of the pipeline that it is for."""

    def __init__(self, *args: Any, base: Version, sources: frozenset[str], **more: Any) -> None:
        self._sources_kept = sources
        self._is_last = False
        self.bound(base, {})
        super().__init__(*args, **more)

    def bound(self, base: Version, ends: Offsets) -> None:
        """Reads up to a version's offsets; of topics that it doesn't read, up to these."""
        self._base = base
        self._bounds: Offsets = {**ends, **base.offsets}

    def finish(self, *, last: bool = True) -> None:
        """Ends with the frontiers of the version, once all is read; or not, as that has moved on."""
        self._is_last = last

    def rows_left(self, base: Version) -> int:
        """Records up to a version's offsets."""
        return sum(
            max(0, bound - self.version.offsets[topic].get(partition, 0))
            for topic, bounds in base.offsets.items()
            if topic in self.version.offsets
            for partition, bound in bounds.items()
        )

    def _planned(self) -> Plan | None:
        plan = super()._planned()
        if plan is None:
            return None
        return replace(plan, letters=letters_until(self.log, self.dead_letter_topic))

    def _look_for_ends(self, timeout_s: float = 0.0, aside: Aside | None = None) -> None:
        super()._look_for_ends(timeout_s, aside)
        for topic, ends in self._ends.items():
            bounds = self._bounds.get(topic)
            if bounds is not None:
                read = self.version.offsets[topic]
                # Where retention has passed the bound, reading has begun behind it.
                self._ends[topic] = {
                    p: max(min(end, bounds.get(p, 0)), read.get(p, 0)) for p, end in ends.items()
                }

    def _look(
        self,
        version: Version,
        activity: Mapping[str, Activity],
        ends: Mapping[str, Mapping[int, int]],
        now_us: int,
    ) -> Look:
        found = super()._look(version, activity, ends, now_us)
        marks = dict(found.watermark_us)
        for topic in self._sources_kept:
            most = self._base.watermark_us.get(topic)
            if most is None:
                marks.pop(topic, None)
            elif self._is_last or marks.get(topic, most) > most:
                marks[topic] = most
        here = {source.topic for source in self.physical.graph.sources}
        return replace(found, watermark_us={t: us for t, us in marks.items() if t in here})

    def _splits(self) -> tuple[Split, ...]:
        """What was late when it was read first is late again, also where idleness decided it."""
        before = self._base.topic_ids
        floors = {
            topic: of
            for topic, of in self._base.floors.items()
            if self._topic_ids.get(topic) == before.get(topic)
        }
        return tuple(
            replace(split, floors=floors.get(split.topic, {}).get(split.partition))
            for split in super()._splits()
        )

    def _must_keep(self, found: Look, now_us: int) -> bool:  # noqa: ARG002
        return False  # what is idle is the pipeline's to know

    def _wakes(self, frontiers: dict[str, list[int]]) -> bool:
        has_to_move = self._is_last and frontiers != self.version.frontier_us
        return has_to_move or super()._wakes(frontiers)
