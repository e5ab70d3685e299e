"""One partition as one share group sees it: a pure state machine over its records.

    AVAILABLE --acquire--> ACQUIRED --accept, gap-----------------------> DONE
        ^                     |-------reject, too many deliveries--> REJECTED --letter written--> DONE
        +--release, timeout---+

REJECTED is passed over where the group has no dead letters; DONE stands for acknowledged and
archived alike: the record is not delivered again. A delivery is counted when the record is acquired.

The records between those that are all DONE and those that were never handed out are kept as runs
(see `window`). Unsettled records (not DONE) are limited, and with them the runs.

Invariants (see `check`): an ACQUIRED run has a member and a deadline; a delivery count is at most
the limit in force when the record was last acquired; letters are numbered in the order in which
the records were rejected. With `Rules.in_key_order` at most one record of a key is ACQUIRED, and no
earlier one of it is unsettled.

Times are those of a monotonic clock, in ms. Sources: KIP-932 (share groups), KIP-1191
(dead letters), KIP-1206 (strict limits), KIP-1222 (renewal). Unlike Kafka's, the limit counts
unsettled records and not the window's length, so one slow record does not stop a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.broker.share.model import (
    Ack,
    AckType,
    Acquired,
    Change,
    Counts,
    Letter,
    Rules,
    Run,
    Span,
    State,
)
from penstock.broker.share.window import NEVER, Window
from penstock.wire.protocol import ErrorCode

__all__ = ["SharePartition"]

DELAYED_MAX: Final = 50_000
"""Most records of a partition that wait for their time; each takes some 200 bytes."""
DELAY_MS_MAX: Final = 30 * 24 * 3600 * 1000
"""Longest delay; a later time is a mistake."""
REASON_CHARACTERS_MAX: Final = 500
"""Longest reason of a rejection that is kept."""
REJECTED_BY_CLIENT: Final = "Offset rejected by client."
TOO_MANY_DELIVERIES: Final = "Offset delivery count exceeded the threshold."


class SharePartition:
    """The state of one partition for one group.

    Args:
        rules: the settings; may be replaced at any time.
        start_offset: the first record that the group gets.
    """

    def __init__(self, rules: Rules, start_offset: int) -> None:
        self.rules = rules
        self.next_letter = 0
        self.accepted = 0
        self.archived = 0
        self.lacks_keys = False
        self._window = Window(start_offset)
        self._gone_before = 0
        self._keys: dict[int, int] = {}

    # -- the window --------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """All before it is done."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """All from there on was never handed out."""
        return self._window.end_offset

    @property
    def runs(self) -> Sequence[Run]:
        """The window's runs, in order."""
        return self._window.runs

    @property
    def counts(self) -> Counts:
        """How many records wait for what."""
        return self._window.counts

    def state_of(self, offset: int) -> Run:
        """A record's run; for offsets outside the window a run of it alone."""
        return self._window.state_of(offset)

    def _set(self, run: Run) -> None:
        self._window.set(run)
        if self._keys and run.state in {State.DONE, State.REJECTED}:
            for offset in range(run.first, run.last + 1):
                self._keys.pop(offset, None)

    def _finish(self, first: int, last: int) -> None:
        self._set(Run(first, last, State.DONE))

    # -- handing out -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many new records may enter the window."""
        counts = self.counts
        if counts.delayed >= DELAYED_MAX:
            return 0
        return max(self.rules.unsettled_max - (sum(counts) - counts.delayed), 0)

    def next_offset(self) -> int | None:
        """Where to read for the next acquisition; None while nothing can be handed out."""
        in_order = self._in_key_order() if self.rules.in_key_order else None
        found = self._window.next_ready() if in_order is None else next(in_order, None)
        if found is None and self.room > 0:
            return self.end_offset
        return found

    def _in_key_order(self) -> Iterator[int]:
        """Offsets that may be handed out now, where each key's records go one after another."""
        busy: set[int] = set()
        for run in self.runs:
            if run.state in {State.DONE, State.REJECTED}:
                continue
            for offset in range(run.first, run.last + 1):
                key = self._keys.get(offset)
                if key is None:
                    if run.is_ready:
                        yield offset
                elif key not in busy:
                    busy.add(key)
                    if run.is_ready:
                        yield offset

    def learn_keys(self, keys: Mapping[int, int]) -> None:
        """Reports the keys of the window's records, after a restart (see `lacks_keys`)."""
        unsettled = (State.AVAILABLE, State.ACQUIRED)
        self._keys |= {
            offset: key for offset, key in keys.items() if self.state_of(offset).state in unsettled
        }
        self.lacks_keys = False

    def acquire(
        self,
        now_ms: int,
        member: str,
        read_from: int,
        spans: Iterable[Span],
        records_max: int,
        *,
        is_strict: bool,
    ) -> list[Acquired]:
        """Hands records of some batches to a member.

        Args:
            now_ms: the time.
            member: who gets them.
            read_from: where the batches were read from; offsets from there on that lie in no batch
                are gaps.
            spans: the batches, in order; no more of them are asked for than are needed.
            records_max: how many records are wanted.
            is_strict: whether that is a limit; else a batch that was begun is handed out whole, or
                of records that were handed out before, a run of them.
        """
        found: list[Acquired] = []
        if self.rules.in_key_order:
            spans = list(spans)
            self._admit_all(read_from, spans)
            reach = min(spans[-1].last, self.end_offset - 1) if spans else -1
            runs = self._free_runs(read_from, reach)
            runs = self._before(self._bound(runs, is_begun=False), runs)
            self._hand_out(now_ms, member, runs, records_max, found, is_strict=True)
            return found
        left, bound = records_max, NEVER
        position = max(read_from, self.start_offset)
        joined = self._joined(spans, lambda: left)
        for span in joined:
            if span.last < position:
                continue
            if position >= bound:
                break
            first = self._approach(position, span)
            position = span.last + 1
            if first is None:
                continue
            runs = self._ready_runs(first, span.last)
            if bound == NEVER:
                bound = self._bound(runs, is_begun=bool(found))
            runs = self._before(bound, runs)
            if bound == NEVER and left > sum(run.size for run in runs):
                runs += self._admit(first, span, left if is_strict else NEVER)
            left -= self._hand_out(now_ms, member, runs, left, found, is_strict=is_strict)
            if left <= 0 or self.end_offset <= span.last:
                break
        return found

    def _joined(self, spans: Iterable[Span], left: Callable[[], int]) -> Iterator[Span]:
        """The batches; such as were never handed out count as one, as many as are wanted. Producers
        that don't wait make a batch of each record, and a batch costs as much as a thousand records.
        """
        joined: Span | None = None
        for span in spans:
            if joined is not None:
                is_more = joined.is_deliverable and joined.last + 1 - joined.first < left()
                if is_more and joined.first >= self.end_offset and self._follows(joined, span):
                    joined = Span(joined.first, span.last)
                    continue
                yield joined
            joined = span
        if joined is not None:
            yield joined

    @staticmethod
    def _follows(before: Span, span: Span) -> bool:
        return span.is_deliverable and span.first == before.last + 1

    def _approach(self, position: int, span: Span) -> int | None:
        """Finishes what lies between two batches, and a batch that is not for members; else the
        batch's first offset of interest.
        """
        self._fill_gap(position, span.first - 1)
        first = max(span.first, position)
        if span.is_deliverable:
            return first
        self._fill_gap(first, span.last)
        return None

    def pass_over(self, first: int, last: int) -> int:
        """Offsets that can't be read: they are archived unless a member has them. Returns how many were
        archived.
        """
        first = max(first, self.start_offset)
        known = [one for one in self._window.between(first, last) if one.state is State.AVAILABLE]
        count = sum(one.size for one in known) + max(last + 1 - max(first, self.end_offset), 0)
        self._fill_gap(first, last)
        self.archived += count
        return count

    def _fill_gap(self, first: int, last: int) -> None:
        """Offsets that no member is to get: they are done, except those that a member has."""
        if first > last:
            return
        for run in self._window.between(first, last):
            if run.state is State.AVAILABLE:
                self._finish(run.first, run.last)
        if last >= self.end_offset:
            assert first <= self.end_offset
            self._finish(self.end_offset, last)

    def _admit(self, first: int, span: Span, wanted: int) -> list[Run]:
        """Lets a batch's records into the window that are not in it, as far as there is room."""
        wanted = max(wanted - self.counts.available, 0)
        size = min(span.last + 1 - self.end_offset, self.room, wanted)
        if size <= 0:
            return []
        assert first <= self.end_offset
        begin = self.end_offset
        run = Run(begin, begin + size - 1, State.AVAILABLE)
        self._set(run)
        return [run]

    def _admit_all(self, read_from: int, spans: Sequence[Span]) -> None:
        """Lets all the batches' records in, with their keys."""
        position = max(read_from, self.start_offset)
        for span in spans:
            if span.last < position:
                continue
            first = self._approach(position, span)
            position = span.last + 1
            if first is None:
                continue
            begin = self.end_offset
            self._keys |= {
                one: key for one, key in span.keys.items() if begin <= one < begin + self.room
            }
            self._admit(first, span, NEVER)
            if self.end_offset <= span.last:
                return

    def _ready_runs(self, first: int, last: int) -> list[Run]:
        return [run for run in self._window.between(first, last) if run.is_ready]

    def _bound(self, runs: Sequence[Run], *, is_begun: bool) -> int:
        """The offset before which a hand-out must end: records that have failed often go alone."""
        for run in runs:
            portion = self.rules.portion(run.count, self.state_of(run.first).size)
            if portion is not None:
                return run.first if is_begun else run.first + portion
            is_begun = is_begun or run.count < self.rules.delivery_limit
        return NEVER

    @staticmethod
    def _before(bound: int, runs: list[Run]) -> list[Run]:
        if bound == NEVER:
            return runs
        return [run.part(run.first, min(run.last, bound - 1)) for run in runs if run.first < bound]

    def _free_runs(self, first: int, last: int) -> list[Run]:
        offsets = [one for one in self._in_key_order() if first <= one <= last]
        return [self.state_of(one).part(one, one) for one in offsets]

    def _hand_out(
        self,
        now_ms: int,
        member: str,
        runs: Sequence[Run],
        wanted: int,
        found: list[Acquired],
        *,
        is_strict: bool,
    ) -> int:
        """Hands out runs until there are as many records as wanted; returns how many. A record that
        was delivered too often already (the limit was lowered, or the broker died with it) is
        rejected.
        """
        taken = 0
        until_ms = now_ms + self.rules.lock_ms
        begun = len(found)
        for run in runs:
            if taken >= wanted:
                break
            if run.count >= self.rules.delivery_limit:
                self._reject(run, TOO_MANY_DELIVERIES)
                continue
            last = min(run.last, run.first + wanted - taken - 1) if is_strict else run.last
            count = run.count + 1
            self._set(Run(run.first, last, State.ACQUIRED, count, until_ms, member))
            taken += last - run.first + 1
            before = found[-1] if len(found) > begun else None
            if before is not None and (before.last + 1, before.deliveries) == (run.first, count):
                found[-1] = before._replace(last=last)
            else:
                found.append(Acquired(run.first, last, count))
        return taken

    # -- what members say --------------------------------------------------------------------------

    def acknowledge(self, now_ms: int, member: str, acks: Sequence[Ack]) -> ErrorCode | None:
        """Applies a member's acknowledgements of records that it has, all of them or none.

        Records that the log doesn't have any more (see `skip_to`) are passed over.
        """
        for ack in acks:
            fault = ack.fault(self.rules)
            if fault is None and ack.last >= self._gone_before and not self._holds(member, ack):
                fault = ErrorCode.INVALID_RECORD_STATE
            if fault is not None:
                return fault
        for ack in acks:
            for first, last, kind in self._pieces(ack):
                for run in self._window.between(first, last):
                    if run.state is State.ACQUIRED:  # not said twice in one request
                        self._take(now_ms, run, AckType(kind), ack)
        return None

    def _holds(self, member: str, ack: Ack) -> bool:
        first = max(ack.first, self._gone_before)
        if first < self.start_offset or ack.last >= self.end_offset:
            return False
        return all(
            run.state is State.ACQUIRED and run.member == member
            for run in self._window.between(first, ack.last)
        )

    @staticmethod
    def _pieces(ack: Ack) -> Iterator[tuple[int, int, int]]:
        if len(ack.types) == 1:
            yield ack.first, ack.last, ack.types[0]
            return
        begin = 0
        for at in range(1, len(ack.types) + 1):
            if at == len(ack.types) or ack.types[at] != ack.types[begin]:
                yield ack.first + begin, ack.first + at - 1, ack.types[begin]
                begin = at

    def _take(self, now_ms: int, run: Run, kind: AckType, ack: Ack) -> None:
        match kind:
            case AckType.ACCEPT:
                self.accepted += run.size
                self._finish(run.first, run.last)
            case AckType.GAP:
                self.archived += run.size
                self._finish(run.first, run.last)
            case AckType.REJECT:
                self._reject(run, ack.reason[:REASON_CHARACTERS_MAX] or REJECTED_BY_CLIENT)
            case AckType.RENEW:
                self._set(replace(run, until_ms=now_ms + self.rules.lock_ms))
            case AckType.RELEASE if ack.uncounted:
                self._return(now_ms, run, run.count - 1, ack.delay_ms)
            case AckType.RELEASE:
                self._fail(now_ms, run, ack.delay_ms)

    def _fail(self, now_ms: int, run: Run, delay_ms: int = 0) -> None:
        """A delivery that came to nothing."""
        if run.count >= self.rules.delivery_limit:
            self._reject(run, TOO_MANY_DELIVERIES)
        else:
            self._return(now_ms, run, run.count, delay_ms or self.rules.backoff(run.count))

    def _return(self, now_ms: int, run: Run, count: int, delay_ms: int) -> None:
        until_ms = now_ms + min(delay_ms, DELAY_MS_MAX) if delay_ms > 0 else 0
        self._set(Run(run.first, run.last, State.AVAILABLE, max(count, 0), until_ms))

    def _reject(self, run: Run, reason: str) -> None:
        self.archived += run.size
        if not self.rules.has_letters:
            self._finish(run.first, run.last)
            return
        letter, self.next_letter = self.next_letter, self.next_letter + run.size
        self._set(Run(run.first, run.last, State.REJECTED, run.count, letter=letter, reason=reason))

    def release(self, now_ms: int, member: str, *, is_counted: bool) -> None:
        """Takes back all that a member has.

        Args:
            now_ms: the time.
            member: who.
            is_counted: whether the deliveries count: they do when the member's session ends, whether
                in order or not, and don't where the records never reached it.
        """
        for run in [one for one in self.runs if one.member == member]:
            if is_counted:
                self._fail(now_ms, run)
            else:
                self._return(now_ms, run, run.count - 1, 0)

    def tick(self, now_ms: int) -> bool:
        """Ends locks and delays whose time is over; whether there were any."""
        due = self._window.due(now_ms)
        for run in due:
            if run.state is State.ACQUIRED:
                self._fail(now_ms, run)
            else:
                self._set(replace(run, until_ms=0))
        return bool(due)

    # -- dead letters ------------------------------------------------------------------------------

    def letters(self, count_max: int) -> list[Letter]:
        """The dead letters that are due, in the order of their numbers, which has no gaps."""
        if not self.counts.rejected:
            return []
        runs = sorted(
            (run for run in self.runs if run.state is State.REJECTED), key=lambda run: run.letter
        )
        found: list[Letter] = []
        for run in runs:
            found += [
                Letter(run.letter + i, run.first + i, run.count, run.reason)
                for i in range(min(run.size, count_max - len(found)))
            ]
        return found

    def bury(self, before_number: int) -> None:
        """The letters with lower numbers are written."""
        for run in [one for one in self.runs if one.state is State.REJECTED]:
            if run.letter < before_number:
                last = min(run.last, run.first + before_number - run.letter - 1)
                self._finish(run.first, last)

    def number_letters(self, first: int) -> None:
        """Numbers the letters that are due again, from `first` on; none of them may be written."""
        rejected = [run for run in self.runs if run.state is State.REJECTED]
        self.next_letter = first
        for run in sorted(rejected, key=lambda run: run.letter):
            self._set(replace(run, letter=self.next_letter))
            self.next_letter += run.size

    # -- moving ------------------------------------------------------------------------------------

    def skip_to(self, offset: int) -> None:
        """The log begins later now: what lies before is gone."""
        if offset <= self.start_offset:
            return
        self._gone_before = offset
        if offset >= self.end_offset:
            self.reset(offset)
            return
        for run in self._window.between(self.start_offset, offset - 1):
            if run.state is not State.DONE:
                self.archived += run.size
        self._finish(self.start_offset, offset - 1)

    def cut_end(self, offset: int) -> None:
        """The log ends there: what lay behind was lost, and its offsets are given out again."""
        if self.start_offset >= offset:
            if self.end_offset > offset:
                self.reset(offset)
        elif self.end_offset > offset:
            self._window.cut_end(offset)
            self._keys = {one: key for one, key in self._keys.items() if one < offset}

    def reset(self, offset: int) -> None:
        """Begins again at an offset; who has records loses them."""
        self._window.reset(offset)
        self._keys = {}

    # -- journal -----------------------------------------------------------------------------------

    def whole(self) -> Change:
        """All of the state."""
        return self._change(list(self.runs), is_whole=True)

    def _change(self, runs: list[Run], *, is_whole: bool) -> Change:
        return Change(self.start_offset, self.end_offset, self.next_letter, runs, is_whole)

    def drain(self) -> Change | None:
        """What changed since the last call."""
        changed = self._window.drain()
        return None if changed is None else self._change(changed[0], is_whole=changed[1])

    def rewrite(self) -> None:
        """The next `drain` gives all: the journal may lack something."""
        self._window.rewrite()

    def apply(self, change: Change) -> None:
        """Takes what a journal says: acquired records are available again, with their count."""
        if change.is_whole:
            self.reset(change.start_offset)
        for run in change.runs:
            if run.last < self.start_offset:
                continue
            if run.first > self.end_offset:  # an entry is missing; it was never acknowledged
                self._set(Run(self.end_offset, run.first - 1, State.AVAILABLE))
            known = run.part(max(run.first, self.start_offset), run.last)
            if known.state is State.ACQUIRED:
                known = Run(known.first, known.last, State.AVAILABLE, known.count)
            self._set(known)
        self.next_letter = change.next_letter
        self.lacks_keys = self.start_offset < self.end_offset
        self._window.settle()

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts all invariants."""
        self._window.check()
        for run in self.runs:
            assert bool(run.member) == (run.state is State.ACQUIRED), run
            assert run.state is not State.ACQUIRED or (run.until_ms > 0 and run.count > 0), run
            assert (run.letter >= 0) == (run.state is State.REJECTED), run
        letters = [
            one
            for run in self.runs
            for one in range(run.letter, run.letter + run.size)
            if run.state is State.REJECTED
        ]
        assert len(set(letters)) == len(letters)
        assert all(one < self.next_letter for one in letters)
