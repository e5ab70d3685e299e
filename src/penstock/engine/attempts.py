"""Attempts at a batch that writes without a transaction: each under the same sequence numbers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

from penstock.engine.log import Log
from penstock.engine.plan import Plan, Split
from penstock.engine.store import Json
from penstock.errors import BrokerError

__all__ = ["OFFSET_OUT_OF_RANGE", "Attempts", "input_gone", "new_writer"]

OFFSET_OUT_OF_RANGE: Final = 1  # Kafka's error code
_LOG = logging.getLogger(__name__)


@dataclass
class Attempts:
    """The plan of a batch for each attempt at it.

    The broker leaves out what it has under the same number, so an attempt that fails may be repeated. Where
    retention has removed input since, other rows come of it: under the same numbers the broker would take
    them for those that it has, and lose rows. Such an attempt gets writers of its own; what the one before
    has written may then be there twice. Retention may also strike between the question and a lane's reading:
    an attempt under numbers that were used says that it needs all its input. A lane that misses some ends
    the attempt before it writes rows of that partition, and the next attempt asks again.

    Attributes:
        log: that is read and written.
        plan: as the last attempt had it.
        is_first: whether nothing of the batch can have been written yet.
    """

    log: Log
    plan: Plan
    is_first: bool

    def __call__(self) -> Plan:
        """The plan for the next attempt."""
        if not self.is_first:
            gone = self._gone()
            if gone:
                _LOG.warning(
                    "expected the input of batch %d, which is repeated, to be there; found that retention "
                    "has removed records of %s meanwhile. Output topics may have rows of this batch twice",
                    self.plan.version,
                    ", ".join(gone),
                )
                writers = {name: new_writer(self.log) for name in self.plan.writers}
                self.plan = replace(self.plan, writers=writers)
            self.plan = replace(self.plan, needs_all=not gone)
        self.is_first = False
        return self.plan

    def _gone(self) -> list[str]:
        """The partitions that have lost input of the batch."""
        read = [split for split in self.plan.splits if split.start < split.end]
        starts = self.log.start_offsets(sorted({split.topic for split in read})) if read else {}
        return [
            f"{split.topic}/{split.partition}"
            for split in read
            if starts[split.topic][split.partition] > split.start
        ]


def new_writer(log: Log) -> Json:
    """A writer of a topic as plans have it, which has written nothing."""
    new = log.new_writer()
    return {"producer_id": new.producer_id, "epoch": new.epoch, "next_sequence": {}}


def input_gone(plan: Plan, split: Split) -> BrokerError:
    """What ends an attempt that misses input which it needs."""
    return BrokerError(
        f"expected the input of batch {plan.version} to be there until it is read; found that retention has "
        f"just removed records of {split.topic}/{split.partition}. The batch is repeated with what is left",
        code=OFFSET_OUT_OF_RANGE,
        retriable=True,
    )
