"""What a partition remembers of producers: their last batches, so that a retry is not stored twice,
and their open transactions.

Invariant: the state is a function of the batches in the log up to `next_offset`. It is therefore
rebuilt from any snapshot and the batches after it. Per producer the last five batches are kept (a
producer has at most five requests in flight), as in Kafka's ProducerStateManager (KIP-98, KIP-360).
A transaction is open from a producer's first transactional batch on until its marker. Transactions
are remembered in the order in which they began, so the first is where stable records end.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.log.errors import AppendError
from penstock.wire.batches import Header
from penstock.wire.checksum import crc32c
from penstock.wire.protocol import ErrorCode

__all__ = ["ProducerState", "Producers", "Stored"]

BATCHES_KEPT: Final = 5
"""Batches remembered per producer: Kafka's max.in.flight.requests.per.connection for
idempotence."""
PRODUCERS_MAX: Final = 10_000
"""Producers remembered per partition; the one that was silent for longest goes first (about 5
MB)."""
EXPIRY_MS: Final = 30 * 24 * 3600 * 1000
"""A producer that wrote nothing for so long is forgotten (Kafka's producer.id.expiration.ms, a day there:
a pipeline that crashed on a Friday repeats its batch on Monday)."""
_SEQUENCES: Final = 1 << 31


class Stored(NamedTuple):
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int
    timestamp_ms: int


class ProducerState(NamedTuple):
    """What DescribeProducers reports of a producer; -1 where there is nothing to report."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_ms: int
    batches: deque[Stored] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    coordinator_epoch: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._known: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # producer id to its transaction's first offset, ascending

    def __len__(self) -> int:
        return len(self._known)

    def ids(self) -> Iterable[int]:
        """Every producer's id."""
        return self._known.keys()

    @property
    def first_open(self) -> int | None:
        """Where the earliest open transaction began; None if none is open."""
        return next(iter(self._open.values()), None)

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each producer's open transaction."""
        return dict(self._open)

    def open_since(self, producer_id: int) -> int | None:
        """The first offset of a producer's open transaction; None if it has none open."""
        return self._open.get(producer_id)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether that incarnation of the producer has a transaction open here."""
        known = self._known.get(producer_id)
        return producer_id in self._open and known is not None and known.epoch == epoch

    def check(self, header: Header) -> Stored | None:
        """Whether a batch may follow; the stored batch if this one is a retry of it.

        Raises:
            AppendError: its epoch or its sequence does not follow.
        """
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise AppendError(
                ErrorCode.INVALID_RECORD,
                f"expected an epoch and a sequence from producer {header.producer_id}; found epoch "
                f"{header.producer_epoch} and sequence {header.base_sequence}",
            )
        known = self._known.get(header.producer_id)
        if known is None:
            self._check_room(header)
            return None
        _check_epoch(header.producer_id, header.producer_epoch, known)
        is_newer = header.producer_epoch > known.epoch
        stored = None if is_newer else self._check_sequence(header, known)
        if stored is not None:
            return stored
        if is_newer and header.base_sequence != 0:
            raise _out_of_order(header, 0)
        if header.producer_id in self._open and not header.is_transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"expected a transactional batch, as producer {header.producer_id} has a "
                "transaction open; found another; end the transaction first",
            )
        return None

    def _check_room(self, header: Header) -> None:
        if header.is_transactional and len(self._open) >= PRODUCERS_MAX:
            raise AppendError(
                ErrorCode.POLICY_VIOLATION,
                f"expected at most {PRODUCERS_MAX} open transactions in a partition; end some",
            )

    @staticmethod
    def _check_sequence(header: Header, known: _Producer) -> Stored | None:
        last = known.last_sequence
        if last < 0:  # only a marker is known of this epoch
            if header.base_sequence != 0:
                raise _out_of_order(header, 0)
            return None
        expected = (last + 1) % _SEQUENCES
        if header.base_sequence == expected:
            return None
        for stored in known.batches:
            if stored[:2] == (header.base_sequence, header.last_sequence):
                return stored
        if (last - header.last_sequence) % _SEQUENCES < _SEQUENCES // 2:
            raise AppendError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"expected sequence {expected} of producer {header.producer_id}; found "
                f"{header.base_sequence}, which is stored already",
            )
        raise _out_of_order(header, expected)

    def record(self, header: Header, base_offset: int, now_ms: int) -> None:
        """Takes note of a batch that is now in the log."""
        known = self._touch(header.producer_id, header.producer_epoch, now_ms)
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)
        first, delta = header.base_sequence, header.last_offset_delta
        if first < 0:
            return
        last = (first + delta) % _SEQUENCES
        known.batches.append(
            Stored(first, last, base_offset, base_offset + delta + 1, header.max_timestamp)
        )

    def _touch(self, producer_id: int, epoch: int, now_ms: int) -> _Producer:
        """The producer, as the one that wrote last; a new epoch begins without batches."""
        known = self._known.pop(producer_id, None)
        if known is None or known.epoch != epoch:
            coordinator_epoch = -1 if known is None else known.coordinator_epoch
            known = _Producer(epoch, now_ms, coordinator_epoch=coordinator_epoch)
            if len(self._known) >= PRODUCERS_MAX:
                self._forget_one()
        self._known[producer_id] = known  # the last in the dict is the last that wrote
        known.last_ms = now_ms
        return known

    def _forget_one(self) -> None:
        """Makes room: the producer that was silent for longest goes, unless its transaction is
        open.
        """
        silent = next((one for one in self._known if one not in self._open), None)
        if silent is not None:
            del self._known[silent]

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Whether a marker may be written.

        Raises:
            AppendError: it comes from an older incarnation of the producer or the coordinator.
        """
        known = self._known.get(producer_id)
        if known is None:
            return
        _check_epoch(producer_id, producer_epoch, known)
        if coordinator_epoch < known.coordinator_epoch:
            raise AppendError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"expected coordinator epoch {known.coordinator_epoch} or newer for producer "
                f"{producer_id}; found {coordinator_epoch}",
            )

    def end(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, now_ms: int
    ) -> int | None:
        """Takes note of a marker. The first offset of the transaction that it ended, if there was
        one.
        """
        known = self._touch(producer_id, producer_epoch, now_ms)
        known.coordinator_epoch = coordinator_epoch
        return self._open.pop(producer_id, None)

    def close_others(self, open_ids: set[int]) -> None:
        """Only these producers have a transaction open; the others' markers can't be read."""
        for producer_id in self._open.keys() - open_ids:
            del self._open[producer_id]

    def expire(self, now_ms: int, expiry_ms: int = EXPIRY_MS) -> None:
        """Forgets those that wrote nothing for so long and have no transaction open."""
        for producer_id in [
            one
            for one, known in self._known.items()
            if known.last_ms < now_ms - expiry_ms and one not in self._open
        ]:
            del self._known[producer_id]

    def describe(self) -> list[ProducerState]:
        """Every producer, the one that wrote last at the end."""
        return [
            ProducerState(
                producer_id,
                known.epoch,
                known.last_sequence,
                known.last_ms,
                known.coordinator_epoch,
                self._open.get(producer_id, -1),
            )
            for producer_id, known in self._known.items()
        ]

    def last_batches(self) -> dict[int, tuple[int, int]]:
        """Each producer's epoch, and the base offset of its last batch in it; -1 for none."""
        return {
            one: (known.batches[-1].base_offset if known.batches else -1, known.epoch)
            for one, known in self._known.items()
        }

    def written_upto(self, producer_id: int) -> int:
        """The offset behind a producer's last batch in its epoch; 0 for none."""
        known = self._known.get(producer_id)
        return known.batches[-1].next_offset if known is not None and known.batches else 0

    def count_in_transaction(self, producer_id: int, epoch: int) -> int:
        """How many records a producer that takes an epoch for each transaction has in its open one."""
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch or producer_id not in self._open:
            return 0
        return (known.last_sequence + 1) % _SEQUENCES

    def snapshot(self, next_offset: int) -> bytes:
        """The state as bytes, valid for a log that ends at `next_offset`."""
        body = json.dumps(
            {
                "next_offset": next_offset,
                "producers": [
                    [
                        producer_id,
                        known.epoch,
                        known.last_ms,
                        [list(one) for one in known.batches],
                        known.coordinator_epoch,
                    ]
                    for producer_id, known in self._known.items()
                ],
                "open": list(self._open.items()),
            },
            separators=(",", ":"),
        ).encode()
        return b"%08x " % crc32c(body) + body

    @classmethod
    def restore(cls, data: bytes | None) -> tuple[Producers, int] | None:
        """The state in a snapshot and its offset; None where it is missing or damaged."""
        if data is None or data[:9] != b"%08x " % crc32c(data[9:]):
            return None
        content = json.loads(data[9:])
        if "open" not in content:  # written before transactions were tracked
            return None
        state = cls()
        for producer_id, epoch, last_ms, batches, coordinator_epoch in content["producers"]:
            stored = deque((Stored(*one) for one in batches), maxlen=BATCHES_KEPT)
            state._known[producer_id] = _Producer(epoch, last_ms, stored, coordinator_epoch)
        state._open = dict(content["open"])
        return state, content["next_offset"]

    def check_invariants(self, end_offset: int) -> None:
        """Asserts what must hold of the state of a log that ends at `end_offset`."""
        assert len(self._known) <= PRODUCERS_MAX + 1
        for known in self._known.values():
            assert len(known.batches) <= BATCHES_KEPT
            assert all(one.next_offset <= end_offset for one in known.batches)
        starts = list(self._open.values())
        assert starts == sorted(set(starts))
        assert all(start < end_offset for start in starts)
        assert self._open.keys() <= self._known.keys()


def _check_epoch(producer_id: int, epoch: int, known: _Producer) -> None:
    if epoch < known.epoch:
        raise AppendError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"expected epoch {known.epoch} or newer of producer {producer_id}; found {epoch}; "
            "a newer instance has taken over",
        )


def _out_of_order(header: Header, expected: int) -> AppendError:
    return AppendError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"expected sequence {expected} of producer {header.producer_id}; found "
        f"{header.base_sequence}; batches before it are missing",
    )
