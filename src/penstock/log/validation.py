"""Which batches a log takes: the checks of a produced batch before anything is written.

Only the header and the checksum are looked at: records are opaque here. Codes are Kafka's
(LogValidator).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import CorruptError, LimitError
from penstock.log.errors import AppendError, Refusal
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, NO_PRODUCER, Buffer, Header
from penstock.wire.codecs import CODECS

__all__ = ["LogConfig", "recompressed", "validate"]

AS_PRODUCED: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"
"""What `compression.type` calls the codec `none`."""

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
    def deletes(self) -> bool:
        """Whether retention removes old segments."""
        return "delete" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """The age at which a new segment is begun; what must be compacted must be closed before."""
        return (
            min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        )


def validate(batch: Buffer, config: LogConfig, now_ms: int) -> Header:
    """The batch's header, if the batch may stand in a log with that configuration.

    Raises:
        AppendError: it may not, with the protocol's code.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise AppendError(Refusal.INVALID_RECORD, f"expected a record batch, found {size} bytes")
    header = batches.parse(batch)
    if (
        header.magic != batches.MAGIC
        or header.length != size - batches.PREFIX_BYTES
        or size > config.max_message_bytes
    ):
        raise _misfit(header, size, config)
    if not batches.checksum_matches(batch, 0, header):
        raise AppendError(Refusal.CORRUPT_MESSAGE, "expected the batch's checksum to match")
    _validate_content(header, config, now_ms)
    if config.compacts:
        _validate_keys(batch, header)
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
        raise AppendError(Refusal.CORRUPT_MESSAGE, str(error)) from error
    if len(made) > config.max_message_bytes:
        raise _too_large(len(made), config)
    return made


def _misfit(header: Header, size: int, config: LogConfig) -> AppendError:
    """Why bytes whose header doesn't fit them, or that are too many, are no batch for a log."""
    if header.length < _LENGTH_MIN_EVER or not 0 <= header.magic <= batches.MAGIC:
        return AppendError(Refusal.CORRUPT_MESSAGE, header.fault() or "")
    if header.size > size:
        return AppendError(
            Refusal.INVALID_RECORD,
            f"expected a batch of {header.size} bytes as its header says, found {size}",
        )
    if header.magic != batches.MAGIC:
        return AppendError(Refusal.INVALID_RECORD, header.fault() or "")
    if header.length < HEADER_BYTES - batches.PREFIX_BYTES:
        return AppendError(Refusal.CORRUPT_MESSAGE, header.fault() or "")
    if header.size != size:
        return AppendError(
            Refusal.INVALID_RECORD,
            f"expected one batch per partition in a request, found {size - header.size} bytes "
            "after the first",
        )
    return _too_large(size, config)


def _too_large(size: int, config: LogConfig) -> AppendError:
    return AppendError(
        Refusal.MESSAGE_TOO_LARGE,
        f"expected a batch of at most {config.max_message_bytes} bytes "
        f"(max.message.bytes), found {size}",
    )


def _validate_keys(batch: Buffer, header: Header) -> None:
    """A record without a key can't be found again by its key, so a compacted log takes none."""
    try:
        is_keyed = batches.all_have_keys(batch, 0, header)
    except (CorruptError, LimitError) as error:
        raise AppendError(Refusal.CORRUPT_MESSAGE, str(error)) from error
    if not is_keyed:
        raise AppendError(
            Refusal.INVALID_RECORD, "expected a key in each record of a compacted topic, found null"
        )


def _validate_content(header: Header, config: LogConfig, now_ms: int) -> None:
    if header.is_transactional and header.producer_id == NO_PRODUCER:
        raise AppendError(
            Refusal.INVALID_RECORD, "expected a producer id in a transactional batch, found none"
        )
    if (
        header.record_count <= 0
        or header.record_count != header.last_offset_delta + 1
        or header.is_control
    ):
        raise AppendError(
            Refusal.INVALID_RECORD,
            f"expected data, as many records as offsets, found {header.record_count} records, "
            f"last offset delta {header.last_offset_delta}, attributes {header.attributes:#x}",
        )
    if not header.is_known_codec:
        raise AppendError(
            Refusal.UNSUPPORTED_COMPRESSION_TYPE, f"expected a codec, found {header.codec}"
        )
    if config.append_time:
        return
    if header.is_append_time or (
        header.max_timestamp - now_ms > config.timestamp_after_max_ms
        or now_ms - header.base_timestamp > config.timestamp_before_max_ms
    ):
        raise AppendError(
            Refusal.INVALID_TIMESTAMP,
            f"expected timestamps up to {config.timestamp_after_max_ms} ms ahead of the "
            f"broker's clock and {config.timestamp_before_max_ms} ms behind it, found "
            f"{header.base_timestamp} to {header.max_timestamp} at {now_ms}",
        )
