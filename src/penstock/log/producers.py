"""What a partition remembers of idempotent producers, so that a retry is not stored twice.

Invariant: the state is a function of the batches in the log up to `next_offset`. It is therefore
rebuilt from any snapshot and the batches after it. Per producer the last five batches are kept (a
producer has at most five requests in flight), as in Kafka's ProducerStateManager (KIP-98, KIP-360).
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.errors import AppendError, Refusal
from penstock.wire.batches import Header

__all__ = ["Producers", "Stored"]

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


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_ms: int
    batches: deque[Stored] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._known: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def check(self, header: Header) -> Stored | None:
        """Whether a batch may follow; the stored batch if this one is a retry of it.

        Raises:
            AppendError: its epoch or its sequence does not follow.
        """
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise AppendError(
                Refusal.INVALID_RECORD,
                f"expected an epoch and a sequence from producer {header.producer_id}, found epoch "
                f"{header.producer_epoch} and sequence {header.base_sequence}",
            )
        known = self._known.get(header.producer_id)
        if known is None:
            return None
        if header.producer_epoch < known.epoch:
            raise AppendError(
                Refusal.INVALID_PRODUCER_EPOCH,
                f"expected epoch {known.epoch} or newer of producer {header.producer_id}, found "
                f"{header.producer_epoch}; a newer instance has taken over",
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, 0)
            return None
        return self._check_sequence(header, known)

    @staticmethod
    def _check_sequence(header: Header, known: _Producer) -> Stored | None:
        for stored in known.batches:
            if stored[:2] == (header.base_sequence, header.last_sequence):
                return stored
        last = known.batches[-1].last_sequence
        expected = (last + 1) % _SEQUENCES
        if header.base_sequence == expected:
            return None
        if (last - header.last_sequence) % _SEQUENCES < _SEQUENCES // 2:
            raise AppendError(
                Refusal.DUPLICATE_SEQUENCE_NUMBER,
                f"expected sequence {expected} of producer {header.producer_id}, found "
                f"{header.base_sequence}, which is stored already",
            )
        raise _out_of_order(header, expected)

    def record(self, header: Header, base_offset: int, now_ms: int) -> None:
        """Takes note of a batch that is now in the log."""
        known = self._known.pop(header.producer_id, None)
        if known is None or known.epoch != header.producer_epoch:
            known = _Producer(header.producer_epoch, now_ms)
            if len(self._known) >= PRODUCERS_MAX:
                del self._known[next(iter(self._known))]
        self._known[header.producer_id] = known  # the last in the dict is the last that wrote
        known.last_ms = now_ms
        known.batches.append(
            Stored(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta + 1,
                header.max_timestamp,
            )
        )

    def expire(self, now_ms: int) -> None:
        """Forgets those that wrote nothing for `EXPIRY_MS`."""
        for producer_id in [
            one for one, known in self._known.items() if known.last_ms < now_ms - EXPIRY_MS
        ]:
            del self._known[producer_id]

    def describe(self) -> list[tuple[int, int, int, int]]:
        """Per producer: id, epoch, last sequence, time of its last batch (ms)."""
        return [
            (producer_id, known.epoch, known.batches[-1].last_sequence, known.last_ms)
            for producer_id, known in self._known.items()
        ]

    def snapshot(self, next_offset: int) -> bytes:
        """The state as bytes, valid for a log that ends at `next_offset`."""
        body = json.dumps(
            {
                "next_offset": next_offset,
                "producers": [
                    [producer_id, known.epoch, known.last_ms, [list(one) for one in known.batches]]
                    for producer_id, known in self._known.items()
                ],
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
        state = cls()
        for producer_id, epoch, last_ms, batches in content["producers"]:
            stored = deque((Stored(*one) for one in batches), maxlen=BATCHES_KEPT)
            state._known[producer_id] = _Producer(epoch, last_ms, stored)
        return state, content["next_offset"]

    def check_invariants(self, end_offset: int) -> None:
        """Asserts what must hold of the state of a log that ends at `end_offset`."""
        assert len(self._known) <= PRODUCERS_MAX
        for known in self._known.values():
            assert 0 < len(known.batches) <= BATCHES_KEPT
            assert all(one.next_offset <= end_offset for one in known.batches)


def _out_of_order(header: Header, expected: int) -> AppendError:
    return AppendError(
        Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"expected sequence {expected} of producer {header.producer_id}, found "
        f"{header.base_sequence}; batches before it are missing",
    )
