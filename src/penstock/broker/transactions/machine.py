"""Transactions: a pure state machine per transactional id. Time and ids come in, changes go out.

    EMPTY, COMPLETE_* -> ONGOING        a partition or a group's offsets are added
    ONGOING -> PREPARE_*                the producer ends it; its timeout or a new instance aborts it
    PREPARE_* -> COMPLETE_*             every partition has its marker
    COMPLETE_* -> PREPARE_ABORT         a version 2 producer aborts what it never began

A method answers with a `Change` where the state must change. The caller writes it to the journal
(`record_of`), calls `begin`, then, once it is as durable as `Change.is_commit_point` asks,
`complete`. In between, requests for the same id are answered that they should retry.

Invariants (see `check`): a producer id belongs to one transactional id; only ONGOING and PREPARE_*
have partitions; a prepared transaction's outcome never changes, and it always ends.
A change that is a commit point (PREPARE_*, a new epoch) is durable before any client sees it. So a
fenced producer stays fenced, and a transaction that was reported as committed is committed.

Sources: Kafka's TransactionCoordinator and TransactionMetadata; KIP-98 (transactions), KIP-360
(epoch bump), KIP-890 (version 2: an epoch per transaction, partitions added by Produce).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.wire.protocol import ErrorCode

__all__ = [
    "NO_EPOCH",
    "NO_ID",
    "OFFSETS",
    "Answer",
    "Change",
    "Place",
    "State",
    "Transaction",
    "Transactions",
]

TIMEOUT_MS_MAX: Final = 15 * 60 * 1000
"""Longest transaction timeout, Kafka's transaction.max.timeout.ms."""
EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""An id that began nothing for so long is forgotten, Kafka's transactional.id.expiration.ms."""
IDS_MAX: Final = 50_000
"""Most transactional ids; each takes about 1 KB."""
EPOCH_LAST: Final = (1 << 15) - 2
"""From this epoch on a producer gets a new id: one more must be left to fence it."""
NO_ID: Final = -1
NO_EPOCH: Final = -1

Place = tuple[str, int]
"""Where a marker goes: a topic's partition, or `OFFSETS`."""
OFFSETS: Final[Place] = ("", -1)
"""The place of the offsets that a transaction commits, whatever their groups."""


class State(enum.Enum):
    """Where a transaction stands; values are Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is known, but not everywhere."""
        return self in {State.PREPARE_COMMIT, State.PREPARE_ABORT}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its present or last transaction.

    Attributes:
        id: the transactional id.
        producer_id: of the producer that holds it.
        epoch: the producer's epoch; lower ones are fenced.
        last_epoch: the epoch before the last bump, whose request may be repeated; or `NO_EPOCH`.
        previous_producer_id: the producer id before the epochs ran out; or `NO_ID`.
        next_producer_id: the one to continue with after this transaction; or `NO_ID`.
        timeout_ms: how long a transaction may take.
        state: where it stands.
        serial: number of the present or last transaction, over all ids.
        started_ms: when that began.
        updated_ms: when this was last changed.
        places: the partitions that take part, and `OFFSETS`.
        groups: whose offsets it commits.
    """

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    state: State = State.EMPTY
    serial: int = 0
    started_ms: int = -1
    places: frozenset[Place] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch that its producer continues with."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.epoch

    @property
    def is_commit(self) -> bool:
        """Whether a prepared or complete one is committed."""
        return self.state in {State.PREPARE_COMMIT, State.COMPLETE_COMMIT}

    def is_retry(self, producer_id: int, epoch: int) -> bool:
        """Whether a request comes from before the last bump, as one that is repeated does."""
        if producer_id == self.producer_id:
            return self.last_epoch != NO_EPOCH and epoch == self.last_epoch == self.epoch - 1
        return producer_id == self.previous_producer_id and epoch == self.last_epoch


@dataclass(frozen=True, slots=True)
class Change:
    """A step of one transactional id; `after` is None where it is forgotten."""

    before: Transaction | None
    after: Transaction | None

    @property
    def id(self) -> str:
        """The transactional id."""
        one = self.after or self.before
        assert one is not None
        return one.id

    @property
    def is_commit_point(self) -> bool:
        """Whether it must be durable before it counts; partitions that are added can be found
        again in the partitions themselves.
        """
        return self.after is not None and self.after.state is not State.ONGOING


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, once its change (if any) has been carried out."""

    code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH
    change: Change | None = None


class Transactions:
    """The coordinator of all transactional ids.

    Args:
        new_producer_id: gives out an id that was never given out before; may raise OSError.
        timeout_ms_max: longest timeout that a producer may ask for.
        expiry_ms: how long an idle id is kept.
    """

    def __init__(
        self,
        new_producer_id: Callable[[], int],
        *,
        timeout_ms_max: int = TIMEOUT_MS_MAX,
        expiry_ms: int = EXPIRY_MS,
    ) -> None:
        self._new_producer_id = new_producer_id
        self._timeout_ms_max = timeout_ms_max
        self._expiry_ms = expiry_ms
        self._known: dict[str, Transaction] = {}
        self._owners: dict[int, str] = {}
        self._pending: dict[str, Change] = {}
        self._ongoing: set[str] = set()
        self._unmarked: dict[str, set[Place]] = {}
        self.next_serial = 1

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, transactional_id: str) -> Transaction | None:
        """What is known of an id."""
        return self._known.get(transactional_id)

    @property
    def is_busy(self) -> bool:
        """Whether a change is in the journal that doesn't count yet."""
        return bool(self._pending)

    def pending(self, transactional_id: str) -> Change | None:
        """The change of an id that is in the journal and doesn't count yet."""
        return self._pending.get(transactional_id)

    @property
    def ongoing(self) -> int:
        """How many transactions are open."""
        return len(self._ongoing)

    def owner_of(self, producer_id: int) -> Transaction | None:
        """The transactional id that a producer id belongs to."""
        return self._known.get(self._owners.get(producer_id, ""))

    # -- requests ----------------------------------------------------------------------------------

    def init(
        self, now_ms: int, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> Answer:
        """A producer takes an id over: the previous producer is fenced, and its open transaction is
        aborted.

        Args:
            now_ms: the time.
            transactional_id: which.
            timeout_ms: how long its transactions may take.
            expected: the producer id and epoch of a producer that wants a new epoch for itself.
        """
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._timeout_ms_max:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self._known.get(transactional_id)
        if transactional_id in self._pending:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known is None:
            return self._init_new(now_ms, transactional_id, timeout_ms)
        if expected and expected[0] not in {known.producer_id, known.previous_producer_id}:
            return Answer(ErrorCode.PRODUCER_FENCED)
        match known.state:
            case State.PREPARE_COMMIT | State.PREPARE_ABORT:
                return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
            case State.ONGOING:
                fence = self._fence(now_ms, known)
                return Answer(ErrorCode.CONCURRENT_TRANSACTIONS, change=fence)
            case State.EMPTY | State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
                return self._init_known(now_ms, known, timeout_ms, expected)

    def _init_new(self, now_ms: int, transactional_id: str, timeout_ms: int) -> Answer:
        if len(self._known) >= IDS_MAX:
            return Answer(ErrorCode.POLICY_VIOLATION)
        after = Transaction(transactional_id, self._new_producer_id(), 0, timeout_ms, now_ms)
        return Answer(ErrorCode.NONE, *after.identity, Change(None, after))

    def _init_known(
        self, now_ms: int, known: Transaction, timeout_ms: int, expected: tuple[int, int] | None
    ) -> Answer:
        if expected is not None and expected != (known.producer_id, known.epoch):
            if not known.is_retry(*expected):
                return Answer(ErrorCode.PRODUCER_FENCED)
            after = known  # it has its answer, or the coordinator bumped its epoch
        elif known.epoch >= EPOCH_LAST:
            after = replace(
                known,
                producer_id=self._new_producer_id(),
                epoch=0,
                previous_producer_id=known.producer_id,
                last_epoch=known.epoch if expected is not None else NO_EPOCH,
            )
        else:
            last_epoch = known.epoch if expected is not None else NO_EPOCH
            after = replace(known, epoch=known.epoch + 1, last_epoch=last_epoch)
        after = replace(after, state=State.EMPTY, timeout_ms=timeout_ms, updated_ms=now_ms)
        return Answer(ErrorCode.NONE, *after.identity, Change(known, after))

    def _fault(self, transactional_id: str, producer_id: int, epoch: int) -> ErrorCode | None:
        """Why a producer may not continue with its transaction; None if it may."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        known = self._known.get(transactional_id)
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return ErrorCode.PRODUCER_FENCED
        if transactional_id in self._pending or known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return None

    def add(
        self,
        now_ms: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        places: Collection[Place] = (),
        groups: Collection[str] = (),
    ) -> Answer:
        """Partitions, or groups' offsets, become part of the transaction; the first begin it."""
        fault = self._fault(transactional_id, producer_id, epoch)
        if fault is not None:
            return Answer(fault)
        known = self._known[transactional_id]
        wanted = {*places, *((OFFSETS,) if groups else ())}
        if known.state is State.ONGOING:
            if known.places.issuperset(wanted) and known.groups.issuperset(groups):
                return Answer()
            after = replace(
                known,
                places=known.places.union(wanted),
                groups=known.groups.union(groups),
                updated_ms=now_ms,
            )
            return Answer(change=Change(known, after))
        after = replace(
            known,
            state=State.ONGOING,
            serial=self.next_serial,
            started_ms=now_ms,
            updated_ms=now_ms,
            places=frozenset(wanted),
            groups=frozenset(groups),
        )
        self.next_serial += 1
        return Answer(change=Change(known, after))

    def fault_of(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        place: Place | None = None,
        group: str | None = None,
    ) -> ErrorCode | None:
        """Why something is not part of the producer's present transaction; None if it is."""
        fault = self._fault(transactional_id, producer_id, epoch)
        if fault is not None:
            return fault
        known = self._known[transactional_id]
        is_in = known.state is State.ONGOING and (
            (place is None or place in known.places) and (group is None or group in known.groups)
        )
        return None if is_in else ErrorCode.INVALID_TXN_STATE

    def end(
        self,
        now_ms: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        bumps: bool,
    ) -> Answer:
        """The producer commits or aborts.

        Args:
            now_ms: the time.
            transactional_id: which.
            producer_id: of the producer.
            epoch: of the producer.
            commit: or abort.
            bumps: whether the producer takes a new epoch with each transaction (version 2). A
                request with the epoch before is then the repetition of one that was carried out.
        """
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        known = self._known.get(transactional_id)
        if known is None:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = bumps and known.is_retry(producer_id, epoch)
        if producer_id != known.producer_id and not is_retry:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch != known.epoch and not is_retry:
            return Answer(ErrorCode.PRODUCER_FENCED)
        if transactional_id in self._pending:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        match known.state:
            case State.ONGOING:
                if is_retry:
                    return Answer(ErrorCode.PRODUCER_FENCED)
                return self._end(now_ms, known, commit=commit, bumps=bumps)
            case State.PREPARE_COMMIT | State.PREPARE_ABORT:
                is_same = known.is_commit is commit
                code = ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
                return Answer(code)
            case State.EMPTY | State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
                is_ended = known.state is not State.EMPTY and known.is_commit is commit
                if is_ended and (is_retry or not bumps):
                    return Answer(ErrorCode.NONE, *known.identity)
                if commit or not bumps or is_retry:
                    return Answer(ErrorCode.INVALID_TXN_STATE)
                self.next_serial += 1
                empty = replace(known, serial=self.next_serial - 1, started_ms=-1)
                return self._end(now_ms, empty, commit=False, bumps=True)

    def _end(self, now_ms: int, known: Transaction, *, commit: bool, bumps: bool) -> Answer:
        before = self._known[known.id]
        state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        after = replace(known, state=state, updated_ms=now_ms)
        if bumps:
            next_id = self._new_producer_id() if known.epoch >= EPOCH_LAST else NO_ID
            after = replace(
                after, epoch=known.epoch + 1, last_epoch=known.epoch, next_producer_id=next_id
            )
        return Answer(ErrorCode.NONE, *after.identity, Change(before, after))

    def _fence(self, now_ms: int, known: Transaction) -> Change:
        """Aborts a transaction against its producer's will: under an epoch that no producer has."""
        assert known.state is State.ONGOING
        after = replace(
            known,
            state=State.PREPARE_ABORT,
            epoch=known.epoch + 1,
            last_epoch=known.epoch,
            updated_ms=now_ms,
        )
        return Change(known, after)

    # -- time --------------------------------------------------------------------------------------

    def overdue(self, now_ms: int) -> list[Change]:
        """Aborts of the transactions whose time is over."""
        late = [self._known[one] for one in sorted(self._ongoing) if one not in self._pending]
        return [
            self._fence(now_ms, one) for one in late if now_ms - one.started_ms > one.timeout_ms
        ]

    def expired(self, now_ms: int) -> list[Change]:
        """Ids to forget: they have done nothing for long, and nothing of them is open."""
        return [
            Change(one, None)
            for one in self._known.values()
            if now_ms - one.updated_ms > self._expiry_ms
            and one.id not in self._pending
            and one.state is not State.ONGOING
            and not one.state.is_prepared
        ]

    # -- changes -----------------------------------------------------------------------------------

    def begin(self, change: Change) -> None:
        """A change is in the journal, on its way to become durable."""
        assert change.id not in self._pending
        assert self._known.get(change.id) == change.before
        self._pending[change.id] = change

    def abort_instead(self, change: Change) -> Change:
        """A commit on its way that can't count becomes an abort."""
        assert self._pending[change.id] is change
        assert change.after is not None
        assert change.after.state is State.PREPARE_COMMIT
        instead = Change(change.before, replace(change.after, state=State.PREPARE_ABORT))
        self._pending[change.id] = instead
        return instead

    def complete(self, change: Change) -> None:
        """A change counts from now on."""
        assert self._pending[change.id] is change
        del self._pending[change.id]
        self._set(change.before, change.after)
        after = change.after
        if after is not None and after.state.is_prepared:
            self._unmarked[after.id] = set(after.places)
            self._finish_if_marked(after)

    def _set(self, before: Transaction | None, after: Transaction | None) -> None:
        if before is not None:
            self._owners.pop(before.producer_id, None)
            self._ongoing.discard(before.id)
        if after is None:
            assert before is not None
            del self._known[before.id]
            return
        self._known[after.id] = after
        self._owners[after.producer_id] = after.id
        if after.state is State.ONGOING:
            self._ongoing.add(after.id)

    def unmarked(self) -> dict[int, set[Place]]:
        """The markers that prepared transactions still need, by their serial."""
        return {self._known[one].serial: set(places) for one, places in self._unmarked.items()}

    def marked(self, transactional_id: str, serial: int, place: Place) -> None:
        """A marker is written; the last one completes its transaction. May be said twice."""
        known = self._known.get(transactional_id)
        if known is not None and known.serial == serial and transactional_id in self._unmarked:
            self._unmarked[transactional_id].discard(place)
            self._finish_if_marked(known)

    def _finish_if_marked(self, known: Transaction) -> None:
        if self._unmarked[known.id]:
            return
        del self._unmarked[known.id]
        self._set(known, completed(known))

    # -- after a restart ---------------------------------------------------------------------------

    def restore(
        self, transactions: Collection[Transaction], left: Mapping[int, set[Place]], serial: int
    ) -> None:
        """Takes over the contents of a journal.

        Args:
            transactions: one per transactional id.
            left: by the serial of a prepared transaction, the markers that it still needs.
            serial: the greatest that was ever used.
        """
        for one in transactions:
            self._set(None, one)
            if one.state.is_prepared:
                self._unmarked[one.id] = set(left.get(one.serial, ()) if one.places else ())
                self._finish_if_marked(one)
        self.next_serial = serial + 1

    def resume(
        self,
        now_ms: int,
        producer_id: int,
        epoch: int,
        *,
        place: Place,
        groups: Collection[str] = (),
        serial: int | None = None,
    ) -> bool:
        """Something was found open of a producer: it is part of its transaction again.

        Args:
            now_ms: the time.
            producer_id: whose.
            epoch: under which it was written.
            place: where.
            groups: the groups whose offsets were found.
            serial: of the transaction, where it is known.

        Returns:
            False where it can't be: then it is to be aborted.
        """
        known = self.owner_of(producer_id)
        if known is None or known.epoch != epoch or known.state.is_prepared:
            return False
        is_open = known.state is State.ONGOING
        if is_open and serial not in {None, known.serial}:
            return False
        after = replace(
            known,
            state=State.ONGOING,
            places=(known.places if is_open else frozenset()) | {place},
            groups=(known.groups if is_open else frozenset()).union(groups),
        )
        if not is_open:
            serial = self.next_serial if serial is None else serial
            after = replace(after, serial=serial, started_ms=now_ms, updated_ms=now_ms)
            self.next_serial = max(self.next_serial, serial + 1)
        self._set(known, after)
        return True

    def check(self) -> None:
        """Asserts all invariants."""
        assert set(self._owners.values()) == set(self._known)
        assert len(self._owners) == len(self._known)
        for one in self._known.values():
            assert self._owners[one.producer_id] == one.id
            assert 0 <= one.epoch <= EPOCH_LAST + 1
            assert one.serial < self.next_serial
            assert (one.id in self._ongoing) is (one.state is State.ONGOING)
            assert (one.id in self._unmarked) is one.state.is_prepared
            assert not one.places or one.state is State.ONGOING or one.state.is_prepared
            assert (OFFSETS in one.places) is bool(one.groups)
            assert one.places.issuperset(self._unmarked.get(one.id, ()))
            assert one.state is not State.ONGOING or one.places
        for change in self._pending.values():
            assert self._known.get(change.id) == change.before


def completed(prepared: Transaction) -> Transaction:
    """A prepared transaction with all its markers; its producer may have a new id from now on."""
    assert prepared.state.is_prepared
    state = State.COMPLETE_COMMIT if prepared.is_commit else State.COMPLETE_ABORT
    after = replace(prepared, state=state, places=frozenset(), groups=frozenset())
    if prepared.next_producer_id == NO_ID:
        return after
    return replace(
        after,
        producer_id=prepared.next_producer_id,
        epoch=0,
        previous_producer_id=prepared.producer_id,
        next_producer_id=NO_ID,
    )
