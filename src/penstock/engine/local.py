"""Runs a batch in this process: the same tasks, one after the other, no JVM."""

from __future__ import annotations

from collections import defaultdict

from penstock.engine.plan import Plan
from penstock.engine.tasks import Job, Message, run_shard_stage, run_source_stage

__all__ = ["LocalHost"]


class LocalHost:
    """Executes plans for a `Driver`."""

    def __init__(self, job: Job, *, lanes: int = 1) -> None:
        self.job, self.lanes = job, lanes

    def execute(self, plan: Plan) -> list[Message]:  # noqa: ARG002 - tasks read it from the store
        """All messages of the last stage."""
        messages = [m for lane in range(self.lanes) for m in run_source_stage(self.job, lane)]
        for stage in range(1, self.job.physical.stages):
            shards: dict[int, list[Message]] = defaultdict(list)
            for message in messages:
                shards[message[0]].append(message)
            messages = [
                m
                for shard in range(self.job.physical.shards)
                for m in run_shard_stage(self.job, stage, shard, shards[shard])
            ]
        return messages
