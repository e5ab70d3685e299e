"""Runs a batch in this process: the same lanes, one after the other, no JVM."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.plan import Plan
from penstock.engine.store import Json
from penstock.engine.tasks import Handed, Hot, Job, LaneBatch

__all__ = ["LocalHost"]


class LocalHost:
    """Executes plans for a `Driver`."""

    def __init__(self, job: Job, *, lanes: int = 1) -> None:
        self.job, self.lanes = job, lanes
        self._hot = [Hot() for _ in range(lanes)]

    def execute(self, attempt: Callable[[], Plan], traces_of: Callable[[int], Json]) -> list[Json]:
        """The reports of all lanes."""
        plan = attempt()
        batches = [
            LaneBatch(self.job, lane, self.lanes, plan, traces_of(lane), hot)
            for lane, hot in enumerate(self._hot)
        ]
        handed: list[list[Handed]] = [[] for _ in batches]
        for level in range(self.job.physical.levels):
            for batch, given in zip(batches, handed, strict=True):
                batch.run_level(level, given)
            handed = [[] for _ in batches]
            for batch in batches:
                for lane, one, _ in batch.take_parcels():
                    handed[lane].append(one)
        return [batch.finish() for batch in batches]
