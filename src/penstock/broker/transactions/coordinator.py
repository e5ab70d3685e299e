"""Carries transactions out: a journal, markers in partitions, offsets of groups.

    DATA/transactions/state.journal one JSON record per change (see `records`)

The commit point is the durable "id" record of a prepared transaction: from then on its markers are
written, again after a restart until "done" is in the journal. Where its records aren't durable yet, they
are made so at the same time as the record, which is "staged" then: the commit point is reached when both
are on the disk. A restart that finds not all of them aborts it, durably, before anything else is written
(as with parallel commits in CockroachDB: Taft et al., SIGMOD 2020). A marker is missing where the
producer's open transaction began before the end that was noted; so a marker is never written twice,
nor into the producer's next transaction. What is open in a partition but not in the journal (its
"add" was not durable) is part of the producer's transaction again, or aborted where that has ended.

Where a log is damaged, a marker may be missing though it was durable: it is written again if the
journal still has the transaction's outcome. Any loss from a committed transaction is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.logs import Seldom
from penstock.broker.pulse import until_next
from penstock.broker.storage.flusher import Durable, is_durable, made_durable
from penstock.broker.storage.topics import Hosted
from penstock.broker.transactions.deciding import decide, parts_of
from penstock.broker.transactions.machine import (
    OFFSETS,
    Change,
    Place,
    State,
    Transaction,
    Transactions,
)
from penstock.broker.transactions.mending import ended_as, lost_marker, split_reports
from penstock.broker.transactions.prepared import Prepared, replayed
from penstock.broker.transactions.records import (
    End,
    Outcome,
    body,
    listed,
    outcomes_in,
    reached_in,
    record,
    row,
    staged_in,
)
from penstock.log.disk.files import LogFiles
from penstock.log.disk.journal import Journal
from penstock.log.errors import AppendError, StorageError
from penstock.log.partition import Partition

__all__ = ["COORDINATOR_EPOCH", "Coordinator"]

COORDINATOR_EPOCH: Final = 0
"""There is one coordinator, so its epoch never changes."""
REWRITE_BYTES_MIN: Final = 4 << 20
"""A journal is rewritten when it is larger than this and mostly obsolete."""
ENTRY_BYTES: Final = 300
"""What a transactional id takes in the journal at most, as a rule; for the decision to rewrite."""
UNSETTLED_MAX: Final = 100_000
"""Transactions that await the "done" of their markers; it comes once a second."""
END_UNKNOWN: Final = (1 << 63) - 1
"""The end of a partition that isn't served, or of which it isn't known: whatever is open there, began
before it."""
TICK_S: Final = 1.0
"""How often timeouts are looked at, and markers are made durable: no request waits for that."""
_log = logging.getLogger(__name__)


class Coordinator:
    """The transactions of one data directory. Not thread-safe.

    Args:
        files: the data directory.
        find: a partition by its topic's name and its number; None where there is none, a StorageError
            where it isn't served.
        offsets: the groups' offsets.
        new_producer_id: gives out an id that was never given out before.
        make_durable: see `Flusher`.
        clock_ms: the time.
    """

    def __init__(
        self,
        files: LogFiles,
        find: Callable[[str, int], Hosted | None],
        offsets: GroupOffsets,
        new_producer_id: Callable[[], int],
        make_durable: Callable[[Iterable[Durable]], Awaitable[None]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self.journal = Journal(files, "transactions/state.journal")
        self.machine = Transactions(new_producer_id)
        self._find = find
        self._offsets = offsets
        self._make_durable = make_durable
        self._clock_ms = clock_ms
        self.commits = self.aborts = 0
        self.split = 0  # committed transactions of which records were lost
        self._reached: dict[Place, int] = {}
        self._unsettled: dict[int, Prepared] = {}
        self._unmarked: set[int] = set()
        self._stuck: list[Change] = []  # what couldn't be made durable, or be aborted instead
        self._faults = Seldom(_log)
        self._tasks: set[asyncio.Task[bool]] = set()

    # -- changes -----------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether so many transactions await their markers that no more may end."""
        return len(self._unsettled) >= UNSETTLED_MAX

    async def carry_out(self, change: Change) -> bool:
        """Carries a change out, as durably as it must be; False where the disk refuses.

        The waiting request may be cancelled; a submitted change is settled nevertheless.
        """
        try:
            self.submit(change)
        except StorageError as error:
            _log.error("%s", error)
            return False
        if not change.is_commit_point:
            self.settle(change)
            return True
        return await self._settling(change)

    def _settling(self, change: Change) -> Awaitable[bool]:
        task = asyncio.ensure_future(self._settle_when_durable(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def _settle_when_durable(self, change: Change) -> bool:
        """Has a submitted change count, or aborts it instead; whether it counts. What the disk refuses is
        tried again by `tick`.
        """
        asked = change
        while True:
            upto = self.journal.end_offset
            await made_durable(self._make_durable, self.awaited(change))
            if not is_durable(self.journal, upto):
                self._faults.say("a transaction's end must wait", self.journal.failure)
                break
            if self.is_whole(change):
                self.settle(change)
                return change is asked
            try:
                change = self.abort_instead(change)
            except StorageError as error:
                self._faults.say("a transaction's end must wait", error)
                break
        self._stuck.append(change)
        return False

    def awaited(self, change: Change) -> list[Durable]:
        """What must be durable before a submitted change counts that is a commit point."""
        return [self.journal, *(log for log, _ in self._staged(change))]

    def is_whole(self, change: Change) -> bool:
        """Whether the records of a commit are durable, as far as it had to wait for that."""
        return all(is_durable(log, end.end) for log, end in self._staged(change))

    def _staged(self, change: Change) -> list[tuple[Partition, End]]:
        prepared = None if change.after is None else self._unsettled.get(change.after.serial)
        if prepared is None:
            return []
        return [(log, prepared.ends[place]) for place, log in prepared.staged.items()]

    def abort_instead(self, change: Change) -> Change:
        """Aborts a submitted commit whose records couldn't be made durable.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        assert change.after is not None
        prepared = self._unsettled[change.after.serial]
        aborted = replace(change.after, state=State.PREPARE_ABORT)
        self.journal.append(row(aborted, prepared.ends))
        prepared.transaction, prepared.staged = aborted, {}
        return self.machine.abort_instead(change)

    def apply(self, change: Change) -> None:
        """Carries out a change that need not be durable before it counts.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        assert not change.is_commit_point
        self.submit(change)
        self.settle(change)

    def submit(self, change: Change) -> None:
        """Writes a change to the journal. It is to be settled once it is as durable as it must be.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        prepared = self._prepare(change)
        ends = None if prepared is None else prepared.ends
        is_staged = prepared is not None and bool(prepared.staged)
        self.journal.append(record(change, ends, is_staged=is_staged))
        self.machine.begin(change)
        if prepared is not None:
            self._unsettled[prepared.transaction.serial] = prepared

    def _prepare(self, change: Change) -> Prepared | None:
        after = change.after
        if after is None or not after.state.is_prepared or not after.places:
            return None
        ends = {place: self._end_of(place, after.producer_id) for place in sorted(after.places)}
        for place, end in ends.items():
            self._note_reached(place, end.durable)
        parts = parts_of(ends, self._log_of) if after.is_commit else {}
        logs = {place: log for place, (log, _) in parts.items()}
        if all(
            is_durable(one, one.producers.written_upto(after.producer_id)) for one in logs.values()
        ):
            logs = {}
        return Prepared(after, ends, set(after.places), staged=logs)

    def _log_of(self, place: Place) -> Partition | None:
        """A partition's log; None where the partition is gone, isn't served, or its end isn't known."""
        with contextlib.suppress(StorageError):
            hosted = None if place == OFFSETS else self._find(*place)
            return None if hosted is None or hosted.log.is_end_unknown else hosted.log
        return None

    def has_records(self, commit: Change, count: int) -> bool:
        """Whether all acknowledged records of a transaction that is to be committed are there: a machine
        that goes down takes those with it that aren't durable.
        """
        one = commit.before
        assert one is not None
        logs = [log for place in one.places if (log := self._log_of(place)) is not None]
        counts = (log.producers.count_in_transaction(one.producer_id, one.epoch) for log in logs)
        return sum(counts) == count

    def _end_of(self, place: Place, producer_id: int) -> End:
        try:
            hosted = None if place == OFFSETS else self._find(*place)
        except StorageError:  # it is there, but not served; nothing is written to it until then
            return End(END_UNKNOWN)
        if hosted is None:
            return End()
        if hosted.log.is_end_unknown:
            return End(END_UNKNOWN)
        log, first = hosted.log, hosted.log.producers.open_since(producer_id)
        return End(log.end_offset, -1 if first is None else first, log.durable_offset)

    def _note_reached(self, place: Place, offset: int) -> None:
        if place != OFFSETS:
            self._reached[place] = max(self._reached.get(place, 0), offset)

    def settle(self, change: Change) -> None:
        """A submitted change counts from now on; a prepared transaction's markers are written."""
        self.machine.complete(change)
        after = change.after
        if after is None or not after.state.is_prepared:
            return
        self.commits += after.is_commit
        self.aborts += not after.is_commit
        prepared = self._unsettled.get(after.serial)
        for place in after.places.difference(() if prepared is None else prepared.left):
            self.machine.marked(after.id, after.serial, place)  # the topic was deleted meanwhile
        if prepared is not None and prepared.left:
            self._unmarked.add(after.serial)
            self.mark()

    def mark(self) -> None:
        """Writes the markers that prepared transactions need; those that can't be written now stay
        for the next time.
        """
        for serial in sorted(self._unmarked):
            prepared = self._unsettled[serial]
            for place in sorted(prepared.left):
                try:
                    self._mark(prepared, place)
                except StorageError as error:
                    self._faults.say("a transaction's marker must wait", error)
                    continue
                prepared.left.discard(place)
                self.machine.marked(prepared.transaction.id, serial, place)
            if not prepared.left:
                self._unmarked.discard(serial)

    def _mark(self, prepared: Prepared, place: Place) -> None:
        one = prepared.transaction
        if place == OFFSETS:
            self._offsets.finish(one.serial, commit=one.is_commit)
            return
        hosted = self._find(*place)
        if hosted is None:  # the topic was deleted, and its records with it
            return
        if prepared.is_recovered:
            began = hosted.log.open_transactions().get(one.producer_id)
            if began is None or began >= prepared.ends[place].end:
                return  # the marker is there already
        try:
            prepared.marked[place] = self._append_marker(
                hosted, one.producer_id, one.epoch, commit=one.is_commit
            )
        except AppendError as error:  # a newer epoch wrote there: it has ended the transaction
            _log.warning("a transaction's marker was not needed: %s", error)

    def _append_marker(self, hosted: Hosted, producer_id: int, epoch: int, *, commit: bool) -> int:
        """Returns the offset after it."""
        appended = hosted.log.append_marker(
            producer_id,
            epoch,
            commit=commit,
            coordinator_epoch=COORDINATOR_EPOCH,
            now_ms=self._clock_ms(),
        )
        hosted.wake()
        return appended.base_offset + 1

    async def run(self) -> None:
        """Does in the background what time brings."""
        while True:
            await asyncio.sleep(until_next(asyncio.get_running_loop().time(), TICK_S))
            await self.tick()
            await self.confirm()

    async def finish(self) -> None:
        """Returns when no change is on its way."""
        await asyncio.gather(*self._tasks)

    async def tick(self) -> None:
        """Time has passed: aborts what takes too long, and tries again what could not be written."""
        if self._unmarked:
            self.mark()
        if self.journal.failure is None:
            stuck, self._stuck = self._stuck, []
            for change in stuck:
                await self._settling(change)
        for change in self.machine.overdue(self._clock_ms()):
            if await self.carry_out(change):
                _log.info("aborted the transaction of %s: it timed out", change.id)

    async def expire(self) -> None:
        """Forgets ids that have not been used for long."""
        for change in self.machine.expired(self._clock_ms()):
            await self.carry_out(change)

    # -- what is durable ---------------------------------------------------------------------------

    async def confirm(self) -> None:
        """Makes markers durable, and notes which transactions need nothing more."""
        goals = self._goals()
        if goals:
            await self._make_durable({one for some in goals.values() for one, _ in some})
            self._note_done(goals)
        await self._make_durable([self.journal])

    def _goals(self) -> dict[int, list[tuple[Durable, int]]]:
        """By transaction that has all its markers, up to where what must be durable for it."""
        return {
            serial: [(one, one.end_offset) for one in self._places_of(prepared)]
            for serial, prepared in self._unsettled.items()
            if not prepared.left and not self._is_on_its_way(prepared.transaction)
        }

    def _is_on_its_way(self, one: Transaction) -> bool:
        """Whether a prepared transaction doesn't count yet."""
        change = self.machine.pending(one.id)
        return change is not None and change.after is not None and change.after.serial == one.serial

    def _places_of(self, prepared: Prepared) -> list[Durable]:
        found: list[Durable] = [self._offsets.journal] if OFFSETS in prepared.ends else []
        hosted = [self._find(*place) for place in prepared.ends if place != OFFSETS]
        return found + [one.log for one in hosted if one is not None]

    def _note_done(self, goals: dict[int, list[tuple[Durable, int]]]) -> None:
        """These transactions' markers are durable, but for places that failed."""
        try:
            for serial, some in goals.items():
                if all(is_durable(one, upto) for one, upto in some):
                    marked = self._unsettled[serial].marked
                    self.journal.append(body("done", serial, listed(marked)))
                    del self._unsettled[serial]
                    for place, offset in marked.items():
                        self._note_reached(place, offset)
        except StorageError as error:
            _log.warning("%s", error)

    def compact(self) -> None:
        """Rewrites the journal if most of it is obsolete. No sync may be under way."""
        live = (len(self.machine) + len(self._unsettled)) * ENTRY_BYTES
        if self.journal.size > max(REWRITE_BYTES_MIN, 2 * live) and not self.machine.is_busy:
            self.journal.rewrite(self._bodies())

    def _bodies(self) -> Iterator[bytes]:
        yield body("reached", listed(self._reached))
        for prepared in self._unsettled.values():
            yield row(prepared.transaction, prepared.ends)
        for one in self.machine:
            yield self._row(one)

    def _row(self, one: Transaction) -> bytes:
        known = self._unsettled.get(one.serial) if one.state.is_prepared else None
        return row(one, None if known is None else known.ends)

    def close(self) -> None:
        """Makes everything durable. Partitions and offsets must have been closed before."""
        if self.journal.failure is None:
            self._note_done(self._goals())
            self._write_plainly()
        self.journal.close()

    def _write_plainly(self) -> None:
        """Repeats staged states that count as others: older brokers don't know of staged ones."""
        staged = staged_in(self.journal)
        try:
            for one in self.machine:
                if one.id in staged and self.machine.pending(one.id) is None:
                    self.journal.append(self._row(one))
        except StorageError as error:
            _log.warning("%s", error)

    # -- after a restart ---------------------------------------------------------------------------

    def recover(self, partitions: Iterable[Hosted]) -> None:
        """Completes what was prepared, finds again what was open, aborts what belongs to no
        transaction.

        Raises:
            SetupError: the disk is full or failed, so that nothing can be decided.
        """
        said = replayed(self.journal)
        self.split += decide(said, self.journal, self._log_of, self._files)
        self._unsettled = said.unsettled
        self._reached = reached_in(self.journal)
        self._unmarked = set(self._unsettled)
        left = {serial: one.left for serial, one in self._unsettled.items()}
        serial = max(said.last_serial, *self._offsets.staged, 0)
        self.machine.restore(said.known.values(), left, serial)
        everywhere = list(partitions)
        self._mend(everywhere)
        self.mark()
        now_ms = self._clock_ms()
        for serial, one in list(self._offsets.staged.items()):
            who = one.producer_id, one.epoch
            if serial in self._unmarked or self.machine.resume(
                now_ms, *who, place=OFFSETS, groups=one.groups, serial=serial
            ):
                continue
            self._offsets.finish(serial, commit=False)
        for hosted in everywhere:
            for producer_id in hosted.log.open_transactions():
                self._resume(hosted, producer_id, now_ms)

    def _mend(self, partitions: list[Hosted]) -> None:
        """Rewrites markers that are lost to damage, and reports transactions that it has split."""
        marred = [one for one in partitions if one.log.holes() or one.log.open_transactions()]
        outcomes = outcomes_in(self.journal) if marred else {}
        for hosted in marred:
            place, log = (hosted.topic.name, hosted.index), hosted.log
            known = outcomes.get(place, [])
            for producer_id, began in log.open_transactions().items():
                mine = [one for one in known if one.producer_id == producer_id]
                self._mend_marker(hosted, mine, producer_id, began)
            ways = partial(ended_as, log)
            for text in split_reports(known, log.interrupted, log.holes(), ways):
                self.split += 1
                _log.error("%s-%d: %s", *place, text)

    def _mend_marker(
        self, hosted: Hosted, outcomes: list[Outcome], producer_id: int, began: int
    ) -> None:
        last, epoch = hosted.log.producers.last_batches()[producer_id]
        found, is_certain = lost_marker(outcomes, began, last, self._unsettled)
        if found is None:
            return
        place, way = (hosted.topic.name, hosted.index), "commit" if found.is_commit else "abort"
        if not is_certain:
            _log.error(
                "%s-%d: expected the %s of the transaction of %r from offset %d on; found that it is lost, "
                "and more records of its producer behind it: they end as its next transaction does",
                *(*place, way, found.id, began),
            )
            return
        _log.error(
            "%s-%d: expected the %s of the transaction of %r from offset %d on; found that it is lost; it "
            "is written again",
            *(*place, way, found.id, began),
        )
        try:
            self._append_marker(hosted, producer_id, epoch, commit=found.is_commit)
        except StorageError as error:
            _log.error("%s", error)

    def _resume(self, hosted: Hosted, producer_id: int, now_ms: int) -> None:
        """Handles an open transaction of a partition: it is a producer's present one, or belongs to
        none.
        """
        place = hosted.topic.name, hosted.index
        owner = self.machine.owner_of(producer_id)
        if owner is not None and owner.state.is_prepared:
            return  # its marker could not be written yet
        if (
            owner is not None
            and hosted.log.has_open_transaction(producer_id, owner.epoch)
            and self.machine.resume(now_ms, producer_id, owner.epoch, place=place)
        ):
            return
        began = hosted.log.producers.open_since(producer_id)
        doubt = (
            "; if it was committed, it is split now: the log is damaged behind"
            if any(began is not None and following > began for _, following in hosted.log.holes())
            else ""
        )
        _log.log(
            logging.ERROR if doubt else logging.WARNING,
            "aborted what producer %d left open in %s-%d: no transaction knows of it%s",
            *(producer_id, *place, doubt),
        )
        epochs = {one.producer_id: one.epoch for one in hosted.log.producers.describe()}
        try:
            self._append_marker(hosted, producer_id, epochs[producer_id], commit=False)
        except StorageError as error:
            _log.error("%s", error)

    def forget_topic(self, topic: str) -> None:
        """A topic is gone: what is known of its partitions isn't about another one of that name.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        known = [place for place in self._reached if place[0] == topic]
        if known:
            self.journal.append(body("gone", topic))
            for place in known:
                del self._reached[place]
        for serial, prepared in self._unsettled.items():
            for place in prepared.forget(topic):
                self.machine.marked(prepared.transaction.id, serial, place)
            if not prepared.left:
                self._unmarked.discard(serial)

    def producer_ids(self) -> Iterator[int]:
        """Every producer id that a transactional id has, had, or is about to have."""
        for one in [*self.machine, *(one.transaction for one in self._unsettled.values())]:
            yield from (one.producer_id, one.previous_producer_id, one.next_producer_id)

    def check(self) -> None:
        """Asserts all invariants."""
        self.machine.check()
        for serial, places in self.machine.unmarked().items():
            assert places == self._unsettled[serial].left
        for serial, prepared in self._unsettled.items():
            assert prepared.transaction.serial == serial
            assert prepared.left <= prepared.ends.keys()
            assert (serial in self._unmarked) <= bool(prepared.left)
