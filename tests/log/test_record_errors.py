"""Which records of a refused batch are at fault, and what a log makes of a batch's times.

The codes and indices are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct

import pytest

from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import AppendError
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches
from penstock.wire.checksum import crc32c
from penstock.wire.protocol import ErrorCode

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
APPEND_TIME = 8
BOUND = LogConfig(timestamp_before_max_ms=HOUR)
COMPACTED = LogConfig(cleanup_policy="compact")
STAMPED = LogConfig(append_time=True)

codecs = pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])


def batch(*times_ms: int, codec: str = "none", keys: str = "", attributes: int = 0) -> bytearray:
    """Records of those times; those without a key have a `-` in `keys`."""
    keys = keys or "k" * len(times_ms)
    records = [(None if key == "-" else b"key", b"value") for key in keys]
    return batches.build(records, timestamps_ms=times_ms, codec=codec, attributes=attributes)


def sealed(one: bytearray, max_timestamp: int) -> bytearray:
    """The batch with another greatest time in its header, and the checksum that fits."""
    struct.pack_into(">q", one, 35, max_timestamp)
    struct.pack_into(">I", one, 17, crc32c(memoryview(one)[21:]))
    return one


def log_of(config: LogConfig) -> Partition:
    """An empty log."""
    return Partition(MemoryFiles(), "p", config, NOW)


def refused(config: LogConfig, one: bytearray) -> tuple[ErrorCode, list[int]]:
    """The refusal's code and the records that it names."""
    log = log_of(config)
    with pytest.raises(AppendError) as caught:
        log.append(one, NOW)
    assert (log.end_offset, log.size) == (0, 0)
    assert all(error.message for error in caught.value.records)
    return caught.value.code, [error.batch_index for error in caught.value.records]


def stored(config: LogConfig, one: bytearray) -> tuple[bool, int, list[int]]:
    """What is in the log of an accepted batch: whether its times are the broker's, the greatest that its
    header names, each record's.
    """
    log = log_of(config)
    assert log.append(one, NOW).base_offset == 0
    data = bytes(log.read(0, 1 << 20))
    ((at, header),) = batches.iterate(data)
    assert batches.checksum_matches(data, at, header)
    times = [record.timestamp_ms for record in batches.records(data, at, header)]
    return header.is_append_time, header.max_timestamp, times


@codecs
def test_each_record_without_a_key_is_named(codec: str) -> None:
    """In a compacted topic, also in one with the broker's times."""
    keyless = batch(NOW, NOW, NOW, NOW, keys="k--k", codec=codec)
    assert refused(COMPACTED, bytearray(keyless)) == (ErrorCode.INVALID_RECORD, [1, 2])
    both = LogConfig(cleanup_policy="compact,delete", append_time=True)
    assert refused(both, bytearray(keyless)) == (ErrorCode.INVALID_RECORD, [1, 2])
    assert stored(LogConfig(), keyless)[2] == [NOW] * 4


@codecs
def test_each_record_that_is_too_new_is_named(codec: str) -> None:
    """Beyond message.timestamp.after.max.ms."""
    one = batch(NOW, NOW + HOUR + 1, NOW + HOUR, NOW + DAY, codec=codec)
    assert refused(LogConfig(), one) == (ErrorCode.INVALID_TIMESTAMP, [1, 3])


@codecs
def test_each_record_that_is_too_old_is_named(codec: str) -> None:
    """Also in the middle of a batch, where the header doesn't show it."""
    one = batch(NOW, NOW - HOUR - 1, NOW - HOUR, NOW, codec=codec)
    assert refused(BOUND, bytearray(one)) == (ErrorCode.INVALID_TIMESTAMP, [1])
    assert stored(LogConfig(), bytearray(one))[1] == NOW
    assert stored(LogConfig(append_time=True, timestamp_before_max_ms=HOUR), one)[1] == NOW


@codecs
def test_a_record_without_a_time_is_accepted(codec: str) -> None:
    """However the times are bounded; a negative time but -1 is one that is too old."""
    assert stored(BOUND, batch(-1, -1, codec=codec)) == (False, -1, [-1, -1])
    assert stored(BOUND, batch(NOW, -1, NOW, codec=codec)) == (False, NOW, [NOW, -1, NOW])
    assert refused(BOUND, batch(-1, -2, codec=codec)) == (ErrorCode.INVALID_TIMESTAMP, [1])


@codecs
def test_a_wrong_time_outweighs_a_missing_key(codec: str) -> None:
    """All records at fault are named; of one that has both faults it is the key."""
    config = LogConfig(cleanup_policy="compact", timestamp_before_max_ms=HOUR)
    both = batch(NOW, NOW, NOW - DAY, NOW - DAY, keys="k-k-", codec=codec)
    assert refused(config, both) == (ErrorCode.INVALID_TIMESTAMP, [1, 2, 3])
    one = batch(NOW, NOW - DAY, keys="k-", codec=codec)
    assert refused(config, one) == (ErrorCode.INVALID_RECORD, [1])


@codecs
def test_producers_may_not_stamp_where_the_broker_does(codec: str) -> None:
    """Every record of a batch that says LogAppendTime is at fault in a topic of that kind."""
    one = batch(NOW, NOW + 1, NOW + 2, codec=codec, attributes=APPEND_TIME)
    assert refused(STAMPED, one) == (ErrorCode.INVALID_TIMESTAMP, [0, 1, 2])
    keyless = batch(NOW, NOW, keys="-k", codec=codec, attributes=APPEND_TIME)
    both = LogConfig(cleanup_policy="compact", append_time=True)
    assert refused(both, keyless) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


@codecs
def test_elsewhere_their_stamp_is_taken_off(codec: str) -> None:
    """The header's greatest time is judged for all records, whose own times are kept."""

    def one(max_timestamp: int) -> bytearray:
        made = batch(NOW - DAY, NOW, codec=codec, attributes=APPEND_TIME)
        return sealed(made, max_timestamp)

    for config in (LogConfig(), BOUND, COMPACTED):
        assert stored(config, one(NOW + 9)) == (False, NOW + 9, [NOW - DAY, NOW])
    assert refused(BOUND, one(NOW - DAY)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])
    assert refused(LogConfig(), one(NOW + DAY)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])
    assert refused(LogConfig(), one(-1)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


@codecs
def test_a_header_that_exaggerates_is_corrected(codec: str) -> None:
    """Where it says more than its records, those decide; and where they are looked at anyway."""
    config = LogConfig()
    assert stored(config, sealed(batch(NOW, NOW + 5, codec=codec), NOW + DAY))[1] == NOW + 5
    assert stored(COMPACTED, sealed(batch(NOW, NOW + 5, codec=codec), NOW))[1] == NOW + 5
    late = sealed(batch(NOW, NOW + DAY, codec=codec), NOW)
    assert refused(COMPACTED, late) == (ErrorCode.INVALID_TIMESTAMP, [1])


def test_records_that_are_damaged_are_refused() -> None:
    """A batch that is not the records it says it is; of compressed ones also the codec is asked."""
    for wrong in (batch(NOW, NOW) + b"\0\0", batch(NOW, NOW)[:-1]):
        struct.pack_into(">i", wrong, 8, len(wrong) - 12)
        assert refused(COMPACTED, sealed(wrong, NOW)) == (ErrorCode.INVALID_RECORD, [])
    wrong = batch(NOW, codec="zstd")
    wrong[61:] = bytes(len(wrong) - 61)
    assert refused(COMPACTED, sealed(wrong, NOW)) == (ErrorCode.CORRUPT_MESSAGE, [])


def test_messages_say_what_was_expected() -> None:
    """Each record's, and the batch's, which names the first and how many there are."""
    with pytest.raises(AppendError) as caught:
        log_of(BOUND).append(batch(NOW, NOW - DAY, NOW - DAY), NOW)
    span = f"from {NOW - HOUR} to {NOW + HOUR} ms"
    message = f"expected a timestamp {span}; found {NOW - DAY}"
    assert [error.message for error in caught.value.records] == [message] * 2
    assert str(caught.value) == (
        f"{message}; 2 of the batch's 3 records are at fault, the first is number 1"
    )
