"""The words that a share partition's state machine speaks: states, runs, acknowledgements, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.wire.protocol import ErrorCode

__all__ = [
    "Ack",
    "AckType",
    "Acquired",
    "Change",
    "Counts",
    "Letter",
    "Rules",
    "Run",
    "Span",
    "State",
]


DELIVERIES_MIN: Final = 2
"""Records that are delivered no more often than this are not handed out alone."""


class State(IntEnum):
    """What became of a record; the numbers are in the journal."""

    AVAILABLE = 0
    ACQUIRED = 1
    REJECTED = 3
    DONE = 4


class AckType(IntEnum):
    """A member's acknowledgement of a record; the numbers are the protocol's."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class Rules:
    """What the group's settings say.

    Attributes:
        lock_ms: how long an acquired record is its member's.
        delivery_limit: most deliveries of a record.
        unsettled_max: most unsettled records that don't wait for their time.
        backoff_ms: how long a released record waits after its first delivery; doubled with each
            further one.
        backoff_ms_max: the longest such wait.
        has_letters: whether a record that can't be delivered becomes a dead letter.
        may_renew: whether a lock can be renewed.
        in_key_order: whether a record waits until all earlier ones of its key are done.
    """

    lock_ms: int = 30_000
    delivery_limit: int = 5
    unsettled_max: int = 2_000
    backoff_ms: int = 0
    backoff_ms_max: int = 60_000
    has_letters: bool = False
    may_renew: bool = True
    in_key_order: bool = False

    def backoff(self, count: int) -> int:
        """How long a record waits after its delivery number `count`."""
        return min(self.backoff_ms << min(max(count - 1, 0), 30), self.backoff_ms_max)

    def portion(self, count: int, size: int) -> int | None:
        """How many of `size` records that were delivered `count` times are handed out together, and
        nothing else with them; None: as many as are wanted.

        A record that brings down each of its members counts as a failure for all that it was handed
        out with. So that they don't become dead letters with it, what has failed half as often as
        it may is handed out by halves, quarters, ... and for the last time one by one, as Kafka
        does since 4.2.
        """
        if self.delivery_limit <= DELIVERIES_MIN or count >= self.delivery_limit:
            return None
        if count == self.delivery_limit - 1:
            return 1
        failures = max(DELIVERIES_MIN, (self.delivery_limit + 1) // 2)
        return max(1, size >> (count - failures + 1)) if count >= failures else None


@dataclass(frozen=True, slots=True)
class Run:
    """Records with consecutive offsets and the same state.

    Attributes:
        first: the first offset.
        last: the last offset.
        state: the state.
        count: deliveries so far.
        until_ms: of an acquired run, when the lock ends; of an available one, before when it is not
            handed out (0: now).
        member: who has acquired it.
        letter: of a rejected run, the first record's number among the dead letters.
        reason: of a rejected run, why.
    """

    first: int
    last: int
    state: State
    count: int = 0
    until_ms: int = 0
    member: str = ""
    letter: int = -1
    reason: str = ""

    @property
    def size(self) -> int:
        """The number of records."""
        return self.last - self.first + 1

    @property
    def is_ready(self) -> bool:
        """Whether the records can be handed out now."""
        return self.state is State.AVAILABLE and not self.until_ms

    def part(self, first: int, last: int) -> Run:
        """The run of some of the records."""
        if first == self.first and last == self.last:
            return self
        letter = self.letter + first - self.first if self.letter >= 0 else -1
        return Run(
            first, last, self.state, self.count, self.until_ms, self.member, letter, self.reason
        )

    def precedes(self, other: Run) -> bool:
        """Whether the two are one run."""
        if self.state is State.DONE or other.state is State.DONE:
            return self.state is other.state
        return (
            self.state is other.state
            and self.count == other.count
            and self.until_ms == other.until_ms
            and self.member == other.member
            and self.reason == other.reason
            and other.letter == (self.letter + self.size if self.letter >= 0 else -1)
        )

    def and_upto(self, last: int) -> Run:
        """The run together with the one that it precedes, which ends there."""
        return Run(
            self.first,
            last,
            self.state,
            self.count,
            self.until_ms,
            self.member,
            self.letter,
            self.reason,
        )


class Span(NamedTuple):
    """A batch of the log: its first and last offset, and whether its records are for members."""

    first: int
    last: int
    is_deliverable: bool = True
    keys: Mapping[int, int] = {}


class Acquired(NamedTuple):
    """Records that were handed out, all for the same time."""

    first: int
    last: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Ack:
    """A member's acknowledgement of some records: one type for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = 0
    reason: str = ""
    uncounted: bool = False

    def fault(self, rules: Rules) -> ErrorCode | None:
        """What makes this senseless, whatever the records' state."""
        size = self.last - self.first + 1
        if self.first < 0 or size <= 0 or len(self.types) not in {1, size}:
            return ErrorCode.INVALID_REQUEST
        if not all(AckType.GAP <= one <= AckType.RENEW for one in self.types):
            return ErrorCode.INVALID_REQUEST
        if AckType.RENEW in self.types and not rules.may_renew:
            return ErrorCode.INVALID_REQUEST
        return None


class Letter(NamedTuple):
    """A record that is to become a dead letter."""

    number: int
    offset: int
    deliveries: int
    reason: str


class Counts(NamedTuple):
    """Records of the window by what they wait for."""

    available: int
    delayed: int
    acquired: int
    rejected: int


class Change(NamedTuple):
    """What a journal must know: these runs are the window's, or (is_whole) all of it."""

    start_offset: int
    end_offset: int
    next_letter: int
    runs: list[Run]
    is_whole: bool = False
