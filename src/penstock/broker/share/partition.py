"""One partition as one share group sees it: a pure state machine over its records.

    AVAILABLE --acquire--> ACQUIRED --accept, gap-----------------------> DONE
        ^                     |-------reject, too many deliveries--> REJECTED --letter written--> DONE
        +--release, timeout---+

REJECTED is passed over where the group has no dead letters; DONE stands for acknowledged and
archived alike: nobody gets the record again. A delivery is counted when the record is acquired.

The *window* is `[start_offset, end_offset)`: all before it is DONE, all after it was never handed
out. It is kept as runs of records with equal state, so an acquired batch is one run, and what is
DONE in the middle costs one run however long it is. Unsettled records (not DONE) are limited, and
with them the runs.

Invariants (see `check`): the runs cover the window without gap or overlap; the first one is not
DONE; an ACQUIRED run has a member and a deadline; a delivery count is at most the limit in force
when the record was last acquired; letters are numbered in the order in which they came up. With
`Rules.in_key_order` at most one record of a key is ACQUIRED, and no earlier one of it is unsettled.

Times are those of a clock that nobody sets back, in ms. Sources: KIP-932 (share groups), KIP-1191
(dead letters), KIP-1206 (strict limits), KIP-1222 (renewal). Unlike Kafka's, the limit counts
unsettled records and not the window's length, so one slow record does not stop a partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
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
from penstock.wire.kafka import ErrorCode

__all__ = ["SharePartition"]

DELAYED_MAX: Final = 50_000
"""Most records of a partition that wait for their time; each takes some 200 bytes."""
DELAY_MS_MAX: Final = 30 * 24 * 3600 * 1000
"""Longest delay; a later time is a mistake."""
REASON_CHARACTERS_MAX: Final = 500
"""Longest reason of a rejection that is kept."""
REJECTED_BY_CLIENT: Final = "Offset rejected by client."
TOO_MANY_DELIVERIES: Final = "Offset delivery count exceeded the threshold."
_NEVER: Final = 1 << 62


class SharePartition:
    """The state of one partition for one group.

    Args:
        rules: the settings; may be replaced at any time.
        start_offset: the first record that the group gets.
    """

    def __init__(self, rules: Rules, start_offset: int) -> None:
        self.rules = rules
        self.start_offset = self.end_offset = start_offset
        self.next_letter = 0
        self.accepted = 0
        self.archived = 0
        self.lacks_keys = False
        self._gone_before = 0
        self._runs: list[Run] = []
        self._sizes = dict.fromkeys(State, 0)
        self._delayed = 0
        self._next_ms = _NEVER
        self._hint = start_offset  # nothing before it can be acquired now
        self._keys: dict[int, int] = {}
        self._touched: list[tuple[int, int]] = []
        self._is_whole = True

    # -- the window --------------------------------------------------------------------------------

    @property
    def runs(self) -> Sequence[Run]:
        """The window's runs, in order."""
        return self._runs

    @property
    def counts(self) -> Counts:
        """How many records wait for what."""
        sizes = self._sizes
        return Counts(
            sizes[State.AVAILABLE] - self._delayed,
            self._delayed,
            sizes[State.ACQUIRED],
            sizes[State.REJECTED],
        )

    def state_of(self, offset: int) -> Run:
        """A record's run; for offsets outside the window a run of it alone."""
        if offset < self.start_offset:
            return Run(offset, offset, State.DONE)
        if offset >= self.end_offset:
            return Run(offset, offset, State.AVAILABLE)
        return self._runs[self._index(offset)]

    def _index(self, offset: int) -> int:
        return bisect_right(self._runs, offset, key=lambda run: run.first) - 1

    def _note(self, run: Run, sign: int) -> None:
        self._sizes[run.state] += sign * run.size
        if run.state is State.AVAILABLE and run.until_ms:
            self._delayed += sign * run.size

    def _cut(self, offset: int) -> int:
        """Makes a run begin at `offset`; its index (or the runs' number, at the end)."""
        if offset >= self.end_offset:
            return len(self._runs)
        at = self._index(offset)
        run = self._runs[at]
        if run.first == offset:
            return at
        self._runs[at : at + 1] = [run.part(run.first, offset - 1), run.part(offset, run.last)]
        return at + 1

    def _set(self, run: Run) -> None:
        """Makes `run` the window's, in place of what is there."""
        assert self.start_offset <= run.first <= self.end_offset, run
        low = self._cut(run.first)
        high = self._cut(run.last + 1)
        for old in self._runs[low:high]:
            self._note(old, -1)
        self._note(run, 1)
        self.end_offset = max(self.end_offset, run.last + 1)
        self._touched.append((run.first, run.last))
        if run.state is State.ACQUIRED or run.until_ms:
            self._next_ms = min(self._next_ms, run.until_ms)
        elif run.state is State.AVAILABLE:
            self._hint = min(self._hint, run.first)
        if self._keys and run.state in {State.DONE, State.REJECTED}:
            for offset in range(run.first, run.last + 1):
                self._keys.pop(offset, None)
        merged = [run]
        if low and self._runs[low - 1].precedes(run):
            low -= 1
            before = self._runs[low]
            merged = [replace(before, last=run.last)]
        if high < len(self._runs) and merged[0].precedes(self._runs[high]):
            merged = [replace(merged[0], last=self._runs[high].last)]
            high += 1
        self._runs[low:high] = merged
        if self._runs[0].state is State.DONE:
            self._advance()

    def _advance(self) -> None:
        while self._runs and self._runs[0].state is State.DONE:
            run = self._runs.pop(0)
            self._note(run, -1)
            self.start_offset = run.last + 1

    def _finish(self, first: int, last: int) -> None:
        self._set(Run(first, last, State.DONE))

    # -- handing out -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many new records may enter the window."""
        waiting = sum(self.counts) - self._delayed
        if self._delayed >= DELAYED_MAX:
            return 0
        return max(self.rules.unsettled_max - waiting, 0)

    def next_offset(self) -> int | None:
        """Where to read for the next acquisition; None while nothing can be handed out."""
        if self.rules.in_key_order:
            found = next(self._in_key_order(), None)
        else:
            found = next(self._ready(self._hint), None)
            self._hint = self.end_offset if found is None else found
        if found is None and self.room > 0:
            return self.end_offset
        return found

    def _ready(self, since: int) -> Iterator[int]:
        """First offsets of runs that may be handed out now."""
        if self._sizes[State.AVAILABLE] == self._delayed:
            return
        for at in range(max(self._index(since), 0), len(self._runs)):
            run = self._runs[at]
            if run.state is State.AVAILABLE and not run.until_ms:
                yield run.first

    def _in_key_order(self) -> Iterator[int]:
        """Offsets that may be handed out now, where each key's records go one after another."""
        busy: set[int] = set()
        for run in self._runs:
            if run.state in {State.DONE, State.REJECTED}:
                continue
            is_ready = run.state is State.AVAILABLE and not run.until_ms
            for offset in range(run.first, run.last + 1):
                key = self._keys.get(offset)
                if key is None:
                    if is_ready:
                        yield offset
                elif key not in busy:
                    busy.add(key)
                    if is_ready:
                        yield offset

    def learn_keys(self, keys: Mapping[int, int]) -> None:
        """Tells the keys of the window's records, after a restart (see `lacks_keys`)."""
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
        spans: Sequence[Span],
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
            spans: the batches, in order.
            records_max: how many records are wanted.
            is_strict: whether that is a limit; else a batch that was begun is handed out whole.
        """
        found: list[Acquired] = []
        if self.rules.in_key_order:
            self._admit_all(read_from, spans)
            reach = min(spans[-1].last, self.end_offset - 1) if spans else -1
            runs = self._free_runs(read_from, reach)
            self._hand_out(now_ms, member, runs, records_max, found)
            return found
        left = records_max
        position = max(read_from, self.start_offset)
        for span in spans:
            if span.last < position:
                continue
            if left <= 0:
                break
            first = self._approach(position, span)
            position = span.last + 1
            if first is None:
                continue
            self._admit(first, span, left if is_strict else _NEVER)
            most = left if is_strict else _NEVER
            left -= self._hand_out(now_ms, member, self._ready_runs(first, span.last), most, found)
            if self.end_offset <= span.last:
                break
        return found

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

    def _fill_gap(self, first: int, last: int) -> None:
        """Offsets that no member is to get: they are done, as far as nobody has them."""
        if first > last:
            return
        for run in self._between(first, last):
            if run.state is State.AVAILABLE:
                self._finish(run.first, run.last)
        if last >= self.end_offset:
            assert first <= self.end_offset
            self._finish(self.end_offset, last)

    def _admit(self, first: int, span: Span, wanted: int) -> None:
        """Lets a batch's records into the window that are not in it, as far as there is room."""
        ready = self._sizes[State.AVAILABLE] - self._delayed
        size = min(span.last + 1 - self.end_offset, self.room, max(wanted - ready, 0))
        if size <= 0:
            return
        assert first <= self.end_offset
        begin = self.end_offset
        self._set(Run(begin, begin + size - 1, State.AVAILABLE))

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
            self._admit(first, span, _NEVER)
            if self.end_offset <= span.last:
                return

    def _ready_runs(self, first: int, last: int) -> list[Run]:
        return [
            run
            for run in self._between(first, last)
            if run.state is State.AVAILABLE and not run.until_ms
        ]

    def _free_runs(self, first: int, last: int) -> list[Run]:
        offsets = [one for one in self._in_key_order() if first <= one <= last]
        return [self.state_of(one).part(one, one) for one in offsets]

    def _hand_out(
        self, now_ms: int, member: str, runs: Sequence[Run], most: int, found: list[Acquired]
    ) -> int:
        """Hands out at most so many records; returns how many. A record that was delivered too
        often already (the limit was lowered, or the broker died with it) is rejected.
        """
        taken = 0
        until_ms = now_ms + self.rules.lock_ms
        begun = len(found)
        for run in runs:
            if taken >= most:
                break
            if run.count >= self.rules.delivery_limit:
                self._reject(run, TOO_MANY_DELIVERIES)
                continue
            last = min(run.last, run.first + most - taken - 1)
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
        """Takes what a member says of records that it has, all of it or nothing.

        Records that the log doesn't have any more (see `skip_to`) are passed over.
        """
        for ack in acks:
            fault = ack.fault(self.rules)
            if fault is None and ack.last >= self._gone_before and not self._holds(member, ack):
                fault = ErrorCode.invalid_record_state
            if fault is not None:
                return fault
        for ack in acks:
            for first, last, kind in self._pieces(ack):
                for run in self._between(first, last):
                    if run.state is State.ACQUIRED:  # not said twice in one request
                        self._take(now_ms, run, AckType(kind), ack)
        return None

    def _holds(self, member: str, ack: Ack) -> bool:
        first = max(ack.first, self._gone_before)
        if first < self.start_offset or ack.last >= self.end_offset:
            return False
        return all(
            run.state is State.ACQUIRED and run.member == member
            for run in self._between(first, ack.last)
        )

    def _between(self, first: int, last: int) -> list[Run]:
        found = []
        first = max(first, self.start_offset)
        last = min(last, self.end_offset - 1)
        at = max(self._index(first), 0)
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            found.append(run.part(max(run.first, first), min(run.last, last)))
            at += 1
        return found

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
            is_counted: whether the deliveries count: they do where the member died of them, and
                don't where it left in peace.
        """
        for run in [one for one in self._runs if one.member == member]:
            if is_counted:
                self._fail(now_ms, run)
            else:
                self._return(now_ms, run, run.count - 1, 0)

    def tick(self, now_ms: int) -> bool:
        """Ends locks and delays whose time is over; whether there were any."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = _NEVER
        due = [run for run in self._runs if 0 < run.until_ms <= now_ms]
        waiting = (run.until_ms for run in self._runs if run.until_ms > now_ms)
        self._next_ms = min(waiting, default=_NEVER)
        for run in due:
            if run.state is State.ACQUIRED:
                self._fail(now_ms, run)
            else:
                self._set(replace(run, until_ms=0))
        return bool(due)

    # -- dead letters ------------------------------------------------------------------------------

    def letters(self, count_max: int) -> list[Letter]:
        """The dead letters that are due, in the order of their numbers, which has no gaps."""
        if not self._sizes[State.REJECTED]:
            return []
        runs = sorted(
            (run for run in self._runs if run.state is State.REJECTED), key=lambda run: run.letter
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
        for run in [one for one in self._runs if one.state is State.REJECTED]:
            if run.letter < before_number:
                last = min(run.last, run.first + before_number - run.letter - 1)
                self._finish(run.first, last)

    def number_letters(self, first: int) -> None:
        """Numbers the letters that are due anew, from `first` on; none of them may be written."""
        rejected = [run for run in self._runs if run.state is State.REJECTED]
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
        for run in self._between(self.start_offset, offset - 1):
            if run.state is not State.DONE:
                self.archived += run.size
        self._finish(self.start_offset, offset - 1)

    def cut_end(self, offset: int) -> None:
        """The log ends there: what lay behind was lost, and its offsets are given out anew."""
        if self.start_offset >= offset:
            if self.end_offset > offset:
                self.reset(offset)
        elif self.end_offset > offset:
            at = self._cut(offset)
            for run in self._runs[at:]:
                self._note(run, -1)
            del self._runs[at:]
            self.end_offset = offset
            self._hint = min(self._hint, offset)
            self._keys = {one: key for one, key in self._keys.items() if one < offset}
            self._touched, self._is_whole = [], True

    def reset(self, offset: int) -> None:
        """Begins anew at an offset; who has records loses them."""
        self._runs, self._keys = [], {}
        self._sizes, self._delayed, self._next_ms = dict.fromkeys(State, 0), 0, _NEVER
        self.start_offset = self.end_offset = self._hint = offset
        self._touched, self._is_whole = [], True

    # -- journal -----------------------------------------------------------------------------------

    def whole(self) -> Change:
        """All of the state."""
        runs = list(self._runs)
        return Change(self.start_offset, self.end_offset, self.next_letter, runs, is_whole=True)

    def drain(self) -> Change | None:
        """What changed since the last call."""
        if self._is_whole:
            self._is_whole, self._touched = False, []
            return self.whole()
        if not self._touched:
            return None
        runs: list[Run] = []
        end = -1
        for low, high in sorted(self._touched):
            low, high = max(low, end + 1), min(high, self.end_offset - 1)  # noqa: PLW2901
            if low > high:
                continue
            if low < self.start_offset:
                runs.append(Run(low, min(high, self.start_offset - 1), State.DONE))
            runs += self._between(low, high)
            end = max(end, high)
        self._touched = []
        return Change(self.start_offset, self.end_offset, self.next_letter, runs)

    def rewrite(self) -> None:
        """The next `drain` gives all: the journal may lack something."""
        self._is_whole = True

    def apply(self, change: Change) -> None:
        """Takes what a journal says: acquired records are available again, with their count."""
        if change.is_whole:
            self.reset(change.start_offset)
        for run in change.runs:
            if run.last < self.start_offset:
                continue
            if run.first > self.end_offset:  # an entry is missing: nobody was told of its content
                self._set(Run(self.end_offset, run.first - 1, State.AVAILABLE))
            known = run.part(max(run.first, self.start_offset), run.last)
            if known.state is State.ACQUIRED:
                known = Run(known.first, known.last, State.AVAILABLE, known.count)
            self._set(known)
        self.next_letter = change.next_letter
        self.lacks_keys = self.start_offset < self.end_offset
        self._touched, self._is_whole = [], False

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts all invariants."""
        position = self.start_offset
        sizes = dict.fromkeys(State, 0)
        delayed = 0
        for run in self._runs:
            assert run.first == position <= run.last, run
            position = run.last + 1
            sizes[run.state] += run.size
            delayed += run.size if run.state is State.AVAILABLE and run.until_ms else 0
            assert bool(run.member) == (run.state is State.ACQUIRED), run
            assert run.state is not State.ACQUIRED or (run.until_ms > 0 and run.count > 0), run
            assert (run.letter >= 0) == (run.state is State.REJECTED), run
            assert not run.until_ms or self._next_ms <= run.until_ms, run
        assert position == self.end_offset
        assert sizes == self._sizes
        assert delayed == self._delayed
        assert not self._runs or self._runs[0].state is not State.DONE
        if not self.rules.in_key_order:
            ready = [one for one in self._runs if one.state is State.AVAILABLE and not one.until_ms]
            assert all(one.last >= self._hint for one in ready)
        letters = [
            one
            for run in self._runs
            for one in range(run.letter, run.letter + run.size)
            if run.state is State.REJECTED
        ]
        assert len(set(letters)) == len(letters)
        assert all(one < self.next_letter for one in letters)
