"""Which batches a log takes: the checks of a produced batch before anything is written.

Only the header and the checksum are looked at, save where records must have keys (compacted topics),
where their least time is bounded (`message.timestamp.before.max.ms`), or where the header's greatest
time is out of range: there the records say which of them are at fault, and the header's time is made
theirs. Codes are Kafka's (LogValidator).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import CorruptError, LimitError
from penstock.log.errors import AppendError, RecordError
from penstock.wire import batches, inspection
from penstock.wire.batches import HEADER_BYTES, NO_PRODUCER, Header
from penstock.wire.codecs import CODECS
from penstock.wire.inspection import NO_TIMESTAMP, Inspected, Wanted
from penstock.wire.protocol import ErrorCode

__all__ = ["LogConfig", "recompressed", "validate"]

AS_PRODUCED: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"
"""What `compression.type` calls the codec `none`."""

_INT64_MAX: Final = (1 << 63) - 1
_INT64_MIN: Final = -(1 << 63)
_APPEND_TIME_BIT: Final = 0x08
_LENGTH_MIN_EVER: Final = 14
"""Least length of a message in any of Kafka's formats; less is no message."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's settings that concern its log; names are Kafka's, and so are defaults but for the index's
    interval and the delay of deletions. -1: no limit.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 16 << 10
    file_delete_delay_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 7 * 24 * 3600 * 1000
    max_message_bytes: int = (1 << 20) + 12
    append_time: bool = False
    timestamp_before_max_ms: int = (1 << 63) - 1
    timestamp_after_max_ms: int = 3600 * 1000
    remote_storage: bool = False
    remote_copy_disable: bool = False
    remote_delete_on_disable: bool = False
    local_retention_bytes: int = -2  # -2: as the whole log's
    local_retention_ms: int = -2
    takes_dead_letters: bool = False
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    compression_type: str = AS_PRODUCED
    gzip_level: int = -1  # -1: gzip's own default
    lz4_level: int = 9
    zstd_level: int = 3
    flush_messages: int = (1 << 63) - 1
    flush_ms: int = (1 << 63) - 1

    @property
    def recompresses(self) -> bool:
        """Whether batches are stored in the log's compression, not in the producer's."""
        return self.compression_type != AS_PRODUCED

    @property
    def compression_level(self) -> int | None:
        """The level of the compression that the log wants; None for the codec's default."""
        levels = {"gzip": self.gzip_level, "lz4": self.lz4_level, "zstd": self.zstd_level}
        level = levels.get(self.compression_type)
        return None if self.compression_type == "gzip" and level == -1 else level

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def looks_inside(self) -> bool:
        """Whether the records of each batch are looked at before it is appended."""
        return self.compacts or not (self.append_time or self.timestamp_before_max_ms == _INT64_MAX)

    @property
    def deletes(self) -> bool:
        """Whether retention removes old segments."""
        return "delete" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """The age at which a new segment is begun; what must be compacted must be closed before."""
        return (
            min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        )


def validate(batch: bytearray | memoryview, config: LogConfig, now_ms: int) -> Header:
    """The batch's header, if the batch may stand in a log with that configuration.

    Where its records are looked at, the header's greatest time and kind of times are corrected.

    Raises:
        AppendError: it may not, with the protocol's code, and the records at fault.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise AppendError(ErrorCode.INVALID_RECORD, f"expected a record batch; found {size} bytes")
    header = batches.parse(batch)
    if (
        header.magic != batches.MAGIC
        or header.length != size - batches.PREFIX_BYTES
        or size > config.max_message_bytes
    ):
        raise _misfit(header, size, config)
    if not batches.checksum_matches(batch, 0, header):
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "expected the batch's checksum to match")
    _validate_content(header)
    if (
        header.attributes & _APPEND_TIME_BIT
        or config.looks_inside
        or (
            header.max_timestamp - now_ms > config.timestamp_after_max_ms and not config.append_time
        )
    ):
        return _validate_records(batch, header, config, now_ms)
    return header


def recompressed(
    batch: bytearray | memoryview, header: Header, config: LogConfig
) -> bytearray | memoryview:
    """A valid batch in the log's own compression; the batch itself where it has that already.

    Raises:
        AppendError: its records can't be unpacked, or are too many bytes in the log's compression.
    """
    wanted = config.compression_type
    codec = CODECS.index("none" if wanted == UNCOMPRESSED else wanted)
    if codec == header.codec_number:
        return batch
    try:
        made = batches.recompress(batch, header, codec, config.compression_level)
    except (CorruptError, LimitError) as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if len(made) > config.max_message_bytes:
        raise _too_large(len(made), config)
    return made


def _misfit(header: Header, size: int, config: LogConfig) -> AppendError:
    """Why bytes whose header doesn't fit them, or that are too many, are no batch for a log."""
    if header.length < _LENGTH_MIN_EVER or not 0 <= header.magic <= batches.MAGIC:
        return AppendError(ErrorCode.CORRUPT_MESSAGE, header.fault() or "")
    if header.size > size:
        return AppendError(
            ErrorCode.INVALID_RECORD,
            f"expected a batch of {header.size} bytes as its header says; found {size}",
        )
    if header.magic != batches.MAGIC:
        return AppendError(ErrorCode.INVALID_RECORD, header.fault() or "")
    if header.length < HEADER_BYTES - batches.PREFIX_BYTES:
        return AppendError(ErrorCode.CORRUPT_MESSAGE, header.fault() or "")
    if header.size != size:
        return AppendError(
            ErrorCode.INVALID_RECORD,
            f"expected one batch per partition in a request; found {size - header.size} bytes "
            "after the first",
        )
    return _too_large(size, config)


def _too_large(size: int, config: LogConfig) -> AppendError:
    return AppendError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"expected a batch of at most {config.max_message_bytes} bytes "
        f"(max.message.bytes); found {size}",
    )


def _validate_content(header: Header) -> None:
    if header.is_transactional and header.producer_id == NO_PRODUCER:
        raise AppendError(
            ErrorCode.INVALID_RECORD, "expected a producer id in a transactional batch; found none"
        )
    if (
        header.record_count <= 0
        or header.record_count != header.last_offset_delta + 1
        or header.is_control
    ):
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"expected data, as many records as offsets; found {header.record_count} records, "
            f"last offset delta {header.last_offset_delta}, attributes {header.attributes:#x}",
        )
    if not header.is_known_codec:
        raise AppendError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"expected a codec; found {header.codec}"
        )


def _validate_records(
    batch: bytearray | memoryview, header: Header, config: LogConfig, now_ms: int
) -> Header:
    """The header once more, if no record is at fault; its times are the records'.

    A producer may not say that times are the broker's, save where that changes nothing: in a topic with
    the producers' times the header's is taken for each record's then, and the records' own are kept.
    """
    if config.looks_inside:
        inspection.want_loop()
    is_stamped = header.is_append_time
    may_stamp = not config.append_time and header.max_timestamp != NO_TIMESTAMP
    wanted = Wanted(
        _INT64_MIN
        if config.append_time
        else max(now_ms - config.timestamp_before_max_ms, _INT64_MIN),
        _INT64_MAX
        if config.append_time
        else min(now_ms + config.timestamp_after_max_ms, _INT64_MAX),
        config.compacts,
        header.max_timestamp if is_stamped else None,
    )
    if is_stamped and not may_stamp:
        wanted = Wanted(1, 0, config.compacts, time_ms=0)  # every record is at fault
    try:
        found = inspection.inspect(batch, header, wanted)
    except LimitError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except CorruptError as error:
        code = ErrorCode.CORRUPT_MESSAGE if header.codec_number else ErrorCode.INVALID_RECORD
        raise AppendError(code, str(error)) from error
    if found.fault_count:
        span = None if is_stamped and not may_stamp else (wanted.earliest_ms, wanted.latest_ms)
        raise _at_fault(found, header, span)
    if (is_stamped or found.max_timestamp != header.max_timestamp) and not config.append_time:
        batches.correct_times(batch, header, found.max_timestamp)
        return batches.parse(batch)
    return header


def _at_fault(found: Inspected, header: Header, span: tuple[int, int] | None) -> AppendError:
    """The refusal that names the records at fault; without a span, their kind of time is at fault."""
    key = "expected a key in each record of a compacted topic; found null"
    time = "expected the producer's time (CreateTime); found the broker's (LogAppendTime)"
    errors = [
        RecordError(
            one.batch_index,
            key
            if one.timestamp_ms is None
            else time
            if span is None
            else f"expected a timestamp {_span(*span)}; found {one.timestamp_ms}",
        )
        for one in found.faults
    ]
    code = ErrorCode.INVALID_TIMESTAMP if found.time_fault_count else ErrorCode.INVALID_RECORD
    lacks_key = code is ErrorCode.INVALID_RECORD
    fitting = (
        error.message
        for error, one in zip(errors, found.faults, strict=True)
        if (one.timestamp_ms is None) == lacks_key
    )
    what = next(fitting, errors[0].message)
    many = f"{found.fault_count} of the batch's {header.record_count} records are at fault"
    return AppendError(code, f"{what}; {many}, the first is number {errors[0].batch_index}", errors)


def _span(earliest_ms: int, latest_ms: int) -> str:
    return f"from {earliest_ms} to {latest_ms} ms" if earliest_ms > 0 else f"up to {latest_ms} ms"
