from __future__ import annotations

import pytest

from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import AppendError
from penstock.log.partition import Partition
from penstock.log.producers import BATCHES_KEPT, EXPIRY_MS, Producers
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.protocol import ErrorCode

NOW = 1_700_000_000_000


def batch(sequence: int, count: int = 2, producer: int = 7, epoch: int = 0) -> bytearray:
    """A batch of an idempotent producer."""
    return batches.build(
        [(None, b"v")] * count,
        timestamps_ms=[NOW] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


@pytest.fixture
def log() -> Partition:
    """A partition with ten batches of producer 7: sequences 0 to 19."""
    log = Partition(MemoryFiles(), "p", LogConfig(), NOW)
    for n in range(10):
        log.append(batch(2 * n), NOW)
    return log


def refusal(log: Partition, one: bytearray) -> ErrorCode:
    """The code that a batch is refused with."""
    with pytest.raises(AppendError) as caught:
        log.append(one, NOW)
    return caught.value.code


def test_retry_gets_the_first_answer(log: Partition) -> None:
    """A retry of one of the last five batches is not stored, and answered with its offset."""
    for back in range(1, BATCHES_KEPT + 1):
        again = log.append(batch(20 - 2 * back), NOW)
        assert (again.base_offset, again.is_duplicate) == (20 - 2 * back, True)
    assert log.end_offset == 20


def test_old_retry_is_a_duplicate(log: Partition) -> None:
    """A batch that was stored longer ago is refused as a duplicate, even if it was cut anew."""
    assert refusal(log, batch(0)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refusal(log, batch(17, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_gap_is_out_of_order(log: Partition) -> None:
    """A batch that skips a sequence, or overlaps and goes beyond the last, is refused."""
    assert refusal(log, batch(21)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, batch(19)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(20), NOW).base_offset == 20


def test_epochs_only_rise(log: Partition) -> None:
    """A newer epoch begins at sequence 0; after that, the older one is fenced."""
    assert refusal(log, batch(20, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(batch(0, epoch=1), NOW)
    assert refusal(log, batch(20, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_unknown_producer_may_begin_anywhere(log: Partition) -> None:
    """A producer that the log doesn't know (any more) is taken at its word."""
    assert log.append(batch(1000, producer=8), NOW).base_offset == 20
    assert refusal(log, batch(-1, producer=9)) is ErrorCode.INVALID_RECORD


def test_sequences_wrap(log: Partition) -> None:
    """After the largest sequence comes 0."""
    log.append(batch((1 << 31) - 1, producer=8), NOW)
    assert log.append(batch(1, producer=8), NOW).base_offset == 22
    assert refusal(log, batch(0, 1, producer=8)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_state_survives_with_and_without_a_snapshot() -> None:
    """Producers are known after a crash, from the log alone or from a snapshot and what follows."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    for n in range(4):
        log.append(batch(2 * n), NOW)
        if n == 1:
            log.sync(checkpoint=True)
    for _ in range(2):
        again = Partition(files, "p", LogConfig(), NOW)
        assert again.append(batch(6), NOW).is_duplicate
        assert again.append(batch(0), NOW).is_duplicate
        files.delete("p/producers")


def test_snapshot_that_is_ahead_of_the_log_is_dropped() -> None:
    """When the log lost its end, only what is in it counts."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    log.append(batch(0), NOW)
    size = log.size
    log.append(batch(2), NOW)
    log.close()
    files.open(log.active.path).truncate(size)
    again = Partition(files, "p", LogConfig(), NOW)
    assert not again.append(batch(2), NOW).is_duplicate


def test_silent_producers_are_forgotten(log: Partition) -> None:
    """A producer that wrote nothing for a day is expired."""
    log.producers.expire(NOW + EXPIRY_MS)
    assert len(log.producers) == 1
    log.producers.expire(NOW + EXPIRY_MS + 1)
    assert len(log.producers) == 0


def test_recovery_does_not_take_old_events_for_a_silent_producer() -> None:
    """After a crash, a retry of a batch whose events are long past is still known."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), NOW)
    log.append(batch(0), NOW)
    log.append(batch(2), NOW)
    later = NOW + 2 * EXPIRY_MS
    again = Partition(files, "p", LogConfig(), later)
    again.producers.expire(later)
    assert again.append(batch(2), later).is_duplicate


def test_snapshot_round_trip(log: Partition) -> None:
    """A snapshot restores to the same state; a damaged one is refused."""
    data = log.producers.snapshot(20)
    restored = Producers.restore(data)
    assert restored is not None
    assert restored[1] == 20
    assert restored[0].snapshot(20) == data
    assert Producers.restore(data[:-1]) is None
    assert Producers.restore(None) is None
