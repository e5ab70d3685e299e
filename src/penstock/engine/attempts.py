"""Attempts at a batch that was begun: by the program that has planned it, or by another one.

Without a transaction, each attempt writes under the same sequence numbers. Of a batch that another program
is to run again, its version has as `pending` what the plan said (`Begun`, `penstock.engine.upgrade`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.engine.log import Log
from penstock.engine.record.plan import Begun, Plan, Split, WriterEntry
from penstock.engine.record.report import Report
from penstock.engine.store import Store
from penstock.errors import BrokerError, FlowError
from penstock.flow.graph import Graph
from penstock.wire.protocol import ErrorCode

__all__ = [
    "Attempts",
    "PlannedError",
    "Writing",
    "as_it_is",
    "begun_again",
    "check_begun",
    "cut_short",
    "input_gone",
    "letters_of_before",
    "letters_until",
    "made_anew",
    "new_writer",
    "unfinished",
    "warn_of_sources",
]

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
        return [split.place for split in read if starts[split.topic][split.partition] > split.start]


def new_writer(log: Log) -> WriterEntry:
    """A writer of a topic as plans have it, which has written nothing."""
    new = log.new_writer()
    return WriterEntry(new.producer_id, new.epoch)


def input_gone(plan: Plan, split: Split) -> BrokerError:
    """What ends an attempt that misses input which it needs."""
    return BrokerError(
        f"expected the input of batch {plan.version} to be there until it is read; found that retention has "
        f"just removed records of {split.topic}/{split.partition}. The batch is repeated with what is left",
        code=ErrorCode.OFFSET_OUT_OF_RANGE,
        retriable=True,
    )


def letters_until(log: Log, topic: str) -> dict[str, int]:
    """Up to where a dead-letter topic has letters now, as plans have it."""
    return {str(partition): end for partition, end in log.end_offsets([topic])[topic].items()}


def letters_of_before(begun: Begun | None, log: Log, topic: str) -> dict[str, int] | None:
    """The same of a batch that a previous program has begun; None where this one writes its letters again.

    It does so under the same numbers, and the log leaves out those that it has.
    """
    if begun is None or any(name.startswith(f"{topic}/") for name in begun.writers):
        return None
    return letters_until(log, topic)


def cut_short(plan: Plan, split: Split) -> BrokerError:
    """What ends an attempt that finds a partition shorter than it was; the driver then looks at the topic."""
    return BrokerError(
        f"expected {split.topic}/{split.partition} to reach offset {split.end}, up to which batch "
        f"{plan.version} reads; found that it ends before",
        code=ErrorCode.OFFSET_OUT_OF_RANGE,
        retriable=True,
    )


def begun_again(begun: Begun, splits: Iterable[Split]) -> tuple[Split, ...]:
    """The splits of a batch that the previous program has begun, of those that would come next."""
    found = []
    for split in splits:
        # Of the first batch of all, retention may have removed the beginning meanwhile.
        start = begun.starts.get(split.place, split.start)
        found.append(replace(split, start=start, end=max(start, begun.ends.get(split.place, 0))))
    return tuple(found)


def as_it_is(begun: Begun, log: Log, topics: Collection[str]) -> Begun:
    """A batch that was begun without the input of topics that were created again since.

    Other rows come of it then. Under the same numbers the log would take them for those that it has.
    """
    ids = log.topic_ids(topics)
    anew = made_anew(begun.ends, begun.topic_ids, log.end_offsets(topics), ids)
    if not anew:
        return begun
    _LOG.warning(
        "expected the input of a batch that is repeated to be there; found that the topics %s were created "
        "again. Output topics may have rows of this batch, of other topics, twice",
        ", ".join(anew),
    )

    def rest(of: Mapping[str, int]) -> dict[str, int]:
        return {place: at for place, at in of.items() if place.rpartition("/")[0] not in anew}

    marks = {topic: us for topic, us in begun.watermark_us.items() if topic not in anew}
    return replace(
        begun, starts=rest(begun.starts), ends=rest(begun.ends), watermark_us=marks, writers={}
    )


def check_begun(
    number: int,
    begun: Mapping[str, int],
    known: Mapping[str, str],
    graph: Graph,
    ends: Mapping[str, Mapping[int, int]],
    ids: Mapping[str, str],
) -> None:
    """Checks that a batch that was begun finds the topics that it was to read.

    Args:
        number: of the batch.
        begun: see `made_anew`, as the other arguments.
        known: likewise.
        graph: for the message.
        ends: likewise.
        ids: likewise.

    Raises:
        FlowError: one was created again.
    """
    for topic in made_anew(begun, known, ends, ids):
        raise FlowError(
            f"expected {graph.topic_title(topic)} to have what batch {number}, which was begun, is to read; "
            "found another topic. It was deleted and created again: run the pipeline with --rebuild"
        )


def made_anew(
    begun: Mapping[str, int],
    known: Mapping[str, str],
    ends: Mapping[str, Mapping[int, int]],
    ids: Mapping[str, str],
) -> list[str]:
    """The topics that a batch was to read, and that were deleted and created again since it was begun.

    Args:
        begun: by `topic/partition`, the offset up to which the batch was to read.
        known: the topics' ids when it was begun.
        ends: of the topics that are read now, the offset after the last record of each partition.
        ids: of these topics now.
    """
    found = set()
    for place, end in begun.items():
        topic, _, partition = place.rpartition("/")
        if topic in ends and end:
            was = known.get(topic, ids.get(topic))
            if ids.get(topic, was) != was or ends[topic].get(int(partition), 0) < end:
                found.add(topic)
    return sorted(found)


def unfinished(number: int) -> str:
    """The message where a batch of another program is pending."""
    return (
        f"expected batch {number} to be finished by the program that began it (it may have written "
        "some of its output); found another program. Run the previous program until it has committed a "
        "batch, and then this one"
    )


def warn_of_sources(plan: Plan, reports: Iterable[Report]) -> None:
    """Warns of what a batch read: records that retention had removed before, and times of a wrong unit."""
    places = {(split.topic, split.partition): split for split in plan.splits}
    doubted: set[str] = set()
    for report in reports:
        for source in report.sources:
            if source.doubt and source.topic not in doubted:
                doubted.add(source.topic)
                _LOG.warning("%s", source.doubt)
            if source.lost:
                split = places[source.topic, source.partition]
                _LOG.warning(
                    "expected the records of %s/%d from offset %d on; found that retention had removed %d "
                    "of them unread. Views and topics don't have them. Keep records longer than the "
                    "pipeline may stand still: penstock topics alter %s --set retention.ms=…",
                    *(split.topic, split.partition, split.start, source.lost, split.topic),
                )


class PlannedError(Exception):
    """Another driver has written the plan of the batch."""


@dataclass
class Writing:
    """Writes a plan down, once."""

    store: Store
    plan: Plan
    is_written: bool

    def __call__(self) -> None:
        """Raises `PlannedError` where another driver was first."""
        if not self.is_written:
            if self.store.write_plan(self.plan) is not self.plan:
                raise PlannedError
            self.is_written = True
