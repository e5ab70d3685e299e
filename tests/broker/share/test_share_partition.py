"""The state machine of a share partition, alone and beside a naive model of it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.effort import rounds

from penstock.broker.share.model import Ack, AckType, Acquired, Rules, Run, Span, State
from penstock.broker.share.partition import SharePartition
from penstock.wire.protocol import ErrorCode

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    [AckType.ACCEPT],
    [AckType.RELEASE],
    [AckType.REJECT],
    [AckType.RENEW],
    [AckType.GAP],
)
RULES = Rules(lock_ms=1000, delivery_limit=3, unsettled_max=100)


def take(
    partition: SharePartition,
    member: str,
    records: int,
    *,
    now: int = 0,
    end: int = 1000,
    batch: int = 10,
    strict: bool = True,
    **more: Any,
) -> list[Acquired]:
    """Acquires from a log of batches of `batch` records."""
    offset = partition.next_offset()
    if offset is None or offset >= end:
        return []
    first = offset - offset % batch
    spans = [Span(one, min(one + batch, end) - 1, **more) for one in range(first, end, batch)]
    found = partition.acquire(now, member, offset, spans, records, is_strict=strict)
    partition.check()
    return found


def test_records_go_to_one_member_each() -> None:
    """Two members get different records, in order."""
    partition = SharePartition(RULES, 0)
    assert take(partition, "a", 3) == [(0, 2, 1)]
    assert take(partition, "b", 3) == [(3, 5, 1)]
    assert partition.acknowledge(0, "a", [Ack(0, 2, ACCEPT)]) is None
    assert partition.start_offset == 3
    assert partition.acknowledge(0, "a", [Ack(3, 3, ACCEPT)]) is ErrorCode.INVALID_RECORD_STATE


def test_batches_are_handed_out_whole() -> None:
    """Unless the limit is strict, a batch that was begun goes to one member."""
    partition = SharePartition(RULES, 0)
    assert take(partition, "a", 12, strict=False) == [(0, 19, 1)]


def test_new_batches_in_a_row_are_handed_out_as_one() -> None:
    """Up to as many records as are wanted, and no further batch is looked at; a gap and a control
    batch lie between.
    """
    partition = SharePartition(RULES, 0)
    seen: list[int] = []

    def spans(offsets: Iterable[int]) -> Iterator[Span]:
        for one in offsets:
            seen.append(one)
            yield Span(one, one, one != 8)

    assert partition.acquire(0, "a", 0, spans(range(100)), 5, is_strict=False) == [(0, 4, 1)]
    assert max(seen) == 5
    later = [5, 6, 7, 8, *range(9, 12), *range(15, 100)]
    found = partition.acquire(0, "a", 5, spans(later), 8, is_strict=True)
    assert found == [(5, 7, 1), (9, 11, 1), (15, 16, 1)]
    partition.check()
    assert partition.acknowledge(0, "a", [Ack(0, 7, ACCEPT), Ack(9, 11, ACCEPT)]) is None
    assert partition.start_offset == 15


def test_released_records_come_again_with_their_count() -> None:
    """A release makes a record available; after the last delivery it is done with."""
    partition = SharePartition(RULES, 0)
    for count in (1, 2, 3):
        assert take(partition, "a", 1) == [(0, 0, count)]
        assert partition.acknowledge(0, "a", [Ack(0, 0, RELEASE)]) is None
    assert take(partition, "a", 1) == [(1, 1, 1)]
    assert partition.start_offset == 1


def test_lock_ends() -> None:
    """A record that nobody settles in time is another's; the late settlement is refused."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 1)
    assert not partition.tick(999)
    assert partition.tick(1000)
    assert take(partition, "b", 1, now=1000) == [(0, 0, 2)]
    assert partition.acknowledge(1000, "a", [Ack(0, 0, ACCEPT)]) is ErrorCode.INVALID_RECORD_STATE


def test_renewal() -> None:
    """A renewed lock lasts from then on; where renewal is off it is refused."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 1)
    assert partition.acknowledge(900, "a", [Ack(0, 0, RENEW)]) is None
    assert not partition.tick(1899)
    assert partition.tick(1900)
    partition.rules = replace(RULES, may_renew=False)
    take(partition, "a", 1)
    assert partition.acknowledge(0, "a", [Ack(0, 0, RENEW)]) is ErrorCode.INVALID_REQUEST


def test_an_acknowledgement_is_whole_or_nothing() -> None:
    """One offset that the member hasn't refuses all of them."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 2)
    wrong = [Ack(0, 0, ACCEPT), Ack(1, 2, ACCEPT)]
    assert partition.acknowledge(0, "a", wrong) is ErrorCode.INVALID_RECORD_STATE
    assert partition.counts.acquired == 2
    assert partition.acknowledge(0, "a", [Ack(0, 1, [1, 1, 1])]) is ErrorCode.INVALID_REQUEST
    mixed = Ack(0, 1, [AckType.RELEASE, AckType.ACCEPT])
    assert partition.acknowledge(0, "a", [mixed]) is None
    assert [run.state for run in partition.runs] == [State.AVAILABLE, State.DONE]


def test_slow_record_does_not_stop_the_partition() -> None:
    """Only unsettled records are limited, so a window with one of them in it goes on."""
    partition = SharePartition(replace(RULES, unsettled_max=5), 0)
    take(partition, "slow", 1)
    for _ in range(50):
        (found,) = take(partition, "quick", 1)
        assert partition.acknowledge(0, "quick", [Ack(found.first, found.last, ACCEPT)]) is None
    assert (partition.start_offset, partition.end_offset, len(partition.runs)) == (0, 51, 2)
    assert take(partition, "quick", 9) == [(51, 54, 1)]
    assert take(partition, "quick", 9) == []


def test_gaps_and_markers_are_passed_over() -> None:
    """Offsets between batches and batches that aren't for members are done at once."""
    partition = SharePartition(RULES, 0)
    spans = [Span(2, 3), Span(4, 4, is_deliverable=False), Span(7, 8)]
    assert partition.acquire(0, "a", 0, spans, 10, is_strict=True) == [(2, 3, 1), (7, 8, 1)]
    assert [(one.first, one.last, one.state) for one in partition.runs] == [
        (2, 3, State.ACQUIRED),
        (4, 6, State.DONE),
        (7, 8, State.ACQUIRED),
    ]
    assert partition.start_offset == 2


def test_what_cannot_be_read_is_passed_over() -> None:
    """Records that are damaged are archived, but for those that a member has: it keeps them."""
    partition = SharePartition(RULES, 0)
    assert take(partition, "a", 4) == [(0, 3, 1)]
    assert partition.acknowledge(0, "a", [Ack(0, 1, RELEASE)]) is None
    assert partition.pass_over(0, 5) == 4
    assert (partition.start_offset, partition.end_offset, partition.archived) == (2, 6, 4)
    assert partition.acknowledge(0, "a", [Ack(2, 3, ACCEPT)]) is None
    assert (partition.start_offset, partition.accepted) == (6, 2)
    partition.check()


def test_delay_and_backoff() -> None:
    """A released record waits as asked, or longer with each delivery."""
    rules = replace(RULES, backoff_ms=100, backoff_ms_max=150)
    partition = SharePartition(rules, 0)
    take(partition, "a", 1, end=1)
    partition.acknowledge(0, "a", [Ack(0, 0, RELEASE)])
    assert (partition.next_offset(), partition.counts.delayed) == (1, 1)
    partition.tick(100)
    take(partition, "a", 1, now=100, end=1)
    partition.acknowledge(100, "a", [Ack(0, 0, RELEASE)])
    partition.tick(249)
    assert partition.counts.delayed == 1
    partition.tick(250)
    take(partition, "a", 1, now=250, end=1)
    partition.acknowledge(250, "a", [Ack(0, 0, RELEASE, delay_ms=5000, uncounted=True)])
    partition.tick(5250)
    assert take(partition, "a", 1, now=5250, end=1) == [(0, 0, 3)]


def test_dead_letters_are_numbered_without_gaps() -> None:
    """Rejected records wait, in the order of their rejection, until their letters are written."""
    partition = SharePartition(replace(RULES, has_letters=True), 0)
    take(partition, "a", 4)
    partition.acknowledge(0, "a", [Ack(3, 3, REJECT, reason="no such customer")])
    partition.acknowledge(0, "a", [Ack(0, 1, REJECT)])
    letters = partition.letters(10)
    assert [(one.number, one.offset) for one in letters] == [(0, 3), (1, 0), (2, 1)]
    assert letters[0].reason == "no such customer"
    partition.bury(2)
    assert [one.offset for one in partition.letters(10)] == [1]
    partition.bury(3)
    partition.acknowledge(0, "a", [Ack(2, 2, ACCEPT)])
    assert partition.start_offset == partition.end_offset == 4


@pytest.mark.parametrize("strict", [False, True])
def test_what_fails_often_goes_by_halves_and_at_last_alone(strict: bool) -> None:
    """A record that brings down its members takes few others with it: none at its last delivery."""
    partition = SharePartition(replace(RULES, delivery_limit=5), 0)
    handed: list[int] = []
    for now in range(0, 100_000, 1000):
        partition.tick(now)  # nobody says anything of what they got
        found = take(partition, "a", 10, now=now, end=20, batch=10, strict=strict)
        handed.append(sum(one.last + 1 - one.first for one in found))
        if partition.start_offset == 20:
            break
    assert handed[:5] == [10, 10, 10, 5, 1]
    assert handed[5:9] == [1, 1, 1, 1]  # each for the last time
    assert handed[9] == 2  # half of the other five, delivered three times


def test_what_failed_often_is_not_mixed_with_others() -> None:
    """What goes alone ends the hand-out before it, and lets nothing follow."""
    partition = SharePartition(RULES, 0)
    for _ in range(2):
        take(partition, "a", 10, strict=False)
        partition.acknowledge(0, "a", [Ack(4, 4, RELEASE)])
    partition.acknowledge(0, "a", [Ack(0, 0, RELEASE, uncounted=True)])
    assert take(partition, "b", 20, strict=False) == [(0, 0, 1)]
    assert take(partition, "b", 20, strict=False) == [(4, 4, 3)]
    assert take(partition, "b", 10, strict=False) == [(20, 29, 1)]


def test_released_runs_are_handed_out_whole() -> None:
    """Of a batch that was handed out before, whole runs come until there are as many as wanted."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 10)
    partition.acknowledge(0, "a", [Ack(0, 0, RELEASE), Ack(2, 5, RELEASE), Ack(8, 9, RELEASE)])
    assert take(partition, "b", 1, strict=False) == [(0, 0, 2)]
    assert take(partition, "b", 3, strict=False) == [(2, 5, 2)]
    assert take(partition, "b", 3, strict=False) == [(8, 9, 2), (10, 19, 1)]


def test_member_leaves() -> None:
    """What it has is taken back: counted, or not where it never reached it."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 2)
    partition.release(0, "a", is_counted=False)
    assert take(partition, "b", 2) == [(0, 1, 1)]
    partition.release(0, "b", is_counted=True)
    assert take(partition, "c", 2) == [(0, 1, 2)]


def test_log_start_moves() -> None:
    """Records that retention removed are done, whoever has them."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 10)
    partition.skip_to(5)
    partition.check()
    assert partition.acknowledge(0, "a", [Ack(3, 7, ACCEPT)]) is None
    assert partition.start_offset == 8
    partition.skip_to(500)
    partition.check()
    assert (partition.start_offset, partition.end_offset) == (500, 500)


def test_key_order() -> None:
    """A record waits until all earlier ones of its key are done; others overtake it."""
    partition = SharePartition(replace(RULES, in_key_order=True), 0)
    keys = {0: 7, 1: 7, 2: 8, 4: 7}
    spans = [Span(0, 4, keys=keys)]

    def acquire(now: int = 0) -> list[Acquired]:
        offset = partition.next_offset()
        assert offset is not None
        found = partition.acquire(now, "a", offset, spans, 10, is_strict=True)
        partition.check()
        return found

    assert acquire() == [(0, 0, 1), (2, 3, 1)]
    partition.acknowledge(0, "a", [Ack(0, 0, RELEASE, delay_ms=50)])
    assert acquire() == []
    partition.tick(50)
    assert acquire(50) == [(0, 0, 2)]
    partition.acknowledge(50, "a", [Ack(0, 0, ACCEPT)])
    assert acquire(50) == [(1, 1, 1)]
    partition.acknowledge(50, "a", [Ack(1, 1, REJECT)])
    assert acquire(50) == [(4, 4, 1)]


@dataclass
class Record:
    """A record of the naive model."""

    state: State = State.AVAILABLE
    count: int = 0
    until: int = 0
    member: str = ""


class Naive:
    """A partition as a list of records: no runs, no window."""

    def __init__(self, rules: Rules, size: int) -> None:
        self.rules = rules
        self.records = [Record() for _ in range(size)]
        self.next = 0

    def fail(self, one: Record, now: int, delay: int = 0) -> None:
        if one.count >= self.rules.delivery_limit:
            one.state, one.until, one.member = State.DONE, 0, ""
            if self.rules.has_letters:
                one.state = State.REJECTED
        else:
            wait = delay or self.rules.backoff(one.count)
            one.state, one.until, one.member = State.AVAILABLE, now + wait if wait else 0, ""

    def alone(self, offset: int) -> int | None:
        """How many records from there on are not to be mixed with others."""
        one, limit = self.records[offset], self.rules.delivery_limit
        if limit < 3 or one.count < limit / 2 or one.count < 2:
            return None
        same = list(itertools.takewhile(one.__eq__, self.records[offset:]))
        halvings = 99 if one.count == limit - 1 else one.count - max(2, math.ceil(limit / 2)) + 1
        return max(1, math.floor(len(same) / 2**halvings))

    def acquire(self, now: int, member: str, most: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        bound = None
        for offset, one in enumerate(self.records):
            if one.state is State.AVAILABLE and not one.until and bound is None:
                size = self.alone(offset) if offset < self.next else None
                bound = None if size is None else offset + (0 if found else size)
            if offset == bound:
                break
            if offset >= self.next:
                waits = sum(
                    r.state is not State.DONE and not (r.state is State.AVAILABLE and r.until)
                    for r in self.records[: self.next]
                )
            if len(found) == most or (offset >= self.next and waits >= self.rules.unsettled_max):
                break
            if one.state is State.AVAILABLE and not one.until:
                self.next = max(self.next, offset + 1)
                one.state, one.count, one.member = State.ACQUIRED, one.count + 1, member
                one.until = now + self.rules.lock_ms
                found.append((offset, one.count))
        return found

    def acknowledge(self, now: int, member: str, ack: Ack) -> bool:
        chosen = self.records[ack.first : ack.last + 1]
        if not all(one.state is State.ACQUIRED and one.member == member for one in chosen):
            return False
        for one, kind in zip(chosen, ack.types, strict=True):
            if kind == AckType.RENEW:
                one.until = now + self.rules.lock_ms
            elif kind == AckType.RELEASE:
                self.fail(one, now, ack.delay_ms)
            else:
                is_letter = kind == AckType.REJECT and self.rules.has_letters
                one.state = State.REJECTED if is_letter else State.DONE
                one.until, one.member = 0, ""
        return True

    def tick(self, now: int) -> None:
        for one in self.records:
            if 0 < one.until <= now:
                if one.state is State.ACQUIRED:
                    self.fail(one, now)
                else:
                    one.until = 0


@pytest.mark.parametrize("seed", range(rounds("PENSTOCK_SHARE_SEEDS", quick=4, full=12)))
def test_like_the_naive_model(seed: int) -> None:
    """Whatever members do, the state is that of a list of records, also after restarts."""
    rng = random.Random(seed)
    rules = Rules(
        lock_ms=rng.choice([5, 50]),
        delivery_limit=rng.randint(1, 8),
        unsettled_max=rng.choice([3, 8, 40]),
        backoff_ms=rng.choice([0, 3]),
        backoff_ms_max=10,
        has_letters=rng.random() < 0.5,
    )
    size, now = 120, 1
    naive, partition, copy = Naive(rules, size), SharePartition(rules, 0), SharePartition(rules, 0)
    for _ in range(300):
        now += rng.choice([0, 0, 1, 4])
        member = rng.choice("abc")
        match rng.randrange(8):
            case 0 | 1 | 2:
                most = rng.randint(1, 6)
                found = take(partition, member, most, now=now, end=size, batch=rng.randint(1, 9))
                flat = [
                    (o, one.deliveries) for one in found for o in range(one.first, one.last + 1)
                ]
                assert flat == naive.acquire(now, member, most)
            case 3 | 4 | 5:
                if partition.start_offset == partition.end_offset:
                    continue
                first = rng.randint(partition.start_offset, partition.end_offset - 1)
                held = [one for one in partition.runs if one.member == member]
                if held and rng.random() < 0.9:
                    first = rng.choice(held).first
                last = min(first + rng.randint(0, 3), size - 1)
                kinds = [rng.choice(list(AckType)) for _ in range(first, last + 1)]
                ack = Ack(first, last, kinds, delay_ms=rng.choice([0, 0, 7]))
                fault = partition.acknowledge(now, member, [ack])
                assert (fault is None) == naive.acknowledge(now, member, ack)
            case 6:
                partition.tick(now)
                naive.tick(now)
            case 7:
                partition.bury(partition.next_letter - rng.randint(0, 2))
                for offset, one in enumerate(naive.records):
                    if one.state is State.REJECTED:
                        one.state = partition.state_of(offset).state
        partition.check()
        change = partition.drain()
        if change is not None:
            copy.apply(change)
            copy.check()
        for offset, one in enumerate(naive.records):
            run = partition.state_of(offset)
            assert (run.state, run.member) == (one.state, one.member), offset
            if run.state in {State.AVAILABLE, State.ACQUIRED}:
                assert (run.count, run.until_ms) == (one.count, one.until)
            kept = copy.state_of(offset)
            expected = State.AVAILABLE if run.state is State.ACQUIRED else run.state
            assert kept.state is expected
            assert expected is not State.AVAILABLE or kept.count == run.count
        assert copy.letters(999) == partition.letters(999)


def test_hole_in_the_journal_is_available() -> None:
    """Records that a journal says nothing of were never handed out."""
    partition = SharePartition(RULES, 0)
    partition.drain()
    take(partition, "a", 4)
    partition.drain()  # lost
    take(partition, "a", 2)
    change = partition.drain()
    assert change is not None
    copy = SharePartition(RULES, 0)
    copy.apply(change)
    copy.check()
    assert list(copy.runs) == [
        Run(0, 3, State.AVAILABLE),
        Run(4, 5, State.AVAILABLE, 1),
    ]


def test_letters_are_numbered_anew() -> None:
    """Where numbers are missing, the letters that are due get new ones without gaps, in order."""
    partition = SharePartition(replace(RULES, has_letters=True), 0)
    take(partition, "a", 4)
    partition.acknowledge(0, "a", [Ack(3, 3, REJECT), Ack(0, 1, REJECT)])
    change = partition.drain()
    assert change is not None
    runs = [one for one in change.runs if one.first != 3]  # as if a power failure had taken it
    copy = SharePartition(replace(RULES, has_letters=True), 0)
    copy.apply(change._replace(runs=runs))
    assert [(one.number, one.offset) for one in copy.letters(9)] == [(1, 0), (2, 1)]
    copy.number_letters(1)
    copy.check()
    assert copy.next_letter == 3


def test_log_lost_its_end() -> None:
    """Offsets that the log gives out anew are new to the group, too."""
    partition = SharePartition(RULES, 0)
    take(partition, "a", 10)
    partition.acknowledge(0, "a", [Ack(6, 9, ACCEPT)])
    partition.cut_end(8)
    partition.check()
    assert (partition.start_offset, partition.end_offset) == (0, 8)
    partition.cut_end(0)
    partition.check()
    assert partition.end_offset == 0
