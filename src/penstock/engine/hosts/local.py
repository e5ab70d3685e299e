"""Runs a batch in this process: the same lanes, one after the other, no JVM."""

from __future__ import annotations

from penstock.engine.plan import Work
from penstock.engine.record.report import Report
from penstock.engine.states.hot import Hot
from penstock.engine.tasks import Handed, Job, LaneBatch

__all__ = ["LocalHost"]


class LocalHost:
    """Executes plans for a `Driver`."""

    def __init__(self, job: Job, *, lanes: int = 1) -> None:
        self.job, self.lanes = job, lanes
        self._hot = [Hot() for _ in range(lanes)]

    def execute(self, work: Work) -> list[Report]:
        """The reports of all lanes."""
        plan = work.attempt()
        batches = [
            LaneBatch(self.job, lane, self.lanes, plan, work.traces_of(lane), hot, work.write)
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
        reports = [batch.finish() for batch in batches]
        work.write()
        return reports
