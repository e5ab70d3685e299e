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
from penstock.broker.storage.flusher import Durable
from penstock.broker.storage.topics import Hosted
from penstock.broker.transactions.machine import (
    OFFSETS,
    Change,
    Place,
    State,
    Transaction,
    Transactions,
)
from penstock.broker.transactions.mending import is_whole, lost_marker, told_of_split
from penstock.broker.transactions.prepared import Prepared, replayed
from penstock.broker.transactions.records import (
    End,
    Ends,
    Outcome,
    body,
    outcomes_in,
    reached_in,
    record,
    row,
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
"""The end of a partition whose topic is refused: whatever is open there, began before it."""
TICK_S: Final = 0.5
"""How often timeouts are looked at."""
TICKS_PER_CONFIRM: Final = 2
"""Markers are made durable once a second: no request waits for that."""
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
        task = asyncio.ensure_future(self._settle_when_durable(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _settle_when_durable(self, change: Change) -> bool:
        await self._make_durable(self.awaited(change))
        is_whole = self.is_whole(change)
        if not is_whole and self.journal.failure is None:
            try:
                change = self.abort_instead(change)
            except StorageError as error:
                _log.error("%s", error)
                return False
            await self._make_durable([self.journal])
        if self.journal.failure is not None:
            _log.error("%s", self.journal.failure)
            return False
        self.settle(change)
        return is_whole

    def awaited(self, change: Change) -> list[Durable]:
        """What must be durable before a submitted change counts that is a commit point."""
        return [self.journal, *(log for log, _ in self._staged(change))]

    def is_whole(self, change: Change) -> bool:
        """Whether the records of a commit are durable, as far as it had to wait for that."""
        return all(log.durable_offset >= end.end for log, end in self._staged(change))

    def _staged(self, change: Change) -> list[tuple[Partition, End]]:
        prepared = None if change.after is None else self._unsettled.get(change.after.serial)
        return [] if prepared is None else prepared.staged

    def abort_instead(self, change: Change) -> Change:
        """Aborts a submitted commit whose records couldn't be made durable.

        Raises:
            StorageError: the disk is full or failed; the next start decides.
        """
        assert change.after is not None
        prepared = self._unsettled[change.after.serial]
        aborted = replace(change.after, state=State.PREPARE_ABORT)
        self.journal.append(row(aborted, prepared.ends))
        prepared.transaction = aborted
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
        parts = self._parts(ends) if after.is_commit else []
        is_durable = all(
            log.producers.written_upto(after.producer_id) <= log.durable_offset for log, _ in parts
        )
        return Prepared(after, ends, set(after.places), staged=[] if is_durable else parts)

    def _parts(self, ends: Ends) -> list[tuple[Partition, End]]:
        """The partitions that a prepared transaction has records in, as far as they are served."""
        logs = ((self._log_of(place), end) for place, end in ends.items() if end.first >= 0)
        return [(log, end) for log, end in logs if log is not None]

    def _log_of(self, place: Place) -> Partition | None:
        """A partition's log; None where the partition is gone, or isn't served."""
        with contextlib.suppress(StorageError):
            hosted = None if place == OFFSETS else self._find(*place)
            return None if hosted is None else hosted.log
        return None

    def has_records(self, transactional_id: str, producer_id: int, epoch: int, count: int) -> bool:
        """Whether all acknowledged records of a producer's open transaction are there: a machine that goes
        down takes those with it that aren't durable.
        """
        known = self.machine.get(transactional_id)
        if known is None or known.state is not State.ONGOING:
            return True  # `end` says what is wrong
        logs = [log for place in known.places if (log := self._log_of(place)) is not None]
        counts = (log.producers.count_in_transaction(producer_id, epoch) for log in logs)
        return sum(counts) == count

    def _end_of(self, place: Place, producer_id: int) -> End:
        try:
            hosted = None if place == OFFSETS else self._find(*place)
        except StorageError:  # it is there, but not served; nothing is written to it until then
            return End(END_UNKNOWN)
        if hosted is None:
            return End()
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
        if after.serial in self._unsettled:
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
            for _ in range(TICKS_PER_CONFIRM):
                await asyncio.sleep(TICK_S)
                await self.tick()
            await self.confirm()

    async def finish(self) -> None:
        """Returns when no change is on its way."""
        await asyncio.gather(*self._tasks)

    async def tick(self) -> None:
        """Time has passed: aborts what takes too long, and tries again what could not be written."""
        if self._unmarked:
            self.mark()
        for change in self.machine.overdue(self._clock_ms()):
            if await self.carry_out(change):
                _log.info("aborted the transaction of %s: its time was over", change.id)

    async def expire(self) -> None:
        """Forgets ids that have not been used for long."""
        for change in self.machine.expired(self._clock_ms()):
            await self.carry_out(change)

    # -- what is durable ---------------------------------------------------------------------------

    async def confirm(self) -> None:
        """Makes markers durable, and notes which transactions need nothing more."""
        serials = [serial for serial, one in self._unsettled.items() if not one.left]
        if serials:
            await self._make_durable(self._places_of(serials))
            self._note_done(serials)
        await self._make_durable([self.journal])

    def _places_of(self, serials: Iterable[int]) -> list[Durable]:
        places = {place for serial in serials for place in self._unsettled[serial].ends}
        found: list[Durable] = [self._offsets.journal] if OFFSETS in places else []
        hosted = [self._find(*place) for place in places if place != OFFSETS]
        return found + [one.log for one in hosted if one is not None]

    def _note_done(self, serials: Iterable[int]) -> None:
        """These transactions' markers are durable, but for places that failed."""
        try:
            for serial in serials:
                if all(one.failure is None for one in self._places_of([serial])):
                    marked = self._unsettled[serial].marked
                    self.journal.append(body("done", serial, _listed(marked)))
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
        yield body("reached", _listed(self._reached))
        for prepared in self._unsettled.values():
            yield row(prepared.transaction, prepared.ends)
        for one in self.machine:
            known = self._unsettled.get(one.serial) if one.state.is_prepared else None
            yield row(one, None if known is None else known.ends)

    def close(self) -> None:
        """Makes everything durable. Partitions and offsets must have been closed before."""
        if self.journal.failure is None:
            self._note_done([serial for serial, one in self._unsettled.items() if not one.left])
        self.journal.close()

    # -- after a restart ---------------------------------------------------------------------------

    def recover(self, partitions: Iterable[Hosted]) -> None:
        """Completes what was prepared, finds again what was open, aborts what belongs to no
        transaction.
        """
        known, last_serial, self._unsettled, staged = replayed(self.journal)
        self._decide(known, staged)
        self._cut_ends()
        self._store_decisions()
        self._reached = reached_in(self.journal)
        self._unmarked = set(self._unsettled)
        left = {serial: one.left for serial, one in self._unsettled.items()}
        self.machine.restore(known.values(), left, max(last_serial, *self._offsets.staged, 0))
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

    def _decide(self, known: dict[str, Transaction], staged: Iterable[int]) -> None:
        """Aborts the staged commits whose records the machine took with it when it went down."""
        lost = []
        for serial in staged:
            prepared = self._unsettled[serial]
            one = prepared.transaction
            if not is_whole(one.producer_id, self._parts(prepared.ends)):
                prepared.transaction = known[one.id] = replace(one, state=State.PREPARE_ABORT)
                self.journal.append(row(prepared.transaction, prepared.ends))
                lost.append(one.id)
        if lost:
            _log.warning(
                "aborted commits that were not confirmed, as the machine went down before their records "
                "were on the disk: %s",
                ", ".join(map(repr, lost)),
            )

    def _cut_ends(self) -> None:
        """Notes where logs are shorter than transactions saw them: these offsets are given out again."""
        seen: dict[Place, int] = {}
        known = [(p, one.end) for p, some in outcomes_in(self.journal).items() for one in some]
        open_ = [(p, end.end) for one in self._unsettled.values() for p, end in one.ends.items()]
        for place, end_offset in known + open_:
            seen[place] = max(seen.get(place, 0), end_offset)
        cut = {
            place: log.end_offset
            for place, end_offset in seen.items()
            if (log := self._log_of(place)) is not None and log.end_offset < end_offset
        }
        if cut:
            self.journal.append(body("cut", _listed(cut)))
            for prepared in self._unsettled.values():
                prepared.cut(cut)

    def _store_decisions(self) -> None:
        """Makes what was decided durable, before others write where lost records were.

        Raises:
            OSError: the disk is full or failed.
        """
        if self.journal.is_dirty:
            task = self.journal.begin_sync()
            task.run()
            self.journal.end_sync(task)

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
            ways = partial(_ended_as, log)
            for text in told_of_split(known, log.interrupted, log.holes(), ways):
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
                "%s-%d: expected the %s of the transaction of %r from offset %d on, found that it is lost, "
                "and more records of its producer behind it: they end as its next transaction does",
                *(*place, way, found.id, began),
            )
            return
        _log.error(
            "%s-%d: expected the %s of the transaction of %r from offset %d on, found that it is lost; it "
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


def _ended_as(log: Partition, producer_id: int, first: int) -> bool | None:
    if log.producers.open_since(producer_id) == first:
        return None
    aborted = log.aborted(first, first + 1)
    return all((one.producer_id, one.first_offset) != (producer_id, first) for one in aborted)


def _listed(offsets: dict[Place, int]) -> list[list[object]]:
    return [[*place, offset] for place, offset in offsets.items()]
