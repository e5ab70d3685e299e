"""A batch's output in one transaction: readers of committed data see all of it, or nothing.

    attempt     lanes write with one producer's id and epoch, each partition by one lane
    commit      offset N of the pipeline's group, and the transaction's end     the output counts
    version N   is committed after that

The group's offset is in the same transaction as the records, so it says which batch's output counts. A
driver that takes over fences the previous writer, and asks: where the offset is N already, and version
N isn't there yet, the batch is run again and writes nothing; otherwise nothing of it counts, and it is
run again and writes. What made the offset is known from the *incarnation* next to it: a pipeline whose state
was lost numbers its batches from 1 again, under a new one.

A batch may be begun by one program, begun again by a second one, and finished by a third. Any of them may
have made the offset, so its plan names all of them, and the note next to the offset the outputs that had the
batch before and that the program which made it doesn't write.

An attempt that failed may have left any part of its records, so the next one begins with a new epoch,
whose sequences start at 0. Sequences are therefore in no version: they live as long as the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.engine.log import Log, Writer
from penstock.engine.record.plan import Plan, Transaction
from penstock.engine.record.report import Report

__all__ = ["OutputTransactions", "transactional_id"]


def transactional_id(pipeline: str) -> str:
    """Under what a pipeline writes its transactions, and commits its group's offset."""
    return f"penstock.{pipeline}"


class OutputTransactions:
    """The driver's side: one transaction for each batch that writes.

    Args:
        log: that is written to.
        name: the transactional id, and the group.
        topic: whose first partition the group's offset is of; it exists, and is never written here.
        outputs: the identities of all that is written.
    """

    def __init__(self, log: Log, name: str, topic: str, outputs: Iterable[str]) -> None:
        self.log, self.name, self.place = log, name, (topic, 0)
        self._outputs = sorted(outputs)
        self._writer: Writer | None = None
        self._sequences: dict[str, dict[int, int]] = {}
        self._counted: tuple[int, str] = (0, "")
        self._is_open = False

    def attempt(self, plan: Plan) -> Plan:
        """The plan for one attempt at a batch, which says how it writes."""
        if self._writer is None or self._is_open:
            self._writer = self.log.begin(self.name)
            self._sequences = {}
            self._counted = self.log.counted(self.name, self.place)
        self._is_open = True
        return replace(
            plan,
            transaction=Transaction(
                self.name,
                self._written(plan),
                self._writer.producer_id,
                self._writer.epoch,
                self._sequences,
            ),
        )

    def _written(self, plan: Plan) -> list[str]:
        """The outputs that have what this batch gives: all, or those of a previous program."""
        number, note = self._counted
        incarnation, *more = note.split(" ")
        if incarnation == plan.incarnation and number >= plan.version:
            return self._outputs
        begun = plan.repeats
        while begun:
            if incarnation == begun.incarnation and number >= begun.number:
                return [*begun.outputs, *more]
            begun = begun.before
        return []

    def commit(self, plan: Plan, reports: Iterable[Report]) -> None:
        """Makes what an attempt has written count, all at once.

        Raises:
            FencedError: another driver has begun, or the transaction took too long. Nothing of it counts.
            BrokerError: whether it counts isn't known; the next attempt finds out.
        """
        assert self._writer is not None
        has_written = False
        for report in reports:
            for topic, sequences in report.transaction.items():
                has_written = True
                self._sequences.setdefault(topic, {}).update(sequences)
        if has_written:
            others = sorted(set(self._written(plan)) - set(self._outputs))
            note = " ".join([plan.incarnation, *others])
            self.log.end(self._writer, self.place, plan.version, note)
            self._counted = (plan.version, note)
        self._is_open = False
