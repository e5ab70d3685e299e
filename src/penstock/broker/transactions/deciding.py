"""What a restart decides on transactions before anything else is written: which staged commits count.

What a process leaves that was killed may be in the page cache only. So what a decision rests on is made
durable before anybody hears of it: else the machine could take with it what was said to be committed. The
journal's own records are durable once it is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from penstock.broker.storage.flusher import is_durable
from penstock.broker.storage.room import BALLAST
from penstock.broker.transactions.machine import Place, State
from penstock.broker.transactions.mending import Fate, fate
from penstock.broker.transactions.prepared import Prepared, Replayed
from penstock.broker.transactions.records import End, Ends, body, listed, outcomes_in, row
from penstock.errors import SetupError
from penstock.log.disk.files import LogFiles
from penstock.log.disk.journal import Journal
from penstock.log.errors import StorageError
from penstock.log.partition import Partition

__all__ = ["decide", "parts_of"]

LogOf = Callable[[Place], Partition | None]
_log = logging.getLogger(__name__)


def parts_of(ends: Ends, log_of: LogOf) -> dict[Place, tuple[Partition, End]]:
    """The partitions that a prepared transaction has records in, as far as they are served."""
    return {
        place: (log, end)
        for place, end in ends.items()
        if end.first >= 0 and (log := log_of(place)) is not None
    }


def decide(said: Replayed, journal: Journal, log_of: LogOf, files: LogFiles) -> int:
    """Decides on staged commits, and notes where logs have become shorter; durably.

    Args:
        said: what the journal says; what was decided is changed in it.
        journal: the journal.
        log_of: a partition's log; None where the partition is gone, or isn't served.
        files: the data directory.

    Returns:
        Of how many partitions is known that they lost records of committed transactions.

    Raises:
        SetupError: the disk is full or failed.
    """
    _abort_lost(said, journal, log_of, files)
    split = sum(_report_loss(one, log_of) for one in said.unsettled.values())
    _cut_ends(said, journal, log_of, files)
    try:
        if journal.is_dirty:
            task = journal.begin_sync()
            task.run()
            journal.end_sync(task)
        for serial in said.staged:
            prepared = said.unsettled[serial]
            if prepared.transaction.is_commit:
                for log, end in parts_of(prepared.ends, log_of).values():
                    if not is_durable(log, end.end):
                        log.sync()
    except (OSError, StorageError) as error:
        raise SetupError(
            f"expected to make durable what transactions have committed; found: {error}; check the disk "
            "and start again"
        ) from error
    return split


def _abort_lost(said: Replayed, journal: Journal, log_of: LogOf, files: LogFiles) -> None:
    """Aborts the staged commits whose records the machine took with it when it went down."""
    lost = []
    for serial in said.staged:
        prepared = said.unsettled[serial]
        one = prepared.transaction
        if fate(one.producer_id, [*parts_of(prepared.ends, log_of).values()]) is Fate.LOST:
            prepared.transaction = said.known[one.id] = replace(one, state=State.PREPARE_ABORT)
            _append(journal, row(prepared.transaction, prepared.ends), files)
            lost.append(one.id)
    if lost:
        _log.warning(
            "aborted commits that were not confirmed, as the machine went down before their records "
            "were on the disk: %s",
            ", ".join(map(repr, lost)),
        )


def _report_loss(prepared: Prepared, log_of: LogOf) -> int:
    """Reports what a staged commit that counts has lost: all of it was on the disk once. Holes are
    reported with others' (`split_reports`).
    """
    one, split = prepared.transaction, 0
    if one.is_commit and prepared.was_staged:
        for place, (log, end) in parts_of(prepared.ends, log_of).items():
            if log.end_offset < end.end:
                split += 1
                _log.error(
                    "%s-%d: the transaction of %r with records at offsets %d to %d was committed, and the "
                    "log ends at %d: it may no longer be whole",
                    *(*place, one.id, end.first, end.end - 1, log.end_offset),
                )
    return split


def _cut_ends(said: Replayed, journal: Journal, log_of: LogOf, files: LogFiles) -> None:
    """Notes where logs are shorter than transactions saw them: these offsets are given out again."""
    seen: dict[Place, int] = {}
    known = [(p, one.end) for p, some in outcomes_in(journal).items() for one in some]
    open_ = [(p, end.end) for one in said.unsettled.values() for p, end in one.ends.items()]
    for place, end_offset in known + open_:
        seen[place] = max(seen.get(place, 0), end_offset)
    cut = {
        place: log.end_offset
        for place, end_offset in seen.items()
        if (log := log_of(place)) is not None and log.end_offset < end_offset
    }
    if cut:
        _append(journal, body("cut", listed(cut)), files)
        for prepared in said.unsettled.values():
            prepared.cut(cut)


def _append(journal: Journal, record: bytes, files: LogFiles) -> None:
    """Appends, with the room that was set aside if there is no other."""
    try:
        journal.append(record)
    except StorageError:
        files.delete(BALLAST)
        try:
            journal.append(record)
        except StorageError as error:
            raise SetupError(
                f"expected room to note what a restart has decided on transactions; found: {error}, and "
                "start again"
            ) from error
